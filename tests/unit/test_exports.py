"""What the package shows, and how little it imports to do so."""

import json
import subprocess
import sys

import pyspark_jetstream


def test_public_names():
    """The public surface is the source, its registration, what goes without Spark, the version."""
    assert sorted(pyspark_jetstream.__all__) == [
        "DefaultSource", "DirectCalls", "JetStreamDataSource", "__version__", "explainMapping",
        "isThrottled", "register", "restored", "throttledSubjects",
    ]  # fmt: skip
    assert pyspark_jetstream.DefaultSource is pyspark_jetstream.JetStreamDataSource
    for name in pyspark_jetstream.__all__:
        assert getattr(pyspark_jetstream, name)


def test_version_is_the_distributions():
    """`__version__` equals what pip installed."""
    from importlib.metadata import version

    assert pyspark_jetstream.__version__ == version("pyspark-jetstream")


def test_importing_the_package_imports_next_to_nothing():
    """Spark imports every `pyspark_*` package, so ours imports nothing heavy."""
    script = "import sys, json, pyspark_jetstream; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(json.loads(done.stdout))

    assert not loaded & {"nats", "pyarrow", "xxhash", "numpy", "pandas", "pyspark.sql", "py4j"}
    assert [name for name in loaded if name.startswith("pyspark_jetstream.")] == []
