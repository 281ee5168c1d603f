"""Uncertainty from a Gaussian posterior of the last layer's weights (Laplace approximation)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from typing import Any

import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn
from torch.func import jacrev

from skuq._networks import Cut, cut_network, device_with_memory, evaluate
from skuq.baselines._curvature import (
    evidence_prior_precision,
    last_layer_curvature,
    last_layer_posterior,
)
from skuq.baselines._sampled import (
    AT_LEAST_ONE,
    COMMON_CONSTRAINTS,
    SampledModelsClassifier,
    TrainingRows,
)


class LaplaceClassifier(SampledModelsClassifier):
    """Disagreement of models drawn from the Laplace approximation of the last layer.

    The posterior of the last layer's weights is approximated by a Gaussian with the trained
    weights as mean. Its precision is the prior precision plus the exact curvature of the
    cross-entropy, summed over weighted training samples. The logits of a test point are then
    Gaussian too, and are sampled directly.

    Parameters
    ----------
    estimator : object, default=None
        The model, as in `QUAMClassifier`. None trains the default network. A skorch net or
        scikit-learn model is cloned and trained. A model in a `FrozenEstimator` or a
        `torch.nn.Module` is used without retraining; `fit` then needs the training data of this
        model. The model must end in a `torch.nn.Linear`, as `LogisticRegression` and
        `MLPClassifier` do.
    n_samples : int, default=100
        Number of models drawn. Can be changed without refitting.
    prior_precision : float or "auto", default="auto"
        Precision of the Gaussian prior on each weight of the last layer. "auto" maximises the
        model evidence within [1e-8, 1e8].
    setting : {"expected", "selected", "pairwise", "max-score"}, default="expected"
        Definition of the uncertainty and of the prediction. "expected": uncertainty of the average
        of the drawn models (Schweighofer et al., NeurIPS 2023, Eq. 1). "selected": uncertainty of
        the given model (Eq. 2), which also predicts. "pairwise": uncertainty of one drawn model
        compared with each of the drawn models; the prediction is the average. "max-score": the
        total is 1 minus the largest probability of the average; the parts are NaN.
    batch_size : int, default=256
        Number of test points evaluated at once; it does not affect the result.
    device : str, default="auto"
        Device of all computations; "auto" is CUDA if available, otherwise the CPU.
    random_state : int, RandomState instance or None, default=None
        Seed of the training, and of the random numbers from which models are drawn; these numbers
        are drawn only once, in `fit`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.NetworkModel
        The given model.
    posterior_ : skuq.baselines._curvature.LastLayerPosterior
        Posterior of the model's last layer.
    prior_precision_ : float
        Prior precision that was used.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Quantities are in nats. "selected": total = expected cross-entropy, aleatoric = entropy of the
    given model, epistemic = expected KL divergence between the given model and drawn models.
    "expected": total = entropy of the average of drawn models, aleatoric = expected entropy,
    epistemic = mutual information. "pairwise": total = mean cross-entropy of all pairs of models,
    aleatoric = expected entropy, epistemic = mean KL divergence of all pairs. "max-score" is a
    probability. Time grows with the cube of the number of weights of the last layer, and memory
    with the square of this number; a few thousand weights are fast.

    The curvature is weighted by `sample_weight`. Class weights of `estimator`, such as
    ``class_weight``, affect its training only. To include them for a frozen model, pass the
    equivalent sample weights to `fit`.

    References
    ----------
    MacKay, "A Practical Bayesian Framework for Backpropagation Networks", 1992; Daxberger et
    al., "Laplace Redux", NeurIPS 2021; as a baseline: Schweighofer et al., NeurIPS 2023;
    "pairwise": Schweighofer et al., UAI 2025.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.frozen import FrozenEstimator
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq.baselines import LaplaceClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> mine = LogisticRegression(max_iter=1000).fit(X, y)
    >>> laplace = LaplaceClassifier(FrozenEstimator(mine), random_state=0).fit(X, y)
    >>> u = laplace.predict_uncertainty([X[0], [50.0, 0.0, 0.0, 30.0]])
    >>> bool(u.epistemic[0] < u.epistemic[1])
    True
    """

    _parameter_constraints: dict[str, Any] = {
        **COMMON_CONSTRAINTS,
        "n_samples": AT_LEAST_ONE,
        "prior_precision": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_samples: int = 100,
        prior_precision: float | str = "auto",
        setting: str = "expected",
        batch_size: int = 256,
        device: str = "auto",
        random_state: Any = None,
    ):
        super().__init__(estimator, setting, batch_size, device, random_state)
        self.n_samples = n_samples
        self.prior_precision = prior_precision

    def _set_up(self, train: TrainingRows, device: torch.device) -> None:
        cut = _linear_head(self.model_.network, train.X[:1024])
        assert cut.body is not None
        self._body = cut.body
        layer: Any = next(part for part in cut.module.modules() if isinstance(part, nn.Linear))
        features = evaluate(cut.body, train.X, device=device)
        if features.ndim != 2:
            raise ValueError(
                "The last layer is applied several times to each input, which LaplaceClassifier "
                "does not support; QUAMClassifier does."
            )
        self._to_logits, self._shift = _affine_tail(cut.module, layer, features[:1024])
        bias = layer.bias is not None
        log_proba = evaluate(cut.module, features, device=device).double().log_softmax(-1)
        there = _with_double(device)
        curvature = last_layer_curvature(
            features.to(there), log_proba.to(there), train.weight.to(there), bias=bias
        )
        curvature = _of_outputs(curvature, self._to_logits.to(there))
        # Decompositions need a few matrices of the same size.
        curvature = curvature.to(device_with_memory(6 * curvature.nbytes, there))
        self.prior_precision_ = self._prior_precision(curvature, layer)
        posterior = last_layer_posterior(layer.weight, layer.bias, curvature, self.prior_precision_)
        self.posterior_ = posterior.on("cpu")

    def _prior_precision(self, curvature: Tensor, layer: nn.Linear) -> float:
        if self.prior_precision != "auto":
            return float(self.prior_precision)
        squares = sum(float(p.detach().double().square().sum()) for p in layer.parameters())
        return evidence_prior_precision(torch.linalg.eigvalsh(curvature).cpu(), squares)

    def _sampler(self, device: torch.device) -> Callable[[Any], Tensor]:
        body = replace(self.model_, module=self._body).to(device)
        there = _with_double(device)
        posterior = self.posterior_.on(there)
        to_logits, shift = self._to_logits.to(there), self._shift.to(there)
        n_outputs, generator = len(posterior.mean), torch.Generator()
        generator.manual_seed(self._sampling_seed)
        like = {"dtype": torch.float64, "device": "cpu"}
        noise = torch.randn(self.n_samples, n_outputs, generator=generator, **like)
        noise = noise.to(there)

        def sample(X: Any) -> Tensor:
            features = body.outputs_there(self.model_.inputs(X)).to(there)
            mean, factor = posterior.outputs(features)
            # Use the same noise for every test point: the distribution at each point is correct,
            # although the joint distribution of points is not.
            outputs = mean[:, None] + torch.einsum("nkl,sl->nsk", factor, noise)
            return (outputs @ to_logits.mT + shift).log_softmax(-1)

        return sample


def _with_double(device: torch.device) -> torch.device:
    """Device for matrix decompositions, which need float64: the CPU instead of MPS."""
    return torch.device("cpu") if device.type == "mps" else device


def _linear_head(network: nn.Module, X: Tensor) -> Cut:
    problem = "LaplaceClassifier needs a network that ends in a torch.nn.Linear"
    cut = cut_network(network, "last", X)
    if cut.body is None:
        raise ValueError(f"{problem}, optionally followed by other modules of its nn.Sequential.")
    last = cut.module[0] if isinstance(cut.module, nn.Sequential) else cut.module
    if not isinstance(last, nn.Linear):
        shown = type(last).__name__ if any(last.children()) else last
        raise ValueError(f"{problem}; its last layer with parameters is {shown}.")
    return cut


def _affine_tail(head: nn.Module, layer: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
    """Matrix and shift that map the last linear layer's outputs to logits, up to a constant.

    In most networks, no layer follows the last linear layer. In a binary network with one output,
    the layers after the last linear layer (the tail) convert the output to two logits.
    """
    with torch.no_grad():
        outputs, logits = layer(features), head(features)
    tail = head[1:] if isinstance(head, nn.Sequential) else nn.Identity()
    outputs, logits = outputs.double(), logits.double()
    matrix = jacrev(lambda out: tail(out[None])[0])(outputs[0])
    shift = logits[0] - matrix @ outputs[0]
    if torch.allclose(outputs @ matrix.mT + shift, logits, rtol=1e-4, atol=1e-5):
        return matrix, shift
    # A tail such as log-softmax does not change the probabilities: the outputs themselves are then
    # logits.
    if outputs.shape == logits.shape and torch.allclose(
        outputs.softmax(-1), logits.softmax(-1), atol=1e-5
    ):
        return torch.eye(outputs.shape[1], dtype=outputs.dtype), torch.zeros_like(shift)
    raise ValueError(
        "LaplaceClassifier needs logits that are linear in the outputs of the last layer, but "
        f"this layer is followed by {tail}."
    )


def _of_outputs(curvature: Tensor, to_logits: Tensor) -> Tensor:
    """Transform the curvature from logits to the outputs of the last linear layer."""
    n_logits, n_outputs = to_logits.shape
    width = len(curvature) // n_logits
    blocks = curvature.reshape(n_logits, width, n_logits, width)
    blocks = torch.einsum("ck,cdef,el->kdlf", to_logits, blocks, to_logits)
    return blocks.reshape(n_outputs * width, n_outputs * width)
