"""
The command line that the backfills share: arguments, their file, secrets, Spark, exit statuses.

Settings come from the command line, else from the file of `--config` (TOML), else they have their
default. Secrets never stand on the command line, where every user of the machine could read them:
they come from files (`credentialsFile`, `nkeySeedFile`), from the environment
(`JETSTREAM_PASSWORD`, `JETSTREAM_TOKEN`, `JETSTREAM_CREDENTIALS`), or from the file of `--config`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import CaseInsensitiveDict

import pyspark_jetstream
from pyspark_jetstream.client.options import CONNECTION_OPTIONS
from pyspark_jetstream.datasource import columns_of
from pyspark_jetstream.operations.terminal import complain, say
from pyspark_jetstream.options import all_options

from .copying import Target
from .faults import ERRORS, FAILED, USAGE, one_line, status
from .journal import Manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "Parser",
    "chunk_settings",
    "concluded",
    "guarded",
    "identity",
    "merged",
    "positive",
    "reaching",
    "schema_of",
    "session",
    "target_identity",
]

_SPLITS: Final = ("minpartitions", "maxrecordsperpartition", "failondataloss")
"""Options of a read that do not change what its rows are."""

_MAPS: Final = ("subject", "subjectmapping", "mappingkey")
"""Options of a write that change what it publishes."""

_INTERRUPTED: Final = 130


class Parser(argparse.ArgumentParser):
    """Arguments that may stand in a file, too; a mistake in either is one line."""

    name: Final[str]
    """What lines of errors begin with: the program, without folder and `.py`."""

    def __init__(self, program: str, description: str) -> None:
        super().__init__(
            prog=program,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.name = re.sub(r".*/|\.py$", "", program)
        self._settings: dict[str, argparse.Action] = {}
        self.add_argument("--config", metavar="FILE", help="settings as TOML; see conf/")

    def error(self, message: str) -> NoReturn:
        """Ends with status 2 and one line."""
        self.exit(USAGE, f"{self.name}: {message}\n")

    def setting(self, flag: str, **how: Any) -> None:
        """An argument that may stand in the file, by its name without the dashes."""
        self._settings[flag.removeprefix("--")] = self.add_argument(flag, **how)

    def options(self, flag: str, help: str) -> None:
        """An argument `NAME=VALUE`, as often as wanted; in the file a table `[options]`."""
        self.setting(flag, action="append", metavar="NAME=VALUE", default=[], help=help)

    @property
    def names(self) -> list[str]:
        """What may stand in the file; tables end with `s`."""
        return [
            f"{name}s" if action.metavar == "NAME=VALUE" else name
            for name, action in self._settings.items()
        ]

    def settings(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """The settings of the command line and the file; tables of options as dictionaries."""
        path = self.parse_known_args(arguments)[0].config
        content = self._read(path) if path is not None else {}
        tables: dict[str, dict[str, str]] = {}
        for name, action in self._settings.items():
            is_table = action.metavar == "NAME=VALUE"
            value = content.pop(f"{name}s" if is_table else name, None)
            if is_table:
                tables[action.dest] = self._table(f"{name}s", value)
            elif value is not None:
                self.set_defaults(**{action.dest: self._value(name, action, value)})
        if content:
            self.error(
                f"{path}: unknown setting '{next(iter(content))}'; see {', '.join(self.names)}"
            )
        settings = self.parse_args(arguments)
        for dest, table in tables.items():
            given = [self._pair(dest, text) for text in getattr(settings, dest)]
            setattr(settings, dest, merged(_secrets(dest), table, dict(given)))
        return settings

    def require(self, settings: argparse.Namespace, *names: str) -> None:
        """Ends with one line where a setting is neither in the file nor on the command line."""
        for name in names:
            if getattr(settings, name.replace("-", "_")) is None:
                self.error(f"--{name} is required")

    def _read(self, path: str) -> dict[str, Any]:
        try:
            with open(path, "rb") as file:
                return tomllib.load(file)
        except OSError as error:
            self.error(f"--config {path}: {error.strerror}")
        except tomllib.TOMLDecodeError as error:
            self.error(f"--config {path}: {error}")

    def _table(self, name: str, value: Any) -> dict[str, str]:
        if value is None:
            return {}
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
        if not all(type(item) is kind for item in values):
            self.error(f"{name}: expected {kind.__name__}, got {value!r}")
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
        secrets = {option.name.lower(): option.name for option in all_options() if option.secret}
        if name.lower() in secrets:
            variable = _variable(dest, secrets[name.lower()])
            self.error(
                f"{flag} {name}: everybody on the machine can read a command line; put it into"
                f" ${variable}, or into the file of --config"
            )
        return name, value


def chunk_settings(parser: Parser, default: int) -> None:
    """The settings that every backfill has."""
    parser.options("--option", help="an option of the read, such as servers (see Options)")
    parser.setting(
        "--partition-by",
        nargs="+",
        default=[],
        metavar="WORD",
        help="directories by day (UTC), token:N (of the subject, from 1), partition or stream",
    )
    parser.setting(
        "--chunk-messages",
        type=positive,
        default=default,
        metavar="N",
        help="about so many messages are read, written and recorded at a time (%(default)s)",
    )
    parser.setting(
        "--verify", action="store_true", help="at the end, read it all again and compare"
    )


def concluded(manifest: Manifest, target: Target, place: str, verify: bool) -> int:
    """Says what was done, verifies it if asked to; the exit status."""
    files = f" in {len(manifest['files']):,} files" if "files" in manifest else ""
    say(f"{manifest['rows']:,} messages{files}: {place}")
    if manifest["missing"]:
        complain(f"{manifest['missing']:,} messages left their stream before they were read")
    if not verify:
        return 0
    faults = target.faults(manifest)
    for fault in faults:
        complain(fault)
    say("verified: all is as the manifest says" if not faults else f"{len(faults)} faults")
    return FAILED if faults else 0


def positive(text: str) -> int:
    """An argument above zero."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got '{text}'")
    return int(text)


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


def schema_of(options: Mapping[str, str]) -> StructType:
    """The columns that a read with these options has."""
    return columns_of(CaseInsensitiveDict(options))


def reaching(source: Mapping[str, str], target: Mapping[str, str]) -> dict[str, str]:
    """
    How to reach a target: as the source, with what `target` says over it.

    Where `target` names servers, nothing is taken over: they have no business with the credentials
    of others.
    """
    own = _connection_of(target)
    if any(name.lower() == "servers" for name in own):
        return own
    return merged(_connection_of(source), own)


def identity(options: Mapping[str, str]) -> dict[str, str]:
    """Those of a read's options that its rows depend on, as the journal compares them."""
    skipped = {option.name.lower() for option in CONNECTION_OPTIONS} | set(_SPLITS)
    return _named("option", {k: v for k, v in options.items() if k.lower() not in skipped})


def target_identity(options: Mapping[str, str]) -> dict[str, str]:
    """Those of a write's options that say what is published."""
    return _named("target option", {k: v for k, v in options.items() if k.lower() in _MAPS})


def _named(kind: str, options: Mapping[str, str]) -> dict[str, str]:
    names = {option.name.lower(): option.name for option in all_options()}
    return {
        f"{kind} {names.get(name.lower(), name)}": value for name, value in sorted(options.items())
    }


def _connection_of(options: Mapping[str, str]) -> dict[str, str]:
    names = {option.name.lower() for option in CONNECTION_OPTIONS}
    return {name: value for name, value in options.items() if name.lower() in names}


def _secrets(dest: str) -> dict[str, str]:
    """Secret options, out of the environment."""
    named = {option.name: _variable(dest, option.name) for option in all_options() if option.secret}
    return {
        name: os.environ[variable] for name, variable in named.items() if variable in os.environ
    }


def _variable(dest: str, option: str) -> str:
    target = "TARGET_" if dest == "target_option" else ""
    return f"JETSTREAM_{target}{option.upper()}"


@contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """Spark as spark-submit has it, or as its configuration says, with what backfills rely on."""
    from pyspark.sql import SparkSession

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not by spark-submit: the workers are ours
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    spark = builder.getOrCreate()
    pyspark_jetstream.register(spark)  # Spark does not look for data sources in --py-files
    # A day is a day of UTC, and timestamps are stored as such, not as Impala's INT96.
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # PySpark's own handler calls the JVM in the middle of another call to it; we stop Spark anyway.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)
    try:
        yield spark
    finally:
        spark.stop()


def guarded(program: str, work: Callable[[], int]) -> int:
    """The exit status: 0 done, 1 failed, 2 wrong arguments, 130 interrupted; one line of why."""
    try:
        return work()
    except KeyboardInterrupt:
        complain(f"{program}: interrupted; run it again to go on")
        return _INTERRUPTED
    except ERRORS as error:
        complain(f"{program}: {one_line(error)}")
        return status(error)
