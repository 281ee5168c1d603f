"""The ``skuq`` command: a thin layer over the package, one module for each larger command.

Commands are imported when they are called. Exit codes: 0 success, 2 unusable input or usage (the
message gives the reason), 1 any other error, and from 10 on the verdicts of ``skuq audit`` and
``skuq quantify``. A crash cannot produce a verdict: Python then exits with 1, 120, or at least 128.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from skuq import __version__
from skuq.cli._io import NEW_FOLDER, option, require_plots, say
from skuq.imports import shown

PASSED, NO_VERDICT, FAILED, INCONCLUSIVE = 0, 2, 10, 12
GUESSING = 11  # exit code if the model is not better than a constant prediction

COMMANDS = {  # module and short help of each command; the function has the command's name
    "audit": ("_audit", "Audit reported confidence against true labels."),
    "certify": ("_certify", "Prove how far table rows can change without changing class."),
    "demo": ("_main", "Detect inputs of a digit classifier that are not digits."),
    "estimators": ("_main", "List the installed estimators, third-party plugins included."),
    "quantify": ("_quantify", "Quantify the uncertainty of predictions for a table."),
}


class LazyGroup(click.Group):
    """A group that lists its commands without importing them."""

    def __init__(
        self, *args: Any, commands_at: Mapping[str, tuple[str, str]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.commands_at = dict(commands_at)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; if the import fails, the other commands still work."""
        if cmd_name not in self.commands_at:
            return None
        module = f"skuq.cli.{self.commands_at[cmd_name][0]}"
        try:
            command: click.Command = getattr(import_module(module), cmd_name)
        except Exception as error:  # a broken installation can raise any exception
            raise click.ClickException(
                f"The command {cmd_name!r} cannot be loaded: {type(error).__name__}: {shown(error)}"
            ) from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            rows = [(name, text) for name, (_, text) in sorted(self.commands_at.items())]
            formatter.write_dl(rows)


@click.group(
    cls=LazyGroup, commands_at=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="skuq")
def main() -> None:
    """Honest uncertainty for scikit-learn models."""


@click.command()
@option(
    "--check", "Import each estimator; print its summary, or why the import fails.", is_flag=True
)
def estimators(check: bool) -> None:
    """List the installed estimators, third-party plugins included."""
    from skuq.imports import discover, registered

    plugins = discover() if check else registered()
    width = max(len(plugin.name) for plugin in plugins)
    for plugin in plugins:
        if plugin.error is not None:
            say(f"{plugin.name:{width}}  broken: {plugin.error}", fg="red")
        else:
            doc = plugin.estimator.__doc__ if check else plugin.target
            summary = (doc or "").strip().splitlines() or [""]
            say(f"{plugin.name:{width}}  {summary[0]}  [{plugin.distribution}]")
    if not check:
        say("These estimators were not imported; --check tests which of them work here.")


@click.command()
@option(
    "--out",
    "Folder for the report and the table; created if it does not exist.",
    NEW_FOLDER,
    Path("skuq-demo"),
)
@option("--jobs", "Processes; -1 uses all cores.", int, -1)
def demo(out: Path, jobs: int) -> None:
    """Detect inputs of a digit classifier that are not digits."""
    require_plots("skuq demo")
    out.mkdir(parents=True, exist_ok=True)
    from skuq.cli._demo import run_digits_demo, write_digits_demo

    say("This takes about a minute on two cores.")
    say("Training a digit classifier and searching for adversarial models ...")
    result = run_digits_demo(n_jobs=jobs, random_state=0, verbose=1)
    say(f"Accuracy on test digits: {result.accuracy:.3f}")
    say("AUROC of out-of-distribution detection:")
    say(*result.detection.to_string(float_format="%.3f").splitlines())
    report, table = write_digits_demo(result, out)
    say(f"Report: {report}", f"Table:  {table}")
    say("An AUROC of 1 is perfect, and 0.5 is chance. No method is best on all data:")
    say("docs/guide/which_estimator.rst states what each method is for.")


def exit_with_verdict(ctx: click.Context, passes: Callable[[], bool | None]) -> NoReturn:
    """Exit with the code of the verdict that `passes` returns; None is inconclusive."""
    try:
        passed = passes()
    except SystemExit as error:  # the exit code of this exception is not a verdict
        raise RuntimeError(
            f"The command ended before its verdict, with exit code {error.code!r}."
        ) from error
    ctx.exit(INCONCLUSIVE if passed is None else PASSED if passed else FAILED)
