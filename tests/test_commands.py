"""The command `pyspark-jetstream`."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

import pyspark_jetstream
from pyspark_jetstream.operations.console import commands

ROOT = Path(__file__).parents[1]


def python(*arguments, cwd="/", **env):
    """A Python of its own that has the package."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True, text=True, timeout=60, cwd=cwd, env={"PYTHONPATH": str(ROOT)} | env,
    )  # fmt: skip


def said(capsys, *words):
    """Status, output and errors of the command."""
    try:
        status = commands.main(words)
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


@pytest.fixture
def program(monkeypatch):
    """Lets `explain-mapping` do something else."""

    def does(work):
        module = f"{commands.__package__}.{commands.COMMANDS['explain-mapping'].module}"
        made = SimpleNamespace(__doc__="", arguments=lambda parser: None, run=work)
        monkeypatch.setitem(sys.modules, module, made)

    return does


# ── the list ─────────────────────────────────────────────────────────────────────────────────


def test_the_list(capsys):
    """
    `--help` has each command with the first sentence of its help.
    """
    status, out, err = said(capsys, "--help")
    text = " ".join(out.split())

    assert (status, err) == (0, "")
    for name, (module, words) in commands.COMMANDS.items():
        doc = importlib.import_module(f"{commands.__package__}.{module}").__doc__
        does = commands.does(name)
        first = f"`{name}`: {does}" if words else does
        assert len(does) > 40
        assert first in " ".join(doc.split())[: None if words else len(does)]
        assert f"{name} {does}" in text


def test_the_list_into_a_pipe_that_ends():
    """
    `--help | head -1` ends without a word about the pipe.
    """
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_jetstream", "--help"],
        stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, cwd=ROOT,
    )  # fmt: skip
    os.close(write)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_list_needs_nothing():
    """
    The list, versions and mistakes come without Spark, without nats-py and without extras.
    """
    missing = ("pyspark", "nats", "pyarrow", "xxhash", "rich", "prometheus_client")
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({missing}))\n"
        "from pyspark_jetstream.operations.console.commands import main\n"
        "sys.exit([main([word]) for word in ('--help', '--version', 'nothing')] != [0, 0, 2])"
    )
    done = python("-c", script)

    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr


def test_the_version(capsys):
    """
    `--version` is the package's.
    """
    assert said(capsys, "--version") == (
        0, f"pyspark-jetstream {pyspark_jetstream.__version__}\n", ""
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "expected a command."),
        ("thottle pause --subject a", "unknown command 'thottle': did you mean 'throttle'?"),
        ("explain_mapping m.conf a", "'explain_mapping': did you mean 'explain-mapping'?"),
        ("xyz", "unknown command 'xyz'. See"),
        ("--password=pw1 --token pw2", "unknown command '--password'. See"),
    ],
)
def test_an_unknown_command(capsys, words, says):
    """
    What is no command ends with status 2 and one line that names the nearest, and no secret.
    """
    status, out, err = said(capsys, *words.split())

    assert (status, out) == (2, "")
    assert err.startswith("pyspark-jetstream: ")
    assert says in err
    assert err.count("\n") == 1
    assert "pw" not in err


# ── commands and jobs ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_the_help_of_a_command(capsys, name):
    """
    The help shows the command as it was called, in its usage and in its examples, and options by
    their flags. It opens with the sentence that the list has.
    """
    status, out, err = said(capsys, *name.split(), "--help")

    assert (status, err) == (0, "")
    assert out.split("\n\n")[1].split()[:4] == commands.does(name).split()[:4]
    assert out.startswith(f"usage: pyspark-jetstream {name} ")
    assert out.count(f"    pyspark-jetstream {name} ") >= 1
    assert "python jobs/" not in out
    assert "credentialsFile" not in out


@pytest.mark.parametrize(
    "name", sorted({*commands.COMMANDS, "throttle pause", "throttle quota"} - {"explain-mapping"})
)
def test_the_help_of_the_user_says_where_the_password_comes_from(capsys, name):
    """
    A password is no flag, so the help of `--user` names its variable. Those of a program that has
    commands are the commands' flags.
    """
    _, out, _ = said(capsys, *name.split(), "--help")

    if name == "throttle":
        assert "--user" not in out
        assert "$JETSTREAM_PASSWORD" in out
    else:
        user = out.partition("\n  --user ")[2].partition("\n  --")[0]
        assert user.split()[1:] == [
            "User", "name.", "Its", "password", "comes", "from", "$JETSTREAM_PASSWORD.",
        ]  # fmt: skip


@pytest.mark.parametrize("name", ["", *commands.COMMANDS, "throttle pause", "throttle quota"])
def test_help_fits_a_terminal(capsys, monkeypatch, name):
    """
    At 80 columns no terminal breaks a line of help, but a usage, or a value that is longer itself.
    """
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = said(capsys, *name.split(), "--help")

    long = [line for line in out.splitlines() if len(line) > 80]
    assert [
        line
        for line in long
        if "usage:" not in line and "    pyspark-jetstream explain" not in line
    ] == []


def test_no_program_has_the_name_of_a_module_of_pythons():
    """
    Python looks into the directory of the program first: a namesake there would be imported.
    """
    assert not {path.stem for path in (ROOT / "jobs").glob("*.py")} & sys.stdlib_module_names


def test_a_command_needs_no_extra_to_say_how_it_is_called():
    """
    Extras are imported when they are used.
    """
    script = (
        "import sys; sys.modules.update(dict.fromkeys(('rich', 'prometheus_client')))\n"
        "from importlib import import_module\n"
        "from pyspark_jetstream.operations.console import commands\n"
        "for each in commands.COMMANDS.values():\n"
        "    import_module(f'{commands.__package__}.{each.module}')"
    )
    done = python("-c", script)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("module", "package"), [("rich.table", "rich"), ("prometheus_client", "prometheus-client")]
)
def test_a_missing_package(capsys, program, module, package):
    """
    Where an optional package is missing, one line says what to type, for this Python, however this
    package itself was installed.
    """

    def work(given):
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    program(work)

    assert said(capsys, "explain-mapping") == (
        1, "",
        f"pyspark-jetstream explain-mapping: needs {package}:"
        f" {sys.executable} -m pip install {package}\n",
    )  # fmt: skip


def test_another_missing_module_is_no_mistake_of_the_users(program):
    """
    What every installation has is not explained away.
    """

    def work(given):
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")

    program(work)

    with pytest.raises(ModuleNotFoundError):
        commands.main(["explain-mapping"])


def test_ctrl_c(capsys, program):
    """
    Ctrl-C is status 130, without a word.
    """

    def work(given):
        raise KeyboardInterrupt

    program(work)

    assert said(capsys, "explain-mapping") == (130, "", "")


def test_the_status_passes_through(program):
    """
    A program knows how it was called; its status is the command's.
    """
    got = []
    program(lambda given: got.append(given.parser.prog) or 3)

    assert commands.main(["explain-mapping"], "python -m pyspark_jetstream") == 3
    assert got == ["python -m pyspark_jetstream explain-mapping"]


# ── ways to call it ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (("-m", "pyspark_jetstream", "inspect"), "python -m pyspark_jetstream inspect"),
    ],
)
def test_ways_to_call_it(words, program):
    """
    The package runs as a program.
    """
    done = python(*words, "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {program} [OPTION ...]\n")


def test_pip_installs_the_command(tmp_path):
    """
    The wheel has the command, and all that it runs.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    place = project["scripts"]["pyspark-jetstream"]
    assert EntryPoint("pyspark-jetstream", place, "console_scripts").load() is commands.main
    pytest.importorskip("hatchling", reason="extra test brings it")

    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    build = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path, ROOT)
    built = python(*pip, *build)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    put = python(*pip, "install", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel)
    assert put.returncode == 0, put.stderr
    command = tmp_path / "site" / "bin" / "pyspark-jetstream"

    done = python(command, "inspect", "--help", PYTHONPATH=str(tmp_path / "site"))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: pyspark-jetstream inspect [OPTION ...]\n")


# ── completion ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def script():
    """The script for bash."""
    done = python("-m", "pyspark_jetstream", "completion", "bash")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("", {"inspect", "unpin", "throttle", "completion", "--help"}),
        ("ins", {"inspect"}),
        ("throttle p", {"producers", "pause"}),
        ("throttle pause --su", {"--subject"}),
        ("inspect --checkpoint-", {"--checkpoint-timeout"}),
        ("completion ", {"bash", "zsh"}),
    ],
)
def test_completion_in_bash(script, line, offered):
    """
    A shell that sources the script completes commands, their commands, and their flags.
    """
    *before, last = ["pyspark-jetstream", *line.split(" ")]
    words = " ".join(f"'{word}'" for word in [*before, last])
    asks = f"COMP_WORDS=({words}); COMP_CWORD={len(before)}; _pyspark_jetstream"
    asks += '; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{asks}"], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stderr == ""
    assert set(done.stdout.split()) >= offered
    assert all(word.startswith(last) for word in done.stdout.split())


def test_completion_has_every_flag(script):
    """
    What a command takes is offered, and zsh takes the same script.
    """
    zsh = python("-m", "pyspark_jetstream", "completion", "zsh").stdout

    assert zsh == f"autoload -U +X bashcompinit && bashcompinit\n{script}"
    for name in commands.COMMANDS:
        words = " ".join(name.split())
        known = re.search(rf"'{words} '\*\) words='([^']*)'", script)[1].split()
        assert "--help" in known and ("--servers" in known) is (
            name not in ("throttle", "explain-mapping")
        )
