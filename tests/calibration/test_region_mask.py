"""Regions: which samples lie in them, however they are described."""

import numpy as np
import pandas as pd
import pytest

from skuq.calibration import region_mask

FRAME = pd.DataFrame(
    {
        "age": [20.0, 30.0, 40.0, np.nan],
        "loan size": [1, 2, 3, 4],
        "job": ["nurse", "cook", None, "cook"],
    }
)
ARRAY = np.array([[0.0, 5.0], [1.0, 6.0], [2.0, np.nan], [np.nan, 8.0]])


def inside(region, X):
    mask = region_mask(region, X)
    assert mask.dtype == bool
    assert mask.shape == (len(X),)
    return np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    "region",
    [
        lambda X: X[:, 1] > 5.5,
        lambda X: (X[:, 1] > 5.5).tolist(),
        lambda X: pd.Series(X[:, 1] > 5.5),
    ],
)
def test_function_says_which_samples_are_inside(region):
    assert inside(region, ARRAY) == [1, 3]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("age < 35", [0, 1]),
        ("age < 35 and job == 'cook'", [1]),
        ("job in ['nurse', 'surgeon']", [0]),
        ("job not in ['nurse', 'cook']", [2]),
        ("`loan size` >= 3 or job == 'nurse'", [0, 2, 3]),
        ("age == age", [0, 1, 2]),
    ],
)
def test_query_selects_what_pandas_selects(query, expected):
    assert inside(query, FRAME) == expected
    assert FRAME.query(query).index.tolist() == expected


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ({0: (0, 1)}, [0, 1]),  # both ends belong to it
        ({0: (0.5, 1.5)}, [1]),
        ({0: (None, 1)}, [0, 1]),
        ({0: (1, None)}, [1, 2]),
        ({0: (None, None)}, [0, 1, 2]),  # a missing value lies in no interval
        ({0: (-np.inf, np.inf)}, [0, 1, 2]),
        ({0: (1.0, 1.0)}, [1]),
        ({0: (3, 1)}, []),
        ({0: (1, None), 1: (None, 7)}, [1]),
        ({1: 6}, [1]),
        ({1: [5.0, 8.0]}, [0, 3]),
        ({1: {5.0, 8.0}}, [0, 3]),
        ({-1: (None, 5)}, [0]),
        ({np.int64(0): (np.float32(1), None)}, [1, 2]),
    ],
)
def test_conditions_on_positions_of_an_array(region, expected):
    assert inside(region, ARRAY) == expected
    assert inside(region, ARRAY.tolist()) == expected


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ((None, 0.1), [0, 1]),
        ((0.7, None), [2]),
        ((0.3, 0.7), [2]),
        ((-1e300, 1e300), [0, 1, 2]),
        ([0.1, 0.7], [1, 2]),
        (0.1, [1]),
    ],
)
def test_decimal_ends_belong_to_columns_of_every_precision(rule, expected, dtype):
    assert inside({0: rule}, np.array([[-1.0], [0.1], [0.7]], dtype=dtype)) == expected


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ({"age": (30, None)}, [1, 2]),
        ({"age": (None, None)}, [0, 1, 2]),
        ({"job": "cook"}, [1, 3]),
        ({"job": ["cook", "nurse"]}, [0, 1, 3]),
        ({"job": frozenset({"cook"}), "age": (None, 30)}, [1]),
        ({"job": None}, [2]),
        ({"job": [None, "nurse"]}, [0, 2]),
        ({"loan size": (2, 3)}, [1, 2]),
        ({1: (2, 3)}, [1, 2]),
        ({"job": []}, []),
    ],
)
def test_conditions_on_columns_of_a_frame(region, expected):
    assert inside(region, FRAME) == expected


MISSING = {
    "text": pd.Series(["x", None, "y"]),
    "object": pd.Series(["x", np.nan, "y"], dtype=object),
    "category": pd.Series(["x", None, "y"], dtype="category"),
    "integer": pd.Series([1, pd.NA, 2], dtype="Int64"),
    "float": pd.Series([1.0, np.nan, 2.0]),
}


@pytest.mark.parametrize("kind", MISSING)
def test_none_stands_for_a_missing_value_however_pandas_writes_it(kind):
    X = MISSING[kind].to_frame("column")
    first = X["column"].iloc[0]
    assert inside({"column": None}, X) == [1]
    assert inside({"column": [None, first]}, X) == [0, 1]
    assert inside({"column": [first]}, X) == [0]
    if kind in ("integer", "float"):
        assert inside({"column": (None, 1)}, X) == [0]


@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_a_missing_value_is_outside_whatever_types_pandas_has(backend):
    if backend == "pyarrow":
        pytest.importorskip("pyarrow")
    X = FRAME.convert_dtypes(dtype_backend=backend)
    assert (X["age"] < 35).isna().any()
    assert inside("age < 35", X) == inside(lambda X: X["age"] < 35, X) == [0, 1]
    assert inside("age < 35", X[:3]) == [0, 1]


def test_a_name_of_two_columns_is_refused_and_their_positions_are_not():
    X = pd.DataFrame([[1, 0], [0, 0]], columns=["age", "age"])
    with pytest.raises(ValueError, match="have this name"):
        region_mask({"age": (1, 1)}, X)
    assert inside({0: (1, 1)}, X) == [0]


@pytest.mark.parametrize("column", [FRAME["job"], pd.to_datetime(["2020-01-31"] * 4)])
def test_interval_of_what_is_no_number_is_refused(column):
    with pytest.raises(ValueError, match=r"column of|could not convert"):
        region_mask({"column": (0, 1)}, pd.DataFrame({"column": column}))


def test_index_of_a_frame_does_not_matter():
    shuffled = FRAME.set_index(pd.Index([7, 7, 1, 0]))
    assert inside({"age": (30, None)}, shuffled) == inside("age >= 30", shuffled) == [1, 2]


@pytest.mark.parametrize(
    ("region", "X", "message"),
    [
        ("age + 1", FRAME, r"must select samples by booleans of shape \(4,\).* got float64"),
        ({"height": (0, 1)}, FRAME, r"no column 'height'; it has columns \['age', 'loan size'"),
        ({7: (0, 1)}, FRAME, "no column 7; it has columns"),
        ({7: (0, 1)}, ARRAY, r"no column 7; it has shape \(4, 2\)"),
        ({"age": (0, 1)}, ARRAY, "'age' is a name, but X has no column names; pass the position"),
        ({0: (1, 2, 3)}, ARRAY, "pass several values as a list"),
        ({"job": ("nurse", "cook")}, FRAME, "could not convert"),
        (lambda X: X[:, 0] * 2, ARRAY, "got float64 of shape"),
        (lambda X: np.array([0, 1, 0, 1]), ARRAY, "got int64 of shape"),
        (lambda X: X > 1, ARRAY, r"of shape \(4,\), one per sample, got bool of shape \(4, 2\)"),
        (lambda X: np.array([True]), ARRAY, r"got bool of shape \(1,\)"),
        (lambda X: True, ARRAY, r"got bool of shape \(\)"),
    ],
)
def test_impossible_regions_are_refused(region, X, message):
    with pytest.raises(ValueError, match=message):
        region_mask(region, X)


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ("age < 35", "for a ndarray"),
        ({}, r"non-empty mapping of columns .* got \{\}"),
        (3, "`region` must be a callable.*got 3"),
        (None, "`region` must be .*got None"),
    ],
)
def test_what_describes_no_region_is_refused(region, message):
    with pytest.raises(TypeError, match=message):
        region_mask(region, ARRAY)


@pytest.mark.parametrize("values", [[1, "x"], {1, "x"}])
def test_values_of_several_types_are_all_meant(values):
    X = pd.DataFrame({"column": [1, "x", 2, "1"]})
    np.testing.assert_array_equal(region_mask({"column": values}, X), [True, True, False, False])


def test_not_a_number_among_the_values_means_missing():
    X = pd.DataFrame({"column": [1.0, np.nan, 2.0]})
    np.testing.assert_array_equal(region_mask({"column": [np.nan]}, X), [False, True, False])
