"""What cannot be used is refused, with a word that says which part of it."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression

from skuq.tables import TableError, TableModel
from skuq.tables._columns import CleanColumns
from tests.tables.toy import Toy, ToyRegressor, made, of_unaltered

SIXTY = np.arange(60)
QUANTITY = TableModel("logistic", task="regression")


def fit(model=None, target="kind", *, renamed=None, options=None, **columns):
    train = made().assign(**columns).rename(columns=renamed or {})
    target = target(train) if callable(target) else target
    return (model or TableModel(Toy())).fit(train, target, **(options or {}))


def predict(*, renamed=None, **columns):
    table = made().head(7).assign(**columns).rename(columns=renamed or {})
    return of_unaltered().model.predict(table)


def ask(method, *args, **options):
    return getattr(of_unaltered().model, method)(*args, **options)


def held_out(table, **columns):
    return fit(options={"held_out": table}, **columns)


def clean(*values, read_text=True, **others):
    return CleanColumns(read_text=read_text).fit(pd.DataFrame({"c": [*values], **others}))


def restore(train, new):
    columns = clean(*train, read_text=False)
    columns.inverse_transform(columns.read(pd.DataFrame({"c": new}), "table").X)


def ids_of_training():
    table = made()[:20].assign(size=0.5, nr=SIXTY[:20])
    fit(nr=SIXTY, options={"id_column": "nr", "held_out": table})


def two_columns_of_one_name():
    pyarrow = pytest.importorskip("pyarrow")
    ask("predict", pyarrow.table([[1.0], [2.0]], names=["size", "size"]))


NAMES = [
    (lambda: fit(target="kinds"), r"'kinds'.* Did you mean 'kind'"),
    (lambda: fit(target="zzz"), r"'zzz'; it has size, count, colour, new, kind\.$"),
    (lambda: fit(options={"drop": ["color"]}), "Did you mean 'colour'"),
    (lambda: fit(options={"drop": ["size", "count", "colour", "new"]}), "no feature column"),
    (lambda: fit(**dict.fromkeys(["size", "count", "colour", "new"])), "no feature column"),
    (lambda: fit(options={"drop": ["kind"]}), "dropped"),
    (lambda: fit(options={"id_column": "kind"}), "id column"),
    (lambda: fit(total=SIXTY, options={"id_column": "total"}), "same name"),
    (lambda: fit(renamed={"count": "size"}), "training table .*'size'"),
    (lambda: fit(renamed={"count": 7}), r"training table .*7; .*astype\(str\)"),
    (lambda: predict(renamed={"count": "size"}), "table to predict .*'size'"),
    (lambda: predict(renamed={"count": 7}), r"table to predict .*7; .*astype\(str\)"),
    (lambda: predict(renamed={"size": "a", "new": "b"}), "size, new"),
    (lambda: ask("predict", np.zeros((2, 1))), "lacks"),
    (two_columns_of_one_name, "'size'"),
    (lambda: clean("2020-01-31", **{"c (month)": [1]}), r"'c \(month\)'"),
]
TARGETS = [
    (lambda: fit(target=lambda t: t["kind"]), "also a column"),
    (lambda: fit(target=lambda t: t["kind"][:7]), r"60 rows, got shape \(7,\)"),
    (lambda: fit(target=lambda t: t[["kind"]]), r"shape \(60, 1\)"),
    (lambda: fit(target=lambda t: None), r"shape \(\)"),
    (lambda: fit(QUANTITY, lambda t: t["size"] * 2, renamed={"kind": "target"}), "'target'"),
    (lambda: fit(kind=np.linspace(0, 1, 60)), "continuous.*task="),
    (lambda: fit(kind=np.tile([np.inf, 1.0], 30)), "continuous"),
    (lambda: fit(kind="ant"), "'ant' has 60 of 60"),
    (lambda: fit(kind=SIXTY), "'0' has 1 of 60.*a quantity"),
    (lambda: fit(kind=["ant"] * 59 + ["cow"]), "'cow' has 1 of 60"),
    (lambda: fit(kind=None), "is missing"),
    (lambda: fit(QUANTITY), "numeric"),
    (lambda: fit(QUANTITY, kind=["5kg", "7kg"] * 30), "one unit"),
    (lambda: fit(QUANTITY, kind=1.5), "vary"),
    (lambda: fit(QUANTITY, kind=[np.inf, 1.5] * 30), "finite"),
]
VALUES = [
    (lambda: predict(size="two"), "7 of the 7 rows .*row 0: size is 'two', not a number"),
    (lambda: predict(size=np.inf), "'inf', infinite"),
    (lambda: fit(size=-np.inf), "'size'.* infinite"),
    (lambda: fit(size=np.linspace(0, 1e200, 60)), "1e.38, such as 1.69"),
    (lambda: fit(size=[[1, 2]] * 60), r"'size' has several values.*\[1, 2\]"),
    (lambda: predict(size=[{"a": 1}] * 7), "'size' has several values"),
    (lambda: clean(None, (1, 2)), "several"),
    (lambda: clean(None, np.arange(2), read_text=False), "several"),
    (lambda: clean("01/02/2020", "11/12/2020"), "'01/02/2020'; .*drop=..c"),
    (lambda: clean("02/02/2020"), "told apart"),
    (lambda: clean("31/01/2020", "01/31/2020"), "told apart"),
    (lambda: restore(pd.to_datetime(["2030-01-01"]), ["2030-01-01", "soon"]), "'soon'"),
]
HELD_OUT = [
    (lambda: held_out(made().drop(columns="size")), "held-out table lacks .*size"),
    (lambda: held_out(made().assign(size="oops")), "60 rows of the held-out table .*'oops'"),
    (lambda: held_out(made().assign(size=0.5, kind="cow")), "'cow'"),
    (lambda: held_out(made()[:20]), "All rows"),
    (ids_of_training, "equal ids"),
]
ESTIMATORS = [
    (lambda: fit(TableModel(LinearRegression(), task="classification")), "task='classification'"),
    (lambda: fit(TableModel(object())), "got object"),
    (lambda: fit(TableModel(LogisticRegression())), "LogisticRegression"),
]
ASKED = [
    (lambda: fit(TableModel("svm")), "`estimator`"),
    (lambda: fit(TableModel(task="ranking")), None),
    (lambda: fit(TableModel(random_state=-1)), None),
    (lambda: fit(TableModel(random_state=None)), None),
    (lambda: fit(TableModel(n_jobs="all")), None),
    (lambda: fit(TableModel(progress="loud")), None),
    (lambda: ask("predict", made(), coverage=0.0), "`coverage`"),
    (lambda: ask("predict", made(), coverage=1.0), "`coverage`"),
    (lambda: ask("measured_coverage", 1.5), "`coverage`"),
    (lambda: ask("measured_coverage", by="size"), "'colour', 'new', got 'size'"),
    (lambda: ask("predict_quantiles", made()), "quantiles"),
    (lambda: ask("predict_interval", made()), "intervals"),
    (lambda: ask("measured_intervals"), "intervals"),
    (lambda: fit(TableModel(ToyRegressor()), kind=SIXTY).measured_by_class(), "classes"),
]
UNFITTED = [
    (lambda: TableModel().predict(made()), None),
    (lambda: TableModel().count(made()), None),
    (lambda: TableModel().save("folder"), None),
]
OF_TABLES = [*NAMES, *TARGETS, *VALUES, *HELD_OUT, *ESTIMATORS]
REFUSALS = [(call, TableError, word) for call, word in OF_TABLES]
REFUSALS += [(call, ValueError, word) for call, word in ASKED]
REFUSALS += [(call, NotFittedError, word) for call, word in UNFITTED]


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize(("call", "error", "word"), REFUSALS, ids=range(len(REFUSALS)))
def test_it_is_refused_by_name(call, error, word):
    with pytest.raises(error, match=word):
        call()


def test_what_is_no_table_is_refused_by_its_type():
    model, frame = of_unaltered().model, made()
    calls = [model.predict, model.count, model.predict_uncertainty, model.predict_proba, held_out]
    series, lists = frame.iloc[0], frame.to_dict("list")
    for table in (series, frame["size"].to_numpy(), lists, frame.to_numpy().tolist(), "known.csv"):
        for call in (*calls, lambda table: TableModel(Toy()).fit(table, "kind")):
            with pytest.raises(TableError, match=f"got {type(table).__name__}"):
                call(table)


@pytest.mark.parametrize("mark", [",", "."])
def test_numbers_with_another_decimal_mark_are_refused_with_what_to_state(mark):
    train, own = made(), "," if mark == "." else "."
    train["size"] = [f"{value:.2f}".replace(".", own) for value in train["size"]]
    model = TableModel(Toy()).fit(train, "kind")
    for sizes in (["1M5"] * 7, ["1M5", "2M25", "3M5", "77M125", "4M0", "4M1", "5"]):
        table = made().head(7).assign(size=[size.replace("M", mark) for size in sizes])
        with pytest.raises(TableError, match=r"1.5'.* mark .*`decimal`"):
            model.predict(table)
