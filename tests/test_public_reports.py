"""Situations that users of neighbouring packages reported in public, tried here.

Each test says in its docstring which kind of report it stands for, with the address of one. Whoever
finds a further report adds a test below the heading of its kind.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import QUAMClassifier, explain

# --- order of labels, and labels of rows ----------------------------------------------------------


# --- parts of the uncertainty that nobody measured ------------------------------------------------


# --- half precision -------------------------------------------------------------------------------


# --- explanations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "learner", [HistGradientBoostingClassifier(max_iter=20), LogisticRegression()]
)
@pytest.mark.parametrize("inside", [True, False])
def test_an_explanation_names_a_column_that_the_model_never_gets(learner, inside):
    """Importances of columns that a model ignores (scikit-learn/scikit-learn#32651)."""
    X, y = load_iris(return_X_y=True, as_frame=True)
    given = make_column_transformer((StandardScaler(), list(X.columns)))
    X = X.assign(row_number=np.random.default_rng(0).permutation(len(X)))
    if inside:
        quam = QUAMClassifier(make_pipeline(given, learner), random_state=0).fit(X, y)
        found = quam.explain(X[::3])
    else:
        quam = make_pipeline(given, QUAMClassifier(learner, random_state=0)).fit(X, y)
        found = explain(quam, X[::3], X)
    named = found.most_unusual()
    assert not any("row_number" in names for names in named)
    assert [] in named  # of an ordinary row, no column stands out
    assert found.to_frame().index.equals(X.index[::3])


# --- sample weights and where they reach ----------------------------------------------------------


# --- reinforcement learning -----------------------------------------------------------------------


# --- units of features, and bounds ----------------------------------------------------------------


# --- modules of torch as people write them --------------------------------------------------------


# --- empty, odd and large inputs ------------------------------------------------------------------


# --- this file ------------------------------------------------------------------------------------


def test_each_test_names_its_kind_of_report():
    """A test without a word on what was reported cannot be added to."""
    for name, test in globals().items():
        if name.startswith("test_"):
            assert re.match(r"\S.*\.$", test.__doc__ or ""), name
