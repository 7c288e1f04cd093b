"""
The options of a write under pressure: pauses, queue, priorities, shedding.

They are few words for what `throttle`, `admission` and `priority` decide; this is where the words
become values, and where combinations that cannot be meant are refused (overload.md §10).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from .. import values as value_of
from ..errors import OptionError
from ..option import only
from ..outbox import deadletters
from ..outbox.admission import Rules
from ..outbox.deadletters import dead_letter_subject
from ..outbox.priority import (
    STRATEGIES,
    Priorities,
    Priority,
    claim_values,
    strategies,
    subject_rules,
)

__all__ = ["PRESSURE_OPTIONS", "fields"]

_LEAST_INTERVAL_S: Final = 0.1
"""Between two reports of metrics; more often a task would do little else."""


def _queue_size(value: str) -> int | str:
    word = value.strip().lower()
    if word in ("auto", "sqrt"):
        return word
    try:
        return value_of.positive(value)
    except ValueError:
        raise ValueError(f"expected auto, sqrt or a positive number, got '{value}'") from None


def _shed(value: str) -> frozenset[Priority]:
    found = {Priority.of(word.strip()) for word in value.split(",")}
    if None in found or not found:
        raise ValueError(f"expected non-critical, or normal, non-critical, got '{value}'")
    if Priority.CRITICAL in found:
        raise ValueError("critical rows are never shed")
    return frozenset(each for each in found if each is not None)


def _interval(value: str) -> float:
    seconds = value_of.duration(value)
    if seconds < _LEAST_INTERVAL_S:
        raise ValueError(f"expected at least 100ms, got '{value}'")
    return seconds


def _resolver(value: str) -> str:
    module, colon, function = value.strip().partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), function)):
        raise ValueError(f"expected package.module:function, got '{value}'")
    return value.strip()


PRESSURE_OPTIONS: Final = (
    only(
        "sink",
        "throttle",
        value_of.boolean,
        "true",
        "Whether operators may pause subjects (`jobs/throttle.py`).",
    ),
    only(
        "sink",
        "throttleSubject",
        value_of.publish_subject,
        "spark.jetstream.throttle",
        "Where they say so; who may publish there can stop the write.",
    ),
    only(
        "sink",
        "throttleMode",
        value_of.choice("backpressure", "fail-fast"),
        "backpressure",
        "A paused row waits for `throttleMaxWait`, or fails when the pause is longer than"
        " `publishTimeout`.",
    ),
    only("sink", "throttleMaxWait", value_of.duration, "10m", "How long a paused row waits."),
    only(
        "sink",
        "throttleBufferBytes",
        value_of.size,
        "64MiB",
        "Rows of paused subjects that are kept while others flow.",
    ),
    only(
        "sink",
        "throttleReroute",
        value_of.boolean,
        "false",
        "Whether rows of a paused subject go to another destination of a mapping with weights.",
    ),
    only(
        "sink",
        "publishOrder",
        value_of.choice("subject", "strict", "none"),
        "subject",
        "What keeps its order: rows of a subject that wait; also those in flight; or none.",
    ),
    only(
        "sink",
        "queueSize",
        _queue_size,
        "auto",
        "Rows that wait for the window: a number, `auto` (10,000), or `sqrt` of the window.",
    ),
    only("sink", "queueBytes", value_of.size, "32MiB", "Their bytes."),
    only(
        "sink",
        "queueTimeout",
        value_of.duration,
        "",
        "A row that waits longer is shed, or fails the task; without it rows wait.",
    ),
    only(
        "sink",
        "prioritySubjects",
        subject_rules,
        "",
        "By subject, the first that matches: `orders.>=critical, metrics.*=non-critical`.",
    ),
    only(
        "sink",
        "priorityHeader",
        value_of.text,
        "",
        "A header that names the priority of its row.",
    ),
    only(
        "sink",
        "priorityClaim",
        value_of.text,
        "",
        "A key of the column `claims`, else a header, whose value decides.",
    ),
    only(
        "sink",
        "priorityClaimValues",
        claim_values,
        "",
        "What its values mean: `acme=critical, free=non-critical`.",
    ),
    only(
        "sink",
        "priorityResolver",
        _resolver,
        "",
        "`package.module:function` of a `Publish`, for rows without a `priority`.",
    ),
    only(
        "sink",
        "priorityStrategies",
        strategies,
        "custom, header, claim",
        "Which of these are asked, in order, after `prioritySubjects`.",
    ),
    only(
        "sink",
        "overloadPolicy",
        value_of.choice("block", "dead-letter", "drop"),
        "block",
        "What becomes of rows the server has no room for: they wait, go elsewhere, or are gone.",
    ),
    only(
        "sink",
        "shedPriorities",
        _shed,
        "non-critical",
        "Of which priorities, if not `block`; never `critical`.",
    ),
    only(
        "sink",
        "onReject",
        value_of.choice("fail", "dead-letter"),
        "fail",
        "What becomes of a row the server will never store: the task fails, or it goes elsewhere.",
    ),
    only(
        "sink",
        "deadLetterSubject",
        dead_letter_subject,
        "",
        "Where they go; `{subject}` stands for their own.",
    ),
    only(
        "sink",
        "overloadWindow",
        value_of.duration,
        "1s",
        "So long ago the server must have pushed back.",
    ),
    only(
        "sink",
        "maxCpuPercent",
        value_of.positive,
        "",
        "Of a core: a worker that uses more sends no more at a time, and counts as pushed back.",
    ),
    only(
        "sink",
        "metricsSubject",
        value_of.publish_subject,
        "",
        "Where tasks say what they count, for `jobs/metrics.py`; without it they do not.",
    ),
    only("sink", "metricsInterval", _interval, "5s", "How often, `100ms` at least."),
)
"""In the order of the README."""


def fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """
    The fields of `SinkOptions` that these options give.

    Raises:
        OptionError: Two of them contradict each other, or one lacks another.
    """
    policy = values.get("overloadPolicy", "block")
    for name in ("shedPriorities", "overloadWindow"):
        if name in values and policy == "block":
            raise OptionError(name, "says nothing with overloadPolicy=block, which sheds no row")
    rejects = values.get("onReject") == "dead-letter"
    if (policy == "dead-letter" or rejects) != ("deadLetterSubject" in values):
        raise OptionError(
            "deadLetterSubject",
            "belongs to overloadPolicy=dead-letter or onReject=dead-letter: give both or none",
        )
    if "deadLetterSubject" in values:
        fault = deadletters.fault(values["deadLetterSubject"], values.get("subject"))
        if fault is not None:
            raise OptionError("deadLetterSubject", fault)
    if "maxCpuPercent" in values and policy == "block" and values.get("limiter") == "fixed":
        raise OptionError("maxCpuPercent", "says nothing with limiter=fixed and no shedding")
    if ("priorityClaim" in values) != ("priorityClaimValues" in values):
        raise OptionError("priorityClaim", "belongs to priorityClaimValues: give both or none")
    throttle = values.get("throttle", True)
    if not throttle and "throttleSubject" in values:
        raise OptionError("throttleSubject", "says nothing with throttle=false")
    if "metricsInterval" in values and "metricsSubject" not in values:
        raise OptionError("metricsInterval", "needs option 'metricsSubject' too")
    least = {Priority.NON_CRITICAL}
    shed = values.get("shedPriorities", frozenset(least)) if policy != "block" else frozenset()
    return {
        "throttle": throttle,
        "throttle_subject": values.get("throttleSubject", "spark.jetstream.throttle"),
        "reroutes_weights": values.get("throttleReroute", False),
        "dead_letter_subject": values.get("deadLetterSubject"),
        "drops": policy == "drop",
        "max_cpu_percent": values.get("maxCpuPercent"),
        "rejects": rejects,
        "strict_order": values.get("publishOrder") == "strict",
        "metrics_subject": values.get("metricsSubject"),
        "metrics_interval_s": values.get("metricsInterval", 5.0),
        "rules": Rules(
            queue_size=values.get("queueSize", "auto"),
            queue_bytes=values.get("queueBytes", 32 << 20),
            parked_bytes=values.get("throttleBufferBytes", 64 << 20),
            sheddable=shed,
            overload_window_s=values.get("overloadWindow", 1.0),
            queue_timeout_s=values.get("queueTimeout", math.inf),
            publish_timeout_s=values.get("publishTimeout", 120.0),
            throttle_max_wait_s=values.get("throttleMaxWait", 600.0),
            by_lane=values.get("publishOrder") != "none",
            fail_fast=values.get("throttleMode") == "fail-fast",
        ),
        "priorities": Priorities(
            subjects=values.get("prioritySubjects", ()),
            header=values.get("priorityHeader"),
            claim=values.get("priorityClaim"),
            claim_values=values.get("priorityClaimValues", ()),
            strategies=values.get("priorityStrategies", STRATEGIES),
        ),
        "priority_resolver": values.get("priorityResolver"),
    }
