"""A GPU made of CPU arithmetic, which shows faults of device code on machines without a GPU.

    python -m tests.pretend_device cuda        # the tests marked `gpu`; or mps
    PRETEND_DEVICE=cuda pytest -m gpu tests/test_gpu.py

`device.cpp`, compiled once for each version of torch (which takes half a minute), gives the
dispatcher of a torch without CUDA what it lacks of the key ``CUDA``: an allocator, a guard, a
generator of its own, and one boxed kernel for all operators. The kernel views the device's memory
as CPU tensors, calls the CPU's kernel, and hands out its results as tensors of the device.
Autograd, vmap, optimisers and pickle are torch's own, and take the paths that they take on CUDA.

As on CUDA, it refuses operands on two devices, a generator of another device, ``.numpy()``, integer
matrix products, use in a forked process, and more memory than `limit`; with ``mps``, float64. It
counts kernels, copies and synchronisations, by line of Python (`watch`).

It does not show speed, orders of sums, races of streams, failures of cuDNN and cuBLAS, or kernels
that CUDA lacks.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

EVENTS = ("kernel", "view", "sync", "up", "down")
MEMORY = 16 * 2**30  # of the device, unless `limit` says otherwise
_ROOT = Path(__file__).parents[2]
_libraries: dict[str, ctypes.CDLL] = {}


def install(kind: str = "cuda") -> None:
    """Give this process the devices "cuda:0" and "cuda:1", or "mps"."""
    if kind in _libraries:
        return
    path, configuration = _compiled(kind), torch.__config__.show()
    torch._C._show_config = lambda: configuration  # it would ask for the version of CUDA
    with _quiet():  # torch says that kernels are overridden
        torch.ops.load_library(str(path))
    library = ctypes.CDLL(str(path))
    library.pretend_memory.restype = ctypes.c_int64
    library.pretend_memory.argtypes = [ctypes.c_int, ctypes.c_int64]
    _libraries[kind] = library
    _patch_storage(kind)
    if kind == "mps":
        torch.backends.mps.is_available = lambda: True
        _replace(torch.mps, _mps_functions(library))
    else:
        _replace(torch.cuda, _cuda_functions(library))


def installed() -> set[str]:
    return {*_libraries}


def used(kind: str = "cuda") -> int:
    return _libraries[kind].pretend_memory(0, 0)


def peak(kind: str, call: Callable[[], object]) -> int:
    """Bytes in use on the device, at most, while something runs."""
    _libraries[kind].pretend_memory(2, 0)
    call()
    return _libraries[kind].pretend_memory(1, 0)


def limit(n_bytes: int | None, kind: str = "cuda") -> None:
    """Let the device have so much memory; None: no limit."""
    _libraries[kind].pretend_memory(3, -1 if n_bytes is None else n_bytes)


class Report:
    """Events on the device: their number, their bytes, and the lines of Python they come from."""

    def __init__(self) -> None:
        self.count: collections.Counter[str] = collections.Counter()
        self.bytes: collections.Counter[str] = collections.Counter()
        self.lines: collections.Counter[tuple[str, str, str]] = collections.Counter()

    def __str__(self) -> str:
        found = [f"{n:7} {' '.join(key)}" for key, n in self.lines.most_common(40)]
        return "\n".join([f"{dict(self.count)}, bytes {dict(self.bytes)}", *found])


@contextlib.contextmanager
def watch(
    kind: str = "cuda", lines_of: tuple[str, ...] = ("sync", "up", "down")
) -> Iterator[Report]:
    """Count events on the device; those of `lines_of` with the line of skuq that caused them."""
    report, library = Report(), _libraries[kind]

    def seen(name: bytes, what: int, n_bytes: int) -> None:
        event, operator = EVENTS[what.bit_length() - 1], name.decode()
        report.count[event] += 1
        report.bytes[event] += n_bytes
        if event in lines_of:
            report.lines[event, operator, _line_of_skuq()] += 1

    function = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int, ctypes.c_int64)(seen)
    library.pretend_hook(function, 2 ** len(EVENTS) - 1)
    try:
        yield report
    finally:
        library.pretend_hook(ctypes.cast(None, type(function)), 0)


def _line_of_skuq() -> str:
    frame = sys._getframe()
    while frame is not None:
        if "/skuq/" in frame.f_code.co_filename:
            return f"{Path(frame.f_code.co_filename).relative_to(_ROOT)}:{frame.f_lineno}"
        frame = frame.f_back
    return "(another thread)"


def _compiled(kind: str) -> Path:
    """The library, compiled unless it is there."""
    text = (Path(__file__).parent / "device.cpp").read_text(encoding="utf-8")
    text = text.replace("IS_CUDA", str(int(kind == "cuda")))
    text = text.replace("pretend_LOWER", f"pretend_{kind}").replace("KIND", kind.upper())
    key = hashlib.sha256((text + torch.__version__).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "pretend_device"
    folder.mkdir(exist_ok=True)
    library = folder / f"{kind}-{key}.so"
    if library.exists():
        return library
    if shutil.which("g++") is None:
        raise OSError("a pretended device needs the compiler g++")
    made = library.with_suffix(f".{os.getpid()}")
    source = library.with_suffix(f".{os.getpid()}.cpp")
    source.write_text(text, encoding="utf-8")
    torch_root = Path(torch.__file__).parent
    subprocess.run(
        [
            *("g++", "-shared", "-fPIC", "-std=c++20", "-O0", "-g0", "-w", source, "-o", made),
            *(f"-I{torch_root}/include", f"-I{torch_root}/include/torch/csrc/api/include"),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            *(f"-L{torch_root}/lib", "-ltorch", "-ltorch_cpu", "-lc10"),
            f"-Wl,-rpath,{torch_root}/lib",
        ],
        check=True,
    )
    source.unlink()
    made.replace(library)  # several processes may compile at once
    return library


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing is printed, by C++ neither."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _free(library: ctypes.CDLL) -> int:
    limit = library.pretend_memory(4, 0)
    return (MEMORY if limit < 0 else limit) - library.pretend_memory(0, 0)


def _mps_functions(library: ctypes.CDLL) -> dict[str, Callable[..., object]]:
    ops = torch.ops.pretend_mps
    return {
        "manual_seed": lambda seed: ops.seed(_signed(seed), 0),
        "get_rng_state": lambda device="mps": ops.get_state(0),
        "set_rng_state": lambda state, device="mps": ops.set_state(state, 0),
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "recommended_max_memory": lambda: _free(library),
        "current_allocated_memory": lambda: 0,
    }


def _cuda_functions(library: ctypes.CDLL) -> dict[str, object]:
    ops = torch.ops.pretend_cuda

    def number(device=None):
        if isinstance(device, int):
            return device
        index = None if device is None else torch.device(device).index
        return library.pretend_device(-1) if index is None else index

    class device:
        def __init__(self, where):
            self.where = number(where)

        def __enter__(self):
            self.before = library.pretend_device(-1)
            library.pretend_device(self.where)

        def __exit__(self, *_):
            library.pretend_device(self.before)

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "device_count": lambda: 2,
        "current_device": lambda: library.pretend_device(-1),
        "set_device": lambda where: library.pretend_device(number(where)),
        "device": device,
        "synchronize": lambda where=None: None,
        "empty_cache": lambda: None,
        "get_device_name": lambda where=None: "a pretended device",
        "get_device_capability": lambda where=None: (9, 0),
        "memory_allocated": lambda where=None: library.pretend_memory(0, 0),
        "memory_reserved": lambda where=None: library.pretend_memory(0, 0),
        "max_memory_allocated": lambda where=None: library.pretend_memory(1, 0),
        "reset_peak_memory_stats": lambda where=None: library.pretend_memory(2, 0),
        "mem_get_info": lambda where=None: (_free(library), MEMORY),
        "manual_seed": lambda seed: ops.seed(_signed(seed), number()),
        "manual_seed_all": lambda seed: [ops.seed(_signed(seed), i) for i in range(2)],
        "get_rng_state": lambda where="cuda": ops.get_state(number(where)),
        "set_rng_state": lambda state, where="cuda": ops.set_state(state, number(where)),
        "get_rng_state_all": lambda: [ops.get_state(i) for i in range(2)],
        "set_rng_state_all": lambda states: [ops.set_state(s, i) for i, s in enumerate(states)],
    }


def _replace(module, functions) -> None:
    for name, function in functions.items():
        for place in (module, getattr(module, "random", module)):
            if hasattr(place, name):
                setattr(place, name, function)


def _patch_storage(kind: str) -> None:
    """Storages of the device, which pickle and deepcopy make, need a torch built for it."""
    plain = torch.UntypedStorage.__new__

    def new(cls, *args, device=None, **options):
        if device is not None and torch.device(device).type == kind:
            n_bytes = args[0] if args and isinstance(args[0], int) else 0
            return torch.empty(n_bytes, dtype=torch.uint8, device=device).untyped_storage()
        if device is not None:
            options["device"] = device
        return plain(cls, *args, **options)

    torch.UntypedStorage.__new__ = new


def _signed(seed: int) -> int:
    seed = int(seed) & (2**64 - 1)
    return seed - 2**64 if seed >= 2**63 else seed
