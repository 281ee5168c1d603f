"""Uncertainty from the labels of nearest neighbours: an example of a plugin for skuq."""

import numpy as np
from scipy.special import digamma, entr
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from skuq import Uncertainty, UncertaintyMixin


class NeighbourUncertainty(ClassifierMixin, UncertaintyMixin, BaseEstimator):
    """Classifier that holds a Dirichlet distribution over class probabilities.

    The labels of the nearest neighbours are counted, and one is added to each count
    (Laplace's rule). Aleatoric uncertainty is the expected entropy under the Dirichlet
    distribution with these counts, epistemic uncertainty the mutual information between
    the label and the class probabilities, the total the entropy of the expected
    probabilities; all in nats.

    Parameters
    ----------
    n_neighbors : int, default=10
        Number of neighbours whose labels are counted.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq_neighbours import NeighbourUncertainty
    >>> X, y = load_iris(return_X_y=True)
    >>> NeighbourUncertainty().fit(X, y).predict_uncertainty(X[:3]).total.shape
    (3,)
    """

    def __init__(self, n_neighbors=10):
        self.n_neighbors = n_neighbors

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.one_hot_ = np.eye(len(self.classes_))[codes]
        # A tree computes each distance by itself, so results do not depend on batches.
        self.neighbors_ = NearestNeighbors(
            n_neighbors=min(self.n_neighbors, len(X)), algorithm="kd_tree"
        ).fit(X)
        return self

    def predict_proba(self, X):
        concentration = self._concentration(X)
        return concentration / concentration.sum(axis=1, keepdims=True)

    def predict(self, X):
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def predict_uncertainty(self, X):
        a = self._concentration(X)
        a0 = a.sum(axis=1, keepdims=True)
        total = entr(a / a0).sum(axis=1)
        aleatoric = (a / a0 * (digamma(a0 + 1) - digamma(a + 1))).sum(axis=1)
        return Uncertainty.from_parts(aleatoric, np.maximum(total - aleatoric, 0))

    def _concentration(self, X):
        """Parameters of the Dirichlet distribution, shape (n_samples, n_classes)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        nearest = self.neighbors_.kneighbors(X, return_distance=False)
        return 1 + self.one_hot_[nearest].sum(axis=1)
