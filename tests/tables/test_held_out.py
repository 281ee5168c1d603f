"""Rows that measure a model, none of which trained it, and the conformal limits that they set."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skuq.calibration import conformal_limit
from skuq.residuals import interval_scores, stretched
from skuq.tables import TableModel, coverage_notes
from skuq.tables._held_out import (
    Parts,
    copies_in,
    hold_out,
    leaking_columns,
    overlapping_rows,
    prediction_sets,
)
from tests.tables.toy import Toy


@pytest.fixture(scope="module")
def table():
    """200 different rows of numbers and text, with ids and a class that is hard to predict."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.normal(size=200), "b": random.choice(["x", "y"], size=200)})
    frame["kind"] = np.where(frame["a"] + random.normal(size=200) > 0, "big", "small")
    return frame.assign(id=[f"n{k}" for k in range(200)])


def split(frame, regression=False, seed=0):
    y = frame["a" if regression else "kind"].to_numpy()
    return hold_out(y, regression, seed, copies_in(frame))


def has_note(model, text):
    return any(text in note for note in model.notes_)


@pytest.mark.parametrize("regression", [True, False])
def test_copies_are_held_out_together_or_train_together(table, regression):
    drawn = hold_out(table["kind"].to_numpy(), regression, 3)
    assert len(drawn[1]) == 40
    for part, expected in zip(split(table, regression, seed=3), drawn, strict=True):
        np.testing.assert_array_equal(part, expected)  # there are no copies
    copied = pd.concat([table, table[:80], table[:20]], ignore_index=True)
    for seed in range(3):
        fit, held = split(copied, regression, seed)
        assert sorted([*fit, *held]) == list(range(300))
        assert not set(copied["id"][fit]) & set(copied["id"][held])
        assert 30 <= len(held) <= 90
    rare = pd.DataFrame({"a": [9.0] * 3, "b": "z", "kind": "rare", "id": "r"})
    copied = pd.concat([rare, table], ignore_index=True)
    for seed in range(0 if regression else 8):  # every class trains, even if its rows are copies
        fit, held = split(copied, seed=seed)
        assert set(copied["kind"][fit]) == {"big", "small", "rare"}
        assert "rare" not in set(copied["kind"][held])


def test_as_many_equal_rows_as_chance_gives_are_cases_of_their_own():
    random = np.random.default_rng(0)
    few = pd.DataFrame({"a": random.integers(0, 3, 200), "kind": random.choice(["x", "y"], 200)})
    np.testing.assert_array_equal(split(few)[1], hold_out(few["kind"].to_numpy(), False, 0)[1])
    assert copies_in(few) is None
    assert not overlapping_rows(few, few[:5]).any()
    frame = pd.DataFrame(random.integers(0, 5, size=(200, 5)), columns=[*"abcde"])
    assert frame.duplicated().sum() > 2
    assert copies_in(frame) is None
    copies = copies_in(pd.concat([frame, frame[:100]]))
    np.testing.assert_array_equal(copies[:100], copies[200:])
    assert len(np.unique(copies)) == len(frame.drop_duplicates())


def test_copies_are_told(table):
    copied = pd.concat([table, table[:120]], ignore_index=True)
    model = TableModel("logistic").fit(copied, "kind", id_column="id")
    assert has_note(model, "240 rows of the training table occur more than once")
    assert has_note(model, f"{len(model.held_out_)} were held out to calibrate")


def test_held_out_rows_that_are_in_the_training_table_are_left_out(table):
    def fitted(held_out, **options):
        return TableModel("logistic").fit(table[:150], "kind", held_out=held_out, **options)

    model, expected = (fitted(table[start:], drop=["id"]) for start in (140, 150))
    pd.testing.assert_frame_equal(model.held_out_, expected.held_out_)
    assert has_note(model, "50 rows of the held-out table")
    assert has_note(model, "10 of the 60 held-out rows are also in the training table")
    assert not has_note(expected, "also in the training table")
    other = table[140:].assign(a=table["a"] + 1)
    assert len(fitted(other, id_column="id").held_out_) == 50  # equal ids are equal rows
    assert len(fitted(other, drop=["id"]).held_out_) == 60


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [
        (["1", "2"], ["0001", "3"], [True, False]),
        (["1", "2", "v"], ["1.0", "1"], [False, True]),  # versions, of which one is no number
        ([1, 2], [np.nan, np.nan], [False, False]),
        ([*range(5), "N7"], ["3", "N7", "N8"], [True, True, False]),
        (["1", "2", "3", "4"], [1.0, np.nan, 9.0, 4.0], [True, False, False, True]),
    ],
)
def test_ids_are_compared_as_numbers_only_where_all_are(first, second, known):
    train = pd.DataFrame({"a": np.arange(float(len(first)))})
    held = pd.DataFrame({"a": np.arange(len(second)) + 0.5}, index=[7] * len(second))
    ids = pd.Series(first), pd.Series(second, index=held.index)
    assert overlapping_rows(train, held, ids).tolist() == known


def test_a_column_that_was_written_after_the_outcome_is_told():
    random = np.random.default_rng(0)
    X = pd.DataFrame(random.normal(size=(600, 3)), columns=[*"abc"])
    y = pd.Series(np.where(X["a"] + random.normal(size=600) > 0, "yes", "no"))

    def warnings(told):
        return TableModel("logistic").fit(X.assign(told=told, kind=y), "kind").warnings_

    for words in ({"yes": "paid", "no": "written off"}, {"yes": 1.5, "no": -1.5}):
        (warning,) = warnings(y.map(words))
        assert "alone predicts the target as well as the model does: told." in warning
    assert warnings(X["a"].round(1)) == []
    month = y.map({"yes": "03", "no": "08"})
    date = [f"20{20 + k % 5}-{m}-{1 + k % 28:02}" for k, m in enumerate(month)]
    (warning,) = warnings(date)  # of which a part tells; it is named as in the table
    assert "`drop=['told']`" in warning
    parts_of_sum = X.assign(tax=(X["a"] + X["b"]).round(2), total=21 * (X["a"] + X["b"]))
    (warning,) = TableModel("logistic").fit(parts_of_sum, "total").warnings_
    assert "`drop=['tax']`" in warning
    assert TableModel("logistic").fit(parts_of_sum.drop(columns="tax"), "total").warnings_ == []
    # A model that needs several columns is not suspected.
    X, y = X[["a", "b"]], np.where(X["a"] + X["b"] > 0, "yes", "no")
    parts = Parts(X[:400], y[:400], X[400:], y[400:], [], X.index[400:])
    assert leaking_columns(parts, (1e-4, 0.7), np.full(200, True), ["a", "b"]) == []


def drawn(n, seed):
    random = np.random.default_rng(seed)
    proba = random.dirichlet([0.6, 0.8, 1.0], size=n)
    return proba, np.array([random.choice(3, p=p) for p in proba])


def given_proba():
    model = LogisticRegression()
    model.classes_, model.coef_, model.intercept_ = np.arange(3), np.eye(3), np.zeros(3)
    return make_pipeline(FunctionTransformer(np.log), model)


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.97])
def test_sets_are_those_of_mapie(coverage):
    mapie = pytest.importorskip("mapie.classification")
    (proba, y), (new, _) = drawn(150, 0), drawn(60, 1)
    ours = prediction_sets(
        new, conformal_limit(1 - proba[np.arange(len(y)), y], coverage), new.argmax(1)
    )
    settings = {"confidence_level": coverage, "conformity_score": "lac", "prefit": True}
    peer = mapie.SplitConformalClassifier(given_proba(), **settings)
    theirs = peer.conformalize(proba, y).predict_set(new)[1][:, :, 0]
    some = theirs.any(axis=1)  # ours are never empty
    np.testing.assert_array_equal(ours[some], theirs[some])
    assert (ours[~some].sum(axis=1) == 1).all()


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_intervals_are_those_of_mapie(coverage):
    mapie = pytest.importorskip("mapie.regression")
    random, given = np.random.default_rng(0), LinearRegression().fit([[0], [1]], [0, 1])
    predicted = random.normal(size=120)
    y, new = predicted + random.standard_t(3, size=120), random.normal(size=(20, 1))
    scores = interval_scores(y, predicted - 0.5, predicted + 0.5)
    ours = stretched(new - 0.5, new + 0.5, conformal_limit(scores, coverage))
    peer = mapie.SplitConformalRegressor(given, confidence_level=coverage, prefit=True)
    _, intervals = peer.conformalize(predicted[:, None], y).predict_interval(new)
    np.testing.assert_allclose(intervals[:, :, 0], np.hstack(ours))


@pytest.mark.parametrize(("coverage", "fewest"), [(0.9, 9), (0.99, 99), (0.8, 4), (0.5, 1)])
def test_too_few_rows_bound_nothing_and_this_is_said(coverage, fewest):
    assert conformal_limit(np.arange(float(fewest)), coverage) == fewest - 1
    assert conformal_limit(np.arange(fewest - 1.0), coverage) == np.inf
    size = np.random.default_rng(0).normal(size=600)
    table = pd.DataFrame({"a": size, "y": ["yes", "no"] * 300})
    model = TableModel(Toy()).fit(table, "y")
    held, proba = model.held_out_, model.held_out_proba_
    for n_rows in (fewest + 9, fewest, fewest - 1):  # parts of them are measured on the others
        model.held_out_, model.held_out_proba_ = held[:n_rows], proba[:n_rows]
        found, limits = coverage_notes(model, coverage), model.coverage_limits(coverage)
        assert len(found) == 1
        assert np.isfinite([model.measured_coverage(coverage)[0], *limits]).all() == (
            n_rows > fewest
        )
        if n_rows > fewest:
            assert f"and {limits[1]:.1%} (95% limits)" in found[0]
        assert ("not measured" in found[0]) == (n_rows == fewest)
    (note,) = found
    rows = "1 held-out row" if fewest == 1 else f"{fewest} held-out rows"
    assert f"{coverage} needs at least {rows}, but there are {fewest - 1}:" in note
