"""Curvature of the training loss at the given model, from which output covariances follow.

The curvature is the generalised Gauss-Newton matrix (Martens, JMLR 2020) of the weights of linear
and convolutional layers: either the complete matrix, or one block per layer. A block is the
Kronecker product of the second moments of the layer's inputs, and of the gradients with respect to
the layer's outputs (Martens, Grosse, ICML 2015; convolutions: Grosse, Martens, ICML 2016).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, unfold

from skuq._networks import HeldOnDevice
from skuq.files import stored
from skuq.quam._gradient_search import linear_head
from skuq.quam._importance_sampling import gaussians

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


class Use(NamedTuple):
    """Inputs of a layer, and derivatives of the network's outputs by the layer's outputs, by row.

    Shapes: `inputs` (n_rows, n_positions, n_in), where the last input is a constant 1 if the layer
    has a bias; `jacobian` (n_rows, n_outputs, n_positions, n_out), or one row if all are equal.
    """

    inputs: Tensor
    jacobian: Tensor
    is_output: bool = False  # whether the layer's outputs are the network's outputs

    def gradients(self, jacobian: Tensor) -> Tensor:
        """Compute gradients of outputs by the layer's weights, (n_rows, n_outputs, n_out, n_in)."""
        return torch.einsum(
            "nkto,nti->nkoi", jacobian.expand(len(self.inputs), -1, -1, -1), self.inputs
        )


class Layers:
    """Linear and convolutional layers of a module that contain the searched parameters."""

    def __init__(self, module: nn.Module, names: Sequence[str]):
        self.module, self.names = module, [*names]
        self.layers: list[Any] = [module.get_submodule(name) for name in names]

    @classmethod
    def of(cls, module: nn.Module, parameters: Sequence[str], x: Tensor) -> Layers:
        """Select linear and convolutional layers, all of whose weights are in `parameters`."""
        names = [*dict.fromkeys(name.rpartition(".")[0] for name in parameters)]
        suitable = []
        for name in names:
            layer = module.get_submodule(name)
            own = {
                f"{name}.{each}".removeprefix(".")
                for each, _ in layer.named_parameters(recurse=False)
            }
            if own <= {*parameters} and _is_suitable(layer):
                suitable.append(name)
        found = cls(module, suitable)
        with found._recorded() as recorded, torch.no_grad():
            module(x.clone())
        # Some modules, such as attention, use the weights of a layer without calling it.
        called = [name for name, calls in zip(suitable, recorded, strict=True) if calls]
        return cls(module, called)

    @property
    def parameters(self) -> list[str]:
        pairs = zip(self.names, self.layers, strict=True)
        return [
            f"{n}.{k}".removeprefix(".") for n, each in pairs for k, _ in each.named_parameters()
        ]

    def n_weights(self) -> int:
        return sum(each.numel() for layer in self.layers for each in layer.parameters())

    def elements_per_row(self, x: Tensor, *, of_solutions: bool) -> tuple[int, int]:
        """Count outputs, and tensor elements per row in `fit`, or in a search if `of_solutions`."""
        outputs, uses = self.uses(x)
        n, size = outputs.shape[1], 8 * outputs.shape[1]
        for layer, use in zip(self.layers, uses, strict=True):
            n_positions = use.inputs.shape[1]
            size += 3 * use.inputs[0].numel()
            if of_solutions or not use.is_output:
                size += 3 * n * n_positions * len(layer.weight)
            if n_positions > 1:
                size += 2 * n * layer.weight.numel()
        return n, size

    def sizes(self) -> list[float]:
        """Compute the mean square of each layer's weights, excluding biases."""
        return [float(layer.weight.detach().double().square().mean()) for layer in self.layers]

    @torch.enable_grad()
    def uses(self, x: Tensor) -> tuple[Tensor, list[Use]]:
        """Run the module; return its outputs, (n_rows, n_outputs), and the `Use` of each layer."""
        if len(self.layers) == 1 and linear_head(self.module)[0] is self.layers[0]:
            with torch.no_grad():
                outputs = self.module(x.clone())
            same = torch.eye(outputs.shape[1], dtype=x.dtype, device=x.device)[None, :, None]
            return outputs, [self._use(0, [x[:, None]], [same])._replace(is_output=True)]
        with self._recorded() as recorded:
            outputs = self.module(x.clone())
        at = [output for uses in recorded for _, output in uses]
        by_output = [
            torch.autograd.grad(column.sum(), at, retain_graph=True, materialize_grads=True)
            for column in outputs.unbind(1)
        ]
        jacobians = iter([torch.stack(each, 1) for each in zip(*by_output, strict=True)])
        uses = []
        for k, (layer, calls) in enumerate(zip(self.layers, recorded, strict=True)):
            inputs = [_patches(layer, inputs) for inputs, _ in calls]
            uses.append(self._use(k, inputs, [_by_position(layer, next(jacobians)) for _ in calls]))
        return outputs.detach(), uses

    def _use(self, k: int, inputs: list[Tensor], jacobians: list[Tensor]) -> Use:
        joined, constant = torch.cat(inputs, 1), self.layers[k].bias is not None
        return Use(pad(joined, (0, 1), value=1.0) if constant else joined, torch.cat(jacobians, 2))

    @contextmanager
    def _recorded(self) -> Iterator[list[list[tuple[Tensor, Tensor]]]]:
        found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.layers]

        def hook(calls: list[tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
            def of_layer(_layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
                output = output if output.requires_grad else output.detach().requires_grad_()
                calls.append((inputs[0].detach(), output))
                return output.clone()  # a copy, because the next module may alter it in place

            return of_layer

        pairs = zip(self.layers, found, strict=True)
        handles = [layer.register_forward_hook(hook(calls)) for layer, calls in pairs]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()


def _is_suitable(layer: nn.Module) -> bool:
    if isinstance(layer, _CONVOLUTIONS):
        plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear)


def _patches(layer: nn.Module, inputs: Tensor) -> Tensor:
    """Gather the inputs on which each output position depends, (n_rows, n_positions, n_in)."""
    if isinstance(layer, nn.Linear):
        return inputs.reshape(len(inputs), -1, inputs.shape[-1])
    assert isinstance(layer, _CONVOLUTIONS)
    options: tuple[Any, ...] = (layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    if isinstance(layer, nn.Conv1d):  # treat sequences as images of height 1
        inputs = inputs[:, :, None]
        options = tuple((first, *each) for first, each in zip((1, 1, 0, 1), options, strict=True))
    return unfold(inputs, *options).transpose(1, 2)


def _by_position(layer: nn.Module, jacobian: Tensor) -> Tensor:
    """Arrange a jacobian by position, (n_rows, n_outputs, n_positions, n_out)."""
    if isinstance(layer, nn.Linear):
        return jacobian.reshape(*jacobian.shape[:2], -1, jacobian.shape[-1])
    return jacobian.flatten(3).transpose(2, 3)


class Samples(NamedTuple):
    """Training samples: `Use` of each layer, outputs of the network, and sample weights."""

    uses: list[Use]
    outputs: Tensor
    weight: Tensor
    noise_variance: float | None
    regression: bool

    def hessian(self) -> Tensor:
        """Sum the samples' expected Hessians of the loss by the outputs, times sample weights."""
        if self.regression:
            return torch.diag(self.weight @ self._precisions())
        p = self.outputs.softmax(1)
        return torch.diag(self.weight @ p) - (p * self.weight[:, None]).T @ p

    def scaled(self, use: Use) -> Tensor:
        """Multiply each sample's jacobian by L', where L L' is the sample's weighted Hessian."""
        jacobian = use.jacobian.expand(len(self.outputs), -1, -1, -1)
        if self.regression:
            root = (self._precisions() * self.weight[:, None]).sqrt()
        else:
            p = self.outputs.softmax(1)
            jacobian = jacobian - torch.einsum("nk,nkto->nto", p, jacobian)[:, None]
            root = (p * self.weight[:, None]).sqrt()
        return jacobian * root[:, :, None, None]

    def _precisions(self) -> Tensor:
        """Compute the precisions of mean and predicted log variance, (n_rows, n_outputs)."""
        precision = 1 / gaussians(self.outputs, self.noise_variance).variance
        parts = [precision, torch.full_like(precision, 0.5)]
        return torch.stack(parts[: self.outputs.shape[1]], 1)


class Curvature(HeldOnDevice):
    """Posterior precision of the weights, stored as eigenvectors and eigenvalues."""

    #: For each layer, the constant that its bias multiplies: the root mean square of the layer's
    #: inputs instead of 1. The prior of biases thus follows the scale of the inputs.
    units: tuple[float, ...]

    def roots(self, uses: Sequence[Use]) -> Tensor:
        """Compute R, (n_rows, n_outputs, n), so that the output covariance of each row is R R'."""
        return torch.cat([*self._roots(self._in_units(uses))], 2)

    def changes(self, uses: Sequence[Use], g: Tensor) -> list[Tensor]:
        """Compute, by layer, weight changes that move outputs f, of covariance S, to ``f + S g``.

        Shapes: `g` (n_rows, n_models, n_outputs); each change (n_rows, n_models, n_out, n_in).
        """
        return self._with_units(self._changes(self._in_units(uses), g))

    def _in_units(self, uses: Sequence[Use]) -> list[Use]:
        return [
            use if unit == 1 else use._replace(inputs=_last_times(use.inputs, unit))
            for use, unit in zip(uses, self.units, strict=True)
        ]

    def _with_units(self, changes: Iterable[Tensor]) -> list[Tensor]:
        return [_last_times(each, unit) for each, unit in zip(changes, self.units, strict=True)]

    @abstractmethod
    def _roots(self, uses: list[Use]) -> Iterator[Tensor]: ...

    @abstractmethod
    def _changes(self, uses: list[Use], g: Tensor) -> Iterator[Tensor]: ...


def _last_times(inputs: Tensor, unit: float) -> Tensor:
    return torch.cat([inputs[..., :-1], inputs[..., -1:] * unit], -1)


@stored("quam.kronecker-curvature")
@dataclass(frozen=True)
class Kronecker(Curvature):
    """Precision of each layer, in the eigenbases of both factors of its Kronecker product."""

    units: tuple[float, ...]
    inputs: tuple[Tensor, ...]  # (n_in, n_in) by layer, with eigenvectors as columns
    outputs: tuple[Tensor, ...]  # (n_out, n_out) by layer, with eigenvectors as columns
    precision: tuple[Tensor, ...]  # (n_out, n_in) by layer, one value per pair of eigenvectors

    @classmethod
    def of(cls, layers: Layers, samples: Iterable[Samples], prior: Sequence[float]) -> Kronecker:
        """Sum the curvature over batches of samples; `prior` is the prior precision by layer."""
        n = 0.0
        moments: list[list[Any]] = [[0.0, 0.0, 0.0] for _ in layers.layers]
        for batch in samples:
            n += float(batch.weight.sum())
            for use, found in zip(batch.uses, moments, strict=True):
                a = use.inputs
                found[0] += torch.einsum("nti,ntj->ij", a * batch.weight[:, None, None], a)
                if use.is_output:
                    found[1] += batch.hessian()
                else:
                    scaled = batch.scaled(use)
                    found[1] += torch.einsum("nkto,nktp->op", scaled, scaled) / a.shape[1]
                found[2] = a.shape[1]
        units, parts = [], []
        for layer, (inputs, outputs, n_positions), own in zip(
            layers.layers, moments, prior, strict=True
        ):
            inputs, unit = inputs / n, 1.0
            if layer.bias is not None:
                # Root mean square of the inputs; `inputs` contains their second moments.
                unit = float((inputs.diagonal()[:-1].mean() / n_positions).sqrt()) or 1.0
                scale = torch.ones_like(inputs[0])
                scale[-1] = unit
                inputs = inputs * scale * scale[:, None]
            (of_inputs, base), (of_outputs, out) = map(torch.linalg.eigh, (inputs, outputs))
            precision = of_outputs.clip(0)[:, None] * of_inputs.clip(0) + own
            units.append(unit)
            parts.append((base, out, precision))
        return cls(tuple(units), *map(tuple, zip(*parts, strict=True)))

    def _copy_to(self, device: torch.device) -> Kronecker:
        lists = (
            (each.to(device) for each in part)
            for part in (self.inputs, self.outputs, self.precision)
        )
        return Kronecker(self.units, *map(tuple, lists))

    def _roots(self, uses: list[Use]) -> Iterator[Tensor]:
        for use, base, out, precision in zip(
            uses, self.inputs, self.outputs, self.precision, strict=True
        ):
            a, jacobian = use.inputs @ base, use.jacobian @ out
            if a.shape[1] == 1:
                variance = a[:, 0].square() @ (1 / precision).T  # (n_rows, n_out)
                yield jacobian[:, :, 0] * variance.sqrt()[:, None]
            else:
                gradients = Use(a, jacobian).gradients(jacobian)
                yield (gradients / precision.sqrt()).flatten(2)

    def _changes(self, uses: list[Use], g: Tensor) -> Iterator[Tensor]:
        for use, base, out, precision in zip(
            uses, self.inputs, self.outputs, self.precision, strict=True
        ):
            along = torch.einsum("nmk,nkto->nmto", g, use.jacobian.expand(len(g), -1, -1, -1) @ out)
            yield out @ (Use(use.inputs @ base, along).gradients(along) / precision) @ base.T


@stored("quam.exact-curvature")
@dataclass(frozen=True)
class Exact(Curvature):
    """Quotient of posterior and prior precision: 1 + `eigenvalues` along `base` columns, else 1."""

    units: tuple[float, ...]
    scales: tuple[float, ...]  # standard deviation of each layer's prior
    base: Tensor  # (n_weights, n_eigenvalues)
    eigenvalues: Tensor

    @classmethod
    def of(cls, layers: Layers, samples: Iterable[Samples], prior: Sequence[float]) -> Exact:
        """Do as `Kronecker.of`: decompose the jacobian J of all samples or, if smaller, J' J."""
        batches = [*samples]
        n = sum(float(batch.weight.sum()) for batch in batches)
        units = []
        for k, layer in enumerate(layers.layers):
            square = sum(
                float(torch.einsum("nti,n->", b.uses[k].inputs[..., :-1].square(), b.weight))
                / b.uses[k].inputs[..., :-1][0].numel()
                for b in batches
            )
            units.append((square / n) ** 0.5 or 1.0 if layer.bias is not None else 1.0)
        scales = tuple(own**-0.5 for own in prior)
        empty = cls(tuple(units), scales, torch.empty(0), torch.empty(0))
        rows = (
            empty._jacobian(
                [use._replace(jacobian=batch.scaled(use)) for use in empty._in_units(batch.uses)]
            )
            for batch in batches
        )
        flat = [part.flatten(0, 1) for part in rows]
        if sum(map(len, flat)) < flat[0].shape[1]:
            _, singular, base = torch.linalg.svd(torch.cat(flat), full_matrices=False)
            return cls(tuple(units), scales, base.T.contiguous(), singular.square())
        eigenvalues, base = torch.linalg.eigh(sum(part.T @ part for part in flat))
        return cls(tuple(units), scales, base, eigenvalues.clip(0))

    def _copy_to(self, device: torch.device) -> Exact:
        return Exact(self.units, self.scales, self.base.to(device), self.eigenvalues.to(device))

    def _jacobian(self, uses: list[Use]) -> Tensor:
        parts = [
            use.gradients(use.jacobian).flatten(2) * scale
            for use, scale in zip(uses, self.scales, strict=True)
        ]
        return torch.cat(parts, 2)

    def _roots(self, uses: list[Use]) -> Iterator[Tensor]:
        jacobian = self._jacobian(uses)
        along = jacobian @ self.base
        yield along / (1 + self.eigenvalues).sqrt()
        if self.base.shape[1] < len(self.base):  # add the directions in which the loss is flat
            yield jacobian - along @ self.base.T

    def _changes(self, uses: list[Use], g: Tensor) -> Iterator[Tensor]:
        rows = g @ self._jacobian(uses)
        along = rows @ self.base
        moved = rows - (along * (self.eigenvalues / (1 + self.eigenvalues))) @ self.base.T
        sizes = [use.inputs.shape[2] * use.jacobian.shape[3] for use in uses]
        for part, use, scale in zip(torch.split(moved, sizes, 2), uses, self.scales, strict=True):
            yield (part * scale).reshape(*g.shape[:2], -1, use.inputs.shape[2])
