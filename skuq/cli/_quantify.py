"""``skuq quantify``: predict the rows of a table, with the uncertainty of each prediction."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skuq.cli import _io
from skuq.cli._io import READABLE, SHARE, WRITABLE, InputError, one_line, option, say
from skuq.cli._main import GUESSING
from skuq.imports import discover

if TYPE_CHECKING:
    import pandas as pd

    from skuq._table_files import TableFile
    from skuq.reporting import Report
    from skuq.tables import TableModel

FOLDER = click.Path(path_type=Path)
TASKS = ("auto", "classification", "regression")
LEARNERS = ("auto", "hgb", "logistic", "network", "forest")
QUAM = ("quam", "quamclassifier", "quamregressor")  # names of the default --method

# Options of training, which cannot be combined with --load.
OF_TRAINING = [
    *("train", "target", "id_column", "drop", "task", "model", "method", "held_out"),
    *("seed", "save", "groups", "time", "weights"),
]


@click.command()
@option("--train", "CSV or Parquet file to train on.", READABLE)
@option("--target", "Column to predict.")
@option("--predict", "CSV or Parquet file with rows to predict.", READABLE)
@option("--out", "CSV or Parquet file to write.", WRITABLE)
@option("--report", "HTML report to write (needs extra 'plot').", WRITABLE)
@option("--id id_column", "Column that identifies rows; copied, not a feature.")
@option(
    "--groups",
    "Column with one value for all rows of the same person, shop, ...; not a feature. Quality, "
    "coverage and p-values then hold for new groups.",
)
@option("--time", "Column of dates or numbers: quality is measured on the latest fifth of rows.")
@option("--weights", "Column with weights of the rows, of which only ratios matter; not a feature.")
@option("--drop", "Column not to use; may be repeated.", multiple=True)
@option("--task", "Whether the target is a class or a quantity.", click.Choice(TASKS), "auto")
@option(
    "--model",
    "Learner, or file with a fitted model, which is not retrained (needs extra 'skops').",
    default="auto",
    metavar=f"[{'|'.join(LEARNERS)}|FILE]",
)
@option(
    "--method",
    "Name of the uncertainty estimator; all except quam train a model of their own.",
    default="quam",
)
@option(
    "--held-out", "CSV or Parquet file with labelled rows to calibrate and measure on.", READABLE
)
@option("--coverage", "Coverage of the prediction sets or intervals.", SHARE, 0.9)
@option("--save", "New folder to save the model in (needs extra 'skops').", FOLDER)
@option("--load", "Folder with a model written by --save.", FOLDER)
@_io.trust_option
@option("--seed", "Seed of training and search.", click.IntRange(0, 2**32 - 1), 0)
@option("--jobs", "Processes; -1 uses all cores.", click.IntRange(-1), 1)
@option("--strict", "Refuse a file if any of its rows cannot be scored.", is_flag=True)
@_io.csv_options
@_io.quiet_option
@click.pass_context
def quantify(
    context: click.Context,
    /,
    *,
    predict: Path | None,
    out: Path | None,
    report: Path | None,
    coverage: float,
    save: Path | None,
    load: Path | None,
    trust: bool,
    strict: bool,
    csv_format: _io.CsvOptions,
    quiet: bool,
    **training: Any,
) -> None:
    """Quantify the uncertainty of predictions for a table.

    The model is trained on another table (--train, --target), already fitted (--model FILE), or
    loaded from a folder (--load).

    Exit code 11: the results are written, but the model is not better than a constant prediction.
    """
    _check_options(context)
    _io.check_finite("--coverage", coverage)
    paths = {"train": training.pop("train"), "held_out": training.pop("held_out")}
    paths = {name: path for name, path in (paths | {"predict": predict}).items() if path}
    given = [] if training["model"] in LEARNERS else [Path(training["model"])]
    given += [] if load is None or not load.is_dir() else load.iterdir()
    _io.check_outputs([out, report, save], [*paths.values(), *given])
    if report is not None:
        _io.require_plots("--report")
    from skuq._table_files import CsvFormat, check_writable, open_table
    from skuq.tables import TableModel, guessing_note, quality_warnings

    with _refused():
        # Check all files before any long computation.
        if out is not None:
            check_writable(out)
        tables = {name: open_table(path, CsvFormat(*csv_format)) for name, path in paths.items()}
        notes = [table.note for table in tables.values() if table.note]
        new = tables.pop("predict", None)
        first: list[str] = []
        last: list[str] = []
        if load is not None:  # print no notes of the model: they were printed after its training
            model = TableModel.load(load, trust=trust)
        else:
            names = {*tables["train"].columns} - {training["target"]}
            if new is not None and not names & {*new.columns}:
                raise InputError(
                    f"--predict: {new.path.name} has none of the columns of the training table "
                    f"({', '.join(tables['train'].columns[:5])}, ...); is it the right file?"
                )
            model = _trained(tables, save, trust, quiet, **training)
            first = [*model.warnings_, *quality_warnings(model, coverage)]
            last = model.notes_[len(model.warnings_) :]
        if new is not None and out is not None:
            unread, said = _scored(model, new, out, report, coverage, strict)
            first, last = unread + first, last + said
    useless = guessing_note(model)
    if useless:
        say(useless, err=True)
    if not quiet:
        for note in first + notes + last:
            say(_io.as_options(note))
        for what, path in (("Uncertainty", out), ("Report", report), ("Model", save)):
            if path is not None:
                say(f"{what}: {path}")
    if useless:
        context.exit(GUESSING)


def _check_options(context: click.Context) -> None:
    source, on_line = context.get_parameter_source, click.core.ParameterSource.COMMANDLINE
    given = {name for name in context.params if source(name) is on_line}
    other_method = context.params["method"].lower() not in QUAM
    trained = (name for name in OF_TRAINING if name in given)
    both = [f"--{name.removesuffix('_column').replace('_', '-')}" for name in trained]
    lacking = [f"--{name}" for name in ("train", "target") if name not in given]
    if "load" in given and both:
        wrong = f"--load uses a model that is already trained; omit {', '.join(both)}."
    elif "load" not in given and lacking:
        wrong = f"Pass {' and '.join(lacking)} to train a model, or --load with a saved model."
    elif ("predict" in given) != ("out" in given):
        wrong = "--predict (rows to predict) and --out (file to write) must be used together."
    elif "predict" not in given and ("save" not in given or "report" in given):
        wrong = "Pass --predict and --out; without them, a model can only be trained and saved."
    elif other_method and "model" in given:
        wrong = "--model applies to --method quam only; other methods train a model."
    elif other_method and "save" in given and "trust" not in given:
        wrong = (
            "--save stores models of --method as a pickle, which can run code when it is loaded; "
            "to allow this, pass --trust."
        )
    elif "held_out" in given and context.params["held_out"].samefile(context.params["train"]):
        wrong = "--held-out is the training table, on which the model cannot be evaluated."
    else:
        _io.check_jobs(context.params["jobs"])
        return
    raise InputError(wrong)


@contextmanager
def _refused() -> Iterator[None]:
    """Convert input errors to a message of one line, with exit code 2."""
    from skuq._table_files import TableFileError
    from skuq.tables import TableError

    try:
        with _io.refusing_writes():
            yield
    except (TableError, TableFileError, ImportError) as error:
        raise InputError(one_line(error)) from error


def _trained(
    tables: dict[str, TableFile],
    save: Path | None,
    trust: bool,
    quiet: bool,
    *,
    target: str,
    id_column: str | None,
    drop: tuple[str, ...],
    task: str,
    model: str,
    method: str,
    seed: int,
    jobs: int,
    groups: str | None,
    time: str | None,
    weights: str | None,
) -> TableModel:
    """Train a model; ids, codes and classes keep the spelling that they have in the files."""
    from skuq.tables import TableModel, check_savable

    if save is not None:
        check_savable(save)
    if method.lower() in QUAM:
        estimator = _given(model, trust)
    else:
        estimator = _estimator(method, {"random_state": seed, "n_jobs": jobs})
    train, held_out = tables["train"], tables.get("held_out")
    used = [name for name in train.columns if name not in drop]
    marks = [name for name in (groups, time, weights) if name is not None]
    train.require([target, *drop, *marks])
    names = [name for name in (id_column, groups) if name is not None]
    is_fitted = method.lower() in QUAM and not isinstance(estimator, str)
    # Columns of codes with leading zeros are read as text, except for a fitted model of the user,
    # which was fitted on numbers.
    texts = {*names} if is_fitted else {*names, *train.codes}
    for table in tables.values():
        table.strips = not is_fitted
    if task == "regression":
        texts.discard(target)
    known = train.read(dtype=dict.fromkeys(texts, str), text_columns=names)
    if not is_fitted:
        known = _io.classes_as_written(train, known, target)
    other = None
    if held_out is not None:
        held_out.require([*(name for name in used if name in held_out.columns), *marks])
        other = held_out.read(dtype=_io.text_columns(known), text_columns=names)
    fitted = TableModel(
        estimator,
        task=task,
        random_state=seed,
        n_jobs=jobs,
        progress=None if quiet else lambda text: say(text, err=True),
    )
    options = {"groups": groups, "time": time, "sample_weight": weights}
    fitted.fit(known, target, drop=drop, id_column=id_column, held_out=other, **options)
    if save is not None:  # save at once: the model must survive a later error
        fitted.save(save, trust=trust)
    return fitted


def _scored(
    model: TableModel,
    table: TableFile,
    out: Path,
    report: Path | None,
    coverage: float,
    strict: bool,
) -> tuple[list[str], list[str]]:
    import pandas as pd

    from skuq._table_files import write_table
    from skuq.labels import true_name
    from skuq.tables import UNUSUAL, NewValuesWarning, coverage_notes, table_notes, unusual_note

    # Read the id, and the columns that were text in training, as text.
    read = {*model.columns_.numbers_, *model.columns_.dates_} - {*model.columns_.formats_}
    texts = [name for name in [*model.feature_names_in_, model.id_] if name and name not in read]
    kinds, table.strips = dict.fromkeys(texts, str), model.columns_.read_text
    # The target is copied to the output, because an audit of the output needs it.
    has_truth = model.target_ in table.columns
    if has_truth:
        kinds[model.target_] = str
    names = [] if model.id_ is None else [model.id_]
    table.require([name for name in model.feature_names_in_ if name in table.columns])
    total: Any = 0  # counts of all chunks so far
    kept: list[pd.DataFrame] = []
    pages: list[Report] = []
    n_unread, n_unusual, first_unread = 0, 0, ""

    def results() -> Iterator[pd.DataFrame]:
        nonlocal n_unread, n_unusual, first_unread, total
        for chunk in table.chunks(dtype=kinds, text_columns=names):
            with warnings.catch_warnings():  # one note on all chunks replaces these warnings
                warnings.simplefilter("ignore", NewValuesWarning)
                rows, counts = model.predict_and_count(chunk, coverage=coverage, strict=strict)
            total = total + counts
            unread = rows["reasons"][rows["prediction"].isna()]
            first_unread = first_unread or next(iter(unread), "")
            n_unread += len(unread)
            n_unusual += int((rows["conformal_p_value"] <= UNUSUAL).sum())
            if has_truth:
                truth = chunk[model.target_].to_numpy()
                rows.insert(len(names), true_name(model.target_), truth)
            if report is not None:
                kept.append(rows)
            yield rows
        # Create the report before the file is moved into place: if the report fails, nothing is
        # written.
        if report is not None:
            from skuq.reporting import table_report  # imports matplotlib, which is slow

            rows = kept[0] if len(kept) == 1 else pd.concat(kept)
            pages.append(table_report(model, rows, total, coverage=coverage))

    written = write_table(out, results())
    if report is not None:
        pages[0].write(report)
    said = table_notes(total, measured_later="time" in model.held_out_)
    said += coverage_notes(model, coverage)
    said += [written.note] if written.note else []
    first = [] if n_unread == 0 else [f"{n_unread} of {written.rows} rows {first_unread}."]
    return first, [*said, unusual_note(n_unusual, written.rows - n_unread, model)]


def _given(model: str, trust: bool) -> Any:
    if model in LEARNERS:
        return model
    if not Path(model).is_file():
        raise InputError(
            f"--model must be one of {', '.join(LEARNERS)}, or a file with a fitted model, got "
            f"{model!r}."
        )
    from skuq.tables import read_estimator

    return read_estimator(model, trust=trust)


def _estimator(method: str, params: dict[str, Any]) -> Any:
    plugins = {each.name.lower().removesuffix("classifier"): each for each in discover()}
    plugin = plugins.get(method.lower().removesuffix("classifier"))
    if plugin is None or plugin.estimator is None:
        known = ", ".join(sorted(name for name, p in plugins.items() if p.estimator is not None))
        why = "" if plugin is None else f" ({plugin.error})"
        raise InputError(f"--method must be one of {known}, got {method!r}{why}.")
    from sklearn.base import is_classifier

    try:
        estimator: Any = plugin.estimator()
    except TypeError as error:
        raise InputError(f"Estimator {method!r} can only be used from Python: {error}") from error
    if not is_classifier(estimator) or not hasattr(estimator, "predict_proba"):
        raise InputError(f"Estimator {method!r} does not predict class probabilities.")
    accepted = estimator.get_params()
    return estimator.set_params(**{k: v for k, v in params.items() if k in accepted})
