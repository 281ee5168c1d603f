"""Losses and targets of Mirage against the equations of the paper, written out in slow loops."""

import math
import warnings

import numpy as np
import pytest
import scipy.stats
import torch

from skuq.mirage import GaussianMirageLoss, MirageLoss, confidence_overlap, target_table

ABC = np.array(["a", "b", "c"])
SUBSETS = {"a": ["a", "b"], "b": ["c"], "c": []}
WEIGHTS = {"a": {"b": 0.25, "c": 0.75}, "b": {"c": 1.0}, "c": {"a": 0.5, "b": 0.5}}
TARGETS = target_table(ABC, 0.15)
both_divergences = pytest.mark.parametrize("kl", ["reverse", "forward"])


def equation_10(epsilon, y, label, subsets):
    plausible = {y, *subsets[y]}
    share = (1 - epsilon) / len(plausible) if label in plausible else 0
    return share + epsilon * (label == y)


@pytest.mark.parametrize(
    ("classes", "epsilon", "confusable", "expected"),
    [
        *(
            (np.arange(n), epsilon, None, lambda e, y, k, n=n: (1 - e) / n + e * (k == y))  # Eq. 5
            for n, epsilon in [(2, 0.01), (3, 0.15), (7, 0.7), (3, 1.0)]
        ),
        (ABC, 0.2, SUBSETS, lambda e, y, k: equation_10(e, y, k, SUBSETS)),
        (ABC, 0.6, WEIGHTS, lambda e, y, k: e if k == y else (1 - e) * WEIGHTS[y].get(k, 0)),  # 12
    ],
)
def test_target_is_equation_5_10_or_12(classes, epsilon, confusable, expected):
    table = target_table(classes, epsilon, confusable)
    written = [[expected(epsilon, y, label) for label in classes] for y in classes]
    np.testing.assert_allclose(table, written, atol=1e-15)


def test_only_a_target_that_does_not_prefer_the_truth_is_warned_of():
    # At 0.5, the weights give a tie: row b puts all the rest on c.
    unwise = [(0, None), (0, dict.fromkeys("abc", "abc")), (0.3, WEIGHTS), (0.5, WEIGHTS)]
    for epsilon, confusable in unwise:
        with pytest.warns(UserWarning, match="prefer the true class"):
            target_table(ABC, epsilon, confusable)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epsilon, confusable in [(1e-3, None), (1e-3, SUBSETS), (0.51, WEIGHTS)]:
            target_table(ABC, epsilon, confusable)


def equation_7(logits, labels, inside, targets, lambda_, kl):
    f, t = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), targets[labels]
    divergence = scipy.stats.entropy(*((f, t) if kl == "reverse" else (t, f)), axis=1)
    cross_entropy = -np.log(f[np.arange(len(f)), labels])
    return np.where(inside, lambda_ * divergence, (1 - lambda_) * cross_entropy).mean()


RNG = np.random.default_rng(0)
LOGITS, LABELS, MIXED = RNG.normal(scale=2, size=(12, 3)), np.arange(12) % 3, RNG.random(12) < 0.5


@both_divergences
@pytest.mark.parametrize(
    ("lambda_", "inside", "dtype"),
    [
        (0.0, MIXED, torch.float64),
        (0.5, MIXED | True, torch.float64),
        (0.9, MIXED, torch.float32),
        (0.9, MIXED & False, torch.float64),
        (1.0, MIXED, torch.float64),
    ],
)
def test_loss_is_equation_7_in_the_precision_of_the_logits(kl, lambda_, inside, dtype):
    criterion = MirageLoss(TARGETS, lambda_, kl)
    codes = torch.tensor(criterion.region_codes(LABELS, inside))
    loss = criterion(torch.tensor(LOGITS, dtype=dtype), codes)
    expected = equation_7(LOGITS, LABELS, inside, TARGETS, lambda_, kl)
    assert loss.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert float(loss) == pytest.approx(expected, rel=tolerance, abs=1e-14)
    logits = torch.tensor(LOGITS, requires_grad=True)
    assert torch.autograd.gradcheck(criterion, (logits, codes))


def test_targets_may_be_integers_and_only_the_forward_divergence_pulls_at_certain_predictions():
    loss = MirageLoss([[1, 0], [0, 1]], 1.0, "forward")(torch.zeros(1, 2), torch.tensor([2]))
    assert float(loss) == pytest.approx(math.log(2))
    certain = torch.tensor([[40.0, 0.0, 0.0]], dtype=torch.float64)
    assert with_gradient(certain, TARGETS, "reverse", [3])[1].abs().max() < 1e-12
    # 1 less the target's 0.43
    assert with_gradient(certain, TARGETS, "forward", [3])[1].abs().max() > 0.5


def with_gradient(logits, targets, kl, codes):
    logits = logits.clone().requires_grad_()
    loss = MirageLoss(targets, 1.0, kl)(logits, torch.tensor(codes))
    loss.backward()
    return float(loss.detach()), logits.grad


@both_divergences
def test_divergence_is_zero_and_flat_at_the_target_and_finite_without_mass_on_a_class(kl):
    loss, gradient = with_gradient(torch.tensor(np.log(TARGETS)), TARGETS, kl, [3, 4, 5])
    assert loss == pytest.approx(0, abs=1e-14)
    assert float(gradient.abs().max()) < 1e-14
    subset = target_table(ABC, 0.2, SUBSETS)
    for dtype in (torch.float32, torch.float64):
        loss, gradient = with_gradient(torch.zeros(1, 3, dtype=dtype), subset, kl, [3])
        assert torch.isfinite(gradient).all()
        assert gradient[0, 2] > 0.1  # descent lowers the implausible class
        expected = sum(math.log((1 / 3) / t) / 3 for t in (0.6, 0.4, 1e-6))
        assert loss == pytest.approx(expected, rel=1e-6) if kl == "reverse" else loss < np.inf


@pytest.mark.parametrize(
    ("lambda_", "dtype"), [(0.25, torch.float64), (1.0, torch.float32), (3.0, torch.float64)]
)
def test_gaussian_loss_is_equations_14_to_16(lambda_, dtype):
    rng = np.random.default_rng(1)
    outputs, truth, inside = rng.normal(size=(9, 2)), rng.normal(size=9), np.arange(9) % 3 == 0
    mean, log_variance = outputs.T
    likelihood = 0.5 * ((truth - mean) ** 2 / np.exp(log_variance) + log_variance)
    terms = np.where(inside, lambda_ * (log_variance - math.log(4)) ** 2, likelihood)
    y = torch.tensor(np.column_stack([truth, inside]), dtype=dtype)
    criterion = GaussianMirageLoss(4.0, lambda_)
    loss = criterion(torch.tensor(outputs, dtype=dtype), y)
    assert loss.dtype == dtype
    rel = 1e-12 if dtype == torch.float64 else 1e-5
    assert float(loss) == pytest.approx(terms.mean(), rel=rel)
    exact = torch.tensor(outputs, requires_grad=True)
    assert torch.autograd.gradcheck(criterion, (exact, y.double()))
    # Without a region, it is that of torch.
    outputs, truth = torch.tensor(outputs), torch.tensor(truth)
    expected = torch.nn.GaussianNLLLoss()(outputs[:, 0], truth, outputs[:, 1].exp())
    torch.testing.assert_close(criterion(outputs, torch.stack([truth, 0 * truth], 1)), expected)


def test_overlap_is_the_common_area_of_histograms():
    values = np.linspace(0.05, 0.95, 50)
    assert confidence_overlap(values, values[::-1]) == pytest.approx(1)
    assert confidence_overlap(values, np.repeat(values, 3)) == pytest.approx(1)
    assert confidence_overlap([0.4, 0.44], [0.56, 1.0]) == 0
    inside, outside = RNG.beta(3, 3, size=70), RNG.beta(6, 2, size=310)
    area = 0.0
    for k in range(20):
        area += min(np.mean((k / 20 <= v) & (v < (k + 1) / 20)) for v in (inside, outside))
    assert 0.1 < area < 0.9
    assert confidence_overlap(inside, outside) == pytest.approx(area)
    assert confidence_overlap(outside, inside) == pytest.approx(area)
