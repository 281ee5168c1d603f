"""Records signed by an auditor (Ed25519): their format, dates and keys."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from skuq.extras import import_optional
from skuq.zk._files import (
    FORMAT,
    MAX_JSON,
    VerificationError,
    canonical,
    check_entries,
    check_versions,
    decoded,
    field,
    printable,
    read_bytes,
    read_json,
    write_json,
)

Name = Literal["certificate", "revocations"]  # key of the signed record in its file
KINDS: dict[Name, str] = {
    "certificate": "skuq audit certificate",
    "revocations": "skuq revocation list",
}
WORDS: dict[Name, str] = {
    "certificate": "certificate",
    "revocations": "list of revoked certificates",
}
ENTRIES: dict[Name, dict[str, type | tuple[type, ...]]] = {
    "certificate": {
        "commitment_digest": str,
        "reference_digest": str,
        "level": str,
        "absent_classes": list,
        "alpha": float,
        "n_bins": int,
        "confidence_level": (float, type(None)),
        "regions": (dict, type(None)),
        "tolerance": (float, type(None)),
        "n_samples": int,
        "n_proven": int,
        "n_proofs": int,
        "passed": bool,
        "robust": bool,
        "reference_string": str,
        "versions": dict,
        "revocations": str,
    },
    "revocations": {"revoked": list},
}
COMMON: dict[str, type] = {"kind": str, "format": int, "issued": str, "expires": str}
TIME = "%Y-%m-%dT%H:%M:%SZ"  # UTC
LONGEST = 36500  # maximum number of days for which a record is valid


def signed_text(name: Name, record: Mapping[str, Any]) -> bytes:
    """Bytes to sign; the first line ensures that a signature is not valid for other content."""
    return KINDS[name].encode() + b"\n" + canonical(record)


def write_signed(
    path: Path, name: Name, entries: Mapping[str, Any], valid_days: int, private: Any
) -> None:
    """Write a record that is valid from now on, with its signature."""
    record = {"kind": KINDS[name], "format": FORMAT, **entries, **dates(valid_days)}
    signature = base64.b64encode(private.sign(signed_text(name, record))).decode()
    write_json(path, {name: record, "signature": signature})


def read_signed(path: Path, name: Name, public: Any) -> dict[str, Any]:
    """Read a record of the given kind, checking its signature first."""
    outer = read_json(path)
    record = field(outer, name, dict, path.name)
    text = field(outer, "signature", str, path.name)
    check_entries(outer, (name, "signature"), path.name)
    invalid = import_optional("cryptography.exceptions", extra="zk").InvalidSignature
    try:
        public.verify(decoded(text), signed_text(name, record))
    except (invalid, ValueError) as error:
        raise VerificationError(
            f"The signature of the {WORDS[name]} was not made with this auditor's key."
        ) from error
    if record.get("kind") != KINDS[name] or record.get("format") != FORMAT:
        raise VerificationError(f"{path.name} is not a {WORDS[name]} of format {FORMAT}.")
    entries = {**COMMON, **ENTRIES[name]}
    for entry, types in entries.items():
        field(record, entry, types, path.name)
    check_entries(record, entries, path.name)
    if "versions" in entries:
        check_versions(record["versions"], path.name)
    return record


def dates(valid_days: int) -> dict[str, str]:
    """Dates of a record that is valid from now on; ValueError if `valid_days` is out of range."""
    if not 1 <= valid_days <= LONGEST:
        raise ValueError(f"`valid_days` must be between 1 and {LONGEST}, got {valid_days}.")
    issued = now()
    expires = issued + timedelta(days=valid_days)
    return {"issued": issued.strftime(TIME), "expires": expires.strftime(TIME)}


def check_dates(record: Mapping[str, Any], name: Name) -> None:
    """Raise unless a record is valid now."""
    check_issued(record, name)
    if now() >= time_of(record["expires"]):
        raise VerificationError(f"The {WORDS[name]} expired on {record['expires']}.")


def check_issued(record: Mapping[str, Any], name: Name) -> None:
    """Raise if a record was issued in the future."""
    if now() < time_of(record["issued"]):
        raise VerificationError(
            f"The {WORDS[name]} is not valid yet: it was issued on {record['issued']}, later than "
            "the current time of this machine; compare the clocks."
        )


def now() -> datetime:
    """Current time of this machine, in UTC."""
    return datetime.now(UTC)


def time_of(text: str) -> datetime:
    """Parse a time of a record."""
    try:
        return datetime.strptime(text, TIME).replace(tzinfo=UTC)
    except ValueError as error:
        raise VerificationError(f"{printable(text, 40)} is not a time in UTC.") from error


def read_key(path: Path, kind: Literal["private", "public"]) -> Any:
    """Read an Ed25519 key; ValueError if the file does not contain one."""
    pem = import_optional("cryptography.hazmat.primitives.serialization", extra="zk")
    ed25519 = import_optional("cryptography.hazmat.primitives.asymmetric.ed25519", extra="zk")
    unsupported = import_optional("cryptography.exceptions", extra="zk").UnsupportedAlgorithm
    data = read_bytes(path, MAX_JSON)
    try:
        if kind == "private":
            found, expected = pem.load_pem_private_key(data, None), ed25519.Ed25519PrivateKey
        else:
            found, expected = pem.load_pem_public_key(data), ed25519.Ed25519PublicKey
    except (ValueError, TypeError, unsupported) as error:
        raise ValueError(
            f"{path.name} must contain a {kind} Ed25519 key as PEM, without a password."
        ) from error
    if not isinstance(found, expected):
        raise ValueError(f"{path.name} must contain a {kind} Ed25519 key, got a different type.")
    return found
