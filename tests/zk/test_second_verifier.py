"""The verifier that uses nothing of the package: it agrees on honest files, and on altered ones."""

import json
import re
import shutil
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from skuq.calibration import BinSums
from skuq.zk import REFERENCE_STRINGS
from skuq.zk._results import judge
from skuq.zk._statements import too_few_to_fail
from tests.zk.tampering import changed, published_to_second, verified
from tests.zk.test_statements import question


def test_it_uses_nothing_of_the_package(second):
    text = Path(second.__file__).read_text(encoding="utf-8")
    imported = re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE)
    assert {*imported} - sys.stdlib_module_names == {"ezkl"}


def test_it_trusts_the_ceremony_or_an_own_copy_and_keys_of_one_architecture(second, run, tmp_path):
    other = tmp_path / "srs"
    other.write_bytes((run.public / "srs").read_bytes()[:-1])
    for own, reason in ((None, "not the ceremony's"), (other, "nor yours")):
        with pytest.raises(second.Refused, match=reason):
            second.Commitment(run.public, run.keys, own)
    keys = shutil.copytree(run.keys, tmp_path / "keys")
    for settings in keys.glob("*.settings"):
        changed(settings, module_sizes={"polycommit": [7]})
    (tmp_path / "none").mkdir()
    for own, reason in ((tmp_path / "none", "no key of 'bins'"), (keys, "another architecture")):
        with pytest.raises(second.Refused, match=reason):
            published_to_second(run, keys=own).key("bins")


def test_no_file_of_its_own_is_the_providers(second, exchange, tmp_path):
    public, copied = exchange.public, tmp_path / "copied"
    (tmp_path / "symbolic").symlink_to(public / "srs")
    (tmp_path / "folder").symlink_to(public, target_is_directory=True)
    copied.write_bytes((public / "srs").read_bytes())
    theirs = shutil.copytree(public, tmp_path / "public")
    (tmp_path / "hard").hardlink_to(theirs / "srs")
    for folder, keys, srs in (
        (public, tmp_path / "keys", public / "srs"),
        (public, tmp_path / "keys", tmp_path / "symbolic"),
        (theirs, tmp_path / "keys", tmp_path / "hard"),
        (public, public / "keys", copied),
        (public, tmp_path / "folder", copied),
        (theirs, tmp_path, copied),
        (theirs, theirs / "..", copied),
    ):
        with pytest.raises(second.Refused, match="must come from elsewhere"):
            second.Commitment(folder, keys, srs)
    assert second.Commitment(public, tmp_path / "keys", copied).trust == "supplied"
    bundle = exchange.predictions
    with pytest.raises(second.Refused, match="must come from elsewhere"):
        second.Commitment(public, bundle, copied).check_own(bundle, keys=bundle)


def test_it_refuses_degenerate_reference_strings(second, exchange):
    data = (exchange.public / "srs").read_bytes()
    second.check_string(data, data[0])
    for altered, message in (
        (data[:-128] + bytes(128), "degenerate"),
        (data[:-256] + bytes(256), "other generators"),
        (data[:4] + bytes(64) + data[68:], "other generators"),
        (data[:-1] + b"\xff", "out of range"),
        (data[:-32], "another size"),
    ):
        with pytest.raises(second.Refused, match=message):
            second.check_string(altered, data[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(("a;b;y\n1;2;0\n", "separated by commas"), ("a,b,y\n1,2\n", "differ in length")),
        *(("a,a,y\n1,2,0\n", "the same name"), ("a,b,y\n1_0,2,0\n", "is not a number")),
        *(("a,b,y\n\u0661,2,0\n", "is not a number"), ("a,c,y\n1,2,0\n", "columns must be")),
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


def test_its_command_line(second, exchange, tmp_path, capsys):
    table, own = tmp_path / "ref.csv", shutil.copy(exchange.public / "srs", tmp_path / "own")
    frame = pd.DataFrame(exchange.X_ref, columns=["a", "b"]).assign(y=exchange.y_ref)
    frame.to_csv(table, index=False, float_format="%.17g")

    def asked(tolerance, bundle, data=table):
        given = {"commitment": exchange.public, "keys": exchange.keys, "srs": own, "label": "y"}
        given |= {"classes": "0,1", "data": data, "bins": 2, "confidence-level": 0.95}
        given |= {"level": "bins", "tolerance": tolerance}
        parts = [str(part) for name, value in given.items() for part in (f"--{name}", value)]
        return second.main(["audit", str(bundle), *parts])

    assert asked(0.2, exchange.bins) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["count"] == verified(exchange, "bins").sums.count.tolist()
    assert found["reference_string"] == "supplied"
    assert found["trust"] == REFERENCE_STRINGS["supplied"]
    assert "leaves no margin for sampling error" in found["note"]
    assert asked(0.3, exchange.bins) == 2
    assert "another alpha" in capsys.readouterr().err
    planted = shutil.copytree(exchange.bins, tmp_path / "theirs")
    shutil.copy(table, planted)
    assert asked(0.2, planted, planted / "ref.csv") == 2
    assert "must come from elsewhere" in capsys.readouterr().err


@pytest.mark.parametrize(("n_classes", "n_bins"), [(2, 10), (3, 4), (30, 7), (2, 1)])
def test_it_knows_which_verdicts_might_pass_whatever_the_labels_are(second, n_classes, n_bins):
    for confidence_level, tolerance in product((None, 0.5, 0.95), (0.0, 0.05, 0.2, 0.45, 0.5)):
        asked = {"n_bins": n_bins, "alpha": tolerance, "confidence_level": confidence_level}
        asked["regions"] = None
        for n in (1, 5, 20, 40, 80, 10**4):
            refused = too_few_to_fail(n, n_classes, question(**asked))
            assert second.can_fail({**asked, "n_samples": n}, n_classes) == (not refused)


@pytest.mark.parametrize("level", [None, 0.5, 0.95, 0.999])
def test_it_refuses_audits_that_no_test_could_fail(second, level):
    rng, refused = np.random.default_rng(0), 0
    for n, tolerance in product((1, 2, 5, 20, 60), (0.0, 0.3, 0.97)):
        count = rng.multinomial(n, [0.3, 0.3, 0.4])
        confidence = np.round(count * [0.55, 0.75, 0.95] * 1000).astype(int)
        # The audit passes as it is, since as many predictions are right as should be.
        right = np.minimum(count, np.round(confidence / 1000).astype(int))
        sums = BinSums(np.array([500, 667, 833, 1000]), count, right, confidence, 1000)
        first = judge(sums, SimpleNamespace(alpha=tolerance, single_level=level), 0.0).could_fail
        found = {"count": count.tolist(), "confidence_sum": (confidence / 1000).tolist()}
        if not second.could_fail(found, tolerance, level):
            assert not first
            refused += 1
    assert refused >= 1
    two = {"count": [0, 2], "confidence_sum": [0.0, 1.8]}
    for confidence_level, might in ((None, True), (0.5, True), (0.999, False)):
        assert second.could_fail(two, 0.05, confidence_level) == might
    assert not second.could_fail({"count": [2], "confidence_sum": [1.4]}, 0.05, 0.95)


@pytest.mark.parametrize(
    ("classes", "labels", "codes"),
    [
        *(([0, 1], ["1.0", "0"], [1, 0]), ([False, True], ["True", "0", "1"], [1, 0, 1])),
        *(([2**62, 2**62 + 1], [f"{2**62 + 1}"], [1]), ([0.5, 2.0], ["2", ".5"], [1, 0])),
        (["1", "01"], ["01", "1"], [1, 0]),
    ],
)
def test_it_reads_labels_as_they_are_written(second, classes, labels, codes):
    commitment = SimpleNamespace(classes=classes)
    assert second.Commitment.codes(commitment, labels) == codes
    with pytest.raises((second.Refused, ValueError)):
        second.Commitment.codes(commitment, ["7"])
