"""Secrets of every kind, looked for wherever a run of Spark leaves something to be seen."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import nkeys
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.operations.metrics.exporter import families
from pyspark_jetstream.operations.metrics.reports import Reports
from pyspark_jetstream.publish.metrics import MetricsReport

from ..kits.logins import keys, operator_mode
from ..kits.places import ROOT
from ..kits.servers import DevServer
from ..kits.tls import make_certificates, tls_server

ROWS = 40

DEBUG = """
import logging, os
logging.basicConfig(
    level=logging.DEBUG, filename=os.path.join(os.environ["SECRETS_HOME"], "debug-%d" % os.getpid())
)
logging.getLogger("py4j").setLevel(logging.WARNING)
"""
"""What every Python process of the run begins with."""


class Scene:
    """Servers, how to enter them, and the secrets of all."""

    def __init__(self, inputs):
        self.logins: dict[str, dict[str, str]] = {}
        self.refused: dict[str, dict[str, str]] = {}
        self.secrets: dict[str, str] = {}
        self.inputs = inputs
        """Where secrets are in files, as users have them."""

    def file(self, name, content):
        path = self.inputs / name
        path.write_text(content)
        return str(path)


@pytest.fixture
def scene(tmp_path):
    """A server of each kind, with a stream to read and two to write."""
    (inputs := tmp_path / "inputs").mkdir()
    one = Scene(inputs)
    _, seed, public = keys(nkeys.PREFIX_BYTE_USER)
    mode = operator_mode()
    kinds = "password", "token", "wrong", "url"
    one.secrets = {kind: f"s3cr3t-{kind}-{os.urandom(12).hex()}" for kind in kinds}
    one.secrets |= {"nkey": seed, "creds seed": mode.seed, "creds jwt": mode.jwt}
    make_certificates(inputs)
    key = (inputs / "client.key").read_text()
    one.secrets["tls key"] = key.splitlines()[1]
    with ExitStack() as stack:

        def start(server):
            return stack.enter_context(server).url

        password = f'authorization {{ user: ann, password: "{one.secrets["password"]}" }}'
        by_password = {"servers": start(DevServer(password)), "user": "ann"}
        token = f'authorization {{ token: "{one.secrets["token"]}" }}'
        by_token = {"servers": start(DevServer(token))}
        by_nkey = {
            "servers": start(DevServer(f"authorization {{ users: [ {{ nkey: {public} }} ] }}"))
        }
        by_creds = {"servers": start(DevServer(mode.config))}
        by_tls = {
            "servers": start(tls_server(inputs, "verify: true")).replace("nats://", "tls://"),
            "tlsCaFile": f"{inputs}/ca.pem", "tlsCertFile": f"{inputs}/client.pem",
        }  # fmt: skip
        one.logins = {
            "password": by_password | {"password": one.secrets["password"]},
            "token": by_token | {"token": one.secrets["token"]},
            "nkey": by_nkey | {"nkeySeedFile": one.file("seed", seed + "\n")},
            "credsfile": by_creds | {"credentialsFile": one.file("creds", mode.creds)},
            "creds": by_creds | {"credentials": mode.creds},
            "tls": by_tls | {"tlsKeyFile": f"{inputs}/client.key"},
        }
        in_url = by_password["servers"].replace("//", f"//ann:{one.secrets['url']}@")
        one.refused = {
            "wrong password": by_password | {"password": one.secrets["wrong"]},
            "wrong token": by_token | {"token": one.secrets["wrong"]},
            "wrong seed": by_nkey | {"nkeySeedFile": one.file("wrong", one.secrets["wrong"])},
            "url": {"servers": in_url},
        }
        for name, options in one.logins.items():
            if name == "creds":  # the server of credsfile
                continue
            client = Client(parse_connection(options))
            js = JetStream(client)
            for stream in ("IN", "OUT", "TOO"):
                js.create_stream(
                    {"name": stream, "subjects": [f"{stream.lower()}.>"], "allow_direct": True}
                )
            js.create_stream({"name": "METRICS", "subjects": ["metrics"], "allow_direct": True})
            for row in range(ROWS):
                js.publish(f"in.{row}", b"x", [])
            client.close()
        yield one


class Seen:
    """What was seen where, and in which of it a secret is."""

    def __init__(self, secrets):
        self.places: dict[str, int] = {}
        """Bytes by place."""
        self.marked: set[str] = set()
        """
        Places that show the prefix of inboxes, so that a secret would show there, too. Of Spark's
        own only plans show options.
        """
        self.leaks: list[str] = []
        self._forms = [
            (kind, form)
            for kind, secret in secrets.items()
            for form in (secret.encode(), base64.b64encode(secret.encode())[:-4])
        ]

    def look(self, place, detail, content):
        self.places[place] = self.places.get(place, 0) + len(content)
        if b"marker-" in content:
            self.marked.add(place)
        for kind, form in self._forms:
            at = content.find(form)
            if at >= 0:
                around = content[max(0, at - 120) : at].decode("utf-8", "replace")
                self.leaks.append(f"{kind} in {place} ({detail}) behind {around!r}")

    def files(self, home):
        for root, _, names in os.walk(home):  # passes over temporary directories that are gone
            for path in sorted(Path(root, name) for name in names):
                try:
                    if path.is_file():
                        place = re.sub(r"[-0-9].*", "", path.relative_to(home).parts[0])
                        self.look(place, str(path), path.read_bytes())
                except FileNotFoundError:
                    continue  # a temporary file that is gone

    def processes(self, session):
        """Everything that runs in the session of the program."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(process.name)) == session:
                    for name in ("cmdline", "environ"):
                        self.look(f"/proc/{name}", process.name, (process / name).read_bytes())
            except (ProcessLookupError, PermissionError, FileNotFoundError):
                continue

    def web(self, url, application):
        """Spark's UI and its REST interface."""
        api = f"api/v1/applications/{application}"
        pages = [
            f"{api}/environment", f"{api}/jobs", f"{api}/stages?details=true",
            f"{api}/sql?details=true&planDescription=true&length=1000", f"{api}/allexecutors",
            "environment/", "SQL/", "StreamingQuery/", "jobs/", "stages/",
        ]  # fmt: skip
        for page in pages:
            with urlopen(f"{url}/{page}", timeout=60) as answer:
                content = answer.read()
            self.look("UI", page, content)
            if page == "SQL/":
                for number in sorted(set(re.findall(rb"SQL/execution/\?id=(\d+)", content))):
                    path = f"SQL/execution/?id={number.decode()}"
                    with urlopen(f"{url}/{path}", timeout=60) as answer:
                        self.look("UI", path, answer.read())
            for link in sorted(set(re.findall(rb"StreamingQuery/statistics[^\"' ]*", content))):
                with urlopen(f"{url}/{link.decode()}", timeout=60) as answer:
                    self.look("UI", link.decode(), answer.read())


def stored(options, stream):
    """Every message of the stream: subject, headers and data."""
    client = Client(parse_connection(options))
    try:
        js = JetStream(client)
        last = js.stream_info(stream).last_seq
        found = js.messages(stream, [{"seq": seq} for seq in range(1, last + 1)])
        return [(each.subject, each.stored, each.data) for each in found if each is not None]
    finally:
        client.close()


@pytest.mark.parametrize("few", [True, False], ids=["two logins", "all logins"])
def test_no_secret_shows_anywhere(scene, tmp_path, few):
    """
    Password, token, nkey seed, credentials (as a file and as text), the key of a certificate and a
    password in a URL are in no plan, page or REST answer of Spark's UI, event log, checkpoint,
    progress, error, record of the ledger, metric, log of ours at DEBUG, argument or environment of
    a process, or file of the run; all of these were looked at while the run had them. With two
    logins one copies, and the mistakes are made with the other.
    """
    copied, mistaken = list(scene.logins), list(scene.logins)
    if few:
        copied, mistaken = ["creds"], ["password"]
        scene.logins = {name: scene.logins[name] for name in copied + mistaken}
        scene.refused = {name: scene.refused[name] for name in ("wrong password", "url")}
    home, modules = tmp_path / "home", tmp_path / "modules"
    for folder in ("events", "local", "tmp", "cwd"):
        (home / folder).mkdir(parents=True)
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(DEBUG)
    environment = os.environ | {
        "SECRETS_HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={home}/tmp",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(modules), str(ROOT)]),
    }
    script = Path(__file__).with_name("secretive_query.py")
    seen = Seen(scene.secrets)
    with (home / "log").open("wb") as log, subprocess.Popen(
        [sys.executable, str(script)], env=environment, cwd=home / "cwd", text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            given = {
                "copied": {name: scene.logins[name] for name in copied},
                "mistaken": {name: scene.logins[name] for name in mistaken},
                "refused": scene.refused,
            }
            process.stdin.write(json.dumps(given) + "\n")
            process.stdin.flush()
            done = process.stdout.readline().split()
            assert done[:1] == ["done"], (home / "log").read_text()[-4000:]
            seen.processes(process.pid)
            seen.web(*done[1:])
            seen.files(home)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.wait(120) == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    seen.files(home)
    reports = Reports()
    for name in copied:
        options = scene.logins[name]
        for subject, headers, data in stored(options, "KV_SPARK_LEDGER"):
            seen.look("ledger", f"{name} {subject}", headers + data)
        for _, headers, data in stored(options, "METRICS"):
            seen.look("reports", name, headers + data)
            reports.take(MetricsReport.decode(data), 0.0)
    seen.look("metrics", "", repr(list(families(reports.totals(0.0), {}))).encode())

    assert seen.leaks == []
    expected = {
        "plans", "progress", "errors", "events", "checkpoints", "debug", "log", "UI", "ledger",
        "reports", "metrics", "/proc/cmdline", "/proc/environ",
    }  # fmt: skip
    assert {place for place, size in seen.places.items() if size} >= expected
    assert "plans" in seen.marked
    errors = (home / "errors").read_text()
    assert "NO ERROR" not in errors
    for name in copied:
        options = scene.logins[name]
        assert len(stored(options, "OUT")) == len(stored(options, "TOO")) >= ROWS, name
