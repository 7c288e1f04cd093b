"""A server that answers what an older nats-server answered, recorded byte by byte."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

from .proxy import Peer

Frame = tuple[bytes, bytes]
"""Header block, which may be empty, and payload."""

Answer = Callable[[bytes], list[Frame]]
"""What a request with this payload gets."""

INFO_2_9: dict[str, object] = {
    "server_id": "NBGS", "server_name": "NBGS", "version": "2.9.25", "proto": 1, "go": "go1.20.12",
    "host": "0.0.0.0", "port": 4222, "headers": True, "max_payload": 1048576, "jetstream": True,
    "client_id": 4, "client_ip": "127.0.0.1",
}  # fmt: skip
"""Of nats-server 2.9.25."""

STREAM_INFO_2_9 = (
    b'{"type":"io.nats.jetstream.api.v1.stream_info_response","total":0,"offset":0,"limit":0,'
    b'"config":{"name":"S","subjects":["S.\\u003e"],"retention":"limits","max_consumers":-1,'
    b'"max_msgs":-1,"max_bytes":-1,"max_age":0,"max_msgs_per_subject":5,"max_msg_size":-1,'
    b'"discard":"old","storage":"file","num_replicas":1,"duplicate_window":120000000000,'
    b'"allow_direct":true,"mirror_direct":false,"sealed":false,"deny_delete":false,'
    b'"deny_purge":false,"allow_rollup_hdrs":false},"created":"2026-11-22T05:37:58.679232907Z",'
    b'"state":{"messages":4,"bytes":204,"first_seq":1,"first_ts":"2026-11-22T05:37:58.680382941Z",'
    b'"last_seq":4,"last_ts":"2026-11-22T05:37:58.680901989Z","num_subjects":2,"consumer_count":0},'
    b'"cluster":{"leader":"NBGS"}}'
)
"""Its answer to STREAM.INFO: no `ts`."""

FIRST_2_9: Frame = (
    b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: S.0\r\nNats-Sequence: 1\r\n"
    b"Nats-Time-Stamp: 2026-11-22T05:37:58.680382941Z\r\n\r\n",
    b"x0",
)
"""Its whole answer to a direct get of `{"batch": 3, "seq": 1}`: one message, and no count."""

EMPTY_2_9: Frame = (b"NATS/1.0 408 Empty Request\r\n\r\n", b"")
"""Its answer where only fields are given that it does not know, as `multi_last`."""


def direct_get_2_9(payload: bytes) -> list[Frame]:
    """As it answers a direct get: fields that it does not know are none."""
    known = {"seq", "last_by_subj", "next_by_subj"} & json.loads(payload or b"{}").keys()
    return [FIRST_2_9 if known else EMPTY_2_9]


def stream_2_9() -> dict[str, Answer]:
    """What it says of its stream S, by the subjects of the API."""
    api = "$JS.API"
    return {
        f"{api}.STREAM.NAMES": lambda _: [(b"", b'{"total":1,"streams":["S"]}')],
        f"{api}.STREAM.INFO.S": lambda _: [(b"", STREAM_INFO_2_9)],
        f"{api}.DIRECT.GET.S": direct_get_2_9,
    }


class RecordedServer(Peer):
    """
    Speaks as much of the protocol as one client needs.

    Args:
        info: of its INFO line.
        answers: by subject; what is published elsewhere is answered by nobody.
    """

    def __init__(self, info: Mapping[str, object], answers: Mapping[str, Answer]) -> None:
        super().__init__(self._speak)
        self.info, self.answers = info, answers

    def _speak(self, client: socket.socket, _: object) -> None:
        inboxes: dict[bytes, bytes] = {}
        with suppress(ValueError), client.makefile("rb") as lines:
            client.sendall(b"INFO %s\r\n" % json.dumps(self.info).encode())
            while line := lines.readline():
                verb, *words = line.split()
                if verb == b"PING":
                    client.sendall(b"PONG\r\n")
                elif verb == b"SUB":
                    inboxes[words[0]] = words[-1]
                elif verb in (b"PUB", b"HPUB"):
                    body = lines.read(int(words[-1]) + 2)[:-2]
                    head = int(words[-2]) if verb == b"HPUB" else 0
                    reply = words[1] if len(words) > 2 + (verb == b"HPUB") else b""
                    answer = self.answers.get(words[0].decode())
                    for frame in answer(body[head:]) if answer is not None else ():
                        client.sendall(_sent(frame, reply, _sid(inboxes, reply)))


def _sid(inboxes: Mapping[bytes, bytes], reply: bytes) -> bytes:
    for inbox, sid in inboxes.items():
        if re.fullmatch(re.escape(inbox).replace(rb"\*", rb"[^.]+").replace(b">", b".+"), reply):
            return sid
    raise ValueError(f"nobody listens on {reply!r}")


def _sent(frame: Frame, reply: bytes, sid: bytes) -> bytes:
    head, data = frame
    if not head:
        return b"MSG %s %s %d\r\n%s\r\n" % (reply, sid, len(data), data)
    sizes = len(head), len(head) + len(data)
    return b"HMSG %s %s %d %d\r\n%s%s\r\n" % (reply, sid, *sizes, head, data)
