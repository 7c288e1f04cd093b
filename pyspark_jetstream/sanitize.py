"""
Foreign text made safe to show: no control characters for a terminal, none of our secrets.

What comes from a server, or out of a stored message, may hold anything: an ESC, a line end, the
CONNECT that the server was greeted with. `sanitized` is the one border to people. Errors pass it
when they are rendered (`errors`), records of the log when they are made (`get_logger`), and
programs print by `operations.screen` alone.

A secret is masked by its value once a server was told it (`conceal`), and by its shape: the secret
members of a CONNECT, a user JWT, an nkey seed, what stands before the @ of a URL. What a server
makes unreadable, it hides from this border as well: that is for TLS to prevent, which proves who it
is.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Final

_MASK: Final = "***"

_SHAPES: Final = (
    # A member of a CONNECT, also in text that is quoted once more, or cut off within the value.
    r"""(?ix) (?P<before> \\* (["']) (?:pass|password|auth_token|token|jwt|sig|nkey|seed) \\* \2
    \s* : \s* \\* \2) (?: (?! \2) [^\\] | \\. )+""",
    r"(?P<before>)\beyJ[\w-]{8,}(?:\.[\w-]*)*",
    r"(?P<before>)\bS[ACNOPUX][A-Z2-7]{54,}",
    r"(?P<before>://)[^@/\s]+(?=@)",
)
"""Compiled where something is said first: most processes say nothing."""

_LEAST: Final = 4
"""A shorter value is no secret, and would be found in every other sentence."""

_SURE: Final = 8
"""
A value of so many characters is masked, unless it is a part of a longer word and may be a word
itself. A shorter one that may be a word is as good as none: `spark` stands in every other sentence.
Of a value twice as long so many characters are enough: who repeats it may have cut it off.
"""

_concealed: dict[str, str] = {}
"""Patterns of the secrets that this process has told servers."""

_values: re.Pattern[str] | None = None


def conceal(secret: str) -> None:
    """From now on it is masked by its value, in this process."""
    global _values
    if secret not in _concealed:
        _concealed[secret] = _pattern(secret)
        patterns = sorted(filter(None, _concealed.values()), key=len, reverse=True)
        _values = re.compile("|".join(patterns)) if patterns else None


def _pattern(secret: str) -> str:
    """
    For the secret as it is, as JSON has it, and either as Python shows text and bytes; "" where it
    cannot be told from other words.
    """
    if len(secret) < _LEAST or (len(secret) < _SURE and secret.isalpha()):
        return ""
    forms = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    for form in tuple(forms):
        forms |= {repr(form)[1:-1], repr(form.encode("utf-8", "replace"))[2:-1]}
    words = [re.escape(form) for form in sorted(forms, key=len, reverse=True)]
    if len(secret) >= 2 * _SURE:
        words += [rf"{re.escape(form[:_SURE])}[^\s\"']*" for form in forms]
    if len(secret) >= _SURE and not secret.isalpha():
        return "|".join(words)
    return rf"(?<!\w)(?:{'|'.join(words)})(?!\w)"


def sanitized(text: str) -> str:
    """One line of the text that may be shown. What has passed once passes unchanged again."""
    if _values is not None:
        text = _values.sub(_MASK, text)
    for shape in _SHAPES:
        text = re.sub(shape, rf"\g<before>{_MASK}", text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class _Sanitizing(logging.Filter):
    """Takes no record out; what it says has passed the border."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:  # a line of the log ends no query
            text = f"{record.msg} {record.args}"
        record.msg, record.args = sanitized(text), ()
        if record.exc_info and record.exc_info[1] is not None:
            trace = logging.Formatter().formatException(record.exc_info)
            record.exc_text = "\n".join(map(sanitized, trace.split("\n")))
        return True


_FILTER: Final = _Sanitizing()


def get_logger(name: str) -> logging.Logger:
    """The logger of a module: as `logging.getLogger`, and all that it says is sanitized."""
    logger = logging.getLogger(name)
    logger.addFilter(_FILTER)
    return logger
