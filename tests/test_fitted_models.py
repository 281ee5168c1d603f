"""Models that users have: fitted ones, and ensembles and posteriors of other packages."""

import re
import sys
import textwrap
import types
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import skuq
from skuq import CalibrationAuditor, DeepEnsembleClassifier, predict_uncertainty
from skuq.models import unfitted
from skuq.quam import PoolSearch
from skuq.tables import TableModel
from skuq.testing import check_uncertainty_estimator

# What trains clones and trains; what works after the fact uses any fitted model as it is.
TRAIN = {
    # With this prior, all models that it draws and averages are the given one.
    "LaplaceClassifier": {"random_state": 0, "prior_precision": 1e12},
    "FeatureDistanceClassifier": {},
    "OODDetector": {"scores": ["energy"]},
    "QUAMClassifier": {"search": PoolSearch(n_steps=2)},
    "ReferenceClassifier": {},
}
AFTER_THE_FACT = {"CalibrationAuditor": {}, "EvidentialProbe": {"max_epochs": 2}}
AFTER_THE_FACT |= {"MirageFineTuner": {"max_epochs": 1, "region": {0: (5.0, 6.0)}}}
# One predicts inliers, not classes, and one changes a copy on purpose.
OTHER_PREDICTIONS = ("OODDetector", "MirageFineTuner")
X, Y = load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def given():
    """A model of other labels, which a model of those of iris would never predict."""
    return MLPClassifier((4,), max_iter=60, random_state=0).fit(X, 2 - Y)


@pytest.mark.parametrize("name", TRAIN)
def test_what_trains_warns_and_trains_a_clone_of_a_fitted_model(given, name):
    before = given.predict_proba(X)
    with pytest.warns(UserWarning, match="FrozenEstimator"):
        estimator = getattr(skuq, name)(given, **TRAIN[name]).fit(X, Y)
    np.testing.assert_array_equal(given.predict_proba(X), before)
    if name not in OTHER_PREDICTIONS:
        np.testing.assert_array_equal(estimator.predict(X), clone(given).fit(X, Y).predict(X))


@pytest.mark.parametrize(
    ("name", "around"),
    [(name, FrozenEstimator) for name in (*TRAIN, *AFTER_THE_FACT)]
    + [(name, lambda model: model) for name in AFTER_THE_FACT],
)
def test_a_frozen_model_and_any_model_after_the_fact_are_used_as_they_are(given, name, around):
    before = given.predict_proba(X)
    estimator = getattr(skuq, name)(around(given), **(TRAIN | AFTER_THE_FACT)[name])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*FrozenEstimator.*")
        estimator.fit(X, 2 - Y)
    np.testing.assert_array_equal(given.predict_proba(X), before)
    if name not in OTHER_PREDICTIONS:
        np.testing.assert_array_equal(estimator.predict(X), given.predict(X))


class Rejects(LogisticRegression):
    def predict(self, X):
        return np.where(self.predict_proba(X).max(axis=1) > 0.6, super().predict(X), -1)


LINEAR = LogisticRegression()
FIXED, TUNED = FixedThresholdClassifier, TunedThresholdClassifierCV
MODELS = [FIXED(LINEAR, threshold=0.1), Rejects(), TUNED(LINEAR, scoring="recall")]


@pytest.mark.parametrize("model", MODELS)
def test_the_decision_of_a_given_model_is_its_own(model):
    table, labels = pd.DataFrame(X[61:, :2]).add_prefix("x"), np.where(Y[61:] > 1, 1, 0)
    own, proba = model.fit(table, labels).predict(table), model.predict_proba(table)
    best = np.where(own < 0, proba.argmax(axis=1), own)  # rejections cannot evade an audit
    assert 5 < (own != proba.argmax(axis=1)).sum() < 80
    for wrapped in (skuq.QUAMClassifier, skuq.ReferenceClassifier, skuq.CalibrationAuditor):
        found = wrapped(FrozenEstimator(model)).fit(table, labels)
        np.testing.assert_array_equal(found.predict(table), own)
    assert found.accuracy_ == np.mean(best == labels)
    of_table = TableModel(model).fit(table, labels)
    rows, held = of_table.predict(table), of_table.held_out_["prediction"]
    np.testing.assert_array_equal(rows["prediction"], own)
    np.testing.assert_array_equal(held, own[held.index])
    stated = np.where(own < 0, 0, proba[np.arange(len(own)), best])
    np.testing.assert_allclose(rows["confidence"], stated)
    assert all(str(one) in s for one, s in zip(best, rows["prediction_set"], strict=True))


class Sampler(BaseEstimator):
    """Takes each row of the rare class several times, as samplers of imbalanced-learn do."""

    n_calls = 0

    def fit_resample(self, X, y):
        Sampler.n_calls += 1
        kept = np.repeat(np.arange(len(y)), np.where(y == 1, 5, 1))
        return np.asarray(X)[kept], y[kept]


class SamplingPipeline(Pipeline):
    """Pipeline of a scaler, a sampler and a model; samplers are skipped in prediction."""

    def _iter(self, *args, **options):
        return (step for step in super()._iter(*args, **options) if step[1] != "sampler")

    def fit(self, X, y):
        *first, (_, sampler), (_, model) = self.steps
        for _, scaler in first:  # without it in refits
            X = scaler.fit_transform(X)
        model.fit(*sampler.fit_resample(X, y))
        return self


@pytest.mark.parametrize("wrap", [FrozenEstimator, clone], ids=["frozen", "trained"])
@pytest.mark.parametrize("last", [LINEAR, DecisionTreeClassifier(random_state=0)])
def test_samplers_of_a_pipeline_work_in_training_only(last, wrap):
    table, labels = pd.DataFrame(X).add_prefix("x"), np.where(Y > 1, 1, 0)
    steps = [("scaler", StandardScaler()), ("sampler", Sampler()), ("model", last)]
    model = SamplingPipeline(steps).fit(table, labels)
    Sampler.n_calls = 0
    with pytest.warns(UserWarning, match="not frequencies"):
        quam = skuq.QUAMClassifier(wrap(model), random_state=0).fit(table, labels)
    np.testing.assert_allclose(quam.predict_proba(table), model.predict_proba(table), atol=1e-6)
    assert Sampler.n_calls >= 5  # once for each refit, too
    skuq.OODDetector(wrap(model), random_state=0).fit(table, labels).predict(table)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        told = TableModel(model).fit(table, labels).warnings_
    assert [note for note in told if "not frequencies" in note]


@pytest.mark.parametrize(
    ("library", "name"), [("xgboost", "XGBClassifier"), ("lightgbm", "LGBMClassifier")]
)
def test_refits_of_a_model_that_stopped_early_have_its_best_number_of_trees(library, name):
    learner = getattr(pytest.importorskip(library), name)
    boosted = learner(n_estimators=99, early_stopping_rounds=3)
    boosted.fit(X[::2], Y[::2], eval_set=[(X[1::2], Y[1::2])])
    again = unfitted(boosted).fit(X[::2], Y[::2])
    np.testing.assert_allclose(again.predict_proba(X), boosted.predict_proba(X), atol=1e-6)
    skuq.QUAMClassifier(FrozenEstimator(boosted), random_state=0).fit(X[::2], Y[::2])


GUIDE = Path(__file__).parents[1] / "docs" / "guide"


class Posterior:
    """A fitted approximation with the interface of laplace-torch: normally distributed logits."""

    def __init__(self, scale):
        self.scale = scale

    def predictive_samples(self, x, pred_type="glm", n_samples=100, generator=None):
        noise = torch.randn(n_samples, len(x), 3, generator=generator)
        return (x[:, :3] + self.scale * x.norm(dim=1, keepdim=True) * noise).softmax(-1)


@pytest.fixture(scope="module")
def flowers():
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(np.float32), y


@pytest.fixture(scope="module")
def modules():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(3)]


def run_block_of_the_guide(word, **names):
    """The module with the names of the block with this word on the page."""
    page = (GUIDE / "existing_models.rst").read_text(encoding="utf-8")
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?: {3}.*\n|\n)+)", page, re.MULTILINE)
    (code,) = [block for block in blocks if word in block]
    module = types.ModuleType("page_of_the_guide")
    vars(module).update(names)
    exec(textwrap.dedent(code), module.__dict__)
    return module


@pytest.fixture(scope="module")
def laplace_torch():
    module = run_block_of_the_guide("class LaplaceTorch", torch=torch)
    sys.modules[module.__name__] = module  # so that it can be pickled
    yield module.LaplaceTorch
    del sys.modules[module.__name__]


@pytest.mark.parametrize("pack", [tuple, nn.ModuleList])  # as torch-uncertainty has them
def test_members_of_a_trained_ensemble_are_taken_and_stay_as_they_are(flowers, modules, pack):
    X, y = flowers
    before = [parameter.clone() for parameter in nn.ModuleList(modules).parameters()]
    expected = DeepEnsembleClassifier(members=modules).fit(X, y).predict_uncertainty(X)
    ours = DeepEnsembleClassifier(members=pack(modules)).fit(X, y)
    assert all(map(torch.equal, before, nn.ModuleList(modules).parameters()))
    for each in (ours, clone(ours).fit(X, y)):
        np.testing.assert_array_equal(each.predict_uncertainty(X), expected)


def test_frozen_members_survive_a_clone(flowers):
    with pytest.raises(ValueError, match="`members`"):
        DeepEnsembleClassifier(members=nn.ModuleList()).fit(*flowers)
    members = [FrozenEstimator(LogisticRegression(C=c).fit(*flowers)) for c in (0.1, 10.0)]
    ensemble = clone(DeepEnsembleClassifier(members=members)).fit(*flowers)
    assert ensemble.predict_uncertainty(flowers[0]).epistemic.max() > 0


def test_a_posterior_of_models_decomposes_keeps_the_protocol_and_is_shared_by_clones(
    flowers, laplace_torch
):
    X, y = flowers
    mine = laplace_torch(Posterior(0.3)).fit(X, y)
    u = predict_uncertainty(mine, X)
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic)
    proba = mine.predict_proba(X)
    np.testing.assert_allclose(u.total, -(proba * np.log(proba)).sum(1), atol=1e-9)
    assert (u.epistemic > 0).all()
    certain = laplace_torch(Posterior(0.0)).fit(X, y).predict_uncertainty(X)
    np.testing.assert_allclose(certain.epistemic, 0, atol=1e-9)
    X, y = flowers
    posterior = Posterior(0.3)
    check_uncertainty_estimator(laplace_torch(posterior, n_samples=20), X=X[::10], y=y[::10])
    # Hooks of a last-layer posterior stay attached to the original network in a deep copy.
    assert clone(laplace_torch(posterior)).laplace is posterior


def test_a_model_behind_a_service_is_the_model_itself(flowers):
    X, y = flowers
    model = LogisticRegression().fit(X, y)
    page = run_block_of_the_guide("class Service", model=model, X=X, y=y)
    assert page.flagged.all()
    local = CalibrationAuditor(FrozenEstimator(model), n_bins=5).fit(X[1::2], y[1::2])
    assert page.error == pytest.approx(local.ece_)
