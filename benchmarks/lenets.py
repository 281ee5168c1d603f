"""The QUAM paper's trained LeNets, and images scaled as in their training. Not a script."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.data_files import load_npz
from skuq._networks import LeNet

LAYERS = {
    "first_layer": "features.0",
    "second_layer.2": "features.3",
    "projection.3": "classifier.0",
    "projection.5": "classifier.2",
    "out": "classifier.5",
}
N_TRAIN = 50_000  # the other 10,000 images were the authors' validation set
N_FEATURE_LAYERS = 7  # convolutions, pooling and flattening in `sequential`


class Images(NamedTuple):
    """Training data of the networks, and test images by data set; "mnist" is in-distribution.

    `held_out` contains the images of MNIST's training set that were not used for training.
    """

    X: np.ndarray
    y: np.ndarray
    test: dict[str, np.ndarray]
    held_out: np.ndarray


def networks(arrays: dict, run: int) -> list[LeNet]:
    """Load the trained LeNets of one run."""
    nets = []
    for member in range(arrays["out.weight"].shape[1]):
        net = LeNet()
        state = {
            f"{ours}.{kind}": torch.tensor(arrays[f"{theirs}.{kind}"][run, member])
            for theirs, ours in LAYERS.items()
            for kind in ("weight", "bias")
        }
        net.load_state_dict(state)
        nets.append(net.eval())
    return nets


def sequential(net: LeNet) -> nn.Sequential:
    """Convert a LeNet to a sequence of layers, which can be split at any layer."""
    return nn.Sequential(*net.features, *net.classifier).eval()


def in_linear_layers(name: str, _parameter: torch.Tensor) -> bool:
    """Whether a parameter of `sequential` belongs to its linear layers."""
    return int(name.split(".")[0]) >= N_FEATURE_LAYERS


def images(pixels: np.ndarray) -> np.ndarray:
    """Scale images as in the training of the networks."""
    return ((pixels[:, None] / 255 - 0.1307) / 0.3081).astype(np.float32)


def load_images(ood: list[str], data_dir: Path, n: int | None, seed: int) -> Images:
    """Load MNIST's training set, and `n` random test images of each data set (None: all)."""
    mnist = load_npz("mnist", data_dir)
    rows = np.random.default_rng(42).permutation(len(mnist["x_train"]))
    held_out, known = rows[:-N_TRAIN], rows[-N_TRAIN:]
    random = np.random.default_rng(seed)
    test = {}
    for name in ("mnist", *ood):
        arrays = mnist if name == "mnist" else load_npz(name, data_dir)
        pixels = arrays.get("x_test", arrays.get("x"))
        test[name] = images(pixels[random.permutation(len(pixels))[:n]])
    return Images(
        images(mnist["x_train"][known]),
        mnist["y_train"][known].astype(np.int64),
        test,
        images(mnist["x_train"][held_out]),
    )
