"""``skuq audit check``: the client checks one prediction."""

from __future__ import annotations

from pathlib import Path

import click

from skuq.cli._files import READABLE
from skuq.cli._printing import say
from skuq.cli._proof_files import check_files, check_outside, load_commitment_folder, one_row
from skuq.cli._proof_options import (
    commitment_option,
    drop_option,
    errors_in_one_line,
    input_option,
    json_option,
    keys_option,
    names_of,
    nonce_option,
    require_zk,
    values_option,
    write_json,
)


@click.command()
@click.option("--attestation", type=READABLE, required=True, help="The provider's file.")
@commitment_option("Folder 'public' as it was published: the same as of the audit.")
@input_option
@values_option
@drop_option
@nonce_option
@keys_option
@json_option
def check(
    attestation: Path,
    commitment: Path,
    row: Path | None,
    values: str | None,
    drop: tuple[str, ...],
    nonce: str | None,
    keys: Path | None,
    json_path: Path | None,
) -> None:
    """Check the proof of one prediction (client).

    Without --input or --values, compare the printed input with your own. Exit
    code 0: the proof holds. Any other: nothing is known about the prediction.
    """
    require_zk()
    check_files([json_path], [attestation, row], [commitment])
    check_outside("--keys", keys, [commitment])
    x = one_row(row, values, drop)
    with errors_in_one_line(json_path):
        from skuq import zk

        committed = load_commitment_folder(commitment)
        found = zk.check(attestation, commitment, x=x, nonce=nonce, keys=keys)
        if json_path is not None:
            write_json(json_path, {**found._asdict(), **names_of(committed)})
    say(f"label:      {found.label}")
    say(f"confidence: {found.confidence:.4f}")
    if x is None:
        say(f"input:      {', '.join(map(repr, found.x))}")
