"""Interface to the proof system `ezkl`: Halo2 with KZG commitments over BN254.

The constants of a circuit form a separate column ("polycommit"). Every proof begins with a
commitment to this column. The proof system does not check this commitment: each verifier must
compare it with the published one. The proof system forces a circuit to use the numbers in this
column only if the circuit uses each of them twice: see `check_copy_constraints`.
"""

import atexit
import json
import math
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from skuq import __version__
from skuq.imports import import_optional
from skuq.zk._bn254 import root_of_unity
from skuq.zk._fixed_point import CONFIDENCE_BITS, REACH, Architecture, digit_base, digits_of

VERSION = "23.0.5"  # the soundness of the circuits was examined for this version
FIELD = 0x30644E72E131A029B85045B68181585D2833E84879B9709143E1F593F0000001
COMMITMENT_BYTES = 64  # size of the curve point at the start of every proof
VERDICT_VALUE = (1 << 108) - 1  # largest value in the circuit "verdict", which squares sums
BLINDING_ROWS = 10  # number of rows that each circuit leaves free of its values
# Error messages of the proof system: for proofs that are too short, and for other invalid ones.
TOO_SHORT = ("Transcript error", "Multi-opening proof was invalid")
READ_TO_THE_END = "The constraint system is not satisfied"
UNUSABLE_ROWS = 6  # number of rows at the end of the column of constants; each contains a 1
# Environment variables for the folder of look-up tables (the proof system does not check these
# tables), and for the number of threads of the proof system.
OWN_FOLDER, THREADS = "EZKL_REPO_PATH", "RAYON_NUM_THREADS"
# Program of a separate process, which imports only the proof system. An attempt to prove a false
# statement may never end, but a separate process can be killed.
WORKER = """
import json, sys, ezkl
sys.exit(3 if getattr(ezkl, sys.argv[1])(**json.loads(sys.argv[2])) is False else 0)
"""
_SILENCE = threading.RLock()  # only one thread at a time may redirect the process's output


class ProofSystemError(RuntimeError):
    """Failure of the proof system; the message names the failed step."""


def version() -> str:
    """Return the version of the proof system; raise `ProofSystemError` unless it is `VERSION`."""
    from importlib.metadata import version as installed

    _ezkl()
    if installed("ezkl") != VERSION:
        raise ProofSystemError(
            f"Proofs require ezkl {VERSION}, the version for which their circuits were examined, "
            f"but ezkl {installed('ezkl')} is installed; change it with: pip install 'skuq[zk]'."
        )
    return VERSION


def versions() -> dict[str, str]:
    return {"skuq": __version__, "ezkl": version()}


def options(circuit: str, shape: Architecture) -> dict[str, Any]:
    digits = digits_of(VERDICT_VALUE, shape.log_rows) if circuit == "verdict" else shape.digits
    return {
        "input_visibility": "public",
        "output_visibility": "public",
        "param_visibility": "polycommit",
        # This scale does not change integer inputs. Its only effect is that the proof system
        # divides intermediate values of a finer scale until they have this scale.
        "input_scale": CONFIDENCE_BITS,
        "param_scale": 0,
        "scale_rebase_multiplier": 1,
        "num_inner_cols": shape.columns_of(circuit),
        "decomp_base": digit_base(shape.log_rows),
        "decomp_legs": digits,
        "lookup_range": (-REACH, 0),
        # The verifier chooses the inputs and compares the outputs; neither needs a range check.
        "ignore_range_check_inputs_outputs": True,
        "logrows": shape.log_rows,
        # The batched check of matrix products (Freivalds) is unsound: its cells are unconstrained.
        "disable_freivalds": True,
    }


def describe(model: Path, settings: Path, circuit: str, shape: Architecture) -> dict[str, Any]:
    ezkl = _ezkl()
    arguments = ezkl.PyRunArgs()
    for name, value in options(circuit, shape).items():
        setattr(arguments, name, value)
    _call(ezkl.gen_settings, "describe a circuit", model, settings, arguments)
    found: dict[str, Any] = json.loads(settings.read_text(encoding="utf-8"))
    # Sort the entries, because the verifying key depends on their order. Their original order is
    # that of a hash table, which differs between runs.
    found["required_range_checks"].sort()
    found["required_lookups"].sort(key=str)
    cells = _not_laid_out(circuit, shape, arguments.decomp_legs)
    found["total_assignments"] -= cells
    found["num_rows"] -= cells // shape.columns_of(circuit)
    settings.write_text(json.dumps(found, sort_keys=True), encoding="utf-8")
    committed = found["module_sizes"]["polycommit"]
    if committed != [shape.n_committed]:
        raise ProofSystemError(f"ezkl committed to {committed} numbers, not {shape.n_committed}.")
    if found["einsum_params"]["total_einsum_col_size"]:
        raise ProofSystemError("The proof system checks matrix products by an unsound method.")
    return found


def _not_laid_out(circuit: str, shape: Architecture, digits: int) -> int:
    """Count the cells that the description of a circuit includes but its keys do not.

    These cells are the digits of the committed numbers, which `compile_circuit` omits, and, for
    each part, one copy of all numbers, which the proof system counts but does not lay out.
    """
    columns = shape.columns_of(circuit)
    of_a_number = 2 * digits + 4 + columns * -(-digits // columns)
    copies = len(shape.parts_of(circuit)) * (2 * shape.n_committed + 1)
    return of_a_number * shape.n_committed + copies


def compile_circuit(model: Path, settings: Path, circuit: Path, numbers: Sequence[int]) -> None:
    """Compile an ONNX model to the proof system's format.

    The proof system would split every committed number into digits, which are not needed. Because
    no option of it omits them, this function clears a flag in the compiled file.
    """
    _call(_ezkl().compile_circuit, "compile", model, circuit, settings)
    data = circuit.read_bytes()
    # A constant is stored as: the numbers; their shape, scale 0 and visibility 3; an empty float32
    # tensor; the flag.
    constant = _u64(len(numbers)) + b"".join(_field_bytes(v) for v in numbers)
    constant += _u64(2) + _u64(1) + _u64(len(numbers)) + b"\1" + bytes(4) + b"\1\3" + bytes(3)
    constant += _u64(0) + _u64(1) + _u64(0) + bytes(2)
    if data.count(constant + b"\1") != 1:
        raise ProofSystemError("The proof system compiled committed numbers in an unknown format.")
    circuit.write_bytes(data.replace(constant + b"\1", constant + b"\0"))


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def make_reference_string(path: Path, log_rows: int) -> None:
    _run("gen_srs", srs_path=str(path), logrows=log_rows)


def setup(circuit: Path, verifying: Path, proving: Path, srs: Path) -> None:
    paths = {"model": circuit, "vk_path": verifying, "pk_path": proving, "srs_path": srs}
    _run("setup", **{name: str(path) for name, path in paths.items()})


def check_copy_constraints(proving: Path, circuit: str, shape: Architecture) -> None:
    """Raise unless the proving key binds every committed number that its circuit uses.

    A prover could replace unbound numbers by others. The key has a permutation of all cells, whose
    cycles are sets of cells that must be equal: the entry of a cell is the name of the next cell in
    its cycle. Cells of the first column, which is the committed one, are named w^0, w^1, ... for a
    root of unity w. The entry of a cell that is bound to no other cell is its own name.
    """
    size = 1 << shape.log_rows
    root = root_of_unity(shape.log_rows)

    def name(row: int) -> bytes:
        return _field_bytes(pow(root, row, FIELD) << 256)  # in Montgomery form, as in keys

    with proving.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as key:
        # Find the list by its last entry: ezkl does not bind the last row, whose entry is its name.
        start = key.find(name(size - 1)) - 32 * (size - 1)
        found = key[start - 4 : start + 32 * shape.n_committed] if start >= 4 else b""
    rows = [row for positions, _ in shape.parts_of(circuit) for row in positions]
    tied = found[:4] == size.to_bytes(4, "big") and all(
        found[4 + 32 * row : 36 + 32 * row] != name(row) for row in rows
    )
    if not tied:
        raise ProofSystemError(f"The key of circuit {circuit!r} does not bind its numbers.")


def witness(
    inputs: Sequence[Sequence[int]], circuit: Path, target: Path, verifying: Path, srs: Path
) -> tuple[list[int], str]:
    """Run a circuit on public inputs; return the outputs and the commitment to the constants."""
    data = target.with_suffix(".input.json")
    record = {"input_data": [[_hex(v) for v in values] for values in inputs]}
    data.write_text(json.dumps(record), encoding="utf-8")
    _call(_ezkl().gen_witness, "run the circuit", data, circuit, target, verifying, srs)
    found = json.loads(target.read_text(encoding="utf-8"))
    ((point,),) = found["processed_params"]["polycommit"]  # one point, because there is one column
    return [_integer(v) for v in found["outputs"][0]], point


def prove(
    witness_path: Path,
    circuit: Path,
    proving: Path,
    srs: Path,
    *,
    timeout: float,
    threads: int | None = None,
) -> bytes:
    """Create the proof for a witness file; raise `ProofSystemError` after `timeout` seconds."""
    target = witness_path.with_suffix(".proof.json")
    paths = {"witness": witness_path, "model": circuit, "pk_path": proving, "srs_path": srs}
    arguments = {name: str(path) for name, path in paths.items()}
    _run("prove", timeout, threads, **arguments, proof_path=str(target))
    proof = bytes(json.loads(target.read_text(encoding="utf-8"))["proof"])
    target.unlink()
    return proof


def verify(
    proof: bytes, instances: Sequence[int], settings: Path, verifying: Path, srs: Path, work: Path
) -> bool:
    """Whether a proof is valid for `instances`: the public inputs, followed by the outputs."""
    return _verdict(proof, instances, settings, verifying, srs, work) == ""


def reads_whole(length: int, settings: Path, verifying: Path, srs: Path, work: Path) -> bool:
    """Whether the proof system reads at least `length` bytes of a proof under this key.

    The number of bytes read does not depend on their values. A dummy proof of zeros is parsed to
    its end, because such bytes are valid points (at infinity) and numbers.
    """
    shapes = json.loads(settings.read_text(encoding="utf-8"))["model_instance_shapes"]
    instances = [0] * sum(math.prod(shape) for shape in shapes)
    # Pass a proof of ``length - 1`` bytes: if the proof system tries to read one byte more, it
    # reports that the proof is too short.
    reason = _verdict(bytes(length - 1), instances, settings, verifying, srs, work)
    if not any(known in reason for known in (*TOO_SHORT, READ_TO_THE_END)):
        raise ProofSystemError(f"The proof system reported an unknown error: {reason}")
    return READ_TO_THE_END not in reason


def _verdict(
    proof: bytes, instances: Sequence[int], settings: Path, verifying: Path, srs: Path, work: Path
) -> str:
    ezkl = _ezkl()
    path = work / "proof.json"
    record = {
        "protocol": None,
        "instances": [[_hex(v) for v in instances]],
        "proof": list(proof),
        "hex_proof": "0x" + proof.hex(),
        "split": None,
        "pretty_public_inputs": None,
        "timestamp": None,
        "version": version(),
    }
    path.write_text(json.dumps(record), encoding="utf-8")
    try:
        with _quiet():
            holds = bool(ezkl.verify(str(path), str(settings), str(verifying), str(srs)))
    except Exception as error:  # the system raises errors of many types for malformed proofs
        return f"{type(error).__name__}: {error}"
    return "" if holds else "not verified"


def commitment_point(proof: bytes) -> str:
    """Extract the commitment to the constants from a proof: its first point, compressed."""
    if len(proof) < COMMITMENT_BYTES:
        return ""
    return compressed((int.from_bytes(proof[:32]), int.from_bytes(proof[32:COMMITMENT_BYTES])))


def compressed(point: tuple[int, int]) -> str:
    """Compress a point as in proofs: x, least significant byte first, with the parity of y."""
    return (point[0] | (point[1] & 1) << 255).to_bytes(32, "little").hex()


def memory_estimate(log_rows: int, blocks: int) -> float:
    """Estimate the peak memory of setup and proving in GiB, from measurements plus a margin."""
    return 0.3 + 0.4 * 2.0 ** (log_rows - 14) * (0.3 + 0.7 * blocks)


def memory_of_a_proof(proving: Path) -> float:
    """Estimate the peak memory of proving with this key in GiB, from measurements plus a margin."""
    return 0.1 + 3.5 * proving.stat().st_size / 2**30


def _ezkl() -> Any:
    """Import the proof system; let it keep look-up tables, which it trusts, in a private folder."""
    os.environ[OWN_FOLDER] = _tables()
    return import_optional("ezkl", extra="zk")


@cache
def _tables() -> str:
    folder = tempfile.mkdtemp(prefix="skuq-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _field_bytes(value: int) -> bytes:
    """Serialise a field element as the proof system does, least significant byte first."""
    return (int(value) % FIELD).to_bytes(32, "little")


def _hex(value: int) -> str:
    return _field_bytes(value).hex()


def _integer(text: str) -> int:
    value = int.from_bytes(bytes.fromhex(text), "little")
    return value - FIELD if value > FIELD // 2 else value


def _call(function: Any, what: str, *arguments: Any) -> None:
    texts = [str(value) if isinstance(value, Path) else value for value in arguments]
    try:
        with _quiet():
            function(*texts)
    except Exception as error:
        raise ProofSystemError(f"The proof system cannot {what}: {error}") from error


def _run(
    function: str, timeout: float | None = None, threads: int | None = None, /, **arguments: Any
) -> None:
    _ezkl()
    share = {} if threads is None else {THREADS: str(threads)}
    with tempfile.TemporaryDirectory(prefix="skuq-") as tables:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, function, json.dumps(arguments)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **share, OWN_FOLDER: tables},
        )
        try:
            _, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise ProofSystemError(
                f"The proof system did not finish {function!r} within {timeout:g} s and was "
                "stopped. Allow more time, or check that all inputs are in the committed range."
            ) from error
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode:
        lines = [line for line in errors.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"exit code {process.returncode}"
        raise ProofSystemError(f"The proof system failed in {function!r}: {reason}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Discard output of native code, which bypasses Python's streams; one thread at a time."""
    with _SILENCE, ExitStack() as at_the_end:
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            at_the_end.callback(os.close, null)
            for stream in (1, 2):
                copy = os.dup(stream)
                at_the_end.callback(os.close, copy)
                at_the_end.callback(os.dup2, copy, stream)
                os.dup2(null, stream)
        yield
