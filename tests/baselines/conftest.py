"""Data and a network that the tests of the baselines share."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale
from skorch import NeuralNetClassifier
from torch import nn

from skuq._networks import MLP


@pytest.fixture(scope="package")
def iris():
    X, y = load_iris(return_X_y=True)
    return scale(X), y


@pytest.fixture(scope="package")
def dropped(iris):
    """A trained network with dropout; nothing may change it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = MLP(4, 3, hidden_sizes=(6,), dropout=0.5)
        options = {"criterion": nn.CrossEntropyLoss, "max_epochs": 20, "lr": 0.1, "verbose": 0}
        net = NeuralNetClassifier(module, **options)
        module = net.fit(iris[0].astype(np.float32), iris[1]).module_
    module.zero_grad()
    return module.double().eval()
