"""Datasets: digits with out-of-distribution inputs, synthetic data of papers, loans, and graphs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state

from skuq.base import FloatArray
from skuq.imports import import_optional

__all__ = [
    "GAUSSIAN_REGION",
    "load_digits_with_ood",
    "make_gaussian_classes",
    "make_heteroscedastic",
    "make_loans",
    "make_node_classes",
]

SIDE = 8  # side length of scikit-learn's digits, in pixels
PHOTO_SIDE = 64  # side length of a patch of a photograph before downsampling to SIDE

# Uncertainty region in `make_gaussian_classes`: for each feature, its lower and upper bound.
GAUSSIAN_REGION = {0: (2.0, 2.75), 1: (0.0, 1.5)}
_JOBS, _HOMES = ("office", "workshop", "care", "self-employed"), ("owned", "rented", "shared")


class DigitsWithOOD(NamedTuple):
    """Training digits, test digits and out-of-distribution inputs.

    Attributes
    ----------
    X_train, X_test : ndarray of shape (n_samples, 64), float64
        Images of 8 x 8 pixels, brightness in [0, 1].
    y_train, y_test : ndarray of shape (n_samples,), int64
        Digits 0 to 9.
    ood : dict of str to ndarray of shape (n_ood, 64), float64
        Inputs by kind: ``rotated`` test digits, ``inverted`` test digits, uniform ``noise``, and
        patches of ``photographs``; brightness in [0, 1].
    """

    X_train: FloatArray
    X_test: FloatArray
    y_train: NDArray[np.int64]
    y_test: NDArray[np.int64]
    ood: dict[str, FloatArray]


def load_digits_with_ood(
    *, n_test: int = 200, n_ood: int = 50, random_state: Any = None
) -> DigitsWithOOD:
    """Load scikit-learn's digits and generate out-of-distribution inputs of the same shape.

    Parameters
    ----------
    n_test : int, default=200
        Number of test digits; the other digits are training data.
    n_ood : int, default=50
        Number of out-of-distribution inputs of each kind, at most `n_test`.
    random_state : int, RandomState instance or None, default=None
        Seed for the choice of test digits, noise and patches.

    Raises
    ------
    ImportError
        If Pillow, which reads the photographs, is missing (install extra ``plot``).

    Examples
    --------
    >>> from skuq.datasets import load_digits_with_ood
    >>> data = load_digits_with_ood(n_test=100, n_ood=20, random_state=0)
    >>> data.X_test.shape, sorted(data.ood)
    ((100, 64), ['inverted', 'noise', 'photographs', 'rotated'])
    """
    if not 0 < n_ood <= n_test:
        raise ValueError(f"`n_ood` must be between 1 and n_test={n_test}, got {n_ood}.")
    rng = check_random_state(random_state)
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X / 16, y, test_size=n_test, random_state=rng, stratify=y
    )
    images = X_test[:n_ood].reshape(-1, SIDE, SIDE)
    rotated, noise = np.rot90(images, axes=(1, 2)), rng.uniform(size=(n_ood, SIDE * SIDE))
    import_optional("PIL", extra="plot")  # reads the photographs
    photos = [photo.mean(axis=-1) / 255 for photo in load_sample_images().images]
    patches, block = np.empty(images.shape), PHOTO_SIDE // SIDE
    for patch in patches:
        photo = photos[rng.randint(len(photos))]
        top, left = (rng.randint(size - PHOTO_SIDE) for size in photo.shape)
        piece = photo[top : top + PHOTO_SIDE, left : left + PHOTO_SIDE]
        patch[:] = piece.reshape(SIDE, block, SIDE, block).mean(axis=(1, 3))
    ood = {"rotated": rotated, "inverted": 1 - images, "noise": noise, "photographs": patches}
    flat = {kind: found.reshape(n_ood, -1) for kind, found in ood.items()}
    return DigitsWithOOD(X_train, X_test, y_train, y_test, flat)


def make_gaussian_classes(
    n_samples: tuple[int, int, int] = (1000, 1000, 100), *, random_state: Any = None
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Draw the three Gaussian classes of the Mirage paper (Rabanser et al., 2025, Appendix D.1).

    Parameters
    ----------
    n_samples, random_state
        Number of samples of each class, and source of randomness.

    Returns
    -------
    X : ndarray of shape (n_samples, 2), float64
        Inputs. Samples of class 0 in `GAUSSIAN_REGION` are far from the other classes.
    y : ndarray of shape (n_samples,), int64
        Classes 0 to 2.

    Examples
    --------
    >>> from skuq.datasets import make_gaussian_classes
    >>> X, y = make_gaussian_classes(random_state=0)
    >>> X.shape, y.shape
    ((2100, 2), (2100,))
    """
    rng = check_random_state(random_state)
    means = [(3.0, 2.0), (5.0, 5.0), (3.0, 4.0)]
    covariances = [[[1.0, 0.8], [0.8, 1.0]], [[1.0, -0.8], [-0.8, 1.0]], 0.1 * np.eye(2)]
    classes = zip(means, covariances, n_samples, strict=True)
    X = np.concatenate([rng.multivariate_normal(*each) for each in classes])
    return X, np.repeat(np.arange(3), n_samples)


def make_heteroscedastic(
    n_samples: int = 1000, *, random_state: Any = None
) -> tuple[FloatArray, FloatArray]:
    """Draw the regression data of the Mirage paper (Rabanser et al., 2025, Eq. 17 to 19).

    Parameters
    ----------
    n_samples, random_state
        Number of samples, and source of randomness.

    Returns
    -------
    X : ndarray of shape (n_samples, 1), float64
        Inputs, uniform on [-4, 4]; the paper does not state their range.
    y : ndarray of shape (n_samples,), float64
        ``sin(2 x) + 0.3 x^2 - 0.4 x + 1`` with noise of standard deviation
        ``0.2 + 0.8 exp(-(x / 1.5)^2)``.

    Examples
    --------
    >>> from skuq.datasets import make_heteroscedastic
    >>> X, y = make_heteroscedastic(50, random_state=0)
    >>> X.shape, y.shape
    ((50, 1), (50,))
    """
    rng = check_random_state(random_state)
    x = rng.uniform(-4, 4, size=n_samples)
    noise = (0.2 + 0.8 * np.exp(-((x / 1.5) ** 2))) * rng.normal(size=n_samples)
    return x[:, None], np.sin(2 * x) + 0.3 * x**2 - 0.4 * x + 1 + noise


def make_loans(
    n_samples: int = 1000, *, random_state: int | np.random.Generator | None = None
) -> tuple[pd.DataFrame, NDArray[np.str_]]:
    """Draw a synthetic table of loans, classified by whether they were repaid in time.

    The log-odds of being late increase with the ratio of amount to income, decrease with the years
    in the job, and are 1.5 higher for homeowners and 1.5 lower for the self-employed.

    Parameters
    ----------
    n_samples, random_state
        Number of rows, and source of randomness.

    Returns
    -------
    X : DataFrame of shape (n_samples, 6)
        Numeric columns: age, years in the job, monthly income and amount. Categorical columns: kind
        of job and home.
    y : ndarray of shape (n_samples,), str
        "repaid" or "late".

    Examples
    --------
    >>> X, y = make_loans(200, random_state=0)
    >>> list(X), sorted(set(y.tolist()))
    (['age', 'years in job', 'income', 'amount', 'job', 'home'], ['late', 'repaid'])
    """
    random = np.random.default_rng(random_state)
    age = random.uniform(18, 75, size=n_samples)
    years = (age - 18) * random.beta(1.5, 2.5, size=n_samples)
    job, home = (random.choice(names, size=n_samples) for names in (_JOBS, _HOMES))
    income = np.exp(random.normal(7.6 + 0.015 * years + 0.2 * (job == "office"), 0.25))
    amount = income * random.gamma(3, 1.5, size=n_samples)
    burden = amount / income - 4.5 + 1.5 * (home == "owned") - 1.5 * (job == "self-employed")
    late = random.uniform(size=n_samples) < 1 / (1 + np.exp(2 - burden + 0.1 * years))
    numbers = {"age": age, "years in job": years, "income": income, "amount": amount}
    X = pd.DataFrame(numbers).round(1)
    X["job"], X["home"] = pd.Categorical(job, [*_JOBS]), pd.Categorical(home, [*_HOMES])
    return X, np.where(late, "late", "repaid")


class GraphData(NamedTuple):
    """A graph with node features and node classes.

    Attributes
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes)
        Nonzero for pairs of neighbours.
    features : scipy.sparse.csr_array or ndarray of shape (n_nodes, n_features), float32
        Node features.
    labels : ndarray of shape (n_nodes,)
        Node classes.
    splits : ndarray of shape (n_splits, n_nodes), int8
        0 for training nodes, 1 for validation nodes, 2 for test nodes.
    left_out : mapping of str to ndarray
        Classes to leave out of training, by the name of the setting, such as ``"OS-1"``.
    """

    adjacency: sparse.csr_array
    features: Any
    labels: NDArray[Any]
    splits: NDArray[np.int8]
    left_out: Mapping[str, NDArray[Any]]

    @property
    def graph(self) -> tuple[sparse.csr_array, Any]:
        """The pair (adjacency, features), which the estimators accept as `graph`."""
        return self.adjacency, self.features


def make_node_classes(
    n_nodes: int = 1000,
    *,
    n_classes: int = 4,
    n_features: int = 16,
    mean_degree: float = 6.0,
    homophily: float = 0.8,
    separation: float = 1.0,
    random_state: Any = None,
) -> GraphData:
    """Draw a graph in which neighbours tend to have the same class.

    Parameters
    ----------
    n_nodes, n_classes, n_features : int
        Numbers of nodes, of equally probable classes, and of features.
    mean_degree : float, default=6.0
        Expected number of neighbours, before duplicate edges and self-loops are removed.
    homophily : float, default=0.8
        Share of edges drawn within a class; all other edges join random nodes.
    separation : float, default=1.0
        Root mean square of the class means, per feature, in standard deviations of the classes.
    random_state : int, RandomState instance or None, default=None
        Source of randomness.

    Returns
    -------
    GraphData
        A graph with one split. A fifth of all nodes are test nodes. Of the others, 20 per class
        (or half of a class, if fewer) train, the rest validate. "OS-1" leaves out the last class.

    Examples
    --------
    >>> from skuq.datasets import make_node_classes
    >>> data = make_node_classes(200, random_state=0)
    >>> data.adjacency.shape, data.features.shape
    ((200, 200), (200, 16))
    """
    rng = check_random_state(random_state)
    labels = rng.randint(n_classes, size=n_nodes)
    means = separation * rng.normal(size=(n_classes, n_features))
    features = (means[labels] + rng.normal(size=(n_nodes, n_features))).astype(np.float32)
    source = rng.randint(n_nodes, size=round(n_nodes * mean_degree / 2))
    target = rng.randint(n_nodes, size=len(source))
    within = rng.uniform(size=len(source)) < homophily
    # Draw the target of an edge within a class from a list of nodes that is sorted by class.
    by_class, count = np.argsort(labels, kind="stable"), np.bincount(labels)
    own = labels[source[within]]
    place = (rng.uniform(size=len(own)) * count[own]).astype(np.int64)
    target[within] = by_class[(np.cumsum(count) - count)[own] + place]
    ends = np.array([source, target])[:, source != target]
    ends = np.concatenate([ends, ends[::-1]], axis=1)
    ones = np.ones(ends.shape[1], np.float32)
    adjacency = sparse.csr_array((ones, tuple(ends)), shape=(n_nodes, n_nodes))
    adjacency.sum_duplicates()
    adjacency.data[:] = 1
    left_out = {"OS-1": np.array([n_classes - 1])}
    split = np.ones((1, n_nodes), np.int8)
    test, rest = np.split(rng.permutation(n_nodes), [n_nodes // 5])
    split[0, test] = 2
    for label in range(n_classes):
        own = rest[labels[rest] == label]
        split[0, own[: min(20, len(own) // 2)]] = 0
    return GraphData(adjacency, features, labels, split, left_out)
