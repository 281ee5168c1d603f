"""Searches as parameters: which one suits which model, what they refuse, and how they are tuned."""

import pickle
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from skorch import NeuralNetClassifier
from torch import nn

from skuq import QUAMClassifier, QUAMRegressor, predict_uncertainty
from skuq._networks import MLP
from skuq.models import look_at
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch, make_pool

SEARCHES = [
    PoolSearch(n_steps=3, parameters="last", eta=2.0, pool=partial(make_pool, n_inputs=50)),
    RefitSearch(shares=[0.2], pool=partial(make_pool, n_inputs=50)),
    PointwiseSearch(n_steps=3, learning_rate=0.05, batch_size=4),
]
SMALL_NET = MLPClassifier((4,), learning_rate_init=0.03, tol=0.02, random_state=0)
SMALL_REGRESSOR = MLPRegressor(
    hidden_layer_sizes=(4,), learning_rate_init=0.03, tol=0.02, random_state=0
)
TREE = DecisionTreeClassifier(max_depth=3, random_state=0)

pytestmark = [
    pytest.mark.usefixtures("short_training"),
    pytest.mark.filterwarnings("ignore:The model's loss on the training data"),
]


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return scale(X)[::2], y[::2]


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
def test_searches_are_parameter_objects(search):
    params = search.get_params()
    for copy in (clone(search), pickle.loads(pickle.dumps(search))):
        assert type(copy) is type(search)
        assert {name: str(value) for name, value in copy.get_params().items()} == {
            name: str(value) for name, value in params.items()
        }
    plain = type(search)()
    for name, value in params.items():
        plain.set_params(**{name: value})
        assert getattr(plain, name) is value
    quam = QUAMClassifier(search=search)
    name = next(iter(params))
    assert quam.get_params()[f"search__{name}"] is params[name]
    assert clone(quam).search is not search
    with pytest.raises(ValueError, match="Invalid parameter 'n_step' for estimator"):
        search.set_params(n_step=3)


def test_parameters_of_a_search_are_keywords():
    for search in (PoolSearch, RefitSearch, PointwiseSearch):
        with pytest.raises(TypeError, match="positional argument"):
            search("auto")


@pytest.mark.parametrize("estimator", [SMALL_NET, TREE], ids=["network", "tree"])
def test_a_grid_over_a_pipeline_reaches_the_search(iris, estimator):
    search, name, values = (
        (PoolSearch(n_steps=3), "n_steps", [2, 4])
        if estimator is SMALL_NET
        else (RefitSearch(), "shares", [(0.1,), (0.4,)])
    )
    pipe = make_pipeline(StandardScaler(), QUAMClassifier(estimator, search=search, random_state=0))
    grid = GridSearchCV(
        pipe, {f"quamclassifier__search__{name}": values}, cv=2, scoring=epistemic_of_strange
    ).fit(*iris)
    tuned = grid.best_estimator_[-1]
    assert getattr(tuned.search_, name) in values
    scores = grid.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert scores[0] != scores[1]  # the searches were different ones


def epistemic_of_strange(estimator, X, y):
    return predict_uncertainty(estimator, X * [1, 1, 1, -3]).epistemic.mean()


@pytest.mark.parametrize(
    ("estimator", "name", "search"),
    [
        (SMALL_NET, "pool", PoolSearch()),
        (TREE, "refit", RefitSearch()),
        (LogisticRegression(), "pointwise", PointwiseSearch()),
    ],
    ids=["pool", "refit", "pointwise"],
)
def test_a_name_stands_for_a_search_with_its_defaults(iris, estimator, name, search):
    by_name, by_object = (
        QUAMClassifier(estimator, search=given, random_state=0).fit(*iris)
        for given in (name, search)
    )
    assert type(by_name.search_) is type(search)
    assert by_name.search == name
    X = iris[0][:3]
    np.testing.assert_array_equal(by_name.predict_uncertainty(X), by_object.predict_uncertainty(X))


def skorch_net():
    return NeuralNetClassifier(
        MLP(4, 3), criterion=nn.CrossEntropyLoss, max_epochs=2, train_split=None, verbose=0
    )


SUITED = {
    "default network": (lambda: None, PoolSearch),
    "MLP": (lambda: SMALL_NET, PoolSearch),
    "module": (lambda: MLP(4, 3), PoolSearch),
    "skorch net": (skorch_net, PoolSearch),
    "pipeline": (lambda: make_pipeline(StandardScaler(), SMALL_NET), PoolSearch),
    "frozen pipeline": (
        lambda: FrozenEstimator(
            make_pipeline(StandardScaler(), clone(SMALL_NET)).fit(*load_iris(return_X_y=True))
        ),
        PoolSearch,
    ),
    "tree": (lambda: TREE, RefitSearch),
    "boosting": (lambda: HistGradientBoostingClassifier(max_iter=3), RefitSearch),
    "linear model": (LogisticRegression, RefitSearch),
    "pipeline of a linear model": (
        lambda: make_pipeline(StandardScaler(), LogisticRegression()),
        RefitSearch,
    ),
    "frozen tree": (
        lambda: FrozenEstimator(clone(TREE).fit(*load_iris(return_X_y=True))),
        RefitSearch,
    ),
    "grid": (lambda: GridSearchCV(TREE, {"max_depth": [1, 2]}, cv=2), RefitSearch),
}


@pytest.mark.parametrize("name", SUITED)
def test_the_search_that_suits_a_model_is_taken(iris, name):
    make, suited = SUITED[name]
    quam = QUAMClassifier()._chosen_search(look_at(make()), None, *iris)
    assert type(quam) is suited
    assert quam.get_params() == suited().get_params()


@pytest.mark.parametrize(
    ("estimator", "suited"),
    [
        (None, PoolSearch),
        (SMALL_REGRESSOR, PoolSearch),
        (Ridge(), RefitSearch),
        (RandomForestRegressor(3), RefitSearch),
    ],
    ids=["default network", "MLP", "linear model", "forest"],
)
def test_the_search_that_suits_a_regressor_is_taken(estimator, suited):
    chosen = QUAMRegressor()._chosen_search(look_at(estimator), None, None, None)
    assert type(chosen) is suited


GRADIENTS = (
    r"Search needs a model with gradients, and {} has none; use search='refit', or search=None"
)
NETWORK = r"RefitSearch refits scikit-learn estimators, and {} is a network; use search='pool' or"


@pytest.mark.parametrize(
    ("estimator", "search", "match"),
    [
        (TREE, "pool", "Pool" + GRADIENTS.format("DecisionTreeClassifier")),
        (TREE, PoolSearch(n_steps=3), "Pool" + GRADIENTS.format("DecisionTreeClassifier")),
        (TREE, "pointwise", "Pointwise" + GRADIENTS.format("DecisionTreeClassifier")),
        (
            make_pipeline(StandardScaler(), TREE),
            "pool",
            "Pool" + GRADIENTS.format("DecisionTreeClassifier"),
        ),
        (None, "refit", NETWORK.format("the default network")),
        (SMALL_NET, RefitSearch(), NETWORK.format("MLPClassifier")),
        (MLP(4, 3), "refit", NETWORK.format("MLP")),
        (skorch_net(), "refit", NETWORK.format("NeuralNetClassifier")),
        (KNeighborsClassifier(), "pool", "Pool" + GRADIENTS.format("KNeighborsClassifier")),
    ],
)
def test_searches_that_do_not_suit_a_model_are_refused(iris, estimator, search, match):
    with pytest.raises(TypeError, match=match):
        QUAMClassifier(estimator, search=search).fit(*iris)


@pytest.mark.parametrize("search", ["pool", "pointwise", PoolSearch()])
def test_a_linear_regressor_is_no_network(iris, search):
    with pytest.raises(TypeError, match=r"Search needs a model with gradients, and Ridge has none"):
        QUAMRegressor(Ridge(), search=search).fit(*iris)


@pytest.mark.parametrize("search", ["pool", "pointwise"])
def test_logistic_regression_has_gradients(iris, search):
    search = {"pool": PoolSearch(n_steps=3), "pointwise": PointwiseSearch(n_steps=3)}[search]
    quam = QUAMClassifier(LogisticRegression(), search=search, random_state=0).fit(*iris)
    assert np.isfinite(quam.predict_uncertainty(iris[0][:3]).total).all()


@pytest.mark.parametrize(
    ("estimator", "search", "X_pool", "match"),
    [
        (SMALL_NET, "pointwise", "inputs", "A pool has no effect on search='pointwise'"),
        (SMALL_NET, PointwiseSearch(), "inputs", "use search='pool' or 'refit'"),
        (SMALL_NET, "pool", "one", "at least 2 inputs, got 1.* search='pointwise' for single"),
        (TREE, "refit", "labelled", "inputs only, without labels; got a tuple"),
        (SMALL_NET, PoolSearch(pool=make_pool), "inputs", "has no effect with `X_pool`"),
        (TREE, RefitSearch(pool=make_pool), "inputs", "has no effect with `X_pool`"),
    ],
)
def test_pools_that_do_not_suit_a_search_are_refused(iris, estimator, search, X_pool, match):
    X, y = iris
    pool = {"inputs": X, "one": X[:1], "labelled": (X, y)}[X_pool]
    with pytest.raises(ValueError, match=match):
        QUAMClassifier(estimator, search=search).fit(X, y, X_pool=pool)


@pytest.mark.parametrize("search", [PoolSearch(targeted=False), PointwiseSearch(targeted=False)])
def test_an_untargeted_search_asks_for_no_class(iris, search):
    with pytest.raises(ValueError, match="n_targets=1 has no effect with targeted=False"):
        QUAMClassifier(SMALL_NET, search=search, n_targets=1).fit(*iris)
    with pytest.raises(ValueError, match="targeted=False has no effect on a regressor"):
        QUAMRegressor(SMALL_REGRESSOR, search=search).fit(*iris)


@pytest.mark.parametrize("cls", [QUAMClassifier, QUAMRegressor])
def test_learners_compute_on_the_cpu(iris, cls):
    tree = TREE if cls is QUAMClassifier else DecisionTreeRegressor(max_depth=3)
    for device in ("cuda", "cuda:1"):
        with pytest.raises(ValueError, match=rf"device='{device}' has no effect on DecisionTree"):
            cls(tree, device=device).fit(*iris)
    cls(tree, device="cpu", random_state=0).fit(*iris)


@pytest.mark.parametrize(
    ("search", "match"),
    [
        (PoolSearch(n_steps=0), "'n_steps' parameter of PoolSearch"),
        (PointwiseSearch(learning_rate=0.0), "'learning_rate' parameter of PointwiseSearch"),
        (RefitSearch(pool="made"), "'pool' parameter of RefitSearch"),
        (RefitSearch(shares=()), "`shares` must be a non-empty list of numbers"),
        ("points", "'search' parameter of QUAMClassifier"),
        (PoolSearch, "'search' parameter of QUAMClassifier"),
    ],
)
def test_invalid_searches_are_refused_before_any_training(iris, search, match, monkeypatch):
    monkeypatch.setattr(MLPClassifier, "fit", lambda _self, _X, _y: 1 / 0)
    monkeypatch.setattr(DecisionTreeClassifier, "fit", lambda *_args, **_kwargs: 1 / 0)
    estimator = TREE if isinstance(search, RefitSearch) else SMALL_NET
    with pytest.raises(ValueError, match=match):
        QUAMClassifier(estimator, search=search).fit(*iris)


def test_a_fit_leaves_the_search_as_it_was(iris):
    for estimator, search in ((SMALL_NET, PoolSearch(n_steps=3)), (TREE, RefitSearch())):
        before = search.get_params()
        QUAMClassifier(estimator, search=search, random_state=0).fit(*iris)
        assert search.get_params() == before
        assert vars(search).keys() == before.keys()
