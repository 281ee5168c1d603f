"""Configuration of the documentation: ``sphinx-build -W -b html docs docs/_build/html``."""

import os
import re
import sys

# Examples run during the build: one thread each, whatever the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib
from docutils.nodes import Element, SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

import skuq

matplotlib.use("agg")

project = "skuq"
author = "the skuq developers"
copyright = "the skuq developers"
release = version = skuq.__version__

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]  # the directives, and the benchmarks they read
extensions = [
    "command_help",
    "measured_table",
    "pythons_table",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "examples", "images"]
templates_path = ["_templates"]
default_role = "py:obj"  # `name` in a docstring is a link where there is something to link to
nitpicky = False

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc sections state the types
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "image_scrapers": ("gallery_figures.described",),
    "filename_pattern": r"plot_\d\d_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "capture_repr": (),  # a page shows what its script prints and draws
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 3600,  # seconds; the time on one machine says little about another
    "thumbnail_size": (400, 280),
}

toc_object_entries = False
html_theme = "pydata_sphinx_theme"
html_title = f"skuq {release}"
html_static_path = ["_static"]
html_css_files = ["skuq.css"]
html_js_files = [("skuq.js", {"defer": "defer"})]
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"install": [], "architecture": []}
html_theme_options = {
    "logo": {"text": "skuq"},
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "navigation_depth": 2,
    "show_nav_level": 1,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
html_math_renderer = "mathml"


def _skip_member(app, what, name, obj, skip, options):
    """Skip generated members: fields of tuples and of classes with slots, metadata routing."""
    if type(obj).__name__ in ("_tuplegetter", "member_descriptor"):
        return True
    if name.startswith("set_") and name.endswith("_request"):
        return True
    return None


def _inline_math(translator, node: Element) -> None:
    translator.body.append(tex2mathml(node.astext()))
    raise SkipNode


def _block_math(translator, node: Element) -> None:
    number = node.get("number")
    label = f'<span class="eqno">({number})</span>' if number else ""
    formula = tex2mathml(node.astext(), as_block=True)
    start = translator.starttag(node, "div", CLASS="math")  # with the anchor that references name
    translator.body.append(f"{start}{label}{formula}</div>\n")
    raise SkipNode


def _scopes(app, pagename, templatename, context, doctree) -> None:
    """Tell screen readers which cells a heading of a table belongs to."""
    body = re.sub(
        r'<th class="([^"]*\bstub\b)', r'<th scope="row" class="\1', context.get("body", "")
    )
    context["body"] = body.replace('<th class="', '<th scope="col" class="')


def setup(app: Sphinx) -> None:
    """MathML needs neither a network nor LaTeX: every current browser draws it."""
    app.connect("html-page-context", _scopes)
    app.add_html_math_renderer("mathml", (_inline_math, None), (_block_math, None))
    app.connect("autodoc-skip-member", _skip_member)
