"""`inspect` of a checkpoint which is on another file system, by Spark's JVM."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pyspark_jetstream.errors import CheckpointError, OptionError
from pyspark_jetstream.operations import files
from pyspark_jetstream.operations.batches import read_batches
from pyspark_jetstream.operations.files import LocalFiles, checkpoint_files

from ..kits.checkpoints import offset, write_checkpoint
from ..kits.places import ROOT

if TYPE_CHECKING:
    pass


def started(server, *arguments, submit=""):
    """The program, in a Python of its own, with Spark's JVM configured as `submit` says."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "pyspark_jetstream", "inspect", *arguments, "--servers", server.url],
        text=True, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip


def test_a_file_system_that_does_not_answer(spark, monkeypatch):
    """One that takes the connection and is silent is an error in time, and not in Hadoop's own."""
    monkeypatch.setattr(files, "TIMEOUT_S", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"hdfs://127.0.0.1:{silent.getsockname()[1]}/checkpoints/alerts"
        with pytest.raises(CheckpointError, match="did not answer within 5s"):
            checkpoint_files(place)


def test_with_the_session_that_is_there(spark, tmp_path):
    """In a program with a session its JVM and configuration are used."""
    path = write_checkpoint(tmp_path / "c", [[offset({"S": "t"}, [1])]])
    context: Any = spark.sparkContext._jsc
    configuration = context.hadoopConfiguration()
    configuration.set("fs.viewfs.mounttable.here.link./q", f"file:{tmp_path}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    try:
        found = read_batches(checkpoint_files("viewfs://here/q/c"))
        expected = read_batches(LocalFiles(path))
        for below, why in (("nowhere", "there is no such"), ("other", "it has no file metadata")):
            place = f"viewfs://here/q/{below}"
            with pytest.raises(OptionError, match=why):
                checkpoint_files(place)
    finally:
        configuration.unset("fs.viewfs.mounttable.here.link./q")

    assert found.planned_offsets == expected.planned_offsets
    assert (found.query, found.committed) == (expected.query, expected.committed)
    says = "checkpoint nosuch://h/c: .*No FileSystem for scheme"
    with pytest.raises(CheckpointError, match=says):
        checkpoint_files("nosuch://h/c")


def test_without_java(tmp_path, nats_server):
    """Where no JVM can be started, the line says so."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JAVA_HOME", str(tmp_path))
        with started(nats_server, "--checkpoint", "hdfs://h/c") as process:
            out, said = process.communicate(timeout=600)

    assert (process.returncode, out, said.count("\n")) == (1, "", 1)
    assert said.startswith("Error: checkpoint hdfs://h/c: ")
    assert said.endswith("(Spark's JVM reads it, and needs Java)\n")
