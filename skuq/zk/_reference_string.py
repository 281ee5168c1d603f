"""Structured reference strings, whether to trust them, and commitments computed with them.

Whoever knows the secret of a reference string can forge any proof. A verifier therefore accepts a
string in three cases only, none of which relies on the provider:

- its SHA-256 is that of the public ceremony with many contributors;
- the verifier supplied a copy from a trusted source;
- the verifier explicitly allowed a test.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skuq.zk import _bn254 as curve
from skuq.zk import _ezkl as backend
from skuq.zk._bn254 import G1, G2, ORDER, P
from skuq.zk._files import MAX_BYTES, VerificationError, digest_file, read_bytes
from skuq.zk._fixed_point import Architecture

Trust = Literal["ceremony", "supplied", "test"]
# Reasons why a verifier accepted a reference string; they complete "The reference string is".
REFERENCE_STRINGS: dict[Trust, str] = {
    "ceremony": "that of the public ceremony (perpetual powers of tau), by its SHA-256",
    "supplied": "NOT the public ceremony's string: trusted because you supplied it",
    "test": "TEST ONLY: unknown; whoever generated it could forge these proofs",
}
# SHA-256 of the files of "perpetual powers of tau" for BN254, by the base-2 logarithm of the number
# of powers. File names are perpetual-powers-of-tau-raw-<logarithm>; ezkl compares its downloads
# with the same SHA-256.
CEREMONY = {
    13: "d5d94bb25bdc024f649213593027d861042ee807cafd94b49b54f1663f8f267d",
    14: "c09129f064c08ecb07ea3689a2247dcc177de6837e7d2f5f946e30453abbccef",
    15: "90807800a1c3b248a452e1732c45ee5099f38b737356f5542c0584ec9c3ebb45",
    16: "2a1a494630e71bc026dd5c0eab4c1b9a5dbc656228c1f0d48f5dbd3909b161d3",
    17: "41509f380362a8d14401c5ae92073154922fe23e45459ce6f696f58607655db7",
    18: "d0148475717a2ba269784a178cb0ab617bc77f16c58d4a3cbdfe785b591c7034",
}
G1_BYTES, G2_BYTES = 64, 128
MONTGOMERY = pow(2, -256, P)  # coordinates are stored multiplied by 2 ** 256


def size_of(log_rows: int) -> int:
    """Return the bytes of a reference string: a number, powers, Lagrange points, two G2 points."""
    return 4 + 2 * G1_BYTES * 2**log_rows + 2 * G2_BYTES


def needed_string(log_rows: int) -> str:
    return (
        f"perpetual-powers-of-tau-raw-{log_rows} ({size_of(log_rows)} bytes, SHA-256 "
        f"{CEREMONY[log_rows]})"
    )


def trust_in(found: str, log_rows: int, srs: str | Path | None, allow_test_string: bool) -> Trust:
    """Return the reason to trust a reference string with this SHA-256; raise if there is none."""
    if srs is not None and digest_file(Path(srs)) != found:
        raise VerificationError("The structured reference string differs from yours.")
    if found == CEREMONY[log_rows]:
        return "ceremony"
    if srs is not None:
        return "supplied"
    if allow_test_string:
        return "test"
    raise VerificationError(
        "The structured reference string is not that of the public ceremony, so whoever "
        "generated it could have forged these proofs. If you trust its origin, supply a copy "
        "(`srs`) from the ceremony, or from the auditor who generated it, never from the provider. "
        "For a test, allow this string (`allow_test_string=True`)."
    )


def check_ends(path: Path, log_rows: int) -> None:
    """Check a string's size, generators and G2 points; with wrong ones, false proofs may verify."""
    data = _read(path, log_rows)
    points = _g1_points(data, first=0, count=1)
    generator, tau = _g2_points(data)
    if points != [curve.G1_GENERATOR] or generator != curve.G2_GENERATOR:
        raise VerificationError("The structured reference string has wrong generators.")
    if not curve.on_g2(tau):
        raise VerificationError("The last point of the reference string is outside the group G2.")


def check_string(path: Path, log_rows: int) -> None:
    """Check that a string contains the powers of one number and the matching Lagrange points.

    A malformed string could reveal the committed weights. A random linear combination of all points
    and two pairings detect a malformed string, except with negligible probability.
    """
    if digest_file(path) == CEREMONY[log_rows]:
        return
    check_ends(path, log_rows)
    data = _read(path, log_rows)
    n = 2**log_rows
    powers = _g1_points(data, first=0, count=n)
    lagrange = _g1_points(data, first=n, count=n)
    generator, tau = _g2_points(data)
    if not all(map(curve.on_g1, powers)) or not all(map(curve.on_g1, lagrange)):
        raise VerificationError("The structured reference string has points off the curve.")
    z = 1 + secrets.randbelow(ORDER - 1)
    scalars, evaluations = [1], _evaluations(z, log_rows)
    for _ in range(n - 1):
        scalars.append(scalars[-1] * z % ORDER)
    total = curve.combination(scalars, powers)  # commits to the polynomial with coefficients z ** i
    by_values = curve.combination(evaluations, lagrange)
    but_first = curve.add(total, curve.negative(curve.jacobian(powers[0])))
    shifted = curve.multiply(pow(z, -1, ORDER), but_first)
    last = curve.multiply(scalars[-1], curve.jacobian(powers[-1]))
    but_last = curve.add(total, curve.negative(last))
    if not curve.pairings_cancel([(but_last, tau), (curve.negative(shifted), generator)]):
        raise VerificationError(
            "The structured reference string does not hold the powers of one number."
        )
    if curve.add(total, curve.negative(by_values))[2]:
        raise VerificationError(
            "The structured reference string has Lagrange points that do not match its powers."
        )


def _evaluations(z: int, log_rows: int) -> list[int]:
    n, root = 2**log_rows, curve.root_of_unity(log_rows)
    above, point, found = (pow(z, n, ORDER) - 1) % ORDER, z, []
    for _ in range(n):
        found.append(above * pow(point - 1, -1, ORDER) % ORDER)
        point = point * root % ORDER
    return found


def commitment_point(shape: Architecture, constants: Sequence[NDArray[Any]], srs: Path) -> str:
    """Compute the compressed commitment to constants in the order of ``shape.shapes``.

    The numbers fill one column in this order; its last rows, which the proof system cannot use,
    contain 1. The commitment is the sum of each number times the Lagrange point of its row.
    """
    size = 2**shape.log_rows
    points = _g1_points(_read(srs, shape.log_rows), first=size, count=size)  # Lagrange points
    scalars = [int(value) for part in constants for value in part.ravel()]
    # For a negative scalar, negate the point instead. Modulo the order, a negative scalar would
    # have many digits, which makes the multiplication slow.
    used = [
        (x, y if scalar >= 0 else P - y)
        for scalar, (x, y) in zip(scalars, points[: len(scalars)], strict=True)
    ]
    used += points[-backend.UNUSABLE_ROWS :]
    factors = [*map(abs, scalars), *[1] * backend.UNUSABLE_ROWS]
    total = curve.affine(curve.combination(factors, used))
    return "" if total is None else backend.compressed(total)


def sample_constants(shape: Architecture) -> list[NDArray[np.int64]]:
    """Return fixed constants with which any circuit can be evaluated at inputs of 0.

    The constants are distinct, so that in any other order they have a different commitment. Biases
    are the smallest constants; in hidden layers they are negative, so that ReLU returns 0 there.
    """
    last_bias = 2 * len(shape.widths) - 3
    biases = list(range(last_bias, 0, -2))
    others = [k for k in range(len(shape.shapes)) if k not in biases]
    constants, first = {}, 1
    for k in biases + others:
        size = shape.shapes[k]
        count = int(np.prod(size))
        values = np.arange(first, first + count).reshape(size)
        constants[k] = -values if k in biases[1:] else values
        first += count
    return [constants[k] for k in range(len(shape.shapes))]


def _read(path: Path, log_rows: int) -> bytes:
    data = read_bytes(path, MAX_BYTES)
    if len(data) != size_of(log_rows) or int.from_bytes(data[:4], "little") != log_rows:
        raise VerificationError(
            f"The structured reference string must be like {needed_string(log_rows)}."
        )
    return data


def _g1_points(data: bytes, first: int, count: int) -> list[G1]:
    start = 4 + G1_BYTES * first
    numbers = _numbers(data[start : start + G1_BYTES * count])
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _g2_points(data: bytes) -> tuple[G2, G2]:
    a, b, c, d, e, f, g, h = _numbers(data[-2 * G2_BYTES :])
    return ((a, b), (c, d)), ((e, f), (g, h))


def _numbers(data: bytes) -> list[int]:
    """Decode coordinates; values >= P are not changed, and are rejected by later checks."""
    stored = [int.from_bytes(data[i : i + 32], "little") for i in range(0, len(data), 32)]
    return [v * MONTGOMERY % P if v < P else v for v in stored]
