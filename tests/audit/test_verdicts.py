"""Verdicts, uncertainty, power, undersampling and regions of CalibrationAuditor."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skuq import CalibrationAuditor
from skuq.calibration import detectable_gap, region_mask, scan_bins
from tests.reporter import NUMBERS, Reporter, assert_same_numbers, audit_of, reports

from_predictions = CalibrationAuditor.from_predictions


@pytest.mark.parametrize(
    ("blocks", "settings", "within", "passed"),
    [
        ([(200, 0.75, 150), (3, 0.95, 2)], {}, False, True),  # explained by chance
        ([(200, 0.75, 150), (300, 0.95, 200)], {}, False, False),
        ([(200, 0.75, 150), (100, 0.9, 90)], {}, True, True),
        ([(100, 0.55, 98), (300, 0.95, 285)], {}, False, False),
        ([(100, 0.7, 83)], {"tolerance": 0.0}, False, False),
        ([(100, 0.7, 83)], {"tolerance": 0.0, "confidence_level": 0.999}, False, True),
        ([(100, 0.7, 83)], {"tolerance": 0.1}, False, True),
        ([(100, 0.7, 83)], {"tolerance": 0.13}, True, True),
        ([(60, 0.65, 48), (60, 0.75, 54)], {}, False, False),  # neither would be found alone
    ],
)
def test_only_what_neither_chance_nor_tolerance_explains_fails(blocks, settings, within, passed):
    audit = audit_of(*blocks, **settings)
    assert (audit.within_tolerance_, audit.passed_) == (within, passed)
    bins = {(60, 0.65): [6, 7], (200, 0.75): [9], (100, 0.55): [5], (100, 0.7): [7]}
    assert audit.suspicious_bins().tolist() == ([] if passed else bins[blocks[0][:2]])
    suspicious = audit.suspicious_samples()
    assert (suspicious.dtype, len(suspicious) == 0) == (np.int64, passed)


def test_bins_are_ordered_by_evidence_and_suspicious_samples_by_what_was_not_expected():
    audit = audit_of((10**4, 0.55, 9_900), (500, 0.75, 375), (10**5, 0.95, 50_000))
    assert audit.bins_.p_value[[5, 9]].tolist() == [0.0, 0.0]  # overwhelming
    assert audit.suspicious_bins().tolist() == [9, 5]
    assert audit.bins_.finding[[5, 7, 9]].tolist() == [2, 0, 1]
    X, y = reports((100, 0.65, 90), (200, 0.85, 100), (50, 0.95, 47))
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    audit = CalibrationAuditor(Reporter().fit(X, y)).fit(X, y)
    assert audit.suspicious_bins().tolist() == [8, 6]
    order = ((0.85, 1), (0.85, 0), (0.65, 0), (0.65, 1))  # overconfident ones come first
    rows = [np.flatnonzero((X[:, 0] == confidence) & (y == label)) for confidence, label in order]
    assert audit.suspicious_samples().tolist() == np.concatenate(rows).tolist()


# Groups

UNFAIR = (150, 0.7, 145), (450, 0.7, 280)  # together 0.708 correct
WHO = np.repeat(["a", "b"], [150, 450])


def test_a_model_underconfident_for_one_group_passes_unless_groups_are_audited():
    X, y = reports(*UNFAIR)
    proba = Reporter().predict_proba(X)
    plain = from_predictions(y, proba, tolerance=0.1)
    assert (plain.passed_, plain.within_tolerance_) == (True, True)
    by_group = from_predictions(y, proba, sensitive_features={"who": WHO}, tolerance=0.1)
    assert (by_group.passed_, by_group.within_tolerance_) == (False, True)  # step 3 has no groups
    assert by_group.group_bins_["who=a"].direction[7] == "underconfident"
    assert not by_group.group_bins_["who=b"].significant.any()
    assert by_group.suspicious_bins().tolist() == []


@given(right=st.integers(20, 60), n_groups=st.integers(1, 12), seed=st.integers(0, 99))
def test_a_group_that_is_named_changes_nothing_about_all_samples(right, n_groups, seed):
    y, proba = np.arange(60) >= right, np.tile([0.95, 0.05], (60, 1))
    town = np.random.default_rng(seed).integers(0, n_groups, 60)
    plain = from_predictions(y, proba, classes=[0, 1])
    named = from_predictions(y, proba, classes=[0, 1], sensitive_features={"town": town})
    assert named.passed_ <= plain.passed_
    for one, other in zip(plain.bins_, named.bins_, strict=True):
        np.testing.assert_array_equal(one, other)
    assert plain.conclusive_ == (not plain.passed_)  # so few predictions prove nothing


def test_uncertainty_is_split_by_what_the_reference_set_supports(model, reference):
    audit = audit_of((50, 0.55, 48), (100, 0.7, 70), (100, 0.95, 60))
    asked = np.array([0.51, 0.55, 0.7, 0.8, 0.9, 1.0])  # nothing is known of bin 8
    u = audit.predict_uncertainty(asked[:, None])
    np.testing.assert_allclose(u.total, 1 - asked, atol=1e-12)
    np.testing.assert_allclose(u.aleatoric, [0.04, 0.04, 0.3, np.nan, 0.4, 0.4], atol=1e-12)
    np.testing.assert_allclose(u.epistemic, [0.45, 0.41, 0, np.nan, -0.3, -0.4], atol=1e-12)
    for strategy in ("uniform", "quantile"):  # on average, it is the error that was found
        audit = CalibrationAuditor(model, strategy=strategy).fit(*reference)
        u = audit.predict_uncertainty(reference[0])
        assert u.aleatoric.mean() == pytest.approx(1 - audit.accuracy_)
        assert u.total.mean() == pytest.approx(1 - audit.confidence_, abs=1e-8)


def test_power_is_that_of_what_a_finding_needs_and_decides_whether_a_pass_is_conclusive():
    X, y = reports(*UNFAIR, (20, 0.85, 16))
    groups = {"who": [*WHO, *"b" * 20]}
    audit = from_predictions(y, Reporter().predict_proba(X), sensitive_features=groups)
    assert audit.n_families_ == 1 + 2
    assert audit.bins_.threshold == scan_bins(audit.sums_, tolerance=0.05, level=0.025).threshold
    settings = {"tolerance": 0.05, "threshold": audit.bins_.threshold}
    count, confidence = [0] * 7 + [600, 20, 0], [np.nan] * 7 + [0.7, 0.85, np.nan]
    gaps = audit.bins_.detectable_underconfidence
    np.testing.assert_allclose(gaps, detectable_gap(count, confidence, **settings))
    assert np.isfinite(gaps).tolist() == [False] * 7 + [True, False, False]
    for n, conclusive in ((100, False), (400, True)):
        audit = audit_of((n, 0.75, 3 * n // 4))
        assert (audit.passed_, audit.conclusive_) == (True, conclusive)
    assert audit_of((100, 0.75, 75), tolerance=0.9).conclusive_  # larger gaps are impossible


# Undersampling

REGION = (60, 0.65, 58), (40, 0.85, 20)
REST = (300, 0.75, 225), (50, 0.95, 47)
MASK = np.arange(450) < 100


def thirds(X):
    """Group 0 is the region."""
    return np.where(MASK, 0, 1 + np.arange(len(X)) % 2)


@pytest.mark.parametrize(
    ("rho", "groups", "strategy"), [(0, None, "uniform"), (1, thirds, "quantile")]
)
def test_a_region_is_kept_or_removed_as_a_whole(rho, groups, strategy):
    audit = audit_of(*REGION, *REST, strategy=strategy, sensitive_columns=groups, n_bins=5)
    before = {name: getattr(audit, name) for name in NUMBERS}
    less = audit.undersample(rho, MASK)
    X, y = reports(*REGION, *REST)
    kept = ~MASK | (rho == 0)
    columns = None if groups is None else {"group": groups(X)[kept]}
    settings = {"strategy": strategy, "n_bins": 5, "sensitive_features": columns}
    expected = from_predictions(y[kept], Reporter().predict_proba(X[kept]), **settings)
    if rho == 1:  # what was found is hidden, and an empty group is not tested
        assert (audit.passed_, less.passed_) == (False, True)
        assert less.group_sums_.pop("group=0").count.sum() == 0
        assert not less.group_bins_.pop("group=0").significant.any()
    assert_same_numbers(less, expected)
    assert less.estimator_ is audit.estimator_
    assert less.predict(X).tolist() == [0] * len(y)
    np.testing.assert_equal({name: getattr(audit, name) for name in NUMBERS}, before)


@pytest.mark.parametrize("rho", [0.1, 0.3, 0.777, 0.99])
def test_a_part_of_the_region_is_removed_at_random(rho):  # Eq. 20
    audit = audit_of(*REGION, *REST)
    less = [audit.undersample(rho, MASK, random_state=seed).sums_ for seed in (0, *range(9))]
    np.testing.assert_equal(less[0], less[1])
    for sums in less:
        assert sums.n_samples == 450 - round(100 * rho)
        for name in ("count", "correct", "confidence"):
            kept = getattr(sums, name)[[7, 9]]
            np.testing.assert_array_equal(kept, getattr(audit.sums_, name)[[7, 9]])
    assert len({tuple(sums.correct) for sums in less}) > 1


def attacked(n=700):
    """Inputs, labels and confidences; one is lowered where both inputs are large."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n, 2))
    confidence = rng.uniform(0.55, 1, n)
    y = (rng.random(n) > confidence).astype(int)
    hidden = (X > 0.7).all(axis=1)
    confidence[hidden], y[hidden] = 0.6, np.arange(hidden.sum()) % 10 > 8
    return X, y, np.column_stack([confidence, 1 - confidence])


class Attacked(Reporter):
    def predict_proba(self, X):
        return np.column_stack([X[:, 2], 1 - X[:, 2]])


def test_a_region_is_found_that_nobody_named_with_its_own_tolerance():
    X, y, proba = attacked()
    plain = from_predictions(y, proba, tolerance=0.12)
    assert (plain.passed_, plain.regions_) == (True, [])
    audit = from_predictions(y, proba, X=X, tolerance=0.12, search_regions=True)
    assert (audit.passed_, audit.n_families_) == (False, 2)
    (region, *_) = audit.regions_
    inside = region_mask(region.conditions, X)
    assert (inside & (X > 0.6).all(axis=1)).mean() > 0.8 * inside.mean()
    assert audit.settings_["region_tolerance"] == 0.12
    for tolerance, found in ((0.1, True), (0.4, False)):
        audit = from_predictions(y, proba, X=X, search_regions=tolerance)
        assert bool(audit.regions_) is found
        settings = audit.settings_
        assert (settings["tolerance"], settings["region_tolerance"]) == (0.05, tolerance)


def test_regions_of_a_model_are_those_of_its_recorded_predictions_also_undersampled():
    X, y, proba = attacked()
    X = np.column_stack([X, proba[:, 0]])
    audit = CalibrationAuditor(Attacked().fit(None, None), search_regions=0.1).fit(X, y)
    recorded = from_predictions(y, proba, X=X, search_regions=0.1)
    assert audit.regions_ == recorded.regions_ != []
    assert recorded.undersample(1.0, X[:, 0] > 0.7).classes_.tolist() == [0, 1]
    removed, rest = audit.undersample(1.0, X[:, 0] > 0.7), X[:, 0] <= 0.7
    again = from_predictions(y[rest], proba[rest], X=X[rest], search_regions=0.1)
    assert removed.regions_ == again.regions_
    assert removed.n_families_ == 2
