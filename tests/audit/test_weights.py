"""Weights of samples in an audit: whole numbers count rows, others weigh them."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from click.testing import CliRunner
from sklearn.datasets import make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import CalibrationAuditor
from skuq.audit import audit_files, recorded_predictions
from skuq.calibration import merged_sums
from skuq.cli import main
from skuq.reporting import audit_data, audit_report

X, Y = make_moons(500, noise=0.4, random_state=0)
MODEL = LogisticRegression().fit(X[:100], Y[:100])
COUNTS = np.random.default_rng(0).integers(0, 4, 500)
SHARES = np.random.default_rng(1).uniform(0.1, 1.9, 500)
from_predictions = CalibrationAuditor.from_predictions


def audited(weight, rows=slice(None), n_bins=5, **settings):
    given = None if weight is None else weight[rows]
    return CalibrationAuditor(MODEL, n_bins=n_bins, **settings).fit(X[rows], Y[rows], given)


def recorded(weight):
    proba = MODEL.predict_proba(X)
    return pd.DataFrame({"y": Y, "p_0": proba[:, 0], "p_1": proba[:, 1], "w": weight})


def draw(random, n_samples):
    """Labels and probabilities of a model whose accuracy is its confidence."""
    confidence = 0.5 + random.beta(4, 1.5, n_samples) / 2
    correct = random.random(n_samples) < confidence
    return np.where(correct, 0, 1), np.column_stack([confidence, 1 - confidence])


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_whole_numbers_are_repeated_rows(strategy):
    groups = (X[:, 0] > 0).astype(int)
    audit = CalibrationAuditor(MODEL, n_bins=5, strategy=strategy)
    weighted = audit.fit(X, Y, COUNTS, sensitive_features=groups).result_
    copies, plain = (each.repeat(COUNTS, axis=0) for each in (X, Y)), {"weight_square": None}
    repeated = audit.fit(*copies, sensitive_features=groups.repeat(COUNTS)).result_
    parts = {name: sums._replace(**plain) for name, sums in weighted.group_sums.items()}
    found = weighted._replace(sums=weighted.sums._replace(**plain), group_sums=parts)
    np.testing.assert_equal(found._asdict(), repeated._asdict())
    assert weighted.sums.count.dtype == np.int64


def test_regions_count_whole_numbers_as_rows():
    y, proba = draw(np.random.default_rng(0), 400)
    wrong = X[:400, 0] > 1.2
    y[wrong] = 1 - y[wrong]
    given, weights = {"X": X[:400], "search_regions": True}, (None, np.full(400, 2))
    once, twice = (from_predictions(y, proba, sample_weight=w, **given) for w in weights)
    region, heavier = once.regions_[0], twice.regions_[0]
    assert heavier.conditions == region.conditions
    assert heavier.count == 2 * region.count
    assert heavier.evidence == pytest.approx(2 * region.evidence)
    assert heavier.gap_high - heavier.gap_low < region.gap_high - region.gap_low


def test_others_count_as_the_effective_number_of_samples_and_their_sums_add_up():
    audit = audited(SHARES)
    assert audit.n_samples_ == pytest.approx(SHARES.sum())
    assert audit.n_effective_ == pytest.approx(SHARES.sum() ** 2 / (SHARES**2).sum())
    top = MODEL.predict_proba(X)
    assert audit.accuracy_ == pytest.approx(np.average(top.argmax(1) == Y, weights=SHARES))
    assert audit.confidence_ == pytest.approx(np.average(top.max(1), weights=SHARES))
    larger = audited(3 * SHARES)
    np.testing.assert_allclose(larger.bins_.gap_low, audit.bins_.gap_low)
    np.testing.assert_allclose(larger.ece_interval_, audit.ece_interval_)
    # Half a sample each is all of them, and two large weights among small ones are hardly more.
    few = np.where(np.arange(500) < 2, 99.9, 1e-2)
    halves, whole, single = (audited(w, n_bins=1) for w in (np.full(500, 0.5), None, few))
    np.testing.assert_allclose(halves.bins_.gap_low, whole.bins_.gap_low)
    np.testing.assert_allclose(halves.ece_chance_, whole.ece_chance_)
    assert single.sums_.effective_count[0] == 2
    assert single.passed_
    first, second = (audited(SHARES, rows) for rows in (slice(0, None, 2), slice(1, None, 2)))
    audit = CalibrationAuditor.from_sums(merged_sums([first.sums_, second.sums_]))
    assert audit.n_effective_ == pytest.approx(SHARES.sum() ** 2 / (SHARES**2).sum())
    mixed = merged_sums([first.sums_, audited(None).sums_])  # counts are weights of as many samples
    expected = (SHARES[::2].sum() + 500) ** 2 / ((SHARES[::2] ** 2).sum() + 500)
    assert mixed.n_effective == pytest.approx(expected)


WEIGHTS = {
    "uniform": lambda random, n: random.uniform(0.1, 1, n),
    "few heavy": lambda random, n: np.where(random.random(n) < 0.1, 1.0, 0.1),
    "lognormal": lambda random, n: random.lognormal(0, 1, n),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_calibrated_model_seldom_fails_whatever_its_weights(kind, monkeypatch):
    """Type I error at the level, and with regions; a model that hides what it knows is found."""
    for name in ("_scan.N", "_bin_audit.N", "_region_search.MAX"):  # the level is kept with any
        monkeypatch.setattr(f"skuq.calibration.{name}_SIMULATIONS", 200)
    random, failed, found = np.random.default_rng(5), 0, 0
    for _ in range(24):
        weight = WEIGHTS[kind](random, 200)
        given = {"classes": [0, 1], "sample_weight": weight / weight.mean()}
        regions = {"X": random.normal(size=(200, 1)), "search_regions": True}
        calibrated = from_predictions(*draw(random, 200), tolerance=0.0, **regions, **given)
        failed += not calibrated.passed_
        y, unsure = np.where(random.random(200) < 0.98, 0, 1), np.tile([0.6, 0.4], (200, 1))
        found += not from_predictions(y, unsure, **given).passed_
    assert failed <= 3  # of 24 at a level of 0.05, which is 1 in 33 with exactly that
    assert found >= 18


@pytest.mark.parametrize("weight", [COUNTS, SHARES, None], ids=["counts", "shares", "none"])
def test_parts_and_files_add_up_to_the_whole(weight, tmp_path):
    settings, whole = {"n_bins": 5, "confidence_level": 0.9}, audited(weight, confidence_level=0.9)
    table = recorded(1 if weight is None else weight)
    paths = [tmp_path / f"{k}.csv" for k in range(3)]
    for path, part in zip(paths, (table[:150], table[150:300], table[300:]), strict=True):
        part.to_csv(path, index=False)
    columns = {"proba": ["p_0", "p_1"], "weight": "w"}
    from_files = audit_files(paths, "y", **columns, **settings).audit
    once = from_predictions(Y, table[["p_0", "p_1"]], sample_weight=weight, **settings)
    for other in (from_files, once):
        np.testing.assert_allclose(other.sums_.count, whole.sums_.count, rtol=1e-9)
        np.testing.assert_allclose(other.bins_.p_value, whole.bins_.p_value)
        assert other.ece_ == pytest.approx(whole.ece_)
        assert other.n_effective_ == pytest.approx(whole.n_effective_)
    if weight is not SHARES:
        assert from_files.sums_.count.dtype == np.int64
    searched = audit_files(paths, "y", features=["p_0"], **columns, **settings).audit
    assert searched.result_.regions.n_samples == pytest.approx(whole.n_samples_)
    taken = recorded_predictions(table, "y", **columns).sample_weight
    np.testing.assert_allclose(taken, table["w"])


def test_the_command_takes_a_column_of_weights(tmp_path):
    path, table = tmp_path / "t.csv", recorded(SHARES)
    table.to_csv(path, index=False)
    given = ["audit", "--predictions", str(path), "--label", "y", "--proba", "p_0,p_1", "--weights"]
    result = CliRunner().invoke(main, [*given, "w", "--json", str(tmp_path / "out.json")])
    assert result.exit_code == 0, result.output
    size = f'"n_samples": {SHARES.sum():.4f}'[:18]
    assert size in (tmp_path / "out.json").read_text(encoding="utf-8")
    assert "none of" in CliRunner().invoke(main, [*given, "none of"]).output
    assert CliRunner().invoke(main, [*given, "y"]).exit_code == 2
    for wrong, word in ((-1.0, "weights"), (0, "0 in all rows")):
        table.assign(w=wrong).to_csv(path, index=False)
        assert word in CliRunner().invoke(main, [*given, "w"]).output


@pytest.mark.filterwarnings("ignore:The mean of `sample_weight`")
def test_weights_that_cannot_be_audited_are_refused():
    with pytest.raises(ValueError, match="weight"):
        audited(np.zeros(500))
    with pytest.raises(ValueError, match=r"n_samples=1\.0"):
        audited(np.where(np.arange(500) < 1, 9.9, 1e-4))


@pytest.mark.parametrize("routes", [False, True])
def test_weights_reach_what_is_trained_and_are_requested(routes):
    with sklearn.config_context(enable_metadata_routing=routes):
        scaler, model = StandardScaler(), LogisticRegression()
        if routes:
            scaler.set_fit_request(sample_weight=False)
            model.set_fit_request(sample_weight=True)
        audit = CalibrationAuditor(make_pipeline(scaler, model)).fit(X, Y, SHARES)
        scaled = StandardScaler().fit_transform(X)
        expected = LogisticRegression().fit(scaled, Y, sample_weight=SHARES)
        np.testing.assert_allclose(audit.predict_proba(X), expected.predict_proba(scaled))
        if routes:
            asked = CalibrationAuditor(MODEL).set_fit_request(sample_weight=True)
            asked.set_score_request(sample_weight=True)
            given = {"params": {"sample_weight": SHARES}, "return_estimator": True}
            found = cross_validate(asked, X, Y, **given)["estimator"]
            assert sum(each.n_samples_ for each in found) == pytest.approx(4 * SHARES.sum())


def test_a_weight_of_0_leaves_a_sample_out_of_training_too():
    labels = np.where(np.arange(500) < 3, 9, Y)  # of a class that nothing else has
    weight = np.where(labels == 9, 0.0, SHARES)
    audit = CalibrationAuditor(LogisticRegression()).fit(X, labels, weight)
    expected = CalibrationAuditor(LogisticRegression()).fit(X[3:], Y[3:], SHARES[3:])
    assert audit.classes_.tolist() == [0, 1]
    np.testing.assert_allclose(audit.sums_.correct, expected.sums_.correct)
    np.testing.assert_allclose(audit.predict_proba(X), expected.predict_proba(X))


def test_reports_write_fractions_of_samples():
    pytest.importorskip("matplotlib")
    audit = audited(SHARES, search_regions=True)
    data, unit = audit_data(audit), audit.n_effective_ / audit.n_samples_
    assert data["n_samples"] == audit.n_samples_
    for each in data["regions"]["detectable"]:  # of the effective number of samples
        assert each["count"] == round(each["share"] * unit * data["regions"]["n_samples"])
    page = audit_report(audit).html()
    assert f"{audit.n_samples_:,.1f}" in page
    assert repr(audit.n_samples_) not in page
    assert "drawn at random" not in page
    kept = audit.undersample(1.0, X[:, 0] > 0)
    assert kept.n_samples_ == pytest.approx(SHARES[X[:, 0] <= 0].sum())
