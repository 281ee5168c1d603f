"""``skuq certify``: what it proves about rows of a table, and what it refuses."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.preprocessing import StandardScaler

from skuq import RobustGPC
from tests.cli.runner import files, refused, run

NAMES = ["sepal length", "sepal width", "petal length", "petal width"]
QUICK = ("--id", "number", "--max-regions", "1")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    data = load_iris(as_frame=True)
    frame = data.data.set_axis(NAMES, axis=1)[50:]
    frame["species"] = data.target_names[data.target[50:]]
    frame["number"] = [f"n{i}" for i in range(len(frame))]
    frame[::2].to_csv(tmp_path / "known.csv", index=False)
    frame[1::12].drop(columns="species").to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def certify(*options, out="out.csv"):
    given = ["--train", "known.csv", "--target", "species", "--predict", "new.csv", "--out", out]
    return run("certify", *given, *options)


def certified(*options):
    result = certify(*options)
    assert result.exit_code == 0, result.output
    return pd.read_csv("out.csv"), result.stdout


def alter(name, **columns):
    pd.read_csv(name).assign(**columns).to_csv(name, index=False)


def test_rows_are_certified_and_counterexamples_are_in_the_columns_units(folder):
    rows, _ = certified("--id", "number", "--fixed", "sepal length, sepal width")
    known, new = pd.read_csv("known.csv"), pd.read_csv("new.csv")
    assert rows["number"].tolist() == new["number"].tolist()
    assert not [name for name in rows if "sepal" in name]
    scaler = StandardScaler().fit(known[NAMES])
    gpc = RobustGPC(random_state=0).fit(scaler.transform(known[NAMES]), known["species"])
    assert gpc.predict(scaler.transform(new[NAMES])).tolist() == rows["class"].tolist()
    found = rows["counterexample_radius"] < np.inf
    assert found.any()
    assert (rows["certified_radius"] > 0).any()
    assert (rows["certified_radius"] <= rows["counterexample_radius"]).all()
    moved = new[NAMES].assign(**{name: rows[f"counterexample_{name}"] for name in NAMES[2:]})
    other = gpc.predict(scaler.transform(moved[found]))
    assert (other != rows.loc[found, "class"]).all()
    distance = (np.abs(moved - new[NAMES]) / scaler.scale_)[found].max(axis=1)
    assert (distance <= rows.loc[found, "counterexample_radius"] * (1 + 1e-6)).all()


def test_counterexamples_stay_within_the_range_of_the_training_rows(folder):
    known, new = pd.read_csv("known.csv"), pd.read_csv("new.csv")
    rows, _ = certified("--id", "number", "--max-radius", "3")
    found = rows["counterexample_radius"] < np.inf
    assert found.sum() > 2
    examples = rows[[f"counterexample_{name}" for name in NAMES]].set_axis(NAMES, axis=1)
    least = new[NAMES].clip(upper=known[NAMES].min(), axis=1)
    most = new[NAMES].clip(lower=known[NAMES].max(), axis=1)
    assert ((examples >= least) & (examples <= most))[found].all(axis=None)
    known.to_csv("new.csv", index=False)  # small radii are bisected as closely as large ones
    rows, _ = certified("--drop", "number", "--max-radius", "0.1")
    found = rows[rows["counterexample_radius"] < np.inf]
    assert len(found) >= 2
    assert (found["counterexample_radius"] - found["certified_radius"] <= 0.001).all()


def test_columns_that_cannot_be_learnt_from_are_left_out_and_said(folder):
    known, new = pd.read_csv("known.csv").assign(soil="clay"), pd.read_csv("new.csv")
    new.drop(columns="petal width").to_csv("new.csv", index=False)
    for value in (np.nan, np.inf):
        known.loc[3, "petal width"] = value
        known.to_csv("known.csv")  # with a column of numbers without a name
        result = certify("--max-regions", "1")
        assert result.exit_code == 0, result.output
        assert "dropped: Unnamed: 0, petal width, number, soil." in result.stdout
        made = [name for name in pd.read_csv("out.csv") if "counterexample_" in name]
        assert made == ["counterexample_radius", *(f"counterexample_{name}" for name in NAMES[:3])]
        assert len([part for part in result.stderr.split("\n") if "RobustGPC" in part]) == 1


def test_the_approximation_and_how_files_were_read_are_named(folder, monkeypatch):
    pd.read_csv("known.csv").to_csv("known.csv", index=False, sep=";", decimal=",")
    _, told = certified(*QUICK)
    assert "posterior on the training rows," in told
    assert "known.csv was read with a semicolon as separator and a decimal comma" in told
    assert "on 7 inducing points instead of 50" in certified(*QUICK, "--inducing", "7")[1]
    monkeypatch.setattr("skuq.cli._certify.EXACT_ROWS", 40)
    monkeypatch.setattr("skuq.cli._certify.INDUCING", 9)
    assert "9 inducing points instead of 50 training rows" in certified(*QUICK)[1]


def test_ids_and_classes_are_copied_whatever_words_they_are(folder):
    ids = ["NA", "None", "null", "007", "1e5"]
    pd.read_csv("new.csv").iloc[[0, 1, 2, 3, 7]].assign(number=ids).to_csv("new.csv", index=False)
    species = pd.read_csv("known.csv")["species"]
    for words in (["007", "012"], ["TRUE", "FALSE"]):
        alter("known.csv", species=np.where(species == "versicolor", *words))
        assert certify(*QUICK).exit_code == 0
        rows = pd.read_csv("out.csv", dtype=str, keep_default_na=False)
        assert rows["number"].tolist() == ids
        assert set(rows["class"]) == set(words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fixed", "age"], "--fixed"),
        (["--fixed", ",".join(NAMES)], "but not all"),
        ([part for name in NAMES for part in ("--drop", name)], "are: none."),
        (["--drop", "size"], "no column 'size'"),
        (["--id", "nmber"], "Did you mean 'number'?"),
        (["--max-radius", "nan"], "--max-radius"),
        (["--max-regions", "1", "--out", "n" * 300], "Cannot write: "),
    ],
)
def test_what_cannot_be_certified_is_refused_in_one_line(folder, options, words):
    before = files(folder)
    assert words in refused(certify("--id", "number", *options), folder, before)


@pytest.mark.parametrize(
    ("known", "new", "words"),
    [
        ({"species": "a"}, {}, "one class"),
        ({"species": np.linspace(0, 1, 50)}, {}, "known.csv: "),  # continuous numbers
        ({}, {"petal width": np.nan}, "must be finite numbers"),
        ({"radius": 1.0}, {"radius": 1.0}, "same name"),
        ({"probability": 1.0}, {"probability": 1.0}, "same name"),
    ],
)
def test_tables_that_cannot_be_certified_are_refused(folder, known, new, words):
    alter("known.csv", **known)
    alter("new.csv", **new)
    own = "probability" if "probability" in known else "number"
    before, result = files(folder), certify("--id", own, *QUICK[2:], "--drop", "number")
    assert words in refused(result, folder, before)
