"""Models of tables in folders: the same predictions again, and nothing that runs unasked."""

import json
import shutil
import zipfile

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder, StandardScaler

from skuq.tables import TableError, TableModel, _storage, check_savable, read_estimator
from skuq.tables._storage import TRUSTED

skops = pytest.importorskip("skops.io")

PETALS = ["petal length (cm)", "petal width (cm)"]


@pytest.fixture(scope="module")
def flowers():
    frame = load_iris(as_frame=True).frame
    frame["soil"] = np.resize(["clay", "loam", None], len(frame))
    frame["wet"] = np.resize([True, False], len(frame))
    frame["sepal width (cm)"] = frame["sepal width (cm)"].where(frame.index % 9 > 0)
    return frame.assign(target=load_iris().target_names[frame["target"]])


@pytest.fixture(scope="module")
def patients():
    frame = load_diabetes(as_frame=True, scaled=False).frame
    return frame[["age", "bmi", "bp", "s5", "target"]][:120].assign(target=frame["target"] + 0.5)


@pytest.fixture(scope="module")
def line(flowers):
    named = flowers.assign(plant=[f"plant {i}" for i in range(len(flowers))])
    named["day"] = pd.date_range("2020-01-01", periods=150).strftime("%d.%m.%Y")
    named["weight"] = [f"{k % 7} kg" for k in range(150)]
    named["soil"] = np.resize([f"soil {i}" for i in range(75)], len(flowers))
    return TableModel("logistic").fit(named, "target", id_column="plant"), named


@pytest.fixture(scope="module")
def kept(line, flowers, patients, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    made = TableModel("network").fit(flowers[["petal length (cm)", "soil", "target"]], "target")
    made.save(folder / "network")
    line[0].save(folder / "line")
    TableModel("logistic").fit(patients, "target").save(folder / "regression")
    return folder


def check_kept(model, table, folder):
    expected = model.predict(table, n_explained=5)
    model.save(folder / "kept")
    loaded = TableModel.load(folder / "kept")
    pd.testing.assert_frame_equal(loaded.predict(table, n_explained=5), expected)
    pd.testing.assert_frame_equal(loaded.count(table), model.count(table))
    np.testing.assert_array_equal(loaded.measured_coverage(), model.measured_coverage())
    pd.testing.assert_frame_equal(loaded.held_out_, model.held_out_.reset_index(drop=True))
    assert loaded.notes_ == model.notes_
    return loaded


@pytest.mark.usefixtures("short_training", "small_learners")
@pytest.mark.parametrize("name", ["hgb", "network", "forest"])
def test_a_kept_classifier_predicts_the_same(flowers, tmp_path, name):
    two = flowers[flowers["target"] != "virginica"]
    model = TableModel(name).fit(two[::2], "target")
    check_kept(model, two[1::4].reset_index(drop=True), tmp_path)


@pytest.mark.usefixtures("short_training", "small_learners")
@pytest.mark.parametrize("name", ["hgb", "logistic", "network"])
def test_a_kept_regressor_predicts_the_same(patients, tmp_path, name):
    check_kept(TableModel(name).fit(patients[:60], "target"), patients[90:], tmp_path)


def test_kept_given_models_and_dates_and_units_are_as_before(line, flowers, tmp_path):
    model, table = line
    check_kept(model, table[:9], tmp_path)
    assert any("Column weight contains numbers with the unit 'kg'" in n for n in model.notes_)
    given = make_pipeline(StandardScaler(), LogisticRegression())
    given.fit(flowers[PETALS], flowers["target"])
    shutil.rmtree(tmp_path / "kept")
    loaded = check_kept(TableModel(given).fit(flowers, "target"), flowers[:9], tmp_path)
    assert loaded.predict(flowers)["prediction"].tolist() == given.predict(flowers[PETALS]).tolist()


def test_no_training_row_is_kept_but_those_that_explain(kept):
    with zipfile.ZipFile(kept / "line" / "model.skops") as file:
        largest = max(info.file_size for info in file.infolist() if "json" in info.filename)
        content = b"".join(file.read(name) for name in file.namelist())
    assert b"plant 1" not in content
    assert largest < 10**7


def test_a_folder_is_never_written_over(line, tmp_path):
    check_savable(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    for check in (line[0].save, check_savable):
        for name, words in (("kept", "exists"), ("absent/kept", "does not exist")):
            with pytest.raises(TableError, match=words):
                check(tmp_path / name)


def shouting(X):
    raise RuntimeError("code of somebody else was run")


def halved(X):
    return X / 2


def test_what_needs_code_is_kept_and_loaded_with_trust_alone(flowers, tmp_path):
    given = make_pipeline(FunctionTransformer(halved), LogisticRegression())
    model = TableModel(given.fit(flowers[PETALS], flowers["target"])).fit(flowers, "target")
    with pytest.raises(TableError, match=r"halved.*`trust=True`"):
        model.save(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    model.save(tmp_path / "kept", trust=True)
    with pytest.raises(TableError, match="`trust=True`"):
        TableModel.load(tmp_path / "kept")
    loaded = TableModel.load(tmp_path / "kept", trust=True)
    pd.testing.assert_frame_equal(loaded.predict(flowers), model.predict(flowers))


@pytest.fixture
def copy(kept, tmp_path):
    return shutil.copytree(kept / "network", tmp_path / "copy")


def test_a_forged_folder_and_a_model_of_another_version_are_refused_and_run_no_code(copy):
    def refuses(words):
        with pytest.raises(TableError, match=words):
            TableModel.load(copy)

    path = copy / "about.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    for change, words in (
        ({"format": 1}, f"format 1, but {_storage.FORMAT}"),
        ({"skuq": "99.1.0"}, "install skuq 99.1.0"),
        ({"scikit-learn": "0.1.2"}, "scikit-learn 0.1.2"),
    ):
        path.write_text(json.dumps(about | change), encoding="utf-8")
        refuses(words)
    path.write_text(json.dumps(about), encoding="utf-8")
    for forged in ([], {}, {"estimator_": None}, LogisticRegression()):
        skops.dump(forged, copy / "model.skops")
        refuses("no TableModel")
    skops.dump(FunctionTransformer(shouting), copy / "model.skops")
    refuses(r"may run code: .*shouting")
    (copy / "model.skops").write_bytes(b"PK\x03\x04 and no more")
    refuses("cannot be loaded")
    path.unlink()
    refuses("does not contain a model")


@pytest.mark.parametrize("sparse", [False, True])
def test_a_file_that_grows_in_memory_is_refused(tmp_path, monkeypatch, sparse):
    monkeypatch.setattr(_storage, "SMALL_MODEL", 2**18)
    zeros = np.zeros((1, 2**20))
    inner = csr_matrix((zeros[0], zeros[0].astype(int), [0, zeros.size])) if sparse else zeros
    skops.dump(inner, tmp_path / "bomb.skops", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(TableError, match="MiB of memory"):
        read_estimator(tmp_path / "bomb.skops")
    read_estimator(tmp_path / "bomb.skops", trust=True)
    skops.dump(np.random.default_rng(0).normal(size=(1, 2**16)), tmp_path / "large.skops")
    read_estimator(tmp_path / "large.skops")
    # A long description is refused before it is parsed.
    monkeypatch.setattr(_storage, "LARGEST_SCHEMA", 100)
    with pytest.raises(TableError, match="MiB of memory"):
        read_estimator(tmp_path / "large.skops")


def contents(folder):
    return skops.load(folder / "model.skops", trusted=[*TRUSTED])


def names_in(value):
    """Names of the format in what was loaded, and whether all else is plain or of scikit-learn."""
    if isinstance(value, dict):
        own = {value["skuq"]} if "skuq" in value else set()
        return own.union(*map(names_in, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(names_in, value))
    assert type(value).__module__.split(".")[0] in ("builtins", "numpy", "sklearn"), value
    return set()


def test_the_file_names_formats_and_no_class_of_skuq(kept):
    with zipfile.ZipFile(kept / "network" / "model.skops") as file:
        schema = file.read("schema.json").decode()
    assert '"skuq.' not in schema
    assert '"torch"' not in schema
    common = {"tables.table-model", "tables.clean-columns", "tables.training-values"}
    common |= {"tables.comparison", "pandas.frame", "ood.combination", "ood.tail", "tables.encoder"}
    assert names_in(contents(kept / "network")) == common | {
        *("quam.classifier", "quam.pool-search", "quam.classification"),
        *("quam.found-networks", "quam.fitted-search", "quam.search-problem"),
        *("models.network", "models.rows"),
        *("torch.tensor", "torch.chain", "torch.linear", "torch.relu"),
    }
    assert names_in(contents(kept / "regression")) == common | {
        *("quam.regressor", "quam.refit-search", "quam.regression", "quam.refitted"),
        *("models.learner", "models.table"),
        *("tables.quantities", "tables.target-scale", "residuals.row-noise", "residuals.forest"),
    }


def at(tree, *path):
    for key in path:
        tree = tree[key]
    return tree


FOUND, MODULE = ("estimator_", "_found"), ("estimator_", "model_", "module", "layers")
TAMPERED = {
    "another name": lambda t: t.update(skuq="tables.other"),
    "another object": lambda t: t.update(columns_=t["comparison_"]),
    "no field": lambda t: t.pop("training_values_"),
    "no field within": lambda t: at(t, *FOUND).pop("excess_loss"),
    "one field more": lambda t: t.update(os="system"),
    "one field more within": lambda t: at(t, "estimator_", "model_").update(hook="run"),
    "text for a number": lambda t: t.update(random_state="0"),
    "text for text of columns": lambda t: at(t, "columns_").update(numbers_="petal"),
    "a list for an array": lambda t: at(t, *FOUND).update(sought=[0, 1]),
    "text for an array of numbers": lambda t: at(t, *FOUND).update(excess_loss=np.array(["a"])),
    "a parameter out of range": lambda t: t["estimator_"].update(gamma=-1.0),
    "no estimator": lambda t: t.update(estimator_=t["comparison_"]),
    "columns of different lengths": lambda t: at(t, "held_out_", "columns").update(total=[0.0]),
    "a layer for a network": lambda t: at(t, *FOUND, "fitted", "problem").update(module="relu"),
    "an unknown layer": lambda t: at(t, *MODULE)[1].update(skuq="torch.gelu"),
    "weights that do not fit": lambda t: at(t, *MODULE)[0].update(bias=np.zeros(3)),
}


@pytest.mark.parametrize("change", TAMPERED)
def test_a_file_that_was_tampered_with_is_refused(copy, change):
    tree = contents(copy)
    TAMPERED[change](tree)
    skops.dump(tree, copy / "model.skops")
    with pytest.raises(TableError, match="is not a model saved by skuq"):
        TableModel.load(copy)


def test_a_common_pipeline_is_read_without_trust(flowers, tmp_path):
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    texts = make_column_selector(dtype_exclude="number")
    columns = make_column_transformer((codes, texts), remainder="passthrough")
    X = flowers.drop(columns="target")
    given = make_pipeline(columns, HistGradientBoostingClassifier(max_iter=5))
    skops.dump(given.fit(X, flowers["target"]), tmp_path / "f.skops")
    again = read_estimator(tmp_path / "f.skops")
    np.testing.assert_array_equal(again.predict_proba(X), given.predict_proba(X))
    # Yes and no reach it as it saw them in training.
    rows = TableModel(again).fit(flowers, "target").predict(X, n_explained=0)
    np.testing.assert_allclose(rows["confidence"], given.predict_proba(X).max(axis=1))


def test_a_file_of_somebody_else_is_read_without_its_code(tmp_path):
    skops.dump(FunctionTransformer(shouting), tmp_path / "f.skops")
    joblib.dump(StandardScaler(), tmp_path / "f.joblib")
    (tmp_path / "f.txt").write_text("nothing", encoding="utf-8")
    for name, trust, words in (
        ("f.skops", False, r"may run code: .*shouting"),
        ("f.joblib", False, "unpickles"),
        ("f.txt", True, "cannot be loaded"),
    ):
        with pytest.raises(TableError, match=words):
            read_estimator(tmp_path / name, trust=trust)
    assert isinstance(read_estimator(tmp_path / "f.joblib", trust=True), StandardScaler)
