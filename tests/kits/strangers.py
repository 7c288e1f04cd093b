"""What strangers write where people will see it, and how to tell that it has not come through."""

from __future__ import annotations

EVIL = "\x1b]0;pwned\x07\x1b[2J\x00\x7f\x9b31m\u202eevil\u2066\u2029\r\nline\ud800"
"""Text that steers a terminal, turns the reading direction, ends lines, and has no encoding."""


def assert_plain(text: str, lines: bool = False) -> None:
    """Nothing in it steers a terminal; `lines` may end in it where a program ends them."""
    for line in text.split("\n") if lines else [text]:
        assert line.isprintable(), repr(line)
