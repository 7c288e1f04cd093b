"""What a program tells its user: the texts of warnings, errors of the log, answers and mistakes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

_LOGGED: Final = {"warning": 0, "error": 0, "exception": 0, "critical": 0, "log": 1}
"""Methods of a logger that are heard by default, and which argument is the text."""

_SAYING: Final = ("say", "complain")
_FORMAT: Final = re.compile(r"%[-+#0 ,]*[\d.*]*[a-zA-Z]")


def told(source: str) -> Iterator[tuple[int, str]]:
    """The line of each call that tells something, with each of its texts; a value is the word x."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call):
            for argument, is_format in _telling(call):
                for text in _literals(argument):
                    yield call.lineno, _FORMAT.sub("x", text) if is_format else text


def _telling(call: ast.Call) -> Iterator[tuple[ast.expr, bool]]:
    """The arguments with texts, and whether they are formats of a log."""
    function = call.func
    if isinstance(function, ast.Name) and function.id in _SAYING:
        yield from ((argument, False) for argument in call.args)
    elif isinstance(function, ast.Attribute):
        owner = ast.unparse(function.value).rpartition(".")[2]
        if owner == "logger" and function.attr in _LOGGED:
            at = _LOGGED[function.attr]
            yield from ((argument, True) for argument in call.args[at : at + 1])
        elif owner == "parser" and function.attr in ("error", "complain"):
            yield from ((argument, False) for argument in call.args)


def _literals(node: ast.expr) -> Iterator[str]:
    """Texts in an expression: of either branch, and of each element."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x"
                          for part in parts)  # fmt: skip
        case ast.IfExp(body=first, orelse=second) | ast.BinOp(left=first, right=second):
            yield from _literals(first)
            yield from _literals(second)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            for element in elements:
                yield from _literals(element)
        case ast.Starred(value=of) | ast.GeneratorExp(elt=of) | ast.ListComp(elt=of):
            yield from _literals(of)
