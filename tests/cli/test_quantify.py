"""``skuq quantify``: what it prints and writes, and how it refuses what it cannot use."""

import os

import joblib
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skuq import Uncertainty, UncertaintyMixin, imports
from skuq._table_files import write_table
from skuq.cli import _quantify
from skuq.cli._main import main
from skuq.imports import Plugin
from skuq.tables import TableModel, table_notes

METHOD = ("--method", "quick")


@pytest.fixture
def flowers():
    """Iris with names of species, a column of text, and holes in two columns."""
    frame = load_iris(as_frame=True).frame
    frame.columns = ["sepal length", "sepal width", "petal length", "petal width", "species"]
    frame["species"] = load_iris().target_names[frame["species"]]
    frame["soil"] = np.resize(["clay", "loam", "sand", None], len(frame))
    frame["sepal width"] = frame["sepal width"].where(frame.index % 10 > 0)
    return frame


@pytest.fixture
def folder(tmp_path, monkeypatch, flowers):
    """The current folder, with tables to learn from and to predict, and quick estimators."""
    flowers.to_csv(tmp_path / "known.csv", index=False)
    flowers.drop(columns="species")[::15].to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.chdir(tmp_path)
    quick = [
        Plugin("QuickClassifier", "skuq", "", estimator=Quick),
        Plugin("BrokenClassifier", "acme", "", error="Plugin 'BrokenClassifier': no libneeded"),
        Plugin("NeedyClassifier", "acme", "", estimator=NeedyClassifier),
        Plugin("Regression", "acme", "", estimator=Regression),
    ]
    monkeypatch.setattr(_quantify, "discover", lambda: quick)
    return tmp_path


class Quick(UncertaintyMixin, GaussianNB):
    """A classifier whose uncertainty depends on the seed, in no time."""

    def __init__(self, random_state=None, n_jobs=None, verbose=0):
        super().__init__()
        self.random_state, self.n_jobs, self.verbose = random_state, n_jobs, verbose

    def predict_uncertainty(self, X):
        proba = np.sort(self.predict_proba(X), axis=1)
        return Uncertainty.from_parts(1 - proba[:, -1], proba[:, 0] / (1 + self.random_state))


class NeedyClassifier:
    def __init__(self, graph):
        self.graph = graph


class Regression(Quick):
    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor"
        return tags


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def quantify(*arguments, train="known.csv", target="species", predict="new.csv", out="out.csv"):
    given = ["--train", train, "--target", target, "--predict", predict, "--out", out]
    return run("quantify", *given, *arguments)


def expected(seed=0, drop=()):
    model = TableModel(Quick(random_state=seed), random_state=seed)
    return model.fit(pd.read_csv("known.csv"), "species", drop=drop)


def written():
    return pd.read_csv("out.csv", keep_default_na=False)


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- quantify --------------------------------------------------------------------------------


def test_results_are_those_of_the_package_one_row_each_in_order(folder):
    result = quantify(*METHOD)
    assert result.exit_code == 0, result.output
    model, new = expected(), pd.read_csv("new.csv")
    pd.testing.assert_frame_equal(written(), model.predict(new), check_dtype=False)
    for note in [*model.notes_, *table_notes(model.count(new))]:
        assert note in result.stdout
    assert "10 rows were predicted." in result.stdout
    assert [line[:6] for line in result.stderr.splitlines()] == ["1 of 2", "2 of 2"]


def test_a_report_is_written_beside_the_table(folder):
    pytest.importorskip("matplotlib").use("Agg")
    result = quantify("--report", "report.html", *METHOD)
    assert result.exit_code == 0, result.output
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "How certain are the predictions of species?" in page
    assert "10 rows were predicted." in page
    assert "Report: report.html" in result.stdout
    assert (folder / "out.csv").exists()


def test_options_reach_estimator_and_table(folder):
    dropped = ["soil", "petal width"]
    result = quantify("--seed", "3", "--drop", dropped[0], "--drop", dropped[1], *METHOD)
    assert result.exit_code == 0
    rows = expected(3, dropped).predict(pd.read_csv("new.csv"))
    pd.testing.assert_frame_equal(written(), rows, check_dtype=False)


@pytest.mark.parametrize("method", ["QUICK", "QuickClassifier"])
def test_the_method_is_found_by_its_short_and_its_long_name(folder, method):
    assert quantify("--method", method).exit_code == 0


def test_the_id_comes_first_and_has_no_part(folder):
    for name in ("known.csv", "new.csv"):
        frame = pd.read_csv(name)
        frame.assign(plant=[f"p{i}" for i in range(len(frame))]).to_csv(name, index=False)
    assert quantify("--id", "plant", *METHOD).exit_code == 0
    rows = written()
    assert rows.columns[0] == "plant"
    assert rows["plant"].tolist() == [f"p{i}" for i in range(10)]
    plain = expected(drop=["plant"]).predict(pd.read_csv("new.csv"))
    pd.testing.assert_frame_equal(rows.drop(columns="plant"), plain, check_dtype=False)


def test_a_model_that_was_kept_says_the_same_of_the_same_rows(folder):
    pytest.importorskip("skops")
    assert quantify("--save", "kept", "--model", "logistic").exit_code == 0
    first = written()
    result = run("quantify", "--load", "kept", "--predict", "new.csv", "--out", "out2.csv")
    assert result.exit_code == 0, result.output
    pd.testing.assert_frame_equal(pd.read_csv("out2.csv", keep_default_na=False), first)
    assert "training table" not in result.output  # of which all was said when it was trained
    assert "Missing values in the table to predict" in result.stdout
    result = run("quantify", "--train", "known.csv", "--target", "species", "--save", "kept")
    assert "kept already exists" in refused(result, folder, files(folder))


def test_a_fitted_model_from_a_file_predicts(folder, flowers):
    skops = pytest.importorskip("skops.io")
    X = flowers[["petal length", "petal width"]]
    skops.dump(LogisticRegression().fit(X, flowers["species"]), "model.skops")
    assert quantify("--model", "model.skops").exit_code == 0
    expected = skops.load("model.skops").predict(pd.read_csv("new.csv")[list(X)])
    assert written()["prediction"].tolist() == expected.tolist()
    joblib.dump(LogisticRegression().fit(X, flowers["species"]), "model.joblib")
    before = files(folder)
    assert "say so (--trust)" in refused(quantify("--model", "model.joblib"), folder, before)
    assert quantify("--model", "model.joblib", "--trust").exit_code == 0


def test_spaces_around_the_names_of_a_given_models_columns_do_not_count(folder, flowers):
    skops = pytest.importorskip("skops.io")
    frame = flowers[["petal length", "petal width", "species"]]
    frame.rename(columns=lambda name: f" {name}").to_csv("known.csv", index=False)
    read = pd.read_csv("known.csv")
    X = read[[" petal width", " petal length"]]
    model = LogisticRegression().fit(X, read[" species"])
    skops.dump(model, "model.skops")
    assert quantify("--model", "model.skops", "--save", "kept").exit_code == 0
    new = pd.read_csv("new.csv")
    expected = model.predict(new.rename(columns=lambda name: f" {name}")[list(X)])
    assert written()["prediction"].tolist() == expected.tolist()
    again = run("quantify", "--load", "kept", "--predict", "new.csv", "--out", "again.csv")
    assert again.exit_code == 0, again.output
    pd.testing.assert_frame_equal(pd.read_csv("again.csv", keep_default_na=False), written())


def test_quiet_prints_nothing(folder, recwarn, capfd):
    result = quantify("--quiet", *METHOD)
    assert (result.exit_code, result.output) == (0, "")
    assert capfd.readouterr() == ("", "")
    assert [str(warning.message) for warning in recwarn] == []


def test_text_that_looks_like_numbers_stays_the_same_text(folder, flowers):
    codes = np.resize(["01", "1", "x"], len(flowers))
    flowers.assign(soil=codes).to_csv("known.csv", index=False)
    new = flowers.drop(columns="species").head(1)
    outputs, results = [], []
    for code in ("01", "1", "2"):
        new.assign(soil=code).to_csv("new.csv", index=False)
        outputs.append(quantify(*METHOD).stdout)
        results.append(pd.read_csv("out.csv"))
    assert ["absent in training" in output for output in outputs] == [False, False, True]
    assert not results[0].equals(results[1])


def test_codes_with_leading_zeros_are_text_also_to_a_model_that_was_kept(folder, flowers):
    pytest.importorskip("skops")
    codes = np.resize(["00249", "01500", "24900"], len(flowers))
    flowers.assign(zip=codes, species=flowers["species"] == "setosa").to_csv(
        "known.csv", index=False
    )
    flowers[:2].assign(zip=["00249", "00250"]).to_csv("new.csv", index=False)
    options = ["--model", "logistic", "--save", "kept"]
    result = quantify(*options)
    assert "Column zip counts as text, such as '00249'." in result.stdout
    assert written()["unseen"].tolist() == ["", "zip"]
    again = run("quantify", "--load", "kept", "--predict", "new.csv", "--out", "again.csv")
    assert again.exit_code == 0, again.output
    pd.testing.assert_frame_equal(pd.read_csv("again.csv", keep_default_na=False), written())


def test_codes_with_leading_zeros_are_numbers_to_a_given_model_and_as_a_target(folder, flowers):
    skops = pytest.importorskip("skops.io")
    frame = flowers[["petal length"]].assign(zip=np.resize(["00249", "01500", "24900"], 150))
    frame.assign(species=np.resize(["01", "02"], 150)).to_csv("known.csv", index=False)
    read = pd.read_csv("known.csv")
    X = read[["petal length", "zip"]]
    skops.dump(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, read["species"]), "m")
    frame[:9].to_csv("new.csv", index=False)
    result = quantify("--model", "m")
    assert result.exit_code in (0, 11), result.output  # nothing tells the classes apart
    assert "zip" not in result.stdout
    assert set(written()["prediction"]) <= {1, 2}


@pytest.mark.parametrize("words", [["true", "false"], ["TRUE", "FALSE"]])
def test_yes_and_no_are_known_again(folder, flowers, words):
    for way, output in ((["True", "False"], "plain.csv"), (words, "out.csv")):
        frame = flowers.assign(wild=np.resize(way, len(flowers)))
        frame.to_csv("known.csv", index=False)
        frame.drop(columns="species").to_csv("new.csv", index=False)
        assert "absent in training" not in quantify(*METHOD, out=output).stdout
    pd.testing.assert_frame_equal(written(), pd.read_csv("plain.csv", keep_default_na=False))


def test_a_given_model_gets_yes_and_no_as_it_got_them(folder, flowers):
    skops = pytest.importorskip("skops.io")
    frame = flowers[["petal length", "species"]].assign(wild=flowers["petal length"] > 4)
    model = LogisticRegression().fit(frame[["petal length", "wild"]], frame["species"])
    skops.dump(model, "model.skops")
    frame["wild"] = frame["wild"].map({True: "true", False: "false"})
    for name in ("known.csv", "new.csv"):
        frame.to_csv(name, index=False)
    assert quantify("--model", "model.skops").exit_code == 0
    known = pd.read_csv("known.csv")[["petal length", "wild"]]
    assert written()["prediction"].tolist() == model.predict(known).tolist()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_given_model_gets_texts_and_dates_of_files(folder, flowers, ending):
    skops = pytest.importorskip("skops.io")
    pytest.importorskip("pyarrow")
    days = pd.Series(pd.date_range("2030-01-01", periods=len(flowers), freq="13h"))
    flowers["when"] = days if ending == "parquet" else days.dt.strftime("%Y-%m-%d %H:%M")
    flowers["note"] = [f"{species} {k}" for k, species in enumerate(flowers["species"])]
    columns = make_column_transformer(
        (CountVectorizer(), "note"), (OneHotEncoder(handle_unknown="ignore"), ["when"])
    )
    X = flowers[["note", "when"]]
    model = make_pipeline(columns, LogisticRegression()).fit(X, flowers["species"])
    skops.dump(model, "model.skops")
    new = flowers.drop(columns="species").head(4).assign(note=["7", "007", "setosa", "1,5"])
    for name, frame in (("known", flowers), ("new", new)):
        write_table(folder / f"{name}.{ending}", [frame])
    given = {"train": f"known.{ending}", "predict": f"new.{ending}"}
    result = quantify("--model", "model.skops", "--trust", **given)
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(written()["confidence"], model.predict_proba(new).max(axis=1))


def test_marks_of_thousands_are_read_from_the_text_of_the_file(folder, flowers):
    amounts = np.resize(["1.200,5", "7,25", "3.000"], len(flowers))
    flowers.assign(amount=amounts).to_csv("known.csv", index=False)
    results = []
    for written_as in ("1.200,0", "1.200"):
        flowers.head(1).assign(amount=written_as).to_csv("new.csv", index=False)
        result = quantify(*METHOD)
        assert result.exit_code == 0, result.output
        results.append(written())
    pd.testing.assert_frame_equal(*results)


def test_the_default_method_may_be_named(folder):
    pytest.importorskip("skops")
    result = quantify("--method", "quam", "--model", "logistic", "--save", "kept")
    assert result.exit_code == 0, result.output


# --- what is refused -------------------------------------------------------------------------


def refused(result, folder, before):
    """The message of a refusal, which is one line; nothing was written."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert files(folder) == before
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({}, ["--seed", "-1"], "'--seed'"),
        ({}, ["--jobs", "0"], "--jobs must be"),
        ({}, ["--coverage", "1"], "'--coverage'"),
        (
            {},
            ["--drop", "species"],
            "target 'species' cannot be dropped or used as the id column",
        ),
        (
            {},
            ["--id", "species"],
            "target 'species' cannot be dropped or used as the id column",
        ),
        ({}, ["--id", "plant"], "no column 'plant'"),
        ({}, ["--load", "kept"], "omit --train, --target"),
        ({}, ["--model", "lightgbm"], "--model must be one of auto, hgb"),
        ({}, ["--model", "hgb", "--method", "quick"], "--model applies to --method quam only"),
        ({}, ["--save", "kept", "--method", "quick"], "pass --trust"),
        ({}, ["--task", "regression"], "'species' must be numeric"),
        ({"target": "spcies"}, [], "Did you mean 'species'?"),
        ({}, ["--held-out", "known.csv"], "--held-out is the training table"),
        ({}, ["--held-out", "./known.csv"], "--held-out is the training table"),
        ({"out": "out.xlsx"}, [], "out.xlsx: files that end with .xlsx are not written"),
        ({"out": "absent/out.csv"}, [], "The folder absent does not exist; create it first."),
        ({"out": "known.csv"}, [], "known.csv is already an input or output of this command"),
        ({"train": "bad.csv"}, [], "bad.csv has no rows"),
        ({"predict": "bad.csv"}, [], "bad.csv has no rows"),
        ({}, ["--coverage", "nan"], "--coverage must be a finite number, got nan."),
        ({}, ["--report", "out.csv"], "out.csv is already an input or output"),
        ({}, ["--method", "gpx"], "--method must be one of needy, quick, regression, got 'gpx'."),
        ({}, ["--method", "broken"], "got 'broken' (Plugin 'BrokenClassifier': no lib"),
        ({}, ["--method", "needy"], "'needy' can only be used from Python:"),
        ({}, ["--method", "regression"], "does not predict class probabilities"),
        ({"out": "n" * 250}, [], "Cannot write:"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(folder, given, options, message):
    if "--report" in options:
        pytest.importorskip("matplotlib")
    (folder / "bad.csv").write_text("a,b\n", encoding="utf-8")
    before = files(folder)
    assert message in refused(quantify("--quiet", *options, **given), folder, before)


@pytest.mark.parametrize(("command", "what"), [(["demo"], "skuq demo"), (["quantify"], "--report")])
def test_without_matplotlib_a_report_is_refused_naming_the_extra(
    folder, monkeypatch, command, what
):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(imports, "import_module", absent)
    before = files(folder)
    result = run("demo") if what == "skuq demo" else quantify("--report", "report.html")
    message = refused(result, folder, before)
    assert message.startswith(f"{what}: matplotlib is needed for this and is not installed")
    assert message.endswith("pip install 'skuq[plot]'")


@pytest.mark.parametrize("method", ["to_csv", "table_report"])
def test_a_failure_on_the_way_leaves_nothing_half_written(folder, monkeypatch, method):
    pytest.importorskip("matplotlib").use("Agg")

    def fail(*args, **kwargs):
        raise RuntimeError("out of luck")

    (folder / "out.csv").write_text("old", encoding="utf-8")
    before = files(folder)
    if method == "to_csv":
        monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    else:
        monkeypatch.setattr("skuq.reporting.table_report", fail)
    result = quantify("--report", "report.html", *METHOD)
    assert str(result.exception) == "out of luck"
    assert files(folder) == before


@pytest.mark.parametrize("name", ["absent", "known.csv"])
def test_a_model_is_loaded_from_a_folder_only(folder, name):
    before = files(folder)
    result = run("quantify", "--load", name, "--predict", "new.csv", "--out", "out.csv")
    assert f"{name} does not contain a model" in refused(result, folder, before)


def test_a_given_model_that_was_kept_refuses_missing_values_as_before(folder, flowers):
    skops = pytest.importorskip("skops.io")
    X = flowers[["petal length", "petal width"]]
    skops.dump(LogisticRegression().fit(X, flowers["species"]), "model.skops")
    new = X[:9].copy()
    new.loc[3, "petal width"] = np.nan
    new.to_csv("holed.csv", index=False)
    assert quantify("--model", "model.skops", "--save", "kept").exit_code == 0
    before = files(folder)
    load = ["quantify", "--load", "kept", "--predict", "holed.csv", "--out", "out2.csv"]
    for result in (run(*load), quantify("--quiet", "--model", "model.skops", predict="holed.csv")):
        message = refused(result, folder, before)
        assert "LogisticRegression cannot be used with this table: " in message
        assert message.endswith("(Columns with missing values: petal width.)")


def test_a_given_model_that_was_not_fitted_is_refused(folder):
    skops = pytest.importorskip("skops.io")
    skops.dump(LogisticRegression(), "model.skops")
    before = files(folder)
    result = quantify("--model", "model.skops")
    assert "LogisticRegression instance is not fitted" in refused(result, folder, before)


# --- files -----------------------------------------------------------------------------------


def table_of(name):
    return pd.read_parquet(name) if name.endswith("parquet") else pd.read_csv(name)


@pytest.mark.parametrize("ending", ["csv.gz", "parquet"])
def test_files_of_all_kinds_give_the_same_results(folder, flowers, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    assert quantify(*METHOD).exit_code == 0
    write_table(f"known.{ending}", [flowers])
    write_table(f"new.{ending}", [flowers.drop(columns="species")[::15]])
    given = {"train": f"known.{ending}", "predict": f"new.{ending}", "out": f"out.{ending}"}
    result = quantify(*METHOD, **given)
    assert result.exit_code == 0, result.output
    pd.testing.assert_frame_equal(
        table_of(f"out.{ending}").replace("", None), pd.read_csv("out.csv"), check_dtype=False
    )


def test_rows_are_scored_and_written_in_chunks(folder, flowers, monkeypatch):
    flowers["name"] = [f"{k:03}" for k in range(len(flowers))]
    flowers.to_csv("known.csv", index=False)
    flowers.to_csv("new.csv", index=False)
    options = [*METHOD, "--id", "name"]
    whole = quantify(*options, out="whole.csv")
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 40 * len(flowers.columns))
    parts = quantify(*options, out="parts.csv")
    whole_rows, rows = (
        pd.read_csv(f"{name}.csv", dtype={"name": str}) for name in ("whole", "parts")
    )
    columns = [name for name in rows if name != "reasons"]  # of the most unusual of each chunk
    pd.testing.assert_frame_equal(rows[columns], whole_rows[columns])
    assert rows["name"].tolist() == flowers["name"].tolist()
    assert whole.stdout.replace("whole", "parts") == parts.stdout


def test_how_files_were_read_is_said(folder, flowers):
    assert quantify(*METHOD, out="plain.csv").exit_code == 0
    flowers.to_csv("known.csv", index=False, sep=";", decimal=",", encoding="cp1252")
    result = quantify(*METHOD)
    assert result.exit_code == 0, result.output
    assert "known.csv was read with a semicolon as separator and a decimal comma." in result.stdout
    pd.testing.assert_frame_equal(pd.read_csv("out.csv"), pd.read_csv("plain.csv"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("new.csv.gz", b"a,b", "new.csv.gz is damaged"),
        ("new.parquet", b"a,b", "new.parquet cannot be read as Parquet"),
        ("new.csv", b"a;b\n1,200;2,300\n", "state the decimal mark (--decimal)"),
        ("new.csv", b"a,b\n\x81,1\n", "state its encoding (--encoding)"),
    ],
)
def test_files_that_cannot_be_read_are_named_before_anything_is_trained(
    folder, name, content, message
):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (folder / name).write_bytes(content)
    before = files(folder)
    assert message in refused(quantify(predict=name), folder, before)


def test_a_row_that_cannot_be_read_is_set_aside_with_its_line(folder, flowers, monkeypatch):
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 40 * len(flowers.columns))
    new = flowers.drop(columns="species").astype({"petal length": object})
    new.to_csv("new.csv", index=False)
    assert quantify(*METHOD).exit_code == 0
    expected = written()
    new.loc[100, "petal length"] = "long"
    new.to_csv("new.csv", index=False)
    before = files(folder)
    message = refused(quantify("--quiet", "--strict", *METHOD), folder, before)
    assert "line 102: petal length is 'long', not a number" in message
    result = quantify(*METHOD)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("1 of 150 rows not scored.\nSome rows were not scored because")
    rows = written()
    assert rows["reasons"][100] == "not scored: line 102: petal length is 'long', not a number"
    assert rows["prediction"][100] == ""
    columns = ["prediction", "prediction_set"]
    pd.testing.assert_frame_equal(rows[columns].drop(index=100), expected[columns].drop(index=100))


@pytest.mark.parametrize("kind", ["class", "quantity"])
def test_a_model_that_is_no_better_than_guessing_has_an_exit_code_of_its_own(folder, flowers, kind):
    random = np.random.default_rng(0)
    noise = random.integers(0, 2, 150) if kind == "class" else random.normal(size=150)
    flowers.assign(species=noise)[:100].to_csv("known.csv", index=False)
    other = flowers.assign(species=1 - noise if kind == "class" else 9 - noise)
    other[50:].to_csv("held.csv", index=False)
    result = quantify("--quiet", "--model", "logistic", "--held-out", "held.csv")
    assert result.exit_code == 11, result.output
    assert result.stderr.startswith("The model is no better than ")
    assert len(written()) == 10


def test_what_was_misread_is_said_first_with_its_line(folder, flowers):
    widths = flowers["petal width"].astype(str)
    widths[[3, 9]] = ["0.2 - 0.3", "wide"]
    flowers.assign(**{"petal width": widths}).to_csv("known.csv", index=False)
    lines = quantify(*METHOD).stdout.splitlines()
    assert lines[:2] == [
        "1 cell in column petal width holds a range, such as '0.2 - 0.3' (line 5), and is read as "
        "its midpoint.",
        "1 cell in column petal width holds something other than a number, such as 'wide' (line "
        "11), and counts as missing.",
    ]


def test_without_pyarrow_parquet_is_refused_naming_the_extra(folder, monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="pyarrow")

    monkeypatch.setattr(imports, "import_module", absent)
    before = files(folder)
    message = refused(quantify(out="out.parquet"), folder, before)
    assert message.endswith("pip install 'skuq[parquet]'")


def test_a_model_that_is_read_is_not_overwritten(folder):
    skops = pytest.importorskip("skops.io")
    X = load_iris(as_frame=True).data.set_axis(pd.read_csv("known.csv").columns[:4], axis=1)
    skops.dump(LogisticRegression(max_iter=1000).fit(X, load_iris().target), "mine.skops")
    assert quantify(*METHOD, "--save", "kept", "--trust", "--quiet").exit_code == 0
    before = files(folder)
    kept = folder / "kept" / "about.json"
    load = ["quantify", "--load", "kept", "--trust", "--predict", "new.csv"]
    for result, name in (
        (quantify("--model", "mine.skops", out="mine.skops"), "mine.skops"),
        (run(*load, "--out", kept), "about.json"),
        (quantify(*METHOD, "--save", "x", "--trust", out="x"), "x"),
    ):
        assert f"{name} is already an input or output" in refused(result, folder, before)


def test_codes_of_a_category_column_are_text_in_held_out_rows_too(folder):
    pytest.importorskip("pyarrow")
    known = pd.read_csv("known.csv").assign(code=np.resize(["01", "02", "10"], 150))
    known[1::2].to_csv("held.csv", index=False)
    write_table("known.parquet", [known[::2].astype({"code": "category"})])
    result = quantify(
        *METHOD,
        "--held-out",
        "held.csv",
        "--save",
        "kept",
        "--trust",
        "--drop",
        "soil",
        "--quiet",
        train="known.parquet",
        predict="held.csv",
    )
    assert result.exit_code == 0, result.stderr
    held = TableModel.load("kept", trust=True).held_out_
    assert held["n_unsupported"].sum() == 0


# --- what files hold stays what it is ------------------------------------------------------------


@pytest.mark.parametrize("words", [["007", "012"], ["TRUE", "FALSE"], ["true", "false"]])
def test_classes_are_written_as_the_files_have_them(folder, flowers, words):
    frame = flowers.assign(species=np.resize(words, len(flowers)))
    frame.to_csv("known.csv", index=False)
    frame[::3].to_csv("more.csv", index=False)
    result = quantify("--held-out", "more.csv", "--drop", "soil", *METHOD)
    assert result.exit_code == 2  # every row of it is known
    frame.assign(**{"petal width": frame["petal width"] + 0.01}).to_csv("more.csv", index=False)
    result = quantify("--held-out", "more.csv", *METHOD)
    assert result.exit_code == 0, result.output
    table = pd.read_csv("out.csv", dtype=str)
    assert set(table["prediction"]) <= set(words)
    assert set("; ".join(table["prediction_set"]).split("; ")) <= set(words)


def test_a_quantity_with_leading_zeros_is_a_number(folder, flowers):
    numbers = [f"{k:03}" for k in range(len(flowers))]
    flowers.assign(species=numbers).to_csv("known.csv", index=False)
    result = quantify("--task", "regression", "--model", "logistic", "--drop", "soil")
    assert result.exit_code == 0, result.output
    assert written()["lower"].dtype == float


def test_ids_are_copied_whatever_words_they_are(folder, flowers):
    ids = ["NA", "None", "null", "nan", "007", "1.10", "N/A", "x", "1", "2"]
    flowers[::15].assign(plant=ids).to_csv("new.csv", index=False)
    flowers.assign(plant=[f"p{k}" for k in range(150)]).to_csv("known.csv", index=False)
    assert quantify("--id", "plant", *METHOD).exit_code == 0
    assert pd.read_csv("out.csv", dtype=str, keep_default_na=False)["plant"].tolist() == ids


def test_a_column_that_is_new_in_nearly_all_rows_is_said_once(
    folder, flowers, monkeypatch, recwarn
):
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 20 * len(flowers.columns))
    mixed = flowers.sample(frac=1, random_state=0)
    days = pd.date_range("2024-01-01", periods=len(flowers)).astype(str)
    mixed.assign(day=days)[:100].to_csv("known.csv", index=False)
    mixed.assign(day=days)[102:].to_csv("new.csv", index=False)
    result = quantify(*METHOD)
    assert result.exit_code == 0, result.output
    assert "In nearly all of the 48 rows, day has a value that" in result.stdout
    assert "leave out such columns in training (--drop day)" in result.stdout
    assert not recwarn.list


@pytest.mark.parametrize("word", ["NA", "", "null"])
def test_codes_with_leading_zeros_are_text_beside_missing_ones(folder, flowers, word):
    codes = np.resize(["00249", "10115", "01067", word], len(flowers))
    flowers.assign(zip=codes).to_csv("known.csv", index=False)
    flowers[:2].assign(zip=["00249", "249"]).to_csv("new.csv", index=False)
    assert "Column zip counts as text, such as '00249'." in quantify(*METHOD).stdout
    assert written()["unseen"].tolist() == ["", "zip"]


def test_the_line_above_the_header_that_excel_writes_is_skipped(folder, flowers):
    expected = quantify(*METHOD)
    assert expected.exit_code == 0
    before = written()
    with open("known.csv", "w", encoding="utf-8") as file:
        file.write("sep=;\r\n")
        flowers.to_csv(file, sep=";", index=False)
    result = quantify(*METHOD)
    assert result.exit_code == 0, result.output
    assert "known.csv was read with a semicolon as separator" in result.stdout
    pd.testing.assert_frame_equal(written(), before)


def test_columns_of_lists_are_refused_in_one_line(folder, flowers):
    pytest.importorskip("pyarrow")
    flowers.assign(leaves=[[1, 2]] * len(flowers)).to_parquet("known.parquet")
    result = quantify(*METHOD, train="known.parquet")
    assert result.exit_code == 2
    assert "Column 'leaves' has several values in one cell" in result.stderr
    assert quantify("--drop", "leaves", *METHOD, train="known.parquet").exit_code == 0


def test_pipes_are_refused_in_one_line(folder):
    os.mkfifo("pipe")
    result = quantify(*METHOD, predict="pipe")
    assert result.exit_code == 2
    assert "is a pipe, which cannot be read more than once" in result.stderr
    result = quantify(*METHOD, out="-")
    assert result.exit_code == 2
    assert "pass the name of a file" in result.stderr


def test_a_coverage_that_few_rows_cannot_give_is_said_without_a_report(folder):
    assert "needs at least 99 held-out rows" in quantify("--coverage", ".99", *METHOD).stdout
    assert "needs at least" not in quantify("--coverage", ".9", *METHOD).stdout


def test_many_codes_with_leading_zeros_are_not_quantities_unasked(folder, flowers):
    flowers.assign(species=[f"{k:03}" for k in range(150)]).to_csv("known.csv", index=False)
    result = quantify("--drop", "soil", "--model", "logistic")
    assert result.exit_code == 2
    assert "predict a quantity (--task regression)." in result.stderr


# --- from the results to an audit --------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ["0", "1"],
        ["007", "012"],
        ["TRUE", "FALSE"],
        ["4", "3", "2", "1"],
        ["low; risk", " high", "=A1", "p(x)"],
    ],
)
def test_results_of_labelled_rows_are_audited_as_they_are(folder, names):
    rng = np.random.default_rng(0)
    codes = rng.integers(len(names), size=400)
    table = pd.DataFrame({"x": codes + rng.normal(size=400), "kind": np.array(names)[codes]})
    write_table("known.csv", [table[:200]])
    write_table("new.csv", [table[200:].assign(id=range(200))])
    result = quantify("--id", "id", *METHOD, target="kind", train="new.csv")
    assert result.exit_code == 0, result.output
    result = run("audit", "--predictions", "out.csv", "--label", "kind", "--alpha", "0.2")
    assert result.exit_code == 0, result.output
    assert f"p({names[0]}) -> {names[0]}" in result.output
    rows = pd.read_csv("out.csv", dtype={"kind": str, "prediction": str})
    assert list(rows)[:3] == ["id", "kind", "prediction"]
    data = run("audit", "--predictions", "out.csv", "--label", "kind", "--json", "a.json").output
    right = (rows["kind"] == rows["prediction"]).mean()
    assert f'"accuracy": {right}' in (folder / "a.json").read_text(encoding="utf-8"), data


def test_the_truth_is_left_out_where_results_have_such_a_column(folder, flowers):
    frame = flowers.rename(columns={"species": "total"})
    frame.to_csv("known.csv", index=False)
    frame[::15].to_csv("new.csv", index=False)
    result = quantify(*METHOD, target="total")
    assert result.exit_code == 0, result.output
    assert list(written()).count("total") == 1
    assert "The true values of 'total' were not copied" in result.stdout


def test_formulas_in_results_are_marked_and_said(folder, flowers):
    new = flowers.drop(columns="species")[::15].assign(name="=1+1", soil="@here", number="-5")
    new.to_csv("new.csv", index=False)
    flowers.assign(name="=0", number="-4").to_csv("known.csv", index=False)
    given = ["--id", "name", "--drop", "number", *METHOD]
    result = quantify(*given)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("A spreadsheet would evaluate such text as a formula") == 1
    assert set(written()["name"]) == {"'=1+1"}


def test_a_wrong_file_to_predict_is_refused_before_the_training(folder):
    (folder / "other.csv").write_text("p_no,p_yes\n0.1,0.9\n", encoding="utf-8")
    result = quantify(predict="other.csv")
    assert result.exit_code == 2
    assert "other.csv has none of the columns of the training table" in result.output
    assert "1 of " not in result.output  # steps of the training
