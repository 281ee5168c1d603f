"""Base class of `RobustGPC` and `RobustGPRegressor`, which fits models and searches regions."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Self, TypedDict

import numpy as np
import torch
from joblib import Parallel, delayed, effective_n_jobs
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, KernelOperator
from sklearn.utils import check_random_state, check_scalar, gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from skuq._networks import resolve_device
from skuq._progress import progress
from skuq.base import FloatArray
from skuq.devices import available_memory, with_gradients
from skuq.gpc._certificates import Bisection, Certificate, SafeRadius
from skuq.gpc.bounds._region_models import Limits
from skuq.gpc.bounds._regions import Region
from skuq.gpc.inference import _hyperparameters as hyper
from skuq.gpc.inference._hyperparameters import Evidence, Inference, Maximum
from skuq.gpc.inference._priors import DensePrior, LowRankPrior, Prior, choose_inducing
from skuq.validation import refuse_ineffective, validate_data, warn_user

_BATCH = 64  # maximum number of points per batch
_NOTED_JITTER = 1e-6  # warn if the jitter, divided by the mean of the diagonal, is larger
_DISPARITY = 100.0  # warn if a feature's standard deviation is above this multiple of the median
_SAME = 1e-12  # if the norm of deviations / largest input is smaller, all inputs count as equal
_LARGEST = 1e100  # larger numbers are rejected, because products of their squares may overflow
_ORDERS = {"linf": np.inf, "l2": 2, "l1": 1}


class Around(TypedDict, total=False):
    """Keyword arguments of methods that search regions; see `RobustGPC.predict_proba_bounds`."""

    region: Any
    norm: str
    features: Any
    domain: Any
    max_time: float | None
    max_regions: int | None


@dataclass(frozen=True)
class Neighbourhood:
    """Shape of the regions around points, from the keyword arguments of a method."""

    radius: Any = None
    region: Any = None
    norm: str = "linf"
    features: Any = None
    domain: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.norm, str) or self.norm not in _ORDERS:
            raise ValueError(f"`norm` must be 'linf', 'l2' or 'l1', got {self.norm!r}.")

    @property
    def order(self) -> float:
        return _ORDERS[self.norm]

    def around(self, X: FloatArray, names: NDArray[Any] | None = None) -> Region:
        """Build the regions around points; `names` of columns are for `features` that are names."""
        has_region = self.region is not None
        if (self.radius is not None) == has_region or (has_region and self.norm != "linf"):
            raise ValueError(
                "Pass exactly one of `radius` (for a ball in the norm `norm`) and `region` (for a "
                "box). `norm` has no effect with `region`; omit it there."
            )
        radii = None
        if has_region:
            lower, upper = _ends(self.region, X, "region")
        else:
            radii = one_per_point(self.radius, len(X), "radius")
            lower, upper = X - radii[:, None], X + radii[:, None]
        if self.domain is not None:
            least, most = _ends(self.domain, X, "domain")
            lower, upper = np.maximum(lower, least), np.minimum(upper, most)
        free = np.zeros(X.shape[1], dtype=bool)
        free[self.free(X.shape[1], names)] = True
        lower, upper = np.where(free, lower, X), np.where(free, upper, X)
        center, low, high = (torch.from_numpy(part.copy()) for part in (X, lower, upper))
        if radii is None or self.norm == "linf":
            return Region(center, low, high)
        return Region(center, low, high, torch.tensor(radii, device="cpu"), int(self.order))

    def free(self, n_features: int, names: NDArray[Any] | None) -> NDArray[np.intp]:
        """Return the indices of the features that vary: all features if `self.features` is None."""
        if self.features is None:
            return np.arange(n_features)
        indices = np.asarray(self.features)
        if indices.dtype.kind in "UO" and indices.ndim == 1:
            known = [] if names is None else list(names)
            unknown = [name for name in indices.tolist() if name not in known]
            if unknown:
                raise ValueError(
                    f"`features` contains unknown columns {unknown}; the known columns are {known}."
                )
            indices = np.array([known.index(name) for name in indices.tolist()], dtype=np.intp)
        if indices.dtype == bool and indices.shape == (n_features,):
            indices = np.flatnonzero(indices)
        a_list = indices.ndim == 1 and len(indices) and np.issubdtype(indices.dtype, np.integer)
        if not a_list or indices.min() < -n_features or indices.max() >= n_features:
            raise ValueError(
                "`features` must be a list of one or more indices of features, from 0 to "
                f"{n_features - 1}, got {self.features!r}."
            )
        return np.unique(indices % n_features)

    def of_rows(self, X: FloatArray, rows: NDArray[np.intp], radii: FloatArray) -> Self:
        domain = self.domain
        if domain is not None:
            domain = tuple(end[rows] for end in _ends(domain, X, "domain"))
        return replace(self, radius=radii, region=None, domain=domain)


def refuse_shape(around: Mapping[str, Any], *names: str) -> None:
    """Raise if `around` contains any of `names`, arguments that a method does not use."""
    if given := [name for name in names if name in around]:
        raise TypeError(f"These arguments have no effect here: {', '.join(given)}. Omit them.")


def one_per_point(value: Any, n: int, name: str, positive: bool = False) -> FloatArray:
    """Convert one number, or an array of one number per point, to an array of shape (n,)."""
    values = np.asarray(value, dtype=np.float64)
    allowed = np.isfinite(values) & (values > 0 if positive else values >= 0)
    if values.shape not in ((), (n,)) or not allowed.all():
        raise ValueError(
            f"`{name}` must be one finite number, or one per point in an array of shape ({n},), "
            f"each {'above 0' if positive else 'not negative'}; got {value!r}."
        )
    return np.broadcast_to(values, (n,)).astype(np.float64)


def _ends(pair: Any, X: FloatArray, name: str) -> tuple[FloatArray, FloatArray]:
    """Return the lower and upper limits of boxes around points, in the shape of `X`."""
    try:
        lower, upper = (
            np.broadcast_to(_with_open_end(limits, end), X.shape)
            for limits, end in zip(pair, (-np.inf, np.inf), strict=True)
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be a pair (lower, upper) of numbers or arrays that broadcast to the "
            f"shape of `X`, {X.shape}."
        ) from error
    ends = np.array([lower, upper])
    if np.isnan(ends).any() or (name == "region" and np.isinf(ends).any()):
        raise ValueError(f"`{name}` must not contain NaN, and `region` must be finite everywhere.")
    outside = (lower > X) | (upper < X)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise ValueError(
            f"Point {row} lies outside the {name} in feature {column}: {X[row, column]:g} is not "
            f"between {lower[row, column]:g} and {upper[row, column]:g}. If limits differ between "
            f"features, pass `{name}` as two arrays (lower, upper), not as one pair per feature."
        )
    return lower, upper


def _with_open_end(limits: Any, end: float) -> FloatArray:
    """Convert limits to floats, and None to `end`."""
    values = np.asarray(limits)
    if values.dtype == object:  # contains None, which `astype` would convert to NaN
        values = np.where(np.equal(values, np.array(None)), end, values)
    return values.astype(np.float64)


def check_number(value: Any, name: str, positive: bool = False) -> None:
    closed = "neither" if positive else "left"
    check_scalar(value, name, Real, min_val=0, include_boundaries=closed)
    if not np.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, got {value}.")


def read_limits(tol: float, max_time: float | None, max_regions: int | None) -> Limits:
    check_number(tol, "tol", positive=True)
    if max_time is not None:
        check_number(max_time, "max_time")
    if max_regions is not None:
        check_scalar(max_regions, "max_regions", Integral, min_val=1)
    most = np.iinfo(np.int64).max if max_regions is None else int(max_regions)
    return Limits(float(tol), most, np.inf if max_time is None else float(max_time))


@dataclass(repr=False, eq=False)
class RobustGaussianProcess(ABC):
    """Base class of estimators that prove bounds on predictions of a Gaussian process."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "kernel": [Kernel, None],
        "optimizer": [StrOptions({"lbfgs"}), None],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "n_restarts": [Interval(Integral, 0, None, closed="left")],
        "n_inducing": [Interval(Integral, 1, None, closed="left"), None],
        "device": [str, torch.device],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    _: KW_ONLY
    optimizer: str | None = "lbfgs"
    max_iter: int = 100
    n_restarts: int = 0
    n_inducing: int | None = None
    device: str = "auto"
    n_jobs: int | None = None
    random_state: Any = None
    verbose: int = 0

    @abstractmethod
    def _new_region_model(self, device: str) -> Any:
        """Return the model that bounds predictions on `device`."""

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        return {**state, "_region_models": {}} if "_region_models" in state else state

    def _measure(self, X: FloatArray, weight: FloatArray | None) -> None:
        check_sizes(X)
        spread = np.sqrt(np.average((X - np.average(X, 0, weight)) ** 2, 0, weight))
        self._deviations = np.where(np.ptp(X, axis=0) > 0, spread, 0.0)  # 0 for constant features
        length, size = float(np.sqrt((self._deviations**2).sum())), float(np.abs(X).max())
        # Norm of the standard deviations; if it is 0, the largest |input|; if both are 0, 1.
        self._length = length if length > _SAME * size else size or 1.0

    def _prior(
        self, X: FloatArray, kernel: Kernel, weight: FloatArray | None, n_matrices: int
    ) -> tuple[Callable[[Any], Prior], np.random.RandomState]:
        context = None
        if self.optimizer is None:
            context = "with optimizer=None, which keeps the kernel fixed; use optimizer='lbfgs'."
        elif not len(kernel.theta):
            context = "with a kernel whose hyperparameters are all fixed; set bounds of some."
        if context is not None:
            refuse_ineffective(self, ["max_iter", "n_restarts"], context)
        check_sizes(X, *hyper.length_scales(kernel).values())
        _warn_of_scales(X, kernel)
        random = check_random_state(self.random_state)
        if self.n_inducing is None:
            needed, left = exact_fit_bytes(len(X), n_matrices, kernel), available_memory()
            if needed > left:
                raise MemoryError(
                    f"An exact fit to {len(X):,} rows needs about {needed / 1e9:.1f} GB of memory, "
                    f"and only {left / 1e9:.1f} GB are available; use inducing points "
                    "(n_inducing=200), or fit to fewer rows."
                )
            return partial(DensePrior, X=X), random
        unit = hyper.feature_units(kernel)
        inducing = choose_inducing(X / unit, self.n_inducing, random, weight) * unit
        return partial(LowRankPrior, X=X, inducing=inducing), random

    def _infer(
        self,
        inference: Inference,
        kernel: Kernel,
        prior: Callable[[Any], Any],
        random: np.random.RandomState,
    ) -> None:
        total = self.max_iter * (1 + self.n_restarts)
        with progress(total=total, desc=type(self).__name__, verbose=self.verbose) as bar:

            def objective(kernel: Any, state: FloatArray | None) -> Evidence:
                found = inference.evidence(prior(kernel), state, self.optimizer is not None)
                bar.set_postfix(log_evidence=f"{found.value:.1f}", refresh=False)
                bar.update()
                return found

            if self.optimizer is None:
                best = Maximum(kernel, hyper.evidence_at(objective, kernel), 1, "")
            else:
                rng = np.random.default_rng(random.randint(np.iinfo(np.int32).max))
                best = hyper.maximise_evidence(
                    objective, kernel, max_iter=self.max_iter, n_restarts=self.n_restarts, rng=rng
                )
        self.posterior_ = inference.posterior(prior(best.kernel), best.evidence.state)
        self._region_models: dict[str, Any] = {}  # cache of `_new_region_model`, by device
        self.kernel_, self.n_iter_ = best.kernel, best.n_evaluations
        self.log_marginal_likelihood_ = float(best.evidence.value)
        self.jitter_ = float(best.evidence.jitter)
        if not best.evidence.converged:
            warn_user(
                "The approximation of the posterior did not converge, and predictions may be "
                "inaccurate. Try a different kernel or inference='laplace'.",
                ConvergenceWarning,
            )
        if self.jitter_ > _NOTED_JITTER:
            warn_user(
                f"The covariance matrix is close to singular: {self.jitter_:.0e} of its mean "
                "diagonal was added to it. Check for duplicate inputs and very long length-scales.",
                ConvergenceWarning,
            )

    def _region_model(self) -> Any:
        device = str(certificate_device(self.device))
        if device not in self._region_models:
            self._region_models[device] = self._new_region_model(device)
        return self._region_models[device]

    def _points(self, X: Any) -> FloatArray:
        check_is_fitted(self)
        points: FloatArray = validate_data(self, X, dtype=np.float64, reset=False)
        check_sizes(points)
        return points

    def _asked(
        self,
        points: FloatArray,
        radius: Any,
        tol: float,
        max_time: float | None = None,
        max_regions: int | None = None,
        **shape: Any,
    ) -> tuple[Region, Limits]:
        """Build the regions that `radius` and `shape` describe, and the limits of the search."""
        names = getattr(self, "feature_names_in_", None)
        regions = Neighbourhood(radius, **shape).around(points, names)
        return regions, read_limits(tol, max_time, max_regions)

    @with_gradients()
    def _in_batches(
        self, answer: Callable[..., Any], limits: Limits, *of_points: Any, quiet: bool = False
    ) -> list[NDArray[Any]]:
        """Run `answer` on batches of points, each with a share of the time; concatenate results."""
        model, n = self._region_model(), len(of_points[0])
        model.prepare()  # computes tensors here once, rather than in every worker process
        batches = list(gen_batches(n, _BATCH))
        n_workers = min(len(batches), effective_n_jobs(self.n_jobs))
        share = limits._replace(max_time=limits.max_time * n_workers / len(batches))
        parts = []
        with self._bar(n, quiet) as bar:
            if n_workers == 1:  # the bar cannot be pickled, so other processes cannot update it
                share = share._replace(progress=bar.update)
            jobs = (
                delayed(answer)(model, *(part[rows] for part in of_points), limits=share)
                for rows in batches
            )
            for part in Parallel(n_jobs=n_workers, return_as="generator")(jobs):
                parts.append(part)
                bar.update(sum(len(done[0]) for done in parts) - bar.n)
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _bar(self, total: int, quiet: bool = False) -> Any:
        shown = self.verbose and not quiet
        return progress(total=total, desc=type(self).__name__, unit="point", verbose=shown)

    def _bisect(
        self,
        points: FloatArray,
        decide: Callable[..., Certificate],
        of_points: NDArray[Any],
        tol: float,
        max_radius: float | None,
        precision: float,
        max_time: float | None = None,
        max_regions: int | None = 10_000,
        **shape: Any,
    ) -> SafeRadius:
        """Find for each point, by bisection, the largest radius that `decide` certifies.

        `of_points` has a label or a tolerance for each point, which is passed to `decide`.
        """
        refuse_shape(shape, "region")
        near, limits = Neighbourhood(**shape), read_limits(tol, max_time, max_regions)
        names = getattr(self, "feature_names_in_", None)
        if max_radius is None:
            free = near.free(points.shape[1], names)
            max_radius = float(np.linalg.norm(self._deviations[free], near.order)) or self._length
        for value, name in ((max_radius, "max_radius"), (precision, "precision")):
            check_number(value, name, positive=True)
        deadline = time.monotonic() + limits.max_time
        bisection = Bisection(points, near.order, max_radius, precision * max_radius)
        with self._bar(len(points)) as bar:
            while len(rows := bisection.open) and (left := deadline - time.monotonic()) > 0:
                balls = near.of_rows(points, rows, bisection.trial[rows])
                regions = balls.around(points[rows], names)
                share = limits._replace(max_time=left)
                found = self._in_batches(decide, share, regions, of_points[rows], quiet=True)
                bisection.learn(Certificate(*found))
                bar.update(len(points) - len(bisection.open) - bar.n)
            bar.update(len(points) - bar.n)
        return bisection.result()


def certificate_device(device: str | torch.device) -> torch.device:
    if str(device).partition(":")[0] == "mps":
        raise ValueError(
            "`device`='mps' cannot compute certificates, because guarantees need float64, which "
            "MPS does not support; use 'cpu', or 'auto', which never selects MPS."
        )
    return resolve_device(device)


def check_sizes(values: FloatArray, *scales: Any) -> None:
    """Raise if squares of `values`, or of `values` divided by `scales`, would overflow."""
    for scale in (np.ones(1), *map(np.asarray, scales)):
        fits = (scale >= 1 / _LARGEST).all() and (scale <= _LARGEST).all()
        large = np.argwhere(np.abs(values / scale) > _LARGEST)
        if not fits or len(large):
            where = ""
            if len(large):
                row, *column = large[0]
                where = f" Feature {column[0] if column else 0} is {values[tuple(large[0])]:g} in "
                where += f"row {row}."
            raise ValueError(
                "Data, length-scales, and data divided by length-scales must not exceed "
                f"{_LARGEST:g} in absolute value, because their squares would overflow float64."
                f"{where} Please rescale the data."
            )


def exact_fit_bytes(n: int, n_matrices: int, kernel: Any) -> int:
    """Estimate the peak memory of an exact fit; measurements differed from it by at most 25 %."""
    return 8 * n**2 * (6 * max(1, _n_leaves(kernel)) + n_matrices)


def _n_leaves(kernel: Any) -> int:
    if isinstance(kernel, KernelOperator):
        return _n_leaves(kernel.k1) + _n_leaves(kernel.k2)
    return 0 if isinstance(kernel, ConstantKernel) else 1


def _warn_of_scales(X: FloatArray, kernel: Any) -> None:
    """Warn if features whose standard deviations differ much share one length-scale."""
    spread = X.std(axis=0)
    moving = spread[spread > 0]
    if max(map(np.size, hyper.length_scales(kernel).values()), default=0) != 1 or len(moving) < 2:
        return
    if moving.max() > _DISPARITY * np.median(moving):
        warn_user(
            f"Feature {int(spread.argmax())} has a standard deviation of {moving.max():.3g}, and "
            f"the median over features is {np.median(moving):.3g}. This feature dominates all "
            "distances, because all features share one length-scale; scale the features "
            "(sklearn.preprocessing.StandardScaler)."
        )
