"""
The common part of streaming reads: it hands Spark's calls to the state of one run of the query.

A reader that is pickled to the tasks has no driver: all state of a run is there, which is made on
first use, in the source process.

Spark's source process puts an `UnboundLocalError` of its own behind whatever `streamReader()`
raises. So nothing is raised there: a read that cannot be says so when Spark first asks something.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, NoReturn, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from ..client.connection import Client
from ..client.info import StreamInfo
from ..client.patience import Patience
from ..errors import DataLossError, OptionError
from ..fetch.assumptions import Assumption, Change
from ..fetch.dataloss import GO_ON, report_loss
from ..fetch.layout import Layout
from ..fetch.survey import Survey
from ..logs import log_for
from ..tasks import ReadTask, SentAsRows, TaskRows, WarmUp
from ..values import EARLIEST
from .counts import ReadCounts, behind_latest, query_label
from .offsets import INITIAL
from .options import SourceOptions
from .reporting import Reporting

_SETTLES_S: Final = 3.0
_SETTLES_EVERY_S: Final = 0.2
"""How long a stream that seems to be taken back has to seem so, and how often it is looked at."""

K = TypeVar("K", bound=Hashable)


def lasting(
    changes: Callable[[], Mapping[K, Change]], look: Callable[[], None]
) -> Mapping[K, Change]:
    """
    The changes of streams that last: a new leader may not yet say all that its stream has.

    Args:
        changes: what the last look shows.
        look: looks at the streams again.
    """
    found = changes()
    patience = Patience(_SETTLES_S, pause_s=_SETTLES_EVERY_S)
    while not patience.over and any(c.of is Assumption.NOT_SHORTER for c in found.values()):
        patience.pause()
        look()
        found = changes()
    return found


class Driver(ABC):
    """The state of one run of the query in the source process."""

    remedy: ClassVar[str] = GO_ON

    def __init__(self, options: SourceOptions) -> None:
        self.report: dict[str, Any] = {}
        """The figures behind the last plan, by partition."""
        self._options = options
        self._reporting: Reporting | None = None
        """Set from the first batch on, if `metricsSubject` is given."""
        self._client = Client(options.connection, at_start=True)
        try:
            self._survey = Survey(self._client, options)
            self._survey.require(*self._needs)
            _ = self._layout  # raises where there is none
            self._enter()
        except BaseException:
            self._client.close()
            raise

    @property
    def _layout(self) -> Layout:
        """The partitions of the batch that is planned or read; of several streams they change."""
        return self._survey.layout

    @property
    @abstractmethod
    def _needs(self) -> tuple[tuple[int, int], str]:
        """The version of nats-server that the read needs, and what for."""

    @abstractmethod
    def _enter(self) -> None:
        """The first look at the server, and every check that needs it."""

    @abstractmethod
    def freeze(self) -> None:
        """Ends this run at what is there by now (`availableNow`)."""

    @abstractmethod
    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        """The tasks of a batch."""

    def reported(self) -> dict[str, Any]:
        """
        What the last batch was planned by, for each partition, and `metrics` of their lags: here,
        as Spark's own field of that name is not for sources in Python (4.3: PythonMicroBatchStream
        is no ReportsSourceMetrics).
        """
        behind = behind_latest([partition["lag"] for partition in self.report.values()])
        return self.report | ({"metrics": behind} if behind else {})

    def counted(self, tasks: list[ReadTask]) -> list[ReadTask]:
        """The tasks of a batch that begins, which count their rows where that is asked for."""
        if self._reporting is None or any(isinstance(task.work, WarmUp) for task in tasks):
            return tasks
        return self._reporting.begin_batch(tasks)

    def close(self) -> None:
        """Ends the run."""
        self._end_reports()
        self._client.close()

    def _end_reports(self) -> None:
        """Reports for the last time; the next batch begins anew."""
        if self._reporting is not None:
            self._reporting.close()
            self._reporting = None

    @abstractmethod
    def _look_again(self, client: Client) -> None:
        """Asks the server, on another thread and connection, where the query stands by now."""

    @abstractmethod
    def _observe(self, counts: ReadCounts) -> None:
        """Counts what is known without asking; on another thread."""

    def _begin_reports(self, consumer: str, query: str = "") -> None:
        """
        Spark has come for a batch: none is under way any more. With the first one it is known by
        which names metrics go.
        """
        options = self._options
        label = query_label(options.query_name, consumer, query)
        log_for(options.connection.log_level, label)
        if self._reporting is not None:
            self._reporting.end_batch()
        elif options.metrics_subject is not None:
            self._reporting = Reporting(
                options, label, self._layout, self._look_again, self._observe
            )

    def _count(self, count: Callable[[ReadCounts], None], soon: bool = False) -> None:
        """
        Counts something where metrics are asked for.

        Args:
            soon: the reports show it without waiting for their interval.
        """
        if self._reporting is not None:
            with self._reporting.counting() as counts:
                count(counts)
            if soon:
                self._reporting.report_soon()

    def _check_start(self, info: StreamInfo) -> None:
        """
        Raises:
            OptionError: The start would skip messages of a work queue.
        """
        start = self._options.starting
        skips = start.sequences or start.streams or start.moment or start.word != EARLIEST
        if info.retention == "workqueue" and skips:
            raise OptionError(
                "startingOffsets",
                f"stream '{info.name}' is a work queue: what a start skips would stay in it for"
                " ever; use earliest, or purge what you do not want",
            )

    def _lost(self, stream: str, partition: int, what: str) -> None:
        """Messages are gone, or will come again (`failOnDataLoss`)."""
        fails = self._options.fail_on_data_loss
        partition = 0 if self._layout.is_several else partition
        detail = f"{what}. {self.remedy}" if fails else what
        report_loss(DataLossError(stream, partition, detail), fails)


D = TypeVar("D", bound=Driver)


class StreamReader(SentAsRows, DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[D]):
    """
    Spark's side of a streaming read.

    One instance lives in the driver's source process for a whole run of the query; its `rows`,
    which see nothing of its state, read in the tasks.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.rows = TaskRows.of(options)
        self._driver: D | None = None

    @abstractmethod
    def _begin(self) -> D:
        """The state of a new run."""

    @property
    def driver(self) -> D:
        """The state of this run of the query, made on first use."""
        if self._driver is None:
            self._driver = self._begin()
        return self._driver

    def initialOffset(self) -> dict[str, Any]:
        """The symbolic start: it is asked for more than once and must not change."""
        return dict(INITIAL)

    def prepareForTriggerAvailableNow(self) -> None:
        """Freezes what this run reads: what is there by now, nothing that comes later."""
        self.driver.freeze()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The figures behind the last plan; the driver's `reported` describes them."""
        return self.driver.reported()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch; which rows they give depends on the offsets alone."""
        return self.driver.counted(self.driver.tasks(start, end))

    def stop(self) -> None:
        """Closes the connections. Spark often ends the process without this call."""
        if self._driver is not None:
            self._driver.close()


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers every question with what is wrong with the options."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def __repr__(self) -> str:
        return f"<RefusedReader {self._error}>"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    getDefaultReadLimit = initialOffset = latestOffset = _refuse
    prepareForTriggerAvailableNow = partitions = read = _refuse
