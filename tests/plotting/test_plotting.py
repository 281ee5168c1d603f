"""Displays against independent computation; what is drawn, where, and with which labels."""

import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification, make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import CalibrationAuditor, Uncertainty, predict_uncertainty
from skuq.metrics import (
    area_under_risk_coverage,
    calibration_table,
    expected_calibration_error,
    risk_coverage_curve,
)
from skuq.plotting import (
    CalibrationAuditDisplay,
    ConfidenceDensityDisplay,
    ReliabilityDisplay,
    RiskCoverageDisplay,
    UncertaintyHistogramDisplay,
    UncertaintyMapDisplay,
)

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


STRANGE_NAMES = ["_hidden", r"$\frac{$", "cost $%$", "a\nb\x1b", "x" * 200]


class EntropicLogisticRegression(LogisticRegression):
    """Toy plugin: the entropy of the prediction, a quarter of it called epistemic."""

    def predict_uncertainty(self, X):
        proba = self.predict_proba(X)
        entropy = -(proba * np.log(np.clip(proba, 1e-300, 1.0))).sum(axis=1)
        return Uncertainty.from_parts(0.75 * entropy, 0.25 * entropy)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture
def moons():
    X, y = make_moons(80, noise=0.3, random_state=0)
    return X, np.array(["upper", "lower"])[y]


@pytest.fixture
def problem():
    return make_classification(
        200, n_features=4, n_informative=3, n_redundant=0, n_classes=3, flip_y=0.2, random_state=0
    )


@pytest.fixture
def model(problem):
    return make_pipeline(StandardScaler(), EntropicLogisticRegression()).fit(*problem)


def audit_of(lowered, n=900, **params):
    """Audit of labels drawn from probabilities, of which every third is reported too low."""
    rng = np.random.default_rng(0)
    second = rng.random(n)
    y = (rng.random(n) < second).astype(int)
    if lowered:
        second[::3] = np.where(second[::3] > 0.5, 0.55, 0.45)
    return CalibrationAuditor.from_predictions(
        y,
        np.column_stack([1 - second, second]),
        sensitive_features={"half": np.arange(n) % 2},
        **params,
    )


def legend_texts(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def draw_without_warnings(display):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display.figure_.canvas.draw()


def draw_everything(problem, model, ax=None):
    """One display of each kind from predictions."""
    X, y = problem
    u, proba = predict_uncertainty(model, X), model.predict_proba(X)
    grid = np.meshgrid(np.arange(4.0), np.arange(3.0))
    return [
        UncertaintyHistogramDisplay.from_predictions({"all": u.total}, ax=ax),
        RiskCoverageDisplay.from_predictions(y, model.predict(X), u.total, ax=ax),
        ReliabilityDisplay.from_predictions(y, proba, ax=ax),
        UncertaintyMapDisplay.from_predictions(*grid, grid[0] + grid[1], ax=ax),
        CalibrationAuditDisplay.from_estimator(audit_of(lowered=True), ax=ax),
        CalibrationAuditDisplay.from_predictions(audit_of(lowered=True).bins_, 0.05, ax=ax),
        ConfidenceDensityDisplay.from_predictions({"all": proba.max(axis=1)}, ax=ax),
    ]


def test_displays_draw_on_the_given_axes_and_open_no_figure(problem, model):
    figure, ax = plt.subplots()
    for display in draw_everything(problem, model, ax):
        assert display.ax_ is ax
        assert display.figure_ is figure
    assert plt.get_fignums() == [figure.number]


def test_displays_without_a_name_keep_the_title_of_the_given_axes(problem, model):
    _, ax = plt.subplots()
    ax.set_title("mine")
    draw_everything(problem, model, ax)
    assert ax.get_title() == "mine"


def test_displays_without_axes_open_one_figure_each_and_render_without_warnings(problem, model):
    displays = draw_everything(problem, model)
    assert len({id(display.figure_) for display in displays}) == len(displays)
    assert len(plt.get_fignums()) == len(displays)
    for display in displays:
        draw_without_warnings(display)


def test_displays_leave_the_settings_of_matplotlib_alone(problem, model):
    before = dict(matplotlib.rcParams)
    draw_everything(problem, model)
    assert dict(matplotlib.rcParams) == before


def test_plot_draws_again_and_returns_the_display(problem, model):
    for display in draw_everything(problem, model):
        first = display.figure_
        assert display.plot() is display
        assert display.figure_ is not first


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"matplotlib is needed .* 'skuq\[plot\]'"):
        RiskCoverageDisplay.from_predictions([0, 1], [0, 0], [0.1, 0.2])


# --- histogram ---------------------------------------------------------------------------


def drawn_shares(display):
    """Heights of the outlines, one row per group."""
    patches = [patch for patch in display.ax_.patches if not patch.get_fill()]
    return np.array([patch.get_data().values for patch in patches])


@pytest.mark.parametrize("part", ["total", "aleatoric", "epistemic"])
def test_histogram_from_estimator_equals_that_of_its_predictions(problem, model, part):
    X, _ = problem
    groups = {"known": X, "ood": 5 * X[:50]}
    ours = UncertaintyHistogramDisplay.from_estimator(model, groups, part=part, unit="nats")
    values = {name: getattr(predict_uncertainty(model, X), part) for name, X in groups.items()}
    direct = UncertaintyHistogramDisplay.from_predictions(
        values, label=f"{part} uncertainty", unit="nats"
    )
    assert ours.ax_.get_xlabel() == direct.ax_.get_xlabel() == f"{part} uncertainty (nats)"
    assert legend_texts(ours) == legend_texts(direct) == ["known", "ood"]
    np.testing.assert_array_equal(ours.bin_edges, direct.bin_edges)
    np.testing.assert_array_equal(drawn_shares(ours), drawn_shares(direct))
    for name, drawn in values.items():
        np.testing.assert_array_equal(ours.groups[name], drawn)


def test_histogram_bins_are_shared_and_hold_every_sample_of_every_group():
    rng = np.random.default_rng(0)
    groups = {"small": rng.random(30), "large": 3 + rng.random(500)}
    display = UncertaintyHistogramDisplay.from_predictions(groups)
    assert not display.log
    assert display.ax_.get_xscale() == "linear"
    together = np.concatenate(list(groups.values()))
    np.testing.assert_allclose(display.bin_edges[[0, -1]], [together.min(), together.max()])
    np.testing.assert_allclose(np.diff(display.bin_edges), np.diff(display.bin_edges)[0])
    for share, values in zip(drawn_shares(display), groups.values(), strict=True):
        count = [
            sum(low <= v < high for v in values)
            for low, high in zip(display.bin_edges[:-1], display.bin_edges[1:], strict=True)
        ]
        count[-1] += sum(values == display.bin_edges[-1])
        np.testing.assert_allclose(share, np.array(count) / len(values))


def test_histogram_is_logarithmic_over_orders_of_magnitude_and_counts_zeros_lowest():
    values = np.array([0.0, 0.0, 1e-6, 1e-5, 1e-4, 1.0])
    display = UncertaintyHistogramDisplay.from_predictions({"all": values})
    assert display.log
    assert display.ax_.get_xscale() == "log"
    np.testing.assert_allclose(display.bin_edges[[0, -1]], [1e-6, 1.0])
    ratios = display.bin_edges[1:] / display.bin_edges[:-1]
    np.testing.assert_allclose(ratios, ratios[0])
    (share,) = drawn_shares(display)
    assert share[0] == pytest.approx(3 / 6)
    assert share.sum() == pytest.approx(1.0)


def test_histogram_of_a_rounding_residue_does_not_stretch_the_axis():
    display = UncertaintyHistogramDisplay.from_predictions({"all": [1e-300, 1e-4, 1e-3, 1e-3, 1.0]})
    assert display.bin_edges[0] == pytest.approx(1e-12)
    assert drawn_shares(display).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "values", [[-1.0, 1e-6, 1e-6, 1.0], [0.0, 0.0], [0.3], [1 / 3, 1 / 3 + 1e-16], [1e20, 1e20]]
)
def test_histogram_of_negative_or_constant_values_is_linear(values):
    display = UncertaintyHistogramDisplay.from_predictions({"all": values})
    assert not display.log
    assert drawn_shares(display).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        ([0.1, 0.2], TypeError, "`groups` must map names to arrays, got list"),
        ({}, ValueError, "`groups` must have at least one group"),
        ({"known": [0.1, np.nan]}, ValueError, "`known` must be finite, got nan in row 1"),
        ({"known": [[0.1]]}, ValueError, "`known` must be one-dimensional"),
    ],
)
def test_wrong_groups_are_named(groups, error, message):
    with pytest.raises(error, match=message):
        UncertaintyHistogramDisplay.from_predictions(groups)


@pytest.mark.parametrize("values", [[-1e308, 1e308], [1.7e308, 1.7e308], [0.0, 1e-3, 1e305]])
def test_values_beyond_what_axes_can_show_are_refused(values):
    message = (
        r"`groups` must be at most 1e\+300 in absolute value, got .*; divide them by a constant"
    )
    with pytest.raises(ValueError, match=message):
        UncertaintyHistogramDisplay({"all": values})
    display = UncertaintyHistogramDisplay({"all": np.array(values) / 1e9}).plot()
    draw_without_warnings(display)
    assert sum(display.ax_.patches[0].get_data().values) == pytest.approx(1)


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_a_histogram_draws_names_as_text(name):
    values = {name: [0.1, 0.2], "other": [0.3]}
    display = UncertaintyHistogramDisplay.from_predictions(values, label=name, unit=name)
    assert len(legend_texts(display)) == 2
    draw_without_warnings(display)


def test_groups_of_inputs_must_be_named(problem, model):
    with pytest.raises(TypeError, match="`groups` must map names to arrays, got ndarray"):
        UncertaintyHistogramDisplay.from_estimator(model, problem[0])


# --- risk and coverage -------------------------------------------------------------------


@pytest.mark.parametrize("part", ["total", "aleatoric", "epistemic"])
def test_risk_coverage_display_holds_the_curve_and_its_area(problem, model, part):
    X, y = problem
    inputs = y, model.predict(X), getattr(predict_uncertainty(model, X), part)
    ours = RiskCoverageDisplay.from_estimator(model, X, y, part=part, name="toy")
    direct = RiskCoverageDisplay.from_predictions(*inputs, name="toy")
    for display in (ours, direct):
        for drawn, expected in zip(display.curve, risk_coverage_curve(*inputs), strict=True):
            np.testing.assert_array_equal(drawn, expected)
        assert display.area == area_under_risk_coverage(*inputs)
        assert legend_texts(display)[1] == f"toy (AURC = {display.area:.3g})"


def test_risk_coverage_display_draws_the_curve_and_the_error_rate_of_full_coverage(problem, model):
    X, y = problem
    display = RiskCoverageDisplay.from_estimator(model, X, y)
    _, curve, full = display.ax_.lines
    np.testing.assert_array_equal(curve.get_xdata()[1:], display.curve.coverage)
    np.testing.assert_array_equal(curve.get_ydata()[1:], display.curve.risk)
    assert curve.get_xdata()[0] == 0.0
    assert full.get_ydata()[0] == pytest.approx(np.mean(model.predict(X) != y))


def test_several_risk_coverage_curves_share_axes_with_their_own_colours(problem, model):
    X, y = problem
    names = ["total", "random", "worst"]
    total = predict_uncertainty(model, X).total
    scores = [total, np.random.default_rng(0).random(len(y)), -total]
    ax = None
    for name, score in zip(names, scores, strict=True):
        display = RiskCoverageDisplay.from_predictions(y, model.predict(X), score, name=name, ax=ax)
        ax = display.ax_
    texts = legend_texts(display)
    assert texts[0] == "error rate if all are answered"
    assert [text.split(" (")[0] for text in texts[1:]] == names
    curves = [line for line in ax.lines if line.get_linestyle() == "-"]
    assert len({line.get_color() for line in curves}) == len(names)
    assert ax.get_ylim()[1] > max(line.get_ydata().max() for line in curves)


def test_risk_coverage_display_of_a_perfect_predictor_can_be_drawn():
    display = RiskCoverageDisplay.from_predictions([0, 1], [0, 1], [0.1, 0.2])
    assert display.area == 0.0
    assert 1.0 < display.ax_.get_ylim()[1] < 2.0
    many = RiskCoverageDisplay.from_predictions([0] * 50, [0] * 50, np.arange(50.0))
    many.ax_.plot([0, 1], [1e-17, 1e-17])  # 0 but for rounding
    assert 1.0 < many.plot(many.ax_).ax_.get_ylim()[1] < 2.0


def test_risk_coverage_names_are_text_and_have_their_own_colours_whatever_they_hold():
    ax, y = None, np.arange(30) % 2
    for name in STRANGE_NAMES:
        display = RiskCoverageDisplay.from_predictions(y, y[::-1], y, name=name, ax=ax)
        ax = display.ax_
    texts = legend_texts(display)
    assert texts.count("error rate if all are answered") == 1
    assert len(texts) == 1 + len(STRANGE_NAMES)
    curves = [line for line in ax.lines if line.get_linestyle() == "-"]
    assert len({line.get_color() for line in curves}) == len(curves)
    draw_without_warnings(display)
    assert ax.get_legend().get_window_extent().width < ax.get_window_extent().width


def test_the_dashed_line_is_explained_on_axes_that_have_another_line():
    _, ax = plt.subplots()
    ax.plot([0, 1], [0, 1], label="mine")
    display = RiskCoverageDisplay.from_predictions([0, 1], [0, 0], [0.1, 0.2], name="m", ax=ax)
    assert legend_texts(display)[:2] == ["mine", "error rate if all are answered"]


def test_risk_coverage_display_is_named_after_the_estimator_by_default(problem):
    X, y = problem
    display = RiskCoverageDisplay.from_estimator(EntropicLogisticRegression().fit(X, y), X, y)
    assert legend_texts(display)[1].startswith("EntropicLogisticRegression (AURC = ")


def test_an_unknown_part_is_refused(problem, model):
    X, y = problem
    with pytest.raises(ValueError, match=r"`part` must be one of .*'epistemic'.*, got 'index'"):
        RiskCoverageDisplay.from_estimator(model, X, y, part="index")


# --- reliability -------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_reliability_display_holds_the_table_and_its_error(problem, model, strategy):
    X, y = problem
    proba, bins = model.predict_proba(X), {"n_bins": 6, "strategy": strategy}
    ours = ReliabilityDisplay.from_estimator(model, X, y, name="toy", **bins)
    direct = ReliabilityDisplay.from_predictions(y, proba, name="toy", **bins)
    for display in (ours, direct):
        for column, expected in zip(
            display.table, calibration_table(y, proba, **bins), strict=True
        ):
            np.testing.assert_array_equal(column, expected)
        assert display.error == expected_calibration_error(y, proba, **bins)
        assert display.ax_.get_title() == "toy"
        assert f"gap (ECE = {display.error:.3g})" in legend_texts(display)


def test_reliability_display_draws_accuracy_gap_and_counts_over_the_bins(problem, model):
    X, y = problem
    display = ReliabilityDisplay.from_estimator(model, X, y, n_bins=5)
    table, (accuracy, gap) = display.table, display.ax_.containers
    filled = table.count > 0
    edges = np.array([[bar.get_x(), bar.get_x() + bar.get_width()] for bar in accuracy])
    np.testing.assert_allclose(edges, np.column_stack([table.lower, table.upper]), atol=1e-12)
    tops = np.array([bar.get_height() for bar in accuracy])
    np.testing.assert_array_equal(tops[filled], table.accuracy[filled])
    ends = np.array([[bar.get_y(), bar.get_y() + bar.get_height()] for bar in gap])[filled]
    expected = np.column_stack([table.confidence, table.accuracy])[filled]
    np.testing.assert_allclose(ends, expected)
    assert not any(bar.get_facecolor()[3] for bar in gap)  # or an SVG would hide the hatching
    counts = [bar.get_height() for bar in display.count_ax_.containers[0]]
    np.testing.assert_allclose(counts, table.count / len(y))


def test_reliability_display_knows_the_column_order_of_the_estimator(problem):
    X, y = problem
    names = np.array(["b", "c", "a"])[y]
    numbers = EntropicLogisticRegression().fit(X, y)
    words = EntropicLogisticRegression().fit(X, names)
    some = y != 1  # a class that the samples lack
    display = ReliabilityDisplay.from_estimator(words, X[some], names[some])
    expected = ReliabilityDisplay.from_estimator(numbers, X[some], y[some])
    assert display.error == pytest.approx(expected.error, abs=1e-4)
    assert display.table.count.sum() == some.sum()


def test_a_count_below_all_samples_is_not_called_all_of_them():
    proba = np.repeat([[0.96, 0.04], [0.7, 0.3]], [9999, 1], axis=0)
    display = ReliabilityDisplay.from_predictions(np.zeros(10_000), proba, classes=[0, 1])
    assert display.count_ax_.get_yticklabels()[1].get_text() == "99.9%"
    display = ReliabilityDisplay.from_predictions([0, 1], [[0.9, 0.1], [0.1, 0.9]])
    assert display.count_ax_.get_yticklabels()[1].get_text() == "100%"


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_a_reliability_display_draws_its_name_as_text(name):
    proba = [[0.75, 0.25], [0.25, 0.75]]
    display = ReliabilityDisplay.from_predictions([0, 1], proba, name=name)
    draw_without_warnings(display)
    title = display.ax_.title.get_window_extent()
    assert 0 < title.x0 < title.x1 < display.figure_.bbox.width


def test_reliability_display_passes_on_what_is_wrong_with_probabilities():
    with pytest.raises(ValueError, match="`proba` must be >= 0"):
        ReliabilityDisplay.from_predictions([0, 1], [[1.5, -0.5], [0.5, 0.5]])


# --- audit -------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [None, "half=1"])
@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_audit_display_draws_accuracy_and_exact_limits_at_the_mean_confidence(group, strategy):
    audit = audit_of(lowered=True, n=3000, strategy=strategy)
    display = CalibrationAuditDisplay.from_estimator(audit, group)
    bins = audit.bins_ if group is None else audit.group_bins_[group]
    assert display.bins is bins
    assert display.ax_.get_title() == (group or "")
    kinds = [(bins.count > 0) & ~bins.significant, bins.significant]
    assert all(chosen.any() for chosen in kinds)
    for container, chosen in zip(display.ax_.containers, kinds, strict=True):
        points, _, (lines,) = container
        np.testing.assert_array_equal(points.get_xdata(), bins.confidence[chosen])
        np.testing.assert_array_equal(points.get_ydata(), bins.accuracy[chosen])
        ends = np.array(lines.get_segments())[:, :, 1]
        low, high = bins.confidence + bins.gap_low, bins.confidence + bins.gap_high
        np.testing.assert_allclose(ends, np.column_stack([low, high])[chosen], atol=1e-12)


def test_audit_display_tells_significant_bins_by_colour_and_by_marker():
    display = CalibrationAuditDisplay.from_estimator(audit_of(lowered=True))
    plain, significant = (container[0] for container in display.ax_.containers)
    assert plain.get_color() != significant.get_color()
    assert plain.get_marker() != significant.get_marker()
    assert legend_texts(display)[2:] == ["bin", "significant deviation"]
    honest = CalibrationAuditDisplay.from_estimator(audit_of(lowered=False))
    assert len(honest.ax_.containers) == 1
    assert "significant deviation" not in legend_texts(honest)
    bars = display.count_ax_.containers[0]
    colours = [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in bars]
    expected = matplotlib.colors.to_hex(significant.get_color())
    assert [colour == expected for colour in colours] == display.bins.significant.tolist()


def test_audit_display_shows_samples_per_bin_and_the_band_of_the_tolerance():
    audit = audit_of(lowered=False, alpha=0.08)
    display = CalibrationAuditDisplay.from_estimator(audit, name="toy")
    heights = [bar.get_height() for bar in display.count_ax_.containers[0]]
    assert heights == audit.bins_.count.tolist()
    assert display.count_ax_.get_yticks().tolist() == [0, audit.bins_.count.max()]
    (band,) = display.ax_.collections[:1]
    corners = {(round(x, 6), round(y, 6)) for x, y in band.get_paths()[0].vertices}
    assert corners == {(0, -0.08), (1, 0.92), (1, 1.08), (0, 0.08)}
    assert display.ax_.get_title() == "toy"
    assert "tolerance (8 points)" in legend_texts(display)


def test_significant_bins_are_not_hidden_by_narrow_ones_beside_them():
    bins = audit_of(lowered=True, strategy="quantile").bins_
    display = CalibrationAuditDisplay(bins, 0.05).plot()
    order = np.array([bar.get_zorder() for bar in display.count_ax_.containers[0]])
    assert order[bins.significant].min() > order[~bins.significant].max()


def test_a_bin_has_no_edge_that_covers_it():
    confidence = 0.9 + np.arange(400) / 4000
    proba, y = np.column_stack([1 - confidence, confidence]), np.ones(400)
    bins = {"classes": [0, 1], "n_bins": 40, "strategy": "quantile"}
    display = ReliabilityDisplay.from_predictions(y, proba, **bins)
    bars = display.count_ax_.containers[0]
    narrow = [bar for bar in bars if bar.get_width() < 0.01]
    assert len(narrow) > 30
    assert all(bar.get_linewidth() == 0 for bar in narrow)


def test_an_audit_display_without_samples_has_one_tick():
    bins = audit_of(lowered=False).bins_
    nothing = np.zeros_like(bins.count)
    empty = bins._replace(count=nothing, significant=nothing.astype(bool))
    display = CalibrationAuditDisplay(empty, 0.05).plot()
    assert display.count_ax_.get_yticks().tolist() == [0]


def test_displays_with_counts_stay_inside_a_figure_without_a_layout():
    figure, axes = plt.subplots(1, 2, figsize=(9, 4))
    proba = [[0.75, 0.25], [0.25, 0.75]]
    places = []
    for _ in range(2):
        left = CalibrationAuditDisplay.from_estimator(audit_of(lowered=True), ax=axes[0], name="a")
        right = ReliabilityDisplay.from_predictions([0, 1], proba, ax=axes[1], name="b")
        for display in (left, right):
            figure.canvas.draw()
            place = display.ax_.get_tightbbox()
            assert 0 <= place.y0 < place.y1 <= figure.bbox.height
            title = display.ax_.title.get_window_extent()
            assert title.y0 > display.ax_.get_legend().get_window_extent().y1
        places.append(axes[0].get_position().bounds)
        for ax in axes:
            ax.clear()
    assert places[0] == places[1]  # drawn again they do not shrink again


def test_audit_display_of_an_unknown_group_names_the_known_ones():
    with pytest.raises(ValueError, match=r"one of the audited groups \['half=0', 'half=1'\], got"):
        CalibrationAuditDisplay.from_estimator(audit_of(lowered=False), "half=2")


def test_densities_have_area_one_over_shared_bins_on_the_unit_interval():
    rng = np.random.default_rng(0)
    groups = {"right": 0.5 + rng.random(300) / 2, "wrong": np.array([0.0, 0.55, 1.0])}
    display = ConfidenceDensityDisplay.from_predictions(groups)
    assert legend_texts(display) == ["right", "wrong"]
    np.testing.assert_allclose(display.bin_edges, np.arange(21) / 20)
    for density, values in zip(drawn_shares(display), groups.values(), strict=True):
        assert density.sum() / 20 == pytest.approx(1.0)
        inside = (values >= 0.9) & (values < 0.95)
        assert density[18] == pytest.approx(20 * inside.mean())


def test_a_density_has_the_bins_of_the_audit_for_decimal_confidences():
    for k in range(20):
        decimals = [float(f"0.{5 * k:02d}"), 1 - float(f"{1 - k / 20:.2f}")]  # one with rounding
        display = ConfidenceDensityDisplay.from_predictions({"all": decimals})
        assert np.flatnonzero(drawn_shares(display)[0]).tolist() == [k]


def test_weights_stand_for_so_many_samples():
    weighted = ConfidenceDensityDisplay.from_predictions({"a": [0.5, 0.6]}, weights={"a": [1, 3]})
    repeated = ConfidenceDensityDisplay.from_predictions({"a": [0.5, 0.6, 0.6, 0.6]})
    np.testing.assert_allclose(drawn_shares(weighted), drawn_shares(repeated))


def test_densities_from_estimator_are_of_the_largest_probability(problem, model):
    X, _ = problem
    groups = {"known": X, "ood": 5 * X[:50]}
    display = ConfidenceDensityDisplay.from_estimator(model, groups, threshold=0.7)
    for name, inputs in groups.items():
        np.testing.assert_array_equal(display.groups[name], model.predict_proba(inputs).max(axis=1))
    (line,) = display.ax_.lines
    assert line.get_xdata() == [0.7, 0.7]
    assert legend_texts(display) == ["known", "ood", "abstains below 70%"]


def test_marked_ranges_are_shaded_and_named_once():
    marked = [(0.5, 0.6), (0.8, 0.9)]
    display = ConfidenceDensityDisplay.from_predictions({"all": [0.5, 0.9]}, marked=marked)
    spans = [patch for patch in display.ax_.patches if hasattr(patch, "get_width")]
    drawn = [(span.get_x(), span.get_x() + span.get_width()) for span in spans]
    np.testing.assert_allclose(drawn, marked)
    assert legend_texts(display).count("significant deviation") == 1


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_names_of_groups_are_drawn_as_text_whatever_they_hold(name):
    display = ConfidenceDensityDisplay.from_predictions({name: [0.5], "other": [0.7]})
    audit = CalibrationAuditDisplay(audit_of(lowered=False).bins_, 0.05, name=name).plot()
    assert len(legend_texts(display)) == 2
    draw_without_warnings(display)
    draw_without_warnings(audit)
    width = display.ax_.get_legend().get_window_extent().width
    assert width < display.figure_.bbox.width


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        ([0.1], TypeError, "`groups` must map names to arrays, got list"),
        ({}, ValueError, "`groups` must have at least one group"),
        (
            {"all": [0.5, 1.5]},
            ValueError,
            r"`all` must contain confidences in \[0, 1\], got 1.5 in row",
        ),
        ({"all": [np.nan]}, ValueError, "`all` must be finite"),
    ],
)
def test_wrong_confidences_are_named(groups, error, message):
    with pytest.raises(error, match=message):
        ConfidenceDensityDisplay(groups)


# --- map ---------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["total", "aleatoric", "epistemic"])
def test_map_shows_the_uncertainty_at_every_grid_point(moons, part):
    X, y = moons
    model = EntropicLogisticRegression().fit(X, y)
    display = UncertaintyMapDisplay.from_estimator(model, X, y, part=part, grid_resolution=7)
    assert display.uncertainty.shape == (7, 7)
    for i in range(7):
        for j in range(7):
            point = [[display.xx0[i, j], display.xx1[i, j]]]
            expected = getattr(model.predict_uncertainty(point), part)[0]
            assert display.uncertainty[i, j] == pytest.approx(expected)
    np.testing.assert_array_equal(display.mesh_.get_array(), display.uncertainty)


def test_map_from_estimator_equals_that_of_its_predictions(moons):
    X, y = moons
    model = EntropicLogisticRegression().fit(X, y)
    ours = UncertaintyMapDisplay.from_estimator(model, X, y, unit="nats", grid_resolution=9)
    grid = np.column_stack([ours.xx0.ravel(), ours.xx1.ravel()])
    direct = UncertaintyMapDisplay.from_predictions(
        ours.xx0,
        ours.xx1,
        predict_uncertainty(model, grid).epistemic.reshape(9, 9),
        X=X,
        y=y,
        label="epistemic uncertainty",
        unit="nats",
    )
    np.testing.assert_array_equal(ours.mesh_.get_array(), direct.mesh_.get_array())
    assert legend_texts(ours) == legend_texts(direct) == ["lower", "upper"]
    for display in (ours, direct):
        assert display.colorbar_.ax.get_ylabel() == "epistemic uncertainty (nats)"
        assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("feature 0", "feature 1")


def test_map_surrounds_the_points_by_the_margin(moons):
    X, y = moons
    model = EntropicLogisticRegression().fit(X, y)
    display = UncertaintyMapDisplay.from_estimator(model, X, margin=0.5, grid_resolution=5)
    for axis, grid in enumerate((display.xx0, display.xx1)):
        low, high = X[:, axis].min(), X[:, axis].max()
        assert grid.min() == pytest.approx(low - 0.5 * (high - low))
        assert grid.max() == pytest.approx(high + 0.5 * (high - low))


def test_map_of_a_constant_feature_has_a_width(moons):
    X, y = moons
    X = np.column_stack([X[:, 0], np.full(len(X), 3.0)])
    display = UncertaintyMapDisplay.from_estimator(
        EntropicLogisticRegression().fit(X, y), X, grid_resolution=5
    )
    assert (display.xx1.min(), display.xx1.max()) == (1.5, 4.5)


@pytest.mark.parametrize("n_classes", [6, 12])
def test_a_map_keeps_its_room_beside_long_names_of_classes(n_classes):
    xx0, xx1 = np.meshgrid(np.arange(3.0), np.arange(3.0))
    names = [f"category number {k} of the survey" for k in range(n_classes)]
    points = np.random.default_rng(0).random((n_classes, 2))
    display = UncertaintyMapDisplay.from_predictions(xx0, xx1, xx0, X=points, y=names)
    draw_without_warnings(display)
    assert display.ax_.get_position().height > 0.5
    assert display.ax_.get_position().width > 0.5
    assert display.ax_.get_legend().get_window_extent().x1 < display.figure_.bbox.width


def test_map_draws_the_points_of_each_class(moons):
    X, y = moons
    model = EntropicLogisticRegression().fit(X, y)
    display = UncertaintyMapDisplay.from_estimator(model, X, y, grid_resolution=5)
    lower, upper = display.ax_.collections[1:]
    np.testing.assert_array_equal(lower.get_offsets(), X[y == "lower"])
    np.testing.assert_array_equal(upper.get_offsets(), X[y == "upper"])
    plain = UncertaintyMapDisplay.from_estimator(model, X, grid_resolution=5)
    np.testing.assert_array_equal(plain.ax_.collections[1].get_offsets(), X)
    assert plain.ax_.get_legend() is None


@pytest.mark.parametrize("kind", [float, "{:.3f}".format])
def test_a_map_draws_many_values_alike_and_keeps_its_room(moons, kind):
    X = moons[0]
    xx0, xx1 = np.meshgrid(np.linspace(-2, 2, 5), np.linspace(-2, 2, 5))
    y = [kind(value) for value in X[:, 0] ** 2]
    display = UncertaintyMapDisplay.from_predictions(xx0, xx1, xx0, X=X, y=y)
    assert display.ax_.get_legend() is None
    _, points = display.ax_.collections
    np.testing.assert_array_equal(points.get_offsets(), X)
    draw_without_warnings(display)
    assert display.ax_.get_position().height > 0.7


def test_a_map_tells_a_few_numbers_apart(moons):
    X = moons[0]
    xx0, xx1 = np.meshgrid(np.linspace(-2, 2, 5), np.linspace(-2, 2, 5))
    y = np.arange(len(X)) % 20 / 2
    display = UncertaintyMapDisplay.from_predictions(xx0, xx1, xx0, X=X, y=y)
    assert legend_texts(display) == [str(value) for value in np.unique(y)]


def test_a_map_drawn_again_has_its_points_again(moons):
    X, y = moons
    xx0, xx1 = np.meshgrid(np.linspace(-2, 2, 5), np.linspace(-2, 2, 5))
    display = UncertaintyMapDisplay.from_predictions(xx0, xx1, xx0, X=X, y=y)
    drawn = [points.get_offsets() for points in display.ax_.collections[1:]]
    again = [points.get_offsets() for points in display.plot().ax_.collections[1:]]
    np.testing.assert_array_equal(np.concatenate(drawn), np.concatenate(again))
    assert legend_texts(display) == ["lower", "upper"]


@pytest.mark.parametrize("missing", [np.nan, None, pd.NA, pd.NaT])
@pytest.mark.parametrize("label", [1.0, "a"])
@pytest.mark.parametrize("kind", [list, pd.Series])
def test_a_map_refuses_missing_labels(missing, label, kind):
    xx0, xx1 = np.meshgrid(np.arange(3.0), np.arange(3.0))
    y = kind([label, missing, label])
    with pytest.raises(ValueError, match=r"`y` has a missing label in row 1; remove such points"):
        UncertaintyMapDisplay.from_predictions(xx0, xx1, xx0, X=np.ones((3, 2)), y=y)


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_a_map_draws_names_of_columns_and_classes_as_text(moons, name):
    X, y = moons
    frame = pd.DataFrame(X, columns=[name, "other"])
    y = np.where(y == "upper", name, "other")
    model = EntropicLogisticRegression().fit(frame, y)
    display = UncertaintyMapDisplay.from_estimator(model, frame, y, grid_resolution=5)
    assert len(legend_texts(display)) == 2
    draw_without_warnings(display)


@pytest.mark.parametrize("in_pipeline", [False, True])
@pytest.mark.parametrize("points_as_frame", [False, True])
def test_map_of_a_model_fitted_on_a_frame_has_its_names_and_no_warning(
    moons, in_pipeline, points_as_frame
):
    X, y = moons
    frame = pd.DataFrame(X, columns=["width", "height"])
    model = EntropicLogisticRegression()
    model = make_pipeline(StandardScaler(), model) if in_pipeline else model
    model.fit(frame, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display = UncertaintyMapDisplay.from_estimator(
            model, frame if points_as_frame else X, y, grid_resolution=5
        )
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("width", "height")


@pytest.mark.parametrize(
    ("points", "settings", "message"),
    [
        (np.ones((5, 3)), {}, r"`X` must have shape \(n_samples, 2\), got \(5, 3\)"),
        (np.ones((0, 2)), {}, r"`X` must have shape \(n_samples, 2\), got \(0, 2\)"),
        (np.eye(2), {"y": [0, 1, 1]}, r"`y` must have shape \(2,\), got \(3,\)"),
    ],
)
def test_wrong_map_inputs_are_named(moons, points, settings, message):
    model = EntropicLogisticRegression().fit(*moons)
    with pytest.raises(ValueError, match=message):
        UncertaintyMapDisplay.from_estimator(model, points, **settings)


@pytest.mark.parametrize("shape", [(3, 4), (12,), (4, 3, 1)])
def test_a_map_needs_grids_of_one_shape(shape):
    xx0, xx1 = np.meshgrid(np.arange(3.0), np.arange(4.0))
    with pytest.raises(ValueError, match=r"grids of the same shape .*got \(4, 3\), \(4, 3\), \("):
        UncertaintyMapDisplay.from_predictions(xx0, xx1, np.ones(shape))
