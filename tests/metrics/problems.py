"""Random predictions, and models, for the tests of the metrics."""

import numpy as np
from scipy.stats import norm
from sklearn.datasets import make_classification
from sklearn.linear_model import BayesianRidge, LogisticRegression

from skuq import Uncertainty

SEEDS = range(3)


def random_problem(seed, n=400, n_classes=3):
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(np.ones(n_classes), size=n)
    drawn = (proba.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return np.where(rng.random(n) < 0.7, drawn, rng.integers(n_classes, size=n)), proba


def random_selection(seed, n=60, n_levels=7):
    rng = np.random.default_rng(seed)
    return *rng.integers(3, size=(2, n)), rng.integers(n_levels, size=n) / n_levels


def random_quantities(seed, n=60):
    rng = np.random.default_rng(seed)
    mean, std = rng.normal(1000, 300, size=n), rng.exponential(50, size=n) + 5
    return rng.normal(mean, std), mean, std


def random_intervals(seed, n=60):
    y_true, mean, std = random_quantities(seed, n)
    return y_true, mean - std, mean + 1.5 * std


def noisy_problem():
    shape = {"n_features": 4, "n_classes": 3, "n_informative": 3, "n_redundant": 0}
    return make_classification(150, flip_y=0.2, random_state=0, **shape)


class EntropicLogisticRegression(LogisticRegression):
    """Toy plugin: the entropy of the prediction, a quarter of it called epistemic."""

    def predict_uncertainty(self, X):
        proba = self.predict_proba(X)
        entropy = -(proba * np.log(np.clip(proba, 1e-300, 1.0))).sum(axis=1)
        return Uncertainty.from_parts(0.75 * entropy, 0.25 * entropy)


class GaussianRidge(BayesianRidge):
    def predict_quantiles(self, X, levels):
        mean, std = self.predict(X, return_std=True)
        return mean[:, None] + std[:, None] * norm.ppf(levels)

    def predict_interval(self, X, coverage=0.9):
        return tuple(self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2]).T)

    def predict_uncertainty(self, X):
        _, std = self.predict(X, return_std=True)
        return Uncertainty.from_parts(0 * std, std**2)
