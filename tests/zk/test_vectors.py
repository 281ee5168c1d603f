"""Encodings of the format, by the package and by the second verifier, as examples in a file.

``python -m tests.zk.test_vectors`` computes what is expected anew, for a new format.
"""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from skuq.zk import _ezkl as backend
from skuq.zk import _spot_check as spot_check
from skuq.zk import _statements as statements
from skuq.zk._circuits import edges
from skuq.zk._files import canonical, digest
from skuq.zk._fixed_point import Architecture, IntegerPredictions
from skuq.zk._public_commitment import _architecture, encoding_of
from skuq.zk._regions import Regions, rows_of_chunks
from skuq.zk._statements import VerdictStatement
from tests.zk.tampering import second_verifier

FILE = Path(__file__).with_name("vectors.json")
VECTORS = json.loads(FILE.read_text(encoding="utf-8"))
GIVEN = VECTORS["given"]
RECORD, ROWS, CODES, TREE = (GIVEN[name] for name in ("commitment", "rows", "codes", "tree"))
STATEMENT, CHALLENGE, REPORTED = (GIVEN[k] for k in ("statement", "challenge", "reported"))
SUMS, PROOF_HEAD = GIVEN["sums"], bytes.fromhex(GIVEN["proof_head"])
N_BINS, OF_REGIONS = STATEMENT["n_bins"], [0, 1, 1] * 4


def by_the_package():
    statement, challenged = VerdictStatement.of(STATEMENT), SimpleNamespace(**CHALLENGE)
    shape, tolerance = Architecture(**RECORD["architecture"]), RECORD["tolerance"]
    shape = shape._replace(widths=tuple(shape.widths))
    rows, codes = encoding_of(RECORD["encoding"]).encode(ROWS), np.array(CODES)
    data = statements.ReferenceData(rows, codes, np.zeros(len(rows), np.int64))
    found = IntegerPredictions(*(np.array(REPORTED[k]) for k in ("label", "confidence")))
    inputs = {
        "predictions": statements.prediction_inputs(shape, rows),
        "bins": statements.reference_chunks(shape, "bins", data, statement)[1],
        "padded_bins": statements.reference_chunks(shape, "padded_bins", data, statement)[0],
        "verdict": statements.verdict_inputs(shape, tolerance, statement, SUMS, range(len(SUMS))),
    }
    totals = statements.signed_sums(found, codes, N_BINS, shape.n_bins)
    sums = statements.read_sums(totals, N_BINS, shape.n_bins)
    bound = statements.context(canonical(STATEMENT), GIVEN["part"])
    region, regions = Regions(TREE).assign(ROWS), np.array(OF_REGIONS)

    def listed(circuit, values):
        parts = statements.public_inputs(circuit, shape, values, bound)
        return [str(number) for part in parts for number in part]

    return {
        "canonical": canonical(RECORD).decode(),
        "commitment_digest": digest(RECORD),
        "rows": rows.tolist(),
        "reference_digest": data.digest,
        "context": str(bound),
        "edges": edges(N_BINS, shape.n_bins).tolist(),
        "chosen_rows": spot_check.chosen_rows(challenged, 0 * regions, 5).tolist(),
        "regions": region.tolist(),
        "chosen_rows_of_regions": spot_check.chosen_rows(challenged, regions, 3).tolist(),
        "rows_of_chunks": [part.tolist() for part in rows_of_chunks(shape.rows_of("bins"), region)],
        "single_level": VerdictStatement.of({**STATEMENT, "regions": TREE}).single_level,
        "thresholds": statements.thresholds(0.05, tolerance),
        "chance": statements.chance_allowance(N_BINS, 0.95),
        "inputs": {circuit: listed(circuit, values) for circuit, values in inputs.items()},
        "outputs": statements.prediction_outputs(shape, found),
        "bins": {name: getattr(sums, name).tolist() for name in ("count", "correct", "confidence")},
        "point": backend.commitment_point(PROOF_HEAD),
    }


def by_the_second_verifier():
    second = second_verifier()
    commitment = object.__new__(second.Commitment)  # without the files around the record
    commitment.describe(RECORD)
    rows, bound = commitment.encode(ROWS), second.context_of(STATEMENT, GIVEN["part"])
    region = [second.region_of(TREE, row) for row in ROWS]
    divided = {**STATEMENT, "regions": TREE}

    def chunks(statement, circuit, region):
        return second.chunks_of(commitment, statement, circuit, rows, CODES, region)

    totals = second.add(commitment, SUMS)
    inputs = {
        "predictions": {"rows": [v for row in rows for v in row]},
        "bins": chunks(STATEMENT, "bins", [0] * len(rows))[1][0],
        "padded_bins": chunks(STATEMENT, "padded_bins", [0] * len(rows))[0][0],
        "verdict": second.verdict_inputs(commitment, STATEMENT, totals, STATEMENT["pads"]),
    }
    reported = second.sums_of_reports(commitment, N_BINS, **REPORTED, codes=CODES)
    bins = second.bins_of(reported, commitment.n_bins, N_BINS, 0.05)
    confidence = [round(v * second.ONE) for v in bins["confidence_sum"]]
    return {
        "canonical": second.canonical(RECORD).decode(),
        "commitment_digest": second.sha256(second.canonical(RECORD)),
        "rows": rows,
        "reference_digest": second.reference_digest(rows, CODES),
        "context": str(bound),
        "edges": second.edges_of(N_BINS, commitment.n_bins),
        "chosen_rows": second.chosen_rows(CHALLENGE, [0] * 12, 5),
        "regions": region,
        "chosen_rows_of_regions": second.chosen_rows(CHALLENGE, OF_REGIONS, 3),
        "rows_of_chunks": [counted for _, counted in chunks(divided, "bins", region)],
        "single_level": second.single_level(divided),
        "thresholds": second.thresholds_of(0.05, RECORD["tolerance"]),
        "chance": second.chance_of(N_BINS, 0.95),
        "inputs": {
            circuit: [str(number) for number in commitment.inputs(circuit, values, bound)]
            for circuit, values in inputs.items()
        },
        "outputs": second.predicted(commitment, *REPORTED.values(), 3),
        "bins": {"count": bins["count"], "correct": bins["correct"], "confidence": confidence},
        "point": second.compressed_point(PROOF_HEAD),
    }


@pytest.mark.parametrize("made", [by_the_package, by_the_second_verifier])
def test_encodings_are_those_of_the_format(made):
    found = made()
    for name, value in VECTORS["expected"].items():
        assert found[name] == value, name
    assert set(found) == set(VECTORS["expected"])


@pytest.mark.parametrize(
    "name", ["logit_bits", "digits", "n_salts", "n_pads", "n_bins", "log_rows", "widths"]
)
def test_both_verifiers_refuse_huge_numbers_before_they_compute_with_them(second, name):
    shape, huge = RECORD["architecture"], 10**15
    altered = {**shape, name: [*shape["widths"][:-1], huge] if name == "widths" else huge}
    with pytest.raises(ValueError, match=r"the architecture is malformed|too many layers"):
        _architecture({**RECORD, "architecture": altered})
    with pytest.raises(second.Refused):
        object.__new__(second.Commitment).architecture(altered)


@pytest.mark.parametrize(
    ("level", "tree", "possible"),
    # Alone, it is taken as it is; that of each of several verdicts is rounded, here to 1.
    [
        *((1 - 1e-14, None, True), (1 - 1e-14, TREE, False), (1 - 1e-11, TREE, True)),
        (None, TREE, True),
    ],
)
def test_both_verifiers_refuse_confidence_levels_that_are_impossible(second, level, tree, possible):
    shape = SimpleNamespace(n_bins=3, n_pads=2, rows_of=lambda _: 2)
    committed = SimpleNamespace(shape=shape, encoding=SimpleNamespace(columns=[0, 1]))
    asked = {**STATEMENT, "confidence_level": level, "regions": tree}
    statement = VerdictStatement.of(asked)
    assert (statement.impossible(committed) is None) == possible
    assert second.single_level(asked) == statement.single_level
    with nullcontext() if possible else pytest.raises(second.Refused, match="impossible"):
        second.check_question(asked, 3)


if __name__ == "__main__":
    vectors = {"given": GIVEN, "expected": by_the_package()}
    FILE.write_text(json.dumps(vectors, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
