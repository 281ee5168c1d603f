"""The published bounds: envelopes, programmes, integrals, and branch and bound by them."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linprog
from scipy.special import expit, ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from benchmarks.published_gpc import integrals, published_bounds, softmax
from benchmarks.published_gpc import linear_programmes as lp
from benchmarks.published_gpc.branch_and_bound import branch_and_bound, multiclass_branch_and_bound
from skuq.gpc.bounds import from_sklearn
from skuq.gpc.inference._posterior import JointPosterior

from ..bounds.oracles import average, fit_model, grid, probabilities, within

SCALES = [0.7, 1.9, 1.1]
KERNELS = {
    "ard": lambda d: ConstantKernel(2.0) * RBF(SCALES[:d]),
    "matern32": lambda d: Matern(0.9, nu=1.5),
    "sum": lambda d: 0.5 * RBF(SCALES[:d]) + Matern(0.5, nu=1.5) + ConstantKernel(0.3),
    "product": lambda d: RBF(SCALES[:d]) * RationalQuadratic(0.8, 1.5) * Matern(2.0, nu=2.5),
}
ROUNDING = 1e-9


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("d", "half_width"), [(1, 0.05), (3, 1.0)])
def test_covariances_means_and_forms_stay_within_their_bounds(name, d, half_width):
    rng, kernel = np.random.default_rng(d), KERNELS[name](d)
    centre, sides = rng.normal(size=d), half_width * rng.uniform(0.5, 1.0, d)
    lower, upper = centre - sides, centre + sides
    inputs, weights = rng.normal(size=(12, d)), rng.normal(size=12)
    inputs[0] = centre  # the covariance is not smooth there for some kernels
    X = np.vstack([rng.uniform(lower, upper, (300, d)), grid(lower, upper, 2)])
    r, ours = kernel(X, inputs), from_sklearn(kernel, d)
    matrix = np.linalg.inv(kernel(inputs) + np.diag(rng.uniform(0.5, 3.0, 12)))
    box, t = lp.relax(ours, inputs, lower, upper), X - (lower + upper) / 2
    (low, low_slope), (high, high_slope) = box.lines_below(), box.lines_above()
    below, above = (c + t @ linear.T + t**2 @ q.T for c, linear, q in (box.below, box.above))
    lines = low + t @ low_slope.T, high + t @ high_slope.T
    for least, most in ((box.floor, box.ceiling), (below, above), lines):
        assert within(least, r, most, ROUNDING)
    near = np.clip(inputs, lower, upper)
    far = np.where(inputs > box.centre, lower, upper)
    for found, ends in ((box.ceiling, near), (box.floor, far)):
        assert_allclose(found, np.diagonal(kernel(ends, inputs)), rtol=1e-12)
    mixed = rng.normal(size=(12, 12))
    mixed = mixed + mixed.T
    definite, indefinite = (np.einsum("ni,ij,nj->n", r, m, r) for m in (matrix, mixed))
    for found, values in (
        (lp.mean_bounds(box, weights), r @ weights),
        (lp.variance_bounds(box, lp.spectrum(matrix), ours.variance), ours.variance - definite),
        (lp.quadratic_bounds(box, lp.spectrum(mixed)), indefinite),
    ):
        assert within(found.lower, values, found.upper, ROUNDING)
        assert within(lower, [found.at_lower, found.at_upper], upper, ROUNDING)
    primal = linprog(
        np.concatenate([np.zeros(d), weights]),
        A_ub=np.block([[low_slope, -np.eye(12)], [-high_slope, np.eye(12)]]),
        b_ub=np.concatenate([-low, high]),
        bounds=np.c_[[*-box.half_widths, *box.floor], [*box.half_widths, *box.ceiling]],
    )
    found = lp.minimise_linear(box, weights)
    assert_allclose([found.value, weights @ found.covariances], primal.fun, atol=1e-7)
    x, line = lower, lower + 0.3 * np.eye(d)[-1]  # a point, and a line along the last feature
    for bounds, argument, exact in (
        (lp.mean_bounds, weights, r[300] @ weights),
        (lp.quadratic_bounds, lp.spectrum(matrix), definite[300]),
    ):
        assert_allclose(bounds(lp.relax(ours, inputs, x, x), argument)[:2], exact, rtol=1e-8)
        assert_array_equal(bounds(lp.relax(ours, inputs, x, line), argument).at_lower[:-1], x[:-1])


def make_posterior(kernel, d, n=8):
    """Posterior as Laplace's method gives it, for a given curvature of the likelihood."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(n, d))
    matrix = np.linalg.inv(kernel(inputs) + np.diag(1 / rng.uniform(0.1, 0.6, n)))
    weights = 3.0 * matrix @ np.where(np.sin(2 * inputs[:, 0]) > 0, 1.0, -1.0)
    return JointPosterior(kernel, inputs, weights[None], matrix[None])


def probability(posterior, X, likelihood="probit"):
    return average(likelihood, *posterior.moments(X))[:, 1]


@pytest.mark.parametrize(
    ("kernel", "d", "width", "likelihood", "tol"),
    [
        (ConstantKernel(2.0) * Matern(1.0, nu=1.5), 2, 0.2, "probit", 0.05),
        (RBF(0.5), 1, 1.5, "probit", 0.05),
        (RBF(0.5), 1, 0.3, "logit", 0.1),
    ],
)
def test_searches_enclose_and_converge_to_the_extremes(kernel, d, width, likelihood, tol):
    posterior, widths = make_posterior(kernel, d), []
    lower, upper = np.full(d, -width), np.full(d, width)
    lower[1:] = upper[1:] = 0.3  # constant sides are never split
    values = probability(posterior, grid(lower, upper, 201), likelihood)
    for max_regions in (1, 3, 300):
        limits = {"likelihood": likelihood, "tol": tol, "max_regions": max_regions}
        found = branch_and_bound(posterior, lower, upper, **limits)
        assert within(found.min_lower, values, found.max_upper, 1e-9)
        ends = np.stack([found.argmin, found.argmax])
        assert within(lower, ends, upper)
        attained = probability(posterior, ends, likelihood)
        assert_allclose(attained, [found.min_upper, found.max_lower], atol=1e-8)
        assert found.converged or found.n_regions == 2 * max_regions - 1
        widths.append(found.max_upper - found.min_lower)
    assert found.converged
    assert widths == sorted(widths, reverse=True)
    assert found.min_lower >= values.min() - tol - 1e-3
    assert found.max_upper <= values.max() + tol + 1e-3


def test_the_authors_code_agrees():
    """Bounds that check-GPclass (MATLAB) gave at tolerance 0.01, to eight digits."""
    with np.load(Path(__file__).parent / "data" / "check_gpclass_n40.npz") as file:
        data = dict(file)
    kernel = ConstantKernel(float(data["variance"])) * RBF(data["length_scale"])
    posterior = JointPosterior(kernel, data["inputs"], data["weights"], data["matrix"][None])
    assert_allclose(probability(posterior, data["centres"]), data["figures"][:, 1], atol=1e-6)
    x, (radius, _, *theirs) = data["centres"][0], data["figures"][0]
    found = branch_and_bound(posterior, x - radius, x + radius, tol=0.01)
    assert found.converged
    for start in (0, 2):
        assert found[start] <= theirs[start + 1] + 1e-8
        assert theirs[start] - 1e-8 <= found[start + 1]


ONE = make_posterior(RBF(0.5), 1)
TWO = JointPosterior(RBF(), np.zeros((1, 1)), np.zeros((2, 1)), np.zeros((3, 1, 1)))


@pytest.mark.parametrize(("name", "sigma"), [("probit", ndtr), ("logit", expit)])
def test_discretised_bounds_enclose_quadrature_and_cost_one_interval(name, sigma):
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    many, one, fine = (integrals.uniform_partition(name, n) for n in (50, 1, 200))
    low, high = integrals.discretised_bounds(many, (0.4, 0.4), (1.5, 1.5))
    assert_allclose(high - low, 1 / 50, rtol=1e-6)
    assert integrals.discretised_bounds(one, (0.0, 1.0), (1.0, 2.0)) == (0.0, 1.0)
    clipped = np.array([0.0, 0.0, 0.5, 1.0, 1.0])
    other = integrals.Partition(np.array([-np.inf, -1.0, 0.0, 1.0, np.inf]), clipped)
    for partition, curve in ((fine, sigma), (other, lambda f: np.clip((f + 1) / 2, 0, 1))):
        for mean, variance in (((-0.5, -0.3), (0.0, 0.3)), ((0.0, 2.0), (1.0, 1.0))):
            low, high = integrals.discretised_bounds(partition, mean, variance)
            for m, v in itertools.product(np.linspace(*mean, 5), np.linspace(*variance, 5)):
                exact = curve(m + np.sqrt(v) * nodes) @ weights / weights.sum()
                assert low - 1e-12 <= exact <= high + 1e-12
    for scale, mean in itertools.product([0.5, 1.0, 3.0], [(-2.0, -1.0), (-1.0, 2.0), (0.0, 0.5)]):
        pairs = itertools.product(mean, np.linspace(0.2, 4.0))
        corners = [ndtr(m / np.sqrt(scale**-2 + v)) for m, v in pairs]
        bounds = integrals.probit_bounds(mean, (0.2, 4.0), scale)
        assert_allclose(bounds, [min(corners), max(corners)], rtol=1e-12)


MEAN = np.array([0.3, -0.4, 0.6])
COVARIANCE = np.array([[1.2, 0.5, 0.3], [0.5, 0.9, 0.4], [0.3, 0.4, 1.5]])


def around(value, width=0.0):
    return softmax.Interval(value - width, value + width)


def drawn(rng, mean, covariance, n):
    """Moments within ranges: random ones whose covariance is positive semidefinite."""
    while n:
        mu = rng.uniform(mean.low, mean.high)
        upper = np.triu(rng.uniform(covariance.low, covariance.high))
        sigma = upper + np.triu(upper, 1).T
        if np.linalg.eigvalsh(sigma)[0] > 0:
            n -= 1
            yield mu, sigma


def test_expected_softmax_lies_within_its_bounds(monkeypatch):
    exact = average("softmax", MEAN[None], COVARIANCE[None])[0]
    widths = []
    for n in (12, 24):
        low, high = softmax.softmax_bounds(around(MEAN), around(COVARIANCE), n).T
        assert ((low < exact) & (exact < high)).all()
        widths.append((high - low).max())
    assert 1.6 < widths[0] / widths[1] < 4
    ranges = around(MEAN, 0.2), around(COVARIANCE, 0.05)
    low, high = softmax.softmax_bounds(*ranges, 16).T
    moments = zip(*drawn(np.random.default_rng(3), *ranges, 50), strict=True)
    assert within(low, average("softmax", *map(np.array, moments)), high)
    low, high = softmax.softmax_bounds(around(MEAN), around(np.diag(COVARIANCE.diagonal())), 24).T
    assert (high - low < 2 * 5 * np.sqrt(1.5) / 22).all()  # independent: one interval
    mean, covariance = around(MEAN[:2]), around(np.array([[1.0, 0.8], [0.8, 1.0]]))
    truth = average("softmax", mean.low[None], covariance.low[None])[0]
    low, high = softmax.softmax_bounds(mean, covariance, 200).T
    assert ((low < truth) & (truth < high)).all()
    ours = softmax.conditionals

    def printed(covariance):  # the sign in the paper, which is not sound
        return [(softmax.Interval(-c.high, -c.low), v) for c, v in ours(covariance)]

    monkeypatch.setattr(softmax, "conditionals", printed)
    low, high = softmax.softmax_bounds(mean, covariance, 200).T
    assert not ((low < truth) & (truth < high)).any()


def test_no_point_of_a_box_is_outside_for_three_classes():
    model = fit_model(2, 2.0 * RBF(1.0), "softmax", n=8, n_classes=3)
    lower, upper = np.array([-0.2, 0.2]), np.array([0.2, 0.2])
    proba = probabilities(model, grid(lower, upper, 21))
    limits = {"n_intervals": 8, "max_regions": 2}
    found = multiclass_branch_and_bound(model.posterior_, lower, upper, [0, 2], **limits)
    for class_, one in zip((0, 2), found, strict=True):
        assert within(one.min_lower, proba[:, class_], one.max_upper)
        assert not one.converged
    X, request = np.array([[0.1, 0.2]]), {"radius": 0.02, "tol": 0.2, "max_regions": 1}
    theirs = published_bounds(model, X, **request)
    ours = model.predict_proba_bounds(X, 0.02, tol=0.02)
    assert (theirs.lower <= ours.min_upper).all()
    assert (ours.max_lower <= theirs.upper).all()
    last = published_bounds(model, X, **request, class_=model.classes_[2])
    assert_allclose(last.upper[:, 0], theirs.upper[:, 2])
    four = fit_model(0, RBF(1.0), "softmax", n=8, n_classes=4)
    with pytest.raises(ValueError, match="3 classes"):
        published_bounds(four, X, 0.1)
