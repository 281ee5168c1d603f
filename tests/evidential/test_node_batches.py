"""A user's network in batches of nodes returns what it returns in one pass over the graph."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from skuq.evidential import GraphClassifier, NodeBatches, _node_batches, as_node_graph
from skuq.evidential._graph_libraries import call_on_graph, call_on_part
from skuq.evidential._node_batches import (
    Edges,
    ReceptiveField,
    batched_outputs,
    receptive_field,
)
from skuq.evidential._outputs import read_layer
from tests.evidential.probes import new_probe

CPU = torch.device("cpu")
N = 120


def in_batches(network, graph, batches, **options):
    read = partial(read_layer, network, layer=-1)
    return batched_outputs(network, graph, read, CPU, batches, **options)


@pytest.fixture(scope="module")
def ends():
    """Directed edges: two hubs, a loop, an edge three times, and nodes without any at the end."""
    random = np.random.default_rng(0)
    edges = random.uniform(size=(N, N)) < 0.015
    edges[5, random.choice(N, 20)] = edges[random.choice(N, 20), 7] = True
    edges[np.arange(N), np.arange(N)] = edges[:, -10:] = edges[-10:] = False
    source, target = edges.nonzero()
    return np.append(source, [3, 20, 20]), np.append(target, [3, *target[source == 20][[0, 0]]])


@pytest.fixture(scope="module")
def features():
    return np.random.default_rng(1).normal(size=(N, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def dgl_graph(dgl, ends, features):
    graph = dgl.add_self_loop(dgl.graph(tuple(map(torch.tensor, ends)), num_nodes=N))
    graph.ndata["feat"], graph.ndata["scale"] = torch.tensor(features), torch.rand(N, 1) + 0.5
    graph.edata["weight"] = torch.rand(graph.num_edges()) + 0.5
    return graph


@pytest.fixture(scope="module")
def pyg_graph(pyg, ends, features):
    edges = torch.tensor(np.array(ends))
    return pyg.data.Data(
        x=torch.tensor(features),
        edge_index=edges,
        edge_attr=torch.rand(edges.shape[1]) + 0.5,
        scale=torch.rand(N, 1) + 0.5,
    )


class Layers(nn.Module):
    """Layers of either library, with an activation between them."""

    def __init__(self, *layers, is_dgl):
        super().__init__()
        self.layers, self.is_dgl = nn.ModuleList(layers), is_dgl

    def run(self, values, graph, **options):
        for layer in self.layers:
            inputs = (graph, values) if self.is_dgl else (values, graph)
            values = layer(*inputs, **options).tanh()
        return values

    def forward(self, first, second):
        return self.run(second, first) if self.is_dgl else self.run(first, second)


class OfDGLData(Layers):
    def forward(self, graph, features):
        values = self.run(features, graph, edge_weight=graph.edata["weight"])
        return graph.ndata["scale"] * values


class OfPygData(Layers):
    def forward(self, data):
        values = self.run(data.x, data.edge_index, edge_weight=data.edge_attr)
        return data.scale * values


def from_dgl(nn):
    make = partial(Layers, is_dgl=True)
    yield (
        "convolutions",
        make(nn.GraphConv(6, 5), nn.GraphConv(5, 3)),
        ReceptiveField(2, out_of=True),
    )
    yield "sage", make(nn.SAGEConv(6, 5, "mean"), nn.SAGEConv(5, 3, "pool")), ReceptiveField(2)
    yield "several hops", make(nn.TAGConv(6, 3, k=3)), ReceptiveField(3, into=True)
    weighted = OfDGLData(nn.GraphConv(6, 5), nn.GraphConv(5, 3), is_dgl=True)
    yield "data of edges", weighted, ReceptiveField(2, out_of=True)


def from_pyg(nn):
    make = partial(Layers, is_dgl=False)
    against = {"flow": "target_to_source"}
    yield "convolutions", make(nn.GCNConv(6, 5), nn.GCNConv(5, 3)), ReceptiveField(2, into=True)
    yield "sage", make(nn.SAGEConv(6, 5), nn.SAGEConv(5, 5), nn.SAGEConv(5, 3)), ReceptiveField(3)
    yield "attention", make(nn.GATConv(6, 5), nn.GATConv(5, 3)), ReceptiveField(2)
    weighted = OfPygData(nn.GCNConv(6, 5), nn.GCNConv(5, 3), is_dgl=False)
    yield "data of edges", weighted, ReceptiveField(2, into=True)
    yield (
        "against",
        make(nn.SAGEConv(6, 5, **against), nn.SAGEConv(5, 3, **against)),
        ReceptiveField(2, True, True, True),
    )


def check_equality(network, given, expected_reads):
    graph, network = as_node_graph(given), network.eval()
    with torch.no_grad():
        expected = call_on_graph(network, graph)
        found = {
            size: batched_outputs(
                network, graph, partial(read_layer, network, layer=-1), CPU, NodeBatches(size)
            )[0]
            for size in (11, N)
        }
        call = partial(call_on_part, network, graph, CPU)
        assert receptive_field(call, N, Edges(graph).ids) == expected_reads
    assert expected.std() > 0.05
    for logits in found.values():
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)


def test_dgl_networks_return_what_they_return_in_one_pass(dgl, dgl_graph):
    torch.manual_seed(0)
    for _, network, reads in from_dgl(dgl.nn):
        check_equality(network, dgl_graph, reads)


def test_pyg_networks_return_what_they_return_in_one_pass(pyg, pyg_graph):
    torch.manual_seed(0)
    for _, network, reads in from_pyg(pyg.nn):
        check_equality(network, pyg_graph, reads)


def test_dgl_network_on_matrices_is_called_with_loops(dgl, data):
    torch.manual_seed(0)
    network = Layers(dgl.nn.GraphConv(6, 3), is_dgl=True)
    graph = as_node_graph((data.adjacency, data.features))
    with torch.no_grad():
        expected = call_on_graph(network, graph)
    found, _ = batched_outputs(
        network, graph, partial(read_layer, network, layer=-1), CPU, NodeBatches(20)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("hops", [1, 2])
def test_messages_come_along_the_edges(pyg, hops):
    """0 -> 1 -> 2 -> 3 <- 4, and 5 alone."""
    edges = torch.tensor([[0, 1, 2, 4], [1, 2, 3, 3]])
    graph = as_node_graph(pyg.data.Data(x=torch.eye(6), edge_index=edges))
    part = Edges(graph).around(np.array([2]), ReceptiveField(hops))
    assert part.nodes[:-1].tolist() == [2, 1, 0][: hops + 1]
    part = Edges(graph).around(np.array([5, 3]), ReceptiveField(hops, into=True, out_of=True))
    assert part.nodes[:-1].tolist() == [5, 3, 2, 4, 1][: 2 * hops + 2]
    assert np.bincount(part.target, minlength=4)[:4].tolist() == [0, 2, 1, 0]


def test_fewer_hops_than_are_read_are_not_enough(pyg, pyg_graph, monkeypatch):
    torch.manual_seed(0)
    network = Layers(pyg.nn.SAGEConv(6, 5), pyg.nn.SAGEConv(5, 3), is_dgl=False)
    graph = as_node_graph(pyg_graph)
    with torch.no_grad():
        expected = call_on_graph(network, graph)
    monkeypatch.setattr(_node_batches, "receptive_field", lambda *_: ReceptiveField(1))
    found, _ = batched_outputs(
        network, graph, partial(read_layer, network, layer=-1), CPU, NodeBatches(7)
    )
    assert (found - expected).abs().max() > 0.05


class Global(nn.Module):
    def forward(self, x, edge_index):
        return x[:, :3] - x[:, :3].mean(dim=0)


class Constant(nn.Module):
    def forward(self, x, edge_index):
        return torch.ones(len(x), 3)


class NotFinite(nn.Module):
    def forward(self, x, edge_index):
        return x[:, :3] * torch.tensor([1, 1, torch.nan])


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Global(), "only on nodes less than 16 edges away"),
        (Constant(), "outputs must depend on node features"),
        (NotFinite(), "returns NaN"),
    ],
)
def test_networks_whose_parts_are_not_enough_are_refused(pyg_graph, nodes, network, message):
    with pytest.raises(ValueError, match=message):
        new_probe(network, graph=pyg_graph, batch_size=10).fit(nodes, nodes % 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "'batch_size' parameter"),
        ({"batch_size": 10, "max_neighbors": 0}, "'max_neighbors' parameter"),
    ],
)
def test_wrong_settings_are_refused(pyg_graph, nodes, settings, message):
    with pytest.raises(ValueError, match=message):
        new_probe(Global(), graph=pyg_graph, **settings).fit(nodes, nodes % 3)


def test_batches_are_for_networks_of_users_on_graphs(pyg_graph, nodes):
    X = np.random.default_rng(0).normal(size=(len(nodes), 3))
    with pytest.raises(ValueError, match=r"batches=NodeBatches.* no effect without a graph"):
        new_probe(LogisticRegression(), batch_size=10).fit(X, nodes % 3)
    network = GraphClassifier(pyg_graph, max_epochs=1).fit(nodes, nodes % 3)
    with pytest.raises(ValueError, match="`batches` applies only to your own graph networks"):
        new_probe(network, batch_size=10).fit(nodes, nodes % 3)


class Noisy(nn.Module):
    """Sums in no fixed order, as on a GPU."""

    def __init__(self, convolution):
        super().__init__()
        self.convolution = convolution

    def forward(self, x, edge_index):
        outputs = self.convolution(x, edge_index)
        return outputs + 1e-7 * torch.rand_like(outputs)


def test_rounding_is_not_taken_for_reading(pyg, pyg_graph):
    network, graph = Noisy(pyg.nn.SAGEConv(6, 3)), as_node_graph(pyg_graph)
    call = partial(call_on_part, network, graph, CPU)
    with torch.no_grad():
        assert receptive_field(call, graph.n_nodes, np.arange(20)) == ReceptiveField(1)


class CountedRows:
    """Features that only give some of their rows at once, and count them."""

    device = CPU

    def __init__(self, values):
        self.values, self.shape, self.read = values, values.shape, []

    def index_select(self, axis, nodes):
        self.read.append(len(nodes))
        return self.values.index_select(axis, nodes)


@pytest.mark.parametrize("library", ["dgl", "pyg"])
def test_features_on_disk_are_read_for_each_batch(
    request, library, features, nodes, tmp_path, capsys
):
    torch.manual_seed(0)
    np.save(tmp_path / "features.npy", features)
    on_disk = np.load(tmp_path / "features.npy", mmap_mode="r")
    given, module = (request.getfixturevalue(name) for name in (f"{library}_graph", library))
    if library == "dgl":
        network = Layers(module.nn.GraphConv(6, 3), is_dgl=True)
        graph = as_node_graph((given, on_disk))
    else:
        network = Layers(module.nn.GCNConv(6, 3), is_dgl=False)
        graph = as_node_graph(module.data.Data(x=on_disk, edge_index=given.edge_index))
    assert graph.on_disk
    with torch.no_grad():
        passes = [call_on_graph(network.eval(), each) for each in (graph, as_node_graph(given))]
    torch.testing.assert_close(*passes)
    in_memory = new_probe(network, graph=given, layer=-2).fit(nodes, nodes % 3)
    probe = new_probe(network, graph=graph, layer=-2, batch_size=9, verbose=1).fit(nodes, nodes % 3)
    np.testing.assert_allclose(probe.alpha_, in_memory.alpha_, rtol=1e-4)
    assert f"{N}/{N}" in capsys.readouterr().err
    counted = graph.features = CountedRows(graph.features)
    with torch.no_grad():
        in_batches(network.eval(), graph, NodeBatches(2))
    tries, batches = counted.read[:5], counted.read[5:]
    assert len(set(tries[:4])) == 1
    assert len(batches) >= N // 2 - 1
    assert max(batches) < N / 3


def test_some_neighbours_are_drawn_and_loops_are_kept(dgl, dgl_graph):
    graph = as_node_graph(dgl_graph)
    every, some, again, others = (
        Edges(graph, limit, seed) for limit, seed in [(None, 0), (3, 0), (3, 0), (3, 1)]
    )
    loops = every.source == every.target
    degree, kept = (
        np.bincount(edges.target[edges.source != edges.target], minlength=N)
        for edges in (every, some)
    )
    assert degree.max() > 15
    np.testing.assert_array_equal(kept, np.minimum(degree, 3))
    assert np.isin(np.flatnonzero(loops), some.ids).all()
    np.testing.assert_array_equal(some.ids, again.ids)
    assert not np.array_equal(some.ids, others.ids)
    np.testing.assert_array_equal(every.source[some.ids], some.source)


def test_sampled_result_is_that_of_the_graph_with_the_edges_that_are_kept(pyg, pyg_graph):
    torch.manual_seed(0)
    network = OfPygData(pyg.nn.GCNConv(6, 5), pyg.nn.GCNConv(5, 3), is_dgl=False)
    graph = as_node_graph(pyg_graph)
    kept = torch.from_numpy(Edges(graph, 2, seed=4).ids)
    with torch.no_grad():
        expected, whole = network(pyg_graph.edge_subgraph(kept)), network(pyg_graph)
    found, _ = batched_outputs(
        network, graph, partial(read_layer, network, layer=-1), CPU, NodeBatches(11, 2), seed=4
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert (found - whole).abs().max() > 0.05


def test_other_graph_is_evaluated_in_batches_too(pyg, pyg_graph, nodes):
    torch.manual_seed(0)
    network = Layers(pyg.nn.GCNConv(6, 3), is_dgl=False)
    twice = pyg.data.Data(x=2 * pyg_graph.x, edge_index=pyg_graph.edge_index.flip(0))
    whole, parts = (
        new_probe(network, graph=pyg_graph, batches=batches).fit(nodes, nodes % 3)
        for batches in (None, NodeBatches(10))
    )
    alphas = [probe.with_graph(twice).alpha_ for probe in (whole, parts)]
    np.testing.assert_allclose(*alphas, rtol=1e-4)
