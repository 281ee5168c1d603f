"""Sentences for the user on how a table was processed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from skuq.base import IntArray
from skuq.calibration import clopper_pearson
from skuq.explanations import SEPARATOR, ValueMarks
from skuq.imports import shown
from skuq.labels import as_text, counted
from skuq.tables._columns import Cells, place
from skuq.tables._held_out import HeldOutMixin, fewest_held_out
from skuq.tables._training import LABELS, Comparison

# A column with at most FEW_GROUPS values has categories, not groups. For other columns, up to
# MOST_PAIRS pairs of rows are compared; a note is given if chance makes all pairs agree with a
# probability below COINCIDENCE, or if there are FAR_MORE times as many alike rows as by chance.
FEW_GROUPS, MOST_PAIRS, COINCIDENCE, FAR_MORE = 20, 20_000, 1e-6, 100
IDS_ARE_GROUPS = (
    "Ids of the column {} occur in several rows that differ. Rows of the same id were kept "
    "together, as with `groups`, and coverage and p-values hold for rows of new ids."
)
MISTAKEN = 0.05  # maximum probability of one or more false warnings about classes
SHOWN_CLASSES = 5
PILED_UP = 0.25  # if this share of the targets is equal, a note states the coverage of the others
# A column is reported if its values are new in more than NEARLY_ALL of FEWEST_ROWS or more rows.
NEARLY_ALL, FEWEST_ROWS = 0.9, 10
UNUSUAL, N_DEVIATIONS = 0.05, 3  # p-value limit of unusual rows; standard deviations due to chance
# End of the name of a numeric column that was made from a date column.
PART = re.compile(r" \((?:days since [\d-]+|month|weekday|hour)\)$")
HELD_OUT_MAY_HAVE_TRAINED = (
    "If the given model was trained on the held-out rows, accuracy, calibration and coverage look "
    "better here than on new rows. Calibrate on rows that it has not seen (`held_out`)."
)


def missing_notes(counts: pd.Series, which: str) -> list[str]:
    return [f"Missing values in the {which}: {_listed(counts)}."] if counts.any() else []


def _listed(counts: pd.Series) -> str:
    return ", ".join(f"{shown(name)} ({count})" for name, count in counts[counts > 0].items())


def panel_notes(X: pd.DataFrame, dates: set[str], time: Any) -> list[str]:
    """Warn if rows that agree in one column always agree in others, more than by chance."""
    codes = {name: pd.factorize(X[name])[0] for name in X}
    agree = {n: float(((np.bincount(c + 1) / max(1, len(c))) ** 2).sum()) for n, c in codes.items()}
    found: dict[str, list[str]] = {}
    for name, own in ((str(n), c) for n, c in codes.items()):
        n_values = own.max(initial=-1) + 1
        column = X[name].dropna()
        fractions = is_numeric_dtype(column) and (column % 1 != 0).any()
        if not FEW_GROUPS < n_values <= len(column) / 2 or fractions or name == time:
            continue
        order = np.argsort(own, kind="stable")
        pairs = np.flatnonzero((np.diff(own[order]) == 0) & (own[order[1:]] >= 0))[:MOST_PAIRS]
        first, second = order[pairs], order[pairs + 1]
        found[name] = [
            str(other)
            for other, c in codes.items()
            if other != name
            and len(pairs) * np.log(agree[other]) < np.log(COINCIDENCE)
            and (c[first] == c[second]).all()
            and (X[other].to_numpy()[first] != X[name].to_numpy()[first]).any()  # not a copy
        ]
    name = max(found, key=lambda n: (len(found[n]), codes[n].max()), default="")
    if not found.get(name):
        return _notes_on_alike(codes, agree) if time is None else []
    parameter = "time" if name in dates else "groups"
    return [
        f"Column {shown(name)} has {codes[name].max() + 1} values in {len(X)} rows. Rows with the "
        f"same value always agree in {counted(len(found[name]), 'other column')} "
        f"({', '.join(map(shown, found[name][:3]))}). If new rows have other values of "
        f"{shown(name)}, all measured quality is overstated: pass `{parameter}={name!r}`."
    ]


def _notes_on_alike(codes: Mapping[Any, IntArray], agree: Mapping[Any, float]) -> list[str]:
    """Warn if most rows agree with another row in all columns but one, far more than by chance."""
    random, dtype = np.random.default_rng(0), np.uint64
    factors = random.integers(2**63, size=len(codes), dtype=dtype)
    hashes = {n: c.astype(dtype) * f for (n, c), f in zip(codes.items(), factors, strict=True)}
    total = sum(hashes.values())
    for name, own in hashes.items():
        counts, n_rows = np.unique(total - own, return_counts=True)[1], len(own)
        chance = np.prod([share for other, share in agree.items() if other != name])
        beyond = (counts * (counts - 1)).sum() > FAR_MORE * chance * n_rows * (n_rows - 1)
        n_alike = counts[counts > 1].sum()
        if beyond and len(counts) > FEW_GROUPS and n_alike > n_rows / 2:
            return [
                f"{n_alike} of {n_rows} rows agree with another row in all columns but "
                f"{shown(name)}. If new rows agree with none of these, all measured quality is "
                "overstated: pass as `groups` a column that is equal for rows that agree."
            ]
    return []


def leakage_warnings(columns: Sequence[str]) -> list[str]:
    if not columns:
        return []
    return [
        "One column alone predicts the target as well as the model does: "
        f"{' or '.join(map(shown, columns))}. "
        f"Is it known before the outcome? If not, leave it out (`drop={[*columns]}`): it will be "
        "unknown for new rows."
    ]


def cell_notes(cells: Sequence[Cells], table: pd.DataFrame) -> list[str]:
    """Note which cells do not have their column's type, and how they were treated."""
    notes = []
    for each in cells:
        verbs = ("holds", "counts", "is read as its midpoint")
        if len(each.rows) > 1:
            verbs = ("hold", "count", "are read as their midpoints")
        held = each.held if each.read else f"something {each.held.replace('not ', 'other than ')}"
        notes.append(
            f"{counted(len(each.rows), 'cell')} in column {shown(each.column)} {verbs[0]} {held}, "
            f"such as {each.texts[0]!r} ({place(table, int(each.rows[0]))}), and "
            f"{verbs[2] if each.read else f'{verbs[1]} as missing'}."
        )
    return notes


def unread_notes(unread: Mapping[int, str], which: str) -> list[str]:
    were = "was" if len(unread) == 1 else "were"
    return [
        f"{counted(len(unread), 'row')} of the {which} {were} dropped because of an unreadable "
        f"cell; the first is in {first}."
        for first in [*unread.values()][:1]
    ]


def class_notes(classes: Any) -> list[str]:
    names = [] if classes is None else [str(c) for c in classes if SEPARATOR in str(c)]
    return [
        f"Prediction sets separate classes by {SEPARATOR!r}, which the class name {name!r} "
        "contains; rename the class to keep the sets unambiguous."
        for name in names[:1]
    ]


def choice_notes(comparison: Comparison, name: str, regression: bool) -> list[str]:
    """Note which learner was selected, and the losses of all compared learners."""
    losses, label = comparison.losses, LABELS.get(name, name)
    if not losses:
        return [f"The model is {label}."]
    ranked = sorted(losses, key=losses.__getitem__)
    listed = ", ".join(f"{LABELS[other]} {losses[other]:.3f}" for other in ranked)
    measure = "mean squared error (relative to the mean)" if regression else "log loss"
    guessing = "" if regression else f"; the class frequencies alone {comparison.guessing:.3f}"
    return [
        f"The model is {label}, which had the smallest {measure} in {comparison.n_folds}-fold "
        f"cross-validation on {comparison.n_rows} rows: {listed}{guessing}."
    ]


def unsupported_notes(marks: ValueMarks, X: pd.DataFrame) -> list[str]:
    unsupported = pd.DataFrame(marks.unsupported, columns=X.columns)
    n_rows = int(unsupported.any(axis=1).sum())
    if 2 * n_rows <= len(unsupported):
        return []
    return [
        f"{n_rows} of the {len(unsupported)} held-out rows hold values absent from the training "
        f"rows: {_listed(unsupported.sum())}. P-values therefore do not mark rows with such "
        "values as unusual; leave out columns whose values are nearly always new (`drop`)."
    ]


def table_notes(counts: pd.DataFrame, *, measured_later: bool = False) -> list[str]:
    """Describe missing, unreadable and new values, from results of `TableModel.count`."""
    notes = []
    if counts["unread"].any():
        notes.append(
            "Some rows were not scored because of unreadable cells (named in their reasons): "
            f"{_listed(counts['unread'])}."
        )
    notes += missing_notes(counts["missing"], "table to predict")
    if counts["ranges"].any():
        notes.append(f"Ranges read as their midpoint: {_listed(counts['ranges'])}.")
    if counts["unseen"].any():
        notes.append(
            "Rows with values that were absent in training (unseen categories, or missing numbers "
            f"in columns without missing numbers in training): {_listed(counts['unseen'])}."
        )
    if counts["out_of_range"].any():
        notes.append(
            "Rows with numbers outside the range of the training rows: "
            f"{_listed(counts['out_of_range'])}. The model extrapolates there, and low uncertainty "
            "only means that alternative models extrapolate in the same way."
        )
    n_rows = int(counts["rows"].max())
    new = counts["unseen"] + counts["out_of_range"]
    return notes + new_value_notes(new, n_rows, measured_later=measured_later)


def new_value_notes(counts: pd.Series, n_rows: int, *, measured_later: bool = False) -> list[str]:
    """Advise to leave out columns, including dates, whose values are nearly always new."""
    if n_rows < FEWEST_ROWS:
        return []
    names = [str(name) for name in counts.index[counts > NEARLY_ALL * n_rows]]
    own = [PART.sub("", name) if PART.sub("", name) in counts.index else name for name in names]
    columns = list(dict.fromkeys(own))
    if not columns:
        return []
    dates = [name for name in columns if name not in names and not measured_later]
    later = [
        f"The stated coverage was not measured on later rows, such as those of this table; to "
        f"measure it on the latest training rows, pass `time={name!r}`."
        for name in dates[:1]
    ]
    return [
        *later,
        f"In nearly all of the {n_rows} rows, {' and '.join(map(shown, columns))} "
        f"{'has a value' if len(columns) == 1 else 'have values'} that did not occur in training. "
        f"If new rows always have such values, as with dates that only increase, leave out such "
        f"columns in training (`drop={columns}`), or convert dates to ages; otherwise, the model "
        "does not suit these rows.",
    ]


def guessing_note(model: HeldOutMixin) -> str:
    """Warn if the loss on folds and held-out rows is not below that of a constant prediction."""
    loss, guessing = model.measured_loss()
    folds, n_held = model.comparison_, len(model.held_out_)
    if model.name_ in folds.losses:  # for regression, these losses were divided by the variance
        unit = guessing if model.classes_ is None else 1.0
        weight = folds.n_rows / (folds.n_rows + n_held)
        loss = (1 - weight) * loss + weight * unit * folds.losses[model.name_]
        guessing = (1 - weight) * guessing + weight * unit * folds.guessing
    # If all held-out targets are equal, a constant prediction has loss 0: no model can be better.
    if loss < guessing or model.held_out_["label"].nunique() == 1:
        return ""
    if model.classes_ is None:
        return "The model is no better than always predicting the mean: do not use it."
    return (
        "The model is no better than always predicting the class frequencies: do not use it "
        f"(log loss {loss:.3f}; with the class frequencies alone {guessing:.3f})."
    )


def quality_warnings(model: HeldOutMixin, coverage: float) -> list[str]:
    """Return warnings of drift and of badly predicted classes, or of many equal targets."""
    found = (_piled_up_notes if model.classes_ is None else _weak_classes)(model, coverage)
    if "time" not in model.held_out_ or not model.coverage_limits(coverage)[1] < coverage:
        return found
    return [
        f"The rows change with time: with limits from the earlier half of {model.measured_rows_}, "
        f"the coverage of the later half is {model.measured_coverage(coverage)[0]:.1%} instead of "
        f"{100 * coverage:.4g}%. Expect no higher coverage for new rows; their p-values may be too "
        "small. Train again as soon as there are new labels.",
        *found,
    ]


def _weak_classes(model: HeldOutMixin, coverage: float) -> list[str]:
    measured, label = model.measured_by_class(coverage), model.held_out_["label"]
    tail = MISTAKEN / (2 * len(measured))  # Bonferroni correction for two tests of each class
    rows = np.ceil(measured["rows"].to_numpy() * (model.n_effective_ / len(label)))
    right = model.held_out_mean(model.held_out_["prediction"] == label)
    found = measured["accuracy"].to_numpy()
    notes, few = [], [f"{shown(as_text(c))} ({n})" for c, n in model.unmeasured_classes().items()]
    if few:
        more = f" and {len(few) - SHOWN_CLASSES} more" if len(few) > SHOWN_CLASSES else ""
        notes.append(
            f"Too few of the {len(label)} held-out rows have the classes "
            f"{', '.join(few[:SHOWN_CLASSES])}{more}: their probabilities and prediction sets "
            "cannot be measured."
        )
    weak = measured[clopper_pearson(np.rint(found * rows), rows, tail)[1] < right / 2]
    if len(weak):
        notes.append(
            f"The model is right for {right:.1%} of the held-out rows (always predicting the most "
            f"frequent class: {label.value_counts().max() / len(label):.1%}), but it finds few "
            f"rows of some classes: {_shares(weak, 'accuracy')}."
        )
    covered = measured["coverage"].to_numpy()
    if np.isnan(covered).any():  # there are too few held-out rows to measure the coverage
        return notes
    limit = clopper_pearson(np.rint(covered * rows), rows, tail)[1]
    missed = measured[(limit < coverage) & (1 - covered > 2 * (1 - coverage))]
    if len(missed):
        notes.append(
            f"Prediction sets have a coverage of {coverage:.4g} on average over all rows, not in "
            "each class. Held-out rows whose set contains their class: "
            f"{_shares(missed, 'coverage')}."
        )
    return notes


def _piled_up_notes(model: HeldOutMixin, coverage: float) -> list[str]:
    """If many held-out targets equal one value, such as 0, state the coverage of the others."""
    label = model.held_out_["label"].to_numpy()
    values, counts = np.unique(label, return_counts=True)
    lower, upper = model.measured_intervals(coverage)
    others = label != (value := values[counts.argmax()])
    measured, share = others & ~np.isnan(lower), model.held_out_mean(~others)
    if share < PILED_UP or not measured.any():
        return []
    inside = np.where(measured, (lower <= label) & (label <= upper), np.nan)
    return [
        f"{share:.0%} of the held-out targets are {value:g}. Intervals contain "
        f"{model.held_out_mean(inside):.0%} of the {measured.sum()} others; {coverage:.4g} is the "
        "coverage of all rows together."
    ]


def _shares(measured: pd.DataFrame, name: str) -> str:
    lowest = measured.nsmallest(SHOWN_CLASSES, name)
    return ", ".join(
        f"{share:.0%} of {rows} {shown(as_text(label))}"
        for label, share, rows in zip(lowest.index, lowest[name], lowest["rows"], strict=True)
    )


def coverage_notes(model: HeldOutMixin, coverage: float) -> list[str]:
    """State the measured coverage, or that there are too few rows for sets or intervals."""
    needed, n_held = fewest_held_out(coverage), int(model.n_effective_ + 1e-9)
    held, units = model.held_out_, counted(len(model.held_out_), "held-out row")
    if "group" in held:
        units += f" of {counted(held['group'].nunique(), 'group')}, each counted once"
    if n_held < needed:
        return [
            f"A coverage of {coverage:.4g} needs at least {counted(needed, 'held-out row')}, but "
            f"there {'is' if n_held == 1 else 'are'} {n_held}: prediction sets therefore contain "
            "all classes, and intervals all numbers."
        ]
    found, (low, high) = model.measured_coverage(coverage)[0], model.coverage_limits(coverage)
    if np.isnan(found):
        return [f"The coverage is not measured: {units} are only enough to calibrate."]
    what = "Intervals" if model.classes_ is None else "Prediction sets"
    text = (
        f"{what} of {100 * coverage:.4g}% contain the truth for {found:.1%} of {units}; for new "
        f"rows like these, the share is between {low:.1%} and {high:.1%} (95% limits)."
    )
    return [text]


def unusual_note(n_unusual: int, n_rows: int, model: HeldOutMixin) -> str:
    """State how many predicted rows are unusual, and whether chance explains so many."""
    were = f"{counted(n_rows, 'row')} {'was' if n_rows == 1 else 'were'} predicted."
    n_held = model.n_effective_
    if 1 / (1 + n_held) > UNUSUAL:
        return (
            f"{were} {int(n_held)} held-out rows are too few to call a row unusual: "
            f"{1 / UNUSUAL - 1:.0f} are needed, from a training table of "
            f"{5 * (1 / UNUSUAL - 1):.0f} rows."
        )
    share = n_unusual / max(1, n_rows)
    text = (
        f"{were} {n_unusual} of them ({share:.1%}) {'is' if n_unusual == 1 else 'are'} more "
        f"unusual than {1 - UNUSUAL:.0%} of the held-out rows."
    )
    deviation = (UNUSUAL * (1 - UNUSUAL) * (1 / max(1, n_rows) + 1 / n_held)) ** 0.5
    if share > UNUSUAL + N_DEVIATIONS * deviation:
        return text + (
            f" About {UNUSUAL:.0%} were expected, and chance does not explain the excess: the rows "
            "are distributed unlike the training rows, and the stated coverage may not hold."
        )
    return text + f" About {UNUSUAL:.0%} would be expected of rows like the training rows."
