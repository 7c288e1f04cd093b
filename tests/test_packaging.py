"""What people install: the wheel, and the source distribution."""

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import pyspark_jetstream

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with both, built from the files of this checkout."""
    pytest.importorskip("hatchling", reason="extra test brings it")
    home = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(home)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return home


def test_the_wheel_is_the_package(dist):
    """Every module and what types need, nothing else; the command; the four dependencies."""
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        info = f"pyspark_jetstream-{pyspark_jetstream.__version__}.dist-info"
        metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
        entries = wheel.read(f"{info}/entry_points.txt").decode()
    modules = {str(each.relative_to(ROOT)) for each in ROOT.glob("pyspark_jetstream/**/*.py")}
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]

    assert {name for name in names if not name.startswith(info)} == modules | {
        "pyspark_jetstream/py.typed"
    }
    assert sorted(line.partition(">")[0].partition("[")[0] for line in required) == [
        "nats-py", "pyarrow", "pyspark", "xxhash",
    ]  # fmt: skip
    assert "pyspark-jetstream = " in entries
    assert metadata["License-Expression"] == "Apache-2.0"


def test_a_wheel_is_no_zip_for_py_files(dist):
    """`register()` from a wheel in `--py-files` says what to give instead."""
    (path,) = dist.glob("*.whl")
    program = "import pyspark_jetstream; pyspark_jetstream.register(None)"
    refused = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(path)}, cwd=dist,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    said = refused.stderr.splitlines()[-1]

    assert said.startswith("pyspark_jetstream.errors.OptionError: option '--py-files': "), said
    assert path.name in said and "zip" in said


def test_the_source_distribution_can_be_tested(dist):
    """Who packages it gets tests, bench, programs and docs; and nothing that runs leave behind."""
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    tops = {name.partition("/")[0] for name in names}

    assert {"tests", "bench", "jobs", "conf", "docs", "README.md", "LICENSE", "Makefile"} <= tops
    assert tops.isdisjoint({".venv", "dist", "build", ".mypy_cache", ".ruff_cache", ".git"})
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
