"""Models of tables in folders: the same predictions again, and nothing that runs unasked."""

import json
import shutil
import zipfile
from dataclasses import dataclass

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

from skuq.files import CLASSES, stored
from skuq.tables import TableError, TableModel, _storage, check_savable, read_estimator
from skuq.tables._storage import TRUSTED

pytest.importorskip("skops")


@pytest.fixture(scope="module")
def flowers():
    """Iris, with a column of text, one of yes and no, and missing values."""
    frame = load_iris(as_frame=True).frame
    frame["soil"] = np.resize(["clay", "loam", None], len(frame))
    frame["wet"] = np.resize([True, False], len(frame))
    frame["sepal width (cm)"] = frame["sepal width (cm)"].where(frame.index % 9 > 0)
    return frame.assign(target=load_iris().target_names[frame["target"]])


@pytest.fixture(scope="module")
def patients():
    """Fifty patients, four measurements and how their illness went on."""
    frame = load_diabetes(as_frame=True, scaled=False).frame
    return frame[["age", "bmi", "bp", "s5", "target"]][:120].assign(target=frame["target"] + 0.5)


def check_kept(model, table, folder):
    expected = model.predict(table, n_explained=5)
    model.save(folder / "kept")
    loaded = TableModel.load(folder / "kept")
    pd.testing.assert_frame_equal(loaded.predict(table, n_explained=5), expected)
    pd.testing.assert_frame_equal(loaded.count(table), model.count(table))
    np.testing.assert_array_equal(loaded.measured_coverage(), model.measured_coverage())
    assert loaded.notes_ == model.notes_
    return loaded


@pytest.mark.slow
@pytest.mark.usefixtures("short_training", "small_learners")
@pytest.mark.parametrize("name", ["hgb", "logistic", "network", "forest"])
def test_a_kept_classifier_predicts_the_same(flowers, tmp_path, name):
    two = flowers[flowers["target"] != "virginica"]
    model = TableModel(name).fit(two[::2], "target")
    check_kept(model, two[1::4].reset_index(drop=True), tmp_path)


@pytest.mark.usefixtures("short_training", "small_learners")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("hgb", marks=pytest.mark.slow),
        pytest.param("logistic", marks=pytest.mark.slow),
        "network",
    ],
)
def test_a_kept_regressor_predicts_the_same(patients, tmp_path, name):
    model = TableModel(name).fit(patients[:90], "target")
    check_kept(model, patients[90:], tmp_path)


def test_a_kept_given_model_predicts_the_same(flowers, tmp_path):
    X = flowers[["petal length (cm)", "petal width (cm)"]]
    given = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, flowers["target"])
    loaded = check_kept(TableModel(given).fit(flowers, "target"), flowers[:9], tmp_path)
    assert loaded.predict(flowers)["prediction"].tolist() == given.predict(X).tolist()


def test_a_folder_is_never_written_over(flowers, tmp_path):
    model = TableModel("logistic").fit(flowers, "target")
    check_savable(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    for check in (model.save, check_savable):
        with pytest.raises(TableError, match="already exists"):
            check(tmp_path / "kept")
        with pytest.raises(TableError, match="does not exist; create it first"):
            check(tmp_path / "absent" / "kept")


def shouting(X):
    raise RuntimeError("code of somebody else was run")


def halved(X):
    return X / 2


def test_what_needs_code_is_kept_and_loaded_with_trust_alone(flowers, tmp_path):
    X = flowers[["petal length (cm)", "petal width (cm)"]]
    given = make_pipeline(FunctionTransformer(halved), LogisticRegression())
    given.fit(X, flowers["target"])
    model = TableModel(given).fit(flowers, "target")
    with pytest.raises(TableError, match=r"that skops cannot store: .*halved.*`trust=True`"):
        model.save(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    model.save(tmp_path / "kept", trust=True)
    with pytest.raises(TableError, match=r"say so \(`trust=True`\)"):
        TableModel.load(tmp_path / "kept")
    loaded = TableModel.load(tmp_path / "kept", trust=True)
    pd.testing.assert_frame_equal(loaded.predict(flowers), model.predict(flowers))


@pytest.fixture(scope="module")
def kept_line(flowers, tmp_path_factory):
    """Folder with a linear model of the flowers."""
    folder = tmp_path_factory.mktemp("line") / "kept"
    TableModel("logistic").fit(flowers, "target").save(folder)
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, f"saved with format 1, but {_storage.FORMAT} is installed"),
        ({"skuq": "99.1.0"}, r"saved with skuq 99.1.0, but .* is installed; install skuq 99.1.0"),
        ({"scikit-learn": "0.1.2"}, "saved with scikit-learn 0.1.2"),
    ],
)
def test_a_model_of_another_version_is_refused(kept_line, tmp_path, change, message):
    shutil.copytree(kept_line, tmp_path / "kept")
    path = tmp_path / "kept" / "about.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8"
    )
    with pytest.raises(TableError, match=message):
        TableModel.load(tmp_path / "kept")


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(TableError, match="does not contain a model saved by skuq"):
        TableModel.load(tmp_path)


def test_a_forged_folder_runs_no_code(kept_line, tmp_path):
    skops = pytest.importorskip("skops.io")
    shutil.copytree(kept_line, tmp_path / "kept")
    skops.dump(FunctionTransformer(shouting), tmp_path / "kept" / "model.skops")
    with pytest.raises(TableError, match=r"may run code: .*shouting"):
        TableModel.load(tmp_path / "kept")
    (tmp_path / "kept" / "model.skops").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(TableError, match="cannot be loaded"):
        TableModel.load(tmp_path / "kept")


@pytest.mark.parametrize("sparse", [False, True])
def test_a_file_that_grows_in_memory_is_refused(tmp_path, monkeypatch, sparse):
    skops = pytest.importorskip("skops.io")
    monkeypatch.setattr(_storage, "SMALL_MODEL", 2**20)
    zeros = np.zeros((1, 2**22))
    inner = csr_matrix((zeros[0], zeros[0].astype(int), [0, zeros.size])) if sparse else zeros
    skops.dump(inner, tmp_path / "bomb.skops", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(TableError, match="MiB of memory, far more than its size"):
        read_estimator(tmp_path / "bomb.skops")
    read_estimator(tmp_path / "bomb.skops", trust=True)
    skops.dump(np.random.default_rng(0).normal(size=(1, 2**18)), tmp_path / "large.skops")
    read_estimator(tmp_path / "large.skops")


def test_a_long_description_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    skops = pytest.importorskip("skops.io")
    skops.dump(LogisticRegression(), tmp_path / "model.skops")
    monkeypatch.setattr(_storage, "LARGEST_SCHEMA", 100)
    with pytest.raises(TableError, match="MiB of memory"):
        read_estimator(tmp_path / "model.skops")


@pytest.fixture(scope="module")
def kept(flowers, patients, tmp_path_factory):
    """Folders with a network's model and with a linear regression."""
    folder = tmp_path_factory.mktemp("kept")
    TableModel("network").fit(flowers[["petal length (cm)", "soil", "target"]], "target").save(
        folder / "network"
    )
    TableModel("logistic").fit(patients, "target").save(folder / "line")
    return folder


def contents(folder):
    return pytest.importorskip("skops.io").load(folder / "model.skops", trusted=[*TRUSTED])


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
    common |= {"tables.comparison", "pandas.frame", "ood.combination", "ood.tail"}
    assert names_in(contents(kept / "network")) == common | {
        *("quam.classifier", "quam.pool-search", "quam.classification"),
        *("quam.found-networks", "quam.fitted-search", "quam.search-problem"),
        *("models.network", "models.rows"),
        *("torch.tensor", "torch.chain", "torch.linear", "torch.relu"),
    }
    assert names_in(contents(kept / "line")) == common | {
        *("quam.regressor", "quam.refit-search", "quam.regression", "quam.refitted"),
        *("models.learner", "models.table"),
        *("tables.quantities", "tables.target-scale", "residuals.row-noise", "residuals.forest"),
    }


def test_a_class_that_moved_still_loads(kept, patients, monkeypatch):
    expected = TableModel.load(kept / "line").predict(patients[:5], n_explained=0)
    for name in ("tables.training-values", "quam.refitted", "models.learner"):
        moved = dataclass(frozen=True)(type("Moved", (CLASSES[name],), {}))
        monkeypatch.delitem(CLASSES, name)
        stored(name)(moved)
    again = TableModel.load(kept / "line")
    assert type(again.training_values_).__qualname__ == "Moved"
    assert type(again.training_values_).__module__ == __name__
    pd.testing.assert_frame_equal(again.predict(patients[:5], n_explained=0), expected)


def at(tree, *path):
    for key in path:
        tree = tree[key]
    return tree


FOUND = ("estimator_", "_found")
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
    "columns of different lengths": lambda t: at(t, "held_out_", "columns").update(
        total=np.zeros(1)
    ),
    "a layer for a network": lambda t: at(t, *FOUND, "fitted", "problem").update(module="relu"),
    "an unknown layer": lambda t: at(t, "estimator_", "model_", "module", "layers")[1].update(
        skuq="torch.gelu"
    ),
    "weights that do not fit": lambda t: at(t, "estimator_", "model_", "module", "layers")[
        0
    ].update(bias=np.zeros(3)),
}


@pytest.mark.parametrize("change", TAMPERED)
def test_a_file_that_was_tampered_with_is_refused(kept, tmp_path, change):
    skops = pytest.importorskip("skops.io")
    shutil.copytree(kept / "network", tmp_path / "kept")
    tree = contents(kept / "network")
    TAMPERED[change](tree)
    skops.dump(tree, tmp_path / "kept" / "model.skops")
    with pytest.raises(TableError, match=r"model\.skops is not a model saved by skuq"):
        TableModel.load(tmp_path / "kept")


@pytest.mark.parametrize("forged", [[], {}, {"estimator_": None}, LogisticRegression()])
def test_a_file_of_something_else_is_refused(kept, tmp_path, forged):
    skops = pytest.importorskip("skops.io")
    shutil.copytree(kept / "network", tmp_path / "kept")
    skops.dump(forged, tmp_path / "kept" / "model.skops")
    with pytest.raises(TableError, match="contains no TableModel"):
        TableModel.load(tmp_path / "kept")


def test_a_common_pipeline_is_read_without_trust(flowers, tmp_path):
    skops = pytest.importorskip("skops.io")
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = make_column_transformer(
        (codes, make_column_selector(dtype_exclude="number")), remainder="passthrough"
    )
    X = flowers.drop(columns="target")
    given = make_pipeline(columns, HistGradientBoostingClassifier(max_iter=5))
    skops.dump(given.fit(X, flowers["target"]), tmp_path / "f.skops")
    again = read_estimator(tmp_path / "f.skops")
    np.testing.assert_array_equal(again.predict_proba(X), given.predict_proba(X))
    # Yes and no reach it as it saw them in training.
    rows = TableModel(again).fit(flowers, "target").predict(X, n_explained=0)
    np.testing.assert_allclose(rows["confidence"], given.predict_proba(X).max(axis=1))


def test_a_file_of_somebody_else_is_read_without_its_code(flowers, tmp_path):
    skops = pytest.importorskip("skops.io")
    skops.dump(FunctionTransformer(shouting), tmp_path / "f.skops")
    with pytest.raises(TableError, match=r"may run code: .*shouting.*pass `trust=True`"):
        read_estimator(tmp_path / "f.skops")
    joblib.dump(StandardScaler(), tmp_path / "f.joblib")
    with pytest.raises(
        TableError, match=r"is loaded as pickled objects, .* A file written by skops"
    ):
        read_estimator(tmp_path / "f.joblib")
    assert isinstance(read_estimator(tmp_path / "f.joblib", trust=True), StandardScaler)
    (tmp_path / "f.txt").write_text("nothing", encoding="utf-8")
    with pytest.raises(TableError, match="cannot be loaded"):
        read_estimator(tmp_path / "f.txt", trust=True)


@pytest.mark.usefixtures("short_training")
def test_no_training_row_is_kept_but_those_that_explain(flowers, tmp_path):
    named = flowers.assign(plant=[f"plant {i}" for i in range(len(flowers))])
    named["soil"] = np.resize([f"soil {i}" for i in range(75)], len(flowers))
    TableModel("network").fit(named, "target", id_column="plant").save(tmp_path / "kept")
    with zipfile.ZipFile(tmp_path / "kept" / "model.skops") as file:
        largest = max(info.file_size for info in file.infolist() if "json" in info.filename)
        content = b"".join(file.read(name) for name in file.namelist())
    assert b"plant 1" not in content
    assert largest < 10**7
