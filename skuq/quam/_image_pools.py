"""Generate pools of images and sequences by altering training inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F


def _pick(X: NDArray[Any], n: int, random: np.random.RandomState) -> Tensor:
    """Draw n inputs with replacement, (n, channels, height, width); sequences have height 1."""
    picked = torch.tensor(np.asarray(X[random.randint(len(X), size=n)], dtype=np.float32))
    return picked if picked.ndim == 4 else picked.unsqueeze(2)


def _of_images(
    make: Callable[[NDArray[Any], int, np.random.RandomState], Tensor],
) -> Callable[[Any, int, np.random.RandomState], NDArray[Any]]:
    """Wrap `make`: its results get the shape and dtype of inputs in X (float32 for integers)."""

    def made(X: Any, n: int, random: np.random.RandomState) -> NDArray[Any]:
        X = np.asarray(X)
        pool = make(X, n, random).numpy().reshape(n, *X.shape[1:])
        return pool.astype(X.dtype if X.dtype.kind == "f" else np.float32)

    return made


def _background(X: NDArray[Any], random: np.random.RandomState) -> Tensor:
    """Compute the median of each channel over some inputs, (channels, 1, 1)."""
    some = _pick(X, min(len(X), 500), random)
    return some.transpose(0, 1).flatten(1).median(dim=1).values[:, None, None]


def _sampled_at(images: Tensor, grid: Tensor, background: Tensor) -> Tensor:
    inside = F.grid_sample(images - background, grid, align_corners=False)
    return inside + background


def _moved(X: NDArray[Any], n: int, random: np.random.RandomState) -> Tensor:
    images = _pick(X, n, random)
    angle = random.uniform(0, 2 * np.pi, size=n) if images.shape[2] > 1 else np.zeros(n)
    scale, shear = random.uniform(0.6, 1.3, size=(2, n)), random.uniform(-0.5, 0.5, size=n)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    stretch = np.array([[scale[0], shear], [np.zeros(n), scale[1]]])
    linear = np.einsum("ijn,jkn->nik", turn, stretch)
    offset = random.uniform(-0.2, 0.2, size=(n, 2, 1))
    theta = torch.tensor(np.concatenate([linear, offset], axis=2), dtype=torch.float32)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    if images.shape[2] == 1:
        grid[..., 1] = 0  # a sequence has no height
    return _sampled_at(images, grid, _background(X, random))


def _smooth(n: int, size: Sequence[int], random: np.random.RandomState) -> Tensor:
    """Draw smooth random fields of about unit variance, (n, 1, height, width)."""
    coarse = [max(1, side // 4) for side in size]
    field = torch.tensor(random.normal(size=(n, 1, *coarse)), dtype=torch.float32)
    return F.interpolate(field, size=list(size), mode="bicubic", align_corners=False)


def _warped(X: NDArray[Any], n: int, random: np.random.RandomState) -> Tensor:
    images = _pick(X, n, random)
    size = images.shape[2:]
    still = torch.eye(2, 3).expand(n, 2, 3)
    grid = F.affine_grid(still, list(images.shape), align_corners=False)
    shift = torch.cat([_smooth(n, size, random) for _ in range(2)], dim=1)
    grid = grid + 0.3 * shift.permute(0, 2, 3, 1)
    if size[0] == 1:
        grid[..., 1] = 0
    return _sampled_at(images, grid, _background(X, random))


def _flipped_axes(n: int, random: np.random.RandomState) -> Tensor:
    return torch.tensor(random.uniform(size=(n, 1, 1, 1)) < 0.5)


def _halves(X: NDArray[Any], n: int, random: np.random.RandomState) -> Tensor:
    first, second = _pick(X, n, random), _pick(X, n, random)
    height, width = first.shape[2:]
    right = torch.arange(width)[None, None, None] >= width // 2
    lower = torch.arange(height)[None, None, :, None] >= height // 2
    upright = _flipped_axes(n, random) if height > 1 else torch.zeros(n, 1, 1, 1, dtype=torch.bool)
    return torch.where(torch.where(upright, lower, right), second, first)


def _overlaid(X: NDArray[Any], n: int, random: np.random.RandomState) -> Tensor:
    return torch.maximum(_pick(X, n, random), _pick(X, n, random))


def _erased(X: NDArray[Any], n: int, random: np.random.RandomState) -> Tensor:
    images = _pick(X, n, random)
    height, width = images.shape[2:]
    start, length = random.uniform(0, 0.65, size=n), random.uniform(0.2, 0.45, size=n)
    first, last = (torch.tensor(v)[:, None, None, None] for v in (start, start + length))
    along = torch.arange(width)[None, None, None] / width
    down = torch.arange(height)[None, None, :, None] / height
    upright = _flipped_axes(n, random) if height > 1 else torch.zeros(n, 1, 1, 1, dtype=torch.bool)
    at = torch.where(upright, down, along)
    return torch.where((at >= first) & (at < last), _background(X, random), images)


def _inverted(X: NDArray[Any], n: int, random: np.random.RandomState) -> Tensor:
    images = _pick(X, n, random)
    return images.amin((0, 2, 3), keepdim=True) + images.amax((0, 2, 3), keepdim=True) - images


def _patches(X: NDArray[Any], n: int, random: np.random.RandomState) -> Tensor:
    images = _pick(X, n, random)
    height, width = images.shape[2:]
    rows, columns = (max(1, min(4, side)) for side in (height, width))
    tall, wide = height // rows, width // columns
    inner = images[:, :, : rows * tall, : columns * wide]
    pieces = F.unfold(inner, (tall, wide), stride=(tall, wide))
    order = torch.tensor(np.argsort(random.uniform(size=(n, 1, rows * columns)), axis=2))
    pieces = pieces.take_along_dim(order.expand_as(pieces), dim=2)
    size = (rows * tall, columns * wide)
    images[:, :, : size[0], : size[1]] = F.fold(pieces, size, (tall, wide), stride=(tall, wide))
    return images


def _noise(X: NDArray[Any], n: int, random: np.random.RandomState) -> Tensor:
    some = _pick(X, n, random)
    low, high = some.amin((0, 2, 3), keepdim=True), some.amax((0, 2, 3), keepdim=True)
    field = torch.cat([_smooth(n, some.shape[2:], random) for _ in range(some.shape[1])], dim=1)
    least, most = field.amin((2, 3), keepdim=True), field.amax((2, 3), keepdim=True)
    return low + (high - low) * (field - least) / (most - least).clamp_min(1e-6)


KINDS = {
    "moved": _of_images(_moved),
    "warped": _of_images(_warped),
    "halves": _of_images(_halves),
    "overlaid": _of_images(_overlaid),
    "erased": _of_images(_erased),
    "inverted": _of_images(_inverted),
    "patches": _of_images(_patches),
    "noise": _of_images(_noise),
}
