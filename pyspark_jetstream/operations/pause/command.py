"""The consumers of a query: pause them, let them go on, take their pins. No query is asked."""

from __future__ import annotations

from collections.abc import Callable
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

Act = Callable[[JetStream, str, str, dict[str, Any]], dict[str, Any]]
"""What is done to a consumer, by its stream, its name, and what the server lists of it."""


def of_consumers(
    connection: ConnectionOptions, stream: str, consumer: str, as_json: bool, act: Act
) -> list[dict[str, Any]]:
    """
    Acts on the consumer of a name, or on a query's, whose names begin with it; shows what came.

    Raises:
        JetStreamError: There is none, or no leader answers for one.
    """
    rows = []
    with client_of(connection) as client:
        js = JetStream(client)
        known = js.stream_names() if "*" in stream else [stream]
        for of in (each for each in known if fnmatchcase(each, stream)):
            consumers, missing = js.consumer_list(of)
            facts = {str(each["name"]): each for each in consumers}
            for name in sorted([*facts, *missing]):
                if name == consumer or name.startswith(f"{consumer}-"):
                    if name in missing:
                        raise JetStreamError(f"consumer '{of}.{name}' has no leader; try again")
                    done = act(js, of, name, facts[name])
                    rows.append({"stream": of, "consumer": name} | done)
    if not rows:
        raise JetStreamError(f"stream '{stream}' has no consumer '{consumer}', nor '{consumer}-…'")
    show_json(rows) if as_json else show(table(rows))
    return rows


def _command(program: Callable[..., Any]) -> click.Command:
    """A command with the arguments that all of these have."""
    program = connects(program)
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON document."),
        click.option("--consumer", required=True, metavar="NAME",
                     help="A consumer, or what the names of a query's consumers begin with."),
        click.option("--stream", required=True, metavar="NAME",
                     help="Its stream; 'ORDERS-*' for all of a layout."),
    ):  # fmt: skip
        program = option(program)
    return click.command()(program)


@_command
@click.option("--for", "for_s", type=SECONDS, required=True, metavar="TIME", help="Such as 10m.")
def pause(for_s: float, **given: Any) -> None:
    """
    Pauses the consumers of a query for a time.

    The query plans no batch until the pause ends, and logs until when. A later pause replaces an
    earlier one.

    \b
    pyspark-jetstream pause --stream FLIGHTS --consumer alerts --for 10m
    """
    until = datetime.now(UTC) + timedelta(seconds=for_s)
    of_consumers(**given, act=lambda js, of, name, _: {"paused_until": js.pause(of, name, until)})


@_command
def resume(**given: Any) -> int:
    """
    Ends a pause before its time.

    Exit status 3: a consumer was not paused.

    \b
    pyspark-jetstream resume --stream FLIGHTS --consumer alerts
    """

    def act(js: JetStream, of: str, name: str, facts: dict[str, Any]) -> dict[str, Any]:
        js.pause(of, name, None)
        return {"was_paused": bool(facts.get("paused"))}

    rows = of_consumers(**given, act=act)
    return 0 if all(row["was_paused"] for row in rows) else NOTHING


@_command
def unpin(**given: Any) -> int:
    """
    Takes the pins of a query's consumers.

    A standby takes over then. No message is lost. The server pins the next client whose pull it
    serves, which may be the same one. Exit status 3: nobody was pinned at a consumer.

    \b
    pyspark-jetstream unpin --stream FLIGHTS --consumer alerts
    """

    def act(js: JetStream, of: str, name: str, facts: dict[str, Any]) -> dict[str, Any]:
        (group, *_) = facts.get("priority_groups") or [{}]
        if pinned := group.get("pinned_client_id"):
            js.unpins([(of, name)], str(group["group"]))
        return {"unpinned": pinned or None, "since": group.get("pinned_ts") if pinned else None}

    rows = of_consumers(**given, act=act)
    return 0 if all(row["unpinned"] for row in rows) else NOTHING
