"""Columns of text that stand for numbers: dates, and numbers with a unit."""

import datetime
import warnings

import numpy as np
import pandas as pd
import pytest

from skuq.tables import NewValuesWarning, TableError, TableModel, table_notes
from skuq.tables._columns import CleanColumns


def clean(train, new=None, **options):
    """Columns of another table (or of the training table), and what is said about them."""
    columns = CleanColumns(**options).fit(pd.DataFrame({"c": train}))
    cleaned = columns.read(pd.DataFrame({"c": train if new is None else new}), "other table")
    return cleaned.X, [*columns.notes_, *columns.warnings_]


def cells(train, new, **attrs):
    """Cells of another table: rows, texts, what they hold, and whether they are read."""
    columns = CleanColumns().fit(pd.DataFrame({"c": train}))
    table = pd.DataFrame({"c": new})
    table.attrs |= attrs
    return [
        (each.rows.tolist(), each.texts, each.held, each.read)
        for each in columns.read(table, "other table").cells
    ]


@pytest.mark.parametrize(
    "train",
    [
        ["2020-01-31", "2021-12-25", None],
        ["2020/1/31", "2021/12/25", None],
        ["31.1.2020", "25.12.2021", None],
        ["31/01/2020", "25/12/2021", None],
        ["01/31/2020", "12/25/2021", None],
        ["31-01-2020", "25-12-2021", None],
        ["31 Jan 2020", "25 December 2021", None],
        ["31-Jan-2020", "25-DEC-2021", None],
        ["2020-1-31", "2021-12-25", None],
        ["January 31, 2020", "Dec 25, 2021", None],
        [" 2020-01-31", "2021-12-25 ", None],
        pd.to_datetime(["2020-01-31", "2021-12-25", None]),
        [datetime.date(2020, 1, 31), datetime.date(2021, 12, 25), None],
        pd.Categorical(["2020-01-31", "2021-12-25", None]),
    ],
)
def test_dates_become_days_months_and_weekdays(train):
    X, notes = clean(train)
    assert list(X) == ["c (days since 2020-01-31)", "c (month)", "c (weekday)"]
    expected = [[0.0, 1.0, 4.0], [694.0, 12.0, 5.0], [np.nan] * 3]  # a Friday and a Saturday
    np.testing.assert_array_equal(X.to_numpy(), expected)
    (note,) = notes
    assert note.startswith("Column c contains dates")


def test_times_of_the_day_are_kept_where_they_differ():
    X, _ = clean(["2020-01-31 06:30", "2020-02-01T18:00:00"])
    np.testing.assert_array_equal(X["c (hour)"], [6.5, 18.0])
    X, _ = clean(["2020-01-31T23:00:00-02:00", "2020-02-01T01:00:00Z"])  # the same moment
    np.testing.assert_array_equal(X.iloc[0], X.iloc[1])


@pytest.mark.parametrize(
    "train",
    [
        ["2020/1/31 6:30", "2021/12/25 18:00"],
        ["31.1.2020 6:30", "25.12.2021 18:00"],
        ["31/01/2020 06:30", "25/12/2021 18:00"],
        ["01/31/2020 06:30:00", "12/25/2021 18:00:00"],
        ["31-01-2020 06:30", "25-12-2021 18:00"],
        ["01/31/2020 6:30 AM", "12/25/2021 06:00 PM"],
        ["31.1.2020 06:30:00am", "25.12.2021 6:00:00 p.m."],
        ["2020-01-31 6:30", "2021-12-25 18:00"],
        ["2020-01-31 06:30 AM", "2021-12-25 06:00 PM"],
        ["01/31/2020, 06:30:00 AM", "12/25/2021, 06:00:00 PM"],
        ["31 Jan 2020 06:30", "25 December 2021 18:00"],
        ["31-Jan-2020 06:30:00", "25-Dec-2021 18:00:00"],
        ["January 31, 2020, 6:30 am", "Dec 25, 2021, 6:00 pm"],
    ],
)
def test_dates_may_come_with_times(train):
    X, _ = clean(train)
    expected = [[0.0, 1.0, 4.0, 6.5], [694.0, 12.0, 5.0, 18.0]]
    np.testing.assert_allclose(X.to_numpy() - [[6.5 / 24, 0, 0, 0], [0.75, 0, 0, 0]], expected)


def test_the_training_table_says_how_dates_are_read():
    X, notes = clean(["13/02/2020", "01/03/2020"], ["02/03/2020"])
    assert X["c (month)"].tolist() == [3.0]
    assert "the day first" in notes[0]


@pytest.mark.parametrize(
    "train", ["2020-01-31", "2020/1/31 0:00", "Jan 31, 2020", "31 Jan 2020, 12:00 AM"]
)
def test_texts_of_dates_train_and_dates_are_predicted(train):
    X, _ = clean([train], pd.to_datetime(["2020-02-01"]))
    assert X["c (days since 2020-01-31)"].tolist() == [1.0]
    assert cells(["2020-01-31"], ["soon", "-", None]) == [([0], ["soon"], "not a date", False)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["01/02/2020", "11/12/2020"], "cannot be told apart, such as '01/02/2020'; .*drop=..c"),
        (["02/02/2020"], "cannot be told apart"),
        (["31/01/2020", "01/31/2020"], "cannot be told apart"),
    ],
)
def test_dates_that_may_be_read_in_two_ways_are_refused(values, message):
    with pytest.raises(TableError, match=message):
        clean(values)


@pytest.mark.parametrize(
    ("values", "expected", "words"),
    [
        (["44 h", "1.5 h", None], [44.0, 1.5, np.nan], " with the unit 'h'"),
        (["12%", "7 %"], [12.0, 7.0], " with the unit '%'"),
        (["$1,200", "-$3.50", "$-2"], [1200.0, -3.5, -2.0], " with the unit '$'"),
        (["1.200,50 EUR", "7 EUR"], [1200.5, 7.0], " with the unit 'EUR'"),
        (["USD 1,200", "USD 7"], [1200.0, 7.0], " with the unit 'USD'"),
        (["1,5 kg", "-2 kg"], [1.5, -2.0], " with the unit 'kg'"),
        (["1198 CC", "998CC", "1498 cc", "800"], [1198.0, 998.0, 1498.0, 800.0], " with the unit"),
        (["1,234,567", "2"], [1234567.0, 2.0], ", such as '1,234,567'"),
        (["84,219", "60,000"], [84219.0, 60000.0], ", such as '84,219'"),
        (["1,200 EUR", "3,100 EUR"], [1200.0, 3100.0], " with the unit 'EUR'"),
        (["\u22121.5", "2.5"], [-1.5, 2.5], ", such as '\u22121.5'"),
        (["(1,234.50)", "5"], [-1234.5, 5.0], ", such as '(1,234.50)'"),
        (["5,50,000", "1,00,000"], [550000.0, 100000.0], ", such as '5,50,000'"),
        (["1 234,50", "1\u202f234"], [1234.5, 1234.0], " with decimal commas"),
        (["1'234.5", "7"], [1234.5, 7.0], ', such as "1\'234.5"'),
        (["1,5", "2"], [1.5, 2.0], " with decimal commas"),
        (["1.5", "-", "n.a.", " ", "?"], [1.5, *[np.nan] * 4], " (- where a number is missing)"),
        (
            ["8 bhp", "7.5 bhp", "null bhp", "bhp"],
            [8.0, 7.5, *[np.nan] * 2],
            " with the unit 'bhp'",
        ),
    ],
)
def test_numbers_in_text_are_read(values, expected, words):
    X, (note,) = clean(values)
    np.testing.assert_array_equal(X["c"], expected)
    assert note.startswith(f"Column c contains numbers{words}")
    assert note.endswith("it is numeric.")


@pytest.mark.parametrize(
    ("decimal", "expected"), [(".", [1.2, 3.1]), (",", [1200.0, 3100.0]), ("", None), (None, None)]
)
def test_the_mark_of_the_file_decides_where_the_column_does_not(decimal, expected):
    table = pd.DataFrame({"c": ["1.200 EUR", "3.100 EUR"]})
    if decimal is not None:
        table.attrs["decimal"] = decimal
    columns = CleanColumns().fit(table)
    if expected is None:
        assert "write plain numbers" in columns.warnings_[0]
    else:
        assert columns.transform(table)["c"].tolist() == expected


def test_a_file_that_writes_numbers_otherwise_is_read_in_its_own_way():
    columns = CleanColumns().fit(pd.DataFrame({"c": ["84,219", "5"], "n": [1.5, 2.5]}))
    table = pd.DataFrame({"c": ["84.219"], "n": ["1.000,5"]})
    table.attrs["decimal"] = ","
    assert columns.transform(table).to_numpy().tolist() == [[84219.0, 1000.5]]


FORTY = [str(k / 2) for k in range(40)]


def test_a_few_cells_do_not_make_text_of_a_column_of_numbers():
    odd = [*FORTY, "1365 - 1700", "abc"]
    X, _ = clean(odd)
    np.testing.assert_array_equal(X["c"], [*map(float, FORTY), 1532.5, np.nan])
    assert cells(odd, odd) == [
        ([40], ["1365 - 1700"], "a range", True),
        ([41], ["abc"], "not a number", False),
    ]
    columns = CleanColumns().fit(pd.DataFrame({"c": odd}))
    columns.accept(columns.read(pd.DataFrame({"c": odd}), "training table").cells)
    new = columns.read(pd.DataFrame({"c": ["abc", "abd", "7"]}), "other table")
    assert [each.texts for each in new.cells] == [["abd"]]  # the other one is known
    assert clean([*odd, "x"])[0]["c"].tolist()[-3:] == ["1365 - 1700", "abc", "x"]
    _, (note,) = clean([*odd, "x", "y"])
    assert note.startswith("Column c counts as text, such as '1365 - 1700'. If it holds numbers")


@pytest.mark.parametrize(
    ("values", "counts_as"),
    [
        (["0", "1", "2"] * 20 + ["3+", "3+"], "text"),  # a category
        (["0", "1", "2"] * 20 + ["3+", "unknown"], "numbers"),
        ([*FORTY, "3+", "3+"], "numbers"),
    ],
)
def test_a_text_that_repeats_among_few_numbers_is_a_category(values, counts_as):
    columns = CleanColumns().fit(pd.DataFrame({"c": values}))
    assert (columns.numbers_ == ["c"]) == (counts_as == "numbers")


def test_a_few_cells_do_not_make_text_of_a_column_of_dates():
    dates = [*pd.date_range("2020-01-01", periods=40).strftime("%d.%m.%Y"), "soon", "n/a"]
    X, _ = clean(dates)
    assert X["c (month)"].isna().tolist() == [False] * 40 + [True] * 2
    assert cells(dates, dates) == [([40], ["soon"], "not a date", False)]


@pytest.mark.parametrize(
    ("train", "new", "expected"),
    [
        ([True, False], [1, 0], ["True", "False"]),
        ([True, False], ["1", "0"], ["True", "False"]),
        ([1, 0], [True, False], [1.0, 0.0]),
        ([1, 0], pd.array([True, None], dtype="boolean"), [1.0, np.nan]),
    ],
)
def test_yes_and_no_are_those_of_ones_and_zeros(train, new, expected):
    np.testing.assert_array_equal(clean(train, new)[0]["c"].to_numpy(), expected)


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, (1, 2), np.arange(2)])
def test_several_values_in_a_cell_are_refused_by_name(value):
    for read_text in (True, False):
        with pytest.raises(TableError, match="Column 'c' has several values in one cell"):
            clean([None, value], read_text=read_text)


@pytest.mark.parametrize(
    ("values", "is_said"),
    [
        (["1.200 EUR", "3.100 EUR"], True),
        (["1 room", "2 rooms"], True),
        (["5kg", "7kg"], True),
        (["A11", "A12"], False),
        (["12A", "13B"], False),
        (["20-30 years", "5-6 years"], False),
        (["2020-13-45", "2020-01-01"], False),
        (["yes", "no"], False),
        (["<=50K", ">50K"], False),
    ],
)
def test_what_leaves_doubt_stays_text(values, is_said):
    X, notes = clean(values)
    assert X["c"].tolist() == values
    assert ["write plain numbers" in note for note in notes] == [True] * is_said


@pytest.mark.parametrize(
    "values",
    [
        ["1/31/20", "12/25/21"],
        ["31.01.20 6:30", "25.12.21 18:00"],
        ["1/31/20, 6:30 AM", "12/25/21, 6:00 PM"],
        ["6:30", "18:00"],
        ["0:30 PM"],
    ],
)
def test_dates_without_a_century_and_times_stay_text_and_this_is_said(values):
    X, notes = clean(values)
    assert X["c"].tolist() == values
    (note,) = notes
    assert note.startswith(f"Column c counts as text, such as {values[0]!r}.")


def test_codes_with_leading_zeros_stay_text_and_this_is_said():
    X, notes = clean(["00249", "14900", None])
    assert X["c"].tolist()[:2] == ["00249", "14900"]
    (note,) = notes
    assert "without leading zeros" in note


def test_midnight_and_noon_of_half_days():
    X, _ = clean(["01/31/2020 12:05 AM", "01/31/2020 12:05 PM"])
    np.testing.assert_allclose(X["c (hour)"], [5 / 60, 12 + 5 / 60])


def test_another_unit_is_not_read():
    fault = "not a number with the unit 'h'"
    assert cells(["44 h", "12 h"], ["1 h", "44 min"]) == [([1], ["44 min"], fault, False)]
    assert cells(["1,200,300", "12"], ["1,2,3"]) == [([0], ["1,2,3"], "not a number", False)]
    X, _ = clean(["44 h", "12 h"], [None, None])
    assert X["c"].isna().all()


def test_numbers_that_were_read_already_are_not_read_again_from_their_text():
    X, _ = clean(["1.200,5", "7"], [900.125, 2.0])
    assert X["c"].tolist() == [900.125, 2.0]
    X, _ = clean(["1.200,5", "7"], ["900,125", "2.000"])
    assert X["c"].tolist() == [900.125, 2000.0]


@pytest.mark.parametrize("read_text", [True, False])
def test_yes_and_no_are_the_same_in_all_ways_in_which_files_write_them(read_text):
    X, _ = clean([True, False, None], ["true", "TRUE", "False", "t"], read_text=read_text)
    assert X["c"].tolist() == ["True", "True", "False", "t"]
    X, _ = clean(["true", "maybe"], read_text=read_text)  # text, as it is
    assert X["c"].tolist() == ["true", "maybe"]


@pytest.mark.parametrize("kind", ["date", "number", "text"])
def test_a_column_that_is_new_in_nearly_all_rows_is_to_be_left_out(kind):
    random = np.random.default_rng(0)
    day = np.arange(120)
    convert = {
        "date": lambda k: [str(np.datetime64("2024-01-01") + each) for each in k],
        "number": lambda k: k * 1.5,
        "text": lambda k: [f"week {each // 7}" for each in k],
    }[kind]
    table = pd.DataFrame({"a": random.normal(size=120), "when": convert(day)})
    table["kind"] = np.where(table["a"] > 0, "x", "y")
    model = TableModel("logistic").fit(table[:90], "kind")
    new = table[98:]
    with pytest.warns(NewValuesWarning, match=r"of the 22 rows, when has .*\(`drop=\['when'\]`\)"):
        model.predict(new)
    (note,) = (n for n in table_notes(model.count(new[:9]) + model.count(new[9:])) if "drop" in n)
    assert "In nearly all of the 22 rows, when has a value" in note
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(new[:5])  # too few
        model.predict(table[:90])


def test_categories_that_are_whole_numbers_may_be_missing():
    X, _ = clean(pd.Categorical([3, 7, None], categories=[3, 7]))
    np.testing.assert_array_equal(X["c"], [3.0, 7.0, np.nan])


def test_a_model_of_somebody_else_gets_the_text_as_it_is():
    X, notes = clean(["2020-01-31", "2021-12-25"], read_text=False)
    assert X["c"].tolist() == ["2020-01-31", "2021-12-25"]
    assert notes == []


def test_a_column_named_like_a_part_of_a_date_is_refused():
    with pytest.raises(TableError, match=r"'c \(month\)' has the same name as a column derived"):
        CleanColumns().fit(pd.DataFrame({"c": ["2020-01-31"], "c (month)": [1]}))


def test_a_model_that_was_kept_reads_dates_and_units_as_before(tmp_path):
    pytest.importorskip("skops")
    days = pd.date_range("2020-01-01", periods=60).strftime("%d.%m.%Y")
    train = pd.DataFrame({"day": days, "size": [f"{k % 7} kg" for k in range(60)]})
    model = TableModel("logistic").fit(train.assign(kind=np.resize(["a", "b"], 60)), "kind")
    model.save(tmp_path / "model")
    rows = TableModel.load(tmp_path / "model").predict(train[:5])
    pd.testing.assert_frame_equal(rows, model.predict(train[:5]))
    assert any("Column size contains numbers with the unit 'kg'" in note for note in model.notes_)


HOURS = pd.date_range("2030-03-30 22:00:00.5", periods=4, freq="h")


@pytest.mark.parametrize(
    "values",
    [
        np.array([3, 1, 2, 3]),
        np.array([3, 1, 2, 2**53]),
        np.array([0.5, 1.0, np.nan, 2.0]),
        HOURS,
        HOURS.as_unit("ms"),
        HOURS.tz_localize("UTC"),
        HOURS.tz_localize("Europe/Berlin"),  # an hour is left out that night
        HOURS.where([True, False, True, True]),
        [datetime.date(2020, 1, 31), None, datetime.date(2020, 2, 1), None],
        ["2020-01-31", "2020-02-01", None, "2020-01-31"],
        ["12 %", "13 %", "12 %", "x"],
        np.array([True, False, True, True]),
        [True, None, False, True],
        pd.Categorical(["b", "c", None, "b"], categories=["c", "b", "a"], ordered=True),
        pd.Categorical([3, 1, None, 3]),
        pd.Categorical([True, None, False, True]),
        pd.Categorical(list(HOURS)),
        pd.cut([1, 2, 3, 9], [0, 2, 5, 10]),
    ],
)
def test_columns_come_back_as_a_given_model_saw_them(values):
    dtype = object if isinstance(values, list) else None
    frame = pd.DataFrame({"c": pd.Series(values, dtype=dtype)})
    columns = CleanColumns(read_text=False).fit(frame)
    pd.testing.assert_frame_equal(columns.inverse_transform(columns.transform(frame)), frame)


def test_integers_with_gaps_are_floats_as_a_reader_of_files_has_them():
    columns = CleanColumns(read_text=False).fit(pd.DataFrame({"c": [1, 2, 3]}))
    for new in ([1.0, np.nan], [1.5, 2.0], [1e19, 2.0]):
        frame = pd.DataFrame({"c": new})
        pd.testing.assert_frame_equal(columns.inverse_transform(columns.transform(frame)), frame)


def test_values_that_are_no_categories_follow_those_that_are():
    columns = CleanColumns(read_text=False).fit(pd.DataFrame({"c": pd.Categorical(["b", "a"])}))
    new = columns.inverse_transform(columns.transform(pd.DataFrame({"c": ["d", None, "b"]})))["c"]
    assert new.cat.categories.tolist() == ["a", "b", "d"]
    assert new.cat.codes.tolist() == [2, -1, 1]


@pytest.mark.parametrize(
    "new", [HOURS.tz_localize("UTC"), ["2030-03-30 22:00:00.5", "2030-03-31 01:00:00.5+02:00"]]
)
def test_dates_with_a_time_zone_are_those_of_utc_where_a_given_model_saw_none(new):
    columns = CleanColumns(read_text=False).fit(pd.DataFrame({"c": HOURS}))
    read = columns.inverse_transform(columns.transform(pd.DataFrame({"c": new})))["c"]
    assert read.dtype == HOURS.dtype
    assert read.tolist() == HOURS[: len(new)].tolist()


def test_what_is_no_date_is_refused_where_a_given_model_reads_dates():
    columns = CleanColumns(read_text=False).fit(pd.DataFrame({"c": HOURS}))
    with pytest.raises(TableError, match=r"Column 'c' contains dates .* but this table has 'soon'"):
        columns.inverse_transform(columns.transform(pd.DataFrame({"c": ["2030-01-01", "soon"]})))
