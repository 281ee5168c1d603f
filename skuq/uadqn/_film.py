"""Estimates of value and uncertainty of actions, and GIFs of episodes with these estimates."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from skuq.extras import import_optional
from skuq.files import atomic_path
from skuq.uadqn._envs import Env, make_env
from skuq.uadqn._quantiles import aleatoric_part, epistemic_variance, quantile_variance

SIDE = 320  # maximum number of pixels of a frame's longer side; larger frames are reduced to it
# Maximum number of frames. All frames are kept in memory until the GIF is written.
MAX_FRAMES = 1_000
LINE = 22  # height in pixels of a text line below the frame
# Colours for the channels of a grid. They can be told apart with all common forms of colour
# blindness, and are lighter than the background.
_GROUND = (24, 24, 32)
_CHANNELS = (
    "#56B4E9", "#F0E442", "#8A8A8A", "#D55E00", "#009E73",
    "#CC79A7", "#FFFFFF", "#E69F00", "#0072B2", "#B8E0D2",
)  # fmt: skip
_BARS = ("#0072B2", "#D55E00")  # epistemic, aleatoric: as in plots of training
_NO_PICTURES = "The environment does not support render mode 'rgb_array'"


class ActionEstimate(NamedTuple):
    """An agent's estimates of the value and the uncertainty of an action."""

    value: float  # expected return
    epistemic: float = np.nan  # standard deviation of the return; NaN if it is not estimated
    aleatoric: float = np.nan


def estimate_action(algorithm: Any, observation: Any, action: int) -> ActionEstimate:
    """Estimate the value and the uncertainty of an action.

    Parameters
    ----------
    algorithm : stable_baselines3 algorithm
        An algorithm of `skuq.uadqn`.
    observation : ndarray, or dict of ndarrays
        One observation.
    action : int
        The action.

    Returns
    -------
    ActionEstimate
        The expected return ``value``, and two standard deviations of the return, ``epistemic`` and
        ``aleatoric``; an uncertainty that the agent does not estimate is NaN. UA-DQN estimates
        both. QR-DQN estimates only ``aleatoric``, which then includes epistemic uncertainty.
        Bootstrapped DQN estimates only ``epistemic``, and DQN neither.

    Raises
    ------
    ValueError
        If there are several observations, or the action is not one of the environment's actions.

    Examples
    --------
    >>> from skuq.uadqn import DQNAlgorithm, estimate_action, make_env
    >>> env = make_env("CliffWind-v0")
    >>> observation, _ = env.reset(seed=0)
    >>> estimate_action(DQNAlgorithm("MlpPolicy", env), observation, action=1).aleatoric
    nan
    """
    action = _checked_action(action, int(algorithm.action_space.n))
    if not hasattr(algorithm, "predict_quantiles"):
        tensor, _ = algorithm.policy.obs_to_tensor(observation)
        with torch.no_grad():
            outputs = algorithm.q_net(tensor)[..., action].cpu().double().numpy()
        _check_one_observation(outputs.shape[-1])
        values = outputs[..., 0]
        # Standard deviation over the heads.
        spread = values.std(ddof=1) if values.ndim else np.nan
        return ActionEstimate(float(values.mean()), epistemic=float(spread))
    of_observations = algorithm.predict_quantiles(observation)
    _check_one_observation(of_observations.shape[1])
    quantiles = of_observations[:, 0, action].astype(np.float64)
    value, own = float(quantiles[0].mean()), float(quantile_variance(quantiles[0]))
    if len(quantiles) < 3:
        return ActionEstimate(value, aleatoric=own**0.5)
    aleatoric = float(aleatoric_part(quantiles, algorithm.aleatoric))
    return ActionEstimate(value, float(epistemic_variance(quantiles[1:])) ** 0.5, aleatoric**0.5)


def _checked_action(action: Any, n_actions: int) -> int:
    """Return an action as an int; raise if it is not one of the actions 0 to n_actions - 1."""
    try:
        index = operator.index(action)
    except TypeError:
        index = -1
    if not 0 <= index < n_actions:
        raise ValueError(f"action must be an integer from 0 to {n_actions - 1}, got {action!r}.")
    return index


def _check_one_observation(n_observations: int) -> None:
    if n_observations != 1:
        raise ValueError(
            f"observation must be one observation, got a batch of {n_observations}; call "
            "estimate_action for each of them."
        )


class FilmError(ValueError):
    """Error for an environment that cannot be filmed; the message has no final full stop."""


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def draws_itself(env: Any) -> bool:
    """Whether observations are boolean grids of channels, which `picture_of_grid` draws.

    MinAtar's observations are such grids; its own rendering needs a further package.
    """
    space = env.observation_space
    return len(space.shape or ()) == 3 and space.dtype == bool


def picture_of_grid(grid: np.ndarray) -> np.ndarray:
    """Draw a grid of channels as an image with one pixel per cell.

    Earlier channels are drawn over later ones: in MinAtar's games, the earlier channels contain the
    player and the objects that the player hits.
    """
    picture = np.full((*grid.shape[:2], 3), _GROUND, np.uint8)
    for channel in reversed(range(grid.shape[2])):
        picture[grid[..., channel]] = _rgb(_CHANNELS[channel % len(_CHANNELS)])
    return picture


def _rendered(env: Any) -> np.ndarray:
    picture = np.asarray(env.render())
    if picture.ndim != 3 or picture.shape[2] != 3:
        raise FilmError(_NO_PICTURES)
    if picture.dtype != np.uint8:  # floats between 0 and 1
        picture = (255 * np.clip(picture, 0, 1)).astype(np.uint8)
    return picture


def _options_of_pictures(name: str, env: Env) -> dict[str, str]:
    """Return options that make an environment render images; raise FilmError if that fails."""
    if "rgb_array" not in (env.metadata.get("render_modes") or ()):
        raise FilmError(_NO_PICTURES)
    options = {"render_mode": "rgb_array"}
    try:
        with closing(make_env(name, **options)) as drawn:
            drawn.reset(seed=0)
            _rendered(drawn)
    except FilmError:
        raise
    except Exception as error:  # rendering may raise any exception, such as for a missing package
        raise FilmError(f"The environment cannot render images: {error}") from error
    return options


class _Shot(NamedTuple):
    picture: np.ndarray
    episode: int
    score: float
    estimate: ActionEstimate | None


class Film:
    """Frames of episodes, written as a GIF.

    `begin_episode` makes the environment of each episode, and `take` adds a frame. A frame shows
    the return that the agent expects, and one bar each for epistemic and aleatoric uncertainty. At
    most 1,000 frames are kept.

    Parameters
    ----------
    name : str
        Id of the environment. If the observations are boolean grids of channels, the film shows
        these grids. Any other environment is made with ``render_mode="rgb_array"``, and the film
        shows its images.

    Attributes
    ----------
    n_left_out : int
        Number of frames that were dropped because the film was full.

    Raises
    ------
    ImportError
        If pillow is not installed.
    FilmError
        If the environment cannot render images, or a package for rendering is missing.
    """

    def __init__(self, name: str):
        self._image = import_optional("PIL.Image", extra="plot")
        self._draw = import_optional("PIL.ImageDraw", extra="plot")
        fonts = import_optional("PIL.ImageFont", extra="plot")
        self._font = fonts.load_default(size=14)
        self._name = name
        self._options: dict[str, str] = {}  # empty if this class draws grids
        self.episode, self.n_left_out = 0, 0
        self._shots: list[_Shot] = []
        with closing(make_env(name)) as env:
            if not draws_itself(env):
                self._options = _options_of_pictures(name, env)

    def begin_episode(self) -> Env:
        """Return a new environment for the next episode; the caller must close it."""
        self.episode += 1
        self.env = make_env(self._name, **self._options)
        return self.env

    def take(self, observation: Any, estimate: ActionEstimate | None, score: float) -> None:
        """Add a frame of the current episode.

        Parameters
        ----------
        observation : ndarray
            Current observation.
        estimate : result of `estimate_action` or None
            Estimate for the next action; None at the end of an episode.
        score : float
            Return so far.
        """
        if len(self._shots) >= MAX_FRAMES:
            self.n_left_out += 1
            return
        picture = self._scaled(self._taken(observation))
        self._shots.append(_Shot(picture, self.episode, score, estimate))

    def _taken(self, observation: Any) -> np.ndarray:
        return picture_of_grid(observation) if draws_itself(self.env) else _rendered(self.env)

    def _scaled(self, picture: np.ndarray) -> np.ndarray:
        """Shrink a large picture; small pictures are enlarged only when they are drawn."""
        height, width = picture.shape[:2]
        if max(height, width) <= SIDE:
            return picture
        factor = SIDE / max(height, width)
        size = (max(round(width * factor), 1), max(round(height * factor), 1))
        return np.asarray(self._image.fromarray(picture).resize(size))

    def save(self, path: str | Path) -> None:
        """Write the GIF atomically.

        Parameters
        ----------
        path : str or Path
            Path of the GIF file.
        """
        estimates = [shot.estimate for shot in self._shots if shot.estimate is not None]
        spreads = np.array([(t.epistemic, t.aleatoric) for t in estimates])
        # All bars have the same scale, so that they can be compared with each other and over time.
        largest = float(spreads[np.isfinite(spreads)].max(initial=0)) or 1.0
        known = np.isfinite(spreads).any(axis=0)
        frames = self._frames(largest, known)
        fps = float(getattr(self.env, "metadata", {}).get("render_fps") or 10)
        pause = max(round(1000 / min(fps, 30)), 20)
        lasting = [pause if shot.estimate is not None else 5 * pause for shot in self._shots]
        with atomic_path(path) as partial:
            next(frames).save(
                partial, "GIF", save_all=True, append_images=frames, duration=lasting, loop=0
            )

    def _frames(self, largest: float, known: np.ndarray) -> Iterator[Any]:
        for shot in self._shots:
            height, width = shot.picture.shape[:2]
            zoom = max(SIDE // max(height, width), 1)
            picture = self._image.fromarray(shot.picture).resize(
                (zoom * width, zoom * height), self._image.Resampling.NEAREST
            )
            whole = max(picture.width, SIDE), picture.height + LINE * (1 + int(known.sum())) + 8
            frame = self._image.new("RGB", whole, "white")
            frame.paste(picture, ((whole[0] - picture.width) // 2, 0))
            self._caption(frame, picture.height + 4, shot, largest, known)
            yield frame

    def _caption(
        self, frame: Any, top: int, shot: _Shot, largest: float, known: np.ndarray
    ) -> None:
        draw = self._draw.Draw(frame)
        text = f"episode {shot.episode}   return {shot.score:.4g}"
        if shot.estimate is None:
            draw.text((6, top), f"{text}   end", "black", self._font)
            return
        draw.text((6, top), f"{text}   expects {shot.estimate.value:.3g}", "black", self._font)
        bars = zip(("epistemic sd", "aleatoric sd"), shot.estimate[1:], _BARS, known, strict=False)
        for name, spread, colour, is_known in bars:
            if is_known:
                top += LINE
                length = round((frame.width - 170) * spread / largest)
                draw.text((6, top), name, "black", self._font)
                draw.rectangle((100, top + 3, 100 + length, top + 15), fill=colour)
                draw.text((frame.width - 60, top), f"{spread:.3g}", "black", self._font)
