"""The verifier that uses nothing of the package: it agrees on honest files, and on altered ones."""

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq.calibration import BinSums
from skuq.zk import REFERENCE_STRINGS, check
from skuq.zk._files import read_json, write_json, write_manifest
from skuq.zk._results import _judge
from skuq.zk._statements import too_few_to_fail
from tests.zk import exchange as small
from tests.zk.tampering import LEVELS, changed, verified
from tests.zk.test_attest import ATTESTATIONS, asked
from tests.zk.test_public_commitment import COMMITMENTS, altered
from tests.zk.test_tampering import CHUNKS, REPORTS, STATEMENT, VERDICTS

PATH = Path(__file__).parents[2] / "docs" / "second_verifier.py"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def second():
    spec = importlib.util.spec_from_file_location("second_verifier", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def own_string(run):
    """A copy of the reference string outside the provider's folder."""
    copy = run.folder / "own.srs"
    if not copy.exists():
        shutil.copy(run.honest / "srs", copy)
    return copy


def audit(second, run, level, bundle=None, commitment=None, y=None, **settings):
    """Verify an audit of the fixture with the keys that skuq made of it."""
    published = second.Commitment(commitment or run.honest, run.keys, own_string(run))
    asked = {"alpha": 0.1, "n_bins": 4, "confidence_level": 0.95, "level": level}
    asked |= {"classes": ["x", "y", "z"]}
    return second.verify_audit(
        bundle or getattr(run, level),
        published,
        run.X_ref.tolist(),
        (run.y_ref if y is None else y).tolist(),
        **{**asked, **run.settings[level], **settings},
    )


def refused(second, run, level, bundle, **settings):
    with pytest.raises((second.Refused, *second.MALFORMED)):
        audit(second, run, level, bundle, **settings)


def test_it_uses_nothing_of_the_package():
    imported = re.findall(
        r"^\s*(?:import|from) (\w+)", PATH.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {*imported} - sys.stdlib_module_names == {"ezkl"}


@pytest.mark.parametrize("level", LEVELS)
def test_it_agrees_on_honest_audits(second, run, level):
    first = verified(run, level)
    found = audit(second, run, level)
    if level == "verdict":
        assert found == {"passed": first.passed}
        return
    assert found["count"] == first.sums.count.tolist()
    assert found["correct"] == first.sums.correct.tolist()
    assert found["confidence_sum"] == (first.sums.confidence / first.sums.scale).tolist()
    gaps = abs(first.sums.deviation) <= 0.1 * first.sums.count * first.sums.scale
    assert found["within_alpha"] == bool(gaps.all())


@pytest.mark.parametrize("level", LEVELS)
def test_it_refuses_other_questions_and_data(second, run, level):
    for other in (
        {"alpha": 0.2},
        {"n_bins": 3},
        {"confidence_level": None},
        {"y": run.y_ref[::-1]},
    ):
        with pytest.raises(second.Refused, match="another"):
            audit(second, run, level, **other)
    with pytest.raises(second.Refused, match="has another"):
        audit(second, run, level, commitment=run.dishonest)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", STATEMENT)
def test_it_refuses_changed_statements(second, run, tmp_path, level, name):
    for k, value in enumerate(STATEMENT[name]):
        bundle = shutil.copytree(getattr(run, level), tmp_path / str(k))
        path = bundle / "statement.json"
        write_json(path, {**read_json(path), name: value})
        refused(second, run, level, bundle)  # the manifest tells
        write_manifest(bundle)
        refused(second, run, level, bundle)


FILES = [(level, CHUNKS, name) for level in ("bins", "verdict") for name in CHUNKS]
FILES += [("verdict", VERDICTS, name) for name in VERDICTS]
FILES += [("predictions", REPORTS, name) for name in REPORTS]


@pytest.mark.parametrize(("level", "changes", "name"), FILES, ids=[f"{f[0]}-{f[2]}" for f in FILES])
def test_it_refuses_changed_files(second, run, tmp_path, level, changes, name):
    bundle = shutil.copytree(getattr(run, level), tmp_path / "bundle")
    _, change = changes[name]
    change(run, bundle)
    write_manifest(bundle)
    refused(second, run, level, bundle)


def test_it_refuses_another_challenge(second, run, tmp_path):
    with pytest.raises(second.Refused, match="your own challenge"):
        audit(second, run, "predictions", challenge=None)
    own = {**read_json(run.challenge), "nonce": "0" * 32}
    write_json(tmp_path / "c.json", own)
    with pytest.raises(second.Refused, match="another challenge"):
        audit(second, run, "predictions", challenge=tmp_path / "c.json")
    write_json(tmp_path / "c.json", {**read_json(run.challenge), "n_proven": 228})
    with pytest.raises(second.Refused, match="Too few"):
        audit(second, run, "predictions", challenge=tmp_path / "c.json")


@pytest.mark.parametrize("tampering", COMMITMENTS)
def test_it_refuses_changed_commitments(second, run, tmp_path, tampering):
    for fitted in (False, True):
        (tmp_path / str(fitted)).mkdir()
        _, change = COMMITMENTS[tampering]
        public, bundle = altered(run, tmp_path / str(fitted), change, fitted)
        refused(second, run, "bins", bundle, commitment=public)


def test_it_agrees_on_attestations(second, run, tmp_path):
    published = second.Commitment(run.honest, run.keys, own_string(run))
    x = run.X_ref[0]
    given = {"x": x, "nonce": "mine", "allow_test_string": True, "keys": run.keys}
    first = check(run.attestation, run.honest, **given)
    found = second.verify_attestation(run.attestation, published, x.tolist(), "mine")
    assert found == {"label": first.label, "confidence": first.confidence}
    for _, change in ATTESTATIONS.values():
        record = read_json(run.attestation)
        change(record, run)
        write_json(tmp_path / "a.json", record)
        own = asked(run, tmp_path / "a.json")
        with pytest.raises((second.Refused, *second.MALFORMED)):
            second.verify_attestation(
                tmp_path / "a.json", published, own["x"].tolist(), own["nonce"]
            )


def test_it_trusts_the_ceremony_or_an_own_copy(second, run, tmp_path):
    with pytest.raises(second.Refused, match="not the ceremony's"):
        second.Commitment(run.honest, run.keys, None)
    other = tmp_path / "srs"
    other.write_bytes((run.honest / "srs").read_bytes()[:-1])
    with pytest.raises(second.Refused, match="nor yours"):
        second.Commitment(run.honest, run.keys, other)


def test_no_file_of_its_own_is_the_providers(second, exchange, tmp_path):
    public, keys = exchange.public, tmp_path / "keys"
    (tmp_path / "symbolic").symlink_to(public / "srs")
    (tmp_path / "folder").symlink_to(public, target_is_directory=True)
    (tmp_path / "copied").write_bytes((public / "srs").read_bytes())
    theirs = shutil.copytree(public, tmp_path / "public")
    (tmp_path / "hard").hardlink_to(theirs / "srs")
    for folder, given in (
        (public, {"srs": public / "srs"}),
        (public, {"srs": tmp_path / "symbolic"}),
        (theirs, {"srs": tmp_path / "hard"}),
        (public, {"keys": public / "keys", "srs": tmp_path / "copied"}),
        (public, {"keys": tmp_path / "folder", "srs": tmp_path / "copied"}),
        (theirs, {"keys": tmp_path, "srs": tmp_path / "copied"}),
        (theirs, {"keys": theirs / "..", "srs": tmp_path / "copied"}),
    ):
        with pytest.raises(second.Refused, match="must come from elsewhere"):
            second.Commitment(folder, **{"keys": keys, **given})
    published = second.Commitment(public, keys, tmp_path / "copied")
    assert published.trust == "supplied"
    bundle = exchange.audit("predictions")
    with pytest.raises(second.Refused, match="must come from elsewhere"):
        second.Commitment(public, bundle, tmp_path / "copied").check_own(bundle, keys=bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-128] + bytes(128), "degenerate"),
        (lambda data: data[:-256] + bytes(256), "other generators"),
        (lambda data: data[:4] + bytes(64) + data[68:], "other generators"),
        (lambda data: data[:-1] + b"\xff", "out of range"),
        (lambda data: data[:-32], "another size"),
    ],
)
def test_it_refuses_degenerate_reference_strings(second, exchange, change, message):
    data = (exchange.public / "srs").read_bytes()
    log_rows = data[0]
    second.check_string(data, log_rows)
    with pytest.raises(second.Refused, match=message):
        second.check_string(change(data), log_rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a;b;y\n1;2;0\n", "separated by commas"),
        ("a,b,y\n1,2\n", "differ in length"),
        ("a,a,y\n1,2,0\n", "the same name"),
        ("a,b,y\n1_0,2,0\n", "is not a number"),
        ("a,b,y\n\u0661,2,0\n", "is not a number"),
        ("a,c,y\n1,2,0\n", "columns must be"),
    ],
)
def test_it_reads_tables_in_one_form(second, tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(second.Refused, match=message):
        second.read_table(path, "y", ["a", "b"])
    path.write_text("\ufeffa,b,y\n1, .5e1,0\n", encoding="utf-8")  # a byte order mark is usual
    assert second.read_table(path, "y", ["a", "b"])[0] == [[1.0, 5.0]]
    path.write_bytes("a,b,y\n1,2,\u00e4\n".encode("utf-16"))
    with pytest.raises(second.MALFORMED):
        second.read_table(path, "y", None)


def test_it_needs_keys_of_the_same_architecture(second, run, tmp_path):
    published = second.Commitment(run.honest, tmp_path, own_string(run))
    with pytest.raises(second.Refused, match="no key of 'bins'"):
        published.key("bins")
    keys = shutil.copytree(run.keys, tmp_path / "keys")
    for settings in keys.glob("*.settings"):
        changed(settings, module_sizes={"polycommit": [7]})
    with pytest.raises(second.Refused, match="another architecture"):
        second.Commitment(run.honest, keys, own_string(run)).key("bins")


def test_its_command_line(second, exchange, tmp_path, capsys, monkeypatch):
    first = exchange.verify("bins")
    table = pd.DataFrame(exchange.X, columns=["a", "b"]).assign(y=exchange.y)
    table.to_csv(tmp_path / "ref.csv", index=False, float_format="%.17g")
    given = ["audit", exchange.audit("bins"), "--commitment", exchange.public]
    given += ["--keys", exchange.keys, "--srs", tmp_path / "own", "--label", "y"]
    given += ["--classes", "0,1"]
    shutil.copy(exchange.public / "srs", tmp_path / "own")
    given += ["--data", tmp_path / "ref.csv", "--bins", small.ASKED["n_bins"]]
    given += ["--confidence-level", "0.95", "--level", "bins", "--alpha"]
    assert second.main([*map(str, given), "0.2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["count"] == first.sums.count.tolist()
    assert found["reference_string"] == "supplied"
    assert found["trust"] == REFERENCE_STRINGS["supplied"]
    assert "leaves no margin for sampling error" in found["note"]
    assert second.main([*map(str, given), "0.3"]) == 2
    assert "another alpha" in capsys.readouterr().err
    shutil.copy(tmp_path / "ref.csv", exchange.folder / "bins.csv")
    planted = shutil.copytree(exchange.audit("bins"), tmp_path / "theirs")
    shutil.move(tmp_path / "ref.csv", planted / "ref.csv")
    given = [planted if part == exchange.audit("bins") else part for part in given]
    given = [planted / "ref.csv" if part == tmp_path / "ref.csv" else part for part in given]
    assert second.main([*map(str, given), "0.2"]) == 2
    assert "must come from elsewhere" in capsys.readouterr().err


@pytest.mark.parametrize("confidence_level", [None, 0.5, 0.95])
@pytest.mark.parametrize(("n_classes", "n_bins"), [(2, 10), (3, 4), (30, 7), (2, 1)])
def test_it_knows_which_verdicts_might_pass_whatever_the_labels_are(
    second, n_classes, n_bins, confidence_level
):
    for alpha in (0.0, 0.05, 0.2, 0.45, 0.5):
        for n in (1, 5, 20, 40, 80, 10**4):
            asked = {"n_bins": n_bins, "alpha": alpha, "confidence_level": confidence_level}
            refused = too_few_to_fail(n, n_classes, **asked)
            statement = {**asked, "n_samples": n, "regions": None}
            assert second.can_fail(statement, n_classes) == (not refused)


@pytest.mark.parametrize("level", [None, 0.5, 0.95, 0.999])
def test_it_refuses_audits_that_no_test_could_fail(second, level):
    rng, refused = np.random.default_rng(0), 0
    for n in (1, 2, 3, 5, 9, 20, 60):
        for alpha in (0.0, 0.05, 0.3, 0.97):
            count = rng.multinomial(n, [0.3, 0.3, 0.4])
            confidence = np.round(count * [0.55, 0.75, 0.95] * 1000).astype(int)
            sums = BinSums(np.array([500, 667, 833, 1000]), count, count, confidence, 1000)
            found = {"count": count.tolist(), "confidence_sum": (confidence / 1000).tolist()}
            # The audit passes as it is, since as many predictions are right as should be.
            right = np.minimum(count, np.round(confidence / 1000).astype(int))
            asked = SimpleNamespace(alpha=alpha, single_level=level)
            first = _judge(sums._replace(correct=right), asked, 0.0).could_fail
            if not second.could_fail(found, alpha, level):
                assert not first
                refused += 1
    assert refused >= 1
    two = {"count": [0, 2], "confidence_sum": [0.0, 1.8]}
    assert second.could_fail(two, 0.05, None)
    assert second.could_fail(two, 0.05, 0.5)
    assert not second.could_fail(two, 0.05, 0.999)
    assert not second.could_fail({"count": [2], "confidence_sum": [1.4]}, 0.05, 0.95)


@pytest.mark.parametrize(
    ("classes", "labels", "codes"),
    [
        ([0, 1], ["1.0", "0"], [1, 0]),
        ([False, True], ["True", "0", "1"], [1, 0, 1]),
        ([2**62, 2**62 + 1], [f"{2**62 + 1}"], [1]),
        ([0.5, 2.0], ["2", ".5"], [1, 0]),
        (["1", "01"], ["01", "1"], [1, 0]),
    ],
)
def test_it_reads_labels_as_they_are_written(second, classes, labels, codes):
    commitment = SimpleNamespace(classes=classes)
    assert second.Commitment.codes(commitment, labels) == codes
    with pytest.raises((second.Refused, ValueError)):
        second.Commitment.codes(commitment, ["7"])
