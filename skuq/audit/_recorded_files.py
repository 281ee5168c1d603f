"""Audit of predictions recorded in files; the predictions are read in chunks and summed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from skuq._table_files import CsvFormat, TableFile, open_table
from skuq.audit._calibration_auditor import CalibrationAuditor
from skuq.audit._groups import (
    MAX_GROUPS,
    Grouping,
    Parts,
    merged_groups,
    merged_parts,
    parts_of,
)
from skuq.audit._recorded_predictions import (
    RowSums,
    check_columns,
    check_labels_known,
    named_columns,
    note_on_columns,
    order_of_columns,
    probabilities_of,
    unknown_label,
    weights_of,
)
from skuq.calibration import BinSums, TopLabelPredictions, top_label_predictions
from skuq.labels import as_text
from skuq.sample_weights import warn_of_mean_weight

if TYPE_CHECKING:
    import pandas as pd


UNKNOWN = CsvFormat()
Group = tuple[str, str | None]  # a column name and one of its values; None if missing


class AuditedFiles(NamedTuple):
    """Audit of recorded predictions in files.

    Attributes
    ----------
    audit : CalibrationAuditor
        The auditor, with all findings.
    columns : str
        Text that states the label of each probability column, for readers of the audit.
    notes : list of str
        For each file that is not plain CSV, the format in which it was read; for each file in which
        rounded probabilities do not sum to 1, a remark.
    """

    audit: CalibrationAuditor
    columns: str
    notes: list[str]


class _Columns(NamedTuple):
    """Columns to read, and the label of each probability column."""

    label: str
    proba: list[str]
    groups: list[str]
    classes: list[str]
    are_given: bool  # whether the caller passed `classes`; labels are then text: 01 is not 1
    weight: str | None

    @property
    def kinds(self) -> dict[str, Any]:
        # Group columns are read as text, because the name of a group depends on the values of the
        # whole column, not only on those in one chunk.
        return dict.fromkeys(self.groups, str) | {self.label: str if self.are_given else "category"}


def audit_files(
    paths: Sequence[str | PathLike[str]],
    label: str,
    proba: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    *,
    groups: Sequence[str] = (),
    features: Sequence[str] = (),
    weight: str | None = None,
    format: CsvFormat = UNKNOWN,
    n_jobs: int | None = None,
    **params: Any,
) -> AuditedFiles:
    """Audit recorded predictions in files of any size.

    Files are read in chunks, and only integer sums per confidence bin are kept. Memory use
    therefore does not depend on the number of rows. The findings equal those of
    `CalibrationAuditor.from_predictions` on all rows together.

    Parameters
    ----------
    paths : sequence of path-like
        Files in a format that `skuq._table_files.open_table` reads, all with the same columns.
    label : str
        Column with the true label.
    proba : sequence of str, optional
        Columns with the reported probabilities, one per class. With two classes one column
        is enough: the probability of the second class. Default: columns named like those of
        `skuq.tables.TableModel.predict`, such as ``p(yes)`` for the probability of ``yes``.
        Rows must sum to 1, except for rounding to the decimals of the file, as in
        `recorded_predictions`.
    classes : sequence of str, optional
        Labels, as text, in the order of `proba`. With one column: both labels, with the label of
        this column last. Default: the labels in the column names, such as ``yes`` or ``p(yes)``. If
        the column names contain no labels, the default is the sorted labels of the files.
    groups : sequence of str, default=()
        Columns whose groups are audited too.
    features : sequence of str, default=()
        Columns in which regions are searched; they are held in memory for all rows.
    weight : str, optional
        Column with the sample weights, as in `CalibrationAuditor.fit`.
    format : CsvFormat, optional
        Known properties of the CSV files, such as the delimiter.
    n_jobs : int, optional
        Number of processes that share the files. With ``joblib.parallel_config(backend="dask")``
        they may run on other machines that have access to the same files.
    **params
        Parameters of `CalibrationAuditor`.

    Returns
    -------
    AuditedFiles

    Raises
    ------
    TableFileError
        If a file cannot be read, or lacks a column. It is a `ValueError`.
    ValueError
        If a label is missing or unknown, the numbers of columns and labels differ, or the columns
        do not hold probabilities. Also if the strategy is "quantile", because quantiles depend on
        all rows, or if regions are to be searched and no `features` are given.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from skuq.audit import audit_files
    >>> with TemporaryDirectory() as folder:
    ...     parts = [Path(folder, f"part-{k}.csv") for k in range(2)]
    ...     for part in parts:
    ...         _ = part.write_text("y,p_no,p_yes\\n" + 20 * "no,0.55,0.45\\nyes,0.4,0.6\\n")
    ...     found = audit_files(parts, "y", ["p_no", "p_yes"])
    >>> found.audit.n_samples_, found.audit.passed_, found.columns
    (80, False, 'p_no -> no, p_yes -> yes')
    """
    auditor = CalibrationAuditor(None, **params)
    auditor._validate_params()
    if auditor.strategy == "quantile":
        raise ValueError("Files are audited in chunks, which requires strategy='uniform'.")
    if features and not auditor._searches():
        auditor.set_params(search_regions=True)
    if auditor._searches() and not features:
        raise ValueError("`search_regions` needs columns to search in; name them as `features`.")
    tables = [open_table(path, format) for path in paths]
    if proba is None:
        proba, classes = named_columns(tables[0].columns, classes)
    check_columns(label, proba)
    for table in tables:
        table.require([label, *proba, *groups, *features, *([] if weight is None else [weight])])
    known = classes if classes is not None else _labels(tables, label, max(2, len(proba)))
    columns = _Columns(
        label,
        list(proba),
        list(groups),
        order_of_columns(proba, list(known), classes),
        classes is not None,
        weight,
    )
    found = Parallel(n_jobs=n_jobs)(
        delayed(_file_parts)(table, columns, int(auditor.n_bins), len(tables) > 1, bool(features))
        for table in tables
    )
    parts = merged_parts([each.parts for each in found])
    if weight is not None and not parts.sums.count.any():
        raise ValueError(f"Column {weight!r} is 0 in all rows; some weights must be positive.")
    if weight is not None:
        warn_of_mean_weight(parts.sums.n_samples, sum(each.n_weighed for each in found))
    auditor._audit_parts(
        parts._replace(
            group_sums=_named(parts.group_sums, columns.groups),
            group_density=_named(parts.group_density, columns.groups),
        ),
        columns.classes,
        (_features(tables, features), _joined([each.kept for each in found])) if features else None,
        _joined_weights([each.weight for each in found]) if features else None,
    )
    notes = list(dict.fromkeys(table.note for table in tables if table.note))
    notes += [
        f"{table.path}: {each.note}" if len(tables) > 1 else each.note
        for table, each in zip(tables, found, strict=True)
        if each.note
    ]
    return AuditedFiles(auditor, note_on_columns(proba, columns.classes), notes)


def _labels(tables: Sequence[TableFile], label: str, enough: int) -> list[str]:
    """Labels of the files, sorted by value; stop reading as soon as `enough` labels are found."""
    texts: dict[Any, None] = {}
    values: set[Any] = set()
    for table in tables:
        for chunk in table.chunks(dtype={label: "category"}, text_columns=True):
            with _named_errors(table, len(tables) > 1):
                check_labels_known(chunk[label], chunk.index[0])
            texts |= dict.fromkeys(chunk[label].cat.categories)
            values = {value for value in table.values_of(list(texts)) if value == value}
            if len(values) >= enough:
                break
        if len(values) >= enough:
            break
    try:
        return [as_text(value) for value in sorted(values)]
    except TypeError:  # text in one file, and numbers in another
        return sorted(map(as_text, values))


def _features(tables: Sequence[TableFile], names: Sequence[str]) -> pd.DataFrame:
    """Columns of all rows; types are determined from whole columns, not from single chunks."""
    import pandas as pd

    wanted = list(dict.fromkeys(names))
    chunks = [chunk[wanted] for table in tables for chunk in table.chunks()]
    mixed = [name for name in wanted if len({*map(_kind, (c[name] for c in chunks))} - {""}) > 1]
    if mixed:  # read as text: otherwise, 1 would be a number in one chunk and text in another
        kinds = dict.fromkeys(mixed, str)
        chunks = [chunk[wanted] for table in tables for chunk in table.chunks(dtype=kinds)]
    frame = pd.concat(chunks, ignore_index=True)
    return frame.assign(**{name: frame[name].map(as_text, na_action="ignore") for name in mixed})


def _kind(column: pd.Series) -> str:
    """Type of a column in one chunk: "numbers", "booleans" or "others"; "" if it has no values."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if column.isna().all():
        return ""
    if is_bool_dtype(column):
        return "booleans"
    return "numbers" if is_numeric_dtype(column) else "others"


def _joined(parts: Sequence[TopLabelPredictions]) -> TopLabelPredictions:
    return TopLabelPredictions(*map(np.concatenate, zip(*parts, strict=True)))


def _joined_weights(parts: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """Concatenated weights of all rows; floats if any part has floats."""
    given = [part for part in parts if part is not None and len(part)]
    return np.concatenate(given) if given else None


class _FileParts(NamedTuple):
    """Sums of one file, and its rows if they are kept."""

    parts: Parts  # sums over all rows and over each group
    kept: TopLabelPredictions
    weight: NDArray[Any] | None  # weights of the kept rows
    n_weighed: int  # number of rows with nonzero weight
    note: str  # remark on rows whose probabilities do not sum to 1


def _file_parts(
    table: TableFile, columns: _Columns, n_bins: int, is_one_of_many: bool, keeps_rows: bool
) -> _FileParts:
    """Compute the sums of one file, chunk by chunk."""
    parts: list[Parts] = []
    weights, n_weighed, row_sums = [], 0, RowSums()
    kept = [TopLabelPredictions(np.empty(0, np.int32), np.empty(0, bool))]
    labels = _LabelCodes(table, columns)
    for chunk in table.chunks(dtype=columns.kinds, text_columns=True):
        start = int(chunk.index[0])
        with _named_errors(table, is_one_of_many):
            codes = labels.codes(chunk[columns.label].astype("category"), start)
            proba = probabilities_of(chunk, columns.proba, start)
            row_sums = row_sums.with_rows(proba, start)
            grouping = [_grouping(chunk[name]) for name in columns.groups]
            weight = None if columns.weight is None else weights_of(chunk[columns.weight], start)
        predictions = top_label_predictions(codes, proba, classes=range(len(columns.classes)))
        added = parts_of(predictions, grouping, n_bins=n_bins, weight=weight)
        parts = [merged_parts([*parts, added])]
        kept += [predictions] * keeps_rows
        if weight is not None:
            weights += [weight] * keeps_rows
            n_weighed += int(np.count_nonzero(weight))
    found = parts[0]._replace(
        group_sums=_by_text(table, parts[0].group_sums),
        group_density=_by_text(table, parts[0].group_density),
    )
    return _FileParts(found, _joined(kept), _joined_weights(weights), n_weighed, row_sums.note)


def _grouping(column: pd.Series) -> Grouping:
    """Groups by the values of a column; group names contain the column and the value as written."""
    values = column.astype("category").cat.remove_unused_categories().cat
    names: list[Any] = [(column.name, value) for value in values.categories]
    _check_number(str(column.name), len(names))
    codes = values.codes.to_numpy().astype(np.int64)
    if (codes < 0).any():  # missing values form a separate group
        codes = np.where(codes < 0, len(names), codes)
        names.append((column.name, None))
    return Grouping(codes, names)


def _by_text(table: TableFile, sums: Mapping[Any, BinSums]) -> dict[Group, BinSums]:
    """Sums by group, with values as text: "01" becomes "1" in a column of numbers."""
    texts: dict[Any, str | None] = dict.fromkeys(sums)
    for name in dict.fromkeys(column for column, _ in sums):
        written = [value for column, value in sums if column == name and value is not None]
        for value, read in zip(written, table.values_of(written), strict=True):
            # In a column of numbers, a word for missing values, such as NA, forms a separate group.
            texts[name, value] = as_text(read if read == read else value)
    return merged_groups([{(group[0], texts[group]): part} for group, part in sums.items()])


class _LabelCodes:
    """Convert labels to positions in the list of classes."""

    def __init__(self, table: TableFile, columns: _Columns) -> None:
        self._table, self._label, self._classes = table, columns.label, columns.classes
        self._meaning: dict[Any, str | None] = {}  # label of each text read so far; None: missing

    def codes(self, column: pd.Series, start: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Positions in the list of classes, shape (n_rows,)."""
        categories = column.cat.categories.tolist()
        self._read(categories)
        missing = [each for each in categories if self._meaning[each] is None]
        check_labels_known(column.cat.remove_categories(missing), start)
        known = {text: position for position, text in enumerate(self._classes)}
        positions = np.array([known.get(str(self._meaning[each]), -1) for each in categories])
        codes: np.ndarray[Any, np.dtype[np.int64]] = positions[column.cat.codes]
        if (codes < 0).any():
            row = int((codes < 0).argmax())
            text = self._meaning[column.iloc[row]]
            raise unknown_label(str(text), start + row, self._label, self._classes)
        return codes

    def _read(self, categories: list[Any]) -> None:
        """Determine the label of each text; "01" may mean 1, depending on the other values."""
        texts = dict.fromkeys([*self._meaning, *categories])
        if len(texts) == len(self._meaning):
            return
        before = self._meaning
        # A text that equals a class as written, such as 01, is not converted to a number.
        self._meaning = {
            text: text if text in self._classes else as_text(value) if value == value else None
            for text, value in zip(texts, self._table.values_of(list(texts)), strict=True)
        }
        for text, meaning in before.items():
            if self._meaning[text] != meaning:
                raise ValueError(
                    f"Column {self._label!r} mixes numbers and text, so it is unclear whether "
                    f"{text!r} is a number or a string; write all labels in the same form."
                )


@contextmanager
def _named_errors(table: TableFile, is_one_of_many: bool) -> Iterator[None]:
    """Prefix errors with the path of the file if there are several files."""
    try:
        yield
    except ValueError as error:
        if not is_one_of_many:
            raise
        raise ValueError(f"{table.path}: {error}") from error


def _named(sums: Mapping[Group, BinSums], columns: Sequence[str]) -> dict[str, BinSums]:
    """Sums by names such as "sex=female", with values sorted and the missing value last."""
    named: dict[str, BinSums] = {}
    for column in columns:
        values = [value for name, value in sums if name == column]
        present = sorted((value for value in values if value is not None), key=_order)
        _check_number(column, len(present))
        if "missing" in present and None in values:
            raise ValueError(f"Group names must differ, got '{column}=missing' twice; rename one.")
        _check_numbers(column, present)
        named |= {f"{column}={value}": sums[column, value] for value in present}
        if None in values:
            named[f"{column}=missing"] = sums[column, None]
    return named


def _order(text: str) -> tuple[float, str]:
    """Sort key: numbers in increasing order, followed by text."""
    try:
        return float(text), ""
    except ValueError:
        return np.inf, text


def _check_numbers(column: str, texts: Sequence[str]) -> None:
    """Raise an error if two texts represent the same number.

    A value may be 1 in a chunk of numbers and 01 in a chunk that also contains text. Without the
    error, 1 and 01 would be two groups.
    """
    for first, second in pairwise(texts):  # in the order of the numbers
        if _order(first)[0] == _order(second)[0] < np.inf:
            raise ValueError(
                f"Groups {first!r} and {second!r} of column {column!r} are the same number, "
                "written in two ways; use one spelling in all rows or, if the two groups are "
                "different, add a letter to one of them."
            )


def _check_number(column: str, found: int) -> None:
    if found > MAX_GROUPS:
        raise ValueError(
            f"Group {column!r} has more than {MAX_GROUPS} different values; divide it into ranges "
            "first, such as age groups."
        )
