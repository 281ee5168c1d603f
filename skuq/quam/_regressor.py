"""QUAM for regression, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any, ClassVar, NamedTuple, NotRequired

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context
from sklearn.utils import _safe_indexing, check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from skuq.base import FloatArray, IntArray, Uncertainty, UncertaintyMixin
from skuq.models import fit_or_adopt_regressor, fit_or_take, resolve_device
from skuq.quam._importance_sampling import ImportanceSampling
from skuq.quam._mixin import KEPT, Met, QUAMMixin, checked_weights, reduce_piece
from skuq.quam._noise import estimate_noise
from skuq.quam._objectives import Objective
from skuq.quam._refit_search import RefitProblem, split_signs
from skuq.quam._regression_objectives import (
    DIRECTIONS,
    gaussian_loss,
    regression_objective,
)
from skuq.quam._regression_sampling import (
    AdversarialRegressors,
    best_adversarial_regressors,
    estimate_spread,
    estimate_uncertainty,
)
from skuq.quam._search import Trajectories, search_batch
from skuq.quam._search_parameters import POOL, Automatic, SearchParameters
from skuq.quam._search_problem import (
    FittedSearch,
    SearchProblem,
    SearchSettings,
    mean_loss,
    prepare_search,
)
from skuq.quam._subnetwork import OutputBias, output_bias
from skuq.stored import stored

# How far from the given model's prediction refitted learners are pulled, in standard deviations
# of the target: about to the ends of its range.
_PULL = 2.0
# Ranges of the target beyond which predictions for the pool are no targets of a refit.
_REACH = 10.0


@dataclass(kw_only=True, eq=False, repr=False)
@stored(
    "quam.regressor",
    fields=KEPT
    | {"noise_variance_": float, "_spread": float, "_bias": NotRequired[OutputBias | None]},
)
class QUAMRegressor(QUAMMixin, RegressorMixin, UncertaintyMixin, BaseEstimator):
    """Regressor whose uncertainty comes from a search for adversarial models.

    A model is a normal distribution of the target. Two kinds of *adversarial models* are
    searched: models that explain the training data about as well as the fitted one, but predict
    more, or less, for inputs that the data leave open. Where they disagree, the prediction is
    not supported by the data and the epistemic uncertainty is large.

    Parameters
    ----------
    estimator : object, default=None
        The model to question. None trains a network with one hidden layer of 100 units
        (scale the features before; the target is standardised inside). Any regressor whose
        `fit` takes `sample_weight` (boosted trees, forests, linear models and others), a skorch
        net, an `MLPRegressor`, or a pipeline that ends in one, is cloned and trained. A fitted
        model wrapped in `sklearn.frozen.FrozenEstimator`, or a `torch.nn.Module`, is taken as it
        is and never altered; `fit` then needs the data that it was trained on. Step sizes are
        relative to the weights, the bias of the output among them, so train networks on a target
        of about zero mean.
    noise : {"homoscedastic", "learned"}, default="homoscedastic"
        "homoscedastic": the network has one output, the mean; the noise has one variance,
        the same for all inputs and models (Eq. 29). "learned": it has two outputs, mean and
        log variance; the default network learns them by maximum likelihood. Such models are
        more easily spoilt than others: take a `learning_rate` of about 0.02.
    setting : {"expected", "selected"}, default="expected"
        Whose uncertainty is meant: that of all models that explain the data (Eq. 26), or that of
        the given model (Eq. 27).
    attack : {"displacement", "divergence"}, default="displacement"
        What the searches want at the test point, besides a small training loss:
        "displacement" of the mean, in standard deviations of the noise, or "divergence", half
        its square (Eq. 25), as in the paper. The most divergent models are the same, but the
        square outruns the penalty where data are far: searches then leave what is plausible,
        and weights fall on a single model.
    mixture : {"trajectory", "dirac"}, default="trajectory"
        Which models count: all that were kept of each search, or the best one of each.
    validation_fraction : float, default=0.1
        Share of the samples on which the variance of the noise is estimated (Eq. 28), by a
        copy of the model trained on the others. The model itself is trained on all. The
        estimate from n samples is uncertain by a factor of about ``1 + sqrt(2 / n)``.
    noise_variance : float, default=None
        Variance of the noise, in squared units of the target, if it is known. Without it that
        of a frozen model is its mean squared error on the samples given to `fit`: too small
        if the model fits them closely.
    search, pool, pool_shares, parameters, n_steps, c0, eta, update_every, gamma, \
learning_rate, learning_rate_decay, prior_precision, temperature, train_batch_size, batch_size, \
device, n_jobs, random_state, verbose
        As in `QUAMClassifier`. With search="pointwise" and "auto", the penalty goes from 20 to
        2,500: a displacement pulls with the same force at any distance, and a penalty that ends
        at the number of samples lets it run too far. `gamma` is compared with Gaussian negative
        log-likelihoods. On a pool, models are pulled two standard deviations of the target up and
        down, linear models also in opposite ways on the two sides of planes.

    Attributes
    ----------
    model_ : skuq.models.AdoptedModel or skuq.models.EstimatorModel
        The questioned model.
    noise_variance_ : float or None
        Variance of the noise, in squared units of the target; None if it is learned.
    reference_loss_ : float
        Mean negative log-likelihood of the training data, in nats (L_ref).
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Quantities are in nats. "selected": aleatoric = differential entropy of the given model,
    epistemic = expected KL divergence of candidate models from it. "expected": aleatoric =
    expected differential entropy, epistemic = expected KL divergence of the average model, a
    mixture, from the candidates (by quadrature). The total is the sum. Differential entropies
    depend on the unit of the target and may be negative; the epistemic part does neither.

    In print, Eq. 24 lacks the factor 1/2 of ``log(2 pi)`` and the last line of Eq. 29 the
    factor 1/2 of the squared distance; here they are as they follow from Eq. 23 and 25.

    With the attack "divergence", each search starts 0.01 standard deviations of the noise off
    the given model, where the divergence has a gradient, by way of the bias of the output
    layer. If that bias does not exist or does not move, the search starts at the model and its
    attack takes the displacement for that much larger. A model on the wrong side is drawn to
    the right one.

    The epistemic part is an importance sampling estimate over the models that the searches
    met, not over the whole posterior: it is comparable only between runs with the same
    settings. With learned noise the divergence grows without bound as a candidate's variance
    goes to 0; such models may dominate "selected" far from the data.

    References
    ----------
    Schweighofer, Aichberger, Ielanskyi, Klambauer, Hochreiter, "Quantification of Uncertainty
    with Adversarial Models", NeurIPS 2023, Appendices B.1.3 and C.1.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import QUAMRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(100, 1))
    >>> y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=100)
    >>> quam = QUAMRegressor(n_steps=20, random_state=0).fit(X, y)
    >>> u = quam.predict_uncertainty([[0.0], [4.0]])
    >>> bool(u.epistemic[1] > u.epistemic[0])
    True
    """

    estimator: Any = field(default=None, kw_only=False)
    noise: str = "homoscedastic"
    attack: str = "displacement"
    validation_fraction: float = 0.1
    noise_variance: float | None = None

    # A displacement pulls with the same force at any distance: a penalty that ends at the number
    # of samples would let it run too far.
    _automatic: ClassVar[dict[str, Automatic]] = {
        "pointwise": Automatic(n_steps=100, c0=20.0, growth=125.0, decay=1.0, batch_size=256),
        "pool": POOL,
    }
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": "no_validation",
        "noise": [StrOptions({"homoscedastic", "learned"})],
        "attack": [StrOptions({"displacement", "divergence"})],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "noise_variance": [Interval(Real, 0, None, closed="neither"), None],
        **SearchParameters._parameter_constraints,
    }
    signed_uncertainty = True  # a differential entropy

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: Any = None, X_pool: Any = None) -> QUAMRegressor:
        """Train the model or take over a frozen one, and search adversarial models on a pool.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, ...)
            Training inputs.
        y : array-like of shape (n_samples,)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples in all losses; 0 leaves a sample out.
        X_pool : array-like of shape (n_pool, n_features) or (n_pool, ...), default=None
            Inputs, without targets, on which adversarial models are searched. None makes a pool
            from the training inputs (see `pool`). Not used with search="pointwise".

        Returns
        -------
        QUAMRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If the data are not finite numbers, there is more than one target or no sample of
            positive weight, the model does not have the outputs that `noise` asks for, or the
            noise has no variance.
        TypeError
            If `estimator` cannot be adopted.
        """
        if self.noise == "learned" and self.noise_variance is not None:
            raise ValueError("`noise_variance` can only be given with noise='homoscedastic'.")
        random = check_random_state(self.random_state)
        fit_seed, search_seed = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        X, y, sample_weight = self._validate_samples(X, y, sample_weight)
        X_pool = None if X_pool is None else self._checked_pool(X_pool)
        fit = self._fit_model(fit_seed)
        model = fit(self.estimator, X, y, sample_weight=sample_weight)
        variance = self.noise_variance
        if self.noise != "learned" and variance is None:
            variance = estimate_noise(
                self.estimator,
                X,
                y,
                sample_weight=sample_weight,
                fraction=self.validation_fraction,
                seed=fit_seed,
                fit=fit,
            )
        self.model_, self.noise_variance_ = model, variance
        inputs = model.inputs(X)
        losses = self._loss(self._outputs(inputs), y)
        weight = np.ones_like(y) if sample_weight is None else sample_weight
        self.reference_loss_ = mean_loss(losses, weight)
        self._spread = float(np.sqrt(np.cov(y, aweights=weight))) if len(y) > 1 else 1.0
        if self._refits:
            self._problem = self._refit_problem(X, y, weight, None, search_seed)
        else:
            self._problem = self._search_problem(inputs, y, weight, losses, search_seed)
        self._search_of_fit(X, X_pool, search_seed)
        return self

    def _fit_model(self, seed: int) -> Callable[..., Any]:
        """Function that trains or adopts the model."""
        if not self._refits:
            n_outputs = 1 + (self.noise == "learned")
            device = resolve_device(self.device)
            return partial(fit_or_adopt_regressor, n_outputs=n_outputs, seed=seed, device=device)
        if self.noise == "learned":
            raise ValueError("noise='learned' needs a network with two outputs.")
        return partial(fit_or_take, seed=seed)

    def _search_problem(
        self, inputs: Tensor, y: FloatArray, weight: FloatArray, losses: FloatArray, seed: int
    ) -> FittedSearch:
        fitted = prepare_search(
            self.model_.module,
            self._subnetwork(),
            inputs,
            y,
            weight=weight,
            losses=losses,
            seed=seed,
            device=resolve_device(self.device),
        )
        problem = fitted.problem
        self._bias = output_bias(problem.module, problem.parameters, torch.tensor(problem.X[:1024]))
        return fitted

    def _sought(self, reference: Tensor) -> IntArray:
        return np.array(DIRECTIONS)

    def _objective(self, reference: Tensor, sought: IntArray) -> Callable[[Tensor], Objective]:
        return lambda rows: regression_objective(
            reference[rows],
            attack=self.attack,
            noise_variance=self.noise_variance_,
            bias=self._bias,
            limit=_PULL * self._spread,  # inputs far out would outweigh all others
        )

    def _searched(self, reference: FloatArray) -> IntArray:
        """Inputs for which the model predicts what targets could be, if only just.

        Powers and exponentials grow out of all proportion where inputs are far: targets near such
        predictions would outweigh all others.
        """
        assert isinstance(self._problem, RefitProblem)
        y = self._problem.y
        beyond = np.maximum(y.min() - reference[:, 0], reference[:, 0] - y.max())
        near = np.flatnonzero(beyond <= _REACH * np.ptp(y))
        return near if len(near) > 1 else super()._searched(reference)

    def _wanted(self, pool: Any, reference: FloatArray, sought: IntArray) -> list[NDArray[Any]]:
        assert isinstance(self._problem, RefitProblem)
        pull = _PULL * self._spread * split_signs(self._problem, pool)
        # What is never negative, such as counts and prices, may have a loss that refuses it.
        lowest = self._problem.y.min() / 10
        lowest = -np.inf if lowest < 0 else lowest
        return [np.maximum(reference[:, 0] + sign * pull, lowest) for sign in sought]

    def _loss(self, outputs: Tensor, y: NDArray[Any]) -> FloatArray:
        losses: FloatArray = gaussian_loss(outputs, torch.tensor(y), self.noise_variance_).numpy()
        return losses

    def _validate_samples(
        self, X: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, FloatArray, FloatArray | None]:
        """Checked samples, without those of weight 0."""
        X, y = self._validate_training_data(X, y)
        y = check_array(y, dtype=np.float64, ensure_2d=False, input_name="y")
        if sample_weight is None:
            return X, y, None
        weight = checked_weights(sample_weight, y)
        kept = np.flatnonzero(weight)
        return _safe_indexing(X, kept), y[kept], weight[kept]

    def predict(self, X: Any) -> FloatArray:
        """Predict the mean that the given model expects.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples,), float64
            Predictions, in units of the target.
        """
        return self._outputs(self._validated_inputs(X))[:, 0].numpy()

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Measure how adversarial models disagree about each input.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        Uncertainty
            Total, aleatoric and epistemic part in nats, each of shape (n_samples,); all but
            the last may be negative.

        Raises
        ------
        ValueError
            If `X` does not fit the training data, or a search diverges.
        """
        return Uncertainty.from_parts(*self._over(X, estimate_uncertainty))

    def predict_model_std(self, X: Any) -> FloatArray:
        """Measure how far the means of adversarial models spread at each input.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples,), float64
            Weighted standard deviation of the models' means, in units of the target, about
            the given model's mean if the setting is "selected", about their average if it is
            "expected". The epistemic part alone: the noise is not in it.

        Raises
        ------
        ValueError
            If `X` does not fit the training data, or a search diverges.
        """
        (spread,) = self._over(X, estimate_spread)
        return spread

    def _over(self, X: Any, estimate: Callable[..., Any]) -> list[NDArray[Any]]:
        """An estimate over the models met for each input."""
        pooled = self.search == "pool"
        parts = self._pieces(X) if pooled else self._batches_of(X)
        arguments = estimate, self._importance_sampling(), self.noise_variance_
        if pooled:
            return self._run(reduce_piece, parts, _estimate_over_pool, *arguments)
        return self._run(_estimate_over_batch, parts, *arguments)

    def adversarial_models(self, X: Any) -> AdversarialRegressors:
        """Tell which adversarial model contradicts the given one most, input by input.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        AdversarialRegressors
            Predictions, divergences and training losses of the most divergent model that
            fits the training data within `gamma`, for each input, upward and downward.

        Raises
        ------
        ValueError
            If `X` does not fit the training data, or a search diverges.
        """
        if self.search == "pool":
            arrays = self._run(
                reduce_piece, self._pieces(X), _best_of_pool, self.gamma, self.noise_variance_
            )
        else:
            arrays = self._run(_best_models, self._batches_of(X), self.gamma)
        return AdversarialRegressors(*arrays)

    def _batches_of(self, X: Any) -> list[_Batch]:
        """Test points in the batches that are searched together."""
        problem, settings = self._point_search()
        inputs = self._validated_inputs(X)
        return [
            _Batch(problem, settings, x, reference, self.attack, self.noise_variance_, self._bias)
            for x, reference in self._batches(inputs, self._outputs(inputs))
        ]


class _Batch(NamedTuple):
    """A batch of test points, with all that a process needs to search for it."""

    problem: SearchProblem
    settings: SearchSettings
    x: NDArray[Any]
    reference: NDArray[Any]  # (n_points, n_outputs)
    attack: str
    noise_variance: float | None
    bias: OutputBias | None

    def search(self) -> tuple[Tensor, Trajectories]:
        """The reference model's outputs, and the models met."""
        reference = torch.tensor(self.reference, device=self.settings.device)
        objective = regression_objective(
            reference, attack=self.attack, noise_variance=self.noise_variance, bias=self.bias
        )
        return reference, search_batch(self.problem, self.settings, self.x, objective)


def _estimate_over_batch(
    batch: _Batch, estimate: Callable[..., Any], sampling: ImportanceSampling, noise: float | None
) -> list[NDArray[Any]]:
    """An estimate for a batch; trajectories never leave the process."""
    return [*np.atleast_2d(estimate(*batch.search(), sampling, noise_variance=noise))]


def _estimate_over_pool(
    met: Met, estimate: Callable[..., Any], sampling: ImportanceSampling, noise: float | None
) -> list[NDArray[Any]]:
    reference = met.reference
    if sampling.setting == "expected" and met.centre is not None:
        reference = met.centre
    return [*np.atleast_2d(estimate(reference, met.models, sampling, noise_variance=noise))]


def _best_models(batch: _Batch, gamma: float) -> AdversarialRegressors:
    """The best adversarial model of each search of a batch."""
    return best_adversarial_regressors(*batch.search(), gamma, noise_variance=batch.noise_variance)


def _best_of_pool(met: Met, gamma: float, noise: float | None) -> AdversarialRegressors:
    reference, models, _ = met
    return best_adversarial_regressors(reference, models, gamma, noise_variance=noise)
