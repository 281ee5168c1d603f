"""Out-of-fold uncertainty against a loop over the folds."""

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from sklearn import config_context
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import Uncertainty, cross_val_predict_uncertainty, predict_uncertainty
from tests.metrics.problems import EntropicLogisticRegression, noisy_problem


def pipeline():
    return make_pipeline(StandardScaler(), EntropicLogisticRegression())


def slow_loop(X, y, splits, **params):
    parts = np.full((3, len(X)), np.nan)
    for train, test in splits:
        fold = {key: value[train] for key, value in params.items()}
        model = pipeline().fit(X[train], y[train], **fold)
        parts[:, test] = predict_uncertainty(model, X[test]).parts
    return Uncertainty(*parts)


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_each_row_is_asked_of_a_model_that_was_not_trained_on_it(n_jobs):
    X, y = noisy_problem()
    expected = slow_loop(X, y, StratifiedKFold(3).split(X, y))  # the default of a classifier
    frame = pd.DataFrame(X, index=[f"row {i}" for i in range(len(X))])
    with parallel_config("threading"):
        u = cross_val_predict_uncertainty(pipeline(), frame, y, cv=3, n_jobs=n_jobs)
    np.testing.assert_allclose(list(u), list(expected), rtol=1e-9)  # frames lie otherwise in memory
    pd.testing.assert_index_equal(u.index, frame.index)


def test_groups_and_fit_parameters_are_split_as_the_rows_are():
    X, y = noisy_problem()
    groups, weight = np.arange(len(y)) % 3, np.random.default_rng(0).exponential(size=len(y))
    name = "entropiclogisticregression__sample_weight"
    expected = slow_loop(X, y, LeaveOneGroupOut().split(X, y, groups), **{name: weight})
    settings, params = {"cv": LeaveOneGroupOut()}, {name: weight}
    u = cross_val_predict_uncertainty(pipeline(), X, y, groups=groups, params=params, **settings)
    assert u == expected
    with config_context(enable_metadata_routing=True):
        model = pipeline()
        model[0].set_fit_request(sample_weight=False)
        model[-1].set_fit_request(sample_weight=True)
        routed = {"sample_weight": weight, "groups": groups}
        assert cross_val_predict_uncertainty(model, X, y, params=routed, **settings) == expected


def test_a_search_inside_is_walked_through():
    X, y = noisy_problem()
    search = GridSearchCV(pipeline(), {"entropiclogisticregression__C": [1.0]}, cv=2)
    expected = slow_loop(X, y, StratifiedKFold(3).split(X, y))
    assert cross_val_predict_uncertainty(search, X, y, cv=StratifiedKFold(3)) == expected


def test_an_estimator_without_uncertainty_is_named():
    with pytest.raises(TypeError, match="StandardScaler"):
        cross_val_predict_uncertainty(StandardScaler(), *noisy_problem())
