"""Conditions on columns: the rules say which samples meet them."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array, csr_matrix

from skuq.calibration import _conditions, conditions_of, region_mask

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RNG.integers(18, 90, 60),
        "rate": RNG.normal(size=60).astype(np.float32),
        "children": RNG.integers(0, 4, 60).astype(float),
        "job": RNG.choice(["nurse", "cook", None], 60),
        "paid": RNG.random(60) < 0.5,
        "grade": pd.Categorical(RNG.choice(["a", "b"], 60), categories=["b", "a", "c"]),
        "count": pd.array(RNG.integers(0, 9, 60), dtype="Int64"),
        9: RNG.integers(0, 2, 60),
    },
    index=RNG.permutation(60),
)
FRAME.loc[FRAME["age"] > 80, ["children", "count"]] = None


def test_every_rule_finds_the_samples_of_its_mask_in_the_table():
    found = conditions_of(FRAME)
    names = [*FRAME][:-1] + [7]  # names that are no texts could be taken for positions
    assert {name for name, _ in found.rules} == set(names)
    assert found.masks.shape == (len(found.rules), 60)
    for (name, rule), mask in zip(found.rules, found.masks, strict=True):
        np.testing.assert_array_equal(region_mask({name: rule}, FRAME), mask, err_msg=f"{name}")
    rules = {name: [rule for of, rule in found.rules if of == name] for name in names}
    assert set(rules["job"]) == {"nurse", "cook", None}
    assert None in rules["children"]
    assert 1.0 in rules["children"]
    assert set(rules["paid"]) == {True, False}
    assert set(rules["grade"]) == {"a", "b"}


@pytest.mark.parametrize(
    "convert",
    [
        lambda X: X.astype(np.float32),
        lambda X: X.tolist(),
        lambda X: X.reshape(30, 2, 2),
        csr_matrix,
        lambda X: X.astype(object),
        pd.DataFrame,
    ],
)
def test_arrays_of_any_kind_give_columns_by_position(convert):
    X = np.random.default_rng(0).integers(0, 50, (30, 4))
    expected, found = conditions_of(X), conditions_of(convert(X))
    assert found.rules == expected.rules
    np.testing.assert_array_equal(found.masks, expected.masks)
    assert [name for name, _ in found.rules][::60] == [0, 3]


@pytest.mark.parametrize(
    "X",
    [
        ["a text", "another"],
        np.zeros(5),
        [[1, 2], [3]],
        np.zeros((3, 1001)),
        np.zeros((3, 2), complex),
    ],
)
def test_what_is_not_a_table_of_bounded_width_is_refused(X):
    with pytest.raises(
        ValueError, match=r"tables of at most 1,000 columns, got .*; pass only the col"
    ):
        conditions_of(X)


@pytest.mark.parametrize("column", [[1, 1], [[1], [2]], [np.nan, 2], [1j, 2j]])
def test_columns_that_divide_nothing_give_no_intervals(column):
    frame = pd.DataFrame({"x": pd.Series(column)})
    assert not any(isinstance(rule, tuple) for _, rule in conditions_of(frame).rules)
    divided = conditions_of(pd.DataFrame({"x": np.arange(40.0)}))  # the same look finds these
    assert any(isinstance(rule, tuple) for _, rule in divided.rules)


def test_a_wide_table_is_cut_less_often_and_texts_have_a_limit():
    wide = conditions_of(np.random.default_rng(0).normal(size=(50, 300)))
    assert len(wide.rules) == 600
    names = conditions_of(pd.DataFrame({"name": [f"{k}" for k in range(99)] + ["0"]}))
    assert len(names.rules) == 20
    assert names.rules[0] == ("name", "0")


def test_numbers_are_cut_at_values_that_occur_into_equal_parts():
    found = conditions_of(np.random.default_rng(0).permutation(100)[:, None])
    rules = [rule for _, rule in found.rules]
    assert rules[::2] == [(None, 10.0 * k - 1) for k in range(1, 10)]
    assert rules[1::2] == [(10.0 * k, None) for k in range(1, 10)]
    twenty = conditions_of(np.random.default_rng(0).normal(size=(50, 20)))
    assert len(twenty.rules) == 200


@pytest.mark.parametrize(
    ("values", "inner"), [([1, 2], []), ([1, 2, 3], [2.0]), ([1, 2, 3, 4], [2.0, 3.0])]
)
def test_of_few_numbers_each_inner_one_is_a_condition(values, inner):
    found = conditions_of(np.array(values * 3)[:, None])
    assert [rule for _, rule in found.rules if not isinstance(rule, tuple)] == inner


def test_of_equally_frequent_texts_the_first_ones_are_taken():
    names = [f"{k}" for k in np.random.default_rng(0).integers(0, 500, 1000)]
    found = conditions_of(pd.DataFrame({"name": names}))
    frequent = sorted(dict.fromkeys(names), key=lambda name: -names.count(name))
    assert [rule for _, rule in found.rules] == frequent[:20]


def test_of_many_samples_some_are_taken_always_the_same_ones(monkeypatch):
    X = np.arange(100.0)[:, None]
    monkeypatch.setattr(_conditions, "MAX_SAMPLES", 10)
    found = conditions_of(X)
    assert len(np.unique(found.rows)) == 10
    assert (np.diff(found.rows) > 0).all()
    assert found.rows.tolist() == conditions_of(X).rows.tolist()
    for (_, rule), mask in zip(found.rules, found.masks, strict=True):
        np.testing.assert_array_equal(region_mask({0: rule}, X)[found.rows], mask)


def test_without_samples_the_conditions_are_those_of_the_rest():
    removed = np.arange(60) % 3 == 1
    found = conditions_of(FRAME)
    rest = found.without(removed)
    assert rest.rows.tolist() == list(range(40))
    for (name, rule), mask in zip(rest.rules, rest.masks, strict=True):
        np.testing.assert_array_equal(region_mask({name: rule}, FRAME[~removed]), mask)


def test_of_a_wide_table_fewer_samples_are_taken(monkeypatch):
    monkeypatch.setattr(_conditions, "MAX_CELLS", 60)
    assert len(conditions_of(np.zeros((30, 3))).rows) == 20


def test_columns_of_one_name_are_told_by_their_positions():
    X = pd.DataFrame([[k, -k, k % 2] for k in range(30)], columns=["x", "x", "y"])
    found = conditions_of(X)
    assert {name for name, _ in found.rules} == {0, 1, "y"}
    for (name, rule), mask in zip(found.rules, found.masks, strict=True):
        np.testing.assert_array_equal(region_mask({name: rule}, X), mask)


@pytest.mark.parametrize(
    "column",
    [
        [Decimal(text) for text in ("0.05", "0.1", "0.2", "0.4")],
        [10**18 + 1, 10**18 + 3, 10**18 + 7001, 10**18 + 9001],
        [1699993951, 1699993952, 1699993960, 1699993999],
        [0.12345678901, 0.12345678902, 0.5, 1 / 3],
        [-1e-12, 1e-12, 2.0, np.inf],
    ],
)
def test_rules_select_the_samples_that_met_them(column):
    X = pd.DataFrame({"a": [column[k] for k in np.arange(60) % 4]})
    found = conditions_of(X)
    assert len(found.rules) >= 4
    for (name, rule), mask in zip(found.rules, found.masks, strict=True):
        np.testing.assert_array_equal(region_mask({name: rule}, X), mask)


def test_limits_have_no_more_digits_than_it_takes():
    X = np.random.default_rng(0).normal(size=(1000, 1))
    ends = [end for _, rule in conditions_of(X).rules for end in rule if end is not None]
    assert np.median([len(repr(abs(end))) for end in ends]) <= 10  # of 18 or so


def test_pixels_of_images_are_columns():
    X = np.random.default_rng(0).random((40, 3, 3))
    (name, rule), mask = conditions_of(X).rules[-1], conditions_of(X).masks[-1]
    assert name == 8
    np.testing.assert_array_equal(region_mask({name: rule}, X), mask)


def test_a_wide_sparse_table_is_not_made_dense():
    with pytest.raises(ValueError, match=r"got csr_array of shape \(200000, 200000\)"):
        conditions_of(csr_array((200_000, 200_000)))
