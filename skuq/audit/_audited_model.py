"""Predicted probabilities of the audited model.

`skuq.models` is imported only for networks, and cross-validation only if models are trained, so
that an audit of recorded predictions starts quickly.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import _safe_indexing, indexable

from skuq.base import FloatArray
from skuq.labels import plain
from skuq.wrappers import is_fitted, is_module, weight_params

if TYPE_CHECKING:
    from skuq.models import ModuleClassifier


def as_rows(estimator: Any, X: Any) -> Any:
    """Convert inputs of a transformers model to one array; return other inputs unchanged."""
    if "transformers" not in sys.modules:
        return X
    from skuq.models import as_rows

    return as_rows(estimator, X)


def is_prefit(estimator: Any) -> bool:
    """Whether a model is audited without training. If not, clones of the model are trained."""
    return isinstance(estimator, FrozenEstimator) or is_fitted(estimator)


def module_classifier(estimator: Any, X: Any, y: NDArray[Any]) -> ModuleClassifier:
    """Wrap a network that returns logits as a classifier; raise TypeError for anything else."""
    if not is_module(estimator):
        raise TypeError(
            "`estimator` must be a torch.nn.Module or a classifier with `predict_proba`, got "
            f"{estimator!r}. To audit recorded predictions, use "
            "CalibrationAuditor.from_predictions."
        )
    from skuq.models import ModuleClassifier

    return ModuleClassifier(estimator).fit(X, y)


def trained_with_proba(
    estimator: Any, X: Any, y: NDArray[Any], weight: NDArray[Any] | None
) -> tuple[Any, FloatArray]:
    """Return a clone trained on all samples, and out-of-fold probabilities of the samples.

    Samples of weight 0 are not used for training; the clone predicts these samples.
    """
    if weight is None:
        proba = _out_of_fold_proba(estimator, X, y, np.ones(len(y)), {})
        return clone(estimator).fit(X, y), proba
    counted = np.flatnonzero(weight)
    (rows,) = indexable(X)
    rows, labels = _safe_indexing(rows, counted), y[counted]
    params = _weight_of(estimator, weight[counted])
    fitted = clone(estimator).fit(rows, labels, **params)
    proba = np.array(fitted.predict_proba(X), np.float64)
    proba[counted] = _out_of_fold_proba(estimator, rows, labels, weight[counted], params)
    return fitted, proba


def _weight_of(estimator: Any, weight: NDArray[Any]) -> dict[str, Any]:
    """Keyword arguments of `fit` that pass the weights, if the model accepts sample weights."""
    from skuq.models import look_at

    usable = look_at(estimator).usable_weight(weight.astype(np.float64))
    return {} if usable is None else weight_params(estimator, usable)


def _out_of_fold_proba(
    estimator: Any, X: Any, y: NDArray[Any], weight: NDArray[Any], params: dict[str, Any]
) -> FloatArray:
    """Out-of-fold probabilities, with columns in the order of the sorted labels."""
    labels, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    size = np.maximum(counts, np.bincount(codes, weights=weight))
    if len(labels) > 1 and size.min() < 2:
        rare = plain(labels[size.argmin()])
        raise ValueError(
            f"The class {rare!r} has only one sample, but cross-validation needs two: one to train "
            "on and one to test on; add samples, or audit a fitted classifier."
        )
    from sklearn.model_selection import StratifiedKFold

    from skuq.model_selection import cross_val_predict_proba

    folds = StratifiedKFold(min(5, counts.max()), shuffle=True, random_state=0)
    return cross_val_predict_proba(estimator, X, y, labels=labels, cv=folds, params=params)
