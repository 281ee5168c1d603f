"""``skuq audit commit``, ``prove`` and ``attest``: commands of the provider of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skuq.cli._files import READABLE, WRITABLE, InputError, check_jobs, trust_option
from skuq.cli._printing import one_line, say
from skuq.cli._proof_options import (
    NEW_FOLDER,
    SHARE,
    check_files,
    check_names,
    check_outside,
    drop_option,
    errors_in_one_line,
    load_commitment_folder,
    load_model,
    one_row,
    own_commitment_option,
    prediction_options,
    question_options,
    quiet_option,
    read_features,
    read_reference,
    reference_options,
    regions_option,
    require_zk,
    spot_check_options,
)

if TYPE_CHECKING:
    from skuq.zk import Bundle, Commitment


@click.command()
@click.option(
    "--model",
    type=READABLE,
    required=True,
    help="skops file with a fitted classifier; with --trust, also a joblib or pickle file.",
)
@trust_option
@click.option(
    "--data", type=READABLE, required=True, help="CSV file with the features of calibration data."
)
@click.option("--out", type=NEW_FOLDER, required=True, help="Folder to create.")
@drop_option
@click.option(
    "--tolerance",
    type=SHARE,
    default=0.005,
    show_default=True,
    help="Largest difference between a proven confidence and the model's, on --data.",
)
@click.option(
    "--srs",
    type=READABLE,
    help="Structured reference string of the public ceremony; if it has the wrong size, the error "
    "names the required file.  [default: generated locally, for tests only]",
)
@click.option(
    "--bins",
    "n_bins",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Largest number of confidence bins of an audit.",
)
@click.option(
    "--proofs",
    "n_proofs",
    type=click.IntRange(1),
    default=96,
    show_default=True,
    help="Number of audit proofs that the commitment allows. The command prints how many rows one "
    "proof covers; an audit takes as many proofs as its rows need.",
)
@click.option(
    "--attestations",
    "n_attestations",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Number of predictions that can be proven to clients.",
)
@click.option(
    "--verdict-samples",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of reference samples that can be audited at level 'verdict'.",
)
@click.option(
    "--max-memory",
    type=click.FloatRange(0, min_open=True),
    default=8.0,
    show_default=True,
    help="Memory for keys and proofs, in GiB.",
)
@quiet_option
def commit(
    model: Path,
    data: Path,
    out: Path,
    drop: tuple[str, ...],
    trust: bool,
    quiet: bool,
    **settings: Any,
) -> None:
    """Commit to a model without revealing it (provider).

    Writes two folders: OUT/public, to be published, and OUT/private, which contains the weights and
    must be kept secret.
    """
    require_zk()
    table = read_features(data, drop)
    estimator = load_model(model, trust=trust)
    check_names(data, list(table.columns), estimator)
    with errors_in_one_line():
        from skuq import zk

        try:
            made = zk.commit(estimator, table, out, **settings, verbose=int(not quiet))
        except TypeError as error:  # a layer that circuits do not support
            raise InputError(one_line(error)) from error
    if not quiet:
        _show_commitment(made, settings["srs"] is not None)


def _show_commitment(made: Commitment, given: bool) -> None:
    agreed = made.record["agreement"]
    say(f"Commitment point:   {made.point}")
    say(f"Commitment digest:  {made.digest}")
    say(f"Publish:            {made.folder}")
    say(f"Keep secret:        {made.folder.parent / 'private'}")
    for line in _capacity(made):
        say(line)
    say(f"Proven confidences are within {agreed['maximum']:.4f} of the model's on --data.")
    if made.uses_ceremony:
        say("Reference string: from the public ceremony.")
    elif given:
        say("Reference string: the given file. A verifier needs a copy from a different source.")
    else:
        say("Reference string: TEST ONLY. Nobody can rely on these proofs. For real use, commit")
        say(f"with --srs {made.ceremony_string}.")


def _capacity(made: Commitment) -> list[str]:
    """State how many rows the proofs of audits cover."""
    n_proofs = made.record["n_proofs"]
    bins, predictions = (made.shape.rows_of(level) for level in ("bins", "predictions"))
    return [
        f"Rows of one proof:  {bins:,} at --level bins, {predictions:,} at --level predictions",
        f"Rows of all proofs: {n_proofs * bins:,} or {n_proofs * predictions:,} (--proofs "
        f"{n_proofs}); each region starts a new proof.",
    ]


@click.command()
@own_commitment_option
@reference_options
@click.option("--out", type=NEW_FOLDER, required=True, help="Folder for the auditor.")
@question_options(required=False)
@spot_check_options
@regions_option
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Time limit for one proof, in seconds.",
)
@click.option(
    "--jobs",
    type=click.IntRange(-1),
    default=1,
    show_default=True,
    help="Number of proofs made in parallel, fewer if memory is short; -1 uses all cores.",
)
@quiet_option
def prove(
    commitment: Path,
    data: Path,
    label: str,
    out: Path,
    drop: tuple[str, ...],
    jobs: int,
    quiet: bool,
    **settings: Any,
) -> None:
    """Prove the audit of a committed model (provider).

    Repeat the command to continue after an interrupt.
    """
    require_zk()
    if settings["challenge"] is not None and settings["level"] != "predictions":
        raise InputError("--challenge requires --level predictions.")
    check_outside("--out", out, [commitment])
    check_jobs(jobs)
    with errors_in_one_line():
        from skuq import zk

        X, y = read_reference(data, label, drop, load_commitment_folder(commitment))
        made = zk.prove(commitment, X, y, out, **settings, n_jobs=jobs, verbose=int(not quiet))
    _show_bundle(made, quiet)


def _show_bundle(made: Bundle, quiet: bool) -> None:
    if not made.complete:  # print even if quiet, since the audit cannot go on without the next step
        say(
            f"The reported confidences are fixed, but nothing is proven yet. Send {made.folder} "
            "to the auditor,\nwho runs\n"
            f"  skuq audit challenge --audit {made.folder} --commitment COMMITMENT --data DATA "
            "--label LABEL --out challenge.json\n"
            "Then repeat this command with --challenge challenge.json."
        )
    elif not quiet:
        say(f"Proofs: {made.n_proofs}")
        say(f"For the auditor: {made.folder}")


@click.command()
@own_commitment_option
@prediction_options
@click.option("--out", type=WRITABLE, required=True, help="JSON file for the client.")
def attest(
    commitment: Path,
    row: Path | None,
    values: str | None,
    drop: tuple[str, ...],
    nonce: str,
    out: Path,
) -> None:
    """Prove one prediction of a committed model (provider).

    Pass the input with --input or --values.
    """
    require_zk()
    check_files([out], [row], [commitment])
    with errors_in_one_line():
        from skuq import zk

        x = one_row(row, values, drop, load_commitment_folder(commitment))
        made = zk.attest(commitment, x, out, nonce=nonce)
    say(f"Attestation: {made}")
