"""Entropy of a single model's prediction, the simplest baseline."""

from __future__ import annotations

from typing import Any

import numpy as np

from skuq._information import entropy
from skuq.base import Uncertainty, with_index_of
from skuq.baselines._sampled import COMMON_CONSTRAINTS, BaselineClassifier


class ReferenceClassifier(BaselineClassifier):
    """The given model alone: the uncertainty is the entropy of its prediction.

    Parameters
    ----------
    estimator : object, default=None
        The model. None trains the default network. A skorch net or any scikit-learn classifier
        with `predict_proba` (trees, neighbours, Gaussian processes, a text pipeline and others)
        is cloned and trained. A model in a `FrozenEstimator` or a `torch.nn.Module` is used
        without retraining. The model may also be a node classifier such as
        `skuq.evidential.GraphClassifier`.
    device : str, default="auto"
        Device of a network; "auto" is CUDA if available, otherwise the CPU. Other learners run on
        the CPU.
    random_state : int, RandomState instance or None, default=None
        Seed of initial weights, shuffling and mini-batches in training.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.Model
        The model.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    In nats: total = aleatoric = entropy of the model's prediction. The epistemic part is NaN,
    because it cannot be measured with a single model; `score_samples` ranks inputs by the entropy.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Section 4, where "the aleatoric uncertainty of the reference
    model (as in Eq. 2)" is a baseline.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.frozen import FrozenEstimator
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq.baselines import ReferenceClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> mine = LogisticRegression(max_iter=1000).fit(X, y)
    >>> reference = ReferenceClassifier(FrozenEstimator(mine)).fit(X, y)
    >>> reference.predict_uncertainty(X[:2]).epistemic
    array([nan, nan])
    """

    _supports_ids = True
    _parameter_constraints: dict[str, Any] = {
        name: COMMON_CONSTRAINTS[name] for name in ("estimator", "device", "random_state")
    }

    def __init__(self, estimator: Any = None, *, device: str = "auto", random_state: Any = None):
        self.estimator = estimator
        self.device = device
        self.random_state = random_state

    def _training_options(self) -> dict[str, Any]:
        return {"form": "natural"}

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Compute the entropy of the model's prediction.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs, or node ids.

        Returns
        -------
        Uncertainty
            Total, aleatoric and epistemic part in nats, each of shape (n_samples,).
        """
        aleatoric = np.asarray(entropy(self._log_proba(self._inputs(X))))
        return with_index_of(X, Uncertainty.from_parts(aleatoric, None))
