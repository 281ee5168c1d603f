"""Checks of predictions: every wrong input is named, every kind of label is accepted."""

import numpy as np
import pandas as pd
import pytest

from skuq.labels import columns_and_proba
from skuq.metrics import area_under_risk_coverage, misclassification_auroc
from skuq.validation import as_pandas, finite, weights

GOOD = [[0.5, 0.5], [0.2, 0.8]]


@pytest.mark.parametrize(
    ("y_true", "proba", "classes", "message"),
    [
        ([0, 1], [[0.5, np.nan], [0.2, 0.8]], None, r"`proba` must be finite, got \[0.5 nan\]"),
        ([0, 1], [[0.5, np.inf], [0.2, 0.8]], None, "`proba` must be finite"),
        (
            [0, 1],
            pd.DataFrame([[0.5, 0.5], [pd.NA, 0.8]], dtype="Float64"),
            None,
            "`proba` must be finite, got values that are not numbers; drop missing",
        ),
        ([0, 1], [[1.5, -0.5], [0.2, 0.8]], None, "`proba` must be >= 0, got -0.5; pass prob"),
        ([0, 1], [[0.5, 0.5], [0.2, 0.7]], None, "sum to 1 within 0.0001, got 0.9 in row 1"),
        ([0, 1], [0.5, 0.8], None, r"must have shape \(n_samples, n_classes\), got \(2,\)"),
        ([0, 1, 1], GOOD, None, "`y_true`, `proba` must each have one row per sample, got 3, 2"),
        ([], np.empty((0, 2)), None, "`y_true` must not be empty"),
        ([0, 1], np.empty((0, 2)), None, r"`proba` must not be empty, got shape \(0, 2\)"),
        ([0, 0], GOOD, None, "`proba` has 2 columns, but `y_true` has 1 labels; pass `classes="),
        ([0, 1], GOOD, [0, 1, 2], "`proba` has 2 columns, but `classes` has 3 labels"),
        ([0, 1], GOOD, [1, 1], r"`classes` must not repeat a label, got \[1, 1\]"),
        ([0, 7], GOOD, [0, 1], r"labels that are not among the classes: \[7\] not in \[0, 1\]"),
        ([0, 1], GOOD, ["a", "b"], r"labels that are not among the classes: \[0, 1\]"),
        (["a", "b"], GOOD, [0, 1], r"labels that are not among the classes: \['a', 'b'\]"),
        ([0, 1], GOOD, [[0], [1]], r"`classes` must be one-dimensional, got shape \(2, 1\)"),
        ([[0], [1]], GOOD, None, r"`y_true` must be one-dimensional, got shape \(2, 1\)"),
        ([0, np.nan], GOOD, [0, 1], "`y_true` must hold only numbers, booleans or strings"),
        (["a", None], GOOD, ["a", "b"], "`y_true` must hold only .* got missing or other"),
        (
            np.array(["a", np.nan], dtype=object),
            GOOD,
            ["a", "b"],
            "`y_true` must hold only .* got missing or other",
        ),
        (np.array(["a", pd.NA], dtype=object), GOOD, ["a", "b"], "`y_true` must hold only"),
    ],
)
def test_wrong_probability_inputs_are_named(y_true, proba, classes, message):
    with pytest.raises(ValueError, match=message):
        columns_and_proba(y_true, proba, classes)


@pytest.mark.parametrize(
    ("y_true", "y_pred", "uncertainty", "message"),
    [
        ([0, 1], [0, 0], [0.1, np.nan], "`uncertainty` must be finite, got nan in row 1"),
        ([0, 1], [0, 0], [-np.inf, 1], "`uncertainty` must be finite, got -inf in row 0"),
        ([0, 1], [0, 0], [[0.1], [0.2]], r"`uncertainty` must be one-dimensional, got .*\(2, 1\)"),
        ([0, 1], [0, 0], [0.1], "`y_true`, `y_pred`, `uncertainty` must .* got 2, 2, 1 rows"),
        ([0, 1], [0], [0.1, 0.2], "got 2, 1, 2 rows"),
        ([], [], [], "`y_true` must not be empty"),
        ([0, 1], [0, np.nan], [0.1, 0.2], "`y_pred` must hold only numbers, booleans or strings"),
        (["a", "b"], [0, 1], [0.1, 0.2], "`y_true` has labels of dtype <U1 .* in the same form"),
    ],
)
def test_wrong_selective_inputs_are_named(y_true, y_pred, uncertainty, message):
    with pytest.raises(ValueError, match=message):
        area_under_risk_coverage(y_true, y_pred, uncertainty)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "`score` must not be empty"),
        ([0.1, np.nan], "`score` must be finite, got nan in row 1"),
        ([0.1, pd.NA], "`score` must be finite, got values that are not numbers"),
        ([[0.1]], "`score` must be one-dimensional"),
    ],
)
def test_a_score_that_is_not_finite_or_not_a_column_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        finite(values, "score")


@pytest.mark.parametrize("labels", [[0, 1, 0], ["a", "b", "a"]])
def test_samples_of_weight_0_are_left_out(labels):
    first = labels[0]
    given = labels, [first] * 3, [0.1, 0.2, 0.3]
    assert misclassification_auroc(*given, sample_weight=[0.0, 2.0, 0.5]) == 0.0
    assert misclassification_auroc(*given) == 0.5


@pytest.mark.parametrize(
    ("sample_weight", "message"),
    [
        ([1.0], "must have one weight per sample, got 1 weights for 2 samples"),
        ([-1, 2], "must be >= 0 and not all 0, got weights from -1 to 2"),
        ([0, 0], "must be >= 0 and not all 0, got weights from 0 to 0"),
        ([0, np.nan], "must be finite, got nan in row 1"),
    ],
)
def test_wrong_sample_weights_are_named(sample_weight, message):
    with pytest.raises(ValueError, match=f"^`sample_weight` {message}"):
        weights(sample_weight, 2)


CODES = np.array([0, 2, 1, 1, 0])


@pytest.mark.parametrize(
    "spell",
    [
        lambda y: np.array(["ant", "bee", "cat"])[y],
        lambda y: np.array(["ant", "bee", "cat"], dtype=object)[y],
        lambda y: pd.Series(["ant", "bee", "cat"])[y],
        lambda y: pd.Categorical.from_codes(y, ["ant", "bee", "cat"]),
        lambda y: y + 0.5,
        lambda y: y.tolist(),
    ],
    ids=["str", "object", "Series", "Categorical", "float", "list"],
)
def test_labels_of_any_type_have_the_column_of_their_rank(spell):
    column, *_ = columns_and_proba(spell(CODES), np.full((5, 3), 1 / 3), None)
    np.testing.assert_array_equal(column, CODES)


def test_classes_give_the_column_order_and_may_be_more_than_the_labels():
    names = np.array(["cat", "ant", "bee"])
    column, *_ = columns_and_proba(["bee", "cat", "bee"], np.full((3, 3), 1 / 3), names)
    assert column.tolist() == [2, 0, 2]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_float32_softmax_over_many_classes_is_accepted_and_its_dtype_kept(dtype):
    logits = np.random.default_rng(0).normal(size=(50, 5000)).astype(dtype)
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    _, checked, _ = columns_and_proba(np.arange(50), proba, range(5000))
    assert checked.dtype == dtype


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_categories_and_time_zones_of_other_libraries_are_kept(library):
    imported = pytest.importorskip(library)
    times = pd.date_range("2026-03-29", periods=3, freq="h", tz="Europe/Berlin")
    frame = pd.DataFrame(
        {"town": pd.Categorical(["Ulm", None, "Linz"]), "n": [1, 2, 3], "seen": times}
    )
    if library == "pyarrow":
        table = imported.Table.from_pandas(frame)
    else:
        kinds = {"town": imported.Categorical, "seen": imported.Datetime("us", "Europe/Berlin")}
        values = {"town": ["Ulm", None, "Linz"], "n": [1, 2, 3], "seen": times.tolist()}
        table = imported.DataFrame(values, schema_overrides=kinds)
        listed = table.with_columns(imported.col("town").cast(imported.Enum(["Ulm", "Linz"])))
        assert as_pandas(listed)["town"].cat.categories.tolist() == ["Ulm", "Linz"]
    found = as_pandas(table)
    assert found["seen"].tolist() == times.tolist()
    assert found["seen"].dt.hour.tolist() == [0, 1, 3]
    pd.testing.assert_series_equal(
        found["town"], frame["town"], check_dtype=False, check_categorical=False
    )
    assert isinstance(found["town"].dtype, pd.CategoricalDtype)
    assert as_pandas(frame) is frame


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decimals", [2, 3, 4])
def test_rows_may_differ_from_1_by_the_rounding_of_all_their_values(decimals, dtype):
    proba = np.random.default_rng(0).dirichlet(np.ones(3), size=500)
    rounded = proba.round(decimals).astype(dtype)
    assert np.abs(rounded.sum(axis=1) - 1).max() > 0.9 * 10**-decimals
    labels = np.arange(500) % 3
    np.testing.assert_array_equal(columns_and_proba(labels, rounded, None).proba, rounded)
    wrong = proba.round(decimals)
    wrong[7] += [4 * 10**-decimals, 0, 0]
    with pytest.raises(ValueError, match=r"sum to 1 within 0.0*15, got .* in row 7"):
        columns_and_proba(labels, wrong.round(decimals).astype(dtype), None)
    rounded[0] = proba[0]  # a value with all its digits
    with pytest.raises(ValueError, match=r"sum to 1 within 0.0001, got"):
        columns_and_proba(labels, rounded, None)


def test_rounding_of_many_classes_does_not_excuse_a_missing_one():
    proba = np.full((4, 200), 0.01)
    proba[:, 100:] = 0.0
    columns_and_proba(np.arange(4), proba, np.arange(200))
    proba[:, :10] = 0.0
    with pytest.raises(ValueError, match=r"sum to 1 within 0.05, got 0.9 in row 0"):
        columns_and_proba(np.arange(4), proba, np.arange(200))
