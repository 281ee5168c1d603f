"""Second verifier of proven audits and attestations, written from the page on their format.

It uses nothing of skuq: the standard library, and of ezkl the one call that verifies a proof. What
it does not do itself is to build verifying keys from the public architecture. It takes those which
``skuq audit verify --keys FOLDER`` or ``skuq audit check --keys FOLDER`` built here from the same
commitment, in a folder that holds no others. So it is a second opinion on all else: digests,
encoding of inputs, statements, public inputs and their order, commitment, sums, and verdict.

    python second_verifier.py audit --help
    python second_verifier.py attestation --help
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

FORMAT, EZKL = 5, "23.0.5"
FIELD = 0x30644E72E131A029B85045B68181585D2833E84879B9709143E1F593F0000001
ONE = 1 << 14  # confidences are multiples of 2 ** -14
LOGIT_BITS = 9
REACH = 12 << LOGIT_BITS
ROUNDING = 2 ** -(LOGIT_BITS + 1)  # of a confidence, which the circuit leaves to the prover
PAD_BITS, PAD_LIMBS = 20, 3
CEREMONY = {
    13: "d5d94bb25bdc024f649213593027d861042ee807cafd94b49b54f1663f8f267d",
    14: "c09129f064c08ecb07ea3689a2247dcc177de6837e7d2f5f946e30453abbccef",
    15: "90807800a1c3b248a452e1732c45ee5099f38b737356f5542c0584ec9c3ebb45",
    16: "2a1a494630e71bc026dd5c0eab4c1b9a5dbc656228c1f0d48f5dbd3909b161d3",
    17: "41509f380362a8d14401c5ae92073154922fe23e45459ce6f696f58607655db7",
    18: "d0148475717a2ba269784a178cb0ab617bc77f16c58d4a3cbdfe785b591c7034",
}


TRUTH = {"True": 1, "TRUE": 1, "true": 1, "False": 0, "FALSE": 0, "false": 0}


class Refused(Exception):
    """What does not hold."""


# What Python raises where a record has not the form that is expected.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OSError)


def demand(holds: bool, otherwise: str) -> None:
    """Refuse with a reason unless something holds."""
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
    """Public input that binds a proof to its statement, and to its place in it."""
    text = canonical(statement) + b"\n" + part.encode()
    return int.from_bytes(hashlib.sha256(text).digest(), "big") >> 8


def encode_row(columns: Sequence[Sequence[float]], bits: int, row: Sequence[float]) -> list[int]:
    """Integers of one row."""
    demand(len(row) == len(columns), "A row has another number of columns than the commitment.")
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
    """Number in a CSV file, exactly if it is an integer."""
    if text in TRUTH:
        return TRUTH[text]
    try:
        return int(text)
    except ValueError:
        return float(text)


def reference_digest(rows: list[list[int]], codes: list[int]) -> str:
    """SHA-256 of encoded reference data."""
    numbers = [value for row in rows for value in row] + codes
    data = b"".join(value.to_bytes(8, "little", signed=True) for value in numbers)
    return sha256(b"%d,%d\n" % (len(rows), len(rows[0])) + data)


def compressed_point(proof: bytes) -> str:
    """Commitment at the head of a proof: x, lowest byte first, with the parity of y."""
    demand(len(proof) >= 64, "A proof is too short.")
    x, y = int.from_bytes(proof[:32], "big"), int.from_bytes(proof[32:64], "big")
    return (x | (y & 1) << 255).to_bytes(32, "little").hex()


def edges_of(n_bins: int, most: int) -> list[int]:
    """Odd thresholds: ``2 c > edge`` where the confidence c is in a bin or a higher one."""
    return [2 * -(-k * ONE // n_bins) - 1 for k in range(n_bins)] + [2 * ONE + 1] * (most - n_bins)


# --- files --------------------------------------------------------------------------------------


def read(path: Path) -> bytes:
    """Content of a regular file."""
    demand(path.is_file() and not path.is_symlink(), f"{path.name} is missing or no regular file.")
    return path.read_bytes()


def without_repetition(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON object that has each entry once."""
    demand(len(dict(entries)) == len(entries), "An object has two entries of one name.")
    return dict(entries)


def read_json(path: Path) -> Any:
    """JSON object in a file."""
    try:
        record = json.loads(read(path), object_pairs_hook=without_repetition)
        canonical(record)  # NaN and infinity are no JSON
    except ValueError as error:
        raise Refused(f"{path.name} is not JSON: {error}") from error
    demand(isinstance(record, dict), f"{path.name} is not a record.")
    return record


def check_manifest(folder: Path) -> None:
    """Compare all files of a folder with its manifest."""
    manifest = read_json(folder / "manifest.json")
    present = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if not path.is_dir() and path.name != "manifest.json"
    }
    demand(manifest.get("format") == FORMAT, "The manifest has another format.")
    demand(present == set(manifest["files"]), "Files are missing, or too many.")
    for name, entry in manifest["files"].items():
        data = read(folder / name)
        same = entry == {"sha256": sha256(data), "bytes": len(data)}
        demand(same, f"{name} was changed: it does not fit the manifest.")


def integers(values: Any) -> list[int]:
    """Integers, which may be written as texts."""
    demand(isinstance(values, list), "There is no list of numbers.")
    demand(all(type(value) in (int, str) for value in values), "A number is no integer.")
    try:
        numbers = [int(value) for value in values]
    except ValueError as error:
        raise Refused(f"A number is no integer: {error}") from error
    demand(all(abs(number) < 1 << 128 for number in numbers), "A number is out of range.")
    return numbers


# --- commitment, keys and proofs ----------------------------------------------------------------


class Commitment:
    """The published folder, with keys that skuq built from it here."""

    def __init__(self, folder: Path, keys: Path, srs: Path | None):
        check_manifest(folder)
        self.string, self.keys = folder / "srs", keys
        self.describe(read_json(folder / "commitment.json"))
        found = sha256(read(self.string))
        trusted = CEREMONY.get(self.log_rows) if srs is None else sha256(read(srs))
        demand(found == trusted, "The reference string is not the ceremony's, nor yours.")

    def describe(self, record: dict[str, Any]) -> None:
        """Take over what the record says."""
        self.record = record
        demand(self.record["format"] == FORMAT, "The commitment has another format.")
        demand(self.record["versions"]["ezkl"] == EZKL, "The commitment has another ezkl.")
        self.digest = sha256(canonical(self.record))
        shape = self.record["architecture"]
        self.widths, self.n_bins, self.n_pads = shape["widths"], shape["n_bins"], shape["n_pads"]
        self.log_rows, self.rows_per_proof = shape["log_rows"], shape["rows_per_proof"]
        self.n_committed = (
            sum((a + 1) * b for a, b in zip(self.widths, self.widths[1:], strict=False))
            + shape["n_salts"]
            + self.n_pads * PAD_LIMBS * 3 * self.n_bins
        )
        self.classes, self.encoding = self.record["classes"], self.record["encoding"]

    def encode(self, X: Sequence[Sequence[float]]) -> list[list[int]]:
        """Integers of all rows."""
        columns, bits = self.encoding["columns"], self.encoding["bits"]
        return [encode_row(columns, bits, row) for row in X]

    def codes(self, y: Sequence[Any]) -> list[int]:
        """Numbers of the classes of labels."""
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
                demand(fits, f"The key of {circuit!r} is that of another architecture.")
                return key, settings
        raise Refused(f"There is no key of {circuit!r} of this commitment in {self.keys}.")

    def fixed(self) -> dict[str, list[int]]:
        """Public inputs that are the same in every proof."""
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
        """Public inputs of a proof, one after another."""
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
        """Verify one proof of these outputs."""
        try:
            proof = base64.b64decode(text, validate=True)
        except (ValueError, TypeError) as error:
            raise Refused(f"The proof of {part!r} is damaged.") from error
        same = compressed_point(proof) == self.record["commitment_point"]
        demand(same, f"The proof of {part!r} is one of other weights.")
        bound = context_of(statement, part)
        numbers = [*self.inputs(circuit, values, bound), *outputs, bound]
        demand(ezkl_verifies(proof, numbers, *self.key(circuit), self.string), f"{part}: no proof.")


# Public inputs of each circuit, in their order.
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
    """Ask ezkl whether a proof holds for these public numbers."""
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
        except Exception:  # of many types, for malformed proofs
            return False


# --- audits -------------------------------------------------------------------------------------


def verify_audit(
    bundle: Path,
    commitment: Commitment,
    X: Sequence[Sequence[float]],
    y: Sequence[Any],
    *,
    alpha: float,
    n_bins: int,
    confidence_level: float | None,
    level: str,
    challenge: Path | None = None,
    false_share: float = 0.02,
    error: float = 0.01,
) -> dict[str, Any]:
    """Verify all proofs of an audit.

    Return ``passed`` at level "verdict"; otherwise count, correct predictions and sum of
    confidences of each bin, and ``within_alpha``: whether each is within alpha, without an
    allowance for chance.
    """
    check_manifest(bundle)
    statement = read_json(bundle / "statement.json")
    rows, codes = commitment.encode(X), commitment.codes(y)
    demand(len(rows) == len(codes) > 0, "There must be as many labels as rows.")
    expected = {
        "format": FORMAT,
        "commitment_digest": commitment.digest,
        "level": level,
        "alpha": float(alpha),
        "n_bins": n_bins,
        "confidence_level": None if confidence_level is None else float(confidence_level),
        "n_samples": len(rows),
        "reference_digest": reference_digest(rows, codes),
    }
    for name, value in expected.items():
        found = statement.get(name)
        same = found == value and type(found) is type(value)
        demand(same, f"The statement has another {name} than yours.")
    demand(statement["versions"]["ezkl"] == EZKL, "The statement has another ezkl.")
    own = {"verdict": {"pads"}, "predictions": {"reported_digest", "nonce", "n_proven"}}
    entries = {*expected, "versions", *own.get(level, ())}
    demand(set(statement) == entries, "The statement lacks entries, or has unknown ones.")
    if level == "predictions":
        needed = needed_proofs(len(rows), false_share, error)
        sums = _spot_check(bundle, commitment, statement, rows, codes, challenge, needed)
    else:
        circuit = "bins" if level == "bins" else "padded_bins"
        sums = _sums(bundle, commitment, statement, circuit, rows, codes)
    if level == "verdict":
        return {"passed": _verdict(bundle, commitment, statement, sums)}
    return bins_of(sums, commitment.n_bins, n_bins, alpha)


def chunks_of(
    commitment: Commitment,
    statement: dict[str, Any],
    circuit: str,
    rows: list[list[int]],
    codes: list[int],
) -> list[tuple[dict[str, list[int]], int]]:
    """Inputs of each chunk of reference data, and the number of rows that count in it."""
    size, found = commitment.rows_per_proof[circuit], []
    n_chunks = -(-len(rows) // size)
    pads = _pads(commitment, statement, n_chunks) if circuit == "padded_bins" else []
    for k in range(n_chunks):
        n = min(size, len(rows) - k * size)
        taken = [k * size + min(i, n - 1) for i in range(size)]  # the last row fills it up
        classes = range(len(commitment.classes))
        values = {
            "rows": [value for i in taken for value in rows[i]],
            "labels": [int(code == codes[i]) for i in taken for code in classes],
            "counted": [int(i < n) for i in range(size)],
            "edges": edges_of(statement["n_bins"], commitment.n_bins),
        }
        if pads:
            values["chunk"] = [int(pad == pads[k]) for pad in range(commitment.n_pads)]
        found.append((values, n))
    return found


def _pads(commitment: Commitment, statement: dict[str, Any], n_chunks: int) -> list[int]:
    pads = statement.get("pads")
    demand(isinstance(pads, list), "The statement names no pads.")
    valid = all(type(pad) is int and 0 <= pad < commitment.n_pads for pad in pads)
    demand(valid and len(set(pads)) == len(pads) == n_chunks, "The pads do not fit the data.")
    return list(pads)


def _sums(
    bundle: Path,
    commitment: Commitment,
    statement: dict[str, Any],
    circuit: str,
    rows: list[list[int]],
    codes: list[int],
) -> list[int]:
    """Verify the sums of every chunk, and add them up."""
    chunks = chunks_of(commitment, statement, circuit, rows, codes)
    totals = [0] * (3 * commitment.n_bins)
    for k, (values, n) in enumerate(chunks):
        record = _chunk(bundle, k, len(chunks))
        outputs = integers(record.get("outputs"))
        demand(len(outputs) == len(totals), "A chunk has another number of sums.")
        # The last output is not sent: one most probable class for each row that counts.
        part, proof = f"{circuit} {k}", record.get("proof")
        commitment.verify(circuit, statement, part, values, [*outputs, n], proof)
        totals = [a + b for a, b in zip(totals, outputs, strict=True)]
    return totals


def _chunk(bundle: Path, k: int, n: int) -> Any:
    names = {f"{i:05d}.json" for i in range(n)}
    folder = bundle / "chunks"
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    demand(found == names, f"There must be {n} chunks.")
    return read_json(folder / f"{k:05d}.json")


def _verdict(
    bundle: Path, commitment: Commitment, statement: dict[str, Any], sums: list[int]
) -> bool:
    """Verify the verdict on sums that stay under their pads."""
    alpha = statement["alpha"]
    demand(abs(1000 * alpha - round(1000 * alpha)) <= 1e-9, "alpha is no multiple of 0.001.")
    demand(can_fail(statement, len(commitment.classes)), "This audit might pass with any labels.")
    values = verdict_inputs(commitment, statement, sums)
    record = read_json(bundle / "verdict.json")
    flags = integers(record.get("outputs"))
    demand(len(flags) == 3 and set(flags) <= {-1, 1}, "There is no verdict.")
    commitment.verify("verdict", statement, "verdict", values, flags, record.get("proof"))
    return flags[1] == 1


def can_fail(statement: dict[str, Any], n_classes: int) -> bool:
    """Whether some labels would fail the audit, wherever its secret confidences are."""
    n_bins, alpha = statement["n_bins"], statement["alpha"]
    allowance = chance_of(n_bins, statement["confidence_level"]) / 4e6
    most = 0  # samples that can pass with any labels
    for b in range(n_bins):
        if (b + 1) / n_bins <= 1 / n_classes - ROUNDING:
            continue  # no largest probability is in this bin
        gap = max(0.5, b / n_bins, 1 - (b + 1) / n_bins) - alpha
        if gap <= 0:
            return False
        most += math.floor(allowance / (gap * gap))
    return bool(statement["n_samples"] > most)


def verdict_inputs(
    commitment: Commitment, statement: dict[str, Any], sums: list[int]
) -> dict[str, list[int]]:
    """Inputs of the proof of a verdict."""
    return {
        "sums": sums,
        "chunks": [int(pad in statement["pads"]) for pad in range(commitment.n_pads)],
        "alphas": thresholds_of(statement["alpha"], commitment.record["tolerance"]),
        "chance": [chance_of(statement["n_bins"], statement["confidence_level"])],
    }


def chance_of(n_bins: int, level: float | None) -> int:
    """Allowance for chance in a bin, in quarters of millionths."""
    return 0 if level is None else math.ceil(4e6 * math.log(2 * n_bins / (1 - level)) / 2)


def thresholds_of(alpha: float, tolerance: float) -> list[int]:
    """Thousandths of alpha minus the tolerance, alpha, and alpha plus it."""
    middle, step = round(1000 * alpha), math.ceil(round(1000 * tolerance, 6))
    return [max(0, middle - step), middle, min(1000, middle + step)]


def needed_proofs(n: int, false_share: float, error: float) -> int:
    """Predictions of `n` to prove, so that this share of false ones is missed with this error."""
    return min(n, math.ceil(math.log(error) / math.log1p(-false_share)))


def chosen_rows(asked: dict[str, Any], n: int, k: int) -> list[int]:
    """Rows that a challenge chooses: those with the smallest hashes."""
    names = ("commitment_digest", "reference_digest", "reported_digest", "nonce")
    seed = canonical({name: asked[name] for name in names})
    order = sorted(range(n), key=lambda i: hashlib.sha256(seed + b"\nrow %d" % i).digest())
    return sorted(order[:k])


def _spot_check(
    bundle: Path,
    commitment: Commitment,
    statement: dict[str, Any],
    rows: list[list[int]],
    codes: list[int],
    challenge: Path | None,
    needed: int,
) -> list[int]:
    """Verify the predictions that the challenge chose; return the sums of all reports."""
    demand(challenge is not None, "A spot check needs your own challenge.")
    assert challenge is not None
    asked = read_json(challenge)
    reported = sha256(read(bundle / "reported.json"))
    demand(asked.get("reported_digest") == reported, "The challenge was about other reports.")
    for name in ("commitment_digest", "reference_digest", "reported_digest", "nonce"):
        same = statement.get(name) is not None and statement.get(name) == asked.get(name)
        demand(same, f"The audit answers another challenge: its {name} differs.")
    n, k = len(rows), statement.get("n_proven")
    demand(type(k) is int and needed <= k <= n, "Too few predictions were proven.")
    record = read_json(bundle / "reported.json")
    labels, confidences = integers(record.get("label")), integers(record.get("confidence"))
    demand(len(labels) == len(confidences) == n, "There must be a report for each row.")
    n_classes = len(commitment.classes)
    valid = all(0 <= label < n_classes for label in labels)
    demand(valid and all(0 < c <= ONE for c in confidences), "A report is impossible.")
    chosen = chosen_rows(statement, n, k)
    size = commitment.rows_per_proof["predictions"]
    n_chunks = -(-len(chosen) // size)
    for c in range(n_chunks):
        part = chosen[c * size : (c + 1) * size]
        proof = _chunk(bundle, c, n_chunks)
        outputs = predicted(
            commitment, [labels[i] for i in part], [confidences[i] for i in part], size
        )
        # What follows the chosen rows repeats the last one, as the inputs do.
        values = {"rows": [v for i in _filled(part, size) for v in rows[i]]}
        demand(integers(proof.get("outputs")) == outputs, "A report is not the model's.")
        name = f"predictions {c}"
        commitment.verify("predictions", statement, name, values, outputs, proof.get("proof"))
    return sums_of_reports(commitment, statement["n_bins"], labels, confidences, codes)


def sums_of_reports(
    commitment: Commitment, n_bins: int, label: list[int], confidence: list[int], codes: list[int]
) -> list[int]:
    """Signed sums, as the circuit "bins" has them, of known predictions."""
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


def bins_of(sums: list[int], most: int, n_bins: int, alpha: float) -> dict[str, Any]:
    """Sums of each bin, from sums signed by whether a bin's lower edge is reached."""
    signed = [sums[k * most : (k + 1) * most] for k in range(3)]
    twice = [
        [part[b] - (part[b + 1] if b + 1 < most else -part[0]) for b in range(n_bins)]
        for part in signed
    ]
    count = [value // 2 for value in twice[0]]
    confidence = [value // 2 for value in twice[1]]
    correct = [(a + b) // 4 for a, b in zip(twice[0], twice[2], strict=True)]
    tolerated = Fraction(str(alpha)) * ONE
    within = all(
        abs(ONE * r - c) <= tolerated * n
        for n, r, c in zip(count, correct, confidence, strict=True)
    )
    return {
        "count": count,
        "correct": correct,
        "confidence_sum": [value / ONE for value in confidence],
        "within_alpha": within,
    }


# --- attestations -------------------------------------------------------------------------------


def verify_attestation(
    path: Path, commitment: Commitment, x: Sequence[float], nonce: str
) -> dict[str, Any]:
    """Verify one prediction; return label and confidence."""
    record = read_json(path)
    statement = record.get("statement")
    demand(isinstance(statement, dict), "There is no statement.")
    expected = {"format": FORMAT, "level": "attestation", "nonce": nonce, "x": list(map(float, x))}
    demand(all(type(v) is float for v in statement["x"]), "The input is not of floats.")
    for name, value in {**expected, "commitment_digest": commitment.digest}.items():
        demand(statement.get(name) == value, f"The attestation has another {name} than yours.")
    demand(statement["versions"]["ezkl"] == EZKL, "The attestation has another ezkl.")
    entries = {*expected, "versions", "commitment_digest", "label", "confidence", "number"}
    demand(set(statement) == entries, "The statement lacks entries, or has unknown ones.")
    number = statement.get("number")
    allowed = type(number) is int and 1 <= number <= commitment.record["n_attestations"]
    demand(allowed, "The attestation is one more than allowed.")
    label, confidence = statement.get("label"), statement.get("confidence")
    valid = type(label) is int and 0 <= label < len(commitment.classes)
    demand(valid and type(confidence) is int and 0 < confidence <= ONE, "It is impossible.")
    name = "attestation"
    size = commitment.rows_per_proof[name]
    values = {"rows": commitment.encode([x])[0] * size}
    outputs = predicted(commitment, [label], [confidence], size)
    commitment.verify(name, statement, name, values, outputs, record.get("proof"))
    return {"label": commitment.classes[label], "confidence": confidence / ONE}


# --- command line -------------------------------------------------------------------------------


def read_table(
    path: Path, label: str, names: list[str] | None
) -> tuple[list[list[float]], list[str]]:
    """Features and labels of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    columns = [name.strip() for name in header]
    demand(label in columns, f"There is no column {label!r}.")
    place = columns.index(label)
    features = columns[:place] + columns[place + 1 :]
    demand(names is None or features == names, f"The columns must be {names}.")
    X = [[float(number_of(v)) for k, v in enumerate(line) if k != place] for line in lines]
    return X, [line[place] for line in lines]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line: 0 if all holds, 2 if not."""
    parser = argparse.ArgumentParser(description="Verify without skuq.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("audit", "attestation"):
        own = kinds.add_parser(kind)
        own.add_argument("path", type=Path, help="what the provider sent")
        own.add_argument("--commitment", type=Path, required=True, help="the published folder")
        own.add_argument("--keys", type=Path, required=True, help="keys of this commitment alone")
        own.add_argument("--srs", type=Path, help="your copy of the reference string")
        if kind == "attestation":
            own.add_argument("--values", required=True, help="the input, separated by commas")
            own.add_argument("--nonce", required=True)
            continue
        own.add_argument("--data", type=Path, required=True, help="CSV file of reference data")
        own.add_argument("--label", required=True)
        own.add_argument("--alpha", type=float, required=True)
        own.add_argument("--bins", type=int, required=True)
        own.add_argument("--confidence-level", required=True, help="a number or 'none'")
        own.add_argument("--level", required=True, choices=("bins", "verdict", "predictions"))
        own.add_argument("--challenge", type=Path)
        own.add_argument("--false-share", type=float, default=0.02)
        own.add_argument("--error", type=float, default=0.01)
    given = parser.parse_args(arguments)
    try:
        commitment = Commitment(given.commitment, given.keys, given.srs)
        if given.kind == "attestation":
            x = [float(value) for value in given.values.split(",")]
            found = verify_attestation(given.path, commitment, x, given.nonce)
        else:
            X, y = read_table(given.data, given.label, commitment.encoding["names"])
            chance = given.confidence_level
            found = verify_audit(
                given.path,
                commitment,
                X,
                y,
                alpha=given.alpha,
                n_bins=given.bins,
                confidence_level=None if chance == "none" else float(chance),
                level=given.level,
                challenge=given.challenge,
                false_share=given.false_share,
                error=given.error,
            )
    except (Refused, *MALFORMED) as error:
        print(f"Refused: {error!r}", file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
