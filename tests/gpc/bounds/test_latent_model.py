"""Constants of a posterior's bounds, and whitened rows of inducing points."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from skuq import RobustGPC
from skuq.gpc.bounds._latent_bounds import Expander
from skuq.gpc.bounds._latent_model import UNIT, LatentModel, _largest_of_whitened, from_sklearn
from skuq.gpc.inference._posterior import JointPosterior

from .oracles import tensor, within

# Inputs so far apart that their covariances are 3 times the identity, to the last digit
KERNEL, INPUTS = ConstantKernel(3.0) * RBF(1.0), np.array([[0.0], [100.0]])
REACH = 4 * 50.0**2  # twice the squared distance between the rows, about their mean
ROTATION = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
COEFFICIENTS = np.array([[3.0, 4.0], [0.0, -2.0]])
TOO_LONG = 2 / np.sqrt(3) * np.eye(2)


def latent(*posterior):
    return LatentModel.from_posterior(JointPosterior(KERNEL, INPUTS, *posterior), "cpu")


def rotated(eigenvalues, rotation=ROTATION):
    """Matrices of two latent functions of which the reduction has these eigenvalues."""
    blocks = (rotation * eigenvalues @ rotation.T).reshape(2, 2, 2, 2).swapaxes(1, 2)
    return blocks[[0, 0, 1], [0, 1, 1]]


@pytest.mark.parametrize(
    ("eigenvalues", "by_excess", "constant"),
    [
        *(([0.1, 0.2, 0.3, 0.6], 0.6, -1.0), ([-0.2, 0.1, 0.1, 0.2], 0.2, 0.0)),
        *(([-0.2, 0.1, 0.1, 0.6], 0.8, -1.0), ([0.05, 0.1, 0.1, 0.2], 0.0, 0.0)),
    ],
)
def test_constants_of_whitened_rows_are_those_of_their_matrices(eigenvalues, by_excess, constant):
    """With rows that are twice too long: no eigenvalue may then exceed a quarter."""
    matrices = rotated(eigenvalues)
    model = latent(COEFFICIENTS, matrices, TOO_LONG)
    found, both = model.whitening, matrices + matrices.swapaxes(1, 2)
    assert found.excess == pytest.approx(4, rel=1e-9)
    assert model.varsigma == pytest.approx(by_excess * found.excess + constant, abs=1e-12)
    assert_allclose(model.reduction, both / 2, rtol=1e-12)
    assert_allclose(model.row_sums, np.abs(both / 2).sum(axis=2), rtol=1e-12)
    for values, exact in (
        (found.coefficients, np.array([5.0, 2.0])),
        (model.norms, np.array([10.0, 4.0])),
        (found.spectral, np.linalg.norm(matrices, 2, axis=(1, 2))),
        (found.frobenius, np.linalg.norm(matrices, axis=(1, 2))),
    ):
        assert (values.numpy() > exact).all()
        assert_allclose(values, exact, rtol=1e-8)


@pytest.mark.parametrize("T", [[[2.0, 0.0], [0.0, 0.5]], [[0.7, 0.0], [-0.4, 0.8]]])
def test_the_bound_of_whitened_rows_is_that_of_its_equation(T):
    kernel, inputs, L = from_sklearn(KERNEL, 1), tensor(INPUTS), np.linalg.inv(T)
    lacking = max(0.0, -np.linalg.eigvalsh(L @ L.T - 3 * np.eye(2))[0])
    stretch = np.abs(T).sum(axis=0).max() * np.abs(T).sum(axis=1).max()
    exact = 1 + lacking * stretch  # Eq. 30
    # Eq. 27; covariances of different rows are 0, and so are their errors
    sums, entries = 1.1 * 10 * UNIT, 1.1 * 33 * UNIT * (1 + REACH)
    rounding = (sums * np.abs(L) @ np.abs(L).T + entries * 3 * np.eye(2)).sum(axis=1).max()
    found = _largest_of_whitened(kernel, inputs, tensor(T)) - exact
    assert found == pytest.approx(rounding * stretch + 1e-12 * exact, rel=0.02, abs=0)
    short = _largest_of_whitened(kernel, inputs, tensor(0.1 * np.eye(2)))
    assert short - 1 == pytest.approx(1e-12 + 2 * sums, rel=2e-3, abs=0)  # nothing is lacking


def test_norms_and_rounding_of_plain_rows_are_those_of_their_equations():
    unit, weights = 4 * (3 + 32) * UNIT * (1 + REACH), np.array([[0.5, -1.0]])  # Eq. 27
    for least, most in ((-0.1, 0.5), (0.001, 0.002), (0.1, 0.2)):
        model = latent(weights, np.diag([least, most])[None])
        assert float(model.norms[0]) ** 2 - 3.75 == pytest.approx(3.75 * unit, rel=2e-5, abs=0)
        exact = max(0.0, 3 * most - 1) + 6 * max(0.0, -least)
        allowed = unit * max(1.0, 6 * most)
        assert model.varsigma - exact == pytest.approx(allowed, rel=1e-3, abs=0)
    model = latent(COEFFICIENTS, rotated([-0.1, 0.2, 0.3, 0.5]))
    assert model.varsigma == pytest.approx(0.5 + 0.6 + 2 * 3 * unit, abs=1e-12)
    squares = np.array([75.0, 12.0])
    assert_allclose(model.norms.numpy() ** 2 - squares, squares * unit, rtol=1e-3)
    assert [part.tolist() for part in model.pairs] == [[0, 0, 1], [0, 1, 1]]


@pytest.mark.parametrize("whitener", [None, np.eye(2) / np.sqrt(3)])
def test_rounding_errors_of_moments_are_those_of_their_equations(whitener):
    """At an input, where the only covariance that is not 0 is 3."""
    unit, point = 1.1 * (2 + 1 + 32) * UNIT, tensor(INPUTS[:1])  # two inputs, a feature: Eq. 27
    model = latent(np.array([[0.5, -1.0]]), np.diag([0.1, 0.2])[None], whitener)
    evaluation = Expander(model, point, torch.arange(1)).evaluate(point, torch.arange(1))
    mean, covariance = 3 * 0.5 * unit, 2 * unit * (9 * 0.1 + 3)
    if whitener is not None:  # Eq. 31
        found, length = model.whitening, (3 * model.whitening.excess) ** 0.5
        mean = 4 * unit * (3**0.5 + length) * float(found.coefficients)
        covariance = 2 * length * 3**0.5 * found.spectral + length**2 * found.frobenius
        covariance = 4 * unit * (float(covariance) + 3)
    errors = evaluation.mean_error.item(), evaluation.covariance_error.item()
    assert errors == pytest.approx((mean, covariance), rel=1e-6, abs=0)


WIDE = ConstantKernel(1e4) * RBF(8.0)  # whose inducing points all but depend on one another
# What these tests compare with has 11 more bits than float64, or else they compare nothing.
precise = pytest.mark.skipif(np.finfo(np.longdouble).eps > 2e-19, reason="no type beyond float64")


@pytest.fixture(scope="module", params=["probit", "softmax"])
def model(request):
    X = np.random.default_rng(0).normal(size=(200, 3))
    limits = [0.0] if request.param == "probit" else [0.0, 0.8]
    y = np.digitize(np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2], limits)
    gpc = RobustGPC(WIDE, optimizer=None, n_inducing=40, device="cpu", random_state=0)
    return gpc.set_params(likelihood=request.param).fit(X, y)


@precise
def test_computed_moments_are_off_by_no_more_than_is_allowed_for(model):
    posterior, X = model.posterior_, np.random.default_rng(1).normal(size=(40, 3)) * 2
    expander = Expander(LatentModel.from_posterior(posterior, "cpu"), tensor(X), torch.arange(3))
    found = expander.evaluate(tensor(X), torch.arange(40))
    names = "inputs", "whitener", "coefficients", "matrices"
    parts = (np.longdouble(getattr(posterior, name)) for name in names)
    X, (inputs, whitener, coefficients, matrices) = np.longdouble(X), parts
    squares = (((X[:, None] - inputs) / np.longdouble(8.0)) ** 2).sum(-1)
    white = np.longdouble(1e4) * np.exp(-squares / 2) @ whitener.T
    error = np.abs(found.mean.numpy() - white @ coefficients.T)
    assert (error <= found.mean_error.numpy()).all()
    own = np.equal(*np.triu_indices(len(coefficients)))
    exact = own * np.longdouble(1e4) - np.einsum("ni,kij,nj->nk", white, matrices, white)
    error = np.abs(found.covariance.numpy() - exact)
    assert (error <= found.covariance_error.numpy()).all()
    assert (found.covariance_error.numpy() < 0.2).all()  # of variances up to 1e4


@precise
@pytest.mark.parametrize(
    "kernel", [WIDE, 9.0 * RationalQuadratic(4.0, 0.6), Matern([2.0, 9.0], nu=2.5) + 0.5], ids=str
)
@pytest.mark.parametrize("jitter", [1e-9, 1e-13])
def test_the_largest_eigenvalue_of_whitened_rows_is_bounded(kernel, jitter):
    inputs = np.random.default_rng(2).normal(size=(40, 2))
    gram = kernel(inputs)
    factor = np.linalg.cholesky(gram + jitter * gram[0, 0] * np.eye(40))
    T = torch.linalg.solve_triangular(tensor(factor), tensor(np.eye(40)), upper=False)
    bound = _largest_of_whitened(from_sklearn(kernel, 2), tensor(inputs), T)
    long = T.numpy().astype(np.longdouble)
    # The covariances themselves are rounded, by less than the bound allows for.
    product = (long @ gram.astype(np.longdouble) @ long.T).astype(np.float64)
    assert np.linalg.eigvalsh(product)[-1] <= bound
    assert jitter < 1e-9 or bound < 1 + 1e-4


def test_tight_ranges_converge_in_spite_of_a_large_signal_variance(model):
    X = np.random.default_rng(3).normal(size=(1, 3))
    assert LatentModel.from_posterior(model.posterior_, "cpu").varsigma < 1e-7
    tol = 1e-3 if model.likelihood_ == "probit" else 0.02
    found = model.predict_proba_bounds(X, 0.01, tol=tol, max_regions=2000)
    assert found.converged.all()
    proba = model.predict_proba(X + 0.01 * np.random.default_rng(0).uniform(-1, 1, (200, 3)))
    assert within(found.min_lower[0], proba, found.max_upper[0], 1e-9)
