"""Conversion of a user's estimator and data to a fitted model; mixins for estimators with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, is_classifier, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, check_array, check_scalar, gen_batches
from sklearn.utils.validation import _num_samples, check_is_fitted

from skuq.base import FloatArray, IntArray
from skuq.devices import with_gradients
from skuq.imports import import_optional
from skuq.labels import checked_proba
from skuq.models._given import (
    Given,
    Inputs,
    Nodes,
    Rows,
    Table,
    check_is_estimator,
    check_several_classes,
    look_at,
    refuse_fit_params,
)
from skuq.models._model import N_EXAMPLES, LearnerModel, Model, fit_clone, for_learner, in_float64
from skuq.validation import (
    check_some_samples,
    check_targets_are_classes,
    checked_labels,
    is_texts,
    training_weights,
)
from skuq.wrappers import copied, first_sampler, transform_of, unwrap

if TYPE_CHECKING:
    import torch
    from torch import nn

Form = Literal["network", "learner", "natural"]


class TrainingData(NamedTuple):
    """Validated and preprocessed training data, one row for each sample."""

    given: Given
    X: Any  # validated, before the model's own preprocessing
    inputs: Any  # preprocessed, for the network or learner
    labels: NDArray[Any]  # class labels, or targets of a regression
    codes: NDArray[np.int64]  # positions of labels in the model's classes; empty for regression
    weight: FloatArray  # ones if no weights were given
    further: tuple[Any, ...] = ()  # further validated inputs
    groups: IntArray | None = None  # index of each sample's group


@with_gradients()
def resolve(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    owner: Any,
    seed: int,
    form: Form = "network",
    regression: bool = False,
    sample_weight: Any = None,
    further: Sequence[Any] = (),
    before_training: Callable[[], None] | None = None,
    fit: Callable[..., Model] | None = None,
    **training: Any,
) -> tuple[Model, TrainingData]:
    """Convert an estimator and training data to a fitted model and preprocessed data.

    The `fit` method of every estimator that wraps a model calls this function first; no other code
    depends on the type of the user's model. The function validates the data, trains a clone of the
    model unless it is prefit (see `is_prefit`), and converts labels to positions among the model's
    outputs.

    Parameters
    ----------
    estimator : object
        Estimator that the user passed, or its `Given`; None trains a default network.
    X : array-like of shape (n_samples, ...)
        Training inputs, or node ids.
    y : array-like of shape (n_samples,)
        Class labels or targets.
    owner : estimator
        The estimator that the user calls; its `n_features_in_` and `feature_names_in_` are set. Its
        class attributes may state which inputs it supports, see `ModelMixin`.
    seed : int
        Seed of the training.
    form : {"network", "learner", "natural"}, default="network"
        "network": return a network; linear models are converted to networks. "learner": accept any
        scikit-learn estimator, and use only its predictions. "natural": return networks and linear
        models as networks, and all other estimators, such as wrappers around a network, as
        learners.
    regression : bool, default=False
        Whether a regressor is needed. Samples of weight 0 are then dropped.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights >= 0 that count samples, not all 0.
    further : sequence of array-likes, default=()
        Further inputs to validate before the training.
    before_training : callable, default=None
        Called without arguments after the validation and before the training.
    fit : callable, default=fit_model
        Function that fits the model on the validated data; its first argument is a `Given`.
    **training
        Further arguments of `fit`; `fit_model` accepts `device`, `after_the_fact`, `network`,
        `n_outputs` and `fit_params`.

    Returns
    -------
    model : Model
        The fitted model. Its `form` validates new inputs; its `classes` are set for a classifier.
    data : TrainingData
        The training data.

    Warns
    -----
    UserWarning
        If a fitted estimator is retrained.
    """
    given = estimator if isinstance(estimator, Given) else look_at(estimator)
    check_is_estimator(given.learner)
    as_learner = form == "learner" or (form == "natural" and not given.is_naturally_network)
    inputs = _kind_of_inputs(given, owner, as_learner=as_learner)
    with _noted_texts(given, X):
        inputs, X, y = inputs.fit(owner, X, y, getattr(owner, "_min_samples", 1))
        checked = tuple(inputs.check(owner, each) for each in further)
        weight = None if sample_weight is None else training_weights(sample_weight, len(y))
        if regression:
            y = check_array(y, dtype=np.float64, ensure_2d=False, input_name="y")
            if weight is not None:
                kept = np.flatnonzero(weight)
                X, y, weight = _safe_indexing(X, kept), y[kept], weight[kept]
        else:
            check_targets_are_classes(y)
        if before_training is not None:
            before_training()
        training |= {"as_learner": as_learner, "regression": regression, "sample_weight": weight}
        model = replace((fit or fit_model)(given, X, y, seed=seed, **training), form=inputs)
        needs_all = getattr(owner, "_needs_all_inputs", True)
        first = X if needs_all else _safe_indexing(X, slice(0, N_EXAMPLES))
    prepared, codes = model.inputs(first), np.empty(0, np.int64)
    if not regression:
        model, codes = model.with_classes(y, prepared)
    weight = np.ones(len(y)) if weight is None else weight
    return model, TrainingData(given, X, prepared, y, codes, weight, checked)


@contextmanager
def _noted_texts(given: Given, X: Any) -> Iterator[None]:
    """Add a note on text preprocessing to errors raised for text inputs."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        if is_texts(X) and "predict_proba" not in str(error):
            tokenise = "the tokeniser's output: tokenizer(texts, padding=True, truncation=True)"
            convert = "numbers: make_pipeline(TfidfVectorizer(), estimator), for instance"
            cure = convert if given.pretrained is None else tokenise
            name = type(given.trained).__name__
            error.add_note(f"X holds texts. If {name} does not accept texts, it needs {cure}.")
        raise


def _kind_of_inputs(given: Given, owner: Any, *, as_learner: bool) -> Inputs:
    if given.takes_ids:
        if not getattr(owner, "_supports_ids", False) or as_learner:
            raise TypeError(
                f"{type(owner).__name__} needs a model whose inputs are rows of features, but the "
                f"inputs of {type(given.estimator).__name__} are node ids."
            )
        return Nodes()
    if as_learner or given.preprocesses:
        return Table(learner=as_learner)
    return Rows(given.estimator is None, getattr(owner, "_supports_sparse", True), given.pretrained)


def fit_model(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    *,
    seed: int,
    as_learner: bool = False,
    regression: bool = False,
    sample_weight: FloatArray | None = None,
    device: torch.device | str = "cpu",
    after_the_fact: bool = False,
    network: Callable[[int, int], nn.Module] | None = None,
    n_outputs: int = 1,
    fit_params: Mapping[str, Any] | None = None,
) -> Model:
    """Return a prefit model, or clone and train the estimator on validated data.

    With `as_learner`, the result is a `LearnerModel` of any scikit-learn estimator. Otherwise, it
    is a `NetworkModel`, whose `classes` are None if the network stores no labels. The default
    classifier is ``network(n_features, n_classes)``, trained on `device`. `n_outputs` of a
    regression network is 1 for the mean, 2 for mean and log variance. `fit_params` are further
    arguments of a scikit-learn estimator's `fit`. For `after_the_fact`, see `is_prefit`.
    """
    given = estimator if isinstance(estimator, Given) else look_at(estimator)
    training: dict[str, Any] = {"sample_weight": sample_weight, "seed": seed}
    if as_learner:
        return _learner(given, X, y, fit_params, regression=regression, **training)
    import_optional("torch", extra=None)
    from skuq.models._fit_or_adopt import fitted_classifier, fitted_regressor

    if regression:
        return fitted_regressor(given, X, y, n_outputs, device, after_the_fact, training)
    return fitted_classifier(given, X, y, network, fit_params, device, after_the_fact, training)


def _learner(
    given: Given,
    X: Any,
    y: NDArray[Any],
    fit_params: Mapping[str, Any] | None,
    *,
    regression: bool,
    **training: Any,
) -> LearnerModel:
    estimator = given.estimator
    needed, other = ("regressor", "classifier") if regression else ("classifier", "regressor")
    if (is_classifier if regression else is_regressor)(estimator):
        raise ValueError(f"`estimator` is a {other}; pass a {needed}.")
    if given.is_prefit:
        refuse_fit_params(fit_params, "A frozen model is not trained and accepts no")
        check_is_fitted(estimator.estimator)
        return _learner_model(copied(estimator))
    given.check_trainable()
    if not regression:
        check_several_classes(y)
    training["sample_weight"] = given.usable_weight(training["sample_weight"])
    inputs = for_learner(estimator, X, preprocesses=given.preprocesses)
    model = _learner_model(fit_clone(estimator, inputs, y, **training, **(fit_params or {})))
    if model.classes is not None and np.array_equal(model.classes, labels := np.unique(y)):
        # Restore the dtype of the user's labels, which XGBoost may have changed.
        model = replace(model, classes=labels)
    return model


def _learner_model(fitted: Any) -> LearnerModel:
    """Build a model from the estimator inside pipelines and searches; keep their transformers."""
    if (sampler := first_sampler(fitted)) is not None:  # keep samplers inside: refits need them
        model = LearnerModel(estimator=fitted[sampler:], classes=np.asarray(fitted.classes_))
        return model.behind(transform_of(fitted.steps[:sampler]))
    if isinstance(fitted, FrozenEstimator | Pipeline) or hasattr(fitted, "best_estimator_"):
        inside = unwrap(fitted)
        assert inside is not None
        return _learner_model(inside.estimator).behind(inside.transform)
    if not is_classifier(fitted):
        return LearnerModel(estimator=fitted)
    if not hasattr(fitted, "predict_proba"):
        raise TypeError(
            f"{type(fitted).__name__} does not predict probabilities. Wrap it in "
            "CalibratedClassifierCV, or choose a classifier with `predict_proba`."
        )
    several = any(np.ndim(each) for each in fitted.classes_)  # then `classes_` is a list of arrays
    if several or getattr(fitted, "multilabel_", False):
        raise ValueError(
            f"{type(fitted).__name__} predicts several labels for each sample; pass a single-label "
            "model."
        )
    return LearnerModel(estimator=fitted, classes=np.asarray(fitted.classes_))


class ModelMixin:
    """Mixin of estimators with parameters `estimator` and `device`, whose model is in `model_`."""

    _supports_ids = False  # whether inputs may be node ids of a graph
    _supports_sparse = True
    _needs_all_inputs = True  # if False, `TrainingData.inputs` contains only the first rows
    _min_samples = 1
    estimator: Any
    device: str | torch.device
    model_: Any  # a Model of the kind that the estimator requires

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = self._supports_sparse
        if self._supports_ids:
            tags.input_tags.one_d_array = look_at(self._given).takes_ids
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    @property
    def _given(self) -> Any:
        return self.estimator

    def _resolve(self, X: Any, y: Any, *, given: Any = None, **options: Any) -> TrainingData:
        self.model_, data = resolve(given or self._given, X, y, owner=self, **options)
        return data

    def _checked_rows(self, X: Any) -> Any:
        """Check that new inputs are like training inputs, before the model preprocesses them."""
        check_is_fitted(self)
        return self.model_.form.check(self, X)

    def _inputs(self, X: Any) -> Any:
        rows = self._checked_rows(X)  # raises NotFittedError before `model_` is read
        return self.model_.inputs(rows)

    def _outputs(self, inputs: Any) -> Any:
        """Compute the model's outputs in float64, on the CPU; see `Model.outputs`."""
        return in_float64(self.model_.outputs(inputs, self.device))


class ModelClassifierMixin(ModelMixin):
    """Mixin with the predictions of a classifier whose model is in the attribute `model_`."""

    classes_: NDArray[Any]

    def predict_proba(self, X: Any) -> FloatArray:
        """Predict class probabilities, (n_samples, n_classes), columns ordered as `classes_`."""
        proba: FloatArray = np.exp(np.asarray(self._log_proba(self._inputs(X))))
        return proba

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the class of each input.

        A scikit-learn estimator applies its own rule, such as a threshold or costs. Any other
        model predicts the most probable class.
        """
        if type(self).predict_proba is not ModelClassifierMixin.predict_proba:
            best = self.predict_proba(X).argmax(axis=1)  # raises NotFittedError before `fit`
            return self.classes_[best]
        inputs = self._inputs(X)
        return self.model_.decisions(inputs, self.device)

    def _log_proba(self, inputs: Any) -> Any:
        return self.model_.log_proba(inputs, self.device)


class ModuleClassifier(ModelClassifierMixin, ClassifierMixin, BaseEstimator):
    """Classifier of any trained model that `adopt` accepts; `fit` determines only the labels."""

    def __init__(self, estimator: Any, device: Any = "auto"):
        self.estimator = estimator
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:
        self._resolve(X, y, seed=0, after_the_fact=True)
        self.classes_ = self.model_.classes
        return self


class FunctionClassifier(ClassifierMixin, BaseEstimator):
    """Fitted classifier that calls a function; see `from_function`."""

    def __init__(self, function: Callable[[Any], Any], classes: NDArray[Any], batch_size: int):
        self.function = function
        self.classes = classes
        self.batch_size = batch_size

    def __sklearn_clone__(self) -> Self:
        return self  # not a copy, because connections and sessions cannot be copied

    def __sklearn_is_fitted__(self) -> bool:
        return True

    @property
    def classes_(self) -> NDArray[Any]:
        return np.sort(self.classes)

    def fit(self, X: Any, y: Any) -> Self:
        raise TypeError("A function cannot be trained; use it in a FrozenEstimator.")

    def predict_proba(self, X: Any) -> NDArray[Any]:
        check_some_samples(X, self)
        parts = []
        for rows in gen_batches(_num_samples(X), self.batch_size):
            proba = checked_proba(self.function(_safe_indexing(X, rows)))
            expected = rows.stop - rows.start, len(self.classes)
            if proba.shape != expected:
                raise ValueError(
                    f"The function must return probabilities of shape {expected}, one row for each "
                    f"input and one column for each class, got {proba.shape}."
                )
            parts.append(proba[:, np.argsort(self.classes)])
        return np.concatenate(parts)

    def predict(self, X: Any) -> NDArray[Any]:
        best: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return best


def from_function(
    predict_proba: Callable[[Any], Any], classes: ArrayLike, *, batch_size: int = 256
) -> FrozenEstimator:
    """Make a fitted classifier from a function, such as a call of a service or an ONNX session.

    Parameters
    ----------
    predict_proba : callable
        Maps rows of the inputs to probabilities of shape (n_samples, n_classes).
    classes : array-like of shape (n_classes,)
        Labels in the order of the columns.
    batch_size : int, default=256
        Largest number of inputs in one call.

    Returns
    -------
    FrozenEstimator
        A classifier whose `classes_` are sorted, for all estimators that need only predictions.

    Raises
    ------
    ValueError
        If `classes` has fewer than two entries or equal entries, or `batch_size` is less than 1.
        Predicting raises it, too, if the function does not return probabilities of all inputs.

    Examples
    --------
    >>> import numpy as np
    >>> model = from_function(lambda X: np.c_[1 - X[:, 0], X[:, 0]], ["no", "yes"], batch_size=100)
    >>> model.predict(np.array([[0.2], [0.9]])).tolist()
    ['no', 'yes']
    """
    labels = checked_labels(classes, "classes").copy()
    check_scalar(batch_size, "batch_size", Integral, min_val=1)
    if len(np.unique(labels)) < max(2, len(labels)):
        raise ValueError(f"`classes` must have at least 2 different labels, got {labels.tolist()}.")
    return FrozenEstimator(FunctionClassifier(predict_proba, labels, batch_size))
