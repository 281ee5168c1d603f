"""The protocol by processes in folders of their own, which exchange the public files alone."""

import json
import shutil
import subprocess
import sys

import joblib
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from skuq.cli._main import NO_VERDICT
from skuq.datasets import make_gaussian_classes

ezkl = pytest.importorskip("ezkl")
pytest.importorskip("onnx")

pytestmark = pytest.mark.slow  # keys and proofs take a minute

QUESTION = ["--alpha", "0.05", "--bins", "5", "--confidence-level", "0.95", "--level", "bins"]
QUESTION += ["--label", "y"]
# Commands in turn, with circuits of one column: their keys are made in a fraction of the time.
COMMANDS = """
import contextlib, io, json, sys
from skuq.cli import main
from skuq.zk import _commit
_commit.AUDIT_COLUMNS = 1
results = []
for arguments in json.loads(sys.argv[1]):
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            main(["audit", *arguments], prog_name="skuq")
        except SystemExit as end:
            results.append((end.code, out.getvalue(), error.getvalue()))
json.dump(results, sys.stdout)
"""
SECRETS = {".pk", ".npz", ".joblib", ".circuit"}


class Party:
    """A folder, and the commands that are run in it."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def run(self, *commands):
        """Exit code, output and errors of each command; one process runs all of them."""
        given = json.dumps([[str(part) for part in command] for command in commands])
        found = subprocess.run(
            [sys.executable, "-c", COMMANDS, given],
            cwd=self.folder,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=600,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        results = json.loads(found.stdout)
        assert len(results) == len(commands)
        return results

    def done(self, *arguments):
        """What a command printed that did what it should."""
        (result,) = self.run(arguments)
        return printed(result)

    def send(self, name, other, received=None):
        """Hand a copy of a file or folder to another party."""
        source, target = self.folder / name, other.folder / (received or name)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)


def printed(result):
    """What a command printed that did what it should."""
    code, out, error = result
    assert code == 0, out + error
    return out


def refusal(result):
    """What a command said that did not."""
    code, out, error = result
    assert (code, out) == (NO_VERDICT, ""), out + error
    return error


@pytest.fixture
def parties(tmp_path):
    """Provider, auditor and client, with what each brings along."""
    provider, auditor, client = (
        Party(tmp_path / name) for name in ("provider", "auditor", "client")
    )
    X, y = make_gaussian_classes(random_state=0)[:2]
    joblib.dump(LogisticRegression().fit(X, y), provider.folder / "model.joblib")
    pd.DataFrame(X, columns=["a", "b"]).to_csv(provider.folder / "train.csv", index=False)
    X, y = make_gaussian_classes((6, 6, 3), random_state=1)[:2]
    table = pd.DataFrame(X, columns=["a", "b"])
    table.assign(y=y).to_csv(auditor.folder / "reference.csv", index=False)
    table.head(1).to_csv(client.folder / "row.csv", index=False)
    ezkl.gen_srs(str(auditor.folder / "string"), 13)  # the auditor's own trusted setup
    return provider, auditor, client


def test_parties_in_their_own_folders_exchange_the_public_files_alone(parties):
    provider, auditor, client = parties
    auditor.send("string", provider)
    given = ["model.joblib", "train.csv", "model", "--trust"]
    size = ["--bins", 5, "--proofs", 1, "--attestations", 1]
    provider.done("commit", *given, *size, "--srs", "string")
    for other in (auditor, client):
        provider.send("model/public", other, "published")

    auditor.send("reference.csv", provider)
    provider.done("prove", "model/public", "reference.csv", "bundle", *QUESTION)
    provider.send("bundle", auditor)
    given = ["verify", "bundle", "published", "reference.csv", *QUESTION]
    given += ["--classes", "0,1,2", "--keys", "keys"]
    unknown, theirs, own, again = auditor.run(
        given,
        [*given, "--srs", "published/srs"],
        [*given, "--srs", "string", "--json", "verified.json"],
        [*given, "--srs", "string", "--json", "again.json"],
    )
    assert "not that of the public ceremony" in refusal(unknown)
    assert "--srs must not be in published" in refusal(theirs)
    told = printed(own)
    assert told.startswith("Reference string: NOT the public ceremony's string: trusted because")
    assert printed(again) == told
    texts = [(auditor.folder / name).read_bytes() for name in ("verified.json", "again.json")]
    assert texts[0] == texts[1]  # a record to sign does not depend on when it was written
    record = json.loads(texts[0])
    assert (record["passed"], record["reference_string"]) == (True, "supplied")

    for name in ("verified.json", "string"):
        auditor.send(name, client)
    client.send("row.csv", provider)
    row = ["--input", "row.csv", "--nonce", "case 12"]
    provider.done("attest", "model/public", "answer.json", *row)
    provider.send("answer.json", client)
    given = ["check", "answer.json", "published", *row, "--keys", "keys"]
    unknown, known = client.run(given, [*given, "--srs", "string"])
    assert "not that of the public ceremony" in refusal(unknown)
    told = printed(known).splitlines()
    assert told[0] == (
        "Reference string: NOT the public ceremony's string: trusted because you supplied it."
    )

    for party in (auditor, client):
        paths = list(party.folder.rglob("*"))
        assert not [path for path in paths if path.suffix in SECRETS or path.name == "private"]
    received = {"published", "row.csv", "string", "verified.json", "answer.json", "keys"}
    assert {path.name for path in client.folder.iterdir()} == received
