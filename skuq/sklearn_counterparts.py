"""Counterparts of scikit-learn's `Pipeline` and `cross_val_predict`, and splits of groups."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import model_selection
from sklearn import pipeline as sklearn_pipeline
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.preprocessing import TargetEncoder
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.metadata_routing import get_routing_for_object
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _num_samples, has_fit_parameter

from skuq import base
from skuq.base import FloatArray, IntArray, Uncertainty, predict_uncertainty, with_index_of
from skuq.labels import codes_of, decided_codes, proba_of_classes
from skuq.validation import group_codes
from skuq.wrappers import unwrap


class Pipeline(sklearn_pipeline.Pipeline):
    """scikit-learn's `Pipeline` with `predict_uncertainty` as a method.

    `skuq.predict_uncertainty` also accepts a plain `sklearn.pipeline.Pipeline`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skuq import QUAMClassifier, make_pipeline
    >>> X, y = load_iris(return_X_y=True)
    >>> pipe = make_pipeline(StandardScaler(), QUAMClassifier(random_state=0)).fit(X, y)
    >>> pipe.predict_uncertainty(X[:2]).total.shape
    (2,)
    """

    @available_if(lambda self: base.leads_to_method(self.steps[-1][1]))
    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Transform the data and predict uncertainty with the final estimator."""
        inside = unwrap(self)
        assert inside is not None
        inputs = X if inside.transform is None else inside.transform(X)
        return with_index_of(X, predict_uncertainty(inside.estimator, inputs))


def make_pipeline(
    *steps: Any, memory: Any = None, transform_input: Any = None, verbose: bool = False
) -> Pipeline:
    """Build a `skuq.Pipeline`; counterpart of `sklearn.pipeline.make_pipeline`."""
    named = sklearn_pipeline.make_pipeline(*steps).steps
    return Pipeline(named, memory=memory, transform_input=transform_input, verbose=verbose)


def cross_val_predict_uncertainty(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    groups: Any = None,
    cv: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    pre_dispatch: int | str = "2*n_jobs",
) -> Uncertainty:
    """Predict the uncertainty of each row with a model that was not trained on this row.

    Counterpart of `sklearn.model_selection.cross_val_predict`: with the same `cv` and a fixed
    ``random_state``, both evaluate the same models. A prefit model (in a ``FrozenEstimator``, or a
    ``torch.nn.Module``) is not trained again: if it was trained on these rows, its uncertainty is
    not out-of-fold.

    Parameters
    ----------
    estimator : object
        Estimator or pipeline that `skuq.predict_uncertainty` accepts; it is cloned.
    X, y, groups : array-like of shape (n_samples, ...)
        Data in the form that `estimator.fit` accepts, and groups, which are also passed to a
        ``fit`` that accepts `groups`. An integer `cv` keeps the rows of a group together.
    cv, n_jobs, verbose, params, pre_dispatch
        As in `sklearn.model_selection.cross_val_predict`. The test folds must be a partition:
        each row is in exactly one test fold.

    Returns
    -------
    Uncertainty
        As from `skuq.predict_uncertainty`, in the order of `X`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq import QUAMClassifier, cross_val_predict_uncertainty
    >>> X, y = load_iris(return_X_y=True)
    >>> quam = QUAMClassifier(LogisticRegression(max_iter=1000), random_state=0)
    >>> len(cross_val_predict_uncertainty(quam, X, y, cv=3))
    150
    """
    jobs = {"n_jobs": n_jobs, "verbose": verbose, "pre_dispatch": pre_dispatch}
    model, given = _PredictsUncertainty(estimator), params or {}
    known = given.get("groups") if groups is None else groups  # in `params`, or as an argument
    if known is not None and (cv is None or isinstance(cv, Integral)):
        codes = group_codes(known, _num_samples(X))
        stratify = y is not None and is_classifier(estimator)
        labels = np.asarray(y) if stratify else codes
        cv, groups = fold_splits(int(cv or 5), labels, codes, stratify=stratify, seed=0), None
    if known is not None and has_fit_parameter(estimator, "groups"):
        params = {**given, "groups": np.asarray(known)}
    parts = cross_val_predict(model, X, y, groups=groups, cv=cv, params=params, **jobs)
    return with_index_of(X, Uncertainty(*np.ascontiguousarray(parts.T)))


def cross_val_predict_proba(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    *,
    labels: NDArray[Any],
    cv: Any,
    params: Mapping[str, NDArray[Any]] | None = None,
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Predict out-of-fold probabilities, with columns as in `labels`, and predicted class codes.

    scikit-learn's ``cross_val_predict(method="predict_proba")`` encodes the labels, and thus loses
    class weights keyed by label. `cv` lists (train, test) rows; `params` has one value per row.
    """
    model = _PredictsProbabilities(estimator, labels)
    if not params:
        found = cross_val_predict(model, X, y, cv=cv)
        return found[:, :-1], found[:, -1].astype(np.int64)
    found = np.empty((len(y), len(labels) + 1))
    for train, test in cv:
        given = {name: values[train] for name, values in params.items()}
        model.fit(_safe_indexing(X, train), y[train], **given)
        found[test] = model.predict(_safe_indexing(X, test))
    return found[:, :-1], found[:, -1].astype(np.int64)


class _PredictsUncertainty(BaseEstimator):
    """Estimator whose `predict` returns uncertainty."""

    def __init__(self, estimator: Any):
        self.estimator = estimator

    def __sklearn_tags__(self) -> Any:
        return get_tags(self.estimator)

    def get_metadata_routing(self) -> Any:
        return get_routing_for_object(self.estimator)

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        self.estimator_ = clone(self.estimator).fit(X, y, **params)
        return self

    def predict(self, X: Any) -> FloatArray:
        """Predict the parts of the uncertainty, shape (n_samples, 3)."""
        return np.column_stack(predict_uncertainty(self.estimator_, X).parts)


class _PredictsProbabilities(_PredictsUncertainty):
    """Estimator whose `predict` returns probabilities of `labels` and codes of decisions."""

    def __init__(self, estimator: Any, labels: NDArray[Any]):
        super().__init__(estimator)
        self.labels = labels

    def predict(self, X: Any) -> FloatArray:
        known = np.asarray(self.estimator_.classes_)
        reported = proba_of_classes(self.estimator_.predict_proba(X), known)
        proba = np.zeros((len(reported), len(self.labels) + 1), reported.dtype)
        proba[:, codes_of(known, self.labels, "classes_")] = reported
        proba[:, -1] = decided_codes(self.estimator_, X, proba[:, :-1], self.labels)
        return proba


def fold_splits(
    n_folds: int, y: NDArray[Any], codes: IntArray | None, *, stratify: bool, seed: int
) -> list[tuple[IntArray, IntArray]]:
    """Split into training and test rows of shuffled folds; rows of equal `codes` share a fold."""
    name = f"{'Stratified' * stratify}{'Group' * (codes is not None)}KFold"
    n_folds = n_folds if codes is None else min(n_folds, len(np.unique(codes)))
    folds = getattr(model_selection, name)(n_folds, shuffle=True, random_state=seed)
    # StratifiedGroupKFold may leave a fold empty.
    return [(train, test) for train, test in folds.split(y, y, codes) if len(test)]


def target_encoder(regression: bool, seed: int) -> TargetEncoder:
    """Create an encoder of categories by target means; `fit_transform` uses other folds' means."""
    kind = "continuous" if regression else "auto"
    if TargetEncoder().shuffle is True:  # before scikit-learn 1.9
        return TargetEncoder(target_type=kind, random_state=seed)
    return TargetEncoder(target_type=kind, cv=KFold(5, shuffle=True, random_state=seed))
