"""Which points of a recorded learning curve count as the same."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("stable_baselines3")

from benchmarks.uadqn_repeated import same_points

RECORDED = pd.DataFrame({"episodes": [448, 0, 211, 126], "score": [0.5045, np.nan, 1.678, 3.103]})
AGAIN = {"episodes": [448, 0, 211], "score": [0.504464, np.nan, 1.67773]}


def test_points_are_the_same_in_the_digits_that_were_recorded():
    assert same_points(AGAIN, RECORDED) == 3


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("score", [0.504464, np.nan, 1.6787]),
        ("score", [0.504464, 0.0, 1.67773]),
        ("episodes", [448, 0, 210]),
    ],
)
def test_another_score_or_number_of_episodes_is_another_point(name, values):
    assert same_points({**AGAIN, name: values}, RECORDED) == 2
