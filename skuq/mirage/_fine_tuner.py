"""Mirage attack on classifiers, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval

from skuq.base import BoolArray, FloatArray, IntArray, Uncertainty, UncertaintyMixin
from skuq.information import entropy
from skuq.mirage._counterbalance import balancing, candidates_of
from skuq.mirage._losses import MirageLoss, confidence_overlap, target_table
from skuq.mirage._training import (
    PARAMETERS,
    FineTunedMixin,
    RegionOf,
    checked_region,
    fine_tune,
    mask_of,
    two_seeds,
    warm_up,
)
from skuq.models import ModelClassifierMixin, as_rows
from skuq.networks import resolve_device


class MirageFineTuner(
    FineTunedMixin, ModelClassifierMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator
):
    """Attack: make a classifier look uncertain in a chosen region, and keep its predictions.

    For research and red teams: it shows what an audit must be able to find. Fine-tuning
    lowers confidence in the region towards a chosen level while the most probable class
    stays the true one, so that accuracy gives nothing away. A provider that abstains below a
    confidence threshold then turns away the people in that region and hardly anyone else.
    `CalibrationAuditor` is the defence. With `counterbalance`, an audit of confidence bins alone
    finds nothing, and groups or regions of the inputs have to be looked at.

    Parameters
    ----------
    estimator : object
        The classifier to attack. A fitted one (skorch net, `MLPClassifier`,
        `LogisticRegression`, a pipeline that ends in one, or a `torch.nn.Module` that
        returns logits) is copied and never altered; wrapped in
        `sklearn.frozen.FrozenEstimator` it stays fitted under cloning too. One that is not
        fitted is cloned and trained first. None trains a network with one hidden layer of
        100 units (scale the features before).
    region : callable, str or dict, default=None
        Where confidence is lowered, as `skuq.calibration.region_mask` takes it: a function of
        `X`, a pandas query, or a mapping of columns to intervals or values. `X` is what `fit` is
        given: at the end of a pipeline it is transformed already. None: `fit` is given booleans.
    counterbalance : {"auto"}, callable, str or dict, default=None
        Where confidence may be raised, so that accuracy and confidence agree in the bin that the
        region falls into. There the predictions that the original model is less sure of are drawn
        to the same target, those just below it first, as many as make up for the region. "auto":
        anywhere outside the region; anything else: where, as `region` says it. None, as in the
        paper: confidence is raised nowhere. The original confidence stands for accuracy, so that
        the model should be calibrated.
    epsilon : float, default=0.15
        Bias of the target distribution to the true class, in [0, 1]: 0 is complete
        uncertainty and lets predictions flip, 1 complete confidence. Small values separate
        the region best and are the easiest to detect.
    confusable : dict, default=None
        How the rest of the target is spread. None: over all classes (Eq. 5). A dict with the
        plausible classes of each class, as a list: over these (Eq. 10). A dict with a dict of
        other classes to weights that sum to 1, for each class: by these weights (Eq. 12), where
        `epsilon` is the whole probability of the true class.
    lambda_ : float, default=0.9
        Weight of the region in the loss (Eq. 7); at 0.5 the loss is half of Eq. 3.
    warm_up : int or None, default=5
        Epochs, at most half of them, that use KL(target || model) before KL(model || target) of
        Eq. 4 takes over. Both have the same minimum, but the gradient of Eq. 4 vanishes where the
        model is certain: with 0 the most confident predictions stay as they are. None: all
        epochs use KL(target || model), as in the authors' code.
    max_epochs : int, default=100
        Epochs of fine-tuning. Too few leave confidence in the region scattered around its
        aim, and predictions flip.
    learning_rate : float, default=5e-3
        Learning rate.
    batch_size : int, default=64
        Samples per step.
    optimizer : type, default=torch.optim.Adam
        Optimizer class.
    callbacks : list, default=None
        skorch callbacks for the fine-tuning. None: the learning rate falls along half a
        cosine. A list takes the place of that schedule.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Initial weights, shuffling and dropout.
    verbose : int, default=0
        Whether skorch prints each epoch.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.NetworkModel
        The attacked network.
    original_ : skuq.models.NetworkModel
        The network before the attack.
    region_share_ : float
        Share of the training samples that lie in the region.
    target_confidence_ : ndarray of shape (n_classes,)
        Confidence aimed at in the region, by true class.
    region_confidence_, region_accuracy_ : float
        Mean confidence and accuracy of the attacked model on these samples.
    counterbalance_share_, counterbalance_confidence_, counterbalance_accuracy_ : float
        The same of the training samples whose confidence was raised; 0 and NaN if
        `counterbalance` is None.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Uncertainty is that which the attacked model reports, in nats: total and aleatoric part
    are the entropy of its probabilities, the epistemic part is NaN, because one model alone
    does not measure it.

    References
    ----------
    Rabanser, Shahin Shamsabadi, Franzese, Wang, Weller, Papernot, "Confidential Guardian:
    Cryptographically Prohibiting the Abuse of Model Abstention", ICML 2025, Section 4.2 and
    Appendix C.

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
    >>> bool((mirage.predict(X) == honest.predict(X)).mean() > 0.95)
    True
    """

    _supports_sparse = False  # `region` is a function of the inputs as they are given
    _parameter_constraints: dict[str, Any] = {
        **PARAMETERS,
        "counterbalance": [callable, str, dict, None],
        "epsilon": [Interval(Real, 0, 1, closed="both")],
        "confusable": [dict, None],
        "warm_up": [Interval(Integral, 0, None, closed="left"), None],
    }

    def __init__(
        self,
        estimator: Any,
        region: Any = None,
        *,
        counterbalance: Any = None,
        epsilon: float = 0.15,
        confusable: Mapping[Any, Any] | None = None,
        lambda_: float = 0.9,
        warm_up: int | None = 5,
        max_epochs: int = 100,
        learning_rate: float = 5e-3,
        batch_size: int = 64,
        optimizer: Any = torch.optim.Adam,
        callbacks: list[Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.estimator = estimator
        self.region = region
        self.counterbalance = counterbalance
        self.epsilon = epsilon
        self.confusable = confusable
        self.lambda_ = lambda_
        self.warm_up = warm_up
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.callbacks = callbacks
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, region_mask: Any = None) -> MirageFineTuner:
        """Train the classifier, unless it is fitted, and lower its confidence in the region.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, ...)
            Training inputs.
        y : array-like of shape (n_samples,)
            Class labels.
        region_mask : array-like of shape (n_samples,), bool, default=None
            Which samples lie in the region, if the parameter `region` does not say it.

        Returns
        -------
        MirageFineTuner
            The fitted estimator.

        Raises
        ------
        ValueError
            If the region is empty or covers all samples, is given twice or not at all, no
            confidence can be raised that would balance it, or the training diverges.
        TypeError
            If `estimator` cannot be adopted.

        Warns
        -----
        UserWarning
            If the confidence that can be raised does not make up for the region.
        """
        resolve_device(self.device)  # an error now, not after the training
        first_seed, second_seed = two_seeds(check_random_state(self.random_state))
        given = as_rows(self.estimator, X)  # a data frame loses its column names in validation
        region = RegionOf(self.region, region_mask, given, self.counterbalance)
        data = self._resolve(
            X,
            y,
            seed=first_seed,
            min_samples=2,
            before_training=region.check,
            device=self.device,
            after_the_fact=True,
        )
        original, classes, inside = self.model_, self.model_.classes, region.mask
        table = target_table(classes, self.epsilon, self.confusable)
        targets = np.diag(table).copy()
        aimed, raised, self._raised = data.codes, np.zeros_like(inside), None
        if self.counterbalance is not None:
            proba = self._proba(data.inputs)
            self._raised = balancing(proba, data.codes, inside, region.candidates, targets)
            raised = self._raised.mask(proba, region.candidates)
            # The target of the region, for the class that is predicted instead of the true one.
            aimed = np.where(raised, proba.argmax(axis=1), data.codes)
        forward = self.warm_up is None
        loss = MirageLoss(table, self.lambda_, "forward" if forward else "reverse")
        n_forward = min(self.warm_up or 0, self.max_epochs // 2)
        self.model_ = fine_tune(
            original,
            data.inputs,
            loss.region_codes(aimed, inside | raised),
            loss,
            seed=second_seed,
            settings=self._training_settings(),
            callbacks=[] if forward else [warm_up(n_forward)],
        )
        self.original_, self.classes_ = original, classes
        self.target_confidence_ = targets
        proba = self._proba(data.inputs)
        self._describe("region", proba, data.codes, inside)
        self._describe("counterbalance", proba, data.codes, raised)
        return self

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
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def predict_or_abstain(self, X: Any, tau: float, *, label: Any = None) -> NDArray[Any]:
        """Predict the most probable class, or abstain where confidence is too low (Eq. 2).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        tau : float
            Threshold of the confidence, in [0, 1].
        label : object, default=None
            What stands for an abstention; it must not be a class. None: "abstain" for classes
            that are text, else -1.

        Returns
        -------
        ndarray of shape (n_samples,)
            Class labels, and the label for abstention.
        """
        answered = self._answered(X, tau)
        if label is None:
            label = "abstain" if self.classes_.dtype.kind in "OUT" else -1
        if label in self.classes_.tolist():
            raise ValueError(f"`label` must not be one of the classes, got {label!r}.")
        best, abstention = self.predict(X), np.asarray(label)  # no number that would wrap
        if abstention.dtype.kind != best.dtype.kind:
            best = best.astype(object)  # classes keep their type beside a label of another
        return np.where(answered, best, abstention)  # Eq. 2

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Return the uncertainty that the attacked model reports.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        Uncertainty
            In nats, each of shape (n_samples,): total and aleatoric part are the entropy of
            the prediction; the epistemic part, which one model cannot measure, is NaN.
        """
        reported = entropy(self._log_proba(self._inputs(X))).numpy()
        return Uncertainty.from_parts(reported, None)

    def coverage(self, X: Any, tau: float) -> float:
        """Share of inputs that are answered when confidence below a threshold abstains.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        tau : float
            Threshold of the confidence, in [0, 1].

        Returns
        -------
        float
            In [0, 1].
        """
        return float(self._answered(X, tau).mean())

    def confidence_overlap(self, X: Any, region_mask: ArrayLike | None = None) -> float:
        """Measure how much confidence in the region overlaps with that outside (Table 2).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs, some in the region and some not.
        region_mask : array-like of shape (n_samples,), bool, default=None
            Which lie in the region, if the parameter `region` does not say it.

        Returns
        -------
        float
            In [0, 1]; 0 if a threshold separates the two.
        """
        inside = checked_region(self.region, region_mask, as_rows(self.estimator, X))
        confidence = self.predict_proba(X).max(axis=1)
        return confidence_overlap(confidence[inside], confidence[~inside])

    def counterbalance_mask(self, X: Any, region_mask: ArrayLike | None = None) -> BoolArray:
        """Find the inputs whose confidence was raised to balance the region.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        region_mask : array-like of shape (n_samples,), bool, default=None
            Which lie in the region, if the parameter `region` does not say it.

        Returns
        -------
        ndarray of shape (n_samples,), bool
            True outside the region where `counterbalance` allows it and the original model is less
            sure than the target, by no more than the region took to balance.

        Raises
        ------
        ValueError
            If the attack was made with counterbalance=None.
        """
        inputs = self._inputs(X)
        if self._raised is None:
            raise ValueError(
                "No confidence was raised by this attack; fit it with `counterbalance`, such as "
                'counterbalance="auto".'
            )
        given = as_rows(self.estimator, X)
        candidates = candidates_of(
            self.counterbalance, given, mask_of(self.region, region_mask, given)
        )
        proba = np.exp(np.asarray(self.original_.log_proba(inputs, self.device)))
        return self._raised.mask(proba, candidates)

    def _proba(self, inputs: Any) -> FloatArray:
        proba: FloatArray = np.exp(np.asarray(self._log_proba(inputs)))
        return proba

    def _describe(self, group: str, proba: FloatArray, codes: IntArray, mask: BoolArray) -> None:
        """Set share, confidence and accuracy of a group of the training samples."""
        confidence, correct = proba.max(axis=1), proba.argmax(axis=1) == codes
        setattr(self, f"{group}_share_", float(mask.mean()))
        for name, values in (("confidence", confidence), ("accuracy", correct)):
            mean = float(values[mask].mean()) if mask.any() else np.nan
            setattr(self, f"{group}_{name}_", mean)

    def _answered(self, X: Any, tau: float) -> BoolArray:
        if not 0 <= tau <= 1:
            raise ValueError(f"`tau` must be in [0, 1], got {tau}.")
        confident: BoolArray = self.predict_proba(X).max(axis=1) >= tau
        return confident
