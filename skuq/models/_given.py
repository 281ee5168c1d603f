"""Type of the estimator that a user passed, and validation of its inputs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array, check_consistent_length, get_tags, indexable
from sklearn.utils.validation import has_fit_parameter

from skuq import wrappers
from skuq.base import FloatArray
from skuq.files import stored
from skuq.labels import labels_in_mask, plain
from skuq.validation import (
    check_some_samples,
    is_texts,
    kind_of,
    like_fitted,
    one_target,
    refuse_several_inputs,
    to_dense,
    validate_data,
    warn_user,
)
from skuq.wrappers import is_fitted, is_instance_of, is_module, is_prefit, is_search, unwrap

# The `fit` of these estimators passes `sample_weight` on to the models inside. Other
# meta-estimators with **params raise an error for weights unless metadata routing is on.
_PASS_ON = (
    ("sklearn.ensemble", "VotingClassifier"),
    ("sklearn.ensemble", "VotingRegressor"),
    ("sklearn.ensemble", "StackingClassifier"),
    ("sklearn.ensemble", "StackingRegressor"),
    ("sklearn.feature_selection", "RFE"),
    ("sklearn.compose", "TransformedTargetRegressor"),
)
#: Input fields of a text model, in the order in which they are stacked.
TEXT_FIELDS = ("input_ids", "attention_mask", "token_type_ids")
_INSIDE = ("estimator", "final_estimator", "regressor")  # parameters that contain models


RESAMPLED = (
    "A sampler changed the class frequencies of the training rows: probabilities of the model, and "
    "uncertainty computed from them, are not frequencies. If you need frequencies, train without a "
    "sampler, or calibrate the model (`CalibratedClassifierCV`)."
)


OF_FUNCTION = (
    "A function that returns probabilities, such as a request to a service or a session, becomes "
    "an estimator by skuq.models.from_function(function, classes)."
)


@dataclass(frozen=True)
class Given:
    """An estimator and the models inside its wrappers."""

    estimator: Any  # None stands for a default network
    learner: Any  # innermost estimator, without any wrapper
    # The estimator inside pipelines, searches and `FrozenEstimator`: the learner itself, or another
    # wrapper around it, such as a `CalibratedClassifierCV`.
    trained: Any
    preprocesses: bool  # whether a pipeline around the learner preprocesses inputs
    takes_ids: bool  # whether inputs are ids, such as node ids of a graph
    resamples: bool = False  # whether a sampler changes the class frequencies of training rows
    decides: bool = False  # whether a threshold, or the user's `predict`, chooses classes

    @property
    def is_network(self) -> bool:
        """Whether the learner is a network, which has gradients."""
        learner = self.learner
        if self.decides:
            return False
        if learner is None or is_skorch_net(learner) or not hasattr(learner, "fit"):
            return True
        return is_module(learner) or isinstance(learner, MLPClassifier | MLPRegressor)

    @property
    def is_fitted(self) -> bool:
        """Whether the estimator is fitted; a bare torch module always is."""
        return self.estimator is not None and is_fitted(self.estimator)

    @property
    def is_prefit(self) -> bool:
        """Whether the estimator is used as it is, instead of being cloned and trained."""
        return is_prefit(self.estimator)

    def check_trainable(self) -> None:
        """Raise TypeError if the estimator cannot be trained, and warn if it is fitted already."""
        check_is_estimator(self.estimator)
        if isinstance(self.estimator, Pipeline) and is_skorch_net(self.estimator.steps[-1][1]):
            raise TypeError(
                "`estimator` is a pipeline that ends in a skorch net; put the transformers "
                "outside: make_pipeline(..., Estimator(net))."
            )
        if hasattr(self.estimator, "fit") and self.is_fitted:
            warn_user(
                f"This {type(self.estimator).__name__} is fitted already; a clone of it is trained "
                "again. To use it as it is, wrap it: FrozenEstimator(estimator)."
            )

    def refuse_device(self, device: Any) -> None:
        """Raise ValueError unless the device is the CPU: learners run only on the CPU."""
        if str(device) not in ("auto", "cpu"):
            raise ValueError(
                f"device={str(device)!r} has no effect on {type(self.estimator).__name__}, which "
                "runs on the CPU; use device='auto' or 'cpu'."
            )

    @property
    def has_gradients(self) -> bool:
        """Whether `adopt` can convert the learner to a network."""
        linear = isinstance(self.learner, LogisticRegression) and not self.decides
        return self.is_network or linear or hasattr(self.learner, "as_model")

    @property
    def is_naturally_network(self) -> bool:
        """Whether `adopt` can convert the learner, and only plain wrappers surround it.

        Plain wrappers are pipelines, searches and `FrozenEstimator`. Other wrappers, such as
        `CalibratedClassifierCV`, can be converted in some settings only.
        """
        return self.has_gradients and (self.trained is self.learner or is_module(self.trained))

    @property
    def takes_weights(self) -> bool:
        """Whether the estimator and all models inside it accept `sample_weight`."""
        return takes_weights(self.trained)

    def usable_weight(self, weight: FloatArray | None) -> FloatArray | None:
        """Return the weights, or None if all are equal and the learner accepts no weights."""
        if weight is None or self.takes_weights:
            return weight
        if np.ptp(weight):
            raise ValueError(
                f"{type(self.trained).__name__}, or a model inside it, does not accept "
                "`sample_weight`, and the weights are not all equal. Omit `sample_weight`, repeat "
                "rows of larger weight, or choose a learner that accepts weights."
            )
        return None

    @property
    def pretrained(self) -> Any:
        """The learner if it is a transformers model, else None; transformers is not imported."""
        found = is_instance_of(self.learner, "transformers.modeling_utils", "PreTrainedModel")
        return self.learner if found else None

    @property
    def class_weights(self) -> dict[str, Any]:
        """Class weight parameters of the estimator and the models inside it, with their values."""
        return class_weights(self.estimator)


def class_weights(estimator: Any) -> dict[str, Any]:
    if not hasattr(estimator, "get_params"):
        return {}
    ends = ("class_weight", "scale_pos_weight")  # scikit-learn's name; XGBoost's and LightGBM's
    given = estimator.get_params().items()
    return {n: v for n, v in given if n.rpartition("__")[2] in ends and v not in (None, 1)}


def takes_weights(learner: Any) -> bool:
    if isinstance(learner, FrozenEstimator):  # never trained, so weights have no effect
        return True
    passes_on = any(is_instance_of(learner, *kind) for kind in _PASS_ON)
    if not passes_on and not has_fit_parameter(learner, "sample_weight"):
        return False
    inside = [getattr(learner, name, None) for name in _INSIDE]
    if passes_on:
        inside += [member for _, member in getattr(learner, "estimators", ())]
    return all(takes_weights(each) for each in inside if hasattr(each, "fit"))


def look_at(estimator: Any) -> Given:
    """Determine the type of an estimator and the models inside its wrappers."""
    learner = trained = estimator
    preprocesses = takes_ids = resamples = calibrates = decides = False
    while learner is not None:
        if not preprocesses and hasattr(learner, "as_model"):
            takes_ids = bool(get_tags(learner).input_tags.one_d_array)
            break
        inside = unwrap(learner, fitted=False)
        if inside is None:
            break
        preprocesses = preprocesses or isinstance(learner, Pipeline)
        decides = decides or wrappers.has_threshold(learner)
        calibrates = calibrates or is_instance_of(learner, *wrappers.CALIBRATED)
        resamples |= not calibrates and wrappers.first_sampler(learner) is not None
        delegates = isinstance(learner, FrozenEstimator | Pipeline) or is_search(learner)
        if trained is learner and delegates:
            trained = inside.estimator
        learner = inside.estimator
    if isinstance(learner, LogisticRegression | MLPClassifier):
        decides = decides or not type(learner).predict.__module__.startswith("sklearn")
    return Given(estimator, learner, trained, preprocesses, takes_ids, resamples, decides)


def check_is_estimator(estimator: Any) -> None:
    """Raise TypeError unless an object is None, an estimator or a module."""
    known = ("fit", "as_model")
    if estimator is None or is_module(estimator) or any(hasattr(estimator, n) for n in known):
        return
    found = f"{estimator!r}."
    if not isinstance(estimator, str):
        name = getattr(estimator, "__qualname__", type(estimator).__name__)
        found = f"{name}. {OF_FUNCTION}"
    if isinstance(estimator, Mapping):
        found = (
            f"an object of type {type(estimator).__name__}. A state_dict holds weights only: build "
            "the network, call network.load_state_dict(weights), and pass the network."
        )
    expected = "`estimator` must be None, have a method `fit`, or be a torch.nn.Module"
    raise TypeError(f"{expected}, got {found}")


def check_several_classes(y: NDArray[Any]) -> None:
    classes = np.unique(y)
    if len(classes) < 2:
        raise ValueError(f"`y` holds one class only: {plain(classes[0])!r}; at least 2 are needed.")


def refuse_fit_params(fit_params: Mapping[str, Any] | None, reason: str) -> None:
    """Raise TypeError if `fit_params` is not empty; `reason` is the start of the message."""
    if fit_params:
        raise TypeError(f"{reason} {', '.join(fit_params)}.")


def is_skorch_net(model: Any, kind: str = "NeuralNet") -> bool:
    """Whether a model is an instance of the skorch class of the given name; imports no skorch."""
    return is_instance_of(model, "skorch", kind)


@dataclass(frozen=True)
class Inputs(ABC):
    """Base class of the kinds of inputs; each kind validates data passed to its `owner`."""

    are_ids: ClassVar[bool] = False  # whether inputs are ids, such as node ids
    reaches_preprocessing: ClassVar[bool] = False  # whether the model preprocesses raw inputs

    @property
    def are_tokens(self) -> bool:
        """Whether inputs are tokens of text, for a transformers model."""
        return False

    @abstractmethod
    def fit(self, owner: Any, X: Any, y: Any, min_samples: int) -> tuple[Self, Any, NDArray[Any]]:
        """Validate training data, and store their column names in `owner`; return self, X and y."""

    @abstractmethod
    def check(self, owner: Any, X: Any) -> Any:
        """Check that new inputs are like training inputs, before the model preprocesses them."""


@stored("models.rows")
@dataclass(frozen=True)
class Rows(Inputs):
    """Arrays of numbers, of shape (n_samples, ...) with one shape for all samples."""

    flat: bool  # whether inputs must have two axes, as for the default network
    sparse: bool  # whether sparse matrices are accepted
    pretrained: Any = None  # a transformers model, or None; its inputs may be a mapping
    shape: tuple[int, ...] | None = None  # shape of a sample; of a text, only its number of fields

    @property
    def are_tokens(self) -> bool:
        return self.pretrained is not None and self.pretrained.main_input_name == TEXT_FIELDS[0]

    @property
    def special_tokens(self) -> list[int]:
        """Ids of special tokens, such as the end of a text, in the transformers model's config."""
        names = [f"{kind}_token_id" for kind in ("bos", "eos", "cls", "sep", "pad")]
        ids = [getattr(self.pretrained.config, name, None) for name in names]
        return [each for id_ in ids if id_ is not None for each in np.ravel(id_).tolist()]

    def fit(self, owner: Any, X: Any, y: Any, min_samples: int) -> tuple[Self, Any, NDArray[Any]]:
        options = {"allow_nd": not self.flat, "ensure_min_samples": min_samples, **self._numbers}
        X, y = validate_data(owner, self._stacked(X), y, **options)
        # All training data are needed at once, so sparse inputs are converted to dense arrays here.
        return replace(self, shape=self._shape_of(X)), to_dense(X), y

    def check(self, owner: Any, X: Any) -> Any:
        expected = f"(n_samples, {str(self.shape)[1:-1]})"
        several_axes = not self.are_tokens and len(self.shape or ()) > 1
        if several_axes and getattr(X, "shape", ()) == self.shape:
            raise ValueError(
                f"X has the shape of one sample, {self.shape}, but must have shape {expected}; for "
                "one sample, pass X[None]."
            )
        X = self._stacked(X)
        if self.are_tokens and X.ndim == 3 and self._shape_of(X) != self.shape:
            fields = list(TEXT_FIELDS[: (self.shape or (0,))[0]])
            raise ValueError(f"X must have the fields {fields} as in `fit`, got {X.shape[1]}.")
        X = validate_data(owner, X, reset=False, allow_nd=True, **self._numbers)
        if self._shape_of(X) != self.shape:
            raise ValueError(f"X must have shape {expected}, got {X.shape}.")
        return X

    @property
    def _numbers(self) -> dict[str, Any]:
        return {"accept_sparse": "csr" if self.sparse else False, "dtype": [np.float64, np.float32]}

    def _stacked(self, X: Any) -> Any:
        if self.pretrained is not None:
            return rows_of(self.pretrained, X)
        refuse_several_inputs(X)
        return X

    def _shape_of(self, X: Any) -> tuple[int, ...]:
        shape: tuple[int, ...] = X.shape[1:-1] if self.are_tokens else X.shape[1:]
        return shape


@stored("models.table")
@dataclass(frozen=True)
class Table(Inputs):
    """Inputs for a model with its own preprocessing, such as tables with text columns, or texts.

    With `learner`, the model is a learner of scikit-learn: arrays are checked, and may have NaN.
    """

    reaches_preprocessing: ClassVar[bool] = True
    learner: bool = False

    def fit(self, owner: Any, X: Any, y: Any, min_samples: int) -> tuple[Self, Any, NDArray[Any]]:
        X = self._as_table(X)
        vars(owner).pop("n_features_in_", None)  # for texts, `validate_data` would not reset it
        y = one_target(y)
        validate_data(owner, X, y, skip_check_array=True)
        X, y = indexable(X.astype(np.float64) if kind_of(X) == "b" else X, y)
        return self, X, y

    def check(self, owner: Any, X: Any) -> Any:
        check_some_samples(X, owner)
        X = self._as_table(X)
        validate_data(owner, X, reset=False, skip_check_array=True)
        # `indexable` converts COO matrices, whose rows cannot be indexed.
        return like_fitted(owner, indexable(X)[0])

    def _as_table(self, X: Any) -> Any:
        refuse_several_inputs(X)
        if is_texts(X):
            return np.asarray(X, dtype=object)
        if not self.learner or hasattr(X, "columns"):
            return X
        return check_array(
            X,
            accept_sparse="csr",
            allow_nd=True,  # an estimator around a network may receive images
            dtype=None,
            ensure_all_finite="allow-nan",
            input_name="X",
        )


@dataclass(frozen=True)
class Nodes(Inputs):
    """Node ids, which the model validates."""

    are_ids: ClassVar[bool] = True

    def fit(self, owner: Any, X: Any, y: Any, min_samples: int) -> tuple[Self, Any, NDArray[Any]]:
        owner.n_features_in_ = 1
        y = labels_in_mask(X, y)
        ids = np.asarray(X)
        check_consistent_length(np.flatnonzero(ids) if ids.dtype == bool else X, y)
        return self, X, y

    def check(self, owner: Any, X: Any) -> Any:
        return X


def rows_of(model: Any, X: Any) -> Any:
    """Convert a mapping or array of a transformers model's inputs to one array; see `as_rows`."""
    main = model.main_input_name
    if not hasattr(X, "shape") and isinstance(next(iter(X), None), Mapping):  # a list of mappings
        X = {name: [each[name] for each in X] for name in X[0]}
    if not isinstance(X, Mapping):
        X = np.asarray(X)
        return X[:, None] if main == TEXT_FIELDS[0] and X.ndim == 2 else X
    known = TEXT_FIELDS if main == TEXT_FIELDS[0] else (main,)
    given = {name: values for name, values in X.items() if values is not None}
    others = sorted(set(given).difference(known))
    if main not in given or others:
        raise ValueError(
            f"{type(model).__name__} requires the field {main!r} and accepts {list(known)}, got "
            f"{list(given)}; {f'drop {others}' if main in given else f'pass {main!r}, too'}."
        )
    if main != TEXT_FIELDS[0]:
        return _field(given[main], main)
    if "token_type_ids" in given and "attention_mask" not in given:
        given["attention_mask"] = np.ones_like(_field(given[main], main))
    fields = {name: _field(given[name], name) for name in known if name in given}
    shapes = {name: values.shape for name, values in fields.items()}
    if len(shapes[main]) != 2 or len(set(shapes.values())) > 1:
        raise ValueError(f"Tokens must have shape (n_samples, length) in all fields, got {shapes}.")
    return np.stack(list(fields.values()), axis=1)


def _field(values: Any, name: str) -> NDArray[Any]:
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


def as_rows(estimator: Any, X: Any) -> Any:
    """Convert the inputs of a transformers model to one array; return other inputs unchanged.

    Parameters
    ----------
    estimator : object
        The model.
    X : mapping of str to array-like, or array-like
        Output of a tokeniser or an image processor, with one row per sample in each field; a list
        with such a mapping for each sample; or an array returned by this function.

    Returns
    -------
    array
        Tokens have shape (n_samples, n_fields, length), with the fields token ids, attention mask
        and token types in this order (absent fields are omitted). Images have the shape of
        ``pixel_values``.
    """
    model = look_at(estimator).pretrained
    return X if model is None else rows_of(model, X)
