"""Rows that measure a model: none that trained it, and no column that knows the outcome."""

import time

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from skuq.tables import TableError, TableModel
from skuq.tables._held_out import (
    Parts,
    copies_in,
    hold_out,
    leaking_columns,
    overlapping_rows,
    repetition_notes,
)


@pytest.fixture
def table():
    """200 different rows of numbers and text, with ids and a class that is hard to predict."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.normal(size=200), "b": random.choice(["x", "y"], size=200)})
    frame["kind"] = np.where(frame["a"] + random.normal(size=200) > 0, "big", "small")
    return frame.assign(id=[f"n{k}" for k in range(200)])


def split(frame, regression=False, seed=0):
    y = frame["a" if regression else "kind"].to_numpy()
    return hold_out(y, regression, seed, copies_in(frame))


@pytest.mark.parametrize("regression", [True, False])
def test_without_copies_the_rows_are_drawn_as_ever(table, regression):
    drawn = hold_out(table["kind"].to_numpy(), regression, 3)
    assert len(drawn[1]) == 40
    for part, expected in zip(split(table, regression, seed=3), drawn, strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("regression", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_copies_are_held_out_together_or_train_together(table, regression, seed):
    copied = pd.concat([table, table[:80], table[:20]], ignore_index=True)
    fit, held = split(copied, regression, seed)
    assert sorted([*fit, *held]) == list(range(300))
    assert not set(copied["id"][fit]) & set(copied["id"][held])
    assert 30 <= len(held) <= 90


def test_every_class_trains_even_if_all_its_rows_are_copies(table):
    rare = pd.DataFrame({"a": [9.0] * 3, "b": "z", "kind": "rare", "id": "r"})
    copied = pd.concat([rare, table], ignore_index=True)
    for seed in range(8):
        fit, held = split(copied, seed=seed)
        assert set(copied["kind"][fit]) == {"big", "small", "rare"}
        assert "rare" not in set(copied["kind"][held])


def test_equal_rows_of_few_values_are_cases_of_their_own():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.integers(0, 3, 200), "kind": random.choice(["x", "y"], 200)})
    drawn = hold_out(frame["kind"].to_numpy(), False, 0)
    np.testing.assert_array_equal(split(frame)[1], drawn[1])
    assert repetition_notes(frame, copies_in(frame), None) == []


def test_as_many_equal_rows_as_chance_gives_are_cases_of_their_own():
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.integers(0, 5, size=(200, 5)), columns=[*"abcde"])
    assert frame.duplicated().sum() > 2
    assert copies_in(frame) is None
    copies = copies_in(pd.concat([frame, frame[:100]]))
    np.testing.assert_array_equal(copies[:100], copies[200:])
    assert len(np.unique(copies)) == len(frame.drop_duplicates())


def test_copies_and_repeated_ids_are_told(table):
    copied = pd.concat([table, table[:30].assign(a=7.0), table[-10:]], ignore_index=True)
    notes = repetition_notes(copied, copies_in(copied), "id")
    assert notes[0].startswith("20 rows of the training table occur more than once.")
    assert notes[1].startswith("40 values of the id column id occur more than once, such as n0.")
    assert "rows of an id belong together" in notes[1]
    copied = pd.concat([table, table[:3]], ignore_index=True)
    note = repetition_notes(copied, copies_in(copied), "id")[1]
    assert note.startswith("3 values of the id column id occur more than once, such as n0.")
    assert repetition_notes(table, copies_in(table), "id") == []
    missing = table.assign(id=table["id"].where(table.index > 9))
    assert repetition_notes(missing, copies_in(missing), "id") == []


def test_a_model_measures_no_row_whose_copy_trained_it(table):
    copied = pd.concat([table, table[:120]], ignore_index=True)
    model = TableModel("logistic").fit(copied, "kind", id_column="id")
    assert any("240 rows of the training table occur more than once" in n for n in model.notes_)
    held = [n for n in model.notes_ if "held out to calibrate" in n]
    assert f"{len(model.held_out_)} were held out" in held[0]


def test_a_million_rows_take_seconds():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.normal(size=10**6), "b": random.choice(["x", "y"], 10**6)})
    frame = pd.concat([frame, frame[:1000]], ignore_index=True)
    start = time.process_time()
    fit, held = hold_out(frame["a"].to_numpy(), True, 0, copies_in(frame))
    assert time.process_time() - start < 20
    assert not set(frame["a"][fit]) & set(frame["a"][held])


# --- rows of another table ---------------------------------------------------------------------


def test_held_out_rows_that_are_in_the_training_table_are_left_out(table):
    train, other = table[:150], table[140:]
    model = TableModel("logistic").fit(train, "kind", drop=["id"], held_out=other)
    expected = TableModel("logistic").fit(train, "kind", drop=["id"], held_out=table[150:])
    pd.testing.assert_frame_equal(model.held_out_, expected.held_out_)
    assert any(n.startswith("50 rows of the held-out table") for n in model.notes_)
    assert any(
        n.startswith("10 of the 60 held-out rows are also in the training table")
        for n in model.notes_
    )
    assert not any("also in the training table" in n for n in expected.notes_)


def test_equal_ids_are_equal_rows(table):
    other = table[140:].assign(a=table["a"] + 1)
    model = TableModel("logistic").fit(table[:150], "kind", id_column="id", held_out=other)
    assert len(model.held_out_) == 50
    assert (
        len(TableModel("logistic").fit(table[:150], "kind", drop=["id"], held_out=other).held_out_)
        == 60
    )


@pytest.mark.parametrize("options", [{"drop": ["id"]}, {"id_column": "id"}])
def test_a_held_out_table_of_training_rows_alone_is_refused(table, options):
    with pytest.raises(TableError, match="All rows of the held-out table are also in the"):
        TableModel("logistic").fit(table, "kind", held_out=table[:20], **options)


def test_equal_rows_of_few_values_are_not_taken_for_training_rows():
    frame = pd.DataFrame({"a": np.arange(100) % 3, "kind": np.arange(100) % 2})
    assert not overlapping_rows(frame, frame[:5]).any()


# --- columns that know the outcome -------------------------------------------------------------


def telling(frame, target, column_values):
    frame = frame.assign(told=column_values)
    model = TableModel("logistic").fit(frame, target)
    return [note for note in model.notes_ if "alone predicts" in note]


@pytest.fixture
def outcomes():
    """600 rows with a class that the columns do not tell."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(600, 3)), columns=[*"abc"])
    return frame.assign(kind=np.where(frame["a"] + random.normal(size=600) > 0, "yes", "no"))


@pytest.mark.parametrize("kind", ["text", "number"])
def test_a_column_that_was_written_after_the_outcome_is_told(outcomes, kind):
    words = {"text": {"yes": "paid", "no": "written off"}, "number": {"yes": 1.5, "no": -1.5}}
    (note,) = telling(outcomes, "kind", outcomes["kind"].map(words[kind]))
    assert "predicts the target as well as the model does: told. Is it known before" in note
    assert telling(outcomes, "kind", outcomes["a"].round(1)) == []


def test_what_gives_the_answer_away_comes_first_and_is_named_as_in_the_table(outcomes):
    month = outcomes["kind"].map({"yes": "03", "no": "08"})
    date = [f"20{20 + k % 5}-{m}-{1 + k % 28:02}" for k, m in enumerate(month)]
    model = TableModel("logistic").fit(outcomes.assign(judged=date), "kind")
    assert model.notes_[0].endswith(
        "as the model does: judged. Is it known before the outcome? If not, leave it out "
        "(`drop=['judged']`): it will be unknown for new rows."
    )
    assert model.warnings_ == model.notes_[:1]


def test_a_model_that_needs_several_columns_is_not_suspected():
    random = np.random.default_rng(0)
    X = pd.DataFrame(random.normal(size=(600, 2)), columns=[*"ab"])
    y = np.where(X["a"] + X["b"] > 0, "yes", "no")
    parts = Parts(X[:400], y[:400], X[400:], y[400:], [], X.index[400:])
    assert leaking_columns(parts, np.full(200, 1e-4), np.full(200, True), ["a", "b"]) == []


def test_rows_of_known_ids_are_left_out_though_another_id_is_no_number():
    train = pd.DataFrame({"id": np.arange(40), "a": np.arange(40.0), "kind": ["x", "y"] * 20})
    other = train.assign(
        id=[*map(str, range(20)), *(f"N{k}" for k in range(20))], a=train["a"] + 0.5
    )
    model = TableModel("logistic").fit(train, "kind", id_column="id", held_out=other)
    assert len(model.held_out_) == 20
    assert any(
        "20 of the 40 held-out rows are also in the training table" in n for n in model.notes_
    )


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [
        (["1", "2"], ["0001", "3"], [True, False]),
        (["1", "2", "v"], ["1.0", "1"], [False, True]),  # versions, of which one is no number
        ([1, 2], [np.nan, np.nan], [False, False]),
    ],
)
def test_ids_are_compared_as_numbers_only_where_all_are(first, second, known):
    held = pd.Series(second, index=[7] * len(second))
    train = pd.DataFrame({"a": np.arange(float(len(first)))})
    marked = overlapping_rows(train, train[:2] + 0.5, (pd.Series(first), held))
    assert marked.tolist() == known


def test_whole_ids_are_the_same_where_a_missing_one_made_floats_of_them():
    train = pd.DataFrame({"a": [0.0, 1.0, 2.0, 3.0]})
    ids = pd.Series(["1", "2", "3", "4"]), pd.Series([1.0, np.nan, 9.0, 4.0])
    assert overlapping_rows(train, train + 0.5, ids).tolist() == [True, False, False, True]


# --- models that were not fitted -----------------------------------------------------------------


def test_a_given_model_that_was_not_fitted_is_refused(table):
    with pytest.raises(TableError, match="LogisticRegression instance is not fitted"):
        TableModel(LogisticRegression()).fit(table[["a", "kind"]], "kind")
