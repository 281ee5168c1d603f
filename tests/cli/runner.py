"""How tests call the command, and what they expect of a refusal."""

from click.testing import CliRunner

from skuq.cli._main import main


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(result, folder, before):
    """The message of a refusal, which is one line; nothing was written."""
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert files(folder) == before
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


def absent(name):
    raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
