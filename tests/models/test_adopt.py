"""Adopted models compute what the originals compute, and leave them alone."""

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn.calibration
import torch
from scipy.special import softmax
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler, scale
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from skuq import QUAMClassifier
from skuq._networks import MLP
from skuq.models import adopt, fit_model
from skuq.quam import PoolSearch

TINY = {"max_iter": 15, "random_state": 0}


def load(loader):
    X, y = loader(return_X_y=True)
    return scale(X), y


def proba_of(adopted, X):
    with torch.no_grad():
        return softmax(adopted.module(adopted.inputs(X)).double().numpy(), axis=1)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("loader", [load_iris, load_breast_cancer])
@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        LogisticRegression(fit_intercept=False),
        *(MLPClassifier((7, 5), activation=a, **TINY) for a in ("relu", "tanh", "logistic")),
        MLPClassifier((), activation="identity", **TINY),
    ],
    ids=repr,
)
def test_sklearn_classifiers_keep_their_probabilities(model, loader):
    X, y = load(loader)
    model.fit(X, y)
    adopted = adopt(model)
    np.testing.assert_allclose(proba_of(adopted, X), model.predict_proba(X), atol=1e-6)
    assert adopted.classes.tolist() == model.classes_.tolist()


@pytest.mark.parametrize("loader", [load_iris, load_breast_cancer])
def test_sparse_coefficients_keep_their_probabilities(loader):
    X, y = load(loader)
    model = LogisticRegression().fit(X, y)
    expected = model.predict_proba(X)
    np.testing.assert_allclose(proba_of(adopt(model.sparsify()), X), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sklearn_regressor_keeps_its_predictions_and_dtype(dtype):
    X, y = load(load_diabetes)
    model = MLPRegressor(hidden_layer_sizes=(8,), **TINY).fit(X.astype(dtype), y.astype(dtype))
    adopted = adopt(model)
    assert adopted.module(adopted.inputs(X[:1])).numpy().dtype == dtype
    out = adopted.module(adopted.inputs(X)).squeeze(1).numpy()
    np.testing.assert_allclose(out, model.predict(X.astype(dtype)), rtol=1e-4, atol=1e-6)


def net(cls, module, X, y, **kw):
    torch.manual_seed(0)
    fitted = cls(module, max_epochs=3, lr=0.1, train_split=None, verbose=0, **kw)
    return fitted.fit(X.astype(np.float32), y)


def test_skorch_classifier_with_logits_keeps_its_probabilities():
    X, y = load(load_iris)
    fitted = net(NeuralNetClassifier, MLP(4, 3), X, y, criterion=nn.CrossEntropyLoss)
    expected = fitted.predict_proba(X.astype(np.float32))
    np.testing.assert_allclose(proba_of(adopt(fitted), X), expected, atol=1e-6)


def test_skorch_classifier_with_probabilities_keeps_them():
    X, y = load(load_iris)
    fitted = net(NeuralNetClassifier, nn.Sequential(MLP(4, 3), nn.Softmax(dim=-1)), X, y)
    expected = fitted.predict_proba(X.astype(np.float32))
    np.testing.assert_allclose(proba_of(adopt(fitted), X), expected, atol=1e-6)


def test_skorch_binary_classifier_keeps_its_probabilities():
    X, y = load(load_breast_cancer)
    fitted = net(NeuralNetBinaryClassifier, MLP(30, 1), X, y.astype(np.float32))
    expected = fitted.predict_proba(X.astype(np.float32))
    np.testing.assert_allclose(proba_of(adopt(fitted), X), expected, atol=1e-6)


def test_skorch_regressor_keeps_its_predictions():
    X, y = load(load_diabetes)
    target = scale(y).astype(np.float32)[:, None]
    fitted = net(NeuralNetRegressor, MLP(10, 1), X, target)
    adopted = adopt(fitted)
    expected = fitted.predict(X.astype(np.float32))
    np.testing.assert_allclose(adopted.module(adopted.inputs(X)).numpy(), expected, atol=1e-6)
    assert adopted.classes is None


def test_module_is_copied_and_set_to_evaluation_without_touching_the_original():
    module = MLP(4, 3, dropout=0.5).train()
    adopted = adopt(module)
    assert not adopted.module.training
    assert module.training
    assert all(p.requires_grad for p in module.parameters())
    with torch.no_grad():
        next(adopted.module.parameters()).zero_()
    assert next(module.parameters()).abs().sum() > 0


class KeepsHidden(nn.Module):
    """Keeps what it computes on the way, as for a plot of activations."""

    def __init__(self, keep=lambda hidden: hidden):
        super().__init__()
        self.first, self.last, self.keep = nn.Linear(4, 8), nn.Linear(8, 3), keep

    def forward(self, x):
        hidden = self.first(x).relu()
        self.hidden = self.keep(hidden)
        return self.last(hidden)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize(
    "make",
    [
        KeepsHidden,
        lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3))),
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 3))),
    ],
    ids=["hidden", "weight norm", "spectral norm"],
)
def test_modules_that_keep_computed_tensors_are_copied(make):
    module, x = make(), torch.randn(5, 4)
    module(x)  # in training, with gradients
    names = [name for name, _ in module.named_parameters()]
    adopted = adopt(module)
    assert [name for name, _ in module.named_parameters()] == names
    if isinstance(module, KeepsHidden):
        assert module.hidden.requires_grad
    torch.testing.assert_close(adopted.module(x), module.eval()(x).detach())


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.filterwarnings("ignore:The model's loss")  # it is not trained
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_weights_under_an_older_norm_are_searched_and_saved(norm):
    X, y = load(load_iris)
    module = nn.Sequential(norm(nn.Linear(4, 8)), nn.ReLU(), norm(nn.Linear(8, 3)))
    quam = QUAMClassifier(module, search=PoolSearch(n_steps=2), random_state=0).fit(X, y)
    expected = quam.predict_uncertainty(X[:3])
    again = pickle.loads(pickle.dumps(quam)).predict_uncertainty(X[:3])
    np.testing.assert_array_equal(again.epistemic, expected.epistemic)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_modules_that_cannot_be_copied_are_refused_with_what_would_work():
    module = KeepsHidden(keep=lambda hidden: [hidden])
    module(torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"KeepsHidden cannot be copied, .* detach them"):
        adopt(module)
    with pytest.raises(TypeError, match=r"Cannot adopt a ScriptModule; pass the torch\.nn\.Module"):
        adopt(torch.jit.trace(nn.Linear(4, 3), torch.ones(1, 4)))


def test_factory_is_called():
    module = MLP(2, 2)
    x = torch.ones(1, 2)
    torch.testing.assert_close(adopt(lambda: module).module(x), module(x).detach())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_pipeline_keeps_its_transformers_as_preprocessing():
    frame = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0] * 5, "colour": ["red", "blue"] * 10})
    y = np.array(["yes", "no", "no", "no"] * 5)
    table = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"]))
    model = make_pipeline(table, MLPClassifier((5,), **TINY)).fit(frame, y)
    adopted = adopt(FrozenEstimator(model))
    np.testing.assert_allclose(proba_of(adopted, frame), model.predict_proba(frame), atol=1e-6)


def test_nested_pipelines_and_searches_are_seen_through():
    X, y = load(load_iris)
    inner = make_pipeline(StandardScaler(with_std=False), LogisticRegression())
    search = GridSearchCV(make_pipeline(StandardScaler(), inner), {}, cv=2).fit(X * 9 + 4, y)
    adopted = adopt(search)
    expected = search.predict_proba(X * 9 + 4)
    np.testing.assert_allclose(proba_of(adopted, X * 9 + 4), expected, atol=1e-6)
    again = pickle.loads(pickle.dumps(adopted))
    np.testing.assert_array_equal(proba_of(again, X), proba_of(adopted, X))


def test_pipeline_may_turn_rows_into_images():
    X, y = load_digits(return_X_y=True)
    images = FunctionTransformer(lambda X: X.reshape(-1, 1, 8, 8).astype(np.float32) / 16)
    layers = nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10)
    fitted = net(
        NeuralNetClassifier,
        nn.Sequential(*layers),
        images.transform(X),
        y,
        criterion=nn.CrossEntropyLoss,
    )
    model = make_pipeline(images, fitted)
    np.testing.assert_allclose(proba_of(adopt(model), X), model.predict_proba(X), atol=1e-6)


def test_preprocessing_that_lets_nan_through_is_refused():
    X, y = load(load_iris)
    adopted = adopt(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y))
    with pytest.raises(ValueError, match="transformed X contains NaN"):
        adopted.inputs(np.full((1, 4), np.nan))


@pytest.mark.parametrize("model", [RandomForestClassifier(), "resnet", MLP, nn.Linear], ids=repr)
def test_other_models_are_refused_with_what_would_work(model):
    with pytest.raises(TypeError, match=r"expected a fitted skorch net, a torch\.nn\.Module"):
        adopt(model)


@pytest.mark.parametrize("outer", [FrozenEstimator, lambda model: make_pipeline(model)])
@pytest.mark.parametrize("cls", [FixedThresholdClassifier, TunedThresholdClassifierCV])
def test_decision_thresholds_are_refused(cls, outer):
    X, y = load(load_breast_cancer)
    options = {"threshold": 0.9} if cls is FixedThresholdClassifier else {"cv": 2}
    with pytest.raises(TypeError, match="depend on a decision threshold"):
        adopt(outer(cls(LogisticRegression(), **options).fit(X, y)))


def test_factory_of_something_else_is_refused():
    with pytest.raises(TypeError, match=r"must return a torch\.nn\.Module, got dict"):
        adopt(dict.fromkeys("ab").copy)


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        MLPClassifier(),
        make_pipeline(StandardScaler(), MLPClassifier()),
        NeuralNetClassifier(MLP(2, 2)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_unfitted_models_are_refused(model):
    with pytest.raises(NotFittedError, match="not fitted"):
        adopt(model)


def test_diverged_model_is_refused():
    module = MLP(2, 2)
    with torch.no_grad():
        module[0].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite weights"):
        adopt(module)


def test_module_without_parameters_is_refused():
    with pytest.raises(ValueError, match="no floating-point parameters"):
        adopt(nn.ReLU())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_multi_label_models_are_refused():
    X, y = load(load_iris)
    labels = np.stack([y == 0, y > 0], axis=1).astype(int)
    with pytest.raises(ValueError, match="multi-label MLPClassifier"):
        adopt(MLPClassifier((3,), max_iter=1).fit(X, labels))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_poisson_regressor_is_refused():
    X, y = load(load_diabetes)
    model = MLPRegressor(max_iter=1).fit(X, y)
    model.out_activation_ = "exp"  # as loss="poisson" sets it, which old versions lack
    with pytest.raises(ValueError, match="Only an MLPRegressor with squared error"):
        adopt(model)


def test_classes_come_out_sorted_with_their_probabilities():
    X, y = load(load_iris)
    fitted = net(
        NeuralNetClassifier, MLP(4, 3), X, y, criterion=nn.CrossEntropyLoss, classes=["z", "x", "y"]
    )
    adopted = adopt(fitted)
    assert adopted.classes.tolist() == ["x", "y", "z"]
    expected = fitted.predict_proba(X.astype(np.float32))[:, [1, 2, 0]]
    np.testing.assert_allclose(proba_of(adopted, X), expected, atol=1e-6)


def test_final_softmax_is_cut_so_that_logits_keep_their_gradient():
    X, y = load(load_iris)
    fitted = net(NeuralNetClassifier, nn.Sequential(MLP(4, 3), nn.Softmax(dim=-1)), X, y)
    far = torch.full((1, 4), 1e4)
    assert adopt(fitted).module(far).abs().max() > 200  # where the softmax is 0 or 1


class SoftmaxAtEnd(nn.Sequential):
    def __init__(self, n_features):
        super().__init__(nn.Linear(n_features, 3), nn.Softmax(dim=-1))


class SharpSoftmax(SoftmaxAtEnd):
    def forward(self, x):
        return self[1](10 * self[0](x))


@pytest.mark.parametrize("kind", [SoftmaxAtEnd, SharpSoftmax])
def test_softmax_in_other_kinds_of_sequential(kind):
    X, y = load(load_iris)
    fitted = net(NeuralNetClassifier, kind(4), X, y)
    expected = fitted.predict_proba(X.astype(np.float32))
    np.testing.assert_allclose(proba_of(adopt(fitted), X), expected, atol=1e-6)


class OfProbabilities(nn.Module):
    """A criterion of the user's own."""

    def forward(self, proba, y):
        return nn.functional.nll_loss(proba.log(), y)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(MLP(4, 3), nn.Softmax(dim=-1)),
        nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 3), nn.Softmax(dim=-1))),
    ],
    ids=["chain", "chain in a chain"],
)
def test_a_final_softmax_under_a_criterion_of_ones_own_is_seen(module):
    X, y = load(load_iris)
    fitted = net(NeuralNetClassifier, module, X, y, criterion=OfProbabilities)
    expected = fitted.predict_proba(X.astype(np.float32))
    adopted = adopt(fitted)
    np.testing.assert_allclose(proba_of(adopted, X), expected, atol=1e-6)
    adopted.with_classes(y, adopted.inputs(X))


@pytest.mark.parametrize("trained_here", [True, False])
def test_probabilities_that_are_not_seen_are_warned_of(trained_here):
    X, y = load(load_iris)
    fitted = net(NeuralNetClassifier, SharpSoftmax(4), X, y, criterion=OfProbabilities)
    if trained_here:
        training = {"sample_weight": None, "seed": 0, "device": torch.device("cpu")}
        adopted = fit_model(clone(fitted), X, y, **training)
    else:
        adopted = adopt(fitted)
    with pytest.warns(UserWarning, match="returns probabilities.* criterion needs probabilities"):
        adopted.with_classes(y, adopted.inputs(X))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"criterion": nn.BCELoss}, "must be trained with BCEWithLogitsLoss"),
        ({"predict_nonlinearity": torch.sigmoid}, "custom `predict_nonlinearity`"),
    ],
)
def test_skorch_nets_whose_outputs_mean_something_else_are_refused(params, message):
    X, y = load(load_breast_cancer)
    module = nn.Sequential(MLP(30, 1), nn.Sigmoid())
    fitted = net(NeuralNetBinaryClassifier, module, X, y.astype(np.float32), **params)
    with pytest.raises(ValueError, match=message):
        adopt(fitted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_are_adopted_in_single_precision(dtype):
    module = MLP(4, 3).to(dtype)
    assert adopt(module).dtype == torch.float32
    assert next(module.parameters()).dtype == dtype


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(sklearn.calibration, "_TemperatureScaling"), reason="needs scikit-learn 1.8"
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("kind", ["logistic", "mlp", "pipeline", "skorch"])
def test_temperature_scaled_models_keep_their_probabilities(kind, n_classes):
    X, y = load_iris(return_X_y=True)
    X, y = X[y < n_classes].astype(np.float32), y[y < n_classes]
    X += np.random.default_rng(0).normal(size=X.shape).astype(np.float32)
    model = {
        "logistic": LogisticRegression(),
        "mlp": MLPClassifier((8,), max_iter=50, random_state=0),
        "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
        "skorch": NeuralNetClassifier(
            MLP(4, n_classes), criterion=nn.CrossEntropyLoss, max_epochs=10, verbose=0
        ),
    }[kind].fit(X[::2], y[::2])
    scaled = CalibratedClassifierCV(FrozenEstimator(model), method="temperature")
    scaled.fit(X[1::2], y[1::2])
    adopted = adopt(FrozenEstimator(scaled))
    ours = proba_of(adopted, X)
    np.testing.assert_allclose(ours, scaled.predict_proba(X), atol=1e-6)
    assert np.abs(ours - model.predict_proba(X)).max() > 1e-3


def test_other_calibrations_are_not_adopted():
    X, y = load_iris(return_X_y=True)
    sigmoid = CalibratedClassifierCV(LogisticRegression(max_iter=1000), method="sigmoid").fit(X, y)
    with pytest.raises(ValueError, match="method='temperature'"):
        adopt(sigmoid)
