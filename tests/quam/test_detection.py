"""What the uncertainty of QUAM finds: wrong predictions, unusual rows and other kinds of inputs."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from torch import nn

from skuq import QUAMClassifier, QUAMRegressor
from skuq.datasets import load_digits_with_ood
from skuq.metrics import detection_metrics
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch, make_pool

LEARNERS = {
    # 32 bins: with sample weights, scikit-learn computes the quantile of each bin on its own.
    "boosting": HistGradientBoostingClassifier(max_iter=15, max_bins=32, random_state=0),
    "forest": RandomForestClassifier(20, random_state=0),
    "logistic": LogisticRegression(),
    "network": MLPClassifier((20,), max_iter=40, learning_rate_init=0.01, random_state=0),
}


@pytest.fixture(scope="module")
def noisy():
    """Two classes, one label of ten at random: many predictions are wrong, for two reasons."""
    X, y = make_classification(3000, 10, n_informative=5, flip_y=0.1, class_sep=0.8, random_state=0)
    return train_test_split(X, y, train_size=1000, random_state=0)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("name", LEARNERS)
def test_total_ranks_wrong_predictions_about_as_well_as_the_confidence_does(noisy, name):
    X, X_test, y, y_test = noisy
    few = partial(make_pool, n_inputs=500, random_state=0)
    search = PoolSearch(n_steps=100, pool=few) if name == "network" else RefitSearch(pool=few)
    ahead = []
    # One seed of a forest is .014 below to .022 above its confidence.
    for seed in range(2 if name == "forest" else 1):
        quam = QUAMClassifier(LEARNERS[name], search=search, random_state=seed).fit(X, y)
        confidence = quam.predict_proba(X_test).max(axis=1)
        wrong = quam.predict(X_test) != y_test
        found = roc_auc_score(wrong, quam.predict_uncertainty(X_test).total)
        ahead.append(found - roc_auc_score(wrong, -confidence))
    assert np.mean(ahead) > -0.01


def test_cheap_and_full_search_detect_ood_inputs_alike():
    """Moving the last layers on cached features gives away at most 0.005 of AUROC here."""
    pytest.importorskip("PIL")  # for the photographs among the out-of-distribution inputs
    data = load_digits_with_ood(n_test=10, n_ood=10, random_state=0)
    X, y = torch.tensor(data.X_train).float(), torch.tensor(data.y_train)
    torch.manual_seed(0)
    layers = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
    net = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X), y).backward()
        optimizer.step()
    auroc = {}
    for name, parameters in (("full", "all"), ("cheap", lambda name, _: name[0] in "24")):
        search = PointwiseSearch(n_steps=60, parameters=parameters, train_batch_size=64)
        quam = QUAMClassifier(net, search=search, n_targets=3).fit(X.numpy(), data.y_train)
        known, ood = (
            quam.predict_uncertainty(rows.astype(np.float32)).epistemic
            for rows in (data.X_test, data.ood["inverted"])
        )
        auroc[name] = detection_metrics(known, ood).auroc
    assert auroc["full"] > 0.95
    assert auroc["cheap"] == pytest.approx(auroc["full"], abs=0.005)


PACKAGES = {
    "lightgbm": ("LGBM", {"verbose": -1, "num_leaves": 8}),
    "xgboost": ("XGB", {"enable_categorical": True, "tree_method": "hist"}),
}


def learner(package, task):
    """A small learner that takes pandas' categories."""
    prefix, options = PACKAGES[package]
    options |= {"n_estimators": 20, "max_depth": 4, "n_jobs": 1, "random_state": 0}
    return getattr(pytest.importorskip(package), prefix + task)(**options)


@pytest.fixture(scope="module")
def table():
    """Numbers, some of them missing, a category, and two classes."""
    random = np.random.default_rng(0)
    n = 500
    hours = np.where(random.uniform(size=n) < 0.1, np.nan, random.normal(40, 5, n))
    town = pd.Categorical(random.choice(["Graz", "Linz", "Ulm"], n))
    X = pd.DataFrame({"age": random.uniform(20, 60, n), "hours": hours, "town": town})
    score = (X["age"] - 40) / 10 + (X["town"] == "Linz") + random.normal(0, 0.5, n)
    return X, (score > 0).to_numpy().astype(int), score.to_numpy()


def detection(quam, X):
    """AUROC of ages in months by the epistemic part."""
    ordinary = quam.predict_uncertainty(X).epistemic
    unusual = quam.predict_uncertainty(X.assign(age=12 * X["age"])).epistemic
    return roc_auc_score(np.repeat([0, 1], len(X)), np.concatenate([ordinary, unusual]))


@pytest.mark.parametrize(("package", "frozen"), [("lightgbm", False), ("xgboost", True)])
def test_boosted_classifiers_with_missing_numbers_and_categories(table, package, frozen):
    X, y, _ = table
    estimator = learner(package, "Classifier")
    expected = clone(estimator).fit(X[:400], y[:400])
    given = FrozenEstimator(expected) if frozen else estimator
    quam = QUAMClassifier(given, random_state=0).fit(X[:400], y[:400])
    rows = X[400:]
    np.testing.assert_allclose(quam.predict_proba(rows), expected.predict_proba(rows), rtol=1e-5)
    assert detection(quam, rows) > 0.95


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("package", ["lightgbm", "xgboost"])
def test_boosted_regressors_with_missing_numbers_and_categories(table, package):
    X, _, y = table
    quam = QUAMRegressor(learner(package, "Regressor"), noise_cv=2, random_state=0)
    assert detection(quam.fit(X[:400], y[:400]), X[400:]) > 0.95
