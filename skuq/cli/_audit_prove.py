"""``skuq audit prove``: the provider proves an audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skuq.cli._files import READABLE, InputError
from skuq.cli._main import say
from skuq.cli._proof_files import check_outside, load_commitment_folder, read_reference
from skuq.cli._proof_options import (
    NEW_FOLDER,
    Probability,
    commitment_option,
    data_option,
    drop_option,
    error_option,
    errors_in_one_line,
    false_share_option,
    label_option,
    quiet_option,
    require_zk,
)

if TYPE_CHECKING:
    from skuq.zk import Bundle

LEVELS = ("bins", "verdict", "predictions")


@click.command()
@commitment_option("Folder 'public' of the commitment, with 'private' beside it.")
@data_option
@label_option
@click.option("--out", type=NEW_FOLDER, required=True, help="Folder for the auditor.")
@drop_option
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1),
    default=0.05,
    show_default=True,
    help="Tolerated distance between accuracy and confidence.",
)
@click.option(
    "--bins",
    "n_bins",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Number of confidence bins.",
)
@click.option(
    "--confidence-level",
    type=Probability(none=None),
    default=0.95,
    show_default=True,
    help="Least probability that a model within the tolerance passes; 'none' leaves nothing to "
    "chance.",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="bins",
    show_default=True,
    help="Disclosure besides the verdict: sums of each bin, nothing, or all reported confidences.",
)
@click.option("--challenge", type=READABLE, help="The auditor's file, at level 'predictions'.")
@false_share_option
@error_option
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Longest time for one proof, in seconds.",
)
@quiet_option
def prove(
    commitment: Path,
    data: Path,
    label: str,
    out: Path,
    drop: tuple[str, ...],
    quiet: bool,
    **settings: Any,
) -> None:
    """Prove the audit of a committed model (provider).

    Repeat the command to continue after an interrupt.
    """
    require_zk()
    if settings["challenge"] is not None and settings["level"] != "predictions":
        raise InputError("--challenge: a challenge belongs to --level predictions.")
    check_outside("--out", out, [commitment])
    with errors_in_one_line():
        from skuq import zk

        X, y = read_reference(data, label, drop, load_commitment_folder(commitment))
        made = zk.prove(commitment, X, y, out, **settings, verbose=int(not quiet))
    _show(made, quiet)


def _show(made: Bundle, quiet: bool) -> None:
    if not made.complete:  # also if quiet: without the next step there is no audit
        say(
            f"The reported confidences are fixed, and nothing is proven yet. Give {made.folder} "
            "to the auditor,\nwho answers with\n"
            f"  skuq audit challenge --audit {made.folder} --commitment COMMITMENT --data DATA "
            "--label LABEL --out challenge.json\n"
            "Then repeat this command with --challenge challenge.json."
        )
    elif not quiet:
        say(f"Proofs: {made.n_proofs}")
        say(f"For the auditor: {made.folder}")
