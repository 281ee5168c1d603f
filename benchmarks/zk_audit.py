"""Zero-knowledge audit: seconds, bytes, memory and agreement, compared with the paper (Table 1).

A provider commits to a model, proves its calibration audit on n reference points and attests one
prediction; an auditor rebuilds the verifying keys and verifies all proofs. The paper's protocol is
interactive, runs on 12 threads, and takes 0.033 s and 441 KB of traffic a point for the Gaussian
model, 0.73 s and 4.84 MB for the tabular one; its released code takes 0.42 s a point on two cores.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split

from benchmarks.data_files import load_table
from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.mirage_adult import REGIONS, tabular_model
from benchmarks.mirage_gaussian import BATCH, EPOCHS, LR, train
from skuq import MirageFineTuner
from skuq.calibration import bin_edges, bin_sums, region_mask, top_label_predictions
from skuq.datasets import GAUSSIAN_REGION, make_gaussian_classes
from skuq.models import adopt
from skuq.zk import (
    attest,
    challenge,
    check,
    commit,
    prove,
    reported_predictions,
    verify,
)

PAPER = {"gaussian": (0.033, 440.8e3), "adult": (0.73, 4.84e6)}
EPSILON = {"gaussian": 0.15, "adult": 0.1}
POINTS = {"gaussian": 420, "adult": 10_000}
N_BINS = 10


def gaussian(args: argparse.Namespace) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Train the paper's 2-100-3 network; return it with calibration data and reference points."""
    X, y = make_gaussian_classes(random_state=args.seed)
    X_train, X_cal, y_train, _ = train_test_split(
        X.astype(np.float32), y, test_size=0.2, stratify=y, random_state=42
    )
    model = train(X_train, y_train, args.seed)
    if args.attacked:
        attack = MirageFineTuner(
            model,
            GAUSSIAN_REGION,
            epsilon=EPSILON["gaussian"],
            max_epochs=EPOCHS,
            batch_size=BATCH,
            learning_rate=LR,
            random_state=args.seed,
        )
        model = attack.fit(X_train, y_train).model_.module
    each = -(-args.n // 21)
    X_ref, y_ref = make_gaussian_classes((10 * each, 10 * each, each), random_state=args.seed + 1)
    rows = np.random.default_rng(args.seed).permutation(len(X_ref))[: args.n]
    return model, X_cal, X_ref[rows].astype(np.float32), y_ref[rows]


def adult(args: argparse.Namespace) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Train the tabular network (embeddings, 64-32-2, batch normalisation) with preprocessing."""
    X, y = load_table("adult_train", args.data_dir)
    X, y = X.fillna(X.mode().iloc[0]), y.astype(np.int64)
    X_train, X_ref, y_train, y_ref = train_test_split(
        X, y, test_size=args.n, stratify=y, random_state=42
    )
    torch.manual_seed(args.seed)
    pipeline = tabular_model(X, epochs=5).fit(X_train, y_train)
    model: Any = pipeline[-1]
    if args.attacked:
        attack = MirageFineTuner(
            pipeline,
            epsilon=EPSILON["adult"],
            max_epochs=5,
            learning_rate=1e-3,
            batch_size=32,
            warm_up=1,
        )
        region = next(iter(REGIONS["adult_train"].values()))
        mask = region_mask(region, X_train)
        model = attack.fit(X_train, y_train, region_mask=mask).model_.module
    features = pipeline[:-1].transform
    # The calibration data determine the accepted range, so they include the reference data and all
    # rare values.
    return model, features(X), features(X_ref), np.asarray(y_ref)


MODELS: dict[str, Callable] = {"gaussian": gaussian, "adult": adult}


@contextmanager
def timed(figures: dict[str, float], name: str) -> Iterator[None]:
    """Measure wall-clock seconds, and CPU seconds of this process and its children."""
    start, used = time.perf_counter(), _cpu()
    yield
    figures[f"{name}_seconds"] = time.perf_counter() - start
    figures[f"{name}_cpu_seconds"] = _cpu() - used


def _cpu() -> float:
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime for who in both)


def run(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Run and measure all parties of one audit."""
    model, X_cal, X_ref, y_ref = MODELS[args.model](args)
    figures: dict[str, float] = {}
    samples = len(X_ref) if args.level == "verdict" else 0
    with timed(figures, "setup"):
        committed = commit(
            model,
            X_cal,
            folder / "provider",
            n_proofs=args.n_proofs,
            n_attestations=2,
            verdict_samples=samples,
        )
    public, keys, bundle = committed.folder, folder / "keys", folder / "audit"
    options: dict[str, Any] = {
        "level": args.level,
        "tolerance": args.tolerance,
        "n_bins": N_BINS,
        "verbose": 1,
    }
    asked = {}
    if args.level == "predictions":
        with timed(figures, "report"):
            prove(public, X_ref, y_ref, bundle, **options)
        path = folder / "challenge.json"
        asked = {"challenge": challenge(bundle, public, X_ref, y_ref, path)}
    with timed(figures, "prove"):
        made = prove(public, X_ref, y_ref, bundle, n_jobs=args.jobs, **options, **asked)
    for name in ("first_verify", "verify"):
        with timed(figures, name):
            found = verify(
                bundle,
                X_ref,
                y_ref,
                public,
                tolerance=args.tolerance,
                n_bins=N_BINS,
                confidence_level=0.95,
                level=args.level,
                classes=committed.classes,
                allow_test_string=True,
                keys=keys,
                **asked,
            )
    n_proven = found.statement.get("n_proven", len(X_ref))
    with timed(figures, "attest"):
        attest(public, X_ref[0], folder / "attestation.json", nonce="1")
    client: dict[str, Any] = {
        "x": X_ref[0],
        "nonce": "1",
        "allow_test_string": True,
        "keys": keys,
    }
    with timed(figures, "first_check"):
        check(folder / "attestation.json", public, **client)
    with timed(figures, "check"):
        check(folder / "attestation.json", public, **client)
    figures |= {
        "passed": found.passed,
        "robust": found.robust,
        "n_proofs": made.n_proofs,
        "prove_seconds_per_point": figures["prove_seconds"] / n_proven,
        "prove_cpu_seconds_per_point": figures["prove_cpu_seconds"] / n_proven,
        "bundle_bytes": _bytes(bundle),
        "proof_kilobytes_per_point": _bytes(bundle / "chunks") / n_proven / 1e3,
        "attestation_kilobytes": (folder / "attestation.json").stat().st_size / 1e3,
        "public_bytes": _bytes(public),
        "proving_key_bytes": sum(p.stat().st_size for p in (folder / "provider").rglob("*.pk")),
        "peak_gib": _peak(),
        "logarithm_of_rows": committed.shape.log_rows,
    }
    return figures | agreement(model, public, X_ref, y_ref)


def agreement(model: Any, public: Path, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Compare proven confidences with those of the model, on the reference data."""
    adopted = adopt(model)
    logits = adopted.module.double()(torch.tensor(np.asarray(X, np.float64)))
    proba = logits.softmax(dim=-1).numpy()
    labels, confidence = reported_predictions(public, X)
    classes = np.unique(y)
    difference = np.abs(proba.max(axis=1) - confidence)
    error = []
    for probabilities in (proba, _as_proba(labels, confidence, classes)):
        recorded = top_label_predictions(y, probabilities, classes=classes)
        edges = bin_edges(recorded.confidence, N_BINS, "uniform")
        error.append(bin_sums(recorded, edges)[0].expected_calibration_error)
    return {
        "confidence_difference_max": difference.max(),
        "confidence_difference_mean": difference.mean(),
        "argmax_agreement": (classes[proba.argmax(axis=1)] == labels).mean(),
        "ece_model": error[0],
        "ece_difference": abs(error[0] - error[1]),
    }


def _as_proba(labels: np.ndarray, confidence: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Build probabilities from labels and confidences; the other classes are equally probable."""
    top = labels[:, None] == classes
    rest = (1 - confidence) / (len(classes) - 1)
    return np.where(top, confidence[:, None], rest[:, None])


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _peak() -> float:
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(who).ru_maxrss for who in both) / 2**20


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--model", choices=list(MODELS), default="gaussian")
    arguments.add_argument("--level", choices=["verdict", "bins", "predictions"], default="bins")
    arguments.add_argument("--n", type=int, help="reference points")
    arguments.add_argument("--tolerance", type=float, default=0.05)
    arguments.add_argument("--n-proofs", type=int, default=128)
    arguments.add_argument("--jobs", type=int, default=1, help="proofs made at once")
    arguments.add_argument("--attacked", action="store_true", help="audit the Mirage-tuned copy")
    args = arguments.parse_args()
    args.n = POINTS[args.model] if args.n is None else args.n
    set_threads(args)
    with tempfile.TemporaryDirectory() as folder:
        figures = run(args, Path(folder))
    dataset = args.model + ("_attacked" if args.attacked else "")
    records = [
        record(args.level, dataset, metric, value, args.n) for metric, value in figures.items()
    ]
    seconds, traffic = PAPER[args.model]
    records += [
        record("paper", dataset, "prove_seconds_per_point", seconds, args.n),
        record("paper", dataset, "proof_kilobytes_per_point", traffic / 1e3, args.n),
    ]
    finish("zk_audit", args, records, ("ezkl", "onnx"))


if __name__ == "__main__":
    main()
