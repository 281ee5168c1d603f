"""Adopted models compute what the originals compute, and leave them alone."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax
from sklearn import calibration
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler, scale
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from skuq import QUAMClassifier
from skuq._networks import MLP
from skuq.models import adopt, fit_model
from skuq.quam import PoolSearch
from tests.written import Written


def proba_of(adopted, X):
    with torch.no_grad():
        return softmax(adopted.module(adopted.inputs(X)).double().numpy(), axis=1)


pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated"),
]
IRIS, LABELS = load_iris(return_X_y=True)
IRIS = scale(IRIS)
SINGLE = IRIS.astype(np.float32)
TINY = {"max_iter": 15, "random_state": 0}
LOGITS = {"criterion": nn.CrossEntropyLoss}


def net(module, cls=NeuralNetClassifier, X=SINGLE, y=LABELS, **kw):
    torch.manual_seed(0)
    fitted = cls(module, max_epochs=3, lr=0.1, train_split=None, verbose=0, **kw)
    return fitted.fit(X.astype(np.float32), y)


class OfProbabilities(nn.Module):
    def forward(self, proba, y):
        return nn.functional.nll_loss(proba.log(), y)


class SoftmaxAtEnd(nn.Sequential):
    def __init__(self, n_features=4):
        super().__init__(nn.Linear(n_features, 3), nn.Softmax(dim=-1))


class SharpSoftmax(SoftmaxAtEnd):
    def forward(self, x):
        return self[1](10 * self[0](x))


def chained(*layers):
    return nn.Sequential(*layers, nn.Softmax(dim=-1))


LOGISTIC, MLPC = LogisticRegression, MLPClassifier
IN_CHAIN = nn.Sequential(nn.Linear(4, 5), chained(nn.Linear(5, 3)))
SOFTMAX_SKORCH = {
    "logits": (MLP(4, 3), LOGITS),
    "softmax": (chained(MLP(4, 3)), {}),
    "softmax at end": (SoftmaxAtEnd(), {}),
    "softmax of its own": (SharpSoftmax(), {}),
    "own criterion": (chained(MLP(4, 3)), {"criterion": OfProbabilities}),
    "own criterion, chain in a chain": (IN_CHAIN, {"criterion": OfProbabilities}),
}


@pytest.mark.filterwarnings("error:.*returns probabilities")
@pytest.mark.parametrize("name", SOFTMAX_SKORCH)
def test_skorch_classifiers_keep_their_probabilities(name):
    module, options = SOFTMAX_SKORCH[name]
    fitted = net(module, **options)
    adopted = adopt(fitted)
    np.testing.assert_allclose(proba_of(adopted, SINGLE), fitted.predict_proba(SINGLE), atol=1e-6)
    adopted.with_classes(LABELS, adopted.inputs(SINGLE))
    if name == "softmax":  # cut, so that logits keep their gradient where it is 0 or 1
        assert adopted.module(torch.full((1, 4), 1e4)).abs().max() > 200


NESTED = make_pipeline(StandardScaler(with_std=False), LOGISTIC())


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    "model",
    [
        *(LOGISTIC(), LOGISTIC(fit_intercept=False)),
        *(MLPC((7, 5), activation=each, **TINY) for each in ("relu", "tanh", "logistic")),
        MLPC((), activation="identity", **TINY),
        GridSearchCV(make_pipeline(StandardScaler(), NESTED), {}, cv=2),
    ],
)
def test_sklearn_classifiers_keep_their_probabilities(model, n_classes):
    X, y = 9 * IRIS[n_classes > LABELS] + 4, LABELS[n_classes > LABELS]
    model = clone(model).fit(X, y)
    adopted, expected = adopt(model), model.predict_proba(X)
    np.testing.assert_allclose(proba_of(adopted, X), expected, atol=1e-6)
    np.testing.assert_array_equal(adopted.classes, model.classes_)
    again = pickle.loads(pickle.dumps(adopted))
    np.testing.assert_array_equal(proba_of(again, X), proba_of(adopted, X))
    if isinstance(model, LOGISTIC):
        np.testing.assert_allclose(proba_of(adopt(model.sparsify()), X), expected, atol=1e-6)


NET = NeuralNetClassifier(MLP(4, 2), max_epochs=5, verbose=0, **LOGITS)


@pytest.mark.skipif(not hasattr(calibration, "_TemperatureScaling"), reason="scikit-learn < 1.8")
@pytest.mark.parametrize(
    ("model", "n_classes"),
    [
        *((LOGISTIC(), 2), (LOGISTIC(), 3), (MLPC((8,), max_iter=50, random_state=0), 2)),
        *((make_pipeline(StandardScaler(), LOGISTIC()), 3), (NET, 2)),
    ],
)
def test_temperature_scaled_models_keep_their_probabilities(model, n_classes):
    y = LABELS[n_classes > LABELS]
    X = SINGLE[n_classes > LABELS]
    # No model can tell them apart with certainty, so that its temperature is not 1.
    X = X + np.random.default_rng(0).normal(size=X.shape).astype(np.float32)
    model = clone(model).fit(X[::2], y[::2])
    scaled = calibration.CalibratedClassifierCV(FrozenEstimator(model), method="temperature")
    ours = proba_of(adopt(FrozenEstimator(scaled.fit(X[1::2], y[1::2]))), X)
    np.testing.assert_allclose(ours, scaled.predict_proba(X), atol=1e-6)
    assert np.abs(ours - model.predict_proba(X)).max() > 1e-3


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sklearn_regressor_keeps_its_predictions_and_dtype(dtype):
    X, y = (scale(part).astype(dtype) for part in load_diabetes(return_X_y=True))
    model = MLPRegressor(hidden_layer_sizes=(8,), **TINY).fit(X, y)
    adopted = adopt(model)
    found = adopted.module(adopted.inputs(X)).squeeze(1).numpy()
    assert found.dtype == dtype
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-4, atol=1e-6)


def test_binary_nets_and_regressors_of_skorch_keep_their_predictions_and_classes_come_out_sorted():
    X, y = SINGLE, (LABELS == 1).astype(np.float32)
    fitted = net(MLP(4, 1), NeuralNetBinaryClassifier, y=y)
    np.testing.assert_allclose(proba_of(adopt(fitted), X), fitted.predict_proba(X), atol=1e-6)
    fitted = net(MLP(4, 1), NeuralNetRegressor, y=y[:, None])
    adopted = adopt(fitted)
    np.testing.assert_allclose(adopted.module(adopted.inputs(X)), fitted.predict(X), atol=1e-6)
    assert adopted.classes is None
    fitted = net(MLP(4, 3), classes=["z", "x", "y"], **LOGITS)
    adopted = adopt(fitted)
    assert adopted.classes.tolist() == ["x", "y", "z"]
    expected = fitted.predict_proba(SINGLE)[:, [1, 2, 0]]
    np.testing.assert_allclose(proba_of(adopted, SINGLE), expected, atol=1e-6)


def test_module_is_copied_and_set_to_evaluation_without_touching_the_original():
    module = MLP(4, 3, dropout=0.5).train()
    adopted = adopt(module)
    assert not adopted.module.training
    assert module.training
    assert all(p.requires_grad for p in module.parameters())
    with torch.no_grad():
        next(adopted.module.parameters()).zero_()
    assert next(module.parameters()).abs().sum() > 0
    of_factory, x = adopt(lambda: module).module, torch.ones(1, 4)
    torch.testing.assert_close(of_factory(x), module.eval()(x).detach())


def keeps_hidden(self, x):
    self.hidden = self.first(x).relu()
    return self.last(self.hidden)


@pytest.mark.parametrize(
    "module",
    [
        Written(keeps_hidden, first=nn.Linear(4, 8), last=nn.Linear(8, 3)),
        nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3))),
        nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 3))),
    ],
    ids=["hidden", "weight norm", "spectral norm"],
)
def test_modules_that_keep_computed_tensors_are_copied(module):
    x = torch.randn(5, 4)
    module(x)  # in training, with gradients
    names = [name for name, _ in module.named_parameters()]
    adopted = adopt(module)
    assert [name for name, _ in module.named_parameters()] == names
    assert getattr(module, "hidden", x.requires_grad_()).requires_grad
    torch.testing.assert_close(adopted.module(x), module.eval()(x).detach())


@pytest.mark.filterwarnings("ignore:The model's loss")  # it is not trained
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_weights_under_an_older_norm_are_searched_and_saved(norm):
    module = nn.Sequential(norm(nn.Linear(4, 8)), nn.ReLU(), norm(nn.Linear(8, 3)))
    quam = QUAMClassifier(module, search=PoolSearch(n_steps=2), random_state=0).fit(IRIS, LABELS)
    expected = quam.predict_uncertainty(IRIS[:3])
    again = pickle.loads(pickle.dumps(quam)).predict_uncertainty(IRIS[:3])
    np.testing.assert_array_equal(again.epistemic, expected.epistemic)


def test_pipeline_keeps_its_transformers_which_make_images_and_let_no_nan_through():
    frame = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0] * 5, "colour": ["red", "blue"] * 10})
    y = np.array(["yes", "no", "no", "no"] * 5)
    table = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"]))
    model = make_pipeline(table, MLPClassifier((5,), **TINY)).fit(frame, y)
    adopted = adopt(FrozenEstimator(model))
    np.testing.assert_allclose(proba_of(adopted, frame), model.predict_proba(frame), atol=1e-6)
    adopted = adopt(make_pipeline(StandardScaler(), LOGISTIC()).fit(IRIS, LABELS))
    with pytest.raises(ValueError, match="transformed X"):
        adopted.inputs(np.full((1, 4), np.nan))
    X, y = (part[:300] for part in load_digits(return_X_y=True))
    images = FunctionTransformer(lambda X: X.reshape(-1, 1, 8, 8).astype(np.float32) / 16)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
    model = make_pipeline(images, net(module, X=images.transform(X), y=y, **LOGITS))
    np.testing.assert_allclose(proba_of(adopt(model), X), model.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("trained_here", [True, False])
def test_probabilities_that_are_not_seen_are_warned_of(trained_here):
    fitted = net(SharpSoftmax(), criterion=OfProbabilities)
    adopted = adopt(fitted)
    if trained_here:
        adopted = fit_model(clone(fitted), SINGLE, LABELS, sample_weight=None, seed=0)
    with pytest.warns(UserWarning, match="returns probabilities"):
        adopted.with_classes(LABELS, adopted.inputs(SINGLE))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_are_adopted_in_single_precision(dtype):
    module = MLP(4, 3).to(dtype)
    assert adopt(module).dtype == torch.float32
    assert next(module.parameters()).dtype == dtype
