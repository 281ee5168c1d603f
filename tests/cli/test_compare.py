"""``skuq compare``: what it prints and writes, and what it refuses."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from skuq.cli._main import main
from skuq.tables import TableModel, compare_models

pytest.importorskip("skops")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with labelled rows and two models that were kept."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 2)), columns=["a", "b"])
    frame["code"] = rng.choice(["01", "02"], 300)
    frame["kind"] = np.where(frame["a"] + frame["b"] > 0, "yes", "no")
    frame[200:].to_csv(tmp_path / "labelled.csv", index=False)
    for name, drop in (("full", []), ("less", ["b"])):
        model = TableModel("logistic").fit(frame[:200], "kind", drop=drop)
        model.save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compare(*arguments):
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def test_the_verdict_is_that_of_the_package(folder):
    result = compare("full", "less", "--data", "labelled.csv", "--groups", "code")
    assert result.exit_code == 0, result.output
    rows = pd.read_csv("labelled.csv", dtype={"code": str})
    models = [TableModel.load(name) for name in ("full", "less")]
    found = compare_models(*models, rows, groups=["code"])
    assert result.stdout.startswith("\n".join(found.sentences))
    assert "A is better on 100 rows" in result.stdout
    assert len(result.stdout.splitlines()) < 12


def test_a_report_holds_measures_and_parts(folder):
    result = compare("full", "less", "--data", "labelled.csv", "--report", "r.html")
    assert result.exit_code == 0, result.output
    page = (folder / "r.html").read_text(encoding="utf-8")
    for text in (
        "A is the model in full, B the model in less",
        "log loss",
        "true class",
        "quarter",
    ):
        assert text in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["full", "absent", "--data", "labelled.csv"], "absent"),
        (["full", "less", "--data", "labelled.csv", "--groups", "size"], "no column 'size'"),
        (
            ["full", "less", "--data", "labelled.csv", "--report", "labelled.csv"],
            "already an input",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(folder, arguments, message):
    result = compare(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_columns_that_two_models_read_in_different_ways_are_refused(folder):
    frame = pd.DataFrame({"code": np.arange(40) % 7, "kind": ["yes", "no"] * 20})
    TableModel("logistic").fit(frame, "kind").save("numbers")
    result = compare("full", "numbers", "--data", "labelled.csv")
    assert result.exit_code == 2
    assert "'code' is text for one model and numeric for the other" in result.output
