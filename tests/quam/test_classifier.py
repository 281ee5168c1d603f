"""QUAMClassifier around networks and linear models, with searches at points and on pools."""

import warnings
from copy import deepcopy

import joblib
import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.fixes import parse_version
from skorch import NeuralNetClassifier
from torch import nn

from skuq import QUAMClassifier
from skuq._networks import MLP
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch
from tests.written import Written


def quick(**search):
    return {"search": PointwiseSearch(**{"n_steps": 6, **search}), "random_state": 0}


@pytest.fixture(scope="module")
def module(iris):
    """A trained network in double precision; nothing may change it."""
    X, y = map(torch.tensor, iris)
    torch.manual_seed(0)
    net = MLP(4, 3, hidden_sizes=(20,)).double()
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return net.eval()


@pytest.mark.parametrize(
    ("estimator", "search"),
    [
        (LogisticRegression(), PointwiseSearch(n_steps=6)),
        (LogisticRegression(), PoolSearch(n_steps=20)),
        (DecisionTreeClassifier(max_depth=2), RefitSearch()),
        # Of which a limited copy takes its place in the mixture.
        (RandomForestClassifier(5, random_state=0), RefitSearch()),
    ],
    ids=["pointwise", "pool", "refit", "forest"],
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
    assert best.feasible.any()
    for each in (proba, np.where(best.feasible[..., None], best.proba, proba)):
        assert (bounds.lower[:, None] <= each + 1e-6).all()
        assert (each <= bounds.upper[:, None] + 1e-6).all()
    assert (bounds.upper - bounds.lower).max() > 0.05
    # A model that was found explains the data and the class at no less than the cost of the class.
    costs, log_proba = quam.explain_classes(X), np.log(best.proba)
    assert (costs >= 0).all()
    assert (costs <= -np.log(proba[:, 0]) + 1e-9).all()
    of_best = len(iris[0]) * best.excess_loss.clip(0)[..., None] - log_proba
    assert (costs[:, None] <= of_best + 1e-4).all()
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
    rows, before = iris[0][:5], deepcopy(module.state_dict())
    outputs = module(torch.as_tensor(rows)).detach()
    for given in (module, FrozenEstimator(module), FrozenEstimator(FrozenEstimator(module))):
        quam = QUAMClassifier(given, setting="selected", **search).fit(*iris)
        u, proba = quam.predict_uncertainty(rows), quam.predict_proba(rows)
        quam.adversarial_models(rows)
        assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
        assert torch.equal(outputs, module(torch.as_tensor(rows)))
        assert all(p.requires_grad and p.grad is None for p in module.parameters())
        np.testing.assert_allclose(proba, outputs.softmax(-1).numpy(), rtol=1e-6)
        assert u.aleatoric == pytest.approx(-(proba * np.log(proba)).sum(1))
        assert (u.epistemic > 0).all()


def test_models_may_know_classes_that_the_data_lack(iris, module):
    X, y = iris[0][iris[1] < 2].astype(np.float32), iris[1][iris[1] < 2]
    options = {"criterion": nn.CrossEntropyLoss, "lr": 0.3, "verbose": 0, "batch_size": 32}
    net = NeuralNetClassifier(MLP(4, 3), max_epochs=20, **options)
    for given in (module, net.fit(X, y)):
        quam = QUAMClassifier(FrozenEstimator(given), **quick(n_steps=2)).fit(X, y)
        assert quam.classes_.tolist() == [0, 1, 2]
    assert quam.score(X, y) == np.mean(net.predict(X) == y)
    assert quam.reference_loss_ < 0.5


def test_batch_size_does_not_change_the_result(iris, module, capsys):
    quam = QUAMClassifier(module, verbose=1, **quick(train_batch_size=40)).fit(*iris)
    whole = quam.set_params(search__batch_size=20).predict_uncertainty(iris[0][:20])
    assert "QUAM" in capsys.readouterr().err
    pieces = quam.set_params(search__batch_size=3).predict_uncertainty(iris[0][:20])
    np.testing.assert_allclose(pieces.epistemic, whole.epistemic, rtol=1e-9)


def test_adversarial_models_honour_gamma(iris, module):
    rows = iris[0][::10]
    quam = QUAMClassifier(module, gamma=0.02, **quick(n_steps=15)).fit(*iris)
    found = quam.adversarial_models(rows)
    assert found.proba.sum(-1) == pytest.approx(np.ones((8, 3)))
    assert (found.excess_loss[found.feasible] <= 0.02).all()
    strict = quam.set_params(gamma=0.0).adversarial_models(rows)
    assert strict.feasible.sum() <= found.feasible.sum()
    both = strict.feasible & found.feasible
    assert (strict.divergence[both] <= found.divergence[both]).all()
    cold, hot = (quam.set_params(temperature=t).predict_uncertainty(rows) for t in (1e-300, 10.0))
    assert (hot.epistemic > cold.epistemic).all()  # worse models count, too
    assert np.isfinite(cold.total).all()


@pytest.mark.parametrize("parameters", ["all", "last"])
def test_module_that_alters_its_input_gives_what_its_twin_gives(iris, parameters):
    torch.manual_seed(0)
    layer, search = nn.Linear(4, 3), quick(parameters=parameters)
    in_place = Written(lambda self, X: X.sub_(1.0).div_(2.0))
    firsts = in_place, Written(lambda self, X: (X - 1.0) / 2.0)
    quam = (QUAMClassifier(nn.Sequential(first, layer), **search) for first in firsts)
    totals = (each.fit(*iris).predict_uncertainty(iris[0][:4]).total for each in quam)
    np.testing.assert_allclose(*totals, rtol=1e-6)
