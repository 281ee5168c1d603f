"""Gaussian-process regression with proven bounds on predictions."""

from dataclasses import KW_ONLY, dataclass
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Self, Unpack

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context, clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, WhiteKernel
from sklearn.utils._param_validation import Interval

from skuq.base import FloatArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.devices import with_gradients
from skuq.gpc import _certificates, _estimator
from skuq.gpc._certificates import Bounds, Certificate, RegressionBounds, SafeRadius
from skuq.gpc._estimator import Around, RobustGaussianProcess
from skuq.gpc.bounds._region_models import MomentModel
from skuq.gpc.inference._kernels import check_noisy_kernel, noise_level
from skuq.gpc.inference._single_latent import NoisyPrior, Regression
from skuq.validation import training_weights, validate_data

_CLOSE = 0.01  # default `tol` of bounds, as a fraction of the standard deviation of the target
_MARGIN = 1e-3  # `tol` of certificates, as a fraction of `tolerance`
_MAX_REGIONS = 10_000  # default of `max_regions`, the maximum number of boxes per search


@dataclass(repr=False, eq=False)
class RobustGPRegressor(RobustGaussianProcess, RegressorMixin, UncertaintyMixin, BaseEstimator):
    """Gaussian-process regression with proven bounds on its predictions over regions.

    With equal hyperparameters, it predicts as `sklearn.gaussian_process.GaussianProcessRegressor`.
    It also *proves* how predictions change around a point: `predict_bounds` bounds mean and
    standard deviation in a region, `certify` decides whether the mean changes by more than a
    tolerance, and `certified_radius` finds a radius without such a change.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel, default=None
        Prior covariance of the function, as for `RobustGPC`. A WhiteKernel can be added to it; its
        `noise_level` is the noise variance, which is optimised. None adds a WhiteKernel to the
        default kernel of `RobustGPC`.
    alpha : float or array-like of shape (n_samples,), default=1e-10
        Known noise variance, in addition to the noise variance of WhiteKernels: one value for all
        targets, or one value for each training target. If `normalize_y` is True, it is a fraction
        of the variance of `y`.
    normalize_y : bool, default=True
        Whether to standardise `y` during the fit; results then do not depend on the unit of `y`.
        scikit-learn's default is False.
    optimizer, max_iter, n_restarts, n_inducing, device, n_jobs, random_state, verbose
        As for `RobustGPC`.

    Attributes
    ----------
    posterior_ : object
        As for `RobustGPC`, with one latent function. It predicts the normalised target.
    noise_variance_ : float
        Noise variance of a new target, in squared units of the target: the sum over WhiteKernels,
        plus `alpha` if it is a single number.
    log_marginal_likelihood_ : float
        Log marginal likelihood of `kernel_` for the normalised targets, in nats; with `n_inducing`,
        a lower bound on this likelihood.
    kernel_, n_iter_, jitter_, n_features_in_, feature_names_in_
        As for `RobustGPC`.

    Notes
    -----
    Uncertainties are variances, in squared units of the target. Epistemic: variance of the latent
    function, which more data reduce. Aleatoric: noise variance, the same for all inputs. Total:
    their sum.

    Guarantees hold for the predictions of the fitted model. They do not cover the errors of these
    predictions. Distances are measured in the units of `X`.

    References
    ----------
    Cardelli, Kwiatkowska, Laurenti, Patane, "Robustness Guarantees for Bayesian Inference with
    Gaussian Processes", AAAI 2019; Patane, Blaas, Laurenti, Cardelli, Roberts, Kwiatkowska,
    "Adversarial Robustness Guarantees for Gaussian Processes", JMLR 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import RobustGPRegressor
    >>> X = np.linspace(0, 6, 20)[:, None]
    >>> gpr = RobustGPRegressor(random_state=0).fit(X, np.sin(X[:, 0]))
    >>> bounds = gpr.predict_bounds([[3.0]], radius=0.5)
    >>> bounds.mean.lower.round(1), bounds.mean.upper.round(1)
    (array([-0.4]), array([0.6]))
    >>> gpr.certify([[1.5], [3.0]], radius=0.5, tolerance=0.2).status
    array(['safe', 'unsafe'], dtype='<U9')
    """

    _unit_of_uncertainty = "squared target"

    kernel: Kernel | None = None
    _: KW_ONLY
    alpha: Any = 1e-10
    normalize_y: bool = True

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **RobustGaussianProcess._parameter_constraints,
        "alpha": [Interval(Real, 0, None, closed="left"), "array-like"],
        "normalize_y": ["boolean"],
    }

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit hyperparameters and posterior to targets `y`; arguments are as in `RobustGPC.fit`."""
        _estimator.certificate_device(self.device)
        X, y = validate_data(self, X, y, dtype=np.float64, copy=True, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        alpha = self._noise_of_targets(len(y))
        weight = np.ones(len(y))
        if sample_weight is not None:
            weight = training_weights(sample_weight, len(y))
            X, y, alpha, weight = (part[weight > 0] for part in (X, y, alpha, weight))
        _estimator.check_sizes(y)
        self._measure(X, weight)
        kernel = self._initial_kernel(X, y, weight, alpha)
        latent, random = self._prior(X, kernel, weight, 2)
        prior = partial(NoisyPrior.of, prior=latent, alpha=alpha)
        self._infer(Regression((y - self._shift) / self._scale, weight), kernel, prior, random)
        self._white = noise_level(self.kernel_)
        known = 0.0 if np.ndim(self.alpha) else float(self.alpha)
        self.noise_variance_ = (self._white + known) * self._scale**2
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict means, or a pair of means and standard deviations if `return_std` is True.

        Both have the shape (n_samples,) and the unit of the target. As in scikit-learn, standard
        deviations include the noise of WhiteKernels, but not `alpha`.
        """
        points = self._points(X)
        mean, variance = self.posterior_.moments(points)
        predicted = self._shift + self._scale * mean[:, 0]
        std = self._scale * np.sqrt(variance[:, 0, 0] + self._white)
        return (predicted, std) if return_std else predicted

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Decompose the variance of predictions into noise and posterior variance."""
        points = self._points(X)
        variance = self._scale**2 * self.posterior_.moments(points)[1][:, 0, 0]
        return with_index_of(
            X, Uncertainty.from_parts(np.full(len(variance), self.noise_variance_), variance)
        )

    def predict_bounds(
        self, X: Any, radius: Any = None, *, tol: float | None = None, **around: Unpack[Around]
    ) -> RegressionBounds:
        """Bound mean and standard deviation of predictions in a region around each point.

        Parameters
        ----------
        X, radius, region, norm, features, domain, max_time
            As for `RobustGPC.predict_proba_bounds`.
        tol : float, default=None
            The search for an extreme stops when its lower and upper bound differ by at most `tol`,
            in the unit of `y`. Default: 1 % of the standard deviation of the training targets.
        max_regions : int, default=10000
            Maximum number of boxes per extreme; None means no maximum. If a search reaches it, its
            bounds are valid but wider. If the noise is very small, rounding errors limit how close
            the bounds on the standard deviation can become.

        Returns
        -------
        mean, std : Bounds
            A named tuple; `std` bounds the standard deviation that `predict` returns.
        """
        around.setdefault("max_regions", _MAX_REGIONS)
        points = self._points(X)
        gap = self._close if tol is None else tol
        regions, limits = self._asked(points, radius, gap, **around)
        limits = limits._replace(tol=limits.tol / self._scale)
        parts = self._in_batches(_certificates.moment_bounds, limits, regions)
        mean = _certificates.rescaled(Bounds(*parts[:8]), self._scale, self._shift)
        return RegressionBounds(mean, _certificates.rescaled(Bounds(*parts[8:]), self._scale, 0.0))

    def certify(
        self, X: Any, radius: Any = None, *, tolerance: Any, **around: Unpack[Around]
    ) -> Certificate:
        """Decide whether the mean changes by more than a tolerance in a region around each point.

        Parameters
        ----------
        X, radius, region, norm, features, domain, max_time, max_regions
            As for `predict_bounds`.
        tolerance : float or array-like of shape (n_samples,)
            Largest allowed absolute difference from the mean at the point, > 0, in the unit of the
            target.

        Returns
        -------
        Certificate
            Margins are in the unit of the target. A point is "undecided" if the lower bound on its
            margin is negative and the upper bound positive, and either they differ by at most
            ``tolerance / 1000`` or the search reached a maximum.
        """
        points = self._points(X)
        around.setdefault("max_regions", _MAX_REGIONS)
        regions, limits = self._asked(points, radius, _MARGIN, **around)
        tolerances = _estimator.one_per_point(tolerance, len(points), "tolerance", positive=True)
        decide, within = _certificates.stability, tolerances / self._scale
        found = Certificate(*self._in_batches(decide, limits, regions, within))
        return found._replace(
            margin_lower=found.margin_lower * tolerances,
            margin_upper=found.margin_upper * tolerances,
        )

    def certified_radius(
        self,
        X: Any,
        *,
        tolerance: Any,
        max_radius: float | None = None,
        precision: float = 0.01,
        **around: Unpack[Around],
    ) -> SafeRadius:
        """Find by bisection a radius within which the mean provably stays within a tolerance.

        Parameters
        ----------
        X, max_radius, precision, norm, features, domain, max_time, max_regions
            As for `RobustGPC.certified_radius`.
        tolerance : float or array-like of shape (n_samples,)
            As for `certify`.
        """
        points = self._points(X)
        tolerances = _estimator.one_per_point(tolerance, len(points), "tolerance", positive=True)
        decide, within = _certificates.stability, tolerances / self._scale
        return self._bisect(points, decide, within, _MARGIN, max_radius, precision, **around)

    def _new_region_model(self, device: str) -> MomentModel:
        return MomentModel(self.posterior_, self._white, device)

    def _noise_of_targets(self, n: int) -> FloatArray:
        alpha = np.asarray(self.alpha, dtype=np.float64)
        if alpha.shape not in ((), (n,)) or not np.isfinite(alpha).all() or (alpha < 0).any():
            raise ValueError(
                f"`alpha` must be a finite number >= 0, or one for each of the {n} "
                f"samples, got {self.alpha!r}."
            )
        return np.broadcast_to(alpha, (n,)).copy()

    def _initial_kernel(
        self, X: FloatArray, y: FloatArray, weight: FloatArray, alpha: FloatArray
    ) -> Kernel:
        """Build the initial kernel; also set the shift and the scale of the target."""
        center = np.average(y, weights=weight)
        spread = float(np.sqrt(np.average((y - center) ** 2, weights=weight)))
        if np.ptp(y) == 0 or not spread:
            spread = 1.0
        self._close = _CLOSE * spread
        self._shift, self._scale = (float(center), spread) if self.normalize_y else (0.0, 1.0)
        if self.kernel is None:
            length, variance = self._length, (spread / self._scale) ** 2
            constant = ConstantKernel(variance, (variance * 1e-5, variance * 1e5))
            rbf = RBF(length, (length * 1e-3, length * 1e3))
            white = WhiteKernel(variance * 1e-2, (variance * 1e-8, variance * 1e2))
            kernel = constant * rbf + white
        else:
            kernel = clone(self.kernel)
        check_noisy_kernel(kernel, X.shape[1])
        if (alpha + noise_level(kernel)).min() <= 0:
            raise ValueError(
                "The noise variance must be above 0, because a covariance matrix without noise may "
                "be singular; add a WhiteKernel to the kernel, or set `alpha` to a value above 0, "
                "such as 1e-10."
            )
        return kernel
