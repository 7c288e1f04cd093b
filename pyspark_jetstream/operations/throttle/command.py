"""An operator's commands: list the writers, pause subjects for some time, lift a pause."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final

import click

from ...client.options import ConnectionOptions
from ...outbox.throttling.throttleprotocol import THROTTLE_SUBJECT, Reason
from ...values import duration, publish_subject, whole_filter
from ..connecting import SECONDS, Kind, client_of, connects
from ..screen import show, show_json, table
from .controller import Controller
from .pauses import Pauses
from .throttled import throttled_of

SILENT: Final = 3
NOBODY: Final = 4


def _receipt_wait(text: str) -> float:
    """A duration; a command is issued again each second."""
    seconds = duration(text, "s")
    if seconds > 0.9:
        raise ValueError(f"expected 900ms at most, got '{text}'")
    return seconds


QUOTAS: Final = tuple(reason for reason in Reason if reason.is_quota)

_STATUS: Final = (
    "Exit status 0: done; 1: failed, one line says why; 2: wrong arguments; 3: some writers have"
    " not acknowledged and are named; 4: no writer answered."
)


def stopping() -> Callable[[], bool]:
    """Whether SIGINT or SIGTERM has come since; the second one ends the program at once."""
    came: list[int] = []

    def stop(number: int, _: object) -> None:
        came.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return lambda: bool(came)


@click.group(epilog=_STATUS)
def throttle() -> None:
    """
    Pauses what Spark publishes on some subjects.

    Says which writers acknowledged. A query has writers only while a batch runs. A writer that
    starts during a pause hears of it before its first row. A pause is not enforced: a writer that
    does not acknowledge may go on publishing.

    \b
    pyspark-jetstream throttle producers
    pyspark-jetstream throttle pause --subject 'orders.*' --for 60s
    """


def _of_writers(program: Callable[..., Any]) -> Callable[..., Any]:
    """What all commands have; they are called with the pauses of a new operator."""

    @wraps(program)
    def asked(throttle_subject: str, receipt_wait: float, **given: Any) -> Any:
        return program(pauses=Pauses(throttle_subject, receipt_wait), **given)

    found = connects(asked)
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON document at the end."),
        click.option("--receipt-wait", type=Kind("time", _receipt_wait),
                     metavar="TIME", default="100ms", show_default=True,
                     help="Longest wait for a receipt, at most 900ms."),
        click.option("--throttle-subject", type=Kind("subject", publish_subject), metavar="SUBJECT",
                     default=THROTTLE_SUBJECT, show_default=True, help="Subject writers hear."),
    ):  # fmt: skip
        found = option(found)
    return throttle.command(epilog=_STATUS)(found)


_wait = click.option("--wait", type=SECONDS, metavar="TIME", default="3s", show_default=True,
                     help="Longest wait for writers' answers.")  # fmt: skip
_subject = click.option("--subject", type=Kind("filter", whole_filter), required=True,
                        metavar="FILTER", help="Destination subjects: 'orders.*'.")  # fmt: skip
_reasons = partial(click.option, "--reason", type=click.Choice(list(Reason.__members__)),
                   metavar="REASON")  # fmt: skip


@_of_writers
@_wait
def producers(connection: ConnectionOptions, pauses: Pauses, wait: float, as_json: bool) -> int:
    """
    Shows who publishes, who can be paused, and the pauses.

    \b
    pyspark-jetstream throttle producers
    """
    with client_of(connection) as client:
        Controller(client, pauses, stopped=stopping()).discover(wait, patient=True)
    members = _members(pauses)
    if as_json:
        show_json({"producers": members})
    elif members:
        show(table(_rows(members, host="host", **{"can be paused": "supports_throttle"})))
        if paused := _paused(members):
            show("", table(paused, "Paused"))
    return 0 if members else _nobody(pauses)


@_of_writers
@_subject
@click.option("--for", "for_s", type=SECONDS, required=True, metavar="TIME", help="Such as 60s.")
@_reasons(default=QUOTAS[0].name, show_default=True,
          help=f"{', '.join(Reason.__members__)}: the last three pause whole writers, whatever the"
          " subject.")  # fmt: skip
def pause(
    connection: ConnectionOptions, pauses: Pauses, subject: str, for_s: float, reason: str,
    as_json: bool,
) -> int:  # fmt: skip
    """
    Pauses subjects for some time, and lifts the pause at the end.

    Sends the pause again each second. Ctrl-C and SIGTERM lift it early. A writer that does not
    acknowledge is named.

    \b
    pyspark-jetstream throttle pause --subject 'orders.*' --for 60s
    pyspark-jetstream throttle pause --subject '>' --for 5m \\
        --reason BrokerProduceQuotaExceeded
    """
    with client_of(connection) as client:
        Controller(client, pauses, _at_first(pauses), stopping()).pause(
            subject, Reason[reason], for_s
        )
    _show_told(pauses, _members(pauses), as_json)
    return _verdict(pauses)


@_of_writers
@_subject
@_wait
@_reasons(help=f"Only pauses of this reason; else {' and '.join(each.name for each in QUOTAS)}.")
def lift(
    connection: ConnectionOptions, pauses: Pauses, subject: str, wait: float, reason: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """
    Lifts pauses of exactly this filter, whoever issued them.

    A program that pauses renews its pause each second: stop that program instead.

    \b
    pyspark-jetstream throttle lift --subject 'orders.*'
    """
    with client_of(connection) as client:
        controller = Controller(client, pauses, _at_first(pauses), stopping())
        controller.discover(wait, patient=True)
        controller.lift([subject], QUOTAS if reason is None else [Reason[reason]])
    _show_told(pauses, _members(pauses), as_json)
    return _verdict(pauses)


def _verdict(pauses: Pauses) -> int:
    if not pauses.silent:
        return 0 if pauses.told else _nobody(pauses)
    named = sorted(pauses.silent.items())
    silent = ", ".join(f"{number} ({query})" if query else str(number) for number, query in named)
    show(
        f"not acknowledged by {silent}: they may go on publishing;"
        " only limits of the server stop them"
        , to_stderr=True
    )  # fmt: skip
    return SILENT


def _nobody(pauses: Pauses) -> int:
    show(
        f"no writer on '{pauses.subject}' answered in this account. A query has writers only while"
        " a batch runs: if its trigger is longer, look longer (--wait). The query's user must be"
        " allowed to subscribe to this subject, and to publish on the inboxes of this program"
        " (--inbox-prefix)"
        , to_stderr=True
    )  # fmt: skip
    return NOBODY


# ── what is shown ────────────────────────────────────────────────────────────────────────────


def _members(pauses: Pauses) -> list[dict[str, Any]]:
    """The producers that are there, for programs; their ids are texts, as JSON's numbers end."""
    return [
        {
            "producer": str(number), "query": of.query, "host": of.host,
            "supports_throttle": of.supports_throttle,
            "subjects": list(of.subjects), "receipts": member.receipts,
            "paused": [
                each._asdict() | {"producer_id": str(number), "until": each.until.isoformat()}
                for each in throttled_of(member)
            ],
        }
        for number, member in sorted(pauses.members.items())
        for of in [member.producer]
    ]  # fmt: skip


def _rows(members: list[dict[str, Any]], **more: str) -> list[dict[str, Any]]:
    """
    What a table has of producers, with more of their facts under other names. Of their subjects it
    has the first three: all 32 would push the next producer off the screen.
    """
    names = {name: name for name in ("producer", "query", "subjects")} | more
    rows = [{name: each[fact] for name, fact in names.items()} for each in members]
    for row in rows:
        row["subjects"] = [*row["subjects"][:3], *(row["subjects"][3:] and ["…"])]
    return rows


def _paused(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Why and by whom subjects are paused; the document says it of each writer and subject."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for each in (each for member in members for each in member["paused"]):
        found.setdefault((each["reason"], each["source"]), {})[each["filter"]] = each["until"]
    return [
        {"reason": reason, "source": source, "until": max(ends.values()), "filters": list(ends)}
        for (reason, source), ends in found.items()
    ]


def _show_told(pauses: Pauses, members: list[dict[str, Any]], as_json: bool) -> None:
    """The producers that were told and are there."""
    if as_json:
        show_json({"producers": members, "silent": [*map(str, sorted(pauses.silent))]})
    elif members:
        show(table(_rows(members, acknowledged="receipts")))


def _at_first(pauses: Pauses) -> Callable[[], None]:
    """Says on standard error, once, how many writers there are at first."""
    said: list[str] = []

    def say() -> None:
        if (pauses.nobody or pauses.members) and not said:
            said.append(f"{len(pauses.members) or 'nobody'} so far: a writer that begins is told")
            show(*said, to_stderr=True)

    return say
