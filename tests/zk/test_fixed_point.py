"""The committed function in integers, compared with integers and fractions of Python."""

from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest

from skuq.zk import _fixed_point as fixed
from skuq.zk._public_commitment import Column, Encoding
from skuq.zk._quantisation import DenseNetwork, fit_encoding, integer_network, probabilities
from tests.zk.tampering import ONE


def random_network(rng, widths, *, bits=8, size=1.0, levels=None):
    weights = [rng.normal(scale=size / np.sqrt(a), size=(a, b)) for a, b in pairwise(widths)]
    biases = [rng.normal(scale=size, size=b) for b in widths[1:]]
    levels = (0,) * widths[0] if levels is None else levels
    network = DenseNetwork(weights, biases, levels, np.arange(widths[-1]))
    columns = tuple(Column(n) if n else Column(0, 0.5, 2.0, 8.0) for n in levels)
    encoding = Encoding(columns, bits)
    return network, encoding, integer_network(network, encoding, bits)


def half_away_from_zero(value):
    return int(abs(value) + Fraction(1, 2)) * (1 if value >= 0 else -1)


def by_hand(network, row):
    """Label, confidence and all intermediate numbers of one row, slowly and exactly."""
    values, seen = [int(v) for v in row], []
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        if k:
            values = [2 * max(v, 0) for v in values]
            seen += values
        columns = zip(weight.T.tolist(), bias.tolist(), strict=True)
        values = [sum(v * w for v, w in zip(values, c, strict=True)) + b for c, b in columns]
        seen += values
    label = values.index(max(values))
    factor = 1
    while factor < len(values):
        factor *= 2
    ordered = [factor * v - j for j, v in enumerate(values)]
    below = [v - ordered[label] for v in ordered]
    unit, weights = Fraction(factor) * 2**network.logit_bits / 2**fixed.LOGIT_BITS, []
    for v in below:
        shifted = max(0, half_away_from_zero(v / unit + fixed.REACH))
        power = mpmath.power(mpmath.mpf(fixed.EXP_BASE), mpmath.mpf(shifted - fixed.REACH) / ONE)
        weights.append(int(mpmath.nint(ONE * power)))
    confidence = half_away_from_zero(Fraction(ONE * ONE, sum(weights)))
    return label, confidence, seen + ordered + below


SHAPES = [(3, 2), (2, 3), (2, 6, 5), (3, 4, 4, 3), (1, 2, 3, 7)]


def assert_exact(network, rows):
    found = fixed.integer_predictions(network, rows)
    expected = [by_hand(network, row)[:2] for row in rows]
    assert list(zip(found.label.tolist(), found.confidence.tolist(), strict=True)) == expected
    assert len({confidence for _, confidence in expected}) > 1
    return found


@pytest.mark.parametrize("widths", SHAPES)
def test_predictions_are_those_of_exact_arithmetic(widths):
    size, rng = 0.3 if len(widths) == 2 else 3.0, np.random.default_rng(len(widths))
    _, encoding, rounded = random_network(rng, widths, size=size)
    assert_exact(rounded, encoding.encode(rng.normal(0.5, 3, size=(30, widths[0]))))


def test_predictions_with_category_codes_are_those_of_exact_arithmetic():
    rng = np.random.default_rng(0)
    network, encoding, rounded = random_network(rng, (6, 5, 3), levels=(0, 3, 0))
    X = np.stack([rng.normal(size=20), rng.integers(-1, 5, size=20), rng.normal(size=20)], axis=1)
    rows = encoding.encode(X)
    assert (rows[:, 1:5].sum(axis=1) == 1).all()
    found = assert_exact(rounded, rows)
    floats = probabilities(network, X)
    np.testing.assert_allclose(found.confidence / ONE, floats.max(axis=1), atol=0.02)


@pytest.mark.parametrize("n_classes", [2, 3, 4, 5, 8])
def test_of_equal_logits_the_first_class_wins_with_a_share_of_one_by_the_number_of_them(n_classes):
    zeros = np.zeros((1, n_classes), np.int64)
    network = fixed.IntegerNetwork([zeros], [zeros[0]], 8, 8)
    found = fixed.integer_predictions(network, np.array([[3], [-5]]))
    assert found.label.tolist() == [0, 0]
    np.testing.assert_allclose(found.confidence / ONE, 1 / n_classes, atol=1e-3)
    least_power_of_two = {2: 2, 3: 4, 4: 4}.get(n_classes, 8)
    assert fixed.tie_factor(n_classes) == least_power_of_two


def test_of_two_equal_largest_logits_the_first_wins_and_certainty_is_one_and_no_more():
    network = fixed.IntegerNetwork([np.array([[0, 70, 70]])], [np.zeros(3, np.int64)], 8, 8)
    assert fixed.integer_predictions(network, np.array([[300], [-300]])).label.tolist() == [1, 0]
    network = fixed.IntegerNetwork([np.array([[0, 1000]])], [np.zeros(2, np.int64)], 8, 8)
    found = fixed.integer_predictions(network, np.array([[10**6], [-(10**6)]]))
    assert found.label.tolist() == [1, 0]
    assert found.confidence.tolist() == [ONE, ONE]


@pytest.mark.parametrize("widths", SHAPES)
def test_no_number_of_any_accepted_input_is_larger_than_the_bound(widths):
    rng, largest = np.random.default_rng(2), 0
    _, encoding, rounded = random_network(rng, widths, size=2.0)
    bound = fixed.largest_value(rounded, encoding.limits())
    for row in rng.choice([-1, 1], size=(60, widths[0])) * encoding.limits():
        seen = by_hand(rounded, row)[2]
        # The last ones are differences of ordered logits, whose sign is that of 2 x + 1.
        largest = max(largest, *map(abs, seen), *(abs(2 * x + 1) for x in seen[-widths[-1] :]))
    assert bound // 2**7 < largest <= bound  # a bound, and not an excuse


@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_the_bound_of_one_layer_is_reached(n_classes):
    weight, limits = np.zeros((2, n_classes), int), np.array([8, 8])
    weight[:, 0], weight[:, -1] = 1000, -1000
    network = fixed.IntegerNetwork([weight], [np.zeros(n_classes, int)], 6, 6)
    seen = by_hand(network, [8, 8])[2]
    assert max(abs(2 * x + 1) for x in seen) == fixed.largest_value(network, limits)


def test_the_bound_includes_numbers_that_no_weight_makes_large():
    nothing = fixed.IntegerNetwork([np.zeros((1, 3), int)], [np.zeros(3, int)], 8, 8)
    assert fixed.largest_value(nothing, np.array([8])) == 2 * 3 * ONE
    deep = fixed.IntegerNetwork([np.zeros((3, 3), int)] * 4, [np.zeros(3, int)] * 4, 8, 8)
    unit = 1 << fixed.logit_shift(deep.logit_bits, 3)
    assert fixed.largest_value(deep, np.array([8] * 3)) == unit


def test_limits_are_those_of_the_encoding_and_one_for_indicators():
    encoding = Encoding((Column(0, 1.0, 2.0, 8.0), Column(2), Column(0, 0.0, 0.5, 9.0)), 4)
    assert encoding.limits().tolist() == [128, 1, 1, 1, 144]
    extreme = encoding.encode([[17.0, 5.0, -4.5], [-15.0, 0.0, 4.5]])
    assert extreme.tolist() == [[128, 0, 0, 1, -144], [-128, 1, 0, 0, 144]]
    encoding = Encoding((Column(0, 10.0, 4.0, 8.0),), 3)
    assert encoding.encode([[10.0], [14.0], [9.0], [10.26]]).ravel().tolist() == [0, 8, -2, 1]


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([[0.0, np.nan]], "row 0 has NaN"),
        ([[0.0, 0.0], [np.inf, 0.0]], "row 1 has NaN"),
        ([[0.0]], r"2 columns, got \(1, 1\)"),
        ([0.0, 0.0], r"2 columns, got \(2,\)"),
        (np.zeros((0, 2)), "got none"),
        ([[0.0, 0.0], [0.0, 2.5]], r"Feature 1 is 2.5 in row 1, outside .* \[-0.25, 2.25\]"),
        ([[-9.0, 0.0]], r"Feature 0 is -9 in row 0, outside .* \[-8, 8\]"),
    ],
)
def test_inputs_that_cannot_be_encoded_are_named(X, message):
    encoding = Encoding((Column(0, 0.0, 1.0, 8.0), Column(0, 1.0, 0.25, 5.0)), 6)
    with pytest.raises(ValueError, match=message):
        encoding.encode(X)


def fitted(X):
    n = X.shape[1]
    network = DenseNetwork([np.eye(n)], [np.zeros(n)], (0,) * n, np.arange(n))
    return fit_encoding(network, X, 8)


def test_an_encoding_covers_its_calibration_data_twice_and_is_as_precise_far_from_zero():
    X = np.random.default_rng(0).standard_t(1.5, size=(500, 2)) * [1.0, 1000.0]
    encoding = fitted(X)
    centre = np.array([column.center for column in encoding.columns])
    encoding.encode(centre + 1.9 * (X - centre))
    assert all(column.limit >= 8 for column in encoding.columns)
    with pytest.raises(ValueError, match=r"Feature 0 is .* outside the committed range"):
        encoding.encode(centre + 100 * (X - centre))
    seconds = np.random.default_rng(0).normal(scale=60.0, size=(500, 1))
    near, far = (fitted(X).encode(X) for X in (seconds, 1.7e9 + seconds))
    # Centres are a hundredth of a deviation off at most, 3 of 256 here.
    assert np.abs(near - far).max() <= 3


@pytest.mark.parametrize("value", [0.1, 12345.678, 1e6 + 0.1, -0.3])
def test_a_constant_feature_accepts_other_values_too(value):
    """The deviation of equal numbers is not always 0: of 0.1, ten times, it is 1.4e-17."""
    encoding = fitted(np.full((10, 1), value))
    assert encoding.columns[0].scale == 1.0
    assert encoding.encode([[value + 1]])[0, 0] - encoding.encode([[value]])[0, 0] == 2**8
