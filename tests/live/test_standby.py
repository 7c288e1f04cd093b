"""Hot standby on a real server: two queries as Spark drives them, one of which holds the seats."""

from __future__ import annotations

import threading

import pytest

from ..kits.pins import QueryProcess
from ..kits.proxy import Proxy
from ..kits.reading import queries
from ..kits.shared import eventually

HOT = {"standby": "true", "consumer": "hot", "priorityTimeout": "6s", "directBelow": "0"}


query = queries(**HOT)
apart = queries(QueryProcess, **HOT)


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue", "direct"])
def test_the_second_goes_on_where_the_first_committed(
    js, new_stream, publish, query, apart, retention
):
    """The second waits, and after a kill reads on from what the first had committed."""
    mode = {"directBelow": "999999999"} if retention == "direct" else {}
    stream = new_stream(retention="limits" if mode else retention)
    first, second = apart(stream=stream, **mode), query(stream=stream, **mode)
    first.batch()  # makes the consumer
    publish([(f"{stream}.x", b"%d" % i) for i in range(1, 31)])
    eventually(first.batch)
    waiting = [second.batch(), second.batch()]
    publish([(f"{stream}.x", b"x")] * 20)
    first.batch()
    first.settle()
    shown = second.standby()
    publish([(f"{stream}.x", b"x")] * 10)
    first.batch()  # 51 to 60 are committed, but nobody has noted that
    first.kill()
    took = eventually(second.batch)
    publish([(f"{stream}.x", b"x")] * 5)
    rest = eventually(second.batch)

    assert first.sequences == list(range(1, 61))
    assert waiting == [[], []]
    assert shown["active"] is False
    assert shown["query"] == first.at["query"] and shown["host"] and shown["pid"]
    assert took == list(range(51, 61))
    assert second.at["query"] != first.at["query"]
    assert rest == list(range(61, 66))
    assert second.reader.reportLatestOffset()["standby"] == {"active": True}


def test_a_batch_after_a_take_over_has_its_beginning_in_its_end(
    js, new_stream, publish, query, apart
):
    """Planned again from the log, the first batch after a take-over has the same rows."""
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 10)
    first, second = apart(stream=stream), apart(stream=stream)
    first.batch()
    second.batch()
    publish([(f"{stream}.x", b"x")] * 10)
    first.batch()
    first.kill()
    start = second.at
    took = eventually(second.batch)
    end = second.at
    publish([(f"{stream}.x", b"x")])
    eventually(second.batch)
    second.kill()
    again = query(start=start, stream=stream)
    tasks = again.reader.partitions(start, end)
    replayed = [row["sequence"] for row in again.read(tasks)]

    assert again.reader.partitions(end, end) == []
    assert end["resumed"] == [10] and start["sequences"] == [0]
    assert took == replayed == list(range(11, 21))
    assert "resumed" not in second.at


@pytest.mark.parametrize("how", ["frozen", "unpinned"])
def test_one_that_lost_its_place_waits_again(js, new_stream, publish, query, apart, how):
    """One that was frozen or unpinned finds another in its place before it plans, and waits."""
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 10)
    first, second = apart(stream=stream), query(stream=stream)
    first.batch()
    second.batch()
    first.batch()  # settles what the one before committed
    if how == "frozen":
        first.freeze()
    else:
        eventually(lambda: js.consumer_info(stream, "hot-0").pinned_id or first.batch())
        js.unpins([(stream, "hot-0")], "spark")
        eventually(lambda: (first.batch(), second.batch()) and second.standby()["active"])
    publish([(f"{stream}.x", b"x")] * 10)
    eventually(second.batch)
    if how == "frozen":
        first.thaw()
    waits = first.batch()
    eventually(lambda: first.batch() == [] and not first.standby()["active"])
    who = first.standby()
    publish([(f"{stream}.x", b"x")] * 10)
    second.batch()
    publish([(f"{stream}.x", b"x")] * 10)
    second.stop()
    found = eventually(first.batch)

    assert second.sequences == list(range(11, 31))
    assert waits == []
    assert (who["active"], who["query"]) == (False, second.at["query"])
    assert found == list(range(21, 41))


def test_one_that_comes_back_moves_nothing(js, nats_server, new_stream, publish, query):
    """A query whose line was cut while another one took its place leaves the seats there."""
    stream = new_stream()
    with Proxy(nats_server.port) as proxy:
        first, second = QueryProcess(proxy, stream=stream, **HOT), query(stream=stream)
        first.batch()
        publish([(f"{stream}.x", b"x")] * 10)
        eventually(first.batch)
        first.batch()
        second.batch()
        first.freeze()
        publish([(f"{stream}.x", b"x")] * 10)
        eventually(second.batch)
        second.batch()
        proxy.cut(b"MSG.NEXT")
        before = len(proxy.heard)
        first.thaw()
        eventually(lambda: any(b"MSG.NEXT" in each for each in proxy.heard[before:]))
        waits = first.batch()
        first.kill()

    assert (waits, second.sequences) == ([], list(range(11, 21)))
    assert js.consumer_info(stream, "hot-0").stream_seq == 20


@pytest.mark.parametrize("gone", [False, True])
def test_an_unfinished_batch_waits_for_its_turn(js, new_stream, publish, query, apart, gone):
    """The logged batch of a dead query is planned at its turn, without what was committed."""
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 10)
    first, second = apart(stream=stream), query(stream=stream)
    first.batch()
    second.batch()
    start = first.at
    publish([(f"{stream}.x", b"x")] * 10)
    end, _ = first.ask()
    first.kill()
    eventually(second.batch)
    again = query(stream=stream)
    planned: list = []
    thread = threading.Thread(target=lambda: planned.extend(again.reader.partitions(start, end)))
    thread.start()
    publish([(f"{stream}.x", b"x")] * 5)
    second.batch()
    early = list(planned)
    if gone:
        second.settle()
        js.purge(stream, None, 21)
    second.stop()
    thread.join(120)
    again.planned.append(end)

    assert not thread.is_alive()
    assert early == planned == []
    assert second.sequences == [*range(11, 21), *range(21, 26)]
    if not gone:
        assert again.batch() == list(range(21, 26))  # the batch whose commit nobody has noted


def test_a_restart_of_the_same_query_does_not_wait(js, new_stream, publish, query, apart):
    """Killed and started again over its checkpoint it reads on at once."""
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 10)
    first, second = apart(stream=stream, priorityTimeout="1h"), query(stream=stream)
    first.batch()
    second.batch()
    first.kill()
    again = query(start=first.at, stream=stream, priorityTimeout="1h")
    publish([(f"{stream}.x", b"x")] * 10)
    found = again.batch()

    assert found == list(range(11, 21))
    assert second.batch() == []


def test_one_that_ends_in_good_order_is_not_waited_for(js, new_stream, publish, query):
    """One that stops is followed at once, exactly; what left meanwhile is no alarm."""
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 10)
    first, second = (query(stream=stream, priorityTimeout="1h") for _ in range(2))
    first.batch()
    second.batch()
    publish([(f"{stream}.x", b"x")] * 10)
    first.batch()
    first.batch()
    js.purge(stream, None, 21)
    waits = second.batch()
    publish([(f"{stream}.x", b"x")] * 5)
    first.stop()
    found = eventually(second.batch)

    assert waits == []
    assert found == list(range(21, 26))


def test_latest_begins_where_the_first_query_began(js, new_stream, publish, query, apart):
    """With `latest` the second begins with what the first has not committed."""
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 10)
    first = apart(stream=stream, startingOffsets="latest")
    first.batch()
    publish([(f"{stream}.x", b"x")] * 10)
    second = query(stream=stream, startingOffsets="latest")
    second.batch()
    second.batch()
    first.ask()
    first.kill()
    found = eventually(second.batch)
    again = [second.batch() for _ in range(3)]

    assert found == list(range(11, 21))
    assert again == [[], [], []]
