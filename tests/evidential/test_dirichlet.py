"""Uncertainty of Dirichlet distributions against sampling, integration and limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import stats
from scipy.special import entr, expit

from skuq.evidential import dirichlet_uncertainty, expected_entropy

ALPHA = np.array([[0.3, 2.0, 5.0], [1.0, 1.0, 1.0], [40.0, 0.5, 7.0], [300.0, 200.0, 0.01]])
MEASURES = ["vacuity", "information"]
CONCENTRATIONS = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=5),
    elements=st.floats(1e-6, 1e9),
)


def test_vacuity_measure_is_the_paper_s():
    u = dirichlet_uncertainty(ALPHA)
    strength = ALPHA.sum(axis=1)
    np.testing.assert_allclose(u.epistemic, 3 / strength)
    np.testing.assert_allclose(u.aleatoric, 1 - ALPHA.max(axis=1) / strength)


@pytest.mark.parametrize("measure", MEASURES)
@settings(deadline=None, max_examples=60)
@given(alpha=CONCENTRATIONS)
def test_total_is_the_sum_and_no_part_is_negative(measure, alpha):
    u = dirichlet_uncertainty(alpha, measure)
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic, rtol=1e-8)
    for part in u:
        assert part.dtype == np.float64
        assert part.shape == (len(alpha),)
        assert (part >= 0).all()


@settings(deadline=None, max_examples=60)
@given(alpha=CONCENTRATIONS)
def test_information_is_at_most_the_logarithm_of_the_number_of_classes(alpha):
    u = dirichlet_uncertainty(alpha, "information")
    assert (u.total <= np.log(alpha.shape[1]) * (1 + 1e-9)).all()


def test_information_total_is_the_entropy_of_the_mean():
    mean = ALPHA / ALPHA.sum(axis=1, keepdims=True)
    total = dirichlet_uncertainty(ALPHA, "information").total
    np.testing.assert_allclose(total, entr(mean).sum(axis=1))


@pytest.mark.parametrize("alpha", [(1.0, 1.0), (0.5, 3.0), (20.0, 30.0), (0.2, 0.1)])
def test_expected_entropy_of_two_classes_is_an_integral(alpha):
    # Over the logit, where the integrand is smooth however small alpha is.
    x = np.linspace(-300, 300, 600_001)
    log_density = alpha[0] * -np.logaddexp(0, -x) + alpha[1] * -np.logaddexp(0, x)
    density = np.exp(log_density - log_density.max())
    expected = np.average(entr(expit(x)) + entr(expit(-x)), weights=density)
    assert expected_entropy(np.array([alpha]))[0] == pytest.approx(expected, rel=1e-6)
    u = dirichlet_uncertainty([alpha], "information")
    assert u.aleatoric[0] == pytest.approx(expected, rel=1e-6)


def test_expected_entropy_is_the_mean_over_samples():
    for alpha, expected in zip(ALPHA, expected_entropy(ALPHA), strict=True):
        drawn = stats.dirichlet(alpha).rvs(50_000, random_state=0)
        values = entr(drawn).sum(axis=1)
        error = values.std() / np.sqrt(len(values))
        assert expected == pytest.approx(values.mean(), abs=5 * error)


@pytest.mark.parametrize("measure", MEASURES)
def test_epistemic_part_vanishes_with_much_evidence(measure):
    u = dirichlet_uncertainty(1e12 * np.array([[0.7, 0.3]]), measure)
    assert u.epistemic[0] < 1e-11
    expected = {"vacuity": 0.3, "information": entr([0.7, 0.3]).sum()}[measure]
    assert u.aleatoric[0] == pytest.approx(expected)


@pytest.mark.parametrize("measure", MEASURES)
def test_epistemic_part_falls_as_evidence_of_the_same_proportions_grows(measure):
    alpha = np.logspace(-2, 6, 30)[:, None] * np.array([0.6, 0.3, 0.1])
    assert (np.diff(dirichlet_uncertainty(alpha, measure).epistemic) < 0).all()


def test_uniform_distribution_has_vacuity_one():
    u = dirichlet_uncertainty(np.ones((1, 4)))
    assert (u.epistemic[0], u.aleatoric[0]) == (1, 0.75)


def test_almost_all_information_is_epistemic_without_concentration():
    u = dirichlet_uncertainty(np.full((1, 2), 1e-9), "information")
    assert u.epistemic[0] == pytest.approx(np.log(2), rel=1e-6)


@pytest.mark.parametrize("measure", MEASURES)
def test_smallest_concentrations_give_no_nan(measure):
    alpha = np.array([[5.0, np.finfo(np.float64).tiny], [1e-300, 1e-300]])
    assert np.isfinite(dirichlet_uncertainty(alpha, measure)).all()


def test_lists_are_taken():
    assert dirichlet_uncertainty([[1, 3]]).epistemic.tolist() == [0.5]
