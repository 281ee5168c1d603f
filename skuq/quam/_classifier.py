"""The scikit-learn face of QUAM for classification."""

from __future__ import annotations

from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch.nn.functional import cross_entropy

from skuq.base import Uncertainty, UncertaintyMixin
from skuq.models import AdoptedClassifierMixin, encode_labels, fit_or_adopt, resolve_device
from skuq.quam._classification import (
    plan_searches,
    summarise_best,
    summarise_mixture,
    summarise_uncertainty,
)
from skuq.quam._mixin import SEARCH_CONSTRAINTS, SearchingMixin
from skuq.quam._mixtures import MixtureSettings
from skuq.quam._sampling import AdversarialModels


class QUAMClassifier(
    SearchingMixin, AdoptedClassifierMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator
):
    """Classifier that asks: which other models fit as well, and what would they predict?

    For every test point and class, an *adversarial model* is searched: one that explains
    the training data about as well as the fitted model, but predicts that class. Where
    such models are easily found, the prediction is not supported by the data and the
    epistemic uncertainty is large.

    Parameters
    ----------
    estimator : object, default=None
        The model to question. None trains a network with one hidden layer of 100 units
        (scale the features before). A skorch net, an `MLPClassifier` or
        `LogisticRegression`, or a pipeline that ends in one, is cloned and trained. A
        fitted model of these kinds, or a `torch.nn.Module` that returns logits, wrapped in
        `sklearn.frozen.FrozenEstimator`, is taken as it is and never altered; `fit` then
        needs the data that it was trained on. Outputs of a bare module belong to the sorted
        labels in `y`.
    setting : {"selected", "expected"}, default="selected"
        Whose uncertainty is meant. "selected": that of the given model (Eq. 2). "expected":
        that of all models that explain the data (Eq. 1).
    targeted : bool, default=True
        Whether there is one search for each class, which it asks for. False: a single search
        for whatever differs from the fitted model's prediction, which is cheaper and tends to
        find the same alternative again and again.
    n_targets : int, default=None
        Ask for this many classes only, those that the fitted model takes for most probable at
        the input. None asks for all; the cost is proportional to the number.
    mixture : {"trajectory", "dirac", "laplace", "sgld"}, default="trajectory"
        Which models stand for all that explain the data. "trajectory": all models met on the
        way. The others put a mixture component at the best adversarial model of each search
        (Eq. 6): "dirac" takes this model alone; "laplace" draws from a Gaussian with the
        curvature of the training loss there, and weighs by posterior over mixture density,
        which is exact with enough models, but needs few weights (``parameters="last"``) and a
        prior (`weight_decay`) to come near it; "sgld" runs Langevin chains from there and
        needs the extra "sgmcmc".
    n_samples : int, default=20
        Models drawn from each component, for mixtures "laplace" and "sgld".
    parameters : {"all", "last", "bias", "norm"} or callable, default="all"
        Weights that the search may move: all, the last layer, all biases, or the scales and
        shifts of normalisation layers. A callable ``parameters(name, tensor)`` returns for
        each whether it moves. "last" is far cheaper for large networks, since features are
        computed once, but finds fewer alternatives. Acts in `fit`; the other parameters of
        the search act whenever uncertainty is predicted and can be changed without fitting
        again.
    n_steps : int, default=100
        Length of each search; its cost is proportional to this.
    c0 : float or "auto", default="auto"
        Initial weight of the penalty on training loss. "auto" is a tenth of the number of
        training samples.
    eta : float or "auto", default="auto"
        Factor by which the penalty grows. "auto" makes it ten times as large in the end: with
        c0 "auto" it then equals the number of training samples, and the search minimises the
        negative log posterior of the training set and one sample more, the test point with
        the targeted class.
    update_every : int, default=1
        Steps between two changes of the penalty and of the step size.
    gamma : float, default=0.01
        Training loss, in nats per sample above the fitted model's, at which a model still
        counts as explaining the data; used by `adversarial_models` and by all mixtures but
        "trajectory".
    learning_rate : float, default=0.1
        Step size of the search, relative to the root mean square of each weight tensor.
    learning_rate_decay : float, default=1.0
        Factor by which the step size shrinks whenever the penalty grows.
    weight_decay : float, default=0.0
        Prior that the model was trained with, as optimisers state it: half of it times the
        squared norm of the moving weights is part of the mean training loss, in the search
        and in the weights of the models. Set it if it is known.
    temperature : float or "auto", default="auto"
        T in the weight ``exp(-training loss / T)`` of each model found. "auto" is one over
        the number of samples that the loss is averaged over: weights are then likelihoods,
        of the training set if it fits into one batch (`train_batch_size`), else of a batch,
        which is as much as a batch can tell. Larger values count worse-fitting models too.
    train_batch_size : int, default=256
        Training samples on which each step of the search computes the penalty. More cost
        time and give sharper estimates, and with temperature "auto" sharper weights.
    batch_size : int, default=8
        Test points searched at once; no effect on the result. Bounds memory: each search
        takes 4 copies of the weights that it moves, and 5 with mixtures "laplace" and "sgld".
        After the searches, "laplace" takes about 16 copies (it computes in double precision),
        and a square matrix of the weights if these are the at most 1024 of a last layer.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    n_jobs : int, default=None
        Processes that share the batches of test points, through joblib: the same call runs
        on a Dask cluster under ``joblib.parallel_config(backend="dask")``.
    random_state : int, RandomState instance or None, default=None
        Initial weights, shuffling, mini-batches and the models drawn from mixtures.
    verbose : int, default=0
        Whether to show a progress bar while predicting uncertainty.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.AdoptedModel
        The questioned model.
    reference_loss_ : float
        Its mean training loss, in nats (L_ref).
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Quantities are in nats. "selected": total = expected cross-entropy, aleatoric = entropy
    of the given model, epistemic = expected KL divergence of candidate models from it.
    "expected": total = entropy of the average model, aleatoric = expected entropy,
    epistemic = mutual information. The training data are kept, because the search needs
    them.

    The epistemic part is an importance sampling estimate over the models that the searches
    met, not over the whole posterior (Appendix C.1): it ranks inputs well and is
    comparable only between runs with the same settings.

    References
    ----------
    Schweighofer, Aichberger, Ielanskyi, Klambauer, Hochreiter, "Quantification of
    Uncertainty with Adversarial Models", NeurIPS 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.frozen import FrozenEstimator
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq import QUAMClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> mine = LogisticRegression(max_iter=1000).fit(X, y)
    >>> quam = QUAMClassifier(FrozenEstimator(mine), random_state=0).fit(X, y)
    >>> u = quam.predict_uncertainty([[5.1, 3.5, 1.4, 0.2], [50.0, 0.0, 0.0, 30.0]])
    >>> bool(u.epistemic[1] > u.epistemic[0])
    True
    """

    _parameter_constraints: dict[str, Any] = {
        "estimator": "no_validation",
        "setting": [StrOptions({"selected", "expected"})],
        "targeted": ["boolean"],
        "n_targets": [Interval(Integral, 1, None, closed="left"), None],
        "mixture": [StrOptions({"trajectory", "dirac", "laplace", "sgld"})],
        "n_samples": [Interval(Integral, 1, None, closed="left")],
        **SEARCH_CONSTRAINTS,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        setting: str = "selected",
        targeted: bool = True,
        n_targets: int | None = None,
        mixture: str = "trajectory",
        n_samples: int = 20,
        parameters: Any = "all",
        n_steps: int = 100,
        c0: float | str = "auto",
        eta: float | str = "auto",
        update_every: int = 1,
        gamma: float = 0.01,
        learning_rate: float = 0.1,
        learning_rate_decay: float = 1.0,
        weight_decay: float = 0.0,
        temperature: float | str = "auto",
        train_batch_size: int = 256,
        batch_size: int = 8,
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.estimator = estimator
        self.setting = setting
        self.targeted = targeted
        self.n_targets = n_targets
        self.mixture = mixture
        self.n_samples = n_samples
        self.parameters = parameters
        self.n_steps = n_steps
        self.c0 = c0
        self.eta = eta
        self.update_every = update_every
        self.gamma = gamma
        self.learning_rate = learning_rate
        self.learning_rate_decay = learning_rate_decay
        self.weight_decay = weight_decay
        self.temperature = temperature
        self.train_batch_size = train_batch_size
        self.batch_size = batch_size
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> QUAMClassifier:
        """Train the model, or take over a frozen one, and keep the training data.

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
        QUAMClassifier
            The fitted estimator.

        Raises
        ------
        ValueError
            If the data are not finite numbers, hold a single class to be trained on or a
            label that the frozen model does not know, or do not fit the model's shape.
        TypeError
            If `estimator` cannot be adopted.
        """
        device = resolve_device(self.device)
        random = check_random_state(self.random_state)
        fit_seed, self._search_seed = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        X, y = self._validate_training_data(X, y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(
                sample_weight, y, dtype=np.float64, ensure_non_negative=True
            )
        self.model_ = fit_or_adopt(
            self.estimator, X, y, sample_weight=sample_weight, seed=fit_seed, device=device
        )
        inputs = self.model_.inputs(X)
        self.classes_, codes = encode_labels(y, self.model_, inputs)
        weight = np.ones(len(y)) if sample_weight is None else sample_weight
        log_proba, targets = self._log_proba(inputs), torch.as_tensor(codes)
        losses = cross_entropy(log_proba, targets, reduction="none").numpy()
        self._set_up_search(inputs, codes, weight, losses)
        return self

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Search adversarial models for each input and measure how they disagree.

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
            If `X` does not fit the training data, or a search or a chain diverges.
        ImportError
            If `mixture` is "sgld" and the extra is missing.
        """
        self._check_ready()
        temperature, mixture = self._temperature(), None
        summary: Any = partial(summarise_mixture, setting=self.setting)
        if self.mixture in {"laplace", "sgld"}:
            mixture = MixtureSettings(self.mixture, self.n_samples, temperature, self.gamma)
        else:
            summary = partial(
                summarise_uncertainty,
                setting=self.setting,
                mixture=self.mixture,
                temperature=temperature,
                gamma=self.gamma,
            )
        parts = self._searches(X, summary, mixture)
        return Uncertainty.from_parts(
            np.concatenate([part.aleatoric for part in parts]),
            np.concatenate([part.epistemic for part in parts]),
        )

    def adversarial_models(self, X: Any) -> AdversarialModels:
        """Search adversarial models for each input and return the best one per class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        AdversarialModels
            Predictions, divergences and training losses of the most divergent model that
            fits the training data within `gamma`, for each input and targeted class.
        """
        self._check_ready()
        summary = partial(
            summarise_best, gamma=self.gamma, targeted=self.targeted, n_targets=self.n_targets
        )
        best = AdversarialModels(
            *map(np.concatenate, zip(*self._searches(X, summary), strict=True))
        )
        return best._replace(target=self.classes_[best.target])

    def _check_ready(self) -> None:
        check_is_fitted(self)
        self._validate_params()  # they may have been set after `fit`

    def _searches(self, X: Any, summary: Any, mixture: MixtureSettings | None = None) -> list[Any]:
        inputs = self._validated_inputs(X)
        planner = partial(
            plan_searches, targeted=self.targeted, n_targets=self.n_targets, mixture=mixture
        )
        return list(self._search(inputs, self._log_proba(inputs).numpy(), planner, summary))
