"""The files in conf/ are examples that work: the programs they are for load them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from bench.spark import documented_settings
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import AuthenticationError
from pyspark_jetstream.testing import find_server
from pyspark_jetstream.values import Secret

from ..kits.clients import serving
from ..kits.options import connection_of
from ..kits.places import ROOT
from ..kits.servers import DevServer

CONF = ROOT / "conf"


@pytest.mark.live
def test_the_server_takes_its_configuration() -> None:
    """`nats-server -t` finds no fault in conf/nats-server.conf."""
    checked = subprocess.run(
        [str(find_server()), "-t", "-c", str(CONF / "nats-server.conf")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert checked.returncode == 0, checked.stderr


@pytest.mark.live
def test_the_server_runs_with_its_configuration(tmp_path: Path) -> None:
    """A server with conf/nats-server.conf has JetStream on, with the limits written there."""
    text = (CONF / "nats-server.conf").read_text().replace('"nats-data"', json.dumps(str(tmp_path)))
    with DevServer(text) as server:
        config = server.ask("/jsz")["config"]

    assert config["max_memory"] == 1 << 30
    assert config["max_storage"] == 10 << 30
    assert config["store_dir"].startswith(str(tmp_path))


@pytest.mark.live
@pytest.mark.parametrize(("given", "password"), [("s3cret", "s3cret"), ('"12345"', "12345")])
def test_the_user_of_its_example_has_the_password_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, password: str
) -> None:
    """The user that stands there as a comment logs in with that password, and with no other."""
    monkeypatch.setenv("SPARK_PASSWORD", given)
    text = (CONF / "nats-server.conf").read_text().replace('"nats-data"', json.dumps(str(tmp_path)))
    start = text.index("# accounts {")
    with DevServer(text[:start] + text[start:].replace("\n# ", "\n").removeprefix("# ")) as server:
        js = JetStream(Client(connection_of(server.url, user="spark", password=Secret(password))))
        js.create_stream({"name": "S", "subjects": ["S.>"]})
        js.client.close()
        for wrong in ("$SPARK_PASSWORD", "", "x"):
            client = Client(connection_of(server.url, user="spark", password=Secret(wrong)))
            with pytest.raises(AuthenticationError):
                client.connection.ping(5)
            client.close()


@pytest.mark.spark
def test_spark_runs_with_its_settings() -> None:
    """
    Spark started with conf/ has every setting of spark-defaults.conf, as the benchmarks read them,
    and finds the classes named.

    In a process of its own: such settings are read when the JVM starts.
    """
    program = (
        "import json, os\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', False)"
        ".getOrCreate()\n"
        "classes = json.loads(os.environ['CLASSES'])\n"
        "for name in classes: spark._jvm.java.lang.Class.forName(name)\n"
        "names = json.loads(os.environ['NAMES'])\n"
        "print(json.dumps({name: spark.conf.get(name) for name in names}))\n"
        "spark.stop()\n"
    )
    settings = documented_settings()
    classes = [value for value in settings.values() if value.startswith("org.")]
    environment = os.environ | {
        "SPARK_CONF_DIR": str(CONF),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "NAMES": json.dumps(list(settings)),
        "CLASSES": json.dumps(classes),
    }
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == settings
    assert "WARN " not in ran.stderr
    assert classes


@pytest.mark.live
@pytest.mark.parametrize(
    ("name", "login", "err_codes"),
    [
        ("ingest", {}, {10167}),
        ("account", {"user": "spark", "password": Secret("spark")}, {10002}),
        ("storage", {}, {10023, 10047}),
    ],
)
def test_servers_that_are_soon_at_an_end(
    tmp_path: Path, name: str, login: dict[str, Any], err_codes: set[int]
) -> None:
    """Each file of conf/pressure/ provokes the refusal it is for."""
    text = (CONF / "pressure" / f"{name}.conf").read_text()
    text = text.replace('"nats-data-pressure"', json.dumps(str(tmp_path)))
    with serving(text, {"S": {"subjects": ["S"]}}, **login) as (_, js):
        replies = js.client.requests([("S", b"x" * 2_000)] * 1_000)
    answers = [json.loads(reply.data) for reply in replies]
    found = {answer["error"]["err_code"] for answer in answers if "error" in answer}

    assert found & err_codes
    assert found <= err_codes


def test_an_archive_is_compiled(tmp_path: Path) -> None:
    """
    conf/compile_pyspark.py, run once or twice, puts each source's compiled module beside it; Python
    takes that, and still shows the source. Tests in the archive stay as they are.
    """
    archive = tmp_path / "pyspark.zip"
    with ZipFile(archive, "w") as made:
        made.writestr("toy/__init__.py", "def answer():\n    return 42\n")
        made.writestr("toy/tests/test_toy.py", "this is no Python\n")
        made.writestr("toy/data.txt", "x")
    for _ in range(2):
        subprocess.run(
            [sys.executable, str(CONF / "compile_pyspark.py"), str(archive)],
            check=True, timeout=60, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    program = (
        "import inspect, toy; print(toy.__file__, toy.answer(), inspect.getsource(toy.answer))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(archive)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip

    names = ZipFile(archive).namelist()
    assert sorted(names) == [
        "toy/__init__.py", "toy/__init__.pyc", "toy/data.txt", "toy/tests/test_toy.py",
    ]  # fmt: skip
    assert ran.stdout.split() == [
        f"{archive}/toy/__init__.pyc", "42", "def", "answer():", "return", "42",
    ]  # fmt: skip
