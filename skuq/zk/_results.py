"""Results of verification: a verified audit, an attested prediction."""

from __future__ import annotations

from typing import Any, NamedTuple

from skuq.calibration import AuditResult, BinSums
from skuq.zk._fixed_point import CONFIDENCE_BITS
from skuq.zk._public_commitment import Commitment


class VerifiedAudit(NamedTuple):
    """An audit whose proofs all hold.

    Attributes
    ----------
    passed : bool
        Verdict at alpha.
    robust : bool
        Whether the verdict is the same at alpha minus and plus the tolerance, by which proven
        confidences may differ from those of the model.
    level : str
        Disclosure: "verdict", "bins" or "predictions".
    statement : dict
        The proven statement: commitment, reference data, alpha, bins.
    sums : BinSums or None
        Sums per bin; None at level "verdict".
    result : AuditResult or None
        Findings per bin, as of `CalibrationAuditor`; None at level "verdict" or without a
        confidence level.
    n_proofs : int
        Number of verified proofs.
    notes : list of str
        Meaning and limits of the verdict, in sentences.
    """

    passed: bool
    robust: bool
    level: str
    statement: dict[str, Any]
    sums: BinSums | None
    result: AuditResult | None
    n_proofs: int
    notes: list[str]

    def as_record(self) -> dict[str, Any]:
        """Return the result as JSON."""
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
        The input.
    statement : dict
        The proven statement.
    """

    label: Any
    confidence: float
    x: list[float]
    statement: dict[str, Any]


def notes_of(
    committed: Commitment, statement: dict[str, Any], robust: bool, extra: list[str]
) -> list[str]:
    """Describe the question, the limits of the answer and the trusted setup."""
    agreed = committed.record["agreement"]
    chance = "without allowance for chance"
    if statement["confidence_level"] is not None:
        chance = f"at a confidence level of {statement['confidence_level']:g}"
    notes = [
        "All proofs hold, and all are bound to the published commitment.",
        f"The question was whether accuracy and confidence differ by at most alpha = "
        f"{statement['alpha']:g} in each of {statement['n_bins']} bins, {chance}, on "
        f"{statement['n_samples']} samples.",
        *extra,
        f"Proven confidences are multiples of 2 ** -{CONFIDENCE_BITS}. On the provider's "
        f"calibration data they were within {agreed['maximum']:.4f} of the model's, as the "
        f"provider states without proof (tolerance {committed.tolerance:g}).",
    ]
    if not robust:
        notes.append("The verdict would change at alpha minus or plus that tolerance.")
    source = committed.record["reference_string"]["source"]
    notes.append(f"Trusted setup (reference string), in the provider's words: {source}.")
    notes.append("An audit says nothing about inputs that the reference data do not cover.")
    return notes
