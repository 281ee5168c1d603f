"""Estimators and labels that cannot be taken over or trained, refused in one place."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from skuq._networks import MLP
from skuq.baselines import ReferenceClassifier
from skuq.models import adopt, fit_model

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.arange(12) % 3
TRAINING = {"sample_weight": None, "seed": 0, "device": torch.device("cpu")}


def classifier(n_outputs, dtype=torch.float32):
    return NeuralNetClassifier(
        MLP(4, n_outputs).to(dtype),
        criterion=nn.CrossEntropyLoss,
        max_epochs=1,
        train_split=None,
        verbose=0,
    )


@pytest.mark.parametrize(
    ("estimator", "y", "error", "message"),
    [
        (None, np.zeros(12), ValueError, "one class only"),
        ("mlp", Y, TypeError, r"`estimator` must .* a method `fit`.* got 'mlp'"),
        (classifier(5), Y, ValueError, "has 5 outputs, but `y` contains 3 classes"),
        (make_pipeline(StandardScaler(), classifier(3)), Y, TypeError, "transformers outside"),
    ],
    ids=["one class", "no fit", "outputs", "pipeline of a net"],
)
def test_classifiers_that_cannot_be_trained(estimator, y, error, message):
    with pytest.raises(error, match=message):
        fit_model(estimator, X, y, **TRAINING)


def searched(net, parameter="lr"):
    return GridSearchCV(net, {parameter: [0.01, 0.1]}, cv=2)


def calibrated(net):
    return CalibratedClassifierCV(net, method="temperature", ensemble=False, cv=2)


WRAPPED = {
    "search": searched(classifier(3)),
    "calibration": calibrated(classifier(3)),
    "pipeline of a search": make_pipeline(StandardScaler(), searched(classifier(3))),
    "search of a pipeline": searched(
        make_pipeline(StandardScaler(), classifier(3)), "neuralnetclassifier__lr"
    ),
}


@pytest.mark.parametrize(
    ("name", "inputs", "labels", "got"),
    [
        *(
            (name, X.astype(np.float64), Y, "an array of float64, and y of int64")
            for name in WRAPPED
        ),
        ("search", pd.DataFrame(X), Y, "a DataFrame, and y of int64"),
        ("search", X, np.array(["a", "b", "c"])[Y], "an array of float32, and y of <U1"),
        ("search", X, Y + 1, "an array of float32, and y of int64"),
    ],
    ids=[*WRAPPED, "DataFrame", "strings", "no codes"],
)
def test_nets_whose_wrapper_passes_on_other_data_than_they_take(name, inputs, labels, got):
    with pytest.raises(TypeError, match=rf"unconverted: {got}") as caught:
        fit_model(WRAPPED[name], inputs, labels, **TRAINING)
    assert 'GridSearchCV(Estimator(net), {"estimator__lr": ...})' in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_net_in_a_search_may_take_the_data_as_it_is():
    model = fit_model(WRAPPED["search of a pipeline"], X, Y, **TRAINING)
    assert model.outputs(model.inputs(X)).shape == (12, 3)
    to_single = FunctionTransformer(np.asarray, kw_args={"dtype": np.float32})
    search = searched(make_pipeline(to_single, classifier(3)), "neuralnetclassifier__lr")
    model = fit_model(search, pd.DataFrame(X.astype(np.float64)), Y, **TRAINING)
    assert model.outputs(model.inputs(X)).shape == (12, 3)
    binary = NeuralNetBinaryClassifier(MLP(4, 1), max_epochs=1, train_split=None, verbose=0)
    model = fit_model(searched(binary), X, (Y == 1).astype(np.float32), **TRAINING)
    assert model.outputs(model.inputs(X)).shape == (12, 2)


def test_other_errors_of_a_net_in_a_search_stay_what_they_are():
    with pytest.raises(ValueError, match="mat1 and mat2 shapes cannot be multiplied"):
        fit_model(WRAPPED["search"], X[:, :3], Y, **TRAINING)


def test_searches_outside_train_nets_on_data_of_all_kinds():
    search = searched(ReferenceClassifier(classifier(3)), "estimator__lr")
    assert search.fit(X.astype(np.float64), np.array(["a", "b", "c"])[Y]).predict(X).dtype == "<U1"


@pytest.mark.parametrize(
    ("model", "y", "message"),
    [
        (LogisticRegression().fit(X, Y), np.where(Y == 2, 7, Y), r"not among the classes: \[7\]"),
        (MLP(4, 3), np.array(["a", "b"])[Y % 2], "returns 3 logits, but `y` holds 2 different"),
        (MLP(4, 1), Y, r"must return logits .* got shape \(1, 1\)"),
    ],
    ids=["unknown label", "number of labels", "one output"],
)
def test_labels_that_do_not_fit_the_model(model, y, message):
    model = adopt(FrozenEstimator(model))
    with pytest.raises(ValueError, match=message):
        model.with_classes(y, model.inputs(X))


@pytest.mark.parametrize(
    ("estimator", "n_outputs", "error", "message"),
    [
        (MLP(4, 2), 1, ValueError, r"the mean, shape \(n_samples, 1\), got .*2\)"),
        (MLP(4, 1), 2, ValueError, r"mean and log variance, shape \(n_samples, 2\), got .*1\)"),
        (NeuralNet(MLP(4, 3), nn.MSELoss, max_epochs=0), 1, ValueError, r"got shape \(1, 3\)"),
        (FrozenEstimator(LogisticRegression().fit(X, Y)), 1, ValueError, "is a classifier"),
        ("mlp", 1, TypeError, r"`estimator` must .* a method `fit`.* got 'mlp'"),
        (
            make_pipeline(StandardScaler(), NeuralNetRegressor(MLP(4, 1))),
            1,
            TypeError,
            "transformers outside",
        ),
        (
            GridSearchCV(NeuralNetRegressor(MLP(4, 1), verbose=0), {"lr": [0.1]}, cv=2),
            1,
            TypeError,
            r"GridSearchCV\(Estimator\(net\)",
        ),
    ],
    ids=[
        "two outputs",
        "one output",
        "three outputs",
        "classifier",
        "no fit",
        "pipeline of a net",
        "search of a net",
    ],
)
def test_regressors_that_cannot_be_taken(estimator, n_outputs, error, message):
    with pytest.raises(error, match=message):
        fit_model(
            estimator, X, Y.astype(np.float64), regression=True, n_outputs=n_outputs, **TRAINING
        )


@pytest.mark.parametrize(
    "nest",
    [
        lambda pipe: GridSearchCV(pipe, {"logisticregression__C": [1.0]}, cv=2),
        lambda pipe: make_pipeline(StandardScaler(), pipe),
        lambda pipe: make_pipeline(StandardScaler(), GridSearchCV(pipe, {}, cv=2)),
    ],
    ids=["search", "pipeline", "search in a pipeline"],
)
def test_sample_weights_reach_the_learner_inside(nest):
    pipe = make_pipeline(StandardScaler(with_std=False), LogisticRegression())
    weight = np.where(Y == 2, 1e-6, 1.0)
    model = fit_model(nest(pipe), X, Y, **{**TRAINING, "sample_weight": weight})
    assert model.outputs(model.inputs(X)).softmax(-1)[:, 2].max() < 1e-2


def test_labels_named_out_of_order_belong_to_the_outputs_of_a_net_trained_here():
    labels = np.array(["a", "b", "x"])[Y]
    plain = classifier(3)
    named = clone(plain).set_params(classes=["x", "b", "a"])
    models = [fit_model(net, X, labels, **TRAINING) for net in (plain, named)]
    torch.testing.assert_close(*[model.outputs(model.inputs(X)) for model in models])
    assert models[1].classes.tolist() == ["a", "b", "x"]
    assert named.classes == ["x", "b", "a"]


def test_nets_in_double_precision_are_trained_in_it():
    assert fit_model(classifier(3, torch.float64), X, Y, **TRAINING).dtype == torch.float64
    binary = NeuralNetBinaryClassifier(MLP(4, 1).double(), max_epochs=1, verbose=0)
    assert fit_model(binary, X, Y == 1, **TRAINING).dtype == torch.float64
    net = NeuralNetRegressor(MLP(4, 1).double(), max_epochs=1, verbose=0)
    model = fit_model(net, X, Y.astype(np.float64), regression=True, n_outputs=1, **TRAINING)
    assert model.dtype == torch.float64


class Returns(nn.Module):
    """A network that returns more than its outputs."""

    def __init__(self, more):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.more = more

    def forward(self, x):
        return self.more(self.layer(x))


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (lambda out: (out, out), "a tuple"),
        (lambda out: {"scores": out}, r"a dict with the keys \['scores'\]"),
    ],
    ids=["tuple", "dict"],
)
def test_networks_must_return_one_tensor(more, what):
    message = f"Returns must return one tensor, .* returned {what}"
    model = adopt(Returns(more))
    with pytest.raises(TypeError, match=message):
        model.with_classes(Y, model.inputs(X))
    with pytest.raises(TypeError, match=message):
        fit_model(Returns(more), X, Y.astype(float), regression=True, n_outputs=1, **TRAINING)


TAKEN = {"sample_weight": None, "seed": 0}
FOREST = RandomForestClassifier(2, random_state=0)


@pytest.mark.parametrize(
    ("estimator", "needed", "message"),
    [
        (RandomForestClassifier(2), "regressor", "is a classifier; pass a regressor"),
        (
            FrozenEstimator(clone(FOREST).fit(X, Y)),
            "regressor",
            "is a classifier; pass a regressor",
        ),
        (RandomForestRegressor(2), "classifier", "is a regressor; pass a classifier"),
        (
            make_pipeline(StandardScaler(), Ridge()),
            "classifier",
            "is a regressor; pass a classifier",
        ),
        (
            FrozenEstimator(clone(FOREST).fit(X, np.c_[Y == 0, Y == 1])),
            "classifier",
            "predicts several labels",
        ),
        (
            FrozenEstimator(OneVsRestClassifier(FOREST).fit(X, np.c_[Y == 0, Y == 1])),
            "classifier",
            "predicts several labels",
        ),
    ],
    ids=["classifier", "frozen classifier", "regressor", "pipeline", "labels", "one against rest"],
)
def test_learners_of_another_kind_are_refused(estimator, needed, message):
    with pytest.raises(ValueError, match=message):
        fit_model(estimator, X, Y, as_learner=True, regression=needed == "regressor", **TAKEN)


def test_learners_of_one_target_in_a_column_are_taken_and_of_two_refused():
    y = Y.astype(np.float64)
    plain, column = (Ridge().fit(X, targets) for targets in (y, y[:, None]))
    model = fit_model(FrozenEstimator(column), X, y, as_learner=True, regression=True, **TAKEN)
    np.testing.assert_allclose(model.outputs(X)[:, 0], plain.predict(X))
    model = fit_model(
        FrozenEstimator(Ridge().fit(X, np.c_[y, y])),
        X,
        y,
        as_learner=True,
        regression=True,
        **TAKEN,
    )
    with pytest.raises(
        ValueError,
        match=r"Ridge predicts an array of shape \(12, 2\); pass a model with one target",
    ):
        model.outputs(X)


def test_sample_weights_need_a_net_that_can_use_them():
    net = NeuralNetRegressor(MLP(4, 1), verbose=0)
    with pytest.raises(ValueError, match="`sample_weight` needs a net that can use it"):
        fit_model(
            net,
            X,
            Y.astype(float),
            regression=True,
            n_outputs=1,
            **{**TRAINING, "sample_weight": np.ones(12)},
        )
