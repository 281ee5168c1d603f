"""QUAM for classification, as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from skuq.base import FloatArray, IntArray, Uncertainty, UncertaintyMixin
from skuq.information import Decomposition
from skuq.labels import codes_of
from skuq.models import (
    AdoptedClassifierMixin,
    encode_labels,
    fit_or_adopt,
    fit_or_take,
    level_of_the_user,
    resolve_device,
)
from skuq.quam._importance_sampling import (
    AdversarialModels,
    ImportanceSampling,
    best_adversarial_models,
    estimate_uncertainty,
)
from skuq.quam._mixin import KEPT, Met, QUAMMixin, checked_weights, reduce_piece
from skuq.quam._objectives import Objective, Targeted, Untargeted, classification_objective
from skuq.quam._refit_search import class_weights
from skuq.quam._search import Trajectories, search_batch
from skuq.quam._search_parameters import SearchParameters
from skuq.quam._search_problem import SearchProblem, SearchSettings, mean_loss, prepare_search
from skuq.stored import stored


@dataclass(kw_only=True, eq=False, repr=False)
@stored("quam.classifier", fields=KEPT | {"classes_": NDArray[Any]})
class QUAMClassifier(
    QUAMMixin, AdoptedClassifierMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator
):
    """Classifier whose uncertainty comes from a search for adversarial models.

    An *adversarial model* explains the training data about as well as the given model, but
    says something else about inputs that the data leave open. Where such models disagree, the
    prediction is not supported by the data and the epistemic uncertainty is large.

    Parameters
    ----------
    estimator : object, default=None
        The model to question. None trains a network with one hidden layer of 100 units
        (scale the features before). Any classifier with `predict_proba` whose `fit` takes
        `sample_weight` (boosted trees, forests, logistic regression and others), a skorch net,
        an `MLPClassifier`, or a pipeline that ends in one, is cloned and trained. A fitted model
        wrapped in `sklearn.frozen.FrozenEstimator`, or a `torch.nn.Module` that returns logits,
        is taken as it is and never altered; `fit` then needs the data that it was trained on.
        Outputs of a module belong to the sorted labels in `y`.
    search : {"pool", "pointwise"}, default="pool"
        "pool": `fit` searches models that say one thing about a whole pool of inputs, once for
        each class; after that, an input costs the evaluation of these models. Networks are
        searched by gradients, other learners are refitted with a little of the pool. "pointwise":
        models are searched for each input anew, as in the paper's Algorithm 1; for networks and
        logistic regression only.
    pool : "auto" or callable, default="auto"
        How the pool is made where `fit` gets no `X_pool`. "auto" is `skuq.quam.make_pool`,
        which alters training inputs; without unseen categories, or numbers out of their range,
        if the model refuses these. A callable gets the training inputs and returns a pool.
    pool_shares : array-like of float, default=(0.1, 0.3)
        With search="pool" and a learner that is refitted: total weight of the pool over all
        classes, relative to the training data; one model per class for each.
    setting : {"expected", "selected"}, default="expected"
        Whose uncertainty is meant. "expected": that of all models that explain the data
        (Eq. 1). "selected": that of the given model (Eq. 2).
    targeted : bool, default=True
        Whether there is one search for each class, which it asks for. False: a single search
        for any model that differs from the fitted model's prediction, which is cheaper and
        tends to find the same alternative again and again. Not used by refitted learners.
    n_targets : int, default=None
        Ask for this many classes only, the most probable ones according to the fitted model:
        at the input, or in the pool on average. None asks for all; the cost is proportional to
        the number.
    mixture : {"trajectory", "dirac"}, default="trajectory"
        Which models stand for all that explain the data: all that were kept of each search (on
        a pool, those of the last tenth of its steps), or the best adversarial one of each
        search alone.
    parameters : {"auto", "all", "linear", "last", "bias", "norm"} or callable, default="auto"
        Weights of a network that the search may move: all; all from the first linear layer on,
        where features before it can be computed once; the last layer; all biases; or the scales
        and shifts of normalisation layers. A callable ``parameters(name, tensor)`` returns for
        each whether it moves. "auto" is "linear" with search="pool", else "all"; of a
        transformers model it is "last".
    n_steps : int or "auto", default="auto"
        Length of each search of a network; its cost is proportional to this. "auto" is 200
        with search="pool", else 100.
    c0 : float or "auto", default="auto"
        Initial weight of the penalty on training loss. "auto" is 10 with search="pool", else a
        tenth of the number of training samples; wherever samples are counted, each counts by
        its weight.
    eta : float or "auto", default="auto"
        Factor by which the penalty grows. "auto" makes it ten times as large in the end. With
        search="pointwise" and c0 "auto" it then equals the number of training samples, and the
        search minimises the negative log posterior of the training set and one sample more, the
        test point with the targeted class.
    update_every : int, default=1
        Steps between two changes of the penalty and of the step size.
    gamma : float, default=0.01
        Training loss, in nats per sample above the fitted model's, at which a model still
        counts as explaining the data; used by `adversarial_models` and by mixture "dirac".
    learning_rate : float, default=0.1
        Step size of the search, relative to the root mean square of each weight tensor.
    learning_rate_decay : float or "auto", default="auto"
        Factor by which the step size shrinks whenever the penalty grows. "auto" makes it a tenth
        in the end with search="pool", else constant.
    prior_precision : float, default=0.0
        Precision of the Gaussian prior around 0 of each moving weight of a network: the negative
        log posterior is ``n_samples * mean training loss + prior_precision / 2 * |w|**2``. Set
        it if the model was trained with one; that of an optimiser's `weight_decay` is
        ``weight_decay * n_samples``. It counts in the search and in the weights of the models.
    temperature : float or "auto", default="auto"
        T in the weight ``exp(-mean loss / T)`` of each model found. "auto": with search="pool",
        two standard errors of the losses, since models that the data cannot tell apart count
        alike; losses are those of training samples, held out from learners that are refitted.
        With "pointwise", one over the number of samples that the loss is averaged over: weights
        are then likelihoods, of the training set if it fits into one batch
        (`train_batch_size`), else of a batch. Larger values count worse-fitting models too.
    train_batch_size : int or "auto", default="auto"
        Training samples on which each step of the search computes the penalty, and inputs of
        the pool in each step. "auto" is 512 with search="pool", else 256.
    batch_size : int, default=8
        Test points searched at once with search="pointwise"; no effect on the result. Bounds
        memory: each search takes 4 copies of the weights that it moves.
    device : str, default="auto"
        Where networks compute; "auto" is CUDA if present, else the CPU.
    n_jobs : int, default=None
        Processes that share refits and inputs, through joblib: the same call runs on a Dask
        cluster under ``joblib.parallel_config(backend="dask")``.
    random_state : int, RandomState instance or None, default=None
        Initial weights, shuffling, the made pool and mini-batches.
    verbose : int, default=0
        Whether to show a progress bar while predicting uncertainty.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.AdoptedModel or skuq.models.EstimatorModel
        The questioned model.
    reference_loss_ : float
        Its mean training loss, in nats (L_ref).
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Quantities are in nats. "selected": total = expected cross-entropy, aleatoric = entropy
    of the given model, epistemic = expected KL divergence of candidate models from it.
    "expected": total = entropy of the average model, aleatoric = expected entropy,
    epistemic = mutual information. The training data are kept, because later searches need
    them.

    On a pool, the given model counts half in the mixture, and the searches share the other half,
    less if refitted learners explain held-out samples worse (Eq. 4 and 6). Trees that may
    memorise single samples (forests with the default ``min_samples_leaf=1``) are refitted with
    at least 2 samples in each leaf, and a forest limited in the same way takes the given model's
    place in the mixture.

    The epistemic part is an importance sampling estimate over the models that the searches
    met, not over the whole posterior (Appendix C.1): it ranks inputs well and is
    comparable only between runs with the same settings.

    References
    ----------
    Schweighofer, Aichberger, Ielanskyi, Klambauer, Hochreiter, "Quantification of
    Uncertainty with Adversarial Models", NeurIPS 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> from skuq import QUAMClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> quam = QUAMClassifier(HistGradientBoostingClassifier(max_iter=20), random_state=0)
    >>> u = quam.fit(X, y).predict_uncertainty([[5.1, 3.5, 1.4, 0.2], [5.1, 3.5, 1.4, 9.9]])
    >>> bool(u.epistemic[1] > u.epistemic[0])
    True
    """

    estimator: Any = field(default=None, kw_only=False)
    targeted: bool = True
    n_targets: int | None = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": "no_validation",
        "targeted": ["boolean"],
        "n_targets": [Interval(Integral, 1, None, closed="left"), None],
        **SearchParameters._parameter_constraints,
    }

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: Any = None, X_pool: Any = None) -> QUAMClassifier:
        """Train the model or take over a frozen one, and search adversarial models on a pool.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, ...)
            Training inputs.
        y : array-like of shape (n_samples,)
            Class labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples in the training loss.
        X_pool : array-like of shape (n_pool, n_features) or (n_pool, ...), default=None
            Inputs, without labels, on which adversarial models are searched; such as the new
            inputs themselves, or others of which the model should be unsure. None makes a pool
            from the training inputs (see `pool`). Not used with search="pointwise".

        Returns
        -------
        QUAMClassifier
            The fitted estimator.

        Raises
        ------
        ValueError
            If the data are not finite numbers, hold a single class to be trained on or a
            label that the frozen model does not know, or do not fit the model's shape; if the
            pool does not have the form of the training inputs; or if the search diverges.
        TypeError
            If `estimator` cannot be adopted; with search="pool", if it takes no
            `sample_weight`.

        Warns
        -----
        UserWarning
            If the model's loss on the training data is worse than guessing.
        """
        device = resolve_device(self.device)
        random = check_random_state(self.random_state)
        fit_seed, search_seed = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        X, y = self._validate_training_data(X, y)
        X_pool = None if X_pool is None else self._checked_pool(X_pool)
        if sample_weight is not None:
            sample_weight = checked_weights(sample_weight, y)
        training = {"sample_weight": sample_weight, "seed": fit_seed}
        if self._refits:
            self.model_ = fit_or_take(self.estimator, X, y, classifier=True, **training)
        else:
            self.model_ = fit_or_adopt(self.estimator, X, y, device=device, **training)
        inputs = self.model_.inputs(X)
        self.classes_, codes = encode_labels(y, self.model_, inputs)
        weight = np.ones(len(y)) if sample_weight is None else sample_weight
        log_proba, targets = self._log_proba(inputs), torch.as_tensor(codes)
        losses = cross_entropy(log_proba, targets, reduction="none").numpy()
        self.reference_loss_ = mean_loss(losses, weight)
        if not class_weights(self.estimator):  # else it is meant to guess otherwise
            _warn_if_worse_than_guessing(self.reference_loss_, codes, weight)
        if self._refits:
            self._problem = self._refit_problem(X, y, weight, self.classes_, search_seed)
        else:
            self._problem = prepare_search(
                self.model_.module,
                self._subnetwork(),
                inputs,
                codes,
                weight=weight,
                losses=losses,
                seed=search_seed,
                device=device,
            )
        self._search_of_fit(X, X_pool, search_seed)
        return self

    def _sought(self, reference: Tensor) -> IntArray:
        if not self.targeted and not self._refits:
            return np.array([-1])
        n_classes = reference.shape[1]
        if self.n_targets is None or self.n_targets >= n_classes:
            return np.arange(n_classes)
        return np.sort(reference.softmax(-1).mean(0).topk(self.n_targets).indices.numpy())

    def _objective(self, reference: Tensor, sought: IntArray) -> Callable[[Tensor], Objective]:
        if sought[0] < 0:
            log_reference = reference.log_softmax(-1)
            return lambda rows: Untargeted(log_reference[rows])
        targets = torch.as_tensor(sought, device=reference.device)
        return lambda rows: Targeted(targets.expand(len(rows), -1))

    def _wanted(self, pool: Any, reference: FloatArray, sought: IntArray) -> list[NDArray[Any]]:
        return [np.full((1, len(reference)), self.classes_[code]) for code in sought]

    def _loss(self, outputs: Tensor, y: NDArray[Any]) -> FloatArray:
        losses: FloatArray = -outputs.numpy()[np.arange(len(y)), codes_of(y, self.classes_, "y")]
        return losses

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Measure how adversarial models disagree about each input.

        With search="pool" the models found by `fit` are evaluated; with "pointwise" models are
        searched for each input.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        Uncertainty
            Total, aleatoric and epistemic part in nats, each of shape (n_samples,).

        Raises
        ------
        ValueError
            If `X` does not fit the training data, or a search diverges.
        """
        if self.search == "pool":
            pieces = self._pieces(X)
            function, sampling = _pool_uncertainty, self._importance_sampling()
            parts = self._run(reduce_piece, pieces, function, sampling)
        else:
            batches = self._batches_of(X)
            parts = self._run(_estimate_uncertainty, batches, self._importance_sampling())
        return Uncertainty.from_parts(*parts)

    def adversarial_models(self, X: Any) -> AdversarialModels:
        """Tell which adversarial model contradicts the given one most, for each input and class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        AdversarialModels
            Predictions, divergences and training losses of the most divergent model that
            fits the training data within `gamma`, for each input and targeted class.
        """
        if self.search == "pool":
            pieces = self._pieces(X)
            arrays = self._run(reduce_piece, pieces, _best_of_pool, self.gamma)
            if self._found.sought[0] >= 0:  # else the class that an untargeted search found
                arrays[0] = np.broadcast_to(self._found.sought, arrays[0].shape)
        else:
            arrays = self._run(_best_models, self._batches_of(X), self.gamma)
        best = AdversarialModels(*arrays)
        return best._replace(target=self.classes_[best.target])

    def _batches_of(self, X: Any) -> list[_Batch]:
        """Test points in the batches that are searched together."""
        problem, settings = self._point_search()
        inputs = self._validated_inputs(X)
        return [
            _Batch(problem, settings, x, log_reference, self.targeted, self.n_targets)
            for x, log_reference in self._batches(inputs, self._log_proba(inputs))
        ]


def _warn_if_worse_than_guessing(loss: float, codes: NDArray[np.int64], weight: FloatArray) -> None:
    """Warn of a model that does not belong to its training data."""
    share = np.bincount(codes, weights=weight) / weight.sum()
    guessing = float(-(share * np.log(np.maximum(share, 1e-300))).sum())
    if loss > 1.05 * guessing:
        warnings.warn(
            f"The model's loss on the training data is {loss:.3g} nats, and guessing by the "
            f"frequencies of the classes costs {guessing:.3g}: uncertainty of this model means "
            "little. Likely causes: the inputs are not scaled as they were when it was trained, "
            "or its outputs stand for the labels in another order.",
            UserWarning,
            stacklevel=level_of_the_user(),
        )


def _pool_uncertainty(met: Met, sampling: ImportanceSampling) -> Decomposition:
    centre = None if met.centre is None else met.centre.log_softmax(-1)
    return estimate_uncertainty(met.reference.log_softmax(-1), met.models, sampling, centre)


def _best_of_pool(met: Met, gamma: float) -> AdversarialModels:
    outputs, excess_loss = met.models
    log_reference = met.reference.log_softmax(-1)
    return best_adversarial_models(log_reference, outputs.log_softmax(-1), excess_loss, gamma)


class _Batch(NamedTuple):
    """A batch of test points, with all that a process needs to search for it."""

    problem: SearchProblem
    settings: SearchSettings
    x: NDArray[Any]
    log_reference: NDArray[Any]  # (n_points, n_classes)
    targeted: bool
    n_targets: int | None

    def search(self) -> tuple[Tensor, Targeted | Untargeted, Trajectories]:
        """The reference model's log-probabilities, the objective, and the models met."""
        log_reference = torch.tensor(self.log_reference, device=self.settings.device)
        objective = classification_objective(
            log_reference, targeted=self.targeted, n_targets=self.n_targets
        )
        found = search_batch(self.problem, self.settings, self.x, objective)
        return log_reference, objective, found


def _estimate_uncertainty(batch: _Batch, sampling: ImportanceSampling) -> Decomposition:
    """Aleatoric and epistemic part of a batch; trajectories never leave the process."""
    log_reference, _, trajectories = batch.search()
    return estimate_uncertainty(log_reference, trajectories, sampling)


def _best_models(batch: _Batch, gamma: float) -> AdversarialModels:
    """The best adversarial model of each search of a batch."""
    log_reference, objective, (outputs, excess_loss) = batch.search()
    targets = objective.targets if isinstance(objective, Targeted) else None
    log_proba = log_softmax(outputs, dim=-1)
    return best_adversarial_models(log_reference, log_proba, excess_loss, gamma, targets)
