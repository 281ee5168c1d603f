"""Groups, audits in parts, and predictions recorded in tables and files."""

from itertools import pairwise

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import coo_matrix, csr_array

from skuq import CalibrationAuditor
from skuq._table_files import write_table
from skuq.audit import audit_files, recorded_predictions
from skuq.audit._prediction_audit import groups_of_columns, named_groups
from skuq.calibration import merged_sums
from skuq.reporting import audit_data

from_predictions = CalibrationAuditor.from_predictions
FRAME = pd.DataFrame({"sex": ["m", "f", "m"], "age": [30, 60, 30], "city": ["Bonn", "Rom", None]})
SEX, AGE = ["sex=m", "sex=f", "sex=m"], ["age=30", "age=60", "age=30"]


def names_of_rows(groupings):
    return [[grouping.names[code] for code in grouping.codes] for grouping in groupings]


def test_groups_are_named_after_their_value_and_sorted_with_missing_ones_last():
    (grouping,) = named_groups({"x": ["b", None, "Z", "b", ""]})
    assert grouping.names == ["x=", "x=Z", "x=b", "x=missing"]
    assert (grouping.codes.tolist(), grouping.codes.dtype) == ([2, 3, 1, 2, 0], np.int16)
    for values, first, second in (
        ([True, False], "x=True", "x=False"),
        ([0.5, np.nan], "x=0.5", "x=missing"),
        ([3.0, np.nan], "x=3", "x=missing"),
        (pd.Series([3, None], dtype=object), "x=3", "x=missing"),
        (pd.Series(["u", None], index=[7, 7]), "x=u", "x=missing"),
        (pd.Categorical(["u", None], ["v", "u"]), "x=u", "x=missing"),
        (pd.array([True, None], dtype="boolean"), "x=True", "x=missing"),
        (pd.to_datetime(["2020-01-31", None]), "x=2020-01-31T00:00:00", "x=missing"),
    ):
        ((one, other),) = names_of_rows(named_groups({"x": values}))
        assert (one[: len(first)] if "T" in first else one, other) == (first, second)


def test_columns_are_chosen_by_name_position_or_function():
    for groups, expected in (
        (None, []),
        (["age", "sex"], [AGE, SEX]),
        (0, [["0=m", "0=f", "0=m"]]),
        ([1, "sex"], [["1=30", "1=60", "1=30"], SEX]),
        ([], []),
        (lambda X: X[["sex", "age"]], [SEX, AGE]),
        (lambda X: {"old": X["age"] > 40}, [["old=False", "old=True", "old=False"]]),
        (lambda X: X["age"] > 40, [["age=False", "age=True", "age=False"]]),
        (lambda X: X["sex"].to_numpy(), [["group=m", "group=f", "group=m"]]),
        (lambda X: np.array([["m", 3]] * 3), [["group_0=m"] * 3, ["group_1=3"] * 3]),
    ):
        assert names_of_rows(groups_of_columns(groups, FRAME)) == expected
    for convert in (np.array, list, np.float32, csr_array, coo_matrix):
        for groups in (1, np.int64(1), [1], -1):
            (grouping,) = groups_of_columns(groups, convert([[1, 5], [2, 6], [3, 5]]))
            assert grouping.codes.tolist() == [0, 1, 0]
    (grouping,) = named_groups({"id": np.arange(200)})  # as many values as are allowed
    assert len(grouping.names) == 200


def test_groups_may_be_attributes_that_the_model_never_saw(model, reference):
    (X, y), sex = reference, np.arange(400) // 2 % 2
    audit = CalibrationAuditor(model, sensitive_columns=0)
    audit.fit(X.round(), y, sensitive_features=pd.Series(sex, name="sex"))
    assert list(audit.group_bins_)[-3:] == ["0=3", "sex=0", "sex=1"]
    assert audit.n_families_ == 1 + len(audit.group_bins_)
    for value in (0, 1):
        alone = CalibrationAuditor(model).fit(X.round()[value == sex], y[value == sex])
        np.testing.assert_equal(audit.group_sums_[f"sex={value}"], alone.sums_)


CUTS = [0, 3, 500, 501, 900]  # the first part is smaller than the number of bins
PROBA = ["p0", "p1", "p2"]


@pytest.fixture
def table():
    """Three classes, a lie in one group, missing values in another attribute."""
    rng = np.random.default_rng(0)
    proba = rng.dirichlet([0.6, 0.7, 0.8], size=900).round(6)
    proba[:, 2] = 1 - proba[:, 0] - proba[:, 1]
    y = (rng.random((900, 1)) > proba.cumsum(axis=1)).sum(axis=1).clip(max=2)
    group = rng.choice(["north", "south"], size=900)
    proba[group == "south"] = (proba[group == "south"] + 1) / 4
    age = rng.choice(["nine", "ten", None], size=900)
    columns = {f"p{k}": proba[:, k] for k in range(3)}
    return pd.DataFrame({"y": y, **columns, "region": group, "age": age})


def at_once(table, **params):
    groups = table[["region", "age"]]
    return from_predictions(table["y"], table[PROBA], sensitive_features=groups, **params)


def figures(audit):
    """All figures, groups in any order."""
    data = audit_data(audit)
    return data | {"classes": None, "groups": sorted(data["groups"], key=lambda g: g["name"])}


def test_sums_of_several_parties(table):
    parties = [at_once(part) for part in (table[:600], table[600:])]
    names = parties[0].group_sums_
    groups = {name: merged_sums([party.group_sums_[name] for party in parties]) for name in names}
    whole = merged_sums([party.sums_ for party in parties])
    audit = CalibrationAuditor.from_sums(whole, groups, classes=[0, 1, 2])
    assert figures(audit) == figures(at_once(table))
    for call in (audit.suspicious_samples, lambda: audit.undersample(0.5, np.ones(900, bool))):
        with pytest.raises(ValueError, match="samples were not kept"):
            call()


def written(folder, table, ending="csv"):
    paths = [folder / f"part-{k}.{ending}" for k in range(4)]
    for path, (start, end) in zip(paths, pairwise(CUTS), strict=True):
        write_table(path, [table[start:end]])
    return paths


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_files_in_chunks_are_audited_as_their_rows_together(table, tmp_path, monkeypatch, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 600)  # 100 rows
    paths = written(tmp_path, table, ending)
    found = audit_files(paths, "y", PROBA, groups=["region", "age"], n_bins=7)
    whole = at_once(table, n_bins=7)
    assert figures(found.audit) == figures(whole)
    assert list(found.audit.group_sums_) == list(whole.group_sums_)
    assert found.audit.classes_.tolist() == ["0", "1", "2"]
    assert found.columns == "p0 -> 0, p1 -> 1, p2 -> 2"
    assert found.notes == []
    if ending == "csv":
        with joblib.parallel_config(backend="threading"):
            shared = audit_files(paths, "y", PROBA, groups=["region", "age"], n_bins=7, n_jobs=2)
        assert figures(shared.audit) == figures(whole)


def test_labels_are_known_however_late_they_come(tmp_path, monkeypatch):
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 20)
    sorted_by_label = pd.DataFrame({"y": ["a"] * 30 + ["b"] * 30, "p_b": 0.25})
    sorted_by_label.to_csv(tmp_path / "t.csv", index=False)
    found = audit_files([tmp_path / "t.csv"], "y", ["p_b"], n_bins=2)
    assert (found.columns, found.audit.n_samples_) == ("p_b -> b, the rest to 1 -> a", 60)


def test_codes_of_a_file_without_words_are_those_of_another_with_them(table, tmp_path):
    code = np.where(table["region"] == "south", "01", "2")
    table["code"] = np.where((table.index > 600) & (table.index % 9 == 0), "A", code)
    paths = written(tmp_path, table)
    write_table(tmp_path / "whole.csv", [table])
    given, both = {"features": ["code", "p0"]}, (paths, [tmp_path / "whole.csv"])
    found, whole = (audit_files(each, "y", PROBA, **given).audit.regions_ for each in both)
    assert [each[:3] for each in found] == [each[:3] for each in whole]  # conditions and count
    assert "01" in {value for region in found for value in region.conditions.values()}
    (region,) = audit_files(paths, "y", PROBA, features=["p0"]).audit.regions_
    assert isinstance(region.conditions["p0"], tuple)  # an interval of numbers


@pytest.mark.parametrize(
    ("codes", "names"),
    [
        (["01", "1"], ["1"]),
        (["01", "1", "x"], ["01", "1", "x"]),
        (["1.0", "2", "3.5"], ["1", "2", "3.5"]),
        (["1", "", "NA"], ["1", "NA", "missing"]),
        (["True", "False", ""], ["False", "True", "missing"]),
    ],
)
def test_neither_groups_nor_labels_depend_on_the_chunks(table, tmp_path, monkeypatch, codes, names):
    table = table[:300].assign(code=np.sort(np.array(codes)[np.arange(300) % len(codes)]))
    table.to_csv(tmp_path / "table.csv", index=False)
    for n_rows in (300, 100, 17):
        monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", n_rows * table.shape[1])
        audit = audit_files([tmp_path / "table.csv"], "y", PROBA, groups=["code"]).audit
        assert list(audit.group_sums_) == [f"code={name}" for name in names]
        assert {part.n_samples for part in audit.group_sums_.values()} == {300 // len(names)}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda part: part.drop(columns="p1"), "'p1'"),
        (lambda part: part.assign(p1="half"), "'p1'.*'half' in row 1 "),
        (lambda part: part.assign(p1=0.9), "row 1 .*sum to"),
        (lambda part: part.assign(y=3), "Label '3' in row 1 "),
        (lambda part: part.assign(y="x"), "Label 'x' in row 1 "),
        (lambda part: part.assign(y=None), "'y' has no label in 1 row"),
        (lambda part: part[:0], "no rows"),
    ],
)
def test_file_and_row_of_a_fault_are_named(table, tmp_path, monkeypatch, change, word):
    paths = written(tmp_path, table)
    change(table[500:501]).to_csv(paths[2], index=False)
    with pytest.raises(ValueError, match=rf"part-2.csv\b.*{word}"):
        audit_files(paths, "y", PROBA)
    # Rows are counted over the whole file.
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 600)
    table.assign(p1=table["p1"].where(table.index != 834)).to_csv(paths[0], index=False)
    with pytest.raises(ValueError, match="nothing in row 835 "):
        audit_files(paths[:1], "y", PROBA)


@pytest.mark.parametrize(
    "labels", [["no", "yes"], [1, 2], [0.5, 1.5], ["01", "02"], ["a; b", " c", "d)", "p(e)"]]
)
def test_columns_with_their_label_in_their_name_are_found(tmp_path, labels):
    proba = np.full((40, len(labels)), 1 / len(labels))
    table = pd.DataFrame(proba, columns=[f"p({label})" for label in labels])
    table = table.assign(y=pd.Series(labels * 40)[:40], age=1)  # and any other column
    write_table(tmp_path / "t.csv", [table])
    found, recorded = audit_files([tmp_path / "t.csv"], "y"), recorded_predictions(table, "y")
    pairs = ", ".join(f"p({label}) -> {label}" for label in labels)
    assert (recorded.note, found.columns) == (pairs, pairs.replace(">  c", "> c"))  # as cells
    assert recorded.classes == [str(label) for label in labels]
    assert found.audit.classes_.tolist() == [str(label).strip() for label in labels]
    assert found.audit.accuracy_ == np.mean(recorded.y == recorded.classes[0])


def mapped(labels, proba, classes=None):
    share = 1 / len(proba) if len(proba) > 1 else 0.25
    table = pd.DataFrame({"y": labels, **dict.fromkeys(proba, share)})
    return recorded_predictions(table, "y", proba, classes)


@pytest.mark.parametrize(
    ("labels", "proba", "classes", "expected"),
    [
        ([1, 0], ["p0", "p1"], None, ["0", "1"]),
        (pd.Categorical(["a", "b"], categories=["b", "a"]), ["x", "z"], None, ["a", "b"]),
        (pd.Categorical([9, 10], ordered=True, categories=[10, 9]), ["x", "z"], None, ["9", "10"]),
        ([True, False], ["pFalse", "pTrue"], None, ["False", "True"]),
        ([10, 9, 8], ["p0", "p1", "p2"], None, ["8", "9", "10"]),  # sorted as numbers
        ([10, 0, 1], ["p0", "p1", "p10"], None, ["0", "1", "10"]),
        ([-1, 1], ["p_-1", "p_1"], None, ["-1", "1"]),
        (["ill", "not ill"], ["p_ill", "p_not_ill"], None, ["ill", "not ill"]),
        ([0, 1], ["p0", "p1"], ["1", "0"], ["1", "0"]),
        (["a", "a"], ["x", "z"], ["b", "a"], ["b", "a"]),
        ([0, 1], ["score"], None, ["0", "1"]),
        (["no", "yes"], ["p_yes"], None, ["no", "yes"]),
        (["no", "yes"], ["p_no"], ["yes", "no"], ["yes", "no"]),
    ],
)
def test_columns_are_in_the_order_of_labels_or_of_classes(labels, proba, classes, expected):
    recorded = mapped(labels, proba, classes)
    assert recorded.classes == expected
    if len(proba) == 1:  # the probability of the last of two labels
        assert recorded.note == f"{proba[0]} -> {expected[1]}, the rest to 1 -> {expected[0]}"
        np.testing.assert_array_equal(recorded.proba[:, 1], 0.25)
    else:
        assert recorded.note == ", ".join(map("{} -> {}".format, proba, expected))


OTHER = "its name contains"
ORDERS = [
    ([0, 1], ["p1", "p2"], OTHER),
    (["no", "yes"], ["p_yes", "p_no"], OTHER),
    (["ill", "not ill"], ["p_not_ill", "p_ill"], OTHER),
    ([9, 10, 0], ["p0", "p10", "p9"], OTHER),
    (["yea", "nay"], ["score"], "'yea' .*`classes='nay,yea'`.* or of 'nay'"),
    ([1, 2], ["score"], "'2' .* or of '1'"),
    ([0, 1], ["p0"], "'1' .* or of '0'"),
    (["happy", "sad"], ["unhappy"], "'sad' .* or of 'happy'"),
    (["g1", "g2", "g10"], [*"abc"], "g1, g10, g2 .* g1, g2, g10: pass `classes`"),
]


@pytest.mark.parametrize(("labels", "proba", "readings"), ORDERS)
def test_the_order_of_labels_is_not_guessed(labels, proba, readings):
    with pytest.raises(ValueError, match=readings):
        mapped(labels, proba)
    named = [str(label) for label in sorted(labels)]
    assert mapped(labels, proba, named).classes == named  # what is stated is not doubted
    if "g10" in labels:
        table = pd.DataFrame([[0.2, 0.3, 0.5]] * 30, columns=proba)
        with pytest.raises(ValueError, match=readings):
            CalibrationAuditor.from_predictions(labels * 10, table)


def rounded_table(decimals, n_rows=200):
    proba = np.random.default_rng(0).dirichlet(np.ones(3), size=n_rows).round(decimals)
    table = pd.DataFrame({"y": list("abcb") * (n_rows // 4)})
    return table.assign(**{f"p({label})": proba[:, k] for k, label in enumerate("abc")})


@pytest.mark.parametrize("decimals", [2, 4])
def test_rounded_probabilities_are_audited_as_recorded(tmp_path, monkeypatch, decimals):
    table = rounded_table(decimals)
    recorded = recorded_predictions(table, "y")
    np.testing.assert_array_equal(recorded.proba, table.iloc[:, 1:])
    said = f"with {decimals} decimals"
    assert said in recorded.note
    whole = from_predictions(recorded.y, recorded.proba, classes=recorded.classes, n_bins=5)
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 17 * table.shape[1])
    table.to_csv(tmp_path / "table.csv", index=False)
    found = audit_files([tmp_path / "table.csv"], "y", n_bins=5)
    np.testing.assert_array_equal(found.audit.sums_.confidence, whole.sums_.confidence)
    assert said in found.notes[0]
    assert "decimals" not in recorded_predictions(rounded_table(12), "y").note
