"""MNIST 3 against 8: a small network with the bounds of auto_LiRPA, as in `benchmarks.gpc_pixels`.

Images and radii are the same. For each radius: the share of test images for which the optimised
linear bounds (alpha-CROWN, Xu et al. 2021) prove that the network is correct in the whole Euclidean
ball, and the share that stays correct under projected gradient descent. Unlike in `gpc_pixels`,
balls are not clipped to [0, 1], because these bounds do not support the intersection of a ball and
a box. Install auto_LiRPA from its repository; the version on the package index needs PyTorch below
1.13. Run::

    python -m benchmarks.gpc_network --record gpc_network
"""

import argparse
import time

import numpy as np
import torch
from auto_LiRPA import BoundedModule, BoundedTensor, __version__
from auto_LiRPA.perturbations import PerturbationLpNorm
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn

from benchmarks.gpc import figures
from benchmarks.gpc_pixels import RADII, load
from benchmarks.harness import finish, parser, set_threads
from skuq.models import adopt

PROVEN, ATTACK = "alpha-CROWN", "projected gradient"
N_STEPS = 50


def margin_network(X: np.ndarray, y: np.ndarray, args: argparse.Namespace) -> nn.Module:
    """Train a network with two hidden layers that outputs the logit of the second class."""
    network = MLPClassifier(args.hidden, max_iter=500, random_state=args.seed).fit(X, y)
    return adopt(network).module[:-1].float()


def attacked(network: nn.Module, X: Tensor, sign: Tensor, radius: float) -> Tensor:
    """Find the lowest margin in each ball by projected gradient descent."""
    delta, lowest = torch.zeros_like(X), torch.full((len(X),), torch.inf)
    for _ in range(N_STEPS):
        delta.requires_grad_()
        margin = sign * network(X + delta)[:, 0]
        lowest = torch.minimum(lowest, margin.detach())
        (gradient,) = torch.autograd.grad(margin.sum(), delta)
        step = gradient / gradient.norm(dim=1, keepdim=True).clip(1e-12)
        delta = (delta - 0.1 * radius * step).detach()
        delta *= (radius / delta.norm(dim=1, keepdim=True).clip(1e-12)).clip(max=1)
    return lowest


def proven(network: nn.Module, X: Tensor, sign: Tensor, radius: float) -> Tensor:
    """Compute lower bounds of the margin in each ball."""
    bounded = BoundedModule(network, torch.empty_like(X), device="cpu")
    ball = BoundedTensor(X, PerturbationLpNorm(norm=2, eps=radius))
    lower, upper = bounded.compute_bounds(x=(ball,), method="CROWN-Optimized")
    return torch.where(sign > 0, lower[:, 0], -upper[:, 0]).detach()


def measured(args: argparse.Namespace, n_features: int) -> list[dict]:
    """Measure all figures for one number of pixels."""
    X, y, X_test, y_test = load(args, n_features)
    network = margin_network(X, y, args)
    signs = torch.as_tensor(np.where(y_test == y.max(), 1.0, -1.0)).float()
    images = torch.as_tensor(X_test).float()
    with torch.no_grad():
        accuracy = (signs * network(images)[:, 0] > 0).float().mean().item()
    found = figures(f"{n_features} pixels", "network", len(images), accuracy=accuracy)
    images, signs = images[: args.n_test], signs[: args.n_test]
    seconds = 0.0
    for radius in RADII:
        start = time.process_time()
        safe = proven(network, images, signs, radius) > 0
        seconds += time.process_time() - start
        left = attacked(network, images, signs, radius) > 0
        if (safe & ~left).any():
            raise AssertionError("An attack succeeded at a point that is proven to be safe.")
        for method, flags in ((PROVEN, safe), (ATTACK, left)):
            share = flags.float().mean().item()
            name = f"{method} {n_features}"
            found += figures(name, f"r{radius:g}", len(images), certified=share)
    seconds /= len(images)
    return found + figures(f"{n_features} pixels", "network", len(images), cpu_seconds=seconds)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    arguments.add_argument("--n-train", type=int, default=500)
    arguments.add_argument("--n-test", type=int, default=60)
    args = arguments.parse_args()
    set_threads(args)
    args.auto_lirpa = __version__
    finish("gpc_network", args, [each for n in (196, 784) for each in measured(args, n)])


if __name__ == "__main__":
    main()
