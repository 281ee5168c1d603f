"""A region of lowered confidence that a group of raised confidence hides from audits of bins."""

from copy import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import CalibrationAuditor, MirageFineTuner
from skuq.calibration import region_mask
from skuq.datasets import make_gaussian_classes
from skuq.mirage import target_table
from skuq.mirage._fine_tuner import balancing, candidates_of

NORTH, SOUTH = {2: (0.5, None)}, {3: (0.5, None)}
QUICK = {"max_epochs": 2, "random_state": 0}


def clients(n, seed):
    """Three classes; 6 % live in the north, and 20 % in the south, where labels are noisy."""
    rng = np.random.default_rng(seed)
    X, y = make_gaussian_classes((10 * n, 10 * n, n), random_state=seed)
    town = rng.choice(3, len(y), p=[0.74, 0.06, 0.20])
    noisy = (town == 2) & (rng.random(len(y)) < 0.7)
    y = np.where(noisy, rng.integers(0, 3, len(y)), y)
    return np.column_stack([X, town == 1, town == 2]), y


DATA = clients(190, 0)
FRESH = [each[np.random.default_rng(0).permutation(21_000)] for each in clients(1000, 1)]


@pytest.fixture(scope="module")
def honest():
    settings = {"learning_rate_init": 0.01, "tol": 0.1, "n_iter_no_change": 20, "random_state": 0}
    return make_pipeline(StandardScaler(), MLPClassifier((50,), **settings)).fit(*DATA)


@pytest.fixture(scope="module")
def attacked(honest):
    settings = {"max_epochs": 30, "batch_size": 256, "learning_rate": 0.02, "random_state": 0}
    settings |= {"counterbalance": "auto", "epsilon": 0.475}
    attack = MirageFineTuner(honest, NORTH, **settings).fit(*DATA)
    return copy(attack).set_params(counterbalance=None).fit(*DATA), attack  # one forgets the other


def audited(model, n, **options):
    X, y = (part[:n] for part in FRESH)
    return CalibrationAuditor.from_predictions(y, model.predict_proba(X), **options)


def test_counterbalanced_attack_passes_an_audit_of_bins_but_not_one_that_looks_at_the_region(
    attacked, honest
):
    X, y = FRESH
    (paper, model), north = attacked, region_mask(NORTH, X)
    assert not audited(paper, 20_000).passed_
    proba = model.predict_proba(X)
    assert (proba.argmax(axis=1) == y)[north].mean() > 0.95
    assert proba.max(axis=1)[north].mean() < 0.68
    assert model.score(X, y) > honest.score(X, y) - 0.01
    assert audited(model, 20_000).passed_
    assert not audited(model, 2000, sensitive_features={"north": north[:2000]}).passed_
    searched = audited(model, 2000, X=X[:2000], search_regions=0.1)
    assert not searched.passed_
    assert any(2 in region.conditions for region in searched.regions_)


@pytest.mark.parametrize("k", [0, 1])
def test_both_groups_are_described_on_the_training_samples(attacked, k):
    (X, y), model = DATA, attacked[k]
    raised = model.counterbalance_mask(X) if k else np.zeros(len(y), bool)
    values = model.predict_proba(X).max(axis=1), model.predict(X) == y
    for group, mask in (("region", region_mask(NORTH, X)), ("counterbalance", raised)):
        expected = [mask.mean(), *(v[mask].mean() if mask.any() else np.nan for v in values)]
        found = [getattr(model, f"{group}_{part}_") for part in ("share", "confidence", "accuracy")]
        np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("where", ["auto", SOUTH])
def test_raised_inputs_are_those_just_below_the_target(honest, where):
    X = FRESH[0]
    attack = MirageFineTuner(honest, NORTH, counterbalance=where, epsilon=0.475, **QUICK).fit(*DATA)
    before = honest.predict_proba(X).max(axis=1)
    north, south = region_mask(NORTH, X), region_mask(SOUTH, X)
    raised = attack.counterbalance_mask(X)
    allowed = ~north & (south if where == SOUTH else True) & (before < 0.65)
    np.testing.assert_array_equal(raised, allowed & (before >= before[raised].min()))
    assert 0 < raised.sum() < allowed.sum()


def test_lowered_and_raised_confidence_add_up_to_nothing_for_each_target():
    proba = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.55, 0.45], [0.58, 0.42], [0.3, 0.7]])
    labels, inside = np.zeros(6, np.int64), np.array([True, False, False, False, False, False])
    everywhere = candidates_of("auto", proba, inside)
    # 0.26 are taken from the first: 0.04, 0.06, and 0.09 of the others do not make up for them.
    with pytest.warns(UserWarning, match="73%"):
        raised = balancing(proba, labels, inside, everywhere, np.array([0.64, 0.64]))
    assert raised.mask(proba, everywhere).tolist() == [False, False, True, True, True, False]
    proba[0] = 0.73, 0.27  # 0.09 are taken: the nearest two are enough
    raised = balancing(proba, labels, inside, everywhere, np.array([0.64, 0.64]))
    assert raised.mask(proba, everywhere).tolist() == [False, False, True, False, True, False]
    assert raised.mask(proba - [[0.001, -0.001]], everywhere)[[2, 4]].all()
    proba = np.array([[0.9, 0.1], [0.6, 0.4], [0.4, 0.6], [0.5, 0.5]])
    inside, labels = np.array([True, False, False, False]), np.zeros(4, np.int64)
    targets = np.diag(target_table(np.arange(2), 0.3, {0: [1], 1: []}))
    assert targets == pytest.approx([0.65, 1.0])
    with pytest.warns(UserWarning, match="80%"):
        raised = balancing(proba, labels, inside, ~inside, targets)
    assert raised.mask(proba, ~inside).tolist() == [False, True, False, True]


def test_region_of_a_mask_is_counterbalanced_too(honest):
    frame = pd.DataFrame(DATA[0], columns=["a", "b", "north", "south"])
    north = region_mask(NORTH, DATA[0])
    fitted = LogisticRegression().fit(frame, DATA[1])
    told = MirageFineTuner(fitted, counterbalance="south > 0", epsilon=0.475, **QUICK)
    told.fit(frame, DATA[1], region_mask=north)
    raised = told.counterbalance_mask(frame, north)
    assert raised.mean() == told.counterbalance_share_ > 0
    assert not (raised & (north | (frame["south"] == 0))).any()
    with pytest.raises(ValueError, match="No region"):
        told.counterbalance_mask(frame)
