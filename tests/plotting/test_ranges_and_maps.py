"""Displays of certified ranges and maps of uncertainty: against the estimators, as drawn."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris, make_moons
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import RobustGPC, RobustGPRegressor
from skuq.plotting import CertifiedRangeDisplay, UncertaintyMapDisplay
from tests.metrics.problems import EntropicLogisticRegression
from tests.plotting.drawing import draw_without_warnings, legend_texts

RADII = [0.0, 0.1, 0.2, 0.4, 0.6]
MOST = (0.5, np.inf)  # probabilities of the predicted one of two classes
MOONS, LABELS = make_moons(40, noise=0.1, random_state=0)
NAMES, POINT = np.array(["upper", "lower"])[LABELS], MOONS[:1]
XX0, XX1 = np.meshgrid(np.linspace(-2, 2, 5), np.linspace(-2, 2, 5))


@pytest.fixture(scope="module")
def gpc():
    return RobustGPC(4.0 * RBF(0.6), optimizer=None).fit(MOONS, NAMES)


@pytest.fixture(scope="module")
def model():
    return EntropicLogisticRegression().fit(MOONS, NAMES)


@pytest.fixture(scope="module")
def gpr():
    X = np.linspace(0, 6, 20)[:, None]
    kernel = 1.0 * RBF(1.0) + WhiteKernel(1e-4)
    return RobustGPRegressor(kernel, optimizer=None).fit(X, 10 + np.sin(X[:, 0]))


def test_range_has_the_bounds_and_status_of_the_estimator_tightened_by_its_other_radii(gpc):
    points = np.repeat(POINT, len(RADII), axis=0)
    display = CertifiedRangeDisplay.from_estimator(gpc, POINT, RADII, attack="fgsm")
    bounds = gpc.predict_proba_bounds(points, RADII, class_=gpc.predict(POINT)[0])
    for least in ("min_lower", "max_lower"):
        assert (getattr(display, least) >= getattr(bounds, least)[:, 0]).all()
    for most in ("min_upper", "max_upper"):
        assert (getattr(display, most) <= getattr(bounds, most)[:, 0]).all()
    assert (display.min_lower <= display.min_upper).all()
    assert (np.diff(display.min_lower) <= 0).all()
    assert (np.diff(display.max_upper) >= 0).all()
    expected = gpc.certify(points, radius=RADII).status
    np.testing.assert_array_equal(display.status, expected)
    assert {"safe", "unsafe"} <= set(expected)
    assert display.safe_radius == max(np.array(RADII)[expected == "safe"])
    assert display.unsafe_radius == min(np.array(RADII)[expected == "unsafe"])
    ends = (
        f"counterexample from {display.unsafe_radius:.3g}",
        f"safe up to {display.safe_radius:.3g}",
    )
    assert legend_texts(display) == ["proven range", "found in it", "attack", *ends]
    attack = gpc.attack(points, radius=RADII, method="fgsm").proba
    np.testing.assert_allclose(display.attack, attack)
    assert display.ax_.get_ylabel() == f"probability of class {gpc.predict(POINT)[0]}"
    draw_without_warnings(display)


def test_range_between_radii_is_that_of_the_larger_one_and_bounds_at_one_serve_the_others():
    lower, upper = [[0.9, 0.6, 0.2], [0.9, 0.7, 0.3]], [[0.9, 0.9, 0.95], [0.9, 0.95, 1.0]]
    display = CertifiedRangeDisplay.from_predictions([0, 1, 2], *lower, *upper, allowed=MOST)
    corners = display.ax_.collections[0].get_paths()[0].vertices.tolist()
    assert [0.0, 0.6] in corners
    assert [1.0, 0.2] in corners
    assert display.status.tolist() == ["safe", "safe", "unsafe"]
    lower, upper = [[0.5, 0.6, 0.4], [0.7, 0.6, 0.65]], [[0.8, 0.9, 0.85], [1, 0.97, 1]]
    display = CertifiedRangeDisplay([0, 1, 2], *lower, *upper, allowed=MOST)
    assert display.min_lower.tolist() == [0.6, 0.6, 0.4]
    assert display.min_upper.tolist() == [0.7, 0.6, 0.6]
    assert display.max_lower.tolist() == [0.8, 0.9, 0.9]
    assert display.max_upper.tolist() == [0.97, 0.97, 1]
    assert (display.safe_radius, display.unsafe_radius) == (1, np.inf)


def test_radii_in_the_legend_are_rounded_to_what_is_proven_and_a_last_one_is_hatched_beyond():
    lower, upper = [0.8, 0.7, 0.52, 0.3], [0.91, 0.93, 0.96, 0.99]
    found, attack = [[0.85, 0.75, 0.6, 0.49], [0.9, 0.92, 0.95, 0.97]], [0.85, 0.75, 0.62, 0.49]
    given = [[0.05, 0.1, 0.1238, 0.2], lower, *found, upper]
    display = CertifiedRangeDisplay.from_predictions(*given, allowed=MOST, attack=attack)
    assert legend_texts(display)[-1] == "safe up to 0.123"
    (hatched,) = [patch for patch in display.ax_.patches if patch.get_hatch()]
    assert display.unsafe_radius == 0.2 == hatched.get_x()
    assert hatched.get_x() + hatched.get_width() == display.ax_.get_xlim()[1] > 0.2
    bounds, status = np.outer([0.1, 0.2, 0.9, 0.95], np.ones(4)), ["safe", *["unsafe"] * 3]
    for radius, safe, unsafe in ((0.3, "0.3", "0.3"), (0.1232, "0.123", "0.124")):
        radii = [radius, radius + 1e-13, 1, 2]
        display = CertifiedRangeDisplay.from_predictions(radii, *bounds, status=status)
        expected = [f"counterexample from {unsafe}", f"safe up to {safe}"]
        assert legend_texts(display)[-2:] == expected


def test_range_of_one_of_three_classes_and_of_data_frames():
    X, y = load_iris(return_X_y=True, as_frame=True)
    gpc = RobustGPC(4.0 * RBF(1.0), optimizer=None).fit(X[::5], y[::5])
    settings = {"features": [0, 1], "class_": 2, "max_regions": 5}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*feature names")
        display = CertifiedRangeDisplay.from_estimator(gpc, X[60:61], [0.05, 0.1], **settings)
    assert display.name == "probability of class 2"
    assert display.status[0] == "unsafe"  # counterexample from the start


def test_means_have_the_bounds_and_the_status_of_the_estimator(gpr):
    points, close = np.full((len(RADII), 1), 3.0), {"tol": 1e-3}
    given, name = {"tolerance": 0.3, **close}, "mean of price (EUR)"
    display = CertifiedRangeDisplay.from_estimator(gpr, points[:1], RADII, name=name, **given)
    bounds = gpr.predict_bounds(points, RADII, **close).mean
    assert (display.min_lower >= bounds.min_lower).all()
    assert (display.max_upper <= bounds.max_upper).all()
    np.testing.assert_allclose(display.min_lower, bounds.min_lower, atol=1e-3)
    np.testing.assert_allclose(display.max_upper, bounds.max_upper, atol=1e-3)
    status = gpr.certify(points, RADII, tolerance=0.3).status
    assert {"safe", "unsafe"} <= set(status)
    np.testing.assert_array_equal(display.status, status)
    ends = [line.get_ydata()[0] for line in display.ax_.lines if line.get_linestyle() == ":"]
    np.testing.assert_allclose(ends, gpr.predict([[3.0]])[0] + [-0.3, 0.3])
    assert display.ax_.get_ylabel() == name
    display = CertifiedRangeDisplay.from_estimator(gpr, [[3.0]], RADII)
    assert set(display.status) == {"undecided"}
    for k, radius in enumerate(RADII):
        mean = gpr.predict(np.linspace(3 - radius, 3 + radius, 101)[:, None])
        assert display.min_lower[k] <= mean.min() <= display.min_upper[k] + 1e-9
        assert display.max_lower[k] - 1e-9 <= mean.max() <= display.max_upper[k]


def test_status_of_given_means_is_by_comparison_with_the_tolerance_in_any_unit():
    for scale in (1e-9, 1.0, 1e9):
        bounds = [[9.6, 8.9, 8], [9.7, 9.6, 9.2], [10.2, 10.3, 10.4], [10.3, 10.6, 11]]
        bounds, allowed = scale * np.array(bounds), (9.5 * scale, 10.5 * scale)
        display = CertifiedRangeDisplay([0, 1, 2], *bounds, allowed=allowed)
        assert display.status.tolist() == ["safe", "undecided", "unsafe"]
        bounds[1] = bounds[0] - 0.1 * scale
        with pytest.raises(ValueError, match="min_upper"):
            CertifiedRangeDisplay([0, 1, 2], *bounds)


@pytest.mark.parametrize("part", ["total", "aleatoric", "epistemic"])
def test_map_shows_the_uncertainty_at_every_grid_point_around_the_points(model, part):
    settings = {"part": part, "unit": "nats", "grid_resolution": 7}
    display = UncertaintyMapDisplay.from_estimator(model, MOONS, NAMES, **settings)
    grid = np.column_stack([display.xx0.ravel(), display.xx1.ravel()])
    expected = getattr(model.predict_uncertainty(grid), part).reshape(7, 7)
    np.testing.assert_allclose(display.uncertainty, expected)
    np.testing.assert_array_equal(display.mesh_.get_array(), display.uncertainty)
    margin = 0.3 * np.ptp(MOONS, axis=0)
    np.testing.assert_allclose(grid.min(axis=0), MOONS.min(axis=0) - margin)
    np.testing.assert_allclose(grid.max(axis=0), MOONS.max(axis=0) + margin)
    assert display.colorbar_.ax.get_ylabel() == f"{part} uncertainty (nats)"
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("feature 0", "feature 1")


def test_map_of_a_constant_feature_has_a_width():
    constant = np.column_stack([MOONS[:, 0], np.full(len(MOONS), 3.0)])
    flat = EntropicLogisticRegression().fit(constant, NAMES)
    display = UncertaintyMapDisplay.from_estimator(flat, constant, grid_resolution=5)
    assert (display.xx1.min(), display.xx1.max()) == (1.5, 4.5)


def test_map_draws_the_points_of_each_class_also_again(model):
    display = UncertaintyMapDisplay.from_estimator(model, MOONS, NAMES, grid_resolution=5)
    for _ in range(2):
        assert legend_texts(display) == ["lower", "upper"]
        lower, upper = display.ax_.collections[1:]
        np.testing.assert_array_equal(lower.get_offsets(), MOONS[NAMES == "lower"])
        np.testing.assert_array_equal(upper.get_offsets(), MOONS[NAMES == "upper"])
        display.plot()
    plain = UncertaintyMapDisplay.from_estimator(model, MOONS, grid_resolution=5)
    np.testing.assert_array_equal(plain.ax_.collections[1].get_offsets(), MOONS)
    assert plain.ax_.get_legend() is None


@pytest.mark.parametrize("kind", [float, "{:.3f}".format])
def test_a_map_draws_many_values_alike_and_tells_a_few_apart(kind):
    y = [kind(value) for value in MOONS[:, 0] ** 2]
    display = UncertaintyMapDisplay.from_predictions(XX0, XX1, XX0, X=MOONS, y=y)
    assert display.ax_.get_legend() is None
    np.testing.assert_array_equal(display.ax_.collections[1].get_offsets(), MOONS)
    few = np.arange(len(MOONS)) % 20 / 2
    display = UncertaintyMapDisplay.from_predictions(XX0, XX1, XX0, X=MOONS, y=few)
    assert legend_texts(display) == [str(value) for value in np.unique(few)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("in_pipeline", [False, True])
def test_map_of_a_model_fitted_on_a_frame_has_its_names_and_no_warning(in_pipeline):
    frame, model = pd.DataFrame(MOONS, columns=["width", "height"]), EntropicLogisticRegression()
    model = make_pipeline(StandardScaler(), model) if in_pipeline else model
    model, points = model.fit(frame, NAMES), MOONS if in_pipeline else frame
    display = UncertaintyMapDisplay.from_estimator(model, points, NAMES, grid_resolution=5)
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("width", "height")
