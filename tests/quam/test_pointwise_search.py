"""The batched search against Algorithm 1, written out one search and one step at a time."""

from copy import deepcopy
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from torch import nn
from torch.nn.functional import cross_entropy

from skuq._networks import MLP, TrainingSet, stack_parameters, training_batches
from skuq.quam import PointwiseSearch, QUAMClassifier
from skuq.quam import _gradient_search as gradients
from skuq.quam import _pointwise_search as pointwise
from skuq.quam._importance_sampling import Trajectories
from skuq.quam._objectives import Targeted

HYPER = {"c0": 2.0, "eta": 1.3, "learning_rate": 0.1}
GAMMA = 0.05


def make_problem(module, shape, n_classes, seed=0, n_train=12):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n_train, *shape, generator=generator, dtype=torch.float64)
    y = torch.randint(n_classes, (n_train,), generator=generator)
    weight = torch.rand(n_train, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        reference_loss = cross_entropy(module(X), y, reduction="none")
    x = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    return x, TrainingSet(X, y, weight, reference_loss)


def search(module, x, train, batches, *, parameters=None, prior_precision=0.0, **hyper):
    """The search for every class of every point, predictions as log-probabilities."""
    n_classes = module(x).shape[1]
    targets = torch.arange(n_classes).expand(len(x), -1)
    weights, objective = stack_parameters(module, len(x) * n_classes, parameters), Targeted(targets)
    searched = gradients.Searched.of(module, train, [*weights], float(train.weight.sum()))
    descent = gradients.Descent(searched, objective, prior_precision=prior_precision, n_bytes=2**26)
    schedule = gradients.penalty_schedule(len(batches) - 1, update_every=1, decay=1.0, **hyper)
    attack, steps = pointwise.PointAttack(x, objective, torch.ones(len(x))), torch.stack([*batches])
    mini_batches = gradients.MiniBatches(train, steps)
    found = pointwise.run_searches(descent, weights, attack, mini_batches, schedule)
    return Trajectories(found.outputs.log_softmax(-1), found.excess_loss)


def batch_loss(module, train, rows, prior_precision):
    losses = cross_entropy(module(train.X[rows]), train.y[rows], reduction="none")
    square = sum(w.square().sum() for w in module.parameters())
    mean = (train.weight[rows] * losses).sum() / train.weight[rows].sum()
    return mean + prior_precision / 2 * square / train.weight.sum()


def algorithm_1(reference, x, target, train, batches, *, c0, eta, learning_rate, prior_precision):
    """Alg. 1 with the target of App. C.1, literally: one test point, one class."""
    model = deepcopy(reference).requires_grad_(True)  # Line 1
    sizes = ((p, p.pow(2).mean().sqrt().item()) for p in model.parameters())
    optimizer = torch.optim.Adam([{"params": p, "lr": learning_rate * s} for p, s in sizes])
    c = c0
    log_proba, excess = [], []
    for m, rows in enumerate(batches):  # Line 2
        l_ref = batch_loss(reference, train, rows, prior_precision)
        l_pen = batch_loss(model, train, rows, prior_precision) - (l_ref + GAMMA)  # Line 3
        log_p = model(x[None])[0].log_softmax(-1)
        if m > 0:  # the model that the last MINIMIZE returned
            log_proba.append(log_p.detach())
            excess.append((l_pen + GAMMA).detach())
        if m == len(batches) - 1:
            break
        l_adv = -log_p[target]  # Line 4
        optimizer.zero_grad()
        (l_adv + c * l_pen).backward()  # Line 5
        optimizer.step()  # Line 6
        c = eta * c  # Line 9
    return torch.stack(log_proba), torch.stack(excess)


@pytest.mark.parametrize(
    ("make", "shape", "batch_size", "prior_precision"),
    [
        (lambda: MLP(4, 3, hidden_sizes=(6, 5)), (4,), 5, 0.0),
        (lambda: nn.Linear(2, 2), (2,), 100, 0.0),
        (lambda: nn.Linear(2, 2), (2,), 5, 7.0),
        (lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)), (3,), 100, 0.0),
        (lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 2)), (1, 4), 5, 3.0),
    ],
    ids=["mlp", "linear", "prior", "batchnorm", "convolution"],
)
def test_batched_search_equals_algorithm_1(make, shape, batch_size, prior_precision):
    torch.manual_seed(batch_size)
    module = make().double().eval().requires_grad_(False)
    n_classes = module(torch.zeros(1, *shape).double()).shape[1]
    x, train = make_problem(module, shape, n_classes)
    generator = torch.Generator().manual_seed(0)
    batches = list(training_batches(len(train.X), batch_size, 5, generator))
    hyper = {"prior_precision": prior_precision, **HYPER}
    found = search(module, x, train, batches, **hyper)
    assert found.outputs.shape == (3, n_classes, 4, n_classes)
    assert found.excess_loss.shape == (3, n_classes, 4)
    for i, target in product(range(3), range(n_classes)):
        log_proba, excess = algorithm_1(module, x[i], target, train, batches, **hyper)
        torch.testing.assert_close(found.outputs[i, target], log_proba, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(found.excess_loss[i, target], excess, rtol=1e-8, atol=1e-9)


def test_weighted_posterior_is_that_of_the_laplace_approximation():
    """Near any weights, the negative log posterior curves as the precision of Laplace's Gaussian.
    Both are those of a linear layer with a softmax, where the curvature is exact."""
    module = nn.Linear(2, 3).double().requires_grad_(False)
    _, train = make_problem(module, (2,), 3)
    phi = torch.cat([train.X, torch.ones(12, 1)], dim=1).double()
    p = module(train.X).softmax(-1)
    curvature = sum(
        w * torch.kron(torch.diag(q) - torch.outer(q, q), torch.outer(f, f))
        for w, q, f in zip(train.weight, p, phi, strict=True)
    )
    precision = curvature + 7.0 * torch.eye(9)
    step = 1e-3 * torch.randn(9, generator=torch.Generator().manual_seed(1)).double()
    both_ways = torch.stack([step, -step]).reshape(2, 3, 3)
    weight, bias = module.weight + both_ways[..., :2], module.bias + both_ways[..., 2]
    searched = gradients.Searched.of(module, train, ["weight", "bias"], float(train.weight.sum()))
    objective = Targeted(torch.arange(3)[None])
    descent = gradients.Descent(searched, objective, prior_precision=7.0, n_bytes=2**20)
    batch = gradients.MiniBatches(train, torch.arange(12)[None])[0]
    moved = {"weight": weight, "bias": bias}
    excess = descent.excess_of_each(moved, batch) @ batch.weight + descent.prior(moved)
    posterior = train.weight.sum() * excess
    torch.testing.assert_close(posterior.mean(), step @ precision @ step / 2, rtol=1e-5, atol=0)


def test_tensors_of_zeros_stay_where_they_are():
    """A LogisticRegression without intercept must not be given one by the search."""
    module = nn.Linear(2, 2).double()
    nn.init.zeros_(module.bias)
    x, train = make_problem(module, (2,), 2)
    data, names = (module, x, train, [torch.arange(12)] * 5), (["weight", "bias"], ["weight"])
    both, weight = (search(*data, parameters=each, **HYPER) for each in names)
    torch.testing.assert_close(both.outputs, weight.outputs, rtol=0, atol=0)


def test_mini_batches_visit_every_sample_once_per_epoch_or_are_the_whole_set():
    batches = list(training_batches(10, 5, 6, torch.Generator().manual_seed(0)))
    epochs = [torch.cat(batches[i : i + 2]).sort().values.tolist() for i in (0, 2, 4)]
    assert epochs == [list(range(10))] * 3
    assert not torch.equal(batches[0], batches[2])
    whole = training_batches(7, 7, 3, torch.Generator())
    assert [batch.tolist() for batch in whole] == [list(range(7))] * 3


@pytest.mark.parametrize("n_targets", [None, 3])
def test_searches_of_a_point_in_turn_find_the_same(monkeypatch, bytes_of_a_tensor, n_targets):
    """Where all stacked weights would take too much memory, they run in slices."""
    X, y = make_classification(60, n_classes=4, n_informative=6, n_features=8, random_state=0)
    torch.manual_seed(0)
    net = MLP(8, 4, hidden_sizes=(20,)).double()
    model = QUAMClassifier(net, search=PointwiseSearch(n_steps=4), n_targets=n_targets).fit(X, y)
    together = model.predict_uncertainty(X[:3])
    found = model.adversarial_models(X[:3])
    bytes_of_a_tensor(-(-3 * 2 * sum(p.nbytes for p in net.parameters()) // 4))
    spy = Mock(wraps=gradients.stack_parameters)
    monkeypatch.setattr(gradients, "stack_parameters", spy)
    apart = model.predict_uncertainty(X[:3])
    stacks = [call.args[1] for call in spy.call_args_list]
    assert stacks == ([6, 6] if n_targets is None else [6, 3])
    np.testing.assert_allclose(apart.epistemic, together.epistemic, rtol=1e-5)
    np.testing.assert_array_equal(model.adversarial_models(X[:3]).target, found.target)
