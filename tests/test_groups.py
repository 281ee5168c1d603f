"""Groups of rows stay together in splits, and count once."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from skuq import OODDetector, QUAMClassifier, QUAMRegressor
from skuq import cross_val_predict_uncertainty as cross_predict
from skuq.calibration import conformal_limit, conformal_p_values
from skuq.validation import independent_counts, whole_groups
from tests.tables.toy import ToyRegressor


def panel(n_customers, seed, n_years=5):
    """Rows of customers, with a level of their own that no column shows."""
    r = np.random.default_rng(seed)
    who = np.repeat(np.arange(n_customers) + 1000 * seed, n_years)
    a, level = r.normal(size=(2, n_customers)).round(2)
    y = np.repeat(a + 3 * level, n_years) + 0.3 * r.normal(size=len(who))
    year = np.tile(np.arange(n_years), n_customers)
    return pd.DataFrame({"who": who, "year": year, "a": np.repeat(a, n_years), "y": y})


def test_a_group_counts_once_and_rows_alone_count_as_before():
    codes, weight = np.array([0, 0, 0, 1, 2, 2]), np.array([1.0, 2, 3, 2, 0, 5])
    np.testing.assert_allclose(independent_counts(None, codes), [1 / 3] * 3 + [1] + [1 / 2] * 2)
    np.testing.assert_array_equal(independent_counts(np.full(4, 7.0)), np.ones(4))
    expected = 9**2 / (2**2 + 2**2 + 5**2)  # means of positive weights: 2, 2 and 5
    assert independent_counts(weight, codes).sum() == pytest.approx(expected)
    np.testing.assert_array_equal(whole_groups(np.arange(6) % 4 == 0, codes), codes != 1)
    scores, new = np.random.default_rng(0).normal(size=(2, 30))
    counts = np.full(30, 0.1)  # 30 rows of 3 groups limit 75 %, but not 76 %
    assert conformal_limit(scores, 0.75, counts) == scores.max()
    assert conformal_limit(scores, 0.76, counts) == np.inf
    above = (scores[:, None] >= new).sum(axis=0)
    found = conformal_p_values(new, scores, counts=counts)
    np.testing.assert_allclose(found, (1 + above / 10) / (1 + 3))


def test_a_group_is_on_one_side_of_every_split():
    known, seen, year = panel(40, 1), [], np.tile(np.arange(5), 240)[:, None]
    X, y, who = (known[names].to_numpy() for names in (["a", "year"], "y", "who"))
    quams = (QUAMRegressor(Ridge()), y), (QUAMClassifier(LogisticRegression()), y > 0)
    for model, target in quams:
        plain = model.set_params(random_state=0).fit(X, target).predict_uncertainty(X)
        assert plain != model.fit(X, target, groups=who).predict_uncertainty(X)

    class Recorder(ToyRegressor):
        def fit(self, X, y, groups=None):
            seen.append(set(groups))
            return super().fit(X, y)

    cross_predict(Recorder(), X, y, groups=who, cv=4)
    assert [len(each) for each in seen] == [30] * 4
    rows = np.repeat(np.random.default_rng(0).normal(size=(240, 6)), 5, axis=0) + 0.01 * year
    for groups, largest in ((None, 1), (who, 0.2)):
        detector = OODDetector(random_state=0).fit(rows[:200], groups=groups)
        rate = (detector.p_values(rows[200:]) <= 0.1).mean()
        assert largest - 0.5 < rate <= largest
