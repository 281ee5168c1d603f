"""The directive ``command-help``, which includes the help page of a command."""

from click.testing import CliRunner
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from skuq.cli import main


class CommandHelp(Directive):
    """``.. command-help:: audit verify`` shows ``skuq audit verify --help``."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the help in a literal block."""
        arguments = [*" ".join(self.arguments).split(), "--help"]
        shown = CliRunner().invoke(main, arguments, prog_name="skuq", terminal_width=78)
        if shown.exit_code != 0:
            raise self.error(shown.output)
        text = shown.output.rstrip()
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
