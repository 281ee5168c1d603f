"""``skuq audit commit``, ``prove``, ``verify`` and so on: audits of a model that is not shown.

A thin skin over `skuq.zk`. Exit code 1 belongs to a verdict that is failed, and to
nothing else: whatever goes wrong ends with exit code 2.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from skuq.cli._files import (
    READABLE,
    WRITABLE,
    InputError,
    one_line,
    say,
    say_bins,
    tell,
    visible,
)
from skuq.cli._proof_files import (
    check_files,
    check_names,
    check_outside,
    check_width,
    load_commitment_folder,
    load_model,
    one_row,
    read_features,
    read_reference,
)

if TYPE_CHECKING:
    from skuq.zk import Commitment, VerifiedAudit

DONE, FAILED, NOTHING = 0, 1, 2
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
NEW_FOLDER = click.Path(file_okay=False, path_type=Path)
LEVELS = ("bins", "verdict", "predictions")


class _Refusal(click.ClickException):
    """What others sent does not hold: one line that says why, and exit code 2."""

    exit_code = NOTHING

    def show(self, file: IO[Any] | None = None) -> None:
        line = visible(f"Refused: {self.message}")
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        click.echo(line.encode(encoding, "backslashreplace").decode(encoding), file, err=True)


class _Command(click.Command):
    """A command whose callback returns the exit code."""

    def invoke(self, ctx: click.Context) -> None:
        code = NOTHING
        try:
            code = super().invoke(ctx)
        except BaseException as error:  # also an interrupt: whatever happens, nothing is decided
            with suppress(Exception):  # there may be nowhere left to print to
                tell(error)
        ctx.exit(code)


class _Probability(click.ParamType[Any]):
    """A probability, or a word that stands for something else."""

    name = "float range"

    def __init__(self, **words: str | None):
        self._words = words

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str | None:
        if value in self._words:
            return self._words[value]
        return click.FloatRange(0, 1, min_open=True, max_open=True).convert(value, param, ctx)


@contextmanager
def _in_one_line(json_path: Path | None = None) -> Iterator[None]:
    """Say in one line what is wrong with files, arguments or the installation."""
    try:
        from skuq.zk import Refused

        try:
            yield
        except Refused as refusal:
            reason = one_line(refusal)
            if json_path is not None:
                _write_json(json_path, {"refused": reason})
            raise _Refusal(reason) from refusal
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        raise InputError(visible(one_line(error))) from error


def _require() -> None:
    from skuq.extras import import_optional

    try:
        for module in ("ezkl", "onnx"):
            import_optional(module, extra="zk")
    except ImportError as error:
        raise InputError(one_line(error)) from error


# --- options that several commands have --------------------------------------------------------


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def _commitment(whose: str) -> Wrap:
    return click.option("--commitment", type=FOLDER, required=True, help=whose)


_data = click.option(
    "--data", type=READABLE, required=True, help="CSV file: reference data with their labels."
)
_label = click.option("--label", required=True, help="Its column with the true label.")
_drop = click.option("--drop", multiple=True, help="Column to leave out; may be repeated.")
_quiet = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
_keys = click.option(
    "--keys",
    type=NEW_FOLDER,
    help="Your own folder for verifying keys, built once.  [default: built anew]",
)
_input = click.option("--input", "row", type=READABLE, help="CSV file with a header and one row.")
_values = click.option("--values", help="Or its numbers, separated by commas.")
_nonce = click.option("--nonce", help="Text that the client chose for this one prediction.")
_false_share = click.option(
    "--false-share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.02,
    show_default=True,
    help="Share of false reports that must be found, for 'predictions'.",
)
_error = click.option(
    "--error",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.01,
    show_default=True,
    help="Largest probability to miss it, for 'predictions'.",
)
_json = click.option("--json", "json_path", type=WRITABLE, help="JSON file to write.")


# --- the provider --------------------------------------------------------------------------------


@click.command(cls=_Command)
@click.option(
    "--model",
    type=READABLE,
    required=True,
    help="Your own joblib or pickle file of a fitted classifier. Loading such a file runs code: "
    "never take one from others.",
)
@click.option(
    "--data", type=READABLE, required=True, help="CSV file: calibration data, features alone."
)
@click.option("--out", type=NEW_FOLDER, required=True, help="Folder to make.")
@_drop
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.005,
    show_default=True,
    help="Largest difference between a proven confidence and the model's, on these data.",
)
@click.option(
    "--srs",
    type=READABLE,
    help="Structured reference string of a public ceremony.  [default: generated here, which is "
    "for tests only]",
)
@click.option(
    "--bins",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Largest number of confidence bins of an audit.",
)
@click.option(
    "--proofs",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Number of proofs that may be made.",
)
@click.option(
    "--verdict-samples",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of reference samples for verdicts that reveal nothing else.",
)
@click.option(
    "--max-memory",
    type=click.FloatRange(0, min_open=True),
    default=8.0,
    show_default=True,
    help="Memory for keys and proofs, in GiB.",
)
@_quiet
def commit(
    model: Path,
    data: Path,
    out: Path,
    drop: tuple[str, ...],
    tolerance: float,
    srs: Path | None,
    bins: int,
    proofs: int,
    verdict_samples: int,
    max_memory: float,
    quiet: bool,
) -> int:
    """Commit to a model without showing it.

    Writes two folders: OUT/public is for everybody, OUT/private holds the weights and must stay
    where it is.
    """
    _require()
    table = read_features(data, drop)
    estimator = load_model(model)
    check_names(data, list(table.columns), estimator)
    from skuq.zk import commit as make

    with _in_one_line():
        try:
            made = make(
                estimator,
                table.to_numpy(),
                out,
                tolerance=tolerance,
                srs=srs,
                n_bins=bins,
                n_proofs=proofs,
                verdict_samples=verdict_samples,
                max_memory=max_memory,
                verbose=int(not quiet),
            )
        except TypeError as error:  # a layer that a circuit does not support
            raise ValueError(str(error)) from error
    if not quiet:
        agreed = made.record["agreement"]
        say(f"Commitment: {made.point}")
        say(f"SHA-256:    {made.digest}")
        say(f"For everybody:     {made.folder}")
        say(f"For nobody else:   {made.folder.parent / 'private'}")
        say(f"Proven confidences are within {agreed['maximum']:.4f} of the model's on these data.")
        say(f"Structured reference string: {made.record['reference_string']['source']}.")
    return DONE


@click.command(cls=_Command)
@_commitment("Folder 'public' of the commitment, with 'private' beside it.")
@_data
@_label
@click.option("--out", type=NEW_FOLDER, required=True, help="Folder for the auditor.")
@_drop
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
    type=_Probability(none=None),
    default=0.95,
    show_default=True,
    help="Least probability that a model within the tolerance passes; 'none' leaves nothing to "
    "chance.",
)
@click.option(
    "--disclose",
    type=click.Choice(LEVELS),
    default="bins",
    show_default=True,
    help="What becomes public besides the verdict: sums of each bin, nothing, or all reported "
    "confidences.",
)
@click.option("--challenge", type=READABLE, help="The auditor's file, for 'predictions'.")
@_false_share
@_error
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Longest time for one proof, in seconds.",
)
@_quiet
def prove(
    commitment: Path,
    data: Path,
    label: str,
    out: Path,
    drop: tuple[str, ...],
    alpha: float,
    bins: int,
    confidence_level: float | None,
    disclose: Any,
    challenge: Path | None,
    false_share: float,
    error: float,
    timeout: float,
    quiet: bool,
) -> int:
    """Prove the audit of a committed model, for the provider.

    The same command again goes on where it was interrupted.
    """
    _require()
    if challenge is not None and disclose != "predictions":
        raise InputError("--challenge: a challenge belongs to --disclose predictions.")
    check_outside("--out", out, [commitment])
    with _in_one_line():
        X, y = read_reference(data, label, drop, load_commitment_folder(commitment))
        from skuq.zk import prove as make

        made = make(
            commitment,
            X.to_numpy(),
            y,
            out,
            alpha=alpha,
            n_bins=bins,
            confidence_level=confidence_level,
            disclose=disclose,
            challenge=challenge,
            false_share=false_share,
            error=error,
            timeout=timeout,
            verbose=int(not quiet),
        )
    if made.complete:
        if not quiet:
            say(f"Proofs: {made.n_proofs}")
            say(f"For the auditor: {made.folder}")
    else:  # also if quiet: without the next step there is no audit
        say(
            f"The reported confidences are fixed, and nothing is proven yet. Give {made.folder} "
            "to the auditor,\nwho answers with\n"
            f"  skuq audit challenge --audit {made.folder} --out challenge.json\n"
            "Then repeat this command with --challenge challenge.json."
        )
    return DONE


@click.command(cls=_Command)
@_commitment("Folder 'public' of the commitment, with 'private' beside it.")
@_input
@_values
@_drop
@_nonce
@click.option("--out", type=WRITABLE, required=True, help="JSON file for the client.")
def attest(
    commitment: Path,
    row: Path | None,
    values: str | None,
    drop: tuple[str, ...],
    nonce: str | None,
    out: Path,
) -> int:
    """Prove one prediction of a committed model, for the provider.

    The input is given by --input or by --values.
    """
    _require()
    check_files([out], [row], [commitment])
    x = one_row(row, values, drop)
    if x is None:
        raise InputError("Give the input by --input or by --values.")
    with _in_one_line():
        committed = load_commitment_folder(commitment)
        check_width(row or "--values", len(x), committed)
        from skuq.zk import attest as make

        made = make(commitment, x, out, nonce=nonce or "")
    say(f"Attestation: {made}")
    return DONE


# --- those who check -----------------------------------------------------------------------------


@click.command(cls=_Command)
@click.option("--audit", "bundle", type=FOLDER, required=True, help="The provider's folder.")
@click.option("--out", type=WRITABLE, required=True, help="JSON file to write, and to keep.")
def challenge(bundle: Path, out: Path) -> int:
    """Answer reported confidences, for the auditor.

    A random number decides which of them are proven. Send a copy of the file to the provider,
    and give the file itself to 'verify'.
    """
    check_files([out], [], [bundle])
    with _in_one_line():
        from skuq.zk import make_challenge

        made = make_challenge(bundle, out)
    say(f"Challenge: {made}")
    return DONE


@click.command(cls=_Command)
@click.option("--audit", "bundle", type=FOLDER, required=True, help="The provider's folder.")
@_data
@_label
@_commitment("Folder 'public' as it was published.")
@_drop
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1),
    help="What was asked for.  [default: what the provider states]",
)
@click.option(
    "--bins",
    type=click.IntRange(1),
    help="What was asked for.  [default: what the provider states]",
)
@click.option(
    "--confidence-level",
    type=_Probability(none=None, stated="stated"),
    default="stated",
    help="What was asked for; a probability or 'none'.  [default: what the provider states]",
)
@click.option("--challenge", type=READABLE, help="Your own challenge, for 'predictions'.")
@_false_share
@_error
@_keys
@_json
@_quiet
def verify(
    bundle: Path,
    data: Path,
    label: str,
    commitment: Path,
    drop: tuple[str, ...],
    alpha: float | None,
    bins: int | None,
    confidence_level: Any,
    challenge: Path | None,
    false_share: float,
    error: float,
    keys: Path | None,
    json_path: Path | None,
    quiet: bool,
) -> int:
    """Verify an audit of a committed model, for the auditor.

    Exit code 0: all proofs hold, and the audit is passed. 1: all proofs hold, and it is failed.
    2: refused, or no verdict for another reason.
    """
    _require()
    check_files([json_path], [data, challenge], [bundle, commitment])
    check_outside("--keys", keys, [bundle, commitment])
    with _in_one_line(json_path):
        committed = load_commitment_folder(commitment)
        X, y = read_reference(data, label, drop, committed)
        from skuq.zk import verify as check_all

        found = check_all(
            bundle,
            X.to_numpy(),
            y,
            commitment,
            alpha=alpha,
            n_bins=bins,
            confidence_level=confidence_level,
            challenge=challenge,
            false_share=false_share,
            error=error,
            keys=keys,
        )
        if json_path is not None:
            _write_json(json_path, {**found.as_record(), **_names(committed)})
    if not quiet:
        _show(found, committed)
    return DONE if found.passed else FAILED


@click.command(cls=_Command)
@click.option("--attestation", type=READABLE, required=True, help="The provider's file.")
@_commitment("Folder 'public' as it was published: the same as of the audit.")
@_input
@_values
@_drop
@_nonce
@_keys
@_json
def check(
    attestation: Path,
    commitment: Path,
    row: Path | None,
    values: str | None,
    drop: tuple[str, ...],
    nonce: str | None,
    keys: Path | None,
    json_path: Path | None,
) -> int:
    """Check an attested prediction, for the client.

    Without --input or --values, compare the printed input with your own.
    """
    _require()
    check_files([json_path], [attestation, row], [commitment])
    check_outside("--keys", keys, [commitment])
    x = one_row(row, values, drop)
    with _in_one_line(json_path):
        committed = load_commitment_folder(commitment)
        from skuq.zk import check as check_one

        found = check_one(attestation, commitment, x=x, nonce=nonce, keys=keys)
        if json_path is not None:
            _write_json(json_path, {**found._asdict(), **_names(committed)})
    say(f"label:      {found.label}")
    say(f"confidence: {found.confidence:.4f}")
    if x is None:
        say(f"input:      {', '.join(map(repr, found.x))}")
    return DONE


COMMANDS: tuple[click.Command, ...] = (commit, prove, challenge, verify, attest, check)


# --- what is written and printed -----------------------------------------------------------------


def _names(committed: Commitment) -> dict[str, str]:
    return {"commitment": committed.point, "commitment_sha256": committed.digest}


def _write_json(path: Path, record: dict[str, Any]) -> None:
    from skuq.zk._files import write_json

    try:
        write_json(path, record)
    except OSError as error:
        raise InputError(f"Cannot write: {error}") from error


def _show(found: VerifiedAudit, committed: Commitment) -> None:
    """Print verdict, what it is about, bins, and what to make of it."""
    statement = found.statement
    level = statement["confidence_level"]
    explained = " and chance explain" if level is not None else ""
    limit = f"wrong by more than alpha = {statement['alpha']:g}{explained}"
    headline = (
        f"Passed: confidence is in no bin {limit}."
        if found.passed
        else f"Failed: confidence is {limit}."
    )
    say(f"\n{headline}\n", bold=True, fg="green" if found.passed else "red")
    for name, value in (
        ("level", found.level),
        ("alpha", f"{statement['alpha']:g}"),
        ("bins", statement["n_bins"]),
        ("proofs", found.n_proofs),
        ("confidence level", "none" if level is None else f"{level:.10g}"),
        ("samples", statement["n_samples"]),
        ("commitment", committed.point),
        ("its SHA-256", committed.digest),
    ):
        say(f"  {name:<18}{value}")
    say("")
    if found.sums is not None:
        say_bins(_rows(found))
        say("")
    for note in found.notes:
        say(f"- {note}")


def _rows(found: VerifiedAudit) -> Iterator[dict[str, Any]]:
    """One dict per bin, as in the figures of other audits."""
    import numpy as np

    sums = found.sums
    assert sums is not None
    edges = sums.edges / sums.scale
    within = abs(sums.deviation) <= found.statement["alpha"] * sums.count * sums.scale
    gap = sums.accuracy - sums.mean_confidence
    significant, direction = ~within, np.where(gap > 0, "underconfident", "overconfident")
    if found.judgement is not None:
        bins = found.judgement.bins
        within, significant, direction = bins.within_alpha, bins.significant, bins.direction
    for b in range(len(sums.count)):
        yield {
            "lower": edges[b],
            "upper": edges[b + 1],
            "count": sums.count[b],
            "confidence": sums.mean_confidence[b],
            "accuracy": sums.accuracy[b],
            "gap": gap[b],
            "within_alpha": within[b],
            "significant": significant[b],
            "direction": direction[b],
        }
