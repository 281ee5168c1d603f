"""``skuq compare``: compare two saved models on the same labelled rows, overall and by group."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skuq.cli._files import (
    READABLE,
    WRITABLE,
    CsvOptions,
    InputError,
    check_finite,
    check_outputs,
    csv_options,
    refusing_writes,
    trust_option,
)
from skuq.cli._main import one_line, say

if TYPE_CHECKING:
    import pandas as pd

    from skuq.tables import ModelComparison, TableModel

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("a", type=FOLDER)
@click.argument("b", type=FOLDER)
@click.option("--data", required=True, type=READABLE, help="CSV or Parquet file with the target.")
@click.option(
    "--groups", default="", help="Columns whose groups are also compared, such as sex,job."
)
@click.option(
    "--coverage",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.9,
    show_default=True,
    help="Coverage of the prediction intervals.",
)
@click.option("--report", type=WRITABLE, help="HTML report to write.")
@trust_option
@csv_options
def compare(
    a: Path,
    b: Path,
    *,
    data: Path,
    groups: str,
    coverage: float,
    report: Path | None,
    trust: bool,
    csv_format: CsvOptions,
) -> None:
    """Compare two saved models on the same labelled rows.

    A and B are folders written by 'skuq quantify --save'. The rows must not have been used to train
    either model. The exit code is 0 whichever model is better.
    """
    check_finite("--coverage", coverage)
    check_outputs([report], [data])
    from skuq._table_files import CsvFormat, TableFileError, open_table
    from skuq.tables import NewValuesWarning, TableError, TableModel, compare_models

    columns = [name.strip() for name in groups.split(",") if name.strip()]
    try:
        table = open_table(data, CsvFormat(*csv_format))
        first, second = (TableModel.load(folder, trust=trust) for folder in (a, b))
        table.require([first.target_, *columns])
        frame = table.read(**_kinds([first, second]))
        # The comparison is valid even if the rows contain values that were absent from training.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NewValuesWarning)
            found = compare_models(first, second, frame, coverage=coverage, groups=columns)
    except (TableError, TableFileError, ImportError) as error:
        raise InputError(one_line(error)) from error
    if report is not None:
        with refusing_writes():
            _report(found, f"A is the model in {a}, B the model in {b}.").write(report)
    if table.note:
        say(table.note)
    for sentence in found.sentences:
        say(sentence)
    say("")
    for line in _shown(found.measures).to_string().splitlines():
        say(line)
    if report is not None:
        say(f"Report: {report}")


def _kinds(models: list[TableModel]) -> dict[str, Any]:
    """Options to read the columns with the types that both models were trained on."""
    from skuq.cli._quantify import columns_as_text, columns_of_words

    texts = [columns_as_text(model) for model in models]
    numbers = [
        {*model.feature_names_in_} - {*text} for model, text in zip(models, texts, strict=True)
    ]
    for name in (texts[0].keys() & numbers[1]) | (texts[1].keys() & numbers[0]):
        raise InputError(
            f"Column {name!r} is text for one model and numeric for the other; train both on files "
            "in which this column has the same format."
        )
    target = models[0].target_
    truth = {target: str} if models[0].classes_ is not None else {}
    words = [m.id_ for m in models if m.id_]
    words += [name for model in models for name in columns_of_words(model)]
    return {"dtype": texts[0] | texts[1] | truth, "text_columns": words}


def _shown(measures: pd.DataFrame) -> pd.DataFrame:
    """Format measures for printing."""
    interval = [f"{_n(r['low'])} to {_n(r['high'])}" for _, r in measures.iterrows()]
    shown = measures[["a", "b", "difference"]].map(_n)
    shown["95% interval"] = interval
    shown["p"] = measures["p_value"].map(lambda p: "below 0.0001" if p < 1e-4 else f"{p:.2g}")
    shown["better"] = measures["better"].replace("", "neither")
    return shown.rename(columns={"a": "A", "b": "B", "difference": "A minus B"})


def _n(value: float) -> str:
    return f"{value:.4g}"


def _report(found: ModelComparison, which: str) -> Any:
    from skuq.reporting import Report

    page = Report("Which of two models is better?", " ".join([*found.sentences, which]))
    page.table(
        "Measures",
        _shown(found.measures).rename_axis("on the same rows"),
        "Smaller losses and areas are better. Mean losses are compared by a paired t test, shares "
        "by McNemar's exact test, areas by a bootstrap of rows. Neither higher nor lower coverage "
        "is better by itself: the interval score weighs it against width.",
    )
    parts = _shown(found.parts)
    for position, name in enumerate(("by", "part", "rows")):
        parts.insert(position, name, found.parts[name])
    page.table(
        "Where?",
        parts,
        f"Differences of the {found.measures.index[0]}, by subgroup of the rows. P-values are "
        "corrected for the number of subgroups (Holm), intervals are not. Subgroups of fewer than "
        "10 rows are omitted.",
    )
    return page
