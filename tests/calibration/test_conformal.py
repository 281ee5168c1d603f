"""Conformal p-values: by brute force, and by what they promise."""

import numpy as np
import pandas as pd
import pytest

from skuq.calibration import conformal_p_values


def test_p_values_are_shares_of_held_out_scores_that_are_at_least_as_large():
    random = np.random.default_rng(0)
    scores, held = random.integers(0, 9, size=20) / 9, random.integers(0, 9, size=15) / 9
    by_hand = [(1 + sum(other >= mine for other in held)) / 16 for mine in scores]
    np.testing.assert_allclose(conformal_p_values(scores, held), by_hand)


def test_p_values_with_classes_are_the_largest_of_any_class():
    random = np.random.default_rng(0)
    scores, held = random.normal(size=20), random.normal(size=15)
    labels = np.array(["a", "b", "c"])[np.arange(15) % 3]
    by_class = [conformal_p_values(scores, held[labels == label]) for label in "abc"]
    found = conformal_p_values(scores, held, y_held_out=labels)
    np.testing.assert_array_equal(found, np.max(by_class, axis=0))


@pytest.mark.parametrize("by_class", [False, True])
def test_false_alarms_keep_their_rate_where_classes_have_other_shares_only_by_class(by_class):
    random = np.random.default_rng(0)
    rates = []
    for _ in range(300):
        y = random.uniform(size=60) < 0.3  # true: the class with large scores
        held = random.exponential(1 + 2 * y)
        new = random.exponential(3, size=200)  # of this class alone
        p_values = conformal_p_values(new, held, y_held_out=y if by_class else None)
        rates.append((p_values <= 0.2).mean())
    assert (np.mean(rates) <= 0.2) == by_class
    assert np.mean(rates) > 0.1


def test_a_sample_is_as_unusual_as_itself_whatever_the_rounding():
    held = np.array([0.3, -0.2])
    np.testing.assert_allclose(conformal_p_values(held + 1e-12, held), [2 / 3, 1.0])


@pytest.mark.parametrize(
    ("scores", "held", "named"),
    [
        ([[0.1], [0.2]], [0.1], "`scores`"),
        ([0.1, np.nan], [0.1], "`scores`"),
        ([0.1], [0.1, np.nan], "`held_out`"),
        ([0.1], [], "minimum of 1"),
        ([np.inf], [0.1], "Input scores contains infinity"),
    ],
)
def test_scores_that_are_none_are_refused(scores, held, named):
    with pytest.raises(ValueError, match=named):
        conformal_p_values(scores, held)


def test_there_is_one_class_for_each_held_out_score():
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        conformal_p_values([0.1], [0.1, 0.2], y_held_out=[0])


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, np.nan],
        ["a", "b", None],
        pd.Series([0, 1, None], dtype="Int64"),
        pd.Series(["a", "b", None], dtype="string"),
    ],
)
def test_every_held_out_sample_has_a_class(labels):
    with pytest.raises(ValueError, match=r"`y_held_out` must hold only .* got missing"):
        conformal_p_values([0.1], [0.1, 0.2, 0.3], y_held_out=labels)


def test_numbers_may_be_of_any_type():
    expected = conformal_p_values([2.0, 5.0], [1.0, 2.0, 3.0])
    for dtype in (int, object, np.float32):
        arrays = np.array([2, 5], dtype), np.array([1, 2, 3], dtype)
        np.testing.assert_array_equal(conformal_p_values(*arrays), expected)
