"""
Failures of a backfill: one line each, and the exit status that goes with it.

Neither Spark nor Py4J is imported here, for the programs that need neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark_jetstream.errors import OptionError

_OURS: Final = re.compile(r"pyspark_jetstream\.errors\.(\w+): (.+)")
"""One of the package's errors in the text of a Spark exception, which is all that is left of it."""


class BackfillError(Exception):
    """The work failed; what is done stays done."""


class StorageError(BackfillError):
    """A file or directory could not be read or changed, or it is not known whether it was."""


class UsageError(BackfillError):
    """The arguments are wrong; nothing was done."""


@contextmanager
def from_spark() -> Iterator[None]:
    """Errors of Spark in one line: that of the error of ours that caused it, where one did."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = _text(error)
        ours = _OURS.findall(text)
        kind, line = ours[-1] if ours else ("", text.strip().partition("\n")[0].strip())
        mistake = kind == OptionError.__name__
        raise (UsageError if mistake else BackfillError)(line.strip()) from error


@contextmanager
def from_java(what: str) -> Iterator[None]:
    """Errors of the JVM's file systems, in one line."""
    from py4j.protocol import Py4JError

    try:
        yield
    except Py4JError as error:
        raise StorageError(f"{what}: {_text(error).splitlines()[0]}") from error


def _text(error: Exception) -> str:
    from py4j.protocol import Py4JJavaError

    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString())
    return str(error) or type(error).__name__
