"""Audits of predictions that are recorded in a table, or in files of any size.

Errors name the row and the column. Files are read in chunks, and the predictions are summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from skuq import calibration, labels
from skuq._table_files import CsvFormat, TableFile, open_table
from skuq.audit import _prediction_audit
from skuq.audit._calibration_auditor import CalibrationAuditor
from skuq.audit._prediction_audit import Grouping, Parts, merged_groups, merged_parts, parts_of
from skuq.base import FloatArray
from skuq.calibration import BinSums, TopLabelPredictions, top_label_predictions
from skuq.imports import shown
from skuq.labels import as_text, classes_of_columns, counted
from skuq.validation import LARGEST_SUM, group_codes, repeated_rows, warn_of_mean_weight

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN, PREDICTION = CsvFormat(), "prediction"
# Pairs of labels of which the second one is usually the one whose probability is reported.
CONVENTIONS = {("0", "1"), ("-1", "1"), ("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t")}
CONVENTIONS |= {("negative", "positive"), ("neg", "pos"), ("absent", "present")}
Group = tuple[str, Any]  # a column name and one of its values as recorded; None if missing


class RecordedPredictions(NamedTuple):
    y: NDArray[Any]  # (n_samples,), true labels as text
    proba: FloatArray  # (n_samples, n_classes), reported probabilities
    classes: list[str]  # labels in column order
    note: str  # label of each probability column, and a remark on rounded probabilities
    sample_weight: NDArray[Any] | None = None


def recorded_predictions(
    table: pd.DataFrame,
    label: str,
    proba: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    *,
    weight: str | None = None,
) -> RecordedPredictions:
    """Extract labels and probabilities from a table.

    Parameters
    ----------
    table : DataFrame of shape (n_samples, n_columns)
        One prediction per row.
    label : str
        Column with the true label.
    proba : sequence of str, optional
        Columns with the reported probabilities, one per class. With two classes one column
        is enough, that of the class in its name, or of 1 or yes. Default: columns named as those of
        `skuq.tables.TableModel.predict`, such as ``p(yes)`` for the probability of ``yes``.
        Rows must sum to 1, but for rounding to two or more decimals; they are never rescaled.
    classes : sequence of str, optional
        Labels, as text, in the order of `proba`. With one column: both labels, with the label of
        this column last. Default: the labels in the column names, such as ``yes`` or ``p(yes)``,
        or else the sorted labels of the table, unless they may be sorted in two ways.
    weight : str, optional
        Column with the sample weights, as in `skuq.CalibrationAuditor.fit`.

    Returns
    -------
    named tuple
        ``y``, ``proba``, ``classes``, ``note`` for readers of the audit, and ``sample_weight``.

    Raises
    ------
    ValueError
        If a label is missing or unknown, the columns do not match the labels, or the columns do
        not hold probabilities.

    Examples
    --------
    >>> import pandas as pd
    >>> from skuq.audit import recorded_predictions
    >>> table = pd.DataFrame({"y": ["no", "yes"], "p_no": [0.9, 0.3], "p_yes": [0.1, 0.7]})
    >>> recorded_predictions(table, "y", ["p_no", "p_yes"]).note
    'p_no -> no, p_yes -> yes'
    """
    label = _label_in(table.columns, label)
    if proba is None:
        proba, classes = named_columns(table.columns, classes)
    check_columns(label, proba)
    codes, known = _codes(table[label])
    order, values = order_of_columns(proba, known, classes), probabilities_of(table, proba)
    on_sums = note_on_sums(values)
    unknown = ~np.isin(known, order)
    if unknown.any():
        row = int(unknown[codes].argmax())
        raise unknown_label(known[codes[row]], row, label, order)
    note = "; ".join(filter(None, [note_on_columns(proba, order), on_sums]))
    given = None if weight is None else weights_of(table[weight])
    return RecordedPredictions(np.array(known)[codes], values, order, note, given)


def _label_in(columns: Iterable[str], label: str) -> str:
    """Column of true labels; in results of `skuq quantify`, its name says so."""
    named, true = {*columns}, labels.true_name(label)
    return true if label not in named and true in named else label


def named_columns(
    names: Iterable[str], classes: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Probability columns by their names, and their labels."""
    found = classes_of_columns(map(str, names))
    if len(found) < 2 or classes is not None:
        raise ValueError(
            "Without `proba`, every label needs a column named p(LABEL), as `skuq quantify` names "
            f"probabilities, and `classes` has no effect; found {_brief(list(found)) or 'none'}. "
            "Specify the columns of probabilities (`proba`)."
        )
    return list(found), list(found.values())


def check_columns(label: str, proba: Sequence[str]) -> None:
    names = [label, *proba]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"Column {twice[0]!r} is named twice; name each column once.")


def note_on_columns(proba: Sequence[str], order: Sequence[str]) -> str:
    if len(proba) == 1:
        return f"{shown(proba[0])} -> {shown(order[1])}, the rest to 1 -> {shown(order[0])}"
    pairs = zip(map(shown, proba), map(shown, order), strict=True)
    return ", ".join(f"{name} -> {text}" for name, text in pairs)


def unknown_label(text: str, row: int, label: str, order: Sequence[str]) -> ValueError:
    return ValueError(
        f"Label {text!r} in {_row(row)} of column {label!r} is none of the classes "
        f"{_brief(order)}; every label needs a probability column."
    )


def check_labels_known(column: pd.Series, start: int = 0) -> None:
    """Refuse missing labels; `start` is the file position of the first row."""
    missing = column.isna().to_numpy()
    if missing.any():
        raise ValueError(
            f"Column {column.name!r} has no label in {counted(missing.sum(), 'row')}, first in "
            f"{_row(start + int(missing.argmax()))}; fill in the labels or remove the rows."
        )


def _codes(column: pd.Series) -> tuple[NDArray[np.int64], list[str]]:
    """Integer code of each row's label, and the texts of all labels, sorted by value."""
    import pandas as pd

    check_labels_known(column)
    # `factorize` sorts a categorical column in the order of its categories, not by value.
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    codes, values = pd.factorize(column, sort=True)
    return codes, [as_text(value) for value in values]


def order_of_columns(
    proba: Sequence[str], known: list[str], classes: Sequence[str] | None
) -> list[str]:
    """Labels in column order; for a single column, both labels, with the column's label last."""
    if classes is not None and len(set(classes)) < len(classes):
        raise ValueError(f"The classes must differ, got {_brief(classes)}.")
    order = _order(proba, known, classes) if len(proba) else []
    if len(order) != max(2, len(proba)):
        raise ValueError(
            f"The columns {_brief(proba)} and {counted(len(order), 'label')} ({_brief(order)}) do "
            "not match: name one column per label or, if there are only two labels, one column for "
            "the second label. Without `classes`, columns that are not named after labels are "
            "assumed to be in the order of the sorted labels of the table."
        )
    return order


def _order(proba: Sequence[str], known: list[str], classes: Sequence[str] | None) -> list[str]:
    """Labels from the column names; if the names have no labels, `classes` or the sorted labels."""
    stated = known if classes is None else list(classes)
    named = labels.labels_of_columns(proba, np.array(stated, str)) if len(proba) > 1 else None
    if named is None:
        if classes is None and len(known) == max(2, len(proba)):
            return _order_of_one(proba[0], known) if len(proba) == 1 else _sorted(proba, known)
        return stated
    for name, own, text in zip(proba, named.tolist(), stated, strict=False):
        if classes is not None and own != text:
            raise ValueError(
                f"Column {str(name)!r} is named after label {own!r}, but `classes` has {text!r} "
                "at its position; omit `classes`, or pass both in the same order."
            )
    return named.tolist()


def _order_of_one(name: str, known: list[str]) -> list[str]:
    """Both labels, with that of the only column last, by its name or by a convention."""
    first, second = known
    named = labels.label_in_name(name, second, known)
    is_usual = not named and (first.casefold(), second.casefold()) in CONVENTIONS
    if named != second and not is_usual:  # the label in a name may be denied, as in "unhappy"
        raise ValueError(
            f"Column {name!r} may be the probability of {second!r} "
            f"(`classes={f'{first},{second}'!r}`) or of {first!r} "
            f"(`classes={f'{second},{first}'!r}`): state which."
        )
    return known


def _sorted(proba: Sequence[str], order: list[str]) -> list[str]:
    """The sorted labels; refuse a column name that ends with a label of another column."""
    labels.check_one_order(order)
    for name, own in zip(proba, order, strict=True):
        named = labels.label_in_name(name, own, order)
        if named not in (own, ""):
            raise ValueError(
                f"Column {name!r} is assumed to be the probability of {own!r}, since columns are "
                f"assumed to be in the order of the sorted labels ({_brief(order)}), but its name "
                f"contains the label {named!r}; state the order of the columns (`classes`)."
            )
    return order


def probabilities_of(table: pd.DataFrame, names: Sequence[str], start: int = 0) -> FloatArray:
    """Probabilities of all classes, shape (n_samples, n_classes)."""
    largest, meant = 1 + labels.ROW_SUM_TOLERANCE, "probabilities in [0, 1]"
    values = np.column_stack([_numbers(table[name], largest, meant, start) for name in names])
    if len(names) > 1:
        return values
    second = np.minimum(values, 1.0)
    return np.hstack([1 - second, second])


def weights_of(column: pd.Series, start: int = 0, *, survey: bool = False) -> NDArray[Any]:
    """Row weights, as integers if all are whole numbers and not `survey` weights."""
    meant = f"weights (numbers of samples, from 0 to {LARGEST_SUM:.3g})"
    weight = _numbers(column, LARGEST_SUM, meant, start)
    return weight if survey else _prediction_audit.counted_weights(weight)


def _numbers(column: pd.Series, largest: float, meant: str, start: int) -> FloatArray:
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    wrong = ~((values >= 0) & (values <= largest))
    if wrong.any():
        row = int(wrong.argmax())
        cell = column.iloc[row]
        found = "nothing" if pd.isna(cell) else repr(str(cell))
        raise ValueError(
            f"Column {column.name!r} must hold {meant}, got {found} in {_row(start + row)}."
        )
    return values


def note_on_sums(values: FloatArray, start: int = 0) -> str:
    """Remark on row sums that differ from 1, which only rounding may explain."""
    decimals = labels.decimals_of(values)
    tolerance = labels.rounded_sum_tolerance(values.shape[1], decimals)
    totals = values.sum(axis=1)
    deviations = np.abs(totals - 1)
    if (deviations > tolerance).any():
        first = int((deviations > tolerance).argmax())
        raise ValueError(
            f"The probabilities in {_row(start + first)} sum to {totals[first]:.6g}, but must "
            f"sum to 1 within {tolerance:.4g}; name the columns of all classes, and write enough "
            "digits."
        )
    worst = int(deviations.argmax())
    if deviations[worst] <= labels.ROW_SUM_TOLERANCE:
        return ""
    return (
        f"The probabilities are recorded with {decimals} decimals, so that rows do not sum to "
        f"exactly 1 (row {start + worst + 1}: {totals[worst]:.6g}). Confidences are the recorded "
        "values, not rescaled."
    )


def _row(position: int) -> str:
    return f"row {position + 1} (the header not counted)"


def _brief(texts: Sequence[str], most: int = 5) -> str:
    return ", ".join(map(shown, texts[:most])) + (", ..." if len(texts) > most else "")


# --- files ---------------------------------------------------------------------------------------


class AuditedFiles(NamedTuple):
    audit: CalibrationAuditor
    columns: str  # the label of each probability column
    notes: list[str]  # formats of files that are not plain CSV, and remarks on rounded values


class _Columns(NamedTuple):
    label: str
    proba: list[str]
    groups: list[str]
    classes: list[str]
    weight: str | None
    survey: bool  # whether these are survey weights
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
    weights_are: Literal["counts", "survey"] | None = None,
    cluster: str | None = None,
    format: CsvFormat = UNKNOWN,
    n_jobs: int | None = None,
    **params: Any,
) -> AuditedFiles:
    """Audit recorded predictions in files of any size.

    Only integer sums per confidence bin are kept, so memory use does not depend on the number of
    rows. The findings equal those of `CalibrationAuditor.from_predictions` on all rows together.

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
    weights_are : {"counts", "survey"}, optional
        Meaning of weights that are whole numbers; required if their mean is above 20.
    cluster : str, optional
        Column of the groups of `CalibrationAuditor.fit`; it is held in memory for all rows.
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
        As in `recorded_predictions`; if a file cannot be read; or if the strategy is "quantile",
        because quantiles depend on all rows.

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
    label = _label_in(tables[0].columns, label)
    if proba is None:
        proba, classes = named_columns(tables[0].columns, classes)
        classes = [*map(str.strip, classes)]  # as cells
    check_columns(label, proba)
    for table in tables:
        marks = [name for name in (weight, cluster) if name is not None]
        table.require([label, *proba, *groups, *features, *marks])
    known = classes if classes is not None else _labels(tables, label, max(2, len(proba)))
    kinds = dict.fromkeys(groups, str) | {label: "category" if classes is None else str}
    classes = order_of_columns(proba, list(known), classes)
    survey = weights_are == "survey" or cluster is not None
    columns = _Columns(label, list(proba), list(groups), classes, weight, survey, kinds)
    codes: Any = None
    counts: list[Any] = [None] * len(tables)
    if cluster is not None:
        import pandas as pd

        frames = [table.read(dtype={cluster: str})[marks] for table in tables]
        read = pd.concat(frames)
        codes = group_codes(read[cluster], len(read))
        shares = None if weight is None else weights_of(read[weight], survey=True)
        both = np.stack(_prediction_audit.clustered(shares, codes))
        counts = np.split(both, np.cumsum([*map(len, frames)])[:-1], axis=1)
    found = Parallel(n_jobs=n_jobs)(
        delayed(_file_parts)(table, columns, own, int(auditor.n_bins), bool(features))
        for table, own in zip(tables, counts, strict=True)
    )
    parts = merged_parts([each.parts for each in found])
    if weight is not None and not parts.sums.count.any():
        raise ValueError(f"Column {weight!r} is 0 in all rows; some weights must be positive.")
    n_weighed, are_whole = sum(e.n_weighed for e in found), parts.sums.count.dtype.kind == "i"
    if weights_are == "counts" and not are_whole and cluster is None:
        raise ValueError(f"Column {weight!r} has fractions, so the weights cannot be counts.")
    if weight is not None and weights_are is None and cluster is None:
        if are_whole and parts.sums.n_samples > _prediction_audit.MOST_COUNTED * n_weighed:
            raise ValueError(
                f"The whole numbers in column {weight!r} add up to {parts.sums.n_samples:,} for "
                f"{n_weighed:,} rows. State whether they count samples, and add up, or are survey "
                "weights, of which only ratios matter (`weights_are`: counts or survey)."
            )
        warn_of_mean_weight(parts.sums.n_samples, n_weighed)
    names = {name: _group_names(tables[0], name, parts.group_sums) for name in groups}
    rows, row_weight = None, None
    if features:
        kept = zip(*[each.kept for each in found], strict=True)
        rows = _features(tables, features), TopLabelPredictions(*map(np.concatenate, kept))
        given = [each.weight for each in found if each.weight is not None]
        row_weight = np.concatenate(given) if given else None
    named: dict[str, Any] = {
        k: _named(getattr(parts, k), names) for k in ("group_sums", "group_density")
    }
    auditor._audit_parts(parts._replace(**named), rows, row_weight, codes)
    auditor.classes_ = np.asarray(classes)
    notes = list(dict.fromkeys(table.note for table in tables if table.note))
    notes += [
        f"{shown(t.path)}: {each.note}" for t, each in zip(tables, found, strict=True) if each.note
    ]
    copies = zip(tables, (each.n_repeated for each in found), strict=True)
    notes += [repeated_rows(n, f" of {table.path}") for table, n in copies if n]
    if codes is not None:
        notes.append(f"The rows of each of {codes.max() + 1} values of {cluster} count as one.")
    return AuditedFiles(auditor, note_on_columns(proba, classes), notes)


def _labels(tables: Sequence[TableFile], label: str, enough: int) -> list[str]:
    """Labels of the files, sorted by value; stop reading once `enough` are found."""
    texts: dict[Any, None] = {}
    values: set[Any] = set()
    read: dict[str, Any] = {"dtype": {label: "category"}, "text_columns": True}
    for file, chunk in ((table, chunk) for table in tables for chunk in table.chunks(**read)):
        with _named_errors(file):
            check_labels_known(chunk[label], chunk.index[0])
        texts |= dict.fromkeys(chunk[label].cat.categories)
        values = {value for value in file.values_of(list(texts)) if value == value}
        if len(values) >= enough:
            break
    try:
        return [as_text(value) for value in sorted(values)]
    except TypeError:  # text in one file, and numbers in another
        return sorted(map(as_text, values))


def _features(tables: Sequence[TableFile], names: Sequence[str]) -> pd.DataFrame:
    """Columns of all rows; a column that is text in one file is text in all of them."""
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
    parts: Parts  # sums over all rows and over each group
    kept: TopLabelPredictions
    weight: NDArray[Any] | None  # weights of the kept rows
    n_weighed: int  # number of rows with nonzero weight
    n_repeated: int  # number of rows that are probably copies
    note: str  # remark on rows whose probabilities do not sum to 1


def _file_parts(
    table: TableFile,
    columns: _Columns,
    counts: FloatArray | None,  # results of `clustered`, (2, n_rows)
    n_bins: int,
    keeps_rows: bool,
) -> _FileParts:
    parts: list[Parts] = []
    weights: list[NDArray[Any]] = []
    n_weighed, n_repeated, note = 0, 0, ""
    kept = [TopLabelPredictions(np.empty(0, np.int32), np.empty(0, bool))]
    for chunk in table.chunks(dtype=columns.kinds, text_columns=True):
        start = int(chunk.index[0])
        with _named_errors(table):
            label = chunk[columns.label].astype("category")
            codes = _label_codes(table, label, columns.classes, start)
            proba = probabilities_of(chunk, columns.proba, start)
            found = [note_on_sums(proba, start), _note_on_decisions(chunk, proba, columns.classes)]
            note = " ".join(filter(None, found)) or note
            grouping = [_grouping(chunk[name]) for name in columns.groups]
            weight: NDArray[Any] | None = None
            square = None
            if counts is not None:
                weight, square = counts[:, start : start + len(chunk)]
            elif columns.weight is not None:
                weight = weights_of(chunk[columns.weight], start, survey=columns.survey)
        predictions = top_label_predictions(codes, proba, classes=range(len(columns.classes)))
        n_repeated += calibration.n_repeated(predictions) if counts is None else 0
        added = parts_of(predictions, grouping, n_bins=n_bins, weight=weight, square=square)
        parts = [merged_parts([*parts, added])]
        kept += [predictions] * keeps_rows
        if weight is not None:
            weights += [weight] * keeps_rows
            n_weighed += int(np.count_nonzero(weight))
    joined = TopLabelPredictions(*map(np.concatenate, zip(*kept, strict=True)))
    row_weight = np.concatenate(weights) if weights else None
    return _FileParts(parts[0], joined, row_weight, n_weighed, n_repeated, note)


def _note_on_decisions(chunk: pd.DataFrame, proba: FloatArray, classes: list[str]) -> str:
    """Remark on other decisions beside the probabilities; a sender could choose them freely."""
    if PREDICTION not in chunk:
        return ""
    texts, known = chunk[PREDICTION].map(as_text).to_numpy(str), np.array(classes)
    other = texts != known[proba.argmax(axis=1)]
    if not other.any() or not np.isin(texts, known).all():
        return ""
    return (
        f"The column {PREDICTION!r} is not always the most probable class, whose confidence is "
        f"audited: first in {_row(int(chunk.index[0]) + int(other.argmax()))}."
    )


def _label_codes(
    table: TableFile, column: pd.Series, classes: list[str], start: int
) -> NDArray[np.int64]:
    """Position of each label in the list of classes, shape (n_rows,); 01 means 1 unless listed."""
    texts = column.cat.categories.tolist()
    read = dict(zip(texts, table.values_of(texts), strict=True))
    missing = [text for text, value in read.items() if value != value and text not in classes]
    check_labels_known(column.cat.remove_categories(missing), start)
    known = {text: position for position, text in enumerate(classes)}
    positions = [known.get(str(text), known.get(as_text(v), -1)) for text, v in read.items()]
    codes: NDArray[np.int64] = np.array(positions, np.int64)[column.cat.codes]
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        raise unknown_label(as_text(column.iloc[row]), start + row, str(column.name), classes)
    return codes


def _grouping(column: pd.Series) -> Grouping:
    values = column.astype("category").cat.remove_unused_categories().cat
    names: list[Any] = [(column.name, value) for value in values.categories]
    _prediction_audit.check_number_of_groups(str(column.name), len(names))
    codes = values.codes.to_numpy().astype(np.int64)
    if (codes < 0).any():  # missing values form a separate group
        codes = np.where(codes < 0, len(names), codes)
        names.append((column.name, None))
    return Grouping(codes, names)


def _group_names(table: TableFile, column: str, sums: Mapping[Group, Any]) -> dict[Any, str]:
    """Name of each value, sorted; "01" is "1" if all values are numbers."""
    values = [value for name, value in sums if name == column and value is not None]
    # In a column of numbers, a word for missing values, such as NA, forms a separate group.
    texts = {
        value: as_text(read if read == read else value)
        for value, read in zip(values, table.values_of(values), strict=True)
    }
    _prediction_audit.check_number_of_groups(column, len({*texts.values()}))
    if "missing" in texts.values() and (column, None) in sums:
        raise ValueError(f"Group names must differ, got {column + '=missing'!r} twice; rename one.")
    ordered = sorted(values, key=lambda value: _sort_key(texts[value]))
    names = {value: f"{column}={texts[value]}" for value in ordered}
    return names | ({None: f"{column}=missing"} if (column, None) in sums else {})


def _sort_key(text: str) -> tuple[float, str]:
    """Numbers in increasing order, followed by text."""
    try:
        return float(text), ""
    except ValueError:
        return np.inf, text


def _named(sums: Mapping[Group, BinSums], names: Mapping[str, Mapping[Any, str]]) -> dict[str, Any]:
    return merged_groups(
        [
            {name: sums[column, value]}
            for column, of_column in names.items()
            for value, name in of_column.items()
        ]
    )


@contextmanager
def _named_errors(table: TableFile) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{shown(table.path)}: {error}") from error
