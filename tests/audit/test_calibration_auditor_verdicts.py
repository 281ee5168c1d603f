"""Verdicts, uncertainty and power of CalibrationAuditor."""

import numpy as np
import pytest
from scipy.stats import binomtest

from skuq import CalibrationAuditor, predict_uncertainty
from skuq.calibration import detectable_gap, region_mask, required_samples, scan_bins
from tests.reporter import NUMBERS, Reporter, assert_same_numbers, audit_of, reports

# Verdicts


def test_only_a_gap_that_chance_does_not_explain_fails():
    audit = audit_of((200, 0.75, 150), (3, 0.95, 2))
    assert not audit.within_alpha_
    assert audit.passed_
    assert audit.suspicious_bins().tolist() == []
    assert audit.suspicious_samples().tolist() == []
    assert audit.suspicious_samples().dtype == np.int64
    many = audit_of((200, 0.75, 150), (300, 0.95, 200))
    assert not many.within_alpha_
    assert not many.passed_


def test_a_calibrated_model_is_within_alpha_and_passes():
    audit = audit_of((200, 0.75, 150), (100, 0.9, 90))
    assert audit.within_alpha_
    assert audit.passed_
    assert audit.ece_ == 0.0


def test_lowered_confidence_is_found_in_its_bin():
    audit = audit_of((100, 0.55, 98), (300, 0.95, 285))
    assert not audit.passed_
    assert audit.bins_.direction.tolist() == [""] * 5 + ["underconfident"] + [""] * 4


UNFAIR = (150, 0.7, 145), (450, 0.7, 280)  # together 0.708 correct
WHO = np.repeat(["a", "b"], [150, 450])


def test_a_model_underconfident_for_one_group_passes_unless_groups_are_audited():
    X, y = reports(*UNFAIR)
    proba = Reporter().predict_proba(X)
    plain = CalibrationAuditor.from_predictions(y, proba, alpha=0.1)
    assert plain.passed_
    assert plain.within_alpha_
    by_group = CalibrationAuditor.from_predictions(
        y, proba, sensitive_features={"who": WHO}, alpha=0.1
    )
    assert not by_group.passed_
    assert by_group.within_alpha_  # step 3 of Algorithm 1 has no groups
    assert by_group.group_bins_["who=a"].direction[7] == "underconfident"
    assert not by_group.group_bins_["who=b"].significant.any()
    assert by_group.suspicious_bins().tolist() == []


def test_limits_and_findings_are_corrected_for_all_groups(model, reference):
    X, y = reference
    X = np.column_stack([X[:, 0].round(), X[:, 1]])
    audit = CalibrationAuditor(model, groups=0).fit(X, y)
    values = sorted(set(X[:, 0]))
    assert audit.n_families_ == 1 + len(values)
    assert set(audit.group_sums_) == {f"0={int(value)}" for value in values}
    bins = np.minimum((model.predict_proba(X).max(axis=1) * 10).astype(int), 9)
    correct = model.predict(X) == y
    for value in values:
        inside = X[:, 0] == value
        name = f"0={int(value)}"
        sums, part = audit.group_sums_[name], audit.group_bins_[name]
        assert part.count.tolist() == np.bincount(bins[inside], minlength=10).tolist()
        assert sums.correct.tolist() == np.bincount(bins[inside & correct], minlength=10).tolist()
        level = 0.05 / audit.n_families_
        scan = scan_bins(sums, alpha=0.05, level=level)
        expected = np.minimum(1, audit.n_families_ * scan.p_value)
        np.testing.assert_array_equal(part.p_value, expected)
        assert part.threshold == scan.threshold
        filled = np.flatnonzero(part.count)
        for b in filled:
            interval = binomtest(int(sums.correct[b]), int(part.count[b])).proportion_ci(
                1 - level / len(filled), method="exact"
            )
            ours = part.gap_low[b] + part.confidence[b], part.gap_high[b] + part.confidence[b]
            assert ours == pytest.approx(interval, rel=1e-9)


def test_an_empty_group_takes_nothing_from_the_others():
    y, proba = [0] * 15 + [1] * 5, [[0.75, 0.25]] * 20
    one = CalibrationAuditor.from_predictions(y, proba, sensitive_features={"g": ["a"] * 20})
    assert one.n_families_ == 2


def test_the_tolerance_and_the_level_decide():
    blocks = [(100, 0.7, 83)]
    assert not audit_of(*blocks, alpha=0.0).passed_
    assert audit_of(*blocks, alpha=0.0, confidence_level=0.999).passed_
    assert audit_of(*blocks, alpha=0.1).passed_
    assert not audit_of(*blocks, alpha=0.1).within_alpha_
    assert audit_of(*blocks, alpha=0.13).within_alpha_


def test_suspicious_samples_are_ordered_by_bin_and_by_what_was_not_expected():
    blocks = (100, 0.65, 90), (200, 0.85, 100), (50, 0.95, 47)
    X, y = reports(*blocks)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    audit = CalibrationAuditor(Reporter().fit(X, y)).fit(X, y)
    assert audit.suspicious_bins().tolist() == [8, 6]
    expected = [
        row
        for confidence, first in ((0.85, 1), (0.65, 0))
        for label in (first, 1 - first)
        for row in range(len(y))
        if X[row, 0] == confidence and y[row] == label
    ]
    assert audit.suspicious_samples().tolist() == expected


def test_bins_are_ordered_by_evidence_even_where_it_is_overwhelming():
    blocks = (10**4, 0.55, 9_900), (500, 0.75, 375), (10**5, 0.95, 50_000)
    audit = audit_of(*blocks)
    assert audit.bins_.p_value[[5, 9]].tolist() == [0.0, 0.0]
    assert audit.suspicious_bins().tolist() == [9, 5]
    assert audit.bins_.finding[[5, 7, 9]].tolist() == [2, 0, 1]


def test_two_bins_together_are_found_though_neither_is_by_itself():
    blocks = (60, 0.65, 48), (60, 0.75, 53)
    for block in blocks:
        assert audit_of(block).passed_
    audit = audit_of(*blocks)
    assert not audit.passed_
    assert audit.suspicious_bins().tolist() == [6, 7]
    assert audit.bins_.finding.tolist() == [0] * 6 + [1, 1, 0, 0]


# Uncertainty


def test_uncertainty_is_split_by_what_the_reference_set_supports():
    audit = audit_of((50, 0.55, 48), (100, 0.7, 70), (100, 0.95, 60))
    asked = np.array([0.51, 0.55, 0.7, 0.8, 0.9, 1.0])  # nothing is known of bin 8
    u = audit.predict_uncertainty(asked[:, None])
    np.testing.assert_allclose(u.total, 1 - asked, atol=1e-12)
    np.testing.assert_allclose(u.aleatoric, [0.04, 0.04, 0.3, np.nan, 0.4, 0.4], atol=1e-12)
    np.testing.assert_allclose(u.epistemic, [0.45, 0.41, 0, np.nan, -0.3, -0.4], atol=1e-12)
    measured = np.arange(6) != 3
    added = (u.aleatoric + u.epistemic)[measured]
    np.testing.assert_allclose(u.total[measured], added, rtol=1e-12)
    np.testing.assert_array_equal(predict_uncertainty(audit, asked[:, None]).total, u.total)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_uncertainty_of_the_reference_set_averages_to_its_error(model, reference, strategy):
    X, y = reference
    audit = CalibrationAuditor(model, strategy=strategy).fit(X, y)
    u = audit.predict_uncertainty(X)
    assert u.aleatoric.mean() == pytest.approx(1 - audit.accuracy_)
    assert u.total.mean() == pytest.approx(1 - audit.confidence_, abs=1e-8)


def test_predictions_are_those_of_the_audited_model(model, reference):
    audit = CalibrationAuditor(model).fit(*reference)
    X = reference[0][:9]
    np.testing.assert_array_equal(audit.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(audit.predict(X), model.predict(X))


# Power and coverage


@pytest.mark.parametrize("power", [0.8, 0.95])
def test_power_is_that_of_what_a_finding_needs_in_the_audit(power):
    X, y = reports(*UNFAIR, (20, 0.85, 16))
    audit = CalibrationAuditor.from_predictions(
        y, Reporter().predict_proba(X), sensitive_features={"who": [*WHO, *"b" * 20]}
    )
    assert audit.n_families_ == 1 + 2
    assert audit.bins_.threshold == scan_bins(audit.sums_, alpha=0.05, level=0.05 / 3).threshold
    settings = {"alpha": 0.05, "threshold": audit.bins_.threshold, "power": power}
    count, confidence = [0] * 7 + [600, 20, 0], [np.nan] * 7 + [0.7, 0.85, np.nan]
    gaps = audit.detectable_gaps(power=power)
    np.testing.assert_allclose(gaps, detectable_gap(count, confidence, **settings))
    assert np.isfinite(gaps).tolist() == [False] * 7 + [True, False, False]
    needed = audit.required_samples(0.12, power=power)
    expected = required_samples(0.12, [0.7, 0.85], **settings)
    np.testing.assert_array_equal(needed, [np.nan] * 7 + expected.tolist() + [np.nan])


REGION = (60, 0.65, 58), (40, 0.85, 20)
REST = (300, 0.75, 225), (50, 0.95, 47)


def region_audit(**params):
    audit = audit_of(*REGION, *REST, **params)
    return audit, np.arange(450) < 100


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize("groups", [None, lambda X: np.arange(len(X)) // 130])
@pytest.mark.parametrize("rho", [0, 1])
def test_a_region_is_kept_or_removed_as_a_whole(rho, groups, strategy):
    audit, mask = region_audit(strategy=strategy, groups=groups, n_bins=5)
    before = {name: getattr(audit, name) for name in NUMBERS}
    less = audit.undersample(rho, mask)
    X, y = reports(*REGION, *REST)
    kept = ~mask | (rho == 0)
    expected = CalibrationAuditor.from_predictions(
        y[kept],
        Reporter().predict_proba(X[kept]),
        sensitive_features=None if groups is None else {"group": groups(X)[kept]},
        strategy=strategy,
        n_bins=5,
    )
    assert_same_numbers(less, expected)
    assert less.estimator_ is audit.estimator_
    assert less.predict(X).tolist() == [0] * len(y)
    np.testing.assert_equal({name: getattr(audit, name) for name in NUMBERS}, before)


@pytest.mark.parametrize("rho", [0.1, 0.25, 0.5, 0.777, 0.99])
@pytest.mark.parametrize("seed", range(3))
def test_the_given_share_of_the_region_is_removed_and_nothing_else(rho, seed):
    audit, mask = region_audit()
    less = audit.undersample(rho, mask, random_state=seed)
    assert less.n_samples_ == 450 - round(100 * rho)
    for name in ("count", "correct", "confidence"):
        rest = getattr(less.sums_, name)[[7, 9]]
        np.testing.assert_array_equal(rest, getattr(audit.sums_, name)[[7, 9]])
    again = audit.undersample(rho, mask, random_state=seed)
    assert_same_numbers(again, less)


@pytest.mark.slow
def test_a_part_of_the_region_has_the_share_of_equation_20_on_average(monkeypatch):
    for module in ("_bin_audit", "_scan"):
        monkeypatch.setattr(f"skuq.calibration.{module}.N_SIMULATIONS", 1)
    audit, mask = region_audit()
    p, rho = audit.sums_.count / 450, 0.3
    drawn = np.array([audit.undersample(rho, mask, random_state=s).sums_.count for s in range(150)])
    share = drawn / drawn.sum(axis=1, keepdims=True)
    for b, inside in ((6, True), (8, True), (7, False), (9, False)):
        expected = (p[b] * (1 - rho) if inside else p[b]) / (
            p[7] + p[9] + (1 - rho) * (p[6] + p[8])
        )
        error = share[:, b].std() / np.sqrt(150)
        assert share[:, b].mean() == pytest.approx(expected, abs=4 * error + 1e-12)
    assert len(set(drawn[:, 6])) > 1


def test_removing_the_region_hides_what_was_found():
    audit, mask = region_audit()
    assert not audit.passed_
    assert audit.undersample(1, mask).passed_


def test_a_group_that_was_removed_altogether_is_empty_and_not_tested():
    audit, mask = region_audit(groups=lambda X: np.arange(len(X)) < 100)
    less = audit.undersample(1, mask)
    assert less.group_sums_["group=True"].count.sum() == 0
    assert not less.group_bins_["group=True"].significant.any()
    assert audit.n_families_ == 3
    assert less.n_families_ == 2


def test_recorded_predictions_can_be_undersampled_too():
    X, y = reports(*REGION, *REST)
    audit = CalibrationAuditor.from_predictions(y, Reporter().predict_proba(X))
    less = audit.undersample(1.0, np.arange(450) < 100)
    assert less.n_samples_ == 350
    assert less.classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rho", "mask", "match"),
    [
        (-0.1, np.ones(450, bool), r"`rho` must be in \[0, 1\], got -0.1"),
        (1.5, np.ones(450, bool), r"`rho` must be in \[0, 1\], got 1.5"),
        (np.nan, np.ones(450, bool), r"`rho` must be in \[0, 1\], got nan"),
        (0.5, np.ones(449, bool), r"shape \(450,\).*got bool of shape \(449,\)"),
        (0.5, np.ones((450, 1), bool), r"got bool of shape \(450, 1\)"),
        (0.5, np.ones(450, int), "got int64"),
        (0.5, [3, 5], r"got int64 of shape \(2,\)"),
        (1.0, np.ones(450, bool), "n_samples=0"),
    ],
)
def test_what_cannot_be_undersampled_is_refused(rho, mask, match):
    with pytest.raises(ValueError, match=match):
        region_audit()[0].undersample(rho, mask)


def attacked(n=1200):
    """Inputs, labels and confidences; one is lowered where both inputs are large."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n, 2))
    confidence = rng.uniform(0.55, 1, n)
    y = (rng.random(n) > confidence).astype(int)
    confidence[(X > 0.7).all(axis=1)] = 0.6
    y[(X > 0.7).all(axis=1)] = np.arange((X > 0.7).all(axis=1).sum()) % 10 > 8
    return X, y, np.column_stack([confidence, 1 - confidence])


class Attacked(Reporter):
    def predict_proba(self, X):
        return np.column_stack([X[:, 2], 1 - X[:, 2]])


def test_a_region_is_found_that_nobody_named():
    X, y, proba = attacked()
    plain = CalibrationAuditor.from_predictions(y, proba, alpha=0.12)
    assert plain.passed_
    assert plain.regions_ == []
    audit = CalibrationAuditor.from_predictions(y, proba, X=X, alpha=0.12, search_regions=True)
    assert not audit.passed_
    assert audit.n_families_ == 2
    (region, *_) = audit.regions_
    inside = region_mask(region.conditions, X)
    assert (inside & (X > 0.6).all(axis=1)).mean() > 0.8 * inside.mean()
    assert audit.settings_["region_alpha"] == 0.12
    np.testing.assert_equal(audit.sums_, plain.sums_)


def test_the_tolerance_of_regions_may_be_another_than_that_of_bins():
    X, y, proba = attacked()
    for alpha, found in ((0.1, True), (0.4, False)):
        audit = CalibrationAuditor.from_predictions(y, proba, X=X, search_regions=alpha)
        assert bool(audit.regions_) is found
        assert audit.settings_["region_alpha"] == alpha
        assert audit.settings_["alpha"] == 0.05


def test_regions_of_a_model_are_those_of_its_recorded_predictions():
    X, y, proba = attacked()
    X = np.column_stack([X, proba[:, 0]])
    audit = CalibrationAuditor(Attacked().fit(None, None), search_regions=0.1).fit(X, y)
    recorded = CalibrationAuditor.from_predictions(y, proba, X=X, search_regions=0.1)
    assert audit.regions_ == recorded.regions_ != []
    removed = audit.undersample(1.0, X[:, 0] > 0.7)
    rest = X[:, 0] <= 0.7
    again = CalibrationAuditor(Attacked().fit(None, None), search_regions=0.1)
    assert removed.regions_ == again.fit(X[rest], y[rest]).regions_
    assert removed.n_families_ == 2


@pytest.mark.parametrize("X", [["a text"] * 1200, np.zeros((1200, 2000))])
def test_a_search_in_what_is_not_a_table_is_refused(X):
    _, y, proba = attacked()
    with pytest.raises(ValueError, match="searched in tables of at most 1,000 columns, got"):
        CalibrationAuditor.from_predictions(y, proba, X=X, search_regions=True)


@pytest.mark.parametrize("alpha", [True, 0.0])
def test_a_search_without_inputs_is_refused(alpha):
    _, y, proba = attacked()
    with pytest.raises(ValueError, match="`search_regions` searches"):
        CalibrationAuditor.from_predictions(y, proba, search_regions=alpha)


def test_inputs_of_recorded_predictions_must_be_as_many():
    X, y, proba = attacked()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        CalibrationAuditor.from_predictions(y, proba, X=X[1:], search_regions=True)
