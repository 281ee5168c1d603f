"""The kernel prior against textbook loops."""

from collections import deque

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.csgraph import shortest_path
from scipy.stats import norm

from skuq.evidential.comparison import _kernel
from skuq.evidential.comparison._kernel import hops, kernel_dirichlet


def path_length(adjacency, source, target):
    """Breadth-first search from one node; None if there is no path."""
    queue, seen = deque([(source, 0)]), {source}
    while queue:
        node, length = queue.popleft()
        if node == target:
            return length
        for neighbour in np.flatnonzero(adjacency[node]):
            if neighbour not in seen:
                seen.add(neighbour)
                queue.append((neighbour, length + 1))
    return None


@pytest.fixture(scope="module")
def adjacency(data):
    """A generated graph, with a part of its own and a long chain."""
    chain = sparse.diags_array([np.ones(14), np.ones(14)], offsets=[1, -1])
    return sparse.csr_array(sparse.block_diag([data.adjacency[:60, :60], chain]))


def test_hops_against_shortest_paths(adjacency):
    sources = np.array([0, 17, 60, 67, 17])
    expected = shortest_path(adjacency.toarray(), unweighted=True, indices=sources).T
    found = hops(adjacency, sources, cutoff=1000)
    np.testing.assert_array_equal(np.where(found < 0, np.inf, found), expected)
    assert (found < 0).any()
    near = hops(adjacency, sources, cutoff=3)
    np.testing.assert_array_equal(near, np.where((found > 3) | (found < 0), -1, found))


def test_prior_against_a_loop(adjacency):
    nodes, codes = np.array([0, 5, 9, 60]), np.array([2, 0, 2, 1])
    expected = np.ones((adjacency.shape[0], 4))
    dense = adjacency.toarray()
    for node, code in zip(nodes, codes, strict=True):
        for other in range(len(dense)):
            length = path_length(dense, node, other)
            if length is not None and length <= 10:
                expected[other, code] += norm.pdf(length)
    found = kernel_dirichlet(adjacency, nodes, codes, 4)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found[71, 1] == 1  # 11 edges away


def test_width_and_weight(adjacency):
    nodes, codes = np.array([0]), np.array([1])
    found = kernel_dirichlet(adjacency, nodes, codes, 2, weight=np.array([3.0]), sigma=2.0)
    at_neighbour = found[np.flatnonzero(adjacency[[0]].toarray()[0])[0], 1]
    assert at_neighbour == pytest.approx(1 + 3 * norm.pdf(1, scale=2))


def test_batches_of_labelled_nodes_add_up(adjacency, monkeypatch):
    nodes, codes = np.arange(40), np.arange(40) % 3
    whole = kernel_dirichlet(adjacency, nodes, codes, 3)
    monkeypatch.setattr(_kernel, "BATCH_SIZE", 7)
    np.testing.assert_allclose(kernel_dirichlet(adjacency, nodes, codes, 3), whole)
