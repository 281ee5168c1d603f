"""Training through skorch: weights, batches, divergence, and no trace in global state."""

import warnings
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from skorch.dataset import Dataset
from torch import nn

from skuq import _networks as networks
from skuq._networks import MLP, TrainingSettings, float64_mlp, train, train_default_regressor
from skuq._networks._skorch import BatchLoader

QUICK = TrainingSettings(learning_rate=5e-3, max_epochs=5, batch_size=256, weight_decay=1e-4)
BUILD = partial(float64_mlp, 4, 3)
X, Y = load_iris(return_X_y=True)
X, Y = scale(X)[::3], Y[::3]
X.flags.writeable = Y.flags.writeable = False


def trained(X=X, y=Y, *, module=BUILD, settings=QUICK, weight=None, seed=0, **options):
    data = {"inputs": X, "weight": np.ones(len(X)) if weight is None else weight}
    loss = networks.WeightedLoss(nn.CrossEntropyLoss(reduction="none"))
    return train(module, loss, data, y, settings=settings, seed=seed, **options)


def assert_same(first, second, **tolerance):
    found, expected = first.state_dict(), second.state_dict()
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value.numpy(), expected[name].numpy(), **tolerance)


def test_a_seed_determines_the_weights_and_leaves_no_trace():
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # read-only data are no reason to warn
        first, same, other = (trained(seed=seed).module for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert_same(first, same, rtol=0)
    assert not torch.allclose(first[0].weight, other[0].weight)


def test_it_is_what_a_plain_skorch_net_learns_and_ready_to_be_evaluated():
    settings = TrainingSettings(learning_rate=0.01, max_epochs=4, batch_size=-1)
    ours = trained(settings=settings, seed=1).module
    options = {"criterion": nn.CrossEntropyLoss, "optimizer": torch.optim.Adam, "lr": 0.01}
    options |= {"max_epochs": 4, "batch_size": -1, "train_split": None, "verbose": 0}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = NeuralNetClassifier(BUILD, **options).fit(X, Y)
    assert_same(ours, net.module_, rtol=1e-9)
    module, history = trained(module=MLP(4, 3, dropout=0.5).double())
    assert not module.training
    assert not any(p.requires_grad for p in module.parameters())
    assert len(history) == QUICK.max_epochs


def test_the_learning_rate_follows_a_cosine_to_zero():
    rates = []

    class Listen(Callback):
        def on_epoch_end(self, net, **kwargs):
            rates.append(net.optimizer_.param_groups[0]["lr"])

    trained(settings=TrainingSettings(0.1, max_epochs=4, cosine=True, callbacks=[Listen()]))
    expected = 0.05 * (1 + np.cos(np.pi * np.arange(1, 5) / 4))
    np.testing.assert_allclose(rates, expected, atol=1e-12)


def test_early_stopping_keeps_the_weights_of_the_best_epoch():
    settings = TrainingSettings(learning_rate=0.3, max_epochs=60, patience=3)
    wrong = {"inputs": X[::7], "weight": np.ones(len(X[::7]))}, np.roll(Y[::7], 5)
    module, history = trained(settings=settings, validation=wrong)
    losses = history[:, "valid_loss"]
    assert len(losses) == np.argmin(losses) + 4 < 60
    with torch.no_grad():
        loss = nn.functional.cross_entropy(module(torch.tensor(X[::7])), torch.tensor(wrong[1]))
    assert float(loss) == pytest.approx(min(losses))


def test_weights_equal_repetition_may_be_zero_and_are_refused_if_a_net_cannot_use_them():
    weight = np.random.default_rng(0).integers(0, 4, 50)
    weighted = X, Y, weight.astype(float)
    repeated = X.repeat(weight, axis=0), Y.repeat(weight), None
    modules = [trained(X, y, weight=each).module for X, y, each in (weighted, repeated)]
    assert_same(*modules, rtol=1e-7, atol=1e-9)
    settings = TrainingSettings(learning_rate=5e-3, max_epochs=2, batch_size=10)
    module = trained(settings=settings, weight=np.eye(50)[0]).module
    assert all(torch.isfinite(p).all() for p in module.parameters())
    with pytest.raises(ValueError, match="`sample_weight` needs"):
        networks.fit_net(NeuralNetClassifier(MLP(4, 3)), X, Y, seed=0, sample_weight=np.ones(50))


@pytest.mark.parametrize("rate", [1e200, 30.0])
def test_divergence_is_an_error_that_names_the_learning_rate(rate):
    settings = TrainingSettings(learning_rate=rate, max_epochs=5, optimizer=torch.optim.SGD)
    with pytest.raises(ValueError, match=r"diverged: .* smaller `learning_rate` than"):
        trained(100 * X, settings=settings)


def test_divergence_of_a_default_network_advises_what_its_user_can_do():
    for kind, outputs in (("classifier", {"n_classes": 3}), ("regressor", {"n_outputs": 1})):
        train_default = getattr(networks, f"train_default_{kind}")
        with pytest.raises(ValueError, match=r"diverged: [^`]*StandardScaler\.$"):
            train_default(np.full_like(X, np.inf), Y, **outputs, seed=0, device="cpu")


def test_heavy_samples_count_in_full_in_batches_of_others():
    """Four of 200 samples hold half of the weight: more than a batch of its own weighs."""
    rng = np.random.default_rng(0)
    X, heavy = rng.uniform(-1, 1, size=(200, 1)), np.arange(200) < 4
    weight = np.where(heavy, 49.0, 1.0)
    y = 0.5 * rng.normal(size=200) + 4 * heavy
    options = {"n_outputs": 1, "seed": 0, "device": "cpu"}
    module = train_default_regressor(X, y, sample_weight=weight, **options)
    outputs = module(torch.tensor(X))[:, 0].numpy()
    assert abs(np.average(outputs, weights=weight) - np.average(y, weights=weight)) < 0.25


def test_an_interrupt_before_anything_is_learnt_is_passed_on():
    class Interrupt(Callback):
        def on_epoch_begin(self, net, **kwargs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(callbacks=[Interrupt()])


class Scaled(nn.Module):
    factor = 1.0

    def forward(self, outputs, targets):
        return self.factor * nn.functional.cross_entropy(outputs, targets)


class Changes(Callback):
    """The loss is multiplied by other factors in the epochs after the first."""

    def __init__(self, factors):
        self.factors = factors

    def on_epoch_end(self, net, **kwargs):
        net.criterion_.factor = self.factors[len(net.history) - 1]


@pytest.mark.parametrize(
    ("factors", "diverges"), [((1.5, 3.0), True), ((0.5, 3.0), False), ((1.5, 1.9), False)]
)
def test_a_loss_diverges_that_doubles_and_never_fell(factors, diverges):
    settings = TrainingSettings(learning_rate=1e-9, max_epochs=3)
    options = {"settings": settings, "seed": 0, "callbacks": [Changes([*factors, 1.0])]}
    task = BUILD, Scaled(), {"inputs": X}, Y
    train(*task, loss_changes=True, **options)  # losses of different epochs say nothing
    with pytest.raises(ValueError, match="diverged") if diverges else nullcontext():
        train(*task, **options)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [-1, 1, 2, 8])
def test_every_sample_comes_once_with_its_target_in_batches_of_at_least_two(batch_size, shuffle):
    for n in (1, 2, 7, 8, 9, 10, 17):
        X = np.arange(2 * n).reshape(n, 2)
        loader = BatchLoader(Dataset(X, np.arange(n)), batch_size, shuffle)
        rows, targets = zip(*loader, strict=True)
        seen, sizes = torch.cat(targets), list(map(len, targets))
        assert len(sizes) == len(loader)
        assert sorted(seen.tolist()) == list(range(n))
        assert torch.cat(rows).equal(torch.as_tensor(X)[seen])
        if batch_size > 1 and n > 1:  # batch normalisation needs two samples
            assert min(sizes) > 1
            assert max(sizes) <= batch_size + 1


def test_it_trains_what_the_loader_of_torch_trains_and_takes_a_dict():
    options = {"criterion": nn.CrossEntropyLoss, "max_epochs": 5, "lr": 0.1, "batch_size": 8}
    nets = []
    for iterator in ({}, {"iterator_train": BatchLoader}):
        torch.manual_seed(0)
        net = NeuralNetClassifier(BUILD, train_split=None, verbose=0, **options, **iterator)
        nets.append(net.fit(X[:40], Y[:40]))
    np.testing.assert_allclose(nets[0].predict_proba(X), nets[1].predict_proba(X), rtol=1e-6)
    data = {"X": np.eye(4), "sample_weight": np.arange(4.0)}
    first, second = BatchLoader(Dataset(data, np.arange(4)), 2)
    assert second[0]["X"].equal(torch.eye(4, dtype=torch.float64)[2:])
    assert first[0]["sample_weight"].tolist() == [0, 1]
