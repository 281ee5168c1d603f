"""Digits with OOD inputs, synthetic data, loans, and graphs with classes."""

import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from skuq.calibration import region_mask
from skuq.datasets import (
    GAUSSIAN_REGION,
    load_digits_with_ood,
    make_gaussian_classes,
    make_heteroscedastic,
    make_loans,
    make_node_classes,
)
from skuq.evidential import as_node_graph


@pytest.fixture(scope="module")
def data():
    pytest.importorskip("PIL")
    return load_digits_with_ood(n_test=60, n_ood=20, random_state=0)


def test_digits_are_those_of_scikit_learn_each_once_and_ood_inputs_what_their_names_say(data):
    X, y = load_digits(return_X_y=True)
    rows, labels = np.vstack([data.X_train, data.X_test]), np.r_[data.y_train, data.y_test]
    ours, theirs = np.column_stack([rows, labels]), np.column_stack([X / 16, y])
    np.testing.assert_array_equal(*(each[np.lexsort(each.T)] for each in (ours, theirs)))
    assert data.X_test.shape == (60, 64)
    assert np.ptp(np.bincount(data.y_test, minlength=10)) <= 1
    assert sorted(data.ood) == ["inverted", "noise", "photographs", "rotated"]
    for X in data.ood.values():
        assert (X.shape, X.dtype) == ((20, 64), np.float64)
        assert 0 <= X.min() < 0.5 < X.max() <= 1
    images = data.X_test[:20].reshape(-1, 8, 8)
    turned = data.ood["rotated"].reshape(-1, 8, 8)
    np.testing.assert_array_equal(turned[:, ::-1].swapaxes(1, 2), images)
    np.testing.assert_allclose(data.ood["inverted"] + data.X_test[:20], 1)
    for name in ("noise", "photographs"):
        assert len(np.unique(data.ood[name], axis=0)) == 20
    smooth, rough = (data.ood[name].reshape(-1, 8, 8) for name in ("photographs", "noise"))
    assert np.abs(np.diff(smooth, axis=2)).mean() < np.abs(np.diff(rough, axis=2)).mean() / 2


def test_the_same_seed_gives_the_same_data_and_another_seed_does_not():
    pytest.importorskip("PIL")

    def digits(random_state):
        found = load_digits_with_ood(n_test=60, n_ood=20, random_state=random_state)
        return [found.X_test, *found.ood.values()]

    def nodes(random_state):
        found = make_node_classes(200, random_state=random_state)
        return [found.adjacency.toarray(), *found[1:4]]

    for make in (digits, nodes, make_loans, make_gaussian_classes, make_heteroscedastic):
        one, again, other = (make(random_state=seed) for seed in (3, 3, 4))
        for k in range(1 if make is make_gaussian_classes else len(one)):  # its labels are in order
            np.testing.assert_array_equal(one[k], again[k])
            assert not np.array_equal(one[k], other[k])


def test_what_cannot_be_drawn_is_refused(monkeypatch):
    for n_ood in (0, 61):
        with pytest.raises(ValueError, match="n_ood"):
            load_digits_with_ood(n_test=60, n_ood=n_ood)
    with pytest.raises(ValueError, match="argument"):
        make_gaussian_classes((10, 20))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"skuq\[plot\]"):
        load_digits_with_ood(n_test=60, n_ood=20)


def test_classes_have_the_means_covariances_and_region_of_the_paper():
    X, y = make_gaussian_classes((20000, 20000, 20000), random_state=0)
    covariances = [[1, 0.8], [0.8, 1]], [[1, -0.8], [-0.8, 1]], [[0.1, 0], [0, 0.1]]
    for k, mean in enumerate([(3, 2), (5, 5), (3, 4)]):
        np.testing.assert_allclose(X[y == k].mean(axis=0), mean, atol=0.04)
        np.testing.assert_allclose(np.cov(X[y == k].T), covariances[k], atol=0.05)
    assert np.bincount(make_gaussian_classes((3, 0, 2))[1], minlength=3).tolist() == [3, 0, 2]
    X, y = make_gaussian_classes((10000, 10000, 1000), random_state=0)
    inside = region_mask(GAUSSIAN_REGION, X)
    assert inside.mean() == pytest.approx(0.0531, abs=0.01)  # as the paper has it
    assert (y[inside] == 0).mean() > 0.999


def test_noise_has_the_level_of_equation_18_at_each_input():
    X, y = make_heteroscedastic(60000, random_state=0)
    x = X[:, 0]
    assert (X.shape, y.shape) == ((60000, 1), (60000,))
    assert (x.min(), x.max()) == pytest.approx((-4, 4), abs=0.01)
    noise = y - (np.sin(2 * x) + 0.3 * x**2 - 0.4 * x + 1)
    for at in (-3.5, -1.5, 0.0, 1.0, 3.0):
        near, expected = noise[np.abs(x - at) < 0.05], 0.2 + 0.8 * np.exp(-((at / 1.5) ** 2))
        assert near.std() == pytest.approx(expected, rel=0.12)
        assert near.mean() == pytest.approx(0, abs=5 * expected / np.sqrt(len(near)))


def test_a_logistic_regression_finds_what_loans_depend_on():
    X, y = make_loans(40_000, random_state=0)
    known = {"burden": X["amount"] / X["income"], "years": X["years in job"], "age": X["age"]}
    known |= {"owned": X["home"] == "owned", "own boss": X["job"] == "self-employed"}
    model = LogisticRegression(C=np.inf, max_iter=1000)
    model.fit(pd.DataFrame(known).astype(float), y == "late")
    np.testing.assert_allclose(model.coef_[0], [1, -0.1, 0, 1.5, -1.5], atol=0.1)
    assert model.intercept_[0] == pytest.approx(-6.5, abs=0.2)


def test_graphs_are_as_documented():
    graph = make_node_classes(2000, random_state=0)
    assert (graph.features.shape, graph.features.dtype) == ((2000, 16), np.float32)
    assert np.unique(graph.labels).tolist() == [0, 1, 2, 3]
    assert {name: left.tolist() for name, left in graph.left_out.items()} == {"OS-1": [3]}
    assert (graph.adjacency != graph.adjacency.T).nnz == 0
    assert not graph.adjacency.diagonal().any()
    assert np.unique(graph.adjacency.data).tolist() == [1]
    assert (as_node_graph(graph.graph).adjacency != graph.adjacency).nnz == 0
    assert np.bincount(graph.labels[graph.splits[0] == 0]).tolist() == [20] * 4
    assert np.bincount(graph.splits[0]).tolist() == [80, 1520, 400]
    few = make_node_classes(100, n_classes=5, n_features=3, random_state=0)
    assert few.features.shape == (100, 3)
    assert few.left_out["OS-1"].tolist() == [4]
    for label in range(5):  # small classes train with half of what is not tested
        own = few.splits[0][few.labels == label]
        assert (own == 0).sum() == min(20, (own != 2).sum() // 2)
    assert make_node_classes(3, n_classes=10, random_state=0).adjacency.shape == (3, 3)


@pytest.mark.parametrize(("homophily", "degree"), [(0.0, 20.0), (0.8, 6.0), (1.0, 2.0)])
def test_edges_are_as_many_and_as_often_within_a_class_as_asked_for(homophily, degree):
    settings = {"n_classes": 5, "homophily": homophily, "mean_degree": degree}
    drawn = make_node_classes(3000, random_state=0, **settings)
    u, v = drawn.adjacency.nonzero()
    expected = homophily + (1 - homophily) / 5  # edges at random join equals too
    assert (drawn.labels[u] == drawn.labels[v]).mean() == pytest.approx(expected, abs=0.02)
    assert drawn.adjacency.sum(axis=1).mean() == pytest.approx(degree, rel=0.03)


@pytest.mark.parametrize("separation", [0.0, 1.0])
def test_features_lie_around_a_mean_of_each_class(separation):
    drawn = make_node_classes(2000, mean_degree=0.0, separation=separation, random_state=0)
    assert drawn.adjacency.nnz == 0
    groups = [drawn.features[drawn.labels == label] for label in range(4)]
    for own in groups:
        np.testing.assert_allclose(own.std(axis=0), 1, atol=0.12)
    size = np.sqrt(np.mean([own.mean(axis=0) ** 2 for own in groups]))
    assert size == pytest.approx(separation, abs=0.25 if separation else 0.08)
