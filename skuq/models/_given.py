"""The estimator that a user passed: what it is, found once, and how its inputs are checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array, check_consistent_length, column_or_1d, get_tags, indexable
from sklearn.utils.validation import has_fit_parameter, validate_data

from skuq.base import FloatArray
from skuq.labels import labels_in_mask
from skuq.models._huggingface import TEXT_FIELDS, rows_of
from skuq.stored import stored
from skuq.validation import check_some_samples, is_texts, to_dense, warn_user
from skuq.wrappers import is_fitted, is_instance_of, is_module, is_search, unwrap

# Their `fit` takes any arguments and passes them on; others that do so refuse weights, unless
# metadata routing is on.
_PASS_ON = (
    ("sklearn.ensemble", "VotingClassifier"),
    ("sklearn.ensemble", "VotingRegressor"),
    ("sklearn.ensemble", "StackingClassifier"),
    ("sklearn.ensemble", "StackingRegressor"),
    ("sklearn.feature_selection", "RFE"),
    ("sklearn.compose", "TransformedTargetRegressor"),
)
_INSIDE = ("estimator", "final_estimator", "regressor")  # names of parameters that are models


@dataclass(frozen=True)
class Given:
    """What an estimator is, found by one walk through the wrappers around its learner.

    Attributes
    ----------
    estimator : object
        What the user passed; None stands for a default network.
    learner : object
        What is inside of all wrappers, such as pipelines, searches and `FrozenEstimator`.
    trained : object
        What `fit` of pipelines, searches and `FrozenEstimator` trains; such as a bagging ensemble,
        where `learner` is the same, or a `CalibratedClassifierCV` around `learner`.
    preprocesses : bool
        Whether there is a pipeline around the learner: columns of text are its business.
    takes_ids : bool
        Whether inputs are ids, such as those of the nodes of a graph.
    """

    estimator: Any
    learner: Any
    trained: Any
    preprocesses: bool
    takes_ids: bool

    @property
    def is_network(self) -> bool:
        """Whether the learner is a network, whose gradients are known."""
        learner = self.learner
        if learner is None or is_skorch_net(learner) or not hasattr(learner, "fit"):
            return True
        return is_module(learner) or isinstance(learner, MLPClassifier | MLPRegressor)

    @property
    def is_fitted(self) -> bool:
        """Whether the estimator holds trained weights; a bare torch module always does."""
        return self.estimator is not None and is_fitted(self.estimator)

    def warn_of_retraining(self) -> None:
        """Warn if the estimator is fitted, of which a clone is about to be trained."""
        if hasattr(self.estimator, "fit") and self.is_fitted:
            warn_user(
                f"This {type(self.estimator).__name__} is fitted already; a clone of it is trained "
                "again. To use it as it is, wrap it: FrozenEstimator(estimator)."
            )

    def refuse_device(self, device: Any) -> None:
        """Refuse another device than the CPU for a learner, which computes there."""
        if str(device) not in ("auto", "cpu"):
            raise ValueError(
                f"device={str(device)!r} has no effect on {type(self.estimator).__name__}, which "
                "computes on the CPU."
            )

    @property
    def has_gradients(self) -> bool:
        """Whether `adopt` can make a network of the learner."""
        linear = isinstance(self.learner, LogisticRegression)
        return self.is_network or linear or hasattr(self.learner, "as_model")

    @property
    def is_naturally_network(self) -> bool:
        """Whether `adopt` makes a network of it, with nothing but transformers around its learner.

        Wrappers such as `CalibratedClassifierCV` have a network form in some settings only.
        """
        return self.has_gradients and (self.trained is self.learner or is_module(self.trained))

    @property
    def takes_weights(self) -> bool:
        """Whether weights of samples count in training: its own, and that of all models inside.

        Voting and stacking take any arguments and pass them on; others take weights, and cannot
        pass them on to every learner.
        """
        return _takes_weights(self.trained)

    def usable_weight(self, weight: FloatArray | None) -> FloatArray | None:
        """Weights of samples, or None where the learner takes none and all are equal.

        Learners that take no weights would else fail, or leave those given aside in silence.
        """
        if weight is None or self.takes_weights:
            return weight
        if np.ptp(weight):
            raise ValueError(
                f"{type(self.trained).__name__}, or a model inside it, takes no `sample_weight`: "
                "weights of the samples cannot count, and they are not all equal. Leave "
                "`sample_weight` out, repeat the rows that count more, or choose a learner that "
                "takes weights."
            )
        return None

    @property
    def pretrained(self) -> Any:
        """The model of the library transformers, which need not be installed, or None."""
        found = is_instance_of(self.learner, "transformers.modeling_utils", "PreTrainedModel")
        return self.learner if found else None

    @property
    def class_weights(self) -> dict[str, Any]:
        """Parameters that weigh classes, of the estimator and those inside it, and their values."""
        has_parameters = hasattr(self.estimator, "get_params")
        parameters = self.estimator.get_params() if has_parameters else {}
        ends = ("class_weight", "scale_pos_weight")  # the second of XGBoost and LightGBM
        return {
            name: value
            for name, value in parameters.items()
            if name.rpartition("__")[2] in ends and value not in (None, 1)
        }


def _takes_weights(learner: Any) -> bool:
    if isinstance(learner, FrozenEstimator):  # it is not trained
        return True
    passes_on = any(is_instance_of(learner, *kind) for kind in _PASS_ON)
    if not passes_on and not has_fit_parameter(learner, "sample_weight"):
        return False
    inside = [getattr(learner, name, None) for name in _INSIDE]
    if passes_on:
        inside += [member for _, member in getattr(learner, "estimators", ())]
    return all(_takes_weights(each) for each in inside if hasattr(each, "fit"))


def look_at(estimator: Any) -> Given:
    """Find out what an estimator is.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> given = look_at(make_pipeline(StandardScaler(), LogisticRegression()))
    >>> given.learner, given.is_network, given.preprocesses
    (LogisticRegression(), False, True)
    """
    learner = trained = estimator
    preprocesses = takes_ids = False
    while learner is not None:
        if not preprocesses and hasattr(learner, "as_model"):
            takes_ids = bool(get_tags(learner).input_tags.one_d_array)
            break
        inside = unwrap(learner, fitted=False)
        if inside is None:
            break
        preprocesses = preprocesses or isinstance(learner, Pipeline)
        delegates = isinstance(learner, FrozenEstimator | Pipeline) or is_search(learner)
        if trained is learner and delegates:
            trained = inside.estimator
        learner = inside.estimator
    return Given(estimator, learner, trained, preprocesses, takes_ids)


def is_skorch_net(model: Any, kind: str = "NeuralNet") -> bool:
    """Whether this is a net of skorch, of the class with that name.

    A net exists only where skorch was imported. To import it for the question alone would make
    each start longer, by seconds where other libraries are installed that skorch looks for.
    """
    return is_instance_of(model, "skorch", kind)


def is_prefit(estimator: Any, *, after_the_fact: bool = False) -> bool:
    """Decide whether a model is taken as it is; if not, it is to be cloned and trained.

    The one rule for models that exist already: what `FrozenEstimator` holds and a bare
    `torch.nn.Module` are taken as they are, anything else is cloned and trained.

    Parameters
    ----------
    estimator : object
        What the user passed; None stands for a default network.
    after_the_fact : bool, default=False
        Whether the caller works on a model that exists already, by its nature: then every
        fitted estimator is taken as it is.

    Returns
    -------
    bool

    Examples
    --------
    >>> from sklearn.frozen import FrozenEstimator
    >>> from sklearn.linear_model import LogisticRegression
    >>> model = LogisticRegression()
    >>> is_prefit(model)
    False
    >>> fitted = model.fit([[0.0], [1.0]], [0, 1])
    >>> is_prefit(FrozenEstimator(fitted)), is_prefit(fitted, after_the_fact=True)
    (True, True)
    """
    if isinstance(estimator, FrozenEstimator) or is_module(estimator):
        return True
    return after_the_fact and look_at(estimator).is_fitted


@dataclass(frozen=True)
class Inputs(ABC):
    """A kind of input, and how it is checked for the estimator that the user calls, `owner`.

    Checking sets scikit-learn's attributes `n_features_in_` and `feature_names_in_` of the owner.
    """

    @property
    def are_ids(self) -> bool:
        """Whether inputs are ids, such as those of nodes."""
        return False

    @property
    def are_tokens(self) -> bool:
        """Whether inputs are tokens of text, for a transformers model."""
        return False

    @property
    def reaches_preprocessing(self) -> bool:
        """Whether inputs are passed on as they are, because the model transforms them itself."""
        return False

    @abstractmethod
    def fit(self, owner: Any, X: Any, y: Any, min_samples: int) -> tuple[Self, Any, NDArray[Any]]:
        """The kind with what it learns of training data, and these, checked."""

    @abstractmethod
    def check(self, owner: Any, X: Any) -> Any:
        """New inputs of the form that was fitted, before preprocessing by the model."""


@stored("models.rows")
@dataclass(frozen=True)
class Rows(Inputs):
    """Arrays of numbers, of shape (n_samples, ...) with one shape for all samples.

    Attributes
    ----------
    flat : bool
        Whether only rows of a table are taken, as the default network does.
    sparse : bool
        Whether sparse matrices are taken.
    pretrained : transformers.PreTrainedModel or None
        The model, if it is one of the library transformers, whose inputs may be a mapping.
    shape : tuple of int or None
        Shape of one sample, without the length of texts.
    """

    flat: bool
    sparse: bool
    pretrained: Any = None
    shape: tuple[int, ...] | None = None

    @property
    def are_tokens(self) -> bool:
        return self.pretrained is not None and self.pretrained.main_input_name == TEXT_FIELDS[0]

    def fit(self, owner: Any, X: Any, y: Any, min_samples: int) -> tuple[Self, Any, NDArray[Any]]:
        X, y = validate_data(
            owner,
            self._stacked(X),
            y,
            allow_nd=not self.flat,
            ensure_min_samples=min_samples,
            **self._numbers,
        )
        # Sparse inputs become dense here: all of them are needed at once.
        return replace(self, shape=self._shape_of(X)), to_dense(X), y

    def check(self, owner: Any, X: Any) -> Any:
        X = validate_data(owner, self._stacked(X), reset=False, allow_nd=True, **self._numbers)
        if self._shape_of(X) != self.shape:
            raise ValueError(
                f"X must have shape (n_samples, {str(self.shape)[1:-1]}), got {X.shape}."
            )
        return X

    @property
    def _numbers(self) -> dict[str, Any]:
        return {
            "accept_sparse": "csr" if self.sparse else False,
            "dtype": [np.float64, np.float32],
        }

    def _stacked(self, X: Any) -> Any:
        return X if self.pretrained is None else rows_of(self.pretrained, X)

    def _shape_of(self, X: Any) -> tuple[int, ...]:
        """Shape that all inputs share: texts may be longer or shorter than others."""
        shape: tuple[int, ...] = X.shape[1:-1] if self.are_tokens else X.shape[1:]
        return shape


@stored("models.table")
@dataclass(frozen=True)
class Table(Inputs):
    """Whatever the model's own preprocessing takes, such as columns of text, or texts alone.

    Attributes
    ----------
    learner : bool
        Whether it reaches a scikit-learn learner, which gets a table, an array or texts, and
        whose business NaN is.
    keeps_sparse : bool
        Whether sparse rows reach a learner as they are.
    """

    learner: bool = False
    keeps_sparse: bool = False

    @property
    def reaches_preprocessing(self) -> bool:
        return True

    def fit(self, owner: Any, X: Any, y: Any, min_samples: int) -> tuple[Self, Any, NDArray[Any]]:
        X = self._as_table(X)
        vars(owner).pop("n_features_in_", None)  # texts have none, and would keep an earlier one
        validate_data(owner, X, skip_check_array=True)
        X, y = indexable(X, column_or_1d(y, warn=True))
        return self, X, y

    def check(self, owner: Any, X: Any) -> Any:
        check_some_samples(X, owner)
        X = self._as_table(X)
        validate_data(owner, X, reset=False, skip_check_array=True)
        return indexable(X)[0]  # rows of a sparse matrix in coordinates cannot be taken

    def _as_table(self, X: Any) -> Any:
        if is_texts(X):
            return np.asarray(X, dtype=object)
        if not self.learner or hasattr(X, "columns"):
            return X
        return check_array(
            X if self.keeps_sparse else to_dense(X),
            accept_sparse="csr",
            allow_nd=True,  # images of an estimator around a network; other learners refuse them
            dtype=None,
            ensure_all_finite="allow-nan",
            input_name="X",
        )


@dataclass(frozen=True)
class Nodes(Inputs):
    """Ids of nodes, which the model checks."""

    @property
    def are_ids(self) -> bool:
        return True

    def fit(self, owner: Any, X: Any, y: Any, min_samples: int) -> tuple[Self, Any, NDArray[Any]]:
        owner.n_features_in_ = 1
        y = labels_in_mask(X, column_or_1d(y, warn=True))
        ids = np.asarray(X)
        check_consistent_length(np.flatnonzero(ids) if ids.dtype == bool else X, y)
        return self, X, y

    def check(self, owner: Any, X: Any) -> Any:
        return X


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
        Tokens have shape (n_samples, n_fields, length), with the ids, the attention mask and the
        types in this order as far as they are given; images have the shape of ``pixel_values``.

    Raises
    ------
    ValueError
        If a field is missing, unknown, or of another shape than the first.
    """
    model = look_at(estimator).pretrained
    return X if model is None else rows_of(model, X)
