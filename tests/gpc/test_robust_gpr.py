"""Regression with proven ranges: predictions of scikit-learn, and ranges that hold."""

import pickle

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skuq import RobustGPRegressor

from .bounds.oracles import KERNELS, grid, inside, moments, sample

ROUNDING = 1e-9  # of predictions, relative to the spread of targets


def waves(rng, d, n=20):
    """Inputs, and targets far from 0."""
    X = rng.normal(size=(n, d))
    return X, 7.0 + 3.0 * np.sin(2 * X @ rng.normal(size=d)) + 0.1 * rng.normal(size=n)


def fixed(kernel, **parameters):
    return RobustGPRegressor(kernel, optimizer=None, device="cpu", random_state=0, **parameters)


@pytest.fixture(scope="module")
def model():
    return fixed(2.0 * RBF(0.9) + WhiteKernel(0.01)).fit(*waves(np.random.default_rng(0), 2))


@pytest.mark.parametrize("case", range(8))
def test_predictions_are_those_of_scikit_learn(case):
    rng, noise = np.random.default_rng(1), ["learned", "known", "by row", "next to none"][case % 4]
    X, y = waves(rng, 2)
    kernel = KERNELS[sorted(KERNELS)[case]](2)
    kernel = kernel + (WhiteKernel(0.1) if noise == "learned" else ConstantKernel(0.1))
    alpha = {"known": 0.05, "by row": rng.uniform(0.01, 0.1, 20)}.get(noise, 1e-10)
    normalize_y = case in (0, 2, 5, 7)
    settings = {"alpha": alpha, "normalize_y": normalize_y, "optimizer": None}
    theirs = GaussianProcessRegressor(kernel, **settings).fit(X, y)
    ours = RobustGPRegressor(kernel, **settings).fit(X, y)
    Z = rng.normal(size=(15, 2))
    for option in ("return_std", "return_cov"):
        for own, other in zip(
            ours.predict(Z, **{option: True}), theirs.predict(Z, **{option: True}), strict=True
        ):
            assert_allclose(own, other, rtol=1e-6, atol=1e-6)
    assert_allclose(ours.log_marginal_likelihood_, theirs.log_marginal_likelihood_value_, rtol=1e-6)


def test_hyperparameters_are_found_as_scikit_learn_finds_them():
    X, y = waves(np.random.default_rng(2), 1, 40)
    kernel = 1.0 * RBF(1.0) + WhiteKernel(0.1)
    theirs = GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)
    ours = RobustGPRegressor(kernel).fit(X, y)
    assert ours.log_marginal_likelihood_ >= theirs.log_marginal_likelihood_value_ - 1e-4
    assert_allclose(ours.kernel_.theta, theirs.kernel_.theta, atol=0.02)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_results_do_not_depend_on_units(unit):
    X, y = waves(np.random.default_rng(3), 2)
    Z = X[:3] + 0.1
    one = RobustGPRegressor(random_state=0).fit(X, y)
    other = RobustGPRegressor(random_state=0).fit(unit * X, y / unit)
    assert_allclose(other.predict(unit * Z), one.predict(Z) / unit, rtol=1e-4)
    found, again = one.predict_bounds(Z, 0.2), other.predict_bounds(unit * Z, 0.2 * unit)
    assert_allclose(again.mean.upper, found.mean.upper / unit, rtol=1e-2)
    scale = unit, 1 / unit
    radii = [
        each.certified_radius(u * Z, tolerance=0.5 * v).lower / u
        for each, u, v in ((one, 1.0, 1.0), (other, *scale))
    ]
    assert_allclose(*radii, rtol=0.05)


def test_uncertainty_is_variance_of_function_and_noise():
    X, y = waves(np.random.default_rng(4), 2)
    kernel = 2.0 * RBF(0.9) + WhiteKernel(0.02)
    model = fixed(kernel, alpha=0.03).fit(X, y)
    _, std = model.predict(X, return_std=True)
    found, scale = model.predict_uncertainty(X), y.std()
    assert_allclose(found.aleatoric, 0.05 * scale**2)
    assert_allclose(found.epistemic, std**2 - 0.02 * scale**2, atol=1e-12)
    by_row = fixed(kernel, alpha=np.full(20, 0.03)).fit(X, y)
    assert_allclose(by_row.predict_uncertainty(X).aleatoric, 0.02 * scale**2)
    far = model.predict_uncertainty(X + 50.0)
    assert_allclose(far.epistemic, 2.0 * scale**2)


def check_ranges(found, i, mean, std, scale):
    slack = ROUNDING * scale
    for bounds, values in ((found.mean, mean), (found.std, std)):
        assert bounds.lower[i] - slack <= values.min()
        assert values.max() <= bounds.upper[i] + slack


@pytest.mark.parametrize("seed", range(8))
def test_no_point_of_a_region_leaves_its_ranges(seed):
    rng, norm = np.random.default_rng(seed), ["linf", "l2", "l1", "box"][seed % 4]
    d, noise, max_regions = 1 + seed // 2, (0.1, 1e-4)[seed % 2], (1, 20, 100)[seed % 3]
    normalize_y = seed % 3 > 0
    X, y = waves(rng, d)
    kernel = KERNELS[sorted(KERNELS)[seed]](d) + WhiteKernel(noise)
    model = fixed(kernel, n_inducing=(None, 7)[seed // 4], normalize_y=normalize_y).fit(X, y)
    Z = rng.normal(size=(2, d))
    features = np.sort(rng.choice(d, rng.integers(1, d + 1), replace=False))
    radius, free = rng.exponential(0.5, 2), np.isin(np.arange(d), features)
    lower = np.where(free, Z - radius[:, None], Z)
    upper = np.where(free, Z + radius[:, None], Z)
    asked = {"radius": radius, "norm": norm}
    if norm == "box":
        asked = {"region": (lower, upper)}
    found = model.predict_bounds(Z, features=features, max_regions=max_regions, **asked)
    scale = float(np.abs(y).max())
    for i in range(2):
        ball = (None, "linf") if norm in ("box", "linf") else (radius[i], norm)
        points = sample(rng, Z[i], lower[i], upper[i], 500, *ball)
        points = np.concatenate([points, found.mean.argmin[i : i + 1], found.std.argmax[i : i + 1]])
        mean, covariance = moments(model.posterior_, points)
        shift, unit = (y.mean(), y.std()) if normalize_y else (0.0, 1.0)
        std = unit * np.sqrt(np.maximum(covariance[:, 0, 0], 0) + noise)
        check_ranges(found, i, shift + unit * mean[:, 0], std, scale)
        check_ranges(found, i, *model.predict(points, return_std=True), scale)


@pytest.mark.parametrize(("d", "noise"), [(1, 1e-2), (1, 1e-4), (2, 1e-2), (2, 1e-10)])
def test_bounds_are_as_close_as_asked_for_and_attained(d, noise):
    rng = np.random.default_rng(5)
    model = fixed(2.0 * RBF(0.9), alpha=noise).fit(*waves(rng, d))
    Z = rng.normal(size=(3, d))
    found = model.predict_bounds(Z, 0.4, tol=0.02)
    assert found.mean.converged.all()
    for i in range(3):
        points = grid(Z[i] - 0.4, Z[i] + 0.4, {1: 1001, 2: 101}[d])
        for bounds, seen in zip(
            (found.mean, found.std), model.predict(points, return_std=True), strict=True
        ):
            assert 0 <= seen.min() - bounds.lower[i] + 1e-6 <= 0.03
            assert 0 <= bounds.upper[i] - seen.max() + 1e-6 <= 0.03
    assert (np.abs(found.mean.argmin - Z) <= 0.4 + 1e-12).all()
    for bounds, k in ((found.mean, 0), (found.std, 1)):
        least = model.predict(bounds.argmin, return_std=True)[k]
        most = model.predict(bounds.argmax, return_std=True)[k]
        assert (least <= bounds.min_upper + 1e-6).all()
        assert (most >= bounds.max_lower - 1e-6).all()
        assert (bounds.min_upper - bounds.min_lower <= 0.02 + 1e-9).all()


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_ranges_around_one_training_point_are_those_of_its_kernel(norm):
    """A single point: the mean falls, and the deviation rises, with the distance from it."""
    kernel = ConstantKernel(4.0) * RBF(1.5)
    model = fixed(kernel, alpha=0.5, normalize_y=False).fit([[1.0, 2.0, 0.0]], [3.0])
    Z = np.array([[2.0, 2.0, 0.0]])  # from 0.5 to 1.5 away along the axis
    found = model.predict_bounds(Z, 0.5, norm=norm, features=[0], tol=1e-4)
    k = 4.0 * np.exp(-(np.array([0.5, 1.5]) ** 2) / (2 * 1.5**2))
    mean, std = k * 3.0 / 4.5, np.sqrt(4.0 - k**2 / 4.5)
    for bounds, (least, most) in ((found.mean, mean[::-1]), (found.std, std)):
        assert least - 1e-4 <= bounds.min_lower[0] <= least + 1e-12
        assert least - 1e-12 <= bounds.min_upper[0] <= least + 1e-4
        assert most - 1e-12 <= bounds.max_upper[0] <= most + 1e-4
        assert most - 1e-4 <= bounds.max_lower[0] <= most + 1e-12


@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_certificates_agree_with_dense_grids(model, norm):
    Z = np.random.default_rng(6).normal(size=(12, 2))
    tolerance = np.linspace(0.2, 3.0, 12)
    found = model.certify(Z, 0.3, norm=norm, tolerance=tolerance)
    assert set(found.status) == {"safe", "unsafe"}
    for i in range(12):
        points = inside(Z[i], grid(Z[i] - 0.3, Z[i] + 0.3, 81), 0.3, norm)
        change = np.abs(model.predict(points) - model.predict(Z[i : i + 1])).max()
        left = tolerance[i] - change
        assert found.margin_lower[i] <= left + 1e-9
        if found.status[i] == "safe":
            assert left > 0
            assert np.isnan(found.counterexample[i]).all()
        else:
            there = model.predict(found.counterexample[i : i + 1])
            moved = np.abs(there - model.predict(Z[i : i + 1]))[0]
            assert moved > tolerance[i]
            assert_allclose(tolerance[i] - moved, found.margin_upper[i], atol=1e-6)
            assert (np.abs(found.counterexample[i] - Z[i]) <= 0.3 + 1e-12).all()
    radii = model.certified_radius(Z, tolerance=tolerance, norm=norm, max_radius=2.0)
    assert (radii.lower[found.status == "unsafe"] < 0.3).all()
    assert ((radii.upper - radii.lower) <= 2 * 0.02 + 1e-9).all()  # some trials stay undecided
    assert ((radii.upper - radii.lower) <= 0.02 + 1e-9).mean() > 0.8


@pytest.mark.parametrize("n_inducing", [None, 60])
def test_covariances_do_not_cancel_where_noise_is_next_to_nothing(n_inducing):
    x = np.random.default_rng(0).uniform(0, 6, (60, 1))
    gpr = RobustGPRegressor(
        1.0 * RBF(1.0), alpha=1e-10, optimizer=None, n_inducing=n_inducing, random_state=0
    )
    gpr.fit(x, np.sin(x[:, 0]) + 7)
    Z = np.linspace(0, 6, 7)[:, None]
    cov = gpr.predict(Z, return_cov=True)[1]
    assert_allclose(np.diag(cov), gpr.predict(Z, return_std=True)[1] ** 2, rtol=1e-9)
    assert np.linalg.eigvalsh(cov).min() > -1e-12


def test_a_search_that_is_cut_short_is_valid_and_says_so(model):
    Z = np.random.default_rng(7).normal(size=(2, 2))
    full = model.predict_bounds(Z, 1.0)
    cut = model.predict_bounds(Z, 1.0, max_regions=1)
    assert full.mean.converged.all()
    assert not cut.std.converged.any()
    assert (cut.mean.lower <= full.mean.lower + 1e-12).all()
    assert (cut.std.upper >= full.std.upper - 1e-12).all()
    assert model.certify(Z, 1e-3, tolerance=1e-3, max_regions=1).status[0] in ("safe", "unsafe")
    assert (model.certify(Z, 0.0, tolerance=1e-3).status == "safe").all()


def test_workers_batches_and_pickles_give_the_same(model):
    Z = np.random.default_rng(8).normal(size=(70, 2))
    whole = model.predict_bounds(Z, 0.1, tol=0.3)
    with joblib.parallel_config("threading", n_jobs=2):
        shared = pickle.loads(pickle.dumps(model)).predict_bounds(Z, 0.1, tol=0.3)
    alone = model.predict_bounds(Z[66:67], 0.1, tol=0.3)
    for one, other in ((whole.mean, shared.mean), (whole.std, shared.std)):
        assert_allclose(one.upper, other.upper, rtol=1e-12)
    assert_allclose(alone.mean.lower, whole.mean.lower[66:67], rtol=1e-9)


def test_weights_are_numbers_of_samples():
    rng = np.random.default_rng(9)
    X, y = waves(rng, 2, 15)
    count = rng.integers(0, 3, 15)
    alpha = rng.uniform(0.01, 0.1, 15)
    kernel = 1.0 * RBF(1.0) + WhiteKernel(0.1)
    rows = np.repeat(np.arange(15), count)
    one = RobustGPRegressor(kernel, alpha=alpha).fit(X, y, sample_weight=count)
    other = RobustGPRegressor(kernel, alpha=alpha[rows]).fit(X[rows], y[rows])
    for own, theirs in zip(
        one.predict(X, return_std=True), other.predict(X, return_std=True), strict=True
    ):
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
    X, y = waves(np.random.default_rng(12), 1, 200)
    exact, sparse = (RobustGPRegressor(n_inducing=m, random_state=0).fit(X, y) for m in (None, 25))
    mean, std = exact.predict(X[:50], return_std=True)
    other, spread = sparse.predict(X[:50], return_std=True)
    assert np.abs(other - mean).max() < 0.2 * y.std()
    assert np.abs(np.log(spread / std)).max() < 0.5
    assert sparse.log_marginal_likelihood_ <= exact.log_marginal_likelihood_ + 1e-6
    assert len(sparse.posterior_.inputs) == 25
