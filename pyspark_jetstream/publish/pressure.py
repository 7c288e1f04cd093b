"""
The options of a write under pressure: pauses, queue, priorities, shedding.

They are few words for what `throttle`, `admission` and `priority` decide; this is where the words
become values, and where combinations that cannot be meant are refused (overload.md §10).
"""

from __future__ import annotations

import math
from functools import cache, partial
from importlib import import_module
from typing import Any, Final

from .. import values as value_of
from ..errors import OptionError
from ..option import Option, Values, table
from ..outbox.admission import QUEUE_ROWS, Rules
from ..outbox.lettersubjects import dead_letter_subject, template_fault
from ..outbox.overload import OVERLOAD_WINDOW_S
from ..outbox.priority import Priorities, Priority, Publish, Resolver, claim_values, subject_rules
from ..outbox.throttling.throttleprotocol import THROTTLE_SUBJECT


def _shed(value: str) -> frozenset[Priority]:
    priorities = {Priority.of(word.strip()) for word in value.split(",")}
    if None in priorities or not priorities:
        raise ValueError(f"expected non-critical, or normal, non-critical, got '{value}'")
    if Priority.CRITICAL in priorities:
        raise ValueError("critical rows are never shed")
    return frozenset(priority for priority in priorities if priority is not None)


def _throttle_subject(value: str) -> str | None:
    if value.strip().lower() in ("", "none"):
        return None
    return value_of.publish_subject(value)


def _queue_size(value: str) -> int:
    """20 at least (overload.md A11), as in Farfetch's LoadShedding library."""
    return max(20, value_of.positive(value))


@cache
def _imported(name: str) -> Resolver:
    """
    The function of the user's, imported where the rows are.

    Raises:
        OptionError: There is no such function here.
    """
    module, _, function = name.partition(":")
    try:
        found: Resolver = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise OptionError("priorityResolver", f"{error}; executors must have it, too") from None
    return found


def _resolved(name: str, row: Publish) -> Priority | int | str | None:
    return _imported(name)(row)


def _resolver(value: str) -> Resolver:
    module, colon, function = value.strip().partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), function)):
        raise ValueError(f"expected package.module:function, got '{value}'")
    return partial(_resolved, value.strip())


PRESSURE_OPTIONS: Final = table(
    "sink",
    Option("throttleSubject", "throttle_subject", _throttle_subject, THROTTLE_SUBJECT,
        "Subject on which operators pause subjects (`pyspark-jetstream throttle`). Every user who"
        " may publish there can stop the write. With `none` nobody can."),
    Option("throttleMaxWait", "throttle_max_wait_s", value_of.duration, "10m",
        "Longest time that a paused row waits."),
    Option("onThrottleTimeout", "", value_of.choice("fail", "dead-letter"), "fail",
        "Action for a paused row that has waited for `throttleMaxWait`."),
    Option("throttleReroute", "reroutes_weights", value_of.boolean, "false",
        "Whether rows of a paused subject go to another destination of a mapping with weights."),
    Option("publishOrder", "", value_of.choice("subject", "strict", "none"), "subject",
        "The order that rows keep."),
    Option("queueSize", "queue_size", _queue_size, str(QUEUE_ROWS),
        "Largest number of rows that wait for the window, 20 at least."),
    Option("queueTimeout", "queue_timeout_s", value_of.duration, "",
        "Longest time that a row waits until it is first sent, pauses included. After this time the"
        " row is shed, or its task fails. Without this option rows wait.",
        absent=math.inf),
    Option("prioritySubjects", "subjects", subject_rules, "",
        "Priorities by subject. The first filter that matches counts: `orders.>=critical,"
        " metrics.*=non-critical`.",
        absent=()),
    Option("priorityHeader", "header", value_of.text, "",
        "Name of a header that has the row's priority."),
    Option("priorityClaim", "claim", value_of.text, "",
        "Key of the map column `claims`, such as the claims of a token. The value of the key"
        " decides the priority. If there is no such column, the option names a header."),
    Option("priorityClaimValues", "claim_values", claim_values, "",
        "Priority of each value of `priorityClaim`: `acme=critical, free=non-critical`.",
        absent=()),
    Option("priorityResolver", "resolver", _resolver, "",
        "Function for rows without a priority: `package.module:function`. The function gets the row"
        " as a `Publish` of `pyspark_jetstream.outbox.priority`, and returns the priority."),
    Option("overloadPolicy", "", value_of.choice("block", "dead-letter", "drop"), "block",
        "Action for rows for which the server has no room."),
    Option("shedPriorities", "", _shed, "non-critical",
        "Priorities of rows that may be shed. The option needs another `overloadPolicy` than"
        " `block`, and never contains `critical`."),
    Option("onReject", "", value_of.choice("fail", "dead-letter"), "fail",
        "Action for a row that cannot be a message, or that the server will never store."),
    Option("deadLetterSubject", "dead_letter_subject", dead_letter_subject, "",
        "Subject for rows that are shed or rejected. `{subject}` stands for the row's own"
        " subject."),
)  # fmt: skip
"""In the order of docs/reference/options.md."""


def under_pressure(values: Values) -> dict[str, Any]:
    """
    The fields of `SinkOptions` that several of these options, or their words, decide.

    Raises:
        OptionError: Two of them contradict each other, or one lacks another.
    """
    policy = values["overloadPolicy"]
    if "shedPriorities" in values and policy == "block":
        why = "does nothing with overloadPolicy=block; set dead-letter or drop, or leave it out"
        raise OptionError("shedPriorities", why)
    names = "onReject", "overloadPolicy", "onThrottleTimeout"
    makes = [name for name in names if values[name] == "dead-letter"]
    letters = values["deadLetterSubject"]
    if makes and letters is None:
        why = f"required with {makes[0]}=dead-letter, such as rejected.{{subject}}"
        raise OptionError("deadLetterSubject", why)
    if letters is not None:
        fault = template_fault(letters, values["subject"])
        if not makes:
            fault = f"does nothing without one of {', '.join(names)} that is dead-letter"
        if fault is not None:
            raise OptionError("deadLetterSubject", fault)
    if ("priorityClaim" in values) != ("priorityClaimValues" in values):
        raise OptionError("priorityClaim", "belongs to priorityClaimValues: give both or none")
    memory = values["bufferMemory"]
    return {
        "drops": policy == "drop",
        "rules": values.fill(
            Rules,
            sheddable=frozenset() if policy == "block" else values["shedPriorities"],
            queue_bytes=max(1, memory // 4),
            held_bytes=max(1, memory // 2),
            overload_window_s=OVERLOAD_WINDOW_S,
            by_subject=values["publishOrder"] != "none",
            buries_paused=values["onThrottleTimeout"] == "dead-letter",
        ),
        "priorities": values.fill(Priorities),
    }
