"""Zero-knowledge proofs of audits and predictions of a model with secret weights (extra ``zk``)."""

from skuq.zk._attest import attest
from skuq.zk._certificate import Certificate, certify, check_certificate
from skuq.zk._commit import commit
from skuq.zk._ezkl import ProofSystemError
from skuq.zk._files import VerificationError
from skuq.zk._names import shown_classes
from skuq.zk._prove import Bundle, prove, reported_predictions
from skuq.zk._public_commitment import Commitment, load_commitment
from skuq.zk._reference_string import REFERENCE_STRINGS
from skuq.zk._regions import Regions, choose_regions, group_confidence_level
from skuq.zk._results import (
    Attestation,
    RegionAudit,
    VerifiedAudit,
    joint_verdict,
)
from skuq.zk._revocations import revoke
from skuq.zk._spot_check import challenge, sample_size
from skuq.zk._verify import check, verify

__all__ = [
    "REFERENCE_STRINGS",
    "Attestation",
    "Bundle",
    "Certificate",
    "Commitment",
    "ProofSystemError",
    "RegionAudit",
    "Regions",
    "VerificationError",
    "VerifiedAudit",
    "attest",
    "certify",
    "challenge",
    "check",
    "check_certificate",
    "choose_regions",
    "commit",
    "group_confidence_level",
    "joint_verdict",
    "load_commitment",
    "prove",
    "reported_predictions",
    "revoke",
    "sample_size",
    "shown_classes",
    "verify",
]
