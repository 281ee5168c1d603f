"""Audits of predictions that are recorded in a table or in files; errors name row and column."""

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
from skuq.audit._prediction_audit import Grouping
from skuq.base import FloatArray
from skuq.calibration import TopLabelPredictions, top_label_predictions
from skuq.imports import shown
from skuq.labels import as_text, classes_of_columns, counted
from skuq.validation import LARGEST_SUM, repeated_rows, warn_of_mean_weight

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN, PREDICTION = CsvFormat(), "prediction"
# Pairs of labels. If a table has only one column of probabilities, it belongs to the second label.
CONVENTIONS = {("0", "1"), ("-1", "1"), ("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t")}
CONVENTIONS |= {("negative", "positive"), ("neg", "pos"), ("absent", "present")}


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
        Columns with the reported probabilities, one per class. With two classes, one column is
        enough; it belongs to the class in its name, or else to 1 or yes. Default: columns named as
        in `skuq.tables.TableModel.predict`, such as ``p(yes)`` for the probability of ``yes``.
        Rows must sum to 1, up to rounding to two or more decimals; they are never rescaled.
    classes : sequence of str, optional
        Labels, as text, in the order of `proba`. With one column: both labels, with the label of
        this column last. Default: the labels in the column names, such as ``yes`` or ``p(yes)``,
        or else the sorted labels of the table; an error if their order is ambiguous.
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
    given = None if weight is None else _prediction_audit.counted_weights(weights_of(table[weight]))
    return RecordedPredictions(np.array(known)[codes], values, order, note, given)


def _label_in(columns: Iterable[str], label: str) -> str:
    """Return `label`, or "LABEL (true)", as `skuq quantify` names it, if only that is a column."""
    named, true = {*columns}, labels.true_name(label)
    return true if label not in named and true in named else label


def named_columns(
    names: Iterable[str], classes: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Find probability columns by names such as p(yes); return their names and their labels."""
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


def check_labels_known(column: Any, name: Any, start: int = 0) -> None:
    """Raise if a label is missing; `start` is the position of the first row in its file."""
    missing = np.asarray(column.isna())
    if missing.any():
        raise ValueError(
            f"Column {name!r} has no label in {counted(missing.sum(), 'row')}, first in "
            f"{_row(start + int(missing.argmax()))}; fill in the labels or remove the rows."
        )


def _codes(column: pd.Series) -> tuple[NDArray[np.int64], list[str]]:
    """Encode labels as integers; also return the texts of all labels, sorted by value."""
    import pandas as pd

    check_labels_known(column, column.name)
    # `factorize` sorts a categorical column in the order of its categories, not by value.
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    codes, values = pd.factorize(column, sort=True)
    return codes, [as_text(value) for value in values]


def order_of_columns(
    proba: Sequence[str], known: list[str], classes: Sequence[str] | None
) -> list[str]:
    """Return labels in column order; for a single column, both labels, the column's label last."""
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
    """Return the labels that column names contain, or else `classes`, or else the sorted labels."""
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
    """Return both labels; raise an error unless the column clearly belongs to the second one."""
    first, second = known
    named = labels.label_in_name(name, second, known)
    is_usual = not named and (first.casefold(), second.casefold()) in CONVENTIONS
    if named != second and not is_usual:  # a name may negate a label, as "unhappy" does
        raise ValueError(
            f"Column {name!r} may be the probability of {second!r} "
            f"(`classes={f'{first},{second}'!r}`) or of {first!r} "
            f"(`classes={f'{second},{first}'!r}`): state which."
        )
    return known


def _sorted(proba: Sequence[str], order: list[str]) -> list[str]:
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
    """Return the probabilities of all classes, shape (n_samples, n_classes)."""
    largest, meant = 1 + labels.ROW_SUM_TOLERANCE, "probabilities in [0, 1]"
    values = np.column_stack([_numbers(table[name], largest, meant, start) for name in names])
    if len(names) > 1:
        return values
    second = np.minimum(values, 1.0)
    return np.hstack([1 - second, second])


def weights_of(column: pd.Series, start: int = 0) -> FloatArray:
    meant = f"weights (numbers of samples, from 0 to {LARGEST_SUM:.3g})"
    return _numbers(column, LARGEST_SUM, meant, start)


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
    """Return a note if rounding explains sums other than 1; raise if rounding does not."""
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


class AuditedFiles(NamedTuple):
    audit: CalibrationAuditor
    columns: str  # the label of each probability column
    notes: list[str]  # formats of files that are not plain CSV, and remarks on rounded values


class _Chunk(NamedTuple):
    """Parts of a chunk that an audit keeps: about ten bytes per row, and some columns."""

    start: int  # position of the first row in its file
    best: NDArray[np.int32]  # position of the most probable class
    confidence: NDArray[np.int32]
    label: pd.Categorical
    decided: pd.Categorical | None  # recorded decisions, if there is a column of decisions
    groups: list[pd.Categorical]
    weight: FloatArray | None
    cluster: pd.Series | None
    features: pd.DataFrame
    note: str  # remark on rows whose probabilities do not sum to 1


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
    """Audit recorded predictions in files; the findings equal those of `from_predictions`.

    Each file is read once, in chunks. About ten bytes per row are kept, plus one for each column of
    groups; columns in which regions are searched are kept completely.

    Parameters
    ----------
    paths : sequence of path-like
        Files in a format that `skuq._table_files.open_table` reads, all with the same columns.
    label, proba, classes, weight
        As in `recorded_predictions`.
    groups : sequence of str, default=()
        Columns whose groups are audited too.
    features : sequence of str, default=()
        Columns in which regions are searched.
    weights_are : {"counts", "survey"}, optional
        Meaning of weights that are whole numbers; required if their mean is above 20.
    cluster : str, optional
        Column to use as `groups` of `CalibrationAuditor.fit`.
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
    import pandas as pd

    auditor = CalibrationAuditor(None, **params)
    auditor._validate_params()
    if features and not auditor._searches():
        auditor.set_params(search_regions=True)
    if auditor._searches() and not features:
        raise ValueError("`search_regions` needs columns to search in; name them as `features`.")
    tables = [open_table(path, format) for path in paths]
    label = _label_in(tables[0].columns, label)
    if proba is None:
        proba, classes = named_columns(tables[0].columns, classes)
        classes = [*map(str.strip, classes)]  # table cells are stripped as well
    check_columns(label, proba)
    if not len(proba):
        order_of_columns(proba, [], classes)  # always raises here, where `proba` is empty
    marks = [name for name in (weight, cluster) if name is not None]
    for table in tables:
        table.require([label, *proba, *groups, *features, *marks])
    # Read groups and labels as text, so that 01 stays 01. Without `classes`, convert labels later.
    kinds = dict.fromkeys(groups, str) | {label: "category" if classes is None else str}
    columns = label, [*proba], [*groups], [*dict.fromkeys(features)], weight, cluster
    files: list[list[_Chunk]] = Parallel(n_jobs=n_jobs)(
        delayed(_read)(table, kinds, *columns) for table in tables
    )
    pairs = [(table, chunk) for table, file in zip(tables, files, strict=True) for chunk in file]
    known = list(classes) if classes is not None else _labels(pairs, label, max(2, len(proba)))
    classes = order_of_columns(proba, known, classes)
    notes = list(dict.fromkeys(table.note for table in tables if table.note))
    predictions = []
    for table, file in zip(tables, files, strict=True):
        made, said, copies = [], "", 0
        with _named_errors(table):
            for chunk in file:
                codes = _label_codes(table, label, chunk, classes)
                made.append(TopLabelPredictions(chunk.confidence, chunk.best == codes))
                found = chunk.note, _note_on_decisions(chunk, classes)
                said = " ".join(filter(None, found)) or said
                copies += calibration.n_repeated(made[-1]) if cluster is None else 0
        predictions += made
        notes += [f"{shown(table.path)}: {said}"] * bool(said)
        notes += [repeated_rows(copies, f" of {table.path}")] * bool(copies)
    chunks = [chunk for _, chunk in pairs]
    values = None
    if weight is not None:
        values = _weights([c.weight for c in chunks], weight, weights_are, cluster is not None)
    clusters = None if cluster is None else pd.concat([chunk.cluster for chunk in chunks])
    auditor._audit(
        TopLabelPredictions(*map(np.concatenate, zip(*predictions, strict=True))),
        [
            _grouping(tables[0], name, [c.groups[k] for c in chunks])
            for k, name in enumerate(groups)
        ],
        _features(tables, chunks, [*groups, label]) if features else None,
        values,
        clusters,
    )
    auditor.classes_ = np.asarray(classes)
    if clusters is not None:
        n_clusters = clusters.nunique() + int(clusters.isna().sum())
        notes.append(f"The rows of each of {n_clusters} values of {cluster} count as one row.")
    return AuditedFiles(auditor, note_on_columns(proba, classes), notes)


def _read(
    table: TableFile,
    kinds: Mapping[str, Any],
    label: str,
    proba: list[str],
    groups: list[str],
    features: list[str],
    weight: str | None,
    cluster: str | None,
) -> list[_Chunk]:
    found = []
    # Words such as NA are text, except in the columns that are searched (`features`). If there are
    # any, the file is read as one chunk, so that the types of these columns follow from all rows.
    texts = [n for n in table.columns if n in kinds or n not in (*features, cluster)]
    options: dict[str, Any] = {"text_columns": texts}
    options["dtype"] = kinds if cluster is None else {**kinds, cluster: str}
    for chunk in [table.read(**options)] if features else table.chunks(**options):
        start = int(chunk.index[0])
        with _named_errors(table):
            values = probabilities_of(chunk, proba, start)
            note = note_on_sums(values, start)
            shares = None if weight is None else weights_of(chunk[weight], start)
        best = values.argmax(axis=1)
        top = top_label_predictions(best, values, classes=range(values.shape[1]))
        marked = [chunk[name].astype("category").array for name in (label, *groups)]
        decided = chunk[PREDICTION].astype("category").array if PREDICTION in chunk else None
        rows = best.astype(np.int32), top.confidence, marked[0], decided, marked[1:], shares
        marks = chunk[cluster] if cluster else None, chunk[features]
        found.append(_Chunk(start, *rows, *marks, note))
    return found


def _labels(pairs: list[tuple[TableFile, _Chunk]], label: str, enough: int) -> list[str]:
    """Return the labels in the files, sorted by value; stop as soon as `enough` are found."""
    texts: dict[Any, None] = {}
    values: set[Any] = set()
    for file, chunk in pairs:
        with _named_errors(file):
            check_labels_known(chunk.label, label, chunk.start)
        texts |= dict.fromkeys(chunk.label.categories)
        values = {value for value in file.values_of(list(texts)) if value == value}
        if len(values) >= enough:
            break
    try:
        return [as_text(value) for value in sorted(values)]
    except TypeError:  # labels are text in one file, and numbers in another
        return sorted(map(as_text, values))


def _label_codes(
    table: TableFile, label: str, chunk: _Chunk, classes: list[str]
) -> NDArray[np.int64]:
    """Return each label's position in `classes`, (n_rows,); "01" means 1 unless "01" is a class."""
    texts = chunk.label.categories.tolist()
    read = dict(zip(texts, table.values_of(texts), strict=True))
    missing = [text for text, value in read.items() if value != value and text not in classes]
    check_labels_known(chunk.label.remove_categories(missing), label, chunk.start)
    known = {text: position for position, text in enumerate(classes)}
    positions = [known.get(str(text), known.get(as_text(v), -1)) for text, v in read.items()]
    codes: NDArray[np.int64] = np.array(positions, np.int64)[chunk.label.codes]
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        raise unknown_label(as_text(chunk.label[row]), chunk.start + row, label, classes)
    return codes


def _note_on_decisions(chunk: _Chunk, classes: list[str]) -> str:
    """Return a note if a recorded decision is not the most probable class, which is audited."""
    if chunk.decided is None or (chunk.decided.codes < 0).any():
        return ""
    texts, known = list(map(as_text, chunk.decided.categories)), np.array(classes)
    other = np.array(texts)[chunk.decided.codes] != known[chunk.best]
    if not other.any() or not {*texts} <= {*classes}:
        return ""
    return (
        f"The confidence of the most probable class was audited; column {PREDICTION!r} has a "
        f"different class, first in {_row(chunk.start + int(other.argmax()))}."
    )


def _weights(
    parts: list[Any], name: str, weights_are: str | None, is_clustered: bool
) -> NDArray[Any]:
    """Return the weights of all rows, as integers if they count samples."""
    weight = np.concatenate(parts)
    n_weighed = int(np.count_nonzero(weight))
    if not n_weighed:
        raise ValueError(f"Column {name!r} is 0 in all rows; some weights must be positive.")
    if weights_are == "survey" or is_clustered:
        return weight
    weight = _prediction_audit.counted_weights(weight)
    if weights_are == "counts":
        if weight.dtype.kind == "f":
            raise ValueError(f"Column {name!r} has fractions, so the weights cannot be counts.")
        return weight
    if _prediction_audit.are_ambiguous(weight, weight.sum(), n_weighed):
        raise ValueError(
            f"The whole numbers in column {name!r} add up to {weight.sum():,} for {n_weighed:,} "
            "rows. State whether they count samples, and add up, or are survey weights, of which "
            "only ratios matter (`weights_are`: counts or survey)."
        )
    warn_of_mean_weight(weight.sum().item(), n_weighed)
    return weight


def _features(tables: Sequence[TableFile], chunks: list[_Chunk], texts: list[str]) -> pd.DataFrame:
    """Return the columns to search; a column that is text in one file becomes text in all.

    The files are read again to do so, and if a searched column was first read as text (`texts`).
    """
    import pandas as pd
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    def kind(column: pd.Series) -> tuple[bool, bool] | None:
        return None if column.isna().all() else (is_numeric_dtype(column), is_bool_dtype(column))

    frames = [chunk.features for chunk in chunks]
    wanted = [*frames[0]]
    if {*texts} & {*wanted}:
        frames = [table.read()[wanted] for table in tables]
    mixed = [name for name in wanted if len({kind(f[name]) for f in frames} - {None}) > 1]
    if mixed:
        frames = [table.read(dtype=dict.fromkeys(mixed, str))[wanted] for table in tables]
    frame = pd.concat(frames, ignore_index=True)
    return frame.assign(**{name: frame[name].map(as_text, na_action="ignore") for name in mixed})


def _grouping(table: TableFile, column: str, parts: list[Any]) -> Grouping:
    """Divide rows into groups, sorted and named by value; "01" is "1" in a column of numbers."""
    from pandas.api.types import union_categoricals

    as_objects = [part.rename_categories(part.categories.astype(object)) for part in parts]
    found = union_categoricals(as_objects)
    _prediction_audit.check_number_of_groups(column, len(found.categories))
    # In a column of numbers, a word for missing values, such as NA, forms a separate group.
    read = table.values_of(found.categories.tolist())
    texts = [
        as_text(value if value == value else text)
        for text, value in zip(found.categories, read, strict=True)
    ]
    names = sorted({*texts}, key=_sort_key)
    place = np.array([names.index(text) for text in texts] + [len(names)], np.int16)
    if (found.codes < 0).any():  # missing values form a separate group
        if "missing" in names:
            name = f"{column}=missing"
            raise ValueError(f"Group names must differ, got {name!r} twice; rename one.")
        names.append("missing")
    return Grouping(place[found.codes], [f"{column}={name}" for name in names])


def _sort_key(text: str) -> tuple[float, str]:
    """Sort numbers in increasing order, and texts after them."""
    try:
        return float(text), text
    except ValueError:
        return np.inf, text


@contextmanager
def _named_errors(table: TableFile) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{shown(table.path)}: {error}") from error
