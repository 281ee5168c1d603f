"""Uncertainty from a Gaussian posterior of the last layer's weights (Laplace approximation)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn
from torch.func import jacrev

from skuq._networks import Cut, HeldOnDevice, cut_network, device_with_memory, evaluate
from skuq.baselines._sampled import AT_LEAST_ONE, SampledModelsClassifier, TrainingRows

# Largest number of elements of an intermediate result: 64 MiB in double precision.
_CHUNK = 2**23
# Bounds of prior_precision="auto"; outside, the evidence is nearly constant or has no maximum.
_PRECISION_BOUNDS = (1e-8, 1e8)


@dataclass(repr=False, eq=False, kw_only=True)
class LaplaceClassifier(SampledModelsClassifier):
    """Disagreement of models drawn from the Laplace approximation of the last layer.

    The posterior of the last layer's weights is approximated by a Gaussian around the trained
    weights. Its precision is the prior precision plus the exact curvature of the cross-entropy. The
    logits of a test point are then Gaussian too, and are sampled directly.

    Parameters
    ----------
    estimator : object, default=None
        The model, as in `QUAMClassifier`; a model that is not retrained needs its own training data
        in `fit`. The model must end in a `torch.nn.Linear`, as `LogisticRegression` and
        `MLPClassifier` do.
    n_samples : int, default=100
        Number of models drawn. Can be changed without refitting.
    prior_precision : float or "auto", default="auto"
        Precision of the Gaussian prior on each weight of the last layer. "auto" maximises the
        model evidence within [1e-8, 1e8].
    setting, batch_size, device
        As in `DeepEnsembleClassifier`; quantities are defined there too.
    random_state : int, RandomState instance or None, default=None
        Seed of the training and of the draws of models; `fit` fixes the draws.

    Attributes
    ----------
    classes_, model_
        As in `ReferenceClassifier`.
    posterior_ : object
        Gaussian posterior of the model's last layer.
    prior_precision_ : float
        Prior precision that was used.

    Notes
    -----
    Time grows with the cube of the number of weights of the last layer, memory with its square; a
    few thousand weights are fast. Class weights of `estimator` affect its training only. To include
    them for a frozen model, pass the equivalent sample weights to `fit`.

    References
    ----------
    MacKay, "A Practical Bayesian Framework for Backpropagation Networks", 1992; Daxberger et
    al., "Laplace Redux", NeurIPS 2021; as a baseline: Schweighofer et al., NeurIPS 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq.baselines import LaplaceClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> laplace = LaplaceClassifier(LogisticRegression(max_iter=999), random_state=0).fit(X, y)
    >>> u = laplace.predict_uncertainty([X[0], [50.0, 0.0, 0.0, 30.0]])
    >>> bool(u.epistemic[0] < u.epistemic[1])
    True
    """

    n_samples: int = 100
    prior_precision: float | str = "auto"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **SampledModelsClassifier._parameter_constraints,
        "n_samples": AT_LEAST_ONE,
        "prior_precision": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
    }

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
        # Decompositions need memory for about six such matrices; use the CPU if a GPU lacks it.
        curvature = curvature.to(device_with_memory(6 * curvature.nbytes, there))
        if self.prior_precision == "auto":
            squares = sum(float(p.detach().double().square().sum()) for p in layer.parameters())
            eigenvalues = torch.linalg.eigvalsh(curvature).cpu()
            self.prior_precision_ = evidence_prior_precision(eigenvalues, squares)
        else:
            self.prior_precision_ = float(self.prior_precision)
        posterior = last_layer_posterior(layer.weight, layer.bias, curvature, self.prior_precision_)
        self.posterior_ = posterior.on("cpu")

    def _sampler(self, device: torch.device) -> Callable[[Any], Tensor]:
        body = replace(self.model_, module=self._body).to(device)
        there = _with_double(device)
        posterior = self.posterior_.on(there)
        to_logits, shift = self._to_logits.to(there), self._shift.to(there)
        generator = torch.Generator().manual_seed(self._sampling_seed)
        size = self.n_samples, len(posterior.mean)
        noise = torch.randn(size, generator=generator, dtype=torch.float64, device="cpu").to(there)

        def sample(X: Any) -> Tensor:
            features = body.outputs_there(self.model_.inputs(X)).to(there)
            mean, factor = posterior.outputs(features)
            # All test points share the same noise. The distribution at each point is correct, the
            # joint distribution of several points is not.
            outputs = mean[:, None] + torch.einsum("nkl,sl->nsk", factor, noise)
            return (outputs @ to_logits.mT + shift).log_softmax(-1)

        return sample


def _with_double(device: torch.device) -> torch.device:
    """Return a device for matrix decompositions, which need float64: the CPU instead of MPS."""
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


def _affine_tail(head: nn.Module, layer: Any, features: Tensor) -> tuple[Tensor, Tensor]:
    """Compute matrix and shift that map the last linear layer's outputs to logits + constant.

    In most networks, no layer follows the last linear layer. In a binary network with one output,
    the layers after the last linear layer (the tail) convert the output to two logits.
    """
    with torch.no_grad():
        outputs, logits = nn.functional.linear(features, layer.weight, layer.bias), head(features)
    tail = head[1:] if isinstance(head, nn.Sequential) else nn.Identity()
    outputs, logits = outputs.double(), logits.double()
    matrix = jacrev(lambda out: tail(out[None])[0])(outputs[0])
    shift = logits[0] - matrix @ outputs[0]
    if torch.allclose(outputs @ matrix.mT + shift, logits, rtol=1e-4, atol=1e-5):
        return matrix, shift
    # A tail such as log-softmax does not change the probabilities, so the outputs can serve as
    # logits.
    if outputs.shape == logits.shape and torch.allclose(
        outputs.softmax(-1), logits.softmax(-1), atol=1e-5
    ):
        return torch.eye(outputs.shape[1], dtype=outputs.dtype), torch.zeros_like(shift)
    raise ValueError(
        "LaplaceClassifier needs logits that are linear in the outputs of the last layer, but "
        f"this layer is a {type(layer).__name__}, followed by {tail}."
    )


def _of_outputs(curvature: Tensor, to_logits: Tensor) -> Tensor:
    """Transform the curvature from logits to the outputs of the last linear layer."""
    n_logits, n_outputs = to_logits.shape
    width = len(curvature) // n_logits
    blocks = curvature.reshape(n_logits, width, n_logits, width)
    blocks = torch.einsum("ck,cdef,el->kdlf", to_logits, blocks, to_logits)
    return blocks.reshape(n_outputs * width, n_outputs * width)


def _with_constant(features: Tensor, bias: bool) -> Tensor:
    features = features.double()
    return torch.nn.functional.pad(features, (0, 1), value=1.0) if bias else features


def last_layer_curvature(
    features: Tensor, log_proba: Tensor, weight: Tensor, *, bias: bool = True
) -> Tensor:
    """Compute the curvature of the cross-entropy with respect to a linear layer before a softmax.

    It is ``sum_i weight_i (diag(p_i) - p_i p_i^T) (x) (f_i f_i^T)`` with probabilities p_i and
    features f_i, which end in 1 for the bias (Bishop, 2006, Eq. 4.110; Daxberger et al., NeurIPS
    2021, Section 2). This is the generalised Gauss-Newton matrix, which is positive semidefinite.

    Shapes: `features` (n_samples, n_features), `log_proba` (n_samples, n_classes), `weight`
    (n_samples,); returns (n_classes * width, n_classes * width).
    """
    phi, p, weight = _with_constant(features, bias), log_proba.double().exp(), weight.double()
    n_classes, width = p.shape[-1], phi.shape[1]
    all_others = 1 - torch.eye(n_classes, dtype=p.dtype, device=p.device)
    total = phi.new_zeros(n_classes, width, n_classes, width)
    step = max(1, _CHUNK // max(1, n_classes * width))
    chunks = (torch.split(part, step) for part in (phi, p, weight[:, None]))
    for f, own, w in zip(*chunks, strict=True):
        crossed = ((w.sqrt() * own)[..., None] * f[:, None]).flatten(-2)
        # Eq. 4.110 (Bishop)
        part = -(crossed.mT @ crossed).reshape(n_classes, width, n_classes, width)
        # 1 - p is computed as the sum of the other classes' probabilities, which is accurate even
        # if p is close to 1.
        within = (w * own * (own @ all_others)).mT[..., None] * f
        part.diagonal(dim1=0, dim2=2).copy_((within.mT @ f).movedim(0, -1))
        total += part
    return total.reshape(n_classes * width, n_classes * width)


def evidence_prior_precision(eigenvalues: Tensor, squared_norm: float) -> float:
    """Find the prior precision that maximises the Laplace approximation of the evidence.

    At prior precision a, the log evidence is, up to a constant,
    ``1/2 sum_i log(a / (a + eigenvalue_i)) - a/2 squared_norm``, which has a single maximum
    (MacKay, "Bayesian Interpolation", 1992, Section 4.4; Bishop, 2006, Eq. 3.86, 3.91 and 3.92).
    """
    eigenvalues = eigenvalues.double().clamp_min(0)  # rounding may make eigenvalues negative
    low, high = map(math.log, _PRECISION_BOUNDS)
    log_precision = 0.0
    for _ in range(60):  # each step at least halves the error
        # gamma, the number of well-determined parameters: Eq. 3.91 (Bishop)
        gamma = float((eigenvalues / (eigenvalues + math.exp(log_precision))).sum())
        # At the maximum of the evidence, the precision is gamma / squared_norm: Eq. 3.92 (Bishop)
        target = math.log(max(gamma, 1e-300)) - math.log(max(squared_norm, 1e-300))
        log_precision = min(max((log_precision + target) / 2, low), high)
    return math.exp(log_precision)


@dataclass(frozen=True)
class LastLayerPosterior(HeldOnDevice):
    """Gaussian posterior of a linear layer; see `last_layer_posterior`."""

    mean: Tensor  # (n_outputs, width), float64; the last column is the bias if there is one
    factor: Tensor  # (n_outputs * width, n_outputs * width), F such that F^T F is the covariance
    bias: bool

    def _copy_to(self, device: torch.device) -> LastLayerPosterior:
        return LastLayerPosterior(self.mean.to(device), self.factor.to(device), self.bias)

    def outputs(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Compute mean and triangular covariance factor of the Gaussian outputs at each input.

        Shapes: `features` (n_points, n_features); returns (n_points, n_outputs) and (n_points,
        n_outputs, n_outputs).
        """
        phi = _with_constant(features, self.bias)
        n_outputs, width = self.mean.shape
        by_feature = self.factor.reshape(-1, n_outputs, width).permute(2, 0, 1).flatten(1)
        root = (phi @ by_feature).reshape(len(phi), -1, n_outputs)
        # Use a QR decomposition: forming the covariance would square the condition number.
        upper = torch.linalg.qr(root, mode="r").R
        sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(upper)
        return phi @ self.mean.mT, (sign[..., None] * upper).mT


def last_layer_posterior(
    weight: Tensor, bias: Tensor | None, curvature: Tensor, prior_precision: float
) -> LastLayerPosterior:
    """Build a Gaussian at the weights, whose precision is curvature + prior_precision * identity.

    Shapes: `weight` (n_outputs, n_features), `bias` (n_outputs,), `curvature` (n_outputs * width,
    n_outputs * width). Source: MacKay, 1992; Bishop, 2006, Eq. 4.142 to 4.144.
    """
    columns = [weight] if bias is None else [weight, bias[:, None]]
    mean = torch.cat(columns, dim=1).detach().to(curvature.device).double()
    identity = torch.eye(mean.numel(), dtype=mean.dtype, device=mean.device)
    # Eq. 4.142 to 4.144 (Bishop)
    cholesky, failed = torch.linalg.cholesky_ex(curvature.double() + prior_precision * identity)
    if bool(failed.any()):
        raise ValueError(
            "The posterior precision is not positive definite; scale the features, for instance "
            "with StandardScaler, or use a larger `prior_precision`."
        )
    factor = torch.linalg.solve_triangular(cholesky, identity, upper=False)
    return LastLayerPosterior(mean, factor, bias is not None)
