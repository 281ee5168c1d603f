"""Estimator for Gaussian-process regression with proven bounds on its predictions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context, clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, WhiteKernel
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import validate_data

from skuq.base import FloatArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.devices import with_gradients
from skuq.gpc._evidence_search import EvidenceSearchMixin
from skuq.gpc._fit_checks import check_memory, check_sizes, deviations, length_of, warn_of_scales
from skuq.gpc._region_search import certificate_device
from skuq.gpc._regression_queries import RegressionQueriesMixin
from skuq.gpc.bounds._moment_model import MomentModel
from skuq.gpc.inference._hyperparameters import feature_units
from skuq.gpc.inference._kernels import covariance
from skuq.gpc.inference._priors import DensePrior, LowRankPrior, choose_inducing
from skuq.gpc.inference._regression import (
    NoisyPrior,
    check_noisy_kernel,
    latent_kernel,
    noise_level,
    regression_evidence,
    regression_posterior,
)
from skuq.sample_weights import training_weights

_CLOSE = 0.01  # default `tol`, relative to the standard deviation of the target
_LARGEST = 1e100  # largest absolute target; squares must not overflow


class RobustGPRegressor(
    RegressionQueriesMixin, EvidenceSearchMixin, RegressorMixin, UncertaintyMixin, BaseEstimator
):
    """Gaussian-process regression with proven bounds on its predictions over regions.

    Predictions equal those of `sklearn.gaussian_process.GaussianProcessRegressor`. In addition,
    `RobustGPRegressor` *proves* how predictions change around a point: `predict_bounds` encloses
    the smallest and the largest mean and standard deviation over a region, `certify` decides
    whether the mean changes by more than a tolerance in the region, and `certified_radius` returns
    a radius within which the mean changes by at most the tolerance.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel, default=None
        Prior covariance of the function: sums and products of RBF, Matern (nu 1.5 or 2.5),
        RationalQuadratic and ConstantKernel. WhiteKernel is supported as a summand; its
        `noise_level`, the noise variance, is optimised. None stands for a constant times an RBF
        whose initial length-scale is the spread of the data, plus a WhiteKernel.
    alpha : float or array-like of shape (n_samples,), default=1e-10
        Known noise variance, which is added to the noise variance of WhiteKernels: one value for
        all targets, or one for each training target. With `normalize_y`, it is in units of the
        variance of `y`.
    normalize_y : bool, default=True
        Whether to standardise `y` during the fit; results then do not depend on the unit of `y`.
        scikit-learn's default is False.
    optimizer : {"lbfgs"} or None, default="lbfgs"
        Method that maximises the marginal likelihood over the hyperparameters of the kernel. None
        keeps the hyperparameters fixed. If there is nothing to optimise, `fit` rejects `max_iter`
        and `n_restarts`.
    max_iter : int, default=100
        Maximum number of evaluations of the marginal likelihood per start.
    n_restarts : int, default=0
        Number of restarts, from hyperparameters drawn log-uniformly within their bounds.
    n_inducing : int, default=None
        Number of inducing points that represent the training data, for large data sets. The
        cost of `fit` is then linear in the number of samples, and the cost of predictions and
        certificates is independent of it. None uses all samples, and the cost of `fit` is cubic.
    device : str, default="auto"
        Device for certificates; "auto" is CUDA if available, else the CPU. "mps" is rejected,
        because guarantees need float64. `fit` and predictions always run on the CPU.
    n_jobs : int, default=None
        Number of joblib processes among which the points to be certified are distributed.
    random_state : int, RandomState instance or None, default=None
        Seed for restarts and inducing points.
    verbose : int, default=0
        Whether to show a progress bar while fitting and certifying.

    Attributes
    ----------
    kernel_ : Kernel
        The kernel with optimised hyperparameters.
    posterior_ : object
        Gaussian posterior of the latent function, in units of the normalised target.
        ``posterior_.moments(X)`` returns means and variances, of shape (n_samples, 1) and
        (n_samples, 1, 1).
    noise_variance_ : float
        Noise variance of a new target, in squared units of the target: the sum over WhiteKernels,
        plus `alpha` if it is a single number.
    log_marginal_likelihood_ : float
        Log marginal likelihood of `kernel_` for the normalised targets, in nats; with `n_inducing`,
        a lower bound on this likelihood.
    n_iter_ : int
        Number of evaluations of the marginal likelihood.
    jitter_ : float
        Relative increase of the diagonal of the covariance that its factorisation required.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Uncertainties are variances, in squared units of the target. Epistemic: variance of the latent
    function, which more data reduce. Aleatoric: noise variance, the same for all inputs. Total:
    their sum.

    Guarantees refer to the fitted model: to the predictions that it computes from the posterior.
    They do not cover the error of the model.

    Distances are measured in the units of `X`. If features, radii and the length-scales of
    `kernel` are all multiplied by the same number, results do not change.

    References
    ----------
    Cardelli, Kwiatkowska, Laurenti, Patane, "Robustness Guarantees for Bayesian Inference with
    Gaussian Processes", AAAI 2019.

    Patane, Blaas, Laurenti, Cardelli, Roberts, Kwiatkowska, "Adversarial Robustness Guarantees for
    Gaussian Processes", JMLR 2022.

    Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, Chapter 2.

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

    _parameter_constraints: dict[str, Any] = {
        "kernel": [Kernel, None],
        "alpha": [Interval(Real, 0, None, closed="left"), "array-like"],
        "normalize_y": ["boolean"],
        "optimizer": [StrOptions({"lbfgs"}), None],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "n_restarts": [Interval(Integral, 0, None, closed="left")],
        "n_inducing": [Interval(Integral, 1, None, closed="left"), None],
        "device": [str, torch.device],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        alpha: Any = 1e-10,
        normalize_y: bool = True,
        optimizer: str | None = "lbfgs",
        max_iter: int = 100,
        n_restarts: int = 0,
        n_inducing: int | None = None,
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.kernel = kernel
        self.alpha = alpha
        self.normalize_y = normalize_y
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.n_restarts = n_restarts
        self.n_inducing = n_inducing
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RobustGPRegressor:
        """Fit hyperparameters and posterior.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs.
        y : array-like of shape (n_samples,)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights >= 0: a sample of weight w counts w times, and weight 0 leaves it out. A mean
            weight below 0.1 or above 10 raises a warning.

        Returns
        -------
        RobustGPRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If the data are not finite, or exceed 1e100 in absolute value (their squares would
            overflow); if there is more than one target; if the kernel is not supported; if the
            noise variance of the kernel plus `alpha` is 0; if a parameter cannot have an effect;
            or if the marginal likelihood of the initial hyperparameters is not a number.
        MemoryError
            If an exact fit needs more memory than is available; raised before the fit starts.

        Warns
        -----
        UserWarning
            If features of very different spread share one length-scale.
        sklearn.exceptions.ConvergenceWarning
            If the covariance was almost singular and `jitter_` is large, or if the optimisation
            of the hyperparameters stopped early.
        """
        certificate_device(self.device)
        X, y = validate_data(self, X, y, dtype=np.float64, copy=True, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        alpha = self._noise_of_targets(len(y))
        weight = np.ones(len(y))
        if sample_weight is not None:
            weight = training_weights(sample_weight, len(y))
            X, y, alpha, weight = (part[weight > 0] for part in (X, y, alpha, weight))
        check_sizes(X)
        _check_targets(y)
        self._deviations = deviations(X, weight)
        self._length = length_of(self._deviations, X)
        kernel = self._initial_kernel(X, y, weight, alpha)
        self._refuse_ineffective(kernel)
        warn_of_scales(X, kernel)
        if self.n_inducing is None:
            check_memory(len(X), 1, "gaussian", latent_kernel(kernel))
        random = check_random_state(self.random_state)
        build: Callable[[Any], DensePrior | LowRankPrior] = partial(DensePrior, X=X)
        if self.n_inducing is not None:
            unit = feature_units(kernel)
            inducing = choose_inducing(X / unit, self.n_inducing, random, weight) * unit
            build = partial(LowRankPrior, X=X, inducing=inducing)
        prior = partial(NoisyPrior.of, prior=build, alpha=alpha)
        target = {"y": (y - self._shift) / self._scale, "sample_weight": weight}
        best = self._search(kernel, partial(regression_evidence, **target), prior, random)
        self._keep(best)
        self.posterior_ = regression_posterior(prior(best.kernel), **target)
        self._white = noise_level(best.kernel)
        known = 0.0 if np.ndim(self.alpha) else float(self.alpha)
        self.noise_variance_ = (self._white + known) * self._scale**2
        self._region_models: dict[str, MomentModel] = {}
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Predict the mean, and optionally the standard deviation or the covariance.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        return_std : bool, default=False
            Whether to also return standard deviations. As in scikit-learn, standard deviations
            include the noise of WhiteKernels, but not `alpha`.
        return_cov : bool, default=False
            Whether to also return the joint covariance of the predictions, at a cost quadratic in
            the number of inputs.

        Returns
        -------
        mean : ndarray of shape (n_samples,)
            Means, in the unit of the target.
        std : ndarray of shape (n_samples,)
            Standard deviations, in the unit of the target; only with `return_std`.
        cov : ndarray of shape (n_samples, n_samples)
            Covariances, in squared units of the target; only with `return_cov`.

        Raises
        ------
        ValueError
            If both `return_std` and `return_cov` are True.
        """
        if return_std and return_cov:
            raise ValueError(
                "`return_std` and `return_cov` must not both be True; set one of them to False."
            )
        points = self._points(X)
        mean, variance = self.posterior_.moments(points)
        predicted = self._shift + self._scale * mean[:, 0]
        if return_std:
            return predicted, self._scale * np.sqrt(variance[:, 0, 0] + self._white)
        if return_cov:
            posterior = self.posterior_
            white = covariance(posterior.kernel, points, posterior.inputs)
            if posterior.whitener is not None:
                white = white @ posterior.whitener.T
            whole = covariance(posterior.kernel, points) - white @ posterior.matrices[0] @ white.T
            whole[np.diag_indices_from(whole)] = variance[:, 0, 0] + self._white
            return predicted, self._scale**2 * whole
        return predicted

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Decompose the variance of the predictions into aleatoric and epistemic uncertainty.

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
        points = self._points(X)
        variance = self._scale**2 * self.posterior_.moments(points)[1][:, 0, 0]
        return with_index_of(
            X, Uncertainty.from_parts(np.full(len(variance), self.noise_variance_), variance)
        )

    def _noise_of_targets(self, n: int) -> FloatArray:
        """Validate `alpha` and broadcast it to (n,)."""
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
        """Build the initial kernel; also sets shift and scale of the target."""
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
        check_sizes(X, kernel)
        if (alpha + noise_level(kernel)).min() <= 0:
            raise ValueError(
                "The noise variance must be above 0, because covariances without noise may be "
                "singular: add a WhiteKernel to the kernel, or set `alpha` to a value above 0, "
                "such as 1e-10."
            )
        return kernel


def _check_targets(y: FloatArray) -> None:
    """Raise if squares of targets would overflow."""
    row = int(np.abs(y).argmax())
    if abs(y[row]) > _LARGEST:
        raise ValueError(
            f"Target {row} is {y[row]:.3g}. Absolute values of targets must not exceed "
            f"{_LARGEST:g}, because their squares would overflow float64; correct the value, or "
            "rescale the target."
        )
