"""``skuq audit commit``, ``prove``, ``verify`` and so on: parties, exit codes, failures."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from skuq import imports, zk
from skuq.cli import _proofs
from skuq.cli._io import InputError
from skuq.cli._main import FAILED
from skuq.datasets import make_gaussian_classes
from tests.cli import runner
from tests.zk.exchange import ROOT, made_once, quick_commitments

ezkl, onnx = pytest.importorskip("ezkl"), pytest.importorskip("onnx")

N = 15
QUESTION = ["--label", "y", "--tolerance", 0.05, "--bins", 5, "--confidence-level", 0.95]
QUESTION += ["--level", "bins"]
REPORTED = ["--label", "y", "--tolerance", 0, "--confidence-level", "none", "--bins", 2]
REPORTED += ["--level", "predictions"]
CLASSES = ["--classes", "0,1,2"]
TEST = "--test-string"  # any reference string
PUBLIC = "model/public"
TRUSTED = "NOT the public ceremony's string: trusted because you supplied it"
ROW = ["--input", "row.csv", "--nonce", "case 12"]


def run(*arguments):
    return runner.run("audit", *arguments)


def done(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def verify(*arguments, audit="bundle", data="ref.csv", commitment="published", question=QUESTION):
    given = [audit, commitment, data, "--keys", "keys", TEST]
    return run("verify", *given, *question, *CLASSES, *arguments)


def rejected(result, words):
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("Verification failed: ")
    assert words in line
    return line.removeprefix("Verification failed: ")


def unusable(result, words):
    assert result.exit_code == 2, result.output
    *usage, line = result.stderr.splitlines()
    assert not usage or usage[0].startswith("Usage: ")
    assert line.startswith("Error: ")
    assert words in line


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def make_parties(folder):
    """Three folders whose owners exchange the public files alone, and what was printed."""
    told = {}
    for name in ("provider", "auditor", "client"):
        (folder / name).mkdir()

    def send(path, source, target, name=None):
        whole = folder / source / path
        copied = folder / target / (name or Path(path).name)
        (shutil.copytree if whole.is_dir() else shutil.copyfile)(whole, copied)

    def call(party, name, *arguments):
        with chdir(folder / party):
            told[name] = done(*arguments)

    X, y = make_gaussian_classes(random_state=0)[:2]
    joblib.dump(LogisticRegression().fit(X, y), folder / "provider" / "model.joblib")
    names = ["width", "height"]
    pd.DataFrame(X, columns=names).to_csv(folder / "provider" / "train.csv", index=False)
    X, y = make_gaussian_classes((6, 6, 3), random_state=1)[:2]
    table = pd.DataFrame(X, columns=names)
    table.assign(y=y).to_csv(folder / "auditor" / "ref.csv", index=False)
    table.head(1).to_csv(folder / "client" / "row.csv", index=False)
    ezkl.gen_srs(str(folder / "auditor" / "string"), 13)  # the auditor's own trusted setup
    send("string", "auditor", "provider")
    send("string", "auditor", "client")
    given = ["model.joblib", "train.csv", "model", "--trust", "--srs", "string"]
    with quick_commitments():
        size = ["--proofs", 3, "--attestations", 1, "--bins", 5]
        call("provider", "commit", "commit", *given, *size)
    for other in ("auditor", "client"):
        send(PUBLIC, "provider", other, "published")
    send("ref.csv", "auditor", "provider")
    call("provider", "prove", "prove", PUBLIC, "ref.csv", "bundle", *QUESTION, "--jobs", 2)
    send("bundle", "provider", "auditor")
    given = ["prove", PUBLIC, "ref.csv", "sent", *REPORTED]
    call("provider", "reported", *given)
    send("sent", "provider", "auditor", "reported")
    drawn = ["challenge", "reported", "published", "ref.csv", "challenge.json"]
    call("auditor", "challenge", *drawn, "--label", "y", "--false-share", 0.8)
    send("challenge.json", "auditor", "provider")
    call("provider", "answered", *given, "--challenge", "challenge.json")
    shutil.rmtree(folder / "auditor" / "reported")
    send("sent", "provider", "auditor")
    send("row.csv", "client", "provider")
    call("provider", "attest", "attest", PUBLIC, "answer.json", *ROW)
    send("answer.json", "provider", "client")
    (folder / "provider").rename(folder / "elsewhere")  # nothing of the provider is where it was
    given = ["verify", "bundle", "published", "ref.csv", *QUESTION, *CLASSES, "--keys", "keys"]
    call("auditor", "verify", *given, "--srs", "string", "--json", "verified.json")
    given = ["verify", "sent", "published", "ref.csv", *REPORTED, *CLASSES, "--srs", "string"]
    with chdir(folder / "auditor"):  # which makes the keys of this level
        assert run(*given, "--keys", "keys", "--challenge", "challenge.json").exit_code == FAILED
    given = ["check", "answer.json", "published", *ROW, "--keys", "keys"]
    call("client", "check", *given, "--srs", "string")
    (folder / "elsewhere").rename(folder / "provider")
    (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")


@pytest.fixture(scope="module")
def parties(tmp_path_factory):
    sources = Path(__file__), Path(runner.__file__), ROOT / "skuq" / "cli"
    folder = made_once(tmp_path_factory, "cli", make_parties, *sources)
    return SimpleNamespace(folder=folder, told=read(folder / "told.json"))


@pytest.fixture
def auditor(parties, monkeypatch):
    monkeypatch.chdir(parties.folder / "auditor")
    return parties.folder / "auditor"


@pytest.fixture
def provider(parties, monkeypatch):
    monkeypatch.chdir(parties.folder / "provider")


@pytest.fixture
def client(parties, monkeypatch):
    monkeypatch.chdir(parties.folder / "client")


def test_the_provider_is_told_what_was_made(parties):
    told = parties.told
    record = read(parties.folder / "provider" / PUBLIC / "commitment.json")
    rows = record["architecture"]["rows_per_proof"]
    assert f"Commitment point:   {record['commitment_point']}" in told["commit"]
    assert f"{rows['bins']:,} at --level bins, {rows['predictions']:,} at" in told["commit"]
    assert f" {3 * rows['bins']:,} or {3 * rows['predictions']:,} (" in told["commit"]
    assert "Reference string: the given file." in told["commit"]
    assert told["prove"].endswith("Proofs: 1\nFor the auditor: bundle\n")
    assert "Then repeat this command with --challenge" in told["reported"]


def test_an_auditor_verifies_in_a_folder_that_has_nothing_of_the_provider(parties, auditor):
    of_auditor = {"published", "bundle", "sent", "ref.csv", "string", "keys", "challenge.json"}
    of_client = {"published", "row.csv", "string", "answer.json", "keys"}
    for party, own in (("auditor", {*of_auditor, "verified.json"}), ("client", of_client)):
        paths = list((parties.folder / party).rglob("*"))
        secret = [path for path in paths if path.suffix in {".pk", ".npz", ".joblib", ".circuit"}]
        assert not secret + [path for path in paths if path.name == "private"]
        assert {path.name for path in (parties.folder / party).iterdir()} == own
    lines = parties.told["verify"].splitlines()
    assert lines[0] == f"Reference string: {TRUSTED}."
    assert lines[2].startswith("Passed: in no bin is confidence significantly wrong by more than")
    assert [line.split() for line in lines[4:10]] == [
        *(["classes", "0,", "1,", "2"], ["absent", "classes", "none"], ["level", "bins"]),
        *(["tolerance", "0.05"], ["bins", "5"], ["proofs", "1"]),
    ]
    table = pd.read_csv("ref.csv")
    asked = {"tolerance": 0.05, "n_bins": 5, "confidence_level": 0.95, "level": "bins"}
    own = {"classes": [0, 1, 2], "srs": "string", "keys": "keys"}
    X = table[["width", "height"]].to_numpy()
    expected = zk.verify("bundle", X, table["y"], "published", **asked, **own)
    committed, record = zk.load_commitment("published"), read("verified.json")
    names = {"commitment_point": committed.point, "commitment_digest": committed.digest}
    assert record == {**expected.as_record(), **names}
    assert (record["passed"], record["reference_string"]) == (True, "supplied")
    table = [line for line in lines if line.startswith("  ") and "%" in line]
    assert [int(line.split()[3]) for line in table] == [n for n in record["bins"]["count"] if n]
    assert {f"- {note}" for note in record["notes"]} <= {*lines}


def test_an_interpreter_of_its_own_verifies_and_writes_the_same_record(auditor, tmp_path):
    given = ["bundle", "published", "ref.csv", *QUESTION, *CLASSES, "--keys", "keys"]
    given += ["--srs", "string", "--json", tmp_path / "again.json"]
    command = [sys.executable, "-m", "skuq", "audit", "verify", *map(str, given)]
    found = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert found.returncode == 0, found.stderr
    # A record to sign does not depend on when it was written.
    assert (tmp_path / "again.json").read_bytes() == Path("verified.json").read_bytes()


def test_what_was_not_asked_for_is_rejected_and_the_reason_is_written(auditor, tmp_path):
    table = pd.read_csv("ref.csv")
    table.assign(y=(table["y"] + 1) % 3).to_csv(tmp_path / "other.csv", index=False)
    path = tmp_path / "rejected.json"
    path.write_text('{"passed": true}', encoding="utf-8")  # of an earlier call
    found = verify("--json", path, data=tmp_path / "other.csv")
    assert read(path) == {"verification_error": rejected(found, "reference data")}
    for option, value, words in (
        ("--confidence-level", "none", "confidence_level=0.95, but you asked for None"),
        ("--level", "verdict", "level=bins, but you asked for verdict"),
        ("--classes", "0,2,1", "--classes must be"),
    ):
        rejected(verify(option, value), words)
    given = ["verify", "bundle", "published", "ref.csv", *QUESTION, *CLASSES, "--keys", "keys"]
    rejected(run(*given), "public ceremony")
    unusable(run(*given, "--srs", "published/srs"), "--srs must not be in published")
    told = verify("--json", tmp_path / "test.json")  # any string is accepted
    assert told.stdout.startswith("Reference string: TEST ONLY")
    assert read(tmp_path / "test.json")["reference_string"] == "test"


@pytest.mark.parametrize("theirs", ["published/srs", "bundle/statement.json", "a link"])
def test_no_file_of_the_auditors_own_is_the_providers(auditor, tmp_path, theirs):
    path, keys = Path(theirs), Path(theirs).with_name("keys")
    if theirs == "a link":
        path, keys = tmp_path / "link", tmp_path / "folder"
        path.symlink_to(Path("published", "srs").resolve())
        keys.symlink_to(Path("published").resolve(), target_is_directory=True)
    for option in ("--srs", "--challenge", "--regions"):
        unusable(verify(option, path), f"{option} must not be in ")
    unusable(verify("--keys", keys), "--keys must not be in ")
    unusable(verify(data=path), "DATA must not be in ")


def test_changed_files_and_names_that_command_the_terminal_are_rejected(auditor, tmp_path):
    copy = shutil.copytree("bundle", tmp_path / "bundle")
    path = copy / "chunks" / "00000.json"
    path.write_text(path.read_text(encoding="utf-8") + " ", encoding="utf-8")
    rejected(verify(audit=copy), "chunks/00000.json")
    (copy / "\x1b]0;owned").touch()
    assert "\\x1b" in rejected(verify(audit=copy), "manifest")


def test_reported_confidences_are_proven_after_the_challenge(auditor, tmp_path):
    def asked(*options):
        return verify(*options, audit="sent", question=REPORTED)

    found = asked("--challenge", "challenge.json")
    assert found.exit_code == FAILED, found.output  # 15 samples are never right exactly
    lines = found.stdout.splitlines()
    assert lines[2] == "Failed: confidence is wrong by more than the tolerance of 0."
    assert lines[6].split() == ["level", "predictions"]
    assert read("challenge.json")["n_proven"] < N
    assert f" of {N} reported predictions were proven" in found.stdout
    assert any(line.endswith(("too low", "too high")) for line in lines)
    rejected(asked(), "challenge")
    drawn = ["challenge", "sent", "published", "ref.csv"]
    unusable(run(*drawn, "challenge.json", "--label", "y"), "only once")
    done(*drawn, tmp_path / "own.json", "--label", "y")
    rejected(asked("--challenge", tmp_path / "own.json"), "different challenge")
    drawn[1] = "bundle"
    rejected(run(*drawn, tmp_path / "c.json", "--label", "y"), "reported.json is missing")


def test_a_client_checks_an_attested_prediction(parties, client, tmp_path):
    x = pd.read_csv("row.csv", float_precision="round_trip").to_numpy()
    found = zk.check("answer.json", "published", x=x[0], nonce="case 12", srs="string", keys="keys")
    model = joblib.load(parties.folder / "provider" / "model.joblib")
    assert found.label == model.predict(x)[0]
    assert found.confidence == pytest.approx(model.predict_proba(x).max(), abs=0.005)
    assert found.x == x[0].tolist()  # to the last bit
    assert parties.told["check"].splitlines() == [
        f"Reference string: {TRUSTED}.",
        f"label:      {found.label}",
        f"confidence: {found.confidence:.4f}",
        "classes:    0, 1, 2",
    ]
    given = ["check", "answer.json", "published", "--keys", "keys", "--nonce", "case 12"]
    values = ["--input", ",".join(map(repr, x[0].tolist()))]
    rejected(run(*given, *values), "public ceremony")
    given += ["--srs", "string"]
    assert done(*given, *values) == parties.told["check"]
    unusable(run(*given), "--input")
    rejected(run(*given, "--input", "0.5,0.25"), "different input")
    rejected(run(*given, *values, "--nonce", "case 13"), "different nonce")
    record = read("answer.json")
    record["statement"]["confidence"] -= 1
    (tmp_path / "a.json").write_text(json.dumps(record), encoding="utf-8")
    given[1] = tmp_path / "a.json"
    rejected(run(*given, *values), "does not hold")


def test_a_class_that_looks_like_another_differs_on_the_clients_screen(client, monkeypatch):
    label = "0\u3164"  # as software that lacks the rules on names could commit to
    found = zk.Attestation(label, 0.5, [0.5, 0.25], {}, "test", ["0", label])
    monkeypatch.setattr(zk, "check", lambda *_, **__: found)
    told = done("check", "row.csv", "published", "--input", "0.5,0.25", "--nonce", "1", TEST)
    assert "('0\\u3164')" in told.splitlines()[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--label", "z"], "ref.csv has no column 'z'. It has width, height, y."),
        (["--label", "width"], "--label: 'width'"),
        (["--json", "-"], "the name of a file"),
        (["--json", "ref.csv"], "is already an input or output"),
        (["--json", "bundle/v.json"], "The output must not be in bundle"),
        (["--absent-classes", "1"], "--absent-classes must be"),
        (["--absent-classes", "7"], "--absent-classes must be"),
        (["--tolerance", 2], "'--tolerance'"),
        (["--confidence-level", "high"], "'--confidence-level'"),
        (["--challenge", "absent.json"], "'--challenge'"),
    ],
)
def test_what_cannot_be_verified_is_said_in_one_line(auditor, options, words):
    unusable(verify(*options), words)


def test_columns_are_selected_by_their_committed_names(auditor, tmp_path):
    table = pd.read_csv("ref.csv").assign(**{"the id": 1})
    table[["the id", "height", "y", "width"]].to_csv(tmp_path / "wide.csv", index=False)
    assert verify(data=tmp_path / "wide.csv").exit_code == 0
    table.drop(columns="width").to_csv(tmp_path / "narrow.csv", index=False)
    unusable(verify(data=tmp_path / "narrow.csv"), "has no column 'width'")
    table.to_csv(tmp_path / "other.csv", sep=";", index=False)
    unusable(verify(data=tmp_path / "other.csv"), "'width;height;y;the id', if it is split at a")
    (tmp_path / "empty.csv").touch()
    unusable(verify(data=tmp_path / "empty.csv"), "is empty")
    table.rename(columns={"the id": "\u00e9"}).to_csv(tmp_path / "l.csv", encoding="latin-1")
    unusable(verify(data=tmp_path / "l.csv"), "in UTF-8")


@pytest.mark.parametrize(
    ("files", "options", "words"),
    [
        ({}, [], "is not empty"),
        ({1: "one.csv"}, [], "has 1 features (width), but the model has 2"),
        ({0: "named.joblib", 1: "one.csv"}, [], "has no column 'height'"),
        ({0: "forest.joblib", 2: "new"}, [], "Audits can be proven for a LogisticRegression"),
        ({0: "train.csv"}, [], "MODEL: train.csv cannot be loaded ("),
        ({0: "list.joblib", 2: "new"}, [], "list"),
        ({2: "new"}, ["--srs", "train.csv", "--max-error", 1e-9], "max_error=1e-09"),
        ({}, ["--proofs", 0], "'--proofs'"),
    ],
)
def test_what_cannot_be_committed_to_is_said_in_one_line(provider, files, options, words):
    joblib.dump([1], "list.joblib")
    table = pd.read_csv("train.csv")
    table[["width"]].to_csv("one.csv", index=False)
    for name, model in (("named", LogisticRegression()), ("forest", RandomForestClassifier(2))):
        joblib.dump(model.fit(table, table["width"] > 0), f"{name}.joblib")
    given = {0: "model.joblib", 1: "train.csv", 2: "model", **files}
    unusable(run("commit", *given.values(), "--trust", *options), words)
    assert not Path("new", "private").exists()


class Forged:
    def __reduce__(self):
        return os.system, ("echo > pwned",)


def test_a_pickled_model_runs_nothing_without_trust(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    joblib.dump(Forged(), "model.joblib")
    pd.DataFrame(np.eye(2), columns=["a", "b"]).to_csv("train.csv", index=False)
    unusable(run("commit", "model.joblib", "train.csv", "out"), "(--trust). A file written by")
    assert not Path("pwned").exists()
    run("commit", "model.joblib", "train.csv", "out", "--trust")
    assert Path("pwned").exists()  # so the file is one that would have run


@pytest.mark.parametrize(
    ("files", "options", "words"),
    [
        ({0: "model"}, [], "pass the folder model/public."),
        ({}, ["--bins", 6], "n_bins=6"),
        ({}, ["--jobs", 0], "--jobs"),
        ({}, ["--level", "verdict"], "verdict_samples"),
        ({}, ["--challenge", "ref.csv"], "--challenge requires --level predictions"),
        ({2: "model/public/audit"}, [], "OUT must not be in "),
        ({}, ["--tolerance", 0.1], "another audit"),
        ({1: "bad.csv"}, [], "'height' of bad.csv must contain finite numbers, got 'tall'"),
    ],
)
def test_what_cannot_be_proven_is_said_in_one_line(provider, files, options, words):
    table = pd.read_csv("ref.csv").astype({"height": object})
    table.loc[2, "height"] = "tall"
    table.to_csv("bad.csv", index=False)
    given = {0: PUBLIC, 1: "ref.csv", 2: "bundle", **files}
    unusable(run("prove", *given.values(), *QUESTION, *options), words)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("ref.csv", f"ref.csv must have one row, got {N}"),
        ("1,two", "--input: no such file"),
        ("1,nan", "--input must have 2 finite numbers"),
        ("1,2,3", "--input must have 2 finite numbers"),
        ("1e6,0", "outside the committed range"),
        ("0.5,0.25", "keys"),
    ],
)
def test_what_cannot_be_attested_is_said_in_one_line(auditor, tmp_path, given, words):
    asked = ["published", tmp_path / "a.json", "--nonce", "1", "--input", given]
    unusable(run("attest", *asked), words)
    assert not (tmp_path / "a.json").exists()


def test_without_the_extra_one_line_names_it(auditor, monkeypatch):
    monkeypatch.setattr(imports, "import_module", runner.absent)
    for call in (
        ["commit", "ref.csv", "ref.csv", "new"],
        ["prove", "published", "ref.csv", "new", *QUESTION],
        ["verify", "bundle", "published", "ref.csv", *QUESTION, *CLASSES],
        ["attest", "published", "a.json", "--nonce", "1", "--input", "1,2"],
        ["check", "ref.csv", "published", "--nonce", "1", "--input", "1,2"],
        ["challenge", "bundle", "published", "ref.csv", "c.json", "--label", "y"],
    ):
        unusable(run(*call), "ezkl is needed for this and is not installed")
        assert run(*call).stderr.rstrip().endswith("pip install 'skuq[zk]'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "'--predictions'"),
        (["--predictions", "ref.csv", "--label", "y"], "(--proba)"),
        (["verify"], "'AUDIT'"),
        (["verify", "bundle", "published", "ref.csv", *QUESTION], "'--classes'"),
        (["nonsense"], "'nonsense'"),
        (["--tolerance", "0.1", "verify"], "--tolerance precedes 'verify'"),
        (["--label", "y", "check"], "--label precedes 'check'"),
    ],
)
def test_options_belong_to_the_command_they_follow(auditor, arguments, words):
    unusable(run(*arguments), words)


@pytest.mark.parametrize(
    ("column", "classes", "expected"),
    [
        *[([0.0, 1.0], [0, 1], [0, 1]), (["0", "1"], [0, 1], [0, 1])],
        *[([0, 1], ["0", "1"], ["0", "1"]), ([0, 1], [0.0, 1.0], [0.0, 1.0])],
        *[([1, 0], [False, True], [True, False]), (["a", "NA"], ["a", "NA"], ["a", "NA"])],
        *[([0, 2], [0, 1], "got '2' in row 2"), ([0.0, 0.5], [0, 1], "got '0.5' in row 2")],
        ([True, False], [0, 1], "got 'True' in row 1"),
        (["0", "one"], [0, 1], "got 'one' in row 2"),
        ([1.0, 0.0], ["0", "1"], "got '1.0' in row 1"),
        ([0, 2], [False, True], "got '2' in row 2"),
        (["a", None], ["a", "b"], "got nothing in row 2"),
        ([1e400, 1.0], [0, 1], "got 'inf' in row 1"),
    ],
)
def test_labels_become_what_the_classes_are_or_are_named(column, classes, expected):
    given = "y", pd.Series(column), np.array(classes)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            _proofs.labels_of(*given)
    else:
        found = _proofs.labels_of(*given)
        assert [(v, type(v)) for v in found] == [(v, type(v)) for v in expected]


def test_classes_are_given_as_a_row_of_a_csv_file():
    for text, classes, expected in (
        ('"no, thanks", yes', ["no, thanks", "yes"], ["no, thanks", "yes"]),
        *[("0,1", [0.0, 1.0], [0, 1]), ("True,False", [False, True], [True, False])],
        ("", ["a"], [""]),
    ):
        committed = SimpleNamespace(classes=np.array(classes))
        assert _proofs.classes_of(text, committed) == expected


@pytest.mark.parametrize(
    ("error", "raised", "left"),
    [
        (ValueError("why"), InputError, None),
        (OSError("why"), InputError, None),
        (KeyError("why"), KeyError, None),
        (KeyboardInterrupt("why"), KeyboardInterrupt, None),
        (zk.VerificationError("why"), _proofs.VerificationFailed, '{"verification_error":"why"}\n'),
    ],
)
def test_the_result_of_an_earlier_call_is_removed(tmp_path, error, raised, left):
    path = tmp_path / "verdict.json"
    path.write_text('{"passed":true}', encoding="utf-8")
    with pytest.raises(raised, match="why"), _proofs.proofs(path):
        raise error
    assert (path.read_text(encoding="utf-8") if path.exists() else None) == left
