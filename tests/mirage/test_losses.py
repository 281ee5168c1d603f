"""Losses and targets of Mirage against the equations of the paper, written out in slow loops."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skuq.mirage import GaussianMirageLoss, MirageLoss, confidence_overlap, target_table

ABC = np.array(["a", "b", "c"])
SUBSETS = {"a": ["a", "b"], "b": ["c"], "c": []}
WEIGHTS = {"a": {"b": 0.25, "c": 0.75}, "b": {"c": 1.0}, "c": {"a": 0.5, "b": 0.5}}


# --- targets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.01, 0.15, 0.7, 1.0])
@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_uniform_target_is_equation_5(epsilon, n_classes):
    table = target_table(np.arange(n_classes), epsilon)
    for y in range(n_classes):
        for label in range(n_classes):
            expected = (1 - epsilon) / n_classes + (epsilon if label == y else 0)
            assert table[y, label] == pytest.approx(expected, abs=1e-15)


def test_limits_of_epsilon_are_equation_8():
    with pytest.warns(UserWarning, match=r"epsilon=0 .* will flip"):
        assert target_table(ABC, 0) == pytest.approx(np.full((3, 3), 1 / 3))
    np.testing.assert_array_equal(target_table(ABC, 1), np.eye(3))


def test_subset_target_is_equation_11_for_the_example_of_the_paper():
    epsilon = 0.3
    plausible = {1: {1, 2}, 2: {1, 2, 3}, 3: {3}}
    table = target_table(np.array([1, 2, 3]), epsilon, plausible)
    assert table[0].tolist() == pytest.approx([epsilon + 0.7 / 2, 0.7 / 2, 0])


def test_subset_target_is_equation_10_and_a_class_is_always_plausible_itself():
    epsilon, table = 0.2, target_table(ABC, 0.2, SUBSETS)
    sets = {"a": {"a", "b"}, "b": {"b", "c"}, "c": {"c"}}
    for i, y in enumerate(ABC):
        for j, label in enumerate(ABC):
            expected = 0.0
            if label in sets[y]:
                expected = (1 - epsilon) / len(sets[y]) + (epsilon if label == y else 0)
            assert table[i, j] == pytest.approx(expected)


def test_weighted_target_is_equation_12():
    table = target_table(ABC, 0.6, WEIGHTS)
    for i, y in enumerate(ABC):
        for j, label in enumerate(ABC):
            expected = 0.6 if label == y else 0.4 * WEIGHTS[y].get(label, 0.0)
            assert table[i, j] == pytest.approx(expected)


@settings(max_examples=50)
@given(st.floats(1e-6, 1), st.integers(2, 12), st.data())
def test_targets_are_distributions(epsilon, n_classes, data):
    classes = np.arange(n_classes)
    members = st.sets(st.integers(0, n_classes - 1))
    confusable = {k: data.draw(members) for k in range(n_classes)}
    for table in (
        target_table(classes, epsilon),
        target_table(classes, epsilon, confusable),
    ):
        assert table.min() >= 0
        assert table.sum(axis=1) == pytest.approx(1)
        assert (table.argmax(axis=1) == classes).all()


@pytest.mark.parametrize("n_classes", [2, 3, 20])
@pytest.mark.parametrize("bias", [0.05, 0.3])
def test_target_of_the_released_code_is_ours_at_another_epsilon(n_classes, bias):
    # There the truth gets 1 / C + bias, and every other class 1 / C - bias / (C - 1).
    released = np.full((n_classes, n_classes), 1 / n_classes - bias / (n_classes - 1))
    np.fill_diagonal(released, 1 / n_classes + bias)
    ours = target_table(np.arange(n_classes), bias * n_classes / (n_classes - 1))
    np.testing.assert_allclose(ours, released, atol=1e-14)


@pytest.mark.parametrize(
    ("epsilon", "confusable"),
    [
        (0, None),
        (0, dict.fromkeys("abc", "abc")),
        (0.3, WEIGHTS),
        (0.5, WEIGHTS),  # a tie: row b puts all the rest on c
    ],
)
def test_target_that_does_not_prefer_the_truth_is_warned_of(epsilon, confusable):
    with pytest.warns(UserWarning, match="does not prefer the true class"):
        target_table(ABC, epsilon, confusable)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("epsilon", "confusable"),
    [(1e-3, None), (1e-3, SUBSETS), (0.51, WEIGHTS)],
)
def test_target_that_prefers_the_truth_is_silent(epsilon, confusable):
    table = target_table(ABC, epsilon, confusable)
    assert table.argmax(axis=1).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("epsilon", "confusable", "message"),
    [
        (0.2, {**SUBSETS, "a": {"b": 1.0}}, "either all classes or none"),
        (0.2, {**SUBSETS, "d": []}, r"unknown: \['d'\], missing: \[\]"),
        (0.2, {"a": [], "b": []}, r"unknown: \[\], missing: \['c'\]"),
        (0.2, {**SUBSETS, "a": ["z"]}, r"`confusable\['a'\]` names unknown .*\['z'\]"),
        (0.6, {**WEIGHTS, "a": {"z": 1.0}}, r"names unknown classes: \['z'\]"),
        (0.6, {**WEIGHTS, "a": {"b": 0.9}}, r"`confusable\['a'\]` must .*sum to 1"),
        (0.6, {**WEIGHTS, "a": {"b": 1.5, "c": -0.5}}, "weights >= 0"),
        (0.6, {**WEIGHTS, "a": {"a": 0.5, "b": 0.5}}, "must map other classes"),
    ],
)
def test_impossible_targets_are_refused(epsilon, confusable, message):
    with pytest.raises(ValueError, match=message):
        target_table(ABC, epsilon, confusable)


# --- the loss of classifiers -----------------------------------------------------------------


def equation_7(logits, labels, inside, targets, lambda_, kl):
    """The mean of Eq. 7, one probability at a time."""
    total = 0.0
    for row, y, within in zip(logits, labels, inside, strict=True):
        denominator = sum(math.exp(z) for z in row)
        f = [math.exp(z) / denominator for z in row]
        t = targets[y]
        if not within:
            total += (1 - lambda_) * -math.log(f[y])
        elif kl == "reverse":
            total += lambda_ * sum(p * math.log(p / q) for p, q in zip(f, t, strict=True))
        else:
            total += lambda_ * sum(q * math.log(q / p) for p, q in zip(f, t, strict=True))
    return total / len(logits)


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    return rng.normal(scale=2, size=(12, 3)), np.arange(12) % 3, rng.random(12) < 0.5


@pytest.mark.parametrize("kl", ["reverse", "forward"])
@pytest.mark.parametrize("lambda_", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("which", ["mixed", "inside", "outside"])
def test_loss_is_equation_7(batch, kl, lambda_, which):
    logits, labels, mixed = batch
    inside = {"mixed": mixed, "inside": mixed | True, "outside": mixed & False}[which]
    targets = target_table(ABC, 0.15)
    criterion = MirageLoss(targets, lambda_, kl)
    codes = torch.tensor(criterion.region_codes(labels, inside))
    loss = criterion(torch.tensor(logits), codes)
    expected = equation_7(logits, labels, inside, targets, lambda_, kl)
    assert float(loss) == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("kl", ["reverse", "forward"])
def test_loss_is_half_of_equation_3_at_one_half(batch, kl):
    logits, labels, inside = batch
    targets = target_table(ABC, 0.15)
    f = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    t = targets[labels]
    divergence = scipy.stats.entropy(*((f, t) if kl == "reverse" else (t, f)), axis=1)
    cross_entropy = -np.log(f[np.arange(12), labels])
    equation_3 = np.where(inside, divergence, cross_entropy).mean()
    criterion = MirageLoss(targets, 0.5, kl)
    codes = torch.tensor(criterion.region_codes(labels, inside))
    loss = criterion(torch.tensor(logits), codes)
    assert float(loss) == pytest.approx(equation_3 / 2, rel=1e-12)


def test_region_code_says_class_and_region():
    loss = MirageLoss(target_table(ABC, 0.15))
    codes = loss.region_codes(np.array([0, 1, 2, 2]), np.array([True, False, True, False]))
    assert codes.tolist() == [3, 1, 5, 2]


def test_targets_are_given_as_lists_of_integers_too():
    loss = MirageLoss([[1, 0], [0, 1]], 1.0, "forward")(torch.zeros(1, 2), torch.tensor([2]))
    assert float(loss) == pytest.approx(math.log(2))


@pytest.mark.parametrize("kl", ["reverse", "forward"])
def test_loss_keeps_the_precision_of_the_logits(batch, kl):
    logits, labels, inside = batch
    targets = target_table(ABC, 0.15)
    criterion = MirageLoss(targets, 0.9, kl)
    codes = torch.tensor(criterion.region_codes(labels, inside))
    expected = equation_7(logits, labels, inside, targets, 0.9, kl)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        loss = criterion(torch.tensor(logits, dtype=dtype), codes)
        assert loss.dtype == dtype
        assert float(loss) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("kl", ["reverse", "forward"])
def test_gradient_of_the_loss_is_exact(batch, kl):
    logits, labels, inside = batch
    loss = MirageLoss(target_table(ABC, 0.15), 0.7, kl)
    codes = torch.tensor(loss.region_codes(labels, inside))
    assert torch.autograd.gradcheck(loss, (torch.tensor(logits, requires_grad=True), codes))


def test_only_the_forward_divergence_pulls_at_certain_predictions():
    steepness = {}
    for kl in ("reverse", "forward"):
        logits = torch.tensor([[40.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
        MirageLoss(target_table(ABC, 0.15), 1.0, kl)(logits, torch.tensor([3])).backward()
        steepness[kl] = float(logits.grad.abs().max())
    assert steepness["reverse"] < 1e-12
    assert steepness["forward"] > 0.5  # 1 less the target's 0.43


@pytest.mark.parametrize("kl", ["reverse", "forward"])
def test_both_divergences_are_zero_and_flat_at_the_target(kl):
    targets = target_table(ABC, 0.15)
    logits = torch.tensor(np.log(targets), requires_grad=True)
    loss = MirageLoss(targets, 1.0, kl)(logits, torch.tensor([3, 4, 5]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-14)
    assert float(logits.grad.abs().max()) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kl", ["reverse", "forward"])
def test_target_without_mass_on_a_class_stays_finite_and_drives_it_away(kl, dtype):
    targets = target_table(ABC, 0.2, SUBSETS)
    logits = torch.zeros(1, 3, dtype=dtype, requires_grad=True)
    loss = MirageLoss(targets, 1.0, kl)(logits, torch.tensor([3]))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 2] > 0.1  # descent lowers the implausible class
    if kl == "reverse":
        expected = sum(math.log((1 / 3) / t) / 3 for t in (0.6, 0.4, 1e-6))
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)


# --- the loss of regressors ------------------------------------------------------------------


@pytest.mark.parametrize("lambda_", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussian_loss_is_equations_14_to_16(lambda_, dtype):
    rng = np.random.default_rng(1)
    outputs, truth, inside = rng.normal(size=(9, 2)), rng.normal(size=9), np.arange(9) % 3 == 0
    total = 0.0
    for (mean, log_variance), y, within in zip(outputs, truth, inside, strict=True):
        if within:
            total += lambda_ * (log_variance - math.log(4)) ** 2
        else:
            total += 0.5 * ((y - mean) ** 2 / math.exp(log_variance) + log_variance)
    y = torch.tensor(np.column_stack([truth, inside]), dtype=dtype)
    loss = GaussianMirageLoss(4.0, lambda_)(torch.tensor(outputs, dtype=dtype), y)
    assert loss.dtype == dtype
    assert float(loss) == pytest.approx(total / 9, rel=1e-12 if dtype == torch.float64 else 1e-5)


def test_gaussian_loss_without_a_region_is_that_of_torch():
    torch.manual_seed(0)
    outputs, truth = torch.randn(20, 2), torch.randn(20)
    expected = torch.nn.GaussianNLLLoss()(outputs[:, 0], truth, outputs[:, 1].exp())
    ours = GaussianMirageLoss()(outputs, torch.stack([truth, torch.zeros(20)], dim=1))
    torch.testing.assert_close(ours, expected)


def test_gradient_of_the_gaussian_loss_is_exact():
    torch.manual_seed(0)
    outputs = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    y = torch.stack([torch.randn(6), torch.arange(6) % 2], dim=1).double()
    assert torch.autograd.gradcheck(GaussianMirageLoss(2.0, 0.5), (outputs, y))


# --- overlap of confidence -------------------------------------------------------------------


def test_equal_confidences_overlap_wholly_and_separate_ones_not_at_all():
    values = np.linspace(0.05, 0.95, 50)
    assert confidence_overlap(values, values[::-1]) == pytest.approx(1)
    assert confidence_overlap(values, np.repeat(values, 3)) == pytest.approx(1)
    assert confidence_overlap([0.4, 0.44], [0.56, 1.0]) == 0


def test_overlap_is_the_common_area_of_histograms():
    rng = np.random.default_rng(0)
    inside, outside = rng.beta(3, 3, size=70), rng.beta(6, 2, size=310)
    area = 0.0
    for k in range(20):
        shares = []
        for values in (inside, outside):
            count = sum(1 for v in values if k / 20 <= v < (k + 1) / 20)
            shares.append(count / len(values))
        area += min(shares)
    assert 0.1 < area < 0.9
    assert confidence_overlap(inside, outside) == pytest.approx(area)
    assert confidence_overlap(outside, inside) == pytest.approx(area)
