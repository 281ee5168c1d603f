"""One verdict on the proven audits of several groups of people, cases or places."""

from __future__ import annotations

from collections.abc import Sequence

from skuq.zk._files import VerificationError
from skuq.zk._results import VerifiedAudit

SAME = ("commitment_digest", "level", "alpha", "n_bins", "confidence_level")


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
