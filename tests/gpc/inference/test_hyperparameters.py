"""The optimiser: finds what scikit-learn finds, and keeps to its budget and bounds."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF

from skuq.gpc.inference._hyperparameters import Evidence, NoEvidenceError, maximise_evidence
from skuq.gpc.inference._priors import DensePrior

from .oracles import EP, LAPLACE

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = np.where(np.sin(2 * X[:, 0]) + 0.3 * RNG.normal(size=60) > 0, 1.0, -1.0)
START = 1.0 * RBF([1.0, 1.0])


def laplace(kernel, state=None):
    return LAPLACE.evidence(DensePrior(kernel, X), Y, "logit", state=state)


def restarted(objective, kernel, n_restarts, seed=0, **more):
    rng = np.random.default_rng(seed)
    return maximise_evidence(objective, kernel, n_restarts=n_restarts, rng=rng, **more)


def test_optimum_is_that_of_scikit_learn():
    reference = GaussianProcessClassifier(START).fit(X, Y).base_estimator_
    found = maximise_evidence(laplace, START)
    assert_allclose(found.evidence.value, reference.log_marginal_likelihood_value_, rtol=1e-6)
    assert_allclose(found.kernel.theta[:2], reference.kernel_.theta[:2], atol=1e-2)
    assert found.message.startswith("CONVERGENCE")
    assert_array_equal(START.theta, np.zeros(3))


def test_ep_ends_where_its_gradient_vanishes():
    def objective(kernel, state):
        return EP.evidence(DensePrior(kernel, X), Y, "probit", state=state)

    found = maximise_evidence(objective, 1.0 * RBF(1.0))
    assert_allclose(found.evidence.gradient, 0, atol=1e-3)


@pytest.mark.parametrize("max_iter", [1, 5])
def test_budget_limits_evaluations_and_is_no_failure(max_iter):
    calls = []

    def counted(kernel, state):
        calls.append(kernel)
        return laplace(kernel, state)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = maximise_evidence(counted, START, max_iter=max_iter)
    assert len(calls) == found.n_evaluations == max_iter
    assert_allclose(found.evidence.value, max(laplace(each).value for each in calls), rtol=1e-8)
    assert found.message == f"STOP: {max_iter} evaluations"


def test_restarts_escape_a_poor_start_and_are_reproducible():
    poor = 1.0 * RBF(1e-3, (1e-3, 1e2))
    alone = maximise_evidence(laplace, poor, max_iter=30)
    one, other = (restarted(laplace, poor, 3, seed=4, max_iter=30) for _ in range(2))
    assert one.evidence.value > alone.evidence.value + 1
    assert one.n_evaluations > alone.n_evaluations
    assert_array_equal(one.kernel.theta, other.kernel.theta)


def test_fixed_kernels_are_evaluated_once_and_infinite_bounds_forbid_restarts_only():
    found = restarted(laplace, fixed := RBF(0.7, "fixed"), 2)
    assert (found.kernel, found.n_evaluations) == (fixed, 1)
    assert found.evidence.value == pytest.approx(laplace(fixed).value)
    unbounded = RBF(1.0, (1e-3, np.inf))
    assert np.isfinite(maximise_evidence(laplace, unbounded, max_iter=3).evidence.value)
    with pytest.raises(ValueError, match="infinite"):
        restarted(laplace, unbounded, 1)


def test_a_search_that_gets_stuck_or_ends_on_a_slope_is_reported():
    def misleading(kernel, state):
        theta = kernel.theta
        return Evidence(-float(theta @ theta), 2 * theta + 1.0, theta, 0.0, True)

    def flat_in_its_last_digits(kernel, state):
        theta = kernel.theta
        return Evidence(1e12 + 3.0 * theta.sum(), np.full_like(theta, 3.0), theta, 0.0, True)

    for objective, words in ((misleading, "early"), (flat_in_its_last_digits, "still 3\\.")):
        with pytest.warns(ConvergenceWarning, match=words):
            maximise_evidence(objective, START)


def broken(kind):
    """Laplace's evidence, but undefined for long length scales."""

    def objective(kernel, state):
        evidence = laplace(kernel, state)
        if kernel.k2.length_scale.max() < 1.5:
            return evidence
        if kind == "error":
            raise np.linalg.LinAlgError("A matrix is singular.")
        if kind == "diverged":
            return evidence._replace(value=1e10, converged=False)
        return evidence._replace(**{kind: np.full_like(getattr(evidence, kind), np.nan)})

    return objective


@pytest.mark.parametrize("kind", ["error", "value", "gradient", "diverged"])
def test_failing_trials_are_backed_away_from_and_failing_starts_are_errors(kind):
    assert maximise_evidence(laplace, START).kernel.k2.length_scale.max() > 1.5
    found = maximise_evidence(broken(kind), START)
    assert found.evidence.converged
    assert found.evidence.value > laplace(START).value + 1
    assert found.kernel.k2.length_scale.max() < 1.5
    if kind != "diverged":
        with pytest.raises(NoEvidenceError, match="Scale"):
            maximise_evidence(broken(kind), 1.0 * RBF([5.0, 5.0], (1.5, 100.0)))
        mixed = 1.0 * RBF([1.0, 1.0], (1.0, 1e5))  # of which only restarts fail
        found = restarted(broken(kind), mixed, 4, max_iter=10)
        assert np.isfinite(found.evidence.value)
        assert found.n_evaluations >= 5
