"""Proper scores against scikit-learn and loops."""

import warnings

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss

from skuq.metrics import brier_score, negative_log_likelihood
from tests.metrics.problems import SEEDS, random_problem

SCORES = [brier_score, negative_log_likelihood]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_negative_log_likelihood_equals_sklearn_log_loss(seed, dtype):
    y_true, proba = random_problem(seed)
    proba = proba.astype(dtype)
    assert negative_log_likelihood(y_true, proba) == pytest.approx(
        log_loss(y_true, proba), rel=1e-6
    )


def test_negative_log_likelihood_of_an_excluded_label_is_finite_as_in_sklearn():
    y_true, proba = [0, 1], np.array([[0.0, 1.0], [0.5, 0.5]])
    assert negative_log_likelihood(y_true, proba) == pytest.approx(log_loss(y_true, proba))


@pytest.mark.parametrize("seed", SEEDS)
def test_brier_score_equals_a_loop_over_samples_and_classes(seed):
    y_true, proba = random_problem(seed)
    slow = sum(
        (p - (k == label)) ** 2
        for row, label in zip(proba, y_true, strict=True)
        for k, p in enumerate(row)
    )
    assert brier_score(y_true, proba) == pytest.approx(slow / len(y_true))


@pytest.mark.parametrize("seed", SEEDS)
def test_brier_score_with_two_classes_is_twice_that_of_sklearn(seed):
    y_true, proba = random_problem(seed, n_classes=2)
    assert brier_score(y_true, proba) == pytest.approx(2 * brier_score_loss(y_true, proba[:, 1]))


def test_proper_scores_of_a_perfect_predictor_are_zero():
    y_true = np.arange(12) % 3
    assert brier_score(y_true, np.eye(3)[y_true]) == 0.0
    assert negative_log_likelihood(y_true, np.eye(3)[y_true]) == 0.0


@pytest.mark.parametrize("score", SCORES)
def test_classes_give_the_column_order_of_some_or_all_labels(score):
    y_true, proba = random_problem(0)
    some = y_true != 1
    reordered = score(y_true[some], proba[some][:, ::-1], classes=[2, 1, 0])
    expected = score(y_true[some], proba[some], classes=[0, 1, 2])
    np.testing.assert_allclose(reordered, expected, rtol=1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_inputs_are_left_alone_and_nothing_is_warned_of(score):
    y_true, proba = random_problem(0)
    before = proba.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score(y_true, proba)
        score(y_true, proba.round(5) / proba.round(5).sum(axis=1, keepdims=True) * 1.00005)
    np.testing.assert_array_equal(proba, before)


@pytest.mark.parametrize("score", SCORES)
def test_wrong_probabilities_are_named(score):
    with pytest.raises(ValueError, match="must sum to 1"):
        score([0, 1], [[0.5, 0.4], [0.2, 0.8]])
