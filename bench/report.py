"""
The page of figures: docs/bench.md and its pictures, from what `python -m bench` left.

    python -m bench.report bench-results.json

Every section says when, on what, and of which commit. Nothing on the page is written by hand but
what stands here, and that has no figures.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from . import pictures
from .others.references import SPARK_ALONE
from .results import MEASURED_BY

_DOCS: Final = Path(__file__).parents[1] / "docs"
_ROLES: Final = ("server", "jvm", "worker", "source")
_ALONE_ROLES: Final = {"jvm": "JVM", "worker": "workers", "source": "source"}
_PICTURES: Final = "_static/bench"

_HEAD: Final = """\
# Measured

This page shows how fast reads and writes are, and what limits them. In short:

- Each section has one kind of work: reads, latency, writes, snapshots, pressure and so on.
- *rows/s* is the package's own rate. To its right stand references that do the same work.
- The columns *ratio* compare with the reference to their left: 1.00 is as fast as the reference.
- *of the turns* are the lowest and the highest ratio of the single turns, in which ours and the
  reference ran one after the other.
- The tables *limit* say whether cores, the server or round trips limit a case.
- *CPU-s/1M* are seconds of a core for a million rows, by process.
- *MB* is the largest memory of a process of each kind.
- Ratios are of one run whose parts took turns. Absolute figures move by a quarter between runs on a
  shared machine.
- Each section names its time, its commit and its machine. Sections may differ in all three.
- All measured figures come from the results of the benchmarks. Nobody writes one by hand.

`make bench bench-report` runs the benchmarks and makes the page of the results. Server, Spark,
workers and references share the cores of the machine. Run the benchmarks on yours:

<!-- not run: minutes -->
```bash
make bench ARGS="--only write --repeat 3"
```

| reference | meaning |
|---|---|
| *Raw* | bare sockets that decode nothing and, for writes, send bytes made beforehand: the limit |
| *nats-py* | a program by hand with the official client |
| *Spark alone*, writes | the same DataFrame into a Python sink that drops every batch |
| *Spark alone*, reads | a Python source of as many rows and bytes from memory, in as many tasks |

*Spark alone* is the cost of any source or sink in Python. With `ARGS="--with kafka"` the benchmarks
also measure Spark's own Kafka source and sink. Spark fetches the connector and a broker from Maven
Central.

If a section names `conf/spark-defaults.conf`, all its advice was followed. PySpark was compiled by
`conf/compile_pyspark.py`. The line about `spark.hadoop.fs.file.impl` is off in that file; it was
on, because checkpoints were on a local disk. Spark's session is warm: it has run for some seconds
before it is measured.
"""

_SECTIONS: Final = {
    "read": (
        "Streaming reads",
        "Flights as JSON of about 91 B, on two partitions, into noop. *Raw drain* pulls from"
        " pinned consumers, *raw unpinned* from consumers without a priority group. Each message"
        " of a pinned consumer carries the pin's id as a header. At the live end the server"
        " stores and delivers at the same time; the producer's own rate is the limit.",
    ),
    "latency": (
        "Latency at the live end",
        "A row's latency counts from the server's time of a message to the end of the"
        " batch that holds it. Queries have trigger 0, two partitions, rows of 100 B, and"
        " write into noop. Then follow the parts of a batch by Spark's own progress; the"
        " tasks run in *addBatch*. A start counts from the query's start, processes included,"
        " until its first batch is planned. *Spark alone* is the start of a query whose"
        " source asks nobody.",
    ),
    "scale": (
        "Partitions and streams",
        "The same rows of 100 B in one batch over few and many partitions, each a stream."
        " One case reads ten times the `--rows` from two partitions in one go, to show the"
        " memory. `df.write` without ids writes into few and many streams. The last table"
        " counts, at the server, a query's requests to JetStream's API: idle, at the live end"
        " and in a backlog. At the live end each round has a message for every partition, or"
        " for every fourth partition (*one of four*). CPU seconds are those of five rounds, of the"
        " 20 s for which an idle query is watched, and of the whole backlog.",
    ),
    "kafka": (
        "Beside Spark's Kafka source and sink",
        "The same flights in a Kafka topic of as many partitions, on one broker without"
        " replicas, in the same session. Server or broker, Spark and workers share the cores."
        " Kafka's rows have `subject` as key. Kafka's sink has its defaults (idempotent,"
        " `acks=all`, at least once); ours is exactly once. The last table has the waits of a"
        " small job, ten times each in turns: a hundred rows counted, the first rows of a new"
        " query, a hundred rows written.",
    ),
    "share": (
        "Shared reading",
        "One stream, one consumer with `priorityPolicy=overflow`. *Raw claims* are bare sockets"
        " that pull headers and acknowledge without waiting. nats-py fetches and acknowledges"
        " payloads of a plain consumer, one process for each query; it has no priority groups. A"
        " message costs the server a delivery with bookkeeping, an ack and a direct get. So"
        " share a consumer only if the work on each row takes most of the time.",
    ),
    "snapshot": (
        "Ranges and snapshots",
        "Snapshots of streams with messages of 100 B. The raw drain reads the whole stream;"
        " its rate counts subjects. *Spark reduce* reads the range and groups it. Such a"
        " read is no snapshot: nothing tells which messages were overwritten while it read."
        " The last table has one publisher at a time that awaits each PubAck, 500 a second."
        " Its times count from the moment at which a publish was due, so one late publish"
        " also delays those behind it. Reads of commits before bd5e9a9d do not yet ask for fewer"
        " messages when publishers wait. Publishes beside such reads wait much longer than the"
        " section *Beside publishers* says.",
    ),
    "neighbours": (
        "Beside publishers",
        "A stream of 600,000 messages of 91 B. Tasks without Spark read it over and over, by"
        " consumers of their own or by direct get. The first table is of a single server, the"
        " second one of three replicas. In the third one the tasks take snapshots of the stream's"
        " 50,000 subjects. Meanwhile"
        " publishers send messages of 91 B. At first publishers of 50 and of 500 messages a second"
        " run at the same time; then publishers of 5,000 messages a second run. The times of a"
        " publisher count from the publish to its PubAck. Each reader and each"
        " publisher is a process of its own, and all share the cores: the wait of a publish"
        " into another stream shows how short cores are.",
    ),
    "wan": (
        "Far from the servers",
        "All bytes go through a proxy that passes them on 20 ms late each way. *No delay* is"
        " the same proxy without delay; the proxy itself costs CPU. Flights on two partitions go"
        " into noop; snapshots and writes have rows of 100 B and one stream.",
    ),
    "write": (
        "Writes",
        "*ids* means with a `Nats-Msg-Id`, the default of `df.write`.",
    ),
    "pressure": (
        "Under pressure",
        "The publisher without Spark: rows of 100 B with ids, a PubAck for each. *Window*: the"
        " adaptive window beside fixed ones, on scripted servers with a simulated clock and on"
        " real servers. A share is the rows/s of a window, divided by those of the best window on"
        " the same server."
        " *Isolation*: rows of others while some rows are paused or at a limit. *Receipts*: from"
        " an operator's command to the answer of a writer at full rate. *Priorities*: from the"
        " offer of a row until it is stored, on a server with room for 100.",
    ),
    "buckets": (
        "Keys and counters",
        "Rows of 100 B with ids on a thousand keys of a bucket (history 1), and increments of"
        " as many counters. Beside each stand plain rows on as many subjects, without Spark."
        " nats-py has a thousand calls under way.",
    ),
    "disk": (
        "What sync_interval: always costs",
        "Rows of 100 B without Spark to two servers on one disk; one server has `jetstream {"
        " sync_interval: always }`. The stream has no replicas. nats-server then syncs each"
        " message that it stores by itself. Streams with replicas sync their log instead, and"
        " are not measured.",
    ),
    "starts": (
        "Starts of processes",
        "CPU that each Python process of a query costs before Spark has its answer, for one"
        " message or row. Spark forks these processes from daemons that have imported PySpark; so"
        " do the benchmarks, and pyarrow is imported before the fork as well. *Without bytecode*"
        " the package is there as source alone, and each process compiles what it imports.",
    ),
    "mapping": (
        "Subject mapping",
        "Nanoseconds a row over columns of 10,000 rows: with 10,000 different subjects, or with"
        " 3,000 different ones in random order.",
    ),
}
"""The heading of each phase, and the facts that a reader needs."""


def page(results: Mapping[str, Any], docs: Path) -> str:
    """
    The text of the page; its pictures go below `docs`. A phase that has no results keeps the
    section that it has there.
    """
    unknown = results.keys() - _SECTIONS.keys()
    if unknown:
        raise ValueError(f"no section for {', '.join(sorted(unknown))}")
    before = docs / "bench.md"
    kept = re.split("^## ", before.read_text(), flags=re.M)[1:] if before.exists() else []
    sections = {heading: section for heading, _, section in (each.partition("\n") for each in kept)}
    parts = [_HEAD]
    for phase, (heading, words) in _SECTIONS.items():
        if phase in results:
            parts += [f"## {heading}\n", words + "\n", *_section(phase, results[phase], docs)]
        elif heading in sections:
            parts += [f"## {heading}", sections[heading].removesuffix("\n")]
    return "\n".join(parts).rstrip("\n") + "\n"


def _section(phase: str, found: Mapping[str, Any], docs: Path) -> Iterator[str]:
    yield _taken(found["about"]) + "\n"
    cases = found["cases"]
    if cases:
        yield _cases(phase, cases)
        yield _bounds(phase, cases)
        yield MEASURED_BY + "\n" if phase == "read" else ""
    for table in found["tables"]:
        yield _table(table["columns"], table["rows"])
    for name, alternative, draw in _pictures(phase, found):
        draw(docs / _PICTURES / name)
        yield f"![{alternative}]({_PICTURES}/{name})\n"


def _taken(about: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    runs = f"medians of {about['repeat']} runs" if about["repeat"] > 1 else "one run"
    settings = f"; Spark set by `{about['settings']}`" if about.get("settings") else ""
    return (
        f"*Taken {about['taken'].replace('T', ' ').removesuffix('+00:00')} UTC, commit"
        f" {about['commit']}, `--rows {about['rows']}`, {runs}; {about['machine']}, load"
        f" {about['load']} at the start. Versions: {versions}{settings}.*"
    )


def _cases(phase: str, cases: Sequence[Mapping[str, Any]]) -> str:
    others = list(dict.fromkeys(other for case in cases for other in case["references"]))
    started = any(case["whole_rate"] for case in cases)
    columns = ["", "rows/s", *(["with start"] if started else [])]
    columns += [column for other in others for column in (other, "ratio")]
    columns += ["CPU-s/1M: server", "JVM", "workers", "source"]
    alone = [case.get("references_cpu_s", {}).get(SPARK_ALONE) for case in cases]
    shown_alone = [role for role in _ALONE_ROLES if any(role in (each or {}) for each in alone)]
    columns += [f"{SPARK_ALONE}: {_ALONE_ROLES[role]}" for role in shown_alone]
    columns += ["MB: worker", "JVM"]
    rows = []
    for case, alone_cpu_s in zip(cases, alone, strict=True):
        row = [case["name"].removeprefix(f"{phase} "), f"{case['rate']:,}"]
        if started:
            row.append(f"{case['whole_rate']:,}" if case["whole_rate"] else "")
        for other in others:
            rate = case["references"].get(other)
            row += [f"{rate:,}", f"{case['rate'] / rate:.2f}"] if rate else ["", ""]
        cpu_s, memory_mb = case["cpu_s"], case["memory_mb"]
        row += [f"{cpu_s[role]:.1f}" if role in cpu_s else "" for role in _ROLES]
        row += [f"{alone_cpu_s.get(role, 0.0):.1f}" if alone_cpu_s else "" for role in shown_alone]
        row += [f"{memory_mb[role]:,}" if role in memory_mb else "" for role in ("worker", "jvm")]
        rows.append(row)
    return _table(columns, rows)


def _bounds(phase: str, cases: Sequence[Mapping[str, Any]]) -> str:
    """The limit of each case, and notes about references."""
    said: dict[str, list[str]] = {}
    for case in cases:
        said.setdefault(case["bound"], []).append(case["name"].removeprefix(f"{phase} "))
    lines = ["| limit | cases |", "|---|---|"]
    lines += [f"| {bound} | {'<br>'.join(names)} |" for bound, names in said.items()]
    notes = dict.fromkeys(
        f"- {other}: {note}" for case in cases for other, note in case["notes"].items()
    )
    return "\n".join([*lines, "", *notes, ""])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        plain = (re.sub(r"\[/?[a-z]+\]", "", cell).replace("\n", "<br>") for cell in cells)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in plain) + " |"

    ruler = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join([line(columns), "|" + "|".join(ruler) + "|", *map(line, rows), ""])


def _pictures(phase: str, found: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """File name, alternative text, and what draws to a path."""
    cases, entries = found["cases"], found["entries"]
    if phase == "latency":
        yield (
            "latency.svg",
            "p50 and p99 of a row's latency over the rate",
            lambda path: pictures.latencies(path, entries),
        )
    elif phase == "scale":
        yield (
            "scale.svg",
            "CPU seconds a million rows over partitions and streams",
            lambda path: pictures.partitions(path, cases),
        )
        yield (
            "requests.svg",
            "requests to JetStream a batch over partitions",
            lambda path: pictures.requests(path, entries),
        )
    elif cases:
        yield (
            f"{phase}-rates.svg",
            "rows a second of each case beside its references",
            lambda path: pictures.rates(path, cases),
        )
        yield (
            f"{phase}-cpu.svg",
            "CPU seconds a million rows by process",
            lambda path: pictures.costs(path, cases),
        )


def main() -> int:
    """Writes the page and its pictures."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=Path("bench-results.json"))
    parser.add_argument("--docs", type=Path, default=_DOCS, help="(%(default)s)")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    (arguments.docs / "bench.md").write_text(page(results, arguments.docs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
