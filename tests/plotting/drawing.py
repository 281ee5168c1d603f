"""Makers of one display of each kind, and what is read off displays."""

import warnings

import numpy as np
from scipy.stats import norm

from skuq import CalibrationAuditor
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

STRANGE = "_$\\frac{$ \n\x1b %" + 200 * "x"
TWO = [[0.75, 0.25], [0.25, 0.75]]


def audit_of(lowered, n=900, **params):
    """Audit of labels drawn from probabilities, of which every third is reported too low."""
    rng = np.random.default_rng(0)
    second = rng.random(n)
    y = (rng.random(n) < second).astype(int)
    if lowered:
        second[::3] = np.where(second[::3] > 0.5, 0.55, 0.45)
    half = {"half": np.arange(n) % 2}
    proba = np.column_stack([1 - second, second])
    return CalibrationAuditor.from_predictions(y, proba, sensitive_features=half, **params)


def quantities(n=400, seed=0):
    """True values, and means and standard deviations that fit them."""
    rng = np.random.default_rng(seed)
    mean = rng.lognormal(5, 0.6, n)
    return rng.normal(mean, 0.25 * mean), mean, 0.25 * mean


Y, MEAN, STD = quantities(60)
LEVELS = [0.05, 0.5, 0.9]


def gaussians(y_true=Y, mean=MEAN, std=STD):
    """Makers of displays of Gaussian predictions: functions of axes and of a name."""
    limits = mean - 1.645 * std, mean + 1.645 * std
    quantiles = mean[:, None] + std[:, None] * norm.ppf(LEVELS)
    values, squares, absolute = (y_true, mean, std), "squared_error", "absolute_error"
    risk = RiskCoverageDisplay.from_predictions
    return {
        "width": lambda **s: IntervalsByWidthDisplay.from_predictions(y_true, *limits, **s),
        "size": lambda **s: CoverageBySizeDisplay.from_predictions(y_true, *limits, **s),
        "size by": lambda **s: CoverageBySizeDisplay.from_predictions(y_true, *limits, mean, **s),
        "PIT": lambda **s: PITDisplay.from_predictions(*values, **s),
        "quantiles": lambda **s: PITDisplay.from_quantiles(y_true, quantiles, LEVELS, **s),
        "squares": lambda **s: risk(*values, loss=squares, **s),
        "absolute": lambda **s: risk(*values, loss=absolute, **s),
    }


AUDIT, GRID = audit_of(True), np.meshgrid(np.arange(3.0), np.arange(2.0))
BOUNDS = np.array([[0.8, 0.4], [0.9, 0.6], [0.9, 0.9], [0.9, 1.0]])


def every_kind(name="a name"):
    """Makers of one display of each kind, with this name in all its texts; functions of axes."""
    limits, points = (MEAN - STD, MEAN + STD), {"X": np.eye(2), "y": [name, "other"]}
    named, unit, two = {"name": name}, {"unit": name}, {name: [0.5, 0.6], "other": [0.3]}
    names = {"label": name, "feature_names": (name, "other"), **unit, **points}
    size = CoverageBySizeDisplay.from_predictions
    width = IntervalsByWidthDisplay.from_predictions
    maps = UncertaintyMapDisplay.from_predictions
    histogram = UncertaintyHistogramDisplay.from_predictions
    ranges = CertifiedRangeDisplay.from_predictions
    audits = CalibrationAuditDisplay.from_predictions
    return {
        **{k: lambda make=make, **s: make(**named, **s) for k, make in gaussians().items()},
        "width, unit": lambda **s: width(Y, *limits, **unit, **s),
        "size, unit": lambda **s: size(Y, *limits, label=name, **unit, **s),
        "labels": lambda **s: RiskCoverageDisplay.from_predictions(
            [0, 1], [0, 0], [0.1, 0.2], **named, **s
        ),
        "histogram": lambda **s: histogram(two, label=name, **unit, **s),
        "density": lambda **s: ConfidenceDensityDisplay.from_predictions(two, **s),
        "OOD": lambda **s: OODDisplay.from_predictions(two, **s),
        "reliability": lambda **s: ReliabilityDisplay.from_predictions([0, 1], TWO, **named, **s),
        "audit": lambda **s: audits(AUDIT.bins_, 0.05, **named, **s),
        "map": lambda **s: maps(*GRID, GRID[0], **names, **s),
        "range": lambda **s: ranges([0, 1], *BOUNDS, **named, **s),
    }


def legend_texts(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def drawn_shares(display):
    """Heights of the outlines, one row per group."""
    patches = [patch for patch in display.ax_.patches if not patch.get_fill()]
    return np.array([patch.get_data().values for patch in patches])


def draw_without_warnings(display):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of an old matplotlib
        display.figure_.draw_without_rendering()
