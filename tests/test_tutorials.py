"""Tutorials, and the README, run in an empty folder; tutorials print what the pages show."""

import re
import shutil
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "docs"))

import run_code

FOLDER = Path(run_code.__file__).parent / "tutorials"
EXTRAS = {  # modules that a page needs beyond the core, with the extra that brings each
    "analyst": {"matplotlib": "plot", "skops": "skops"},
    "auditor": {"matplotlib": "plot", "ezkl": "zk", "onnx": "zk", "skops": "skops"},
    "graph_researcher": {"torch_geometric": "test"},
    "ml_engineer": {},
    "rl_user": {"stable_baselines3": "rl", "sb3_contrib": "rl"},
}
WORDS = 1500  # code included: ten minutes at 150 words a minute


def test_every_tutorial_is_run_and_read_in_ten_minutes():
    assert {path.stem for path in FOLDER.glob("*.rst")} == {*EXTRAS, "index"}
    words = {name: len((FOLDER / f"{name}.rst").read_text("utf-8").split()) for name in EXTRAS}
    assert max(words.values()) <= WORDS, words


@pytest.mark.thorough  # the documentation runs them as well
@pytest.mark.parametrize("name", EXTRAS)
def test_a_tutorial_runs_and_prints_what_it_shows(name):
    for module, extra in EXTRAS[name].items():
        if find_spec(module) is None:
            pytest.skip(f"needs {module}, of extra {extra!r}")
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    wrong = run_code.run(FOLDER / f"{name}.rst")
    assert not wrong, wrong


def test_the_quick_starts_of_the_readme_run(tmp_path):
    text = (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    page = tmp_path / "readme.rst"
    blocks = [f".. code-block:: python\n\n{textwrap.indent(each, '   ')}\n" for each in blocks]
    page.write_text("".join(blocks), encoding="utf-8")
    wrong = run_code.run(page)
    assert not wrong, wrong


PAGE = """
.. code-block:: python

   value = 6

.. code-block:: python
   :caption: half.py

   print("half a dozen is", 3)

.. code-block:: sh

   exit 1  # only shown

.. code-block:: sh
   :class: run

   python half.py && echo "{}" >&2

.. code-block:: text
   :class: output

   half a dozen ... 3
   done

.. code-block:: python

   print(value)

.. code-block:: text
   :class: output

   6
"""


CODE = ".. code-block:: "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PAGE.format("done"), ()),
        (PAGE.format("broken"), ("expected", "broken")),
        (f"{CODE}python\n\n   raise KeyError('stop')\n", ["KeyError: 'stop'"]),
        (f"{CODE}sh\n   :class: run\n\n   false\n   true\n", ["CalledProcessError"]),
    ],
)
def test_blocks_run_in_turn_outputs_are_compared_and_failures_are_told(tmp_path, text, words):
    page = tmp_path / "page.rst"
    page.write_text(text, encoding="utf-8")
    wrong = run_code.run(page)
    assert all(word in wrong for word in words)
    assert bool(wrong) == bool(words)
