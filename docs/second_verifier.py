"""Second verifier of proven audits and attestations, written from the page on their format.

It does not import skuq; it uses the standard library and the ezkl call that verifies a proof.
It does not build verifying keys from the public architecture. It reads keys that
``skuq audit verify --keys FOLDER`` or ``skuq audit check --keys FOLDER`` built for the same
commitment on this machine, in a folder without other keys. It independently checks everything
else: files, names, digests, encoding of inputs, statements, public inputs and their order,
commitment, sums, verdict.

    python second_verifier.py audit --help
    python second_verifier.py attestation --help
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import math
import os
import re
import sys
import tempfile
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

FORMAT, EZKL = 6, "23.0.5"
FIELD = 0x30644E72E131A029B85045B68181585D2833E84879B9709143E1F593F0000001
MAX_REGIONS = 64
MAX_JSON, MAX_BYTES = 1 << 20, 64 << 20  # bytes of a file
ONE = 1 << 14  # confidences are multiples of 2 ** -14
LOGIT_BITS = 9
REACH = 12 << LOGIT_BITS
ROUNDING = 2 ** -(LOGIT_BITS + 1)  # of a confidence; the circuit leaves it to the prover
PAD_BITS, PAD_LIMBS = 20, 3
CEREMONY = {
    13: "d5d94bb25bdc024f649213593027d861042ee807cafd94b49b54f1663f8f267d",
    14: "c09129f064c08ecb07ea3689a2247dcc177de6837e7d2f5f946e30453abbccef",
    15: "90807800a1c3b248a452e1732c45ee5099f38b737356f5542c0584ec9c3ebb45",
    16: "2a1a494630e71bc026dd5c0eab4c1b9a5dbc656228c1f0d48f5dbd3909b161d3",
    17: "41509f380362a8d14401c5ae92073154922fe23e45459ce6f696f58607655db7",
    18: "d0148475717a2ba269784a178cb0ab617bc77f16c58d4a3cbdfe785b591c7034",
}
CIRCUITS = ("attestation", "predictions", "bins", "padded_bins", "verdict")
# Contents of each kind of folder, besides the manifest.
PUBLISHED = {"commitment.json", "srs"}
BUNDLES = {
    "bins": {"statement.json", "chunks"},
    "verdict": {"statement.json", "chunks", "verdict.json", "verdicts"},
    "predictions": {"statement.json", "chunks", "reported.json"},
}
# Entries of records, and their types.
COMMITMENT_ENTRIES = {
    **dict.fromkeys(("format", "n_proofs", "n_attestations"), int),
    **dict.fromkeys(("versions", "architecture", "keys", "reference_string"), dict),
    **dict.fromkeys(("encoding", "agreement"), dict),
    "commitment_point": str,
    "classes": list,
    "tolerance": float,
}
SIZES = ("logit_bits", "digits", "n_salts", "n_pads", "n_bins", "log_rows")
STATEMENT_ENTRIES = {"format": int, "versions": dict, "commitment_digest": str, "level": str}
AUDIT_ENTRIES = {
    **STATEMENT_ENTRIES,
    "alpha": float,
    "n_bins": int,
    "n_samples": int,
    "confidence_level": (float, type(None)),
    "reference_digest": str,
    "regions": (list, type(None)),
}
LEVEL_ENTRIES: dict[str, dict[str, Any]] = {
    "bins": {},
    "verdict": {"pads": list},
    "predictions": {"reported_digest": str, "nonce": str, "n_proven": int},
}
DRAWN = ("commitment_digest", "reference_digest", "reported_digest", "nonce")
ATTESTATION_ENTRIES = {
    **STATEMENT_ENTRIES,
    "x": list,
    "label": int,
    "confidence": int,
    "nonce": str,
    "number": int,
}
TRUTH = {"True": 1, "TRUE": 1, "true": 1, "False": 0, "FALSE": 0, "false": 0}
# Invisible code points that count as printable: Default_Ignorable_Code_Point, and Braille's blank.
UNSEEN = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0}
UNSEEN |= {*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC", "HANGUL", "BOPOMOFO"}
EAST_ASIAN |= {"KATAKANA-HIRAGANA"}


class Refused(Exception):
    """Failed verification; the message gives the reason."""


# Exceptions that Python raises for records in an unexpected form.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OSError)
MALFORMED += (ArithmeticError, RecursionError)


def demand(holds: bool, otherwise: str) -> None:
    """Raise `Refused` with a reason unless a condition holds."""
    if not holds:
        raise Refused(otherwise)


# --- encodings ----------------------------------------------------------------------------------


def canonical(value: Any) -> bytes:
    """Canonical JSON text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def context_of(statement: dict[str, Any], part: str) -> int:
    """Public input that binds a proof to its statement and to one part of it."""
    text = canonical(statement) + b"\n" + part.encode()
    return int.from_bytes(hashlib.sha256(text).digest(), "big") >> 8


def encode_row(columns: Sequence[Sequence[float]], bits: int, row: Sequence[float]) -> list[int]:
    """Encode one row as integers."""
    demand(len(row) == len(columns), "A row has a wrong number of columns.")
    encoded: list[int] = []
    for x, (levels, center, scale, limit) in zip(row, columns, strict=True):
        demand(math.isfinite(x), "An input is not a finite number.")
        if levels:
            code = int(x)
            indicators = [0] * (int(levels) + 1)
            indicators[code if 0 <= code < levels else int(levels)] = 1
            encoded += indicators
        else:
            scaled = (x - center) / scale
            demand(abs(scaled) <= limit, "An input is outside the committed range.")
            encoded.append(round(scaled * 2**bits))  # half to even
    return encoded


def number_of(text: str) -> float:
    """Parse a number in a CSV file, exactly if it is an integer."""
    text = text.strip(" ")
    if text in TRUTH:
        return TRUTH[text]
    written = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text)
    demand(written is not None, f"{text[:40]!r} is not a number with a decimal point.")
    return int(text) if re.fullmatch("[+-]?[0-9]+", text) else float(text)


def reference_digest(rows: list[list[int]], codes: list[int]) -> str:
    """SHA-256 of encoded reference data."""
    numbers = [value for row in rows for value in row] + codes
    data = b"".join(value.to_bytes(8, "little", signed=True) for value in numbers)
    return sha256(b"%d,%d\n" % (len(rows), len(rows[0])) + data)


def compressed_point(proof: bytes) -> str:
    """Commitment at the start of a proof: x, little-endian, with the parity of y."""
    demand(len(proof) >= 64, "A proof is too short.")
    x, y = int.from_bytes(proof[:32], "big"), int.from_bytes(proof[32:64], "big")
    return (x | (y & 1) << 255).to_bytes(32, "little").hex()


def edges_of(n_bins: int, most: int) -> list[int]:
    """Odd thresholds: ``2 c > edge`` if the confidence c is in that bin or a higher one."""
    return [2 * -(-k * ONE // n_bins) - 1 for k in range(n_bins)] + [2 * ONE + 1] * (most - n_bins)


# --- files --------------------------------------------------------------------------------------


def read(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Contents of a regular file within a size limit."""
    demand(path.is_file() and not path.is_symlink(), f"{path.name} is not a regular file.")
    demand(path.stat().st_size <= limit, f"{path.name} is too large.")
    return path.read_bytes()


def without_repetition(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from JSON entries; reject repeated keys."""
    demand(len(dict(entries)) == len(entries), "An object has two entries of one name.")
    return dict(entries)


def read_json(path: Path, limit: int = MAX_JSON) -> Any:
    """Read a JSON object from a UTF-8 file without byte order mark."""
    try:
        record = json.loads(read(path, limit).decode(), object_pairs_hook=without_repetition)
        canonical(record)  # rejects NaN and infinity, which are not JSON
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path.name} is not JSON: {error}") from error
    demand(isinstance(record, dict), f"{path.name} is not a JSON object.")
    return record


def check_entries(record: Any, types: dict[str, Any], where: str) -> None:
    """Demand exactly these entries of exactly these types, so that True is not an int."""
    demand(isinstance(record, dict), f"{where} is not a JSON object.")
    names = set(record) ^ set(types)
    demand(not names, f"{where} has missing or unknown entries: {sorted(names)[:1]}.")
    for name, kinds in types.items():
        allowed = kinds if isinstance(kinds, tuple) else (kinds,)
        demand(type(record[name]) in allowed, f"{name} of {where} has the wrong type.")


def check_manifest(folder: Path) -> set[str]:
    """Compare all files of a folder with its manifest; return the names of files and folders."""
    manifest = read_json(folder / "manifest.json")
    check_entries(manifest, {"format": int, "files": dict}, "The manifest")
    demand(manifest["format"] == FORMAT, "The manifest has another format.")
    files: set[str] = set()
    folders: set[str] = set()
    for path in folder.rglob("*"):
        regular = path.is_dir() or path.is_file()
        name = path.relative_to(folder).as_posix()
        demand(regular and not path.is_symlink(), f"{name} is not a regular file.")
        (folders if path.is_dir() else files).add(name)
    files.discard("manifest.json")
    demand(files == set(manifest["files"]), "Files are missing or not in the manifest.")
    for name, entry in manifest["files"].items():
        check_entries(entry, {"sha256": str, "bytes": int}, "The manifest")
        large = name in ("srs", "reported.json")
        data = read(folder / name, MAX_BYTES if large else MAX_JSON)
        same = entry == {"sha256": sha256(data), "bytes": len(data)}
        demand(same, f"{name} was changed: it differs from the manifest.")
    return files | folders


def check_content(names: Iterable[str], expected: set[str]) -> None:
    """Demand that a folder contains only files and folders of its format."""
    for name in names:
        folder, _, file = name.partition("/")
        numbered = folder in expected & {"chunks", "verdicts"}
        numbered = numbered and re.fullmatch("[0-9]{5}[.]json", file) is not None
        demand(name in expected or numbered, f"{name} does not belong in this folder.")


def check_outside(path: Path | None, *sources: Path) -> None:
    """Reject files inside a folder of the other party, links to them, and folders around them."""
    for source in sources if path is not None else ():
        assert path is not None
        real, theirs = path.resolve(), source.resolve()
        inside = real == theirs or theirs in real.parents or real in theirs.parents
        for other in [source, *source.rglob("*")] if source.is_dir() else [source]:
            inside |= path.exists() and other.exists() and path.samefile(other)
        demand(not inside, f"{path} belongs to {source}: your own files must come from elsewhere.")


def is_digest(text: Any) -> bool:
    """Whether a value consists of 64 hexadecimal digits."""
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) is not None


def check_versions(versions: Any, where: str) -> None:
    """Demand well-formed versions, and the version of ezkl that is used here."""
    check_entries(versions, {"skuq": str, "ezkl": str}, f"versions of {where}")
    named = all(re.fullmatch("[0-9A-Za-z.+!_-]{1,40}", text) for text in versions.values())
    demand(named and versions["ezkl"] == EZKL, f"{where} has another version of ezkl.")


def integers(values: Any) -> list[int]:
    """Parse integers written as strings in canonical form."""
    demand(isinstance(values, list), "The numbers are not a list.")
    plain = all(type(v) is str and re.fullmatch("0|-?[1-9][0-9]{0,38}", v) for v in values)
    demand(plain, "A number is not an integer in canonical form.")
    numbers = [int(value) for value in values]
    demand(all(abs(number) < 1 << 128 for number in numbers), "A number is out of range.")
    return numbers


def decoded(text: Any) -> bytes:
    """Decode canonical base64."""
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, TypeError) as error:
        raise Refused("A proof is damaged.") from error
    demand(base64.b64encode(data).decode() == text, "A proof is not in canonical base64.")
    return data


# --- names and labels ---------------------------------------------------------------------------


def check_names(names: Any) -> None:
    """Demand visible names of one script each that differ by more than case and spaces."""
    seen: set[str] = set()
    for name in names:
        demand(isinstance(name, str) and 0 < len(name) <= 200, "A name is not a text of 1 to 200.")
        demand(name == unicodedata.normalize("NFKC", name), f"{name!a} is not in form NFKC.")
        for before, c in zip(f" {name}", name, strict=False):
            unseen = not c.isprintable() or ord(c) in UNSEEN
            demand(not unseen, f"{name!a} has U+{ord(c):04X}, invisible.")
            loose = (
                unicodedata.category(c)[0] == "M" and unicodedata.category(before)[0] not in "LM"
            )
            demand(not loose, f"{name!a} has a mark without a letter.")
        demand(len({script_of(c) for c in name} - {""}) <= 1, f"{name!a} mixes scripts.")
        folded = " ".join(unicodedata.normalize("NFKC", name.casefold()).split())
        demand(folded not in ("", *seen), f"{name!a} looks like another name.")
        seen.add(folded)


def script_of(c: str) -> str:
    """First word of the name of a letter or mark; empty if it is compatible with any script."""
    if unicodedata.category(c)[0] not in "LM" or c in "\u03bc\u03a9":
        return ""
    word = unicodedata.name(c, "UNKNOWN").split()[0]
    return "" if word == "COMBINING" else "EAST ASIAN" if word in EAST_ASIAN else word


def check_classes(classes: list[Any]) -> None:
    """Demand different classes of one type."""
    kinds = {type(label) for label in classes}
    demand(len(kinds) == 1 and kinds <= {str, int, float, bool}, "Classes must be of one type.")
    demand(len(set(classes)) == len(classes), "Classes must differ.")
    if kinds == {str}:
        check_names(classes)
    if kinds == {int}:
        demand(all(-(2**63) <= label < 2**63 for label in classes), "A class is out of range.")


def check_present(codes: Collection[int], classes: list[Any], absent: Sequence[Any]) -> None:
    """Demand that every class has a label, except exactly the classes in `absent`."""
    lacking = [label for code, label in enumerate(classes) if code not in set(codes)]
    known = all(label in lacking for label in absent)
    demand(known, f"Absent classes must have no labels; without labels are {lacking!a}.")
    demand(set(lacking) == set(absent), f"None of the labels is one of {lacking!a}.")


# --- the reference string -----------------------------------------------------------------------

PRIME = 0x30644E72E131A029B85045B68181585D97816A916871CA8D3C208C16D87CFD47
G2 = (  # generator: two coordinates a + b i
    *(
        10857046999023057135944570762232829481370756359578518086990519993285655852781,
        11559732032986387107991004021392285783925812861821192530917403151452391805634,
    ),
    *(
        8495653923123431417604973247489272438418190587263600148770280649306958101930,
        4082367875863433681332203403145435568316851327593401208105741076214120093531,
    ),
)


def times(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """Product of two numbers a + b i modulo the prime."""
    return (a[0] * b[0] - a[1] * b[1]) % PRIME, (a[0] * b[1] + a[1] * b[0]) % PRIME


def check_string(data: bytes, log_rows: int) -> None:
    """Demand size, generators and a last point on the curve, without which all proofs hold."""
    fits = len(data) == 4 + 128 * 2**log_rows + 256 and data[:4] == log_rows.to_bytes(4, "little")
    demand(fits, "The reference string has another size.")
    ends = data[4:68] + data[-256:]
    stored = [int.from_bytes(ends[i : i + 32], "little") for i in range(0, len(ends), 32)]
    demand(all(v < PRIME for v in stored), "The reference string has numbers out of range.")
    found = [v * pow(2, -256, PRIME) % PRIME for v in stored]
    demand((*found[:6],) == (1, 2, *G2), "The reference string has other generators.")
    x, y = (found[6], found[7]), (found[8], found[9])
    cube, square = times(x, times(x, x)), times(y, y)
    # The curve is y^2 = x^3 + 3 / (9 + i).
    left = times((9, 1), (square[0] - cube[0], square[1] - cube[1]))
    demand(left == (3, 0), "The reference string is degenerate.")


# --- commitment, keys and proofs ----------------------------------------------------------------


class Commitment:
    """The published folder, with keys that skuq built from it on this machine."""

    def __init__(self, folder: Path, keys: Path, srs: Path | None):
        self.folder, self.string, self.keys = folder, folder / "srs", keys
        check_content(check_manifest(folder), PUBLISHED)
        self.describe(read_json(folder / "commitment.json"))
        data = read(self.string)
        same = sha256(data) == self.record["reference_string"]["sha256"]
        demand(same, "The reference string is not the one that was committed to.")
        check_string(data, self.log_rows)
        self.check_own(folder, keys=keys, srs=srs)
        ceremony = CEREMONY[self.log_rows]
        trusted = ceremony if srs is None else sha256(read(srs))
        demand(sha256(data) == trusted, "The reference string is not the ceremony's, nor yours.")
        self.trust = "ceremony" if sha256(data) == ceremony else "supplied"
        self.lengths: dict[str, int] = {}  # of the proofs of each circuit

    def check_own(self, source: Path, **own: Path | None) -> None:
        """Demand that the verifier's own files are not from the provider."""
        for path in own.values():
            check_outside(path, source, self.folder)

    def describe(self, record: dict[str, Any]) -> None:
        """Check the record, and store its entries."""
        where = "The commitment"
        check_entries(record, COMMITMENT_ENTRIES, where)
        demand(record["format"] == FORMAT, "The commitment has another format.")
        check_versions(record["versions"], where)
        self.record, self.digest = record, sha256(canonical(record))
        self.classes, self.encoding = record["classes"], record["encoding"]
        check_classes(self.classes)
        width = check_encoding(self.encoding)
        self.architecture(record["architecture"])
        fits = width == self.widths[0] and len(self.classes) == self.widths[-1]
        demand(fits, "Numbers of classes, inputs and neurons are inconsistent.")
        bits, n_layers = self.encoding["bits"], len(self.widths) - 1
        per_layer, rest = divmod(record["architecture"]["logit_bits"] + 1 - bits, n_layers)
        known = 6 <= bits <= 12 and 6 <= per_layer - 1 <= 12 and not rest
        demand(known, "The precision is not one that `commit` chooses.")
        demand(ROUNDING <= record["tolerance"] < 1, "The tolerance is impossible.")
        agreement = {"maximum": float, "mean": float, "argmax": float}
        check_entries(record["agreement"], agreement, "agreement")
        possible = all(0 <= value <= 1 for value in record["agreement"].values())
        demand(possible, "The agreement is impossible.")
        budgets = [record["n_proofs"], record["n_attestations"]]
        demand(all(1 <= n <= 2**18 for n in budgets), "A budget is impossible.")
        check_entries(record["reference_string"], {"sha256": str}, "reference_string")
        check_entries(record["keys"], dict.fromkeys(self.circuits, str), "keys")
        digests = [*record["keys"].values(), *record["reference_string"].values()]
        digests.append(record["commitment_point"])
        demand(all(map(is_digest, digests)), "A digest is malformed.")

    def architecture(self, shape: dict[str, Any]) -> None:
        """Check the architecture, and store its sizes."""
        kinds = {"widths": list, "rows_per_proof": dict, "columns": dict}
        check_entries(shape, {**kinds, **dict.fromkeys(SIZES, int)}, "architecture")
        self.widths, self.n_bins, self.n_pads = shape["widths"], shape["n_bins"], shape["n_pads"]
        self.log_rows, self.rows_per_proof = shape["log_rows"], shape["rows_per_proof"]
        self.circuits = CIRCUITS if self.n_pads else CIRCUITS[:3]
        counted = [name for name in self.circuits if name != "verdict"]
        check_entries(self.rows_per_proof, dict.fromkeys(counted, int), "rows_per_proof")
        check_entries(shape["columns"], dict.fromkeys(self.circuits, int), "columns")
        demand(all(type(n) is int for n in self.widths), "A width is not an integer.")
        counts = [*self.widths, shape["digits"], shape["n_salts"], self.n_bins]
        positive = min([*counts, *self.rows_per_proof.values()]) >= 1 and self.n_pads >= 0
        demand(positive and len(self.widths) >= 2, "A size of the architecture is not positive.")
        demand(self.n_bins <= 1000, "The architecture has too many bins.")
        n_classes = self.widths[-1]
        shift = shape["logit_bits"] + (n_classes - 1).bit_length() - LOGIT_BITS
        demand(shift <= 60, "The network has too many layers for its precision.")
        demand(self.log_rows in CEREMONY, "The size of the circuits is not supported.")
        demand(all(1 <= n <= 3 for n in shape["columns"].values()), "Columns are out of range.")
        base = 2**self.log_rows - 16
        few = shape["digits"] <= 51  # limits the power computed below
        demand(few and base ** (shape["digits"] - 1) < 2**51, "The circuits have too many digits.")
        self.n_committed = (
            sum((a + 1) * b for a, b in zip(self.widths, self.widths[1:], strict=False))
            + shape["n_salts"]
            + self.n_pads * PAD_LIMBS * 3 * self.n_bins
        )
        used = max(self.n_committed, max(self.rows_per_proof.values()) * sum(self.widths))
        demand(used <= 2**self.log_rows - 10, "The architecture has more numbers than rows.")

    def encode(self, X: Sequence[Sequence[float]]) -> list[list[int]]:
        """Encode all rows as integers."""
        columns, bits = self.encoding["columns"], self.encoding["bits"]
        return [encode_row(columns, bits, row) for row in X]

    def codes(self, y: Sequence[Any]) -> list[int]:
        """Positions of labels in the list of classes."""
        is_text = isinstance(self.classes[0], str)
        labels = [str(label) if is_text else number_of(str(label)) for label in y]
        known = {label: code for code, label in enumerate(self.classes)}
        demand(all(label in known for label in labels), "A label is none of the classes.")
        return [known[label] for label in labels]

    def key(self, circuit: str) -> tuple[Path, Path]:
        """Verifying key and settings of a circuit."""
        for key in sorted(self.keys.glob("*.vk")):
            if sha256(read(key)) == self.record["keys"].get(circuit):
                settings = key.with_suffix(".settings")
                made = read_json(settings)
                fits = made["module_sizes"]["polycommit"] == [self.n_committed]
                fits = fits and made["run_args"]["logrows"] == self.log_rows
                demand(fits, f"The key of {circuit!r} is for another architecture.")
                return key, settings
        raise Refused(f"{self.keys} has no key of {circuit!r} of this commitment.")

    def fixed(self) -> dict[str, list[int]]:
        """Public inputs that are equal in every proof."""
        n_classes = self.widths[-1]
        return {
            "one": [1],
            "order": list(range(n_classes)),
            "factor": [1 << (n_classes - 1).bit_length()],
            "reach": [REACH],
            "others": [n_classes - 1],
            "units": [1 << PAD_BITS * k for k in range(PAD_LIMBS)],
            "scale": [ONE],
            "thousand": [1000],
            "last": [self.n_bins],
        }

    def inputs(self, circuit: str, values: dict[str, list[int]], bound: int) -> list[int]:
        """Public inputs of a proof, concatenated."""
        known = {**self.fixed(), **values, "context": [bound]}
        return [number for name in INPUTS[circuit] for number in known[name]]

    def verify(
        self,
        circuit: str,
        statement: dict[str, Any],
        part: str,
        values: dict[str, list[int]],
        outputs: list[int],
        text: Any,
    ) -> None:
        """Verify one proof with these outputs."""
        proof = decoded(text)
        same = compressed_point(proof) == self.record["commitment_point"]
        demand(same, f"The proof of {part!r} is about other weights.")
        bound = context_of(statement, part)
        numbers = [*self.inputs(circuit, values, bound), *outputs, bound]
        tools = (*self.key(circuit), self.string)
        length = self.lengths.get(circuit, len(proof))
        demand(len(proof) == length, f"The proof of {part!r} differs in length from others.")
        demand(ezkl_verifies(proof, numbers, *tools), f"The proof of {part!r} does not hold.")
        if circuit not in self.lengths:
            # ezkl ignores trailing bytes, so a proof that has some verifies without the last one.
            longer = ezkl_verifies(proof[:-1], numbers, *tools)
            demand(not longer, f"The proof of {part!r} has trailing bytes.")
            self.lengths[circuit] = length


def check_encoding(encoding: dict[str, Any]) -> int:
    """Check the encoding of inputs; return the number of integers per row."""
    types = {"bits": int, "columns": list, "names": (list, type(None))}
    check_entries(encoding, types, "encoding")
    bits, columns, width = encoding["bits"], encoding["columns"], 0
    demand(len(columns) > 0 and 0 <= bits < 64, "The encoding of inputs is malformed.")
    for column in columns:
        levels, center, scale, limit = column
        typed = type(levels) is int and all(type(v) is float for v in (center, scale, limit))
        demand(typed and levels >= 0 < min(scale, limit), "A column is malformed.")
        demand(limit * 2.0**bits <= 2.0**62, "Limits must fit into integers.")
        width += levels + 1 if levels else 1
    if encoding["names"] is not None:
        demand(len(encoding["names"]) == len(columns), "Each column must have a name.")
        check_names(encoding["names"])
    return width


# Public inputs of each circuit, in order.
HEAD, NETWORK = ["one"], ["order", "rows", "factor", "reach"]
SUMS = ["labels", "counted", "edges", "others"]
INPUTS = {
    "attestation": [*HEAD, *NETWORK, "context"],
    "predictions": [*HEAD, *NETWORK, "context"],
    "bins": [*HEAD, *NETWORK, *SUMS, "context"],
    "padded_bins": [*HEAD, *NETWORK, *SUMS, "chunk", "units", "context"],
    "verdict": [
        *HEAD,
        *("sums", "chunks", "units", "scale", "alphas", "thousand", "chance", "last", "context"),
    ],
}


def ezkl_verifies(
    proof: bytes, numbers: list[int], key: Path, settings: Path, string: Path
) -> bool:
    """Verify a proof with ezkl for these public numbers."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("EZKL_REPO_PATH", folder)
        import ezkl

        path = Path(folder) / "proof.json"
        written = [(number % FIELD).to_bytes(32, "little").hex() for number in numbers]
        record = {"protocol": None, "instances": [written], "proof": list(proof)}
        record |= {"hex_proof": "0x" + proof.hex(), "split": None, "pretty_public_inputs": None}
        path.write_text(
            json.dumps({**record, "timestamp": None, "version": EZKL}), encoding="utf-8"
        )
        try:
            return bool(ezkl.verify(str(path), str(settings), str(key), str(string)))
        except Exception:  # ezkl raises many types for malformed proofs
            return False


# --- audits -------------------------------------------------------------------------------------


def verify_audit(
    bundle: Path,
    commitment: Commitment,
    X: Sequence[Sequence[float]],
    y: Sequence[Any],
    *,
    tolerance: float,
    n_bins: int,
    confidence_level: float | None,
    level: str,
    classes: Sequence[Any],
    absent_classes: Sequence[Any] = (),
    regions: Path | None = None,
    challenge: Path | None = None,
) -> dict[str, Any]:
    """Verify all proofs of an audit.

    Return ``passed`` at level "verdict". At other levels, return count, correct predictions and sum
    of confidences of each bin, and ``within_tolerance``: whether each bin is within it. This
    verifier does not test whether a deviation is statistically significant. With regions,
    ``regions`` is a list of the results of each region (None for a region without samples at level
    "verdict"), and ``passed`` is true if all verdicts are.
    """
    commitment.check_own(bundle, keys=commitment.keys, challenge=challenge, regions=regions)
    demand(list(classes) == commitment.classes, "The commitment is about other classes than yours.")
    check_content(check_manifest(bundle), BUNDLES[level])
    statement = read_json(bundle / "statement.json")
    check_entries(statement, {**AUDIT_ENTRIES, **LEVEL_ENTRIES[level]}, "The statement")
    check_versions(statement["versions"], "The statement")
    tree = None if regions is None else read_regions(regions, len(commitment.encoding["columns"]))
    region = [region_of(tree, row) for row in X]
    rows, codes = commitment.encode(X), commitment.codes(y)
    demand(len(rows) == len(codes) > 0, "The numbers of labels and rows must be equal.")
    expected = {
        "format": FORMAT,
        "commitment_digest": commitment.digest,
        "level": level,
        "alpha": tolerance,
        "n_bins": n_bins,
        "confidence_level": confidence_level,
        "n_samples": len(rows),
        "reference_digest": reference_digest(rows, codes),
    }
    for name, value in expected.items():
        demand(statement[name] == value, f"The statement has another {name} than yours.")
    same = canonical(statement["regions"]) == canonical(tree)  # distinguishes 1 and 1.0
    demand(same, "The statement has other regions than yours.")
    check_question(statement, commitment.n_bins)
    check_present(codes, commitment.classes, absent_classes)
    if level == "predictions":
        largest = max(region.count(k) for k in set(region))
        reports = _spot_check(bundle, commitment, statement, rows, region, challenge, largest)
        parts = [
            sums_of_reports(commitment, n_bins, *(take(v, region, k) for v in (*reports, codes)))
            for k in range(n_regions(tree))
        ]
    else:
        circuit = "bins" if level == "bins" else "padded_bins"
        chunks = _sums(bundle, commitment, statement, circuit, rows, codes, region)
        if level == "verdict":
            return _verdicts(bundle, commitment, statement, chunks, tree)
        parts = [add(commitment, take(*chunks, k)) for k in range(n_regions(tree))]
    found = bins_of(add(commitment, parts), commitment.n_bins, n_bins, tolerance)
    demand(sum(found["count"]) == len(rows), "The sums do not add up to the number of samples.")
    demand(
        could_fail(found, tolerance, single_level(statement)), "This audit could not have failed."
    )
    if tree is not None:
        found["regions"] = [bins_of(part, commitment.n_bins, n_bins, tolerance) for part in parts]
    return found


def check_question(statement: dict[str, Any], most_bins: int) -> None:
    """Demand a possible tolerance, number of bins and confidence level."""
    level = statement["confidence_level"]
    possible = 0 <= statement["alpha"] <= 1 and 1 <= statement["n_bins"] <= most_bins
    demand(possible and (level is None or 0 < level < 1), "Alpha, bins or level are impossible.")
    single = single_level(statement)  # may be rounded to 1
    demand(single is None or single < 1, "The confidence level is impossible for so many regions.")


def read_regions(path: Path, n_columns: int) -> list[Any]:
    """Tree of regions in the auditor's file."""
    record = read_json(path)
    check_entries(record, {"kind": str, "format": int, "tree": list}, path.name)
    demand(record["kind"] == "skuq audit regions", f"{path.name} does not hold regions.")
    demand(record["format"] == FORMAT, f"{path.name} has another format.")
    waiting, n = [record["tree"]], 0
    while waiting:
        node = waiting.pop()
        n += node is None
        if node is None:
            continue
        demand(isinstance(node, list) and len(node) == 4, "A branch of the regions is malformed.")
        column, threshold = node[:2]
        typed = type(column) is int and type(threshold) is float
        demand(typed and 0 <= column < n_columns, "A branch of the regions is malformed.")
        waiting += node[2:]
        demand(n + len(waiting) <= MAX_REGIONS, f"More than {MAX_REGIONS} regions are not allowed.")
    tree: list[Any] = record["tree"]
    return tree


def n_regions(tree: Any) -> int:
    """Number of leaves of a tree."""
    return 1 if tree is None else n_regions(tree[2]) + n_regions(tree[3])


def region_of(tree: Any, row: Sequence[float]) -> int:
    """Index of the leaf that contains a row, counted from the left."""
    if tree is None:
        return 0
    column, threshold, below, above = tree
    if float(row[column]) <= threshold:
        return region_of(below, row)
    return n_regions(below) + region_of(above, row)


def single_level(statement: dict[str, Any]) -> float | None:
    """Confidence level of each verdict, given the joint one of all samples and regions."""
    level, tree = statement["confidence_level"], statement["regions"]
    if level is None or tree is None:
        return level
    return round(1 - (1 - level) / (n_regions(tree) + 1), 12)


def take(values: Sequence[Any], region: Sequence[int], k: int) -> list[Any]:
    """Select the values in region k."""
    return [value for value, where in zip(values, region, strict=True) if where == k]


def add(commitment: Commitment, parts: Sequence[Sequence[int]]) -> list[int]:
    """Add up the sums of chunks or regions."""
    return [sum(part[i] for part in parts) for i in range(3 * commitment.n_bins)]


def could_fail(found: dict[str, Any], tolerance: float, level: float | None) -> bool:
    """Whether a bin would be beyond the tolerance if all predictions were correct, or none.

    At a confidence level, one of these outcomes must also have a probability of at most 1 - level
    for a model within the tolerance: otherwise no test at this level fails for any labels.
    """
    tolerated = Fraction(str(tolerance))
    sums = [Fraction(value) for value in found["confidence_sum"]]
    pairs = [(n, c) for n, c in zip(found["count"], sums, strict=True) if n]
    if not any(max(c, n - c) > tolerated * n for n, c in pairs):
        return False
    all_right = math.prod(min(1.0, float(c / n) + tolerance) ** n for n, c in pairs)
    none_right = math.prod(min(1.0, 1 - float(c / n) + tolerance) ** n for n, c in pairs)
    return level is None or min(all_right, none_right) <= 1 - level


def chunks_of(
    commitment: Commitment,
    statement: dict[str, Any],
    circuit: str,
    rows: list[list[int]],
    codes: list[int],
    region: list[int],
) -> list[tuple[dict[str, list[int]], list[int]]]:
    """Inputs of each chunk of reference data, with the rows of one region that count in it."""
    size, found = commitment.rows_per_proof[circuit], []
    dealt = []
    for k in range(max(region) + 1):
        inside = [i for i, where in enumerate(region) if where == k]
        dealt += [inside[start : start + size] for start in range(0, len(inside), size)]
    pads = _pads(commitment, statement, len(dealt)) if circuit == "padded_bins" else []
    for k, counted in enumerate(dealt):
        taken = _filled(counted, size)  # repeats the last row
        classes = range(len(commitment.classes))
        values = {
            "rows": [value for i in taken for value in rows[i]],
            "labels": [int(code == codes[i]) for i in taken for code in classes],
            "counted": [int(i < len(counted)) for i in range(size)],
            "edges": edges_of(statement["n_bins"], commitment.n_bins),
        }
        if pads:
            values["chunk"] = [int(pad == pads[k]) for pad in range(commitment.n_pads)]
        found.append((values, counted))
    return found


def _pads(commitment: Commitment, statement: dict[str, Any], n_chunks: int) -> list[int]:
    pads = statement.get("pads")
    demand(isinstance(pads, list), "The statement has no list of pads.")
    valid = all(type(pad) is int and 0 <= pad < commitment.n_pads for pad in pads)
    demand(valid and len(set(pads)) == len(pads) == n_chunks, "The pads do not match the chunks.")
    return list(pads)


def _sums(
    bundle: Path,
    commitment: Commitment,
    statement: dict[str, Any],
    circuit: str,
    rows: list[list[int]],
    codes: list[int],
    region: list[int],
) -> tuple[list[list[int]], list[int]]:
    """Verify the sums of every chunk; return the sums and the region of each chunk."""
    chunks = chunks_of(commitment, statement, circuit, rows, codes, region)
    found, where = [], []
    for k, (values, counted) in enumerate(chunks):
        part = f"{circuit} {k}"
        outputs, proof = _chunk(bundle, part, k, len(chunks))
        demand(len(outputs) == 3 * commitment.n_bins, "A chunk has a wrong number of sums.")
        # The last output is not transmitted: each row that counts has one most probable class.
        commitment.verify(circuit, statement, part, values, [*outputs, len(counted)], proof)
        found.append(outputs)
        where.append(region[counted[0]])
    return found, where


def _chunk(bundle: Path, part: str, k: int, n: int) -> tuple[list[int], Any]:
    names = {f"{i:05d}.json" for i in range(n)}
    folder = bundle / "chunks"
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    demand(found == names, f"The audit must have {n} chunks.")
    return read_proof(folder / f"{k:05d}.json", part)


def read_proof(path: Path, part: str) -> tuple[list[int], Any]:
    """Read outputs and proof of this part from a file."""
    record = read_json(path)
    check_entries(record, {"part": str, "outputs": list, "proof": str}, path.name)
    demand(record["part"] == part, f"{path.name} is not about the part {part!r}.")
    return integers(record["outputs"]), record["proof"]


def _verdicts(
    bundle: Path,
    commitment: Commitment,
    statement: dict[str, Any],
    chunks: tuple[list[list[int]], list[int]],
    tree: Any,
) -> dict[str, Any]:
    """Verify the verdicts on sums under pads; the sums remain secret."""
    tolerance, (sums, where) = statement["alpha"], chunks
    demand(
        abs(1000 * tolerance - round(1000 * tolerance)) <= 1e-9,
        "alpha must be a multiple of 0.001.",
    )
    demand(can_fail(statement, len(commitment.classes)), "This audit might pass with any labels.")
    numbers = sorted(set(where)) if tree is not None else []
    folder = bundle / "verdicts"
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    demand(present == {f"{k:05d}.json" for k in numbers}, "Each region needs a verdict.")
    of_all = [(sum_, pad) for sum_, pad in zip(sums, statement["pads"], strict=True)]
    together = _verdict(bundle / "verdict.json", commitment, statement, "verdict", of_all)
    if tree is None:
        return {"passed": together}
    verdicts: list[bool | None] = [None] * n_regions(tree)
    for k in numbers:
        path, of_region = folder / f"{k:05d}.json", take(of_all, where, k)
        verdicts[k] = _verdict(path, commitment, statement, f"verdict {k}", of_region)
    return {"passed": together and False not in verdicts, "regions": verdicts}


def _verdict(
    path: Path,
    commitment: Commitment,
    statement: dict[str, Any],
    part: str,
    chunks: list[tuple[list[int], int]],
) -> bool:
    """Verify the verdict on the sums of some chunks, which are pairs of sums and pad."""
    sums = add(commitment, [chunk for chunk, _ in chunks])
    values = verdict_inputs(commitment, statement, sums, [pad for _, pad in chunks])
    flags, proof = read_proof(path, part)
    demand(len(flags) == 3 and set(flags) <= {-1, 1}, f"{path.name} does not hold a verdict.")
    commitment.verify("verdict", statement, part, values, flags, proof)
    return flags[1] == 1


def can_fail(statement: dict[str, Any], n_classes: int) -> bool:
    """Whether the audit fails for some labels, for any possible secret confidences."""
    n_bins, tolerance = statement["n_bins"], statement["alpha"]
    allowance = chance_of(n_bins, single_level(statement)) / 4e6
    most = 0  # samples that can pass with any labels
    for b in range(n_bins):
        if (b + 1) / n_bins <= 1 / n_classes - ROUNDING:
            continue  # a largest probability cannot be in this bin
        gap = max(0.5, b / n_bins, 1 - (b + 1) / n_bins) - tolerance
        if gap <= 0:
            return False
        most += math.floor(allowance / (gap * gap))
    return bool(statement["n_samples"] > most)


def verdict_inputs(
    commitment: Commitment, statement: dict[str, Any], sums: list[int], pads: list[int]
) -> dict[str, list[int]]:
    """Inputs of the proof of a verdict on sums with these pads."""
    return {
        "sums": sums,
        "chunks": [int(pad in pads) for pad in range(commitment.n_pads)],
        "alphas": thresholds_of(statement["alpha"], commitment.record["tolerance"]),
        "chance": [chance_of(statement["n_bins"], single_level(statement))],
    }


def chance_of(n_bins: int, level: float | None) -> int:
    """Allowance for chance in a bin, in quarters of millionths."""
    return 0 if level is None else math.ceil(4e6 * math.log(2 * n_bins / (1 - level)) / 2)


def thresholds_of(tolerance: float, max_error: float) -> list[int]:
    """Tolerance minus error, tolerance, and tolerance plus error, in thousandths."""
    middle, step = round(1000 * tolerance), math.ceil(round(1000 * max_error, 6))
    return [max(0, middle - step), middle, min(1000, middle + step)]


def chosen_rows(asked: dict[str, Any], region: list[int], k: int) -> list[int]:
    """Rows that a challenge selects: in each region the `k` with the smallest hashes, or all."""
    seed, chosen = canonical({name: asked[name] for name in DRAWN}), []
    for number in set(region):
        inside = take(range(len(region)), region, number)
        inside.sort(key=lambda i: hashlib.sha256(seed + b"\nrow %d" % i).digest())
        chosen += inside[:k]
    return sorted(chosen)


def _spot_check(
    bundle: Path,
    commitment: Commitment,
    statement: dict[str, Any],
    rows: list[list[int]],
    region: list[int],
    challenge: Path | None,
    largest: int,
) -> tuple[list[int], list[int]]:
    """Verify the predictions selected by the challenge; return all labels and confidences."""
    demand(challenge is not None, "A spot check needs your own challenge.")
    assert challenge is not None
    asked = read_json(challenge)
    check_entries(asked, {**dict.fromkeys(DRAWN, str), "n_proven": int}, "The challenge")
    reported = sha256(read(bundle / "reported.json"))
    demand(asked["reported_digest"] == reported, "The challenge was about other reports.")
    for name in DRAWN:
        same = statement[name] == asked[name]
        demand(same, f"The audit answers another challenge: its {name} differs.")
    n, k = len(rows), statement["n_proven"]
    demand(min(largest, asked["n_proven"]) <= k <= n, "Too few predictions were proven.")
    record = read_json(bundle / "reported.json", MAX_BYTES)
    types = {"label": list, "confidence": list, "reference_digest": str}
    check_entries(record, types, "reported.json")
    same = record["reference_digest"] == statement["reference_digest"]
    demand(same, "The reports are about other reference data.")
    labels, confidences = record["label"], record["confidence"]
    demand(all(type(v) is int for v in labels + confidences), "A report is not an integer.")
    demand(len(labels) == len(confidences) == n, "Each row must have one report.")
    n_classes = len(commitment.classes)
    valid = all(0 <= label < n_classes for label in labels)
    demand(valid and all(0 < c <= ONE for c in confidences), "A report is impossible.")
    chosen = chosen_rows(statement, region, k)
    size = commitment.rows_per_proof["predictions"]
    n_chunks = -(-len(chosen) // size)
    for c in range(n_chunks):
        part = chosen[c * size : (c + 1) * size]
        name = f"predictions {c}"
        proven, proof = _chunk(bundle, name, c, n_chunks)
        outputs = predicted(
            commitment, [labels[i] for i in part], [confidences[i] for i in part], size
        )
        # The chunk is filled with copies of the last selected row, as in the inputs.
        values = {"rows": [v for i in _filled(part, size) for v in rows[i]]}
        demand(proven == outputs, "A report differs from the model's prediction.")
        commitment.verify("predictions", statement, name, values, outputs, proof)
    return labels, confidences


def sums_of_reports(
    commitment: Commitment, n_bins: int, label: list[int], confidence: list[int], codes: list[int]
) -> list[int]:
    """Signed sums of known predictions, as in the outputs of the circuit "bins"."""
    limits = edges_of(n_bins, commitment.n_bins)
    sums = [[0] * len(limits) for _ in range(3)]
    for guess, claimed, truth in zip(label, confidence, codes, strict=True):
        for b, edge in enumerate(limits):
            sign = 1 if 2 * claimed > edge else -1
            sums[0][b] += sign
            sums[1][b] += sign * claimed
            sums[2][b] += sign * (1 if guess == truth else -1)
    return [value for part in sums for value in part]


def _filled(items: list[int], size: int) -> list[int]:
    return items + [items[-1]] * (size - len(items))


def predicted(
    commitment: Commitment, labels: list[int], confidences: list[int], size: int
) -> list[int]:
    """Outputs of the circuit "predictions"."""
    n_classes = len(commitment.classes)
    outputs = []
    pairs = zip(_filled(labels, size), _filled(confidences, size), strict=True)
    for label, confidence in pairs:
        outputs += [confidence, 2 * label - n_classes * (n_classes - 1) // 2]
    return outputs


def bins_of(sums: list[int], most: int, n_bins: int, tolerance: float) -> dict[str, Any]:
    """Convert sums, signed by whether confidence reaches a bin's lower edge, to sums per bin."""
    signed = [sums[k * most : (k + 1) * most] for k in range(3)]
    twice = [
        [part[b] - (part[b + 1] if b + 1 < most else -part[0]) for b in range(n_bins)]
        for part in signed
    ]
    count = [value // 2 for value in twice[0]]
    confidence = [value // 2 for value in twice[1]]
    correct = [(a + b) // 4 for a, b in zip(twice[0], twice[2], strict=True)]
    tolerated = Fraction(str(tolerance)) * ONE
    within = all(
        abs(ONE * r - c) <= tolerated * n
        for n, r, c in zip(count, correct, confidence, strict=True)
    )
    return {
        "count": count,
        "correct": correct,
        "confidence_sum": [value / ONE for value in confidence],
        "within_tolerance": within,
    }


# --- attestations -------------------------------------------------------------------------------


def verify_attestation(
    path: Path, commitment: Commitment, x: Sequence[float], nonce: str
) -> dict[str, Any]:
    """Verify a single prediction; return label and confidence."""
    commitment.check_own(path, keys=commitment.keys)
    demand(nonce != "", "The nonce is empty.")
    record = read_json(path)
    check_entries(record, {"statement": dict, "proof": str}, path.name)
    statement = record["statement"]
    check_entries(statement, ATTESTATION_ENTRIES, "The statement")
    check_versions(statement["versions"], "The statement")
    demand(all(type(v) is float for v in statement["x"]), "The input must consist of floats.")
    expected = {"format": FORMAT, "level": "attestation", "nonce": nonce, "x": list(map(float, x))}
    for name, value in {**expected, "commitment_digest": commitment.digest}.items():
        demand(statement[name] == value, f"The attestation has another {name} than yours.")
    allowed = 1 <= statement["number"] <= commitment.record["n_attestations"]
    demand(allowed, "The number of the attestation is not allowed.")
    label, confidence = statement["label"], statement["confidence"]
    valid = 0 <= label < len(commitment.classes) and 0 < confidence <= ONE
    demand(valid, "Label or confidence is impossible.")
    name = "attestation"
    size = commitment.rows_per_proof[name]
    values = {"rows": commitment.encode([x])[0] * size}
    outputs = predicted(commitment, [label], [confidence], size)
    commitment.verify(name, statement, name, values, outputs, record["proof"])
    return {"label": commitment.classes[label], "confidence": confidence / ONE}


# --- command line -------------------------------------------------------------------------------


TRUST = {
    "ceremony": "that of the public ceremony (perpetual powers of tau), by its SHA-256",
    "supplied": "NOT the public ceremony's string: trusted because you supplied it",
}
NOT_JUDGED = (
    "This verifier does not judge these sums at a confidence level: within_tolerance leaves no "
    "margin for sampling error, and skuq may reject an audit that is accepted here, because it "
    "could not have failed."
)


def read_table(
    path: Path, label: str, names: list[str] | None
) -> tuple[list[list[float]], list[str]]:
    """Features and labels of a CSV file: UTF-8, commas, decimal points."""
    text = path.read_bytes().decode("utf-8-sig")  # allows a byte order mark
    header, *lines = [line for line in csv.reader(io.StringIO(text, newline="")) if line]
    columns = [name.strip() for name in header]
    demand(len(set(columns)) == len(columns), "Two columns have the same name.")
    demand(label in columns, f"Column {label!r} is missing: columns must be separated by commas.")
    demand(all(len(line) == len(columns) for line in lines), "Rows differ in length.")
    place = columns.index(label)
    features = columns[:place] + columns[place + 1 :]
    demand(names is None or features == names, f"The columns must be {names}.")
    X = [[float(number_of(v)) for k, v in enumerate(line) if k != place] for line in lines]
    return X, [line[place] for line in lines]


def classes_of(text: str, commitment: Commitment) -> list[Any]:
    """Parse a list of classes, separated by commas as in a CSV row."""
    row = next(csv.reader([text], skipinitialspace=True), [])
    if isinstance(commitment.classes[0], str):
        return [part.strip() for part in row]
    return [number_of(part) for part in row]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line: return 0 if all checks pass, 2 otherwise."""
    parser = argparse.ArgumentParser(description="Verify without skuq.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("audit", "attestation"):
        own = kinds.add_parser(kind)
        own.add_argument("path", type=Path, help="file or folder from the provider")
        own.add_argument("--commitment", type=Path, required=True, help="the published folder")
        own.add_argument("--keys", type=Path, required=True, help="keys of this commitment only")
        own.add_argument("--srs", type=Path, help="your copy of the reference string")
        if kind == "attestation":
            own.add_argument("--values", required=True, help="the input, separated by commas")
            own.add_argument("--nonce", required=True)
            continue
        own.add_argument("--data", type=Path, required=True, help="CSV file of reference data")
        own.add_argument("--label", required=True)
        own.add_argument("--tolerance", type=float, required=True)
        own.add_argument("--bins", type=int, required=True)
        own.add_argument("--confidence-level", required=True, help="a number or 'none'")
        own.add_argument("--level", required=True, choices=("bins", "verdict", "predictions"))
        own.add_argument("--classes", required=True, help="classes you know, in order: a,b,c")
        own.add_argument("--absent-classes", default="", help="classes without labels: a,b")
        own.add_argument("--regions", type=Path, help="your file of regions")
        own.add_argument("--challenge", type=Path)
    given = parser.parse_args(arguments)
    try:
        commitment = Commitment(given.commitment, given.keys, given.srs)
        if given.kind == "attestation":
            x = [float(number_of(value)) for value in given.values.split(",")]
            found = verify_attestation(given.path, commitment, x, given.nonce)
        else:
            commitment.check_own(given.path, data=given.data)
            X, y = read_table(given.data, given.label, commitment.encoding["names"])
            chance = given.confidence_level
            found = verify_audit(
                given.path,
                commitment,
                X,
                y,
                tolerance=given.tolerance,
                n_bins=given.bins,
                confidence_level=None if chance == "none" else float(chance),
                level=given.level,
                classes=classes_of(given.classes, commitment),
                absent_classes=classes_of(given.absent_classes, commitment),
                regions=given.regions,
                challenge=given.challenge,
            )
    except (Refused, *MALFORMED) as error:
        print(f"Refused: {error!r}", file=sys.stderr)
        return 2
    found |= {"reference_string": commitment.trust, "trust": TRUST[commitment.trust]}
    if "within_tolerance" in found and given.confidence_level != "none":
        found["note"] = NOT_JUDGED
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
