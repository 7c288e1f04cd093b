"""
Where a nats-server comes from: what is installed, or a copy of our own in the user's cache.

Owns: finding or provisioning a `nats-server` of at least `MINIMUM`.
Must not know: how one is run (`devserver`), anything else of this package. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

__all__ = [
    "MINIMUM",
    "AptSource",
    "ServerNotFoundError",
    "apt_config",
    "find_archive",
    "find_server",
    "parse_deb822",
    "parse_one_line",
    "sources_entry",
]

MINIMUM: Final = (2, 14, 0)
"""Oldest server that speaks everything this package uses (fast-ingest publishing)."""

GO_MODULE: Final = "github.com/nats-io/nats-server/v2@v2.15.1"
"""What the Go route installs."""

NEWER_SUITE: Final = {"debian": ("forky", "main"), "ubuntu": ("devel", "universe")}
"""Per distribution: the suite and component whose `nats-server` package is new enough."""

Progress = Callable[[str], None]

_log = logging.getLogger(__name__)


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
