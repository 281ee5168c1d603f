"""Options, messages and files that the commands of proven audits share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from skuq.cli._files import READABLE, WRITABLE, InputError, refusing_writes
from skuq.cli._main import NO_VERDICT, one_line, say, visible

if TYPE_CHECKING:
    from skuq.zk import Commitment
    from skuq.zk._reference_string import Trust

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
NEW_FOLDER = click.Path(file_okay=False, path_type=Path)
SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def commitment_option(text: str) -> Wrap:
    """Option for the folder of a commitment."""
    return click.option("--commitment", type=FOLDER, required=True, help=text)


audit_option = click.option(
    "--audit", "bundle", type=FOLDER, required=True, help="The provider's folder."
)
data_option = click.option(
    "--data", type=READABLE, required=True, help="CSV file: reference data with their labels."
)
label_option = click.option("--label", required=True, help="Its column with the true label.")
drop_option = click.option("--drop", multiple=True, help="Column to leave out; may be repeated.")
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
keys_option = click.option(
    "--keys",
    type=NEW_FOLDER,
    help="Your own folder for verifying keys, built once.  [default: built anew]",
)
srs_option = click.option(
    "--srs",
    type=READABLE,
    help="Your own copy of the structured reference string.  [default: it must be that of the "
    "public ceremony]",
)
test_string_option = click.option(
    "--test-string",
    "allow_test_string",
    is_flag=True,
    help="Accept any reference string, for tests: whoever generated it could forge proofs.",
)
input_option = click.option(
    "--input", "row", type=READABLE, help="CSV file with a header and one row."
)
values_option = click.option("--values", help="Or its numbers, separated by commas.")
nonce_option = click.option(
    "--nonce", required=True, help="Text that the client chose for this one prediction."
)
false_share_option = click.option(
    "--false-share",
    type=SHARE,
    default=0.02,
    show_default=True,
    help="Fraction of false reports that must be found, at level 'predictions'.",
)
error_option = click.option(
    "--error",
    type=SHARE,
    default=0.01,
    show_default=True,
    help="Largest probability to miss it, at level 'predictions'.",
)
json_option = click.option("--json", "json_path", type=WRITABLE, help="JSON file to write.")


class Probability(click.ParamType):  # type: ignore[type-arg]  # click < 8.4 has no argument
    """A probability, or a word that stands for something else."""

    name = "float range"

    def __init__(self, **words: str | None):
        self._words = words

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str | None:
        if value in self._words:
            return self._words[value]
        return SHARE.convert(value, param, ctx)


class VerificationFailed(click.ClickException):
    """Failed verification of another party's files: one line that says why."""

    exit_code = NO_VERDICT

    def show(self, file: IO[Any] | None = None) -> None:
        say(f"Verification failed: {self.message}", err=True)


@contextmanager
def errors_in_one_line(json_path: Path | None = None) -> Iterator[None]:
    """Turn what is wrong with files, arguments or the installation into one line.

    A result of an earlier call is removed first: whatever happens, it is not that of this one.
    """
    try:
        if json_path is not None:
            json_path.unlink(missing_ok=True)
        from skuq.zk import VerificationError

        try:
            yield
        except VerificationError as failure:
            reason = one_line(failure)
            if json_path is not None:
                write_json(json_path, {"verification_error": reason})
            raise VerificationFailed(reason) from failure
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        raise InputError(visible(one_line(error))) from error


def require_zk() -> None:
    """Refuse to work without the proof system."""
    from skuq.extras import import_optional

    try:
        for module in ("ezkl", "onnx"):
            import_optional(module, extra="zk")
    except ImportError as error:
        raise InputError(one_line(error)) from error


def say_reference_string(trust: Trust) -> None:
    """Print why the reference string may be trusted, or that it may not."""
    from skuq.zk._reference_string import DESCRIPTIONS

    colour = "red" if trust == "test" else None
    say(f"Reference string: {DESCRIPTIONS[trust]}.", bold=trust == "test", fg=colour)


def names_of(committed: Commitment) -> dict[str, str]:
    """Both names of a commitment, as the JSON files of the commands have them."""
    return {"commitment_point": committed.point, "commitment_digest": committed.digest}


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON file, or say in one line why not."""
    from skuq.zk import _files

    with refusing_writes():
        _files.write_json(path, record)
