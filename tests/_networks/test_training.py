"""Training through skorch: weights, batches, divergence, and no trace in global state."""

import warnings
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

from skuq._networks import (
    MLP,
    TrainingSettings,
    WeightedClassifier,
    WeightedLoss,
    fit_net,
    float64_mlp,
    train,
    train_default_classifier,
    train_default_regressor,
)
from skuq._networks._skorch import BatchLoader

QUICK = TrainingSettings(learning_rate=5e-3, max_epochs=5, batch_size=256, weight_decay=1e-4)
BUILD = partial(float64_mlp, 4, 3)


@pytest.fixture(scope="module")
def data():
    X, y = load_iris(return_X_y=True)
    X, y = scale(X)[::3], y[::3]
    X.flags.writeable = y.flags.writeable = False
    return X, y


def cross_entropy():
    return WeightedLoss(nn.CrossEntropyLoss(reduction="none"))


def trained(X, y, *, module=BUILD, settings=QUICK, sample_weight=None, **options):
    weight = np.ones(len(X)) if sample_weight is None else sample_weight
    data = {"inputs": X, "weight": weight}
    return train(module, cross_entropy(), data, y, settings=settings, **options)


def weights_of(module):
    return {name: value.numpy() for name, value in module.state_dict().items()}


def assert_same(first, second, **tolerance):
    for name, value in weights_of(first).items():
        np.testing.assert_allclose(value, weights_of(second)[name], **tolerance)


def test_a_seed_determines_the_weights_and_leaves_no_trace(data):
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # read-only data are no reason to warn
        first, same, other = (trained(*data, seed=seed).module for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert_same(first, same, rtol=0)
    assert not np.allclose(weights_of(first)["0.weight"], weights_of(other)["0.weight"])


def test_it_is_what_a_plain_skorch_net_learns(data):
    settings = TrainingSettings(learning_rate=0.01, max_epochs=4, batch_size=-1)
    ours = trained(*data, settings=settings, seed=1).module
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = NeuralNetClassifier(
            float64_mlp,
            module__n_features=4,
            module__n_outputs=3,
            criterion=nn.CrossEntropyLoss,
            optimizer=torch.optim.Adam,
            lr=0.01,
            max_epochs=4,
            batch_size=-1,
            train_split=None,
            verbose=0,
        ).fit(*data)
    assert_same(ours, net.module_, rtol=1e-9)


def test_the_network_comes_back_ready_to_be_evaluated(data):
    module, history = trained(*data, module=MLP(4, 3, dropout=0.5).double(), seed=0)
    assert not module.training
    assert not any(p.requires_grad for p in module.parameters())
    assert len(history) == QUICK.max_epochs


def test_the_learning_rate_follows_a_cosine_to_zero(data):
    rates = []

    class Listen(Callback):
        def on_epoch_end(self, net, **kwargs):
            rates.append(net.optimizer_.param_groups[0]["lr"])

    settings = TrainingSettings(learning_rate=0.1, max_epochs=4, cosine=True, callbacks=[Listen()])
    trained(*data, settings=settings, seed=0)
    expected = 0.05 * (1 + np.cos(np.pi * np.arange(1, 5) / 4))
    np.testing.assert_allclose(rates, expected, atol=1e-12)


def test_early_stopping_keeps_the_weights_of_the_best_epoch(data):
    settings = TrainingSettings(learning_rate=0.3, max_epochs=60, patience=3)
    X, y = data
    wrong = {"inputs": X[::7], "weight": np.ones(len(X[::7]))}, np.roll(y[::7], 5)
    module, history = trained(X, y, settings=settings, seed=0, validation=wrong)
    losses = history[:, "valid_loss"]
    assert len(losses) == np.argmin(losses) + 4 < 60
    with torch.no_grad():
        loss = nn.functional.cross_entropy(module(torch.tensor(X[::7])), torch.tensor(wrong[1]))
    assert float(loss) == pytest.approx(min(losses))


WEIGHT = np.random.default_rng(0).integers(0, 4, 50)


def test_weights_equal_repetition_in_one_batch(data):
    X, y = data
    weighted = trained(X, y, seed=0, sample_weight=WEIGHT.astype(float)).module
    repeated = trained(X.repeat(WEIGHT, axis=0), y.repeat(WEIGHT), seed=0).module
    assert_same(weighted, repeated, rtol=1e-7, atol=1e-9)
    options = {"criterion__reduction": "none", "max_epochs": 5, "batch_size": -1}
    nets = [
        fit_net(weighted_classifier(**options), rows, labels, seed=0, sample_weight=weight).module_
        for rows, labels, weight in (
            (X, y, WEIGHT.astype(float)),
            (X.repeat(WEIGHT, axis=0), y.repeat(WEIGHT), None),
        )
    ]
    assert_same(*(net.requires_grad_(False) for net in nets), rtol=1e-7, atol=1e-9)


def test_batches_of_zero_weight_do_not_spoil_training(data):
    settings = TrainingSettings(learning_rate=5e-3, max_epochs=2, batch_size=10)
    module = trained(*data, settings=settings, seed=0, sample_weight=np.eye(50)[0]).module
    assert all(torch.isfinite(p).all() for p in module.parameters())


@pytest.mark.parametrize("rate", [1e200, 30.0])
def test_divergence_is_an_error_that_names_the_learning_rate(data, rate):
    settings = TrainingSettings(learning_rate=rate, max_epochs=5, optimizer=torch.optim.SGD)
    X = 100 * data[0]
    with pytest.raises(ValueError, match=r"diverged: .* smaller `learning_rate` than"):
        trained(X, data[1], settings=settings, seed=0)


@pytest.mark.parametrize("train_default", [train_default_classifier, train_default_regressor])
def test_divergence_of_a_default_network_advises_what_its_user_can_do(data, train_default):
    X, y = np.full_like(data[0], np.inf), data[1]
    outputs = {"n_classes": 3} if train_default is train_default_classifier else {"n_outputs": 1}
    with pytest.raises(ValueError, match=r"diverged: [^`]*StandardScaler\.$"):
        train_default(X, y, **outputs, seed=0, device="cpu")


def weighted_classifier(**options):
    return WeightedClassifier(
        BUILD, criterion=nn.CrossEntropyLoss, train_split=None, verbose=0, **options
    )


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_heavy_samples_count_in_full_in_batches_of_others(kind):
    """Four of 200 samples hold half of the weight: more than a batch of its own weighs."""
    rng = np.random.default_rng(0)
    X, weight = rng.uniform(-1, 1, size=(200, 1)), np.ones(200)
    weight[:4] = 49.0
    heavy = np.arange(200) < 4
    if kind == "regressor":
        y = 0.5 * rng.normal(size=200) + 4 * heavy
        module = train_default_regressor(
            X, y, sample_weight=weight, n_outputs=1, seed=0, device="cpu"
        )
        outputs = module(torch.tensor(X))[:, 0].numpy()
        assert abs(np.average(outputs, weights=weight) - np.average(y, weights=weight)) < 0.25
        return
    net = WeightedClassifier(
        partial(nn.Linear, 1, 2),
        criterion=nn.CrossEntropyLoss,
        criterion__reduction="none",
        train_split=None,
        max_epochs=60,
        batch_size=20,
        lr=0.05,
        verbose=0,
    )
    fitted = fit_net(net, X.astype(np.float32), heavy.astype(int), seed=0, sample_weight=weight)
    proba = fitted.module_(torch.tensor(X, dtype=torch.float32)).softmax(1)[:, 1].detach().numpy()
    assert abs(np.average(proba, weights=weight) - 0.5) < 0.12


@pytest.mark.parametrize(
    ("net", "word"),
    [
        (NeuralNetClassifier(MLP(4, 3), verbose=0), "`sample_weight` needs"),
        (weighted_classifier(criterion__reduction="mean"), "criterion__reduction='none'"),
    ],
)
def test_weights_that_a_net_cannot_use_are_refused(data, net, word):
    with pytest.raises(ValueError, match=word):
        fit_net(net, *data, seed=0, sample_weight=np.ones(50))


class Interrupt(Callback):
    def on_epoch_begin(self, net, **kwargs):
        raise KeyboardInterrupt


def test_an_interrupt_before_anything_is_learnt_is_passed_on(data):
    with pytest.raises(KeyboardInterrupt):
        trained(*data, seed=0, callbacks=[Interrupt()])


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
def test_a_loss_diverges_that_doubles_and_never_fell(data, factors, diverges):
    settings = TrainingSettings(learning_rate=1e-9, max_epochs=3)
    options = {"settings": settings, "seed": 0, "callbacks": [Changes([*factors, 1.0])]}
    task = BUILD, Scaled(), {"inputs": data[0]}, data[1]
    train(*task, loss_changes=True, **options)  # losses of different epochs say nothing
    if diverges:
        with pytest.raises(ValueError, match="diverged"):
            train(*task, **options)
    else:
        train(*task, **options)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [-1, 1, 2, 8])
def test_every_sample_comes_once_with_its_target_in_batches_of_at_least_two(batch_size, shuffle):
    for n in (1, 2, 7, 8, 9, 10, 17):
        X = np.arange(2 * n).reshape(n, 2)
        loader = BatchLoader(Dataset(X, np.arange(n)), batch_size, shuffle)
        batches = list(loader)
        assert len(batches) == len(loader)
        seen = torch.cat([y for _, y in batches])
        assert sorted(seen.tolist()) == list(range(n))
        assert torch.cat([x for x, _ in batches]).equal(torch.as_tensor(X)[seen])
        sizes = [len(y) for _, y in batches]
        if batch_size > 1 and n > 1:  # batch normalisation needs two samples
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
