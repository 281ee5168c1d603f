"""Small environments for tests, and agents with little to compute."""

from copy import deepcopy

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

VECTOR = spaces.Box(-1, 1, (4,), np.float32)
GRID = spaces.Box(0, 1, (6, 5, 2), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
MIXED = spaces.Dict({"vector": VECTOR, "image": IMAGE})
SMALL = {"n_quantiles": 5, "net_arch": [8]}


class RandomEnv(gym.Env):
    """Observations and rewards are random; an episode ends after `length` steps."""

    def __init__(self, observation_space=VECTOR, length=5, truncates=False, n_actions=3):
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(n_actions)
        self.length, self.truncates, self.steps = length, truncates, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        ends = self.steps == self.length
        reward = float(self.np_random.normal() + action)
        observation = self.observation_space.sample()
        return observation, reward, ends and not self.truncates, ends and self.truncates, {}


class Faulty(RandomEnv):
    """Gives a wrong number at the third step: as reward, in an observation, or in the last one."""

    def __init__(self, where, wrong, observation_space=VECTOR):
        super().__init__(observation_space, length=3 if where == "last observation" else 5)
        self.where, self.wrong = where, wrong

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return self._spoilt(observation, self.where == "first observation"), info

    def step(self, action):
        observation, reward, *rest = super().step(action)
        now = self.steps == 3
        if now and self.where == "reward":
            reward = self.wrong
        observation = self._spoilt(observation, now and "observation" in self.where)
        return observation, reward, *rest

    def _spoilt(self, observation, now):
        if now and isinstance(observation, dict):
            observation["vector"][1] = self.wrong
        elif now:
            observation[1] = self.wrong
        return observation


class SeedTeller(gym.Env):
    made = []

    def __init__(self, as_dict=False):
        number = spaces.Box(0, np.inf, (1,), np.float64)
        both = spaces.Dict({"seed": number, "step": number})
        self.observation_space = both if as_dict else spaces.Box(0, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(100)
        self.as_dict, self.seeds, self.options, self.closed = as_dict, [], [], 0
        SeedTeller.made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.options.append(options)
        self.length, self.step_ = seed % 5 + 1, 0
        return self._observation(), {}

    def step(self, action):
        self.step_ += 1
        reward = 100.0 if action == self.seeds[-1] % 100 else -float(self.step_)
        ends = self.step_ == self.length
        truncates = self.seeds[-1] % 2 == 0
        return self._observation(), reward, ends and not truncates, ends and truncates, {}

    def close(self):
        self.closed += 1

    def _observation(self):
        if self.as_dict:
            return {"seed": np.array([self.seeds[-1]]), "step": np.array([self.step_])}
        return np.array([self.seeds[-1], self.step_], np.float64)


def sampled(space, n_samples=5, seed=0):
    space = deepcopy(space)
    space.seed(seed)
    samples = [space.sample() for _ in range(n_samples)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([sample[key] for sample in samples]) for key in space.spaces}
    return np.stack(samples)


def collect(agent, n_steps):
    agent.learning_starts = n_steps
    return agent.learn(n_steps)


@torch.no_grad()
def perturb(parameters, scale=0.1):
    """Move parameters, so that target networks and anchors differ from what is trained."""
    for parameter in parameters:
        parameter.add_(scale * torch.randn_like(parameter))
