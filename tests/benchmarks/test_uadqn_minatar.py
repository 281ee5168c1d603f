"""How scores on MinAtar are averaged and compared, and how the authors' logs are read."""

import pickle

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("stable_baselines3")

import pytest

from benchmarks import uadqn_minatar
from benchmarks.uadqn_minatar import binned, records, scores_of
from benchmarks.uadqn_released import logged

pytest.importorskip("stable_baselines3")

from benchmarks.uadqn_repeated import same_points


def one_run(history, steps, **run):
    return binned(history, steps).assign(steps=steps, **run)


def test_early_scores_are_of_all_episodes_and_late_ones_of_the_second_half():
    history = pd.DataFrame({"step": [10_000, 20_000, 30_000, 90_000], "score": [1.0, 2, 4, 8]})
    curve = binned(history, 200_000)
    scores = {"score_50000": pytest.approx(7 / 3), "late_score_50000": 4.0}
    assert scores_of(curve, 50_000) == scores
    assert scores_of(curve, 100_000)["late_score_100000"] == 8.0
    assert scores_of(curve, 200_000).keys() == {"score_200000"}


def test_the_authors_runs_are_averaged_as_ours_are(tmp_path, monkeypatch):
    steps = np.arange(1_000, 200_001, 1_000)
    history = pd.DataFrame({"step": steps, "score": np.sqrt(steps)})
    theirs = one_run(history, 200_000, game="breakout", method="uadqn", seed=0)
    monkeypatch.setattr(uadqn_minatar, "RELEASED", tmp_path / "released.csv")
    theirs.to_csv(uadqn_minatar.RELEASED, index=False)
    ours = one_run(history, 200_000, game="breakout", method="uadqn", seed=3)
    found = {(each["method"], each["metric"]): each["value"] for each in records(ours)}
    metrics = [name for method, name in found if method == "uadqn-released"]
    assert len(metrics) == 5
    for name in metrics:
        assert found["uadqn-released", name] == pytest.approx(found["uadqn", name])


def test_logs_are_read_as_numbers_and_nothing_else(tmp_path):
    path = tmp_path / "log_data.pkl"
    path.write_bytes(pickle.dumps({"Episode_score": [[3.0, 9], [0.0, 24]]}))
    assert logged(path).to_dict("list") == {"score": [3.0, 0.0], "step": [10, 25]}
    path.write_bytes(pickle.dumps({"Episode_score": [[print, 9]]}))
    with pytest.raises(pickle.UnpicklingError, match="print where numbers"):
        logged(path)


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
