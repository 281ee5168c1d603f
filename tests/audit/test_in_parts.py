"""Audits in parts: the findings are those of all samples at once, to the last bit."""

from itertools import pairwise

import joblib
import numpy as np
import pandas as pd
import pytest

from skuq import CalibrationAuditor
from skuq._table_files import TableFileError, write_table
from skuq.audit import audit_files, recorded_predictions
from skuq.calibration import merged_sums
from skuq.reporting import audit_data, audit_report

CUTS = [0, 3, 700, 701, 1500]  # the first part is smaller than the number of bins


@pytest.fixture
def table():
    """Three classes, a lie in one group, missing values in another attribute."""
    rng = np.random.default_rng(0)
    proba = rng.dirichlet([0.6, 0.7, 0.8], size=1500).round(6)
    proba[:, 2] = 1 - proba[:, 0] - proba[:, 1]
    y = (rng.random((1500, 1)) > proba.cumsum(axis=1)).sum(axis=1).clip(max=2)
    group = rng.choice(["north", "south"], size=1500)
    proba[group == "south"] = (proba[group == "south"] + 1) / 4
    age = rng.choice([9.0, 10.0, np.nan], size=1500)
    columns = {f"p{k}": proba[:, k] for k in range(3)}
    return pd.DataFrame({"y": y, **columns, "region": group, "age": age})


def parts_of(table):
    return [table[a:b] for a, b in pairwise(CUTS)]


def at_once(table, **params):
    groups = {"region": table["region"], "age": table["age"].map({9.0: "9", 10.0: "10"})}
    proba = table[["p0", "p1", "p2"]].to_numpy()
    return CalibrationAuditor.from_predictions(
        table["y"], proba, sensitive_features=groups, **params
    )


def figures(audit):
    """All figures, groups in any order."""
    data = audit_data(audit)
    data.pop("classes")
    return data | {"groups": sorted(data["groups"], key=lambda group: group["name"])}


def test_sums_of_several_parties(table):
    parties = [at_once(part) for part in (table[:600], table[600:])]
    names = parties[0].group_sums_
    audit = CalibrationAuditor.from_sums(
        merged_sums([party.sums_ for party in parties]),
        {name: merged_sums([party.group_sums_[name] for party in parties]) for name in names},
        classes=[0, 1, 2],
    )
    assert figures(audit) == figures(at_once(table))
    few = at_once(table).sums_._replace(count=np.bincount([3] * 5, minlength=10))
    with pytest.raises(ValueError, match="n_samples=5, but at least 10"):
        CalibrationAuditor.from_sums(few)
    with pytest.raises(ValueError, match="`search_regions` needs all samples"):
        CalibrationAuditor.from_sums(at_once(table).sums_, search_regions=True)
    with pytest.raises(ValueError, match="Only sums over the same bins"):
        merged_sums([at_once(table).sums_, at_once(table, n_bins=5).sums_])


def test_what_needs_all_samples_is_refused(table):
    audit = CalibrationAuditor.from_sums(at_once(table).sums_)
    with pytest.raises(ValueError, match="samples were not kept"):
        audit.suspicious_samples()
    with pytest.raises(ValueError, match="samples were not kept"):
        audit.undersample(0.5, np.ones(3000, bool))


# --- files -----------------------------------------------------------------------------------


def written(folder, table, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    paths = [folder / f"part-{k}.{ending}" for k in range(4)]
    for path, part in zip(paths, parts_of(table), strict=True):
        write_table(path, [part])
    return paths


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_files_in_chunks_are_audited_as_their_rows_together(table, tmp_path, monkeypatch, ending):
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 600)  # 100 rows
    table["age"] = table["age"].map({9.0: "nine", 10.0: "ten"})
    paths = written(tmp_path, table, ending)
    found = audit_files(paths, "y", ["p0", "p1", "p2"], groups=["region", "age"], n_bins=7)
    groups = table[["region", "age"]]
    whole = CalibrationAuditor.from_predictions(
        table["y"], table[["p0", "p1", "p2"]], sensitive_features=groups, n_bins=7
    )
    assert figures(found.audit) == figures(whole)
    assert list(found.audit.group_sums_) == list(whole.group_sums_)
    assert found.columns == "p0 -> 0, p1 -> 1, p2 -> 2"
    assert found.notes == []


def test_workers_of_dask_share_the_files(table, tmp_path):
    distributed = pytest.importorskip("distributed")
    paths = written(tmp_path, table, "csv")
    expected = audit_files(paths, "y", ["p0", "p1", "p2"], groups=["region"]).audit
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        found = audit_files(paths, "y", ["p0", "p1", "p2"], groups=["region"], n_jobs=2)
    assert figures(found.audit) == figures(expected)


def test_labels_are_known_however_late_they_come(tmp_path, monkeypatch):
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 20)
    sorted_by_label = pd.DataFrame({"y": ["a"] * 30 + ["b"] * 30, "p_b": 0.25})
    sorted_by_label.to_csv(tmp_path / "t.csv", index=False)
    found = audit_files([tmp_path / "t.csv"], "y", ["p_b"], n_bins=2)
    assert (found.columns, found.audit.n_samples_) == ("p_b -> b, the rest to 1 -> a", 60)


def test_codes_of_a_file_without_words_are_those_of_another_with_them(table, tmp_path):
    code = np.where(table["region"] == "south", "01", "2")
    table["code"] = np.where((table.index > 900) & (table.index % 9 == 0), "A", code)
    paths = written(tmp_path, table, "csv")
    write_table(tmp_path / "whole.csv", [table])
    columns = ["p0", "p1", "p2"]
    found, whole = (
        audit_files(each, "y", columns, features=["code", "p0"]).audit.regions_
        for each in (paths, [tmp_path / "whole.csv"])
    )
    assert [(region.conditions, region.count) for region in found] == [
        (region.conditions, region.count) for region in whole
    ]
    assert "01" in {value for region in found for value in region.conditions.values()}


@pytest.mark.parametrize("n_rows", [300, 100, 7])
@pytest.mark.parametrize(
    ("codes", "names"),
    [
        (["01", "1"], ["1"]),
        (["01", "1", "x"], ["01", "1", "x"]),
        (["01", "2", "x"], ["01", "2", "x"]),
        (["1.0", "2", "3.5"], ["1", "2", "3.5"]),
        (["1", "", "NA"], ["1", "NA", "missing"]),
        (["True", "False", ""], ["False", "True", "missing"]),
    ],
)
def test_groups_do_not_depend_on_the_chunks(table, tmp_path, monkeypatch, n_rows, codes, names):
    table = table[:300].assign(code=np.sort(np.array(codes)[np.arange(300) % len(codes)]))
    table.to_csv(tmp_path / "table.csv", index=False)
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", n_rows * table.shape[1])
    given = [tmp_path / "table.csv"], "y", ["p0", "p1", "p2"]
    audit = audit_files(*given, groups=["code"]).audit
    assert list(audit.group_sums_) == [f"code={name}" for name in names]
    assert {part.n_samples for part in audit.group_sums_.values()} == {300 // len(names)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda part: part.drop(columns="p1"), "part-2.csv has no column 'p1'"),
        (lambda part: part.assign(p1="half"), "part-2.csv: Column 'p1' must .* 'half' in row 1 "),
        (lambda part: part.assign(p1=0.9), "part-2.csv: The probabilities in row 1 .* sum to"),
        (lambda part: part.assign(y=3), "part-2.csv: Label '3' in row 1 .* none of the classes"),
        (lambda part: part.assign(y="x"), "part-2.csv: Label 'x' in row 1 "),
        (lambda part: part.assign(y=None), "part-2.csv: Column 'y' has no label in 1 row, first"),
        (lambda part: part[:0], "part-2.csv has no rows"),
    ],
)
def test_file_and_row_of_a_fault_are_named(table, tmp_path, change, message):
    paths = written(tmp_path, table, "csv")
    change(parts_of(table)[2]).to_csv(paths[2], index=False)
    with pytest.raises(ValueError, match=message):
        audit_files(paths, "y", ["p0", "p1", "p2"])


def test_the_row_is_counted_over_the_whole_file(table, tmp_path, monkeypatch):
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 600)
    table.astype({"p1": object}).assign(p1=table["p1"].where(table.index != 1234)).to_csv(
        tmp_path / "t.csv", index=False
    )
    with pytest.raises(ValueError, match="got nothing in row 1235 "):
        audit_files([tmp_path / "t.csv"], "y", ["p0", "p1", "p2"])


def test_what_files_cannot_be_asked_is_refused(table, tmp_path):
    paths = written(tmp_path, table, "csv")
    with pytest.raises(ValueError, match="requires strategy='uniform'"):
        audit_files(paths, "y", ["p0", "p1", "p2"], strategy="quantile")
    with pytest.raises(ValueError, match="'p0' has 697 different"):
        audit_files(paths, "y", ["p0", "p1", "p2"], groups=["p0"])
    with pytest.raises(TableFileError, match="no column 'sex'"):
        audit_files(paths, "y", ["p0", "p1", "p2"], groups=["sex"])
    mixed = pd.DataFrame({"y": ["01", "02"] * 9 + ["x"] * 9, "p": 0.25})
    mixed.to_csv(tmp_path / "mixed.csv", index=False)
    with pytest.raises(ValueError, match="3 labels"):
        audit_files([tmp_path / "mixed.csv"], "y", ["p"])


def test_the_report_of_an_audit_without_samples_has_its_pictures(table, tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    found = audit_files(written(tmp_path, table, "csv"), "y", ["p0", "p1", "p2"], groups=["region"])
    groups = {"region": table["region"]}
    whole = CalibrationAuditor.from_predictions(
        table["y"], table[["p0", "p1", "p2"]], sensitive_features=groups
    )
    pages = [audit_report(audit).html() for audit in (found.audit, whole)]
    assert pages[0].count("<img") == pages[1].count("<img") > 2


def paths_of(folder, table):
    write_table(folder / "t.csv", [table])
    return [folder / "t.csv"]


@pytest.mark.parametrize(
    "labels", [["no", "yes"], [1, 2], [0.5, 1.5], ["01", "02"], ["a; b", " c", "d)", "p(e)"]]
)
def test_columns_with_their_label_in_their_name_are_found(tmp_path, labels):
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(len(labels)), 400)
    table = pd.DataFrame(proba, columns=[f"p({label})" for label in labels])
    table["y"] = np.array(labels, dtype=object)[[rng.choice(len(labels), p=p) for p in proba]]
    table["age"] = 1  # any other column
    expected = recorded_predictions(
        table, "y", list(table)[: len(labels)], [str(label) for label in labels]
    )
    found = audit_files(paths_of(tmp_path, table), "y")
    pairs = [f"p({label}) -> {label}" for label in labels]
    assert found.columns == ", ".join(pairs) == recorded_predictions(table, "y").note
    audit = CalibrationAuditor.from_predictions(
        expected.y, expected.proba, classes=expected.classes
    )
    assert found.audit.accuracy_ == audit.accuracy_


def test_without_named_columns_the_probabilities_must_be_named(tmp_path):
    table = pd.DataFrame({"y": ["a", "b"], "pa": [0.5, 0.5], "pb": [0.5, 0.5]})
    with pytest.raises(ValueError, match=r"a column named p\(LABEL\).*`proba`"):
        audit_files(paths_of(tmp_path, table), "y")
    table = table.rename(columns={"pa": "p(a)", "pb": "p(b)"})
    with pytest.raises(ValueError, match=r"`classes` has no effect; found p\(a\), p\(b\)"):
        recorded_predictions(table, "y", classes=["a", "b"])
