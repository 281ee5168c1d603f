"""Layers over a graph against dense matrices, differentiation and DGL 1.1.3."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from benchmarks.evidential_methods.gpn import personalised_pagerank
from skuq.datasets import make_node_classes
from skuq.evidential import LoopedEdges, _graphs, as_node_graph
from skuq.evidential._graph_networks import (
    GraphAttention,
    GraphConvolution,
    normalised_total,
)

N = 9


@pytest.fixture(params=["sparse products", "messages"])
def edges(request, monkeypatch):
    """Edges of a graph whose node 8 is alone; where torch lacks products, each has a message."""
    if request.param == "messages":
        monkeypatch.setattr(_graphs, "has_csr_products", lambda device: False)
    upper = np.triu(np.random.default_rng(0).random((N, N)) < 0.4, 1)
    upper[:, 8] = False
    looped = sparse.csr_array((upper | upper.T).astype(float) + np.eye(N))
    return LoopedEdges.of(looped, np.diff(looped.indptr))


@pytest.fixture
def matrix(edges):
    return edges.matrix(torch.ones(len(edges.source))).to_dense().double()


def doubles(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def normalised(matrix):
    root = torch.diag(matrix.sum(dim=1) ** -0.5)
    return root @ matrix @ root


def check_with_gradients(ours, theirs, *inputs):
    """Compare outputs and gradients of two functions in float64."""
    results = []
    for function in (ours, theirs):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = function(*leaves)
        (out * doubles(*out.shape)).sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)


def test_normalised_total_is_the_dense_product(edges, matrix):
    check_with_gradients(
        lambda x: normalised_total(edges, x), lambda x: normalised(matrix) @ x, doubles(N, 4)
    )


@pytest.mark.parametrize("teleport", [0.0, 0.3, 1.0])
def test_pagerank_is_a_power_of_the_dense_matrix(edges, matrix, teleport):
    def dense(x):
        step = (1 - teleport) * normalised(matrix)
        powers = [torch.linalg.matrix_power(step, k) for k in range(6)]
        return (powers[5] + teleport * sum(powers[:5])) @ x

    check_with_gradients(
        lambda x: personalised_pagerank(edges, x, 5, teleport), dense, doubles(N, 3)
    )


@pytest.mark.parametrize("mean", [False, True])
def test_attention_is_the_dense_softmax(edges, matrix, mean):
    layer = GraphAttention(3, 4, n_heads=2, mean=mean).double()
    attn_l, attn_r = 2 * doubles(1, 2, 4), doubles(1, 2, 4).flip(2)

    def ours(x, left, right):
        weights = {"attn_l": left, "attn_r": right}
        return torch.func.functional_call(layer, weights, (edges, x))

    def dense(x, left, right):
        heads = (x @ layer.linear.weight.T).view(N, 2, 4)
        scores = (heads * right).sum(2)[:, None] + (heads * left).sum(2)  # (target, source, head)
        scores = nn.functional.leaky_relu(scores, 0.2)
        weight = scores.masked_fill(matrix[..., None] == 0, -torch.inf).softmax(dim=1)
        out = torch.einsum("tsh,shd->thd", weight, heads)
        return out.mean(dim=1) if mean else out.flatten(1)

    check_with_gradients(ours, dense, doubles(N, 3), attn_l, attn_r)


def test_large_scores_of_attention_stay_finite(edges):
    layer = GraphAttention(3, 4, n_heads=2)
    x = (1e4 * doubles(N, 3).float()).requires_grad_()
    out = layer(edges, x)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(x.grad).all()


@pytest.fixture(scope="module")
def both(dgl):
    """A graph as the layers take it, and with its loops as DGL does."""
    data = make_node_classes(300, random_state=0)
    looped = sparse.coo_array(data.adjacency + sparse.eye_array(300))
    theirs = dgl.graph(tuple(torch.tensor(ends) for ends in looped.coords))
    return as_node_graph(data.graph).edges, theirs


def check_against_dgl(ours, theirs, inputs):
    results = []
    for function in (ours, theirs):
        x = inputs.clone().requires_grad_()
        out = function(x)
        out.square().sum().backward()
        results.append((out.detach(), x.grad))
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6 * expected.abs().max())


def test_convolution_equals_that_of_dgl(dgl, both):
    edges, graph = both
    ours, theirs = GraphConvolution(6, 5), dgl.nn.GraphConv(6, 5)
    theirs.load_state_dict({"weight": ours.linear.weight.T, "bias": ours.bias})
    check_against_dgl(lambda x: ours(edges, x), lambda x: theirs(graph, x), torch.randn(300, 6))


@pytest.mark.parametrize("n_heads", [1, 3])
def test_attention_equals_that_of_dgl(dgl, both, n_heads):
    edges, graph = both
    ours, theirs = GraphAttention(6, 5, n_heads), dgl.nn.GATConv(6, 5, n_heads)
    theirs.load_state_dict({k.replace("linear", "fc"): x for k, x in ours.state_dict().items()})
    check_against_dgl(
        lambda x: ours(edges, x), lambda x: theirs(graph, x).flatten(1), torch.randn(300, 6)
    )


def test_pagerank_equals_that_of_dgl(dgl, both):
    edges, graph = both
    theirs = dgl.nn.APPNPConv(10, 0.1)
    check_against_dgl(
        lambda x: personalised_pagerank(edges, x, 10, 0.1),
        lambda x: theirs(graph, x),
        torch.randn(300, 4).exp(),
    )


def test_initial_weights_are_those_of_networks_of_dgl(dgl):
    torch.manual_seed(0)
    ours = GraphAttention(6, 5, 3)
    after = torch.rand(1)
    torch.manual_seed(0)
    linear, theirs = nn.Linear(6, 15, bias=False), dgl.nn.GATConv(15, 5, 3)
    assert torch.equal(after, torch.rand(1))
    assert torch.equal(ours.linear.weight, linear.weight)
    for name in ("attn_l", "attn_r", "bias"):
        assert torch.equal(getattr(ours, name), theirs.state_dict()[name])
