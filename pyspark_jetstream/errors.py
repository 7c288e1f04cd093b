"""
Every error of this package, with its place in the documentation.

Each renders one line that says what happened, where, and what to do; each pickles, because it
crosses from a Spark worker to the driver as text and, in tests, as an object. `retryable` says
whether the same call may succeed later without anybody changing anything.

    JetStreamError
    ├── OptionError (ValueError)         a mistake in the query's options, found on the driver
    ├── ColumnError (ValueError)         the rows to write have a column that cannot be written
    ├── UnsupportedServerError           the server is too old for what was asked
    ├── NotConnectedError                no server could be reached, or the connection broke
    │   ├── AuthenticationError          the server refused the credentials
    │   └── TlsError                     TLS was asked for, and the peer does not speak it
    ├── PermissionsError                 the user may not publish or subscribe where it must
    ├── RequestTimeoutError (TimeoutError)
    ├── ApiError                         JetStream answered a request with an error
    │   ├── StreamNotFoundError
    │   └── ConsumerNotFoundError
    ├── ProtocolError                    not the NATS protocol, or no answer of the API
    ├── RecordError                      a record that queries go by is not one of theirs
    ├── QueryFencedError                 another query took this one's place
    ├── OffsetError (ValueError)         a checkpoint that does not fit the query
    ├── CheckpointError                  a checkpoint cannot be read where it is kept
    ├── PartitioningError                a stream could not be partitioned
    │   ├── CopyStalledError (TimeoutError)
    │   ├── CopyMismatchError            a copy is not what it should be
    ├── ReadError                        a partition could not be read
    │   ├── ConsumerEditedError          somebody else changed what it delivers
    │   ├── ReadTimeoutError (TimeoutError)
    │   ├── TooManySubjectsError         one multi-subject get matches more than it may
    │   └── DataLossError                messages the query should have read are gone
    │       └── SnapshotLossError        the values of some subjects at a snapshot's point are gone
    └── PublishError                     rows could not be published
        ├── RowError (ValueError)        a row that cannot be a message
        ├── PublishRejectedError         the server will never take it
        ├── PublishTimeoutError (TimeoutError)
        ├── ProducerThrottledError       its subject was paused, by an operator or the server
        ├── QueueTimeoutError (TimeoutError)
        ├── WriterFencedError            another attempt took the task over
        ├── LedgerError                  what an earlier attempt stored cannot be told
        └── CommitError                  the tasks' own counts do not add up
            └── TargetChangedError       a stream lost rows that were acknowledged
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar, Final, dataclass_transform

from .sanitize import sanitized

OFF: Final = frozenset({10039, 10076})
"""
err_codes of JSNotEnabledForAccountErr and JSNotEnabledErr: the JetStream of the account, or of the
server, is off, or not up yet.
"""

_ACK: Final = re.compile(r'"(\$JS\.ACK\.(?:[^."]+\.){2}(?:(?:[^."]+\.){2})?)\d+(?:\.\d+){4}["\.]')
"""An ack subject, up to its consumer; with a domain and an account hash, too."""

_EXPECTED: Final = (
    "drop the row's Nats-Expected-… header, which asks for that (map_filter); of a bucket's key it"
    " is the column revision: that of a deleted or expired key is its marker's (dropMarkers=false)"
)

_MORE_TIME: Final = (
    "allow more time (publishTimeout; with exactlyOnce also the stream's duplicate_window)"
)

_REMEDIES: Final = {
    10002: "the account has used up its storage: raise its limits, remove messages, or"
    f" {_MORE_TIME}; dead letters need a stream that has room, say one in memory, else set"
    " overloadPolicy=drop",
    10023: "the server has used up its storage: raise its limits (jetstream { max_file_store }),"
    f" remove messages, or {_MORE_TIME}; dead letters need a stream that has room, say one in"
    " memory, else set overloadPolicy=drop",
    10039: "enable JetStream for this account, or log in as a user of one that has it",
    10054: "raise the stream's max_msg_size, make rows smaller, or set onReject=dead-letter",
    10060: "another stream takes this subject: give a subjectMapping, or drop the row's header"
    " Nats-Expected-Stream (map_filter)",
    10070: _EXPECTED,
    10071: _EXPECTED,
    10076: "start the server with JetStream (`jetstream { }` in its configuration, or -js)",
    10077: f"the stream is full: raise its limit, make room in it, or {_MORE_TIME}",
    10097: "make the row's headers smaller",
    10109: "it takes nothing any more: write to another stream",
    10111: "set allow_rollup_hdrs on the stream, or drop the header Nats-Rollup",
    10164: _EXPECTED,
    10165: "give a ttl of 1s at least, or never",
    10169: "the stream has counters: give each row an increment; the header Nats-Incr of rows is"
    " left out, as a copied one would count once more",
    10166: "set allow_msg_ttl on the stream (`nats stream edit`), or drop the column ttl",
    10190: "schedule_target is a subject of the same stream, and another one than the row's",
}
"""Advice by the server's err_code (server/errors.json)."""


def _remedy(err_code: int) -> str:
    remedy = _REMEDIES.get(err_code)
    return f"; {remedy}" if remedy else ""


@dataclass_transform(eq_default=False)
class JetStreamError(Exception):
    """
    Anything that went wrong between Spark and JetStream.

    Its arguments are its fields, in their order: those of the class before, then its own. Fields
    hold what others wrote as it came; the line that is rendered of them is sanitized. It is a
    dataclass in all but the time that making one takes, for which each worker would wait.
    """

    retryable = False
    form: ClassVar[str] = ""
    """The line, with the names of fields in braces; "": the arguments themselves."""
    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._names += tuple(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        given = {**dict(zip(self._names, values, strict=False)), **named}
        if self._names and (len(values) > len(self._names) or not {*named} <= {*self._names}):
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(self._names)}")
        for name in self._names:
            setattr(self, name, given[name] if name in given else getattr(type(self), name))
        self.args = tuple(getattr(self, name) for name in self._names) or values

    def __str__(self) -> str:
        return sanitized(self._line())

    def _line(self) -> str:
        if not self.form:
            return super().__str__()
        return self.form.format(**{name: getattr(self, name) for name in self._names})


class OptionError(JetStreamError, ValueError):
    """
    An option is unknown, malformed, contradictory or not supported; no row has moved.

    Args:
        others: what is wrong with other options, where that is known, too.
    """

    option: str
    reason: str
    others: tuple[OptionError, ...] = ()

    def _line(self) -> str:
        return "; ".join([f"option '{self.option}': {self.reason}", *map(str, self.others)])


class ColumnError(JetStreamError, ValueError):
    """The rows to write have a column that cannot be written, or lack one; no row has moved."""

    column: str
    reason: str

    form = "column '{column}': {reason}"


class UnsupportedServerError(JetStreamError):
    """The server does not have a capability this query needs."""

    capability: str
    needs: str
    found: str

    form = (
        "{capability} needs nats-server {needs} or newer, this one is {found}; upgrade the server"
    )


class NotConnectedError(JetStreamError):
    """No server could be reached, or an open connection broke."""

    retryable = True

    servers: str
    reason: str

    form = "no connection to {servers}: {reason}"


class AuthenticationError(NotConnectedError):
    """
    The server refused the credentials, or its certificate is not trusted; trying again will not
    help.
    """

    retryable = False

    remedy: str = ""

    def _line(self) -> str:
        remedy = self.remedy or (
            "check option user and option password, option token, nkeySeedFile, credentialsFile"
            " or the TLS certificate"
        )
        return f"{self.servers} refused the connection: {self.reason}; {remedy}"


class TlsError(NotConnectedError):
    """An option asks for TLS, and what answered does not keep to it; nothing was sent in clear."""

    retryable = False

    form = "no TLS with {servers}, and nothing was sent there in clear: {reason}"


class PermissionsError(JetStreamError):
    """The user may not publish or subscribe where it must."""

    violation: str
    """In the server's words."""

    def _line(self) -> str:
        if (ack := _ACK.search(self.violation)) is not None:
            right = f"'{ack[1]}>'"
            return f"{self.violation}; grant it to this user for all acks of this consumer: {right}"
        # A name that is misspelt is refused before anybody can say that there is no such stream.
        first = "check the name in this subject"
        if 'Subscription to "_INBOX' in self.violation:
            first = "let inboxPrefix name where its replies may come"
        return f"{self.violation}; {first}, or grant it to this user"


class RequestTimeoutError(JetStreamError, TimeoutError):
    """A request was not answered in time."""

    retryable = True

    subject: str
    seconds: float
    hint: str = ""

    def _line(self) -> str:
        tail = f"; {self.hint}" if self.hint else ""
        return f"no answer on {self.subject} within {self.seconds:.1f}s (requestTimeout){tail}"


class ApiError(JetStreamError):
    """JetStream answered with an error (`code`/`err_code` are the server's own)."""

    subject: str
    code: int
    err_code: int
    description: str

    def _line(self) -> str:
        return (
            f"{self.subject}: {self.description} (code {self.code}, err_code {self.err_code})"
            f"{_remedy(self.err_code)}"
        )


class StreamNotFoundError(ApiError):
    """The stream does not exist in this account and domain; perhaps `meant` does."""

    meant: str = ""

    @property
    def stream(self) -> str:
        """The name that was asked for; a request about a consumer names that one last."""
        is_listed = ".CONSUMER.LIST." in self.subject
        is_last = is_listed or ".CONSUMER." not in self.subject
        return self.subject.split(".")[-1 if is_last else -2]

    def near(self, names: Iterable[str]) -> StreamNotFoundError:
        """The same, with that of these names which is spelled most alike, if one is."""
        from difflib import get_close_matches  # workers import this module, and never come here

        by_lower = {name.lower(): name for name in names}
        near = get_close_matches(self.stream.lower(), by_lower, n=1)
        meant = by_lower[near[0]] if near else ""
        return StreamNotFoundError(self.subject, self.code, self.err_code, self.description, meant)

    def _line(self) -> str:
        meant = f"did you mean '{self.meant}'? If not, " if self.meant else ""
        return (
            f"stream '{self.stream}' not found (err_code {self.err_code}); {meant}"
            "check its name, jsDomain and the account of the credentials"
        )


class ConsumerNotFoundError(ApiError):
    """The durable consumer does not exist (any more)."""


class ProtocolError(JetStreamError):
    """The peer sent what is not the NATS client protocol, or no answer of JetStream's API."""

    detail: str


class RecordError(JetStreamError):
    """A record that queries go by (the ledger's) was not stored by one of them."""

    bucket: str
    key: str
    detail: str

    form = (
        "bucket {bucket}, key '{key}': {detail}; it is not believed. Find out who may publish"
        " on $KV.{bucket}.>, and delete it (nats kv del {bucket} '{key}'): what it said is then"
        " forgotten"
    )


class QueryFencedError(JetStreamError):
    """Another run took this one's place at its consumers; nothing more is read here."""

    consumer: str
    detail: str

    form = (
        "consumer '{consumer}': {detail}. If both are to run, give each a consumer of its own, or"
        " standby=true: then this one waits"
    )


class OffsetError(JetStreamError, ValueError):
    """An offset of the checkpoint does not fit the query that reads it."""

    detail: str


class CheckpointError(JetStreamError):
    """A checkpoint cannot be read where it is kept."""

    location: str
    detail: str

    form = "checkpoint {location}: {detail}"


class PartitioningError(JetStreamError):
    """A stream could not be partitioned; `detail` says why and what to do."""

    stream: str
    detail: str

    form = "stream '{stream}': {detail}"


class CopyStalledError(PartitioningError, TimeoutError):
    """The server copied nothing for so long; the streams stay, a second run goes on."""

    retryable = True


class CopyMismatchError(PartitioningError):
    """A copy does not hold what its source holds, in its order."""


class ReadError(JetStreamError):
    """A partition of a stream could not be read; `detail` says why and what to do."""

    stream: str
    partition: int
    detail: str

    form = "stream '{stream}', partition {partition}: {detail}"


class ConsumerEditedError(ReadError):
    """A consumer of this query has another configuration than it was made with."""


class ReadTimeoutError(ReadError, TimeoutError):
    """The partition made no progress within `requestTimeout`."""

    retryable = True


class TooManySubjectsError(ReadError):
    """More subjects match one multi-subject get than the server allows (413)."""

    subjects: tuple[str, ...]
    maximum: int

    def _line(self) -> str:
        return (
            f"stream '{self.stream}': more than {self.maximum} subjects match"
            f" {', '.join(self.subjects[:3])}{', …' if len(self.subjects) > 3 else ''};"
            " multiLast without batch reads any number of them"
        )


class DataLossError(ReadError):
    """Messages the query should have read are no longer there (`failOnDataLoss=true`)."""


class SnapshotLossError(DataLossError):
    """Messages that belong to a snapshot of `subjects` are gone (`failOnDataLoss=true`)."""

    subjects: tuple[str, ...]

    def _line(self) -> str:
        some = ", ".join(f"'{subject}'" for subject in self.subjects[:10])
        more = f" and {len(self.subjects) - 10} more" if len(self.subjects) > 10 else ""
        return f"stream '{self.stream}': {self.detail}{': ' if some else ''}{some}{more}"


class PublishError(JetStreamError):
    """A row could not be published."""

    subject: str
    detail: str
    err_code: int = 0

    def _line(self) -> str:
        code = f" (err_code {self.err_code})" if self.err_code else ""
        return f"publish to '{self.subject}': {self.detail}{code}{_remedy(self.err_code)}"


class RowError(PublishError, ValueError):
    """A row that cannot be a message: no subject, a bad subject, no payload."""

    def _line(self) -> str:
        return PublishError._line(self) if self.subject else self.detail


class PublishRejectedError(PublishError):
    """The server refused the message for good."""


class PublishTimeoutError(PublishError, TimeoutError):
    """No PubAck within `publishTimeout`, retries included."""

    retryable = True


class ProducerThrottledError(PublishError):
    """Not stored in time because its subject was paused, not because anything was slow."""

    retryable = True

    reason: str = ""
    subject_filter: str = ""
    throttled_for: float = 0.0
    """Seconds."""
    request_id: int = 0
    """Number of the operator's command; 0 where none paused it."""

    def _line(self) -> str:
        code = f" (err_code {self.err_code})" if self.err_code else ""
        if self.request_id:
            remedy = "end the pause, or raise throttleMaxWait"
            what = (
                f"paused {self.throttled_for:.1f}s by {self.reason}"
                f" (filter '{self.subject_filter}', request {self.request_id})"
            )
        else:
            remedy = _REMEDIES.get(self.err_code, "raise the limit, or allow more time")
            what = f"refused for {self.throttled_for:.1f}s by the server (in metrics {self.reason})"
        return (
            f"publish to '{self.subject}': {what}; {self.detail}{code}"
            f"{'; ' if self.detail else ''}{remedy}"
        )

    def because(self, detail: str, err_code: int) -> ProducerThrottledError:
        """The same, with what the server said."""
        return ProducerThrottledError(self.subject, detail, err_code, *self.args[3:])


class QueueTimeoutError(PublishError, TimeoutError):
    """A row waited longer than `queueTimeout` and may not be shed."""

    retryable = True


class WriterFencedError(PublishError):
    """Another attempt of the same task is in the ledger; this one's rows are its to write."""


class LedgerError(PublishError):
    """The ledger, or what it says of an earlier attempt, does not let the write be exactly once."""

    def _line(self) -> str:
        return f"exactlyOnce, {self.subject}: {self.detail}"


class CommitError(PublishError):
    """A task's rows and PubAcks do not add up, or Spark lost a task's message."""


class TargetChangedError(CommitError):
    """A target stream was made anew, or ends before where it ended: rows are gone."""

    def _line(self) -> str:
        return f"stream '{self.subject}': {self.detail}"
