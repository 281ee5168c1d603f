"""Laplace's method and EP: exact integrals, dense algebra, differences, and other libraries."""

import pickle
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.special import expit, log_ndtr, log_softmax, softmax
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, Matern, RationalQuadratic

from skuq.gpc.inference import _priors as priors
from skuq.gpc.inference._likelihoods import tilted_moments
from skuq.gpc.inference._posterior import JointPosterior
from skuq.gpc.inference._priors import DensePrior, LowRankPrior, cholesky_with_jitter

from .oracles import DISTRIBUTION, EP, LAPLACE, SOFTMAX, differences, exact_posterior

LINKS = pytest.mark.parametrize("likelihood", DISTRIBUTION)
SHORT, LARGE, ROUGH = 2.0 * RBF(1.3), 25.0 * RBF([0.5, 2.0]), 3.0 * Matern(1.0, nu=1.5) + 0.5
MIXED = 2.0 * RationalQuadratic(0.5, 2.0) * Matern([3.0, 1.0], nu=2.5)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
LABELS = np.digitize(X[:, 0] + 0.3 * RNG.normal(size=30), [-0.5, 0.5])
Y = np.where(LABELS > 0, 1.0, -1.0)
POINTS = RNG.normal(size=(6, 2))
WEIGHT = np.linspace(0.0, 3.0, 30)
TARGETS = [(LAPLACE, (Y, "probit")), (LAPLACE, (Y, "logit")), (EP, (Y, "probit"))]
TARGETS += [(EP, (Y, "logit")), (SOFTMAX, (LABELS, 3))]
NAMES = ["Laplace probit", "Laplace logit", "EP probit", "EP logit", "softmax"]
EACH = pytest.mark.parametrize(("of", "target"), TARGETS, ids=NAMES)
PRIORS = {"dense": DensePrior, "low rank": lambda kernel, X: LowRankPrior(kernel, X, X[:10] + 0.1)}


def assert_close(one, other, **tolerances):
    for a, b in zip(one, other, strict=True):
        assert_allclose(a, b, **tolerances)


@EACH
@pytest.mark.parametrize(
    ("prior", "kernel"),
    [("dense", SHORT), ("dense", LARGE), ("low rank", ROUGH), ("low rank", MIXED)],
    ids=str,
)
def test_gradient_is_that_of_differences(prior, kernel, of, target):
    def at(theta, **more):
        there = PRIORS[prior](kernel.clone_with_theta(theta), X)
        return of.evidence(there, *target, sample_weight=WEIGHT, **more)

    step, tolerance = (1e-2, 1e-5) if of is EP else (1e-3, 1e-6)
    expected = differences(lambda t: at(t, eval_gradient=False).value, kernel.theta, step)
    found = at(kernel.theta)
    assert found.converged
    assert_allclose(found.gradient, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernel", [SHORT, LARGE, ROUGH, MIXED], ids=str)
def test_logit_agrees_with_scikit_learn(kernel):
    reference = GaussianProcessClassifier(kernel, optimizer=None).fit(X, Y).base_estimator_
    value, gradient = reference.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    evidence = LAPLACE.evidence(DensePrior(kernel, X), Y, "logit")
    # scikit-learn stops its Newton iteration once the objective gains less than 1e-10.
    assert_allclose(evidence.value, value, rtol=1e-7)
    assert_allclose(evidence.gradient, gradient, rtol=2e-6, atol=2e-6)
    mean, _ = LAPLACE.posterior(DensePrior(kernel, X), Y, "logit").moments(X)
    assert_allclose(expit(mean[:, 0]), reference.pi_, atol=1e-5)


def test_mode_and_determinant_of_probit_are_those_of_the_definition():
    y, kernel = Y[:15], 4.0 * RBF(0.8)
    K, prior = kernel(X[:15]), DensePrior(kernel, X[:15])
    factor = np.linalg.cholesky(K)

    def loss(z):  # in whitened coordinates
        return 0.5 * z @ z - log_ndtr(y * (factor @ z)).sum()

    f = factor @ minimize(loss, np.zeros(15), options={"gtol": 1e-9}).x
    W = np.diag(2 * log_ndtr(y * f) - log_ndtr(y * (f + 1e-3)) - log_ndtr(y * (f - 1e-3))) / 1e-6
    log_det = np.linalg.slogdet(np.eye(15) + K @ W)[1]
    expected = -loss(np.linalg.solve(factor, f)) - 0.5 * log_det
    mean, variance = LAPLACE.posterior(prior, y, "probit").moments(X[:15])
    assert_allclose(mean[:, 0], f, atol=2e-5)
    covariance = np.linalg.inv(np.linalg.inv(K) + W)
    assert_allclose(variance[:, 0, 0], np.diag(covariance), atol=1e-5)
    assert_allclose(LAPLACE.evidence(prior, y, "probit").value, expected, atol=1e-5)


def brute_force(kernel, labels, n_classes, weight):
    """Evidence, and the moments at test points, from arrays of all classes and points."""
    n, K = len(X), kernel(X)
    factor = np.linalg.cholesky(K + 1e-12 * np.eye(n))

    def loss(z):
        f = z.reshape(n_classes, n) @ factor.T
        miss = softmax(f, axis=0) - (labels == np.arange(n_classes)[:, None])
        value = -(weight * log_softmax(f, axis=0)[labels, range(n)]).sum()
        return 0.5 * z @ z + value, z + ((weight * miss) @ factor).ravel()

    options = {"maxiter": 20_000, "maxfun": 50_000, "gtol": 1e-10, "ftol": 1e-16}
    found = minimize(loss, np.zeros(n_classes * n), jac=True, method="L-BFGS-B", options=options)
    f = found.x.reshape(n_classes, n) @ factor.T
    p = softmax(f, axis=0)
    W = np.einsum("ci,cd,ij->cidj", weight * p, np.eye(n_classes), np.eye(n))
    W -= np.einsum("ci,di,ij->cidj", weight * p, p, np.eye(n))
    W = W.reshape(n_classes * n, -1)
    B, r = np.eye(n_classes * n) + np.kron(np.eye(n_classes), K) @ W, kernel(POINTS, X)
    R = (W @ np.linalg.inv(B)).reshape(n_classes, n, n_classes, n)
    prior = np.eye(n_classes) * kernel.diag(X[:1])[0]
    mean = np.linalg.solve(K + 1e-12 * np.eye(n), f.T)
    value = -found.fun - 0.5 * np.linalg.slogdet(B)[1]
    return value, r @ mean, prior - np.einsum("ti,cidj,tj->tcd", r, R, r)


@pytest.mark.parametrize(("kernel", "n_classes"), [(SHORT, 4), (ROUGH, 3)], ids=str)
def test_softmax_is_that_of_its_definition(kernel, n_classes):
    weight, given = np.ones(30), {}
    if n_classes == 3:
        given["sample_weight"] = weight = np.linspace(0.1, 3.0, 30)
    value, mean, covariance = brute_force(kernel, LABELS, n_classes, weight)
    problem = DensePrior(kernel, X), LABELS, n_classes
    assert_allclose(SOFTMAX.evidence(*problem, **given).value, value, rtol=1e-6)
    found = SOFTMAX.posterior(*problem, **given).moments(POINTS)
    assert_allclose(found[0], mean, atol=1e-4)
    assert_allclose(found[1], covariance, atol=1e-5)


def sequential(K, y, likelihood, n_sweeps=200):
    """Moments after updating one site at a time, with the posterior recomputed each time."""
    precision, shift, one = np.zeros(len(y)), np.zeros(len(y)), np.ones(1)
    for _ in range(n_sweeps):
        before = shift.copy()
        for i in range(len(y)):
            root = np.sqrt(precision)[:, None]
            B = np.eye(len(y)) + root * K * root.T
            covariance = K - K @ (root * np.linalg.solve(B, root * K))
            mean, variance = covariance @ shift, covariance[i, i]
            cavity = 1 / (1 / variance - precision[i])
            centre = cavity * (mean[i] / variance - shift[i])
            got = tilted_moments(likelihood, y[i : i + 1], centre * one, cavity * one, one)
            new_variance = cavity + cavity**2 * got.second[0]
            precision[i] = 1 / new_variance - 1 / cavity
            shift[i] = (centre + cavity * got.first[0]) / new_variance - centre / cavity
        if np.abs(shift - before).max() < 1e-11:
            break
    return mean, np.diag(covariance)


@pytest.mark.parametrize(
    ("likelihood", "kernel"), [("probit", LARGE), ("logit", SHORT), ("probit", 400.0 * MIXED)]
)
def test_fixed_point_of_ep_is_that_of_sequential_updates(kernel, likelihood):
    mean, variance = sequential(kernel(X[:15]), Y[:15], likelihood)
    got = EP.posterior(DensePrior(kernel, X[:15]), Y[:15], likelihood).moments(X[:15])
    assert_allclose((got[0][:, 0] - mean) / np.sqrt(variance), 0, atol=1e-6)
    assert_allclose(got[1][:, 0, 0], variance, rtol=1e-6)


@LINKS
def test_ep_is_nearly_exact_on_tiny_problems_and_exact_for_one_point(likelihood):
    inputs, kernel, cdf = np.array([[0.0], [0.7], [2.0]]), 4.0 * RBF(1.0), DISTRIBUTION[likelihood]

    def check(prior, y, power, nodes, tolerances):
        given = {} if power == 1 else {"sample_weight": np.full(len(y), power)}
        value, mean, variance = exact_posterior(
            prior.kernel(prior.inputs), lambda f: (cdf((y * f.T).T) ** power).prod(axis=0), *nodes
        )
        got = EP.posterior(prior, y, likelihood, **given).moments(prior.inputs)
        found = EP.evidence(prior, y, likelihood, **given).value, got[0][:, 0], got[1][:, 0, 0]
        for one, other, tolerance in zip(found, (value, mean, variance), tolerances, strict=True):
            assert_allclose(one, other, **tolerance)

    n = 2 if likelihood == "probit" else 3
    for signs in product([-1.0, 1.0], repeat=n - 1):  # the others are these with all signs turned
        tolerances = {"atol": 1e-2}, {"atol": 2e-2}, {"rtol": 3e-2}
        check(DensePrior(kernel, inputs[:n]), np.array([1.0, *signs]), 1, (40, 8.0), tolerances)
    one = DensePrior(9.0 * RBF(), np.zeros((1, 1)))
    for power in (1.0, 0.3):
        tolerances = {"rtol": 1e-8}, {"rtol": 1e-6}, {"rtol": 1e-6}
        check(one, np.ones(1), power, (4001, 12.0), tolerances)


@EACH
def test_a_start_elsewhere_leads_to_the_same_place(of, target):
    prior, other = DensePrior(LARGE, X), DensePrior(40.0 * RBF(0.6), X)
    cold, far = of.evidence(prior, *target), of.evidence(other, *target)
    tolerances = (1e-4, 1e-6) if of is EP else (1e-7, 1e-9)
    for state in (cold.state, far.state):
        found = of.evidence(prior, *target, state=state)
        assert_allclose(found.value, cold.value, rtol=1e-8)
        assert_allclose(found.gradient, cold.gradient, *tolerances)


LINE = np.arange(9.0)[:, None]
DEGENERATE = {
    "one point": (np.zeros((1, 1)), [1], RBF()),
    "duplicates": (np.zeros((6, 2)), [1, 1, 1, 0, 1, 1], RBF()),
    "large": (LINE, np.repeat([0, 1, 2], 3), 1e6 * RBF(0.1)),
    "large and smooth": (LINE, np.repeat([0, 1, 2], 3), 1e6 * RBF(30.0)),
    "larger": (LINE, np.repeat([0, 1], [4, 5]), 1e10 * RBF(30.0)),
    "outlier": (LINE, [1, 1, 1, 0, 1, 1, 1, 1, 1], 1e5 * RBF(30.0)),
    "tiny": (LINE, np.ones(9, int), 1e-8 * RBF(1e-5)),
}


@EACH
def test_degenerate_problems_stay_finite(of, target):
    kind = target[1]
    for case, (inputs, labels, kernel) in DEGENERATE.items():
        if case == "larger" and of is not LAPLACE:
            continue
        prior, labels = DensePrior(kernel, inputs), np.asarray(labels)
        target = labels if kind == 3 else np.where(labels > 0, 1.0, -1.0)
        found = of.evidence(prior, target, kind)
        both = np.vstack([inputs, inputs + 0.3])
        mean, covariance = of.posterior(prior, target, kind).moments(both)
        assert found.converged, case
        assert np.isfinite([found.value, *found.gradient, *mean.ravel()]).all(), case
        least = np.linalg.eigvalsh(covariance).min()
        assert least >= (-1e-9 * kernel.diag(inputs[:1])[0] if kind == 3 else 0), case
        mean = mean[: len(inputs)]
        right = mean.argmax(1) == labels if kind == 3 else np.sign(mean[:, 0]) == target
        assert right.mean() >= 0.6, case


@EACH
def test_posteriors_are_what_their_matrices_say_and_can_be_pickled(of, target, monkeypatch):
    found = of.posterior(DensePrior(ROUGH, X), *target)
    whole, matrices = found.moments(POINTS), found.reduction()
    own = matrices[np.equal(*np.triu_indices(len(found.weights)))]
    assert_allclose(own, own.swapaxes(1, 2), atol=1e-15)
    joint = JointPosterior(found.kernel, X, found.weights, matrices)
    monkeypatch.setattr("skuq.gpc.inference._posterior._BATCH_ENTRIES", 200)
    for other in (joint, pickle.loads(pickle.dumps(found))):
        assert_close(whole, other.moments(POINTS), atol=1e-9)


@EACH
def test_inducing_points_at_all_inputs_are_exact(of, target):
    for kernel in (SHORT, ROUGH):
        both = LowRankPrior(kernel, X, X), DensePrior(kernel, X)
        got, expected = (of.evidence(p, *target, sample_weight=WEIGHT) for p in both)
        assert_allclose(got.value, expected.value, rtol=1e-6)
        assert_allclose(got.gradient, expected.gradient, rtol=1e-5, atol=1e-5)
        assert 0 < got.jitter < 1e-8
        one, other = (of.posterior(p, *target, sample_weight=WEIGHT) for p in both)
        assert_close(one.moments(POINTS), other.moments(POINTS), atol=1e-5)


class Reduced(DensePrior):
    """The dense prior of covariance ``K_nm K_mm^-1 K_mn``, as a matrix."""

    def __init__(self, kernel, X, inducing):
        super().__init__(kernel, X)
        cross = kernel(X, inducing)
        own = kernel(inducing) + 1e-9 * kernel.diag(inducing[:1])[0] * np.eye(len(inducing))
        self.matrix = cross @ np.linalg.solve(own, cross.T)
        self.matrix = 0.5 * (self.matrix + self.matrix.T)


@EACH
def test_low_rank_evidence_is_that_of_the_reduced_covariance(of, target):
    low_rank = PRIORS["low rank"](SHORT, X)
    expected = of.evidence(Reduced(SHORT, X, X[:10] + 0.1), *target, eval_gradient=False)
    assert_allclose(of.evidence(low_rank, *target).value, expected.value, rtol=1e-6)
    # Far from the inducing points, the prior returns.
    mean, covariance = of.posterior(low_rank, *target).moments(np.array([[50.0, 0.0]]))
    assert_allclose(mean[0], 0, atol=1e-12)
    assert_allclose(covariance[0], 2.0 * np.eye(len(mean[0])), atol=1e-12)


@LINKS
def test_points_that_no_inducing_point_reaches_are_at_the_prior_mean(likelihood):
    inputs = np.array([[0.0], [0.1], [1e3]])
    prior, near = (LowRankPrior(4.0 * RBF(0.5), inputs[:n], inputs[:2]) for n in (3, 2))
    evidence = EP.evidence(prior, np.array([1.0, 1.0, -1.0]), likelihood)
    expected = EP.evidence(near, np.ones(2), likelihood).value + np.log(0.5)
    assert evidence.converged
    assert_allclose(evidence.value, expected, rtol=1e-8)
    assert np.isfinite(evidence.gradient).all()


def test_inducing_points_are_distinct_reproducible_and_spread():
    many = np.random.default_rng(1).uniform(size=(2000, 2))
    points, again = (priors.choose_inducing(many, 16, random_state=0) for _ in range(2))
    assert_array_equal(points, again)
    assert len(np.unique(points, axis=0)) == len(points) <= 16
    distance = np.linalg.norm(many[:, None] - points, axis=2).min(axis=1)
    assert distance.max() < 0.45  # half the diagonal of four by four cells is 0.18
    few = priors.choose_inducing(np.repeat(X, 3, axis=0), 30)
    assert_array_equal(few, np.unique(X, axis=0))
    # Those given twice are regularised.
    parts = (LowRankPrior(SHORT, X, part) for part in (np.vstack([X[:5]] * 2), X[:5]))
    twice, once = (LAPLACE.evidence(part, Y, "logit") for part in parts)
    assert_allclose(twice.value, once.value, rtol=1e-6)
    assert np.isfinite(twice.gradient).all()


def test_jitter_is_reported_and_limited():
    assert cholesky_with_jitter(np.eye(2))[1] == 0.0
    singular = np.ones((3, 3)) - 1e-12 * np.eye(3)
    factor, jitter = cholesky_with_jitter(singular)
    assert 1e-12 <= jitter <= 1e-10
    assert_allclose(factor @ factor.T, singular, atol=2e-10)
    for matrix in (np.ones((3, 3)) - 1e-2 * np.eye(3), np.full((2, 2), np.nan)):
        with pytest.raises(np.linalg.LinAlgError, match="covariance matrix"):
            cholesky_with_jitter(matrix)
