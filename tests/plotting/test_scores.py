"""Risk and coverage, histograms and p-values, intervals and PITs: against slow computation."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from skuq.metrics import area_under_risk_coverage, risk_coverage_curve
from skuq.plotting import (
    CoverageBySizeDisplay,
    IntervalsByWidthDisplay,
    OODDisplay,
    PITDisplay,
    RiskCoverageDisplay,
    UncertaintyHistogramDisplay,
)
from tests.metrics.problems import EntropicLogisticRegression, noisy_problem
from tests.plotting.drawing import drawn_shares, legend_texts, quantities

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


def test_several_curves_share_axes_beside_other_lines_and_small_risks_fill_them(model, plt):
    _, ax = plt.subplots()
    ax.plot([0, 1], [0, 0.1], ":", label="mine")
    total = model.predict_uncertainty(X).total
    for name, score in {"_total": total, "$random": np.arange(150.0), "w" * 99: -total}.items():
        given = LABELS, model.predict(X), score
        display = RiskCoverageDisplay.from_predictions(*given, name=name, ax=ax)
    texts = legend_texts(display)
    assert texts[:2] == ["mine", "error rate if all are answered"]
    assert len(texts) == 5
    curves = [line for line in ax.lines if line.get_linestyle() == "-"]
    assert len({line.get_color() for line in curves}) == 3
    assert ax.get_ylim()[1] > max(line.get_ydata().max() for line in curves)
    many = RiskCoverageDisplay.from_predictions([0] * 50, [0] * 50, np.arange(50.0))
    assert many.area == 0.0
    many.ax_.plot([0, 1], [1e-17, 1e-17])  # 0 but for rounding
    assert 1.0 < many.plot(many.ax_).ax_.get_ylim()[1] < 2.0
    tiny = Y * 1e-12, MEAN * 1e-12, STD
    small = RiskCoverageDisplay.from_predictions(*tiny, loss="absolute_error")
    assert small.ax_.get_ylim()[1] < 3 * small.curve.risk.max()


@pytest.mark.parametrize(
    ("loss", "unit", "label"),
    [
        ("squared_error", None, "mean squared error"),
        ("squared_error", "EUR", "mean squared error, EUR²"),
        ("squared_error", "km/h", "mean squared error, (km/h)²"),
        ("absolute_error", "km/h", "mean absolute error, km/h"),
    ],
)
def test_risk_of_quantities_has_its_name_and_unit(loss, unit, label):
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


def test_histogram_bins_are_shared_and_logarithmic_over_orders_of_magnitude():
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


def test_histogram_of_negative_or_constant_values_is_linear():
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
        f"inside: {inside.mean():.1%} (85% asked)",
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
    assert legend_texts(honest) == ["90% asked", "group of 40 rows"]
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
