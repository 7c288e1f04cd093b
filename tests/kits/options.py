"""What the tests of options share: options of one kind, their errors, a secret."""

from __future__ import annotations

from dataclasses import fields as fields_of
from dataclasses import replace

import pytest

from pyspark_jetstream.client.options import ConnectionOptions, Tls, parse_connection
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import check_reads, parse_read, parse_sink, parse_stream
from pyspark_jetstream.outbox.admission import Rules
from pyspark_jetstream.outbox.priority import Priorities
from pyspark_jetstream.outbox.targets import Targets
from pyspark_jetstream.publish.settings import SinkOptions

SECRET = "hunter2-unmistakable"
FIXED = {"min_in_flight": 1 << 20}
"""Makes a window always as large as `max_in_flight`."""
PARSERS = {"stream": parse_stream, "range": parse_read, "sink": parse_sink}


def parse(kind, options):
    """The options of one kind, of a `streaming` write or of a `load`; reads get a stream."""
    if kind == "streaming":
        return parse_sink(options, streaming=True)
    if kind == "load":
        return check_reads(options)
    named = {name.lower() for name in options} & {"stream", "streampattern", "bucket"}
    return PARSERS[kind](options if kind == "sink" or named else {"stream": "S"} | options)


def refused(kind, options) -> OptionError:
    """The error these options end in."""
    with pytest.raises(OptionError) as caught:
        parse(kind, options)
    return caught.value


def connection_of(*servers, **fields) -> ConnectionOptions:
    """A connection to these servers; fields of its TLS begin with `tls_`."""
    names = {f"tls_{each.name}": each.name for each in fields_of(Tls)}
    tls = {names[name]: fields.pop(name) for name in [*fields] if name in names}
    made = parse_connection({})
    return replace(made, servers=servers, tls=replace(made.tls, **tls), **fields)


def sink_of(connection, **fields) -> SinkOptions:
    """A batch write."""
    return changed(parse_sink({}), connection=connection, **fields)


def changed(options: SinkOptions, **fields) -> SinkOptions:
    """These options with other fields, those of rows, the window and metrics among them."""
    for part in ("rows", "window", "metrics"):
        value = fields.pop(part, getattr(options, part))
        own = [each.name for each in fields_of(value) if each.name in fields]
        fields[part] = replace(value, **{name: fields.pop(name) for name in own})
    return replace(options, **fields)


def rules_of(**fields) -> Rules:
    """What a write allows."""
    return replace(parse_sink({}).rules, **fields)


def priorities_of(**fields) -> Priorities:
    """How urgent the rows of a write are."""
    return replace(parse_sink({}).priorities, **fields)


def targets_of(find) -> Targets:
    """The streams that this function gives for subjects, one by one."""
    return Targets(lambda subjects: [find(subject) for subject in subjects])


BELOW = {"own": "0", "auto": "5000", "direct": "999999999"}
"""`directBelow` by the way in which short ranges of a `limits` stream are read."""
