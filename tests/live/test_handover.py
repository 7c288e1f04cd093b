"""The cut between two layouts of one stream, with a real server and writers that go on."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.operations.handover import Handover, hand_over
from pyspark_jetstream.operations.partitioning import partition_stream
from pyspark_jetstream.operations.partitionplan import PartitionPlan

from ..kits.partitions import ORIGINS, Rows, layouts, stored, writing


def read(js: JetStream, options: dict[str, str], starting: bool) -> Rows:
    """What a query with these options reads, by raw subject: `(…, ending]` or `[starting, …)`."""
    bounds = json.loads(options["startingOffsets" if starting else "endingOffsets"])
    assert set(bounds) == {str(p) for p in range(int(options["partitions"]))}
    rows: Rows = {}
    names = {p: options["stream"].replace("{partition}", p) for p in bounds}
    for name, bound in {names[p]: bounds[p] for p in bounds}.items():
        upto = js.stream_info(name).last_seq if starting else bound
        for subject, data in stored(js, name, between=(bound if starting else 1, upto)).items():
            parts = subject.split(".")
            rows[".".join([parts[0], *parts[-2:]])] = data
    return rows


def check_whole(js: JetStream, origin: str, cut: Handover) -> None:
    """Old up to the cut and new from there on are the origin: each message once, in its order."""
    js.stream_info(origin)
    old, new = read(js, cut.old, False), read(js, cut.new, True)
    both = {s: old.get(s, []) + new.get(s, []) for s in old | new}
    assert both == stored(js, origin)
    assert sum(map(len, old.values())) == cut.sequence


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("streams", "streams"),
        ("filtered", "streams"),
        ("streams", "filtered"),
        ("origin", "streams"),
    ],
)
def test_the_cut_divides_the_origin(
    js: JetStream, raw: Callable[..., str], before: str, after: str
) -> None:
    """
    From 2 to 3 partitions, where messages of one new partition come from several old ones, while
    writers go on: what the old layout has up to the cut and the new one behind it is all there is.
    """
    origin = raw()
    new = layouts(origin, 3, after)
    old = layouts(origin, 2, before)
    with writing(js, origin):
        if before != "origin":
            partition_stream(js, old)
        partition_stream(js, new)
        name = origin if before == "origin" else old.layout
        cut = hand_over(js, name, new)
        again = hand_over(js, name, new)
    partition_stream(js, new)

    assert again.sequence >= cut.sequence > 240
    check_whole(js, origin, cut)
    check_whole(js, origin, again)
    assert cut.old["partitions"] == ("1" if before == "origin" else "2")
    assert cut.new["partitions"] == "3"


def test_gaps_do_not_move_the_cut(
    js: JetStream, raw: Callable[..., str], publish: Callable[..., None]
) -> None:
    """Deleted messages, at the origin's end too, and empty partitions are cut as exactly."""
    origin = raw()
    old, new = layouts(origin, 2, "streams"), layouts(origin, 16, "streams")
    partition_stream(js, old)
    partition_stream(js, new)
    js.delete_messages(origin, [3, 4, 239, 240])
    for name in (old.stream_names[0], new.names[0]):
        js.delete_messages(name, [3, 4, 7])

    cut = hand_over(js, old.layout, new)
    publish([(f"{origin}.{o}.JFK", b"new") for o in ORIGINS])
    later = hand_over(js, old.layout, new)

    assert (cut.sequence, later.sequence) == (240, 252)
    rows = read(js, cut.new, True)
    assert rows == {f"{origin}.{o}.JFK": [b"new"] for o in ORIGINS}
    assert all(b"new" not in data for data in read(js, cut.old, False).values())


def test_what_is_no_layout_of_the_origin_is_refused(
    js: JetStream, raw: Callable[..., str], new_stream: Callable[..., str]
) -> None:
    """A stream that is no copy of the origin, or the layout itself, is none to hand over from."""
    origin = raw()
    plan = layouts(origin, 2, "streams")
    partition_stream(js, plan)
    other = new_stream()

    with pytest.raises(OptionError, match=f"'{other}' is no copy of '{origin}'"):
        hand_over(js, other, plan)
    with pytest.raises(OptionError, match="is the layout that is made"):
        hand_over(js, plan.layout, plan)
    new_stream(f"{other}-0")
    with pytest.raises(OptionError, match=f"how many are there of '{other}-"):
        hand_over(js, f"{other}-{{partition}}", plan)


def test_an_origin_with_numbers_is_a_layout(js: JetStream, numbered: Callable[..., str]) -> None:
    """A query that reads the numbered origin itself goes over to one stream a partition."""
    origin = numbered()
    plan = PartitionPlan(origin, 4, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")
    partition_stream(js, plan)

    cut = hand_over(js, origin, plan)

    assert cut.old == {
        "stream": origin,
        "partitions": "4",
        "partitionSubject": f"{origin}.{{partition}}.>",
        "endingOffsets": '{"0": 480, "1": 480, "2": 480, "3": 480}',
    }
    assert cut.new == {
        "stream": f"{origin}-{{partition}}",
        "partitions": "4",
        "startingOffsets": '{"0": 121, "1": 121, "2": 121, "3": 121}',
    }
