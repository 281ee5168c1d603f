"""Thresholds for honest models, against audits of fresh draws from their predictions."""

import numpy as np
import pytest

from skuq import CalibrationAuditor
from skuq.calibration import (
    _bin_audit,
    _conditions,
    choose_alpha,
    search_regions,
    top_label_predictions,
)


def recorded(n, wrong_by=0.0):
    """Labels and probabilities; confidence is `wrong_by` lower than accuracy, at least 0.5."""
    rng = np.random.default_rng(0)
    accuracy = rng.uniform(0.5, 1, n)
    y = (rng.random(n) > accuracy).astype(int)
    confidence = np.clip(accuracy - wrong_by, 0.5, 1)
    return y, np.column_stack([confidence, 1 - confidence])


def redrawn(y, proba, size, repeats):
    rng = np.random.default_rng(1)
    for _ in range(repeats):
        rows = rng.integers(len(y), size=size)
        yield y[rows], proba[rows]


def audits(y, proba, size, repeats, **params):
    for labels, reported in redrawn(y, proba, size, repeats):
        yield CalibrationAuditor.from_predictions(labels, reported, classes=[0, 1], **params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong_by", "size", "level"), [(0.0, 300, 0.95), (0.1, 1000, 0.8), (-0.1, 300, 0.95)]
)
def test_with_the_tolerance_fresh_draws_pass_as_often_as_asked_for(wrong_by, size, level):
    y, proba = recorded(2000, wrong_by)
    study = choose_alpha(
        y, proba, reference_size=size, confidence_level=level, n_bins=5, random_state=0
    )
    repeats, params = 70, {"n_bins": 5, "confidence_level": level}
    fresh = audits(y, proba, size, repeats, alpha=study.tolerance, **params)
    passed = np.mean([audit.passed_ for audit in fresh])
    # Errors of the draws of the study, 200, and of these.
    error = np.sqrt(level * (1 - level) * (1 / 200 + 1 / repeats))
    assert passed >= level - 3.5 * error
    if study.tolerance > 0.02:  # it is no larger than needed
        less = audits(y, proba, size, repeats, alpha=study.tolerance - 0.02, **params)
        assert np.mean([audit.passed_ for audit in less]) < passed


def test_the_tolerance_of_a_wrong_model_is_about_what_it_is_wrong_by():
    honest, wrong = (
        choose_alpha(*recorded(20_000, w), n_bins=5, n_repeats=50, random_state=0)
        for w in (0.0, 0.1)
    )
    assert honest.tolerance < 0.02
    assert 0.05 < wrong.tolerance < 0.13


def test_the_size_is_by_default_that_of_the_predictions_and_the_seed_decides():
    y, proba = recorded(400)
    one = choose_alpha(y, proba, n_bins=5, n_repeats=20, random_state=3)
    assert one == choose_alpha(y, proba, n_bins=5, n_repeats=20, reference_size=400, random_state=3)
    assert one == choose_alpha(
        y, proba, n_bins=5, n_repeats=20, random_state=np.random.RandomState(3)
    )
    assert one != choose_alpha(y, proba, n_bins=5, n_repeats=20, random_state=4)


def test_a_level_that_few_simulations_cannot_resolve_needs_a_tolerance_too():
    y, proba = recorded(3000, 0.15)
    usual, high = (
        choose_alpha(
            y, proba, confidence_level=level, n_bins=5, n_repeats=50, random_state=0
        ).tolerance
        for level in (0.95, 0.999)
    )
    assert high > usual / 2 > 0.02


def test_a_level_that_few_simulations_cannot_resolve_is_that_of_the_bound():
    n, confidence = 50, 0.7
    proba = np.tile([confidence, 1 - confidence], (n, 1))
    study = choose_alpha(  # all draws are the same
        np.zeros(n),
        proba,
        classes=[0, 1],
        n_bins=1,
        confidence_level=0.999,
        n_repeats=30,
        random_state=0,
    )
    # n correct of n are evidence of -n log(confidence + alpha), in one run.
    expected = (0.8 * 0.001) ** (1 / n) - confidence
    assert study.tolerance == pytest.approx(expected, abs=1e-3)


def test_classes_are_the_columns():
    y, proba = recorded(500)
    names = np.array(["z", "a"])
    ours = choose_alpha(names[y], proba, classes=names, n_bins=5, n_repeats=20, random_state=0)
    assert ours == choose_alpha(y, proba, n_bins=5, n_repeats=20, random_state=0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"proba": np.full((20, 2), 0.4)}, "must sum to 1"),
        ({"y": [0, 7] * 10, "classes": [0, 1]}, r"not among the classes: \[7\]"),
    ],
)
def test_malformed_predictions_are_refused(changes, match):
    given = {"y": [0, 1] * 10, "proba": [[0.6, 0.4]] * 20, **changes}
    with pytest.raises(ValueError, match=match):
        choose_alpha(**given)


@pytest.mark.parametrize(("n", "size"), [(300, 30), (300, 300), (40, 300)])
@pytest.mark.parametrize(("samples", "cells", "most"), [(50, 10**6, 50), (10**6, 120, 60)])
def test_of_large_reference_sets_as_many_samples_are_drawn_as_are_searched(
    monkeypatch, n, size, samples, cells, most
):
    monkeypatch.setattr(_conditions, "MAX_SAMPLES", samples)
    monkeypatch.setattr(_conditions, "MAX_CELLS", cells)
    drawn = []
    monkeypatch.setattr(
        _bin_audit, "region_tolerance", lambda draws, level: drawn.extend(draws) or 0.1
    )
    y, proba = recorded(n)
    X = np.random.default_rng(0).normal(size=(n, 2))
    choose_alpha(y, proba, X=X, reference_size=size, n_repeats=3, random_state=0)
    assert len(drawn) == 3
    for conditions, predictions in drawn:
        assert len(predictions.confidence) == conditions.masks.shape[1] == min(size, most)


@pytest.mark.slow
def test_with_the_tolerance_of_regions_the_search_passes_fresh_draws():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, (6000, 2))
    confidence = rng.uniform(0.6, 0.8, 6000)
    truth = confidence + 0.15 * (X[:, 0] == 3)
    y = (rng.random(6000) > truth).astype(int)
    proba = np.column_stack([confidence, 1 - confidence])
    study = choose_alpha(y, proba, X=X, reference_size=600, n_repeats=30, random_state=0)
    assert 0.03 < study.region_tolerance < 0.2
    honest = choose_alpha(
        (rng.random(6000) > confidence).astype(int),
        proba,
        X=X,
        reference_size=600,
        n_repeats=30,
        random_state=0,
    )
    assert honest.region_tolerance < 0.03
    rates = {}
    for tolerance in (study.region_tolerance, 0.0):
        passed = []
        for k in range(20):
            rows = np.random.default_rng(k).integers(6000, size=600)
            answers = top_label_predictions(y[rows], proba[rows], classes=[0, 1])
            found = search_regions(X[rows], answers, alpha=tolerance, n_families=2)
            passed.append(not found.regions)
        rates[tolerance] = np.mean(passed)
    assert rates[study.region_tolerance] >= 0.85
    assert rates[0.0] < 0.85
    assert choose_alpha(y, proba, n_repeats=2, random_state=0).region_tolerance is None
