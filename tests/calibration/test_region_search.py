"""The search for regions: what it finds, where, and how rarely by chance."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from skuq.calibration import (
    Conditions,
    TopLabelPredictions,
    conditions_of,
    region_mask,
    search_regions,
)
from skuq.calibration._region_search import Region, region_tolerance
from tests.reporter import slow_evidence


def predictions(confidence, correct):
    return TopLabelPredictions(
        np.rint(np.asarray(confidence) * 1e9).astype(np.int32), np.asarray(correct, bool)
    )


def people(n, rng):
    return pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "job": rng.choice(["nurse", "cook", "clerk", None], n),
            "income": rng.lognormal(size=n),
        }
    )


def attacked(n=1500, seed=0, lowered=0.57):
    """Calibrated predictions, whose confidence was changed for nurses from 50 years on."""
    rng = np.random.default_rng(seed)
    X = people(n, rng)
    confidence = rng.uniform(0.8, 1, n)
    correct = rng.random(n) < confidence
    inside = ((X["job"] == "nurse") & (X["age"] >= 50)).to_numpy()
    confidence[inside] = lowered
    return X, confidence, correct, inside


def test_a_planted_region_is_found_and_described():
    X, confidence, correct, inside = attacked()
    found = search_regions(X, predictions(confidence, correct), alpha=0.05)
    region = found.regions[0]
    assert region.direction == "underconfident"
    assert region.p_value < 0.001
    mine = region_mask(region.conditions, X) if region.conditions else np.ones(len(X), bool)
    low, high = region.confidence_range
    mine &= (low <= confidence) & (confidence <= high)
    assert (mine & inside).sum() / (mine | inside).sum() > 0.9
    assert region.count == mine.sum()
    assert region.accuracy == correct[mine].mean()
    assert region.confidence == pytest.approx(confidence[mine].mean())
    assert region.gap == pytest.approx(region.accuracy - region.confidence)
    assert 0.05 < region.gap_low < region.gap < region.gap_high
    assert "job = nurse" in region.rule or "confidence in %" in region.rule
    assert found.n_samples == 1500


def test_raised_confidence_is_found_too():
    X, confidence, _, inside = attacked()
    rng = np.random.default_rng(1)
    correct = rng.random(len(X)) < np.where(inside, 0.5, np.where(inside, 0.95, confidence))
    confidence[inside] = 0.95
    (region, *_) = search_regions(X, predictions(confidence, correct), alpha=0.05).regions
    assert region.direction == "overconfident"
    assert region.gap_high < -0.05


@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_the_evidence_is_the_largest_of_all_pairs_of_conditions(alpha):
    X, confidence, correct, _ = attacked(120)
    X = X[["age", "job"]]
    (region, *_) = search_regions(
        X, predictions(confidence, correct), alpha=alpha, confidence_level=0.01
    ).regions
    masks = [*conditions_of(X).masks]
    reported = [*conditions_of(confidence[:, None]).masks]
    pairs = [*itertools.combinations_with_replacement(masks, 2)]
    pairs += [*itertools.product(masks, reported)]
    edge, evidence = np.minimum(confidence + alpha, 1), 0.0
    for one, other in pairs:
        both = one & other
        if both.sum() >= 10:
            value = slow_evidence(correct[both].sum(), both.sum(), edge[both].mean())
            evidence = max(evidence, value)
    assert region.direction == "underconfident"
    assert region.evidence == pytest.approx(evidence)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 0.05])
def test_models_at_the_edge_of_the_tolerance_are_found_no_more_often_than_allowed(alpha):
    rng = np.random.default_rng(0)
    times, level, found = 60, 0.2, 0
    for _ in range(times):
        X = people(100, rng)
        confidence = rng.uniform(0.5, 1, 100)
        correct = rng.random(100) < np.minimum(confidence + alpha, 1)
        answers = predictions(confidence, correct)
        found += bool(search_regions(X, answers, alpha=alpha, confidence_level=1 - level).regions)
    assert found / times <= level + 2 * np.sqrt(level * (1 - level) / times)


def test_more_families_leave_less_error_and_correct_the_p_value():
    X, confidence, correct, _ = attacked()
    one, many = (
        search_regions(X, predictions(confidence, correct), alpha=0.05, n_families=k)
        for k in (1, 10)
    )
    assert many.threshold >= one.threshold
    first, second = one.regions[0], many.regions[0]
    assert second.p_value == pytest.approx(10 * first.p_value)
    assert second.gap_low < first.gap_low


@pytest.mark.parametrize("side", [1, -1])
def test_with_the_tolerance_of_some_reference_sets_the_search_passes_the_wanted_share(side):
    rng, draws, level = np.random.default_rng(0), [], 0.6
    for _ in range(10):
        X = rng.integers(0, 4, (300, 2))
        confidence = rng.uniform(0.6, 0.8, 300)
        correct = rng.random(300) < confidence + 0.2 * side * (X[:, 0] == 3)
        draws.append((conditions_of(X), predictions(confidence, correct)))
    tolerance = region_tolerance(draws, level)
    assert 0.02 < tolerance < region_tolerance(draws, 0.95) < 0.25

    def share_passed(alpha):
        found = (
            search_regions(*draw, alpha=alpha, confidence_level=level, n_families=2)
            for draw in draws
        )
        return np.mean([not each.regions for each in found])

    # Thresholds are those of five of the sets on average.
    assert share_passed(tolerance - 0.03) < level <= share_passed(tolerance + 0.015)


def test_regions_have_no_common_samples():
    X, confidence, correct, _ = attacked(3000)
    others = ((X["job"] == "clerk") & (X["age"] < 30)).to_numpy()
    confidence[others] = 0.6
    found = search_regions(X, predictions(confidence, correct), alpha=0.05)
    assert 2 <= len(found.regions) <= 5
    masks = []
    for region in found.regions:
        low, high = region.confidence_range
        mine = region_mask(region.conditions, X) if region.conditions else np.ones(len(X), bool)
        masks.append(mine & (low <= confidence) & (confidence <= high))
    assert np.sum(masks, axis=0).max() == 1
    assert [region.p_value for region in found.regions] == sorted(
        region.p_value for region in found.regions
    )


def test_the_same_data_give_the_same_regions_and_no_global_state_is_used():
    X, confidence, correct, _ = attacked()
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = (search_regions(X, predictions(confidence, correct), alpha=0.05),) * 2
    assert first == second
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize("X", [np.ones((40, 2)), np.ones((40, 0)), np.arange(40)[:, None] % 3 > 5])
def test_a_table_without_conditions_has_no_regions(X):
    found = search_regions(X, predictions(np.full(40, 0.6), np.ones(40)), alpha=0.05)
    assert found.regions == []
    assert found.n_searched == 0


def test_a_wide_table_is_searched_by_single_conditions():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 300))
    confidence = np.where(X[:, 7] > 0, 0.6, 0.9)
    found = search_regions(X, predictions(confidence, rng.random(600) < 0.9), alpha=0.05)
    assert set(found.regions[0].conditions) <= {7}
    assert found.n_searched <= 600 * 3


@pytest.mark.parametrize(
    ("X", "match"),
    [
        (np.zeros((39, 2)), "inconsistent numbers of samples"),
        (np.zeros((40, 1001)), r"at most 1,000 columns, got ndarray of shape \(40, 1001\)"),
        (["a"] * 40, "at most 1,000 columns, got list"),
    ],
)
def test_what_cannot_be_searched_is_refused(X, match):
    with pytest.raises(ValueError, match=match):
        search_regions(X, predictions(np.full(40, 0.6), np.ones(40)), alpha=0.05)


def test_rules_are_read_in_words():
    mask = np.arange(100) < 30
    both = Conditions(
        [("a", (None, 3.5)), ("a", (1.0, None)), (2, "x"), ("b", None)],
        np.array([mask, mask[::-1] | mask, np.roll(mask, 5), np.roll(mask, 40)]),
        np.arange(100),
    )
    answers = predictions(np.full(100, 0.6), mask | (np.arange(100) > 95))
    rules = {
        region.rule
        for k in (slice(0, 2), slice(2, 3), slice(3, 4))
        for region in search_regions(
            Conditions(both.rules[k], both.masks[k], both.rows),
            answers,
            alpha=0.0,
            confidence_level=0.01,
        ).regions
    }
    assert rules & {"a <= 3.5", "1 <= a <= 3.5"}
    assert rules & {"column 2 = x"}


@pytest.mark.parametrize(
    ("conditions", "limits", "words"),
    [
        ({"a": (None, 3.5)}, (0, 1), "a <= 3.5"),
        ({"a": (2.0, None)}, (0, 1), "a >= 2"),
        ({"a": (2.0, 3.5), 7: "x"}, (0, 1), "2 <= a <= 3.5 and column 7 = x"),
        ({"a": None}, (0.25, 1), "a is missing and confidence in % >= 25"),
        ({}, (0.25, 0.5), "25 <= confidence in % <= 50"),
        ({}, (0.55, 0.55), "confidence in % = 55"),
        ({"t": (1699993951.0, None)}, (0, 1), "t >= 1699993951"),
        ({"t": 0.1}, (0, 1), "t = 0.1"),
        ({"n": 10**18 + 1}, (0, 1), "n = 1000000000000000001"),
    ],
)
def test_every_kind_of_condition_has_its_words(conditions, limits, words):
    assert Region(conditions, limits, 9, *[0.5] * 5, "underconfident", 1.0, 0.1).rule == words


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ((None, 3.5), (1.0, None), (1.0, 3.5)),
        ((None, 3.0), (None, 5.0), (None, 3.0)),
        ((2.0, None), (1.0, None), (2.0, None)),
        ((None, 3.0), 2.0, 2.0),
        ("x", "x", "x"),
    ],
)
def test_two_conditions_on_a_column_make_one(one, other, both):
    masks = np.array([np.arange(40) < 25, np.arange(40) > 10])
    found = search_regions(
        Conditions([("a", one), ("a", other)], masks, np.arange(40)),
        predictions(np.full(40, 0.3), masks.all(axis=0)),
        alpha=0.0,
    )
    assert found.regions[0].conditions == {"a": both}
    assert found.regions[0].count == 14


def test_the_p_value_counts_simulations_with_equal_evidence():
    X = np.repeat([0, 1], 12)[:, None]
    correct = np.concatenate([np.arange(12) < 7, np.arange(12) < 10])
    answers = predictions(np.full(24, 0.6), correct)
    found = search_regions(X, answers, alpha=0.0, confidence_level=0.01).regions[0]
    assert found.count == 12
    exact = 1 - binom.cdf(9, 12, 0.6) ** 2  # in either of the two regions
    assert found.p_value == pytest.approx(exact / 0.8, abs=5 * np.sqrt(exact / 500))


@pytest.mark.parametrize("seed", range(3))
def test_a_region_within_the_tolerance_is_not_found_where_some_samples_cannot_deviate(seed):
    rng = np.random.default_rng(seed)
    n = 8000
    X = rng.integers(0, 2, (n, 2))
    confidence = rng.choice([0.92, 1.0], n, p=[0.3, 0.7])
    sure = X.all(axis=1)  # right always; 0.976 claimed on average
    correct = rng.random(n) < np.where(sure, 1.0, confidence)
    assert 0 < 1 - confidence[sure].mean() < 0.05
    answers = predictions(confidence, correct)
    assert search_regions(X, answers, alpha=0.05).regions == []
    (found, *_) = search_regions(X, answers, alpha=0.01).regions
    assert found.gap > 0.01


def test_a_region_of_one_of_few_confidences_has_its_words():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (3000, 1))
    confidence = rng.choice([0.55, 0.7, 0.85], 3000)
    correct = rng.random(3000) < np.where((X[:, 0] == 1) & (confidence == 0.7), 0.99, confidence)
    (found, *_) = search_regions(X, predictions(confidence, correct), alpha=0.05).regions
    assert found.confidence_range == (0.7, 0.7)
    assert found.rule == "column 0 >= 1 and confidence in % = 70"


def test_a_part_of_a_large_table_is_not_of_one_kind(monkeypatch):
    monkeypatch.setattr("skuq.calibration._conditions.MAX_SAMPLES", 2000)
    site = np.arange(4000) % 2
    rng = np.random.default_rng(0)
    answers = predictions(np.full(4000, 0.7), rng.random(4000) < 0.7 + 0.2 * site)
    found = search_regions(pd.DataFrame({"site": site}), answers, alpha=0.05)
    assert found.n_samples == 2000
    assert [region.conditions for region in found.regions] == [{"site": (1.0, None)}]
