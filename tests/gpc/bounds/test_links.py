"""From moments to probabilities: no point of a box is below the minimum that is claimed."""

from itertools import permutations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import ndtr

from skuq.gpc.bounds import _links as links
from skuq.gpc.bounds import _softmax_link as softmax_link
from skuq.gpc.bounds._branch_and_bound import objective_at
from skuq.gpc.bounds._latent_bounds import Evaluation, Expansion
from skuq.gpc.bounds._links import LogitLink, ProbitLink
from skuq.gpc.bounds._regions import BallParts, Moments
from skuq.gpc.bounds._softmax_link import SoftmaxLink

from .oracles import average

CASES = {
    "probit": (lambda: ProbitLink(50.0), 1, 2),
    "logit": (lambda: LogitLink(50.0), 1, 2),
    "softmax of two": (lambda: SoftmaxLink(2, 200.0), 2, 2),
    "softmax of three": (lambda: SoftmaxLink(3, 200.0), 3, 3),
}
BOTH = pytest.mark.parametrize("case", CASES)


def tensor(array):
    return torch.as_tensor(np.asarray(array, dtype=np.float64))


def random_moments(rng, case, size, level, rest=0.0, count=12, f=2):
    """Quadratic means and covariances over boxes, positive definite everywhere."""
    n_latent = CASES[case][1]
    pairs = np.triu_indices(n_latent)
    root = rng.normal(size=(count, n_latent, n_latent))
    covariance = level * (root @ root.swapaxes(1, 2) / n_latent + 0.3 * np.eye(n_latent))
    parts = []
    for value, scale in (
        (2 * rng.normal(size=(count, n_latent)), size),
        (covariance[:, pairs[0], pairs[1]], size * level * 0.1 / n_latent),
    ):
        shape = (*value.shape, f)
        bend = rng.normal(size=(*shape, f))
        slope = scale * rng.normal(size=shape)
        bend = scale / 4 * (bend + bend.swapaxes(2, 3))
        rests = np.full(value.shape, rest * scale)
        parts.append(Moments(*map(tensor, (value, slope, bend, rests, np.zeros(shape)))))
    return Expansion(*parts)


def moments_at(expansion, b, t, sign=0.0):
    """Mean (n, L) and covariance (n, L, L) of one box at points t, rests added with a sign."""
    found = []
    for part in expansion[:2]:
        value, gradient, hessian, rest = (p[b].numpy() for p in part[:4])
        found.append(
            value + t @ gradient.T + np.einsum("ni,kij,nj->nk", t, hessian, t) / 2 + sign * rest
        )
    mean, pairs = found
    covariance = np.zeros((len(t), mean.shape[1], mean.shape[1]))
    rows, columns = np.triu_indices(mean.shape[1])
    covariance[:, rows, columns] = covariance[:, columns, rows] = pairs
    return mean, covariance


def objectives(rng, n_classes, count):
    units = np.eye(n_classes)
    choices = np.concatenate([units, units - units[::-1][:, :n_classes]])
    if n_classes > 2:
        choices = np.concatenate([choices, -units])
    weights = choices[rng.integers(0, len(choices), count)]
    return np.where((weights == 0).all(axis=1, keepdims=True), units[0], weights)


def evaluated(link, objective, mean, covariance):
    """Smallest value of an objective, rounded up by the error of its evaluation."""
    pairs = np.triu_indices(mean.shape[1])
    weights = np.tile(objective, (len(mean), 1))
    found = link.evaluate(*map(tensor, (weights, mean, covariance[:, pairs[0], pairs[1]])))
    return float((found.value + found.error).min())


@BOTH
def test_evaluations_are_within_their_error_and_slopes_are_derivatives(case):
    rng, step = np.random.default_rng(0), 1e-4
    link, n_classes = CASES[case][0](), CASES[case][2]
    for level in (1e-4, 20.0, 1.0):
        expansion = random_moments(rng, case, 0.0, level, count=6)
        objective = objectives(rng, n_classes, 6)
        centre = [part.value for part in expansion[:2]]
        found = link.evaluate(tensor(objective), *centre)
        for b in range(6):
            exact = average(case.split()[0], *moments_at(expansion, b, np.zeros((1, 2))))[0]
            assert abs(exact @ objective[b] - float(found.value[b])) <= float(found.error[b]) + 1e-9
    assert float(found.error.max()) < 1e-4
    for moved, slopes in enumerate((found.mean_slope, found.covariance_slope)):
        for k in range(slopes.shape[1]):
            ends = []
            for sign in (step, -step):
                parts = [part.clone() for part in centre]
                parts[moved][:, k] += sign
                ends.append(link.evaluate(tensor(objective), *parts).value)
            assert_allclose((ends[0] - ends[1]) / (2 * step), slopes[:, k], atol=2e-4)


@BOTH
@pytest.mark.parametrize("size", [(1e-3, 1e-3), (0.3, 0.0), (0.0, 0.3)])
def test_objectives_at_points_hold_for_all_moments_within_their_errors(case, size):
    rng = np.random.default_rng(0)
    link, n_classes = CASES[case][0](), CASES[case][2]
    expansion = random_moments(rng, case, 0.0, 1.0)
    objective = tensor(objectives(rng, n_classes, 12))
    moments = [part.value for part in expansion[:2]]
    errors = [torch.full_like(part, each) for part, each in zip(moments, size, strict=True)]
    gradients = [torch.ones_like(part)[..., None] for part in moments]
    bound, _ = objective_at(link, objective, Evaluation(*moments, *gradients, *errors))
    highest = torch.full_like(bound, -torch.inf)
    slopes = link.evaluate(objective, *moments)
    for ways in (
        (slopes.mean_slope, slopes.covariance_slope),
        *([tensor(rng.normal(size=part.shape)) for part in moments] for _ in range(20)),
    ):
        moved = [m + e * way.sign() for m, e, way in zip(moments, errors, ways, strict=True)]
        highest = torch.maximum(highest, link.evaluate(objective, *moved).value)
    assert (bound >= highest - 1e-9).all()
    # Not by more than the second derivatives allow, which no likelihood has above 1.
    reach = sum(part.sum(-1) for part in errors)
    assert (bound <= highest + 2 * objective.abs().sum(-1) * reach**2 + 2e-4).all()


def test_nothing_is_claimed_about_averages_that_would_take_too_many_nodes():
    rng, link = np.random.default_rng(0), SoftmaxLink(4, 1e9)
    pairs = np.triu_indices(4)
    mean, covariance = rng.normal(size=(2, 4)), np.cov(1e3 * rng.normal(size=(4, 9)))
    objective = tensor([[0.0, 1.0, 0.0, 0.0], [-1.0, 0.0, 3.0, 0.0]])
    found = link.evaluate(objective, tensor(mean), tensor([covariance[pairs]] * 2))
    assert_array_equal(found.value, [0.5, 1.0])
    assert_array_equal(found.error, [0.5, 2.0])
    assert not found.mean_slope.any()
    assert not found.covariance_slope.any()


@BOTH
def test_bounds_over_a_box_do_not_depend_on_other_boxes(case):
    rng = np.random.default_rng(5)
    link, n_classes = CASES[case][0](), CASES[case][2]
    expansion, objective = random_moments(rng, case, 0.3, 1.0), objectives(rng, n_classes, 12)
    expansion.covariance.value[4] = 0.0  # a box in which nothing is uncertain
    objective, target = tensor(objective), torch.full((12,), 0.5).double()
    together = link.minimum(objective, expansion, target)
    for b in range(3, 7):
        rows = torch.tensor([b])
        alone = link.minimum(objective[rows], expansion.select(rows), target[rows])
        for whole, part in zip(together[:4], alone[:4], strict=True):
            assert_allclose(whole[b], part[0], rtol=1e-9, atol=1e-9)
        for whole, part in zip(together.slopes, alone.slopes, strict=True):
            assert_allclose(whole[b], part[0], rtol=1e-9, atol=1e-9)


@BOTH
@pytest.mark.parametrize(
    ("level", "size", "rest"),
    [(0.05, 0.02, 0.0), (1.0, 2.0, 0.0), (10.0, 0.3, 0.0), (1.0, 0.02, 0.3), (10.0, 2.0, 0.3)],
)
def test_no_point_of_a_box_is_below_its_minimum(case, level, size, rest):
    rng, count = np.random.default_rng(7), 4 if case.endswith("three") else 12
    link, n_classes = CASES[case][0](), CASES[case][2]
    expansion = random_moments(rng, case, size, level, rest, count)
    objective = objectives(rng, n_classes, count)
    center = link.evaluate(tensor(objective), *(part.value for part in expansion[:2])).value
    t = np.concatenate([rng.uniform(-1, 1, (20, 2)), [[-1, -1], [1, 1], [-1, 1], [1, -1]]])
    signs = (-1, 1) if rest else (0,)
    least = [
        min(evaluated(link, objective[b], *moments_at(expansion, b, t, sign)) for sign in signs)
        for b in range(count)
    ]
    for target in (center, center - 0.2, torch.full_like(center, torch.inf)):
        found = link.minimum(tensor(objective), expansion, target)
        assert bool((found.point.abs() <= 1).all())
        assert (found.bound.numpy() <= least).all()


@pytest.mark.parametrize("level", [1.0, 30.0])
def test_errors_of_all_covariances_together_are_accounted_for(level):
    rng, case = np.random.default_rng(1), "softmax of three"
    link, size = SoftmaxLink(3, 2000.0), 0.2 * level
    expansion = random_moments(rng, case, 0.3, level)
    unknown = torch.full_like(expansion.covariance.rest, 1e9)
    expansion = expansion._replace(
        covariance=expansion.covariance._replace(rest=unknown),
        contrast_rest=torch.full_like(unknown[:, 0], size),
    )
    objective = objectives(rng, 3, 12)
    found = link.minimum(tensor(objective), expansion, tensor(np.zeros(12))).bound
    t, contrasts = rng.uniform(-1, 1, (12, 2)).round(), rng.normal(size=(12, 3))
    contrasts -= contrasts.mean(axis=1, keepdims=True)
    contrasts /= np.linalg.norm(contrasts, axis=1, keepdims=True)
    error = size * contrasts[:, None] * contrasts[..., None] * rng.choice([-1, 1], (12, 1, 1))
    shift = level * rng.normal(size=(12, 3))
    error += shift[:, None] + shift[..., None]
    rows, columns = np.triu_indices(3)
    means, covariances = zip(*(moments_at(expansion, b, t) for b in range(12)), strict=True)
    values = link.evaluate(
        tensor(objective.repeat(12, axis=0)),
        tensor(np.concatenate(means)),
        tensor((np.stack(covariances) + error)[..., rows, columns].reshape(144, 6)),
    )
    least = (values.value + values.error).view(12, 12).amin(-1)
    assert bool((found <= least).all())
    assert bool((found > tensor(objective).amin(-1) + 1e-3).any())


def test_rivals_that_exclude_each_other_do_not_count_as_associated():
    """One of two opposite latent functions is always above the third, or each takes its share."""
    link, objective = SoftmaxLink(3, 200.0), tensor([[1.0, 0, 0]])
    expansion = random_moments(np.random.default_rng(0), "softmax of three", 0.0, 1.0, count=1)
    for mean, pairs in (([0.0, 0, 0], [50.0, -49.9, 50.0]), ([8.0, 0, 0], [1.0, -0.9, 1.0])):
        opposite = tensor([[0.1, 0.0, 0.0, *pairs]])
        there = Expansion(
            expansion.mean._replace(value=tensor([mean])),
            expansion.covariance._replace(value=opposite),
        )
        value = link.evaluate(objective, there.mean.value, opposite).value
        assert float(link.minimum(objective, there, value).bound) <= float(value)
    assert 1 - 1.5 * (1 - float(value)) < float(link._pairwise(objective, there)) <= float(value)
    there = Expansion(expansion.mean._replace(value=tensor([[-8.0, 0, 0]])), there.covariance)
    value = float(link.evaluate(objective, there.mean.value, opposite).value)
    assert value <= -float(link._pairwise(-objective, there)) < 5 * value


@BOTH
def test_slopes_over_a_point_are_known_but_for_the_error_of_the_evaluation(case):
    rng = np.random.default_rng(6)
    link, n_classes = CASES[case][0](), CASES[case][2]
    expansion, objective = random_moments(rng, case, 1e-9, 1.0), objectives(rng, n_classes, 12)
    slopes = link.minimum(tensor(objective), expansion, torch.full((12,), 0.5).double()).slopes
    assert float(slopes.mean_radius.max()) < 1e-3
    assert float(slopes.covariance_radius.max()) < 1e-3


def test_norms_of_whitened_moments_are_not_underestimated():
    """Distances from the centre, and symmetric parts of their products by all permutations."""
    rng, contrast = np.random.default_rng(2), np.array([[1.0, 0, -1], [0, 1, -1]])
    expansion = random_moments(rng, "softmax of three", 0.3, 1.0)
    reach, _ = SoftmaxLink(3, 200.0)._reach(expansion)
    t = rng.uniform(-1, 1, (60, 2))
    t[:30] = np.sign(t[:30])
    for b in range(12):
        mean, covariance = moments_at(expansion, b, t)
        (center,), (start,) = moments_at(expansion, b, np.zeros((1, 2)))
        values, vectors = np.linalg.eigh(contrast @ start @ contrast.T)
        W = (vectors / np.sqrt(values)).T @ contrast
        v, M = (mean - center) @ W.T, W @ (covariance - start) @ W.T
        third, fourth = np.einsum("ni,njk->nijk", v, M), np.einsum("nij,nkl->nijkl", M, M)
        shift, change, spectral, mixed = (
            float(part[b]) * (1 + 1e-9) for part in (*reach[2:], reach.mixed)
        )
        assert np.linalg.norm(v, axis=1).max() <= shift
        assert change / 2 <= np.linalg.norm(M, axis=(1, 2)).max() <= change
        assert spectral / 2 <= np.linalg.norm(M, 2, axis=(1, 2)).max() <= spectral
        for tensors, size in ((third, shift * mixed), (fourth, change * mixed)):
            orders = list(permutations(range(1, tensors.ndim)))
            symmetric = sum(tensors.transpose(0, *order) for order in orders) / len(orders)
            assert (symmetric**2).sum(axis=tuple(range(1, tensors.ndim))).max() <= size**2


@BOTH
def test_minima_over_small_boxes_are_tight(case):
    rng = np.random.default_rng(3)
    link, n_classes = CASES[case][0](), CASES[case][2]
    for size, tolerance in ((0.1, 0.1), (0.01, 0.01)):
        expansion = random_moments(rng, case, size, 1.0)
        objective = objectives(rng, n_classes, 12)
        center = link.evaluate(tensor(objective), *(part.value for part in expansion[:2])).value
        found = link.minimum(tensor(objective), expansion, center)
        t = rng.uniform(-1, 1, (30, 2))
        t[:15] = np.where(t[:15] < 0, -1, 1)
        for b in range(12):
            least = evaluated(link, objective[b], *moments_at(expansion, b, t))
            assert least - tolerance <= float(found.bound[b])


def one_latent(mean, covariance):
    """Boxes of one feature, from value, gradient, Hessian and rest of the two moments."""
    parts = []
    for value, gradient, hessian, rest in (mean, covariance):
        value, gradient, hessian, rest = (
            tensor(p)[:, None] for p in (value, gradient, hessian, rest)
        )
        parts.append(
            Moments(
                value, gradient[..., None], hessian[..., None, None], rest, 0 * gradient[..., None]
            )
        )
    return Expansion(*parts)


@pytest.mark.parametrize("case", ["probit", "logit"])
def test_minima_are_exact_where_the_moments_move_together_or_apart(case):
    """Along a level line of the probability; or each by a rest of its own."""
    rng = np.random.default_rng(4)
    link, n = CASES[case][0](), 40
    v = rng.uniform(0.2, 3, n)
    z = np.where(np.arange(n) % 2, 1, -1) * rng.uniform(0.2, 1.5, n)
    mean, tilt = z * np.sqrt(link.widening + v), z / (2 * np.sqrt(link.widening + v))
    pairs = np.array([[0, 1], [1, 0], [0, 2], [-1, 1], [1, -2]])[rng.integers(0, 5, n)]
    low, span = pairs.min(axis=1), np.ptp(pairs, axis=1)
    sign = np.where(pairs[:, 1] > pairs[:, 0], 1, -1)
    slope, bend, zero = *rng.uniform(-0.2, 0.2, (2, n)), np.zeros(n)
    slope[:10] = 1.2 * v[:10]  # part of the box has no variance
    bend[np.r_[:10, 20:n]] = 0
    t = np.linspace(-1, 1, 401)
    rest = 0.1 * (np.arange(n) % 3)
    parts = [sign * mean, sign * tilt * slope, sign * tilt * bend, rest]
    moved = slope[:, None] * t + bend[:, None] * t**2 / 2
    variance = np.maximum(v[:, None] + moved, 0)
    q = second_class(case, (mean - rest)[:, None] + tilt[:, None] * moved, variance).min(axis=1)
    found = link.minimum(
        tensor(pairs), one_latent(parts, (v, slope, bend, zero)), tensor(low + span * ndtr(z))
    )
    gap = (low + span * q - found.bound.numpy()) / span
    assert (gap >= -1e-10).all()
    sag = 1e-9 if case == "probit" else 2e-5  # between nodes, where the variance is small
    assert (gap <= np.repeat([0.02, 2e-3, sag, sag], 10)).all()
    assert_allclose(found.rest, rest, rtol=1e-12)
    assert_allclose(found.curvature, 0, atol=1e-12)
    spread = np.abs(slope)
    for size in (0.5, 3.0):
        parts = (sign * mean, zero + 0.3 * size, sign * -0.4 * size, zero + 0.5 * size)
        apart = one_latent(parts, (v, zero, zero, spread))
        lowest = mean - size
        extreme = np.where(lowest >= 0, v + spread, np.maximum(v - spread, 0))
        found = link.minimum(tensor(pairs), apart, tensor(low + 0 * v))
        exact = low + span * second_class(case, lowest, extreme)
        assert_allclose(found.bound, exact, atol=1e-10)
        assert_allclose(found.curvature[:, 0], 0.4 * size, rtol=1e-9)
    # No more variance than the prior's, whatever is not known of it
    unknown = one_latent((sign * np.abs(mean), zero, zero, zero), (v, zero, zero, zero + 1e3))
    found = link.minimum(tensor(pairs), unknown, tensor(low + 0 * v))
    exact = low + span * second_class(case, np.abs(mean), zero + 50.0)
    assert_allclose(found.bound, exact, atol=1e-10)
    error = link.evaluate(tensor(pairs), tensor(mean[:, None]), tensor(v[:, None])).error
    assert_allclose(error, span * (case == "logit") * 1e-11 + 1e-13, rtol=1e-9)


def second_class(case, mean, variance):
    flat = average(case, mean.reshape(-1, 1), variance.reshape(-1, 1, 1))
    return flat[:, 1].reshape(mean.shape)


@pytest.mark.parametrize("case", ["probit", "logit"])
def test_minima_over_balls_are_exact_for_linear_means(case):
    """Along the gradient, as far as the ball reaches; boxes can be taken out of several."""
    gradient = tensor([[[0.3, -0.4]], [[0.0, 0.5]]])
    zero = torch.zeros(2, 1).double()
    flat = torch.zeros(2, 1, 2).double()
    ball = BallParts(flat[:, 0], flat[:, 0] + 1, tensor([0.5, 0.8]), 2)
    moments = Moments(zero + 1, gradient, flat[..., None] + flat[:, :, None], zero, flat, ball)
    expansion = Expansion(moments, moments._replace(gradient=flat))
    target = tensor([0.5, 0.5])
    found = CASES[case][0]().minimum(tensor([[0, 1], [0, 1]]), expansion, target)
    exact = second_class(case, 1 - np.array([0.25, 0.4]), np.ones(2))
    assert_allclose(found.bound, exact, atol=1e-9)
    # The same with a variance that changes together with the mean, in the other feature
    link = CASES[case][0]()
    tilt, change = 1 / (2 * np.sqrt(link.widening + 1)), 0.2
    slopes = tensor([[[0.3, change * tilt]], [[0.5, change * tilt]]])
    moved = Expansion(
        moments._replace(value=zero + 2 * tilt * (link.widening + 1), gradient=slopes),
        moments._replace(gradient=tensor([[[0.0, change]], [[0.0, change]]])),
    )
    bound = link.minimum(tensor([[0, 1], [0, 1]]), moved, target * 0 + ndtr(1)).bound
    variance = 1 + change * np.array([[0.5], [0.8]]) * np.linspace(-1, 1, 101)
    start = 2 * tilt * (link.widening + 1) - np.array([[0.15], [0.4]])
    line = second_class(case, start + tilt * (variance - 1), variance).min(axis=1)
    assert_allclose(bound, line, atol=2e-5)
    for part, all_parts in zip(found.select(tensor([1]).long())[:4], found, strict=False):
        assert_array_equal(part, all_parts[1:])
    for part, all_parts in zip(found.select(tensor([1]).long()).slopes, found.slopes, strict=True):
        assert_array_equal(part, all_parts[1:])


@pytest.mark.parametrize("case", ["probit", "logit"])
def test_ranges_of_slopes_are_those_of_their_formulas(case):
    """Level lines of the probit everywhere in a box; of the logit at its centre, and around it."""
    rng = np.random.default_rng(6)
    link, n = CASES[case][0](), 60
    mean, zero = rng.uniform(-2, 2, n), np.zeros(n)
    reach, spread = rng.uniform(0, 0.3, (2, n)) * rng.integers(0, 2, (2, n))
    v = np.where(np.arange(n) % 2, spread, spread * rng.uniform(0.5, 2, n))
    if case == "logit":
        v = spread  # from no variance on, where the logistic function's own derivatives count
    box = one_latent((mean, reach, zero, zero), (v, spread, zero, zero))
    objective = np.eye(2)[np.arange(n) % 2]
    sign = np.where(np.arange(n) % 2, 1, -1)
    slopes = link.minimum(tensor(objective), box, tensor(zero)).slopes
    assert_array_equal(slopes.mean[:, 0], sign)
    assert_array_equal(slopes.mean_radius[:, 0], 0)
    mean, edges = sign * mean, (-1, 1)
    least, most = np.maximum(v - spread, 0), v + spread
    if case == "probit":
        ends = [(mean + s * reach) / (2 * (1 + u)) for s in edges for u in (least, most)]
    else:
        center = link.evaluate(
            tensor(np.tile([0, 1], (n, 1))), *map(tensor, (mean[:, None], v[:, None]))
        )
        first, half = center.mean_slope[:, 0].numpy(), center.covariance_slope[:, 0].numpy()
        near = links._SECOND * reach + links._THIRD / 2 * spread
        bend = links._THIRD * reach + links._FOURTH / 2 * spread
        ends = [-(half + s * bend / 2) / (first + u * near) for s in edges for u in edges]
    steepest = np.inf if case == "probit" else 0.5
    lowest, highest = np.clip([np.min(ends, axis=0), np.max(ends, axis=0)], -steepest, steepest)
    missing = v < spread
    lowest[missing], highest[missing] = (
        np.minimum(lowest, 0)[missing],
        np.maximum(highest, 0)[missing],
    )
    assert_allclose(slopes.covariance[:, 0], -(lowest + highest) / 2, atol=1e-8)
    assert_allclose(slopes.covariance_radius[:, 0], (highest - lowest) / 2, atol=1e-8)


@BOTH
@pytest.mark.parametrize(("level", "size"), [(0.05, 2.0), (1.0, 0.02), (1.0, 0.3), (10.0, 2.0)])
def test_slopes_enclose_the_derivatives_all_over_a_box(case, level, size):
    """Derivatives by the moments, up to one positive factor for each point."""
    rng = np.random.default_rng(5)
    link, n_latent, n_classes = CASES[case][0](), *CASES[case][1:]
    expansion = random_moments(rng, case, size, level)
    objective = objectives(rng, n_classes, 12)
    slopes = link.minimum(tensor(objective), expansion, tensor(np.zeros(12))).slopes
    t = rng.uniform(-1, 1, (20, 2))
    rows, columns = np.triu_indices(n_latent)
    for b in range(12):
        mean, covariance = moments_at(expansion, b, t)
        weights = tensor(np.tile(objective[b], (20, 1)))
        exact = link.evaluate(weights, tensor(mean), tensor(covariance[:, rows, columns]))
        by_mean, by_covariance = exact.mean_slope.numpy(), exact.covariance_slope.numpy()
        if n_latent == 1:  # the factor that makes the first derivative one
            factor = np.abs(by_mean)
            by_mean, by_covariance = np.sign(by_mean), by_covariance / factor
        for found, radius, exact_slopes in (
            (slopes.mean, slopes.mean_radius, by_mean),
            (slopes.covariance, slopes.covariance_radius, by_covariance),
        ):
            error = np.abs(exact_slopes - found[b].numpy()).max(axis=0)
            assert (error <= radius[b].numpy() + 1e-6).all()


@pytest.mark.parametrize("link", [ProbitLink(20.0), LogitLink(20.0)])
def test_no_value_along_a_line_of_moments_is_below_the_least(link):
    rng = np.random.default_rng(0)
    start, tilt = 3 * rng.normal(size=200), rng.normal(size=200)
    start[:100] = tilt[:100] * (2 + rng.uniform(0, 8, 100))  # stationary within the line
    least, most = np.sort(rng.uniform(0, 10, (2, 200)), axis=0)
    found = link._least_on_line(*map(tensor, (start, tilt, least, most))).numpy()
    share = np.linspace(0, 1, 201)
    variance = least[:, None] + (most - least)[:, None] * share
    mean = start[:, None] + tilt[:, None] * variance
    values = link._value(tensor(mean.ravel()), tensor(variance.ravel())).numpy().reshape(200, 201)
    assert (found <= values.min(axis=1) + 1e-10).all()
    if isinstance(link, ProbitLink):
        assert_allclose(found, values.min(axis=1), atol=1e-4)
    narrow = link._least_on_line(*map(tensor, (start, tilt, least, least + 0.1))).numpy()
    ends = [link._value(tensor(start + tilt * v), tensor(v)).numpy() for v in (least, least + 0.1)]
    assert_allclose(narrow, np.min(ends, axis=0), atol=1e-4)
    half = link._least_on_line(*map(tensor, ([0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [2.0, 1.0])))
    # Eq. 20: there is no value below a half, but what a curve might sag between two nodes
    sag = 0.0 if isinstance(link, ProbitLink) else links._FOURTH / 4 * 0.25**2 / 8
    assert_allclose(half, [0.5 - sag, 0.5], rtol=1e-12)
    if isinstance(link, LogitLink):
        least = link._least_on_line(*map(tensor, ([1.0, 4.0], [0.5, -1.5], [0.0, 0.0], [2.0, 2.0])))
        ends = link._value(tensor([1.0, 1.0]), tensor([0.0, 2.0])).numpy()
        bend = [links._SECOND * b**2 + links._THIRD * b + links._FOURTH / 4 for b in (0.5, 1.5)]
        assert_allclose(least, ends - np.array(bend) * 0.25**2 / 8, rtol=1e-12)


def test_curvature_of_the_averaged_logistic_function_along_lines_is_within_its_bound():
    """Between two nodes, a curve sags as far as its second derivative allows, and no more."""
    link = LogitLink(50.0)
    least = np.array([0.0, 0.0, 0.5, 2.0])
    for tilt in (0.0, 0.5, 2.0):
        second, third, fourth = (b.numpy() for b in links._largest_derivatives(tensor(least)))
        bend = second * tilt**2 + third * tilt + fourth / 4
        steepest = np.zeros(4)
        for mean in np.linspace(-4, 4, 81):
            v = least + 1e-2
            line = [
                link._value(tensor(mean + tilt * s * np.ones(4)), tensor(v + s)).numpy()
                for s in (-1e-2, 0.0, 1e-2)
            ]
            steepest = np.maximum(steepest, np.abs(line[0] - 2 * line[1] + line[2]) / 1e-4)
        assert (steepest <= bend + 1e-5).all()
        assert (steepest >= bend / 4).any()


def test_constants_are_the_largest_derivatives_of_the_logistic_function():
    u = np.linspace(-1, 1, 200_001)  # tanh(f / 2)
    product = (1 - u * u) / 4
    largest = [
        np.abs(product * u).max(),
        np.abs(product * (1 - 6 * product)).max(),
        np.abs(product * u * (1 - 12 * product)).max(),
    ]
    for exact, bound in zip(largest, (links._SECOND, links._THIRD, links._FOURTH), strict=True):
        assert exact <= bound <= 1.01 * exact
    z = np.linspace(-6, 6, 200_001)
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    smooth = [np.abs(h * density).max() for h in (z, z**2 - 1, z**3 - 3 * z)]
    bounds = links._largest_derivatives(tensor([100.0]))
    for order, (exact, bound) in enumerate(zip(smooth, bounds, strict=True), 2):
        assert exact <= float(bound) * 10**order <= 1.01 * exact


@pytest.mark.parametrize("n_classes", [2, 3, 4])
def test_constants_bound_the_joint_cumulants_of_classes(n_classes):
    rng = np.random.default_rng(0)
    p = np.concatenate([rng.dirichlet(np.full(n_classes, a), 500) for a in (0.3, 1.0, 3.0)])
    index = rng.integers(0, n_classes, (30, 5))
    index[0] = 0
    x = np.eye(n_classes)[None] - p[:, None]

    def expect(*which):
        return (p * np.prod([x[..., i] for i in which], axis=0)).sum(axis=1)

    largest = np.zeros(6)
    for i in index:
        a, b, c, d, _e = i
        largest[3] = max(largest[3], np.abs(expect(a, b, c)).max())
        four = expect(a, b, c, d) - expect(a, b) * expect(c, d)
        four = four - expect(a, c) * expect(b, d) - expect(a, d) * expect(b, c)
        largest[4] = max(largest[4], np.abs(four).max())
        five = expect(*i)
        for j in range(5):
            for k in range(j):
                others = [i[m] for m in range(5) if m not in (j, k)]
                five = five - expect(i[j], i[k]) * expect(*others)
        largest[5] = max(largest[5], np.abs(five).max())
    own = softmax_link._SECOND, softmax_link._THIRD, softmax_link._FOURTH
    assert (largest[3:] <= own).all()
    X = rng.uniform(size=(60, n_classes))
    X = (X - X.min(axis=1, keepdims=True)) / np.ptp(X, axis=1, keepdims=True)
    for values in (*X, np.eye(n_classes)[0]):
        square = (values - (p @ values)[:, None]) ** 2
        along = p * (square - (p * square).sum(axis=1, keepdims=True))
        assert np.abs(along).max() <= softmax_link._ALONG


def test_averages_of_bounded_functions_have_bounded_derivatives():
    z = np.linspace(-9, 9, 100_001)
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    hermite = [np.ones_like(z), z, z**2 - 1, z**3 - 3 * z, z**4 - 6 * z**2 + 3]
    for order in (2, 3, 4):
        largest = (np.abs(hermite[order]) * density).sum() * (z[1] - z[0]) / 2
        assert largest <= softmax_link._SMOOTH[order] <= 2 * largest
    assert np.abs(hermite[2]) @ density * (z[1] - z[0]) / 2 <= softmax_link._SQUARE < 0.484


def test_norms_of_changes_of_covariances_are_attained_by_an_error_of_all_contrasts():
    """No entry is known, but the norm of all errors together: it decides, times its stretch."""
    error = 0.1 * (np.eye(3) - 1 / 3)
    zero = torch.zeros(1, 6, 1).double()
    covariance = Moments(zero[..., 0], zero, zero[..., None], torch.ones(1, 6).double(), zero)
    mean = covariance._replace(value=torch.zeros(1, 3).double())
    expansion = Expansion(mean, covariance, tensor([np.linalg.norm(error, 2)]))
    D, stretch = torch.full((1, 3), 0.25).double(), tensor([4.0])  # D^-1/2 on both sides
    frobenius, spectral = softmax_link.covariance_norms(expansion, None, D, stretch)
    assert spectral.item() == pytest.approx(np.linalg.norm(4 * error, 2))
    assert frobenius.item() == pytest.approx(np.linalg.norm(4 * error))
