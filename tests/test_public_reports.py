"""Situations that users of neighbouring packages reported in public, tried here.

Each test says in its docstring which kind of report it stands for, with the address of one. Whoever
finds a further report adds a test below the heading of its kind.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn.datasets import make_moons

# --- order of labels, and labels of rows ----------------------------------------------------------


# --- parts of the uncertainty that nobody measured ------------------------------------------------


# --- half precision -------------------------------------------------------------------------------


# --- explanations ---------------------------------------------------------------------------------


# --- sample weights and where they reach ----------------------------------------------------------


# --- reinforcement learning -----------------------------------------------------------------------


# --- units of features, and bounds ----------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e-6, 2.0**-20, 1e6])
def test_bounds_are_the_same_in_any_unit_of_the_features(factor):
    """Models that are worthless for inputs of odd scale (GPflow/GPflow#1292)."""
    from skuq import RobustGPC

    X, y = make_moons(40, noise=0.15, random_state=0)
    found = []
    for unit in (1.0, factor):
        gpc = RobustGPC(random_state=0, device="cpu", max_iter=20).fit(X * unit, y)
        request = {"radius": 0.5 * unit, "max_regions": 50}
        bounds = gpc.predict_proba_bounds(X[:1] * unit, class_=1, **request)
        at = gpc.predict_proba(np.concatenate([bounds.argmin[0], bounds.argmax[0]]))[:, 1]
        attained = [bounds.min_upper[0, 0], bounds.max_lower[0, 0]]
        np.testing.assert_allclose(at, attained, atol=1e-8)
        radii = gpc.certified_radius(X[:4] * unit, max_regions=50, precision=0.1).lower / unit
        found.append((gpc.certify(X * unit, **request).status, bounds.min_lower, radii))
    (status, lower, radii), (new_status, new_lower, new_radii) = found
    np.testing.assert_array_equal(status, new_status)
    assert "undecided" not in status
    np.testing.assert_allclose(lower, new_lower, atol=1e-4)
    np.testing.assert_allclose(radii, new_radii, rtol=1e-3)
    assert (radii > 0).any()


@pytest.mark.parametrize("size", [1e160, -1e300])
def test_a_cell_whose_square_overflows_is_refused_by_its_place(size):
    """Errors from within an optimiser for inputs that overflow (pytorch/botorch#160)."""
    from skuq import RobustGPC

    X, y = make_moons(20, noise=0.15, random_state=0)
    gpc = RobustGPC(max_iter=2, device="cpu").fit(X, y)
    X[3, 1] = size
    refused = pytest.raises(ValueError, match=r"Feature 1 is -?1e\+\d+ in row 3.*rescale")
    with refused:
        RobustGPC(max_iter=2, device="cpu").fit(X, y)
    for ask in (gpc.predict_proba, lambda inputs: gpc.certify(inputs, radius=0.1)):
        with refused:
            ask(X)


def test_weights_beyond_any_number_of_samples_are_refused():
    """Numbers that overflow within a fit and come out as another error (pytorch/botorch#1745)."""
    from skuq import RobustGPC

    X, y = make_moons(20, noise=0.15, random_state=0)
    for weight in (1e300, 1e20):
        with pytest.raises(ValueError, match=r"`sample_weight` holds numbers up to 1e\+"):
            RobustGPC(max_iter=2, device="cpu").fit(X, y, np.full(20, weight))


# --- modules of torch as people write them --------------------------------------------------------


# --- empty, odd and large inputs ------------------------------------------------------------------


# --- this file ------------------------------------------------------------------------------------


def test_each_test_names_its_kind_of_report():
    """A test without a word on what was reported cannot be added to."""
    for name, test in globals().items():
        if name.startswith("test_"):
            assert re.match(r"\S.*\.$", test.__doc__ or ""), name
