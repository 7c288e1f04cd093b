"""The site of these pages: Sphinx, Markdown by MyST. `make docs` builds it; a warning fails it."""

from __future__ import annotations

import re
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

answers = {
    "alerts": "guides/operating#Alerts",
    "avro": "guides/formats#Avro",
    "backpressure": "guides/pressure",
    "certificates": "guides/login#TLS with a certificate",
    "databricks": "start/install#Databricks",
    "increase partitions": "guides/partitions#Increase partitions",
    "kubernetes": "start/install#Kubernetes",
    "lag": "guides/operating#Lag",
    "monitor": "guides/operating",
    "notebooks": "start/install#Notebooks",
    "password": "guides/login#User and password",
    "pause": "guides/throttle",
    "prometheus": "guides/operating#Alerts",
    "throttle": "guides/throttle",
    "tls": "guides/login#TLS with a certificate",
    "upgrade": "guides/deployment#Upgrade",
    "windows": "examples#Averages by minute",
}
"""What readers search for (the longer form), and the page that the search must show first, with the
beginning of the heading to which the reader comes."""


def as_drawn(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """The tree of errors is drawn, not written: it stays as it is."""
    if what == "module":
        first = next((at for at, line in enumerate(lines) if line.startswith("    ")), None)
        if first is not None:
            lines[first:first] = ["::", ""]


def indexed(app: Sphinx, page: str, source: list[str]) -> None:
    """
    Each page is the main entry of the index for what it answers: the search has that first. The
    comments, which the tests read, are left out.
    """
    source[0] = re.sub(r"(?ms)^<!--.*?-->$", "", source[0])
    for place in dict.fromkeys(answers.values()):
        of, _, heading = place.partition("#")
        if of == page:
            words = ", ".join(f"! {query}" for query, answer in answers.items() if answer == place)
            found = re.search(rf"(?m)^##+ {heading}" if heading else "", source[0])
            assert found is not None, place
            there = found.start()
            entry = f"\n```{{index}} {words}\n```\n\n"
            source[0] = source[0][:there] + entry + source[0][there:]


def setup(app: Sphinx) -> None:
    """What no extension has: configuration of nats-server, and the tree of errors."""
    app.add_lexer("conf", TextLexer)
    app.connect("source-read", indexed)
    app.connect("autodoc-process-docstring", as_drawn)
