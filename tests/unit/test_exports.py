"""What the package shows, and how little it imports to do so."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_jetstream

PACKAGE = Path(pyspark_jetstream.__file__).parent
WINGS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def test_public_names():
    """
    The public surface is the data source, its registration, what belongs to reads and writes
    without Spark's words for it, and the version.
    """
    assert sorted(pyspark_jetstream.__all__) == [
        "DefaultSource", "DirectCalls", "JetStreamDataSource", "__version__", "explainMapping",
        "isThrottled", "pinned", "register", "restored", "throttledSubjects",
    ]  # fmt: skip
    assert pyspark_jetstream.DefaultSource is pyspark_jetstream.JetStreamDataSource
    for name in pyspark_jetstream.__all__:
        assert getattr(pyspark_jetstream, name)


def test_version_is_the_distributions():
    """`__version__` equals what pip installed."""
    from importlib.metadata import version

    assert pyspark_jetstream.__version__ == version("pyspark-jetstream")


def test_unknown_names_are_attribute_errors():
    """A name that is not there fails as in any module."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pyspark_jetstream.nothing


def test_importing_the_package_imports_next_to_nothing():
    """
    Spark imports every `pyspark_*` package when it looks a source up, so ours imports neither
    nats-py nor pyarrow nor xxhash nor pyspark.sql.
    """
    script = "import sys, json, pyspark_jetstream; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(json.loads(done.stdout))

    assert not loaded & {"nats", "pyarrow", "xxhash", "numpy", "pandas", "pyspark.sql", "py4j"}
    assert [name for name in loaded if name.startswith("pyspark_jetstream.")] == []


MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def test_a_name_stands_once():
    """
    Each module has a docstring, and no `__all__`: what begins with an underscore is not for others.
    The one of the package says what its users import.
    """
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assigned = [ast.unparse(node.targets[0]) for node in tree.body if type(node) is ast.Assign]

        assert ast.get_docstring(tree), name
        assert ("__all__" in assigned) is (name == "__init__"), name


def test_a_wing_shows_nothing_itself():
    """
    The folder of a wing says what it is; a name stands in the module that defines it, so that who
    does not read loads no reader.
    """
    for wing in WINGS:
        tree = ast.parse((PACKAGE / wing / "__init__.py").read_text(encoding="utf-8"))

        assert [type(node) for node in tree.body] == [ast.Expr], wing
