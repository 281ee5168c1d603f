"""Conformal limits, sets and intervals: against MAPIE, by brute force, and by their guarantee."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from skuq.calibration import conformal_limit
from skuq.residuals import interval_scores, stretched
from skuq.tables import coverage_notes
from skuq.tables._held_out import prediction_sets


class GivenProba(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose inputs are its probabilities."""

    def fit(self, X=None, y=None):
        self.classes_, self.n_features_in_ = np.arange(3), 3
        return self

    def predict_proba(self, X):
        return np.asarray(X)

    def predict(self, X):
        return self.predict_proba(X).argmax(axis=1)


class GivenMean(RegressorMixin, BaseEstimator):
    """A fitted regressor whose input is its prediction."""

    def fit(self, X=None, y=None):
        self.n_features_in_ = 1
        return self

    def predict(self, X):
        return np.asarray(X)[:, 0]


def drawn(n, seed):
    """Probabilities, and labels drawn from them."""
    random = np.random.default_rng(seed)
    proba = random.dirichlet([0.6, 0.8, 1.0], size=n)
    return proba, np.array([random.choice(3, p=p) for p in proba])


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.97])
def test_sets_are_those_of_mapie(coverage):
    mapie = pytest.importorskip("mapie.classification")
    (proba, y), (new, _) = drawn(150, 0), drawn(60, 1)
    scores = 1 - proba[np.arange(len(y)), y]
    ours = prediction_sets(new, conformal_limit(scores, coverage))
    peer = mapie.SplitConformalClassifier(
        GivenProba().fit(), confidence_level=coverage, conformity_score="lac", prefit=True
    )
    theirs = peer.conformalize(proba, y).predict_set(new)[1][:, :, 0]
    some = theirs.any(axis=1)  # ours are never empty
    np.testing.assert_array_equal(ours[some], theirs[some])
    assert (ours[~some].sum(axis=1) == 1).all()


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_intervals_are_those_of_mapie(coverage):
    mapie = pytest.importorskip("mapie.regression")
    random = np.random.default_rng(0)
    predicted = random.normal(size=120)
    y, new = predicted + random.standard_t(3, size=120), random.normal(size=(20, 1))
    scores = interval_scores(y, predicted - 0.5, predicted + 0.5)
    ours = stretched(new - 0.5, new + 0.5, conformal_limit(scores, coverage))
    peer = mapie.SplitConformalRegressor(GivenMean().fit(), confidence_level=coverage, prefit=True)
    _, intervals = peer.conformalize(predicted[:, None], y).predict_interval(new)
    np.testing.assert_allclose(intervals[:, :, 0], np.hstack(ours))


def test_limits_cover_on_average_what_they_promise():
    random, covered = np.random.default_rng(0), []
    for _ in range(300):
        scores, new = random.exponential(size=(2, 40))
        covered.append((new <= conformal_limit(scores, 0.8)).mean())
    error = np.std(covered) / np.sqrt(len(covered))
    # At least 80 %, and more by less than one of 41.
    assert 0.8 - 3 * error <= np.mean(covered) <= 0.8 + 1 / 41 + 3 * error


@pytest.mark.parametrize(("coverage", "fewest"), [(0.9, 9), (0.99, 99), (0.8, 4), (0.5, 1)])
def test_too_few_rows_bound_nothing_and_this_is_said(coverage, fewest):
    assert conformal_limit(np.arange(float(fewest)), coverage) == fewest - 1
    assert conformal_limit(np.arange(fewest - 1.0), coverage) == np.inf
    assert coverage_notes(fewest, coverage) == []
    (note,) = coverage_notes(fewest - 1, coverage)
    rows = "1 held-out row" if fewest == 1 else f"{fewest} held-out rows"
    assert f"{coverage} needs at least {rows}, but there are {fewest - 1}:" in note
