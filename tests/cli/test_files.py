"""Files that the commands read and write: what is refused before anything is computed."""

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from skuq import imports
from skuq.cli._io import InputError, check_outputs, files_of, read_csv, require_plots
from tests.cli.runner import absent, run


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"a;b\n1;0,5\n", "a single column, 'a;b', if it is split at a comma"),
        ("a,\u00e9\n1,1\n".encode("latin-1"), "in UTF-8"),
        (b"b,c\n1,2\n", "no column 'a'. It has b, c."),
    ],
)
def test_a_file_that_is_not_a_table_is_refused_in_one_line(tmp_path, content, words):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        read_csv(path, needed=["a"])
    assert caught.value.message.startswith(f"{path} ")
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


def test_text_that_looks_like_numbers_is_read_as_in_another_table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("code,size\n01,1\n", encoding="utf-8")
    assert read_csv(path)["code"].tolist() == [1]
    read = read_csv(path, like=pd.DataFrame({"code": ["x"], "size": [2.5]}))
    assert (read["code"].tolist(), read["size"].tolist()) == (["01"], [1])


@pytest.mark.parametrize("word", ["NA", "None", "null"])
def test_words_for_missing_values_are_labels(tmp_path, word):
    path = tmp_path / "t.csv"
    path.write_text(f"y,p\n{word},1\nA,1\n,1\n", encoding="utf-8")
    labels = read_csv(path, needed=["y"], label="y")["y"]
    assert labels.tolist()[:2] == [word, "A"]
    assert labels.isna().tolist() == [False, False, True]
    path.write_text(f"y,p\n{word},1\n7,1\n", encoding="utf-8")
    assert read_csv(path, needed=["y"], label="y")["y"].isna().tolist() == [True, False]


@pytest.mark.parametrize("again", ["t.csv", "inner/../t.csv", "link.csv", "{folder}/t.csv"])
def test_a_file_is_read_once_whatever_it_is_called(tmp_path, monkeypatch, again):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").touch()
    Path("inner").mkdir()
    Path("link.csv").symlink_to("t.csv")
    with pytest.raises(InputError, match="twice"):
        files_of("--predictions", ["t.csv", again.format(folder=tmp_path)])


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (["absent/out.csv"], "folder absent"),
        ([None, "absent/out.csv"], "folder absent"),
        (["in.csv"], r"in\.csv is already"),
        (["./in.csv"], r"in\.csv is already"),
        (["out.csv", None, "out.csv"], r"out\.csv is already"),
    ],
)
def test_no_file_is_written_twice_or_into_no_folder(tmp_path, monkeypatch, outputs, words):
    monkeypatch.chdir(tmp_path)
    paths = [None if name is None else Path(name) for name in outputs]
    with pytest.raises(InputError, match=words):
        check_outputs(paths, [Path("in.csv")])
    check_outputs([Path("out.csv"), None], [Path("in.csv")])


def test_what_needs_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setattr(imports, "import_module", absent)
    with pytest.raises(InputError, match=r"--report: matplotlib .* pip install 'skuq\[plot\]'"):
        require_plots("--report")


HOSTILE = "=HYPERLINK(1)"
STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", " ")


@pytest.mark.parametrize(
    "command", [("certify", "--max-radius", "0.1"), ("quantify", "--model", "logistic")]
)
def test_no_command_writes_a_formula_that_came_with_a_table(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).uniform(size=(60, 2))
    frame = pd.DataFrame(rows, columns=[HOSTILE, " @size"])
    frame["y"] = np.where(rows[:, 0] > 0.5, "=A1", "\n=B1")
    frame["id"] = [f"{HOSTILE}{k}" for k in range(60)]
    frame.to_csv("known.csv", index=False)
    frame[:6].drop(columns="y").to_csv("new.csv", index=False)
    given = ["--train", "known.csv", "--target", "y", "--predict", "new.csv", "--out", "out.csv"]
    result = run(*command, *given, "--id", "id")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("A spreadsheet would evaluate such text as a formula") == 1
    with open("out.csv", encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert sum(HOSTILE in cell for cell in cells) >= 6
    for cell in cells:
        assert not cell.startswith(STARTS) or re.fullmatch(r"-?[\d.e-]+", cell), cell
