"""Outputs of a fitted model, from which the OOD scores are computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse, vstack
from sklearn.utils import _safe_indexing, gen_batches
from sklearn.utils.validation import _num_samples

from skuq._information import log_softmax
from skuq.base import FloatArray, Uncertainty
from skuq.features import BATCH_SIZE, encoded, feature_encoder
from skuq.labels import proba_of_classes
from skuq.models import LearnerModel, Model, ModelClassifierMixin
from skuq.validation import warn_user

_N_EXAMPLES = 256  # number of rows on which a learner's outputs are inspected
_TOLERANCE = 1e-4  # largest difference between predicted probabilities and the softmax of logits


@dataclass(frozen=True)
class RowOutputs:
    """Rows, their features, and the outputs of the model that are available."""

    X: Any  # the rows themselves, (n_samples, ...)
    # Features for distances, without missing values, (n_samples, n_features); may be sparse.
    features: Any = None
    logits: FloatArray | None = None  # of a classifier, (n_samples, n_classes)
    log_proba: FloatArray | None = None  # of a classifier, (n_samples, n_classes)
    energy: FloatArray | None = None  # of nodes, diffused over their graph, (n_samples,)
    uncertainty: Uncertainty | None = None  # from a skuq estimator
    log_loss: float = np.nan  # mean over all rows, in nats; only if the classes are known


class Evaluator:
    """Base class that computes outputs for validated rows, with or without a fitted model."""

    learned: bool = False  # whether the features come from hidden layers of a network

    def __call__(self, X: Any, device: Any) -> RowOutputs:
        raise NotImplementedError

    def of_all(self, X: Any, device: Any, codes: NDArray[np.int64] | None = None) -> RowOutputs:
        """Compute outputs of all rows; to save memory, keep only the first batch of logits."""
        parts: list[RowOutputs] = []
        loss = 0.0
        for start, batch in enumerate(batches_of(X)):
            part = self(batch, device)
            if part.log_proba is not None and codes is not None:
                own = codes[start * BATCH_SIZE :][: len(part.log_proba)]
                loss -= np.take_along_axis(part.log_proba, own[:, None], axis=1).sum()
            parts.append(replace(part, logits=None, log_proba=None) if parts else part)
        arrays = [part.features for part in parts]
        found: dict[str, Any] = {"X": X, "log_loss": loss / _num_samples(X)}
        if issparse(arrays[0]):
            found["features"] = vstack(arrays, format="csr")
        elif isinstance(X, np.ndarray) and all(map(_is_same, arrays, batches_of(X))):
            found["features"] = X.reshape(len(X), -1)  # without a copy
        elif arrays[0] is not None:
            found["features"] = np.concatenate(arrays)
        results = [part.uncertainty.parts for part in parts if part.uncertainty is not None]
        if results:
            columns = zip(*results, strict=True)
            found["uncertainty"] = Uncertainty(*map(np.concatenate, columns))
        return replace(parts[0], **found)


def _is_same(features: Any, batch: NDArray[Any]) -> bool:
    """Whether features are the inputs themselves, at the same place in memory."""
    rows = batch.reshape(len(batch), -1)
    names = ("dtype", "shape", "strides")
    same = all(getattr(features, name, None) == getattr(rows, name) for name in names)
    return same and features.ctypes.data == rows.ctypes.data


def batches_of(X: Any) -> Iterator[Any]:
    for rows in gen_batches(_num_samples(X), BATCH_SIZE):
        yield _safe_indexing(X, rows)


@dataclass(frozen=True)
class InputsAlone(Evaluator):
    """Evaluator without a model: the features are the encoded inputs."""

    encoder: Any

    def __call__(self, X: Any, device: Any) -> RowOutputs:
        return RowOutputs(X, features=encoded(self.encoder, X))


@dataclass(frozen=True)
class NetworkOutputs(Evaluator):
    """Evaluator of a network: its logits and the inputs of one of its layers."""

    model: Any  # a NetworkModel
    layer: str
    is_classifier: bool
    learned: bool

    @classmethod
    def of(cls, model: Any, inputs: Any, device: Any, *, is_classifier: bool) -> NetworkOutputs:
        from skuq._networks import LayerInput, on_device

        there = model.resolved(device)
        examples = on_device(inputs[:2], there)
        layer = LayerInput.of_first_vectors(model.on(there), examples)
        learned = not layer.reaches_unaltered(examples)
        return cls(model, layer.name, is_classifier, learned)

    def __call__(self, X: Any, device: Any) -> RowOutputs:
        return self.of_inputs(X, self.model.inputs(X), device)

    def of_inputs(self, X: Any, inputs: Any, device: Any) -> RowOutputs:
        """Compute outputs for preprocessed rows."""
        from skuq._networks import SampleFeatures, evaluate

        there, logits = self.model.resolved(device), None
        if self.is_classifier:  # called first, because `outputs` explains errors in inputs
            logits = self.model.outputs(inputs, device).double().numpy()
        layer = SampleFeatures(self.model.on(there), self.layer)
        features = evaluate(layer, inputs, device=there).flatten(1).float().numpy()
        return RowOutputs(X, features, logits, None if logits is None else log_softmax(logits))


@dataclass(frozen=True)
class LearnerOutputs(Evaluator):
    """Evaluator of a fitted estimator that is not a network but may contain one, as skuq's do."""

    model: LearnerModel  # the estimator with its transformers
    network: NetworkOutputs | None  # the network inside a skuq estimator
    encoder: Any  # function that converts a learner's inputs to features; None with a network
    logits_of: Any  # the learner if its `decision_function` returns logits, else None

    @classmethod
    def of(cls, model: LearnerModel, X: Any, device: Any) -> LearnerOutputs:
        rows = X if model.transform is None else model.transform(X)  # sparse rows stay sparse
        core, estimator = _inside(model), model.estimator
        inputs = _entering(core, estimator, rows)
        if core.network is not None:
            # Ignore logits of an ensemble's network: their softmax is not the ensemble's result.
            own = getattr(type(estimator), "predict_proba", None)
            predicts = own is ModelClassifierMixin.predict_proba or hasattr(estimator, "as_model")
            is_classifier = model.classes is not None and predicts
            inner = NetworkOutputs.of(core, inputs, device, is_classifier=is_classifier)
            return cls(model, inner, None, None)
        learner = core.estimator if isinstance(core, LearnerModel) else None
        has_logits = _has_logits(learner, inputs[:_N_EXAMPLES])
        return cls(model, None, feature_encoder(inputs), learner if has_logits else None)

    @property
    def learned(self) -> bool:  # type: ignore[override]
        return self.network is not None and self.network.learned

    def __call__(self, X: Any, device: Any) -> RowOutputs:
        estimator, transform = self.model.estimator, self.model.transform
        rows = X if transform is None else transform(X)
        inputs = _entering(_inside(self.model), estimator, rows)
        if self.network is not None:
            found = self.network.of_inputs(X, inputs, device)
        else:
            logits = None if self.logits_of is None else _logits(self.logits_of, inputs)
            found = RowOutputs(X, encoded(self.encoder, inputs), logits)
        log_proba = None if self.model.classes is None else self.model.log_proba(rows)
        has_parts = hasattr(estimator, "predict_uncertainty")
        uncertainty = estimator.predict_uncertainty(rows) if has_parts else None
        return replace(found, log_proba=log_proba, uncertainty=uncertainty)


def _inside(model: LearnerModel) -> Model:
    """Return the model inside a skuq estimator, or the learner itself."""
    inside = getattr(model.estimator, "model_", None)
    return inside if isinstance(inside, Model) else model


def _entering(core: Model, estimator: Any, rows: Any) -> Any:
    """Convert an estimator's rows to the inputs of the network or learner inside the estimator."""
    if getattr(estimator, "model_", None) is not core:
        return rows
    checked = rows if core.form is None else core.form.check(estimator, rows)
    return core.inputs(checked)


def _logits(learner: Any, inputs: Any) -> FloatArray:
    """Compute logits of a learner, (n_samples, n_classes)."""
    scores = np.asarray(learner.decision_function(inputs), dtype=np.float64)
    return np.stack([0 * scores, scores], axis=1) if scores.ndim == 1 else scores


def _has_logits(learner: Any, examples: Any) -> bool:
    """Whether `predict_proba` equals the softmax of `decision_function`."""
    if not (hasattr(learner, "decision_function") and hasattr(learner, "predict_proba")):
        return False
    proba = proba_of_classes(learner.predict_proba(examples), np.asarray(learner.classes_))
    softmax = np.exp(log_softmax(_logits(learner, examples)))
    return softmax.shape == proba.shape and np.allclose(softmax, proba, atol=_TOLERANCE)


@dataclass(frozen=True)
class NodeOutputs(Evaluator):
    """Evaluator of a node classifier, with energies that `node_energy` has diffused over nodes."""

    estimator: Any
    energy: FloatArray  # (n_nodes,)

    @classmethod
    def of(cls, estimator: Any, nodes: Any, y: Any, device: Any) -> NodeOutputs:
        from skuq.evidential import node_energy

        similar = getattr(estimator, "propagation", None) == "similarity"
        return cls(estimator, node_energy(estimator, nodes, y, similar=similar, device=device))

    def __call__(self, X: Any, device: Any = None) -> RowOutputs:
        has_parts = hasattr(self.estimator, "predict_uncertainty")
        return RowOutputs(
            X,
            log_proba=np.log(self.estimator.predict_proba(X).clip(1e-300)),
            energy=self.energy[node_ids(X)],
            uncertainty=self.estimator.predict_uncertainty(X) if has_parts else None,
        )


def node_ids(X: Any) -> NDArray[np.int64]:
    """Convert node ids or a Boolean mask to node ids."""
    ids = np.asarray(X)
    return np.flatnonzero(ids) if ids.dtype == bool else ids.ravel()


def check_held_out_nodes(estimator: Any, nodes: NDArray[np.int64], *, given: bool) -> None:
    """Raise if held-out nodes repeat or were trained on; warn if the trained nodes are unknown."""
    distinct, count = np.unique(nodes, return_counts=True)
    repeated = distinct[count > 1]
    if len(repeated):
        raise ValueError(
            f"{len(repeated)} of the held-out nodes occur more than once, for example "
            f"{repeated[0]}. Pass each node once."
        )
    seen = getattr(estimator, "labelled_nodes_", ())
    if seen is None:  # `estimator` is a copy for a graph that differs from the training graph
        warn_user(
            "The estimator was trained on another graph, so it cannot be checked whether held-out "
            "nodes were used for training. If they were, the actual false alarm rate is higher "
            "than `false_alarm_rate`."
        )
        return
    used = np.intersect1d(nodes, seen)
    if len(used):
        drawn = f"No `X_held_out` was given, so {len(nodes)} of the nodes in `X` were held out; "
        raise ValueError(
            f"{'' if given else drawn}{len(used)} of the held-out nodes were used for training or "
            f"early stopping (the first is node {used[0]:.0f}), so their uncertainty is lower than "
            "that of new nodes. Pass other nodes as `X_held_out`."
        )
