"""Dirichlet distributions: uncertainty against sampling; propagation against dense formulas."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import sparse, stats
from scipy.special import entr, expit

from skuq.evidential import dirichlet_uncertainty, propagate
from skuq.evidential._evidence import expected_entropy
from skuq.evidential._propagation import neighbour_mean, propagate_evidence, smooth

ALPHA = np.array([[0.3, 2.0, 5.0], [1.0, 1.0, 1.0], [40.0, 0.5, 7.0], [300.0, 200.0, 0.01]])
CONCENTRATIONS = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=5),
    elements=st.floats(1e-6, 1e9),
)
both_measures = pytest.mark.parametrize("measure", ["vacuity", "information"])


def test_vacuity_measure_is_the_paper_s():
    u = dirichlet_uncertainty(ALPHA)
    strength = ALPHA.sum(axis=1)
    np.testing.assert_allclose(u.epistemic, 3 / strength)
    np.testing.assert_allclose(u.aleatoric, 1 - ALPHA.max(axis=1) / strength)
    u = dirichlet_uncertainty(np.ones((1, 4)))
    assert (u.epistemic[0], u.aleatoric[0]) == (1, 0.75)


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
    u = dirichlet_uncertainty(np.array([alpha]), "information")
    assert u.aleatoric[0] == pytest.approx(expected, rel=1e-6)


def test_expected_entropy_is_the_mean_over_samples():
    for alpha, expected in zip(ALPHA, expected_entropy(ALPHA), strict=True):
        values = entr(stats.dirichlet(alpha).rvs(50_000, random_state=0)).sum(axis=1)
        error = values.std() / np.sqrt(len(values))
        assert expected == pytest.approx(values.mean(), abs=5 * error)


@both_measures
def test_epistemic_part_falls_to_zero_as_evidence_of_the_same_proportions_grows(measure):
    alpha = np.logspace(-2, 6, 30)[:, None] * np.array([0.6, 0.3, 0.1])
    assert (np.diff(dirichlet_uncertainty(alpha, measure).epistemic) < 0).all()
    far = np.logspace(7, 18, 99)[:, None] * np.array([0.6, 0.3, 0.1])
    assert (dirichlet_uncertainty(far, measure).epistemic >= 0).all()
    u = dirichlet_uncertainty(1e12 * np.array([[0.7, 0.3]]), measure)
    assert u.epistemic[0] < 1e-11
    expected = {"vacuity": 0.3, "information": entr([0.7, 0.3]).sum()}[measure]
    assert u.aleatoric[0] == pytest.approx(expected)


@both_measures
def test_smallest_concentrations_give_no_nan(measure):
    alpha = np.array([[5.0, np.finfo(np.float64).tiny], [1e-300, 1e-300]])
    assert np.isfinite(dirichlet_uncertainty(alpha, measure)).all()
    u = dirichlet_uncertainty(np.full((1, 2), 1e-9), "information")
    assert u.epistemic[0] == pytest.approx(np.log(2), rel=1e-6)  # almost all is epistemic


all_schemes = pytest.mark.parametrize("scheme", ["diffusion", "vacuity", "evidence", "both"])
# Nodes 0 to 7 at random, node 8 alone; each with some evidence.
UPPER = np.triu(np.random.default_rng(0).random((9, 9)) < 0.4, 1)
UPPER[:, 8] = False
ADJACENCY = (UPPER | UPPER.T).astype(float)
NODES = 1 + np.random.default_rng(1).gamma(2.0, size=(9, 3))


def dense_mean(adjacency):
    rows = adjacency.copy()
    for i, row in enumerate(rows):
        rows[i] = row / row.sum() if row.sum() else np.eye(len(rows))[i]
    return rows


def dense_smooth(adjacency, values, n_steps=2, keep=0.5):
    mean = dense_mean(adjacency)
    step = keep * np.eye(len(mean)) + (1 - keep) * mean
    return np.linalg.matrix_power(step, n_steps) @ values


def dense_evidence(adjacency, alpha, n_steps=10, teleport=0.1):
    looped = adjacency + np.eye(len(adjacency))
    root = np.diag(looped.sum(axis=1) ** -0.5)
    matrix, result = root @ looped @ root, alpha
    for _ in range(n_steps):
        result = (1 - teleport) * matrix @ result + teleport * alpha
    return result


def dense_vacuity(adjacency, alpha):
    proba = alpha / alpha.sum(axis=1, keepdims=True)
    vacuity = dense_smooth(adjacency, alpha.shape[1] / alpha.sum(axis=1))
    return alpha.shape[1] / vacuity[:, None] * proba


def dense_diffusion(adjacency, alpha):
    """Personalised PageRank of the vacuity, as the sum over walks of each length."""
    looped = adjacency + np.eye(len(adjacency))
    walk = looped / looped.sum(axis=1, keepdims=True)
    start = alpha.shape[1] / alpha.sum(axis=1)
    vacuity = 0.9**10 * np.linalg.matrix_power(walk, 10) @ start
    for length in range(10):
        vacuity += 0.1 * 0.9**length * np.linalg.matrix_power(walk, length) @ start
    return (start / vacuity)[:, None] * alpha


DENSE = {
    "diffusion": dense_diffusion,
    "vacuity": dense_vacuity,
    "evidence": dense_evidence,
    "both": lambda a, alpha: dense_vacuity(a, dense_evidence(a, alpha)),
}


def test_neighbour_mean_is_the_dense_one():
    matrix = neighbour_mean(sparse.csr_array(ADJACENCY)).toarray()
    np.testing.assert_allclose(matrix, dense_mean(ADJACENCY))
    np.testing.assert_allclose(matrix.sum(axis=1), 1)


@pytest.mark.parametrize(("n_steps", "share"), [(0, 0.3), (1, 0.0), (1, 1.0), (7, 0.2)])
def test_smoothing_and_propagation_of_evidence_are_the_dense_formulas(n_steps, share):
    matrix = sparse.csr_array(ADJACENCY)
    for values in (NODES, NODES[:, 0]):
        result = smooth(matrix, values, n_steps=n_steps, keep=share)
        np.testing.assert_allclose(result, dense_smooth(ADJACENCY, values, n_steps, share))
    result = propagate_evidence(matrix, NODES, n_steps=n_steps, teleport=share)
    np.testing.assert_allclose(result, dense_evidence(ADJACENCY, NODES, n_steps, share))


@all_schemes
def test_schemes_are_the_dense_formulas_with_the_paper_s_settings(scheme):
    matrix, before = sparse.csr_array(ADJACENCY), NODES.copy()
    result = propagate(matrix, NODES, scheme)
    np.testing.assert_allclose(result, DENSE[scheme](ADJACENCY, NODES), rtol=1e-12)
    np.testing.assert_array_equal(matrix.toarray(), ADJACENCY)
    np.testing.assert_array_equal(NODES, before)
    # The node without neighbours keeps its value, and so do all without edges.
    np.testing.assert_allclose(result[8], NODES[8])
    assert np.abs(result[:8] - NODES[:8]).max() > 0.1
    np.testing.assert_allclose(propagate(sparse.csr_array((9, 9)), NODES, scheme), NODES)
    if scheme in ("diffusion", "vacuity"):  # these leave expected probabilities
        shares = (alpha / alpha.sum(axis=1, keepdims=True) for alpha in (result, NODES))
        np.testing.assert_allclose(*shares)


def test_order_of_the_two_steps_matters_and_no_scheme_changes_nothing():
    matrix = sparse.csr_array(ADJACENCY)
    swapped = dense_evidence(ADJACENCY, dense_vacuity(ADJACENCY, NODES))
    assert np.abs(propagate(matrix, NODES, "both") - swapped).max() > 1e-3
    np.testing.assert_array_equal(propagate(matrix, NODES, None), NODES)


@st.composite
def relabelled_graphs(draw):
    n = draw(st.integers(1, 8))
    edges = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=20))
    adjacency = np.zeros((n, n))
    for u, v in edges:
        if u != v:
            adjacency[u, v] = adjacency[v, u] = 1
    alpha = draw(st.lists(st.floats(1.01, 1e4), min_size=2 * n, max_size=2 * n))
    return adjacency, np.reshape(alpha, (n, 2)), draw(st.permutations(range(n)))


@all_schemes
@settings(max_examples=25)
@given(drawn=relabelled_graphs())
def test_names_of_nodes_do_not_matter_and_concentrations_stay_positive(scheme, drawn):
    adjacency, alpha, order = drawn
    result = propagate(sparse.csr_array(adjacency), alpha, scheme)
    renamed = sparse.csr_array(adjacency[np.ix_(order, order)])
    np.testing.assert_allclose(propagate(renamed, alpha[order], scheme), result[order], rtol=1e-9)
    assert (result > 0).all()
