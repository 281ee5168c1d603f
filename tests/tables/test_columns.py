"""Columns of text that stand for numbers: dates, and numbers with a unit."""

import datetime

import numpy as np
import pandas as pd
import pytest

from skuq.tables import TableError, TableModel
from skuq.tables._columns import CleanColumns


def clean(train, new=None, **options):
    """Columns of another table (or of the training table), and what is said about them."""
    columns = CleanColumns(**options).fit(pd.DataFrame({"c": train}))
    return columns.transform(pd.DataFrame({"c": train if new is None else new})), columns.notes_


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
    assert note.startswith("Column c holds dates")


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
    with pytest.raises(TableError, match="'c' holds dates in the training table, but 'soon'"):
        clean(["2020-01-31"], ["soon"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["01/02/2020", "11/12/2020"], "cannot be told apart, such as '01/02/2020'; .*--drop c"),
        (["02/02/2020"], "cannot be told apart"),
        (["31/01/2020", "01/31/2020"], "in different orders"),
    ],
)
def test_dates_that_may_be_read_in_two_ways_are_refused(values, message):
    with pytest.raises(TableError, match=message):
        clean(values)


@pytest.mark.parametrize(
    ("values", "expected", "words"),
    [
        (["44 h", "1.5 h", None], [44.0, 1.5, np.nan], "the unit 'h'"),
        (["12%", "7 %"], [12.0, 7.0], "the unit '%'"),
        (["$1,200", "$3.50"], [1200.0, 3.5], "the unit '$'"),
        (["1.200,50 EUR", "7 EUR"], [1200.5, 7.0], "the unit 'EUR'"),
        (["1,5 kg", "-2 kg"], [1.5, -2.0], "the unit 'kg'"),
        (["1,234,567", "2"], [1234567.0, 2.0], "commas that divide thousands"),
        (["1,5", "2"], [1.5, 2.0], "decimal commas"),
    ],
)
def test_numbers_with_one_unit_are_read(values, expected, words):
    X, notes = clean(values)
    np.testing.assert_array_equal(X["c"], expected)
    assert notes == [f"Column c holds numbers with {words}; it counts as numbers."]


@pytest.mark.parametrize(
    ("values", "is_said"),
    [
        (["1,200 EUR", "3,100 EUR"], True),
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
    assert [note.partition(", and counts")[0] for note in notes] == [
        f"Column c may hold dates without a century, or times, such as {values[0]!r}"
    ]


def test_codes_with_leading_zeros_stay_text_and_this_is_said():
    X, notes = clean(["00249", "14900", None])
    assert X["c"].tolist()[:2] == ["00249", "14900"]
    assert notes == [
        "Column c holds codes with leading zeros, such as '00249', and counts as text; write them "
        "without zeros to have them count as numbers."
    ]
    assert clean(["0", "1", "x"])[1] == []


def test_midnight_and_noon_of_half_days():
    X, _ = clean(["01/31/2020 12:05 AM", "01/31/2020 12:05 PM"])
    np.testing.assert_allclose(X["c (hour)"], [5 / 60, 12 + 5 / 60])


def test_another_unit_is_refused():
    with pytest.raises(TableError, match="unit 'h' in the training table, but '44 min'"):
        clean(["44 h", "12 h"], ["1 h", "44 min"])
    with pytest.raises(TableError, match="but '1,2,3'"):
        clean(["1,200,300", "12"], ["1,2,3"])
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


def test_categories_that_are_whole_numbers_may_be_missing():
    X, _ = clean(pd.Categorical([3, 7, None], categories=[3, 7]))
    np.testing.assert_array_equal(X["c"], [3.0, 7.0, np.nan])


def test_a_model_of_somebody_else_gets_the_text_as_it_is():
    X, notes = clean(["2020-01-31", "2021-12-25"], read_text=False)
    assert X["c"].tolist() == ["2020-01-31", "2021-12-25"]
    assert notes == []


def test_a_column_named_like_a_part_of_a_date_is_refused():
    with pytest.raises(TableError, match=r"'c \(month\)' has the name of a part"):
        CleanColumns().fit(pd.DataFrame({"c": ["2020-01-31"], "c (month)": [1]}))


def test_a_model_that_was_kept_reads_dates_and_units_as_before(tmp_path):
    pytest.importorskip("skops")
    days = pd.date_range("2020-01-01", periods=60).strftime("%d.%m.%Y")
    train = pd.DataFrame({"day": days, "size": [f"{k % 7} kg" for k in range(60)]})
    model = TableModel("logistic").fit(train.assign(kind=np.resize(["a", "b"], 60)), "kind")
    model.save(tmp_path / "model")
    rows = TableModel.load(tmp_path / "model").predict(train[:5])
    pd.testing.assert_frame_equal(rows, model.predict(train[:5]))
    assert any("Column size holds numbers with the unit 'kg'" in note for note in model.notes_)


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
    with pytest.raises(TableError, match=r"Column 'c' holds dates .* but 'soon' in another"):
        columns.inverse_transform(columns.transform(pd.DataFrame({"c": ["2030-01-01", "soon"]})))
