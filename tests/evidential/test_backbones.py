"""Graph networks against dense computations and against PyTorch Geometric."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from skuq.evidential import as_node_graph
from skuq.evidential._backbones import GAT, GCN

pytestmark = pytest.mark.usefixtures("dgl")


@pytest.fixture(scope="module")
def adjacency():
    """Nodes 0 to 10 at random, node 11 alone."""
    upper = np.triu(np.random.default_rng(0).random((12, 12)) < 0.3, 1)
    upper[:, 11] = False
    return (upper | upper.T).astype(np.float32)


@pytest.fixture(scope="module")
def features():
    return np.random.default_rng(1).normal(size=(12, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def graph(adjacency, features):
    return as_node_graph((adjacency, features))


def with_random_weights(network):
    """Biases too, which start at 0."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return network.eval().requires_grad_(False)


def dense_convolution(adjacency, X, layer):
    looped = torch.tensor(adjacency) + torch.eye(len(adjacency))
    root = torch.diag(looped.sum(dim=1) ** -0.5)
    return root @ looped @ root @ X @ layer.linear.weight.T + layer.average.bias


def dense_attention(adjacency, X, layer, n_heads, *, mean):
    looped = torch.tensor(adjacency) + torch.eye(len(adjacency))
    heads = (X @ layer.linear.weight.T).reshape(len(X), n_heads, -1)
    out = []
    for k in range(n_heads):
        h = heads[:, k]
        score = (h @ layer.attention.attn_r[0, k])[:, None] + h @ layer.attention.attn_l[0, k]
        score = nn.functional.leaky_relu(score, 0.2).masked_fill(looped == 0, -torch.inf)
        out.append(score.softmax(dim=1) @ h)
    bias = layer.attention.bias.reshape(n_heads, -1)
    result = torch.stack(out, dim=1) + bias
    return result.mean(dim=1) if mean else result.flatten(1)


@pytest.mark.parametrize("hidden_sizes", [(), (7,), (7, 4)])
def test_gcn_is_the_dense_product(graph, adjacency, features, hidden_sizes):
    network = with_random_weights(GCN(5, 3, hidden_sizes))
    X = torch.tensor(features)
    for layer in network.layers[:-1]:
        X = dense_convolution(adjacency, X, layer).relu()
    expected = dense_convolution(adjacency, X, network.layers[-1])
    torch.testing.assert_close(network(graph), expected, rtol=1e-5, atol=1e-5)


def test_gat_is_the_dense_attention(graph, adjacency, features):
    network = with_random_weights(GAT(5, 3, (8,), n_heads=4))
    first, last = network.layers
    X = dense_attention(adjacency, torch.tensor(features), first, 4, mean=False)
    expected = dense_attention(adjacency, nn.functional.elu(X), last, 1, mean=True)
    torch.testing.assert_close(network(graph), expected, rtol=1e-5, atol=1e-5)


def edge_index(adjacency):
    return torch.tensor(np.array(np.nonzero(adjacency)))


def test_gcn_equals_pyg(pyg, graph, adjacency, features):
    network = with_random_weights(GCN(5, 3, (7,)))
    X = torch.tensor(features)
    for i, layer in enumerate(network.layers):
        theirs = pyg.nn.GCNConv(*reversed(layer.linear.weight.shape))
        theirs.lin.weight.data = layer.linear.weight
        theirs.bias.data = layer.average.bias
        X = theirs(X if i == 0 else X.relu(), edge_index(adjacency))
    torch.testing.assert_close(network(graph), X.detach(), rtol=0, atol=1e-5)


def test_gat_equals_pyg(pyg, graph, adjacency, features):
    network = with_random_weights(GAT(5, 3, (8,), n_heads=4))
    X = torch.tensor(features)
    for i, (layer, heads) in enumerate(zip(network.layers, (4, 1), strict=True)):
        n_out, n_in = layer.linear.weight.shape
        theirs = pyg.nn.GATConv(n_in, n_out // heads, heads)
        theirs.lin.weight.data = layer.linear.weight
        theirs.att_src.data, theirs.att_dst.data = layer.attention.attn_l, layer.attention.attn_r
        theirs.bias.data = layer.attention.bias
        X = theirs(X if i == 0 else nn.functional.elu(X), edge_index(adjacency))
    torch.testing.assert_close(network(graph), X.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", [GCN, GAT])
def test_sparse_features_give_the_same_outputs_and_gradients(architecture, adjacency):
    values = np.zeros((12, 40), dtype=np.float32)
    values[np.arange(12), np.arange(12) * 3] = 1.5
    both = as_node_graph((adjacency, values)), as_node_graph((adjacency, values + 0.0))
    both[1].features = torch.tensor(values)
    torch.manual_seed(0)
    network = architecture(40, 3, (8,)).eval()
    results = []
    for graph in both:
        network.zero_grad()
        outputs = network(graph)
        outputs.square().sum().backward()
        results.append([outputs.detach(), *(p.grad.clone() for p in network.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", [GCN, GAT])
def test_node_alone_depends_on_its_own_features_only(architecture, adjacency, features):
    network = with_random_weights(architecture(5, 3, (8,)))
    changed = features.copy()
    changed[:11] += 1
    before = network(as_node_graph((adjacency, features)))
    after = network(as_node_graph((adjacency, changed)))
    torch.testing.assert_close(after[11], before[11])
    assert (after[:11] - before[:11]).abs().amax(dim=1).min() > 1e-3


@pytest.mark.parametrize("architecture", [GCN, GAT])
def test_dropout_acts_in_training_alone(architecture, graph):
    torch.manual_seed(0)
    network = architecture(5, 3, (8,), dropout=0.5)
    assert not torch.equal(network(graph), network(graph))
    network.eval()
    assert torch.equal(network(graph), network(graph))


def test_batch_norm_normalises_hidden_layers(graph, adjacency, features):
    torch.manual_seed(0)
    network = GCN(5, 3, (7,), dropout=0.0, batch_norm=True)
    X = dense_convolution(adjacency, torch.tensor(features), network.layers[0])
    X = ((X - X.mean(dim=0)) / (X.var(dim=0, correction=0) + 1e-5).sqrt()).relu()
    expected = dense_convolution(adjacency, X, network.layers[1])
    torch.testing.assert_close(network(graph), expected, rtol=1e-4, atol=1e-5)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="multiples of 8 heads, got 12"):
        GAT(5, 3, (16, 12))


def test_explicit_loops_and_weights_of_the_given_matrix_do_not_matter(adjacency, features, graph):
    network = with_random_weights(GCN(5, 3))
    given = sparse.csr_array(3 * adjacency + np.eye(12))
    torch.testing.assert_close(network(as_node_graph((given, features))), network(graph))
