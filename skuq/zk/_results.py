"""Results of verification: an audit, with its verdict and notes, or a prediction."""

from typing import Any, NamedTuple

import numpy as np

from skuq.base import IntArray
from skuq.calibration import AuditResult, BinSums, audit_sums
from skuq.zk._files import VerificationError
from skuq.zk._fixed_point import CONFIDENCE_BITS
from skuq.zk._names import shown_classes
from skuq.zk._public_commitment import Commitment
from skuq.zk._reference_string import REFERENCE_STRINGS, Trust
from skuq.zk._regions import Regions
from skuq.zk._statements import AuditStatement

DETECTABLE = ("detectable_underconfidence", "detectable_overconfidence")


class RegionAudit(NamedTuple):
    """Verdict on a single region of an audit."""

    rule: str  # such as "age <= 30 and income > 2"
    n_samples: int  # number of reference samples in the region
    passed: bool
    robust: bool
    could_fail: bool  # False if the region has so few samples that it passes with any labels
    sums: BinSums | None  # None at level "verdict"
    result: AuditResult | None  # findings per bin, at the confidence level of a single verdict

    def as_record(self) -> dict[str, Any]:
        record = self._asdict()
        del record["sums"], record["result"]
        return record if self.sums is None else {**record, "bins": _bins_record(self.sums)}


class VerifiedAudit(NamedTuple):
    """An audit with valid proofs.

    Attributes
    ----------
    passed : bool
        Verdict. If there are regions, all samples together and each region must pass.
    robust : bool
        Whether the verdict is the same at tolerances smaller and larger by `max_error`, which
        bounds the differences between proven confidences and the model's.
    level : str
        Disclosure: "verdict", "bins" or "predictions".
    statement : dict
        The proven statement: commitment, reference data, `alpha` (the tolerance), bins, and so on.
    sums : BinSums or None
        Sums per bin; None at level "verdict".
    result : AuditResult or None
        Findings per bin, as in `CalibrationAuditor`; None at level "verdict" or without a
        confidence level.
    n_proofs : int
        Number of verified proofs.
    notes : list of str
        Meaning and limits of the verdict, in sentences.
    reference_string : {"ceremony", "supplied", "test"}
        Reason to trust the reference string, as found by the verifier.
    classes : list
        The committed classes, in their order.
    absent_classes : list
        Classes for which the auditor expected no labels and found none.
    regions : list of RegionAudit or None
        Verdict on each region (`rule`, `n_samples`, `passed`, `robust`, `could_fail`, `sums`,
        `result`); None if only all samples together were audited. `could_fail` is False if the
        region has so few samples that it would have passed whatever the labels were.
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
    absent_classes: list[Any]
    regions: list[RegionAudit] | None = None

    def as_record(self) -> dict[str, Any]:
        """Return a JSON object for an auditor to sign; equal audits have equal objects."""
        record = self._asdict()
        record["reference_string_is"] = REFERENCE_STRINGS[self.reference_string]
        for name in ("sums", "result", "regions"):
            del record[name]
        if self.regions is not None:
            record["regions"] = [region.as_record() for region in self.regions]
        if self.sums is not None:
            record["bins"] = _bins_record(self.sums)
            if self.result is not None:
                for name in DETECTABLE:
                    gaps = getattr(self.result.bins, name)
                    record["bins"][name] = [None if np.isnan(g) else g for g in gaps.tolist()]
            record["expected_calibration_error"] = self.sums.expected_calibration_error
        return record


class Attestation(NamedTuple):
    """A prediction with a valid proof.

    Attributes
    ----------
    label : object
        Predicted class.
    confidence : float
        Probability of the predicted class.
    x : list of float
        The input.
    statement, reference_string, classes
        As in `VerifiedAudit`.
    """

    label: Any
    confidence: float
    x: list[float]
    statement: dict[str, Any]
    reference_string: Trust
    classes: list[Any]


class Judgement(NamedTuple):
    """Verdict on all samples or on one region; `RegionAudit` ends with the same five fields."""

    passed: bool  # verdict at the tolerance
    robust: bool  # whether tolerances smaller and larger by `max_error` give the same verdict
    could_fail: bool
    sums: BinSums | None = None
    result: AuditResult | None = None


def judge(sums: BinSums, statement: AuditStatement, max_error: float) -> Judgement:
    tolerance, level = statement.alpha, statement.single_level
    lower, passed, upper = (
        _passes(sums, value, level)
        for value in (max(0.0, tolerance - max_error), tolerance, min(1.0, tolerance + max_error))
    )
    result = None if level is None else _audited(sums, tolerance, level)
    # The audit could fail if it fails when all predictions are correct, or when all are wrong.
    extremes = [sums._replace(correct=correct) for correct in (sums.count, 0 * sums.count)]
    could_fail = not passed or not all(_passes(each, tolerance, level) for each in extremes)
    return Judgement(passed, lower == passed == upper, could_fail, sums, result)


def _audited(sums: BinSums, tolerance: float, level: float) -> AuditResult:
    return audit_sums(sums, tolerance=tolerance, confidence_level=level, share=1)


def _passes(sums: BinSums, tolerance: float, confidence_level: float | None) -> bool:
    if confidence_level is not None:
        return _audited(sums, tolerance, confidence_level).passed
    return bool((np.abs(sums.deviation) <= tolerance * sums.count * sums.scale * (1 + 1e-12)).all())


def judged(parts: list[BinSums], statement: AuditStatement, max_error: float) -> list[Judgement]:
    """Compute the verdicts on all samples and, if there are regions, on each region."""
    added = ("count", "correct", "confidence")
    sums = parts[0]._replace(**{name: sum(getattr(part, name) for part in parts) for name in added})
    if int(sums.count.sum()) != statement.n_samples:
        raise VerificationError("The proven sums do not add up to the number of reference samples.")
    together = judge(sums, statement, max_error)
    if not together.could_fail:
        raise VerificationError(
            "This audit could not have failed, whatever the labels are: use more samples, a "
            "smaller tolerance or fewer bins."
        )
    regions = parts if statement.regions is not None else []
    return [together, *(judge(part, statement, max_error) for part in regions)]


def audited(
    committed: Commitment,
    statement: AuditStatement,
    judgements: list[Judgement],  # first on all samples, then on each region
    region: IntArray,  # number of each sample's region
    n_proofs: int,
    extra: list[str],
    absent: list[Any],
    trust: Trust,
) -> VerifiedAudit:
    """Combine verdicts with notes, in which the only text of the provider are checked names."""
    together, regions = judgements[0], None
    if statement.regions is not None:
        rules = Regions(statement.regions).rules(committed.encoding.names)
        regions = [
            RegionAudit(rule, int((region == k).sum()), *judgement)
            for k, (rule, judgement) in enumerate(zip(rules, judgements[1:], strict=True))
        ]
    robust = all(each.robust for each in judgements)
    agreed, max_error = committed.record["agreement"], committed.max_error
    classes = committed.classes.tolist()
    chance = "without a margin for sampling error"
    if statement.confidence_level is not None:
        chance = f"at a confidence level of {statement.confidence_level:g}"
    lacking = ""
    if absent:
        lacking = (
            f" As the auditor expected, no reference sample belongs to {shown_classes(absent)}: "
            "the audit does not cover predictions of these classes."
        )
    notes = [
        f"The classes are {shown_classes(classes)}.{lacking}",
        "All proofs hold, and all are bound to the published commitment.",
        *([] if trust == "ceremony" else [f"The reference string is {REFERENCE_STRINGS[trust]}."]),
        f"The question was whether accuracy and confidence differ by at most the tolerance of "
        f"{statement.alpha:g} in each of {statement.n_bins} bins, {chance}, on "
        f"{statement.n_samples} samples.",
        *_region_notes(regions),
        *extra,
        *_power_notes(together.result),
        f"Proven confidences are multiples of 2 ** -{CONFIDENCE_BITS}. On the provider's "
        f"calibration data they were within {agreed['maximum']:.4f} of the model's, as the "
        f"provider states without proof (at most {max_error:g}).",
    ]
    if not robust:
        notes.append(
            f"The verdict would change at a tolerance that is smaller or larger by {max_error:g}."
        )
    notes.append("An audit does not cover inputs that the reference data do not cover.")
    return VerifiedAudit(
        passed=all(each.passed for each in judgements),
        robust=robust,
        level=statement.level,
        statement=statement.record(),
        sums=together.sums,
        result=together.result,
        n_proofs=n_proofs,
        notes=notes,
        reference_string=trust,
        classes=classes,
        absent_classes=absent,
        regions=regions,
    )


def _region_notes(regions: list[RegionAudit] | None) -> list[str]:
    if regions is None:
        return [
            "No region was audited: an underconfident and an overconfident group can balance in "
            "every bin, and remain undetected."
        ]
    notes = [
        f"All samples together and each of {len(regions)} regions were judged, at one joint "
        "confidence level for all these verdicts."
    ]
    small = [f"{region.rule} ({region.n_samples})" for region in regions if not region.could_fail]
    if small:
        notes.append(
            "These regions have so few samples that they could not have failed, so their verdicts "
            f"are not informative: {'; '.join(small)}."
        )
    return notes


def _power_notes(result: AuditResult | None) -> list[str]:
    """State the smallest gaps that the audit detects in each bin with a probability of 0.8."""
    notes: list[str] = []
    if result is None:
        return notes
    for name in DETECTABLE:
        sums, gaps, parts = result.sums, getattr(result.bins, name), []
        for b in np.flatnonzero(sums.count):
            low, high = sums.edges[b : b + 2] / sums.scale
            gap = "none" if np.isnan(gaps[b]) else f"{gaps[b]:.2f}"
            parts.append(f"{low:.2g} to {high:.2g}: {gap}")
        notes.append(
            f"Smallest {name.removeprefix('detectable_')} of a single bin that this audit finds "
            f"with probability 0.8: {'; '.join(parts)}."
        )
    return notes


def _bins_record(sums: BinSums) -> dict[str, Any]:
    return {
        "edges": (sums.edges / sums.scale).tolist(),
        "count": sums.count.tolist(),
        "correct": sums.correct.tolist(),
        "confidence_sum": (sums.confidence / sums.scale).tolist(),
    }
