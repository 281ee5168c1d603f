"""Runs in a folder: interrupted and continued bit for bit, finished, extended, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback

from skuq.uadqn import UADQNAlgorithm
from skuq.uadqn import _run_configs as configs
from skuq.uadqn import _runs as runs
from skuq.uadqn._checkpoint import CheckpointError
from skuq.uadqn._policies import policy_for
from skuq.uadqn._run_configs import RunError, make_run_config, settings_for
from skuq.uadqn._runs import last_saved_step, load_agent, train_run, train_seeds
from tests.uadqn.environments import RandomEnv
from tests.uadqn.test_checkpoint import TYPES, Stop, Unpicklable, tensors

QUICK = {
    "learning_rate": 1e-3,
    "learning_starts": 50,
    "batch_size": 8,
    "buffer_size": 150,
    "target_update_interval": 40,
    "epistemic_factor": 1.0,
    "aleatoric_factor": 0.5,
}
STEPS, EVERY = 240, 60  # the buffer is full, and overwritten, before the last checkpoint


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Settings that a test can wait for."""
    monkeypatch.setattr(configs, "settings_for", lambda env: dict(QUICK))


def train(folder, steps=STEPS, env="CliffWind-v0", seed=0, method="uadqn", stop=None, **factors):
    return train_run(
        folder,
        make_run_config(env, steps, seed, method, **factors),
        checkpoint_every=EVERY,
        device="cpu",
        callbacks=() if stop is None else (Stop(stop),),
        trust=True,
    )


def interrupt(folder, stop=150, **options):
    with pytest.raises(KeyboardInterrupt):
        train(folder, stop=stop, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Folders of runs that nothing has interrupted; each is trained once, and only read."""
    folders = {}

    def of(steps=STEPS, method="uadqn"):
        if (steps, method) not in folders:
            folders[steps, method] = tmp_path_factory.mktemp("whole") / "run"
            train(folders[steps, method], steps=steps, method=method)
        return folders[steps, method]

    return of


def contents(folder):
    """Files of a run, and when they changed; the lock is touched by old releases of filelock."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"  # which some versions of filelock touch
    }


def assert_same_run(one, other):
    assert (one / "history.csv").read_bytes() == (other / "history.csv").read_bytes()
    assert (one / "config.json").read_bytes() == (other / "config.json").read_bytes()
    agents = [load_agent(folder, "cpu", trust=True).algorithm for folder in (one, other)]
    for state in (lambda a: a.policy.state_dict(), lambda a: a.policy.optimizer.state_dict()):
        pairs = list(zip(*(tensors(state(agent)) for agent in agents), strict=True))
        assert pairs
        for a, b in pairs:
            np.testing.assert_array_equal(a.numpy(), b.numpy())


# --- the configuration -------------------------------------------------------------------------


def flat(env):
    """Settings as the algorithm takes them."""
    settings = settings_for(env)
    return settings | settings.pop("algorithm_kwargs")


def test_uadqn_is_configured_with_the_settings_of_its_environment_and_given_factors(monkeypatch):
    monkeypatch.setattr(configs, "settings_for", settings_for)
    config = make_run_config(
        "MinAtar/Asterix-v1", 10, seed=3, aleatoric_factor=0.7, epistemic_factor=None
    )
    assert config[:4] == ("MinAtar/Asterix-v1", 10, 3, "uadqn")
    assert config.settings == flat("MinAtar/Asterix-v1") | {"aleatoric_factor": 0.7}
    assert make_run_config("CliffWind-v0", 10).settings == flat("CliffWind-v0")
    assert (
        make_run_config("CliffWind-v0", 10, epistemic_factor=0.0).settings["epistemic_factor"] == 0
    )


@pytest.mark.parametrize(
    ("env", "steps", "fraction"),
    [
        ("MinAtar/Breakout-v1", 1_000_000, 0.1),
        ("MinAtar/Breakout-v1", 50_000, 1.0),
        ("CliffWind-v0", 1_000_000, 0.2),
    ],
)
def test_epsilon_falls_over_100_000_steps_of_minatar_and_a_fifth_of_others(env, steps, fraction):
    settings = make_run_config(env, steps, method="dqn").settings
    assert settings["exploration_fraction"] == fraction
    assert settings["exploration_final_eps"] == 0.03


@pytest.mark.parametrize(
    ("method", "networks"),
    [
        ("qrdqn", {"net_arch": [8], "init_gain": 1.0, "levels": "paper"}),
        ("dqn", {"net_arch": [8]}),
        ("bootstrapped", {"net_arch": [8]}),
    ],
)
def test_baselines_take_what_they_have(monkeypatch, method, networks):
    everything = {"net_arch": [8], "init_gain": 1.0, "prior_gain": 2.0, "levels": "paper"}
    factors = {"epistemic_factor": 2.0, "aleatoric_factor": 0.5}
    given = QUICK | factors | {"policy_kwargs": everything}
    monkeypatch.setattr(configs, "settings_for", lambda env: dict(given))
    settings = make_run_config("CliffWind-v0", 100, method=method).settings
    assert settings.pop("policy_kwargs") == networks
    assert not settings.keys() & factors.keys()
    assert settings["learning_rate"] == QUICK["learning_rate"]
    assert make_run_config("CliffWind-v0", 100).settings["policy_kwargs"] == everything


def test_baselines_without_networks_of_their_own_are_not_given_any(monkeypatch):
    given = QUICK | {"policy_kwargs": {"prior_gain": 2.0}}
    monkeypatch.setattr(configs, "settings_for", lambda env: dict(given))
    assert "policy_kwargs" not in make_run_config("CliffWind-v0", 100, method="dqn").settings


def test_factors_of_other_methods_and_unknown_methods_are_refused():
    message = "epistemic_factor applies only to method='uadqn', not to 'dqn'"
    with pytest.raises(RunError, match=message):
        make_run_config("CliffWind-v0", 10, method="dqn", epistemic_factor=1.0)
    message = "epistemic_factor and aleatoric_factor apply only to method='uadqn'"
    with pytest.raises(RunError, match=message):
        make_run_config("CliffWind-v0", 10, 0, "qrdqn", epistemic_factor=1, aleatoric_factor=0)
    with pytest.raises(
        RunError, match="must be one of uadqn, qrdqn, dqn, bootstrapped, got 'sarsa'"
    ):
        make_run_config("CliffWind-v0", 10, method="sarsa")


@pytest.mark.parametrize(
    ("space", "policy"),
    [
        (spaces.Box(0, 1, (4,)), "MlpPolicy"),
        (spaces.Box(0, 1, (4, 3)), "MlpPolicy"),
        (spaces.Discrete(3), "MlpPolicy"),
        (spaces.Box(0, 1, (10, 10, 4), bool), "GridPolicy"),
        (spaces.Box(0, 1, (10, 10, 10), bool), "GridPolicy"),
        (spaces.Box(0, 1, (6, 5, 2)), "GridPolicy"),
        # channels first, or too large: no grids
        (spaces.Box(0, 1, (3, 20, 20)), "MlpPolicy"),
        (spaces.Box(0, 1, (4, 84, 84)), "MlpPolicy"),
        (spaces.Box(0, 1, (84, 84, 4)), "MlpPolicy"),
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), "CnnPolicy"),
        (spaces.Box(0, 255, (3, 84, 84), np.uint8), "CnnPolicy"),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), "MlpPolicy"),
        (spaces.Box(0, 9, (40, 40, 3), np.uint8), "MlpPolicy"),
        (spaces.Dict({"a": spaces.Box(0, 1, (4, 4, 1))}), "MultiInputPolicy"),
    ],
)
def test_the_policy_goes_by_the_observations(space, policy):
    assert policy_for(space) == policy


# --- training ----------------------------------------------------------------------------------


def test_a_run_is_the_algorithm_with_its_settings(tmp_path):
    outcome = train(tmp_path / "run", steps=200, seed=4)
    agent = UADQNAlgorithm(
        "MlpPolicy", runs.make_env("CliffWind-v0"), seed=4, device="cpu", **QUICK
    ).learn(200)
    trained = load_agent(tmp_path / "run", "cpu", trust=True)
    assert trained.finished
    assert trained.algorithm.num_timesteps == 200
    pairs = zip(agent.quantile_net.trained(), trained.algorithm.quantile_net.trained(), strict=True)
    for a, b in pairs:
        np.testing.assert_array_equal(a.detach(), b.detach())
    assert (outcome.begun_at, outcome.steps) == (0, 200)
    written = pd.read_csv(tmp_path / "run" / "history.csv")
    pd.testing.assert_frame_equal(written, outcome.history)
    assert written.length.sum() <= 200 < written.length.sum() + 15
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["settings"] == QUICK
    assert config["versions"].keys() >= {"skuq", "torch", "stable-baselines3"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["uadqn", "dqn"])  # `test_checkpoint.py` has every algorithm
def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path, whole, method):
    interrupt(tmp_path, stop=80, method=method)
    interrupt(tmp_path, stop=190, method=method)
    assert last_saved_step(tmp_path) == 180
    assert train(tmp_path, method=method).begun_at == 180
    assert_same_run(whole(method=method), tmp_path)
    assert (tmp_path / "checkpoints").exists() == (method == "uadqn")  # which can be extended


@pytest.mark.slow
def test_a_run_that_is_interrupted_before_its_first_checkpoint_begins_anew(tmp_path, whole):
    interrupt(tmp_path, stop=20)
    assert last_saved_step(tmp_path) == 0
    assert train(tmp_path).begun_at == 0
    assert_same_run(whole(), tmp_path)


@pytest.mark.slow
def test_checkpoints_at_other_intervals_make_no_other_run(tmp_path, whole):
    interrupt(tmp_path)
    config = make_run_config("CliffWind-v0", STEPS)
    train_run(tmp_path, config, checkpoint_every=37, device="cpu", trust=True)
    assert_same_run(whole(), tmp_path)


def test_the_history_can_be_read_while_the_run_goes_on(tmp_path):
    interrupt(tmp_path)
    so_far = pd.read_csv(tmp_path / "history.csv")
    assert 105 <= so_far.step.max() <= 120
    train(tmp_path)
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "history.csv").head(len(so_far)), so_far, check_exact=True
    )


@pytest.mark.parametrize("method", ["uadqn", "dqn"])
def test_a_finished_run_is_not_touched(tmp_path, method):
    train(tmp_path, steps=120, method=method)
    before = contents(tmp_path)
    outcome = train(tmp_path, steps=120, method=method)
    assert outcome == (120, 120, None)
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_an_extended_run_equals_one_that_was_longer_from_the_start(tmp_path, whole):
    train(tmp_path, steps=150)
    assert train(tmp_path).begun_at == 150
    assert_same_run(whole(), tmp_path)


@pytest.mark.slow
def test_an_extension_that_is_interrupted_is_an_unfinished_run_of_more_steps(tmp_path, whole):
    train(tmp_path, steps=150)
    interrupt(tmp_path, stop=170)
    agent = load_agent(tmp_path, "cpu", trust=True)
    assert (agent.finished, agent.algorithm.num_timesteps) == (False, 150)
    with pytest.raises(RunError, match="is a run of 240 steps; request at least 240 steps"):
        train(tmp_path, steps=150)
    assert train(tmp_path).begun_at == 150
    assert_same_run(whole(), tmp_path)


def test_a_run_that_was_killed_before_its_agent_was_written_only_writes_it(tmp_path):
    train(tmp_path, steps=120)
    expected = (tmp_path / "history.csv").read_bytes()
    (tmp_path / "agent.zip").unlink()
    (tmp_path / "history.csv").unlink()
    assert train(tmp_path, steps=120).begun_at == 120
    assert (tmp_path / "history.csv").read_bytes() == expected
    assert load_agent(tmp_path, "cpu", trust=True).finished


def test_what_an_interrupted_save_has_left_is_cleared_away(tmp_path):
    interrupt(tmp_path)
    checkpoint = tmp_path / "checkpoints" / ".step-000000000150.0123456789ab.partial"
    checkpoint.mkdir()
    (checkpoint / "state.pkl").write_bytes(b"half")
    for name in ("config.json", "history.csv", "agent.zip"):
        (tmp_path / f".{name}.0123456789ab.partial").write_bytes(b"half")
    train(tmp_path)
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert names == ["step-000000000240"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock",
        "agent.zip",
        "checkpoints",
        "config.json",
        "history.csv",
    ]


SCRIPT = """
import os
import signal
import sys
from pathlib import Path
import torch._dynamo  # as the first optimiser does
from skuq.uadqn import _run_configs as configs
from skuq.uadqn import _runs as runs
configs.settings_for = lambda env: {settings!r}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has it ignored
for _ in range(2):  # a child for each attempt, since imports take longer than training
    child = os.fork()
    if not child:
        runs.train_run(
            Path(sys.argv[1]), configs.make_run_config("CliffWind-v0", int(sys.argv[2])),
            checkpoint_every=30, device="cpu", trust=True,
        )
        sys.exit()
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_at_any_time_goes_on_bit_for_bit(tmp_path, whole):
    """Until then, no other process trains in its folder."""
    steps, run = 400, tmp_path / "killed"
    command = [sys.executable, "-c", SCRIPT.format(settings=QUICK), str(run), str(steps)]

    def wait_for(step):
        deadline = time.monotonic() + 120
        while not (run / "checkpoints").exists() or last_saved_step(run) < step:
            os.kill(child, 0)  # which it would not find if it had ended
            assert time.monotonic() < deadline
            time.sleep(0.03)

    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        child = int(process.stdout.readline())
        wait_for(60)
        os.kill(child, signal.SIGSTOP)
        with pytest.raises(RunError, match="Another process is training in"):
            train(run, steps=steps)
        saved = last_saved_step(run)
        os.kill(child, signal.SIGCONT)
        wait_for(saved + 1)  # it is not disturbed by that
        os.kill(child, signal.SIGKILL)
        assert int(process.stdout.readline()) == -signal.SIGKILL
        assert not (run / "agent.zip").exists()
        saved = last_saved_step(run)
        child = int(process.stdout.readline())
        wait_for(saved + 1)  # the lock ended with the process
        os.kill(child, signal.SIGINT)
        assert int(process.stdout.readline()) != 0
        assert not (run / "agent.zip").exists()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert 90 < last_saved_step(run) < steps
    train(run, steps=steps)
    assert_same_run(whole(steps), run)


# --- what is refused ---------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["finished", "interrupted"])
def begun(request, tmp_path_factory):
    """The folder of a run of 150 steps, which no test may change."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configs, "settings_for", lambda env: dict(QUICK))
        if request.param == "finished":
            train(folder, steps=150)
        else:
            interrupt(folder, steps=150, stop=100)
    return folder


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 1}, "has seed 0, not 1"),
        ({"env": "CartPole-v1"}, "has env 'CliffWind-v0', not 'CartPole-v1'"),
        ({"method": "dqn"}, "has method 'uadqn', not 'dqn'"),
        ({"epistemic_factor": 3.0}, "has epistemic_factor 1.0, not 3.0"),
        ({"aleatoric_factor": 0.0}, "has aleatoric_factor 0.5, not 0.0"),
        ({"steps": 100}, "is a run of 150 steps; request at least 150 steps"),
    ],
)
def test_a_run_does_not_go_on_with_another_configuration(begun, other, message):
    before = contents(begun)
    with pytest.raises(RunError, match=message):
        train(begun, **{"steps": 150, **other})
    assert contents(begun) == before


@pytest.mark.parametrize("method", ["qrdqn", "dqn", "bootstrapped"])
def test_epsilon_schedules_are_not_extended(tmp_path, method):
    train(tmp_path, steps=100, method=method)
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"exploration of method .* depends on the number of steps"):
        train(tmp_path, steps=200, method=method)
    assert contents(tmp_path) == before


def test_settings_that_a_file_writes_otherwise_are_the_same(tmp_path, monkeypatch):
    given = QUICK | {"policy_kwargs": {"net_arch": (8, 8), "init_gain": 1.0}}
    monkeypatch.setattr(configs, "settings_for", lambda env: dict(given))
    interrupt(tmp_path, steps=90, stop=70)
    assert train(tmp_path, steps=90).begun_at == 60
    assert train(tmp_path, steps=90).history is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("notes.txt", "mine", "is not the folder of a run: it contains other files"),
        ("config.json", "{}", r"config.json is not a valid run configuration \(KeyError"),
        ("config.json", "[1]", "config.json is not a valid run configuration"),
        ("config.json", "not JSON", "config.json is not a valid run configuration"),
        (
            "config.json",
            '{"env": "e", "steps": 1, "seed": 0, "method": "other", "settings": {}}',
            "config.json is not a valid run configuration .*method 'other'",
        ),
    ],
)
def test_a_folder_that_holds_something_else_is_left_alone(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    before = contents(tmp_path)
    for attempt in (train, load_agent):
        with pytest.raises(RunError, match=message):
            attempt(tmp_path)
    assert contents(tmp_path) == before


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(RunError, match="is not a folder"):
        train(tmp_path / "file")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Absent-v0", "'Absent-v0' cannot be created: Environment 'Absent-v0' does not exist"),
        ("no such id", "Environment 'no such id' cannot be created"),
        ("no_such_module:Env-v0", "cannot be created: .*no_such_module"),
        ("Pendulum-v1", "cannot be created: The action space must be Discrete"),
        ("Blackjack-v1", "observation space must be"),
    ],
)
def test_an_environment_without_an_agent_leaves_no_folder(tmp_path, env, message):
    with pytest.raises(RunError, match=message):
        train(tmp_path / "run", env=env)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("error", "reason"), [(KeyError("rows"), r"KeyError\('rows'\)"), (ValueError(), "ValueError")]
)
def test_an_error_whose_text_says_little_is_named(tmp_path, error, reason):
    def broken():
        raise error

    gym.register("Broken-v0", broken)
    try:
        with pytest.raises(RunError, match=f"cannot be created: {reason}"):
            train(tmp_path / "run", env="Broken-v0")
    finally:
        del gym.registry["Broken-v0"]


def test_an_environment_that_cannot_be_pickled_is_refused_before_it_is_trained_in(tmp_path):
    gym.register("Unpicklable-v0", Unpicklable)
    try:
        with pytest.raises(RunError, match="cannot be pickled, so no checkpoint can be saved"):
            train(tmp_path / "run", env="Unpicklable-v0")
    finally:
        del gym.registry["Unpicklable-v0"]
    assert not (tmp_path / "run").exists()


class Counted(RandomEnv):
    opened, n_made = 0, 0

    def __init__(self, actions=None, handle=None):
        super().__init__()
        self.action_space = actions or self.action_space
        self.handle = handle and (step for step in ())  # cannot be pickled
        Counted.opened += 1
        Counted.n_made += 1

    def close(self):
        Counted.opened -= 1


@pytest.mark.parametrize(
    ("options", "method", "message"),
    [
        ({}, "uadqn", None),
        ({"actions": spaces.Box(0, 1)}, "uadqn", "must be Discrete"),
        ({"handle": True}, "uadqn", "cannot be pickled"),
    ],
)
def test_environments_are_closed(tmp_path, monkeypatch, options, method, message):
    monkeypatch.setattr(Counted, "opened", 0)
    monkeypatch.setattr(Counted, "n_made", 0)
    gym.register("Counted-v0", Counted, kwargs=options)
    try:
        with nullcontext() if message is None else pytest.raises(RunError, match=message):
            train(tmp_path / "run", 20, env="Counted-v0", method=method)
    finally:
        del gym.registry["Counted-v0"]
    assert (Counted.n_made, Counted.opened) == (1, 0)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_environments_that_only_this_process_knows_are_found_by_others(tmp_path, n_jobs):
    gym.register("OnlyHere-v0", RandomEnv)
    config = make_run_config("OnlyHere-v0", 30)
    try:
        runs = list(train_seeds(tmp_path, config, 2, n_jobs=n_jobs, device="cpu"))
    finally:
        del gym.registry["OnlyHere-v0"]
    assert sorted(run.seed for run in runs) == [0, 1]


def test_environments_are_those_that_are_registered_last(tmp_path):
    scores = []
    for length in (3, 5):
        gym.register("OnlyHere-v0", RandomEnv, kwargs={"length": length})
        config = make_run_config("OnlyHere-v0", 30)
        try:
            runs = list(train_seeds(tmp_path / str(length), config, 2, n_jobs=2, device="cpu"))
        finally:
            del gym.registry["OnlyHere-v0"]
        scores.append({length for run in runs for length in run.history.length})
    assert scores == [{3}, {5}]


@pytest.mark.parametrize("every", [0, -5])
def test_checkpoints_are_a_step_apart_at_least(tmp_path, every):
    with pytest.raises(RunError, match="checkpoint_every must be at least 1"):
        train_run(tmp_path / "run", make_run_config("CliffWind-v0", 9), checkpoint_every=every)
    assert not (tmp_path / "run").exists()


def test_an_unknown_device_leaves_no_folder(tmp_path):
    with pytest.raises(RunError, match="toaster"):
        train_run(tmp_path / "run", make_run_config("CliffWind-v0", 100), device="toaster")
    assert not (tmp_path / "run").exists()


def test_a_damaged_checkpoint_is_refused_and_kept(tmp_path):
    interrupt(tmp_path)
    (buffer,) = tmp_path.glob("checkpoints/step-*/buffer.pkl")
    buffer.write_bytes(b"")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"buffer\.pkl is missing, or was changed"):
        train(tmp_path)
    assert contents(tmp_path) == before


def test_a_finished_run_without_checkpoint_is_not_begun_anew_to_extend_it(tmp_path):
    train(tmp_path, steps=100)
    (checkpoint,) = tmp_path.glob("checkpoints/step-*")
    checkpoint.rename(tmp_path / "elsewhere")
    before = contents(tmp_path)
    with pytest.raises(RunError, match="has no checkpoint any more, so it cannot be extended"):
        train(tmp_path, steps=200)
    assert contents(tmp_path) == before


def test_an_agent_is_loaded_only_from_a_run_that_has_one(tmp_path):
    with pytest.raises(RunError, match="does not contain a run"):
        load_agent(tmp_path / "absent", trust=True)
    interrupt(tmp_path / "begun", stop=10)
    with pytest.raises(RunError, match="has neither an agent nor a checkpoint yet"):
        load_agent(tmp_path / "begun", trust=True)
    train(tmp_path / "done", steps=60)
    (tmp_path / "done" / "agent.zip").write_bytes(b"junk")
    with pytest.raises(RunError, match=r"agent\.zip cannot be loaded"):
        load_agent(tmp_path / "done", trust=True)


def test_more_callbacks_are_told_of_every_step_that_is_taken(tmp_path):
    class Count(BaseCallback):
        steps = 0

        def _on_step(self):
            self.steps += 1
            return True

    interrupt(tmp_path, steps=90, stop=70)
    count = Count()
    config = make_run_config("CliffWind-v0", 90)
    train_run(tmp_path, config, device="cpu", callbacks=(count,), trust=True)
    assert count.steps == 30


class StopAt(BaseCallback):
    """A callback that stops training, as those of stable-baselines3 do."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def _on_step(self):
        return self.num_timesteps < self.step


@pytest.mark.parametrize(
    ("method", "stop"),
    [("uadqn", 100), ("uadqn", 120), ("dqn", 120)],  # in the middle, and in the very last step
)
def test_a_run_that_a_callback_stops_is_not_finished_and_goes_on(tmp_path, whole, method, stop):
    config = make_run_config("CliffWind-v0", 120, method=method)
    options = {"checkpoint_every": EVERY, "device": "cpu", "trust": True}
    stopped = train_run(tmp_path, config, callbacks=(StopAt(stop),), **options)
    assert (stopped.begun_at, stopped.steps) == (0, stop)
    assert stop - 15 <= stopped.history.step.max() <= stop
    assert not load_agent(tmp_path, "cpu", trust=True).finished
    assert last_saved_step(tmp_path) == 60
    assert train_run(tmp_path, config, **options)[:2] == (60, 120)
    assert_same_run(whole(120, method), tmp_path)


def test_folders_may_be_strings(tmp_path):
    folder, config = str(tmp_path / "run"), make_run_config("CliffWind-v0", 60)
    assert train_run(folder, config, device="cpu").steps == 60
    assert load_agent(folder, "cpu", trust=True).finished
    seeds = train_seeds(str(tmp_path / "seeds"), config, 1, device="cpu")
    assert [run.folder for run in seeds] == [tmp_path / "seeds" / "seed-0"]


def test_a_refused_folder_that_windows_keeps_open_hides_no_error(tmp_path, monkeypatch):
    run, unlink, refused = tmp_path / "run", Path.unlink, []

    def unlink_closed(path, missing_ok=False):
        if path.name == ".lock" and not refused:
            refused.append(path)
            raise PermissionError("another process uses it")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_closed)
    with pytest.raises(RunError, match="cannot be created"):
        train(run, env="Absent-v0")
    assert refused == [run / ".lock"]
    assert not run.exists()  # once the lock was released


# --- numbers in the configuration --------------------------------------------------------------


def test_integers_of_numpy_are_stored_as_integers(tmp_path):
    given = make_run_config("CliffWind-v0", np.int64(60), seed=np.int32(3))
    assert train_run(tmp_path, given, device="cpu").steps == 60
    assert load_agent(tmp_path, "cpu", trust=True).config["seed"] == 3
    assert train(tmp_path, steps=60, seed=3).history is None


def test_factors_of_numpy_are_those_of_python():
    config = make_run_config("CliffWind-v0", 60, epistemic_factor=np.float32(0.5))
    assert config.as_json()["settings"]["epistemic_factor"] == 0.5


@pytest.mark.parametrize("steps", [0, -1])
@pytest.mark.parametrize("method", ["uadqn", "dqn"])
def test_a_run_has_at_least_one_step(steps, method):
    with pytest.raises(RunError, match=f"steps must be at least 1, got {steps}"):
        make_run_config("MinAtar/Breakout-v1", steps, method=method)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_is_one_that_generators_take(seed):
    assert make_run_config("CliffWind-v0", 10, seed=2**32 - 1).seed == 2**32 - 1
    with pytest.raises(RunError, match=f"between 0 and 4294967295; got 1 seeds starting at {seed}"):
        make_run_config("CliffWind-v0", 10, seed=seed)


@pytest.mark.parametrize("wrong", [{"steps": 1e5}, {"steps": 10, "seed": "0"}])
def test_steps_and_seed_are_integers(wrong):
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        make_run_config("CliffWind-v0", **wrong)


def test_a_misspelt_factor_is_no_setting():
    with pytest.raises(TypeError, match="unexpected keyword argument 'epistemic'"):
        make_run_config("CliffWind-v0", 10, epistemic=3.0)


def test_the_history_of_a_finished_seed_without_episode_has_its_types(tmp_path):
    config = make_run_config("CliffWind-v0", 1)
    for _ in range(2):  # trained, and read
        (run,) = train_seeds(tmp_path, config, 1, device="cpu")
        assert len(run.history) == 0
        assert run.history.dtypes.map(str).tolist() == TYPES
