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

pytest.importorskip("cryptography")
ezkl = pytest.importorskip("ezkl")
pytest.importorskip("onnx")

pytestmark = pytest.mark.slow  # keys and proofs take a minute

QUESTION = ["--alpha", "0.05", "--bins", "5", "--confidence-level", "0.95", "--level", "bins"]
REFERENCE = ["--data", "reference.csv", "--label", "y"]
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
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate()
    text, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(text, form, serialization.NoEncryption())
    (auditor.folder / "auditor.pem").write_bytes(private)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    (auditor.folder / "auditor.pub").write_bytes(key.public_key().public_bytes(text, form))
    return provider, auditor, client


def test_parties_in_their_own_folders_exchange_the_public_files_alone(parties):
    provider, auditor, client = parties
    auditor.send("string", provider)
    given = ["--model", "model.joblib", "--trust", "--data", "train.csv", "--out", "model"]
    size = ["--bins", 5, "--proofs", 1, "--attestations", 1]
    provider.done("commit", *given, *size, "--srs", "string")
    for other in (auditor, client):
        provider.send("model/public", other, "published")

    auditor.send("reference.csv", provider)
    asked = ["--commitment", "model/public", *REFERENCE, "--out", "bundle"]
    provider.done("prove", *asked, *QUESTION)
    provider.send("bundle", auditor)
    given = ["verify", "--audit", "bundle", "--commitment", "published", *REFERENCE, *QUESTION]
    given += ["--classes", "0,1,2", "--keys", "keys"]
    signed = ["--certificate", "certificate.json", "--sign", "auditor.pem", "--tolerance", 0.001]
    unknown, theirs, own, revoked = auditor.run(
        given,
        [*given, "--srs", "published/srs"],
        [*given, "--srs", "string", *signed, "--revocations", "here"],
        ["revoke", "--sign", "auditor.pem", "--out", "revoked.json"],
    )
    assert "not that of the public ceremony" in refusal(unknown)
    assert "--srs must not be in published" in refusal(theirs)
    told = printed(own)
    assert told.startswith("Reference string: NOT the public ceremony's string: trusted because")
    printed(revoked)

    for name in ("certificate.json", "auditor.pub", "revoked.json", "string"):
        auditor.send(name, client)
    client.send("row.csv", provider)
    row = ["--input", "row.csv", "--nonce", "case 12"]
    provider.done("attest", "--commitment", "model/public", *row, "--out", "answer.json")
    provider.send("answer.json", client)
    given = ["check", "--attestation", "answer.json", "--commitment", "published", *row]
    given += ["--srs", "string", "--keys", "keys"]
    given += ["--certificate", "certificate.json", "--auditor", "auditor.pub"]
    given += ["--revoked", "revoked.json"]
    not_allowed, allowed = client.run(
        given, [*given, "--allow-supplied-string", "--json", "checked.json"]
    )
    assert "--allow-supplied-string" in refusal(not_allowed)
    told = printed(allowed).splitlines()
    assert told[0] == (
        "Reference string: NOT the public ceremony's string: trusted because you supplied it."
    )
    assert (
        "robust:     the verdict is the same at alpha minus and plus a tolerance of 0.001" in told
    )
    assert (
        "string:     NOT the public ceremony's string: trusted because the auditor supplied it"
    ) in told
    record = json.loads((client.folder / "checked.json").read_text(encoding="utf-8"))
    assert record["certificate"]["reference_string"] == "supplied"

    more = ["--certificate", "certificate.json", "--previous", "revoked.json"]
    auditor.done("revoke", "--sign", "auditor.pem", *more, "--out", "revoked.json")
    auditor.send("revoked.json", client)
    (result,) = client.run([*given, "--allow-supplied-string"])
    assert "The certificate was revoked." in refusal(result)

    for party in (auditor, client):
        paths = list(party.folder.rglob("*"))
        assert not [path for path in paths if path.suffix in SECRETS or path.name == "private"]
    received = {"published", "row.csv", "string", "certificate.json", "auditor.pub"}
    received |= {"revoked.json", "answer.json", "checked.json", "keys"}
    assert {path.name for path in client.folder.iterdir()} == received
