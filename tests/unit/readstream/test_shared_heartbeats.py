"""The thread that keeps claims alive, and says that the query is there."""

from __future__ import annotations

import threading

from pyspark_jetstream.readstream.shared.acks import Heartbeats

from ...kits.options import connection_of


class Notice:
    """A query's notice, which is due often."""

    every_s = 0.01

    def __init__(self) -> None:
        self.renewed = threading.Semaphore(0)

    def beat(self, client) -> None:
        self.renewed.release()


def test_a_notice_is_renewed_as_often_as_it_is_due():
    """
    However long the ack wait of the consumer is, by which claims need a heartbeat.
    """
    notice = Notice()
    heartbeats = Heartbeats(connection_of("nats://127.0.0.1"), 4 * 3600.0, notice)
    try:
        assert all(notice.renewed.acquire(timeout=60) for _ in range(3))
    finally:
        heartbeats.close()
