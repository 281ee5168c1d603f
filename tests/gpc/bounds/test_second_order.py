"""Averages of three classes to second order: derivatives, what third ones amount to, and boxes."""

from itertools import permutations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import ndtr

from skuq.gpc.bounds import _softmax_link as second_order
from skuq.gpc.bounds._latent_bounds import Expansion
from skuq.gpc.bounds._softmax_link import SecondOrder, SoftmaxLink, third_derivative
from skuq.gpc.inference._softmax_averages import difference_derivatives

from .oracles import full, grid, pairs_of, tensor
from .test_links import THREE, evaluated, moments_at, objectives, random_moments

CONTRAST, LINK = np.array([[1.0, 0, -1], [0, 1, -1]]), SoftmaxLink(3, 2000.0)


def halved(expansion, times):
    def half(part):
        gradient, hessian = 0.5**times * part.gradient, 0.25**times * part.hessian
        return part._replace(gradient=gradient, hessian=hessian)

    return Expansion(*map(half, expansion[:2]))


def over(objective, expansion):
    zero = torch.zeros(len(objective)).double()
    return SecondOrder.over(tensor(objective), expansion, zero, zero, zero)


def problem(seed, *shape):
    rng = np.random.default_rng(seed)
    expansion, objective = random_moments(rng, THREE, *shape), objectives(rng, 3, 12)
    return rng, expansion, objective, over(objective, expansion)


def independent_moments(seed, *arguments, **parameters):
    expansion = random_moments(np.random.default_rng(seed), THREE, *arguments, **parameters)
    variances = tensor([1.0, 0, 0, 1, 0, 1]) * expansion.covariance.value
    return expansion._replace(covariance=expansion.covariance._replace(value=variances))


def contrasts(mean, covariance):
    """The five moments of the differences to the third class."""
    return np.concatenate([mean @ CONTRAST.T, pairs_of(CONTRAST @ covariance @ CONTRAST.T)], -1)


def changes(expansion, b, t, sign=0.0):
    start = contrasts(*moments_at(expansion, b, np.zeros((1, 2))))
    return contrasts(*moments_at(expansion, b, t, sign)) - start


def modelled(second, b, z):
    bent = np.einsum("...i,ij,...j->...", z, second.Q[b].numpy(), z) / 2
    return float(second.value[b]) + z @ second.slope[b].numpy() + bent


@pytest.mark.parametrize("deviation", [0.05, 0.9, 1.6, 12.0])
def test_derivatives_are_those_of_lower_ones(deviation):
    rng = np.random.default_rng(0)
    objective, mean = tensor(objectives(rng, 3, 8)), tensor(deviation * rng.normal(size=(8, 3)))
    variance = tensor(deviation**2 * rng.uniform(0.4, 1.6, (8, 3)))
    found, step = difference_derivatives(objective, mean, variance), 1e-3 * max(1.0, deviation)
    for k in (0, 1):
        move = step * torch.eye(3)[k].double()
        ends = (difference_derivatives(objective, mean + s * move, variance) for s in (1, -1))
        slope = (next(ends) - next(ends)) / (2 * step)
        for i in range(4):
            for j in range(4 - i):
                unit = max(1.0, deviation) ** (i + j + 1)
                there = found[:, i + (k == 0), j + (k == 1)]
                assert_allclose(unit * slope[:, i, j], unit * there, atol=2e-5)


@pytest.mark.parametrize("level", [0.3, 30.0])
def test_values_and_slopes_are_those_of_the_link(level):
    _, expansion, objective, second = problem(1, 0.1, level)
    assert len(second.rows) > 3
    exact = LINK.evaluate(second.objective, *(part.value[second.rows] for part in expansion[:2]))
    outputs = LINK._unknown(tensor(objective), *(part.value for part in expansion[:2]))
    second.write(outputs)
    for result, wanted in zip(outputs, exact, strict=True):
        assert_allclose(result[second.rows], wanted, atol=2e-7)


@pytest.mark.parametrize("rest", [0.0, 0.05])
def test_bounds_without_third_derivatives_are_those_of_the_quadratic_model(rest):
    _, expansion, _, second = problem(3, 1.0, 60.0, rest)
    bound, _, _ = second._minimum(torch.zeros(len(second.rows)).double())
    t, slack = grid(-np.ones(2), np.ones(2), 41), []
    for b, row in enumerate(second.rows.tolist()):
        z = np.concatenate([changes(expansion, row, t, sign) for sign in (-1, 1)])
        slack.append(modelled(second, b, z).min() - float(bound[b]))
        reach = np.abs(z[len(t) :] @ second.slope[b].numpy()).max()
        assert 0 <= slack[-1] <= (0.25 if rest == 0 else 0.6) * reach
    assert rest > 0 or np.median(slack) < 0.01


def orders_of(v, M):
    """Squares of the terms of second and of third derivatives along a line, at its start."""
    vv, MM, outer = np.multiply.outer(v, v), np.multiply.outer(M, M), np.multiply.outer
    second = vv, outer(v, M), MM / 4
    third = outer(vv, v), 1.5 * outer(vv, M), 0.75 * outer(v, MM), outer(M, MM) / 8

    def size(T):
        """Squared norm of the symmetric part, times the number of orders."""
        return (T * sum(T.transpose(order) for order in permutations(range(T.ndim)))).sum()

    return [np.sqrt(sum(map(size, tensors))) for tensors in (second, third)]


def test_terms_along_a_line_are_not_underestimated_and_attained_in_one_dimension():
    rng, small = np.random.default_rng(4), 1e-4
    for trial in range(12):
        d = 1 + trial % 3
        v, M = rng.normal(size=d), rng.normal(size=(d, d))
        M = rng.normal() * np.outer(v, v) if trial > 8 else M  # all along one direction
        M = M + M.T
        # The share of the covariance has no part in it where moments hardly change.
        sizes = np.linalg.norm(v), np.linalg.norm(M), np.linalg.norm(M, 2)
        norms = [tensor([small * size]) for size in sizes]
        second = second_order.second_derivative(*norms)
        found = 2 * second / small**2, 6 * third_derivative(*norms) / small**3
        for exact, bound in zip(orders_of(v, M), map(float, found), strict=True):
            assert exact <= bound * (1 + 1e-9)
            if d == 1 or trial > 8:
                assert bound <= exact * (1 + 1e-2)


def test_third_derivatives_of_a_step_are_within_their_bound():
    """An average of a step is a normal distribution function: no output is less smooth."""
    rng, n, h = np.random.default_rng(6), 4000, 1e-4
    start, v, m = 1.5 * rng.normal(size=n), rng.uniform(-0.6, 0.6, n), rng.uniform(-0.7, 0.7, n)

    def average(s):
        return ndtr((start + s * v) / np.sqrt(1 + s * m))

    slope = (average(h) - average(-h)) / (2 * h)
    bend = (average(h) - 2 * average(0.0) + average(-h)) / h**2
    p = np.stack([average(s) for s in np.linspace(0, 1, 9)])
    V = np.sqrt(p * (1 - p)).max(axis=0)
    bound = V * third_derivative(*(tensor(np.abs(part)) for part in (v, m, m))).numpy()
    left = np.abs(average(1.0) - average(0.0) - slope - bend / 2)
    assert 0.3 < (left / (bound + 1e-6)).max() <= 1


@pytest.mark.parametrize("level", [5.0, 60.0])
def test_no_point_of_a_small_box_is_below_its_bound_and_slack_is_of_third_order(level):
    _, expansion, objective, second = problem(7, 0.3 * level**0.5, level)
    t, slack, few = grid(-np.ones(2), np.ones(2), 3), [], second.rows.numpy()
    for times in (0, 1, 2):
        smaller = halved(expansion, times)
        found = LINK.minimum(tensor(objective), smaller, tensor(np.zeros(12))).bound
        least = [evaluated(LINK, objective[b], *moments_at(smaller, b, t)) for b in range(12)]
        slack.append(np.array(least) - found.numpy())
        assert (slack[-1] >= 0).all()
    assert np.median(slack[1][few] / slack[2][few]) > 6
    assert np.median(slack[2][few]) < 4e-3


def test_remainders_count_with_their_worst_signs():
    """In the linear part, beside the linear parts of all others, and among themselves."""
    expansion = independent_moments(8, 1.0, 60.0, 0.5)
    expansion = Expansion(*(part._replace(hessian=0 * part.hessian) for part in expansion[:2]))
    second = over(objectives(np.random.default_rng(8), 3, 12), expansion)
    bound, _, _ = second._minimum(torch.zeros(12).double())
    signs = np.stack(np.meshgrid(*[[-1.0, 1.0]] * 9), -1).reshape(-1, 9)
    corners = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    slack, rests = [], []
    for b, row in enumerate(second.rows.tolist()):
        means, covariances = (part.rest[row].numpy() for part in expansion[:2])
        off = contrasts(signs[:, :3] * means, full(signs[:, 3:] * covariances))
        z = changes(expansion, row, corners)[:, None] + off
        slack.append(modelled(second, b, z).min() - float(bound[b]))
        rests.append(np.abs(off @ second.slope[b].numpy()).max())
    assert min(slack) >= 0
    assert np.median(np.array(slack) / rests) < 0.6


def test_third_derivatives_count_with_the_largest_deviation_of_outputs_and_with_rounding():
    expansion = independent_moments(9, 0.1, 60.0, count=3)
    second = over(np.array([[1.0, 0, 0], [1, -1, 0], [0, 0, -1]]), expansion)
    norms = {name: tensor([0.2] * 3) for name in ("shift", "change", "spectral")}
    plain = second._replace(value=tensor([0.1, -0.5, -0.8]))
    third = float(third_derivative(*norms.values())[0])
    for distance, variances in ((0.1, (0.2 * 0.8, 0.6 * 1.4, 0.3 * 0.7)), (0.9, (0.25, 1.0, 0.25))):
        away = tensor([distance] * 3)
        lost = plain._minimum(away)[0] - plain._replace(**norms)._minimum(away)[0]
        assert_allclose(lost, third * np.sqrt(variances), rtol=1e-6)
    # Averages move further by it, and norms grow by it.
    second = over(np.diag([1.0, -2.0, 3.0]), independent_moments(11, 2.0, 60.0, count=3))
    distance, eta = tensor([0.01, 0.02, 0.03]), 1e-3

    def third(distance, eta, scale):
        sizes = {"shift": 0.3 * scale, "change": 0.2 * scale, "spectral": 0.15 * scale}
        values = {name: tensor([size] * 3) for name, size in {**sizes, "whitened": eta}.items()}
        return second._replace(**values)._third(distance)

    further = third(distance + 32 * eta * tensor([1.0, 2.0, 3.0]), 0.0, 1.0)
    assert_allclose(third(distance, eta, 1 / (1 + 2 * eta)), further)
    assert (further > third(distance, 0.0, 1.0)).all()


def test_errors_of_integrals_lower_the_bound():
    """Those of second derivatives in units of the deviations, of others as they are given."""
    distance, sizes = tensor([0.0] * 3), tensor([1.0, 2.0, 3.0])
    expansion = independent_moments(10, 2.0, 60.0, count=3)
    second = over(np.diag(sizes), expansion)
    D = second_order.softmax.split(expansion.covariance.value, 3).D.numpy()
    units = [D[:, 0] ** 0.5, D[:, 1] ** 0.5, 2 * D[:, 0], (D[:, 0] * D[:, 1]) ** 0.5, 2 * D[:, 1]]
    assert (D > 1).all()
    assert_allclose(second.unit, np.stack(units, 1))
    reach = second._combined(torch.eye(5).double().expand(3, -1, -1)).reach()
    plain, point, curvature = second._minimum(distance)
    exact = second._replace(unit=torch.full_like(second.unit, 1e9))._minimum(distance)[0]
    lost = sizes * 5e-5 * (reach / second.unit).sum(-1) ** 2
    assert_allclose(exact - plain, lost, rtol=1e-5)
    outputs = LINK._unknown(torch.eye(3).double(), *(p.value for p in expansion[:2]))
    second.write(outputs)
    assert (outputs.error >= second_order.softmax.ACCURACY).all()
    found = plain + tensor([-1.0, 1.0, -1.0]), torch.zeros_like(point), torch.zeros_like(curvature)
    second.improve(*found, distance, tensor([0.3, 0.3, 0.3]))
    assert_allclose(found[0], plain + tensor([-0.3, 1.0, -0.3]))
    assert found[1][0].equal(point[0])
    assert found[2][2].equal(curvature[2])
    assert not found[1][1].any()
