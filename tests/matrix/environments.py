"""Interpreters, JDKs, and virtual environments with the built wheel, kept while nothing changed."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from hashlib import sha256
from pathlib import Path

import pytest

from ..kits.places import ROOT


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    return wheel


def java_home(version: str) -> Path:
    """A JDK of this version."""
    homes = [*os.environ.get("JAVA_HOMES", "").split(":"), os.environ.get("JAVA_HOME", "")]
    if on_path := shutil.which("java"):
        homes.append(str(Path(on_path).resolve().parents[1]))
    for home in filter(None, homes):
        said = subprocess.run([f"{home}/bin/java", "-version"], capture_output=True, text=True)
        if re.search(rf'version "{version}\b', said.stderr):
            return Path(home)
    # Few machines have every Java. The other cells run, and the summary names this one.
    pytest.skip(f"no Java {version}, which pip cannot install: JAVA_HOMES may name its folder")


class Environments:
    """The environments below a folder."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.wheel = wheel

    def installed(self, python: str, spark: str) -> Path:
        """The wheel and what it needs, so without pandas."""
        return self._made(f"{python}-spark-{spark}", python, [f"pyspark=={spark}"])

    def connect(self, python: str, spark: str) -> Path:
        """The same with what Spark Connect needs, pandas for one."""
        needs = [f"pyspark[connect]=={spark}"]
        return self._made(f"{python}-spark-{spark}-connect", python, needs)

    def client(self, python: str) -> Path:
        """What a client of Spark Connect needs: neither Spark's JARs nor the wheel."""
        needs = ["pyspark-client>=4.2"]  # not of every release of Spark; servers take older ones
        return self._made(f"{python}-client", python, needs, wheel=False, own=False)

    def dependencies(self, python: str, spark: str) -> Path:
        """What the wheel needs, without the wheel."""
        needs = [f"pyspark=={spark}"]
        return self._made(f"{python}-spark-{spark}-bare", python, needs, wheel=False)

    def to_pack(self, python: str) -> Path:
        """The wheel and what it needs but for Spark, which clusters have; and venv-pack."""
        needs = ["venv-pack>=0.2", "setuptools<81"]  # venv-pack 0.2.0 imports pkg_resources
        return self._made(f"{python}-packed", python, needs)

    def _made(
        self, name: str, python: str, needs: list[str], *, wheel: bool = True, own: bool = True
    ) -> Path:
        """Its interpreter; with the wheel, and with what that needs of its own."""
        program = f"python{python}"
        if shutil.which(program) is None or subprocess.run([program, "-V"]).returncode:
            # As with Java: the cell is named as left out, and never taken for one that ran.
            pytest.skip(f"no {program} on the PATH, and pip installs no interpreter")
        home = self.folder / f"python-{name}"
        interpreter, made = home / "bin" / "python", home / "made"
        needs = [*needs, *(self._requirements() if own else [])]
        key = "\n".join([*needs, sha256(self.wheel.read_bytes()).hexdigest()])
        if made.exists() and made.read_text() == key:
            return interpreter
        made.unlink(missing_ok=True)
        _run([program, "-m", "venv", home])
        pip = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *needs])
        if wheel:
            _run([*pip, "--no-deps", "--force-reinstall", self.wheel])
        made.write_text(key)
        return interpreter

    def _requirements(self) -> list[str]:
        """The wheel's own, without Spark and extras."""
        with zipfile.ZipFile(self.wheel) as wheel:
            (name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
            metadata = Parser().parsestr(wheel.read(name).decode())
        required = metadata.get_all("Requires-Dist", [])
        return [r for r in required if "extra ==" not in r and not r.startswith("pyspark")]


def _run(words: list[str | Path]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200)
    assert not done.returncode, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
