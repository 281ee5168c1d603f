"""Regression with proven ranges: predictions of scikit-learn, and ranges that hold."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skuq import RobustGPRegressor

from .bounds.oracles import KERNELS, ORDERS, grid, inside, moments, random_region, sample, within


def waves(seed, d, n=20):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, 7.0 + 3.0 * np.sin(2 * X @ rng.normal(size=d)) + 0.1 * rng.normal(size=n)


def fixed(kernel, **parameters):
    return RobustGPRegressor(kernel, optimizer=None, device="cpu", random_state=0, **parameters)


@pytest.fixture(scope="module")
def model():
    return fixed(2.0 * RBF(0.9) + WhiteKernel(0.01)).fit(*waves(0, 2))


@pytest.mark.parametrize("case", range(8))
def test_predictions_are_those_of_scikit_learn(case):
    rng = np.random.default_rng(1)
    X, y = waves(rng, 2)
    noise = WhiteKernel(0.1) if case % 4 == 0 else ConstantKernel(0.1)
    kernel = KERNELS[sorted(KERNELS)[case]](2) + noise
    alpha = [1e-10, 0.05, rng.uniform(0.01, 0.1, 20), 1e-10][case % 4]
    settings = {"alpha": alpha, "normalize_y": case in (0, 2, 5, 7), "optimizer": None}
    theirs = GaussianProcessRegressor(kernel, **settings).fit(X, y)
    ours, Z = RobustGPRegressor(kernel, **settings).fit(X, y), rng.normal(size=(15, 2))
    for own, other in zip(ours.predict(Z, True), theirs.predict(Z, True), strict=True):
        assert_allclose(own, other, rtol=1e-6, atol=1e-6)
    value = theirs.log_marginal_likelihood_value_
    assert_allclose(ours.log_marginal_likelihood_, value, rtol=1e-6)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_results_do_not_depend_on_units(unit):
    X, y = waves(3, 2)
    results = []
    for u in (1.0, unit):  # targets have the inverse unit
        model, Z = RobustGPRegressor(random_state=0).fit(u * X, y / u), u * (X[:3] + 0.1)
        upper = u * model.predict_bounds(Z, 0.2 * u).mean.upper
        radii = model.certified_radius(Z, tolerance=0.5 / u).lower / u
        results.append((u * model.predict(Z), upper, radii))
    for one, other, rtol in zip(*results, (1e-4, 1e-2, 0.05), strict=True):
        assert_allclose(other, one, rtol=rtol)


def test_uncertainty_is_variance_of_function_and_noise():
    X, y = waves(4, 2)
    kernel, scale = 2.0 * RBF(0.9) + WhiteKernel(0.02), y.std()
    model = fixed(kernel, alpha=0.03).fit(X, y)
    (_, std), found = model.predict(X, return_std=True), model.predict_uncertainty(X)
    assert_allclose(found.aleatoric, 0.05 * scale**2)
    assert_allclose(found.epistemic, std**2 - 0.02 * scale**2, atol=1e-12)
    assert_allclose(model.predict_uncertainty(X + 50.0).epistemic, 2.0 * scale**2)
    by_row = fixed(kernel, alpha=np.full(20, 0.03)).fit(X, y)
    assert_allclose(by_row.predict_uncertainty(X).aleatoric, 0.02 * scale**2)


@pytest.mark.parametrize("seed", range(8))
def test_no_point_of_a_region_leaves_its_ranges(seed):
    rng, norm = np.random.default_rng(seed), [*ORDERS, "box"][seed % 4]
    d, noise, max_regions = 1 + seed // 2, (0.1, 1e-4)[seed % 2], (1, 20, 100)[seed % 3]
    X, y = waves(rng, d)
    kernel = KERNELS[sorted(KERNELS)[seed]](d) + WhiteKernel(noise)
    model = fixed(kernel, n_inducing=(None, 7)[seed // 4], normalize_y=seed % 3 > 0).fit(X, y)
    Z = rng.normal(size=(2, d))
    radius = rng.exponential(0.5, 2)
    request, lower, upper = random_region(rng, Z, norm, radius)
    found = model.predict_bounds(Z, max_regions=max_regions, **request)
    for i in range(2):
        ball = (None, "linf") if norm in ("box", "linf") else (radius[i], norm)
        points = sample(rng, Z[i], lower[i], upper[i], 500, *ball)
        points = np.concatenate([points, found.mean.argmin[i : i + 1], found.std.argmax[i : i + 1]])
        mean, covariance = moments(model.posterior_, points)
        shift, unit = (y.mean(), y.std()) if seed % 3 > 0 else (0.0, 1.0)
        exact = shift + unit * mean[:, 0], unit * np.sqrt(covariance[:, 0, 0].clip(min=0) + noise)
        for values in (exact, model.predict(points, return_std=True)):
            for bounds, part in zip((found.mean, found.std), values, strict=True):
                assert within(bounds.lower[i], part, bounds.upper[i], 1e-9 * np.abs(y).max())


@pytest.mark.parametrize(("d", "noise"), [(1, 1e-2), (1, 1e-4), (2, 1e-2), (2, 1e-10)])
def test_bounds_are_as_close_as_asked_for_and_attained(d, noise):
    rng = np.random.default_rng(5)
    model = fixed(2.0 * RBF(0.9), alpha=noise).fit(*waves(rng, d))
    Z = rng.normal(size=(3, d))
    found = model.predict_bounds(Z, 0.4, tol=0.02)
    assert found.mean.converged.all()
    assert (np.abs(found.mean.argmin - Z) <= 0.4 + 1e-12).all()
    for k, bounds in enumerate((found.mean, found.std)):
        for i in range(3):
            points = grid(Z[i] - 0.4, Z[i] + 0.4, {1: 1001, 2: 101}[d])
            seen = model.predict(points, return_std=True)[k]
            assert 0 <= seen.min() - bounds.lower[i] + 1e-6 <= 0.03
            assert 0 <= bounds.upper[i] - seen.max() + 1e-6 <= 0.03
        ends = bounds.argmin, bounds.argmax
        least, most = (model.predict(at, return_std=True)[k] for at in ends)
        assert (least <= bounds.min_upper + 1e-6).all()
        assert (most >= bounds.max_lower - 1e-6).all()
        assert (bounds.min_upper - bounds.min_lower <= 0.02 + 1e-9).all()


@pytest.mark.parametrize("norm", ORDERS)
def test_ranges_around_one_training_point_are_those_of_its_kernel(norm):
    """A single point: the mean falls, and the deviation rises, with the distance from it."""
    model = fixed(ConstantKernel(4.0) * RBF(1.5), alpha=0.5, normalize_y=False)
    model.fit([[1.0, 2.0, 0.0]], [3.0])
    Z = np.array([[2.0, 2.0, 0.0]])  # from 0.5 to 1.5 away along the axis
    found = model.predict_bounds(Z, 0.5, norm=norm, features=[0], tol=1e-4)
    k = 4.0 * np.exp(-(np.array([0.5, 1.5]) ** 2) / (2 * 1.5**2))
    mean, std = k * 3.0 / 4.5, np.sqrt(4.0 - k**2 / 4.5)
    for bounds, (least, most) in ((found.mean, mean[::-1]), (found.std, std)):
        assert -1e-12 <= least - bounds.min_lower[0] <= 1e-4
        assert -1e-12 <= bounds.min_upper[0] - least <= 1e-4
        assert -1e-12 <= bounds.max_upper[0] - most <= 1e-4
        assert -1e-12 <= most - bounds.max_lower[0] <= 1e-4


@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_certificates_agree_with_dense_grids(model, norm):
    Z, tolerance = np.random.default_rng(6).normal(size=(12, 2)), np.linspace(0.2, 3.0, 12)
    found = model.certify(Z, 0.3, norm=norm, tolerance=tolerance)
    assert set(found.status) == {"safe", "unsafe"}
    for i, mean in enumerate(model.predict(Z)):
        points = inside(Z[i], grid(Z[i] - 0.3, Z[i] + 0.3, 81), 0.3, norm)
        left = tolerance[i] - np.abs(model.predict(points) - mean).max()
        example = found.counterexample[i]
        assert found.margin_lower[i] <= left + 1e-9
        if found.status[i] == "safe":
            assert left > 0
            assert np.isnan(example).all()
        else:
            moved = np.abs(model.predict(example[None]) - mean)[0]
            assert moved > tolerance[i]
            assert_allclose(tolerance[i] - moved, found.margin_upper[i], atol=1e-6)
            assert (np.abs(example - Z[i]) <= 0.3 + 1e-12).all()
    radii = model.certified_radius(Z, tolerance=tolerance, norm=norm, max_radius=2.0)
    assert (radii.lower[found.status == "unsafe"] < 0.3).all()
    assert ((radii.upper - radii.lower) <= 2 * 0.02 + 1e-9).all()  # some trials stay undecided
    assert ((radii.upper - radii.lower) <= 0.02 + 1e-9).mean() > 0.8


def test_a_search_that_is_cut_short_and_batches_are_valid(model):
    Z = np.random.default_rng(7).normal(size=(70, 2))
    full, cut = (model.predict_bounds(Z[:2], 1.0, max_regions=limit) for limit in (10_000, 1))
    assert full.mean.converged.all()
    assert not cut.std.converged.any()
    assert (cut.mean.lower <= full.mean.lower + 1e-12).all()
    assert (cut.std.upper >= full.std.upper - 1e-12).all()
    status = model.certify(Z[:1], 1e-3, tolerance=1e-3, max_regions=1).status[0]
    assert status in ("safe", "unsafe")
    assert (model.certify(Z[:2], 0.0, tolerance=1e-3).status == "safe").all()
    whole, alone = (model.predict_bounds(part, 0.1, tol=0.3) for part in (Z, Z[66:67]))
    assert_allclose(alone.mean.lower, whole.mean.lower[66:67], rtol=1e-9)


def test_weights_are_numbers_of_samples():
    rng = np.random.default_rng(9)
    (X, y), alpha = waves(rng, 2, 15), rng.uniform(0.01, 0.1, 15)
    count = rng.integers(0, 3, 15)
    rows, kernel = np.repeat(np.arange(15), count), 1.0 * RBF(1.0) + WhiteKernel(0.1)
    one = RobustGPRegressor(kernel, alpha=alpha).fit(X, y, sample_weight=count)
    other = RobustGPRegressor(kernel, alpha=alpha[rows]).fit(X[rows], y[rows])
    own, theirs = (each.predict(X, return_std=True) for each in (one, other))
    assert_allclose(own, theirs, rtol=1e-3)


@pytest.mark.parametrize(
    ("X", "y"),
    [([[1.0], [2.0], [3.0]], [5.0, 5.0, 5.0]), ([[1.0]], [5.0]), ([[1.0]] * 4, [4, 6, 4, 6])],
)
def test_small_data(X, y):
    model = RobustGPRegressor(random_state=0).fit(X, y)
    mean, std = model.predict([[1.0]], return_std=True)
    assert_allclose(mean, 5.0, atol=0.1)
    bounds = model.predict_bounds([[1.0]], 0.5)
    assert bounds.mean.lower[0] <= mean[0] <= bounds.mean.upper[0]
    assert bounds.std.lower[0] <= std[0] <= bounds.std.upper[0]


def test_inducing_points_come_close_to_the_exact_regression():
    X, y = waves(12, 1, 200)
    exact, sparse = (RobustGPRegressor(n_inducing=m, random_state=0).fit(X, y) for m in (None, 25))
    found = (each.predict(X[:50], return_std=True) for each in (exact, sparse))
    (mean, std), (other, spread) = found
    assert np.abs(other - mean).max() < 0.2 * y.std()
    assert np.abs(np.log(spread / std)).max() < 0.5
    assert sparse.log_marginal_likelihood_ <= exact.log_marginal_likelihood_ + 1e-6
    assert len(sparse.posterior_.inputs) == 25
