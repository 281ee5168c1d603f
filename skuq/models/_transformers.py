"""Models of the library transformers, and their inputs as one array."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.models._adopted_model import AdoptedModel
from skuq.wrappers import unwrap

#: What a model of text takes, in the order in which it is stacked.
TEXT_FIELDS = ("input_ids", "attention_mask", "token_type_ids")


def is_pretrained(model: Any) -> bool:
    """Whether this is a model of the library transformers, which need not be installed."""
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(model, library.PreTrainedModel)


def pretrained_inside(estimator: Any) -> Any:
    """Return the transformers model that an estimator is or holds frozen.

    Parameters
    ----------
    estimator : object
        What the user passed.

    Returns
    -------
    transformers.PreTrainedModel or None
        None if it is anything else.
    """
    while not is_pretrained(estimator):
        inside = unwrap(estimator, fitted=False)
        if inside is None:
            return None
        estimator = inside.estimator
    return estimator


def takes_tokens(estimator: Any) -> bool:
    """Whether the inputs of an estimator are tokens of text, for a transformers model.

    Parameters
    ----------
    estimator : object
        What the user passed.

    Returns
    -------
    bool
    """
    model = pretrained_inside(estimator)
    return model is not None and model.main_input_name == TEXT_FIELDS[0]


def as_rows(estimator: Any, X: Any) -> Any:
    """Return the inputs of a transformers model as one array, and those of others as they are.

    Parameters
    ----------
    estimator : object
        What the user passed as a model.
    X : mapping of str to array-like, or array-like
        What a tokeniser or an image processor returns, with one row per sample in each field;
        or the array that this function makes of it.

    Returns
    -------
    array
        Tokens have shape (n_samples, n_fields, length), with the fields `TEXT_FIELDS` in this
        order as far as they are given; images have the shape of ``pixel_values``.

    Raises
    ------
    ValueError
        If a field is missing, unknown, or of another shape than the first.
    """
    model = pretrained_inside(estimator)
    if model is None:
        return X
    main = model.main_input_name
    if not isinstance(X, Mapping):
        X = np.asarray(X)
        return X[:, None] if main == TEXT_FIELDS[0] and X.ndim == 2 else X
    known = TEXT_FIELDS if main == TEXT_FIELDS[0] else (main,)
    given = {name: values for name, values in X.items() if values is not None}
    if main not in given or not set(given) <= set(known):
        raise ValueError(
            f"{type(model).__name__} needs inputs {main!r} and takes {list(known)}, got "
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
        array = values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name!r} must hold numbers and rows of one length; let the tokeniser pad them "
            "(padding=True)."
        )
    return array


class Logits(nn.Module):
    """Logits of a transformers model, from its inputs as one tensor.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model with a head for classification or regression.
    """

    rows_at_once = 64  # of batches without gradients, whose activations are large

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, X: Tensor) -> Tensor:
        name = self.model.main_input_name
        inputs = {name: X}
        if name == TEXT_FIELDS[0]:
            fields = zip(TEXT_FIELDS, X.unbind(1), strict=False)
            inputs = {field: values.long() for field, values in fields}
        outputs = self.model(**inputs, return_dict=True)
        if not hasattr(outputs, "logits"):
            raise ValueError(
                f"{type(self.model).__name__} returns no logits; use a model with a head, such as "
                "AutoModelForSequenceClassification or AutoModelForImageClassification."
            )
        logits: Tensor = outputs.logits
        return logits


@dataclass(frozen=True)
class TransformersModel(AdoptedModel):
    """A transformers model, whose inputs may be a mapping."""

    def inputs(self, X: Any) -> Tensor:
        return super().inputs(as_rows(self._pretrained, X) if self.transform is None else X)

    @property
    def _pretrained(self) -> Any:
        return next(m.model for m in self.module.modules() if isinstance(m, Logits))


def adopt_pretrained(model: Any) -> AdoptedModel:
    """Take over a transformers model with a head for classification or regression.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Private copy of a model, in evaluation mode.

    Returns
    -------
    AdoptedModel
        Its classes are the names in ``config.id2label``, unless they are those that
        transformers makes up.

    Raises
    ------
    ValueError
        If the labels of a sample do not exclude each other.
    """
    config = model.config
    if getattr(config, "problem_type", None) == "multi_label_classification":
        raise ValueError(
            f"{type(model).__name__} is a multi-label model, whose logits are no softmax; adopt "
            "one of single labels."
        )
    names = [str(config.id2label[code]) for code in range(config.num_labels)]
    made_up = names == [f"LABEL_{code}" for code in range(config.num_labels)]
    return TransformersModel(Logits(model).eval(), None if made_up else np.array(names))
