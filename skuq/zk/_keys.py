"""Keys of the circuits: the provider's, and those that everybody else builds again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skuq.files import atomic_paths
from skuq.zk import _ezkl as backend
from skuq.zk._circuits import Architecture, build, fixed_inputs, input_names
from skuq.zk._commitment_files import COMMITMENT, Commitment
from skuq.zk._files import Refused, digest, digest_file, field


@contextmanager
def verifying_key(
    commitment: Commitment, kind: str, keys: Path | None
) -> Iterator[tuple[Path, Path]]:
    """Settings and verifying key of a circuit, built from the public architecture alone.

    The provider's key is never used: it might belong to another circuit. Keys are kept in
    `keys`, a folder of the auditor, or made anew.
    """
    if kind not in commitment.shape.kinds:
        raise Refused(f"The commitment has no circuit for {kind!r}.")
    name = digest(
        {
            "kind": kind,
            "architecture": commitment.record["architecture"],
            "srs": commitment.record["reference_string"]["sha256"],
            "versions": commitment.record["versions"],
        }
    )
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        settings, key = work / f"{kind}.settings", work / f"{kind}.vk"
        if keys is not None:
            settings, key = keys / f"{name}.settings", keys / f"{name}.vk"
        if not (settings.exists() and key.exists()):
            rng = np.random.default_rng(0)
            # Other weights, the same key: it must not depend on them.
            constants = [rng.integers(-99, 100, size=size) for size in commitment.shape.shapes]
            make_keys(work, kind, commitment.shape, constants, commitment.srs)
            if keys is not None:
                keys.mkdir(parents=True, exist_ok=True)
                with atomic_paths(settings, key) as partials:
                    for made, partial in zip(("settings", "vk"), partials, strict=True):
                        shutil.copyfile(work / f"{kind}.{made}", partial)
        published = field(field(commitment.record, "keys", dict, COMMITMENT), kind, str, COMMITMENT)
        if digest_file(key) != published:
            raise Refused(
                f"The verifying key of {kind!r} does not follow from the public architecture: "
                "the provider uses another circuit."
            )
        yield settings, key


def make_keys(
    folder: Path, kind: str, shape: Architecture, constants: list[NDArray[Any]], srs: Path
) -> None:
    model, settings, circuit = (folder / f"{kind}.{end}" for end in ("onnx", "settings", "circuit"))
    model.write_bytes(build(kind, shape, constants))
    backend.describe(model, settings, kind, shape)
    backend.compile_circuit(model, settings, circuit)
    backend.setup(circuit, folder / f"{kind}.vk", folder / f"{kind}.pk", srs)


def constants_point(private: Path, kind: str, shape: Architecture, srs: Path) -> str:
    """Commitment to the constants of a circuit, from a run on zeros."""
    known = fixed_inputs(shape)
    inputs = [
        [int(v) for v in known.get(name, np.zeros(int(np.prod(size)), np.int64)).ravel()]
        for name, size in input_names(kind, shape).items()
    ]
    target = private / f"{kind}.witness"
    _, point = backend.witness(
        inputs, private / f"{kind}.circuit", target, private / f"{kind}.vk", srs
    )
    return point
