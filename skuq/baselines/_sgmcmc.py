"""Uncertainty from models sampled by stochastic gradient Markov chains (SG-MCMC)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from skuq._networks import (
    as_double,
    evaluate,
    moved,
    on_device,
    stack_parameters,
    stacked_forward,
)
from skuq.baselines._chains import run_chains
from skuq.baselines._sampled import (
    AT_LEAST_ONE,
    COMMON_CONSTRAINTS,
    SampledModelsClassifier,
    TrainingRows,
)


class SGMCMCClassifier(SampledModelsClassifier):
    """Disagreement of models sampled by stochastic gradient Markov chains around the given model.

    Needs the package ``posteriors`` (extra "sgmcmc").

    Parameters
    ----------
    estimator : object, default=None
        The model at which the chains start, as in `QUAMClassifier`. None trains the
        default network (scale the features first). A skorch net or scikit-learn model is
        cloned and trained. A model in a `FrozenEstimator` or a `torch.nn.Module` is used
        without retraining; `fit` then needs the training data of this model.
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
    setting : {"expected", "selected", "pairwise", "max-score"}, default="expected"
        Definition of the uncertainty and of the prediction. "expected": uncertainty of the average
        of the sampled models (Schweighofer et al., NeurIPS 2023, Eq. 1). "selected": uncertainty of
        the given model (Eq. 2), which also predicts. "pairwise": uncertainty of one sampled model
        compared with each of the sampled models; the prediction is the average. "max-score": the
        total is 1 minus the largest probability of the average; the parts are NaN.
    batch_size : int, default=256
        Number of test points evaluated at once; it does not affect the result.
    device : str, default="auto"
        Device of all computations; "auto" is CUDA if available, otherwise the CPU.
    random_state : int, RandomState instance or None, default=None
        Seed of training, mini-batches and the chains' noise.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.NetworkModel
        The given model.
    samples_ : dict of str to Tensor of shape (n_samples * n_chains, \\*parameter.shape)
        Parameters of the sampled models, by name.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Quantities are in nats. "selected": total = expected cross-entropy, aleatoric = entropy of the
    given model, epistemic = expected KL divergence between the given model and the sampled models.
    "expected": total = entropy of the average of sampled models, aleatoric = expected entropy,
    epistemic = mutual information. "pairwise": total = mean cross-entropy of all pairs of models,
    aleatoric = expected entropy, epistemic = mean KL divergence of all pairs. "max-score" is a
    probability. All models are sampled in `fit`. With `n_cycles` and "sghmc", the method is the
    cyclical stochastic gradient Hamiltonian Monte Carlo (cSG-HMC) with which the paper compares
    QUAM.

    Chains start at the given model, without burn-in. The spread of a chain grows with
    `steps_per_sample` and `learning_rate` up to the width of the posterior; with too few steps, the
    spread is too small. In the first half of each of the `n_cycles` cycles, no noise is added, so
    that the chains move back to modes. For a logistic regression with one weight and 100 samples,
    the variance over all sampled models was measured as a fraction of the variance of the
    posterior. It was 0.88 by default (0.44 for the first model of each chain, 0.96 to 1.02 from the
    fifth model on), 0.51 with ``n_cycles=1`` and 0.14 with ``n_cycles=5``.

    References
    ----------
    Chen, Fox, Guestrin, ICML 2014; Welling and Teh, ICML 2011; Zhang et al., "Cyclical
    Stochastic Gradient MCMC", ICLR 2020; as a baseline: Schweighofer et al., NeurIPS
    2023; "pairwise": Schweighofer et al., UAI 2025.

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

    _parameter_constraints: dict[str, Any] = {
        **COMMON_CONSTRAINTS,
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

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str = "sghmc",
        parameters: str = "all",
        n_chains: int = 10,
        n_samples: int = 10,
        steps_per_sample: int = 50,
        n_cycles: int | None = None,
        learning_rate: float = 0.1,
        temperature: float = 1.0,
        prior_precision: float = 1.0,
        train_batch_size: int = 256,
        setting: str = "expected",
        batch_size: int = 256,
        device: str = "auto",
        random_state: Any = None,
    ):
        super().__init__(estimator, setting, batch_size, device, random_state)
        self.method = method
        self.parameters = parameters
        self.n_chains = n_chains
        self.n_samples = n_samples
        self.steps_per_sample = steps_per_sample
        self.n_cycles = n_cycles
        self.learning_rate = learning_rate
        self.temperature = temperature
        self.prior_precision = prior_precision
        self.train_batch_size = train_batch_size

    def _set_up(self, train: TrainingRows, device: torch.device) -> None:
        self._body, self._sampled, names = self.model_.cut(self.parameters, train.X)
        if self._body is not None:
            train = train._replace(X=evaluate(self._body, train.X, device=device))
        module = moved(self._sampled, device)
        dtypes = {name: self._sampled.get_parameter(name).dtype for name in names}
        chains = run_chains(
            module,
            stack_parameters(module, self.n_chains, list(dtypes)),
            TrainingRows(*(on_device(part, device) for part in train)),
            n_samples=self.n_samples,
            steps_per_sample=self.steps_per_sample,
            learning_rate=self.learning_rate,
            temperature=self.temperature,
            batch_size=self.train_batch_size,
            prior_precision=self.prior_precision,
            method=self.method,
            n_cycles=self.n_cycles,
            generator=torch.Generator().manual_seed(self._sampling_seed),
        )
        models = list(chains)
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
