"""
Messages that are delivered again and again: made dead letters, then terminated.

The server's own `max_deliver` stops delivering and leaves the message where it is, with an advisory
that nobody may hear. Here the dead letter has its PubAck before the message is terminated. If the
query dies between the two, the next one to claim the message publishes the dead letter with the
same id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ... import subjects
from ...client import wire
from ...client.connection import Client
from ...client.info import StreamInfo
from ...client.jetstream import JetStream
from ...errors import OptionError, RowError
from ...fetch.layout import Layout
from ...outbox import deadletters
from ...outbox.lettersubjects import SUBJECT
from ...sanitize import get_logger
from .acks import TERM, ack
from .claims import Claim, SharedConsumer

logger = get_logger(__name__)

_TOGETHER: Final = 100
"""Messages fetched in one round trip."""

_SAMPLES: Final = 64
"""Subjects of dead letters that are looked up before the query starts, at most."""


class Poison:
    """`maxDeliver` and `deadLetterSubject` of one query."""

    def __init__(self, client: Client, max_deliver: int, template: str) -> None:
        self.stored = 0
        """Dead letters so far, in this run."""
        self._client = client
        self._js = JetStream(client)
        self._max_deliver = max_deliver
        self._template = template

    def check(self, layout: Layout, infos: Mapping[str, StreamInfo]) -> None:
        """
        Checks that dead letters have a stream which the query does not read: for one subject of
        each filter, or of each that a stream takes.

        Raises:
            OptionError: They do not.
        """
        samples = {
            self._template.replace(SUBJECT, _sample(subject))
            for partition in layout
            for subject in _subjects(partition.filter, infos[partition.stream])
        }
        for sample in sorted(samples)[:_SAMPLES]:
            stream = self._js.stream_of(sample)
            if stream is None:
                raise OptionError(
                    "deadLetterSubject", f"no stream takes '{sample}'; make one for dead letters"
                )
            for partition in layout:
                if partition.stream == stream and (
                    partition.filter is None or subjects.matcher(partition.filter)(sample)
                ):
                    raise OptionError(
                        "deadLetterSubject",
                        f"'{sample}' is in stream '{stream}', which this query reads: dead letters"
                        " would come back",
                    )

    def divert(
        self, claims: Mapping[int, list[Claim]], consumers: Sequence[SharedConsumer]
    ) -> dict[int, list[Claim]]:
        """
        Makes dead letters of claims that were delivered too often; the other claims.

        Raises:
            ApiError: The stream of dead letters refuses one; the message stays claimed.
            RowError: A dead letter's subject is none, or it is larger than the server takes.
        """
        kept = {}
        for partition, claimed in claims.items():
            overdelivered = [claim for claim in claimed if claim.deliveries > self._max_deliver]
            for at in range(0, len(overdelivered), _TOGETHER):
                self._store_dead_letters(consumers[partition], overdelivered[at : at + _TOGETHER])
            gone = {claim.sequence for claim in overdelivered}
            kept[partition] = [claim for claim in claimed if claim.sequence not in gone]
        return kept

    def _store_dead_letters(self, consumer: SharedConsumer, overdelivered: list[Claim]) -> None:
        sequences = [claim.sequence for claim in overdelivered]
        messages = self._js.messages(consumer.stream, [{"seq": sequence} for sequence in sequences])
        for claim, message in zip(overdelivered, messages, strict=True):
            if message is None:  # gone meanwhile, by a limit of the stream
                continue
            to, headers = deadletters.letter(
                self._template,
                message.subject,
                message.headers,
                f"MaxDeliver: delivered {claim.deliveries} times by consumer '{consumer.name}'",
                f"{consumer.stream}-{claim.sequence}{deadletters.SUFFIX}",
            )
            maximum = self._client.connection.max_payload
            size = len(wire.header_block(headers)) + len(message.data)
            if size > maximum:
                raise RowError(
                    message.subject,
                    f"message {claim.sequence} of stream '{consumer.stream}' cannot be a dead"
                    f" letter: with its headers it has {size} bytes, more than the server's"
                    f" max_payload of {maximum}; raise that, or remove the message",
                )
            self._js.publish(to, message.data, headers)
            self.stored += 1
            logger.warning(
                "stream=%s: message %d was delivered %d times and never acknowledged, so it is a"
                " dead letter now, on subject '%s'. No query gets it again",
                consumer.stream, claim.sequence, claim.deliveries, to,
            )  # fmt: skip
        ack(self._client, consumer, sequences, TERM)


def _subjects(filter_: str | None, info: StreamInfo) -> list[str]:
    """Subjects of a partition's messages; a mirror, for one, does not name them."""
    if filter_ is not None:
        return [filter_]
    return list(info.config.get("subjects") or ["x"])


def _sample(subject: str) -> str:
    """A subject that matches."""
    return ".".join("x" if word in ("*", ">") else word for word in subject.split("."))
