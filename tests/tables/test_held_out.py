"""Rows that measure a model: held out, of other groups, later; and the limits that they set."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import beta
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skuq import CalibrationAuditor, OODDetector, QUAMClassifier, QUAMRegressor
from skuq import cross_val_predict_uncertainty as cross_predict
from skuq.calibration import conformal_limit, conformal_p_values
from skuq.cli import main
from skuq.residuals import interval_scores, stretched
from skuq.tables import TableModel, coverage_notes, quality_warnings, table_notes
from skuq.tables._held_out import (
    Parts,
    copies_in,
    hold_out,
    leaking_columns,
    overlapping_rows,
    prediction_sets,
)
from skuq.validation import independent_counts, whole_groups
from tests.tables.toy import Toy, ToyRegressor, made


@pytest.fixture(scope="module")
def table():
    """200 different rows of numbers and text, with ids and a class that is hard to predict."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.normal(size=200), "b": random.choice(["x", "y"], size=200)})
    frame["kind"] = np.where(frame["a"] + random.normal(size=200) > 0, "big", "small")
    return frame.assign(id=[f"n{k}" for k in range(200)])


def split(frame, regression=False, seed=0):
    y = frame["a" if regression else "kind"].to_numpy()
    return hold_out(y, regression, seed, copies_in(frame))


def has_note(model, text):
    return any(text in note for note in model.notes_)


@pytest.mark.parametrize("regression", [True, False])
def test_copies_are_held_out_together_or_train_together(table, regression):
    drawn = hold_out(table["kind"].to_numpy(), regression, 3)
    assert len(drawn[1]) == 40
    for part, expected in zip(split(table, regression, seed=3), drawn, strict=True):
        np.testing.assert_array_equal(part, expected)  # there are no copies
    copied = pd.concat([table, table[:80], table[:20]], ignore_index=True)
    for seed in range(3):
        fit, held = split(copied, regression, seed)
        assert sorted([*fit, *held]) == list(range(300))
        assert not set(copied["id"][fit]) & set(copied["id"][held])
        assert 30 <= len(held) <= 90
    rare = pd.DataFrame({"a": [9.0] * 3, "b": "z", "kind": "rare", "id": "r"})
    copied = pd.concat([rare, table], ignore_index=True)
    for seed in range(0 if regression else 8):  # every class trains, even if its rows are copies
        fit, held = split(copied, seed=seed)
        assert set(copied["kind"][fit]) == {"big", "small", "rare"}
        assert "rare" not in set(copied["kind"][held])


def test_as_many_equal_rows_as_chance_gives_are_cases_of_their_own():
    random = np.random.default_rng(0)
    few = pd.DataFrame({"a": random.integers(0, 3, 200), "kind": random.choice(["x", "y"], 200)})
    np.testing.assert_array_equal(split(few)[1], hold_out(few["kind"].to_numpy(), False, 0)[1])
    assert copies_in(few) is None
    assert not overlapping_rows(few, few[:5]).any()
    frame = pd.DataFrame(random.integers(0, 5, size=(200, 5)), columns=[*"abcde"])
    assert frame.duplicated().sum() > 2
    assert copies_in(frame) is None
    copies = copies_in(pd.concat([frame, frame[:100]]))
    np.testing.assert_array_equal(copies[:100], copies[200:])
    assert len(np.unique(copies)) == len(frame.drop_duplicates())


def test_copies_are_told(table):
    copied = pd.concat([table, table[:120]], ignore_index=True)
    model = TableModel("logistic").fit(copied, "kind", id_column="id")
    assert has_note(model, "240 rows of the training table occur more than once")
    assert has_note(model, f"{len(model.held_out_)} were held out to calibrate")


def test_held_out_rows_that_are_in_the_training_table_are_left_out(table):
    def fitted(held_out, **options):
        return TableModel("logistic").fit(table[:150], "kind", held_out=held_out, **options)

    model, expected = (fitted(table[start:], drop=["id"]) for start in (140, 150))
    pd.testing.assert_frame_equal(model.held_out_, expected.held_out_)
    assert has_note(model, "50 rows of the held-out table")
    assert has_note(model, "10 of the 60 held-out rows are also in the training table")
    assert not has_note(expected, "also in the training table")
    other = table[140:].assign(a=table["a"] + 1)
    assert len(fitted(other, id_column="id").held_out_) == 50  # equal ids are equal rows
    assert len(fitted(other, drop=["id"]).held_out_) == 60


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [
        (["1", "2"], ["0001", "3"], [True, False]),
        (["1", "2", "v"], ["1.0", "1"], [False, True]),  # versions, of which one is no number
        ([1, 2], [np.nan, np.nan], [False, False]),
        ([*range(5), "N7"], ["3", "N7", "N8"], [True, True, False]),
        (["1", "2", "3", "4"], [1.0, np.nan, 9.0, 4.0], [True, False, False, True]),
    ],
)
def test_ids_are_compared_as_numbers_only_where_all_are(first, second, known):
    train = pd.DataFrame({"a": np.arange(float(len(first)))})
    held = pd.DataFrame({"a": np.arange(len(second)) + 0.5}, index=[7] * len(second))
    ids = pd.Series(first), pd.Series(second, index=held.index)
    assert overlapping_rows(train, held, ids).tolist() == known


def test_a_column_that_was_written_after_the_outcome_is_told():
    random = np.random.default_rng(0)
    X = pd.DataFrame(random.normal(size=(600, 3)), columns=[*"abc"])
    y = pd.Series(np.where(X["a"] + random.normal(size=600) > 0, "yes", "no"))

    def warnings(told):
        return TableModel("logistic").fit(X.assign(told=told, kind=y), "kind").warnings_

    for words in ({"yes": "paid", "no": "written off"}, {"yes": 1.5, "no": -1.5}):
        (warning,) = warnings(y.map(words))
        assert "alone predicts the target as well as the model does: told." in warning
    assert warnings(X["a"].round(1)) == []
    month = y.map({"yes": "03", "no": "08"})
    date = [f"20{20 + k % 5}-{m}-{1 + k % 28:02}" for k, m in enumerate(month)]
    (warning,) = warnings(date)  # of which a part tells; it is named as in the table
    assert "`drop=['told']`" in warning
    parts_of_sum = X.assign(tax=(X["a"] + X["b"]).round(2), total=21 * (X["a"] + X["b"]))
    (warning,) = TableModel("logistic").fit(parts_of_sum, "total").warnings_
    assert "`drop=['tax']`" in warning
    assert TableModel("logistic").fit(parts_of_sum.drop(columns="tax"), "total").warnings_ == []
    # A model that needs several columns is not suspected.
    X, y = X[["a", "b"]], np.where(X["a"] + X["b"] > 0, "yes", "no")
    parts = Parts(X[:400], y[:400], X[400:], y[400:], [], X.index[400:])
    assert leaking_columns(parts, (1e-4, 0.7), np.full(200, True), ["a", "b"]) == []


def drawn(n, seed):
    random = np.random.default_rng(seed)
    proba = random.dirichlet([0.6, 0.8, 1.0], size=n)
    return proba, np.array([random.choice(3, p=p) for p in proba])


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.97])
def test_sets_are_those_of_mapie(coverage):
    mapie = pytest.importorskip("mapie.classification")
    (proba, y), (new, _) = drawn(150, 0), drawn(60, 1)
    limit = conformal_limit(1 - proba[np.arange(len(y)), y], coverage)
    ours = prediction_sets(new, limit, new.argmax(1))
    settings = {"confidence_level": coverage, "conformity_score": "lac", "prefit": True}
    model = LogisticRegression()
    model.classes_, model.coef_, model.intercept_ = np.arange(3), np.eye(3), np.zeros(3)
    given = make_pipeline(FunctionTransformer(np.log), model)  # whose probabilities are its inputs
    peer = mapie.SplitConformalClassifier(given, **settings)
    theirs = peer.conformalize(proba, y).predict_set(new)[1][:, :, 0]
    some = theirs.any(axis=1)  # ours are never empty
    np.testing.assert_array_equal(ours[some], theirs[some])
    assert (ours[~some].sum(axis=1) == 1).all()


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_intervals_are_those_of_mapie(coverage):
    mapie = pytest.importorskip("mapie.regression")
    random, given = np.random.default_rng(0), LinearRegression().fit([[0], [1]], [0, 1])
    predicted = random.normal(size=120)
    y, new = predicted + random.standard_t(3, size=120), random.normal(size=(20, 1))
    scores = interval_scores(y, predicted - 0.5, predicted + 0.5)
    ours = stretched(new - 0.5, new + 0.5, conformal_limit(scores, coverage))
    peer = mapie.SplitConformalRegressor(given, confidence_level=coverage, prefit=True)
    _, intervals = peer.conformalize(predicted[:, None], y).predict_interval(new)
    np.testing.assert_allclose(intervals[:, :, 0], np.hstack(ours))


@pytest.mark.parametrize(("coverage", "fewest"), [(0.9, 9), (0.99, 99), (0.8, 4), (0.5, 1)])
def test_too_few_rows_bound_nothing_and_this_is_said(coverage, fewest):
    assert conformal_limit(np.arange(float(fewest)), coverage) == fewest - 1
    assert conformal_limit(np.arange(fewest - 1.0), coverage) == np.inf
    size = np.random.default_rng(0).normal(size=600)
    table = pd.DataFrame({"a": size, "y": ["yes", "no"] * 300})
    model = TableModel(Toy()).fit(table, "y")
    held, proba = model.held_out_, model.held_out_proba_
    for n_rows in (fewest + 9, fewest, fewest - 1):  # parts of them are measured on the others
        model.held_out_, model.held_out_proba_ = held[:n_rows], proba[:n_rows]
        found, limits = coverage_notes(model, coverage), model.coverage_limits(coverage)
        assert len(found) == 1
        measured = np.isfinite([model.measured_coverage(coverage)[0], *limits]).all()
        assert measured == (n_rows > fewest)
        if n_rows > fewest:
            assert f"and {limits[1]:.1%} (95% limits)" in found[0]
        assert ("not measured" in found[0]) == (n_rows == fewest)
    (note,) = found
    rows = "1 held-out row" if fewest == 1 else f"{fewest} held-out rows"
    assert f"{coverage} needs at least {rows}, but there are {fewest - 1}:" in note


from_predictions = CalibrationAuditor.from_predictions
LINEAR, SIXTY = LogisticRegression(), np.arange(60)


def panel(n_customers, seed, n_years=5):
    """Rows of customers, with a level of their own that no column shows."""
    r = np.random.default_rng(seed)
    who = np.repeat(np.arange(n_customers) + 1000 * seed, n_years)
    a, level = r.normal(size=(2, n_customers)).round(2)
    y = np.repeat(a + 3 * level, n_years) + 0.3 * r.normal(size=len(who))
    year = np.tile(np.arange(n_years), n_customers)
    return pd.DataFrame({"who": who, "year": year, "a": np.repeat(a, n_years), "y": y})


def clustered(seed):
    """Labels and probabilities of an honest model, whose outcomes agree within clusters of 8."""
    r, who = np.random.default_rng(seed), np.repeat(SIXTY, 8)
    confidence = (0.55 + 0.4 * r.random(60))[who]
    y = np.where(r.random(60)[who] < confidence, 0, 1)
    return who, y, np.column_stack([confidence, 1 - confidence])


def test_a_group_counts_once_and_rows_alone_count_as_before():
    codes, weight = np.array([0, 0, 0, 1, 2, 2]), np.array([1.0, 2, 3, 2, 0, 5])
    np.testing.assert_allclose(independent_counts(None, codes), [1 / 3] * 3 + [1] + [1 / 2] * 2)
    np.testing.assert_array_equal(independent_counts(np.full(4, 7.0)), np.ones(4))
    expected = 9**2 / (2**2 + 2**2 + 5**2)  # means of positive weights: 2, 2 and 5
    assert independent_counts(weight, codes).sum() == pytest.approx(expected)
    np.testing.assert_array_equal(whole_groups(np.arange(6) % 4 == 0, codes), codes != 1)
    scores, new = np.random.default_rng(0).normal(size=(2, 30))
    counts = np.full(30, 0.1)  # 30 rows of 3 groups limit 75 %, but not 76 %
    assert conformal_limit(scores, 0.75, counts) == scores.max()
    assert conformal_limit(scores, 0.76, counts) == np.inf
    above = (scores[:, None] >= new).sum(axis=0)
    found = conformal_p_values(new, scores, counts=counts)
    np.testing.assert_allclose(found, (1 + above / 10) / (1 + 3))


@pytest.mark.parametrize("given", [{"groups": "who"}, {"id_column": "who"}, {}])
def test_what_is_stated_for_a_panel_holds_for_new_customers_or_is_warned_of(given):
    known, new = panel(120, 1), panel(200, 2)
    model = TableModel("logistic").fit(known, "y", **given)
    held, rows = known.loc[model.held_out_.index, "who"], model.predict(new)
    assert held.isin(known["who"].drop(held.index)).any() == (not given)
    warned = any("(a)" in text and "`groups='who'`" in text for text in model.warnings_)
    assert warned == (not given)
    alarms = (rows["conformal_p_value"] <= 0.05).mean()
    covered = ((rows["lower"] <= new["y"]) & (new["y"] <= rows["upper"])).mean()
    assert (alarms < 0.05 + 2 * np.sqrt(0.05 / held.nunique())) == bool(given)
    if given:
        assert "who" not in model.feature_names_in_
        assert f"{held.nunique()} groups" in model.measured_rows_
        stated = model.measured_coverage(0.9)[0]
        assert abs(stated - covered) < 2 * np.sqrt(0.09 / held.nunique())


@pytest.mark.parametrize("target", ["y", "class"])
@pytest.mark.parametrize("name", ["hgb", "network", "forest", "auto"])
def test_groups_and_weights_reach_every_learner(name, target, small_learners):
    known = panel(30, 1, n_years=4).assign(w=np.tile([1.0, 2], 60))
    known["class"] = np.where(known["y"] > known["y"].median(), "high", "low")
    known = known.drop(columns={"y", "class"} - {target})
    options = {"groups": known["who"], "sample_weight": known["w"], "drop": ["who", "w"]}
    model = TableModel(name).fit(known, target, **options)
    same = TableModel(name).fit(known, target, groups="who", sample_weight="w")
    pd.testing.assert_frame_equal(model.predict(known), same.predict(known))


def test_weights_change_what_is_measured_and_0_leaves_rows_out():
    table = made().assign(w=np.where(SIXTY % 3 == 0, 0.0, 1.0))
    model = TableModel("logistic").fit(table, "kind", sample_weight="w")
    left = TableModel("logistic").fit(table[SIXTY % 3 > 0].drop(columns="w"), "kind")
    pd.testing.assert_frame_equal(model.held_out_, left.held_out_)
    heavy = TableModel("logistic").fit(made(), "kind", sample_weight=1 + SIXTY)
    label, proba = heavy.held_out_["label"], heavy.held_out_proba_
    loss = -np.log(np.where(label == heavy.classes_[1], proba[:, 1], proba[:, 0]))
    weight = 1.0 + heavy.held_out_.index.to_numpy()
    assert heavy.measured_loss()[0] == pytest.approx(np.average(loss, weights=weight))
    assert heavy.n_effective_ == pytest.approx(weight.sum() ** 2 / (weight**2).sum())


def test_later_rows_are_measured_on_the_latest_and_drift_is_told():
    r, day = np.random.default_rng(0), np.arange(500)
    table = pd.DataFrame({"date": pd.date_range("2024-01-01", periods=500)})
    table["x"] = r.normal(size=500)
    table["y"] = table["x"] + 0.05 * np.maximum(day - 350, 0) + 0.3 * r.normal(size=500)
    shuffled = table.sample(frac=1, random_state=0)
    model = TableModel("logistic").fit(shuffled, "y", drop=["date"], time="date")
    assert sorted(model.held_out_.index) == [*range(400, 500)]
    assert model.measured_rows_ == "the latest 20% of the rows, from 2025-02-04 on"
    weight = 0.5 ** ((499 - model.held_out_.index.to_numpy()) / 20)  # recent rows count more
    n_rows, share = weight.sum() ** 2 / (weight**2).sum(), model.measured_coverage(0.5)[0]
    scores = model._conformal_scores(0.5)
    limit = conformal_limit(scores, 0.5, weight * n_rows / weight.sum())
    assert model._limit(0.5) == limit > conformal_limit(scores, 0.5)
    expected = beta.ppf(0.025, share * n_rows, (1 - share) * n_rows + 1)
    assert model.coverage_limits(0.5)[0] == pytest.approx(expected)
    assert model.measured_coverage(0.9)[0] < 0.7
    assert "change with time" in quality_warnings(model, 0.9)[0]
    plain = TableModel("logistic").fit(table[:400], "y")
    (note,) = [text for text in table_notes(plain.count(table[400:])) if "later rows" in text]
    assert "`time='date'`" in note


def test_rows_that_agree_in_all_columns_but_one_are_warned_of():
    r = np.random.default_rng(0)
    table = pd.DataFrame(np.repeat(r.normal(size=(60, 4)), 5, axis=0), columns=[*"abcd"])
    table["age"] = r.normal(size=300)
    table["y"] = table.sum(axis=1)
    for frame, warned in ((table, True), (table.assign(a=r.normal(size=300)), False)):
        said = TableModel(ToyRegressor()).fit(frame, "y").warnings_
        told = "300 rows agree with another row in all columns but age"
        assert any(told in text for text in said) == warned


def test_a_group_is_on_one_side_of_every_split():
    known, seen, year = panel(40, 1), [], np.tile(np.arange(5), 240)[:, None]
    X, y, who = (known[names].to_numpy() for names in (["a", "year"], "y", "who"))
    quams = QUAMRegressor(Ridge()), QUAMClassifier(LINEAR, search="refit")
    for model, target in zip(quams, (y, y > 0), strict=True):
        plain = model.set_params(random_state=0).fit(X, target).predict_uncertainty(X)
        assert plain != model.fit(X, target, groups=who).predict_uncertainty(X)

    class Recorder(ToyRegressor):
        def fit(self, X, y, groups=None):
            seen.append(set(groups))
            return super().fit(X, y)

    cross_predict(Recorder(), X, y, groups=who, cv=4)
    assert [len(each) for each in seen] == [30] * 4
    rows = np.repeat(np.random.default_rng(0).normal(size=(240, 6)), 5, axis=0) + 0.01 * year
    for groups, largest in ((None, 1), (who, 0.2)):
        detector = OODDetector(random_state=0).fit(rows[:200], groups=groups)
        rate = (detector.p_values(rows[200:]) <= 0.1).mean()
        assert largest - 0.5 < rate <= largest


def test_an_audit_counts_a_cluster_once_in_bins_and_regions(monkeypatch):
    for name in ("_scan.N", "_region_search.MAX"):
        monkeypatch.setattr(f"skuq.calibration.{name}_SIMULATIONS", 200)
    failed = np.zeros(3)
    for seed in range(12):
        who, y, proba = clustered(seed)
        X = np.random.default_rng(seed).normal(size=60)[who][:, None]
        given = [{}, {"groups": who}, {"groups": who, "X": X, "search_regions": True}]
        failed += [not from_predictions(y, proba, tolerance=0.0, **each).passed_ for each in given]
    assert failed[0] >= 8
    assert (failed[1:] <= 2).all()
    hidden = np.tile([0.6, 0.4], (len(who), 1))
    audit = from_predictions(np.zeros(len(who)), hidden, classes=[0, 1], groups=who)
    assert (audit.passed_, round(audit.n_samples_, 6)) == (False, 60)


def test_the_commands_take_groups_clusters_times_and_weights(tmp_path):
    def run(*words, code=0):
        result = CliRunner().invoke(main, [*map(str, words)])
        assert result.exit_code == code, result.output
        return result.output

    who, y, proba = clustered(0)
    r, path = np.random.default_rng(1), tmp_path / "a.csv"
    proba += np.outer(r.uniform(0, 1e-3, len(who)), [1, -1])
    table = pd.DataFrame(proba, columns=["p(0)", "p(1)"]).assign(y=y, who=who)
    table["w"] = r.gamma(2, 2500, len(who)).round().astype(int)
    table.to_csv(path, index=False)
    audit = ["audit", "--predictions", path, "--label", "y"]
    assert "each of 60 values of who count as one" in run(*audit, "--clusters", "who", code=12)
    run(*audit, "--clusters", "who", "--weights", "w", "--features", "w", code=12)
    assert "--weights-are" in run(*audit, "--weights", "w", code=2)
    run(*audit, "--weights", "w", "--weights-are", "counts", code=10)
    run(*audit, "--weights-are", "counts", code=2)
    table["y"] = np.where(r.random(len(who)) < proba[:, 0], 0, 1)
    table.to_csv(path, index=False)
    survey = run(*audit, "--weights", "w", "--weights-are", "survey", code=12)
    assert "occur more than once" not in survey
    pd.concat([table] * 5).to_csv(path, index=False)
    copied = CliRunner().invoke(main, [*map(str, audit)]).output
    assert copied.count("rows of") == copied.count("occur more than once") == 1
    files = {"train": panel(60, 1), "predict": panel(20, 2).drop(columns="y")}
    for name, frame in files.items():
        frame.assign(w=1.5).to_csv(tmp_path / f"{name}.csv", index=False)
    words = [word for name in (*files, "out") for word in (f"--{name}", tmp_path / f"{name}.csv")]
    quantify = ["quantify", *words, "--target", "y", "--model", "logistic"]
    assert "--groups who" in run(*quantify)
    assert "groups, each counted once" in run(*quantify, "--groups", "who", "--weights", "w")
    assert "latest 20%" in run(*quantify, "--id", "who", "--time", "year")
