"""
Spark's own Kafka source and sink on a real broker: the peer of this package, in the same session.

Spark fetches the broker and the connector from Maven Central by its `--packages`, once.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyspark

from tests.kits.servers import free_ports

from ..rows import PARTITIONS
from ..runs import Run, until
from ..spark import Spark, counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KAFKA: Final = "Spark's Kafka"

BROKER: Final = "org.apache.kafka:kafka_2.13:4.1.1"
CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""The newest that is published for Scala 2.13; Spark 4.3 takes it."""

_CLUSTER: Final = "MkU3OEVBNTcwNTJENDM2Qk"
_START_TIMEOUT_S: Final = 300.0
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


class Peer:
    """
    A broker without replicas with the flights in a topic of as many partitions, and the queries of
    Spark's connector on it; a context manager.

    Raises:
        RuntimeError: The broker is not up within five minutes; its last lines say why.
    """

    def __init__(self, spark: Spark, flights: DataFrame) -> None:
        self._spark = spark
        self._flights = flights
        self._topic = ""
        self._home = Path(tempfile.mkdtemp(prefix="pyspark-jetstream-bench-kafka-"))
        self._port, self._controller = free_ports(2)
        self._broker: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._numbers = iter(range(1_000_000))

    def __enter__(self) -> Peer:
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
            self._pid = self._broker.pid
            until(self._has_started, _START_TIMEOUT_S, f"the broker of {self._home}", poll_s=0.1)
            self._topic = self.new_topic()
            self.fill(self._flights, self._topic)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._broker is not None:
            self._broker.kill()  # nobody reads its log again
            self._broker.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def new_topic(self) -> str:
        """A name that no topic has yet."""
        return f"flights-{next(self._numbers)}"

    def fill(self, frame: DataFrame, topic: str) -> None:
        """Writes the columns `subject` and `data` as keys and values."""
        rows = frame.selectExpr("CAST(subject AS BINARY) AS key", "data AS value")
        writer = rows.write.format("kafka").option("topic", topic)
        writer.option("kafka.bootstrap.servers", self._servers).mode("append").save()

    def write(self, frame: DataFrame, rows: int) -> Run:
        """The same into a topic of its own, as the sink does by default: idempotent, `acks=all`."""
        topic = self.new_topic()
        run = self._spark.timed(lambda: self.fill(frame, topic), rows, self._pid)
        counted(self.range(topic), rows)
        return run

    def read_stream(self, rows: int, a_trigger: int | None = None) -> Run:
        """`readStream` of the flights to noop, everything there is, then the end."""
        return self._spark.drain(
            lambda: self._spark.to_noop(
                self.stream(self._topic, a_trigger), {"availableNow": True}
            ),
            rows,
            self._pid,
        )

    def read_range(self, rows: int) -> Run:
        """`read` of the flights to noop."""
        return self._spark.run(self.range(self._topic), rows, self._pid)

    def stream(self, topic: str, a_trigger: int | None = None) -> DataFrame:
        """A `readStream` from the first message on."""
        options: dict[str, Any] = {"startingOffsets": "earliest"}
        if a_trigger is not None:
            options["maxOffsetsPerTrigger"] = a_trigger
        return self._loaded(self._spark.session.readStream, topic, options)

    def range(self, topic: str) -> DataFrame:
        """A `read` of all that there is."""
        return self._loaded(self._spark.session.read, topic, {})

    def _loaded(self, reader: Any, topic: str, options: dict[str, Any]) -> DataFrame:
        options = options | {"kafka.bootstrap.servers": self._servers, "subscribe": topic}
        frame: DataFrame = reader.format("kafka").options(**options).load()
        return frame

    @property
    def _servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _has_started(self) -> bool:
        said = (self._home / "said").read_text(errors="replace")
        if self._broker is None or self._broker.poll() is not None:
            raise RuntimeError(f"the Kafka broker is not up:\n{said[-2_000:]}")
        return _STARTED in said

    def _java(self, main: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """A program of the broker's archive, whose class path Spark resolves; its JVM's process."""
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        command = [str(submit), "--packages", BROKER, "--driver-memory", "1g", "--class", main]
        with (self._home / "said").open("ab") as said:
            return subprocess.Popen(
                [*command, "spark-internal", *arguments], stdout=said, stderr=subprocess.STDOUT
            )
