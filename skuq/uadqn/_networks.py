"""Stacked layers, which evaluate several networks of the same shape in one batch.

With weights of shape (n_members, inputs, outputs), the batched products of the forward and the
backward pass need no transposed copies.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from skuq.uadqn._quantiles import prior_scale, quantile_levels, quantile_loss

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def _orthogonal(shape: tuple[int, ...], gains: Sequence[float]) -> Tensor:
    """Draw orthogonal weights of one layer, of shape (n_members, *shape)."""
    return torch.stack([nn.init.orthogonal_(torch.empty(shape), gain) for gain in gains])


class StackedLinear(nn.Module):
    """Linear layers of several networks, evaluated together by one batched product."""

    def __init__(self, in_features: int, out_features: int, gains: Sequence[float]):
        super().__init__()
        weights = _orthogonal((out_features, in_features), gains)
        self.weight = nn.Parameter(weights.transpose(1, 2).contiguous())
        self.bias = nn.Parameter(torch.zeros(len(gains), 1, out_features))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (n_samples, in), or (n_members, n_samples, in), to (n_members, n_samples, out)."""
        if inputs.ndim == 2:  # all networks share the inputs
            inputs = inputs.expand(len(self.weight), *inputs.shape)
        return torch.baddbmm(self.bias, inputs, self.weight)


class StackedConv2d(nn.Module):
    """Filters of several networks, applied to the same patches of images; stride 1, no padding."""

    patches: Tensor

    def __init__(
        self,
        image_shape: tuple[int, ...],  # height, width, channels
        out_channels: int,
        kernel_size: int,
        gains: Sequence[float],
    ):
        super().__init__()
        shape = (out_channels, image_shape[-1], kernel_size, kernel_size)
        self.weight = nn.Parameter(_orthogonal(shape, gains))
        self.bias = nn.Parameter(torch.zeros(len(gains), out_channels))
        cells = torch.arange(math.prod(image_shape)).view(image_shape)
        patches = cells.unfold(0, kernel_size, 1).unfold(1, kernel_size, 1)
        # For each element of each patch, its position in the flattened image; the shape is
        # (h' * w' * in * k * k). Copying by position is faster than copying with `unfold`.
        self.register_buffer("patches", patches.flatten(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map (n_samples, h, w, in) to patches (n_samples * h' * w', in * k * k)."""
        # `evaluate_layers` multiplies the patches by the filters. The product has the memory layout
        # that the next layer needs; a convolution's result and gradient would have to be copied.
        return images.flatten(1).index_select(1, self.patches).view(-1, self.weight[0, 0].numel())


def stacked_mlp(
    sizes: Sequence[int], gains: Sequence[float], activation: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Stack multilayer perceptrons: linear layers with an activation between them."""
    # Inputs: (n_samples, in) or (n_members, n_samples, in); outputs: (n_members, n_samples, out).
    if any(True for _ in activation().parameters()):
        raise ValueError(
            f"activation_fn={activation.__name__} has trainable weights, which the networks would "
            "share; use an activation without weights, such as LeakyReLU."
        )
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        layers += [StackedLinear(n_in, n_out, gains), activation()]
    return nn.Sequential(*layers[:-1])


Layers = list[tuple[Tensor, Tensor]]  # weights (n_members, in, out), biases (n_members, 1, out)


def as_layers(parameters: Sequence[Tensor]) -> Layers:
    """Pair weights with biases; weights of a convolution become matrices that act on patches."""
    pairs = zip(parameters[::2], parameters[1::2], strict=True)
    return [(w, b) if w.ndim == 3 else (w.view(*w.shape[:2], -1).mT, b[:, None]) for w, b in pairs]


def evaluate_layers(
    inputs: Tensor, parameters: Sequence[Tensor], activation: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Evaluate stacked networks; return the inputs of each layer, and the outputs."""
    layers = as_layers(parameters)
    reached = [inputs.expand(len(layers[0][0]), -1, -1)]
    for i, (weight, bias) in enumerate(layers):
        if i > 0:
            # A convolution returns one row for each patch; the next layer needs one per sample.
            shape = len(weight), reached[i][0].numel() // weight.shape[1], weight.shape[1]
            reached[i] = activation(reached[i]).view(shape)
        reached.append(torch.baddbmm(bias, reached[i], weight))
    return reached


class FusedUpdate:
    """Backpropagation and fused Adam for ReLU networks, without autograd."""

    def __init__(self, optimizer: torch.optim.Optimizer, anchors: Sequence[Tensor]):
        # Collect the tensors once: collecting takes longer than evaluating two small layers.
        self.state, self.group = optimizer.state, optimizer.param_groups[0]
        parameters = self.group["params"]
        weights, gradients = [p.detach() for p in parameters], [p.grad for p in parameters]
        names = "exp_avg", "exp_avg_sq", "step"
        moments, squares, steps = ([self.state[p][name] for p in parameters] for name in names)
        self.adam: Any = weights, gradients, moments, squares, [], steps
        self.layers, self.gradients = as_layers(weights), as_layers(gradients)
        self.pulled = [g[1:] for g in gradients], [w[1:] for w in weights], list(anchors)

    def is_of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimiser's weights and moments are still in the same memory."""
        last = optimizer.param_groups[0]["params"][-1]
        return self.adam[0][-1].data_ptr() == last.data_ptr() and optimizer.state is self.state

    def __call__(self, reached: list[Tensor], slope: Tensor, pull: float) -> None:
        """Update the networks from the layers' inputs and the loss's gradient at the outputs."""
        layers = zip(reached, self.layers, self.gradients, strict=True)
        for below, (weight, _), (of_weight, of_bias) in reversed(list(layers)):
            slope = slope.view(len(weight), -1, weight.shape[2])
            torch.bmm(below.mT, slope, out=of_weight)
            torch.sum(slope, 1, keepdim=True, out=of_bias)
            if below is not reached[0]:
                slope = torch.bmm(slope, weight.mT)
                torch.ops.aten.threshold_backward.grad_input(slope, below, 0, grad_input=slope)
        if pull:
            # Two in-place operations are faster than allocating the difference.
            gradients, weights, anchors = self.pulled
            torch._foreach_add_(gradients, weights, alpha=pull)
            torch._foreach_sub_(gradients, anchors, alpha=pull)
        options = {name: self.group[name] for name in ("lr", "weight_decay", "eps", "maximize")}
        beta1, beta2 = self.group["betas"]
        torch._foreach_add_(self.adam[-1], 1)
        torch._fused_adam_(*self.adam, beta1=beta1, beta2=beta2, amsgrad=False, **options)


def weights_of(module: nn.Module) -> list[Tensor]:
    """Return the trainable weights of a module, without biases, to estimate a prior's scale."""
    named = module.named_parameters()
    return [p for name, p in named if p.requires_grad and not name.endswith("bias")]


# Standard deviation of agents' initial biases, relative to that of the weights. With 0, all
# networks agree where observations are zero; with 1, exploration takes too long on the windy cliff.
AGENT_BIASES = 0.1


@torch.no_grad()
def draw_biases(
    module: nn.Module, networks: slice = slice(None), *, relative_spread: float = 1.0
) -> None:
    """Draw biases with mean 0 and std `relative_spread` times that of their layer's weights."""
    # Anchors are draws from the prior of all parameters (Pearce et al., 2020, Sec. 3), and a bias
    # is the weight of a constant input. If biases were 0, all networks would agree at inputs of 0,
    # and all kinks of ReLU networks would stay there, because no gradient could move them.
    parameters = dict(module.named_parameters())
    for name, bias in parameters.items():
        weight = parameters.get(name.removesuffix("bias") + "weight")
        if name.endswith("bias") and weight is not None and bias.requires_grad:
            nn.init.normal_(bias[networks], std=relative_spread * float(weight[networks].std()))


class QuantileNetworks(nn.Module):
    """Quantile networks for tabular data, in float64, anchored at their random initial weights."""

    def __init__(
        self,
        n_members: int,
        sizes: Sequence[int],
        prior_gain: float,
        activation: str,
        *,
        n_varying: int | None = None,  # number of inputs that vary in training; None: all
    ):
        super().__init__()
        gains = [prior_gain] * n_members
        self.networks = stacked_mlp(sizes, gains, ACTIVATIONS[activation]).double()
        if n_varying is not None:
            # With more inputs than units, orthogonal initialisation divides the gain among the
            # inputs: only inputs that vary in training should share the gain.
            with torch.no_grad():
                first = cast(StackedLinear, self.networks[0])
                first.weight.mul_((max(sizes[:2]) / max(n_varying, sizes[1])) ** 0.5)
        draw_biases(self.networks)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (n_samples, n_features) to (n_samples, n_members, n_quantiles)."""
        outputs: Tensor = self.networks(inputs)
        return outputs.transpose(0, 1)  # skorch and `evaluate` need the samples on the first axis


class AnchoredLoss(nn.Module):
    """Quantile loss of all networks plus the squared distance of each network from its anchor."""

    # Minima from independent initial weights are approximate posterior samples (randomised MAP
    # sampling); the sum of the losses trains each network independently.

    def __init__(self, module: QuantileNetworks, noise_scale: float, n_samples: float):
        super().__init__()
        self.trained = list(module.parameters())
        self.anchors = [p.detach().clone() for p in self.trained]
        variance = prior_scale([w.detach() for w in weights_of(module)]) ** 2
        self.strength = noise_scale**2 / (variance * n_samples)
        n_quantiles = self.trained[-1].shape[-1]
        self.levels = quantile_levels(n_quantiles, dtype=variance.dtype, device=variance.device)

    def forward(self, quantiles: Tensor, targets: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Compute the loss of a batch; each sample has one target, and weights have mean 1."""
        losses = quantile_loss(quantiles.transpose(0, 1), targets, self.levels)
        data = (losses @ batch["weight"]).sum() / len(targets)
        pairs = zip(self.trained, self.anchors, strict=True)
        pulls = [(p - anchor).square().flatten(1).sum(1) for p, anchor in pairs]
        return data + self.strength @ torch.stack(pulls).sum(0)
