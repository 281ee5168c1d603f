"""GIFs of an agent's episodes, with its uncertainty below each frame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from skuq.extras import import_optional
from skuq.files import atomic_path
from skuq.uadqn._envs import make_env
from skuq.uadqn._play import ActionEstimate

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


def stage(name: str, env: Any) -> tuple[Any, Film]:
    """An environment that can be filmed, and a film of it.

    Parameters
    ----------
    name : str
        Id of the environment.
    env : gymnasium.Env
        The environment as it is without pictures.

    Returns
    -------
    env : gymnasium.Env
        The same if pictures can be made of its observations, else one that makes pictures.
    film : Film

    Raises
    ------
    ImportError
        If pillow is not installed.
    FilmError
        If the environment has no pictures, or lacks a package to make them.
    """
    if not draws_itself(env):
        if "rgb_array" not in (env.metadata.get("render_modes") or ()):
            raise FilmError(_NO_PICTURES)
        try:
            env = make_env(name, render_mode="rgb_array")
            env.reset(seed=0)
            _rendered(env)
        except FilmError:
            raise
        except Exception as error:  # environments draw with whatever packages they like
            raise FilmError(f"The environment cannot draw itself: {error}") from error
    return env, Film(env)


class _Shot(NamedTuple):
    picture: np.ndarray
    episode: int
    score: float
    estimate: ActionEstimate | None


class Film:
    """Frames of episodes, written as a GIF.

    Parameters
    ----------
    env : gymnasium.Env
        Environment, made with ``render_mode="rgb_array"`` unless `draws_itself`.

    Attributes
    ----------
    episode : int
        Number of the episode, which the frames state.
    n_left_out : int
        Frames that came when the film was full.

    Raises
    ------
    ImportError
        If pillow is not installed.
    """

    def __init__(self, env: Any):
        self._image = import_optional("PIL.Image", extra="plot")
        self._draw = import_optional("PIL.ImageDraw", extra="plot")
        fonts = import_optional("PIL.ImageFont", extra="plot")
        self._font = fonts.load_default(size=14)
        self.env, self.episode, self.n_left_out = env, 1, 0
        self._shots: list[_Shot] = []

    def watch(self, observation: Any, estimate: ActionEstimate | None, score: float) -> None:
        """Take a frame; `skuq.uadqn._play.play_episode` calls it."""
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

    def save(self, path: Path) -> None:
        """Write the film, completely or not at all."""
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
