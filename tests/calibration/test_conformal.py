"""Conformal p-values and limits: by brute force, and by what they promise."""

import itertools
import math
from functools import cache
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.stats import binom

from skuq.calibration import conformal_limit, conformal_p_values
from skuq.labels import proportional_order


def test_p_values_are_shares_of_held_out_scores_that_are_at_least_as_large():
    random = np.random.default_rng(0)
    scores, held = random.integers(0, 9, size=20) / 9, random.integers(0, 9, size=15) / 9
    by_hand = [(1 + sum(other >= mine for other in held)) / 16 for mine in scores]
    found = conformal_p_values(scores, held)
    np.testing.assert_allclose(found, by_hand)
    for dtype in (object, np.float32):
        arrays = (9 * scores).astype(dtype), (9 * held).astype(dtype)
        np.testing.assert_array_equal(conformal_p_values(*arrays), found)
    labels = np.array(["a", "b", "c"])[np.arange(15) % 3]
    by_class = [conformal_p_values(scores, held[labels == label]) for label in "abc"]
    found = conformal_p_values(scores, held, y_held_out=labels)
    np.testing.assert_array_equal(found, np.max(by_class, axis=0))
    held = np.array([0.3, -0.2])  # a sample is as unusual as itself whatever the rounding
    np.testing.assert_allclose(conformal_p_values(held + 1e-12, held), [2 / 3, 1.0])


@pytest.mark.parametrize("coverage", [0.05, 0.28, 0.5, 0.8, 0.9, 0.95])
def test_a_limit_is_the_smallest_score_that_a_new_sample_exceeds_rarely_enough(coverage):
    """Among n + 1 exchangeable scores, the new one exceeds the k-th held-out score in n + 1 - k."""
    for n in range(41):
        held = np.random.default_rng(n).permutation(n) / 7
        enough = [k for k in range(1, n + 1) if (n + 1 - k) / (n + 1) <= 1 - coverage + 1e-9]
        expected = np.sort(held)[enough[0] - 1] if enough else math.inf
        assert conformal_limit(held, coverage) == expected
        assert (expected == math.inf) == (n + 1e-9 < coverage / (1 - coverage))


@cache
def held_out_of_the_rare_class(n_rare, n=95, n_held=19):
    """Distribution of the number of held-out rows of a class, by a grid of all that is drawn."""
    labels = np.arange(n) < n_rare
    other, rare = ((np.arange(size) + 0.5) / size for size in (2, 50))
    counts = np.zeros(n_held + 1)
    for pair in itertools.product(other, rare):
        random = Mock(uniform=Mock(side_effect=pair))  # one number for each class
        order = proportional_order(labels, np.arange(n), random)
        counts[labels[order[:n_held]].sum()] += 1 / (len(other) * len(rare))
    return counts


def share_flagged(share, level, held_out=held_out_of_the_rare_class, n=95, n_held=19):
    """Probability of a p-value of `level` or less for a new row, when all is enumerated. The worst
    case: each row of a class, of which `share` are, is more unusual than all others. The table has
    no class of a single row, which is refused."""
    rank = round(level * (n_held + 1))
    numbers = np.setdiff1d(np.arange(n + 1), [1, n - 1])
    weights = binom.pmf(numbers, n, share)
    rare = np.arange(n_held + 1)
    of_rare = np.clip(rank / (rare + 1), 0, 1)  # its rank among its own class is uniform
    of_others = np.clip((rank - rare) / (n_held - rare + 1), 0, 1)
    flagged = share * of_rare + (1 - share) * of_others
    likely = weights > 1e-7
    found = [held_out(number) @ flagged for number in numbers[likely]]
    return float(np.average(found, weights=weights[likely]))


@pytest.mark.parametrize(
    ("level", "low", "high", "to_nearest"),
    [(0.05, 0.0360, 0.0496, 0.0534), (0.1, 0.0829, 0.1004, 0.1038)],
)
def test_rows_held_out_by_class_keep_the_rate_that_the_guide_states(level, low, high, to_nearest):
    found = [share_flagged(share, level) for share in (0.01, 0.02, 0.05, 0.1, 0.15, 0.3, 0.5)]
    assert (min(found), max(found)) == (pytest.approx(low, abs=5e-4), pytest.approx(high, abs=5e-4))
    # With numbers rounded to the nearest, no row of a class of few would ever be held out.
    rounded = share_flagged(0.01, level, lambda n_rare: np.eye(20)[round(19 * n_rare / 95)])
    assert rounded == pytest.approx(to_nearest, abs=5e-5)


@pytest.mark.parametrize("n_rare", [2, 3, 12, 40])
def test_a_row_of_a_rare_class_is_as_likely_held_out_as_any_other(n_rare):
    counts = held_out_of_the_rare_class(n_rare)
    expected = counts @ np.arange(len(counts)) / n_rare
    assert expected == pytest.approx(19 / 95, abs=0.01)  # the grid's step
    assert (np.flatnonzero(counts) >= np.floor(n_rare / 5) - 1e-9).all()
    assert (np.flatnonzero(counts) <= np.ceil(n_rare / 5)).all()
