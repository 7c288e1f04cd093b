"""A peer that talks as a test says, and a proxy between client and server."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta

_TLS_RECORD = b"\x16"
"""What a TLS handshake begins with."""


def unchanged(data):
    """What the server says, as it is."""
    return data


def info_with(**changes):
    """The server's INFO with other values; None leaves a key out."""

    def change(line):
        info = json.loads(line.partition(b" ")[2]) | changes
        kept = {key: value for key, value in info.items() if value is not None}
        return b"INFO %s\r\n" % json.dumps(kept).encode()

    return change


def clock_moved(hours):
    """A server whose clock differs from ours by whole hours, as its API answers show it."""

    def moved(found):
        was = found[2].decode()
        now = datetime.fromisoformat(was) + timedelta(hours=hours)
        return found[1] + now.strftime("%Y-%m-%dT%H").encode() + found[3]

    pattern = re.compile(rb'("ts":")(\d{4}-\d\d-\d\dT\d\d)(:)')
    return lambda data: pattern.sub(moved, data)


class Peer:
    """
    Something that listens; `talk` has each client in a thread, and an event that says: it is over.

    A context manager. At its end all connections are shut, and all threads have ended.
    """

    def __init__(self, talk):
        self._talk = talk
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        """Where clients connect."""
        self._over = threading.Event()
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []

    def __enter__(self):
        self._spawn(self._accept)
        return self

    def __exit__(self, *_):
        self._over.set()
        self._shut(self._listener)
        self._threads[0].join(60)  # it adds no other from now on
        for sock in self._sockets[1:]:
            self._shut(sock)
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        for sock in self._sockets:
            sock.close()

    @property
    def url(self):
        """Likewise, without TLS."""
        return f"nats://127.0.0.1:{self.port}"

    def _spawn(self, call, *arguments):
        thread = threading.Thread(target=call, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        with suppress(OSError):
            while True:
                self._greet(self._listener.accept()[0])

    def _greet(self, client):
        self._sockets.append(client)
        self._spawn(self._serve, client)

    def _serve(self, client):
        with suppress(OSError):
            self._talk(client, self._over)
        self._shut(client)

    def _shut(self, sock):
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


class Proxy(Peer):
    """
    Hands bytes on both ways, changes the server's INFO, and keeps what the client wrote.

    `change` may be set meanwhile; it holds for connections made afterwards.

    Args:
        retort: what the client gets for its first bytes, before the server has them.
        rewrite: what becomes of the bytes behind INFO; they come as the network cuts them, so it
            must keep their number.
        rate: bytes a second from the server, as of a slow link that buffers next to nothing; 0 for
            as fast as it goes.
    """

    def __init__(self, server_port, change=unchanged, retort=b"", rewrite=unchanged, rate=0):
        super().__init__(None)
        self.change = change
        self._retort = retort
        self._rewrite = rewrite
        self._rate = rate
        self.heard: list[bytes] = []
        """What each connection's client wrote, in the order of the connections."""
        self._server_port = server_port
        self._silent: set[int] = set()
        self._mute: set[int] = set()

    def hush(self, both=True):
        """
        Connections that are open now stay so, and nothing reaches the client any more, or, if both
        ways are silent, the server.
        """
        self._mute = set(range(len(self.heard)))
        self._silent = set(self._mute) if both else set()

    def cut(self, wrote):
        """Ends the connections on which a client wrote this."""
        for index, text in enumerate(list(self.heard)):
            if wrote in text:
                for sock in self._sockets[1 + 2 * index : 3 + 2 * index]:
                    self._shut(sock)

    def _greet(self, client):
        server = socket.socket()
        if self._rate:  # small segments keep the server's own buffer small, too
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1000)
        server.connect(("127.0.0.1", self._server_port))
        self._sockets += [client, server]  # in the order of `heard`
        self.heard.append(b"")
        self._spawn(self._up, client, server, len(self.heard) - 1)
        self._spawn(self._down, server, client, len(self.heard) - 1)

    def _up(self, client, server, index):
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if not self.heard[index] and self._retort:
                    client.sendall(self._retort)
                self.heard[index] += data
                if index not in self._silent:
                    server.sendall(data)
        with suppress(OSError):  # also of a client that has reset its end
            server.shutdown(socket.SHUT_WR)

    def _down(self, server, client, index):
        with suppress(OSError):
            line = server.recv(1)
            if line not in (b"", _TLS_RECORD):
                while not line.endswith(b"\n"):
                    line += server.recv(1) or b"\n"
                line = self.change(line)
            client.sendall(line)
            while data := server.recv(1 << 16):
                if index in self._mute:
                    continue
                client.sendall(self._rewrite(data))
                if self._rate:
                    time.sleep(len(data) / self._rate)
        with suppress(OSError):
            client.shutdown(socket.SHUT_WR)
