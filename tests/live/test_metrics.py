"""The exporter as a process: producers publish over a real server, Prometheus's parser scrapes."""

import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.fetch.durable import Owner
from pyspark_jetstream.operations.metrics.readers import READERS, readers
from pyspark_jetstream.publish.metrics import METRICS

from ..kits import metrics
from ..kits.metrics import QUERY, publish, reports
from ..kits.options import connection_of
from ..kits.places import ROOT
from ..kits.proxy import Proxy
from ..kits.reading import Query
from ..kits.servers import DevServer
from ..kits.shared import eventually

JOB = ["pyspark_jetstream", "metrics"]


class Scrapes:
    """An exporter that runs, and what it answers."""

    def __init__(self, process, log):
        self.process, self._log = process, log
        self.url = self.wait(lambda: self._shown("serving ")).split()[-1]
        self.wait(lambda: self._shown("following "))

    @property
    def log(self):
        return self._log.read_text()

    def _shown(self, word):
        return next((line for line in self.log.splitlines() if word in line), "")

    def wait(self, condition):
        """Until the condition holds; what it is then."""

        def holds():
            assert self.process.poll() is None, self.log
            return condition()

        return eventually(holds, 120)

    def text(self, accept="text/plain"):
        """What Prometheus gets."""
        with urlopen(Request(self.url, headers={"Accept": accept}), timeout=60) as answer:
            return answer.read().decode()

    def samples(self):
        """Every value by its name and labels."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        }

    def acked(self):
        """PubAcks of the query that are counted."""
        of = frozenset({"query": QUERY, "status": "success"}.items())
        return self.samples().get(("jetstream_publish_outcomes_total", of), 0)

    def wait_for(self, acked):
        """Until so many PubAcks are."""
        self.wait(lambda: self.acked() == acked)


@pytest.fixture
def exporter(tmp_path):
    """Starts exporters; they end with the test."""
    started = []

    def start(server, *arguments):
        log = tmp_path / f"{len(started)}.log"
        words = ["-m", *JOB, "--servers", server.url, "--listen", "127.0.0.1:0", *arguments]
        with log.open("wb") as err:
            started.append(subprocess.Popen([sys.executable, *words], stderr=err))
        return Scrapes(started[-1], log)

    yield start
    for each in started:
        each.terminate()
        each.wait(60)


SUBJECT = "spark.jetstream.metrics"
SUFFIXES = {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}


def family(name, kind):
    return name.removesuffix("_total") if kind == "counter" else name


def suffixed(family_name, kind):
    return [family_name + suffix for suffix in SUFFIXES[kind]]


QUOTA = "TopicProduceQuotaExceeded"
ALL = [(family(name, metric.kind), metric) for name, metric in METRICS.items()]
FAMILIES = [each for each in ALL if each[1].name in METRICS]
BOUNDS = [str(0.0005 * 2**n) for n in range(20)]
VALUES = {
    ("publish_queue_total", "critical", QUERY, "orders.>"): 5,
    ("publish_queue_total", "noncritical", QUERY, "orders.>"): 2,
    ("publish_rejected_total", "noncritical", QUERY, "MaxConcurrentRequests", "orders.>"): 9,
    ("publish_queue_time_seconds_count", "critical", QUERY, "orders.>"): 27,
    ("publish_queue_time_seconds_sum", "critical", QUERY, "orders.>"): 2.7126,
    ("producer_throttled_times_total", QUERY, QUOTA, "orders.*"): 5760,
    ("publish_rate_limit_count_total", "operator", QUERY, QUOTA, "orders.*"): 9,
    ("publish_outcomes_total", QUERY, "success"): 900,
    ("publish_outcomes_total", QUERY, "pushed_back"): 9,
    ("publish_dead_letter_total", "noncritical", QUERY, "MaxConcurrentRequests"): 9,
    ("publish_outcomes_total", QUERY, "dropped"): 9,
    ("publish_retries_total", QUERY): 9,
}
"""Three tasks that counted three times; label values in the order of their labels' names."""


@contextmanager
def client_of(server):
    client = Client(connection_of(server.url))
    yield client
    client.close()


def test_scrape(nats_server, exporter):
    """Names, labels, buckets and values are those of the table, summed over all tasks."""
    subject = f"{SUBJECT}.scrape"
    scrapes = exporter(nats_server, "--metrics-subject", subject)
    words = [sys.executable, "-m", metrics.__name__, nats_server.url, subject]
    tasks = [subprocess.Popen([*words, str(producer)], cwd=ROOT) for producer in (1, 2)]
    assert [task.wait(120) for task in tasks] == [0, 0]
    with client_of(nats_server) as client:
        publish(client, subject, [each.encode() for each in reports(5, final=False)])
    scrapes.wait_for(900)
    samples = {
        (name, labels): value
        for (name, labels), value in scrapes.samples().items()
        if not name.startswith("jetstream_read_")  # nobody reads
        and not name.endswith("_created")
    }

    names = {name for each, metric in FAMILIES for name in suffixed(each, metric.kind)}
    assert {name for name, _ in samples} == names
    for name, labels in samples:
        (metric,) = (m for each, m in FAMILIES if name in suffixed(each, m.kind))
        extra = ("le",) if name.endswith("_bucket") else ()
        assert {label for label, _ in labels} == {*metric.labels, "query", *extra}
    found = {
        (name.removeprefix("jetstream_"), *(v for _, v in sorted(labels) if v)): value
        for (name, labels), value in samples.items()
        if not name.endswith("_bucket") and value
    }
    assert found == VALUES
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in samples.items()
        if name == "jetstream_publish_queue_time_seconds_bucket"
    }
    assert list(buckets.items())[:2] == [("0.0005", 0), ("0.001", 18)]
    assert list(buckets.items())[9:] == [
        ("0.256", 18),
        *((bound, 27) for bound in BOUNDS[10:]),
        ("+Inf", 27),
    ]
    text = scrapes.text("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    assert {(each.name, each.type) for each in open_metrics(text)} == {
        *((name, metric.kind) for name, metric in ALL), *((name, "gauge") for name in READERS)
    }  # fmt: skip


def test_the_server_and_the_exporter_start_again(exporter):
    """A new exporter knows the counts of running tasks with their next report."""
    with DevServer() as server:
        scrapes = exporter(server)
        with client_of(server) as client:
            publish(client, SUBJECT, [each.encode() for each in reports(1)])
            publish(client, SUBJECT, [reports(2, 1, final=False)[0].encode()])
        scrapes.wait_for(400)
        server.kill()
        assert scrapes.acked() == 400
        server.restart()
        scrapes.wait(lambda: scrapes.log.count("following ") == 2)
        fresh = exporter(server)
        with client_of(server) as client:
            publish(client, SUBJECT, [reports(2, 2, final=False)[1].encode()])
        scrapes.wait_for(500)
        fresh.wait_for(200)


@pytest.mark.parametrize(
    ("arguments", "without", "status", "said"),
    [
        (("--servers", "nats://127.0.0.1:1", "--request-timeout", "1s"), "", 1, "no connection to"),
        (("--metrics-subject", "a..b"), "", 2, "invalid subject filter 'a..b'"),
        (("--listen", "127.0.0.1:99999"), "", 2, "'--listen': expected HOST:PORT"),
        (("--listen", "203.0.113.1:0"), "", 1, "annot assign requested address"),
        (
            ("--listen", "127.0.0.1:0"),
            "prometheus_client",
            1,
            "pip install prometheus-client",
        ),
    ],
)
def test_what_cannot_start(nats_server, arguments, without, status, said):
    """What is wrong is one line on stderr and an exit status."""
    script = (
        "import runpy, sys; sys.modules.update(dict.fromkeys(sys.argv[1].split()));"
        " sys.argv = sys.argv[2:]; runpy.run_module(sys.argv[0], run_name='__main__')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, without, *JOB, *arguments],
        env=os.environ | {"NATS_URL": nats_server.url},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (ran.returncode, said in ran.stderr) == (status, True), ran.stderr
    assert "Traceback" not in ran.stderr


def test_what_the_server_knows_of_readers(nats_server, js, new_stream, exporter):
    """Lag, pauses and redeliveries of a query's consumers; those of others are left out."""
    stream = new_stream()
    owner = Owner("0123456789", "host", 1, name="orders").metadata
    pinned = {
        "ack_policy": "none", "metadata": owner, "priority_groups": ["spark"],
        "priority_policy": "pinned_client",
    }  # fmt: skip
    js.create_consumer(stream, {"durable_name": "orders-0"} | pinned)
    shared = {"durable_name": "orders-1", "ack_policy": "explicit", "metadata": owner}
    js.create_consumer(stream, shared)
    js.create_consumer(stream, {"durable_name": "other", "ack_policy": "explicit"})
    for _ in range(3):
        js.publish(f"{stream}.x", b"", [])
    js.pause(stream, "orders-1", datetime.now(UTC) + timedelta(hours=1))
    subject = f"{SUBJECT}.readers"
    scrapes = exporter(nats_server, "--metrics-subject", subject)

    def found():
        return {
            (name.removeprefix("jetstream_read_"), dict(labels)["consumer"]): value
            for (name, labels), value in scrapes.samples().items()
            if name in READERS and dict(labels)["query"] == "orders"
        }

    scrapes.wait(lambda: bool(found()))
    with client_of(nats_server) as client:
        publish(client, subject, [reports(1)[0].encode()])
    assert found() == {
        ("lag_messages", "orders-0"): 3, ("runs", "orders-0"): 0, ("paused", "orders-0"): 0,
        ("lag_messages", "orders-1"): 3, ("paused", "orders-1"): 1,
        ("ack_pending_messages", "orders-1"): 0, ("redelivered_messages", "orders-1"): 0,
    }  # fmt: skip
    js.client.request(f"{js.prefix}.CONSUMER.DELETE.{stream}.orders-0", b"")
    scrapes.wait(lambda: ("lag_messages", "orders-0") not in found())


def of_stream(js, stream):
    """By gauge the only consumer of a query in a stream, as query and name, and its value."""
    found = {}
    for gauge in readers(js):
        its = [each for each in gauge.samples if each.labels["stream"] == stream]
        for each in its:
            assert len(its) == 1
            found[gauge.name] = (each.labels["query"], each.labels["consumer"]), each.value
    return found


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_readers_are_known_by_what_a_query_makes(nats_server, js, new_stream, retention):
    """Its seats are found, under the query's name; consumers of its tasks are not."""
    stream = new_stream(retention=retention)
    query = Query(nats_server, stream=stream, queryName="orders", consumer="seat", directBelow=0)
    try:
        query.step()
        for _ in range(5):
            js.publish(f"{stream}.x", b"", [])
        eventually(query.step)
        js.publish(f"{stream}.x", b"", [])
        eventually(query.plan)  # settles what the batch before had
        tasks = query.tasks()
        rows = query.reader.read(tasks[0])
        next(rows)

        # The seat is moved behind a committed batch without waiting for it.
        eventually(lambda: of_stream(js, stream)["jetstream_read_lag_messages"][1] == 1)
        found = of_stream(js, stream)
        rows.close()
    finally:
        query.die()

    assert {of for of, _ in found.values()} == {("orders", "seat-0")}


def test_a_shared_consumer_is_known_by_its_name(nats_server, js, new_stream):
    """Queries that share a consumer are one reader, with the claims of all of them."""
    stream = new_stream()
    js.create_consumer(stream, {
        "name": "task", "ack_policy": "none", "priority_groups": ["spark"],
        "priority_policy": "overflow",
    })  # fmt: skip
    both = [
        Query(nats_server, stream=stream, priorityPolicy="overflow", consumer="jobs",
              maxRecordsPerTrigger=2)
        for _ in range(2)
    ]  # fmt: skip
    try:
        assert [each.claim() for each in both] == [None, None]
        for _ in range(5):
            js.publish(f"{stream}.x", b"", [])
        for each in both:
            each.plan()
        found = of_stream(js, stream)
    finally:
        for each in both:
            each.die()

    assert {of for of, _ in found.values()} == {("jobs", "jobs-0")}
    assert {name.removeprefix("jetstream_read_"): value for name, (_, value) in found.items()} == {
        "lag_messages": 1, "paused": 0,
        "ack_pending_messages": 4, "redelivered_messages": 0,
    }  # fmt: skip


def test_a_half_open_connection_is_left(nats_server, exporter):
    """On a link that answers nothing the exporter asks, waits, and connects anew."""
    subject = f"{SUBJECT}.half"
    with Proxy(nats_server.port) as proxy:
        scrapes = exporter(proxy, "--metrics-subject", subject, "--request-timeout", "500ms")
        with client_of(nats_server) as client:
            publish(client, subject, [reports(1, 1)[0].encode()])
            scrapes.wait_for(100)
            proxy.hush()
            scrapes.wait(lambda: scrapes.log.count("following ") == 2)
            publish(client, subject, [reports(2, 1)[0].encode()])
            scrapes.wait_for(200)
        scrapes.process.terminate()
        scrapes.process.wait(60)
