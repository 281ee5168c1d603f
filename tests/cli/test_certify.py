"""``skuq certify``: what it proves about rows of a table, and what it refuses."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.datasets import load_iris
from sklearn.preprocessing import StandardScaler

from skuq import RobustGPC
from skuq.cli._main import main

NAMES = ["sepal length", "sepal width", "petal length", "petal width"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with flowers of two species to learn from and to certify."""
    data = load_iris(as_frame=True)
    frame = data.data.set_axis(NAMES, axis=1)[50:]
    frame["species"] = data.target_names[data.target[50:]]
    frame["number"] = [f"n{i}" for i in range(len(frame))]
    frame[::2].to_csv(tmp_path / "known.csv", index=False)
    frame[1::12].drop(columns="species").to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*options, train="known.csv", target="species", out="out.csv"):
    arguments = ["certify", "--train", train, "--target", target, "--predict", "new.csv"]
    return CliRunner().invoke(main, [*arguments, "--out", out, *options])


def test_rows_are_certified_and_counterexamples_are_in_the_columns_units(folder):
    result = run("--id", "number", "--fixed", "sepal length, sepal width")
    assert result.exit_code == 0, result.output
    rows, new = pd.read_csv("out.csv"), pd.read_csv("new.csv")
    assert rows["number"].tolist() == new["number"].tolist()
    assert not [name for name in rows if "sepal" in name]
    known = pd.read_csv("known.csv")
    scaler = StandardScaler().fit(known[NAMES])
    gpc = RobustGPC(random_state=0).fit(scaler.transform(known[NAMES]), known["species"])
    assert gpc.predict(scaler.transform(new[NAMES])).tolist() == rows["class"].tolist()
    found = rows["counterexample_radius"] < np.inf
    assert found.any()
    assert (rows["certified_radius"] > 0).any()
    assert (rows["certified_radius"] <= rows["counterexample_radius"]).all()
    moved = new[NAMES].copy()
    for name in NAMES[2:]:
        moved[name] = rows[f"counterexample_{name}"]
    moved = moved[found.to_numpy()]
    other = gpc.predict(scaler.transform(moved))
    assert (other != rows.loc[found, "class"]).all()
    distance = np.abs(moved - new[NAMES][found.to_numpy()]) / scaler.scale_
    assert (distance.max(axis=1) <= rows.loc[found, "counterexample_radius"] * (1 + 1e-6)).all()


def test_small_radii_are_bisected_as_closely_as_large_ones(folder):
    pd.read_csv("known.csv").to_csv("new.csv", index=False)
    assert run("--drop", "number", "--max-radius", "0.1").exit_code == 0
    rows = pd.read_csv("out.csv")
    found = rows[rows["counterexample_radius"] < np.inf]
    assert len(found) >= 2
    assert (found["counterexample_radius"] - found["certified_radius"] <= 0.001).all()


def test_the_id_is_copied_as_it_is(folder):
    new = pd.read_csv("new.csv")[:2].assign(number=["007", "1e5"])
    new.to_csv("new.csv", index=False)
    result = run("--id", "number", "--max-regions", "1")
    assert result.exit_code == 0, result.output
    assert pd.read_csv("out.csv", dtype=str)["number"].tolist() == ["007", "1e5"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--id", "number", "--fixed", "age"), "--fixed must name some of the feature columns"),
        (("--id", "number", "--fixed", ",".join(NAMES)), "but not all"),
        ([part for name in NAMES for part in ("--drop", name)], "missing values are: none."),
        (("--drop", "size"), "no column 'size'"),
        (("--id", "nmber"), "Did you mean 'number'?"),
    ],
)
def test_what_cannot_be_certified_is_refused_in_one_line(folder, options, message):
    result = run(*options)
    assert result.exit_code == 2
    assert message in result.output
    assert not (folder / "out.csv").exists()


def test_a_file_that_cannot_be_written_is_an_error_in_one_line(folder):
    result = run("--id", "number", "--max-regions", "1", out="n" * 300)
    assert result.exit_code == 2
    assert "Error: Cannot write: " in result.output


@pytest.mark.parametrize(("column", "options"), [("radius", ()), ("probability", ("--id",))])
def test_columns_that_the_result_has_itself_are_refused(folder, column, options):
    for name in ("known", "new"):
        table = pd.read_csv(f"{name}.csv").rename(columns={NAMES[0]: column})
        table.to_csv(f"{name}.csv", index=False)
    options = (*options, column) if options else ()
    result = run(*options, "--drop", "number")
    assert result.exit_code == 2
    assert "Two columns of the result have the same name" in result.output


def test_bad_tables_are_refused(folder):
    known = pd.read_csv("known.csv")
    known.assign(species="a").to_csv("one.csv", index=False)
    result = run("--id", "number", train="one.csv")
    assert result.exit_code == 2
    assert "one class" in result.output
    new = pd.read_csv("new.csv")
    new.loc[1, "petal width"] = np.nan
    new.to_csv("new.csv", index=False)
    assert "must be finite numbers in all rows" in run("--id", "number").output
    assert run("--id", "number", target="genus").exit_code == 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_columns_that_cannot_be_learnt_from_are_left_out_and_said(folder, value):
    known, new = pd.read_csv("known.csv"), pd.read_csv("new.csv")
    known.loc[3, "petal width"] = value
    known.assign(soil="clay").to_csv("known.csv")  # with a column of numbers that has no name
    new.drop(columns="petal width").to_csv("new.csv", index=False)
    arguments = ["certify", "--train", "known.csv", "--target", "species", "--predict", "new.csv"]
    result = CliRunner().invoke(main, [*arguments, "--out", "out.csv", "--max-regions", "1"])
    assert result.exit_code == 0, result.output
    assert (
        "Columns without numbers in all rows were dropped: Unnamed: 0, petal width, number, soil."
        in result.stdout
    )
    made = [name for name in pd.read_csv("out.csv") if "counterexample_" in name]
    assert made == ["counterexample_radius", *(f"counterexample_{name}" for name in NAMES[:3])]
    assert result.stderr.count("RobustGPC") <= result.stderr.count("\r")  # one bar
    assert len([part for part in result.stderr.split("\n") if "RobustGPC" in part]) == 1


@pytest.mark.parametrize(
    ("options", "approximation"),
    [
        ((), "the training rows"),
        (("--inducing", "7"), "7 inducing points instead of 50 training rows"),
    ],
)
def test_the_approximation_that_certificates_are_about_is_named(folder, options, approximation):
    result = run("--id", "number", "--max-regions", "1", *options)
    assert result.exit_code == 0, result.output
    assert f"Laplace approximation of the posterior on {approximation}," in result.stdout


def test_counterexamples_stay_within_the_range_of_the_training_rows(folder):
    known, new = pd.read_csv("known.csv"), pd.read_csv("new.csv")
    assert run("--id", "number", "--max-radius", "3").exit_code == 0
    rows = pd.read_csv("out.csv")
    found = rows["counterexample_radius"] < np.inf
    assert found.sum() > 2
    examples = rows[[f"counterexample_{name}" for name in NAMES]].set_axis(NAMES, axis=1)
    least = new[NAMES].clip(upper=known[NAMES].min(), axis=1)
    most = new[NAMES].clip(lower=known[NAMES].max(), axis=1)
    assert ((examples >= least) & (examples <= most))[found].all(axis=None)


def test_more_rows_than_are_used_exactly_have_inducing_points(folder, monkeypatch):
    monkeypatch.setattr("skuq.cli._certify.EXACT_ROWS", 40)
    monkeypatch.setattr("skuq.cli._certify.INDUCING", 9)
    arguments = ["certify", "--train", "known.csv", "--target", "species", "--predict", "new.csv"]
    result = CliRunner().invoke(
        main, [*arguments, "--id", "number", "--out", "out.csv", "--max-regions", "1"]
    )
    assert "9 inducing points instead of 50 training rows" in result.stdout
    text = " ".join(CliRunner().invoke(main, ["certify", "--help"]).output.split())
    assert "[default: none for up to 2,000 training rows, else 200]" in text


# --- what files hold stays what it is ------------------------------------------------------------


def test_ids_are_copied_whatever_words_they_are(folder):
    ids = ["NA", "None", "null", "007", "x"]
    pd.read_csv("new.csv")[:5].assign(number=ids).to_csv("new.csv", index=False)
    assert run("--id", "number").exit_code == 0
    assert pd.read_csv("out.csv", dtype=str, keep_default_na=False)["number"].tolist() == ids


@pytest.mark.parametrize("words", [["007", "012"], ["TRUE", "FALSE"], ["1.0", "2.5"]])
def test_classes_are_written_as_the_file_has_them(folder, words):
    known = pd.read_csv("known.csv")
    names = dict(zip(["versicolor", "virginica"], words, strict=True))
    known.assign(species=known["species"].map(names)).to_csv("known.csv", index=False)
    result = run("--drop", "number")
    if words == ["1.0", "2.5"]:
        assert result.exit_code == 2  # continuous numbers are no classes
    else:
        assert result.exit_code == 0, result.output
        assert set(pd.read_csv("out.csv", dtype=str)["class"]) == set(words)


def test_how_files_were_read_is_said(folder):
    pd.read_csv("known.csv").to_csv("known.csv", index=False, sep=";", decimal=",")
    options = ["--train", "known.csv", "--target", "species", "--predict", "new.csv"]
    result = CliRunner().invoke(main, ["certify", *options, "--id", "number", "--out", "out.csv"])
    assert result.exit_code == 0, result.output
    assert "known.csv was read with a semicolon as separator and a decimal comma" in result.stdout
