"""Checks and conversion of the target of a table; its scale and predicted distributions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import infer_dtype, is_bool_dtype, is_datetime64_dtype, is_integer_dtype
from scipy.stats import skew

from skuq import residuals
from skuq.base import FloatArray, IntArray, predict_uncertainty
from skuq.files import stored
from skuq.imports import shown
from skuq.labels import as_text, counted
from skuq.residuals import LEVELS, RowNoise, central_interval, mean_and_variance
from skuq.tables._columns import TableError, doubts, is_number, place, require
from skuq.written_numbers import OTHER, NumberFormat, number_format, read_column

TARGET = "target"  # column name of a target passed as values without a name
TOTAL = re.compile(r"(grand |sub)?(totals?|sum|summe|gesamt)( .*)?:?", re.IGNORECASE)
MAX_CLASSES = 20  # maximum number of distinct integers for which task="auto" means classification
OFTEN = 10  # with this many rows per distinct integer, warn that the integers may be classes
SKEWED = 1.0  # smallest skewness for which the target's square root and logarithm are tried
SMALLEST_GAIN = 0.01  # relative improvement of the interval score needed to change the scale
# The least (largest) target bounds predictions if at least this share and number of rows have it.
PILED_UP, FEWEST_PILED_UP = 0.01, 5
NAMES = {1.0: "target", 0.5: "square root of the target", 0.0: "logarithm of the target"}
_MEDIAN = int(np.flatnonzero(LEVELS == 0.5)[0])


def with_target(table: pd.DataFrame, target: Any, which: str) -> tuple[pd.DataFrame, str]:
    """Return the table with the target as a column, and the name of that column."""
    column = true_values(table, target, which)
    if isinstance(target, str):
        return table, target
    name = getattr(target, "name", None)
    # A Series that was computed from a column of the table still has the name of this column.
    name = name if isinstance(name, str) and name and name not in table else TARGET
    if name in table or any(table[other].equals(column) for other in table):
        raise TableError(
            f"The {which} already has a column with the target values or with the name {name!r}; "
            "pass the name of this column as target, or rename or remove the column."
        )
    return table.assign(**{name: column}), name


def true_values(
    table: pd.DataFrame, target: Any, which: str, what: str = "The target"
) -> pd.Series:
    """Return the column that `target` names, or the values in `target`; errors call it `what`."""
    if isinstance(target, str):
        require(table, target, which)
        return table[target]
    values: Any = target.array if isinstance(target, pd.Series) else np.asarray(target)
    if np.ndim(values) != 1 or len(values) != len(table):
        raise TableError(
            f"{what} must be a column name of the {which}, or one value for each of its "
            f"{len(table)} rows, got shape {np.shape(values)}."
        )
    return pd.Series(values, index=table.index)


def feature_names(
    train: pd.DataFrame, target: str, drop: Sequence[str], id_column: str | None
) -> list[str]:
    """Return the feature columns; raise unless target, dropped and id column exist."""
    set_apart = [*drop] if id_column is None else [*drop, id_column]
    for name in (target, *set_apart):
        require(train, name, "training table")
    if target in set_apart:
        raise TableError(f"The target {target!r} cannot be dropped or used as the id column.")
    return [name for name in train.columns if name != target and name not in set_apart]


def is_regression(column: pd.Series, task: str) -> bool:
    """Whether the task is regression; with "auto", if numbers have fractions or many values."""
    if task != "auto":
        return task == "regression"
    column = column.dropna().infer_objects()
    if is_bool_dtype(column) or not is_number(column):
        return False
    values = column.to_numpy(dtype=float)
    return not (values == np.round(values)).all() or len(np.unique(values)) > MAX_CLASSES


def quantity_notes(y: FloatArray, target: str) -> tuple[list[str], list[str]]:
    """Return notes and warnings on integer targets that task="auto" treats as quantities."""
    n_values = len(np.unique(y))
    if not (y == np.round(y)).all():
        return [], []
    note = (
        f"The target {shown(target)} has {n_values} distinct whole numbers, which were treated as "
        'quantities; if they are classes, pass `task="classification"`.'
    )
    return ([], [note]) if len(y) >= OFTEN * n_values else ([note], [])


def target_format(column: pd.Series, task: str, decimal: str | None) -> NumberFormat | None:
    """Detect the number format of quantities stored as text; None for numbers and for classes."""
    if task == "classification" or is_number(column):
        return None
    format = number_format(column, decimal)
    if format and is_regression(pd.Series(read_column(column, format)[0]), task):
        return format
    return None


def rows_with_target(
    table: pd.DataFrame, target: str, format: NumberFormat | None, which: str, decimal: str | None
) -> tuple[pd.DataFrame, list[str]]:
    """Parse the target as `format` says, and drop rows without a target; also return warnings."""
    require(table, target, which)
    warned = []
    column = table[target]
    if format is not None and not is_number(column):
        format = format.in_file(table.attrs.get("decimal"), decimal)
        values, kinds = read_column(column, format)
        table = table.assign(**{target: values})
        bad = np.flatnonzero(kinds == OTHER)
        if len(bad):
            warned.append(
                f"The target {shown(target)} is not a {format.form()} in "
                f"{counted(len(bad), 'row')} of the {which}, such as "
                f"{as_text(column.iloc[bad[0]])!r} ({place(table, int(bad[0]))})."
            )
    missing = table[target].isna().to_numpy()
    if missing.all():
        raise TableError(
            f"The target {target!r} is missing in all rows of the {which}. Words such as None and "
            "NA in a file count as missing: if they are classes, rename them."
        )
    if not missing.any():
        return table, warned
    n_missing = int(missing.sum())
    warned.append(
        f"{counted(n_missing, 'row')} of the {which} without a target "
        f"{'was' if n_missing == 1 else 'were'} dropped; the first is "
        f"{place(table, int(missing.argmax()))}."
    )
    return table[~missing], warned


def target_warnings(table: pd.DataFrame, target: str, regression: bool) -> list[str]:
    """Warn of numbers that may mean "missing", names that may be one class, and a total row."""
    warned = doubts(target, table[target], is_number=regression)
    for name, value in table.iloc[-1].items():
        is_total = isinstance(value, str) and TOTAL.fullmatch(value.strip())
        if is_total and (table[name] == value).sum() == 1:
            return [
                *warned,
                f"The last row ({place(table, len(table) - 1)}) has {value!r} in column "
                f"{shown(name)}: if it sums up the other rows, remove it.",
            ]
    return warned


def without_lone_rows(table: pd.DataFrame, target: str) -> tuple[pd.DataFrame, list[str]]:
    """Drop classes of one row, which cannot be both learnt and measured; also return a warning."""
    texts = table[target].map(as_text)
    counts = texts.value_counts()
    lone = texts.isin(counts.index[counts == 1]).to_numpy()
    n_classes = len(counts) - lone.sum()
    if not lone.any() or n_classes < 2 or 2 * lone.sum() > len(table):
        return table, []
    named = [f"{shown(texts.iloc[k])} ({place(table, k)})" for k in np.flatnonzero(lone)[:5]]
    more = " and others" if lone.sum() > 5 else ""
    return table[~lone], [f"Classes with one row only were dropped: {', '.join(named)}{more}."]


def target_values(
    column: pd.Series, regression: bool, which: str, known: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return the checked target as floats or labels; labels must be in `known`, if passed."""
    target, column = str(column.name), column.infer_objects()
    if regression:
        return _quantities(column, target, which)
    labels = _labels(column)
    if known is None:
        floats = labels.dtype.kind == "f"
        if floats and not (np.isfinite(labels) & (labels == labels.round())).all():
            raise TableError(
                f"The target {target!r} has continuous numbers, not classes; bin them into "
                'classes, or predict the numbers (`task="regression"`).'
            )
        classes, counts = np.unique(labels, return_counts=True)
        if len(classes) < 2 or counts.min() < 2:
            raise TableError(
                f"The target {target!r} must have at least 2 classes with at least 2 rows each, "
                f"but {as_text(classes[counts.argmin()])!r} has {counts.min()} of {len(labels)} "
                'rows. Merge or remove rare classes, or predict a quantity (`task="regression"`).'
            )
        return labels
    # Match labels as text: integers in one table may be floats or text in the other.
    meaning = {as_text(label): label for label in np.unique(known)}
    texts = [as_text(label) for label in labels]
    unknown = next((text for text in texts if text not in meaning), None)
    if unknown is not None:
        raise TableError(
            f"The target {target!r} of the {which} has the class {unknown!r}, which is not in the "
            "training table; remove its rows, or train with this class."
        )
    return np.array([meaning[text] for text in texts], dtype=known.dtype)


def _quantities(column: pd.Series, target: str, which: str) -> FloatArray:
    if not is_number(column) or is_bool_dtype(column):
        value = next((value for value in column if not isinstance(value, float)), column.iloc[0])
        raise TableError(
            f"The target {target!r} must be numeric, got values such as {str(value)!r}; "
            'write plain numbers in one unit, or predict classes (`task="classification"`).'
        )
    values: FloatArray = column.to_numpy(dtype=float)
    if not np.isfinite(values).all() or values.min() == values.max():
        raise TableError(
            f"The target {target!r} of the {which} must be finite and vary; its values are from "
            f"{values.min():g} to {values.max():g}."
        )
    return values


def classes_as_given(values: NDArray[Any], column: pd.Series) -> NDArray[Any]:
    """Convert predicted classes back to the type of the training column, such as text to dates."""
    dates = is_datetime64_dtype(column) or infer_dtype(column, skipna=True) == "date"
    return values.astype("datetime64[ns]") if dates else values


def _labels(column: pd.Series) -> NDArray[Any]:
    for fits, kind in ((is_bool_dtype, bool), (is_integer_dtype, np.int64), (is_number, float)):
        if fits(column):
            return column.to_numpy(dtype=kind)
    return np.array([as_text(value) for value in column])


@stored("tables.target-scale")
@dataclass(frozen=True)
class TargetScale:
    """Power transform of a target, and the possible values of the target."""

    power: float  # 1, 0.5, or 0 for the logarithm
    low: float  # smallest and largest possible value; may be infinite
    high: float
    whole: bool  # whether all values are whole numbers
    smallest: float  # smallest and largest training target
    largest: float

    @classmethod
    def of(cls, y: FloatArray) -> Self:
        """Return the untransformed scale (power 1), with the bounds inferred from the targets."""
        smallest, largest = float(y.min()), float(y.max())
        enough = max(PILED_UP * len(y), FEWEST_PILED_UP)
        low = smallest if (y == smallest).sum() >= enough else -np.inf
        high = largest if (y == largest).sum() >= enough else np.inf
        low = max(low, 0.0) if smallest >= 0 else low
        return cls(1.0, low, high, bool((y == np.round(y)).all()), smallest, largest)

    def others(self, y: FloatArray) -> list[TargetScale]:
        """Return candidate scales for a skewed, non-negative target, and [] for other targets."""
        if self.smallest < 0 or skew(y) < SKEWED:
            return []
        powers = [0.5] if self.smallest == 0 else [0.5, 0.0]
        return [replace(self, power=power) for power in powers]

    def transformed(self, y: FloatArray) -> FloatArray:
        if self.power == 1:
            return y
        return np.log(y) if self.power == 0 else y**self.power

    def inverse(self, z: FloatArray) -> FloatArray:
        """Transform values back to units of the target, clipped to its bounds."""
        if self.power != 1:
            # Powers extrapolate badly: clip to the training range plus its width on each side.
            ends = self.transformed(np.array([self.smallest, self.largest]))
            z = np.clip(z, ends[0] - np.ptp(ends), ends[1] + np.ptp(ends))
            z = np.exp(z) if self.power == 0 else np.maximum(z, 0) ** (1 / self.power)
        return np.clip(z, self.low, self.high)

    def slope(self, y: FloatArray) -> FloatArray:
        """Return the derivative of the target with respect to its transformed value."""
        if self.power == 1:
            return np.ones_like(y)
        return y if self.power == 0 else 2 * np.sqrt(np.maximum(y, 0))

    def possible(self, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Shrink intervals to possible targets: clip ends to bounds; if `whole`, round inwards."""
        lower, upper = np.clip(lower, self.low, self.high), np.clip(upper, self.low, self.high)
        if not self.whole:
            return lower, upper
        middle = np.round((lower + upper) / 2)
        first, last = np.ceil(lower), np.floor(upper)
        empty = first > last
        return np.where(empty, middle, first), np.where(empty, middle, last)

    def notes(self, target: str) -> list[str]:
        if self.power == 1:
            return []
        return [
            f"The model was trained on the {NAMES[self.power]} {target!r}, which gave narrower "
            "intervals in cross-validation; all results are in the unit of the target."
        ]


class Forecast(NamedTuple):
    """Predictions of a batch of rows."""

    columns: dict[str, Any]  # prediction, parts of the uncertainty, and std; (n_rows,) each
    quantiles: FloatArray  # at `LEVELS`, (n_rows, n_levels), in units of the target
    disagreement: FloatArray  # epistemic std on the training scale, or a model's epistemic part


@stored("tables.quantities")
@dataclass(frozen=True, eq=False)
class Quantities:
    """Converts outputs of a regressor, fitted on `scale`, to distributions of the target."""

    scale: TargetScale
    noise: RowNoise | None = None  # from held-out rows; None if the regressor predicts quantiles

    @classmethod
    def of_held_out(
        cls,
        estimator: Any,
        inputs: Any,
        y: FloatArray,
        scale: TargetScale,
        seed: int,
        marks: tuple[FloatArray | None, IntArray | None],
    ) -> Quantities:
        """Learn the residuals of a regressor on held-out rows with weights and groups (`marks`)."""
        predicted = np.asarray(estimator.predict(inputs), np.float64)
        weight = np.ones(len(y)) if marks[0] is None else marks[0]
        work: dict[str, Any] = {"codes": marks[1], "seed": seed, "n_jobs": None}
        noise = RowNoise.fit(inputs, predicted, y - predicted, weight, **work)
        return cls(scale, noise)

    def predict(self, estimator: Any, inputs: Any, *, held_out: bool = False) -> Forecast:
        """Predict rows; if the noise was learnt from them (`held_out`), use out-of-bag noise."""
        predicted = np.asarray(estimator.predict(inputs), np.float64)
        own = None
        if hasattr(estimator, "predict_model_std"):
            std = estimator.predict_model_std(inputs)
        else:
            own = predict_uncertainty(estimator, inputs)
            # The epistemic uncertainty of a regressor with quantiles is a variance in squared units
            # of the target. Other regressors may use another unit: the std is set to 0.
            std = np.sqrt(own.epistemic) if self.noise is None else np.zeros(len(predicted))
        noise = self._noise_quantiles(estimator, inputs, predicted, held_out)
        together = residuals.widened(noise, noise[:, _MEDIAN], LEVELS, std)
        quantiles = self.scale.inverse(together)
        if self.scale.power != 1:
            predicted = mean_and_variance(quantiles, LEVELS)[0]
        elif self.noise is None:
            predicted = self.scale.inverse(predicted)
        parts: dict[str, Any] = {"prediction": predicted}
        if own is not None and self.noise is not None:
            parts |= {"total": own.total, "aleatoric": own.aleatoric, "epistemic": own.epistemic}
            parts["std"] = np.sqrt(mean_and_variance(quantiles, LEVELS)[1])
            std = own.part_or_total("epistemic")
        else:
            aleatoric = mean_and_variance(self.scale.inverse(noise), LEVELS)[1]
            epistemic = (self.scale.slope(predicted) * std) ** 2
            parts |= {"total": aleatoric + epistemic, "aleatoric": aleatoric}
            parts |= {"epistemic": epistemic, "std": np.sqrt(aleatoric + epistemic)}
        return Forecast(parts, quantiles, std)

    def _noise_quantiles(
        self, estimator: Any, inputs: Any, predicted: FloatArray, held_out: bool
    ) -> FloatArray:
        """Return quantiles of the target for noise without model spread; (n_rows, n_levels)."""
        if self.noise is None:
            options: dict[str, Any] = {}
            if hasattr(estimator, "predict_model_std"):
                options["model_std"] = np.zeros(len(predicted))
            known = getattr(estimator, "quantile_levels_", LEVELS)
            levels = np.clip(LEVELS, known[0], known[-1])
            return estimator.predict_quantiles(inputs, levels, **options)
        about = self.noise.quantiles(inputs, predicted, LEVELS)
        if held_out:
            forest = self.noise.forest
            about[forest.rows] = forest.out_of_bag_quantiles(LEVELS)
        return predicted[:, None] + about

    def interval(
        self, quantiles: FloatArray, coverage: float, limit: Any
    ) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper ends of intervals, clipped to possible values; (n_rows,) each."""
        ends = residuals.stretched(*central_interval(quantiles, LEVELS, coverage), limit)
        return self.scale.possible(*ends)
