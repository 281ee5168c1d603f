"""Tables in files of all forms: found, read in order and bounded pieces, written or left alone."""

import bz2
import gzip
import lzma
import os
import subprocess
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest

from skuq._table_files import (
    CsvFormat,
    TableFileError,
    _read,
    check_writable,
    open_table,
    write_table,
)

TABLE = pd.DataFrame({"name": ["Müller", "Zoë", "Jo"], "größe": [1.25, -0.5, 3.0], "n": [1, 2, 3]})


def written(folder, content, name="t.csv"):
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"sep": ";", "decimal": ","}, "a semicolon as separator and a decimal comma"),
        ({"sep": ";"}, "a semicolon as separator"),
        ({"sep": "\t", "decimal": ","}, "a tab as separator and a decimal comma"),
        ({"sep": "|"}, "a vertical bar as separator"),
        ({"encoding": "cp1252"}, "the encoding cp1252 (it contains 'größe')"),
        ({"encoding": "utf-8-sig"}, "a byte-order mark, as Excel writes it"),
        ({"encoding": "utf-16"}, "the encoding utf-16 (it contains 'größe')"),
        ({"quoting": 1}, ""),
        ({"lineterminator": "\r\n"}, ""),
    ],
)
def test_a_table_is_the_same_however_it_was_written(tmp_path, options, note):
    TABLE.to_csv(tmp_path / "t.csv", index=False, **options)
    table = open_table(tmp_path / "t.csv")
    pd.testing.assert_frame_equal(table.read(), TABLE)
    assert table.columns == list(TABLE)
    assert table.note == (f"t.csv was read with {note}." if note else "")
    if options.get("encoding") == "utf-8-sig":  # the mark is no part of a name
        stated = open_table(tmp_path / "t.csv", CsvFormat(encoding="UTF8"))
        assert stated.columns == list(stated.read()) == list(TABLE)


def test_compressed_files_are_decompressed_by_their_ending(tmp_path):
    content = TABLE.to_csv(index=False).encode()
    ways = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    paths = [written(tmp_path, ways[ending](content), f"t.csv.{ending}") for ending in ways]
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("t.csv", content)
    for path in (*paths, tmp_path / "t.zip"):
        pd.testing.assert_frame_equal(open_table(path).read(), TABLE)
    with zipfile.ZipFile(tmp_path / "t.zip", "a") as archive:
        archive.writestr("u.csv", "a\n1\n")
    with pytest.raises(TableFileError, match="one file, got 2"):
        open_table(tmp_path / "t.zip")
    arrow = pytest.importorskip("pyarrow")
    with arrow.CompressedOutputStream(str(tmp_path / "t.csv.zst"), "zstd") as stream:
        stream.write(content)
    pd.testing.assert_frame_equal(open_table(tmp_path / "t.csv.zst").read(), TABLE)


@pytest.mark.parametrize(
    ("content", "format", "words"),
    [
        # what may be meant in two ways
        ("a, m|b, kg\n1,5|2,5\n3,5|4,5\n", {}, "comma into 3 .* vertical bar into 2 .*`sep`"),
        ("name, first;size, m\n1,5;2,5\n", {}, "comma into 3 .* semicolon into 2 .*`sep`"),
        ("a;b\n1,500;2,200\n", {}, "'1,500'.*`decimal`"),
        ("a;b\n1.500;2.200\n", {}, "'1.500'.*`decimal`"),
        ("a;b\n1,5;2.5\n", {}, "'1,5'.* '2.5'; .*`decimal`"),
        # what is no table
        ("", {}, "is empty"),
        ("\n \n", {}, "is empty"),
        ("a,b\n", {}, "has no rows"),
        ("a,b\n1,2\n\n1,2,3\n", {}, "3 values in line 4, but 2 names.*`skip=3`"),
        ("a,b\n1,2,3\n4,5,6\n", {}, "3 values in line 2, but 2 names"),
        ("a,b\n1,2,\n3,4\n", {}, "3 values in line 2, but 2 names"),
        ("Sales, 2020\n\na,b,c\n1,2,3\n", {}, "3 values in line 3, .*`skip=2`"),
        ("a,b\n1,x\n2,'y\n3,z\n".replace("'", '"'), {}, "quotation mark in line 3"),
        ("a,b\n1,2\n", {"skip": 5}, "has no rows"),
        ("a,b,a \n1,2,3\n4,5,6\n", {}, "more than one column named 'a'"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe", {}, "not a text file"),
        (b"a,b\n\x81\x8d,1\n", {}, "`encoding`"),
        (b"\xff\xfe\x00", {}, "utf-16"),
        ("a,b\n1," + '"x' * 2**18, {}, "quotation mark"),
        ("\u0438;n\n\u0418\u0432\u0430\u043d;1\n".encode("cp1251"), {}, "`encoding`"),
        # what is stated must make sense
        ("a;b\n1;é\n", {"sep": "::"}, "'::'"),
        ("a;b\n1;é\n", {"decimal": "x"}, "'x'"),
        ("a;b\n1;é\n", {"sep": ",", "decimal": ","}, "other than the decimal mark"),
        ("a;b\n1;é\n", {"encoding": "utf-9"}, "Unknown encoding 'utf-9'"),
        ("a;b\n1;é\n", {"encoding": "ascii"}, "ascii"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_state(tmp_path, content, format, words):
    path = written(tmp_path, content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TableFileError, match=words):
        list(open_table(path, CsvFormat(**format)).chunks())


@pytest.mark.parametrize(
    ("content", "format", "column"),
    [
        (b"a;b\n1.234,5;x\n0,5;y\n", {}, ["1.234,5", "0,5"]),  # thousands stay text
        (b"a;b\n0.5;Doe, 5\n1.25;x\n", {}, [0.5, 1.25]),  # a comma in text says nothing
        (b'a,b\n"1,5",2\n', {}, ["1,5"]),
        (b"a;b\n0,125;1\n2,375;2\n", {}, [0.125, 2.375]),
        (b"a\tb\n1.500\t1\n2.250\t2\n", {}, [1.5, 2.25]),
        # what is stated is not doubted
        (b"a;b\n1,500;2,200\n", {"decimal": ","}, [1.5]),
        (b"a;b\n1,500;2,200\n", {"decimal": "."}, ["1,500"]),
        (b"a;y, z\n1,5;2\n", {"sep": ";", "decimal": ","}, [1.5]),
        ("a;n\n\u0418\u0432;1\n".encode("cp1251"), {"encoding": "cp1251"}, ["\u0418\u0432"]),
    ],
)
def test_numbers_are_read_with_the_mark_of_all_or_as_stated(tmp_path, content, format, column):
    table = open_table(written(tmp_path, content), CsvFormat(**format))
    assert table.read()["a"].tolist() == column


@pytest.mark.parametrize(
    ("content", "decimal"),
    [
        *[(b"a,b\n1,2\n", ""), (b'a,b\n"2,6","7,578"\n', ","), (b'a,b\n2.6,"7,578"\n', "")],
        *[(b"a;b\n1,5;2\n", ","), (b"a;b\n1.5;2\n", "."), (b"a;b\n1;2\n", "")],
        *[(b"a;b\n1.200,50 EUR;x\n7 EUR;y\n", ","), (b"a;b\n1,5;x\n-;y\n", ",")],
        *[(b"a;b\n1,234,567;x\n5 kg;y\n5,5 kg;z\n", ""), (b"a;b\n1.200 EUR;x\n3.100 EUR;y\n", "")],
    ],
)
def test_the_mark_that_a_file_shows_goes_with_its_table(tmp_path, content, decimal):
    table = open_table(written(tmp_path, content)).read()
    assumed = {"assumed": "."} if content[1:2] == b"," else {}
    assert table.attrs == {"decimal": decimal, "numbered": ("line", 2)} | assumed
    table = next(open_table(written(tmp_path, b"sep=%c\n" % content[1] + content)).chunks())
    assert table.attrs["numbered"] == ("line", 3)


def test_damage_far_behind_the_first_rows_is_named(tmp_path):
    lines = b"".join(b"%d,%d\n" % (k, k * 7919 % 100003) for k in range(120_000))
    cut = gzip.compress(b"a,b\n" + lines, 1)[:-1000]
    for name, content, words in (
        ("t.csv", b"a,b\n" + lines + "1,é\n".encode("cp1252"), r"utf-8; .*`encoding`"),
        ("t.csv.gz", cut, "damaged"),
        ("t.csv", b"a,b\n" + lines + b"1,2,3\n", "3 values in line 120002"),
    ):
        with pytest.raises(TableFileError, match=words):
            list(open_table(written(tmp_path, content, name)).chunks())


def test_thousands_in_late_rows_are_not_taken_for_decimals(tmp_path):
    for repeats in (3000, 270_000):  # in the sample of bytes, and beyond it
        path = written(tmp_path, b"a;b\n" + repeats * b"x;1\n" + b"x;1.714\n")
        # It is text, of which the column as a whole decides.
        assert open_table(path).read()["b"].iloc[-1] == "1.714"
        assert open_table(path, CsvFormat(decimal=".")).read()["b"].iloc[-1] == 1.714


def test_values_in_chunks_are_those_of_the_whole_column_and_their_number_is_bounded(
    tmp_path, monkeypatch
):
    values_of = open_table(written(tmp_path, b"a\n1\n")).values_of
    assert values_of(["01", "2"]) == [1, 2]
    assert values_of(["1", "NA"])[:1] == [1.0]
    assert values_of(["x", "NA"]) == ["x", "NA"]
    assert values_of(["True", "False"]) == [True, False]
    monkeypatch.setattr(_read, "CHUNK_CELLS", 8)
    ROWS.to_csv(tmp_path / "t.csv", index=False)
    assert [len(chunk) for chunk in open_table(tmp_path / "t.csv").chunks()] == [2, 2, 1]


DAYS = pd.to_datetime(["2020-01-01", "2021-02-03", None, "2022-01-01", "2023-01-01"])
ROWS = pd.DataFrame({"whole": [1, 2, 3, 4, 5], "gap": [0.5, np.nan, 1.5, 2.5, 3.5], "day": DAYS})
ROWS["text"] = ["a", None, "c", "NA", "01"]


@pytest.fixture(params=["csv", "csv.gz", "csv.xz", "parquet", "pq"])
def path(request, tmp_path):
    if request.param in ("parquet", "pq"):
        pytest.importorskip("pyarrow")
    return tmp_path / f"t.{request.param}"


def expected(path):
    """CSV does not say which columns are dates, nor which words are text."""
    if path.suffix in (".parquet", ".pq"):
        return ROWS
    days = ROWS["day"].dt.strftime("%Y-%m-%d")
    return ROWS.assign(day=days, text=ROWS["text"].replace("NA", None))


def test_rows_come_back_in_order_whole_and_in_chunks_and_columns_as_text_if_asked(path):
    assert write_table(path, (ROWS[k : k + 2] for k in range(0, 5, 2))) == (5, 0)
    table = open_table(path)
    assert table.columns == list(ROWS)
    pd.testing.assert_frame_equal(table.read(), expected(path), check_dtype=False)
    chunks = list(table.chunks(n_rows=2, dtype={"text": str}))
    assert [list(chunk.index) for chunk in chunks] == [[0, 1], [2, 3], [4]]
    together = pd.concat([chunk.astype(object) for chunk in chunks])
    pd.testing.assert_frame_equal(together, expected(path).astype(object), check_dtype=False)
    write_table(path, [ROWS])
    kinds = {"whole": "category", "text": str, "absent": str}
    frame = open_table(path).read(dtype=kinds, text_columns=True)
    assert frame["text"].tolist()[3:] == ["NA", "01"]
    assert isinstance(frame["whole"].dtype, pd.CategoricalDtype)


def test_needed_columns_are_found_without_spaces_and_those_of_codes_are_named(tmp_path):
    table = open_table(written(tmp_path, b" p_no ,y\n0.5,1\n"))
    table.require(["p_no", "y"])
    for name, words in (("p_now", r"'p_now'. Did you mean 'p_no'"), ("l", r"'l'. It has p_no, y")):
        with pytest.raises(TableFileError, match=f"no column {words}"):
            table.require([name])
    rows = b"00249,01,007a,0.5,0,1\n,12,1,00.5,1,2\n81000,,2,1,0,3\n"
    table = open_table(written(tmp_path, b"zip,month, part ,share,zero,n\n" + rows))
    assert table.codes == ["zip", "month"]
    codes = table.read(dtype=dict.fromkeys(table.codes, str))["zip"]
    assert codes.tolist()[::2] == ["00249", "81000"]
    assert table.read()["zip"].tolist()[::2] == [249, 81000]


def test_a_folder_a_file_that_is_not_there_and_what_is_no_parquet_file_are_refused(tmp_path):
    for name in ("parts", "parts.parquet"):
        (tmp_path / name).mkdir()
        with pytest.raises(TableFileError, match=f"{name} is a folder"):
            open_table(tmp_path / name)
    with pytest.raises(TableFileError, match=r"absent.csv .*No such file"):
        open_table(tmp_path / "absent.csv")
    pytest.importorskip("pyarrow")
    path = written(tmp_path, b"a,b\n1,2\n", "t.parquet")
    with pytest.raises(TableFileError, match="cannot be read as Parquet"):
        open_table(path)
    write_table(path, [ROWS])
    whole = path.read_bytes()
    path.write_bytes(whole[:20] + bytes(60) + whole[80:])
    with pytest.raises(TableFileError, match="damaged"):
        open_table(path).read()
    write_table(path, [ROWS[:0]])
    with pytest.raises(TableFileError, match="has no rows"):
        open_table(path)


@pytest.mark.parametrize("ending", ["csv.zip", "csv.zst", "xlsx", "XLS", "ods"])
def test_archives_and_spreadsheets_are_not_written(tmp_path, ending):
    path = tmp_path / f"out.{ending}"
    for write in (check_writable, lambda path: write_table(path, [ROWS])):
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


def test_parquet_has_no_row_index_whole_numbers_and_texts_as_they_are(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    ROWS.set_axis(list("vwxyz")).to_parquet(path)
    assert open_table(path).columns == list(ROWS)
    names = pd.array([2**53 + 1, None, 3], dtype="Int64")
    pd.DataFrame({"name": names, "size": names}).to_parquet(path)
    frame = open_table(path).read(dtype={"name": str})
    assert frame["name"].tolist() == [2**53 + 1, None, 3]
    assert frame["size"].dtype == float
    done = write_table(path, [pd.DataFrame({"=a": FORMULAS})])
    assert (done.marked, done.note) == (0, "")
    assert open_table(path).read()["=a"].tolist() == FORMULAS


def test_a_failure_on_the_way_leaves_what_was_there(path):
    path.write_text("old", encoding="utf-8")
    with pytest.raises(ZeroDivisionError):
        write_table(path, (ROWS[: 1 // k] for k in (1, 0)))
    left = {each: each.read_text(encoding="utf-8") for each in path.parent.iterdir()}
    assert left == {path: "old"}


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\r=1", "'=1", "''=1"]
FORMULAS += [" =1", "\n=1", " \n@A1", "\u00a0=1", "\ufeff=1", "\uff1d1", "' =1"]
INSIDE = {"\t=1": "'\t'=1", "a; =1": "a;' =1", "a|@b": "a|'@b"}
FORMULAS += [" - 1 cup", "\nnote", *INSIDE]
HARMLESS = ["-5", "+1,200.50", "-1.5e-3", "+49 170 1234", "-7 %", "-", "a=b", "'s", "''", "", "x"]
HARMLESS += [" -5", " a=b", "a;-5", "a;b"]


def read_by_others(path):
    return pd.read_csv(path, dtype=str, keep_default_na=False, lineterminator="\n")


@pytest.mark.parametrize("kind", ["object", "str", "category"])
def test_formulas_are_marked_and_read_back_as_they_were(tmp_path, kind):
    texts, n, path = FORMULAS + HARMLESS, len(FORMULAS + HARMLESS), tmp_path / "t.csv"
    frame = pd.DataFrame({"id": range(n), "=a": texts, "n": np.arange(n) - 9.5})
    frame["=a"] = frame["=a"].astype(kind)
    done = write_table(path, [frame[:10], frame[10:]])
    assert done == (n, len(FORMULAS) + 1)  # the name of the column, once
    assert f"{len(FORMULAS) + 1} texts begin with =" in done.note
    cells = read_by_others(path)
    assert cells["'=a"].tolist() == [INSIDE.get(each, f"'{each}") for each in FORMULAS] + HARMLESS
    assert cells["n"].tolist() == [str(value) for value in frame["n"]]
    table = open_table(path)
    assert table.columns == ["id", "=a", "n"]
    for frames in ([table.read(dtype={"=a": kind}, text_columns=True)], table.chunks(n_rows=4)):
        read = pd.concat([each["=a"].astype(object) for each in frames]).fillna("")
        assert read.tolist() == [*map(str.strip, texts)]
    frame = pd.DataFrame({"mixed": ["=1", 2, None, -3.5, True], "day": pd.Timestamp("2020-01-01")})
    assert write_table(path, [frame]).marked == 1
    assert read_by_others(path)["mixed"].tolist() == ["'=1", "2", "", "-3.5", "True"]
    assert frame["mixed"].tolist()[0] == "=1"  # what was given is left alone


def test_a_line_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("skuq._table_files._read.LONGEST_LINE", 2**21)
    with gzip.open(tmp_path / "t.csv.gz", "wb") as file:
        file.write(b"a,b\n" + 2**20 * b"1,2\n" + b"1," + 2**22 * b"x" + b"\n")
    with pytest.raises(TableFileError, match="A line has more than 2 MiB"):
        open_table(tmp_path / "t.csv.gz").read()
    write_table(tmp_path / "nul.csv", [pd.DataFrame({"a": ["x\0", "y"]})])
    assert open_table(tmp_path / "nul.csv").read()["a"].tolist() == ["x\ufffd", "y"]


ABOVE = [
    ("Report of 2020\n\na;b\n1,5;x\n", {}, 4, {"a": [1.5], "b": ["x"]}),
    ("Report,,\n,,\na,b,c\n1,2,x\n", {}, 4, {"a": [1], "b": [2], "c": ["x"]}),
    ("# by hand\n# today\na,b\n1,2\n", {}, 4, {"a": [1], "b": [2]}),
    ("#a,b\n1,2\n", {}, 2, {"#a": [1], "b": [2]}),
    ("Sales, 2020\n\na,b,c\n1,2,3\n", {"skip": 2}, 4, {"a": [1], "b": [2], "c": [3]}),
    (",b\n0,5\n", {}, 2, {"Unnamed: 0": [0], "b": [5]}),
    ("a,b\n1,2,\n3,4,\n", {}, 2, {"a": [1, 3], "b": [2, 4], "Unnamed: 2": [None] * 2}),
    ("  a   b\n 1   x\n20   y\n", {"sep": " "}, 2, {"a": [1, 20], "b": ["x", "y"]}),
    ("a,b\n 1, x\n ,y \n2,NA \n", {}, 2, {"a": [1, None, 2], "b": ["x", "y", None]}),
]


@pytest.mark.parametrize(("content", "format", "line", "columns"), ABOVE)
def test_what_surrounds_a_table_or_a_value_is_left_out(tmp_path, content, format, line, columns):
    table = open_table(written(tmp_path, content.encode()), CsvFormat(**format))
    frame, expected = table.read(), pd.DataFrame(columns).fillna(np.nan)
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False)
    assert frame.attrs["numbered"] == ("line", line)
    assert ("read from line 3." in table.note) == (line > 2 and not format)
