"""Probabilities of the model that is audited.

`skuq.models` is imported for networks alone, and cross-validation where models are trained: an
audit of recorded predictions starts at once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from skuq.base import FloatArray
from skuq.labels import plain
from skuq.wrappers import is_fitted, is_module, weight_params

if TYPE_CHECKING:
    from skuq.models import ModuleClassifier


def as_rows(estimator: Any, X: Any) -> Any:
    """Inputs of a transformers model as one array, and those of others as they are."""
    if "transformers" not in sys.modules:
        return X
    from skuq.models import as_rows

    return as_rows(estimator, X)


def is_prefit(estimator: Any) -> bool:
    """Whether a model is audited as it is; if not, copies of it are trained."""
    return isinstance(estimator, FrozenEstimator) or is_fitted(estimator)


def module_classifier(estimator: Any, X: Any, y: NDArray[Any]) -> ModuleClassifier:
    """Classifier around a network that returns logits; an error for anything else."""
    if not is_module(estimator):
        raise TypeError(
            "`estimator` must be a torch.nn.Module or a classifier with `predict_proba`, got "
            f"{estimator!r}. Recorded predictions are audited by "
            "CalibrationAuditor.from_predictions."
        )
    from skuq.models import ModuleClassifier

    return ModuleClassifier(estimator).fit(X, y)


def fitted_with(estimator: Any, X: Any, y: NDArray[Any], weight: NDArray[Any] | None) -> Any:
    """A clone of a classifier, trained with these weights where it takes any."""
    return clone(estimator).fit(X, y, **_weight_of(estimator, weight))


def _weight_of(estimator: Any, weight: NDArray[Any] | None) -> dict[str, Any]:
    """Arguments of `fit` for weights, by the path to the learner inside pipelines and searches."""
    if weight is None:
        return {}
    from skuq.models import look_at

    usable = look_at(estimator).usable_weight(weight.astype(np.float64))
    return {} if usable is None else weight_params(estimator, usable)


def out_of_fold_proba(
    estimator: Any, X: Any, y: NDArray[Any], weight: NDArray[Any] | None = None
) -> FloatArray:
    """Probabilities by models that did not see the sample, columns by sorted label."""
    labels, counts = np.unique(y, return_counts=True)
    if len(labels) > 1 and counts.min() < 2:
        rare = plain(labels[counts.argmin()])
        raise ValueError(
            f"The class {rare!r} has one sample only, so no model that has "
            "not seen it can know it; add samples, or audit a fitted classifier."
        )
    from sklearn.model_selection import StratifiedKFold

    from skuq.model_selection import cross_val_predict_proba

    folds = StratifiedKFold(min(5, counts.max()), shuffle=True, random_state=0)
    params = _weight_of(estimator, weight)
    return cross_val_predict_proba(estimator, X, y, labels=labels, cv=folds, params=params)
