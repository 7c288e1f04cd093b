"""What a backfill fails with: one line each, and the exit status that goes with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from pyspark_jetstream.errors import JetStreamError, OptionError

__all__ = [
    "ERRORS",
    "FAILED",
    "USAGE",
    "BackfillError",
    "StorageError",
    "UsageError",
    "from_java",
    "one_line",
    "status",
]

FAILED: Final = 1
USAGE: Final = 2

_OURS: Final = re.compile(r"pyspark_jetstream\.errors\.(\w+): (.+)")
"""One of the package's errors in the text of a Spark exception, which is all that is left of it."""


class BackfillError(Exception):
    """The work failed; what is done stays done."""


class StorageError(BackfillError):
    """A file or directory could not be read or changed, or it is not known whether it was."""


class UsageError(BackfillError):
    """The arguments are wrong; nothing was done."""


ERRORS: Final = (BackfillError, JetStreamError, PySparkException, Py4JError)
"""All that a backfill may fail with; anything else is a mistake in it."""


def status(error: Exception) -> int:
    """The exit status an error stands for."""
    if isinstance(error, (UsageError, OptionError)):
        return USAGE
    ours = _OURS.findall(str(error)) if isinstance(error, (PySparkException, Py4JError)) else []
    return USAGE if ours and ours[-1][0] == OptionError.__name__ else FAILED


def one_line(error: Exception) -> str:
    """What to tell of an error; of Spark's, the error of ours that caused it, where one did."""
    if isinstance(error, (BackfillError, JetStreamError)):
        return str(error)
    text = _text(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def from_java(what: str) -> Iterator[None]:
    """Errors of the JVM's file systems, in one line."""
    try:
        yield
    except Py4JError as error:
        raise StorageError(f"{what}: {_text(error).splitlines()[0]}") from error


def _text(error: Exception) -> str:
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString())
    return str(error) or type(error).__name__
