"""QUAMClassifier as a user meets it."""

import pickle
import warnings

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

from skuq import QUAMClassifier, predict_uncertainty
from skuq._networks import MLP, LeNet
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch


def quick(**search):
    """Parameters of a short search."""
    return {"search": PointwiseSearch(**{"n_steps": 6, **search}), "random_state": 0}


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return scale(X), y


@pytest.fixture(scope="module")
def trained_module(iris):
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        MLP(4, 3), criterion=nn.CrossEntropyLoss, max_epochs=20, lr=0.1, verbose=0
    )
    return net.fit(iris[0].astype(np.float32), iris[1]).module_


@pytest.mark.slow
def test_far_away_inputs_are_more_uncertain_than_training_inputs():
    X, y = make_moons(200, noise=0.1, random_state=0)
    X = scale(X)
    quam = QUAMClassifier(random_state=0).fit(X, y)
    angle = np.linspace(0, 2 * np.pi, 20)
    far = 5 * np.c_[np.cos(angle), np.sin(angle)]
    near = quam.predict_uncertainty(X[:60])
    away = quam.predict_uncertainty(far)
    by_quam = roc_auc_score(np.r_[np.zeros(60), np.ones(20)], np.r_[near.epistemic, away.epistemic])
    by_entropy = roc_auc_score(
        np.r_[np.zeros(60), np.ones(20)], np.r_[near.aleatoric, away.aleatoric]
    )
    assert by_quam > by_entropy
    assert by_quam > 0.9


@pytest.mark.parametrize("parameters", ["all", "last"])
@pytest.mark.parametrize("setting", ["selected", "expected", "pairwise"])
def test_parts_are_the_quantities_of_the_equations(iris, setting, parameters):
    quam = QUAMClassifier(setting=setting, **quick(parameters=parameters)).fit(*iris)
    u = quam.predict_uncertainty(iris[0][:9])
    proba = quam.predict_proba(iris[0][:9])
    assert (u.epistemic > 0).all()
    own_entropy = -(proba * np.log(proba)).sum(1)
    if setting == "selected":
        assert u.aleatoric == pytest.approx(own_entropy)
    elif setting == "expected":
        assert (u.total <= np.log(3)).all()


@pytest.mark.parametrize(
    ("estimator", "search"),
    [
        pytest.param(LogisticRegression(), PointwiseSearch(n_steps=6), id="pointwise"),
        pytest.param(LogisticRegression(), PoolSearch(n_steps=20), id="pool"),
        pytest.param(DecisionTreeClassifier(max_depth=2), RefitSearch(), id="refit"),
        # Of which a limited copy takes its place in the mixture.
        pytest.param(RandomForestClassifier(10, random_state=0), RefitSearch(), id="forest"),
    ],
)
@pytest.mark.filterwarnings("ignore:No model that was found")
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
    narrow, wide = (quam.set_params(gamma=gamma).predict_proba_bounds(X) for gamma in (0.0, 1000.0))
    for inner, outer in ((narrow, bounds), (bounds, wide)):
        assert (outer.lower <= inner.lower + 1e-6).all()
        assert (inner.upper <= outer.upper + 1e-6).all()
    assert (wide.upper - wide.lower).sum() > (narrow.upper - narrow.lower).sum()


def test_a_range_without_any_model_found_is_warned_of(iris):
    tree = DecisionTreeClassifier(max_depth=2)
    quam = QUAMClassifier(tree, search=RefitSearch(), gamma=0.0, random_state=0).fit(*iris)
    least = quam._found.excess_loss.min()
    assert least > 0
    with pytest.warns(UserWarning, match=r"within gamma=0 .* Use a larger `gamma`"):
        lower, upper = quam.predict_proba_bounds(iris[0])
    np.testing.assert_allclose(lower, upper)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quam.set_params(gamma=least).predict_proba_bounds(iris[0])


@pytest.mark.parametrize("parameters", ["all", "last"])
def test_frozen_module_is_never_altered(iris, trained_module, parameters):
    before = {name: value.clone() for name, value in trained_module.state_dict().items()}
    x = torch.as_tensor(iris[0][:5], dtype=torch.float32)
    outputs = trained_module(x).detach()
    quam = QUAMClassifier(FrozenEstimator(trained_module), **quick(parameters=parameters))
    quam.fit(*iris).predict_uncertainty(iris[0][:5])
    assert all(torch.equal(before[k], v) for k, v in trained_module.state_dict().items())
    assert torch.equal(outputs, trained_module(x))
    assert all(p.requires_grad for p in trained_module.parameters())
    np.testing.assert_allclose(
        quam.predict_proba(iris[0][:5]), outputs.softmax(-1).numpy(), rtol=1e-6
    )


def test_own_predictions_do_not_change_when_uncertainty_is_asked_for(iris):
    quam = QUAMClassifier(**quick()).fit(*iris)
    before = quam.predict_proba(iris[0])
    quam.predict_uncertainty(iris[0][:5])
    quam.adversarial_models(iris[0][:5])
    np.testing.assert_array_equal(before, quam.predict_proba(iris[0]))


ESTIMATORS = {
    "default": None,
    "logistic": LogisticRegression(),
    "sklearn mlp": MLPClassifier((10,), max_iter=30),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "skorch": NeuralNetClassifier(
        MLP,
        module__n_features=4,
        module__n_outputs=3,
        criterion=nn.CrossEntropyLoss,
        max_epochs=10,
        verbose=0,
    ),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("labels", [np.array([0, 1, 2]), np.array(["c", "a", "b"])])
def test_trained_estimators_predict_and_quantify(iris, name, labels):
    X, y = iris[0], labels[iris[1]]
    quam = QUAMClassifier(ESTIMATORS[name], **quick()).fit(X, y)
    assert quam.classes_.tolist() == sorted(labels.tolist())
    assert quam.score(X, y) > 0.6
    u = quam.predict_uncertainty(X[:4])
    assert np.isfinite(u.total).all()
    again = clone(quam).fit(X, y)
    np.testing.assert_array_equal(again.predict_uncertainty(X[:4]).total, u.total)


def test_estimator_passed_in_is_cloned_not_fitted(iris):
    mine = LogisticRegression()
    QUAMClassifier(mine, **quick()).fit(*iris)
    assert not hasattr(mine, "coef_")


@pytest.mark.parametrize("wrap", [FrozenEstimator, lambda m: FrozenEstimator(FrozenEstimator(m))])
def test_frozen_estimator_keeps_its_fit_and_its_class_order(iris, wrap):
    labels = np.array(["z", "x", "y"])[iris[1]]
    mine = LogisticRegression().fit(iris[0], labels)
    quam = QUAMClassifier(wrap(mine), **quick()).fit(iris[0][:30], labels[:30])
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
    with pytest.raises(ValueError, match="feature names"):
        quam.predict_uncertainty(frame.rename(columns={"size": "weight"}))


def test_images_need_not_be_flattened():
    rng = np.random.default_rng(0)
    X, y = rng.random((20, 1, 16, 16)).astype(np.float32), np.arange(20) % 3
    torch.manual_seed(0)
    frozen = FrozenEstimator(LeNet(3, image_shape=(1, 16, 16)))
    images = QUAMClassifier(frozen, **quick()).fit(X, y)
    rows = QUAMClassifier(frozen, **quick()).fit(X.reshape(20, -1), y)
    np.testing.assert_allclose(
        images.predict_uncertainty(X[:3]).total,
        rows.predict_uncertainty(X[:3].reshape(3, -1)).total,
        rtol=1e-5,
    )
    with pytest.raises(ValueError, match=r"X must have shape \(n_samples, 1, 16, 16\)"):
        images.predict_uncertainty(X[:3, :, :8])


def test_module_may_know_classes_that_the_data_lack(iris, trained_module):
    X, y = iris[0][:100], iris[1][:100]
    quam = QUAMClassifier(FrozenEstimator(trained_module), **quick()).fit(X, y)
    assert quam.classes_.tolist() == [0, 1, 2]


def test_batch_size_does_not_change_the_result(iris):
    quam = QUAMClassifier(**quick(train_batch_size=40)).fit(*iris)
    whole = quam.set_params(search__batch_size=20).predict_uncertainty(iris[0][:20])
    pieces = quam.set_params(search__batch_size=3).predict_uncertainty(iris[0][:20])
    np.testing.assert_allclose(pieces.epistemic, whole.epistemic, rtol=1e-9)


def test_sample_weight_zero_removes_a_sample_from_the_search(iris, trained_module):
    X, y = iris
    keep = np.arange(len(X)) % 3 != 0
    frozen = FrozenEstimator(trained_module.double())
    weighted = QUAMClassifier(frozen, **quick()).fit(X, y, sample_weight=keep.astype(float))
    removed = QUAMClassifier(frozen, **quick()).fit(X[keep], y[keep])
    assert weighted.reference_loss_ == pytest.approx(removed.reference_loss_)
    np.testing.assert_allclose(
        weighted.predict_uncertainty(X[:5]).total, removed.predict_uncertainty(X[:5]).total
    )


@pytest.mark.parametrize("prior_precision", [0.0, 20.0])
def test_weights_of_two_are_every_sample_given_twice(iris, trained_module, prior_precision):
    X, y = iris
    quam = QUAMClassifier(
        FrozenEstimator(trained_module.double()),
        **quick(prior_precision=prior_precision, train_batch_size=2 * len(X)),
    )
    once = quam.fit(X, y).predict_uncertainty(X[:5]).epistemic
    weighted = quam.fit(X, y, sample_weight=np.full(len(X), 2.0)).predict_uncertainty(X[:5])
    twice = quam.fit(np.repeat(X, 2, axis=0), np.repeat(y, 2)).predict_uncertainty(X[:5])
    np.testing.assert_allclose(weighted.epistemic, twice.epistemic, rtol=1e-6)
    assert np.abs(weighted.epistemic / once - 1).max() > 0.01


def test_global_random_states_are_left_alone(iris):
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    states = np.random.get_state()[1].copy(), torch.random.get_rng_state()  # noqa: NPY002
    QUAMClassifier(**quick()).fit(*iris).predict_uncertainty(iris[0][:3])
    np.testing.assert_array_equal(states[0], np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(states[1], torch.random.get_rng_state())


def test_adversarial_models_honour_gamma(iris):
    quam = QUAMClassifier(search=PointwiseSearch(n_steps=30), random_state=0, gamma=0.02).fit(*iris)
    found = quam.adversarial_models(iris[0][:10])
    assert found.proba.shape == (10, 3, 3)
    assert found.proba.sum(-1) == pytest.approx(1)
    assert (found.excess_loss[found.feasible] <= 0.02).all()
    strict = quam.set_params(gamma=0.0).adversarial_models(iris[0][:10])
    assert strict.feasible.sum() <= found.feasible.sum()
    both = strict.feasible & found.feasible
    assert (strict.divergence[both] <= found.divergence[both]).all()


def test_higher_temperature_counts_worse_models_too(iris):
    quam = QUAMClassifier(search=PointwiseSearch(n_steps=30), random_state=0).fit(*iris)
    cold = quam.set_params(temperature=1e-4).predict_uncertainty(iris[0][:10]).epistemic
    hot = quam.set_params(temperature=10.0).predict_uncertainty(iris[0][:10]).epistemic
    assert (hot > cold).all()


def test_fitted_classifier_survives_pickling(iris):
    quam = QUAMClassifier(**quick(parameters="last")).fit(*iris)
    again = pickle.loads(pickle.dumps(quam))
    expected = quam.predict_uncertainty(iris[0][:5])
    np.testing.assert_array_equal(again.predict_uncertainty(iris[0][:5]), expected)


def test_grid_search_over_a_pipeline_tunes_and_quantifies(iris):
    pipe = make_pipeline(StandardScaler(), QUAMClassifier(**quick()))
    search = GridSearchCV(pipe, {"quamclassifier__search__parameters": ["all", "last"]}, cv=2)
    search.fit(*iris)
    assert predict_uncertainty(search, iris[0][:3]).total.shape == (3,)


def test_progress_bar_appears_when_asked_for(iris, capsys):
    QUAMClassifier(verbose=1, **quick()).fit(*iris).predict_uncertainty(iris[0][:4])
    assert "QUAM" in capsys.readouterr().err


def test_bare_module_is_taken_as_it_is(iris, trained_module):
    bare = QUAMClassifier(trained_module, **quick()).fit(*iris)
    frozen = QUAMClassifier(FrozenEstimator(trained_module), **quick()).fit(*iris)
    np.testing.assert_array_equal(bare.predict_proba(iris[0]), frozen.predict_proba(iris[0]))


def test_training_a_fitted_estimator_again_is_warned_of(iris):
    with pytest.warns(UserWarning, match="trained again.*FrozenEstimator"):
        QUAMClassifier(LogisticRegression().fit(*iris), **quick()).fit(*iris)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"setting": "both"}, "'setting' parameter"),
        ({"search": PoolSearch(n_steps=0)}, "'n_steps' parameter"),
        ({"search": PointwiseSearch(eta=0.5)}, "'eta' parameter"),
        ({"search": "grid"}, "'search' parameter"),
        ({"temperature": 0.0}, "'temperature' parameter"),
        ({"device": "quantum"}, "cannot be used here"),
    ],
)
def test_invalid_parameters_are_refused_in_fit(iris, params, message):
    with pytest.raises(ValueError, match=message):
        QUAMClassifier(**params).fit(*iris)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.full((2, 4), np.nan), "NaN"),
        (np.zeros((0, 4)), "0 sample"),
        (np.zeros((2, 3)), "3 features"),
    ],
)
def test_bad_inputs_are_refused_and_nothing_fitted_is_lost(iris, X, message):
    quam = QUAMClassifier(**quick()).fit(*iris)
    with pytest.raises(ValueError, match=message):
        quam.predict_uncertainty(X)
    assert quam.predict_uncertainty(iris[0][:1]).total.shape == (1,)


def test_diverging_search_is_an_error_with_advice(iris):
    quam = QUAMClassifier(**quick(c0=1e300, eta=1e10)).fit(*iris)
    with pytest.raises(ValueError, match=r"diverged .* smaller `learning_rate`, or smaller `c0`"):
        quam.predict_uncertainty(iris[0][:2])


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
    pure = NormalisesInPlace(False)
    impure = NormalisesInPlace(True)
    impure.load_state_dict(pure.state_dict())
    first, second = (
        QUAMClassifier(FrozenEstimator(m), **quick(parameters=parameters))
        .fit(*iris)
        .predict_uncertainty(iris[0][:4])
        for m in (pure, impure)
    )
    np.testing.assert_allclose(first.total, second.total, rtol=1e-6)


def test_frozen_skorch_net_with_unseen_classes_keeps_its_outputs(iris):
    X, y = iris[0][iris[1] != 1].astype(np.float32), iris[1][iris[1] != 1]
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        MLP(4, 3), criterion=nn.CrossEntropyLoss, max_epochs=20, lr=0.1, verbose=0
    ).fit(X, y)
    quam = QUAMClassifier(FrozenEstimator(net), **quick()).fit(X, y)
    assert quam.classes_.tolist() == [0, 1, 2]
    assert quam.score(X, y) == np.mean(net.predict(X) == y)
    assert quam.reference_loss_ < 0.5


def test_binary_skorch_net_is_trained_with_any_labels(iris):
    X, y = iris[0], np.array(["no", "yes", "yes"])[iris[1]]
    net = NeuralNetBinaryClassifier(MLP(4, 1), max_epochs=20, lr=0.1, verbose=0)
    quam = QUAMClassifier(net, **quick()).fit(X, y)
    assert quam.score(X, y) > 0.9
    assert quam.predict_uncertainty(X[:3]).total.shape == (3,)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda m: make_pipeline(m),
        lambda m: GridSearchCV(m, {}, cv=2),
        lambda m: GridSearchCV(make_pipeline(StandardScaler(), m), {}, cv=2),
    ],
    ids=["pipeline", "search", "search over pipeline"],
)
@pytest.mark.parametrize("frozen", [True, False])
def test_wrapped_models_work_with_and_without_transformers(iris, wrap, frozen):
    model = wrap(LogisticRegression())
    if frozen:
        model = FrozenEstimator(model.fit(*iris))
    quam = QUAMClassifier(model, **quick()).fit(*iris)
    assert quam.score(*iris) > 0.9
    assert quam.predict_uncertainty(iris[0][:3]).total.shape == (3,)


def test_weights_reach_the_last_step_of_a_pipeline(iris):
    pipe = make_pipeline(StandardScaler(), LogisticRegression())
    weight = (iris[1] != 2).astype(float)
    quam = QUAMClassifier(pipe, **quick()).fit(*iris, sample_weight=weight)
    assert (quam.predict(iris[0]) != 2).all()


def test_adopting_and_training_leave_the_torch_random_state_alone(iris):
    state = torch.random.get_rng_state()
    for name in ("logistic", "pipeline", "skorch"):
        QUAMClassifier(ESTIMATORS[name], **quick()).fit(*iris)
    assert torch.equal(state, torch.random.get_rng_state())


def test_invalid_parameters_set_after_fit_are_refused(iris):
    quam = QUAMClassifier(**quick()).fit(*iris)
    with pytest.raises(ValueError, match="'temperature' parameter"):
        quam.set_params(temperature=0.0).predict_uncertainty(iris[0][:2])
    with pytest.raises(ValueError, match="'temperature' parameter"):
        quam.set_params(temperature="cold").predict_uncertainty(iris[0][:2])
    with pytest.raises(ValueError, match="'gamma' parameter"):
        quam.set_params(temperature="auto", gamma=-1.0).adversarial_models(iris[0][:2])
    quam.set_params(gamma=0.01)
    cold = quam.set_params(temperature=1e-300).predict_uncertainty(iris[0][:2])
    assert np.isfinite(cold.total).all()


def test_inference_mode_does_not_stop_the_search(iris):
    quam = QUAMClassifier(**quick()).fit(*iris)
    expected = quam.predict_uncertainty(iris[0][:2])
    with torch.inference_mode():
        np.testing.assert_array_equal(quam.predict_uncertainty(iris[0][:2]), expected)


def test_value_too_large_for_a_float32_model_is_refused(iris, trained_module):
    quam = QUAMClassifier(FrozenEstimator(trained_module.float()), **quick()).fit(*iris)
    with pytest.raises(ValueError, match=r"too large for the model's torch\.float32"):
        quam.predict_proba(np.full((1, 4), 1e39))


@pytest.mark.parametrize("search", [PoolSearch, PointwiseSearch])
def test_all_weights_of_a_recurrent_network_are_searched(search):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(2, 4, batch_first=True)
            self.out = nn.Linear(4, 2)

        def forward(self, X):
            return self.out(self.lstm(X.reshape(-1, 3, 2))[0][:, -1])

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 6)), np.arange(12) % 2
    torch.manual_seed(0)
    quam = QUAMClassifier(Recurrent(), search=search(parameters="all", n_steps=6), random_state=0)
    quam.fit(X, y)
    u = quam.predict_uncertainty(X)
    assert (u.epistemic > 0).all()
    np.testing.assert_allclose(quam.predict_uncertainty(X[:2]).total, u.total[:2], rtol=1e-4)
