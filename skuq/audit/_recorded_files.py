"""Audit of predictions recorded in files, read in chunks and added up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

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
from skuq.table_files import CsvFormat, TableFile, open_table

if TYPE_CHECKING:
    import pandas as pd


UNKNOWN = CsvFormat()
Group = tuple[str, str | None]  # a column and one of its values, None for a missing one


class AuditedFiles(NamedTuple):
    """Audit of recorded predictions in files.

    Attributes
    ----------
    audit : CalibrationAuditor
        The auditor, with all findings.
    columns : str
        Label of each column of probabilities, to be shown to whoever reads the audit.
    notes : list of str
        How files were read that are not plain CSV.
    """

    audit: CalibrationAuditor
    columns: str
    notes: list[str]


class _Columns(NamedTuple):
    """Columns to read, and the labels of those with probabilities."""

    label: str
    proba: list[str]
    groups: list[str]
    classes: list[str]
    are_given: bool  # the classes, which labels may be as they are written, such as 01
    weight: str | None

    @property
    def kinds(self) -> dict[str, Any]:
        # What a group is called depends on all values of its column, not on those of a chunk.
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

    Files are read in chunks, and only integer sums per confidence bin are kept, so that memory
    does not depend on the number of rows. The findings are those of
    `CalibrationAuditor.from_predictions` on all rows together.

    Parameters
    ----------
    paths : sequence of path-like
        Files as `skuq.table_files.open_table` takes them, all with the same columns.
    label : str
        Column with the true label.
    proba : sequence of str, optional
        Columns with the reported probabilities, one per class. With two classes one column
        is enough: the probability of the second. Default: the columns that are named as those of
        `skuq.tables.TableModel.predict`, ``p(yes)`` with the probability of ``yes``.
    classes : sequence of str, optional
        Labels, as text, in the order of `proba`; with one column, both labels, that of the
        column last. Default: those that the columns are named after, as ``yes`` or ``p(yes)``, or
        else the sorted labels of the files.
    groups : sequence of str, default=()
        Columns whose groups are audited too.
    features : sequence of str, default=()
        Columns in which regions are searched; of all rows they are held in memory.
    weight : str, optional
        Column with the weights of the samples, as `CalibrationAuditor.fit` takes them.
    format : CsvFormat, optional
        What is known of how CSV files are written.
    n_jobs : int, optional
        Processes, which share the files; under ``joblib.parallel_config(backend="dask")``
        they may be on other machines that see the same files.
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
        If a label is missing or unknown, the columns are not as many as the labels or do not
        hold probabilities, the strategy is "quantile", whose bins depend on all rows, or regions
        are to be searched without columns to search in.

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
        raise ValueError("Files are audited in chunks, for which `strategy` must be 'uniform'.")
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
        raise ValueError(f"Column {weight!r} is 0 in all rows; at least one must count.")
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
    return AuditedFiles(auditor, note_on_columns(proba, columns.classes), notes)


def _labels(tables: Sequence[TableFile], label: str, enough: int) -> list[str]:
    """Labels of the files, sorted by value; nothing more is read as soon as there are enough."""
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
    """Columns of all rows, of the kinds that they have in the whole table."""
    import pandas as pd

    wanted = list(dict.fromkeys(names))
    chunks = [chunk[wanted] for table in tables for chunk in table.chunks()]
    mixed = [name for name in wanted if len({*map(_kind, (c[name] for c in chunks))} - {""}) > 1]
    if mixed:  # a code such as 1 would be a number in one chunk, and text in another
        kinds = dict.fromkeys(mixed, str)
        chunks = [chunk[wanted] for table in tables for chunk in table.chunks(dtype=kinds)]
    frame = pd.concat(chunks, ignore_index=True)
    return frame.assign(**{name: frame[name].map(as_text, na_action="ignore") for name in mixed})


def _kind(column: pd.Series) -> str:
    """Numbers, booleans or anything else, as far as a chunk shows; empty without values."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if column.isna().all():
        return ""
    if is_bool_dtype(column):
        return "booleans"
    return "numbers" if is_numeric_dtype(column) else "others"


def _joined(parts: Sequence[TopLabelPredictions]) -> TopLabelPredictions:
    return TopLabelPredictions(*map(np.concatenate, zip(*parts, strict=True)))


def _joined_weights(parts: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """Weights of all rows: floats if some of them are."""
    given = [part for part in parts if part is not None and len(part)]
    return np.concatenate(given) if given else None


class _FileParts(NamedTuple):
    """Sums of one file, and its rows if they are to be kept."""

    parts: Parts  # of all rows and of each group
    kept: TopLabelPredictions
    weight: NDArray[Any] | None  # of the rows that are kept
    n_weighed: int  # rows whose weight is not 0


def _file_parts(
    table: TableFile, columns: _Columns, n_bins: int, is_one_of_many: bool, keeps_rows: bool
) -> _FileParts:
    """Add up one file in chunks."""
    parts: list[Parts] = []
    weights, n_weighed = [], 0
    kept = [TopLabelPredictions(np.empty(0, np.int32), np.empty(0, bool))]
    labels = _LabelCodes(table, columns)
    for chunk in table.chunks(dtype=columns.kinds, text_columns=True):
        start = int(chunk.index[0])
        with _named_errors(table, is_one_of_many):
            codes = labels.codes(chunk[columns.label].astype("category"), start)
            proba = probabilities_of(chunk, columns.proba, start)
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
    return _FileParts(found, _joined(kept), _joined_weights(weights), n_weighed)


def _grouping(column: pd.Series) -> Grouping:
    """Groups by the values of a column, named by the column and the value as it is written."""
    values = column.astype("category").cat.remove_unused_categories().cat
    names: list[Any] = [(column.name, value) for value in values.categories]
    _check_number(str(column.name), len(names))
    codes = values.codes.to_numpy().astype(np.int64)
    if (codes < 0).any():  # missing values are a group of their own
        codes = np.where(codes < 0, len(names), codes)
        names.append((column.name, None))
    return Grouping(codes, names)


def _by_text(table: TableFile, sums: Mapping[Any, BinSums]) -> dict[Group, BinSums]:
    """Sums of groups by the text of their value, which 01 is as a number, but not among words."""
    texts: dict[Any, str | None] = dict.fromkeys(sums)
    for name in dict.fromkeys(column for column, _ in sums):
        written = [value for column, value in sums if column == name and value is not None]
        for value, read in zip(written, table.values_of(written), strict=True):
            # A word for a missing value is read as none among numbers, but stays a group.
            texts[name, value] = as_text(read if read == read else value)
    return merged_groups([{(group[0], texts[group]): part} for group, part in sums.items()])


class _LabelCodes:
    """Columns of labels as positions among the classes."""

    def __init__(self, table: TableFile, columns: _Columns) -> None:
        self._table, self._label, self._classes = table, columns.label, columns.classes
        self._meaning: dict[Any, str | None] = {}  # of each text so far; None for missing

    def codes(self, column: pd.Series, start: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Positions among the classes, shape (n_rows,)."""
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
        """Read the meaning of each value; that of 01 depends on the words beside it."""
        texts = dict.fromkeys([*self._meaning, *categories])
        if len(texts) == len(self._meaning):
            return
        before = self._meaning
        # A text that is a class as it stands, such as 01, is not read as a number.
        self._meaning = {
            text: text if text in self._classes else as_text(value) if value == value else None
            for text, value in zip(texts, self._table.values_of(list(texts)), strict=True)
        }
        for text, meaning in before.items():
            if self._meaning[text] != meaning:
                raise ValueError(
                    f"Column {self._label!r} mixes numbers and text, so that {text!r} could be "
                    "either; write its labels in one form."
                )


@contextmanager
def _named_errors(table: TableFile, is_one_of_many: bool) -> Iterator[None]:
    """Errors that name the file, where there are several."""
    try:
        yield
    except ValueError as error:
        if not is_one_of_many:
            raise
        raise ValueError(f"{table.path}: {error}") from error


def _named(sums: Mapping[Group, BinSums], columns: Sequence[str]) -> dict[str, BinSums]:
    """Sums by names such as "sex=female", values sorted, missing ones last."""
    named: dict[str, BinSums] = {}
    for column in columns:
        values = [value for name, value in sums if name == column]
        present = sorted((value for value in values if value is not None), key=_order)
        _check_number(column, len(present))
        if "missing" in present and None in values:
            raise ValueError(
                f"Groups must differ in their names, got '{column}=missing' twice; rename one."
            )
        _check_numbers(column, present)
        named |= {f"{column}={value}": sums[column, value] for value in present}
        if None in values:
            named[f"{column}=missing"] = sums[column, None]
    return named


def _order(text: str) -> tuple[float, str]:
    """Numbers by size, before text."""
    try:
        return float(text), ""
    except ValueError:
        return np.inf, text


def _check_numbers(column: str, texts: Sequence[str]) -> None:
    """An error if two texts are one number.

    A chunk of numbers alone has 1 where one with words has 01, and they would be two groups.
    """
    for first, second in pairwise(texts):  # in the order of the numbers
        if _order(first)[0] == _order(second)[0] < np.inf:
            raise ValueError(
                f"Groups {first!r} and {second!r} of column {column!r} are the same number; write "
                "them in one form, or add a letter if they differ."
            )


def _check_number(column: str, found: int) -> None:
    if found > MAX_GROUPS:
        raise ValueError(
            f"Group {column!r} has more than {MAX_GROUPS} different values; divide it into ranges "
            "first, such as age groups."
        )
