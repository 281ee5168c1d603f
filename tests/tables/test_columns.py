"""Columns of text that stand for numbers: dates, and numbers with a unit."""

import datetime
import warnings

import numpy as np
import pandas as pd
import pytest

from benchmarks.messy_tables import MESSY_TABLES
from skuq._table_files import open_table
from skuq.tables import NewValuesWarning, TableModel, guessing_note, table_notes
from skuq.tables._columns import CleanColumns


def clean(train, new=None, **options):
    """Columns of another table (or of the training table), and what is said about them."""
    columns = CleanColumns(**options).fit(pd.DataFrame({"c": train}))
    cleaned = columns.read(pd.DataFrame({"c": train if new is None else new}), "other table")
    return cleaned.X, [*columns.notes_, *columns.warnings_]


def cells(train, new):
    """Cells of another table: rows, texts, what they hold, and whether they are read."""
    read = CleanColumns().fit(pd.DataFrame({"c": train})).read(pd.DataFrame({"c": new}), "other")
    return [(each.rows.tolist(), each.texts, each.held, each.read) for each in read.cells]


DATES = [
    *(["2020-01-31", "2021-12-25", None], ["2020/1/31", "2021/12/25", None]),
    *(["31.1.2020", "25.12.2021", None], ["31/01/2020", "25/12/2021", None]),
    *(["01/31/2020", "12/25/2021", None], ["31-01-2020", "25-12-2021", None]),
    *(["31 Jan 2020", "25 December 2021", None], ["31-Jan-2020", "25-DEC-2021", None]),
    *(["2020-1-31", "2021-12-25", None], ["January 31, 2020", "Dec 25, 2021", None]),
    *([" 2020-01-31", "2021-12-25 ", None], pd.to_datetime(["2020-01-31", "2021-12-25", None])),
    [datetime.date(2020, 1, 31), datetime.date(2021, 12, 25), None],
    pd.Categorical(["2020-01-31", "2021-12-25", None]),
]
TIMES = [
    *(["2020/1/31 6:30", "2021/12/25 18:00"], ["31.1.2020 6:30", "25.12.2021 18:00"]),
    *(["31/01/2020 06:30", "25/12/2021 18:00"], ["31-01-2020 06:30", "25-12-2021 18:00"]),
    ["01/31/2020 06:30:00", "12/25/2021 18:00:00"],
    *(["01/31/2020 6:30 AM", "12/25/2021 06:00 PM"], ["2020-01-31 6:30", "2021-12-25 18:00"]),
    ["31.1.2020 06:30:00am", "25.12.2021 6:00:00 p.m."],
    ["2020-01-31 06:30 AM", "2021-12-25 06:00 PM"],
    ["01/31/2020, 06:30:00 AM", "12/25/2021, 06:00:00 PM"],
    ["31 Jan 2020 06:30", "25 December 2021 18:00"],
    ["31-Jan-2020 06:30:00", "25-Dec-2021 18:00:00"],
    ["January 31, 2020, 6:30 am", "Dec 25, 2021, 6:00 pm"],
]


def test_dates_become_days_months_weekdays_and_hours_where_they_differ():
    for train in DATES:
        X, (note,) = clean(train)
        assert list(X) == ["c (days since 2020-01-31)", "c (month)", "c (weekday)"], train
        expected = [[0.0, 1.0, 4.0], [694.0, 12.0, 5.0], [np.nan] * 3]  # a Friday and a Saturday
        np.testing.assert_array_equal(X.to_numpy(), expected, err_msg=str(train))
        assert note.startswith("Column c contains dates")
    for train in TIMES:
        expected = [[6.5 / 24, 1.0, 4.0, 6.5], [694.75, 12.0, 5.0, 18.0]]
        np.testing.assert_allclose(clean(train)[0].to_numpy(), expected, err_msg=str(train))
    X, _ = clean(["2020-01-31 06:30", "2020-02-01T18:00:00"])
    np.testing.assert_array_equal(X["c (hour)"], [6.5, 18.0])
    X, _ = clean(["2020-01-31T23:00:00-02:00", "2020-02-01T01:00:00Z"])  # the same moment
    np.testing.assert_array_equal(X.iloc[0], X.iloc[1])
    X, _ = clean(["01/31/2020 12:05 AM", "01/31/2020 12:05 PM"])
    np.testing.assert_allclose(X["c (hour)"], [5 / 60, 12 + 5 / 60])


def test_the_training_table_says_how_dates_are_read():
    X, (note,) = clean(["13/02/2020", "01/03/2020"], ["02/03/2020"])
    assert X["c (month)"].tolist() == [3.0]
    assert "the day first" in note
    for train in ("2020-01-31", "2020/1/31 0:00", "Jan 31, 2020", "31 Jan 2020, 12:00 AM"):
        X, _ = clean([train], pd.to_datetime(["2020-02-01"]))
        assert X["c (days since 2020-01-31)"].tolist() == [1.0], train
    assert cells(["2020-01-31"], ["soon", "-", None]) == [([0], ["soon"], "not a date", False)]


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
        (["8 bhp", "7.5 bhp", "null bhp", "bhp"], [8.0, 7.5, *[np.nan] * 2], " with the unit 'bh"),
    ],
)
def test_numbers_in_text_are_read(values, expected, words):
    X, (note,) = clean(values)
    np.testing.assert_array_equal(X["c"], expected)
    assert note.startswith(f"Column c contains numbers{words}")
    assert note.endswith("it is numeric.")


def test_the_mark_of_the_file_decides_where_the_column_does_not():
    table = pd.DataFrame({"c": ["1.200 EUR", "3.100 EUR"]})
    assert "write plain numbers" in CleanColumns().fit(table).warnings_[0]
    for decimal, expected in ((".", [1.2, 3.1]), (",", [1200.0, 3100.0]), ("", None)):
        table.attrs["decimal"] = decimal
        columns = CleanColumns().fit(table)
        if expected is None:
            assert "write plain numbers" in columns.warnings_[0]
        else:
            assert columns.read(table, "table").X["c"].tolist() == expected
    columns = CleanColumns().fit(pd.DataFrame({"c": ["84,219", "5"], "n": [1.5, 2.5]}))
    table = pd.DataFrame({"c": ["84.219"], "n": ["1.000,5"]})  # as another file writes them
    table.attrs["decimal"] = ","
    assert columns.read(table, "table").X.to_numpy().tolist() == [[84219.0, 1000.5]]


FORTY = [str(k / 2) for k in range(40)]


def test_a_few_cells_do_not_make_text_of_a_column_of_numbers_or_dates():
    odd = [*FORTY, "1365 - 1700", "abc"]
    X, _ = clean(odd)
    np.testing.assert_array_equal(X["c"], [*map(float, FORTY), 1532.5, np.nan])
    abc = ([41], ["abc"], "not a number", False)
    assert cells(odd, odd) == [([40], ["1365 - 1700"], "a range", True), abc]
    columns = CleanColumns().fit(pd.DataFrame({"c": odd}))
    columns.accept(columns.read(pd.DataFrame({"c": odd}), "training table").cells)
    new = columns.read(pd.DataFrame({"c": ["abc", "abd", "7"]}), "other table")
    assert [each.texts for each in new.cells] == [["abd"]]  # the other one is known
    assert clean([*odd, "x"])[0]["c"].tolist()[-3:] == ["1365 - 1700", "abc", "x"]
    _, (note,) = clean([*odd, "x", "y"])
    assert note.startswith("Column c counts as text, such as '1365 - 1700'.")
    dates = [*pd.date_range("2020-01-01", periods=40).strftime("%d.%m.%Y"), "soon", "n/a"]
    assert clean(dates)[0]["c (month)"].isna().tolist() == [False] * 40 + [True] * 2
    assert cells(dates, dates) == [([40], ["soon"], "not a date", False)]


def test_a_text_that_repeats_among_few_numbers_is_a_category():
    few = ["0", "1", "2"] * 20
    for values, numbers in (
        ([*few, "3+", "3+"], []),  # a category
        ([*few, "3+", "unknown"], ["c"]),
        ([*FORTY, "3+", "3+"], ["c"]),
    ):
        assert CleanColumns().fit(pd.DataFrame({"c": values})).numbers_ == numbers


@pytest.mark.parametrize(
    ("train", "new", "expected"),
    [
        ([True, False], [1, 0], ["True", "False"]),
        ([True, False], ["1", "0"], ["True", "False"]),
        ([1, 0], [True, False], [1.0, 0.0]),
        ([1, 0], pd.array([True, None], dtype="boolean"), [1.0, np.nan]),
        ([True, False, None], ["true", "TRUE", "False", "t"], ["True", "True", "False", "t"]),
        (["true", "maybe"], ["true", "maybe"], ["true", "maybe"]),
        (pd.Categorical([3, 7, None]), pd.Categorical([3, 7, None]), [3.0, 7.0, np.nan]),
        (["1.200,5", "7"], [900.125, 2.0], [900.125, 2.0]),  # read already
        (["1.200,5", "7"], ["900,125", "2.000"], [900.125, 2000.0]),
        (["44 h", "12 h"], [None, None], [np.nan, np.nan]),
    ],
)
def test_values_are_read_as_in_training(train, new, expected):
    np.testing.assert_array_equal(clean(train, new)[0]["c"].to_numpy(), expected)
    if isinstance(expected[0], str):
        of_given = clean(train, new, read_text=False)[0]["c"]
        np.testing.assert_array_equal(of_given.to_numpy(), expected)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        *[(["1.200 EUR", "3.100 EUR"], "plain numbers"), (["1 room", "2 rooms"], "plain numbers")],
        *[(["5kg", "7kg"], "plain numbers"), (["A11", "A12"], None), (["12A", "13B"], None)],
        *[(["20-30 years", "5-6 years"], None), (["2020-13-45", "2020-01-01"], None)],
        *[(["yes", "no"], None), (["<=50K", ">50K"], None)],
        (["1/31/20", "12/25/21"], "'1/31/20'"),  # no century
        (["31.01.20 6:30", "25.12.21 18:00"], "'31.01.20 6:30'"),
        (["1/31/20, 6:30 AM", "12/25/21, 6:00 PM"], "'1/31/20, 6:30 AM'"),
        *[(["6:30", "18:00"], "'6:30'"), (["0:30 PM"], "'0:30 PM'")],
        (["00249", "14900"], "without leading zeros"),
    ],
)
def test_what_leaves_doubt_stays_text_and_what_looks_like_numbers_is_said(values, word):
    X, notes = clean(values)
    assert X["c"].tolist() == values
    found = [note.startswith("Column c counts as text") and word in note for note in notes]
    assert found == ([] if word is None else [True])


def test_another_unit_is_not_read_nor_text_for_a_model_of_somebody_else():
    fault = "not a number with the unit 'h'"
    assert cells(["44 h", "12 h"], ["1 h", "44 min"]) == [([1], ["44 min"], fault, False)]
    assert cells(["1,200,300", "12"], ["1,2,3"]) == [([0], ["1,2,3"], "not a number", False)]
    X, notes = clean(["2020-01-31", "2021-12-25"], read_text=False)
    assert (X["c"].tolist(), notes) == (["2020-01-31", "2021-12-25"], [])


@pytest.mark.parametrize("kind", ["date", "number", "text"])
def test_a_column_that_is_new_in_nearly_all_rows_is_to_be_left_out(kind):
    numbers = np.arange(120)
    when = {"date": np.datetime64("2024-01-01") + numbers, "number": numbers * 1.5}
    when["text"] = [f"week {each // 7}" for each in numbers]
    table = pd.DataFrame({"a": np.random.default_rng(0).normal(size=120), "when": when[kind]})
    table["kind"] = np.where(table["a"] > 0, "x", "y")
    model, new = TableModel("logistic").fit(table[:90], "kind"), table[98:]
    with pytest.warns(NewValuesWarning, match=r"of the 22 rows, when has .*\(`drop=\['when'\]`\)"):
        model.predict(new)
    (note,) = (n for n in table_notes(model.count(new[:9]) + model.count(new[9:])) if "drop" in n)
    assert "In nearly all of the 22 rows, when has a value" in note
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(new[:5])  # too few
        model.predict(table[:90])


HOURS = pd.date_range("2030-03-30 22:00:00.5", periods=4, freq="h")
STORED = [
    *(np.array([3, 1, 2, 3]), np.array([3, 1, 2, 2**53]), np.array([0.5, 1.0, np.nan, 2.0])),
    *(HOURS, HOURS.as_unit("ms"), HOURS.tz_localize("UTC")),
    HOURS.tz_localize("Europe/Berlin"),  # an hour is left out that night
    HOURS.where([True, False, True, True]),
    [datetime.date(2020, 1, 31), None, datetime.date(2020, 2, 1), None],
    *(["2020-01-31", "2020-02-01", None, "2020-01-31"], ["12 %", "13 %", "12 %", "x"]),
    *(np.array([True, False, True, True]), [True, None, False, True], [True, np.nan, False, True]),
    ["a", np.nan, "b", "a"],
    pd.Categorical(["b", "c", None, "b"], categories=["c", "b", "a"], ordered=True),
    *(pd.Categorical([3, 1, None, 3]), pd.Categorical([True, None, False, True])),
    *(pd.Categorical(list(HOURS)), pd.cut([1, 2, 3, 9], [0, 2, 5, 10])),
]


def restored(train, new):
    columns = CleanColumns(read_text=False).fit(pd.DataFrame({"c": train}))
    return columns.inverse_transform(columns.read(pd.DataFrame({"c": new}), "table").X)


def test_columns_come_back_as_a_given_model_saw_them_or_a_reader_of_files():
    for values in STORED:
        column = pd.Series(values, dtype=object if isinstance(values, list) else None)
        read = restored(column, column)
        pd.testing.assert_frame_equal(read, pd.DataFrame({"c": column}))
        assert [v is None for v in read["c"]] == [v is None for v in column]  # or is not a number
    for new in ([1.0, np.nan], [1.5, 2.0], [1e19, 2.0]):  # integers with gaps are floats
        pd.testing.assert_frame_equal(restored([1, 2, 3], new), pd.DataFrame({"c": new}))
    categories = restored(pd.Categorical(["b", "a"]), ["d", None, "b"])["c"].cat
    assert categories.categories.tolist() == ["a", "b", "d"]
    assert categories.codes.tolist() == [2, -1, 1]
    # Dates with a time zone are those of UTC where the model saw none.
    texts = ["2030-03-30 22:00:00.5", "2030-03-31 01:00:00.5+02:00"]
    for new in (HOURS.tz_localize("UTC"), texts):
        read = restored(HOURS, new)["c"]
        assert read.dtype == HOURS.dtype
        assert read.tolist() == HOURS[: len(new)].tolist()


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("name", MESSY_TABLES)
def test_a_table_needs_nothing_but_its_target(tmp_path, name):
    form = MESSY_TABLES[name]
    table, target = form.make(np.random.default_rng(0), 400)
    table[:300].to_csv(tmp_path / "train.csv", index=False)
    train = open_table(tmp_path / "train.csv").read()
    model = TableModel("logistic").fit(train, target)
    assert set(form.numbers) <= set(model.columns_.numbers_)
    assert not set(form.names) & set(model.feature_names_in_)
    assert guessing_note(model) == ""
    new = table[300:].drop(columns=target).astype({form.numbers[0]: object}).reset_index(drop=True)
    new.loc[7, form.numbers[0]] = form.bad
    new.to_csv(tmp_path / "new.csv", index=False)
    rows = model.predict(open_table(tmp_path / "new.csv").read(), n_explained=0)
    told = f"not scored: line 9: {form.numbers[0]} is {form.bad!r}, not a number"
    assert rows["reasons"][7].startswith(told)
    assert rows["prediction"].notna().mean() > 0.9
