"""What tests about seats share: a pull by hand, and a query in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial
from types import SimpleNamespace

from pyspark_jetstream.client import wire

from .reading import Query, queries


def pull(connection, stream, consumer) -> str:
    """Sends a pull by hand, without a pin's id; where it is answered."""
    connection.subscribe(inbox := connection.new_inbox())
    body = b'{"batch": 1, "expires": 20000000000, "group": "spark"}'
    connection.send(wire.pub(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", body, inbox))
    return inbox


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
