"""Classifiers folded into affine layers with ReLU between them, as a circuit needs them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler
from torch import nn

from skuq.base import FloatArray
from skuq.models import BinaryLogits, Columns, ScaledLogits, TabularNet, adopt

SUPPORTED = (
    "Linear, ReLU, BatchNorm1d, Dropout, Flatten, Identity, a final LogSoftmax, "
    "skuq.models.MLP and skuq.models.TabularNet"
)


class DenseNetwork(NamedTuple):
    """Network of affine maps with ReLU between them, from numbers and one-hot codes to logits.

    Attributes
    ----------
    weights : list of ndarray of shape (n_in, n_out), float64
        Matrix of each layer.
    biases : list of ndarray of shape (n_out,), float64
        Offset of each layer.
    levels : tuple of int
        One entry per input column: 0 for a number; for a column of category codes the number
        of known levels. Such a column becomes ``levels + 1`` indicators, the last one of which
        stands for all other values.
    classes : ndarray of shape (n_classes,)
        Labels in the order of the logits.
    """

    weights: list[FloatArray]
    biases: list[FloatArray]
    levels: tuple[int, ...]
    classes: NDArray[Any]

    @property
    def n_features(self) -> int:
        """Number of input columns."""
        return len(self.levels)


def dense_network(estimator: Any) -> DenseNetwork:
    """Fold a fitted classifier into affine layers with ReLU between them.

    Batch normalisation, scaling of features and temperature are folded into the neighbouring
    layer, dropout is left out, and embeddings become rows of the first layer.

    Parameters
    ----------
    estimator : object
        Fitted classifier that `skuq.models.adopt` takes over, made of the layers that a circuit
        supports. Preprocessing in a pipeline may scale features one by one.

    Returns
    -------
    DenseNetwork
        The same probabilities up to rounding.

    Raises
    ------
    TypeError
        If the network has a layer, or the pipeline a step, that a circuit does not support;
        the message names it.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq.zk._dense_network import dense_network
    >>> X, y = load_iris(return_X_y=True)
    >>> network = dense_network(LogisticRegression(max_iter=1000).fit(X, y))
    >>> network.weights[0].shape, network.classes
    ((4, 3), array([0, 1, 2]))
    """
    adopted = adopt(estimator)
    folded = _Folded()
    levels = folded.add(adopted.module)
    weights, biases = folded.layers()
    if adopted.transform is not None:
        scaling = _scaling(adopted.transform)
        if any(levels):
            raise TypeError(
                "A pipeline that scales category codes cannot be put into a circuit; commit to "
                "the network itself and give it preprocessed features."
            )
        center, factor = (np.broadcast_to(part, len(weights[0])) for part in scaling)
        biases[0] = biases[0] - (center * factor) @ weights[0]
        weights[0] = factor[:, None] * weights[0]
    n_classes = weights[-1].shape[1]
    if n_classes < 2:
        raise TypeError(
            f"A classifier with one logit per class is needed, got {n_classes} output; wrap a "
            "binary network so that it returns two logits, or give its skorch net."
        )
    classes = np.arange(n_classes) if adopted.classes is None else np.asarray(adopted.classes)
    return DenseNetwork(weights, biases, levels or (0,) * len(weights[0]), classes)


_FOLDED: tuple[type[nn.Module], ...] = (
    TabularNet,
    nn.Sequential,
    nn.Linear,
    nn.BatchNorm1d,
    nn.ReLU,
    nn.Identity,
    nn.Dropout,
    nn.Flatten,
    nn.LogSoftmax,
    ScaledLogits,
    BinaryLogits,
    Columns,
)


class _Folded:
    """Affine maps, with ReLU between them, in the order in which they are applied."""

    def __init__(self) -> None:
        self._steps: list[tuple[FloatArray, FloatArray]] = []
        self._open = False  # whether the next affine map joins the last one
        self._ended = False  # by a LogSoftmax, which does not change probabilities

    def add(self, module: nn.Module) -> tuple[int, ...]:
        """Append a module; return the levels of its input columns if it has its own."""
        kind = next((kind for kind in _FOLDED if isinstance(module, kind)), None)
        # A subclass that computes something else is another layer.
        if self._ended or kind is None or type(module).forward is not kind.forward:
            raise TypeError(
                f"The layer {type(module).__name__} cannot be put into a circuit"
                f"{' after a LogSoftmax' if self._ended else ''}; supported are {SUPPORTED}."
            )
        if isinstance(module, TabularNet):
            return self._tabular(module)
        if isinstance(module, nn.Sequential):
            levels: tuple[int, ...] = ()
            for part in module:
                levels = self.add(part) or levels
            return levels
        if isinstance(module, nn.Linear):
            bias = np.zeros(module.out_features) if module.bias is None else _array(module.bias)
            self._affine(_array(module.weight).T, bias)
        elif isinstance(module, nn.BatchNorm1d):
            self._affine(*_batch_norm(module))
        elif isinstance(module, nn.ReLU):
            self._open = False
        elif isinstance(module, ScaledLogits):
            width = self._steps[-1][0].shape[1]
            self._affine(module.factor * np.eye(width), np.zeros(width))
        elif isinstance(module, BinaryLogits):
            self._affine(np.array([[0.0, 1.0]]), np.zeros(2))
        elif isinstance(module, Columns):
            self._affine(np.eye(len(module.order))[:, module.order], np.zeros(len(module.order)))
        elif isinstance(module, nn.LogSoftmax):
            self._ended = True
        return ()

    def layers(self) -> tuple[list[FloatArray], list[FloatArray]]:
        """Weights and biases of the affine maps."""
        weights, biases = zip(*self._steps, strict=True)
        return list(weights), list(biases)

    def _affine(self, weight: FloatArray, bias: FloatArray) -> None:
        if self._open:
            before, offset = self._steps.pop()
            weight, bias = before @ weight, offset @ weight + bias
        self._steps.append((weight, bias))
        self._open = True

    def _tabular(self, net: TabularNet) -> tuple[int, ...]:
        """Append embeddings as products with indicators, and the layers after them."""
        n_columns = len(net.numeric) + len(net.categorical)
        levels = [0] * n_columns
        for column, n_levels in zip(net.categorical, net.levels, strict=True):
            levels[column] = n_levels
        widths = [1 if n == 0 else n + 1 for n in levels]
        start = np.concatenate([[0], np.cumsum(widths)])
        embedded = [_array(table.weight) for table in net.embeddings]
        n_inner = len(net.numeric) + sum(table.shape[1] for table in embedded)
        weight = np.zeros((start[-1], n_inner))
        for position, column in enumerate(net.numeric):
            weight[start[column], position] = 1.0
        position = len(net.numeric)
        for column, table in zip(net.categorical, embedded, strict=True):
            rows = slice(start[column], start[column + 1])
            weight[rows, position : position + table.shape[1]] = table
            position += table.shape[1]
        self._affine(weight, np.zeros(n_inner))
        self.add(net.mlp)
        return tuple(levels)


def _batch_norm(module: nn.BatchNorm1d) -> tuple[FloatArray, FloatArray]:
    if module.running_mean is None or module.running_var is None:
        raise TypeError(
            "A BatchNorm1d without running statistics depends on the batch and cannot be put "
            "into a circuit; train it with track_running_stats=True."
        )
    factor = 1 / np.sqrt(_array(module.running_var) + module.eps)
    if module.affine:
        factor = factor * _array(module.weight)
    bias = -_array(module.running_mean) * factor
    if module.affine:
        bias = bias + _array(module.bias)
    return np.diag(factor), bias


def _scaling(transform: Any) -> tuple[FloatArray, FloatArray]:
    """Centre and factor of preprocessing that scales features one by one."""
    pipeline = getattr(transform, "__self__", None)
    if not isinstance(pipeline, Pipeline):
        raise TypeError("Preprocessing in several pipelines cannot be put into a circuit.")
    center: Any = np.float64(0.0)
    factor: Any = np.float64(1.0)
    for name, step in pipeline.steps:
        if step is None or step == "passthrough":
            continue
        if isinstance(step, StandardScaler):
            mean = step.mean_ if step.with_mean else np.zeros(step.n_features_in_)
            scale = step.scale_ if step.with_std else np.ones(step.n_features_in_)
            own, times = mean, 1 / scale
        elif isinstance(step, MinMaxScaler) and not step.clip:
            own, times = -step.min_ / step.scale_, step.scale_
        elif isinstance(step, MaxAbsScaler):
            own, times = np.zeros(step.n_features_in_), 1 / step.scale_
        else:
            raise TypeError(
                f"The step {name!r} ({type(step).__name__}) cannot be put into a circuit; "
                "supported are StandardScaler, MinMaxScaler and MaxAbsScaler. Commit to the "
                "network itself and give it preprocessed features."
            )
        center, factor = center + own / factor, factor * times
    return np.asarray(center, np.float64), np.asarray(factor, np.float64)


def _array(tensor: Any) -> FloatArray:
    return tensor.detach().double().numpy()
