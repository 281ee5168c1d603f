"""Regions under proof: a group that another one balances in its bin fails by itself."""

import math
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

pytest.importorskip("ezkl")

from skuq.calibration import BinSums, audit_sums
from skuq.zk import (
    VerificationError,
    choose_regions,
    commit,
    load_commitment,
    prove,
    verify,
)
from skuq.zk import challenge as draw_challenge
from skuq.zk._files import FORMAT, read_json, write_json, write_manifest
from skuq.zk._fixed_point import ONE
from skuq.zk._regions import KIND, MAX_REGIONS, Regions, load_regions, rows_of_chunks, valid_tree
from skuq.zk._results import audited, judged
from skuq.zk._statements import read_statement
from tests.zk.exchange import made_once, quick_commitments, reuse_keys
from tests.zk.tampering import changed, second_verifier

ASKED = {"alpha": 0.05, "n_bins": 1}
SAMPLE = {"false_share": 0.3, "error": 0.1}
LEVELS = {"bins": 0.95, "verdict": None, "predictions": 0.95}  # and the confidence level of each
REGIONS = Regions([0, 0.5, None, None])


def region_by_walking(tree, row, first=0):
    """Number of the region of a row, by descending; and how many there are."""
    if tree is None:
        return first, 1
    column, threshold, below, above = tree
    found, n_below = region_by_walking(below, row, first)
    other, n_above = region_by_walking(above, row, first + n_below)
    return (found if row[column] <= threshold else other), n_below + n_above


def test_regions_are_leaves_from_the_left():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    tree = [1, 0.0, [0, -0.5, None, [2, 0.25, None, None]], [0, 1.0, None, None]]
    regions = Regions(tree)
    X[:9, 1] = 0.0  # at a threshold
    assert regions.assign(X).tolist() == [region_by_walking(tree, row)[0] for row in X]
    assert regions.rules(["age", "income", "size"])[1:3] == [
        "income <= 0 and age > -0.5 and size <= 0.25",
        "income <= 0 and age > -0.5 and size > 0.25",
    ]
    assert regions.rules()[-1] == "x1 > 0 and x0 > 1"


@pytest.mark.parametrize("offset", [0.0, 1.7e9])
def test_chosen_regions_have_short_thresholds_and_enough_samples(tmp_path, offset):
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(1000, 2)) * 5000 + offset
    inside = (X[:, 1] - offset > 3800) & (X[:, 0] - offset < 2000)
    gap = np.where(inside, 0.3, -0.05) + rng.normal(0, 0.2, 1000)
    out = tmp_path / "regions.json"
    found = choose_regions(X, gap, out, max_regions=4, min_samples=50)
    assert load_regions(out, 2) == found
    region = found.assign(X)
    counts = np.bincount(region)
    assert 2 <= len(counts) <= 4
    assert counts.min() >= 50
    means = [gap[region == k].mean() for k in range(len(counts))]
    worst = int(np.argmax(means))
    assert (inside == (region == worst)).mean() > 0.98
    assert max(len(repr(step[1])) for step in (found.tree, found.tree[2] or found.tree[3])) < 14
    with pytest.raises(FileExistsError, match="exists"):
        choose_regions(X, gap, out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_regions": 1}, "`max_regions` must be from 2 to 64"),
        ({"max_regions": 65}, "`max_regions` must be from 2 to 64"),
        ({"min_samples": 30}, "Fewer than two regions"),
        ({"gap": np.zeros(40)}, "confidence is the same everywhere"),
        ({"gap": np.zeros(39)}, "one row per sample"),
        ({"gap": np.full(40, math.nan)}, "`gap` must be finite"),
        ({"X": np.full((40, 1), math.inf)}, "`X` must be finite"),
    ],
)
def test_regions_that_cannot_be_chosen_are_refused(tmp_path, change, message):
    given = {"X": np.arange(40.0)[:, None], "gap": np.arange(40.0), "min_samples": 5, **change}
    with pytest.raises(ValueError, match=message):
        choose_regions(given.pop("X"), given.pop("gap"), tmp_path / "regions.json", **given)
    assert not (tmp_path / "regions.json").exists()


def chain(n):
    """A tree of so many regions."""
    return None if n == 1 else [0, float(n), None, chain(n - 1)]


OTHER_TREES = [
    *(None, [], [0, 0.5, None], [0, 0.5, None, None, None], [0, 0.5, None, {}]),
    *([column, 0.5, None, None] for column in (2, -1, True, 0.0)),
    *([0, threshold, None, None] for threshold in (1, "0.5")),
    *([0, 0.5, [0, 0.5, None], None], chain(MAX_REGIONS + 1)),
]


@pytest.mark.parametrize("tree", OTHER_TREES)
def test_other_trees_are_refused(tmp_path, tree):
    assert not valid_tree(tree, 2)
    path = tmp_path / "regions.json"
    write_json(path, {"kind": KIND, "format": FORMAT, "tree": tree})
    with pytest.raises(VerificationError, match=r"does not hold 2 to|right type"):
        load_regions(path, 2)


@pytest.mark.parametrize(
    "change", [{"kind": "x"}, {"format": FORMAT - 1}, {"more": 1}, {"tree": ...}]
)
def test_other_files_are_refused(tmp_path, change):
    record = {"kind": KIND, "format": FORMAT, "tree": chain(MAX_REGIONS), **change}
    path = tmp_path / "regions.json"
    write_json(path, {k: v for k, v in record.items() if v is not ...})
    with pytest.raises(VerificationError, match=r"does not hold the regions|has format|entry"):
        load_regions(path, 2)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_each_row_is_in_one_chunk_with_rows_of_its_region(size):
    region = np.random.default_rng(0).integers(0, 5, 40)
    region[region == 2] = 0  # a region without rows
    chunks = rows_of_chunks(size, region)
    assert sorted(np.concatenate(chunks).tolist()) == list(range(40))
    assert all(len(np.unique(region[rows])) == 1 and 1 <= len(rows) <= size for rows in chunks)
    assert all((np.diff(rows) > 0).all() for rows in chunks)
    full = [len(rows) == size for rows in chunks]
    assert full.count(False) <= 4


AUDITS = [*((level, True) for level in LEVELS), ("predictions", False)]


def balanced_in(folder):
    """A model that is underconfident where x > .5 and overconfident elsewhere."""
    X = np.random.default_rng(0).uniform(size=(40, 2))
    X[:, 0] = np.where(np.arange(40) % 2, 0.25, 0.75)
    model = LogisticRegression().fit(X, np.arange(40) % 2)
    model.coef_, model.intercept_ = np.full((1, 2), 1e-3), np.array([math.log(3)])  # 3/4 for 1
    y = np.where(X[:, 0] > 0.5, 1, np.arange(40) % 4 == 1)  # all right, and half of them
    made = SimpleNamespace(folder=folder, X=X, y=y, model=model, public=folder / "public")
    made.keys, made.own, made.regions = (folder / n for n in ("keys", "own.srs", "regions.json"))
    return made


def make_balanced(folder):
    """A commitment to the model, and audits of it with and without regions."""
    made = balanced_in(folder)
    table = pd.DataFrame(made.X, columns=["income", "age"])
    settings = {"n_bins": 1, "n_proofs": 40, "n_attestations": 2, "tolerance": 0.02}
    with quick_commitments():
        commit(made.model, table, folder, verdict_samples=80, **settings)
    shutil.copy(made.public / "srs", made.own)
    write_json(made.regions, {"kind": KIND, "format": FORMAT, "tree": REGIONS.tree})
    given = made.public, made.X, made.y
    for level, divided in AUDITS:
        bundle, challenge = bundle_of(made, level, divided)
        asked = {"level": level, "confidence_level": LEVELS[level], **ASKED}
        asked["regions"] = made.regions if divided else None
        prove(*given, bundle, **asked)
        if challenge is not None:
            draw_challenge(bundle, *given, challenge)
            prove(*given, bundle, challenge=challenge, **asked)
    with pytest.MonkeyPatch.context() as patch:
        # That the auditor's own keys are equal to these is tested with other commitments.
        reuse_keys(patch, folder / "private")
        for level in LEVELS:
            verified(made, level, made.regions)


@pytest.fixture(scope="module")
def balanced(tmp_path_factory):
    return balanced_in(made_once(tmp_path_factory, "balanced", make_balanced, __file__))


def bundle_of(balanced, level, regions):
    """The bundle of a level with or without regions, and its challenge."""
    name = f"{level}-{bool(regions)}"
    challenge = balanced.folder / f"{name}.json" if level == "predictions" else None
    return balanced.folder / name, challenge


def asked_of(balanced, level, regions, bundle):
    """Bundle that was made with these regions, or a copy of the one with regions; the question."""
    made, challenge = bundle_of(balanced, level, regions if bundle is None else balanced.regions)
    asked = {"level": level, "confidence_level": LEVELS[level], "classes": [0, 1], **ASKED}
    return bundle or made, {**asked, "regions": regions, "challenge": challenge}


def verified(balanced, level, regions, bundle=None):
    bundle, asked = asked_of(balanced, level, regions, bundle)
    data, trust = (balanced.X, balanced.y), {"keys": balanced.keys, "allow_test_string": True}
    return verify(bundle, *data, balanced.public, **asked, **trust)


def verified_by_the_second(balanced, level, regions, bundle=None):
    bundle, asked = asked_of(balanced, level, regions, bundle)
    commitment = second_verifier().Commitment(balanced.public, balanced.keys, balanced.own)
    data = balanced.X.tolist(), list(map(str, balanced.y))
    return second_verifier().verify_audit(bundle, commitment, *data, **asked)


@pytest.mark.parametrize("level", LEVELS)
def test_a_group_that_another_one_balances_fails_by_itself_alone(balanced, level):
    found = verified(balanced, level, balanced.regions)
    assert not found.passed
    assert [region.rule for region in found.regions] == ["income <= 0.5", "income > 0.5"]
    assert [region.n_samples for region in found.regions] == [20, 20]
    # Half of 20 right at a confidence of 3/4 may be chance, all of them right may not.
    verdicts = [level != "verdict", False]
    assert [region.passed for region in found.regions] == verdicts
    assert all(region.could_fail for region in found.regions)
    assert "No region was audited" not in " ".join(found.notes)
    record = found.as_record()["regions"]
    assert [entry["passed"] for entry in record] == verdicts
    second = verified_by_the_second(balanced, level, balanced.regions)
    if level == "verdict":
        assert second == {"passed": False, "regions": [False, False]}
        n_chunks = len(list((balanced.folder / "verdict-True" / "chunks").iterdir()))
        assert found.n_proofs == n_chunks + 3
        assert found.sums is None
        together = read_json(balanced.folder / "verdict-True" / "verdict.json")
        assert together["outputs"] == ["1", "1", "1"]  # all samples pass
        return
    assert found.result.passed
    assert [part["count"] for part in second["regions"]] == [[20], [20]]
    assert [part["correct"] for part in second["regions"]] == [[10], [20]]
    for part, correct in zip(found.regions, (10, 20), strict=True):
        assert part.sums.count.tolist() == [20]
        assert part.sums.correct.tolist() == [correct]
    assert found.sums.correct.tolist() == [30]
    assert (found.sums.confidence == sum(part.sums.confidence for part in found.regions)).all()
    # One joint level, of all samples and of two regions.
    for part in (found, *found.regions):
        single = audit_sums(part.sums, alpha=0.05, confidence_level=1 - 0.05 / 3)
        np.testing.assert_allclose(part.result.bins.threshold, single.bins.threshold)


def test_an_audit_without_regions_passes_and_says_that_there_were_none(balanced):
    together = verified(balanced, "predictions", None)
    assert together.passed
    assert together.regions is None
    assert "No region was audited" in " ".join(together.notes)


@pytest.mark.parametrize("level", LEVELS)
def test_an_audit_of_other_regions_than_the_auditors_is_refused(balanced, tmp_path, level):
    bundle = copied(bundle_of(balanced, level, balanced.regions)[0], tmp_path)
    with pytest.raises(VerificationError, match="different regions from yours"):
        verified(balanced, level, None, bundle)
    for tree in (None, [0, 0.25, None, None]):
        changed(bundle / "statement.json", regions=tree)
        write_manifest(bundle)
        refused_by_both(balanced, level, bundle, "different regions from yours")


def refused_by_both(balanced, level, bundle, message):
    with pytest.raises(VerificationError, match=message):
        verified(balanced, level, balanced.regions, bundle)
    with pytest.raises(second_verifier().Refused):
        verified_by_the_second(balanced, level, balanced.regions, bundle)


def copied(bundle, tmp_path):
    return shutil.copytree(bundle, tmp_path / "copy")


@pytest.mark.parametrize("level", ["bins", "verdict"])
def test_proofs_cannot_change_their_region(balanced, tmp_path, level):
    bundle = copied(bundle_of(balanced, level, balanced.regions)[0], tmp_path)
    chunks = sorted((bundle / "chunks").iterdir())
    first, last = read_json(chunks[0]), read_json(chunks[-1])
    write_json(chunks[0], {**last, "part": first["part"]})
    write_json(chunks[-1], {**first, "part": last["part"]})
    write_manifest(bundle)
    refused_by_both(balanced, level, bundle, "does not hold")


def leave_out(first, last):
    first.unlink()


def add(first, last):
    shutil.copyfile(first, last)


def swap(first, last):
    together = read_json(first.parents[1] / "verdict.json")
    write_json(first, {**together, "part": read_json(first)["part"]})


def claim(first, last):
    changed(first, outputs=["1", "1", "1"])


@pytest.mark.parametrize("change", [leave_out, add, swap, claim])
def test_no_verdict_of_a_region_can_be_left_out_added_or_changed(balanced, tmp_path, change):
    bundle = copied(bundle_of(balanced, "verdict", balanced.regions)[0], tmp_path)
    change(bundle / "verdicts" / "00001.json", bundle / "verdicts" / "00002.json")
    write_manifest(bundle)
    refused_by_both(balanced, "verdict", bundle, r"a verdict for|does not hold")


def test_a_region_with_too_few_samples_to_fail_is_named(balanced):
    statement = read_json(bundle_of(balanced, "bins", balanced.regions)[0] / "statement.json")
    committed = load_commitment(balanced.public)
    few, many = (
        BinSums(np.array([0, ONE]), *(np.array([v]) for v in (n, n // 2, n * ONE // 2)), ONE)
        for n in (2, 38)
    )
    statement = read_statement(statement, committed, "bins", "s")
    judgements = judged([few, many], statement, committed.tolerance)
    region = np.repeat([0, 1], [2, 38])
    found = audited(committed, statement, judgements, region, 2, [], [], "test")
    assert found.passed
    assert [region.could_fail for region in found.regions] == [False, True]
    assert "could not have failed, so their verdicts are not informative: income <= 0.5 (2)." in (
        " ".join(found.notes)
    )
