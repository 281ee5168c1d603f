"""Keys of circuits, which both parties generate with the same code, and checks of single proofs."""

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from skuq import __version__
from skuq.files import atomic_paths
from skuq.zk import _ezkl as backend
from skuq.zk import _files as files
from skuq.zk import _statements as statements
from skuq.zk._circuits import build, zeros
from skuq.zk._files import VerificationError
from skuq.zk._fixed_point import MAX_BLOCKS, Architecture
from skuq.zk._public_commitment import Commitment
from skuq.zk._reference_string import commitment_point, sample_constants

OUTPUT_BITS = 128  # maximum number of bits of a circuit's output; larger outputs are rejected
# Form of a proof file, see `check_form`. An integer has up to 100 digits, without leading zeros.
PROOF = {"part": str, "outputs": [re.compile("0|-?[1-9][0-9]{0,99}")], "proof": str}


def make_keys(
    folder: Path,
    circuit: str,
    shape: Architecture,
    constants: Sequence[NDArray[Any]],
    srs: Path,
    point: str,
) -> None:
    """Write a circuit, its settings and both keys to a folder.

    Proofs of different circuits are about the same weights only if every circuit uses the committed
    numbers in the same order. This function raises an error if this circuit does not.
    """
    ends = ("onnx", "settings", "circuit")
    model, settings, compiled = (folder / f"{circuit}.{end}" for end in ends)
    model.write_bytes(build(circuit, shape, constants))
    rows = backend.describe(model, settings, circuit, shape)["num_rows"]
    if rows > MAX_BLOCKS * (2**shape.log_rows - backend.BLINDING_ROWS):
        raise VerificationError(f"The circuit {circuit!r} needs more rows than a circuit may have.")
    numbers = [int(value) for part in constants for value in part.ravel()]
    backend.compile_circuit(model, settings, compiled, numbers)
    key, proving = folder / f"{circuit}.vk", folder / f"{circuit}.pk"
    backend.setup(compiled, key, proving, srs)
    backend.check_copy_constraints(proving, circuit, shape)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        target = Path(temporary) / "witness"
        _, found = backend.witness(zeros(circuit, shape), compiled, target, key, srs)
    if found != point:
        raise backend.ProofSystemError(
            f"Circuit {circuit!r} does not commit to its constants in the order of all circuits."
        )


def verifying_key(
    commitment: Commitment, circuit: str, keys: Path | None, work: Path
) -> tuple[Path, Path]:
    """Write a circuit's settings and verifying key to `work`, from the public architecture alone.

    The provider's key is never used, since it could belong to a different circuit. `keys` is the
    folder in which the verifier keeps keys for later calls, or None.
    """
    if circuit not in commitment.shape.circuits:
        raise VerificationError(f"The commitment has no circuit for {circuit!r}.")
    shape, constants = commitment.shape, sample_constants(commitment.shape)
    # The file name of a stored key is a hash of everything on which the key depends. This includes
    # the version of skuq, because a different version may have built a key for a different circuit.
    name = files.digest(
        {
            "circuit": files.digest(build(circuit, shape, constants)),
            "options": backend.options(circuit, shape),
            "srs": commitment.srs_digest,
            "ezkl": backend.version(),
            "skuq": __version__,
        }
    )
    settings, key = work / f"{circuit}.settings", work / f"{circuit}.vk"
    kept = () if keys is None else (keys / f"{name}.settings", keys / f"{name}.vk")
    if kept and all(path.exists() for path in kept):
        for path, copy in zip(kept, (settings, key), strict=True):
            shutil.copyfile(path, copy)
    else:
        point = commitment_point(shape, constants, commitment.srs)
        make_keys(work, circuit, shape, constants, commitment.srs, point)
        if keys is not None:
            keys.mkdir(parents=True, exist_ok=True)
            with atomic_paths(*kept) as partials:
                for made, partial in zip((settings, key), partials, strict=True):
                    shutil.copyfile(made, partial)
    if files.digest_file(key) != commitment.record["keys"][circuit]:
        raise VerificationError(
            f"The provider's key of {circuit!r} differs from that of the public architecture."
        )
    return settings, key


class ProofChecker:
    """Checks all proofs of one statement under one commitment, with public data alone."""

    def __init__(
        self, committed: Commitment, statement: statements.Statement, keys: str | Path | None
    ):
        self.committed, self.statement = committed, statement
        self._keys = None if keys is None else Path(keys)
        self._lengths: dict[str, int] = {}  # size of the proofs of each circuit, in bytes
        self._work = tempfile.TemporaryDirectory()  # deleted with this object
        # For each circuit: paths of settings, key and reference string, and a folder to work in.
        self._tools: dict[str, tuple[Path, Path, Path, Path]] = {}

    def chunks(self, bundle: Path, circuit: str, values: list[dict[str, Any]]) -> list[list[int]]:
        paths = [bundle / files.chunk_file(k) for k in range(len(values))]
        present = set((bundle / files.CHUNKS).glob("*"))
        if present != set(paths):
            raise VerificationError(
                f"The audit has {len(present)} proofs of chunks, but {len(paths)} are needed."
            )
        found = []
        for k, (path, value) in enumerate(zip(paths, values, strict=True)):
            part = f"{circuit} {k}"
            outputs, proof = read_proof(path, part)
            self.check(circuit, part, value, outputs, proof)
            found.append(outputs)
        return found

    def check(
        self, circuit: str, part: str, values: dict[str, Any], outputs: list[int], text: str
    ) -> None:
        shape, work = self.committed.shape, Path(self._work.name)
        if circuit not in self._tools:
            paths = verifying_key(self.committed, circuit, self._keys, work)
            self._tools[circuit] = *paths, self.committed.srs, work
        tools = self._tools[circuit]
        try:
            proof = files.decoded(text)
        except ValueError as error:
            raise VerificationError(f"The proof of {part!r} is damaged.") from error
        if backend.commitment_point(proof) != self.committed.point:
            raise VerificationError(
                f"The proof of {part!r} is for different weights, not the committed ones."
            )
        # The proof system ignores bytes after a proof, so files with added bytes would be accepted.
        if circuit not in self._lengths:
            if not backend.reads_whole(len(proof), *tools):
                raise VerificationError(
                    f"The proof of {part!r} is longer than its verifying key allows."
                )
            self._lengths[circuit] = len(proof)
        if len(proof) != self._lengths[circuit]:
            raise VerificationError(
                f"The proof of {part!r} is not as long as earlier proofs of its circuit."
            )
        if len(outputs) != statements.n_outputs(circuit, shape):
            raise VerificationError(f"The result of {part!r} has the wrong length.")
        hashed = statements.context(self.statement.canonical(), part)
        inputs = statements.public_inputs(circuit, shape, values, hashed)
        known = statements.known_outputs(circuit, values)
        instances = [v for numbers in inputs for v in numbers] + [*outputs, *known, hashed]
        if not backend.verify(proof, instances, *tools):
            raise VerificationError(
                f"The proof of {part!r} does not hold for this statement, data and results."
            )


def read_proof(path: Path, part: str) -> tuple[list[int], str]:
    record = files.read_form(path, PROOF)
    if record["part"] != part:
        raise VerificationError(f"{path.name} is not a proof of the part {part!r}.")
    outputs = [int(text) for text in record["outputs"]]
    if any(abs(number) >= 1 << OUTPUT_BITS for number in outputs):
        raise VerificationError(f"The numbers 'outputs' in {path.name} are out of range.")
    return outputs, record["proof"]
