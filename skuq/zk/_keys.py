"""Keys of circuits, which both parties generate with the same code, and checks of single proofs."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

INTEGER = re.compile("0|-?[1-9][0-9]*")
OUTPUT_BITS = 128  # maximum number of bits of an output


def make_keys(
    folder: Path,
    circuit: str,
    shape: Architecture,
    constants: Sequence[NDArray[Any]],
    srs: Path,
    point: str,
) -> None:
    """Write a circuit, its settings and both keys to a folder.

    Proofs of different circuits are about the same weights only if each circuit uses the committed
    numbers, in the same order; both are checked.
    """
    ends = ("onnx", "settings", "circuit")
    model, settings, compiled = (folder / f"{circuit}.{end}" for end in ends)
    model.write_bytes(build(circuit, shape, constants))
    rows = backend.describe(model, settings, circuit, shape)["num_rows"]
    if rows > MAX_BLOCKS * (2**shape.log_rows - backend.BLINDING_ROWS):
        raise VerificationError(
            f"The circuit {circuit!r} needs more rows than the committed size allows."
        )
    numbers = [int(value) for part in constants for value in part.ravel()]
    backend.compile_circuit(model, settings, compiled, numbers)
    key = folder / f"{circuit}.vk"
    proving = folder / f"{circuit}.pk"
    backend.setup(compiled, key, proving, srs)
    backend.check_copy_constraints(proving, circuit, shape)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        target = Path(temporary) / "witness"
        _, found = backend.witness(zeros(circuit, shape), compiled, target, key, srs)
    if found != point:
        raise backend.ProofSystemError(
            f"The circuit {circuit!r} does not commit to its constants in the order that all "
            "circuits must share."
        )


@contextmanager
def verifying_key(
    commitment: Commitment, circuit: str, keys: Path | None
) -> Iterator[tuple[Path, Path]]:
    """Settings and verifying key of a circuit, built from the public architecture alone.

    The provider's key is never used, since it could belong to a different circuit. `keys` is the
    verifier's own folder of keys; None for a temporary folder.
    """
    if circuit not in commitment.shape.circuits:
        raise VerificationError(f"The commitment has no circuit for {circuit!r}.")
    shape, constants = commitment.shape, sample_constants(commitment.shape)
    # The key's name in the cache is a hash of everything on which the key depends. This includes
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
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        settings, key = work / f"{circuit}.settings", work / f"{circuit}.vk"
        if keys is not None:
            settings, key = keys / f"{name}.settings", keys / f"{name}.vk"
        if not (settings.exists() and key.exists()):
            point = commitment_point(shape, constants, commitment.srs)
            make_keys(work, circuit, shape, constants, commitment.srs, point)
            if keys is not None:
                keys.mkdir(parents=True, exist_ok=True)
                with atomic_paths(settings, key) as partials:
                    for made, partial in zip(("settings", "vk"), partials, strict=True):
                        shutil.copyfile(work / f"{circuit}.{made}", partial)
        if files.digest_file(key) != commitment.record["keys"][circuit]:
            raise VerificationError(
                f"The verifying key of {circuit!r} does not follow from the public architecture: "
                "the provider uses a different circuit."
            )
        yield settings, key


class ProofChecker:
    """Checks all proofs of one statement under one commitment, with public data alone."""

    def __init__(
        self, committed: Commitment, statement: statements.Statement, keys: str | Path | None
    ):
        self.committed, self.statement = committed, statement
        self._keys = None if keys is None else Path(keys)
        self._lengths: dict[str, int] = {}  # size of the proofs of each circuit, in bytes

    def check(
        self, circuit: str, part: str, values: dict[str, Any], outputs: list[int], proof: str
    ) -> None:
        """Verify a single base64-encoded proof of these outputs."""
        with self._tools(circuit) as tools:
            self._check(tools, circuit, part, values, outputs, proof)

    def chunks(self, bundle: Path, circuit: str, values: list[dict[str, Any]]) -> list[list[int]]:
        """Verify the proofs of all chunks; return their outputs."""
        folder = bundle / files.CHUNKS
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        expected = [f"{k:05d}.json" for k in range(len(values))]
        if names != set(expected):
            raise VerificationError(
                f"The audit has {len(names)} proofs of chunks where {len(expected)} are needed."
            )
        found = []
        with self._tools(circuit) as tools:
            for k, (name, value) in enumerate(zip(expected, values, strict=True)):
                part = f"{circuit} {k}"
                outputs, proof = read_proof(folder / name, part)
                self._check(tools, circuit, part, value, outputs, proof)
                found.append(outputs)
        return found

    def sums(self, bundle: Path, circuit: str, data: statements.ReferenceData) -> list[list[int]]:
        """Verify the sums of all chunks of reference data; return the sums."""
        assert isinstance(self.statement, statements.AuditStatement)
        values = statements.reference_chunks(self.committed.shape, circuit, data, self.statement)
        return self.chunks(bundle, circuit, values)

    @contextmanager
    def _tools(self, circuit: str) -> Iterator[tuple[Path, Path, Path]]:
        """Settings and verifying key of a circuit, and a temporary folder."""
        with (
            tempfile.TemporaryDirectory() as temporary,
            verifying_key(self.committed, circuit, self._keys) as (settings, key),
        ):
            yield settings, key, Path(temporary)

    def _check(
        self,
        tools: tuple[Path, Path, Path],
        circuit: str,
        part: str,
        values: dict[str, Any],
        outputs: list[int],
        text: str,
    ) -> None:
        committed = self.committed
        try:
            proof = files.decoded(text)
        except ValueError as error:
            raise VerificationError(f"The proof of {part!r} is damaged.") from error
        if backend.commitment_point(proof) != committed.point:
            raise VerificationError(
                f"The proof of {part!r} is for different weights: its commitment is not the "
                "published one."
            )
        self._check_proof_length(tools, circuit, part, len(proof))
        if len(outputs) != statements.n_outputs(circuit, committed.shape):
            raise VerificationError(f"The result of {part!r} has the wrong length.")
        hashed = statements.context(self.statement.canonical(), part)
        inputs = statements.public_inputs(circuit, committed.shape, values, hashed)
        known = statements.known_outputs(circuit, values)
        instances = [v for numbers in inputs for v in numbers] + [*outputs, *known, hashed]
        settings, key, work = tools
        if not backend.verify(proof, instances, settings, key, committed.srs, work):
            raise VerificationError(
                f"The proof of {part!r} does not hold for this statement, these data and these "
                "results."
            )

    def _check_proof_length(
        self, tools: tuple[Path, Path, Path], circuit: str, part: str, length: int
    ) -> None:
        """Raise, before a proof is verified, if it is longer than its key allows.

        The proof system would ignore additional bytes, so many files would count as one proof.
        """
        settings, key, work = tools
        if circuit not in self._lengths:
            srs = self.committed.srs
            if not backend.reads_whole(length, settings, key, srs, work):
                raise VerificationError(
                    f"The proof of {part!r} is longer than its verifying key allows: it has "
                    "trailing bytes."
                )
            self._lengths[circuit] = length
        if length != self._lengths[circuit]:
            raise VerificationError(
                f"The proof of {part!r} has {length} bytes, but earlier proofs of the same circuit "
                f"have {self._lengths[circuit]}."
            )


def read_proof(path: Path, part: str) -> tuple[list[int], str]:
    """Read the file with the proof of a part of a statement; return outputs and proof."""
    record = files.read_json(path)
    outputs = integers(record, path.name)
    proof = files.field(record, "proof", str, path.name)
    if files.field(record, "part", str, path.name) != part:
        raise VerificationError(f"{path.name} is not about the part {part!r}.")
    files.check_entries(record, ("part", "outputs", "proof"), path.name)
    return outputs, proof


def integers(record: Any, where: str) -> list[int]:
    """Outputs of a proof: integers, each written as the one string that is valid for it."""
    values = files.field(record, "outputs", list, where)
    try:
        if not all(type(value) is str and INTEGER.fullmatch(value) for value in values):
            raise TypeError
        numbers = [int(value) for value in values]
    except (TypeError, ValueError) as error:
        raise VerificationError(f"The numbers 'outputs' in {where} are not integers.") from error
    if any(abs(number) >= 1 << OUTPUT_BITS for number in numbers):
        raise VerificationError(f"The numbers 'outputs' in {where} are out of range.")
    return numbers
