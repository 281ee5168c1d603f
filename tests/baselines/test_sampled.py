"""Behaviour that all classifiers share that sample models."""

import importlib.util
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skuq import QUAMClassifier
from skuq.baselines import (
    DeepEnsembleClassifier,
    FeatureDistanceClassifier,
    LaplaceClassifier,
    MCDropoutClassifier,
    ReferenceClassifier,
    SGMCMCClassifier,
)
from skuq.quam import PoolSearch

SAMPLED = {
    "ensemble": DeepEnsembleClassifier(n_members=2, random_state=0),
    "dropout": MCDropoutClassifier(n_samples=7, random_state=0),
    "laplace": LaplaceClassifier(n_samples=7, random_state=0),
}
if importlib.util.find_spec("posteriors"):
    SAMPLED["sgmcmc"] = SGMCMCClassifier(
        n_chains=3, n_samples=2, steps_per_sample=10, random_state=0
    )
ALL = {
    "reference": ReferenceClassifier(random_state=0),
    "distance": FeatureDistanceClassifier(random_state=0),
    **SAMPLED,
}
SETTINGS = ("selected", "expected", "pairwise", "max-score")


def selected(name):
    """The method about the given model, which then predicts."""
    model = clone(ALL[name])
    return model.set_params(setting="selected") if name in SAMPLED else model


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("name", ALL)
def test_global_random_states_and_the_estimator_given_are_left_alone(iris, name):
    np.random.seed(5)  # noqa: NPY002
    states = np.random.get_state()[1].copy(), torch.random.get_rng_state()  # noqa: NPY002
    mine = LogisticRegression()
    model = clone(ALL[name])
    if name != "dropout":
        model.set_params(estimator=mine)
    model.fit(*iris).predict_uncertainty(iris[0][:3])
    np.testing.assert_array_equal(states[0], np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(states[1], torch.random.get_rng_state())
    assert not hasattr(mine, "coef_")


@pytest.mark.slow
@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("name", sorted(set(ALL) - {"dropout"}))  # its network is another
def test_same_seed_questions_the_model_that_quam_questions(iris, name):
    proba = selected(name).fit(*iris).predict_proba(iris[0])
    quam = QUAMClassifier(search=PoolSearch(n_steps=1), random_state=0).fit(*iris)
    np.testing.assert_array_equal(proba, quam.predict_proba(iris[0]))


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("name", SAMPLED)
def test_result_is_the_same_in_batches_copies_clones_and_with_text_labels(iris, name):
    X, y = iris[0], np.array(["c", "a", "b"])[iris[1]]
    model = clone(SAMPLED[name]).fit(X, y)
    again, other = (clone(model).set_params(random_state=seed).fit(X, y) for seed in (0, 1))
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert model.score(X, y) > 0.9
    for setting in SETTINGS:
        whole = model.set_params(setting=setting, batch_size=256).predict_uncertainty(X[:20])
        proba = model.predict_proba(X[:20])
        assert (whole.part_or_total("epistemic") > 0).all()
        restored = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(restored.predict_uncertainty(X[:20]), whole)
        repeated = again.set_params(setting=setting).predict_uncertainty(X[:20])
        np.testing.assert_array_equal(repeated, whole)
        pieces = model.set_params(batch_size=3).predict_uncertainty(X[:20])
        np.testing.assert_allclose(pieces, whole, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(model.predict_proba(X[:20]), proba, rtol=1e-9)
        np.testing.assert_array_equal(
            model.score_samples(X[:20]), -pieces.part_or_total("epistemic")
        )
        elsewhere = other.set_params(setting=setting).predict_uncertainty(X[:20])
        assert not np.allclose(elsewhere.total, whole.total)


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("name", SAMPLED)
def test_who_is_uncertain_is_who_predicts(iris, name):
    X = iris[0][45:60]
    model = selected(name).fit(*iris)
    given = model.predict_proba(X)
    entropy_of = lambda p: -(p * np.log(p)).sum(axis=1)  # noqa: E731
    np.testing.assert_allclose(model.predict_uncertainty(X).aleatoric, entropy_of(given))
    mean = model.set_params(setting="expected").predict_proba(X)
    assert abs(mean - given).max() > 1e-6
    np.testing.assert_allclose(model.predict_uncertainty(X).total, entropy_of(mean))
    model.set_params(setting="max-score")
    np.testing.assert_array_equal(model.predict_proba(X), mean)
    u = model.predict_uncertainty(X)
    np.testing.assert_allclose(u.total, 1 - mean.max(axis=1))
    assert np.isnan([u.aleatoric, u.epistemic]).all()


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("name", SAMPLED)
def test_ranges_are_those_of_the_models_and_hold_the_prediction(iris, name):
    X = iris[0][45:60]
    model = clone(SAMPLED[name]).fit(*iris)
    sampled = model._sampler(torch.device("cpu"))(X).exp().numpy()
    for setting in SETTINGS:
        lower, upper = model.set_params(setting=setting, batch_size=256).predict_proba_bounds(X)
        proba = model.predict_proba(X)
        models = np.concatenate([sampled, proba[:, None]], axis=1)
        np.testing.assert_allclose(lower, models.min(axis=1), rtol=1e-6)
        np.testing.assert_allclose(upper, models.max(axis=1), rtol=1e-6)
        assert (upper - lower).max() > 1e-6
        pieces = model.set_params(batch_size=4).predict_proba_bounds(X)
        np.testing.assert_allclose(pieces, (lower, upper), rtol=1e-6)


@pytest.mark.parametrize("wrap", [FrozenEstimator, lambda module: module], ids=["frozen", "bare"])
@pytest.mark.parametrize("name", ALL)
def test_module_is_taken_as_it_is_and_never_altered(iris, dropped, name, wrap):
    before = {key: value.clone() for key, value in dropped.state_dict().items()}
    x = torch.as_tensor(iris[0][:5])
    outputs = dropped(x).detach()
    model = selected(name)
    if name == "ensemble":
        model.set_params(n_members=1)
    model.set_params(estimator=wrap(dropped)).fit(*iris)
    model.predict_uncertainty(iris[0][:5])
    assert all(torch.equal(before[k], v) for k, v in dropped.state_dict().items())
    assert not any(part.training or part._forward_hooks for part in dropped.modules())
    assert all(p.requires_grad and p.grad is None for p in dropped.parameters())
    np.testing.assert_allclose(model.predict_proba(iris[0][:5]), outputs.softmax(-1).numpy())


@pytest.mark.parametrize("name", ["ensemble", "laplace"])
def test_training_a_fitted_estimator_again_is_warned_of(iris, name):
    fitted = LogisticRegression().fit(*iris)
    with pytest.warns(UserWarning, match=r"trained again.*FrozenEstimator"):
        clone(ALL[name]).set_params(estimator=fitted).fit(*iris)


def test_weights_that_are_all_zero_are_refused(iris):
    with pytest.raises(ValueError, match=r"at least one (must count|non-zero)"):
        ReferenceClassifier().fit(*iris, sample_weight=np.zeros(150))


def test_setting_is_checked_after_fit_too(iris):
    model = LaplaceClassifier(LogisticRegression()).fit(*iris).set_params(setting="both")
    for predict in (model.predict_uncertainty, model.predict_proba):
        with pytest.raises(ValueError, match="'setting' parameter"):
            predict(iris[0])


@pytest.mark.parametrize("name", ["laplace", "dropout"])
def test_data_for_early_stopping_need_an_estimator_that_takes_them(iris, name):
    with pytest.raises(TypeError, match="X_val"):
        clone(SAMPLED[name]).fit(*iris, X_val=iris[0], y_val=iris[1])


def test_text_columns_reach_a_model_that_preprocesses():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"size": [1.0, 2.0, 3.0, 4.0] * 5, "colour": ["red", "blue"] * 10})
    y = np.array(["yes", "no", "no", "no"] * 5)
    table = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"]))
    pipe = make_pipeline(table, LogisticRegression())
    members = [clone(pipe).set_params(logisticregression__C=c).fit(frame, y) for c in (0.1, 1.0)]
    for model in (
        LaplaceClassifier(pipe, random_state=0),
        DeepEnsembleClassifier(members=members),
    ):
        u = model.set_params(batch_size=2).fit(frame, y).predict_uncertainty(frame[:3])
        assert (u.epistemic > 0).all()


@pytest.mark.parametrize("name", SAMPLED)
def test_defaults_mean_the_same_quantity_as_those_of_quam(name):
    assert type(SAMPLED[name])().setting == QUAMClassifier().setting == "expected"


@pytest.mark.parametrize("name", SAMPLED)
def test_epistemic_part_by_default_is_mutual_information(iris, name):
    model = clone(SAMPLED[name]).fit(*iris)
    u = model.predict_uncertainty(iris[0][45:60])
    proba = model.predict_proba(iris[0][45:60])
    np.testing.assert_allclose(u.total, -(proba * np.log(proba)).sum(axis=1))
    assert (u.epistemic <= np.log(3)).all()
