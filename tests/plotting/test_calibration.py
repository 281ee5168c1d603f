"""Reliability diagrams, audits and densities of confidence against independent computation."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from skuq.metrics import calibration_table, expected_calibration_error
from skuq.plotting import CalibrationAuditDisplay, ConfidenceDensityDisplay, ReliabilityDisplay
from tests.metrics.problems import EntropicLogisticRegression, noisy_problem
from tests.plotting.drawing import AUDIT, TWO, audit_of, drawn_shares, legend_texts

X, Y = noisy_problem()


@pytest.fixture(scope="module")
def model():
    return EntropicLogisticRegression().fit(X, Y)


def ends_of(bars, side="x"):
    start, size = ("get_x", "get_width") if side == "x" else ("get_y", "get_height")
    return np.cumsum([[getattr(bar, start)(), getattr(bar, size)()] for bar in bars], axis=1)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_reliability_display_holds_and_draws_the_table_its_error_and_counts(model, strategy):
    bins, proba = {"n_bins": 6, "strategy": strategy}, model.predict_proba(X)
    ours = ReliabilityDisplay.from_estimator(model, X, Y, name="toy", **bins)
    direct = ReliabilityDisplay.from_predictions(Y, proba, name="toy", **bins)
    table = calibration_table(Y, proba, **bins)
    for display in (ours, direct):
        np.testing.assert_array_equal(display.table, table)
        assert display.error == expected_calibration_error(Y, proba, **bins)
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
    np.testing.assert_allclose(counts, table.count / len(Y))


def test_reliability_display_knows_the_column_order_of_the_estimator(model):
    names = np.array(["b", "c", "a"])[Y]
    words, some = EntropicLogisticRegression().fit(X, names), Y != 1  # a class that samples lack
    display = ReliabilityDisplay.from_estimator(words, X[some], names[some])
    expected = ReliabilityDisplay.from_estimator(model, X[some], Y[some])
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
    audit = audit_of(lowered=False, alpha=0.08)
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


def test_displays_with_counts_that_are_drawn_again_do_not_shrink_again(plt):
    figure, axes = plt.subplots(1, 2, figsize=(9, 4))
    places = []
    for _ in range(2):
        CalibrationAuditDisplay.from_estimator(AUDIT, ax=axes[0], name="a")
        ReliabilityDisplay.from_predictions([0, 1], TWO, ax=axes[1], name="b")
        figure.draw_without_rendering()
        for ax in axes:
            assert 0 <= ax.get_tightbbox().y0 < ax.get_tightbbox().y1 <= figure.bbox.height
            ax.clear()
        places.append([ax.get_position().bounds for ax in axes])
    assert places[0] == places[1]


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
