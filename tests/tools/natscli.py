"""
A stand-in for the command `nats` where it is not installed: the examples of the docs go on.

It has the subcommands and flags that the examples use, as nats 0.3.0 has them, and refuses all
others, so that an example with a mistake fails here, too. It acts on the server of $NATS_URL.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.options import parse_connection

SECONDS = {"s": 1, "m": 60, "h": 3600}
RETENTION = {"limits": "limits", "interest": "interest", "work": "workqueue"}
"""What the command calls them, and what the API does."""


def main(arguments: list[str]) -> int:
    """Does what they say; what this does not know ends it."""
    name = next(name for name in (arguments[0], " ".join(arguments[:2])) if name in COMMANDS)
    places, needed, known, does = COMMANDS[name]
    left, given = arguments[len(name.split()) :], dict.fromkeys(known)
    if needed:  # it would ask
        left.remove(needed)
    words = [left.pop(0) for _ in places.split()]
    while left:
        flag = left.pop(0).removeprefix("--")
        given[flag] = True if known[flag] is bool else known[flag](left.pop(0))
    with closing(Server(parse_connection({"servers": os.environ["NATS_URL"]}))) as server:
        does(server, *words, **{flag: value for flag, value in given.items() if value is not None})
    return 0


class Server(Client):
    """A connection, and requests on it, one after the other."""

    def ask(
        self, subject: str, body: str | dict[str, Any], *headers: tuple[str, str]
    ) -> dict[str, Any]:
        """The answer of JetStream; an error in it ends the program."""
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        request = subject, data, wire.header_block(headers) if headers else b""
        (reply,) = self.connection.requests([request], 60.0)
        answer: dict[str, Any] = json.loads(
            reply.data or b'{"error": {"description": "no answer"}}'
        )
        if "error" in answer:
            raise SystemExit(f"nats: {answer['error']['description']}")
        return answer


def _nanoseconds(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([smh])", text).groups()  # type: ignore[union-attr]
    return int(number) * SECONDS[unit] * 10**9


def _add(server: Server, stream: str, **given: Any) -> None:
    config = {"name": stream, "subjects": given.pop("subjects", []), "storage": "file"}
    server.ask(f"$JS.API.STREAM.CREATE.{stream}", config | _changes(**given))


def _edit(server: Server, stream: str, **given: Any) -> None:
    config = server.ask(f"$JS.API.STREAM.INFO.{stream}", "")["config"]
    server.ask(f"$JS.API.STREAM.UPDATE.{stream}", config | _changes(**given))


def _changes(**given: Any) -> dict[str, Any]:
    source, to = (given.pop(f"transform-{end}", "") for end in ("source", "destination"))
    changed = {MEMBERS[flag]: value for flag, value in given.items()}
    return changed | ({"subject_transform": {"src": source, "dest": to}} if source else {})


def _publish(server: Server, subject: str, body: str, count: int = 1) -> None:
    for number in range(1, count + 1):
        server.ask(subject, body.replace("{{Count}}", str(number)))


def _add_bucket(server: Server, bucket: str, history: int = 1) -> None:
    config = {
        "name": f"KV_{bucket}", "subjects": [f"$KV.{bucket}.>"], "storage": "file",
        "max_msgs_per_subject": history, "discard": "new", "deny_delete": True,
        "allow_rollup_hdrs": True, "allow_direct": True,
    }  # fmt: skip
    server.ask(f"$JS.API.STREAM.CREATE.KV_{bucket}", config)


def _info(server: Server, stream: str) -> None:
    info = server.ask(f"$JS.API.STREAM.INFO.{stream}", "")
    sys.stdout.write(json.dumps(info, indent=2) + "\n")


MEMBERS: Final = {
    "mirror": "mirror", "subjects": "subjects", "allow-direct": "allow_direct",
    "allow-batch": "allow_atomic", "retention": "retention", "dupe-window": "duplicate_window",
    "max-msgs-per-subject": "max_msgs_per_subject",
}  # fmt: skip
"""Of a stream's configuration, by the flag that says it."""

CONFIG: Final[dict[str, Callable[[str], Any]]] = {
    "mirror": lambda name: {"name": name}, "subjects": lambda text: text.split(","),
    "allow-direct": bool, "allow-batch": bool, "retention": RETENTION.__getitem__,
    "dupe-window": _nanoseconds, "max-msgs-per-subject": int,
    "transform-source": str, "transform-destination": str,
}  # fmt: skip

COMMANDS: Final[dict[str, tuple[str, str, dict[str, Callable[[str], Any]], Callable[..., Any]]]] = {
    "stream add": ("stream", "--defaults", CONFIG, _add),
    "stream edit": ("stream", "--force", CONFIG, _edit),
    "stream info": ("stream", "", {}, _info),
    "stream rm": ("stream", "--force", {}, lambda s, of: s.ask(f"$JS.API.STREAM.DELETE.{of}", "")),
    "pub": ("subject body", "", {"count": int}, _publish),
    "request": ("subject body", "--no-templates", {}, Server.ask),
    "kv add": ("bucket", "", {"history": int}, _add_bucket),
    "kv put": ("bucket key value", "", {}, lambda s, of, key, x: s.ask(f"$KV.{of}.{key}", x)),
    "kv del": ("bucket key", "--force", {},
               lambda s, of, key: s.ask(f"$KV.{of}.{key}", "", ("KV-Operation", "DEL"))),
}  # fmt: skip
"""What stands behind a command, the flag without which it would ask, other flags, what it does."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
