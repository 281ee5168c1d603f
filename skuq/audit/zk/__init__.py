"""Audits and predictions that are proven, without showing the model (extra ``zk``)."""

from skuq.audit.zk.auditor import check, make_challenge, verify
from skuq.audit.zk.backend import ProofSystemError
from skuq.audit.zk.commitments import Commitment, load_commitment
from skuq.audit.zk.committing import commit
from skuq.audit.zk.files import Refused
from skuq.audit.zk.provider import Bundle, attest, prove, reported_predictions
from skuq.audit.zk.results import Attestation, VerifiedAudit
from skuq.audit.zk.statements import sample_size

__all__ = [
    "Attestation",
    "Bundle",
    "Commitment",
    "ProofSystemError",
    "Refused",
    "VerifiedAudit",
    "attest",
    "check",
    "commit",
    "load_commitment",
    "make_challenge",
    "prove",
    "reported_predictions",
    "sample_size",
    "verify",
]
