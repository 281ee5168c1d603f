"""Displays of certified ranges and effects: against the estimators, and what is drawn."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris, make_moons
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import QUAMClassifier, RobustGPC, RobustGPRegressor
from skuq.plotting import CertifiedRangeDisplay

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")

RADII = [0.0, 0.1, 0.2, 0.4, 0.6]
MOST = (0.5, np.inf)  # probabilities of the predicted one of two classes


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def moons():
    X, y = make_moons(40, noise=0.1, random_state=0)
    return X, np.array(["upper", "lower"])[y]


@pytest.fixture(scope="module")
def gpc(moons):
    return RobustGPC(4.0 * RBF(0.6), optimizer=None).fit(*moons)


@pytest.fixture(scope="module")
def gpr():
    X = np.linspace(0, 6, 20)[:, None]
    kernel = 1.0 * RBF(1.0) + WhiteKernel(1e-4)
    return RobustGPRegressor(kernel, optimizer=None).fit(X, 10 + np.sin(X[:, 0]))


def legend_texts(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def draw_everything(gpc, X, gpr, ax=None):
    return [
        CertifiedRangeDisplay.from_estimator(gpr, [[3.0]], RADII, tolerance=0.3, ax=ax),
        CertifiedRangeDisplay.from_estimator(gpc, X[:1], RADII, attack="pgd", ax=ax),
    ]


def test_displays_draw_on_the_given_axes_and_leave_settings_alone(gpc, moons, gpr):
    plt.close("all")  # examples in docstrings leave theirs open
    figure, ax = plt.subplots()
    before = dict(matplotlib.rcParams)
    for display in draw_everything(gpc, moons[0], gpr, ax):
        assert display.ax_ is ax
        assert display.figure_ is figure
    assert plt.get_fignums() == [figure.number]
    assert dict(matplotlib.rcParams) == before


def test_displays_render_without_warnings_and_can_be_drawn_again(gpc, moons, gpr):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for display in draw_everything(gpc, moons[0], gpr):
            display.figure_.canvas.draw()
            first = display.figure_
            assert display.plot() is display
            assert display.figure_ is not first


# --- certified range ---------------------------------------------------------------------


def test_range_encloses_the_probabilities_of_points_of_every_region(gpc, moons):
    point = moons[0][:1]
    display = CertifiedRangeDisplay.from_estimator(gpc, point, RADII, norm="l2")
    column = list(gpc.classes_).index(gpc.predict(point)[0])
    rng = np.random.default_rng(0)
    for k, radius in enumerate(RADII):
        steps = rng.normal(size=(200, 2))
        steps *= radius * rng.random((200, 1)) / np.linalg.norm(steps, axis=1, keepdims=True)
        proba = gpc.predict_proba(point + steps)[:, column]
        assert (proba >= display.min_lower[k] - 1e-9).all()
        assert (proba <= display.max_upper[k] + 1e-9).all()


def test_range_has_the_bounds_of_the_estimator_tightened_by_its_other_radii(gpc, moons):
    points = np.repeat(moons[0][:1], len(RADII), axis=0)
    display = CertifiedRangeDisplay.from_estimator(gpc, points[:1], RADII)
    bounds = gpc.predict_proba_bounds(points, RADII, class_=gpc.predict(points[:1])[0])
    assert (display.min_lower >= bounds.min_lower[:, 0]).all()
    assert (display.min_upper <= bounds.min_upper[:, 0]).all()
    assert (display.max_lower >= bounds.max_lower[:, 0]).all()
    assert (display.max_upper <= bounds.max_upper[:, 0]).all()
    assert (display.min_lower <= display.min_upper).all()
    assert (np.diff(display.min_lower) <= 0).all()
    assert (np.diff(display.max_upper) >= 0).all()


def test_range_tells_safe_and_unsafe_radii(gpc, moons):
    display = CertifiedRangeDisplay.from_estimator(gpc, moons[0][:1], RADII, attack="fgsm")
    points = np.repeat(moons[0][:1], len(RADII), axis=0)
    expected = gpc.certify(points, radius=RADII).status
    np.testing.assert_array_equal(display.status, expected)
    assert {"safe", "unsafe"} <= set(expected)
    assert display.safe_radius == max(np.array(RADII)[expected == "safe"])
    assert display.unsafe_radius == min(np.array(RADII)[expected == "unsafe"])
    assert legend_texts(display) == [
        "proven range",
        "found in it",
        "attack",
        f"counterexample from {display.unsafe_radius:.3g}",
        f"safe up to {display.safe_radius:.3g}",
    ]
    attack = gpc.attack(points, radius=RADII, method="fgsm").proba
    np.testing.assert_allclose(display.attack, attack)
    assert display.ax_.get_ylabel() == f"probability of class {gpc.predict(points)[0]}"


def test_range_between_radii_is_that_of_the_larger_one():
    display = CertifiedRangeDisplay.from_predictions(
        [0.0, 1.0, 2.0],
        [0.9, 0.6, 0.2],
        [0.9, 0.7, 0.3],
        [0.9, 0.9, 0.95],
        [0.9, 0.95, 1.0],
        allowed=MOST,
    )
    corners = display.ax_.collections[0].get_paths()[0].vertices
    assert [0.0, 0.6] in corners.tolist()
    assert [1.0, 0.2] in corners.tolist()
    assert display.status.tolist() == ["safe", "safe", "unsafe"]
    assert legend_texts(display)[-1] == "safe up to 1"


def four_radii(**settings):
    return CertifiedRangeDisplay.from_predictions(
        [0.05, 0.1, 0.1238, 0.2],
        [0.8, 0.7, 0.52, 0.3],
        [0.85, 0.75, 0.6, 0.49],
        [0.9, 0.92, 0.95, 0.97],
        [0.91, 0.93, 0.96, 0.99],
        allowed=MOST,
        **settings,
    )


def test_radii_in_the_legend_are_rounded_to_what_is_proven():
    assert legend_texts(four_radii())[-1] == "safe up to 0.123"
    status = ["safe", "unsafe", "unsafe", "unsafe"]
    for radius, safe, unsafe in ((0.3, "0.3", "0.3"), (0.1232, "0.123", "0.124")):
        radii = [radius, radius + 1e-13, 1, 2]
        bounds = [[0.1] * 4, [0.2] * 4, [0.9] * 4, [0.95] * 4]
        display = CertifiedRangeDisplay.from_predictions(radii, *bounds, status=status)
        expected = [f"counterexample from {unsafe}", f"safe up to {safe}"]
        assert legend_texts(display)[-2:] == expected


def test_a_counterexample_at_the_last_radius_is_hatched_beyond_it():
    display = four_radii()
    (hatched,) = [patch for patch in display.ax_.patches if patch.get_hatch()]
    assert display.unsafe_radius == 0.2
    assert hatched.get_x() == 0.2
    assert hatched.get_x() + hatched.get_width() == display.ax_.get_xlim()[1] > 0.2


def test_the_attack_never_seems_to_beat_what_was_found_between_radii():
    display = four_radii(attack=[0.85, 0.75, 0.62, 0.49])
    drawn = {line.get_label(): line for line in display.ax_.lines}
    assert drawn["attack"].get_drawstyle() == drawn["found in it"].get_drawstyle() == "steps-post"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": ["safe", "Safe", "unsafe"]}, "`status` must contain one of"),
        ({"min_upper": [0.8, 0.5, 0.6]}, "`min_lower` must not exceed `min_upper`"),
        ({"max_lower": [0.9, 0.9, 0.97]}, "`max_lower` must not exceed `max_upper`"),
    ],
)
def test_impossible_bounds_and_unknown_findings_are_refused(change, message):
    bounds = {
        "min_lower": [0.8, 0.7, 0.3],
        "min_upper": [0.85, 0.75, 0.6],
        "max_lower": [0.9, 0.92, 0.95],
        "max_upper": [0.91, 0.93, 0.96],
    }
    with pytest.raises(ValueError, match=message):
        CertifiedRangeDisplay([0, 1, 2], **{**bounds, **change})


def test_bounds_at_one_radius_serve_the_others():
    display = CertifiedRangeDisplay(
        [0, 1, 2], [0.5, 0.6, 0.4], [0.7, 0.6, 0.65], [0.8] * 3, [1] * 3, allowed=MOST
    )
    assert display.min_lower.tolist() == [0.6, 0.6, 0.4]
    assert display.min_upper.tolist() == [0.7, 0.6, 0.6]
    assert display.safe_radius == 1
    assert display.unsafe_radius == np.inf


def test_range_of_one_of_three_classes_and_of_data_frames():
    X, y = load_iris(return_X_y=True, as_frame=True)
    gpc = RobustGPC(4.0 * RBF(1.0), optimizer=None).fit(X[::5], y[::5])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*feature names")
        display = CertifiedRangeDisplay.from_estimator(
            gpc, X[60:61], [0.05, 0.1], features=[0, 1], class_=2, max_regions=20
        )
    assert display.name == "probability of class 2"
    assert display.status[0] == "unsafe"  # counterexample from the start


@pytest.mark.parametrize(
    ("radii", "message"),
    [
        ([0.1], "`radii` must be at least two increasing numbers"),
        ([0.2, 0.1], "`radii` must be at least two increasing numbers"),
        ([-0.1, 0.1], "`radii` must be at least two increasing numbers"),
        ([0.1, np.nan], "`radii` must be finite"),
    ],
)
def test_wrong_radii_are_named(gpc, moons, radii, message):
    with pytest.raises(ValueError, match=message):
        CertifiedRangeDisplay.from_estimator(gpc, moons[0][:1], radii)


def test_a_range_needs_one_point_and_one_value_per_radius(gpc, moons):
    with pytest.raises(ValueError, match=r"one point, shape \(1, n_features\), got \(2, 2\)"):
        CertifiedRangeDisplay.from_estimator(gpc, moons[0][:2], RADII)
    ones = np.ones(2)
    with pytest.raises(ValueError, match=r"`max_upper` must have one value per radius, .*\(3,\)"):
        CertifiedRangeDisplay([0, 1], ones, ones, ones, np.ones(3))
    with pytest.raises(ValueError, match="`status` must contain one of"):
        CertifiedRangeDisplay([0, 1], ones, ones, ones, ones, status=["safe"])


# --- certified mean ----------------------------------------------------------------------


def test_means_have_the_bounds_and_the_status_of_the_estimator(gpr):
    points = np.full((len(RADII), 1), 3.0)
    display = CertifiedRangeDisplay.from_estimator(
        gpr, points[:1], RADII, tolerance=0.3, tol=1e-3, name="mean of price (EUR)"
    )
    bounds = gpr.predict_bounds(points, RADII, tol=1e-3).mean
    assert (display.min_lower >= bounds.min_lower).all()
    assert (display.max_upper <= bounds.max_upper).all()
    np.testing.assert_allclose(display.min_lower, bounds.min_lower, atol=1e-3)
    np.testing.assert_allclose(display.max_upper, bounds.max_upper, atol=1e-3)
    status = gpr.certify(points, RADII, tolerance=0.3).status
    assert {"safe", "unsafe"} <= set(status)
    np.testing.assert_array_equal(display.status, status)
    assert legend_texts(display) == [
        "proven range",
        "found in it",
        f"counterexample from {display.unsafe_radius:.3g}",
        f"safe up to {display.safe_radius:.3g}",
    ]
    prediction = gpr.predict([[3.0]])[0]
    ends = [line.get_ydata()[0] for line in display.ax_.lines if line.get_linestyle() == ":"]
    np.testing.assert_allclose(ends, [prediction - 0.3, prediction + 0.3])
    assert display.ax_.get_ylabel() == "mean of price (EUR)"


def test_mean_encloses_the_predictions_of_points_of_every_region(gpr):
    display = CertifiedRangeDisplay.from_estimator(gpr, [[3.0]], RADII)
    assert set(display.status) == {"undecided"}
    assert legend_texts(display) == ["proven range", "found in it"]
    for k, radius in enumerate(RADII):
        mean = gpr.predict(np.linspace(3 - radius, 3 + radius, 101)[:, None])
        assert display.min_lower[k] <= mean.min() <= display.min_upper[k] + 1e-9
        assert display.max_lower[k] - 1e-9 <= mean.max() <= display.max_upper[k]


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_status_of_given_means_is_by_comparison_with_the_tolerance_in_any_unit(scale):
    bounds = scale * np.array(
        [[9.6, 8.9, 8], [9.7, 9.6, 9.2], [10.2, 10.3, 10.4], [10.3, 10.6, 11]]
    )
    allowed = (9.5 * scale, 10.5 * scale)
    display = CertifiedRangeDisplay([0, 1, 2], *bounds, allowed=allowed)
    assert display.status.tolist() == ["safe", "undecided", "unsafe"]
    wrong = bounds.copy()
    wrong[1] = bounds[0] - 0.1 * scale
    with pytest.raises(ValueError, match="`min_lower` must not exceed `min_upper`"):
        CertifiedRangeDisplay([0, 1, 2], *wrong)


def test_values_that_an_axis_cannot_show_are_refused():
    with pytest.raises(ValueError, match="must be at most 1e\\+300 in absolute value"):
        CertifiedRangeDisplay([0, 1], *np.full((4, 2), 1e301))


def test_names_that_matplotlib_would_interpret_are_drawn_as_text():
    ranges = CertifiedRangeDisplay([0, 1], *np.full((4, 2), 0.7), name=r"$\frac{$").plot()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranges.figure_.canvas.draw()


def test_estimators_without_certificates_are_refused(moons):
    X, y = moons
    pipe = make_pipeline(StandardScaler(), RobustGPC(RBF(), optimizer=None)).fit(X, y)
    # QUAMClassifier has a method of the same name, which returns something else.
    for estimator in (pipe, QUAMClassifier()):
        with pytest.raises(TypeError, match="must be a RobustGPC or a RobustGPRegressor"):
            CertifiedRangeDisplay.from_estimator(estimator, pd.DataFrame(X)[:1], [0.1, 0.2])


def test_settings_of_the_other_estimator_are_refused(gpc, gpr):
    for estimator, settings in (
        (gpc, {"tolerance": 0.1}),
        (gpr, {"class_": 1}),
        (gpr, {"attack": "pgd"}),
    ):
        with pytest.raises(ValueError, match="no effect for a"):
            CertifiedRangeDisplay.from_estimator(estimator, [[0.0, 0.0]], [0.1, 0.2], **settings)
