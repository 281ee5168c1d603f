"""Rows that belong together, later rows, and weights: statements hold for the rows they name."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import beta
from sklearn.linear_model import LogisticRegression, Ridge

from skuq import CalibrationAuditor, OODDetector, QUAMClassifier, QUAMRegressor
from skuq import cross_val_predict_uncertainty as cross_predict
from skuq.calibration import conformal_limit, conformal_p_values
from skuq.cli import main
from skuq.tables import TableModel, quality_warnings, table_notes
from skuq.validation import independent_counts, whole_groups
from tests.tables.toy import ToyRegressor, made

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
    assert any("(a)" in text and "`groups='who'`" in text for text in model.warnings_) != bool(
        given
    )
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
        assert any("300 rows agree with another row in all columns but age" in t for t in said) == (
            warned
        )


def test_a_group_is_on_one_side_of_every_split():
    known, seen, year = panel(40, 1), [], np.tile(np.arange(5), 240)[:, None]
    X, y, who = (known[names].to_numpy() for names in (["a", "year"], "y", "who"))
    for model, target in (
        (QUAMRegressor(Ridge()), y),
        (QUAMClassifier(LINEAR, search="refit"), y > 0),
    ):
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
