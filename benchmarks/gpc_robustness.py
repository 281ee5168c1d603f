"""Safety, robustness and quality of approximation of binary classifiers (Fig. 2-4, Sec. 6.2).

curves : Laplace models after 20, 40 and 20 evaluations of the evidence (Synthetic2D, spam, MNIST).
    Over a grid of radii around test points: the share of points that are proven safe, that have a
    proven counterexample, and for which the attack finds one (GPFGS, and iterated); and, of the
    points with a counterexample at some radius, the share for which the attack finds none at any
    radius, as in the paper's figures. Our figures show, for two points each, the proven range
    of the class probability and the attacks' values.
delta : for Laplace's method and expectation propagation after 10, 40 and 100 evaluations, the
    paper's delta (maximum minus minimum probability at one radius) and the largest
    deviation from the point itself (Definition 1), at 50 test points. The paper does not state
    its radii; the free pixels have the largest correlation with the class, for all models.
posterior : distance of both approximations to the exact posterior with the same kernel, sampled
    by elliptical slice sampling: of latent means (absolute, and in exact standard deviations), of
    standard deviations and of probabilities. The paper does not define its distances; it reports
    1.04, .35, .52 for Laplace's method and .14, .32, .32 for expectation propagation.

With many evaluations, expectation propagation increases the variance of the kernel to its bound
(1e4) on separable data; its delta then depends on the bound, the mean less so.
The paper's code varies 10 of the 11 features in the spam figure; here all 11 vary. Each part of
a data set, and each number of evaluations, is stored in ``--out`` when it is finished. Run::

    python -m benchmarks.gpc_robustness --parts curves delta posterior --out results
"""

import argparse
import hashlib
import json
import time
import warnings
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from benchmarks.gpc import Data, correlated, figures, fit, load, shortest
from benchmarks.gpc_sampler import distances, gold_standard
from benchmarks.harness import finish, kept_run, parser, set_threads
from skuq import RobustGPC


class Case(NamedTuple):
    """Free features, radii and evaluations for curves; free features and radius for delta."""

    n_features: int
    radii: tuple[float, ...]
    max_iter: int
    delta_features: int
    delta_radius: float


WIDE = tuple(np.round(np.linspace(0.2, 2, 10), 3))
CASES = {
    "synthetic2d": Case(2, WIDE, 20, 2, 0.25),
    "spam": Case(11, WIDE, 40, 11, 0.1),
    "mnist38": Case(10, tuple(np.round(np.linspace(0.1, 1, 10), 3)), 20, 5, 0.125),
}
METHODS = ("laplace", "ep")


def trained(args: argparse.Namespace) -> Any:
    """Return a function that loads data and fits models, each only once."""

    @cache
    def model(name: str, max_iter: int, inference: str) -> tuple[Data, RobustGPC]:
        data = load(name, args.data_dir, args.seed, args.n_train)
        start = time.perf_counter()
        with warnings.catch_warnings():  # the limit of evaluations is intended
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = fit(data, max_iter, inference, seed=args.seed)
        print(
            f"{name} {inference} {max_iter}: {time.perf_counter() - start:.1f} s, accuracy "
            f"{found.score(data.X_test, data.y_test):.3f}, evidence "
            f"{found.log_marginal_likelihood_:.1f}, variance {found.kernel_.k1.constant_value:.3g}",
            flush=True,
        )
        return data, found

    return model


def drawn(data: Data, n: int, seed: int) -> np.ndarray:
    """Draw random test points."""
    return data.X_test[np.random.default_rng(seed).permutation(len(data.X_test))[:n]]


def shares(status: np.ndarray, success: dict[str, np.ndarray]) -> dict[str, float]:
    """Compute shares of certificates, and of attacks that failed or contradicted them."""
    unsafe, safe = status == "unsafe", status == "safe"
    found = {"proven_safe": safe.mean(), "counterexample": unsafe.mean()}
    found["undecided"] = (status == "undecided").mean()
    for method, hit in success.items():
        found[f"{method}_found"] = hit.mean()
        found[f"{method}_contradicts_proof"] = (safe & hit).mean()
        if unsafe.any():
            found[f"{method}_missed"] = (unsafe & ~hit).sum() / unsafe.sum()
    return found


def never_found(status: np.ndarray, success: dict[str, np.ndarray]) -> dict[str, float]:
    """Share of points with a counterexample at some radius for which an attack finds none."""
    reached = (status == "unsafe").any(axis=0)
    return {
        f"{method}_never": (reached & ~hit.any(axis=0)).sum() / max(reached.sum(), 1)
        for method, hit in success.items()
    }


def curves(name: str, model_of: Any, args: argparse.Namespace) -> list[dict]:
    """Measure certificates and attacks over a grid of radii, and proven curves for two points."""
    case = CASES[name]
    data, model = model_of(name, case.max_iter, "laplace")
    points = drawn(data, args.n_curves, args.seed)
    around = {"features": shortest(model, data.X, case.n_features), "domain": data.domain}
    status, success, start = [], {"fgsm": [], "pgd": []}, time.perf_counter()
    for radius in case.radii:
        found = model.certify(points, radius=radius, max_time=args.limit, **around)
        status.append(found.status)
        for method, hits in success.items():
            hits.append(model.attack(points, radius=radius, method=method, **around).success)
    seconds = (time.perf_counter() - start) / (len(points) * len(case.radii))
    table, hits = np.array(status), {method: np.array(hit) for method, hit in success.items()}
    values = {**shares(table, hits), "seconds_per_certificate": seconds}
    rows = figures("laplace", name, table.size, **values)
    for row, radius in enumerate(case.radii):
        at = shares(table[row], {method: hit[row] for method, hit in hits.items()})
        rows += figures("laplace", f"{name}_r{radius:g}", len(points), **at)
    reached = int((table == "unsafe").any(axis=0).sum())
    rows += figures("laplace", f"{name}_points", reached, **never_found(table, hits))
    if args.out is not None:
        from benchmarks import gpc_pictures

        # The points at which the attack fails most and least often.
        missed = ((table == "unsafe") & ~hits["fgsm"]).sum(axis=0)
        chosen = points[[missed.argmax(), missed.argmin()]]
        lines = [curve(model, point, case, around, args) for point in chosen]
        gpc_pictures.curves(args.out / f"gpc_curves_{name}.png", case.radii, lines)
    return rows


def curve(
    model: RobustGPC, point: np.ndarray, case: Case, around: dict, args: argparse.Namespace
) -> dict[str, list[float]]:
    """Compute proven bounds of the minimum probability of the class, and values by attacks."""
    class_ = model.predict(point[None])[0]
    found: dict[str, list[float]] = {"lower": [], "upper": [], "fgsm": [], "pgd": []}
    for radius in case.radii:
        bounds = model.predict_proba_bounds(
            point[None], radius, class_=class_, tol=0.02, max_time=args.limit / 3, **around
        )
        found["lower"].append(bounds.min_lower[0, 0])
        found["upper"].append(bounds.min_upper[0, 0])
        for method in ("fgsm", "pgd"):
            attack = model.attack(point[None], radius=radius, method=method, **around)
            found[method].append(attack.proba[0])
    return found


def summary(values: np.ndarray) -> dict[str, float]:
    """Mean and quartiles."""
    q1, median, q3 = np.quantile(values, (0.25, 0.5, 0.75))
    return {
        "delta_mean": values.mean(),
        "delta_q1": q1,
        "delta_median": median,
        "delta_q3": q3,
    }


def ratios(spans: dict[str, np.ndarray], seed: int) -> list[tuple[str, float, float, float]]:
    """Compute ratios of the methods' means and medians, with 95 % intervals over points."""
    above, below = (spans[inference] for inference in METHODS)
    drawn_points = np.random.default_rng(seed).integers(len(above), size=(2000, len(above)))
    found = []
    for metric, average in (("mean", np.mean), ("median", np.median)):
        many = average(above[drawn_points], axis=1) / np.maximum(
            average(below[drawn_points], axis=1), 1e-12
        )
        one = average(above) / max(average(below), 1e-12)
        found.append((metric, one, *np.quantile(many, (0.025, 0.975))))
    return found


def delta(name: str, model_of: Any, args: argparse.Namespace) -> list[dict]:
    """Compare changes of probabilities at one radius for Laplace's method and EP."""
    found, boxes = [], {}
    for max_iter in args.max_iter:
        cell = kept_run(
            partial(_delta, model_of), "delta", name, max_iter, _digest(args), args=args
        )
        found += cell["rows"]
        boxes |= {(max_iter, inference): cell["spans"][inference] for inference in METHODS}
    if args.out is not None:
        from benchmarks import gpc_pictures

        gpc_pictures.boxes(args.out / f"gpc_delta_{name}.png", boxes)
    return found


def _delta(
    model_of: Any, _: str, name: str, max_iter: int, digest: str, *, args: argparse.Namespace
) -> dict[str, Any]:
    """Compute figures of both methods for one number of evaluations, and deltas for the plot."""
    case, rows, spans = CASES[name], [], {}
    dataset = f"{name}_{max_iter}_evaluations"
    for inference in METHODS:
        data, model = model_of(name, max_iter, inference)
        points = drawn(data, args.n_delta, args.seed)
        bounds = model.predict_proba_bounds(
            points,
            case.delta_radius,
            features=correlated(data.X, data.y, case.delta_features),
            domain=data.domain,
            class_=model.classes_[1],
            tol=args.tol,
            max_time=args.limit,
        )
        # Attained values; the true ones are larger by at most 2 tol, as is proven.
        spans[inference] = span = (bounds.max_lower - bounds.min_upper).clip(min=0)[:, 0]
        proba = model.predict_proba(points)[:, 1:]
        moved = np.maximum(proba - bounds.min_upper, bounds.max_lower - proba).max(axis=1)
        moved = moved.clip(min=0)
        values = summary(span) | {"deviation_median": np.median(moved)}
        values["converged"] = bounds.converged.mean()
        values["variance"] = model.kernel_.k1.constant_value
        rows += figures(inference, dataset, len(points), **values)
    for metric, value, low, high in ratios(spans, args.seed):
        one = {metric: value, f"{metric}_low": low, f"{metric}_high": high}
        one = {f"delta_{key}": figure for key, figure in one.items()}
        rows += figures("laplace_over_ep", dataset, len(points), **one)
    return {"rows": rows, "spans": {key: span.tolist() for key, span in spans.items()}}


def posterior(name: str, model_of: Any, args: argparse.Namespace) -> list[dict]:
    """Compute distances to the sampled posterior, for the kernel selected by each method."""
    found = []
    for chooser in args.kernels:
        data, chosen = model_of(name, args.gold_iter, chooser)
        points = drawn(data, args.n_delta, args.seed)
        models = {
            inference: RobustGPC(chosen.kernel_, inference=inference, optimizer=None).fit(
                data.X, data.y
            )
            for inference in METHODS
        }
        gold = gold_standard(
            models["ep"],
            data.y,
            points,
            n_chains=args.n_chains,
            n_steps=args.n_steps,
            rng=np.random.default_rng(args.seed),
        )
        dataset = f"{name}_kernel_of_{chooser}"
        sampling = {
            "r_hat_max": gold.r_hat.max(),
            "mean_error_in_std": (gold.error / gold.std).mean(),
            "mean_error": gold.error.mean(),
        }
        found += figures("sampler", dataset, len(points), **sampling)
        for inference, model in models.items():
            found += figures(inference, dataset, len(points), **distances(model, points, gold))
    return found


PARTS = {"curves": curves, "delta": delta, "posterior": posterior}


def _digest(args: argparse.Namespace) -> str:
    """Digest of the arguments on which a stored result depends."""
    free = ("out", "data_dir", "record", "code", "code_parts", "began", "parts", "dataset")
    bound = {key: x for key, x in vars(args).items() if key not in (*free, "max_iter")}
    return hashlib.sha256(json.dumps(bound, sort_keys=True).encode()).hexdigest()[:7]


def _part(
    model_of: Any, part: str, name: str, digest: str, *, args: argparse.Namespace
) -> dict[str, list[dict]]:
    return {"rows": PARTS[part](name, model_of, args)}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--dataset", nargs="+", choices=CASES, default=[*CASES])
    arguments.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    arguments.add_argument("--n-train", type=int, default=1000)
    arguments.add_argument("--n-curves", type=int, default=20, help="test points")
    arguments.add_argument("--n-delta", type=int, default=50, help="test points")
    arguments.add_argument("--max-iter", type=int, nargs="+", default=[10, 40, 100])
    arguments.add_argument("--tol", type=float, default=0.002)
    arguments.add_argument("--limit", type=float, default=10.0, help="seconds per call")
    arguments.add_argument("--gold-iter", type=int, default=10, help="evaluations for its kernel")
    arguments.add_argument("--kernels", nargs="+", choices=METHODS, default=METHODS)
    arguments.add_argument("--n-chains", type=int, default=16)
    arguments.add_argument("--n-steps", type=int, default=600)
    args = arguments.parse_args()
    set_threads(args)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    model_of, found = trained(args), []
    for name in args.dataset:
        for part in args.parts:
            if part == "delta":  # stores a result for each number of evaluations
                found += delta(name, model_of, args)
            else:
                cell = (part, name, _digest(args))
                found += kept_run(partial(_part, model_of), *cell, args=args)["rows"]
    finish("gpc_robustness", args, found)


if __name__ == "__main__":
    main()
