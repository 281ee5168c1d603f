"""MNIST 3 against 8 with all 196 or 784 pixels free: certified accuracy against l2 radius.

A probit model with one length-scale, pixels in [0, 1]. For each radius: the share of test
images that RobustGPC proves to be classified correctly in the whole ball, and the share that stays
correct under the iterated attack; the true robust accuracy lies between the two. The baseline is
randomized smoothing of the same classifier (Cohen et al. 2019), with Gaussian noise of several
standard deviations sigma. It certifies a different classifier, the majority vote under noise, with
the radius ``sigma * q`` for the normal quantile q of a Clopper-Pearson bound on the share of votes,
and fails with probability .001 for each image. Its n is 2,000 (Cohen et al.: 100,000), which limits
radii to 2.7 sigma. Run::

    python -m benchmarks.gpc_pixels --features 196 --record gpc_pixels_196
    python -m benchmarks.gpc_pixels --features 784 --record gpc_pixels_784
"""

import argparse
import time
from pathlib import Path

import numpy as np
from scipy.stats import beta, norm
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from benchmarks.gpc import figures, pool
from benchmarks.harness import finish, parser, set_threads
from skuq import RobustGPC

RADII = (0.1, 0.3, 0.5, 0.7, 1.0, 1.25, 1.5, 2.0)
SIGMAS = (0.25, 0.5)
N_SELECT, ALPHA = 100, 0.001  # votes for selecting the class; probability of failure
OURS, ATTACK = "RobustGPC", "iterated attack"


def load(args: argparse.Namespace, n_features: int) -> tuple[np.ndarray, ...]:
    """Read training and test images of both digits, in [0, 1]."""
    with np.load(args.data_dir / "mnist.npz", allow_pickle=False) as file:
        parts = []
        for side in ("train", "test"):
            rows = np.isin(file[f"y_{side}"], [3, 8])
            images = file[f"x_{side}"][rows]
            X = pool(images) if n_features == 196 else images.reshape(len(images), -1) / 255
            parts += [X, file[f"y_{side}"][rows]]
    X, y, X_test, y_test = parts
    rows = np.random.default_rng(args.seed).choice(len(X), args.n_train, replace=False)
    return X[rows], y[rows], X_test, y_test


def smoothed_radii(
    model: RobustGPC, X: np.ndarray, y: np.ndarray, sigma: float, n: int, rng: np.random.Generator
) -> np.ndarray:
    """Radii by randomized smoothing (CERTIFY of Cohen et al.), -1 if it abstains or is wrong."""
    radii = np.full(len(X), -1.0)
    for i, (x, label) in enumerate(zip(X, y, strict=True)):
        votes = model.predict(x + sigma * rng.normal(size=(N_SELECT + n, len(x))))
        classes, counts = np.unique(votes[:N_SELECT], return_counts=True)
        chosen = classes[counts.argmax()]
        count = int((votes[N_SELECT:] == chosen).sum())
        least = beta.ppf(ALPHA, count, n - count + 1) if count else 0.0  # Clopper-Pearson
        if chosen == label and least > 0.5:
            radii[i] = sigma * norm.ppf(least)
    return radii


def measured(args: argparse.Namespace, n_features: int) -> list[dict]:
    """Measure all figures for one number of pixels."""
    X, y, X_test, y_test = load(args, n_features)
    spread = float(np.sqrt(X.var(axis=0).sum()))
    kernel = ConstantKernel(1.0, (1e-2, 1e4)) * RBF(spread, (spread * 1e-2, spread * 1e3))
    start = time.process_time()
    model = RobustGPC(kernel, max_iter=args.max_iter, random_state=args.seed, device="cpu").fit(
        X, y
    )
    fit = time.process_time() - start
    found = figures(OURS, "all", len(X_test), seconds_fit=fit, accuracy=model.score(X_test, y_test))
    X_test, y_test = X_test[: args.n_test], y_test[: args.n_test]
    seconds, open_, withstand = 0.0, np.arange(len(X_test)), np.arange(len(X_test))
    for radius in RADII:
        request = {"radius": radius, "norm": "l2", "domain": (0.0, 1.0)}
        start = time.process_time()
        if len(open_):  # a point that is not proven at one radius is not proven at a larger one
            found_here = model.certify(
                X_test[open_], y=y_test[open_], max_regions=args.max_regions, **request
            )
            open_ = open_[found_here.status == "safe"]
        seconds += time.process_time() - start
        if len(withstand):  # an attack that succeeds at one radius succeeds at a larger one
            attack = model.attack(X_test[withstand], y=y_test[withstand], **request)
            withstand = withstand[~attack.success]
        contradictions = len(np.setdiff1d(open_, withstand))
        share, attacked = len(open_) / len(X_test), len(withstand) / len(X_test)
        found += figures(OURS, f"r{radius:g}", len(X_test), certified=share)
        found += figures(ATTACK, f"r{radius:g}", len(X_test), certified=attacked)
        found += figures(OURS, f"r{radius:g}", len(X_test), wrong=contradictions)
    seconds /= len(X_test)
    found += figures(OURS, "all", len(X_test), cpu_seconds_image=seconds)
    rng = np.random.default_rng(args.seed)
    for sigma in SIGMAS:
        start = time.process_time()
        radii = smoothed_radii(model, X_test, y_test, sigma, args.n_votes, rng)
        seconds = (time.process_time() - start) / len(X_test)
        name = f"smoothing {sigma:g}"
        found += figures(name, "all", len(X_test), cpu_seconds_image=seconds)
        for radius in RADII:
            share = np.mean(radii >= radius)
            found += figures(name, f"r{radius:g}", len(X_test), certified=share)
    return found


def draw(path: Path, found: list[dict], n_features: int) -> None:
    """Plot certified accuracy by radius."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    value = {(r["method"], r["dataset"]): r["value"] for r in found if r["metric"] == "certified"}
    figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    styles = {
        ATTACK: ("left correct by the attack", "#808080", ":"),
        OURS: ("RobustGPC, proven", "#2458a6", "-"),
        "smoothing 0.25": ("smoothing, noise .25", "#d03c8c", "--"),
        "smoothing 0.5": ("smoothing, noise .5", "#e08a3c", "--"),
    }
    for method, (label, colour, style) in styles.items():
        shares = [value[method, f"r{radius:g}"] for radius in RADII]
        axis.plot(RADII, shares, style, color=colour, label=label)
    axis.set(xlabel="l2 radius", ylabel="share of test images", ylim=(0, 1.02))
    axis.set_title(f"{n_features} pixels", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--features", type=int, choices=[196, 784], default=196)
    arguments.add_argument("--n-train", type=int, default=500)
    arguments.add_argument("--n-test", type=int, default=100)
    arguments.add_argument("--n-votes", type=int, default=2000)
    arguments.add_argument("--max-iter", type=int, default=15, help="evaluations of the evidence")
    arguments.add_argument("--max-regions", type=int, default=1)
    args = arguments.parse_args()
    set_threads(args)
    found = measured(args, args.features)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        draw(args.out / f"gpc_pixels_{args.features}.png", found, args.features)
    finish("gpc_pixels", args, found)


if __name__ == "__main__":
    main()
