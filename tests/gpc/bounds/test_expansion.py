"""Expansions of latent moments: no remainder larger than claimed, rounding included."""

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mpf
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from skuq.gpc.bounds._latent_bounds import Expander, Expansion, _form_reach
from skuq.gpc.bounds._latent_model import LatentModel
from skuq.gpc.bounds._regions import BallParts, Moments, Region
from skuq.gpc.inference._posterior import JointPosterior

from .oracles import KERNELS, fit_model, full, inside, moments, pairs_of, tensor, within

KINDS = {
    "laplace": ("probit", {}),
    "ep": ("logit", {"inference": "ep"}),
    "sparse": ("probit", {"n_inducing": 7}),
    "softmax": ("softmax", {"n_classes": 3}),
    "sparse softmax": ("softmax", {"n_classes": 3, "n_inducing": 7}),
}
OWN, BETWEEN = torch.zeros(1, dtype=torch.int64), np.eye(3) - 1 / 3
CORNERS = np.array([[-1.0, -1], [1, -1], [-1, 1], [1, 1]])


def fitted(rng, name, kind="laplace", **more):
    likelihood, parameters = KINDS[kind]
    return fit_model(rng, name, likelihood, **parameters, **more).posterior_


def polynomial(part, t):
    """Values and gradients, shapes (n, k) and (n, k, f), at n points of one box."""
    value, gradient, hessian = (tensor[0].numpy() for tensor in part[:3])
    bent = np.einsum("kfg,ng->nkf", hessian, t)
    return value + t @ gradient.T + np.einsum("nkf,nf->nk", bent, t) / 2, gradient + bent


def truth(posterior, points):
    mean, covariance = moments(posterior, points)
    return mean, pairs_of(covariance)


def expand(posterior, lower, upper, radius=None, norm=2):
    """Expansion of one box around the center of the ball, or its own."""
    center = (np.asarray(lower) + upper) / 2 if radius is None else radius[0]
    base, ball = tensor([center]), None if radius is None else tensor([radius[1]])
    model = LatentModel.from_posterior(posterior, "cpu")
    expander = Expander(model, base, torch.arange(base.shape[1]))
    return expander.expand(Region(base, tensor([lower]), tensor([upper]), ball, norm), OWN)


def errors(posterior, expansion, points, t):
    """Largest errors of the polynomials of mean and covariance, and what is claimed."""
    for part, exact in zip(expansion[:2], truth(posterior, points), strict=True):
        error = np.abs(polynomial(part, t)[0] - exact).max(axis=0)
        yield error, part.rest[0].numpy(), part, exact


@pytest.mark.parametrize(("name", "kind"), zip(KERNELS, [*KINDS] * 2, strict=False))
def test_remainders_enclose_what_the_polynomials_leave_out(name, kind):
    rng = np.random.default_rng(0)
    posterior = fitted(rng, name, kind)
    assert 0 <= LatentModel.from_posterior(posterior, "cpu").varsigma < 1e-5
    for half in (0.02, 0.2, 1.0):
        center, width = rng.normal(size=2), half * rng.uniform(0.2, 1, 2)
        t = np.concatenate([rng.uniform(-1, 1, (100, 2)), CORNERS])
        expansion = expand(posterior, center - width, center + width)
        for error, rest, part, exact in errors(posterior, expansion, center + width * t, t):
            assert (error <= rest + 1e-10).all()
            lower, upper = part.range()
            assert within(lower[0], exact, upper[0], 1e-10)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("rbf", "sparse softmax"), *((name, "softmax") for name in ("rbf", "matern32", "mixed"))],
)
def test_remainders_of_all_covariances_are_bounded_together(name, kind):
    """As matrices, up to a shift, and in weighted sums; for differences better than one by one."""
    rng = np.random.default_rng(0)
    posterior = fitted(rng, name, kind)
    leads = np.array([[1, -2, 0, 1, 0, 0], [1, 0, -2, 0, 0, 1], [0, 0, 0, 1, -2, 1]])
    weights = np.concatenate([leads, np.eye(6), rng.normal(size=(20, 6))])
    for half in (0.02, 0.2, 1.0):
        center, t = rng.normal(size=2), np.concatenate([rng.uniform(-1, 1, (100, 2)), CORNERS])
        expansion = expand(posterior, center - half, center + half)
        error = truth(posterior, center + half * t)[1] - polynomial(expansion.covariance, t)[0]
        together = np.linalg.norm(BETWEEN @ full(error) @ BETWEEN, 2, axis=(1, 2)).max()
        assert together <= float(expansion.contrast_rest) + 1e-10
        rest = expansion.covariances(tensor(weights[None])).rest[0].numpy()
        assert (np.abs(error @ weights.T).max(axis=0) <= rest + 1e-10).all()
        alone = np.abs(weights) @ expansion.covariance.rest[0].numpy()
        assert (rest <= alone + 1e-10).all()
        assert (rest[:3] < 0.9 * alone[:3]).all()


@pytest.mark.parametrize(("name", "norm"), [(name, 1 + i % 2) for i, name in enumerate(KERNELS)])
def test_ranges_over_balls_hold_and_are_tighter_in_many_features(name, norm):
    """Also where a domain cuts off half of the box."""
    rng = np.random.default_rng(7)
    posterior = fitted(rng, name, "softmax", d=8)
    for cut in (False, True):
        center = rng.normal(size=8)
        lower, upper = np.where(np.arange(8) % 2 >= cut, center - 0.3, center), center + 0.3
        points = inside(center, rng.uniform(lower, upper, (400, 8)), 0.3, f"l{norm}")
        box = expand(posterior, lower, upper)
        ball = expand(posterior, lower, upper, (center, 0.3), norm)
        for part, whole, exact in zip(ball[:2], box[:2], truth(posterior, points), strict=True):
            lowest, highest = part.range()
            assert within(lowest[0], exact, highest[0], 1e-10)
            assert (part.reach() < 0.7 * whole.reach()).all()


FIVE = ["rbf", "ard", "rational", "product", "sum"]


@pytest.mark.parametrize(("name", "kind"), zip(FIVE, KINDS, strict=True))
def test_gradient_remainders_enclose_the_gradients(name, kind):
    rng = np.random.default_rng(1)
    posterior = fitted(rng, name, kind)
    for half in (0.05, 0.4):
        center, width = rng.normal(size=2), half * rng.uniform(0.2, 1, 2)
        t = rng.uniform(-1, 1, (60, 2))
        expansion = expand(posterior, center - width, center + width)
        for j, step in enumerate(1e-4 * np.eye(2)):
            up, down = (truth(posterior, center + width * (t + s)) for s in (step, -step))
            for part, high, low in zip(expansion[:2], up, down, strict=True):
                error = np.abs(polynomial(part, t)[1][..., j] - (high - low) / 2e-4).max(axis=0)
                assert (error <= part.gradient_rest[0, :, j].numpy() + 1e-8).all()


@pytest.mark.parametrize(("name", "power"), [("rbf", 3), ("matern52", 2.5), ("matern32", 1.5)])
def test_remainders_shrink_with_the_order_of_the_kernel(name, power):
    posterior = fitted(0, name)
    wide, narrow = (expand(posterior, [-half] * 2, [half] * 2) for half in (1e-2, 1e-3))
    for one, other in zip(wide[:2], narrow[:2], strict=True):
        assert_allclose(torch.log10(one.rest / other.rest), power, atol=0.15)
        if name == "rbf":  # those of others are infinite
            ratio = one.gradient_rest / other.gradient_rest
            assert_allclose(torch.log10(ratio), 3, atol=0.15)


def test_quadratic_parts_over_a_ball_are_bounded_by_their_length():
    zero, ones, v = tensor([[0.0]]), tensor([[1.0, 1.0]]), tensor([0.6, 0.8])
    ball, unit = (BallParts(0 * ones, ones, tensor([radius]), 2) for radius in (1.5**0.5, 1.0))
    form = torch.eye(2).double()[None, None]
    assert float(_form_reach(form, None)) == pytest.approx(2.0)
    assert float(_form_reach(form, ball)) == pytest.approx(1.5)
    alone = Moments(zero, zero[..., None] * v, torch.outer(v, v)[None, None], zero, zero[..., None])
    assert float(alone.quadratic_reach()) == pytest.approx(1.4**2 / 2)  # at t = (1, 1)
    assert float(alone._replace(ball=unit).quadratic_reach()) == pytest.approx(0.5)  # at t = v


def unit_norm(rows, gram):
    return rows / np.sqrt(np.einsum("...j,jk,...k->...", rows, gram, rows))[..., None]


def test_remainders_are_tight_for_the_worst_of_functions():
    """A mean along the Taylor rest of ``k(h, .)``, a covariance reduced across it."""
    h, step = 0.01, 1e-4
    kernel, inputs = Matern(1.0, nu=1.5), np.array([[0.0], [step], [-step], [h]])
    rest = unit_norm(np.array([-1.0, -h / (2 * step), h / (2 * step), 1.0]), kernel(inputs))
    across = unit_norm(rest - [1.0, 0, 0, 0], kernel(inputs))
    posterior = JointPosterior(kernel, inputs, 5.0 * rest[None], np.outer(across, across)[None])
    at = np.array([[h]]), np.ones((1, 1))
    for error, claimed, *_ in errors(posterior, expand(posterior, [-h], [h]), *at):
        assert 0.52 * claimed < error <= claimed
    # Two latent functions of which the difference is reduced like that
    pairs = np.array([0.5, -0.5, 0.5])[:, None, None] * np.outer(across, across)
    posterior = JointPosterior(kernel, inputs, np.zeros((2, 4)), pairs)
    expansion = expand(posterior, [-h], [h])
    error = truth(posterior, at[0])[1] - polynomial(expansion.covariance, at[1])[0]
    error = abs(error @ [0.5, -1, 0.5]).item()
    assert 0.52 * float(expansion.contrast_rest) < error <= float(expansion.contrast_rest)


def test_weighted_sums_allow_for_the_worst_errors_among_contrasts_and_in_shifts():
    rng, none = np.random.default_rng(0), tensor(np.zeros((1, 6, 1)))
    covariance = Moments(none[..., 0], none, none[..., None], none[..., 0] + 0.5, none)
    mean = Moments(*(part[:, :3] for part in covariance[:5]))
    expansion = Expansion(mean, covariance, tensor([0.1]))
    for draw in range(20):
        A = rng.normal(size=(3, 3))
        A = A + A.T if draw % 2 else BETWEEN @ (A + A.T) @ BETWEEN
        weights = pairs_of(np.where(np.eye(3) == 1, A, 2 * A))
        rest = float(expansion.covariances(tensor(weights)[None, None]).rest)
        values, vectors = np.linalg.eigh(BETWEEN @ A @ BETWEEN)
        worst = np.sum(A * (0.1 * (vectors * np.sign(np.round(values, 9))) @ vectors.T))
        shift = rng.uniform(-0.15, 0.15, 3)
        error = worst + abs(np.sum(A * (shift[:, None] + shift)))
        assert 0 < error <= rest * (1 + 1e-9)
        assert draw % 2 or rest <= 1.000001 * error


def test_remainders_hold_for_functions_that_know_derivatives():
    """Means and reductions along combinations of the first derivatives of ``k(c, .)``."""
    rng, h, kernel = np.random.default_rng(0), 0.3, RBF(1.0)
    inputs, ratios = (0.06 * np.arange(-2, 3))[:, None], []
    stencils = [[0, 0, 1, 0, 0], [0, -0.5, 0, 0.5, 0], [0, 1, -2, 1, 0], [-0.5, 1, 0, -1, 0.5]]
    derivatives = unit_norm(np.array(stencils), kernel(inputs))
    for _ in range(60):
        along = unit_norm(rng.normal(size=4) @ derivatives, kernel(inputs))
        posterior = JointPosterior(kernel, inputs, 3 * along[None], np.outer(along, along)[None])
        ends = np.array([[h], [-h]]), np.array([[1.0], [-1.0]])
        found = errors(posterior, expand(posterior, [-h], [h]), *ends)
        ratios.append([error.max() / rest.item() for error, rest, *_ in found])
    assert np.max(ratios) <= 1
    assert (np.max(ratios, axis=0) > [0.9, 0.4]).all()


HARD = {
    "short": (0.3, 1.0, 0.0),
    "certain": (1.0, 1e6, 0.0),
    "long": (30.0, 1e4, 0.0),
    "far from the origin": (0.3, 1.0, 1e5),
}


def exact_row(model, x):
    """Covariances with the inputs by a squared exponential, to 40 digits."""
    (term,) = model.kernel.terms
    scaled = ([mpf(a) - mpf(b) for a, b in zip(x, z, strict=True)] for z in model.inputs.tolist())
    weights = term.precisions[0].tolist()
    squares = [sum(mpf(w) * d**2 for w, d in zip(weights, row, strict=True)) for row in scaled]
    return mpmath.matrix([mpf(term.variance) * mpmath.exp(-s / 2) for s in squares])


@pytest.mark.parametrize("case", HARD)
def test_rounding_is_within_its_claim(case):
    mpmath.mp.dps = 40
    scale, variance, offset = HARD[case]
    rng, kernel = np.random.default_rng(0), ConstantKernel(variance) * RBF(scale)
    X = rng.normal(size=(30, 2)) + offset
    X[5:8] = X[2:5]
    matrix = np.linalg.inv(kernel(X) + np.diag(1 / rng.uniform(0.1, 0.6, 30)))
    weights = 3.0 * matrix @ rng.choice([-1.0, 1.0], 30)
    posterior = JointPosterior(kernel, X, weights[None], (matrix + matrix.T)[None] / 2)
    model = LatentModel.from_posterior(posterior, "cpu")
    points = tensor(X[:4] + 0.3 * rng.normal(size=(4, 2)))
    expander = Expander(model, points, torch.arange(2))
    found = expander.evaluate(points, torch.arange(4))
    expansion = expander.expand(Region(points, points, points), torch.arange(4))
    weights, matrix = (mpmath.matrix(p.tolist()) for p in (model.weights, model.reduction[0]))
    for i, x in enumerate(points.tolist()):
        row = exact_row(model, x)
        both = (weights * row)[0], mpf(model.kernel.variance) - (row.T * matrix * row)[0]
        parts = zip(both, found[:2], found[4:], expansion[:2], strict=True)
        for exact, value, error, part in parts:
            assert abs(exact - float(value[i])) <= float(error[i])
            assert abs(exact - float(part.value[i])) <= float(part.rest[i])
    # The norm of a mean, which is not underestimated, of weights that all but cancel
    weights = rng.normal(size=(1, 30))
    weights -= weights.mean()
    posterior = JointPosterior(kernel, X, weights, np.zeros((1, 30, 30)))
    model = LatentModel.from_posterior(posterior, "cpu")
    w = mpmath.matrix(weights.tolist())
    rows = zip(w, X.tolist(), strict=True)
    exact = mpmath.sqrt(mpmath.fsum(u * (w * exact_row(model, x))[0] for u, x in rows))
    assert exact <= float(model.norms[0]) <= 1.001 * float(exact)


def test_varsigma_covers_negative_directions_of_the_reduction():
    kernel, X = ConstantKernel(3.0) * RBF(1.0), np.array([[0.0], [1.0]])
    posterior = JointPosterior(kernel, X, np.zeros((1, 2)), np.diag([0.1, -0.01])[None])
    most = moments(posterior, np.linspace(-1, 2, 50)[:, None])[1].max()
    assert 3 < most <= 3 * (1 + LatentModel.from_posterior(posterior, "cpu").varsigma)


@pytest.mark.parametrize("kernel", [RBF(1.0), Matern(1.0, nu=1.5)], ids=str)
def test_remainders_hold_for_indefinite_covariances(kernel):
    """A reduction that takes away more than there is: remainders rely on varsigma."""
    rng, X, t = np.random.default_rng(0), np.array([[0.0], [0.3], [0.6]]), np.linspace(-1, 1, 21)
    posterior = JointPosterior(kernel, X, np.zeros((1, 3)), 1.3 * np.linalg.inv(kernel(X))[None])
    for half in (0.01, 0.1):
        for center in rng.uniform(-0.2, 0.8, 10):
            expansion = expand(posterior, [center - half], [center + half])
            points = (center + half * t)[:, None]
            _, (error, rest, *_) = errors(posterior, expansion, points, t[:, None])
            assert (error <= rest + 1e-12).all()


def test_families_are_chosen_and_combined_with_their_balls_and_absolute_remainders():
    rng = np.random.default_rng(0)
    widths = torch.linspace(0.5, 1.0, 6).double().view(3, 2)
    ball = BallParts(0.1 * widths, widths, tensor([0.2, 0.4, 0.6]), 2)
    value, rest, gradient, gradient_rest = *rng.random((2, 3, 2)), *rng.random((2, 3, 2, 2))
    half = rng.normal(size=(3, 2, 2, 2))
    parts = value, gradient, half + half.swapaxes(2, 3), rest, gradient_rest
    family = Moments(*map(tensor, parts), ball)
    low, high = (end.numpy() for end in family.range())
    for rows in ([2, 0], [1]):
        assert_allclose(family.select(torch.tensor(rows)).range(), np.stack([low, high])[:, rows])
    assert_allclose(np.squeeze(family.flatten().range()), np.stack([low, high]).reshape(2, 6))
    combined = family.combine(tensor([[[1.0, -2.0]]] * 3))
    for k, (found, given) in enumerate(zip(combined[:5], parts, strict=True)):
        weights = [1, -2] if k < 3 else [1, 2]
        assert_allclose(found[:, 0], np.einsum("bk...,k->b...", given, weights), atol=1e-12)
    assert_allclose(family.plus(family).range(), 2 * np.stack([low, high]))
