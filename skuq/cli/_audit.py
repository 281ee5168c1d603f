"""``skuq audit``: audit recorded predictions; the exit code is the verdict.

Its subcommands, which audit a model without revealing it, are in ``_proofs``.
"""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from skuq.cli import _io
from skuq.cli._io import POSITIVE, SHARE, WRITABLE, InputError, one_line, option, say
from skuq.cli._main import LazyGroup, exit_with_verdict

COMMANDS = {
    "attest": ("_proofs", "Prove one prediction of a committed model (provider)."),
    "challenge": ("_proofs", "Draw the challenge that selects the proven predictions (auditor)."),
    "check": ("_proofs", "Check the proof of one prediction (client)."),
    "commit": ("_proofs", "Commit to a model without revealing it (provider)."),
    "prove": ("_proofs", "Prove the audit of a committed model (provider)."),
    "regions": ("_proofs", "Choose regions that are audited in addition to all samples (auditor)."),
    "verify": ("_proofs", "Verify the audit of a committed model (auditor)."),
}
SMALL_SHARE = click.FloatRange(0, 1)


@click.group(
    cls=LazyGroup,
    commands_at=COMMANDS,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND [ARGS]...]",
)
@option(
    "--predictions",
    "CSV or Parquet file with one prediction per row, or a pattern such as "
    "'part-*.parquet'; may be repeated.  [required unless a command follows]",
    multiple=True,
)
@option("--label", "Column with the true label.  [required unless a command follows]")
@option(
    "--proba",
    "Columns with the reported probabilities, one per class, separated by commas.  "
    "[default: columns named as 'skuq quantify' names them, such as p(yes)]",
)
@option(
    "--classes",
    "Labels in the order of the --proba columns; for a single column: both labels, the label "
    "of this column last.  [default: labels in names such as p(yes), else sorted labels]",
)
@option(
    "--tolerance",
    "Tolerated difference between accuracy and confidence; not a significance level.",
    SMALL_SHARE,
    0.05,
)
@option("--bins n_bins", "Number of confidence bins.", POSITIVE, 10)
@option(
    "--confidence-level",
    "A model whose confidence is right within --tolerance passes with at least this probability.",
    SHARE,
    0.95,
)
@option("--groups", "Columns whose groups are audited as well, separated by commas.")
@option(
    "--features", "Columns in which to search for regions of wrong confidence, separated by commas."
)
@option("--weights", "Column with weights of the rows: frequencies, or survey weights.")
@option("--weights-are", "Meaning of whole-number --weights.", click.Choice(["counts", "survey"]))
@option("--clusters", "Column whose equal values mark dependent rows, which count as one sample.")
@option(
    "--region-tolerance",
    "Tolerated difference within regions of --features.  [default: the value of --tolerance]",
    SMALL_SHARE,
)
@option(
    "--report",
    "HTML report to write (needs extra 'plot'), with its numbers in a JSON file next to it.",
    WRITABLE,
)
@option("--json json_path", "JSON file to write, with all numbers.", WRITABLE)
@option("--seed random_state", "Your own seed of the search.", click.IntRange(0))
@option("--jobs", "Number of processes, each reading some of the files; -1 uses all cores.", int, 1)
@_io.csv_options
@_io.quiet_option
@click.pass_context
def audit(ctx: click.Context, /, **options: Any) -> None:
    """Audit reported confidence against true labels.

    Exit code 0: passed. 10: failed, confidence is significantly wrong by more than --tolerance.
    12: inconclusive, too few rows to find even large deviations. Any other code: no verdict.

    The options are for an audit of recorded predictions. The subcommands prove and verify an audit
    without revealing the model.
    """
    if ctx.invoked_subcommand is None:
        for name in ("predictions", "label"):
            if not options[name]:
                raise click.UsageError(f"Missing option '--{name}'.", ctx)
        exit_with_verdict(ctx, partial(_passes, **options))
    for param in ctx.command.params:
        if ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE:
            raise click.UsageError(  # the subcommand would ignore this option
                f"{param.opts[0]} precedes {ctx.invoked_subcommand!r}; write the options of a "
                "subcommand after its name.",
                ctx,
            )


def _passes(
    predictions: tuple[str, ...],
    label: str,
    proba: str | None,
    classes: str | None,
    groups: str | None,
    features: str | None,
    weights: str | None,
    weights_are: Any,
    clusters: str | None,
    region_tolerance: float | None,
    report: Path | None,
    json_path: Path | None,
    jobs: int,
    csv_format: _io.CsvOptions,
    quiet: bool,
    **settings: Any,
) -> bool | None:
    _io.check_jobs(jobs)
    limits = {"tolerance": settings["tolerance"], "region-tolerance": region_tolerance}
    for name, value in (limits | {"confidence-level": settings["confidence_level"]}).items():
        _io.check_finite(f"--{name}", value)
    if report is not None:
        _io.require_plots("--report")
        json_path = report.with_suffix(".json") if json_path is None else json_path
    paths = _io.files_of("--predictions", predictions)
    _io.check_outputs([report, json_path], paths)
    from skuq._table_files import CsvFormat
    from skuq.audit import audit_files
    from skuq.labels import classes_of_columns

    columns = None if proba is None else _split(proba)
    label, attributes, searched = label.strip(), _split(groups), _split(features)
    outcomes = [label, *(columns or classes_of_columns([*attributes, *searched]))]
    _check_attributes("--groups", attributes, outcomes)
    _check_attributes("--features", searched, outcomes)
    for name, column in (("--weights", weights), ("--clusters", clusters)):
        _check_attributes(name, [] if column is None else [column], outcomes)
    if weights_are is not None and weights is None:
        raise InputError("--weights-are requires --weights.")
    of_search = {"region-tolerance": region_tolerance, "seed": settings["random_state"]}
    for name, value in of_search.items():
        if value is not None and not searched:
            raise InputError(f"--{name} requires --features, the columns to search.")
    try:
        auditor, order, notes = audit_files(
            paths,
            label,
            columns,
            classes and _split(classes),
            groups=attributes,
            features=searched,
            weight=weights,
            weights_are=weights_are,
            cluster=clusters,
            search_regions=bool(searched) if region_tolerance is None else region_tolerance,
            format=CsvFormat(*csv_format),
            n_jobs=jobs,
            **settings,
        )
    except (ValueError, ImportError) as error:
        raise InputError(one_line(error)) from error
    notes = [f"Columns of probabilities: {order}.", *notes]
    data = _write(auditor, notes, report, json_path)
    if not quiet:
        for note in notes:
            say(note)
        verdict = data["verdict"]
        color = ("green" if verdict["conclusive"] else "yellow") if verdict["passed"] else "red"
        say("", verdict["headline"], "", bold=True, fg=color)
        _io.say_bins(data["bins"])
        say("")
        for sentence in verdict["sentences"]:
            say(f"- {sentence}")
        for what, path in (("Report", report), ("Figures", json_path)):
            if path is not None:
                say(f"{what}: {path}")
    return auditor.passed_ if auditor.conclusive_ else None


def _split(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _check_attributes(option: str, attributes: list[str], outcomes: list[str]) -> None:
    for name in attributes:
        if name in outcomes:
            raise InputError(
                f"{option}: {name!r} is the label or a probability; choose columns that do not "
                "depend on the outcome."
            )
        if attributes.count(name) > 1:
            raise InputError(f"{option}: {name!r} is named twice.")


def _write(
    auditor: Any, notes: list[str], report: Path | None, json_path: Path | None
) -> dict[str, Any]:
    from skuq.reporting import AuditReport, audit_data, audit_report

    if report is not None:
        with warnings.catch_warnings():
            # Ignore that the plots' font lacks characters of a name: the tables show the name.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            page = audit_report(auditor, notes=notes)
    else:
        page = AuditReport("Calibration audit", audit_data(auditor, notes))
    # The headline must name options of the command line, not parameters of Python.
    verdict = page.data["verdict"]
    page.summary = verdict["headline"] = _io.as_options(verdict["headline"])
    with _io.refusing_writes():
        if report is not None:
            page.write(report, json_path)
        elif json_path is not None:
            page.write_json(json_path)
    return page.data
