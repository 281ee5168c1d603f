"""A model that reports what it is told to, and what the tests of its audits share."""

import math

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from skuq import CalibrationAuditor
from skuq.calibration import BinSums

NUMBERS = ["passed_", "within_tolerance_", "bins_", "group_bins_", "sums_", "group_sums_", "ece_"]
NUMBERS += ["mce_", "ece_interval_", "ece_chance_", "n_families_", "n_samples_", "accuracy_"]
NUMBERS += ["confidence_"]


class Reporter(ClassifierMixin, BaseEstimator):
    """Predicts class 0, with the confidence that column 0 of `X` says."""

    def fit(self, X, y):
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, X):
        return np.column_stack([X[:, 0], 1 - X[:, 0]])


def reports(*blocks):
    """Inputs and labels: blocks of (number, confidence, number correct), correct ones first."""
    X = np.concatenate([np.full((n, 1), confidence) for n, confidence, _ in blocks])
    y = np.concatenate([np.arange(n) >= correct for n, _, correct in blocks]).astype(int)
    return X, y


def audit_of(*blocks, **params):
    return CalibrationAuditor(Reporter().fit(None, None), **params).fit(*reports(*blocks))


def assert_same_numbers(ours, expected, names=NUMBERS):
    for name in names:
        np.testing.assert_equal(getattr(ours, name), getattr(expected, name), err_msg=name)


def slow_ece(confidence, correct, n_bins=10):
    gaps = [0.0] * n_bins
    for p, c in zip(confidence, correct, strict=True):
        gaps[min(int(p * n_bins), n_bins - 1)] += c - p
    return sum(map(abs, gaps)) / len(confidence)


def drawn_audit(shift=0.0, n=1500, groups=None, **params):
    """Audit of labels drawn from probabilities; every third confidence is 0.55 for a lie. A
    positive shift lowers, a negative one raises the confidence of all others."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, n)
    y = (rng.random(n) > confidence).astype(int)
    if shift == "third":
        confidence[::3] = 0.55
    else:
        confidence = np.clip(confidence - shift, 0.5, 1)
    if groups is None:
        groups = {"half": np.arange(n) % 2}
    return CalibrationAuditor.from_predictions(
        y, np.column_stack([confidence, 1 - confidence]), sensitive_features=groups, **params
    )


def one_bin_each(count, correct, confidence, scale=1000):
    """Bins with given counts and mean confidences, these in units of ``1 / scale``."""
    count, correct, confidence = np.broadcast_arrays(count, correct, confidence)
    edges = np.linspace(0, scale, len(count) + 1).astype(int)
    return BinSums(edges, count, correct, np.rint(count * confidence).astype(int), scale)


def slow_evidence(k, n, edge, sign=1):
    """``n KL(k / n || edge)`` where k / n is beyond the edge, term by term."""
    if n == 0 or sign * (k / n - edge) <= 1e-12:
        return 0.0
    right = k * math.log(k / (n * edge)) if k else 0.0
    wrong = (n - k) * math.log((n - k) / (n * (1 - edge))) if k < n else 0.0
    return right + wrong
