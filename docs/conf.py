"""The site of these pages: Sphinx, Markdown by MyST. `make docs` builds it; a warning fails it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyspark_jetstream import __version__

project = "pyspark-jetstream"
author = "the authors of pyspark-jetstream"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

myst_heading_anchors = 4  # as on a forge: [text](page.md#heading)
myst_enable_extensions = ["colon_fence"]

# Docstrings are Markdown by habit: one backtick is code.
default_role = "code"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 120
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"pyspark-jetstream {version}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
copybutton_prompt_text = "$ "


def as_drawn(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """The tree of errors is drawn, not written: it stays as it is."""
    if what == "module":
        first = next((at for at, line in enumerate(lines) if line.startswith("    ")), None)
        if first is not None:
            lines[first:first] = ["::", ""]


def setup(app: Sphinx) -> None:
    """What no extension has: configuration of nats-server, and the tree of errors."""
    app.add_lexer("conf", TextLexer)
    app.connect("autodoc-process-docstring", as_drawn)
