"""``skuq audit challenge``, ``verify``, ``revoke`` and ``check``: the auditor and the client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skuq.cli._files import READABLE, WRITABLE, InputError, check_outputs
from skuq.cli._main import exit_with_verdict
from skuq.cli._printing import say, say_bins, visible
from skuq.cli._proof_options import (
    audit_option,
    check_files,
    check_outside,
    classes_of,
    errors_in_one_line,
    load_commitment_folder,
    names_of,
    one_row,
    prediction_options,
    published_commitment_option,
    question_options,
    quiet_option,
    read_reference,
    reference_options,
    regions_option,
    require_zk,
    spot_check_options,
    verifier_options,
    write_json,
)

if TYPE_CHECKING:
    from skuq.zk import Attestation, Commitment, RegionAudit, VerifiedAudit

WARNING: dict[str, Any] = {"bold": True, "fg": "red"}


@click.command()
@audit_option
@published_commitment_option
@reference_options
@click.option("--out", type=WRITABLE, required=True, help="JSON file to write, and to keep.")
def challenge(
    bundle: Path, data: Path, label: str, commitment: Path, drop: tuple[str, ...], out: Path
) -> None:
    """Draw the challenge that decides which predictions are proven (auditor).

    Send a copy of the file to the provider, and pass the file itself to
    'verify'. The file identifies the commitment and the data; from now on,
    neither may change. An existing challenge is not replaced.
    """
    require_zk()
    check_files([out], [data], [bundle, commitment])
    with errors_in_one_line():
        from skuq import zk

        X, y = read_reference(data, label, drop, load_commitment_folder(commitment))
        made = zk.challenge(bundle, commitment, X, y, out)
    say(f"Challenge: {made}")


@click.command()
@audit_option
@published_commitment_option
@reference_options
@question_options(required=True)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, max_open=True),
    help="Difference between confidences that must not matter: the audit passes only if it also "
    "passes at alpha minus and alpha plus this number.  [default: only alpha decides]",
)
@click.option(
    "--classes",
    required=True,
    help="Classes in their order, separated by commas; the commitment must have exactly these.",
)
@click.option(
    "--absent-classes",
    help="Classes without a label in your data, separated by commas; all other classes must have "
    "a label.",
)
@spot_check_options
@regions_option
@verifier_options
@click.option(
    "--certificate",
    type=WRITABLE,
    help="JSON file to write, with the verdict (passed or failed) and your signature.",
)
@click.option(
    "--sign",
    "key",
    type=READABLE,
    help="Your private key for the certificate: Ed25519, a PEM file without a password.",
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
    help="Place where you publish revoked certificates, such as a URL; the certificate states it.",
)
@quiet_option
@click.pass_context
def verify(ctx: click.Context, /, **options: Any) -> None:
    """Verify the audit of a committed model (auditor).

    Exit code 0: all proofs are valid and the audit passes. 10: all proofs are
    valid and the audit fails. Any other code: no verdict.
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
    classes: str,
    absent_classes: str | None,
    certificate: Path | None,
    key: Path | None,
    valid_days: int,
    revocations: str,
    **settings: Any,
) -> bool:
    """Verify the proofs, write and print the results, and return whether the audit passes."""
    inputs = [data, settings["challenge"], settings["regions"], settings["srs"], key]
    check_files([json_path, certificate], inputs, [bundle, commitment])
    with errors_in_one_line(json_path):
        if (certificate is None) != (key is None):
            raise InputError("--certificate and --sign must be used together.")
        if certificate is not None and certificate.exists():
            raise InputError(
                f"--certificate: {certificate} already exists and is never replaced; choose a new "
                "file."
            )
        require_zk()
        check_outside("--sign", key, [bundle, commitment])
        check_outside("--data", data, [bundle, commitment])
        from skuq import zk

        committed = load_commitment_folder(commitment)
        X, y = read_reference(data, label, drop, committed)
        settings["classes"] = classes_of(classes, committed)
        if absent_classes is not None:
            settings["absent_classes"] = classes_of(absent_classes, committed)
        found = zk.verify(bundle, X, y, commitment, keys=keys, **settings)
        if certificate is not None and key is not None:
            zk.certify(found, certificate, key=key, valid_days=valid_days, revocations=revocations)
        if json_path is not None:
            write_json(json_path, {**found.as_record(), **names_of(committed)})
    if not quiet:
        _show_audit(found, committed)
    return found.passed


def _show_audit(found: VerifiedAudit, committed: Commitment) -> None:
    """Print the verdict, the verified statement, the bins and the notes."""
    from skuq.zk import shown_classes

    statement = found.statement
    level = statement["confidence_level"]
    tested = "significantly " if level is not None else ""
    limit = f"{tested}wrong by more than alpha = {statement['alpha']:g}"
    where = "" if found.regions is None else " of all samples or of any region"
    if found.regions is not None and not all(region.could_fail for region in found.regions):
        where = " of all samples or of any sufficiently large region"
    headline = (
        f"Passed: in no bin{where} is confidence {limit}."
        if found.passed
        else f"Failed: confidence is {limit}."
    )
    _say_reference_string(found)
    say(f"\n{headline}\n", bold=True, fg="green" if found.passed else "red")
    for name, value in (
        ("classes", shown_classes(found.classes)),
        ("absent classes", shown_classes(found.absent_classes) or "none"),
        ("level", found.level),
        ("alpha", f"{statement['alpha']:g}"),
        ("bins", statement["n_bins"]),
        ("proofs", found.n_proofs),
        ("confidence level", "none" if level is None else f"{level:.10g}"),
        ("samples", statement["n_samples"]),
        ("commitment point", committed.point),
        ("commitment digest", committed.digest),
    ):
        say(f"  {name:<18}{value}")
    say("")
    if found.sums is not None:
        say_bins(_rows(found))
        say("")
    if found.regions is not None:
        _say_regions(found.regions)
    for note in found.notes:
        say(f"- {note}")


def _say_regions(regions: Sequence[RegionAudit]) -> None:
    """Print the verdict on each region, with its accuracy and confidence if disclosed."""
    say("Regions:", bold=True)
    for region in regions:
        passed = "passed" if region.could_fail else "could not have failed with so few samples"
        verdict = passed if region.passed else "FAILED"
        means = ""
        if region.sums is not None and region.n_samples:
            sums, n = region.sums, region.n_samples
            confidence = sums.confidence.sum() / sums.scale / n
            means = f", confidence {confidence:.3f}, accuracy {sums.correct.sum() / n:.3f}"
        say(f"  {visible(region.rule)}: {verdict} ({region.n_samples} samples{means})")
    say("")


def _rows(found: VerifiedAudit) -> Iterator[dict[str, Any]]:
    """One dict per bin, with the keys of `audit_data`."""
    import numpy as np

    sums = found.sums
    assert sums is not None
    edges = sums.edges / sums.scale
    within = abs(sums.deviation) <= found.statement["alpha"] * sums.count * sums.scale
    gap = sums.accuracy - sums.mean_confidence
    significant, direction = ~within, np.where(gap > 0, "underconfident", "overconfident")
    low = high = np.full(len(gap), np.nan)  # limits of the gap are known only from a test
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


@click.command()
@click.option(
    "--certificate",
    "files",
    type=READABLE,
    multiple=True,
    help="File of a certificate to revoke; may be repeated.",
)
@click.option(
    "--digest",
    "digests",
    multiple=True,
    help="Digest of a certificate to revoke; may be repeated.",
)
@click.option(
    "--sign",
    "key",
    type=READABLE,
    required=True,
    help="Your private key that signed the certificates: Ed25519, a PEM file without a password.",
)
@click.option(
    "--previous",
    type=READABLE,
    help="Your latest list, which the new one extends.  [default: this is the first list]",
)
@click.option(
    "--valid-days",
    type=click.IntRange(1, 36500),
    default=30,
    show_default=True,
    help="Days until the list expires; publish the next list before then.",
)
@click.option(
    "--out",
    type=WRITABLE,
    required=True,
    help="JSON file to write and publish; may only replace the previous list.",
)
def revoke(
    files: tuple[Path, ...],
    digests: tuple[str, ...],
    key: Path,
    previous: Path | None,
    valid_days: int,
    out: Path,
) -> None:
    """Sign a list of revoked certificates (auditor).

    Without --certificate and --digest the list has no new entries: it states
    that no further certificate was revoked until its date.
    """
    check_outputs([out], [key, *files])
    with errors_in_one_line():
        from skuq import zk

        revoked: list[str | Path] = [*files, *(digest.strip() for digest in digests)]
        made = zk.revoke(revoked, out, key=key, valid_days=valid_days, previous=previous)
    say(f"Revoked certificates: {made}")


@click.command()
@click.option("--attestation", type=READABLE, required=True, help="The provider's file.")
@published_commitment_option
@prediction_options
@verifier_options
@click.option(
    "--certificate",
    type=READABLE,
    help="The auditor's certificate: valid, for this commitment, and about a passed audit.",
)
@click.option(
    "--auditor",
    type=READABLE,
    help="The auditor's public key, from a source that you trust: Ed25519, a PEM file.",
)
@click.option(
    "--revoked",
    type=READABLE,
    help="The auditor's latest list of revoked certificates, from the place named in the "
    "certificate.",
)
@click.option(
    "--allow-supplied-string",
    is_flag=True,
    help="Accept a certificate whose auditor trusted a reference string other than that of the "
    "public ceremony.",
)
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
    allow_supplied_string: bool,
    json_path: Path | None,
) -> None:
    """Check the proof of one prediction (client).

    Pass the input with --input or --values. Exit code 0: the proof is valid.
    Any other code: nothing is proven about the prediction.
    """
    check_files([json_path], [attestation, row, srs, certificate, auditor, revoked], [commitment])
    with errors_in_one_line(json_path):
        about_it = revoked is not None or allow_supplied_string
        if (certificate is None) != (auditor is None) or (about_it and certificate is None):
            raise InputError(
                "--certificate and --auditor must be used together; --revoked and "
                "--allow-supplied-string require both."
            )
        require_zk()
        check_outside("--input", row, [commitment])
        from skuq import zk

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
            allow_supplied_string=allow_supplied_string,
        )
        if json_path is not None:
            write_json(json_path, {**found.as_record(), **names_of(committed)})
    _say_reference_string(found)
    say(f"label:      {zk.shown_classes([found.label])}")
    say(f"confidence: {found.confidence:.4f}")
    say(f"classes:    {zk.shown_classes(found.classes)}")
    if found.certificate is not None:
        _show_certificate(found.certificate, revoked is not None, committed.encoding.names)


def _show_certificate(record: dict[str, Any], compared: bool, names: Sequence[str] | None) -> None:
    """Print the certified statement with its parameters, which the client has to judge."""
    from skuq import zk

    level, tolerance = record["confidence_level"], record["tolerance"]
    n, k = record["n_samples"], record["n_proven"]
    proven = "" if k == n else f" ({k} of them proven)"
    chance = "no margin for sampling error" if level is None else f"confidence level {level:g}"
    say(
        f"certified:  passed at alpha = {record['alpha']:g} in {record['n_bins']} bins, {chance}, "
        f"{record['n_samples']} samples{proven}, level {record['level']}"
    )
    if record["regions"] is None:
        say("regions:    none was audited")
    else:
        regions = record["regions"]
        rules = zk.Regions(regions["tree"]).rules(names)
        for rule, size, could_fail in zip(
            rules, regions["n_samples"], regions["could_fail"], strict=True
        ):
            said = "" if could_fail else ": could not have failed with so few samples"
            say(f"region:     {visible(rule)} ({size} samples){said}")
    if record["absent_classes"]:
        say(f"no labels:  the audit had none of {zk.shown_classes(record['absent_classes'])}")
    stable = "the same" if record["robust"] else "NOT the same, too close to call,"
    whose = "the commitment's tolerance" if tolerance is None else f"a tolerance of {tolerance:g}"
    say(f"robust:     the verdict is {stable} at alpha minus and plus {whose}")
    trust = record["reference_string"]
    reason = zk.REFERENCE_STRINGS[trust].replace("you supplied", "the auditor supplied")
    say(f"string:     {reason}", **({} if trust == "ceremony" else WARNING))
    say(f"valid:      {record['issued']} to {record['expires']}")
    if not compared:
        place = record["revocations"].strip() or "no place is named"
        say(f"revoked:    not compared with a list ({place})")


def _say_reference_string(found: VerifiedAudit | Attestation) -> None:
    """Print whether the reference string can be trusted, and why."""
    from skuq.zk import REFERENCE_STRINGS

    trust = found.reference_string
    style = {} if trust == "ceremony" else WARNING
    say(f"Reference string: {REFERENCE_STRINGS[trust]}.", **style)
