"""Certificates: the verdict of an auditor about one commitment, with a signature (Ed25519)."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

from skuq.extras import import_optional
from skuq.zk import _ezkl as backend
from skuq.zk._files import (
    FORMAT,
    VerificationError,
    canonical,
    digest,
    field,
    printable,
    read_bytes,
    read_json,
    write_json,
)
from skuq.zk._public_commitment import Commitment, load_commitment
from skuq.zk._results import VerifiedAudit

KIND = "skuq audit certificate"
TIME = "%Y-%m-%dT%H:%M:%SZ"  # UTC
MAX_PLACE = 200  # characters
ENTRIES: dict[str, type | tuple[type, ...]] = {
    "commitment_digest": str,
    "reference_digest": str,
    "level": str,
    "alpha": float,
    "n_bins": int,
    "confidence_level": (float, type(None)),
    "regions": (list, type(None)),
    "tolerance": (float, type(None)),
    "n_samples": int,
    "n_proven": int,
    "n_proofs": int,
    "passed": bool,
    "robust": bool,
    "reference_string": str,
    "versions": dict,
    "issued": str,
    "expires": str,
    "revocations": str,
}


class Certificate(NamedTuple):
    """A certificate whose signature holds.

    Attributes
    ----------
    record : dict
        All that was signed: verdict, digests of commitment and data, question, versions, dates.
    digest : str
        SHA-256 of the record, by which lists of revoked certificates name it.
    """

    record: dict[str, Any]
    digest: str

    @property
    def passed(self) -> bool:
        """Verdict of the audit."""
        return bool(self.record["passed"])


def certify(
    audit: VerifiedAudit,
    out: str | Path,
    *,
    key: str | Path,
    valid_days: int = 365,
    revocations: str = "",
) -> Path:
    """Sign the verdict of a verified audit, passed or failed.

    Parameters
    ----------
    audit : VerifiedAudit
        Result of `verify`.
    out : str or Path
        JSON file to write.
    key : str or Path
        The auditor's private key: Ed25519, a PEM file without a password.
    valid_days : int, default=365
        Days until the certificate expires.
    revocations : str, default=""
        Where the auditor lists revoked certificates, for instance an address.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        If the key is none that can be used, or an argument is out of range.
    FileExistsError
        If `out` exists.
    ImportError
        If the extra ``zk`` is not installed.
    """
    private = _key(Path(key), "private")
    if not 1 <= valid_days <= 36500:
        raise ValueError(f"`valid_days` must be between 1 and 36500, got {valid_days}.")
    if len(revocations) > MAX_PLACE or not revocations.isprintable():
        raise ValueError(f"`revocations` must be one line of at most {MAX_PLACE} characters.")
    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} exists already; a certificate is never replaced.")
    issued = _now()
    # What the provider wrote freely in the statement is not signed.
    question = ("alpha", "n_bins", "confidence_level", "regions")
    record = {
        "kind": KIND,
        "format": FORMAT,
        **{
            name: audit.statement[name]
            for name in ("commitment_digest", "reference_digest", *question)
        },
        "n_samples": audit.statement["n_samples"],
        # Of the samples: a spot check proves some of them.
        "n_proven": audit.statement.get("n_proven", audit.statement["n_samples"]),
        "level": audit.level,
        "tolerance": audit.tolerance,
        "n_proofs": audit.n_proofs,
        "passed": audit.passed,
        "robust": audit.robust,
        "reference_string": audit.reference_string,
        "versions": backend.versions(),
        "issued": issued.strftime(TIME),
        "expires": (issued + timedelta(days=valid_days)).strftime(TIME),
        "revocations": revocations,
    }
    signature = base64.b64encode(private.sign(signed_text(record))).decode()
    write_json(out, {"certificate": record, "signature": signature})
    return out


def check_certificate(
    certificate: str | Path,
    commitment: str | Path,
    auditor: str | Path,
    *,
    revoked: str | Path | None = None,
    allow_test_string: bool = False,
) -> Certificate:
    """Check that an auditor certified a commitment: passed, still valid, and not revoked.

    Parameters
    ----------
    certificate : str or Path
        File that `certify` wrote.
    commitment : str or Path
        The published folder that the certificate must be about.
    auditor : str or Path
        The auditor's public key, from a source that is trusted: Ed25519, a PEM file.
    revoked : str or Path, default=None
        Text file of the digests of revoked certificates, one per line, from the place that the
        certificate names. Default: nothing is known about revocation.
    allow_test_string : bool, default=False
        Accept a certificate of an audit whose reference string was a test.

    Returns
    -------
    Certificate
        Its question, such as alpha, is for the caller to judge.

    Raises
    ------
    VerificationError
        If anything does not hold; the message says what.
    """
    committed = load_commitment(commitment)
    return checked_certificate(certificate, committed, auditor, revoked, allow_test_string)


def checked_certificate(
    certificate: str | Path,
    committed: Commitment,
    auditor: str | Path,
    revoked: str | Path | None,
    allow_test_string: bool,
) -> Certificate:
    """Check a certificate of a commitment that is loaded already."""
    path = Path(certificate)
    found = _signed(path, _key(Path(auditor), "public"))
    record = found.record
    if record["commitment_digest"] != committed.digest:
        raise VerificationError("The certificate is about another commitment.")
    if not found.passed:
        raise VerificationError("The certificate says that the audit was failed.")
    if record["reference_string"] == "test" and not allow_test_string:
        raise VerificationError("The certificate is about a test: anybody could forge its audit.")
    now = _now()
    if now < _time(record["issued"]):
        raise VerificationError("The certificate is not valid yet; compare the clocks.")
    if now >= _time(record["expires"]):
        raise VerificationError(f"The certificate expired on {record['expires']}.")
    if revoked is not None and found.digest in _digests(Path(revoked)):
        raise VerificationError("The certificate was revoked.")
    return found


def signed_text(record: dict[str, Any]) -> bytes:
    """Bytes that are signed; their first line keeps them apart from anything else."""
    return KIND.encode() + b"\n" + canonical(record)


def _signed(path: Path, public: Any) -> Certificate:
    """Read a certificate, and check its signature before anything else."""
    outer = read_json(path)
    record = field(outer, "certificate", dict, path.name)
    text = field(outer, "signature", str, path.name)
    invalid = import_optional("cryptography.exceptions", extra="zk").InvalidSignature
    try:
        public.verify(base64.b64decode(text, validate=True), signed_text(record))
    except (invalid, binascii.Error, ValueError) as error:
        raise VerificationError(
            "The signature of the certificate is not one of this auditor."
        ) from error
    if record.get("kind") != KIND or record.get("format") != FORMAT:
        raise VerificationError(f"{path.name} is not a certificate of format {FORMAT}.")
    for name, types in ENTRIES.items():
        field(record, name, types, path.name)
    return Certificate(record, digest(record))


def _key(path: Path, kind: Literal["private", "public"]) -> Any:
    """Read an Ed25519 key; `ValueError` if the file holds none."""
    pem = import_optional("cryptography.hazmat.primitives.serialization", extra="zk")
    ed25519 = import_optional("cryptography.hazmat.primitives.asymmetric.ed25519", extra="zk")
    unsupported = import_optional("cryptography.exceptions", extra="zk").UnsupportedAlgorithm
    data = read_bytes(path)
    try:
        if kind == "private":
            found, expected = pem.load_pem_private_key(data, None), ed25519.Ed25519PrivateKey
        else:
            found, expected = pem.load_pem_public_key(data), ed25519.Ed25519PublicKey
    except (ValueError, TypeError, unsupported) as error:
        raise ValueError(
            f"{path.name} must hold a {kind} Ed25519 key as PEM, without a password."
        ) from error
    if not isinstance(found, expected):
        raise ValueError(f"{path.name} must hold a {kind} Ed25519 key, not one of another kind.")
    return found


def _digests(path: Path) -> set[str]:
    """Read a list of digests; anything else, such as the page of an error, is refused."""
    listed = read_bytes(path).decode(errors="replace").split()
    if not all(re.fullmatch("[0-9a-f]{64}", text) for text in listed):
        raise VerificationError(f"{path.name} is not a list of digests of certificates.")
    return set(listed)


def _now() -> datetime:
    return datetime.now(UTC)


def _time(text: str) -> datetime:
    try:
        return datetime.strptime(text, TIME).replace(tzinfo=UTC)
    except ValueError as error:
        raise VerificationError(f"{printable(text, 40)} is not a time of a certificate.") from error
