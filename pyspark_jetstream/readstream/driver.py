"""The common part of streaming reads: the state of one run of the query, in the source process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from ..client.connection import Client
from ..client.info import ConsumerInfo, StreamInfo
from ..client.peer import RESETS, require
from ..errors import DataLossError, OptionError
from ..fetch.dataloss import GO_ON, report_loss
from ..fetch.durable import resumed_by
from ..fetch.layout import Layout
from ..fetch.survey import Survey
from ..sanitize import get_logger
from ..tasks.rows import ReadTask
from ..values import Starting
from ..worker import log_for
from .options import SourceOptions

logger = get_logger(__name__)

_MAX_NAME: Final = 200


def behind_latest(lags: Sequence[int | None]) -> dict[str, str]:
    """
    The partitions' lags under the names, and as the texts, of Spark's Kafka source; empty where one
    is not known.
    """
    known = [lag for lag in lags if lag is not None]
    if not known or len(known) < len(lags):
        return {}
    return {
        "avgOffsetsBehindLatest": str(sum(known) / len(known)),
        "maxOffsetsBehindLatest": str(max(known)),
        "minOffsetsBehindLatest": str(min(known)),
    }


class PausedConsumers:
    """
    Consumers that were paused when they were looked at last; the log has each pause once.

    Args:
        command: as `ConnectionOptions` has it.
    """

    def __init__(self, command: Callable[[str], str]) -> None:
        self.until: dict[int, str] = {}
        """By partition the end of its consumer's pause."""
        self._command = command

    def note(self, partition: int, stream: str, name: str, info: ConsumerInfo | None) -> None:
        """Notes a look at a consumer; None where it is not there."""
        if info is None or info.pause_s <= 0:
            if self.until.pop(partition, None) is not None:
                logger.info("stream=%s consumer=%s goes on", stream, name)
            return
        until = str(info.config.get("pause_until"))
        if self.until.get(partition) != until:
            self.until[partition] = until
            logger.warning(
                "stream=%s partition=%d waits: the consumer '%s' is paused until %s (%s)",
                stream, partition, name, until, resumed_by(self._command, stream, name),
            )  # fmt: skip


class Driver(ABC):
    """The state of one run of the query in the source process."""

    remedy: ClassVar[str] = GO_ON
    """Advice to a user whose messages are gone."""

    def __init__(self, options: SourceOptions) -> None:
        self.report: dict[str, Any] = {}
        """The figures behind the last plan, by partition."""
        self._told: set[tuple[str, int, str]] = set()
        """Losses that the log has, with `failOnDataLoss=false`."""
        self._options = options
        self._client = Client(options.connection, at_start=True)
        try:
            self._survey = Survey(self._client, options)
            if options.standby:
                self._require_resets("standby")
            _ = self._layout  # raises where there is none
            self._enter()
        except BaseException:
            self._client.close()
            raise

    @property
    def _layout(self) -> Layout:
        """The partitions of a new query."""
        return self._survey.layout

    @abstractmethod
    def _enter(self) -> None:
        """The first look at the server, and every check that needs it."""

    @abstractmethod
    def freeze(self) -> None:
        """Ends this run at what is there by now (`availableNow`)."""

    @abstractmethod
    def latest(self, start: dict[str, Any], unlimited: bool) -> dict[str, Any]:
        """
        The end of the batch after `start`; `start` itself while there is none.

        Args:
            unlimited: the limits of the options do not count (`trigger(once=True)`).
        """

    @abstractmethod
    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        """The tasks of a batch."""

    @abstractmethod
    def commit(self, end: Mapping[str, Any]) -> None:
        """Settles a batch; never raises, the next commit covers it."""

    def reported(self) -> dict[str, Any]:
        """
        Facts that the last batch was planned by, for each partition, and `metrics` of their lags:
        here, as Spark's own field of that name is not for sources in Python (4.3:
        PythonMicroBatchStream is no ReportsSourceMetrics).
        """
        behind = behind_latest([partition["lag"] for partition in self.report.values()])
        return self.report | ({"metrics": behind} if behind else {})

    def close(self) -> None:
        """Ends the run."""
        self._client.close()

    def _require_resets(self, what: str) -> None:
        """
        Raises:
            UnsupportedServerError: The server is older.
        """
        require(self._client.connection.version, RESETS, f"{what} (CONSUMER.RESET)")

    def _name_log(self, consumer: str, query: str = "") -> None:
        """
        Lines of the log have the query's label from its first batch on.

        Args:
            consumer: the prefix of its consumers, for a query without a name.
            query: tells it from others that have both in common (`standby`).
        """
        name = (self._options.query_name or consumer)[:_MAX_NAME]
        log_for(self._options.connection.log_level, "/".join(filter(None, (name, query))))

    def _check_start(self, info: StreamInfo) -> None:
        """
        Raises:
            OptionError: The start would skip messages of a work queue, or what comes before it is
                yet to come, and a consumer is to begin there.
        """
        if info.retention == "workqueue" and self._options.starting != Starting():
            raise OptionError(
                "startingOffsets",
                f"stream '{info.name}' is a work queue: what a start skips would stay in it for"
                " ever; use earliest, or purge what you do not want",
            )
        if self._survey.is_early(info) and (info.retention == "interest" or self._options.sharing):
            raise OptionError(
                "startingTimestamp",
                f"lies in the future: the server's time is {info.now}, and the consumer by which"
                f" '{info.name}' is read begins when it is made. Start the query then",
            )
        limits = info.config.get("consumer_limits") or {}
        if info.retention == "interest" and limits.get("inactive_threshold"):
            logger.warning(
                "stream=%s keeps a message only for consumers, and forgets the query's after %.0f s"
                " without it: what comes then is lost. Raise consumer_limits.inactive_threshold",
                info.name, limits["inactive_threshold"] / 1e9,
            )  # fmt: skip

    def _lost(self, stream: str, partition: int, what: str) -> None:
        """Messages are gone, or will come again (`failOnDataLoss`); the log has that once."""
        fails = self._options.fail_on_data_loss
        partition = 0 if self._options.several is not None else partition
        detail = f"{what}. {self.remedy}" if fails else what
        if (stream, partition, what) not in self._told:
            report_loss(DataLossError(stream, partition, detail), fails)
            self._told.add((stream, partition, what))
