"""Conversion of the inputs of transformers models to one array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skuq.wrappers import is_instance_of

#: Input fields of a text model, in the order in which they are stacked.
TEXT_FIELDS = ("input_ids", "attention_mask", "token_type_ids")


def rows_of(model: Any, X: Any) -> Any:
    """Convert a mapping or array of a transformers model's inputs to one array; see `as_rows`."""
    main = model.main_input_name
    if not isinstance(X, Mapping):
        X = np.asarray(X)
        return X[:, None] if main == TEXT_FIELDS[0] and X.ndim == 2 else X
    known = TEXT_FIELDS if main == TEXT_FIELDS[0] else (main,)
    given = {name: values for name, values in X.items() if values is not None}
    if main not in given or not set(given) <= set(known):
        raise ValueError(
            f"{type(model).__name__} requires the field {main!r} and accepts {list(known)}, got "
            f"{sorted(given)}."
        )
    if main != TEXT_FIELDS[0]:
        return _array(given[main], main)
    if "token_type_ids" in given and "attention_mask" not in given:
        given["attention_mask"] = np.ones_like(_array(given[main], main))
    fields = {name: _array(given[name], name) for name in known if name in given}
    shapes = {name: values.shape for name, values in fields.items()}
    if len(shapes[main]) != 2 or len(set(shapes.values())) > 1:
        raise ValueError(f"Tokens must have shape (n_samples, length) in all fields, got {shapes}.")
    return np.stack(list(fields.values()), axis=1)


def _array(values: Any, name: str) -> NDArray[Any]:
    try:
        is_tensor = is_instance_of(values, "torch", "Tensor")
        array = values.numpy(force=True) if is_tensor else np.asarray(values)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name!r} must contain numbers, in rows of equal length; let the tokeniser pad them "
            "(padding=True)."
        )
    return array
