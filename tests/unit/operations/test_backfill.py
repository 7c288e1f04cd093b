"""What backfills decide without a server and without Spark, and how they take settings."""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import pty
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from pyspark_jetstream.errors import DataLossError, OptionError
from pyspark_jetstream.fetch.layout import DirectRead
from pyspark_jetstream.operations.console import commands, program
from pyspark_jetstream.operations.console.backfills import backfilling
from pyspark_jetstream.operations.console.program import Parser
from pyspark_jetstream.options import parse_read

from ...kits.places import ROOT

Load = Callable[[str], ModuleType]
BACKFILLS = ("range_backfill", "snapshot_backfill")
COMMANDS = {
    "range_backfill": ("backfills.rangebackfill", "backfill range"),
    "snapshot_backfill": ("backfills.snapshotbackfill", "backfill snapshot"),
    "replay_dead_letters": ("backfills.replay", "replay"),
}
JOBS = tuple(COMMANDS)


def parser_of(module: ModuleType) -> Parser:
    """The command line of a backfill."""
    parser = Parser(prog="backfill")
    module.arguments(parser)
    return parser


@pytest.fixture
def load() -> Load:
    """What a job does, or a module of `operations`."""

    def find(name: str) -> ModuleType:
        place = f"console.{COMMANDS[name][0]}" if name in COMMANDS else name
        return importlib.import_module(f"pyspark_jetstream.operations.{place}")

    return find


def read(
    start: int, end: int, partition: int | None = 0, expected: int | None = None
) -> DirectRead:
    """A read of one task, as a plan has it."""
    return DirectRead(partition, "S", None, start, end, expected, False, True)


# ── chunks ───────────────────────────────────────────────────────────────────────────────────


def test_chunks_are_reads_that_continue_each_other(load: Load) -> None:
    """Reads join where they touch, up to the messages that a chunk may have; none is left out."""
    reads = [
        read(0, 5, None, 3), read(5, 9, None, 4), read(9, 12, None, 2), read(12, 20, None, 0),
        read(20, 22, None, None), read(22, 23, None, 1), read(0, 12, 1, 2), read(14, 20, 1, 1),
    ]  # fmt: skip
    found = load("backfill.chunks").chunked(reads, 7)

    assert found == [
        ("S", None, 0, 9, 7), ("S", None, 9, 20, 2), ("S", None, 20, 22, None),
        ("S", None, 22, 23, 1), ("S", 1, 0, 12, 2), ("S", 1, 14, 20, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("chunk", "streams", "starts", "ends"),
    [
        (("S", None, 4, 9, 5), ["S", "S"], {0: 5, 1: 5}, {0: 9, 1: 9}),
        (("S", 1, 4, 9, 5), ["S", "S"], {0: "latest", 1: 5}, {0: "latest", 1: 9}),
        (("S-1", 1, 0, 9, 5), ["S-0", "S-1"], {0: "latest", 1: 1}, {0: "latest", 1: 9}),
    ],
    ids=["all partitions", "one filter", "one stream"],
)
def test_the_offsets_of_a_chunk(
    load: Load, chunk: Any, streams: list[str], starts: dict[int, Any], ends: dict[int, Any]
) -> None:
    """A chunk is read by offsets that take its partitions in and leave the others out."""
    chunks = load("backfill.chunks")
    options = chunks.offsets(chunks.Chunk(*chunk), streams)
    parsed = parse_read({"stream": "S"} | options)

    assert dict(parsed.starting.sequences) == starts
    assert dict(parsed.ending.sequences) == ends


# ── words ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (None, None, {}),
        ("17", "latest", {"startingOffsets": "17", "endingOffsets": "latest"}),
        ("-10m", "2026-01-31T00:00:00Z",
         {"startingTimestamp": "-10m", "endingTimestamp": "2026-01-31T00:00:00Z"}),
        ('{"0": 3}', None, {"startingOffsets": '{"0": 3}'}),
    ],
)  # fmt: skip
def test_the_bounds_of_a_range(
    load: Load, first: str | None, last: str | None, expected: dict[str, str]
) -> None:
    """--from and --to stand for offsets or for timestamps."""
    assert load("backfill.ranges").bounds(first, last) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("S", None, None, None), {"stream": "S", "multiLast": ">"}),
        (("S", None, "a.>", "7"), {"stream": "S", "multiLast": "a.>", "upToSequence": "7"}),
        ((None, "B", "k.*", "-1h"), {"bucket": "B", "keys": "k.*", "upToTime": "-1h"}),
    ],
)
def test_the_words_of_a_snapshot(
    load: Load, words: tuple[str | None, ...], expected: dict[str, str]
) -> None:
    """--stream, --bucket, --subjects and --as-of stand for options of the read."""
    assert load("backfill.snapshots").snapshot_options(*words) == expected


ROWS = StructType(
    [
        StructField("subject", StringType()),
        StructField("timestamp", TimestampType()),
        StructField("stream", StringType()),
    ]
)


def test_partitioning(load: Load) -> None:
    """Days and tokens are columns more; a column of the rows is taken as it is."""
    found = load("backfill.parquet").Partitioning.parse(("day", "token:2", "stream"), ROWS)

    assert found.columns == ("day", "token2", "stream")
    assert found.schema.names == ["subject", "timestamp", "stream", "day", "token2"]
    assert ROWS.names == ["subject", "timestamp", "stream"]


@pytest.mark.parametrize("words", [("hour",), ("token:0",), ("partition",), ("day", "day")])
def test_partitioning_by_what_is_not_there(load: Load, words: tuple[str, ...]) -> None:
    """A word that names nothing of the rows, or the same twice, is an error of one line."""
    with pytest.raises(load("backfill.faults").UsageError, match="--partition-by") as raised:
        load("backfill.parquet").Partitioning.parse(words, ROWS)

    assert "\n" not in str(raised.value)


def test_checksums_add_up(load: Load) -> None:
    """Sums wrap at 64 bits, negative ones too, and parts add up to the whole."""
    checksums = load("backfill.checksums")

    assert checksums.text(-1) == "f" * 16
    assert checksums.total([checksums.text(-5), checksums.text(7)]) == checksums.text(2)
    assert checksums.total([]) == "0" * 16


def test_the_pace_is_that_of_the_last_chunks(load: Load) -> None:
    """Rate and time left go by the last chunks; what earlier runs did is no work of this one."""
    pace = load("backfill.progress").ChunkRate(total=2_000, done=1_000, now=0.0)
    assert pace.text() == "0 rows in this run"

    pace.add(100, 50, now=60.0)  # while Spark starts
    assert pace.text() == "50 rows in this run  1 rows/s  9:00 left"

    for second in range(1, 7):
        pace.add(100, 100, now=60.0 + second)
    assert pace.text() == "650 rows in this run  100 rows/s  0:03 left"
    assert pace.percent() == 85.0


# ── settings ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("job", BACKFILLS)
def test_the_file_in_conf_is_a_file_of_settings(load: Load, job: str) -> None:
    """conf/<job>.toml is taken as it is, and names every setting there is."""
    path = ROOT / "conf" / f"{job}.toml"
    parser = parser_of(load(job))
    given = parser.parse(["--config", str(path)])
    content = tomllib.loads(path.read_text())
    named = set(re.findall(r"^(?:# )?\[?([a-z][a-z-]*)\]?(?: =|$)", path.read_text(), re.M))

    assert given.output == content["output"]
    assert given.partition_by == content["partition-by"]
    assert given.chunk_messages == content["chunk-messages"]
    assert given.verify is True
    assert given.option == {"servers": "nats://127.0.0.1:4222"}
    assert set(parser.names) <= named


def test_the_file_of_a_replay(load: Load) -> None:
    """conf/replay_dead_letters.toml is taken as it is, and names every setting there is."""
    path = ROOT / "conf" / "replay_dead_letters.toml"
    parser = parser_of(load("replay_dead_letters"))
    given = parser.parse(["--config", str(path)])
    named = set(re.findall(r"^(?:# )?\[?([a-z][a-z-]*)\]?(?: =|$)", path.read_text(), re.M))

    assert (given.stream, given.into, given.manifest) == ("DEAD", "FLIGHTS", "/data/replays/1")
    assert (given.reason, given.priority, given.delete) == ([], [], False)
    assert given.chunk_messages == parser.get_default("chunk_messages")
    assert set(parser.names) <= named


@pytest.mark.parametrize("job", JOBS)
def test_the_options_in_conf_are_options(load: Load, job: str) -> None:
    """Every option that conf/<job>.toml shows, commented out or not, is one of the package."""
    from pyspark_jetstream.options import all_options

    text = (ROOT / "conf" / f"{job}.toml").read_text()
    shown = re.findall(r"^(?:# )?(\w+) = ", text[text.index("\n[options]") :], re.M)

    assert len(shown) > 3
    assert set(shown) <= {option.name for option in all_options()}


def test_the_command_line_wins(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line, then file, then environment; option names in any case are one option."""
    file = tmp_path / "job.toml"
    file.write_text(
        'stream = "A"\nchunk-messages = 7\n[options]\nServers = "nats://file"\n'
        'user = "u"\npassword = "of the file"\nincludeHeaders = true\n'
    )
    monkeypatch.setenv("JETSTREAM_PASSWORD", "of the environment")
    monkeypatch.setenv("JETSTREAM_TARGET_TOKEN", "of the target")
    words = ["--config", str(file), "--stream", "B", "--option", "servers=nats://option"]
    parser = parser_of(load("range_backfill"))
    given = parser.parse([*words, "--servers", "nats://line", "--tls-handshake-first", "true"])

    assert (given.stream, given.chunk_messages) == ("B", 7)
    assert given.option == {
        "user": "u", "password": "of the file", "includeHeaders": "true",
        "servers": "nats://line", "tlsHandshakeFirst": "true",
    }  # fmt: skip
    assert parser.parse(words).option["servers"] == "nats://option"
    assert given.target_option == {"token": "of the target"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("streams = 'S'", "unknown setting 'streams'; see "),
        ("servers = 'nats://h'", ".toml: 'servers' belongs in [options]"),
        ("tls-ca-file = 'ca.pem'", "'tls-ca-file' belongs in [options], as tlsCaFile"),
        ("password = 'x'", "'password' belongs in [options]"),
        ("chunk-messages = '5'", ".toml: chunk-messages: expected a number, without quotes"),
        ("verify = 1", "verify: expected true or false, without quotes"),
        ("stream = 100", '.toml: stream: expected text in quotes, such as "100"'),
        ("stream = [", ".toml: "),
        ("options = 3", "[options]: expected a table of options"),
        ("chunk-messages = 0", "chunk-messages: expected"),
        ("partition-by = [1]", "partition-by: expected text in quotes"),
    ],
)
def test_a_mistake_in_the_file(
    load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, says: str
) -> None:
    """A file with an unknown or ill-typed setting ends with status 2, and the last line says so."""
    file = tmp_path / "job.toml"
    file.write_text(content)
    with pytest.raises(SystemExit) as ended:
        commands.main(["backfill", "range", "--config", str(file)])
    said = capsys.readouterr().err

    assert ended.value.code == 2
    assert said.splitlines()[-1].startswith("pyspark-jetstream backfill range: ")
    assert said.count("\n") == 2
    assert says in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("job", "arguments", "says"),
    [
        ("range_backfill", "--output o", "--stream is required"),
        ("range_backfill", "--stream S", "--output or --into is required"),
        ("range_backfill", "--stream S --into T", "--manifest is required"),
        ("range_backfill", "--stream S --into T --manifest m --output o", "not with --output"),
        ("range_backfill", "--stream S --output o --manifest m", "go with --into"),
        ("range_backfill", "--stream S --output o --option nothing", "expected NAME=VALUE"),
        ("range_backfill", "--stream S --output o --option password:pw1", "expected NAME=VALUE"),
        ("range_backfill", "--stream S --output o --option servers=nats://u:pw1@h",
         "--servers: "),
        ("range_backfill", "--stream S --output o --servers nats://u:pw1@h", "--servers: "),
        ("range_backfill", "--stream S --output o --tls-ca-file /no/x", "--tls-ca-file: no such"),
        ("range_backfill", "--stream S --into T --manifest m --target-option maxInFlihgt=1",
         "did you mean 'maxInFlight'"),
        ("range_backfill", "--stream S --into T --manifest m --target-option token=pw1",
         "JETSTREAM_TARGET_TOKEN"),
        ("range_backfill", "--stream S --output o --option Password=pw1", "JETSTREAM_PASSWORD"),
        ("range_backfill", "--stream S --output o --option servrs=x", "did you mean 'servers'"),
        ("range_backfill", "--stream S --output o --from 1x", "--from: expected"),
        ("range_backfill", "--stream S --output o --option multiLast=>",
         "use `pyspark-jetstream backfill snapshot`"),
        ("range_backfill", "--stream S --output o --chunk-messages -1", "positive integer"),
        ("range_backfill", "--stream S --output o --writers 0", "positive integer"),
        ("range_backfill", "--stream S --output o --partition-by token:x", "token:N"),
        ("range_backfill", "--strea S --output o",
         "unrecognized arguments: --strea … (did you mean --stream?)"),
        ("range_backfill", "--config /no/such/file", "No such file"),
        ("replay_dead_letters", "--into T --manifest m", "--stream is required"),
        ("replay_dead_letters", "--stream S --manifest m", "--into is required"),
        ("replay_dead_letters", "--stream S --into T", "--manifest is required"),
        ("replay_dead_letters", "--stream S --into T --manifest m --priority urgent",
         "critical, normal, noncritical, got 'urgent'"),
        ("replay_dead_letters", "--stream S --into T --manifest m --subject a..b", "subject"),
        ("replay_dead_letters",
         "--stream S --into T --manifest m --target-option subjectMapping={}",
         "leave this option out"),
        ("replay_dead_letters", "--stream S --into T --manifest m --since soon",
         "--since: expected"),
        ("snapshot_backfill", "--output o", "either --stream or --bucket"),
        ("snapshot_backfill", "--output o --stream S --bucket B", "either --stream or --bucket"),
        ("snapshot_backfill", "--output o --bucket a.b", "expected a bucket name"),
        ("snapshot_backfill", "--output o --stream S --subjects a..b", "--subjects: "),
        ("snapshot_backfill", "--output o --stream S --as-of soon", "--as-of: expected"),
        ("snapshot_backfill", "--output o --bucket B --option history=true",
         "with `pyspark-jetstream backfill range`"),
        ("snapshot_backfill", "--output o --bucket B --partition-by partition", "operation"),
    ],
)  # fmt: skip
def test_bad_arguments(
    load: Load, capsys: pytest.CaptureFixture[str], job: str, arguments: str, says: str
) -> None:
    """
    A mistake ends with status 2 and a line that names it in the words of the command, before Spark
    is started; at most a line of usage comes before.
    """
    try:
        status = program.run(load(job), f"python jobs/{job}.py", "", arguments.split())
    except SystemExit as ended:
        status = ended.code
    *usage, said = capsys.readouterr().err.splitlines()

    assert status == 2
    assert says in said
    assert said.startswith(f"{job}: ")
    assert usage in ([], [f"usage: python jobs/{job}.py [OPTION ...]"])
    assert "pw1" not in said


@pytest.mark.parametrize("way", ["python jobs/{}.py", "pyspark-jetstream {}"])
@pytest.mark.parametrize("job", JOBS)
def test_help(load: Load, capsys: pytest.CaptureFixture[str], job: str, way: str) -> None:
    """`--help` shows examples that name settings there are, as the program was called."""
    called = way.format(job if "jobs" in way else COMMANDS[job][1])
    with pytest.raises(SystemExit) as ended:
        program.run(load(job), called, f"pyspark-jetstream {COMMANDS[job][1]}", ["--help"])
    out = capsys.readouterr().out
    usage, _, rest = out.partition(f"\n    {called} ")
    examples = rest[: rest.index("Exit status")]
    listed = rest[rest.index("options:") :]

    assert ended.value.code == 0
    assert usage.startswith(f"usage: {called} [OPTION ...]")
    assert examples.count(f"    {called} ") >= 2
    flags = set(re.findall(r"--[a-z-]+", examples)) - {"--master"}
    assert flags
    assert all(f"  {flag}" in listed for flag in flags)


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (OptionError("stream", "required"), "UsageError", "option 'stream': required"),
        (DataLossError("S", 0, "gone"), "BackfillError", "stream 'S', partition 0: gone"),
    ],
)
def test_errors_of_spark(load: Load, error: Exception, kind: str, line: str) -> None:
    """An error of ours that Spark has wrapped is one line; a mistake of the user's stays one."""
    from pyspark.errors import PythonException

    faults = load("backfill.faults")
    name = f"pyspark_jetstream.errors.{type(error).__name__}"
    of_spark = PythonException(
        f"[PYTHON_EXCEPTION] of the worker: Traceback\n  File x\n{name}: {error}\n\tat Java"
    )
    with pytest.raises(faults.BackfillError) as raised, faults.from_spark():
        raise of_spark

    assert (type(raised.value).__name__, str(raised.value)) == (kind, line)


def test_an_interrupted_run(
    load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C and SIGTERM end a run with a status and a line of their own."""

    def session(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backfilling, "session", session)
    words = ["backfill", "range", "--stream", "S", "--output", "o"]

    assert commands.main(words) == 130
    assert capsys.readouterr().err == (
        "pyspark-jetstream backfill range: interrupted; run it again to go on\n"
    )


def test_the_status_of_what_is_verified(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    """What --verify finds is named, and the status is that of a failure."""
    manifest = {"rows": 1_000, "missing": 0, "files": [1, 2]}

    def concluded(*faults: str) -> int:
        target = SimpleNamespace(faults=lambda manifest: list(faults))
        given = argparse.Namespace(verify=True, json=False)
        return backfilling.concluded(manifest, target, "file:/o", given)

    assert concluded() == 0
    assert capsys.readouterr().out == (
        "1,000 messages in 2 files: file:/o\nverified: all is as the manifest says\n"
    )
    assert concluded("x is missing") == 1
    assert capsys.readouterr().err == "x is missing\n"


def test_settings_that_rows_depend_on(load: Load) -> None:
    """
    How a server is reached, and how a read is split or a write is paced, is no part of what a
    backfill is; what is read and what is published is, each by its own name.
    """
    read = backfilling.identity(
        {"servers": "x", "Token": "y", "minPartitions": "3", "Subject": "s", "failOnDataLoss": "no"}
    )
    written = backfilling.target_identity(
        {"servers": "x", "subject": "t", "maxInFlight": "1", "subjectMapping": "{}"}
    )

    assert read == {"option subject": "s"}
    assert written == {"target option subject": "t", "target option subjectMapping": "{}"}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({}, {"servers": "a", "user": "u", "password": "p"}),
        ({"Password": "q", "maxInFlight": "1"}, {"servers": "a", "user": "u", "Password": "q"}),
        ({"Servers": "b"}, {"Servers": "b"}),
        ({"servers": "b", "token": "t"}, {"servers": "b", "token": "t"}),
    ],
    ids=["as the source", "another password", "another server", "with its token"],
)
def test_how_a_target_is_reached(
    load: Load, target: dict[str, str], expected: dict[str, str]
) -> None:
    """A target is reached as the source is; other servers never get the source's secrets."""
    source = {"servers": "a", "user": "u", "password": "p", "stream": "S"}

    assert backfilling.reaching(source, target) == expected


# ── the documentation ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("job", JOBS)
def test_the_examples_are_commands(
    load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Every example of a help gets as far as Spark, arguments and options checked."""
    module = load(job)
    faults = load("backfill.faults")
    text = (module.__doc__ or "").replace("\\\n", " ").replace("/etc/nats", str(tmp_path))
    (tmp_path / "spark.creds").write_text("-----BEGIN NATS USER JWT-----\n")
    called = f"pyspark-jetstream {COMMANDS[job][1]}"
    examples = re.findall(rf"^    {called} (.*)$", text, re.M)

    def spark(name: str) -> None:
        raise faults.BackfillError("as far as Spark")

    monkeypatch.setattr(backfilling, "session", spark)
    ended = [commands.main([*COMMANDS[job][1].split(), *shlex.split(each)]) for each in examples]

    assert len(examples) >= 3
    assert ended == [1] * len(examples)
    assert set(capsys.readouterr().err.splitlines()) == {f"{called}: as far as Spark"}


def test_jobs_use_what_the_package_offers() -> None:
    """What programs import of the package by its name begins with no underscore, and is there."""
    used = [
        (node.module, alias.name)
        for places in ("jobs/*.py", "pyspark_jetstream/operations/**/*.py")
        for path in sorted(ROOT.glob(places))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark_jetstream.")
        for alias in node.names
    ]

    def offered(place: str, name: str) -> bool:
        module = importlib.import_module(place)
        is_there = hasattr(module, name) or find_spec(f"{place}.{name}") is not None
        return is_there and (name == "__version__" or not name.startswith("_"))

    assert used
    assert [each for each in used if not offered(str(each[0]), each[1])] == []


def test_the_bar(tmp_path: Path) -> None:
    """On a terminal there is a bar with rate and time left."""
    program = (
        "from pyspark_jetstream.operations.console.backfills.backfilling import showing\n"
        "from pyspark_jetstream.operations.console.progress import bars\n"
        "import time\n"
        "with bars() as bar:\n"
        "    show = showing(bar, 'FLIGHTS', 1_000, 250)\n"
        "    time.sleep(0.1)\n"
        "    show(250, 240)\n"
    )
    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", program],
        stderr=theirs, stdout=subprocess.DEVNULL, timeout=60, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)

    assert "FLIGHTS" in shown
    assert "50.0%" in shown
    assert re.search(r"240 rows in this run  [\d,]+ rows/s  \d+:\d\d left", shown)
