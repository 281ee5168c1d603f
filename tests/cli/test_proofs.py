"""``skuq audit commit``, ``prove``, ``verify`` and so on: two parties, exit codes, failures."""

import hashlib
import json
import os
import shutil
from contextlib import chdir
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from skuq import extras
from skuq.cli._main import FAILED, main
from skuq.datasets import make_gaussian_classes

pytest.importorskip("cryptography")
pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from skuq import zk

pytestmark = pytest.mark.slow  # they share proofs that take a minute

ASKED = ["--alpha", "0.05", "--bins", "5", "--confidence-level", "0.95", "--level", "bins"]
ASKED += ["--classes", "0,1,2"]
TEST = "--test-string"  # the provider's own reference string


def run(*arguments):
    return CliRunner().invoke(main, ["audit", *map(str, arguments)])


def done(*arguments):
    """What a command printed that did what it should."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def verify(*arguments, audit="bundle", data="ref.csv", label="y", commitment="published"):
    given = ["--audit", audit, "--data", data, "--label", label, "--commitment", commitment]
    return run("verify", *given, "--keys", "keys", TEST, *ASKED, *arguments)


def rejected(result, message):
    """Reason of a failed verification, which is one line."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Verification failed: ")
    assert message in line
    return line.removeprefix("Verification failed: ")


def unusable(result, message):
    """What is wrong with an input, in one line."""
    assert result.exit_code == 2, result.output
    *usage, line = result.stderr.splitlines()
    assert not usage or usage[0].startswith("Usage: ")
    assert line.startswith("Error: ")
    assert message in line


@pytest.fixture(scope="module")
def provider(tmp_path_factory):
    """The provider's folder: a model, its commitment, and a proven audit."""
    folder = tmp_path_factory.mktemp("provider")
    X, y = make_gaussian_classes(random_state=0)[:2]
    joblib.dump(LogisticRegression().fit(X, y), folder / "model.joblib")
    table_of(X, y).to_csv(folder / "train.csv", index=False)
    table_of(*make_gaussian_classes((8, 8, 4), random_state=1)[:2]).to_csv(
        folder / "ref.csv", index=False
    )
    given = ["--model", "model.joblib", "--trust", "--data", "train.csv", "--drop", "y"]
    given += ["--out", "model"]
    with chdir(folder):
        told = done("commit", *given, "--proofs", 3, "--attestations", 1, "--bins", 5)
        asked = ["--bins", 5, "--jobs", 2]
        told += done("prove", *reference("model/public"), *asked, "--out", "bundle")
    record = json.loads(
        (folder / "model" / "public" / "commitment.json").read_text(encoding="utf-8")
    )
    assert record["architecture"]["columns"] == {"attestation": 1, "predictions": 3, "bins": 3}
    assert f"Commitment point:   {record['commitment_point']}" in told
    assert "Proofs: 1\nFor the auditor: bundle" in told
    rows = record["architecture"]["rows_per_proof"]
    assert f"{rows['bins']:,} at --level bins, {rows['predictions']:,} at" in told
    assert f"Rows of all proofs: {3 * rows['bins']:,} or {3 * rows['predictions']:,} (" in told
    return folder


def table_of(X, y):
    return pd.DataFrame(X, columns=["width", "height"]).assign(y=y)


def reference(commitment):
    return ["--commitment", commitment, "--data", "ref.csv", "--label", "y"]


@pytest.fixture(scope="module")
def checked(provider, tmp_path_factory):
    """The auditor's folder, and what the auditor's own call printed."""
    folder = tmp_path_factory.mktemp("auditor")
    shutil.copytree(provider / "model" / "public", folder / "published")
    shutil.copytree(provider / "bundle", folder / "bundle")
    shutil.copy(provider / "ref.csv", folder)
    away = provider.rename(provider.with_name("elsewhere"))
    try:  # nothing of the provider is where it was while the auditor verifies
        given = ["--audit", "bundle", *reference("published"), "--keys", "keys"]
        with chdir(folder):
            told = done("verify", *given, *ASKED, TEST, "--json", "verified.json")
    finally:
        away.rename(provider)
    return folder, told


@pytest.fixture
def auditor(checked, monkeypatch):
    """The auditor's folder, as the current one."""
    monkeypatch.chdir(checked[0])
    return checked[0]


@pytest.fixture
def copy(auditor, tmp_path):
    """A copy of the bundle, to be changed."""
    return Path(shutil.copytree(auditor / "bundle", tmp_path / "bundle"))


def list_again(folder):
    """Make the manifest of a folder fit its files."""
    path = folder / "manifest.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    for name, entry in record["files"].items():
        data = (folder / name).read_bytes()
        entry.update(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
    path.write_text(json.dumps(record), encoding="utf-8")


# --- two parties -----------------------------------------------------------------------------


def test_an_auditor_verifies_in_a_folder_that_has_nothing_of_the_provider(checked):
    folder, told = checked
    shown = {path.relative_to(folder).parts[0] for path in folder.rglob("*")}
    assert shown == {"published", "bundle", "ref.csv", "keys", "verified.json"}
    assert not [path for path in folder.rglob("*") if path.suffix in {".pk", ".npz"}]
    lines = told.splitlines()
    assert lines[0].startswith("Reference string: TEST ONLY")
    assert lines[2].startswith("Passed: in no bin is confidence significantly wrong by more than")
    facts = [line.split() for line in lines[4:10]]
    assert facts[:2] == [["classes", "0,", "1,", "2"], ["absent", "classes", "none"]]
    assert facts[2:] == [["level", "bins"], ["alpha", "0.05"], ["bins", "5"], ["proofs", "1"]]
    record = json.loads((folder / "verified.json").read_text(encoding="utf-8"))
    assert record["passed"] is True
    assert record["reference_string"] == "test"
    table = [line for line in lines if line.startswith("  ") and "%" in line]
    assert [int(line.split()[3]) for line in table] == [n for n in record["bins"]["count"] if n]
    for note in record["notes"]:
        assert f"- {note}" in lines


def test_the_figures_are_those_of_the_package(auditor):
    table = pd.read_csv("ref.csv")
    X, y = table[["width", "height"]].to_numpy(), table["y"]
    expected = zk.verify(
        "bundle",
        X,
        y,
        "published",
        alpha=0.05,
        n_bins=5,
        confidence_level=0.95,
        level="bins",
        classes=[0, 1, 2],
        allow_test_string=True,
        keys="keys",
    )
    committed = zk.load_commitment("published")
    names = {"commitment_point": committed.point, "commitment_digest": committed.digest}
    assert json.loads(Path("verified.json").read_text(encoding="utf-8")) == {
        **expected.as_record(),
        **names,
    }


def test_quiet_prints_nothing_but_decides(auditor, capfd):
    result = verify("--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert capfd.readouterr() == ("", "")


# --- failed verification ---------------------------------------------------------------------


def test_other_labels_are_rejected_and_the_reason_is_written(auditor, tmp_path):
    table = pd.read_csv("ref.csv")
    table.assign(y=(table["y"] + 1) % 3).to_csv(tmp_path / "other.csv", index=False)
    path = tmp_path / "rejected.json"
    reason = rejected(
        verify("--json", path, data=tmp_path / "other.csv"), "different reference data"
    )
    assert json.loads(path.read_text(encoding="utf-8")) == {"verification_error": reason}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--alpha", 0.1], "alpha=0.05, but you asked for 0.1"),
        (["--bins", 4], "n_bins=5, but you asked for 4"),
        (["--confidence-level", 0.9], "confidence_level=0.95, but you asked for 0.9"),
        (["--confidence-level", "none"], "confidence_level=0.95, but you asked for None"),
        (["--level", "verdict"], "level=bins, but you asked for verdict"),
        (
            ["--classes", "0,2,1"],
            "--classes must be the classes of the commitment, in the same order: 0, 1, 2",
        ),
    ],
)
def test_what_was_not_asked_for_is_rejected(auditor, options, message):
    rejected(verify(*options), message)


@pytest.mark.parametrize("absent", ["1", "7"])
def test_only_classes_without_a_label_are_absent(auditor, absent):
    unusable(verify("--absent-classes", absent), "--absent-classes must be")


def test_a_reference_string_of_unknown_origin_is_rejected(auditor, tmp_path):
    given = ["verify", "--audit", "bundle", *reference("published"), "--keys", "keys", *ASKED]
    rejected(run(*given), "is not that of the public ceremony")
    shutil.copy("published/srs", tmp_path / "string")
    supplied = run(*given, "--srs", tmp_path / "string", "--json", tmp_path / "verified.json")
    assert supplied.exit_code == 0, supplied.output
    sentence = "NOT the public ceremony's string: trusted because you supplied it"
    assert supplied.stdout.startswith(f"Reference string: {sentence}.")
    assert f"- The reference string is {sentence}." in supplied.stdout.splitlines()
    record = json.loads((tmp_path / "verified.json").read_text(encoding="utf-8"))
    assert (record["reference_string"], record["reference_string_is"]) == ("supplied", sentence)


@pytest.mark.parametrize("option", ["--srs", "--keys", "--challenge", "--sign", "--data"])
@pytest.mark.parametrize("theirs", ["published/srs", "bundle/statement.json", "a link"])
def test_no_file_of_the_auditors_own_is_the_providers(auditor, tmp_path, option, theirs):
    path = Path(theirs)
    if theirs == "a link":
        path = tmp_path / "link"
        path.symlink_to(Path("published", "srs").resolve())
    given = [option, path]
    if option == "--keys":
        given[1] = path.parent if path.is_symlink() else path.with_name("keys")
        if path.is_symlink():
            given[1] = tmp_path / "folder"
            given[1].symlink_to(Path("published").resolve(), target_is_directory=True)
    if option == "--sign":
        given += ["--certificate", tmp_path / "certificate.json"]
    unusable(verify(*given), f"{option} must not be in ")
    assert not (tmp_path / "certificate.json").exists()


def test_a_changed_file_is_rejected(auditor, copy):
    path = copy / "chunks" / "00000.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["outputs"][0] = str(int(record["outputs"][0]) + 2)
    path.write_text(json.dumps(record), encoding="utf-8")
    rejected(verify(audit=copy), "The file chunks/00000.json was changed")
    list_again(copy)
    rejected(verify(audit=copy), "does not hold")


def test_names_in_a_bundle_cannot_command_the_terminal(auditor, copy):
    (copy / "\x1b]0;owned").touch()
    assert "\\x1b" in rejected(verify(audit=copy), "is not in the manifest")


def test_another_commitment_is_rejected(auditor, tmp_path):
    other = Path(shutil.copytree("published", tmp_path / "other"))
    path = other / "commitment.json"
    path.write_text(
        path.read_text(encoding="utf-8").replace('"n_proofs":3', '"n_proofs":5'), encoding="utf-8"
    )
    list_again(other)
    rejected(verify(commitment=other), "different commitment from the published one")


# --- reported confidences --------------------------------------------------------------------


def test_reported_confidences_are_proven_after_the_challenge(provider, auditor, tmp_path):
    (tmp_path / "sent").mkdir()
    given = ["prove", *reference(provider / "model" / "public"), "--out", tmp_path / "sent"]
    given += ["--level", "predictions", "--false-share", 0.5, "--error", 0.2, "--quiet"]
    given += ["--alpha", 0, "--confidence-level", "none", "--bins", 2]
    first = run(*given)
    assert first.exit_code == 0, first.output
    assert "skuq audit challenge --audit" in first.stdout
    assert "Then repeat this command with --challenge" in first.stdout
    answer = tmp_path / "challenge.json"
    drawn = ["challenge", "--audit", tmp_path / "sent", *reference("published"), "--out"]
    assert run(*drawn, answer).exit_code == 0
    unusable(run(*drawn, answer), "challenged only once")
    second = run(*given, "--challenge", answer)
    assert (second.exit_code, second.output) == (0, "")
    question = ["--alpha", 0, "--confidence-level", "none", "--bins", 2]
    question += ["--level", "predictions"]
    options = ["--challenge", answer, *question, "--false-share", 0.5]
    unproven = verify("--challenge", answer, *question, audit=tmp_path / "sent")
    rejected(unproven, "Only 3 of 20 predictions were proven, but 20 are needed")
    found = verify(*options, "--error", 0.2, audit=tmp_path / "sent")
    assert found.exit_code == FAILED, found.output  # 20 samples are never right exactly
    lines = found.stdout.splitlines()
    assert lines[2] == "Failed: confidence is wrong by more than alpha = 0."
    assert lines[4].split() == ["classes", "0,", "1,", "2"]
    assert lines[6].split() == ["level", "predictions"]
    assert "3 of 20 reported predictions were proven" in found.stdout
    assert any(line.endswith(("too low", "too high")) for line in lines)
    rejected(verify(*question, audit=tmp_path / "sent"), "needs the auditor's own challenge")
    own = tmp_path / "own.json"
    assert run(*drawn, own).exit_code == 0
    other = verify("--challenge", own, *question, audit=tmp_path / "sent")
    rejected(other, "answers a different challenge")


def test_a_challenge_needs_reported_confidences(auditor, tmp_path):
    given = ["--audit", "bundle", *reference("published"), "--out", tmp_path / "c.json"]
    result = run("challenge", *given)
    rejected(result, "reported.json is missing")


# --- single predictions ----------------------------------------------------------------------


def test_a_client_checks_an_attested_prediction(provider, auditor, tmp_path):
    row = pd.read_csv("ref.csv").head(1)
    row.to_csv(tmp_path / "row.csv", index=False)
    where = ["--commitment", provider / "model" / "public", "--out", tmp_path / "a.json"]
    made = run(
        "attest", *where, "--input", tmp_path / "row.csv", "--drop", "y", "--nonce", "case 12"
    )
    assert made.exit_code == 0, made.output
    x = row[["width", "height"]].to_numpy()
    values = ",".join(map(repr, x[0].tolist()))
    sign(tmp_path / "certificate.json")
    given = ["check", "--attestation", tmp_path / "a.json", "--commitment", "published"]
    given += ["--keys", "keys", TEST]
    path = tmp_path / "checked.json"
    good = run(*given, "--values", values, "--nonce", "case 12", "--json", path)
    assert good.exit_code == 0, good.output
    record = json.loads(path.read_text(encoding="utf-8"))
    model = joblib.load(provider / "model.joblib")
    assert record["label"] == model.predict(x)[0]
    assert record["confidence"] == pytest.approx(model.predict_proba(x).max(), abs=0.005)
    assert record["commitment_digest"] == zk.load_commitment("published").digest
    assert good.stdout.splitlines()[1:] == [
        f"label:      {record['label']}",
        f"confidence: {record['confidence']:.4f}",
        "classes:    0, 1, 2",
    ]
    assert good.stdout.startswith("Reference string: TEST ONLY")
    assert record["x"] == x[0].tolist()  # to the last bit
    by_file = run(*given, "--input", tmp_path / "row.csv", "--drop", "y", "--nonce", "case 12")
    assert by_file.exit_code == 0, by_file.output
    given += ["--nonce", "case 12"]
    certified = ["--certificate", tmp_path / "certificate.json", "--auditor", "auditor.pub"]
    own = run(*given, "--values", values, *certified)
    assert own.exit_code == 0, own.output
    assert "certified:  passed at alpha = 0.05 in 5 bins, confidence level 0.95" in own.stdout
    assert "not compared with a list (https://auditor.example)" in own.stdout
    assert "the verdict is the same at alpha minus and plus the commitment's" in own.stdout
    assert "string:     TEST ONLY" in own.stdout
    listed = tmp_path / "revoked.json"
    compared = [*given, "--values", values, *certified, "--revoked", listed]
    told = done("revoke", "--sign", "auditor.pem", "--out", listed)
    assert told == f"Revoked certificates: {listed}\n"
    assert "not compared" not in done(*compared)
    unusable(run("revoke", "--sign", "auditor.pem", "--out", listed), "pass it as --previous too")
    onwards = ["revoke", "--sign", "auditor.pem", "--previous", listed, "--out", listed]
    done(*onwards, "--certificate", certified[1], "--digest", "0" * 64)
    rejected(run(*compared), "was revoked")
    for option, theirs in (("--auditor", "published/srs"), ("--revoked", tmp_path / "a.json")):
        unusable(run(*compared, option, theirs), f"{option} must not be in ")
    for option in (["--revoked", listed], ["--allow-supplied-string"]):
        unusable(run(*given, "--values", values, *option), "--certificate and --auditor must be")
    unusable(run(*given, "--values", values, *certified[:2]), "must be used together")
    unusable(run(*given), "Pass the input with --input or --values.")
    rejected(run(*given, "--values", "0.5,0.25", "--json", path), "for a different input")
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "verification_error": "The attestation is for a different input."
    }
    given += ["--values", values]
    rejected(run(*given, "--nonce", "case 13"), "a different nonce")
    record = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    record["statement"]["confidence"] -= 1
    (tmp_path / "a.json").write_text(json.dumps(record), encoding="utf-8")
    rejected(run(*given), "does not hold")


def test_a_class_that_looks_like_another_differs_on_the_clients_screen(auditor, monkeypatch):
    label = "0\u3164"  # as software that lacks the rules on names could commit to
    found = zk.Attestation(label, 0.5, [0.5, 0.25], {}, "test", ["0", label], None)
    monkeypatch.setattr(zk, "check", lambda *_, **__: found)
    given = ["check", "--attestation", "verified.json", "--commitment", "published"]
    told = done(*given, "--values", "0.5,0.25", "--nonce", "1", TEST)
    assert "('0\\u3164')" in told.splitlines()[1]


def sign(path):
    """Keys of an auditor, and the certificate of the audit."""
    key = ed25519.Ed25519PrivateKey.generate()
    text, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(text, form, serialization.NoEncryption())
    Path("auditor.pem").write_bytes(private)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    Path("auditor.pub").write_bytes(key.public_key().public_bytes(text, form))
    given = ["--certificate", path, "--revocations", "https://auditor.example", "--sign"]
    made = verify(*given, "auditor.pem")
    assert made.exit_code == 0, made.output
    unusable(verify(*given, "auditor.pem"), "already exists and is never replaced")
    unusable(verify(*given[:2]), "--certificate and --sign must be used together")
    unusable(verify("--certificate", "new.json", "--sign", "ref.csv"), "private Ed25519 key")
    assert not Path("new.json").exists()


# --- what cannot be used ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label", "z"], "ref.csv has no column 'z'. It has width, height, y."),
        (["--drop", "widht"], "has no column 'widht'. Did you mean 'width'?"),
        (["--drop", "width"], "has 1 features (height), but the committed model has 2."),
        (["--drop", "y"], "--drop: 'y' is the label"),
        (["--label", "width"], "the committed columns in their order: width, height; got height"),
        (["--json", "-"], "pass the name of a file"),
        (["--json", "ref.csv"], "is already an input or output of this command"),
        (["--json", "absent/v.json"], "The folder absent does not exist"),
        (["--json", "bundle/v.json"], "The output must not be in bundle"),
        (["--keys", "published/keys"], "--keys must not be in published"),
        (["--alpha", 2], "Invalid value for '--alpha'"),
        (["--confidence-level", "high"], "Invalid value for '--confidence-level'"),
        (["--challenge", "absent.json"], "does not exist"),
        (["--nonsense"], "No such option"),
    ],
)
def test_what_cannot_be_verified_is_said_in_one_line(auditor, options, message):
    unusable(verify(*options), message)


def test_a_column_that_is_not_a_feature_is_named_with_its_option(auditor):
    pd.read_csv("ref.csv").assign(**{"the id": 1}).to_csv("wide.csv", index=False)
    unusable(
        verify("--data", "wide.csv"),
        "wide.csv has 3 features (width, height, the id), but the committed model has 2. Exclude "
        "columns that are not features: --drop 'the id'.",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "is not empty; choose a different folder"),
        (["--drop", "z"], "has no column 'z'"),
        (["--drop", "height"], "has 1 feature columns (width), but the model was fitted on 2"),
        (["--model", "train.csv"], "--model: train.csv cannot be loaded ("),
        (["--model", "list.joblib", "--out", "new"], "list"),
        (["--out", "new", "--srs", "train.csv", "--tolerance", 1e-9], "tolerance"),
        (["--proofs", 0], "Invalid value for '--proofs'"),
    ],
)
def test_what_cannot_be_committed_to_is_said_in_one_line(provider, monkeypatch, options, message):
    monkeypatch.chdir(provider)
    joblib.dump([1], "list.joblib")
    given = ["--model", "model.joblib", "--trust", "--data", "train.csv", "--drop", "y"]
    given += ["--out", "model"]
    unusable(run("commit", *given, "--quiet", *options), message)
    assert not Path("new", "private").exists()


class Forged:
    """An object whose pickle writes a file when it is loaded."""

    def __reduce__(self):
        return os.system, ("echo > pwned",)


def test_a_pickled_model_runs_nothing_without_trust(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    joblib.dump(Forged(), "model.joblib")
    table_of(np.eye(2), [0, 1]).to_csv("train.csv", index=False)
    given = ["--model", "model.joblib", "--data", "train.csv", "--drop", "y", "--out", "out"]
    result = run("commit", *given)
    unusable(result, "is loaded as pickled objects, which run code of whoever made them")
    assert "say so (--trust). A file written by skops.io.dump" in result.stderr
    assert not Path("pwned").exists()
    run("commit", *given, "--trust")
    assert Path("pwned").exists()  # so the file is one that would have run


def test_columns_must_be_those_of_the_model(provider, tmp_path):
    table = pd.read_csv(provider / "train.csv")
    model = LogisticRegression().fit(table[["width", "height"]], table["y"])
    joblib.dump(model, tmp_path / "model.joblib")
    table[["height", "width"]].to_csv(tmp_path / "turned.csv", index=False)
    given = ["--model", tmp_path / "model.joblib", "--trust", "--data", tmp_path / "turned.csv"]
    unusable(
        run("commit", *given, "--out", tmp_path / "out"),
        "in their order: width, height; got height, width.",
    )
    table.assign(id=1).to_csv(tmp_path / "wide.csv", index=False)
    given[-1] = tmp_path / "wide.csv"
    unusable(
        run("commit", *given, "--out", tmp_path / "out"),
        "got width, height, y, id. Exclude columns that are not features: --drop y --drop id.",
    )


def test_a_model_without_a_circuit_is_told_which_models_have_one(provider, tmp_path):
    table = pd.read_csv(provider / "train.csv")
    forest = RandomForestClassifier(2).fit(table[["width", "height"]], table["y"])
    joblib.dump(forest, tmp_path / "model.joblib")
    given = ["--model", tmp_path / "model.joblib", "--trust", "--data", provider / "train.csv"]
    unusable(
        run("commit", *given, "--drop", "y", "--out", tmp_path / "out"),
        "Audits can be proven for a LogisticRegression, an MLPClassifier with activation='relu',",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--commitment", "model"], "--commitment: pass the folder model/public."),
        (["--bins", 6], "between 1 and the committed 5, got 6"),
        (["--jobs", 0], "--jobs must be a number of processes, or -1 for all cores"),
        (["--level", "verdict"], "needs a commitment made with verdict_samples"),
        (["--challenge", "ref.csv"], "--challenge requires --level predictions"),
        (["--out", "model/public/audit"], "--out must not be in "),
        (["--alpha", 0.1], "holds another audit"),
        (
            ["--data", "bad.csv"],
            "Column 'height' of bad.csv must contain finite numbers, got 'tall'",
        ),
        (["--data", "far.csv"], "outside the committed range"),
    ],
)
def test_what_cannot_be_proven_is_said_in_one_line(provider, monkeypatch, options, message):
    monkeypatch.chdir(provider)
    table = pd.read_csv("ref.csv")
    table.astype({"height": object}).replace({"height": {table["height"][2]: "tall"}}).to_csv(
        "bad.csv", index=False
    )
    table.assign(width=1e6).to_csv("far.csv", index=False)
    given = [*reference("model/public"), "--out", "bundle", "--bins", 5, "--quiet"]
    unusable(run("prove", *given, *options), message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Pass the input with --input or --values."),
        (["--input", "ref.csv"], "ref.csv must have one row, got 20"),
        (["--values", "1,2", "--input", "ref.csv"], "not both"),
        (["--values", "1,2", "--drop", "y"], "--drop applies to --input only"),
        (["--values", "1,two"], "--values: "),
        (["--values", "1,nan"], "must be finite"),
        (["--values", "1,2,3"], "--values has 3 features, but the committed model has 2."),
        (["--values", "1e6,0"], "outside the committed range"),
        (["--values", "0.5,0.25"], "does not hold the provider's keys"),
    ],
)
def test_what_cannot_be_attested_is_said_in_one_line(auditor, tmp_path, options, message):
    given = ["--commitment", "published", "--nonce", "1", "--out", tmp_path / "a.json"]
    unusable(run("attest", *given, *options), message)
    assert not (tmp_path / "a.json").exists()


def test_no_older_result_stays_where_the_command_fails(auditor, tmp_path):
    old, certificate = tmp_path / "v.json", tmp_path / "certificate.json"
    certificate.write_text("{}", encoding="utf-8")
    for more, message in (
        (["--certificate", certificate, "--sign", "ref.csv"], "is never replaced"),
        (["--certificate", tmp_path / "new.json"], "must be used together"),
        (["--classes", "other"], "--classes must be the classes of the commitment"),
    ):
        old.write_text('{"passed": true}', encoding="utf-8")
        assert message in verify("--json", old, *more).stderr
        assert not old.exists() or "passed" not in json.loads(old.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["commit", "prove", "verify", "attest", "check"])
def test_without_the_extra_one_line_names_it(auditor, monkeypatch, name):
    def absent(module):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(extras, "import_module", absent)
    given = {
        "commit": ["--model", "ref.csv", "--data", "ref.csv", "--out", "new"],
        "prove": [*reference("published"), "--out", "new"],
        "verify": ["--audit", "bundle", *reference("published"), *ASKED],
        "attest": ["--commitment", "published", "--nonce", "1", "--out", "a.json"],
        "check": ["--commitment", "published", "--attestation", "ref.csv", "--nonce", "1"],
    }
    unusable(run(name, *given[name]), "ezkl is needed for this and is not installed")
    assert run(name, *given[name]).stderr.rstrip().endswith("pip install 'skuq[zk]'")


@pytest.mark.parametrize("error", [KeyError("lost"), KeyboardInterrupt(), SystemExit(FAILED)])
def test_a_crash_is_no_verdict(auditor, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(zk, "verify", fail)
    result = verify()
    assert (result.exit_code, result.stdout) == (1, "")


# --- usage -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--predictions'."),
        (
            ["--predictions", "ref.csv", "--label", "y"],
            "specify the columns of probabilities (--proba)",
        ),
        (["verify"], "Missing option '--audit'."),
        (
            ["verify", "--audit", "bundle", *reference("published"), *ASKED[:-2]],
            "Missing option '--classes'.",
        ),
        (["nonsense"], "No such command 'nonsense'."),
        (["--alpha", "0.1", "verify"], "--alpha precedes 'verify'"),
        (["--label", "y", "check"], "--label precedes 'check'"),
    ],
)
def test_options_belong_to_the_command_they_follow(auditor, arguments, message):
    unusable(run(*arguments), message)
