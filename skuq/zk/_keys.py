"""Proving and verifying keys of the circuits."""

from __future__ import annotations

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
from skuq.zk._architecture import Architecture
from skuq.zk._circuits import build, zeros
from skuq.zk._commitment_point import commitment_point, sample_constants
from skuq.zk._files import COMMITMENT, VerificationError, digest, digest_file, field
from skuq.zk._public_commitment import Commitment


@contextmanager
def verifying_key(
    commitment: Commitment, circuit: str, keys: Path | None
) -> Iterator[tuple[Path, Path]]:
    """Build settings and verifying key of a circuit from the public architecture alone.

    The provider's key is never used: it might belong to another circuit. Keys are kept in
    `keys`, a folder of the verifier, or thrown away if that is None.
    """
    if circuit not in commitment.shape.circuits:
        raise VerificationError(f"The commitment has no circuit for {circuit!r}.")
    shape, constants = commitment.shape, sample_constants(commitment.shape)
    # All that a key depends on, as this version of skuq has it: a key made by an older one, whose
    # circuit was another, is not found.
    name = digest(
        {
            "circuit": digest(build(circuit, shape, constants)),
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
        published = field(
            field(commitment.record, "keys", dict, COMMITMENT), circuit, str, COMMITMENT
        )
        if digest_file(key) != published:
            raise VerificationError(
                f"The verifying key of {circuit!r} does not follow from the public architecture: "
                "the provider uses another circuit."
            )
        yield settings, key


def make_keys(
    folder: Path,
    circuit: str,
    shape: Architecture,
    constants: Sequence[NDArray[Any]],
    srs: Path,
    point: str,
) -> None:
    """Write a circuit, its settings and both of its keys to a folder.

    Fail unless the circuit computes with the committed numbers, and commits to them as
    `commitment_point` does. Proofs of different circuits are about the same weights only if all
    have these in the same order.
    """
    ends = ("onnx", "settings", "circuit")
    model, settings, compiled = (folder / f"{circuit}.{end}" for end in ends)
    model.write_bytes(build(circuit, shape, constants))
    rows = backend.describe(model, settings, circuit, shape)["num_rows"]
    if rows > 2**shape.log_rows - backend.BLINDING_ROWS:
        raise VerificationError(f"The circuit {circuit!r} does not fit into its size.")
    numbers = [int(value) for part in constants for value in part.ravel()]
    backend.compile_circuit(model, settings, compiled, numbers)
    key = folder / f"{circuit}.vk"
    proving = folder / f"{circuit}.pk"
    backend.setup(compiled, key, proving, srs)
    backend.check_ties(proving, circuit, shape)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        target = Path(temporary) / "witness"
        _, found = backend.witness(zeros(circuit, shape), compiled, target, key, srs)
    if found != point:
        raise backend.ProofSystemError(
            f"The circuit {circuit!r} does not commit to its constants in the order that all "
            "circuits must share."
        )
