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
    require_zk,
    say_reference_string,
    srs_option,
    test_string_option,
    values_option,
    write_json,
)


@click.command()
@click.option("--attestation", type=READABLE, required=True, help="The provider's file.")
@commitment_option("Folder 'public' as it was published: the same as of the audit.")
@input_option
@values_option
@drop_option
@click.option("--nonce", required=True, help="Text that you chose for this one prediction.")
@srs_option
@test_string_option
@keys_option
@json_option
def check(
    attestation: Path,
    commitment: Path,
    row: Path | None,
    values: str | None,
    drop: tuple[str, ...],
    nonce: str,
    srs: Path | None,
    allow_test_string: bool,
    keys: Path | None,
    json_path: Path | None,
) -> None:
    """Check the proof of one prediction (client).

    The input is given by --input or by --values. Exit code 0: the proof holds.
    Any other: nothing is known about the prediction.
    """
    check_files([json_path], [attestation, row, srs], [commitment])
    with errors_in_one_line(json_path):
        require_zk()
        check_outside("--keys", keys, [commitment])
        from skuq import zk
        from skuq.zk._results import shown_classes

        committed = load_commitment_folder(commitment)
        x = one_row(row, values, drop, committed)
        found = zk.check(
            attestation,
            commitment,
            x=x,
            nonce=nonce,
            srs=srs,
            allow_test_string=allow_test_string,
            keys=keys,
        )
        if json_path is not None:
            write_json(json_path, {**found._asdict(), **names_of(committed)})
    say_reference_string(found.reference_string)
    say(f"label:      {found.label}")
    say(f"confidence: {found.confidence:.4f}")
    say(f"classes:    {shown_classes(found.classes)}")
