"""Sentences of the report on an audit.

`figures` is the dict returned by `skuq.reporting.audit_data`, and `row` is one of its bins. A
function that returns several sentences returns a list with the most important sentence first. The
functions only describe results; all decisions are made in the auditor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from skuq.calibration import Direction, planned_threshold
from skuq.labels import amount, counted
from skuq.reporting._phrases import (
    Figures,
    Row,
    bin_finding,
    bin_range,
    distance,
    listed,
    of_all,
    points,
    probability,
    ranges,
)

MOST_BINS = 3  # number of findings described in full; tables contain all findings
MOST_GROUPS = 5
# Maximum number of groups from a numeric column. With more groups, the column probably contains
# measurements.
MOST_NUMBERS = 20
# A bin is called too small only if, with at most this many samples, the finding would be
# significant: more samples than this cannot be asked for.
MOST_SAMPLES = 1_000_000

WAYS: dict[Direction, str] = {"underconfident": "too low", "overconfident": "too high"}
VERBS: dict[Direction, str] = {"underconfident": "exceeds", "overconfident": "falls short of"}
DETECTABLE: dict[Direction, str] = {
    "underconfident": "detectable_underconfidence",
    "overconfident": "detectable_overconfidence",
}

UNDERCONFIDENT = (
    "Where the reported confidence is too low, the model claims less certainty than it has: "
    "abstaining below a threshold would reject cases that it decides correctly."
)
OVERCONFIDENT = (
    "Where the reported confidence is too high, the model claims more certainty than it has: "
    "decisions above a threshold would be wrong more often than the threshold promises."
)


def headline(figures: Figures) -> str:
    """State the verdict, what the audit did not test, and how to test it."""
    return f"{verdict(figures)}{_advice(figures)}"


def verdict(figures: Figures) -> str:
    """State the verdict in one or two sentences; the first names the scope of the audit."""
    scope = not_looked_at(figures)
    bins = _filled(figures["bins"])
    in_groups = [row for group in figures["groups"] for row in _filled(group["bins"])]
    found, found_in_groups = _deviating(bins), _deviating(in_groups)
    in_regions = _found_regions(figures)
    if found or found_in_groups or in_regions:
        where = [f"in {of_all(len(found), len(bins), 'confidence bin')}"] * bool(found)
        if found_in_groups:
            tested = of_all(len(found_in_groups), len(in_groups), "confidence bin")
            where.append(f"in {tested} of groups")
        if in_regions:
            where.append(f"in {counted(len(in_regions), 'region')} of the inputs")
        # Findings in regions refer to `region_alpha`, which may differ from `alpha`.
        name = "alpha" if found or found_in_groups else "region_alpha"
        return (
            f"Failed: {listed(where)} the reported confidence is significantly wrong by more than "
            f"the tolerated {points(figures, name)}{scope}."
        )
    beyond = _beyond(bins)
    if beyond:
        return (
            f"Passed: no significant deviation{scope}. In "
            f"{of_all(len(beyond), len(bins), 'confidence bin')} accuracy and reported "
            f"confidence differ by more than the tolerated {points(figures)}.{_smaller(in_groups)}"
        )
    every = "only confidence bin" if len(bins) == 1 else f"{len(bins)} confidence bins"
    return (
        f"Passed: in the {every} with samples accuracy and reported confidence differ by at most "
        f"the tolerated {points(figures)}{scope}.{_smaller(in_groups)}"
    )


def not_looked_at(figures: Figures) -> str:
    """End of a sentence that states what was not tested; empty if regions were searched."""
    if figures["regions"] is not None:
        return ""
    if figures["groups"]:
        return " (all samples and named groups only: regions of the inputs were not tested)"
    return " (bins only: groups and regions were not tested)"


def _advice(figures: Figures) -> str:
    """State what an audit of bins cannot detect, and which audit can."""
    if figures["regions"] is not None:
        return ""
    found = "An underconfident group can be offset in its bin by an overconfident one: "
    if figures["inputs_at_hand"]:
        how = "search regions of the inputs (`search_regions`)"
    else:
        how = (
            "name the groups that matter (`sensitive_features`), or search in columns recorded "
            "with the predictions (`search_regions`)"
        )
    return f" {found}{how}."


def _smaller(in_groups: Iterable[Row]) -> str:
    """Sentence on bins of groups with gaps that exceed the tolerance, but not significantly."""
    n_beyond = len(_beyond(in_groups))
    if not n_beyond:
        return ""
    return (
        f" In {counted(n_beyond, 'bin')} of groups they differ by more, but not significantly for "
        "so few samples."
    )


def findings(figures: Figures) -> list[str]:
    """Describe the findings; empty without significant deviations."""
    found, of_groups = _runs(figures["bins"]), _runs_of_groups(figures)
    shown = [("Of", row) for row in found[:MOST_BINS]]
    shown += [(f"Group {name}: of", row) for name, row in of_groups[:MOST_GROUPS]]
    sentences = [_finding(*entry, figures) for entry in shown[:1]]
    sentences += [_further_finding(*entry) for entry in shown[1:]]
    others = [f"{bin_range(row)} ({bin_finding(row)})" for row in found[MOST_BINS:]]
    others += [
        f"group {name}, {bin_range(row)} ({bin_finding(row)})"
        for name, row in of_groups[MOST_GROUPS:]
    ]
    if others:
        sentences.append(f"The reported confidence is also wrong in: {', '.join(others)}.")
    directions = {row["direction"] for row in [*found, *(row for _, row in of_groups)]}
    directions |= {region["direction"] for region in _found_regions(figures)}
    sentences += [_region(region, figures) for region in _found_regions(figures)]
    sentences += [UNDERCONFIDENT] * ("underconfident" in directions)
    sentences += [OVERCONFIDENT] * ("overconfident" in directions)
    return sentences + _tolerated(figures) + _within_chance(figures)


def meaning(figures: Figures) -> list[str]:
    """State what the verdict means and what it does not mean."""
    if figures["verdict"]["passed"]:
        sentences = [
            "Passing means that the reference set has no evidence of confidence that is wrong by "
            f"more than the tolerated {points(figures)}{_in_regions(figures)}. It does not mean "
            "that confidence is right: deviations smaller than those listed as detectable may "
            "exist."
        ]
    else:
        sentences = [
            "A finding shows that the reported confidence is wrong, but not why. A badly "
            "calibrated model cannot be distinguished from one whose confidence was altered on "
            "purpose; a finding is not proof of intent."
        ]
    sentences.append(
        "The audit does not cover inputs unlike those of the reference set, and it assumes that "
        "the model predicts for users in the same way as for the reference set."
    )
    # The largest of k probabilities is at least 1 / k, so bins below 1 / k are always empty.
    least = 0.0 if figures["classes"] is None else 1 / len(figures["classes"])
    # If many confidences are equal, quantile edges coincide and bins have no width.
    empty = [
        row
        for row in figures["bins"]
        if row["count"] == 0 and row["upper"] > max(least, row["lower"])
    ]
    if empty:
        sentences.append(
            f"No prediction of the reference set reported a confidence of {ranges(empty)}; "
            "nothing is known about predictions in this range."
        )
    return sentences


def _in_regions(figures: Figures) -> str:
    """Name the tolerance of regions, if regions were searched with a different tolerance."""
    given = figures["parameters"]
    if figures["regions"] is None or given["region_alpha"] == given["alpha"]:
        return ""
    return f", or in a region of the inputs by more than {points(figures, 'region_alpha')}"


def power(figures: Figures) -> list[str]:
    """State which deviations of bins, groups and regions the audit could have found."""
    filled = _filled(figures["bins"])
    deviating = _deviations({name: [row[name] for row in filled] for name in DETECTABLE.values()})
    sentences = []
    if deviating:
        sentences.append(
            f"{_likely(figures)}, the audit reports a bin whose accuracy {deviating}, "
            "depending on the number of samples in the bin. The audit spends four fifths of its "
            "error probability on confidence that is too low, and one fifth on confidence that is "
            "too high."
        )
    sentences += _power_in_groups(figures) + _cost_of_groups(figures)
    sentences += _power_in_regions(figures)
    return sentences + _undetectable(filled, figures)


def _deviations(gaps: Mapping[str, Iterable[float | None]]) -> str:
    """Deviations of the accuracy that are detected, in both directions; "" if none are."""
    return ", or ".join(
        f"{verb} its confidence by at least {sizes} percentage points"
        for direction, verb in VERBS.items()
        if (sizes := _from_to(gaps[DETECTABLE[direction]]))
    )


def _from_to(gaps: Iterable[float | None]) -> str:
    """Smallest and largest gap in percentage points, such as "5.8 to 9.4"; "" without gaps."""
    found = sorted({f"{100 * gap:.1f}" for gap in gaps if gap is not None}, key=float)
    return " to ".join(found[:: max(1, len(found) - 1)])


def _undetectable(filled: list[Row], figures: Figures) -> list[str]:
    """Name the bins in which no deviation could have been found, and the reason."""
    few: dict[str, list[Row]] = {}
    sure: dict[Direction, list[Row]] = {}
    for direction, way in WAYS.items():
        unseen = [row for row in filled if row[DETECTABLE[direction]] is None]
        sure[direction] = [row for row in unseen if _too_sure(row, direction, figures)]
        few[way] = [row for row in unseen if row not in sure[direction]]
    if few["too low"] == few["too high"]:
        few = {"wrong": few["too low"]}
    sentences = []
    for way, rows in few.items():
        if rows:
            sizes = [f"{bin_range(row)} ({amount(row['count'])})" for row in rows]
            sentences.append(
                "Without their neighbours, these bins have too few samples (number in brackets) "
                f"for a finding of {way} confidence: {', '.join(sizes)}."
            )
    return sentences + [
        f"For a reported confidence of {ranges(rows)}, the accuracy either cannot "
        f"{'exceed' if direction == 'underconfident' else 'fall short of'} the confidence by more "
        "than the tolerance, or can do so only by too little to be detected."
        for direction, rows in sure.items()
        if rows
    ]


def _power_in_groups(figures: Figures) -> list[str]:
    """State the smallest detectable deviations of each group."""
    groups, sentences = figures["groups"], []
    names = [f"detectable_{direction}_shift" for direction in WAYS]
    for name, way, limit in zip(names, WAYS.values(), ("100%", "0%"), strict=True):
        seen = sorted((g[name], g["name"]) for g in groups if g[name] is not None)
        if seen:
            shown = [f"{group} {100 * gap:.1f}" for gap, group in seen]
            if len(shown) > 2 * MOST_GROUPS:
                shown = [*shown[:MOST_GROUPS], "...", *shown[-MOST_GROUPS:]]
            sentences.append(
                f"{_likely(figures)}, the audit reports a group whose confidence is {way} in all "
                "bins by at least this number of percentage points (or by the entire distance to "
                f"{limit}): {', '.join(shown)}."
            )
    unseen = _groups_too_small(groups)
    if unseen:
        sentences.append(
            "Groups with too few samples for any finding: "
            f"{', '.join(unseen[:MOST_GROUPS])}{', ...' if len(unseen) > MOST_GROUPS else ''}."
        )
    return sentences


def _cost_of_groups(figures: Figures) -> list[str]:
    """Advise on too many or too small groups; state how they reduce the power for all samples."""
    groups = figures["groups"]
    if not groups:
        return []
    numbers = [
        column
        for column, n in Counter(_column_of_number(group["name"]) for group in groups).items()
        if column is not None and n > MOST_NUMBERS
    ]
    sentences = [
        f"Each number in column {column!r} is a group of its own; divide the column into ranges, "
        "such as age groups, before the audit."
        for column in numbers
    ]
    alone = _deviations(figures["without_groups"])
    if alone and (numbers or _groups_too_small(groups)):
        sentences.append(
            f"All samples share the error probability with {counted(len(groups), 'group')}, and "
            f"an audit with more groups detects fewer deviations. {_likely(figures)}, an audit "
            f"without groups reports a bin of all samples whose accuracy {alone}."
        )
    return sentences


def _groups_too_small(groups: Iterable[Row]) -> list[str]:
    """Names of the groups that are too small for the audit to detect any deviation."""
    names = [f"detectable_{direction}_shift" for direction in WAYS]
    return [group["name"] for group in groups if all(group[name] is None for name in names)]


def _column_of_number(group: str) -> str | None:
    """Column of a group such as age=37; None if its value is not a number."""
    column, _, value = str(group).rpartition("=")
    try:
        float(value)
    except ValueError:
        return None
    return column


def _power_in_regions(figures: Figures) -> list[str]:
    """State which regions the audit could have found."""
    regions = figures["regions"]
    if regions is None:
        return [
            "Regions of the inputs were not searched: confidence that is wrong for only a few "
            "inputs can be averaged out in their bins."
        ]
    if regions["n_searched"] == 0:
        return [
            "No region of the inputs was compared: no condition on a column holds for at least 10 "
            "samples but not for all."
        ]
    shown = [
        f"{100 * each['share']:.0f}% of the samples searched ({each['count']:,}) and "
        f"{limits} of them are right"
        for each in regions["detectable"]
        if (limits := _limits(each))
    ]
    compared = f"{regions['n_searched']:,} regions of the inputs were compared"
    searched = f"{compared}{where_searched(figures)}."
    if not shown:
        return [f"{searched} There are too few samples to find any region."]
    claimed = f"{100 * regions['detectable'][0]['confidence']:.0f}%"
    return [
        f"{searched} {_likely(figures)}, a region with confidence {claimed} is found if it has "
        f"{', '.join(shown)}."
    ]


def _limits(region: Row) -> str:
    """Accuracies at which a region is found, such as "at least 71.2% or at most 47.0%"."""
    low, high = region["detectable_underconfidence"], region["detectable_overconfidence"]
    limits = [] if low is None else [f"at least {region['confidence'] + low:.1%}"]
    limits += [] if high is None else [f"at most {region['confidence'] - high:.1%}"]
    return " or ".join(limits)


def _likely(figures: Figures) -> str:
    return f"With a probability of {100 * figures['power']:.3g}%"


def where_searched(figures: Figures) -> str:
    """State in which samples regions were searched; "" if in all samples."""
    searched, every = amount(figures["regions"]["n_samples"]), amount(figures["n_samples"])
    return "" if searched == every else f" in {searched} of the {every} samples, drawn at random"


def _too_sure(row: Row, direction: Direction, figures: Figures) -> bool:
    """Whether even a million right (or wrong) predictions would not be a finding in a bin."""
    claimed = row["confidence"] if direction == "underconfident" else 1 - row["confidence"]
    edge = claimed + figures["parameters"]["alpha"]
    needed = planned_threshold(
        len(figures["bins"]),
        level=1 - figures["parameters"]["confidence_level"],
        n_families=figures["n_families"],
        direction=direction,
    )
    return edge >= 1 or -MOST_SAMPLES * math.log(edge) < needed


def _finding(start: str, row: Row, figures: Figures) -> str:
    """Sentence on a finding: its numbers and p-value."""
    size = "large" if row["direction"] == "underconfident" else "small"
    were = "was" if row["correct"] == 1 else "were"
    return (
        f"{start} the {counted(row['count'], 'prediction')} that reported a confidence between "
        f"{bin_range(row, joint='and')} ({row['confidence']:.1%} on average), {row['correct']:,} "
        f"{were} right ({row['accuracy']:.1%}). If the reported confidence were right within the "
        f"tolerated {points(figures)}, such a {size} number of right predictions would occur with "
        f"a probability {probability(row)} (corrected for all tests)."
    )


def _region(region: Row, figures: Figures) -> str:
    """Sentence on a finding in a region."""
    were = "was" if region["correct"] == 1 else "were"
    searched = figures["regions"]["n_samples"]
    part = (
        ""
        if amount(searched) == amount(figures["n_samples"])
        else f" among the {amount(searched)} searched"
    )
    return (
        f"Region {region['rule']}: of its {counted(region['count'], 'prediction')}{part}, "
        f"with a mean confidence of {region['confidence']:.1%}, "
        f"{region['correct']:,} {were} right ({region['accuracy']:.1%}). If confidence were "
        f"right within {points(figures, 'region_alpha')}, this would occur in any of "
        f"{figures['regions']['n_searched']:,} regions with a probability {probability(region)}."
    )


def _found_regions(figures: Figures) -> list[Row]:
    return [] if figures["regions"] is None else figures["regions"]["found"]


def _further_finding(start: str, row: Row) -> str:
    """Short sentence on a finding after the first one."""
    were = "was" if row["correct"] == 1 else "were"
    return (
        f"{start} the {counted(row['count'], 'prediction')} between {bin_range(row, joint='and')} "
        f"({row['confidence']:.1%} on average), {row['correct']:,} {were} right "
        f"({row['accuracy']:.1%}), which would occur with a probability {probability(row)}."
    )


def _runs_of_groups(figures: Figures) -> list[tuple[str, Row]]:
    """Findings of groups by p-value: first the strongest of each group, then all others."""
    found = [
        (rank, group["name"], row)
        for group in figures["groups"]
        for rank, row in enumerate(_runs(group["bins"]))
    ]
    found.sort(key=lambda entry: (entry[0] > 0, entry[2]["p_value"]))
    return [(name, row) for _, name, row in found]


def _tolerated(figures: Figures) -> list[str]:
    """Sentences on bins with a significant deviation within the tolerance."""
    found = [row for row in figures["bins"] if bin_finding(row) == "tolerated"]
    in_groups = sum(bin_finding(row) == "tolerated" for g in figures["groups"] for row in g["bins"])
    sentences = []
    if found:
        described = [
            f"between {bin_range(row, joint='and')} it is {distance(row)} "
            f"({counted(row['count'], 'prediction')})"
            for row in found
        ]
        sentences.append(
            f"The reported confidence deviates significantly, but within the tolerated "
            f"{points(figures)}: {', '.join(described)}."
        )
    if in_groups:
        sentences.append(
            f"In {counted(in_groups, 'bin')} of groups, too, the reported confidence deviates "
            "significantly, but within the tolerance."
        )
    return sentences


def _within_chance(figures: Figures) -> list[str]:
    """Sentences on bins that fail Algorithm 1: beyond the tolerance, but not significantly."""
    sentences = []
    in_groups = sum(len(_beyond(group["bins"])) for group in figures["groups"])
    if in_groups:
        sentences.append(
            f"In {counted(in_groups, 'bin')} of groups the difference is larger than tolerated, "
            "but not significantly."
        )
    beyond = _beyond(figures["bins"])
    if not beyond:
        return sentences
    described = [
        f"{bin_range(row)} ({counted(row['count'], 'prediction')}, "
        f"{row['confidence']:.1%} reported, {row['accuracy']:.1%} right)"
        for row in beyond
    ]
    return [
        f"The difference is larger than the tolerated {points(figures)}, but not significantly "
        f"for this number of predictions: {', '.join(described)}. Algorithm 1 of the "
        "published audit leaves no margin for sampling error, and would fail the model for this.",
        *sentences,
    ]


def _filled(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["count"] > 0]


def _deviating(rows: Iterable[Row]) -> list[Row]:
    """Bins that themselves deviate as stated by their finding; a finding may have further bins."""
    return [row for row in rows if bin_finding(row) in ("too low", "too high")]


def _runs(rows: Iterable[Row]) -> list[Row]:
    """Findings, most significant first, each with its bins merged into one."""
    parts: dict[int, list[Row]] = {}
    for row in rows:
        if row["significant"]:
            parts.setdefault(row["finding"], []).append(row)
    return [_together([row for row in parts[k] if row["count"]]) for k in sorted(parts)]


def _together(rows: list[Row]) -> Row:
    count, correct = (sum(row[name] for row in rows) for name in ("count", "correct"))
    confidence = sum(row["count"] * row["confidence"] for row in rows) / count
    return {
        **rows[0],
        "upper": rows[-1]["upper"],
        "count": count,
        "correct": correct,
        "confidence": confidence,
        "accuracy": correct / count,
        "gap": correct / count - confidence,
        "within_alpha": False,
    }


def _beyond(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not row["within_alpha"] and not row["significant"]]
