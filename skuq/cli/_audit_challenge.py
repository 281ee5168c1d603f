"""``skuq audit challenge``: the auditor answers reported confidences."""

from __future__ import annotations

from pathlib import Path

import click

from skuq.cli._files import WRITABLE
from skuq.cli._main import say
from skuq.cli._proof_files import check_files, load_commitment_folder, read_reference
from skuq.cli._proof_options import (
    audit_option,
    commitment_option,
    data_option,
    drop_option,
    errors_in_one_line,
    label_option,
    require_zk,
)


@click.command()
@audit_option
@data_option
@label_option
@commitment_option("Folder 'public' as it was published.")
@drop_option
@click.option("--out", type=WRITABLE, required=True, help="JSON file to write, and to keep.")
def challenge(
    bundle: Path, data: Path, label: str, commitment: Path, drop: tuple[str, ...], out: Path
) -> None:
    """Draw the challenge that decides which predictions are proven (auditor).

    Send a copy of the file to the provider, and give the file itself to
    'verify'. It names the commitment and the data, which must not change from
    now on. An existing challenge is not replaced.
    """
    require_zk()
    check_files([out], [data], [bundle, commitment])
    with errors_in_one_line():
        from skuq import zk

        X, y = read_reference(data, label, drop, load_commitment_folder(commitment))
        made = zk.challenge(bundle, commitment, X, y, out)
    say(f"Challenge: {made}")
