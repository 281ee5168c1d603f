"""Run the code of every page of the documentation, page by page, as a reader would.

    python docs/run_code.py                # all pages
    python docs/run_code.py guide/audit    # one

Python blocks of a page share their names, and files are written to a temporary folder. Examples
with ``>>>`` have to print what stands below them. Three options of ``.. code-block:: python`` or
``.. code-block:: sh``:

``:class: form``
    The block shows a form, with names that stand for the reader's own. It is only compiled.
``:caption: score.py``
    The block is the content of that file, and is written to it. Nothing is run.
``:class: run``
    The commands are run by bash, which stops at the first that fails. Other ``sh`` blocks are only
    shown.

A block of ``text`` with ``:class: output`` is what the block above it prints. "..." stands for any
text, and spaces and ends of lines are all alike.
"""

import doctest
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
BLOCK = re.compile(
    r"^( *)\.\. code-block:: (python|sh|text)\n((?:\1 +:.*\n)*)\n((?:\1 +.*\n|\s*\n)+)",
    re.MULTILINE,
)
OPTION = re.compile(r":(\w+): *(.*)")
BEGIN = "\x00line "  # printed before a block runs, with the number of its line
LENIENT = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


class Block(NamedTuple):
    """A block of a page: its first line, its content, and the output that the page shows below."""

    line: int
    language: str
    text: str
    options: dict[str, str]
    output: str | None = None

    @property
    def runs(self) -> bool:
        """Whether the block is part of the page's program."""
        kind = self.options.get("class")
        return kind != "form" if self.language == "python" else kind == "run"


def blocks(page: str) -> list[Block]:
    """All blocks of code, each with the output below it."""
    found: list[Block] = []
    for match in BLOCK.finditer(page):
        line = page[: match.start(4)].count("\n") + 1
        text, options = textwrap.dedent(match[4]), dict(OPTION.findall(match[3]))
        if match[2] != "text":
            found.append(Block(line, match[2], text, options))
        elif options.get("class") == "output":
            found[-1] = found[-1]._replace(output=text)
    return found


def script(path: Path) -> str:
    """Join the blocks to run into one program with the line numbers of the page."""
    lines: list[str] = []
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language == "python":
            compile(block.text, f"{path}:{block.line}", "exec")
        if not block.runs:
            continue
        lines += [""] * (block.line - 2 - len(lines)) + [f"print({BEGIN + str(block.line)!r})"]
        if "caption" in block.options:
            file = f"__import__('pathlib').Path({block.options['caption']!r})"
            lines.append(f"{file}.write_text({block.text!r}, encoding='utf-8')")
        elif block.language == "sh":
            command = ["bash", "-ec", block.text]
            lines.append(f"__import__('subprocess').run({command!r}, check=True, stderr=1)")
        else:
            lines += block.text.splitlines()
    return "\n".join(lines) + "\n"


def run(path: Path) -> str:
    """Run a page's program in a process and a folder of its own. Returns what went wrong."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as own:
        program = Path(own, path.stem + ".py")
        program.write_text(script(path), encoding="utf-8")
        scripts = str(Path(sys.executable).parent)  # the commands that belong to this Python
        search = os.pathsep.join([scripts, os.environ.get("PATH", "")])
        # The page's files can be imported, as where a reader starts Python in that folder.
        modules = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-u", "-W", "ignore", str(program)],
            cwd=folder,
            env={**os.environ, "MPLBACKEND": "agg", "PATH": search, "PYTHONPATH": modules},
            capture_output=True,
            text=True,
        )
    printed = dict(part.split("\n", 1) for part in done.stdout.split(BEGIN)[1:])
    for block in blocks(path.read_text(encoding="utf-8")):
        got = printed.get(str(block.line))
        if got is None or block.output is None:
            continue
        if not doctest.OutputChecker().check_output(block.output, got, LENIENT):
            return f"{path}:{block.line}: expected\n{block.output}\nand got\n{got}\n{done.stderr}"
    return f"{path}:\n{done.stdout[-1500:]}{done.stderr[-1500:]}" if done.returncode else ""


def main() -> None:
    names = sys.argv[1:] or [str(p.relative_to(HERE)) for p in sorted(HERE.glob("**/*.rst"))]
    pages = [HERE / name if name.endswith(".rst") else HERE / f"{name}.rst" for name in names]
    failed = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if not (blocks(text) or ">>> " in text):
            continue
        print(page.relative_to(HERE), flush=True)
        examples = doctest.testfile(
            str(page),
            module_relative=False,
            optionflags=doctest.NORMALIZE_WHITESPACE,
            encoding="utf-8",
        )
        wrong = run(page)
        if wrong:
            print(wrong)
        if wrong or examples.failed:
            failed.append(str(page.relative_to(HERE)))
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
