"""Losses and targets of Mirage against equations of the paper; Lemma 4.1; what is refused."""

import itertools
import math
import warnings
from functools import cache

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn

from skuq import MirageFineTuner, MirageRegressor
from skuq._networks import MLP, LeNet
from skuq.mirage import (
    GaussianMirageLoss,
    MirageLoss,
    confidence_overlap,
    constructive_mirage,
    target_table,
)

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


BOXES = [
    *({0: (2.0, 2.75)}, {1: (-3.0, -1.0), 0: (-0.5, 4.0)}),
    {0: (-1e3, -999.0), 2: (5.0, 5.1), 1: (-2.0, 2.0)},
    *({k: (-1.0 - k, 0.5 + k) for k in range(5)}, {0: (-np.inf, -1.0), 3: (0.0, np.inf)}),
]


def relu_network(n_features, dtype=torch.float32):
    torch.manual_seed(0)
    return MLP(n_features, 3, hidden_sizes=(20, 10)).to(dtype)


def corners(low, high):
    middle = 0.5 * (np.maximum(low, -2e3) + np.minimum(high, 2e3))
    ends = (filter(np.isfinite, each) for each in zip(low, high, middle, strict=True))
    return np.array(list(itertools.product(*ends)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", BOXES)
def test_shift_is_complete_in_the_core_and_absent_outside_the_box(bounds, dtype):
    network, margin, keys = relu_network(6, dtype), 0.01, list(bounds)
    shift = np.array([-7.5, 0.0, 120.0])
    faked = constructive_mirage(network, bounds, shift, margin=margin)
    low, high = np.array(list(bounds.values())).T
    points = corners(low + margin, high - margin)
    core = torch.zeros(len(points), 6, dtype=dtype)
    core[:, keys] = torch.tensor(points, dtype=dtype)
    added = faked.detector(core[:, keys]).numpy()
    np.testing.assert_allclose(added, np.broadcast_to(shift, added.shape), rtol=0, atol=1e-5)
    for k, ends in bounds.items():
        for bound, step in zip(ends, (-1, 1), strict=True):
            for distance in (0, 1e-3, 1, 1e4) if np.isfinite(bound) else ():
                outside = core.clone()
                outside[:, k] = bound + step * distance
                assert torch.equal(faked(outside), network(outside))


def test_shift_rises_within_the_margin_and_never_overshoots():
    network = relu_network(1, torch.float64)
    faked = constructive_mirage(network, {0: (0.0, 1.0)}, [1.0, 0.0, 0.0], margin=0.1)
    x = torch.linspace(-0.2, 0.5, 1001, dtype=torch.float64)[:, None]
    share = faked.detector(x)[:, 0]
    assert bool((share.diff() >= 0).all())
    assert (share.min(), share.max()) == (0, 1)
    assert 0 < share[(x[:, 0] - 0.05).abs().argmin()] < 1


def test_network_is_copied_images_are_taken_flat_and_the_result_is_tuned_further():
    torch.manual_seed(0)
    network = LeNet()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    faked = constructive_mirage(network, {400: (0.5, 1.0)}, np.eye(10)[3])
    images = torch.zeros(2, 1, 28, 28)
    images[0].view(-1)[400] = 0.75
    added = faked(images) - network.eval()(images)
    np.testing.assert_allclose(added.detach(), np.outer([1, 0], np.eye(10)[3]), atol=1e-5)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(p.requires_grad for p in network.parameters())
    X = np.random.default_rng(0).normal(size=(60, 2))
    faked = constructive_mirage(nn.Linear(2, 2), {0: (0.0, 1.0)}, [-3.0, 0.0])
    tuned = MirageFineTuner(faked, {1: (0, None)}, max_epochs=2).fit(X, X[:, 0] > 0)
    assert tuned.predict_proba(X).shape == (60, 2)


X = np.random.default_rng(0).normal(size=(60, 2))
y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
INSIDE, REGION = X[:, 0] > 0.5, {0: (0.5, None)}
DIVERGING = {"optimizer": torch.optim.SGD, "learning_rate": 1e30, "max_epochs": 4}


@cache
def tuned(labels=(0, 1, 2), **params):
    y_text = np.array(labels)[y]
    fitted = LogisticRegression().fit(X, y_text)
    mirage = MirageFineTuner(fitted, REGION, max_epochs=1, random_state=0, **params)
    return mirage.fit(X, y_text)


def fine_tuner(mask=None, codes=y, **params):
    settings = {"estimator": tuned().estimator, "region": REGION, "max_epochs": 1, **params}
    return MirageFineTuner(**settings).fit(X, codes, region_mask=mask)


def regressor(mask=None, estimator=None, **params):
    torch.manual_seed(0)
    settings = {"region": REGION, "max_epochs": 1, **params}
    return MirageRegressor(estimator or MLP(2, 2), **settings).fit(X, X[:, 1], region_mask=mask)


def box(bounds, shift=(1.0, 0.0, 0.0), **options):
    return constructive_mirage(torch.nn.Linear(2, 3), bounds, shift, **options)


BOTH = [
    ({"region": None}, "No region"),
    ({"mask": INSIDE}, "Two regions"),
    ({"region": {0: (50, 60)}}, "contains 0 of 60"),
    ({"region": None, "mask": INSIDE | True}, "contains 60 of"),
    ({"region": None, "mask": INSIDE[1:]}, "one boolean for each"),
    ({"lambda_": -0.5}, "lambda_"),
    ({"device": "quantum"}, "cannot be used here"),
]
ROWS = [
    *((fine_tuner, options, word) for options, word in BOTH),
    *((regressor, options, word) for options, word in BOTH),
    (fine_tuner, {"estimator": MLP(2, 3), **DIVERGING}, r"diverged: .*`learning_rate`"),
    (regressor, DIVERGING, r"diverged: .*`learning_rate`"),
    (fine_tuner, {"lambda_": 1.5}, "lambda_"),
    (fine_tuner, {"confusable": "all"}, "confusable"),
    (fine_tuner, {"confusable": {}}, r"missing: \[0, 1, 2\]"),
    (fine_tuner, {"warm_up": -1}, "warm_up"),
    (fine_tuner, {"codes": np.where(y == 2, 7, y)}, r"classes: \[7\]"),
    (fine_tuner, {"counterbalance": 3}, "counterbalance"),
    (fine_tuner, {"counterbalance": {1: (50, None)}}, "no effect"),
    (fine_tuner, {"counterbalance": "auto", "epsilon": 0.01}, "larger `epsilon`"),
    (fine_tuner, {"counterbalance": "auto", "epsilon": 1.0}, "smaller `epsilon`"),
    (regressor, {"lambda_": 0.0}, "lambda_"),
    (regressor, {"estimator": MLP(2, 3)}, r"shape \(n_samples, 2\)"),
    (lambda: tuned().counterbalance_mask(X), {}, "No confidence was raised"),
    (lambda: tuned((-1, 0, 1)).predict_or_abstain(X, 0.5), {}, "`label`"),
    (lambda: tuned().predict_or_abstain(X, 0.5, label=1), {}, "`label`"),
    (lambda: tuned(("abstain", "b", "c")).predict_or_abstain(X, 0.5), {}, "`label`"),
    (lambda: tuned().coverage(X, -0.1), {}, "`tau`"),
    (lambda: tuned().coverage(X, np.nan), {}, "`tau`"),
    (lambda: tuned().predict_or_abstain(X, 60), {}, "`tau`"),
    (box, {"bounds": {-1: (0.0, 1.0)}}, "coordinates"),
    (box, {"bounds": {0: (1.0, 1.0)}}, "low < high"),
    (box, {"bounds": {0: (np.nan, 1.0)}}, "low < high"),
    (box, {"bounds": {0: (-np.inf, np.inf)}}, "finite"),
    (box, {"bounds": {0: (0.0, 9.0), 1: (0.0, 1.0)}, "margin": 0.5}, "narrowest"),
    (box, {"bounds": {0: (0.0, 1.0)}, "margin": 0.0}, "at least"),
    (box, {"bounds": {0: (1e6, 1e6 + 1)}, "margin": 0.1}, "precision"),
    (box, {"bounds": {0: (0.0, 1.0)}, "shift": [np.nan, 0, 0]}, "finite"),
    (lambda: box({0: (0.0, 1.0)}, [1.0, 0.0])(torch.zeros(4, 2)), {}, "2 entries"),
    *(
        (target_table, {"classes": ABC, "epsilon": epsilon, "confusable": confusable}, word)
        for epsilon, confusable, word in [
            (0.2, {**SUBSETS, "a": {"b": 1.0}}, "all classes or none"),
            (0.2, {**SUBSETS, "d": []}, r"unknown: \['d'\], missing: \[\]"),
            (0.2, {**SUBSETS, "a": ["z"]}, r"unknown: \['z'\]"),
            (0.6, {**WEIGHTS, "a": {"z": 1.0}}, r"unknown: \['z'\]"),
            (0.6, {**WEIGHTS, "a": {"b": 0.9}}, r"\['a'\]` must .*sum to 1"),
            (0.6, {**WEIGHTS, "a": {"b": 1.5, "c": -0.5}}, "weights >= 0"),
            (0.6, {**WEIGHTS, "a": {"a": 0.5, "b": 0.5}}, "other classes"),
        ]
    ),
]


@pytest.mark.parametrize(("call", "options", "word"), ROWS)
def test_a_call_is_refused(call, options, word):
    with pytest.raises(ValueError, match=word):
        call(**options)


@pytest.mark.parametrize("estimator", [LinearRegression(), LinearRegression().fit(X, y), "mlp"])
def test_what_is_not_a_network_is_refused(estimator):
    with pytest.raises(TypeError, match=r"estimator|adopt"):
        regressor(estimator=estimator)
