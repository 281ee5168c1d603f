"""``skuq train-agent`` and ``skuq play``: what they print and write, and how they refuse."""

import base64
import hashlib
import json
import os
import pickle
import re
import shutil
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from skuq import extras
from skuq.cli._agents import train_agent
from skuq.cli._main import main

FILES = {".lock", "agent.zip", "checkpoints", "config.json", "history.csv"}
QUICK = {
    "learning_rate": 1e-3,
    "learning_starts": 40,
    "batch_size": 8,
    "buffer_size": 200,
    "epistemic_factor": 1.0,
    "aleatoric_factor": 0.5,
}


@pytest.fixture
def rl(monkeypatch, tmp_path):
    """Settings that a test can wait for; runs lie in the current folder."""
    pytest.importorskip("stable_baselines3")
    monkeypatch.setattr("skuq.uadqn._run_configs.settings_for", lambda env: dict(QUICK))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A finished run that no test may change."""
    pytest.importorskip("stable_baselines3")
    from skuq.uadqn import make_run_config, train_run

    folder = tmp_path_factory.mktemp("runs") / "run"
    config = make_run_config("CliffWind-v0", 120, 0, "uadqn")
    train_run(folder, config._replace(settings=QUICK | {"learning_starts": 20}), device="cpu")
    return folder


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def train(*arguments, env="CliffWind-v0", steps=120, out="run"):
    given = ["--env", env, "--steps", steps, "--out", out, "--device", "cpu"]
    return run("train-agent", *given, *arguments)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(result):
    """The message of a refusal, which is one line."""
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("Error: ")
    return lines[-1].removeprefix("Error: ")


def register(name, make):
    import gymnasium as gym

    if name not in gym.registry:
        gym.register(name, make)


def random_env(**options):
    from tests.uadqn.environments import RandomEnv

    return RandomEnv(**options)


# --- train-agent -------------------------------------------------------------------------------


def test_training_writes_the_run_and_says_what_came_of_it(rl):
    result = train("--seed", 3, "--epistemic-factor", 2.5)
    assert result.exit_code == 0, result.output
    assert {path.name for path in (rl / "run").iterdir()} >= FILES
    history = pd.read_csv("run/history.csv")
    falls = f", {history.falls.sum()} falls" if history.falls.any() else ""
    mean = history.score.tail(100).mean()
    said = f"{len(history)} episodes{falls}; mean return of the last {len(history)}: {mean:.4g}\n"
    assert result.stdout.startswith(said)
    assert "Agent: run/agent.zip\nHistory: run/history.csv\n" in result.stdout
    config = json.loads((rl / "run/config.json").read_text(encoding="utf-8"))
    assert (config["env"], config["seed"], config["method"]) == ("CliffWind-v0", 3, "uadqn")
    assert config["settings"] == QUICK | {"epistemic_factor": 2.5}
    assert "120/120" in result.stderr  # the progress bar
    assert "score=" in result.stderr


def test_the_picture_is_drawn_without_opening_figures(rl):
    plt = pytest.importorskip("matplotlib.pyplot")
    result = train("--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert (rl / "run/training.png").read_bytes().startswith(b"\x89PNG")
    assert plt.get_fignums() == []


def test_without_matplotlib_there_is_a_note_instead_of_a_picture(rl, monkeypatch):
    real = extras.import_module

    def absent(name):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name="matplotlib")
        return real(name)

    monkeypatch.setattr(extras, "import_module", absent)
    result = train()
    assert result.exit_code == 0
    assert "No plot: matplotlib is needed" in result.stdout
    assert "pip install 'skuq[plot]'" in result.stdout
    assert {path.name for path in (rl / "run").iterdir()} == FILES


def test_the_same_command_again_changes_nothing(rl):
    assert train().exit_code == 0
    before = contents(rl)
    result = train()
    assert result.exit_code == 0
    assert result.stdout == "The run in run is already finished (120 steps).\n"
    assert contents(rl) == before


@pytest.mark.slow
def test_an_interrupt_names_the_step_and_the_same_command_goes_on_from_there(rl, monkeypatch):
    from skuq.uadqn import TrainingHistory

    def interrupted(self):
        if self.num_timesteps == 70:
            raise KeyboardInterrupt
        return on_step(self)

    on_step = TrainingHistory._on_step
    monkeypatch.setattr(TrainingHistory, "_on_step", interrupted)
    result = train("--checkpoint-every", 30)
    monkeypatch.setattr(TrainingHistory, "_on_step", on_step)
    assert result.exit_code == 1
    assert "repeat the command with --trust to continue from step 60." in result.stderr
    assert "Traceback" not in result.output
    assert not (rl / "run/agent.zip").exists()
    played = run("play", "--trust", "run", "--episodes", 1)
    assert played.stdout.startswith("The run is not finished")
    result = train("--checkpoint-every", 30, "--trust")
    assert result.exit_code == 0
    assert "continues from step 60.\n" in result.stdout
    assert train(out="whole").exit_code == 0
    assert (rl / "whole/history.csv").read_bytes() == (rl / "run/history.csv").read_bytes()


def test_uadqn_can_be_extended(rl):
    train(steps=60)
    result = train("--trust", steps=100)
    assert result.exit_code == 0
    assert "continues from step 60." in result.stdout
    assert json.loads((rl / "run/config.json").read_text(encoding="utf-8"))["steps"] == 100


def test_several_seeds_are_runs_of_their_own(rl):
    several = ["--seed", 3, "--seeds", 2, "--jobs", 1]
    result = train(*several)
    assert result.exit_code == 0, result.output
    assert train("--seed", 4, out="alone").exit_code == 0
    alone = (rl / "alone/history.csv").read_bytes()
    assert (rl / "run/seed-4/history.csv").read_bytes() == alone
    assert {path.name for path in (rl / "run").iterdir()} == {"seed-3", "seed-4"}
    histories = [pd.read_csv(rl / f"run/seed-{seed}/history.csv") for seed in (3, 4)]
    means = [history.score.tail(100).mean() for history in histories]
    assert f"run/seed-3: {len(histories[0])} episodes" in result.stdout
    said = (
        f"Mean over 2 seeds: {np.mean(means):.4g} (standard deviation {np.std(means, ddof=1):.4g})"
    )
    assert said in result.stdout
    before = contents(rl / "run")
    again = train(*several)
    assert said in again.stdout
    pictures = {path for path in before if path.suffix == ".png"}  # which are drawn again
    after = contents(rl / "run")
    assert all(after[path] == before[path] for path in before.keys() - pictures)


def test_several_seeds_in_the_folder_of_one_run_are_refused(rl):
    assert train().exit_code == 0
    assert "run contains a single run" in refused(train("--seeds", 2))
    assert "contains other files" in refused(train(out="."))
    assert "--jobs requires --seeds" in train("--jobs", 2).stderr
    assert "and 4294967295" in refused(train("--seed", 2**32 - 1, "--seeds", 2, out="new"))
    assert not (rl / "new").exists()


def test_a_run_without_a_finished_episode_is_a_run(rl):
    result = train(steps=3)
    assert result.exit_code == 0, result.output
    assert "No episode has ended." in result.stdout
    assert "No plot: " in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"env": "Absent-v0"},
            "cannot be created: Environment 'Absent-v0' does not exist",
        ),
        ({"env": "Absent-v0", "arguments": ["--seeds", "2", "--jobs", "1"]}, "cannot be created"),
        ({"env": "Pendulum-v1"}, "action space must be Discrete"),
        ({"arguments": ["--method", "dqn", "--aleatoric-factor", "1"]}, "not to 'dqn'"),
        ({"arguments": ["--device", "toaster"]}, "toaster"),
        ({"arguments": ["--epistemic-factor", "nan"]}, "epistemic_factor"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line_and_leaves_nothing(rl, options, message):
    options = dict(options)
    result = train(*options.pop("arguments", []), **options)
    assert message in refused(result)
    assert list(rl.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--seed", "1"], "has seed 0, not 1; resume it with 0, or use a different folder"),
        (["--method", "qrdqn"], "has method 'uadqn', not 'qrdqn'"),
        (["--aleatoric-factor", "2"], "has aleatoric_factor 0.5, not 2.0"),
        (["--steps", "90"], "is a run of 120 steps; request at least 120 steps"),
    ],
)
def test_a_run_is_not_overwritten_by_another(rl, run_folder, monkeypatch, changed, message):
    settings = QUICK | {"learning_starts": 20}
    monkeypatch.setattr("skuq.uadqn._run_configs.settings_for", lambda env: settings)
    before = contents(run_folder)
    assert message in refused(train(*changed, out=run_folder))
    assert contents(run_folder) == before


def test_what_goes_wrong_inside_an_environment_is_shown_as_it_is(rl):
    from tests.uadqn.environments import RandomEnv

    class Failing(RandomEnv):
        def step(self, action):
            raise ValueError("in the environment")

    register("Failing-v0", Failing)
    result = train(env="Failing-v0")
    assert result.exit_code == 1
    assert str(result.exception) == "in the environment"


def test_a_disk_without_room_is_reported_in_one_line(rl, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("skuq.uadqn._checkpoint._digest", full)
    assert "No space left on device" in refused(train())


def test_a_folder_with_other_things_is_left_alone(rl):
    (rl / "run").mkdir()
    (rl / "run/thesis.tex").write_text("mine", encoding="utf-8")
    assert "is not the folder of a run: it contains other files" in refused(train())
    assert contents(rl) == {rl / "run/thesis.tex": b"mine"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--steps", "0"),
        ("--seed", "-1"),
        ("--seed", str(2**32)),
        ("--epistemic-factor", "-1"),
        ("--aleatoric-factor", "inf"),
        ("--checkpoint-every", "0"),
        ("--method", "sarsa"),
    ],
)
def test_values_out_of_range_are_refused(rl, option, value):
    result = train(option, value)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.stderr
    assert list(rl.iterdir()) == []


def test_the_methods_are_those_of_the_package():
    pytest.importorskip("stable_baselines3")
    from skuq.uadqn import RunError, make_run_config

    (option,) = [p for p in train_agent.params if p.name == "method"]
    with pytest.raises(RunError, match=f"must be one of {', '.join(option.type.choices)}"):
        make_run_config("CliffWind-v0", 100, 0, "sarsa")


# --- forged files ------------------------------------------------------------------------------


class Forged:
    """An object whose pickle writes a file when it is loaded."""

    def __reduce__(self):
        return os.system, ("echo > pwned",)


def forged_agent(folder):
    """The agent of a run, with a learning rate that runs code."""
    path = folder / "agent.zip"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    settings = json.loads(members["data"])
    code = base64.b64encode(pickle.dumps(Forged())).decode()
    settings["lr_schedule"] = {":type:": "function", ":serialized:": code}
    members["data"] = json.dumps(settings).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def forged_checkpoint(folder):
    """A checkpoint that runs code, whose manifest is right."""
    (checkpoint,) = folder.glob("checkpoints/step-*")
    (checkpoint / "state.pkl").write_bytes(pickle.dumps(Forged()))
    manifest = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256((checkpoint / "state.pkl").read_bytes()).hexdigest()
    manifest["sha256"]["state.pkl"] = digest
    (checkpoint / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize(
    ("forge", "load"),
    [
        (forged_agent, lambda *more: run("play", "run", *more)),
        (forged_checkpoint, lambda *more: train(*more, steps=200)),
        (
            forged_checkpoint,
            lambda *more: train(*more, "--seed", 0, "--seeds", 2, "--jobs", 1, steps=200, out="."),
        ),
    ],
    ids=["play", "train-agent", "train-agent of seeds"],
)
def test_a_forged_run_runs_nothing_without_trust(rl, run_folder, monkeypatch, forge, load):
    settings = QUICK | {"learning_starts": 20}
    monkeypatch.setattr("skuq.uadqn._run_configs.settings_for", lambda env: settings)
    shutil.copytree(run_folder, "run")
    shutil.copytree(run_folder, "seed-0")
    for folder in (rl / "run", rl / "seed-0"):
        forge(folder)
    message = refused(load())
    assert "is loaded as pickled objects, which run code of whoever made them" in message
    assert "say so (--trust)" in message
    assert not (rl / "pwned").exists()
    load("--trust")
    assert (rl / "pwned").exists()  # so the file is one that would have run


# --- play --------------------------------------------------------------------------------------

LINE = re.compile(
    r"episode (\d+): return (\S+), (\d+) steps, (\d+) falls, "
    r"epistemic sd (\S+), aleatoric sd (\S+)"
)


def test_play_prints_a_line_for_each_episode_as_it_is(run_folder):
    from skuq.uadqn import aleatoric_variance, epistemic_variance, load_agent, make_env

    result = run("play", "--trust", run_folder, "--episodes", 4, "--seed", 7)
    assert result.exit_code == 0, result.output
    *lines, mean = result.stdout.splitlines()
    agent, env = load_agent(run_folder, "cpu", trust=True).algorithm, make_env("CliffWind-v0")
    scores = []
    for i, line in enumerate(lines):
        observation, _ = env.reset(seed=7 + i)
        done, rewards, spreads, falls = False, [], [], 0
        while not done:
            action = agent.predict(observation, deterministic=True)[0]
            quantiles = agent.predict_quantiles(observation[None])[1:, 0, action].astype(float)
            variances = epistemic_variance(quantiles), max(aleatoric_variance(quantiles), 0)
            spreads.append(np.sqrt(variances))
            observation, reward, *ends, info = env.step(action)
            rewards.append(reward)
            done, falls = any(ends), falls + info["fell"]
        scores.append(sum(rewards))
        values = [float(value) for value in LINE.fullmatch(line).groups()]
        expected = [i + 1, sum(rewards), len(rewards), falls, *np.mean(spreads, axis=0)]
        np.testing.assert_allclose(values, expected, rtol=1e-2)
    assert len(lines) == 4
    assert mean == f"mean return: {np.mean(scores):.4g}"


def test_play_repeats_itself_with_the_same_seed_and_writes_nothing(run_folder):
    before = contents(run_folder)
    assert run("play", "--trust", run_folder).output == run("play", "--trust", run_folder).output
    assert contents(run_folder) == before


@pytest.mark.parametrize(
    ("method", "names"),
    [("qrdqn", ["aleatoric"]), ("bootstrapped", ["epistemic"]), ("dqn", [])],
)
def test_play_states_the_uncertainties_that_an_agent_has(rl, method, names):
    train("--method", method, steps=60, env="CartPole-v1")
    line = run("play", "--trust", "run", "--episodes", 1).stdout.splitlines()[0]
    assert re.findall(r"(\w+) sd [\d.]+", line) == names
    assert "falls" not in line  # the environment does not say


def test_an_episode_without_end_is_cut(rl):
    register("Endless-v0", lambda: random_env(length=10**9))
    train(env="Endless-v0", steps=50)
    result = run("play", "--trust", "run", "--episodes", 2, "--max-steps", 13)
    assert result.exit_code == 0
    assert result.stdout.count("13 steps (truncated)") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "absent does not contain a run; train one with `skuq train-agent`."),
        (["."], ". does not contain a run"),
        (["RUN", "--device", "toaster"], "toaster"),
        (["RUN", "--gif", "film.png"], "--gif: film.png must end in .gif."),
        (["RUN", "--gif", "absent/film.gif"], "The folder absent does not exist"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(rl, run_folder, arguments, message):
    arguments = [run_folder if value == "RUN" else value for value in arguments]
    assert message in refused(run("play", "--trust", *arguments))
    assert list(rl.iterdir()) == []


def test_of_several_seeds_one_is_to_be_named(rl):
    (rl / "many").mkdir()
    (rl / "many" / "notes.txt").touch()
    assert "many is not the folder of a run" in refused(run("play", "--trust", "many"))
    for seed in (10, 9, 2):
        (rl / "many" / f"seed-{seed}").mkdir()
        (rl / "many" / f"seed-{seed}" / "config.json").touch()
    message = refused(run("play", "--trust", "many"))
    assert message == (
        "many contains one run per seed; pass one of its folders: seed-2, seed-9, seed-10."
    )


# --- films -------------------------------------------------------------------------------------


def frames(path):
    image = pytest.importorskip("PIL.Image").open(path)
    for i in range(image.n_frames):
        image.seek(i)
        yield np.asarray(image.convert("RGB"))


def test_a_gif_shows_every_step_and_the_end_of_every_episode(rl, run_folder):
    pytest.importorskip("PIL")
    from skuq.uadqn import make_env

    result = run("play", "--trust", run_folder, "--episodes", 2, "--gif", "film.gif")
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("GIF: film.gif\n")
    steps = sum(int(match[3]) for match in LINE.finditer(result.stdout))
    pictures = list(frames("film.gif"))
    # Frames in which nothing changed are one longer frame.
    assert 2 < len(pictures) <= steps + 2
    env = make_env("CliffWind-v0", render_mode="rgb_array")
    env.reset()
    expected = env.render().repeat(2, 0).repeat(2, 1)
    np.testing.assert_allclose(pictures[0][: len(expected)], expected, atol=2)
    assert [path.name for path in rl.iterdir()] == ["film.gif"]


def test_minatar_is_drawn_from_its_observations(rl, monkeypatch):
    pytest.importorskip("PIL")
    monkeypatch.setitem(sys.modules, "seaborn", None)
    train(env="MinAtar/Breakout-v1", steps=45)
    result = run("play", "--trust", "run", "--episodes", 1, "--gif", "film.gif")
    assert result.exit_code == 0, result.output
    first = next(frames("film.gif"))[:320]
    cells = first.reshape(10, 32, 10, 32, 3)
    assert (cells == cells[:, :1, :, :1]).all()  # nearest neighbours: sharp squares
    cells = cells[:, 0, :, 0]
    assert (cells[1:4, 1:-1] == cells[1, 1]).all()  # three rows of bricks
    assert len(np.unique(cells.reshape(-1, 3), axis=0)) >= 3  # ground, bricks, paddle


def test_a_long_film_is_cut_and_says_so(run_folder, rl, monkeypatch):
    pytest.importorskip("PIL")
    monkeypatch.setattr("skuq.uadqn._film.MAX_FRAMES", 5)
    result = run("play", "--trust", run_folder, "--episodes", 3, "--gif", "film.gif")
    steps = sum(int(match[3]) for match in LINE.finditer(result.stdout))
    assert f"GIF: film.gif (without the last {steps + 3 - 5} frames)" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "does not support render mode 'rgb_array'"),
        ({"picture": None}, "does not support render mode 'rgb_array'"),
        (
            {"picture": ImportError("no pygame, try pip")},
            "cannot render images: no pygame, try pip",
        ),
    ],
)
def test_what_cannot_be_drawn_can_be_played(rl, options, message):
    pytest.importorskip("PIL")
    from tests.uadqn.environments import RandomEnv

    class Drawn(RandomEnv):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 5}

        def __init__(self, render_mode=None):
            super().__init__()
            self.render_mode = render_mode

        def render(self):
            if isinstance(options["picture"], Exception):
                raise options["picture"]
            return options["picture"]

    name = f"Drawn{len(str(options))}-v0"
    register(name, Drawn if options else RandomEnv)
    train(env=name, steps=45)
    message_seen = refused(run("play", "--trust", "run", "--gif", "film.gif"))
    assert message in message_seen
    assert message_seen.endswith("; omit --gif.")
    assert not (rl / "film.gif").exists()
    assert run("play", "--trust", "run").exit_code == 0


@pytest.mark.parametrize("options", [[], ["--gif", "film.gif"]])
@pytest.mark.parametrize("draws", [True, False])
def test_every_environment_of_a_film_is_closed(rl, options, draws):
    pytest.importorskip("PIL")
    from tests.uadqn.environments import RandomEnv

    opened, closed = [], []

    class Counted(RandomEnv):
        metadata = {"render_modes": ["rgb_array"] * draws}

        def __init__(self, render_mode=None):
            super().__init__()
            opened.append(self)

        def render(self):
            return np.zeros((4, 4, 3), np.uint8)

        def close(self):
            closed.append(self)

    name = f"Counted{draws}{len(options)}-v0"
    register(name, Counted)
    train(env=name, steps=45)
    made_before = len(opened)
    result = run("play", "--trust", "run", *options)
    assert result.exit_code == (0 if draws or not options else 2)
    assert len(opened) > made_before
    assert {*opened[made_before:]} <= {*closed}


@pytest.mark.parametrize("ended", [0, 1, 2])
def test_seeds_of_which_no_episode_has_ended_have_no_part_in_the_mean(rl, monkeypatch, ended):
    from skuq import uadqn

    lengths = iter([10] * ended + [0] * (3 - ended))

    def trained(*args, **options):
        for seed, length in enumerate(lengths):
            history = pd.DataFrame({"score": np.full(length, float(seed)), "falls": 0})
            yield SimpleNamespace(folder=rl / f"seed-{seed}", history=history)

    monkeypatch.setattr(uadqn, "train_seeds", trained)
    monkeypatch.setattr("skuq.cli._agents._picture", lambda *args: "")
    result = train("--seeds", "3")
    assert result.exit_code == 0, result.output
    said = {0: None, 1: "Mean over 1 of 3 seeds: 0", 2: "Mean over 2 of 3 seeds: 0.5 (standard"}
    if said[ended] is None:
        assert "Mean" not in result.output
    else:
        assert said[ended] in result.output


def test_a_seed_that_environments_refuse_is_refused_in_one_line(rl):
    train(steps=45)
    for options in (["--seed", str(2**32)], ["--seed", str(2**32 - 1), "--episodes", "2"]):
        result = run("play", "--trust", "run", *options)
        assert result.exit_code == 2
        assert "--seed" in result.output


# --- what must be installed ----------------------------------------------------------------------


def absent(*packages):
    real = extras.import_module

    def import_module(name):
        if name.partition(".")[0] in packages:
            package = name.partition(".")[0]
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name)

    return import_module


@pytest.mark.parametrize("package", ["gymnasium", "stable_baselines3", "sb3_contrib"])
@pytest.mark.parametrize("command", ["train-agent", "play"])
def test_without_the_extra_the_commands_name_it(tmp_path, monkeypatch, package, command):
    pytest.importorskip("stable_baselines3")
    monkeypatch.setattr(extras, "import_module", absent(package))
    monkeypatch.chdir(tmp_path)
    result = train() if command == "train-agent" else run("play", "--trust", "run")
    message = refused(result)
    assert message.startswith(f"skuq {command}: {package} is needed for this and is not installed")
    assert message.endswith("pip install 'skuq[rl]'")
    assert list(tmp_path.iterdir()) == []


def test_without_pillow_a_gif_is_refused_and_playing_is_not(run_folder, monkeypatch, rl):
    monkeypatch.setattr(extras, "import_module", absent("PIL"))
    message = refused(run("play", "--trust", run_folder, "--gif", "film.gif"))
    assert message.startswith("--gif: PIL is needed for this and is not installed")
    assert message.endswith("pip install 'skuq[plot]'")
    assert run("play", "--trust", run_folder).exit_code == 0
