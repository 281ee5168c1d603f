"""``skuq audit challenge``: the auditor answers reported confidences."""

from __future__ import annotations

from pathlib import Path

import click

from skuq.cli._files import WRITABLE
from skuq.cli._printing import say
from skuq.cli._proof_files import check_files
from skuq.cli._proof_options import audit_option, errors_in_one_line


@click.command()
@audit_option
@click.option("--out", type=WRITABLE, required=True, help="JSON file to write, and to keep.")
def challenge(bundle: Path, out: Path) -> None:
    """Draw the challenge that decides which predictions are proven (auditor).

    Send a copy of the file to the provider, and give the file itself to
    'verify'.
    """
    check_files([out], [], [bundle])
    with errors_in_one_line():
        from skuq import zk

        made = zk.challenge(bundle, out)
    say(f"Challenge: {made}")
