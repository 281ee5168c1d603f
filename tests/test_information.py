"""Entropies and divergences against scipy and against their identities."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy
from scipy.stats import norm

from skuq._information import (
    cross_entropy,
    decompose_expected,
    decompose_pairwise,
    decompose_selected,
    entropy,
    gaussian_entropy,
    gaussian_kl,
    gaussian_pairwise_kl,
    kl_divergence,
)


def random_log_proba(seed, *shape):
    return np.log(np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1]))


def by_torch(function, *arrays):
    return np.array([*function(*map(torch.as_tensor, arrays))])


@given(st.integers(0, 1000), st.integers(2, 6))
def test_entropy_and_divergence_agree_with_scipy(seed, n_classes):
    log_p, log_q = random_log_proba(seed, 2, 4, n_classes)
    assert entropy(log_p) == pytest.approx(scipy_entropy(np.exp(log_p), axis=-1))
    expected = scipy_entropy(np.exp(log_p), np.exp(log_q), axis=-1)
    assert kl_divergence(log_p, log_q) == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(by_torch(entropy, log_p), entropy(log_p), atol=1e-12)
    for function in (cross_entropy, kl_divergence):
        expected = function(log_p, log_q)
        np.testing.assert_allclose(by_torch(function, log_p, log_q), expected, atol=1e-12)


def test_impossible_outcomes_contribute_nothing():
    with np.errstate(divide="ignore"):
        log_p = np.log([1.0, 0.0])
    assert entropy(log_p) == 0
    assert kl_divergence(log_p, np.log([0.5, 0.5])) == pytest.approx(np.log(2))
    assert kl_divergence(np.log([0.5, 0.5]), log_p) == np.inf


@given(st.integers(0, 1000))
def test_decompositions_add_up_and_are_their_definitions_by_numpy_and_torch(seed):
    log_reference, log_proba = random_log_proba(seed + 1, 6, 4), random_log_proba(seed, 6, 5, 4)
    weights = np.random.default_rng(seed).dirichlet(np.ones(5), 6)
    aleatoric, epistemic = expected = decompose_expected(log_proba, weights)
    average = np.einsum("nm,nmk->nk", weights, np.exp(log_proba))
    assert aleatoric + epistemic == pytest.approx(scipy_entropy(average, axis=-1))
    # Eq. 1 states the epistemic part as an expected divergence from the average as well.
    divergence = kl_divergence(log_proba, np.log(average)[:, None])
    assert epistemic == pytest.approx((weights * divergence).sum(-1), abs=1e-12)
    np.testing.assert_allclose(by_torch(decompose_expected, log_proba, weights), expected)

    selected = decompose_selected(log_reference, log_proba, weights)
    total = (weights * cross_entropy(log_reference[:, None], log_proba)).sum(-1)
    assert sum(selected) == pytest.approx(total)
    found = by_torch(decompose_selected, log_reference, log_proba, weights)
    np.testing.assert_allclose(found, selected)

    pairwise = decompose_pairwise(log_proba, weights)
    total, divergence = np.zeros((2, 6))
    for i, j in product(range(5), repeat=2):
        both = weights[:, i] * weights[:, j]
        total += both * cross_entropy(log_proba[:, i], log_proba[:, j])
        divergence += both * scipy_entropy(*np.exp(log_proba[:, [i, j]]).swapaxes(0, 1), axis=1)
    assert pairwise.epistemic == pytest.approx(divergence)
    assert sum(pairwise) == pytest.approx(total)
    assert (pairwise.epistemic >= epistemic).all()
    np.testing.assert_allclose(by_torch(decompose_pairwise, log_proba, weights), pairwise)


def test_models_that_exclude_a_class_count_only_with_weight():
    with np.errstate(divide="ignore"):
        log_proba = np.log([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0], [1.0, 0.0, 0.0]])
    log_p, log_q = np.log([[0.5, 0.5], [0.9, 0.1]])
    both_ways = kl_divergence(log_p, log_q) + kl_divergence(log_q, log_p)
    for weights, expected in (
        ([0.5, 0.5, 0.0], both_ways / 4),
        ([0.0, 0.5, 0.5], np.inf),
        ([0.0, 0.0, 1.0], 0.0),
    ):
        for array in (np.asarray, torch.as_tensor):
            parts = decompose_pairwise(array(log_proba), array(np.array(weights)))
            assert float(parts.epistemic) == pytest.approx(expected)
    log_proba = np.array([[np.log(0.5), np.log(0.5)], [0.0, -np.inf]])
    for weights, expected in (([1.0, 0.0], 0.0), ([0.5, 0.5], np.inf)):
        parts = decompose_selected(log_proba[0], log_proba, np.array(weights))
        assert parts.epistemic == expected


@given(st.integers(0, 1000))
def test_pairs_of_normal_distributions_are_summed_in_closed_form(seed):
    rng = np.random.default_rng(seed)
    mean, variance = rng.normal(size=(6, 5)), np.exp(rng.normal(size=(6, 5)))
    weights = rng.dirichlet(np.ones(5), 6)
    pairs = gaussian_kl(mean[:, :, None], variance[:, :, None], mean[:, None], variance[:, None])
    found = gaussian_pairwise_kl(mean, variance, weights)
    assert found == pytest.approx(np.einsum("ni,nj,nij->n", weights, weights, pairs))
    np.testing.assert_allclose(by_torch(gaussian_pairwise_kl, mean, variance, weights), found)
    alike = gaussian_pairwise_kl(mean[:, :1], variance[:, :1], np.ones((6, 1)))
    assert (alike >= 0).all()
    np.testing.assert_allclose(alike, 0, atol=1e-15)


def test_models_that_agree_leave_no_epistemic_uncertainty():
    log_reference = random_log_proba(3, 4, 3)
    same, weights = np.repeat(log_reference[:, None], 6, axis=1), np.full((4, 6), 1 / 6)
    for found in (
        decompose_expected(same, weights),
        decompose_pairwise(same, weights),
        decompose_selected(log_reference, same, weights),
    ):
        assert found.epistemic == pytest.approx(0, abs=1e-12)


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0.2, 5), st.floats(0.2, 5))
def test_normal_distributions_agree_with_integrals(mean_p, mean_q, sd_p, sd_q):
    y = np.linspace(mean_p - 12 * sd_p, mean_p + 12 * sd_p, 4001)
    p, log_p, log_q = norm.pdf(y, mean_p, sd_p), norm.logpdf(y, mean_p, sd_p), norm(mean_q, sd_q)
    assert gaussian_entropy(np.array(sd_p**2)) == pytest.approx(np.trapezoid(-p * log_p, y))
    divergence = np.trapezoid(p * (log_p - log_q.logpdf(y)), y)
    found = gaussian_kl(*map(np.array, (mean_p, sd_p**2, mean_q, sd_q**2)))
    assert found == pytest.approx(divergence, abs=1e-9)


def test_normal_distributions_by_numpy_and_torch_are_the_same_and_never_diverge_negatively():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(2, 50)), np.exp(rng.normal(size=(2, 50)))
    for function, args in (
        (gaussian_kl, (mean[0], variance[0], mean[1], variance[1])),
        (gaussian_entropy, (variance,)),
    ):
        np.testing.assert_allclose(by_torch(function, *args), function(*args), rtol=1e-12)
    nearly = gaussian_kl(mean, variance, mean, variance * (1 + 1e-9 * rng.normal(size=(2, 50))))
    assert (nearly >= 0).all()
    assert nearly.max() < 1e-15


def test_gradients_are_those_of_the_formulas_and_finite_at_impossible_outcomes():
    var_p, var_q = (torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (0.7, 2.0))
    gaussian_entropy(var_p).backward()
    assert var_p.grad.item() == pytest.approx(1 / 1.4)
    gaussian_kl(torch.zeros(1), var_p.detach(), torch.ones(1), var_q).backward()
    assert var_q.grad.item() == pytest.approx((1 / 2 - (0.7 + 1) / 4) / 2)
    logits = torch.tensor([800.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    entropy(logits.log_softmax(-1)).backward()
    np.testing.assert_allclose(logits.grad, 0, atol=1e-12)
