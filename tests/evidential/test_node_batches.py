"""A user's network in batches of nodes returns what it returns in one pass over the graph."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from skuq.evidential import NodeBatches, as_node_graph
from skuq.evidential._graph_libraries import call_on_graph, call_on_part
from skuq.evidential._node_batches import Edges, ReceptiveField, batched_outputs, receptive_field
from skuq.evidential._outputs import read_layer
from tests.evidential.probes import new_probe

CPU = torch.device("cpu")
N = 120


def in_one_pass(network, graph):
    with torch.no_grad():
        return call_on_graph(network.eval(), graph)


def in_batches(network, graph, batches, **options):
    read = partial(read_layer, network.eval(), layer=-1)
    return batched_outputs(network, graph, read, CPU, batches, **options)[0]


RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.normal(size=(N, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def ends():
    """Directed edges: two hubs, a loop, an edge three times, and nodes without any at the end."""
    edges = RANDOM.uniform(size=(N, N)) < 0.015
    edges[5, RANDOM.choice(N, 20)] = edges[RANDOM.choice(N, 20), 7] = True
    edges[np.arange(N), np.arange(N)] = edges[:, -10:] = edges[-10:] = False
    source, target = edges.nonzero()
    ends = np.append(source, [3, 20, 20]), np.append(target, [3, *target[source == 20][[0, 0]]])
    return torch.tensor(np.array(ends))


@pytest.fixture(scope="module")
def dgl_graph(dgl, ends):
    graph = dgl.add_self_loop(dgl.graph(tuple(ends), num_nodes=N))
    graph.ndata["feat"], graph.ndata["scale"] = torch.tensor(FEATURES), torch.rand(N, 1) + 0.5
    graph.edata["weight"] = torch.rand(graph.num_edges()) + 0.5
    return graph


@pytest.fixture(scope="module")
def pyg_graph(pyg, ends):
    own = {"edge_attr": torch.rand(ends.shape[1]) + 0.5, "scale": torch.rand(N, 1) + 0.5}
    return pyg.data.Data(x=torch.tensor(FEATURES), edge_index=ends, **own)


NODES = np.arange(60)


class Layers(nn.Module):
    def __init__(self, *layers, is_dgl=False):
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


DGL = partial(Layers, is_dgl=True)
AGAINST = {"flow": "target_to_source"}
NETWORKS = {
    "dgl": [
        (lambda nn: DGL(nn.GraphConv(6, 5), nn.GraphConv(5, 3)), (2, False, False, True)),
        (lambda nn: DGL(nn.SAGEConv(6, 5, "mean"), nn.SAGEConv(5, 3, "pool")), (2,)),
        (lambda nn: DGL(nn.TAGConv(6, 3, k=3)), (3, False, True)),
        (lambda nn: OfDGLData(nn.GraphConv(6, 3), is_dgl=True), (1, False, False, True)),
    ],
    "pyg": [
        (lambda nn: Layers(nn.GCNConv(6, 5), nn.GCNConv(5, 3)), (2, False, True)),
        (lambda nn: Layers(*(nn.SAGEConv(6, 6) for _ in range(3))), (3,)),
        (lambda nn: Layers(nn.GATConv(6, 5), nn.GATConv(5, 3)), (2,)),
        (lambda nn: OfPygData(nn.GCNConv(6, 5), nn.GCNConv(5, 3)), (2, False, True)),
        (lambda nn: Layers(nn.SAGEConv(6, 3, **AGAINST)), (1, True, True, True)),
    ],
}


@pytest.mark.parametrize(
    ("library", "make", "field"), [(name, *case) for name in NETWORKS for case in NETWORKS[name]]
)
def test_networks_return_what_they_return_in_one_pass(request, library, make, field):
    torch.manual_seed(0)
    module, given = (request.getfixturevalue(name) for name in (library, f"{library}_graph"))
    graph = as_node_graph(given)
    network = make(module.nn)
    expected = in_one_pass(network, graph)
    assert expected.std() > 0.05
    call = partial(call_on_part, network, graph, CPU)
    with torch.no_grad():
        assert receptive_field(call, N, Edges(graph).ids) == ReceptiveField(*field)
    for size in (11, N):
        found = in_batches(network, graph, NodeBatches(size))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


class Noisy(Layers):
    def forward(self, x, edge_index):
        outputs = self.run(x, edge_index)
        return outputs + 1e-7 * torch.rand_like(outputs)


def test_rounding_is_not_taken_for_reading(pyg, pyg_graph):
    call = partial(call_on_part, Noisy(pyg.nn.SAGEConv(6, 3)), as_node_graph(pyg_graph), CPU)
    with torch.no_grad():
        assert receptive_field(call, N, np.arange(20)) == ReceptiveField(1)


class CountedRows:
    """Features that only give some of their rows at once, and count them."""

    device = CPU

    def __init__(self, values):
        self.values, self.read = values, []

    def index_select(self, axis, nodes):
        self.read.append(len(nodes))
        return self.values.index_select(axis, nodes)


@pytest.mark.parametrize("library", ["dgl", "pyg"])
def test_features_on_disk_are_read_for_each_batch(request, library, tmp_path, capsys):
    torch.manual_seed(0)
    np.save(tmp_path / "features.npy", FEATURES)
    on_disk = np.load(tmp_path / "features.npy", mmap_mode="r")
    module, given = (request.getfixturevalue(name) for name in (library, f"{library}_graph"))
    if library == "dgl":
        network, graph = DGL(module.nn.GraphConv(6, 3)), as_node_graph((given, on_disk))
    else:
        data = module.data.Data(x=on_disk, edge_index=given.edge_index)
        network, graph = Layers(module.nn.GCNConv(6, 3)), as_node_graph(data)
    assert graph.on_disk
    torch.testing.assert_close(*(in_one_pass(network, g) for g in (graph, as_node_graph(given))))
    in_memory, probe = (
        new_probe(network, layer=-2, **settings).fit(NODES, NODES % 3)
        for settings in ({"graph": given}, {"graph": graph, "batch_size": 9, "verbose": 1})
    )
    np.testing.assert_allclose(probe.alpha_, in_memory.alpha_, rtol=1e-4)
    assert f"{N}/{N}" in capsys.readouterr().err
    counted = graph.features = CountedRows(graph.features)
    in_batches(network, graph, NodeBatches(2))
    tries, batches = counted.read[:5], counted.read[5:]
    assert len(set(tries[:4])) == 1
    assert len(batches) >= N // 2 - 1
    assert max(batches) < N / 3


def test_some_neighbours_are_drawn_and_loops_are_kept(dgl_graph):
    limits = [(None, 0), (3, 0), (3, 0), (3, 1)]
    every, some, again, others = (Edges(as_node_graph(dgl_graph), *limit) for limit in limits)
    ends = (edges.target[edges.source != edges.target] for edges in (every, some))
    degree, kept = (np.bincount(each, minlength=N) for each in ends)
    assert degree.max() > 15
    np.testing.assert_array_equal(kept, np.minimum(degree, 3))
    assert np.isin(np.flatnonzero(every.source == every.target), some.ids).all()
    np.testing.assert_array_equal(some.ids, again.ids)
    assert not np.array_equal(some.ids, others.ids)


def test_sampled_result_is_that_of_the_graph_with_the_edges_that_are_kept(pyg, pyg_graph):
    torch.manual_seed(0)
    network, graph = OfPygData(pyg.nn.GCNConv(6, 5), pyg.nn.GCNConv(5, 3)), as_node_graph(pyg_graph)
    kept = torch.from_numpy(Edges(graph, 2, seed=4).ids)
    with torch.no_grad():
        expected, whole = network(pyg_graph.edge_subgraph(kept)), network(pyg_graph)
    found = in_batches(network, graph, NodeBatches(11, 2), seed=4)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert (found - whole).abs().max() > 0.05
