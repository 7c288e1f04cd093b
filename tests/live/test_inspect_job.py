"""The job that inspects, as it is called, on a real server."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.operations.console import commands
from pyspark_jetstream.values import Secret

from ..conftest import connection_to
from ..kits.checkpoints import offset, write_checkpoint
from ..kits.places import ROOT
from ..kits.schemas import mistakes
from ..kits.servers import DevServer
from ..kits.tables import tables

JOB = ["pyspark_jetstream", "inspect"]

NewStream = Callable[..., str]
Publish = Callable[[list[tuple[Any, ...]]], None]

WITHOUT_RICH = (
    "import sys; sys.modules['rich'] = None;"
    " from pyspark_jetstream.operations.console.commands import main;"
    " sys.exit(main(sys.argv[2:]))"
)


@contextmanager
def started(
    server: DevServer | None,
    *arguments: str,
    rich: bool = True,
    out: int = subprocess.PIPE,
    **env: str,
) -> Iterator[subprocess.Popen[str]]:
    """The job in a Python of its own, which is killed when it takes two minutes."""
    command = [sys.executable, *(["-m"] * rich), *JOB, *arguments]
    if server is not None:
        command += ["--servers", server.url]
    if not rich:
        command[1:1] = ["-c", WITHOUT_RICH]
    process = subprocess.Popen(
        command, stdout=out, stderr=subprocess.PIPE, text=True, cwd="/",
        env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "400"} | env,
    )  # fmt: skip
    late = threading.Timer(120.0, process.kill)
    late.start()
    try:
        yield process
    finally:
        late.cancel()
        late.join()
        process.kill()
        process.wait()
        for each in (process.stdout, process.stderr):
            if each is not None:
                each.close()


def run(
    server: DevServer | None, *arguments: str, rich: bool = True, **env: str
) -> tuple[int, str, str]:
    """Status, output and what was said of a run that ends by itself: in this process with rich."""
    if not rich:
        with started(server, *arguments, rich=False, **env) as process:
            out, said = process.communicate(timeout=60)
            return process.returncode, out, said
    words = [*JOB, *arguments, *(("--servers", server.url) if server is not None else ())]
    with (
        pytest.MonkeyPatch.context() as patched,
        redirect_stdout(io.StringIO()) as shown,
        redirect_stderr(io.StringIO()) as told,
    ):
        patched.setattr(sys, "argv", words)
        for name, value in ({"TERM": "xterm", "COLUMNS": "400"} | env).items():
            patched.setenv(name, value)
        try:
            status = commands.main(words[1:])
        except SystemExit as end:
            status = int(end.code or 0)
    return status, shown.getvalue(), told.getvalue()


@pytest.fixture
def pinned(new_stream: NewStream, js: JetStream, publish: Publish) -> str:
    """A stream of six messages, with a consumer whose pin a client holds after two of them."""
    name = new_stream()
    publish([(f"{name}.{i % 2}.x", b"m") for i in range(6)])
    js.create_consumer(
        name,
        {"durable_name": "q-0", "ack_policy": "explicit", "priority_groups": ["spark"],
         "priority_policy": "pinned_client", "filter_subject": f"{name}.0.>"},
    )  # fmt: skip
    connection = js.client.connection
    connection.subscribe(inbox := connection.new_inbox())
    body = b'{"batch": 2, "expires": 60000000000, "group": "spark"}'
    connection.send(wire.pub(f"{js.prefix}.CONSUMER.MSG.NEXT.{name}.q-0", body, inbox))
    deadline = time.monotonic() + 60
    while js.consumer_info(name, "q-0").stream_seq < 3:
        assert time.monotonic() < deadline
    return name


def test_the_tables(nats_server: DevServer, pinned: str, js: JetStream, tmp_path: Path) -> None:
    """
    Stream, partitions, the consumer with its pin, and the checkpoint are a table each; all is
    well, so the status is 0.
    """
    created = js.stream_info(pinned).created
    write_checkpoint(tmp_path, [[offset({pinned: created}, [1])], [offset({pinned: created}, [3])]])
    status, out, said = run(
        nats_server, "--stream", pinned, "--partitions", "1",
        "--partition-subject", f"{pinned}.{{partition}}.>", "--checkpoint", str(tmp_path),
    )  # fmt: skip
    found = tables(out)
    (stream,), (partition,), (consumer,), (position,) = found.values()

    assert (status, said) == (0, "")
    assert list(found) == [
        "Streams", "Partitions", "Consumers", "Checkpoint, source 0, consumers q"
    ]  # fmt: skip
    assert (stream["stream"], stream["messages"], stream["last"]) == (pinned, "6", "6")
    assert stream["duplicates"] == "2m"
    assert partition == {
        "partition": "0", "stream": pinned, "filter": f"{pinned}.0.>", "messages": "3", "last": "5"
    }  # fmt: skip
    assert consumer["pinned client"] == js.consumer_info(pinned, "q-0").pinned_id
    assert consumer["pinned since"].startswith("20")
    assert (consumer["policy"], consumer["group"]) == ("pinned_client", "spark")
    assert (consumer["delivered"], consumer["lag"], consumer["claims"]) == ("3", "1", "2")
    assert "problems" not in consumer
    assert (position["committed"], position["planned"], position["at consumer"]) == ("1", "3", "3")
    assert (position["first"], position["last"], position["uncommitted"]) == ("1", "6", "2")
    assert "batch 1 planned, last committed: 0" in out
    assert out.rstrip().endswith("no problem")


def test_problems(nats_server: DevServer, new_stream: NewStream, tmp_path: Path) -> None:
    """Problems stand in their row and at the end, and the status is 3, as tables and as JSON."""
    name = new_stream()
    write_checkpoint(tmp_path, [[offset({name: "2020-01-01T00:00:00Z"}, [3])]], committed=0)
    status, out, said = run(nats_server, "--checkpoint", str(tmp_path))
    as_json = run(nats_server, "--checkpoint", f"file://{tmp_path}", "--json")
    (position,) = tables(out)["Checkpoint, source 0, consumers q"]

    assert (status, said) == (3, "")
    assert (position["problems"], position["uncommitted"]) == ("stream was made anew", "?")
    assert out.rstrip().endswith(
        f"1 problem:\n  source 0, partition 0 of {name}: stream was made anew"
    )
    assert as_json[0] == 3
    assert mistakes(json.loads(as_json[1]), "inspect") == []
    assert json.loads(as_json[1])["problems"] == [
        f"source 0, partition 0 of {name}: stream was made anew"
    ]


def test_a_query_that_is_expected(nats_server: DevServer, new_stream: NewStream) -> None:
    """
    That no query is there is a problem for whoever says that one should be, as is that none of a
    pair waits; for others it is none. The server is the one of $NATS_URL.
    """
    name = new_stream()
    quiet = run(nats_server, "--stream", name)
    found = {
        expected: run(None, "--stream", name, "--expect", expected, NATS_URL=nats_server.url)
        for expected in ("running", "standby")
    }
    document = run(nats_server, "--stream", name, "--expect", "running", "--json")

    assert (quiet[0], quiet[2]) == (0, "")
    assert [status for status, _, _ in found.values()] == [3, 3]
    assert "1 problem:\n  no query is here: none has a consumer" in found["running"][1]
    assert "no query with a standby is here" in found["standby"][1]
    assert nats_server.url in found["running"][1].splitlines()[0]
    assert mistakes(json.loads(document[1]), "inspect") == []
    assert json.loads(document[1])["missing"] == json.loads(document[1])["problems"]


def test_without_rich(nats_server: DevServer, pinned: str) -> None:
    """
    Where rich is not installed the same comes: each column below its name, words from the left,
    numbers from the right.
    """
    arguments = ("--stream", pinned, "--partitions", "1", "--partition-subject",
                 f"{pinned}.{{partition}}.>")  # fmt: skip
    status, out, said = run(nats_server, *arguments, rich=False)
    found = tables(out)
    (consumer,) = found["Consumers"]
    stream, numbers = out[out.index("stream") :].splitlines()[0:3:2]

    assert (status, said) == (0, "")
    assert found == tables(run(nats_server, *arguments)[1])
    assert (consumer["stream"], consumer["consumer"], consumer["delivered"]) == (pinned, "q-0", "3")
    assert stream.index("messages") + len("messages") == numbers.index(" 6 ") + len(" 6")
    assert out.splitlines()[-1] == "no problem"


@pytest.mark.parametrize("columns", [80, 100])
def test_nothing_is_cut(
    nats_server: DevServer, pinned: str, js: JetStream, columns: int, tmp_path: Path
) -> None:
    """
    On a narrow terminal no line is wider than it, unless one value is, and every value of the wide
    tables is there as a whole.
    """
    js.create_consumer(pinned, {"durable_name": "q-1", "ack_policy": "none"})
    created = js.stream_info(pinned).created
    write_checkpoint(tmp_path, [[offset({pinned: created}, [3, 4])]])
    arguments = ("--stream", pinned, "--checkpoint", str(tmp_path))
    wide, narrow = (run(nats_server, *arguments, COLUMNS=str(each))[1] for each in (1000, columns))
    values = {
        value for rows in tables(wide).values() for row in rows for value in row.values() if value
    }
    blocks = narrow[narrow.index("Streams") :]

    assert max(map(len, blocks.splitlines())) <= columns
    assert len(values) > 15
    assert [value for value in values if value not in blocks] == []


def test_a_stream_that_is_missing(nats_server: DevServer) -> None:
    """A stream that is not there is status 1, and one line."""
    status, out, said = run(nats_server, "--stream", "NOWHERE")

    assert (status, out) == (1, "")
    assert said.startswith("pyspark-jetstream inspect: stream 'NOWHERE' not found")
    assert "check the --stream, --js-domain and the account" in said
    assert said.count("\n") == 1


def test_a_layout_that_contradicts(nats_server: DevServer, new_stream: NewStream) -> None:
    """Options that contradict the stream are status 2."""
    name = new_stream()
    status, out, said = run(nats_server, "--stream", name, "--partitions", "3")

    assert (status, out) == (2, "")
    assert "has no partition() transform to follow" in said


def test_watching(nats_server: DevServer, new_stream: NewStream, publish: Publish) -> None:
    """
    With --watch and --json there is a line each interval, with rates from the second on; Ctrl-C
    ends it with status 0.
    """
    name = new_stream()
    with started(nats_server, "--stream", name, "--watch", "0.2", "--json") as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline())]
        publish([(f"{name}.a", b"m")] * 50)
        while looks[-1]["streams"][0]["messages"] < 50:
            looks.append(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)

    assert looks[0]["streams"][0]["stored_rate"] is None
    assert looks[-1]["streams"][0]["stored_rate"] > 0
    assert (process.returncode, said) == (0, "")


def test_watching_without_a_terminal(nats_server: DevServer, pinned: str) -> None:
    """Without a terminal the tables come one below the other, with rates, until SIGTERM."""
    with started(nats_server, "--stream", pinned, "--watch", "100ms") as process:
        assert process.stdout is not None and process.stderr is not None
        lines = [process.stdout.readline()]
        while "lag/s" not in lines[-1]:
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        out = "".join([*lines, *process.stdout])
        said = process.stderr.read()
        process.wait(60)
    found = tables(out)

    assert (process.returncode, said) == (0, "")
    assert len(found["Streams"]) >= 2
    assert "\x1b" not in out
    assert found["Consumers"][-1]["read/s"] == "0.0"
    assert found["Streams"][-1]["stored/s"] == "0.0"


def test_a_reader_that_has_seen_enough(nats_server: DevServer, new_stream: NewStream) -> None:
    """Where the reader of its output goes away, as `head` does, it ends quietly."""
    with started(nats_server, "--stream", new_stream(), "--watch", "0.1", "--json") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        status, said = process.wait(60), process.stderr.read()

    assert (status, said) == (0, "")


@pytest.mark.parametrize("rich", [True, False])
def test_watching_on_a_terminal(nats_server: DevServer, pinned: str, rich: bool) -> None:
    """On a terminal the tables are drawn again in the same place; without rich below."""
    mine, its = pty.openpty()
    with started(nats_server, "--stream", pinned, "--watch", "0.1", rich=rich, out=its) as process:
        os.close(its)
        seen = b""
        while seen.count(b"q-0") < 3:
            seen += os.read(mine, 65536)
        process.send_signal(signal.SIGINT)
        try:
            while os.read(mine, 65536):
                pass
        except OSError:  # the other end is closed
            pass
        status = process.wait(60)
    os.close(mine)

    assert status == 0
    assert (b"\x1b[1A" in seen) is rich


def test_watching_outlives_the_server() -> None:
    """While the server is away that is said, and when it is back the looks go on."""
    with DevServer() as server:
        client = Client(connection_to(server))
        JetStream(client).create_stream({"name": "S", "subjects": ["S.>"]})
        client.close()
        arguments = ("--stream", "S", "--watch", "100ms", "--json", "--request-timeout", "5s")
        with started(server, *arguments) as process:
            assert process.stdout is not None and process.stderr is not None
            before = json.loads(process.stdout.readline())
            server.stop()
            said = process.stderr.readline()
            while said and "no connection to" not in said:  # a look was under way
                said = process.stderr.readline()
            server.restart()
            while True:
                after = json.loads(process.stdout.readline())
                if after["time"] > before["time"]:
                    break
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)

    assert "no connection to" in said
    assert after["streams"][0]["created"] == before["streams"][0]["created"]
    assert process.returncode == 0


def test_secrets_come_from_the_environment() -> None:
    """The password is taken from the environment and shown nowhere; a wrong one is status 1."""
    config = "authorization { user: spark, password: s3cret }"
    with DevServer(config) as server:
        client = Client(connection_to(server, user="spark", password=Secret("s3cret")))
        JetStream(client).create_stream({"name": "S", "subjects": ["S.>"]})
        client.close()
        arguments = ("--stream", "S", "--user", "spark")
        right = run(server, *arguments, JETSTREAM_PASSWORD="s3cret")
        wrong = run(server, *arguments, JETSTREAM_PASSWORD="s3crets")

    assert (right[0], right[2]) == (0, "")
    assert (wrong[0], wrong[1]) == (1, "")
    assert "refused the connection" in wrong[2]
    assert "s3cret" not in "".join(map(str, (*right, *wrong)))


def test_names_do_not_steer_the_terminal(nats_server: DevServer, new_stream: NewStream) -> None:
    """What others named with control characters, or with rich's markup, is shown as text."""
    name = new_stream(subjects=["esc.\x1b[31m", "markup.[red]"])
    status, out, _ = run(nats_server, "--stream", name)

    assert status == 0
    assert "\x1b" not in out
    assert "esc.\\x1b[31m, markup.[red]" in out
