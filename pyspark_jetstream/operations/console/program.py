"""
The parts of each program of the command: a command line, one way to fail, exit statuses.

A program is a module whose docstring is its help, with two functions: `arguments` declares what its
command line takes, `run` does it and returns the exit status. The rest is the same for all and
stands here: flags of the connection, servers and secrets from the environment, settings from a
file, values that begin with a minus, mistakes as one line after one line of usage, errors in the
spelling of the command line.

Secrets never stand on the command line, where every user of the machine could read them: they come
from files (`--credentials-file`, `--nkey-seed-file`), from the environment (`JETSTREAM_PASSWORD`,
`JETSTREAM_TOKEN`, `JETSTREAM_CREDENTIALS`), or from the file of `--config`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Final, NoReturn, TypeVar

from pyspark_jetstream import values as value_of
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.options import CONNECTION_OPTIONS, ConnectionOptions, parse_connection
from pyspark_jetstream.errors import JetStreamError, OptionError
from pyspark_jetstream.logs import log_for
from pyspark_jetstream.operations.terminal import complain
from pyspark_jetstream.options import all_options

from .commands import FAILED, INTERRUPTED, USAGE

T = TypeVar("T")

_SECRETS: Final = tuple(option.name for option in CONNECTION_OPTIONS if option.secret)
_PAIR: Final = "NAME=VALUE"
_FILTER: Final = "FILTER"
_EXPECTED: Final = {
    str: "expected text in quotes",
    int: "expected a number, without quotes",
    bool: "expected true or false, without quotes",
}
"""What is said of a value in a file that is of another type."""
_OPTION: Final = re.compile(
    r"\boptions? '?(\w+)'?(?!\w)|(?<![\w/.'=-])([a-z]+[A-Z]\w*)(?![\w/'=-])"
)
"""
Names of options in texts: `option 'x'`, `option x`, the first of `options x, y`, or the bare name
where it has a capital.
"""


def run(program: ModuleType, called: str, name: str, words: Sequence[str]) -> int:
    """
    Runs a program; its exit status, or the one of the error that ended it.

    Args:
        called: how the user has called it; its docstring calls it `name`, and begins with a
            sentence of its own where two names share a program.
    """
    first, gap, rest = (program.__doc__ or "").partition("\n\n")
    first = first.partition(f"`{name.rpartition(' ')[2]}`: ")[2] or first
    parser = Parser(prog=called, description=(first + gap + rest).replace(name, called))
    program.arguments(parser)
    given = parser.parse(words)
    parser = given.parser
    if level := flags_of(given).get("logLevel"):
        log_for(level)
    try:
        status: int = program.run(given)
    except KeyboardInterrupt:
        if parser.when_interrupted:
            complain(f"{parser.name}: interrupted{parser.when_interrupted}")
        return INTERRUPTED
    except (JetStreamError, OSError) as error:
        parser.complain(error)
        return USAGE if isinstance(error, OptionError) else FAILED
    return status


class _Help(argparse.HelpFormatter):
    """Help as wide as the terminal. A line of an example that is too long goes on before a flag."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = []
        for line in re.sub(r"(?<=[^.:\n])\n(?=\S)", " ", text.strip()).split("\n"):
            if line.startswith(" ") and " --" in line:
                whole = re.sub(r"(?<=\S) (?!--)", "\0", line)
                parts = textwrap.wrap(
                    whole, width - 2, subsequent_indent=" " * 8, break_on_hyphens=False,
                    break_long_words=False,
                )  # fmt: skip
                lines.append(" \\\n".join(parts).replace("\0", " "))
            elif line.startswith(" "):
                lines.append(line)
            else:
                lines.append(textwrap.fill(line, width, break_on_hyphens=False))
        return "\n".join(lines)


class _Once(argparse.Action):
    """An argument that is given once: of two values the first would get lost without a word."""

    _filled: argparse.Namespace | None = None
    """That of the command line whose value it has."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        if self._filled is namespace:
            how = "expected one value: run the command once for each"
            if self.metavar == _FILTER:
                how = "expected one filter: use wildcards, or run the command once for each"
            elif self.nargs == "+":
                how = "expected once: put all values behind it"
            raise argparse.ArgumentError(self, how)
        self._filled = namespace
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """The command line of a program, or of one of its commands."""

    when_interrupted = ""
    """The text behind "interrupted"; empty for no text."""

    def __init__(self, **how: Any) -> None:
        super().__init__(formatter_class=_Help, allow_abbrev=False, **how)
        for default in (None, "store"):
            self.register("action", default, _Once)
        self.name = re.sub(r".*/|\.py\b", "", self.prog)
        """First word of error lines: the program, without folder and `.py`."""
        self._settings: dict[str, argparse.Action] = {}
        """Settings that may stand in the file of `--config`, by their names there."""
        self._flags: dict[str, str] = {}
        """Spelling here of options that have another name as options of Spark."""
        self.set_defaults(parser=self)
        # What begins so is a value, as in `--from -10m`, and not only what is a number altogether.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    # ── what it takes ────────────────────────────────────────────────────────────────────────

    def add_connection(self) -> None:
        """A flag for every option of the connection that is no secret."""
        group = self.add_argument_group("connection (as for the data source)")
        for option in CONNECTION_OPTIONS:
            if not option.secret:
                flag, dest = _flag(option.name), f"connection {option.name}"
                default = f" Default: $NATS_URL, else {option.default}." * (flag == "--servers")
                login = " Its password comes from $JETSTREAM_PASSWORD." * (flag == "--user")
                group.add_argument(flag, dest=dest, metavar="…", help=option.doc + default + login)

    def add_json(self, what: str = "one JSON document instead of text") -> None:
        """`--json`, for a program that shows something."""
        self.add_argument("--json", action="store_true", help=what)

    def add_file(self) -> None:
        """`--config`, a file that may have all that `add_setting` declares."""
        self.add_argument(
            "--config",
            metavar="FILE",
            help="settings as TOML, by the names of these flags; those of the connection stand in"
            " [options], by the names of the options",
        )

    def add_setting(self, flag: str, means: Sequence[str] = (), **how: Any) -> None:
        """
        An argument that may stand in the file, by its name without the dashes.

        Args:
            means: options of Spark that it stands for: errors about them name the flag.
        """
        self._settings[flag.removeprefix("--")] = self.add_argument(flag, **how)
        self._flags |= dict.fromkeys(means, flag)

    def add_options(self, flag: str, help: str) -> None:
        """An argument `NAME=VALUE`, as often as wanted; in the file a table `[options]`."""
        self.add_setting(flag, action="append", metavar=_PAIR, default=[], help=help)

    @property
    def names(self) -> list[str]:
        """Settings that may stand in the file; tables end with `s`."""
        return [
            f"{name}s" if action.metavar == _PAIR else name
            for name, action in self._settings.items()
        ]

    def flags(self) -> Iterator[tuple[str, argparse.Action]]:
        """The flags, each with what it does."""
        for action in self._actions:
            yield from ((flag, action) for flag in action.option_strings)

    def meant(self, misspelt: Sequence[str]) -> str:
        """
        The variables of secrets among these, or else the flag that one of these is nearly, as a
        question; "" if there is none.
        """
        known = [flag for flag, _ in self.flags()]
        secrets = [f"${_variable('option', n)}" for n in _SECRETS if _flag(n) in misspelt]
        if secrets and "--user" in known:
            return f" (everybody on the machine can read a command line: use {', '.join(secrets)})"
        near = [flag for word in misspelt for flag in get_close_matches(word, known, 1, 0.8)]
        return f" (did you mean {near[0]}?)" if near else ""

    def commands(self) -> Mapping[str, Parser]:
        """The parsers of its commands; none where it has none."""
        for action in self._actions:
            if action.nargs == argparse.PARSER and isinstance(action.choices, dict):
                return action.choices
        return {}

    # ── what was given ───────────────────────────────────────────────────────────────────────

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """
        Arguments of the command line, else of the file; ends the program where they are wrong.

        Tables of options are dictionaries; those of the connection are among `option`.
        """
        tables = self._file(words) if self._settings else {}
        given, rest = self.parse_known_args(words)
        if rest:  # without their values, which may be secrets
            flags = [re.sub("=.*", "", word) for word in rest if word.startswith("-")]
            meant = given.parser.meant(flags)
            given.parser.error(f"unrecognized arguments: {' '.join(flags)} …{meant}")
        for dest, table in tables.items():
            pairs = dict(self._pair(dest, text) for text in getattr(given, dest))
            more = (environment(dest), table, pairs, flags_of(given) if dest == "option" else {})
            setattr(given, dest, merged(*more))
        return given

    def require(self, given: argparse.Namespace, *names: str) -> None:
        """Ends the program where a setting is neither in the file nor on the command line."""
        for name in names:
            if getattr(given, name.replace("-", "_")) is None:
                self.error(f"--{name} is required")

    def toml(self, path: str) -> dict[str, Any]:
        """The content of the file of `--config`; ends the program where it cannot be read."""
        try:
            with open(path, "rb") as file:
                return tomllib.load(file)
        except OSError as error:
            self.error(f"--config {path}: {error.strerror}")
        except tomllib.TOMLDecodeError as error:
            self.error(f"--config {path}: {error}")

    def _file(self, words: Sequence[str]) -> dict[str, dict[str, str]]:
        """Makes settings of the file defaults; its tables, by the arguments they belong to."""
        path = self.parse_known_args(words)[0].config
        content = self.toml(path) if path is not None else {}
        tables: dict[str, dict[str, str]] = {}
        for name, action in self._settings.items():
            if action.metavar == _PAIR:
                tables[action.dest] = self._table(f"{name}s", content.pop(f"{name}s", {}))
            elif name in content:
                value = self._value(f"{path}: {name}", action, content.pop(name))
                self.set_defaults(**{action.dest: value})
        if content:
            name = next(iter(content))
            options = {_flag(option).removeprefix("--"): option for option in _CONNECTION}
            option = options.get(name, name)
            if option in (*_CONNECTION, *_SECRETS):
                spelled = "" if option == name else f", as {option}"
                self.error(f"{path}: '{name}' belongs in [options]{spelled}")
            self.error(f"{path}: unknown setting '{name}'; see {', '.join(self.names)}")
        return tables

    def _table(self, name: str, value: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            self.error(f"[{name}]: expected a table of options")
        return {
            key: setting if isinstance(setting, str) else json.dumps(setting)
            for key, setting in value.items()
        }

    def _value(self, name: str, action: argparse.Action, value: Any) -> Any:
        kind: type = bool if action.nargs == 0 else str
        if action.type is not None:
            kind = int
        values = value if action.nargs == "+" and isinstance(value, list) else [value]
        wrong = next((item for item in values if type(item) is not kind), None)
        if wrong is not None:
            quoted = kind is str and not isinstance(wrong, (list, dict))
            self.error(f"{name}: {_EXPECTED[kind]}" + f', such as "{wrong}"' * quoted)
        if action.type is not None:
            try:
                return action.type(str(value))  # type: ignore[operator]
            except argparse.ArgumentTypeError as error:
                self.error(f"{name}: {error}")
        return values if action.nargs == "+" else value

    def _pair(self, dest: str, text: str) -> tuple[str, str]:
        flag = "--" + dest.replace("_", "-")
        name, equals, value = text.partition("=")
        if not equals:
            # Not all of it: it might be a secret.
            word = re.match(r"\w*", text)
            self.error(f"{flag}: expected NAME=VALUE, got '{word[0] if word else ''}…'")
        secret = {option.name.lower(): option.name for option in all_options() if option.secret}
        if name.lower() in secret:
            variable = _variable(dest, secret[name.lower()])
            self.error(
                f"{flag} {name}: everybody on the machine can read a command line; put it into"
                f" ${variable}, or into the file of --config"
            )
        return name, value

    # ── what is said of mistakes ─────────────────────────────────────────────────────────────

    def format_usage(self) -> str:
        """One line: what must be given; `--help` has the rest."""
        return f"usage: {self._usage()}\n".replace("%(prog)s", self.prog)

    def format_help(self) -> str:
        """The usage, as one line; the docstring; all arguments."""
        self.usage, self.description = self._usage(), self.spelled(self.description or "")
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Ends with status 2, one line of usage and one of what is wrong."""
        text = re.sub("^argument (?=-)", "", message)
        complain(*self.format_usage().splitlines(), f"{self.name}: {text}")
        self.exit(USAGE)

    def complain(self, error: object) -> None:
        """One line of why it failed, in the words of the command line."""
        complain(f"{self.name}: {self.spelled(str(error))}")

    def spelled(self, text: str) -> str:
        """A text that names options by their flags, secrets by their variables."""
        spelled = {name: f"${_variable('option', name)}" for name in _SECRETS} | self._flags
        for parser in (self, *self.commands().values()):
            spelled |= {_camel(flag): flag for flag, _ in parser.flags()}
        return _OPTION.sub(lambda match: spelled.get(match[1] or match[2], match[0]), text)

    def _usage(self) -> str:
        needed = []
        for action in self._actions:
            if action.required:
                value = str(action.metavar or action.dest.upper())
                needed += [*action.option_strings[:1], value + " ..." * (action.nargs == "+")]
        return " ".join(["%(prog)s", *needed, "[OPTION ...]"])


# ── the connection ───────────────────────────────────────────────────────────────────────────


def flags_of(given: argparse.Namespace) -> dict[str, str]:
    """The options of the connection that were given as flags."""
    found = {name: getattr(given, f"connection {name}", None) for name in _CONNECTION}
    return {name: text for name, text in found.items() if text is not None}


def environment(dest: str = "option") -> dict[str, str]:
    """
    Secret options, out of the environment; those of a target have variables of their own. The
    servers of `$NATS_URL`, as the nats command takes them; a target's are its own.
    """
    found = {name: os.environ.get(_variable(dest, name)) for name in _SECRETS}
    if dest == "option":
        found["servers"] = os.environ.get("NATS_URL") or None
    return {name: text for name, text in found.items() if text is not None}


def connection_words(
    given: argparse.Namespace, file: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The options of the connection: environment, file, command line; the later ones win."""
    return merged(environment(), file or {}, flags_of(given))


def connection_of(given: argparse.Namespace) -> ConnectionOptions:
    """
    Options to reach and enter the servers.

    Raises:
        OptionError: A mistake in the options.
    """
    return parse_connection(connection_words(given))


def connected(given: argparse.Namespace) -> closing[Client]:
    """A client of its own, closed at the end of a `with`."""
    return client_of(connection_of(given))


def client_of(options: ConnectionOptions) -> closing[Client]:
    """Likewise, with these options."""
    return closing(Client(options, at_start=True))


def merged(*options: Mapping[str, str]) -> dict[str, str]:
    """The options of all, whatever the case of their names; of two values the later one."""
    names: dict[str, str] = {}
    values: dict[str, str] = {}
    for given in options:
        for name, value in given.items():
            values.pop(names.get(name.lower(), name), None)
            names[name.lower()] = name
            values[name] = value
    return values


_CONNECTION: Final = tuple(option.name for option in CONNECTION_OPTIONS if not option.secret)


def _variable(dest: str, option: str) -> str:
    target = "TARGET_" if dest == "target_option" else ""
    return f"JETSTREAM_{target}{option.upper()}"


def _flag(option: str) -> str:
    return "--" + re.sub("[A-Z]", lambda match: f"-{match[0].lower()}", option)


def _camel(flag: str) -> str:
    return re.sub("-(.)", lambda match: match[1].upper(), flag.removeprefix("--"))


# ── kinds of arguments ───────────────────────────────────────────────────────────────────────


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A type of argument of which argparse shows what is wrong."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


@argument
def seconds(text: str) -> float:
    """A duration; a number without a unit is one of seconds."""
    return value_of.duration(text, "s")


positive = argument(value_of.positive)
