"""Searches by gradients: which weights move, their schedule, and the classes they ask for."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.neural_network import MLPClassifier
from skorch import NeuralNetClassifier
from torch import nn

from skuq import QUAMClassifier
from skuq.datasets import load_digits_with_ood
from skuq.metrics import detection_metrics
from skuq.quam import PointwiseSearch, PoolSearch
from skuq.quam import _gradient_search as search_module


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


def test_weights_of_zero_cannot_move():
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        network[2].bias.zero_()
    search = PoolSearch(parameters=lambda name, _: name == "2.bias")
    with pytest.raises(ValueError, match="are zero"):
        QUAMClassifier(network, search=search).fit(np.eye(4, dtype=np.float32), [0, 1, 2, 0])


def test_only_chosen_weights_move(iris, monkeypatch):
    X, y = iris
    seen = []
    original = search_module.stack_parameters
    monkeypatch.setattr(
        search_module,
        "stack_parameters",
        lambda m, n, names: seen.append(set(names)) or original(m, n, names),
    )
    model = QUAMClassifier(
        search=PointwiseSearch(n_steps=3, parameters=lambda name, _: name.endswith("bias")),
        random_state=0,
    ).fit(X, y)
    moved = model.predict_uncertainty(X[:3]).epistemic
    assert all(name.endswith("bias") for names in seen for name in names)
    everything = (
        QUAMClassifier(search=PointwiseSearch(n_steps=3), random_state=0)
        .fit(X, y)
        .predict_uncertainty(X[:3])
    )
    assert not np.allclose(moved, everything.epistemic)


def test_penalty_ends_at_the_sum_of_the_sample_weights(iris):
    X, y = iris
    weight = np.r_[np.zeros(30), np.full(60, 1.5), np.full(60, 0.5)]
    model = QUAMClassifier(search=PointwiseSearch(n_steps=50), random_state=0).fit(
        X, y, sample_weight=weight
    )
    problem = model._problem.problem

    def schedule(**params):
        search = model.set_params(**params).search_
        return search.settings(problem, model._task, torch.device("cpu")).schedule

    penalties = schedule().penalties
    assert len(penalties) == 50
    assert penalties[0] == pytest.approx(12)
    assert penalties[-1] == pytest.approx(120)
    slower = schedule(search__update_every=7, search__learning_rate_decay=2.0)
    assert slower.penalties[-1] == pytest.approx(120)
    assert slower.learning_rates[-1] == pytest.approx(0.1 / 2**7)
    assert schedule(search__c0=3.0, search__eta=1.0).penalties == (3.0,) * 50


def test_searches_for_the_most_probable_classes_only(iris):
    X, y = iris
    model = QUAMClassifier(search=PointwiseSearch(n_steps=4), random_state=0).fit(
        X, np.array(["a", "b", "c"])[y]
    )
    every = model.adversarial_models(X[::30])
    some = model.set_params(n_targets=2).adversarial_models(X[::30])
    order = np.argsort(-model.predict_proba(X[::30]), axis=1)[:, :2]
    np.testing.assert_array_equal(some.target, model.classes_[order])
    np.testing.assert_array_equal(every.target, np.tile(model.classes_, (5, 1)))
    picked = np.take_along_axis(every.divergence, order, axis=1)
    np.testing.assert_allclose(some.divergence, picked, rtol=1e-5, atol=1e-9)


def test_untargeted_search_names_the_class_it_arrives_at(iris):
    X, y = iris
    model = QUAMClassifier(search=PointwiseSearch(n_steps=20, targeted=False), random_state=0).fit(
        X, y
    )
    found = model.adversarial_models(X[::30])
    assert found.proba.shape == (5, 1, 3)
    np.testing.assert_array_equal(found.target, found.proba.argmax(-1))
    assert (found.divergence[found.feasible] > 0).all()


def test_prior_counts_in_the_losses_of_the_models(iris):
    X, y = iris
    net = MLPClassifier((10,), max_iter=300, random_state=0).fit(X, y)
    model = QUAMClassifier(
        FrozenEstimator(net), search=PointwiseSearch(n_steps=1, c0=0.0), random_state=0
    ).fit(X, y)
    plain = model.adversarial_models(X[:2])
    prior = model.set_params(search__prior_precision=15.0).adversarial_models(X[:2])
    # One step of Adam without penalty: every weight moves by its step size, so the models are
    # the same, and only their losses differ, by the growth of the weights.
    np.testing.assert_allclose(prior.proba, plain.proba, rtol=1e-5)
    assert (np.abs(prior.excess_loss - plain.excess_loss) > 1e-4).all()


def test_networks_with_broken_outputs_are_refused(iris):
    X, y = iris
    X = X.astype(np.float32)
    module = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=-1))
    net = NeuralNetClassifier(module, train_split=None, verbose=0, max_epochs=1).fit(X, y)
    with torch.no_grad():
        net.module_[1] = nn.Identity()  # logits, where the criterion wants probabilities
    with pytest.raises(ValueError, match=r"loss on its training data is .*criterion"):
        QUAMClassifier(FrozenEstimator(net)).fit(X, y)


@pytest.mark.slow
def test_cheap_and_full_search_detect_ood_inputs_alike():
    """Moving the last layers on cached features gives away at most 0.005 of AUROC here."""
    pytest.importorskip("PIL")  # for the photographs among the out-of-distribution inputs
    data = load_digits_with_ood(n_test=10, n_ood=10, random_state=0)
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        nn.Sequential(
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        ),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        max_epochs=30,
        lr=1e-3,
        train_split=None,
        verbose=0,
    )
    net.fit(data.X_train.astype(np.float32), data.y_train)
    auroc = {}
    for name, parameters in (("full", "all"), ("cheap", lambda name, _: name[0] in "24")):
        model = QUAMClassifier(
            FrozenEstimator(net), search=PointwiseSearch(parameters=parameters), random_state=0
        )
        model.set_params(search__train_batch_size=64, search__n_steps=60)
        model.fit(data.X_train.astype(np.float32), data.y_train)
        known = model.predict_uncertainty(data.X_test.astype(np.float32)).epistemic
        ood = model.predict_uncertainty(data.ood["inverted"].astype(np.float32)).epistemic
        auroc[name] = detection_metrics(known, ood).auroc
    assert auroc["full"] > 0.95
    assert auroc["cheap"] == pytest.approx(auroc["full"], abs=0.005)
