"""Audits and predictions that are proven, without showing the model (extra ``zk``)."""

from skuq.zk._commit import commit
from skuq.zk._commitment_files import Commitment, load_commitment
from skuq.zk._ezkl import ProofSystemError
from skuq.zk._files import Refused
from skuq.zk._provider import Bundle, attest, prove, reported_predictions
from skuq.zk._results import Attestation, VerifiedAudit
from skuq.zk._statements import sample_size
from skuq.zk._verifier import check, make_challenge, verify

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
