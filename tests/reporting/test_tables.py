"""Sentences of the report on a table, where numbers alone would mislead."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from skuq import CalibrationAuditor
from skuq.reporting._tables import (
    _audit_sentence,
    _best,
    _explained,
    _Score,
    _standard_error,
    _useless_guess,
    _useless_mean,
)

NAMES = ("low confidence", "total uncertainty", "epistemic uncertainty")


@pytest.mark.parametrize(
    ("aurocs", "n_wrong", "text"),
    [
        ((0.6, 0.7, 0.5), 400, "total uncertainty finds them best"),
        (
            (0.6, 0.7, 0.5),
            10,
            "low confidence and total uncertainty find them about equally well (within a standard "
            "error)",
        ),
        (
            (0.769, 0.776, 0.5),
            39,
            "low confidence and total uncertainty find them about equally well (within a standard "
            "error)",
        ),
        ((0.7, 0.7, 0.5), 10**6, "low confidence and total uncertainty find them about equally"),
    ],
)
def test_scores_that_so_few_errors_cannot_tell_apart_are_named_together(aurocs, n_wrong, text):
    scores = [_Score(n, [], auroc, 0.1) for n, auroc in zip(NAMES, aurocs, strict=True)]
    assert _best(scores, n_wrong, 5 * n_wrong).startswith(text)


def test_the_standard_error_is_the_spread_of_aurocs_of_exponential_scores():
    random, shift = np.random.default_rng(0), 3.0
    n_wrong, n_right = 40, 90
    wrong, right = (
        random.exponential(scale, size=(3000, n)) for scale, n in ((shift, n_wrong), (1.0, n_right))
    )
    aurocs = (wrong[:, :, None] > right[:, None]).mean(axis=(1, 2))
    expected = _standard_error(shift / (1 + shift), n_wrong, n_right)
    assert aurocs.std() == pytest.approx(expected, rel=0.05)


def audited(n_rows, accuracy):
    """An audit of a model that is sure by 80 %, and right as often as is said."""
    labels = np.arange(n_rows) >= accuracy * n_rows
    proba = np.tile([0.8, 0.2], (n_rows, 1))
    return CalibrationAuditor.from_predictions(labels.astype(int), proba)


def test_an_audit_that_chance_passed_says_what_it_would_not_have_found():
    sentence = _audit_sentence(audited(100, 0.88))
    assert sentence.startswith("Passed: the differences between confidence and accuracy are within")
    assert "percentage points in a range of confidence may not be found." in sentence
    assert _audit_sentence(audited(10, 0.9)).count("of any size") == 1
    assert "differ by at most the tolerated" in _audit_sentence(audited(100, 0.8))
    assert _audit_sentence(audited(1000, 0.4)).startswith("Failed")


@pytest.mark.parametrize(
    ("prediction", "first", "text"),
    [
        ([1.0, 2.0, 3.5], "", ", and explains 87.5% of the variance"),
        ([3.0, 2.0, 1.0], "The model is no better than always predicting the mean", ""),
        ([2.0, 2.0, 2.0], "The model is no better than always predicting the mean", ""),
    ],
)
def test_a_model_that_is_worse_than_the_mean_is_not_to_be_used(prediction, first, text):
    frame = pd.DataFrame({"label": [1.0, 2.0, 3.0], "prediction": prediction})
    assert _explained(frame) == text
    assert _useless_mean(frame) == (f"{first}: do not use it. " if first else "")


@pytest.mark.parametrize("n_rows", [1, 3])
def test_nothing_is_explained_where_targets_do_not_differ(n_rows):
    frame = pd.DataFrame({"label": [0.1] * n_rows, "prediction": [3.0] * n_rows})
    assert _explained(frame) == _useless_mean(frame) == ""


@pytest.mark.parametrize(
    ("labels", "sure", "is_useless"),
    [("aabb", 0.8, False), ("aabb", 0.5, True), ("aabb", 0.3, True), ("aaaa", 0.9, False)],
)
def test_a_model_that_is_no_better_than_guessing_is_not_to_be_used(labels, sure, is_useless):
    proba = np.array([[sure, 1 - sure] if label == "a" else [1 - sure, sure] for label in labels])
    model = SimpleNamespace(
        held_out_=pd.DataFrame({"label": list(labels)}), held_out_proba_=proba, classes_=["a", "b"]
    )
    assert _useless_guess(model).startswith("The model is no better than guessing") == is_useless
