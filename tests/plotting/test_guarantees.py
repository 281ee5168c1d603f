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
from skuq.plotting import CertifiedMeanDisplay, CertifiedRangeDisplay, FeatureEffectsDisplay

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")

RADII = [0.0, 0.1, 0.2, 0.4, 0.6]


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
        CertifiedMeanDisplay.from_estimator(gpr, [[3.0]], RADII, tolerance=0.3, ax=ax),
        CertifiedRangeDisplay.from_estimator(gpc, X[:1], RADII, attack="pgd", ax=ax),
        FeatureEffectsDisplay.from_estimator(gpc, X[:3], 0.2, ax=ax),
        FeatureEffectsDisplay.from_estimator(gpc, X[:1], 0.2, image_shape=(1, 2), ax=ax),
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
    column = list(gpc.classes_).index(display.class_name)
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
    bounds = gpc.predict_proba_bounds(points, RADII, class_=display.class_name)
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
        "attack (fgsm)",
        f"another class from {display.unsafe_radius:.3g}",
        f"safe up to {display.safe_radius:.3g}",
    ]
    attack = gpc.attack(points, radius=RADII, method="fgsm").proba
    np.testing.assert_allclose(display.attack, attack)
    assert display.ax_.get_ylabel() == f"probability of class {gpc.predict(points)[0]}"


def test_range_between_radii_is_that_of_the_larger_one():
    display = CertifiedRangeDisplay.from_predictions(
        [0.0, 1.0, 2.0], [0.9, 0.6, 0.2], [0.9, 0.7, 0.3], [0.9, 0.9, 0.95], [0.9, 0.95, 1.0]
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
        **settings,
    )


def test_radii_in_the_legend_are_rounded_to_what_is_proven():
    assert legend_texts(four_radii())[-1] == "safe up to 0.123"
    status = ["safe", "unsafe", "unsafe", "unsafe"]
    for radius, safe, unsafe in ((0.3, "0.3", "0.3"), (0.1232, "0.123", "0.124")):
        radii = [radius, radius + 1e-13, 1, 2]
        bounds = [[0.1] * 4, [0.2] * 4, [0.9] * 4, [0.95] * 4]
        display = CertifiedRangeDisplay.from_predictions(radii, *bounds, status=status)
        expected = [f"another class from {unsafe}", f"safe up to {safe}"]
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
        ({"status": ["safe", "Safe", "unsafe"]}, "must only contain .*'undecided'.*, got 'Safe'"),
        ({"min_upper": [0.8, 0.5, 0.6]}, "`min_lower` must not exceed .* 0.7 and 0.5 at radius 1"),
        ({"max_lower": [0.9, 0.9, 0.97]}, "`max_lower` must not exceed `max_upper`"),
        ({"max_upper": [0.91, 0.93, 1.96]}, r"`max_upper` must contain probabilities in \[0, 1\]"),
        ({"attack_name": "pgd"}, "`attack_name` requires `attack`"),
        ({"attack": [0.9, -0.1, 0.5]}, r"`attack` must contain probabilities in \[0, 1\]"),
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
        [0, 1, 2], [0.5, 0.6, 0.4], [0.7, 0.6, 0.65], [0.8] * 3, [1] * 3
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
    assert display.class_name == "2"
    assert display.status[0] == "unsafe"  # another class from the start
    effects = FeatureEffectsDisplay.from_estimator(gpc, X[60:61], 0.1, features=[0, 1])
    assert effects.feature_names == list(X.columns)
    assert effects.ax_.get_xlabel() == "effect on the probability of class 1"
    several = FeatureEffectsDisplay.from_estimator(gpc, X[59:61], 0.1, features=[0])
    assert several.ax_.get_xlabel() == "effect on the probability of the predicted class"


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
    with pytest.raises(ValueError, match=r"`status` must have shape \(2,\), got \(1,\)"):
        CertifiedRangeDisplay([0, 1], ones, ones, ones, ones, status=["safe"])


# --- certified mean ----------------------------------------------------------------------


def test_means_have_the_bounds_and_the_status_of_the_estimator(gpr):
    points = np.full((len(RADII), 1), 3.0)
    display = CertifiedMeanDisplay.from_estimator(
        gpr, points[:1], RADII, tolerance=0.3, tol=1e-3, target_name="price", unit="EUR"
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
        f"beyond ±0.3 from {display.unsafe_radius:.3g}",
        f"within ±0.3 up to {display.safe_radius:.3g}",
    ]
    prediction = gpr.predict([[3.0]])[0]
    ends = [line.get_ydata()[0] for line in display.ax_.lines if line.get_linestyle() == ":"]
    np.testing.assert_allclose(ends, [prediction - 0.3, prediction + 0.3])
    assert display.ax_.get_ylabel() == "mean of price (EUR)"


def test_mean_encloses_the_predictions_of_points_of_every_region(gpr):
    display = CertifiedMeanDisplay.from_estimator(gpr, [[3.0]], RADII)
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
    settings = {"prediction": 10 * scale, "tolerance": 0.5 * scale}
    display = CertifiedMeanDisplay([0, 1, 2], *bounds, **settings)
    assert display.status.tolist() == ["safe", "undecided", "unsafe"]
    wrong = bounds.copy()
    wrong[1] = bounds[0] - 0.1 * scale
    with pytest.raises(ValueError, match="`min_lower` must not exceed `min_upper`"):
        CertifiedMeanDisplay([0, 1, 2], *wrong)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prediction": 1.0}, "`prediction` and `status` require `tolerance`"),
        ({"status": ["safe", "safe"]}, "`prediction` and `status` require `tolerance`"),
        ({"tolerance": 1.0}, "`tolerance` requires `prediction`"),
        ({"prediction": 1.0, "tolerance": 0.0}, "finite and above 0, got 1.0 and 0.0"),
        ({"prediction": np.nan, "tolerance": 1.0}, "`prediction` must be finite"),
    ],
)
def test_settings_of_means_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CertifiedMeanDisplay([0, 1], *np.ones((4, 2)), **settings)
    with pytest.raises(ValueError, match="must be at most 1e\\+300 in absolute value"):
        CertifiedMeanDisplay([0, 1], *np.full((4, 2), 1e301))


# --- effects of features -----------------------------------------------------------------


def test_effects_are_those_of_explain_and_their_average(gpc, moons):
    X = moons[0][:4]
    effects = gpc.explain(X, 0.2)
    several = FeatureEffectsDisplay.from_estimator(gpc, X, 0.2)
    np.testing.assert_allclose(several.effects, effects.local.mean(axis=0))
    np.testing.assert_allclose(several.error, effects.error.mean(axis=0))
    single = FeatureEffectsDisplay.from_estimator(gpc, X[:1], 0.2, class_="lower")
    np.testing.assert_allclose(single.effects, gpc.explain(X[:1], 0.2, class_="lower").local[0])
    assert single.ax_.get_xlabel() == "effect on the probability of class lower"


def test_bars_are_sorted_by_size_coloured_by_sign_and_have_the_errors():
    display = FeatureEffectsDisplay.from_predictions(
        [0.1, -0.3, 0.2, 0.01], [0.02] * 4, feature_names=list("abcd"), max_features=3
    )
    bars = [container for container in display.ax_.containers if len(container) == 3][-1]
    assert [label.get_text() for label in display.ax_.get_yticklabels()] == ["b", "c", "a"]
    assert [bar.get_width() for bar in bars] == [-0.3, 0.2, 0.1]
    colours = [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in bars]
    assert colours[0] != colours[1] == colours[2]
    ends = bars.errorbar.lines[2][0].get_segments()[0][:, 0]
    np.testing.assert_allclose(ends, [-0.32, -0.28])
    assert display.ax_.get_xlabel().endswith("(the 3 largest of 4)")
    assert display.ax_.get_ylim()[0] > display.ax_.get_ylim()[1]  # the largest on top


def test_heat_map_is_symmetric_around_zero_and_outlines_the_image():
    display = FeatureEffectsDisplay.from_predictions(
        [0.1, -0.3, 0.2, 0.0], image_shape=(2, 2), image=[0, 1, 0, 0]
    )
    np.testing.assert_array_equal(display.image_.get_array(), [[0.1, -0.3], [0.2, 0.0]])
    assert display.image_.get_clim() == (-0.3, 0.3)
    red, white, blue = display.image_.cmap([1.0, 0.5, 0.0])[:, :3]
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert white.min() > 0.9
    outline = [
        segment.tolist() for lines in display.ax_.collections for segment in lines.get_segments()
    ]
    assert len(outline) == 4  # the sides of the one bright pixel
    assert [[0.5, 0.5], [1.5, 0.5]] in outline


def test_heat_map_of_several_images_has_no_outline_and_zero_effects_can_be_drawn(gpc, moons):
    several = FeatureEffectsDisplay.from_estimator(gpc, moons[0][:2], 0.1, image_shape=(2, 1))
    assert several.image is None
    assert not several.ax_.collections
    flat = FeatureEffectsDisplay.from_predictions([0.0, 0.0], image_shape=(1, 2), image=[1, 1])
    assert flat.image_.get_clim() == (-1.0, 1.0)


def test_names_that_matplotlib_would_interpret_are_drawn_as_text():
    display = FeatureEffectsDisplay.from_predictions(
        [0.1, 0.2], feature_names=[r"$\frac{$", "_x"], class_name="$"
    )
    ranges = CertifiedRangeDisplay([0, 1], *np.full((4, 2), 0.7), class_name=r"$\frac{$").plot()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display.figure_.canvas.draw()
        ranges.figure_.canvas.draw()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"error": [0.1]}, "`error` must have one value per feature, 2; got shape"),
        ({"error": [0.1, -0.1]}, "`error` must not be negative"),
        ({"image_shape": (2, 2)}, r"product is the number of features, 2; got \(2, 2\)"),
        ({"image_shape": (-1, -2)}, r"two positive integers whose product .*; got \(-1, -2\)"),
        ({"image_shape": (0.5, 4)}, r"two positive integers whose product .*; got \(0.5, 4\)"),
        ({"image_shape": (1, 1, 2)}, r"two positive integers whose product .*; got \(1, 1, 2\)"),
        ({"image_shape": 2}, "two positive integers whose product .*; got 2"),
        ({"image": [0, 1]}, "`image` requires `image_shape`"),
        (
            {"image_shape": (1, 2), "feature_names": ["a", "b"]},
            "`image_shape`, which draws a heat map",
        ),
        ({"image_shape": (1, 2), "max_features": 1}, "`image_shape`, which draws a heat map"),
        ({"feature_names": ["a"]}, "`feature_names` must have one value per feature"),
        ({"max_features": 0}, "`max_features` must be >= 1, got 0"),
        ({"effects": [0.1, np.inf]}, "`effects` must be finite"),
    ],
)
def test_wrong_settings_of_effects_are_named(settings, message):
    settings = {"effects": [0.1, 0.2], **settings}
    with pytest.raises(ValueError, match=message):
        FeatureEffectsDisplay(**settings)


def test_a_pipeline_is_told_to_pass_its_last_step(moons):
    X, y = moons
    pipe = make_pipeline(StandardScaler(), RobustGPC(RBF(), optimizer=None)).fit(X, y)
    frame = pd.DataFrame(X)
    for draw, arguments in (
        (FeatureEffectsDisplay.from_estimator, (0.1,)),
        (CertifiedRangeDisplay.from_estimator, ([0.1, 0.2],)),
    ):
        with pytest.raises(TypeError, match=r"Pipeline does not.*pass the last step"):
            draw(pipe, frame[:1], *arguments)
        # It has methods of the same names, which answer other questions.
        with pytest.raises(TypeError, match=r"QUAMClassifier does not"):
            draw(QUAMClassifier(), frame[:1], *arguments)


def test_each_display_names_the_estimator_that_it_needs(gpc, gpr):
    for draw, estimator, argument, needed in (
        (FeatureEffectsDisplay.from_estimator, gpr, 0.1, "RobustGPC"),
        (CertifiedRangeDisplay.from_estimator, gpr, [0.1, 0.2], "RobustGPC"),
        (CertifiedMeanDisplay.from_estimator, gpc, [0.1, 0.2], "RobustGPRegressor"),
    ):
        with pytest.raises(TypeError, match=f"as {needed} has; {type(estimator).__name__} does"):
            draw(estimator, [[0.0, 0.0]], argument)
