"""The job that inspects, as it is called, on a real server."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest

from pyspark_jetstream.client import wire

from ..kits.checkpoints import offset, write_checkpoint
from ..kits.places import ROOT
from ..kits.programs import main
from ..kits.shared import eventually

NewStream = Callable[..., str]
Publish = Callable[[list[tuple[Any, ...]]], None]
Run = Callable[..., tuple[int, str, str]]


@contextmanager
def started(server, *arguments, out=subprocess.PIPE):
    """The job in a Python of its own, which is killed when it takes two minutes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pyspark_jetstream", "inspect", *arguments, "--servers", server.url],
        stdout=out, stderr=subprocess.PIPE, text=True, cwd="/",
        env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "400"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in background
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


@pytest.fixture
def run(capsys, monkeypatch):
    """Status, output and what was said of a run in this process."""

    def ran(server, *arguments, **env):
        for name, value in ({"COLUMNS": "400"} | env).items():
            monkeypatch.setenv(name, value)
        status = main(["inspect", *arguments, "--servers", server.url])
        said = capsys.readouterr()
        return status, said.out, said.err

    return ran


@pytest.fixture
def pinned(new_stream, js, publish):
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
    eventually(lambda: js.consumer_info(name, "q-0").stream_seq >= 3)
    return name


def test_the_tables(nats_server, pinned, js, tmp_path, run):
    """Stream, consumer with its pin, and checkpoint are a table each; all is well: status 0."""
    created = js.stream_info(pinned).created
    write_checkpoint(tmp_path, [[offset({pinned: created}, [1])], [offset({pinned: created}, [3])]])
    status, out, said = run(nats_server, "--checkpoint", str(tmp_path))
    lines = [line.split() for line in out.splitlines()]
    rows = {
        title: dict(zip(lines[at + 1], lines[at + 2], strict=False))
        for at, (title, *_) in enumerate(words or [""] for words in lines)
        if title in ("Streams", "Consumers", "Positions")
    }

    assert (status, said) == (0, "")
    assert list(rows) == ["Streams", "Consumers", "Positions"]
    assert (rows["Streams"]["stream"], rows["Streams"]["messages"]) == (pinned, "6")
    assert (rows["Consumers"]["consumer"], rows["Consumers"]["lag"]) == ("q-0", "1")
    position = rows["Positions"]
    assert (position["committed"], position["planned"]) == ("1", "3")
    assert (position["first"], position["last"]) == ("1", "6")
    assert "batch 1 planned, last committed: 0" in out
    assert out.rstrip().endswith("no problem")


def test_problems(nats_server, new_stream, tmp_path, run):
    """Problems stand at the end, and the status is 3, as tables and as JSON."""
    name = new_stream()
    write_checkpoint(tmp_path, [[offset({name: "2020-01-01T00:00:00Z"}, [3])]], committed=0)
    status, out, said = run(nats_server, "--checkpoint", str(tmp_path))
    as_json = run(nats_server, "--checkpoint", f"file://{tmp_path}", "--json")
    problem = f"source 0, partition 0 of {name}: the stream was made anew"

    assert (status, said) == (3, "")
    assert f"1 problem:\n  {problem}" in out
    assert "give the query a new checkpointLocation" in out
    assert as_json[0] == 3
    (only,) = json.loads(as_json[1])["problems"]
    assert only.startswith(problem)


def test_watching(nats_server, new_stream, publish):
    """With --watch and --json there is a line each interval; Ctrl-C ends it."""
    name = new_stream()
    with started(nats_server, "--stream", name, "--watch", "0.2", "--json") as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline())]
        publish([(f"{name}.a", b"m")] * 50)
        while looks[-1]["streams"][0]["messages"] < 50:
            looks.append(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)

    assert looks[0]["streams"][0]["messages"] < 50
    assert (process.returncode, said) == (130, "")


def test_names_do_not_steer_the_terminal(nats_server, new_stream, run):
    """What others named with control characters, or with rich's markup, is shown as text."""
    name = new_stream(subjects=["esc.\x1b[31m", "markup.[red]"])
    status, out, _ = run(nats_server, "--stream", name)

    assert status == 0
    assert "\x1b" not in out
    assert "esc.\\x1b[31m, markup.[red]" in out
