"""Inputs of several kinds: sparse matrices, tables of other libraries, images, and categories."""

import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.sparse import coo_array, coo_matrix, csr_matrix
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, OneHotEncoder, StandardScaler
from sklearn.utils.fixes import parse_version
from skorch import NeuralNetClassifier
from torch import nn

import skuq
from skuq.features import category_columns
from skuq.models import adopt
from skuq.quam import PointwiseSearch, PoolSearch, make_pool
from skuq.validation import as_pandas

pytestmark = pytest.mark.usefixtures("short_training")
QUICK = {"search": PoolSearch(n_steps=2), "random_state": 0}
SMALL = MLPClassifier((3,), max_iter=20, random_state=0)
OLD = parse_version(sklearn.__version__) < parse_version("1.7")
ARROW = pytest.mark.skipif(OLD, reason="scikit-learn 1.6 cannot take rows of Arrow tables")
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"size": RNG.normal(size=60), "town": RNG.choice(list("abcdefgh"), 60)})
Y = (FRAME["size"] > 0).to_numpy().astype(int)
ENCODED = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["town"]))


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize(
    "estimator",
    [
        skuq.QUAMClassifier(search=PoolSearch(n_steps=2)),
        skuq.QUAMClassifier(search=PointwiseSearch(n_steps=2)),
        skuq.QUAMClassifier(LogisticRegression()),
        skuq.QUAMRegressor(search=PoolSearch(n_steps=2), noise=0.5),
        skuq.CalibrationAuditor(SMALL),
        skuq.DeepEnsembleClassifier(n_members=2),
        skuq.EvidentialProbe(SMALL, max_epochs=2),
        *(skuq.FeatureDistanceClassifier(), skuq.LaplaceClassifier(), skuq.MCDropoutClassifier()),
        skuq.ReferenceClassifier(),
        skuq.SGMCMCClassifier(n_chains=1, n_samples=2, steps_per_sample=2),
    ],
    ids=lambda each: type(each).__name__,
)
def test_sparse_inputs_give_what_dense_ones_give(estimator):
    if isinstance(estimator, skuq.SGMCMCClassifier):
        pytest.importorskip("posteriors")
    found = []
    for threshold in (1.0, 0.0):
        pipe = clone(make_pipeline(ENCODED, estimator))
        seeds = {k: 0 for k in pipe.get_params() if k.endswith("r__random_state")}
        pipe.set_params(columntransformer__sparse_threshold=threshold, **seeds).fit(FRAME, Y)
        found.append([*skuq.predict_uncertainty(pipe, FRAME).parts, pipe.predict(FRAME)])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-9)


def test_a_model_with_preprocessing_of_its_own_takes_sparse_inputs():
    X = csr_matrix(clone(ENCODED).fit_transform(FRAME))
    model = make_pipeline(MaxAbsScaler(), MLPClassifier((3,), max_iter=500, random_state=0))
    quam = skuq.QUAMClassifier(FrozenEstimator(model.fit(X, Y)), **QUICK)
    expected = quam.fit(X.toarray(), Y).predict_uncertainty(X).total
    for each in (X, coo_matrix(X)):
        found = quam.fit(each, Y).predict_uncertainty(each)
        np.testing.assert_allclose(found.total, expected, rtol=1e-5)
    assert quam.fit(X, Y).explain(X[:2]).contribution.shape == (2, X.shape[1])


def test_reversed_arrays_and_large_sparse_ones_are_read_as_others():
    adopted = adopt(nn.Linear(3, 2))
    for axis, n_rows in ((0, 1), (0, 3), (1, 1), (1, 3)):
        X = np.flip(np.arange(12.0).reshape(4, 3), axis)[:n_rows]
        assert min(X.strides) < 0
        np.testing.assert_array_equal(adopted.inputs(X), X)
    X = coo_array(np.eye(9000, 3))  # made dense some rows at a time
    np.testing.assert_array_equal(adopted.inputs(X).numpy(), np.eye(9000, 3))


def table_of(library, columns):
    imported = pytest.importorskip(library)
    return (imported.table if library == "pyarrow" else imported.DataFrame)(columns)


def uncertainty(model, X):
    return skuq.QUAMClassifier(model, random_state=0).fit(X, Y).predict_uncertainty(X)


@pytest.mark.parametrize("estimator", [None, LogisticRegression()])
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_names_of_columns_are_kept_and_nothing_is_warned_of(estimator, library):
    X = table_of(library, {"size": FRAME["size"].to_numpy(), "n": np.arange(60.0) / 30})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quam = skuq.QUAMClassifier(estimator, **QUICK).fit(X, Y)
        quam.predict_uncertainty(X[:3])
    assert list(quam.feature_names_in_) == ["size", "n"]


def twice(X):
    """Columns selected in the way of the library that they are of."""
    if type(X).__module__.startswith("polars"):
        return X.select("size", "n").to_numpy() * 2.0
    return np.stack([np.asarray(X[name]) for name in ("size", "n")], axis=1) * 2.0


TREES = HistGradientBoostingClassifier(max_iter=3)
LEARNERS = [("polars", LogisticRegression()), ("polars", TREES)]
LEARNERS += [pytest.param("pyarrow", LogisticRegression(), marks=ARROW)]


@pytest.mark.parametrize(("library", "learner"), LEARNERS)
@pytest.mark.parametrize(
    "wrap",
    [lambda pipeline: pipeline, partial(CalibratedClassifierCV, cv=2), FrozenEstimator],
    ids=["bare", "calibrated", "frozen"],
)
@pytest.mark.filterwarnings("ignore:This .* is fitted already")
def test_a_pipeline_gets_tables_of_the_library_that_it_was_written_for(library, learner, wrap):
    X, seen = table_of(library, FRAME.assign(n=np.arange(60)).to_dict("list")), set()

    def selected(X):
        seen.add(type(X))
        return twice(X)

    pipeline = make_pipeline(FunctionTransformer(selected), clone(learner)).fit(X, Y)
    quam = skuq.QUAMClassifier(wrap(pipeline), search="refit", random_state=0).fit(X, Y)
    assert quam.explain(X[:3]).contribution.shape == (3, 3)
    quam.search_pool(X[:20]).predict_uncertainty(X[:3])
    assert seen == {type(X)}


@pytest.mark.parametrize(("library", "learner"), LEARNERS)
def test_a_table_of_any_library_gives_what_one_of_pandas_gives(library, learner):
    X = table_of(library, {"size": FRAME["size"].to_numpy(), "n": np.arange(60)})
    expected = uncertainty(learner, as_pandas(X))
    # Tables of some libraries are stored by column, in which sums are rounded differently.
    np.testing.assert_allclose(uncertainty(learner, X), expected, rtol=1e-10)


@pytest.mark.parametrize("library", ["polars", pytest.param("pyarrow", marks=ARROW)])
@pytest.mark.parametrize("wrap", [clone, FrozenEstimator])
def test_categories_of_any_library_reach_a_learner_that_takes_them(library, wrap):
    imported = pytest.importorskip(library)
    frame = FRAME.assign(town=pd.Categorical(np.resize(["Ulm", "Linz", "Wien"], 60)))
    if library == "pyarrow":
        X = imported.Table.from_pandas(frame)
    else:
        X = imported.DataFrame(frame.astype({"town": str}).to_dict("list"))
        X = X.with_columns(imported.col("town").cast(imported.Categorical))
    given = TREES if wrap is clone else FrozenEstimator(clone(TREES).fit(frame, Y))
    found, expected = (uncertainty(given, each) for each in (X, frame))
    np.testing.assert_allclose(found.parts, expected.parts, rtol=1e-6, atol=1e-9)


class OtherTable:
    """As much of a table of another library as is used: its columns, and rows as a NumPy array."""

    def __init__(self, frame):
        self.frame, self.columns, self.shape = frame, list(frame), frame.shape

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, name):
        return self.frame[name].to_numpy()

    def __array__(self, dtype=None, copy=None):
        return self.frame.to_numpy(dtype=dtype)


def test_a_pool_is_a_table_of_the_same_library_or_of_pandas():
    ours, theirs = (make_pool(X, random_state=0) for X in (FRAME, OtherTable(FRAME)))
    pd.testing.assert_frame_equal(ours, theirs)
    pyarrow = pytest.importorskip("pyarrow")
    made = make_pool(pyarrow.table(FRAME.to_dict("list")), random_state=0)
    assert isinstance(made, pyarrow.Table)
    assert made.column_names == ["size", "town"]
    assert "(unseen)" in made["town"].to_pylist()


IMAGES = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3 * 4 * 4, 2))
SEQUENCES = nn.Sequential(nn.Conv1d(2, 2, 3), nn.Flatten(), nn.Linear(8, 2))
NET = NeuralNetClassifier(IMAGES, criterion=nn.CrossEntropyLoss, verbose=0)
RESHAPED = r"X\.reshape\(len\(X\), 2, 6, 6\)"


@pytest.mark.parametrize(
    ("estimator", "n_columns", "message"),
    [
        (skuq.QUAMClassifier(IMAGES), 72, RESHAPED),
        (skuq.EvidentialProbe(IMAGES), 72, RESHAPED),
        (skuq.ReferenceClassifier(NET), 72, RESHAPED),
        (skuq.QUAMRegressor(nn.Sequential(*IMAGES, nn.Linear(2, 1))), 72, RESHAPED),
        (skuq.QUAMClassifier(nn.Linear(3, 2)), 72, r"shape \(20, 72\)"),
        (skuq.QUAMClassifier(SEQUENCES), 12, r"Unflatten\(1, \(2, length\)\)"),
    ],
)
def test_inputs_of_a_shape_that_the_network_does_not_take(estimator, n_columns, message):
    X = np.random.default_rng(0).normal(size=(20, n_columns))
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, np.arange(20) % 2)


def test_arrays_after_a_table_are_warned_of_once():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"])
    quam = skuq.QUAMClassifier(LogisticRegression(), random_state=0).fit(X, np.arange(60) % 2)
    expected = quam.predict_proba(X[:5])
    with pytest.warns(UserWarning, match="feature names") as caught:
        np.testing.assert_array_equal(quam.predict_proba(X[:5].to_numpy()), expected)
    assert len(caught) == 1, [str(each.message) for each in caught]


NAMES = ["age", "town", "trade"]
CODES = np.c_[np.linspace(20, 60, 40), np.arange(40) % 4, np.arange(40) % 3]
BOOSTING = HistGradientBoostingClassifier
BY_POSITION = BOOSTING(categorical_features=[1])
REDUCED = make_pipeline(PCA(2), clone(BY_POSITION)).fit(CODES, np.arange(40) % 2)
INNER = make_pipeline(SimpleImputer(), sklearn.preprocessing.OrdinalEncoder())
TABLE = make_column_transformer((StandardScaler(), ["age"]), (INNER, ["trade"]))
SLICE = make_column_transformer((OneHotEncoder(), slice(1, 3)))


@pytest.mark.parametrize(
    ("estimator", "columns"),
    [
        (None, []),
        (LogisticRegression(), []),
        (BOOSTING(), []),
        (BY_POSITION, [1]),
        (BOOSTING(categorical_features=[-1]), [2]),
        (BOOSTING(categorical_features=["town", "trade"]), [1, 2]),
        (BOOSTING(categorical_features=[False, True, False]), [1]),
        (GridSearchCV(make_pipeline(SimpleImputer(), BY_POSITION), {}), [1]),
        (FrozenEstimator(BY_POSITION), [1]),
        (make_pipeline(SelectKBest(k=2), BY_POSITION), []),  # which columns, nobody knows yet
        (FrozenEstimator(REDUCED), []),
        (make_pipeline(OneHotEncoder(), LogisticRegression()), [0, 1, 2]),
        (make_pipeline(TABLE, LogisticRegression()), [2]),
        (SLICE, []),  # no learner
        (make_pipeline(SLICE, LogisticRegression()), [1, 2]),
    ],
)
def test_categories_are_what_the_learner_or_an_encoder_takes_for_such(estimator, columns):
    assert category_columns(estimator, NAMES) == columns


def test_ways_of_other_libraries_to_name_categories():
    xgboost = pytest.importorskip("xgboost")
    lightgbm = pytest.importorskip("lightgbm")
    y = np.arange(40) % 2
    told = lightgbm.LGBMClassifier(n_estimators=1, verbose=-1)
    for estimator in (
        xgboost.XGBClassifier(feature_types=["q", "c", "q"], enable_categorical=True),
        lightgbm.LGBMClassifier(categorical_feature=[1]),
        FrozenEstimator(told.fit(CODES, y, categorical_feature=[1])),
    ):
        assert category_columns(estimator, NAMES) == [1]
