"""Scores of logits and of several models, against closed forms and plain loops."""

import numpy as np
import pytest
import torch

from skuq.evidential.comparison._scores import ModelAverage, in_halves, logit_score

LOGITS = torch.tensor([[0.0, 0.0, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0], [np.log(3.0), 0.0, -1e4, -1e4]])


def test_entropy():
    expected = [np.log(4), 0, -0.75 * np.log(0.75) - 0.25 * np.log(0.25)]
    np.testing.assert_allclose(logit_score(LOGITS, "entropy"), expected, atol=1e-7)


def test_largest_probability():
    np.testing.assert_allclose(logit_score(LOGITS, "max-score"), [0.75, 0, 0.25], atol=1e-7)


def test_energy_is_lower_for_larger_logits():
    np.testing.assert_allclose(
        logit_score(LOGITS, "energy"), [-np.log(4), -50, -np.log(4)], rtol=1e-6
    )
    np.testing.assert_allclose(logit_score(LOGITS + 2, "energy"), logit_score(LOGITS, "energy") - 2)


@pytest.mark.parametrize("score", ["entropy", "max-score", "energy"])
def test_logits_beyond_the_range_of_the_exponential(score):
    assert np.isfinite(logit_score(torch.tensor([[1e4, -1e4], [-1e4, -1e4]]), score)).all()


def test_halves_add_up():
    score = np.array([-3.7, 0.1, 2.3])
    u = in_halves(score)
    np.testing.assert_array_equal(u.total, score)
    np.testing.assert_array_equal(u.aleatoric, u.epistemic)


@pytest.fixture
def proba():
    drawn = np.random.default_rng(0).dirichlet([0.3, 0.3, 0.3], size=(5, 7))
    drawn[0, 0] = [1, 0, 0]
    return drawn


def entropy(p):
    return -sum(x * np.log(x) for x in p if x > 0)


def test_average_of_models_against_a_loop(proba):
    average = ModelAverage.of(proba)
    for i in range(proba.shape[1]):
        mean = sum(proba[:, i]) / len(proba)
        expected = sum(entropy(p) for p in proba[:, i]) / len(proba)
        np.testing.assert_allclose(average.proba[i], mean)
        np.testing.assert_allclose(average.expected_entropy[i], expected)
        np.testing.assert_allclose(average.information[i], entropy(mean) - expected)


def test_measures_of_an_average(proba):
    average = ModelAverage.of(proba).at(np.array([3, 0]))
    mean = proba.mean(axis=0)[[3, 0]]
    np.testing.assert_allclose(average.uncertainty("score").total, 1 - mean.max(axis=1))
    information = average.uncertainty("information")
    np.testing.assert_allclose(information.total, [entropy(p) for p in mean])
    assert (information.epistemic > 0).all()
