"""Certificates: the verdict of an auditor about one commitment, with a signature (Ed25519)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from skuq.files import check_unlinked
from skuq.zk import _ezkl as backend
from skuq.zk._files import VerificationError, check_entries, check_outside, digest, field
from skuq.zk._public_commitment import Commitment, load_commitment
from skuq.zk._reference_string import REFERENCE_STRINGS, Trust
from skuq.zk._regions import Regions, valid_tree
from skuq.zk._results import VerifiedAudit
from skuq.zk._revocations import check_not_revoked
from skuq.zk._signatures import check_dates, read_key, read_signed, write_signed

MAX_PLACE = 200  # characters
# Reasons to trust a reference string that a reader of a certificate has to agree to.
UNTRUSTED: dict[Trust, str] = {
    "supplied": "The certificate is about a reference string that is NOT the public ceremony's: "
    "whoever generated it could have forged the audit. If you trust the auditor to know its "
    "origin, say so (`allow_supplied_string=True`).",
    "test": "The certificate is about a test: anybody could forge its audit.",
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
        Where the auditor publishes the list of revoked certificates (see `revoke`), for instance
        an address.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        If the key cannot be used, or an argument is out of range.
    OSError
        If `out` exists, or is a link.
    ImportError
        If the extra ``zk`` is not installed.
    """
    out = Path(out)
    check_unlinked(out)
    private = read_key(Path(key), "private")
    if not _is_place(revocations):
        raise ValueError(f"`revocations` must be one line of at most {MAX_PLACE} characters.")
    if out.exists():
        raise FileExistsError(f"{out} exists already; a certificate is never replaced.")
    # What the provider wrote freely in the statement is not signed.
    asked = ("commitment_digest", "reference_digest", "alpha", "n_bins", "confidence_level")
    n = audit.statement["n_samples"]
    sizes, regions = [n], None
    if audit.regions is not None:
        sizes = [region.n_samples for region in audit.regions]
        could_fail = [region.could_fail for region in audit.regions]
        tree = audit.statement["regions"]
        regions = {"tree": tree, "n_samples": sizes, "could_fail": could_fail}
    # A spot check proves some samples of each region.
    n_proven = sum(min(audit.statement.get("n_proven", n), size) for size in sizes)
    record = {
        **{name: audit.statement[name] for name in asked},
        "regions": regions,
        "n_samples": n,
        "n_proven": n_proven,
        "level": audit.level,
        "absent_classes": audit.absent_classes,
        "tolerance": audit.tolerance,
        "n_proofs": audit.n_proofs,
        "passed": audit.passed,
        "robust": audit.robust,
        "reference_string": audit.reference_string,
        "versions": backend.versions(),
        "revocations": revocations,
    }
    write_signed(out, "certificate", record, valid_days, private)
    return out


def check_certificate(
    certificate: str | Path,
    commitment: str | Path,
    auditor: str | Path,
    *,
    revoked: str | Path | None = None,
    allow_supplied_string: bool = False,
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
        The auditor's public key, from a source that is trusted, and so not from the provider:
        Ed25519, a PEM file.
    revoked : str or Path, default=None
        The auditor's newest list of revoked certificates, as `revoke` writes it, from the place
        that the certificate names. Default: nothing is known about revocation.
    allow_supplied_string : bool, default=False
        Accept a certificate of an audit whose reference string is not that of the public ceremony,
        and was trusted because the auditor had a copy. Whoever generated it could have forged the
        audit, so that the auditor has to have generated it, or to know who did.
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
    ValueError
        If the key or the list lies in the provider's folder.
    """
    for name, path in {"auditor": auditor, "revoked": revoked}.items():
        check_outside(path, name, commitment, certificate)
    committed = load_commitment(commitment)
    allowed: dict[Trust, bool] = {"supplied": allow_supplied_string, "test": allow_test_string}
    return checked_certificate(certificate, committed, auditor, revoked, allowed)


def checked_certificate(
    certificate: str | Path,
    committed: Commitment,
    auditor: str | Path,
    revoked: str | Path | None,
    allowed: dict[Trust, bool],
) -> Certificate:
    """Check a certificate of a commitment that is loaded already.

    `allowed` are the reasons to trust a reference string, besides the ceremony, that are accepted.
    """
    public = read_key(Path(auditor), "public")
    record = read_signed(Path(certificate), "certificate", public)
    found = Certificate(record, digest(record))
    if record["commitment_digest"] != committed.digest:
        raise VerificationError("The certificate is about another commitment.")
    if not _is_place(record["revocations"]):
        raise VerificationError(
            "The certificate's place of revoked ones is not one line of at most "
            f"{MAX_PLACE} characters."
        )
    if record["regions"] is not None:
        _check_regions(record["regions"], len(committed.encoding.columns))
    if not found.passed:
        raise VerificationError("The certificate says that the audit was failed.")
    trust = record["reference_string"]
    if trust not in REFERENCE_STRINGS:
        raise VerificationError("The certificate gives no known reason to trust the string.")
    if trust in UNTRUSTED and not allowed[trust]:
        raise VerificationError(UNTRUSTED[trust])
    check_dates(record, "certificate")
    if revoked is not None:
        check_not_revoked(found.digest, record, Path(revoked), public)
    return found


def _is_place(text: str) -> bool:
    return len(text) <= MAX_PLACE and text.isprintable()


def _check_regions(record: dict[str, Any], n_columns: int) -> None:
    """Check the entries about regions: their tree, sizes, and which of them could fail."""
    check_entries(record, ("tree", "n_samples", "could_fail"), "The certificate's 'regions'")
    sizes, could_fail = (
        field(record, name, list, "The certificate") for name in ("n_samples", "could_fail")
    )
    tree = record.get("tree")
    n = len(Regions(tree).paths) if valid_tree(tree, n_columns) else 0
    typed = all(type(size) is int for size in sizes) and all(type(b) is bool for b in could_fail)
    if not (n and typed and len(sizes) == len(could_fail) == n):
        raise VerificationError("The certificate names regions that cannot be.")
