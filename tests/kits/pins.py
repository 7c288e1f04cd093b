"""What tests about seats share: pulls by hand, and a query in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from functools import partial
from types import SimpleNamespace

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client, Connection

from .options import connection_of
from .reading import Query, queries


class Puller:
    """A client that pulls by hand."""

    def __init__(self, server, stream, consumer, group="spark", **login) -> None:
        self.client = Client(connection_of(server.url, **login))
        self.connection: Connection = self.client.connection
        self.inbox = self.connection.new_inbox()
        self.connection.subscribe(self.inbox)
        self.group = group
        self.subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self.pin = ""

    def pull(self, batch=1, expires_s=20.0, **fields) -> None:
        """Sends a pull, without the pin's id unless `id` is given; it is there a little later."""
        body = {"batch": batch, "expires": round(expires_s * 1e9), "group": self.group} | fields
        self.connection.send(wire.pub(self.subject, json.dumps(body).encode(), self.inbox))

    def next(self, timeout_s=60.0) -> None:
        """Waits for the next thing that it is sent."""
        frame = self.connection.next_frame(time.monotonic() + timeout_s)
        assert frame is not None, "nothing came"
        self.pin = dict(wire.parse_headers(frame.headers)).get("Nats-Pin-Id", self.pin)

    def close(self) -> None:
        self.client.close()


_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.kits.pins"])  # what follows costs no import


def _serve(pipe, url, start, options) -> None:
    query = Query(SimpleNamespace(url=url), start, **options)
    while True:
        method, arguments = pipe.recv()
        error, found = None, None
        try:
            found = getattr(query, method)(*arguments)
        except Exception as raised:
            error = raised
        pipe.send((error, found, query.at, query.sequences))


class QueryProcess:
    """A query in a process of its own, which can be killed, and stand still for a while."""

    def __init__(self, server, start=None, **options) -> None:
        self._pipe, its = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=_serve, args=(its, server.url, start, options))
        self._process.start()
        self.at = start
        self.sequences: list[int] = []

    def _call(self, method, *arguments):
        self._pipe.send((method, arguments))
        assert self._pipe.poll(100), f"no answer to {method}"
        error, found, self.at, self.sequences = self._pipe.recv()
        if error is not None:
            raise error
        return found

    def __getattr__(self, method):
        """As `Query`: `ask`, `batch`, `settle`, `standby`."""
        return partial(self._call, method)

    def kill(self) -> None:
        """Nothing is given back, nothing is renewed."""
        self._process.kill()
        self._process.join()

    def freeze(self) -> None:
        """No thread of it goes on, until `thaw`."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ends in good order, if it has not ended."""
        if self._process.is_alive():
            self._call("stop")
            self.kill()


apart = queries(QueryProcess)
"""In processes of their own."""
