"""Posteriors in whitened rows: their rounding errors against 80-bit numbers, and tight ranges."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from skuq.gpc._robust_gpc import RobustGPC
from skuq.gpc.bounds._expansion import Expander
from skuq.gpc.bounds._latent_model import LatentModel, _largest_of_whitened
from skuq.gpc.bounds._stationary import from_sklearn

CPU = torch.device("cpu")
WIDE = ConstantKernel(1e4) * RBF(8.0)  # whose inducing points all but depend on one another

# What these tests compare with has 11 more bits than float64, or else they compare nothing.
precise = pytest.mark.skipif(
    np.finfo(np.longdouble).eps > 2e-19, reason="no floating-point type beyond float64"
)


@pytest.fixture(scope="module", params=["probit", "softmax"])
def model(request):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    limits = [0.0] if request.param == "probit" else [0.0, 0.8]
    y = np.digitize(np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2], limits)
    gpc = RobustGPC(WIDE, optimizer=None, n_inducing=60, device="cpu", random_state=0)
    return gpc.set_params(likelihood=request.param).fit(X, y)


def precise_rows(kernel, X, inputs):
    """``r(x)`` of a constant times an RBF in the precision of the arguments."""
    scaled = (X[:, None] - inputs) / np.longdouble(kernel.k2.length_scale)
    return np.longdouble(kernel.k1.constant_value) * np.exp(-(scaled**2).sum(-1) / 2)


@precise
def test_computed_moments_are_off_by_no_more_than_is_allowed_for(model):
    posterior = model.posterior_
    latent = LatentModel.from_posterior(posterior, CPU)
    X = np.random.default_rng(1).normal(size=(40, 3)) * 2
    points = torch.as_tensor(X)
    found = Expander(latent, points, torch.arange(3)).evaluate(points, torch.arange(40))
    exact = [part.astype(np.longdouble) for part in (X, posterior.inputs, posterior.whitener)]
    white = precise_rows(posterior.kernel, *exact[:2]) @ exact[2].T
    mean = white @ posterior.coefficients.astype(np.longdouble).T
    assert (np.abs(found.mean.numpy() - mean) <= found.mean_error.numpy()).all()
    n_latent = len(posterior.coefficients)
    for i, (c, d) in enumerate(zip(*np.triu_indices(n_latent), strict=True)):
        matrix = posterior.matrices[i].astype(np.longdouble)
        value = (c == d) * np.longdouble(1e4) - ((white @ matrix) * white).sum(-1)
        error = np.abs(found.covariance[:, i].numpy() - value)
        assert (error <= found.covariance_error[:, i].numpy()).all()
        assert (found.covariance_error[:, i].numpy() < 0.2).all()  # of variances up to 1e4


@precise
@pytest.mark.parametrize(
    "kernel", [WIDE, 9.0 * RationalQuadratic(4.0, 0.6), Matern([2.0, 9.0], nu=2.5) + 0.5], ids=str
)
@pytest.mark.parametrize("jitter", [1e-9, 1e-13])
def test_the_largest_eigenvalue_of_whitened_rows_is_bounded(kernel, jitter):
    inputs = np.random.default_rng(2).normal(size=(40, 2))
    gram = kernel(inputs)
    factor = np.linalg.cholesky(gram + jitter * gram[0, 0] * np.eye(40))
    T = torch.linalg.solve_triangular(torch.as_tensor(factor), torch.eye(40).double(), upper=False)
    bound = _largest_of_whitened(from_sklearn(kernel, 2), torch.as_tensor(inputs), T)
    long = T.numpy().astype(np.longdouble)
    # The covariances themselves are rounded, by less than the bound allows for.
    product = (long @ gram.astype(np.longdouble) @ long.T).astype(np.float64)
    assert np.linalg.eigvalsh(product)[-1] <= bound
    assert jitter < 1e-9 or bound < 1 + 1e-4


def test_tight_ranges_converge_in_spite_of_a_large_signal_variance(model):
    X = np.random.default_rng(3).normal(size=(2, 3))
    latent = LatentModel.from_posterior(model.posterior_, CPU)
    assert latent.varsigma < 1e-7
    tol = 1e-3 if model.likelihood_ == "probit" else 0.02
    found = model.predict_proba_bounds(X, 0.01, tol=tol, max_regions=2000)
    assert found.converged.all()
    for i, x in enumerate(X):
        tried = x + 0.01 * np.random.default_rng(i).uniform(-1, 1, (200, 3))
        proba = model.predict_proba(tried)
        assert (found.min_lower[i] <= proba + 1e-9).all()
        assert (proba <= found.max_upper[i] + 1e-9).all()


def test_whitened_and_plain_forms_are_the_same_posterior(model):
    posterior = model.posterior_
    X = np.random.default_rng(4).normal(size=(5, 3))
    cross = posterior.kernel(X, posterior.inputs)
    np.testing.assert_allclose(cross @ posterior.weights.T, posterior.moments(X)[0], atol=1e-4)
    value = WIDE.diag(X) - np.einsum("ij,ij->i", cross @ posterior.reduction()[0], cross)
    np.testing.assert_allclose(value, posterior.moments(X)[1][:, 0, 0], atol=1e-2)
