"""Pictures of predicted quantities against independent computation, also at extreme data."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binomtest, norm
from sklearn.linear_model import BayesianRidge, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import Uncertainty
from skuq.metrics import area_under_risk_coverage, risk_coverage_curve
from skuq.plotting import (
    CoverageBySizeDisplay,
    IntervalsByWidthDisplay,
    PITDisplay,
    RiskCoverageDisplay,
)

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")

STRANGE_NAMES = ["_hidden", r"$\frac{$", "cost $%$", "a\nb\x1b", "x" * 200]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


class GaussianRidge(BayesianRidge):
    """Regressor with intervals, quantiles and variances of its Gaussian."""

    def predict_uncertainty(self, X):
        _, std = self.predict(X, return_std=True)
        return Uncertainty.from_parts(aleatoric=0 * std, epistemic=std**2)

    def predict_quantiles(self, X, levels):
        mean, std = self.predict(X, return_std=True)
        return mean[:, None] + std[:, None] * norm.ppf(levels)

    def predict_interval(self, X, coverage=0.9):
        return self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2]).T


def quantities(n=400, seed=0):
    """True values, and means and standard deviations that fit them."""
    rng = np.random.default_rng(seed)
    mean = rng.lognormal(5, 0.6, n)
    std = 0.25 * mean
    return rng.normal(mean, std), mean, std


def with_outlier(values, row=3, value=1e6):
    changed = values.copy()
    changed[row] = value
    return changed


def draw_all(y_true, mean, std, ax=None, **name):
    """One display of each kind of the same Gaussian predictions."""
    limits, unit = (mean - 1.645 * std, mean + 1.645 * std), {"unit": "EUR", "ax": ax, **name}
    quantiles, levels = mean[:, None] + std[:, None] * norm.ppf([0.05, 0.5, 0.9]), [0.05, 0.5, 0.9]
    return [
        IntervalsByWidthDisplay.from_predictions(y_true, *limits, **unit),
        CoverageBySizeDisplay.from_predictions(y_true, *limits, **unit),
        CoverageBySizeDisplay.from_predictions(y_true, *limits, mean, **unit),
        PITDisplay.from_predictions(y_true, mean, std, ax=ax, **name),
        PITDisplay.from_quantiles(y_true, quantiles, levels, ax=ax, **name),
        RiskCoverageDisplay.from_predictions(y_true, mean, std, loss="squared_error", **unit),
        RiskCoverageDisplay.from_predictions(y_true, mean, std, loss="absolute_error", **unit),
    ]


def legend_texts(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


Y, MEAN, STD = quantities()
EXTREMES = {
    "ordinary": (Y, MEAN, STD),
    "one row": quantities(1),
    "ten rows": quantities(10),
    "many rows": quantities(5000),
    "one value far out": (with_outlier(Y), MEAN, STD),
    "one prediction far out": (Y, with_outlier(MEAN), STD),
    "one wide": (Y, MEAN, with_outlier(STD)),
    "one width": (Y, MEAN, np.full(400, 45.0)),
    "right": (MEAN, MEAN, STD),
    "constant": (np.ones(9), np.ones(9), np.ones(9)),
    "negative": (-Y, -MEAN, STD),
    "tiny": (Y * 1e-12, MEAN * 1e-12, STD * 1e-12),
    "huge": (Y * 1e150, MEAN * 1e150, STD * 1e150),
}


@pytest.mark.parametrize("case", EXTREMES)
def test_pictures_of_extreme_data_are_drawn_without_warnings(case):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of an old matplotlib
        for display in draw_all(*EXTREMES[case]):
            display.figure_.canvas.draw()
            assert np.isfinite(display.ax_.get_ylim()).all()


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_names_and_units_are_text(name):
    for display in draw_all(Y, MEAN, STD, name=name) + [
        CoverageBySizeDisplay.from_predictions(Y, MEAN - STD, MEAN + STD, unit=name, label=name),
        IntervalsByWidthDisplay.from_predictions(Y, MEAN - STD, MEAN + STD, unit=name),
        RiskCoverageDisplay.from_predictions(Y, MEAN, STD, loss="squared_error", unit=name),
    ]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", DeprecationWarning)
            display.figure_.canvas.draw()


def test_given_axes_are_drawn_on_and_keep_their_title():
    figure, ax = plt.subplots()
    ax.set_title("mine")
    for display in draw_all(Y, MEAN, STD, ax=ax):
        assert display.ax_ is ax
    assert plt.get_fignums() == [figure.number]
    assert ax.get_title() == "mine"


# --- intervals ---------------------------------------------------------------------------


def test_intervals_are_sorted_by_width_with_the_values_they_hold():
    lower, upper = MEAN - 1.5 * STD, MEAN + 2 * STD
    display = IntervalsByWidthDisplay.from_predictions(Y, lower, upper, coverage=0.85, unit="EUR")
    assert (np.diff(display.upper - display.lower) >= -1e-6).all()
    rows = {tuple(row) for row in np.stack([display.y_true, display.lower, display.upper], axis=1)}
    assert rows == {tuple(row) for row in np.stack([Y, lower, upper], axis=1)}
    inside = (lower <= Y) & (upper >= Y)
    assert display.inside.mean() == inside.mean()
    assert legend_texts(display) == [
        f"interval (mean width {np.mean(upper - lower):.3g})",
        f"inside: {inside.mean():.1%} (85% asked)",
        f"outside: {(~inside).sum()} of 400",
    ]
    held, missed = (points.get_offsets().data for points in display.ax_.collections[-2:])
    np.testing.assert_allclose(
        held[:, 1], (display.y_true - (display.lower + display.upper) / 2)[display.inside]
    )
    assert len(missed) == (~inside).sum()
    assert display.ax_.get_ylabel() == "distance from the middle (EUR)"


def test_intervals_of_one_width_keep_the_order_of_the_rows_whatever_rounding_does():
    middle = np.random.default_rng(0).lognormal(5, 2, 200)
    display = IntervalsByWidthDisplay(middle, middle - 0.1, middle + 0.1)
    np.testing.assert_array_equal(display.y_true, middle)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_far_out_stands_at_the_edge_and_hides_nothing(sign):
    y_true = with_outlier(Y, value=sign * 1e6)
    display = IntervalsByWidthDisplay.from_predictions(y_true, MEAN - STD, MEAN + STD)
    assert "beyond the axis: 1" in legend_texts(display)
    assert display.ax_.get_ylim()[1] < 10 * STD.max()
    (edge,) = (
        points.get_offsets().data
        for points in display.ax_.collections
        if points.get_label().startswith("beyond")
    )
    assert edge[0, 1] == pytest.approx(sign * display.ax_.get_ylim()[1] / 1.05)


# --- coverage by size --------------------------------------------------------------------


@pytest.mark.parametrize("by", [None, MEAN, MEAN.round(-2)], ids=["middle", "prediction", "ties"])
@pytest.mark.parametrize("n_groups", [1, 4, 10])
def test_coverage_by_size_equals_a_loop_over_groups(by, n_groups):
    lower, upper = MEAN - 60, MEAN + 60
    display = CoverageBySizeDisplay(Y, lower, upper, by, n_groups=n_groups)
    size = MEAN if by is None else by
    assert display.count.sum() == 400
    assert len(display.count) == len(display.group_edges) - 1 <= n_groups
    if by is not None and len(np.unique(by)) == 400:
        assert np.ptp(display.count) <= 1
    ends = [*display.group_edges[:-1], np.inf]
    for k, (first, end) in enumerate(pairwise(ends)):
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
    assert legend_texts(display) == [
        "90% asked",
        "group of 40 rows",
        "significant deviation",
    ]
    off = (display.covered_high < 0.9) | (display.covered_low > 0.9)
    marked = next(line for line in display.ax_.lines if line.get_marker() == "D")
    np.testing.assert_array_equal(marked.get_xdata(), np.flatnonzero(off) + 0.5)
    assert off[-1]
    assert display.ax_.get_xlabel() == "prediction (EUR)"
    assert display.ax_.get_xticklabels()[-1].get_text() == f"{MEAN.max():.3g}"
    honest = CoverageBySizeDisplay.from_predictions(Y, MEAN - 1.645 * STD, MEAN + 1.645 * STD)
    assert legend_texts(honest) == ["90% asked", "group of 40 rows"]
    assert honest.ax_.get_xlabel() == "middle of the interval"


@pytest.mark.parametrize(("size", "turned"), [(1, False), (1e9, True)])
def test_ticks_that_would_overlap_are_turned(size, turned):
    display = CoverageBySizeDisplay.from_predictions(size * Y, -size * Y, size * Y, size * MEAN)
    ticks = display.ax_.get_xticklabels()
    assert (ticks[0].get_rotation() > 0) == turned
    display.figure_.canvas.draw()
    ends = [tick.get_window_extent() for tick in ticks]
    if not turned:
        assert all(one.x1 < other.x0 for one, other in pairwise(ends))


def test_open_intervals_have_a_coverage_but_no_middle():
    lower = np.full(400, -np.inf)
    display = CoverageBySizeDisplay(Y, lower, MEAN, MEAN, coverage=0.5)
    assert np.average(display.covered, weights=display.count) == pytest.approx((Y <= MEAN).mean())
    for refused in (
        lambda: CoverageBySizeDisplay(Y, lower, MEAN),
        lambda: IntervalsByWidthDisplay(Y, lower, MEAN),
    ):
        with pytest.raises(ValueError, match="`lower` must be finite to be drawn, got -inf in row"):
            refused()


# --- probability integral transform ------------------------------------------------------


def test_pit_of_gaussians_is_the_histogram_of_their_distribution_functions():
    display = PITDisplay.from_predictions(Y, MEAN, STD, n_bins=8)
    count, _ = np.histogram(norm.cdf(Y, MEAN, STD), np.arange(9) / 8)
    np.testing.assert_allclose(display.share, count / 400)
    np.testing.assert_array_equal(display.ax_.patches[-1].get_data().values, display.share)


def test_pit_of_quantiles_spreads_values_evenly_between_them():
    y_true = [0.0, 1.5, 2.0, 9.0]
    quantiles = [[1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [1.0, 2.0, 2.0], [1.0, 2.0, 3.0]]
    display = PITDisplay.from_quantiles(y_true, quantiles, [0.25, 0.5, 0.75], n_bins=4)
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
    rng = np.random.default_rng(0)
    left = 0
    for _ in range(400):
        values = rng.random(60)
        display = PITDisplay(values, values, n_bins=5)
        least, most = display.band
        left += ((display.share < least - 1e-12) | (display.share > most + 1e-12)).any()
    assert 0 < left < 400 * 0.05 + 3 * np.sqrt(400 * 0.05 * 0.95)


# --- risk and coverage -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "unit", "label"),
    [
        ("squared_error", None, "selective risk (mean squared error)"),
        ("squared_error", "EUR", "selective risk (mean squared error, EUR²)"),
        ("squared_error", "km/h", "selective risk (mean squared error, (km/h)²)"),
        ("absolute_error", "km/h", "selective risk (mean absolute error, km/h)"),
    ],
)
def test_risk_of_quantities_has_its_name_and_unit(loss, unit, label):
    display = RiskCoverageDisplay.from_predictions(Y, MEAN, STD, loss=loss, unit=unit)
    assert display.ax_.get_ylabel() == label
    name = loss.replace("_", " ")
    assert legend_texts(display)[0] == f"mean {name} if all are answered"
    expected = risk_coverage_curve(Y, MEAN, STD, loss=loss)
    for drawn, value in zip(display.curve, expected, strict=True):
        np.testing.assert_array_equal(drawn, value)
    assert display.area == area_under_risk_coverage(Y, MEAN, STD, loss=loss)


def test_small_risk_of_quantities_fills_the_axes():
    errors = Y * 1e-12, MEAN * 1e-12, STD
    display = RiskCoverageDisplay.from_predictions(*errors, loss="absolute_error")
    assert display.ax_.get_ylim()[1] < 3 * display.curve.risk.max()


# --- estimators --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    """Pipeline that predicts everything, inputs, and true values."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = X @ [3, 1, 0] + rng.normal(size=120)
    return make_pipeline(StandardScaler(), GaussianRidge()).fit(X, y), X, y


def test_displays_of_estimators_are_those_of_their_predictions(fitted):
    pipe, X, y = fitted
    model, inputs = pipe[-1], pipe[0].transform(X)
    mean, std = model.predict(inputs, return_std=True)
    limits, levels = model.predict_interval(inputs, 0.8), [0.2, 0.8]
    wide = {"coverage": 0.8, "unit": "m"}
    absolute = {"loss": "absolute_error", "unit": "m"}
    ranked = RiskCoverageDisplay.from_estimator(pipe, X, y, part="epistemic", **absolute)
    risk = RiskCoverageDisplay.from_predictions(y, mean, std, name="Pipeline", **absolute)
    assert ranked.area == pytest.approx(risk.area)
    assert legend_texts(ranked) == legend_texts(risk)
    assert ranked.ax_.get_ylabel() == risk.ax_.get_ylabel()
    pairs = [
        (
            IntervalsByWidthDisplay.from_estimator(pipe, X, y, **wide),
            IntervalsByWidthDisplay(y, *limits, name="Pipeline", **wide),
        ),
        (
            CoverageBySizeDisplay.from_estimator(pipe, X, y, n_groups=4, **wide),
            CoverageBySizeDisplay(y, *limits, mean, n_groups=4, name="Pipeline", **wide),
        ),
        (
            PITDisplay.from_estimator(pipe, X, y, n_bins=5, name="own"),
            PITDisplay.from_predictions(y, mean, std, n_bins=5, name="own"),
        ),
        (
            PITDisplay.from_estimator(pipe, X, y, levels=levels),
            PITDisplay.from_quantiles(
                y, model.predict_quantiles(inputs, levels), levels, name="Pipeline"
            ),
        ),
    ]
    for ours, direct in pairs:
        for attribute, value in vars(direct).items():
            if not attribute.endswith("_"):
                np.testing.assert_array_equal(getattr(ours, attribute), value)
        assert ours.ax_.get_title() == direct.plot().ax_.get_title() == ours.name


def test_an_estimator_without_the_method_is_named(fitted):
    _, X, y = fitted
    ridge = Ridge().fit(X, y)
    with pytest.raises(TypeError, match="Ridge has no `predict_interval`"):
        IntervalsByWidthDisplay.from_estimator(ridge, X, y)
    with pytest.raises(TypeError, match="Ridge has no `predict_interval`"):
        CoverageBySizeDisplay.from_estimator(ridge, X, y)
    with pytest.raises(TypeError, match=r"return_std=True\)`.*For predicted quantiles pass `lev"):
        PITDisplay.from_estimator(ridge, X, y)
    with pytest.raises(TypeError, match="Ridge has no `predict_quantiles`"):
        PITDisplay.from_estimator(ridge, X, y, levels=[0.5])


# --- refusals ----------------------------------------------------------------------------

LOW, HIGH = MEAN - STD, MEAN + STD


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IntervalsByWidthDisplay(Y, HIGH, LOW), "`lower` must be <= `upper`"),
        (lambda: IntervalsByWidthDisplay(Y, LOW, HIGH, coverage=90), "`coverage` must lie"),
        (
            lambda: IntervalsByWidthDisplay(Y, LOW, with_outlier(HIGH, 3, 1e301)),
            "`upper` must be at most",
        ),
        (lambda: CoverageBySizeDisplay(Y, LOW, HIGH, MEAN[:5]), "got 400, 5 rows"),
        (lambda: CoverageBySizeDisplay(Y, LOW, HIGH, coverage=1), "`coverage` must lie"),
        (lambda: CoverageBySizeDisplay(Y, LOW, HIGH, n_groups=0), "`n_groups` must be an integer"),
        (lambda: CoverageBySizeDisplay(Y, LOW, HIGH, n_groups=2.0), "`n_groups` must be an integ"),
        (lambda: PITDisplay([0.5], [0.4]), "0 <= low <= high <= 1"),
        (lambda: PITDisplay([0.5], [1.5]), "0 <= low <= high <= 1"),
        (lambda: PITDisplay([0.5], [0.5], n_bins=0), "`n_bins` must be from 1 to 10,000, got 0"),
        (lambda: PITDisplay.from_predictions(Y, MEAN, 0 * STD), "`std` must be > 0, got 0 in row"),
        (lambda: PITDisplay.from_quantiles(Y, MEAN[:, None], [0.1, 0.9]), "one column per level"),
        (lambda: RiskCoverageDisplay.from_predictions(Y, MEAN, STD), "loss='squared_error'"),
    ],
)
def test_wrong_values_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
