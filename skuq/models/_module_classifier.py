"""Classifier around a network that is taken as it is."""

from __future__ import annotations

from typing import Any, Self

from sklearn.base import BaseEstimator, ClassifierMixin

from skuq.models._adopt import adopt
from skuq.models._classes import encode_labels
from skuq.models._mixin import AdoptedClassifierMixin


class ModuleClassifier(AdoptedClassifierMixin, ClassifierMixin, BaseEstimator):
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
        X, y = self._validate_training_data(X, y)
        self.model_ = adopt(self.estimator, y)
        self.classes_, _ = encode_labels(y, self.model_, self.model_.inputs(X))
        return self
