"""What is said of the documentation to those who have the package alone."""

import ast

from .test_layers import HOUSE


def docstrings(tree):
    """The lines of the docstrings that no user sees; a program shows its module's."""
    return {node.value.lineno for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def test_no_text_names_a_file_of_the_documentation():
    """Who has the wheel has no docs/."""
    for module in HOUSE:
        tree = ast.parse(HOUSE[module].read_text(encoding="utf-8"))
        unseen = docstrings(tree)
        texts = [node for node in ast.walk(tree)
                 if isinstance(node, ast.Constant) and isinstance(node.value, str)]  # fmt: skip
        seen = [node.value for node in texts if node.lineno not in unseen]

        assert [text for text in seen if "docs/" in text and "'docs/'" not in text] == [], module
