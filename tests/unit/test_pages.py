"""What is said of the documentation to those who have the package alone."""

import ast

from pyspark_jetstream import errors

from ..kits.places import ROOT
from .test_layers import HOUSE

DENIED = errors.PermissionsError('Permissions Violation for Publish to "a"')


def docstrings(tree):
    """The lines of the docstrings that no user sees; a program shows its module's."""
    return {node.value.lineno for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def test_no_text_names_a_file_of_the_documentation():
    """Who has the wheel has no docs/; a page is named by its address, and exists."""
    for module in HOUSE:
        tree = ast.parse(HOUSE[module].read_text(encoding="utf-8"))
        unseen = docstrings(tree)
        texts = [node for node in ast.walk(tree)
                 if isinstance(node, ast.Constant) and isinstance(node.value, str)]  # fmt: skip
        seen = [node.value for node in texts if node.lineno not in unseen]
        named = [
            node.args[0].value for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "further"
        ]  # fmt: skip

        assert [text for text in seen if "docs/" in text and "'docs/'" not in text] == [], module
        assert all((ROOT / "docs" / f"{page}.md").is_file() for page in named), module


def test_an_error_has_the_address_of_its_page_where_there_is_one(monkeypatch):
    """A release sets the address once; without it the sentence ends before it."""
    assert str(DENIED).endswith("; check the name in this subject, or grant it to this user")
    monkeypatch.setattr(errors, "DOCUMENTATION", "https://docs.example.org/v1")
    assert str(DENIED).endswith(
        " grant it to this user (see https://docs.example.org/v1/guides/login.html)"
    )
