"""A small graph, models on it, and the libraries that bring graphs, where installed."""

import os
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier, as_node_graph
from tests.evidential.probes import new_probe

N_NODES, N_LABELLED = 150, 60


@pytest.fixture(scope="session")
def dgl():
    os.environ.setdefault("DGLBACKEND", "pytorch")
    if find_spec("dgl") is None:
        pytest.skip("needs DGL")
    import dgl.nn

    return dgl


@pytest.fixture(scope="session")
def pyg():
    return pytest.importorskip("torch_geometric")


@pytest.fixture(scope="session")
def data():
    return make_node_classes(N_NODES, n_classes=3, n_features=6, random_state=0)


@pytest.fixture(scope="session")
def graph(data):
    return as_node_graph(data.graph)


@pytest.fixture(scope="session")
def dgl_graph(dgl, data):
    edges = [torch.tensor(ends) for ends in data.adjacency.nonzero()]
    graph = dgl.add_self_loop(dgl.graph(tuple(edges), num_nodes=N_NODES))
    graph.ndata["feat"] = torch.tensor(data.features)
    return graph


@pytest.fixture(scope="session")
def plain_graph(data):
    edges = torch.tensor(np.array(data.adjacency.nonzero()))
    return SimpleNamespace(x=torch.tensor(data.features), edge_index=edges)


@pytest.fixture(scope="session")
def pyg_graph(pyg, plain_graph):
    return pyg.data.Data(**vars(plain_graph))


@pytest.fixture(scope="session")
def on_disk(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "features.npy"
    np.save(path, data.features)
    return data.adjacency, np.load(path, mmap_mode="r")


@pytest.fixture(scope="session")
def nodes():
    return np.arange(N_LABELLED)


@pytest.fixture(scope="session")
def others():
    return np.arange(N_LABELLED, N_NODES)


@pytest.fixture(scope="session")
def y(data, nodes):
    return data.labels[nodes]


@pytest.fixture(scope="session")
def gcn(data, nodes, y):
    """A fitted classifier; nothing may change it."""
    model = GraphClassifier(data.graph, hidden_sizes=(8,), max_epochs=40, random_state=0)
    return model.fit(nodes, y)


@pytest.fixture(scope="session")
def probe(gcn, nodes, y):
    """A fitted probe; nothing may change it."""
    return new_probe(gcn).fit(nodes, y)
