"""Curve BN254: points, multi-scalar multiplication and the pairing.

All operands are public, so operations need not take constant time. Points of G1 are pairs of
integers; elements of Fp2 are pairs ``(a, b)`` for a + b u with u² = -1. The package py_ecc is
not used, because its pairing takes several times as long.
"""

from collections.abc import Sequence

P = 0x30644E72E131A029B85045B68181585D97816A916871CA8D3C208C16D87CFD47  # order of the base field
ORDER = 0x30644E72E131A029B85045B68181585D2833E84879B9709143E1F593F0000001  # order of G1 and G2
ATE_LOOP = 6 * 4965661367192848881**2  # scalar of the Miller loop: trace of Frobenius - 1

Fp2 = tuple[int, int]
G1 = tuple[int, int]
G2 = tuple[Fp2, Fp2]
# (X, Y, Z) is the point (X / Z², Y / Z³), or the point at infinity if Z = 0.
Jacobian = tuple[int, int, int]
Fp12 = list[Fp2]  # six coefficients of a polynomial in w, where w⁶ = 9 + u

INFINITY: Jacobian = (1, 1, 0)
G1_GENERATOR: G1 = (1, 2)
G2_GENERATOR: G2 = (
    (
        10857046999023057135944570762232829481370756359578518086990519993285655852781,
        11559732032986387107991004021392285783925812861821192530917403151452391805634,
    ),
    (
        8495653923123431417604973247489272438418190587263600148770280649306958101930,
        4082367875863433681332203403145435568316851327593401208105741076214120093531,
    ),
)
ONE12: Fp12 = [(1, 0)] + [(0, 0)] * 5


def on_g1(point: G1) -> bool:
    """Whether a point is on the curve, and thus in G1; False for (0, 0), the point at infinity."""
    x, y = point
    return x < P and y < P and (y * y - x * x * x - 3) % P == 0


def on_g2(point: G2) -> bool:
    """Whether a point is on the twist and in its subgroup of order `ORDER`; False at infinity."""
    if not all(v < P for pair in point for v in pair):
        return False
    x, y = point
    b = _mul2((3, 0), _inverse2((9, 1)))
    cube = _mul2(_mul2(x, x), x)
    if _mul2(y, y) != ((cube[0] + b[0]) % P, (cube[1] + b[1]) % P):
        return False
    total: G2 | None = None  # infinity
    for bit in bin(ORDER)[2:]:
        total = _added(total, total)
        if bit == "1":
            total = _added(total, point)
    return total is None


def root_of_unity(log_order: int) -> int:
    """Return the root of unity of order ``2 ** log_order`` that the proof system uses."""
    return pow(7, (ORDER - 1) >> log_order, ORDER)


def combination(scalars: Sequence[int], points: Sequence[G1]) -> Jacobian:
    """Compute the sum of ``scalar * point`` over all pairs (Pippenger's method)."""
    width = max(2, len(points).bit_length() - 3)
    total = INFINITY
    for shift in reversed(range(0, ORDER.bit_length(), width)):
        for _ in range(width):
            total = _double(total)
        buckets = [INFINITY] * (1 << width)
        for scalar, point in zip(scalars, points, strict=True):
            digit = (scalar >> shift) & ((1 << width) - 1)
            if digit:
                buckets[digit] = _add_affine(buckets[digit], point)
        running = window = INFINITY
        for bucket in reversed(buckets[1:]):
            running = add(running, bucket)
            window = add(window, running)
        total = add(total, window)
    return total


def multiply(scalar: int, point: Jacobian) -> Jacobian:
    total = INFINITY
    for bit in bin(scalar % ORDER)[2:]:
        total = _double(total)
        if bit == "1":
            total = add(total, point)
    return total


def negative(point: Jacobian) -> Jacobian:
    return point[0], -point[1] % P, point[2]


def affine(point: Jacobian) -> G1 | None:
    """Compute the affine coordinates of a point; None for the point at infinity."""
    x, y, z = point
    if not z:
        return None
    inverse = pow(z, -1, P)
    return x * inverse**2 % P, y * inverse**3 % P


def jacobian(point: G1) -> Jacobian:
    return (*point, 1)


def pairings_cancel(pairs: Sequence[tuple[Jacobian, G2]]) -> bool:
    """Whether the product of the pairings of all pairs is 1."""
    product = ONE12
    for left, right in pairs:
        point = affine(left)
        if point is not None:
            product = _mul12(product, _miller(point, right))
    result = ONE12
    for bit in bin((P**12 - 1) // ORDER)[2:]:
        result = _mul12(result, result)
        if bit == "1":
            result = _mul12(result, product)
    return result == ONE12


def _double(point: Jacobian) -> Jacobian:
    x, y, z = point
    if not z:
        return INFINITY
    a, b = x * x % P, y * y % P
    d = 4 * x * b % P
    e = 3 * a
    new_x = (e * e - 2 * d) % P
    return new_x, (e * (d - new_x) - 8 * b * b) % P, 2 * y * z % P


def _add_affine(point: Jacobian, other: G1) -> Jacobian:
    x, y, z = point
    u, v = other
    if not z:
        return u, v, 1
    square = z * z % P
    h = (u * square - x) % P
    r = (v * square * z - y) % P
    if not h:
        return _double(point) if not r else INFINITY
    return _sum(x, y, z, h, r)


def add(point: Jacobian, other: Jacobian) -> Jacobian:
    x, y, z = point
    u, v, w = other
    if not z:
        return other
    if not w:
        return point
    squares = z * z % P, w * w % P
    x, y = x * squares[1] % P, y * squares[1] * w % P
    h = (u * squares[0] - x) % P
    r = (v * squares[0] * z - y) % P
    if not h:
        return _double(point) if not r else INFINITY
    return _sum(x, y, z * w % P, h, r)


def _sum(x: int, y: int, z: int, h: int, r: int) -> Jacobian:
    square = h * h % P
    cube, moved = h * square % P, x * square % P
    new_x = (r * r - cube - 2 * moved) % P
    return new_x, (r * (moved - new_x) - y * cube) % P, z * h % P


def _mul2(a: Fp2, b: Fp2) -> Fp2:
    return (a[0] * b[0] - a[1] * b[1]) % P, (a[0] * b[1] + a[1] * b[0]) % P


def _sub2(a: Fp2, b: Fp2) -> Fp2:
    return (a[0] - b[0]) % P, (a[1] - b[1]) % P


def _inverse2(a: Fp2) -> Fp2:
    norm = pow(a[0] * a[0] + a[1] * a[1], -1, P)
    return a[0] * norm % P, -a[1] * norm % P


def _mul12(a: Fp12, b: Fp12) -> Fp12:
    real, imaginary = [0] * 11, [0] * 11
    for i, (a0, a1) in enumerate(a):
        if a0 or a1:
            for j, (b0, b1) in enumerate(b):
                real[i + j] += a0 * b0 - a1 * b1
                imaginary[i + j] += a0 * b1 + a1 * b0
    for k in range(10, 5, -1):  # replace w⁶ by 9 + u
        real[k - 6] += 9 * real[k] - imaginary[k]
        imaginary[k - 6] += real[k] + 9 * imaginary[k]
    return [(real[k] % P, imaginary[k] % P) for k in range(6)]


def _slope(a: G2, b: G2) -> Fp2 | None:
    """Return the slope of the line through `a` and `b` (tangent if equal); None if vertical."""
    if a == b and a[1] != (0, 0):
        square = _mul2(a[0], a[0])
        return _mul2((3 * square[0], 3 * square[1]), _inverse2((2 * a[1][0], 2 * a[1][1])))
    if a[0] == b[0]:
        return None
    return _mul2(_sub2(b[1], a[1]), _inverse2(_sub2(b[0], a[0])))


def _chord(a: G2, b: G2, slope: Fp2) -> G2:
    x = _sub2(_sub2(_mul2(slope, slope), a[0]), b[0])
    return x, _sub2(_mul2(slope, _sub2(a[0], x)), a[1])


def _added(a: G2 | None, b: G2 | None) -> G2 | None:
    """Add two points of the twist; None stands for the point at infinity."""
    if a is None or b is None:
        return b if a is None else a
    slope = _slope(a, b)
    return None if slope is None else _chord(a, b, slope)


def _miller(point: G1, twisted: G2) -> Fp12:
    """Compute the Miller loop of the ate pairing.

    A point (x, y) of the twist represents (x w², y w³), and a slope s on the twist represents s w.
    """
    x, y = point
    value, running = ONE12, twisted

    def line(a: G2, slope: Fp2) -> Fp12:
        constant = _sub2(_mul2(slope, a[0]), a[1])
        tilted = (-slope[0] * x % P, -slope[1] * x % P)
        return [(y, 0), tilted, (0, 0), constant, (0, 0), (0, 0)]

    for bit in bin(ATE_LOOP)[3:]:
        slope = _slope(running, running)
        assert slope is not None  # never vertical, because the prime order exceeds `ATE_LOOP`
        value = _mul12(_mul12(value, value), line(running, slope))
        running = _chord(running, running, slope)
        if bit == "1":
            slope = _slope(running, twisted)
            assert slope is not None
            value = _mul12(value, line(running, slope))
            running = _chord(running, twisted, slope)
    return value
