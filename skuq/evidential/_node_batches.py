"""Evaluation of a user's graph network in batches of nodes, for graphs larger than memory."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from sklearn.utils import gen_batches
from torch import Tensor, nn
from tqdm.auto import tqdm

from skuq.evidential._graph_parts import Edges, call_on_part
from skuq.evidential._graphs import NodeGraph
from skuq.evidential._network_reads import what_is_read
from skuq.evidential._representations import Layer, read_layer


class NodeBatches(NamedTuple):
    """How a network is evaluated in batches.

    Attributes
    ----------
    size : int
        Number of nodes whose outputs are computed at once.
    max_neighbors : int or None
        Number of edges into each node that are kept; None for all.
    seed : int
        Which edges are kept.
    """

    size: int
    max_neighbors: int | None = None
    seed: int = 0


def batched_outputs(
    network: nn.Module,
    graph: NodeGraph,
    layer: Layer,
    device: torch.device,
    batches: NodeBatches,
    *,
    verbose: bool = False,
) -> tuple[Tensor, Tensor]:
    """Evaluate a network on all nodes, in batches with all that it reads for them.

    Parameters
    ----------
    network : torch.nn.Module
        Network in evaluation mode, on the device, called as `call_on_graph` does.
    graph : NodeGraph
        Graph on the CPU.
    layer : int or str
        See `read_layer`.
    device : torch.device
        Where batches are computed.
    batches : NodeBatches
        Their size, and the edges that are kept.
    verbose : bool, default=False
        Whether a bar shows the progress.

    Returns
    -------
    logits, hidden : Tensor of shape (n_nodes, n_classes) and (n_nodes, n_hidden)
        On the CPU.

    Raises
    ------
    ValueError
        If it cannot be told what the network reads of the graph, or it reads all of it.
    """
    edges = Edges(graph, batches.max_neighbors, batches.seed)
    call = partial(call_on_part, network, graph, device)
    kept: list[Tensor] = []
    bar = tqdm(total=graph.n_nodes, desc="batches", unit="node", disable=not verbose)
    with bar, torch.no_grad():
        reads = what_is_read(call, graph.n_nodes, edges.ids)
        for rows in gen_batches(graph.n_nodes, batches.size):
            nodes = np.arange(rows.start, rows.stop)
            part = edges.around(nodes, reads)
            outputs = read_layer(network, partial(call, part), layer)
            if not kept:  # small results in between would keep memory from being used again
                kept = [torch.empty(graph.n_nodes, *x.shape[1:], dtype=x.dtype) for x in outputs]
            for whole, values in zip(kept, outputs, strict=True):
                whole[rows] = values[: len(nodes)].cpu()
            bar.update(len(nodes))
    logits, hidden = kept
    return logits, hidden
