"""Boosted trees for a few rows: bit for bit what scikit-learn predicts."""

import gc
import weakref

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from skuq.models._few_rows import for_few_rows

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(300, 4))
X[RANDOM.random(X.shape) < 0.1] = np.nan
CODED = np.column_stack([np.arange(300) % 5, X[:, 0]])


def predictions(trees, rows):
    return trees.predict_proba(rows) if hasattr(trees, "classes_") else trees.predict(rows)


@pytest.mark.parametrize("n_classes", [2, 3, None])
@pytest.mark.parametrize("grown", [{}, {"max_leaf_nodes": None, "max_iter": 7}, {"max_depth": 1}])
def test_a_few_rows_are_predicted_as_by_scikit_learn(n_classes, grown):
    target = np.nan_to_num(X).sum(axis=1)
    if n_classes is None:
        trees = HistGradientBoostingRegressor(loss="poisson", **grown).fit(X, np.exp(target))
    else:
        cuts = np.quantile(target, np.arange(1, n_classes) / n_classes)
        trees = HistGradientBoostingClassifier(**grown).fit(X, np.digitize(target, cuts))
    for iteration in trees._predictors[::2]:  # the limits that columns with -inf may have
        iteration[0].nodes["num_threshold"][0] = np.nan
    joined = for_few_rows(trees)
    assert joined is not trees
    for rows in (X[:1], X[:32], X[-32:], np.full((1, 4), np.inf), np.asfortranarray(X[:9])):
        np.testing.assert_array_equal(predictions(joined, rows), predictions(trees, rows))


def test_trees_that_are_fitted_again_or_further_are_joined_again():
    trees = HistGradientBoostingRegressor(early_stopping=False)
    for n_trees, y, further in ((5, X[:, 1], False), (9, X[:, 1], True), (9, X[:, 2], False)):
        trees.set_params(max_iter=n_trees, warm_start=further)
        trees.fit(X[~np.isnan(y)], y[~np.isnan(y)])
        np.testing.assert_array_equal(for_few_rows(trees).predict(X[:5]), trees.predict(X[:5]))


def test_trees_with_categories_deep_ones_and_other_learners_stay_as_they_are(monkeypatch):
    trees = HistGradientBoostingRegressor(categorical_features=[0], max_iter=5)
    trees.fit(CODED, (CODED[:, 0] == 3).astype(float))
    deep = HistGradientBoostingRegressor(max_iter=5).fit(CODED, CODED[:, 0] ** 2)
    monkeypatch.setattr("skuq.models._few_rows._DEEPEST", 1)
    for model in (trees, deep, X):
        assert for_few_rows(model) is model


@pytest.mark.parametrize("options", [{"scoring": "accuracy"}, {"categorical_features": [0]}])
def test_models_that_nobody_uses_are_forgotten(options):
    trees = HistGradientBoostingClassifier(early_stopping=True, max_iter=5, **options)
    trees.fit(CODED, CODED[:, 0] == 3)
    for_few_rows(trees).predict(CODED[:3])
    there = weakref.ref(trees)
    del trees
    gc.collect()
    assert there() is None
