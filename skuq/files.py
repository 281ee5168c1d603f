"""Files that are written completely or not at all, and objects in files.

A file that names classes by their modules becomes unreadable when a class moves. Therefore each
class in saved models has a fixed name in the format, given by the decorator `stored`, and an object
is saved as a dictionary of its fields, with this name under the key "skuq". This module itself
defines the names ``torch.tensor``, ``torch.chain`` (a sequence of named layers), ``torch.linear``,
``torch.relu``, ``torch.tanh``, ``torch.sigmoid``, ``torch.identity``, ``pandas.frame`` (a table as
its columns), ``sklearn.trees`` (boosted trees as one array of nodes), and ``dict`` (a dictionary
that itself has a key "skuq"). To change the format, increase ``FORMAT`` in
``skuq/tables/_storage.py``. Because a file may be forged, unknown names, missing or unknown fields,
and values of the wrong type are rejected.
"""

import dataclasses
import glob
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from skuq.imports import import_networks
from skuq.wrappers import is_instance_of

DAY = 24 * 3600  # seconds


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file completely or not at all; text is written as UTF-8, with its line endings."""
    with atomic_path(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an unused path in the same folder; what the block writes there replaces `path`.

    The block creates a file, or a folder if nothing exists at `path`. If the block raises, or the
    process dies, a file at `path` is unchanged. A file that is replaced keeps its mode, and a
    link stays a link.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"`path` must be in an existing folder, got {Path(path).parent}; create it first."
        )
    if target.exists() and not target.is_file():  # such as a device
        raise OSError(f"{path} exists and is not a regular file.")
    for left in target.parent.glob(f".{glob.escape(target.name)}.{12 * '?'}.partial"):
        with suppress(OSError):  # delete leftovers of processes killed more than a day ago
            if left.is_file() and time.time() - left.stat().st_mtime > DAY:
                left.unlink()
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.partial")
    try:
        yield partial
        if target.exists():
            shutil.copymode(target, partial)
        os.replace(partial, target)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_paths(*paths: str | os.PathLike[str]) -> Iterator[tuple[Path, ...]]:
    """Apply `atomic_path` to several files; if one of them cannot be replaced, change none."""
    targets = [Path(os.path.realpath(path)) for path in paths]
    before = [target.read_bytes() if target.is_file() else None for target in targets]
    try:
        with ExitStack() as stack:
            yield tuple(stack.enter_context(atomic_path(path)) for path in paths)
    except BaseException:
        for target, content in zip(targets, before, strict=True):
            if content is not None and target.read_bytes() != content:
                target.write_bytes(content)
            elif content is None and target.is_file():
                target.unlink()
        raise


MARK = "skuq"  # dictionary key that holds the name of the serialised class
CLASSES: dict[str, type] = {}  # classes by their names in the file format
_FIELDS: dict[type, tuple[str, Mapping[str, Any] | None]] = {}
_MODULES: dict[str, str] = {}  # module of each class, by the name of the class; imported on demand
_Class = TypeVar("_Class", bound=type)


class NotStorableError(TypeError):
    """An object contains a part that cannot be serialised; the message names the part."""


class StoredError(ValueError):
    """Serialised data are invalid; the message gives the reason."""


def untrusted(path: Any, instead: str = "") -> str:
    """Explain why pickled objects are loaded only if the user trusts the file."""
    return (
        f"Loading {path} unpickles objects, which runs code of whoever made them. If you trust the "
        f"file as you would trust a program, say so (`trust=True`). {instead}".rstrip()
    )


def stored(name: str, *, fields: Mapping[str, Any] | None = None) -> Callable[[_Class], _Class]:
    """Register a class under a fixed name in the format of saved models.

    `fields` maps the attributes to be saved to type hints; dataclasses and named tuples declare
    them already. Parameters of scikit-learn estimators are always saved, and are validated by the
    parameter constraints of the estimator. Layers are rebuilt by calling the class with the fields.
    """

    def register(kind: _Class) -> _Class:
        if name in CLASSES:
            raise ValueError(f"{name!r} is already the name of {CLASSES[name].__qualname__}.")
        CLASSES[name] = kind
        _FIELDS[kind] = name, fields
        return kind

    return register


def stored_in(module: str, *names: str) -> None:
    """Register the module that defines the classes with these names; it is imported on demand."""
    _MODULES.update(dict.fromkeys(names, module))


def _fields(kind: Any) -> Mapping[str, Any]:
    fields = _FIELDS[kind][1]
    if issubclass(kind, BaseEstimator):
        return dict.fromkeys(kind._get_param_names(), Any) | dict(fields or {})
    if fields is not None:
        return fields
    # Annotations may refer to names that are defined after the class, so evaluate them late.
    hints = get_type_hints(kind)
    names = getattr(kind, "_fields", None) or [each.name for each in dataclasses.fields(kind)]
    return {name: hints[name] for name in names}


def to_stored(value: Any) -> Any:
    """Replace skuq objects, tensors and networks in a value by containers and arrays."""
    kind = type(value)
    if kind in _FIELDS:
        return _record(value)
    if kind is dict:
        if MARK in value:
            keys, values = list(value), [to_stored(each) for each in value.values()]
            return {MARK: "dict", "keys": keys, "values": values}
        return {key: to_stored(each) for key, each in value.items()}
    if kind in (list, tuple):
        return kind(map(to_stored, value))
    if isinstance(value, pd.DataFrame):
        return {MARK: "pandas.frame", "columns": {n: c.to_numpy() for n, c in value.items()}}
    if getattr(value, "is_categorical_", "") is None:  # histogram boosting without categories
        # Join the nodes of all trees, because each small array would take a millisecond to load.
        trees, bare = [*chain(*value._predictors)], copy(value)
        bare._predictors = [[None] * len(value._predictors[0])]
        sizes = np.array([len(tree.nodes) for tree in trees])
        nodes = np.concatenate([tree.nodes for tree in trees])
        return {MARK: "sklearn.trees", "estimator": bare, "nodes": nodes, "sizes": sizes}
    if is_instance_of(value, "torch", "Tensor"):
        return {MARK: "torch.tensor", "array": value.numpy(force=True)}
    if _is_layer(kind):
        return _network(value)
    if kind.__module__.split(".")[0] == "skuq":
        raise NotStorableError(f"{kind.__module__}.{kind.__qualname__}")
    return value


def _is_layer(kind: type) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.nn.Module)


def _record(value: Any) -> dict[str, Any]:
    kind = type(value)
    name, fields = _FIELDS[kind][0], _fields(kind)
    if _is_layer(kind):
        kept = {field: getattr(value, field) for field in fields}
        tensors = {f: v for f, v in kept.items() if is_instance_of(v, "torch", "Tensor")}
        kept |= {field: tensor.tolist() for field, tensor in tensors.items()}
    else:
        kept = value._asdict() if hasattr(value, "_asdict") else vars(value)
    try:
        _check(name, kept, fields)
    except StoredError as error:
        raise NotStorableError(str(error)) from error
    return {MARK: name, **{field: to_stored(each) for field, each in kept.items()}}


def _network(module: Any) -> dict[str, Any]:
    from torch import nn

    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        layers = dict(module.named_children())
        if layers:
            records = [to_stored(layer) for layer in layers.values()]
            return {MARK: "torch.chain", "names": [*layers], "layers": records}
    if type(module) is nn.Linear:
        bias = None if module.bias is None else module.bias.numpy(force=True)
        return {MARK: "torch.linear", "weight": module.weight.numpy(force=True), "bias": bias}
    for name, kind in _simple_layers().items():
        if type(module) is kind:
            return {MARK: name}
    raise NotStorableError(type(module).__qualname__)


def _simple_layers() -> dict[str, Any]:
    from torch import nn

    kinds = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity)
    return {f"torch.{kind.__name__.lower()}": kind for kind in kinds}


def from_stored(value: Any) -> Any:
    """Invert `to_stored`; raises `StoredError` for invalid data."""
    try:
        return _restored(value)
    except StoredError:
        raise
    except (AttributeError, TypeError, ValueError, LookupError, RuntimeError) as error:
        raise StoredError(str(error)) from error


def _restored(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_restored, value))
    if type(value) is not dict:
        return value
    fields = {key: _restored(each) for key, each in value.items() if key != MARK}
    if MARK not in value:
        return fields
    name = value[MARK]
    if not isinstance(name, str):
        raise StoredError(f"Unknown format {name!r}.")
    if name in _MODULES:
        import_networks(_MODULES[name])
    if name in CLASSES:
        kind = CLASSES[name]
        _check(name, fields, _fields(kind))
        if issubclass(kind, tuple) or _is_layer(kind):
            return kind(**fields)
        made: Any = object.__new__(kind)
        vars(made).update(fields)
        if hasattr(made, "_parameter_constraints"):
            made._validate_params()
        return made
    if name in _OWN:
        hints, make = _OWN[name]
        _check(name, fields, hints)
        return make(**fields)
    if name.startswith("torch.") and name in _simple_layers():
        _check(name, fields, {})
        return _simple_layers()[name]()
    raise StoredError(f"Unknown format {name!r}.")


def _tensor(array: NDArray[Any]) -> Any:
    import torch

    return torch.tensor(array)


def _chain(names: list[str], layers: list[Any]) -> Any:
    from torch import nn

    chain = nn.Sequential()
    for name, layer in zip(names, layers, strict=True):
        chain.add_module(name, layer)
    return chain.eval().requires_grad_(False)


def _linear(weight: NDArray[Any], bias: NDArray[Any] | None) -> Any:
    import torch

    tensors = {"weight": _tensor(weight)} | ({} if bias is None else {"bias": _tensor(bias)})
    n_out, n_in = weight.shape
    with torch.random.fork_rng(devices=[]):  # keeps the state of torch's generator
        layer = torch.nn.Linear(n_in, n_out, bias is not None, dtype=tensors["weight"].dtype)
    layer.load_state_dict(tensors)
    return layer.requires_grad_(False)


def _trees(estimator: Any, nodes: NDArray[Any], sizes: NDArray[Any]) -> Any:
    from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
    from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor

    if nodes.dtype != PREDICTOR_RECORD_DTYPE or (sizes < 1).any() or sizes.sum() != len(nodes):
        raise StoredError("The nodes of the trees do not have the stated sizes.")
    # Check the children of each node, because scikit-learn uses these indices without a check.
    own = np.arange(len(nodes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    size = np.repeat(sizes, sizes)
    leads = [(nodes[side] > own) & (nodes[side] < size) for side in ("left", "right")]
    known = (nodes["feature_idx"] >= 0) & (nodes["feature_idx"] < estimator.n_features_in_)
    valid = leads[0] & leads[1] & known & (nodes["is_categorical"] == 0)
    if not (valid | (nodes["is_leaf"] == 1)).all():
        raise StoredError("A node of a tree leads out of the tree, or reads no known column.")
    no_categories = np.zeros((0, 8), dtype=np.uint32)
    of_trees = np.split(nodes, np.cumsum(sizes)[:-1])
    trees = [TreePredictor(each, no_categories, no_categories) for each in of_trees]
    n_each = len(estimator._predictors[0])  # trees per iteration
    estimator._predictors = [trees[k : k + n_each] for k in range(0, len(trees), n_each)]
    return estimator


# For each name that this module defines: the fields, and the function that builds the object.
_OWN: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "dict": (
        {"keys": list[Any], "values": list[Any]},
        lambda keys, values: dict(zip(keys, values, strict=True)),
    ),
    "pandas.frame": ({"columns": dict[str, np.ndarray]}, lambda columns: pd.DataFrame(columns)),
    "sklearn.trees": (
        {"estimator": BaseEstimator, "nodes": np.ndarray, "sizes": NDArray[np.integer]},
        _trees,
    ),
    "torch.tensor": ({"array": np.ndarray}, _tensor),
    "torch.chain": ({"names": list[str], "layers": list[Any]}, _chain),
    "torch.linear": ({"weight": np.ndarray, "bias": np.ndarray | None}, _linear),
}


def _check(name: str, values: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Raise `StoredError` unless the values match the fields and their type hints."""
    lacking = [f for f in fields if f not in values and get_origin(fields[f]) is not NotRequired]
    if lacking or (unknown := [field for field in values if field not in fields]):
        what = f"lacks the field {lacking[0]!r}" if lacking else f"has no field {unknown[0]!r}"
        raise StoredError(f"{name} {what}.")
    for field, each in values.items():
        if not _is_of(each, fields[field]):
            hint = fields[field]
            expected, found = hint.__name__ if isinstance(hint, type) else hint, type(each).__name__
            raise StoredError(f"{name}: {field!r} is of type {found}, not {expected}.")


def _is_of(value: Any, hint: Any) -> bool:
    """Return whether a value and all its items match a type hint."""
    origin, of = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is NotRequired:
        return _is_of(value, of[0])
    if origin in (Union, UnionType):
        return any(_is_of(value, each) for each in of)
    # Since NumPy 2.5, the origin of `NDArray[...]` is `NDArray`; before, `np.ndarray`.
    if origin in (NDArray, np.ndarray):
        scalar = of[0] if origin is NDArray else get_args(of[1])[0]
        of_any_kind = scalar is Any or not isinstance(scalar, type)
        return isinstance(value, np.ndarray) and (of_any_kind or np.issubdtype(value.dtype, scalar))
    if origin is dict:
        return isinstance(value, dict) and all(
            _is_of(key, of[0]) and _is_of(each, of[1]) for key, each in value.items()
        )
    if origin is list or (origin is tuple and of[1:] == (...,)):
        return isinstance(value, origin) and all(_is_of(each, of[0]) for each in value)
    if origin is tuple:
        fits = isinstance(value, tuple) and len(value) == len(of)
        return fits and all(map(_is_of, value, of))
    if origin is not None:  # a callable
        return callable(value)
    if hint in (int, float):
        return isinstance(value, (int, np.integer) if hint is int else (int, float, np.number))
    return isinstance(value, NoneType if hint is None else hint)
