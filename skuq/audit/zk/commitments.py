"""Committing to a model, and what others can check of a commitment."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from skuq import __version__
from skuq.audit.zk import backend
from skuq.audit.zk.circuits import (
    KINDS,
    PAD_BITS,
    Architecture,
    build,
    fixed_inputs,
    input_names,
)
from skuq.audit.zk.files import (
    FORMAT,
    Refused,
    check_manifest,
    digest,
    digest_file,
    field,
    read_json,
    write_json,
    write_manifest,
)
from skuq.audit.zk.fixed_point import (
    BASE_BITS,
    Encoding,
    IntegerNetwork,
    encoding_of,
    fit_fixed_point,
    record_of,
    value_bits,
)
from skuq.audit.zk.network import dense_network

COMMITMENT, REFERENCE_STRING = "commitment.json", "srs"
SALT_BITS = 24  # what single precision holds exactly
REVEALED_BITS = 254  # of the committed numbers, by each proof: one evaluation of a polynomial
ROWS = range(13, 19)
ENOUGH_POINTS = 8  # rows of data per proof below which a larger circuit is tried


class Commitment(NamedTuple):
    """The public side of a commitment.

    Attributes
    ----------
    folder : Path
        Where it lies.
    shape : Architecture
        Public architecture; the verifying keys follow from it.
    encoding : Encoding
        How inputs become integers.
    classes : ndarray of shape (n_classes,)
        Labels.
    point : str
        The commitment itself: a point of the curve, hexadecimal.
    record : dict
        All entries of the file.
    """

    folder: Path
    shape: Architecture
    encoding: Encoding
    classes: NDArray[Any]
    point: str
    record: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of all entries; statements name their commitment by it."""
        return digest(self.record)

    @property
    def srs(self) -> Path:
        """Structured reference string."""
        return self.folder / REFERENCE_STRING

    @property
    def tolerance(self) -> float:
        """Tolerated difference between proven and floating-point confidences."""
        return float(self.record["tolerance"])


def commit(
    model: Any,
    X: ArrayLike,
    out: str | Path,
    *,
    tolerance: float = 0.005,
    srs: str | Path | None = None,
    n_bins: int = 10,
    n_proofs: int = 128,
    verdict_samples: int = 0,
    max_memory: float = 8.0,
    verbose: int = 0,
) -> Commitment:
    """Commit to a model without showing it.

    Two folders are written: ``out/public`` for everybody, and ``out/private``, which holds
    weights, salt and proving keys and must stay with the provider.

    Parameters
    ----------
    model : object
        Fitted classifier that `skuq.nets.adopt` takes over, of linear layers, ReLU, batch
        normalisation, embeddings and softmax.
    X : array-like of shape (n_samples, n_features)
        Calibration data. They set the accepted range and the scale of each feature, which are
        public, and the precision of the fixed-point numbers.
    out : str or Path
        Folder to make.
    tolerance : float, default=0.005
        Largest difference between a proven confidence and that of the model on `X`.
    srs : str or Path, default=None
        Structured reference string of a public ceremony. Default: one is generated here, which
        is for tests only: its maker could forge proofs, and every artefact says so.
    n_bins : int, default=10
        Largest number of confidence bins of an audit.
    n_proofs : int, default=128
        Proofs that may be made under this commitment. Each reveals one linear combination
        of weights and salt; the salt is as long as that takes.
    verdict_samples : int, default=0
        Reference samples for which verdicts can be proven that reveal nothing but pass or
        fail. Each chunk needs a pad that is committed to here, and that is used once.
    max_memory : float, default=8.0
        Memory for making keys and proofs, in GiB.
    verbose : int, default=0
        1 shows progress.

    Returns
    -------
    Commitment

    Raises
    ------
    TypeError
        If the model has a layer that a circuit does not support.
    ValueError
        If the tolerance cannot be kept or the model is too large for the memory.
    FileExistsError
        If `out` holds a commitment already.
    ImportError
        If the extra ``zk`` is not installed.

    References
    ----------
    Rabanser et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse of Model
    Abstention", ICML 2025, Section 5.2 and Algorithm 1.
    """
    backend.version()
    _check_parameters(tolerance, n_bins, n_proofs, verdict_samples)
    out = Path(out)
    public, private = out / "public", out / "private"
    if (public / COMMITMENT).exists() or private.exists():
        raise FileExistsError(f"{out} holds a commitment already; name another folder.")
    network = dense_network(model)
    encoding, integers, agreed = fit_fixed_point(network, X, tolerance)
    shape = _fit_shape(encoding, integers, n_bins, n_proofs, verdict_samples, max_memory)
    public.mkdir(parents=True, exist_ok=True)
    private.mkdir(mode=0o700)
    source = _reference_string(public / REFERENCE_STRING, shape.rows, srs)
    constants = _constants(shape, integers)
    np.savez(private / "constants.npz", *constants)
    keys, points = {}, set()
    for kind in tqdm(shape.kinds, desc="keys", disable=not verbose):
        _make_keys(private, kind, shape, constants, public / REFERENCE_STRING)
        keys[kind] = digest_file(private / f"{kind}.vk")
        points.add(_point(private, kind, shape, public / REFERENCE_STRING))
    if len(points) != 1:
        raise backend.ProofSystemError(
            "The circuits do not share one commitment; this version of the proof system orders "
            "constants in another way."
        )
    record = {
        "format": FORMAT,
        "versions": {"skuq": __version__, "ezkl": backend.version()},
        "architecture": {**shape._asdict(), "widths": list(shape.widths)},
        "encoding": record_of(encoding),
        "classes": network.classes.tolist(),
        "commitment": points.pop(),
        "keys": keys,
        "reference_string": {"sha256": digest_file(public / REFERENCE_STRING), "source": source},
        "tolerance": tolerance,
        "agreement": agreed._asdict(),
        "n_proofs": n_proofs,
    }
    write_json(private / "ledger.json", {"proofs": 0, "pads": 0})
    write_json(public / COMMITMENT, record)
    write_manifest(public)
    return load_commitment(public)


def load_commitment(folder: str | Path) -> Commitment:
    """Read and check the public folder of a commitment.

    Parameters
    ----------
    folder : str or Path
        Folder ``public`` that `commit` wrote.

    Returns
    -------
    Commitment

    Raises
    ------
    Refused
        If a file is missing, damaged or changed, or was made by another version.
    """
    folder = Path(folder)
    check_manifest(folder)
    record = read_json(folder / COMMITMENT)
    where = COMMITMENT
    if field(record, "format", int, where) != FORMAT:
        raise Refused(f"{COMMITMENT} has format {record['format']}, expected {FORMAT}.")
    made = field(field(record, "versions", dict, where), "ezkl", str, where)
    if made != backend.version():
        raise Refused(
            f"The commitment was made with ezkl {made}, but {backend.version()} is installed; "
            f"proofs are valid for one version only: pip install ezkl=={made}."
        )
    try:
        shape = _architecture(field(record, "architecture", dict, where))
        encoding = encoding_of(field(record, "encoding", dict, where))
    except ValueError as error:
        raise Refused(f"{COMMITMENT}: {error}") from error
    classes = np.array(field(record, "classes", list, where))
    if len(classes) != shape.widths[-1] or encoding.width != shape.widths[0]:
        raise Refused(f"{COMMITMENT}: classes, encoding and architecture do not fit together.")
    field(record, "tolerance", float, where)
    point = field(record, "commitment", str, where)
    string = field(record, "reference_string", dict, where)
    if digest_file(folder / REFERENCE_STRING) != field(string, "sha256", str, where):
        raise Refused("The structured reference string is not the one that was committed to.")
    return Commitment(folder, shape, encoding, classes, point, record)


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
            _make_keys(work, kind, commitment.shape, constants, commitment.srs)
            if keys is not None:
                keys.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(work / f"{kind}.settings", settings)
                shutil.copyfile(work / f"{kind}.vk", key)
        published = field(commitment.record["keys"], kind, str, COMMITMENT)
        if digest_file(key) != published:
            raise Refused(
                f"The verifying key of {kind!r} does not follow from the public architecture: "
                "the provider uses another circuit."
            )
        yield settings, key


def _make_keys(
    folder: Path, kind: str, shape: Architecture, constants: list[NDArray[Any]], srs: Path
) -> None:
    model, settings, circuit = (folder / f"{kind}.{end}" for end in ("onnx", "settings", "circuit"))
    model.write_bytes(build(kind, shape, constants))
    backend.describe(model, settings, kind, shape)
    backend.compile_circuit(model, settings, circuit)
    backend.setup(circuit, folder / f"{kind}.vk", folder / f"{kind}.pk", srs)


def _point(private: Path, kind: str, shape: Architecture, srs: Path) -> str:
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


def _constants(shape: Architecture, network: IntegerNetwork) -> list[NDArray[Any]]:
    layers = zip(network.weights, network.biases, strict=True)
    constants = [part for weight, bias in layers for part in (weight, bias[None])]
    constants.append(_random(shape.shapes[2 * len(network.weights)], SALT_BITS))
    if shape.n_pads:
        constants.append(_random(shape.shapes[-1], PAD_BITS))
    return constants


def _random(size: tuple[int, ...], bits: int) -> NDArray[np.int64]:
    count = int(np.prod(size))
    values = np.frombuffer(secrets.token_bytes(8 * count), dtype="<u8") >> np.uint64(64 - bits)
    return values.astype(np.int64).reshape(size)


def _fit_shape(
    encoding: Encoding,
    network: IntegerNetwork,
    n_bins: int,
    n_proofs: int,
    verdict_samples: int,
    max_memory: float,
) -> Architecture:
    """Choose the size of the circuits: the smallest in which a proof covers several rows."""
    widths = (network.weights[0].shape[0], *(w.shape[1] for w in network.weights))
    digits = -(-value_bits(network, encoding.limits()) // BASE_BITS)
    n_salts = -(-(REVEALED_BITS * n_proofs + 256) // SALT_BITS)
    found: Architecture | None = None
    for rows in ROWS:
        n_pads = -(-verdict_samples // ENOUGH_POINTS)
        shape = Architecture(widths, network.logit_bits, digits, n_salts, n_pads, n_bins, rows, {})
        if shape.n_committed > 2**rows - backend.BLINDING_ROWS:
            continue
        if backend.memory_estimate(shape) > max_memory:
            break
        points = _points(shape)
        if min(points.values()) < 1:
            continue
        if n_pads:
            # Fewer pads make room for more rows, never for fewer.
            shape = shape._replace(n_pads=-(-verdict_samples // points["padded"]))
            points = _points(shape)
        found = shape._replace(points=points)
        if min(points.values()) >= ENOUGH_POINTS:
            break
    if found is None:
        smallest = Architecture(widths, 0, digits, n_salts, 0, n_bins, ROWS[-1], {})
        need = max(2.0 ** np.ceil(np.log2(smallest.n_committed)), 2.0 ** ROWS[0])
        raise ValueError(
            f"The model is too large: {smallest.n_committed} numbers to commit to need at least "
            f"{need:.0f} rows, and max_memory={max_memory:g} GiB allows for no such circuit; "
            "give more memory, or commit to a smaller network, fewer proofs or fewer samples."
        )
    return found


def _points(shape: Architecture) -> dict[str, int]:
    """Rows of data that fit into one proof of each kind; 0 if none does."""
    room = 2**shape.rows - backend.BLINDING_ROWS
    points = {}
    with tempfile.TemporaryDirectory() as temporary:
        for kind in shape.kinds:
            if kind == "verdict":
                continue
            few, more = (_size(Path(temporary), kind, shape, n) for n in (4, 8))
            n = max(1, 4 + 4 * (room - few) // (more - few))
            while n and _size(Path(temporary), kind, shape, n) > room:
                n -= 1
            points[kind] = n
    return points


def _size(folder: Path, kind: str, shape: Architecture, n: int) -> int:
    """Rows of the circuit that `n` rows of data take."""
    shape = shape._replace(points={kind: n})
    model = folder / "size.onnx"
    model.write_bytes(build(kind, shape, [np.ones(size) for size in shape.shapes]))
    return int(backend.describe(model, folder / "size.settings", kind, shape)["num_rows"])


def _reference_string(target: Path, rows: int, source: str | Path | None) -> str:
    if source is None:
        backend.make_reference_string(target, rows)
        return "generated locally by the provider: for tests only, its maker could forge proofs"
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise ValueError(f"The structured reference string cannot be read: {error}") from error
    return f"given as a file ({Path(source).name}); whoever verifies must know where it is from"


def _architecture(record: dict[str, Any]) -> Architecture:
    try:
        values = {name: record[name] for name in Architecture._fields}
        numbers = {
            name: int(value) for name, value in values.items() if name not in ("widths", "points")
        }
        shape = Architecture(
            widths=tuple(int(width) for width in values["widths"]),
            points={str(kind): int(n) for kind, n in values["points"].items()},
            **numbers,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the architecture is malformed ({error})") from error
    counts = [*shape.widths, shape.digits, shape.n_salts, shape.n_bins, *shape.points.values()]
    if len(shape.widths) < 2 or min(counts) < 1 or shape.n_pads < 0:
        raise ValueError("the architecture is malformed (a size is not positive)")
    if shape.rows not in ROWS or not set(shape.points) <= set(KINDS):
        raise ValueError("the architecture is malformed (rows or kinds of circuits)")
    return shape


def _check_parameters(tolerance: float, n_bins: int, n_proofs: int, verdict_samples: int) -> None:
    if not 0 < tolerance < 1:
        raise ValueError(f"`tolerance` must be in (0, 1), got {tolerance}.")
    for name, value, least in (
        ("n_bins", n_bins, 1),
        ("n_proofs", n_proofs, 1),
        ("verdict_samples", verdict_samples, 0),
    ):
        if int(value) != value or value < least:
            raise ValueError(f"`{name}` must be an integer of at least {least}, got {value}.")


def private_folder(commitment: Commitment) -> Path:
    """The provider's folder beside the public one."""
    folder = commitment.folder.parent / "private"
    if not (folder / "constants.npz").exists():
        raise FileNotFoundError(
            f"{folder} does not hold the provider's keys; proofs can only be made where the "
            "commitment was made."
        )
    return folder
