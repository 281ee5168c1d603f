"""Predictions out of a table: the order of columns, and errors that name row and column."""

import numpy as np
import pandas as pd
import pytest

from skuq.audit import CalibrationAuditor, audit_files, recorded_predictions


def mapped(labels, proba, classes=None):
    """Predictions of a table of equal probabilities."""
    share = 1 / len(proba) if len(proba) > 1 else 0.25
    table = pd.DataFrame({"y": labels, **dict.fromkeys(proba, share)})
    return recorded_predictions(table, "y", proba, classes)


@pytest.mark.parametrize(
    ("labels", "proba", "classes", "expected"),
    [
        ([1, 0], ["p0", "p1"], None, ["0", "1"]),
        (pd.Categorical(["a", "b"], categories=["b", "a"]), ["x", "z"], None, ["a", "b"]),
        (pd.Categorical([9, 10], ordered=True, categories=[10, 9]), ["x", "z"], None, ["9", "10"]),
        (["no", "yes"], ["left", "right"], None, ["no", "yes"]),
        ([0.0, 1.0], ["a", "b"], None, ["0", "1"]),
        ([True, False], ["pFalse", "pTrue"], None, ["False", "True"]),
        ([10, 9, 8], ["p0", "p1", "p2"], None, ["8", "9", "10"]),  # sorted as numbers
        ([10, 0, 1], ["p0", "p1", "p10"], None, ["0", "1", "10"]),
        ([-1, 1], ["p_-1", "p_1"], None, ["-1", "1"]),
        (["ill", "not ill"], ["p_ill", "p_not_ill"], None, ["ill", "not ill"]),
        ([0, 1], ["p0", "p1"], ["1", "0"], ["1", "0"]),
        (["a", "a"], ["x", "z"], ["b", "a"], ["b", "a"]),
    ],
)
def test_columns_are_in_the_order_of_the_sorted_labels_or_of_the_classes(
    labels, proba, classes, expected
):
    recorded = mapped(labels, proba, classes)
    assert recorded.classes == expected
    pairs = [f"{name} -> {text}" for name, text in zip(proba, expected, strict=True)]
    assert recorded.note == ", ".join(pairs)


@pytest.mark.parametrize(
    ("labels", "name", "classes", "expected"),
    [
        ([0, 1], "score", None, ["0", "1"]),
        (["no", "yes"], "p_yes", None, ["no", "yes"]),
        (["no", "yes"], "p_no", ["yes", "no"], ["yes", "no"]),
    ],
)
def test_a_single_column_is_the_probability_of_the_last_of_two_labels(
    labels, name, classes, expected
):
    table = pd.DataFrame({"y": labels, name: [0.25, 0.75]})
    recorded = recorded_predictions(table, "y", [name], classes)
    assert recorded.classes == expected
    assert recorded.note == f"{name} -> {expected[1]}, the rest to 1 -> {expected[0]}"
    np.testing.assert_array_equal(recorded.proba[:, 1], [0.25, 0.75])


@pytest.mark.parametrize(
    ("labels", "proba"),
    [
        ([0, 1], ["p1", "p0"]),
        ([0, 1], ["p1", "p2"]),
        (["no", "yes"], ["p_yes", "p_no"]),
        (["No", "Yes"], ["p_yes", "p_no"]),
        (["ill", "not ill"], ["p_not_ill", "p_ill"]),
        ([0, 1], ["p0"]),
        (["happy", "sad"], ["unhappy"]),
        ([9, 10, 0], ["p0", "p10", "p9"]),
    ],
)
def test_a_column_with_the_name_of_another_label_is_refused(labels, proba):
    with pytest.raises(ValueError, match=r"sorted labels \(.*\), but its name .*`classes`"):
        mapped(labels, proba)
    named = [str(label) for label in sorted(labels)]
    assert mapped(labels, proba, named).classes == named  # what is stated is not doubted


@pytest.mark.parametrize(
    ("labels", "proba", "classes", "message"),
    [
        (["a", "b", "c"], ["x", "y1"], None, r"columns x, y1 and 3 labels \(a, b, c\)"),
        (["a", "b", "c"], ["p"], None, "and 3 labels .* only two labels, one"),
        (["a", "a"], ["p"], None, "and 1 label "),
        ([0, 1], ["p0", "p1"], ["0"], "and 1 label "),
        ([0, 1], ["p0", "p1"], ["0", "0"], "The classes must differ, got 0, 0"),
        ([0, 1], ["p0", "p1"], ["0", "2"], "Label '1' in row 2 .* none of the classes 0, 2"),
        ([0, 1], ["p0", "p0"], None, "Column 'p0' is named twice"),
    ],
)
def test_columns_that_do_not_match_the_labels_are_refused(labels, proba, classes, message):
    with pytest.raises(ValueError, match=message):
        mapped(labels, proba, classes)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("p0", None, r"Column 'p0' must hold probabilities in \[0, 1\], got nothing in row 3 "),
        ("p0", "-0.1", "Column 'p0' must hold .* got '-0.1' in row 3 "),
        ("p1", "1.5", "Column 'p1' must hold .* got '1.5' in row 3 "),
        ("p1", "inf", "got 'inf' in row 3 "),
        ("p1", "half", "got 'half' in row 3 "),
        ("p1", "0", "The probabilities in row 3 .* sum to 0.75"),
        ("y", None, "Column 'y' has no label in 1 row, first in row 3 "),
    ],
)
def test_the_row_of_a_bad_value_is_named(column, value, message):
    table = pd.DataFrame({"y": list("abab"), "p0": ["0.75"] * 4, "p1": ["0.25"] * 4})
    table.loc[2, column] = value
    with pytest.raises(ValueError, match=message):
        recorded_predictions(table, "y", ["p0", "p1"])


def rounded_table(decimals, n_rows=200):
    proba = np.random.default_rng(0).dirichlet(np.ones(3), size=n_rows).round(decimals)
    columns = {f"p({label})": proba[:, k] for k, label in enumerate("abc")}
    return pd.DataFrame({"y": list("abcb") * (n_rows // 4), **columns})


@pytest.mark.parametrize("decimals", [2, 3, 4])
def test_rounded_probabilities_are_audited_as_recorded(tmp_path, monkeypatch, decimals):
    table = rounded_table(decimals)
    recorded = recorded_predictions(table, "y")
    np.testing.assert_array_equal(recorded.proba, table.iloc[:, 1:])
    said = f"with {decimals} decimals, so that rows do not sum to exactly 1"
    assert said in recorded.note
    whole = CalibrationAuditor.from_predictions(
        recorded.y, recorded.proba, classes=recorded.classes, n_bins=5
    )
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 7 * table.shape[1])
    table.to_csv(tmp_path / "table.csv", index=False)
    found = audit_files([tmp_path / "table.csv"], "y", n_bins=5)
    np.testing.assert_array_equal(found.audit.sums_.confidence, whole.sums_.confidence)
    (note,) = found.notes
    assert said in note


def test_a_row_that_only_coarser_rounding_would_explain_is_refused(tmp_path):
    table = rounded_table(2)
    table.loc[199, ["p(a)", "p(b)", "p(c)"]] = 0.2512, 0.5488, 0.2
    wrong = int((abs(table.iloc[:, 1:].sum(axis=1) - 1) > 0.005).argmax()) + 1
    table.to_csv(tmp_path / "table.csv", index=False)
    with pytest.raises(ValueError, match=rf"row {wrong} .* must sum to 1 within 0.00015"):
        audit_files([tmp_path / "table.csv"], "y")


def test_exact_probabilities_are_not_remarked_on():
    assert "decimals" not in recorded_predictions(rounded_table(12), "y").note
