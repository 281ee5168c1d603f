"""Zero-knowledge proofs of audits and predictions of a model with secret weights (extra ``zk``)."""

from skuq.zk._commit import commit
from skuq.zk._ezkl import ProofSystemError as ProofSystemError
from skuq.zk._files import VerificationError
from skuq.zk._files import is_within as is_within
from skuq.zk._names import shown_classes as shown_classes
from skuq.zk._prove import Bundle as Bundle
from skuq.zk._prove import attest, prove, reported_predictions
from skuq.zk._public_commitment import Commitment, load_commitment
from skuq.zk._reference_string import REFERENCE_STRINGS as REFERENCE_STRINGS
from skuq.zk._regions import choose_regions
from skuq.zk._results import Attestation, VerifiedAudit
from skuq.zk._results import RegionAudit as RegionAudit
from skuq.zk._spot_check import challenge
from skuq.zk._verify import check, verify

__all__ = [
    "Attestation",
    "Commitment",
    "VerificationError",
    "VerifiedAudit",
    "attest",
    "challenge",
    "check",
    "choose_regions",
    "commit",
    "load_commitment",
    "prove",
    "reported_predictions",
    "verify",
]
