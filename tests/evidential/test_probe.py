"""The probe without a graph: on tables and images, around classifiers of all kinds."""

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
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from skorch import NeuralNetClassifier
from torch import nn

from skuq import EvidentialProbe, predict_uncertainty
from skuq._networks import MLP, LeNet
from skuq.models import adopt
from tests.evidential.probes import new_probe

X, Y = load_iris(return_X_y=True)
X = scale(X)


@pytest.fixture
def logistic():
    return LogisticRegression().fit(X, Y)


def skorch_net():
    torch.manual_seed(0)
    settings = {"criterion": nn.CrossEntropyLoss, "max_epochs": 20, "lr": 0.2, "train_split": None}
    net = NeuralNetClassifier(MLP(4, 3, hidden_sizes=(6,)), verbose=0, **settings)
    return net.fit(X.astype(np.float32), Y)


MODELS = {
    "logistic": lambda: LogisticRegression().fit(X, Y),
    "mlp": lambda: MLPClassifier((6,), max_iter=50, random_state=0).fit(X, Y),
    "skorch": skorch_net,
    "pipeline": lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("wrap", [lambda m: m, FrozenEstimator], ids=["bare", "frozen"])
@pytest.mark.parametrize("kind", MODELS)
def test_predictions_are_the_model_s(kind, wrap):
    model = MODELS[kind]()
    probe = new_probe(wrap(model)).fit(X, Y)
    expected = model.predict_proba(X.astype(np.float32))
    np.testing.assert_allclose(probe.predict_proba(X), expected, atol=1e-6)
    np.testing.assert_array_equal(probe.predict(X), expected.argmax(axis=1))
    alpha = probe.predict_dirichlet(X)
    assert (alpha > 0).all()
    assert (alpha.sum(axis=1) >= 3).all()


def test_default_settings_keep_the_predictions_and_need_no_dgl(logistic, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    probe = EvidentialProbe(logistic, max_epochs=30, random_state=0).fit(X, Y)
    np.testing.assert_allclose(probe.predict_proba(X), logistic.predict_proba(X), atol=1e-6)
    assert np.unique(probe.predict_uncertainty(X).epistemic).size > 100


def test_uncertainty_does_not_depend_on_which_of_two_classes_comes_first():
    rows, codes = X[Y < 2], Y[Y < 2]
    ours, theirs = (
        EvidentialProbe(LogisticRegression().fit(rows, y), max_epochs=30, random_state=0)
        .fit(rows, y)
        .predict_uncertainty(rows)
        .epistemic
        for y in (codes, 1 - codes)
    )
    np.testing.assert_allclose(ours, theirs, rtol=0.01)


@pytest.mark.usefixtures("short_training")
def test_unfitted_model_is_cloned_and_trained_and_the_default_model_learns():
    model = LogisticRegression(C=0.5)
    probe = new_probe(model).fit(X, Y)
    assert not hasattr(model, "coef_")
    expected = clone(model).fit(X, Y).predict_proba(X)
    np.testing.assert_allclose(probe.predict_proba(X), expected, atol=1e-6)
    assert new_probe().fit(X, Y).score(X, Y) > 0.85


def test_labels_in_another_order_warn(logistic):
    with pytest.warns(UserWarning, match="worse than guessing"):
        new_probe(adopt(logistic).module).fit(X.astype(np.float32), (Y + 1) % 3)
    weighted = LogisticRegression(class_weight={0: 1e-9, 1: 1, 2: 1e-9}).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new_probe(weighted).fit(X, Y)  # class weights are the user's wish


def test_images_are_taken():
    torch.manual_seed(0)
    module = LeNet(3, (1, 16, 16)).eval()
    images = np.random.default_rng(0).normal(size=(40, 1, 16, 16)).astype(np.float32)
    probe = new_probe(FrozenEstimator(module), layer=-2).fit(images, np.arange(40) % 3)
    with torch.no_grad():
        expected = module(torch.tensor(images)).softmax(dim=1).numpy()
    np.testing.assert_allclose(probe.predict_proba(images), expected, atol=1e-5)
    assert probe.head_.layers[0].in_features == 84
    with pytest.raises(ValueError, match=r"shape \(n_samples, 1, 16, 16\)"):
        probe.predict(images[:, :, :8])


def test_grid_search_shares_a_fitted_model_and_trains_one_that_is_not(logistic):
    probe = new_probe(logistic, max_epochs=2, pcl_weight=0.0)
    search = GridSearchCV(probe, {"loss__pcl_weight": [0.0, 1e-2]}, cv=2, error_score="raise")
    assert search.fit(X, Y).best_estimator_.estimator is logistic
    assert predict_uncertainty(search, X).total.shape == (150,)
    probe = new_probe(LogisticRegression(), max_epochs=2)
    search = GridSearchCV(probe, {"estimator__C": [1.0, 1e-9]}, cv=2, scoring="neg_log_loss")
    assert search.fit(X, Y).best_params_ == {"estimator__C": 1.0}
    assert probe.estimator.C == 1.0
    assert clone(probe).estimator is not probe.estimator


def test_large_data_in_batches_equals_rows_one_by_one(logistic):
    probe = new_probe(logistic, layer=-2).fit(X, Y)
    alpha = probe.predict_dirichlet(np.tile(X, (10, 1)))  # more than one batch
    single = np.vstack([probe.predict_dirichlet(row[None]) for row in X[:5]])
    np.testing.assert_allclose(alpha[:5], single, rtol=1e-5)
    np.testing.assert_allclose(alpha[1350:], alpha[:150], rtol=1e-5)


def test_ood_inputs_have_less_evidence():
    """Two classes far apart; what lies between them belongs to none."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 100)
    known = rng.normal(size=(200, 2)) + 4 * np.where(y[:, None] == 1, 1, -1)
    model = LogisticRegression().fit(known, y)
    probe = new_probe(model, learning_rate=0.3, max_epochs=80).fit(known, y)
    between = rng.normal(size=(200, 2)) * 0.7
    vacuity = probe.predict_uncertainty(np.vstack([known, between])).epistemic
    assert roc_auc_score(np.repeat([0, 1], 200), vacuity) > 0.95
    assert np.median(vacuity[200:]) > 3 * np.median(vacuity[:200])


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
    with torch.no_grad():
        model[0].weight.zero_()
    probe = new_probe(model, layer=-2).fit(X, Y)
    assert np.unique(probe.predict_uncertainty(X).epistemic).size == 1
