"""From the estimator that a user passed, and data, to a fitted model in one form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from skuq.base import FloatArray
from skuq.extras import import_optional
from skuq.labels import plain
from skuq.models._given import (
    Given,
    Inputs,
    Nodes,
    Rows,
    Table,
    is_prefit,
    is_skorch_net,
    look_at,
)
from skuq.models._model import (
    N_EXAMPLES,
    LearnerModel,
    Model,
    fit_clone,
    for_learner,
)
from skuq.sample_weights import training_weights
from skuq.validation import is_texts
from skuq.wrappers import unwrap

if TYPE_CHECKING:
    import torch
    from torch import nn

Form = Literal["network", "learner", "natural"]


class TrainingData(NamedTuple):
    """Training data as a model takes them.

    Attributes
    ----------
    X : array or DataFrame of shape (n_samples, ...)
        Checked inputs, before the model's own preprocessing.
    inputs : Tensor, array or DataFrame of shape (n_samples, ...)
        What the model's network or learner gets.
    labels : ndarray of shape (n_samples,)
        Labels, or targets of a regression.
    codes : ndarray of shape (n_samples,), int64
        Positions of the labels in the classes of the model; empty for a regression.
    weight : ndarray of shape (n_samples,), float64
        Sample weights; ones if none were given.
    further : tuple of arrays
        Further inputs, checked.
    """

    X: Any
    inputs: Any
    labels: NDArray[Any]
    codes: NDArray[np.int64]
    weight: FloatArray
    further: tuple[Any, ...] = ()


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
    min_samples: int = 1,
    ids: bool = False,
    sparse: bool = True,
    keep_sparse: bool = False,
    before_training: Callable[[], None] | None = None,
    fit: Callable[..., Model] | None = None,
    **training: Any,
) -> tuple[Model, TrainingData]:
    """Turn an estimator and training data into a fitted model, and the data in its form.

    The start of every `fit` that wraps a model, and the one place that looks at what kind of
    model was given. In turn: the data are checked in the way that suits the model, which is then
    taken as it is or cloned and trained (see `is_prefit`), and labels become positions among its
    outputs.

    Parameters
    ----------
    estimator : object
        What the user passed; None trains a default network.
    X : array-like of shape (n_samples, ...)
        Training inputs, or ids of nodes.
    y : array-like of shape (n_samples,)
        Class labels or targets.
    owner : estimator
        The estimator that the user calls; it gets `n_features_in_` and `feature_names_in_`.
    seed : int
        Randomness of the training.
    form : {"network", "learner", "natural"}, default="network"
        "network": a network is needed, which `adopt` makes of linear models too. "learner": any
        scikit-learn estimator as it is. "natural": networks and linear models as
        networks, and all else, such as what is wrapped around a network, as learners.
    regression : bool, default=False
        Whether a regressor is needed. Samples of weight 0 are then left out.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights >= 0, in numbers of samples, not all 0.
    further : sequence of array-likes, default=()
        Further inputs to check before anything is trained.
    min_samples : int, default=1
        Number of samples that are needed at least.
    ids : bool, default=False
        Whether `owner` can work with models of nodes.
    sparse : bool, default=True
        Whether sparse inputs are taken.
    keep_sparse : bool, default=False
        Whether sparse rows reach a learner as they are. Of the training data, only the first
        `inputs` are then preprocessed.
    before_training : callable, default=None
        Called when the data are checked and nothing is trained yet, such as to check more.
    fit : callable, default=fit_model
        Makes the model of the checked data.
    **training
        Further arguments of `fit`.

    Returns
    -------
    model : Model
        With `form`, which checks new inputs, and for a classifier with `classes`.
    data : TrainingData
        The training data.

    Raises
    ------
    TypeError
        If the estimator is of a kind that cannot be used.
    ValueError
        If data, labels or weights are not valid, or the training diverges.

    Warns
    -----
    UserWarning
        If a fitted estimator is trained again.
    """
    given = look_at(estimator)
    as_learner = form == "learner" or (form == "natural" and not given.is_naturally_network)
    inputs = _kind_of_inputs(given, owner, as_learner=as_learner, ids=ids, sparse=sparse)
    if keep_sparse and isinstance(inputs, Table):
        inputs = replace(inputs, keeps_sparse=True)
    with _noted_texts(given, X):
        inputs, X, y = inputs.fit(owner, X, y, min_samples)
        checked = tuple(inputs.check(owner, each) for each in further)
        weight = None if sample_weight is None else training_weights(sample_weight, len(y))
        if regression:
            y = check_array(y, dtype=np.float64, ensure_2d=False, input_name="y")
            if weight is not None:
                kept = np.flatnonzero(weight)
                X, y, weight = _safe_indexing(X, kept), y[kept], weight[kept]
        else:
            check_classification_targets(y)
        if before_training is not None:
            before_training()
        model = (fit or fit_model)(
            estimator,
            X,
            y,
            as_learner=as_learner,
            regression=regression,
            sample_weight=weight,
            seed=seed,
            **training,
        )
        model = replace(model, form=inputs)
        first = _safe_indexing(X, slice(0, N_EXAMPLES)) if keep_sparse else X
    prepared, codes = model.inputs(first), np.empty(0, np.int64)
    if not regression:
        model, codes = model.with_classes(y, prepared)
    if weight is None:
        weight = np.ones(len(y))
    return model, TrainingData(X, prepared, y, codes, weight, checked)


@contextmanager
def _noted_texts(given: Given, X: Any) -> Iterator[None]:
    """Tell, with errors of models that get texts, how these are taken."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        if is_texts(X):
            error.add_note(
                f"X holds texts, one for each sample. If {type(given.estimator).__name__} does not "
                "take these, put a step in front that makes numbers of them: "
                "make_pipeline(TfidfVectorizer(), estimator)."
            )
        raise


def _kind_of_inputs(
    given: Given, owner: Any, *, as_learner: bool, ids: bool, sparse: bool
) -> Inputs:
    if given.takes_ids:
        if not ids or as_learner:
            raise TypeError(
                f"{type(owner).__name__} needs a model of rows, but "
                f"{type(given.estimator).__name__} takes ids of nodes."
            )
        return Nodes()
    if as_learner or given.preprocesses:
        return Table(learner=as_learner)
    return Rows(given.estimator is None, sparse, given.pretrained)


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
    """Take over a model as it is, or clone and train it, on checked data.

    Parameters
    ----------
    estimator, X, y, seed, regression, sample_weight
        As in `resolve`.
    as_learner : bool, default=False
        Whether any scikit-learn estimator is taken, of which only predictions are known.
    device : torch.device or str, default="cpu"
        Where a default network is trained.
    after_the_fact : bool, default=False
        Whether every fitted estimator is taken as it is; see `is_prefit`.
    network : callable, default=None
        Builds the default classifier from the numbers of features and classes; None takes
        `skuq.networks.float64_mlp`.
    n_outputs : int, default=1
        Of a network for regression: 1 for the mean, 2 for mean and log variance.
    fit_params : mapping of str to object, default=None
        Further arguments of the `fit` of a scikit-learn estimator that is trained.

    Returns
    -------
    Model
        A `LearnerModel` if `as_learner`, else a `NetworkModel`; without classes, if a network
        does not know them.

    Raises
    ------
    TypeError
        If the estimator cannot be trained or used, or its `fit` does not take `fit_params`.
    ValueError
        If training is asked for and `y` holds one class, if the estimator is of the other kind or
        has other outputs, or if the training diverges.
    """
    training: dict[str, Any] = {"sample_weight": sample_weight, "seed": seed}
    if as_learner:
        return _learner(estimator, X, y, fit_params, regression=regression, **training)
    import_optional("torch", extra=None)
    from skuq.models._fitted_network import fitted_classifier, fitted_regressor

    if regression:
        return fitted_regressor(estimator, X, y, n_outputs, device, after_the_fact, training)
    return fitted_classifier(estimator, X, y, network, fit_params, device, after_the_fact, training)


def _learner(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    fit_params: Mapping[str, Any] | None,
    *,
    regression: bool,
    **training: Any,
) -> LearnerModel:
    """Any fitted estimator as it is, or a clone of it, trained."""
    if not regression and is_regressor(estimator):
        raise ValueError("`estimator` is a regressor; a classifier is needed.")
    if regression and is_classifier(estimator):
        raise ValueError("`estimator` is a classifier; a regressor is needed.")
    if is_prefit(estimator):
        refuse_fit_params(fit_params, "A model that is taken as it is needs no")
        check_is_fitted(estimator.estimator)
        return _learner_model(deepcopy(estimator))
    check_trainable(estimator)
    if not regression:
        check_several_classes(y)
    training["sample_weight"] = look_at(estimator).usable_weight(training["sample_weight"])
    inputs = for_learner(estimator, X)
    model = _learner_model(fit_clone(estimator, inputs, y, **training, **(fit_params or {})))
    if model.classes is not None and np.array_equal(model.classes, labels := np.unique(y)):
        model = replace(model, classes=labels)  # of their type: XGBoost makes numbers of booleans
    return model


def refuse_fit_params(fit_params: Mapping[str, Any] | None, reason: str) -> None:
    """Refuse further arguments of `fit` where nothing takes them; `reason` begins the sentence."""
    if fit_params:
        raise TypeError(f"{reason} {', '.join(fit_params)}.")


def _learner_model(fitted: Any) -> LearnerModel:
    """The estimator at the end of pipelines, behind the transformers before it."""
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
    several = any(np.ndim(each) for each in fitted.classes_)  # of labels, each with its classes
    if several or getattr(fitted, "multilabel_", False):
        raise ValueError(
            f"{type(fitted).__name__} predicts several labels for each sample; a model of one is "
            "needed."
        )
    return LearnerModel(estimator=fitted, classes=np.asarray(fitted.classes_))


def check_trainable(estimator: Any) -> None:
    """Refuse what cannot be trained, and warn of what is trained again."""
    if estimator is not None and not hasattr(estimator, "fit"):
        raise TypeError(
            "`estimator` must be None, have a method `fit`, or be a torch.nn.Module, got "
            f"{estimator!r}."
        )
    if isinstance(estimator, Pipeline) and is_skorch_net(estimator.steps[-1][1]):
        raise TypeError(
            "`estimator` is a pipeline that ends in a skorch net; put the transformers outside: "
            "make_pipeline(..., Estimator(net))."
        )
    look_at(estimator).warn_of_retraining()


def check_several_classes(y: NDArray[Any]) -> None:
    classes = np.unique(y)
    if len(classes) < 2:
        raise ValueError(f"`y` holds one class only: {plain(classes[0])!r}; at least 2 are needed.")
