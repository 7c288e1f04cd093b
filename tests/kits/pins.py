"""
What tests about pins share: advisories, pulls by hand, a query's driver as Spark calls it, and the
same in a process of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from types import SimpleNamespace

from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client, Connection
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.readstream.reader import StreamReader

from .options import connection_of


class Puller:
    """A client that pulls by hand; `trace` is what it sent and was sent, in order."""

    def __init__(self, server, stream, consumer, group="spark", **login) -> None:
        self.client = Client(connection_of(server.url, **login))
        self.connection: Connection = self.client.connection
        self.inbox = self.connection.new_inbox()
        self.connection.subscribe(self.inbox)
        self.group = group
        self.subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self.pin = ""
        self.trace: list[tuple[str, object, str]] = []

    def pull(self, batch=1, expires_s=20.0, **fields) -> None:
        """Sends a pull, without the pin's id unless `id` is given; it is there a little later."""
        body = {"batch": batch, "expires": round(expires_s * 1e9), "group": self.group} | fields
        self.trace.append(("pull", batch, fields.get("id", "")))
        self.connection.send(wire.pub(self.subject, json.dumps(body).encode(), self.inbox))

    def next(self, timeout_s=60.0) -> tuple[int, str, dict[str, str], bytes]:
        """The next thing it is sent: status code and text, headers, payload."""
        frame = self.connection.next_frame(time.monotonic() + timeout_s)
        assert frame is not None, "nothing came"
        code, text = wire.status_of(frame.headers)
        headers = dict(wire.parse_headers(frame.headers))
        self.pin = headers.get("Nats-Pin-Id", self.pin)
        got = (f"{code} {text}" if code else frame.data.decode(), headers.get("Nats-Pin-Id", ""))
        if code != 100:
            self.trace.append(("got", *got))
        return code, text, headers, frame.data

    def nothing(self, for_s=0.3) -> bool:
        """Whether nothing comes for a while."""
        return self.connection.next_frame(time.monotonic() + for_s) is None

    def close(self) -> None:
        self.client.close()


class Query:
    """The driver's half of a query over one checkpoint, and its tasks, run after each other."""

    def __init__(self, server, start=None, **options) -> None:
        texts = {name: str(value) for name, value in options.items()}
        self.reader = StreamReader(parse_stream({"servers": server.url} | texts))
        self.at = start or self.reader.initialOffset()
        self.sequences: list[int] = []
        self.rows: list[tuple[str, int]] = []
        """Stream and sequence of each row."""

    def places(self) -> list[tuple[str, int]]:
        """Stream and sequence of each row so far."""
        return self.rows

    def plan(self):
        """The next batch's end and tasks."""
        end = json.loads(json.dumps(self.reader.latestOffset(self.at, ReadAllAvailable())))
        return end, self.reader.partitions(self.at, end)

    def batch(self) -> list[int]:
        """Runs one batch; its sequences."""
        end, tasks = self.plan()
        rows = [
            (row["stream"], row["sequence"])
            for task in tasks
            for batch in self.reader.read(task)
            for row in batch.select(["stream", "sequence"]).to_pylist()
        ]
        found = [sequence for _, sequence in rows]
        self.at = end
        self.rows += rows
        self.sequences += found
        return found

    def commit(self) -> None:
        """As Spark, when it has checkpointed the last batch."""
        self.reader.commit(self.at)

    def progress(self, partition=0) -> dict:
        return json.loads(json.dumps(self.reader.reportLatestOffset()))[str(partition)]

    def standby(self) -> dict:
        """Who reads, as the progress says it."""
        return json.loads(json.dumps(self.reader.reportLatestOffset()))["standby"]

    def stop(self) -> None:
        self.reader.stop()


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

    def plan(self):
        """As `Query`, here and below."""
        return self._call("plan")

    def batch(self) -> list[int]:
        return self._call("batch")

    def places(self) -> list[tuple[str, int]]:
        return self._call("places")

    def commit(self) -> None:
        self._call("commit")

    def progress(self, partition=0) -> dict:
        return self._call("progress", partition)

    def standby(self) -> dict:
        return self._call("standby")

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
