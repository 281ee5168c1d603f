"""Reference strings that a provider or an auditor made up, and the pairing that finds them."""

import hashlib

import pytest

pytest.importorskip("ezkl")

from skuq.zk import VerificationError
from skuq.zk import _bn254 as bn254
from skuq.zk import _ezkl as backend
from skuq.zk import _reference_string as strings
from skuq.zk._bn254 import (
    G1_GENERATOR,
    G2_GENERATOR,
    ORDER,
    P,
    affine,
    combination,
    jacobian,
    multiply,
    negative,
    on_g1,
    on_g2,
    pairings_cancel,
)
from skuq.zk._reference_string import check_ends, check_string, size_of, trust_in

LOG_ROWS, N = 4, 16
G = jacobian(G1_GENERATOR)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small string that the proof system generated."""
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
    scalars = [7, 2**200, ORDER - 1, 7]
    expected = 3 * 7 + 5 * 2**200 - 5 - 3 * 7
    assert affine(combination(scalars, points)) == affine(multiply(expected, G))
    assert affine(combination([1, 1], [points[0], points[3]])) is None


def test_the_pairing_is_bilinear_and_not_degenerate():
    assert on_g2(G2_GENERATOR)
    left, right = multiply(6, G), multiply(7, G)
    assert pairings_cancel([(left, G2_GENERATOR), (negative(left), G2_GENERATOR)])
    assert not pairings_cancel([(left, G2_GENERATOR), (negative(right), G2_GENERATOR)])


def root2(a):
    """Square root in the field of the twist's coordinates, or None; P is 3 modulo 4."""
    norm = pow(a[0] ** 2 + a[1] ** 2, (P + 1) // 4, P)
    for sign in (1, -1):
        x = pow((a[0] + sign * norm) * pow(2, -1, P), (P + 1) // 4, P)
        y = a[1] * pow(2 * x, -1, P) % P
        if ((x * x - y * y) % P, 2 * x * y % P) == a:
            return x, y
    return None


def test_points_of_the_twist_beside_the_group_are_refused():
    (x, y), found = G2_GENERATOR, 0
    rest = bn254._sub2(bn254._mul2(y, y), bn254._mul2(bn254._mul2(x, x), x))  # the curve's constant
    for k in range(1, 12):
        point = (k, 1)
        cube = bn254._mul2(bn254._mul2(point, point), point)
        root = root2(((cube[0] + rest[0]) % P, (cube[1] + rest[1]) % P))
        if root is not None:  # on the twist, whose order is that of the group times a large number
            assert not on_g2((point, root))
            found += 1
    assert found
    minus = (x, ((-y[0]) % P, (-y[1]) % P))
    assert bn254._added(G2_GENERATOR, minus) is None
    twice = bn254._added(G2_GENERATOR, G2_GENERATOR)
    assert bn254._added(twice, minus) == G2_GENERATOR


def test_a_string_of_the_proof_system_has_the_form(made, known):
    check_string(made, LOG_ROWS)


def attacks():
    """Changes of single points of a string, and what they are."""
    powers, lagrange, end = 4, 4 + 64 * N, 4 + 128 * N
    other = stored(affine(multiply(5, G)))
    return {
        "both points of G2 at infinity": (end, bytes(256), "wrong generators"),
        "last point at infinity": (end + 128, bytes(128), "outside the group"),
        "last point not on the curve": (end + 128, b"\x01", "outside the group"),
        "another generator": (powers, other, "wrong generators"),
        "another power": (powers + 64 * 3, other, "the powers of one number"),
        "another last power": (powers + 64 * (N - 1), other, "the powers of one number"),
        "another Lagrange point": (lagrange + 64 * 2, other, "do not match its powers"),
        "a Lagrange point at infinity": (lagrange, bytes(64), "off the curve"),
        "a coordinate that is not reduced": (powers + 64 * 3, b"\xff" * 64, "off the curve"),
        "another size": (0, b"\x05", "must be like perpetual-powers"),
    }


@pytest.mark.parametrize("attack", attacks())
def test_a_made_up_string_does_not_have_the_form(made, known, tmp_path, attack):
    position, data, message = attacks()[attack]
    path = edited(made, tmp_path, position, data)
    with pytest.raises(VerificationError, match=message):
        check_string(path, LOG_ROWS)
    if message in ("wrong generators", "outside the group"):
        with pytest.raises(VerificationError, match=message):
            check_ends(path, LOG_ROWS)


def test_lagrange_points_that_open_the_first_weight_do_not_have_the_form(made, known, tmp_path):
    """With these, the commitment is a small multiple of the generator, and its head a weight."""
    first, others = affine(multiply(2**31, G)), [G1_GENERATOR, affine(negative(G))]
    points = [first] + [others[k % 2] for k in range(N - 1)]
    path = edited(made, tmp_path, 4 + 64 * N, b"".join(map(stored, points)))
    assert all(map(on_g1, points))
    with pytest.raises(VerificationError, match="do not match its powers"):
        check_string(path, LOG_ROWS)


def test_a_string_is_trusted_for_what_the_verifier_knows_only(made, known, tmp_path):
    found = hashlib.sha256(made.read_bytes()).hexdigest()
    with pytest.raises(VerificationError, match="is not that of the public ceremony") as refused:
        trust_in(found, LOG_ROWS, None, False)
    assert "from the auditor who generated it, never from the provider" in str(refused.value)
    assert trust_in(found, LOG_ROWS, None, True) == "test"
    assert trust_in(found, LOG_ROWS, made, False) == "supplied"
    other = edited(made, tmp_path, 4 + 64 * 3, b"\x01")
    with pytest.raises(VerificationError, match="differs from yours"):
        trust_in(found, LOG_ROWS, other, True)
    known[LOG_ROWS] = found
    assert trust_in(found, LOG_ROWS, None, False) == "ceremony"
    assert trust_in(found, LOG_ROWS, made, True) == "ceremony"


def test_the_ceremony_covers_all_sizes_of_circuits():
    from skuq.zk._fixed_point import LOG_ROWS as SIZES

    assert set(strings.CEREMONY) == set(SIZES)
    assert len(set(strings.CEREMONY.values())) == len(SIZES)
    assert size_of(13) == 1048836
