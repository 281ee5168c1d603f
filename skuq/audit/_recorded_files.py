"""Audit of predictions recorded in files; the predictions are read in chunks and summed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    check_columns,
    check_labels_known,
    named_columns,
    note_on_columns,
    note_on_sums,
    order_of_columns,
    probabilities_of,
    unknown_label,
    weights_of,
)
from skuq.calibration import BinSums, TopLabelPredictions, top_label_predictions
from skuq.labels import as_text
from skuq.validation import warn_of_mean_weight

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN = CsvFormat()
Group = tuple[str, Any]  # a column name and one of its values as recorded; None if missing


class AuditedFiles(NamedTuple):
    """Audit of recorded predictions in files."""

    audit: CalibrationAuditor
    columns: str  # for readers of the audit: the label of each probability column
    # Format of each file that is not plain CSV; a remark on each file in which rounded
    # probabilities do not sum to 1.
    notes: list[str]


class _Columns(NamedTuple):
    """Columns to read, and the label of each probability column."""

    label: str
    proba: list[str]
    groups: list[str]
    classes: list[str]
    weight: str | None
    # Types to read: text, so that 01 stays 01, except for labels that the table itself defines.
    kinds: dict[str, Any]


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

    Files are read in chunks, and only integer sums per confidence bin are kept, so memory use does
    not depend on the number of rows. The findings equal those of
    `CalibrationAuditor.from_predictions` on all rows together.

    Parameters
    ----------
    paths : sequence of path-like
        Files in a format that `skuq._table_files.open_table` reads, all with the same columns.
    label : str
        Column with the true label.
    proba, classes : sequence of str, optional
        Columns with the reported probabilities, and their labels, as in `recorded_predictions`.
    groups : sequence of str, default=()
        Columns whose groups are audited too.
    features : sequence of str, default=()
        Columns in which regions are searched; they are held in memory for all rows.
    weight : str, optional
        Column with the sample weights, as in `CalibrationAuditor.fit`.
    format : CsvFormat, optional
        Known properties of the CSV files, such as the delimiter.
    n_jobs : int, optional
        Number of processes that share the files.
    **params
        Parameters of `CalibrationAuditor`.

    Returns
    -------
    named tuple
        ``audit``, with all findings; ``columns``, which states the label of each probability
        column; and ``notes``, remarks on the format of files and on rounding.

    Raises
    ------
    ValueError
        If a file cannot be read or lacks a column, a label is missing or unknown, or the columns do
        not hold probabilities. Also if the strategy is "quantile", because quantiles depend on all
        rows.

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
    kinds = dict.fromkeys(groups, str) | {label: "category" if classes is None else str}
    classes = order_of_columns(proba, list(known), classes)
    columns = _Columns(label, list(proba), list(groups), classes, weight, kinds)
    found = Parallel(n_jobs=n_jobs)(
        delayed(_file_parts)(table, columns, int(auditor.n_bins), bool(features))
        for table in tables
    )
    parts = merged_parts([each.parts for each in found])
    if weight is not None and not parts.sums.count.any():
        raise ValueError(f"Column {weight!r} is 0 in all rows; some weights must be positive.")
    if weight is not None:
        warn_of_mean_weight(parts.sums.n_samples, sum(each.n_weighed for each in found))
    names = {name: _group_names(tables[0], name, parts.group_sums) for name in groups}
    rows, row_weight = None, None
    if features:
        kept = [each.kept for each in found]
        joined = TopLabelPredictions(*map(np.concatenate, zip(*kept, strict=True)))
        rows = _features(tables, features), joined
        given = [each.weight for each in found if each.weight is not None]
        row_weight = np.concatenate(given) if given else None
    auditor._audit_parts(
        parts._replace(
            group_sums=_named(parts.group_sums, names),
            group_density=_named(parts.group_density, names),
        ),
        classes,
        rows,
        row_weight,
    )
    notes = list(dict.fromkeys(table.note for table in tables if table.note))
    notes += [f"{t.path}: {each.note}" for t, each in zip(tables, found, strict=True) if each.note]
    return AuditedFiles(auditor, note_on_columns(proba, classes), notes)


def _labels(tables: Sequence[TableFile], label: str, enough: int) -> list[str]:
    """Labels of the files, sorted by value; stop reading as soon as `enough` labels are found."""
    texts: dict[Any, None] = {}
    values: set[Any] = set()
    for table in tables:
        for chunk in table.chunks(dtype={label: "category"}, text_columns=True):
            with _named_errors(table):
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
    """Columns of all rows; a column that is text in one of the files is text in all of them."""
    import pandas as pd
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    def kind(column: pd.Series) -> tuple[bool, bool] | None:
        return None if column.isna().all() else (is_numeric_dtype(column), is_bool_dtype(column))

    wanted = list(dict.fromkeys(names))
    frames = [table.read()[wanted] for table in tables]
    mixed = [name for name in wanted if len({kind(f[name]) for f in frames} - {None}) > 1]
    if mixed:
        frames = [table.read(dtype=dict.fromkeys(mixed, str))[wanted] for table in tables]
    frame = pd.concat(frames, ignore_index=True)
    return frame.assign(**{name: frame[name].map(as_text, na_action="ignore") for name in mixed})


class _FileParts(NamedTuple):
    """Sums of one file, and its rows if they are kept."""

    parts: Parts  # sums over all rows and over each group
    kept: TopLabelPredictions
    weight: NDArray[Any] | None  # weights of the kept rows
    n_weighed: int  # number of rows with nonzero weight
    note: str  # remark on rows whose probabilities do not sum to 1


def _file_parts(table: TableFile, columns: _Columns, n_bins: int, keeps_rows: bool) -> _FileParts:
    """Compute the sums of one file, chunk by chunk."""
    parts: list[Parts] = []
    weights, n_weighed, note = [], 0, ""
    kept = [TopLabelPredictions(np.empty(0, np.int32), np.empty(0, bool))]
    for chunk in table.chunks(dtype=columns.kinds, text_columns=True):
        start = int(chunk.index[0])
        with _named_errors(table):
            label = chunk[columns.label].astype("category")
            codes = _label_codes(table, label, columns.classes, start)
            proba = probabilities_of(chunk, columns.proba, start)
            note = note_on_sums(proba, start) or note
            grouping = [_grouping(chunk[name]) for name in columns.groups]
            weight = None if columns.weight is None else weights_of(chunk[columns.weight], start)
        predictions = top_label_predictions(codes, proba, classes=range(len(columns.classes)))
        added = parts_of(predictions, grouping, n_bins=n_bins, weight=weight)
        parts = [merged_parts([*parts, added])]
        kept += [predictions] * keeps_rows
        if weight is not None:
            weights += [weight] * keeps_rows
            n_weighed += int(np.count_nonzero(weight))
    joined = TopLabelPredictions(*map(np.concatenate, zip(*kept, strict=True)))
    row_weight = np.concatenate(weights) if weights else None
    return _FileParts(parts[0], joined, row_weight, n_weighed, note)


def _label_codes(
    table: TableFile, column: pd.Series, classes: list[str], start: int
) -> NDArray[np.int64]:
    """Position of each label in the list of classes, shape (n_rows,); 01 means 1 unless listed."""
    texts = column.cat.categories.tolist()
    values = table.values_of(texts)
    missing = [
        text
        for text, value in zip(texts, values, strict=True)
        if value != value and text not in classes
    ]
    check_labels_known(column.cat.remove_categories(missing), start)
    known = {text: position for position, text in enumerate(classes)}
    positions = [
        known.get(str(text), known.get(as_text(value), -1))
        for text, value in zip(texts, values, strict=True)
    ]
    codes: NDArray[np.int64] = np.array(positions, np.int64)[column.cat.codes]
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        raise unknown_label(as_text(column.iloc[row]), start + row, str(column.name), classes)
    return codes


def _grouping(column: pd.Series) -> Grouping:
    """Groups by the values of a column, named by the column and the value as recorded."""
    values = column.astype("category").cat.remove_unused_categories().cat
    names: list[Any] = [(column.name, value) for value in values.categories]
    _check_number(str(column.name), len(names))
    codes = values.codes.to_numpy().astype(np.int64)
    if (codes < 0).any():  # missing values form a separate group
        codes = np.where(codes < 0, len(names), codes)
        names.append((column.name, None))
    return Grouping(codes, names)


def _group_names(table: TableFile, column: str, sums: Mapping[Group, Any]) -> dict[Any, str]:
    """Name of each value of a column, sorted; "01" is "1" if all values are numbers."""
    values = [value for name, value in sums if name == column and value is not None]
    # In a column of numbers, a word for missing values, such as NA, forms a separate group.
    texts = {
        value: as_text(read if read == read else value)
        for value, read in zip(values, table.values_of(values), strict=True)
    }
    _check_number(column, len({*texts.values()}))
    if "missing" in texts.values() and (column, None) in sums:
        raise ValueError(f"Group names must differ, got '{column}=missing' twice; rename one.")
    ordered = sorted(values, key=lambda value: _order(texts[value]))
    names = {value: f"{column}={texts[value]}" for value in ordered}
    return names | ({None: f"{column}=missing"} if (column, None) in sums else {})


def _order(text: str) -> tuple[float, str]:
    """Sort key: numbers in increasing order, followed by text."""
    try:
        return float(text), ""
    except ValueError:
        return np.inf, text


def _named(sums: Mapping[Group, BinSums], names: Mapping[str, Mapping[Any, str]]) -> dict[str, Any]:
    """Sums by names such as "sex=female", with values sorted and the missing value last."""
    return merged_groups(
        [
            {name: sums[column, value]}
            for column, of_column in names.items()
            for value, name in of_column.items()
        ]
    )


def _check_number(column: str, found: int) -> None:
    if found > MAX_GROUPS:
        raise ValueError(
            f"Group {column!r} has more than {MAX_GROUPS} different values; divide it into ranges "
            "first, such as age groups."
        )


@contextmanager
def _named_errors(table: TableFile) -> Iterator[None]:
    """Prefix errors with the path of the file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{table.path}: {error}") from error
