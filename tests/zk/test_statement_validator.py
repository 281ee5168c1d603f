"""The validator of statements: one kind of bad entry after the other."""

import math
from dataclasses import FrozenInstanceError, fields
from types import SimpleNamespace

import pytest

pytest.importorskip("ezkl")

from skuq.zk import VerificationError
from skuq.zk import _ezkl as backend
from skuq.zk._files import FORMAT, canonical
from skuq.zk._fixed_point import Architecture
from skuq.zk._statements import (
    ATTESTATION,
    JSON_TYPES,
    KINDS,
    check_statement,
    read_attestation,
    read_audit,
)

ROWS = {"predictions": 4, "bins": 4, "padded_bins": 4}
COMMITTED = SimpleNamespace(
    digest="c0" * 32,
    shape=Architecture((2, 3), 20, 3, 5, 3, 10, 13, ROWS),
    classes=["a", "b", "c"],
    record={"n_attestations": 8},
)
COMMON = {
    "format": FORMAT,
    "versions": {"skuq": "0.1.0", "ezkl": backend.VERSION},
    "commitment_digest": COMMITTED.digest,
}
AUDIT = {
    **COMMON,
    "alpha": 0.05,
    "n_bins": 10,
    "confidence_level": 0.95,
    "n_samples": 7,
    "reference_digest": "4e" * 32,
    "regions": None,
}
STATEMENTS = {
    "bins": {**AUDIT, "level": "bins"},
    "verdict": {**AUDIT, "level": "verdict", "pads": [2, 0]},
    "predictions": {
        **AUDIT,
        "level": "predictions",
        "reported_digest": "d5" * 32,
        "nonce": "ab",
        "n_proven": 7,
    },
    "attestation": {
        **COMMON,
        "level": "attestation",
        "x": [0.5, 1.0],
        "label": 2,
        "confidence": 1 << 14,
        "nonce": "ab",
        "number": 8,
    },
}
IMPOSSIBLE = [
    ("bins", "alpha", 1.1),
    ("bins", "alpha", -0.1),
    ("bins", "n_bins", 11),
    ("bins", "n_bins", 0),
    ("bins", "confidence_level", 1.0),
    ("bins", "confidence_level", 0.0),
    ("bins", "n_samples", 0),
    ("verdict", "alpha", 0.0505),
    ("verdict", "alpha", 1e306),
    ("verdict", "pads", [0]),
    ("verdict", "pads", [1, 1]),
    ("verdict", "pads", [0, 3]),
    ("verdict", "pads", [0, -1]),
    ("verdict", "pads", [0, True]),
    ("predictions", "n_proven", 8),
    ("predictions", "n_proven", 0),
    ("attestation", "x", [1.0, "2"]),
    ("attestation", "x", [1, 2]),
    ("attestation", "x", [1.0, math.nan]),
    ("attestation", "label", 3),
    ("attestation", "label", -1),
    ("attestation", "confidence", 0),
    ("attestation", "confidence", (1 << 14) + 1),
    ("attestation", "number", 0),
    ("attestation", "number", 9),
]
POSSIBLE = [
    ("bins", "alpha", 0.0),
    ("bins", "alpha", 1.0),
    ("bins", "n_bins", 1),
    ("bins", "confidence_level", None),
    ("bins", "n_samples", 1),
    ("verdict", "alpha", 0.999),
    ("verdict", "n_samples", 5),
    ("verdict", "n_samples", 8),
    ("predictions", "n_proven", 1),
    ("attestation", "label", 0),
    ("attestation", "confidence", 1),
    ("attestation", "number", 1),
]


def checked(statement):
    read = read_attestation if statement.get("level") == ATTESTATION else read_audit
    return read(statement, COMMITTED, "s.json")


@pytest.mark.parametrize(("level", "name"), [("verdict", "pads"), ("attestation", "x")])
def test_lists_of_a_statement_are_kept_as_tuples(level, name):
    statement = STATEMENTS[level]
    assert isinstance(statement[name], list)
    assert getattr(checked(statement), name) == tuple(statement[name])  # a list is no tuple


@pytest.mark.parametrize("level", STATEMENTS)
def test_a_statement_has_the_entries_of_its_level_and_no_others(level):
    statement = STATEMENTS[level]
    found = checked(statement)
    assert type(found) is KINDS[level]
    assert found.record() == statement
    assert found.canonical() == canonical(statement)
    check_statement(found, COMMITTED)
    with pytest.raises(FrozenInstanceError):
        found.level = "bins"
    for name in statement:
        rest = {key: value for key, value in statement.items() if key != name}
        with pytest.raises(VerificationError, match=f"s.json lacks the entry '{name}'"):
            checked(rest)
        with pytest.raises(VerificationError, match=rf"right type|{name}|another"):
            checked({**statement, name: object()})
    with pytest.raises(VerificationError, match="unknown entry 'more'"):
        checked({**statement, "more": 1})


def test_audits_and_attestations_are_no_substitutes():
    with pytest.raises(VerificationError, match="unknown level"):
        read_audit(STATEMENTS["attestation"], COMMITTED, "s.json")
    with pytest.raises(VerificationError, match="unknown level"):
        read_attestation(STATEMENTS["bins"], COMMITTED, "s.json")


def test_every_entry_has_a_type():
    assert {entry.name for kind in KINDS.values() for entry in fields(kind)} == set(JSON_TYPES)


@pytest.mark.parametrize(("level", "name", "value"), IMPOSSIBLE)
def test_impossible_values_are_refused(level, name, value):
    named = "input" if name == "x" else name
    with pytest.raises(VerificationError, match=f"{named}.* is impossible"):
        checked({**STATEMENTS[level], name: value})


@pytest.mark.parametrize(("level", "name", "value"), POSSIBLE)
def test_the_limits_of_what_is_possible_are_accepted(level, name, value):
    assert getattr(checked({**STATEMENTS[level], name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", FORMAT - 1, f"expected {FORMAT}"),
        ("level", "nothing", "unknown level"),
        ("commitment_digest", "00" * 32, "different commitment from the published one"),
        ("versions", {"ezkl": "23.0.6", "skuq": "0.1"}, "not made with ezkl"),
    ],
)
def test_a_statement_of_something_else_is_refused(name, value, message):
    with pytest.raises(VerificationError, match=message):
        checked({**STATEMENTS["bins"], name: value})
