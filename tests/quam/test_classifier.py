"""QUAMClassifier around networks and linear models, with searches at points and on pools."""

import warnings
from functools import partial

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris, make_moons
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler, scale
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.fixes import parse_version
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import nn

from skuq import QUAMClassifier
from skuq._networks import MLP, LeNet
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch, make_pool


def quick(**search):
    """Parameters of a short search."""
    return {"search": PointwiseSearch(**{"n_steps": 6, **search}), "random_state": 0}


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return scale(X)[::2], y[::2]


def trained(X, y):
    torch.manual_seed(0)
    net = MLP(X.shape[1], y.max() + 1, hidden_sizes=(20,)).double()
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.tensor(X)), torch.tensor(y)).backward()
        optimizer.step()
    return net.eval()


@pytest.fixture(scope="module")
def module(iris):
    """A trained network in double precision; nothing may change it."""
    return trained(*iris)


@pytest.fixture(scope="module")
def fitted(iris, module):
    """To be used without a change of parameters."""
    return QUAMClassifier(module, **quick()).fit(*iris)


def test_far_away_inputs_are_more_uncertain_than_training_inputs():
    X, y = make_moons(100, noise=0.1, random_state=0)
    X = scale(X)
    pool = partial(make_pool, n_inputs=200, random_state=0)
    quam = QUAMClassifier(trained(X, y), search=PoolSearch(pool=pool), random_state=0).fit(X, y)
    angle = np.linspace(0, 2 * np.pi, 20)
    u = quam.predict_uncertainty(np.r_[X, 5 * np.c_[np.cos(angle), np.sin(angle)]])
    _, by_entropy, by_quam = (roc_auc_score(np.arange(120) > 99, part) for part in u.parts)
    assert by_quam > max(by_entropy + 0.2, 0.9)


@pytest.mark.parametrize("parameters", ["all", "last"])
@pytest.mark.parametrize("setting", ["selected", "expected", "pairwise"])
def test_parts_are_the_quantities_of_the_equations(iris, module, setting, parameters):
    quam = QUAMClassifier(module, setting=setting, **quick(parameters=parameters)).fit(*iris)
    u, proba = quam.predict_uncertainty(iris[0][:9]), quam.predict_proba(iris[0][:9])
    assert (u.epistemic > 0).all()
    if setting == "selected":
        assert u.aleatoric == pytest.approx(-(proba * np.log(proba)).sum(1))
    elif setting == "expected":
        assert (u.total <= np.log(3)).all()


@pytest.mark.parametrize(
    ("estimator", "search"),
    [
        pytest.param(LogisticRegression(), PointwiseSearch(n_steps=6), id="pointwise"),
        pytest.param(LogisticRegression(), PoolSearch(n_steps=20), id="pool"),
        pytest.param(DecisionTreeClassifier(max_depth=2), RefitSearch(), id="refit"),
        # Of which a limited copy takes its place in the mixture.
        pytest.param(RandomForestClassifier(5, random_state=0), RefitSearch(), id="forest"),
    ],
)
def test_ranges_hold_the_given_model_and_adversarial_ones_that_fit(iris, estimator, search):
    X = iris[0][::5] * 1.3
    # Forests of scikit-learn 1.6 draw rows of the pool as often as training rows, whatever their
    # weight, so that refitted ones explain the training data less well.
    by_weight = parse_version(sklearn.__version__) >= parse_version("1.7")
    gamma = 0.1 if by_weight or not isinstance(estimator, RandomForestClassifier) else 0.3
    quam = QUAMClassifier(estimator, search=search, gamma=gamma, random_state=0).fit(*iris)
    bounds, best = quam.predict_proba_bounds(X), quam.adversarial_models(X)
    proba = quam.predict_proba(X)[:, None]
    for each in (proba, np.where(best.feasible[..., None], best.proba, proba)):
        assert (bounds.lower[:, None] <= each + 1e-6).all()
        assert (each <= bounds.upper[:, None] + 1e-6).all()
    assert best.feasible.any()
    assert (bounds.upper - bounds.lower).max() > 0.05
    with joblib.parallel_config(backend="threading"):
        shared = clone(quam).set_params(n_jobs=2).fit(*iris).predict_proba_bounds(X)
    np.testing.assert_allclose(shared, bounds, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # none fits within gamma=0
        narrow, wide = (quam.set_params(gamma=g).predict_proba_bounds(X) for g in (0.0, 1000.0))
    for inner, outer in ((narrow, bounds), (bounds, wide)):
        assert (outer.lower <= inner.lower + 1e-6).all()
        assert (inner.upper <= outer.upper + 1e-6).all()
    assert (wide.upper - wide.lower).sum() > (narrow.upper - narrow.lower).sum()


def test_a_range_without_any_model_found_is_warned_of(iris):
    tree = DecisionTreeClassifier(max_depth=2)
    quam = QUAMClassifier(tree, search=RefitSearch(), gamma=0.0, random_state=0).fit(*iris)
    least = quam._found.excess_loss.min()
    assert least > 0
    with pytest.warns(UserWarning, match="larger `gamma`"):
        lower, upper = quam.predict_proba_bounds(iris[0])
    np.testing.assert_allclose(lower, upper)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quam.set_params(gamma=least).predict_proba_bounds(iris[0])


@pytest.mark.parametrize(
    "search", [quick(), quick(parameters="last"), {"search": PoolSearch(n_steps=3)}]
)
def test_a_frozen_or_bare_module_is_taken_as_it_is_and_never_altered(iris, module, search):
    before = {name: value.clone() for name, value in module.state_dict().items()}
    x = torch.as_tensor(iris[0][:5])
    outputs = module(x).detach()
    for given in (module, FrozenEstimator(module), FrozenEstimator(FrozenEstimator(module))):
        quam = QUAMClassifier(given, **search).fit(*iris)
        quam.predict_uncertainty(iris[0][:5])
        quam.adversarial_models(iris[0][:5])
        assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
        assert torch.equal(outputs, module(x))
        assert all(p.requires_grad for p in module.parameters())
        proba = quam.predict_proba(iris[0][:5])
        np.testing.assert_allclose(proba, outputs.softmax(-1).numpy(), rtol=1e-6)


TRAINED = {
    "logistic": LogisticRegression(),
    "sklearn mlp": MLPClassifier((10,), max_iter=30, learning_rate_init=0.05),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "search": GridSearchCV(make_pipeline(LogisticRegression()), {}, cv=2),
    "skorch": NeuralNetClassifier(
        MLP,
        module__n_features=4,
        module__n_outputs=3,
        criterion=nn.CrossEntropyLoss,
        max_epochs=10,
        lr=0.3,
        verbose=0,
    ),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", TRAINED)
def test_estimators_are_cloned_and_trained_without_a_trace(iris, name):
    mine, (X, y) = TRAINED[name], iris
    state = torch.random.get_rng_state()
    quam = QUAMClassifier(mine, **quick()).fit(X, np.array(["c", "a", "b"])[y])
    assert torch.equal(state, torch.random.get_rng_state())
    assert not any(
        hasattr(mine, fitted) for fitted in ("coef_", "coefs_", "module_", "cv_results_")
    )
    assert quam.classes_.tolist() == ["a", "b", "c"]
    assert (quam.predict(X) == np.array(["c", "a", "b"])[y]).mean() > 0.6
    assert np.isfinite(quam.predict_uncertainty(X[:4]).total).all()


@pytest.mark.parametrize("wrap", [make_pipeline, lambda m: GridSearchCV(m, {}, cv=2)])
def test_frozen_models_keep_their_fit_and_the_order_of_their_classes(iris, wrap):
    labels = np.array(["z", "x", "y"])[iris[1]]
    mine = wrap(LogisticRegression()).fit(iris[0], labels)
    quam = QUAMClassifier(FrozenEstimator(mine), **quick()).fit(iris[0][:60], labels[:60])
    assert quam.classes_.tolist() == ["x", "y", "z"]
    np.testing.assert_allclose(quam.predict_proba(iris[0]), mine.predict_proba(iris[0]), atol=1e-8)


def test_frozen_pipeline_takes_text_columns():
    frame = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0] * 5, "colour": ["red", "blue"] * 10})
    y = np.array(["yes", "no", "no", "no"] * 5)
    table = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"]))
    mine = make_pipeline(table, LogisticRegression()).fit(frame, y)
    quam = QUAMClassifier(FrozenEstimator(mine), **quick()).fit(frame, y)
    assert quam.feature_names_in_.tolist() == ["size", "colour"]
    assert quam.predict_uncertainty(frame[:3]).total.shape == (3,)
    with pytest.raises(ValueError):  # noqa: PT011 (the message is scikit-learn's)
        quam.predict_uncertainty(frame.rename(columns={"size": "weight"}))


def test_images_need_not_be_flattened():
    rng = np.random.default_rng(0)
    X, y = rng.random((20, 1, 16, 16)).astype(np.float32), np.arange(20) % 3
    torch.manual_seed(0)
    frozen = FrozenEstimator(LeNet(3, image_shape=(1, 16, 16)))
    totals = [
        QUAMClassifier(frozen, **quick(n_steps=2)).fit(rows, y).predict_uncertainty(rows[:3]).total
        for rows in (X, X.reshape(20, -1))
    ]
    np.testing.assert_allclose(*totals, rtol=1e-5)


def test_models_may_know_classes_that_the_data_lack(iris, module):
    X, y = iris[0][iris[1] < 2], iris[1][iris[1] < 2]
    quam = QUAMClassifier(FrozenEstimator(module), **quick(n_steps=2)).fit(X, y)
    assert quam.classes_.tolist() == [0, 1, 2]
    net = NeuralNetClassifier(
        MLP(4, 3), criterion=nn.CrossEntropyLoss, max_epochs=20, lr=0.3, verbose=0, batch_size=16
    ).fit(X.astype(np.float32), y)
    quam = QUAMClassifier(FrozenEstimator(net), **quick(n_steps=2)).fit(X, y)
    assert quam.classes_.tolist() == [0, 1, 2]
    assert quam.score(X, y) == np.mean(net.predict(X.astype(np.float32)) == y)
    assert quam.reference_loss_ < 0.5


def test_a_binary_skorch_net_is_trained_with_any_labels(iris):
    X, y = iris[0], np.array(["no", "yes", "yes"])[iris[1]]
    net = NeuralNetBinaryClassifier(MLP(4, 1), max_epochs=20, lr=0.1, verbose=0, batch_size=32)
    quam = QUAMClassifier(net, **quick()).fit(X, y)
    assert quam.score(X, y) > 0.9
    assert quam.predict_uncertainty(X[:3]).total.shape == (3,)


def test_batch_size_does_not_change_the_result(iris, module):
    quam = QUAMClassifier(module, **quick(train_batch_size=40)).fit(*iris)
    whole = quam.set_params(search__batch_size=20).predict_uncertainty(iris[0][:20])
    pieces = quam.set_params(search__batch_size=3).predict_uncertainty(iris[0][:20])
    np.testing.assert_allclose(pieces.epistemic, whole.epistemic, rtol=1e-9)


def test_a_weight_of_zero_removes_a_sample_and_one_of_two_repeats_it(iris, module):
    X, y = iris
    rows = X[:5]
    for prior in (0.0, 20.0):
        search = quick(prior_precision=prior, train_batch_size=4 * len(X))
        quam = QUAMClassifier(FrozenEstimator(module), **search)
        weight = np.arange(len(X)) % 3
        once = quam.fit(X, y).predict_uncertainty(rows).epistemic
        weighted = quam.fit(X, y, sample_weight=weight).predict_uncertainty(rows)
        loss = quam.reference_loss_
        repeated = quam.fit(X.repeat(weight, axis=0), y.repeat(weight)).predict_uncertainty(rows)
        assert quam.reference_loss_ == pytest.approx(loss)
        np.testing.assert_allclose(weighted.epistemic, repeated.epistemic, rtol=1e-6)
        assert np.abs(weighted.epistemic / once - 1).max() > 0.01


def test_weights_reach_the_last_step_of_a_pipeline(iris):
    weight = (iris[1] != 2).astype(float)
    quam = QUAMClassifier(TRAINED["pipeline"], **quick()).fit(*iris, sample_weight=weight)
    assert (quam.predict(iris[0]) != 2).all()


def test_adversarial_models_honour_gamma(iris, module):
    quam = QUAMClassifier(module, gamma=0.02, **quick(n_steps=15)).fit(*iris)
    found = quam.adversarial_models(iris[0][::10])
    assert found.proba.shape == (8, 3, 3)
    assert found.proba.sum(-1) == pytest.approx(1)
    assert (found.excess_loss[found.feasible] <= 0.02).all()
    strict = quam.set_params(gamma=0.0).adversarial_models(iris[0][::10])
    assert strict.feasible.sum() <= found.feasible.sum()
    both = strict.feasible & found.feasible
    assert (strict.divergence[both] <= found.divergence[both]).all()
    cold = quam.set_params(temperature=1e-4).predict_uncertainty(iris[0][::10]).epistemic
    hot = quam.set_params(temperature=10.0).predict_uncertainty(iris[0][::10]).epistemic
    assert (hot > cold).all()  # worse models count, too
    frozen = quam.set_params(temperature=1e-300).predict_uncertainty(iris[0][:2])
    assert np.isfinite(frozen.total).all()


def test_progress_bar_appears_when_asked_for(iris, module, capsys):
    QUAMClassifier(module, verbose=1, **quick()).fit(*iris).predict_uncertainty(iris[0][:4])
    assert "QUAM" in capsys.readouterr().err


class NormalisesInPlace(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        self.in_place = in_place
        self.layer = nn.Linear(4, 3)

    def forward(self, X):
        if self.in_place:
            X -= 1.0
            X /= 2.0
        else:
            X = (X - 1.0) / 2.0
        return self.layer(X)


@pytest.mark.parametrize("parameters", ["all", "last"])
def test_module_that_alters_its_input_gives_what_its_twin_gives(iris, parameters):
    torch.manual_seed(0)
    pure, impure = NormalisesInPlace(False), NormalisesInPlace(True)
    impure.load_state_dict(pure.state_dict())
    first, second = (
        QUAMClassifier(m, **quick(parameters=parameters))
        .fit(*iris)
        .predict_uncertainty(iris[0][:4])
        for m in (pure, impure)
    )
    np.testing.assert_allclose(first.total, second.total, rtol=1e-6)


def test_inference_mode_does_not_stop_the_search(iris, fitted):
    expected = fitted.predict_uncertainty(iris[0][:2])
    with torch.inference_mode():
        np.testing.assert_array_equal(fitted.predict_uncertainty(iris[0][:2]), expected)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, X):
        return self.out(self.lstm(X.reshape(-1, 3, 2))[0][:, -1])


@pytest.mark.parametrize("search", [PoolSearch, PointwiseSearch])
def test_all_weights_of_a_recurrent_network_are_searched(search):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 6)), np.arange(12) % 2
    torch.manual_seed(0)
    search = search(parameters="all", n_steps=3)
    quam = QUAMClassifier(Recurrent(), search=search, random_state=0).fit(
        X, y, **({"X_pool": 2 * X} if isinstance(search, PoolSearch) else {})
    )
    u = quam.predict_uncertainty(X)
    assert (u.epistemic > 0).all()
    np.testing.assert_allclose(quam.predict_uncertainty(X[:2]).total, u.total[:2], rtol=1e-4)
