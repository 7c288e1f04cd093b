"""
The table of all options, and options as users write them made typed values.

Rule 1: an option belongs to the wing that gives it its meaning, and its name is a string only in
that wing's `options` (and `publish.pressure`). Everyone else receives the frozen dataclasses.
Rule 2: a mistake is an `OptionError` that names the option, the value (never a secret's) and what
was expected; it is raised where the options are parsed, which is on the driver.

Names, defaults and sentences are those of the tables in docs/reference/options.md, which
`python -m tests.kits.optiontables` writes; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .client.options import CONNECTION_OPTIONS
from .errors import OptionError
from .fetch.options import READ_OPTIONS
from .option import Option, typed
from .publish.options import SINK_OPTIONS, SinkOptions, sink_options
from .read.options import (
    BATCH_OPTIONS,
    BucketOptions,
    CallOptions,
    RangeOptions,
    SnapshotOptions,
    read_options,
)
from .readstream.options import STREAM_OPTIONS, SourceOptions, source_options

__all__ = ["OPTIONS", "check_reads", "parse_read", "parse_sink", "parse_stream"]

OPTIONS: Final[tuple[Option, ...]] = (
    *CONNECTION_OPTIONS,
    *READ_OPTIONS,
    *BATCH_OPTIONS,
    *STREAM_OPTIONS,
    *SINK_OPTIONS,
)
"""Every option this version supports."""


def parse_stream(options: Mapping[str, str]) -> SourceOptions:
    """
    Options of `spark.readStream`.

    Raises:
        OptionError: The first mistake found.
    """
    return source_options(typed(options, "stream", OPTIONS))


def parse_read(
    options: Mapping[str, str],
) -> RangeOptions | SnapshotOptions | BucketOptions | CallOptions:
    """
    Options of `spark.read`.

    Raises:
        OptionError: The first mistake found.
    """
    return read_options(typed(options, "range", OPTIONS))


def check_reads(options: Mapping[str, str]) -> None:
    """
    Accepts options that are those of one of the reads, `spark.readStream` or `spark.read`: where
    `load()` asks for the columns, Spark does not say which it is.

    Raises:
        OptionError: They are neither's. An option that only one of them has says which is meant.
    """
    try:
        parse_read(options)
        return
    except OptionError as error:
        of_read = error
    try:
        parse_stream(options)
    except OptionError as of_stream:
        given = {name.lower() for name in options}
        own = {option.name.lower() for option in OPTIONS if option.kinds == {"stream"}}
        raise (of_stream if given & own else of_read) from None


def parse_sink(options: Mapping[str, str], streaming: bool = False) -> SinkOptions:
    """
    Options of `df.write` and, when `streaming`, of `df.writeStream`.

    Raises:
        OptionError: The first mistake found.
    """
    return sink_options(typed(options, "sink", OPTIONS), streaming)
