"""QUAM for classification, as a scikit-learn estimator."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from skuq.base import CredalInterval, FloatArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.devices import with_gradients
from skuq.files import stored
from skuq.models import RESAMPLED, Given, ModelClassifierMixin
from skuq.quam._base import KEPT, PARAMETERS, QUAMBase
from skuq.quam._importance_sampling import AdversarialModels
from skuq.quam._search import Classification, Found, Setup, mean_loss
from skuq.validation import refuse_ineffective, warn_if_worse_than_guessing, warn_user


@stored("quam.classifier", fields=KEPT | {"classes_": NDArray[Any]})
@dataclass(repr=False, eq=False, kw_only=True)
class QUAMClassifier(
    QUAMBase, ModelClassifierMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator
):
    """Classifier whose uncertainty comes from a search for adversarial models.

    An *adversarial model* explains the training data about as well as the given model, but
    predicts a different class for some other inputs. If such models are found for an input, the
    data do not determine its class, and its epistemic uncertainty is large.

    Parameters
    ----------
    estimator : object, default=None
        The model to analyse. None trains a network with one hidden layer of 100 units
        (scale the features first). Any classifier with `predict_proba` (boosted trees, forests,
        logistic regression, nearest neighbours and others), a skorch net, an `MLPClassifier`, or a
        pipeline that ends in one of these, is cloned and trained. A fitted model wrapped in
        `sklearn.frozen.FrozenEstimator`, or a `torch.nn.Module` that returns logits, is used
        without retraining and never altered; pass the data on which this model was trained to
        `fit`. The outputs of a module must be in the order of the sorted labels in `y`.
    search : {"pool", "refit", "pointwise", "quadratic"}, search object or None, default=None
        The search for adversarial models. A name selects a search with its default settings:

        - "pointwise": `PointwiseSearch`, for networks and logistic regression. Each input needs new
          gradient searches, as in the paper's Algorithm 1.
        - "quadratic": `QuadraticSearch`, for networks and logistic regression. It solves the
          searches of "pointwise" in closed form, with a quadratic approximation of the training
          loss, which takes about a millisecond per input.
        - "pool": `PoolSearch`, for networks. `fit` runs one gradient search for each class, on a
          pool of many inputs. Predictions of uncertainty only evaluate the models found.
        - "refit": `RefitSearch`, for any learner. `fit` refits the learner for each class, on the
          training data and a pool of inputs with small weight.

        None selects "pool" for networks if `X_pool` is passed. Otherwise, it selects "quadratic"
        for logistic regressions and networks of one layer with up to 4,096 inputs; "pointwise" for
        other small networks, if the product of the numbers of searched weights, training rows (at
        most 256) and classes (at most 10) is up to five million (some hundredths of a second per
        input); "pool" for large networks that have neither linear nor convolutional layers, or have
        such a layer with over 4,096 inputs; and "quadratic" for all other networks. Other models
        are refitted, and so is a `LogisticRegression` with `X_pool`, with more than 4,096 features,
        with texts as inputs, or with `class_weight`, an L1 penalty or solver="liblinear".
    setting : {"expected", "selected", "pairwise", "regret"}, default="expected"
        Definition of the uncertainty. "expected": uncertainty of the average of all models that
        explain the data (Eq. 1). "selected": uncertainty of the given model (Eq. 2). "pairwise":
        uncertainty of one model drawn at random, compared with each of the other models. "regret":
        logarithm of a sum over classes, whose terms are the probability of each class according to
        the model found for this class. "regret" needs search="pointwise" or "quadratic".
    n_targets : int, "auto" or None, default="auto"
        Number of classes for which models are searched: the most probable classes according to the
        fitted model, at the input or, in a search on a pool, on average over the pool. "auto": at
        most ten classes. None: all classes. The cost is proportional to this number.
    mixture : {"trajectory", "dirac"}, default="trajectory"
        Models used for the estimate. "trajectory": all models kept from each search (on a pool, the
        models of the last steps). "dirac": only the best adversarial model of each search.
    gamma : float, default=0.01
        A model counts as explaining the data if its training loss exceeds the training loss of the
        fitted model by at most `gamma` nats per sample. Used by `adversarial_models`,
        `predict_proba_bounds` and mixture "dirac".
    temperature : float or "auto", default="auto"
        T in the weight ``exp(-mean loss / T)`` of each model found. For a search on a pool, "auto"
        is two standard errors of the losses on training samples (for refitted learners, on held-out
        training samples); models that the data cannot distinguish then have similar weights. For a
        search at each input, "auto" is the inverse of the number of samples, so that the weights
        are likelihoods of the training set.
    device : str, default="auto"
        Device of networks; "auto" is CUDA if available, otherwise the CPU. Refitted learners run
        on the CPU.
    n_jobs : int, default=None
        Number of joblib processes for refits and predictions. They run on a Dask cluster inside
        ``with joblib.parallel_config(backend="dask")``.
    random_state : int, RandomState instance or None, default=None
        Seed of initial weights, shuffling, the generated pool and mini-batches.
    verbose : int, default=0
        Whether to show progress bars while searching and while predicting uncertainty.

    Attributes
    ----------
    model_ : skuq.models.Model
        The fitted model.
    search_ : PoolSearch, RefitSearch, PointwiseSearch or QuadraticSearch
        The search that was used.
    reference_loss_ : float
        Mean training loss of the fitted model, in nats (L_ref).
    classes_, n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    Uncertainties are in nats. "selected": total = expected cross-entropy, aleatoric = entropy
    of the given model, epistemic = expected KL divergence between the given model and the models
    found. "expected": total = entropy of the average model, aleatoric = expected entropy, epistemic
    = mutual information. "pairwise": total = expected cross-entropy of pairs of models, aleatoric =
    expected entropy, epistemic = expected KL divergence of pairs, which has no upper bound. The
    training data are kept, because later searches need them.

    After searches on a pool, the given model has weight 1/2 in the mixture, and the models found
    share the other half. Refitted learners share less than half if they explain held-out samples
    worse than the given model (Eq. 4 and 6). Trees that can memorise single samples (forests with
    the default ``min_samples_leaf=1``) are refitted with at least 2 samples in each leaf; a forest
    with this limit, fitted without the pool, then replaces the given model in the mixture.

    The epistemic part is an importance sampling estimate from the models found by the searches, not
    from samples of the whole posterior (Appendix C.1). It ranks inputs well, but its values can be
    compared only between runs with the same settings.

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

    n_targets: int | str | None = "auto"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **PARAMETERS,
        "setting": [StrOptions({"selected", "expected", "pairwise", "regret"})],
        "n_targets": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"}), None],
    }

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, X_pool: Any = None, groups: Any = None
    ) -> QUAMClassifier:
        """Train the model (unless it is frozen), and search on a pool if the search needs a pool.

        Parameters
        ----------
        X, y : array-like of shape (n_samples, n_features) or (n_samples, ...), and (n_samples,)
            Training inputs, and class labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights >= 0: a weight of 2 stands for two samples. A mean weight below 0.1 or above 10
            raises a warning. Unequal weights raise an error if the learner accepts no weights.
        X_pool : array-like of shape (n_pool, n_features) or (n_pool, ...), default=None
            Inputs, without labels, on which to search for adversarial models, such as the inputs to
            be predicted, or inputs on which the model should be uncertain. None generates a pool
            from the training inputs (see `pool` of the search). Not allowed with
            search="pointwise" or "quadratic".
        groups : array-like of shape (n_samples,), default=None
            Groups of samples, such as the persons from whom several samples come. `fit` holds out
            all samples of a group or none, and estimates errors as if a group were one sample.

        Raises
        ------
        ValueError
            If a model must be trained on a single class, a label is not a class of the frozen
            model, the pool does not have the form of the training inputs, or the search diverges.
        TypeError
            If `search` does not suit `estimator`, or `estimator` is of an unsupported type.
        MemoryError
            If not even the models of two searches fit into `max_memory` of the search.

        Warns
        -----
        UserWarning
            If the model was trained on resampled rows, and predicts the class frequencies of these
            rows; if its training loss exceeds the loss of guessing; if the search will take more
            than five minutes; if memory suffices only for the searches of some classes; or if `fit`
            of the model has no effect, which makes the epistemic part NaN.
        """
        random = check_random_state(self.random_state)
        fit_seed, search_seed = map(int, random.randint(np.iinfo(np.int32).max, size=2))
        data, _ = self._prepared(X, y, sample_weight, X_pool, groups, seed=fit_seed)
        self.classes_ = self.model_.classes
        losses = self.model_.losses(data.inputs, data.codes, self.device)
        self.reference_loss_ = mean_loss(losses, data.weight)
        # A model with class weights learns other class frequencies than those of the data, so its
        # loss can exceed that of guessing.
        if data.given.resamples:
            warn_user(RESAMPLED)
        elif not data.given.class_weights:
            warn_if_worse_than_guessing(
                self.reference_loss_, data.codes, self.classes_, data.weight
            )
        self._task = self._present_task()
        setup = Setup(losses, self._task, search_seed, self._device)
        self._problem = self._problem_of(data, setup)
        self._search(data, search_seed)
        return self

    def _refuse_ineffective(self, given: Given) -> None:
        self._check_setting()
        if not getattr(self.search_, "targeted", True):
            reason = "with targeted=False of the search, which targets no class."
            refuse_ineffective(self, ["n_targets"], reason)

    def _check_setting(self) -> None:
        by_point = self.search_.pointwise and getattr(self.search_, "targeted", True)
        if self.setting == "regret" and not by_point:
            raise ValueError(
                "setting='regret' needs a search for each input and class; use search='quadratic' "
                "or 'pointwise'."
            )

    def _present_task(self) -> Classification:
        targeted = getattr(self.search_, "targeted", True)
        return Classification(self.classes_, targeted, self.n_targets)

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Predict the uncertainty of each input from the disagreement of the adversarial models.

        The parts are in nats, each of shape (n_samples,). A `PointwiseSearch` or `QuadraticSearch`
        first searches for models at each input.
        """
        sampling = self._importance_sampling()
        self._check_setting()  # `setting` may have changed since `fit`
        aleatoric, epistemic = self._over(X, self._task.uncertainty, sampling)
        parts = Uncertainty.from_parts(aleatoric, self._measured(epistemic))
        return with_index_of(X, parts)

    def predict_proba_bounds(self, X: Any) -> CredalInterval:
        """Predict the range of each class probability over models that explain the data.

        The range, (n_samples, n_classes), covers the predictions of the given model, and of all
        models found whose training loss exceeds that of the given model by at most `gamma`.
        `setting`, `mixture` and `temperature` have no effect. The range is not guaranteed to cover
        models that the search did not find.

        Warns
        -----
        UserWarning
            If the losses of all models found on a pool exceed the loss of the given model by more
            than `gamma`. The range then contains only the prediction of the given model.

        Notes
        -----
        For models in the range, the likelihood of the training data is at least
        ``exp(-n_samples * gamma)`` times that of the given model (Löhr et al., "Credal Prediction
        based on Relative Likelihood", 2025). For refitted learners, the loss is that on held-out
        samples. If a forest with at least 2 samples in each leaf replaces the given model in the
        mixture, the range also covers the prediction of this forest.

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
        """Return the best adversarial model for each input and targeted class.

        Of all models with an excess training loss <= `gamma`, it diverges most from the given one.
        """
        check_is_fitted(self)
        best = AdversarialModels(*self._over(X, self._task.best_models, self.gamma))
        return best._replace(target=self.classes_[best.target])

    def explain_classes(self, X: Any) -> FloatArray:
        """Measure how much the training data speak against each class, for each input.

        The cost of a class for a model is the excess training loss of this model, plus its loss at
        the input if the label were this class. The result is the lowest cost over the given model
        and all models found. The data do not rule out a class that costs few nats. Models that the
        search missed may cost less; costs of classes without a search are rough. Raises a
        `ValueError` after `without_training_data`, which removes the number of samples.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float64
            Costs >= 0, summed over the training data, in nats; columns are ordered as `classes_`.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from skuq import QUAMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> quam = QUAMClassifier(LogisticRegression(max_iter=999)).fit(X, y)
        >>> quam.explain_classes(X[[0, 70]]).round(1)
        array([[ 0. ,  3.6, 13.9],
               [ 3.3,  0.8,  0.5]])
        """
        check_is_fitted(self)
        if not hasattr(self, "_problem"):
            raise ValueError(
                "Costs of classes need the training data, which `without_training_data` removed; "
                "use the original estimator."
            )
        (costs,) = self._over(X, self._task.class_costs, self._problem.total_weight)
        return costs


def _warn_if_none_fits(found: Found, gamma: float) -> None:
    least = float(found.excess_loss.min())
    if least > gamma or getattr(found, "unchanged", False):
        warn_user(
            f"None of the models found explains the training data within gamma={gamma:.3g} nats "
            "per sample of the given model's loss, so the range contains only the given model. The "
            f"smallest loss found is {least:.3g} above the given model's loss (two standard errors "
            f"of the difference: {2 * found.standard_error:.3g}). Use a larger `gamma`."
        )
