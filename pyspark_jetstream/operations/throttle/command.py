"""An operator's commands: list the writers, pause subjects for some time, lift a pause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Final

import click

from ...client.options import ConnectionOptions
from ...errors import further
from ...outbox.throttling.throttle import PausedBy
from ...outbox.throttling.throttleprotocol import MAX_SUBJECTS, THROTTLE_SUBJECT, Reason
from ...values import duration, publish_subject, whole_filter
from ..connecting import Kind, client_of, connects
from ..screen import show, show_json, table, warn
from ..stopping import Stop
from .controller import Controller
from .pauses import Pauses
from .throttled import throttled_of

SILENT: Final = 3
NOBODY: Final = 4

_RENEWED_S: Final = 2.0
"""Time in which a program that pauses has renewed its pause, as it does each second."""

_LONGEST_RECEIPT_S: Final = 0.4
"""A receipt and that of the fallback are waited for twice a second."""

QUOTAS: Final = tuple(reason for reason in Reason if reason.is_quota)

_STATUS: Final = (
    "Exit status 0: done; 1: failed, one line says why; 2: wrong arguments; 3: some writers have"
    " not acknowledged and are named; 4: no writer answered."
)


def receipt_wait(text: str) -> float:
    """
    Time that a receipt may take.

    Raises:
        ValueError: It is none, or too long.
    """
    seconds = duration(text)
    if seconds > _LONGEST_RECEIPT_S:
        raise ValueError(f"expected at most 400ms, for it is waited twice a second, got '{text}'")
    return seconds


_TIME: Final = Kind("time", duration)


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
        click.option("--receipt-wait", type=Kind("time", receipt_wait),
                     metavar="TIME", default="100ms", show_default=True,
                     help="Longest wait for a receipt, at most 400ms."),
        click.option("--throttle-subject", type=Kind("subject", publish_subject), metavar="SUBJECT",
                     default=THROTTLE_SUBJECT, show_default=True, help="Subject writers hear."),
    ):  # fmt: skip
        found = option(found)
    return throttle.command(epilog=_STATUS)(found)


def _wait(seconds: int) -> Callable[..., Any]:
    return click.option("--wait", type=_TIME, metavar="TIME", default=f"{seconds}s",
                        show_default=True, help="Longest wait for writers' answers.")  # fmt: skip


_subject = click.option("--subject", type=Kind("filter", whole_filter), required=True,
                        metavar="FILTER", help="Destination subjects: 'orders.*'.")  # fmt: skip
_reasons = partial(click.option, "--reason", type=click.Choice(list(Reason.__members__)))


@_of_writers
@_wait(3)
def producers(connection: ConnectionOptions, pauses: Pauses, wait: float, as_json: bool) -> int:
    """
    Shows who publishes, who can be paused, and the pauses.

    \b
    pyspark-jetstream throttle producers
    """
    with client_of(connection) as client:
        Controller(client, pauses, stopped=Stop()).discover(wait, patient=True)
    members = _members(pauses)
    if as_json:
        show_json({"producers": members})
    elif members:
        show(table(_rows(members, host="host", **{"can be paused": "supports_throttle"})))
        if paused := [row for each in members for row in _paused(each)]:
            show("", table(paused, "Paused"))
    return 0 if members else _nobody(pauses, waits=True)


@_of_writers
@_subject
@click.option("--for", "for_s", type=_TIME, required=True, metavar="TIME", help="Such as 60s.")
@_reasons(default=QUOTAS[0].name, show_default=True,
          help="The last three pause whole writers, whatever the subject.")  # fmt: skip
def pause(
    connection: ConnectionOptions, pauses: Pauses, subject: str, for_s: float, reason: str,
    as_json: bool,
) -> int:  # fmt: skip
    """
    Pauses subjects for some time, and lifts the pause at the end.

    Sends the pause again each second. Ctrl-C and SIGTERM lift it early. A writer that does not
    acknowledge is told to pause its whole connection; if it does not acknowledge that either, it is
    named.

    \b
    pyspark-jetstream throttle pause --subject 'orders.*' --for 60s
    pyspark-jetstream throttle pause --subject '>' --for 5m \
        --reason BrokerProduceQuotaExceeded
    """
    with client_of(connection) as client:
        Controller(client, pauses, _at_first(pauses), Stop()).pause(subject, Reason[reason], for_s)
    _show_told(pauses, _members(pauses), as_json)
    return _verdict(pauses)


@_of_writers
@_subject
@_wait(1)
@_reasons(help=f"Only pauses of this reason; else {' and '.join(each.name for each in QUOTAS)}.")
def lift(
    connection: ConnectionOptions, pauses: Pauses, subject: str, wait: float, reason: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """
    Lifts pauses of exactly this filter, whoever issued them.

    \b
    pyspark-jetstream throttle lift --subject 'orders.*'
    """
    with client_of(connection) as client:
        controller = Controller(client, pauses, _at_first(pauses), Stop())
        controller.discover(wait, patient=True)
        controller.lift([subject], QUOTAS if reason is None else [Reason[reason]])
        told = _members(pauses)
        controller.discover(_RENEWED_S if pauses.members else 0.0)
    _show_told(pauses, told, as_json)
    if any(
        (each.filter, each.source) == (subject, PausedBy.OPERATOR)
        for member in pauses.members.values()
        for each in throttled_of(member)
    ):
        warn([
            f"'{subject}' is paused again: a program renews the pause each second. Stop that"
            f" program{further('guides/throttle')}"
        ])  # fmt: skip
    return _verdict(pauses, waits=True)


def _verdict(pauses: Pauses, waits: bool = False) -> int:
    if not pauses.silent:
        return 0 if pauses.told else _nobody(pauses, waits)
    named = sorted(pauses.silent.items())
    silent = ", ".join(f"{number} ({query})" if query else str(number) for number, query in named)
    warn([
        f"not acknowledged by {silent}: they may go on publishing;"
        f" only limits of the server stop them{further('guides/throttle')}"
    ])  # fmt: skip
    return SILENT


def _nobody(pauses: Pauses, waits: bool) -> int:
    longer = ": if its trigger is longer, give a longer --wait" if waits else ""
    warn([
        f"no writer on '{pauses.subject}' answered in this account. A query has writers only while"
        f" a batch runs{longer}. The query's user must be allowed to subscribe to this subject, and"
        " to publish on the inboxes of this program (--inbox-prefix)"
    ])  # fmt: skip
    return NOBODY


# ── what is shown ────────────────────────────────────────────────────────────────────────────


def _members(pauses: Pauses) -> list[dict[str, Any]]:
    """The producers that are there, for programs; their ids are texts, as JSON's numbers end."""
    return [
        {
            "producer": str(number), "query": of.query, "host": of.host,
            "streams": list(of.streams), "supports_throttle": of.supports_throttle,
            "subjects": list(of.subjects), "receipts": member.receipts,
            "state": member.response.value,
            "paused": [
                each._asdict() | {"producer_id": str(number), "until": each.until.isoformat()}
                for each in throttled_of(member)
            ],
        }
        for number, member in sorted(pauses.members.items())
        for of in [member.producer]
    ]  # fmt: skip


def _rows(members: list[dict[str, Any]], **more: str) -> list[dict[str, Any]]:
    """What a table has of producers, with more of their facts under other names."""
    names = {name: name for name in ("producer", "query", "streams", "subjects")} | more
    return [{name: each[fact] for name, fact in names.items()} for each in members]


def _paused(member: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A producer's pauses, each with the subjects that are paused alike."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for each in member["paused"]:
        is_operator = each["source"] == PausedBy.OPERATOR  # whose program renews it
        until = f"{each['until'][11:19]}Z" + " or longer" * is_operator
        by = each["source"] + f", request {each['request_id']}" * is_operator
        alike.setdefault((each["filter"], each["reason"], until, by), []).append(each["subject"])
    more = ", maybe more" * (len(member["paused"]) >= MAX_SUBJECTS)
    names = ("filter", "reason", "until", "by")
    return [
        {"producer": member["producer"], "subjects": ", ".join(subjects) + more}
        | dict(zip(names, words, strict=True))
        for words, subjects in alike.items()
    ]


def _show_told(pauses: Pauses, members: list[dict[str, Any]], as_json: bool) -> None:
    """The producers that were told; those that have ended are counted."""
    if as_json:
        silent = [str(number) for number in sorted(pauses.silent)]
        show_json({"producers": _members(pauses), "ended": pauses.ended, "silent": silent})
        return
    if members:
        show(table(_rows(members, acknowledged="receipts", state="state")))
    if pauses.ended:
        show(f"{pauses.ended:,} more have ended meanwhile")


def _at_first(pauses: Pauses) -> Callable[[], None]:
    """Says on standard error, once, how many writers there are at first."""
    said: list[str] = []

    def say() -> None:
        if (pauses.nobody or pauses.members) and not said:
            said.append(f"{len(pauses.members) or 'nobody'} so far: a writer that begins is told")
            warn(said)

    return say
