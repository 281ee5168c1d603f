"""From moments to probabilities: no point of a box is below the minimum that is claimed."""

from itertools import combinations, permutations

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

from .oracles import average, full, pairs_of, tensor

THREE = "softmax of three"
CASES = {
    "probit": (ProbitLink(50.0), 1, 2),
    "logit": (LogitLink(50.0), 1, 2),
    "softmax of two": (SoftmaxLink(2, 200.0), 2, 2),
    THREE: (SoftmaxLink(3, 200.0), 3, 3),
}
BOTH = pytest.mark.parametrize("case", CASES)
BINARY = pytest.mark.parametrize("case", ["probit", "logit"])


def random_moments(rng, case, size, level, rest=0.0, count=12, f=2):
    """Quadratic means and covariances over boxes, positive definite everywhere."""
    n_latent = CASES[case][1]
    root = rng.normal(size=(count, n_latent, n_latent))
    covariance = level * (root @ root.swapaxes(1, 2) / n_latent + 0.3 * np.eye(n_latent))
    parts = []
    for value, scale in (
        (2 * rng.normal(size=(count, n_latent)), size),
        (pairs_of(covariance), size * level * 0.1 / n_latent),
    ):
        bend = rng.normal(size=(*value.shape, f, f))
        slope = scale * rng.normal(size=(*value.shape, f))
        bend = scale / 4 * (bend + bend.swapaxes(2, 3))
        parts.append((value, slope, bend, np.full(value.shape, rest * scale), 0 * slope))
    return Expansion(*(Moments(*map(tensor, part)) for part in parts))


def moments_at(expansion, b, t, sign=0.0):
    """Mean (n, L) and covariance (n, L, L) of one box at points t, rests added with a sign."""
    found = []
    for part in expansion[:2]:
        value, gradient, hessian, rest = (p[b].numpy() for p in part[:4])
        bent = np.einsum("ni,kij,nj->nk", t, hessian, t) / 2
        found.append(value + t @ gradient.T + bent + sign * rest)
    return found[0], full(found[1])


def objectives(rng, n_classes, count):
    units = np.eye(n_classes)
    choices = np.concatenate([units, units - units[::-1][:, :n_classes]])
    if n_classes > 2:
        choices = np.concatenate([choices, -units])
    weights = choices[rng.integers(0, len(choices), count)]
    return np.where((weights == 0).all(axis=1, keepdims=True), units[0], weights)


def problem(rng, case, *shape, **more):
    """A link, moments over boxes, an objective of each, and what it is at their centres."""
    (link, _, n_classes), expansion = CASES[case], random_moments(rng, case, *shape, **more)
    objective = tensor(objectives(rng, n_classes, len(expansion.mean.value)))
    return link, expansion, objective, link.evaluate(objective, *(p.value for p in expansion[:2]))


def outputs_at(link, objective, mean, covariance):
    weights = np.tile(objective, (len(mean), 1))
    return link.evaluate(tensor(weights), tensor(mean), tensor(pairs_of(covariance)))


def evaluated(link, objective, mean, covariance):
    """Smallest value of an objective, rounded up by the error of its evaluation."""
    found = outputs_at(link, objective, mean, covariance)
    return float((found.value + found.error).min())


@BOTH
def test_evaluations_are_within_their_error_and_slopes_are_derivatives(case):
    rng, step = np.random.default_rng(0), 1e-4
    for level in (1e-4, 20.0, 1.0):
        link, expansion, objective, found = problem(rng, case, 0.0, level, count=6)
        moments = zip(*(moments_at(expansion, b, np.zeros((1, 2))) for b in range(6)), strict=True)
        exact = (average(case.split()[0], *map(np.concatenate, moments)) * objective.numpy()).sum(1)
        assert (np.abs(exact - found.value.numpy()) <= found.error.numpy() + 1e-9).all()
    assert float(found.error.max()) < 1e-4
    for moved, slopes in enumerate((found.mean_slope, found.covariance_slope)):
        for k in range(slopes.shape[1]):
            ends = []
            for sign in (step, -step):
                parts = [part.value.clone() for part in expansion[:2]]
                parts[moved][:, k] += sign
                ends.append(link.evaluate(objective, *parts).value)
            assert_allclose((ends[0] - ends[1]) / (2 * step), slopes[:, k], atol=2e-4)


@BOTH
@pytest.mark.parametrize("size", [(1e-3, 1e-3), (0.3, 0.0), (0.0, 0.3)])
def test_objectives_at_points_hold_for_all_moments_within_their_errors(case, size):
    rng = np.random.default_rng(0)
    link, expansion, objective, slopes = problem(rng, case, 0.0, 1.0)
    moments = [part.value for part in expansion[:2]]
    errors = [torch.full_like(part, each) for part, each in zip(moments, size, strict=True)]
    gradients = [torch.ones_like(part)[..., None] for part in moments]
    bound, _ = objective_at(link, objective, Evaluation(*moments, *gradients, *errors))
    highest = torch.full_like(bound, -torch.inf)
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
    mean, covariance = rng.normal(size=(2, 4)), np.cov(1e3 * rng.normal(size=(4, 9)))
    objective = tensor([[0.0, 1.0, 0.0, 0.0], [-1.0, 0.0, 3.0, 0.0]])
    found = link.evaluate(objective, tensor(mean), tensor([pairs_of(covariance)] * 2))
    assert_array_equal(found.value, [0.5, 1.0])
    assert_array_equal(found.error, [0.5, 2.0])
    assert not found.mean_slope.any()
    assert not found.covariance_slope.any()


@BOTH
@pytest.mark.parametrize(
    ("level", "size", "rest"),
    [(0.05, 0.02, 0.0), (1.0, 2.0, 0.0), (10.0, 0.3, 0.0), (1.0, 0.02, 0.3), (10.0, 2.0, 0.3)],
)
def test_no_point_of_a_box_is_below_its_minimum(case, level, size, rest):
    rng, count = np.random.default_rng(7), 4 if case == THREE else 12
    link, expansion, objective, center = problem(rng, case, size, level, rest, count)
    t = np.concatenate([rng.uniform(-1, 1, (20, 2)), [[-1, -1], [1, 1], [-1, 1], [1, -1]]])
    least = [
        min(evaluated(link, objective[b], *moments_at(expansion, b, t, sign)) for sign in (-1, 1))
        for b in range(count)
    ]
    for target in (center.value, center.value - 0.2, torch.full_like(center.value, torch.inf)):
        found = link.minimum(objective, expansion, target)
        assert bool((found.point.abs() <= 1).all())
        assert (found.bound.numpy() <= least).all()


@pytest.mark.parametrize("level", [1.0, 30.0])
def test_errors_of_all_covariances_together_are_accounted_for(level):
    rng, size, link = np.random.default_rng(1), 0.2 * level, SoftmaxLink(3, 2000.0)
    _, expansion, objective, _ = problem(rng, THREE, 0.3, level)
    unknown = torch.full_like(expansion.covariance.rest, 1e9)
    unknown_each = expansion.covariance._replace(rest=unknown)
    expansion = Expansion(expansion.mean, unknown_each, torch.full_like(unknown[:, 0], size))
    found = link.minimum(objective, expansion, tensor(np.zeros(12))).bound
    t, contrasts = rng.uniform(-1, 1, (12, 2)).round(), rng.normal(size=(12, 3))
    contrasts -= contrasts.mean(axis=1, keepdims=True)
    contrasts /= np.linalg.norm(contrasts, axis=1, keepdims=True)
    error = size * contrasts[:, None] * contrasts[..., None] * rng.choice([-1, 1], (12, 1, 1))
    shift = level * rng.normal(size=(12, 3))
    error += shift[:, None] + shift[..., None]
    for b in range(12):
        mean, covariance = moments_at(expansion, b, t)
        assert float(found[b]) <= evaluated(link, objective[b], mean, covariance + error)
    assert bool((found > objective.amin(-1) + 1e-3).any())


def test_rivals_that_exclude_each_other_do_not_count_as_associated():
    """One of two opposite latent functions is always above the third, or each takes its share."""
    link, objective = CASES[THREE][0], tensor([[1.0, 0, 0]])
    none = random_moments(np.random.default_rng(0), THREE, 0.0, 1.0, count=1)

    def there(mean, *pairs):
        values = tensor([mean]), tensor([[0.1, 0.0, 0.0, *pairs]])
        box = Expansion(*(p._replace(value=v) for p, v in zip(none[:2], values, strict=True)))
        return float(link.evaluate(objective, *values).value), box

    for given in (([0.0, 0, 0], 50.0, -49.9, 50.0), ([8.0, 0, 0], 1.0, -0.9, 1.0)):
        value, box = there(*given)
        assert float(link.minimum(objective, box, tensor([value])).bound) <= value
    assert 1 - 1.5 * (1 - value) < float(link._pairwise(objective, box)) <= value
    value, box = there([-8.0, 0, 0], 1.0, -0.9, 1.0)
    assert value <= -float(link._pairwise(-objective, box)) < 5 * value


def test_norms_of_whitened_moments_are_not_underestimated():
    """Distances from the centre, and symmetric parts of their products by all permutations."""
    rng, contrast = np.random.default_rng(2), np.array([[1.0, 0, -1], [0, 1, -1]])
    expansion = random_moments(rng, THREE, 0.3, 1.0)
    reach, _ = CASES[THREE][0]._reach(expansion)
    t = rng.uniform(-1, 1, (60, 2))
    t[:30] = np.sign(t[:30])
    for b in range(12):
        mean, covariance = moments_at(expansion, b, t)
        (center,), (start,) = moments_at(expansion, b, np.zeros((1, 2)))
        values, vectors = np.linalg.eigh(contrast @ start @ contrast.T)
        W = (vectors / np.sqrt(values)).T @ contrast
        v, M = (mean - center) @ W.T, W @ (covariance - start) @ W.T
        third, fourth = np.einsum("ni,njk->nijk", v, M), np.einsum("nij,nkl->nijkl", M, M)
        sizes = (float(part[b]) * (1 + 1e-9) for part in (*reach[2:], reach.mixed))
        shift, change, spectral, mixed = sizes
        assert np.linalg.norm(v, axis=1).max() <= shift
        assert change / 2 <= np.linalg.norm(M, axis=(1, 2)).max() <= change
        assert spectral / 2 <= np.linalg.norm(M, 2, axis=(1, 2)).max() <= spectral
        for tensors, size in ((third, shift * mixed), (fourth, change * mixed)):
            orders = list(permutations(range(1, tensors.ndim)))
            symmetric = sum(tensors.transpose(0, *order) for order in orders) / len(orders)
            assert (symmetric**2).sum(axis=tuple(range(1, tensors.ndim))).max() <= size**2


@BOTH
@pytest.mark.parametrize("size", [0.1, 0.01, 1e-9])
def test_minima_over_small_boxes_are_tight_and_slopes_known(case, size):
    rng = np.random.default_rng(3)
    link, expansion, objective, center = problem(rng, case, size, 1.0)
    found = link.minimum(objective, expansion, center.value)
    t = rng.uniform(-1, 1, (30, 2))
    t[:15] = np.where(t[:15] < 0, -1, 1)
    for b in range(12):
        least = evaluated(link, objective[b], *moments_at(expansion, b, t))
        assert least - max(size, 1e-3) <= float(found.bound[b])
    if size < 1e-3:  # but for the error of the evaluation
        assert float(found.slopes.mean_radius.max()) < 1e-3
        assert float(found.slopes.covariance_radius.max()) < 1e-3


def one_latent(*moments):
    """Boxes of one feature, from value, gradient, Hessian and rest of the two moments."""
    parts = []
    for moment in moments:
        value, gradient, hessian, rest = (tensor(part)[:, None] for part in moment)
        shaped = value, gradient[..., None], hessian[..., None, None], rest
        parts.append(Moments(*shaped, 0 * gradient[..., None]))
    return Expansion(*parts)


def second_class(case, mean, variance):
    flat = average(case, mean.reshape(-1, 1), variance.reshape(-1, 1, 1))
    return flat[:, 1].reshape(mean.shape)


@BINARY
def test_minima_are_exact_where_the_moments_move_together_or_apart(case):
    """Along a level line of the probability; or each by a rest of its own."""
    rng, (link, *_), n = np.random.default_rng(4), CASES[case], 40
    v = rng.uniform(0.2, 3, n)
    z = np.where(np.arange(n) % 2, 1, -1) * rng.uniform(0.2, 1.5, n)
    mean, tilt = z * np.sqrt(link.widening + v), z / (2 * np.sqrt(link.widening + v))
    pairs = np.array([[0, 1], [1, 0], [0, 2], [-1, 1], [1, -2]])[rng.integers(0, 5, n)]
    low, span = pairs.min(axis=1), np.ptp(pairs, axis=1)
    sign = np.where(pairs[:, 1] > pairs[:, 0], 1, -1)
    slope, bend, zero = *rng.uniform(-0.2, 0.2, (2, n)), np.zeros(n)
    slope[:10] = 1.2 * v[:10]  # part of the box has no variance
    bend[np.r_[:10, 20:n]] = 0
    t, rest = np.linspace(-1, 1, 401), 0.1 * (np.arange(n) % 3)
    moved = slope[:, None] * t + bend[:, None] * t**2 / 2
    variance = np.maximum(v[:, None] + moved, 0)
    q = second_class(case, (mean - rest)[:, None] + tilt[:, None] * moved, variance).min(axis=1)

    def minimum(mean, variance, target=low):
        return link.minimum(tensor(pairs), one_latent(mean, variance), tensor(target))

    together = sign * mean, sign * tilt * slope, sign * tilt * bend, rest
    found = minimum(together, (v, slope, bend, zero), low + span * ndtr(z))
    gap = (low + span * q - found.bound.numpy()) / span
    assert (gap >= -1e-10).all()
    sag = 1e-9 if case == "probit" else 2e-5  # between nodes, where the variance is small
    assert (gap <= np.repeat([0.02, 2e-3, sag, sag], 10)).all()
    assert_allclose(found.rest, rest, rtol=1e-12)
    assert_allclose(found.curvature, 0, atol=1e-12)
    spread = np.abs(slope)
    for size in (0.5, 3.0):
        parts = sign * mean, zero + 0.3 * size, sign * -0.4 * size, zero + 0.5 * size
        found = minimum(parts, (v, zero, zero, spread))
        extreme = np.where(mean >= size, v + spread, np.maximum(v - spread, 0))
        exact = low + span * second_class(case, mean - size, extreme)
        assert_allclose(found.bound, exact, atol=1e-10)
        assert_allclose(found.curvature[:, 0], 0.4 * size, rtol=1e-9)
    # No more variance than the prior's, whatever is not known of it
    found = minimum((sign * np.abs(mean), zero, zero, zero), (v, zero, zero, zero + 1e3))
    exact = low + span * second_class(case, np.abs(mean), zero + 50.0)
    assert_allclose(found.bound, exact, atol=1e-10)


@BINARY
def test_minima_over_balls_are_exact_for_linear_means(case):
    """Along the gradient, as far as the ball reaches; boxes can be taken out of several."""
    (link, *_), objective, target = CASES[case], tensor([[0, 1], [0, 1]]), tensor([0.5, 0.5])
    one, flat = tensor([[1.0]] * 2), tensor(np.zeros((2, 1, 2)))
    ball = BallParts(flat[:, 0], flat[:, 0] + 1, tensor([0.5, 0.8]), 2)

    def linear(value, first, second):
        gradient = tensor([[first], [second]])
        hessian = flat[..., None] + flat[:, :, None]
        return Moments(value * one, gradient, hessian, 0 * one, flat, ball)

    box = Expansion(linear(1, [0.3, -0.4], [0.0, 0.5]), linear(1, [0, 0], [0, 0]))
    found = link.minimum(objective, box, target)
    exact = second_class(case, 1 - np.array([0.25, 0.4]), np.ones(2))
    assert_allclose(found.bound, exact, atol=1e-9)
    second = found.select(torch.tensor([1]))
    parts, wholes = (*second[:4], *second.slopes), (*found[:4], *found.slopes)
    for part, whole in zip(parts, wholes, strict=True):
        assert_array_equal(part, whole[1:])


@BINARY
def test_ranges_of_slopes_are_those_of_their_formulas(case):
    """Level lines of the probit everywhere in a box; of the logit at its centre, and around it."""
    rng, (link, *_), n = np.random.default_rng(6), CASES[case], 60
    odd, mean, zero = np.arange(n) % 2 == 1, rng.uniform(-2, 2, n), np.zeros(n)
    reach, spread = rng.uniform(0, 0.3, (2, n)) * rng.integers(0, 2, (2, n))
    # The logit has no variance at one end, where the logistic function's own derivatives count.
    v = np.where(odd | (case == "logit"), spread, spread * rng.uniform(0.5, 2, n))
    box, sign = one_latent((mean, reach, zero, zero), (v, spread, zero, zero)), np.where(odd, 1, -1)
    slopes = link.minimum(tensor(np.eye(2)[odd.astype(int)]), box, tensor(zero)).slopes
    assert_array_equal(slopes.mean[:, 0], sign)
    assert_array_equal(slopes.mean_radius[:, 0], 0)
    mean, edges = sign * mean, (-1, 1)
    if case == "probit":
        least, most = np.maximum(v - spread, 0), v + spread
        ends = [(mean + s * reach) / (2 * (1 + u)) for s in edges for u in (least, most)]
    else:
        center = outputs_at(link, [0, 1], mean[:, None], v[:, None, None])
        first, half = center.mean_slope[:, 0].numpy(), center.covariance_slope[:, 0].numpy()
        near = links._SECOND * reach + links._THIRD / 2 * spread
        bend = links._THIRD * reach + links._FOURTH / 2 * spread
        ends = [-(half + s * bend / 2) / (first + u * near) for s in edges for u in edges]
    steepest = np.inf if case == "probit" else 0.5
    lowest, highest = np.clip([np.min(ends, axis=0), np.max(ends, axis=0)], -steepest, steepest)
    lowest = np.where(v < spread, np.minimum(lowest, 0), lowest)
    highest = np.where(v < spread, np.maximum(highest, 0), highest)
    assert_allclose(slopes.covariance[:, 0], -(lowest + highest) / 2, atol=1e-8)
    assert_allclose(slopes.covariance_radius[:, 0], (highest - lowest) / 2, atol=1e-8)


@BOTH
@pytest.mark.parametrize(("level", "size"), [(0.05, 2.0), (1.0, 0.02), (1.0, 0.3), (10.0, 2.0)])
def test_slopes_enclose_the_derivatives_all_over_a_box(case, level, size):
    """Derivatives by the moments, up to one positive factor for each point."""
    rng = np.random.default_rng(5)
    link, expansion, objective, _ = problem(rng, case, size, level)
    slopes = link.minimum(objective, expansion, tensor(np.zeros(12))).slopes
    t = rng.uniform(-1, 1, (20, 2))
    for b in range(12):
        exact = outputs_at(link, objective[b], *moments_at(expansion, b, t))
        # With one latent function, the factor makes the first derivative one.
        factor = exact.mean_slope.abs() if CASES[case][1] == 1 else 1.0
        for found, radius, own in (
            (slopes.mean, slopes.mean_radius, exact.mean_slope),
            (slopes.covariance, slopes.covariance_radius, exact.covariance_slope),
        ):
            assert bool(((own / factor - found[b]).abs().amax(0) <= radius[b] + 1e-6).all())


@BINARY
def test_no_value_along_a_line_of_moments_is_below_the_least(case):
    rng, link = np.random.default_rng(0), type(CASES[case][0])(20.0)
    start, tilt = 3 * rng.normal(size=200), rng.normal(size=200)
    start[:100] = tilt[:100] * (2 + rng.uniform(0, 8, 100))  # stationary within the line
    least, most = np.sort(rng.uniform(0, 10, (2, 200)), axis=0)

    def found(*line):
        return link._least_on_line(*map(tensor, line)).numpy()

    variance = least[:, None] + (most - least)[:, None] * np.linspace(0, 1, 201)
    mean = start[:, None] + tilt[:, None] * variance
    values = link._value(tensor(mean), tensor(variance)).numpy()
    whole = found(start, tilt, least, most)
    assert (whole <= values.min(axis=1) + 1e-10).all()
    ends = [link._value(tensor(start + tilt * v), tensor(v)).numpy() for v in (least, least + 0.1)]
    assert_allclose(found(start, tilt, least, least + 0.1), np.min(ends, axis=0), atol=1e-4)
    # Eq. 20: there is no value below a half, but what a curve might sag between two nodes
    sag = 0.0 if case == "probit" else links._FOURTH / 4 * 0.25**2 / 8
    half = found([0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [2.0, 1.0])
    assert_allclose(half, [0.5 - sag, 0.5], rtol=1e-12)
    if case == "probit":
        assert_allclose(whole, values.min(axis=1), atol=1e-4)
    else:
        ends = link._value(tensor([1.0, 1.0]), tensor([0.0, 2.0])).numpy()
        bend = [links._SECOND * b**2 + links._THIRD * b + links._FOURTH / 4 for b in (0.5, 1.5)]
        least = found([1.0, 4.0], [0.5, -1.5], [0.0, 0.0], [2.0, 2.0])
        assert_allclose(least, ends - np.array(bend) * 0.25**2 / 8, rtol=1e-12)


def test_curvature_of_the_averaged_logistic_function_along_lines_is_within_its_bound():
    """Between two nodes, a curve sags as far as its second derivative allows, and no more."""
    link, least, mean = LogitLink(50.0), np.array([0.0, 0.0, 0.5, 2.0]), np.linspace(-4, 4, 81)
    for tilt in (0.0, 0.5, 2.0):
        second, third, fourth = (b.numpy() for b in links._largest_derivatives(tensor(least)))
        bend = second * tilt**2 + third * tilt + fourth / 4
        before, here, after = (
            link._value(
                tensor(mean[:, None] + tilt * s + 0 * least),
                tensor(least + 1e-2 + s + 0 * mean[:, None]),
            )
            for s in (-1e-2, 0.0, 1e-2)
        )
        steepest = (before - 2 * here + after).abs().amax(0).numpy() / 1e-4
        assert (steepest <= bend + 1e-5).all()
        assert (steepest >= bend / 4).any()


def test_constants_are_the_largest_derivatives_of_the_logistic_function_and_of_averages():
    u = np.linspace(-1, 1, 200_001)  # tanh(f / 2)
    product = (1 - u * u) / 4
    curves = product * u, product * (1 - 6 * product), product * u * (1 - 12 * product)
    for curve, bound in zip(curves, (links._SECOND, links._THIRD, links._FOURTH), strict=True):
        assert np.abs(curve).max() <= bound <= 1.01 * np.abs(curve).max()
    z = np.linspace(-6, 6, 200_001)
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    bounds = links._largest_derivatives(tensor([100.0]))
    for order, (h, bound) in enumerate(zip((z, z**2 - 1, z**3 - 3 * z), bounds, strict=True), 2):
        exact = np.abs(h * density).max()
        assert exact <= float(bound) * 10**order <= 1.01 * exact
    z = np.linspace(-9, 9, 100_001)
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    hermite = {2: z**2 - 1, 3: z**3 - 3 * z, 4: z**4 - 6 * z**2 + 3}
    for order, polynomial in hermite.items():
        largest = np.abs(polynomial) @ density / 2
        assert largest <= softmax_link._SMOOTH[order] <= 2 * largest
    assert np.abs(hermite[2]) @ density / 2 <= softmax_link._SQUARE < 0.484


@pytest.mark.parametrize("n_classes", [2, 3, 4])
def test_constants_bound_the_joint_cumulants_of_classes(n_classes):
    rng, eye = np.random.default_rng(0), np.eye(n_classes)
    p = np.concatenate([rng.dirichlet(np.full(n_classes, a), 500) for a in (0.3, 1.0, 3.0)])
    index = rng.integers(0, n_classes, (30, 5))
    index[0] = 0

    def expect(which):
        return (p * np.prod([eye[i] - p[:, [i]] for i in which], axis=0)).sum(axis=1)

    def cumulant(which):
        """Of variables of mean 0: of up to five, only pairs can be split off."""
        splits = [s for s in combinations(range(len(which)), 2) if len(which) != 4 or s[0] == 0]
        parts = (expect(which[[*s]]) * expect(np.delete(which, s)) for s in splits)
        return expect(which) - sum(parts)

    bounds = softmax_link._SECOND, softmax_link._THIRD, softmax_link._FOURTH
    for order, bound in zip((3, 4, 5), bounds, strict=True):
        assert max(np.abs(cumulant(which[:order])).max() for which in index) <= bound
    X = rng.uniform(size=(60, n_classes))
    X = (X - X.min(axis=1, keepdims=True)) / np.ptp(X, axis=1, keepdims=True)
    for values in (*X, eye[0]):
        square = (values - (p @ values)[:, None]) ** 2
        along = p * (square - (p * square).sum(axis=1, keepdims=True))
        assert np.abs(along).max() <= softmax_link._ALONG


def test_norms_of_changes_of_covariances_are_attained_by_an_error_of_all_contrasts():
    """No entry is known, but the norm of all errors together: it decides, times its stretch."""
    error, zero = 0.1 * (np.eye(3) - 1 / 3), tensor(np.zeros((1, 6, 1)))
    covariance = Moments(zero[..., 0], zero, zero[..., None], zero[..., 0] + 1, zero)
    mean = covariance._replace(value=tensor([[0.0] * 3]))
    expansion = Expansion(mean, covariance, tensor([np.linalg.norm(error, 2)]))
    quarter = tensor([[0.25] * 3]), tensor([4.0])  # D^-1/2 on both sides
    frobenius, spectral = softmax_link.covariance_norms(expansion, None, *quarter)
    assert spectral.item() == pytest.approx(np.linalg.norm(4 * error, 2))
    assert frobenius.item() == pytest.approx(np.linalg.norm(4 * error))
