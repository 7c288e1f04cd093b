"""
A stand-in for the command `nats` where it is not installed: the examples of the docs go on.

It has the subcommands and flags that the examples use, as nats 0.3.0 has them, and refuses all
others, so that an example with a mistake fails here, too. It acts on the server of $NATS_URL.
Standard library only: it starts fifty times in a run of the examples.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
from typing import Any
from urllib.parse import urlsplit

SECONDS = {"s": 1, "m": 60, "h": 3600}
RETENTION = {"limits": "limits", "interest": "interest", "work": "workqueue"}
"""What the command calls them, and what the API does."""


def main(arguments: list[str]) -> int:
    """Does what they say."""
    given = _parser().parse_args(arguments)
    with Server(os.environ["NATS_URL"]) as server:
        given.does(server, given)
    return 0


class Server:
    """A connection, and requests on it, one after the other."""

    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self._socket = socket.create_connection((at.hostname, at.port), timeout=60)
        self._lines = self._socket.makefile("rb")
        options = {"verbose": False, "headers": True, "no_responders": True}
        self._socket.sendall(b"CONNECT %b\r\nSUB _INBOX.x 1\r\n" % json.dumps(options).encode())

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self._lines.close()
        self._socket.close()

    def ask(self, subject: str, body: str | dict[str, Any], header: str = "") -> dict[str, Any]:
        """The answer of JetStream; an error in it ends the program."""
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        lines = f"NATS/1.0\r\n{header}\r\n\r\n".encode() if header else b""
        size = b"%d %d" % (len(lines), len(lines + data)) if header else b"%d" % len(data)
        verb = b"HPUB" if header else b"PUB"
        call = b"%b %b _INBOX.x %b\r\n%b%b\r\n"
        self._socket.sendall(call % (verb, subject.encode(), size, lines, data))
        for line in self._lines:
            if line.startswith(b"PING"):
                self._socket.sendall(b"PONG\r\n")
            elif line.startswith((b"-ERR", b"HMSG")):  # the latter: nobody listens there
                break
            elif line.startswith(b"MSG"):
                answer: dict[str, Any] = json.loads(self._lines.read(int(line.split()[-1])))
                if "error" in answer:
                    raise SystemExit(f"nats: {answer['error']['description']}")
                return answer
        raise SystemExit(f"nats: no answer on {subject}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("nats", allow_abbrev=False)
    commands = parser.add_subparsers(required=True)
    stream = commands.add_parser("stream").add_subparsers(required=True)
    for name, does, consent in (("add", _add, "--defaults"), ("edit", _edit, "--force")):
        command = stream.add_parser(name, allow_abbrev=False)
        command.add_argument("stream")
        command.add_argument(consent, action="store_true", required=True)  # it would ask
        command.add_argument("--mirror", type=lambda name: {"name": name})
        command.add_argument("--subjects", type=lambda text: text.split(","), default=[])
        command.add_argument("--allow-direct", action="store_true")
        command.add_argument("--allow-batch", action="store_true")
        command.add_argument("--retention", choices=RETENTION)
        command.add_argument("--dupe-window", type=_nanoseconds)
        command.add_argument("--max-msgs-per-subject", type=int)
        command.add_argument("--transform-source")
        command.add_argument("--transform-destination")
        command.set_defaults(does=does)
    info = stream.add_parser("info", allow_abbrev=False)
    info.add_argument("stream")
    info.set_defaults(does=_info)
    remove = stream.add_parser("rm", allow_abbrev=False)
    remove.add_argument("stream")
    remove.add_argument("--force", action="store_true", required=True)  # it would ask
    remove.set_defaults(does=_remove)
    publish = commands.add_parser("pub", allow_abbrev=False)
    publish.add_argument("subject")
    publish.add_argument("body")
    publish.add_argument("--count", type=int, default=1)
    publish.set_defaults(does=_publish)
    request = commands.add_parser("request", allow_abbrev=False)
    request.add_argument("subject")
    request.add_argument("body")
    request.add_argument("--no-templates", action="store_true", required=True)
    request.set_defaults(does=_request)
    buckets = commands.add_parser("kv").add_subparsers(required=True)
    add = buckets.add_parser("add", allow_abbrev=False)
    add.add_argument("bucket")
    add.add_argument("--history", type=int, default=1)
    add.set_defaults(does=_add_bucket)
    put = buckets.add_parser("put", allow_abbrev=False)
    put.add_argument("bucket")
    put.add_argument("key")
    put.add_argument("value")
    put.set_defaults(does=_put)
    gone = buckets.add_parser("del", allow_abbrev=False)
    gone.add_argument("bucket")
    gone.add_argument("key")
    gone.add_argument("--force", action="store_true", required=True)  # it would ask
    gone.set_defaults(does=_delete)
    return parser


def _nanoseconds(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([smh])", text).groups()  # type: ignore[union-attr]
    return int(number) * SECONDS[unit] * 10**9


def _add(server: Server, given: argparse.Namespace) -> None:
    config = {"name": given.stream, "subjects": given.subjects, "storage": "file"}
    server.ask(f"$JS.API.STREAM.CREATE.{given.stream}", config | _changes(given))


def _edit(server: Server, given: argparse.Namespace) -> None:
    config = server.ask(f"$JS.API.STREAM.INFO.{given.stream}", "")["config"]
    server.ask(f"$JS.API.STREAM.UPDATE.{given.stream}", config | _changes(given))


def _changes(given: argparse.Namespace) -> dict[str, Any]:
    changes = {
        "mirror": given.mirror,
        "allow_direct": given.allow_direct,
        "allow_atomic": given.allow_batch,
        "retention": RETENTION.get(given.retention),
        "duplicate_window": given.dupe_window,
        "max_msgs_per_subject": given.max_msgs_per_subject,
    }
    if given.transform_source:
        changes["subject_transform"] = {
            "src": given.transform_source,
            "dest": given.transform_destination,
        }
    return {name: value for name, value in changes.items() if value}


def _info(server: Server, given: argparse.Namespace) -> None:
    info = server.ask(f"$JS.API.STREAM.INFO.{given.stream}", "")
    sys.stdout.write(json.dumps(info, indent=2) + "\n")


def _remove(server: Server, given: argparse.Namespace) -> None:
    server.ask(f"$JS.API.STREAM.DELETE.{given.stream}", "")


def _publish(server: Server, given: argparse.Namespace) -> None:
    for count in range(1, given.count + 1):
        server.ask(given.subject, given.body.replace("{{Count}}", str(count)))


def _request(server: Server, given: argparse.Namespace) -> None:
    server.ask(given.subject, given.body)


def _add_bucket(server: Server, given: argparse.Namespace) -> None:
    config = {
        "name": f"KV_{given.bucket}", "subjects": [f"$KV.{given.bucket}.>"], "storage": "file",
        "max_msgs_per_subject": given.history, "discard": "new", "deny_delete": True,
        "allow_rollup_hdrs": True, "allow_direct": True,
    }  # fmt: skip
    server.ask(f"$JS.API.STREAM.CREATE.KV_{given.bucket}", config)


def _put(server: Server, given: argparse.Namespace) -> None:
    server.ask(f"$KV.{given.bucket}.{given.key}", given.value)


def _delete(server: Server, given: argparse.Namespace) -> None:
    server.ask(f"$KV.{given.bucket}.{given.key}", "", "KV-Operation: DEL")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
