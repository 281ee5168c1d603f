"""Sentences of the report on a table, where numbers alone would mislead."""

import pandas as pd
import pytest

from skuq.reporting._tables import _best, _explained, _Score


@pytest.mark.parametrize(
    ("aurocs", "text"),
    [
        ((0.6, 0.7, 0.5), "total uncertainty finds"),
        ((0.7, 0.7, 0.5), "low confidence and total uncertainty find"),
    ],
)
def test_all_scores_that_are_best_are_named(aurocs, text):
    names = ("low confidence", "total uncertainty", "epistemic uncertainty")
    assert (
        _best([_Score(n, [], auroc, 0.1) for n, auroc in zip(names, aurocs, strict=True)]) == text
    )


@pytest.mark.parametrize(
    ("prediction", "text"),
    [
        ([1.0, 2.0, 3.5], ", and explains 87.5% of the variance"),
        ([3.0, 2.0, 1.0], ", and is no better than always predicting the mean"),
        ([2.0, 2.0, 2.0], ", and is no better than always predicting the mean"),
    ],
)
def test_a_model_that_is_worse_than_the_mean_explains_nothing(prediction, text):
    assert _explained(pd.DataFrame({"label": [1.0, 2.0, 3.0], "prediction": prediction})) == text


@pytest.mark.parametrize("n_rows", [1, 3])
def test_nothing_is_explained_where_targets_do_not_differ(n_rows):
    assert _explained(pd.DataFrame({"label": [0.1] * n_rows, "prediction": [3.0] * n_rows})) == ""
