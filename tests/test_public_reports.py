"""Situations that users of neighbouring packages reported in public, tried here.

Each test says in its docstring which kind of report it stands for, with the address of one. Whoever
finds a further report adds a test below the heading of its kind.
"""

from __future__ import annotations

import re

# --- order of labels, and labels of rows ----------------------------------------------------------


# --- parts of the uncertainty that nobody measured ------------------------------------------------


# --- half precision -------------------------------------------------------------------------------


# --- explanations ---------------------------------------------------------------------------------


# --- sample weights and where they reach ----------------------------------------------------------


# --- reinforcement learning -----------------------------------------------------------------------


# --- units of features, and bounds ----------------------------------------------------------------


# --- modules of torch as people write them --------------------------------------------------------


# --- empty, odd and large inputs ------------------------------------------------------------------


# --- this file ------------------------------------------------------------------------------------


def test_each_test_names_its_kind_of_report():
    """A test without a word on what was reported cannot be added to."""
    for name, test in globals().items():
        if name.startswith("test_"):
            assert re.match(r"\S.*\.$", test.__doc__ or ""), name
