"""QUAM for classification, as a scikit-learn estimator."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from skuq.base import CredalInterval, FloatArray, Uncertainty, UncertaintyMixin
from skuq.models import ModelClassifierMixin, look_at
from skuq.quam._base import KEPT, PARAMETERS, QUAMBase
from skuq.quam._importance_sampling import AdversarialModels
from skuq.quam._tasks import Classification, Found, mean_loss
from skuq.stored import stored
from skuq.validation import refuse_ineffective, warn_user


@stored("quam.classifier", fields=KEPT | {"classes_": NDArray[Any]})
class QUAMClassifier(
    QUAMBase, ModelClassifierMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator
):
    """Classifier whose uncertainty comes from a search for adversarial models.

    An *adversarial model* explains the training data about as well as the given model, but
    says something else about inputs that the data leave open. Where such models disagree, the
    prediction is not supported by the data and the epistemic uncertainty is large.

    Parameters
    ----------
    estimator : object, default=None
        The model to analyse. None trains a network with one hidden layer of 100 units
        (scale the features before). Any classifier with `predict_proba` (boosted trees,
        forests, logistic regression, nearest neighbours and others), a skorch net, an
        `MLPClassifier`, or a pipeline that ends in one, is cloned and trained. A fitted model
        wrapped in `sklearn.frozen.FrozenEstimator`, or a `torch.nn.Module` that returns logits,
        is taken as it is and never altered; `fit` then needs the data that it was trained on.
        Outputs of a module belong to the sorted labels in `y`.
    search : {"pool", "refit", "pointwise"}, search object or None, default=None
        How adversarial models are searched. `PoolSearch`: `fit` searches networks by gradients,
        on a whole pool of inputs, once for each class; after that, an input costs the evaluation
        of the models found. `RefitSearch`: the same for any learner, which is refitted with a
        little of the pool. `PointwiseSearch`: networks and logistic regression are searched for
        each input anew, as in the paper's Algorithm 1. A name stands for the search with its
        defaults. None takes the search that suits the model: "pool" for networks, and for a
        `LogisticRegression` of more than ten million training rows times coefficients (without
        `class_weight`, L1 penalty or solver="liblinear"), which costs less as a network; else
        "refit".
    setting : {"expected", "selected", "pairwise"}, default="expected"
        Whose uncertainty is meant. "expected": that of the average of all models that explain the
        data (Eq. 1). "selected": that of the given model (Eq. 2). "pairwise": that of any one of
        the models, against each of the others.
    n_targets : int, "auto" or None, default="auto"
        Ask for this many classes only, the most probable ones according to the fitted model:
        at the input, or in the pool on average. "auto" asks for at most ten, None for all; the
        cost is proportional to the number.
    mixture : {"trajectory", "dirac"}, default="trajectory"
        Which models stand for all that explain the data: all that were kept of each search (on
        a pool, those of the last tenth of its steps), or the best adversarial one of each
        search alone.
    gamma : float, default=0.01
        Training loss, in nats per sample above the fitted model's, at which a model still
        counts as explaining the data; used by `adversarial_models`, `predict_proba_bounds` and
        mixture "dirac".
    temperature : float or "auto", default="auto"
        T in the weight ``exp(-mean loss / T)`` of each model found. "auto": on a pool, two standard
        errors of the losses, since models that the data cannot tell apart count alike; losses are
        those of training samples, held out from learners that are refitted. With a
        `PointwiseSearch`, one over the number of samples that the loss is averaged over: weights
        are then likelihoods, of the training set if it fits into one batch (`train_batch_size`),
        else of a batch. Larger values count worse-fitting models too.
    device : str, default="auto"
        Where networks compute; "auto" is CUDA if present, else the CPU. Learners that are refitted
        compute on the CPU.
    n_jobs : int, default=None
        Processes that share refits and inputs, through joblib: the same call runs on a Dask
        cluster under ``joblib.parallel_config(backend="dask")``.
    random_state : int, RandomState instance or None, default=None
        Initial weights, shuffling, the made pool and mini-batches.
    verbose : int, default=0
        Whether to show progress bars while searching and while predicting uncertainty.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.Model
        The fitted model.
    search_ : PoolSearch, RefitSearch or PointwiseSearch
        The search.
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
    epistemic = mutual information. "pairwise": total = expected cross-entropy of pairs of models,
    aleatoric = expected entropy, epistemic = expected KL divergence of pairs, which has no upper
    bound. The training data are kept, because later searches need them.

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
    Uncertainty with Adversarial Models", NeurIPS 2023. Setting "pairwise": Schweighofer,
    Aichberger, Ielanskyi, Hochreiter, "On Information-Theoretic Measures of Predictive
    Uncertainty", UAI 2025.

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

    _parameter_constraints: dict[str, Any] = {
        **PARAMETERS,
        "n_targets": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"}), None],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        search: Any = None,
        setting: str = "expected",
        n_targets: int | str | None = "auto",
        mixture: str = "trajectory",
        gamma: float = 0.01,
        temperature: float | str = "auto",
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.estimator = estimator
        self.search = search
        self.setting = setting
        self.n_targets = n_targets
        self.mixture = mixture
        self.gamma = gamma
        self.temperature = temperature
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

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
            Weights >= 0, in numbers of samples: 2 is the sample twice, 0 leaves it out. A mean
            below 0.1 or above 10 is a warning.
            Learners that take none are refused weights that are not all equal.
        X_pool : array-like of shape (n_pool, n_features) or (n_pool, ...), default=None
            Inputs, without labels, on which adversarial models are searched; such as the new
            inputs themselves, or others of which the model should be unsure. None makes a pool
            from the training inputs (see `pool` of the search). Refused by search="pointwise".

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
            If weights of samples are not all equal and the learner takes none.
        TypeError
            If `search` does not suit `estimator`, or this cannot be adopted.
        MemoryError
            If the models of two searches do not fit into memory (`max_memory` of the search).

        Warns
        -----
        UserWarning
            If the model's loss on the training data is worse than guessing; if the search takes
            more than five minutes, by the time of its first part; or if not all its models fit into
            memory, so that fewer classes are searched.
        """
        random = check_random_state(self.random_state)
        fit_seed, search_seed = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        self.search_ = self._chosen_search(X_pool, X, y)
        sample_weight = self._checked_sample_weight(sample_weight, y)
        if not getattr(self.search_, "targeted", True):
            refuse_ineffective(
                self, ["n_targets"], "with targeted=False of the search, which asks for no class."
            )
        data = self._resolve(
            X,
            y,
            seed=fit_seed,
            form=self._form,
            sample_weight=sample_weight,
            further=() if X_pool is None else (X_pool,),
            device=self.device,
        )
        self.classes_ = self.model_.classes
        losses = self.model_.losses(data.inputs, data.codes, self.device)
        self.reference_loss_ = mean_loss(losses, data.weight)
        if not look_at(self.estimator).class_weights:  # else it is meant to guess otherwise
            _warn_if_worse_than_guessing(self.reference_loss_, data.codes, data.weight)
        self._task = self._present_task()
        self._problem = self._prepare(data, data.codes, losses, seed=search_seed)
        self._search(data, search_seed)
        return self

    def _present_task(self) -> Classification:
        targeted = getattr(self.search_, "targeted", True)
        return Classification(self.classes_, targeted, self.n_targets)

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Measure how adversarial models disagree about each input.

        The models found by `fit` are evaluated; a `PointwiseSearch` searches models for each input.

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
        sampling = self._importance_sampling()
        parts = self._over(X, self._task.uncertainty, sampling)
        return Uncertainty.from_parts(*parts)

    def predict_proba_bounds(self, X: Any) -> CredalInterval:
        """Predict the range of each class probability over models that explain the data.

        They are the given model and all models that the searches met whose training loss is
        within `gamma` of its own; `setting`, `mixture` and `temperature` have no part in it. The
        range is what was found, and no guarantee: other models may predict less or more.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        CredalInterval
            Smallest and largest probability of each class, with that of `predict_proba` between
            them.

        Raises
        ------
        ValueError
            If `X` does not fit the training data, or a search diverges.

        Warns
        -----
        UserWarning
            If no model that was found on a pool is within `gamma`, so that none but the given one
            counts.

        Notes
        -----
        A model counts by the likelihood of the training data relative to the given model's, of
        which ``exp(-n_samples * gamma)`` is the smallest allowed: see Löhr et al., "Credal
        Prediction based on Relative Likelihood", 2025. Of learners that were refitted, the loss
        is that on held-out samples, as in `adversarial_models`. Where a forest limited in the size
        of its leaves takes the given model's place in the mixture, it counts as well.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from skuq import QUAMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> quam = QUAMClassifier(LogisticRegression(max_iter=999), gamma=0.1, random_state=0)
        >>> lower, upper = quam.fit(X, y).predict_proba_bounds([X[0], [9.0, 2.0, 3.0, 2.0]])
        >>> width = (upper - lower).max(axis=1)
        >>> bool(width[0] < width[1])
        True
        """
        check_is_fitted(self)
        bounds = CredalInterval(*self._over(X, self._task.proba_bounds, self.gamma))
        if not self.search_.pointwise:
            _warn_if_none_fits(self._found, self.gamma)
        return bounds

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
        check_is_fitted(self)
        best = AdversarialModels(*self._over(X, self._task.best_models, self.gamma))
        return best._replace(target=self.classes_[best.target])


def _warn_if_none_fits(found: Found, gamma: float) -> None:
    """Warn of a range of probabilities that holds no model but the given one."""
    least = float(found.excess_loss.min())
    if least > gamma:
        warn_user(
            f"No model that was found explains the training data within gamma={gamma:.3g} nats per "
            f"sample; the best is {least:.3g} above the given one, and the data cannot tell losses "
            f"apart that differ by less than {2 * found.standard_error:.3g}. The range is that of "
            "the given model and says nothing of others; use a larger `gamma`."
        )


def _warn_if_worse_than_guessing(loss: float, codes: NDArray[np.int64], weight: FloatArray) -> None:
    """Warn of a model that does not belong to its training data."""
    share = np.bincount(codes, weights=weight) / weight.sum()
    guessing = float(-(share * np.log(np.maximum(share, 1e-300))).sum())
    if loss > 1.05 * guessing:
        warn_user(
            f"The model's loss on the training data is {loss:.3g} nats, and guessing by the "
            f"frequencies of the classes costs {guessing:.3g}: uncertainty of this model means "
            "little. Likely causes: the inputs are not scaled as they were when it was trained, "
            "or its outputs stand for the labels in another order."
        )
