"""Class labels that the outputs of a network stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from skuq.labels import codes_of
from skuq.models._adopt import AdoptedModel


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
        Preprocessed inputs; the first one shows the number of outputs.

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
    """
    shape = tuple(model.outputs(inputs[:1]).shape)
    if len(shape) != 2 or shape[1] < 2:
        raise ValueError(
            "The model must return logits of shape (n_samples, n_classes) with at least 2 "
            f"classes, got shape {shape} for one sample."
        )
    classes = model.classes
    if classes is None or len(classes) != shape[1]:
        # skorch infers the classes from the labels of `y`, which may be fewer than the outputs.
        classes = classes_of_outputs(y if classes is None else classes, shape[1])
    return classes, codes_of(y, classes, "y")


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
    raise ValueError(
        f"The module returns {n_classes} logits, but `y` holds {len(labels)} labels that are "
        f"not codes 0 to {n_classes - 1}: {labels[:5]}."
    )
