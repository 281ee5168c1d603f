"""Base classes: one for all baselines, and one for baselines that sample models."""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils import _safe_indexing, check_random_state, gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _num_samples, check_is_fitted
from torch import Tensor

from skuq._information import decompose_expected, decompose_pairwise, decompose_selected
from skuq._networks import as_double, resolve_device
from skuq.base import CredalInterval, FloatArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.devices import with_gradients
from skuq.labels import labels_in_mask
from skuq.models import LearnerModel, ModelClassifierMixin
from skuq.validation import warn_if_worse_than_guessing

AT_LEAST_ONE = [Interval(Integral, 1, None, closed="left")]


class TrainingRows(NamedTuple):
    """Training samples of positive weight."""

    X: Tensor  # (n_samples, ...), inputs of the model
    y: Tensor  # (n_samples,), class codes
    weight: Tensor  # (n_samples,), float64


def log_proba_there(model: Any, inputs: Any) -> Tensor:
    """Compute log-probabilities (n_samples, n_classes) of preprocessed inputs on the device."""
    if isinstance(model, LearnerModel):
        return torch.as_tensor(model.log_proba(inputs))
    return as_double(model.outputs_there(inputs)).log_softmax(-1)


@dataclass(repr=False, eq=False)
class BaselineClassifier(ModelClassifierMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator):
    """Base class of classifiers that wrap a model and quantify its uncertainty.

    A subclass implements `predict_uncertainty`, and may override `_training_options` and `_set_up`.
    """

    estimator: Any = None
    _: KW_ONLY
    device: str = "auto"
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": "no_validation",
        "device": [str, torch.device],
        "random_state": ["random_state"],
    }

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None
    ) -> Self:
        """Train the model, or use a frozen model, and prepare the uncertainty method.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, ...)
            Training inputs; ids of labelled nodes if `estimator` classifies nodes.
        y : array-like of shape (n_samples,)
            Class labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights >= 0, as numbers of samples. A mean below 0.1 or above 10 raises a warning.
        X_val, y_val : arrays like `X` and `y`, default=None
            Validation data for early stopping, if the `fit` method of `estimator` accepts it, as
            in `skuq.evidential.GraphClassifier`.

        Raises
        ------
        ValueError
            If a model must be trained on a single class, a frozen model does not know a label, or
            the method does not support the model's architecture.

        Warns
        -----
        UserWarning
            If the model's loss on the training data is worse than the loss of guessing.
        """
        resolve_device(self.device)  # an invalid device raises an error before the training
        random = check_random_state(self.random_state)
        # Draw seeds in QUAMClassifier's order: with equal `random_state`, both train equal models.
        seed, self._sampling_seed = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        early_stopping = {"X_val": X_val, "y_val": y_val}
        fit_params = {name: v for name, v in early_stopping.items() if v is not None}
        options = {"device": self.device, "fit_params": fit_params, **self._training_options()}
        data = self._resolve(X, y, seed=seed, sample_weight=sample_weight, **options)
        # Skip this check for class weights, which change the class frequencies that a model learns.
        if not data.given.class_weights:
            losses = self.model_.losses(data.inputs, data.codes, self.device)
            loss = float(np.average(losses, weights=data.weight))
            warn_if_worse_than_guessing(loss, data.codes, self.model_.classes, data.weight)
        # Without `classes_`, the estimator counts as not fitted until the method is set up.
        self.__dict__.pop("classes_", None)
        if isinstance(self.model_, LearnerModel):
            data.given.refuse_device(self.device)
        else:
            weight = torch.as_tensor(data.weight)
            train = TrainingRows(data.inputs, torch.as_tensor(data.codes), weight)
            self._set_up(TrainingRows(*(part[weight > 0] for part in train)), self._device())
        assert self.model_.classes is not None
        self.classes_ = self.model_.classes
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the accuracy; for a mask of nodes, `y` may hold the labels of all nodes."""
        if self.model_.form.are_ids:
            y = labels_in_mask(X, y)
        return float(super().score(X, y, sample_weight))

    def _device(self) -> torch.device:
        is_learner = isinstance(self.model_, LearnerModel)
        return torch.device("cpu") if is_learner else self.model_.resolved(self.device)

    def _training_options(self) -> dict[str, Any]:
        return {}

    def _set_up(self, train: TrainingRows, device: torch.device) -> None:
        """Prepare the method from training data without samples of weight 0."""


@dataclass(repr=False, eq=False, kw_only=True)
class SampledModelsClassifier(BaselineClassifier):
    """Base class: uncertainty of equally weighted models, which do not depend on the test point."""

    setting: str = "expected"
    batch_size: int = 256

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **BaselineClassifier._parameter_constraints,
        "setting": [StrOptions({"selected", "expected", "pairwise", "max-score"})],
        "batch_size": AT_LEAST_ONE,
    }

    def predict_proba(self, X: Any) -> FloatArray:
        """Average class probabilities, (n_samples, n_classes), over the sampled models.

        With ``setting="selected"``, the result is the prediction of `model_` alone.
        """
        if self.setting == "selected":
            return super().predict_proba(X)
        proba = [each.exp().mean(dim=1).cpu().double() for _, each in self._predicted(X)]
        return torch.cat(proba).numpy()

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Compute uncertainty, in nats, from the disagreement of the sampled models.

        With ``setting="max-score"``, the total is a probability and both parts are NaN.
        """
        if self.setting == "max-score":
            return with_index_of(X, Uncertainty.from_total(1 - self.predict_proba(X).max(axis=1)))
        parts = torch.cat([self._decomposed(*each) for each in self._predicted(X)], dim=1)
        return with_index_of(X, Uncertainty.from_parts(*parts))

    def predict_proba_bounds(self, X: Any) -> CredalInterval:
        """Predict the range of each class probability over the sampled models.

        With ``setting="selected"``, the models include `model_`, so the range always contains the
        result of `predict_proba`. The range is not a guarantee: more models can only widen it.
        """
        bounds = []
        for log_reference, log_proba in self._predicted(X):
            if log_reference is not None:
                log_proba = torch.cat([log_reference[:, None], log_proba], dim=1)
            bounds.append(torch.stack(log_proba.exp().aminmax(dim=1)).cpu().double())
        return CredalInterval(*torch.cat(bounds, dim=1).numpy())

    def _predicted(self, X: Any) -> Iterator[tuple[Tensor | None, Tensor]]:
        """Yield, per batch, log-probabilities of `model_` (or None) and of the sampled models.

        Shapes: (n_points, n_classes) and (n_points, n_members, n_classes), on the device.
        """
        check_is_fitted(self)
        self._validate_params()  # parameters may have changed since `fit`
        X = self._checked_rows(X)
        slices = [] if self.model_.at_once else gen_batches(_num_samples(X), self.batch_size)
        batches = [_safe_indexing(X, rows) for rows in slices] or [X]
        device, given = self._device(), self.model_
        sample = self._sampler(device)
        if self.setting == "selected" and given.network is not None:
            given = given.to(device)
        for rows in batches:
            log_proba, reference = sample(rows), None
            if self.setting == "selected":
                reference = log_proba_there(given, given.inputs(rows)).to(log_proba.device)
            yield reference, log_proba

    def _decomposed(self, log_reference: Tensor | None, log_proba: Tensor) -> Tensor:
        """Compute the parts of the uncertainty of one batch, (2, n_points), on the CPU."""
        n_members = log_proba.shape[1]
        weights = log_proba.new_full((n_members,), 1 / n_members)
        if self.setting == "pairwise":
            found = decompose_pairwise(log_proba, weights)
        elif log_reference is None:
            found = decompose_expected(log_proba, weights)  # Eq. 1
        else:
            found = decompose_selected(log_reference, log_proba, weights)  # Eq. 2
        return torch.stack(tuple(found)).cpu().double()

    def _sampler(self, device: torch.device) -> Callable[[Any], Tensor]:
        """Return a function that computes log-probabilities of the sampled models on a device.

        The function receives a batch of validated inputs and returns a tensor of shape (n_points,
        n_members, n_classes), which may be on the device. Its dtype is float64, or float32 on MPS.
        The values of a row must not depend on the other rows.
        """
        raise NotImplementedError
