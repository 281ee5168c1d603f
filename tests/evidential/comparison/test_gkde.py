"""The kernel prior and the teacher in the loss, term by term."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Dirichlet, kl_divergence

from skuq.evidential import GraphClassifier, KernelDirichletGNN
from skuq.evidential.comparison._gkde import KernelLoss
from skuq.evidential.comparison._kernel import kernel_dirichlet

pytest.importorskip("dgl")

ALPHA = torch.tensor([[3.0, 1.5, 1.2], [1.0, 9.0, 2.0], [1.1, 1.1, 40.0]])
CODES = torch.tensor([0, -1, 1])
WEIGHT = torch.tensor([2.0, 0.0, 1.0])
PRIOR = torch.tensor([[2.0, 1.0, 1.0], [1.0, 1.4, 1.2], [1.0, 1.0, 3.0]]).double()
TEACHER = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]).double()
INPUTS = {"weight": WEIGHT, "prior": PRIOR, "log_proba": TEACHER.log()}


def expected_square():
    """Of the two labelled nodes, by moments of the Dirichlet distribution."""
    values = []
    for row in (0, 2):
        law = Dirichlet(ALPHA[row].double())
        true = torch.nn.functional.one_hot(CODES[row], 3)
        values.append(((true - law.mean) ** 2 + law.variance).sum())
    return (2 * values[0] + values[1]) / 3


@pytest.mark.parametrize("teacher_weight", [0.0, 0.25])
def test_loss_while_training(teacher_weight):
    loss = KernelLoss().train()
    loss.teacher_weight = teacher_weight
    alpha = ALPHA.double()
    from_prior = kl_divergence(Dirichlet(alpha), Dirichlet(PRIOR)).mean()
    student = Categorical(alpha / alpha.sum(dim=1, keepdim=True))
    from_teacher = kl_divergence(student, Categorical(TEACHER)).mean()
    expected = expected_square() + 0.1 * from_prior + teacher_weight * from_teacher
    share = torch.full((len(ALPHA),), 1 / len(ALPHA))
    torch.testing.assert_close(loss(ALPHA, CODES, {**INPUTS, "share": share}), expected)


@pytest.mark.slow
def test_weight_counts_as_repetition(data, nodes, y):
    weight = np.where(np.arange(len(nodes)) == 3, 3.0, 1.0)
    rows = np.repeat(np.arange(len(nodes)), weight.astype(int))
    weighted = model(data).fit(nodes, y, sample_weight=weight)
    repeated = model(data).fit(nodes[rows], y[rows])
    np.testing.assert_allclose(weighted.alpha_, repeated.alpha_, rtol=1e-3)


def test_loss_while_validating():
    loss = KernelLoss().eval()
    loss.teacher_weight = 1.0
    torch.testing.assert_close(loss(ALPHA, CODES, {"weight": WEIGHT}), expected_square())


def model(data, **settings):
    settings = {"hidden_sizes": (16,), "max_epochs": 60, "random_state": 0, **settings}
    return KernelDirichletGNN(GraphClassifier(data.graph, **settings))


@pytest.fixture(scope="module")
def fitted(data, nodes, y):
    return model(data).fit(nodes, y)


def test_teacher_and_prior(fitted, data, nodes, y):
    assert fitted.teacher_.hidden_sizes == (64,)
    assert fitted.network_.network.layers[0].linear.out_features == 16
    expected = kernel_dirichlet(fitted.graph_.adjacency, nodes, y, 3)
    np.testing.assert_allclose(fitted.prior_, expected, rtol=1e-6)


def test_it_learns(fitted, data, others):
    assert fitted.score(others, data.labels[others]) > 0.8
    assert (fitted.alpha_ >= 1).all()


@pytest.mark.slow
def test_the_teacher_weighs_more_from_epoch_to_epoch(data, nodes, y, monkeypatch):
    weights = []
    forward = KernelLoss.forward

    def recorded(self, *args):
        weights.append(self.teacher_weight)
        return forward(self, *args)

    monkeypatch.setattr(KernelLoss, "forward", recorded)
    model(data, max_epochs=202).fit(nodes, y)
    np.testing.assert_allclose(weights, np.minimum(1, np.arange(1, 203) / 200))


@pytest.mark.slow
def test_unlabelled_nodes_are_drawn_to_the_prior(data, nodes, y, others, fitted):
    """Far from its labels the prior has no evidence, and neither has the student."""
    few = model(data).fit(nodes[:6], y[:6])
    assert few.alpha_[others].sum() < fitted.alpha_[others].sum()
    correlation = np.corrcoef(np.log(few.alpha_.sum(axis=1)), few.prior_.sum(axis=1))[0, 1]
    assert correlation > 0.3


def test_weights_enter_the_prior(data, nodes, y):
    weight = np.where(np.arange(len(nodes)) == 0, 5.0, 1.0)
    heavy = model(data, max_epochs=2).fit(nodes, y, weight)
    even = model(data, max_epochs=2).fit(nodes, y)
    added = heavy.prior_[nodes[0]] - even.prior_[nodes[0]]
    np.testing.assert_allclose(added[y[0]], 4 / np.sqrt(2 * np.pi), rtol=1e-6)


def test_validation(data, nodes, y, others):
    stopped = model(data, learning_rate=0.1, patience=3)
    stopped.fit(nodes, y, X_val=others, y_val=data.labels[others])
    assert len(stopped.history_) < 60
    assert "valid_loss" in stopped.teacher_.history_[-1]
