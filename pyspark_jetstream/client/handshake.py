"""
The handshake with a server: INFO, TLS where it is asked for, CONNECT, and the first PONG.

There is this one way into a server. A new process of Spark's pays for what it imports, so ssl is
imported where TLS begins, and nats-py, with asyncio, where a login signs (`credentials`,
`nkeySeed`): how a server's challenge is answered is nats-py's. Nothing else in the package imports
it.

Rule 1: where an option asks for TLS (`ConnectionOptions.tls_asked_by`), nothing is written in
clear, whatever a server says of itself (`peer` holds it).
Rule 2: nothing that came in clear is believed once TLS has begun: INFO is taken from inside it.
Rule 3: of time and of the length of lines, as `peer` says.
Rule 4: only servers of the option `servers` are dialled; whom a server names gets no secret.
"""

from __future__ import annotations

import json
import random
from collections import UserString
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ..errors import AuthenticationError, JetStreamError, ProtocolError
from ..sanitize import conceal
from .peer import Peer, refused, unreached
from .wire import info_of

if TYPE_CHECKING:
    import socket
    import ssl

    from .options import ConnectionOptions


_DISTRUSTED: Final = (
    "tlsCaFile must hold the CA that signed its certificate, as PEM, on every host; option servers"
    " must name it as the certificate does; and both clocks must be right"
)


class _Unentered(Exception):
    """The server's refusal of the login."""


def shake_hands(options: ConnectionOptions) -> tuple[socket.socket, dict[str, Any], bytes]:
    """
    Connects to one of the servers and logs in.

    Returns:
        The open socket, what the server says of itself (INFO), and bytes that came behind that.

    Raises:
        AuthenticationError: A server refused the credentials, or they are none.
        TlsError: One has no TLS, which an option asks for, or mixes it with bytes in clear.
        NotConnectedError: None could be reached.
    """
    for secret in (options.password, options.token):
        if secret is not None:
            conceal(secret.reveal())  # whoever listens there may say what it was told
    peer = Peer(options.connect_timeout_s, options.tls_asked_by)
    try:
        info = _Login(options, peer).entered()
        return peer.open(), info, peer.leftover
    except BaseException as error:
        peer.close()
        if isinstance(error, JetStreamError):
            # It says all there is to say, so it comes without the frames and the errors below.
            error.__context__ = None
            raise error.with_traceback(None) from None
        raise


class _Login:
    """The login, at one server after the other; its parts are made before one is dialled."""

    def __init__(self, options: ConnectionOptions, peer: Peer) -> None:
        self._options = options
        self._peer = peer
        self._info: dict[str, Any] = {}
        """What the server says of itself, as far as it came."""
        self._context: ssl.SSLContext | None = None
        """None: made where a server asks for TLS that no option asks for."""
        if options.tls_asked_by:
            from .tls import context_of

            self._context = context_of(options)
        signs = options.credentials is not None or options.nkey_seed is not None
        self._signer = _signer(options) if signs else None
        """nats-py's client, which has the keys; None: the login signs nothing."""

    def entered(self) -> dict[str, Any]:
        """The INFO of the first server that lets us in."""
        failures: dict[str, Exception] = {}
        servers = [urlsplit(server) for server in self._options.servers]
        random.shuffle(servers)
        for server in servers:
            self._info = {}
            try:
                self._peer.dial(server.hostname, server.port)
                self._enter(server.hostname)
                return self._info
            except (OSError, _Unentered, ProtocolError) as error:
                if final := self._final(error):
                    raise final from None
                failures[self._peer.name] = error  # another one may let us in
        raise unreached(self._options, failures)

    def _enter(self, host: str | None) -> None:
        peer, asked = self._peer, self._options.tls_asked_by
        if self._options.tls.handshake_first:
            self._begin_tls(host)
        info = self._info = _info(peer.line())
        upgraded = not peer.encrypted and bool(info.get("tls_required") or asked)
        if upgraded:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise peer.not_offered()
            self._begin_tls(host)
        peer.send(b"CONNECT %s\r\nPING\r\n" % json.dumps(self._says()).encode())
        later = _until_pong(peer)
        if upgraded:
            # nats-server sends its INFO again behind its first PONG, so it is there before the
            # next. One that is too old, or no nats-server, is taken by its first INFO.
            peer.send(b"PING\r\n")
            later |= _until_pong(peer)
        self._info = later if upgraded and later else info | later

    def _begin_tls(self, host: str | None) -> None:
        from .tls import context_of, start_tls

        start_tls(self._peer, self._context or context_of(self._options), host)

    def _says(self) -> dict[str, Any]:
        """The fields of CONNECT."""
        options, info = self._options, self._info
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
        if self._signer is not None and info.get("nonce"):
            return says | _signature(self._signer, info["nonce"])
        # Whether it asks or not: with `no_auth_user` it takes who names nobody for somebody else.
        if options.user and options.password:
            return says | {"user": options.user, "pass": options.password.reveal()}
        if options.token:
            return says | {"auth_token": options.token.reveal()}
        return says

    def _final(self, error: Exception) -> AuthenticationError | None:
        """The error where what a server said, or showed, is not to be tried elsewhere or again."""
        options, text = self._options, str(error) or type(error).__name__
        if refusal := refused(options, text):
            return refusal
        wants_ours = self._info.get("tls_verify") or "CERTIFICATE_REQUIRED" in text
        if wants_ours and not options.tls.cert_file:
            text = f"it wants a client certificate: {text}"
            return AuthenticationError(options.where, text, "give tlsCertFile and tlsKeyFile")
        if type(error).__name__ == "SSLCertVerificationError":  # ssl is imported where TLS begins
            return AuthenticationError(options.where, f"TLS: {text}", _DISTRUSTED)
        return None


def _signer(options: ConnectionOptions) -> Any:
    """nats-py's client, which never connects: it has the keys, and answers a challenge by them."""
    from nats.aio.client import Client as NatsClient

    signer: Any = NatsClient()
    try:
        if options.credentials is not None:
            signer._user_credentials = UserString(options.credentials.reveal())
        elif options.nkey_seed is not None:
            signer._nkeys_seed_str = options.nkey_seed.reveal().strip()
        signer._setup_nkeys_connect()
        _signature(signer, "")
    except Exception as error:  # whatever nats-py and nkeys meet in a text that is none
        name = "credentials" if options.credentials is not None else "nkeySeedFile"
        remedy = "give the text as it was made: by nsc, or the one who runs the servers"
        raise AuthenticationError(options.where, f"{name}: {error}", remedy) from None
    return signer


def _signature(signer: Any, nonce: str) -> dict[str, Any]:
    """Answer to a server's challenge."""
    says = {"sig": signer._signature_cb(nonce).decode()}
    if signer._user_jwt_cb is not None:
        return says | {"jwt": bytes(signer._user_jwt_cb()).decode()}
    return says | {"nkey": signer._public_nkey}


def _until_pong(peer: Peer) -> dict[str, Any]:
    """The server's INFO before its next PONG; empty if there is none."""
    info: dict[str, Any] = {}
    while (line := peer.line().strip()) != b"PONG":
        verb, _, text = line.partition(b" ")
        if verb == b"-ERR":
            raise _Unentered(f"nats: {text.decode('utf-8', 'replace')}")
        if verb == b"INFO":
            info |= _info(line)
        elif verb == b"PING":
            peer.send(b"PONG\r\n")
    return info


def _info(line: bytes) -> dict[str, Any]:
    verb, _, text = line.partition(b" ")
    if verb != b"INFO":
        raise _Unentered("nats: empty response from server when expecting INFO message")
    return info_of(text)
