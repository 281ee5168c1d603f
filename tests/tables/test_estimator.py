"""`TableModel` among scikit-learn's tools and among libraries of tables: rows keep their labels."""

import copy
import pickle
import re

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.utils import estimator_checks, get_tags

import skuq
from skuq.reporting import table_report
from skuq.tables import TableError, TableModel
from skuq.testing import check_uncertainty_estimator

PARTS = ["total", "aleatoric", "epistemic"]
OF_PARAMETERS = [
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_get_params_invariance",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
]

pytestmark = pytest.mark.usefixtures("few_trees")


@pytest.fixture(scope="module")
def people():
    """80 rows, whose labels are not their numbers."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(40, 10, 80).round(1), "town": ["Ulm", "Linz"] * 40})
    signal = table["age"] + 10 * (table["town"] == "Ulm") + rng.normal(0, 4, 80)
    table["moved"] = np.where(signal > 45, "yes", "no")
    return table.assign(rent=signal * 10 + 0.5).set_index(pd.Index(range(1000, 1080)))


@pytest.fixture(scope="module")
def X(people):
    return people[["age", "town"]]


@pytest.fixture(scope="module")
def model(people):
    return TableModel("logistic").fit(people, "moved", drop=["rent"])


@pytest.fixture(scope="module")
def numbered(model, people):
    """Results for the same rows, numbered from 0."""
    return model.predict(people.reset_index(drop=True), n_explained=3)


# --- parameters and protocol -----------------------------------------------------------------


@pytest.mark.parametrize("check", OF_PARAMETERS)
@pytest.mark.parametrize("estimator", ["auto", LogisticRegression()], ids=["auto", "given"])
def test_parameters_are_those_of_a_scikit_learn_estimator(check, estimator):
    getattr(estimator_checks, check)("TableModel", TableModel(estimator))


@pytest.mark.parametrize(
    ("task", "target"),
    [
        ("classification", "moved"),
        pytest.param("regression", "rent", marks=pytest.mark.slow),
    ],
)
def test_it_conforms_to_the_protocol_of_uncertainty(task, target, people, X):
    check_uncertainty_estimator(TableModel("logistic", task=task), X=X, y=people[target])


def test_clone_copies_parameters_and_nothing_that_was_learnt(model):
    twin = clone(model.set_params(n_jobs=1))
    assert twin.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        twin.predict(pd.DataFrame())
    assert repr(twin) == "TableModel(estimator='logistic', n_jobs=1)"
    assert "TableModel" in twin._repr_html_()
    assert TableModel(LogisticRegression()).get_params()["estimator__C"] == 1.0
    assert twin.set_params(task="regression").task == "regression"


@pytest.mark.parametrize("method", ["predict", "predict_uncertainty", "predict_proba", "count"])
def test_a_model_that_is_not_fitted_says_so(method, X):
    with pytest.raises(NotFittedError, match="TableModel instance is not fitted"):
        getattr(TableModel(), method)(X)
    with pytest.raises(NotFittedError, match="TableModel instance is not fitted"):
        TableModel().save("folder")


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("random_state", -1), ("random_state", None), ("n_jobs", "all"), ("progress", "loud")],
)
def test_parameters_are_checked_by_fit(parameter, value, people):
    with pytest.raises(ValueError, match=f"The '{parameter}' parameter of TableModel must be"):
        TableModel("logistic").set_params(**{parameter: value}).fit(people, "moved")


def test_uncertainty_is_that_of_the_predicted_table(model, people, numbered):
    some = people[people["age"] > 40]
    for u in (model.predict_uncertainty(some), skuq.predict_uncertainty(model, some)):
        assert u.index.equals(some.index)
        expected = numbered[(people["age"] > 40).to_numpy()]
        np.testing.assert_allclose(u.to_frame(), expected[PARTS], rtol=1e-12)
    np.testing.assert_array_equal(model.score_samples(some), -u.epistemic)


def test_probabilities_belong_to_the_classes(model, X, numbered):
    proba = model.predict_proba(X)
    assert (model.classes_[proba.argmax(axis=1)] == numbered["prediction"]).all()
    np.testing.assert_allclose(proba.max(axis=1), numbered["confidence"])


def test_copies_and_pickles_predict_the_same(model, people):
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert twin.predict_uncertainty(people) == model.predict_uncertainty(people)
        assert twin.held_out_.equals(model.held_out_)


def test_a_pickle_of_another_version_is_refused(monkeypatch):
    kept = pickle.dumps(TableModel())
    monkeypatch.setattr("skuq.base.__version__", "99.0")
    with pytest.raises(ValueError, match="This TableModel was pickled by skuq"):
        pickle.loads(kept)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, None),
        ({"task": "classification"}, "classifier"),
        ({"task": "regression"}, "regressor"),
        ({"estimator": LogisticRegression()}, "classifier"),
    ],
)
def test_the_kind_of_estimator_is_known_as_far_as_parameters_tell(options, kind):
    made = TableModel(**options)
    assert get_tags(made).estimator_type == kind
    assert hasattr(made, "predict_proba") == (kind != "regressor")


def test_the_kind_of_estimator_is_known_once_fitted(model, people, X):
    assert is_classifier(model)
    quantities = TableModel("logistic").fit(X, people["rent"])
    assert is_regressor(quantities)
    with pytest.raises(AttributeError, match="predict_proba"):
        quantities.predict_proba(X)


# --- in scikit-learn's tools -----------------------------------------------------------------


@pytest.mark.parametrize("as_values", [pd.Series, np.asarray, list])
def test_a_target_as_values_gives_what_its_name_gives(as_values, model, people, X, numbered):
    fitted = TableModel("logistic").fit(X, as_values(people["moved"]))
    named = isinstance(as_values(people["moved"]), pd.Series)
    assert fitted.target_ == ("moved" if named else "target")
    result = fitted.predict(people, n_explained=3).reset_index(drop=True)
    pd.testing.assert_frame_equal(result, numbered)
    assert fitted.score(X, as_values(people["moved"])) == model.score(people, "moved")


def test_score_is_accuracy_or_the_share_of_explained_variance(model, people, X, numbered):
    assert model.score(people, "moved") == accuracy_score(people["moved"], numbered["prediction"])
    answers = (people["moved"] == "yes").astype(int)
    of_numbers = TableModel("logistic").fit(X, answers)
    assert of_numbers.score(X, answers.astype(float)) == of_numbers.score(X, answers) > 0.8
    quantities = TableModel("logistic").fit(X, people["rent"])
    expected = r2_score(people["rent"], quantities.predict(X, n_explained=0)["prediction"])
    assert quantities.score(X, people["rent"]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda people: people["moved"], "are also a column of the training table"),
        (
            lambda people: people["moved"][:7],
            r"one value for each of its 80 rows, got shape \(7,\)",
        ),
        (lambda people: people[["moved"]], r"got shape \(80, 1\)"),
        (lambda people: None, r"got shape \(\)"),
    ],
)
def test_targets_that_fit_no_table_are_refused(target, message, people):
    with pytest.raises(TableError, match=message):
        TableModel("logistic").fit(people, target(people))


def test_a_target_that_was_made_of_a_column_is_not_taken_for_it(people, X):
    assert TableModel("logistic").fit(X, X["age"] * 2.5).target_ == "target"
    with pytest.raises(TableError, match="or it has a column 'target'"):
        TableModel("logistic").fit(X.assign(target=1), X["age"] * 2.5)


@pytest.mark.parametrize("scoring", [None, "neg_log_loss", "roc_auc"])
def test_cross_validation_scores_it(scoring, people, X):
    made = TableModel("logistic", task="classification")
    scores = cross_val_score(made, X, people["moved"], cv=3, scoring=scoring, error_score="raise")
    for score, (train, test) in zip(
        scores, StratifiedKFold(3).split(X, people["moved"]), strict=True
    ):
        if scoring is None:
            fitted = clone(made).fit(people.iloc[train], "moved", drop=["rent"])
            assert score == fitted.score(people.iloc[test], "moved")
    assert np.isfinite(scores).all()


def test_searches_try_its_parameters_with_any_function_of_its_table(people, X):
    def certain(model, X, y):
        return model.predict(X, n_explained=0)["confidence"].mean()

    grid = {"estimator": ["logistic"], "random_state": [3, 4]}
    search = GridSearchCV(TableModel(task="classification"), grid, cv=2, scoring=certain)
    with sklearn.config_context(enable_metadata_routing=True):
        search.fit(X, people["moved"])
    assert search.best_params_.items() <= search.best_estimator_.get_params().items()
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


# --- labels of rows --------------------------------------------------------------------------

LABELS = {
    "texts": [f"row {i}" for i in range(80)],
    "backwards": range(80, 0, -1),
    "pairs": pd.MultiIndex.from_product([range(8), range(10)], names=["a", "b"]),
    "dates": pd.date_range("2026-01-01", periods=80, freq="h", tz="UTC"),
    "repeated": np.arange(80) % 7,
    "all the same": np.zeros(80),
}


def tables_of_report(model, rows, counts):
    return re.findall("<table.*?</table>", table_report(model, rows, counts).html(), re.DOTALL)


@pytest.mark.parametrize("labels", LABELS)
def test_results_have_the_labels_of_their_rows(labels, model, people, numbered):
    table = people.set_index(pd.Index(LABELS[labels]))
    for rows in (np.arange(80), np.flatnonzero(people["age"] > 42), np.arange(80)[::-3]):
        part = table.iloc[rows]
        result = model.predict(part, n_explained=0)
        pd.testing.assert_index_equal(result.index, part.index)
        np.testing.assert_allclose(result[PARTS], numbered.iloc[rows][PARTS])
        beside = part.join(result) if part.index.is_unique else pd.concat([part, result], axis=1)
        assert (beside["age"] == part["age"]).all()
        assert (beside["prediction"].to_numpy() == numbered["prediction"].iloc[rows]).all()


@pytest.mark.parametrize("labels", ["texts", "pairs", "repeated"])
def test_reports_number_rows_in_their_order(labels, model, people, numbered):
    pytest.importorskip("matplotlib")
    table = people.set_index(pd.Index(LABELS[labels]))
    chunks = [model.predict(table[:30], n_explained=0), model.predict(table[30:], n_explained=0)]
    shown = tables_of_report(model, pd.concat(chunks), model.count(table))
    assert shown == tables_of_report(model, numbered.assign(reasons=""), model.count(people))


@pytest.mark.parametrize("labels", LABELS)
def test_held_out_rows_have_their_labels_until_they_are_saved(labels, people, tmp_path):
    pytest.importorskip("skops")
    table = people.set_index(pd.Index(LABELS[labels])).assign(place=np.arange(80) * 1.0)
    fitted = TableModel("logistic").fit(table, "moved", drop=["rent"], id_column="place")
    held = fitted.held_out_
    assert len(held) == 16
    assert held.index.isin(table.index).all()
    if table.index.is_unique:
        assert (table["moved"].loc[held.index] == held["label"]).all()
        other = fitted.fit(table[:50], "moved", drop=["rent"], held_out=table[40:]).held_out_
        assert other.index.equals(table.index[50:])  # the first ten trained
    fitted.save(tmp_path / "kept")
    loaded = TableModel.load(tmp_path / "kept")
    pd.testing.assert_frame_equal(loaded.held_out_, fitted.held_out_.reset_index(drop=True))
    assert loaded.measured_by_class().equals(fitted.measured_by_class())


# --- other libraries -------------------------------------------------------------------------


def tables_of(library):
    """A function that makes a table of a library, with text as categories."""
    if library == "pyarrow":
        pyarrow = pytest.importorskip("pyarrow")
        return lambda frame: pyarrow.Table.from_pandas(
            frame.astype({"town": "category"}), preserve_index=False
        )
    polars = pytest.importorskip("polars")
    kinds = {"Categorical": polars.Categorical, "Enum": polars.Enum(["Linz", "Ulm", "Wien"])}
    kind = kinds[library]
    return lambda frame: polars.DataFrame(frame.to_dict("list")).with_columns(
        polars.col("town").cast(kind)
    )


FITTING = {"drop": ["rent"], "id_column": "key"}


@pytest.fixture(scope="module")
def keyed(people):
    """The people with keys, a model of pandas' table of them, and its results."""
    frame = people.assign(key=range(80)).reset_index(drop=True)
    model = TableModel("logistic").fit(frame[:60], "moved", held_out=frame[60:], **FITTING)
    return frame, model, model.predict(frame, n_explained=3)


@pytest.mark.parametrize("library", ["Categorical", "Enum", "pyarrow"])
def test_tables_of_other_libraries_give_tables_of_these(library, keyed):
    made, (frame, expected, rows) = tables_of(library), keyed
    known, other, table = made(frame[:60]), made(frame[60:]), made(frame)
    fitted = TableModel("logistic").fit(known, "moved", held_out=other, **FITTING)
    result = fitted.predict(table, n_explained=3)
    assert type(result) is type(table)
    as_pandas = pd.DataFrame({name: np.asarray(result[name]) for name in rows})
    pd.testing.assert_frame_equal(as_pandas, rows, check_dtype=False)
    pd.testing.assert_frame_equal(fitted.count(table), expected.count(frame))
    assert fitted.predict_uncertainty(table) == expected.predict_uncertainty(frame)
    assert fitted.score(table, "moved") == expected.score(frame, "moved")
    assert fitted.score(table, table["moved"]) == expected.score(frame, "moved")
    counts = fitted.count(table)
    assert tables_of_report(fitted, result, counts) == tables_of_report(fitted, as_pandas, counts)


def test_an_array_has_columns_with_numbers(people):
    values = people[["age", "town"]].to_numpy()
    fitted = TableModel("logistic").fit(values, people["moved"].to_numpy())
    assert fitted.feature_names_in_.tolist() == ["x0", "x1"]
    assert fitted.columns_.numbers_ == ["x0"]
    assert fitted.predict(values[:3]).index.equals(pd.RangeIndex(3))
    with pytest.raises(TableError, match="lacks the training columns x1"):
        fitted.predict(values[:, :1])


@pytest.mark.parametrize(
    ("table", "got"),
    [
        (lambda people: people.iloc[0], "got Series. For a single row"),
        (lambda people: people["age"].to_numpy(), "got ndarray. For a single row"),
        (lambda people: people.to_dict("list"), "got dict."),
        (
            lambda people: people.to_numpy().tolist(),
            "got list.",
        ),
        (lambda people: "known.csv", "got str."),
    ],
)
def test_what_is_no_table_is_refused_by_name(table, got, model, people):
    for method in (model.predict, model.count, model.predict_uncertainty, model.predict_proba):
        with pytest.raises(TableError, match=re.escape(got)):
            method(table(people))
    with pytest.raises(TableError, match=re.escape(got)):
        TableModel("logistic").fit(table(people), "moved")
    with pytest.raises(TableError, match=re.escape(got)):
        TableModel("logistic").fit(people, "moved", held_out=table(people))


def test_a_name_that_two_columns_of_pyarrow_have_is_refused(model):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table([[1.0], [2.0]], names=["age", "age"])
    with pytest.raises(TableError, match="more than one column named 'age'"):
        model.predict(table)
