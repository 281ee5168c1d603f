"""Curves, histograms, intervals, PITs, reliability and audits: against slow computation."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex
from scipy.stats import binom, binomtest, norm

from skuq.metrics import (
    area_under_risk_coverage,
    calibration_table,
    expected_calibration_error,
    risk_coverage_curve,
)
from skuq.plotting import (
    CalibrationAuditDisplay,
    ConfidenceDensityDisplay,
    CoverageBySizeDisplay,
    IntervalsByWidthDisplay,
    OODDisplay,
    PITDisplay,
    ReliabilityDisplay,
    RiskCoverageDisplay,
    UncertaintyHistogramDisplay,
)
from tests.metrics.problems import EntropicLogisticRegression, noisy_problem
from tests.plotting.drawing import audit_of, drawn_shares, legend_texts, quantities

Y, MEAN, STD = quantities()
X, LABELS = noisy_problem()


@pytest.fixture(scope="module")
def model():
    return EntropicLogisticRegression().fit(X, LABELS)


@pytest.mark.parametrize("part", ["total", "epistemic"])
def test_risk_coverage_display_holds_and_draws_the_curve_its_area_and_the_error_rate(model, part):
    inputs = LABELS, model.predict(X), getattr(model.predict_uncertainty(X), part)
    curve, name = risk_coverage_curve(*inputs), "EntropicLogisticRegression"
    for display in (
        RiskCoverageDisplay.from_estimator(model, X, LABELS, part=part),
        RiskCoverageDisplay.from_predictions(*inputs, name=name),
    ):
        np.testing.assert_array_equal(display.curve, curve)
        assert display.area == area_under_risk_coverage(*inputs)
        assert legend_texts(display)[1] == f"{name} (AURC = {display.area:.3g})"
        _, drawn, full = display.ax_.lines
        np.testing.assert_array_equal(drawn.get_xdata(), [0.0, *curve.coverage])
        np.testing.assert_array_equal(drawn.get_ydata()[1:], curve.risk)
        assert full.get_ydata()[0] == pytest.approx(np.mean(inputs[0] != inputs[1]))


def test_several_curves_share_axes_beside_other_lines_and_small_risks_fill_them(plt):
    _, ax = plt.subplots()
    ax.plot([0, 1], [0, 0.1], ":", label="mine")
    for name, risk in {"_first": 1, "$second": 0, "w" * 99: 1}.items():
        given = [0] * 50, [risk] * 50, np.arange(50.0)
        display = RiskCoverageDisplay.from_predictions(*given, name=name, ax=ax)
    assert len(legend_texts(display)) == 5
    assert ax.get_ylim()[1] > 1
    many = RiskCoverageDisplay.from_predictions([0] * 50, [0] * 50, np.arange(50.0))
    assert many.area == 0.0
    many.ax_.plot([0, 1], [1e-17, 1e-17])  # 0 but for rounding
    assert 1.0 < many.plot(many.ax_).ax_.get_ylim()[1] < 2.0
    tiny = Y * 1e-12, MEAN * 1e-12, STD
    small = RiskCoverageDisplay.from_predictions(*tiny, loss="absolute_error")
    assert small.ax_.get_ylim()[1] < 3 * small.curve.risk.max()


def test_risk_of_quantities_has_its_unit():
    for loss, unit, label in (
        ("squared_error", "EUR", "mean squared error, EUR²"),
        ("squared_error", "km/h", "mean squared error, (km/h)²"),
        ("absolute_error", "km/h", "mean absolute error, km/h"),
    ):
        display = RiskCoverageDisplay.from_predictions(Y, MEAN, STD, loss=loss, unit=unit)
        assert display.ax_.get_ylabel() == f"selective risk ({label})"
        np.testing.assert_array_equal(display.curve, risk_coverage_curve(Y, MEAN, STD, loss=loss))
        assert display.area == area_under_risk_coverage(Y, MEAN, STD, loss=loss)


@pytest.mark.parametrize("part", ["total", "aleatoric", "epistemic"])
def test_histogram_from_estimator_equals_that_of_its_predictions(model, part):
    groups = {"known": X, "ood": 5 * X[:50]}
    ours = UncertaintyHistogramDisplay.from_estimator(model, groups, part=part, unit="nats")
    assert ours.ax_.get_xlabel() == f"{part} uncertainty (nats)"
    assert legend_texts(ours) == ["known", "ood"]
    for name, rows in groups.items():
        drawn = getattr(model.predict_uncertainty(rows), part)
        np.testing.assert_array_equal(ours.groups[name], drawn)


def test_histogram_bins_are_shared_logarithmic_over_orders_of_magnitude_and_else_linear():
    rng = np.random.default_rng(0)
    groups = {"small": rng.random(30), "large": 3 + rng.random(500)}
    display = UncertaintyHistogramDisplay.from_predictions(groups)
    assert not display.log
    edges, together = display.bin_edges, np.concatenate(list(groups.values()))
    np.testing.assert_allclose(edges[[0, -1]], [together.min(), together.max()])
    np.testing.assert_allclose(np.diff(edges), np.diff(edges)[0])
    for share, values in zip(drawn_shares(display), groups.values(), strict=True):
        count = [sum(low <= v < high for v in values) for low, high in pairwise(edges)]
        count[-1] += sum(values == edges[-1])
        np.testing.assert_allclose(share, np.array(count) / len(values))
    values = np.array([0.0, 0.0, 1e-6, 1e-5, 1e-4, 1.0])
    display = UncertaintyHistogramDisplay.from_predictions({"all": values})
    assert display.log
    assert display.ax_.get_xscale() == "log"
    np.testing.assert_allclose(display.bin_edges[[0, -1]], [1e-6, 1.0])
    np.testing.assert_allclose(np.diff(np.log(display.bin_edges), n=2), 0, atol=1e-12)
    (share,) = drawn_shares(display)
    assert share[0] == pytest.approx(3 / 6)  # zeros are counted lowest
    assert share.sum() == pytest.approx(1.0)
    residue = UncertaintyHistogramDisplay.from_predictions({"all": [1e-300, 1e-4, 1e-3, 1e-3, 1.0]})
    assert residue.bin_edges[0] == pytest.approx(1e-12)
    assert drawn_shares(residue).sum() == pytest.approx(1.0)
    odd = [-1.0, 1e-6, 1e-6, 1.0], [0.0, 0.0], [1 / 3, 1 / 3 + 1e-16], [1e20, 1e20], [-1e299, 1]
    for values in ([0.3], *odd):
        display = UncertaintyHistogramDisplay.from_predictions({"all": values})
        assert not display.log
        assert drawn_shares(display).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("rate", [0.05, 0.001, 0.7, 0.999999])
def test_bars_beyond_the_limit_are_the_share_that_is_flagged_and_ticks_are_p_values(rate):
    values = np.append(np.random.default_rng(0).integers(1, 5001, 800) / 5000, [rate, 1.0])
    display = OODDisplay.from_predictions({"all": values}, false_alarm_rate=rate)
    (share,), limit = drawn_shares(display), -np.log10(rate)
    assert np.isclose(display.bin_edges, limit).sum() == 1
    beyond = display.bin_edges[:-1] > limit * (1 - 1e-9)
    assert share[beyond].sum() == pytest.approx((values <= rate).mean()) == display.flagged["all"]
    assert share.sum() == pytest.approx(1)
    assert len(display.bin_edges) < 500
    display = OODDisplay.from_predictions({"all": [1.0, 0.001]})
    assert display.ax_.get_xticks().tolist() == [0, 1, 2, 3]
    assert display.ax_.get_xticklabels()[-1].get_text() == "0.001"


def test_intervals_are_sorted_by_width_with_the_values_they_hold():
    lower, upper = MEAN - 1.5 * STD, MEAN + 2 * STD
    display = IntervalsByWidthDisplay.from_predictions(Y, lower, upper, coverage=0.85, unit="EUR")
    assert (np.diff(display.upper - display.lower) >= -1e-6).all()
    rows = np.stack([display.y_true, display.lower, display.upper], axis=1)
    assert {*map(tuple, rows)} == {*zip(Y, lower, upper, strict=True)}
    inside = (lower <= Y) & (upper >= Y)
    assert display.inside.mean() == inside.mean()
    assert legend_texts(display) == [
        f"interval (mean width {np.mean(upper - lower):.3g})",
        f"inside: {inside.mean():.1%}; nominal 85%",
        f"outside: {(~inside).sum()} of 400",
    ]
    held, missed = (points.get_offsets().data for points in display.ax_.collections[-2:])
    distance = display.y_true - (display.lower + display.upper) / 2
    np.testing.assert_allclose(held[:, 1], distance[display.inside])
    assert len(missed) == (~inside).sum()
    assert display.ax_.get_ylabel() == "distance from the middle (EUR)"
    middle = np.random.default_rng(0).lognormal(5, 2, 200)  # one width: rounding does not sort
    display = IntervalsByWidthDisplay(middle, middle - 0.1, middle + 0.1)
    np.testing.assert_array_equal(display.y_true, middle)
    for sign in (1, -1):  # a value far out stands at the edge and hides nothing
        y_true = np.where(np.arange(400) == 3, sign * 1e6, Y)
        display = IntervalsByWidthDisplay.from_predictions(y_true, MEAN - STD, MEAN + STD)
        reach = display.ax_.get_ylim()[1] / 1.05
        assert reach < 10 * STD.max()
        (edge,) = (p for p in display.ax_.collections if p.get_label() == "beyond the axis: 1")
        assert edge.get_offsets().data[0, 1] == pytest.approx(sign * reach)


@pytest.mark.parametrize(
    ("by", "n_groups"), [(None, 10), (MEAN, 1), (MEAN, 4), (MEAN.round(-2), 10)]
)
def test_coverage_by_size_equals_a_loop_over_groups(by, n_groups):
    lower, upper = MEAN - 60, MEAN + 60
    display = CoverageBySizeDisplay(Y, lower, upper, by, n_groups=n_groups)
    size = MEAN if by is None else by
    assert display.count.sum() == 400
    assert len(display.count) == len(display.group_edges) - 1 <= n_groups
    if by is not None and len(np.unique(by)) == 400:
        assert np.ptp(display.count) <= 1
    for k, (first, end) in enumerate(pairwise([*display.group_edges[:-1], np.inf])):
        chosen = (size >= first - 1e-9) & (size < end - 1e-9)
        held = int(((lower <= Y) & (upper >= Y))[chosen].sum())
        assert display.count[k] == chosen.sum()
        assert display.covered[k] == pytest.approx(held / chosen.sum())
        # All limits together miss with a probability of 5%.
        level = 1 - 0.05 / len(display.count)
        exact = binomtest(held, chosen.sum()).proportion_ci(level, method="exact")
        assert (display.covered_low[k], display.covered_high[k]) == pytest.approx(tuple(exact))


def test_groups_that_differ_from_what_was_asked_are_marked():
    display = CoverageBySizeDisplay.from_predictions(Y, MEAN - 60, MEAN + 60, MEAN, unit="EUR")
    off = (display.covered_high < 0.9) | (display.covered_low > 0.9)
    marked = next(line for line in display.ax_.lines if line.get_marker() == "D")
    np.testing.assert_array_equal(marked.get_xdata(), np.flatnonzero(off) + 0.5)
    assert off[-1]
    assert display.ax_.get_xlabel() == "prediction (EUR)"
    honest = CoverageBySizeDisplay.from_predictions(Y, MEAN - 1.645 * STD, MEAN + 1.645 * STD)
    assert legend_texts(honest) == ["nominal 90%", "group of 40 rows"]
    below = np.full(400, -np.inf)  # open intervals have a coverage, although they have no middle
    display = CoverageBySizeDisplay(Y, below, MEAN, MEAN, coverage=0.5)
    assert np.average(display.covered, weights=display.count) == pytest.approx((Y <= MEAN).mean())
    for size in (1, 1e9):  # ticks that would overlap are turned
        display = CoverageBySizeDisplay.from_predictions(size * Y, -size * Y, size * Y, size * MEAN)
        assert (display.ax_.get_xticklabels()[0].get_rotation() > 0) == (size > 1)


def test_pit_is_a_histogram_in_which_quantiles_spread_values_evenly():
    display = PITDisplay.from_predictions(Y, MEAN, STD, n_bins=8)
    count, _ = np.histogram(norm.cdf(Y, MEAN, STD), np.arange(9) / 8)
    np.testing.assert_allclose(display.share, count / 400)
    np.testing.assert_array_equal(display.ax_.patches[-1].get_data().values, display.share)
    ends = binom.ppf([0.05 / 16, 1 - 0.05 / 16], 400, 1 / 8)  # both sides of eight bars
    assert display.band == pytest.approx(ends / 400)
    rows = [[1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [1.0, 2.0, 2.0], [1.0, 2.0, 3.0]]
    display = PITDisplay.from_quantiles([0.0, 1.5, 2.0, 9.0], rows, [0.25, 0.5, 0.75], n_bins=4)
    np.testing.assert_allclose(display.low, [0, 0.25, 0.25, 0.75])
    np.testing.assert_allclose(display.high, [0.25, 0.5, 1.0, 1.0])
    np.testing.assert_allclose(display.share, np.array([1, 1 + 1 / 3, 1 / 3, 1 + 1 / 3]) / 4)
    finer = PITDisplay(display.low, display.high, n_bins=40)
    np.testing.assert_allclose(finer.share.reshape(4, 10).sum(axis=1), display.share)


@pytest.mark.parametrize("levels", [[0.1, 0.5, 0.9], np.arange(1, 100) / 100])
def test_pit_of_right_distributions_stays_in_the_band_and_that_of_narrow_ones_leaves_it(levels):
    right, narrow = (
        PITDisplay.from_quantiles(Y, MEAN[:, None] + f * STD[:, None] * norm.ppf(levels), levels)
        for f in (1, 0.4)
    )
    least, most = right.band
    assert ((least <= right.share) & (right.share <= most)).all()
    assert narrow.share[[0, -1]].min() > most
    assert right.share.sum() == pytest.approx(1)


def test_the_band_of_chance_is_left_in_one_picture_of_twenty_at_most():
    rng, left = np.random.default_rng(0), 0
    for _ in range(400):
        values = rng.random(60)
        display = PITDisplay(values, values, n_bins=5)
        least, most = display.band
        left += ((display.share < least - 1e-12) | (display.share > most + 1e-12)).any()
    assert 0 < left < 400 * 0.05 + 3 * np.sqrt(400 * 0.05 * 0.95)


def ends_of(bars, side="x"):
    start, size = ("get_x", "get_width") if side == "x" else ("get_y", "get_height")
    return np.cumsum([[getattr(bar, start)(), getattr(bar, size)()] for bar in bars], axis=1)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_reliability_display_holds_and_draws_the_table_its_error_and_counts(model, strategy):
    bins, proba = {"n_bins": 6, "strategy": strategy}, model.predict_proba(X)
    ours = ReliabilityDisplay.from_estimator(model, X, LABELS, name="toy", **bins)
    direct = ReliabilityDisplay.from_predictions(LABELS, proba, name="toy", **bins)
    table = calibration_table(LABELS, proba, **bins)
    for display in (ours, direct):
        np.testing.assert_array_equal(display.table, table)
        assert display.error == expected_calibration_error(LABELS, proba, **bins)
        assert display.ax_.get_title() == "toy"
    filled, (accuracy, gap) = table.count > 0, ours.ax_.containers
    edges = np.column_stack([table.lower, table.upper])
    np.testing.assert_allclose(ends_of(accuracy), edges, atol=1e-12)
    tops = np.array([bar.get_height() for bar in accuracy])
    np.testing.assert_array_equal(tops[filled], table.accuracy[filled])
    expected = np.column_stack([table.confidence, table.accuracy])[filled]
    np.testing.assert_allclose(ends_of(gap, "y")[filled], expected)
    assert not any(bar.get_facecolor()[3] for bar in gap)  # or an SVG would hide the hatching
    counts = [bar.get_height() for bar in ours.count_ax_.containers[0]]
    np.testing.assert_allclose(counts, table.count / len(LABELS))


def test_reliability_display_knows_the_column_order_of_the_estimator(model):
    names = np.array(["b", "c", "a"])[LABELS]
    words = EntropicLogisticRegression().fit(X, names)
    some = LABELS != 1  # a class that samples lack
    display = ReliabilityDisplay.from_estimator(words, X[some], names[some])
    expected = ReliabilityDisplay.from_estimator(model, X[some], LABELS[some])
    assert display.error == pytest.approx(expected.error, abs=1e-4)
    assert display.table.count.sum() == some.sum()


def test_a_count_below_all_samples_is_not_called_all_of_them():
    proba = np.repeat([[0.96, 0.04], [0.7, 0.3]], [9999, 1], axis=0)
    for y, given, text in ((np.zeros(10_000), proba, "99.9%"), ([0, 1], np.eye(2), "100%")):
        display = ReliabilityDisplay.from_predictions(y, given, classes=[0, 1])
        assert display.count_ax_.get_yticklabels()[1].get_text() == text


@pytest.mark.parametrize(("group", "strategy"), [(None, "quantile"), ("half=1", "uniform")])
def test_audit_display_draws_accuracy_and_exact_limits_at_the_mean_confidence(group, strategy):
    audit = audit_of(lowered=True, n=3000, strategy=strategy)
    display = CalibrationAuditDisplay.from_estimator(audit, group)
    bins = audit.bins_ if group is None else audit.group_bins_[group]
    assert display.bins is bins
    assert display.ax_.get_title() == (group or "")
    kinds = [(bins.count > 0) & ~bins.significant, bins.significant]
    assert all(chosen.any() for chosen in kinds)
    limits = np.column_stack([bins.gap_low, bins.gap_high]) + bins.confidence[:, None]
    for container, chosen in zip(display.ax_.containers, kinds, strict=True):
        points, _, (lines,) = container
        np.testing.assert_array_equal(points.get_xdata(), bins.confidence[chosen])
        np.testing.assert_array_equal(points.get_ydata(), bins.accuracy[chosen])
        ends = np.array(lines.get_segments())[:, :, 1]
        np.testing.assert_allclose(ends, limits[chosen], atol=1e-12)
    plain, found = (container[0] for container in display.ax_.containers)
    assert plain.get_color() != found.get_color()
    assert plain.get_marker() != found.get_marker()
    bars = display.count_ax_.containers[0]
    colours = [to_hex(bar.get_facecolor()) == to_hex(found.get_color()) for bar in bars]
    assert colours == bins.significant.tolist()
    order = np.array([bar.get_zorder() for bar in bars])
    assert order[bins.significant].min() > order[~bins.significant].max()  # none is hidden


def test_audit_display_of_an_honest_model_shows_samples_and_the_band_of_the_tolerance():
    audit = audit_of(lowered=False, tolerance=0.08)
    display = CalibrationAuditDisplay.from_estimator(audit, name="toy")
    assert legend_texts(display)[::2] == ["tolerance (8 points)", "bin"]
    counts = audit.bins_.count
    assert [bar.get_height() for bar in display.count_ax_.containers[0]] == counts.tolist()
    assert display.count_ax_.get_yticks().tolist() == [0, counts.max()]
    corners = display.ax_.collections[0].get_paths()[0].vertices.round(6).tolist()
    assert {*map(tuple, corners)} == {(0, -0.08), (1, 0.92), (1, 1.08), (0, 0.08)}
    assert display.ax_.get_title() == "toy"
    empty = audit.bins_._replace(count=0 * counts, significant=counts < 0)
    display = CalibrationAuditDisplay(empty, 0.05).plot()
    assert display.count_ax_.get_yticks().tolist() == [0]


def test_densities_have_area_one_over_shared_bins_which_are_those_of_the_audit(plt):
    rng = np.random.default_rng(0)
    groups = {"right": 0.5 + rng.random(300) / 2, "wrong": np.array([0.0, 0.55, 1.0])}
    display = ConfidenceDensityDisplay.from_predictions(groups, marked=[(0.5, 0.6), (0.8, 0.9)])
    assert legend_texts(display) == ["significant deviation", "right", "wrong"]
    np.testing.assert_allclose(display.bin_edges, np.arange(21) / 20)
    spans = [patch for patch in display.ax_.patches if hasattr(patch, "get_width")]
    np.testing.assert_allclose(ends_of(spans), [(0.5, 0.6), (0.8, 0.9)])
    for density, values in zip(drawn_shares(display), groups.values(), strict=True):
        assert density.sum() / 20 == pytest.approx(1.0)
        assert density[18] == pytest.approx(20 * ((values >= 0.9) & (values < 0.95)).mean())
    for k in range(20):
        display.ax_.clear()
        decimals = [float(f"0.{5 * k:02d}"), 1 - float(f"{1 - k / 20:.2f}")]  # one with rounding
        one = ConfidenceDensityDisplay.from_predictions({"all": decimals}, ax=display.ax_)
        assert np.flatnonzero(drawn_shares(one)[0]).tolist() == [k]


def test_densities_weigh_samples_and_are_of_the_largest_probability(model):
    weighted = ConfidenceDensityDisplay.from_predictions({"a": [0.5, 0.6]}, weights={"a": [1, 3]})
    repeated = ConfidenceDensityDisplay.from_predictions({"a": [0.5, 0.6, 0.6, 0.6]})
    np.testing.assert_allclose(drawn_shares(weighted), drawn_shares(repeated))
    groups = {"known": X, "ood": 5 * X[:50]}
    display = ConfidenceDensityDisplay.from_estimator(model, groups, threshold=0.7)
    for name, inputs in groups.items():
        np.testing.assert_array_equal(display.groups[name], model.predict_proba(inputs).max(axis=1))
    assert display.ax_.lines[0].get_xdata() == [0.7, 0.7]
    assert legend_texts(display) == ["known", "ood", "abstains below 70%"]
