"""Serialisation of objects to plain containers, arrays and text, and back.

A file that names classes by their modules becomes unreadable when a class moves. Therefore each
class in saved models has a fixed name in the format, which `stored` registers. An object is saved
as a dictionary of its fields, in which the key "skuq" holds the name of its class. The names are:

- ``tables.table-model``, ``tables.clean-columns``, ``tables.date-column``,
  ``tables.number-format``, ``tables.training-values``, ``tables.comparison``: a model of a table,
  and the columns and values that it was trained on;
- ``tables.quantities``, ``tables.target-scale``, ``residuals.row-noise``, ``residuals.forest``,
  ``features.table-encoder``: distributions of a quantity, from the residuals of similar rows;
- ``ood.combination``, ``ood.tail``: scores of held-out rows, the reference for conformal p-values;
- ``quam.classifier``, ``quam.regressor``, ``quam.pool-search``, ``quam.refit-search``,
  ``quam.pointwise-search``, ``quam.classification``, ``quam.regression``, ``quam.found-networks``,
  ``quam.refitted``, ``quam.fitted-search``, ``quam.search-problem``, ``quam.output-bias``: the
  settings and the results of searches for adversarial models;
- ``models.network``, ``models.learner``, ``models.chain``, ``models.rows``, ``models.table``:
  wrapped models and their inputs;
- ``torch.tensor``, ``torch.chain`` (a sequence of named layers), ``torch.linear``,
  ``torch.relu``, ``torch.tanh``, ``torch.sigmoid``, ``torch.identity``, ``networks.affine``,
  ``networks.binary-logits``: tensors, networks and their layers, as arrays;
- ``pandas.frame``: a table as its columns; ``dict``: a dictionary that itself has a key "skuq".

Names and fields define the format. Changing a name or a field requires a new ``FORMAT`` of saved
folders, in ``skuq/tables/_storage.py``. Because a file may be forged, unknown names, missing or
unknown fields, and values of the wrong type are rejected.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from skuq.extras import import_networks

MARK = "skuq"  # dictionary key that holds the name of the serialised class
CLASSES: dict[str, type] = {}  # classes by their names in the file format
_FIELDS: dict[type, tuple[str, Mapping[str, Any] | None]] = {}
# Module that defines the class, for each name in the file format; imported when it is needed.
_MODULES: dict[str, str] = {}
_Class = TypeVar("_Class", bound=type)


class NotStorableError(TypeError):
    """An object contains a part that cannot be serialised; the message names the part."""


class StoredError(ValueError):
    """Serialised data are invalid; the message gives the reason."""


def stored(name: str, *, fields: Mapping[str, Any] | None = None) -> Callable[[_Class], _Class]:
    """Register a class under a fixed name in the format of saved models.

    `fields` maps the attributes to be saved to type hints. Omit it for dataclasses and named
    tuples, which declare their fields. Parameters of scikit-learn estimators are always saved, and
    are validated by the parameter constraints of the estimator. Layers of networks are rebuilt by
    calling the class with the fields.
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
    """Names and type hints of the fields of a class."""
    fields = _FIELDS[kind][1]
    if issubclass(kind, BaseEstimator):
        return dict.fromkeys(kind._get_param_names(), Any) | dict(fields or {})
    if fields is not None:
        return fields
    # Evaluate the annotations only when they are needed, because they may refer to names that are
    # defined after the class.
    hints = get_type_hints(kind)
    names = getattr(kind, "_fields", None) or [each.name for each in dataclasses.fields(kind)]
    return {name: hints[name] for name in names}


# --- to containers -----------------------------------------------------------------------------


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
    if _is(value, "pandas", "DataFrame"):
        return {MARK: "pandas.frame", "columns": {n: c.to_numpy() for n, c in value.items()}}
    if _is(value, "torch", "Tensor"):
        return {MARK: "torch.tensor", "array": _array(value)}
    if _is_layer(kind):
        return _network(value)
    if kind.__module__.split(".")[0] == "skuq":
        raise NotStorableError(f"{kind.__module__}.{kind.__qualname__}")
    return value


def _is(value: Any, module: str, name: str) -> bool:
    """Whether a value is an instance of a class, without importing the module of the class."""
    imported = sys.modules.get(module)
    return imported is not None and isinstance(value, getattr(imported, name))


def _is_layer(kind: type) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.nn.Module)


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()


def _record(value: Any) -> dict[str, Any]:
    kind = type(value)
    name, fields = _FIELDS[kind][0], _fields(kind)
    if _is_layer(kind):
        kept = {field: getattr(value, field) for field in fields}
        kept = {f: v.tolist() if _is(v, "torch", "Tensor") else v for f, v in kept.items()}
    else:
        kept = value._asdict() if hasattr(value, "_asdict") else vars(value)
    try:
        _check(name, kept, fields)
    except StoredError as error:
        raise NotStorableError(str(error)) from error
    return {MARK: name, **{field: to_stored(each) for field, each in kept.items()}}


def _network(module: Any) -> dict[str, Any]:
    """Serialise a torch layer or a sequence of layers."""
    from torch import nn

    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        layers = dict(module.named_children())
        if layers:
            records = [to_stored(layer) for layer in layers.values()]
            return {MARK: "torch.chain", "names": [*layers], "layers": records}
    if type(module) is nn.Linear:
        bias = None if module.bias is None else _array(module.bias)
        return {MARK: "torch.linear", "weight": _array(module.weight), "bias": bias}
    for name, kind in _simple_layers().items():
        if type(module) is kind:
            return {MARK: name}
    raise NotStorableError(type(module).__qualname__)


def _simple_layers() -> dict[str, Any]:
    from torch import nn

    kinds = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity)
    return {f"torch.{kind.__name__.lower()}": kind for kind in kinds}


# --- from containers ---------------------------------------------------------------------------


def from_stored(value: Any) -> Any:
    """Invert `to_stored`; raises `StoredError` for invalid data."""
    try:
        return _restored(value)
    except StoredError:
        raise
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise StoredError(str(error)) from error


def _restored(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_restored, value))
    if type(value) is not dict:
        return value
    if MARK not in value:
        return {key: _restored(each) for key, each in value.items()}
    fields = {key: _restored(each) for key, each in value.items() if key != MARK}
    name = value[MARK]
    if isinstance(name, str) and name in _MODULES:
        import_networks(_MODULES[name])
    if isinstance(name, str) and name in CLASSES:
        return _made(name, fields)
    if name == "dict":
        _check(name, fields, {"keys": list[Any], "values": list[Any]})
        return dict(zip(fields["keys"], fields["values"], strict=True))
    if name == "pandas.frame":
        import pandas as pd

        _check(name, fields, {"columns": dict[str, np.ndarray]})
        return pd.DataFrame(fields["columns"])
    if isinstance(name, str) and name.startswith("torch."):
        return _torch(name, fields)
    raise StoredError(f"Unknown format {name!r}.")


def _made(name: str, fields: dict[str, Any]) -> Any:
    kind = CLASSES[name]
    _check(name, fields, _fields(kind))
    if issubclass(kind, tuple) or _is_layer(kind):
        return kind(**fields)
    made: Any = object.__new__(kind)
    vars(made).update(fields)
    if hasattr(made, "_parameter_constraints"):
        made._validate_params()
    return made


def _torch(name: str, fields: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    if name == "torch.tensor":
        _check(name, fields, {"array": np.ndarray})
        return torch.tensor(fields["array"])
    if name == "torch.chain":
        _check(name, fields, {"names": list[str], "layers": list[nn.Module]})
        chain = nn.Sequential()
        for layer_name, layer in zip(fields["names"], fields["layers"], strict=True):
            chain.add_module(layer_name, layer)
        return chain.eval().requires_grad_(False)
    if name == "torch.linear":
        return _linear(fields)
    if name in _simple_layers():
        _check(name, fields, {})
        return _simple_layers()[name]()
    raise StoredError(f"Unknown format {name!r}.")


def _linear(fields: dict[str, Any]) -> Any:
    import torch

    _check("torch.linear", fields, {"weight": np.ndarray, "bias": np.ndarray | None})
    weight, bias = fields["weight"], fields["bias"]
    fits = weight.ndim == 2 and (bias is None or bias.shape == weight.shape[:1])
    if not fits or weight.dtype.kind != "f":
        raise StoredError("torch.linear: shapes or dtype of weight and bias are invalid.")
    n_out, n_in = weight.shape
    tensors = {name: torch.tensor(each) for name, each in fields.items() if each is not None}
    with torch.random.fork_rng(devices=[]):  # the random initial weights are discarded
        layer = torch.nn.Linear(n_in, n_out, bias is not None, dtype=tensors["weight"].dtype)
    layer.load_state_dict(tensors)
    return layer.requires_grad_(False)


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
    """Whether a value and all its items match a type hint."""
    origin, of = get_origin(hint), get_args(hint)
    # Since NumPy 2.5, `NDArray[...]` is an alias of its own; before, it was `np.ndarray[...]`.
    if origin is NDArray:
        return _is_array(value, of[0])
    if hint is Any:
        return True
    if origin is NotRequired:
        return _is_of(value, of[0])
    if origin in (Union, UnionType):
        return any(_is_of(value, each) for each in of)
    if origin is np.ndarray:
        (scalar,) = get_args(of[1])
        return _is_array(value, scalar)
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


def _is_array(value: Any, scalar: Any) -> bool:
    """Whether a value is an array of a kind of scalars; `Any` stands for all kinds."""
    known = isinstance(scalar, type) and scalar is not Any
    return isinstance(value, np.ndarray) and (not known or np.issubdtype(value.dtype, scalar))
