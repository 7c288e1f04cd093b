"""
A real nats-server for tests, demos and benchmarks: where the binary comes from, how it runs.

Owns: finding or provisioning a `nats-server` of at least `MINIMUM`, and running one
(`DevServer`) or several as a cluster (`DevCluster`) on the loopback interface.
Must not know: Spark, the NATS protocol, anything else of this package. Standard library only.

A server never outlives the process that started it. It is not our child but the child of a
small *supervisor* (this file, run as a script), which holds the read end of a pipe from us:

* whatever ends this process, SIGKILL included, closes the pipe; the supervisor then stops the
  server and removes its temporary files;
* whatever ends the supervisor ends the server too (Linux only: PR_SET_PDEATHSIG, which is exact
  there because the supervisor forks from its one and only thread);
* signals travel down that pipe, so they can never reach a recycled process id.

Limits: a child that this process forks *without* exec while a server runs inherits the pipe, and
then the server lives until that child is gone, too. If the supervisor itself is killed, the
temporary files stay behind. POSIX only.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import logging
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, NoReturn

__all__ = [
    "MINIMUM",
    "DevCluster",
    "DevServer",
    "ServerNotFoundError",
    "ServerStartError",
    "find_server",
]

MINIMUM: Final = (2, 14, 0)
"""Oldest server that speaks everything this package uses (fast-ingest publishing)."""

GO_MODULE: Final = "github.com/nats-io/nats-server/v2@v2.15.1"
"""What the Go route installs."""

NEWER_SUITE: Final = {"debian": ("forky", "main"), "ubuntu": ("devel", "universe")}
"""Per distribution: the suite and component whose `nats-server` package is new enough."""

HOST: Final = "127.0.0.1"
SUPERVISE: Final = "--supervise"

Progress = Callable[[str], None]

_log = logging.getLogger("pyspark_jetstream.devserver")


class ServerNotFoundError(RuntimeError):
    """No usable nats-server: lists every place tried, each with the reason it did not do."""

    def __init__(self, tried: Sequence[str]) -> None:
        super().__init__(tried)
        self.tried = tuple(tried)

    def __str__(self) -> str:
        places = "".join(f"\n  - {each}" for each in self.tried)
        return (
            f"no nats-server >= {_dotted(MINIMUM)} to be had; tried:{places}\n"
            "install one and put it on PATH, or set NATS_SERVER to the binary's path"
        )


class ServerStartError(RuntimeError):
    """A server (or cluster) that did not become ready; shows the end of the server's own log."""

    def __init__(self, name: str, problem: str, log: str) -> None:
        super().__init__(name, problem, log)
        self.name = name
        self.problem = problem
        self.log = log

    def __str__(self) -> str:
        tail = "\n".join(self.log.splitlines()[-20:]) or "(empty)"
        return f"nats-server {self.name}: {self.problem}; the end of its log:\n{tail}"


# ── finding the binary ──────────────────────────────────────────────────────────────────────


class _Unavailable(RuntimeError):
    """One place has no usable server; the message says why. Never leaves this module."""


def find_server(progress: Progress | None = None) -> Path:
    """
    The path of a nats-server >= `MINIMUM`, provisioned into the user's cache where none is there.

    In this order: `$NATS_SERVER` (binding: if it will not do, nothing else is tried), PATH, our
    cache, the distribution's package of a newer suite (unpacked into the cache; the system stays
    as it is), `go install`. The last two take seconds to minutes, once per machine.

    Args:
        progress: told in one line what is about to take long.
    """
    explicit = os.environ.get("NATS_SERVER")
    if explicit:
        try:
            return _usable(explicit)
        except _Unavailable as problem:
            raise ServerNotFoundError(
                [f"$NATS_SERVER (set, so nothing else was tried): {problem}"]
            ) from None
    tried = ["$NATS_SERVER: not set"]
    try:
        return _usable("nats-server")
    except _Unavailable as problem:
        tried.append(f"PATH: {problem}")
    cache = _cache_dir()
    if found := _cached(cache):
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _exclusive(cache / ".lock", timeout_s=1200):
            return _cached(cache) or _provision(cache, tried, progress)
    except (OSError, TimeoutError) as problem:
        raise ServerNotFoundError([*tried, f"cache {cache}: {problem}"]) from problem


def _usable(command: str) -> Path:
    """`command` as a path if it is a new enough server."""
    found = shutil.which(command)
    if found is None:
        raise _Unavailable(f"{command} is not an executable file")
    path = Path(found).absolute()
    version = _version_of(path)
    if version < MINIMUM:
        raise _Unavailable(f"{path} is {_dotted(version)}, older than {_dotted(MINIMUM)}")
    return path


def _version_of(binary: Path) -> tuple[int, ...]:
    said = _run([str(binary), "--version"], timeout_s=20)
    match = re.search(r"nats-server: v?(\d+)\.(\d+)\.(\d+)", said)
    if match is None:
        raise _Unavailable(f"{binary} does not say that it is a nats-server: {said[:80]!r}")
    return tuple(map(int, match.groups()))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _cache_dir() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser().absolute() / "pyspark-jetstream" / "nats-server"


def _cached(cache: Path) -> Path | None:
    """The newest usable server in the cache."""
    found: list[tuple[tuple[int, ...], Path]] = []
    for binary in cache.glob("[0-9]*/nats-server"):
        with contextlib.suppress(_Unavailable):  # a broken copy is provisioned anew
            found.append((_version_of(_usable(str(binary))), binary))
    return max(found)[1] if found else None


@contextlib.contextmanager
def _exclusive(path: Path, *, timeout_s: float) -> Iterator[None]:
    """One process at a time; the kernel releases the lock when its holder dies."""
    deadline = time.monotonic() + timeout_s
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"another process has held {path} for {timeout_s:.0f}s"
                    ) from None
                time.sleep(0.2)
        yield


def _provision(cache: Path, tried: list[str], progress: Progress | None) -> Path:
    """Call with the cache's lock held. Leaves either a whole binary in the cache or nothing."""
    tried.append(f"cache: no usable server in {cache}")
    routes = {"distribution package": _from_distribution, "go install": _from_go}
    for name, route in routes.items():
        message = f"nats-server: none here yet, trying the {name} (once per machine)"
        _log.info("provisioning route=%r cache=%s", name, cache)
        if progress is not None:
            progress(message)
        with tempfile.TemporaryDirectory(prefix=".provision-", dir=cache) as work:
            try:
                binary = _usable(str(route(Path(work))))
            except _Unavailable as problem:
                tried.append(f"{name}: {problem}")
                continue
            home = cache / _dotted(_version_of(binary))
            home.mkdir(exist_ok=True)
            return binary.replace(home / "nats-server")
    raise ServerNotFoundError(tried)


def _from_go(work: Path) -> Path:
    _run(
        ["go", "install", GO_MODULE],
        timeout_s=900,
        env={"GOBIN": str(work), "GOOS": "", "GOARCH": ""},
        cwd=work,
    )
    return work / "nats-server"


def _from_distribution(work: Path) -> Path:
    """Downloads and unpacks a package with an apt that knows nothing but its own directory."""
    import platform

    try:
        release = platform.freedesktop_os_release()
    except OSError:
        raise _Unavailable("neither Debian nor Ubuntu") from None
    distribution = release.get("ID", "")
    if distribution not in NEWER_SUITE:
        raise _Unavailable(f"neither Debian nor Ubuntu but {distribution or 'unknown'}")
    archive = find_archive(_machine_sources(), distribution, release.get("VERSION_CODENAME", ""))
    if archive is None:
        raise _Unavailable(f"no entry of the {distribution} archive in this machine's apt sources")
    suite, component = NEWER_SUITE[distribution]

    for each in ("state/lists/partial", "cache/archives/partial", "parts", "sources", "unpacked"):
        (work / each).mkdir(parents=True)
    (work / "state/status").touch()
    (work / "sources/newer.sources").write_text(sources_entry(archive, suite, component))
    settings = _run(["apt-config", "dump"], timeout_s=20)
    (work / "apt.conf").write_text(apt_config(work, settings))
    env = {"APT_CONFIG": str(work / "apt.conf")}
    _run(["apt-get", "-q", "update"], timeout_s=240, env=env, cwd=work)
    _run(["apt-get", "-q", "download", "nats-server"], timeout_s=240, env=env, cwd=work)
    package = next(work.glob("nats-server_*.deb"), None)
    if package is None:
        raise _Unavailable(f"apt-get download left no package (suite {suite})")
    _run(["dpkg", "-x", str(package), str(work / "unpacked")], timeout_s=60)
    binary = next((work / "unpacked").glob("usr/*bin/nats-server"), None)
    if binary is None:
        raise _Unavailable(f"{package.name} has no usr/*bin/nats-server")
    return binary


def _run(
    argv: list[str], *, timeout_s: float, env: dict[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Standard output of a command; on failure or at the deadline, `_Unavailable` says why."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
            start_new_session=True,
        )
    except OSError as problem:
        raise _Unavailable(f"{argv[0]} cannot be run: {problem.strerror}") from None
    shown = " ".join([Path(argv[0]).name, *argv[1:]])
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException as problem:
            # The whole group: compilers and download methods hold the pipes open otherwise.
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(problem, subprocess.TimeoutExpired):
                raise _Unavailable(f"`{shown}` gave no result within {timeout_s:.0f}s") from None
            raise
    if process.returncode:
        reason = " / ".join((err.strip() or out.strip()).splitlines()[-3:])
        raise _Unavailable(f"`{shown}` failed with {process.returncode}: {reason}")
    return out


# ── a private apt, derived from the machine's own ───────────────────────────────────────────


class AptSource(NamedTuple):
    """One suite of one package archive, as the machine's apt knows it."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""


def parse_one_line(text: str) -> list[AptSource]:
    """Entries of a `sources.list`: `deb [option=value ...] uri suite component...`"""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s*)?(\S+)\s+(\S+)([^#]*)", line)
        if match is None:
            continue
        options, uri, suite, components = match.groups(default="")
        pairs = dict(pair.split("=", 1) for pair in options.split() if "=" in pair)
        signed_by = pairs.get("signed-by", "")
        found.append(AptSource(uri, suite, tuple(components.split()), signed_by))
    return found


def parse_deb822(text: str) -> list[AptSource]:
    """Entries of a `*.sources` file: stanzas of `Field: value` with indented continuations."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = []
    for stanza in re.split(r"\n[ \t]*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        field = ""
        for line in stanza.splitlines():
            if line[:1] in (" ", "\t") and field:
                fields[field] += "\n" + line
            elif ":" in line:
                field, value = line.split(":", 1)
                field = field.strip().lower()
                fields[field] = value.strip()
        if "deb" not in fields.get("types", "").split():
            continue
        if fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        found += [
            AptSource(uri, suite, tuple(fields.get("components", "").split()), signed_by)
            for signed_by in [fields.get("signed-by", "")]
            for uri in fields.get("uris", "").split()
            for suite in fields.get("suites", "").split()
        ]
    return found


def find_archive(sources: list[AptSource], distribution: str, codename: str) -> AptSource | None:
    """
    The entry of the distribution's main archive among `sources`, if any.

    Third parties name their suites after the distribution's, too, so an entry needs one more
    sign: the same URI also serves `<codename>-updates`, or the distribution's keyring signs it, or
    the URI ends with the distribution's name. The entry with most signs wins.
    """
    aliases = {codename, "stable", "testing", "unstable", "sid"} if codename else {"sid"}
    updated = {each.uri for each in sources if each.suite == f"{codename}-updates"}

    def signs(source: AptSource) -> int:
        return (
            2 * (source.uri in updated)
            + 2 * (f"{distribution}-archive" in source.signed_by)
            + (source.uri.rstrip("/").rpartition("/")[2] == distribution)
        )

    entries = [each for each in sources if each.suite in aliases and "main" in each.components]
    best = max(entries, key=signs, default=None)
    return best if best is not None and signs(best) else None


def sources_entry(archive: AptSource, suite: str, component: str) -> str:
    """A deb822 stanza for another suite of the same archive, trusted by the same key."""
    stanza = f"Types: deb\nURIs: {archive.uri}\nSuites: {suite}\nComponents: {component}\n"
    return stanza + (f"Signed-By: {archive.signed_by}\n" if archive.signed_by else "")


def apt_config(work: Path, machine_settings: str) -> str:
    """
    An apt configuration whose every file is in `work`, and which runs none of the machine's hooks.

    Of the machine's settings (`apt-config dump`) only how to fetch is kept: proxies, mirrors'
    certificates, retries. What to fetch, and what to run afterwards, is not.
    """
    fetching = [
        line
        for line in machine_settings.splitlines()
        if line.startswith("Acquire::")
        and not line.startswith(("Acquire::IndexTargets", "Acquire::Changelogs"))
    ]
    own = {
        "Dir::State": work / "state",
        "Dir::State::status": work / "state/status",
        "Dir::Cache": work / "cache",
        "Dir::Etc::main": work / "parts/none",
        "Dir::Etc::parts": work / "parts",
        "Dir::Etc::preferences": work / "parts/none",
        "Dir::Etc::preferencesparts": work / "parts",
        "Dir::Etc::sourcelist": work / "sources/none",
        "Dir::Etc::sourceparts": work / "sources",
        "Dir::Log": work / "cache",
        # As root, apt drops to this user to fetch; its usual `_apt` cannot enter a home directory.
        "APT::Sandbox::User": "root",
        "APT::Get::List-Cleanup": "false",
        "Acquire::Languages": "none",
    }
    return "\n".join([*fetching, *(f'{key} "{value}";' for key, value in own.items()), ""])


def _machine_sources() -> list[AptSource]:
    etc = Path("/etc/apt")
    found: list[AptSource] = []
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]:
        parse = {".list": parse_one_line, ".sources": parse_deb822}.get(path.suffix)
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if parse is not None:
                found += parse(path.read_text(errors="replace"))
    return found


# ── running it ──────────────────────────────────────────────────────────────────────────────


class DevServer:
    """
    One nats-server on the loopback interface, JetStream on, its files in a temporary directory.

    A context manager: running inside `with`, gone after it, together with its files. `stop`,
    `kill` and `restart` keep port and data in between. For use by one thread at a time.

    Args:
        config: text for the server's configuration file (`authorization {}`, `tls {}`,
            `jetstream {}`, limits). What it says wins, but for the address, which is loopback.
        name: the server's name; unique unless given.
        store_dir: where streams live; a directory given here is kept afterwards.
        port: for clients; 0 lets the server pick a free one.
        binary: which nats-server; `find_server()` unless given.
    """

    def __init__(
        self,
        config: str = "",
        *,
        name: str | None = None,
        store_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        binary: Path | None = None,
        start_timeout_s: float = 20.0,
        stop_timeout_s: float = 10.0,
    ) -> None:
        self.name = name or f"dev-{os.urandom(4).hex()}"
        self._config = config
        self._store_dir = store_dir
        self._port = port
        self._monitor_port = 0
        self._binary = binary
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._home: Path | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._pid = 0
        self._old_log = ""

    def __repr__(self) -> str:
        state = f"pid {self._pid}, port {self._port}" if self.running else "not running"
        return f"<DevServer {self.name}: {state}>"

    def __enter__(self) -> DevServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether the server's process lives (paused counts as living)."""
        return self._supervisor is not None and self._supervisor.poll() is None

    @property
    def port(self) -> int:
        """Where clients connect; 0 before the first start unless chosen."""
        return self._port

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"nats://{HOST}:{self._port}"

    @property
    def monitor_url(self) -> str:
        """The server's HTTP monitoring endpoint."""
        return f"http://{HOST}:{self._monitor_port}"

    @property
    def pid(self) -> int:
        """Process id of the last started server, 0 before the first start."""
        return self._pid

    @property
    def log(self) -> str:
        """All that the server has logged, over all its restarts."""
        if self._home is None:
            return self._old_log
        with contextlib.suppress(FileNotFoundError):
            return (self._home / "server.log").read_text(errors="replace")
        return ""

    def start(self) -> DevServer:
        """Starts the server and waits until clients can connect. Nothing to do if it runs."""
        if self.running:
            return self
        binary = self._binary or find_server()
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="pyspark-jetstream-"))
            atexit.register(self._at_exit)
        try:
            self._launch(binary, self._home)
        except BaseException:
            self.kill()
            self.close()
            raise
        return self

    def stop(self) -> None:
        """Stops it in order (SIGTERM), by force at the deadline. Port and data stay ours."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        if not self.wait(self._stop_timeout_s):
            _log.warning("stop name=%s pid=%d ignored SIGTERM, killed", self.name, self._pid)
            self.kill()

    def kill(self) -> None:
        """Ends it at once (SIGKILL), as a crash would. Port and data stay ours."""
        self._signal(signal.SIGKILL)
        self.wait()

    def restart(self) -> None:
        """Stops it, unless it is down already, and starts it on the same port and store."""
        self.stop()
        deadline = time.monotonic() + self._start_timeout_s
        while not self.running:
            try:
                if self._home is None:
                    self.start()
                else:
                    self._launch(self._binary or find_server(), self._home)
            except ServerStartError as problem:
                # Somebody's outgoing connection may have borrowed our port meanwhile.
                if "address already in use" not in problem.log or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def pause(self) -> None:
        """Freezes the process (SIGSTOP): connections stay open, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undoes `pause`."""
        self._signal(signal.SIGCONT)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the server to end; whether it has."""
        if self._supervisor is None:
            return True
        try:
            self._supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                pipe.close()
        return True

    def close(self) -> None:
        """Stops the server for good and removes its temporary files; `log` stays readable."""
        self.stop()
        if self._home is not None:
            self._old_log = self.log
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        if os.getpid() == self._owner:  # a forked child leaves its parent's server alone
            self.close()

    def _command(self, binary: Path, home: Path) -> list[str]:
        (home / "server.conf").write_text(
            f"server_name: {json.dumps(self.name)}\njetstream: enabled\n{self._config}\n"
        )
        # Flags win over the file; of two equal keys in the file the later one wins.
        command = [str(binary), "-c", str(home / "server.conf"), "-a", HOST]
        command += ["-p", str(self._port or -1), "-m", "-1", "--ports_file_dir", str(home)]
        if not re.search(r"(?i)\bstore_?dir\b", self._config):
            command += ["-sd", str(self._store_dir or home / "store")]
        return command

    def _launch(self, binary: Path, home: Path) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        for stale in home.glob("*.ports"):
            stale.unlink()
        with (home / "server.log").open("ab") as log:
            logged = log.tell()
            supervisor = subprocess.Popen(
                # Isolated and without site: our neighbours' names cannot shadow the library's.
                [sys.executable, "-I", "-S", __file__, SUPERVISE, str(home)]
                + self._command(binary, home),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is ours to handle, not the server's
                bufsize=0,
            )
        self._supervisor = supervisor
        self._pid = int(_read_line(supervisor.stdout, deadline) or 0)
        while (ports := _read_ports(home)) is None:
            if not self.running or time.monotonic() > deadline:
                late = f"not ready within {self._start_timeout_s:.0f}s"
                problem = late if self.running else "ended before it was ready"
                self.kill()
                raise ServerStartError(self.name, problem, self.log[logged:])
            time.sleep(0.01)
        self._port, self._monitor_port = ports
        _log.info("started name=%s pid=%d port=%d", self.name, self._pid, self._port)

    def _signal(self, number: signal.Signals) -> None:
        """Has the supervisor deliver a signal; returns once it has, or once the server is gone."""
        supervisor = self._supervisor
        if supervisor is None or supervisor.poll() is not None:
            return
        with contextlib.suppress(BrokenPipeError):  # it ended just now
            os.write(_fd(supervisor.stdin), bytes([number]))
            os.read(_fd(supervisor.stdout), 1)


class DevCluster:
    """
    `n` JetStream servers on the loopback interface that form one cluster with a meta leader.

    A context manager, as `DevServer` is; to take a member down, use that one's own methods.

    Args:
        n: how many servers; odd, for a majority.
        config: configuration text that every member gets.
    """

    def __init__(self, n: int = 3, config: str = "", *, start_timeout_s: float = 60.0) -> None:
        self.name = f"cluster-{os.urandom(4).hex()}"
        self.servers: list[DevServer] = []
        self._n = n
        self._config = config
        self._start_timeout_s = start_timeout_s

    def __repr__(self) -> str:
        up = sum(server.running for server in self.servers)
        return f"<DevCluster {self.name}: {up}/{self._n} servers up>"

    def __enter__(self) -> DevCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def urls(self) -> str:
        """All members' URLs, separated by commas."""
        return ",".join(server.url for server in self.servers)

    def start(self) -> DevCluster:
        """Starts all members and waits until they agree on a meta leader."""
        for attempts_left in (2, 1, 0):
            self.servers = self._members()
            try:
                for server in self.servers:
                    server.start()
                self.await_leader()
                return self
            except BaseException as problem:
                self.close()
                # A route port must be known before its server starts, so it can be lost again.
                taken = isinstance(problem, ServerStartError) and "in use" in problem.log
                if not (taken and attempts_left):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def await_leader(self) -> str:
        """Waits until every running member sees the same meta leader and all peers; its name."""
        deadline = time.monotonic() + self._start_timeout_s
        seen: list[Any] = []
        while time.monotonic() < deadline:
            seen = [_get_json(each, "/jsz").get("meta_cluster") for each in self._up()]
            leaders = {meta and meta.get("leader") for meta in seen}
            sizes = {meta and meta.get("cluster_size") for meta in seen}
            healthy = all(_get_json(each, "/healthz").get("status") == "ok" for each in self._up())
            if len(leaders) == 1 and all(leaders) and sizes == {self._n} and healthy:
                return str(leaders.pop())
            time.sleep(0.1)
        problem = f"no JetStream meta leader within {self._start_timeout_s:.0f}s, saw {seen}"
        raise ServerStartError(self.name, problem, "\n".join(each.log for each in self.servers))

    def close(self) -> None:
        """Stops all members for good."""
        for server in self.servers:
            server.close()

    def _up(self) -> list[DevServer]:
        return [server for server in self.servers if server.running]

    def _members(self) -> list[DevServer]:
        ports = _free_ports(self._n)
        routes = ", ".join(f"nats://{HOST}:{port}" for port in ports)
        block = "cluster {{ name: {}, listen: {}:{}, routes: [{}] }}\n"
        return [
            DevServer(
                block.format(self.name, HOST, port, routes) + self._config,
                name=f"{self.name}-n{number}",
            )
            for number, port in enumerate(ports, start=1)
        ]


def _free_ports(n: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def _get_json(server: DevServer, path: str) -> dict[str, Any]:
    """What the server's monitoring endpoint says; nothing while it does not answer."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(server.monitor_url.removeprefix("http://"), timeout=2)
    try:
        connection.request("GET", path)
        answer = json.load(connection.getresponse())
    except (OSError, HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}


def _read_ports(home: Path) -> tuple[int, int] | None:
    """Client and monitoring port out of the ports file, once the server has written all of it."""
    for path in home.glob("*.ports"):
        with contextlib.suppress(ValueError, KeyError, IndexError, FileNotFoundError):
            ports = json.loads(path.read_text())
            client, monitor = ports["nats"][0], ports["monitoring"][0]
            return int(client.rpartition(":")[2]), int(monitor.rpartition(":")[2])
    return None


def _read_line(pipe: IO[bytes] | None, deadline: float) -> bytes:
    ready, _, _ = select.select([_fd(pipe)], [], [], max(0.0, deadline - time.monotonic()))
    return pipe.readline() if ready and pipe is not None else b""


def _fd(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise ValueError("the supervisor was started without pipes")
    return pipe.fileno()


# ── the supervisor: this file as a script, in a process of its own ──────────────────────────


def _supervise(home: str, command: list[str]) -> NoReturn:
    """Runs the server; obeys signal numbers on stdin; at its end stops the server and tidies."""
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        stderr=sys.stderr.fileno(),
        preexec_fn=_tie_to(os.getpid()) if sys.platform == "linux" else None,
    )
    os.write(sys.stdout.fileno(), b"%d\n" % server.pid)
    orphaned = threading.Event()
    threading.Thread(target=_obey, args=(server, orphaned), daemon=True).start()
    code = server.wait()
    if orphaned.is_set():
        shutil.rmtree(home, ignore_errors=True)
    os._exit(code if code >= 0 else 128 - code)  # not held up by the thread that reads stdin


def _obey(server: subprocess.Popen[bytes], orphaned: threading.Event) -> None:
    while number := os.read(sys.stdin.fileno(), 1):
        server.send_signal(number[0])
        os.write(sys.stdout.fileno(), b".")
    orphaned.set()
    server.send_signal(signal.SIGCONT)
    server.terminate()
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:
        server.kill()


def _tie_to(parent: int) -> Callable[[], None]:
    """For between fork and exec: die when `parent` dies, even if that was just now."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    pr_set_pdeathsig = 1

    def tie() -> None:
        prctl(pr_set_pdeathsig, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)

    return tie


# ── command line ────────────────────────────────────────────────────────────────────────────


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a server until Ctrl-C, or says where the binary is."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m pyspark_jetstream.devserver",
        description="Run a throwaway nats-server with JetStream until Ctrl-C.",
    )
    parser.add_argument("--port", type=int, default=4222, help="0 picks a free one (%(default)s)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="more server configuration")
    parser.add_argument("--where", action="store_true", help="only print the binary's path")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
    try:
        binary = find_server(lambda line: _say(sys.stderr, line))
        if arguments.where:
            _say(sys.stdout, str(binary))
            return 0
        config = arguments.config.read_text() if arguments.config else ""
        with DevServer(config, port=arguments.port, binary=binary) as server:
            _say(sys.stdout, server.url)
            server.wait()
            _say(sys.stderr, str(ServerStartError(server.name, "ended by itself", server.log)))
            return 1
    except (ServerNotFoundError, ServerStartError, OSError) as problem:
        _say(sys.stderr, str(problem))
        return 1
    except KeyboardInterrupt:
        return 0


def _say(stream: IO[str], line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == [SUPERVISE]:
        _supervise(sys.argv[2], sys.argv[3:])
    sys.exit(main())
