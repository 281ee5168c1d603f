"""``skuq quantify``: predict the rows of a table, with the uncertainty of each prediction."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skuq._plugins import Plugin, discover
from skuq.cli._files import (
    READABLE,
    WRITABLE,
    CsvOptions,
    InputError,
    check_finite,
    check_jobs,
    check_outputs,
    classes_as_written,
    csv_options,
    raw_text_option,
    refusing_writes,
    require_plots,
    text_columns,
    trust_option,
)
from skuq.cli._main import GUESSING
from skuq.cli._printing import as_options, one_line, say

if TYPE_CHECKING:
    import pandas as pd

    from skuq._table_files import TableFile
    from skuq.reporting import Report
    from skuq.tables import TableModel

FOLDER = click.Path(path_type=Path)
LEARNERS = ("auto", "hgb", "logistic", "network", "forest")
QUAM = ("quam", "quamclassifier", "quamregressor")  # names of the default method

# Options of training, which cannot be combined with --load.
OF_TRAINING = (
    *("train", "target", "id_column", "drop", "task", "model", "method", "held_out"),
    *("missing", "seed", "save", "keep_words"),
)


@click.command()
@click.option("--train", type=READABLE, help="CSV or Parquet file to train on.")
@click.option("--target", help="Column to predict.")
@click.option("--predict", type=READABLE, help="CSV or Parquet file with rows to predict.")
@click.option("--out", type=WRITABLE, help="CSV or Parquet file to write.")
@click.option("--report", type=WRITABLE, help="HTML report to write (needs extra 'plot').")
@click.option("--id", "id_column", help="Column that identifies rows; copied, not a feature.")
@click.option("--drop", multiple=True, help="Column not to use; may be repeated.")
@click.option(
    "--keep-words",
    multiple=True,
    metavar="NAME",
    help="Column in which words such as NA and None are values, not missing; may be repeated.",
)
@click.option(
    "--task",
    type=click.Choice(["auto", "classification", "regression"]),
    default="auto",
    show_default=True,
    help="Whether the target is a class or a quantity.",
)
@click.option(
    "--model",
    default="auto",
    show_default=True,
    metavar="[auto|hgb|logistic|network|forest|FILE]",
    help="Learner, or file with a fitted model, which is not retrained (needs extra 'skops').",
)
@click.option(
    "--method",
    default="quam",
    show_default=True,
    help="Name of the uncertainty estimator; all except quam train a model of their own.",
)
@click.option(
    "--held-out",
    type=READABLE,
    help="CSV or Parquet file with labelled rows to calibrate and measure on.",
)
@click.option(
    "--coverage",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.9,
    show_default=True,
    help="Coverage of the prediction sets or intervals.",
)
@click.option("--save", type=FOLDER, help="New folder to save the model in (needs extra 'skops').")
@click.option("--load", type=FOLDER, help="Folder with a model written by --save.")
@trust_option
@click.option(
    "--missing",
    type=click.Choice(["impute", "refuse"]),
    default="impute",
    show_default=True,
    help="How to treat missing values.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Seed of training and search.",
)
@click.option(
    "--jobs",
    type=click.IntRange(-1),
    default=1,
    show_default=True,
    help="Processes; -1 uses all cores.",
)
@click.option("--strict", is_flag=True, help="Refuse a file if any of its rows cannot be scored.")
@csv_options
@raw_text_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
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
    csv_format: CsvOptions,
    raw_text: bool,
    quiet: bool,
    **training: Any,
) -> None:
    """Quantify the uncertainty of predictions for a table.

    The model is trained on another table (--train, --target), already fitted (--model FILE), or
    loaded from a folder (--load).

    Exit code 11: the results are written, but the model is not better than a constant prediction.
    """
    _check_options(context)
    check_finite("--coverage", coverage)
    paths = {"train": training.pop("train"), "predict": predict}
    paths["held_out"] = training.pop("held_out")
    _check_held_out(paths["train"], paths["held_out"])
    inputs = [path for path in paths.values() if path is not None]
    inputs += [] if training["model"] in LEARNERS else [Path(training["model"])]
    inputs += [] if load is None else _files_of_model(load)
    check_outputs([out, report, save], inputs)
    if report is not None:
        require_plots("--report")
    from skuq._table_files import CsvFormat, check_writable, open_table
    from skuq.tables import guessing_note, weak_class_notes

    with _refused():
        # Check all files before any long computation.
        if out is not None:
            check_writable(out)
        tables = {
            name: open_table(path, CsvFormat(*csv_format))
            for name, path in paths.items()
            if path is not None
        }
        notes = [table.note for table in tables.values() if table.note]
        new = tables.pop("predict", None)
        if new is not None and not load:
            _check_common_columns(tables["train"], new, training["target"])
        model = _loaded(load, trust) if load else _trained(tables, save, trust, quiet, **training)
        first = [*model.warnings_, *weak_class_notes(model, coverage)]
        last = model.notes_[len(model.warnings_) :]
        if load:  # the notes of the model were printed when it was trained
            first, last = [], []
        if new is not None and out is not None:
            unread, said = _scored(model, new, out, report, coverage, raw_text, strict)
            first, last = unread + first, last + said
    useless = guessing_note(model)
    if useless:
        say(useless, err=True)
    if not quiet:
        for note in first + notes + last:
            say(as_options(note))
        for what, path in (("Uncertainty", out), ("Report", report), ("Model", save)):
            if path is not None:
                say(f"{what}: {path}")
    if useless:
        context.exit(GUESSING)


def _check_options(context: click.Context) -> None:
    """Refuse invalid combinations of options."""
    given = {
        name
        for name in context.params
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    if "load" in given:
        both = [_option(name) for name in OF_TRAINING if name in given]
        if both:
            raise InputError(
                f"--load uses a model that is already trained; omit {', '.join(both)}."
            )
    else:
        lacking = [_option(name) for name in ("train", "target") if name not in given]
        if lacking:
            raise InputError(
                f"Pass {' and '.join(lacking)} to train a model, or --load with a folder written "
                "by --save."
            )
    if ("predict" in given) != ("out" in given):
        raise InputError(
            "--predict (rows to predict) and --out (file to write) must be used together."
        )
    if "predict" not in given and ("save" not in given or "report" in given):
        raise InputError(
            "Pass --predict and --out; without them, the command can only train and save a model "
            "(--save)."
        )
    brings_model = context.params["method"].lower() not in QUAM
    if brings_model and "model" in given:
        raise InputError("--model applies to --method quam only; other methods train a model.")
    if brings_model and "save" in given and "trust" not in given:
        raise InputError(
            "--save stores models of --method as a pickle, which can run code when it is loaded; "
            "to allow this, pass --trust."
        )
    check_jobs(context.params["jobs"])


def _option(name: str) -> str:
    return "--" + name.removesuffix("_column").replace("_", "-")


def _check_held_out(train: Path | None, held_out: Path | None) -> None:
    """Refuse a held-out table that is the training table."""
    if train is not None and held_out is not None and train.resolve() == held_out.resolve():
        raise InputError(
            "--held-out is the training table, which cannot be used to evaluate the model; pass a "
            "different table, or omit --held-out to hold out a fifth of the training table."
        )


def _check_common_columns(train: TableFile, new: TableFile, target: str) -> None:
    """Before training, refuse a table for prediction that has none of the training columns."""
    if not ({*train.columns} - {target}) & {*new.columns}:
        raise InputError(
            f"--predict: {new.path.name} has none of the columns of the training table "
            f"({', '.join(train.columns[:5])}, ...); is it the right file?"
        )


def _files_of_model(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"--load: cannot find {folder}; pass a folder written by --save.")
    return list(folder.iterdir())


@contextmanager
def _refused() -> Iterator[None]:
    """Convert input errors to a message of one line, with exit code 2."""
    from skuq._table_files import TableFileError
    from skuq.tables import TableError

    try:
        with refusing_writes():
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
    missing: str,
    seed: int,
    jobs: int,
    keep_words: tuple[str, ...],
) -> TableModel:
    from skuq.tables import TableModel, check_savable

    if save is not None:
        check_savable(save)
    if method.lower() in QUAM:
        estimator = _given(model, trust)
    else:
        estimator = _estimator(method, {"random_state": seed, "n_jobs": jobs})
    known, other = _read(
        tables["train"],
        tables.get("held_out"),
        target=target,
        id_column=id_column,
        drop=drop,
        task=task,
        keep_words=keep_words,
        given=method.lower() in QUAM and not isinstance(estimator, str),
    )
    fitted = TableModel(
        estimator,
        task=task,
        missing=missing,
        random_state=seed,
        n_jobs=jobs,
        progress=None if quiet else lambda text: say(text, err=True),
    ).fit(known, target, drop=drop, id_column=id_column, held_out=other)
    if save is not None:  # save at once: the model must survive a later error
        fitted.save(save, trust=trust)
    return fitted


def _read(
    train: TableFile,
    held_out: TableFile | None,
    *,
    target: str,
    id_column: str | None,
    drop: tuple[str, ...],
    task: str,
    keep_words: tuple[str, ...],
    given: bool,
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Read the training and held-out tables; ids, codes and classes keep their spelling."""
    from pandas.api.types import is_numeric_dtype

    used = [name for name in train.columns if name not in drop]
    train.require([*used, *keep_words])
    names = [*keep_words] if id_column is None else [*keep_words, id_column]
    # Columns of codes with leading zeros are read as text, unless the user passed a fitted model,
    # because it was fitted on numbers.
    texts = {*names} if given else {*names, *train.codes}
    if task == "regression":
        texts.discard(target)
    known = train.read(dtype=dict.fromkeys(texts, str), text_columns=names)
    if not given:
        known = classes_as_written(train, known, target)
    gaps = [name for name in used if known[name].isna().any() and name not in names]
    texts = {name for name in gaps if name == target or not is_numeric_dtype(known[name])}
    known.attrs["missing_words"] = train.missing_words(texts)
    if held_out is None:
        return known, None
    held_out.require([name for name in used if name in held_out.columns])
    return known, held_out.read(dtype=text_columns(known), text_columns=names)


def _loaded(folder: Path, trust: bool) -> TableModel:
    from skuq.tables import TableModel

    return TableModel.load(folder, trust=trust)


def _scored(
    model: TableModel,
    table: TableFile,
    out: Path,
    report: Path | None,
    coverage: float,
    raw_text: bool,
    strict: bool,
) -> tuple[list[str], list[str]]:
    """Write results and report; return notes on unreadable rows, and all other notes."""
    import pandas as pd

    from skuq._table_files import write_table
    from skuq.tables import NewValuesWarning, coverage_notes, table_notes

    kinds = columns_as_text(model)
    # The target is copied to the output, because an audit of the output needs it.
    has_truth = model.target_ in table.columns
    if has_truth:
        kinds[model.target_] = str
    names = [] if model.id_ is None else [model.id_]
    table.require([name for name in model.feature_names_in_ if name in table.columns])
    total: list[pd.DataFrame] = []  # counts of all chunks so far
    kept: list[pd.DataFrame] = []
    not_copied: list[str] = []
    pages: list[Report] = []
    n_unread = 0

    def results() -> Iterator[pd.DataFrame]:
        nonlocal n_unread
        for chunk in table.chunks(dtype=kinds, text_columns=[*names, *columns_of_words(model)]):
            with warnings.catch_warnings():  # one note on all chunks replaces these warnings
                warnings.simplefilter("ignore", NewValuesWarning)
                rows = model.predict(chunk, coverage=coverage, strict=strict)
            counts = model.count(chunk)
            n_unread += int(rows["prediction"].isna().sum())
            if has_truth and model.target_ in rows:
                not_copied.append(model.target_)
            elif has_truth:
                rows.insert(len(names), model.target_, chunk[model.target_].to_numpy())
            total[:] = [counts if not total else total[0] + counts]
            if report is not None:
                kept.append(rows)
            yield rows
        # Create the report before the file is moved into place: if the report fails, nothing is
        # written.
        if report is not None:
            from skuq.reporting import table_report  # imports matplotlib, which is slow

            rows = kept[0] if len(kept) == 1 else pd.concat(kept)
            pages.append(table_report(model, rows, total[0], coverage=coverage))

    written = write_table(out, results(), raw_text=raw_text)
    if report is not None:
        pages[0].write(report)
    said = [*table_notes(total[0]), *coverage_notes(len(model.held_out_), coverage)]
    said += [written.note] if written.note else []
    if not_copied:
        said.append(
            f"The true values of {not_copied[0]!r} were not copied, since the results have a "
            "column of that name; rename the column in the tables to include them."
        )
    first = [] if n_unread == 0 else [f"{n_unread} of {written.rows} rows not scored.", said.pop(0)]
    return first, [*said, f"{written.rows - n_unread} rows were predicted."]


def columns_as_text(model: TableModel) -> dict[str, type[str]]:
    """Columns to read as text from any file: text columns in training, and the id column."""
    # Numbers with units or thousands separators are parsed later, from their text.
    read = {*model.columns_.numbers_, *model.columns_.dates_}
    names = [name for name in model.feature_names_in_ if name not in read]
    names += model.columns_.formats_
    names += [] if model.id_ is None else [model.id_]
    return dict.fromkeys(names, str)


def columns_of_words(model: TableModel) -> list[str]:
    """Columns in which words such as "NA" were values in training, not missing values."""
    from skuq.labels import as_text
    from skuq.written_numbers import MISSING_WORDS

    values = dict(model.training_values_.categories)
    if model.classes_ is not None:
        values[model.target_] = [as_text(label) for label in model.classes_]
    return [name for name, texts in values.items() if not MISSING_WORDS.isdisjoint(texts)]


def _given(model: str, trust: bool) -> Any:
    """Return the name of a learner, or load a fitted estimator from a file."""
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
    """Create the estimator with this long or short name, using the parameters that it accepts."""
    plugins = {
        name.lower(): plugin for plugin in discover() for name in (plugin.name, _short_name(plugin))
    }
    plugin = plugins.get(method.lower())
    if plugin is None:
        known = sorted({_short_name(p) for p in plugins.values() if p.estimator is not None})
        raise InputError(f"--method must be one of {', '.join(known)}, got {method!r}.")
    if plugin.estimator is None:
        raise InputError(f"Estimator {method!r} cannot be used: {plugin.error}")
    from sklearn.base import is_classifier

    try:
        estimator: Any = plugin.estimator()
    except TypeError as error:
        raise InputError(f"Estimator {method!r} can only be used from Python: {error}") from error
    if not is_classifier(estimator) or not hasattr(estimator, "predict_proba"):
        raise InputError(f"Estimator {method!r} does not predict class probabilities.")
    accepted = estimator.get_params()
    return estimator.set_params(**{k: v for k, v in params.items() if k in accepted})


def _short_name(plugin: Plugin) -> str:
    return plugin.name.removesuffix("Classifier").lower()
