"""Files in the forms in which people send them: read with nothing said but the target."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.messy_tables import MESSY_TABLES
from skuq._table_files import open_table, write_table
from skuq.reporting import table_report
from skuq.tables import TableModel, guessing_note
from tests.tables.toy import Toy


def read(path, text):
    path.write_text(text, encoding="utf-8")
    return open_table(path).read()


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("name", MESSY_TABLES)
def test_a_table_needs_nothing_but_its_target(tmp_path, name):
    form = MESSY_TABLES[name]
    table, target = form.make(np.random.default_rng(0), 400)
    train = read(tmp_path / "train.csv", table[:300].to_csv(index=False))
    model = TableModel("logistic").fit(train, target)
    assert set(form.numbers) <= set(model.columns_.numbers_)
    assert not set(form.names) & set(model.feature_names_in_)
    assert guessing_note(model) == ""
    new = table[300:].drop(columns=target).astype({form.numbers[0]: object}).reset_index(drop=True)
    new.loc[7, form.numbers[0]] = form.bad
    rows = model.predict(read(tmp_path / "new.csv", new.to_csv(index=False)), n_explained=0)
    told = f"not scored: line 9: {form.numbers[0]} is {form.bad!r}, not a number"
    assert rows["reasons"][7].startswith(told)
    assert rows["prediction"].notna().mean() > 0.9


def test_divided_thousands_teach_as_the_numbers_do():
    random = np.random.default_rng(0)
    salary = random.integers(20_000, 99_999, 300)
    frame = pd.DataFrame({"b": random.normal(size=300)})
    frame["y"] = np.where(salary > 60_000, "yes", "no")
    for written in ("{:,}", "${:,}", "{:,} km", "-{:,}", "({:,}.50)"):
        train = frame.assign(salary=[written.format(value) for value in salary])
        held = TableModel(Toy()).fit(train, "y").held_out_
        assert (held["prediction"] == held["label"]).mean() > 0.9, written


def test_the_mark_of_a_file_is_that_of_its_units(tmp_path):
    train = read(tmp_path / "a.csv", "km;n\n" + "".join(f"{k}.219 km;0,5\n" for k in range(1, 60)))
    assert train.attrs == {"decimal": ",", "numbered": ("line", 2)}
    model = TableModel(Toy()).fit(train.assign(y=["a", "b", "c"] * 19 + ["a", "b"]), "y")
    assert model.columns_.transform(train)["km"].tolist() == [k * 1000 + 219 for k in range(1, 60)]
    plain = read(tmp_path / "b.csv", 'km,n\n"5,219 km",0.5\n5219.0 km,0.5\n')
    assert plain.attrs["decimal"] == "."
    rows = model.predict(plain)
    pd.testing.assert_frame_equal(rows[:1], rows[1:].reset_index(drop=True))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_rows_that_are_not_scored_are_written_and_reported(tmp_path, ending):
    pytest.importorskip("matplotlib")
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"y": np.tile([3, 7], 60)})
    frame["a"] = frame["y"] + np.random.default_rng(0).normal(size=120)
    train = frame.astype({"a": str})
    train.loc[99, "a"] = "1 - 2"
    model = TableModel(Toy()).fit(train, "y")
    new = frame[["a"]].astype(object)
    new.loc[1, "a"] = "abc"
    parts = [model.predict(new[:40]), model.predict(new[40:])]
    write_table(tmp_path / f"u.{ending}", parts)
    found = open_table(tmp_path / f"u.{ending}").read()["prediction"]
    assert found.isna().to_numpy().nonzero()[0].tolist() == [1]
    assert set(found.dropna()) == {3, 7}
    counts = model.count(new[:40]) + model.count(new[40:])
    report = table_report(model, pd.concat(parts), counts)
    assert "119 rows were predicted." in report.summary
    assert "1 row was not scored because of an unreadable cell" in report.summary
    page = report.html()
    assert "nan" not in page.lower().split("<h2>rows to look at first")[1].split("<h2>")[0]
    # What was misread stands in the summary.
    (warning,) = model.warnings_
    assert warning.startswith("1 cell in column a holds a range, such as '1 - 2' (row 99)")
    assert warning in report.summary
    assert page.count("holds a range") == 1
