"""Maximise the marginal likelihood, also called evidence, over a kernel's hyperparameters."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skuq.base import FloatArray
from skuq.validation import warn_user

_STEEP = 1.0  # a search that ends at a larger derivative (nats per log-hyperparameter) has failed


class Evidence(NamedTuple):
    value: float  # approximate log marginal likelihood, in nats
    # (n_theta,), derivative with respect to ``kernel.theta``; empty if it was not requested
    gradient: FloatArray
    state: FloatArray  # warm start for an evaluation at nearby hyperparameters
    # Number added to the diagonal of a matrix to factorise it, divided by the diagonal's mean.
    jitter: float
    converged: bool  # whether the iteration for the approximate posterior converged


# Function of a kernel and a state, which is None or `Evidence.state` of an earlier evaluation.
Objective = Callable[[Any, FloatArray | None], Evidence]


class Approximation(NamedTuple):
    conditional: Any  # prior, conditioned on Gaussian sites that approximate the likelihood
    alpha: FloatArray  # vector for which the mean of the posterior is ``K alpha``
    value: float  # as in `Evidence`
    gradient: Callable[[], FloatArray]
    state: FloatArray
    converged: bool


class Inference(ABC):
    @abstractmethod
    def approximate(self, prior: Any, state: FloatArray | None) -> Approximation:
        """Approximate the posterior of the latent values by a Gaussian."""

    def evidence(
        self, prior: Any, state: FloatArray | None = None, eval_gradient: bool = True
    ) -> Evidence:
        found = self.approximate(prior, state)
        gradient = found.gradient() if eval_gradient else np.empty(0)
        jitter = found.conditional.jitter
        return Evidence(found.value, gradient, found.state, jitter, found.converged)

    def posterior(self, prior: Any, state: FloatArray | None = None) -> Any:
        found = self.approximate(prior, state)
        return found.conditional.posterior(found.alpha)


class NoEvidenceError(ValueError):
    """The marginal likelihood of the initial hyperparameters cannot be computed."""


class Maximum(NamedTuple):
    kernel: Any  # with the best hyperparameters
    evidence: Evidence  # for the best hyperparameters
    n_evaluations: int  # number of evaluations of the evidence, over all restarts
    message: str  # termination message of the best run


class _Coordinates:
    # The search divides length-scales by powers of two near their initial values, so that it does
    # not depend on the features' units. If these change by powers of two, rounding does not change.

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._units = kernel, {}
        changed = {}
        for name, value in length_scales(kernel).items():
            self._units[name] = unit = power_of_two(value)
            bounds = kernel.get_params()[f"{name}_bounds"]
            if not isinstance(bounds, str):
                rows = np.atleast_2d(np.asarray(bounds, np.float64))
                changed[f"{name}_bounds"] = rows / np.reshape(unit, (-1, 1))
            changed[name] = value / unit
        self._scaled = clone(kernel).set_params(**changed)
        self.start, self.bounds = self._scaled.theta, self._scaled.bounds

    def kernel(self, theta: FloatArray) -> Any:
        found = self._scaled.clone_with_theta(theta).get_params()
        values = {
            name: value * self._units.get(name, 1.0)
            for name, value in found.items()
            if name.endswith(("length_scale", "alpha", "constant_value", "noise_level"))
        }
        return clone(self._kernel).set_params(**values)


def length_scales(kernel: Any) -> dict[str, Any]:
    parameters = kernel.get_params().items()
    return {name: value for name, value in parameters if name.endswith("length_scale")}


def feature_units(kernel: Any) -> Any:
    """Return a power of two near each length-scale, (n_features,), or 1 if features share one."""
    scales = list(length_scales(kernel).values())
    if not scales or any(np.size(scale) == 1 for scale in scales):
        return 1.0
    return power_of_two(scales[0])


def power_of_two(value: Any) -> Any:
    return np.ldexp(1.0, np.frexp(value)[1])


class _BudgetSpentError(Exception):
    """Raised by the objective to end a run after the last allowed evaluation."""


def evidence_at(objective: Objective, kernel: Any, state: FloatArray | None = None) -> Evidence:
    """Evaluate the evidence, and raise `NoEvidenceError` unless it is finite."""
    reason = "The result is not finite."
    try:
        # Ignore warnings: an overflow either is harmless, or makes the result non-finite, which is
        # checked below.
        with np.errstate(all="ignore"):
            evidence = objective(kernel, state)
        if np.isfinite(evidence.value) and np.isfinite(evidence.gradient).all():
            return evidence
    except (np.linalg.LinAlgError, FloatingPointError) as error:
        reason = str(error)
    raise NoEvidenceError(
        f"The marginal likelihood of the data cannot be computed for the kernel {kernel}: "
        f"{reason} Scale the features, or choose initial hyperparameters of the same order of "
        "magnitude as the features."
    )


def maximise_evidence(
    objective: Objective,
    kernel: Any,
    *,
    max_iter: int = 100,
    n_restarts: int = 0,
    rng: np.random.Generator | None = None,
) -> Maximum:
    """Maximise the evidence with L-BFGS-B over the logarithms of the free hyperparameters."""
    # The first run starts from `kernel`, the other `n_restarts` runs from hyperparameters drawn
    # log-uniformly within their bounds. Each run makes up to `max_iter` evaluations. The evidence
    # of `kernel` must be finite; other hyperparameters without finite evidence are rejected.
    coordinates, drawn = _Coordinates(kernel), []
    if rng is not None and n_restarts and len(coordinates.start):
        if not np.isfinite(coordinates.bounds).all():
            raise ValueError(
                "Restarts draw hyperparameters within their bounds, but some bounds of "
                f"{kernel} are infinite; set finite bounds, or set n_restarts=0."
            )
        drawn = [rng.uniform(*coordinates.bounds.T) for _ in range(n_restarts)]
    runs = [_run(objective, coordinates, coordinates.start, max_iter)]
    for start in drawn:
        with suppress(NoEvidenceError):
            runs.append(_run(objective, coordinates, start, max_iter))
    best = max(runs, key=lambda run: _rank(run.evidence))
    steepness = _steepness(best.kernel, best.evidence)
    if best.message.startswith("ABNORMAL") or (
        not best.message.startswith("STOP") and steepness > _STEEP
    ):
        warn_user(
            f"The optimiser stopped early ({best.message}), although the derivative of the log "
            f"marginal likelihood by a log-hyperparameter is still {steepness:.2g}. The best "
            "evaluated hyperparameters are used. Scale the features, or start from different "
            "hyperparameters.",
            ConvergenceWarning,
        )
    n_lost = 1 + len(drawn) - len(runs)  # restarts that failed at their first evaluation
    return best._replace(n_evaluations=n_lost + sum(run.n_evaluations for run in runs))


def _steepness(kernel: Any, evidence: Evidence) -> float:
    """Return the largest derivative of the evidence in directions in which bounds leave room."""
    theta = kernel.theta
    if not len(theta):
        return 0.0
    room = np.where(evidence.gradient > 0, kernel.bounds[:, 1] - theta, theta - kernel.bounds[:, 0])
    return float(np.abs(np.where(room > 1e-6, evidence.gradient, 0.0)).max())


def _rank(evidence: Evidence) -> tuple[bool, float]:
    return evidence.converged, evidence.value


def _run(
    objective: Objective, coordinates: _Coordinates, start: FloatArray, max_iter: int
) -> Maximum:
    n_evaluations, state, best, worst = 0, None, None, -np.inf

    def negative(theta: FloatArray) -> tuple[float, FloatArray]:
        nonlocal n_evaluations, state, best, worst
        if n_evaluations == max_iter:
            raise _BudgetSpentError
        n_evaluations += 1
        candidate = coordinates.kernel(theta)
        evidence = None
        with suppress(NoEvidenceError) if best else nullcontext():
            evidence = evidence_at(objective, candidate, state)
        if best and (evidence is None or not evidence.converged):
            # This value is large enough for the line search to reject the step, and small enough
            # not to disturb the interpolation that chooses the next step.
            return worst + 1.0, np.zeros_like(theta)
        state, worst = evidence.state, max(worst, -evidence.value)
        if best is None or _rank(evidence) > _rank(best[1]):
            best = candidate, evidence
        return -evidence.value, -evidence.gradient

    message = "CONVERGENCE: no free hyperparameters"
    try:
        if len(start):
            # `_BudgetSpentError` ends the run before the optimiser reaches these limits.
            options = {"maxiter": max_iter, "maxfun": max_iter + 1}
            search = {"method": "L-BFGS-B", "bounds": coordinates.bounds, "options": options}
            message = minimize(negative, start, jac=True, **search).message
        else:
            negative(start)
    except _BudgetSpentError:
        message = f"STOP: {max_iter} evaluations"
    assert best is not None
    return Maximum(*best, n_evaluations, message)
