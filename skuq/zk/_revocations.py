"""Lists of revoked certificates, with dates and the auditor's signature."""

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
    """Sign a list of revoked certificates, which clients compare theirs with.

    A list only grows: it holds all that the previous one does. A client refuses a list that has
    expired, so that a new one has to be published in time, also where nothing was revoked.

    Parameters
    ----------
    certificates : sequence of str or Path
        Files of certificates to revoke, with a signature of this key, or their digests
        (``Certificate.digest``). None of them for a list that says that nothing else was revoked.
    out : str or Path
        JSON file to write, for everybody. An existing file is replaced only if it is the previous
        list.
    key : str or Path
        The auditor's private key, by which the certificates were signed: Ed25519, a PEM file
        without a password.
    valid_days : int, default=30
        Days until the list expires. Whoever keeps an older list from a client hides a revocation
        for so long.
    previous : str or Path, default=None
        The list that this one continues. Default: this is the first one.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    TypeError
        If `certificates` is a single one.
    ValueError
        If the key cannot be used, an argument is out of range, or a certificate or the
        previous list does not have its signature.
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
        raise TypeError(f"`certificates` must be a list of them, got {certificates!r} alone.")
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
            f"{out} exists already; a list is replaced by one that continues it (`previous`)."
        )
    for certificate in certificates:
        named = str(certificate)
        if not is_digest(named):
            named = digest(read_signed(Path(certificate), "certificate", public))
        revoked.add(named)
    write_signed(out, "revocations", {"revoked": sorted(revoked)}, valid_days, private)
    return out


def check_not_revoked(certificate: str, record: Mapping[str, Any], path: Path, public: Any) -> None:
    """Compare the digest of a certificate, and its record, with the auditor's list."""
    listed = read_signed(path, "revocations", public)
    digests = _digests(listed, path)
    check_dates(listed, "revocations")
    if certificate in digests:
        raise VerificationError("The certificate was revoked.")
    if time_of(listed["issued"]) < time_of(record["issued"]):
        raise VerificationError(
            "The list of revoked certificates is older than the certificate, about which it says "
            "nothing; get a newer one from the auditor."
        )


def _digests(record: Mapping[str, Any], path: Path) -> list[str]:
    """Digests of a list, which are in their order, each once."""
    digests: list[str] = record["revoked"]
    if not all(map(is_digest, digests)):
        raise VerificationError(f"{path.name} names something else than digests of certificates.")
    if digests != sorted(set(digests)):
        raise VerificationError(f"{path.name} does not name each certificate once, in order.")
    return digests
