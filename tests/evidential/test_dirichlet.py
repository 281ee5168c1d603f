"""Dirichlet distributions: uncertainty against sampling; propagation against dense formulas."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import sparse, stats
from scipy.special import entr, expit

from skuq.evidential import dirichlet_uncertainty, propagate

ALPHA = np.array([[0.3, 2.0, 5.0], [1.0, 1.0, 1.0], [40.0, 0.5, 7.0], [300.0, 200.0, 0.01]])
CONCENTRATIONS = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=5),
    elements=st.floats(1e-6, 1e9),
)
both_measures = pytest.mark.parametrize("measure", ["vacuity", "information"])


def test_vacuity_measure_is_the_paper_s():
    u, strength = dirichlet_uncertainty(ALPHA), ALPHA.sum(axis=1)
    np.testing.assert_allclose(u.epistemic, 3 / strength)
    np.testing.assert_allclose(u.aleatoric, 1 - ALPHA.max(axis=1) / strength)


@both_measures
@settings(max_examples=30)
@given(alpha=CONCENTRATIONS)
def test_total_is_the_sum_and_no_part_is_negative(measure, alpha):
    u = dirichlet_uncertainty(alpha, measure)
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic, rtol=1e-8)
    for part in u.parts:
        assert part.dtype == np.float64
        assert part.shape == (len(alpha),)
        assert (part >= 0).all()
    if measure == "information":
        mean = alpha / alpha.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(u.total, entr(mean).sum(axis=1), rtol=1e-7)


@pytest.mark.parametrize("alpha", [(1.0, 1.0), (0.5, 3.0), (20.0, 30.0), (0.2, 0.1)])
def test_expected_entropy_of_two_classes_is_an_integral(alpha):
    # Over the logit, where the integrand is smooth however small alpha is.
    x = np.linspace(-300, 300, 600_001)
    log_density = alpha[0] * -np.logaddexp(0, -x) + alpha[1] * -np.logaddexp(0, x)
    density = np.exp(log_density - log_density.max())
    expected = np.average(entr(expit(x)) + entr(expit(-x)), weights=density)
    u = dirichlet_uncertainty(np.array([alpha]), "information")
    assert u.aleatoric[0] == pytest.approx(expected, rel=1e-6)


def test_expected_entropy_is_the_mean_over_samples():
    found = dirichlet_uncertainty(ALPHA, "information").aleatoric
    for alpha, entropy in zip(ALPHA, found, strict=True):
        values = entr(stats.dirichlet(alpha).rvs(50_000, random_state=0)).sum(axis=1)
        assert entropy == pytest.approx(values.mean(), abs=5 * values.std() / np.sqrt(50_000))


@both_measures
def test_epistemic_part_falls_to_zero_as_evidence_of_the_same_proportions_grows(measure):
    proportions = np.array([0.6, 0.3, 0.1])
    near, far = np.logspace(-2, 6, 30)[:, None], np.logspace(7, 18, 99)[:, None]
    assert (np.diff(dirichlet_uncertainty(near * proportions, measure).epistemic) < 0).all()
    u = dirichlet_uncertainty(far * proportions, measure)
    assert ((u.epistemic >= 0) & (u.epistemic < 1e-6)).all()
    expected = {"vacuity": 0.4, "information": entr(proportions).sum()}[measure]
    assert u.aleatoric[-1] == pytest.approx(expected)


@both_measures
def test_smallest_concentrations_give_no_nan(measure):
    alpha = np.array([[5.0, np.finfo(np.float64).tiny], [1e-300, 1e-300]])
    assert np.isfinite(dirichlet_uncertainty(alpha, measure)).all()
    u = dirichlet_uncertainty(np.full((1, 2), 1e-9), "information")
    assert u.epistemic[0] == pytest.approx(np.log(2), rel=1e-6)  # almost all is epistemic


def dense_vacuity(adjacency, alpha):
    rows = np.where(adjacency.any(axis=1, keepdims=True), adjacency, np.eye(len(adjacency)))
    step = 0.5 * np.eye(len(rows)) + 0.5 * rows / rows.sum(axis=1, keepdims=True)
    start = alpha.shape[1] / alpha.sum(axis=1)
    return (start / (step @ step @ start))[:, None] * alpha


def dense_evidence(adjacency, alpha):
    looped = adjacency + np.eye(len(adjacency))
    root = np.diag(looped.sum(axis=1) ** -0.5)
    result = alpha
    for _ in range(10):
        result = 0.9 * root @ looped @ root @ result + 0.1 * alpha
    return result


def dense_diffusion(adjacency, alpha):
    """Personalised PageRank of the vacuity, as the sum over walks of each length."""
    looped = adjacency + np.eye(len(adjacency))
    walk = looped / looped.sum(axis=1, keepdims=True)
    start = alpha.shape[1] / alpha.sum(axis=1)
    ends = [np.linalg.matrix_power(0.9 * walk, length) @ start for length in range(11)]
    return (start / (ends[10] + 0.1 * sum(ends[:10])))[:, None] * alpha


DENSE = {
    "diffusion": dense_diffusion,
    "vacuity": dense_vacuity,
    "evidence": dense_evidence,
    "both": lambda a, alpha: dense_vacuity(a, dense_evidence(a, alpha)),
}


@pytest.mark.parametrize("scheme", DENSE)
@settings(max_examples=25)
@given(n=st.integers(1, 9), density=st.floats(0, 0.6), seed=st.integers(0))
def test_schemes_are_the_dense_formulas_with_the_paper_s_settings(scheme, n, density, seed):
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((n, n)) < density, 1)
    upper[:, -1] = False  # the last node is alone
    adjacency, alpha = (upper | upper.T).astype(float), rng.lognormal(2, 3, size=(n, 3))
    matrix, before = sparse.csr_array(adjacency), alpha.copy()
    result = propagate(matrix, alpha, scheme)
    np.testing.assert_array_equal(matrix.toarray(), adjacency)
    np.testing.assert_array_equal(alpha, before)
    np.testing.assert_allclose(result, DENSE[scheme](adjacency, alpha), rtol=1e-10)
    np.testing.assert_allclose(result[-1], alpha[-1])
    assert (result > 0).all()
    if scheme in ("diffusion", "vacuity"):  # these leave expected probabilities
        np.testing.assert_allclose(*(a / a.sum(axis=1, keepdims=True) for a in (result, alpha)))
