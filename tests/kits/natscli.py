"""
A stand-in for the command `nats` where it is not installed: the examples of the docs go on.

It has the subcommands and flags that the examples use, as nats 0.3.0 has them, and refuses all
others, so that an example with a mistake fails here, too. It acts on the server of $NATS_URL.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from typing import Any

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream

from .options import connection_of

__all__ = ["main"]

SECONDS = {"s": 1, "m": 60, "h": 3600}


def main(arguments: list[str]) -> int:
    """Does what they say."""
    given = _parser().parse_args(arguments)
    client = Client(connection_of(os.environ["NATS_URL"]))
    try:
        given.does(JetStream(client), given)
    finally:
        client.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("nats", allow_abbrev=False)
    commands = parser.add_subparsers(required=True)
    stream = commands.add_parser("stream").add_subparsers(required=True)
    for name, does, consent in (("add", _add, "--defaults"), ("edit", _edit, "--force")):
        command = stream.add_parser(name, allow_abbrev=False)
        command.add_argument("stream")
        command.add_argument(consent, action="store_true", required=True)  # it would ask
        command.add_argument("--subjects", type=lambda text: text.split(","), default=[])
        command.add_argument("--allow-direct", action="store_true")
        command.add_argument("--allow-batch", action="store_true")
        command.add_argument("--dupe-window", type=_nanoseconds)
        command.add_argument("--max-msgs-per-subject", type=int)
        command.add_argument("--transform-source")
        command.add_argument("--transform-destination")
        command.set_defaults(does=does)
    info = stream.add_parser("info", allow_abbrev=False)
    info.add_argument("stream")
    info.set_defaults(does=_info)
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
    return parser


def _nanoseconds(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([smh])", text).groups()  # type: ignore[union-attr]
    return int(number) * SECONDS[unit] * 10**9


def _add(js: JetStream, given: argparse.Namespace) -> None:
    config = {"name": given.stream, "subjects": given.subjects, "storage": "file"}
    js.create_stream(config | _changes(given))


def _edit(js: JetStream, given: argparse.Namespace) -> None:
    info = json.loads(js.client.request(f"$JS.API.STREAM.INFO.{given.stream}").data)
    config = info["config"] | _changes(given)
    _call(js, f"$JS.API.STREAM.UPDATE.{given.stream}", json.dumps(config))


def _changes(given: argparse.Namespace) -> dict[str, Any]:
    changes = {
        "allow_direct": given.allow_direct,
        "allow_atomic": given.allow_batch,
        "duplicate_window": given.dupe_window,
        "max_msgs_per_subject": given.max_msgs_per_subject,
    }
    if given.transform_source:
        changes["subject_transform"] = {
            "src": given.transform_source,
            "dest": given.transform_destination,
        }
    return {name: value for name, value in changes.items() if value}


def _info(js: JetStream, given: argparse.Namespace) -> None:
    info = _call(js, f"$JS.API.STREAM.INFO.{given.stream}", "")
    sys.stdout.write(json.dumps(info, indent=2) + "\n")


def _publish(js: JetStream, given: argparse.Namespace) -> None:
    for count in range(1, given.count + 1):
        js.publish(given.subject, given.body.replace("{{Count}}", str(count)).encode(), [])


def _request(js: JetStream, given: argparse.Namespace) -> None:
    _call(js, given.subject, given.body)


def _add_bucket(js: JetStream, given: argparse.Namespace) -> None:
    js.create_stream({
        "name": f"KV_{given.bucket}", "subjects": [f"$KV.{given.bucket}.>"], "storage": "file",
        "max_msgs_per_subject": given.history, "discard": "new", "deny_delete": True,
        "allow_rollup_hdrs": True, "allow_direct": True,
    })  # fmt: skip


def _put(js: JetStream, given: argparse.Namespace) -> None:
    js.publish(f"$KV.{given.bucket}.{given.key}", given.value.encode(), [])


def _call(js: JetStream, subject: str, body: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(js.client.request(subject, body.encode()).data)
    if "error" in answer:
        raise SystemExit(f"nats: {answer['error']['description']}")
    return answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
