"""Which search suits which model, schedules, memory, time and progress; gradients on a pool."""

import re
import sys
import warnings
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from skuq import QUAMClassifier, QUAMRegressor
from skuq._networks import MLP, LeNet
from skuq.models import look_at
from skuq.quam import PointwiseSearch, PoolSearch, QuadraticSearch, RefitSearch, make_pool
from skuq.quam import _gradient_search as gradient_module
from skuq.quam._refit_search import _pickled_size
from skuq.quam._search import Regression, mean_excess, warn_if_slow, with_progress
from tests.written import Written

FEW = partial(make_pool, n_inputs=50, random_state=0)
SMALL_NET = MLPClassifier((4,), learning_rate_init=0.03, tol=0.02, random_state=0)
TREE = DecisionTreeClassifier(max_depth=3, random_state=0)
pytestmark = pytest.mark.filterwarnings("ignore:The model's loss on the training data")


@pytest.fixture(scope="module")
def many():
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


def pipe(estimator):
    return make_pipeline(StandardScaler(), estimator)


LOGISTIC = LogisticRegression(max_iter=999)
ELASTIC = LogisticRegression(solver="saga", l1_ratio=0.5)
UNSUITABLE = nn.Sequential(nn.LayerNorm(4), nn.AdaptiveAvgPool1d(3))
DEFAULTS = {
    "default network": (None, PointwiseSearch),
    "MLPClassifier": (SMALL_NET, PointwiseSearch),
    "module": (MLP(4, 3), PointwiseSearch),
    "network in a pipeline": (pipe(SMALL_NET), PointwiseSearch),
    "network of one layer": (nn.Linear(4, 3), QuadraticSearch),
    "network without linear layers": (UNSUITABLE, PointwiseSearch),
    "logistic": (LOGISTIC, QuadraticSearch),
    "logistic in a pipeline": (pipe(LOGISTIC), QuadraticSearch),
    "logistic in a search": (GridSearchCV(LOGISTIC, {"C": [1, 10]}, cv=2), QuadraticSearch),
    "balanced": (pipe(LogisticRegression(class_weight="balanced")), RefitSearch),
    "L1": (ELASTIC, RefitSearch),
    "L1 in folds": (LogisticRegressionCV(solver="saga", l1_ratios=(0, 0.5)), RefitSearch),
    "one against the rest": (LogisticRegression(solver="liblinear"), RefitSearch),
    "calibrated": (CalibratedClassifierCV(LOGISTIC), RefitSearch),
    "tree": (TREE, RefitSearch),
    "trees": (HistGradientBoostingClassifier(), RefitSearch),
    "trees in a search": (GridSearchCV(TREE, {"max_depth": [1, 2]}, cv=2), RefitSearch),
}


def chosen(estimator, X, y, X_pool=None, *, quam=QUAMClassifier):
    """Type of the default search; a search that `fit` cannot change any more is not run."""
    quam = quam(estimator, random_state=0)
    search = quam._chosen_search(look_at(estimator), X_pool, X)
    return type(quam.fit(X, y).search_ if search.pointwise else search)


@pytest.mark.parametrize(("estimator", "search"), DEFAULTS.values(), ids=DEFAULTS)
def test_the_default_search_follows_from_the_model(estimator, search, iris, short_training):
    assert chosen(estimator, *iris) is search


def test_the_default_search_follows_from_the_data(iris, monkeypatch):
    X, y = iris
    frozen = FrozenEstimator(pipe(clone(LOGISTIC)).fit(X, y))
    assert chosen(frozen, X, y) is QuadraticSearch
    for each in (LOGISTIC, frozen, pipe(TREE)):
        assert chosen(each, X, y, X_pool=X) is RefitSearch
    assert chosen(LOGISTIC, ["a text", "of words"], None) is RefitSearch
    for each, pool in ((None, X), (MLP(4, 3), X)):
        assert chosen(each, X, y, X_pool=pool) is PoolSearch
    for each, search in ((MLPRegressor(), PoolSearch), (Ridge(), RefitSearch)):
        assert chosen(each, X, y, quam=QUAMRegressor) is search
    monkeypatch.setattr("skuq.quam._search.Search.most_inputs", 3)
    assert chosen(nn.Linear(4, 3), X, y) is PointwiseSearch
    assert chosen(pipe(LOGISTIC), X, y) is RefitSearch
    monkeypatch.setattr("skuq.quam._quadratic_search._SMALL", 0)
    assert chosen(UNSUITABLE, X, y) is PoolSearch
    monkeypatch.undo()
    monkeypatch.setattr("skuq.quam._quadratic_search._SMALL", 0)  # now, all networks are large
    assert chosen(MLP(4, 3), X, y) is QuadraticSearch
    monkeypatch.setattr("skuq.quam._base.find_spec", lambda _: None)  # without torch
    assert chosen(frozen, X, y) is RefitSearch


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return MLP(4, 3, hidden_sizes=(10,)).double()


def test_only_chosen_weights_move_and_a_slow_search_at_inputs_says_so(iris, network, monkeypatch):
    settings = {"n_steps": 1, "batch_size": 2, "parameters": lambda name, _: name.endswith("bias")}
    quam = QUAMClassifier(network, search=PointwiseSearch(**settings)).fit(*iris)
    assert quam._problem.problem.parameters == ("0.bias", "2.bias")
    monkeypatch.setattr("skuq.quam._search.LONG", 0)
    with pytest.warns(UserWarning, match="quadratic"):
        quam.predict_uncertainty(iris[0][:6])


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


def test_steps_shrink_against_noise_only_and_the_prior_follows_the_weights(iris, network):
    quam = QUAMClassifier(network, search=PointwiseSearch()).fit(*iris)
    of_quam = quam._problem.problem, quam._task, torch.device("cpu")
    for size, shortening in ((75, 1), (74, 50)):
        settings = quam.set_params(search__train_batch_size=size).search_.settings(*of_quam)
        first, *_, last = settings.schedule.learning_rates
        assert first / last == pytest.approx(shortening)
    weights = torch.cat([p.detach().flatten() for p in network.parameters()])
    assert settings.prior_precision == pytest.approx(1e-3 / float(weights.square().mean()))
    search = quam.set_params(search__prior_precision=2.0).search_
    assert search.settings(*of_quam).prior_precision == 2


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
    free = 2 * (2**28 + 3 * size)
    monkeypatch.setattr("skuq.quam._search.available_memory", lambda: free)
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
    monkeypatch.setattr("skuq.quam._search.LONG", 0.0)
    with pytest.warns(UserWarning, match=f"minutes: {work} .*n_targets") as caught:
        quam.set_params(verbose=1).fit(X, y)
    assert len(caught) == 1
    assert re.search(r"QUAM search: 100%.* 4/4", capsys.readouterr().err)


def test_the_time_is_that_of_all_steps(monkeypatch):
    times = iter([0.0, 5.0, 5.4])  # the first step sets things up
    monkeypatch.setattr("skuq.quam._search.perf_counter", lambda: next(times))
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


@pytest.fixture(scope="module")
def linear():
    X, y = make_classification(300, n_features=3, n_redundant=0, flip_y=0.2, random_state=0)
    X = X.astype(np.float32)
    given = LogisticRegression(C=np.inf).fit(X, y)
    net = nn.Sequential(nn.Linear(3, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor(np.r_[-given.coef_, given.coef_] / 2))
        net[0].bias.copy_(torch.tensor(np.r_[-given.intercept_, given.intercept_] / 2))
    pool = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    return X, y, net, pool


@pytest.fixture(scope="module")
def found(linear):
    """To be used without a change of parameters."""
    X, y, net, pool = linear
    return QUAMClassifier(net, search=PoolSearch(n_steps=20)).fit(X, y, X_pool=pool)


def test_models_of_a_linear_network_are_those_of_a_weighted_fit(linear):
    """With a constant penalty c the pool weighs 1 / c of the training data."""
    X, y, net, pool = linear
    search = PoolSearch(n_steps=300, c0=10.0, eta=1.0, learning_rate_decay=0.01 ** (-1 / 300))
    quam = QUAMClassifier(net, search=search, gamma=1e9).fit(X, y, X_pool=pool)
    weight = np.r_[np.ones(300), np.full(80, 300 / 10 / 80)]
    models = quam.adversarial_models(X)
    assert models.target.tolist() == [[0, 1]] * 300
    for code in (0, 1):
        labels = np.r_[y, np.full(80, code)]
        exact = LogisticRegression(C=np.inf, tol=1e-8).fit(np.r_[X, pool], labels, weight)
        np.testing.assert_allclose(models.proba[:, code], exact.predict_proba(X), atol=5e-3)
        expected = log_loss(y, exact.predict_proba(X)) - quam.reference_loss_
        assert quam._found.excess_loss[code, -1] == pytest.approx(expected, abs=2e-3)


def test_uncertainty_is_that_of_the_given_model_and_the_searches_half_and_half(linear, found):
    X = linear[0]
    quam = clone(found).set_params(temperature=1e9).fit(*linear[:2], X_pool=linear[3])
    u = quam.predict_uncertainty(X[:7])
    outputs = quam._found.outputs(torch.tensor(X[:7])).softmax(-1).numpy()  # (7, 2, 2, 2)
    mean = (quam.predict_proba(X[:7]) + outputs.mean(axis=(1, 2))) / 2
    np.testing.assert_allclose(u.total, -(mean * np.log(mean)).sum(axis=1), rtol=1e-6)
    assert (u.epistemic >= 0).all()


def test_new_inputs_are_searched_for_the_same_classes_beside_the_pool(linear, found, monkeypatch):
    X, y, net, pool = linear
    quam = QUAMClassifier(net, search=PoolSearch(n_steps=20), n_targets=1).fit(X, y, X_pool=pool)
    new = quam.search_pool(X[:50] + 3)
    assert new._found.targets.tolist() == quam._found.targets.tolist()
    x = torch.tensor(X[:5])
    assert not torch.allclose(new._found.outputs(x), quam._found.outputs(x))
    search = Mock()
    monkeypatch.setattr("skuq.quam._base._FEWEST", 60)
    monkeypatch.setattr(QUAMClassifier, "_search_on", search)
    for n in (5, 50, 100):
        found.search_pool(linear[0][:n])
    sizes = [len(call.args[0]) for call in search.call_args_list]
    assert sizes == [60, 100, 180]  # as many as are needed, as many as are new, all 80


def test_searches_in_turn_find_what_they_find_together(linear, found, monkeypatch):
    X, y, _, pool = linear
    monkeypatch.setattr(gradient_module, "_TENSORS_OF_WEIGHTS", 0)
    in_turn = clone(found).fit(X, y, X_pool=pool)
    assert len(in_turn._found.weights) == 2
    expected = found.predict_uncertainty(X[:5])
    np.testing.assert_allclose(in_turn.predict_uncertainty(X[:5]), expected, rtol=1e-5)


def test_features_before_the_first_linear_layer_stay_as_they_are():
    X = np.random.default_rng(0).normal(size=(20, 1, 16, 16)).astype(np.float32)
    torch.manual_seed(0)
    net = LeNet(image_shape=(1, 16, 16)).eval()
    quam = QUAMClassifier(net, search=PoolSearch(n_steps=2), n_targets=2)
    quam.fit(X, np.arange(20) % 10, X_pool=2 * X)
    sizes = sorted(weights[0].numel() for weights in quam._found.weights[0].values())
    linear = [p for name, p in net.named_parameters() if name.startswith("classifier")]
    assert sizes == sorted(p.numel() for p in linear)
    assert quam.predict_uncertainty(X[:3]).epistemic.shape == (3,)


def test_a_prior_counts_in_the_losses(linear):
    X, y, net, pool = linear
    quam = QUAMClassifier(net, search=PoolSearch(n_steps=1, c0=0.0))
    plain = quam.fit(X, y, X_pool=pool)._found
    prior = quam.set_params(search__prior_precision=30.0).fit(X, y, X_pool=pool)._found
    given = sum(p.detach().square().sum() for p in net.parameters())
    norms = [sum(w[k].square().sum() for w in plain.weights[0].values()) - given for k in range(2)]
    difference = (prior.excess_loss - plain.excess_loss).ravel()
    np.testing.assert_allclose(difference, 30 / 300 / 2 * np.array(norms), rtol=1e-4)


def test_losses_of_models_are_weighted_means_over_the_samples(linear, found):
    X, y, net, pool = linear
    weight, rows = np.random.default_rng(1).exponential(size=300) + 0.01, np.arange(300)
    quam = clone(found).fit(X, y, X_pool=pool, sample_weight=weight)
    log_proba = quam._found.outputs(torch.tensor(X)).log_softmax(-1).numpy()
    given = net(torch.tensor(X)).double().log_softmax(-1).detach().numpy()
    losses = given[rows, y] - log_proba[rows, :, :, y].transpose(1, 2, 0)
    expected = np.average(losses, axis=-1, weights=weight)
    np.testing.assert_allclose(quam._found.excess_loss, expected, rtol=1e-5, atol=1e-7)


def test_a_network_whose_last_layer_cannot_be_separated_is_evaluated_whole(linear):
    """Something is computed after the last layer, outside of modules."""
    layers = {"first": nn.Linear(3, 5), "last": nn.Linear(5, 2)}
    doubled = Written(lambda self, X: 2 * self.last(self.first(X).relu()), **layers)
    search = PointwiseSearch(n_steps=3, parameters="last")
    with pytest.warns(UserWarning, match="'last'.* evaluated in every step"):
        quam = QUAMClassifier(doubled, search=search).fit(*linear[:2])
    assert quam._problem.problem.parameters == ("last.weight", "last.bias")
    assert np.isfinite(quam.predict_uncertainty(linear[0][:3]).total).all()
