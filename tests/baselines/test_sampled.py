"""Behaviour that all baselines share, and the entropy of a single model."""

import importlib.util
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import skuq
from skuq.quam import PoolSearch
from tests.baselines.oracles import assert_as_by_hand

SAMPLED = {
    "ensemble": skuq.DeepEnsembleClassifier(n_members=2, random_state=0),
    "dropout": skuq.MCDropoutClassifier(n_samples=7, random_state=0),
    "laplace": skuq.LaplaceClassifier(n_samples=7, random_state=0),
}
if importlib.util.find_spec("posteriors"):
    chains = {"n_chains": 3, "n_samples": 2, "steps_per_sample": 10, "random_state": 0}
    SAMPLED["sgmcmc"] = skuq.SGMCMCClassifier(**chains)
ALL = {
    "reference": skuq.ReferenceClassifier(random_state=0),
    "distance": skuq.FeatureDistanceClassifier(random_state=0),
    **SAMPLED,
}


def selected(name):
    """The method about the given model, which then predicts."""
    model = clone(ALL[name])
    return model.set_params(setting="selected") if name in SAMPLED else model


@pytest.mark.usefixtures("short_training")
def test_same_seed_questions_the_model_that_quam_questions(iris):
    quam = skuq.QUAMClassifier(search=PoolSearch(n_steps=1), random_state=0).fit(*iris)
    expected = quam.predict_proba(iris[0])
    for name in sorted(set(ALL) - {"dropout"}):  # its network is another
        proba = selected(name).fit(*iris).predict_proba(iris[0])
        np.testing.assert_array_equal(proba, expected, err_msg=name)


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("name", SAMPLED)
def test_results_and_ranges_are_those_of_the_models_in_any_batches(iris, name):
    X = iris[0][45:60]
    model = selected(name).fit(*iris)
    given, other = model.predict_proba(X), clone(model).set_params(random_state=1).fit(*iris)
    sampled = model._sampler(torch.device("cpu"))(X).exp().numpy()
    assert abs(sampled.mean(axis=1) - given).max() > 1e-6
    for setting in ("selected", "expected", "pairwise", "max-score"):
        whole = model.set_params(setting=setting, batch_size=256).predict_uncertainty(X)
        assert_as_by_hand(whole, given, sampled, setting, rtol=1e-6, atol=1e-9)
        proba, (lower, upper) = model.predict_proba(X), model.predict_proba_bounds(X)
        expected = given if setting == "selected" else sampled.mean(axis=1)
        np.testing.assert_allclose(proba, expected, rtol=1e-6)
        models = np.concatenate([sampled, proba[:, None]], axis=1)
        np.testing.assert_allclose(lower, models.min(axis=1), rtol=1e-6)
        np.testing.assert_allclose(upper, models.max(axis=1), rtol=1e-6)
        assert (upper - lower).max() > 1e-6
        pieces = model.set_params(batch_size=4).predict_uncertainty(X)
        np.testing.assert_allclose(pieces, whole, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(model.predict_proba(X), proba, rtol=1e-9)
        np.testing.assert_allclose(model.predict_proba_bounds(X), (lower, upper), rtol=1e-6)
        elsewhere = other.set_params(setting=setting).predict_uncertainty(X)
        assert not np.allclose(elsewhere.total, whole.total)


@pytest.mark.parametrize("name", ALL)
def test_module_is_taken_as_it_is_and_never_altered(iris, dropped, name):
    before, x = deepcopy(dropped.state_dict()), torch.as_tensor(iris[0][:5])
    outputs = dropped(x).detach()
    model = selected(name)
    if name == "ensemble":
        model.set_params(n_members=1)
    wrapped = dropped if name in ("reference", "laplace") else FrozenEstimator(dropped)
    model.set_params(estimator=wrapped).fit(*iris)
    model.predict_uncertainty(iris[0][:5])
    assert all(torch.equal(before[k], v) for k, v in dropped.state_dict().items())
    assert not any(part.training or part._forward_hooks for part in dropped.modules())
    assert all(p.requires_grad and p.grad is None for p in dropped.parameters())
    np.testing.assert_allclose(model.predict_proba(iris[0][:5]), outputs.softmax(-1).numpy())


def test_text_columns_reach_a_model_that_preprocesses():
    frame = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0] * 5, "colour": ["red", "blue"] * 10})
    y = np.array(["yes", "no", "no", "no"] * 5)
    table = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"]))
    pipe = make_pipeline(table, LogisticRegression())
    ensemble = skuq.DeepEnsembleClassifier(pipe.fit(frame, y), n_members=2, random_state=0)
    with pytest.warns(UserWarning, match="FrozenEstimator"):  # it is trained again
        ensemble.fit(frame, y)
    for model in (skuq.LaplaceClassifier(clone(pipe), random_state=0).fit(frame, y), ensemble):
        u = model.set_params(batch_size=2).predict_uncertainty(frame[:3])
        assert (u.epistemic > 0).all()


LEARNERS = [
    *(LogisticRegression(), KNeighborsClassifier(), LinearDiscriminantAnalysis()),
    DecisionTreeClassifier(max_depth=2, random_state=0),
    CalibratedClassifierCV(LogisticRegression(), cv=2),
]


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda each: type(each).__name__)
def test_every_classifier_with_probabilities_has_an_entropy(iris, learner):
    fitted = clone(learner).fit(*iris)
    p = fitted.predict_proba(iris[0])
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(1)
    for estimator in (learner, FrozenEstimator(fitted)):
        reference = skuq.ReferenceClassifier(estimator, random_state=0).fit(*iris)
        np.testing.assert_allclose(reference.predict_proba(iris[0]), p, atol=1e-9)
        u = reference.predict_uncertainty(iris[0])
        np.testing.assert_allclose(u.total, entropy, atol=1e-9)
        np.testing.assert_array_equal(u.total, u.aleatoric)
        assert np.isnan(u.epistemic).all()
