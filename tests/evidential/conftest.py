"""A small graph, models on it, and the libraries that bring graphs, where installed."""

from importlib.util import find_spec

import numpy as np
import pytest

from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier
from skuq.evidential._graph_libraries import import_dgl

N_NODES, N_LABELLED = 150, 60


@pytest.fixture(scope="session")
def dgl():
    if find_spec("dgl") is None:
        pytest.skip("needs DGL")
    return import_dgl()


@pytest.fixture(scope="session")
def pyg():
    return pytest.importorskip("torch_geometric")


@pytest.fixture(scope="session")
def data():
    return make_node_classes(N_NODES, n_classes=3, n_features=6, random_state=0)


@pytest.fixture(scope="session")
def nodes():
    """Nodes with known labels."""
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
    return GraphClassifier(data.graph, hidden_sizes=(8,), max_epochs=40, random_state=0).fit(
        nodes, y
    )
