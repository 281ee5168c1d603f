"""Class labels that the outputs of a network stand for."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from skuq.labels import codes_of
from skuq.models._adopted_model import AdoptedModel
from skuq.models._evaluate import input_error
from skuq.models._taken_as_it_is import level_of_the_user

_N_EXAMPLES = 64  # samples that show what a model returns
_ROW_SUM_TOLERANCE = 1e-3  # of probabilities in half precision too


def encode_labels(
    y: NDArray[Any], model: AdoptedModel, inputs: Tensor
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Turn labels into positions among a model's outputs.

    Parameters
    ----------
    y : ndarray of shape (n_samples,)
        Class labels.
    model : AdoptedModel
        Classifier. If it does not know its classes, they are the sorted labels in `y` when
        their number fits, else the codes 0 .. n_classes - 1 when `y` holds such codes.
    inputs : Tensor of shape (n_samples, ...)
        Preprocessed inputs; the first ones show what the model returns.

    Returns
    -------
    classes : ndarray of shape (n_classes,)
        Labels in the order of the outputs.
    codes : ndarray of shape (n_samples,), int64
        Output that each label belongs to.

    Raises
    ------
    ValueError
        If a label is unknown to the model, or the model does not return logits.

    Warns
    -----
    UserWarning
        If the model returns probabilities.
    """
    logits = example_outputs(model, inputs)
    n_classes = logits.shape[-1]
    if logits.ndim != 2 or n_classes < 2:
        raise ValueError(
            "The model must return logits of shape (n_samples, n_classes) with at least 2 "
            f"classes, got shape {(1, *logits.shape[1:])} for one sample."
        )
    warn_of_probabilities(logits)
    classes = model.classes
    if classes is None or len(classes) != n_classes:
        # skorch infers the classes from the labels of `y`, which may be fewer than the outputs.
        classes = classes_of_outputs(y if classes is None else classes, n_classes)
    return classes, codes_of(y, classes, "y")


def example_outputs(model: AdoptedModel, inputs: Tensor) -> Tensor:
    """Outputs for the first inputs; an error that names shapes if there are none."""
    examples = inputs[:_N_EXAMPLES]
    try:
        return model.outputs(examples)
    except RuntimeError as error:  # of torch
        raise input_error(model.module, examples.shape, error) from error


def warn_of_probabilities(logits: Tensor) -> None:
    """Warn, at the level of the user, if what should be logits are probabilities.

    Parameters
    ----------
    logits : Tensor of shape (n_samples, n_classes)
        Outputs of a model. Logits of several samples, all in [0, 1] and with rows that all add
        up to 1, are a coincidence that does not happen.
    """
    inside = len(logits) > 1 and bool(((logits >= 0) & (logits <= 1)).all())
    if inside and bool(((logits.double().sum(dim=-1) - 1).abs() < _ROW_SUM_TOLERANCE).all()):
        warnings.warn(
            "The model returns probabilities: they lie in [0, 1] and add up to 1. Logits are "
            "expected, and uncertainty computed from probabilities in their place is wrong. "
            "Remove the softmax at its end; of a skorch net whose criterion takes probabilities, "
            "make it the last layer of an nn.Sequential, where it is seen.",
            UserWarning,
            stacklevel=level_of_the_user(),
        )


def classes_of_outputs(y: NDArray[Any], n_classes: int) -> NDArray[Any]:
    """Labels in the order of the outputs of a network that does not know them.

    Parameters
    ----------
    y : ndarray of shape (n_samples,)
        Class labels.
    n_classes : int
        Number of outputs.

    Returns
    -------
    ndarray of shape (n_classes,)
        The sorted labels in `y` if their number fits, else the codes 0 to `n_classes` - 1.

    Raises
    ------
    ValueError
        If the number does not fit and the labels are no such codes.
    """
    labels = np.unique(y)
    if len(labels) == n_classes:
        return labels
    codes = np.arange(n_classes)
    if np.isin(labels, codes).all():
        return codes
    others = labels[~np.isin(labels, codes)].tolist()
    raise ValueError(
        f"The module returns {n_classes} logits, but `y` holds {len(labels)} different labels, of "
        f"which {others[:5]}{' and others' if len(others) > 5 else ''} are not among the codes 0 "
        f"to {n_classes - 1}."
    )
