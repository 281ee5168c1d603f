"""Maximisation of the marginal likelihood over a kernel's hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skuq.base import FloatArray
from skuq.gpc.inference._laplace import Evidence
from skuq.validation import warn_user

_STEEP = 1.0  # nats per unit of a hyperparameter's logarithm: not what a maximum looks like

# Of a kernel, and of the state of an earlier evaluation to start from.
Objective = Callable[[Any, FloatArray | None], Evidence]


class NoEvidenceError(ValueError):
    """The marginal likelihood cannot be computed under the hyperparameters to start from."""


class Maximum(NamedTuple):
    """The best hyperparameters that were evaluated."""

    kernel: Any  # with these hyperparameters
    evidence: Evidence  # at them
    n_evaluations: int  # evaluations of the evidence, over all restarts
    message: str  # why the run ended that found them


class _Coordinates:
    """Coordinates of the search: logarithms, of length-scales in units that are powers of two."""

    # The units are near the length-scales to start from. The search thus takes the same steps
    # whatever the unit of the features is, to the last digit for units that differ by powers of
    # two, by which numbers are multiplied without rounding.

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
        """The kernel at these coordinates."""
        found = self._scaled.clone_with_theta(theta).get_params()
        values = {
            name: value * self._units.get(name, 1.0)
            for name, value in found.items()
            if name.endswith(("length_scale", "alpha", "constant_value", "noise_level"))
        }
        return clone(self._kernel).set_params(**values)


def length_scales(kernel: Any) -> dict[str, Any]:
    """The length-scales of all parts of a kernel by the names of their parameters."""
    parameters = kernel.get_params().items()
    return {name: value for name, value in parameters if name.endswith("length_scale")}


def feature_units(kernel: Any) -> Any:
    """Powers of two near the length-scales of features, (n_features,); 1 where these share one."""
    scales = list(length_scales(kernel).values())
    if not scales or any(np.size(scale) == 1 for scale in scales):
        return 1.0
    return power_of_two(scales[0])


def power_of_two(value: Any) -> Any:
    """The next power of two above each of some positive numbers."""
    return np.ldexp(1.0, np.frexp(value)[1])


class _BudgetSpentError(Exception):
    """Ends a run from within its objective, after the last evaluation that was allowed."""


def evidence_of_kernels(
    evidence: Callable[..., Evidence],
    prior: Callable[[Any], Any],
    eval_gradient: bool,
    bar: Any,
) -> Objective:
    """The evidence of the data as a function of the kernel, each evaluation shown on a tqdm bar."""

    def objective(kernel: Any, state: FloatArray | None) -> Evidence:
        found = evidence(prior(kernel), state=state, eval_gradient=eval_gradient)
        bar.set_postfix(log_evidence=f"{found.value:.1f}", refresh=False)
        bar.update()
        return found

    return objective


def evidence_at(objective: Objective, kernel: Any, state: FloatArray | None = None) -> Evidence:
    """Evaluate the evidence once, and make sure that it is a number."""
    reason = "The result is not finite."
    try:
        # What overflows on the way either does no harm or shows in the result.
        with np.errstate(all="ignore"):
            evidence = objective(kernel, state)
        if np.isfinite(evidence.value) and np.isfinite(evidence.gradient).all():
            return evidence
    except (np.linalg.LinAlgError, FloatingPointError) as error:
        reason = str(error)
    raise NoEvidenceError(
        f"The marginal likelihood of the data cannot be computed for the kernel {kernel}: "
        f"{reason} Scale the features, or start from hyperparameters that fit them."
    )


def maximise_evidence(
    objective: Objective,
    kernel: Any,
    *,
    max_iter: int = 100,
    n_restarts: int = 0,
    rng: np.random.Generator | None = None,
) -> Maximum:
    """Maximise the evidence by L-BFGS-B over the logarithms of the free hyperparameters."""
    # Each of the 1 + n_restarts runs makes up to max_iter evaluations, the first from `kernel`, the
    # others from hyperparameters drawn by `rng` log-uniformly within their bounds. That the
    # evidence cannot be computed is an error at the start only; elsewhere such hyperparameters
    # count as bad.
    coordinates = _Coordinates(kernel)
    drawn = _drawn_starts(coordinates, kernel, n_restarts, rng)
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
            f"The optimiser of the marginal likelihood stopped early ({best.message}), "
            f"where it still rises by {steepness:.2g} per unit of a logarithm; the best "
            "hyperparameters found so far are used. Scale the features, or start the kernel's "
            "hyperparameters elsewhere.",
            ConvergenceWarning,
        )
    n_lost = 1 + len(drawn) - len(runs)  # drawn starts that allowed no evaluation but their own
    return best._replace(n_evaluations=n_lost + sum(run.n_evaluations for run in runs))


def _steepness(kernel: Any, evidence: Evidence) -> float:
    """Largest derivative of the evidence along which its bounds let a hyperparameter move."""
    theta = kernel.theta
    if not len(theta):
        return 0.0
    room = np.where(evidence.gradient > 0, kernel.bounds[:, 1] - theta, theta - kernel.bounds[:, 0])
    return float(np.abs(np.where(room > 1e-6, evidence.gradient, 0.0)).max())


def _drawn_starts(
    coordinates: _Coordinates, kernel: Any, n_restarts: int, rng: np.random.Generator | None
) -> list[FloatArray]:
    if not n_restarts or not len(coordinates.start):
        return []
    if not np.isfinite(coordinates.bounds).all():
        raise ValueError(
            "Restarts draw hyperparameters within their bounds, but some bounds of "
            f"{kernel} are infinite; give it finite ones, or do without restarts."
        )
    if rng is None:
        raise ValueError("Restarts are drawn at random; pass `rng`.")
    return [rng.uniform(*coordinates.bounds.T) for _ in range(n_restarts)]


def _rank(evidence: Evidence) -> tuple[bool, float]:
    """Key by which results are compared: any that converged is better than any that did not."""
    return evidence.converged, evidence.value


def _run(
    objective: Objective,
    coordinates: _Coordinates,
    start: FloatArray,
    max_iter: int,
) -> Maximum:
    """One run; it ends with the best of its evaluations, which need not be the last."""
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
            # Bad enough to be turned down, near enough for the line search to interpolate.
            return worst + 1.0, np.zeros_like(theta)
        state, worst = evidence.state, max(worst, -evidence.value)
        if best is None or _rank(evidence) > _rank(best[1]):
            best = candidate, evidence
        return -evidence.value, -evidence.gradient

    message = "CONVERGENCE: no free hyperparameters"
    try:
        if len(start):
            # The number of evaluations ends the run; no limit of its own may come before.
            options = {"maxiter": max_iter, "maxfun": max_iter + 1}
            message = minimize(
                negative,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=coordinates.bounds,
                options=options,
            ).message
        else:
            negative(start)
    except _BudgetSpentError:
        message = f"STOP: {max_iter} evaluations"
    assert best is not None
    return Maximum(*best, n_evaluations, message)
