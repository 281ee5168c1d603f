"""Public architecture of a committed model: all that its circuits and keys depend on."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

# A circuit for attestations, and one for each disclosure level. Level "verdict" takes two: one
# proves the sums of a chunk of rows under a one-time pad, the other one the verdict on the sums of
# all chunks.
CIRCUITS = ("attestation", "predictions", "bins", "padded_bins", "verdict")
# Numbers side by side in a row of a circuit, at most: with four, constraints get a higher degree.
MAX_COLUMNS = 3
LOG_ROWS = range(13, 19)  # logarithms of the sizes of circuits
MAX_BINS = 1000  # a verifier must not be made to build a huge circuit
CONTEXT_BITS = 248  # of the SHA-256 that binds a proof to its statement
PAD_LIMBS, PAD_BITS = 3, 20  # a pad is a number of PAD_LIMBS digits of PAD_BITS bits
N_ALPHAS = 3  # thresholds of a verdict: alpha minus the tolerance, alpha, alpha plus it


class Architecture(NamedTuple):
    """All that a verifying key depends on; public.

    Attributes
    ----------
    widths : tuple of int
        Integers per input row, neurons of each hidden layer, number of classes.
    logit_bits : int
        Binary digits after the point of the logits.
    digits : int
        Digits that hold every number in the circuit.
    n_salts : int
        Random numbers that are committed to beside the weights.
    n_pads : int
        Chunks of rows whose sums can be encrypted with a one-time pad, for level "verdict".
    n_bins : int
        Largest number of confidence bins.
    log_rows : int
        Logarithm (base 2) of the number of rows of the circuits.
    rows_per_proof : dict of str to int
        Rows of data that one proof of each circuit covers.
    columns : dict of str to int
        Numbers side by side in a row of each circuit; `MAX_COLUMNS` where it is not named.
    """

    widths: tuple[int, ...]
    logit_bits: int
    digits: int
    n_salts: int
    n_pads: int
    n_bins: int
    log_rows: int
    rows_per_proof: dict[str, int]
    columns: dict[str, int] = {}

    @property
    def circuits(self) -> tuple[str, ...]:
        """Names of the circuits; those of level "verdict" exist only where there are pads."""
        return CIRCUITS if self.n_pads else CIRCUITS[:3]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the committed constants: weights and biases by layer, salt, pads."""
        layers = zip(self.widths[:-1], self.widths[1:], strict=True)
        shapes: list[tuple[int, ...]] = [s for a, b in layers for s in ((a, b), (1, b))]
        shapes.append((1, self.n_salts))
        if self.n_pads:
            shapes.append((self.n_pads, PAD_LIMBS * 3 * self.n_bins))
        return shapes

    def parts_of(self, circuit: str) -> list[tuple[range, tuple[int, int]]]:
        """Committed numbers that a circuit computes with: positions and shape of each part.

        These are the layers, each one's biases below its weights, and the pads.
        """
        layers = list(zip(self.widths[:-1], self.widths[1:], strict=True))
        shapes = [*((a + 1, b) for a, b in layers), (1, self.n_salts)]
        shapes.append((self.n_pads, PAD_LIMBS * 3 * self.n_bins))
        ends = np.cumsum([a * b for a, b in shapes]).tolist()
        parts = [
            (range(end - a * b, end), (a, b)) for end, (a, b) in zip(ends, shapes, strict=True)
        ]
        used = [] if circuit == "verdict" else parts[: len(layers)]
        return [*used, parts[-1]] if circuit in ("padded_bins", "verdict") else used

    @property
    def n_committed(self) -> int:
        """Number of integers under the commitment."""
        return sum(math.prod(shape) for shape in self.shapes)  # of numpy's, large ones overflow

    def columns_of(self, circuit: str) -> int:
        """Numbers side by side in a row of a circuit."""
        return self.columns.get(circuit, MAX_COLUMNS)

    def rows_of(self, circuit: str) -> int:
        """Rows of data that one proof of a circuit covers; 0 if it has none."""
        return self.rows_per_proof.get(circuit, 0)
