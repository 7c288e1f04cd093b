"""
The handshake with a server, which is nats-py's: server pool, INFO, TLS, every kind of login.

It runs over a transport of ours, so that the socket can be taken over when it is done. Nothing else
in the package imports nats-py.

Rule 1: where an option asks for TLS (`ConnectionOptions.tls_asked_by`), the transport writes
nothing in clear, whatever a server says of itself, and whatever nats-py makes of it.
Rule 2: nothing that came in clear is believed once TLS has begun: INFO is taken from inside it.
Rule 3: of time and of the length of lines, as `peer` says.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import ssl
from collections import UserString
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from ..errors import AuthenticationError, JetStreamError, NotConnectedError, TlsError
from ..foreign import read_json
from .peer import Peer, give_up_at, refused, unreached
from .wire import info_of

if TYPE_CHECKING:
    from urllib.parse import ParseResult

    from .options import ConnectionOptions

__all__ = ["shake_hands"]

_OTHER_NAME: Final = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""

_OTHER_DATE: Final = (9, 10)
"""Its X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


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
    # A thread of its own, because the caller may stand inside a running event loop (a notebook).
    with ThreadPoolExecutor(1, thread_name_prefix="nats-handshake") as pool:
        outcome = pool.submit(_outcome, options, at_start).result()
    if isinstance(outcome, JetStreamError):
        raise outcome
    return outcome


def _outcome(
    options: ConnectionOptions, at_start: bool
) -> tuple[socket.socket, dict[str, Any], bytes] | JetStreamError:
    """An error says all there is to say, so it comes without asyncio's frames and nats-py's."""
    try:
        return asyncio.run(_handshake(options, at_start))
    except JetStreamError as error:
        return error.with_traceback(None)


async def _handshake(
    options: ConnectionOptions, at_start: bool
) -> tuple[socket.socket, dict[str, Any], bytes]:
    from nats.aio.client import Client as NatsClient

    errors: list[Exception] = []
    tried: dict[str, str] = {}

    async def remember(error: Exception) -> None:
        errors.append(error)
        tried.setdefault(transport.name, str(error) or type(error).__name__)

    transport = _HandshakeTransport(
        options.connect_timeout_s,
        options.tls_asked_by,
        give_up_at(options, at_start),
        names_user=bool(options.user or options.token),
    )
    nats = NatsClient()
    nats._transport = transport  # type: ignore[assignment]  # its only seam for a transport
    try:
        await nats.connect(
            servers=list(options.servers),
            name=options.client_name,
            error_cb=remember,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=max(1, round(options.connect_timeout_s)),
            user=options.user,
            password=options.password.reveal() if options.password else None,
            token=options.token.reveal() if options.token else None,
            nkeys_seed_str=options.nkey_seed.reveal().strip() if options.nkey_seed else None,
            user_credentials=UserString(options.credentials.reveal())  # type: ignore[arg-type]
            if options.credentials
            else None,
            tls=_tls_context(options),
            tls_handshake_first=options.tls_handshake_first,
        )
        info = info_of(dict(nats._server_info))
        if transport.upgraded:
            info = await _said_again(transport, info)
    except Exception as error:
        transport.close()
        if isinstance(error, JetStreamError):
            raise
        cause = errors[-1] if errors and not str(error) else error
        text = str(cause) or type(cause).__name__
        if type(cause).__name__ == "NoServersError" and len(errors) > 1:
            text = str(errors[0]) or type(errors[0]).__name__
        where = ", ".join(options.display_servers)
        if refusal := refused(options, text):
            raise refusal from None
        known = nats._server_info if isinstance(nats._server_info, dict) else {}
        wants_ours = known.get("tls_verify") or "CERTIFICATE_REQUIRED" in text
        if wants_ours and not options.tls_cert_file:
            text = f"it wants a client certificate: {text}"
            raise AuthenticationError(where, text, "give tlsCertFile and tlsKeyFile") from None
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise AuthenticationError(where, f"TLS: {text}", _distrust(options, cause)) from None
        text = "; ".join(f"{peer}: {reason}" for peer, reason in tried.items()) or text
        raise unreached(options, errors, text, transport.silent) from None
    # nats-py's own read, ping and flush tasks end here: asyncio.run cancels what is left.
    sock = transport.sock
    if sock is None:
        raise NotConnectedError(", ".join(options.display_servers), "closed during the handshake")
    return sock, info, transport.leftover


async def _said_again(transport: _HandshakeTransport, info: dict[str, Any]) -> dict[str, Any]:
    """
    The INFO that came inside TLS; the one before, in clear, may be anybody's.

    nats-server sends it behind its first PONG, so it is there before the next one. nats-py may have
    taken another line for the first PONG, so there are two rounds. A server that is too old, or no
    nats-server, is taken by its first INFO, `info`.
    """
    for _ in range(2):
        transport.write(b"PING\r\n")
        await transport.drain()
        said = False
        while (line := await transport.readline()) != b"PONG\r\n":
            verb, _, text = line.partition(b" ")
            if verb == b"INFO":
                info, said = info_of(text), True
            elif verb == b"-ERR":
                transport.leftover = line + transport.leftover  # the connection's to raise
                return info
            elif line == b"PING\r\n":
                transport.write(b"PONG\r\n")
                await transport.drain()
        if said:
            break
    return info


def _tls_context(options: ConnectionOptions) -> ssl.SSLContext | None:
    if not options.tls_asked_by:
        return None  # nats-py's own, for a server that asks for it
    where = ", ".join(options.display_servers)
    try:
        context = ssl.create_default_context(cafile=options.tls_ca_file)
    except (ssl.SSLError, OSError) as error:
        remedy = f"'{options.tls_ca_file}' must hold the CA's certificates as PEM, on every host"
        raise AuthenticationError(where, f"tlsCaFile: {error}", remedy) from None
    if options.tls_cert_file:
        try:
            context.load_cert_chain(options.tls_cert_file, options.tls_key_file)
        except (ssl.SSLError, OSError) as error:
            remedy = "both must be PEM, on every host, and the key that of the certificate"
            raise AuthenticationError(where, f"tlsCertFile, tlsKeyFile: {error}", remedy) from None
    return context


def _distrust(options: ConnectionOptions, error: ssl.SSLCertVerificationError) -> str:
    """What to do about a server's certificate that is not trusted."""
    if error.verify_code in _OTHER_NAME:
        return "write the server in option servers by a name or address that its certificate has"
    if error.verify_code in _OTHER_DATE:
        return "renew its certificate, or set this host's clock"
    if options.tls_ca_file is None:
        return "name the CA that signed its certificate with tlsCaFile, a PEM file on every host"
    return f"tlsCaFile '{options.tls_ca_file}' holds no CA that signed its certificate"


class _HandshakeTransport(Peer):
    """
    What nats-py shakes hands over (its `Transport` interface, structurally).

    Args:
        timeout_s: how long one server may take in all.
        tls_asked_by: the options that ask for TLS; if there are any, nothing is written without.
        give_up_at: when no further server is tried.
        names_user: whether the server is to be told of a user, or a token, whether it asks or not.
    """

    def __init__(
        self,
        timeout_s: float,
        tls_asked_by: tuple[str, ...],
        give_up_at: float = math.inf,
        names_user: bool = False,
    ) -> None:
        super().__init__(timeout_s, give_up_at)
        self.upgraded = False
        """Whether TLS began behind an INFO in clear."""
        self._tls_asked_by = tls_asked_by
        self._names_user = names_user
        self._pending: list[bytes] = []

    def __bool__(self) -> bool:
        # nats-py replaces a transport that is falsy by its own.
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self._pending.clear()
        self.upgraded = False
        self.dial(uri.hostname, uri.port)

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: int,
    ) -> None:
        if self.leftover.startswith(b"-ERR"):
            # One that is full says so before TLS; nothing of it is believed but that it ended.
            raise ConnectionRefusedError("the server ends the connection before TLS: is it full?")
        if self.leftover:
            raise TlsError(
                self.name,
                f"{len(self.leftover)} bytes came in clear behind its INFO, before TLS; no NATS"
                " server sends them: find out what between this host and the server does",
            )
        host = uri if isinstance(uri, str) else uri.hostname
        self.upgraded, self.silent = not self.silent, False
        try:
            self.sock = ssl_context.wrap_socket(self.open(), server_hostname=host)
            self.open()
        except ssl.SSLError as error:
            # Its subclasses are a certificate refused or a line cut; an alert is the peer's word.
            # Behind an INFO that offered TLS it may be a server that is full: tried again.
            strange = type(error) is ssl.SSLError and "ALERT" not in str(error.reason)
            if strange and not self.upgraded:
                raise TlsError(
                    self.name,
                    f"what came back is no TLS ({error.reason}); tlsHandshakeFirst needs"
                    " handshake_first: true in that server, and a proxy on the way may break TLS",
                ) from None
            raise

    def write(self, payload: bytes) -> None:
        self._pending.append(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self._pending.extend(payload)

    async def drain(self) -> None:
        data, self._pending = b"".join(self._pending), []
        if data:
            sock = self.open()
            if self._tls_asked_by and not isinstance(sock, ssl.SSLSocket):
                raise self._not_offered()
            sock.sendall(data)

    async def read(self, buffer_size: int) -> bytes:
        # nats-py's read loop may start before it is cancelled; what follows the handshake is ours.
        await asyncio.Event().wait()
        return b""

    async def readline(self) -> bytes:
        return self._asking(self._upgrading(self.line()))

    async def wait_closed(self) -> None:
        return None

    def at_eof(self) -> bool:
        return self.sock is None

    def _upgrading(self, line: bytes) -> bytes:
        """
        An INFO such that nats-py begins TLS, which it does for `tls_required` alone.

        A server that also takes clients without TLS says `tls_available` instead.
        """
        if not self._tls_asked_by or isinstance(self.sock, ssl.SSLSocket):
            return line
        verb, _, text = line.partition(b" ")
        try:
            info = read_json(text)
        except ValueError:
            return line  # for nats-py to complain of
        if verb != b"INFO" or not isinstance(info, dict) or info.get("tls_required"):
            return line
        if not info.get("tls_available"):
            raise self._not_offered()
        return b"INFO %s\r\n" % json.dumps(info | {"tls_required": True}).encode()

    def _asking(self, line: bytes) -> bytes:
        """
        An INFO such that nats-py says who it is, which it does for `auth_required` alone: a server
        with `no_auth_user` does not ask, and takes who names nobody for another.
        """
        verb, _, text = line.partition(b" ")
        if verb != b"INFO" or not self._names_user:
            return line
        try:
            info = read_json(text)
        except ValueError:
            return line
        if not isinstance(info, dict):
            return line
        return b"INFO %s\r\n" % json.dumps(info | {"auth_required": True}).encode()

    def _not_offered(self) -> TlsError:
        return TlsError(
            self.name,
            f"its INFO does not offer it, and {', '.join(self._tls_asked_by)} asks for it;"
            " configure tls { } in that server, or, if it has that, find the proxy on the way that"
            " strips tls_required",
        )
