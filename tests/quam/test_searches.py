"""Searches as parameters: which one suits which model, schedules, memory, time and progress."""

import re
import sys
import warnings
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from skorch import NeuralNetClassifier
from torch import nn

from skuq import QUAMClassifier, predict_uncertainty
from skuq._networks import MLP
from skuq.models import look_at
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch, _base, _search, make_pool
from skuq.quam import _gradient_search as gradient_module
from skuq.quam._refit_search import _pickled_size
from skuq.quam._search import Regression, mean_excess, warn_if_slow, with_progress

FEW = partial(make_pool, n_inputs=50, random_state=0)
SMALL_NET = MLPClassifier((4,), learning_rate_init=0.03, tol=0.02, random_state=0)
TREE = DecisionTreeClassifier(max_depth=3, random_state=0)

pytestmark = pytest.mark.filterwarnings("ignore:The model's loss on the training data")


@pytest.fixture(scope="module")
def many():
    """Data of 14 classes, and a linear network around them."""
    X, y = make_classification(
        400, 8, n_informative=8, n_redundant=0, n_classes=14, n_clusters_per_class=1, random_state=0
    )
    X = X.astype(np.float32)
    given = LogisticRegression(max_iter=100, tol=0.01).fit(X, y)
    net = nn.Linear(8, 14)
    with torch.no_grad():
        net.weight.copy_(torch.tensor(given.coef_))
        net.bias.copy_(torch.tensor(given.intercept_))
    return X, y, net, given


def searched(kind, net):
    if kind == "networks":
        return net, PoolSearch(n_steps=4, pool=FEW)
    return TREE, RefitSearch(pool=FEW)


@pytest.mark.parametrize(
    ("estimator", "search", "name", "values"),
    [
        (LogisticRegression(), PoolSearch(n_steps=3, pool=FEW), "n_steps", [2, 4]),
        (TREE, RefitSearch(pool=FEW), "shares", [(0.1,), (0.4,)]),
    ],
    ids=["network", "tree"],
)
def test_a_grid_over_a_pipeline_reaches_the_search(iris, estimator, search, name, values):
    def epistemic_of_strange(estimator, X, y):
        return predict_uncertainty(estimator, X * [1, 1, 1, -3]).epistemic.mean()

    before = search.get_params()
    pipe = make_pipeline(StandardScaler(), QUAMClassifier(estimator, search=search, random_state=0))
    grid = {f"quamclassifier__search__{name}": values}
    grid = GridSearchCV(pipe, grid, cv=2, scoring=epistemic_of_strange).fit(*iris)
    assert getattr(grid.best_estimator_[-1].search_, name) in values
    first, second = grid.cv_results_["mean_test_score"]
    assert np.isfinite([first, second]).all()
    assert first != second  # the searches were different ones
    assert vars(search) == search.get_params() == before


def chosen(estimator, *data, search=None):
    return QUAMClassifier(search=search)._chosen_search(look_at(estimator), None, *data)


def test_the_search_that_suits_a_model_is_taken_unless_a_name_stands_for_another(iris):
    options = {"max_epochs": 2, "train_split": None, "verbose": 0}
    skorch = NeuralNetClassifier(MLP(4, 3), criterion=nn.CrossEntropyLoss, **options)
    by_gradients = [None, SMALL_NET, MLP(4, 3), skorch, MLPRegressor()]
    by_gradients += [make_pipeline(StandardScaler(), SMALL_NET)]
    by_gradients += [FrozenEstimator(make_pipeline(StandardScaler(), clone(SMALL_NET)).fit(*iris))]
    by_refits = [TREE, HistGradientBoostingClassifier(), RandomForestRegressor(), Ridge()]
    by_refits += [make_pipeline(StandardScaler(), LogisticRegression())]
    by_refits += [FrozenEstimator(clone(TREE).fit(*iris))]
    by_refits += [GridSearchCV(TREE, {"max_depth": [1, 2]}, cv=2)]
    taken = [(chosen(each, *iris), PoolSearch) for each in by_gradients]
    taken += [(chosen(each, *iris), RefitSearch) for each in by_refits]
    named = {"pool": PoolSearch, "refit": RefitSearch, "pointwise": PointwiseSearch}
    for name, kind in named.items():
        taken += [(chosen(LogisticRegression(), None, None, search=name), kind)]
    for search, kind in taken:
        assert (type(search), search.get_params()) == (kind, kind().get_params())


def test_logistic_regression_of_many_rows_and_classes_is_searched_by_gradients(many, monkeypatch):
    X, y, _, given = many
    size, plain, frozen = 400 * 8 * 14, LogisticRegression(), FrozenEstimator(given)
    for limit in (None, size):
        if limit:
            monkeypatch.setattr(_base, "_MOST_REFITTED", limit)
        assert type(chosen(plain, X, y)) is RefitSearch
    monkeypatch.setattr(_base, "_MOST_REFITTED", size - 1)
    for each in (plain, frozen):
        assert type(chosen(each, X, y)) is PoolSearch
    balanced = LogisticRegression(class_weight="balanced")
    for each in (balanced, LogisticRegression(solver="saga", l1_ratio=0.5), TREE):
        assert type(chosen(each, X, y)) is RefitSearch
    monkeypatch.setattr(_base, "find_spec", lambda _: None)  # without torch
    assert type(chosen(frozen, X, y)) is RefitSearch


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return MLP(4, 3, hidden_sizes=(10,)).double()


def test_only_chosen_weights_move(iris, network, monkeypatch):
    spy = Mock(wraps=gradient_module.stack_parameters)
    monkeypatch.setattr(gradient_module, "stack_parameters", spy)
    found = [
        QUAMClassifier(network, search=PointwiseSearch(n_steps=3, parameters=parameters))
        .fit(*iris)
        .predict_uncertainty(iris[0][:3])
        .epistemic
        for parameters in (lambda name, _: name.endswith("bias"), "all")
    ]
    moved = [set(call.args[2]) for call in spy.call_args_list]
    assert moved == [{"0.bias", "2.bias"}, {"0.weight", "0.bias", "2.weight", "2.bias"}]
    assert not np.allclose(*found)


def test_penalty_ends_at_the_sum_of_the_sample_weights(iris, network):
    weight = np.r_[np.zeros(15), np.full(30, 3.0), np.full(30, 1.0)]
    quam = QUAMClassifier(network, search=PointwiseSearch(n_steps=50))
    problem = quam.fit(*iris, sample_weight=weight)._problem.problem

    def schedule(**params):
        search = quam.set_params(**params).search_
        return search.settings(problem, quam._task, torch.device("cpu")).schedule

    penalties = schedule().penalties
    assert (len(penalties), penalties[0], penalties[-1]) == pytest.approx((50, 12, 120))
    slower = schedule(search__update_every=7, search__learning_rate_decay=2.0)
    assert slower.penalties[-1] == pytest.approx(120)
    assert slower.learning_rates[-1] == pytest.approx(0.1 / 2**7)
    assert schedule(search__c0=3.0, search__eta=1.0).penalties == (3.0,) * 50
    for search, first, growth in ((PoolSearch(), 10, 10), (PointwiseSearch(), 20, 125)):
        task = Regression("displacement", 0.1, target_std=1.0)
        penalties = search.settings(problem, task, torch.device("cpu")).schedule.penalties
        assert (penalties[0], penalties[-1]) == pytest.approx((first, first * growth))


def test_searches_are_for_the_most_probable_classes_or_for_any(iris, network):
    X, labels = iris[0][::15], np.array(["a", "b", "c"])
    quam = QUAMClassifier(network, search=PointwiseSearch(n_steps=20), random_state=0)
    every = quam.fit(iris[0], labels[iris[1]]).adversarial_models(X)
    some = quam.set_params(n_targets=2).adversarial_models(X)
    order = np.argsort(-quam.predict_proba(X), axis=1)[:, :2]
    np.testing.assert_array_equal(some.target, labels[order])
    np.testing.assert_array_equal(every.target, np.tile(labels, (5, 1)))
    picked = np.take_along_axis(every.divergence, order, axis=1)
    np.testing.assert_allclose(some.divergence, picked, rtol=1e-5, atol=1e-9)
    found = quam.set_params(n_targets="auto", search__targeted=False).adversarial_models(X)
    assert found.proba.shape == (5, 1, 3)
    np.testing.assert_array_equal(found.target[:, 0], labels[found.proba[:, 0].argmax(-1)])
    assert (found.divergence[found.feasible] > 0).all()


@pytest.mark.parametrize(
    ("kind", "n_targets", "n"),
    [("networks", "auto", 10), ("learners", None, 14), ("learners", 3, 3), ("networks", 99, 14)],
)
def test_the_ten_most_probable_classes_are_asked_for(many, kind, n_targets, n):
    X, y, net, _ = many
    estimator, search = searched(kind, net)
    quam = QUAMClassifier(estimator, search=search, n_targets=n_targets, random_state=0).fit(X, y)
    mean = quam.predict_proba(np.asarray(quam._pool)).mean(axis=0)
    best = np.sort(np.argsort(-mean, kind="stable")[:n])
    np.testing.assert_array_equal(quam._found.targets, best)
    models = quam.adversarial_models(X[:2])
    np.testing.assert_array_equal(models.target, np.tile(best, (2, 1)))
    np.testing.assert_allclose(models.proba.sum(axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("kind", ["networks", "learners"])
def test_as_many_classes_are_searched_as_fit_into_memory(many, kind):
    X, y, net, _ = many
    estimator, search = searched(kind, net)
    if kind == "networks":
        size, working = 2 * sum(p.nbytes for p in net.parameters()), 2**28
    else:
        estimator = FrozenEstimator(clone(TREE).fit(X, y))
        size, working = 2 * _pickled_size(estimator.estimator), 0
    few = QUAMClassifier(estimator, search=clone(search), n_targets=4, random_state=0).fit(X, y)
    search.set_params(max_memory=working + 4.5 * size)
    quam = QUAMClassifier(estimator, search=search, random_state=0)
    with pytest.warns(UserWarning, match="20 models of .* the 4 most probable .*n_targets=4"):
        bounded = quam.fit(X, y)
    np.testing.assert_array_equal(bounded._found.targets, few._found.targets)
    expected = few.predict_uncertainty(X[:5])
    np.testing.assert_array_equal(bounded.predict_uncertainty(X[:5]), expected)
    search.set_params(max_memory=working + 1.5 * size)
    with pytest.raises(MemoryError, match="At least 2"):
        quam.fit(X, y)


def test_free_memory_is_the_limit(many, monkeypatch):
    X, y, net, _ = many
    size = 2 * sum(p.nbytes for p in net.parameters())
    monkeypatch.setattr(_search, "available_memory", lambda: 2 * (2**28 + 3 * size))
    quam = QUAMClassifier(net, search=PoolSearch(n_steps=3, pool=FEW), random_state=0)
    with pytest.warns(UserWarning, match="half of the free memory.* the 3 most probable"):
        quam.fit(X, y)


@pytest.mark.parametrize("kind", ["networks", "learners"])
def test_long_searches_are_announced_and_show_their_progress(many, kind, monkeypatch, capsys):
    X, y, net, _ = many
    estimator, search = searched(kind, net)
    work = "4 steps of" if kind == "networks" else "4 refits of"
    quam = QUAMClassifier(estimator, search=search, n_targets=2, device="cpu", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        quam.fit(X, y)
    assert "QUAM search" not in capsys.readouterr().err
    monkeypatch.setattr(_search, "LONG", 0.0)
    with pytest.warns(UserWarning, match=f"minutes: {work} .*n_targets") as caught:
        quam.set_params(verbose=1).fit(X, y)
    assert len(caught) == 1
    assert re.search(r"QUAM search: 100%.* 4/4", capsys.readouterr().err)


def test_the_time_is_that_of_all_steps(monkeypatch):
    times = iter([0.0, 5.0, 5.4])  # the first step sets things up
    monkeypatch.setattr(_search, "perf_counter", lambda: next(times))
    with pytest.warns(UserWarning, match=r"about 13 minutes: 2,000 steps of 0\.4 seconds"):
        list(with_progress(range(500), 500, verbose=0, advice="n_steps", times=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warn_if_slow(1, 299.0, "steps", "n_targets")


def test_large_models_are_kept_in_part(many, monkeypatch):
    X, y, net, _ = many
    module = sys.modules[PoolSearch.__module__]
    quam = QUAMClassifier(net, search=PoolSearch(n_steps=50, pool=FEW), n_targets=2, random_state=0)
    every = quam.fit(X, y)._found
    size = sum(p.nbytes for p in net.parameters())
    monkeypatch.setattr(module, "_MOST_BYTES_KEPT", 3 * size)
    some = quam.fit(X, y)._found
    assert every.excess_loss.shape == (2, 5)
    np.testing.assert_allclose(some.excess_loss, every.excess_loss[:, [0, 2, 4]])
    monkeypatch.setattr(module, "_MOST_BYTES_KEPT", 1)
    assert quam.fit(X, y)._found.excess_loss.shape == (2, 2)


def test_the_standard_error_is_the_largest_of_weighted_means():
    losses, weight = np.random.default_rng(0).normal(size=(2, 3, 9)), np.arange(1, 10)
    mean, standard_error = mean_excess(losses, weight)
    repeated = losses.repeat(weight, axis=-1)
    np.testing.assert_allclose(mean, repeated.mean(axis=-1))
    assert standard_error == pytest.approx(np.sqrt(repeated.var(axis=-1).max() / 45))


def test_large_linear_layers_are_searched_in_few_large_steps():
    small, large, deep = nn.Linear(8, 4), nn.Sequential(nn.Linear(256, 129)), nn.Linear(256, 129)
    search = PoolSearch()
    assert search.length(small) == (200, 0.1)
    assert search.length(large) == (50, 0.4)
    assert search.length(nn.Sequential(deep, nn.ReLU())) == (200, 0.1)
    assert PoolSearch(n_steps=70).length(large) == (70, 0.1)
    assert PoolSearch(learning_rate=0.2).length(large) == (50, 0.2)


@pytest.mark.parametrize("wrap", [lambda layer: layer, nn.Sequential], ids=["bare", "sequential"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("moving", ["all", "weight"])
def test_linear_layers_are_computed_in_one_product(wrap, bias, moving):
    torch.manual_seed(0)
    module = wrap(nn.Linear(5, 3, bias=bias))
    names = [n for n, _ in module.named_parameters() if moving == "all" or n.endswith(moving)]
    weights = {n: torch.randn(4, *module.get_parameter(n).shape) for n in names}
    x = torch.randn(6, 5)
    found = gradient_module.variants_at(module, weights, x, shared_input=True)
    expected = gradient_module.stacked_forward(module, weights, x, shared_input=True)
    torch.testing.assert_close(found, expected)
