"""Makers of one display of each kind, and what is read off displays."""

import warnings
from functools import partial

import numpy as np
from scipy.stats import norm

from skuq import CalibrationAuditor, plotting

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
    rng = np.random.default_rng(seed)
    mean = rng.lognormal(5, 0.6, n)
    return rng.normal(mean, 0.25 * mean), mean, 0.25 * mean


Y, MEAN, STD = quantities(60)
LEVELS = [0.05, 0.5, 0.9]


def makes(kind, *given, way="from_predictions", **settings):
    return partial(getattr(getattr(plotting, f"{kind}Display"), way), *given, **settings)


def gaussians(y_true=Y, mean=MEAN, std=STD):
    intervals = y_true, mean - 1.645 * std, mean + 1.645 * std
    quantiles = mean[:, None] + std[:, None] * norm.ppf(LEVELS)
    return {
        "width": makes("IntervalsByWidth", *intervals),
        "size": makes("CoverageBySize", *intervals),
        "size by": makes("CoverageBySize", *intervals, mean),
        "PIT": makes("PIT", y_true, mean, std),
        "quantiles": makes("PIT", y_true, quantiles, LEVELS, way="from_quantiles"),
        "squares": makes("RiskCoverage", y_true, mean, std, loss="squared_error"),
        "absolute": makes("RiskCoverage", y_true, mean, std, loss="absolute_error"),
    }


AUDIT, GRID = audit_of(True), np.meshgrid(np.arange(3.0), np.arange(2.0))
BOUNDS = np.array([[0.8, 0.4], [0.9, 0.6], [0.9, 0.9], [0.9, 1.0]])


def every_kind(name="a name"):
    """Makers of one display of each kind, with this name in all its texts."""
    intervals, two = (Y, MEAN - STD, MEAN + STD), {name: [0.5, 0.6], "other": [0.3]}
    points = {"X": np.eye(2), "y": [name, "other"], "feature_names": (name, "other")}
    return {
        **{kind: partial(make, name=name) for kind, make in gaussians().items()},
        "width, unit": makes("IntervalsByWidth", *intervals, unit=name),
        "size, unit": makes("CoverageBySize", *intervals, label=name, unit=name),
        "labels": makes("RiskCoverage", [0, 1], [0, 0], [0.1, 0.2], name=name),
        "histogram": makes("UncertaintyHistogram", two, label=name, unit=name),
        "density": makes("ConfidenceDensity", two),
        "OOD": makes("OOD", two),
        "reliability": makes("Reliability", [0, 1], TWO, name=name),
        "audit": makes("CalibrationAudit", AUDIT.bins_, 0.05, name=name),
        "map": makes("UncertaintyMap", *GRID, GRID[0], label=name, unit=name, **points),
        "range": makes("CertifiedRange", [0, 1], *BOUNDS, name=name),
    }


def legend_texts(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def drawn_shares(display):
    patches = [patch for patch in display.ax_.patches if not patch.get_fill()]
    return np.array([patch.get_data().values for patch in patches])


def draw_without_warnings(display):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of an old matplotlib
        display.figure_.draw_without_rendering()
