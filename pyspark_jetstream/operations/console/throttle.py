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

`pause` sends the pause again each second and lifts it at the end. Ctrl-C and SIGTERM end it early.
A writer that starts meanwhile hears of the pause before its first row. If a writer does not
acknowledge, the program tells it to pause its whole connection. If the writer does not acknowledge
that either, the program lists it. A pause is not enforced, so the program counts the messages that
were stored meanwhile.
`producers` shows the writers and the pauses: why, by whom and until when.
`quota` gives each writer its share of the quota, and shows how much of it the writer publishes. A
writer that knows no rates is paused for a second at a time, while the quota is exceeded.

Exit status 0: all expected writers have acknowledged; 1: failed; 2: wrong arguments; 3: some have
not and are listed; 4: no writer answered. A query has writers only while a batch runs.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS, or [options] in the file of --config.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import ConnectionOptions, parse_connection
from pyspark_jetstream.errors import further
from pyspark_jetstream.operations.controller import Controller
from pyspark_jetstream.operations.pauses import Pauses, Response
from pyspark_jetstream.operations.quota import Quota, QuotaLimit, check_limits, limits_of
from pyspark_jetstream.operations.stopping import Stop
from pyspark_jetstream.operations.terminal import Columns, Row, complain, say_json, show, size
from pyspark_jetstream.operations.throttled import throttled_of
from pyspark_jetstream.operations.usage import Usage
from pyspark_jetstream.outbox.throttling.throttle import PausedBy
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    MAX_SUBJECTS,
    THROTTLE_SUBJECT,
    Rates,
    Reason,
)
from pyspark_jetstream.values import duration, publish_subject, whole_filter

from .program import Parser, argument, client_of, connected, connection_of, connection_words
from .progress import living

SILENT: Final = 3
NOBODY: Final = 4

_QUOTAS: Final = {
    "limits": Reason.TopicProduceQuotaExceeded,
    "groups": Reason.ResourceGroupProduceQuotaExceeded,
    "broker": Reason.BrokerProduceQuotaExceeded,
}
"""The tables of the file, by the quota that each has the limits of."""

_WRITERS: Final = 20
"""Number of a limit's writers with rows of their own."""

_RENEWED_S: Final = 2.0
"""Time in which a program that pauses has renewed its pause, as it does each second."""

QUOTAS: Final = tuple(reason for reason in Reason if reason.is_quota)


def arguments(parser: Parser) -> None:
    """Arguments of the program's commands."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, act: Callable[[Any], int], text: str) -> Parser:
        one: Parser = commands.add_parser(name, help=text, description=text)
        one.set_defaults(act=act, config=None)
        return one

    one = command("producers", producers, "Shows who publishes, who can be paused, and the pauses.")
    _wait(one, 3.0)
    _common(one)
    one = command("pause", pause, "Pauses subjects for some time.")
    _subject(one)
    one.add_argument(
        "--for", dest="for_s", type=argument(duration), required=True, metavar="DURATION"
    )
    one.add_argument("--reason", choices=Reason.__members__, default=QUOTAS[0].name,
        metavar="REASON", help="one of %(choices)s (%(default)s); the last three pause whole"
        " writers, whatever the subject")  # fmt: skip
    _common(one)
    one = command("lift", lift, "Lifts pauses, whoever issued them.")
    _subject(one)
    _wait(one, 1.0)
    one.add_argument("--reason", choices=Reason.__members__, metavar="REASON",
        help="lift only pauses with this reason; default:"
        f" {' and '.join(reason.name for reason in QUOTAS)}")  # fmt: skip
    _common(one)
    one = command("quota", quota, "Limits the rate of what is published, until Ctrl-C.")
    add = one.add_argument
    add("--limit", dest="limits", action="append", default=[], metavar="FILTER=RATE",
        help="rate of a filter's subjects: 'orders.>=1000/s', 'orders.>=1MiB/s',"
        " 'orders.>=1000/s and 1MiB/s', 'orders.>=600/m,burst=5000'")  # fmt: skip
    add("--group", dest="groups", action="append", default=[], metavar="FILTERS=RATE",
        help="one rate for several filters: 'orders.>, metrics.>=5MiB/s'")  # fmt: skip
    add("--broker", metavar="RATE", help="rate of all streams together; it pauses whole writers")
    add("--config", metavar="FILE",
        help="[limits], [groups], [broker], [options] as TOML; see conf/throttle.toml")  # fmt: skip
    _common(one)


def run(given: argparse.Namespace) -> int:
    """Does what the command says; its exit status, as the help says."""
    status: int = given.act(given)
    return status


def _common(parser: Parser) -> None:
    """Arguments of all commands."""
    parser.add_argument("--throttle-subject", type=argument(publish_subject), metavar="SUBJECT",
        default=THROTTLE_SUBJECT, help="subject that writers hear (%(default)s)")  # fmt: skip
    parser.add_argument("--receipt-wait", type=argument(receipt_wait), default=0.1,
        metavar="DURATION", help="longest wait for receipts, at most 400ms (100ms)")  # fmt: skip
    parser.add_json("one JSON document at the end instead of the table")
    parser.add_connection()


# ── commands ─────────────────────────────────────────────────────────────────────────────────


def producers(given: argparse.Namespace) -> int:
    """Shows who publishes, who can be paused, and the pauses."""
    pauses = _pauses(given)
    with connected(given) as client, living(lambda: _found(pauses)):
        Controller(client, pauses, stopped=Stop()).discover(given.wait, patient=True)
    if given.json:
        say_json({"producers": _members(pauses)})
    else:
        show(_found(pauses))
    return 0 if pauses.members else _nobody(given)


def pause(given: argparse.Namespace) -> int:
    """Pauses the subjects for some time."""
    pauses = _pauses(given)
    reason = Reason[given.reason]
    options = connection_of(given)
    with client_of(options) as client, client_of(_hasty(options)) as asking:
        with living(_of_queries(pauses)) as showing:
            stored = Controller(client, pauses, showing, Stop()).pause(
                given.subject,
                reason,
                given.for_s,
                lambda: Usage(JetStream(asking), [given.subject]),
            )
    if given.json:
        say_json({**_outcome(pauses), "stored": stored})
    else:
        show(_told(pauses))
        if stored is not None:
            complain(f"stored meanwhile on '{given.subject}', whoever published it: {stored:,}")
    return _verdict(given, pauses)


def lift(given: argparse.Namespace) -> int:
    """Ends pauses."""
    pauses = _pauses(given)
    reasons = QUOTAS if given.reason is None else [Reason[given.reason]]
    with connected(given) as client, living(_of_queries(pauses)) as showing:
        controller = Controller(client, pauses, showing, Stop())
        controller.discover(given.wait, patient=True)
        controller.lift([given.subject], reasons)
        told = _told(pauses)
        controller.discover(_RENEWED_S if pauses.members else 0.0)
    if given.json:
        say_json(_outcome(pauses))
    else:
        show(told)
    if any(
        (each.filter, each.source) == (given.subject, PausedBy.OPERATOR.value)
        for member in pauses.members.values()
        for each in throttled_of(member)
    ):
        complain(
            f"'{given.subject}' is paused again: a program renews the pause each second. Stop that"
            f" program{further('guides/throttle')}"
        )
    return _verdict(given, pauses)


def quota(given: argparse.Namespace) -> int:
    """Holds what is published to the limits until somebody stops it."""
    options, limits = _limits(given)
    pauses = _pauses(given)
    connection = parse_connection(connection_words(given, options))
    with client_of(connection) as client, client_of(_hasty(connection)) as asking:
        filters = dict.fromkeys(filter for limit in limits for filter in limit.filters)
        usage = Usage(JetStream(asking), list(filters))
        quotas = [Quota(limit, time.monotonic()) for limit in limits]
        kept: list[dict[str, Any]] = []
        rows: list[Row] = []

        def keep() -> None:
            kept.extend(_kept(each, usage, pauses) for each in quotas)
            rows.extend(_quotas(quotas, usage, pauses))

        with living(lambda: _quotas(quotas, usage, pauses)) as showing:
            Controller(client, pauses, showing, Stop()).hold(quotas, usage, keep)
    if given.json:
        say_json({"limits": kept})
    else:
        show(rows)
    return _verdict(given, pauses) if pauses.told else 0


def _verdict(given: argparse.Namespace, pauses: Pauses) -> int:
    if pauses.silent:
        silent = ", ".join(_called(pauses, number) for number in pauses.silent)
        complain(
            f"not acknowledged by {silent}: they may go on publishing;"
            f" only limits of the server stop them{further('guides/throttle')}"
        )
        return SILENT
    return 0 if pauses.told else _nobody(given)


def _called(pauses: Pauses, number: int) -> str:
    """A producer, with its query as far as it is there and has said so."""
    member = pauses.members.get(number)
    query = member.producer.query if member is not None else ""
    return f"{number} ({query})" if query else str(number)


def _nobody(given: argparse.Namespace) -> int:
    longer = ": if its trigger is longer, give a longer --wait" if "wait" in given else ""
    complain(
        f"no writer on '{given.throttle_subject}' answered in this account. A query has writers"
        f" only while a batch runs{longer}. The query's user must be allowed to subscribe to this"
        " subject, and to publish on the inboxes of this program (--inbox-prefix)"
    )
    return NOBODY


# ── what is shown ────────────────────────────────────────────────────────────────────────────


def _found(pauses: Pauses) -> list[Row]:
    return list(map(_FOUND.row, _members(pauses)))


def _members(pauses: Pauses) -> list[dict[str, Any]]:
    """The producers that are there, for programs; their ids are texts, as JSON's numbers end."""
    return [
        {
            "producer": str(number),
            "query": member.producer.query,
            "host": member.producer.host,
            "streams": list(member.producer.streams),
            "supports_throttle": member.producer.supports_throttle,
            "supports_rate": member.producer.supports_rate,
            "subjects": list(member.producer.subjects),
            "receipts": member.receipts,
            "missed": member.missed,
            "state": member.response.value,
            "paused": [
                each._asdict() | {"producer_id": str(number), "until": each.until.isoformat()}
                for each in throttled_of(member)
            ],
        }
        for number, member in sorted(pauses.members.items())
    ]


def _outcome(pauses: Pauses) -> dict[str, Any]:
    """Producers by outcome, told, acknowledged and ended, as JSON."""
    ended = [
        {"state": response.value} | ended._asdict() for response, ended in pauses.ended.items()
    ]
    return {
        "producers": _members(pauses),
        "ended": ended,
        "silent": [str(number) for number in pauses.silent],
    }


def _of_queries(pauses: Pauses) -> Callable[[], list[Row]]:
    """
    A row for each query while something runs: how its writers answered, and the first one that did
    not. The writers of a query may be short and many, so a new one that has not answered yet
    changes nothing.
    """
    known: dict[str, Response] = {}
    silent: dict[str, int] = {}
    order, early = list(Response), (Response.FOUND, Response.TOLD)

    def rows() -> list[Row]:
        now: dict[str, Response] = {}
        for number, member in list(pauses.members.items()):
            query = member.producer.query or "a write without a name"
            now[query] = max(now.get(query, member.response), member.response, key=order.index)
            if member.response is Response.SILENT:
                silent.setdefault(query, number)
        for query, response in now.items():
            if response not in early or known.get(query, response) in early:
                known[query] = response
                if response is not Response.SILENT:
                    silent.pop(query, None)
        if not known and pauses.nobody:
            return [{"writers": "nobody so far", "state": "a writer that begins is told"}]
        by = {query: f" by {number}" for query, number in silent.items()}
        return [
            {"writers": f"writers of {query}", "state": known[query].value + by.get(query, "")}
            for query in sorted(known)
        ]

    return rows


def _told(pauses: Pauses) -> list[Row]:
    """Producers that were told, those that ended meanwhile by their outcome."""
    rows: list[Row] = list(map(_TOLD.row, _members(pauses)))
    for response, (count, receipts, missed) in pauses.ended.items():
        what = "more" if rows else "producer" if count == 1 else "producers"
        rows.append(
            {
                "producer": f"{count:,} {what}",
                "commands acknowledged": receipts,
                "commands missed": missed,
                "state": f"{response.value}, ended meanwhile",
            }
        )
    return rows


def _quotas(quotas: Sequence[Quota], usage: Usage, pauses: Pauses) -> list[Row]:
    """For each limit the rate of its streams, and below it each writer's rate and share."""
    rows: list[Row] = []
    for quota_ in quotas:
        kept = _kept(quota_, usage, pauses)
        writers = kept["writers"]
        lines = [(kept["name"], kept, kept["state"])]
        for each in writers[:_WRITERS]:
            response = pauses.members[int(each["producer"])].response
            state = "" if response is Response.ACKNOWLEDGED else response.value
            lines.append((f"  {each['producer']} {each['query']}".rstrip(), each, state))
        if rest := writers[_WRITERS:]:
            sums = {name: sum(each[name] for each in rest) for name in _FIGURES.values()}
            lines.append((f"  {len(rest):,} more", sums, ""))
        for name, facts, state in lines:
            figures = {title: facts[key] for title, key in _FIGURES.items()}
            if quota_.limit.of_bytes:
                figures = {title: size(count) for title, count in figures.items()}
            rows.append({"filter, writers": name} | figures | {"state": state})
    return rows


def _kept(quota_: Quota, usage: Usage, pauses: Pauses) -> dict[str, Any]:
    """A limit and its writers, for programs."""
    limit = quota_.limit
    writers = _writers(limit, pauses)
    state = "limited" if any(writer["waits"] for writer in writers) else "free"
    if set(limit.filters) <= set(usage.unknown):
        state = "no stream takes it"
    elif quota_.rest_until > time.monotonic():
        state = "paused"
        if pauses.silent:
            state += f", not acknowledged by {len(pauses.silent)}"
    return {
        "name": limit.name,
        "filters": list(limit.filters),
        "unit": "byte" if limit.of_bytes else "message",
        "reason": limit.reason.name,
        "limit": limit.rate,
        "rate": quota_.rate,
        "published": quota_.total,
        "state": state,
        "writers": writers,
    }


def _writers(limit: QuotaLimit, pauses: Pauses) -> list[dict[str, Any]]:
    """
    Writers that keep the limit's rates, and use them; the fastest first. `limit` is a writer's
    share of the limit.
    """
    found = []
    place = 1 if limit.of_bytes else 0
    for number, member in sorted(pauses.members.items()):
        own = [member.uses[key] for key in limit.keys if key in member.uses]
        share = sum((use.told or Rates())[place] or 0.0 for use in own)
        total = sum(use.total[place] for use in own)
        if share or total:
            found.append(
                {
                    "producer": str(number),
                    "query": member.producer.query,
                    "limit": share,
                    "rate": sum(use.nbytes if limit.of_bytes else use.msgs for use in own),
                    "published": total,
                    "waits": any(use.waiting_for for use in own),
                }
            )
    return sorted(found, key=lambda writer: -writer["rate"])


def paused_words(entries: Sequence[Mapping[str, str]]) -> str:
    """Paused subjects in words: until when, why, by whom; the first few of those paused alike."""
    alike: dict[str, list[str]] = {}
    for entry in entries:
        until, who = f"until {entry['until'][11:19]}Z", entry["source"]
        if who == PausedBy.OPERATOR.value:  # whose program renews it
            until, who = f"{until} or longer", f"operator's request {entry['request_id']}"
        words = f"{until}: {entry['reason']} of {entry['filter']}, {who}"
        alike.setdefault(words, []).append(entry["subject"])
    at_least = "at least " if len(entries) >= MAX_SUBJECTS else ""
    return "; ".join(
        f"{', '.join(subjects[:_NAMED])}"
        + (f" and {at_least}{len(subjects) - _NAMED} more" if len(subjects) > _NAMED else "")
        + f" {words}"
        for words, subjects in alike.items()
    )


_NAMED: Final = 3
"""Subjects paused alike that are named."""

_FOUND: Final = Columns(
    "producer query host streams subjects_sent=subjects supports_throttle paused",
    {"paused": paused_words},
)
_FIGURES: Final = {"limit /s": "limit", "rate /s": "rate", "published": "published"}
"""Columns of a limit, and of its writers, by their titles."""
_TOLD: Final = Columns(
    "producer query streams subjects_sent=subjects commands_acknowledged=receipts"
    " commands_missed=missed state"
)


# ── arguments ────────────────────────────────────────────────────────────────────────────────


def _wait(parser: Parser, seconds: float) -> None:
    parser.add_argument("--wait", type=argument(duration), default=seconds, metavar="DURATION",
        help=f"longest wait for writers and their answers ({seconds:.0f}s)")  # fmt: skip


def _subject(parser: Parser) -> None:
    parser.add_argument("--subject", type=argument(whole_filter), required=True, metavar="FILTER",
        help="filter of destination subjects: 'orders.*'")  # fmt: skip


def receipt_wait(text: str) -> float:
    """
    Time that a receipt may take.

    Raises:
        ValueError: It is none, or too long.
    """
    seconds = duration(text)
    if seconds > 0.4:
        raise ValueError(f"expected at most 400ms, for it is waited twice a second, got '{text}'")
    return seconds


def _limits(given: argparse.Namespace) -> tuple[dict[str, str], list[QuotaLimit]]:
    """Connection options of the file; limits of the file and the command line, which wins."""
    parser: Parser = given.parser
    content = given.parser.toml(given.config) if given.config is not None else {}
    tables: dict[str, dict[str, str]] = {name: {} for name in (*_QUOTAS, "options")}
    for name, table in content.items():
        if name not in tables or not isinstance(table, dict):
            expected = "[limits], [groups], [broker] and [options]"
            parser.error(f"--config {given.config}: expected {expected}, got '{name}'")
        for key, value in table.items():
            if not isinstance(value, str):
                parser.error(f"--config {given.config}: [{name}] '{key}': expected a text")
            if name == "broker" and key != "rate":
                parser.error(f"--config {given.config}: [broker]: expected rate, got '{key}'")
            tables[name][key] = value
    for name, texts in (("limits", given.limits), ("groups", given.groups)):
        for text in texts:
            match = re.fullmatch(r"(.+?)=(\s*\d.*)", text)
            if match is None:
                parser.error(
                    f"--{name[:-1]}: expected FILTER=RATE such as 'orders.>=1000/s', got '{text}'"
                )
            tables[name][match[1]] = match[2]
    if given.broker is not None:
        tables["broker"]["rate"] = given.broker
    if not any(tables[name] for name in _QUOTAS):
        parser.error(
            "expected a --limit, --group or --broker, or --config with [limits], [groups] or"
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
        parser.error(str(error))
    return tables["options"], limits


def _pauses(given: argparse.Namespace) -> Pauses:
    return Pauses(given.throttle_subject, given.receipt_wait)


def _hasty(options: ConnectionOptions) -> ConnectionOptions:
    """Short time-outs: what is not counted now is counted later, but a pause must be kept up."""
    return replace(options, request_timeout_s=min(1.0, options.request_timeout_s))
