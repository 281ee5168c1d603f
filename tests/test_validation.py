"""Checks of labels and predictions: wrong input is named, every kind of label is accepted."""

import traceback
import warnings
from functools import partial
from inspect import signature

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

import skuq
from skuq.labels import as_text, codes_of, columns_and_proba
from skuq.metrics import area_under_risk_coverage, misclassification_auroc
from skuq.validation import as_pandas, finite, finite_columns, weights

TYPED = [
    *(np.array(["cat", "ant", "bee"]), np.array([7, -1, 3]), np.array([True, False])),
    *(np.array([7.5, -1.0, 3.0], np.float32), np.array([None, 1, "a"], object)),
]


@pytest.mark.parametrize("classes", TYPED, ids=lambda classes: str(classes.dtype))
def test_codes_are_positions_among_the_classes(classes):
    codes = np.array([1, 0, 0, len(classes) - 1])
    found = codes_of(classes[codes], classes, "y")
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, codes)
    np.testing.assert_array_equal(codes_of(classes[:0], classes, "y"), [])


def test_numbers_of_another_type_are_the_same_labels_and_texts_and_large_ones_differ():
    np.testing.assert_array_equal(codes_of(np.array([2.0, 0.0]), np.arange(3), "y"), [2, 0])
    texts = np.array(["b", "a"], object)
    np.testing.assert_array_equal(codes_of(texts, np.array(["a", "b"]), "y"), [1, 0])
    for one, other in ((np.uint64, np.int64), (np.int64, np.uint64)):
        classes = np.array([2**60, 2**60 + 1, 3], other)
        found = codes_of(np.array([2**60 + 1, 3, 2**60], one), classes, "y")
        np.testing.assert_array_equal(found, [1, 2, 0])
        with pytest.raises(ValueError, match=rf"\[{2**60 + 2}\] not in"):
            codes_of(np.array([2**60 + 2], one), classes, "y")
    assert [as_text(each) for each in (3, 3.0, np.float32(3), 3.5, "a")] == [*"333", "3.5", "a"]


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0, 7, 9, 7], [0, 1], r"`y_val` .* \[7, 9\] not in \[0, 1\]"),
        ([np.nan, 1.0], [0.0, 1.0], r"\[nan\] not in"),
        (["1"], [0, 1], r"\['1'\] not in \[0, 1\]"),
        ([1], ["0", "1"], r"\[1\] not in \['0', '1'\]"),
        (["z"], list("abcdefg"), r"not in \['a', 'b', 'c', 'd', 'e'\] \.\.\."),
    ],
)
def test_labels_that_are_not_among_the_classes_are_named(labels, classes, message):
    with pytest.raises(ValueError, match=message):
        codes_of(np.array(labels), np.array(classes), "y_val")


GOOD = [[0.5, 0.5], [0.2, 0.8]]
MISSING = pd.DataFrame([[0.5, 0.5], [pd.NA, 0.8]], dtype="Float64")


@pytest.mark.parametrize(
    ("y_true", "proba", "classes", "message"),
    [
        ([0, 1], [[0.5, np.nan], [0.2, 0.8]], None, r"`proba` .*finite, got \[0.5 nan\]"),
        ([0, 1], [[0.5, np.inf], [0.2, 0.8]], None, "`proba` .*finite"),
        ([0, 1], MISSING, None, "`proba` .*finite"),
        ([0, 1], [[1.5, -0.5], [0.2, 0.8]], None, "`proba` .* got -0.5"),
        ([0, 1], [[0.5, 0.5], [0.2, 0.7]], None, "got 0.9 in row 1"),
        ([0, 1], [0.5, 0.8], None, r"`proba` .*shape"),
        ([0, 1, 1], GOOD, None, "`y_true`, `proba` .*got 3, 2"),
        ([], np.empty((0, 2)), None, "`y_true` .*empty"),
        ([0, 1], np.empty((0, 2)), None, "`proba` .*empty"),
        ([0, 0], GOOD, None, "`proba` has 2 columns, .* `classes="),
        ([0, 1], GOOD, [0, 1, 2], "`classes` has 3 labels"),
        ([0, 1], GOOD, [1, 1], r"`classes` .*repeat"),
        ([0, 7], GOOD, [0, 1], r"\[7\] not in \[0, 1\]"),
        ([0, 1], GOOD, ["a", "b"], r"\[0, 1\] not in"),
        (["a", "b"], GOOD, [0, 1], r"\['a', 'b'\] not in"),
        ([0, 1], GOOD, [[0], [1]], "`classes` .*one-dimensional"),
        ([[0], [1]], GOOD, None, "`y_true` .*one-dimensional"),
        ([0, np.nan], GOOD, [0, 1], "`y_true` .*missing"),
        (["a", None], GOOD, ["a", "b"], "`y_true` .*missing"),
        (np.array(["a", np.nan], dtype=object), GOOD, ["a", "b"], "`y_true` .*missing"),
        (np.array(["a", pd.NA], dtype=object), GOOD, ["a", "b"], "`y_true` .*missing"),
    ],
)
def test_wrong_probability_inputs_are_named(y_true, proba, classes, message):
    with pytest.raises(ValueError, match=message):
        columns_and_proba(y_true, proba, classes)


@pytest.mark.parametrize(
    ("call", "args", "message"),
    [
        (area_under_risk_coverage, ([0, 1], [0, 0], [0.1, np.nan]), "`uncertainty` .*row 1"),
        (area_under_risk_coverage, ([0, 1], [0, 0], [-np.inf, 1]), "`uncertainty` .*row 0"),
        (area_under_risk_coverage, ([0, 1], [0, 0], [[0.1], [0.2]]), "`uncertainty` .*dimension"),
        (area_under_risk_coverage, ([0, 1], [0, 0], [0.1]), "`uncertainty` .* 2, 2, 1"),
        (area_under_risk_coverage, ([0, 1], [0], [0.1, 0.2]), "2, 1, 2"),
        (area_under_risk_coverage, ([], [], []), "`y_true` .*empty"),
        (area_under_risk_coverage, ([0, 1], [0, np.nan], [0.1, 0.2]), "`y_pred` .*missing"),
        (area_under_risk_coverage, (["a", "b"], [0, 1], [0.1, 0.2]), "`y_true` .*same form"),
        (finite, ([], "score"), "`score` .*empty"),
        (finite, ([0.1, np.nan], "score"), "`score` .*nan in row 1"),
        (finite, ([0.1, pd.NA], "score"), "`score` .*not numbers"),
        (finite, ([[0.1]], "score"), "`score` .*one-dimensional"),
        (finite_columns, ([[0.1, np.inf], [0, 0]], "score"), "`score` .*inf in row 0"),
        (weights, ([1.0], 2), "^`sample_weight` .*1 weights for 2"),
        (weights, ([-1, 2], 2), "^`sample_weight` .*from -1 to 2"),
        (weights, ([0, 0], 2), "^`sample_weight` .*from 0 to 0"),
        (weights, ([0, np.nan], 2), "^`sample_weight` .*row 1"),
        *((weights, ([huge, huge, 1.0], 3), "sum of `sample_weight`") for huge in (1e300, 1e308)),
    ],
)
def test_wrong_columns_and_weights_are_named(call, args, message):
    with pytest.raises(ValueError, match=message):
        call(*args)


def test_samples_of_weight_0_are_left_out():
    given = ["a", "b", "a"], ["a", "a", "a"], [0.1, 0.2, 0.3]
    assert misclassification_auroc(*given, sample_weight=[0.0, 2.0, 0.5]) == 0.0
    assert misclassification_auroc(*given) == 0.5


CODES = np.array([0, 2, 1, 1, 0])


def test_labels_of_any_type_have_the_column_of_their_rank():
    names = np.array(["ant", "bee", "cat"])
    spelt = [names[CODES], names.astype(object)[CODES], pd.Series(names)[CODES], CODES.tolist()]
    for labels in [*spelt, pd.Categorical.from_codes(CODES, names), CODES + 0.5]:
        column, *_ = columns_and_proba(labels, np.full((5, 3), 1 / 3), None)
        np.testing.assert_array_equal(column, CODES)
    # Classes give the order of the columns, and may be more than the labels.
    column, *_ = columns_and_proba(["bee", "cat", "bee"], np.full((3, 3), 1 / 3), names[[2, 0, 1]])
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
    towns = pd.Categorical(["Ulm", None, "Linz"])
    frame = pd.DataFrame({"town": towns, "n": [1, 2, 3], "seen": times})
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
    alike = {"check_dtype": False, "check_categorical": False}
    pd.testing.assert_series_equal(found["town"], frame["town"], **alike)
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
    with pytest.raises(ValueError, match=r"within 0.0*15, .* row 7"):
        columns_and_proba(labels, wrong.round(decimals).astype(dtype), None)
    rounded[0] = proba[0]  # a value with all its digits
    with pytest.raises(ValueError, match=r"within 0.0001"):
        columns_and_proba(labels, rounded, None)


def test_rounding_of_many_classes_does_not_excuse_a_missing_one():
    proba = np.full((4, 200), 0.01)
    proba[:, 100:] = 0.0
    columns_and_proba(np.arange(4), proba, np.arange(200))
    proba[:, :10] = 0.0
    with pytest.raises(ValueError, match=r"within 0.05, .* row 0"):
        columns_and_proba(np.arange(4), proba, np.arange(200))


ROWS = np.random.default_rng(0).normal(size=(60, 3))
SIGNS = (ROWS[:, 0] > 0).astype(int)
TABLE = pd.DataFrame(ROWS, columns=list("abc"))
HOLED = np.where(np.arange(3) == 1, np.nan, ROWS)
INPUTS = {"boolean": ROWS > 0, "reversed": ROWS[::-1], "vector": ROWS[:, 0], "empty": ROWS[:0]}
INPUTS |= {"list": ROWS.tolist(), "objects": ROWS.astype(object), "complex": ROWS + 0j}
INPUTS |= {"images": ROWS[:, :, None], "huge": ROWS * 1e300, "missing": HOLED}
INPUTS |= {"dates": ROWS.astype("datetime64[s]"), "texts": np.full((60, 3), "a")}
INPUTS |= {"sparse": csr_matrix(ROWS), "none": None, "text": "abc", "ragged": [[1, 2], [3]] * 30}
INPUTS |= {"frame": TABLE, "booleans": TABLE > 0, "nullable": TABLE.convert_dtypes()}
INPUTS |= {"numbered": pd.DataFrame(ROWS), "series": TABLE["a"]}
INPUTS |= {"equal names": TABLE.set_axis(list("aab"), axis=1)}
INPUTS |= {"date": TABLE.assign(a=pd.Timestamp("2020-01-01"))}
INPUTS |= {"category": TABLE.assign(c=pd.Categorical(list("xy") * 30))}
WORDS = np.array(["no", "yes"])[SIGNS]
LABELS = {"texts": WORDS, "boolean": SIGNS > 0, "one": np.zeros(60, int), "short": SIGNS[1:]}
LABELS |= {"None": np.where(np.arange(60) == 4, None, WORDS), "column": SIGNS[:, None]}
LABELS |= {"none": None, "mixed": np.where(np.arange(60) == 4, 3, WORDS.astype(object))}
LABELS |= {"complex": SIGNS + 0j, "missing": np.where(np.arange(60) == 4, np.nan, SIGNS)}
LABELS |= {"sparse": csr_matrix(SIGNS[None]), "category": pd.Categorical(WORDS)}
LABELS |= {"nullable": pd.Series(SIGNS, dtype="Int64"), "empty": []}
FROZEN = FrozenEstimator(LogisticRegression().fit(ROWS, SIGNS))
METHODS = ("predict", "predict_proba", "predict_uncertainty", "predict_interval")
METHODS += ("score_samples", "p_values", "decision_function", "explain")
# Inputs of the same values, so that the answers must be equal.
EQUAL = ("frame", "objects", "list", "nullable", "numbered", "sparse")
# Sentences of a learner or of scikit-learn's wrappers around it.
OF_OTHERS = ("could not convert string to float", "Unable to convert array of bytes/strings")


def tried(estimator):
    """Number of calls, of those refused in a sentence, raw errors, and wrong answers."""
    calls = [("fit", X, None, partial(clone(estimator).fit, X, SIGNS)) for X in INPUTS.values()]
    calls += [("fit", y, None, partial(clone(estimator).fit, ROWS, y)) for y in LABELS.values()]
    for fitted in (clone(estimator).fit(X, SIGNS) for X in (ROWS, TABLE)):
        for method in (getattr(fitted, name) for name in METHODS if hasattr(fitted, name)):
            if [*signature(method).parameters] != ["X"]:
                continue
            for name, X in INPUTS.items():
                same = method(ROWS) if name in EQUAL else None
                calls.append((method.__name__, name, same, partial(method, X)))
    refused, raw, wrong = 0, [], []
    for method, name, expected, call in calls:
        try:
            found = call()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1].filename
            own = "/skuq/" in where or "/sklearn/" in where or str(error).startswith(OF_OTHERS)
            if isinstance(error, ValueError | TypeError) and own:
                refused += 1
            else:
                raw.append((method, name, error))
        else:
            if expected is not None and not equal(found, expected):
                wrong.append((method, name))
    return len(calls), refused, raw, wrong


def equal(found, expected):
    if isinstance(found, pd.DataFrame):
        found, expected = found.select_dtypes("number"), expected.select_dtypes("number")
    both = [np.asarray(getattr(each, "contribution", each)) for each in (found, expected)]
    if both[0].dtype.kind == "f":
        return np.allclose(*both, rtol=1e-4, atol=1e-5, equal_nan=True)
    return np.mean(both[0] == both[1]) > 0.95


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "estimator",
    [
        *(skuq.OODDetector(FROZEN), skuq.CalibrationAuditor(FROZEN), skuq.RobustGPC()),
        *(skuq.CalibrationAuditor(LogisticRegression()), skuq.ReferenceClassifier(FROZEN)),
    ],
    ids=lambda each: f"{type(each).__name__} {type(getattr(each, 'estimator', None)).__name__}",
)
def test_ordinary_input_is_accepted_or_refused_in_a_sentence(estimator):
    assert tried(estimator)[2:] == ([], [])


if __name__ == "__main__":  # the table of all built-in estimators: python -m tests.test_validation
    from tests.test_common import FIRST

    warnings.simplefilter("ignore")
    total = np.zeros(4, int)
    for each in FIRST:
        if "random_state" in each.get_params():
            each.set_params(random_state=0)
        n, refused, raw, wrong = tried(each)
        total += n, refused, len(raw), len(wrong)
        print(f"{type(each).__name__:28}{n:7}{refused:7}{len(raw):5}{len(wrong):5}", *raw, *wrong)
    print(f"{'calls, refused, raw, wrong':28}{total[0]:7}{total[1]:7}{total[2]:5}{total[3]:5}")
