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

from skuq import loading
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


# --- files that were made to hide names, or to keep whoever looks -------------------------------


def pipe(folder):
    os.mkfifo(folder / "a.zip")


def link_to_a_device(folder):
    (folder / "a").symlink_to("/dev/zero")


def link_to_its_folder(folder):
    (folder / "a").symlink_to(folder)


def link_out_of_the_folder(folder):
    (folder.parent / "other.pkl").write_bytes(pickle.dumps(Forged(eval, "1")))
    (folder / "a").symlink_to(folder.parent / "other.pkl")


def no_base64(folder):
    with zipfile.ZipFile(folder / "a.zip", "w") as file:
        file.writestr("data", '":serialized:": "A"')


def wrong_checksum(folder):
    with zipfile.ZipFile(folder / "a.zip", "w") as file:
        file.writestr("data", "content")
    content = (folder / "a.zip").read_bytes()
    (folder / "a.zip").write_bytes(content.replace(b"content", b"CONTENT"))


def encrypted(folder):
    with zipfile.ZipFile(folder / "a.zip", "w") as file:
        file.writestr("data", "content")
    content = bytearray((folder / "a.zip").read_bytes())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (folder / "a.zip").write_bytes(content)


TRAPS = [link_to_a_device, link_to_its_folder, link_out_of_the_folder]
TRAPS += [no_base64, wrong_checksum, encrypted]
if hasattr(os, "mkfifo"):
    TRAPS.append(pipe)


@pytest.mark.parametrize("trap", TRAPS)
def test_files_that_cannot_be_read_are_passed_over(tmp_path, trap):
    folder = tmp_path / "agent"
    folder.mkdir()
    trap(folder)
    with zipfile.ZipFile(folder / "b.zip", "w") as file:
        file.writestr("data", pickle.dumps(Forged()))
    assert pickled_names(folder) == {SYSTEM}


def test_a_pickle_before_an_archive_is_searched_too(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as file:
        file.writestr("data", "content")
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Forged()) + (tmp_path / "model.zip").read_bytes())
    assert pickled_names(path) == {SYSTEM}


def test_the_search_ends_after_a_number_of_bytes_and_files(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "model.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for k in range(20):
            file.writestr(f"{k}", b"N" * 1000)
        file.writestr("last", pickle.dumps(Forged()))
    assert pickled_names(tmp_path / "model.zip") == {SYSTEM}
    monkeypatch.setattr(loading, "BUDGET", 10_000)
    assert pickled_names(tmp_path / "model.zip") == set()


COMMANDS = ["builtins.eval", "builtins.getattr", "importlib.import_module", "joblib.load"]
COMMANDS += ["numpy.load", "pandas.read_pickle", "runpy.run_path", "torch.load"]


@pytest.mark.parametrize("name", [*COMMANDS, "numpy.lib.os.kill", "joblib.numpy_pickle.load"])
def test_commands_are_named_first(tmp_path, name):
    module, _, function = name.rpartition(".")
    others = "".join(f"caaa.b{k}\nA{k}\n" for k in range(9)) + "csklearn.base\nA\n"
    (tmp_path / "model.pkl").write_text(f"{others}c{module}\n{function}\n.", encoding="utf-8")
    assert f"(it names {name}, aaa.b0.A0, aaa.b1.A1" in untrusted(tmp_path / "model.pkl")
