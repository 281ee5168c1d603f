"""`TableModel` among scikit-learn's tools and among libraries of tables: rows keep their labels."""

import re

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.utils import estimator_checks, get_tags

import skuq
from skuq.reporting import table_report
from skuq.tables import TableError, TableModel
from skuq.testing import check_uncertainty_estimator
from tests.tables.toy import Toy, ToyRegressor

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


def test_parameters_are_those_of_a_scikit_learn_estimator():
    for check in OF_PARAMETERS:
        for estimator in ("auto", LogisticRegression()):
            getattr(estimator_checks, f"check_{check}")("TableModel", TableModel(estimator))


def test_it_conforms_to_the_protocol_of_uncertainty(people, X):
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
    for made, kind in (
        (TableModel(), None),
        (TableModel(task="classification"), "classifier"),
        (TableModel(task="regression"), "regressor"),
        (TableModel(LogisticRegression()), "classifier"),
    ):
        assert get_tags(made).estimator_type == kind
        assert hasattr(made, "predict_proba") == (kind != "regressor")


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
    fitted, expected = (
        TableModel(Toy()).fit(
            *(convert(frame[:60]), "moved"),
            held_out=convert(frame[60:]),
            drop=["rent"],
            id_column="key",
        )
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
