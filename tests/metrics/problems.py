"""Random predictions for the tests of the metrics."""

import numpy as np

SEEDS = range(3)


def random_problem(seed, n=400, n_classes=3):
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(np.ones(n_classes), size=n)
    drawn = (proba.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return np.where(rng.random(n) < 0.7, drawn, rng.integers(n_classes, size=n)), proba


def random_selection(seed, n=60, n_levels=7):
    rng = np.random.default_rng(seed)
    y_true, y_pred = rng.integers(3, size=(2, n))
    return y_true, y_pred, rng.integers(n_levels, size=n) / n_levels


def random_quantities(seed, n=60):
    """True values, and means and standard deviations that fit them, as money with its offset."""
    rng = np.random.default_rng(seed)
    mean, std = rng.normal(1000, 300, size=n), rng.exponential(50, size=n) + 5
    return rng.normal(mean, std), mean, std


def random_intervals(seed, n=60):
    y_true, mean, std = random_quantities(seed, n)
    return y_true, mean - std, mean + 1.5 * std
