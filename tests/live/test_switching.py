"""A checkpoint that is switched to another layout, by the program, on a real server."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from pyspark_jetstream.operations.batches import offsets_of
from pyspark_jetstream.operations.partition.making import partition_stream
from pyspark_jetstream.operations.partition.plan import PartitionPlan

from ..kits.checkpoints import write_checkpoint
from ..kits.places import ROOT
from ..kits.programs import main
from ..kits.reading import query
from ..kits.shared import eventually

__all__ = ["query"]

OLD = ["one", "filtered", "streams"]
NEW = ["streams", "filtered"]
KEYS = 24

KILLED = """
import os, signal, sys
from pathlib import Path

left = int(sys.argv.pop(1))

def dying(step):
    def one(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*args, **kwargs)
    return one

os.fsync, Path.unlink, Path.replace = map(dying, (os.fsync, Path.unlink, Path.replace))
from pyspark_jetstream.operations.main import main
main()
"""
"""The program, killed at a step that changes a file: written and synced, unlinked, renamed."""

STEPS = 6
"""Of a switch: three for the copy, three for the file of the batch."""


class Switch:
    """An origin with its layouts, and a query of one of them that is stopped."""

    def __init__(self, server, js, origin, query, path):
        self.server, self.js, self.origin, self._path = server, js, origin, path
        self._make_query, self.sent = query, 0

    def publish(self, count):
        """Numbered messages, in turn on the keys."""
        for _ in range(count):
            number, self.sent = self.sent, self.sent + 1
            self.js.client.request(f"{self.origin}.K{number % KEYS}.x", b"m%d" % number)

    def layout(self, kind, partitions):
        """Makes a layout; the options that read it, and the program's arguments."""
        if kind == "one":
            return {"stream": self.origin}, []
        name, subject = f"{self.origin}{kind[0].upper()}{partitions}", f"{self.origin}.*.*"
        words = ["--stream", self.origin, "--subject", subject, "--tokens", "1",
                 "--partitions", str(partitions)]  # fmt: skip
        given: dict[str, Any] = {"subject": subject, "tokens": (1,)}
        if kind == "streams":
            plan = PartitionPlan(self.origin, partitions, f"{name}-{{partition}}", **given)
            words += ["--streams", f"{name}-{{partition}}"]
            options = {"stream": f"{name}-{{partition}}", "partitions": partitions}
        else:
            plan = PartitionPlan(self.origin, partitions, name, **given)
            words += ["--streams", name]
            options = {"stream": name, "partitions": partitions, "partitionSubject": plan.template}
        partition_stream(self.js, plan)
        return options, words

    def stopped(self, query):
        """A query's checkpoint, once it is stopped."""
        query.die()
        assert query.committed == len(query.planned)
        batches = [[offset, {"topic": 7}] for offset in query.planned]
        return write_checkpoint(self._path, batches, committed=len(batches) - 1)

    def goes_on(self, query, options):
        """The query with other options, over its checkpoint, until nothing is there to read."""
        batch = len(query.planned) - 1
        offset = offsets_of((self._path / "offsets" / str(batch)).read_text())
        assert offset["1"] == {"topic": 7}
        query.planned[-1] = offset["0"]
        kept = {name: query.options[name] for name in ("servers", "consumer")}
        query.options = kept | {name: str(value) for name, value in options.items()}
        query.restart()
        query.drain()


@pytest.fixture
def switch(nats_server, js, new_stream, query, tmp_path):
    """A stream without numbers in its subjects, with messages."""
    made = Switch(nats_server, js, new_stream(), query, tmp_path)
    made.publish(60)
    return made


def program(switch, path, words, *more):
    servers = ("--servers", switch.server.url)
    return ["partition", *words, "--switch", str(path), *more, *servers]


@pytest.mark.parametrize("new", NEW)
@pytest.mark.parametrize("old", OLD)
def test_each_message_is_read_once(switch, query, capsys, old, new):
    """A query goes on in another layout, and undone in the old: each message once."""
    options, _ = switch.layout(old, 2)
    reads = query(**options, maxRecordsPerTrigger=25, consumer="hot")
    reads.drain()
    switch.publish(10)
    then, words = switch.layout(new, 3)
    switch.publish(10)
    path = switch.stopped(reads)
    before = (path / "offsets" / "2").read_bytes()
    tried = main(program(switch, path, words, "--dry-run"))
    untouched = (path / "offsets" / "2").read_bytes()
    status = main(program(switch, path, words, "--json"))
    out = capsys.readouterr().out
    switch.publish(10)
    switch.goes_on(reads, then)
    again = main(program(switch, path, words))

    assert (tried, untouched, status) == (0, before, 0)
    document = json.loads(out[out.index("{\n") :])
    assert (document["batch"], document["source"], document["changed"]) == (2, "0", True)
    assert document["cut"] == 60
    assert sum(row["read_up_to"] for row in document["streams"]) >= 60
    assert sorted(reads.data) == sorted(b"m%d" % i for i in range(90))
    assert again == 1
    assert "stands in this layout already" in capsys.readouterr().err
    assert main(program(switch, path, words, "--undo")) == 0
    assert (path / "offsets" / "2").read_bytes() == before


def test_no_cut(switch, query, capsys):
    """Without a cut the error's endingOffsets lead to one, and then the switch is done."""
    options, _ = switch.layout("streams", 2)
    then, words = switch.layout("streams", 3)
    ends = [switch.js.stream_info(f"{switch.origin}S2-{p}").last_seq for p in range(2)]
    reads = query(**options, consumer="hot", endingOffsets=json.dumps({"0": ends[0], "1": 1}))
    reads.drain()
    path = switch.stopped(reads)
    refused = main(program(switch, path, words))
    said = capsys.readouterr().err
    cut = said[said.index("endingOffsets='") + 15 :].partition("'")[0]
    switch.publish(20)
    reads.restart(endingOffsets=cut)
    reads.drain()
    path = switch.stopped(reads)
    status = main(program(switch, path, words))
    switch.goes_on(reads, then)

    assert (refused, status) == (1, 0)
    assert json.loads(cut) == {"0": ends[0], "1": ends[1]}
    assert sorted(reads.data) == sorted(b"m%d" % i for i in range(80))


def test_what_cannot_be_switched(switch, query, capsys, tmp_path):
    """What cannot be switched is one line each, and the checkpoint is untouched."""
    reads = query(stream=switch.origin, consumer="hot", directBelow="0")
    reads.drain()
    eventually(lambda: reads.plan() or switch.js.consumer_info(switch.origin, "hot-0").num_waiting)
    _, words = switch.layout("streams", 3)
    path = write_checkpoint(tmp_path / "c", [[reads.planned[0]]], committed=0)
    before = (path / "offsets" / "0").read_bytes()
    runs = main(program(switch, path, words))
    reads.die()
    says = [(runs, capsys.readouterr().err)]
    other = reads.planned[0] | {"streams": {"T": "t"}, "layout": {"places": [["T"]]}}
    missing = [word.replace("S3-", "S9-") for word in words]
    undone = main(program(switch, path, words, "--undo"))
    says.append((undone, capsys.readouterr().err))
    cases = [(path, missing), (write_checkpoint(tmp_path / "d", [[other]], committed=0), words),
             (write_checkpoint(tmp_path / "e", [[reads.planned[0]]]), words)]  # fmt: skip
    for place, given in cases:
        says.append((main(program(switch, place, given)), capsys.readouterr().err))

    assert [status for status, _ in says] == [1] * 5
    assert all(line.count("\n") == 1 for _, line in says)
    for (_, line), part in zip(
        says,
        (
            "waits at consumer 'hot-0': stop the query first", "was not switched",
            "is not there: make the layout first", "or its copies, found 0", "is not committed",
        ),
        strict=True,
    ):  # fmt: skip
        assert part in line
    assert (path / "offsets" / "0").read_bytes() == before


def killed(switch, step, arguments):
    """The status of the program, in a process of its own that is killed at a step."""
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(step), *arguments], capture_output=True, timeout=120,
        check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    ).returncode  # fmt: skip


def is_readable(path, batch, before):
    """Whether Hadoop reads the file: a checksum that is there is that of the old content."""
    file = path / "offsets" / str(batch)
    return file.read_bytes() == before or not (path / "offsets" / f".{batch}.crc").exists()


def test_killed_at_every_step(switch, query):
    """Killed at any step the checkpoint is the old or the new one, and goes on to the end."""
    reads = query(stream=switch.origin, consumer="hot")
    reads.drain()
    then, words = switch.layout("streams", 3)
    path = switch.stopped(reads)
    file, before = path / "offsets" / "0", (path / "offsets" / "0").read_bytes()
    (path / "offsets" / ".0.crc").write_bytes(b"of the old content")
    run, undo = program(switch, path, words), program(switch, path, words, "--undo")
    states = []
    for step in range(1, STEPS + 1):
        assert killed(switch, step, run) == -signal.SIGKILL
        assert is_readable(path, 0, before)
        states.append(file.read_bytes())
    assert set(states) == {before}  # the last step is the rename itself, before which it died
    assert killed(switch, STEPS + 1, run) == 0
    after = file.read_bytes()
    for step in range(1, 4):
        assert killed(switch, step, undo) == -signal.SIGKILL
        assert file.read_bytes() == after
    assert killed(switch, 4, undo) == 0
    assert file.read_bytes() == before
    assert killed(switch, 0, run) == 0
    assert file.read_bytes() == after
    switch.publish(10)
    switch.goes_on(reads, then)

    assert sorted(reads.data) == sorted(b"m%d" % i for i in range(70))
