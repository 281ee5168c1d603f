"""What the commands of agents build on: runs of several seeds, estimates of actions, and films."""

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym

from skuq.uadqn import (
    BootstrappedDQN,
    DQNAlgorithm,
    Film,
    UADQNAlgorithm,
    estimate_action,
    make_run_config,
    train_seeds,
)
from skuq.uadqn._film import LINE, ActionEstimate, picture_of_grid
from tests.uadqn.environments import RandomEnv

QUICK = {
    "learning_rate": 1e-3,
    "learning_starts": 40,
    "batch_size": 8,
    "buffer_size": 200,
    "epistemic_factor": 1.0,
    "aleatoric_factor": 0.5,
}


@pytest.mark.slow
def test_seeds_in_processes_equal_those_trained_in_turn(tmp_path):
    config = make_run_config("CliffWind-v0", 90, 5, "uadqn")._replace(settings=QUICK)
    for n_jobs in (1, 2):
        list(train_seeds(tmp_path / str(n_jobs), config, 2, n_jobs=n_jobs, device="cpu"))
    found = [tmp_path / f"{n}/seed-{seed}/history.csv" for seed in (5, 6) for n in (1, 2)]
    texts = [path.read_text(encoding="utf-8") for path in found]
    assert texts[0] == texts[1] != texts[2] == texts[3]


def test_the_estimate_is_of_the_chosen_action():
    kwargs = {"net_arch": [8]}
    observation = np.array([0.1, -0.2, 0.3, 0.4], np.float32)
    heads = BootstrappedDQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu", policy_kwargs=kwargs)
    values = heads.q_net(heads.policy.obs_to_tensor(observation)[0]).detach().numpy()
    for action in (0, 1):
        found = estimate_action(heads, observation, action)
        np.testing.assert_allclose(found.value, values[:, 0, action].mean(), rtol=1e-5)
        np.testing.assert_allclose(found.epistemic, values[:, 0, action].std(ddof=1), rtol=1e-5)
        assert np.isnan(found.aleatoric)
    plain = DQNAlgorithm("MlpPolicy", "CartPole-v1", seed=0, device="cpu", policy_kwargs=kwargs)
    values = plain.q_net(plain.policy.obs_to_tensor(observation)[0]).detach().numpy()
    found = estimate_action(plain, observation, 1)
    np.testing.assert_allclose(found.value, values[0, 1], rtol=1e-5)
    assert np.isnan(found.epistemic)
    assert np.isnan(found.aleatoric)


def test_the_aleatoric_part_is_the_one_that_the_agent_uses():
    agent = UADQNAlgorithm("MlpPolicy", "CartPole-v1", aleatoric="variance", device="cpu")
    observation = np.zeros(4, np.float32)
    quantiles = agent.predict_quantiles(observation[None])[0, 0, 1]
    np.testing.assert_allclose(
        estimate_action(agent, observation, 1).aleatoric, quantiles.std(), rtol=1e-5
    )


def test_earlier_channels_of_a_grid_lie_on_top():
    grid = np.zeros((1, 4, 3), bool)
    grid[0, 0, 0] = grid[0, 1, 2] = True
    grid[0, 2, [0, 2]] = True
    picture = picture_of_grid(grid)[0]
    assert (picture[2] == picture[0]).all()
    assert len(np.unique(picture[[0, 1, 3]], axis=0)) == 3


@pytest.mark.parametrize(
    ("shape", "size"), [((400, 800), (320, 160)), ((50, 20), (320, 300)), ((320, 320), (320, 320))]
)
def test_frames_are_brought_to_a_size_that_can_be_seen(shape, size):
    pytest.importorskip("PIL")

    class Painting(RandomEnv):
        metadata = {"render_modes": ["rgb_array"], "render_fps": None}

        def __init__(self, render_mode=None):
            super().__init__()
            self.render_mode = render_mode

        def render(self):
            return np.full((*shape, 3), 0.5)

    name = f"Painting{shape[0]}-v0"
    if name not in gym.registry:
        gym.register(name, Painting)
    film = Film(name)
    film.begin_episode().reset()
    film.take(None, ActionEstimate(1.0), 0.0)
    film.take(None, None, 1.0)
    film._shots[0] = film._shots[0]._replace(estimate=ActionEstimate(1.0, 0.5, 2.0))
    (first, last) = film._frames(2.0, np.array([True, True]))
    assert first.size == last.size == (size[0], size[1] + 3 * LINE + 8)
    assert first.getpixel((160, 1)) == (127, 127, 127)
