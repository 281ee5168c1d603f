"""Tables in chunks: all rows, in order, in bounded pieces; written completely or not at all."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from skuq._table_files import TableFileError, _read, check_writable, open_table, write_table

TABLE = pd.DataFrame(
    {
        "whole": [1, 2, 3, 4, 5],
        "gap": [0.5, np.nan, 1.5, 2.5, 3.5],
        "text": ["a", None, "c", "NA", "01"],
        "day": pd.to_datetime(["2020-01-01", "2021-02-03", None, "2022-01-01", "2023-01-01"]),
    }
)
ENDINGS = ["csv", "csv.gz", "csv.xz", "parquet", "pq"]


@pytest.fixture(params=ENDINGS)
def path(request, tmp_path):
    if request.param in ("parquet", "pq"):
        pytest.importorskip("pyarrow")
    return tmp_path / f"t.{request.param}"


def expected(path):
    """CSV does not say which columns are dates, nor which words are text."""
    if path.suffix in (".parquet", ".pq"):
        return TABLE
    days = TABLE["day"].dt.strftime("%Y-%m-%d")
    return TABLE.assign(day=days, text=TABLE["text"].replace("NA", None))


def test_rows_come_back_in_order_whole_and_in_chunks(path):
    assert write_table(path, (TABLE[k : k + 2] for k in range(0, 5, 2))) == (5, 0)
    table = open_table(path)
    assert table.columns == list(TABLE)
    pd.testing.assert_frame_equal(table.read(), expected(path), check_dtype=False)
    chunks = list(table.chunks(n_rows=2, dtype={"text": str}))
    assert [list(chunk.index) for chunk in chunks] == [[0, 1], [2, 3], [4]]
    together = pd.concat([chunk.astype(object) for chunk in chunks])
    pd.testing.assert_frame_equal(together, expected(path).astype(object), check_dtype=False)


def test_columns_are_read_as_text_or_as_values_that_repeat(path):
    write_table(path, [TABLE])
    kinds = {"whole": "category", "text": str, "absent": str}
    frame = open_table(path).read(dtype=kinds, text_columns=True)
    assert frame["text"].tolist()[3:] == ["NA", "01"]
    assert isinstance(frame["whole"].dtype, pd.CategoricalDtype)


def test_a_default_chunk_is_bounded_by_its_values(tmp_path, monkeypatch):
    monkeypatch.setattr(_read, "CHUNK_CELLS", 8)
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    assert [len(chunk) for chunk in open_table(tmp_path / "t.csv").chunks()] == [2, 2, 1]


def test_needed_columns_are_found_without_spaces_or_named(tmp_path):
    (tmp_path / "t.csv").write_text(" p_no ,y\n0.5,1\n", encoding="utf-8")
    table = open_table(tmp_path / "t.csv")
    table.require(["p_no", "y"])
    with pytest.raises(TableFileError, match=r"no column 'p_now'. Did you mean 'p_no'"):
        table.require(["p_now"])
    with pytest.raises(TableFileError, match=r"no column 'label'. It has p_no, y"):
        table.require(["label"])


def test_what_is_no_parquet_file_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(TableFileError, match="cannot be read as Parquet"):
        open_table(path)
    write_table(path, [TABLE])
    whole = path.read_bytes()
    path.write_bytes(whole[:20] + bytes(60) + whole[80:])
    with pytest.raises(TableFileError, match="damaged"):
        open_table(path).read()
    write_table(path, [TABLE[:0]])
    with pytest.raises(TableFileError, match="has no rows"):
        open_table(path)


def test_columns_of_codes_with_leading_zeros_are_named(tmp_path):
    (tmp_path / "t.csv").write_text(
        "zip,month, part ,share,zero,n\n00249,01,007a,0.5,0,1\n,12,1,00.5,1,2\n81000,,2,1,0,3\n",
        encoding="utf-8",
    )
    table = open_table(tmp_path / "t.csv")
    assert table.codes == ["zip", "month"]
    kinds = dict.fromkeys(table.codes, str)
    assert table.read(dtype=kinds)["zip"].tolist()[::2] == ["00249", "81000"]
    assert table.read()["zip"].tolist()[::2] == [249, 81000]


@pytest.mark.parametrize("name", ["parts", "parts.parquet", "absent.csv"])
def test_a_folder_is_called_a_folder_and_a_file_that_is_not_there_is_named(tmp_path, name):
    if name != "absent.csv":
        (tmp_path / name).mkdir()
    with pytest.raises(TableFileError, match=f"{name} is a folder|{name} .*No such file"):
        open_table(tmp_path / name)


@pytest.mark.parametrize("ending", ["csv.zip", "csv.zst", "xlsx", "XLS", "ods"])
def test_archives_and_spreadsheets_are_not_written(tmp_path, ending):
    path = tmp_path / f"out.{ending}"
    for write in (check_writable, lambda path: write_table(path, [TABLE])):
        with pytest.raises(TableFileError, match=rf"{path.name}.* not written.*\.csv\.gz"):
            write(path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_outside_ascii_is_found_whatever_the_locale(tmp_path):
    pytest.importorskip("pyarrow")
    code = (
        "import pandas as pd, sys\nfrom skuq._table_files import open_table, write_table\n"
        "for name in ('t.parquet', 't.csv'):\n"
        "    path = sys.argv[1] + '/\\xe4/' + name\n"
        "    write_table(path, [pd.DataFrame({'a': [1, 2]})])\n"
        "    assert open_table(path).read()['a'].tolist() == [1, 2]\n"
    )
    os.mkdir(os.fsencode(tmp_path) + "/ä".encode())
    c = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code.replace("\\xe4", "\\udcc3\\udca4"), str(tmp_path)]
    done = subprocess.run(command, env=os.environ | c, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_row_index_that_pandas_stored_is_no_column(tmp_path):
    pytest.importorskip("pyarrow")
    TABLE.set_axis(list("vwxyz")).to_parquet(tmp_path / "t.parquet")
    assert open_table(tmp_path / "t.parquet").columns == list(TABLE)


def test_names_that_are_whole_numbers_stay_whole_beside_missing_ones(tmp_path):
    pytest.importorskip("pyarrow")
    names = pd.array([2**53 + 1, None, 3], dtype="Int64")
    pd.DataFrame({"name": names, "size": names}).to_parquet(tmp_path / "t.parquet")
    frame = open_table(tmp_path / "t.parquet").read(dtype={"name": str})
    assert frame["name"].tolist() == [2**53 + 1, None, 3]
    assert frame["size"].dtype == float


def test_a_failure_on_the_way_leaves_what_was_there(path):
    path.write_text("old", encoding="utf-8")

    def failing():
        yield TABLE
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        write_table(path, failing())
    assert [(each.name, each.read_text(encoding="utf-8")) for each in path.parent.iterdir()] == [
        (path.name, "old")
    ]


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "'=1", "''=1"]
FORMULAS += [" =1", "\n=1", " \n@A1", "\u00a0=1", "\ufeff=1", "\uff1d1", "' =1"]
FORMULAS += [" - 1 cup", "\nnote"]
HARMLESS = ["-5", "+1,200.50", "-1.5e-3", "+49 170 1234", "-7 %", "-", "a=b", "'s", "''", "", "x"]
HARMLESS += [" -5", " a=b"]


def read_by_others(path):
    return pd.read_csv(path, dtype=str, keep_default_na=False, lineterminator="\n")


@pytest.mark.parametrize("kind", ["object", "str", "category"])
def test_formulas_are_marked_and_read_back_as_they_were(tmp_path, kind):
    texts, n = FORMULAS + HARMLESS, len(FORMULAS + HARMLESS)
    frame = pd.DataFrame({"id": range(n), "=a": texts, "n": np.arange(n) - 9.5})
    frame["=a"] = frame["=a"].astype(kind)
    path = tmp_path / "t.csv"
    written = write_table(path, [frame[:10], frame[10:]])
    assert written == (n, len(FORMULAS) + 1)  # the name of the column, once
    assert f"{len(FORMULAS) + 1} texts begin with =" in written.note
    cells = read_by_others(path)
    assert cells["'=a"].tolist() == [f"'{text}" for text in FORMULAS] + HARMLESS
    assert cells["n"].tolist() == [str(value) for value in frame["n"]]
    table = open_table(path)
    assert table.columns == ["id", "=a", "n"]
    for frames in ([table.read(dtype={"=a": kind}, text_columns=True)], table.chunks(n_rows=4)):
        texts = pd.concat([each["=a"].astype(object) for each in frames]).fillna("")
        assert texts.tolist() == FORMULAS + HARMLESS


def test_parquet_is_written_as_it_is(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"=a": FORMULAS})
    written = write_table(tmp_path / "t.parquet", [frame])
    assert (written.marked, written.note) == (0, "")
    assert open_table(tmp_path / "t.parquet").read()["=a"].tolist() == FORMULAS


def test_columns_that_hold_more_than_text_keep_their_values(tmp_path):
    frame = pd.DataFrame({"mixed": ["=1", 2, None, -3.5, True], "day": pd.Timestamp("2020-01-01")})
    assert write_table(tmp_path / "t.csv", [frame]).marked == 1
    assert read_by_others(tmp_path / "t.csv")["mixed"].tolist() == ["'=1", "2", "", "-3.5", "True"]
    assert frame["mixed"].tolist()[0] == "=1"  # what was given is left alone
