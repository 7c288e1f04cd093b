"""
Reading one partition of one batch through its pinned consumer.

The consumer is the partition's fence (ADR-42, `pinned_client`): an attempt takes the pin from
whoever holds it, puts the consumer where the batch starts, and pulls. Where the pin is that of the
query's attempt before, nobody pulls, and the consumer stands there already, a task's first attempt
goes on under it. What makes an attempt's rows exactly the messages of its range, whoever else
pulls:

* every message carries the pin id it was delivered under; another id than ours is not our turn;
* the server counts deliveries (dseq), and starts at 1 after a reset: a gap means that somebody
  else received a message in between;
* each attempt has its own inbox, so nothing of an earlier one can reach it.

An attempt that was superseded ends with `ConsumerFencedError`; where the query's driver, which
hears of every attempt's pin, knows nothing of the one that is pinned, with `ForeignClientError`. A
broken connection, a lost pin or
a deleted consumer is repaired from the last row handed on, until `requestTimeout` has passed
without a message.

Somebody else may edit the consumer (`nats consumer edit`). The next pull obeys, and no message says
so. So its configuration is compared when it is taken over, in the answer that is awaited anyway,
and again after a read that looks as if it had changed since: rows with empty payloads, on other
subjects, or fewer or more of them than were counted. By then it may have been set back. So what it
delivered is compared with what the stream holds, too: subjects with the filter, empty payloads with
those that are stored, a count that is too low with another one (`check_loss`). A paused consumer
(`nats consumer pause`) is waited for.
"""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any, Final

from ...client import wire
from ...client.blocks import pinned
from ...client.connection import Client
from ...client.info import ConsumerInfo
from ...client.jetstream import JetStream
from ...client.patience import Patience
from ...errors import (
    ApiError,
    ConsumerEditedError,
    ConsumerFencedError,
    ConsumerNotFoundError,
    DataLossError,
    ForeignClientError,
    JetStreamError,
    ReadError,
)
from ...sanitize import get_logger
from ...worker import is_another_attempt, query_name
from ..assumptions import edit_of, resumed_by
from ..dataloss import report_loss
from ..durable import consumer_config, edited
from ..owner import ANNOUNCED_WITHIN_S, STRANGER
from .pulls import HEARTBEAT_S, PULL_EXPIRES_S, Signs, Status, Superseded, Taken

if TYPE_CHECKING:
    from ..consumer import ConsumerRead

logger = get_logger(__name__)

_FIRST_PULL_EXPIRES_S: Final = 3.0
"""
Lifetime of a pull without a pin id. It must have ended before the next session unpins: the server
would give the pin to a pull that nobody listens to any more, and to the next one again.
"""

_PULLS_A_PIN: Final = 3
"""
Only a new pull with the pin's id keeps the pin, so a pull ends after a third of `priority_timeout`
at the latest, and the next one is on its way long before the pin ends.
"""

_ANSWERS_S: Final = 2.0
"""Time-out of the question whose a pin is, to the query's driver."""

_ASKS_EVERY_S: Final = 0.1
"""Interval of that question."""

_PAUSED_LOOK_S: Final = 1.0
"""Interval of looks at a paused consumer."""

_SKIPPABLE: Final = 1_000
"""A consumer at most so many sequences before the start is not reset: what it skips is read."""

_COMPARED: Final = 64
"""Messages without payload that are compared at one time."""


def _is_at(info: ConsumerInfo, last: int) -> bool:
    """Whether a consumer delivers what follows `last` without a reset."""
    return last - _SKIPPABLE <= info.stream_seq <= last


class Pinned:
    """An attempt's hold of the consumer of its partition: the pin (`pulls.Hold`)."""

    def __init__(self, client: Client, read: ConsumerRead) -> None:
        self.consumer = read.consumer
        self._client = client
        self._read = read
        self._pin = ""
        self._pin_before = read.pin
        """A pin that may still be the query's."""

    def __repr__(self) -> str:
        return f"<Pinned to {self.consumer}, by id {self._pin!r}>"

    @property
    def is_ours(self) -> bool:
        """Whether we are pinned."""
        return bool(self._pin)

    @property
    def _js(self) -> JetStream:
        return JetStream(self._client)

    # ── whether it is as it was made ─────────────────────────────────────────────────────────

    def check_edited(self, signs: Signs, rows: int) -> None:
        """
        Looks once more at the consumer, if what it delivered looks as if it had been edited.

        Raises:
            ConsumerEditedError: It was.
        """
        if signs or rows != self._read.expected:
            self._check_config()
        self._check_set_back(signs)

    def _check_config(self, info: ConsumerInfo | None = None) -> None:
        """
        Args:
            info: the consumer now; without, it is looked at.

        Raises:
            ConsumerEditedError: It is not as it was made.
        """
        read = self._read
        if info is None:
            (info,) = self._js.consumer_infos([(read.stream, read.consumer)])
        change = edit_of(consumer_config(read), info)
        if change is not None:
            raise edited(read, change)

    def _check_set_back(self, signs: Signs) -> None:
        """
        Compares what a consumer delivered that looks as it was made with what the stream holds.

        Raises:
            ConsumerEditedError: It was another one for a while.
        """
        read, empty = self._read, sorted(set(signs.empty))
        strange = f"it brought messages that are not on '{read.filter}'" * signs.others
        for low in range(0, len(empty), _COMPARED):
            some = [(read.stream, {"seq": each}) for each in empty[low : low + _COMPARED]]
            for message in self._js.messages_of(some):
                if message is not None and message.data:
                    strange = f"sequence {message.sequence} came without its payload"
        if strange:
            detail = (
                f"the consumer '{read.consumer}' was edited while it was read, and set back:"
                f" {strange}; Spark runs the task again"
            )
            raise ConsumerEditedError(read.stream, read.partition or 0, detail)

    def let_go(self, is_over: bool) -> None:
        """The pin stays for the attempt that follows."""

    def check_others(self, last: int) -> None:
        """
        Raises:
            ForeignClientError: Somebody else is pinned.
            ConsumerEditedError: The consumer is not as it was made.
        """
        read = self._read
        try:
            info = self._js.consumer_info(read.stream, read.consumer)
        except JetStreamError:
            return  # the caller has an error of its own
        self._check_config(info)
        if info.pinned_id not in ("", self._pin):
            raise ForeignClientError(
                read.stream,
                read.partition,
                f"no progress beyond sequence {last} of ({read.start}, {read.end}]: another"
                f" client keeps the pin of consumer '{read.consumer}', with id '{info.pinned_id}',"
                f" and {info.num_waiting} pulls wait; let no other client pull from it, or give the"
                " query another name in option consumer",
            )

    # ── taking over ──────────────────────────────────────────────────────────────────────────

    def take_over(self, last: int, patience: Patience) -> Taken:
        """
        Unpins whoever is pinned, and puts the consumer at `last` or before.

        Raises:
            ConsumerEditedError: The consumer is not as it was made.
        """
        read = self._read
        info = self._kept(last)
        if info is not None:
            return Taken(info.num_pending, info.consumer_seq)
        try:
            info = self._js.unpin(read.stream, read.consumer, read.group)
            self._announce({"unpin": True})
        except ConsumerNotFoundError:
            info = self._recreate(last)
        except ApiError:  # as where it has no such group any more
            self._check_config()
            raise
        self._check_config(info)
        if info.pause_s > 0:
            info = self._await_resumed(info, patience)
        self._pin = ""
        if _is_at(info, last):
            return Taken(info.num_pending, info.consumer_seq)
        # What a reset skips counts as acknowledged, and before the commit nothing may be: on
        # such streams go back to the batch's start, and drop what was handed on already.
        is_rewound = read.retention != "limits" and last > read.start
        to = read.start if is_rewound else last
        info = self._js.reset(read.stream, read.consumer, to + 1)
        # Not the number that the answer says: a delivery under way at the reset may still show.
        return Taken(info.num_pending, 0, is_rewound)

    def _kept(self, last: int) -> ConsumerInfo | None:
        """
        The consumer, where the attempt can go on under the pin of the one before; else None.

        Not another attempt of the same task: the one before may have that pin, too, and go on.

        Raises:
            ConsumerEditedError: The consumer is not as it was made.
        """
        read, (pin, self._pin_before) = self._read, (self._pin_before, "")
        if not pin or is_another_attempt():
            return None
        (info,) = self._js.consumer_infos([(read.stream, read.consumer)])
        if info is None:
            return None
        self._check_config(info)
        is_ours = info.pinned_id == pin and not info.num_waiting
        if not is_ours or info.pause_s > 0 or not _is_at(info, last):
            return None
        self._pin = pin
        return info

    def _await_resumed(self, info: ConsumerInfo, patience: Patience) -> ConsumerInfo:
        """Waits for a paused consumer, which delivers nothing to anybody; where it stands then."""
        read = self._read
        logger.warning(
            "stream=%s partition=%d waits: consumer %s is paused until %s (%s)",
            read.stream, read.partition, read.consumer, info.config.get("pause_until"),
            resumed_by(self._client.options.command, read.stream, read.consumer),
        )  # fmt: skip
        while info.pause_s > 0:
            patience.renew()
            time.sleep(min(_PAUSED_LOOK_S, info.pause_s))
            info = self._js.consumer_info(read.stream, read.consumer)
        patience.renew()
        return info

    def _announce(self, what: dict[str, Any]) -> None:
        """Tells the driver about the pin, which cannot tell this attempt's from a stranger's."""
        read = self._read
        if read.owner is not None:
            note = json.dumps({"partition": read.partition} | what).encode()
            self._client.connection.tell(f"{read.owner.inbox}.pins", note)

    def _recreate(self, last: int) -> ConsumerInfo:
        read = self._read
        if read.retention == "interest":
            what = (
                f"the consumer '{read.consumer}' is gone, and with it the stream's interest in what"
                f" came after sequence {last}; with failOnDataLoss=false the query makes a new"
                " one and goes on with what is left"
            )
            report_loss(DataLossError(read.stream, read.partition, what), read.fail_on_data_loss)
        else:
            logger.warning(
                "stream=%s partition=%d: the consumer %s was gone, and the query makes it anew."
                " Nothing is lost. Somebody deleted it, or no batch read by it for a day;"
                " `nats sub '$JS.EVENT.ADVISORY.API'` shows who deletes it again",
                read.stream, read.partition, read.consumer,
            )  # fmt: skip
        return self._js.create_consumer(read.stream, consumer_config(read))

    # ── being pinned ─────────────────────────────────────────────────────────────────────────

    def pull(self) -> dict[str, Any]:
        """The fields of a pull, which ends long before the pin would."""
        read = self._read
        third_s = (read.priority_timeout_s or math.inf) / _PULLS_A_PIN
        longest_s = PULL_EXPIRES_S if self._pin else _FIRST_PULL_EXPIRES_S
        fields: dict[str, Any] = {
            "expires": round(min(longest_s, third_s) * 1e9),
            "idle_heartbeat": round(min(HEARTBEAT_S, third_s / 3) * 1e9),  # half is allowed
            "group": read.group,
        }
        if self._pin:
            fields["id"] = self._pin
        return fields

    def admit(self, frame: wire.Frame) -> tuple[bytes, bytes]:
        """Checks a message's pin id, and notes the first; see `pulls.Hold`."""
        stored, id = pinned(frame.headers) or (b"", b"")
        pin = id.decode()
        if not pin or (self._pin and pin != self._pin):
            raise self.lost(f"a message came under pin id '{pin}', ours is '{self._pin}'")
        if not self._pin:
            self._pin = pin
            self._announce({"pinned": pin, "name": query_name()})
        return frame.headers[len(stored) :], stored

    def unpinned(self, text: str, delivered: int) -> Exception:
        """The error for a pull under a pin that is over: somebody else's turn, or nobody's."""
        info = self._js.consumer_info(self._read.stream, self._read.consumer)
        if info.pinned_id not in ("", self._pin) or info.consumer_seq != delivered:
            return self.lost(text)
        return Superseded(f"the pin was lost ({text}); nobody else took it")

    def refused(self, status: Status, words: str) -> Exception:
        """
        The error for pulls that the consumer refuses.

        Raises:
            ConsumerEditedError: It is not as it was made, which is why.
        """
        self._check_config()
        read = self._read
        if status is Status.UNKNOWN:
            detail = f"consumer '{read.consumer}' answers {words}"
            return ReadError(read.stream, read.partition, detail)
        return ReadError(
            read.stream,
            read.partition,
            f"consumer '{read.consumer}' refuses pulls: {words}; take its limits off (`nats"
            f" consumer edit {read.stream} {read.consumer}`), or give another name in option"
            " consumer",
        )

    def lost(self, why: str) -> Exception:
        """
        The error for an attempt whose turn is over.

        Raises:
            ConsumerEditedError: The consumer is not as it was made, which is why.
        """
        self._check_config()
        stranger = self._stranger()
        if stranger is not None:
            return ForeignClientError(
                self._read.stream,
                self._read.partition,
                f"another client took consumer '{self._read.consumer}' over ({why}), and has not"
                f" said within {ANNOUNCED_WITHIN_S:g}s that it is an attempt of this query: it is"
                f" pinned with id '{stranger.pinned_id}' since {stranger.pinned_ts}, and"
                f" {stranger.num_waiting} pulls wait (the server tells no more of it). Let no other"
                " client pull from this consumer, or give the query another name in option"
                " consumer; if none does, an attempt was slower than that, and Spark runs the task"
                " again",
            )
        return ConsumerFencedError(
            self._read.stream,
            self._read.partition,
            f"another attempt took consumer '{self._read.consumer}' over ({why}); Spark runs the"
            " task again if it still needs it",
        )

    def _stranger(self) -> ConsumerInfo | None:
        """The consumer, if whoever is pinned there has not said to be an attempt of this query."""
        owner = self._read.owner
        if owner is None:
            return None
        try:
            info = self._js.consumer_info(self._read.stream, self._read.consumer)
            if info.pinned_id in ("", self._pin):
                return None
            # An attempt announces its pin when its first message comes, which may be on its way.
            patience = Patience(ANNOUNCED_WITHIN_S, pause_s=_ASKS_EVERY_S)
            note = json.dumps({"partition": self._read.partition, "pin": info.pinned_id}).encode()
            while True:
                reply = self._client.connection.request(f"{owner.inbox}.whose", note, _ANSWERS_S)
                if reply.data != STRANGER:
                    return None  # an attempt's; or the driver cannot know, or is gone
                if patience.over:
                    return info
                patience.pause()
        except JetStreamError as error:
            logger.info("nobody says who took the consumer over: %s", error)
            return None
