"""Tables as users have them: what is made of their columns, and what is said about them."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler

from skuq.explanations import explain_rows
from skuq.ood import Combination
from skuq.tables import TableError, TableModel, quality_warnings
from tests.tables.toy import Toy, ToyRegressor, made, quantify

NUMBERS = ["confidence", "total", "aleatoric", "epistemic", "conformal_p_value"]
COLUMNS = ["prediction", *NUMBERS, "prediction_set", "unseen", "out_of_range", "review", "reasons"]


def the_note(notes, text):
    (note,) = (note for note in notes if text in note)
    return note


def test_there_is_one_row_of_results_per_row_in_order(plain, table):
    rows, model = plain.rows, plain.model
    probabilities = [f"p({label})" for label in model.classes_]
    assert list(rows.columns) == [*COLUMNS, *probabilities]
    assert rows[probabilities].sum(axis=1).tolist() == pytest.approx([1] * len(rows))
    assert rows["confidence"].tolist() == rows[probabilities].max(axis=1).tolist()
    for i in range(len(table)):
        pd.testing.assert_frame_equal(plain.of(table.iloc[[i]]).rows, rows.iloc[[i]])
    pd.testing.assert_frame_equal(plain.of(table[::-1]).rows[::-1], rows)
    pd.testing.assert_frame_equal(plain.of(table.head(0)).rows, rows.head(0), check_dtype=False)


def test_the_conformal_p_value_is_that_of_the_detector_of_the_same_scores(train):
    train["size"] = train["size"].round()  # so that some are equally uncertain
    result = quantify(train, train)
    rows, held = result.rows, result.held_out[["n_unsupported", "epistemic"]].astype(float)
    known = {"support": held["n_unsupported"].to_numpy(), "epistemic": held["epistemic"].to_numpy()}
    combined = Combination.of(known, {name: name for name in known})
    new = {"support": np.zeros(len(rows)), "epistemic": rows["epistemic"].to_numpy()}
    expected = combined.p_values(new)
    np.testing.assert_allclose(rows["conformal_p_value"], expected)
    by_uncertainty = rows.sort_values("epistemic")["conformal_p_value"]
    assert by_uncertainty.is_monotonic_decreasing
    assert by_uncertainty.nunique() > 10


@pytest.mark.parametrize("n_runs", [10, 60])
def test_the_conformal_p_value_is_a_p_value_for_rows_like_the_training_rows(n_runs):
    levels, shares = np.array([0.05, 0.1, 0.3, 0.5]), []
    for seed in range(n_runs):
        X = np.random.default_rng(seed).standard_t(df=3, size=(150, 2))
        frame = pd.DataFrame(X, columns=["a", "b"]).assign(kind=X[:, 0] > 0)
        model = TableModel(Toy(), random_state=seed).fit(frame[50:], "kind")
        rows = model.predict(frame[:50], n_explained=0)
        shares.append((rows[["conformal_p_value"]].to_numpy() <= levels).mean(axis=0))
    mean, error = np.mean(shares, axis=0), np.std(shares, axis=0, ddof=1) / np.sqrt(n_runs)
    assert (mean <= levels + 3 * error).all()
    assert (mean >= levels / 3).all()  # nor is it so large that nothing is ever unusual


def test_held_out_rows_are_a_fifth_by_class_and_did_not_train(plain, train, table):
    assert len(plain.held_out) == len(train) // 5
    assert plain.held_out["label"].value_counts().nunique() == 1
    assert plain.model.held_out_proba_.shape == (len(plain.held_out), 2)
    everything = Toy().fit(plain.features(train), train["kind"])
    assert not np.allclose(plain.model.estimator_.centre_, everything.centre_)
    again, other = (quantify(train, table, random_state=seed) for seed in (0, 1))
    pd.testing.assert_frame_equal(plain.held_out, again.held_out)
    assert not plain.held_out.equals(other.held_out)
    large = pd.DataFrame({"a": np.random.default_rng(0).normal(size=12000)})
    large["kind"] = np.arange(12000) % 2
    assert len(quantify(large, large.head(1)).held_out) == 2000


def test_few_rows_are_enough_and_every_class_trains():
    frame = pd.DataFrame({"a": [0.0, 1.0, 10.0, 11.0], "kind": ["low", "low", "high", "high"]})
    result = quantify(frame, frame)
    assert len(result.held_out) == 1
    assert the_note(result.notes, "smallest possible p-value is 0.5")
    for seed in range(3):
        frame = pd.DataFrame({"a": np.random.default_rng(seed).normal(size=40)})
        frame["kind"] = np.arange(40) % 20  # two rows of each class, eight held out
        result = quantify(frame, frame, random_state=seed)
        assert set(result.model.classes_) == set(range(20))
        assert len(result.held_out) == 8


def test_columns_that_are_new_in_most_held_out_rows_are_named(plain, train, table):
    names = [f"name {k % 53}" for k in range(60)]  # some twice, so that it is not left out
    found = quantify(train.assign(name=names), table.assign(name="name 1"))
    note = the_note(found.notes, "held-out rows hold values")
    assert note.startswith(f"{(found.held_out['n_unsupported'] > 0).sum()} of the 12 held-out rows")
    assert "name (" in note
    assert not any("held-out rows hold values" in note for note in plain.notes)


def test_reasons_do_not_depend_on_how_much_is_evaluated_at_once(plain, table, monkeypatch):
    assert plain.rows["reasons"].any()
    for n_cells in (1, 3000):  # one column, or two
        monkeypatch.setattr("skuq.explanations.CELLS_AT_ONCE", n_cells)
        pd.testing.assert_frame_equal(plain.of(table).rows, plain.rows, check_exact=True)
    # Those of encoded rows are those of rows.
    X, model = plain.model.columns_.read(table, "new").X, plain.model
    encode, typical = model.encoder_.transform, model._typical_rows
    expected = explain_rows(X, typical, lambda rows: model._disagreement(encode(rows)))
    inputs = model.encoder_.inputs_of([*X])
    found = explain_rows(encode(X), encode(typical), model._disagreement, inputs)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def old_model(X, y):
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = make_column_transformer((codes, ["shape"]), remainder=StandardScaler())
    return make_pipeline(columns, LogisticRegression()).fit(X, y)


@pytest.fixture(scope="module")
def shapes():
    """400 rows of a number and a category, on which a class depends, and three odd rows."""
    random = np.random.default_rng(0)
    X = pd.DataFrame({"size": random.normal(size=400), "shape": random.choice([*"abcde"], 400)})
    train = X.assign(kind=(X["size"] > 0) & X["shape"].isin(["a", "b"]))
    return train, pd.DataFrame({"size": [0.5, 90.0, 90.0], "shape": ["new", "a", "new"]})


@pytest.mark.usefixtures("small_learners", "short_training")
@pytest.mark.parametrize("name", ["hgb", "logistic", "network", "forest", "given"])
def test_rows_with_unsupported_values_are_unusual_to_every_model(shapes, name):
    train, odd = shapes
    given = old_model(train[["shape", "size"]], train["kind"]) if name == "given" else name
    rows = quantify(train, odd, estimator=given).rows
    p_values = rows["conformal_p_value"]
    assert (p_values <= 0.05).all()
    assert p_values[2] <= p_values[:2].min()
    assert rows["unseen"].tolist() == ["shape", "", "shape"]
    assert rows["out_of_range"].tolist() == ["", "size", "size"]
    parts = [["unseen (shape)"], ["out of range (size)"], ["out of range (size)", "unseen (shape)"]]
    for review, expected in zip(rows["review"], parts, strict=True):
        told = review.split("; ")
        assert told[0] == "unusual"
        assert [each for each in told[1:] if each != "undecided"] == expected
    assert rows["reasons"].str.contains("shape = new").tolist() == [True, False, True]
    assert "size = 90" in rows["reasons"][1]
    np.testing.assert_allclose(rows["total"], rows["aleatoric"] + rows["epistemic"], rtol=1e-8)
    if name == "given":  # it is not trained again
        np.testing.assert_allclose(rows["confidence"], given.predict_proba(odd).max(axis=1))


def test_a_given_model_may_refuse_categories_or_need_other_columns(shapes):
    train, odd = shapes
    columns = make_column_transformer((OneHotEncoder(), ["shape"]), remainder="passthrough")
    strict = make_pipeline(columns, LogisticRegression())
    strict.fit(train[["shape", "size"]], train["kind"])
    known = quantify(train, odd[1:2], estimator=strict)
    assert known.rows["conformal_p_value"].iloc[0] <= 0.05
    with pytest.raises(TableError, match="Pipeline cannot be used with this table"):
        known.of(odd)
    other = old_model(train[["shape", "size"]].assign(weight=1.0), train["kind"])
    with pytest.raises(TableError, match="weight"):
        quantify(train, odd, estimator=other)


def parts_of_dates(X):
    assert X["code"].dtype == np.int64
    weekdays = [day.weekday() for day in X["day"]]
    return pd.DataFrame({"hour": X["when"].dt.hour, "weekday": weekdays})


def test_a_given_model_may_read_whole_numbers_dates_and_texts_in_its_own_way():
    random, n = np.random.default_rng(0), 200
    when = pd.Series(pd.date_range("2030-01-01", periods=n, freq="7h"))
    codes, words = random.integers(3, size=n), random.integers(3, size=n)
    X = pd.DataFrame({"code": codes, "when": when, "day": when.dt.date})
    X["note"] = [f"word{word} number{k}" for k, word in enumerate(words)]
    y = np.where((codes == 1) ^ (words == 1), "yes", "no")
    as_written = FunctionTransformer(lambda X: X.astype(str))
    columns = make_column_transformer(
        (FunctionTransformer(parts_of_dates), ["code", "when", "day"]),
        (make_pipeline(as_written, OneHotEncoder(handle_unknown="ignore")), ["code"]),
        (TfidfVectorizer(), "note"),
        sparse_threshold=0,
    )
    given = make_pipeline(columns, LogisticRegression(max_iter=1000)).fit(X, y)
    result = quantify(X.assign(kind=y), X, estimator=given)
    np.testing.assert_allclose(result.rows["confidence"], given.predict_proba(X).max(axis=1))
    assert not result.rows["unseen"].str.contains("note").any()  # every row has a text of its own
    assert not any("left out" in note for note in result.notes)


def test_a_given_model_gets_categories_dates_and_empty_columns_as_such(train, table):
    random, n = np.random.default_rng(0), 200
    X = pd.DataFrame({"town": random.choice(["Ulm", "Linz"], n), "a": random.normal(size=n)})
    y = np.where((X["town"] == "Ulm") ^ (X["a"] > 0), "yes", "no")
    X = X.astype({"town": "category"})
    given = HistGradientBoostingClassifier(max_iter=10).fit(X, y)
    new = X.assign(town=["Graz", *X["town"][1:]]).astype({"town": "category"})
    rows = quantify(X.assign(kind=y), new, estimator=given).rows
    np.testing.assert_allclose(rows["confidence"], given.predict_proba(new).max(axis=1))
    assert rows["unseen"].tolist() == ["town"] + [""] * (n - 1)
    names, days = ["size", "count"], np.resize(["2030-01-01", "2030-01-02"], 60)
    dated = train.assign(colour=days)
    encoder = OneHotEncoder(handle_unknown="ignore")
    columns = make_column_transformer((encoder, ["colour"]), ("passthrough", names))
    given = make_pipeline(columns, LogisticRegression())
    given.fit(dated[["colour", *names]], dated["kind"])
    new, held_out = table.assign(colour="2030-01-02"), dated.assign(size=dated["size"] / 2)
    assert len(quantify(dated, new, estimator=given, held_out=held_out).rows) == len(table)
    frame = pd.DataFrame({"a": np.arange(30.0), "Unnamed: 1": np.nan, "y": ["x", "z"] * 15})
    given = make_pipeline(SimpleImputer(keep_empty_features=True), LogisticRegression())
    given.fit(frame[["a", "Unnamed: 1"]], frame["y"])
    assert TableModel(given).fit(frame, "y").feature_names_in_.tolist() == ["a", "Unnamed: 1"]


def test_preprocessing_is_what_one_would_do_by_hand(train, table):
    train.loc[[3, 20, 41], "size"] = np.nan
    table.loc[1, "size"] = np.nan
    train.loc[5, "colour"] = None
    result = quantify(train, table)
    u = result.model.predict(train)["epistemic"]  # no two rows have the same
    held = [int(np.argmin(np.abs(u - value))) for value in result.held_out["epistemic"]]
    fit = train.drop(index=held)

    def numbers(frame):
        filled = frame["size"].fillna(fit["size"].median())
        return np.column_stack([filled, frame["count"], frame["size"].isna()]).astype(float)

    one_hot, unseen = [], []
    for name in ("colour", "new"):
        texts, known = (
            each[name].astype(object).fillna("(missing)").astype(str) for each in (table, fit)
        )
        one_hot += [texts == value for value in sorted(set(known))]
        unseen.append(~texts.isin(known))
    scaled = StandardScaler().fit(numbers(fit)).transform(numbers(table))
    by_hand = np.column_stack([scaled, *one_hot, *unseen])
    np.testing.assert_allclose(result.features(table), by_hand)


def test_the_order_of_columns_and_further_and_dropped_columns_do_not_matter(plain, train, table):
    shuffled = table[["new", "colour", "size", "count"]].assign(kind="?", remark="none")
    pd.testing.assert_frame_equal(plain.of(shuffled).rows, plain.rows)
    expected = quantify(train.drop(columns="size"), table).rows
    dropped = quantify(train, table, drop=["size"])
    for rows in (dropped.rows, dropped.of(table.drop(columns="size")).rows):
        pd.testing.assert_frame_equal(rows, expected)


KINDS = {"count": ["Int64", "float32", object], "size": ["Float64"]}
KINDS |= {"colour": ["category", "string", object], "new": ["boolean", object, "category", str]}


@pytest.mark.parametrize("column", KINDS)
def test_how_a_column_is_stored_does_not_matter(plain, train, table, column):
    for kind in KINDS[column]:
        trained = quantify(train.astype({column: kind}), table)
        stored = table.astype({column: kind})
        for result in (trained, trained.of(stored), plain.of(stored)):
            pd.testing.assert_frame_equal(result.rows, plain.rows)


HOLES = {
    "size": [(object, np.nan), (float, np.nan), (object, None)],
    "count": [(object, np.nan), ("Int64", pd.NA), (float, np.nan), (object, pd.NA)],
    "colour": [(object, np.nan), (object, None), ("string", pd.NA), ("category", np.nan)],
    "new": [(object, np.nan), (object, None), ("boolean", pd.NA)],
}


@pytest.mark.parametrize("column", HOLES)
def test_every_kind_of_missing_value_is_the_same_one(train, column):
    results = []
    for dtype, hole in HOLES[column]:
        frame = train.astype({column: dtype})
        frame.loc[[0, 2], column] = hole
        results.append(quantify(frame, frame.drop(columns="kind").head(7)))
        pd.testing.assert_frame_equal(results[-1].rows, results[0].rows)
        for where in ("training table", "table to predict"):
            assert f"Missing values in the {where}: {column} (2)." in results[-1].notes


def test_numbers_and_their_text_are_one_value(plain, train, table):
    texts = train.assign(colour=np.resize(["1", "2", "x"], 60))  # text, for the sake of one code
    codes = pd.Series([1, 2, 1, 2, 1, 2, 1])
    of_texts = quantify(texts, table.assign(colour=codes.astype(str)))
    expected = of_texts.rows
    pd.testing.assert_frame_equal(of_texts.of(table.assign(colour=codes)).rows, expected)
    with_hole = table.assign(colour=codes.astype(float).where(codes.index != 6))
    pd.testing.assert_frame_equal(of_texts.of(with_hole).rows.head(6), expected.head(6))
    mixed, same = (
        quantify(train.assign(colour=np.resize(values, 60)), table.assign(colour="1")).rows
        for values in (np.array([1, "1", "x"], dtype=object), ["1", "1", "x"])
    )
    pd.testing.assert_frame_equal(mixed, same)
    written = table.assign(count=table["count"].astype(str))
    pd.testing.assert_frame_equal(plain.of(written).rows, plain.rows)


def test_what_training_lacks_is_told_and_its_category_is_none(plain, train, table):
    violet = table.assign(colour="violet")
    assert "colour (7)" in the_note(plain.of(violet).notes, "absent in training")
    assert not any("absent in training" in note for note in plain.notes)
    known, unknown = plain.features(table), plain.features(violet)
    different = (known != unknown).any(axis=0)
    # It is none of the known values; a column marks it, which is 0 in training.
    assert (unknown[:, different].sum(axis=1) == 1).all()
    marks = (unknown == 1).all(axis=0) & different
    assert marks.sum() == 1
    assert (plain.features(train)[:, marks] == 0).all()
    assert (plain.of(table.assign(colour="red ")).rows["unseen"] == "colour").all()
    empty, *others = (
        plain.of(table.assign(colour=None, size=h)).rows for h in (np.nan, None, pd.NA)
    )
    assert (empty["unseen"] == "size; colour").all()
    assert np.isfinite(empty[NUMBERS].to_numpy()).all()
    for other in others:
        pd.testing.assert_frame_equal(other, empty)
    beyond = table.assign(count=[train["count"].max() + 1, np.nan, *table["count"][2:]])
    result = plain.of(beyond)
    assert "the training rows: count (1)." in the_note(result.notes, "outside")
    assert result.rows["out_of_range"].tolist() == ["count"] + [""] * 6
    middle = train[train["size"].abs() < 0.5]
    assert not any("outside" in note for note in plain.of(middle).notes)


@pytest.mark.usefixtures("small_learners")
@pytest.mark.parametrize("estimator", ["hgb", "forest", "logistic"])
def test_a_column_that_two_rows_fill_serves_every_learner(train, table, estimator):
    """Parts of the rows, on which learners are trained, have none of its values."""
    for values in ([120.0, 80.5], ["speeding", "parking"]):
        train["fine"] = pd.Series(values, index=[10, 100]).reindex(train.index)
        rows = quantify(train, table.assign(fine=values[0]), estimator=estimator).rows
        assert np.isfinite(rows[NUMBERS].to_numpy()).all()


@pytest.mark.filterwarnings("error")
def test_a_number_that_a_single_row_has_does_no_harm(train, table):
    train["size"] = train["size"].where(train.index == 0)  # held out for some seed, or not
    for seed in range(3):
        rows = quantify(train, table, random_state=seed).rows
        assert np.isfinite(rows[NUMBERS].to_numpy()).all()


def test_many_values_of_a_text_column_are_one_number_and_dates_count_as_numbers(train, table):
    wide = pd.concat([train] * 4, ignore_index=True)
    wide["colour"] = [f"shade {i // 2}" for i in range(len(wide))]
    result = quantify(wide, table.assign(colour="shade 1"))
    unseen = 2  # indicators of values that the training rows lack
    assert result.features(wide).shape[1] == 2 + 1 + wide["new"].nunique() + unseen
    days = pd.Series(pd.date_range("2030-01-01", periods=60, freq="D"))
    stamps, texts = (
        quantify(train.assign(colour=values), table.assign(colour=values[0]))
        for values in (days, days.dt.strftime("%d.%m.%Y"))
    )
    pd.testing.assert_frame_equal(stamps.rows, texts.rows)
    late = stamps.of(table.assign(colour="2040-01-01")).rows
    assert late["out_of_range"].str.contains("colour (days since 2030-01-01)", regex=False).all()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        *[([3, 7], [3, 7]), ([1.0, 2.0], [1.0, 2.0]), ([True, False], [False, True])],
        *[([1, "x"], ["1", "x"]), (pd.array([3, 7], dtype="Int64"), [3, 7])],
        (pd.array([True, False], dtype="boolean"), [False, True]),
        (pd.Categorical(["b", "a"], categories=["b", "never", "a"]), ["a", "b"]),
        (pd.Series(["b", "a"], dtype="string"), ["a", "b"]),
    ],
)
def test_classes_keep_their_type(train, table, labels, expected):
    train["kind"] = pd.Series(labels).take(np.arange(60) % 2).reset_index(drop=True)
    result = quantify(train, table.astype({"size": object}).assign(size=["x", *table["size"][1:]]))
    assert result.model.classes_.tolist() == expected
    assert type(result.model.classes_.tolist()[0]) is type(expected[0])
    assert set(result.held_out["label"]) == set(expected)
    # Also beside a row that is not scored.
    assert result.rows["prediction"].isna().tolist() == [True] + [False] * 6
    assert set(result.rows["prediction"].dropna().tolist()) <= set(expected)
    row = result.rows.iloc[1]
    assert str(row["prediction"]) in row["prediction_set"].split("; ")


LABELS = [([0, 1], float), ([0.0, 1.0], int), (["0", "1"], float)]
LABELS += [([False, True], str), ([False, True], "boolean")]


@pytest.mark.parametrize(("labels", "convert"), LABELS)
def test_how_held_out_labels_are_stored_does_not_matter(train, labels, convert):
    train["kind"] = np.tile(labels, 30)
    train, held_out = train[11:].reset_index(drop=True), train.head(11)
    expected = quantify(train, train, held_out=held_out).held_out
    stored = held_out.assign(kind=held_out["kind"].astype(convert))
    pd.testing.assert_frame_equal(quantify(train, train, held_out=stored).held_out, expected)


def test_rows_without_a_target_are_left_out_and_this_is_said(train, table):
    holed = train.assign(kind=train["kind"].where(train.index % 15 != 3))
    result = quantify(holed, table, held_out=holed.assign(size=holed["size"] + 0.001))
    whole = holed.dropna().reset_index(drop=True)
    expected = quantify(whole, table, held_out=whole.assign(size=whole["size"] + 0.001))
    pd.testing.assert_frame_equal(result.rows, expected.rows)
    assert result.model.warnings_ == [
        f"4 rows of the {which} without a target were dropped; the first is row 3."
        for which in ("training table", "held-out table")
    ]


@pytest.mark.usefixtures("few_trees")
def test_numbers_of_many_values_are_quantities_also_in_text_and_this_is_said(train, table):
    for target, warned in ((np.arange(60), False), (np.arange(300) % 30, True)):
        frame = pd.DataFrame({"a": np.random.default_rng(0).normal(size=len(target)), "y": target})
        model = TableModel("logistic").fit(frame, "y")
        assert model.task_ == "regression"
        note = the_note(model.notes_, '`task="classification"`')
        assert (note in model.warnings_) == warned
    stated = TableModel("logistic", task="regression").fit(frame, "y")
    assert not any("classes" in note for note in stated.notes_)
    prices = [f"${value:,.2f}" for value in np.linspace(500, 5000, 60)]
    prices[7], prices[9] = "on request", "-"
    model = TableModel("logistic").fit(train.assign(kind=prices), "kind")
    assert model.task_ == "regression"
    unread, missing = model.warnings_
    assert "not a number with the unit '$' in 1 row" in unread
    assert "'on request' (row 7)" in unread
    assert missing.startswith("2 rows of the training table without a target")
    assert model.predict(table)["prediction"].between(0, 6000).all()


@pytest.mark.parametrize("kind", ["datetime64[s]", "date"])
def test_classes_that_are_dates_come_back_as_dates(train, table, kind):
    days = pd.Series(pd.to_datetime(["2020-01-01", "2021-06-05"] * 30))
    train["kind"] = days.dt.date if kind == "date" else days.astype(kind)
    result = quantify(train, table)
    assert result.model.classes_.dtype.kind == "M"
    assert set(result.rows["prediction"]) <= set(days)
    assert set(result.held_out["label"]) <= set(days)
    row = result.rows.iloc[0]
    assert str(row["prediction"]) in row["prediction_set"].split("; ")


def test_columns_that_teach_nothing_are_left_out_and_this_is_said(plain, train, table):
    near = "Text columns with a different value in nearly every"
    permutation = np.random.default_rng(0).permutation
    for values, note in (
        *((hole, "Columns without values were dropped: other.") for hole in (np.nan, None)),
        *(([f"id {i % n}" for i in range(60)], near) for n in (58, 60)),
        ([None] * 5 + [f"id {i}" for i in range(55)], near),
        (permutation(60) + 7, "Columns of row numbers were dropped"),
        (permutation(90)[:60], "Columns of row numbers were dropped"),
    ):
        result = quantify(train.assign(other=values), table)  # which need not have it
        pd.testing.assert_frame_equal(result.rows, plain.rows)
        assert the_note(result.notes, "other").startswith(note)
    numbers = permutation(4000)[:200]  # a part of a nameless index
    frame = pd.DataFrame({"Unnamed: 0": numbers, "count": numbers, "y": ["x", "z"] * 100})
    assert TableModel(Toy()).fit(frame, "y").feature_names_in_.tolist() == ["count"]


def test_a_row_that_cannot_be_read_is_set_aside_and_the_others_are_scored(plain, table):
    bad = table.astype({"size": object}).set_axis([*"abcdefg"])
    bad.loc["c", ["size", "colour"]] = ["n.a", "red"]
    bad.loc[["b", "f"], "size"] = "abc", np.inf
    result, c = plain.of(bad), table.index == 2
    as_read = table.assign(size=table["size"].mask(c), colour=table["colour"].mask(c, "red"))
    kept, aside = result.rows.iloc[[0, 2, 3, 4, 6]], result.rows.iloc[[1, 5]]
    expected = plain.of(as_read).rows.iloc[[0, 2, 3, 4, 6]]
    pd.testing.assert_frame_equal(kept.reset_index(drop=True), expected.reset_index(drop=True))
    assert aside["reasons"].tolist() == [
        "not scored: row b: size is 'abc', not a number",
        "not scored: row f: size is 'inf', infinite or too large",
    ]
    assert aside[["prediction", *NUMBERS]].isna().all(axis=None)
    assert (aside[["prediction_set", "unseen", "out_of_range"]] == "").all(axis=None)
    assert the_note(result.notes, "not scored").endswith("size (2).")
    with pytest.raises(TableError, match=r"2 of the 7 rows .* row b: size is 'abc'"):
        result.model.predict(bad, strict=True)
    assert result.model.predict(bad.loc[["b"]])["reasons"].tolist() == aside["reasons"].tolist()[:1]
    ranges = table.assign(size=[f"{value - 1} - {value + 1}" for value in range(7)])
    result, expected = plain.of(ranges), plain.of(table.assign(size=np.arange(7.0)))
    pd.testing.assert_frame_equal(result.rows, expected.rows)
    assert "Ranges read as their midpoint: size (7)." in result.notes
    assert result.model.predict(ranges, strict=True) is not None


def test_what_was_misread_comes_first(plain, train, table):
    odd = train.astype({"size": str})
    odd.loc[[17, 40], "size"] = "1 - 2", "large"
    model = quantify(odd, table).model
    assert model.notes_[:2] == model.warnings_
    middle, unread = model.warnings_
    assert middle.startswith("1 cell in column size holds a range, such as '1 - 2' (row 17), and")
    assert unread.endswith("than a number, such as 'large' (row 40), and counts as missing.")
    infinite, missing = (
        quantify(train.assign(size=train["size"].where(train.index != 5, hole)), table)
        for hole in (np.inf, np.nan)
    )
    (warning,) = infinite.model.warnings_
    assert warning.startswith("1 cell in column size holds something infinite or too large, such")
    pd.testing.assert_frame_equal(infinite.rows, missing.rows)
    for word, told in (("?", "contains numbers (? where"), ("big", "counts as text, such as")):
        marked = train.assign(size=train["size"].astype(str).where(train.index % 9 > 0, word))
        assert told in the_note(quantify(marked, table).notes, "Column size")
    assert not any("Column size" in note for note in plain.notes)


def test_classes_that_a_prediction_set_cannot_tell_apart_are_named():
    for name in ("yes; ok", "yes"):
        frame = pd.DataFrame({"a": np.arange(30.0), "y": [name, "no"] * 15})
        notes = TableModel(Toy()).fit(frame, "y").notes_
        assert any("rename the class to keep the sets" in note for note in notes) == (";" in name)


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("regression", [False, True])
def test_coverage_of_too_few_rows_is_not_measured(regression):
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.normal(size=60)})
    frame["y"] = frame["a"] + random.normal(size=60) if regression else frame["a"] > 0
    model = TableModel("logistic").fit(frame, "y")
    assert len(model.held_out_) == 12  # 11 others limit 90 %, and 19 limit 95 %
    assert np.isnan([*model.measured_coverage(0.95), *model.coverage_limits(0.95)]).all()
    assert np.isfinite([*model.measured_coverage(0.9), *model.coverage_limits(0.9)]).all()
    if regression:
        assert np.isfinite(model.predict(frame)[["lower", "upper"]]).all(axis=None)
        assert quality_warnings(model, 0.95) == []
    else:
        assert model.measured_by_class(0.95)["coverage"].isna().all()


MANY = np.arange(60) % 12 + 0.5
FAR = ["size is -99 in 5 of 60 rows, and from 0.5 to 11.5 else", "size is 999 in 5"]
DOUBTS = {
    "case": ({"colour": [*"aaAb"] * 15}, ["colour differ .* 'a' .30., 'A' .15."]),
    "blanks": ({"kind": ["a", "b  c", "b c"] * 20}, ["kind differ .* 'b  c' .20., 'b c' .20."]),
    "one": ({"size": [*MANY[:55], *[-200] * 5]}, ["is -200 in 5 of 60 rows, and from 0.5 to 11.5"]),
    "two": ({"size": [*MANY[:50], *[-99] * 5, *[999] * 5]}, FAR),
    "total": ({"colour": [*"ab"] * 29 + ["a", "Total"]}, ["last row .row 59. has 'Total'"]),
    "lone": ({"kind": [*"ab"] * 29 + ["x", "y"]}, ["dropped: x .row 58., y .row 59."]),
    "none": ({"new": [0, 1] * 30, "size": [3, 4, 5, 6, 7, 9] * 10}, []),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_values_that_may_mean_something_else_are_named(name):
    columns, words = DOUBTS[name]
    warned = TableModel(Toy()).fit(made().assign(**columns), "kind").warnings_
    assert len(warned) == len(words)
    assert all(map(re.search, words, warned)), warned


def test_marks_of_other_columns_decide_and_row_numbers_of_a_sample_are_no_feature():
    texts = [f"{k:.3f}".replace(".", ",") for k in np.linspace(1, 9, 60)]
    number = np.random.default_rng(0).permutation(150)[:60]
    table = made().assign(size=[f"{k},5" for k in range(60)], hum=texts, nr=number)
    model = TableModel(ToyRegressor(), task="regression").fit(table.drop(columns="kind"), "hum")
    assert model.held_out_["label"].max() < 9.01
    assert "nr" not in model.columns_.feature_names_in_
    marked = table.assign(hum=np.where(np.arange(60) % 9, np.linspace(0, 7, 60), -200.0))
    assert "hum is -200 in 7 of" in TableModel("logistic").fit(marked, "hum").warnings_[0]


def test_what_is_too_rare_to_be_measured_is_said(plain, table):
    size = np.random.default_rng(0).normal(size=400)
    rare = pd.DataFrame({"size": size, "kind": np.where(size > 0, "a", "b")})
    rare.loc[[3, 9], "kind"] = "theft"
    (told,) = quality_warnings(TableModel("logistic").fit(rare, "kind"), 0.9)
    assert re.search(r"theft \(\d\): their .* cannot be measured", told)
    piled = rare.assign(kind=np.where(np.arange(400) % 4, 0, 9 + size))
    held = (model := TableModel("hgb").fit(piled, "kind")).held_out_["label"]
    lower, upper = model.measured_intervals(0.9)
    share = ((lower <= held) & (held <= upper))[held != 0].mean()
    (told,) = quality_warnings(model, 0.9)
    assert f"are 0. Intervals contain {share:.0%} of the {(held != 0).sum()} others" in told
    empty = table.astype({"new": object})
    empty.iloc[2] = np.nan
    assert plain.of(empty).rows["reasons"][2] == "not scored: row 2: no values"


def test_ordinary_rows_are_not_told_from_training_rows_by_the_folds_of_their_means():
    random = np.random.default_rng(0)
    code = np.where(random.random(700) < 0.85, 0, random.integers(40, size=700))
    table = pd.DataFrame({"code": [f"L{k}" for k in code], "x": random.normal(size=700)})
    table["y"] = np.where(table["x"] + code % 5 + random.normal(size=700) > 1, "a", "b")
    model = TableModel("hgb", random_state=0).fit(table[:500], "y")
    new = table[500:].drop(columns="y")
    far = new.assign(x=9 * new["x"])
    parts = (model.predict(rows, n_explained=0).epistemic.mean() for rows in (new, far))
    assert next(parts) < 0.1 < next(parts)


def test_texts_of_many_levels_are_encoded_by_the_target_of_other_rows():
    random = np.random.default_rng(0)
    level, effect = random.integers(100, size=800), random.normal(size=100)
    table = pd.DataFrame({"code": [f"L{k}" for k in level], "x": random.normal(size=800)})
    table["y"] = effect[level] + 0.3 * random.normal(size=800)
    model = TableModel("logistic").fit(table, "y")
    error, variance = model.measured_loss()
    assert error < 0.4 * variance
    # Means that include a row's own target would make this noise look like knowledge.
    noise = table.assign(code=[f"N{k // 3}" for k in random.permutation(800)])
    error, variance = TableModel("logistic").fit(noise, "y").measured_loss()
    assert error < 1.1 * variance
    assert model.predict(table[:1].assign(code="new"))["unseen"].tolist() == ["code"]
    again = TableModel("logistic").fit(table, "y").predict(table[:9])
    pd.testing.assert_frame_equal(model.predict(table[:9]), again)
