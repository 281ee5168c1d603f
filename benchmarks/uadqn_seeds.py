"""Time of a stacked update of several seeds' agents, relative to an update of one agent.

Several seeds are trained in separate processes, each on its own core. The alternative is to stack
their networks, so that function calls are shared. This benchmark times only the updates, in CPU
time per update and seed (environments are stepped one by one in both cases). Stacking is worthwhile
if this time decreases by more than the loss by parallel processes. The networks are those of
CartPole (two hidden layers of 100) and of MinAtar's games after the features (1,024 inputs, one
hidden layer of 128), three for each seed as in UADQN. Weights of the stacked seeds are compared
with those of seeds that are updated separately.
"""

import time
from itertools import cycle, islice, pairwise

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import finish, parser, record, set_threads
from skuq.uadqn import bellman_targets, quantile_levels, quantile_loss_gradient

N_NETWORKS, BATCH, N_QUANTILES, LEARNING_RATE, DISCOUNT, PULL = 3, 32, 50, 1e-4, 0.99, 1e-4
NETWORKS = {"cartpole": ((4, 100, 100), 2), "minatar": ((1024, 128), 6)}  # widths, actions


class StackedLinear(torch.nn.Module):
    """Stacked linear layers of several networks, as in UADQN."""

    def __init__(self, n_networks: int, n_in: int, n_out: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(n_networks, n_in, n_out))
        self.bias = torch.nn.Parameter(torch.empty(n_networks, 1, n_out))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, inputs, self.weight)


class StackedAgents:
    """Networks and optimiser of several seeds, with axes (network, seed, ...)."""

    def __init__(self, seeds: list[int], widths: tuple[int, ...], n_actions: int):
        self.n_seeds, self.n_actions = len(seeds), n_actions
        self.networks = self._like(N_NETWORKS * len(seeds), widths)
        self.target = self._like(len(seeds), widths)
        for position, seed in enumerate(seeds):
            self._draw(position, seed)
        self.parameters = list(self.networks.parameters())
        self.anchors = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer = torch.optim.Adam(self.parameters, LEARNING_RATE, eps=1e-8, fused=True)
        self.levels = quantile_levels(N_QUANTILES)

    def _like(self, n_networks: int, widths: tuple[int, ...]) -> torch.nn.Sequential:
        layers = []
        for n_in, n_out in pairwise([*widths, self.n_actions * N_QUANTILES]):
            layers += [StackedLinear(n_networks, n_in, n_out), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers[:-1])

    @torch.no_grad()
    def _draw(self, position: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for own, target in zip(self.networks.parameters(), self.target.parameters(), strict=True):
            drawn = torch.randn((N_NETWORKS, *own.shape[1:]), generator=generator) / 30
            own.view(N_NETWORKS, self.n_seeds, *own.shape[1:])[:, position] = drawn
            target[position] = drawn[0]

    def update(self, observations: Tensor, actions: Tensor, rewards: Tensor, ahead: Tensor) -> None:
        """Update the networks of each seed; arguments have shape (n_seeds, batch, ...)."""
        for parameter in self.parameters:
            parameter.grad = None
        shape = self.n_seeds * BATCH, self.n_actions, N_QUANTILES
        with torch.no_grad():
            returns = self.target(ahead).view(shape)
            ends = torch.zeros(len(returns), 1)
            targets = bellman_targets(returns, rewards.view(-1, 1), ends, DISCOUNT)
        inputs = observations.expand(N_NETWORKS, -1, -1, -1).flatten(0, 1)
        quantiles = self.networks(inputs).view(N_NETWORKS, *shape)
        taken = actions.view(1, -1, 1, 1).expand(N_NETWORKS, -1, 1, N_QUANTILES)
        chosen = quantiles.gather(2, taken).squeeze(2)
        slope = quantile_loss_gradient(chosen, targets, self.levels) / BATCH
        torch.autograd.backward(chosen, slope)
        with torch.no_grad():
            for parameter, anchor in zip(self.parameters, self.anchors, strict=True):
                parameter.grad.add_(parameter, alpha=PULL).sub_(anchor, alpha=PULL)
        self.optimizer.step()

    def weights_of(self, position: int) -> Tensor:
        """Return all weights of one seed's networks."""
        shaped = [p.view(N_NETWORKS, self.n_seeds, -1)[:, position] for p in self.parameters]
        return torch.cat(shaped, dim=1).detach()


def batches(seeds: list[int], width: int, n_actions: int, n: int) -> list[tuple[Tensor, ...]]:
    """Draw batches for each seed, independently of the other seeds."""

    def of(seed: int) -> list[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(1_000 + seed)

        def normal(*shape):
            return torch.randn(shape, generator=generator)

        def actions():
            return torch.randint(n_actions, (BATCH,), generator=generator)

        return [
            (normal(BATCH, width), actions(), normal(BATCH), normal(BATCH, width)) for _ in range(n)
        ]

    return [
        tuple(torch.stack(each) for each in zip(*parts, strict=True))
        for parts in zip(*map(of, seeds), strict=True)
    ]


def timed(agents: StackedAgents, data: list[tuple[Tensor, ...]], n: int) -> float:
    """Measure CPU milliseconds per update and seed."""
    start = time.process_time()
    for batch in islice(cycle(data), n):
        agents.update(*batch)
    return 1e3 * (time.process_time() - start) / (n * agents.n_seeds)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--stacked", type=int, nargs="+", default=[1, 2, 4, 8])
    arguments.add_argument("--updates", type=int, default=50, help="of each seed, in each round")
    arguments.add_argument("--rounds", type=int, default=10)
    args = arguments.parse_args()
    set_threads(args)
    records = []
    for dataset, (widths, n_actions) in NETWORKS.items():
        seeds = {n: list(range(n)) for n in args.stacked}
        data = {n: batches(own, widths[0], n_actions, 20) for n, own in seeds.items()}
        agents = {n: StackedAgents(own, widths, n_actions) for n, own in seeds.items()}
        rounds = [
            {n: timed(agents[n], data[n], args.updates) for n in agents} for _ in range(args.rounds)
        ]
        for n in agents:
            times = np.array([each[n] for each in rounds])
            method = f"stacked_{n}"
            apart = (agents[n].weights_of(0) - agents[args.stacked[0]].weights_of(0)).abs().max()
            found = {
                "update_ms_per_seed": times,
                "times_alone": times / [each[args.stacked[0]] for each in rounds],
                "largest_difference_of_weights": np.array([apart.item()]),
            }
            for metric, values in found.items():
                value, spread = float(np.median(values)), values.std()
                records.append(record(method, dataset, metric, value, args.rounds, spread))
                print(f"{dataset:10s} {method:10s} {metric:30s} {value:.3g} +- {spread:.2g}")
    finish("uadqn_seeds", args, records)


if __name__ == "__main__":
    main()
