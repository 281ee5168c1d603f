"""Gaussian-process classification with proven bounds on probabilities."""

from dataclasses import KW_ONLY, dataclass
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Self, Unpack

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context, clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel
from sklearn.utils import check_consistent_length, check_random_state, check_scalar
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import column_or_1d

from skuq._information import entropy
from skuq.base import FloatArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.devices import with_gradients
from skuq.gpc import _certificates, _estimator
from skuq.gpc._certificates import Attack, Bounds, Certificate, FeatureEffects, SafeRadius
from skuq.gpc._estimator import Around, RobustGaussianProcess
from skuq.gpc.bounds._region_models import ProbabilityModel
from skuq.gpc.inference._hyperparameters import Inference
from skuq.gpc.inference._kernels import check_kernel
from skuq.gpc.inference._posterior import class_probabilities, expected_entropy, most_probable
from skuq.gpc.inference._single_latent import ExpectationPropagation, Laplace
from skuq.gpc.inference._softmax import SoftmaxLaplace
from skuq.labels import codes_of
from skuq.validation import check_targets_are_classes, training_weights, validate_data

_MARGIN = 1e-4  # default `tol` of certificates


@dataclass(repr=False, eq=False)
class RobustGPC(RobustGaussianProcess, ClassifierMixin, UncertaintyMixin, BaseEstimator):
    """Gaussian-process classifier with proven bounds on its probabilities over regions.

    This classifier also *proves* statements about all inputs in a region around a point:
    `predict_proba_bounds` bounds each class probability in the region, `certify` decides whether
    the predicted class changes there, and `certified_radius` finds a radius without a change.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel, default=None
        Prior covariance of the latent functions: sums and products of RBF, Matern (nu 1.5 or 2.5),
        RationalQuadratic and ConstantKernel. None stands for a constant times an RBF, whose initial
        length-scale is the norm of the vector of the features' standard deviations.
    likelihood : {"auto", "probit", "logit", "softmax"}, default="auto"
        Map from latent functions to probabilities. "probit" and "logit" support two classes,
        "softmax" any number of classes. "auto" is "probit" for two classes, else "softmax".
    inference : {"laplace", "ep"}, default="laplace"
        Method that approximates the posterior by a Gaussian: Laplace's method, or expectation
        propagation ("ep"), which is slower but more accurate, and supports only two classes.
    optimizer : {"lbfgs"} or None, default="lbfgs"
        Method that maximises the marginal likelihood over the hyperparameters of the kernel. None
        keeps these fixed; `fit` then raises an error if `max_iter` or `n_restarts` is set.
    max_iter, n_restarts : int, default=100 and 0
        Maximum number of evaluations of the marginal likelihood in each run of the optimiser, and
        number of additional runs from hyperparameters drawn log-uniformly within their bounds.
    n_inducing : int, default=None
        Number of inducing points, which make the cost of `fit` linear in the number of samples,
        and the cost of predictions independent of it. None uses all samples, at cubic cost.
    device : str, default="auto"
        Device for certificates; "auto" is CUDA if available, else the CPU. "mps" raises an error,
        because it has no float64. `fit` and predictions always run on the CPU.
    n_jobs : int, default=None
        Number of joblib processes that bound or certify points in parallel.
    random_state : int, RandomState instance or None, default=None
        Seed for restarts, inducing points, and restarts of attacks.
    verbose : int, default=0
        Whether to show a progress bar while fitting and certifying.

    Attributes
    ----------
    kernel_, likelihood_
        The kernel with optimised hyperparameters, and the likelihood that was selected.
    posterior_ : object
        Gaussian posterior of L latent functions. ``posterior_.moments(X)`` returns the means and
        covariances of these functions, (n_samples, L) and (n_samples, L, L). L is 1 for "probit"
        and "logit", and the number of classes for "softmax".
    log_marginal_likelihood_ : float
        Approximate log marginal likelihood of `kernel_`, in nats.
    n_iter_ : int
        Number of evaluations of the marginal likelihood.
    jitter_ : float
        Number that was added to the diagonal of the covariance matrix to make its Cholesky
        decomposition possible, divided by the mean of the diagonal; 0 if none was needed.
    classes_, n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    Uncertainties are in nats: total = entropy of the predicted probabilities, aleatoric =
    expected entropy under the latent posterior, epistemic = total - aleatoric, which is the mutual
    information between the label and the latent functions.

    Guarantees hold for the probabilities that the fitted model computes from the Gaussian
    approximation of the posterior. They do not cover the error of this approximation.
    Distances are measured in the units of `X`.

    References
    ----------
    Blaas, Patane, Laurenti, Cardelli, Kwiatkowska, Roberts, "Adversarial Robustness Guarantees
    for Classification with Gaussian Processes", AISTATS 2020. Rasmussen and Williams, "Gaussian
    Processes for Machine Learning", 2006, Chapter 3.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skuq import RobustGPC
    >>> X, y = make_moons(100, noise=0.1, random_state=0)
    >>> gpc = RobustGPC(random_state=0).fit(X, y)
    >>> gpc.certify(X[:3], radius=0.1).status
    array(['safe', 'safe', 'safe'], dtype='<U9')
    """

    kernel: Kernel | None = None
    _: KW_ONLY
    likelihood: str = "auto"
    inference: str = "laplace"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **RobustGaussianProcess._parameter_constraints,
        "likelihood": [StrOptions({"auto", "probit", "logit", "softmax"})],
        "inference": [StrOptions({"laplace", "ep"})],
    }

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the hyperparameters of the kernel, and compute the posterior.

        Parameters
        ----------
        X, y : array-like of shape (n_samples, n_features) and (n_samples,)
            Training inputs and class labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights w >= 0: the likelihood of a sample is raised to the power w.

        Raises
        ------
        MemoryError
            Before the fit starts, if an exact fit needs more memory than is available.
        """
        _estimator.certificate_device(self.device)
        X, y = validate_data(self, X, y, dtype=np.float64, copy=True)
        check_targets_are_classes(y)
        weight = None
        if sample_weight is not None:
            weight = training_weights(sample_weight, len(y))
            X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
        self._measure(X, weight)
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.likelihood_ = self._chosen_likelihood()
        kernel = self.kernel
        if kernel is None:
            length = self._length
            kernel = ConstantKernel(1.0) * RBF(length, (length * 1e-3, length * 1e3))
        kernel = clone(kernel)
        check_kernel(kernel, X.shape[1])
        n_matrices = 3 * len(self.classes_) if self.likelihood_ == "softmax" else 2
        prior, random = self._prior(X, kernel, weight, n_matrices)
        if self.likelihood_ == "softmax":
            inference: Inference = SoftmaxLaplace(codes, len(self.classes_), weight)
        else:
            method = ExpectationPropagation if self.inference == "ep" else Laplace
            inference = method(np.where(codes == 1, 1.0, -1.0), self.likelihood_, weight)
        self._infer(inference, kernel, prior, random)
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Average class probabilities over the posterior (Eq. 1); shape (n_samples, n_classes)."""
        moments = self._moments(X)  # raises NotFittedError before `likelihood_` is read
        return class_probabilities(self.likelihood_, *moments)

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class of each input, (n_samples,)."""
        best = most_probable(self.predict_proba(X))  # raises NotFittedError before `fit`
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Decompose the entropy of predictions into an aleatoric and an epistemic part, in nats."""
        moments = self._moments(X)
        proba = class_probabilities(self.likelihood_, *moments)
        with np.errstate(divide="ignore"):
            total = entropy(np.log(proba))
        aleatoric = np.minimum(expected_entropy(self.likelihood_, *moments), total)
        return with_index_of(X, Uncertainty.from_parts(aleatoric, total - aleatoric))

    def predict_proba_bounds(
        self,
        X: Any,
        radius: Any = None,
        *,
        class_: Any = None,
        tol: float = 0.01,
        **around: Unpack[Around],
    ) -> Bounds:
        """Bound the smallest and the largest class probability in a region around each point.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Points.
        radius : float or array-like of shape (n_samples,), default=None
            Radius of the ball around each point, in the units of the features.
        class_ : label, default=None
            Class whose probability is bounded; None bounds all classes, in the order of `classes_`.
        tol : float, default=0.01
            The search for an extreme stops when its lower and upper bound differ by at most `tol`.
        region : tuple (lower, upper), default=None
            Limits of a box around each point, instead of a ball; each limit is a number or an array
            that broadcasts to `X`.
        norm : {"linf", "l2", "l1"}, default="linf"
            Norm of the ball.
        features : array-like of int or str, default=None
            Indices or names of the features that vary within the region, while other features are
            fixed. None means all features.
        domain : tuple (lower, upper), default=None
            Limits of valid inputs, to which regions are clipped. Each limit is a number or an array
            that broadcasts to `X`; None, also as an entry of a sequence, means no limit.
        max_time, max_regions : float and int, default=None
            Maximum time in seconds, and maximum number of boxes per extreme. If the search stops at
            a maximum, its bounds are valid but wider.

        Returns
        -------
        Bounds
            Arrays of shape (n_samples, n_classes), or (n_samples, 1) with `class_`.

        Raises
        ------
        ValueError
            If a point lies outside its region or the domain, or the class is unknown.

        Notes
        -----
        For more than three classes, `min_lower` and `max_upper` are proven, but do not converge to
        the extremes (Eq. 36 of the proofs page of the user guide). `min_upper` is a predicted
        probability plus 0.0125, `max_lower` a predicted probability minus 0.0125, where 0.0125
        is the tolerated error of predictions; proven bounds replace them if closer to the extreme.
        """
        regions, limits = self._asked(self._points(X), radius, tol, **around)
        bound = partial(_certificates.probability_bounds, classes=self._class_indices(class_))
        return Bounds(*self._in_batches(bound, limits, regions))

    def certify(
        self,
        X: Any,
        radius: Any = None,
        *,
        y: Any = None,
        delta: float | None = None,
        tol: float = _MARGIN,
        **around: Unpack[Around],
    ) -> Certificate:
        """Decide whether the predicted class changes anywhere in a region around each point.

        Parameters
        ----------
        X, radius, region, norm, features, domain, max_time, max_regions
            As for `predict_proba_bounds`.
        y : array-like of shape (n_samples,), default=None
            True labels; a point is safe if the model predicts its label in the whole region. None
            uses the predicted labels instead (Definition 2).
        delta : float, default=None
            If set, decide whether any class probability changes by more than `delta` (Definition 1,
            with the maximum norm); `y` must then be None.
        tol : float, default=1e-4
            A point is "undecided" if the lower bound on its margin is negative and the upper bound
            positive, and either they differ by at most `tol` or the search reached a maximum.
        """
        points = self._points(X)
        regions, limits = self._asked(points, radius, tol, **around)
        if delta is None:
            labels = self._labels(points, y)
            return Certificate(*self._in_batches(_certificates.safety, limits, regions, labels))
        if y is not None:
            raise ValueError(
                "`y` has no effect if `delta` is passed, because the changes of all class "
                "probabilities are then compared with `delta`; omit `y` or `delta`."
            )
        _estimator.check_number(delta, "delta")
        return Certificate(
            *self._in_batches(partial(_certificates.robustness, delta=delta), limits, regions)
        )

    def certified_radius(
        self,
        X: Any,
        *,
        y: Any = None,
        max_radius: float | None = None,
        precision: float = 0.01,
        **around: Unpack[Around],
    ) -> SafeRadius:
        """Find by bisection a radius within which the predicted class provably does not change.

        Parameters
        ----------
        X, norm, features, domain, max_time
            As for `predict_proba_bounds`.
        y : array-like of shape (n_samples,), default=None
            True labels; None uses the predicted labels.
        max_radius : float, default=None
            Largest radius to try, in the units of the features. Default: the norm of the vector of
            standard deviations, in the training data, of the features that vary.
        precision : float, default=0.01
            Precision of the bisection, relative to `max_radius`.
        max_regions : int, default=10000
            Maximum number of boxes per point and radius; a radius that needs more boxes counts as
            not proven.
        """
        points = self._points(X)
        labels = self._labels(points, y)
        return self._bisect(
            points, _certificates.safety, labels, _MARGIN, max_radius, precision, **around
        )

    def attack(
        self,
        X: Any,
        radius: Any = None,
        *,
        y: Any = None,
        method: str = "pgd",
        n_restarts: int = 0,
        **around: Unpack[Around],
    ) -> Attack:
        """Search each region, by gradient descent, for a point at which a class is least probable.

        A failed attack does not prove that a region is safe; use `certify` for proofs.

        Parameters
        ----------
        X, radius, region, norm, features, domain
            As for `predict_proba_bounds`.
        y : array-like of shape (n_samples,), default=None
            Class whose probability is minimised, for each point; None uses the predicted labels.
        method : {"pgd", "fgsm"}, default="pgd"
            "pgd" takes many small steps, "fgsm" one step to the boundary of the region (GPFGS).
        n_restarts : int, default=0
            Number of additional starts of "pgd" at random points of the region. The point with the
            lowest probability of all starts is returned. "fgsm" does not support restarts.
        """
        points = self._points(X)
        _estimator.refuse_shape(around, "max_time", "max_regions")
        regions, _ = self._asked(points, radius, 1.0, **around)
        check_scalar(n_restarts, "n_restarts", Integral, min_val=0)
        if method not in ("pgd", "fgsm") or (method == "fgsm" and n_restarts):
            raise ValueError(
                "`method` must be 'pgd', or 'fgsm' with n_restarts=0, got "
                f"{method!r} with n_restarts={n_restarts}."
            )
        labels, rng = self._labels(points, y), check_random_state(self.random_state)
        return _certificates.gradient_attack(
            self._region_model(), regions, labels, method, n_restarts, rng
        )

    def explain(
        self,
        X: Any,
        gamma: float,
        *,
        class_: Any = None,
        tol: float = 1e-3,
        **around: Unpack[Around],
    ) -> FeatureEffects:
        """Measure the effect of each feature on a class probability, with proven error bounds.

        Effects are computed from ranges of the probability (Appendix G of the paper). Unlike a
        gradient, they take into account all values of the feature within `gamma` of the point.

        Parameters
        ----------
        X, features, domain, tol, max_time, max_regions
            As for `predict_proba_bounds`.
        gamma : float
            Largest change of each feature, up and down, in the unit of the feature.
        class_ : label, default=None
            Class whose probability is explained. None means the second class if there are two, and
            otherwise the class predicted for each point.
        """
        points = self._points(X)
        _estimator.check_number(gamma, "gamma", positive=True)
        _estimator.refuse_shape(around, "region", "norm")
        regions, limits = self._asked(points, gamma, tol, **around)
        if class_ is not None:
            labels = np.full(len(points), self._class_indices(class_)[0])
        elif len(self.classes_) == 2:
            labels = np.ones(len(points), dtype=np.intp)
        else:
            labels = self._labels(points, None)
        local, error = self._in_batches(_certificates.feature_effects, limits, regions, labels)
        return FeatureEffects(local, local.mean(axis=0), error)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        several = self.likelihood in ("auto", "softmax") and self.inference == "laplace"
        tags.classifier_tags.multi_class = several
        return tags

    def _moments(self, X: Any) -> tuple[FloatArray, FloatArray]:
        points = self._points(X)
        return self.posterior_.moments(points)

    def _new_region_model(self, device: str) -> ProbabilityModel:
        return ProbabilityModel(self.posterior_, self.likelihood_, device)

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
                f"likelihood={chosen!r} supports only binary classification, but the data have "
                f"{n_classes} classes; use likelihood='softmax'."
            )
        if chosen == "softmax" and self.inference == "ep":
            raise ValueError(
                "inference='ep' supports only binary classification, with the probit or the logit "
                "likelihood; use inference='laplace' with the softmax likelihood."
            )
        return chosen

    def _class_indices(self, class_: Any) -> NDArray[np.intp]:
        if class_ is None:
            return np.arange(len(self.classes_))
        known = self.classes_.tolist()
        if np.ndim(class_) or class_ not in known:
            raise ValueError(f"`class_` must be one of {known}, got {class_!r}.")
        return np.array([known.index(class_)])

    def _labels(self, points: FloatArray, y: Any) -> NDArray[np.intp]:
        if y is None:
            return most_probable(self._region_model().probabilities(points))
        y = column_or_1d(y)
        check_consistent_length(points, y)
        return codes_of(y, self.classes_, "y")
