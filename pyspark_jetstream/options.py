"""
The table of all options, and the parser that makes a user's options typed values.

Rule 1: an option belongs to the wing that gives it its meaning, and its name is a string only in
that wing's `options`. Everyone else receives the frozen dataclasses.
Rule 2: a mistake is an `OptionError` that names the option, the value (never a secret's) and what
was expected; it is raised where the options are parsed, which is on the driver.

Names, defaults and sentences are those of the tables in docs/reference/options.md, which
`python -m tests.tools.optiontables` writes; a test compares the two.

Each process of a query reads its options, and the tables of the other wings take longer to import
than that: of a read with nothing wrong, the rows of its kind are all that is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING

from .client.options import CONNECTION_OPTIONS, METRICS_OPTIONS
from .errors import OptionError
from .fetch.options import READ_OPTIONS
from .option import Option, Others, typed
from .readstream.options import STREAM_OPTIONS, SourceOptions, source_options

if TYPE_CHECKING:
    from .publish.settings import SinkOptions
    from .read.options import CallOptions, RangeOptions, SnapshotOptions

    Reads = RangeOptions | SnapshotOptions | CallOptions


@cache
def all_options() -> tuple[Option, ...]:
    """Every option this version supports."""
    from .publish.options import SINK_OPTIONS
    from .read.options import BATCH_OPTIONS

    return (
        *CONNECTION_OPTIONS,
        *READ_OPTIONS,
        *BATCH_OPTIONS,
        *STREAM_OPTIONS,
        *SINK_OPTIONS,
        *METRICS_OPTIONS,
    )


def parse_stream(options: Mapping[str, str], others: Others = all_options) -> SourceOptions:
    """
    Options of `spark.readStream`.

    Raises:
        OptionError: What is wrong with names and values, else what does not go together.
    """
    rows = (*CONNECTION_OPTIONS, *READ_OPTIONS, *STREAM_OPTIONS, *METRICS_OPTIONS)
    return source_options(typed(options, "stream", rows, others))


def parse_read(options: Mapping[str, str], others: Others = all_options) -> Reads:
    """
    Options of `spark.read`.

    Raises:
        OptionError: What is wrong with names and values, else what does not go together.
    """
    from .read.options import BATCH_OPTIONS, read_options

    rows = (*CONNECTION_OPTIONS, *READ_OPTIONS, *BATCH_OPTIONS)
    return read_options(typed(options, "range", rows, others))


def check_reads(options: Mapping[str, str]) -> None:
    """
    Accepts options that are those of one of the reads, `spark.readStream` or `spark.read`: where
    `load()` asks for the columns, Spark does not say which it is.

    Raises:
        OptionError: They are neither's. An option that only streams have says which is meant.
    """
    quick = partial(parse_stream, others=tuple), partial(parse_read, others=tuple)
    if not all(_mistake(parse, options) for parse in quick):
        return
    of_stream, of_range = _mistake(parse_stream, options), _mistake(parse_read, options)
    assert of_stream is not None and of_range is not None
    names = {option.name.lower() for option in all_options() if option.kinds == {"stream"}}
    raise of_stream if any(name.lower() in names for name in options) else of_range


def _mistake(
    parse: Callable[[Mapping[str, str]], object], options: Mapping[str, str]
) -> OptionError | None:
    try:
        parse(options)
    except OptionError as mistake:
        return mistake
    return None


def parse_sink(options: Mapping[str, str], streaming: bool = False) -> SinkOptions:
    """
    Options of `df.write` and, when `streaming`, of `df.writeStream`.

    Raises:
        OptionError: What is wrong with names and values, else what does not go together.
    """
    from .publish.options import sink_options

    return sink_options(typed(options, "sink", all_options()), streaming)
