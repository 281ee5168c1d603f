"""Display of an agent's training: returns, falls and uncertainty."""

from __future__ import annotations

from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from skuq.plotting._display import COLOURS, Display
from skuq.validation import finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("step", "score", "falls", "epistemic", "aleatoric")
PANEL, GAP = 1.9, 0.12  # height of a panel in inches; gap, as a share of this height
# The axis is logarithmic if the largest standard deviation, divided by the smallest, is above this
# ratio.
LOG_RANGE = 30.0


class AgentTrainingDisplay(Display):
    """Return, falls and uncertainty of an agent over the steps of its training.

    There are up to three panels: the return of each episode with its rolling mean; the cumulative
    number of falls, if there were any; and rolling means of the epistemic and the aleatoric
    standard deviation of the return, for the chosen actions, if the agent estimates these.

    Parameters
    ----------
    history : DataFrame, or path of a CSV file
        One row for each episode, with columns ``step``, ``score``, ``falls``, ``epistemic``
        and ``aleatoric`` (variances): the ``history_`` of `skuq.UADQN`, or the
        ``history.csv`` that ``skuq train-agent`` writes.
    window : int, optional
        Number of episodes in a rolling mean. Default: a fiftieth of all episodes, and at least 10.

    Attributes
    ----------
    history, window
        As given.
    size : tuple of float
        Suitable width and height of a figure, in inches.
    ax_, figure_ : matplotlib Axes and Figure
        Axes and figure of the last plot.
    axes_ : list of matplotlib Axes
        The panels, from top to bottom.

    Raises
    ------
    ValueError
        If columns are missing, `history` is empty, a step is not finite, or `window` is not a
        positive integer.

    Examples
    --------
    >>> import pandas as pd
    >>> from skuq.plotting import AgentTrainingDisplay
    >>> history = pd.DataFrame(
    ...     {"step": [5, 12], "score": [-5.0, 4.0], "falls": [1, 0],
    ...      "epistemic": [4.0, 1.0], "aleatoric": [0.0, 1.0]}
    ... )
    >>> display = AgentTrainingDisplay(history).plot()
    >>> [ax.get_ylabel() for ax in display.axes_]
    ['return', 'falls so far', 'standard deviation\\nof the return']
    """

    def __init__(self, history: Any, *, window: int | None = None) -> None:
        if not isinstance(history, pd.DataFrame):
            history = pd.read_csv(Path(history))
        missing = [name for name in COLUMNS if name not in history.columns]
        if missing:
            raise ValueError(f"`history` lacks the columns {', '.join(missing)}.")
        if len(history) == 0:
            raise ValueError("`history` must have at least one episode, got none.")
        if window is not None and (not isinstance(window, Integral) or window < 1):
            raise ValueError(f"`window` must be an integer >= 1, got {window!r}.")
        finite(history["step"], "step")
        self.history = history
        self.window = max(10, len(history) // 50) if window is None else window
        self.size = (6.4, 0.9 + PANEL * len(self._panels()))

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, window: int | None = None, ax: Axes | None = None
    ) -> Self:
        """Draw the training of an agent.

        Parameters
        ----------
        estimator : skuq.UADQN, or another agent of skuq
            Fitted agent.
        window : int, optional
            As in the class.
        ax : matplotlib Axes, optional
            Axes that the panels replace. Default: a new figure.

        Returns
        -------
        AgentTrainingDisplay

        Raises
        ------
        TypeError
            If the estimator has no attribute `history_`.
        """
        history = getattr(estimator, "history_", None)
        if not isinstance(history, pd.DataFrame):
            raise TypeError(
                "`estimator` must have an attribute `history_`, as a fitted UADQN has; "
                f"{type(estimator).__name__} does not."
            )
        return cls.from_predictions(history, window=window, ax=ax)

    def _draw(self) -> None:
        self.ax_.set_axis_off()
        panels = self._panels()
        height = 1 / (len(panels) + GAP * (len(panels) - 1))
        self.axes_: list[Axes] = []
        for i, draw in enumerate(panels):
            bottom = 1 - height - i * height * (1 + GAP)
            shared = self.axes_[0] if self.axes_ else None
            panel = self.ax_.inset_axes((0.0, bottom, 1.0, height), sharex=shared)
            panel.tick_params(labelbottom=i == len(panels) - 1)
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(axis="y", color="0.92")
            panel.set_axisbelow(True)
            self.axes_.append(panel)
            draw(panel)
        self.axes_[-1].set_xlabel("steps")
        self.axes_[0].set_xlim(0, self.history["step"].max())

    def _panels(self) -> list[Any]:
        panels: list[Any] = [self._draw_return]
        if (self.history["falls"] > 0).any():
            panels.append(self._draw_falls)
        if self.history[["epistemic", "aleatoric"]].notna().any(axis=None):
            panels.append(self._draw_uncertainty)
        return panels

    def _rolling(self, values: pd.Series[float]) -> pd.Series[float]:
        return values.rolling(self.window, min_periods=1).mean()

    def _line_style(self) -> dict[str, Any]:
        # A line through a single episode is invisible, so draw a marker. The marker lies on the
        # edge of the axes, so clipping is switched off.
        single: dict[str, Any] = {"marker": "o", "clip_on": False}
        return {"linewidth": 2, **(single if len(self.history) == 1 else {})}

    def _draw_return(self, ax: Axes) -> None:
        step, score = self.history["step"], self.history["score"]
        ax.plot(
            step,
            score,
            ".",
            color="0.55",
            markersize=4,
            # With many episodes, dots are more transparent.
            alpha=float(np.clip(500 / len(score), 0.1, 0.7)),
            markeredgewidth=0,
            rasterized=True,
        )
        ax.plot([], [], ".", color="0.55", label="episode")
        count = min(self.window, len(score))
        label = f"mean of {count} episode{'s' if count > 1 else ''}"
        line = {"color": COLOURS[0], "label": label, **self._line_style()}
        ax.plot(step, self._rolling(score), **line)
        ax.set_ylabel("return")
        _legend(ax)

    def _draw_falls(self, ax: Axes) -> None:
        ax.step(
            np.concatenate([[0], self.history["step"]]),
            np.concatenate([[0], self.history["falls"].cumsum()]),
            where="post",
            color=COLOURS[-1],
            linewidth=1.5,
        )
        ax.set_ylabel("falls so far")
        ax.set_ylim(bottom=0)

    def _draw_uncertainty(self, ax: Axes) -> None:
        lines = {}
        for name, colour, style in (
            ("epistemic", COLOURS[0], "-"),
            ("aleatoric", COLOURS[1], "--"),
        ):
            deviation = np.sqrt(self.history[name])
            if deviation.notna().any():
                lines[name] = self._rolling(deviation)
                line = {"color": colour, "label": name, **self._line_style()}
                ax.plot(self.history["step"], lines[name], style, **line)
        drawn = pd.concat(lines)
        positive = drawn[drawn > 0]
        # A logarithmic axis cannot show zeros.
        if len(positive) == drawn.notna().sum() and positive.max() > LOG_RANGE * positive.min():
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter("{x:g}")
        else:
            ax.set_ylim(bottom=0)
        ax.set_ylabel("standard deviation\nof the return")
        _legend(ax)


def _legend(ax: Axes) -> None:
    """Place the legend just above the panel, where it hides no data."""
    ax.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 0.97),
        ncols=2,
        frameon=False,
        fontsize="small",
        borderpad=0.1,
        handlelength=1.8,
    )
