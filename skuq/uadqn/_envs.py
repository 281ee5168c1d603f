"""The windy cliff of the paper, and functions to make environments, play episodes, check inputs."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from skuq.base import IntArray
from skuq.files import untrusted
from skuq.imports import import_optional

Env = gym.Env[Any, Any]
Space = spaces.Space[Any]
EnvLike = str | Env | Callable[[], Env]


class Trusted:
    """Mixin for objects that stable-baselines3 saves with pickle; loading them can run code."""

    @classmethod
    def load(cls, path: Any, *args: Any, trust: bool = False, **settings: Any) -> Any:
        """Load a file that `save` wrote; raise unless you `trust` its origin."""
        if not trust:
            raise ValueError(untrusted(path))
        return super().load(path, *args, **settings)  # type: ignore[misc]


MAX_ENVS = 256  # maximum number of environments that are stepped together
# Maximum number of steps of an episode that its environment does not limit: half an hour of Atari.
MAX_STEPS = 27_000
# Observations and rewards with a larger absolute value raise an error. The variance of a return
# grows with the square of the rewards, and must stay below the maximum of float32, which is 3e38.
LARGEST = 1e18
UP, RIGHT, DOWN, LEFT = range(4)
_MOVES = {UP: (-1, 0), RIGHT: (0, 1), DOWN: (1, 0), LEFT: (0, -1)}
# The colours differ in lightness, too, so that viewers with colour blindness can distinguish them.
_COLOURS = {
    "ground": (238, 238, 232),
    "ledge": (244, 203, 148),
    "goal": (120, 190, 120),
    "cliff": (70, 70, 80),
    "agent": (30, 90, 180),
}


class CliffWindEnv(gym.Env[np.ndarray, Any]):
    """Grid world of 2 x 5 cells above a cliff, with a short risky path and a longer safe path.

    The agent starts at the left end of the lower row, and the goal is at the right end of the same
    row. The cells between start and goal are a ledge: at each step that ends on the ledge, the
    agent falls off the cliff with probability .05. Stepping down always leads to a fall. A step
    costs 1, the goal is worth 10, and a fall ends the episode. The mean return is 4.86 along the
    ledge; along the upper row the return is always 4 (Clements et al., 2019, Sec. 3.1).

    Observations are float32 arrays of shape (10,), with the cells in row-major order: 1 at the cell
    of the agent, 0 elsewhere. Actions are 0 up, 1 right, 2 down, 3 left. ``info["fell"]`` is True
    after a fall. In an environment that `gymnasium.make` builds by its id, a `TimeLimit` truncates
    episodes after 15 steps.

    `wind` is the probability of a fall at each step that ends on the ledge.
    """

    HEIGHT, WIDTH, CELL = 2, 5, 32
    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, wind: float = 0.05, render_mode: str | None = None):
        if not 0 <= wind <= 1:
            raise ValueError(f"wind must be a probability between 0 and 1, got {wind}.")
        self.wind, self.render_mode = wind, render_mode
        self.action_space = spaces.Discrete(len(_MOVES))
        self.observation_space = spaces.Box(0.0, 1.0, (self.HEIGHT * self.WIDTH,), np.float32)
        self.cell = (self.HEIGHT - 1, 0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Move the agent to the start, and return its observation."""
        super().reset(seed=seed, options=options)
        self.cell = (self.HEIGHT - 1, 0)
        return self._observation(), {"fell": False}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the agent, which the wind may then blow off the ledge."""
        if not self.action_space.contains(action):
            raise ValueError(
                f"action must be 0 (up), 1 (right), 2 (down) or 3 (left), got {action!r}."
            )
        down, right = _MOVES[int(action)]
        row, column = self.cell[0] + down, self.cell[1] + right
        jumped = self._on_ledge() and row == self.HEIGHT
        self.cell = (min(max(row, 0), self.HEIGHT - 1), min(max(column, 0), self.WIDTH - 1))
        blown = self.np_random.random() < self.wind and self._on_ledge()
        fell = bool(jumped or blown)
        arrived = self.cell == (self.HEIGHT - 1, self.WIDTH - 1)
        reward = 9.0 if arrived else -1.0
        return self._observation(), reward, arrived or fell, False, {"fell": fell}

    def _on_ledge(self) -> bool:
        return self.cell[0] == self.HEIGHT - 1 and 0 < self.cell[1] < self.WIDTH - 1

    def _observation(self) -> np.ndarray:
        observation = np.zeros(self.HEIGHT * self.WIDTH, np.float32)
        observation[self.cell[0] * self.WIDTH + self.cell[1]] = 1
        return observation

    def render(self) -> Any:
        """Render the grid with the agent, the goal and the cliff."""
        if self.render_mode is None:
            gym.logger.warn("render() needs a render_mode; pass it to gymnasium.make().")
            return None
        colours = np.full((self.HEIGHT + 1, self.WIDTH, 3), _COLOURS["ground"], np.uint8)
        colours[-2, 1:-1], colours[-2, -1] = _COLOURS["ledge"], _COLOURS["goal"]
        colours[-1] = _COLOURS["cliff"]
        picture = colours.repeat(self.CELL, 0).repeat(self.CELL, 1)
        picture[:: self.CELL] = picture[:, :: self.CELL] = 255
        inner = slice(self.CELL // 4, self.CELL - self.CELL // 4)
        cell = [slice(i * self.CELL + inner.start, i * self.CELL + inner.stop) for i in self.cell]
        picture[cell[0], cell[1]] = _COLOURS["agent"]
        return picture


def make_env(env: EnvLike, **options: Any) -> Env:
    """Make an environment from an id with options, or from a callable, or copy an instance."""
    if isinstance(env, str):
        ensure_registered(env)
        try:
            made = gym.make(env, **options)
        except (gym.error.Error, ModuleNotFoundError) as error:
            raise ValueError(f"Environment {env!r} cannot be made: {error}") from error
    else:
        made = deepcopy(env) if isinstance(env, gym.Env) else env()
    try:
        check_spaces(made.observation_space, made.action_space)
    except ValueError:
        made.close()
        raise
    return made


def check_spaces(observations: Space, actions: Space) -> None:
    """Raise if a space is unsupported; discrete spaces must start at 0, as network outputs do."""
    if not isinstance(actions, spaces.Discrete) or actions.start != 0:
        raise ValueError(
            f"The action space must be Discrete and start at 0, but the environment has {actions}."
        )
    parts = observations.values() if isinstance(observations, spaces.Dict) else [observations]
    read = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if not all(isinstance(part, read) and not np.any(getattr(part, "start", 0)) for part in parts):
        raise ValueError(
            "The observation space must be Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of "
            f"these, and discrete ones must start at 0, but the environment has {observations}. "
            "Wrap the environment, for instance in gymnasium's FlattenObservation."
        )


def ensure_registered(env: Any) -> None:
    """Register MinAtar's ids with gymnasium, because importing MinAtar does not do so."""
    minatar = isinstance(env, str) and env.startswith("MinAtar/")
    if minatar and "MinAtar/Breakout-v1" not in gym.registry:
        import_optional("minatar.gym", extra="rl").register_envs()


class SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that resets its environment with the next seed of a list at each episode."""

    # After a round through all seeds, new seeds are derived from the seed and the round's number.
    # Otherwise, random events would repeat, and the agent would learn that they are certain.

    def __init__(self, env: Env, seeds: Sequence[int]):
        super().__init__(env)
        self.seeds = [int(seed) for seed in seeds]
        self.n_episodes = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode; `seed` is ignored."""
        turn, position = divmod(self.n_episodes, len(self.seeds))
        self.n_episodes += 1
        seed = self.seeds[position]
        if turn:
            seed = int(np.random.SeedSequence([seed, turn]).generate_state(1)[0] >> 1)
        return self.env.reset(seed=seed, options=options)


class Played(NamedTuple):
    """Result of an episode."""

    score: float = 0.0  # undiscounted return
    steps: int = 0
    falls: int = 0  # number of steps with a true info["fell"]
    ended: bool = False  # False if the episode was truncated at `max_steps`


def play_episodes(
    make: Callable[[], Env],
    act: Callable[[Any], np.ndarray],
    seeds: Sequence[int],
    max_steps: int = MAX_STEPS,
) -> list[Played]:
    """Play one episode per seed; `act` maps a batch of observations to actions (n_samples,)."""
    played: list[Played] = []
    for i in range(0, len(seeds), MAX_ENVS):
        with ExitStack() as stack:
            envs = [stack.enter_context(closing(make())) for _ in seeds[i : i + MAX_ENVS]]
            played += _play_together(envs, act, seeds[i : i + MAX_ENVS], max_steps)
    return played


def _play_together(
    envs: Sequence[Env], act: Callable[[Any], np.ndarray], seeds: Sequence[int], max_steps: int
) -> list[Played]:
    observations = [env.reset(seed=int(seed))[0] for env, seed in zip(envs, seeds, strict=True)]
    played = [Played() for _ in envs]
    running = list(range(len(envs)))
    while running and played[running[0]].steps < max_steps:
        seen = [observations[i] for i in running]
        if isinstance(seen[0], dict):
            batch: Any = {key: np.stack([each[key] for each in seen]) for key in seen[0]}
        else:
            batch = np.stack(seen)
        actions = act(batch)
        for i, action in zip(tuple(running), actions.tolist(), strict=True):
            observations[i], reward, terminated, truncated, info = envs[i].step(action)
            refuse_unusable([float(reward)], partial("A reward with seed {}".format, seeds[i]))
            score, steps, falls, _ = played[i]
            ended = bool(terminated or truncated)
            fell = int(info.get("fell", False))
            played[i] = Played(score + float(reward), steps + 1, falls + fell, ended)
            if ended:
                running.remove(i)
    return played


def checked_seeds(X: Any) -> IntArray:
    """Validate environment seeds and return them as an array of shape (n_seeds,)."""
    seeds = np.asarray(X)
    if seeds.ndim == 2 and seeds.shape[1] == 1:
        seeds = seeds[:, 0]
    if seeds.ndim != 1 or not len(seeds) or seeds.dtype.kind not in "iu" or seeds.min() < 0:
        raise ValueError(
            "X must be environment seeds (integers >= 0, at least one) in an array of shape "
            f"(n_seeds,) or (n_seeds, 1); got shape {np.shape(X)}: {str(seeds)[:50]}."
        )
    return seeds.astype(np.int64)


def checked_observations(X: Any, space: Any) -> Any:
    """Validate observations and convert them to the shape and dtype of the space."""
    if hasattr(space, "spaces"):
        if not isinstance(X, dict) or set(X) != set(space.spaces):
            raise ValueError(f"Observations must be a dict with keys {sorted(space.spaces)}.")
        parts = {key: checked_observations(X[key], part) for key, part in space.spaces.items()}
        if len({len(part) for part in parts.values()}) > 1:
            sizes = {key: len(part) for key, part in parts.items()}
            raise ValueError(
                f"The arrays of observations must have equally many samples, got {sizes}."
            )
        return parts
    X = np.asarray(X)
    if X.ndim == 0 or X.shape[1:] != space.shape or X.dtype.kind not in "biuf":
        raise ValueError(
            "Observations must be numeric, of shape (n_samples, "
            f"{', '.join(map(str, space.shape))}), as in the environment, got {X.dtype}, {X.shape}."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        converted = X.astype(space.dtype)
    if not np.all(np.isfinite(X)) or not np.all(np.isfinite(converted)):
        raise ValueError(
            "Observations contain NaN, or numbers that are infinite after conversion to "
            f"{space.dtype}."
        )
    refuse_unusable(converted, "Observation {}".format)
    counted = converted.dtype.kind in "biu"  # integers and booleans must lie in the space
    if counted and not (np.array_equal(converted, X) and all(map(space.contains, converted))):
        raise ValueError(f"Observations must be elements of {space}, but some values are not.")
    return converted


def refuse_unusable(values: Any, name: Callable[[int], str]) -> None:
    """Raise if an array, or a dictionary of arrays, contains NaN, infinity or huge numbers."""
    # `name` returns the name of an entry by its position along the first axis.
    for key, part in values.items() if isinstance(values, dict) else [("", values)]:
        part = np.asarray(part)
        # This runs in every step; `vdot` avoids a temporary array. NaN and infinity fail the check.
        if part.dtype.kind != "f" or float(np.vdot(part, part)) <= LARGEST**2:
            continue
        unusable = np.argwhere(~(np.abs(part) <= LARGEST))
        if len(unusable):
            first = tuple(unusable[0])
            entry = f"{key!r} of {name(int(first[0]))}" if key else name(int(first[0]))
            raise ValueError(
                f"{entry} is or contains {part[first]:g}. Numbers must be finite and at most "
                f"{LARGEST:.3g} in absolute value; correct the environment, or rescale its "
                "observations and rewards."
            )


if "CliffWind-v0" not in gym.registry:
    gym.register("CliffWind-v0", "skuq.uadqn._envs:CliffWindEnv", max_episode_steps=15)
