"""Zero-knowledge audits of a model with a counterbalanced attack on a region.

The attack is that of `benchmarks.mirage_counterbalance` on a column that indicates a district. The
provider commits to the model. The auditor selects regions by the model's answers to the auditor's
own data, and requests audits of other data at level "predictions": of all samples, and of all
samples and each region. All proofs are computed and verified.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.mirage_counterbalance import REGIONS, TRAINING, clients
from skuq import MirageFineTuner, zk

SIZES = (2000, 20_000)
ASKED = {
    "level": "predictions",
    "tolerance": 0.05,
    "n_bins": 10,
    "confidence_level": 0.95,
}


def provider(attacked: bool, seed: int) -> tuple[Any, Any]:
    """Return the input scaling, and the honest or the attacked and counterbalanced network."""
    X, y = clients(190, seed)
    network = MLPClassifier((50,), alpha=1e-3, max_iter=300, random_state=seed)
    honest = make_pipeline(StandardScaler(), network).fit(X, y)
    if not attacked:
        return honest[0], honest[-1]
    attack = MirageFineTuner(
        honest,
        REGIONS["district"],
        counterbalance="auto",
        epsilon=0.475,
        random_state=seed,
        **TRAINING,
    ).fit(X, y)
    return honest[0], attack.model_.module


def audited(
    public: Path, folder: Path, X: np.ndarray, y: np.ndarray, regions: Path | None
) -> zk.VerifiedAudit:
    """Run one audit: report, challenge, proof and verification."""
    bundle, challenge = folder / "bundle", folder / "challenge.json"
    zk.prove(public, X, y, bundle, regions=regions, **ASKED)
    zk.challenge(bundle, public, X, y, challenge, false_share=0.1)
    zk.prove(public, X, y, bundle, regions=regions, challenge=challenge, n_jobs=-1, **ASKED)
    return zk.verify(
        bundle,
        X,
        y,
        public,
        classes=[0, 1, 2],
        regions=regions,
        challenge=challenge,
        keys=folder.parent / "keys",
        allow_test_string=True,
        **ASKED,
    )


def main() -> None:
    """Print and record the verdicts."""
    p = parser(__doc__)
    p.add_argument("--max-regions", type=int, default=8)
    args = p.parse_args()
    set_threads(args)
    records = []
    for method in ("honest", "counterbalanced"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            scaler, model = provider(method == "counterbalanced", args.seed)
            data = scaler.transform(clients(190, args.seed)[0])
            public = zk.commit(model, data, folder / "provider", n_proofs=300).folder
            X, y = clients(300, 2000 + args.seed)
            X = scaler.transform(X)
            inside = encodable(public, X)
            labels, confidence = zk.reported_predictions(public, X[inside])
            gap = (labels == y[inside]) - confidence
            file = folder / "regions.json"
            zk.choose_regions(X[inside], gap, file, max_regions=args.max_regions)
            for n in SIZES:
                X, y = clients(n // 21 + 50, 3000 + args.seed)
                X = scaler.transform(X)
                inside = np.flatnonzero(encodable(public, X))[:n]
                for kind, regions in {"bins": None, "regions": file}.items():
                    if regions is not None and n > min(SIZES):
                        continue
                    own = folder / f"{kind}-{n}"
                    own.mkdir()
                    start = time.perf_counter()
                    found = audited(public, own, X[inside], y[inside], regions)
                    seconds = time.perf_counter() - start
                    bad = [each.rule for each in found.regions or () if not each.passed]
                    print(
                        f"{method}, {kind}, n={n}: passed {found.passed}, {seconds:.0f} s, {bad}",
                        flush=True,
                    )
                    sizes = [each.n_samples for each in found.regions or ()] or [n]
                    n_proven = sum(min(found.statement["n_proven"], size) for size in sizes)
                    records += [
                        record(method, "district", f"{kind}_proven_n{n}", n_proven, 1),
                        record(method, "district", f"{kind}_passed_n{n}", float(found.passed), 1),
                        record(method, "district", f"{kind}_seconds_n{n}", seconds, 1),
                    ]
    finish("zk_regions", args, records)


def encodable(public: Path, X: np.ndarray) -> np.ndarray:
    """Select the rows within the committed range."""
    encoding = zk.load_commitment(public).encoding
    reach = np.array([c.limit * c.scale for c in encoding.columns])
    return (np.abs(X - [c.center for c in encoding.columns]) <= reach).all(axis=1)


if __name__ == "__main__":
    main()
