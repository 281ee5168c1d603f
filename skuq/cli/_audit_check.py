"""``skuq audit check``: the client checks one prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from skuq.cli._files import READABLE, InputError
from skuq.cli._main import say
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
@click.option(
    "--certificate",
    type=READABLE,
    help="The auditor's certificate: it must be about this commitment, passed and valid.",
)
@click.option(
    "--auditor",
    type=READABLE,
    help="The auditor's public key, from a source that you trust: Ed25519, a PEM file.",
)
@click.option(
    "--revoked",
    type=READABLE,
    help="Text file of revoked certificates, from the place that the certificate names.",
)
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
    certificate: Path | None,
    auditor: Path | None,
    revoked: Path | None,
    json_path: Path | None,
) -> None:
    """Check the proof of one prediction (client).

    The input is given by --input or by --values. Exit code 0: the proof holds.
    Any other: nothing is known about the prediction.
    """
    check_files([json_path], [attestation, row, srs, certificate, auditor, revoked], [commitment])
    with errors_in_one_line(json_path):
        if (certificate is None) != (auditor is None) or (revoked and certificate is None):
            raise InputError("--certificate and --auditor belong together, and --revoked to both.")
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
            certificate=certificate,
            auditor=auditor,
            revoked=revoked,
        )
        if json_path is not None:
            write_json(json_path, {**found._asdict(), **names_of(committed)})
    say_reference_string(found.reference_string)
    say(f"label:      {found.label}")
    say(f"confidence: {found.confidence:.4f}")
    say(f"classes:    {shown_classes(found.classes)}")
    if found.certificate is not None:
        _show_certificate(found.certificate, revoked is not None)


def _show_certificate(record: dict[str, Any], compared: bool) -> None:
    """Print what was certified; alpha and the rest of the question are for the client to judge."""
    from skuq.zk._certificate import MAX_PLACE
    from skuq.zk._files import printable

    level = record["confidence_level"]
    n, k = record["n_samples"], record["n_proven"]
    proven = "" if k == n else f" ({k} of them proven)"
    chance = "no allowance for chance" if level is None else f"confidence level {level:g}"
    say(
        f"certified:  passed at alpha = {record['alpha']:g} in {record['n_bins']} bins, {chance}, "
        f"{record['n_samples']} samples{proven}, level {record['level']}"
    )
    say(f"valid:      {record['issued']} to {record['expires']}")
    if not compared:
        place = printable(record["revocations"], MAX_PLACE) or "no place is named"
        say(f"revoked:    not compared with a list ({place})")
