"""Files that the commands read and write: what is refused before anything is computed."""

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from skuq.cli._io import InputError, check_outputs, files_of, read_csv
from tests.cli.runner import run


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
    with pytest.raises(InputError, match=rf"^{path} .*{words}") as caught:
        read_csv(path, needed=["a"])
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


def test_text_is_read_as_in_another_table_and_words_for_missing_values_are_labels(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("code,size\n01,1\n", encoding="utf-8")
    assert read_csv(path)["code"].tolist() == [1]
    read = read_csv(path, like=pd.DataFrame({"code": ["x"], "size": [2.5]}))
    assert (read["code"].tolist(), read["size"].tolist()) == (["01"], [1])
    for word in ("NA", "None", "null"):
        path.write_text(f"y,p\n{word},1\nA,1\n,1\n", encoding="utf-8")
        labels = read_csv(path, needed=["y"], label="y")["y"]
        assert labels.tolist()[:2] == [word, "A"]
        assert labels.isna().tolist() == [False, False, True]
        path.write_text(f"y,p\n{word},1\n7,1\n", encoding="utf-8")
        assert read_csv(path, needed=["y"], label="y")["y"].isna().tolist() == [True, False]


def test_no_file_is_read_or_written_twice_whatever_it_is_called_or_into_no_folder(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").touch()
    Path("inner").mkdir()
    Path("link.csv").symlink_to("t.csv")
    for again in ("t.csv", "inner/../t.csv", "link.csv", f"{tmp_path}/t.csv"):
        with pytest.raises(InputError, match="twice"):
            files_of("--predictions", ["t.csv", again])
        with pytest.raises(InputError, match="is already"):
            check_outputs([Path(again)], [Path("t.csv")])
    with pytest.raises(InputError, match=r"out\.csv is already"):
        check_outputs([Path("out.csv"), None, Path("out.csv")], [])
    with pytest.raises(InputError, match="folder absent"):
        check_outputs([None, Path("absent/out.csv")], [Path("t.csv")])
    check_outputs([Path("out.csv"), None], [Path("t.csv")])


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
