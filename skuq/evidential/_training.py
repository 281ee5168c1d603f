"""Training parameters, labelled samples, and training of networks on a whole graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils._param_validation import Interval
from skorch.callbacks import Callback
from torch import Tensor, nn

from skuq._networks import TrainingSettings, train
from skuq.devices import DeviceMixin
from skuq.evidential._graphs import NodeGraph, checked_nodes
from skuq.labels import codes_of, labels_in_mask, plain
from skuq.validation import check_targets_are_classes, refuse_ineffective, training_weights

# Constraints of the training parameters of `GraphClassifier` and `EvidentialProbe`.
TRAINING_PARAMETERS: dict[str, Any] = {
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "max_epochs": [Interval(Integral, 1, None, closed="left")],
    "patience": [Interval(Integral, 1, None, closed="left")],
    "callbacks": [list, None],
    "device": [str, torch.device],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


class TrainedNetworkMixin(DeviceMixin):
    """Mixin for estimators with the parameters in `TRAINING_PARAMETERS`."""

    learning_rate: float
    max_epochs: int
    patience: int
    callbacks: list[Any] | None
    verbose: int

    def _training_settings(self, device: torch.device, weight_decay: float) -> TrainingSettings:
        """Build settings for full-batch training with Adam."""
        return TrainingSettings(
            learning_rate=self.learning_rate,
            weight_decay=weight_decay,
            max_epochs=self.max_epochs,
            patience=self.patience,
            callbacks=self.callbacks or [],
            device=device,
            verbose=self.verbose,
        )

    def _refuse_patience(self, X_val: Any) -> None:
        if X_val is None:
            refuse_ineffective(
                self, ["patience"], "without validation data; pass `X_val` and `y_val` to `fit`."
            )


class Samples(NamedTuple):
    """Samples of a training or validation pass."""

    inputs: Mapping[str, NDArray[Any]]  # "inputs" for the network, and further arrays for the loss
    codes: NDArray[np.int64]  # (n_samples,): class codes, -1 if unlabelled


class Labelled(NamedTuple):
    """Labelled samples, each array of shape (n_labelled,)."""

    rows: NDArray[np.int64]  # positions among all samples, or node ids; may contain duplicates
    codes: NDArray[np.int64]  # class codes: positions of the labels in the array of classes
    weight: NDArray[np.float64]

    def as_samples(self) -> Samples:
        """Convert labelled nodes to training samples."""
        return Samples({"inputs": self.rows, "weight": self.weight}, self.codes)


class LabelledData(NamedTuple):
    """Classes, and labelled samples for training and early stopping."""

    classes: NDArray[Any]
    training: Labelled
    validation: Labelled | None = None

    @property
    def rows(self) -> NDArray[np.int64]:
        """Sorted unique rows of training and validation samples."""
        parts = [part.rows for part in (self.training, self.validation) if part is not None]
        return np.unique(np.concatenate(parts))

    def as_arguments(self) -> dict[str, Any]:
        """Return the samples as keyword arguments of `fit`."""
        (X, codes, weight), validation = self.training, self.validation
        arguments = {"X": X, "y": self.classes[codes], "sample_weight": weight}
        if validation is None:
            return arguments
        return {**arguments, "X_val": validation.rows, "y_val": self.classes[validation.codes]}


def labelled_nodes(
    graph: NodeGraph,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    X_val: Any = None,
    y_val: Any = None,
    known_classes: NDArray[Any] | None = None,
) -> LabelledData:
    """Validate the arguments of `fit`.

    `known_classes` are the classes of a trained model; they may include classes absent from `y`.
    """
    ids, labels = _checked_pair(graph, X, y)
    check_several_classes(labels)
    classes = np.unique(labels if known_classes is None else np.append(labels, known_classes))
    weight = training_weights(sample_weight, len(ids))
    training = Labelled(ids, codes_of(labels, classes, "y"), weight)
    if not has_validation(X_val, y_val):
        return LabelledData(classes, training)
    ids, labels = _checked_pair(graph, X_val, y_val)
    validation = Labelled(ids, codes_of(labels, classes, "y_val"), np.ones(len(ids)))
    return LabelledData(classes, training, validation)


def check_several_classes(labels: NDArray[Any]) -> None:
    """Raise if all labels are equal."""
    if (labels == labels[0]).all():
        label = plain(labels[0])
        raise ValueError(f"`y` contains only one class, {label!r}; at least 2 are needed.")


def has_validation(X_val: Any, y_val: Any) -> bool:
    """Whether validation data are given; raises if only one argument is given."""
    if (X_val is None) != (y_val is None):
        raise ValueError("Pass both `X_val` and `y_val`, or neither.")
    return X_val is not None


def _checked_pair(graph: NodeGraph, X: Any, y: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    ids = checked_nodes(X, graph.n_nodes)
    labels = labels_in_mask(X, column_or_1d(y, warn=True))
    check_consistent_length(ids, labels)
    check_targets_are_classes(labels)
    return ids, labels


class OnNodes(nn.Module):
    """A graph network whose inputs are node ids; it returns the outputs of these nodes."""

    def __init__(self, network: nn.Module, graph: NodeGraph):
        super().__init__()
        self.network = network
        self.graph = graph

    def forward(self, nodes: Tensor) -> Any:
        return self.network(self.graph)[nodes]


def train_on_graph(
    network: nn.Module,
    criterion: nn.Module,
    graph: NodeGraph,
    training: Samples,
    validation: Labelled | None,
    *,
    settings: TrainingSettings,
    seed: int,
    callbacks: Sequence[Callback] = (),
) -> tuple[nn.Module, Any, Tensor]:
    """Train a graph network in place; return it, its history and the outputs of all nodes.

    The inputs of the samples are node ids. The outputs are float64 tensors on the CPU. `callbacks`
    are callbacks of the training method; `settings` contains the user's callbacks and the device.
    """
    device = torch.device(settings.device)
    on_device = graph.to(device)
    trained, history = train(
        OnNodes(network, on_device),
        criterion,
        *training,
        validation=None if validation is None else validation.as_samples(),
        settings=settings,
        seed=seed,
        callbacks=callbacks,
    )
    network = trained.network  # type: ignore[assignment]
    with torch.no_grad():
        outputs = network.to(device)(on_device).cpu().double()
    return network.cpu(), history, outputs
