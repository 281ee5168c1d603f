"""Mixins for estimators that wrap a model: input validation and the model's predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from skuq.base import FloatArray
from skuq.models._given import look_at
from skuq.models._model import in_float64
from skuq.models._resolve import Form, TrainingData, resolve

if TYPE_CHECKING:
    import torch


class ModelMixin:
    """Mixin that validates inputs of an estimator whose model is in the attribute `model_`.

    The estimator has the parameters `estimator` and `device`.
    """

    _supports_ids = False  # node ids of a graph
    _supports_sparse = True
    _keeps_sparse = False  # a learner gets sparse rows; `TrainingData.inputs` then are the first
    _min_samples = 1
    estimator: Any
    device: str | torch.device
    model_: Any  # a Model of the kind that the estimator requires

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = self._supports_sparse
        if self._supports_ids:
            tags.input_tags.one_d_array = look_at(self._given).takes_ids
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    @property
    def _given(self) -> Any:
        """The user's model, which determines the form of inputs."""
        return self.estimator

    def _resolve(
        self, X: Any, y: Any, *, seed: int, form: Form = "network", **options: Any
    ) -> TrainingData:
        """Resolve the parameter `estimator` to `model_`; return the training data."""
        self.model_, data = resolve(
            self._given,
            X,
            y,
            owner=self,
            seed=seed,
            form=form,
            **options,
        )
        return data

    def _checked_rows(self, X: Any) -> Any:
        """Validate new inputs against the fitted form, before preprocessing by the model."""
        check_is_fitted(self)
        return self.model_.form.check(self, X)

    def _inputs(self, X: Any) -> Any:
        """Validate and preprocess inputs for prediction."""
        rows = self._checked_rows(X)
        return self.model_.inputs(rows)

    def _outputs(self, inputs: Any) -> Any:
        """Outputs of the model in float64, on the CPU; see `Model.outputs`."""
        return in_float64(self.model_.outputs(inputs, self.device))


class ModelClassifierMixin(ModelMixin):
    """Mixin with the predictions of a classifier whose model is in the attribute `model_`."""

    classes_: NDArray[Any]

    def predict_proba(self, X: Any) -> FloatArray:
        """Predict class probabilities with the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float64
            Probabilities, columns in the order of `classes_`.
        """
        proba: FloatArray = np.exp(np.asarray(self._log_proba(self._inputs(X))))
        return proba

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples,)
            Class labels.
        """
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def _log_proba(self, inputs: Any) -> Any:
        return self.model_.log_proba(inputs, self.device)


class ModuleClassifier(ModelClassifierMixin, ClassifierMixin, BaseEstimator):
    """Classifier that predicts with a trained network; `fit` only determines the labels.

    Parameters
    ----------
    estimator : torch.nn.Module
        Network that returns logits, or any other model that `adopt` accepts.
    device : str or torch.device, default="auto"
        Device of all computations; "auto" is CUDA if available.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.

    Examples
    --------
    >>> import torch
    >>> model = ModuleClassifier(torch.nn.Linear(2, 2)).fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"])
    >>> model.predict_proba([[0.0, 1.0]]).shape
    (1, 2)
    """

    def __init__(self, estimator: Any, device: Any = "auto"):
        self.estimator = estimator
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:
        """Copy the network, and determine the labels of its outputs.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Inputs of the network.
        y : array-like of shape (n_samples,)
            Class labels.

        Returns
        -------
        ModuleClassifier
            The fitted classifier.
        """
        self._resolve(X, y, seed=0, after_the_fact=True)
        self.classes_ = self.model_.classes
        return self
