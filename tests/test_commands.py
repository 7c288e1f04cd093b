"""The command `pyspark-jetstream`: list, help, mistakes, and where its login comes from."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import pyspark_jetstream
from pyspark_jetstream.client.options import CONNECTION_OPTIONS
from pyspark_jetstream.errors import AuthenticationError, JetStreamError
from pyspark_jetstream.operations import commands
from pyspark_jetstream.operations.connecting import FLAGS, connects
from tests.kits.programs import main

ROOT = Path(__file__).parents[1]
NAMES = commands.programs.list_commands(click.Context(commands.programs))


@pytest.fixture(autouse=True)
def no_login(monkeypatch, tmp_path):
    """Nothing of this machine says where servers are."""
    for name in [name for name in os.environ if name.startswith(("NATS_", "JETSTREAM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")


def said(capsys, *words):
    """Status, output and errors of the command."""
    return main(words), *capsys.readouterr()


def python(*arguments, **env):
    """A Python of its own that has the package."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]} | env,
    )  # fmt: skip


# ── list, help, mistakes ─────────────────────────────────────────────────────────────────────


def test_the_list(capsys):
    """Help names each command with a sentence, also without a command and by `python -m`."""
    status, out, _ = said(capsys, "--help")
    module = python("-m", "pyspark_jetstream", "--help", COLUMNS="80")

    assert (status, module.returncode, module.stdout) == (0, 0, out)
    assert [line.split()[0] for line in out.splitlines() if line[:3].strip() and line[:2] == "  "
            and line.split()[0] in NAMES] == NAMES  # fmt: skip
    assert "..." not in out.partition("Commands:")[2]


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command(capsys, name):
    """It fits 80 columns, has an example and the exit statuses, and names flags."""
    status, out, _ = said(capsys, name, "--help")

    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert f"  pyspark-jetstream {name} " in out
    assert "Exit status 0: done; 1: failed" in " ".join(out.split())
    for option in CONNECTION_OPTIONS:
        assert option.name == option.name.lower() or option.name not in out
        assert not option.secret or FLAGS[option.name] + " " not in out


def test_the_page_has_every_program():
    """The table of docs/reference/commands.md has each command."""
    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \| \[", text, re.MULTILINE)

    assert sorted(name.strip(" `") for row in rows for name in row.split(",")) == sorted(NAMES)


def test_the_version(capsys):
    """`--version` is the package's."""
    assert said(capsys, "--version") == (
        0, f"pyspark-jetstream {pyspark_jetstream.__version__}\n", ""
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("pasue", "No such command 'pasue'. Did you mean 'pause'?"),
        ("explain_mapping m.conf a", "Did you mean 'explain-mapping'?"),
        ("pause --strem S", "No such option '--strem'. (Did you mean one of: '--stream'"),
        (
            "pause --stream S --consumer q --for 1x",
            "Invalid value for '--for': expected a duration",
        ),
        ("resume --stream S --consumer q --connect-timeout 5", "--connect-timeout: "),
        ("resume --stream S --consumer q --user u", "$JETSTREAM_PASSWORD"),
        ("resume --stream S --consumer q --password pw", "everybody on the machine can read"),
        ("resume --stream S --consumer q --context no", "context 'no': "),
        ("explain-mapping {", "Missing argument 'SUBJECT...'"),
    ],
)
def test_a_mistake(capsys, words, says):
    """It is one line with the nearest name, status 2, without a value."""
    status, out, err = said(capsys, *words.split())

    assert (status, out) == (2, "")
    assert says in err.splitlines()[-1]
    assert " pw" not in err


def test_an_error_is_one_line(capsys, monkeypatch):
    """An error of ours is one line, status 1; Ctrl-C is 130."""
    error: BaseException = JetStreamError("stream '\x1b[2Jx' not found\nError: forged")

    @click.command()
    def program():
        raise error

    monkeypatch.setattr(commands.Programs, "get_command", lambda *_: program)
    status, _, err = said(capsys, "pause")
    error = KeyboardInterrupt()

    assert (status, err.count("\n"), "\x1b" in err) == (1, 1, False)
    assert said(capsys, "pause")[0] == 130


def test_a_refused_login_names_flag_and_variable(capsys, monkeypatch):
    """The command names what it takes: the flag of the user, the variable of the password."""

    @click.command()
    def program():
        raise AuthenticationError("nats://h", "Authorization Violation")

    monkeypatch.setattr(commands.Programs, "get_command", lambda *_: program)

    assert (
        "check --user and $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN, --nkey-seed-file"
        in said(capsys, "pause")[2]
    )


def test_a_list_that_nobody_reads_to_its_end():
    """`| head` has seen enough: no trace."""
    words = f"{sys.executable} -m pyspark_jetstream explain-mapping '{{}}' {'a ' * 900}| head -1"
    done = subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


# ── what it needs ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra(missing):
    """One line says what to install; the package itself is imported all the same."""
    script = (
        "import importlib.util, sys; found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == sys.argv[1] else found(name)\n"
        "import pyspark_jetstream; from pyspark_jetstream.operations.main import main; main([])"
    )
    done = python("-c", script, missing)

    assert (done.returncode, done.stdout, done.stderr) == (
        1, "", f"pyspark-jetstream needs {missing}: pip install {missing}\n"
    )  # fmt: skip


def test_completion(capsys):
    """The help says how a shell gets its script; by it, it asks for commands and flags."""
    variable = "_PYSPARK_JETSTREAM_COMPLETE"

    def ran(**env):
        return python("-c", "import pyspark_jetstream.operations.main as it; it.main()", **env)

    def offered(line):
        words = line.split(" ")
        env = {variable: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        return ran(**env).stdout

    assert f'eval "$({variable}=bash_source pyspark-jetstream)"' in said(capsys, "--help")[1]
    assert f"{variable}=bash_complete" in ran(**{variable: "bash_source"}).stdout
    assert "unpin" in offered("pyspark-jetstream un")
    assert "--stream" in offered("pyspark-jetstream pause --st")


# ── where the connection comes from ──────────────────────────────────────────────────────────


@pytest.fixture
def options(capsys, monkeypatch):
    """The options of the connection by these words, or the mistake in them."""

    @click.command()
    @connects
    def program(connection):
        found.append(connection)

    found = []
    monkeypatch.setattr(commands.Programs, "get_command", lambda *_: program)

    def of(*words):
        found.clear()
        status, _, err = said(capsys, "pause", *words)
        return found[0] if status == 0 else err.splitlines()[-1]

    return of


def context(home, name, selected=False, **members):
    """A context of the `nats` command."""
    (home / "nats" / "context").mkdir(parents=True, exist_ok=True)
    (home / "nats" / "context" / f"{name}.json").write_text(json.dumps(members))
    if selected:
        (home / "nats" / "context.txt").write_text(name)


def test_a_flag_counts_before_the_environment_before_a_file(options, monkeypatch, tmp_path):
    """Of a value that several say, the nearest counts."""
    file = tmp_path / "c.toml"
    file.write_text(
        'servers = "nats://file:1"\nuser = "u"\npassword = "pw"\nconnect-timeout = "9s"'
    )
    words = "--config", str(file)

    assert options().servers == ("nats://127.0.0.1:4222",)
    assert options(*words).servers == ("nats://file:1",)
    assert options(*words).password.reveal() == "pw"
    assert options(*words).connect_timeout_s == 9.0
    monkeypatch.setenv("NATS_URL", "nats://env:1")
    assert options(*words).servers == ("nats://env:1",)
    assert options(*words, "--servers", "nats://flag:1").servers == ("nats://flag:1",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('server = "x"', "unknown setting 'server': did you mean servers?"),
        ("servers = [", "Invalid value"),
        ('requestTimeout = "1s"', "unknown setting 'requestTimeout'"),
    ],
)
def test_a_mistake_in_the_file(options, tmp_path, content, says):
    """It is named with the file."""
    file = tmp_path / "c.toml"
    file.write_text(content)

    assert says in options("--config", str(file)) and str(file) in options("--config", str(file))


@pytest.mark.parametrize(
    ("url", "servers", "user", "password", "token"),
    [
        ("nats://u:p%40w@a:1", ("nats://a:1",), "u", "p@w", None),
        ("tls://t0ken@a:1,tls://b:2", ("tls://a:1", "tls://b:2"), None, None, "t0ken"),
        ("a:1", ("nats://a:1",), None, None, None),
    ],
)
def test_the_url_of_the_nats_command(options, monkeypatch, url, servers, user, password, token):
    """$NATS_URL may have a login, as operators have it."""
    monkeypatch.setenv("NATS_URL", url)
    found = options()

    assert (found.servers, found.user) == (servers, user)
    assert (found.password and found.password.reveal()) == password
    assert (found.token and found.token.reveal()) == token


def test_the_login_of_the_nats_command(options, monkeypatch, tmp_path):
    """Its variables are taken, ours before them."""
    monkeypatch.setenv("NATS_USER", "theirs")
    monkeypatch.setenv("NATS_PASSWORD", "pw")
    assert options().user == "theirs"
    monkeypatch.setenv("JETSTREAM_USER", "ours")
    assert (options().user, options().password.reveal()) == ("ours", "pw")


def test_a_context_of_the_nats_command(options, monkeypatch, tmp_path):
    """A named context counts, given flags go over it; a selected one only without servers."""
    ca = tmp_path / "ca.pem"
    ca.write_text("x")
    context(tmp_path, "prod", url="tls://u:pw@prod:1", ca=str(ca), jetstream_domain="hub")
    context(tmp_path, "dev", selected=True, url="nats://dev:1", token="t0ken")

    prod = options("--context", "prod")
    assert (prod.servers, prod.user, prod.password.reveal()) == (("tls://prod:1",), "u", "pw")
    assert (prod.tls.ca_file, prod.api_prefix) == (str(ca), "$JS.hub.API")
    assert options("--context", "prod", "--js-domain", "other").api_prefix == "$JS.other.API"
    assert (options().servers, options().token.reveal()) == (("nats://dev:1",), "t0ken")
    assert options("--servers", "nats://else:1").token is None
    monkeypatch.setenv("NATS_URL", "nats://env:1")
    assert options().token is None
    monkeypatch.setenv("NATS_CONTEXT", "dev")
    assert options().servers == ("nats://env:1",)


@pytest.mark.parametrize(
    ("members", "says"),
    [({"nsc": "nsc://a"}, "'nsc' is not supported"), ({"user_jwt": "x"}, "'user_jwt' is not")],
)
def test_a_context_that_we_cannot_use(options, tmp_path, members, says):
    """A login that we do not have is named."""
    context(tmp_path, "odd", url="nats://a:1", **members)

    assert says in options("--context", "odd")
