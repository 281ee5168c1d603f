"""The probe without a graph: on tables and images."""

import sys
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale
from torch import nn

from skuq import EvidentialProbe, predict_uncertainty
from skuq._networks import LeNet, linear_layer
from tests.evidential.probes import new_probe

X, Y = load_iris(return_X_y=True)
X = scale(X)


@pytest.fixture
def logistic():
    return LogisticRegression().fit(X, Y)


def test_predictions_are_the_model_s_and_need_no_dgl(logistic, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    for settings in ({}, {"head": "network"}):
        probe = EvidentialProbe(logistic, max_epochs=30, random_state=0, **settings).fit(X, Y)
        np.testing.assert_allclose(probe.predict_proba(X), logistic.predict_proba(X), atol=1e-6)
        np.testing.assert_array_equal(probe.predict(X), logistic.predict(X))
        alpha = probe.predict_dirichlet(X)
        assert (alpha > 0).all()
        assert (alpha.sum(axis=1) >= 3).all()
        assert np.unique(probe.predict_uncertainty(X).epistemic).size > 100


def test_uncertainty_does_not_depend_on_which_of_two_classes_comes_first():
    rows, codes = X[Y < 2], Y[Y < 2]
    settings = {"max_epochs": 30, "random_state": 0}
    probes = (
        EvidentialProbe(LogisticRegression(), **settings).fit(rows, y) for y in (codes, 1 - codes)
    )
    ours, theirs = (probe.predict_uncertainty(rows).epistemic for probe in probes)
    np.testing.assert_allclose(ours, theirs, rtol=0.01)


def test_class_weights_are_the_user_s_wish():
    weighted = LogisticRegression(class_weight={0: 1e-9, 1: 1, 2: 1e-9}).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new_probe(weighted).fit(X, Y)


def test_images_are_taken():
    torch.manual_seed(0)
    module = LeNet(3, (1, 16, 16)).eval()
    images = np.random.default_rng(0).normal(size=(40, 1, 16, 16)).astype(np.float32)
    probe = new_probe(FrozenEstimator(module), layer=-2).fit(images, np.arange(40) % 3)
    with torch.no_grad():
        expected = module(torch.tensor(images)).softmax(dim=1).numpy()
    np.testing.assert_allclose(probe.predict_proba(images), expected, atol=1e-5)
    assert probe.head_.layers[0].in_features == 84


def test_grid_search_shares_a_fitted_model_and_trains_one_that_is_not(logistic):
    probe = new_probe(logistic, max_epochs=2, pcl_weight=0.0)
    search = GridSearchCV(probe, {"loss__pcl_weight": [0.0, 1e-2]}, cv=2, error_score="raise")
    assert search.fit(X, Y).best_estimator_.estimator is logistic
    assert predict_uncertainty(search, X).total.shape == (150,)
    probe = new_probe(LogisticRegression(), max_epochs=2)
    search = GridSearchCV(probe, {"estimator__C": [1.0, 1e-9]}, cv=2, scoring="neg_log_loss")
    assert search.fit(X, Y).best_params_ == {"estimator__C": 1.0}
    assert not hasattr(probe.estimator, "coef_")
    assert clone(probe).estimator is not probe.estimator


def test_validation_data_do_not_train(logistic):
    plain = new_probe(logistic).fit(X, Y)
    validated = new_probe(logistic).fit(X, Y, X_val=X[:9] + 3, y_val=Y[:9])
    assert plain.history_[0, "train_loss"] == validated.history_[0, "train_loss"]
    best = int(np.argmin(validated.history_[:, "valid_loss"])) + 1
    shorter = new_probe(logistic, max_epochs=best).fit(X, Y)
    found, expected = (each.predict_dirichlet(X) for each in (validated, shorter))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("measure", ["vacuity", "information"])
def test_huge_logits_give_finite_results(logistic, measure):
    logistic.coef_ *= 1e4
    probe = new_probe(logistic, measure=measure).fit(X, Y)
    far = np.vstack([X, 1e6 * X])
    assert (probe.predict_dirichlet(far) > 0).all()
    assert np.isfinite(probe.predict_uncertainty(far)).all()


def test_constant_representation_is_taken():
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    nn.init.zeros_(model[0].weight)
    probe = new_probe(model, layer=-2).fit(X, Y)
    assert np.unique(probe.predict_uncertainty(X).epistemic).size == 1


@pytest.mark.parametrize(("ice_weight", "pcl_weight"), [(1.0, 0.0), (100.0, 0.0), (1e-2, 1e-2)])
def test_intra_class_evidence_ranks_the_origin_as_most_uncertain(ice_weight, pcl_weight):
    """Section 5 of the paper: known classes around -mu and mu, and others around 0."""
    rng, y, mu = np.random.default_rng(0), np.repeat([0, 1], 150), np.array([5.0, 2.0])
    known = np.where(y[:, None] == 1, mu, -mu) + rng.normal(size=(300, 2))
    # The classifier that knows the densities: log odds are 2 mu z.
    bayes = linear_layer(torch.tensor(np.stack([-mu, mu])), torch.zeros(2).double())
    settings = {"learning_rate": 0.1, "max_epochs": 80, "layer": -2}
    probe = new_probe(bayes, ice_weight=ice_weight, pcl_weight=pcl_weight, **settings).fit(known, y)
    everyone = np.vstack([known, rng.normal(size=(300, 2))])
    vacuity = probe.predict_uncertainty(everyone).epistemic
    assert roc_auc_score(np.repeat([0, 1], 300), vacuity) > 0.9
    if not pcl_weight:
        vacuity = probe.predict_uncertainty(np.array([0 * mu, mu, -mu])).epistemic
        assert vacuity[0] > vacuity[1:].max() + 0.1
