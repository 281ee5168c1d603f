"""What an auditor or a client has in hand when all proofs hold."""

from __future__ import annotations

from typing import Any, NamedTuple

from skuq.calibration._result import AuditResult
from skuq.calibration._sums import BinSums
from skuq.zk._commitment_files import Commitment
from skuq.zk._fixed_point import CONFIDENCE_BITS


class VerifiedAudit(NamedTuple):
    """An audit whose proofs all hold.

    Attributes
    ----------
    passed : bool
        Verdict at alpha.
    robust : bool
        Whether the verdict is the same at alpha less and plus the tolerance, by which proven
        confidences may differ from those of the model.
    level : str
        "verdict", "bins" or "predictions".
    statement : dict
        What was proven: commitment, reference data, alpha, bins.
    sums : BinSums or None
        Sums per bin; None at level "verdict".
    judgement : AuditResult or None
        Findings per bin, as of `CalibrationAuditor`; None at level "verdict" or without a
        confidence level.
    n_proofs : int
        Proofs that were verified.
    notes : list of str
        What the verdict does and does not say, in sentences.
    """

    passed: bool
    robust: bool
    level: str
    statement: dict[str, Any]
    sums: BinSums | None
    judgement: AuditResult | None
    n_proofs: int
    notes: list[str]

    def as_record(self) -> dict[str, Any]:
        """The result as JSON."""
        record: dict[str, Any] = {
            "passed": self.passed,
            "robust": self.robust,
            "level": self.level,
            "statement": self.statement,
            "n_proofs": self.n_proofs,
            "notes": self.notes,
        }
        if self.sums is not None:
            record["bins"] = {
                "edges": (self.sums.edges / self.sums.scale).tolist(),
                "count": self.sums.count.tolist(),
                "correct": self.sums.correct.tolist(),
                "confidence_sum": (self.sums.confidence / self.sums.scale).tolist(),
            }
            record["expected_calibration_error"] = self.sums.expected_calibration_error
        return record


class Attestation(NamedTuple):
    """A prediction whose proof holds.

    Attributes
    ----------
    label : object
        Predicted class.
    confidence : float
        Its probability.
    x : list of float
        The input that it is about.
    statement : dict
        All that was proven.
    """

    label: Any
    confidence: float
    x: list[float]
    statement: dict[str, Any]


def notes_of(
    committed: Commitment, statement: dict[str, Any], robust: bool, extra: list[str]
) -> list[str]:
    agreed = committed.record["agreement"]
    level = statement["confidence_level"]
    chance = "nothing left to chance" if level is None else f"a confidence level of {level:g}"
    notes = [
        "All proofs hold, and all belong to the published commitment.",
        f"Asked was whether accuracy and confidence differ by at most alpha = "
        f"{statement['alpha']:g} in each of {statement['n_bins']} bins, at {chance}, on "
        f"{statement['n_samples']} samples.",
        *extra,
        f"Proven confidences are multiples of 2 ** -{CONFIDENCE_BITS}; on the provider's "
        f"calibration data they were within {agreed['maximum']:.4f} of the model's (by its own "
        f"account; tolerance {committed.tolerance:g}).",
    ]
    if not robust:
        notes.append("The verdict would be another at alpha less or plus that tolerance.")
    source = committed.record["reference_string"]["source"]
    notes.append(f"Structured reference string, in the provider's words: {source}.")
    notes.append("An audit says nothing about inputs that the reference data do not cover.")
    return notes
