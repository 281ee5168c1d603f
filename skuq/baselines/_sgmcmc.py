"""Uncertainty from models sampled by stochastic gradient Markov chains (SG-MCMC)."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from skuq._networks import (
    as_double,
    evaluate,
    moved,
    on_device,
    seeded,
    stack_parameters,
    stacked_forward,
    training_batches,
)
from skuq.baselines._sampled import AT_LEAST_ONE, SampledModelsClassifier, TrainingRows
from skuq.imports import import_optional

# Friction of Hamiltonian chains per unit of time. It does not change the target distribution. With
# a step size of 0.1 the momentum factor is about 0.9, which is usual in training.
_FRICTION = 1.0
_OfStep = Callable[[Any], float]


@dataclass(repr=False, eq=False, kw_only=True)
class SGMCMCClassifier(SampledModelsClassifier):
    """Disagreement of models sampled by stochastic gradient Markov chains around a trained model.

    Needs the package ``posteriors`` (extra "sgmcmc").

    Parameters
    ----------
    estimator : object, default=None
        The model at which the chains start, as in `QUAMClassifier`; a model that is not retrained
        needs its own training data in `fit`.
    method : {"sghmc", "sgld"}, default="sghmc"
        Hamiltonian Monte Carlo with friction, or Langevin dynamics.
    parameters : {"all", "last"}, default="all"
        Weights that are sampled: all weights, or the weights of the last layer.
    n_chains : int, default=10
        Number of parallel chains.
    n_samples : int, default=10
        Number of models drawn from each chain.
    steps_per_sample : int, default=50
        Number of steps before each model is drawn.
    n_cycles : int, default=None
        Number of cosine cycles of the step size; `n_samples` must be a multiple of this number.
        None: a constant step size.
    learning_rate : float, default=0.1
        Step size for gradients of the mean training loss.
    temperature : float, default=1.0
        With 1, long chains converge to the posterior; with smaller values, to a sharper
        distribution. The Notes state how closely default chains approximate the posterior.
    prior_precision : float, default=1.0
        Precision of the Gaussian prior on each weight.
    train_batch_size : int, default=256
        Number of training samples per step.
    setting, batch_size, device
        As in `DeepEnsembleClassifier`; quantities are defined there too.
    random_state : int, RandomState instance or None, default=None
        Seed of training, mini-batches and the chains' noise.

    Attributes
    ----------
    classes_, model_
        As in `ReferenceClassifier`.
    samples_ : dict of str to Tensor of shape (n_samples * n_chains, \\*parameter.shape)
        Parameters of the sampled models, by name.

    Notes
    -----
    With `n_cycles` and "sghmc", this is the cyclical stochastic gradient Hamiltonian Monte Carlo
    (cSG-HMC) with which Schweighofer et al. compare QUAM.

    Chains start at the trained model, without burn-in. The spread of a chain grows with
    `steps_per_sample` and `learning_rate` up to the width of the posterior; with too few steps, the
    spread is too small. In the first half of each of the `n_cycles` cycles, no noise is added, so
    that the chains move back to modes. For a logistic regression with one weight and 100 samples,
    the variance over all sampled models was measured as a fraction of the variance of the
    posterior. It was 0.88 by default (0.44 for the first model of each chain, 0.96 to 1.02 from the
    fifth model on), 0.51 with ``n_cycles=1`` and 0.14 with ``n_cycles=5``.

    References
    ----------
    Chen, Fox, Guestrin, ICML 2014; Welling and Teh, ICML 2011; Zhang et al., "Cyclical Stochastic
    Gradient MCMC", ICLR 2020; as a baseline: Schweighofer et al., NeurIPS 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq.baselines import SGMCMCClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> chains = SGMCMCClassifier(LogisticRegression(max_iter=999), n_samples=2, random_state=0)
    >>> u = chains.fit(X, y).predict_uncertainty(X[[0, 70]])
    >>> bool(u.epistemic[0] < u.epistemic[1])  # the second lies between two classes
    True
    """

    method: str = "sghmc"
    parameters: str = "all"
    n_chains: int = 10
    n_samples: int = 10
    steps_per_sample: int = 50
    n_cycles: int | None = None
    learning_rate: float = 0.1
    temperature: float = 1.0
    prior_precision: float = 1.0
    train_batch_size: int = 256

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **SampledModelsClassifier._parameter_constraints,
        "method": [StrOptions({"sghmc", "sgld"})],
        "parameters": [StrOptions({"all", "last"})],
        "n_chains": AT_LEAST_ONE,
        "n_samples": AT_LEAST_ONE,
        "steps_per_sample": AT_LEAST_ONE,
        "n_cycles": [Interval(Integral, 1, None, closed="left"), None],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "temperature": [Interval(Real, 0, None, closed="neither")],
        "prior_precision": [Interval(Real, 0, None, closed="left")],
        "train_batch_size": AT_LEAST_ONE,
    }

    def _set_up(self, train: TrainingRows, device: torch.device) -> None:
        self._body, self._sampled, names = self.model_.cut(self.parameters, train.X)
        if self._body is not None:
            train = train._replace(X=evaluate(self._body, train.X, device=device))
        module = moved(self._sampled, device)
        dtypes = {name: self._sampled.get_parameter(name).dtype for name in names}
        starts = stack_parameters(module, self.n_chains, list(dtypes))
        train = TrainingRows(*(on_device(part, device) for part in train))
        generator = torch.Generator().manual_seed(self._sampling_seed)
        models = list(run_chains(self, module, starts, train, generator))
        self.samples_ = {
            name: torch.cat([m[name] for m in models]).cpu().to(dtype)
            for name, dtype in dtypes.items()
        }

    def _sampler(self, device: torch.device) -> Callable[[Any], Tensor]:
        body = None if self._body is None else replace(self.model_, module=self._body).to(device)
        module = moved(self._sampled, device)
        models = {name: on_device(value, device) for name, value in self.samples_.items()}

        @torch.no_grad()
        def sample(X: Any) -> Tensor:
            inputs = on_device(self.model_.inputs(X), device)
            features = inputs if body is None else body.outputs_there(inputs)
            logits = stacked_forward(module, models, features, shared_input=True)
            return as_double(logits.transpose(0, 1)).log_softmax(-1)

        return sample


def run_chains(
    settings: SGMCMCClassifier,
    module: nn.Module,
    starts: Mapping[str, Tensor],
    train: TrainingRows,
    generator: torch.Generator,
) -> Iterator[dict[str, Tensor]]:
    r"""Sample the posterior of a network with parallel chains.

    The posterior is ``exp(-(sum_i weight_i CE_i + prior_precision / 2 |w|^2) / temperature)``.
    Chains use the gradient of its logarithm, divided by the sum of weights. Step sizes therefore do
    not depend on the number of samples. Chains share only their mini-batches.

    Shapes: `starts` (n_chains, \*parameter.shape); returns (n_chains, \*parameter.shape).
    """
    rate, heat, exploration = _schedule(settings, settings.temperature / float(train.weight.sum()))
    log_posterior = _log_posterior(module, train, settings.prior_precision)
    models = {name: value.detach().clone() for name, value in starts.items()}
    transform = _transform(settings.method, log_posterior, rate, heat, models, generator)
    state = transform.init(models)
    for sample in range(settings.n_samples):
        n_steps = settings.steps_per_sample + exploration(sample)
        rows = training_batches(len(train.X), settings.train_batch_size, n_steps, generator)
        batches = torch.stack(list(rows)).to(train.X.device)
        seed = int(torch.randint(2**62, (), generator=generator))
        # The library `posteriors` draws from torch's global generator.
        with seeded(seed):
            for batch in batches:
                state, _ = transform.update(state, batch)
        drawn = {name: state.params[name].clone() for name in models}
        if not all(bool(torch.isfinite(value).all()) for value in drawn.values()):
            raise ValueError(
                "A Markov chain diverged (NaN or infinite weights). Use a smaller "
                "`learning_rate`, or scale the features, for instance with StandardScaler."
            )
        yield drawn


def _log_posterior(
    module: nn.Module, train: TrainingRows, prior_precision: float
) -> Callable[[Any, Tensor], tuple[Tensor, Tensor]]:
    total_weight = float(train.weight.sum())

    def log_posterior(models: Any, batch: Tensor) -> tuple[Tensor, Tensor]:
        models = dict(models.items())
        logits = stacked_forward(module, models, train.X[batch].clone(), shared_input=True)
        targets = train.y[batch].repeat(len(logits))
        losses = cross_entropy(as_double(logits.flatten(0, 1)), targets, reduction="none")
        losses = losses.reshape(len(logits), -1) @ as_double(train.weight[batch])
        loss = losses.sum() * (len(train.X) / len(batch))
        square = sum(as_double(value).square().sum() for value in models.values())
        value = -(loss + prior_precision / 2 * square) / total_weight
        return value, torch.empty(0)

    return log_posterior


def _schedule(settings: SGMCMCClassifier, temperature: float) -> tuple[_OfStep, _OfStep, Any]:
    """Return three functions: step size, temperature, and exploration steps before a sample."""
    n_samples, n_cycles, start = settings.n_samples, settings.n_cycles, settings.learning_rate
    if n_cycles is None:
        return lambda _: start, lambda _: temperature, lambda _: 0
    if n_samples % n_cycles:
        raise ValueError(
            f"`n_samples` ({n_samples}) must be a multiple of `n_cycles` ({n_cycles})."
        )
    per_cycle = n_samples // n_cycles
    half = per_cycle * settings.steps_per_sample

    def rate(step: Any) -> float:
        # Eq. 1 (Zhang et al.)
        return start / 2 * (1 + math.cos(math.pi * (int(step) % (2 * half)) / (2 * half)))

    def heat(step: Any) -> float:
        # Algorithm 1 (Zhang et al.): exploration, then sampling
        return 0.0 if int(step) % (2 * half) < half else temperature

    return rate, heat, lambda sample: 0 if sample % per_cycle else half


def _transform(
    method: str,
    log_posterior: Callable[[Any, Tensor], tuple[Tensor, Tensor]],
    rate: _OfStep,
    heat: _OfStep,
    models: Mapping[str, Tensor],
    generator: torch.Generator,
) -> Any:
    """Build an algorithm of ``posteriors``, with initial momenta at the chains' temperature."""
    with warnings.catch_warnings():
        # Importing the library causes a deprecation warning of tensordict.
        warnings.simplefilter("ignore", FutureWarning)
        algorithms = import_optional("posteriors", extra="sgmcmc").sgmcmc
    common = {"lr": rate, "temperature": heat}
    if method == "sgld":
        # Eq. 4 (Welling and Teh)
        return algorithms.sgld.build(log_posterior, **common)
    # By default, the library draws momenta at temperature 1, which would move each chain out of the
    # mode in which it starts.
    momenta = {}
    for name, value in models.items():
        noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        momenta[name] = math.sqrt(heat(0)) * noise.to(value.device)
    # For a Gaussian posterior, samples of the library's `sghmc` are too wide by a factor of
    # 1 / (1 - step * curvature / friction). BAOA integrates the same dynamics, but samples a
    # Gaussian exactly and is stable at much larger steps.
    # BAOA (Leimkuhler and Matthews, p. 271)
    return algorithms.baoa.build(log_posterior, alpha=_FRICTION, momenta=momenta, **common)
