"""QUAM for classification, as a scikit-learn estimator."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from skuq.base import Uncertainty, UncertaintyMixin
from skuq.information import Decomposition
from skuq.models import AdoptedClassifierMixin, encode_labels, fit_or_adopt, resolve_device
from skuq.quam._importance_sampling import (
    AdversarialModels,
    ImportanceSampling,
    best_adversarial_models,
    estimate_uncertainty,
)
from skuq.quam._objectives import Targeted, Untargeted, classification_objective
from skuq.quam._search import Trajectories, search_batch
from skuq.quam._search_parameters import SearchParameters
from skuq.quam._search_problem import SearchProblem, SearchSettings, prepare_search


@dataclass(kw_only=True, eq=False, repr=False)
class QUAMClassifier(
    SearchParameters, AdoptedClassifierMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator
):
    """Classifier whose uncertainty comes from a search for adversarial models.

    For every test point and class, an *adversarial model* is searched: one that explains
    the training data about as well as the fitted model, but predicts that class. Where
    such models are easily found, the prediction is not supported by the data and the
    epistemic uncertainty is large.

    Parameters
    ----------
    estimator : object, default=None
        The model to question. None trains a network with one hidden layer of 100 units
        (scale the features before). A skorch net, an `MLPClassifier` or
        `LogisticRegression`, or a pipeline that ends in one, is cloned and trained. A
        fitted model of these kinds wrapped in `sklearn.frozen.FrozenEstimator`, or a
        `torch.nn.Module` that returns logits, is taken as it is and never altered; `fit` then
        needs the data that it was trained on. Outputs of a module belong to the sorted
        labels in `y`.
    setting : {"selected", "expected"}, default="selected"
        Whose uncertainty is meant. "selected": that of the given model (Eq. 2). "expected":
        that of all models that explain the data (Eq. 1).
    targeted : bool, default=True
        Whether there is one search for each class, which it asks for. False: a single search
        for any model that differs from the fitted model's prediction, which is cheaper and
        tends to find the same alternative again and again.
    n_targets : int, default=None
        Ask for this many classes only, the most probable ones at the input according to the
        fitted model. None asks for all; the cost is proportional to the number.
    mixture : {"trajectory", "dirac"}, default="trajectory"
        Which models stand for all that explain the data: all models met on the way, or the
        best adversarial model of each search alone.
    parameters : {"all", "last", "bias", "norm"} or callable, default="all"
        Weights that the search may move: all, the last layer, all biases, or the scales and
        shifts of normalisation layers. A callable ``parameters(name, tensor)`` returns for
        each whether it moves. "last" is far cheaper for large networks, since features are
        computed once, but finds fewer alternatives. Acts in `fit`; the other parameters of
        the search act whenever uncertainty is predicted and can be changed without fitting
        again.
    n_steps : int, default=100
        Length of each search; its cost is proportional to this.
    c0 : float or "auto", default="auto"
        Initial weight of the penalty on training loss. "auto" is a tenth of the number of
        training samples; wherever samples are counted, each counts by its weight.
    eta : float or "auto", default="auto"
        Factor by which the penalty grows. "auto" makes it ten times as large in the end: with
        c0 "auto" it then equals the number of training samples, and the search minimises the
        negative log posterior of the training set and one sample more, the test point with
        the targeted class.
    update_every : int, default=1
        Steps between two changes of the penalty and of the step size.
    gamma : float, default=0.01
        Training loss, in nats per sample above the fitted model's, at which a model still
        counts as explaining the data; used by `adversarial_models` and by mixture "dirac".
    learning_rate : float, default=0.1
        Step size of the search, relative to the root mean square of each weight tensor.
    learning_rate_decay : float, default=1.0
        Factor by which the step size shrinks whenever the penalty grows.
    prior_precision : float, default=0.0
        Precision of the Gaussian prior around 0 of each moving weight: the negative log
        posterior is ``n_samples * mean training loss + prior_precision / 2 * |w|**2``. Set it
        if the model was trained with one; that of an optimiser's `weight_decay` is
        ``weight_decay * n_samples``. It counts in the search and in the weights of the models.
    temperature : float or "auto", default="auto"
        T in the weight ``exp(-mean training loss / T)`` of each model found. "auto" is one over
        the number of samples that the loss is averaged over: weights are then likelihoods,
        of the training set if it fits into one batch (`train_batch_size`), else of a batch,
        which is as much as a batch can tell. Larger values count worse-fitting models too.
    train_batch_size : int, default=256
        Training samples on which each step of the search computes the penalty. More cost
        time and give sharper estimates, and with temperature "auto" sharper weights.
    batch_size : int, default=8
        Test points searched at once; no effect on the result. Bounds memory: each search
        takes 4 copies of the weights that it moves.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    n_jobs : int, default=None
        Processes that share the batches of test points, through joblib: the same call runs
        on a Dask cluster under ``joblib.parallel_config(backend="dask")``.
    random_state : int, RandomState instance or None, default=None
        Initial weights, shuffling and mini-batches.
    verbose : int, default=0
        Whether to show a progress bar while predicting uncertainty.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.AdoptedModel
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
    epistemic = mutual information. The training data are kept, because the search needs
    them.

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
    >>> from sklearn.frozen import FrozenEstimator
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq import QUAMClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> mine = LogisticRegression(max_iter=1000).fit(X, y)
    >>> quam = QUAMClassifier(FrozenEstimator(mine), random_state=0).fit(X, y)
    >>> u = quam.predict_uncertainty([[5.1, 3.5, 1.4, 0.2], [50.0, 0.0, 0.0, 30.0]])
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
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> QUAMClassifier:
        """Train the model, or take over a frozen one, and keep the training data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, ...)
            Training inputs.
        y : array-like of shape (n_samples,)
            Class labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples in the training loss.

        Returns
        -------
        QUAMClassifier
            The fitted estimator.

        Raises
        ------
        ValueError
            If the data are not finite numbers, hold a single class to be trained on or a
            label that the frozen model does not know, or do not fit the model's shape.
        TypeError
            If `estimator` cannot be adopted.
        """
        device = resolve_device(self.device)
        random = check_random_state(self.random_state)
        fit_seed, search_seed = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        X, y = self._validate_training_data(X, y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(
                sample_weight, y, dtype=np.float64, ensure_non_negative=True
            )
        self.model_ = fit_or_adopt(
            self.estimator, X, y, sample_weight=sample_weight, seed=fit_seed, device=device
        )
        inputs = self.model_.inputs(X)
        self.classes_, codes = encode_labels(y, self.model_, inputs)
        weight = np.ones(len(y)) if sample_weight is None else sample_weight
        log_proba, targets = self._log_proba(inputs), torch.as_tensor(codes)
        losses = cross_entropy(log_proba, targets, reduction="none").numpy()
        self._search = prepare_search(
            self.model_.module,
            self.parameters,
            inputs,
            codes,
            weight=weight,
            losses=losses,
            seed=search_seed,
            device=device,
        )
        self.reference_loss_ = self._search.mean_loss
        return self

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Search adversarial models for each input and measure how they disagree.

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
        batches = self._batches_of(X)
        sampling = self._importance_sampling(self._search.problem)
        return Uncertainty.from_parts(*self._run(_estimate_uncertainty, batches, sampling))

    def adversarial_models(self, X: Any) -> AdversarialModels:
        """Search adversarial models for each input and return the best one per class.

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
        batches = self._batches_of(X)
        best = AdversarialModels(*self._run(_best_models, batches, self.gamma))
        return best._replace(target=self.classes_[best.target])

    def _batches_of(self, X: Any) -> list[_Batch]:
        """Test points in the batches that are searched together."""
        check_is_fitted(self)
        self._validate_params()  # they may have been set after `fit`
        inputs = self._validated_inputs(X)
        problem = self._search.problem
        settings = self._settings(problem)
        return [
            _Batch(problem, settings, x, log_reference, self.targeted, self.n_targets)
            for x, log_reference in self._batches(self._search, inputs, self._log_proba(inputs))
        ]


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
