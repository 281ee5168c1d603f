"""QUAM for regression, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context, clone
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from skuq._information import gaussian_entropy
from skuq.base import (
    FloatArray,
    IntArray,
    PredictionInterval,
    Uncertainty,
    UncertaintyMixin,
    with_index_of,
)
from skuq.devices import with_gradients
from skuq.files import stored
from skuq.models import Given, Model, TrainingData, fit_model
from skuq.quam._base import KEPT, PARAMETERS, QUAMBase
from skuq.quam._importance_sampling import AdversarialRegressors, gaussians
from skuq.quam._search import Regression, Setup, mean_loss
from skuq.quantities import check_coverage, checked_levels
from skuq.residuals import LEVELS, RowNoise, stretched, widened
from skuq.sklearn_counterparts import fold_splits
from skuq.validation import refuse_ineffective


@stored(
    "quam.regressor", fields=KEPT | {"noise_variance_": float | None, "_noise": RowNoise | None}
)
@dataclass(repr=False, eq=False, kw_only=True)
class QUAMRegressor(QUAMBase, RegressorMixin, UncertaintyMixin, BaseEstimator):
    """Regressor whose uncertainty comes from a search for adversarial models.

    A model predicts a normal distribution of the target. *Adversarial models* explain the training
    data about as well as the fitted model, but predict higher values, or lower values, for some
    other inputs. One search is for higher predictions, and one for lower predictions. If such
    models are found for an input, the data do not determine the prediction, and its epistemic
    uncertainty is large.

    Parameters
    ----------
    estimator : object, default=None
        The model to analyse. None trains a network with one hidden layer of 100 units
        (scale the features first; the target is standardised internally). Any regressor
        (boosted trees, forests, linear models, nearest neighbours and others), a skorch net, an
        `MLPRegressor`, or a pipeline that ends in one of these, is cloned and trained. A fitted
        model wrapped in `sklearn.frozen.FrozenEstimator`, or a `torch.nn.Module`, is used without
        retraining and never altered; pass the data on which this model was trained to `fit`. Train
        networks on a target with a mean of about zero: otherwise, the output bias is large, and so
        are the steps by which a search changes it, because steps are proportional to the weights.
    noise : {"heteroscedastic", "homoscedastic", "learned"} or float, default="heteroscedastic"
        "heteroscedastic": the model predicts the mean; from cross-validated residuals, a forest
        learns a noise distribution of any shape for each input, the same for all adversarial
        models. "homoscedastic": one noise variance is estimated for all inputs and models, as in
        the paper (Eq. 29). A float: the known noise variance, in squared units of the target.
        "learned": the network has two outputs, mean and log variance, which the default network
        learns by maximum likelihood. Searches of such networks diverge more easily: set the
        `learning_rate` of the search to about 0.02.
    setting : {"expected", "selected", "pairwise"}, default="expected"
        Definition of the uncertainty. "expected": uncertainty of the average of all models that
        explain the data (Eq. 26). "selected": uncertainty of the given model (Eq. 27). "pairwise":
        uncertainty of one model drawn at random, compared with each of the other models.
    attack : {"displacement", "divergence"}, default="displacement"
        Quantity that searches increase at the test point, while a penalty keeps the training loss
        small: "displacement" of the mean, in standard deviations of the noise, or "divergence",
        half the square of the displacement (Eq. 25), as in the paper. Both rank models in the same
        order. Far from the data, however, the square grows faster than the penalty, so searches end
        at implausible models, and one model gets all the weight. Only networks use this parameter.
    noise_cv : int, cross-validation generator or iterable, default=5
        Cross-validation by which the noise is estimated: copies of the model predict held-out
        samples, and the noise is estimated from the errors (Eq. 28). An integer is the number of
        random folds. The model itself is trained on all samples. For a frozen model, the noise is
        estimated from errors on the samples passed to `fit`; if the model overfits these samples,
        the estimate is too small.
    search, mixture, gamma, temperature, device, n_jobs, random_state, verbose
        As in `QUAMClassifier`. The training loss, which `gamma` limits, is the Gaussian negative
        log-likelihood. On a pool, one search moves predictions up by two standard deviations of the
        target, and one moves predictions down. Linear models are also refitted to move predictions
        up on one side of a plane through the pool, and down on the other side.

    Attributes
    ----------
    noise_variance_ : float or None
        Noise variance, averaged over all inputs, in squared units of the target; None with
        noise="learned".
    reference_loss_ : float
        Mean negative log-likelihood of the training data, in nats (L_ref).
    model_, search_, n_features_in_, feature_names_in_
        As in `QUAMClassifier`.

    Notes
    -----
    Uncertainties are in nats. "selected": aleatoric = differential entropy of the given model,
    epistemic = expected KL divergence between the given model and the models found. "expected":
    aleatoric = expected differential entropy, epistemic = expected KL(single model, average of
    all models), by quadrature. "pairwise": aleatoric = expected differential entropy, epistemic =
    expected KL divergence of pairs of models (in closed form). The total is the sum of the
    aleatoric and the epistemic part. Differential entropies depend on the unit of the target and
    may be negative; the epistemic part does not depend on the unit and is never negative.

    As printed in the paper, Eq. 24 lacks the factor 1/2 of ``log(2 pi)``, and the last line of
    Eq. 29 lacks the factor 1/2 of the squared distance. This code follows Eq. 23 and 25, from which
    Eq. 24 and 29 are derived.

    With attack="divergence", the gradient at the given model is zero. Each search therefore starts
    at a displacement of 0.01 standard deviations of the noise, by a change of the output layer's
    bias. If this bias is not searched, the displacement is added to predictions in the attack.
    Models whose mean is displaced in the wrong direction are moved back by the gradient.

    The epistemic part is an estimate, as in `QUAMClassifier`. With learned noise, the divergence
    of a model has no bound as its variance approaches 0; such models may dominate "selected" and
    "pairwise" far from the data.

    References
    ----------
    Schweighofer, Aichberger, Ielanskyi, Klambauer, Hochreiter, "Quantification of Uncertainty
    with Adversarial Models", NeurIPS 2023, Appendices B.1.3 and C.1. Setting "pairwise":
    Schweighofer, Aichberger, Ielanskyi, Hochreiter, "On Information-Theoretic Measures of
    Predictive Uncertainty", UAI 2025.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import QUAMRegressor
    >>> from skuq.quam import PoolSearch
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(100, 1))
    >>> y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=100)
    >>> quam = QUAMRegressor(search=PoolSearch(n_steps=20), random_state=0).fit(X, y)
    >>> u = quam.predict_uncertainty([[0.0], [4.0]])
    >>> bool(u.epistemic[1] > u.epistemic[0])
    True
    """

    noise: str | float = "heteroscedastic"
    noise_cv: Any = 5
    attack: str = "displacement"

    _unit_of_uncertainty = "differential entropy"
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **PARAMETERS,
        "noise": [
            StrOptions({"heteroscedastic", "homoscedastic", "learned"}),
            Interval(Real, 0, None, closed="neither"),
        ],
        "attack": [StrOptions({"displacement", "divergence"})],
        "noise_cv": ["cv_object"],
    }
    signed_uncertainty = True  # a differential entropy can be negative
    _noise: RowNoise | None = field(init=False)
    _default_is_pool = True

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, X_pool: Any = None, groups: Any = None
    ) -> QUAMRegressor:
        """Train the model (unless it is frozen), and search on a pool if the search needs a pool.

        Parameters
        ----------
        X, y : array-like of shape (n_samples, n_features) or (n_samples, ...), and (n_samples,)
            Training inputs, and targets.
        sample_weight, X_pool, groups
            As in `QUAMClassifier.fit`.

        Raises
        ------
        ValueError, TypeError, MemoryError
            As in `QUAMClassifier.fit`; also if there is more than one target, if the model does not
            have the outputs that `noise` needs, or if the estimated noise variance is zero.
        """
        random = check_random_state(self.random_state)
        fit_seed, search_seed = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        n_outputs = 1 + (self.noise == "learned")
        training: dict[str, Any] = {"regression": True, "n_outputs": n_outputs, "seed": fit_seed}
        data, sample_weight = self._prepared(X, y, sample_weight, X_pool, groups, **training)
        self._noise = None
        variance: float | None = None
        if self.noise in ("heteroscedastic", "homoscedastic"):
            as_learner = self.search_.form == "learner"
            fit = partial(fit_model, as_learner=as_learner, device=self.device, **training)
            variance = self._estimated_noise(data, sample_weight, fit, fit_seed)
        elif self.noise != "learned":
            variance = float(self.noise)
        self.noise_variance_ = variance
        y, weight = data.labels, data.weight
        target_std = _standard_deviation(y, weight) if len(y) > 1 else 1.0
        self._task = Regression(self.attack, variance, target_std)
        losses = self._task.loss(self._outputs(data.inputs), y)
        self.reference_loss_ = mean_loss(losses, weight)
        setup = Setup(losses, self._task, search_seed, self._device)
        self._problem = self._problem_of(data, setup)
        if hasattr(self._problem, "problem"):  # the search is a gradient search
            self._task = replace(self._task, bias=self._problem.problem.output_bias())
        self._search(data, search_seed)
        return self

    def _present_task(self) -> Regression:
        return replace(self._task, attack=self.attack)

    def _refuse_ineffective(self, given: Given) -> None:
        quadratic = hasattr(self.search_, "curvature")
        if self.search_.form == "network":
            reason = "on a regressor, whose searches are for higher and lower predictions."
            names = {"effort", "targeted"} & {*self.search_.get_params()}
            refuse_ineffective(self.search_, sorted(names), reason)
        elif self.noise == "learned":
            raise ValueError(
                "noise='learned' needs a network with two outputs, but search='refit' is not for "
                "networks; set `noise` to 'heteroscedastic', 'homoscedastic' or a known variance."
            )
        if quadratic or self.search_.form == "learner":
            reason = "on this search; it is for search='pool' and 'pointwise'."
            refuse_ineffective(self, ["attack"], reason)
        if self.noise not in ("heteroscedastic", "homoscedastic"):
            reason = "unless noise is 'heteroscedastic' or 'homoscedastic'."
            refuse_ineffective(self, ["noise_cv"], reason)
        elif given.is_prefit:
            reason = "on a frozen model, which is not retrained for the folds."
            refuse_ineffective(self, ["noise_cv"], reason)

    def _estimated_noise(
        self, data: TrainingData, sample_weight: Any, fit: Callable[..., Model], seed: int
    ) -> float:
        """Estimate the noise variance (Eq. 28); also fit `_noise` if the noise varies by input."""
        y, counts = data.labels, np.flatnonzero(data.weight)
        predicted = np.asarray(self._outputs(data.inputs), np.float64)[:, 0]
        if not data.given.is_prefit:
            predicted = np.full(len(y), np.nan)
            # Train a clone, because a fitted `self.estimator` would warn again of its retraining.
            twin = None if self.estimator is None else clone(self.estimator)
            for rows, held_out in self._folds(y, counts, data.groups, seed):
                given = None if sample_weight is None else data.weight[rows]
                model = fit(twin, _safe_indexing(data.X, rows), y[rows], sample_weight=given)
                inputs = model.inputs(_safe_indexing(data.X, held_out))
                predicted[held_out] = np.asarray(model.outputs(inputs), np.float64)[:, 0]
            counts = counts[~np.isnan(predicted[counts])]
        weight, residuals = data.weight[counts], (y - predicted)[counts]
        variance = float(np.average(residuals**2, weights=weight))
        if variance == 0:
            raise ValueError(
                "The noise variance cannot be estimated, because the model's errors are all zero; "
                "pass the variance to the estimator as `noise`."
            )
        if self.noise == "heteroscedastic":
            inputs, predicted = _safe_indexing(data.inputs, counts), predicted[counts]
            codes = None if data.groups is None else data.groups[counts]
            work: dict[str, Any] = {"codes": codes, "seed": seed, "n_jobs": self.n_jobs}
            self._noise = RowNoise.fit(inputs, predicted, residuals, weight, **work)
        return variance

    def _folds(
        self, y: FloatArray, counts: IntArray, groups: IntArray | None, seed: int
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield training and held-out samples of each fold, without samples of weight 0."""
        if not isinstance(self.noise_cv, Integral):
            for train, test in check_cv(self.noise_cv, y).split(np.zeros(len(y)), y, groups):
                yield np.intersect1d(train, counts), np.intersect1d(test, counts)
            return
        if len(counts) < 2:
            raise ValueError(
                "The noise variance cannot be estimated from 1 sample; pass it as `noise`."
            )
        n_folds: Any = min(self.noise_cv, len(counts))
        codes = None if groups is None else groups[counts]
        for train, test in fold_splits(n_folds, y[counts], codes, stratify=False, seed=seed):
            yield counts[train], counts[test]

    def predict(self, X: Any) -> FloatArray:
        """Predict the mean of the target with the given model, (n_samples,)."""
        means: FloatArray = np.asarray(self._outputs(self._inputs(X))[:, 0])
        return means

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Predict the uncertainty of each input from the disagreement of the adversarial models.

        The parts are in nats, each of shape (n_samples,); total and aleatoric may be negative.
        """
        sampling = self._importance_sampling()
        aleatoric, epistemic, predicted = self._over(X, self._task.uncertainty, sampling)
        if self._noise is not None:
            aleatoric = gaussian_entropy(self._noise.variance(self._inputs(X), predicted))
        return with_index_of(X, Uncertainty.from_parts(aleatoric, self._measured(epistemic)))

    def predict_model_std(self, X: Any) -> FloatArray:
        """Measure the spread of the adversarial models' means at each input.

        Returns
        -------
        ndarray of shape (n_samples,), float64
            Weighted standard deviation of the models' means, in units of the target, without the
            noise. If the setting is "selected", it is computed around the given model's mean
            instead of the average of the models' means.
        """
        sampling = self._importance_sampling()
        (spread,) = self._over(X, self._task.spread, sampling)
        return spread if self._measured(spread) is not None else np.full_like(spread, np.nan)

    def predict_quantiles(
        self, X: Any, levels: ArrayLike | None = None, *, model_std: ArrayLike | None = None
    ) -> FloatArray:
        """Predict quantiles of the target, widened by the disagreement of the models.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        levels : array-like of shape (n_levels,), default=None
            Levels between 0 and 1, in ascending order; None means 25 levels from 0.005 to 0.995.
        model_std : array-like of shape (n_samples,), default=None
            Result of `predict_model_std` for these inputs; None computes it.

        Returns
        -------
        ndarray of shape (n_samples, n_levels), float64
            Quantiles, in units of the target.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.linear_model import Ridge
        >>> from skuq import QUAMRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(size=(500, 1))
        >>> y = X[:, 0] * (3 + rng.normal(size=500))
        >>> quam = QUAMRegressor(Ridge(), random_state=0).fit(X, y)
        >>> (low, *_, high) = quam.predict_quantiles([[0.1], [0.9]], [0.05, 0.5, 0.95]).T
        >>> bool((high - low)[1] > 2 * (high - low)[0])
        True
        """
        levels = LEVELS if levels is None else checked_levels(levels)
        std = self.predict_model_std(X) if model_std is None else np.asarray(model_std, np.float64)
        inputs = self._inputs(X)
        outputs = np.asarray(self._outputs(inputs), np.float64)
        mean = outputs[:, 0]
        if self._noise is not None:
            quantiles = self._noise.quantiles(inputs, mean, np.append(levels, 0.5))
            quantiles, median = quantiles[:, :-1], quantiles[:, -1]
        else:
            noise_std = np.sqrt(gaussians(outputs, self.noise_variance_).variance)
            quantiles, median = np.outer(noise_std, ndtri(levels)), np.zeros(len(mean))
        return mean[:, None] + widened(quantiles, median, levels, std)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> PredictionInterval:
        """Predict an interval that contains the target of each input with a given probability.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        coverage : float, default=0.9
            Probability that the interval contains the target, between 0 and 1.

        Returns
        -------
        PredictionInterval
            Endpoints of the intervals, in units of the target.

        Notes
        -----
        With heteroscedastic noise, widths are calibrated on the cross-validated residuals, with
        out-of-bag predictions of the forest that models the noise. The coverage is not guaranteed;
        `skuq.tables.TableModel` holds out rows, and thus guarantees the coverage for any model.
        """
        check_coverage(coverage)
        tail = (1 - coverage) / 2
        lower, upper = self.predict_quantiles(X, [tail, 1 - tail]).T
        if self._noise is not None:
            lower, upper = stretched(lower, upper, self._noise.limit(coverage))
        return PredictionInterval(lower, upper)

    def adversarial_models(self, X: Any) -> AdversarialRegressors:
        """Return, for each input, the best adversarial models with a higher and a lower mean.

        Each diverges most from the given model among models of its search whose excess loss is at
        most `gamma`.
        """
        check_is_fitted(self)
        return AdversarialRegressors(*self._over(X, self._task.best_models, self.gamma))


def _standard_deviation(y: FloatArray, weight: FloatArray) -> float:
    n_samples = weight.sum()
    variance = np.cov(y, aweights=weight, ddof=0)
    # Bessel's correction n / (n - 1), but at most 2, which is its value for two samples.
    return float(np.sqrt(variance * n_samples / max(n_samples - 1, n_samples / 2)))
