"""The picture of an agent's training against independent computation."""

import warnings

import numpy as np
import pandas as pd
import pytest

from skuq.plotting import AgentTrainingDisplay

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def episodes(n=60, *, falls=True, epistemic=1.0, aleatoric=2.0, seed=0):
    """A history; uncertainties are variances around the given ones, or NaN."""
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 16, n)
    return pd.DataFrame(
        {
            "step": length.cumsum(),
            "score": rng.normal(size=n).cumsum(),
            "length": length,
            "falls": rng.integers(0, 2, n) if falls else np.zeros(n, int),
            "epistemic": epistemic * rng.uniform(0.5, 2, n),
            "aleatoric": aleatoric * rng.uniform(0.5, 2, n),
            "exploratory": rng.uniform(size=n),
        }
    )


def rolling(values, window):
    return [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]


def labelled(ax, label):
    (line,) = [line for line in ax.get_lines() if line.get_label() == label]
    return line


def y_labels(display):
    return [ax.get_ylabel() for ax in display.axes_]


def test_panels_hold_scores_falls_and_deviations():
    history = episodes()
    display = AgentTrainingDisplay(history, window=7).plot()
    returns, falls, spread = display.axes_
    np.testing.assert_array_equal(
        returns.get_lines()[0].get_xydata(), history[["step", "score"]].to_numpy()
    )
    mean = labelled(returns, "mean of 7 episodes")
    np.testing.assert_allclose(mean.get_ydata(), rolling(history.score.to_numpy(), 7))
    (line,) = falls.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), [0, *history.step])
    np.testing.assert_array_equal(line.get_ydata(), [0, *np.cumsum(history.falls)])
    for name in ("epistemic", "aleatoric"):
        deviation = np.sqrt(history[name].to_numpy())
        line = labelled(spread, name)
        np.testing.assert_array_equal(line.get_xdata(), history.step)
        np.testing.assert_allclose(line.get_ydata(), rolling(deviation, 7))
    assert labelled(spread, "epistemic").get_linestyle() == "-"
    assert labelled(spread, "aleatoric").get_linestyle() == "--"  # not by colour alone
    assert [ax.get_xlabel() for ax in display.axes_] == ["", "", "steps"]
    assert {ax.get_xlim() for ax in display.axes_} == {(0, history.step.max())}


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ({}, ["return", "falls so far", "standard deviation\nof the return"]),
        ({"falls": False}, ["return", "standard deviation\nof the return"]),
        ({"epistemic": np.nan, "aleatoric": np.nan}, ["return", "falls so far"]),
        ({"falls": False, "epistemic": np.nan, "aleatoric": np.nan}, ["return"]),
    ],
)
def test_panels_without_anything_to_show_are_left_out(given, labels):
    display = AgentTrainingDisplay.from_predictions(episodes(**given))
    assert y_labels(display) == labels
    assert display.axes_[-1].get_xlabel() == "steps"
    one = AgentTrainingDisplay(episodes(falls=False, epistemic=np.nan, aleatoric=np.nan))
    assert display.size[1] >= one.size[1]


def test_an_agent_with_one_uncertainty_has_one_line():
    display = AgentTrainingDisplay.from_predictions(episodes(epistemic=np.nan))
    legend = display.axes_[-1].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["aleatoric"]


def test_the_axis_of_deviations_is_logarithmic_where_they_spread_far():
    near, far = episodes(aleatoric=2.0), episodes(aleatoric=1e5)
    zeros = far.assign(epistemic=far.epistemic.where(far.index > 20, 0.0))  # not on a log axis
    scales = [AgentTrainingDisplay(h).plot().axes_[-1].get_yscale() for h in (near, far, zeros)]
    assert scales == ["linear", "log", "linear"]


@pytest.mark.parametrize(("n", "window"), [(1, 10), (60, 10), (2000, 40)])
def test_the_window_grows_with_the_number_of_episodes(n, window):
    assert AgentTrainingDisplay(episodes(n)).window == window


def test_a_single_episode_is_seen():
    returns, spread = AgentTrainingDisplay(episodes(1, falls=False)).plot().axes_
    lines = [labelled(returns, "mean of 1 episode")]
    lines += [labelled(spread, name) for name in ("epistemic", "aleatoric")]
    assert all(line.get_marker() == "o" and not line.get_clip_on() for line in lines)


def test_a_mean_is_not_said_to_be_of_more_episodes_than_there_are():
    returns = AgentTrainingDisplay(episodes(3)).plot().axes_[0]
    assert labelled(returns, "mean of 3 episodes").get_marker() == "None"


def test_an_estimator_is_drawn_from_its_history():
    class Fitted:
        history_ = episodes()

    display = AgentTrainingDisplay.from_estimator(Fitted(), window=3)
    assert display.history is Fitted.history_
    assert display.window == 3
    with pytest.raises(TypeError, match=r"must have an attribute `history_`.*; int does not"):
        AgentTrainingDisplay.from_estimator(3)


def test_a_fitted_agent_can_be_drawn():
    pytest.importorskip("stable_baselines3")
    from skuq import UADQN

    agent = UADQN("CliffWind-v0", total_timesteps=100, device="cpu", random_state=0).fit([0])
    display = AgentTrainingDisplay.from_estimator(agent)
    pd.testing.assert_frame_equal(display.history, agent.history_)
    assert "standard deviation\nof the return" in y_labels(display)


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_file_of_a_run_can_be_drawn(tmp_path, kind):
    history = episodes()
    history.to_csv(tmp_path / "history.csv", index=False)
    display = AgentTrainingDisplay(kind(tmp_path / "history.csv")).plot()
    pd.testing.assert_frame_equal(display.history, history)


def test_given_axes_are_used_and_no_figure_is_opened():
    figure, axes = plt.subplots(1, 2, layout="constrained")
    display = AgentTrainingDisplay(episodes()).plot(axes[1])
    assert display.ax_ is axes[1]
    assert display.figure_ is figure
    assert plt.get_fignums() == [figure.number]
    figure.canvas.draw()
    place = axes[1].get_position()
    for panel in display.axes_:
        box = panel.get_position()
        assert place.x0 - 1e-9 <= box.x0
        assert place.y0 - 1e-9 <= box.y0
        assert box.x1 <= place.x1 + 1e-9
        assert box.y1 <= place.y1 + 1e-9
    lows = [panel.get_position().y0 for panel in display.axes_]
    assert lows == sorted(lows, reverse=True)


def test_it_is_drawn_again_without_warnings_or_changed_settings():
    before = dict(matplotlib.rcParams)
    display = AgentTrainingDisplay(episodes(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = display.plot().figure_
        first.canvas.draw()
        assert display.plot() is display
        display.figure_.canvas.draw()
    assert display.figure_ is not first
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.drop(columns=["falls", "score"]), "lacks the columns score, falls"),
        (lambda h: h.head(0), "must have at least one episode"),
        (lambda h: h.assign(step=h.step.where(h.index > 2)), "`step` must be finite, got nan in"),
        (lambda h: h.assign(step=np.nan), "`step` must be finite, got nan in row 0"),
    ],
)
def test_what_is_no_history_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        AgentTrainingDisplay(change(episodes()))


@pytest.mark.parametrize("window", [0, -3, 2.5, 2.0, np.nan, "7"])
def test_a_window_is_a_number_of_episodes(window):
    with pytest.raises(ValueError, match=f"`window` must be an integer >= 1, got {window!r}"):
        AgentTrainingDisplay(episodes(), window=window)
    assert AgentTrainingDisplay(episodes(), window=np.int64(7)).window == 7
