"""Verification of copies that a real server has made: what it finds, and what is no fault."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import CopyMismatchError, CountMismatchError
from pyspark_jetstream.operations.partitioning import Verification, partition_stream
from pyspark_jetstream.operations.partitionplan import PartitionPlan
from pyspark_jetstream.readstream.copies import Copies

from ..kits.partitions import N, numbered_messages, update
from .test_serverheaders import stored_raw

Numbered = Callable[..., str]
Publish = Callable[..., None]


def made(js: JetStream, origin: str) -> PartitionPlan:
    """The streams layout of an origin with numbers, complete."""
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")
    partition_stream(js, plan, verify="counts")
    return plan


def sequences(js: JetStream, stream: str, subject: str) -> list[int]:
    """Where the messages of a subject are."""
    found, at = [], 1
    while (each := js.message_get(stream, seq=at, next_by_subj=subject)) is not None:
        found.append(each.sequence)
        at = each.sequence + 1
    return found


def until(done: Callable[[], bool]) -> None:
    """Waits for what the server does by itself."""
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def fault(js: JetStream, plan: PartitionPlan, verify: Verification) -> str:
    """What the verification says."""
    with pytest.raises(CopyMismatchError) as caught:
        partition_stream(js, plan, verify=verify)
    return str(caught.value)


def test_a_deleted_message_is_found(js: JetStream, numbered: Numbered) -> None:
    """A message that is missing in a copy is a fault by the counts, at once."""
    plan = made(js, numbered())
    js.delete_messages(f"{plan.origin}-1", [57])

    with pytest.raises(CountMismatchError, match=r"-1': has 9 messages of '.*' where .* has 10"):
        partition_stream(js, plan, verify="counts")


def test_another_message_missing_on_each_side(js: JetStream, numbered: Numbered) -> None:
    """Counts that agree by chance do not hide that a message of the origin has no copy."""
    plan = made(js, numbered())
    subject = f"{plan.origin}.1.O3"
    js.delete_messages(plan.origin, sequences(js, plan.origin, subject)[4:5])
    js.delete_messages(f"{plan.origin}-1", sequences(js, f"{plan.origin}-1", subject)[7:8])
    lost = sequences(js, plan.origin, subject)[6]

    partition_stream(js, plan, verify="order")  # it asks for less
    assert f"-1': lacks sequence {lost} of '{plan.origin}', '{subject}'" in fault(
        js, plan, "content"
    )


def test_a_message_published_into_a_copy_is_found(
    js: JetStream, numbered: Numbered, publish: Publish
) -> None:
    """A message that stands in a copy without being one is found, though the counts agree."""
    plan = made(js, numbered())
    copy, subject = f"{plan.origin}-1", f"{plan.origin}.1.O3"
    js.delete_messages(copy, sequences(js, copy, subject)[-1:])
    update(js, plan.origin, subjects=["elsewhere"])
    update(js, copy, subjects=[subject])
    publish([(subject, b"9")])
    update(js, copy, subjects=None)
    update(js, plan.origin, subjects=[f"{plan.origin}.>"])

    assert re.search(r"-1': sequence 121, .* is no copy: somebody", fault(js, plan, "order"))

    publish([(f"{plan.origin}.1.O4", b"behind it")])

    assert re.search(r"-1': sequence 121.* is no copy: somebody", fault(js, plan, "order"))


def test_a_copy_out_of_order_is_found(js: JetStream, numbered: Numbered, publish: Publish) -> None:
    """A message that was copied again, behind later ones, is found, though the counts agree."""
    plan = made(js, numbered())
    copy, subject = f"{plan.origin}-1", f"{plan.origin}.1.O3"
    sources = js.stream_info(copy).config["sources"]
    js.delete_messages(copy, sequences(js, copy, subject)[-1:])
    last = sequences(js, plan.origin, subject)[-1]
    again = {"name": plan.origin, "filter_subject": subject, "opt_start_seq": last}
    update(js, copy, sources=[again])
    until(lambda: len(sequences(js, copy, subject)) == 10)
    update(js, copy, sources=sources)
    publish([(f"{plan.origin}.1.O4", b"behind it")])
    until(lambda: js.stream_info(copy).last_seq == 122)

    assert (
        f"-1': sequence 121 is out of the order of '{plan.origin}', copied from {last} after 478"
        in fault(js, plan, "order")
    )


def test_another_payload_is_found(
    js: JetStream, numbered: Numbered, new_stream: Callable[..., str], publish: Publish
) -> None:
    """Copies of a stream that was made anew since, with other payloads, are found by content."""
    plan = made(js, numbered())
    js.client.request(f"{js.prefix}.STREAM.DELETE.{plan.origin}")
    new_stream(plan.origin)
    messages = numbered_messages(plan.origin)
    publish([*messages[:99], (messages[99][0], b"other"), *messages[100:]])

    assert f"sequence 25 has another payload than sequence 100 of '{plan.origin}'" in fault(
        js, plan, "content"
    )


def test_headers_arrive_with_the_messages(
    js: JetStream, numbered: Numbered, publish: Publish
) -> None:
    """
    Headers and ids are compared, too; what the server takes out when it copies is no fault, and
    one id twice, stored outside the origin's duplicate window, is copied twice.
    """
    origin = numbered(duplicate_window=100_000_000)
    subject = f"{origin}.1.O3"
    publish([(subject, b"a", [("Nats-Msg-Id", "1"), ("A", "b")])])
    publish([(subject, b"b", [("Nats-Expected-Stream", origin), ("C", "")])])
    deadline = time.monotonic() + 60
    while len(sequences(js, origin, subject)) < 13:
        assert time.monotonic() < deadline
        publish([(subject, b"c", [("Nats-Msg-Id", "1")])])
    plan = made(js, origin)

    done = partition_stream(js, plan, verify="content")

    assert done.verified == "content"
    assert len(sequences(js, f"{origin}-1", subject)) == 13


def test_where_a_copy_comes_from_is_the_servers_word(
    js: JetStream, new_stream: Callable[..., str]
) -> None:
    """
    A message that says of itself that it is a copy stands for nothing when it is copied.
    """
    origin = new_stream()
    js.publish(f"{origin}.a", b"x", [("K", "v")])
    stored_raw(js, f"{origin}.a", [("Nats-Stream-Source", f"OTHER 77 > > {origin}.a")])
    target = new_stream(subjects=None, sources=[{"name": origin}])
    until(lambda: js.stream_info(target).messages == 2)
    copies = Copies(js)
    (found,) = js.messages(target, [{"seq": 2}])

    assert [name for name, _ in found.headers] == ["Nats-Stream-Source"] * 2
    assert copies.copied_from(target, found) == 2
    assert copies.reached(target) == 2


def test_a_message_that_says_it_is_a_copy(js: JetStream, numbered: Numbered) -> None:
    """
    What a message of the origin says of where it comes from is not what its copy says: the server's
    header stands behind it.
    """
    origin = numbered()
    subject = f"{origin}.1.O3"
    stored_raw(js, subject, [("Nats-Stream-Source", f"OTHER 1 > > {origin}.2.O3")])
    plan = made(js, origin)

    done = partition_stream(js, plan, verify="content")

    assert done.verified == "content"
    assert len(sequences(js, f"{origin}-1", subject)) == 11


def test_raw_subjects_through_two_hops(js: JetStream, raw: Numbered) -> None:
    """Both hops are compared with what feeds them, and what the filter leaves out is no fault."""
    origin = raw()
    plan = PartitionPlan(
        origin, N, f"{origin}-{{partition}}", subject=f"{origin}.*.JFK", tokens=(1,)
    )
    seen: dict[str, tuple[int, int]] = {}

    done = partition_stream(
        js,
        plan,
        verify="content",
        progress=lambda looked: seen.update(
            (each.stream, (each.done, each.end)) for each in looked if each.doing == "verified"
        ),
    )

    assert (done.messages, done.left_out) == (120, 120)
    assert seen.keys() == {origin, *plan.names}
    assert all(now == end for now, end in seen.values())


def test_a_limit_by_subject_is_no_fault(
    js: JetStream, numbered: Numbered, publish: Publish
) -> None:
    """Where messages are replaced, copies hold the last of each subject, as the origin does."""
    origin = numbered(max_msgs_per_subject=2)
    plan = made(js, origin)
    publish(numbered_messages(origin))

    done = partition_stream(js, plan, verify="content")

    assert done.messages == 2 * 48
