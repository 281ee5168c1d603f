"""Dated lists of revoked certificates, signed by the auditor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skuq.files import check_unlinked, is_within
from skuq.zk._files import VerificationError, digest, is_digest
from skuq.zk._signatures import (
    check_dates,
    check_issued,
    read_key,
    read_signed,
    time_of,
    write_signed,
)


def revoke(
    certificates: Sequence[str | Path],
    out: str | Path,
    *,
    key: str | Path,
    valid_days: int = 30,
    previous: str | Path | None = None,
) -> Path:
    """Sign a list of revoked certificates, with which clients compare their certificates.

    A list contains all entries of the previous list. Clients reject expired lists, so a new
    list must be published before the old one expires, even if nothing was revoked.

    Parameters
    ----------
    certificates : sequence of str or Path
        Files of certificates to revoke, signed with this key, or their digests
        (``Certificate.digest``). Empty for a list without new revocations.
    out : str or Path
        JSON file to write and publish. An existing file is replaced only if it is the previous
        list.
    key : str or Path
        The auditor's private key that signed the certificates: Ed25519, a PEM file
        without a password.
    valid_days : int, default=30
        Days until the list expires. During this time, an attacker can hide a revocation from a
        client by presenting an older list.
    previous : str or Path, default=None
        The previous list, which this list continues. Default: this is the first list.

    Returns
    -------
    Path
        Path of the written file.

    Raises
    ------
    TypeError
        If `certificates` is a single path instead of a sequence.
    ValueError
        If the key cannot be used, an argument is out of range, or a certificate or the
        previous list was not signed with this key.
    OSError
        If `out` is a link, or exists and is not the previous list.
    ImportError
        If the extra ``zk`` is not installed.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from cryptography.hazmat.primitives import serialization
    >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    >>> from skuq.zk import revoke
    >>> pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    >>> key = Ed25519PrivateKey.generate()
    >>> key = key.private_bytes(pem, form, serialization.NoEncryption())
    >>> with TemporaryDirectory() as home:
    ...     _ = Path(home, "auditor.pem").write_bytes(key)
    ...     path = revoke(["3f" * 32], f"{home}/revoked.json", key=f"{home}/auditor.pem")
    ...     path.name
    'revoked.json'
    """
    if isinstance(certificates, str | Path):
        raise TypeError(
            "`certificates` must be a list of paths, got the single path "
            f"{str(certificates)!r}; put it into a list."
        )
    out = Path(out)
    check_unlinked(out)
    private = read_key(Path(key), "private")
    public = private.public_key()
    revoked: set[str] = set()
    if previous is not None:
        record = read_signed(Path(previous), "revocations", public)
        check_issued(record, "revocations")
        revoked |= set(_digests(record, Path(previous)))
    if out.exists() and (previous is None or not is_within(out, previous)):
        raise FileExistsError(
            f"{out} exists already; to add to this list, pass it as `previous` too."
        )
    for certificate in certificates:
        named = str(certificate)
        if not is_digest(named):
            named = digest(read_signed(Path(certificate), "certificate", public))
        revoked.add(named)
    write_signed(out, "revocations", {"revoked": sorted(revoked)}, valid_days, private)
    return out


def check_not_revoked(certificate: str, record: Mapping[str, Any], path: Path, public: Any) -> None:
    """Check that the auditor's list is valid and recent, and does not contain this certificate."""
    listed = read_signed(path, "revocations", public)
    digests = _digests(listed, path)
    check_dates(listed, "revocations")
    if certificate in digests:
        raise VerificationError("The certificate was revoked.")
    if time_of(listed["issued"]) < time_of(record["issued"]):
        raise VerificationError(
            "The list of revoked certificates is older than the certificate, and so cannot contain "
            "it; get a newer list from the auditor."
        )


def _digests(record: Mapping[str, Any], path: Path) -> list[str]:
    """Digests in a list of revoked certificates, which must be sorted and unique."""
    digests: list[str] = record["revoked"]
    if not all(map(is_digest, digests)):
        raise VerificationError(f"{path.name} contains entries that are not digests.")
    if digests != sorted(set(digests)):
        raise VerificationError(f"{path.name} must list each certificate once, in ascending order.")
    return digests
