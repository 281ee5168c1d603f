"""Regression with anchored quantile networks: aleatoric and epistemic variance for tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils.validation import check_is_fitted

from skuq._networks import TrainingSettings, evaluate, moved, resolve_device, seeded, train
from skuq.base import FloatArray, PredictionInterval, Uncertainty, UncertaintyMixin, with_index_of
from skuq.devices import with_gradients
from skuq.quantities import check_coverage
from skuq.residuals import interpolated, widened
from skuq.uadqn._networks import ACTIVATIONS, AnchoredLoss, QuantileNetworks
from skuq.uadqn._quantiles import aleatoric_variance, epistemic_variance, quantile_levels
from skuq.validation import checked_widths, refuse_ineffective, training_weights, validate_data

# Inputs of the networks are scaled to the standard deviation INPUT_SCALE / (number of varying
# features). With more features, samples are sparser; smaller inputs then give smoother functions.
INPUT_SCALE = 2.0


@dataclass(repr=False, eq=False, kw_only=True)
class AnchoredQuantileRegressor(RegressorMixin, UncertaintyMixin, BaseEstimator):
    """Quantile regression with anchored networks that separates noise from lack of data.

    Several networks are trained to predict the same quantiles of the target. Each is regularised
    towards its own random initial weights, which makes it an approximate sample from the posterior.
    The epistemic part is the difference between the networks, which agree close to training data.
    The aleatoric part is the spread of the quantiles, as far as the networks agree on the spread.

    Features and targets are standardised internally; features are then divided by half the number
    of varying features. A column that is constant in training has no effect on training; any other
    value in a new sample increases the epistemic part, by an amount that depends on the unit.

    Parameters
    ----------
    n_members, n_quantiles : int, default=2 and 50
        Number of networks, and number of quantiles; both at least 2. The paper uses two networks.
    hidden_sizes : sequence of int, default=(100, 100)
        Widths of hidden layers. Narrow networks underestimate the epistemic part, because
        the errors of their quantiles are correlated.
    activation : {"tanh", "relu"}, default="tanh"
        Activation of the hidden layers. With "relu", the epistemic part grows without bound away
        from the data; use a smaller `prior_gain` then.
    noise_scale : float, default=0.25
        Assumed scale of the noise, in standard deviations of the target, for one feature. With p
        varying features, the scale is multiplied by sqrt(p), the factor by which distances between
        samples grow. The square of the scale is the strength of the regularisation towards the
        initial weights. Larger values give smoother predictions; 0 is plain quantile regression.
    prior_gain : float, default=3.0
        Gain of the networks' orthogonal initialisation. A larger gain makes the initial networks
        less smooth and more different from each other.
    max_epochs, batch_size : int, default=200 and 64
        Number of passes over the data, and number of samples per step (-1 for all samples).
    learning_rate : float, default=2e-2
        Initial learning rate of Adam, with a cosine schedule to 0.
    device, random_state, verbose
        As in `EvidentialProbe`; the seed also determines the order of batches.

    Attributes
    ----------
    networks_ : torch.nn.Module
        The trained networks; outputs, of shape (n_samples, n_members, n_quantiles), are in
        standardised units.
    quantile_levels_ : ndarray of shape (n_quantiles,), float64
        Levels (i - .5) / n_quantiles for i = 1 to n_quantiles.
    history_, n_features_in_, feature_names_in_
        `history_` has the losses of each epoch, including the regularisation, as in skorch. The
        other two are as in scikit-learn.

    Notes
    -----
    Uncertainty is a variance in squared units of the target. The aleatoric part is the covariance
    over quantiles between networks (Eq. 7), or 0 if this estimate is negative. The epistemic part
    is the variance between networks, averaged over quantiles (Eq. 4 and 6). The tails beyond the
    outermost levels are missing: for a normal distribution and 50 quantiles, the aleatoric part is
    3% below the variance. A constant target has variance 0. The coverage of quantiles is not
    guaranteed.

    References
    ----------
    Clements, Van Delft, Robaglia, Bahi Slaoui, Toth, "Estimating Risk and Uncertainty in Deep
    Reinforcement Learning", 2019, Sec. 2 and Fig. 1. Pearce, Leibfried, Brintrup, Zaki, Neely,
    "Uncertainty in Neural Networks: Approximately Bayesian Ensembling", AISTATS 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import AnchoredQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(200, 1))
    >>> y = np.where(X[:, 0] > 0, 1.0, 0.1) * rng.normal(size=200)  # noise on the right
    >>> model = AnchoredQuantileRegressor(random_state=0).fit(X, y)
    >>> u = model.predict_uncertainty([[-0.5], [0.5], [3.0]])
    >>> bool(u.aleatoric[1] > 4 * u.aleatoric[0])  # noise
    True
    >>> bool(u.epistemic[2] > 4 * u.epistemic[1])  # no data
    True
    """

    n_members: int = 2
    n_quantiles: int = 50
    hidden_sizes: Sequence[int] = (100, 100)
    activation: str = "tanh"
    noise_scale: float = 0.25
    prior_gain: float = 3.0
    max_epochs: int = 200
    batch_size: int = 64
    learning_rate: float = 2e-2
    device: str = "auto"
    random_state: Any = None
    verbose: int = 0

    _unit_of_uncertainty = "squared target"
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_members": [Interval(Integral, 2, None, closed="left")],
        "n_quantiles": [Interval(Integral, 2, None, closed="left")],
        "hidden_sizes": ["array-like"],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "noise_scale": [Interval(Real, 0, None, closed="left")],
        "prior_gain": [Interval(Real, 0, None, closed="neither")],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left"), Options(Integral, {-1})],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "device": [str, torch.device],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the networks.

        Parameters
        ----------
        X, y : array-like of shape (n_samples, n_features) and (n_samples,)
            Training inputs and targets.
        sample_weight : array-like of shape (n_samples,), default=None
            As in `EvidentialProbe.fit`. Integer weights are equivalent to repeated samples only if
            all samples are in one batch: smaller batches are drawn at random.

        Raises
        ------
        ValueError
            If the data are not finite, all weights are 0, a hidden width is not a positive
            integer, or the training diverges.
        """
        checked_widths(self.hidden_sizes)
        if not len(self.hidden_sizes):
            context = "without hidden layers; set their widths in `hidden_sizes`."
            refuse_ineffective(self, ["activation"], context)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        weight = training_weights(sample_weight, len(y))
        X, y, weight = X[weight > 0], np.asarray(y, np.float64)[weight > 0], weight[weight > 0]
        mean, spread = _mean_and_spread(X, weight)
        n_varying = max(1, int(np.count_nonzero(spread)))
        self._X_scaling = mean, np.where(spread > 0, spread, 1.0) * n_varying / INPUT_SCALE
        self._y_scaling = _mean_and_spread(y, weight)
        sizes = [X.shape[1], *self.hidden_sizes, self.n_quantiles]
        with seeded(seed):
            networks = QuantileNetworks(
                self.n_members, sizes, self.prior_gain, self.activation, n_varying=n_varying
            )
        device = resolve_device(self.device, networks)
        start = moved(networks, device)
        settings = TrainingSettings(
            learning_rate=self.learning_rate,
            max_epochs=self.max_epochs,
            batch_size=self.batch_size,
            optimizer=partial(torch.optim.Adam, fused=True),
            # With a constant learning rate, training would end at random points near the optimum.
            # The variance of these points would add to the epistemic variance.
            cosine=True,
            device=device,
            verbose=self.verbose,
        )
        trained, self.history_ = train(
            start,
            AnchoredLoss(start, self.noise_scale * n_varying**0.5, weight.sum()),
            {"inputs": _standardised(X, self._X_scaling), "weight": weight},
            _standardised(y, self._y_scaling)[:, None],
            settings=settings,
            seed=seed,
        )
        self.networks_ = trained.double()
        self.quantile_levels_ = quantile_levels(self.n_quantiles, dtype=torch.float64).numpy()
        return self

    def predict(self, X: Any) -> FloatArray:
        """Predict the mean of the target, (n_samples,): the mean over quantiles and networks."""
        return self._quantiles(X).mean(axis=(0, 2))

    def predict_quantiles(self, X: Any, levels: ArrayLike | None = None) -> FloatArray:
        """Predict sorted quantiles of the target, (n_samples, n_levels), averaged over networks.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        levels : array-like of shape (n_levels,), default=None
            Requested levels, between the lowest and the highest of `quantile_levels_`. Quantiles
            are interpolated linearly between levels. None: `quantile_levels_`.
        """
        quantiles = np.sort(self._quantiles(X).mean(axis=0), axis=-1)
        if levels is None:
            return quantiles
        asked = np.atleast_1d(np.asarray(levels, np.float64))
        return _interpolated(quantiles, self.quantile_levels_, asked)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> PredictionInterval:
        """Predict an interval for the target of each input.

        The interval lies between two quantiles and is widened where the networks disagree: the
        standard deviation between networks is added in quadrature to each quantile's distance from
        the median. The interval is not calibrated: in regions with many training samples, its
        coverage tends to exceed the requested coverage.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        coverage : float, default=0.9
            Requested coverage, between 0 and the difference of the outermost `quantile_levels_`.
        """
        check_coverage(coverage)
        tail = (1 - coverage) / 2
        levels = np.array([tail, 0.5, 1 - tail])
        networks = self._quantiles(X)
        ordered = np.sort(networks.mean(axis=0), axis=-1)
        quantiles = _interpolated(ordered, self.quantile_levels_, levels)
        std = np.sqrt(epistemic_variance(networks))
        lower, _, upper = widened(quantiles, quantiles[:, 1], levels, std).T
        return PredictionInterval(lower, upper)

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Predict the aleatoric and the epistemic variance, in squared units of the target."""
        quantiles = self._quantiles(X)
        aleatoric = np.maximum(aleatoric_variance(quantiles), 0.0)
        return with_index_of(X, Uncertainty.from_parts(aleatoric, epistemic_variance(quantiles)))

    def _quantiles(self, X: Any) -> FloatArray:
        """Predict quantiles by each network, (n_members, n_samples, n_quantiles), in units of y."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        inputs = torch.from_numpy(_standardised(X, self._X_scaling))
        device = resolve_device(self.device, self.networks_)
        outputs = evaluate(self.networks_, inputs, device=device).transpose(0, 1).numpy()
        mean, scale = self._y_scaling
        return mean + scale * outputs


def _mean_and_spread(values: FloatArray, weight: FloatArray) -> tuple[Any, Any]:
    """Compute each column's weighted mean and std: exactly the value and 0 for constant columns."""
    mean = np.average(values, axis=0, weights=weight)
    deviation = values - mean
    # Rescale the deviations, because squares of small deviations would underflow. A power of 2 as
    # the unit avoids rounding errors.
    unit = np.ldexp(1.0, np.frexp(np.abs(deviation).max(axis=0))[1])
    spread = unit * np.sqrt(np.average((deviation / unit) ** 2, axis=0, weights=weight))
    # A standard deviation below this threshold is only the rounding error of the mean.
    varies = spread > 10 * np.finfo(np.float64).eps * np.abs(mean)
    return np.where(varies, mean, values[0]), np.where(varies, spread, 0.0)


def _standardised(values: FloatArray, scaling: tuple[Any, Any]) -> FloatArray:
    mean, scale = scaling
    return (values - mean) / np.where(scale > 0, scale, 1.0)


def _interpolated(
    quantiles: FloatArray, known: FloatArray, asked: NDArray[np.float64]
) -> FloatArray:
    if not ((asked >= known[0]) & (asked <= known[-1])).all():
        raise ValueError(
            f"`levels` must be between {known[0]:.4g} and {known[-1]:.4g}, the range of levels "
            f"with n_quantiles={len(known)}, got {asked.tolist()}; increase `n_quantiles`."
        )
    return interpolated(quantiles, known, asked)
