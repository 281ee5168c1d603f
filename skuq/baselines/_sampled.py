"""What the classifiers have in common that sample models without looking at the test point."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils import _safe_indexing, check_random_state, gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, _num_samples, check_is_fitted
from torch import Tensor
from torch.nn.functional import cross_entropy

from skuq.base import Uncertainty, UncertaintyMixin
from skuq.information import Decomposition, decompose_expected, decompose_selected
from skuq.models import (
    AdoptedClassifierMixin,
    AdoptedModel,
    TrainingSet,
    encode_labels,
    fit_or_adopt,
    resolve_device,
)

COMMON_CONSTRAINTS: dict[str, Any] = {
    "estimator": "no_validation",
    "setting": [StrOptions({"selected", "expected"})],
    "batch_size": [Interval(Integral, 1, None, closed="left")],
    "device": [str, torch.device],
    "random_state": ["random_state"],
}
AT_LEAST_ONE = [Interval(Integral, 1, None, closed="left")]


class SampledModelsClassifier(
    AdoptedClassifierMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator
):
    """Uncertainty from models of equal weight that are the same for all test points.

    Subclasses have the parameters of `COMMON_CONSTRAINTS` and say by `_sampled_log_proba` what
    the models predict; `_fit_model` and `_set_up` are theirs to extend.
    """

    estimator: Any
    setting: str
    batch_size: int
    random_state: Any

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the model, or take over a frozen one, and prepare the models to sample.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, ...)
            Training inputs.
        y : array-like of shape (n_samples,)
            Class labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples in the training loss.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ValueError
            If the data are not finite numbers, hold a single class to be trained on or a
            label that a frozen model does not know, do not fit the model's shape, have
            weights that are all 0, or the model has no form that the method can sample.
        TypeError
            If `estimator` cannot be adopted.
        """
        device = resolve_device(self.device)
        random = check_random_state(self.random_state)
        # In this order QUAMClassifier draws too: the same random state questions the same model.
        seed, self._sampling_seed = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        X, y = self._validate_training_data(X, y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(
                sample_weight, y, dtype=np.float64, ensure_non_negative=True
            )
            if not sample_weight.any():
                raise ValueError("All sample weights are 0.")
        self.model_ = self._fit_model(X, y, sample_weight, seed, device)
        inputs = self.model_.inputs(X)
        self.classes_, codes = encode_labels(y, self.model_, inputs)
        weight = np.ones(len(y)) if sample_weight is None else sample_weight
        targets = torch.as_tensor(codes)
        losses = cross_entropy(self._log_proba(inputs), targets, reduction="none")
        train = TrainingSet(inputs, targets, torch.as_tensor(weight), losses)
        counts = train.weight > 0
        self._set_up(TrainingSet(*(part[counts] for part in train)), device)
        return self

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Predict uncertainty from how the sampled models disagree.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        Uncertainty
            Total, aleatoric and epistemic part in nats, each of shape (n_samples,).

        Raises
        ------
        ValueError
            If `X` does not fit the training data.
        """
        check_is_fitted(self)
        self._validate_params()  # they may have been set after `fit`
        X = self._checked_rows(X)
        parts = [
            self._decomposed(_safe_indexing(X, rows))
            for rows in gen_batches(_num_samples(X), self.batch_size)
        ]
        return Uncertainty.from_parts(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def _decomposed(self, X: Any) -> Decomposition:
        log_proba = self._sampled_log_proba(X)
        n_models = log_proba.shape[1]
        weights = torch.full((n_models,), 1 / n_models, dtype=torch.float64)
        if self.setting == "expected":
            return decompose_expected(log_proba, weights)
        return decompose_selected(self._log_proba(self.model_.inputs(X)), log_proba, weights)

    def _fit_model(
        self,
        X: Any,
        y: NDArray[Any],
        sample_weight: NDArray[Any] | None,
        seed: int,
        device: torch.device,
    ) -> AdoptedModel:
        """The given model: the one that predicts, and that is questioned if it is selected."""
        return fit_or_adopt(
            self.estimator, X, y, sample_weight=sample_weight, seed=seed, device=device
        )

    def _set_up(self, train: TrainingSet, device: torch.device) -> None:
        """Prepare what sampling needs of the training data, which hold no weight of zero."""

    def _sampled_log_proba(self, X: Any) -> Tensor:
        """Log-probabilities that the sampled models give to one batch of checked rows.

        Returns
        -------
        Tensor of shape (n_points, n_models, n_classes), float64
            On the CPU. What belongs to a row must not depend on the other rows.
        """
        raise NotImplementedError
