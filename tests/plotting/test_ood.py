"""The picture of p-values against independent computation."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from skuq import OODDetector
from skuq.plotting import OODDisplay

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def blobs():
    """Fitted detector, inputs like the held-out ones, and others."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    X = pd.DataFrame(rng.normal(size=(600, 2)) + 4 * y[:, None], columns=["a", "b"])
    detector = OODDetector(LogisticRegression(), false_alarm_rate=0.1, random_state=0)
    detector.fit(X[:300], y[:300], X_held_out=X[300:500])
    return detector, X[500:], X[500:] + [9, -9]


def legend_texts(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def drawn_shares(display):
    """Heights of the filled bars, by group."""
    return [patch.get_data().values for patch in display.ax_.patches if patch.get_fill()]


@pytest.mark.parametrize("form", ["none", "table", "named"])
def test_the_display_of_a_detector_holds_its_p_values_and_what_it_flags(blobs, form):
    detector, X, X_ood = blobs
    others = {"none": None, "table": X_ood, "named": {"far": X_ood, "near": X + 0.1}}[form]
    display = OODDisplay.from_estimator(detector, X, others)
    expected = {"inputs": X} | {"none": {}, "table": {"OOD": X_ood}, "named": others}[form]
    assert list(display.groups) == list(expected)
    for name, rows in expected.items():
        np.testing.assert_array_equal(display.groups[name], detector.p_values(rows))
        assert display.flagged[name] == (detector.predict(rows) == -1).mean()
        assert f"{name}: {display.flagged[name]:.1%} flagged" in legend_texts(display)
    assert display.false_alarm_rate == 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display.figure_.canvas.draw()


@pytest.mark.parametrize("rate", [0.05, 0.001, 0.7, 0.999999])
def test_bars_beyond_the_limit_are_the_share_that_is_flagged(rate):
    n = 4999
    values = np.append(np.random.default_rng(0).integers(1, n + 2, 800) / (n + 1), [rate, 1.0])
    display = OODDisplay.from_predictions({"all": values}, false_alarm_rate=rate)
    (share,) = drawn_shares(display)
    limit = -np.log10(rate)
    assert np.isclose(display.bin_edges, limit).sum() == 1
    beyond = display.bin_edges[:-1] > limit * (1 - 1e-9)
    assert share[beyond].sum() == pytest.approx((values <= rate).mean()) == display.flagged["all"]
    assert share.sum() == pytest.approx(1)
    assert len(display.bin_edges) < 500


def test_ticks_are_p_values():
    display = OODDisplay.from_predictions({"all": [1.0, 0.001]})
    ticks = zip(display.ax_.get_xticks(), display.ax_.get_xticklabels(), strict=True)
    assert [(place, text.get_text()) for place, text in ticks] == [
        (0, "1"),
        (1, "0.1"),
        (2, "0.01"),
        (3, "0.001"),
    ]


def test_the_picture_is_drawn_on_given_axes_and_takes_names_as_text():
    _, ax = plt.subplots()
    display = OODDisplay.from_predictions({r"_$\frac{$": [0.5]}, ax=ax)
    assert display.ax_ is ax
    assert len(legend_texts(display)) == 2
    display.figure_.canvas.draw()


@pytest.mark.parametrize(
    ("groups", "rate", "message"),
    [
        ({"a": [0.0, 0.5]}, 0.05, r"`a` must contain p-values in \(0, 1\], got values in \[0, 0.5"),
        ({"a": [1.5]}, 0.05, r"got values in \[1.5, 1.5\]"),
        ({"a": [np.nan]}, 0.05, "`a` must be finite"),
        ({"a": [0.5]}, 1.0, "`false_alarm_rate` must lie strictly between 0 and 1, got 1.0"),
        ({}, 0.05, "at least one group"),
    ],
)
def test_wrong_values_are_named(groups, rate, message):
    with pytest.raises(ValueError, match=message):
        OODDisplay(groups, false_alarm_rate=rate)
