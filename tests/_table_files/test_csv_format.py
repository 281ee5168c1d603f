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
        ({"encoding": "utf-16", "sep": "\t"}, "a tab as separator and the encoding utf-16"),
        ({"quoting": 1}, ""),
        ({"lineterminator": "\r\n"}, ""),
    ],
)
def test_a_table_is_the_same_however_it_was_written(tmp_path, options, note):
    TABLE.to_csv(tmp_path / "t.csv", index=False, **options)
    table = open_table(tmp_path / "t.csv")
    pd.testing.assert_frame_equal(table.read(), TABLE)
    assert table.columns == list(TABLE)
    assert note in table.note
    assert bool(table.note) == bool(note)


def test_a_byte_order_mark_is_no_part_of_a_name_though_the_encoding_is_given(tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False, encoding="utf-8-sig")
    table = open_table(tmp_path / "t.csv", CsvFormat(encoding="UTF8"))
    assert table.columns == list(table.read()) == list(TABLE)


@pytest.mark.parametrize(
    ("ending", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
def test_compressed_files_are_decompressed_by_their_ending(tmp_path, ending, compress):
    path = written(tmp_path, compress(TABLE.to_csv(index=False).encode()), f"t.csv.{ending}")
    pd.testing.assert_frame_equal(open_table(path).read(), TABLE)


def test_an_archive_must_hold_one_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("t.csv", TABLE.to_csv(index=False))
    pd.testing.assert_frame_equal(open_table(tmp_path / "t.zip").read(), TABLE)
    with zipfile.ZipFile(tmp_path / "t.zip", "a") as archive:
        archive.writestr("u.csv", "a\n1\n")
    with pytest.raises(TableFileError, match="must contain one file, got 2"):
        open_table(tmp_path / "t.zip")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a, m|b, kg\n1,5|2,5\n3,5|4,5\n", "comma into 3 .* vertical bar into 2 columns"),
        ("name, first;size, m\n1,5;2,5\n", "comma into 3 .* semicolon into 2 columns; .*`sep`"),
        ("a;b\n1,500;2,200\n", "'1,500', whose comma or point may be a decimal mark .*`decimal`"),
        ("a;b\n1.500;2.200\n", "'1.500', whose comma or point may be a decimal mark .*`decimal`"),
        ("a;b\n1,5;2.5\n", "with a comma, such as '1,5', and .* '2.5'; .*`decimal`"),
    ],
)
def test_what_may_be_meant_in_two_ways_is_an_error_that_names_the_option(
    tmp_path, content, message
):
    with pytest.raises(TableFileError, match=message):
        open_table(written(tmp_path, content.encode()))


def test_what_is_stated_is_not_doubted(tmp_path):
    path = written(tmp_path, b"a;b\n1,500;2,200\n")
    commas, points = (open_table(path, CsvFormat(decimal=mark)).read() for mark in ",.")
    assert commas["a"].tolist() == [1.5]
    assert points["a"].tolist() == ["1,500"]
    path = written(tmp_path, b"x, y;z\n1,5;2\n")
    assert open_table(path, CsvFormat(sep=";", decimal=",")).columns == ["x, y", "z"]
    path = written(tmp_path, "\u0438\u043c\u044f;n\n\u0418\u0432\u0430\u043d;1\n".encode("cp1251"))
    with pytest.raises(TableFileError, match="state its encoding"):
        open_table(path)
    assert open_table(path, CsvFormat(encoding="cp1251")).read()["\u0438\u043c\u044f"].tolist() == [
        "\u0418\u0432\u0430\u043d"
    ]


@pytest.mark.parametrize(
    ("content", "column"),
    [
        (b"a;b\n1.234,5;x\n0,5;y\n", ["1.234,5", "0,5"]),  # thousands stay text
        (b"a;b\n0.5;Doe, 5\n1.25;x\n", [0.5, 1.25]),  # a comma in text says nothing
        (b'a,b\n"1,5",2\n', ["1,5"]),
        (b"a;b\n0,125;1\n2,375;2\n", [0.125, 2.375]),
        (b"a\tb\n1.500\t1\n2.250\t2\n", [1.5, 2.25]),
    ],
)
def test_numbers_are_read_with_the_mark_of_all(tmp_path, content, column):
    assert open_table(written(tmp_path, content)).read()["a"].tolist() == column


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"a,b\n", "has no rows"),
        (b"a,b\n1,2\n1,2,3\n", "cannot be read as CSV: Error tokenizing data"),
        (b"a,b\n1,2,3\n4,5,6\n", "more values than column names"),
        (b"a,b,a \n1,2,3\n4,5,6\n", "more than one column named 'a'"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe", "is not a text file; save"),
        (b"a,b\n\x81\x8d,1\n", "state its encoding"),
        (b"\xff\xfe\x00", "not encoded as utf-16"),
        (b"a,b\n1," + b'"x' * 2**18, "quotation mark"),
    ],
)
def test_a_file_that_is_not_a_table_is_refused(tmp_path, content, message):
    path = written(tmp_path, content)
    with pytest.raises(TableFileError, match=message) as caught:
        list(open_table(path).chunks())
    assert str(caught.value).startswith(f"{path} ")


@pytest.mark.parametrize(
    ("format", "message"),
    [
        (CsvFormat(sep="::"), "must be one character other than the decimal mark, got '::'"),
        (CsvFormat(decimal="x"), "must be '.' or ',', got 'x'"),
        (CsvFormat(sep=",", decimal=","), "other than the decimal mark"),
        (CsvFormat(encoding="utf-9"), "not encoded as utf-9"),
        (CsvFormat(encoding="ascii"), "not encoded as ascii"),
    ],
)
def test_what_is_stated_must_make_sense(tmp_path, format, message):
    with pytest.raises(TableFileError, match=message):
        open_table(written(tmp_path, "a;b\n1;é\n".encode()), format)


def test_damage_far_behind_the_first_rows_is_named(tmp_path):
    lines = "".join(f"{k},{k * 7919 % 100003}\n" for k in range(200_000)).encode()
    late = written(tmp_path, b"a,b\n" + lines + "1,é\n".encode("cp1252"))
    with pytest.raises(TableFileError, match=r"not encoded as utf-8; .*`encoding`"):
        list(open_table(late).chunks())
    cut = written(tmp_path, gzip.compress(b"a,b\n" + lines)[:-1000], "t.csv.gz")
    with pytest.raises(TableFileError, match="damaged"):
        list(open_table(cut).chunks())
    longer = written(tmp_path, b"a,b\n" + lines + b"1,2,3\n")
    with pytest.raises(TableFileError, match="Error tokenizing"):
        list(open_table(longer).chunks())


def test_values_in_chunks_are_those_of_the_whole_column(tmp_path):
    table = open_table(written(tmp_path, b"a\n1\n"))
    assert table.values_of(["01", "2"]) == [1, 2]
    assert table.values_of(["1", "NA"])[:1] == [1.0]
    assert table.values_of(["x", "NA"]) == ["x", "NA"]
    assert table.values_of(["True", "False"]) == [True, False]


@pytest.mark.parametrize("repeats", [3000, 450_000])  # in the sample of bytes, and beyond it
def test_thousands_in_late_rows_are_not_taken_for_decimals(tmp_path, repeats):
    path = written(tmp_path, b"a;b\n" + repeats * b"x;1\n" + b"x;1.714\n")
    column = open_table(path).read()["b"]
    assert column.iloc[-1] == "1.714"  # text, of which the column as a whole decides
    assert open_table(path, CsvFormat(decimal=".")).read()["b"].iloc[-1] == 1.714
