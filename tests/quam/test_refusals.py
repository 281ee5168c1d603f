"""What QUAM refuses, and one word of what it says."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from torch import nn

from skuq import QUAMClassifier, QUAMRegressor
from skuq._networks import MLP
from skuq.quam import (
    PointwiseSearch,
    PoolSearch,
    QuadraticSearch,
    RefitSearch,
    make_pool,
    make_token_pool,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4))
Y = np.arange(30) % 3
TARGETS = X[:, 0] + 0.1 * RNG.normal(size=30)
FRAME = pd.DataFrame(X, columns=list("abcd"))
TEXTS = [f"word{k % 7} rain" for k in range(30)]
TREE, NEAR = DecisionTreeClassifier(max_depth=3), KNeighborsClassifier()
NET = MLPClassifier((3,))
MODULE, IMAGES = nn.Sequential(nn.Linear(4, 3)), np.ones((3, 1, 4, 4))
POINTWISE = QUAMClassifier(MODULE, search=PointwiseSearch(n_steps=2))
QUADRATIC = QUAMClassifier(MODULE, search="quadratic")
REGRESSOR = QUAMRegressor(MLP(4, 1), search=PointwiseSearch(n_steps=2), noise=1.0)
ZEROS = nn.Linear(4, 1, bias=False)
nn.init.zeros_(ZEROS.weight)
BEFORE_ZEROS = PoolSearch(parameters=lambda name, _: name == "0.weight")
UNSCALED = {"n_steps": 6, "c0": 1e300, "eta": 1e10}
DIVERGING = QUAMClassifier(MODULE, search=PointwiseSearch(prior_precision=0, **UNSCALED))
SATURATED = nn.Linear(4, 3)  # without curvature, the prior alone limits the weights
nn.init.constant_(SATURATED.bias, 0.0)
nn.init.orthogonal_(SATURATED.weight, gain=1e4)
UNLIMITED = QUAMClassifier(SATURATED, search=QuadraticSearch(prior_precision=1e-30))
CELL = pd.DataFrame({"a": ["u", "v"] * 9})


def fitted(kind, estimator, search, X, y, params):
    given = {name: params.pop(name) for name in ("sample_weight", "X_pool") if name in params}
    return lambda: kind(estimator, search=search, **params).fit(X, y, **given)


def fit(estimator=TREE, search=None, *, X=X, y=Y, **params):
    return fitted(QUAMClassifier, estimator, search, X, y, params)


def reg(estimator=None, search=None, *, X=X, y=TARGETS, **params):
    return fitted(QUAMRegressor, estimator, search, X, y, params)


def later(quam, method="predict_uncertainty", rows=X, **params):
    fitted = []

    def call():
        getattr(fitted[0].set_params(**params), method)(rows)

    call.prepare = lambda: fitted.append(clone(quam).fit(X, TARGETS if quam is REGRESSOR else Y))
    return call


REFUSALS = {
    # searches that do not suit a model
    "tree by gradients": (fit(TREE, "pool"), TypeError, "gradients"),
    "tree by an object": (fit(TREE, PoolSearch(n_steps=3)), TypeError, "DecisionTreeClassifier"),
    "tree by curvature": (fit(TREE, "quadratic"), TypeError, "refit"),
    "check of pointwise": (later(POINTWISE, "check_search"), "quadratic"),
    "regret of a pool": (fit(MODULE, "pool", setting="regret"), "regret"),
    "tree in a pipeline": (fit(make_pipeline(TREE), "pointwise"), TypeError, "Pointwise"),
    "neighbours": (fit(NEAR, "pool"), TypeError, "KNeighborsClassifier"),
    "linear regressor": (reg(Ridge(), "pointwise"), TypeError, "Ridge"),
    "refit of the default": (fit(None, "refit"), TypeError, "default network"),
    "refit of a network": (fit(NET, RefitSearch()), TypeError, "MLPClassifier is a network"),
    "refit of a module": (fit(MODULE, "refit"), TypeError, "Sequential is a network"),
    "no probabilities": (fit(LinearSVC()), TypeError, "probabilities"),
    # pools
    "pool of pointwise": (fit(MODULE, "pointwise", X_pool=X), "pool has no effect"),
    "pool of quadratic": (fit(MODULE, "quadratic", X_pool=X), "quadratic"),
    "no finite solution": (later(UNLIMITED), "finite solution"),
    "pool after quadratic": (later(QUADRATIC, "search_pool"), "quadratic"),
    "one input": (fit(MODULE, "pool", X_pool=X[:1]), "got 1"),
    "no input": (fit(X_pool=X[:0]), "got 0"),
    "one input of a regressor": (reg(Ridge(), X_pool=X[:1]), "at least 2"),
    "labels": (fit(X_pool=(X, Y)), ""),
    "two pools": (fit(MODULE, PoolSearch(pool=make_pool), X_pool=X), "`X_pool`"),
    "two pools of refits": (fit(TREE, RefitSearch(pool=make_pool), X_pool=X), "X_pool"),
    "columns of a pool": (fit(X_pool=X[:, :3]), "3 features"),
    "columns for a network": (fit(None, X_pool=np.c_[X, Y]), "5 features"),
    "names of a pool": (fit(X=FRAME, X_pool=FRAME.rename(columns={"a": "z"})), ""),
    "pool after pointwise": (later(POINTWISE, "search_pool", search="pool"), "pool"),
    "shared pointwise": (
        lambda: clone(POINTWISE).fit(X, Y).without_training_data(),
        "has no models",
    ),
    "shared costs": (
        lambda: QUAMClassifier(TREE).fit(X, Y).without_training_data().explain_classes(X),
        "training data",
    ),
    # parameters
    "setting": (fit(setting="both"), "setting"),
    "steps": (fit(NET, PoolSearch(n_steps=0)), "n_steps"),
    "growth": (fit(NET, PointwiseSearch(eta=0.5)), "eta"),
    "step size": (fit(NET, PointwiseSearch(learning_rate=0.0)), "learning_rate"),
    "search": (fit(search="grid"), "search"),
    "class of a search": (fit(search=PoolSearch), "search"),
    "pool": (fit(search=RefitSearch(pool="made")), "pool"),
    "temperature": (fit(temperature=0.0), "temperature"),
    "device": (fit(None, device="quantum"), "cannot be used here"),
    "noise": (reg(noise="none"), "noise"),
    "no noise": (reg(noise=0.0), "noise"),
    "attack": (reg(attack="both"), "attack"),
    "folds": (reg(noise_cv="five"), "noise_cv"),
    "one fold": (reg(noise_cv=1), "noise_cv"),
    "noise of one output": (reg(FrozenEstimator(MLP(4, 1)), noise="learned"), "log variance"),
    "noise of trees": (reg(DecisionTreeRegressor(), noise="learned"), "two outputs"),
    "no errors": (reg(FrozenEstimator(ZEROS), y=np.zeros(30)), "errors are all zero"),
    "one sample": (reg(X=X[:1], y=TARGETS[:1]), "1 sample"),
    "weights of zero": (fit(sample_weight=np.zeros(30)), ""),
    "weights of zero of a network": (fit(None, sample_weight=np.zeros(30)), "weight"),
    "weights of zero of targets": (reg(sample_weight=np.zeros(30)), ""),
    "weights of neighbours": (fit(NEAR, sample_weight=Y + 1.0), "all equal"),
    "weights in a pipeline": (fit(make_pipeline(NEAR), sample_weight=Y + 1), "does not accept"),
    "weights inside": (fit(CalibratedClassifierCV(NEAR), sample_weight=Y + 1), "does not accept"),
    "weights of a regressor": (reg(KNeighborsRegressor(), sample_weight=Y + 1), "does not accept"),
    "memory": (reg(Ridge(), RefitSearch(max_memory=99), noise=1.0), MemoryError, "At least 2"),
    "several targets": (reg(y=np.ones((30, 2))), ""),
    "words as targets": (reg(y=np.array(["a", "b"] * 15)), ""),
    "missing targets": (reg(Ridge(), y=np.full(30, np.nan)), "NaN"),
    "missing numbers": (fit(GaussianNB(), X=np.where(X > 1, np.nan, X)), "NaN"),
    "missing numbers of a target": (reg(Ridge(), X=np.where(X > 1, np.nan, X)), "NaN"),
    # later
    "temperature later": (later(POINTWISE, temperature="cold"), "temperature"),
    "gamma later": (later(POINTWISE, "adversarial_models", gamma=-1.0), "gamma"),
    "columns later": (later(REGRESSOR, "predict_model_std", X[:, :2]), "2 features"),
    "missing later": (later(REGRESSOR, "predict_model_std", X + np.nan), "NaN"),
    "too large a number": (later(POINTWISE, rows=X + 1e39), "float32"),
    "divergence": (fit(MODULE, PoolSearch(**UNSCALED, learning_rate=10)), "learning_rate"),
    "divergence of a point": (later(DIVERGING), "smaller `c0`"),
    "weights of zero move": (fit(nn.Sequential(ZEROS, MLP(1, 3)), BEFORE_ZEROS), "are zero"),
    # texts and pools of them
    "texts of a network": (fit(None, X=TEXTS), "holds texts"),
    "texts of a learner": (fit(LogisticRegression(), X=TEXTS), "TfidfVectorizer"),
    "numbers as texts": (fit(make_pipeline(TfidfVectorizer(), TREE), X=np.arange(30.0)), ""),
    "kind of pool": (lambda: make_pool(X, kinds=["torn"]), "Unknown kinds"),
    "pool of one axis": (lambda: make_pool(np.ones(5)), "no texts"),
    "pool of blanks": (lambda: make_pool(["", " "]), "no texts"),
    "pool of five axes": (lambda: make_pool(np.ones((5, 1, 1, 1, 1))), "X has 5"),
    "unseen numbers": (lambda: make_pool(X, kinds=["unseen"]), "generated"),
    "unseen images": (lambda: make_pool(IMAGES, kinds=["unseen"]), "'moved', 'warped'"),
    "crossed column": (lambda: make_pool(CELL, kinds=["crossed"]), "generated"),
    "truncated numbers": (lambda: make_pool(FRAME, kinds=["truncated"]), "generated"),
    "categories": (lambda: make_pool(FRAME, categories=["e"]), "'e'"),
    "equal texts": (lambda: make_token_pool([[[7, 8]]] * 2), "generated"),
    "keywords": (lambda: PoolSearch("auto"), TypeError, ""),
    "name of a parameter": (lambda: RefitSearch().set_params(n_step=3), "n_step"),
}
for shares in ((), (0.0, 0.1), (-0.1,), [[0.1]]):
    REFUSALS[f"shares {shares}"] = fit(search=RefitSearch(shares=shares)), "`shares`"


@pytest.mark.filterwarnings("ignore:The model's loss")
@pytest.mark.parametrize("name", REFUSALS)
def test_refused_with_a_word_of_why(name):
    call, *error, word = REFUSALS[name]
    getattr(call, "prepare", list)()
    with pytest.raises(*error or [ValueError], match=re.escape(word) or None):
        call()


def test_what_is_refused_is_not_trained_before(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("trained")

    for learner in (DecisionTreeClassifier, MLPClassifier, KNeighborsClassifier):
        monkeypatch.setattr(learner, "fit", fail)
    for row in ("tree by gradients", "columns of a pool", "steps", "pool", "weights of neighbours"):
        with pytest.raises((ValueError, TypeError)):
            REFUSALS[row][0]()


def test_models_found_never_outlive_the_model_that_they_belong_to():
    quam = QUAMClassifier(MODULE, search=PoolSearch(n_steps=2)).fit(X, Y)
    diverging = {f"search__{name}": value for name, value in UNSCALED.items()}
    with pytest.raises(ValueError, match="diverged"):
        quam.set_params(**diverging, search__learning_rate=10).fit(X, Y)
    with pytest.raises(ValueError, match="has no models"):
        quam.predict_uncertainty(X)


def test_what_a_preparation_refuses_is_said_to_arise_in_the_search():
    def known(rows):
        if (rows[:3] != X[:3]).any():
            raise ValueError("other people")
        return rows[:, :1]

    with pytest.raises(ValueError, match="other people") as refused:
        fit(make_pipeline(FunctionTransformer(known), TREE))()
    assert "X_pool" in refused.value.__notes__[0]


def test_what_is_not_explained_is_rows_of_more_axes():
    images = X.reshape(30, 2, 2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    quam = QUAMClassifier(net, search=PoolSearch(n_steps=2)).fit(images, Y)
    with pytest.raises(ValueError, match="3 dimensions"):
        quam.explain(images[:2])
    with pytest.raises(ValueError, match="shape"):
        quam.predict_uncertainty(images[..., :1])


def test_unknown_categories_are_refused_as_the_model_itself_does():
    towns = pd.DataFrame({"town": ["Ulm", "Linz", "Bern"] * 10, "age": X[:, 0]})
    quam = QUAMClassifier(make_pipeline(OrdinalEncoder(), TREE), random_state=0).fit(towns, Y)
    with pytest.raises(ValueError, match="Rome"):  # its pool knows these towns only
        quam.predict_uncertainty(towns.assign(town="Rome"))


def test_outputs_that_a_criterion_does_not_expect_are_refused():
    skorch = pytest.importorskip("skorch")
    module = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=-1))
    net = skorch.NeuralNetClassifier(module, train_split=None, verbose=0, max_epochs=1)
    net.fit(X.astype(np.float32), Y)
    with torch.no_grad():
        net.module_[1] = nn.Identity()  # logits, where the criterion wants probabilities
    with pytest.raises(ValueError, match="criterion"):
        QUAMClassifier(FrozenEstimator(net)).fit(X, Y)
