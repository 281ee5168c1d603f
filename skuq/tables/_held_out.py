"""Held-out rows: the split, checks for leakage, conformal limits, and quality measured on them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from skuq.base import BoolArray, FloatArray, IntArray, PredictionInterval
from skuq.calibration import clopper_pearson, conformal_limit
from skuq.labels import as_text, codes_of, positions_of, proportional_order
from skuq.metrics import negative_log_likelihood
from skuq.quantities import check_coverage
from skuq.residuals import LEVELS, central_interval, interval_scores
from skuq.tables._columns import TableError, date_column, is_number, parsed_dates
from skuq.tables._target import true_values
from skuq.tables._training import encoded
from skuq.validation import group_codes, independent_counts, repeated_rows, whole_groups

# Names of the columns in which `with_marks` stores the group, time and weight of each row.
MARKS = {"groups": "(groups)", "time": "(time)", "sample_weight": "(weight)"}
FEWEST_GROUPS = 25  # at least about this many groups are held out, or a third if that is fewer
N_PARTS = 50  # parts of the held-out rows or groups; limits for a part come from all other parts
TAIL = 0.025  # probability that the coverage of new rows is below its lower limit
# With `time`, a row's weight halves per HALF_LIFE later rows (HALF_LIFE_SHARE of all, if more).
HALF_LIFE, HALF_LIFE_SHARE = 20, 0.1
MAX_HELD_OUT = 2000  # rows held out for calibration, or a fifth of the table if that is less
# Equal rows count as duplicates if there are more than OFTEN times as many equal pairs as expected
# with independent columns. In addition, at least a share FEWEST_DIFFERENT of the rows must be
# distinct, or the probability that a row equals another one by chance must be at most RARELY.
FEWEST_DIFFERENT, OFTEN, RARELY = 0.25, 3, 0.01
FEWEST_TO_SUSPECT = 100  # minimum number of held-out rows for a check for leakage
# A model is suspicious if its loss is at most SURE times the loss of a constant prediction. Then a
# column leaks a numeric target if a model of this column alone has at most the same error as the
# suspicious model, or at most NEARLY_NO_ERROR times the error of a constant prediction.
SURE, NEARLY_NO_ERROR = 0.05, 0.01
MAX_TO_SUSPECT = 10_000  # maximum number of training rows for a model of a single column
MOST_GROUPS, N_TENTHS = 20, 10  # maximum categories of each of `held_out_groups_`; parts by time
FEWEST_OF_CLASS, ENOUGH_HELD = 3, 20  # held-out rows needed to measure a class, and to report one
PREDICTION, TARGET = "prediction", "(target)"
SMALLEST = "The smallest possible p-value is {:.2g}."
# A whole number. It may end in ".0", because pandas stores integers as floats if some are missing.
WHOLE = re.compile(r"[0-9]{1,15}(\.0)?")

Hashes = NDArray[np.uint64]


class Marks(NamedTuple):
    """Group, time and weight of each row, (n_rows,) each; None if not given."""

    groups: IntArray | None = None
    time: NDArray[Any] | None = None  # numbers or dates
    weight: FloatArray | None = None

    def at(self, rows: Any) -> Marks:
        """Return the marks of the rows at these positions, or where a mask is True."""
        return Marks(*(None if each is None else each[rows] for each in self))

    @property
    def folds(self) -> IntArray | None:
        """Number of each row's group in cross-validation: its tenth by time, or the given group."""
        if self.time is None:
            return self.groups
        return np.searchsorted(np.sort(self.time), self.time) * N_TENTHS // len(self.time)

    def of_results(self) -> dict[str, Any]:
        """Return columns for the held-out results: group, rank by time, and independent rows."""
        time = None if self.time is None else np.searchsorted(np.sort(self.time), self.time)
        found: dict[str, Any] = {"group": self.groups, "time": time, "counts": None}
        if self.groups is not None or self.weight is not None:
            found["counts"] = independent_counts(self.weight, self.groups)
        return {name: values for name, values in found.items() if values is not None}


class Parts(NamedTuple):
    """Clean training rows and held-out rows, with their targets."""

    X: pd.DataFrame
    y: NDArray[Any]
    X_held: pd.DataFrame
    y_held: NDArray[Any]
    notes: list[str]
    labels: pd.Index[Any]  # index of the held-out rows in their table
    marks: Marks = Marks()  # of the training rows
    marks_held: Marks = Marks()
    measured_rows: str = ""


def hold_out_part(
    table: pd.DataFrame,
    X: pd.DataFrame,
    y: NDArray[Any],
    regression: bool,
    random_state: int,
    marks: Marks,
) -> Parts:
    """Split a table into training and held-out rows; `X` and `y` are its clean rows and targets."""
    copies = copies_in(table)
    if marks.time is not None:
        fit, held, where = latest(marks.time, random_state)
        if not regression and not np.isin(y[held], y[fit]).all():
            raise TableError(
                "Some classes occur only in the latest rows, which are held out; remove the rows "
                "of these classes, or leave out `time`."
            )
    elif marks.groups is not None:
        n_groups = len(np.unique(marks.groups))
        fewest = min(FEWEST_GROUPS, n_groups // 3) * len(y) // n_groups
        fit, held = hold_out(y, regression, random_state, marks.groups, fewest)
        n_groups = len(np.unique(marks.groups[held]))
        if np.isin(marks.groups[fit], marks.groups[held]).all():
            raise TableError("There are too few `groups` to hold out some of them.")
        where = f"all rows of {n_groups} groups, each counted once"
    else:
        (fit, held), where = hold_out(y, regression, random_state, copies), ""
    counts = marks.at(held).of_results().get("counts", np.ones(len(held)))
    found = [
        f"{len(fit)} rows were used for training; {len(held)} {'was' if len(held) == 1 else 'were'}"
        f" held out to calibrate and to measure{where and ': '}{where}. "
        f"{SMALLEST.format(1 / (1 + counts.sum()))}"
    ]
    if copies is not None:
        told = repeated_rows(
            pd.Series(copies).duplicated(keep=False).sum(), " of the training table"
        )
        found.append(f"{told} Equal rows were kept on one side of the split.")
    X_fit, X_held = (X.iloc[part].reset_index(drop=True) for part in (fit, held))
    own = marks.at(fit), marks.at(held)
    return Parts(X_fit, y[fit], X_held, y[held], found, table.index[held], *own, where)


def latest(time: NDArray[Any], random_state: int) -> tuple[IntArray, IntArray, str]:
    """Return positions of earlier rows and of held-out late rows, and describe the late rows."""
    start = np.sort(time)[-max(1, len(time) // 5)]
    late = time >= start
    from_on = f"{start:.6g}" if time.dtype.kind == "f" else str(pd.Timestamp(start))
    from_on = from_on.removesuffix(" 00:00:00")
    if late.all():
        raise TableError(f"`time` is {from_on} in more than four fifths of the rows; omit it.")
    held = np.random.RandomState(random_state).permutation(np.flatnonzero(late))[:MAX_HELD_OUT]
    where = f"the latest {late.mean():.0%} of the rows, from {from_on} on"
    return np.flatnonzero(~late), np.sort(held), where


def with_marks(
    table: pd.DataFrame, given: Mapping[str, Any], which: str
) -> tuple[pd.DataFrame, list[str]]:
    """Add the columns `MARKS`, drop rows of weight 0; also return columns that are not features."""
    apart: list[str] = []
    for name, values in given.items():
        column = true_values(table, values, which, f"`{name}`")
        if name == "sample_weight":
            column = pd.to_numeric(column, errors="coerce").astype(float)
            if not np.isfinite(column).all() or column.min() < 0 or column.max() == 0:
                raise TableError(f"Weights (`{name}`) must be numbers >= 0, and not all 0.")
        elif name == "time" and column.isna().any():
            raise TableError("`time` must have a value in each row; drop rows without a time.")
        table = table.assign(**{MARKS[name]: column})
        apart += [MARKS[name], *[values] * (isinstance(values, str) and name != "time")]
    if MARKS["sample_weight"] in table:
        table = table[table[MARKS["sample_weight"]] > 0]
    return table, apart


def marks_of(table: pd.DataFrame) -> Marks:
    """Read the columns that `with_marks` added."""
    groups, time, weight = (table.get(name) for name in MARKS.values())
    if time is not None and not is_number(time):
        dates = date_column(time)
        if dates is None or (time := parsed_dates(time, dates.format)).isna().any():
            raise TableError("`time` must hold numbers or dates in each row.")
    elif time is not None:
        time = time.astype(float)
    try:
        codes = None if groups is None else group_codes(groups, len(table))
    except ValueError as error:
        raise TableError(str(error)) from error
    values = None if time is None else time.to_numpy()
    weights = None if weight is None or weight.nunique() == 1 else weight.to_numpy()
    return Marks(codes, values, weights)


def ids_are_groups(table: pd.DataFrame) -> bool:
    """Whether some id (first column) occurs in rows that differ in other columns."""
    ids = table.iloc[:, 0]
    several = ids.duplicated(keep=False) & ids.notna()
    return len(np.unique(_hashes(table[several]))) > ids[several].nunique()


def drop_overlap(parts: Parts, ids: tuple[pd.Series, pd.Series] | None) -> Parts:
    """Drop held-out rows that are also training rows; `ids` are the id columns of both tables."""
    X, y, X_held, y_held, _, labels, own, held, _ = parts
    known = overlapping_rows(X.assign(**{TARGET: y}), X_held.assign(**{TARGET: y_held}), ids)
    new = ~known
    found = [
        f"{new.sum()} rows of the held-out table are used to calibrate and to measure. "
        f"{SMALLEST.format(1 / (1 + new.sum()))}"
    ]
    if (copies := copies_in(X_held[new].assign(**{TARGET: y_held[new]}))) is not None:
        n_copies = pd.Series(copies).duplicated(keep=False).sum()
        found.append(repeated_rows(n_copies, " of the held-out table"))
    if known.any():
        found.append(
            f"{known.sum()} of the {len(new)} held-out rows are also in the training table (with "
            "equal values or equal ids); they are not used to calibrate or to measure."
        )
    X_held, marks = X_held[new].reset_index(drop=True), held.at(new)
    return Parts(X, y, X_held, y_held[new], found, labels[new], own, marks)


def hold_out(
    y: NDArray[Any],
    regression: bool,
    random_state: int,
    copies: NDArray[Any] | None = None,  # rows with equal values stay on one side of the split
    fewest: int = 1,
) -> list[IntArray]:
    """Return positions of training rows (at least one of each class) and of held-out rows."""
    n_held = max(fewest, min(MAX_HELD_OUT, len(y) // 5))
    if regression:
        split = train_test_split(np.arange(len(y)), test_size=n_held, random_state=random_state)
    else:
        # If a class has two or more rows, the first n_held of `order` have at most half of these.
        random = np.random.RandomState(random_state)
        order = proportional_order(y, random.permutation(len(y)), random)
        split = [order[n_held:], order[:n_held]]
    if copies is None:
        return split
    held = whole_groups(np.isin(np.arange(len(y)), split[1]), copies)
    if not regression:
        held &= np.isin(y, y[~held])  # every class keeps training rows
    if held.all() or not held.any():
        return split
    return [np.concatenate([part[held[part] == side] for part in split]) for side in (0, 1)]


def copies_in(frame: pd.DataFrame) -> Hashes | None:
    """Return a hash of each row if some rows are duplicates, else None."""
    rows = _hashes(frame)
    counts = np.unique(rows, return_counts=True)[1]
    if len(counts) == len(rows):
        return None
    n_pairs, n_all = (counts * (counts - 1)).sum(), len(rows) * (len(rows) - 1)
    chance = _coincidence(frame, rows)
    if len(counts) < FEWEST_DIFFERENT * len(rows) and len(counts) * chance > RARELY:
        return None
    return rows if n_pairs > OFTEN * n_all * chance else None


def _hashes(frame: pd.DataFrame | pd.Series) -> Hashes:
    hashes: Any = pd.util.hash_pandas_object(frame, index=False)
    return np.asarray(hashes, dtype=np.uint64)


def _coincidence(frame: pd.DataFrame, rows: Hashes) -> float:
    """Estimate the probability that two rows are equal by chance, if columns are independent."""
    different = frame[~pd.Series(rows).duplicated().to_numpy()]
    n_pairs, probability = max(1, len(different) * (len(different) - 1)), 1.0
    for name in different.columns:
        counts = np.unique(_hashes(different[name]), return_counts=True)[1]
        probability *= float((counts * (counts - 1)).sum() / n_pairs)
    return probability


def overlapping_rows(
    train: pd.DataFrame,
    held_out: pd.DataFrame,
    ids: tuple[pd.Series, pd.Series] | None = None,  # training, held-out
) -> BoolArray:  # (n_held_out,)
    """Return a mask of held-out rows that are also training rows; raise an error if all are."""
    rows = _hashes(train)
    known = np.isin(_hashes(held_out), rows)
    n_different = len(np.unique(rows))
    few_values = n_different < FEWEST_DIFFERENT * len(rows)
    if few_values or known.mean() <= OFTEN * n_different * _coincidence(train, rows):
        known[:] = False
    if ids is not None:
        known |= _named_alike(*ids)
    if known.all():
        raise TableError(
            "All rows of the held-out table are also in the training table (with equal values or "
            "equal ids), so the model cannot be evaluated on them; pass rows that were not used to "
            "train it, or omit `held_out` to hold out a fifth of the training table."
        )
    return known


def _named_alike(first: pd.Series, second: pd.Series) -> BoolArray:
    """Return a mask of ids in `second` that occur in `first`; missing ids never match."""
    # Compare as text: pandas reads a whole column as text if one id is not a number.
    names = [each.map(as_text, na_action="ignore").astype(object) for each in (first, second)]
    if all(WHOLE.fullmatch(name) for each in names for name in each.dropna()):
        names = [each.map(lambda name: int(float(name)), na_action="ignore") for each in names]
    return (names[1].isin(names[0]) & names[1].notna()).to_numpy()


def leaking_columns(
    parts: Parts, losses: tuple[float, float], right: Any, numbers: Sequence[str]
) -> list[str]:
    """Return the columns that predict the target alone; [] unless the loss is suspiciously low."""
    loss, guessing = losses
    if len(parts.y_held) < FEWEST_TO_SUSPECT or loss > SURE * guessing:
        return []
    some = np.random.default_rng(0).permutation(len(parts.y))[:MAX_TO_SUSPECT]
    y, found = parts.y[some], []
    # A leaked column determines a class by a simple rule, so a small tree is enough.
    models: list[Any] = [DecisionTreeRegressor(min_samples_leaf=2, random_state=0)]
    models += [make_pipeline(SimpleImputer(), LinearRegression())]
    if right is not None:
        models = [DecisionTreeClassifier(max_leaf_nodes=2 * len(np.unique(y)), random_state=0)]
    for name in parts.X.columns:
        X = parts.X[[name]].iloc[some]
        own = [name] if name in numbers else []
        encoder, codes = encoded(X, None, own, for_trees=True)
        new = encoder.transform(parts.X_held)
        predicted = [model.fit(codes, y).predict(new) for model in models]
        if right is not None:
            leaks = (predicted[0] == parts.y_held).mean() >= right.mean()
        else:
            errors = [((each - parts.y_held) ** 2).mean() for each in predicted]
            leaks = min(errors) <= max(loss, NEARLY_NO_ERROR * guessing)
        found += [name] if leaks else []
    return found


def prediction_sets(proba: FloatArray, limit: Any, predicted: IntArray) -> BoolArray:
    """Return a mask of the classes in each prediction set, (n_rows, n_classes).

    A set contains the most probable class, the predicted class, and all classes with a score of at
    most `limit`. The score is one minus the probability of the class (Sadinle, Lei, Wasserman,
    "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels", Journal of the American
    Statistical Association 114, 2019).
    """
    inside: BoolArray = 1 - proba <= np.reshape(limit, (-1, 1))
    best = proba.argmax(axis=1)
    for codes in (best, np.where(predicted < 0, best, predicted)):  # -1: model rejected the row
        inside[np.arange(len(proba)), codes] = True
    return inside


def fewest_held_out(coverage: float) -> int:
    """Return the smallest number of held-out rows for which the conformal limit is finite."""
    return math.ceil(coverage / (1 - coverage) - 1e-9)


class HeldOutMixin:
    """Mixin for `TableModel`: quality on held-out rows, and conformal limits from these rows."""

    task_: str
    classes_: Any  # None for regression, like held_out_proba_
    held_out_proba_: Any
    quantities_: Any  # None for classification, like _held_out_quantiles
    _held_out_quantiles: Any
    _held_out_groups: pd.DataFrame
    held_out_: pd.DataFrame
    comparison_: Any
    name_: str
    measured_rows_ = ""
    random_state: int

    def measured_loss(self) -> tuple[float, float]:
        """Return held-out loss (log loss, nats; squared error) of model and constant prediction."""
        label = self.held_out_["label"]
        if self.classes_ is None:
            error = self.held_out_mean((label - self.held_out_[PREDICTION]) ** 2)
            return error, self.held_out_mean((label - self.held_out_mean(label)) ** 2)
        codes = codes_of(label.to_numpy(), self.classes_, "label")  # the metric refuses date labels
        given: dict[str, Any] = {"classes": np.arange(len(self.classes_))}
        given["sample_weight"] = self._counts
        loss = negative_log_likelihood(codes, self.held_out_proba_, **given)
        share = pd.Series(self._counts).groupby(codes).sum() / self.n_effective_
        return loss, float(-(share * np.log(share)).sum())

    @property
    def _counts(self) -> FloatArray:
        """Number of independent rows that each held-out row counts as, (n_held_out,)."""
        held = self.held_out_
        return held["counts"].to_numpy() if "counts" in held else np.ones(len(held))

    @property
    def n_effective_(self) -> float:
        """Effective number of held-out rows; each group counts as one row."""
        return float(self._counts.sum())

    def held_out_mean(self, values: Any) -> float:
        """Return the weighted mean of `values` over the held-out rows, without missing values."""
        known = np.asarray(values, np.float64)
        rows = ~np.isnan(known)
        return float(np.average(known[rows], weights=self._counts[rows])) if rows.any() else np.nan

    def measured_coverage(self, coverage: float = 0.9, *, by: str | None = None) -> Any:
        """Measure coverage and size of prediction sets or intervals on held-out rows.

        The held-out rows (with `groups`: the held-out groups) are split into 50 parts; the sets or
        intervals of each part are calibrated on the other parts. With `time`, the earlier half of
        the rows calibrates, and only the later half is measured. Coverage and size are NaN if fewer
        than ``coverage / (1 - coverage)`` rows (or groups) calibrate: then no value is excluded.

        Parameters
        ----------
        coverage : float, default=0.9
            Nominal coverage of the sets or intervals.
        by : str, default=None
            Column of `held_out_groups_`; its categories are measured separately. Coverage is
            nominal on average over all rows, not in each group.

        Returns
        -------
        coverage, size : float
            Share of the rows whose set or interval contains the true value, and mean number of
            classes in a set, or median width of the intervals. With `by`, a DataFrame with one row
            per group: ``rows``, ``coverage`` and ``size``.
        """
        covered, size = self._measured(coverage)
        middle = "median" if self.classes_ is None else "mean"
        if by is None:
            size = size[~np.isnan(size)] if np.isfinite(size).any() else size
            return self.held_out_mean(covered), float(getattr(np, middle)(size))
        if by not in self.held_out_groups_:
            known = ", ".join(map(repr, self.held_out_groups_))
            raise ValueError(f"`by` must be one of {known}, got {by!r}.")
        found = pd.DataFrame({"coverage": covered, "size": size})
        return (
            found.groupby(self._held_out_groups[by].to_numpy())
            .agg(rows=("coverage", "size"), coverage=("coverage", "mean"), size=("size", middle))
            .rename_axis(by)
        )

    def coverage_limits(self, coverage: float = 0.9) -> tuple[float, float]:
        """Return 95 % limits for the coverage of new rows; NaN if it is not measured.

        Given the held-out rows, the coverage of new rows has a beta distribution (Vovk,
        "Conditional Validity of Inductive Conformal Predictors", ACML 2012); its quantiles are
        Clopper-Pearson limits. A group counts as one row, since its rows may be covered together.
        """
        covered = self._measured(coverage)[0]
        share, n_rows = self.held_out_mean(covered), self._calibration_counts().sum()
        lower, upper = clopper_pearson([share * n_rows], [n_rows], TAIL)
        return (np.nan, np.nan) if np.isnan(share) else (float(lower[0]), float(upper[0]))

    def unmeasured_classes(self) -> pd.Series:
        """Count held-out rows of classes with fewer than 3; empty with under 20 rows in all."""
        counts = self.held_out_["label"].value_counts().reindex(self.classes_, fill_value=0)
        return counts[(counts < FEWEST_OF_CLASS) & (counts.sum() >= ENOUGH_HELD)]

    @property
    def held_out_groups_(self) -> list[str]:
        """Text columns with up to 20 categories, which `measured_coverage` accepts as `by`."""
        return [*self._held_out_groups.columns]

    def measured_by_class(self, coverage: float = 0.9) -> pd.DataFrame:
        """Return ``rows``, ``accuracy`` and ``coverage`` (`measured_coverage`) of each true class.

        The coverage of a rare class may be much lower than the nominal coverage of all rows.
        """
        self._require("classification", "classes")
        held = self.held_out_
        right = held[PREDICTION] == held["label"]
        by_row = pd.DataFrame({"accuracy": right, "coverage": self._measured(coverage)[0]})
        grouped = by_row.groupby(held["label"].to_numpy())
        measured = grouped.mean().rename_axis("class")
        measured.insert(0, "rows", grouped.size())
        return measured

    def measured_intervals(self, coverage: float = 0.9) -> PredictionInterval:
        """Return intervals of held-out rows as in `measured_coverage`; NaN if not measured."""
        check_coverage(coverage)
        self._require("regression", "intervals")
        limits = self._limits_of_others(coverage)
        ends = self.quantities_.interval(self._held_out_quantiles, coverage, limits)
        return PredictionInterval(*(np.where(np.isnan(limits), np.nan, end) for end in ends))

    def _require(self, task: str, what: str) -> None:
        if self.task_ != task:
            raise ValueError(f"A {self.task_} has no {what}.")

    def _limits_of_others(self, coverage: float) -> FloatArray:
        """Compute each held-out row's conformal limit from other rows; NaN if not measured."""
        held, n_rows, scores = self.held_out_, len(self.held_out_), self._conformal_scores(coverage)
        units = held["group"].to_numpy() if "group" in held else np.arange(n_rows)
        order = np.random.default_rng(self.random_state).permutation(np.unique(units))
        parts = [np.isin(units, part) for part in np.array_split(order, N_PARTS) if len(part)]
        if "time" in held:
            parts = [held["time"].to_numpy() > np.sort(held["time"])[n_rows // 2]]
        limits = np.full(n_rows, np.nan)
        for own in parts:
            counts = self._calibration_counts(~own)
            limits[own] = conformal_limit(scores[~own], coverage, counts)
        return np.full_like(limits, np.nan) if np.isinf(limits).any() else limits

    def _measured(self, coverage: float) -> tuple[FloatArray, FloatArray]:
        """Return coverage (0 or 1) and size of each row's set or interval; NaN if not measured."""
        check_coverage(coverage)
        labels = self.held_out_["label"].to_numpy()
        if self.quantities_ is not None:
            lower, upper = self.measured_intervals(coverage)
            covered = np.where(np.isnan(lower), np.nan, (lower <= labels) & (labels <= upper))
            return covered, upper - lower
        limits = self._limits_of_others(coverage)
        predicted = positions_of(self.held_out_[PREDICTION].to_numpy(), self.classes_)
        sets = prediction_sets(self.held_out_proba_, limits, predicted)
        covered = sets[np.arange(len(sets)), codes_of(labels, self.classes_, "label")]
        found = (np.where(np.isnan(limits), np.nan, each) for each in (covered, sets.sum(axis=1)))
        return tuple(found)  # type: ignore[return-value]

    def _limit(self, coverage: float) -> float:
        scores = self._conformal_scores(coverage)
        return conformal_limit(scores, coverage, self._calibration_counts())

    def _calibration_counts(self, rows: Any = slice(None)) -> FloatArray:
        """Return weights for conformal limits, with `time` larger for recent rows (Barber 2023)."""
        counts, held = self._counts[rows], self.held_out_.iloc[rows]
        if "time" not in held:
            return counts
        age = (held["time"].max() - held["time"]).to_numpy()
        counts = counts * 0.5 ** (age / max(HALF_LIFE, HALF_LIFE_SHARE * len(age)))
        of_unit = np.bincount(held["group"] if "group" in held else np.arange(len(age)), counts)
        return counts * (of_unit.sum() / (of_unit**2).sum())

    def _conformal_scores(self, coverage: float) -> FloatArray:
        """Compute one minus the true class's probability, or the interval score; (n_held_out,)."""
        label = self.held_out_["label"].to_numpy()
        if self.quantities_ is not None:
            return interval_scores(
                label, *central_interval(self._held_out_quantiles, LEVELS, coverage)
            )
        codes = codes_of(label, self.classes_, "label")
        proba: FloatArray = self.held_out_proba_[np.arange(len(codes)), codes]
        return 1 - proba
