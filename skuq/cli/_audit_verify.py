"""``skuq audit verify``: the auditor verifies an audit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skuq.cli._files import READABLE, WRITABLE, InputError
from skuq.cli._main import exit_with_verdict, say, say_bins
from skuq.cli._proof_files import (
    check_files,
    check_outside,
    classes_of,
    load_commitment_folder,
    read_reference,
)
from skuq.cli._proof_options import (
    Probability,
    audit_option,
    commitment_option,
    data_option,
    drop_option,
    error_option,
    errors_in_one_line,
    false_share_option,
    json_option,
    keys_option,
    label_option,
    names_of,
    quiet_option,
    require_zk,
    say_reference_string,
    srs_option,
    test_string_option,
    write_json,
)

if TYPE_CHECKING:
    from skuq.zk import Commitment, VerifiedAudit


@click.command()
@audit_option
@data_option
@label_option
@commitment_option("Folder 'public' as it was published.")
@drop_option
@click.option(
    "--alpha", type=click.FloatRange(0, 1), required=True, help="Tolerance that you asked for."
)
@click.option(
    "--bins", "n_bins", type=click.IntRange(1), required=True, help="Bins that you asked for."
)
@click.option(
    "--confidence-level",
    type=Probability(none=None),
    required=True,
    help="What you asked for: a probability or 'none'.",
)
@click.option(
    "--level",
    type=click.Choice(("bins", "verdict", "predictions")),
    required=True,
    help="Disclosure that was agreed.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, max_open=True),
    help="Difference of confidences that must not matter: the audit is passed only if it is at "
    "alpha minus and plus this number, too.  [default: alpha alone decides]",
)
@click.option(
    "--classes",
    help="Classes that you expect, in their order, separated by commas.  [default: those of the "
    "commitment, which are printed]",
)
@srs_option
@test_string_option
@click.option("--challenge", type=READABLE, help="Your own challenge, at level 'predictions'.")
@false_share_option
@error_option
@keys_option
@json_option
@click.option(
    "--certificate",
    type=WRITABLE,
    help="JSON file to write: the verdict, passed or failed, with your signature.",
)
@click.option(
    "--sign",
    "key",
    type=READABLE,
    help="Your private key for it: Ed25519, a PEM file without a password.",
)
@click.option(
    "--valid-days",
    type=click.IntRange(1, 36500),
    default=365,
    show_default=True,
    help="Days until the certificate expires.",
)
@click.option(
    "--revocations",
    default="",
    help="Where you list revoked certificates, such as an address; part of the certificate.",
)
@quiet_option
@click.pass_context
def verify(ctx: click.Context, /, **options: Any) -> None:
    """Verify the audit of a committed model (auditor).

    Exit code 0: all proofs hold, and the audit is passed. 10: all proofs hold,
    and it is failed. Any other: no verdict.
    """
    exit_with_verdict(ctx, partial(_passes, **options))


def _passes(
    bundle: Path,
    data: Path,
    label: str,
    commitment: Path,
    drop: tuple[str, ...],
    keys: Path | None,
    json_path: Path | None,
    quiet: bool,
    classes: str | None,
    certificate: Path | None,
    key: Path | None,
    valid_days: int,
    revocations: str,
    **settings: Any,
) -> bool:
    """Read, verify, write, print, and return whether the audit is passed."""
    inputs = [data, settings["challenge"], settings["srs"], key]
    check_files([json_path, certificate], inputs, [bundle, commitment])
    with errors_in_one_line(json_path):
        if (certificate is None) != (key is None):
            raise InputError("--certificate and --sign belong together.")
        if certificate is not None and certificate.exists():
            raise InputError(
                f"--certificate: {certificate} exists; a certificate is never replaced."
            )
        require_zk()
        check_outside("--keys", keys, [bundle, commitment])
        from skuq import zk

        committed = load_commitment_folder(commitment)
        X, y = read_reference(data, label, drop, committed)
        settings["classes"] = classes_of(classes, committed)
        found = zk.verify(bundle, X, y, commitment, keys=keys, **settings)
        if certificate is not None and key is not None:
            zk.certify(found, certificate, key=key, valid_days=valid_days, revocations=revocations)
        if json_path is not None:
            write_json(json_path, {**found.as_record(), **names_of(committed)})
    if not quiet:
        _show(found, committed)
    return found.passed


def _show(found: VerifiedAudit, committed: Commitment) -> None:
    """Print the verdict, the statement, the bins and the notes."""
    from skuq.zk._results import shown_classes

    statement = found.statement
    level = statement["confidence_level"]
    explained = " and chance explain" if level is not None else ""
    limit = f"wrong by more than alpha = {statement['alpha']:g}{explained}"
    headline = (
        f"Passed: confidence is in no bin {limit}."
        if found.passed
        else f"Failed: confidence is {limit}."
    )
    say_reference_string(found.reference_string)
    say(f"\n{headline}\n", bold=True, fg="green" if found.passed else "red")
    for name, value in (
        ("level", found.level),
        ("alpha", f"{statement['alpha']:g}"),
        ("bins", statement["n_bins"]),
        ("proofs", found.n_proofs),
        ("confidence level", "none" if level is None else f"{level:.10g}"),
        ("samples", statement["n_samples"]),
        ("classes", shown_classes(found.classes)),
        ("commitment point", committed.point),
        ("commitment digest", committed.digest),
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
    low = high = np.full(len(gap), np.nan)  # differences alone say nothing about chance
    if found.result is not None:
        bins = found.result.bins
        within, significant, direction = bins.within_alpha, bins.significant, bins.direction
        low, high = bins.gap_low, bins.gap_high
    for b in range(len(sums.count)):
        yield {
            "lower": edges[b],
            "upper": edges[b + 1],
            "count": sums.count[b],
            "confidence": sums.mean_confidence[b],
            "accuracy": sums.accuracy[b],
            "gap": gap[b],
            "gap_low": low[b],
            "gap_high": high[b],
            "within_alpha": within[b],
            "significant": significant[b],
            "direction": direction[b],
        }
