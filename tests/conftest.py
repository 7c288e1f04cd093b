"""Fixtures: a real nats-server, a client on it, a real Spark; names that are never used twice."""

from __future__ import annotations

import gc
import itertools
import os
import re
import sys
from functools import partial
from itertools import compress

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream

from .kits import seeds, streams
from .kits.options import connection_of
from .kits.places import ROOT
from .kits.servers import DevServer
from .tools import starts

starts.start_fast()

SOAK = re.compile("|".join(re.findall(r"^\w.*", (ROOT / "tests/soak.txt").read_text(), re.M)))
"""The tests that `make test` leaves to `make soak`."""

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Examples of hypothesis are drawn by the seed of this run."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = os.environ[seeds.RUN]


def pytest_report_header():
    """The seed of this run's random tests."""
    return f"{seeds.RUN}={os.environ[seeds.RUN]}"


def pytest_addoption(parser):
    """`--soak`: all tests, also those that tests/soak.txt leaves to `make soak`; or only those."""
    parser.addoption("--soak", action="store_true", help="also the tests of tests/soak.txt")
    parser.addoption("--soak-only", action="store_true", help="only the tests of tests/soak.txt")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What a collection makes stays, so no garbage is looked for in it, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config, items):
    """Marks what stands in tests/live or tests/spark; Spark's come first, then live ones."""
    order = {"spark": 0, "live": 1}
    folders = {item: item.nodeid.split("/", 2)[1] for item in items}
    for item, folder in folders.items():
        if folder in order:
            item.add_marker(folder)
    items.sort(key=lambda item: order.get(folders[item], 2))
    if config.getoption("--soak-only") or not config.getoption("--soak"):
        only = config.getoption("--soak-only")
        is_soak = [SOAK.match(item.nodeid, len("tests/")) is not None for item in items]
        config.hook.pytest_deselected(items=[*compress(items, (each != only for each in is_soak))])
        items[:] = compress(items, (each == only for each in is_soak))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Of a run of several processes: which takes which files (`make test`)."""
    if config.getvalue("dist") != "loadfile":
        return None
    from .tools.scheduling import Scheduling

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    """Closes what a test that fails has left open: its sockets are no fault of a later test."""
    for entry in call.excinfo.traceback if call.excinfo is not None else ():
        for value in entry.frame.f_locals.values():
            if isinstance(value, Client):
                value.close()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    """Names what fails at once, not only at the end: a run may be stopped before it gets there."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        said = crash or report.longrepr
        sys.stdout.write(f"\nred: {report.nodeid} ({report.when}): {said}\n")
        sys.stdout.flush()


def pytest_terminal_summary(terminalreporter):
    """Says how many states the tests enumerated, whichever process ran them."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties:
            if name == "states" and report.when == "call":
                terminalreporter.write_line(f"{report.nodeid}: {value:,} states")


@pytest.fixture(scope="session")
def nats_server():
    """One real nats-server for the whole run; tests that break a server start their own."""
    with DevServer() as server:
        yield server


@pytest.fixture
def js(nats_server):
    """Our own API client on the shared server."""
    client = Client(connection_of(nats_server.url))
    yield JetStream(client)
    client.close()


@pytest.fixture
def new_stream(js):
    """Makes streams with unique names and subjects `<name>.>`; deletes them afterwards."""
    made: list[str] = []

    def make(name=None, **config):
        name = name or f"S{next(_numbers)}"
        js.create_stream(
            {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, "storage": "file"}
            | config
        )
        made.append(name)
        return name

    yield make
    for name in made:
        js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")


@pytest.fixture
def publish(js):
    """Publishes (subject, payload) or (subject, payload, header pairs), each with its PubAck."""
    return partial(streams.publish, js)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One real Spark session, local[2] unless TESTS_MASTER names another one."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master(os.environ.get("TESTS_MASTER", "local[2]"))
        .appName("pyspark-jetstream tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
