"""
A process beside the driver that sends parked rows while no batch comes.

Spark asks the driver's side of a write for commits alone: a query without new rows has none, and
the Python process that makes them ends when it has been idle for a minute. So a commit that leaves
rows parked starts this one, which tries once a second and ends when none are left. It belongs to
the process group of Spark's Python daemon, which ends all of it with the driver (SIGHUP); where the
daemon was killed, it ends by itself. Rows stay parked then, until the query commits another batch.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from typing import Final

from ..errors import JetStreamError, WriterFencedError
from ..logs import log_for
from ..publish.options import SinkOptions
from ..sanitize import get_logger
from .parked import drain

__all__ = ["keep_draining"]

logger = get_logger(__name__)

_EACH_S: Final = 1.0

_DRAINERS: Final[dict[str, subprocess.Popen[bytes]]] = {}
"""By query, the process that this one has started last."""


def keep_draining(options: SinkOptions, query: str) -> None:
    """Has parked rows of the query sent as soon as they may go, where Spark has its daemon."""
    last = _DRAINERS.get(query)
    if (last is not None and last.poll() is None) or "pyspark.daemon" not in _started_as():
        return
    try:
        process = _DRAINERS[query] = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        if process.stdin is not None:
            with process.stdin as stdin:
                stdin.write(pickle.dumps((options, query)))
    except OSError as error:
        logger.warning("query=%s: rows stay parked until the next batch: %s", query, error)
        return
    logger.info("query=%s: process %d sends what is parked", query, process.pid)


def _started_as() -> str:
    """The module that this process was started with; only the daemon has a process group."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return str(spec.name) if spec is not None else ""


def main() -> None:
    """Drains until nothing is left, or Spark's daemon is gone."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    options, query = pickle.load(sys.stdin.buffer)
    log_for(options.connection.log_level, options.metrics.query_name or query)
    daemon = os.getpgrp()
    while True:
        try:
            if not drain(options, query) and not drain(options, query):
                return  # the first one looked at what was parked when it began
        except WriterFencedError as error:
            logger.info("query=%s: %s", query, error)
        except JetStreamError as error:
            logger.warning("query=%s: parked rows are not sent: %s", query, error)
            if not error.retryable:
                return  # the next commit fails with it
        time.sleep(_EACH_S)
        try:
            os.kill(daemon, 0)
        except ProcessLookupError:
            return


if __name__ == "__main__":
    main()
