"""Run the Python blocks of every page of the documentation, page by page, as a reader would.

    python docs/run_code.py                # all pages
    python docs/run_code.py guide/audit    # one

Blocks of a page share their names, and files are written to a temporary folder. Examples with
``>>>`` have to print what stands below them. A block that only shows a form, with names that stand
for the reader's own, is ``.. code-block:: python`` with the option ``:class: form`` and is only
compiled.
"""

import doctest
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

HERE = Path(__file__).parent
BLOCK = re.compile(
    r"^( *)\.\. code-block:: python\n((?:\1 +:.*\n)*)\n((?:\1 +.*\n|\s*\n)+)", re.MULTILINE
)


def blocks(page: str) -> list[tuple[int, str, bool]]:
    """Yield the first line and code of each block, and whether to run it."""
    found = []
    for match in BLOCK.finditer(page):
        line = page[: match.start(3)].count("\n") + 1
        found.append((line, textwrap.dedent(match[3]), ":class: form" not in match[2]))
    return found


def script(path: Path) -> str:
    """Join the blocks to run into one program with the line numbers of the page."""
    lines: list[str] = []
    for line, code, runs in blocks(path.read_text(encoding="utf-8")):
        compile(code, f"{path}:{line}", "exec")
        if runs:
            lines += [""] * (line - 1 - len(lines)) + code.splitlines()
    return "\n".join(lines) + "\n"


def run(path: Path) -> bool:
    """Run the program of a page in a separate process and temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, path.stem + ".py")
        program.write_text(script(path), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-W", "ignore", program.name],
            cwd=folder,
            env={**os.environ, "MPLBACKEND": "agg"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        print(f"{path}:\n{done.stderr[-1500:]}")
    return done.returncode == 0


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
        if not run(page) or examples.failed:
            failed.append(str(page.relative_to(HERE)))
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
