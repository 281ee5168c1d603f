"""Regression with anchored quantile networks: two uncertainties for tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from skuq.base import FloatArray, PredictionInterval, Uncertainty, UncertaintyMixin
from skuq.networks import TrainingSettings, evaluate, moved, resolve_device, seeded, train
from skuq.quantities import check_coverage
from skuq.residuals import widened
from skuq.sample_weights import training_weights
from skuq.uadqn._networks import ACTIVATIONS, AnchoredLoss, QuantileNetworks
from skuq.uadqn._quantiles import aleatoric_variance, epistemic_variance, quantile_levels
from skuq.validation import checked_widths, refuse_ineffective

# A feature's standard deviation, as the networks see it, times the number of features that vary:
# the more of them, the further apart are samples, and the smoother a function must be to learn
# from them.
INPUT_SCALE = 2.0

# Variances are squares, and those far from the data are some orders of magnitude larger.
LARGEST, SMALLEST = 1e150, 1e-150


class AnchoredQuantileRegressor(RegressorMixin, UncertaintyMixin, BaseEstimator):
    """Quantile regression with anchored networks that tells noise from lack of data.

    Several networks learn the same quantiles of the target. Each is pulled towards its own
    random start, which makes it an approximate sample of a posterior: the networks agree where
    there are data, and keep their differences elsewhere. Differences between networks are
    epistemic, the spread of quantiles that they share is aleatoric.

    Features and target are standardised inside, so parameters do not depend on units, and
    features are divided by half their number; predictions are in the units of `y`. A column
    that has one value in all samples counts as no feature while training. Another value of it in a
    new sample was never seen, and raises the epistemic part: the more, the larger the difference
    is as a number, since there is no spread to measure it by.

    Parameters
    ----------
    n_members : int, default=2
        Number of networks, at least 2. The paper takes two, which is a rough estimate.
    n_quantiles : int, default=50
        Number of quantiles, at least 2.
    hidden_sizes : sequence of int, default=(100, 100)
        Widths of hidden layers. Narrow networks underestimate the epistemic part, because
        their quantiles err together.
    activation : {"tanh", "relu"}, default="tanh"
        Activation between the layers. With "relu" the epistemic part grows without bound away
        from the data; such networks want a smaller gain.
    noise_scale : float, default=0.25
        Scale of the noise that the posterior assumes, in standard deviations of the target and
        for one feature; with p features that vary it is sqrt(p) times as large, as distances
        between samples are. Its square is the strength of the pull to the start. More of it
        smooths, 0 is plain quantile regression.
    prior_gain : float, default=3.0
        Gain of the networks' orthogonal initialisation: how much they bend, and differ,
        before any data.
    max_epochs : int, default=200
        Passes over the training data.
    batch_size : int, default=64
        Samples per step; -1 takes all.
    learning_rate : float, default=2e-2
        Learning rate of Adam at the start; it goes to 0 along a cosine.
    device : str, default="auto"
        Where to compute: "auto" takes CUDA if there is one. Results are on the CPU.
    random_state : int, RandomState instance or None, default=None
        Governs starts and order of batches.
    verbose : int, default=0
        Above 0, the loss of each epoch is printed.

    Attributes
    ----------
    networks_ : torch.nn.Module
        The trained networks; outputs, of shape (n_samples, n_members, n_quantiles), are in
        standardised units.
    quantile_levels_ : ndarray of shape (n_quantiles,), float64
        Levels (i - .5) / n_quantiles, i = 1 .. n_quantiles.
    history_ : skorch.history.History
        Loss of each epoch, the pull to the start included.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Uncertainty is a variance in squared units of the target. The aleatoric part is the
    covariance over quantiles between networks (Eq. 7), 0 where that unbiased estimate is
    negative; the epistemic part the variance between networks, averaged over quantiles (Eq. 4
    and 6). No quantile lies beyond the outer levels, so the aleatoric part of a normal
    distribution is 3% below its variance with 50 quantiles.

    A target that has one value in all samples gives no unit to measure doubt in: it is predicted
    as it is, with variances of 0 everywhere.

    Quantiles carry no guarantee of coverage.

    References
    ----------
    Clements, Van Delft, Robaglia, Bahi Slaoui, Toth, "Estimating Risk and Uncertainty in Deep
    Reinforcement Learning", 2019, Sec. 2 and Fig. 1.

    Pearce, Leibfried, Brintrup, Zaki, Neely, "Uncertainty in Neural Networks: Approximately
    Bayesian Ensembling", AISTATS 2020.

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

    _unit_of_uncertainty = "squared target"
    _parameter_constraints: dict[str, Any] = {
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

    def __init__(
        self,
        *,
        n_members: int = 2,
        n_quantiles: int = 50,
        hidden_sizes: Sequence[int] = (100, 100),
        activation: str = "tanh",
        noise_scale: float = 0.25,
        prior_gain: float = 3.0,
        max_epochs: int = 200,
        batch_size: int = 64,
        learning_rate: float = 2e-2,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.n_members = n_members
        self.n_quantiles = n_quantiles
        self.hidden_sizes = hidden_sizes
        self.activation = activation
        self.noise_scale = noise_scale
        self.prior_gain = prior_gain
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AnchoredQuantileRegressor:
        """Train the networks.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs.
        y : array-like of shape (n_samples,)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights >= 0, in numbers of samples: 2 is the sample twice, 0 leaves it out. A mean
            below 0.1 or above 10 is a warning. Whole numbers equal copies of the sample exactly if
            all samples are in one batch, and up to chance otherwise.

        Returns
        -------
        AnchoredQuantileRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If the data are not finite numbers or reach beyond 1e150, the target varies by less
            than 1e-150, no sample has a positive weight, their sum overflows, a hidden width is
            not a positive integer, or the training diverges.
        """
        checked_widths(self.hidden_sizes)
        if not len(self.hidden_sizes):
            context = "without hidden layers; give `hidden_sizes` a width, or leave it out."
            refuse_ineffective(self, ["activation"], context)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        X, y, weight = _weighted(X, np.asarray(y, np.float64), sample_weight)
        mean, spread = _mean_and_spread(X, weight, "X")
        n_varying = max(1, int(np.count_nonzero(spread)))
        self._X_scaling = mean, np.where(spread > 0, spread, 1.0) * n_varying / INPUT_SCALE
        self._y_scaling = _target_scaling(y, weight)
        with seeded(seed):
            networks = self._new_networks(n_varying, X.shape[1])
        device = resolve_device(self.device, networks)
        start = moved(networks, device)
        noise_scale = self.noise_scale * n_varying**0.5
        trained, self.history_ = train(
            start,
            AnchoredLoss(start, noise_scale, weight.sum()),
            {"inputs": _standardised(X, self._X_scaling), "weight": weight},
            _standardised(y, self._y_scaling)[:, None],
            settings=self._training_settings(device),
            seed=seed,
        )
        self.networks_ = trained.double()
        self.quantile_levels_ = quantile_levels(self.n_quantiles, dtype=torch.float64).numpy()
        return self

    _no_rows: ClassVar[dict[str, Any]] = {
        "predict_quantiles": lambda e, levels=None: np.empty(
            (0, len(e.quantile_levels_ if levels is None else np.ravel(levels)))
        )
    }

    def predict(self, X: Any) -> FloatArray:
        """Predict the mean: that of all quantiles of all networks.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples,), float64
            Predictions, in units of the target.
        """
        return self._quantiles(X).mean(axis=(0, 2))

    def predict_quantiles(self, X: Any, levels: ArrayLike | None = None) -> FloatArray:
        """Predict quantiles of the target: the mean over networks, sorted.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        levels : array-like of shape (n_levels,), default=None
            Levels asked for, from the lowest to the highest of `quantile_levels_`; between
            them quantiles are interpolated linearly. None takes `quantile_levels_`.

        Returns
        -------
        ndarray of shape (n_samples, n_levels), float64
            Quantiles, in units of the target.

        Raises
        ------
        ValueError
            If a level lies outside of the range that the networks learnt.
        """
        quantiles = np.sort(self._quantiles(X).mean(axis=0), axis=-1)
        if levels is None:
            return quantiles
        return _interpolated(quantiles, self.quantile_levels_, np.asarray(levels, np.float64))

    def predict_interval(self, X: Any, coverage: float = 0.9) -> PredictionInterval:
        """Predict an interval for the target of each input.

        It lies between two quantiles, which are moved apart where the networks disagree: as far as
        the sum of two independent deviations is. It is not calibrated: in the middle of the data
        it holds rather more targets than asked for.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        coverage : float, default=0.9
            Probability of the interval, from 0 to the difference of the outer `quantile_levels_`.

        Returns
        -------
        PredictionInterval
            Ends of the intervals, in units of the target.

        Raises
        ------
        ValueError
            If the networks did not learn quantiles so far out.
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
        """Estimate both variances of the prediction.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        Uncertainty
            Total, aleatoric and epistemic part in squared units of the target, each of shape
            (n_samples,).
        """
        quantiles = self._quantiles(X)
        aleatoric = np.maximum(aleatoric_variance(quantiles), 0.0)
        return Uncertainty.from_parts(aleatoric, epistemic_variance(quantiles))

    def _training_settings(self, device: torch.device) -> TrainingSettings:
        return TrainingSettings(
            learning_rate=self.learning_rate,
            max_epochs=self.max_epochs,
            batch_size=self.batch_size,
            optimizer=partial(torch.optim.Adam, fused=True),
            # Steps of constant length would leave each network at random near its optimum, and
            # that noise would count as epistemic variance.
            cosine=True,
            device=device,
            verbose=self.verbose,
        )

    def _new_networks(self, n_varying: int, n_features: int) -> QuantileNetworks:
        sizes = [n_features, *self.hidden_sizes, self.n_quantiles]
        return QuantileNetworks(
            self.n_members, sizes, self.prior_gain, self.activation, n_varying=n_varying
        )

    def _quantiles(self, X: Any) -> FloatArray:
        """Quantiles by each network, (n_members, n_samples, n_quantiles), in units of y."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        _check_largest(X, "X")
        inputs = torch.from_numpy(_standardised(X, self._X_scaling))
        device = resolve_device(self.device, self.networks_)
        outputs = evaluate(self.networks_, inputs, device=device).transpose(0, 1).numpy()
        mean, scale = self._y_scaling
        return mean + scale * outputs


def _weighted(
    X: FloatArray, y: FloatArray, sample_weight: Any
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Samples of positive weight, and their weights."""
    weight = training_weights(sample_weight, len(y))
    kept = weight > 0
    return X[kept], y[kept], weight[kept]


def _target_scaling(y: FloatArray, weight: FloatArray) -> tuple[Any, Any]:
    """Weighted mean and standard deviation, whose square must be a float."""
    mean, spread = _mean_and_spread(y, weight, "y")
    if 0 < spread < SMALLEST:
        raise ValueError(
            f"The standard deviation of `y` must be 0 or at least {SMALLEST}, got {spread:.3g}; "
            "multiply the targets by a constant."
        )
    return mean, spread


def _mean_and_spread(values: FloatArray, weight: FloatArray, name: str) -> tuple[Any, Any]:
    """Weighted mean and standard deviation of each column: the value and 0 of a constant one."""
    _check_largest(values, name)
    mean = np.average(values, axis=0, weights=weight)
    deviation = values - mean
    # A power of 2 changes no digit, and the squares of small deviations would be 0.
    unit = np.ldexp(1.0, np.frexp(np.abs(deviation).max(axis=0))[1])
    spread = unit * np.sqrt(np.average((deviation / unit) ** 2, axis=0, weights=weight))
    # Below rounding, it is the mean's error and not a spread.
    varies = spread > 10 * np.finfo(np.float64).eps * np.abs(mean)
    return np.where(varies, mean, values[0]), np.where(varies, spread, 0.0)


def _check_largest(values: FloatArray, name: str) -> None:
    largest = np.abs(values).max()
    if largest > LARGEST:
        raise ValueError(
            f"`{name}` must lie within plus and minus {LARGEST}, got {largest:.3g} in absolute "
            "value; divide it by a constant."
        )


def _standardised(values: FloatArray, scaling: tuple[Any, Any]) -> FloatArray:
    mean, scale = scaling
    return (values - mean) / np.where(scale > 0, scale, 1.0)


def _interpolated(
    quantiles: FloatArray, known: FloatArray, asked: NDArray[np.float64]
) -> FloatArray:
    """Quantiles at other levels, row by row, linear between the known ones."""
    if asked.ndim != 1:
        raise ValueError(f"`levels` must be one-dimensional, got shape {asked.shape}.")
    if not ((asked >= known[0]) & (asked <= known[-1])).all():
        raise ValueError(
            f"`levels` must lie between {known[0]:.4g} and {known[-1]:.4g}, which is what "
            f"{len(known)} quantiles cover, got {asked.tolist()}; use more quantiles to go "
            "further out."
        )
    above = np.searchsorted(known, asked).clip(1)
    share = (asked - known[above - 1]) / (known[above] - known[above - 1])
    return quantiles[:, above - 1] * (1 - share) + quantiles[:, above] * share
