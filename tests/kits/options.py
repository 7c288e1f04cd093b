"""What the tests of options share: options of one kind, their errors, a secret."""

from __future__ import annotations

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import parse_read, parse_sink, parse_stream

SECRET = "hunter2-unmistakable"
PARSERS = {"stream": parse_stream, "range": parse_read, "sink": parse_sink}


def parse(kind, options):
    """The options of one kind; reads get a stream when they name none."""
    needed = (
        {} if kind == "sink" or any(k.lower() == "stream" for k in options) else {"stream": "S"}
    )
    return PARSERS[kind](needed | options)


def refused(kind, options) -> OptionError:
    """The error these options end in."""
    with pytest.raises(OptionError) as caught:
        parse(kind, options)
    return caught.value
