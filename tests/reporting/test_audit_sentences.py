"""Sentences of the report on an audit: the numbers and names that they state."""

import json

import numpy as np
import pandas as pd
import pytest

from skuq import CalibrationAuditor
from skuq.reporting import _audit_sentences as sentences
from skuq.reporting import audit_report
from skuq.reporting._audit import audit_data
from skuq.reporting._audit_phrases import outcome, probability
from tests.reporter import drawn_audit


def test_a_failed_audit_says_where_how_much_and_how_improbable(faked):
    verdict = audit_data(faked)["verdict"]
    bins, sums, worst = faked.bins_, faked.sums_, faked.suspicious_bins()[0]
    assert np.flatnonzero(bins.finding == 1).tolist() == [worst]
    filled = (bins.count > 0).sum()
    assert verdict["headline"].startswith(
        f"Failed: in {bins.significant.sum()} of {filled} confidence bins and in "
    )
    first = verdict["sentences"][0]
    for number in (
        f"{sums.count[worst]} predictions",
        "50% and 60%",
        f"({100 * bins.confidence[worst]:.1f}% on average)",
        f"{sums.correct[worst]} were right ({100 * bins.accuracy[worst]:.1f}%)",
        "tolerated 5 percentage points, so many",
        f"a probability {probability({'p_value': bins.p_value[worst]})} (corrected",
    ):
        assert number in first
    told = verdict["sentences"]
    assert sentences.UNDERCONFIDENT in told
    assert sentences.OVERCONFIDENT not in told
    assert "not proof of intent" in " ".join(told)


def test_overconfidence_is_told_the_other_way_round():
    told = audit_data(drawn_audit(-0.2, groups={}))["verdict"]["sentences"]
    assert "so few correct ones" in told[0]
    assert sentences.OVERCONFIDENT in told
    assert sentences.UNDERCONFIDENT not in told


def test_groups_are_named_when_they_have_findings_only():
    rng = np.random.default_rng(0)
    n = 4000
    confidence, member = rng.uniform(0.5, 1, n), rng.random(n) < 0.1
    y = (rng.random(n) > confidence).astype(int)
    confidence[member] = 0.55
    audit = CalibrationAuditor.from_predictions(
        y,
        np.column_stack([confidence, 1 - confidence]),
        sensitive_features={"town": np.where(member, "north", "south")},
    )
    assert not audit.bins_.significant.any()
    verdict = audit_data(audit)["verdict"]
    assert verdict["headline"].startswith("Failed: in 1 of ")
    assert "confidence bins of groups" in verdict["headline"]
    (line,) = [text for text in verdict["findings"] if "Group" in text]
    assert line.startswith(f"Group town=north: of the {member.sum()} predictions ")
    assert "south" not in " ".join(verdict["findings"])


def test_bins_that_are_one_finding_are_told_together():
    confidence = np.repeat([0.65, 0.75, 0.85], [40, 60, 400])
    correct = np.concatenate([np.arange(n) < k for n, k in ((40, 33), (60, 55), (400, 340))])
    audit = CalibrationAuditor.from_predictions(
        (~correct).astype(int), np.column_stack([confidence, 1 - confidence])
    )
    assert audit.bins_.finding[6:9].tolist() == [1, 1, 0]
    verdict = audit_data(audit)["verdict"]
    assert verdict["headline"].startswith("Failed: in 2 of 3 confidence bins ")
    (first, *_) = verdict["findings"]
    for number in ("the 100 predictions", "60% and 80%", "(71.0% on", "88 were right (88.0%)"):
        assert number in first


def test_what_is_not_told_in_full_is_named():
    confidence = np.tile(np.repeat([0.55, 0.65, 0.75, 0.85], 100), 56)
    right = np.tile(np.repeat([0.98, 0.3, 0.98, 0.5], 100), 56)
    y = (np.random.default_rng(0).random(len(right)) > right).astype(int)
    audit = CalibrationAuditor.from_predictions(
        y,
        np.column_stack([confidence, 1 - confidence]),
        sensitive_features={"town": np.arange(len(y)) // 400 % 7},
    )
    assert sorted(audit.bins_.finding[5:9]) == [1, 2, 3, 4]
    *told, others, _, _ = audit_data(audit)["verdict"]["findings"]
    assert [text.partition(" the ")[0].partition(": ")[2] for text in told] == [""] * 3 + ["of"] * 5
    last = int(np.flatnonzero(audit.bins_.finding == 4)[0])
    direction = {"underconfident": "low", "overconfident": "high"}[audit.bins_.direction[last]]
    assert f": {10 * last}% to {10 * last + 10}% (too {direction}), group town=" in others
    named = [name for name in audit.group_bins_ if any(name in text for text in told)]
    assert len(named) == 5
    assert all((name in others) != (name in named) for name in audit.group_bins_)


def test_all_within_the_tolerance_is_passed_without_reserve():
    audit = drawn_audit(n=60_000, groups={})
    assert audit.within_alpha_
    verdict = audit_data(audit)["verdict"]
    assert verdict["findings"] == []
    assert verdict["headline"].startswith("Passed: in the 5 confidence bins ")
    assert "at most the tolerated 5 percentage points" in verdict["headline"]


def test_a_difference_that_may_be_chance_is_passed_and_told_with_its_samples():
    audit = drawn_audit(n=150, groups={})
    assert audit.passed_
    assert not audit.within_alpha_
    verdict = audit_data(audit)["verdict"]
    beyond = np.flatnonzero(~audit.bins_.within_alpha)
    assert f"In {len(beyond)} of 5 confidence bins" in verdict["headline"]
    (line,) = verdict["findings"]
    assert "Algorithm 1" in line
    for b in beyond:
        assert f"{audit.bins_.count[b]} predictions, " in line


def test_what_is_wrong_beyond_chance_but_tolerated_is_told_with_its_size():
    y = (np.arange(40_000) % 20_000 >= 15_080).astype(int)  # 75.4% are right, 80% or 75% claimed
    confidence = np.repeat([0.80, 0.75], 20_000)
    audit = CalibrationAuditor.from_predictions(
        y,
        np.column_stack([confidence, 1 - confidence]),
        sensitive_features={"half": np.arange(40_000) % 2},
    )
    assert audit.within_alpha_
    data = audit_data(audit)
    found, in_groups = data["verdict"]["findings"]
    assert "within the 5 percentage points" in found
    assert "between 80% and 90% it is 4.6 points too high (20,000 predictions)" in found
    assert "70% and 80%" not in found  # 0.4 points may be chance
    assert "2 bins of groups" in in_groups
    assert "wrong by more than the tolerated 5 percentage" in sentences.meaning(data)[0]
    words = {row["lower"]: outcome(row) for row in data["bins"] if row["count"]}
    assert words == {0.7: "none", 0.8: "tolerated"}


def test_power_names_the_gap_range_the_small_bins_and_those_that_cannot_be_too_low():
    rows = [
        {"lower": 0.5, "upper": 0.6, "count": 500, "confidence": 0.55, "detectable_gap": 0.12},
        {"lower": 0.6, "upper": 0.7, "count": 300, "confidence": 0.65, "detectable_gap": 0.17},
        {"lower": 0.7, "upper": 0.8, "count": 3, "confidence": 0.75, "detectable_gap": None},
        {"lower": 0.8, "upper": 0.9, "count": 0, "confidence": None, "detectable_gap": None},
        {"lower": 0.9, "upper": 1.0, "count": 900, "confidence": 0.96, "detectable_gap": None},
    ]
    figures = {
        "bins": rows,
        "power": 0.8,
        "parameters": {"alpha": 0.05, "confidence_level": 0.95},
        "n_families": 1,
        "groups": [],
        "regions": {
            "n_searched": 9,
            "detectable": [
                {"share": 0.02, "count": 30, "confidence": 0.6, "detectable_gap": None},
                {"share": 0.1, "count": 1500, "confidence": 0.6, "detectable_gap": 0.112},
            ],
        },
    }
    gaps, regions, few, sure = sentences.power(figures)
    assert "claims 60% is found with 10% of the samples (1,500) if at least 71.2% are" in regions
    assert "probability of 80%" in gaps
    assert "at least 12.0 to 17.0 percentage points" in gaps
    assert few.endswith("70% to 80% (3).")
    assert "90% to 100%" in sure
    # 1000 samples could be enough below the edge of 1, but not next to it.
    rows[-1]["confidence"] = 0.94
    assert "90% to 100% (900)" in sentences.power(figures)[2]
    rows[-1]["confidence"] = 0.95 - 1e-7
    assert sentences.power(figures)[2:] == [few, sure]
    figures["groups"] = [
        {"name": "sex=f", "detectable_shift": 0.081},
        {"name": "sex=m", "detectable_shift": 0.06},
        {"name": "sex=x", "detectable_shift": None},
    ]
    figures["regions"] = None
    _, groups, small, regions, *_ = sentences.power(figures)
    assert groups.endswith("percentage points: sex=m 6.0, sex=f 8.1.")
    assert small.endswith("any finding: sex=x.")
    assert "not searched" in regions


def test_a_region_is_told_in_words_with_its_numbers():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"age": rng.integers(18, 80, 1500), "job": rng.choice(["cook", "nurse"], 1500)}
    )
    confidence = rng.uniform(0.8, 1, 1500)
    y = (rng.random(1500) > confidence).astype(int)
    confidence[(X["age"] < 30) & (X["job"] == "nurse")] = 0.57
    audit = CalibrationAuditor.from_predictions(
        y, np.column_stack([confidence, 1 - confidence]), X=X, search_regions=0.2, alpha=0.5
    )
    data = json.loads(json.dumps(audit_data(audit), allow_nan=False))
    (region, *_) = data["regions"]["found"]
    verdict = data["verdict"]
    assert verdict["headline"].startswith("Failed: in 1 region of the inputs the reported ")
    assert "more than the tolerated 20 percentage points" in verdict["headline"]
    line = next(text for text in verdict["findings"] if text.startswith("Region "))
    assert line.startswith(f"Region {region['rule']}: of the {region['count']} predictions")
    assert f"{region['correct']} were right ({100 * region['accuracy']:.1f}%)" in line
    assert sentences.UNDERCONFIDENT in verdict["findings"]
    assert 0.2 < region["detectable_gap"] < 0.5
    pytest.importorskip("matplotlib")
    assert audit_report(audit).html().count(region["rule"].replace("<", "&lt;")) == 2


def test_empty_bins_are_told_where_predictions_could_have_been():
    data = audit_data(drawn_audit(0.25, n=3000, groups={}))
    (line,) = [text for text in data["verdict"]["sentences"] if "No prediction" in text]
    assert " 80% to 100%;" in line


@pytest.mark.parametrize(
    ("correct", "start"),
    [
        (400, "Failed: in the only confidence bin "),
        (310, "Passed: in the only confidence bin "),
    ],
)
def test_a_single_bin_is_the_only_one(correct, start):
    y = (np.arange(400) >= correct).astype(int)
    audit = CalibrationAuditor.from_predictions(y, [[0.75, 0.25]] * 400, classes=[0, 1])
    assert audit_data(audit)["verdict"]["headline"].startswith(start)
    assert " 1 of 1 " not in audit_data(audit)["verdict"]["headline"]
