"""One verdict on several groups: what the audits must have in common, and its error."""

import numpy as np
import pytest

pytest.importorskip("ezkl")

from skuq.calibration import BinSums, audit_sums
from skuq.zk import VerificationError, VerifiedAudit, group_confidence_level, joint_verdict

STATEMENT = {
    "commitment_digest": "c0" * 32,
    "level": "bins",
    "alpha": 0.05,
    "n_bins": 10,
    "confidence_level": 0.9875,
    "regions": None,
}


def audit(k, passed=True, absent=(), **entries):
    """The audit of group k."""
    statement = {**STATEMENT, "reference_digest": f"{k}", **entries}
    found = (passed, True, "bins", statement, None, None, 3, [], "test", [0, 1])
    return VerifiedAudit(*found, absent_classes=absent, tolerance=None)


def audits(**settings):
    """Audits of four groups, the last one with these settings."""
    return [audit(0), audit(1), audit(2), audit(3, **settings)]


def test_every_group_must_pass():
    assert joint_verdict(audits(), confidence_level=0.95)
    assert not joint_verdict(audits(passed=False), confidence_level=0.95)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        *(({name: 7}, f"differ in {name}") for name in STATEMENT),
        ({"reference_digest": "0"}, "the same reference data"),
    ],
)
def test_audits_of_different_questions_have_no_joint_verdict(entries, message):
    with pytest.raises(VerificationError, match=message):
        joint_verdict(audits(**entries), confidence_level=0.95)


def test_a_class_may_be_absent_in_some_groups_but_not_in_all():
    """Else a class that only the model knows would pass for one that each group happens to lack."""
    some = [audit(0, absent=[1]), audit(1, absent=[0]), audit(2, absent=[1]), audit(3)]
    assert joint_verdict(some, confidence_level=0.95)
    everywhere = [audit(k, absent=[1]) for k in range(4)]
    with pytest.raises(VerificationError, match="No group has labels of the classes 1"):
        joint_verdict(everywhere, confidence_level=0.95)
    assert joint_verdict(everywhere, confidence_level=0.95, absent_classes=[1])
    with pytest.raises(
        ValueError, match="`absent_classes` must be classes without labels in any group"
    ):
        joint_verdict(some, confidence_level=0.95, absent_classes=[1])


def test_audits_with_different_tolerances_have_no_joint_verdict():
    others = [*audits()[:3], audits()[3]._replace(tolerance=0.01)]
    with pytest.raises(VerificationError, match="differ in tolerance"):
        joint_verdict(others, confidence_level=0.95)


def test_the_level_of_each_must_give_the_joint_one():
    for confidence_level, few in ((0.99, audits()), (0.95, audits()[:3])):
        with pytest.raises(VerificationError, match="joint confidence level"):
            joint_verdict(few, confidence_level=confidence_level)
    with pytest.raises(ValueError, match="at least one group"):
        joint_verdict([], confidence_level=0.95)


@pytest.mark.parametrize(("level", "n"), [(0, 2), (1, 2), (0.95, 0), (0.95, 1.5)])
def test_impossible_levels_and_numbers_are_refused(level, n):
    with pytest.raises(ValueError, match="must be"):
        group_confidence_level(level, n)


def test_a_calibrated_model_passes_all_groups_as_often_as_promised():
    """Four groups at once, of a model at the edge of alpha: 0.8 jointly."""
    rng, each = np.random.default_rng(0), group_confidence_level(0.8, 4)
    failed = 0
    for _ in range(200):
        verdicts = []
        for _ in range(4):
            confidence = rng.integers(5500, 9000, 150)
            correct = rng.integers(10_000, size=150) < confidence + 500
            totals = [np.array([v.sum()]) for v in (correct, confidence)]
            sums = BinSums(np.array([0, 10_000]), np.array([150]), *totals, scale=10_000)
            verdicts.append(audit_sums(sums, alpha=0.05, confidence_level=each).passed)
        failed += not all(verdicts)
    assert failed <= 57  # 40 of 200 on average at most; three standard deviations
