"""Altered files and questions, and whether each verifier refuses them: examples in a file.

Every example of ``alterations.json`` is one change to an honest commitment, audit or attestation,
with the answer that both verifiers must give. Where proofs are not ``"checked"``, they are assumed
to hold, as those of a provider who makes them for the altered files: the form alone is judged.
"""

import base64
import json
import os
import shutil
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
import pytest

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq.zk import _ezkl as backend
from skuq.zk import check, load_commitment, verify
from skuq.zk._files import digest_file, read_json, write_json, write_manifest
from skuq.zk._statements import encoded
from tests.zk import exchange as small
from tests.zk import tampering
from tests.zk.tampering import changed

EXAMPLES = json.loads(Path(__file__).with_name("alterations.json").read_text(encoding="utf-8"))
ARABIC = str.maketrans("0123456789", "".join(map(chr, range(0x660, 0x66A))))
FULL_WIDTH = str.maketrans("0123456789", "".join(map(chr, range(0xFF10, 0xFF1A))))
SPELLINGS = {
    "arabic digits": lambda value: value.translate(ARABIC),
    "full width": lambda value: value.translate(FULL_WIDTH),
    "a plus": lambda value: "+" + value.lstrip("-"),
    "spaces": lambda value: f" {value} ",
    "an underscore": lambda value: "0_" + value if value[0] != "-" else "-0_" + value[1:],
    "a zero before it": lambda value: "0" + value if value[0] != "-" else "-0" + value[1:],
    "an integer": int,
    "a float": float,
    "float": float,
    "text": str,
    "capitals": str.upper,
    "other": lambda value: 1 - value,
}
PROOFS = {
    "bytes after it": lambda proof: proof + b"xx",
    "one byte less": lambda proof: proof[:-1],
    "one bit changed": lambda proof: proof[:-9] + bytes([proof[-9] ^ 1]) + proof[-8:],
    "zeros behind its head": lambda proof: proof[:64] + bytes(len(proof) - 64),
}


def alter(path, example):
    """Make the one change of an example to a file, or put one there."""
    operation = example["operation"]
    if operation in ("set", "delete", "spell", "proof"):
        record = read_json(path)
        *parents, name = example.get("path", ["proof"])
        entry = record
        for parent in parents:
            entry = entry[parent]
        if operation == "delete":
            del entry[name]
        elif operation == "set":
            entry[name] = example["value"]
        elif operation == "spell":
            entry[name] = SPELLINGS[example["how"]](entry[name])
        else:
            entry[name] = respelled_proof(entry[name], example["how"])
        write_json(path, record)
    elif operation == "create":
        path.write_text("{}", encoding="utf-8")
    elif operation == "folder":
        path.mkdir()
    elif operation == "remove":
        path.unlink()
    elif operation == "link":
        path.rename(path.with_name("moved"))
        shutil.move(path.with_name("moved"), path.parents[2] / "moved")
        path.symlink_to(path.parents[2] / "moved")
    else:
        path.write_bytes(rewritten(path.read_bytes(), example))


LETTERS = f"{ascii_uppercase}{ascii_lowercase}{digits}+/"


def respelled_proof(text, how):
    if how == "a line break":
        return text[:76] + "\n" + text[76:]
    if how == "other unused bits":
        body = text.rstrip("=")
        assert body != text  # the last letter has bits that stand for nothing
        other = LETTERS[LETTERS.index(body[-1]) + 1]
        again = body[:-1] + other + text[len(body) :]
        assert base64.b64decode(again) == base64.b64decode(text)
        return again
    return base64.b64encode(PROOFS[how](base64.b64decode(text))).decode()


def rewritten(data, example):
    """The bytes of a file after a change to its text."""
    more = bytes.fromhex(example.get("bytes", "")) * example.get("times", 1)
    if example["operation"] == "respell":
        record = json.loads(data)
        return json.dumps(dict(reversed(record.items())), indent=2, ensure_ascii=False).encode()
    if example["operation"] == "replace":
        old, new = example["old"].encode(), example["new"].encode()
        assert old in data
        return data.replace(old, new, 1)
    if example["operation"] == "encode":
        return data.decode().encode(example["encoding"])
    return {"prepend": more + data, "append": data + more, "fill": more}[example["operation"]]


class Setting:
    """The honest files of a kind, as copies to be altered, and what their verifiers ask."""

    def __init__(self, kind, folder, request):
        self.kind, self.folder = kind, folder
        if kind == "verdict":
            made = request.getfixturevalue("run")
            public, (self.X, self.y), bundle = made.honest, made.data, made.verdict
            self.question = {**tampering.QUESTION, **made.settings["verdict"]}
        else:
            made = request.getfixturevalue("exchange")
            public, self.X, self.y, bundle = made.public, made.X, made.y, made.audit(kind)
            self.question = {"level": kind, "classes": [0, 1], **small.ASKED}
            self.question["confidence_level"] = 0.95
        self.keys, self.own = made.keys, shutil.copy(public / "srs", folder / "own.srs")
        self.public, self.bundle = shutil.copytree(public, folder / "public"), folder / "bundle"
        if kind == "attestation":
            self.bundle.mkdir()
            shutil.copy(made.attestation, self.bundle)
        elif kind != "commitment":
            shutil.copytree(bundle, self.bundle)
        if kind == "predictions":
            self.question["challenge"] = Path(shutil.copy(made.challenge, folder))

    def alter(self, example):
        """Alter the files or the question, and let all else fit."""
        asked = dict(example.get("asked", {}))
        if asked.pop("one_class", False):
            self.y = np.zeros_like(self.y)
            committed = load_commitment(self.public)
            data = encoded(committed.encoding, committed.classes, self.X, self.y)
            changed(self.bundle / "statement.json", reference_digest=data.digest)
            write_manifest(self.bundle)
        self.question |= asked
        if "file" not in example:
            return
        folder = self.public if self.kind == "commitment" else self.bundle
        if example["file"] == "challenge.json":
            folder = self.folder
        alter(folder / example["file"], example)
        if example["file"] == "reported.json" and self.kind == "predictions":
            stated = {"reported_digest": digest_file(folder / "reported.json")}
            changed(folder / "statement.json", **stated)
            changed(self.question["challenge"], **stated)
        if folder != self.folder and example["file"] != "manifest.json":
            write_manifest(folder)

    def first(self):
        """Have the package verify."""
        trust = {"allow_test_string": True, "keys": self.keys}
        if self.kind == "commitment":
            return load_commitment(self.public)
        if self.kind == "attestation":
            path = self.bundle / "attestation.json"
            return check(path, self.public, x=self.X[0], nonce="1", **trust)
        return verify(self.bundle, self.X, self.y, self.public, **self.question, **trust)

    def second(self, second):
        """Have the second verifier verify."""
        published = second.Commitment(self.public, self.keys, Path(self.own))
        if self.kind == "commitment":
            return published
        if self.kind == "attestation":
            path = self.bundle / "attestation.json"
            return second.verify_attestation(path, published, self.X[0].tolist(), "1")
        data = self.X.tolist(), self.y.tolist()
        return second.verify_audit(self.bundle, published, *data, **self.question)


def assume_proofs(monkeypatch, second):
    """Let all proofs hold, but none that lacks its last byte."""
    monkeypatch.setattr(backend, "verify", lambda *_: True)
    monkeypatch.setattr(backend, "reads_whole", lambda *_: True)
    monkeypatch.setattr(second, "ezkl_verifies", lambda proof, *_: len(proof) % 32 == 0)


def answer(ask, *errors):
    try:
        ask()
    except errors:
        return "refused"
    return "accepted"


@pytest.mark.parametrize("example", EXAMPLES, ids=[example["name"] for example in EXAMPLES])
def test_both_verifiers_give_the_expected_answer(second, example, tmp_path, request, monkeypatch):
    setting = Setting(example["of"], tmp_path, request)
    if example.get("proofs") != "checked":
        assume_proofs(monkeypatch, second)
    setting.alter(example)
    assert answer(setting.first, ValueError) == example["expected"]
    refusals = second.Refused, *second.MALFORMED
    assert answer(lambda: setting.second(second), *refusals) == example["expected"]


def test_the_examples_are_many_and_some_are_accepted():
    answers = [example["expected"] for example in EXAMPLES]
    assert len({example["name"] for example in EXAMPLES}) == len(EXAMPLES) >= 60
    assert answers.count("accepted") >= 10
    assert os.path.getsize(Path(__file__).with_name("alterations.json")) < 1 << 16
