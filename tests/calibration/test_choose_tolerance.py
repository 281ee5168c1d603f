"""Thresholds for honest models, against audits of fresh draws from their predictions."""

import numpy as np
import pytest

from skuq import calibration
from skuq.calibration import _bin_audit, _conditions, choose_tolerance, top_label_predictions

FIVE = {"n_bins": 5, "random_state": 0}


def recorded(n, wrong_by=0.0):
    """Labels and probabilities; confidence is `wrong_by` lower than accuracy, at least 0.5."""
    rng = np.random.default_rng(0)
    accuracy = rng.uniform(0.5, 1, n)
    y = (rng.random(n) > accuracy).astype(int)
    confidence = np.clip(accuracy - wrong_by, 0.5, 1)
    return y, np.column_stack([confidence, 1 - confidence])


def share_passed(y, proba, size, level, tolerance):
    rng, answers = np.random.default_rng(1), top_label_predictions(y, proba, classes=[0, 1])
    edges = calibration.bin_edges(answers.confidence, 5, "uniform")
    drawn = (answers.at(rng.integers(len(y), size=size)) for _ in range(50))
    sums = (calibration.bin_sums(each, edges) for each in drawn)
    scans = (calibration.scan_bins(each, tolerance=tolerance, level=1 - level) for each in sums)
    return np.mean([not scan.findings for scan in scans])


@pytest.mark.parametrize(("wrong_by", "size", "level"), [(0.0, 300, 0.95), (0.1, 600, 0.8)])
def test_with_the_tolerance_fresh_draws_pass_as_often_as_asked_for(
    monkeypatch, wrong_by, size, level
):
    # Tests keep their level with any number of simulations.
    monkeypatch.setattr("skuq.calibration._scan.N_SIMULATIONS", 500)
    y, proba = recorded(2000, wrong_by)
    given = {"reference_size": size, "confidence_level": level, "n_repeats": 100, **FIVE}
    study = choose_tolerance(y, proba, **given)
    passed = share_passed(y, proba, size, level, study.tolerance)
    # Errors of the draws of the study, 100, and of these.
    assert passed >= level - 3.5 * np.sqrt(level * (1 - level) * (1 / 100 + 1 / 50))
    if study.tolerance > 0.02:  # it is no larger than needed
        assert share_passed(y, proba, size, level, study.tolerance - 0.03) < passed
    assert study.region_tolerance is None


def test_the_size_is_that_of_the_predictions_the_seed_decides_and_classes_are_the_columns():
    y, proba = recorded(400, 0.1)
    names = np.array(["z", "a"])

    def study(seed, labels=y, **settings):
        return choose_tolerance(
            labels, proba, n_bins=5, n_repeats=10, random_state=seed, **settings
        )

    one = study(3)
    assert one == study(3, reference_size=400) == study(np.random.RandomState(3))
    assert one == study(3, names[y], classes=names)
    assert one != study(4)


def test_a_level_that_few_simulations_cannot_resolve_is_that_of_the_bound():
    # All draws are the same: 50 correct ones of 50, in one bin, are evidence of
    # -50 log(0.7 + tolerance), in one run.
    settings = {"classes": [0, 1], "confidence_level": 0.999, "n_repeats": 30}
    study = choose_tolerance(np.zeros(50), [[0.7, 0.3]] * 50, n_bins=1, random_state=0, **settings)
    assert study.tolerance == pytest.approx((0.8 * 0.5 * 0.001) ** (1 / 50) - 0.7, abs=1e-3)


@pytest.mark.parametrize(("n", "size"), [(300, 30), (300, 300), (40, 300)])
@pytest.mark.parametrize(("samples", "cells", "most"), [(50, 10**6, 50), (10**6, 120, 60)])
def test_of_large_reference_sets_as_many_samples_are_drawn_as_are_searched(
    monkeypatch, n, size, samples, cells, most
):
    monkeypatch.setattr(_conditions, "MAX_SAMPLES", samples)
    monkeypatch.setattr(_conditions, "MAX_CELLS", cells)
    searched = []
    monkeypatch.setattr(_bin_audit, "region_tolerance", lambda *given: searched.append(given))
    X = np.random.default_rng(0).uniform(0.5, 1, (n, 2)).round(3)
    given = {"reference_size": size, "n_repeats": 3, "confidence_level": 0.8, "random_state": 0}
    proba = np.column_stack([X[:, 0], 1 - X[:, 0]])
    choose_tolerance(np.arange(n) % 2, proba, X=X, **given)
    ((drawn, level),) = searched
    assert (len(drawn), level) == (3, 0.8)
    for conditions, predictions in drawn:
        confidence = predictions.confidence[:, None] / 10**9
        assert len(confidence) == conditions.masks.shape[1] == min(size, most)
        for (column, rule), mask in zip(conditions.rules, conditions.masks, strict=True):
            if column == 0:  # which is the confidence
                expected = calibration.region_mask({0: rule}, confidence)
                np.testing.assert_array_equal(mask, expected)
