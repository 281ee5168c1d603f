"""Ground truth of epistemic uncertainty: Hamiltonian Monte Carlo over a network's weights.

This module is used by other benchmarks and is not a script. It defines a Gaussian prior of all
weights and biases, a likelihood, and reference models that maximise the same posterior. Sampling
needs Pyro, which is not in an extra of skuq: ``pip install pyro-ppl``.
"""

import hashlib
import math
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from joblib import Parallel, delayed
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from skuq.files import atomic_path


@dataclass(frozen=True)
class Posterior:
    """Posterior of the weights of a fully connected ReLU network, under prior N(0, 1/precision).

    With the cross-entropy, its modes are those of the mean loss with weight decay
    ``precision / len(X)``; with the mean squared error and half of it, ``noise**2`` times that.
    """

    X: Tensor
    y: Tensor  # class codes, or targets if `noise` is given
    layers: tuple[int, ...]
    precision: float
    noise: float | None = None  # standard deviation of the targets

    @property
    def weight_decay(self) -> float:
        """Weight decay for the mean negative log-likelihood, as in torch's optimisers."""
        return self.precision / len(self.X)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        pairs = pairwise(self.layers)
        return [shape for n_in, n_out in pairs for shape in ((n_out, n_in), (n_out,))]

    def outputs(self, w: Tensor, X: Tensor) -> Tensor:
        """Compute logits or predictions from a flat vector of weights, faster than with modules."""
        parts = w.split([math.prod(shape) for shape in self.shapes])
        parts = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        for i in range(0, len(parts), 2):
            X = torch.addmm(parts[i + 1], X if i == 0 else X.relu(), parts[i].T)
        return X

    def misfit(self, outputs: Tensor) -> Tensor:
        """Compute the negative log-likelihood of the training set, up to a constant."""
        if self.noise is None:
            return cross_entropy(outputs, self.y, reduction="sum")
        return 0.5 * ((outputs[:, 0] - self.y) / self.noise).square().sum()

    def potential(self, w: Tensor) -> Tensor:
        """Compute the negative log-density of the posterior, up to a constant."""
        return self.misfit(self.outputs(w, self.X)) + 0.5 * self.precision * (w @ w)

    def mode(self, seed: int, dropout: float = 0.0, n_steps: int = 2000) -> nn.Sequential:
        """Train a model that maximises the posterior, by full-batch Adam with decaying steps."""
        torch.manual_seed(seed)
        net = network(self.layers, dropout)
        adam = torch.optim.Adam(net.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, n_steps)
        for _ in range(n_steps):
            square = sum(w.square().sum() for w in net.parameters())
            loss = self.misfit(net(self.X)) + 0.5 * self.precision * square
            adam.zero_grad()
            (loss / len(self.X)).backward()
            adam.step()
            schedule.step()
        return net.eval().requires_grad_(False)


def network(layers: tuple[int, ...], dropout: float = 0.0) -> nn.Sequential:
    """Build an untrained network, optionally with dropout after its hidden layers."""
    steps: list[nn.Module] = []
    for n_in, n_out in pairwise(layers):
        steps += [nn.Linear(n_in, n_out), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*steps[: -2 if dropout else -1])


@dataclass(frozen=True)
class Chains:
    """Settings of the chains; a chain does not depend on the number of chains."""

    n_chains: int = 4
    n_samples: int = 200
    n_warmup: int = 80
    n_jobs: int = 2

    def run(self, posterior: Posterior, grid: Tensor, seed: int, folder: Path | None) -> np.ndarray:
        """Compute outputs (n_chains, n_samples, n_points, n_outputs), cached in `folder`."""
        path = None if folder is None else folder / "chains" / f"{self._key(posterior, grid)}.npz"
        seeds = [seed + 1000 * chain for chain in range(self.n_chains)]
        if path is not None and path.exists():
            with np.load(path) as kept:
                if kept["seeds"].tolist() == seeds:
                    return kept["outputs"]
        job = delayed(run_chain)
        outputs = np.stack(
            Parallel(self.n_jobs)(
                job(posterior, grid, self.n_samples, self.n_warmup, each) for each in seeds
            )
        )
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as partial, partial.open("wb") as file:
                np.savez_compressed(file, outputs=outputs, seeds=seeds)
        return outputs

    def _key(self, posterior: Posterior, grid: Tensor) -> str:
        """Key of the cached outputs: all inputs except the seeds."""
        numbers = (posterior.layers, posterior.precision, posterior.noise)
        text = repr((*numbers, self.n_chains, self.n_samples, self.n_warmup)).encode()
        for part in (posterior.X, posterior.y, grid):
            text += part.numpy().tobytes()
        return hashlib.sha256(text).hexdigest()[:16]


def run_chain(
    posterior: Posterior, grid: Tensor, n_samples: int, n_warmup: int, seed: int
) -> np.ndarray:
    """Run one chain; return the models' outputs on the grid (n_samples, n_points, n_outputs)."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    mcmc = _pyro("pyro.infer.mcmc")
    scale = 1 / math.sqrt(posterior.precision)
    n = sum(math.prod(shape) for shape in posterior.shapes)
    kernel = mcmc.HMC(
        potential_fn=lambda parameters: posterior.potential(parameters["w"]),
        # A trajectory of a quarter period under the prior, which dominates for most weights, has
        # almost independent end points.
        trajectory_length=math.pi / 2 * scale,
        adapt_step_size=True,
        adapt_mass_matrix=False,
    )
    run = mcmc.MCMC(
        kernel,
        num_samples=n_samples,
        warmup_steps=n_warmup,
        # Closer to zero than draws from the prior, for which the first steps would overflow.
        initial_params={"w": scale / 10 * torch.randn(n)},
        disable_progbar=True,
    )
    run.run()
    with torch.no_grad():
        models = run.get_samples()["w"]
        return torch.stack([posterior.outputs(w, grid) for w in models]).numpy()


def _pyro(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError("HMC is run by Pyro; install it with: pip install pyro-ppl") from error


def r_hat(values: np.ndarray) -> np.ndarray:
    """Compute split R-hat for each point of (n_chains, n_samples, n_points); 1 if chains agree."""
    stats = _pyro("pyro.ops.stats")
    found = stats.split_gelman_rubin(torch.as_tensor(values).double(), chain_dim=0, sample_dim=1)
    return found.numpy()


def effective_samples(values: np.ndarray) -> np.ndarray:
    """Compute the effective sample size for each point."""
    stats = _pyro("pyro.ops.stats")
    found = stats.effective_sample_size(torch.as_tensor(values).double(), chain_dim=0, sample_dim=1)
    return found.numpy()


def closeness(estimate: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Compare a map with the ground truth: rank correlation and mean absolute error."""
    return {
        # A constant estimate has no rank correlation.
        "spearman": float(spearmanr(estimate, truth).statistic) if np.ptp(estimate) > 0 else 0.0,
        "mae": float(np.abs(estimate - truth).mean()),
    }
