"""Options of a shared consumer: which belong together, what they make of a pull."""

from __future__ import annotations

import pytest

from pyspark_jetstream.readstream.options import Sharing

from ...kits.options import parse, refused

OVERFLOW = {"priorityPolicy": "overflow", "consumer": "jobs"}
PRIORITIZED = {"priorityPolicy": "prioritized", "consumer": "jobs"}


@pytest.mark.parametrize(
    ("given", "pull"),
    [
        (OVERFLOW, {}),
        (OVERFLOW | {"minPending": "5"}, {"min_pending": 5}),
        (OVERFLOW | {"minAckPending": "7"}, {"min_ack_pending": 7}),
        (
            OVERFLOW | {"minPending": "5", "minAckPending": "7"},
            {"min_pending": 5, "min_ack_pending": 7},
        ),
        (PRIORITIZED, {"priority": 0}),
        (PRIORITIZED | {"priority": "9"}, {"priority": 9}),
    ],
)
def test_fields_of_a_pull(given, pull):
    """
    The policy's options become the fields of the pull request that ADR-42 names.
    """
    sharing = parse("stream", given).sharing

    assert sharing.pull == pull
    assert sharing.policy == given["priorityPolicy"]


def test_everything_arrives_typed():
    """
    Every option of a shared consumer lands in its field.
    """
    given = OVERFLOW | {
        "minPending": "1", "minAckPending": "2", "ackWait": "3s", "maxAckPending": "4",
        "maxDeliver": "5", "deadLetterSubject": "dead.{subject}", "maxRecordsPerTrigger": "6",
        "minPartitions": "2", "maxRecordsPerPartition": "3", "claimsLedger": "true",
        "abandonAfter": "7s", "nakDelay": "2s",
    }  # fmt: skip
    parsed = parse("stream", given)

    assert parsed.sharing == Sharing(
        policy="overflow",
        min_pending=1,
        min_ack_pending=2,
        priority=None,
        ack_wait_s=3.0,
        max_ack_pending=4,
        max_deliver=5,
        dead_letter_subject="dead.{subject}",
        claims_ledger="true",
        abandon_after_s=7.0,
        nak_delay_s=2.0,
        asked=frozenset({"ackWait", "maxAckPending"}),
    )
    assert (parsed.consumer, parsed.max_records, parsed.min_partitions) == ("jobs", 6, 2)


def test_a_pinned_query_shares_nothing():
    """
    With the default policy there is nothing of sharing.
    """
    assert parse("stream", {}).sharing is None


@pytest.mark.parametrize(
    ("given", "option", "says"),
    [
        ({"minPending": "5"}, "minPending", "belongs to priorityPolicy=overflow"),
        (OVERFLOW | {"abandonAfter": "3m"}, "abandonAfter", "at least twice ackWait (120s), got"),
        (OVERFLOW | {"claimsLedger": "maybe"}, "claimsLedger", "expected auto or true or false"),
        ({"minAckPending": "5"}, "minAckPending", "belongs to priorityPolicy=overflow"),
        ({"priority": "5"}, "priority", "belongs to priorityPolicy=prioritized"),
        ({"ackWait": "5s"}, "ackWait", "overflow or prioritized"),
        ({"maxAckPending": "5"}, "maxAckPending", "overflow or prioritized"),
        ({"maxDeliver": "5"}, "maxDeliver", "overflow or prioritized"),
        ({"deadLetterSubject": "d"}, "deadLetterSubject", "overflow or prioritized"),
        (PRIORITIZED | {"minPending": "5"}, "minPending", "this query has prioritized"),
        (OVERFLOW | {"priority": "5"}, "priority", "this query has overflow"),
        ({"priorityPolicy": "overflow"}, "consumer", "required"),
        ({"priorityPolicy": "overflow,prioritized"}, "priorityPolicy", "expected"),
        ({"priorityPolicy": "pinned"}, "priorityPolicy", "expected"),
        (PRIORITIZED | {"priority": "10"}, "priority", "expected 0"),
        (PRIORITIZED | {"priority": "-1"}, "priority", "expected 0"),
        (PRIORITIZED | {"priority": "1.5"}, "priority", "expected 0"),
        (OVERFLOW | {"minPending": "0"}, "minPending", "expected a positive integer"),
        (OVERFLOW | {"priorityGroup": ""}, "priorityGroup", "expected a value"),
        (OVERFLOW | {"priorityGroup": "x" * 17}, "priorityGroup", "expected 1 to 16"),
        (OVERFLOW | {"priorityGroup": "a.b"}, "priorityGroup", "expected 1 to 16"),
        (OVERFLOW | {"priorityTimeout": "9s"}, "priorityTimeout", "pinned_client"),
        (OVERFLOW | {"standby": "true"}, "standby", "pinned_client"),
        (OVERFLOW | {"endingOffsets": "latest"}, "endingOffsets", "an end for one reader"),
        (OVERFLOW | {"minRecordsPerTrigger": "5"}, "minRecordsPerTrigger", "hold claims back"),
        (OVERFLOW | {"readMode": "direct"}, "priorityPolicy", "readMode=direct reads without"),
        (OVERFLOW | {"readMode": "consumer"}, "readMode", "reads by direct get"),
        (OVERFLOW | {"maxDeliver": "5"}, "maxDeliver", "give both or none"),
        (OVERFLOW | {"deadLetterSubject": "d"}, "maxDeliver", "give both or none"),
        (
            OVERFLOW | {"maxDeliver": "5", "deadLetterSubject": "{subject}"},
            "deadLetterSubject",
            "where their rows should",
        ),
        (
            OVERFLOW | {"maxDeliver": "5", "deadLetterSubject": "a.b", "subject": "a.b"},
            "deadLetterSubject",
            "a subject of dead letters",
        ),
    ],
)
def test_what_does_not_go_together(given, option, says):
    """
    A wrong setting is one error that names the option, before anybody asks the server.
    """
    error = refused("stream", given)

    assert error.option == option
    assert says in str(error)
