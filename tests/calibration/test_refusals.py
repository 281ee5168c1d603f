"""What the statistics of confidence refuse, with a word of the message."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from skuq import calibration
from skuq.calibration import choose_tolerance, conditions_of, conformal_p_values, search_regions


def test_wrong_arguments_are_refused_with_their_names():
    answers = calibration.TopLabelPredictions(np.full(20, 6 * 10**8, np.int32), np.ones(20, bool))
    power = {"tolerance": 0.05, "threshold": calibration.planned_threshold()}
    rows = [
        (lambda: calibration.bin_edges(np.array([1, 2], np.int32), 2, "equal"), "strategy"),
        (lambda: choose_tolerance([0, 1], [[0.7, 0.2], [0.5, 0.5]]), "sum to 1"),
        (lambda: choose_tolerance([0, 7], [[0.6, 0.4], [0.5, 0.5]], classes=[0, 1]), "7"),
        (lambda: calibration.planned_threshold(direction="too high"), "direction"),
        (lambda: conformal_p_values([[0.1], [0.2]], [0.1]), "`scores`"),
        (lambda: conformal_p_values([0.1, np.nan], [0.1]), "`scores`"),
        (lambda: conformal_p_values([0.1], [0.1, np.nan]), "`held_out`"),
        (lambda: conformal_p_values([0.1], []), "at least 1"),
        (lambda: conformal_p_values([np.inf], [0.1]), "finite"),
        (lambda: conformal_p_values([0.1], [0.1, 0.2], y_held_out=[0]), None),
        (lambda: search_regions(np.zeros((19, 2)), answers, tolerance=0.05), None),
        (lambda: search_regions(np.zeros((20, 1001)), answers, tolerance=0.05), r"\(20, 1001\)"),
        (lambda: search_regions(["a"] * 20, answers, tolerance=0.05), "list"),
        (lambda: conditions_of(np.zeros(5)), "columns"),
        (lambda: conditions_of([[1, 2], [3]]), "columns"),
        (lambda: conditions_of(np.zeros((3, 2), complex)), "columns"),
        (lambda: conditions_of(csr_array((200_000, 200_000))), "csr_array"),  # is not made dense
    ]
    held = [0.1, 0.2, 0.3]
    nullable = pd.Series([0, 1, None], dtype="Int64"), pd.Series(["a", "b", None], dtype="string")
    for missing in ([0, 1, np.nan], ["a", "b", None], *nullable):
        rows.append((lambda y=missing: conformal_p_values([0.1], held, y_held_out=y), "missing"))
    for value in (0, 1, -0.5, 2, np.nan):
        for function in (calibration.detectable_gap, calibration.required_samples):
            call = lambda f=function, p=value: f(0.3, 0.5, **power, power=p)  # noqa: E731
            rows.append((call, "`power`"))
    for call, word in rows:
        with pytest.raises(ValueError, match=word):
            call()
