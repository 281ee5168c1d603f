"""Sentences of the report on an audit: the numbers and names that they state."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier

from skuq import CalibrationAuditor
from skuq.reporting import AuditReport, audit_data, audit_report, bin_finding, bin_range
from skuq.reporting import _audit_sentences as sentences
from skuq.reporting._phrases import distance, points, probability
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
        "tolerated 5 percentage points, such a large number of right predictions",
        f"a probability {probability({'p_value': bins.p_value[worst]})} (corrected",
    ):
        assert number in first
    told = verdict["sentences"]
    assert sentences.UNDERCONFIDENT in told
    assert sentences.OVERCONFIDENT not in told
    assert "not proof of intent" in " ".join(told)


def test_overconfidence_is_told_the_other_way_round():
    told = audit_data(drawn_audit(-0.2, groups={}))["verdict"]["sentences"]
    assert "such a small number of right predictions" in told[0]
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
    # One finding of each of five groups is told; the others are named with their ranges.
    assert len({name for name in audit.group_bins_ if any(name in text for text in told)}) == 5
    in_groups = sum(bins.finding.max() for bins in audit.group_bins_.values())
    assert others.count("group town=") == in_groups - 5 > 7
    assert "% (too low), group town=4, 50% to 60% (too low), group town=" in others


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


def test_differences_of_small_groups_are_not_left_without_a_word_on_chance():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 20_000)
    wrong = rng.random(20_000) > confidence
    group = np.where(np.arange(20_000) < 6, "few", "many")
    wrong[:6] = [True, False] * 3
    proba = np.column_stack([1 - confidence, confidence])
    audit = CalibrationAuditor.from_predictions(
        (~wrong).astype(int), proba, sensitive_features=pd.DataFrame({"town": group})
    )
    data = audit_data(audit)
    assert audit.passed_
    few = next(each for each in data["groups"] if each["name"] == "town=few")
    beyond = [row for row in few["bins"] if row["count"] and not row["within_alpha"]]
    said = f"In {len(beyond)} bins of groups they differ by more, but not significantly"
    assert said in data["verdict"]["headline"]
    largest = max(beyond, key=lambda row: abs(row["gap"]))
    samples = f"{largest['count']} sample{'' if largest['count'] == 1 else 's'}"
    page = AuditReport("Audit", data).html().replace("\N{NO-BREAK SPACE}", " ")
    assert f">{bin_range(largest)}, {samples}: chance</td>" in page


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
    assert "within the tolerated 5 percentage points" in found
    assert "between 80% and 90% it is 4.6 points too high (20,000 predictions)" in found
    assert "70% and 80%" not in found  # 0.4 points may be chance
    assert "2 bins of groups" in in_groups
    assert "wrong by more than the tolerated 5 percentage" in sentences.meaning(data)[0]
    words = {row["lower"]: bin_finding(row) for row in data["bins"] if row["count"]}
    assert words == {0.7: "none", 0.8: "tolerated"}


def found_from(low, high):
    return {"detectable_underconfidence": low, "detectable_overconfidence": high}


NOT_FOUND = found_from(None, None)


def test_power_names_the_gap_range_the_small_bins_and_those_that_cannot_be_too_low():
    rows = [
        {"lower": 0.5, "upper": 0.6, "count": 500, "confidence": 0.55, **found_from(0.12, 0.14)},
        {"lower": 0.6, "upper": 0.7, "count": 300, "confidence": 0.65, **found_from(0.17, 0.19)},
        {"lower": 0.7, "upper": 0.8, "count": 3, "confidence": 0.75, **NOT_FOUND},
        {"lower": 0.8, "upper": 0.9, "count": 0, "confidence": None, **NOT_FOUND},
        {"lower": 0.9, "upper": 1.0, "count": 900, "confidence": 0.96, **found_from(None, 0.15)},
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
                {"share": 0.02, "count": 30, "confidence": 0.6, **NOT_FOUND},
                {"share": 0.1, "count": 1500, "confidence": 0.6, **found_from(0.112, 0.132)},
            ],
            "n_samples": 15_000,
        },
        "n_samples": 15_000,
    }
    gaps, regions, few, sure = sentences.power(figures)
    assert (
        "confidence 60% is found if it has 10% of the samples searched (1,500) and at least 71.2%"
        " or at most 46.8% of them are right" in regions
    )
    assert "probability of 80%" in gaps
    assert "exceeds its confidence by at least 12.0 to 17.0 percentage points" in gaps
    assert "falls short of its confidence by at least 14.0 to 19.0 percentage points" in gaps
    assert few.endswith("70% to 80% (3).")
    assert "90% to 100%" in sure
    # 1000 samples could be enough below the edge of 1, but not next to it.
    rows[-1]["confidence"] = 0.94
    assert "90% to 100% (900)" in sentences.power(figures)[2]
    rows[-1]["confidence"] = 0.95 - 1e-7
    assert sentences.power(figures)[2:] == [few, sure]
    figures["groups"] = [
        {
            "name": name,
            "detectable_underconfident_shift": low,
            "detectable_overconfident_shift": high,
        }
        for name, low, high in (
            ("sex=f", 0.081, 0.09),
            ("sex=m", 0.06, None),
            ("sex=x", None, None),
        )
    ]
    figures["regions"] = None
    figures["without_groups"] = found_from([0.11, 0.16], [None, None])
    _, groups, too_high, small, cost, regions, *_ = sentences.power(figures)
    assert "share the error probability with 3 groups" in cost
    assert cost.endswith(
        "accuracy exceeds its confidence by at least 11.0 to 16.0 percentage points."
    )
    assert groups.endswith("distance to 100%): sex=m 6.0, sex=f 8.1.")
    assert too_high.endswith(
        "too high in all bins by at least this number of percentage points "
        "(or by the entire distance to 0%): sex=f 9.0."
    )
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
    assert line.startswith(f"Region {region['rule']}: of its {region['count']} predictions")
    assert f"{region['correct']} were right ({100 * region['accuracy']:.1f}%)" in line
    assert sentences.UNDERCONFIDENT in verdict["findings"]
    assert 0.2 < region["detectable_underconfidence"] < 0.5
    assert region["detectable_overconfidence"] > 0.2
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


def recorded(bins, **options):
    """Audit of bins given as confidence, number of predictions and number of right ones."""
    confidence = np.concatenate([np.full(n, c) for c, n, _ in bins])
    wrong = np.concatenate([np.arange(n) >= right for _, n, right in bins])
    return CalibrationAuditor.from_predictions(
        wrong.astype(int), np.column_stack([confidence, 1 - confidence]), classes=[0, 1], **options
    )


@pytest.mark.parametrize("right", [1, 4])
def test_a_bin_amid_a_finding_is_not_said_to_deviate_as_its_neighbours_do(right):
    audit = recorded([(0.55, 48, 37), (0.65, 5, right), (0.75, 44, 41), (0.85, 7, 6)])
    assert audit.bins_.finding[5:8].tolist() == [1, 1, 1]
    data = audit_data(audit)
    words = {row["lower"]: bin_finding(row) for row in data["bins"] if row["count"]}
    assert words[0.5] == words[0.7] == "too low"
    assert (words[0.6] == "too low") == (right == 4)
    n_low = list(words.values()).count("too low")
    assert data["verdict"]["headline"].startswith(f"Failed: in {n_low} of 4 confidence bins ")


def test_regions_of_a_part_of_the_samples_are_said_to_be_of_that_part():
    n = 60_000  # more than are searched
    kind = np.where(np.arange(n) // 100 % 2, "a", "b")
    wrong = (np.arange(n) % 10 < 3) & (kind == "b")
    audit = CalibrationAuditor.from_predictions(
        wrong.astype(int),
        np.tile([0.7, 0.3], (n, 1)),
        X=pd.DataFrame({"kind": kind}),
        search_regions=True,
    )
    data = audit_data(audit)
    told = " ".join(data["verdict"]["sentences"])
    count = data["regions"]["found"][0]["count"]
    assert f"of its {count:,} predictions among the 50,000 searched, with" in told
    assert "were compared in 50,000 of the 60,000 samples, drawn at random." in told
    pytest.importorskip("matplotlib")
    assert audit_report(audit).html().count("in 50,000 of the 60,000 samples") == 3


def test_a_larger_tolerance_of_regions_is_part_of_what_passing_means():
    X = pd.DataFrame({"kind": np.repeat(["a", "b"], 400)})
    wrong = np.concatenate([np.arange(400) < 48, np.arange(400) < 192])  # 88% and 52% right
    audit = CalibrationAuditor.from_predictions(
        wrong.astype(int), [[0.7, 0.3]] * 800, X=X, search_regions=0.3
    )
    (passing, *_) = sentences.meaning(audit_data(audit))
    assert (
        "by more than the tolerated 5 percentage points, or in a region of the inputs by more "
        "than 30 percentage points."
    ) in passing


def test_columns_that_divide_nothing_are_not_called_too_few_samples():
    X = pd.DataFrame({"constant": np.ones(400)})
    audit = CalibrationAuditor.from_predictions(
        np.arange(400) % 4 == 0, [[0.75, 0.25]] * 400, X=X, search_regions=True
    )
    told = " ".join(sentences.power(audit_data(audit)))
    assert "No region of the inputs was compared: no condition" in told
    assert "0 regions" not in told


def test_bins_between_equal_confidences_are_not_called_unseen():
    confidence = np.concatenate([np.full(300, 0.6), np.linspace(0.7, 0.9, 100)])
    audit = CalibrationAuditor.from_predictions(
        np.arange(400) % 3 == 0, np.column_stack([confidence, 1 - confidence]), strategy="quantile"
    )
    assert (audit.bins_.count == 0).any()
    assert not any("No prediction" in text for text in sentences.meaning(audit_data(audit)))


@pytest.mark.parametrize(("values", "advised"), [(72, True), (4, False)])
def test_groups_by_the_numbers_of_a_column_are_advised_against(values, advised):
    """The same predictions fail without groups and pass with a group for each age."""
    rng = np.random.default_rng(1)
    proba = np.tile([0.1, 0.9], (1500, 1))
    y = np.arange(1500) >= 280
    age = rng.permutation(np.arange(1500) % values) + 18
    alone = CalibrationAuditor.from_predictions(y, proba, classes=[0, 1])
    audit = CalibrationAuditor.from_predictions(
        y, proba, classes=[0, 1], sensitive_features={"age": age}
    )
    told = sentences.power(audit_data(audit))
    said = [text for text in told if "Each number in column 'age' is a group" in text]
    assert len(said) == advised
    if advised:
        (cost,) = [text for text in told if "share the error probability with 72 groups" in text]
        gap = alone.bins_.detectable_overconfidence[9]
        assert f"falls short of its confidence by at least {100 * gap:.1f} percentage" in cost
        assert audit.bins_.detectable_overconfidence[9] > gap


def test_groups_are_told_what_is_detectable_though_no_bin_is():
    audit = recorded([(0.55, 9, 5), (0.65, 9, 6)], sensitive_features={"g": [0] * 17 + [1]})
    for text in sentences.power(audit_data(audit)):
        assert "same probability" not in text
        assert "such a finding" not in text


def test_a_second_finding_of_a_group_is_named():
    bins = [(0.55, 300, 240), (0.95, 300, 210)]
    audit = recorded(bins, sensitive_features={"g": ["a"] * 600})
    told = [text for text in audit_data(audit)["verdict"]["findings"] if "Group g=a" in text]
    assert len(told) == 2


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"lower": 0.99999, "upper": 1.0}, "99.999% to 100%"),
        ({"lower": 0.999999998, "upper": 0.999999999}, "99.9999998% to 99.9999999%"),
        ({"lower": 0.6, "upper": 0.6}, "60% to 60%"),
        ({"lower": 1 / 3, "upper": 2 / 3}, "33.33% to 66.67%"),
    ],
)
def test_edges_of_bins_can_be_told_apart(row, text):
    assert bin_range(row) == text
    assert bin_range(row, joint="and") == text.replace("to", "and")


def test_a_distance_is_never_written_as_none():
    assert distance({"gap": 0.0004}) == "0.04 points too low"
    assert distance({"gap": -0.012}) == "1.2 points too high"


def test_one_percentage_point_is_one():
    assert points({"parameters": {"alpha": 0.01}}) == "1 percentage point"


def test_sums_without_names_of_classes_are_reported():
    sums = recorded([(0.55, 40, 20), (0.75, 40, 30)]).sums_
    data = audit_data(CalibrationAuditor.from_sums(sums))
    assert data["classes"] is None
    assert any("0% to 50%" in text for text in data["verdict"]["sentences"])


def test_a_stream_without_results_yet_is_refused():
    audit = CalibrationAuditor(None)
    audit.partial_fit_predictions([0, 1], [[0.7, 0.3], [0.4, 0.6]], classes=[0, 1])
    with pytest.raises(AttributeError, match="has no results yet"):
        audit_data(audit)


def described(kind, right):
    """Headline of an audit of 400 predictions at 75 %, of which so many are right."""
    X = pd.DataFrame({"town": np.arange(400) % 2, "constant": 0.0})
    y = (np.arange(400) >= right).astype(int)
    proba = np.tile([0.75, 0.25], (400, 1))
    model = DummyClassifier(strategy="prior").fit(np.zeros((4, 2)), [0, 0, 0, 1])
    if kind == "model":
        audit = CalibrationAuditor(model).fit(X.to_numpy(), y)
    elif kind == "parts of a model":
        audit = CalibrationAuditor(model).partial_fit(X.to_numpy(), y)
    elif kind == "recorded":
        audit = CalibrationAuditor.from_predictions(y, proba)
    elif kind == "groups":
        audit = CalibrationAuditor.from_predictions(y, proba, sensitive_features=X["town"])
    else:
        audit = CalibrationAuditor.from_predictions(y, proba, X=X[["town"]], search_regions=True)
    return audit_data(audit)["verdict"]["headline"]


@pytest.mark.parametrize("right", [300, 399])
@pytest.mark.parametrize(
    ("kind", "scope", "advice"),
    [
        (
            "model",
            "(bins only: groups and regions were not tested)",
            "inputs (`search_regions`).",
        ),
        (
            "parts of a model",
            "(bins only: groups and regions were not tested)",
            "inputs (`search_regions`).",
        ),
        (
            "recorded",
            "(bins only: groups and regions were not tested)",
            "name the groups that matter (`sensitive_features`), or search in columns",
        ),
        (
            "groups",
            "(all samples and named groups only: regions of the inputs were not tested)",
            "An underconfident group can be offset in its bin by an over",
        ),
        ("regions", None, None),
    ],
)
def test_first_sentence_says_what_was_not_looked_at_and_the_last_how_to(kind, scope, advice, right):
    headline = described(kind, right)
    assert headline.startswith("Passed: " if right == 300 else "Failed: ")
    first, *others = headline.split(". ")
    if scope is None:
        assert "not tested" not in headline
        assert "offset" not in headline
    else:
        assert scope in first
        assert advice in others[-1]
