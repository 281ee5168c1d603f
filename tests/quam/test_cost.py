"""What searches on a pool cost, and how it is bounded and told."""

import re
import sys
import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris, make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from torch import nn

from skuq import QUAMClassifier, QUAMRegressor
from skuq.models import look_at
from skuq.quam import PoolSearch, RefitSearch, _base, _search
from skuq.quam import _gradient_search as search_module
from skuq.quam._refit_search import _pickled_size
from skuq.quam._search import warn_if_slow, with_progress

TREE = DecisionTreeClassifier(max_depth=3, random_state=0)


@pytest.fixture(scope="module")
def many():
    """Data of 14 classes, and a linear network around them."""
    X, y = make_classification(
        400, 8, n_informative=8, n_redundant=0, n_classes=14, n_clusters_per_class=1, random_state=0
    )
    X = X.astype(np.float32)
    given = LogisticRegression(max_iter=500).fit(X, y)
    net = nn.Linear(8, 14)
    with torch.no_grad():
        net.weight.copy_(torch.tensor(given.coef_))
        net.bias.copy_(torch.tensor(given.intercept_))
    return X, y, net, given


@pytest.mark.parametrize("kind", ["networks", "learners"])
@pytest.mark.parametrize(("n_targets", "n"), [("auto", 10), (None, 14), (3, 3), (99, 14)])
def test_the_ten_most_probable_classes_are_asked_for(many, kind, n_targets, n):
    X, y, net, _ = many
    estimator, search = {
        "networks": (net, PoolSearch(n_steps=3)),
        "learners": (TREE, RefitSearch(shares=[0.1])),
    }[kind]
    quam = QUAMClassifier(estimator, search=search, n_targets=n_targets, random_state=0).fit(X, y)
    targets = quam._found.targets
    mean = quam.predict_proba(np.asarray(quam._pool)).mean(axis=0)
    np.testing.assert_array_equal(targets, np.sort(np.argsort(-mean, kind="stable")[:n]))


def test_few_classes_are_all_asked_for():
    X, y = load_iris(return_X_y=True)
    every, some = (
        QUAMClassifier(TREE, n_targets=n, random_state=0).fit(X, y).predict_uncertainty(X[::9])
        for n in (None, "auto")
    )
    np.testing.assert_array_equal(every, some)


@pytest.mark.parametrize("kind", ["networks", "learners"])
def test_as_many_classes_are_searched_as_fit_into_memory(many, kind):
    X, y, net, _ = many
    if kind == "networks":
        estimator, search = net, PoolSearch(n_steps=3)
        size, working = 3 * sum(p.nbytes for p in net.parameters()) // 3 * 2, 2**28
    else:
        estimator = FrozenEstimator(DecisionTreeClassifier(max_depth=3).fit(X, y))
        search, working = RefitSearch(), 0
        size = 2 * _pickled_size(estimator.estimator)
    search.set_params(max_memory=working + 4.5 * size)
    quam = QUAMClassifier(estimator, search=search, random_state=0)
    said = r"10 searches would keep 20 models of .* Only the 4 most probable .*n_targets=4"
    with pytest.warns(UserWarning, match=said) as caught:
        bounded = quam.fit(X, y)
    assert caught[0].filename == __file__
    few = QUAMClassifier(estimator, search=type(search)(), n_targets=4, random_state=0)
    few.set_params(**({"search__n_steps": 3} if kind == "networks" else {})).fit(X, y)
    np.testing.assert_array_equal(bounded._found.targets, few._found.targets)
    np.testing.assert_array_equal(
        bounded.predict_uncertainty(X[:5]), few.predict_uncertainty(X[:5])
    )
    search.set_params(max_memory=working + 1.5 * size)
    with pytest.raises(MemoryError, match=r"At least 2 of the searches must fit.*search__"):
        quam.fit(X, y)


def test_free_memory_is_the_limit(many, monkeypatch):
    X, y, net, _ = many
    size = 2 * sum(p.nbytes for p in net.parameters())
    monkeypatch.setattr(_search, "available_memory", lambda: 2 * (2**28 + 3 * size))
    quam = QUAMClassifier(net, search=PoolSearch(n_steps=3), random_state=0)
    with pytest.warns(UserWarning, match="Only the 3 most probable .*") as caught:
        quam.fit(X, y)
    assert "half of the free memory" in str(caught[0].message)


def test_searches_of_a_regressor_fit_both_or_are_refused():
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = QUAMRegressor(DecisionTreeRegressor(max_depth=3), search=RefitSearch(max_memory=1000))
    with pytest.raises(MemoryError, match="At least 2 of the searches must fit"):
        model.fit(X, X[:, 0] + 0.1 * X[:, 1])


@pytest.mark.parametrize(("estimator", "search"), [(TREE, RefitSearch()), (None, PoolSearch())])
def test_long_searches_are_announced(monkeypatch, short_training, estimator, search):
    X, y = load_iris(return_X_y=True)
    if estimator is None:
        search = PoolSearch(n_steps=6)
    quam = QUAMClassifier(estimator, search=search, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        quam.fit(X, y)
    monkeypatch.setattr(_search, "LONG", 0.0)
    with pytest.warns(UserWarning, match=r"takes about \d+ minutes: .*n_targets") as caught:
        quam.fit(X, y)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    work = "6 refits of" if estimator is TREE else "6 steps of"
    assert work in str(caught[0].message)


def test_the_time_is_that_of_all_steps(monkeypatch):
    times = iter([0.0, 5.0, 5.4])  # the first step sets things up
    monkeypatch.setattr(_search, "perf_counter", lambda: next(times))
    with pytest.warns(UserWarning, match=r"about 13 minutes: 2,000 steps of 0\.4 seconds.*n_steps"):
        list(with_progress(range(500), 500, verbose=0, advice="n_steps", times=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warn_if_slow(1, 299.0, "steps", "n_targets")


@pytest.mark.parametrize("search", [RefitSearch(), PoolSearch(n_steps=4)])
def test_a_progress_bar_is_shown_if_asked_for(capsys, many, search):
    X, y, net, _ = many
    estimator = TREE if isinstance(search, RefitSearch) else net
    quam = QUAMClassifier(estimator, search=search, n_targets=2, random_state=0)
    quam.fit(X, y)
    assert "QUAM search" not in capsys.readouterr().err
    quam.set_params(verbose=1).fit(X, y)
    assert re.search(r"QUAM search: 100%.* 4/4", capsys.readouterr().err)


def test_large_models_are_kept_in_part(many, monkeypatch):
    X, y, net, _ = many
    module = sys.modules[PoolSearch.__module__]
    quam = QUAMClassifier(net, search=PoolSearch(n_steps=100), n_targets=2, random_state=0)
    every = quam.fit(X, y)._found
    size = sum(p.nbytes for p in net.parameters())
    monkeypatch.setattr(module, "_MOST_BYTES_KEPT", 4 * size)
    some = quam.fit(X, y)._found
    assert every.excess_loss.shape == (2, 10)
    np.testing.assert_allclose(some.excess_loss, every.excess_loss[:, [0, 3, 6, 9]])
    monkeypatch.setattr(module, "_MOST_BYTES_KEPT", 1)
    assert quam.fit(X, y)._found.excess_loss.shape == (2, 2)


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
    found = search_module.variants_at(module, weights, x, shared_input=True)
    expected = search_module.stacked_forward(module, weights, x, shared_input=True)
    torch.testing.assert_close(found, expected)


def test_logistic_regression_of_many_rows_and_classes_is_searched_by_gradients(many, monkeypatch):
    X, y, _, given = many

    def chosen(estimator):
        search = QUAMClassifier()._chosen_search(look_at(estimator), None, X, y)
        return type(search).__name__

    assert chosen(LogisticRegression()) == "RefitSearch"
    monkeypatch.setattr(_base, "_MOST_REFITTED", 400 * 8 * 14)
    assert chosen(LogisticRegression()) == "RefitSearch"
    monkeypatch.setattr(_base, "_MOST_REFITTED", 400 * 8 * 14 - 1)
    assert chosen(LogisticRegression()) == "PoolSearch"
    assert chosen(FrozenEstimator(given)) == "PoolSearch"
    assert chosen(LogisticRegression(class_weight="balanced")) == "RefitSearch"
    assert chosen(LogisticRegression(solver="saga", l1_ratio=0.5)) == "RefitSearch"
    assert chosen(TREE) == "RefitSearch"
    monkeypatch.setattr(_base, "find_spec", lambda _: None)  # without torch
    assert chosen(FrozenEstimator(given)) == "RefitSearch"
