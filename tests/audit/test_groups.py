"""Groups of samples: every sample in exactly one, under a name that says which."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_matrix, csr_array

from skuq.audit._prediction_audit import MAX_GROUPS, groups_of_columns, named_groups

FRAME = pd.DataFrame({"sex": ["m", "f", "m"], "age": [30, 60, 30], "city": ["Bonn", "Rom", None]})
SEX, AGE = ["sex=m", "sex=f", "sex=m"], ["age=30", "age=60", "age=30"]


def names_of_rows(groupings):
    """Name of the group of each sample, one list per column."""
    return [[grouping.names[code] for code in grouping.codes] for grouping in groupings]


@given(st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "Z", "", "c d"])), min_size=1))
def test_groups_are_named_after_their_value_and_sorted(values):
    (grouping,) = named_groups({"x": np.array(values, object)})
    expected = ["x=missing" if value is None else f"x={value}" for value in values]
    assert names_of_rows([grouping]) == [expected]
    found = sorted({value for value in values if value is not None})
    assert grouping.names[: len(found)] == [f"x={value}" for value in found]
    assert sorted(set(grouping.codes)) == list(range(len(grouping.names)))
    assert grouping.codes.dtype == np.int64


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([True, False], ["x=True", "x=False"]),
        ([3, -1], ["x=3", "x=-1"]),
        ([0.5, np.nan], ["x=0.5", "x=missing"]),
        ([3.0, np.nan], ["x=3", "x=missing"]),
        (pd.Series([3, None], dtype=object), ["x=3", "x=missing"]),
        (pd.Series(["u", None], index=[7, 7]), ["x=u", "x=missing"]),
        (pd.Categorical(["u", None], ["v", "u"]), ["x=u", "x=missing"]),
        (pd.array([True, None], dtype="boolean"), ["x=True", "x=missing"]),
        (pd.to_datetime(["2020-01-31", None]), ["x=2020-01-31T00:00:00", "x=missing"]),
    ],
)
def test_missing_values_of_any_type_are_a_group_of_their_own(values, names):
    ((first, second),) = names_of_rows(named_groups({"x": values}))
    assert first.startswith(names[0]) if "T" in names[0] else first == names[0]
    assert second == names[1]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (None, []),
        ("sex", [SEX]),
        (["sex"], [SEX]),
        (["age", "sex"], [AGE, SEX]),
        (0, [["0=m", "0=f", "0=m"]]),
        ([1, "sex"], [["1=30", "1=60", "1=30"], SEX]),
        ([], []),
        (lambda X: X[["sex", "age"]], [SEX, AGE]),
        (lambda X: {"old": X["age"] > 40}, [["old=False", "old=True", "old=False"]]),
        (lambda X: X["age"] > 40, [["age=False", "age=True", "age=False"]]),
        (lambda X: X["sex"].to_numpy(), [["group=m", "group=f", "group=m"]]),
        (lambda X: list(X["sex"]), [["group=m", "group=f", "group=m"]]),
        (
            lambda X: X[["sex", "age"]].to_numpy(),
            [["group_0=m", "group_0=f", "group_0=m"], ["group_1=30", "group_1=60", "group_1=30"]],
        ),
    ],
)
def test_columns_of_a_data_frame_are_chosen_by_name_position_or_function(groups, expected):
    assert names_of_rows(groups_of_columns(groups, FRAME)) == expected


@pytest.mark.parametrize("convert", [np.array, list, np.float32, csr_array, coo_matrix])
@pytest.mark.parametrize("groups", [1, np.int64(1), [1], -1])
def test_columns_of_an_array_are_chosen_by_position(convert, groups):
    (grouping,) = groups_of_columns(groups, convert([[1, 5], [2, 6], [3, 5]]))
    assert grouping.codes.tolist() == [0, 1, 0]


def test_a_column_may_have_as_many_values_as_allowed_but_not_one_more():
    (grouping,) = named_groups({"id": np.arange(MAX_GROUPS)})
    assert len(grouping.names) == MAX_GROUPS
    with pytest.raises(ValueError, match="Group 'id' has 201 different values, more than 200"):
        named_groups({"id": np.arange(MAX_GROUPS + 1)})


@pytest.mark.parametrize(
    ("groups", "X", "match"),
    [
        ("zip", FRAME, "column 'zip'"),
        (["sex", "zip"], FRAME, "column 'zip'"),
        (5, FRAME, "column 5"),
        (2, np.zeros((3, 2)), r"column 2.*shape \(3, 2\)"),
        ("sex", np.zeros((3, 2)), "'sex'.*position"),
        (lambda X: np.zeros((3, 2, 1)), FRAME, r"'group' must be one-dimensional, got shape \(3"),
        (lambda X: {"x": "f"}, FRAME, r"'x' must be one-dimensional, got shape \(\)"),
        ("a", pd.DataFrame([[1, 2]], columns=["a", "a"]), "'a' must be one-dimensional"),
    ],
)
def test_a_column_that_is_none_is_refused(groups, X, match):
    with pytest.raises(ValueError, match=match):
        groups_of_columns(groups, X)


@pytest.mark.parametrize(
    "columns",
    [
        {"x": np.array(["missing", None], object)},
        {"x": np.array([1, "1"], object)},
        {1: [0, 0], "1": [0, 1]},
        {"x": ["y=z"], "x=y": ["z"]},
    ],
)
def test_two_groups_of_the_same_name_are_refused_not_lost(columns):
    with pytest.raises(ValueError, match="names must differ"):
        named_groups(columns)
