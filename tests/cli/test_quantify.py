"""``skuq quantify``: what it prints and writes, and how it refuses what it cannot use."""

import os
from unittest import mock

import joblib
import numpy as np
import pandas as pd
import pytest
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
from skuq.imports import Plugin
from skuq.tables import TableModel, table_notes
from tests.cli.runner import absent, files, refused, run

METHOD = ("--method", "quick")
PETALS = ["petal length", "petal width"]

pytestmark = pytest.mark.usefixtures("few_trees")


class Quick(UncertaintyMixin, GaussianNB):
    """A classifier whose uncertainty depends on the seed, in no time."""

    def __init__(self, random_state=None, n_jobs=None, verbose=0):
        super().__init__()
        self.random_state, self.n_jobs, self.verbose = random_state, n_jobs, verbose

    def predict_uncertainty(self, X):
        proba = np.sort(self.predict_proba(X), axis=1)
        return Uncertainty.from_parts(1 - proba[:, -1], proba[:, 0] / (1 + self.random_state))


class Regression(Quick):
    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor"
        return tags


def needy(graph):
    """A method that cannot be made without an argument."""


@pytest.fixture
def flowers():
    frame = load_iris(as_frame=True).frame
    frame.columns = ["sepal length", "sepal width", *PETALS, "species"]
    frame["species"] = load_iris().target_names[frame["species"]]
    frame["soil"] = np.resize(["clay", "loam", "sand", None], len(frame))
    frame["sepal width"] = frame["sepal width"].where(frame.index % 10 > 0)
    return frame


@pytest.fixture
def folder(tmp_path, monkeypatch, flowers):
    monkeypatch.chdir(tmp_path)
    flowers.to_csv("known.csv", index=False)
    flowers.drop(columns="species")[::15].to_csv("new.csv", index=False)
    quick = [
        Plugin("QuickClassifier", "skuq", "", estimator=Quick),
        Plugin("BrokenClassifier", "acme", "", error="Plugin 'BrokenClassifier': no libneeded"),
        Plugin("NeedyClassifier", "acme", "", estimator=needy),
        Plugin("Regression", "acme", "", estimator=Regression),
    ]
    monkeypatch.setattr(_quantify, "discover", lambda: quick)
    return tmp_path


def attempt(*arguments, train="known.csv", target="species", predict="new.csv", out="out.csv"):
    given = ["--train", train, "--target", target, "--predict", predict, "--out", out]
    return run("quantify", *given, *arguments)


def quantify(*arguments, **given):
    result = attempt(*arguments, **given)
    assert result.exit_code == 0, result.output
    return result.stdout


def again(*, predict="new.csv"):
    result = run("quantify", "--load", "kept", "--predict", predict, "--out", "again.csv")
    assert result.exit_code == 0, result.output
    return written("again.csv")


def expected(seed=0, drop=()):
    model = TableModel(Quick(random_state=seed), random_state=seed)
    return model.fit(pd.read_csv("known.csv"), "species", drop=drop)


def written(name="out.csv", **options):
    return pd.read_csv(name, keep_default_na=False, **options)


def keep_given(flowers, names=PETALS):
    skops = pytest.importorskip("skops.io")
    model = LogisticRegression().fit(flowers[names], flowers["species"])
    skops.dump(model, "model.skops")
    return model


def test_results_and_a_report_are_those_of_the_package_one_row_each_in_order(folder):
    pytest.importorskip("matplotlib")
    result = attempt(*METHOD, "--report", "report.html")
    assert result.exit_code == 0, result.output
    model, new = expected(), pd.read_csv("new.csv")
    pd.testing.assert_frame_equal(written(), model.predict(new), check_dtype=False)
    for note in [*model.notes_, *table_notes(model.count(new)), "Report: report.html"]:
        assert note in result.stdout
    assert [line[:6] for line in result.stderr.splitlines()] == ["1 of 2", "2 of 2"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "How certain are the predictions of species?" in page
    assert "10 rows were predicted." in page
    assert "10 rows were predicted." in result.stdout


def test_options_reach_estimator_and_table_and_the_id_comes_first(folder, recwarn, capfd):
    for name in ("known.csv", "new.csv"):
        frame = pd.read_csv(name)
        frame.assign(plant=[f"p{i}" for i in range(len(frame))]).to_csv(name, index=False)
    options = ["--seed", "3", "--drop", "soil", "--drop", "petal width", "--id", "plant"]
    result = attempt("--quiet", *options, "--method", "QuickClassifier")
    assert (result.exit_code, result.output) == (0, "")
    assert capfd.readouterr() == ("", "")
    assert [str(warning.message) for warning in recwarn] == []
    rows = expected(3, ["soil", "petal width", "plant"]).predict(pd.read_csv("new.csv"))
    rows.insert(0, "plant", [f"p{i}" for i in range(10)])
    pd.testing.assert_frame_equal(written(), rows, check_dtype=False)


def test_a_model_that_was_kept_says_the_same_of_the_same_rows(folder):
    pytest.importorskip("skops")
    quantify("--save", "kept", "--method", "quam", "--model", "logistic")
    result = run("quantify", "--load", "kept", "--predict", "new.csv", "--out", "again.csv")
    assert result.exit_code == 0, result.output
    pd.testing.assert_frame_equal(written("again.csv"), written())
    assert "training table" not in result.output  # of which all was said when it was trained
    assert "Missing values in the table to predict" in result.stdout
    result = run("quantify", "--train", "known.csv", "--target", "species", "--save", "kept")
    assert "kept already exists" in refused(result, folder, files(folder))


def test_a_model_that_is_no_better_than_guessing_has_an_exit_code_of_its_own(folder, flowers):
    noise = np.random.default_rng(0).integers(0, 2, 150)
    flowers.assign(species=noise)[:100].to_csv("known.csv", index=False)
    flowers.assign(species=1 - noise)[50:].to_csv("held.csv", index=False)
    result = attempt("--quiet", "--model", "logistic", "--held-out", "held.csv")
    assert result.exit_code == 11, result.output
    assert result.stderr.startswith("The model is no better than ")
    assert len(written()) == 10


def test_a_fitted_model_from_a_file_predicts(folder, flowers):
    model = keep_given(flowers)
    new = pd.read_csv("new.csv")[PETALS]
    quantify("--model", "model.skops", "--save", "kept")
    assert written()["prediction"].tolist() == model.predict(new).tolist()
    joblib.dump(model, "model.joblib")
    before = files(folder)
    assert "(--trust)" in refused(attempt("--model", "model.joblib"), folder, before)
    quantify("--model", "model.joblib", "--trust")
    # It refuses missing values, also when it was kept.
    new.assign(**{"petal width": new["petal width"].where(new.index != 3)}).to_csv("holed.csv")
    before = files(folder)
    load = ["quantify", "--load", "kept", "--predict", "holed.csv", "--out", "out2.csv"]
    for result in (run(*load), attempt("--quiet", "--model", "model.skops", predict="holed.csv")):
        message = refused(result, folder, before)
        assert "LogisticRegression cannot be used" in message
        assert message.endswith("(Columns with missing values: petal width.)")


def test_spaces_around_the_names_of_a_given_models_columns_do_not_count(folder, flowers):
    spaced = flowers[[*PETALS, "species"]].add_prefix(" ")
    spaced.to_csv("known.csv", index=False)
    names = [" petal width", " petal length"]
    model = keep_given(spaced.assign(species=spaced[" species"]), names)
    quantify("--model", "model.skops", "--save", "kept")
    new = pd.read_csv("new.csv").add_prefix(" ")[names]
    assert written()["prediction"].tolist() == model.predict(new).tolist()
    pd.testing.assert_frame_equal(again(), written())


def test_a_given_model_gets_codes_yes_and_no_as_numbers_and_booleans(folder, flowers):
    frame = flowers[["petal length", "species"]].assign(wild=flowers["petal length"] > 4)
    frame["zip"] = np.resize(["00249", "01500", "24900"], 150)
    skops = pytest.importorskip("skops.io")
    model = make_pipeline(StandardScaler(), LogisticRegression())
    X = frame[["petal length", "wild", "zip"]].astype({"zip": int})
    skops.dump(model.fit(X, frame["species"]), "model.skops")
    frame["wild"] = frame["wild"].map({True: "true", False: "false"})
    for name in ("known.csv", "new.csv"):
        frame.to_csv(name, index=False)
    assert "zip" not in quantify("--model", "model.skops")
    assert written()["prediction"].tolist() == model.predict(X).tolist()


@pytest.mark.parametrize("ending", ["csv.gz", "parquet"])
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
    given = {"train": f"known.{ending}", "predict": f"new.{ending}", "out": f"out.{ending}"}
    quantify("--model", "model.skops", "--trust", **given)
    rows = pd.read_parquet("out.parquet") if ending == "parquet" else written("out.csv.gz")
    np.testing.assert_allclose(rows["confidence"], model.predict_proba(new).max(axis=1))


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ({}, ["--seed", "-1"], "'--seed'"),
        ({}, ["--jobs", "0"], "--jobs"),
        ({}, ["--coverage", "1"], "'--coverage'"),
        ({}, ["--coverage", "nan"], "--coverage"),
        ({}, ["--id", "species"], "target 'species'"),
        ({}, ["--id", "plant"], "no column 'plant'"),
        ({"target": "spcies"}, [], "Did you mean 'species'?"),
        ({}, ["--load", "kept"], "omit --train, --target"),
        ({}, ["--model", "lightgbm"], "--model must be one of auto, hgb"),
        ({}, ["--model", "hgb", "--method", "quick"], "--model applies to --method quam only"),
        ({}, ["--save", "kept", "--method", "quick"], "pass --trust"),
        ({}, ["--held-out", "./known.csv"], "--held-out is the training table"),
        ({"out": "out.xlsx"}, [], "out.xlsx: files that end with .xlsx"),
        ({"out": "absent/out.csv"}, [], "folder absent"),
        ({"out": "known.csv"}, [], "known.csv is already an input or output"),
        ({"out": "-"}, [], "'-'"),
        ({}, ["--report", "out.csv"], "out.csv is already an input or output"),
        ({"out": "n" * 250}, METHOD, "Cannot write:"),
        ({}, ["--method", "gpx"], "--method must be one of needy, quick, regression, got 'gpx'."),
        ({}, ["--method", "broken"], "got 'broken' (Plugin 'BrokenClassifier': no lib"),
        ({}, ["--method", "needy"], "'needy' can only be used from Python:"),
        ({}, ["--method", "regression"], "class probabilities"),
        ({"train": "none.csv"}, [], "none.csv has no rows"),
        ({"predict": "other.csv"}, [], "other.csv has none of the columns"),
        ({"predict": "mark.csv"}, [], "(--decimal)"),
        ({"predict": "pipe"}, [], "pipe is a pipe"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(folder, given, options, words):
    pytest.importorskip("matplotlib")
    contents = {"none.csv": b"a,b\n", "other.csv": b"p_no,p_yes\n0.1,0.9\n"}
    for name, content in {**contents, "mark.csv": b"a;b\n1,200;2,300\n"}.items():
        (folder / name).write_bytes(content)
    before = files(folder)
    if "pipe" in given.values():
        os.mkfifo("pipe")
    result = attempt("--quiet", *options, **given)
    assert words in refused(result, folder, before)


def test_what_needs_a_missing_package_is_refused_naming_the_extra(folder, monkeypatch):
    monkeypatch.setattr(imports, "import_module", absent)
    before = files(folder)
    for result, extra in (
        (run("demo"), "plot"),
        (attempt("--report", "r.html"), "plot"),
        (attempt(out="out.parquet"), "parquet"),
    ):
        assert refused(result, folder, before).endswith(f"pip install 'skuq[{extra}]'")


def test_a_report_that_fails_leaves_nothing_half_written(folder, monkeypatch):
    pytest.importorskip("matplotlib")
    (folder / "out.csv").write_text("old", encoding="utf-8")
    before, failing = files(folder), mock.Mock(side_effect=RuntimeError("out of luck"))
    monkeypatch.setattr("skuq.reporting.table_report", failing)
    assert str(attempt("--report", "report.html", *METHOD).exception) == "out of luck"
    assert files(folder) == before


def test_models_are_loaded_from_folders_and_files_that_are_read_not_overwritten(folder, flowers):
    for name in ("absent", "known.csv"):
        result = run("quantify", "--load", name, "--predict", "new.csv", "--out", "out.csv")
        assert f"{name} does not contain a model" in refused(result, folder, files(folder))
    keep_given(flowers)
    quantify(*METHOD, "--save", "kept", "--trust", "--quiet")
    before = files(folder)
    load = ["quantify", "--load", "kept", "--trust", "--predict", "new.csv"]
    for result, name in (
        (attempt("--model", "model.skops", out="model.skops"), "model.skops"),
        (run(*load, "--out", "kept/about.json"), "about.json"),
        (attempt(*METHOD, "--save", "x", "--trust", out="x"), "x"),
    ):
        assert f"{name} is already an input or output" in refused(result, folder, before)


def test_rows_are_scored_and_written_in_chunks(folder, flowers, monkeypatch):
    flowers["name"] = [f"{k:03}" for k in range(len(flowers))]
    for name in ("known.csv", "new.csv"):
        flowers.to_csv(name, index=False)
    whole = quantify(*METHOD, "--id", "name", out="whole.csv")
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 40 * len(flowers.columns))
    parts = quantify(*METHOD, "--id", "name", out="parts.csv")
    expected, rows = (written(f"{name}.csv", dtype={"name": str}) for name in ("whole", "parts"))
    columns = [name for name in rows if name != "reasons"]  # of the most unusual of each chunk
    pd.testing.assert_frame_equal(rows[columns], expected[columns])
    assert rows["name"].tolist() == flowers["name"].tolist()
    assert whole.replace("whole", "parts") == parts


def test_how_files_were_read_is_said(folder, flowers):
    quantify(*METHOD, out="plain.csv")
    with open("known.csv", "w", encoding="cp1252") as file:
        file.write("sep=;\r\n")  # the line above the header that Excel writes
        flowers.to_csv(file, sep=";", decimal=",", index=False)
    told = quantify(*METHOD)
    assert "known.csv was read with a semicolon as separator and a decimal comma." in told
    pd.testing.assert_frame_equal(written(), written("plain.csv"))


def test_what_cannot_be_read_is_said_first_with_its_line(folder, flowers, monkeypatch):
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 40 * len(flowers.columns))
    new = flowers.drop(columns="species").astype({"petal length": object})
    new.to_csv("new.csv", index=False)
    quantify(*METHOD)
    expected = written()
    new.loc[100, "petal length"] = "long"
    new.to_csv("new.csv", index=False)
    told = "line 102: petal length is 'long', not a number"
    before = files(folder)
    assert told in refused(attempt("--quiet", "--strict", *METHOD), folder, before)
    assert quantify(*METHOD).startswith(f"1 of 150 rows not scored: {told}.\n")
    rows = written()
    assert (rows["reasons"][100], rows["prediction"][100]) == (f"not scored: {told}", "")
    columns = ["prediction", "prediction_set"]
    pd.testing.assert_frame_equal(rows[columns].drop(index=100), expected[columns].drop(index=100))
    widths = flowers["petal width"].astype(str)
    widths[[3, 9]] = ["0.2 - 0.3", "wide"]
    flowers.assign(**{"petal width": widths}).to_csv("known.csv", index=False)
    _, first, second, *_ = quantify(*METHOD).splitlines()
    assert "a range, such as '0.2 - 0.3' (line 5)" in first
    assert "other than a number, such as 'wide' (line 11)" in second


def test_text_that_looks_like_numbers_stays_the_same_text(folder, flowers):
    pytest.importorskip("skops")
    new, results = flowers.drop(columns="species").head(1), []
    # Beside words for missing values, too.
    codes = np.resize(["01", "1", "x", "NA", "null"], len(flowers))
    flowers.assign(soil=codes).to_csv("known.csv", index=False)
    for code, is_new in (("01", False), ("1", False), ("2", True)):
        new.assign(soil=code).to_csv("new.csv", index=False)
        assert ("absent in training" in quantify(*METHOD)) == is_new
        results.append(written())
    assert not results[0].equals(results[1])
    # Codes with leading zeros, also to a model that was kept.
    for word in ("24900", "NA", ""):
        codes = np.resize(["00249", "01500", "10115", word], len(flowers))
        flowers.assign(zip=codes).to_csv("known.csv", index=False)
        flowers[:2].assign(zip=["00249", "249"]).to_csv("new.csv", index=False)
        assert "Column zip counts as text, such as '00249'." in quantify(*METHOD)
        assert written()["unseen"].tolist() == ["", "zip"]
    quantify("--model", "logistic", "--save", "kept")
    pd.testing.assert_frame_equal(again(), written())
    # Those of a target are quantities if asked for.
    flowers.assign(species=[f"{k:03}" for k in range(150)]).to_csv("known.csv", index=False)
    given = ["--drop", "soil", "--model", "logistic"]
    assert "(--task regression)" in refused(attempt(*given), folder, files(folder))
    quantify("--task", "regression", *given)
    assert written()["lower"].dtype == float


def test_the_same_value_in_other_letters_and_marks_gives_the_same_results(folder, flowers):
    wild, results = flowers.assign(wild=np.resize([True, False], len(flowers))), []
    for yes in ("True", "true", "TRUE"):
        frame = wild.assign(wild=wild["wild"].map({True: yes, False: "FALSE"}))
        frame.to_csv("known.csv", index=False)
        frame.drop(columns="species").to_csv("new.csv", index=False)
        assert "absent in training" not in quantify(*METHOD)
        results.append(written())
    for other in results[1:]:
        pd.testing.assert_frame_equal(other, results[0])
    amounts = np.resize(["1.200,5", "7,25", "3.000"], len(flowers))
    flowers.assign(amount=amounts).to_csv("known.csv", index=False)
    for written_as in ("1.200,0", "1.200"):
        flowers.head(1).assign(amount=written_as).to_csv("new.csv", index=False)
        quantify(*METHOD)
        results.append(written())
    pd.testing.assert_frame_equal(*results[-2:])


@pytest.mark.parametrize("words", [["007", "012"], ["TRUE", "FALSE"], ["true", "false"]])
def test_ids_and_classes_are_written_as_the_files_have_them(folder, flowers, words):
    frame = flowers.assign(species=np.resize(words, 150), plant=[f"p{k}" for k in range(150)])
    frame.to_csv("known.csv", index=False)
    more = frame.assign(**{"petal width": frame["petal width"] + 0.01, "plant": "q"})
    more[::3].to_csv("more.csv", index=False)
    ids = ["NA", "None", "null", "nan", "007", "1.10", "N/A", "x", "1", "2"]
    flowers[::15].assign(plant=ids).to_csv("new.csv", index=False)
    quantify("--id", "plant", "--held-out", "more.csv", *METHOD)
    table = written(dtype=str)
    assert table["plant"].tolist() == ids
    assert set(table["prediction"]) <= set(words)
    assert set("; ".join(table["prediction_set"]).split("; ")) <= set(words)


def test_codes_of_a_category_column_are_text_in_held_out_rows_too(folder):
    pytest.importorskip("pyarrow")
    known = pd.read_csv("known.csv").assign(code=np.resize(["01", "02", "10"], 150))
    known[1::2].to_csv("held.csv", index=False)
    write_table("known.parquet", [known[::2].astype({"code": "category"})])
    options = ["--held-out", "held.csv", "--save", "kept", "--trust", "--drop", "soil"]
    quantify(*METHOD, *options, train="known.parquet", predict="held.csv")
    held = TableModel.load("kept", trust=True).held_out_
    assert held["n_unsupported"].sum() == 0


def test_columns_of_lists_are_refused_and_true_values_have_a_name_of_their_own(folder, flowers):
    frame = flowers.rename(columns={"species": "total"})
    frame.to_csv("known.csv", index=False)
    frame[::15].to_csv("new.csv", index=False)
    quantify(*METHOD, target="total")
    assert written()["total (true)"].tolist() == frame["total"][::15].tolist()
    assert list(written())[:4] == ["total (true)", "prediction", "confidence", "total"]
    pytest.importorskip("pyarrow")
    flowers.assign(leaves=[[1, 2]] * len(flowers)).to_parquet("known.parquet")
    result = attempt(*METHOD, train="known.parquet")
    assert "'leaves' has several values" in refused(result, folder, files(folder))
    quantify("--drop", "leaves", *METHOD, train="known.parquet")


def test_a_column_that_is_new_in_nearly_all_rows_is_said_once(
    folder, flowers, monkeypatch, recwarn
):
    assert "needs at least 99 held-out rows" in quantify("--coverage", ".99", *METHOD)
    assert "needs at least" not in quantify("--coverage", ".9", *METHOD)
    monkeypatch.setattr("skuq._table_files._read.CHUNK_CELLS", 20 * len(flowers.columns))
    days = pd.date_range("2024-01-01", periods=len(flowers)).astype(str)
    mixed = flowers.sample(frac=1, random_state=0).assign(day=days)
    mixed[:100].to_csv("known.csv", index=False)
    mixed[102:].to_csv("new.csv", index=False)
    told = quantify(*METHOD)
    assert told.count("In nearly all of the 48 rows, day has a value that") == 1
    assert "(--drop day)" in told
    assert not recwarn.list


@pytest.mark.parametrize(
    "names", [["0", "1"], ["007", "012"], ["TRUE", "FALSE"], ["low; risk", " high", "=A1", "p(x)"]]
)
def test_results_of_labelled_rows_are_audited_as_they_are(folder, names):
    rng = np.random.default_rng(0)
    codes = rng.integers(len(names), size=400)
    table = pd.DataFrame({"x": codes + rng.normal(size=400), "kind": np.array(names)[codes]})
    write_table("new.csv", [table[200:].assign(id=range(200))])
    quantify("--id", "id", *METHOD, target="kind", train="new.csv")
    audited = ["--predictions", "out.csv", "--label", "kind"]
    result = run("audit", *audited, "--tolerance", "0.2", "--json", "a.json")
    assert result.exit_code == 12, result.output  # few rows
    assert f"p({names[0]}) -> {names[0]}" in result.output
    rows = pd.read_csv("out.csv", dtype={"kind (true)": str, "prediction": str})
    assert list(rows)[:3] == ["id", "kind (true)", "prediction"]
    right = (rows["kind (true)"] == rows["prediction"]).mean()
    assert f'"accuracy": {right}' in (folder / "a.json").read_text(encoding="utf-8")
