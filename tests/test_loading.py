"""The refusal of files that run code: it names what they would call, and loads nothing."""

import base64
import builtins
import os
import pickle
import zipfile
import zlib

import joblib
import pytest
from sklearn.linear_model import LogisticRegression

from skuq.loading import pickled_names, untrusted

SYSTEM = f"{os.system.__module__}.system"


class Forged:
    """An object whose pickle ends the process when it is loaded."""

    def __init__(self, function=os.system, argument="kill $PPID"):
        self.call = function, (argument,)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_names_are_found_in_pickles_of_all_protocols(tmp_path, protocol):
    content = [LogisticRegression(), Forged(), Forged(), Forged(builtins.exec, "import os")]
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    names = {SYSTEM, "sklearn.linear_model._logistic.LogisticRegression"}
    assert pickled_names(path) >= names
    assert {name.rpartition(".")[2] for name in pickled_names(path)} >= {"exec", "system"}


def compressed(path):
    path.write_bytes(zlib.compress(pickle.dumps(Forged())))


def folder(path):
    path.mkdir()
    joblib.dump([1, Forged()], path / "state.pkl")


def archive(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("objects.pkl", pickle.dumps(Forged()))


def text_in_archive(path):
    code = base64.b64encode(pickle.dumps(Forged())).decode()
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", f'{{"rate": {{":type:": "f", ":serialized:": "{code}"}}}}')


@pytest.mark.parametrize("write", [compressed, folder, archive, text_in_archive])
def test_names_are_found_wherever_pickles_are_kept(tmp_path, write):
    write(tmp_path / "model")
    assert f"(it names {SYSTEM}, among others)" in untrusted(tmp_path / "model", "Or not at all.")
    assert untrusted(tmp_path / "model", "Or not.").endswith("say so (`trust=True`). Or not.")


def test_what_is_no_pickle_is_refused_without_names(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as file:
        file.writestr("data", '":serialized:": "AAAAA"')  # which is no base64
    for name in ("table.csv", "model.zip"):
        assert "whoever made them. If you trust it" in untrusted(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        untrusted(tmp_path / "absent")
