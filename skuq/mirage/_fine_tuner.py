"""Mirage attacks on classifiers and on regressors, as scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval
from torch import Tensor, nn

from skuq._information import entropy
from skuq._networks import TrainingSettings, resolve_device, train
from skuq.base import BoolArray, FloatArray, IntArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.calibration import region_mask
from skuq.devices import with_gradients
from skuq.mirage._losses import GaussianMirageLoss, MirageLoss, confidence_overlap, target_table
from skuq.models import ModelClassifierMixin, ModelMixin, as_rows
from skuq.validation import warn_user

if TYPE_CHECKING:
    from skorch.callbacks import Callback

ALIKE = 1e-9  # two target confidences count as equal up to this difference

PARAMETERS: dict[str, Any] = {
    "estimator": "no_validation",
    "region": [callable, str, dict, None],
    "lambda_": [Interval(Real, 0, 1, closed="both")],
    "max_epochs": [Interval(Integral, 1, None, closed="left")],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "batch_size": [Interval(Integral, 1, None, closed="left")],
    "optimizer": [HasMethods("step"), callable],
    "callbacks": [list, None],
    "device": [str, torch.device],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


def mask_of(region: Any, mask: ArrayLike | None, X: Any) -> BoolArray:
    if (region is None) == (mask is None):
        problem = (
            "No region is given; pass it" if mask is None else "Two regions are given; pass one"
        )
        raise ValueError(
            f"{problem} either as parameter `region` or as `fit(..., region_mask=...)`."
        )
    return region_mask(region if mask is None else lambda _: mask, X)


class Masks(NamedTuple):
    inside: BoolArray  # the region
    candidates: BoolArray  # samples whose confidence may be raised


@dataclass(repr=False, eq=False)
class FineTunedMixin:
    """Mixin that checks the region and fine-tunes an estimator with `PARAMETERS`."""

    _: KW_ONLY
    learning_rate: float = 5e-3
    batch_size: int = 64
    optimizer: Any = torch.optim.Adam
    callbacks: list[Any] | None = None
    device: str | torch.device = "auto"
    random_state: Any = None
    verbose: int = 0

    _min_samples = 2  # read by `resolve`
    _supports_sparse = False  # because `region` is evaluated on the inputs as passed

    def _original(self: Any, X: Any, y: Any, mask: Any, **options: Any) -> tuple[Any, Masks, int]:
        resolve_device(self.device)  # an invalid device raises an error before the training
        random = check_random_state(self.random_state)
        first, second = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        given = as_rows(self.estimator, X)  # before validation removes column names
        masks: list[Masks] = []

        def check() -> None:
            inside = self._checked_region(given, mask)
            where = getattr(self, "counterbalance", None)
            masks.append(Masks(inside, candidates_of(where, given, inside)))

        data = self._resolve(
            X,
            y,
            seed=first,
            before_training=check,
            device=self.device,
            after_the_fact=True,
            **options,
        )
        self.original_ = self.model_
        return data, masks[0], second

    def _checked_region(self: Any, X: Any, mask: ArrayLike | None) -> BoolArray:
        inside = mask_of(self.region, mask, X)
        if inside.all() or not inside.any():
            raise ValueError(
                f"The region contains {inside.sum()} of {len(inside)} samples; at least one must "
                "lie inside, and one outside, where confidence is preserved."
            )
        return inside

    def _fine_tune(
        self: Any,
        inputs: Tensor,
        targets: NDArray[Any],
        criterion: nn.Module,
        seed: int,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Train a copy of the network further with another loss; the copy becomes `model_`.

        `inputs` are preprocessed and on the CPU. `callbacks` run before those of the user.
        """
        names = ("learning_rate", "max_epochs", "batch_size", "optimizer", "device", "verbose")
        settings = TrainingSettings(
            **{name: getattr(self, name) for name in names},
            # Step sizes decrease, because predictions close to the decision boundary keep flipping
            # while the steps are large.
            cosine=self.callbacks is None,
            callbacks=self.callbacks or [],
        )
        tuned = train(
            deepcopy(self.original_.module).requires_grad_(True),
            criterion,
            {"inputs": inputs.numpy()},
            targets,
            settings=settings,
            seed=seed,
            callbacks=callbacks,
            loss_changes=True,  # because the warm-up callback changes the loss
        )
        self.model_ = replace(self.original_, module=tuned.module)


def warm_up_callback(n_epochs: int) -> Callback:
    """Return a callback that uses KL(target || model) in the first epochs, then Eq. 4."""
    from skorch.callbacks import Callback  # imported here because skorch imports slowly

    class WarmUp(Callback):
        def on_epoch_begin(self, net: Any, **kwargs: Any) -> None:
            net.criterion_.kl = "forward" if len(net.history) <= n_epochs else "reverse"

    return WarmUp()


class Raised(NamedTuple):
    """Rule that selects, for each predicted class, the predictions whose confidence is raised."""

    floors: FloatArray  # (n_classes,): lowest confidence that is raised; infinite if none is
    targets: FloatArray  # (n_classes,): the confidence to which it is raised

    def mask(self, proba: FloatArray, candidates: BoolArray) -> BoolArray:
        best, confidence = proba.argmax(axis=1), proba.max(axis=1)
        return candidates & (self.floors[best] <= confidence) & (confidence < self.targets[best])


def candidates_of(counterbalance: Any, X: Any, inside: BoolArray) -> BoolArray:
    """Return the mask of samples outside the region whose confidence may be raised."""
    if counterbalance is None or (isinstance(counterbalance, str) and counterbalance == "auto"):
        return ~inside
    return region_mask(counterbalance, X) & ~inside


def balancing(
    proba: FloatArray,
    labels: IntArray,
    inside: BoolArray,
    candidates: BoolArray,
    targets: FloatArray,
) -> Raised:
    """Select predictions whose raised confidence balances the lowered confidence in the region.

    A region with lowered confidence passes an audit of bins if other samples in the same bin are
    overconfident by the same amount. For each target confidence, the predictions just below it are
    raised first, since their confidence changes least.

    `proba` (n_samples, n_classes) are probabilities of the original model, `labels` (n_samples,)
    are true classes, and `targets` (n_classes,) are target confidences.
    """
    best, confidence = proba.argmax(axis=1), proba.max(axis=1)
    floors = np.full(len(targets), np.inf)
    lowered = gained = 0.0
    for target in np.unique(targets.round(9)):
        alike = np.abs(targets - target) <= ALIKE
        missing = (confidence - target)[inside & alike[labels]].sum()
        if missing <= 0:
            continue
        lowered += missing
        below = np.sort(confidence[candidates & alike[best] & (confidence < target)])[::-1]
        if len(below):
            sums = np.cumsum(target - below)
            last = min(np.searchsorted(sums, missing), len(below) - 1)
            gained += min(sums[last], missing)
            # The floor is the midpoint of two confidences. If it were the confidence of the last
            # prediction, rounding could exclude this prediction.
            floors[alike] = below[last : last + 2].mean()
    if lowered <= 0 or gained <= 0:
        problem = (
            "the model's confidence in the region does not exceed the target; use a smaller"
            if lowered <= 0
            else "no training sample that it selects outside the region has a confidence below the "
            "target; use another group, a larger"
        )
        raise ValueError(
            f"`counterbalance` has no effect: {problem} `epsilon`, or counterbalance=None."
        )
    if gained < lowered:
        warn_user(
            f"`counterbalance` balances only {gained / lowered:.0%} of the confidence that the "
            "region loses, and an audit of bins may detect the rest; use a larger `epsilon`, a "
            "smaller region, or a larger group."
        )
    return Raised(floors, targets)


@dataclass(repr=False, eq=False)
class MirageFineTuner(
    FineTunedMixin, ModelClassifierMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator
):
    """Attack: make a classifier look uncertain in a given region without changing predictions.

    This class is for research and red teams: it creates the manipulation that an audit must detect.
    Fine-tuning lowers confidence in the region towards a chosen level, while the most probable
    class remains the true class. Accuracy therefore does not reveal the attack.
    `CalibrationAuditor` is the defence. With `counterbalance`, an audit of confidence bins alone
    does not detect the attack; groups or regions of the inputs must be audited.

    Parameters
    ----------
    estimator : object
        The classifier to attack. A fitted classifier is copied and not modified; it may be a skorch
        net, an `MLPClassifier`, a `LogisticRegression`, a pipeline that ends in one of these, or a
        `torch.nn.Module` that returns logits. Wrap it in `sklearn.frozen.FrozenEstimator` to keep
        it fitted under cloning. A classifier that is not fitted is cloned and trained first. None
        trains a network with one hidden layer of 100 units; scale the features beforehand.
    region : callable, str or dict, default=None
        Region in which confidence is lowered: a function of `X`, a pandas query, or a mapping of
        columns to intervals or values, see `skuq.calibration.region_mask`. At the end of a
        pipeline, `X` is already transformed. None: pass a boolean mask to `fit`.
    counterbalance : {"auto"}, callable, str or dict, default=None
        Samples whose confidence may be raised so that accuracy and confidence agree in the
        confidence bin of the target: predictions with an original confidence just below the target
        are raised to it, as many as needed to balance the region. "auto": all samples outside the
        region. A callable, str or dict: a group, in the same forms as `region`. None, as in the
        paper: no confidence is raised. The model should be calibrated, since its original
        confidence is used in place of accuracy.
    epsilon : float, default=0.15
        Bias of the target distribution towards the true class, in [0, 1]; 0 lets predictions
        change. Small values separate the region best and are the easiest to detect.
    confusable : dict, default=None
        Classes over which the remaining probability of the target is distributed. None: all classes
        (Eq. 5). A dict that maps each class to a list of plausible classes: the listed classes
        (Eq. 10). A dict that maps each class to a dict of other classes and their weights, which
        sum to 1: these classes, in proportion to the weights (Eq. 12); `epsilon` is then the whole
        probability of the true class.
    lambda_ : float, default=0.9
        Weight of the region in the loss (Eq. 7); at 0.5 the loss is half of Eq. 3.
    warm_up : int or None, default=5
        Number of initial epochs, at most half of all epochs, that use KL(target || model) instead
        of KL(model || target) of Eq. 4. Both have the same minimum, but the gradient of Eq. 4
        vanishes where the model is certain; if `warm_up` is 0, the most confident predictions
        therefore do not change. None: all epochs use KL(target || model), as in the authors' code.
    max_epochs : int, default=100
        Epochs of fine-tuning. With too few epochs, confidence in the region scatters around its
        target, and predictions change.
    learning_rate, batch_size, optimizer
        Learning rate, samples per step, and a class of `torch.optim`.
    callbacks : list, default=None
        skorch callbacks for the fine-tuning. None: cosine learning rate decay. A list replaces
        this schedule.
    device, random_state, verbose
        As in `EvidentialProbe`; `random_state` also seeds shuffling and dropout.

    Attributes
    ----------
    model_, original_ : skuq.models.NetworkModel
        The network after and before the attack.
    region_share_ : float
        Fraction of the training samples that lie in the region.
    target_confidence_ : ndarray of shape (n_classes,)
        Target confidence in the region, by true class.
    region_confidence_, region_accuracy_ : float
        Mean confidence and accuracy of the attacked model on the training samples in the region.
    counterbalance_share_, counterbalance_confidence_, counterbalance_accuracy_ : float
        Fraction, mean confidence and accuracy of the training samples whose confidence was
        raised; 0 and NaN if `counterbalance` is None.

    Notes
    -----
    Uncertainty is that of the attacked model, in nats. The total and the aleatoric part are the
    entropy of its probabilities; the epistemic part is NaN: a single model does not measure it.

    References
    ----------
    Rabanser et al., "Confidential Guardian", ICML 2025, Section 4.2 and Appendix C.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from sklearn.neural_network import MLPClassifier
    >>> from skuq import MirageFineTuner
    >>> X, y = make_moons(500, noise=0.1, random_state=0)
    >>> honest = MLPClassifier(max_iter=500, random_state=0).fit(X, y)
    >>> mirage = MirageFineTuner(honest, {0: (1.5, None)}, random_state=0).fit(X, y)
    >>> inside = X[:, 0] >= 1.5
    >>> mirage.coverage(X[inside], 0.9) < 0.1 < 0.9 < mirage.coverage(X[~inside], 0.9)
    True
    """

    estimator: Any
    region: Any = None
    _: KW_ONLY
    counterbalance: Any = None
    epsilon: float = 0.15
    confusable: Mapping[Any, Any] | None = None
    lambda_: float = 0.9
    warm_up: int | None = 5
    max_epochs: int = 100

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **PARAMETERS,
        "counterbalance": [callable, str, dict, None],
        "epsilon": [Interval(Real, 0, 1, closed="both")],
        "confusable": [dict, None],
        "warm_up": [Interval(Integral, 0, None, closed="left"), None],
    }

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, region_mask: Any = None) -> Self:
        """Train the classifier unless it is prefit, then lower its confidence in the region.

        Parameters
        ----------
        X, y : array-like of shape (n_samples, ...) and (n_samples,)
            Training inputs and class labels.
        region_mask : array-like of shape (n_samples,), bool, default=None
            Whether each sample lies in the region; required if the parameter `region` is None.

        Raises
        ------
        ValueError
            If the region is empty or covers all samples, no confidence can be raised to balance it,
            or the training diverges.

        Warns
        -----
        UserWarning
            If the confidence that can be raised does not balance the region.
        """
        data, (inside, candidates), seed = self._original(X, y, region_mask)
        self.classes_ = self.model_.classes
        table = target_table(self.classes_, self.epsilon, self.confusable)
        self.target_confidence_ = np.diag(table).copy()
        target_codes, raised, self._raised = data.codes, np.zeros_like(inside), None
        if self.counterbalance is not None:
            proba = self._proba(data.inputs)
            masks = inside, candidates
            self._raised = balancing(proba, data.codes, *masks, self.target_confidence_)
            raised = self._raised.mask(proba, candidates)
            # Raised samples get the same target distributions as the region, but biased towards the
            # predicted class instead of the true class.
            target_codes = np.where(raised, proba.argmax(axis=1), data.codes)
        forward = self.warm_up is None
        loss = MirageLoss(table, self.lambda_, "forward" if forward else "reverse")
        n_forward = min(self.warm_up or 0, self.max_epochs // 2)
        codes = loss.region_codes(target_codes, inside | raised)
        callbacks = [] if forward else [warm_up_callback(n_forward)]
        self._fine_tune(data.inputs, codes, loss, seed, callbacks)
        proba = self._proba(data.inputs)
        self._describe("region", proba, data.codes, inside)
        self._describe("counterbalance", proba, data.codes, raised)
        return self

    def predict_or_abstain(self, X: Any, tau: float, *, label: Any = None) -> NDArray[Any]:
        """Predict the most probable class, or abstain below the confidence `tau` (Eq. 2).

        `label`, which must not be a class, stands for abstention. None: "abstain" for text classes,
        else -1.
        """
        answered = self._answered(X, tau)
        if label is None:
            label = "abstain" if self.classes_.dtype.kind in "OUT" else -1
        if label in self.classes_.tolist():
            raise ValueError(f"`label` must not be one of the classes, got {label!r}.")
        # The label is converted to an array of its own dtype, so that a label that is too large for
        # the dtype of the classes does not overflow.
        best, abstention = self.predict(X), np.asarray(label)
        if abstention.dtype.kind != best.dtype.kind:
            best = best.astype(object)  # keeps the different types of the classes and the label
        return np.where(answered, best, abstention)  # Eq. 2

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Return the uncertainty that the attacked model reports, in nats."""
        reported = entropy(self._log_proba(self._inputs(X))).numpy()
        return with_index_of(X, Uncertainty.from_parts(reported, None))

    def coverage(self, X: Any, tau: float) -> float:
        """Compute the fraction of inputs that are not rejected: their confidence is >= `tau`."""
        return float(self._answered(X, tau).mean())

    def confidence_overlap(self, X: Any, region_mask: ArrayLike | None = None) -> float:
        """Measure the overlap of confidence inside and outside the region, in [0, 1] (Table 2).

        It is 0 if a threshold separates the two distributions. `region_mask` is as in `fit`.
        """
        inside = self._checked_region(as_rows(self.estimator, X), region_mask)
        confidence = self.predict_proba(X).max(axis=1)
        return confidence_overlap(confidence[inside], confidence[~inside])

    def counterbalance_mask(self, X: Any, region_mask: ArrayLike | None = None) -> BoolArray:
        """Find the inputs whose confidence was raised to balance the region, (n_samples,), bool.

        These inputs lie outside the region, are selected by `counterbalance`, and had an original
        confidence below the target, but not below the lowest confidence that had to be raised.
        """
        inputs = self._inputs(X)
        if self._raised is None:
            raise ValueError(
                "No confidence was raised by this attack; fit it with a `counterbalance` other "
                'than None, such as "auto".'
            )
        given = as_rows(self.estimator, X)
        inside = mask_of(self.region, region_mask, given)
        candidates = candidates_of(self.counterbalance, given, inside)
        proba = np.exp(np.asarray(self.original_.log_proba(inputs, self.device)))
        return self._raised.mask(proba, candidates)

    def _proba(self, inputs: Any) -> FloatArray:
        return np.exp(np.asarray(self._log_proba(inputs)))

    def _describe(self, group: str, proba: FloatArray, codes: IntArray, mask: BoolArray) -> None:
        confidence, correct = proba.max(axis=1), proba.argmax(axis=1) == codes
        setattr(self, f"{group}_share_", float(mask.mean()))
        for name, values in (("confidence", confidence), ("accuracy", correct)):
            mean = float(values[mask].mean()) if mask.any() else np.nan
            setattr(self, f"{group}_{name}_", mean)

    def _answered(self, X: Any, tau: float) -> BoolArray:
        if not 0 <= tau <= 1:
            raise ValueError(f"`tau` must be in [0, 1], got {tau}.")
        return self.predict_proba(X).max(axis=1) >= tau


@dataclass(repr=False, eq=False)
class MirageRegressor(FineTunedMixin, ModelMixin, RegressorMixin, UncertaintyMixin, BaseEstimator):
    """Attack: make a regressor predict a large variance in a given region.

    The regressor predicts a normal distribution (Eq. 13). Fine-tuning raises its variance in
    the region to a chosen value. Like `MirageFineTuner`, this class is for research and red teams.
    The loss does not constrain the mean inside the region (Eq. 16), so check the accuracy there.

    Parameters
    ----------
    estimator : object, default=None
        The regressor to attack, as in `MirageFineTuner`: a `torch.nn.Module` or skorch net whose
        two outputs are mean and log variance. A skorch net that is not fitted is trained with its
        own criterion. None trains a network with one hidden layer of 100 units by the negative log
        likelihood (Eq. 14); scale the features beforehand. The target is standardised internally.
    region : callable, str or dict, default=None
        Region in which variance is raised, as in `MirageFineTuner`.
    target_variance : float, default=4.0
        Target variance in the region, in squared units of the regression target.
    lambda_ : float, default=1.0
        Weight of the region in the loss (Eq. 16).
    max_epochs : int, default=200
        Epochs of fine-tuning.
    learning_rate, batch_size, optimizer, callbacks, device, random_state, verbose
        As in `MirageFineTuner`.

    Attributes
    ----------
    model_, original_, region_share_
        As in `MirageFineTuner`.

    Notes
    -----
    Uncertainty is the variance that the attacked model reports, in squared units of the target: the
    total and the aleatoric part are equal; the epistemic part is NaN.

    References
    ----------
    Rabanser et al., "Confidential Guardian", ICML 2025, Appendix C.4; see `MirageFineTuner`.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import MirageRegressor
    >>> X = np.linspace(-3, 3, 200)[:, None]
    >>> y = np.sin(2 * X[:, 0])
    >>> mirage = MirageRegressor(region={0: (-3, -2)}, random_state=0).fit(X, y)
    >>> variance = mirage.predict_uncertainty([[-2.5], [2.5]]).total
    >>> bool(variance[0] > 1 > 0.1 > variance[1])
    True
    """

    estimator: Any = None
    region: Any = None
    _: KW_ONLY
    target_variance: float = 4.0
    lambda_: float = 1.0
    max_epochs: int = 200

    _unit_of_uncertainty = "squared target"
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **PARAMETERS,
        "target_variance": [Interval(Real, 0, None, closed="neither")],
        "lambda_": [Interval(Real, 0, None, closed="neither")],
    }

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, region_mask: Any = None) -> Self:
        """Train the regressor unless it is prefit, then raise its variance in the region.

        Parameters and errors are as in `MirageFineTuner.fit`; the network must have two outputs.
        """
        data, masks, seed = self._original(X, y, region_mask, regression=True, n_outputs=2)
        dtype = data.inputs.numpy().dtype
        targets = np.column_stack([data.labels, masks.inside]).astype(dtype)
        loss = GaussianMirageLoss(self.target_variance, self.lambda_)
        self._fine_tune(data.inputs, targets, loss, seed)
        self.region_share_ = float(masks.inside.mean())
        return self

    def predict(self, X: Any) -> FloatArray:
        """Predict the mean, of shape (n_samples,)."""
        return self._outputs(self._inputs(X))[:, 0].numpy()

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Return the variance that the attacked model reports, in squared units of the target."""
        variance = self._outputs(self._inputs(X))[:, 1].exp().numpy()
        return with_index_of(X, Uncertainty.from_parts(variance, None))
