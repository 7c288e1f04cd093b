"""
A process beside the driver that sends parked rows while no batch comes.

Spark asks the driver's side of a write for commits alone: a query without new rows has none, and
the Python process that makes them ends when it has been idle for a minute. So a commit that leaves
rows parked starts this one, which tries once a second and ends when none are left. It belongs to
the process group of Spark's Python daemon, which ends all of it with the driver (SIGHUP); where the
daemon was killed, it ends by itself. Rows stay parked then, until the query commits another batch.

A commit starts none while the one that its process has started lives. That one says ahead of its
last look that it ends: it closes its standard output. Another Python process that commits starts
another one, and the one before ends then (a record in the ledger).
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from ..errors import JetStreamError, WriterFencedError
from ..logs import log_for
from ..publish.options import SinkOptions
from ..sanitize import get_logger
from .parked import drain

logger = get_logger(__name__)

_EACH_S: Final = 1.0
_STDOUT: Final = 1

_DRAINERS: Final[dict[str, subprocess.Popen[bytes]]] = {}
"""By query, the process that this one has started last."""


def keep_draining(options: SinkOptions, query: str) -> None:
    """Has parked rows of the query sent as soon as they may go, where Spark has its daemon."""
    last = _DRAINERS.get(query)
    if (last is not None and _goes_on(last)) or "pyspark.daemon" not in _started_as():
        return
    try:
        process = _DRAINERS[query] = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        if process.stdin is not None:
            with process.stdin as stdin:
                stdin.write(pickle.dumps((options, query)))
    except OSError as error:
        logger.warning(
            "query=%s: rows stay parked until the next batch, because the process that sends them"
            " did not start: %s", query, error,
        )  # fmt: skip
        return
    logger.info("query=%s: process %d sends what is parked", query, process.pid)


def _goes_on(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process that this one has started will look once more."""
    if process.stdout is None or process.stdout.closed:
        return False
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    if not poll.poll(0):
        return True
    process.stdout.close()
    return False


def _started_as() -> str:
    """The module that this process was started with; only the daemon has a process group."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return str(spec.name) if spec is not None else ""


def main() -> None:
    """Sends what is parked, as whoever starts this says."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    options, query = pickle.load(sys.stdin.buffer)
    log_for(options.connection.log_level, options.metrics.query_name or query)
    send_all(options, query, os.getpgrp(), _say_the_end)


def _say_the_end() -> None:
    """From now on a commit starts another process."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _STDOUT)
    os.close(null)


def send_all(
    options: SinkOptions, query: str, daemon: int, say_the_end: Callable[[], None]
) -> None:
    """
    Drains until nothing is left, another process does, or Spark's daemon is gone.

    Args:
        daemon: the process id of Spark's daemon.
        say_the_end: is called ahead of the look after which nothing is left.
    """
    name, is_new = os.urandom(6).hex(), True
    while True:
        try:
            left = drain(options, query, process=name, is_new=is_new)
            if not left:  # of what was parked when it began
                say_the_end()
                left = drain(options, query, process=name, is_new=is_new)
            if not left:
                return
            is_new = False
        except WriterFencedError as error:
            logger.info("query=%s: %s", query, error)
        except JetStreamError as error:
            logger.warning(
                "query=%s: parked rows could not be sent, and stay parked %s: %s", query,
                f"for {_EACH_S:g} s more" if error.retryable else "until the next batch", error,
            )  # fmt: skip
            if not error.retryable:
                return  # the next commit fails with it
        time.sleep(_EACH_S)
        try:
            os.kill(daemon, 0)
        except ProcessLookupError:
            return


if __name__ == "__main__":
    main()
