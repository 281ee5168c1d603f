"""Architectures for rows and images, output layers of adopted networks, and the weighted loss."""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.files import stored


def linear_layer(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Create a linear layer with parameters of shapes (n_out, n_in) and (n_out,).

    torch's global random state is not changed. `torch.nn.utils.skip_init` is not used, because it
    imports SymPy, which is slow.
    """
    n_out, n_in = weight.shape
    with torch.random.fork_rng(devices=[]):
        layer = nn.Linear(n_in, n_out, bias=bias is not None, dtype=weight.dtype)
    layer.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return layer


def is_chain(module: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether a module is an `nn.Sequential` that does not override `forward`."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def part_of_chain(chain: nn.Sequential, part: slice) -> nn.Sequential:
    """Slice an `nn.Sequential` into a plain `nn.Sequential`, in which layers keep their names."""
    return nn.Sequential(OrderedDict(list(chain._modules.items())[part]))


class MLP(nn.Sequential):
    """Fully connected network with ReLU activations."""

    def __init__(
        self,
        n_features: int,
        n_outputs: int,
        hidden_sizes: Sequence[int] = (100,),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ):
        layers: list[nn.Module] = []
        width = n_features
        for units in hidden_sizes:
            layers.append(nn.Linear(width, units))
            if batch_norm:
                layers.append(nn.BatchNorm1d(units))
            layers.append(nn.ReLU())
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
            width = units
        super().__init__(*layers, nn.Linear(width, n_outputs))


class LeNet(nn.Module):
    """LeNet-5 with max-pooling and ReLU, as used for MNIST in the QUAM paper.

    Inputs are flat or have `image_shape` (channels, height, width), of at least 16 x 16 pixels.
    """

    def __init__(
        self,
        n_outputs: int = 10,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        dropout: float = 0.2,
    ):
        super().__init__()
        channels, height, width = image_shape
        self.image_shape = image_shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
        )
        # Each 5x5 convolution shortens a side by 4 pixels, and each pooling halves the side.
        flat = 16 * math.prod(((side - 4) // 2 - 4) // 2 for side in (height, width))
        self.classifier = nn.Sequential(
            nn.Linear(flat, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(84, n_outputs),
        )

    def forward(self, X: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(X.reshape(-1, *self.image_shape)))
        return logits


class TabularNet(nn.Module):
    """Network for tables, with learned embeddings of categorical columns.

    `categories` maps the position of a column to its number of levels. The column contains codes
    0 .. n_levels - 1; all other values, such as -1 for "missing", share one additional embedding.
    """

    def __init__(
        self,
        n_features: int,
        n_outputs: int,
        categories: Mapping[int, int],
        hidden_sizes: Sequence[int] = (64, 32),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ):
        super().__init__()
        self.categorical = columns = sorted(categories)
        self.numeric = [i for i in range(n_features) if i not in categories]
        self.levels = [categories[column] for column in columns]
        # Rule of thumb for the width of embeddings: half the number of levels, at most 50.
        widths = [min(50, (levels + 2) // 2) for levels in self.levels]
        sizes = zip(self.levels, widths, strict=True)
        self.embeddings = nn.ModuleList(nn.Embedding(n + 1, width) for n, width in sizes)
        n_inputs = len(self.numeric) + sum(widths)
        self.mlp = MLP(n_inputs, n_outputs, hidden_sizes, dropout, batch_norm)

    def forward(self, X: Tensor) -> Tensor:
        parts = [X[:, self.numeric]]
        columns = zip(self.categorical, self.levels, self.embeddings, strict=True)
        for column, levels, embedding in columns:
            codes = X[:, column].long()
            known = (codes >= 0) & (codes < levels)
            parts.append(embedding(torch.where(known, codes, levels)))
        out: Tensor = self.mlp(torch.cat(parts, dim=-1))
        return out


class ScaledLogits(nn.Module):
    """Multiply logits by a fixed factor, the inverse of a temperature."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, X: Tensor) -> Tensor:
        return X * self.factor


@stored("networks.binary-logits", fields={})
class BinaryLogits(nn.Module):
    """Convert a binary classifier's single logit to two logits that give the same probabilities."""

    def forward(self, logit: Tensor) -> Tensor:
        logit = logit.reshape(-1, 1)
        return torch.cat([torch.zeros_like(logit), logit], dim=-1)


class Columns(nn.Module):
    """Reorder the outputs."""

    def __init__(self, order: Sequence[int]):
        super().__init__()
        self.order = [int(column) for column in order]

    def forward(self, X: Tensor) -> Tensor:
        return X[..., self.order]


class LogitsOf(nn.Module):
    """Extract logits from a network's output: a tensor, or "logits" of a dictionary or object."""

    def forward(self, outputs: Any) -> Any:
        return outputs if isinstance(outputs, Tensor) else self.find(outputs)

    @staticmethod
    def find(outputs: Any) -> Tensor | None:
        """Return the tensor named "logits" in a dictionary or an object, or None."""
        is_mapping = isinstance(outputs, Mapping)
        found = outputs.get("logits") if is_mapping else getattr(outputs, "logits", None)
        return found if isinstance(found, Tensor) else None


class LogProbabilities(nn.Module):
    """Convert probabilities to logits: their logarithms."""

    def forward(self, proba: Tensor) -> Tensor:
        return torch.log(proba + torch.finfo(proba.dtype).tiny)


@stored("networks.affine", fields={"factor": list[float], "shift": list[float]})
class Affine(nn.Module):
    """Multiply each output by a fixed factor and add a fixed shift."""

    factor: Tensor
    shift: Tensor

    def __init__(self, factor: list[float], shift: list[float]):
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor, dtype=torch.float64))
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float64))

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs * self.factor + self.shift


class WeightedLoss(nn.Module):
    """Average `loss` times "weight" over a batch; the weights of all samples have mean 1."""

    def __init__(self, loss: nn.Module):
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Any, targets: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        losses: Tensor = self.loss(outputs, targets)
        return (batch["weight"].to(losses) * losses).sum() / len(losses)


def mean_weight_one(weight: NDArray[Any]) -> NDArray[Any]:
    """Rescale weights to mean 1 over all samples; batches then count by their total weight."""
    return weight / (weight.mean() or 1.0)
