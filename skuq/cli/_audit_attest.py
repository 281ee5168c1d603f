"""``skuq audit attest``: the provider proves one prediction."""

from __future__ import annotations

from pathlib import Path

import click

from skuq.cli._files import WRITABLE
from skuq.cli._main import say
from skuq.cli._proof_files import check_files, load_commitment_folder, one_row
from skuq.cli._proof_options import (
    commitment_option,
    drop_option,
    errors_in_one_line,
    input_option,
    nonce_option,
    require_zk,
    values_option,
)


@click.command()
@commitment_option("Folder 'public' of the commitment, with 'private' beside it.")
@input_option
@values_option
@drop_option
@nonce_option
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

    The input is given by --input or by --values.
    """
    require_zk()
    check_files([out], [row], [commitment])
    with errors_in_one_line():
        from skuq import zk

        x = one_row(row, values, drop, load_commitment_folder(commitment))
        made = zk.attest(commitment, x, out, nonce=nonce)
    say(f"Attestation: {made}")
