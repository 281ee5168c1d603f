"""Scores of logits against closed forms."""

import numpy as np
import pytest
import torch

from skuq.evidential.comparison._scores import logit_score

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
