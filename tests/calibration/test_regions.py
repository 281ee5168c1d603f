"""Regions of the inputs: which samples lie in them, and the conditions that define them."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

from skuq.calibration import _conditions, conditions_of, region_mask

PEOPLE = pd.DataFrame({"age": [20.0, 30.0, 40.0, np.nan], "loan size": [1, 2, 3, 4]})
PEOPLE["job"] = ["nurse", "cook", None, "cook"]
ARRAY = np.array([[0.0, 5.0], [1.0, 6.0], [2.0, np.nan], [np.nan, 8.0]])


def inside(region, X):
    mask = region_mask(region, X)
    assert mask.dtype == bool
    assert mask.shape == (len(X),)
    return np.flatnonzero(mask).tolist()


def test_functions_and_queries_say_which_samples_are_inside():
    for convert in (np.asarray, np.ndarray.tolist, pd.Series):
        assert inside(lambda X, convert=convert: convert(X[:, 1] > 5.5), ARRAY) == [1, 3]
    for query, expected in (
        ("age < 35", [0, 1]),
        ("job in ['nurse', 'surgeon']", [0]),
        ("job not in ['nurse', 'cook']", [2]),
        ("`loan size` >= 3 or job == 'nurse'", [0, 2, 3]),
        ("age == age", [0, 1, 2]),
    ):
        assert inside(query, PEOPLE) == expected == PEOPLE.query(query).index.tolist()


@pytest.mark.parametrize(
    ("X", "region", "expected"),
    [
        (ARRAY, {0: (0, 1)}, [0, 1]),  # both ends belong to it
        (ARRAY, {0: (None, 1)}, [0, 1]),
        (ARRAY, {0: (1, None)}, [1, 2]),
        (ARRAY, {0: (None, None)}, [0, 1, 2]),  # a missing value lies in no interval
        (ARRAY, {0: (3, 1)}, []),
        (ARRAY, {0: (1, None), 1: (None, 7)}, [1]),
        (ARRAY, {1: [5.0, 8.0]}, [0, 3]),
        (ARRAY, {1: {5.0, 8.0}}, [0, 3]),
        (ARRAY, {1: [np.nan, 5.0]}, [0, 2]),
        (ARRAY, {-1: (None, 5)}, [0]),
        (ARRAY, {np.int64(0): (np.float32(1), None)}, [1, 2]),
        (PEOPLE, {"age": (30, None)}, [1, 2]),
        (PEOPLE, {"job": "cook"}, [1, 3]),
        (PEOPLE, {"job": ["cook", "nurse"]}, [0, 1, 3]),
        (PEOPLE, {"job": frozenset({"cook"}), "age": (None, 30)}, [1]),
        (PEOPLE, {"job": None}, [2]),
        (PEOPLE, {"job": [None, "nurse"]}, [0, 2]),
        (PEOPLE, {1: (2, 3)}, [1, 2]),
        (PEOPLE, {"job": []}, []),
        (pd.DataFrame({"column": [1, "x", 2, "1"]}), {"column": [1, "x"]}, [0, 1]),
        (pd.DataFrame([[1, 0], [0, 0]], columns=["age", "age"]), {0: (1, 1)}, [0]),
    ],
)
def test_conditions_select_samples_of_arrays_and_of_frames_with_any_index(X, region, expected):
    assert inside(region, X) == expected
    other = X.tolist() if X is ARRAY else X.set_index(pd.Index([7, 7, 1, 0][: len(X)]))
    assert inside(region, other) == expected


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_decimal_ends_belong_to_columns_of_every_precision(dtype):
    column = np.array([[-1.0], [0.1], [0.7]], dtype=dtype)
    for rule, expected in (
        ((None, 0.1), [0, 1]),
        ((0.7, None), [2]),
        ((0.3, 0.7), [2]),
        ((-1e300, 1e300), [0, 1, 2]),
        ([0.1, 0.7], [1, 2]),
        (0.1, [1]),
    ):
        assert inside({0: rule}, column) == expected


@pytest.mark.parametrize("dtype", [None, object, "category", "Int64", "float"])
def test_none_stands_for_a_missing_value_however_pandas_writes_it(dtype):
    values = [1, np.nan, 2] if dtype in ("Int64", "float") else ["x", None, "y"]
    X, first = pd.Series(values, dtype=dtype).to_frame("column"), values[0]
    assert inside({"column": None}, X) == [1]
    assert inside({"column": [None, first]}, X) == [0, 1]
    assert inside({"column": [first]}, X) == [0]
    if first == 1:
        assert inside({"column": (None, 1)}, X) == [0]


@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_a_missing_value_is_outside_whatever_types_pandas_has(backend):
    if backend == "pyarrow":
        pytest.importorskip("pyarrow")
    X = PEOPLE.convert_dtypes(dtype_backend=backend)
    assert (X["age"] < 35).isna().any()
    assert inside("age < 35", X) == inside(lambda X: X["age"] < 35, X) == [0, 1]
    assert inside("age < 35", X[:3]) == [0, 1]


def test_impossible_regions_are_refused():
    dates = pd.DataFrame({"day": pd.to_datetime(["2020-01-31"] * 4)})
    twice = PEOPLE.set_axis(["age", "age", "job"], axis=1)
    for region, X, word in (
        ("age + 1", PEOPLE, "float64"),
        ({"age": (1, 1)}, twice, "have the name"),
        ({7: (0, 1)}, ARRAY, r"no column 7.*\(4, 2\)"),
        ({0: (1, 2, 3)}, ARRAY, "list"),
        ({"job": ("nurse", "cook")}, PEOPLE, None),
        ({"day": (0, 1)}, dates, "interval"),
        (lambda X: X[:, 0] * 2, ARRAY, "float64"),
        (lambda X: X > 1, ARRAY, r"\(4, 2\)"),
        (lambda X: True, ARRAY, r"\(\)"),
    ):
        with pytest.raises(ValueError, match=word):
            region_mask(region, X)
    for region in ("age < 35", {}, 3, None):
        with pytest.raises(TypeError, match="region"):
            region_mask(region, ARRAY)


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


def found_in(X, rows=None):
    """Conditions of a table, each with the mask of the samples that its rule selects."""
    found = conditions_of(X)
    for (name, rule), mask in zip(found.rules, found.masks, strict=True):
        np.testing.assert_array_equal(region_mask({name: rule}, X)[found.rows], mask, err_msg=name)
    return found


def rules_of(X):
    return [rule for _, rule in found_in(X).rules]


def test_every_rule_finds_the_samples_of_its_mask_in_the_table():
    found = found_in(FRAME)
    names = [*FRAME][:-1] + [7]  # names that are no texts could be taken for positions
    assert {name for name, _ in found.rules} == set(names)
    assert found.masks.shape == (len(found.rules), 60)
    rules = {name: [rule for of, rule in found.rules if of == name] for name in names}
    assert set(rules["job"]) == {"nurse", "cook", None}
    assert {None, 1.0} <= set(rules["children"])
    assert set(rules["paid"]) == {True, False}
    assert set(rules["grade"]) == {"a", "b"}


def test_columns_of_arrays_and_of_one_name_are_told_by_position_and_limits_have_few_digits():
    X = np.random.default_rng(0).integers(0, 50, (30, 4))
    expected, images = conditions_of(X), X.reshape(30, 2, 2)  # pixels are columns
    assert [name for name, _ in expected.rules][::60] == [0, 3]
    kinds = [X.astype(np.float32), X.astype(object), X.tolist(), csr_matrix(X), pd.DataFrame(X)]
    for found in map(conditions_of, [*kinds, images]):
        assert found.rules == expected.rules
        np.testing.assert_array_equal(found.masks, expected.masks)
    X = pd.DataFrame([[k, -k, k % 2] for k in range(30)], columns=["x", "x", "y"])
    assert {name for name, _ in found_in(X).rules} == {0, 1, "y"}
    rules = rules_of(np.random.default_rng(0).normal(size=(1000, 1)))
    digits = [len(repr(abs(end))) for rule in rules for end in rule if end is not None]
    assert np.median(digits) <= 10  # of 18 or so


def test_numbers_are_cut_at_values_that_occur_into_equal_parts_and_texts_have_a_limit():
    rules = rules_of(np.random.default_rng(0).permutation(100)[:, None])
    assert rules[::2] == [(None, 10.0 * k - 1) for k in range(1, 10)]
    assert rules[1::2] == [(10.0 * k, None) for k in range(1, 10)]
    for n_columns, expected in ((20, 200), (300, 600)):  # a wide table is cut less often
        wide = np.random.default_rng(0).normal(size=(50, n_columns))
        assert len(conditions_of(wide).rules) == expected
    for values, inner in (([1, 2], []), ([1, 2, 3], [2.0]), ([1, 2, 3, 4], [2.0, 3.0])):
        rules = rules_of(np.array(values * 3)[:, None])
        assert [rule for rule in rules if not isinstance(rule, tuple)] == inner
    for column in ([1, 1], [[1], [2]], [np.nan, 2], [1j, 2j]):
        rules = conditions_of(pd.DataFrame({"x": pd.Series(column)})).rules
        assert not any(isinstance(rule, tuple) for _, rule in rules)
    names = [f"{k}" for k in np.random.default_rng(0).integers(0, 500, 1000)]
    frequent = sorted(dict.fromkeys(names), key=lambda name: -names.count(name))
    assert rules_of(pd.DataFrame({"name": names})) == frequent[:200]  # the first of equal ones
    few = pd.DataFrame({"name": names, **{f"{k}": 0 for k in range(19)}})
    assert rules_of(few) == frequent[:20]
    names = np.repeat(["a", "b", "c", "d"], [12, 10, 9, 2])
    assert conditions_of(pd.DataFrame({"name": names, "x": 0})).left_out == {"name": (2, 11)}


def test_of_many_samples_some_are_taken_always_the_same_ones(monkeypatch):
    X = np.arange(100.0)[:, None]
    monkeypatch.setattr(_conditions, "MAX_SAMPLES", 10)
    found = found_in(X)
    assert len(np.unique(found.rows)) == 10
    assert (np.diff(found.rows) > 0).all()
    assert found.rows.tolist() == conditions_of(X).rows.tolist()
    monkeypatch.setattr(_conditions, "MAX_CELLS", 21)
    assert len(conditions_of(np.zeros((30, 3))).rows) == 7


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
def test_rules_of_close_or_large_numbers_select_the_samples_that_met_them(column):
    assert len(rules_of(pd.DataFrame({"a": [column[k] for k in np.arange(60) % 4]}))) >= 4
