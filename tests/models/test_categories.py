"""Columns that a learner takes for categories."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from skuq.features import category_columns

NAMES = ["age", "town", "trade"]
CODES = np.c_[np.linspace(20, 60, 40), np.arange(40) % 4, np.arange(40) % 3]
BOOSTING = HistGradientBoostingClassifier
BY_POSITION = BOOSTING(categorical_features=[1])
REDUCED = make_pipeline(PCA(2), clone(BY_POSITION)).fit(CODES, np.arange(40) % 2)
INNER = make_pipeline(SimpleImputer(), OrdinalEncoder())
TABLE = make_column_transformer((StandardScaler(), ["age"]), (INNER, ["trade"]))
SLICE = make_column_transformer((OneHotEncoder(), slice(1, 3)))


@pytest.mark.parametrize(
    ("estimator", "columns"),
    [
        (None, []),
        (LogisticRegression(), []),
        (BOOSTING(), []),
        (BY_POSITION, [1]),
        (BOOSTING(categorical_features=[-1]), [2]),
        (BOOSTING(categorical_features=["town", "trade"]), [1, 2]),
        (BOOSTING(categorical_features=[False, True, False]), [1]),
        (GridSearchCV(make_pipeline(SimpleImputer(), BY_POSITION), {}), [1]),
        (FrozenEstimator(BY_POSITION), [1]),
        (make_pipeline(SelectKBest(k=2), BY_POSITION), []),  # which columns, nobody knows yet
        (FrozenEstimator(REDUCED), []),
        (make_pipeline(OneHotEncoder(), LogisticRegression()), [0, 1, 2]),
        (make_pipeline(TABLE, LogisticRegression()), [2]),
        (SLICE, []),  # no learner
        (make_pipeline(SLICE, LogisticRegression()), [1, 2]),
    ],
)
def test_categories_are_what_the_learner_or_an_encoder_takes_for_such(estimator, columns):
    assert category_columns(estimator, NAMES) == columns


def test_ways_of_other_libraries_to_name_categories():
    xgboost = pytest.importorskip("xgboost")
    lightgbm = pytest.importorskip("lightgbm")
    y = np.arange(40) % 2
    told = lightgbm.LGBMClassifier(n_estimators=1, verbose=-1)
    for estimator in (
        xgboost.XGBClassifier(feature_types=["q", "c", "q"], enable_categorical=True),
        lightgbm.LGBMClassifier(categorical_feature=[1]),
        FrozenEstimator(told.fit(CODES, y, categorical_feature=[1])),
    ):
        assert category_columns(estimator, NAMES) == [1]
