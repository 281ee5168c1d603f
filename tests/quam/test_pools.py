"""Pools made from training inputs, and texts as inputs."""

import pickle
from itertools import product
from unittest.mock import patch

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import coo_array, csr_matrix, issparse
from sklearn.base import clone
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import skuq
from skuq import QUAMClassifier
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch, make_pool, make_token_pool
from skuq.quam._pools import SEEN

IMAGE_KINDS = ["moved", "warped", "halves", "overlaid", "erased", "inverted", "patches", "noise"]


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(0)
    X = pd.DataFrame({"age": random.integers(20, 60, size=50), "income": random.normal(size=50)})
    X["town"] = random.choice(["Ulm", "Linz", "Bern"], size=50)
    X["trade"] = pd.Categorical(random.choice(["a", "b"], size=50))
    return X.assign(owner=random.random(50) < 0.5)


WORDS = [*"abcdefgh", "money", "bill", "weather", "rain"]
RANDOM = np.random.default_rng(0)
SENTENCES = [" ".join(RANDOM.choice(WORDS, size=RANDOM.integers(2, 9))) for _ in range(60)]
IMAGES = RANDOM.uniform(size=(30, 2, 8, 12)).astype(np.float32)
EMBEDDINGS = RANDOM.normal(size=(200, 24)) * np.linspace(0.2, 1, 24)
EMBEDDINGS /= np.linalg.norm(EMBEDDINGS, axis=1, keepdims=True)


@pytest.mark.parametrize("form", [np.asarray, csr_matrix])
@pytest.mark.parametrize("kind", ["crossed", "shuffled"])
def test_crossed_and_shuffled_rows_take_each_column_from_one_of_some_rows(kind, form):
    X = np.arange(200.0).reshape(20, 10)  # each number tells its row
    with patch("skuq.quam._pools._CELLS_AT_ONCE", 70):  # sparse rows are made some at a time
        made = csr_matrix(make_pool(form(X), kinds=[kind], n_inputs=100, random_state=0)).toarray()
    np.testing.assert_array_equal(made % 10, np.tile(np.arange(10), (100, 1)))
    n_rows = [len(set(row)) for row in (made // 10).tolist()]
    assert set(n_rows) == {2} if kind == "crossed" else np.mean(n_rows) > 6


@pytest.mark.parametrize("as_frame", [False, True])
def test_numbers_out_of_range_are_far_out_and_the_rest_is_a_training_row(as_frame):
    random = np.random.default_rng(0)
    X = np.c_[random.uniform(5, 7, size=(40, 3)), random.integers(0, 2, size=40)]
    given = pd.DataFrame(X, columns=list("abcd")) if as_frame else X
    made = np.asarray(make_pool(given, kinds=["out_of_range"], n_inputs=200, random_state=0))
    low, high = X.min(axis=0), X.max(axis=0)
    out = (made < low) | (made > high)
    assert out[:, :3].any(axis=1).all()
    assert not out[:, 3].any()  # a number that takes two values is a category
    beyond = np.maximum(made - high, low - made)[:, :3] / (high - low)[:3]
    assert beyond[out[:, :3]].min() >= 0.1
    assert beyond.max() <= 10
    same = np.abs(X - made[:, None]) < 1e-9
    assert (same | out[:, None]).all(axis=2).any(axis=1).all()


def test_a_table_keeps_its_form_and_unseen_categories_occur_in_no_training_row(table):
    made = make_pool(table, kinds=["unseen"], n_inputs=60, random_state=0)
    assert (~made["town"].isin(table["town"]) | made["trade"].isna()).all()
    assert isinstance(made["trade"].dtype, pd.CategoricalDtype)
    assert set(made["owner"]) <= {True, False}
    assert made["age"].isin(table["age"]).all()
    made = make_pool(table, n_inputs=40, random_state=0)
    assert (list(made.columns), len(made)) == (list(table.columns), 40)
    as_array = make_pool(table[["age", "town"]].to_numpy(object), n_inputs=40, random_state=0)
    assert (as_array.shape, as_array.dtype) == ((40, 2), object)


@pytest.mark.parametrize("kind", IMAGE_KINDS)
def test_images_and_sequences_keep_their_form(kind):
    for shape in ((30, 2, 8, 12), (30, 2, 9), (30, 1, 1)):
        X = np.random.default_rng(0).normal(size=shape)
        made = make_pool(X, kinds=[kind], n_inputs=16, random_state=0)
        assert (made.shape, made.dtype) == ((16, *shape[1:]), X.dtype)
        assert np.isfinite(made).all()


def test_altered_images_are_made_of_their_originals():
    X, one = IMAGES[:1], {"n_inputs": 1, "random_state": 0}
    inverted, patches = (make_pool(X, kinds=[k], **one)[0] for k in ("inverted", "patches"))
    ends = IMAGES[:1].min(axis=(0, 2, 3)) + IMAGES[:1].max(axis=(0, 2, 3))
    np.testing.assert_allclose(inverted, ends[:, None, None] - IMAGES[0], rtol=1e-5)
    np.testing.assert_array_equal(np.sort(patches[0].ravel()), np.sort(IMAGES[0, 0].ravel()))
    assert not np.array_equal(patches, IMAGES[0])
    halves = make_pool(IMAGES, kinds=["halves"], n_inputs=20, random_state=0)
    assert ((halves[:, None] == IMAGES).mean(axis=(2, 3, 4)) >= 0.5).any(axis=1).all()
    pairs = np.maximum(IMAGES[:, None], IMAGES[None])
    overlaid = make_pool(IMAGES, kinds=["overlaid"], n_inputs=5, random_state=0)
    assert all((pairs == image).all(axis=(2, 3, 4)).any() for image in overlaid)


def test_the_same_seed_makes_the_same_pool(table):
    for X in (table, IMAGES):
        pools = (make_pool(X, n_inputs=16, random_state=seed) for seed in (0, 0, 1))
        one, two, other = (np.asarray(each).astype(str) for each in pools)
        assert (one == two).all()
        assert (one != other).any()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
def test_whole_numbers_go_far_out_of_range_and_large_ones_neither_wrap_nor_are_rounded(dtype):
    options = {"kinds": ["out_of_range"], "n_inputs": 200, "random_state": 0}
    X, top = np.random.default_rng(0).integers(0, 100, size=(50, 3)), np.iinfo(dtype).max // 2
    made = make_pool(X.astype(dtype), **options)
    np.testing.assert_array_equal(made, np.rint(make_pool(X.astype(float), **options)))
    X = np.array([[top - 1, 0], [top // 2 + 1, 1], [3, 2]], dtype=dtype)
    far = make_pool(X, **options)[:, 0]
    assert made.dtype == far.dtype == np.int64
    assert not (far == np.iinfo(np.int64).min).any()
    assert 0.2 < (far < 3).mean() < 0.5
    crossed = make_pool(X, kinds=["crossed"], random_state=0)[:, 0]
    assert set(crossed) <= set(X[:, 0].astype(np.int64))


@pytest.mark.parametrize("as_frame", [False, True])
def test_pools_of_known_kinds_hold_known_categories_alone(as_frame):
    towns = np.array(["Ulm", None, "Linz", "Ulm"] * 20, dtype=object)
    X = pd.DataFrame({"town": towns, "age": np.arange(80).astype(object)})
    known = OrdinalEncoder().fit(X[["town"]])
    made = make_pool(X if as_frame else X.to_numpy(), kinds=SEEN, random_state=0)
    known.transform(pd.DataFrame(made, columns=["town", "age"])[["town"]])  # refuses NaN for None
    assert pd.DataFrame(made).iloc[:, 1].max() > 80  # numbers that are objects go out of range


def as_text(X):
    return {str(row) for row in (X.to_numpy() if isinstance(X, pd.DataFrame) else X).tolist()}


def test_no_training_input_is_in_a_pool(table):
    few = table[["town", "trade", "owner"]]  # most of their combinations occur
    tokens = np.random.default_rng(0).integers(1, 4, size=(40, 1, 4))
    for X, made in (
        (few, make_pool(few, random_state=0)),
        (few, make_pool(few.to_numpy(object), random_state=0)),
        (np.array(SENTENCES), make_pool(SENTENCES, random_state=0)),
        (IMAGES > 0.5, make_pool((IMAGES > 0.5).astype(np.float32), random_state=0) > 0.5),
        (tokens, make_token_pool(tokens, random_state=0)),
        (pd.DataFrame({"t": SENTENCES}), make_pool(pd.DataFrame({"t": SENTENCES}), random_state=0)),
    ):
        assert len(made) > 20
        assert not as_text(X) & as_text(made)


@pytest.mark.parametrize("form", [np.float64, np.float32, np.float16, pd.DataFrame])
def test_embeddings_keep_their_norm_and_the_range_of_their_columns(form):
    X = pd.DataFrame(EMBEDDINGS) if form is pd.DataFrame else (3 * EMBEDDINGS).astype(form)
    made = np.asarray(make_pool(X, n_inputs=300, random_state=0), dtype=float)
    norms = np.linalg.norm(np.asarray(X, dtype=float), axis=1)
    exactness = 2e-3 if form is np.float16 else 1e-5
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), norms.mean(), rtol=exactness)
    low, high = (np.asarray(end(X, axis=0), dtype=float) for end in (np.min, np.max))
    assert (made >= low * (1 + exactness)).all()
    assert (made <= high * (1 + exactness)).all()
    assert len(made) == 300
    with pytest.raises(ValueError, match="generated"):
        make_pool(X, kinds=["out_of_range"])


def test_texts_are_made_of_their_words():
    known = {word for text in SENTENCES for word in text.split()}
    bags = {" ".join(sorted(text.split())) for text in SENTENCES}
    X, kinds = pd.Series(SENTENCES), ("mixed_words", "shuffled_words", "truncated", "other_script")
    pools = (make_pool(X, kinds=[kind], n_inputs=50, random_state=0) for kind in kinds)
    mixed, shuffled, short, other = (pool.tolist() for pool in pools)
    assert {word for text in mixed for word in text.split()} <= known
    assert not {" ".join(sorted(text.split())) for text in mixed} <= bags
    assert {" ".join(sorted(text.split())) for text in shuffled} <= bags
    assert all(any(text.startswith(f"{each} ") for text in SENTENCES) for each in short)
    assert not any(character.isascii() for character in "".join(other).replace(" ", ""))
    assert {len(text.split()) for text in other} <= {len(text.split()) for text in SENTENCES}


def test_columns_of_texts_are_told_from_categories(table):
    X = table.assign(note=SENTENCES[:50], name=[f"n{k}" for k in range(50)])
    X["place"] = ["New York", "Los Angeles"] * 25
    made = make_pool(X, n_inputs=700, random_state=0)
    assert not made["note"].eq("(unseen)").any()
    assert made[["name", "place"]].eq("(unseen)").any().all()
    assert len(made) == 700 // 8 * 8  # crossed, shuffled, out of range, unseen, four of SENTENCES
    altered = make_pool(X, kinds=["truncated"], n_inputs=50, random_state=0)
    assert not altered["note"].isin(SENTENCES).any()
    assert as_text(altered.drop(columns="note")) <= as_text(X.drop(columns="note"))


@pytest.mark.parametrize("form", ["array", "whole array", "frame"])
def test_codes_of_categories_do_not_go_out_of_range(form):
    random = np.random.default_rng(0)
    X = np.c_[random.integers(0, 4, size=(80, 2)), random.integers(20, 60, size=(80, 2))]
    X = X if form == "whole array" else X.astype(float)
    X = pd.DataFrame(X, columns=list("abcd")) if form == "frame" else X
    made = make_pool(X, categories=["a", 1] if form == "frame" else [0, 1], random_state=0)
    codes = np.asarray(made, dtype=float)[:, :2]
    assert set(np.unique(codes[~np.isnan(codes)])) == {0, 1, 2, 3}
    assert np.isnan(codes).any()
    assert np.asarray(made)[:, 2:].max() > 70


def test_rows_may_go_out_of_range_in_few_columns_of_half_of_them():
    X = np.random.default_rng(0).normal(size=(100, 40))
    made = make_pool(X, kinds=["out_of_range"], n_inputs=300, random_state=0)
    out = ((made < X.min(axis=0)) | (made > X.max(axis=0))).sum(axis=1)
    assert set(out[1::2]) == {1, 2, 3}
    assert out[::2].max() > 15
    assert out.min() == 1
    indicators, X = np.eye(20)[np.arange(60) % 20], EMBEDDINGS.copy()
    assert set(np.unique(make_pool(indicators, random_state=0))) == {0.0, 1.0}
    X[0] *= 1.1
    assert np.abs(make_pool(X, kinds=["out_of_range"], random_state=0)).max() > X.max() + 0.1


MONEY = ["send", "pay", "my", "bill", "money", "to", "bob", "account"]
WEATHER = ["rain", "weather", "sunny", "tomorrow", "cloud", "is", "what", "the"]
RANDOM = np.random.default_rng(0)
TEXTS = [" ".join(RANDOM.choice([WEATHER, MONEY][k % 2], size=5)) for k in range(60)]
Y = np.array(["weather", "money"])[np.arange(60) % 2]
NEW = ["pay my bill", "rain bill tomorrow pay"]
READER = make_pipeline(TfidfVectorizer(), LogisticRegression())
FROZEN = FrozenEstimator(clone(READER).fit(TEXTS, Y))


@pytest.fixture(scope="module")
def reader():
    """To be used without a change of parameters."""
    return QUAMClassifier(READER, random_state=0).fit(TEXTS, Y)


@pytest.mark.parametrize(
    ("form", "estimator"), [(np.array, READER), (pd.Series, READER), (pd.Series, FROZEN)]
)
def test_texts_are_inputs_in_every_form(form, estimator, reader, monkeypatch):
    quam = QUAMClassifier(estimator, random_state=0).fit(form(TEXTS), Y)
    epistemic = quam.predict_uncertainty(form(NEW)).epistemic
    assert epistemic[1] > epistemic[0]
    np.testing.assert_allclose(reader.predict_uncertainty(NEW).epistemic, epistemic)
    again = pickle.loads(pickle.dumps(quam)).set_params(n_jobs=2)
    monkeypatch.setattr("skuq.quam._base._FEWEST", 1)
    halves = again._rows(NEW)
    assert [len(half.x) for half in halves] == [1, 1]
    with joblib.parallel_config(backend="threading"):
        np.testing.assert_array_equal(again.predict_uncertainty(NEW).epistemic, epistemic)
    assert quam.predict(NEW[:1]).tolist() == ["money"]
    assert quam.search_pool(TEXTS[:20]).predict_uncertainty(NEW).epistemic.shape == (2,)
    assert not hasattr(quam, "n_features_in_")


@pytest.mark.parametrize(
    ("learner", "search"),
    [
        (MultinomialNB(), RefitSearch()),
        (LogisticRegression(), PoolSearch(n_steps=5)),
        (LogisticRegression(), PointwiseSearch(n_steps=3)),
    ],
)
def test_every_search_takes_texts(learner, search):
    estimator = make_pipeline(TfidfVectorizer(), learner)
    pools = [{}] if isinstance(search, PointwiseSearch) else [{}, {"X_pool": NEW}]
    for pool in pools:
        quam = QUAMClassifier(estimator, search=search, random_state=0).fit(TEXTS, Y, **pool)
        assert (quam.predict_uncertainty(NEW).epistemic > 0).all()
        if isinstance(search, PoolSearch):  # no training text goes to another process
            here, there = (quam.set_params(n_jobs=n)._rows(NEW) for n in (1, 2))
            assert len(pickle.dumps(there)) < len(pickle.dumps(here))


class OfKnownColours(LogisticRegression):
    """Refuses unknown categories by an error of no common class, as CatBoost does."""

    def _numbers(self, X):
        if not X["colour"].isin(["red", "blue"]).all():
            raise ArithmeticError("unknown colour")
        return np.c_[X["x"], X["colour"] == "red"]

    def fit(self, X, y, sample_weight=None):
        return super().fit(self._numbers(X), y, sample_weight)

    def predict_proba(self, X):
        return super().predict_proba(self._numbers(X))


def test_a_pool_without_unseen_categories_is_tried_whatever_error_refuses_them():
    colours = np.array(["red", "blue"])[np.arange(40) % 2]
    X = pd.DataFrame({"x": np.arange(40) % 7, "colour": colours})
    quam = QUAMClassifier(OfKnownColours(), search=RefitSearch(), random_state=0)
    assert (quam.fit(X, np.arange(40) % 7 > 2).predict_uncertainty(X).epistemic > 0).all()


@pytest.mark.parametrize("in_a_step", [True, False])
@pytest.mark.parametrize("learner", [MultinomialNB(), DecisionTreeClassifier(max_depth=2), Ridge()])
def test_sparse_rows_stay_sparse(learner, in_a_step, monkeypatch):
    monkeypatch.setattr("skuq.validation._MOST_DENSE", 1)
    regression, found = isinstance(learner, Ridge), []
    quam = skuq.QUAMRegressor(noise=0.1) if regression else QUAMClassifier(search=RefitSearch())
    y = np.arange(len(TEXTS)) / 7 if regression else Y
    dense = FunctionTransformer(lambda rows: rows.toarray(), accept_sparse=True)
    words, fit = TfidfVectorizer().fit(TEXTS), type(learner).fit
    for steps in ([], [dense]):
        before = make_pipeline(words, *steps)
        given = make_pipeline(before, learner) if in_a_step else learner
        quam = clone(quam).set_params(estimator=given, random_state=0)
        X, new = (rows if in_a_step else before.transform(rows) for rows in (TEXTS, NEW))
        with patch.object(type(learner), "fit", autospec=True, side_effect=fit) as fits:
            fitted = quam.fit(X, y).search_pool(X[:9])
        found.append(fitted.predict_uncertainty(new).parts)
        assert {issparse(call.args[1]) for call in fits.call_args_list} == {not steps}
    if not regression:  # whose planes are drawn among the main directions of sparse rows
        np.testing.assert_allclose(*found, atol=1e-9)


@pytest.mark.parametrize("most", [1, 4096])
@pytest.mark.parametrize("kind", ["neighbours", "tree", "xgboost"])
def test_rows_may_be_sparse_or_dense_in_turn(kind, most, monkeypatch):
    learner = KNeighborsClassifier(3) if kind == "neighbours" else DecisionTreeClassifier()
    if kind == "xgboost":  # to which numbers that are not stored are missing
        learner = pytest.importorskip("xgboost").XGBClassifier(n_estimators=5, max_depth=2)
    monkeypatch.setattr("skuq.validation._MOST_DENSE", most)
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 6)) * (random.random((60, 6)) < 0.4)
    y, found = (X.sum(axis=1) > 0).astype(int), []
    frozen = FrozenEstimator(clone(learner).fit(X, y))
    for given, first, then in product((learner, frozen), (X, csr_matrix(X)), (X, csr_matrix(X))):
        quam = QUAMClassifier(given, search=RefitSearch(), random_state=0)
        for pool in (False, True):
            fitted = quam.fit(first, y, X_pool=then[:9] if pool else None)
            fitted = fitted if pool else fitted.search_pool(then[:9])
            assert np.isfinite(fitted.predict_uncertainty(then).total).all()
            found.append(fitted.predict_proba(then))
    np.testing.assert_allclose(found, np.broadcast_to(found[0], np.shape(found)))


def test_noise_of_sparse_rows_is_that_of_dense_ones():
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 6)) * (random.random((200, 6)) < 0.4)
    y = X[:, 0] + X[:, 1] * random.normal(size=200)
    made_sparse = make_pipeline(FunctionTransformer(csr_matrix), Ridge())
    cases = (Ridge(), X), (Ridge(), csr_matrix(X)), (made_sparse, X)
    dense, *sparse = (
        skuq.QUAMRegressor(model, random_state=0).fit(rows, y).predict_interval(rows)
        for model, rows in cases
    )
    for found in sparse:  # Ridge has another solver for sparse rows
        np.testing.assert_allclose(found, dense, atol=0.01)


def test_draws_without_a_sparse_row_of_unit_norm_are_repeated():
    X, rows, angles = np.zeros((60, 8)), np.arange(60), np.linspace(0.1, 1.4, 60)
    X[rows, 2 * (rows % 4)], X[rows, 2 * (rows % 4) + 1] = np.cos(angles), np.sin(angles)
    X = csr_matrix(X)
    for seed in range(20):
        made = make_pool(X, kinds=["shuffled"], n_inputs=1, random_state=seed)
        np.testing.assert_allclose(np.linalg.norm(made.toarray(), axis=1), [1], rtol=1e-3)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("form", [csr_matrix, coo_array])
@pytest.mark.parametrize("dtype", [float, np.int32])
def test_sparse_pools_equal_dense_ones(dtype, form, norm):
    random = np.random.default_rng(0)
    X = np.where(random.random((60, 8)) < 0.4, random.integers(-9, 9, (60, 8)), 0).astype(dtype)
    X[:, 0] = np.minimum(np.abs(X[:, 0]), 1)  # an indicator
    X = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9) if norm else X
    X[:9, 1] = X[:40, 2] = np.nan if dtype is float else 0
    made = make_pool(form(np.insert(X, 3, 0, axis=1)), categories=[5], random_state=0)
    expected = make_pool(X, categories=[4], random_state=0)
    np.testing.assert_array_equal(made.toarray(), np.insert(expected, 3, 0, axis=1))
    assert made.tocsr().indices.dtype == np.int32  # trees refuse others


def test_wide_sparse_rows_are_never_dense():
    X, dense = HashingVectorizer(n_features=2**13).transform(SENTENCES), csr_matrix.toarray
    with patch.object(csr_matrix, "toarray", autospec=True, side_effect=dense) as made:
        quam = QUAMClassifier(LogisticRegression(), random_state=0).fit(X, np.arange(60) % 2)
        assert (quam.predict_uncertainty(X[:5]).epistemic > 0).all()
    assert max(call.args[0].shape[1] for call in made.call_args_list) < 20  # those with words


def test_words_are_explained_one_by_one(reader):
    explained = reader.explain(["pay my bill", "pay rain send money", ""])
    words = [["pay", "my", "bill", ""], ["pay", "rain", "send", "money"]]
    assert explained.columns[:2].tolist() == words
    assert explained.contribution.shape == (3, 4)
    assert (explained.contribution[0, 3], *explained.contribution[2]) == (0, 0, 0, 0, 0)
    assert explained.columns[1, explained.contribution[1].argmax()] == "rain"
    assert explained.models.proba.shape[0] == 3
    about_money = [float("money" in text) for text in TEXTS]
    trees = make_pipeline(TfidfVectorizer(), DecisionTreeRegressor(max_depth=3))
    quam = skuq.QUAMRegressor(trees, noise=0.1, random_state=0).fit(TEXTS, about_money)
    assert quam.explain(NEW).contribution.shape == (2, 4)


@pytest.mark.parametrize(
    "estimator",
    [
        skuq.CalibrationAuditor(FROZEN),
        skuq.DeepEnsembleClassifier(READER, n_members=2, random_state=0),
        skuq.EvidentialProbe(FROZEN, max_epochs=2, random_state=0),
        skuq.FeatureDistanceClassifier(READER, random_state=0),
        skuq.LaplaceClassifier(READER, random_state=0),
        skuq.ReferenceClassifier(make_pipeline(TfidfVectorizer(), MultinomialNB())),
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_estimator_around_a_pipeline_takes_texts(estimator):
    of_list = estimator.fit(TEXTS, Y).predict_uncertainty(NEW).total
    of_series = estimator.fit(pd.Series(TEXTS), Y).predict_uncertainty(pd.Series(NEW)).total
    np.testing.assert_allclose(of_list, of_series)
