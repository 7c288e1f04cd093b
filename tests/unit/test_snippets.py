"""The examples of README and docs can be read by who runs them, and each is run or says why not."""

import json
import re
import subprocess

from ..kits.places import ROOT
from ..tools.snippets import OUTPUT, PAGES, RUN, snippets

EXAMPLES = [snippet for page in PAGES for snippet in snippets(page)]


def test_an_example_is_run_or_says_why_not():
    """A block of code is run, shown, saved, or says why not, and a test named there exists."""
    for snippet in EXAMPLES:
        known = snippet.language in (*RUN, OUTPUT, "text") or snippet.file
        assert known, f"{snippet}: a block of code without a language"
        for test in re.findall(r"tests/[\w/]+\.py", snippet.reason):
            assert (ROOT / test).is_file(), f"{snippet}: {test}"


def test_an_example_is_of_its_language():
    """Also such as are not run."""
    for snippet in EXAMPLES:
        if snippet.language == "python":
            compile(snippet.text, str(snippet), "exec")
        elif snippet.language == "json":
            assert json.loads(snippet.text) is not None, snippet
        elif snippet.language == "bash":
            checked = subprocess.run(
                ["bash", "-n"], input=snippet.text, capture_output=True, text=True, timeout=60
            )
            assert checked.returncode == 0, f"{snippet}: {checked.stderr}"
