"""Every example of README and docs runs, section by section, in the order in which it is read."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.testing import find_server

from ..kits.options import connection_of
from ..kits.places import ROOT
from ..kits.servers import DevServer
from ..tools.snippets import OUTPUT, PAGES, Snippet, sections

ADDRESS = "nats://127.0.0.1:4222"
"""The server of the pages."""

WITH_SOME = [
    section
    for page in PAGES
    for section in sections(page)
    if any(not s.reason and s.language != "text" for s in section.snippets)
]
ACTS = re.compile(r"\.(start|save|show)\(")
PLACES = re.compile(r'("(?:checkpointLocation|path)", f?"|\.parquet\(f?"|\bopen\(f?")')


@pytest.fixture(scope="module")
def server():
    """The pages name their streams as they like: a server of their own."""
    with DevServer() as server:
        yield server


@pytest.fixture(autouse=True)
def _empty(server):
    """A page begins with a server without streams."""
    yield
    client = Client(connection_of(server.url))
    js = JetStream(client)
    for name in js.stream_names():
        js.delete_stream(name)
    client.close()


@pytest.fixture
def commands(server, tmp_path):
    """The commands that the pages call; `nats` is the stand-in where it is not installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python = shlex.quote(sys.executable)
    ours = f'exec {python} -m pyspark_jetstream "$@"'
    reached = f'set -- "$@" --servers {server.url}'
    scripts = {
        "python": f'exec {python} "$@"',
        # Pages name no server: the address is the default of our programs.
        "pyspark-jetstream": f'[ "$1" = explain-mapping ] || {reached}\n{ours}',
    }
    if shutil.which("nats") is None:
        scripts["nats"] = f'exec {python} -m tests.tools.natscli "$@"'
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def finite(spark, monkeypatch):
    """`awaitTermination()` ends when all is processed; no query outlives its page."""
    from pyspark.sql.streaming.query import StreamingQuery

    to_its_end = StreamingQuery.awaitTermination

    def processed(query, timeout=None):
        if "AvailableNow" in query._jsq.streamingQuery().trigger().toString():
            return to_its_end(query, timeout)
        query.processAllAvailable()
        query.stop()
        return True

    monkeypatch.setattr(StreamingQuery, "awaitTermination", processed)
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.mark.parametrize("section", WITH_SOME, ids=lambda section: section.name)
def test_the_examples_of_a_page_run(section, server, commands, spark, finite, tmp_path):
    """The examples run against a real server and print what the page says."""
    missing = [name for name in section.needs if importlib.util.find_spec(name) is None]
    if missing:
        # They must not stand in .venv: pyarrow would import pandas in each of Spark's processes.
        # `make examples` has them in an environment of its own, and skips nothing.
        names = ", ".join(missing)
        pytest.skip(f"needs {names}: `make examples` runs it")
    known: dict[str, Any] = {"spark": spark, "__name__": section.name}
    _type(section.snippets, known, server, commands, tmp_path)


def _type(shown, known, server, commands, place):
    """Does what a page says, and compares what it says is printed."""
    run: dict[str, Callable[[Snippet, str], str]] = {
        "bash": lambda snippet, text: _bash(snippet, text, server, commands, place),
        "conf": lambda snippet, text: _configuration(snippet, text, place),
        "python": lambda snippet, text: _python(snippet, text, known, place),
    }
    printed = ""
    for snippet in shown:
        text = snippet.text.replace(ADDRESS, server.url)
        if snippet.file:
            (place / snippet.file).parent.mkdir(parents=True, exist_ok=True)
            (place / snippet.file).write_text(text)
        elif snippet.language == OUTPUT:
            assert _lines(printed) == _lines(text), f"{snippet}\n{printed}"
        elif not snippet.reason and snippet.language in run:
            printed = run[snippet.language](snippet, text)


def _lines(printed):
    return [line.rstrip() for line in printed.strip().splitlines()]


def _bash(snippet, text, server, commands, place):
    beside = Path(sys.executable).parent  # where pip puts commands
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", text],
        capture_output=True, text=True, timeout=600, cwd=place,
        env=os.environ | {
            "PATH": os.pathsep.join((str(commands), str(beside), os.environ["PATH"])),
            "NATS_URL": server.url,
            "PYTHONPATH": str(ROOT),
        },
    )  # fmt: skip
    assert done.returncode == 0, f"{snippet}\n{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _configuration(snippet, text, place):
    file = place / "server.conf"
    file.write_text(text)
    passwords = dict.fromkeys(re.findall(r"\$(\w+_PASSWORD)\b", text), "secret")
    done = subprocess.run(
        [find_server(), "-t", "-c", str(file)],
        capture_output=True, text=True, timeout=60, env=os.environ | passwords,
    )  # fmt: skip
    assert done.returncode == 0, f"{snippet}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _python(snippet, text, known, place):
    before = set(map(id, known.values()))
    code = PLACES.sub(
        lambda match: f"{match[1]}{place}/", text
    )  # the JVM has a directory of its own
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, str(snippet), "exec"), known)
    made = [value for value in known.values() if id(value) not in before and _is_table(value)]
    if made and not ACTS.search(text) and not snippet.hidden:
        _read(made[-1], 'standby="true"' in text)
    return printed.getvalue()


def _is_table(value):
    from pyspark.sql import DataFrame

    return isinstance(value, DataFrame)


def _read(table, waits):
    if not table.isStreaming:
        table.write.format("noop").mode("overwrite").save()
        return
    written = table.writeStream.format("noop")
    if not waits:
        written.trigger(availableNow=True).start().awaitTermination()
        return
    query = written.start()  # a standby never ends by itself
    query.processAllAvailable()
    query.stop()
