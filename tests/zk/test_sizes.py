"""Size of the circuits: blocks of columns for many rows of data, one block for a prediction."""

import numpy as np
import pytest

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq.zk import _commit as sizes
from skuq.zk import _ezkl as backend
from skuq.zk._files import VerificationError, read_json
from skuq.zk._fixed_point import MAX_BLOCKS, Architecture
from skuq.zk._keys import make_keys
from tests.zk.test_circuits import drawn_network

N_BINS, N_PROOFS = 4, 20


@pytest.fixture(scope="module")
def network():
    return drawn_network(np.random.default_rng(0), (2, 60, 2))


def rows_of(folder, shape, circuit):
    found = sizes._circuit_rows(folder, circuit, shape, shape.rows_of(circuit))
    return found / (2**shape.log_rows - backend.BLINDING_ROWS)


def test_a_proof_of_an_audit_has_blocks_for_many_rows_and_an_attestation_has_one(tmp_path, network):
    one_block = backend.memory_estimate(13, 1)
    few = sizes.fit_shape(*network, N_BINS, N_PROOFS, 0, one_block)
    many = sizes.fit_shape(*network, N_BINS, N_PROOFS, 0, 8.0)
    assert few.log_rows == many.log_rows == 13
    for circuit in ("bins", "predictions"):
        assert few.rows_of(circuit) < sizes.MANY_ROWS <= many.rows_of(circuit)
        assert 0.9 < rows_of(tmp_path, few, circuit) <= 1
        blocks = np.ceil(rows_of(tmp_path, many, circuit))
        assert 1 < blocks <= MAX_BLOCKS
        assert rows_of(tmp_path, many, circuit) > 0.9 * blocks
    assert rows_of(tmp_path, many, "attestation") <= 1


def test_more_rows_per_proof_need_fewer_pads(network):
    one_block = backend.memory_estimate(13, 1)
    for memory in (one_block, 8.0):
        shape = sizes.fit_shape(*network, N_BINS, N_PROOFS, 50, memory)
        assert shape.n_pads == -(-50 // shape.rows_of("padded_bins"))


def test_a_verifier_builds_no_more_than_the_largest_number_of_blocks(tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("a key was built")

    monkeypatch.setattr(backend, "compile_circuit", never)
    shape = Architecture((2, 60, 2), 20, 3, 200, 0, 4, 13, {"bins": 120}, {"bins": 3})
    constants = [np.arange(np.prod(s)).reshape(s) for s in shape.shapes]
    with pytest.raises(VerificationError, match="needs more rows than the committed size"):
        make_keys(tmp_path, "bins", shape, constants, tmp_path / "srs", "")


@pytest.mark.slow
def test_proofs_in_two_blocks_hold_and_are_about_every_row(exchange):
    """Circuits of the shared run overflow a block: the tests of proofs are about such ones."""
    settings = read_json(exchange.public.parent / "private" / "bins.settings")
    assert 2**13 < settings["num_rows"] <= 2 * 2**13
    assert exchange.verify("bins").sums.count.sum() == len(exchange.X)
