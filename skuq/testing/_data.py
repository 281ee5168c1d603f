"""Training and prediction data of the checks, and fitted estimators shared between checks."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.validation import _num_samples

# Number of rows to predict in most checks. It is small, because predictions may be expensive.
N_PREDICTED = 12
N_LARGE_BATCH = 40  # number of rows to predict in the check of batches

Fit = Callable[[Any, Any, Any], Any]


class Data(NamedTuple):
    """Data of the checks: inputs and targets for `fit`, and inputs for prediction."""

    X: Any
    y: Any
    X_predict: Any

    @property
    def n_few(self) -> int:
        return min(N_PREDICTED, _num_samples(self.X_predict))

    def few(self) -> Any:
        """Return the few rows to predict in most checks."""
        return self.rows(range(self.n_few))

    def large_batch(self) -> Any:
        """Return a larger batch that begins with the rows of `few`."""
        return self.rows(range(min(N_LARGE_BATCH, _num_samples(self.X_predict))))

    def rows(self, numbers: ArrayLike) -> Any:
        """Return copies of prediction rows, because a faulty estimator may change its inputs."""
        return deepcopy(_safe_indexing(self.X_predict, np.asarray(numbers)))


def given_data(X: Any, y: Any, X_predict: Any) -> Data:
    """Return the user's data; without `X_predict`, the training inputs are used for prediction."""
    return Data(X, None if y is None else np.asarray(y), X if X_predict is None else X_predict)


def generated_data(estimator: Any) -> Data:
    """Generate a small table that the estimator accepts."""
    X, y = _small_table(estimator)
    tags = get_tags(estimator)
    if tags.input_tags.positive_only:
        X = X - X.min(axis=0)
    if is_regressor(estimator) and tags.target_tags.positive_only:
        y = y - y.min() + 1
    return Data(X, y, X)


def _small_table(estimator: Any) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Generate a small table, neither centred nor scaled, with targets that depend on columns."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(48, 4))
    if is_classifier(estimator):
        n_classes = 3 if get_tags(estimator).classifier_tags.multi_class else 2
        y = np.arange(len(noise)) % n_classes
        centres = 2 * rng.normal(size=(n_classes, noise.shape[1]))
        return centres[y] + noise + 5, y
    if is_regressor(estimator):
        return 2 * noise + 5, noise @ rng.normal(size=noise.shape[1]) + np.sin(noise[:, 0])
    raise ValueError(
        f"{type(estimator).__name__} is neither a classifier nor a regressor, so no data can "
        "be generated for it; pass X and y."
    )


def unfitted(estimator_orig: Any) -> Any:
    """Clone an estimator; fix its `random_state` or, if it has none, those of nested estimators."""
    estimator = clone(estimator_orig)
    keys = [key for key in estimator.get_params() if f"__{key}".endswith("__random_state")]
    if "random_state" in keys:
        keys = ["random_state"]
    return estimator.set_params(**dict.fromkeys(keys, 0))


def fit_clone(estimator_orig: Any, X: Any, y: Any) -> Any:
    """Fit a clone of an estimator with a fixed `random_state`."""
    return fit_on_copies(unfitted(estimator_orig), X, y)


def fit_on_copies(estimator: Any, X: Any, y: Any) -> Any:
    """Fit an estimator on copies of the data, because other checks need the data unchanged."""
    estimator.fit(deepcopy(X), deepcopy(y))
    return estimator


class FitOnce:
    """Function that fits a clone at the first call and returns the same clone afterwards."""

    def __init__(self) -> None:
        self._last: tuple[Any, Any] = (None, None)

    def __call__(self, estimator_orig: Any, X: Any, y: Any) -> Any:
        if self._last[0] is not estimator_orig:
            self._last = (estimator_orig, fit_clone(estimator_orig, X, y))
        return self._last[1]
