"""Files in the forms in which people send them: read with nothing said but the target."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.messy_tables import MESSY_TABLES
from skuq._table_files import open_table
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


def test_rows_that_are_not_scored_and_what_was_misread_are_reported():
    pytest.importorskip("matplotlib")
    frame = pd.DataFrame({"y": np.tile([3, 7], 60)})
    frame["a"] = frame["y"] + np.random.default_rng(0).normal(size=120)
    train = frame.astype({"a": str})
    train.loc[99, "a"] = "1 - 2"
    model = TableModel(Toy()).fit(train, "y")
    new = frame[["a"]].astype(object)
    new.loc[1, "a"] = "abc"
    rows = pd.concat([model.predict(new[:40]), model.predict(new[40:])])
    report = table_report(model, rows, model.count(new[:40]) + model.count(new[40:]))
    assert "119 rows were predicted." in report.summary
    assert "1 row was not scored because of an unreadable cell" in report.summary
    page = report.html()
    assert "nan" not in page.lower().split("<h2>rows to look at first")[1].split("<h2>")[0]
    (warning,) = model.warnings_
    assert warning.startswith("1 cell in column a holds a range, such as '1 - 2' (row 99)")
    assert warning in report.summary
    assert page.count("holds a range") == 1
