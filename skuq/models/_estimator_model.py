"""Any scikit-learn estimator behind the interface of an adopted network."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import is_classifier, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from skuq.models._adopt import chained
from skuq.models._dense import to_dense
from skuq.models._fit_or_adopt import (
    check_several_classes,
    check_trainable,
    fit_sklearn_clone,
)
from skuq.models._skorch_types import is_skorch_net
from skuq.models._taken_as_it_is import taken_as_it_is
from skuq.stored import stored
from skuq.wrappers import is_search, unwrap

# A probability of 0 is no evidence for infinitely many nats.
LEAST_PROBABILITY = 1e-12


@stored("models.estimator")
@dataclass(frozen=True)
class EstimatorModel:
    """A fitted scikit-learn estimator as a function of preprocessed inputs.

    Attributes
    ----------
    estimator : object
        Fitted classifier or regressor, without the transformers before it.
    classes : ndarray of shape (n_classes,) or None
        Labels in the order of the outputs; None for a regressor.
    transform : callable or None
        Preprocessing before the estimator.
    """

    estimator: Any
    classes: NDArray[Any] | None = None
    transform: Callable[[Any], Any] | None = None

    def inputs(self, X: Any) -> Any:
        """Preprocess inputs into an array or DataFrame that the estimator takes."""
        return to_dense(X if self.transform is None else self.transform(X))

    def outputs(self, inputs: Any, device: torch.device | str = "cpu") -> Tensor:
        """Predict log-probabilities, or targets.

        Parameters
        ----------
        inputs : array or DataFrame of shape (n_samples, n_features)
            What `inputs` returns.
        device : torch.device or str, default="cpu"
            Not used: the estimator computes where it does.

        Returns
        -------
        Tensor of shape (n_samples, n_outputs), float64
            On the CPU.

        Raises
        ------
        ValueError
            If a regressor predicts several targets.
        """
        if self.classes is None:
            means = torch.tensor(self.estimator.predict(inputs), dtype=torch.float64)
            if means.shape[1:] not in ((), (1,)):
                raise ValueError(
                    f"{type(self.estimator).__name__} predicts shape {tuple(means.shape)}; a model "
                    "of one target is needed."
                )
            return means.reshape(-1, 1)
        proba = np.asarray(self.estimator.predict_proba(inputs), dtype=np.float64)
        if proba.shape[1] != len(self.classes):  # its training data lacked some
            known = np.searchsorted(self.classes, self.estimator.classes_)
            proba, some = np.zeros((len(proba), len(self.classes))), proba
            proba[:, known] = some
        return torch.as_tensor(np.log(np.maximum(proba, LEAST_PROBABILITY)))


def is_network(estimator: Any) -> bool:
    """Whether an estimator is, or holds inside its wrappers, a network with gradients.

    Parameters
    ----------
    estimator : object
        What the user passed; None stands for a default network.

    Returns
    -------
    bool

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> is_network(MLPClassifier()), is_network(LogisticRegression())
    (True, False)
    """
    while True:
        inside = None if estimator is None else unwrap(estimator, fitted=False)
        if inside is None:
            break
        estimator = inside.estimator
    if estimator is None or is_skorch_net(estimator) or not hasattr(estimator, "fit"):
        return True
    return isinstance(estimator, nn.Module | MLPClassifier | MLPRegressor)


def last_step(estimator: Any) -> Any:
    """The learner at the end of pipelines, inside of searches and `FrozenEstimator`."""
    while isinstance(estimator, FrozenEstimator | Pipeline) or is_search(estimator):
        inside = unwrap(estimator, fitted=False)
        assert inside is not None
        estimator = inside.estimator
    return estimator


def fit_or_take(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    *,
    sample_weight: NDArray[Any] | None,
    seed: int,
    classifier: bool = False,
) -> EstimatorModel:
    """Take over any fitted estimator as it is, or clone and train it (see `taken_as_it_is`).

    Parameters
    ----------
    estimator : object
        Classifier with `predict_proba` or regressor of scikit-learn's interface, possibly at
        the end of a pipeline.
    X : array or DataFrame of shape (n_samples, n_features)
        Inputs.
    y : ndarray of shape (n_samples,)
        Class labels or targets.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights for the training.
    seed : int
        Randomness of the training.
    classifier : bool, default=False
        Whether a classifier is needed, or a regressor.

    Returns
    -------
    EstimatorModel
        The fitted model.

    Raises
    ------
    TypeError
        If it cannot be trained, or is a classifier without `predict_proba`.
    ValueError
        If a classifier is to be trained and `y` holds one class; if the estimator is of the
        other kind, or predicts several labels.

    Warns
    -----
    UserWarning
        If a fitted estimator is trained again.
    """
    if classifier and is_regressor(estimator):
        raise ValueError("`estimator` is a regressor; a classifier is needed.")
    if not classifier and is_classifier(estimator):
        raise ValueError("`estimator` is a classifier; a regressor is needed.")
    if taken_as_it_is(estimator):
        check_is_fitted(estimator.estimator)
        fitted = deepcopy(estimator)
    else:
        check_trainable(estimator)
        if classifier:
            check_several_classes(y)
        fitted = fit_sklearn_clone(estimator, X, y, sample_weight=sample_weight, seed=seed)
    return _model_of(fitted)


def _model_of(fitted: Any) -> EstimatorModel:
    """The estimator at the end of pipelines, behind the transformers before it."""
    if isinstance(fitted, FrozenEstimator | Pipeline) or hasattr(fitted, "best_estimator_"):
        inside = unwrap(fitted)
        assert inside is not None
        model = _model_of(inside.estimator)
        return replace(model, transform=chained(inside.transform, model.transform))
    if not is_classifier(fitted):
        return EstimatorModel(fitted)
    if not hasattr(fitted, "predict_proba"):
        raise TypeError(
            f"{type(fitted).__name__} does not predict probabilities. Wrap it in "
            "CalibratedClassifierCV, or choose a classifier with `predict_proba`."
        )
    several = any(np.ndim(each) for each in fitted.classes_)  # of labels, each with its classes
    if several or getattr(fitted, "multilabel_", False):
        raise ValueError(
            f"{type(fitted).__name__} predicts several labels for each sample; a model of one is "
            "needed."
        )
    return EstimatorModel(fitted, np.asarray(fitted.classes_))
