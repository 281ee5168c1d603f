"""Regions under proof: a group that another one balances in its bin fails by itself."""

import math
import shutil

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from skuq.calibration import BinSums, audit_sums
from skuq.zk import VerificationError, choose_regions, commit, load_commitment
from skuq.zk._files import FORMAT, read_json, write_json
from skuq.zk._regions import KIND, MAX_REGIONS, Regions, load_regions, rows_of_chunks, valid_tree
from skuq.zk._results import audited, judged
from skuq.zk._statements import read_statement
from tests.zk import tampering as t
from tests.zk.exchange import made_once, prove_and_verify, quick_commitments, reuse_keys
from tests.zk.tampering import LEVELS, ONE, Exchange

TREE = [0, 0.5, None, None]


def test_regions_are_leaves_from_the_left(second):
    X = np.random.default_rng(0).normal(size=(500, 3))
    X[:9, 1] = 0.0  # at a threshold
    tree = [1, 0.0, [0, -0.5, None, [2, 0.25, None, None]], [0, 1.0, None, None]]
    regions = Regions(tree)
    assert regions.assign(X).tolist() == [second.region_of(tree, row) for row in X.tolist()]
    rule = "income <= 0 and age > -0.5 and size <= 0.25"
    assert regions.rules(["age", "income", "size"])[1] == rule
    assert regions.rules()[-1] == "x1 > 0 and x0 > 1"


@pytest.mark.parametrize("offset", [0.0, 1.7e9])
def test_chosen_regions_have_short_thresholds_and_enough_samples(tmp_path, offset):
    rng, out = np.random.default_rng(1), tmp_path / "regions.json"
    X = rng.uniform(size=(1000, 2)) * 5000 + offset
    inside = (X[:, 1] - offset > 3800) & (X[:, 0] - offset < 2000)
    gap = np.where(inside, 0.3, -0.05) + rng.normal(0, 0.2, 1000)
    found = choose_regions(X, gap, out, max_regions=4, min_samples=50)
    assert load_regions(out, 2) == found
    region = found.assign(X)
    counts = np.bincount(region)
    assert 2 <= len(counts) <= 4
    assert counts.min() >= 50
    worst = np.argmax(np.bincount(region, gap) / counts)
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
        choose_regions(out=tmp_path / "regions.json", **given)
    assert not (tmp_path / "regions.json").exists()


def chain(n):
    return None if n == 1 else [0, float(n), None, chain(n - 1)]


OTHER_TREES = [
    *(None, [], [0, 0.5, None], [0, 0.5, None, None, None], [0, 0.5, None, {}]),
    *([column, 0.5, None, None] for column in (2, -1, True, 0.0)),
    *([0, threshold, None, None] for threshold in (1, "0.5")),
    *([0, 0.5, [0, 0.5, None], None], chain(MAX_REGIONS + 1)),
]
OTHER_FILES = [{"kind": "x"}, {"format": FORMAT - 1}, {"more": 1}]


@pytest.mark.parametrize("change", [*OTHER_FILES, *({"tree": tree} for tree in OTHER_TREES)])
def test_other_files_and_trees_are_refused(tmp_path, change):
    path, record = tmp_path / "x.json", {"kind": KIND, "format": FORMAT, "tree": chain(MAX_REGIONS)}
    write_json(path, record)
    assert load_regions(path, 2) == Regions(record["tree"])
    assert "tree" not in change or not valid_tree(change["tree"], 2)
    write_json(path, {**record, **change})
    with pytest.raises(VerificationError, match=r"does not hold|right type|has format|entry"):
        load_regions(path, 2)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_each_row_is_in_one_chunk_with_rows_of_its_region(size):
    region = np.random.default_rng(0).integers(0, 5, 40)
    region[region == 2] = 0  # a region without rows
    chunks = rows_of_chunks(size, region)
    assert sorted(np.concatenate(chunks).tolist()) == list(range(40))
    assert all(len(np.unique(region[rows])) == 1 and 1 <= len(rows) <= size for rows in chunks)
    assert all((np.diff(rows) > 0).all() for rows in chunks)
    assert sum(len(rows) < size for rows in chunks) <= 4


def balanced_in(folder):
    """A model that is underconfident where x > .5 and overconfident elsewhere."""
    X = np.random.default_rng(0).uniform(size=(40, 2))
    X[:, 0] = np.where(np.arange(40) % 2, 0.25, 0.75)
    model = LogisticRegression().fit(X, np.arange(40) % 2)
    model.coef_, model.intercept_ = np.full((1, 2), 1e-3), np.array([math.log(3)])  # 3/4 for 1
    y = np.where(X[:, 0] > 0.5, 1, np.arange(40) % 4 == 1)  # all right, and half of them
    made = Exchange(folder, model, X, y, slice(None))
    made.question = {"tolerance": 0.05, "n_bins": 1, "confidence_level": 0.95}
    for settings in made.settings.values():
        settings["regions"] = folder / "regions.json"
    made.settings["verdict"]["confidence_level"] = None
    made.settings["whole"] = {"level": "predictions", "challenge": folder / "whole.json"}
    return made


def make_balanced(folder):
    """A commitment to the model, and audits of it with regions and of the whole."""
    made = balanced_in(folder)
    table = pd.DataFrame(made.X, columns=["income", "age"])
    settings = {"n_bins": 1, "n_proofs": 40, "n_attestations": 2, "max_error": 0.02}
    with quick_commitments() as patch:
        commit(made.model, table, folder, verdict_samples=80, **settings)
        write_json(folder / "regions.json", {"kind": KIND, "format": FORMAT, "tree": TREE})
        # That the auditor's own keys are equal to these is tested with other commitments.
        reuse_keys(patch, made.private)
        prove_and_verify(made, [*LEVELS, "whole"])


@pytest.fixture(scope="module")
def balanced(tmp_path_factory):
    return balanced_in(made_once(tmp_path_factory, "balanced", make_balanced, __file__))


@pytest.mark.parametrize("level", LEVELS)
def test_a_group_that_another_one_balances_fails_by_itself_alone(balanced, level):
    found, second = t.verified(balanced, level), t.verified_again(balanced, level)
    assert not found.passed
    # Half of 20 right at a confidence of 3/4 may be chance, all of them right may not.
    verdicts = [level != "verdict", False]
    seen = [(each.rule, each.n_samples, each.passed, each.could_fail) for each in found.regions]
    rules = ["income <= 0.5", "income > 0.5"]
    assert seen == [(rule, 20, passed, True) for rule, passed in zip(rules, verdicts, strict=True)]
    assert [entry["passed"] for entry in found.as_record()["regions"]] == verdicts
    assert "No region was audited" not in " ".join(found.notes)
    if level == "verdict":
        assert second == {"passed": False, "regions": [False, False]}
        assert found.n_proofs == len(list((balanced.verdict / "chunks").iterdir())) + 3
        assert found.sums is None
        together = read_json(balanced.verdict / "verdict.json")
        assert together["outputs"] == PASSED  # all samples pass
        return
    assert found.result.passed
    sums = [([20], [10]), ([20], [20])]
    assert [(part["count"], part["correct"]) for part in second["regions"]] == sums
    mine = [part.sums for part in found.regions]
    assert [(part.count.tolist(), part.correct.tolist()) for part in mine] == sums
    assert found.sums.correct.tolist() == [30]
    assert (found.sums.confidence == sum(part.confidence for part in mine)).all()
    # One joint level, of all samples and of two regions.
    for part in (found, *found.regions):
        single = audit_sums(part.sums, tolerance=0.05, confidence_level=1 - 0.05 / 3, share=1)
        np.testing.assert_allclose(part.result.bins.threshold, single.bins.threshold)


def test_an_audit_without_regions_passes_and_says_that_there_were_none(balanced):
    together = t.verified(balanced, "whole")
    assert together.passed
    assert together.regions is None
    assert "No region was audited" in " ".join(together.notes)


@pytest.mark.parametrize("level", LEVELS)
def test_an_audit_of_other_regions_than_the_auditors_is_refused(balanced, tmp_path, level):
    bundle, message = tmp_path / "copy", "different regions from yours"
    shutil.copytree(balanced.folder / level, bundle)
    t.assert_both_refuse(message, balanced, level, bundle, regions=None)
    for tree in (None, [0, 0.25, None, None]):
        t.changed(bundle / t.STATED, regions=tree)
        t.assert_both_refuse_refitted(message, balanced, level, bundle)


FIRST, PASSED = "verdicts/00001.json", ["1", "1", "1"]


def swap(bundle):
    first, *_, last = sorted((bundle / "chunks").iterdir())
    one, other = read_json(first), read_json(last)
    write_json(first, {**other, "part": one["part"]})
    write_json(last, {**one, "part": other["part"]})


CHANGES = {
    "swapped": swap,
    "left out": lambda b: (b / FIRST).unlink(),
    "added": lambda b: shutil.copyfile(b / FIRST, b / "verdicts" / "00002.json"),
    "of all": lambda b: write_json(
        b / FIRST, read_json(b / "verdict.json") | {"part": "verdict 1"}
    ),
    "claimed": lambda b: t.changed(b / FIRST, outputs=["1", "1", "1"]),
}


@pytest.mark.parametrize(
    ("level", "change"), [("bins", "swapped"), *(("verdict", change) for change in CHANGES)]
)
def test_no_proof_of_a_region_can_be_replaced_or_left_out(balanced, tmp_path, level, change):
    bundle = shutil.copytree(balanced.folder / level, tmp_path / "copy")
    CHANGES[change](bundle)
    t.assert_both_refuse_refitted(r"a verdict for|does not hold", balanced, level, bundle)


def test_a_region_with_too_few_samples_to_fail_is_named(balanced):
    committed = load_commitment(balanced.public)
    statement = read_json(balanced.bins / t.STATED)
    statement = read_statement(statement, committed, "bins", "s")
    few, many = (
        BinSums(np.array([0, ONE]), *(np.array([v]) for v in (n, n // 2, n * ONE // 2)), ONE)
        for n in (2, 38)
    )
    judgements = judged([few, many], statement, committed.max_error)
    region = np.repeat([0, 1], [2, 38])
    found = audited(committed, statement, judgements, region, 2, [], [], "test")
    assert found.passed
    assert [region.could_fail for region in found.regions] == [False, True]
    named = "could not have failed, so their verdicts are not informative: income <= 0.5 (2)."
    assert named in " ".join(found.notes)
