"""Results of verification: a verified audit, the verdict on several groups, a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from skuq.base import FloatArray
from skuq.calibration import AuditResult, BinSums, audit_sums, detectable_gap
from skuq.zk._files import MAX_MESSAGE, VerificationError, printable
from skuq.zk._fixed_point import CONFIDENCE_BITS
from skuq.zk._public_commitment import Commitment
from skuq.zk._reference_string import Trust
from skuq.zk._statements import AuditStatement

POWER = 0.8  # probability of a finding, for the smallest gap that is reported
COULD_NOT_FAIL = (
    "This audit could not have failed, whatever the true labels were: take more reference samples, "
    "a smaller alpha or fewer bins."
)
SAME = ("commitment_digest", "level", "alpha", "n_bins", "confidence_level")


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


def judged(
    committed: Commitment,
    statement: AuditStatement,
    sums: BinSums,
    n_proofs: int,
    extra: list[str],
    trust: Trust,
    tolerance: float | None,
) -> VerifiedAudit:
    """Judge sums at alpha, and at alpha minus and plus the tolerance."""
    if int(sums.count.sum()) != statement.n_samples:
        raise VerificationError("The proven sums do not add up to the number of reference samples.")
    alpha, confidence_level = statement.alpha, statement.confidence_level
    allowed = committed.tolerance if tolerance is None else tolerance
    verdicts = [
        _passes(sums, value, confidence_level)
        for value in (max(0.0, alpha - allowed), alpha, min(1.0, alpha + allowed))
    ]
    result = None
    if confidence_level is not None:
        result = audit_sums(sums, alpha=alpha, confidence_level=confidence_level)
    robust = len(set(verdicts)) == 1
    if all(_passes(extreme, alpha, confidence_level) for extreme in _extremes(sums)):
        raise VerificationError(COULD_NOT_FAIL)
    notes = [*extra, *_power_notes(result, alpha)]
    return VerifiedAudit(
        passed=verdicts[1] if tolerance is None else all(verdicts),
        robust=robust,
        level=statement.level,
        statement=statement.record(),
        sums=sums,
        result=result,
        n_proofs=n_proofs,
        notes=notes_of(committed, statement, robust, notes, tolerance),
        reference_string=trust,
        classes=committed.classes.tolist(),
        tolerance=tolerance,
    )


def _extremes(sums: BinSums) -> list[BinSums]:
    """Sums with the same confidences if every prediction were right, and if none were."""
    return [sums._replace(correct=correct) for correct in (sums.count, 0 * sums.count)]


def _passes(sums: BinSums, alpha: float, confidence_level: float | None) -> bool:
    if confidence_level is not None:
        return audit_sums(sums, alpha=alpha, confidence_level=confidence_level).passed
    return bool((np.abs(sums.deviation) <= alpha * sums.count * sums.scale * (1 + 1e-12)).all())


def shown_classes(classes: Sequence[Any]) -> str:
    r"""List classes as text that nobody can mistake for other classes.

    Parameters
    ----------
    classes : sequence
        Classes of a `VerifiedAudit` or an `Attestation`.

    Returns
    -------
    str
        One line of at most 500 characters. Names with letters beyond ASCII, of which some look
        alike, are followed by their codes.

    Examples
    --------
    >>> from skuq.zk import shown_classes
    >>> print(shown_classes(["tea", "café"]))
    'tea', 'café' ('caf\xe9')
    """
    parts = [
        repr(label) if repr(label).isascii() else f"{label!r} ({label!a})" for label in classes
    ]
    return printable(", ".join(parts), MAX_MESSAGE)


def _power_notes(result: AuditResult | None, alpha: float) -> list[str]:
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
    notes.append(
        "Regions of the inputs were not looked at: an underconfident one can be balanced in its "
        "bin by an overconfident one."
    )
    return notes


def group_confidence_level(confidence_level: float, n_groups: int) -> float:
    """Compute the confidence level of each audit such that several have a joint one.

    Each of the audits may wrongly fail a model within alpha; all of them together do so with at
    most the sum of these probabilities (Bonferroni), whatever the groups have in common.

    Parameters
    ----------
    confidence_level : float
        Least probability, in (0, 1), that a model within alpha in every group passes them all.
    n_groups : int
        Number of audits.

    Returns
    -------
    float
        The `confidence_level` to prove and to verify each audit with.

    Examples
    --------
    >>> from skuq.zk import group_confidence_level
    >>> group_confidence_level(0.95, 4)
    0.9875
    """
    if not 0 < confidence_level < 1:
        raise ValueError(f"`confidence_level` must be in (0, 1), got {confidence_level}.")
    if int(n_groups) != n_groups or n_groups < 1:
        raise ValueError(f"`n_groups` must be an integer of at least 1, got {n_groups}.")
    # So many digits that both parties have the same number.
    return round(1 - (1 - confidence_level) / n_groups, 12)


def joint_verdict(audits: Sequence[VerifiedAudit], *, confidence_level: float) -> bool:
    """Decide on the audits of several groups at one joint confidence level.

    Parameters
    ----------
    audits : sequence of VerifiedAudit
        What `verify` returned for each group, all with the `confidence_level` that
        `group_confidence_level` gives for their number.
    confidence_level : float
        Least probability that a model within alpha in every group passes.

    Returns
    -------
    bool
        Whether every group passed.

    Raises
    ------
    VerificationError
        If the audits are about different commitments or questions, if two are about the same
        reference data, or if their confidence level does not give the joint one.
    """
    if not audits:
        raise ValueError("`audits` must hold the audit of at least one group, got none.")
    each = group_confidence_level(confidence_level, len(audits))
    for name in SAME:
        found = {audit.statement[name] for audit in audits}
        if len(found) > 1:
            raise VerificationError(f"The audits of the groups differ in {name}.")
    if len({audit.tolerance for audit in audits}) > 1:
        raise VerificationError("The audits of the groups differ in tolerance.")
    if len({audit.statement["reference_digest"] for audit in audits}) < len(audits):
        raise VerificationError("Two of the audits are about the same reference data.")
    if audits[0].statement["confidence_level"] != each:
        raise VerificationError(
            f"A joint confidence level of {confidence_level:g} needs {each:g} in each of "
            f"{len(audits)} audits, they have {audits[0].statement['confidence_level']}."
        )
    return all(audit.passed for audit in audits)
