"""Results of verification: a verified audit, an attested prediction."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skuq.base import FloatArray
from skuq.calibration import AuditResult, BinSums, detectable_gap
from skuq.zk._files import MAX_MESSAGE, printable
from skuq.zk._fixed_point import CONFIDENCE_BITS
from skuq.zk._public_commitment import Commitment
from skuq.zk._reference_string import Trust
from skuq.zk._statement_entries import AuditStatement

POWER = 0.8  # probability of a finding, for the smallest gap that is reported


class VerifiedAudit(NamedTuple):
    """An audit whose proofs all hold.

    Attributes
    ----------
    passed : bool
        Verdict at alpha; with a tolerance of the auditor's, at alpha minus and plus it as well.
    robust : bool
        Whether the verdict is the same at alpha minus and plus the tolerance (the auditor's, or
        that of the commitment), by which proven confidences may differ from those of the model.
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
    reference_string : {"ceremony", "own", "test"}
        Reason to trust the reference string, as found by the verifier.
    classes : list
        The committed classes, in their order.
    tolerance : float or None
        The auditor's.
    """

    passed: bool
    robust: bool
    level: str
    statement: dict[str, Any]
    sums: BinSums | None
    result: AuditResult | None
    n_proofs: int
    notes: list[str]
    reference_string: Trust
    classes: list[Any]
    tolerance: float | None

    def as_record(self) -> dict[str, Any]:
        """Return the result as JSON."""
        record: dict[str, Any] = {
            "reference_string": self.reference_string,
            "classes": self.classes,
            "passed": self.passed,
            "robust": self.robust,
            "tolerance": self.tolerance,
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
            if self.result is not None:
                gaps = _detectable(self.result, self.statement["alpha"])
                record["bins"]["detectable_gap"] = [
                    None if np.isnan(gap) else gap for gap in gaps.tolist()
                ]
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
    reference_string : {"ceremony", "own", "test"}
        Reason to trust the reference string, as found by the verifier.
    classes : list
        The committed classes, in their order.
    certificate : dict or None
        What the auditor certified about the commitment, if that was asked for.
    """

    label: Any
    confidence: float
    x: list[float]
    statement: dict[str, Any]
    reference_string: Trust
    classes: list[Any]
    certificate: dict[str, Any] | None


def shown_classes(classes: list[Any]) -> str:
    """List classes; texts with letters beyond ASCII twice, because some of these look alike."""
    parts = [
        repr(label) if repr(label).isascii() else f"{label!r} ({label!a})" for label in classes
    ]
    return printable(", ".join(parts), MAX_MESSAGE)


def power_notes(result: AuditResult | None, alpha: float) -> list[str]:
    """Say which underconfidence the audit would have found in each bin, with probability 0.8."""
    if result is None:
        return []
    sums = result.sums
    gaps = _detectable(result, alpha)
    parts = []
    for b in np.flatnonzero(sums.count):
        edges = sums.edges[b : b + 2] / sums.scale
        gap = "none" if np.isnan(gaps[b]) else f"{gaps[b]:.2f}"
        parts.append(f"{edges[0]:.2g} to {edges[1]:.2g}: {gap}")
    return [
        "Smallest underconfidence of a bin by itself that this audit finds with probability "
        f"{POWER:g}: {'; '.join(parts)}."
    ]


def _detectable(result: AuditResult, alpha: float) -> FloatArray:
    return detectable_gap(
        result.sums.count,
        result.sums.mean_confidence,
        alpha=alpha,
        threshold=result.bins.threshold,
        power=POWER,
    )


def notes_of(
    committed: Commitment,
    statement: AuditStatement,
    robust: bool,
    extra: list[str],
    tolerance: float | None,
) -> list[str]:
    """Describe the question and the limits of the answer, in words that are not the provider's."""
    agreed = committed.record["agreement"]
    chance = "without allowance for chance"
    if statement.confidence_level is not None:
        chance = f"at a confidence level of {statement.confidence_level:g}"
    notes = [
        "All proofs hold, and all are bound to the published commitment.",
        f"The question was whether accuracy and confidence differ by at most alpha = "
        f"{statement.alpha:g} in each of {statement.n_bins} bins, {chance}, on "
        f"{statement.n_samples} samples.",
        *extra,
        f"Proven confidences are multiples of 2 ** -{CONFIDENCE_BITS}. On the provider's "
        f"calibration data they were within {agreed['maximum']:.4f} of the model's, as the "
        f"provider states without proof (tolerance {committed.tolerance:g}).",
    ]
    if not robust:
        named = "that tolerance" if tolerance is None else f"the tolerance of {tolerance:g}"
        notes.append(f"The verdict would change at alpha minus or plus {named}.")
    notes.append("An audit says nothing about inputs that the reference data do not cover.")
    return notes
