"""Certificates: an auditor's signed verdict (Ed25519) on a commitment."""

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

MAX_PLACE = 200  # maximum number of characters
# Objections to reference strings that are not trusted by default. A reader accepts a certificate
# with such a reference string only by overruling the objection explicitly.
UNTRUSTED: dict[Trust, str] = {
    "supplied": "The certified audit used a reference string that is NOT the public ceremony's: "
    "whoever generated this string could have forged the audit. If you trust the auditor to know "
    "where the string comes from, confirm this (`allow_supplied_string=True`).",
    "test": "Anybody could have forged the certified audit: it used a test reference string.",
}


class Certificate(NamedTuple):
    """A certificate with a valid signature.

    Attributes
    ----------
    record : dict
        Signed content: verdict, digests of commitment and data, audit settings, versions, dates.
    digest : str
        SHA-256 of the record, which identifies the certificate in lists of revoked certificates.
    """

    record: dict[str, Any]
    digest: str

    @property
    def passed(self) -> bool:
        """Whether the audit passed."""
        return bool(self.record["passed"])


def certify(
    audit: VerifiedAudit,
    out: str | Path,
    *,
    key: str | Path,
    valid_days: int = 365,
    revocations: str = "",
) -> Path:
    """Sign the verdict of a verified audit, whether passed or failed.

    Parameters
    ----------
    audit : VerifiedAudit
        Return value of `verify`.
    out : str or Path
        JSON file to write.
    key : str or Path
        The auditor's Ed25519 private key, a PEM file without a password.
    valid_days : int, default=365
        Days until the certificate expires.
    revocations : str, default=""
        Location at which the auditor publishes the list of revoked certificates (see `revoke`),
        such as a web address.

    Returns
    -------
    Path
        Path of the written file.

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
        raise FileExistsError(
            f"{out} exists already, and a certificate is never replaced; choose a new file."
        )
    # Sign these entries only, because other entries of the statement may contain free text that the
    # provider has written.
    settings = ("commitment_digest", "reference_digest", "alpha", "n_bins", "confidence_level")
    n = audit.statement["n_samples"]
    sizes, regions = [n], None
    if audit.regions is not None:
        sizes = [region.n_samples for region in audit.regions]
        could_fail = [region.could_fail for region in audit.regions]
        tree = audit.statement["regions"]
        regions = {"tree": tree, "n_samples": sizes, "could_fail": could_fail}
    # A spot check proves a subset of the samples of each region.
    n_proven = sum(min(audit.statement.get("n_proven", n), size) for size in sizes)
    record = {
        **{name: audit.statement[name] for name in settings},
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
    """Check that a certificate is valid today and certifies a commitment as passed.

    Parameters
    ----------
    certificate : str or Path
        File written by `certify`.
    commitment : str or Path
        The published folder of the commitment that the certificate must refer to.
    auditor : str or Path
        The auditor's Ed25519 public key, a PEM file from a trusted source, not from the
        provider.
    revoked : str or Path, default=None
        The auditor's newest list of revoked certificates (see `revoke`), from the location stated
        in the certificate. Default: revocation is not checked.
    allow_supplied_string : bool, default=False
        Accept a certificate of an audit with a reference string that is not from the public
        ceremony and was accepted because the auditor had a copy. Whoever generated the string
        could have forged the audit, so the auditor must have generated it or know who did.
    allow_test_string : bool, default=False
        Accept a certificate of an audit that used a test reference string.

    Returns
    -------
    Certificate
        The certificate. The caller must judge the settings of its audit, such as alpha.

    Raises
    ------
    VerificationError
        If any check fails; the message names the check.
    ValueError
        If the key or the list is in the provider's folder.
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
    """Check a certificate against a loaded commitment.

    `allowed` states which reference strings are accepted besides the string of the public ceremony.
    """
    public = read_key(Path(auditor), "public")
    record = read_signed(Path(certificate), "certificate", public)
    found = Certificate(record, digest(record))
    if record["commitment_digest"] != committed.digest:
        raise VerificationError("The certificate is for a different commitment.")
    if not _is_place(record["revocations"]):
        raise VerificationError(
            "The certificate's entry 'revocations', the location of the list of revoked "
            f"certificates, must be one line of at most {MAX_PLACE} characters."
        )
    if record["regions"] is not None:
        _check_regions(record["regions"], len(committed.encoding.columns))
    if not found.passed:
        raise VerificationError("The certificate states that the audit failed.")
    trust = record["reference_string"]
    if trust not in REFERENCE_STRINGS:
        raise VerificationError("The certificate states an unknown type of reference string.")
    if trust in UNTRUSTED and not allowed[trust]:
        raise VerificationError(UNTRUSTED[trust])
    check_dates(record, "certificate")
    if revoked is not None:
        check_not_revoked(found.digest, record, Path(revoked), public)
    return found


def _is_place(text: str) -> bool:
    return len(text) <= MAX_PLACE and text.isprintable()


def _check_regions(record: dict[str, Any], n_columns: int) -> None:
    """Check the entries about regions: the tree, the sizes, and which regions could fail."""
    check_entries(record, ("tree", "n_samples", "could_fail"), "The certificate's 'regions'")
    sizes, could_fail = (
        field(record, name, list, "The certificate") for name in ("n_samples", "could_fail")
    )
    tree = record.get("tree")
    n = len(Regions(tree).paths) if valid_tree(tree, n_columns) else 0
    typed = all(type(size) is int for size in sizes) and all(type(b) is bool for b in could_fail)
    if not (n and typed and len(sizes) == len(could_fail) == n):
        raise VerificationError("The certificate has an invalid description of regions.")
