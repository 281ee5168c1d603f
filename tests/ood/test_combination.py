"""Several scores as one: its definition by hand, and the rate of false alarms that it keeps."""

import numpy as np
import pytest

from skuq.calibration import conformal_p_values
from skuq.files import from_stored, to_stored
from skuq.ood import Combination, Tail

GROUPS = {"a": "model", "b": "model", "c": "distance"}


def drawn(n, seed, shift=0.0):
    """Scores of which two are correlated, and counts that are nearly always 0."""
    random = np.random.default_rng(seed)
    z = random.normal(size=n) + shift
    return {
        "a": z + random.normal(size=n),
        "b": z / 2 + random.normal(size=n),
        "c": random.standard_t(3, size=n) + shift,
        "count": (random.uniform(size=n) < 0.02).astype(float),
    }


def combination_of(held_out, codes=None):
    return Combination.of(held_out, GROUPS | {"count": "support"}, codes)


def test_surprise_is_minus_log_p_linear_in_the_tail_and_differs_beyond_equal_scores():
    held_out = np.arange(1.0, 101.0)
    tail = Tail.of(held_out)
    inside = np.array([3.5, 50.0, 80.0])
    np.testing.assert_allclose(tail.surprise(inside), -np.log(conformal_p_values(inside, held_out)))
    start, above = np.quantile(held_out, 0.9), held_out[90:]
    scale, share = (above - start).mean(), 11 / 101
    beyond = np.array([95.0, 200.0, 1e6])
    np.testing.assert_allclose(tail.surprise(beyond), (beyond - start) / scale - np.log(share))
    for equal in (0.0, 7.0):
        surprise = Tail.of(np.full(50, equal)).surprise(equal + np.array([0.0, 1.0, 2.0]))
        assert 0 == surprise[0] < surprise[1] < surprise[2]


def test_the_statistic_sums_mean_squared_surprises_of_groups():
    held_out, new = drawn(200, 0), drawn(30, 1)
    found = combination_of(held_out).statistic(new)
    a, b, c, count = (Tail.of(held_out[name]).surprise(new[name]) ** 2 for name in new)
    np.testing.assert_allclose(found, (a + b) / 2 + c + count)


@pytest.mark.parametrize(("n_held_out", "n_seeds"), [(19, 40), (60, 40)])
def test_false_alarms_keep_their_rate(n_held_out, n_seeds):
    rates = []
    for seed in range(n_seeds):
        scores = drawn(n_held_out + 1000, seed)
        combined = combination_of({n: each[:n_held_out] for n, each in scores.items()})
        p_values = combined.p_values({n: each[n_held_out:] for n, each in scores.items()})
        rates.append([(p_values <= rate).mean() for rate in (0.06, 0.2)])
    error = np.std(rates, axis=0) / np.sqrt(len(rates))
    assert (np.mean(rates, axis=0) <= np.array([0.06, 0.2]) + 3 * error).all()
    assert (np.mean(rates, axis=0) >= np.array([0.03, 0.16])).all()


@pytest.mark.parametrize("n_held_out", [19, 60])
def test_one_score_is_compared_as_it_is(n_held_out):
    held_out, new = drawn(n_held_out, 0)["c"], drawn(500, 1, shift=1.0)["c"]
    found = Combination.of({"c": held_out}, GROUPS).p_values({"c": new})
    expected = conformal_p_values(new, held_out)
    np.testing.assert_allclose(found[expected <= 0.1], expected[expected <= 0.1])
    assert (found >= expected - 1e-12).all()


def test_inputs_are_compared_by_tails_that_neither_has_seen():
    held_out, new, statistic = drawn(15, 0), drawn(4, 1, shift=1.0), {}
    combined, folds = combination_of(held_out), np.arange(15) % 10
    at_least = np.ones(4)
    for fold in range(10):
        tails = {n: Tail.of(each[folds != fold]) for n, each in held_out.items()}
        for kind, scores in (("new", new), ("old", held_out)):
            squares = {n: tails[n].surprise(each) ** 2 for n, each in scores.items()}
            mean = (squares["a"] + squares["b"]) / 2
            statistic[kind] = mean + squares["c"] + squares["count"]
        at_least += (statistic["old"][folds == fold] >= statistic["new"][:, None]).sum(axis=1)
    np.testing.assert_allclose(combined.p_values(new), at_least / 16)


def test_rates_hold_within_classes():
    random = np.random.default_rng(0)
    codes = random.integers(2, size=400)
    held_out = {"c": random.normal(size=400) * (1 + 3 * codes)}
    new = random.normal(size=2000) * 4
    shares = []
    for given in (codes, None):  # the class of large scores keeps its rate
        combined = Combination.of(held_out, GROUPS, given)
        shares.append((combined.p_values({"c": new}) <= 0.05).mean())
        n = 400 if given is None else np.bincount(codes).min()
        assert combined.smallest_p_value == 1 / (1 + n)
    assert shares[0] < 0.08 < shares[1]


def test_a_combination_is_stored_without_code():
    combined = combination_of(drawn(30, 0), np.arange(30) % 2)
    again, new = from_stored(to_stored(combined)), drawn(10, 1)
    np.testing.assert_array_equal(again.ranks(new), combined.ranks(new))


@pytest.mark.parametrize("n_held_out", [1, 50])
def test_inputs_beyond_all_held_out_ones_are_ranked_even_if_scores_overflow(n_held_out):
    combined = combination_of(drawn(n_held_out, 0))
    far, further = (drawn(5, 1, shift=shift) for shift in (30.0, 60.0))
    overflown = drawn(3, 1) | {"c": np.array([np.inf, np.nan, 1e300])}
    assert (combined.ranks(further) < combined.ranks(far)).all()
    for scores in (far, further, overflown):  # a single held-out input excludes nothing
        assert (combined.p_values(scores) == (1 / 51 if n_held_out == 50 else 1)).all()
