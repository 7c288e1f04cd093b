"""
The handshake with a server, which is nats-py's: server pool, INFO, TLS, every kind of login.

It runs over a transport of ours, so that the socket can be taken over when it is done. Nothing else
in the package imports nats-py.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import UserString
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from ..errors import AuthenticationError, NotConnectedError

if TYPE_CHECKING:
    from urllib.parse import ParseResult

    from .options import ConnectionOptions

__all__ = ["shake_hands"]

_SOCKET_BUFFER: Final = 4 << 20


def shake_hands(options: ConnectionOptions) -> tuple[socket.socket, dict[str, Any], bytes]:
    """
    Connects to one of the servers and logs in.

    Returns:
        The open socket, what the server says of itself (INFO), and bytes that came behind that.

    Raises:
        AuthenticationError: A server refused the credentials.
        NotConnectedError: None could be reached.
    """
    # A thread of its own, because the caller may stand inside a running event loop (a notebook).
    with ThreadPoolExecutor(1, thread_name_prefix="nats-handshake") as pool:
        return pool.submit(asyncio.run, _handshake(options)).result()


async def _handshake(
    options: ConnectionOptions,
) -> tuple[socket.socket, dict[str, Any], bytes]:
    from nats.aio.client import Client as NatsClient

    errors: list[Exception] = []

    async def remember(error: Exception) -> None:
        errors.append(error)

    transport = _HandshakeTransport(options.connect_timeout_s)
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
            nkeys_seed_str=options.nkey_seed.reveal() if options.nkey_seed else None,
            user_credentials=UserString(options.credentials.reveal())  # type: ignore[arg-type]
            if options.credentials
            else None,
            tls=_tls_context(options),
        )
    except Exception as error:
        transport.close()
        cause = errors[-1] if errors and not str(error) else error
        text = str(cause) or type(cause).__name__
        if type(cause).__name__ == "NoServersError" and len(errors) > 1:
            text = str(errors[0]) or type(errors[0]).__name__
        where = ", ".join(options.display_servers)
        lowered = text.lower()
        if "authorization" in lowered or "authentication" in lowered or "user jwt" in lowered:
            raise AuthenticationError(where, text) from None
        if nats._server_info.get("tls_verify") and not options.tls_cert_file:
            text = f"it wants a client certificate (tlsCertFile, tlsKeyFile): {text}"
            raise AuthenticationError(where, text) from None
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise AuthenticationError(where, f"TLS: {text}") from None
        raise NotConnectedError(where, text) from None
    # nats-py's own read, ping and flush tasks end here: asyncio.run cancels what is left.
    sock = transport.sock
    if sock is None:
        raise NotConnectedError(", ".join(options.display_servers), "closed during the handshake")
    return sock, dict(nats._server_info), transport.leftover


def _tls_context(options: ConnectionOptions) -> ssl.SSLContext | None:
    if not (options.tls_ca_file or options.tls_cert_file):
        if any(server.startswith("tls://") for server in options.servers):
            return ssl.create_default_context()
        return None
    where = ", ".join(options.display_servers)
    try:
        context = ssl.create_default_context(cafile=options.tls_ca_file)
        if options.tls_cert_file:
            context.load_cert_chain(options.tls_cert_file, options.tls_key_file)
    except (ssl.SSLError, OSError) as error:
        raise AuthenticationError(where, f"tlsCaFile, tlsCertFile or tlsKeyFile: {error}") from None
    return context


class _HandshakeTransport:
    """
    The blocking socket nats-py shakes hands over (its `Transport` interface, structurally).

    It reads no byte beyond what a line needs from the kernel's point of view: what came along
    with the last line stays in `leftover` for the connection that takes the socket over.
    """

    def __init__(self, timeout_s: float) -> None:
        self.sock: socket.socket | None = None
        self.leftover = b""
        self._timeout_s = timeout_s
        self._pending: list[bytes] = []

    def __bool__(self) -> bool:
        # nats-py replaces a transport that is falsy by its own.
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self.close()
        self.leftover = b""
        self._pending.clear()
        sock = socket.create_connection((uri.hostname, uri.port or 4222), self._timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER)
        self.sock = sock

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: int,
    ) -> None:
        host = uri if isinstance(uri, str) else uri.hostname
        self.sock = ssl_context.wrap_socket(self._open(), server_hostname=host)

    def write(self, payload: bytes) -> None:
        self._pending.append(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self._pending.extend(payload)

    async def drain(self) -> None:
        data, self._pending = b"".join(self._pending), []
        if data:
            self._open().sendall(data)

    async def read(self, buffer_size: int) -> bytes:
        # nats-py's read loop may start before it is cancelled; what follows the handshake is ours.
        await asyncio.Event().wait()
        return b""

    async def readline(self) -> bytes:
        while b"\n" not in self.leftover:
            chunk = self._open().recv(1 << 16)
            if not chunk:
                raise ConnectionResetError("the server closed the connection during the handshake")
            self.leftover += chunk
        line, _, self.leftover = self.leftover.partition(b"\n")
        return line + b"\n"

    async def wait_closed(self) -> None:
        return None

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def at_eof(self) -> bool:
        return self.sock is None

    def _open(self) -> socket.socket:
        if self.sock is None:
            raise ConnectionResetError("not connected")
        return self.sock
