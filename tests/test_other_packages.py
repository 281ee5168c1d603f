"""Ensembles and posteriors of other packages, by stand-ins with their interfaces."""

import re
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

from skuq import CalibrationAuditor, DeepEnsembleClassifier, predict_uncertainty
from skuq.testing import check_uncertainty_estimator

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


def test_a_posterior_of_models_decomposes(flowers, laplace_torch):
    X, y = flowers
    mine = laplace_torch(Posterior(0.3)).fit(X, y)
    u = predict_uncertainty(mine, X)
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic)
    proba = mine.predict_proba(X)
    np.testing.assert_allclose(u.total, -(proba * np.log(proba)).sum(1), atol=1e-9)
    assert (u.epistemic > 0).all()
    certain = laplace_torch(Posterior(0.0)).fit(X, y).predict_uncertainty(X)
    np.testing.assert_allclose(certain.epistemic, 0, atol=1e-9)


def test_an_adapted_posterior_keeps_the_protocol_and_clones_share_it(flowers, laplace_torch):
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
