"""
Spark's own Kafka source and sink on a real broker: the peer of this package, in the same session.

Spark fetches the broker and the connector from Maven Central by its `--packages`, once.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.kits.servers import free_ports

from ..flights import PARTITIONS
from ..spark import Run, Spark
from ..waiting import until
from .child import Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KAFKA: Final = "Spark's Kafka"

BROKER: Final = "org.apache.kafka:kafka_2.13:4.1.1"
CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""The newest that is published for Scala 2.13; Spark 4.3 takes it."""

_CLUSTER: Final = "MkU3OEVBNTcwNTJENDM2Qk"
_START_TIMEOUT_S: Final = 300.0
_STOP_TIMEOUT_S: Final = 60.0
_STARTED: Final = "Kafka Server started"

_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={home}/log
num.partitions={partitions}
offsets.topic.replication.factor=1
"""


class Kafka:
    """
    A broker without replicas, and the queries of Spark's connector on it; a context manager.

    A topic has as many partitions as the flights have; whoever writes into it first makes it.

    Raises:
        RuntimeError: The broker is not up within five minutes; its last lines say why.
    """

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._home = Path(tempfile.mkdtemp(prefix="pyspark-jetstream-bench-kafka-"))
        self._port, self._controller = free_ports(2)
        self._broker: subprocess.Popen[bytes] | None = None
        self._numbers = iter(range(1_000_000))

    def __enter__(self) -> Kafka:
        settings = self._home / "server.properties"
        settings.write_text(
            _SETTINGS.format(
                port=self._port, controller=self._controller, home=self._home, partitions=PARTITIONS
            )
        )
        format_log = ["format", "-t", _CLUSTER, "-c", str(settings)]
        try:
            self._java("kafka.tools.StorageTool", format_log).wait(_START_TIMEOUT_S)
            self._broker = self._java("kafka.Kafka", [str(settings)])
            until(self._has_started, _START_TIMEOUT_S, f"the broker of {self._home}", poll_s=0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._broker is not None:
            self._broker.send_signal(signal.SIGTERM)
            try:
                self._broker.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._broker.kill()
                self._broker.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def topic(self) -> str:
        """A name that no topic has yet."""
        return f"flights-{next(self._numbers)}"

    def fill(self, frame: DataFrame, topic: str) -> None:
        """Writes the columns `subject` and `data` as keys and values."""
        rows = frame.selectExpr("CAST(subject AS BINARY) AS key", "data AS value")
        writer = rows.write.format("kafka").option("topic", topic)
        writer.option("kafka.bootstrap.servers", self._servers).mode("append").save()

    def write(self, frame: DataFrame, rows: int) -> Outcome:
        """
        The same into a topic of its own, as the sink does by default: idempotent, `acks=all`.

        Raises:
            RuntimeError: The topic holds another number of rows.
        """
        topic = self.topic()
        run = self._spark.timed(lambda: self.fill(frame, topic), rows, self._pid)
        if (stored := self.range(topic).count()) != rows:
            raise RuntimeError(f"the topic holds {stored} of {rows} rows")
        return _outcome(run)

    def read_stream(self, topic: str, rows: int, a_trigger: int | None = None) -> Outcome:
        """`readStream` to noop, everything there is, then the end."""
        return _outcome(
            self._spark.drain(
                lambda: self._spark.to_noop(self.stream(topic, a_trigger), {"availableNow": True}),
                rows,
                self._pid,
            )
        )

    def read_range(self, topic: str, rows: int) -> Outcome:
        """`read` to noop, which does not count."""
        return _outcome(self._spark.run(self.range(topic), rows, self._pid))

    def stream(self, topic: str, a_trigger: int | None = None) -> DataFrame:
        """A `readStream` from the first message on."""
        reader = self._options(self._spark.session.readStream, topic)
        reader = reader.option("startingOffsets", "earliest")
        if a_trigger is not None:
            reader = reader.option("maxOffsetsPerTrigger", a_trigger)
        frame: DataFrame = reader.load()
        return frame

    def range(self, topic: str) -> DataFrame:
        """A `read` of all that there is."""
        frame: DataFrame = self._options(self._spark.session.read, topic).load()
        return frame

    def _options(self, reader: Any, topic: str) -> Any:
        reader = reader.format("kafka").option("kafka.bootstrap.servers", self._servers)
        return reader.option("subscribe", topic)

    @property
    def _servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def _pid(self) -> int:
        if self._broker is None:
            raise RuntimeError("the broker does not run")
        return self._broker.pid

    def _has_started(self) -> bool:
        said = (self._home / "said").read_text(errors="replace")
        if self._broker is None or self._broker.poll() is not None:
            raise RuntimeError(f"the Kafka broker is not up:\n{said[-2_000:]}")
        return _STARTED in said

    def _java(self, main: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """A program of the broker's archive, whose class path Spark resolves; its JVM's process."""
        submit = Path(os.environ["SPARK_HOME"]) / "bin" / "spark-submit"
        command = [str(submit), "--packages", BROKER, "--driver-memory", "1g", "--class", main]
        with (self._home / "said").open("ab") as said:
            return subprocess.Popen(
                [*command, "spark-internal", *arguments], stdout=said, stderr=subprocess.STDOUT
            )


def _outcome(run: Run) -> Outcome:
    note = f"{run.rows / run.whole_s:,.0f}/s with start" if run.whole_s else ""
    return Outcome(run.rows, 0, run.seconds, 0.0, run.usage, note)
