"""Tables as users have them: what is made of their columns, and when they are refused."""

import functools
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.utils.validation import check_is_fitted, validate_data

from skuq import Uncertainty, UncertaintyMixin
from skuq.calibration import conformal_limit
from skuq.ood import Combination
from skuq.reporting import table_report
from skuq.tables import (
    TableError,
    TableModel,
    coverage_notes,
    table_notes,
    weak_class_notes,
)

SEEDS = range(3)
NUMBERS = ["confidence", "total", "aleatoric", "epistemic", "conformal_p_value"]
COLUMNS = ["prediction", *NUMBERS, "prediction_set", "unseen", "out_of_range", "reasons"]


class Toy(ClassifierMixin, UncertaintyMixin, BaseEstimator):
    """Softmax of distances to class means; epistemic is the distance to the overall mean."""

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        self.classes_ = np.unique(y)
        self.means_ = np.array([X[y == label].mean(axis=0) for label in self.classes_])
        self.centre_ = X.mean(axis=0)
        return self

    def predict_proba(self, X):
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        distances = ((X[:, None] - self.means_) ** 2).sum(axis=-1)
        weights = np.exp(distances.min(axis=1, keepdims=True) - distances)
        return weights / weights.sum(axis=1, keepdims=True)

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_uncertainty(self, X):
        aleatoric = 1 - self.predict_proba(X).max(axis=1)
        return Uncertainty.from_parts(aleatoric, ((np.asarray(X) - self.centre_) ** 2).sum(axis=1))


def made():
    """60 rows: two columns of numbers, one of text, one of yes and no, and a class."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "size": rng.normal(size=60),
            "count": rng.integers(0, 5, size=60),
            "colour": rng.choice(["blue", "green", "red"], size=60),
            "new": rng.choice([True, False], size=60),
            "kind": np.tile(["ant", "bee"], 30),
        }
    )


@pytest.fixture
def train():
    return made()


@pytest.fixture
def table(train):
    return train.drop(columns="kind").head(7)


class Told:
    """A model, and what it says about a table."""

    def __init__(self, model, table):
        self.model, self.table, self.held_out = model, table, model.held_out_
        self.rows = model.predict(table)

    @property
    def notes(self):
        return [*self.model.notes_, *table_notes(self.model.count(self.table))]

    def of(self, table):
        """What the same model says about another table."""
        return Told(self.model, table)


def quantify(train, table, target="kind", estimator=None, **options):
    """What a model of one table says about another."""
    fitting = {name: options.pop(name) for name in [*options] if name in ("drop", "held_out")}
    model = TableModel(Toy() if estimator is None else estimator, **options)
    return Told(model.fit(train, target, **fitting), table)


@pytest.fixture(scope="module")
def plain():
    """What the model of the unaltered `train` says about the unaltered `table`."""
    return quantify(made(), made().drop(columns="kind").head(7))


def features_seen(result, table):
    """What the estimator gets for a table: its rows after all preprocessing."""
    return result.model.encoder_.transform(result.model.columns_.transform(table))


# --- what comes out --------------------------------------------------------------------------


def test_there_is_one_row_of_results_per_row_in_order(plain, table):
    rows, model = plain.rows, plain.model
    probabilities = [f"p({label})" for label in model.classes_]
    assert list(rows.columns) == [*COLUMNS, *probabilities]
    assert rows[probabilities].sum(axis=1).tolist() == pytest.approx([1] * len(rows))
    assert rows["confidence"].tolist() == rows[probabilities].max(axis=1).tolist()
    for i in range(len(table)):
        alone = plain.of(table.iloc[[i]]).rows
        pd.testing.assert_frame_equal(alone, rows.iloc[[i]])


def test_reordered_rows_give_reordered_results(plain, table):
    backwards = plain.of(table[::-1]).rows
    pd.testing.assert_frame_equal(backwards[::-1], plain.rows)


def test_the_conformal_p_value_is_that_of_the_detector_of_the_same_scores(train):
    train["size"] = train["size"].round()  # so that some are equally uncertain
    result = quantify(train, train)
    held_out, rows = result.held_out, result.rows
    scores = {"support": held_out["n_unsupported"] * 1.0, "epistemic": held_out["epistemic"]}
    combined = Combination.of(
        {name: each.to_numpy() for name, each in scores.items()}, {n: n for n in scores}
    )
    new = {"support": np.zeros(len(rows)), "epistemic": rows["epistemic"].to_numpy()}
    np.testing.assert_allclose(
        rows["conformal_p_value"], combined.p_values(combined.statistic(new))
    )
    by_uncertainty = rows.sort_values("epistemic")["conformal_p_value"]
    assert by_uncertainty.is_monotonic_decreasing
    assert by_uncertainty.nunique() > 10


@pytest.mark.slow
def test_the_conformal_p_value_is_a_p_value_for_rows_like_the_training_rows():
    n_runs, n_rows, levels = 60, 50, np.array([0.05, 0.1, 0.3, 0.5])
    shares = []
    for seed in range(n_runs):
        X = np.random.default_rng(seed).standard_t(df=3, size=(150, 2))
        frame = pd.DataFrame(X, columns=["a", "b"]).assign(kind=X[:, 0] > 0)
        model = TableModel(Toy(), random_state=seed).fit(frame[n_rows:], "kind")
        rows = model.predict(frame[:n_rows], n_explained=0)
        shares.append((rows[["conformal_p_value"]].to_numpy() <= levels).mean(axis=0))
    mean, error = np.mean(shares, axis=0), np.std(shares, axis=0, ddof=1) / np.sqrt(n_runs)
    assert (mean <= levels + 3 * error).all()
    assert (mean >= levels / 3).all()  # nor is it so large that nothing is ever unusual


def test_held_out_rows_are_a_fifth_by_class_and_did_not_train(plain, train):
    result = plain
    assert len(result.held_out) == len(train) // 5
    assert result.held_out["label"].value_counts().nunique() == 1
    assert result.model.held_out_proba_.shape == (len(result.held_out), 2)
    everything = Toy().fit(features_seen(result, train), train["kind"])
    assert not np.allclose(result.model.estimator_.centre_, everything.centre_)


def test_columns_that_are_new_in_most_held_out_rows_are_named(plain, train, table):
    names = [f"name {k % 53}" for k in range(60)]  # some twice, so that it is not left out
    found = quantify(train.assign(name=names), table.assign(name="name 1"))
    (note,) = [note for note in found.notes if "held-out rows hold values" in note]
    assert note.startswith(f"{(found.held_out['n_unsupported'] > 0).sum()} of the 12 held-out rows")
    assert "name (" in note
    assert not any("held-out rows hold values" in note for note in plain.notes)


def test_a_fifth_is_at_most_2000_rows():
    frame = pd.DataFrame({"a": np.random.default_rng(0).normal(size=12000)})
    frame["kind"] = np.arange(12000) % 2
    assert len(quantify(frame, frame.head(1)).held_out) == 2000


@pytest.mark.parametrize("seed", SEEDS)
def test_every_class_trains_even_if_there_are_too_few_rows_to_hold_out_one_of_each(seed):
    frame = pd.DataFrame({"a": np.random.default_rng(seed).normal(size=40)})
    frame["kind"] = np.arange(40) % 20  # two rows of each class, eight held out
    result = quantify(frame, frame, random_state=seed)
    assert set(result.model.classes_) == set(range(20))
    assert len(result.held_out) == 8


def test_four_rows_are_enough():
    frame = pd.DataFrame({"a": [0.0, 1.0, 10.0, 11.0], "kind": ["low", "low", "high", "high"]})
    result = quantify(frame, frame)
    assert len(result.held_out) == 1
    assert any("smallest possible p-value is 0.5" in note for note in result.notes)


def test_the_split_follows_the_seed_alone(plain, train, table):
    again, other = (quantify(train, table, random_state=seed) for seed in (0, 1))
    pd.testing.assert_frame_equal(plain.held_out, again.held_out)
    assert not plain.held_out.equals(other.held_out)


def test_neither_the_tables_nor_the_estimator_are_altered(train, table):
    as_given = train.copy(), table.copy()
    estimator = Toy()
    quantify(train, table, estimator=estimator)
    pd.testing.assert_frame_equal(train, as_given[0])
    pd.testing.assert_frame_equal(table, as_given[1])
    assert vars(estimator) == {}


def test_foreign_flowers_are_unusual_to_quam():
    flowers = load_iris(as_frame=True).frame
    ood = flowers[:5].drop(columns="target") + 100
    result = quantify(flowers, ood, "target", "network", random_state=1)  # of this split
    np.testing.assert_allclose(result.rows["conformal_p_value"], 1 / (1 + len(result.held_out)))
    np.testing.assert_allclose(
        result.rows["total"], result.rows["aleatoric"] + result.rows["epistemic"], rtol=1e-8
    )


@pytest.mark.parametrize("n_rows", [1, 300])
def test_reasons_do_not_depend_on_how_much_is_encoded_at_once(plain, table, monkeypatch, n_rows):
    monkeypatch.setattr("skuq.explanations.ENCODED_AT_ONCE", n_rows)  # one column, or two
    assert plain.rows["reasons"].any()
    pd.testing.assert_frame_equal(plain.of(table).rows, plain.rows, check_exact=True)


def old_model(X, y):
    """A pipeline of somebody else, with codes for categories."""
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


@pytest.mark.usefixtures("small_learners")
@pytest.mark.parametrize("name", ["hgb", "logistic", "network", "forest", "given"])
def test_rows_with_unsupported_values_are_unusual_to_every_model(shapes, name):
    train, odd = shapes
    given = old_model(train[["shape", "size"]], train["kind"]) if name == "given" else name
    result = quantify(train, odd, estimator=given)
    p_values = result.rows["conformal_p_value"]
    assert (p_values <= 0.05).all()
    assert p_values[2] <= p_values[:2].min()
    assert result.rows["unseen"].tolist() == ["shape", "", "shape"]
    assert result.rows["out_of_range"].tolist() == ["", "size", "size"]
    assert result.rows["reasons"].str.contains("shape = new").tolist() == [True, False, True]
    assert "size = 90" in result.rows["reasons"][1]


def test_a_given_model_may_refuse_categories_that_it_does_not_know(shapes):
    train, odd = shapes
    columns = make_column_transformer((OneHotEncoder(), ["shape"]), remainder="passthrough")
    strict = make_pipeline(columns, LogisticRegression())
    strict.fit(train[["shape", "size"]], train["kind"])
    known = quantify(train, odd[1:2], estimator=strict)
    assert known.rows["conformal_p_value"].iloc[0] <= 0.05
    with pytest.raises(TableError, match=r"Pipeline cannot be used with this table: .*'new'"):
        known.of(odd)


def test_a_given_model_is_never_trained_again(shapes):
    train, odd = shapes
    given = old_model(train[["shape", "size"]], train["kind"])
    result = quantify(train, odd, estimator=given)
    np.testing.assert_allclose(result.rows["confidence"], given.predict_proba(odd).max(axis=1))
    other = old_model(train[["shape", "size"]].assign(weight=1.0), train["kind"])
    with pytest.raises(TableError, match="Pipeline was fitted on the columns weight"):
        quantify(train, odd, estimator=other)


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ([True, False, np.nan], "csv"),
        ([True, False, None], "memory"),
        (["a", "b", None], "memory"),
        (["a", "b", np.nan], "memory"),
        ([True, False], "csv"),
    ],
)
def test_a_given_model_gets_columns_with_gaps_as_it_saw_them(tmp_path, values, where):
    """A column of yes and no with gaps is one of objects, and what is missing a category."""
    random = np.random.default_rng(0)
    x, place = random.normal(size=300), random.integers(len(values), size=300)
    frame = pd.DataFrame({"member": pd.Series([values[k] for k in place], dtype=object), "x": x})
    frame["kind"] = np.where((place == 0) + 0.3 * x > 0.5, "yes", "no")
    if where == "csv":
        frame.to_csv(tmp_path / "t.csv", index=False)
        frame = pd.read_csv(tmp_path / "t.csv")
    X = frame[["member", "x"]]
    encoder = OneHotEncoder(handle_unknown="ignore")
    columns = make_column_transformer((encoder, ["member"]), remainder="passthrough")
    given = make_pipeline(columns, LogisticRegression()).fit(X, frame["kind"])
    rows = TableModel(given).fit(frame, "kind").predict(X)
    np.testing.assert_allclose(rows["confidence"], given.predict_proba(X).max(axis=1), rtol=1e-6)
    assert rows["prediction"].tolist() == given.predict(X).tolist()


# --- what is made of columns -----------------------------------------------------------------


def test_preprocessing_is_what_one_would_do_by_hand(train, table):
    train.loc[[3, 20, 41], "size"] = np.nan
    table.loc[1, "size"] = np.nan
    train.loc[5, "colour"] = None
    result = quantify(train, table)
    fit = train.drop(index=held_rows(train, result))

    def numbers(frame):
        filled = frame["size"].fillna(fit["size"].median())
        return np.column_stack([filled, frame["count"], frame["size"].isna()]).astype(float)

    def texts(frame):
        one_hot, unseen = [], []
        for name in ("colour", "new"):
            as_text = frame[name].astype(object).fillna("(missing)").astype(str)
            known = sorted(set(fit[name].astype(object).fillna("(missing)").astype(str)))
            one_hot += [(as_text == value).to_numpy(dtype=float) for value in known]
            unseen.append(~as_text.isin(known).to_numpy())
        return np.column_stack(one_hot + unseen)

    scaler = StandardScaler().fit(numbers(fit))
    by_hand = np.hstack([scaler.transform(numbers(table)), texts(table)])
    np.testing.assert_allclose(features_seen(result, table), by_hand)


def held_rows(train, result):
    """Numbers of the held-out rows: no two rows have the same uncertainty."""
    u = result.model.predict(train)["epistemic"]
    return [int(np.argmin(np.abs(u - value))) for value in result.held_out["epistemic"]]


def test_order_of_columns_and_further_columns_do_not_matter(plain, table):
    shuffled = table[["new", "colour", "size", "count"]].assign(kind="?", remark="none")
    pd.testing.assert_frame_equal(plain.of(shuffled).rows, plain.rows)


def test_dropped_columns_have_no_part(train, table):
    expected = quantify(train.drop(columns="size"), table).rows
    dropped = quantify(train, table, drop=["size"])
    pd.testing.assert_frame_equal(dropped.rows, expected)
    lacking = table.drop(columns="size")
    pd.testing.assert_frame_equal(dropped.of(lacking).rows, expected)


@pytest.mark.parametrize(
    ("column", "convert"),
    [
        ("count", lambda c: c.astype("Int64")),
        ("count", lambda c: c.astype("float32")),
        ("count", lambda c: c.astype(object)),
        ("size", lambda c: c.astype("Float64")),
        ("colour", lambda c: c.astype("category")),
        ("colour", lambda c: c.astype("string")),
        ("colour", lambda c: c.astype(object)),
        ("new", lambda c: c.astype("boolean")),
        ("new", lambda c: c.astype(object)),
        ("new", lambda c: c.astype("category")),
        ("new", lambda c: c.astype(str)),
    ],
)
def test_how_a_column_is_stored_does_not_matter(plain, train, table, column, convert):
    stored = table.assign(**{column: convert(table[column])})
    trained = quantify(train.assign(**{column: convert(train[column])}), table)
    for result in (trained, trained.of(stored), plain.of(stored)):
        pd.testing.assert_frame_equal(result.rows, plain.rows)


@pytest.fixture(scope="module")
def holed():
    """A function that quantifies tables with a column of a type and two holes of a kind in it."""

    @functools.cache
    def of(column, dtype, hole):
        frame = made().astype({column: dtype})
        frame.loc[[0, 2], column] = hole
        return quantify(frame, frame.drop(columns="kind").head(7))

    return of


@pytest.mark.parametrize(
    ("column", "dtype", "hole"),
    [
        ("size", float, np.nan),
        ("size", object, None),
        ("count", "Int64", pd.NA),
        ("count", float, np.nan),
        ("count", object, pd.NA),
        ("colour", object, None),
        ("colour", object, np.nan),
        ("colour", "string", pd.NA),
        ("colour", "category", np.nan),
        ("new", object, None),
        ("new", "boolean", pd.NA),
    ],
)
def test_every_kind_of_missing_value_is_the_same_one(holed, column, dtype, hole):
    result = holed(column, dtype, hole)
    pd.testing.assert_frame_equal(result.rows, holed(column, object, np.nan).rows)
    assert f"Missing values in the training table: {column} (2)." in result.notes
    assert f"Missing values in the table to predict: {column} (2)." in result.notes


def test_holes_in_the_table_to_predict_do_not_turn_codes_into_other_codes(train, table):
    train["colour"] = np.resize(["1", "2", "x"], 60)  # text, for the sake of one code
    codes = pd.Series([1, 2, 1, 2, 1, 2, 1])
    of_texts = quantify(train, table.assign(colour=codes.astype(str)))
    expected = of_texts.rows
    pd.testing.assert_frame_equal(of_texts.of(table.assign(colour=codes)).rows, expected)
    with_hole = table.assign(colour=codes.astype(float).where(codes.index != 6))
    pd.testing.assert_frame_equal(of_texts.of(with_hole).rows.head(6), expected.head(6))


def test_numbers_and_their_text_are_one_value_in_a_mixed_column(train, table):
    mixed = train.assign(colour=np.resize(np.array([1, "1", "x"], dtype=object), 60))
    plain = train.assign(colour=np.resize(["1", "1", "x"], 60))
    table["colour"] = "1"
    pd.testing.assert_frame_equal(quantify(mixed, table).rows, quantify(plain, table).rows)


def test_numbers_written_as_text_count_as_numbers_where_training_had_numbers(plain, table):
    written = table.assign(count=table["count"].astype(str))
    pd.testing.assert_frame_equal(plain.of(written).rows, plain.rows)


def test_spaces_around_a_category_make_another_one(plain, table):
    result = plain.of(table.assign(colour="red "))
    assert (result.rows["unseen"] == "colour").all()


def test_an_unseen_category_is_told_and_counts_as_none(plain, train, table):
    result = plain.of(table.assign(colour="violet"))
    (note,) = [note for note in result.notes if "absent in training" in note]
    assert "colour (7)" in note
    known = features_seen(result, table)
    unknown = features_seen(result, table.assign(colour="violet"))
    different = (known != unknown).any(axis=0)
    assert different.any()
    # It is none of the known values; a column marks it, which is 0 in training.
    assert (unknown[:, different].sum(axis=1) == 1).all()
    marks = (unknown == 1).all(axis=0) & different
    assert marks.sum() == 1
    assert (features_seen(result, train)[:, marks] == 0).all()


def test_missing_text_that_training_did_not_show_is_told(plain, table):
    rows = plain.of(table.assign(colour=None, size=np.nan)).rows
    assert (rows["unseen"] == "size; colour").all()


def test_known_values_are_not_told_as_unseen(plain):
    assert not any("absent in training" in note for note in plain.notes)


def test_numbers_beyond_the_training_range_are_told(plain, train, table):
    name = train.select_dtypes("number").columns[0]
    table = table.copy()
    table[name] = table[name].astype(float)
    table.iloc[0, table.columns.get_loc(name)] = train[name].max() + 1
    table.iloc[1, table.columns.get_loc(name)] = np.nan
    result = plain.of(table)
    (told,) = (note for note in result.notes if "outside" in note)
    assert f"the training rows: {name} (1)." in told
    assert result.rows["out_of_range"].tolist() == [name] + [""] * 6


def test_a_table_within_the_training_range_extrapolates_nothing(plain, train):
    middle = train[train["size"].abs() < 0.5]
    assert not any("outside" in note for note in plain.of(middle).notes)


def test_a_column_that_is_all_missing_in_the_table_to_predict_is_filled(plain, train, table):
    expected = plain.of(table.assign(size=train["size"].iloc[:0].median())).rows
    for nothing in (np.nan, None, pd.NA):
        rows = plain.of(table.assign(size=nothing)).rows
        assert np.isfinite(rows[NUMBERS].to_numpy()).all()
        pd.testing.assert_frame_equal(rows, expected)


@pytest.mark.usefixtures("small_learners")
@pytest.mark.parametrize("estimator", ["hgb", "forest", "logistic"])
@pytest.mark.parametrize("values", [[120.0, 80.5], ["speeding", "parking"]])
def test_a_column_that_two_rows_fill_serves_every_learner(train, table, estimator, values):
    """Parts of the rows, on which learners are trained, have none of its values."""
    train["fine"] = pd.Series(values, index=[10, 100]).reindex(train.index)
    rows = quantify(train, table.assign(fine=values[0]), estimator=estimator).rows
    assert np.isfinite(rows[NUMBERS].to_numpy()).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_number_that_a_single_row_has_does_no_harm(train, table, seed):
    train["size"] = train["size"].where(train.index == 0)  # held out for some seed, or not
    rows = quantify(train, table, random_state=seed).rows
    assert np.isfinite(rows[NUMBERS].to_numpy()).all()


def test_rare_values_of_a_text_column_share_one_column(train, table):
    wide = pd.concat([train] * 4, ignore_index=True)
    wide["colour"] = [f"shade {i // 2}" for i in range(len(wide))]
    result = quantify(wide, table.assign(colour="shade 1"))
    n_new = wide["new"].nunique()
    assert features_seen(result, wide).shape[1] == 2 + 50 + n_new + 2


def test_dates_count_as_numbers(train, table):
    days = pd.Series(pd.date_range("2030-01-01", periods=60, freq="D"))
    stamps, texts = (
        quantify(train.assign(colour=values), table.assign(colour=values[:1].tolist() * len(table)))
        for values in (days, days.dt.strftime("%d.%m.%Y"))
    )
    pd.testing.assert_frame_equal(stamps.rows, texts.rows)
    assert any("Column colour contains dates" in note for note in texts.notes)
    assert not any("seems to number" in note for note in texts.notes)
    late = stamps.of(table.assign(colour="2040-01-01")).rows
    assert late["out_of_range"].str.contains("colour (days since 2030-01-01)", regex=False).all()


def test_a_given_model_gets_dates_as_they_were(train, table):
    dated = train.assign(colour=np.resize(["2030-01-01", "2030-01-02"], 60))
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["colour"]), ("passthrough", ["size", "count"])
    )
    model = make_pipeline(encoder, LogisticRegression())
    model.fit(dated[["colour", "size", "count"]], dated["kind"])
    new = table.assign(colour="2030-01-02")
    held_out = dated.assign(size=dated["size"] / 2)
    assert len(quantify(dated, new, estimator=model, held_out=held_out).rows) == len(table)


def parts_of_dates(X):
    assert X["code"].dtype == np.int64
    weekdays = [day.weekday() for day in X["day"]]
    return pd.DataFrame({"hour": X["when"].dt.hour, "weekday": weekdays})


def as_written(X):
    return X.astype(str)


def test_a_given_model_gets_categories_as_such():
    random, n = np.random.default_rng(0), 200
    X = pd.DataFrame(
        {"town": random.choice(["Ulm", "Linz", "Bern"], n), "a": random.normal(size=n)}
    )
    y = np.where((X["town"] == "Ulm") ^ (X["a"] > 0), "yes", "no")
    X = X.astype({"town": "category"})
    given = HistGradientBoostingClassifier(max_iter=10).fit(X, y)
    new = X.assign(town=["Graz", *X["town"][1:]]).astype({"town": "category"})
    rows = quantify(X.assign(kind=y), new, estimator=given).rows
    np.testing.assert_allclose(rows["confidence"], given.predict_proba(new).max(axis=1))
    assert rows["unseen"].tolist() == ["town"] + [""] * (n - 1)


def test_a_given_model_may_read_whole_numbers_dates_and_texts_in_its_own_way():
    random, n = np.random.default_rng(0), 200
    when = pd.Series(pd.date_range("2030-01-01", periods=n, freq="7h"))
    codes, words = random.integers(3, size=n), random.integers(3, size=n)
    X = pd.DataFrame({"code": codes, "when": when, "day": when.dt.date})
    X["note"] = [f"word{word} number{k}" for k, word in enumerate(words)]
    y = np.where((codes == 1) ^ (words == 1), "yes", "no")
    numbers = make_pipeline(FunctionTransformer(as_written), OneHotEncoder(handle_unknown="ignore"))
    columns = make_column_transformer(
        (FunctionTransformer(parts_of_dates), ["code", "when", "day"]),
        (numbers, ["code"]),
        (TfidfVectorizer(), "note"),
        sparse_threshold=0,
    )
    given = make_pipeline(columns, LogisticRegression(max_iter=1000)).fit(X, y)
    result = quantify(X.assign(kind=y), X, estimator=given)
    np.testing.assert_allclose(result.rows["confidence"], given.predict_proba(X).max(axis=1))
    assert not result.rows["unseen"].str.contains("note").any()  # every row has a text of its own
    assert not any("left out" in note for note in result.notes)


@pytest.mark.parametrize(
    ("word", "told"),
    [("?", "contains numbers (? where a number is missing)"), ("big", "counts as text, such as")],
)
def test_a_column_of_numbers_and_words_is_told(plain, train, table, word, told):
    marked = train.assign(size=train["size"].astype(str).where(train.index % 9 > 0, word))
    notes = quantify(marked, table).notes
    assert any("column size" in note.lower() and told in note for note in notes)
    assert not any("column size" in note.lower() for note in plain.notes)


# --- targets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([3, 7], [3, 7]),
        ([1.0, 2.0], [1.0, 2.0]),
        ([True, False], [False, True]),
        (["b", "a"], ["a", "b"]),
        ([1, "x"], ["1", "x"]),
        (pd.array([3, 7], dtype="Int64"), [3, 7]),
        (pd.array([True, False], dtype="boolean"), [False, True]),
        (pd.Categorical(["b", "a"], categories=["b", "never", "a"]), ["a", "b"]),
        (pd.Series(["b", "a"], dtype="string"), ["a", "b"]),
    ],
)
def test_classes_keep_their_type(train, table, labels, expected):
    train["kind"] = pd.Series(labels).take(np.arange(60) % 2).reset_index(drop=True)
    result = quantify(train, table)
    assert result.model.classes_.tolist() == expected
    assert type(result.model.classes_.tolist()[0]) is type(expected[0])
    assert set(result.rows["prediction"]) <= set(expected)
    assert set(result.held_out["label"]) == set(expected)
    row = result.rows.iloc[0]
    assert str(row["prediction"]) in row["prediction_set"].split("; ")


@pytest.mark.parametrize(
    ("labels", "convert"),
    [
        ([0, 1], lambda c: c.astype(float)),
        ([0.0, 1.0], lambda c: c.astype(int)),
        (["0", "1"], lambda c: c.astype(float)),
        ([False, True], lambda c: c.astype(str)),
        ([False, True], lambda c: c.astype("boolean")),
    ],
)
def test_how_held_out_labels_are_stored_does_not_matter(train, labels, convert):
    train["kind"] = np.tile(labels, 30)
    train, held_out = train[11:].reset_index(drop=True), train.head(11)
    expected = quantify(train, train, held_out=held_out).held_out
    stored = held_out.assign(kind=convert(held_out["kind"]))
    pd.testing.assert_frame_equal(quantify(train, train, held_out=stored).held_out, expected)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (np.linspace(0, 1, 60), "'kind' has continuous numbers, not classes"),
        (np.tile([np.inf, 1.0], 30), "'kind' has continuous numbers, not classes"),
        (["ant"] * 60, "must have at least 2 classes .* 'ant' has 60 of 60 rows"),
        (np.arange(60), r"at least 2 rows each, but '0' has 1 of 60 rows.*a quantity"),
        (["ant"] * 30 + ["bee"] * 29 + ["cow"], r"at least 2 rows each, but 'cow' has 1 of 60"),
        ([None] * 60, "is missing in all rows of the training table"),
    ],
)
def test_a_target_that_is_no_class_is_refused(train, table, target, message):
    with pytest.raises(TableError, match=message):
        quantify(train.assign(kind=target), table)


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
@pytest.mark.parametrize(
    ("target", "warned"),
    [(np.arange(60), False), (np.arange(600) * 50, False), (np.arange(600) % 30, True)],
)
def test_whole_numbers_of_many_values_are_quantities_and_this_is_said(target, warned):
    frame = pd.DataFrame({"a": np.random.default_rng(0).normal(size=len(target)), "y": target})
    model = TableModel("logistic").fit(frame, "y")
    assert model.task_ == "regression"
    (note,) = (note for note in model.notes_ if 'pass `task="classification"`' in note)
    assert (note in model.warnings_) == warned


@pytest.mark.usefixtures("few_trees")
def test_a_task_that_was_stated_is_not_doubted():
    target = np.arange(60) % 30
    frame = pd.DataFrame({"a": np.random.default_rng(0).normal(size=60), "y": target})
    model = TableModel("logistic", task="regression").fit(frame, "y")
    assert not any("classes" in note for note in model.notes_)


@pytest.mark.usefixtures("few_trees")
def test_a_target_in_text_is_read_and_what_is_not_a_number_is_left_out(train, table):
    prices = [f"${value:,.2f}" for value in np.linspace(500, 5000, 60)]
    prices[7], prices[9] = "on request", "-"
    model = TableModel("logistic").fit(train.assign(kind=prices), "kind")
    assert model.task_ == "regression"
    assert model.warnings_ == [
        "The target kind is not a number with the unit '$' in 1 row of the "
        "training table, such as 'on request' (row 7).",
        "2 rows of the training table without a target were dropped; the first is row 7.",
    ]
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


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train_with", "table_with", "message"),
    [
        ({}, {"size": "two"}, "7 of the 7 rows of the table .* row 0: size is 'two', not a number"),
        ({}, {"size": np.inf}, "size is 'inf', infinite or too large"),
        ({"size": -np.inf}, {}, "'size' of the training table .* infinite"),
        ({"size": np.linspace(0, 1e200, 60)}, {}, "beyond 1e.38, such as 1.69"),
        ({"size": [[1, 2]] * 60}, {}, r"'size' has several values in one cell, such as \[1, 2\]"),
        ({}, {"size": [{"a": 1}] * 7}, "'size' has several values in one cell"),
    ],
)
def test_columns_that_cannot_be_used_are_refused_by_name(
    plain, train, table, train_with, table_with, message
):
    new = table.assign(**table_with)
    with pytest.raises(TableError, match=message):
        quantify(train.assign(**train_with), new) if train_with else plain.of(new)


@pytest.mark.parametrize(
    ("values", "note"),
    [
        (np.nan, "Columns without values were dropped: other."),
        (None, "Columns without values were dropped: other."),
        (
            [f"id {i}" for i in range(60)],
            "Text columns with a different value in nearly every row, ",
        ),
        (
            [f"id {i % 58}" for i in range(60)],
            "Text columns with a different value in nearly every row, ",
        ),
        (
            [None] * 5 + [f"id {i}" for i in range(55)],
            "Text columns with a different value in nearly every ",
        ),
        (np.random.default_rng(0).permutation(60) + 7, "Columns of row numbers were dropped"),
        (np.random.default_rng(0).permutation(90)[:60], "Columns of row numbers were dropped"),
    ],
)
def test_columns_that_teach_nothing_are_left_out_and_this_is_said(
    plain, train, table, values, note
):
    result = quantify(train.assign(other=values), table)  # which need not have it
    pd.testing.assert_frame_equal(result.rows, plain.rows)
    (found,) = (note for note in result.notes if "other" in note)
    assert found.startswith(note)


def test_a_table_without_anything_to_learn_from_is_refused(train):
    only = train[["kind"]].assign(name=[f"id {i}" for i in range(60)])
    with pytest.raises(TableError, match="no feature column left"):
        TableModel("logistic").fit(only, "kind")


def test_a_row_that_cannot_be_read_is_set_aside_and_the_others_are_scored(plain, table):
    bad = table.astype({"size": object}).set_axis([*"abcdefg"])
    bad.loc["c", ["size", "colour"]] = ["n.a", "red"]
    bad.loc["b", "size"] = "abc"
    bad.loc["f", "size"] = np.inf
    result = plain.of(bad)
    expected = plain.of(
        table.astype({"size": float}).assign(
            size=table["size"].where(table.index != 2),
            colour=table["colour"].where(table.index != 2, "red"),
        )
    ).rows
    kept = [0, 2, 3, 4, 6]
    pd.testing.assert_frame_equal(
        result.rows.iloc[kept].reset_index(drop=True), expected.iloc[kept].reset_index(drop=True)
    )
    aside = result.rows.iloc[[1, 5]]
    assert aside["reasons"].tolist() == [
        "not scored: row b: size is 'abc', not a number",
        "not scored: row f: size is 'inf', infinite or too large",
    ]
    assert aside[["prediction", *NUMBERS]].isna().all(axis=None)
    assert (aside[["prediction_set", "unseen", "out_of_range"]] == "").all(axis=None)
    (note,) = (note for note in result.notes if "not scored" in note)
    assert note.endswith("size (2).")
    with pytest.raises(TableError, match=r"2 of the 7 rows .* row b: size is 'abc', not a number"):
        result.model.predict(bad, strict=True)
    assert result.model.predict(bad.loc[["b"]])["reasons"].tolist() == aside["reasons"].tolist()[:1]


@pytest.mark.parametrize("mark", [",", "."])
def test_numbers_with_another_decimal_mark_are_refused_with_what_to_state(train, table, mark):
    own = "," if mark == "." else "."
    train["size"] = [f"{value:.2f}".replace(".", own) for value in train["size"]]
    model = TableModel(Toy()).fit(train, "kind")
    for sizes in (["1M5"] * 7, ["1M5", "2M25", "3M5", "77M125", "4M0", "4M1", "5"]):
        other = table.assign(size=[size.replace("M", mark) for size in sizes])
        told = "1.5'.* state their decimal mark when the table is read .`decimal`"
        with pytest.raises(TableError, match=told):
            model.predict(other)


def test_ranges_in_the_table_to_predict_are_read_as_their_middle(plain, table):
    ranges = table.assign(size=[f"{value - 1} - {value + 1}" for value in range(7)])
    result = plain.of(ranges)
    rows = plain.of(table.assign(size=np.arange(7.0))).rows
    pd.testing.assert_frame_equal(result.rows, rows)
    assert "Ranges read as their midpoint: size (7)." in result.notes
    assert result.model.predict(ranges, strict=True) is not None


def test_what_was_misread_comes_first(train, table):
    train["size"] = train["size"].astype(str)
    train.loc[17, "size"] = "1 - 2"
    train.loc[40, "size"] = "large"
    result = quantify(train, table)
    assert result.model.warnings_ == [
        "1 cell in column size holds a range, such as '1 - 2' (row 17), and is read as its "
        "midpoint.",
        "1 cell in column size holds something other than a number, such as 'large' (row 40), and "
        "counts as missing.",
    ]
    assert result.model.notes_[:2] == result.model.warnings_


def test_a_few_infinite_numbers_count_as_missing(train, table):
    infinite = train.assign(size=train["size"].where(train.index != 5, np.inf))
    result = quantify(infinite, table)
    (warning,) = result.model.warnings_
    assert warning.startswith("1 cell in column size holds something infinite or too large, such")
    missing = quantify(train.assign(size=train["size"].where(train.index != 5)), table)
    pd.testing.assert_frame_equal(result.rows, missing.rows)


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize(("labels", "n"), [([3, 7], 2), ([True, False], 2), ([0.5, 1.25], None)])
def test_predictions_keep_their_kind_beside_rows_that_are_not_scored(train, table, labels, n):
    train["kind"] = np.tile(labels, 30)
    rows = quantify(train, table.assign(size=["x", *table["size"][1:]]), "kind", "logistic").rows[
        "prediction"
    ]
    assert rows.isna().tolist() == [True] + [False] * 6
    assert n is None or set(rows.dropna().tolist()) <= set(labels)


@pytest.mark.parametrize(
    ("target", "drop", "message"),
    [
        ("kinds", [], r"no column 'kinds'; it has size, .*, kind\. Did you mean 'kind'\?$"),
        ("zzz", [], r"no column 'zzz'; it has size, count, colour, new, kind\.$"),
        ("kind", ["color"], r"no column 'color'; .* Did you mean 'colour'\?"),
        ("kind", ["size", "count", "colour", "new"], "no feature column left"),
    ],
)
def test_wrong_names_are_refused_with_the_right_ones(train, table, target, drop, message):
    with pytest.raises(TableError, match=message):
        quantify(train, table, target, drop=drop)


def test_columns_that_the_table_to_predict_lacks_are_named(plain, table):
    with pytest.raises(TableError, match=r"lacks the training columns size, new; add them"):
        plain.of(table[["count", "colour"]])


def test_a_table_without_rows_has_the_columns_of_others(plain, table):
    none = plain.of(table.head(0)).rows
    pd.testing.assert_frame_equal(none, plain.rows.head(0), check_dtype=False)


@pytest.mark.parametrize("which", ["training table", "table to predict"])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count", "size", "more than one column named 'size'"),
        ("count", 7, r"must be text, got 7; .*astype\(str\)"),
    ],
)
def test_ambiguous_column_names_are_refused(plain, train, table, which, old, new, message):
    names, trains = {old: new}, which == "training table"
    with pytest.raises(TableError, match=f"{which} (has )?{message}"):
        quantify(train.rename(columns=names), table) if trains else plain.of(
            table.rename(columns=names)
        )


# --- the report ------------------------------------------------------------------------------


class Tables(HTMLParser):
    """Rows of cells by heading, all text, and every address that could be fetched."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.text, self.addresses, self.heading, self.inside = {}, "", [], "", ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.inside = tag
        self.addresses += [v for k, v in attributes if k in ("src", "href", "srcset", "data")]
        if tag == "h2":
            self.heading = ""
        if tag == "tr":
            self.rows.setdefault(self.heading, []).append([])
        if tag in ("td", "th"):
            self.rows[self.heading][-1].append("")

    def handle_data(self, data):
        self.text += data
        if self.inside == "h2":
            self.heading = (self.heading + data).strip()
        if self.inside in ("td", "th"):
            self.rows[self.heading][-1][-1] += data

    def handle_endtag(self, tag):
        self.inside = ""


@pytest.fixture(scope="module")
def report_of():
    """A function that parses the report on a table, and gives what it reports on."""
    pytest.importorskip("matplotlib").use("Agg")

    def parse(train, table, target="kind"):
        result = quantify(train, table, target)
        report = table_report(result.model, result.rows, result.model.count(table))
        return result, Tables(report.html())

    return parse


def made_large():
    """A training table of which enough rows are held out to call a row unusual."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=200), "colour": rng.choice(["a", "b"], 200)})
    return frame.assign(kind=np.where(frame["size"] + rng.normal(size=200) > 0, "big", "small"))


@pytest.fixture
def large():
    return made_large()


@pytest.fixture(scope="module")
def report_on_large(report_of):
    """The report on the rows of `large`, what it reports on, and figures that it left open."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_fignums()
    result, page = report_of(made_large(), made_large())
    return SimpleNamespace(result=result, page=page, opened=pyplot.get_fignums() != before)


def test_the_summary_counts_unusual_rows(report_of, large):
    table = large.drop(columns="kind").head(30)
    table.loc[[3, 4, 5], "size"] = 1000.0
    result, page = report_of(large, table)
    unusual = sum(value <= 0.05 for value in result.rows["conformal_p_value"])
    assert unusual >= 3
    assert f"30 rows were predicted. {unusual} of them ({unusual / 30:.1%})" in page.text


def test_the_summary_says_if_there_are_too_few_rows_to_tell(report_of, train, table):
    _, page = report_of(train, table)
    assert "7 rows were predicted. 12 held-out rows are too few" in page.text
    assert "more unusual than" not in page.text


def test_the_smallest_table_that_is_said_to_be_enough_is_enough(report_of, large):
    for n_rows, enough in ((94, False), (95, True)):
        _, page = report_of(large.head(n_rows), large.head(1).assign(size=1e6))
        assert ("1 row was predicted. 1 of them (100.0%) is more unusual" in page.text) == enough
        assert ("a training table of 95 rows" in page.text) != enough


def test_the_most_unusual_rows_are_listed_first_with_their_reasons(report_of, large):
    table = large.drop(columns="kind").head(30)
    table.loc[17, ["size", "colour"]] = [1234.0, "b"]
    result, page = report_of(large, table)
    head, *rows = page.rows["Rows to look at first"]
    assert head == ["row", "prediction", "confidence", "reasons", "p", "epistemic"]
    assert rows[0][0] == "18"
    assert "size = 1234" in rows[0][head.index("reasons")]
    shown = result.rows["conformal_p_value"][[int(row[0]) - 1 for row in rows]]
    assert shown.is_monotonic_increasing
    assert shown.max() <= result.rows["conformal_p_value"].nsmallest(len(rows)).max()


def test_an_id_may_be_called_as_a_column_of_the_report(large):
    large.insert(0, "p", [f"nr {k}" for k in range(len(large))])
    pytest.importorskip("matplotlib").use("Agg")
    model = TableModel(Toy()).fit(large, "kind", id_column="p")
    rows = model.predict(large)
    page = table_report(model, rows, model.count(large)).html()
    first = rows.sort_values(["conformal_p_value", "epistemic"], ascending=[True, False])
    assert f"<td>{first['p'].iloc[0]}</td>" in page


def test_quality_is_measured_on_the_held_out_rows(report_on_large):
    result, page = report_on_large.result, report_on_large.page
    quality = dict(page.rows["How good is the model?"][1:])
    held_out = result.held_out
    accuracy = (held_out["prediction"] == held_out["label"]).mean()
    assert quality["held-out rows"] == str(len(held_out)) == "40"
    assert quality["right predictions"] == f"{100 * accuracy:.1f}%"
    assert f"right for {100 * accuracy:.1f}% of 40 held-out rows" in page.text


def test_the_curve_is_that_of_the_score_that_finds_wrong_predictions_best(report_on_large):
    page = report_on_large.page
    _, *rows = page.rows["Which score finds wrong predictions?"]
    best = max(rows, key=lambda row: float(row[1]))[0]
    assert f"those with the largest {best.removeprefix('low ')} are" in page.text or (
        best == "low confidence" and "those with the lowest confidence are" in page.text
    )


def test_held_out_rows_are_measured_by_true_class(report_on_large):
    result, page = report_on_large.result, report_on_large.page
    head, *rows = page.rows["How good is it for each class?"]
    assert head == ["class", "held-out rows", "right predictions", "coverage"]
    measured = result.model.measured_by_class()
    held = result.held_out
    for name, count, right, covered in rows:
        of_class = held[held["label"] == name]
        assert int(count) == len(of_class)
        assert right == f"{100 * (of_class['prediction'] == name).mean():.1f}%"
        assert covered == f"{100 * measured['coverage'][name]:.1f}%"
    assert (
        "The nominal coverage of 90% holds on average over all classes, not within each class"
        in page.text
    )
    overall = (measured["coverage"] * measured["rows"]).sum() / measured["rows"].sum()
    assert result.model.measured_coverage()[0] == pytest.approx(overall)


def test_classes_that_are_rarely_found_or_covered_are_warned_of():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=1000), "b": rng.normal(size=1000)})
    frame["kind"] = np.where(rng.uniform(size=1000) < 0.1, "fraud", "fair")
    frame.loc[frame["b"] > 1.2, "kind"] = "other"
    model = TableModel("logistic").fit(frame, "kind")
    measured, held = model.measured_by_class(0.9).loc["fraud"], model.held_out_["label"]
    found, covered = weak_class_notes(model, 0.9)
    assert found.endswith(f": {measured['accuracy']:.0%} of {measured['rows']:.0f} fraud.")
    assert f"frequent class: {(held == 'fair').mean():.1%}), but it finds few" in found
    assert covered.endswith(f": {measured['coverage']:.0%} of {measured['rows']:.0f} fraud.")
    pytest.importorskip("matplotlib").use("Agg")
    page = Tables(table_report(model, model.predict(frame), model.count(frame)).html())
    assert found in page.text
    assert covered in page.text
    # Beyond chance: the same shares of few rows do not count, nor do balanced classes.
    model.held_out_, model.held_out_proba_ = model.held_out_[:12], model.held_out_proba_[:12]
    assert weak_class_notes(model, 0.5) == []
    frame["kind"] = np.where(frame["a"] + rng.normal(size=1000) > 0, "fraud", "fair")
    assert weak_class_notes(TableModel("logistic").fit(frame, "kind"), 0.9) == []


def test_of_many_classes_those_are_shown_that_sets_hold_least_often(report_of):
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": np.repeat(np.arange(12.0), 20) + random.normal(size=240)})
    frame["kind"] = np.repeat([f"kind {k:02}" for k in range(12)], 20)
    result, page = report_of(frame, frame)
    _, *rows = page.rows["How good is it for each class?"]
    measured = result.model.measured_by_class()["coverage"]
    assert {row[0] for row in rows} == set(measured.nsmallest(10).index)
    assert "true class: of 12, the 10 with the lowest coverage." in page.text


@pytest.mark.usefixtures("few_trees")
def test_a_regression_has_no_classes_to_measure(large):
    model = TableModel("logistic", task="regression").fit(
        large[["size"]].assign(y=large["size"]), "y"
    )
    with pytest.raises(ValueError, match="A regression has no classes"):
        model.measured_by_class()
    assert weak_class_notes(model, 0.9) == []


def test_a_model_that_is_no_better_than_guessing_is_the_first_thing_that_is_said(report_of, large):
    backwards = large.assign(kind=large["kind"].map({"big": "small", "small": "big"}))
    result = quantify(large[:100], large, held_out=backwards[100:])
    report = table_report(result.model, result.rows, result.model.count(large))
    assert report.summary.startswith(
        "The model is no better than always predicting the class frequencies: do not use it (log"
    )
    clear = large.assign(kind=np.where(large["size"] > 0, "big", "small"))
    _, page = report_of(clear, clear)
    assert "no better than" not in page.text


def test_all_rows_are_counted_by_predicted_class(report_on_large):
    result, page = report_on_large.result, report_on_large.page
    counts = {row[0]: int(row[1]) for row in page.rows["Predictions"][1:]}
    assert counts == result.rows["prediction"].value_counts().to_dict()


def test_a_report_without_any_wrong_prediction_says_so(report_of):
    frame = pd.DataFrame({"a": np.repeat([0.0, 100.0], 50), "kind": np.repeat(["x", "y"], 50)})
    _, page = report_of(frame, frame)
    assert "All held-out predictions are right" in page.text


def test_the_report_leaves_no_figure_open(report_on_large):
    assert not report_on_large.opened


def test_names_and_values_of_the_user_are_text_and_never_markup(report_of, large):
    hostile = "<img src='https://example.org/x' onerror=alert(1)>"
    large = large.rename(columns={"size": hostile, "kind": "<b>kind"})
    large["colour"] = np.where(large["colour"] == "a", hostile, "b")
    _, page = report_of(large, large, target="<b>kind")
    head, *rows = page.rows["Rows to look at first"]
    assert any(hostile in row[head.index("reasons")] for row in rows)
    assert "How certain are the predictions of <b>kind?" in page.text
    assert page.addresses
    assert all(address.startswith("data:") for address in page.addresses)


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("regression", [False, True])
def test_coverage_of_too_few_rows_is_not_measured(regression):
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.normal(size=60)})
    frame["y"] = frame["a"] + random.normal(size=60) if regression else frame["a"] > 0
    model = TableModel("logistic").fit(frame, "y")
    assert len(model.held_out_) == 12  # halves of 6, of which 5 limit 80 %, and 9 limit 90 %
    assert np.isnan(model.measured_coverage(0.9)).all()
    assert np.isfinite(model.measured_coverage(0.8)).all()
    if regression:
        rows = model.predict(frame)
        assert np.isfinite(rows[["lower", "upper"]]).all(axis=None)
    else:
        assert model.measured_by_class(0.9)["coverage"].isna().all()


@pytest.mark.parametrize(("coverage", "fewest"), [(0.9, 9), (0.99, 99), (0.8, 4), (0.5, 1)])
def test_it_is_said_when_nothing_can_be_excluded(coverage, fewest):
    assert np.isfinite(conformal_limit(np.arange(float(fewest)), coverage))
    assert np.isinf(conformal_limit(np.arange(fewest - 1.0), coverage))
    assert coverage_notes(fewest, coverage) == []
    (note,) = coverage_notes(fewest - 1, coverage)
    rows = "1 held-out row" if fewest == 1 else f"{fewest} held-out rows"
    assert note.startswith(f"A coverage of {coverage} needs at least {rows}, but there are ")
    assert f" {fewest - 1}: prediction sets therefore contain all classes" in note


def test_a_part_of_a_nameless_index_numbers_the_rows_too():
    numbers = np.random.default_rng(0).permutation(4000)[:200]
    frame = pd.DataFrame({"Unnamed: 0": numbers, "count": numbers, "y": ["x", "z"] * 100})
    model = TableModel("logistic").fit(frame, "y")
    assert model.feature_names_in_.tolist() == ["count"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (None, "The held-out table lacks the training columns size"),
        ("oops", "200 of the 200 rows of the held-out table .* row 0: size is 'oops', not a num"),
    ],
)
def test_errors_about_held_out_rows_name_their_table(large, column, message):
    other = large.drop(columns="size") if column is None else large.assign(size=column)
    with pytest.raises(TableError, match=message):
        TableModel("logistic").fit(large, "kind", held_out=other)


@pytest.mark.parametrize(("name", "warned"), [("yes; ok", True), ("yes", False)])
def test_classes_that_a_prediction_set_cannot_tell_apart_are_named(name, warned):
    frame = pd.DataFrame({"a": np.arange(30.0), "y": [name, "no"] * 15})
    notes = TableModel("logistic").fit(frame, "y").notes_
    assert any("rename the class to keep the sets" in note for note in notes) == warned


def test_a_given_model_keeps_a_column_without_name_and_values():
    frame = pd.DataFrame({"a": np.arange(30.0), "Unnamed: 1": np.nan, "y": ["x", "z"] * 15})
    filled = SimpleImputer(keep_empty_features=True)
    given = make_pipeline(filled, LogisticRegression()).fit(frame[["a", "Unnamed: 1"]], frame["y"])
    assert TableModel(given).fit(frame, "y").feature_names_in_.tolist() == ["a", "Unnamed: 1"]
