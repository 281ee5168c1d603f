"""What all displays do alike; displays of certified ranges and maps, against the estimators."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris, make_moons
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import OODDetector, QUAMClassifier, RobustGPC, RobustGPRegressor
from skuq.plotting import (
    CalibrationAuditDisplay,
    CertifiedRangeDisplay,
    ConfidenceDensityDisplay,
    CoverageBySizeDisplay,
    IntervalsByWidthDisplay,
    OODDisplay,
    PITDisplay,
    ReliabilityDisplay,
    RiskCoverageDisplay,
    UncertaintyHistogramDisplay,
    UncertaintyMapDisplay,
)
from tests.metrics.problems import EntropicLogisticRegression, GaussianRidge
from tests.plotting.drawing import (
    AUDIT,
    STRANGE,
    draw_without_warnings,
    every_kind,
    gaussians,
    legend_texts,
    quantities,
)


def test_displays_draw_on_the_given_axes_and_leave_settings_and_titles_alone(plt):
    figure, ax = plt.subplots()
    before = dict(plt.rcParams)
    for make in every_kind().values():
        display = make(ax=ax)
        assert display.ax_ is ax
        assert display.figure_ is figure
        ax.clear()
    assert plt.get_fignums() == [figure.number]
    assert dict(plt.rcParams) == before
    for make in (*gaussians().values(), every_kind(None)["reliability"], every_kind(None)["audit"]):
        ax.clear()
        ax.set_title("mine")  # displays without a name keep the title
        make(ax=ax)
        assert ax.get_title() == "mine"


@pytest.mark.parametrize("kind", every_kind())
def test_a_display_opens_one_figure_is_drawn_again_and_takes_any_name_as_text(plt, kind):
    display = every_kind(STRANGE)[kind]()
    first = display.figure_
    draw_without_warnings(display)
    title, legend = display.ax_.title, display.ax_.get_legend()
    assert title.get_window_extent().x1 < display.figure_.bbox.width
    assert legend is None or legend.get_window_extent().width < display.figure_.bbox.width
    if isinstance(display, UncertaintyHistogramDisplay | ConfidenceDensityDisplay):
        assert len(legend.get_texts()) == 2
    assert display.plot() is display
    assert display.figure_ is not first
    assert len(plt.get_fignums()) == 2


Y, MEAN, STD = quantities()


def changed(values, row=3, value=1e6):
    return np.where(np.arange(len(values)) == row, value, values)


EXTREMES = {
    "one row": quantities(1),
    "many rows": quantities(1500),
    "one value far out": (changed(Y), MEAN, STD),
    "one prediction far out": (Y, changed(MEAN), STD),
    "one wide": (Y, MEAN, changed(STD)),
    "right, one width": (MEAN, MEAN, np.full(400, 45.0)),
    "constant": (np.ones(9), np.ones(9), np.ones(9)),
    "tiny": (Y * 1e-12, MEAN * 1e-12, STD * 1e-12),
    "huge": (Y * 1e150, MEAN * 1e150, STD * 1e150),
}


@pytest.mark.parametrize("case", EXTREMES)
def test_pictures_of_extreme_data_are_drawn_without_warnings(plt, case):
    ax = plt.subplots()[1]
    for make in gaussians(*EXTREMES[case]).values():
        ax.clear()
        display = make(ax=ax)
        draw_without_warnings(display)
        assert np.isfinite(ax.get_ylim()).all()


@pytest.fixture(scope="module")
def regressor():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = X @ [3, 1, 0] + rng.normal(size=120)
    return make_pipeline(StandardScaler(), GaussianRidge()).fit(X, y), X, y


def test_displays_of_estimators_are_those_of_their_predictions(regressor):
    pipe, X, y = regressor
    model, inputs = pipe[-1], pipe[0].transform(X)
    mean, std = model.predict(inputs, return_std=True)
    limits, levels = model.predict_interval(inputs, 0.8), [0.2, 0.8]
    quantiles, named = model.predict_quantiles(inputs, levels), {"name": "Pipeline"}
    wide, bins, fine = {"coverage": 0.8, "unit": "m"}, {"n_bins": 5}, {"levels": levels}
    four, risk = {**wide, "n_groups": 4}, {"loss": "absolute_error", "unit": "m"}
    risks = RiskCoverageDisplay.from_predictions(y, mean, std, **named, **risk)
    for kind, settings, direct in (
        (IntervalsByWidthDisplay, wide, IntervalsByWidthDisplay(y, *limits, **named, **wide)),
        (CoverageBySizeDisplay, four, CoverageBySizeDisplay(y, *limits, mean, **named, **four)),
        (PITDisplay, bins, PITDisplay.from_predictions(y, mean, std, **bins, **named)),
        (PITDisplay, fine, PITDisplay.from_quantiles(y, quantiles, **fine, **named)),
        (RiskCoverageDisplay, {"part": "epistemic", **risk}, risks),
    ):
        ours = kind.from_estimator(pipe, X, y, **settings)
        for attribute, value in vars(direct).items():
            if attribute == "curve":  # its thresholds are variances
                np.testing.assert_array_equal(ours.curve.risk, value.risk)
            elif not attribute.endswith("_"):
                np.testing.assert_array_equal(getattr(ours, attribute), value)
        direct.plot()
        assert ours.ax_.get_title() == direct.ax_.get_title()
        assert legend_texts(ours) == legend_texts(direct)


def test_an_estimator_without_the_method_is_named(regressor):
    _, X, y = regressor
    ridge, frame = Ridge().fit(X, y), pd.DataFrame(X)[:1]
    pipe = make_pipeline(StandardScaler(), RobustGPC(RBF(), optimizer=None)).fit(X, y > 0)
    ranges = "must be a RobustGPC or a RobustGPRegressor"
    for kind, given, word in (
        (IntervalsByWidthDisplay, (ridge, X, y), "Ridge has no `predict_interval`"),
        (CoverageBySizeDisplay, (ridge, X, y), "Ridge has no `predict_interval`"),
        (PITDisplay, (ridge, X, y), "pass `levels`"),
        (CertifiedRangeDisplay, (pipe, frame, [0.1, 0.2]), ranges),
        # It has a method of the same name, which returns something else.
        (CertifiedRangeDisplay, (QUAMClassifier(), frame, [0.1, 0.2]), ranges),
    ):
        with pytest.raises(TypeError, match=word):
            kind.from_estimator(*given)
    with pytest.raises(TypeError, match="Ridge has no `predict_quantiles`"):
        PITDisplay.from_estimator(ridge, X, y, levels=[0.5])
    for kind in (UncertaintyHistogramDisplay, ConfidenceDensityDisplay):
        for groups in ([0.1, 0.2], {}, MEAN):
            with pytest.raises(TypeError, match="groups"):
                kind(groups)
            with pytest.raises(TypeError, match="groups"):
                kind.from_estimator(None, groups)


@pytest.mark.parametrize("form", ["none", "table", "named"])
def test_the_display_of_a_detector_holds_its_p_values_and_what_it_flags(form):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    X = pd.DataFrame(rng.normal(size=(400, 2)) + 4 * y[:, None], columns=["a", "b"])
    detector = OODDetector(LogisticRegression(), false_alarm_rate=0.1, random_state=0)
    detector.fit(X[:200], y[:200], X_held_out=X[200:300])
    X, X_ood = X[300:], X[300:] + [9, -9]
    others = {"none": None, "table": X_ood, "named": {"far": X_ood, "near": X + 0.1}}[form]
    display = OODDisplay.from_estimator(detector, X, others)
    expected = {"inputs": X} | {"none": {}, "table": {"OOD": X_ood}, "named": others}[form]
    assert list(display.groups) == list(expected)
    for name, rows in expected.items():
        np.testing.assert_array_equal(display.groups[name], detector.p_values(rows))
        assert display.flagged[name] == (detector.predict(rows) == -1).mean()
        assert f"{name}: {display.flagged[name]:.1%} flagged" in legend_texts(display)
    assert display.false_alarm_rate == 0.1


def refused():
    low, high, nan = MEAN - STD, MEAN + STD, np.nan
    grid = np.meshgrid(*np.arange(6.0).reshape(2, 3))
    intervals, coverage = IntervalsByWidthDisplay, CoverageBySizeDisplay
    pit, risk, unbounded = PITDisplay, RiskCoverageDisplay, np.full(400, -np.inf)
    for histogram in (UncertaintyHistogramDisplay, ConfidenceDensityDisplay, OODDisplay):
        yield lambda kind=histogram: kind({"known": [0.1, nan]}), "known"
        yield lambda kind=histogram: kind({"known": [[0.1]]}), "one-dimensional"
    for values in ([-1e308, 1e308], [1.7e308, 1.7e308], [0.0, 1e-3, 1e305]):
        yield lambda v=values: UncertaintyHistogramDisplay({"all": v}), "groups"
    yield lambda: ConfidenceDensityDisplay({"all": [0.5, 1.5]}), "1.5 in row 1"
    yield lambda: OODDisplay({"a": [0.0, 0.5]}), "a"
    yield lambda: OODDisplay({"a": [1.5]}), "p-values"
    yield lambda: OODDisplay({"a": [0.5]}, false_alarm_rate=1.0), "false_alarm_rate"
    yield lambda: ReliabilityDisplay.from_predictions([0, 1], [[1.5, -0.5], [0.5, 0.5]]), "proba"
    yield lambda: CalibrationAuditDisplay.from_estimator(AUDIT, "half=2"), "half=0.*half=1"
    yield lambda: intervals(Y, high, low), "lower"
    yield lambda: intervals(Y, low, high, coverage=90), "coverage"
    yield lambda: intervals(Y, low, changed(high, value=1e301)), "upper"
    yield lambda: intervals(Y, unbounded, MEAN), "lower"
    yield lambda: coverage(Y, unbounded, MEAN), "lower"
    yield lambda: coverage(Y, low, high, MEAN[:5]), "400, 5"
    yield lambda: coverage(Y, low, high, coverage=1), "coverage"
    yield lambda: coverage(Y, low, high, n_groups=0), "n_groups"
    yield lambda: coverage(Y, low, high, n_groups=2.0), "n_groups"
    for ends in ([[0.5, 0.1], [0.4, 0.1]], [[0.5, 0.1], [1.5, 0.1]], [[-1, 0.1], [0.5, 0.1]]):
        yield lambda e=ends: pit(*e), "0 <= low <= high <= 1"
    yield lambda: pit([0.5], [0.5], n_bins=0), "n_bins"
    yield lambda: pit.from_predictions(Y, MEAN, 0 * STD), "std"
    yield lambda: pit.from_quantiles(Y, MEAN[:, None], [0.1, 0.9]), "column"
    yield lambda: risk.from_predictions(Y, MEAN, STD), "squared_error"
    model = EntropicLogisticRegression().fit([[0, 0], [1, 1]], [0, 1])
    maps, square = UncertaintyMapDisplay.from_estimator, np.eye(2)
    yield lambda: risk.from_estimator(model, square, [0, 1], part="index"), "part"
    yield lambda: maps(model, np.ones((5, 3))), r"\(5, 3\)"
    yield lambda: maps(model, np.ones((0, 2))), r"\(0, 2\)"
    yield lambda: maps(model, square, [0, 1, 1]), r"\(3,\)"
    yield lambda: UncertaintyMapDisplay(*grid, grid[0], y=[0, 1]), "0 points of `X`"
    for shape in ((3, 4), (9,), (3, 3, 1)):
        yield lambda s=shape: UncertaintyMapDisplay(*grid, np.ones(s)), "same shape"
    for missing in (nan, None, pd.NA, pd.NaT):
        for y in ([1.0, missing, 1.0], pd.Series(["a", missing, "a"])):
            points = {"X": np.ones((3, 2)), "y": y}
            yield lambda p=points: UncertaintyMapDisplay(*grid, grid[0], **p), "row 1"
    bounds = [[0.8, 0.7, 0.3], [0.85, 0.75, 0.6], [0.9, 0.92, 0.95], [0.91, 0.93, 0.96]]
    for k, wrong, word in ((1, [0.8, 0.5, 0.6], "min_lower"), (2, [0.9, 0.9, 0.97], "max_lower")):
        given = [*bounds[:k], wrong, *bounds[k + 1 :]]
        yield lambda b=given: CertifiedRangeDisplay([0, 1, 2], *b), word
    for status in (["safe", "Safe", "unsafe"], ["safe"]):
        yield lambda s=status: CertifiedRangeDisplay([0, 1, 2], *bounds, status=s), "status"
    yield lambda: CertifiedRangeDisplay([0, 1], *np.full((4, 2), 1e301)), "must be at most"
    yield lambda: CertifiedRangeDisplay([0, 1], *np.ones((3, 2)), np.ones(3)), "max_upper"
    gpc = RobustGPC(RBF(), optimizer=None).fit(square, [0, 1])
    gpr = RobustGPRegressor(RBF(), optimizer=None).fit(square, [0.0, 1.0])
    ranges = CertifiedRangeDisplay.from_estimator
    for radii in ([0.1], [0.2, 0.1], [-0.1, 0.1], [0.1, nan]):
        yield lambda r=radii: ranges(gpc, square[:1], r), "radii"
    yield lambda: ranges(gpc, square, [0, 1]), "one point"
    for model, word in ((gpc, "tolerance"), (gpr, "class_"), (gpr, "attack")):
        given = {word: "pgd" if word == "attack" else 1}
        yield lambda m=model, g=given: ranges(m, square[:1], [0.1, 0.2], **g), word


def test_rounding_of_bounds_is_relative_to_the_largest_of_them():
    low, high = np.array([0.0, 1e3 + 1e-4]), np.array([0.0, 1e3])  # in the order, but for rounding
    display = CertifiedRangeDisplay([0, 1], low, high, low, high)
    assert (display.min_upper <= 1e3).all()


def test_wrong_values_are_refused_with_their_names():
    for call, word in refused():
        with pytest.raises(ValueError, match=word):
            call()


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
    assert legend_texts(display) == ["proven range", "attained there", "attack", *ends]
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
    assert (display.name, display.allowed) == ("probability of class 2", None)
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
