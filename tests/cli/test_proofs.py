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

from skuq import imports
from skuq.cli._main import FAILED, main
from skuq.datasets import make_gaussian_classes

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq import zk

pytestmark = pytest.mark.slow  # they share proofs that take a minute

ASKED = ["--alpha", "0.05", "--bins", "5", "--confidence-level", "0.95", "--level", "bins"]
CLASSES = ["--classes", "0,1,2"]
TEST = "--test-string"  # the provider's own reference string


def run(*arguments):
    return CliRunner().invoke(main, ["audit", *map(str, arguments)])


def done(*arguments):
    """What a command printed that did what it should."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def verify(*arguments, audit="bundle", data="ref.csv", label="y", commitment="published"):
    given = [audit, commitment, data, "--label", label, "--keys", "keys", TEST]
    return run("verify", *given, *ASKED, *CLASSES, *arguments)


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
    table_of(X, y)[["width", "height"]].to_csv(folder / "train.csv", index=False)
    table_of(*make_gaussian_classes((8, 8, 4), random_state=1)[:2]).to_csv(
        folder / "ref.csv", index=False
    )
    given = ["model.joblib", "train.csv", "model", "--trust"]
    with chdir(folder):
        told = done("commit", *given, "--proofs", 3, "--attestations", 1, "--bins", 5)
        given = ["model/public", "ref.csv", "bundle", "--label", "y", "--jobs", 2]
        told += done("prove", *given, *ASKED)
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


@pytest.fixture(scope="module")
def checked(provider, tmp_path_factory):
    """The auditor's folder, and what the auditor's own call printed."""
    folder = tmp_path_factory.mktemp("auditor")
    shutil.copytree(provider / "model" / "public", folder / "published")
    shutil.copytree(provider / "bundle", folder / "bundle")
    shutil.copy(provider / "ref.csv", folder)
    away = provider.rename(provider.with_name("elsewhere"))
    try:  # nothing of the provider is where it was while the auditor verifies
        given = ["bundle", "published", "ref.csv", "--label", "y", "--keys", "keys", TEST]
        with chdir(folder):
            told = done("verify", *given, *ASKED, *CLASSES, "--json", "verified.json")
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
    given = ["verify", "bundle", "published", "ref.csv", "--label", "y", "--keys", "keys"]
    given += [*ASKED, *CLASSES]
    rejected(run(*given), "is not that of the public ceremony")
    shutil.copy("published/srs", tmp_path / "string")
    supplied = run(*given, "--srs", tmp_path / "string", "--json", tmp_path / "verified.json")
    assert supplied.exit_code == 0, supplied.output
    sentence = "NOT the public ceremony's string: trusted because you supplied it"
    assert supplied.stdout.startswith(f"Reference string: {sentence}.")
    assert f"- The reference string is {sentence}." in supplied.stdout.splitlines()
    record = json.loads((tmp_path / "verified.json").read_text(encoding="utf-8"))
    assert (record["reference_string"], record["reference_string_is"]) == ("supplied", sentence)


@pytest.mark.parametrize("option", ["--srs", "--keys", "--challenge", "--regions", "DATA"])
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
    asked = verify(data=path) if option == "DATA" else verify(*given)
    unusable(asked, f"{option} must not be in ")


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
    sent = tmp_path / "sent"
    sent.mkdir()
    question = ["--label", "y", "--alpha", 0, "--confidence-level", "none", "--bins", 2]
    question += ["--level", "predictions"]
    given = ["prove", provider / "model" / "public", "ref.csv", sent, *question]
    first = run(*given)
    assert first.exit_code == 0, first.output
    assert "skuq audit challenge " in first.stdout
    assert "Then repeat this command with --challenge" in first.stdout
    answer = tmp_path / "challenge.json"
    drawn = ["challenge", sent, "published", "ref.csv"]
    assert run(*drawn, answer, "--label", "y", "--false-share", 0.8).exit_code == 0
    unusable(run(*drawn, answer, "--label", "y"), "challenged only once")
    second = run(*given, "--challenge", answer)
    assert second.exit_code == 0, second.output
    more = tmp_path / "more.json"
    record = json.loads(answer.read_text(encoding="utf-8"))
    more.write_text(json.dumps({**record, "n_proven": 228}), encoding="utf-8")
    unproven = verify("--challenge", more, *question, audit=sent)
    rejected(unproven, "Only 3 of 20 predictions were proven, but 20 are needed")
    found = verify("--challenge", answer, *question, audit=sent)
    assert found.exit_code == FAILED, found.output  # 20 samples are never right exactly
    lines = found.stdout.splitlines()
    assert lines[2] == "Failed: confidence is wrong by more than alpha = 0."
    assert lines[4].split() == ["classes", "0,", "1,", "2"]
    assert lines[6].split() == ["level", "predictions"]
    assert "3 of 20 reported predictions were proven" in found.stdout
    assert any(line.endswith(("too low", "too high")) for line in lines)
    rejected(verify(*question, audit=sent), "needs the auditor's own challenge")
    own = tmp_path / "own.json"
    assert run(*drawn, own, "--label", "y").exit_code == 0
    other = verify("--challenge", own, *question, audit=sent)
    rejected(other, "answers a different challenge")


def test_a_challenge_needs_reported_confidences(auditor, tmp_path):
    result = run("challenge", "bundle", "published", "ref.csv", tmp_path / "c.json", "--label", "y")
    rejected(result, "reported.json is missing")


# --- single predictions ----------------------------------------------------------------------


def test_a_client_checks_an_attested_prediction(provider, auditor, tmp_path):
    row = pd.read_csv("ref.csv").head(1)
    row.to_csv(tmp_path / "row.csv", index=False)
    where = [provider / "model" / "public", tmp_path / "a.json"]
    made = run("attest", *where, "--input", tmp_path / "row.csv", "--nonce", "case 12")
    assert made.exit_code == 0, made.output
    x = row[["width", "height"]].to_numpy()
    values = ",".join(map(repr, x[0].tolist()))
    given = ["check", tmp_path / "a.json", "published", "--keys", "keys", TEST]
    told = done(*given, "--input", values, "--nonce", "case 12")
    found = zk.check(
        tmp_path / "a.json",
        "published",
        x=x[0],
        nonce="case 12",
        allow_test_string=True,
        keys="keys",
    )
    model = joblib.load(provider / "model.joblib")
    assert found.label == model.predict(x)[0]
    assert found.confidence == pytest.approx(model.predict_proba(x).max(), abs=0.005)
    assert found.x == x[0].tolist()  # to the last bit
    assert told.splitlines()[1:] == [
        f"label:      {found.label}",
        f"confidence: {found.confidence:.4f}",
        "classes:    0, 1, 2",
    ]
    assert told.startswith("Reference string: TEST ONLY")
    assert done(*given, "--input", tmp_path / "row.csv", "--nonce", "case 12") == told
    given += ["--nonce", "case 12"]
    unusable(run(*given), "Missing option '--input'")
    rejected(run(*given, "--input", "0.5,0.25"), "for a different input")
    given += ["--input", values]
    rejected(run(*given, "--nonce", "case 13"), "a different nonce")
    record = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    record["statement"]["confidence"] -= 1
    (tmp_path / "a.json").write_text(json.dumps(record), encoding="utf-8")
    rejected(run(*given), "does not hold")


def test_a_class_that_looks_like_another_differs_on_the_clients_screen(auditor, monkeypatch):
    label = "0\u3164"  # as software that lacks the rules on names could commit to
    found = zk.Attestation(label, 0.5, [0.5, 0.25], {}, "test", ["0", label])
    monkeypatch.setattr(zk, "check", lambda *_, **__: found)
    told = done("check", "ref.csv", "published", "--input", "0.5,0.25", "--nonce", "1", TEST)
    assert "('0\\u3164')" in told.splitlines()[1]


# --- what cannot be used ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label", "z"], "ref.csv has no column 'z'. It has width, height, y."),
        (["--label", "width"], "--label: 'width' is a feature of the committed model"),
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


def test_columns_are_selected_by_their_committed_names(auditor, tmp_path):
    table = pd.read_csv("ref.csv").assign(**{"the id": 1})
    table[["the id", "height", "y", "width"]].to_csv(tmp_path / "wide.csv", index=False)
    assert verify(data=tmp_path / "wide.csv").exit_code == 0
    table.drop(columns="width").to_csv(tmp_path / "narrow.csv", index=False)
    unusable(verify(data=tmp_path / "narrow.csv"), "has no column 'width'")


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({}, [], "is not empty; choose a different folder"),
        ({1: "one.csv"}, [], "has 1 features (width), but the model has 2"),
        ({0: "train.csv"}, [], "MODEL: train.csv cannot be loaded ("),
        ({0: "list.joblib", 2: "new"}, [], "list"),
        ({2: "new"}, ["--srs", "train.csv", "--tolerance", 1e-9], "tolerance"),
        ({}, ["--proofs", 0], "Invalid value for '--proofs'"),
    ],
)
def test_what_cannot_be_committed_to_is_said_in_one_line(
    provider, monkeypatch, files, options, message
):
    monkeypatch.chdir(provider)
    joblib.dump([1], "list.joblib")
    pd.read_csv("train.csv")[["width"]].to_csv("one.csv", index=False)
    given = {0: "model.joblib", 1: "train.csv", 2: "model", **files}
    unusable(run("commit", *given.values(), "--trust", *options), message)
    assert not Path("new", "private").exists()


class Forged:
    """An object whose pickle writes a file when it is loaded."""

    def __reduce__(self):
        return os.system, ("echo > pwned",)


def test_a_pickled_model_runs_nothing_without_trust(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    joblib.dump(Forged(), "model.joblib")
    table_of(np.eye(2), [0, 1]).to_csv("train.csv", index=False)
    given = ["model.joblib", "train.csv", "out"]
    result = run("commit", *given)
    unusable(result, "is loaded as pickled objects, which run code of whoever made them")
    assert "say so (--trust). A file written by skops.io.dump" in result.stderr
    assert not Path("pwned").exists()
    run("commit", *given, "--trust")
    assert Path("pwned").exists()  # so the file is one that would have run


def test_columns_of_the_calibration_data_are_selected_by_name(provider, tmp_path):
    table = pd.read_csv(provider / "train.csv")
    model = LogisticRegression().fit(table[["width", "height"]], table["width"] > 0)
    joblib.dump(model, tmp_path / "model.joblib")
    table[["height"]].to_csv(tmp_path / "narrow.csv", index=False)
    given = [tmp_path / "model.joblib", tmp_path / "narrow.csv", tmp_path / "out", "--trust"]
    unusable(run("commit", *given), "has no column 'width'")


def test_a_model_without_a_circuit_is_told_which_models_have_one(provider, tmp_path):
    table = pd.read_csv(provider / "train.csv")
    forest = RandomForestClassifier(2).fit(table, table["width"] > 0)
    joblib.dump(forest, tmp_path / "model.joblib")
    given = [tmp_path / "model.joblib", provider / "train.csv", tmp_path / "out", "--trust"]
    unusable(
        run("commit", *given),
        "Audits can be proven for a LogisticRegression, an MLPClassifier with activation='relu',",
    )


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({0: "model"}, [], "COMMITMENT: pass the folder model/public."),
        ({}, ["--bins", 6], "n_bins=6, which must be from 1 to 5, is impossible"),
        ({}, ["--jobs", 0], "--jobs must be a number of processes, or -1 for all cores"),
        ({}, ["--level", "verdict"], "needs a commitment made with verdict_samples"),
        ({}, ["--challenge", "ref.csv"], "--challenge requires --level predictions"),
        ({2: "model/public/audit"}, [], "OUT must not be in "),
        ({}, ["--alpha", 0.1], "holds another audit"),
        ({1: "bad.csv"}, [], "Column 'height' of bad.csv must contain finite numbers, got 'tall'"),
        ({1: "far.csv"}, [], "outside the committed range"),
    ],
)
def test_what_cannot_be_proven_is_said_in_one_line(provider, monkeypatch, files, options, message):
    monkeypatch.chdir(provider)
    table = pd.read_csv("ref.csv")
    table.astype({"height": object}).replace({"height": {table["height"][2]: "tall"}}).to_csv(
        "bad.csv", index=False
    )
    table.assign(width=1e6).to_csv("far.csv", index=False)
    given = {0: "model/public", 1: "ref.csv", 2: "bundle", **files}
    unusable(run("prove", *given.values(), "--label", "y", *ASKED, *options), message)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ref.csv", "ref.csv must have one row, got 20"),
        ("1,two", "--input: no such file, and could not convert"),
        ("1,nan", "must have 2 finite numbers"),
        ("1,2,3", "must have 2 finite numbers"),
        ("1e6,0", "outside the committed range"),
        ("0.5,0.25", "does not hold the provider's keys"),
    ],
)
def test_what_cannot_be_attested_is_said_in_one_line(auditor, tmp_path, given, message):
    asked = ["published", tmp_path / "a.json", "--nonce", "1", "--input", given]
    unusable(run("attest", *asked), message)
    assert not (tmp_path / "a.json").exists()


def test_no_older_result_stays_where_the_command_fails(auditor, tmp_path):
    old = tmp_path / "v.json"
    old.write_text('{"passed": true}', encoding="utf-8")
    found = verify("--json", old, "--classes", "other")
    assert "--classes must be the classes of the commitment" in found.stderr
    assert "passed" not in json.loads(old.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["commit", "prove", "verify", "attest", "check"])
def test_without_the_extra_one_line_names_it(auditor, monkeypatch, name):
    def absent(module):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(imports, "import_module", absent)
    given = {
        "commit": ["ref.csv", "ref.csv", "new"],
        "prove": ["published", "ref.csv", "new", "--label", "y", *ASKED],
        "verify": ["bundle", "published", "ref.csv", "--label", "y", *ASKED, *CLASSES],
        "attest": ["published", "a.json", "--nonce", "1", "--input", "1,2"],
        "check": ["ref.csv", "published", "--nonce", "1", "--input", "1,2"],
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
            "Specify the columns of probabilities (--proba)",
        ),
        (["verify"], "Missing argument 'AUDIT'."),
        (
            ["verify", "bundle", "published", "ref.csv", "--label", "y", *ASKED],
            "Missing option '--classes'.",
        ),
        (["nonsense"], "No such command 'nonsense'."),
        (["--alpha", "0.1", "verify"], "--alpha precedes 'verify'"),
        (["--label", "y", "check"], "--label precedes 'check'"),
    ],
)
def test_options_belong_to_the_command_they_follow(auditor, arguments, message):
    unusable(run(*arguments), message)
