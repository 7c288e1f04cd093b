"""The seat on a real server: what it is, who holds it, what moves it, what it settles."""

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import OptionError, PermissionsError, QueryFencedError, ReadError
from pyspark_jetstream.readstream import rangedriver
from pyspark_jetstream.values import Secret

from ..kits import clients, streams
from ..kits.clients import serving
from ..kits.options import connection_of
from ..kits.pins import QueryProcess, apart, pull
from ..kits.proxy import Proxy
from ..kits.reading import Query, query
from ..kits.servers import DevCluster
from ..kits.shared import RETENTIONS, eventually
from ..kits.streams import answer, delete_consumers

__all__ = ["apart", "query"]
SOON = {"consumer": "c", "priorityTimeout": "6s"}
HOT = SOON | {"standby": "true"}

# ── 1: what it is ────────────────────────────────────────────────────────────────────────────

ACKED = {"max_ack_pending": -1, "ack_wait": 365 * 86_400 * 10**9, "mem_storage": None}
KINDS = {
    "limits": {"ack_policy": "none", "mem_storage": True, "inactive_threshold": 86_400 * 10**9},
    "interest": {"ack_policy": "all", "inactive_threshold": None, **ACKED},
    "workqueue": {"ack_policy": "explicit", "inactive_threshold": None, **ACKED},
}


@pytest.mark.parametrize("retention", RETENTIONS)
def test_its_kind_is_by_the_retention(js, new_stream, query, retention):
    """Headers only, for one pinned client; in a file where the stream keeps messages for it."""
    stream = new_stream(retention=retention)
    query(stream=stream, **SOON).batch()
    config = js.consumer_info(stream, "c-0").config
    wanted = KINDS[retention] | {
        "headers_only": True, "priority_policy": "pinned_client", "priority_groups": ["spark"],
        "priority_timeout": 6 * 10**9, "num_replicas": 1,
    }  # fmt: skip

    assert {key: config.get(key) for key in wanted} == wanted


THERE = {
    "durable_name": "c-0", "ack_policy": "none", "deliver_policy": "all", "headers_only": True,
    "priority_policy": "pinned_client", "priority_groups": ["spark"],
}  # fmt: skip
NO_GROUP = {"priority_policy": None, "priority_groups": None}
OTHERS = {
    "push": (NO_GROUP | {"deliver_subject": "to.me"}, "deliver_subject 'to.me', a push consumer"),
    "no group": (NO_GROUP, "no priority_policy where its query needs priority_policy 'pinned_"),
    "another group": ({"priority_groups": ["jobs"]}, "priority_groups ['jobs'] where"),
    "another policy": ({"priority_policy": "overflow"}, "priority_policy 'overflow' where"),
    "another ack policy": ({"ack_policy": "explicit"}, "ack_policy 'explicit' where"),
    "another filter": ({"filter_subject": "{stream}.a"}, "filter_subject '{stream}.a' where"),
    "filters": ({"filter_subjects": ["{stream}.a", "{stream}.b"]}, "filter_subjects ["),
    "with payloads": ({"headers_only": False}, "headers_only False where"),
}


@pytest.mark.parametrize("changes,error", OTHERS.values(), ids=OTHERS)
def test_a_consumer_of_another_kind_is_refused(js, new_stream, query, changes, error):
    """A consumer that cannot be read as this query reads is one error, and is left as it was."""
    stream = new_stream()
    filled = json.loads(json.dumps(changes).replace("{stream}", stream))
    config = {key: value for key, value in (THERE | filled).items() if value is not None}
    js.create_consumer(stream, config)
    before = js.consumer_info(stream, "c-0").config
    with pytest.raises(OptionError) as caught:
        query(stream=stream, consumer="c").batch()

    text = str(caught.value)
    assert error.replace("{stream}", stream) in text
    assert "option 'consumer'" in text and "choose another prefix" in text
    assert js.consumer_info(stream, "c-0").config == before


def test_what_a_consumer_may_have_of_its_own(js, new_stream, publish, query):
    """What does not matter to the rows, such as a description, stays as somebody made it."""
    stream = new_stream()
    publish([(f"{stream}.a", b"x")])
    own = {"description": "of ours", "metadata": {"team": "air"}, "max_batch": 1}
    js.create_consumer(stream, THERE | own | {"priority_timeout": 50 * 10**9})
    one = query(stream=stream, **SOON)
    one.batch()
    after = js.consumer_info(stream, "c-0").config

    assert one.sequences == [1]
    assert (after["description"], after["max_batch"]) == ("of ours", 1)
    assert after["priority_timeout"] == 6 * 10**9  # by this a query knows how long it has
    assert after["metadata"]["team"] == "air"
    assert after["metadata"]["pyspark-jetstream.query"] == one.at["query"]


# ── 2, 3, 8, 10: whose it is ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_consumer_of_another_query(js, new_stream, publish, query, caplog, retention):
    """A second query is refused by name; a seat left on `limits` becomes its own."""
    of = {"stream": new_stream(retention=retention), **SOON}
    one = query(**of, queryName="first")
    one.batch()
    publish([(f"{of['stream']}.a", b"x")] * 3)
    named = rf"'c-0' is that of query {one.at['query']} 'first'"
    with pytest.raises(OptionError, match=f"{named} .*, which reads"):
        query(**of).batch()
    read = eventually(one.batch)
    one.stop()
    two = query(**of)
    if retention == "limits":
        two.batch()
        assert two.sequences == [1, 2, 3]
        assert "in place of query" in caplog.text and "'first'" in caplog.text
    else:
        with pytest.raises(OptionError, match=f"{named} .*, which has another checkpoint"):
            two.batch()

    assert read == [1, 2, 3]


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_second_run_of_a_query_ends_the_first(new_stream, publish, query, apart, retention):
    """The new run over a checkpoint reads at once; the old one is fenced before its next batch."""
    of = {"stream": new_stream(retention=retention), **SOON}
    first = apart(**of)
    first.batch()
    publish([(f"{of['stream']}.a", b"x")] * 10)
    _, tasks = eventually(lambda: (planned := first.ask())[1] and planned)
    again = query(start=(start := first.at), **of)
    read = eventually(again.batch)
    again.batch()
    late = [row["sequence"] for row in again.read(tasks)]
    with pytest.raises(QueryFencedError, match=f"query {start['query']} .* took the place of"):
        eventually(lambda: first.batch() and None)

    assert read == list(range(1, 11))
    assert late == (read if retention == "limits" else [])


@pytest.mark.parametrize("options", [SOON, HOT], ids=["alone", "standby"])
def test_of_two_at_once_one_reads(new_stream, apart, options):
    """The other is refused by its name, or waits where both stand by."""
    stream = new_stream()
    pair = [apart(stream=stream, **options) for _ in range(2)]

    def outcome(one):
        try:
            one.batch()
        except OptionError as error:
            return str(error)
        return one.at["query"]

    with ThreadPoolExecutor(2) as pool:
        first, second = sorted(pool.map(outcome, pair), key=len)
    if options is SOON:
        assert f"is that of query {first}" in second
        return
    eventually(
        lambda: [one.batch() for one in pair] and any(one.standby()["active"] for one in pair)
    )
    assert sum(one.standby()["active"] for one in pair) == 1


def test_a_seat_that_was_made_meanwhile_is_not_taken(new_stream, query, monkeypatch):
    """A query that saw no seat, and then finds that of another one, is refused."""
    stream, looked = new_stream(), JetStream.consumer_infos
    first, second = (query(stream=stream, **SOON) for _ in range(2))

    def looks_before_it_is_made(js, names):
        found = looked(js, names)
        monkeypatch.setattr(JetStream, "consumer_infos", looked)
        first.batch()
        return found

    monkeypatch.setattr(JetStream, "consumer_infos", looks_before_it_is_made)
    with pytest.raises(OptionError, match="'c-0' is that of query ") as caught:
        second.batch()

    assert f"query {first.at['query']} " in str(caught.value)


def test_a_pin_that_is_dealt_meanwhile_is_not_lost(new_stream, publish, query, monkeypatch):
    """An answer that is older than the pin says nothing of it."""
    stream, looked = new_stream(), JetStream.consumer_infos
    publish([(f"{stream}.a", b"x")] * 3)
    one = query(stream=stream, **HOT)
    answers = []

    def comes_late(js, names):
        answers.append(looked(js, names))
        pins = one.reader.driver._seats.pins
        if not pins._seats or pins.id:
            return answers[-1]
        eventually(lambda: pins.id)
        return answers[-2]

    monkeypatch.setattr(JetStream, "consumer_infos", comes_late)

    assert one.batch() == [1, 2, 3]


def test_a_client_that_pulls_by_hand_is_unpinned(nats_server, js, new_stream, publish, query):
    """Nothing is planned while another client is pinned, and it is not for long."""
    stream = new_stream(retention="workqueue")
    one = query(stream=stream, **SOON)
    one.batch()
    hears = js.client.connection
    sid = hears.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c-0")
    hears.ping(60.0)
    with closing(Client(connection_of(nats_server.url))) as stranger:
        inbox = pull(stranger.connection, stream, "c-0")
        while answer(hears, sid).reply.decode() != inbox:
            pass
        answer(hears, sid)  # the driver pulls anew, behind it
        publish([(f"{stream}.a", b"x")] * 3)
        rows = eventually(one.batch)

    assert rows == [1, 2, 3]


# ── 4, 7, 11: where it stands ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("retention", RETENTIONS)
def test_what_the_driver_is_dealt_moves_nothing(js, new_stream, publish, query, apart, retention):
    """One that is killed when it has been pinned, with a message, has read nothing."""
    of = {"stream": new_stream(retention=retention), **SOON}
    first = apart(**of)
    first.batch()
    publish([(f"{of['stream']}.a", b"x")] * 3)
    eventually(lambda: js.consumer_info(of["stream"], "c-0").pinned_id)
    first.kill()

    assert eventually(query(start=first.at, **of).batch) == [1, 2, 3]


def test_a_standby_that_finds_no_seat_does_not_guess(js, new_stream, publish, query):
    """Only the query that has read knows where to go on, and makes them anew."""
    of = {"stream": new_stream(), **HOT}
    publish([(f"{of['stream']}.a", b"x")] * 3)
    first, second = query(**of), query(**of)
    eventually(first.batch)
    second.batch()
    first.settle()
    first.stop()
    delete_consumers(js, [(of["stream"], "c-0")])
    restarted = query(start=second.at, **of)
    with pytest.raises(OptionError, match="option 'standby': .* availableNow"):
        restarted.reader.prepareForTriggerAvailableNow()
    waits = [second.batch(), restarted.batch()]
    publish([(f"{of['stream']}.a", b"x")] * 3)

    assert waits == [[], []]
    assert eventually(query(start=first.at, **of).batch) == [4, 5, 6]


def test_streams_are_looked_at_whatever_is_heard(js, new_stream, publish, query):
    """A consumer that somebody has moved away brings no word, and is no reason to wait."""
    stream = new_stream()
    one = query(stream=stream, **SOON)
    one.batch()
    eventually(lambda: js.consumer_info(stream, "c-0").num_waiting)
    js.resets([(stream, "c-0", 1000)])
    publish([(f"{stream}.a", b"x")] * 3)

    assert eventually(one.batch) == [1, 2, 3]


@pytest.mark.parametrize("layout", ["one", "filtered"])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_consumers_stand_where_the_query_is(query, js, new_stream, publish, retention, layout):
    """What follows a batch settles it: no lag, and nothing kept, also if nothing follows."""
    name = new_stream(retention=retention)
    options = {"stream": name, "consumer": "c"}
    if layout == "filtered":
        options |= {"partitions": 2, "partitionSubject": f"{name}.{{partition}}.>"}
    one = query(**options)
    one.batch()
    names = [(name, f"c-{i}") for i in range(2 if layout == "filtered" else 1)]
    for count in (3, 20):
        publish([(f"{name}.{i % 2}.x", b"x") for i in range(count)])
        eventually(one.batch)
        one.batch()
        eventually(lambda: all(i and i.num_pending == 0 for i in js.consumer_infos(names)))
    left = js.stream_info(name).messages

    assert one.sequences == list(range(1, 24))
    assert left == (23 if retention == "limits" else 0)


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_message_wakes_an_idle_driver(query, new_stream, publish, monkeypatch, retention):
    """Nothing else does here: it looks at its streams once a minute."""
    name = new_stream(retention=retention)
    one = query(stream=name)
    one.batch()
    pins = one.reader.driver._seats.pins
    for _ in range(3):
        eventually(lambda: not one.batch() and pins.hears)
        with monkeypatch.context() as patched:
            patched.setattr(rangedriver, "_LOOK_EVERY_S", 60.0)
            patched.setattr(rangedriver, "_LOOK_SELDOM_S", 60.0)
            publish([(f"{name}.x", b"x")])
            assert eventually(one.batch, 30.0)

    assert one.sequences == [1, 2, 3]


# ── 5, 6: what is settled ────────────────────────────────────────────────────────────────────


def test_one_whose_place_was_taken_settles_nothing(js, new_stream, publish, query, apart):
    """What Spark still tells a query that lost its place settles nothing."""
    of = {"stream": new_stream(retention="workqueue"), **HOT}
    first, second = apart(**of), query(**of)
    first.batch()
    second.batch()
    publish([(f"{of['stream']}.x", b"x")] * 10)
    eventually(first.batch)
    first.freeze()
    _, tasks = eventually(lambda: (planned := second.ask())[1] and planned, 120)
    first.thaw()
    first.settle()
    left = js.stream_info(of["stream"]).messages
    read = [row["sequence"] for row in second.read(tasks)]

    assert left == 10
    assert first.sequences == read == list(range(1, 11))


def test_a_proof_waits_for_a_server_that_is_away():
    """For longer than a third of priorityTimeout; then what was committed is settled."""
    with serving(streams={"S": {"retention": "workqueue"}}) as (server, js):
        one = Query(server, stream="S", **SOON)
        one.batch()
        js.publish("S.a", b"x", [])
        eventually(one.batch)
        one.reader.driver._holder._proved = -math.inf  # as after a long batch
        server.pause()
        threading.Timer(5.0, server.resume).start()
        one.settle()
        left = js.stream_info("S").messages
        one.stop()

    assert left == 0


FORBIDDING = """
accounts { A: { jetstream: enabled, users: [
  { user: admin, password: x }
  { user: reader, password: x, permissions: { publish: { deny: "$JS.API.CONSUMER.%s.>" } } } ] } }
"""


@pytest.mark.parametrize("denied", ["RESET", "MSG.NEXT"])
def test_what_the_user_may_not_is_asked_once(denied):
    """A `limits` stream is read all the same; where the seat counts, that is the error."""
    login = {"user": "reader", "password": "x"}
    streams = {"S": {}, "Q": {"retention": "workqueue"}}
    admin = serving(FORBIDDING % denied, streams, user="admin", password=Secret("x"))
    with admin as (server, js), Proxy(server.port) as proxy:
        one = Query(SimpleNamespace(url=proxy.url), stream="S", **SOON, **login)
        one.batch()
        for _ in range(3):
            eventually(lambda: one.reader.driver._seats.pins.denied)
            js.publish("S.a", b"x", [])
            eventually(one.batch)
        one.stop()
        other = Query(server, stream="Q", **SOON, **login)
        with pytest.raises(PermissionsError):
            eventually(lambda: other.batch() and None)
        other.stop()

    asked = sum(heard.count(f".CONSUMER.{denied}.".encode()) for heard in proxy.heard)
    assert one.sequences == [1, 2, 3]
    assert asked <= 2  # one more may be on its way


def test_a_work_queue_loses_the_query_s_own_alone(js, new_stream, publish, query):
    """Only what was committed, of the seat's filter, leaves a work queue that is the one read."""
    stream = new_stream(retention="workqueue")
    one = query(stream=stream, subject=f"{stream}.a", consumer="c")
    one.batch()
    publish([(f"{stream}.{'ab'[i % 2]}", b"x") for i in range(10)])
    eventually(one.batch)
    one.batch()
    assert js.stream_info(stream).messages == 5

    other = {"durable_name": "b", "filter_subject": f"{stream}.b", "ack_policy": "explicit"}
    js.create_consumer(stream, other)
    with pytest.raises(ReadError, match="refuses the consumer 'all-0'"):
        query(stream=stream, consumer="all").batch()
    delete_consumers(js, [(stream, "b")])
    publish([(f"{stream}.a", b"x")] * 3)
    eventually(one.batch)
    config = js.stream_info(stream).config
    js.delete_stream(stream)
    js.create_stream(config)
    publish([(f"{stream}.a", b"x")] * 20)
    one.settle()
    assert js.stream_info(stream).messages == 20

    with pytest.raises(OptionError, match="deny_purge"):
        query(stream=new_stream(retention="workqueue", deny_purge=True)).batch()
    with pytest.raises(OptionError, match="option 'startingOffsets'.*work queue"):
        query(stream=stream, startingOffsets="latest").batch()


# ── servers that die ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("of", [SOON, HOT])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_server_that_is_killed_and_comes_back(retention, of):
    """A seat in memory is made anew, and one in a file is still there."""
    with serving(streams={"S": {"retention": retention}}) as (server, js):
        one, at = Query(server, stream="S", **of), [("S", "c-0")]
        one.batch()
        for _ in range(3):
            js.publish("S.a", b"x", [])
            eventually(one.batch)
            one.batch()
            one.reader.driver._holder._proved = -math.inf  # as after a long batch
            server.kill()
            server.restart()
        js.publish("S.a", b"x", [])
        eventually(one.batch)
        eventually(
            lambda: (
                one.batch() == [] and [i and i.num_pending for i in js.consumer_infos(at)] == [0]
            )
        )
        one.stop()

    assert one.sequences == [1, 2, 3, 4]


def test_three_nodes():
    """Through a leader's step-down and death who holds the seat goes on, who waits waits."""
    with DevCluster(3) as cluster:
        urls = cluster.urls.split(",")
        js = JetStream(Client(clients.options(*urls, request_timeout_s=60.0)))
        config = {"name": "S", "subjects": ["S.>"], "num_replicas": 3, "allow_direct": True}
        streams.create(js, config)
        at = SimpleNamespace(url=cluster.urls)
        first, second = QueryProcess(at, stream="S", **HOT), Query(at, stream="S", **HOT)
        first.batch()
        second.batch()
        seats = []
        for how in ("nothing", "steps down", "dies"):
            (listed,) = eventually(lambda: js.consumer_list("S")[0])
            seats.append(len(listed["cluster"].get("replicas", ())) + 1)
            if how == "steps down":
                js.call("CONSUMER.LEADER.STEPDOWN.S.c-0")
            elif how == "dies":
                next(s for s in cluster.servers if s.name == listed["cluster"]["leader"]).kill()
            streams.store(js.client, [("S.a", b"x")] * 10)
            eventually(first.batch, 120.0)
            assert second.batch() == []
        first.batch()
        first.kill()
        streams.store(js.client, [("S.a", b"x")] * 10)
        rest = eventually(second.batch, 120.0)
        second.stop()
        js.client.close()

    assert seats == [3, 3, 3]
    assert first.sequences == list(range(1, 31))
    assert rest == list(range(31, 41))
