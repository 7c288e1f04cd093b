"""
Pauses what Spark publishes on some subjects, or holds it to a rate; says who acknowledged.

    pyspark-jetstream throttle producers
    pyspark-jetstream throttle pause --subject 'orders.*' --for 60s
    pyspark-jetstream throttle pause --subject '>' --reason BrokerProduceQuotaExceeded --for 5m
    pyspark-jetstream throttle lift --subject 'orders.*'
    pyspark-jetstream throttle quota --limit 'orders.>=1000/s' --limit 'metrics.*=600/m,burst=5000'
    pyspark-jetstream throttle quota --limit 'orders.>=1000/s and 1MiB/s' --broker 100MiB/s
    pyspark-jetstream throttle quota --group 'orders.>, metrics.>=5MiB/s'
    pyspark-jetstream throttle quota --config conf/throttle.toml

A pause is issued again each second, told to who comes meanwhile before its first row, and lifted at
the end; Ctrl-C and SIGTERM are an early end. Who does not acknowledge is asked to pause its whole
connection; who does not acknowledge that either is named. Nothing is enforced; what was stored
meanwhile is counted. `producers` shows what is paused, too, why, by whom and until when. `quota`
gives each writer its share of the limit, and shows what it publishes of it; producers that keep no
rate are paused, a second at a time, while there is too much.

Exit status 0: all who were expected to have acknowledged; 1: failed; 2: wrong arguments; 3: some
have not, they are listed; 4: nobody is there who could be told.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS, or [options] in the file of --config.
"""

from __future__ import annotations

import argparse
import re
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import CONNECTION_OPTIONS, ConnectionOptions, parse_connection
from pyspark_jetstream.errors import JetStreamError, OptionError
from pyspark_jetstream.operations.controller import Controller
from pyspark_jetstream.operations.pauses import Member, Pauses, Standing
from pyspark_jetstream.operations.quota import Limit, Quota, check_limits, limits_of
from pyspark_jetstream.operations.stopping import Stop
from pyspark_jetstream.operations.terminal import complain
from pyspark_jetstream.operations.throttled import Throttled, throttled_of
from pyspark_jetstream.operations.usage import Usage
from pyspark_jetstream.outbox.throttleprotocol import THROTTLE_SUBJECT, Rates, Reason
from pyspark_jetstream.subjects import check_filter, check_subject
from pyspark_jetstream.values import duration

from .connecting import add_connection, argument, connection_words, described, parsed
from .progress import living

__all__ = ["main", "parser"]

COMMAND: Final = "pyspark-jetstream throttle"

FAILED: Final = 1
USAGE: Final = 2
SILENT: Final = 3
NOBODY: Final = 4

_QUOTAS: Final = {
    "limits": Reason.TopicProduceQuotaExceeded,
    "groups": Reason.ResourceGroupProduceQuotaExceeded,
    "broker": Reason.BrokerProduceQuotaExceeded,
}
"""Whose limits these tables of the file have."""

_WRITERS: Final = 20
"""So many writers of a limit have a row of their own."""

QUOTAS: Final = tuple(reason for reason in Reason if reason.is_quota)


def parser(program: str = COMMAND) -> argparse.ArgumentParser:
    """The arguments."""
    root = described(__doc__, COMMAND, program)
    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    add("--throttle-subject", type=argument(_checked(check_subject)), default=THROTTLE_SUBJECT,
        metavar="SUBJECT", help="where the writers listen (%(default)s)")  # fmt: skip
    add("--receipt-wait", type=argument(_receipt_wait), default=0.1, metavar="DURATION",
        help="how long a receipt may take, at most 400ms (100ms)")  # fmt: skip
    add_connection(common)
    commands = root.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, act: Callable[[Any], int], text: str) -> Callable[..., Any]:
        subparser = commands.add_parser(
            name, help=text, description=text, parents=[common], allow_abbrev=False
        )
        subparser.set_defaults(act=act, config=None)
        return subparser.add_argument

    add = command("producers", producers, "Shows who publishes, who can be paused, and what is.")
    _wait(add, 3.0)
    add = command("pause", pause, "Pauses subjects for some time.")
    _subject(add)
    add("--for", dest="for_s", type=argument(duration), required=True, metavar="DURATION")
    add("--reason", choices=Reason.__members__, default=QUOTAS[0].name, metavar="REASON",
        help="one of %(choices)s (%(default)s); the last three pause whole writers, whatever the"
        " subject")  # fmt: skip
    add = command("lift", lift, "Lifts pauses, whoever issued them.")
    _subject(add)
    _wait(add, 1.0)
    add("--reason", choices=Reason.__members__, metavar="REASON",
        help="the reason of the pause; without it both quota reasons")  # fmt: skip
    add = command("quota", quota, "Holds what is published to a rate, until Ctrl-C.")
    add("--limit", dest="limits", action="append", default=[], metavar="FILTER=RATE",
        help="a topic's: 'orders.>=1000/s', 'orders.>=1MiB/s', 'orders.>=1000/s and 1MiB/s',"
        " 'orders.>=600/m,burst=5000'")  # fmt: skip
    add("--group", dest="groups", action="append", default=[], metavar="FILTERS=RATE",
        help="a resource group's: 'orders.>, metrics.>=5MiB/s'")  # fmt: skip
    add("--broker", metavar="RATE", help="the broker's, of all streams: it pauses whole writers")
    add("--config", metavar="FILE",
        help="[limits], [groups], [broker], [options] as TOML; see conf/throttle.toml")  # fmt: skip
    return root


def main(arguments: Sequence[str] | None = None, program: str = COMMAND) -> int:
    """The exit status, as the help says."""
    command = parser(program)
    given = parsed(command, arguments)
    try:
        status: int = given.act(given)
    except (OptionError, _Usage) as error:
        complain(error)
        return USAGE
    except JetStreamError as error:
        complain(error)
        return FAILED
    return status


# ── commands ─────────────────────────────────────────────────────────────────────────────────


def producers(given: argparse.Namespace) -> int:
    """Shows who publishes, who can be paused, and what is paused."""
    pauses = _pauses(given)
    columns = ("producer", "supports throttle", "subjects sent", "paused")
    with _client(_connection(given)) as client, living(columns, lambda: _found(pauses)):
        Controller(client, pauses, stopped=Stop()).discover(given.wait, patient=True)
    return 0 if pauses.members else _nobody(given)


def pause(given: argparse.Namespace) -> int:
    """A pause for some time."""
    pauses = _pauses(given)
    reason = Reason[given.reason]
    options = _connection(given)
    with _client(options) as client, _client(_hasty(options)) as asking:
        with living(COLUMNS, lambda: _told(pauses)) as show:
            stored = Controller(client, pauses, show, Stop()).pause(
                given.subject,
                reason,
                given.for_s,
                lambda: Usage(JetStream(asking), [given.subject]),
            )
    if stored is not None:
        complain(f"stored meanwhile on '{given.subject}', whoever published it: {stored:,}")
    return _verdict(given, pauses)


def lift(given: argparse.Namespace) -> int:
    """The end of a pause."""
    pauses = _pauses(given)
    reasons = QUOTAS if given.reason is None else [Reason[given.reason]]
    with _client(_connection(given)) as client, living(COLUMNS, lambda: _told(pauses)) as show:
        controller = Controller(client, pauses, show, Stop())
        controller.discover(given.wait, patient=True)
        controller.lift([given.subject], reasons)
    return _verdict(given, pauses)


def quota(given: argparse.Namespace) -> int:
    """Holds what is published to the limits until somebody stops it."""
    options, limits = _limits(given)
    pauses = _pauses(given)
    connection = _connection(given, options)
    with _client(connection) as client, _client(_hasty(connection)) as asking:
        filters = dict.fromkeys(filter for limit in limits for filter in limit.filters)
        usage = Usage(JetStream(asking), list(filters))
        quotas = [Quota(limit, time.monotonic()) for limit in limits]
        columns = ("filter, writers", "limit /s", "rate /s", "published", "state")
        with living(columns, lambda: _quotas(quotas, usage, pauses)) as show:
            Controller(client, pauses, show, Stop()).hold(quotas, usage)
    return _verdict(given, pauses) if pauses.told else 0


def _verdict(given: argparse.Namespace, pauses: Pauses) -> int:
    if pauses.silent:
        complain(
            f"not acknowledged by {', '.join(map(str, pauses.silent))}: they may go on publishing;"
            " only limits of the server stop them (docs/guides/throttle.md)"
        )
        return SILENT
    return 0 if pauses.told else _nobody(given)


def _nobody(given: argparse.Namespace) -> int:
    complain(
        f"nobody on '{given.throttle_subject}' who could be told; are writers running, with this"
        " throttleSubject, in this account? (those of a query are there while a batch runs)"
    )
    return NOBODY


# ── tables ───────────────────────────────────────────────────────────────────────────────────

COLUMNS: Final = ("producer", "subjects sent", "receipts", "missed", "state")


def _found(pauses: Pauses) -> list[tuple[str, ...]]:
    return [
        (
            str(number),
            "yes" if member.producer.supports_throttle else "no",
            _sent(member),
            "; ".join(map(_paused, throttled_of(member))),
        )
        for number, member in sorted(pauses.members.items())
    ]


def _told(pauses: Pauses) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            str(number),
            _sent(member),
            str(member.receipts),
            str(member.missed),
            member.standing.value,
        )
        for number, member in sorted(pauses.members.items())
    ]
    for standing, (count, receipts, missed) in pauses.ended.items():
        state = f"{standing.value}, ended meanwhile"
        rows.append((f"{count:,} more", "", str(receipts), str(missed), state))
    if not rows and pauses.nobody:
        rows.append(("nobody so far", "", "", "", "who comes is told"))
    return rows


def _quotas(quotas: Sequence[Quota], usage: Usage, pauses: Pauses) -> list[tuple[str, ...]]:
    """Of each limit what streams store, and below it what each writer publishes of its share."""
    now = time.monotonic()
    rows: list[tuple[str, ...]] = []
    for quota_ in quotas:
        limit = quota_.limit
        writers = _writers(limit, pauses)
        state = "free"
        if set(limit.filters) <= set(usage.unknown):
            state = "no stream takes it"
        elif quota_.rest_until > now:
            state = f"paused, {len(pauses.silent)} silent" if pauses.silent else "paused"
        elif any(writer.waits for writer in writers):
            state = "limited"
        shown = _bytes if limit.of_bytes else _messages
        rows.append((limit.name, *map(shown, (limit.rate, quota_.rate, quota_.total)), state))
        rows += [(w.name, *map(shown, w.figures), w.state) for w in writers[:_WRITERS]]
        if rest := writers[_WRITERS:]:
            sums = (sum(column) for column in zip(*(w.figures for w in rest), strict=True))
            rows.append((f"  {len(rest):,} more", *map(shown, sums), ""))
    return rows


class _Writer(NamedTuple):
    """A writer under a limit."""

    name: str
    figures: tuple[float, float, float]
    """Its share and its rate, in a second, and what it has published."""
    waits: bool
    state: str


def _writers(limit: Limit, pauses: Pauses) -> list[_Writer]:
    """Those that keep the limit's rates, and use them; the fastest first."""
    found = []
    for number, member in sorted(pauses.members.items()):
        uses = [member.uses.get((filter, limit.reason)) for filter in limit.filters]
        own = [use for use in uses if use is not None]
        place = 1 if limit.of_bytes else 0
        share = sum((use.told or Rates())[place] or 0.0 for use in own)
        rate = sum(use.nbytes if limit.of_bytes else use.msgs for use in own)
        total = sum(use.total[place] for use in own)
        if share or total:
            state = "" if member.standing is Standing.ACKNOWLEDGED else member.standing.value
            waits = any(use.waiting_for for use in own)
            found.append(_Writer(f"  {number}", (share, rate, total), waits, state))
    return sorted(found, key=lambda writer: -writer.figures[1])


def _messages(count: float) -> str:
    return f"{count:,}" if isinstance(count, int) else f"{count:,.1f}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


def _sent(member: Member) -> str:
    """Its subjects; what others wrote must not steer the terminal."""
    return ", ".join(map(_shown, member.producer.subjects))


def _paused(entry: Throttled) -> str:
    """A paused subject in words: until when, why, by whom."""
    until = f"{entry.until:%H:%M:%S}Z"
    who = f"operator's request {entry.request_id}" if entry.source == "operator" else entry.source
    return f"{_shown(entry.subject)} until {until}: {entry.reason} of {_shown(entry.filter)}, {who}"


def _shown(text: str) -> str:
    return text if text.isprintable() else ascii(text)


# ── arguments ────────────────────────────────────────────────────────────────────────────────


class _Usage(ValueError):
    """A mistake in the arguments."""


def _wait(add: Callable[..., Any], seconds: float) -> None:
    add("--wait", type=argument(duration), default=seconds, metavar="DURATION",
        help=f"for producers, and their answers ({seconds:.0f}s)")  # fmt: skip


def _subject(add: Callable[..., Any]) -> None:
    add("--subject", type=argument(_checked(check_filter)), required=True, metavar="FILTER",
        help="of destination subjects: 'orders.*'")  # fmt: skip


def _checked(check: Callable[[str], None]) -> Callable[[str], str]:
    def checked(text: str) -> str:
        check(text)
        return text

    return checked


def _receipt_wait(text: str) -> float:
    seconds = duration(text)
    if seconds > 0.4:
        raise ValueError(f"expected at most 400ms, for it is waited twice a second, got '{text}'")
    return seconds


def _limits(given: argparse.Namespace) -> tuple[dict[str, str], list[Limit]]:
    """Connection options of the file; limits of the file and the command line, which wins."""
    content: dict[str, Any] = {}
    if given.config is not None:
        try:
            with open(given.config, "rb") as file:
                content = tomllib.load(file)
        except OSError as error:
            raise _Usage(f"--config {given.config}: {error.strerror}") from None
        except tomllib.TOMLDecodeError as error:
            raise _Usage(f"--config {given.config}: {error}") from None
    tables: dict[str, dict[str, str]] = {name: {} for name in (*_QUOTAS, "options")}
    for name, table in content.items():
        if name not in tables or not isinstance(table, dict):
            expected = "[limits], [groups], [broker] and [options]"
            raise _Usage(f"--config {given.config}: expected {expected}, got '{name}'")
        for key, value in table.items():
            if not isinstance(value, str):
                raise _Usage(f"--config {given.config}: [{name}] '{key}': expected a text")
            if name == "broker" and key != "rate":
                raise _Usage(f"--config {given.config}: [broker]: expected rate, got '{key}'")
            tables[name][key] = value
    for name, said in (("limits", given.limits), ("groups", given.groups)):
        for text in said:
            match = re.fullmatch(r"(.+?)=(\s*\d.*)", text)
            if match is None:
                raise _Usage(
                    f"--{name[:-1]}: expected FILTER=RATE such as 'orders.>=1000/s', got '{text}'"
                )
            tables[name][match[1]] = match[2]
    if given.broker is not None:
        tables["broker"]["rate"] = given.broker
    if not any(tables[name] for name in _QUOTAS):
        raise _Usage(
            "quota: expected a --limit, --group or --broker, or --config with [limits], [groups] or"
            " [broker]"
        )
    try:
        limits = [
            limit
            for name, reason in _QUOTAS.items()
            for filters, text in tables[name].items()
            for limit in limits_of(filters, text, reason)
        ]
        check_limits(limits)
    except ValueError as error:
        raise _Usage(error) from None
    return tables["options"], limits


def _connection(
    given: argparse.Namespace, options: dict[str, str] | None = None
) -> ConnectionOptions:
    """From the environment, the file, the command line; the later ones win."""
    secrets = {option.name for option in CONNECTION_OPTIONS if option.secret}
    said = connection_words(vars(given))
    words = {name.lower(): said[name] for name in secrets & said.keys()}
    words |= {name.lower(): text for name, text in (options or {}).items()}
    words |= {name.lower(): said[name] for name in said.keys() - secrets}
    return parse_connection(words)


def _pauses(given: argparse.Namespace) -> Pauses:
    return Pauses(given.throttle_subject, given.receipt_wait)


def _hasty(options: ConnectionOptions) -> ConnectionOptions:
    """A pause must be issued again meanwhile; what is not counted in time is counted later."""
    return replace(options, request_timeout_s=min(1.0, options.request_timeout_s))


def _client(options: ConnectionOptions) -> closing[Client]:
    return closing(Client(options, at_start=True))
