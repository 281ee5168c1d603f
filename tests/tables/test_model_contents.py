"""Models from files that do more than compute: each is refused without trust, with its step."""

import json
import re
import time
import zipfile
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import NMF, LatentDirichletAllocation, MiniBatchNMF
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from skuq.tables import TableError, TableModel, _model_contents, read_estimator
from skuq.tables._model_contents import check_contents, pattern_problem
from skuq.tables._storage import HARMLESS

skops = pytest.importorskip("skops.io")
X = np.random.default_rng(0).uniform(size=(60, 3))
Y = (X[:, 0] > 0.5).astype(int)
THREE = np.arange(60) % 3
TEXTS = np.resize(["good wine", "bad wine", "no wine"], 60)


def refusal(model, folder):
    """The message that refuses a model, and trust accepts."""
    skops.dump(model, folder / "model.skops")
    with pytest.raises(TableError) as refused:
        read_estimator(folder / "model.skops")
    assert "pass `trust=True`" in str(refused.value)
    read_estimator(folder / "model.skops", trust=True)
    return str(refused.value)


def reader_of_files():
    """A classifier whose probabilities follow the content of the file "secret.txt"."""
    table = pd.DataFrame({"region": np.array(["x"] * 60, object), "a": X[:, 0]})
    name = SimpleImputer(strategy="constant", fill_value="secret.txt", missing_values="x")
    name.set_params(keep_empty_features=True)
    words = CountVectorizer(input="filename", token_pattern="q", vocabulary={"q": 0})
    model = Pipeline(
        [
            ("name", ColumnTransformer([("fill", name, ["region"])])),
            ("words", ColumnTransformer([("count", words, 0)])),
            ("line", LogisticRegression()),
        ]
    )
    return model.fit(table, Y), table


def test_a_model_that_reads_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    secret = tmp_path / "secret.txt"
    secret.write_text("q " * 2, encoding="utf-8")
    model, table = reader_of_files()
    model[-1].coef_ = np.array([[0.05]])
    before = model.predict_proba(table[:1])
    secret.write_text("q " * 30, encoding="utf-8")
    assert model.predict_proba(table[:1])[0, 1] > before[0, 1] + 0.1  # what is to be prevented
    message = refusal(model, tmp_path)
    assert "CountVectorizer in step 'count' of 'words' has input='filename'" in message


def test_a_kept_model_that_reads_files_is_refused(tmp_path):
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=np.resize(["no", "yes"], 60))
    TableModel("logistic").fit(frame, "y").save(tmp_path / "kept")
    tree = skops.load(tmp_path / "kept" / "model.skops", trusted=sorted(HARMLESS))
    tree["estimator_"]["model_"]["estimator"] = make_pipeline(CountVectorizer(input="file"))
    skops.dump(tree, tmp_path / "kept" / "model.skops")
    with pytest.raises(TableError, match=r"in step 'countvectorizer' has input='file'"):
        TableModel.load(tmp_path / "kept")


REFUSED = {
    "memory": (Pipeline([("s", StandardScaler())], memory="cache"), "Pipeline has memory='cache'"),
    "a pattern": (
        make_pipeline(TfidfVectorizer(token_pattern=r"(\w+)+!")),
        "in step 'tfidfvectorizer' has token_pattern='(\\\\w+)+!', a pattern that repeats a group",
    ),
    "a pattern for columns": (
        ColumnTransformer([("s", StandardScaler(), make_column_selector(r".*.*.*x"))]),
        "has pattern='.*.*.*x', a pattern with 3 unbounded repetitions",
    ),
    "a file": (CountVectorizer(input="file"), "has input='file'"),
    "many words": (HashingVectorizer(n_features=2**40), "has n_features=1099511627776, more than"),
    "long sequences of words": (CountVectorizer(ngram_range=(1, 10**9)), "has ngram_range="),
    "many terms": (PolynomialFeatures(50).fit(X[:2].repeat(3, axis=1)), "has degree=50, which"),
    "many iterations": (
        LatentDirichletAllocation(max_doc_update_iter=10**15),
        "has max_doc_update_iter=",
    ),
    "many steps": (AdditiveChi2Sampler(sample_steps=10**12), "has sample_steps="),
    "many processes": (KNeighborsClassifier(n_jobs=10**6), "has n_jobs=1000000, more than 256"),
    "long names": (
        ColumnTransformer([], verbose_feature_names_out="{feature_name:>99999999999}"),
        "has verbose_feature_names_out=",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_hangs_or_fills_the_memory_is_refused(tmp_path, name):
    model, message = REFUSED[name]
    skops.dump(model, tmp_path / "model.skops")
    start = time.monotonic()
    with pytest.raises(TableError, match=re.escape(message)):
        read_estimator(tmp_path / "model.skops")
    assert time.monotonic() - start < 30


def fitted_with(model, **attributes):
    """The model, fitted, with attributes changed after that."""
    vars(model.fit(X, Y)).update(attributes)
    return model


@pytest.mark.parametrize(
    ("model", "attributes"),
    [
        (MiniBatchNMF(2), {"_transform_max_iter": 10**15}),
        (NMF(2), {"max_iter": np.array(10**15)}),
        (NMF(2), {"max_iter": np.int64(10**15)}),
        (PolynomialFeatures(), {"_n_out_full": 10**13}),
        (PolynomialFeatures(), {"_max_degree": 10**6}),
        (OneHotEncoder(), {"_n_features_outs": [10**13]}),
        (OneHotEncoder(), {"_n_features_outs": np.array([1, 10**13])}),
        (StandardScaler(), {"_of_another_version": 10**8}),
        (HistGradientBoostingClassifier(max_iter=2), {"_in_fit": True}),
    ],
    ids=lambda each: str(each)[:40],
)
def test_what_fitting_has_computed_is_limited_too(tmp_path, model, attributes):
    check_contents(tmp_path, model.fit(X, Y))
    with pytest.raises(TableError, match=f"has {next(iter(attributes))}="):
        check_contents(tmp_path, fitted_with(model, **attributes))


@pytest.mark.parametrize("name", ["random_state", "n_samples_seen_", "t_", "classes_"])
def test_seeds_values_and_numbers_of_rows_may_be_large(tmp_path, name):
    check_contents(tmp_path, fitted_with(StandardScaler(), **{name: [2**40]}))


def test_parts_that_are_used_again_and_again_are_counted(tmp_path):
    part = StandardScaler().fit(X)
    for _ in range(30):  # 2**30 scalers
        part = FeatureUnion([("a", part), ("b", part)])
    with pytest.raises(TableError, match="refers to its parts so often that it would run forever"):
        check_contents(tmp_path, part)


@pytest.mark.parametrize("function", [len, partial(np.add, 1), lambda rows: rows, X.tolist])
def test_functions_are_refused_whatever_skops_knows(tmp_path, function):
    model = make_pipeline(FunctionTransformer(function))
    with pytest.raises(TableError, match="in step 'functiontransformer' would be called"):
        check_contents(tmp_path, model)


HARMLESS_MODELS = [
    make_pipeline(FunctionTransformer(np.log1p), PolynomialFeatures(3), LogisticRegression()),
    make_pipeline(StandardScaler(), SVC(probability=False)),
    RandomForestClassifier(5, n_jobs=1),
    GradientBoostingClassifier(n_estimators=3),
    HistGradientBoostingClassifier(max_iter=5),
    KNeighborsClassifier(algorithm="brute"),
]


@pytest.mark.parametrize("model", HARMLESS_MODELS, ids=lambda each: str(each)[:24])
def test_usual_models_are_read_without_trust(tmp_path, model):
    skops.dump(model.fit(X, Y), tmp_path / "model.skops")
    again = read_estimator(tmp_path / "model.skops")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize("words", [CountVectorizer(ngram_range=(1, 2)), HashingVectorizer()])
def test_usual_models_of_texts_are_read_without_trust(tmp_path, words):
    model = make_pipeline(words, LogisticRegression()).fit(TEXTS, Y)
    skops.dump(model, tmp_path / "model.skops")
    again = read_estimator(tmp_path / "model.skops")
    np.testing.assert_array_equal(again.predict(TEXTS), model.predict(TEXTS))


# --- patterns ------------------------------------------------------------------------------------

CHECKED = [
    r"(?u)\b\w\w+\b",
    r"\w+",
    r"[a-z]{2,}",
    r"\S+",
    r"(?:a|b)c+",
    r"a{2,64}",
    r"(ab)?c*",
    "q",
]
HOSTILE = [
    r"(\w+)+!",
    r"(?:a|aa)*!",
    r"(a?){30}!",
    r"\w*\w*\w*!",
    r"a{0,999}a{0,999}!",
    r"(?=(\w+)+!)a",
    "a?" * 30 + "a" * 30,
    "(?:a|a.?)" * 30 + "!",
    "a" * 2000,
    "(",
    7,
]


@pytest.mark.parametrize("pattern", CHECKED)
def test_patterns_that_end_are_allowed_and_end(pattern):
    assert pattern_problem(pattern) == ""
    start = time.monotonic()
    for text in ("a" * 3000, "ab" * 1500, "a " * 1500):
        re.findall(pattern, text)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("pattern", HOSTILE, ids=range(len(HOSTILE)))
def test_patterns_that_may_search_for_ever_are_refused(pattern):
    assert "pattern" in pattern_problem(pattern)


# --- damaged arrays and large files --------------------------------------------------------------


def with_nodes(tree, change):
    """The same tree with changed nodes, as a file may have it."""
    state = tree.__getstate__()
    nodes = state["nodes"].copy()
    change(nodes)
    tree.__setstate__(state | {"nodes": nodes})


def leads_back(nodes):
    nodes["left_child"][0] = 0


def leads_out(nodes):
    nodes["right_child"][0] = len(nodes)


def reads_out(nodes):
    nodes["feature"][0] = 3


@pytest.mark.parametrize("change", [leads_back, leads_out, reads_out])
def test_trees_whose_nodes_lead_astray_are_refused(tmp_path, change):
    model = DecisionTreeClassifier(random_state=0).fit(X, Y)
    with_nodes(model.tree_, change)
    assert "A tree is damaged" in refusal(model, tmp_path)


@pytest.mark.parametrize("of_three", [True, False])
def test_boosted_trees_read_no_columns_that_are_not_there(tmp_path, of_three):
    model = GradientBoostingClassifier(n_estimators=1).fit(X, Y)
    tree = model.estimators_[0, 0]
    with_nodes(tree.tree_, reads_out)
    tree.n_features_in_ = 3 if of_three else 99  # which gradient boosting does not look at
    assert "is damaged" in refusal(model, tmp_path)


@pytest.mark.parametrize(("field", "value"), [("left", 0), ("right", 999), ("feature_idx", 3)])
def test_trees_of_histograms_are_checked_too(tmp_path, field, value):
    model = HistGradientBoostingClassifier(max_iter=2).fit(X, Y)
    model._predictors[1][0].nodes[field][0] = value
    assert "A tree is damaged" in refusal(model, tmp_path)


def test_nodes_that_are_masked_are_refused(tmp_path):
    model = HistGradientBoostingClassifier(max_iter=1).fit(X, Y)
    tree = model._predictors[0][0]
    tree.nodes["feature_idx"][0] = 99
    tree.nodes = np.ma.MaskedArray(tree.nodes, mask=True)  # for checks, not for compiled code
    with pytest.raises(TableError, match=r"A tree is damaged|An array is a MaskedArray"):
        check_contents(tmp_path, model)
    tree.nodes.data["feature_idx"][0] = 0
    with pytest.raises(TableError, match="An array is a MaskedArray"):
        check_contents(tmp_path, model)


def test_a_tree_is_checked_for_each_width_of_rows(tmp_path):
    model = GradientBoostingClassifier(n_estimators=1).fit(X, Y)
    tree = model.estimators_[0, 0]
    with_nodes(tree.tree_, reads_out)
    tree.n_features_in_ = 99
    check_contents(tmp_path, tree)
    with pytest.raises(TableError, match="A tree is damaged"):
        check_contents(tmp_path, [tree, model])


def by_category(**changes):
    """Boosting by histograms of a column of categories, without what encodes them."""
    rows = np.column_stack([THREE, X])
    model = HistGradientBoostingClassifier(max_iter=1, categorical_features=[0]).fit(rows, THREE)
    model._preprocessor = None
    tree = model._predictors[0][0]
    assert tree.nodes["is_categorical"][0]
    for name, value in changes.items():
        if name in tree.nodes.dtype.names:
            tree.nodes[name][0] = value
        else:
            owner = tree if hasattr(tree, name) else model._bin_mapper
            setattr(owner, name, value)
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {"bitset_idx": 10**6},
        {"raw_left_cat_bitsets": np.zeros((0, 8), np.uint32)},
        {"raw_left_cat_bitsets": np.zeros((9, 1), np.uint32)},
        {"is_categorical_": np.zeros(4, np.uint8)},  # no row of known categories
        {"is_categorical_": np.ones(1, np.uint8)},
        {"nodes": by_category()._predictors[0][0].nodes[:0]},
    ],
    ids=str,
)
def test_trees_look_up_no_categories_that_are_not_there(tmp_path, changes):
    check_contents(tmp_path, by_category())
    with pytest.raises(TableError, match="A tree is damaged"):
        check_contents(tmp_path, by_category(**changes))


def with_many_columns(model):
    model.estimators_ = np.repeat(model.estimators_, 100, axis=1)


def with_a_start_of_few_columns(model):
    model.init_.class_prior_ = model.init_.class_prior_[:1]


def without_trees(model):
    model.estimators_[0, 0].tree_ = None


@pytest.mark.parametrize("start", [None, "zero"])
@pytest.mark.parametrize("change", [with_many_columns, with_a_start_of_few_columns, without_trees])
def test_boosting_adds_up_no_more_columns_than_it_has(tmp_path, start, change):
    model = GradientBoostingClassifier(n_estimators=1, init=start).fit(X, THREE)
    check_contents(tmp_path, model)
    if start == "zero" and change is with_a_start_of_few_columns:
        model.n_trees_per_iteration_ = 1
    else:
        change(model)
    with pytest.raises(TableError, match="A tree is damaged"):
        check_contents(tmp_path, model)


def test_sparse_arrays_whose_indices_lead_out_are_refused(tmp_path):
    model = KNeighborsClassifier().fit(CountVectorizer().fit_transform(TEXTS), Y)
    model._fit_X.indices[0] = 10**6
    with pytest.raises(TableError, match="An array is damaged"):
        check_contents(tmp_path, model)


def test_a_file_that_grows_in_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_model_contents, "SMALL_MODEL", 2**20)
    path = tmp_path / "model.skops"
    line = LogisticRegression().fit(X, Y)
    line.coef_ = np.zeros((1, 2**22))
    skops.dump(line, path, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(TableError, match=r"would take 0\.0 GiB of memory"):
        read_estimator(path)
    line.coef_ = np.random.default_rng(0).normal(size=(1, 2**15))
    skops.dump([line], path)
    assert len(read_estimator(path)) == 1
    with zipfile.ZipFile(path) as archive:  # and one array that is loaded a thousand times
        members = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(members["schema.json"])
    schema["content"] *= 1000
    members["schema.json"] = json.dumps(schema).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(TableError, match=r"would take 0\.2 GiB of memory"):
        read_estimator(path)


def test_a_long_description_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    path = tmp_path / "model.skops"
    skops.dump(LogisticRegression().fit(X, Y), path)
    read_estimator(path)
    monkeypatch.setattr(_model_contents, "LARGEST_SCHEMA", 100)
    with pytest.raises(
        TableError, match=r"description of the model \(schema.json\) takes .* bytes"
    ):
        read_estimator(path)
