"""
Pauses what Spark publishes on some subjects, and says who acknowledged.

    pyspark-jetstream throttle producers
    pyspark-jetstream throttle pause --subject 'orders.*' --for 60s
    pyspark-jetstream throttle pause --subject '>' --reason BrokerProduceQuotaExceeded --for 5m
    pyspark-jetstream throttle lift --subject 'orders.*'

`pause` sends the pause again each second and lifts it at the end. Ctrl-C and SIGTERM end it early.
A writer that starts meanwhile hears of the pause before its first row. If a writer does not
acknowledge, the program tells it to pause its whole connection. If the writer does not acknowledge
that either, the program lists it: a pause is not enforced.
`producers` shows the writers and the pauses: why, by whom and until when.

Exit status 0: all expected writers have acknowledged; 1: failed; 2: wrong arguments; 3: some have
not and are listed; 4: no writer answered. A query has writers only while a batch runs.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark_jetstream.errors import further
from pyspark_jetstream.operations.controller import Controller
from pyspark_jetstream.operations.pauses import Pauses, Response
from pyspark_jetstream.operations.stopping import Stop
from pyspark_jetstream.operations.terminal import Columns, Row, complain, say_json, show
from pyspark_jetstream.operations.throttled import throttled_of
from pyspark_jetstream.outbox.throttling.throttle import PausedBy
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    MAX_SUBJECTS,
    THROTTLE_SUBJECT,
    Reason,
)
from pyspark_jetstream.values import duration, publish_subject, whole_filter

from .program import Parser, argument, connected
from .progress import living

SILENT: Final = 3
NOBODY: Final = 4

_RENEWED_S: Final = 2.0
"""Time in which a program that pauses has renewed its pause, as it does each second."""

QUOTAS: Final = tuple(reason for reason in Reason if reason.is_quota)


def arguments(parser: Parser) -> None:
    """Arguments of the program's commands."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, act: Callable[[Any], int], text: str) -> Parser:
        one: Parser = commands.add_parser(name, help=text, description=text)
        one.set_defaults(act=act)
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
    with connected(given) as client, living(_of_queries(pauses)) as showing:
        controller = Controller(client, pauses, showing, Stop())
        controller.pause(given.subject, Reason[given.reason], given.for_s)
    if given.json:
        say_json(_outcome(pauses))
    else:
        show(_told(pauses))
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


def _verdict(given: argparse.Namespace, pauses: Pauses) -> int:
    if pauses.silent:
        silent = ", ".join(
            f"{number} ({query})" if query else str(number)
            for number, query in sorted(pauses.silent.items())
        )
        complain(
            f"not acknowledged by {silent}: they may go on publishing;"
            f" only limits of the server stop them{further('guides/throttle')}"
        )
        return SILENT
    return 0 if pauses.told else _nobody(given)


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
            "subjects": list(member.producer.subjects),
            "receipts": member.receipts,
            "state": member.response.value,
            "paused": [
                each._asdict() | {"producer_id": str(number), "until": each.until.isoformat()}
                for each in throttled_of(member)
            ],
        }
        for number, member in sorted(pauses.members.items())
    ]


def _outcome(pauses: Pauses) -> dict[str, Any]:
    """Producers that are there, the number of those that ended, and the silent ones."""
    return {
        "producers": _members(pauses),
        "ended": pauses.ended,
        "silent": [str(number) for number in sorted(pauses.silent)],
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
    """Producers that were told; those that ended meanwhile are counted."""
    rows: list[Row] = list(map(_TOLD.row, _members(pauses)))
    if pauses.ended:
        rows.append({"producer": f"{pauses.ended:,}", "state": "ended meanwhile"})
    return rows


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
_TOLD: Final = Columns(
    "producer query streams subjects_sent=subjects commands_acknowledged=receipts state"
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


def _pauses(given: argparse.Namespace) -> Pauses:
    return Pauses(given.throttle_subject, given.receipt_wait)
