"""The result of an audit from integer sums alone."""

import numpy as np
import pytest
from skuq.calibration._chance import ece_bootstrap, ece_under_calibration

from skuq.calibration import BinSums, TopLabelPredictions, audit_sums, bin_sums, search_regions
from tests.reporter import drawn_audit


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_sums_alone_give_the_result_of_the_auditor(strategy):
    audit = drawn_audit("third", alpha=0.02, confidence_level=0.9, strategy=strategy)
    result = audit_sums(audit.sums_, audit.group_sums_, alpha=0.02, confidence_level=0.9)
    np.testing.assert_equal(result._asdict(), audit.result_._asdict())
    assert (result.passed, result.within_alpha) == (audit.passed_, audit.within_alpha_)


def sums_of(count, correct, confidence):
    return BinSums(np.array([0, 5, 10]), *np.array([count, correct, confidence]), scale=10)


def test_a_group_with_a_finding_fails_the_audit_and_no_step_of_algorithm_1():
    whole, part = sums_of([0, 600], [0, 425], [0, 4200]), sums_of([0, 150], [0, 145], [0, 1050])
    assert audit_sums(whole, alpha=0.1).passed
    result = audit_sums(whole, {"g": part}, alpha=0.1)
    assert not result.passed
    assert result.within_alpha
    assert result.n_families == 2


def test_calibration_errors_by_chance_are_those_of_the_level():
    sums = sums_of([0, 600], [0, 425], [0, 4200])
    result = audit_sums(sums, confidence_level=0.9)
    drawn, honest = ece_bootstrap(sums), ece_under_calibration(sums)
    assert result.ece_interval == pytest.approx(np.quantile(drawn, [0.05, 0.95]))
    assert result.ece_chance == pytest.approx(np.quantile(honest, 0.9))


@pytest.mark.parametrize("region_alpha", [None, 0.1, 0.3])
def test_regions_are_searched_among_the_rows_and_are_one_more_family(region_alpha):
    X = np.arange(1000)[:, None] % 10
    correct = (np.arange(1000) % 100 < 60) | (X[:, 0] == 7)
    predictions = TopLabelPredictions(np.full(1000, 6 * 10**8, np.int32), correct)
    sums = sums_of([0, 1000], [0, correct.sum()], [0, 6000])
    result = audit_sums(
        sums, alpha=0.2, region_alpha=region_alpha, confidence_level=0.9, rows=(X, predictions)
    )
    assert result.n_families == 2
    assert result.regions == search_regions(
        X, predictions, alpha=region_alpha or 0.2, confidence_level=0.9, n_families=2
    )
    assert result.regions.regions[0].conditions == {0: 7.0}
    assert not result.passed
    assert audit_sums(sums, alpha=0.2, confidence_level=0.9).passed


@pytest.mark.parametrize("limit", [0, 1])
def test_the_limits_of_a_share_are_accepted_and_those_of_a_level_refused(limit):
    sums = sums_of([0, 20], [0, 15], [0, 150])
    assert audit_sums(sums, alpha=limit, region_alpha=limit).passed
    with pytest.raises(ValueError, match="`confidence_level`"):
        audit_sums(sums, confidence_level=limit)


def test_sums_of_nothing_are_refused():
    with pytest.raises(ValueError, match="at least one prediction, got none"):
        audit_sums(sums_of([0, 0], [0, 0], [0, 0]))


def test_sums_of_weights_are_refused():
    predictions = TopLabelPredictions(np.full(20, 6 * 10**8, np.int32), np.ones(20, bool))
    edges = np.array([0, 5 * 10**8, 10**9])
    whole, weighted = (
        bin_sums(predictions, edges, weight=weight)[0] for weight in (None, np.full(20, 2.0))
    )
    for families in ((weighted,), (whole, {"group": weighted})):
        with pytest.raises(ValueError, match="must count predictions, got sums of weights"):
            audit_sums(*families)


def test_an_empty_group_is_not_a_family():
    empty = sums_of([0, 0], [0, 0], [0, 0])
    assert audit_sums(sums_of([0, 20], [0, 15], [0, 150]), {"none": empty}).n_families == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 5}, "`alpha` must be a share"),
        ({"region_alpha": 5}, "`region_alpha` must be a share"),
        ({"confidence_level": 95}, "`confidence_level`"),
    ],
)
def test_percentages_are_refused(settings, message):
    sums = BinSums(
        np.array([0, 5, 10]), np.array([20, 0]), np.array([19, 0]), np.array([80, 0]), 10
    )
    with pytest.raises(ValueError, match=message):
        audit_sums(sums, **settings)
