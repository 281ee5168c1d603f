"""Callbacks of training: rows of the history, and checkpoints from which it goes on bit for bit."""

import json
import random
import shutil

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from skuq.uadqn import BootstrappedDQN, DQNAlgorithm, QuantileDQN, UADQNAlgorithm
from skuq.uadqn import _checkpoint as checkpoint
from skuq.uadqn._checkpoint import (
    CheckpointError,
    Episode,
    ExactCheckpointCallback,
    TrainingHistory,
    TrainingProgress,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from skuq.uadqn._envs import make_env
from tests.uadqn.environments import GRID, SMALL, RandomEnv

TYPES = ["int64", "float64", "int64", "int64", "float64", "float64", "float64"]


class Counting(gym.Env):
    """Episode k lasts k + 1 steps; step i brings ``scale * i``; the last one is a fall."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, scale=1.0, says=True):
        self.scale, self.says, self.length, self.i = scale, says, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.i = self.length + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.i += 1
        ends = self.i == self.length
        info = {"fell": ends} if self.says else {}
        return np.zeros(1, np.float32), self.scale * self.i, ends, False, info


def uadqn(env, **options):
    return UADQNAlgorithm("MlpPolicy", env, policy_kwargs=SMALL, buffer_size=500, **options)


class Decisions(BaseCallback):
    """Keeps the decision behind each step."""

    def __init__(self):
        super().__init__()
        self.all = []

    def _on_step(self):
        self.all.append(self.model.decision)
        return True


def test_episodes_are_summed_and_decisions_averaged():
    history, decisions = TrainingHistory(), Decisions()
    uadqn(Counting(), seed=0).learn(12, callback=CallbackList([history, decisions]))
    rows = history.to_frame()
    assert rows.columns.tolist() == list(Episode._fields)
    # lengths 1, 2, 3, 4 fit into 12 steps
    assert rows.length.tolist() == [1, 2, 3, 4]
    assert rows.step.tolist() == [1, 3, 6, 10]
    assert rows.score.tolist() == [1, 3, 6, 10]
    assert rows.falls.tolist() == [1, 1, 1, 1]
    for row, end in zip(rows.itertuples(), rows.step, strict=True):
        mean = np.mean(decisions.all[end - row.length : end], axis=0)
        assert [row.epistemic, row.aleatoric, row.exploratory] == pytest.approx(mean)


def test_several_environments_are_kept_apart():
    history = TrainingHistory()
    env = DummyVecEnv([Counting, lambda: Counting(scale=10.0)])
    uadqn(env, seed=0).learn(12, callback=history)
    rows = history.to_frame()
    assert rows.step.tolist() == [2, 2, 6, 6, 12, 12]
    assert rows.score.tolist() == [1, 10, 3, 30, 6, 60]
    assert rows.length.tolist() == [1, 1, 2, 2, 3, 3]


def test_environments_that_do_not_say_count_no_falls():
    history = TrainingHistory()
    uadqn(Counting(says=False), seed=0).learn(6, callback=history)
    assert history.to_frame().falls.tolist() == [0, 0, 0]


def test_agents_without_decisions_have_no_uncertainties():
    history = TrainingHistory()
    DQNAlgorithm("MlpPolicy", Counting(), seed=0, buffer_size=100).learn(6, callback=history)
    rows = history.to_frame()
    assert rows.score.tolist() == [1, 3, 6]
    assert rows[["epistemic", "aleatoric", "exploratory"]].isna().to_numpy().all()


def test_learning_on_goes_on_with_the_unfinished_episode():
    history, agent = TrainingHistory(), uadqn(Counting(), seed=0)
    agent.learn(5, callback=history)
    agent.learn(5, callback=history, reset_num_timesteps=False)
    assert history.to_frame().score.tolist() == [1, 3, 6, 10]


def test_learning_anew_drops_the_unfinished_episode():
    history, agent = TrainingHistory(), uadqn(Counting(), seed=0)
    agent.learn(5, callback=history)  # two steps into the third episode
    agent.learn(4, callback=history)  # the environment is reset: the fourth episode
    assert history.to_frame().length.tolist() == [1, 2, 4]
    assert history.to_frame().score.tolist() == [1, 3, 10]


def test_history_can_go_on_from_what_was_kept():
    history, agent = TrainingHistory(), uadqn(Counting(), seed=0)
    agent.learn(5, callback=history)
    resumed = TrainingHistory(history.episodes)
    resumed.running = history.running
    agent.learn(5, callback=resumed, reset_num_timesteps=False)
    assert resumed.to_frame().score.tolist() == [1, 3, 6, 10]
    assert len(history.episodes) == 2  # the first one is as it was


def test_scores_are_of_the_rewards_before_they_are_normalised():
    history = TrainingHistory()
    env = VecNormalize(DummyVecEnv([Counting, lambda: Counting(scale=10.0)]))
    uadqn(env, seed=0).learn(12, callback=history)
    assert history.to_frame().score.tolist() == [1, 10, 3, 30, 6, 60]


def test_environments_that_are_reset_drop_the_unfinished_episode():
    history, agent = TrainingHistory(), uadqn(Counting(), seed=0)
    agent.learn(5, callback=history)  # two steps into the third episode
    agent.set_env(Counting())
    agent.learn(3, callback=history, reset_num_timesteps=False)
    assert history.to_frame().length.tolist() == [1, 2, 1, 2]
    assert history.to_frame().score.tolist() == [1, 3, 1, 3]


def test_columns_have_their_types_with_and_without_episodes():
    history = TrainingHistory()
    assert history.to_frame().dtypes.map(str).tolist() == TYPES
    uadqn(Counting(), seed=0).learn(6, callback=history)
    assert history.to_frame().dtypes.map(str).tolist() == TYPES


def test_progress_counts_steps_of_all_environments_and_shows_the_recent_score(capsys):
    env = DummyVecEnv([lambda: Monitor(Counting())] * 2)
    progress, agent = TrainingProgress(14), uadqn(env, seed=0)
    agent.learn(14, callback=progress)
    assert (progress.bar.n, progress.bar.total) == (14, 14)
    shown = capsys.readouterr().err
    assert "14/14" in shown
    assert "score=3.33" in shown  # mean of 1, 3 and 6, which ended before the last step


def test_progress_goes_on_where_training_goes_on(capsys):
    agent = uadqn(Counting(), seed=0).learn(5)
    progress = TrainingProgress(9)
    agent.learn(4, callback=progress, reset_num_timesteps=False)
    assert (progress.bar.initial, progress.bar.n) == (5, 9)
    assert "9/9" in capsys.readouterr().err


FAST = {"learning_starts": 40, "batch_size": 8, "buffer_size": 100, "target_update_interval": 30}
STEPS, INTERVAL, STOP = 240, 60, 150  # the buffer is full, and overwritten, before the stop


class Stop(BaseCallback):
    """An interrupt in the middle of a step."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def _on_step(self):
        if self.num_timesteps >= self.step:
            raise KeyboardInterrupt
        return True


def make(cls, env, policy="MlpPolicy"):
    kwargs = SMALL if issubclass(cls, QuantileDQN) else {"net_arch": [8]}
    return cls(policy, env, seed=1, device="cpu", policy_kwargs=dict(kwargs), **FAST)


def learn(agent, steps, *callbacks, **options):
    agent.learn(steps - agent.num_timesteps, callback=list(callbacks), **options)


def interrupted(folder, agent, name="some"):
    """Checkpoints of an agent that was interrupted in the middle of a step."""
    history = TrainingHistory()
    with pytest.raises(KeyboardInterrupt):
        learn(
            agent,
            STEPS,
            history,
            ExactCheckpointCallback(folder, INTERVAL, history, name),
            Stop(STOP),
        )
    return latest_checkpoint(folder)


def tensors(state):
    """All tensors in nested containers, in a fixed order."""
    if isinstance(state, torch.Tensor):
        return [state]
    children = state.values() if isinstance(state, dict) else state
    return [t for c in children if isinstance(c, dict | list | torch.Tensor) for t in tensors(c)]


def state_of(agent, history):
    """Everything that further training depends on, as comparable values."""
    buffer = agent.replay_buffer
    return {
        "policy": [t.numpy().copy() for t in tensors(agent.policy.state_dict())],
        "optimizer": [t.numpy().copy() for t in tensors(agent.policy.optimizer.state_dict())],
        "buffer": [buffer.observations, buffer.actions, buffer.rewards, buffer.dones],
        "counts": [agent.num_timesteps, agent._n_updates, agent._n_calls, buffer.pos, buffer.full],
        "exploration": [agent.exploration_rate, *getattr(agent, "heads", [])],
        "episodes": history.to_frame().to_numpy(),
        "random": [random.random(), np.random.random(), torch.rand(1).numpy()],  # noqa: NPY002
        "action": [agent.action_space.sample()],
    }


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert len(one[name]) == len(other[name]) > 0, name
        for a, b in zip(one[name], other[name], strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


def cliff():
    return make_env("CliffWind-v0")


def breakout():
    return make_env("MinAtar/Breakout-v1")


def grids():
    return RandomEnv(GRID)


def two():
    return DummyVecEnv([lambda: RandomEnv(length=3), lambda: RandomEnv(length=7, truncates=True)])


def normalized():
    return VecNormalize(VecFrameStack(two(), 2))


CASES = [
    pytest.param(UADQNAlgorithm, normalized, "MlpPolicy", id="uadqn-normalized"),
    pytest.param(UADQNAlgorithm, cliff, "MlpPolicy", id="uadqn-cliff"),
    pytest.param(UADQNAlgorithm, grids, "GridPolicy", id="uadqn-grids", marks=pytest.mark.slow),
    pytest.param(UADQNAlgorithm, two, "MlpPolicy", id="uadqn-two-envs", marks=pytest.mark.slow),
    pytest.param(QuantileDQN, cliff, "MlpPolicy", id="qrdqn", marks=pytest.mark.slow),
    pytest.param(DQNAlgorithm, cliff, "MlpPolicy", id="dqn", marks=pytest.mark.slow),
    pytest.param(DQNAlgorithm, breakout, "GridPolicy", id="dqn-minatar", marks=pytest.mark.slow),
    pytest.param(BootstrappedDQN, two, "MlpPolicy", id="bootstrapped-two-envs"),
]


@pytest.mark.parametrize(("cls", "env", "policy"), CASES)
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path, cls, env, policy):
    history = TrainingHistory()
    whole = make(cls, env(), policy)
    learn(whole, STEPS, history)
    expected = state_of(whole, history)

    saved = interrupted(tmp_path, make(cls, env(), policy))
    random.seed(5)  # whatever came between
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    agent, history = load_checkpoint(saved, "some", "cpu", trust=True)
    assert type(agent) is cls
    assert INTERVAL <= agent.num_timesteps <= STOP
    learn(agent, STEPS, history, reset_num_timesteps=False)
    assert_equal(state_of(agent, history), expected)


def test_saving_disturbs_nothing(tmp_path):
    states = []
    for saves in (False, True):
        history, agent = TrainingHistory(), make(UADQNAlgorithm, cliff())
        saver = ExactCheckpointCallback(tmp_path, 7, history, "some")
        learn(agent, 120, *([history, saver] if saves else [history]))
        states.append(state_of(agent, history))
    assert_equal(*states)


def test_checkpoints_come_at_their_interval_and_older_ones_go(tmp_path):
    saved = interrupted(tmp_path, make(UADQNAlgorithm, cliff()))
    assert saved.name == f"step-{2 * INTERVAL:012d}"
    assert [path.name for path in tmp_path.iterdir()] == [saved.name]


def test_there_is_no_checkpoint_in_an_empty_or_absent_folder(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "absent") is None


# --- what is refused ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return interrupted(tmp_path_factory.mktemp("original"), make(UADQNAlgorithm, cliff()))


@pytest.fixture
def saved(original, tmp_path):
    return shutil.copytree(original, tmp_path / original.name)


def change_manifest(saved, **entries):
    path = saved / "manifest.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | entries), encoding="utf-8"
    )


def load(saved, name="some"):
    return load_checkpoint(saved, name, "cpu", trust=True)


@pytest.mark.parametrize("name", ["algorithm.zip", "buffer.pkl", "state.pkl"])
def test_a_file_that_was_changed_cut_or_lost_is_named_and_not_unpickled(saved, name, monkeypatch):
    monkeypatch.setattr(checkpoint.cloudpickle, "loads", lambda _: pytest.fail("unpickled"))
    path = saved / name
    content = path.read_bytes()
    for damaged in (content[:-1], content[:50] + bytes([content[50] ^ 1]) + content[51:], b""):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"{name} is missing, or was changed"):
            load(saved)
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"{name} is missing, or was changed"):
        load(saved)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"algorithm": "UADQNAlgorithm"}'])
def test_a_folder_without_a_sound_manifest_is_no_checkpoint(saved, content):
    (saved / "manifest.json").unlink()
    if content is not None:
        (saved / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        load(saved)


def test_a_digest_that_is_not_listed_is_a_damaged_file(saved):
    change_manifest(saved, sha256={})
    with pytest.raises(CheckpointError, match="was changed after saving"):
        load(saved)


def test_another_environment_is_refused(saved):
    with pytest.raises(CheckpointError, match="environment 'some', but 'other' was expected"):
        load(saved, "other")


def test_other_versions_are_refused_naming_the_ones_to_install(saved):
    versions = json.loads((saved / "manifest.json").read_text(encoding="utf-8"))["versions"]
    change_manifest(saved, versions=versions | {"torch": "1.0", "numpy": "1.2"})
    with pytest.raises(CheckpointError, match=r"install torch==1\.0 numpy==1\.2\.$"):
        load(saved)


@pytest.mark.parametrize("name", ["Unknown", "make_env", "__name__"])
def test_an_unknown_algorithm_is_refused(saved, name):
    change_manifest(saved, algorithm=name)
    with pytest.raises(CheckpointError, match=f"unknown algorithm '{name}'"):
        load(saved)


class Unpicklable(RandomEnv):
    def __init__(self):
        super().__init__()
        self.handle = (step for step in ())


def test_an_environment_that_cannot_be_pickled_is_refused_and_leaves_nothing(tmp_path):
    agent, history = make(UADQNAlgorithm, Unpicklable()), TrainingHistory()
    learn(agent, 10, history)
    with pytest.raises(CheckpointError, match="The environment cannot be pickled"):
        save_checkpoint(tmp_path, agent, history, "some")
    assert list(tmp_path.iterdir()) == []


def test_an_algorithm_that_could_not_be_loaded_is_refused_and_older_ones_stay(saved):
    class Mine(UADQNAlgorithm):
        pass

    agent, history = make(Mine, cliff()), TrainingHistory()
    learn(agent, 10, history)
    with pytest.raises(CheckpointError, match="do not support Mine"):
        save_checkpoint(saved.parent, agent, history, "some")
    assert list(saved.parent.iterdir()) == [saved]


def test_a_checkpoint_takes_the_place_of_another_agents_of_the_same_step(tmp_path):
    agents = [make(UADQNAlgorithm, cliff()) for _ in range(2)]
    for seed, agent in enumerate(agents):
        history = TrainingHistory()
        agent.set_random_seed(seed)
        learn(agent, 30, history)
        saved = save_checkpoint(str(tmp_path), agent, history, "some")
        assert latest_checkpoint(str(tmp_path)) == saved
        assert list(tmp_path.iterdir()) == [saved]
    kept = (a.replay_buffer.actions[:30].tolist() for a in (*agents, load(str(saved))[0]))
    one, other, loaded = kept
    assert loaded == other != one


@pytest.mark.parametrize("broken", ["save", "save_replay_buffer"])
def test_a_save_that_is_interrupted_leaves_the_last_checkpoint_usable(saved, monkeypatch, broken):
    agent, history = load(saved)
    learn(agent, STEPS, history, reset_num_timesteps=False)

    def interrupt(path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(agent, broken, interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(saved.parent, agent, history, "some")
    assert latest_checkpoint(saved.parent) == saved
    assert load(saved)[0].num_timesteps == 2 * INTERVAL
    monkeypatch.undo()
    # What is left of it is in nobody's way.
    new = save_checkpoint(saved.parent, agent, history, "some")
    assert list(saved.parent.iterdir()) == [new]
    assert load(new)[0].num_timesteps == STEPS


def test_a_buffer_for_hindsight_goes_on_in_the_middle_of_an_episode(tmp_path):
    env = BitFlippingEnv(n_bits=4, continuous=False, max_steps=6)
    options = {"replay_buffer_class": HerReplayBuffer, "seed": 1, "policy_kwargs": SMALL | {}}
    agent, history = UADQNAlgorithm("MultiInputPolicy", env, **options, **FAST), TrainingHistory()
    learn(agent, 45, history)
    loaded, rest = load_checkpoint(
        save_checkpoint(tmp_path, agent, history, "bits"), "bits", "cpu", trust=True
    )
    states = checkpoint.random_states()
    quantiles = []
    for one, episodes in ((loaded, rest), (agent, history)):
        checkpoint.set_random_states(states)
        learn(one, 90, episodes, reset_num_timesteps=False)
        zeros = {k: np.zeros((1, *s.shape)) for k, s in one.observation_space.spaces.items()}
        quantiles.append(one.predict_quantiles(zeros))
    np.testing.assert_array_equal(*quantiles)
    assert rest.episodes == history.episodes


def test_an_episode_is_not_continued_in_another_environment(tmp_path):
    agent, history = make(UADQNAlgorithm, cliff()), TrainingHistory()
    for steps in range(10, 40):  # until an episode is unfinished
        learn(agent, steps, history, reset_num_timesteps=False)
        if history.running[0, 1] > 0:
            break
    loaded, rest = load_checkpoint(
        save_checkpoint(tmp_path, agent, history, "some"), "some", "cpu", trust=True
    )
    before = len(rest.episodes)
    loaded.set_env(DummyVecEnv([cliff]))
    loaded.learn(60, callback=rest, reset_num_timesteps=False)
    new = rest.to_frame()[before:]
    assert 0 < new.length.min() <= new.length.max() <= 15  # where an episode is cut
    assert (new.score + new.length).isin([0, 10]).all()  # each step costs 1, the goal brings 10
