"""TableModel among scikit-learn's tools and libraries of tables, and what it refuses."""

import re

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.utils import estimator_checks, get_tags

import skuq
from skuq.reporting import table_report
from skuq.tables import TableError, TableModel
from skuq.tables._columns import CleanColumns
from skuq.testing import check_uncertainty_estimator
from tests.tables.toy import Toy, ToyRegressor, made, of_unaltered

PARTS = ["total", "aleatoric", "epistemic"]
OF_PARAMETERS = [
    *("estimator_cloneable", "estimator_repr", "get_params_invariance", "set_params"),
    *("no_attributes_set_in_init", "parameters_default_constructible", "valid_tag_types"),
]

pytestmark = pytest.mark.usefixtures("few_trees")


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(40, 10, 80).round(1), "town": ["Ulm", "Linz"] * 40})
    signal = table["age"] + 10 * (table["town"] == "Ulm") + rng.normal(0, 4, 80)
    table["moved"] = np.where(signal > 45, "yes", "no")
    return table.assign(rent=signal * 10 + 0.5).set_index(pd.Index(range(1000, 1080)))


@pytest.fixture
def X(people):
    return people[["age", "town"]]


@pytest.fixture(scope="module")
def model(people):
    return TableModel("logistic").fit(people, "moved", drop=["rent"])


@pytest.fixture(scope="module")
def numbered(model, people):
    return model.predict(people.reset_index(drop=True), n_explained=3)


def test_it_conforms_to_scikit_learn_and_to_the_protocol_of_uncertainty(people, X):
    for check in OF_PARAMETERS:
        for estimator in ("auto", LogisticRegression()):
            getattr(estimator_checks, f"check_{check}")("TableModel", TableModel(estimator))
    check_uncertainty_estimator(TableModel(Toy()), X=X, y=people["moved"])
    check_uncertainty_estimator(TableModel(ToyRegressor()), X=X[["age"]], y=people["rent"])


def test_uncertainty_and_probabilities_are_those_of_the_predicted_table(model, people, numbered):
    some = people[people["age"] > 40]
    expected = numbered[(people["age"] > 40).to_numpy()]
    for u in (model.predict_uncertainty(some), skuq.predict_uncertainty(model, some)):
        assert u.index.equals(some.index)
        np.testing.assert_allclose(u.to_frame(), expected[PARTS], rtol=1e-12)
    np.testing.assert_array_equal(model.score_samples(some), -u.epistemic)
    proba = model.predict_proba(some)
    assert model.classes_[proba.argmax(axis=1)].tolist() == expected["prediction"].tolist()
    np.testing.assert_allclose(proba.max(axis=1), expected["confidence"])


def test_the_kind_of_estimator_is_known_as_far_as_parameters_tell():
    for model, kind in (
        (TableModel(), None),
        (TableModel(task="classification"), "classifier"),
        (TableModel(task="regression"), "regressor"),
        (TableModel(LogisticRegression()), "classifier"),
    ):
        assert get_tags(model).estimator_type == kind
        assert hasattr(model, "predict_proba") == (kind != "regressor")


def test_a_target_as_values_gives_what_its_name_gives(model, people, X, numbered):
    for as_values in (pd.Series, np.asarray, list):
        fitted = TableModel("logistic").fit(X, as_values(people["moved"]))
        assert fitted.target_ == ("moved" if as_values is pd.Series else "target")
        result = fitted.predict(people, n_explained=3).reset_index(drop=True)
        pd.testing.assert_frame_equal(result, numbered)
        assert fitted.score(X, as_values(people["moved"])) == model.score(people, "moved")


def test_score_is_accuracy_or_the_share_of_explained_variance(model, people, X, numbered):
    assert model.score(people, "moved") == accuracy_score(people["moved"], numbered["prediction"])
    assert is_classifier(model)
    answers = (people["moved"] == "yes").astype(int)
    of_numbers = TableModel("logistic").fit(X, answers)
    assert of_numbers.score(X, answers.astype(float)) == of_numbers.score(X, answers) > 0.8
    quantities = TableModel(ToyRegressor()).fit(X, people["rent"])
    expected = r2_score(people["rent"], quantities.predict(X, n_explained=0)["prediction"])
    assert quantities.score(X, people["rent"]) == pytest.approx(expected)
    assert is_regressor(quantities)
    assert not hasattr(quantities, "predict_proba")
    # A Series that was made of a column has the name of this column.
    assert TableModel(ToyRegressor()).fit(X, X["age"] * 2.5).target_ == "target"
    fitted = TableModel(Toy()).fit(X.to_numpy(), people["moved"].to_numpy())  # an array
    assert fitted.feature_names_in_.tolist() == ["x0", "x1"]
    assert fitted.columns_.numbers_ == ["x0"]
    assert fitted.predict(X.to_numpy()[:3]).index.equals(pd.RangeIndex(3))


def test_cross_validation_and_searches_score_it_with_any_function_of_its_table(people, X):
    made, y = TableModel(Toy(), task="classification"), people["moved"]
    for scoring in ("neg_log_loss", "roc_auc"):
        options = {"cv": 3, "scoring": scoring, "error_score": "raise"}
        assert np.isfinite(cross_val_score(made, X, y, **options)).all()
    scores = cross_val_score(made, X, y, cv=3, error_score="raise")
    for score, (train, test) in zip(scores, StratifiedKFold(3).split(X, y), strict=True):
        fitted = clone(made).fit(people.iloc[train], "moved", drop=["rent"])
        assert score == fitted.score(people.iloc[test], "moved")

    def certain(model, X, y):
        return model.predict(X, n_explained=0)["confidence"].mean()

    search = GridSearchCV(made, {"random_state": [3, 4]}, cv=2, scoring=certain)
    with sklearn.config_context(enable_metadata_routing=True):
        search.fit(X, y)
    assert search.best_estimator_.random_state == search.best_params_["random_state"]
    u = skuq.predict_uncertainty(search, X)
    assert u == search.best_estimator_.predict_uncertainty(X)
    assert u.index.equals(X.index)


def test_a_given_model_survives_cross_validation_if_it_is_frozen(people, X):
    given = LogisticRegression().fit(X[["age"]], people["moved"])
    made = TableModel(FrozenEstimator(given))
    scores = cross_val_score(made, X, people["moved"], cv=2, error_score="raise")
    assert scores.mean() == pytest.approx(given.score(X[["age"]], people["moved"]))
    assert clone(made).fit(X, people["moved"]).name_ == "the given LogisticRegression"
    with pytest.raises(TableError, match="Inside a FrozenEstimator it stays fitted"):
        clone(TableModel(given)).fit(X, people["moved"])


LABELS = {
    "texts": [f"row {i}" for i in range(80)],
    "pairs": pd.MultiIndex.from_product([range(8), range(10)], names=["a", "b"]),
    "dates": pd.date_range("2026-01-01", periods=80, freq="h", tz="UTC"),
    "repeated": np.arange(80) % 7,
}


def tables_of_report(model, rows, counts):
    return re.findall("<table.*?</table>", table_report(model, rows, counts).html(), re.DOTALL)


@pytest.mark.parametrize("labels", LABELS)
def test_results_and_held_out_rows_have_their_labels(labels, model, people, numbered):
    table = people.set_index(pd.Index(LABELS[labels]))
    for rows in (np.arange(80), np.flatnonzero(people["age"] > 42), np.arange(80)[::-3]):
        part = table.iloc[rows]
        result = model.predict(part, n_explained=0)
        pd.testing.assert_index_equal(result.index, part.index)
        np.testing.assert_allclose(result[PARTS], numbered.iloc[rows][PARTS])
        assert result["prediction"].tolist() == numbered["prediction"].iloc[rows].tolist()
    options = {"drop": ["rent"], "id_column": "place"}
    placed = table.assign(place=np.arange(80) * 1.0)
    held = TableModel(Toy()).fit(placed, "moved", **options).held_out_
    assert len(held) == 16
    assert held.index.isin(table.index).all()
    if table.index.is_unique:
        assert (table["moved"].loc[held.index] == held["label"]).all()
        fitted = TableModel(Toy()).fit(placed[:50], "moved", drop=["rent"], held_out=placed[40:])
        assert fitted.held_out_.index.equals(table.index[50:])  # the first ten trained


def test_reports_number_rows_in_their_order(model, people, numbered):
    pytest.importorskip("matplotlib")
    expected = tables_of_report(model, numbered.assign(reasons=""), model.count(people))
    for labels in ("pairs", "repeated"):
        table = people.set_index(pd.Index(LABELS[labels]))
        chunks = [model.predict(part, n_explained=0) for part in (table[:30], table[30:])]
        assert tables_of_report(model, pd.concat(chunks), model.count(table)) == expected


def tables_of(library):
    if library == "pyarrow":
        arrow = pytest.importorskip("pyarrow").Table.from_pandas
        return lambda frame: arrow(frame.astype({"town": "category"}), preserve_index=False)
    polars = pytest.importorskip("polars")
    kind = polars.Categorical if library == "Categorical" else polars.Enum(["Linz", "Ulm", "Wien"])
    town = polars.col("town").cast(kind)
    return lambda frame: polars.DataFrame(frame.to_dict("list")).with_columns(town)


@pytest.mark.parametrize("library", ["Categorical", "Enum", "pyarrow"])
def test_tables_of_other_libraries_give_tables_of_these(library, people):
    made, frame = tables_of(library), people.assign(key=range(80)).reset_index(drop=True)
    options = {"drop": ["rent"], "id_column": "key"}
    fitted, expected = (
        TableModel(Toy()).fit(convert(frame[:60]), "moved", held_out=convert(frame[60:]), **options)
        for convert in (made, pd.DataFrame)
    )
    table, rows = made(frame), expected.predict(frame, n_explained=3)
    result = fitted.predict(table, n_explained=3)
    assert type(result) is type(table)
    as_pandas = pd.DataFrame({name: np.asarray(result[name]) for name in rows})
    pd.testing.assert_frame_equal(as_pandas, rows, check_dtype=False)
    counts = fitted.count(table)
    pd.testing.assert_frame_equal(counts, expected.count(frame))
    assert fitted.predict_uncertainty(table) == expected.predict_uncertainty(frame)
    assert fitted.score(table, "moved") == expected.score(frame, "moved")
    assert fitted.score(table, table["moved"]) == expected.score(frame, "moved")
    if library == "pyarrow":
        own, of_pandas = (tables_of_report(fitted, each, counts) for each in (result, as_pandas))
        assert own == of_pandas


SIXTY = np.arange(60)
QUANTITY = TableModel("logistic", task="regression")


def fit(model=None, target="kind", *, renamed=None, options=None, **columns):
    train = made().assign(**columns).rename(columns=renamed or {})
    target = target(train) if callable(target) else target
    return (model or TableModel(Toy())).fit(train, target, **(options or {}))


def predict(*, renamed=None, **columns):
    table = made().head(7).assign(**columns).rename(columns=renamed or {})
    return of_unaltered().model.predict(table)


def ask(method, *args, **options):
    return getattr(of_unaltered().model, method)(*args, **options)


def held_out(table, **columns):
    return fit(options={"held_out": table}, **columns)


def clean(*values, read_text=True, **others):
    return CleanColumns(read_text=read_text).fit(pd.DataFrame({"c": [*values], **others}))


def restore(train, new):
    columns = clean(*train, read_text=False)
    columns.inverse_transform(columns.read(pd.DataFrame({"c": new}), "table").X)


def ids_of_training():
    table = made()[:20].assign(size=0.5, nr=SIXTY[:20])
    fit(nr=SIXTY, options={"id_column": "nr", "held_out": table})


def two_columns_of_one_name():
    pyarrow = pytest.importorskip("pyarrow")
    ask("predict", pyarrow.table([[1.0], [2.0]], names=["size", "size"]))


NAMES = [
    (lambda: fit(target="kinds"), r"'kinds'.* Did you mean 'kind'"),
    (lambda: fit(target="zzz"), r"'zzz'; it has size, count, colour, new, kind\.$"),
    (lambda: fit(options={"drop": ["color"]}), "Did you mean 'colour'"),
    (lambda: fit(options={"drop": ["size", "count", "colour", "new"]}), "no feature column"),
    (lambda: fit(**dict.fromkeys(["size", "count", "colour", "new"])), "no feature column"),
    (lambda: fit(options={"drop": ["kind"]}), "dropped"),
    (lambda: fit(options={"id_column": "kind"}), "id column"),
    (lambda: fit(total=SIXTY, options={"id_column": "total"}), "same name"),
    (lambda: fit(renamed={"count": "size"}), "training table .*'size'"),
    (lambda: fit(renamed={"count": 7}), r"training table .*7; .*astype\(str\)"),
    (lambda: predict(renamed={"count": "size"}), "table to predict .*'size'"),
    (lambda: predict(renamed={"count": 7}), r"table to predict .*7; .*astype\(str\)"),
    (lambda: predict(renamed={"size": "a", "new": "b"}), "size, new"),
    (lambda: ask("predict", np.zeros((2, 1))), "lacks"),
    (two_columns_of_one_name, "'size'"),
    (lambda: clean("2020-01-31", **{"c (month)": [1]}), r"'c \(month\)'"),
]
TARGETS = [
    (lambda: fit(target=lambda t: t["kind"]), "already has a column"),
    (lambda: fit(target=lambda t: t["kind"][:7]), r"60 rows, got shape \(7,\)"),
    (lambda: fit(target=lambda t: t[["kind"]]), r"shape \(60, 1\)"),
    (lambda: fit(target=lambda t: None), r"shape \(\)"),
    (lambda: fit(QUANTITY, lambda t: t["size"] * 2, renamed={"kind": "target"}), "'target'"),
    (lambda: fit(kind=np.linspace(0, 1, 60)), "continuous.*task="),
    (lambda: fit(kind=np.tile([np.inf, 1.0], 30)), "continuous"),
    (lambda: fit(kind="ant"), "'ant' has 60 of 60"),
    (lambda: fit(kind=SIXTY), "'0' has 1 of 60.*a quantity"),
    (lambda: fit(kind=["ant"] * 59 + ["cow"]), "'cow' has 1 of 60"),
    (lambda: fit(kind=None), "is missing"),
    (lambda: fit(QUANTITY), "numeric"),
    (lambda: fit(QUANTITY, kind=["5kg", "7kg"] * 30), "one unit"),
    (lambda: fit(QUANTITY, kind=1.5), "vary"),
    (lambda: fit(QUANTITY, kind=[np.inf, 1.5] * 30), "finite"),
]
VALUES = [
    (lambda: predict(size="two"), "7 of the 7 rows .*row 0: size is 'two', not a number"),
    (lambda: predict(size=np.inf), "'inf', infinite"),
    (lambda: fit(size=-np.inf), "'size'.* infinite"),
    (lambda: fit(size=np.linspace(0, 1e200, 60)), "1e.38, such as 1.69"),
    (lambda: fit(size=[[1, 2]] * 60), r"'size' has several values.*\[1, 2\]"),
    (lambda: predict(size=[{"a": 1}] * 7), "'size' has several values"),
    (lambda: clean(None, (1, 2)), "several"),
    (lambda: clean(None, np.arange(2), read_text=False), "several"),
    (lambda: clean("01/02/2020", "11/12/2020"), "'01/02/2020'; .*drop=..c"),
    (lambda: clean("02/02/2020"), "told apart"),
    (lambda: clean("31/01/2020", "01/31/2020"), "told apart"),
    (lambda: restore(pd.to_datetime(["2030-01-01"]), ["2030-01-01", "soon"]), "'soon'"),
]
HELD_OUT = [
    (lambda: held_out(made().drop(columns="size")), "held-out table lacks .*size"),
    (lambda: held_out(made().assign(size="oops")), "60 rows of the held-out table .*'oops'"),
    (lambda: held_out(made().assign(size=0.5, kind="cow")), "'cow'"),
    (lambda: held_out(made()[:20]), "All rows"),
    (ids_of_training, "equal ids"),
]
ESTIMATORS = [
    (lambda: fit(TableModel(LinearRegression(), task="classification")), "task='classification'"),
    (lambda: fit(TableModel(object())), "got object"),
    (lambda: fit(TableModel(LogisticRegression())), "LogisticRegression"),
]
ASKED = [
    (lambda: fit(TableModel("svm")), "`estimator`"),
    (lambda: fit(TableModel(task="ranking")), None),
    (lambda: fit(TableModel(random_state=-1)), None),
    (lambda: fit(TableModel(random_state=None)), None),
    (lambda: fit(TableModel(n_jobs="all")), None),
    (lambda: fit(TableModel(progress="loud")), None),
    (lambda: ask("predict", made(), coverage=0.0), "`coverage`"),
    (lambda: ask("predict", made(), coverage=1.0), "`coverage`"),
    (lambda: ask("measured_coverage", 1.5), "`coverage`"),
    (lambda: ask("measured_coverage", by="size"), "'colour', 'new', got 'size'"),
    (lambda: ask("predict_quantiles", made()), "quantiles"),
    (lambda: ask("predict_interval", made()), "intervals"),
    (lambda: ask("measured_intervals"), "intervals"),
    (lambda: fit(TableModel(ToyRegressor()), kind=SIXTY).measured_by_class(), "classes"),
]
UNFITTED = [
    (lambda: TableModel().predict(made()), None),
    (lambda: TableModel().count(made()), None),
    (lambda: TableModel().save("folder"), None),
]
OF_TABLES = [*NAMES, *TARGETS, *VALUES, *HELD_OUT, *ESTIMATORS]
REFUSALS = [(call, TableError, word) for call, word in OF_TABLES]
REFUSALS += [(call, ValueError, word) for call, word in ASKED]
REFUSALS += [(call, NotFittedError, word) for call, word in UNFITTED]


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize(("call", "error", "word"), REFUSALS, ids=range(len(REFUSALS)))
def test_it_is_refused_by_name(call, error, word):
    with pytest.raises(error, match=word):
        call()


def test_what_is_no_table_is_refused_by_its_type():
    model, frame = of_unaltered().model, made()
    calls = [model.predict, model.count, model.predict_uncertainty, model.predict_proba, held_out]
    series, lists = frame.iloc[0], frame.to_dict("list")
    for table in (series, frame["size"].to_numpy(), lists, frame.to_numpy().tolist(), "known.csv"):
        for call in (*calls, lambda table: TableModel(Toy()).fit(table, "kind")):
            with pytest.raises(TableError, match=f"got {type(table).__name__}"):
                call(table)


@pytest.mark.parametrize("mark", [",", "."])
def test_numbers_with_another_decimal_mark_are_refused_with_what_to_state(mark):
    train, own = made(), "," if mark == "." else "."
    train["size"] = [f"{value:.2f}".replace(".", own) for value in train["size"]]
    model = TableModel(Toy()).fit(train, "kind")
    for sizes in (["1M5"] * 7, ["1M5", "2M25", "3M5", "77M125", "4M0", "4M1", "5"]):
        table = made().head(7).assign(size=[size.replace("M", mark) for size in sizes])
        with pytest.raises(TableError, match=r"1.5'.* mark .*`decimal`"):
            model.predict(table)
