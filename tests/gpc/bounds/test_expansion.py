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

from .oracles import KERNELS, fit_model, inside, moments

CPU = torch.device("cpu")
KINDS = {
    "laplace": ("probit", {}),
    "ep": ("logit", {"inference": "ep"}),
    "sparse": ("probit", {"n_inducing": 7}),
    "softmax": ("softmax", {"n_classes": 3}),
    "sparse softmax": ("softmax", {"n_classes": 3, "n_inducing": 7}),
}


def polynomial(part, t):
    """Values and gradients, shapes (n, k) and (n, k, f), at n points of one box."""
    value, gradient, hessian = (tensor[0].numpy() for tensor in part[:3])
    bent = np.einsum("kfg,ng->nkf", hessian, t)
    return value + t @ gradient.T + np.einsum("nkf,nf->nk", bent, t) / 2, gradient + bent


def truth(posterior, points):
    mean, covariance = moments(posterior, points)
    rows, columns = np.triu_indices(mean.shape[1])
    return mean, covariance[:, rows, columns]


def matrices(pairs, count):
    """Symmetric matrices from their entries at the pairs ``j <= k``."""
    rows, columns = np.triu_indices(count)
    full = np.zeros((*pairs.shape[:-1], count, count))
    full[..., rows, columns] = full[..., columns, rows] = pairs
    return full


def expand(posterior, lower, upper, free=None):
    model = LatentModel.from_posterior(posterior, CPU)
    free = np.arange(len(lower)) if free is None else np.asarray(free)
    base = torch.as_tensor(lower)[None]
    expander = Expander(model, base, torch.as_tensor(free))
    box = [torch.as_tensor(end[free])[None] for end in (lower, upper)]
    return expander.expand(Region(box[0], *box), torch.zeros(1, dtype=torch.int64))


PAIRS = pytest.mark.parametrize(
    ("name", "kind"), [(name, [*KINDS][i % 5]) for i, name in enumerate(KERNELS)]
)


@PAIRS
def test_remainders_enclose_what_the_polynomials_leave_out(name, kind):
    rng = np.random.default_rng(0)
    likelihood, parameters = KINDS[kind]
    posterior = fit_model(rng, KERNELS[name](2), likelihood, **parameters).posterior_
    assert 0 <= LatentModel.from_posterior(posterior, CPU).varsigma < 1e-5
    for half in (0.02, 0.2, 1.0):
        center = rng.normal(size=2)
        width = half * rng.uniform(0.2, 1, 2)
        t = np.concatenate([rng.uniform(-1, 1, (100, 2)), [[-1, -1], [1, -1], [-1, 1], [1, 1]]])
        expansion = expand(posterior, center - width, center + width)
        exact_moments = truth(posterior, center + width * t)
        for part, exact in zip(expansion[:2], exact_moments, strict=True):
            error = np.abs(polynomial(part, t)[0] - exact).max(axis=0)
            assert (error <= part.rest[0].numpy() + 1e-10).all()
            lower, upper = part.range()
            assert (lower[0].numpy() <= exact + 1e-10).all()
            assert (exact <= upper[0].numpy() + 1e-10).all()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("rbf", "sparse softmax"), *((name, "softmax") for name in ("rbf", "matern32", "mixed"))],
)
def test_remainders_of_all_covariances_are_bounded_together(name, kind):
    """As matrices, up to a shift, and in weighted sums; for differences better than one by one."""
    rng = np.random.default_rng(0)
    posterior = fit_model(rng, KERNELS[name](2), "softmax", **KINDS[kind][1]).posterior_
    within = np.eye(3) - 1 / 3
    leads = np.array([[1, -2, 0, 1, 0, 0], [1, 0, -2, 0, 0, 1], [0, 0, 0, 1, -2, 1]])
    weights = np.concatenate([leads, np.eye(6), rng.normal(size=(20, 6))])
    for half in (0.02, 0.2, 1.0):
        center = rng.normal(size=2)
        t = np.concatenate([rng.uniform(-1, 1, (100, 2)), [[-1, -1], [1, -1], [-1, 1], [1, 1]]])
        expansion = expand(posterior, center - half, center + half)
        _, exact = truth(posterior, center + half * t)
        error = exact - polynomial(expansion.covariance, t)[0]
        together = np.linalg.norm(within @ matrices(error, 3) @ within, 2, axis=(1, 2)).max()
        assert together <= float(expansion.contrast_rest) + 1e-10
        rest = expansion.covariances(torch.as_tensor(weights[None]).double()).rest[0].numpy()
        assert (np.abs(error @ weights.T).max(axis=0) <= rest + 1e-10).all()
        alone = np.abs(weights) @ expansion.covariance.rest[0].numpy()
        assert (rest <= alone + 1e-10).all()
        assert (rest[:3] < 0.9 * alone[:3]).all()


@pytest.mark.parametrize(("name", "norm"), [(name, 1 + i % 2) for i, name in enumerate(KERNELS)])
def test_ranges_over_balls_hold_and_are_tighter_in_many_features(name, norm):
    """Also where a domain cuts off half of the box."""
    rng = np.random.default_rng(7)
    d, radius = 8, 0.3
    posterior = fit_model(rng, KERNELS[name](d), "softmax", d=d, n_classes=3).posterior_
    model = LatentModel.from_posterior(posterior, CPU)
    for cut in (False, True):
        center = rng.normal(size=d)
        lower, upper = center - radius, center + radius
        if cut:
            lower[::2] = center[::2]
        points = inside(
            center, rng.uniform(lower, upper, (400, d)), radius, {1: "l1", 2: "l2"}[norm]
        )
        base = torch.as_tensor(center)[None]
        box = torch.as_tensor(lower)[None], torch.as_tensor(upper)[None]
        region = Region(base, *box, torch.tensor([radius]).double(), norm)
        expander = Expander(model, base, torch.arange(d))
        owner = torch.zeros(1, dtype=torch.int64)
        within = expander.expand(region, owner)
        around = expander.expand(Region(base, *box), owner)
        for part, whole, exact in zip(
            within[:2], around[:2], truth(posterior, points), strict=True
        ):
            lowest, highest = (end[0].numpy() for end in part.range())
            assert (lowest <= exact + 1e-10).all()
            assert (exact <= highest + 1e-10).all()
            assert (part.reach() < 0.7 * whole.reach()).all()


@pytest.mark.parametrize(
    ("name", "kind"), [*zip(["rbf", "ard", "rational", "product", "sum"], KINDS, strict=True)]
)
def test_gradient_remainders_enclose_the_gradients(name, kind):
    rng = np.random.default_rng(1)
    likelihood, parameters = KINDS[kind]
    posterior = fit_model(rng, KERNELS[name](2), likelihood, **parameters).posterior_
    for half in (0.05, 0.4):
        center, width = rng.normal(size=2), half * rng.uniform(0.2, 1, 2)
        t = rng.uniform(-1, 1, (60, 2))
        expansion = expand(posterior, center - width, center + width)
        for j, step in enumerate(1e-4 * np.eye(2)):
            shifted = [truth(posterior, center + width * (t + s)) for s in (step, -step)]
            for index, part in enumerate(expansion[:2]):
                exact = (shifted[0][index] - shifted[1][index]) / 2e-4
                error = np.abs(polynomial(part, t)[1][..., j] - exact).max(axis=0)
                assert (error <= part.gradient_rest[0, :, j].numpy() + 1e-8).all()


@pytest.mark.parametrize(("name", "power"), [("rbf", 3), ("matern52", 2.5), ("matern32", 1.5)])
def test_remainders_shrink_with_the_order_of_the_kernel(name, power):
    posterior = fit_model(np.random.default_rng(0), KERNELS[name](2)).posterior_
    rests, gradients = [], []
    for half in (1e-2, 1e-3):
        expansion = expand(posterior, np.full(2, -half), np.full(2, half))
        rests.append([float(part.rest) for part in expansion[:2]])
        gradients.append([part.gradient_rest.numpy() for part in expansion[:2]])
    assert_allclose(np.log10(np.divide(*rests)), power, atol=0.15)
    if name == "rbf":  # those of others are infinite
        assert_allclose(np.log10(np.divide(*gradients)), 3, atol=0.15)


@pytest.mark.parametrize("norm", [None, 1, 2])
def test_boxes_are_expanded_together_as_each_by_itself(norm):
    rng = np.random.default_rng(0)
    posterior = fit_model(rng, KERNELS["ard"](2), "softmax", n_classes=3).posterior_
    base = torch.as_tensor(rng.normal(size=(4, 2)))
    expander = Expander(LatentModel.from_posterior(posterior, CPU), base, torch.arange(2))
    width = torch.as_tensor(rng.uniform(0.05, 0.5, (4, 2)))
    radius = None if norm is None else width.sum(1) * 0.8
    region = Region(base, base - width, base + 2 * width, radius, norm or 2)
    owner = torch.arange(4)
    together = expander.expand(region, owner)
    for b in range(4):
        alone = expander.expand(region[[b]], owner[[b]])
        for whole, part in zip(together[:2], alone[:2], strict=True):
            for found, wanted in zip(whole[:5], part[:5], strict=True):
                assert_allclose(found[b], wanted[0], rtol=1e-9, atol=1e-12)
        assert_allclose(together.contrast_rest[b], alone.contrast_rest[0], rtol=1e-9)


def test_quadratic_forms_over_a_ball_are_bounded_by_their_length():
    ones = torch.ones(1, 2).double()
    ball = BallParts(0 * ones, ones, 1.5**0.5 * ones[:, 0], 2)
    form = torch.eye(2).double()[None, None]
    assert float(_form_reach(form, None)) == pytest.approx(2.0)
    assert float(_form_reach(form, ball)) == pytest.approx(1.5)


def test_remainders_are_tight_for_the_worst_of_functions():
    """A mean along the Taylor rest of ``k(h, .)``, a covariance reduced across it."""
    h, step = 0.01, 1e-4
    kernel = Matern(1.0, nu=1.5)
    inputs = np.array([[0.0], [step], [-step], [h]])
    gram = kernel(inputs)
    rest = np.array([-1.0, -h / (2 * step), h / (2 * step), 1.0])
    rest /= np.sqrt(rest @ gram @ rest)
    across = rest - [1.0, 0, 0, 0]
    across /= np.sqrt(across @ gram @ across)
    posterior = JointPosterior(kernel, inputs, 5.0 * rest[None], np.outer(across, across)[None])
    expansion = expand(posterior, np.array([-h]), np.array([h]))
    for part, exact in zip(expansion[:2], truth(posterior, np.array([[h]])), strict=True):
        error = abs(polynomial(part, np.ones((1, 1)))[0] - exact).item()
        assert 0.52 * float(part.rest) < error <= float(part.rest)
    # Two latent functions of which the difference is reduced like that
    pairs = np.array([0.5, -0.5, 0.5])[:, None, None] * np.outer(across, across)
    posterior = JointPosterior(kernel, inputs, np.zeros((2, 4)), pairs)
    expansion = expand(posterior, np.array([-h]), np.array([h]))
    _, exact = truth(posterior, np.array([[h]]))
    error = abs((exact - polynomial(expansion.covariance, np.ones((1, 1)))[0]) @ [0.5, -1, 0.5])
    assert 0.52 * float(expansion.contrast_rest) < error.item() <= float(expansion.contrast_rest)


def test_weighted_sums_allow_for_the_worst_errors_among_contrasts_and_in_shifts():
    rng = np.random.default_rng(0)
    none = torch.zeros(1, 6, 1).double()
    covariance = Moments(none[..., 0], none, none[..., None], none[..., 0] + 0.5, none)
    mean = Moments(*(part[:, :3] for part in covariance[:5]))
    expansion = Expansion(mean, covariance, torch.tensor([0.1]).double())
    within = np.eye(3) - 1 / 3
    for draw in range(20):
        A = rng.normal(size=(3, 3))
        A = A + A.T if draw % 2 else within @ (A + A.T) @ within
        weights = np.where(np.eye(3) == 1, A, 2 * A)[np.triu_indices(3)]
        rest = float(expansion.covariances(torch.as_tensor(weights)[None, None]).rest)
        values, vectors = np.linalg.eigh(within @ A @ within)
        worst = np.sum(A * (0.1 * (vectors * np.sign(np.round(values, 9))) @ vectors.T))
        shift = rng.uniform(-0.15, 0.15, 3)
        error = worst + abs(np.sum(A * (shift[:, None] + shift)))
        assert 0 < error <= rest * (1 + 1e-9)
        assert draw % 2 or rest <= 1.000001 * error


def test_remainders_hold_for_functions_that_know_derivatives():
    """Means and reductions along combinations of the first derivatives of ``k(c, .)``."""
    rng, h, step = np.random.default_rng(0), 0.3, 0.06
    kernel = RBF(1.0)
    inputs = (step * np.arange(-2, 3))[:, None]
    gram = kernel(inputs)
    derivatives = np.array(
        [[0, 0, 1, 0, 0], [0, -0.5, 0, 0.5, 0], [0, 1, -2, 1, 0], [-0.5, 1, 0, -1, 0.5]]
    )
    derivatives /= np.sqrt(np.einsum("ij,jk,ik->i", derivatives, gram, derivatives))[:, None]
    ratios = []
    for _ in range(60):
        direction = rng.normal(size=4) @ derivatives
        direction /= np.sqrt(direction @ gram @ direction)
        posterior = JointPosterior(
            kernel, inputs, 3 * direction[None], np.outer(direction, direction)[None]
        )
        expansion = expand(posterior, np.array([-h]), np.array([h]))
        for part, exact in zip(expansion[:2], truth(posterior, np.array([[h], [-h]])), strict=True):
            error = np.abs(polynomial(part, np.array([[1.0], [-1.0]]))[0] - exact).max()
            ratios.append(error / float(part.rest))
    assert max(ratios) <= 1
    assert max(ratios[0::2]) > 0.9
    assert max(ratios[1::2]) > 0.4


@pytest.mark.parametrize("name", ["rbf", "mixed"])
def test_fixed_features_enter_as_constants(name):
    rng = np.random.default_rng(0)
    posterior = fit_model(rng, KERNELS[name](3), d=3).posterior_
    x = rng.normal(size=3)
    lower, upper = x.copy(), x.copy()
    lower[[0, 2]] -= 0.2
    upper[[0, 2]] += 0.1
    expansion = expand(posterior, lower, upper, free=[0, 2])
    t = rng.uniform(-1, 1, (50, 2))
    points = np.tile(x, (50, 1))
    points[:, [0, 2]] += -0.05 + 0.15 * t
    for part, exact in zip(expansion[:2], truth(posterior, points), strict=True):
        assert (np.abs(polynomial(part, t)[0] - exact) <= part.rest[0].numpy() + 1e-10).all()


def exact_row(model, x):
    """Covariances with the inputs by a squared exponential, to 40 digits."""
    (term,) = model.kernel.terms
    precisions = term.precisions[0].tolist()
    squares = [
        mpmath.fsum(
            mpf(w) * (mpf(a) - mpf(b)) ** 2 for w, a, b in zip(precisions, x, z, strict=True)
        )
        for z in model.inputs.tolist()
    ]
    return mpmath.matrix([mpf(term.variance) * mpmath.exp(-s / 2) for s in squares])


def exact_moments(model, x):
    row, weights = exact_row(model, x), mpmath.matrix(model.weights.tolist())
    matrix = mpmath.matrix(model.reduction[0].tolist())
    return (weights * row)[0], mpf(model.kernel.variance) - (row.T * matrix * row)[0]


HARD = {
    "short": (0.3, 1.0, 0.0),
    "certain": (1.0, 1e6, 0.0),
    "long": (30.0, 1e4, 0.0),
    "far from the origin": (0.3, 1.0, 1e5),
}


@pytest.mark.parametrize("case", HARD)
def test_rounding_is_within_its_claim(case):
    mpmath.mp.dps = 40
    scale, variance, offset = HARD[case]
    rng = np.random.default_rng(0)
    kernel = ConstantKernel(variance) * RBF(scale)
    X = rng.normal(size=(30, 2)) + offset
    X[5:8] = X[2:5]
    curvature = rng.uniform(0.1, 0.6, 30)
    matrix = np.linalg.inv(kernel(X) + np.diag(1 / curvature))
    weights = 3.0 * matrix @ rng.choice([-1.0, 1.0], 30)
    posterior = JointPosterior(kernel, X, weights[None], (matrix + matrix.T)[None] / 2)
    model = LatentModel.from_posterior(posterior, CPU)
    points = torch.as_tensor(X[:4] + 0.3 * rng.normal(size=(4, 2)))
    expander = Expander(model, points, torch.arange(2))
    found = expander.evaluate(points, torch.arange(4))
    expansion = expander.expand(Region(points, points, points), torch.arange(4))
    for i, x in enumerate(points.tolist()):
        for exact, value, error, part in zip(
            exact_moments(model, x), found[:2], found[4:], expansion[:2], strict=True
        ):
            assert abs(exact - float(value[i])) <= float(error[i])
            assert abs(exact - float(part.value[i])) <= float(part.rest[i])


@pytest.mark.parametrize("case", HARD)
def test_the_norm_of_the_mean_is_not_underestimated(case):
    mpmath.mp.dps = 40
    scale, variance, offset = HARD[case]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2)) + offset
    weights = rng.normal(size=(1, 30))
    kernel = ConstantKernel(variance) * RBF(scale)
    weights -= weights.mean()
    posterior = JointPosterior(kernel, X, weights, np.zeros((1, 30, 30)))
    model = LatentModel.from_posterior(posterior, CPU)
    w = mpmath.matrix(weights.tolist())
    exact = mpmath.fsum(
        u * (w * exact_row(model, x))[0] for u, x in zip(w, X.tolist(), strict=True)
    )
    assert mpmath.sqrt(exact) <= float(model.norms[0])
    assert float(model.norms[0]) <= 1.001 * float(mpmath.sqrt(exact))


@pytest.mark.parametrize("n_latent", [1, 2])
@pytest.mark.parametrize("excess", [1.05, 1.5])
def test_varsigma_is_the_share_by_which_a_covariance_is_indefinite(n_latent, excess):
    rng, kernel = np.random.default_rng(0), ConstantKernel(3.0) * RBF(1.0)
    X = 2 * rng.normal(size=(6, 2))
    inverse = np.linalg.inv(kernel(X))
    pairs = [excess * inverse * (c == d) for c, d in zip(*np.triu_indices(n_latent), strict=True)]
    posterior = JointPosterior(kernel, X, np.zeros((n_latent, 6)), np.stack(pairs))
    assert LatentModel.from_posterior(posterior, CPU).varsigma == pytest.approx(
        excess - 1, abs=1e-9
    )


def test_varsigma_covers_negative_directions_of_the_reduction():
    kernel, X = ConstantKernel(3.0) * RBF(1.0), np.array([[0.0], [1.0]])
    posterior = JointPosterior(kernel, X, np.zeros((1, 2)), np.diag([0.1, -0.01])[None])
    model = LatentModel.from_posterior(posterior, CPU)
    _, variance = moments(posterior, np.linspace(-1, 2, 50)[:, None])
    assert variance.max() > 3
    assert variance.max() <= 3 * (1 + model.varsigma)


@pytest.mark.parametrize("order", [1, 2])
def test_remainders_hold_for_indefinite_covariances(order):
    """A reduction that takes away more than there is: remainders rely on varsigma."""
    rng = np.random.default_rng(0)
    kernel = RBF(1.0) if order == 2 else Matern(1.0, nu=1.5)
    X = np.array([[0.0], [0.3], [0.6]])
    posterior = JointPosterior(kernel, X, np.zeros((1, 3)), 1.3 * np.linalg.inv(kernel(X))[None])
    for half in (0.01, 0.1):
        for center in rng.uniform(-0.2, 0.8, 10):
            part = expand(
                posterior, np.array([center - half]), np.array([center + half])
            ).covariance
            t = np.linspace(-1, 1, 21)[:, None]
            exact = truth(posterior, center + half * t)[1]
            assert (np.abs(polynomial(part, t)[0] - exact) <= part.rest[0].numpy() + 1e-12).all()


def test_families_combine_with_absolute_remainders():
    posterior = fit_model(
        np.random.default_rng(0), KERNELS["rbf"](2), "softmax", n_classes=3
    ).posterior_
    mean = expand(posterior, np.full(2, -0.1), np.full(2, 0.2)).mean
    combined = mean.combine(torch.tensor([[[1.0, -2.0, 0.5]]]).double())
    for part, weight in zip(range(5), [(1, -2, 0.5)] * 3 + [(1, 2, 0.5)] * 2, strict=True):
        expected = np.tensordot(weight, mean[part][0].numpy(), 1)
        assert_allclose(combined[part][0, 0], expected, atol=1e-12)
    doubled = mean.plus(mean)
    assert_allclose(doubled.rest, 2 * mean.rest)


def random_families(rng, b, k, ball=None):
    value, rest = torch.as_tensor(rng.random((2, b, k)))
    gradient, gradient_rest = torch.as_tensor(rng.random((2, b, k, 2)))
    half = torch.as_tensor(rng.normal(size=(b, k, 2, 2)))
    return Moments(value, gradient, half + half.mT, rest, gradient_rest, ball)


def balls(b, norm=2):
    widths = torch.linspace(0.5, 1.0, 2 * b).double().view(b, 2)
    return BallParts(0.1 * widths, widths, torch.linspace(0.2, 0.6, b).double(), norm)


def test_families_are_chosen_and_taken_apart_with_their_balls():
    family = random_families(np.random.default_rng(0), 3, 2, balls(3))
    low, high = family.range()
    rows = torch.tensor([2, 0])
    chosen = family.select(rows)
    for part, whole in zip(chosen[:5], family[:5], strict=True):
        assert part.equal(whole[rows])
    for found, whole in zip(chosen.range(), (low, high), strict=True):
        assert_allclose(found, whole[rows])
    apart = family.flatten()
    for part, whole in zip(apart[:5], family[:5], strict=True):
        assert part.equal(whole.reshape(6, 1, *whole.shape[2:]))
    for found, whole in zip(apart.range(), (low, high), strict=True):
        assert_allclose(found[:, 0], whole.flatten())


def test_a_family_and_half_of_it_have_half_as_much_more_range():
    family = random_families(np.random.default_rng(1), 4, 3, balls(4))
    half = family._each(lambda part: part / 2, family.ball)
    both = family.plus(half)
    for found, once in zip(both.range(), family.range(), strict=True):
        assert_allclose(found, 1.5 * once)
    assert_allclose(both.gradient_rest, 1.5 * family.gradient_rest)


def test_quadratic_parts_over_a_ball_are_bounded_by_their_length():
    v = torch.tensor([0.6, 0.8]).double()
    zero, ones = torch.zeros(1, 1).double(), torch.ones(1, 2).double()
    ball = BallParts(0 * ones, ones, ones[:, 0], 2)
    hessian = torch.outer(v, v)[None, None]
    alone = Moments(zero, zero[..., None] * v, hessian, zero, zero[..., None] * v)
    assert float(alone.quadratic_reach()) == pytest.approx(1.4**2 / 2)  # at t = (1, 1)
    assert float(alone._replace(ball=ball).quadratic_reach()) == pytest.approx(0.5)  # at t = v


def test_covariances_of_a_box_do_not_depend_on_other_boxes():
    rng = np.random.default_rng(2)
    expansion = Expansion(
        random_families(rng, 4, 3), random_families(rng, 4, 6), torch.as_tensor(rng.random(4)) / 9
    )
    weights = torch.as_tensor(rng.normal(size=(4, 2, 6)))
    whole = expansion.covariances(weights)
    for b in range(4):
        alone = expansion.select(torch.tensor([b])).covariances(weights[[b]])
        assert_allclose(whole.rest[b], alone.rest[0])
