"""CSV as it comes: the format is found where the rows leave no doubt, and asked for elsewhere."""

import bz2
import gzip
import lzma
import zipfile

import pandas as pd
import pytest

from skuq._table_files import CsvFormat, TableFileError, open_table

TABLE = pd.DataFrame({"name": ["Müller", "Zoë", "Jo"], "größe": [1.25, -0.5, 3.0], "n": [1, 2, 3]})


def written(folder, content, name="t.csv"):
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({}, ""),
        ({"sep": ";", "decimal": ","}, "a semicolon as separator and a decimal comma"),
        ({"sep": ";"}, "a semicolon as separator"),
        ({"sep": "\t", "decimal": ","}, "a tab as separator and a decimal comma"),
        ({"sep": "|"}, "a vertical bar as separator"),
        ({"encoding": "cp1252"}, "the encoding cp1252 (it contains 'größe')"),
        ({"encoding": "utf-8-sig"}, "a byte-order mark, as Excel writes it"),
        (
            {"encoding": "utf-16", "sep": "\t"},
            "a tab as separator and the encoding utf-16 (it contains 'größe')",
        ),
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


def test_zstandard_is_read_where_pyarrow_is(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    with arrow.CompressedOutputStream(str(tmp_path / "t.csv.zst"), "zstd") as stream:
        stream.write(TABLE.to_csv(index=False).encode())
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
        ("a,b\n1,2\n1,2,3\n", {}, "cannot be read as CSV"),
        ("a,b\n1,2,3\n4,5,6\n", {}, "more values than column names"),
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
        (b"a,b\n1,2\n", "."),
        (b"a;b\n1,5;2\n", ","),
        (b"a;b\n1.5;2\n", "."),
        (b"a;b\n1;2\n", ""),
        (b"a;b\n1.200,50 EUR;x\n7 EUR;y\n", ","),
        (b"a;b\n1,5;x\n-;y\n", ","),
        (b"a;b\n1,234,567;x\n5 kg;y\n5,5 kg;z\n", ""),
        (b"a;b\n1.200 EUR;x\n3.100 EUR;y\n", ""),
    ],
)
def test_the_mark_that_a_file_shows_goes_with_its_table(tmp_path, content, decimal):
    table = open_table(written(tmp_path, content)).read()
    assert table.attrs == {"decimal": decimal, "numbered": ("line", 2)}
    table = next(open_table(written(tmp_path, b"sep=%c\n" % content[1] + content)).chunks())
    assert table.attrs["numbered"] == ("line", 3)


def test_damage_far_behind_the_first_rows_is_named(tmp_path):
    lines = b"".join(b"%d,%d\n" % (k, k * 7919 % 100003) for k in range(120_000))
    cut = gzip.compress(b"a,b\n" + lines, 1)[:-1000]
    for name, content, words in (
        ("t.csv", b"a,b\n" + lines + "1,é\n".encode("cp1252"), r"utf-8; .*`encoding`"),
        ("t.csv.gz", cut, "damaged"),
        ("t.csv", b"a,b\n" + lines + b"1,2,3\n", "cannot be read as CSV"),
    ):
        with pytest.raises(TableFileError, match=words):
            list(open_table(written(tmp_path, content, name)).chunks())


@pytest.mark.parametrize("repeats", [3000, 270_000])  # in the sample of bytes, and beyond it
def test_thousands_in_late_rows_are_not_taken_for_decimals(tmp_path, repeats):
    path = written(tmp_path, b"a;b\n" + repeats * b"x;1\n" + b"x;1.714\n")
    column = open_table(path).read()["b"]
    assert column.iloc[-1] == "1.714"  # text, of which the column as a whole decides
    assert open_table(path, CsvFormat(decimal=".")).read()["b"].iloc[-1] == 1.714


def test_values_in_chunks_are_those_of_the_whole_column(tmp_path):
    table = open_table(written(tmp_path, b"a\n1\n"))
    assert table.values_of(["01", "2"]) == [1, 2]
    assert table.values_of(["1", "NA"])[:1] == [1.0]
    assert table.values_of(["x", "NA"]) == ["x", "NA"]
    assert table.values_of(["True", "False"]) == [True, False]
