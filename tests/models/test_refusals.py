"""Models, data and labels that cannot be used or trained: each is named by what is wrong."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import model_selection
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

import skuq
from skuq._networks import MLP
from skuq.models import adopt, classes_of_logits, fit_model
from tests.written import Written

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning"),
]
X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.arange(12) % 3
TWO = Y % 2
LABELS = np.c_[Y == 0, Y == 1].astype(int)
TRAINING = {"sample_weight": None, "seed": 0}
QUICK = {"max_epochs": 1, "train_split": None, "verbose": 0}


def classifier(n_outputs=3):
    return NeuralNetClassifier(MLP(4, n_outputs), criterion=nn.CrossEntropyLoss, **QUICK)


def binary(**params):
    module = nn.Sequential(MLP(4, 1), nn.Sigmoid())
    net = NeuralNetBinaryClassifier(module, **QUICK, **params)
    return net.fit(X, TWO.astype(np.float32))


def diverged():
    module = MLP(2, 2)
    with torch.no_grad():
        module[0].weight[0, 0] = torch.nan
    return module


def poisson():
    model = MLPRegressor(max_iter=1).fit(X, Y)
    model.out_activation_ = "exp"  # as loss="poisson" sets it, which old versions lack
    return model


def returns(more):
    return Written(lambda self, x: more(self.layer(x)), layer=nn.Linear(4, 3))


def used():
    module = Written(lambda self, x: setattr(self, "kept", [self.a(x)]), a=nn.Linear(4, 3))
    module(torch.ones(2, 4))
    return module


LOGISTIC, MULTIPLE = LogisticRegression(), MLPClassifier((3,), max_iter=1)
THRESHOLD = model_selection.FixedThresholdClassifier(LOGISTIC, threshold=0.9).fit(X, TWO)
TUNED = model_selection.TunedThresholdClassifierCV(LOGISTIC, cv=2).fit(X, TWO)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (used, ValueError, "detach"),
        (lambda: torch.jit.trace(nn.Linear(4, 3), torch.ones(1, 4)), TypeError, "ScriptModule"),
        (RandomForestClassifier, TypeError, "expected a fitted"),
        (lambda: "resnet", TypeError, "expected a fitted"),
        (lambda: MLP, TypeError, "expected a fitted"),
        (lambda: dict.fromkeys("ab").copy, TypeError, "expected a fitted"),
        (lambda: FrozenEstimator(THRESHOLD), TypeError, "threshold"),
        (lambda: make_pipeline(TUNED), TypeError, "threshold"),
        (LogisticRegression, NotFittedError, "."),
        (MLPClassifier, NotFittedError, "."),
        (lambda: make_pipeline(StandardScaler(), MLPClassifier()), NotFittedError, "."),
        (lambda: NeuralNetClassifier(MLP(2, 2)), NotFittedError, "."),
        (diverged, ValueError, "NaN or infinite"),
        (nn.ReLU, ValueError, "no floating-point parameters"),
        (lambda: MULTIPLE.fit(X, LABELS), ValueError, "multi-label"),
        (poisson, ValueError, "squared error"),
        (lambda: binary(criterion=nn.BCELoss), ValueError, "BCEWithLogitsLoss"),
        (lambda: binary(predict_nonlinearity=torch.sigmoid), ValueError, "predict_nonlinearity"),
        (lambda: CalibratedClassifierCV(LOGISTIC, cv=2).fit(X, Y), ValueError, "'temperature'"),
    ],
)
def test_models_that_are_not_adopted(make, error, message):
    with pytest.raises(error, match=message):
        adopt(make())


def searched(net, parameter="lr"):
    return GridSearchCV(net, {parameter: [0.01, 0.1]}, cv=2)


def behind(net):
    return make_pipeline(StandardScaler(), net)


WRAPPED = {
    "search": searched(classifier()),
    "calibration": CalibratedClassifierCV(classifier(), ensemble=False, cv=2),
    "pipeline of a search": behind(searched(classifier())),
    "search of a pipeline": searched(behind(classifier()), "neuralnetclassifier__lr"),
}
FOREST = RandomForestClassifier(2, random_state=0)
FROZEN = FrozenEstimator(LogisticRegression().fit(X, Y))
SEVERAL = [OneVsRestClassifier(LOGISTIC).fit(X, LABELS), clone(FOREST).fit(X, LABELS)]
LEARNER, NUMBERS = {"as_learner": True}, {"regression": True}
WEIGHTED = NUMBERS | {"sample_weight": np.ones(12)}
PAIR, SCORES = returns(lambda out: (out, out)), returns(lambda out: {"scores": out})


@pytest.mark.parametrize(
    ("estimator", "options", "error", "message"),
    [
        ("mlp", {}, TypeError, "`estimator`.* got 'mlp'"),
        ("mlp", NUMBERS, TypeError, "`estimator`.* got 'mlp'"),
        (classifier(5), {}, ValueError, "5 outputs, .* 3 classes"),
        (None, {"y": np.zeros(12)}, ValueError, "one class"),
        (behind(classifier()), {}, TypeError, "transformers outside"),
        (behind(NeuralNetRegressor(MLP(4, 1))), NUMBERS, TypeError, "transformers outside"),
        (searched(NeuralNetRegressor(MLP(4, 1), **QUICK)), NUMBERS, TypeError, "GridSearchCV"),
        (MLP(4, 2), NUMBERS, ValueError, r"the mean, .*2\)"),
        (MLP(4, 1), NUMBERS | {"n_outputs": 2}, ValueError, r"log variance, .*1\)"),
        (NeuralNet(MLP(4, 3), nn.MSELoss, max_epochs=0), NUMBERS, ValueError, r"\(1, 3\)"),
        (FROZEN, NUMBERS, ValueError, "is a classifier"),
        (FOREST, NUMBERS | LEARNER, ValueError, "is a classifier"),
        (FROZEN, NUMBERS | LEARNER, ValueError, "is a classifier"),
        (RandomForestRegressor(2), LEARNER, ValueError, "is a regressor"),
        (behind(Ridge()), LEARNER, ValueError, "is a regressor"),
        (FrozenEstimator(SEVERAL[0]), LEARNER, ValueError, "several labels"),
        (FrozenEstimator(SEVERAL[1]), LEARNER, ValueError, "several labels"),
        (NeuralNetRegressor(MLP(4, 1), verbose=0), WEIGHTED, ValueError, "`sample_weight`"),
        *((PAIR, NUMBERS, TypeError, "a tuple"), (PAIR, {}, TypeError, "a tuple")),
        (SCORES, NUMBERS, TypeError, r"\['scores'\]"),
        (SCORES, {}, TypeError, r"\['scores'\]"),
    ],
)
def test_models_that_cannot_be_taken_or_trained(estimator, options, error, message):
    y = Y.astype(np.float64) if options.get("regression") else Y
    with pytest.raises(error, match=message):
        fit_model(estimator, **{"X": X, "y": y} | TRAINING | options)


@pytest.mark.parametrize(
    ("name", "inputs", "labels"),
    [
        *((name, X.astype(np.float64), Y) for name in WRAPPED),
        ("search", pd.DataFrame(X), Y),
        ("search", X, np.array(["a", "b", "c"])[Y]),
        ("search", X, Y + 1),
    ],
    ids=[*WRAPPED, "DataFrame", "strings", "no codes"],
)
def test_nets_whose_wrapper_passes_on_other_data_than_they_take(name, inputs, labels):
    with pytest.raises(Exception, match=r"\w") as caught:  # a search raises what its models raise
        fit_model(WRAPPED[name], inputs, labels, **TRAINING)
    assert any("GridSearchCV(Estimator(net)" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("model", "y", "message"),
    [
        (FROZEN, np.where(Y == 2, 7, Y), r"\[7\]"),
        (MLP(4, 3), np.array(["a", "b"])[Y % 2], "3 logits, .* 2 different"),
        (MLP(4, 3), np.array([*"abcdefg"] * 2)[:12], r"'e'\] and others .* 0 to 2"),
        (MLP(4, 5), np.arange(12) % 7, r"5 logits, .* 7 different labels. Labels \[5, 6\]"),
        (MLP(4, 1), Y, r"shape \(1, 1\)"),
    ],
)
def test_labels_and_outputs_that_do_not_fit(model, y, message):
    model = adopt(model)
    with pytest.raises(ValueError, match=message):
        model.with_classes(y, model.inputs(X))


def test_labels_may_be_fewer_than_logits_if_they_are_codes():
    codes = classes_of_logits(torch.zeros(1, 5), np.array([0, 3]))
    np.testing.assert_array_equal(codes, np.arange(5))


TEXTS = np.array([f"text {word}" for word in "abcdefghijkl"])
NET, OFFLOADED, LOADED = MLP(4, 3), MLP(4, 3).to("meta"), MLP(4, 3)
OFFLOADED._hf_hook = None  # of accelerate
SCRIPTED = nn.Sequential(torch.jit.trace(nn.Linear(4, 3), torch.ones(1, 4)))
ALPHA, DROPOUT = (nn.Sequential(kind(), NET) for kind in (nn.AlphaDropout, nn.Dropout))
VECTORISED = make_pipeline(TfidfVectorizer(), LOGISTIC)
HOT, MASKS, OWN = np.eye(3)[Y], np.zeros((12, 8, 8)), NET(torch.tensor(X)).argmax(1)


@pytest.mark.filterwarnings("ignore:A part of X|No input can be:UserWarning")
@pytest.mark.parametrize(
    ("kind", "model", "data", "message", "usable", "usable_data"),
    [
        (skuq.OODDetector, LOGISTIC, (TEXTS, TWO), "TfidfVectorizer", VECTORISED, (TEXTS, TWO)),
        (skuq.OODDetector, NET, (X, HOT), "y.argmax", NET, (X, HOT.argmax(axis=1))),
        (skuq.CalibrationAuditor, NET, (X, HOT), "y.argmax", NET, (X, HOT.argmax(axis=1))),
        (skuq.OODDetector, NET, (X, MASKS), "embeddings as X, without y", None, (X,)),
        (skuq.OODDetector, NET, (X,), "module(X).argmax(1)", NET, (X, OWN)),
        (skuq.ReferenceClassifier, SCRIPTED, (X, Y), "pass the torch.nn.Module", NET, (X, Y)),
        (skuq.ReferenceClassifier, OFFLOADED, (X, Y), "load it on one device", LOADED, (X, Y)),
        (skuq.MCDropoutClassifier, ALPHA, (X, Y), "not AlphaDropout", DROPOUT, (X, Y)),
    ],
)
def test_what_an_error_advises_works(kind, model, data, message, usable, usable_data):
    params = {"n_bins": 2} if kind is skuq.CalibrationAuditor else {}
    with pytest.raises((TypeError, ValueError)) as caught:
        kind(model, **params).fit(*data)
    assert message in " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    kind(usable, **params).fit(*usable_data)
