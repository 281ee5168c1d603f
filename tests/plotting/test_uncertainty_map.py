"""Maps of uncertainty: values at grid points, the points, and room for them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_moons
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq.plotting import UncertaintyMapDisplay
from tests.metrics.problems import EntropicLogisticRegression
from tests.plotting.drawing import legend_texts

X, CODES = make_moons(80, noise=0.3, random_state=0)
Y = np.array(["upper", "lower"])[CODES]
XX0, XX1 = np.meshgrid(np.linspace(-2, 2, 5), np.linspace(-2, 2, 5))


@pytest.fixture(scope="module")
def model():
    return EntropicLogisticRegression().fit(X, Y)


@pytest.mark.parametrize("part", ["total", "aleatoric", "epistemic"])
def test_map_shows_the_uncertainty_at_every_grid_point_around_the_points(model, part):
    settings = {"part": part, "unit": "nats", "grid_resolution": 7, "margin": 0.5}
    display = UncertaintyMapDisplay.from_estimator(model, X, Y, **settings)
    grid = np.column_stack([display.xx0.ravel(), display.xx1.ravel()])
    expected = getattr(model.predict_uncertainty(grid), part).reshape(7, 7)
    np.testing.assert_allclose(display.uncertainty, expected)
    np.testing.assert_array_equal(display.mesh_.get_array(), display.uncertainty)
    margin = 0.5 * np.ptp(X, axis=0)
    np.testing.assert_allclose(grid.min(axis=0), X.min(axis=0) - margin)
    np.testing.assert_allclose(grid.max(axis=0), X.max(axis=0) + margin)
    assert display.colorbar_.ax.get_ylabel() == f"{part} uncertainty (nats)"
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("feature 0", "feature 1")


def test_map_of_a_constant_feature_has_a_width():
    constant = np.column_stack([X[:, 0], np.full(len(X), 3.0)])
    flat = EntropicLogisticRegression().fit(constant, Y)
    display = UncertaintyMapDisplay.from_estimator(flat, constant, grid_resolution=5)
    assert (display.xx1.min(), display.xx1.max()) == (1.5, 4.5)


def test_map_draws_the_points_of_each_class_also_again(model):
    display = UncertaintyMapDisplay.from_estimator(model, X, Y, grid_resolution=5)
    for _ in range(2):
        assert legend_texts(display) == ["lower", "upper"]
        lower, upper = display.ax_.collections[1:]
        np.testing.assert_array_equal(lower.get_offsets(), X[Y == "lower"])
        np.testing.assert_array_equal(upper.get_offsets(), X[Y == "upper"])
        display.plot()
    plain = UncertaintyMapDisplay.from_estimator(model, X, grid_resolution=5)
    np.testing.assert_array_equal(plain.ax_.collections[1].get_offsets(), X)
    assert plain.ax_.get_legend() is None


@pytest.mark.parametrize("kind", [float, "{:.3f}".format])
def test_a_map_draws_many_values_alike_and_tells_a_few_apart(kind):
    y = [kind(value) for value in X[:, 0] ** 2]
    display = UncertaintyMapDisplay.from_predictions(XX0, XX1, XX0, X=X, y=y)
    assert display.ax_.get_legend() is None
    np.testing.assert_array_equal(display.ax_.collections[1].get_offsets(), X)
    few = np.arange(len(X)) % 20 / 2
    display = UncertaintyMapDisplay.from_predictions(XX0, XX1, XX0, X=X, y=few)
    assert legend_texts(display) == [str(value) for value in np.unique(few)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("in_pipeline", [False, True])
def test_map_of_a_model_fitted_on_a_frame_has_its_names_and_no_warning(in_pipeline):
    frame, model = pd.DataFrame(X, columns=["width", "height"]), EntropicLogisticRegression()
    model = make_pipeline(StandardScaler(), model) if in_pipeline else model
    points = X if in_pipeline else frame
    settings = {"grid_resolution": 5}
    display = UncertaintyMapDisplay.from_estimator(model.fit(frame, Y), points, Y, **settings)
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("width", "height")
