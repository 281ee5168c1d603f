"""Episodes as they are watched: value and uncertainty of each action, and GIFs of both."""

from __future__ import annotations

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

SIDE = 320  # pixels of a frame's longer side, at least; larger ones are made smaller
MAX_FRAMES = 1_000  # for they are all in memory until the end
LINE = 22  # pixels of a line below the frame
# Of the channels of a grid: told apart with every common form of colour blindness, and by
# lightness from the dark ground.
_GROUND = (24, 24, 32)
_CHANNELS = (
    "#56B4E9", "#F0E442", "#8A8A8A", "#D55E00", "#009E73",
    "#CC79A7", "#FFFFFF", "#E69F00", "#0072B2", "#B8E0D2",
)  # fmt: skip
_BARS = ("#0072B2", "#D55E00")  # epistemic, aleatoric: as in pictures of the training
_NO_PICTURES = "The environment has no pictures (render mode 'rgb_array')"


class ActionEstimate(NamedTuple):
    """Value and uncertainty of an action, as an agent estimates them."""

    value: float  # expected return
    epistemic: float = np.nan  # standard deviations of the return; NaN if the agent has no estimate
    aleatoric: float = np.nan


def estimate_action(algorithm: Any, observation: Any, action: int) -> ActionEstimate:
    """Value and uncertainty of an action.

    Parameters
    ----------
    algorithm : stable_baselines3 algorithm
        One of those of `skuq.uadqn`.
    observation : ndarray, or dictionary of them
        One observation.
    action : int
        The action.

    Returns
    -------
    ActionEstimate
        The expected return ``value``, and standard deviations of the return, ``epistemic`` and
        ``aleatoric``. UA-DQN estimates both, QR-DQN the aleatoric one (epistemic uncertainty
        included), bootstrapped DQN the epistemic one, DQN none; what is not estimated is NaN.

    Examples
    --------
    >>> from skuq.uadqn import DQNAlgorithm, estimate_action, make_env
    >>> env = make_env("CliffWind-v0")
    >>> observation, _ = env.reset(seed=0)
    >>> estimate_action(DQNAlgorithm("MlpPolicy", env), observation, action=1).aleatoric
    nan
    """
    if not hasattr(algorithm, "predict_quantiles"):
        tensor, _ = algorithm.policy.obs_to_tensor(observation)
        with torch.no_grad():
            values = algorithm.q_net(tensor)[..., 0, action].cpu().double().numpy()
        spread = values.std(ddof=1) if values.ndim else np.nan  # over heads
        return ActionEstimate(float(values.mean()), epistemic=float(spread))
    quantiles = algorithm.predict_quantiles(observation)[:, 0, action].astype(np.float64)
    value, own = float(quantiles[0].mean()), float(quantile_variance(quantiles[0]))
    if len(quantiles) < 3:
        return ActionEstimate(value, aleatoric=own**0.5)
    aleatoric = float(aleatoric_part(quantiles, algorithm.aleatoric))
    return ActionEstimate(value, float(epistemic_variance(quantiles[1:])) ** 0.5, aleatoric**0.5)


class FilmError(ValueError):
    """An environment cannot be filmed; the message, without a full stop, says why."""


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def draws_itself(env: Any) -> bool:
    """Return whether observations are grids of channels, which are drawn here.

    MinAtar's are; its own pictures would need one more package.
    """
    space = env.observation_space
    return len(space.shape or ()) == 3 and space.dtype == bool


def picture_of_grid(grid: np.ndarray) -> np.ndarray:
    """Picture of a grid of channels, one pixel for each cell.

    Earlier channels lie on top: in MinAtar's games they are what the player steers or hits.
    """
    picture = np.full((*grid.shape[:2], 3), _GROUND, np.uint8)
    for channel in reversed(range(grid.shape[2])):
        picture[grid[..., channel]] = _rgb(_CHANNELS[channel % len(_CHANNELS)])
    return picture


def _rendered(env: Any) -> np.ndarray:
    picture = np.asarray(env.render())
    if picture.ndim != 3 or picture.shape[2] != 3:
        raise FilmError(_NO_PICTURES)
    if picture.dtype != np.uint8:  # between 0 and 1
        picture = (255 * np.clip(picture, 0, 1)).astype(np.uint8)
    return picture


def _options_of_pictures(name: str, env: Env) -> dict[str, str]:
    """Options with which an environment draws itself; FilmError if it cannot."""
    if "rgb_array" not in (env.metadata.get("render_modes") or ()):
        raise FilmError(_NO_PICTURES)
    options = {"render_mode": "rgb_array"}
    try:
        with closing(make_env(name, **options)) as drawn:
            drawn.reset(seed=0)
            _rendered(drawn)
    except FilmError:
        raise
    except Exception as error:  # environments draw with whatever packages they like
        raise FilmError(f"The environment cannot draw itself: {error}") from error
    return options


class _Shot(NamedTuple):
    picture: np.ndarray
    episode: int
    score: float
    estimate: ActionEstimate | None


class Film:
    """Frames of episodes, written as a GIF.

    `begin_episode` makes the environment of each episode, `take` takes a frame of it; a frame
    shows what the agent expects, and a bar for each uncertainty. At most 1,000 are kept.

    Parameters
    ----------
    name : str
        Id of the environment. Grids of channels are drawn from its observations; else it is
        made with ``render_mode="rgb_array"``.

    Attributes
    ----------
    n_left_out : int
        Frames that came when the film was full.

    Raises
    ------
    ImportError
        If pillow is not installed.
    FilmError
        If the environment has no pictures, or lacks a package to make them.
    """

    def __init__(self, name: str):
        self._image = import_optional("PIL.Image", extra="plot")
        self._draw = import_optional("PIL.ImageDraw", extra="plot")
        fonts = import_optional("PIL.ImageFont", extra="plot")
        self._font = fonts.load_default(size=14)
        self._name = name
        self._options: dict[str, str] = {}  # none for what is drawn here
        self.episode, self.n_left_out = 0, 0
        self._shots: list[_Shot] = []
        with closing(make_env(name)) as env:
            if not draws_itself(env):
                self._options = _options_of_pictures(name, env)

    def begin_episode(self) -> Env:
        """Return the environment of the next episode, new; who plays in it closes it."""
        self.episode += 1
        self.env = make_env(self._name, **self._options)
        return self.env

    def take(self, observation: Any, estimate: ActionEstimate | None, score: float) -> None:
        """Take a frame of the current episode.

        Parameters
        ----------
        observation : ndarray
            Current observation.
        estimate : result of `estimate_action` or None
            Of the action that is taken next; None at the end of an episode.
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
        """Small pictures stay as they are until they are drawn; large ones are made smaller."""
        height, width = picture.shape[:2]
        if max(height, width) <= SIDE:
            return picture
        factor = SIDE / max(height, width)
        size = (max(round(width * factor), 1), max(round(height * factor), 1))
        return np.asarray(self._image.fromarray(picture).resize(size))

    def save(self, path: str | Path) -> None:
        """Write the film, completely or not at all.

        Parameters
        ----------
        path : str or Path
            The GIF file.
        """
        estimates = [shot.estimate for shot in self._shots if shot.estimate is not None]
        spreads = np.array([(t.epistemic, t.aleatoric) for t in estimates])
        # One scale for all bars: they are compared over time and with each other.
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
