"""
Claims for the next batch, made while one runs.

A thread with a connection of its own in the source process. What it claims is in no log yet: if the
process dies it returns to the other readers after the ack wait, as claims do that a plan makes and
does not record. Until then it is kept alive like any other claim.

Who claims ahead keeps messages from readers that may be idle. So it is one batch at the most, and
half of what nobody has claimed; and what is not used in time is given back (NAK), so that nobody
waits for it while a batch takes long. Whether one is likely to, `member` judges.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Set
from typing import Final

from ...client.connection import Client
from ...client.options import ConnectionOptions
from ...errors import JetStreamError
from ...sanitize import get_logger
from .acks import Heartbeats, give_back, keep
from .claimant import Claimant
from .claims import Claim, SharedConsumer

logger = get_logger(__name__)

_STOP_S: Final = 5.0
"""Time for which the end of a run waits for a claim that is being made."""


class Ahead:
    """Claims of one query for its next batch."""

    def __init__(
        self, options: ConnectionOptions, claimant: Claimant, heartbeats: Heartbeats, keep_s: float
    ) -> None:
        """
        Args:
            claimant: the driver's, joined.
            keep_s: after which claims are given back that are not taken.
        """
        self._client = Client(options)
        self._of = claimant
        self._claimant = claimant.on_client(self._client)
        self._heartbeats = heartbeats
        self.keep_s = keep_s
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._claimed: Mapping[str, list[Claim]] = {}
        self._ours: Mapping[SharedConsumer, Set[int]] = {}
        self._kept = time.monotonic()
        """Time when the claims were confirmed for the first time."""

    def __repr__(self) -> str:
        return f"<Ahead {sum(map(len, self._claimed.values()))} claims>"

    def start(self, limit: int) -> None:
        """Claims up to `limit` messages meanwhile; what `start` claimed before has been taken."""
        self._wanted.clear()
        self._claimant.set_consumers(self._of.consumers)
        # Before the batch that is acknowledged meanwhile is: of it, too, nothing is claimed again.
        self._ours = self._heartbeats.held()
        self._thread = threading.Thread(
            target=self._run, args=(limit,), name="jetstream-claims", daemon=True
        )
        self._thread.start()

    def take(self, timeout_s: float | None = None) -> Mapping[str, list[Claim]]:
        """
        Claims since `start`, by partition, as soon as they are there; nothing where they were given
        back, nor without `start`, nor where it takes longer than `timeout_s`, nor of a process that
        stood still for so long that somebody else may have them.
        """
        if self._thread is None:
            return {}
        with self._lock:
            self._wanted.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return {}
        self._thread = None
        claimed, self._claimed = self._claimed, {}
        if self._late():
            self._give_back(claimed)
            return {}
        return claimed

    def close(self) -> None:
        """Gives back what is not taken."""
        try:
            self._give_back(self.take(_STOP_S))
        finally:
            self._client.close()

    def _run(self, limit: int) -> None:
        try:
            self._claim(min(limit, self._half()))
        except Exception as error:  # the next plan asks as well, and says so if it lasts
            logger.info(
                "nothing claimed ahead: %r", error, exc_info=not isinstance(error, JetStreamError)
            )
        if not self._wanted.wait(self.keep_s):
            with self._lock:
                if not self._wanted.is_set():
                    claimed, self._claimed = self._claimed, {}
                    self._give_back(claimed)

    def _half(self) -> int:
        """Half of what may be claimed now: of what nobody has claimed, and of `maxAckPending`."""
        infos = self._claimant.infos().values()
        waiting = sum(info.num_pending for info in infos)
        most = [int(info.config.get("max_ack_pending") or 0) for info in infos]
        if min(most, default=0) <= 0:  # a consumer without a limit
            return waiting // 2
        room = sum(most) - sum(info.num_ack_pending for info in infos)
        return max(0, min(waiting, room)) // 2

    def _claim(self, limit: int) -> None:
        claimed = self._claimant.claim(limit, 0)
        self._kept = time.monotonic()
        self._claimed = keep(self._client, self._claimant, claimed, self._heartbeats, self._ours)

    def _give_back(self, claimed: Mapping[str, list[Claim]]) -> None:
        """Returns claims; those that cannot be given back return after their ack wait."""
        late = self._late()
        of = {
            consumer: [claim.sequence for claim in claimed.get(consumer.partition, ())]
            for consumer in self._claimant.consumers
        }
        for consumer, sequences in of.items():
            self._heartbeats.release(consumer, sequences)
        for consumer, sequences in of.items():
            if late or not sequences:  # late: somebody else may have them by now
                continue
            delivery = self._claimant.last.delivered.get(consumer.partition, 1)
            delay_s = self._claimant.nak_delay_s
            try:
                give_back(self._client, consumer, sequences, delivery, delay_s)
            except JetStreamError as error:
                logger.info(
                    "stream=%s consumer=%s: %d claims return after their ack wait: %r",
                    consumer.stream, consumer.name, len(sequences), error,
                )  # fmt: skip

    def _late(self) -> bool:
        """
        Whether somebody else may have the claims by now. By the clock as well: in a process that
        stood still the heartbeats may be the first to go on, and the server confirms any.
        """
        unsure_s = max(self._heartbeats.overdue_s, time.monotonic() - self._kept)
        return unsure_s > self._claimant.ack_wait_s / 2
