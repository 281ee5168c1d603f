"""Estimators that are trained, on the data and in the precision that they take."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from skuq._networks import MLP
from skuq.baselines import ReferenceClassifier
from skuq.models import fit_model, resolve

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.arange(12) % 3
TRAINING = {"sample_weight": None, "seed": 0}
QUICK = {"max_epochs": 1, "train_split": None, "verbose": 0}


def classifier(dtype=torch.float32):
    return NeuralNetClassifier(MLP(4, 3).to(dtype), criterion=nn.CrossEntropyLoss, **QUICK)


def searched(net, parameter="lr"):
    return GridSearchCV(net, {parameter: [0.01, 0.1]}, cv=2)


def test_a_net_in_a_search_may_take_the_data_as_it_is_and_searches_outside_take_all_kinds():
    search = searched(ReferenceClassifier(classifier()), "estimator__lr")
    assert search.fit(X.astype(np.float64), np.array(["a", "b", "c"])[Y]).predict(X).dtype == "<U1"
    to_single = FunctionTransformer(np.asarray, kw_args={"dtype": np.float32})
    double = pd.DataFrame(X.astype(np.float64))
    binary = NeuralNetBinaryClassifier(MLP(4, 1), **QUICK)
    for first, net, inputs, y, n_outputs in (
        (StandardScaler(), classifier(), X, Y, 3),
        (to_single, classifier(), double, Y, 3),
        (StandardScaler(), binary, X, (Y == 1).astype(np.float32), 2),
    ):
        search = searched(make_pipeline(first, net), f"{type(net).__name__.lower()}__lr")
        model = fit_model(search, inputs, y, **TRAINING)
        assert model.outputs(model.inputs(X)).shape == (12, n_outputs)


PIPE = make_pipeline(StandardScaler(with_std=False), LogisticRegression())
SEARCH = GridSearchCV(PIPE, {"logisticregression__C": [1.0]}, cv=2)
BEHIND = [make_pipeline(StandardScaler(), each) for each in (PIPE, SEARCH)]


@pytest.mark.parametrize("nested", [SEARCH, *BEHIND])
def test_sample_weights_reach_the_learner_inside(nested):
    weight = np.where(Y == 2, 1e-6, 1.0)
    model = fit_model(nested, X, Y, **{**TRAINING, "sample_weight": weight})
    assert model.outputs(model.inputs(X)).softmax(-1)[:, 2].max() < 1e-2


def test_labels_named_out_of_order_belong_to_the_outputs_of_a_net_trained_here():
    labels = np.array(["a", "b", "x"])[Y]
    plain = classifier()
    named = clone(plain).set_params(classes=["x", "b", "a"])
    models = [fit_model(net, X, labels, **TRAINING) for net in (plain, named)]
    torch.testing.assert_close(*[model.outputs(model.inputs(X)) for model in models])
    assert models[1].classes.tolist() == ["a", "b", "x"]
    assert named.classes == ["x", "b", "a"]


def test_nets_in_double_precision_are_trained_in_it():
    numbers = {"regression": True, "n_outputs": 1}
    for net, y, options in (
        (classifier(torch.float64), Y, {}),
        (NeuralNetBinaryClassifier(MLP(4, 1).double(), **QUICK), Y == 1, {}),
        (NeuralNetRegressor(MLP(4, 1).double(), **QUICK), Y.astype(np.float64), numbers),
    ):
        assert fit_model(net, X, y, **TRAINING, **options).dtype == torch.float64


def test_learners_of_one_target_in_a_column_are_taken_and_of_two_refused():
    y = Y.astype(np.float64)
    options = {"as_learner": True, "regression": True, **TRAINING}
    plain, column, two = (Ridge().fit(X, targets) for targets in (y, y[:, None], np.c_[y, y]))
    model = fit_model(FrozenEstimator(column), X, y, **options)
    np.testing.assert_allclose(model.outputs(X)[:, 0], plain.predict(X))
    with pytest.raises(ValueError, match="one target"):
        fit_model(FrozenEstimator(two), X, y, **options).outputs(X)


def test_samples_without_weight_are_no_targets_of_a_regression():
    options = {"owner": Ridge(), "seed": 0, "form": "learner", "regression": True}
    _, data = resolve(Ridge(), X, Y, sample_weight=np.arange(12) % 2 * 3.0, **options)
    np.testing.assert_array_equal(data.labels, Y[1::2])
    np.testing.assert_array_equal(data.X, X[1::2])
    assert (data.weight == 3).all()


def test_models_are_trained_with_the_seed_of_the_owner():
    net = MLPClassifier((3,), max_iter=3)
    models = (ReferenceClassifier(net, random_state=seed).fit(X, Y) for seed in (1, 1, 2))
    one, same, other = (each.predict_proba(X) for each in models)
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
