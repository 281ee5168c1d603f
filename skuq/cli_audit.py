"""``skuq audit``: the verdict on recorded predictions, also as an exit code.

An audit that crashed must never look like one that was failed: everything that is not a
verdict ends with exit code 2.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from skuq.cli_files import (
    READABLE,
    WRITABLE,
    InputError,
    check_outputs,
    one_line,
    read_csv,
    require_plots,
)

PASSED, FAILED, NO_VERDICT = 0, 1, 2


@click.command()
@click.option(
    "--predictions", type=READABLE, required=True, help="CSV file, one prediction per row."
)
@click.option("--label", required=True, help="Its column with the true label.")
@click.option(
    "--proba",
    required=True,
    help="Its columns with the reported probabilities, one per class, separated by commas.",
)
@click.option(
    "--classes",
    help="Labels in the order of these columns; with one column: the class it is not the "
    "probability of comes first.  [default: by name]",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1),
    default=0.05,
    show_default=True,
    help="Tolerated distance between accuracy and confidence.",
)
@click.option(
    "--bins",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Number of confidence bins.",
)
@click.option(
    "--confidence-level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Least probability that a model within the tolerance passes.",
)
@click.option("--groups", help="Columns whose groups are audited too, separated by commas.")
@click.option(
    "--report",
    type=WRITABLE,
    help="HTML report to write (needs extra 'plot'); its figures go beside it as JSON.",
)
@click.option("--json", "json_path", type=WRITABLE, help="JSON file with all figures to write.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def audit(**options: Any) -> None:
    """Say whether reported confidence is what the labels support.

    Exit code 0: passed. 1: failed, confidence is wrong by more than chance explains.
    2: no verdict.
    """
    code = NO_VERDICT
    try:
        code = PASSED if _passes(**options) else FAILED
    except BaseException as error:  # also an interrupt: whatever happens, it is no verdict
        with suppress(Exception):  # there may be nowhere left to print to
            _tell(error)
    click.get_current_context().exit(code)


def _passes(
    predictions: Path,
    label: str,
    proba: str,
    classes: str | None,
    alpha: float,
    bins: int,
    confidence_level: float,
    groups: str | None,
    report: Path | None,
    json_path: Path | None,
    quiet: bool,
) -> bool:
    """Read, audit, write, print; and whether the audit is passed."""
    if "-" in map(str, (report, json_path)):
        raise InputError("Reports are written to files; give a name and not '-'.")
    if report is not None:
        require_plots("--report")
        json_path = report.with_suffix(".json") if json_path is None else json_path
    check_outputs([report, json_path], [predictions])
    from skuq.audit import CalibrationAuditor
    from skuq.audit.recorded import recorded_predictions

    label, columns, attributes = label.strip(), _split(proba), _split(groups)
    _check_attributes(attributes, [label, *columns])
    table = read_csv(predictions, needed=[label, *columns, *attributes], label=label)
    try:
        recorded = recorded_predictions(table, label, columns, classes and _split(classes))
        auditor = CalibrationAuditor.from_predictions(
            recorded.y,
            recorded.proba,
            classes=recorded.classes,
            groups=table[attributes],
            n_bins=bins,
            alpha=alpha,
            confidence_level=confidence_level,
        )
    except ValueError as error:
        raise InputError(one_line(error)) from error
    note = f"Columns of probabilities: {recorded.note}."
    data = _write(auditor, note, report, json_path)
    if not quiet:
        _say(note)
        _show(data)
        for what, path in (("Report", report), ("Figures", json_path)):
            if path is not None:
                _say(f"{what}: {path}")
    return auditor.passed_


def _split(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _check_attributes(attributes: list[str], outcomes: list[str]) -> None:
    """Groups that follow from the outcome would fail every honest model."""
    for name in attributes:
        if name in outcomes:
            raise InputError(
                f"--groups: {name!r} is the label or a probability; name attributes that do not "
                "depend on the outcome."
            )
        if attributes.count(name) > 1:
            raise InputError(f"--groups: {name!r} is named twice.")


def _write(auditor: Any, note: str, report: Path | None, json_path: Path | None) -> dict[str, Any]:
    """Write what is asked for, and return the figures."""
    from skuq.audit.report import AuditReport, audit_data, audit_report

    if report is not None:
        with warnings.catch_warnings():
            # A name in a script that the font of the pictures lacks; tables still show it.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            page = audit_report(auditor, notes=[note])
    else:
        page = AuditReport("Calibration audit", audit_data(auditor, [note]))
    try:
        if report is not None:
            page.write(report, json_path)
        elif json_path is not None:
            page.write_json(json_path)
    except OSError as error:
        raise InputError(f"Cannot write: {error}") from error
    return page.data


def _show(data: dict[str, Any]) -> None:
    """Print verdict, bins and what to make of them."""
    from skuq.audit.phrases import between, outcome, percent

    verdict = data["verdict"]
    _say(f"\n{verdict['headline']}\n", bold=True, fg="green" if verdict["passed"] else "red")
    _say(f"  {'confidence':<16}{'samples':>9}{'claimed':>9}{'right':>8}{'difference':>12}  finding")
    for row in data["bins"]:
        if row["count"]:
            _say(
                f"  {between(row, joint='to'):<16}{row['count']:>9}{percent(row['confidence']):>9}"
                f"{percent(row['accuracy']):>8}{100 * row['gap']:>+z12.1f}  {outcome(row)}"
            )
    _say("")
    for sentence in verdict["sentences"]:
        _say(f"- {sentence}")


def _say(text: str, **style: Any) -> None:
    """Print text whose parts may come from data: nothing in it commands the terminal."""
    visible = "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.secho(visible.encode(encoding, "backslashreplace").decode(encoding), **style)


def _tell(error: BaseException) -> None:
    if isinstance(error, click.ClickException):
        error.show()
    elif isinstance(error, KeyboardInterrupt):
        click.echo("Aborted!", err=True)
    elif isinstance(error, BrokenPipeError):
        click.echo("Nobody read the verdict to its end.", err=True)
    else:
        traceback.print_exception(error)
