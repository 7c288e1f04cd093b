"""
Entering a server: by ourselves where it wants neither TLS nor a signature, else by nats-py.

A new process of Spark's pays for what it imports: nats-py, with asyncio and ssl, costs it more time
than all of this package, and a task on a plain connection needs none of them.

Rule: where an option asks for TLS or signs (`credentials`, `nkeySeed`), and where a server asks for
TLS, nothing is said here: `handshake` begins anew, with what it holds for such connections.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from ..errors import JetStreamError, ProtocolError
from ..sanitize import conceal
from .peer import Peer, give_up_at, refused, unreached
from .wire import info_of

if TYPE_CHECKING:
    import socket

    from .options import ConnectionOptions

__all__ = ["shake_hands"]


class _Unentered(Exception):
    """What a server said instead of letting us in."""


def shake_hands(
    options: ConnectionOptions, at_start: bool = False
) -> tuple[socket.socket, dict[str, Any], bytes]:
    """
    Connects to one of the servers and logs in.

    Args:
        at_start: whether no server was reached before; each gets `connectTimeout` then, in all.

    Returns:
        The open socket, what the server says of itself (INFO), and bytes that came behind that.

    Raises:
        AuthenticationError: A server refused the credentials.
        TlsError: One has no TLS, which an option asks for, or mixes it with bytes in clear.
        NotConnectedError: None could be reached.
    """
    conceal(*_secrets(options))  # whoever listens there may say what it was told
    if not (options.tls_asked_by or options.credentials or options.nkey_seed):
        peer = Peer(options.connect_timeout_s, give_up_at(options, at_start))
        outcome = _outcome(options, peer)
        if isinstance(outcome, JetStreamError):
            peer.close()
            raise outcome from None
        if outcome is not None and peer.sock is not None:
            return peer.sock, outcome, peer.leftover
        peer.close()
    from .handshake import shake_hands

    return shake_hands(options, at_start)


def _secrets(options: ConnectionOptions) -> Iterator[str]:
    """What a server is told that nobody else is to know."""
    for secret in (options.password, options.token):
        if secret is not None:
            yield secret.reveal()
    for server in map(urlsplit, options.servers):
        word = server.password or server.username  # a user alone is a token
        if word:
            yield from (word, unquote(word))


def _outcome(options: ConnectionOptions, peer: Peer) -> dict[str, Any] | JetStreamError | None:
    """The INFO of the server that was entered, why there is none; None where one asks for TLS."""
    failures: dict[str, Exception] = {}
    servers = [urlsplit(server) for server in options.servers]
    random.shuffle(servers)
    met: set[SplitResult] = set()
    for server in servers * 2:
        if server in met:
            continue
        try:
            peer.dial(server.hostname, server.port)
        except OSError as error:
            failures.setdefault(peer.name, error)
            continue
        met.add(server)
        try:
            info = _info(peer.line())
            if info.get("tls_required") or info.get("tls_verify"):
                return None
            return _entered(options, server, peer, info)
        except (OSError, _Unentered) as error:
            if refusal := refused(options, str(error)):
                return refusal
            failures[peer.name] = error  # another one may let us in
    return _why(options, peer, failures)


def _why(options: ConnectionOptions, peer: Peer, failures: dict[str, Exception]) -> JetStreamError:
    said = {name: str(error) or type(error).__name__ for name, error in failures.items()}
    text = "; ".join(f"{name}: {error}" for name, error in said.items())
    return unreached(options, list(failures.values()), text, peer.silent)


def _info(line: bytes) -> dict[str, Any]:
    verb, _, text = line.partition(b" ")
    if verb != b"INFO":
        raise _Unentered("nats: empty response from server when expecting INFO message")
    try:
        return info_of(text)
    except ProtocolError as error:
        raise _Unentered(f"nats: info message, json parse error: {error}") from None


def _entered(
    options: ConnectionOptions, server: SplitResult, peer: Peer, info: dict[str, Any]
) -> dict[str, Any]:
    """Logs in to the server that said `info`, and returns what it says of itself by then."""
    says: dict[str, Any] = {
        "verbose": False,
        "pedantic": False,
        "lang": "python3",
        "protocol": 1,
        "echo": True,
        "name": options.client_name,
        "headers": bool(info.get("headers")),
        "no_responders": bool(info.get("headers")),
    }
    # Whether it asks or not: with `no_auth_user` it takes who names nobody for somebody else.
    if options.user and options.password:
        says |= {"user": options.user, "pass": options.password.reveal()}
    elif options.token:
        says["auth_token"] = options.token.reveal()
    elif server.password:
        says |= {"user": server.username, "pass": server.password}
    elif server.username:
        says["auth_token"] = server.username
    peer.send(b"CONNECT %s\r\nPING\r\n" % json.dumps(says).encode())
    while (line := peer.line().strip()) != b"PONG":
        verb, _, text = line.partition(b" ")
        if verb == b"-ERR":
            raise _Unentered(f"nats: {text.decode('utf-8', 'replace')}")
        if verb == b"INFO":
            info = info | _info(line)
        elif verb == b"PING":
            peer.send(b"PONG\r\n")
    return info
