"""Estimator for Gaussian-process classification with proven bounds on probabilities."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context, clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import validate_data

from skuq._information import entropy
from skuq.base import FloatArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.devices import with_gradients
from skuq.gpc._evidence_search import EvidenceSearchMixin
from skuq.gpc._fit_checks import (
    check_memory,
    check_sizes,
    deviations,
    length_of,
    warn_of_scales,
)
from skuq.gpc._region_queries import RegionQueriesMixin
from skuq.gpc._region_search import certificate_device
from skuq.gpc.inference._ep import ep_evidence, ep_posterior
from skuq.gpc.inference._hyperparameters import (
    feature_units,
)
from skuq.gpc.inference._kernels import check_kernel
from skuq.gpc.inference._laplace import Evidence, laplace_evidence, laplace_posterior
from skuq.gpc.inference._posterior import (
    Posterior,
    class_probabilities,
    expected_entropy,
    most_probable,
)
from skuq.gpc.inference._priors import DensePrior, LowRankPrior, choose_inducing
from skuq.gpc.inference._softmax import softmax_evidence, softmax_posterior
from skuq.sample_weights import training_weights
from skuq.validation import check_targets_are_classes


class RobustGPC(
    RegionQueriesMixin, EvidenceSearchMixin, ClassifierMixin, UncertaintyMixin, BaseEstimator
):
    """Gaussian-process classifier with proven bounds on its probabilities over regions.

    Besides predicting classes, this classifier can *prove* statements about the inputs around a
    point: `predict_proba_bounds` encloses the smallest and the largest class probability over a
    region, `certify` decides whether the predicted class changes anywhere in a region, and
    `certified_radius` returns a radius within which the predicted class does not change.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel, default=None
        Prior covariance of the latent functions: sums and products of RBF, Matern (nu 1.5 or
        2.5), RationalQuadratic and ConstantKernel. None stands for a constant times an RBF whose
        initial length-scale is the spread of the data.
    likelihood : {"auto", "probit", "logit", "softmax"}, default="auto"
        Map from latent functions to probabilities. "probit" and "logit" support two classes,
        "softmax" any number. "auto" selects "probit" for two classes and otherwise "softmax".
    inference : {"laplace", "ep"}, default="laplace"
        Gaussian approximation of the posterior: Laplace's method, or expectation propagation,
        which is slower and closer to the true posterior, and supports only two classes.
    optimizer : {"lbfgs"} or None, default="lbfgs"
        Method that maximises the marginal likelihood over the hyperparameters of the kernel. None
        keeps the hyperparameters fixed. If there is nothing to optimise, `fit` rejects `max_iter`
        and `n_restarts`.
    max_iter : int, default=100
        Maximum number of evaluations of the marginal likelihood per start.
    n_restarts : int, default=0
        Number of restarts, from hyperparameters drawn log-uniformly within their bounds.
    n_inducing : int, default=None
        Number of inducing points that represent the training data, for large data sets. The
        cost of `fit` is then linear in the number of samples, and the cost of predictions and
        certificates is independent of it. None uses all samples, and the cost of `fit` is cubic.
    device : str, default="auto"
        Device for certificates; "auto" is CUDA if available, else the CPU. "mps" is rejected,
        because guarantees need float64. `fit` and predictions always run on the CPU.
    n_jobs : int, default=None
        Number of joblib processes among which the points to be certified are distributed.
    random_state : int, RandomState instance or None, default=None
        Seed for restarts, inducing points, and restarts of attacks.
    verbose : int, default=0
        Whether to show a progress bar while fitting and certifying.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    kernel_ : Kernel
        The kernel with optimised hyperparameters.
    likelihood_ : str
        The likelihood that was selected.
    posterior_ : object
        Gaussian posterior of the latent functions. ``posterior_.moments(X)`` returns their means
        and covariances, of shape (n_samples, L) and (n_samples, L, L), where L is 1 for
        "probit" and "logit", and the number of classes for "softmax".
    log_marginal_likelihood_ : float
        Approximate log marginal likelihood of `kernel_`, in nats.
    n_iter_ : int
        Number of evaluations of the marginal likelihood.
    jitter_ : float
        Relative increase of the diagonal of the covariance that its factorisation required.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Quantities are in nats: total = entropy of the predicted probabilities, aleatoric =
    expected entropy under the latent posterior, epistemic = total - aleatoric, which is the mutual
    information between the label and the latent function.

    Guarantees refer to the fitted model: to the probabilities that it computes from the Gaussian
    approximation of the posterior. They do not cover the error of the approximation or of the
    model.

    Distances are measured in the units of `X`. If features, radii and the length-scales of
    `kernel` are all multiplied by the same number, results do not change.

    References
    ----------
    Blaas, Patane, Laurenti, Cardelli, Kwiatkowska, Roberts, "Adversarial Robustness Guarantees
    for Classification with Gaussian Processes", AISTATS 2020.

    Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, Chapter 3.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skuq import RobustGPC
    >>> X, y = make_moons(100, noise=0.1, random_state=0)
    >>> gpc = RobustGPC(random_state=0).fit(X, y)
    >>> bounds = gpc.predict_proba_bounds(X[:1], radius=0.1, class_=y[0])
    >>> bool(bounds.min_lower[0, 0] <= gpc.predict_proba(X[:1])[0, y[0]])
    True
    >>> gpc.certify(X[:3], radius=0.1).status
    array(['safe', 'safe', 'safe'], dtype='<U9')
    """

    _parameter_constraints: dict[str, Any] = {
        "kernel": [Kernel, None],
        "likelihood": [StrOptions({"auto", "probit", "logit", "softmax"})],
        "inference": [StrOptions({"laplace", "ep"})],
        "optimizer": [StrOptions({"lbfgs"}), None],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "n_restarts": [Interval(Integral, 0, None, closed="left")],
        "n_inducing": [Interval(Integral, 1, None, closed="left"), None],
        "device": [str, torch.device],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        likelihood: str = "auto",
        inference: str = "laplace",
        optimizer: str | None = "lbfgs",
        max_iter: int = 100,
        n_restarts: int = 0,
        n_inducing: int | None = None,
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.kernel = kernel
        self.likelihood = likelihood
        self.inference = inference
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.n_restarts = n_restarts
        self.n_inducing = n_inducing
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RobustGPC:
        """Fit hyperparameters and posterior.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs.
        y : array-like of shape (n_samples,)
            Class labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights >= 0: a sample of weight w counts w times (its likelihood is raised to the
            power w), and weight 0 leaves it out. A mean weight below 0.1 or above 10 raises a
            warning.

        Returns
        -------
        RobustGPC
            The fitted estimator.

        Raises
        ------
        ValueError
            If the data are not finite, or exceed 1e100 in absolute value (their squares would
            overflow); if the data have only one class, or more classes than `likelihood` and
            `inference` support; if the kernel is not supported; if a parameter cannot have an
            effect; or if the marginal likelihood of the initial hyperparameters is not a number.
        MemoryError
            If an exact fit needs more memory than is available; raised before the fit starts.

        Warns
        -----
        UserWarning
            If features of very different spread share one length-scale.
        sklearn.exceptions.ConvergenceWarning
            If the approximation of the posterior did not converge, if the covariance was almost
            singular and `jitter_` is large, or if the optimisation of the hyperparameters
            stopped early.
        """
        certificate_device(self.device)
        X, y = validate_data(self, X, y, dtype=np.float64, copy=True)
        check_targets_are_classes(y)
        weight = None
        if sample_weight is not None:
            weight = training_weights(sample_weight, len(y))
            X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
        check_sizes(X)
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.likelihood_ = self._chosen_likelihood()
        self._deviations = deviations(X, weight)
        self._length = length_of(self._deviations, X)
        kernel = self._initial_kernel(X)
        self._refuse_ineffective(kernel)
        warn_of_scales(X, kernel)
        if self.n_inducing is None:
            check_memory(len(X), len(self.classes_), self.likelihood_, kernel)
        random = check_random_state(self.random_state)
        inducing = None
        if self.n_inducing is not None:
            unit = feature_units(kernel)
            inducing = choose_inducing(X / unit, self.n_inducing, random, weight) * unit
        prior: Callable[[Any], DensePrior | LowRankPrior] = partial(DensePrior, X=X)
        if inducing is not None:
            prior = partial(LowRankPrior, X=X, inducing=inducing)
        evidence, posterior = self._methods(codes, weight)
        best = self._search(kernel, evidence, prior, random)
        self._keep(best)
        self.posterior_: Posterior = posterior(prior(best.kernel), state=best.evidence.state)
        self._region_models: dict[str, Any] = {}
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Predict class probabilities as averages over the latent posterior (Eq. 1 of the paper).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float64
            Probabilities, in the order of `classes_`.
        """
        moments = self._moments(X)
        return class_probabilities(self.likelihood_, *moments)

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels.
        """
        proba = self.predict_proba(X)
        labels: NDArray[Any] = self.classes_[most_probable(proba)]
        return labels

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Decompose the entropy of the predictions into aleatoric and epistemic uncertainty.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        Uncertainty
            Total, aleatoric and epistemic part in nats, each of shape (n_samples,).
        """
        moments = self._moments(X)
        proba = class_probabilities(self.likelihood_, *moments)
        with np.errstate(divide="ignore"):
            total = entropy(np.log(proba))
        aleatoric = np.minimum(expected_entropy(self.likelihood_, *moments), total)
        return with_index_of(X, Uncertainty.from_parts(aleatoric, total - aleatoric))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = (
            self.likelihood in ("auto", "softmax") and self.inference == "laplace"
        )
        return tags

    def _moments(self, X: Any) -> tuple[FloatArray, FloatArray]:
        points = self._points(X)  # raises NotFittedError before `posterior_` is read
        return self.posterior_.moments(points)

    def _chosen_likelihood(self) -> str:
        n_classes = len(self.classes_)
        if n_classes == 1:
            raise ValueError(
                f"RobustGPC needs samples of at least two classes; got one class, "
                f"{self.classes_.tolist()[0]!r}."
            )
        chosen = self.likelihood
        if chosen == "auto":
            chosen = "probit" if n_classes == 2 else "softmax"
        if chosen != "softmax" and n_classes > 2:
            raise ValueError(
                f"Only binary classification is supported by likelihood={chosen!r}, and the data "
                f"have {n_classes} classes; use likelihood='softmax'."
            )
        if chosen == "softmax" and self.inference == "ep":
            raise ValueError(
                "Only binary classification is supported by inference='ep', with the probit or "
                "the logit likelihood; use inference='laplace' for the softmax likelihood."
            )
        return chosen

    def _initial_kernel(self, X: FloatArray) -> Kernel:
        if self.kernel is None:
            length = self._length
            kernel = ConstantKernel(1.0) * RBF(length, (length * 1e-3, length * 1e3))
        else:
            kernel = clone(self.kernel)
        check_kernel(kernel, X.shape[1])
        check_sizes(X, kernel)
        return kernel

    def _methods(self, codes: NDArray[np.intp], weight: FloatArray | None) -> tuple[Any, Any]:
        """Functions of the prior that compute the evidence and the posterior."""
        target: dict[str, Any]
        evidence: Callable[..., Evidence]
        posterior: Callable[..., Posterior]
        if self.likelihood_ == "softmax":
            target = {"labels": codes, "n_classes": len(self.classes_)}
            evidence, posterior = softmax_evidence, softmax_posterior
        else:
            target = {"y": np.where(codes == 1, 1.0, -1.0), "likelihood": self.likelihood_}
            evidence, posterior = laplace_evidence, laplace_posterior
            if self.inference == "ep":
                evidence, posterior = ep_evidence, ep_posterior
        return (
            partial(evidence, **target, sample_weight=weight),
            partial(posterior, **target, sample_weight=weight),
        )
