"""The search for regions: what it finds, where, and how rarely by chance."""

from itertools import combinations, combinations_with_replacement, product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from skuq import calibration
from skuq.calibration import Conditions, conditions_of, region_mask, search_regions, search_seed
from skuq.calibration._region_search import region_tolerance
from tests.reporter import slow_evidence


def predictions(confidence, correct):
    units = np.rint(np.asarray(confidence) * 1e9).astype(np.int32)
    return calibration.TopLabelPredictions(units, np.asarray(correct, bool))


def people(n, rng):
    age, jobs = rng.integers(18, 80, n), ["nurse", "cook", "clerk", None]
    return pd.DataFrame({"age": age, "job": rng.choice(jobs, n), "income": rng.lognormal(size=n)})


def attacked(n=800, lowered=0.57):
    """Calibrated predictions, whose confidence was changed for nurses from 50 years on."""
    rng = np.random.default_rng(0)
    X = people(n, rng)
    confidence = rng.uniform(0.8, 1, n)
    correct = rng.random(n) < confidence
    inside = ((X["job"] == "nurse") & (X["age"] >= 50)).to_numpy()
    confidence[inside] = lowered
    return X, confidence, correct, inside


def mask_of(region, X, confidence):
    low, high = region.confidence_range
    mine = region_mask(region.conditions, X) if region.conditions else np.ones(len(X), bool)
    return mine & (low <= confidence) & (confidence <= high)


def test_a_planted_region_is_found_described_and_corrected_for_families():
    X, confidence, correct, inside = attacked()
    answers = predictions(confidence, correct)
    found = search_regions(X, answers, tolerance=0.05)
    np.random.seed(0)  # noqa: NPY002
    assert found == search_regions(X, answers, tolerance=0.05)
    region, mine = found.regions[0], mask_of(found.regions[0], X, confidence)
    assert region.direction == "underconfident"
    assert region.p_value < 0.001
    assert (mine & inside).sum() / (mine | inside).sum() > 0.9
    assert (region.count, region.accuracy) == (mine.sum(), correct[mine].mean())
    assert region.confidence == pytest.approx(confidence[mine].mean())
    assert region.gap == pytest.approx(region.accuracy - region.confidence)
    assert 0.05 < region.gap_low < region.gap < region.gap_high
    assert found.n_samples == 800
    many = search_regions(X, answers, tolerance=0.05, n_families=10)
    assert many.threshold >= found.threshold
    assert many.regions[0].p_value == pytest.approx(10 * region.p_value)
    assert many.regions[0].gap_low < region.gap_low
    # Samples of weight 0 do not count.
    weight = (np.arange(800) % 3).astype(float)
    kept, conditions = weight > 0, conditions_of(X)
    rest = conditions.without(~kept), answers.at(kept)
    part = search_regions(*rest, tolerance=0.05, weight=weight[kept])
    assert search_regions(conditions, answers, tolerance=0.05, weight=weight) == part
    # Raised confidence is found, too.
    correct = np.random.default_rng(1).random(len(X)) < np.where(inside, 0.5, confidence)
    confidence[inside] = 0.95
    (region, *_) = search_regions(X, predictions(confidence, correct), tolerance=0.05).regions
    assert region.direction == "overconfident"
    assert region.gap_high < -0.05


def parity(n, rng):
    """Deviations that average out in every region of two conditions."""
    X = rng.normal(size=(n, 4))
    side, hit = np.sign(X[:, :3]).prod(axis=1), X[:, 3] > 0.65
    confidence = np.where(hit, 0.6, 0.5 + 0.5 * rng.beta(2, 1, n))
    accuracy = np.where(hit, np.where(side > 0, 0.97, 0.23), confidence)
    return X, predictions(confidence, rng.random(n) < accuracy), hit


def test_regions_of_more_conditions_are_learned_from_one_half_and_tested_on_the_other():
    for seed in range(3):
        X, answers, hit = parity(4000, np.random.default_rng(seed))
        found = search_regions(X, answers, tolerance=0.05, n_families=2)
        assert len(found.regions) >= 2
        for region in found.regions:
            mine = mask_of(region, X, answers.confidence / 1e9)
            assert len(region.conditions) + (region.confidence_range != (0, 1)) > 2
            assert 0.3 < region.count / mine.sum() < 0.7
            assert hit[mine].mean() > 0.5
    assert found != search_regions(X, answers, tolerance=0.05, n_families=2, random_state=1)


def test_whoever_does_not_know_the_labels_and_the_seed_cannot_choose_what_is_searched(monkeypatch):
    monkeypatch.setattr("skuq.calibration._conditions.MAX_SAMPLES", 100)
    X, answers, _ = parity(200, np.random.default_rng(0))
    other = answers._replace(correct=np.roll(answers.correct, 1))
    seeds = [search_seed(answers, 0), search_seed(answers, 1), search_seed(other, 0)]
    rows = [set(conditions_of(X, seed).rows.tolist()) for seed in seeds]
    assert [len(one & other) < 80 for one, other in combinations(rows, 2)] == [True] * 3
    assert rows[0] == set(conditions_of(X, search_seed(answers, 0)).rows.tolist())


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_the_evidence_is_the_largest_of_all_pairs_of_conditions(tolerance):
    X, confidence, correct, _ = attacked(120)
    X, answers = X[["age", "job"]], predictions(confidence, correct)
    (region, *_) = search_regions(X, answers, tolerance=tolerance, confidence_level=0.01).regions
    masks, reported = conditions_of(X).masks, conditions_of(confidence[:, None]).masks
    pairs = [*combinations_with_replacement(masks, 2), *product(masks, reported)]
    large = [both for both in (one & other for one, other in pairs) if both.sum() >= 10]
    edge = np.minimum(confidence + tolerance, 1)
    expected = max(slow_evidence(correct[b].sum(), b.sum(), edge[b].mean()) for b in large)
    assert region.direction == "underconfident"
    assert region.evidence == pytest.approx(expected)


@pytest.mark.parametrize("tolerance", [0.0, 0.05])
def test_models_at_the_edge_of_the_tolerance_are_found_no_more_often_than_allowed(
    tolerance, monkeypatch
):
    monkeypatch.setattr("skuq.calibration._region_search.MAX_SIMULATIONS", 100)
    rng, found = np.random.default_rng(0), 0
    for _ in range(60):
        X, confidence = people(100, rng)[["age", "job"]], rng.uniform(0.5, 1, 100)
        answers = predictions(confidence, rng.random(100) < np.minimum(confidence + tolerance, 1))
        found += bool(search_regions(X, answers, tolerance=tolerance, confidence_level=0.8).regions)
    assert found / 60 <= 0.2 + 2 * np.sqrt(0.2 * 0.8 / 60)


@pytest.mark.parametrize("side", [1, -1])
def test_with_the_tolerance_of_some_reference_sets_the_wanted_share_passes(side, monkeypatch):
    monkeypatch.setattr("skuq.calibration._region_search.MAX_SIMULATIONS", 300)
    rng, draws = np.random.default_rng(0), []
    for _ in range(10):
        X, confidence = rng.integers(0, 4, (300, 2)), rng.uniform(0.6, 0.8, 300)
        correct = rng.random(300) < confidence + 0.2 * side * (X[:, 0] == 3)
        draws.append((conditions_of(X), predictions(confidence, correct)))
    tolerance = region_tolerance(draws, 0.6)
    assert 0.015 < tolerance < region_tolerance(draws, 0.95) < 0.25

    def share_passed(tolerance):
        given = {"tolerance": tolerance, "confidence_level": 0.6, "n_families": 2}
        return np.mean([not search_regions(*draw, **given).regions for draw in draws])

    # Thresholds are those of five of the sets on average.
    assert share_passed(tolerance - 0.03) < 0.6 <= share_passed(tolerance + 0.015)


def test_at_most_five_regions_are_told_and_have_no_common_samples():
    X, confidence, correct, _ = attacked(3000)
    X = X[["age", "job"]]
    confidence[((X["job"] == "clerk") & (X["age"] < 30)).to_numpy()] = 0.6
    regions = search_regions(X, predictions(confidence, correct), tolerance=0.05).regions
    assert 2 <= len(regions) <= 5
    assert np.sum([mask_of(region, X, confidence) for region in regions], axis=0).max() == 1
    assert (np.diff([region.p_value for region in regions]) >= 0).all()
    X = np.repeat(list("abcdefgh"), 20)[:, None].astype(object)
    answers = predictions(np.full(160, 0.3), np.ones(160))
    assert len(search_regions(X, answers, tolerance=0.0).regions) == 5


def test_tables_without_conditions_have_no_regions_and_wide_ones_single_conditions():
    for X in (np.ones((40, 2)), np.ones((40, 0)), np.arange(40)[:, None] % 3 > 5):
        found = search_regions(X, predictions(np.full(40, 0.6), np.ones(40)), tolerance=0.05)
        assert (found.regions, found.n_searched) == ([], 0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 300))
    confidence = np.where(X[:, 7] > 0, 0.6, 0.9)
    found = search_regions(X, predictions(confidence, rng.random(600) < 0.9), tolerance=0.05)
    assert set(found.regions[0].conditions) <= {7}
    assert found.n_searched <= 600 * 3


@pytest.mark.parametrize(
    ("conditions", "limits", "words"),
    [
        ({"a": (None, 3.5), "b": (2.0, None)}, (0, 1), "a <= 3.5 and b >= 2"),
        ({"a": (2.0, 3.5), 7: "x"}, (0, 1), "2 <= a <= 3.5 and column 7 = x"),
        ({"a": None}, (0.25, 1), "a is missing and confidence in % >= 25"),
        ({}, (0.25, 0.5), "25 <= confidence in % <= 50"),
        ({}, (0.55, 0.55), "confidence in % = 55"),
        ({"t": (1699993951.0, None), "u": 0.1}, (0, 1), "t >= 1699993951 and u = 0.1"),
        ({"n": 10**18 + 1}, (0, 1), "n = 1000000000000000001"),
    ],
)
def test_every_kind_of_condition_has_its_words(conditions, limits, words):
    figures = 9, *[0.5] * 5, "underconfident", 1.0, 0.1
    assert calibration.Region(conditions, limits, *figures).rule == words


INTERVALS = [
    ((None, 3.5), (1.0, None), (1.0, 3.5)),
    ((None, 3.0), (None, 5.0), (None, 3.0)),
    ((2.0, None), (1.0, None), (2.0, None)),
    ((None, 3.0), 2.0, 2.0),
    ("x", "x", "x"),
]


@pytest.mark.parametrize(("one", "other", "both"), INTERVALS)
def test_two_conditions_on_a_column_make_one(one, other, both):
    masks = np.array([np.arange(40) < 25, np.arange(40) > 10])
    conditions = Conditions([("a", one), ("a", other)], masks, np.arange(40))
    found = search_regions(conditions, predictions([0.3] * 40, masks.all(axis=0)), tolerance=0.0)
    region = found.regions[0]
    assert (region.conditions, region.count) == ({"a": both}, 14)
    # Limits hold for both sides of all regions together.
    low, high = calibration.clopper_pearson(14, 14, 0.05 / 2 / (found.n_searched + 20))
    assert (region.gap_low, region.gap_high) == pytest.approx((low - 0.3, high - 0.3))


@pytest.mark.parametrize("size", [9, 10, 30, 31])
def test_at_least_ten_samples_and_not_all_are_a_region(size):
    conditions = Conditions([("a", "x")], np.arange(31)[None] < size, np.arange(31))
    found = search_regions(conditions, predictions([0.6] * 31, [True] * 31), tolerance=0.0)
    assert found.n_searched == (10 <= size < 31)


def test_the_p_value_counts_simulations_with_equal_evidence():
    X, correct = np.repeat([0, 1], 12)[:, None], np.r_[np.arange(12) < 7, np.arange(12) < 10]
    answers = predictions([0.6] * 24, correct)
    (found, *_) = search_regions(X, answers, tolerance=0.0, confidence_level=0.01).regions
    assert found.count == 12
    exact = 1 - binom.cdf(9, 12, 0.6) ** 2  # in either of the two regions
    assert found.p_value == pytest.approx(1.5 * exact / 0.8, abs=5 * np.sqrt(exact / 500))


def test_a_region_within_the_tolerance_is_not_found_where_some_samples_cannot_deviate():
    rng = np.random.default_rng(0)
    X, confidence = rng.integers(0, 2, (8000, 2)), rng.choice([0.92, 1.0], 8000, p=[0.3, 0.7])
    sure = X.all(axis=1)  # right always; 0.976 claimed on average
    answers = predictions(confidence, rng.random(8000) < np.where(sure, 1.0, confidence))
    assert 0 < 1 - confidence[sure].mean() < 0.05
    regions = search_regions(X, answers, tolerance=0.05).regions  # those of 0.92 can deviate
    assert {region.confidence_range for region in regions} <= {(0.0, 0.92)}
    assert search_regions(X, answers, tolerance=0.01).regions[0].gap > 0.01


def test_a_region_may_be_of_one_confidence_and_a_part_of_a_table_is_not_of_one_kind(monkeypatch):
    rng = np.random.default_rng(0)
    X, confidence = rng.integers(0, 2, (1500, 1)), rng.choice([0.55, 0.7, 0.85], 1500)
    correct = rng.random(1500) < np.where((X[:, 0] == 1) & (confidence == 0.7), 0.99, confidence)
    (found, *_) = search_regions(X, predictions(confidence, correct), tolerance=0.05).regions
    assert (found.conditions, found.confidence_range) == ({0: (1.0, None)}, (0.7, 0.7))
    monkeypatch.setattr("skuq.calibration._conditions.MAX_SAMPLES", 1000)
    X = pd.DataFrame({"site": np.arange(2000) % 2})
    answers = predictions(np.full(2000, 0.7), rng.random(2000) < 0.7 + 0.2 * X["site"])
    found = search_regions(X, answers, tolerance=0.05)
    assert found.n_samples == 1000
    assert [region.conditions for region in found.regions] == [{"site": (1.0, None)}]
