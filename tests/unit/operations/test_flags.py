"""Flags of all programs that are given twice."""

from __future__ import annotations

import argparse
from importlib import import_module

import pytest

from pyspark_jetstream.errors import AuthenticationError
from pyspark_jetstream.operations.console import commands, program


@pytest.mark.parametrize("name", sorted(commands.COMMANDS))
def test_a_value_is_given_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Of a flag that takes one value, or some behind it, a second one is a mistake, and the last line
    names the flag and says what to do. Flags that collect values take it, as do two command lines.
    """
    parser = program.Parser(prog=name)
    import_module(f"{commands.__package__}.{commands.COMMANDS[name].module}").arguments(parser)
    tried = 0
    for one in [*parser.commands().values()] or [parser]:
        for action in one._actions:  # these are not judged here
            action.required, action.type, action.choices = False, None, None
        for group in one._mutually_exclusive_groups:
            group.required = False
        rest = ["x" for action in one._actions if not action.option_strings]
        for flag, action in one.flags():
            twice = [*rest, flag, "x", flag, "x"]
            if action.nargs == 0:
                continue
            tried += 1
            one.parse_known_args(twice[:-2])
            one.parse_known_args(twice[:-2])
            if isinstance(action, argparse._AppendAction):
                one.parse_known_args(twice)
                continue
            with pytest.raises(SystemExit) as ended:
                one.parse_known_args(twice)
            *_, last = capsys.readouterr().err.splitlines()
            assert ended.value.code == 2
            assert last.startswith(f"{one.name}: {flag}: expected on")
            assert last.endswith(("run the command once for each", "put all values behind it"))
    assert tried > 5 or name == "explain-mapping"


def test_a_refused_login_names_flag_and_variable() -> None:
    """The command names what it takes: the flag of the user, the variable of the password."""
    parser = program.Parser(prog="p")
    parser.add_connection()
    said = parser.spelled(str(AuthenticationError("nats://h", "Authorization Violation")))

    assert "check --user and $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN, --nkey-seed-file" in said
