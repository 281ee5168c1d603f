"""Base of classifiers around an adopted network: checked inputs and predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_consistent_length, column_or_1d, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from skuq.base import FloatArray
from skuq.models._dense import to_dense
from skuq.models._input_kinds import brings_preprocessing, labels_in_mask, takes_ids
from skuq.models._transformers import as_rows, takes_tokens


class AdoptedInputsMixin:
    """Checks inputs of an estimator that holds its network in the attribute `model_`.

    The estimator has a parameter `device`, and one that brings the model, whose name is
    `_model_parameter`.
    """

    _model_parameter = "estimator"
    _supports_ids = False
    _supports_sparse = True
    device: str | torch.device
    model_: Any  # an AdoptedModel, except in subclasses that read other models too

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = self._supports_sparse
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def _validate_training_data(
        self, X: Any, y: Any, *, min_samples: int = 1
    ) -> tuple[Any, NDArray[Any]]:
        """Checked inputs, as they are if the model preprocesses them, and targets.

        Sparse ones become dense here: all of them are needed at once.
        """
        model = getattr(self, self._model_parameter)
        X = as_rows(model, X)
        self._takes_ids = takes_ids(model)
        if self._takes_ids:
            return self._validate_ids(model, X, y)
        self._preprocesses = self._brings_preprocessing()
        if self._preprocesses:
            validate_data(self, X, skip_check_array=True)
            X, y = indexable(X, column_or_1d(y, warn=True))
            return X, y
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse="csr" if self._supports_sparse else False,
            dtype=[np.float64, np.float32],
            allow_nd=model is not None,  # the default network takes rows only
            ensure_min_samples=min_samples,
        )
        self._input_shape = _fixed_shape(model, X)
        return to_dense(X), y

    def _brings_preprocessing(self) -> bool:
        """Whether inputs are passed on as they are, because the model transforms them itself."""
        return brings_preprocessing(getattr(self, self._model_parameter))

    def _validate_ids(self, model: Any, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        """Ids, which the model checks, and targets."""
        if not self._supports_ids:
            raise TypeError(
                f"{type(self).__name__} needs a model of rows, but {type(model).__name__} takes "
                "ids of nodes."
            )
        self.n_features_in_ = 1
        y = labels_in_mask(X, column_or_1d(y, warn=True))
        ids = np.asarray(X)
        check_consistent_length(np.flatnonzero(ids) if ids.dtype == bool else X, y)
        return X, y

    def _validated_inputs(self, X: Any) -> Tensor:
        """Checked and preprocessed inputs to predict on."""
        check_is_fitted(self)
        inputs: Tensor = self.model_.inputs(self._checked_rows(X))
        return inputs

    def _checked_rows(self, X: Any) -> Any:
        """Inputs of the form that was fitted, perhaps sparse, before preprocessing by the model."""
        if self._takes_ids:
            return X
        model = getattr(self, self._model_parameter)
        X = as_rows(model, X)
        if self._preprocesses:
            validate_data(self, X, reset=False, skip_check_array=True)
            return indexable(X)[0]  # rows of a sparse matrix in coordinates cannot be taken
        X = validate_data(
            self,
            X,
            reset=False,
            accept_sparse="csr" if self._supports_sparse else False,
            dtype=[np.float64, np.float32],
            allow_nd=True,
        )
        if _fixed_shape(model, X) != self._input_shape:
            raise ValueError(
                f"X must have shape (n_samples, {str(self._input_shape)[1:-1]}), got {X.shape}."
            )
        return X

    def _outputs(self, inputs: Tensor) -> Tensor:
        """Outputs of the network in float64, on the CPU."""
        outputs: Tensor = self.model_.outputs(inputs, self.device)
        return outputs.double()


def _fixed_shape(model: Any, X: Any) -> tuple[int, ...]:
    """Shape that all inputs share: texts may be longer or shorter than others."""
    shape: tuple[int, ...] = X.shape[1:-1] if takes_tokens(model) else X.shape[1:]
    return shape


class AdoptedClassifierMixin(AdoptedInputsMixin):
    """Predictions of a classifier that holds its network in the attribute `model_`."""

    classes_: NDArray[Any]

    def predict_proba(self, X: Any) -> FloatArray:
        """Predict class probabilities of the network.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float64
            Probabilities, columns in the order of `classes_`.
        """
        return self._log_proba(self._validated_inputs(X)).exp().numpy()

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

    def _validate_training_data(
        self, X: Any, y: Any, *, min_samples: int = 1
    ) -> tuple[Any, NDArray[Any]]:
        X, y = super()._validate_training_data(X, y, min_samples=min_samples)
        check_classification_targets(y)
        return X, y

    def _log_proba(self, inputs: Tensor) -> Tensor:
        return self._outputs(inputs).log_softmax(dim=-1)
