"""Data sets, models and records shared by the benchmarks of `RobustGPC`.

The data sets are those of Blaas et al. (2020), Appendix F: two shifted normal distributions,
the spam data with eleven columns, and the digits 3 and 8 (or 3, 5 and 8) at 14 x 14 pixels.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from benchmarks.harness import record
from skuq import RobustGPC

SIDE = 14  # side length of images, in pixels
N_TRAIN = {"synthetic2d": 1000, "spam": 1000, "mnist38": 1000, "mnist358": 500}


class Data(NamedTuple):
    """A data set, and the bounds of its features, if any."""

    name: str
    X: NDArray
    y: NDArray
    X_test: NDArray
    y_test: NDArray
    domain: tuple[float, float] | None


def pool(images: NDArray) -> NDArray:
    """Average blocks of 2 x 2 pixels, in [0, 1]; shape (n, h, w) to (n, h * w / 4)."""
    n, height, width = images.shape
    blocks = images.reshape(n, height // 2, 2, width // 2, 2)
    return (blocks.mean(axis=(2, 4)) / 255).reshape(n, -1)


def synthetic_2d(rng: np.random.Generator) -> tuple[NDArray, NDArray]:
    """Draw 600 points of two normal classes, shifted by 5 along each axis, and standardise them."""
    X = rng.normal(size=(1200, 2))
    y = np.repeat([1, 2], 600)
    X[np.arange(1200), y - 1] += 5
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def load(
    name: str, data_dir: Path, seed: int, n_train: int | None = None, n_test: int = 200
) -> Data:
    """Read a data set; the test digits are the first images of the official test set."""
    rng = np.random.default_rng(seed)
    n_train = n_train or N_TRAIN[name]
    if name.startswith("mnist"):
        with np.load(data_dir / "mnist.npz", allow_pickle=False) as file:
            part = {
                side: np.isin(file[f"y_{side}"], [int(digit) for digit in name[5:]])
                for side in ("train", "test")
            }
            X = pool(file["x_train"][part["train"]])
            X_test = pool(file["x_test"][part["test"]][:n_test])
            y, y_test = (file[f"y_{side}"][part[side]] for side in ("train", "test"))
        rows = rng.choice(len(X), n_train, replace=False)
        return Data(name, X[rows], y[rows], X_test, y_test[:n_test], (0.0, 1.0))
    if name == "spam":
        with np.load(data_dir / "spambase.npz", allow_pickle=False) as file:
            X, y = file["x"][:, file["paper_columns"]], file["y"]
    else:
        X, y = synthetic_2d(rng)
    rows = rng.permutation(len(X))
    train, test = rows[:n_train], rows[n_train : n_train + n_test]
    mean, std = X[train].mean(axis=0), X[train].std(axis=0)
    X = (X - mean) / std if name == "spam" else X
    return Data(name, X[train], y[train], X[test], y[test], None)


def fit(
    data: Data, max_iter: int, inference: str = "laplace", isotropic: bool = False, seed: int = 0
) -> RobustGPC:
    """Fit a model with one length-scale per feature, initialised at the spread of the data."""
    n_features = data.X.shape[1]
    spread = float(np.sqrt(data.X.var(axis=0).sum()))
    start = spread if isotropic else np.full(n_features, spread)
    kernel = ConstantKernel(1.0, (1e-2, 1e4)) * RBF(start, (spread * 1e-2, spread * 1e3))
    model = RobustGPC(kernel, inference=inference, max_iter=max_iter, random_state=seed)
    return model.fit(data.X, data.y)


def shortest(model: RobustGPC, X: NDArray, count: int) -> NDArray:
    """Select the features with the shortest length-scales; ties are broken by larger variance."""
    scales = np.broadcast_to(model.kernel_.k2.length_scale, X.shape[1])
    return np.lexsort((-X.var(axis=0), scales))[:count]


def correlated(X: NDArray, y: NDArray, count: int) -> NDArray:
    """Select the features with the largest correlation with the class, for any model."""
    target = (y == y.max()).astype(float)
    centred = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-12)
    score = np.abs((target - target.mean()) @ centred)
    return np.argsort(-score, kind="stable")[: min(count, X.shape[1])]


def figures(method: str, dataset: str, n: int, **values: float) -> list[dict]:
    """Print figures and convert them to records."""
    line = ", ".join(f"{metric} {value:.4g}" for metric, value in values.items())
    print(f"{method} {dataset}: {line}", flush=True)
    return [record(method, dataset, metric, value, n) for metric, value in values.items()]
