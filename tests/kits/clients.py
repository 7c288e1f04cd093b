"""Clients of a test's own: a request, a refused one, a server with streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import pytest

from pyspark_jetstream.client.connection import Client, _idle
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import ConnectionOptions
from pyspark_jetstream.errors import JetStreamError

from .options import SECRET, connection_of
from .servers import DevServer

PLAIN: Mapping[str, Mapping[str, Any]] = {"S": {}}


def options(*servers, **changes) -> ConnectionOptions:
    defaults = {"request_timeout_s": 20.0, "connect_timeout_s": 5.0}
    return connection_of(*servers, **defaults | changes)


@contextmanager
def serving(
    config: str = "", streams: Mapping[str, Mapping[str, Any]] = PLAIN, **fields: Any
) -> Iterator[tuple[DevServer, JetStream]]:
    """A server of a test's own with these streams, and a client with these fields on it."""
    with DevServer(config) as server, closing(Client(connection_of(server.url, **fields))) as own:
        js = JetStream(own)
        for name, more in streams.items():
            js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True} | more)
        yield server, js


def close_idle() -> None:
    """What reads and writes of this thread have left open for the next ones."""
    while _idle.clients:
        _idle.clients.popitem()[1].close()


def account_info(opts) -> dict:
    """One JetStream request over a client of its own."""
    with closing(Client(opts)) as client:
        return json.loads(client.request("$JS.API.INFO").data)


def refused(opts) -> JetStreamError:
    """The error that a first request ends in; never with the secret in it."""
    client = Client(opts)
    with pytest.raises(JetStreamError) as caught:
        client.request("$JS.API.INFO")
    client.close()
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r} {error.args}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return caught.value
