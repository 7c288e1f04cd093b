"""A peer that talks as a test says, and a proxy between client and server."""

from __future__ import annotations

import json
import socket
import socketserver
import sys
import threading
import time
from contextlib import suppress

_TLS_RECORD = b"\x16"
"""What a TLS handshake begins with."""


def info_with(**changes):
    """The server's INFO with other values; None leaves a key out."""

    def change(line):
        info = json.loads(line.partition(b" ")[2]) | changes
        kept = {key: value for key, value in info.items() if value is not None}
        return b"INFO %s\r\n" % json.dumps(kept).encode()

    return change


class Peer(socketserver.ThreadingTCPServer):
    """
    Something that listens; `talk` has each client in a thread, and an event that says: it is over.

    A context manager. At its end all connections are shut, and all threads have ended.
    """

    request_queue_size = 128

    def __init__(self, talk):
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.port: int = self.server_address[1]
        """Where clients connect."""
        self.url = f"nats://127.0.0.1:{self.port}"
        """Likewise, without TLS."""
        self._talk = talk
        self._over = threading.Event()
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self.serve_forever, args=(0.02,))

    def __enter__(self):
        self._accepting.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self.shutdown()
        self._accepting.join()
        for sock in self._sockets:
            self.shutdown_request(sock)
        self.server_close()  # its threads have ended
        for sock in self._sockets:
            sock.close()

    def process_request(self, client, address):
        self._sockets.append(client)
        super().process_request(client, address)

    def finish_request(self, client, address):
        self._talk(client, self._over)

    def shutdown_request(self, sock):
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    def handle_error(self, client, address):
        if not isinstance(sys.exc_info()[1], OSError):
            raise


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

    def __init__(self, server_port, change=bytes, retort=b"", rewrite=bytes, rate=0):
        super().__init__(self._hand_on)
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
                for sock in self._sockets[2 * index : 2 * index + 2]:
                    self.shutdown_request(sock)

    def process_request(self, client, address):
        server = socket.socket()
        if self._rate:  # small segments keep the server's own buffer small, too
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1000)
        server.connect(("127.0.0.1", self._server_port))
        self.heard.append(b"")
        self._sockets.append(server)  # before its client, in the order of `heard`
        super().process_request(client, address)

    def _hand_on(self, client, _):
        index = self._sockets.index(client) // 2
        server = self._sockets[2 * index]
        down = threading.Thread(target=self._down, args=(server, client, index))
        down.start()
        self._up(client, server, index)
        down.join()

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
