"""Radial flows are densities: Jacobians by differentiation, integrals by sums."""

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from skuq.evidential.comparison._flows import RadialFlows, radial_step


@pytest.mark.parametrize("n_dimensions", [1, 2, 5])
@pytest.mark.parametrize("stretch", [-0.6, 0.0, 2.5])
def test_log_determinant_against_differentiation(n_dimensions, stretch):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(6, n_dimensions, generator=generator, dtype=torch.float64)
    centre = torch.randn(1, n_dimensions, generator=generator, dtype=torch.float64)
    settings = torch.tensor([[0.7]]).double(), torch.tensor([[stretch]]).double()
    _, log_det = radial_step(points, centre, *settings)
    for point, value in zip(points, log_det, strict=True):
        jacobian = torch.autograd.functional.jacobian(
            lambda z: radial_step(z[None], centre, *settings)[0][0], point
        )
        torch.testing.assert_close(value, torch.linalg.slogdet(jacobian).logabsdet)


def test_a_point_at_the_centre_stays_and_has_a_gradient():
    centre = torch.zeros(1, 3, requires_grad=True)
    one = torch.ones(1, 1)
    moved, log_det = radial_step(torch.zeros(1, 3), centre, one, one)
    torch.testing.assert_close(moved, torch.zeros(1, 3))
    torch.testing.assert_close(log_det, torch.full((1,), 3 * np.log(2), dtype=torch.float32))
    log_det.sum().backward()
    assert torch.isfinite(centre.grad).all()


def flows(n_classes=3, n_dimensions=2, n_layers=4, spread=2.0):
    torch.manual_seed(0)
    made = RadialFlows(n_classes, n_dimensions, n_layers).double()
    with torch.no_grad():  # far from the identity that they start near
        for parameter in made.parameters():
            parameter.normal_(std=spread)
    return made


@pytest.mark.slow
def test_densities_integrate_to_one():
    axis = torch.linspace(-14, 14, 701, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        mass = flows()(grid).exp().sum(dim=0) * (axis[1] - axis[0]) ** 2
    torch.testing.assert_close(mass, torch.ones(3, dtype=torch.float64), atol=1e-2, rtol=0)


def test_classes_do_not_mix():
    made = flows(n_dimensions=4)
    points = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    made(points)[:, 1].sum().backward()
    for parameter in made.parameters():
        assert (parameter.grad[:, [0, 2]] == 0).all()
        assert (parameter.grad[:, 1] != 0).any()


def test_without_stretch_it_is_a_normal_density():
    made = flows(n_dimensions=3)
    with torch.no_grad():
        made.raw_stretch.copy_(made.raw_radius)  # softplus(s) - softplus(r) = 0
    points = torch.randn(7, 3, dtype=torch.float64)
    normal = MultivariateNormal(torch.zeros(3).double(), torch.eye(3).double()).log_prob(points)
    torch.testing.assert_close(made(points), normal[:, None].expand(7, 3))


def test_maximum_likelihood_finds_where_the_points_are():
    torch.manual_seed(0)
    made = RadialFlows(1, 2, 5)
    points = torch.tensor([2.0, -1.0]) + 0.3 * torch.randn(200, 2)
    before = made(points).mean()
    optimizer = torch.optim.Adam(made.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        (-made(points).mean()).backward()
        optimizer.step()
    assert made(points).mean() > before + 2
    assert made(points).mean() > made(-points).mean() + 5
