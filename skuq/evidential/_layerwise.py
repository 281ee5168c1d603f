"""Evaluation of graph networks layer by layer, for graphs whose features lie on disk.

Each layer is computed for all nodes, in chunks, before the next one begins. A chunk needs its nodes
and their neighbours only, whatever the number of layers, and all of these neighbours: nothing is
sampled, and the result is that of one pass over the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from skuq.evidential._backbones import GraphLayer, GraphNetwork
from skuq.evidential._graphs import NodeGraph
from skuq.evidential._neighbours import Neighbours

CHUNK_FLOATS = 2**24  # of all neighbours of a chunk: 64 MiB


def layerwise_logits(
    network: GraphNetwork, graph: NodeGraph, device: torch.device, *, verbose: bool = False
) -> Tensor:
    """Evaluate a graph network on all nodes, layer by layer.

    What a layer reads of all nodes lies in temporary files, one for each layer, in the folder that
    `tempfile` chooses. Memory holds the edges, one chunk and the logits.

    Parameters
    ----------
    network : GraphNetwork
        Network in evaluation mode, on the device.
    graph : NodeGraph
        Graph on the CPU, with dense features.
    device : torch.device
        Where chunks are computed.
    verbose : bool, default=False
        Whether a bar shows the progress.

    Returns
    -------
    Tensor of shape (n_nodes, n_classes), float32
        On the CPU.
    """
    layers = cast(list[GraphLayer], list(network.layers))
    features = cast(Tensor, graph.features)
    total = (1 + len(layers)) * graph.n_nodes
    bar = tqdm(total=total, desc="layers", unit="node", disable=not verbose)
    with TemporaryDirectory(prefix="skuq-") as folder, bar, torch.no_grad():
        projected = _scratch(folder, graph, layers[0].linear.out_features)
        for nodes in chunks(np.zeros(graph.n_nodes, np.int64), graph.n_features):
            projected[nodes] = layers[0].linear(features[nodes].to(device)).cpu().numpy()
            bar.update(nodes.stop - nodes.start)
        for layer, norm, following in zip(layers, network.norms, layers[1:], strict=False):
            out = _scratch(folder, graph, following.linear.out_features)
            for nodes, gathered in _gathered(layer, graph, projected, device, bar):
                hidden = network.activation(norm(gathered))  # without dropout
                out[nodes] = following.linear(hidden).cpu().numpy()
            projected = out
        last = _gathered(layers[-1], graph, projected, device, bar)
        return torch.cat([logits.cpu() for _, logits in last])


def chunks(degree: NDArray[np.integer], width: int) -> Iterator[slice]:
    """Consecutive nodes that together with their neighbours hold `CHUNK_FLOATS` numbers at most.

    A node that alone has more neighbours is a chunk by itself.
    """
    n_read = np.cumsum(degree + 1)
    start = 0
    while start < len(degree):
        before = n_read[start - 1] if start else 0
        stop = int(np.searchsorted(n_read, before + CHUNK_FLOATS // width, side="right"))
        yield slice(start, max(stop, start + 1))
        start = max(stop, start + 1)


def _gathered(
    layer: GraphLayer,
    graph: NodeGraph,
    projected: NDArray[np.float32],
    device: torch.device,
    bar: tqdm[Any],
) -> Iterator[tuple[slice, Tensor]]:
    """Outputs of a layer, chunk by chunk, from what its linear map has made of all nodes."""
    degree = np.diff(graph.adjacency.indptr)
    for nodes in chunks(degree, projected.shape[1]):
        near = Neighbours.of(graph.adjacency, nodes, degree)
        yield nodes, layer.gather(near, torch.from_numpy(projected[near.ids]).to(device))
        bar.update(nodes.stop - nodes.start)


def _scratch(folder: str, graph: NodeGraph, width: int) -> NDArray[np.float32]:
    """An array on disk with one row per node."""
    path = Path(folder, f"{len(list(Path(folder).iterdir()))}.float32")
    return np.memmap(path, np.float32, mode="w+", shape=(graph.n_nodes, width))
