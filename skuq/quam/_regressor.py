"""QUAM for regression, as a scikit-learn estimator."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context
from sklearn.utils import _safe_indexing, check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor

from skuq.base import FloatArray, Uncertainty, UncertaintyMixin
from skuq.information import Decomposition
from skuq.models import AdoptedInputsMixin, fit_or_adopt_regressor, resolve_device
from skuq.quam._importance_sampling import ImportanceSampling
from skuq.quam._noise import estimate_noise
from skuq.quam._regression_objectives import (
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
from skuq.quam._search_parameters import SearchParameters
from skuq.quam._search_problem import SearchProblem, SearchSettings, prepare_search
from skuq.quam._subnetwork import OutputBias, output_bias


@dataclass(kw_only=True, eq=False, repr=False)
class QUAMRegressor(
    SearchParameters, AdoptedInputsMixin, RegressorMixin, UncertaintyMixin, BaseEstimator
):
    """Regressor whose uncertainty comes from a search for adversarial models.

    A model is a normal distribution of the target. For every test point two *adversarial
    models* are searched: models that explain the training data about as well as the fitted
    one, but predict more, or less. Where they are easily found, the prediction is not
    supported by the data and the epistemic uncertainty is large.

    Parameters
    ----------
    estimator : object, default=None
        The model to question. None trains a network with one hidden layer of 100 units
        (scale the features before; the target is standardised inside). A skorch net, an
        `MLPRegressor`, or a pipeline that ends in one, is cloned and trained. A fitted model
        of these kinds wrapped in `sklearn.frozen.FrozenEstimator`, or a `torch.nn.Module`, is
        taken as it is and never altered; `fit` then needs the data that it was trained on.
        Step sizes are relative to the weights, the bias of the output among them, so train
        such models on a target of about zero mean.
    noise : {"homoscedastic", "learned"}, default="homoscedastic"
        "homoscedastic": the network has one output, the mean; the noise has one variance,
        the same for all inputs and models (Eq. 29). "learned": it has two outputs, mean and
        log variance; the default network learns them by maximum likelihood. Such models are
        more easily spoilt than others: take a `learning_rate` of about 0.02.
    setting : {"selected", "expected"}, default="selected"
        Whose uncertainty is meant: that of the given model (Eq. 27), or that of all models
        that explain the data (Eq. 26).
    attack : {"displacement", "divergence"}, default="displacement"
        What the searches want at the test point, besides a small training loss:
        "displacement" of the mean, in standard deviations of the noise, or "divergence", half
        its square (Eq. 25), as in the paper. The most divergent models are the same, but the
        square outruns the penalty where data are far: searches then leave what is plausible,
        and weights fall on a single model.
    mixture : {"trajectory", "dirac"}, default="trajectory"
        Which models count: all that the searches met, or the best one of each search.
    validation_fraction : float, default=0.1
        Share of the samples on which the variance of the noise is estimated (Eq. 28), by a
        copy of the model trained on the others. The model itself is trained on all. The
        estimate from n samples is uncertain by a factor of about ``1 + sqrt(2 / n)``.
    noise_variance : float, default=None
        Variance of the noise, in squared units of the target, if it is known. Without it that
        of a frozen model is its mean squared error on the samples given to `fit`: too small
        if the model fits them closely.
    parameters, n_steps, c0, eta, update_every, gamma, learning_rate, learning_rate_decay, \
prior_precision, temperature, train_batch_size, batch_size, device, n_jobs, random_state, verbose
        As in `QUAMClassifier`, but with a penalty from 20 to 2,600 by default: a displacement
        pulls with the same force at any distance, and a penalty that ends at the number of
        samples ("auto") lets it run too far. `gamma` is compared with Gaussian negative
        log-likelihoods, and each point takes 4 * 2 copies of the weights that move.

    Attributes
    ----------
    model_ : skuq.models.AdoptedModel
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
    c0: float | str = 20.0
    eta: float | str = 1.05

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
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> QUAMRegressor:
        """Train the model, or take over a frozen one, and keep the training data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, ...)
            Training inputs.
        y : array-like of shape (n_samples,)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples in all losses; 0 leaves a sample out.

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
        device = resolve_device(self.device)
        random = check_random_state(self.random_state)
        fit_seed, search_seed = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        X, y, sample_weight = self._validate_samples(X, y, sample_weight)
        training = {"sample_weight": sample_weight, "seed": fit_seed, "device": device}
        learned = self.noise == "learned"
        model = fit_or_adopt_regressor(self.estimator, X, y, n_outputs=1 + learned, **training)
        variance = self.noise_variance
        if not learned and variance is None:
            variance = estimate_noise(
                self.estimator, X, y, fraction=self.validation_fraction, **training
            )
        self.model_, self.noise_variance_ = model, variance
        inputs = model.inputs(X)
        losses = gaussian_loss(self._outputs(inputs), torch.tensor(y), variance).numpy()
        weight = np.ones_like(y) if sample_weight is None else sample_weight
        self._search = prepare_search(
            model.module,
            self.parameters,
            inputs,
            y,
            weight=weight,
            losses=losses,
            seed=search_seed,
            device=device,
        )
        self.reference_loss_ = self._search.mean_loss
        problem = self._search.problem
        self._bias = output_bias(problem.module, problem.parameters, torch.tensor(problem.X[:1024]))
        return self

    def _validate_samples(
        self, X: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, FloatArray, FloatArray | None]:
        """Checked samples, without those of weight 0."""
        X, y = self._validate_training_data(X, y)
        y = check_array(y, dtype=np.float64, ensure_2d=False, input_name="y")
        if sample_weight is None:
            return X, y, None
        weight = _check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("`sample_weight` is 0 for all samples; at least one must count.")
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
        """Search adversarial models for each input and measure how they disagree.

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
        batches = self._batches_of(X)
        sampling = self._importance_sampling(self._search.problem)
        return Uncertainty.from_parts(*self._run(_estimate_uncertainty, batches, sampling))

    def predict_model_std(self, X: Any) -> FloatArray:
        """Search adversarial models for each input and measure how far their means spread.

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
        batches = self._batches_of(X)
        sampling = self._importance_sampling(self._search.problem)
        (spread,) = self._run(_estimate_spread, batches, sampling)
        return spread

    def adversarial_models(self, X: Any) -> AdversarialRegressors:
        """Search adversarial models for each input and return the best one per direction.

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
        batches = self._batches_of(X)
        return AdversarialRegressors(*self._run(_best_models, batches, self.gamma))

    def _batches_of(self, X: Any) -> list[_Batch]:
        """Test points in the batches that are searched together."""
        check_is_fitted(self)
        self._validate_params()  # they may have been set after `fit`
        inputs = self._validated_inputs(X)
        problem = self._search.problem
        settings = self._settings(problem)
        return [
            _Batch(problem, settings, x, reference, self.attack, self.noise_variance_, self._bias)
            for x, reference in self._batches(self._search, inputs, self._outputs(inputs))
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


def _estimate_uncertainty(batch: _Batch, sampling: ImportanceSampling) -> Decomposition:
    """Aleatoric and epistemic part of a batch; trajectories never leave the process."""
    return estimate_uncertainty(*batch.search(), sampling, noise_variance=batch.noise_variance)


def _estimate_spread(batch: _Batch, sampling: ImportanceSampling) -> tuple[FloatArray]:
    """Standard deviation of the means of a batch."""
    return (estimate_spread(*batch.search(), sampling, noise_variance=batch.noise_variance),)


def _best_models(batch: _Batch, gamma: float) -> AdversarialRegressors:
    """The best adversarial model of each search of a batch."""
    return best_adversarial_regressors(*batch.search(), gamma, noise_variance=batch.noise_variance)
