"""Altered files and questions, and whether each verifier refuses them: examples in a file.

Every example of ``alterations.json`` is one change to an honest commitment, audit or attestation,
with the answer that both verifiers must give. Where proofs are not ``"checked"``, they are assumed
to hold, as those of a provider who makes them for the altered files: the form alone is judged.
"""

import base64
import copy
import json
import os
import shutil
from functools import reduce
from operator import getitem
from pathlib import Path
from string import ascii_letters

import numpy as np
import pytest

from skuq.zk import _ezkl as backend
from skuq.zk import check, load_commitment
from skuq.zk._files import digest_file, read_json, write_json, write_manifest
from skuq.zk._statements import encoded
from tests.zk import tampering as t

EXAMPLES = json.loads(Path(__file__).with_name("alterations.json").read_text(encoding="utf-8"))


def in_digits_from(zero):
    return str.maketrans("0123456789", "".join(map(chr, range(zero, zero + 10))))


def after_the_sign(more, value):
    return f"-{more}{value[1:]}" if value[0] == "-" else more + value


def of_bytes(change):
    return lambda text: base64.b64encode(change(base64.b64decode(text))).decode()


def with_other_unused_bits(text):
    """Another text of the same bytes: the last letter has bits that stand for nothing."""
    body, proof = text.rstrip("="), base64.b64decode(text)
    others = (text.replace(body, body[:-1] + letter) for letter in ascii_letters)
    return next(other for other in others if other != text and base64.b64decode(other) == proof)


SPELLINGS = {
    "arabic digits": lambda value: value.translate(in_digits_from(0x660)),
    "full width": lambda value: value.translate(in_digits_from(0xFF10)),
    "a plus": lambda value: "+" + value.lstrip("-"),
    "spaces": lambda value: f" {value} ",
    "an underscore": lambda value: after_the_sign("0_", value),
    "a zero before it": lambda value: after_the_sign("0", value),
    "an integer": int,
    "a float": float,
    "float": float,
    "text": str,
    "capitals": str.upper,
    "other": lambda value: 1 - value,
    "a line break": lambda proof: proof[:76] + "\n" + proof[76:],
    "other unused bits": with_other_unused_bits,
    "bytes after it": of_bytes(lambda proof: proof + b"xx"),
    "one byte less": of_bytes(lambda proof: proof[:-1]),
    "one bit changed": of_bytes(lambda proof: t.flipped(proof, -9)),
    "zeros behind its head": of_bytes(lambda proof: proof[:64] + bytes(len(proof) - 64)),
}


def alter_entry(path, example):
    record = read_json(path)
    *parents, name = example.get("path", ["proof"])
    entry = reduce(getitem, parents, record)
    if example["operation"] == "delete":
        del entry[name]
    elif "how" in example:
        entry[name] = SPELLINGS[example["how"]](entry[name])
    else:
        entry[name] = example["value"]
    write_json(path, record)


def alter_text(path, example):
    data, operation = path.read_bytes(), example["operation"]
    more = bytes.fromhex(example.get("bytes", "")) * example.get("times", 1)
    if operation == "respell":
        record = dict(reversed(json.loads(data).items()))
        data = json.dumps(record, indent=2, ensure_ascii=False).encode()
    elif operation == "replace":
        assert example["old"].encode() in data
        data = data.replace(example["old"].encode(), example["new"].encode(), 1)
    elif operation == "encode":
        data = data.decode().encode(example["encoding"])
    else:
        data = {"prepend": more + data, "append": data + more, "fill": more}[operation]
    path.write_bytes(data)


def link(path, example):
    path.symlink_to(shutil.move(path, path.parents[2] / "moved"))


OPERATIONS = {
    **dict.fromkeys(("set", "delete", "spell", "proof"), alter_entry),
    "create": lambda path, example: path.write_text("{}", encoding="utf-8"),
    "folder": lambda path, example: path.mkdir(),
    "remove": lambda path, example: path.unlink(),
    "link": link,
}


class Setting:
    def __init__(self, kind, folder, request):
        made = request.getfixturevalue("run" if kind == "verdict" else "exchange")
        self.kind, self.made, self.asked = kind, copy.copy(made), {}
        self.made.folder, self.bundle = folder, folder / kind
        self.made.public = shutil.copytree(made.public, folder / "public")
        shutil.copy(made.public / "srs", folder / "own.srs")
        if kind in made.settings:
            shutil.copytree(made.folder / kind, self.bundle)
        else:
            self.bundle.mkdir()
            shutil.copy(made.attestation, self.bundle)
        if kind == "predictions":
            self.asked["challenge"] = Path(shutil.copy(made.challenge, folder))

    def alter(self, example):
        """Alter the files or the question, and let all else fit."""
        self.asked |= example.get("asked", {})
        if self.asked.pop("one_class", False):
            self.asked["y"] = np.zeros_like(self.made.y_ref)
            committed = load_commitment(self.made.public)
            data = committed.encoding, committed.classes, self.made.X_ref, self.asked["y"]
            t.changed(self.bundle / t.STATED, reference_digest=encoded(*data).digest)
            write_manifest(self.bundle)
        if "file" not in example:
            return
        folder = self.made.public if self.kind == "commitment" else self.bundle
        if example["file"] == "challenge.json":
            folder = self.made.folder
        path = folder / example["file"]
        OPERATIONS.get(example["operation"], alter_text)(path, example)
        if path.name == "reported.json" and path.exists() and self.kind == "predictions":
            for stated in (folder / t.STATED, self.asked["challenge"]):
                t.changed(stated, reported_digest=digest_file(path))
        if folder != self.made.folder and example["file"] != "manifest.json":
            write_manifest(folder)

    def first(self):
        made, path = self.made, self.bundle / "attestation.json"
        if self.kind == "commitment":
            return load_commitment(made.public)
        if self.kind == "attestation":
            return check(path, made.public, x=made.X_ref[0], nonce="1", keys=made.keys, **t.TEST)
        return t.verified(made, self.kind, **self.asked)

    def second(self):
        made, path = self.made, self.bundle / "attestation.json"
        if self.kind in made.settings:
            return t.verified_again(made, self.kind, **self.asked)
        published = t.published_to_second(made)
        if self.kind == "commitment":
            return published
        x = made.X_ref[0].tolist()
        return t.second_verifier().verify_attestation(path, published, x, "1")


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
    assert answer(setting.second, *refusals) == example["expected"]


def test_the_examples_are_many_and_some_are_accepted():
    answers = [example["expected"] for example in EXAMPLES]
    assert len({example["name"] for example in EXAMPLES}) == len(EXAMPLES) >= 60
    assert answers.count("accepted") >= 10
    assert os.path.getsize(Path(__file__).with_name("alterations.json")) < 1 << 16
