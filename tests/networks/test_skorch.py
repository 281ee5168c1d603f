"""Batches by index: every sample once, never a batch of one."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from skorch.dataset import Dataset
from torch import nn

from skuq.networks import MLP
from skuq.networks._skorch import BatchLoader


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 10, 17])
@pytest.mark.parametrize("batch_size", [-1, 1, 2, 8])
def test_every_sample_comes_once_with_its_target_and_length_is_the_number_of_batches(
    n, batch_size, shuffle
):
    X = np.arange(2 * n).reshape(n, 2)
    loader = BatchLoader(Dataset(X, np.arange(n)), batch_size, shuffle)
    batches = list(loader)
    assert len(batches) == len(loader)
    seen = torch.cat([y for _, y in batches])
    assert sorted(seen.tolist()) == list(range(n))
    assert torch.cat([x for x, _ in batches]).equal(torch.as_tensor(X)[seen])
    sizes = [len(y) for _, y in batches]
    if batch_size > 1 and n > 1:
        assert min(sizes) > 1
        assert max(sizes) <= batch_size + 1


def test_inputs_may_be_a_dict():
    data = {"X": np.eye(4), "sample_weight": np.arange(4.0)}
    first, second = BatchLoader(Dataset(data, np.arange(4)), 2)
    assert second[0]["X"].equal(torch.eye(4, dtype=torch.float64)[2:])
    assert first[0]["sample_weight"].tolist() == [0, 1]


def test_it_trains_what_the_loader_of_torch_trains():
    X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    nets = []
    for options in ({}, {"iterator_train": BatchLoader}):
        torch.manual_seed(0)
        net = NeuralNetClassifier(
            MLP(3, 2),
            criterion=nn.CrossEntropyLoss,
            max_epochs=5,
            lr=0.1,
            batch_size=8,
            train_split=None,
            verbose=0,
            **options,
        )
        nets.append(net.fit(X, y))
    np.testing.assert_allclose(nets[0].predict_proba(X), nets[1].predict_proba(X), rtol=1e-6)


@pytest.mark.parametrize("n", [65, 129])
def test_batch_normalisation_trains_whatever_is_left_over(n):
    X = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    net = NeuralNetClassifier(
        MLP(3, 2, batch_norm=True),
        criterion=nn.CrossEntropyLoss,
        max_epochs=1,
        batch_size=64,
        train_split=None,
        iterator_train=BatchLoader,
        verbose=0,
    )
    assert net.fit(X, (X[:, 0] > 0).astype(int)).predict(X).shape == (n,)
