"""Base of estimators that wrap a model: checked inputs and the model's own predictions."""

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
    """Checks inputs of an estimator that holds its model in the attribute `model_`.

    The estimator has the parameters `estimator` and `device`.
    """

    _supports_ids = False
    _supports_sparse = True
    estimator: Any
    device: str | torch.device
    model_: Any  # a Model; of the kind that the estimator asked for

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
        """The model, which decides on the form of inputs."""
        return self.estimator

    def _resolve(
        self, X: Any, y: Any, *, seed: int, form: Form = "network", **options: Any
    ) -> TrainingData:
        """Set `model_` to what `resolve` makes of the parameter `estimator`; the training data."""
        self.model_, data = resolve(
            self._given,
            X,
            y,
            owner=self,
            seed=seed,
            form=form,
            ids=self._supports_ids,
            sparse=self._supports_sparse,
            **options,
        )
        return data

    def _checked_rows(self, X: Any) -> Any:
        """New inputs of the form that was fitted, before preprocessing by the model."""
        check_is_fitted(self)
        return self.model_.form.check(self, X)

    def _inputs(self, X: Any) -> Any:
        """Checked and preprocessed inputs to predict on."""
        rows = self._checked_rows(X)
        return self.model_.inputs(rows)

    def _outputs(self, inputs: Any) -> Any:
        """Outputs of the model in float64, on the CPU; see `Model.outputs`."""
        return in_float64(self.model_.outputs(inputs, self.device))


class ModelClassifierMixin(ModelMixin):
    """Predictions of a classifier that holds its model in the attribute `model_`."""

    classes_: NDArray[Any]

    def predict_proba(self, X: Any) -> FloatArray:
        """Predict class probabilities of the model.

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
    """Classifier with the probabilities of a trained network; `fit` learns its labels only.

    Parameters
    ----------
    estimator : torch.nn.Module
        Network that returns logits; anything else that `adopt` takes.
    device : str or torch.device, default="auto"
        Where to compute; "auto" is CUDA if present.

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
        """Take over the network, and learn which labels its outputs stand for.

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
