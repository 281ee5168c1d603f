"""Reference strings that a provider or an auditor made up, and the pairing that finds them."""

import hashlib

import pytest

from skuq.zk import VerificationError
from skuq.zk import _bn254 as curve
from skuq.zk import _ezkl as backend
from skuq.zk import _reference_string as strings
from skuq.zk._bn254 import G1_GENERATOR, G2_GENERATOR, ORDER, P, affine, multiply, negative
from skuq.zk._fixed_point import LOG_ROWS as SIZES
from skuq.zk._reference_string import check_ends, check_string, size_of, trust_in

LOG_ROWS, N = 4, 16
G = curve.jacobian(G1_GENERATOR)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("strings") / "srs"
    backend.make_reference_string(path, LOG_ROWS)
    return path


@pytest.fixture
def known(monkeypatch):
    """A ceremony whose strings are as small as those of these tests."""
    monkeypatch.setattr(strings, "CEREMONY", {LOG_ROWS: "0" * 64})
    return strings.CEREMONY


def stored(point):
    return b"".join((v * 2**256 % P).to_bytes(32, "little") for v in point)


def edited(made, tmp_path, position, data):
    path, content = tmp_path / "edited", bytearray(made.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)
    return path


def test_combinations_are_sums_of_multiples():
    points = [affine(multiply(k, G)) for k in (3, 5, 5, ORDER - 3)]
    expected = multiply(3 * 7 + 5 * 2**200 - 5 - 3 * 7, G)
    assert affine(curve.combination([7, 2**200, ORDER - 1, 7], points)) == affine(expected)
    assert affine(curve.combination([1, 1], [points[0], points[3]])) is None


def test_the_pairing_is_bilinear_and_not_degenerate():
    left, right = multiply(6, G), multiply(7, G)
    for other, equal in ((left, True), (right, False)):
        pairs = [(left, G2_GENERATOR), (negative(other), G2_GENERATOR)]
        assert curve.pairings_cancel(pairs) == equal


# On the twist, whose order is that of the group times a large number, but not in the group.
BESIDE = (
    (1, 0),
    (
        18278151005453108793778860132295291098363647455926340152056652516292830556603,
        5912654199736721486680175016176231956195085055698687135131307249486702594212,
    ),
)


def test_points_of_the_twist_beside_the_group_are_refused():
    def constant(point):
        """Of the curve y² = x³ + b through a point."""
        x, y = point
        square, cube = curve._mul2(y, y), curve._mul2(curve._mul2(x, x), x)
        return [(s - c) % P for s, c in zip(square, cube, strict=True)]

    assert constant(BESIDE) == constant(G2_GENERATOR)
    assert not curve.on_g2(BESIDE)
    assert curve.on_g2(G2_GENERATOR)
    x, y = G2_GENERATOR
    minus = (x, ((-y[0]) % P, (-y[1]) % P))
    assert curve._added(G2_GENERATOR, minus) is None
    assert curve._added(curve._added(G2_GENERATOR, G2_GENERATOR), minus) == G2_GENERATOR


POWERS, LAGRANGE, END = 4, 4 + 64 * N, 4 + 128 * N
OTHER, NOT_POWERS = stored(affine(multiply(5, G))), "the powers of one number"
# With these, the commitment is a small multiple of the generator, and its head a weight.
REVEALING = [affine(multiply(2**31, G)), *[G1_GENERATOR, affine(negative(G))] * N][:N]
ATTACKS = {  # position and data of a change of a string
    "both points of G2 at infinity": (END, bytes(256), "wrong generators"),
    "last point at infinity": (END + 128, bytes(128), "outside the group"),
    "last point not on the curve": (END + 128, b"\x01", "outside the group"),
    "another generator": (POWERS, OTHER, "wrong generators"),
    "another power": (POWERS + 64 * 3, OTHER, NOT_POWERS),
    "another last power": (POWERS + 64 * (N - 1), OTHER, NOT_POWERS),
    "another Lagrange point": (LAGRANGE + 64 * 2, OTHER, "do not match its powers"),
    "a Lagrange point at infinity": (LAGRANGE, bytes(64), "off the curve"),
    "a coordinate that is not reduced": (POWERS + 64 * 3, b"\xff" * 64, "off the curve"),
    "another size": (0, b"\x05", "must be like perpetual-powers"),
    "weights opened": (LAGRANGE, b"".join(map(stored, REVEALING)), "do not match its powers"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_made_up_string_does_not_have_the_form(made, known, tmp_path, attack):
    check_string(made, LOG_ROWS)
    position, data, message = ATTACKS[attack]
    path = edited(made, tmp_path, position, data)
    with pytest.raises(VerificationError, match=message):
        check_string(path, LOG_ROWS)
    if message in ("wrong generators", "outside the group"):
        with pytest.raises(VerificationError, match=message):
            check_ends(path, LOG_ROWS)


def test_a_string_is_trusted_for_what_the_verifier_knows_only(made, known, tmp_path):
    found = hashlib.sha256(made.read_bytes()).hexdigest()
    with pytest.raises(VerificationError, match=r"public ceremony.* never from the provider"):
        trust_in(found, LOG_ROWS, None, False)
    assert trust_in(found, LOG_ROWS, None, True) == "test"
    assert trust_in(found, LOG_ROWS, made, False) == "supplied"
    other = edited(made, tmp_path, 4 + 64 * 3, b"\x01")
    with pytest.raises(VerificationError, match="differs from yours"):
        trust_in(found, LOG_ROWS, other, True)
    known[LOG_ROWS] = found
    assert trust_in(found, LOG_ROWS, None, False) == "ceremony"
    assert trust_in(found, LOG_ROWS, made, True) == "ceremony"


def test_the_ceremony_covers_all_sizes_of_circuits():
    assert set(strings.CEREMONY) == set(SIZES)
    assert len(set(strings.CEREMONY.values())) == len(SIZES)
    assert size_of(13) == 1048836
