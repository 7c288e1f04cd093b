"""The consumers of a query: pause them, let them go on, take their pins. No query is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

import click

from ...client.jetstream import JetStream
from ...client.options import ConnectionOptions
from ...errors import JetStreamError
from ..connecting import SECONDS, client_of, connects
from ..screen import show, show_json, table

NOTHING: Final = 3
"""Exit status: a consumer was not paused, or nobody was pinned."""


Consumer = tuple[str, str, dict[str, Any]]
"""A consumer's stream, its name, and what the server lists of it."""


def chosen(js: JetStream, streams: str, name: str) -> list[Consumer]:
    """
    The consumer of a name, or a query's consumers, whose names begin with it.

    Raises:
        JetStreamError: There is none, or no leader answers for one.
    """
    known = js.stream_names() if "*" in streams else [streams]
    found = []
    for stream in (each for each in known if fnmatchcase(each, streams)):
        consumers, missing = js.consumer_list(stream)
        facts = {str(each["name"]): each for each in consumers}
        for each in sorted([*facts, *missing]):
            if each == name or each.startswith(f"{name}-"):
                if each in missing:
                    raise JetStreamError(f"consumer '{stream}.{each}' has no leader; try again")
                found.append((stream, each, facts[each]))
    if not found:
        raise JetStreamError(f"stream '{streams}' has no consumer '{name}', nor '{name}-…'")
    return found


def _of_consumers(program: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments of all these programs."""
    program = connects(program)
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON document."),
        click.option("--consumer", required=True, metavar="NAME",
                     help="A consumer, or what the names of a query's consumers begin with."),
        click.option("--stream", required=True, metavar="NAME",
                     help="Its stream; `ORDERS-*` for all of a layout."),
    ):  # fmt: skip
        program = option(program)
    return program


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    show_json(rows) if as_json else show(table(rows))


def _paused(
    connection: ConnectionOptions, stream: str, consumer: str, until: datetime | None
) -> Iterator[dict[str, Any]]:
    with client_of(connection) as client:
        js = JetStream(client)
        for of, name, facts in chosen(js, stream, consumer):
            is_paused = facts.get("paused") and facts.get("pause_remaining")
            before = facts["config"].get("pause_until") if is_paused else None
            now = js.pause(of, name, until) or None
            yield {"stream": of, "consumer": name, "paused_until": now, "before": before}


@click.command()
@click.option("--for", "for_s", type=SECONDS, required=True, metavar="TIME", help="Such as 10m.")
@_of_consumers
def pause(
    connection: ConnectionOptions, stream: str, consumer: str, for_s: float, as_json: bool
) -> None:
    """
    Pauses the consumers of a query for a time.

    The query plans no batch until the pause ends, and logs until when. A later pause replaces an
    earlier one.

    \b
    pyspark-jetstream pause --stream FLIGHTS --consumer alerts --for 10m
    """
    until = datetime.now(UTC) + timedelta(seconds=for_s)
    _show(list(_paused(connection, stream, consumer, until)), as_json)


@click.command()
@_of_consumers
def resume(connection: ConnectionOptions, stream: str, consumer: str, as_json: bool) -> int:
    """
    Ends a pause before its time.

    Exit status 3: a consumer was not paused.

    \b
    pyspark-jetstream resume --stream FLIGHTS --consumer alerts
    """
    rows = list(_paused(connection, stream, consumer, None))
    _show(rows, as_json)
    return 0 if all(row["before"] for row in rows) else NOTHING


@click.command()
@_of_consumers
def unpin(connection: ConnectionOptions, stream: str, consumer: str, as_json: bool) -> int:
    """
    Takes the pins of a query's consumers.

    A standby takes over then. No message is lost. The server pins the next client whose pull it
    serves, which may be the same one. Exit status 3: nobody was pinned at a consumer.

    \b
    pyspark-jetstream unpin --stream FLIGHTS --consumer alerts
    """
    rows = []
    with client_of(connection) as client:
        js = JetStream(client)
        for of, name, facts in chosen(js, stream, consumer):
            for group in facts.get("priority_groups") or ():
                before = group.get("pinned_client_id") or None
                js.unpin(of, name, str(group["group"]))
                after = js.consumer_info(of, name)
                rows.append({
                    "stream": of, "consumer": name, "group": group["group"],
                    "unpinned": before, "since": group.get("pinned_ts") if before else None,
                    "pinned": after.pinned_id or None, "waiting": after.num_waiting,
                })  # fmt: skip
    if not rows:
        raise JetStreamError(f"no consumer '{consumer}' of stream '{stream}' has a priority group")
    _show(rows, as_json)
    return 0 if all(row["unpinned"] for row in rows) else NOTHING
