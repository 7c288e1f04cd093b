"""Ids that are made for rows: nobody guesses them, and all who write the rows agree on them."""

import json
import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import LedgerError
from pyspark_jetstream.write.exactlyonce.ids import Ids, TaskName, of_query
from pyspark_jetstream.write.exactlyonce.ledger import STREAM

from ..kits.clients import options
from ..kits.options import connection_of, sink_of
from ..kits.proxy import Proxy
from ..kits.streams import stored
from ..kits.writing import WriteQuery, attempt

PREFIX = "$KV.SPARK_LEDGER."


@pytest.fixture
def query(nats_server, js, ledger, new_stream):
    """A query of its own."""
    return Query(js, connection_of(nats_server.url), new_stream())


class Query(WriteQuery):
    """One of which records and ids are looked at."""

    def __init__(self, js, *arguments):
        super().__init__(*arguments)
        self.js = js

    def record(self, key):
        (found,) = self.js.last_messages(STREAM, [f"{PREFIX}{self.name}.{key}"])
        return None if found is None or not found.data else json.loads(found.data)

    def stored(self):
        """Data and id of each message."""
        info = self.js.stream_info(self.target)
        found = self.js.messages(self.target, [{"seq": n + 1} for n in range(info.last_seq)])
        return [(each.data, dict(each.headers).get("Nats-Msg-Id", "")) for each in found]

    def ids(self):
        return [id for _, id in self.stored()]


# ── nobody guesses them ──────────────────────────────────────────────────────────────────────


def test_a_copied_id_does_not_remove_a_row_to_come(query):
    """Who stores ids of rows to come, as they were once made, removes no honest row."""
    guessed = [f"{of_query(query.name, 1).prefix}-0-{row}" for row in range(20)]
    query.batch([query.rows(20, 1000, msg_id=guessed)])
    counts = query.batch([query.rows(20, 0)])

    assert (counts.acked, counts.duplicates) == (20, 0)
    assert [data for data, _ in query.stored()[20:]] == [b"%d" % n for n in range(20)]


def test_ids_of_one_batch_say_nothing_of_the_next(query):
    """Nor of other queries."""
    query.run(3)
    prefixes = {id.rpartition("-")[0] for id in query.ids()}

    assert len(prefixes) == 3
    assert all(each.endswith("-0") and len(each) == 18 for each in prefixes)
    assert not prefixes & {f"{of_query(query.name, batch).prefix}-0" for batch in range(9)}


# ── all agree on them ────────────────────────────────────────────────────────────────────────


def test_tasks_that_begin_at_one_time_make_one_secret(query):
    """Of the first tasks of a query one makes it, and all go by it."""
    tasks = [threading.Thread(target=query.task, args=([query.rows(3)], task)) for task in range(8)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()

    assert len({id.split("-")[0] for id in query.ids()}) == 1
    assert len(set(query.ids())) == 24
    assert len(query.record("secret")["secret"]) == 64


def test_each_attempt_makes_the_same(query):
    """What an earlier attempt has stored is found by its ids."""
    query.task([query.rows(3)])
    counts = query.task([query.rows(6)]).written

    assert (counts.already_stored, counts.acked) == (3, 3)
    assert len({id.rpartition("-")[0] for id in query.ids()}) == 1


@pytest.mark.parametrize("how", ["the committed record", "a task's record"])
def test_what_an_operator_deletes_lets_the_secret_be(query, js, how):
    """A query whose records are purged writes with the ids that it had."""
    published = query.task([query.rows(3)])
    if how == "the committed record":
        query.commit(published)
    secret = query.record("secret")
    key = "committed" if how == "the committed record" else "0.0"
    js.publish(
        f"{PREFIX}{query.name}.{key}", b"", [("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")]
    )
    query.at = 0
    counts = query.task([query.rows(3)]).written

    assert query.record("secret") == secret
    assert (counts.acked, counts.duplicates) == (3, 3)
    assert len(query.ids()) == 3


def test_the_ids_of_a_df_write_are_its_own(nats_server, js, ledger, new_stream):
    """They begin with what was drawn for the write, and there is no secret that stays behind."""
    name, sink = new_stream(), sink_of(connection_of(nats_server.url), ledger=True)
    batch = pa.record_batch({"subject": [f"{name}.a"] * 2, "data": ["x"] * 2})
    attempt(sink, [batch], TaskName(f"w-{name}", 0, 3), Ids(f"w-{name}"))
    (last,) = js.last_messages(name, [f"{name}.a"])

    assert dict(last.headers)["Nats-Msg-Id"] == f"w-{name}-3-1"
    assert list(js.subject_counts(STREAM, [f"{PREFIX}w-{name}.secret"])[1]) == []


# ── records that are none ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "value",
    [b"{}", b'{"secret": ""}', b'{"secret": "a\\r\\nb: c"}', b'{"attempt": "a", "streams": []}'],
)
def test_a_secret_that_is_none_is_not_believed(query, js, value):
    """Nor does it get into a header."""
    expected = ("Nats-Expected-Last-Subject-Sequence", "0")
    js.publish(f"{PREFIX}{query.name}.secret", value, [expected])

    with pytest.raises(LedgerError, match="this is no record"):
        query.task()
    assert query.ids() == []


def test_a_look_of_long_ago_is_made_again(query, ledger):
    """While the first rows are made the batch may be written and committed by others."""
    name = TaskName(query.name, 0, 0)
    look = ledger.look(name)
    query.batch()

    old = replace(look, at=look.at - 10.0)
    assert ledger.begin_attempt(name, [], look=old) is None


# ── a duplicate of a made id ─────────────────────────────────────────────────────────────────


def test_ids_of_the_rows_own_may_be_there(query, js):
    """That is what they are for."""
    query.batch([query.rows(20, msg_id=[f"o-{n}" for n in range(20)])])
    counts = query.batch([query.rows(20, msg_id=[f"o-{n}" for n in range(10, 30)])])

    assert (counts.acked, counts.duplicates) == (20, 10)


@pytest.mark.parametrize("both", [True, False], ids=["publish", "ack"])
def test_a_row_that_was_sent_again_may_be_there(nats_server, js, ledger, new_stream, both):
    """What was on a line that goes silent is sent again, and may be stored."""
    with Proxy(nats_server.port) as proxy:
        target = new_stream(allow_atomic=True)
        query = WriteQuery(options(proxy.url), target, ack_timeout_s=0.3)

        def blocks():
            for block in range(20):
                if block == 10:
                    proxy.hush(both)
                yield query.rows(50, 50 * block)

        counts = query.task(blocks()).written

    assert counts.acked == 1000
    assert both or counts.duplicates > 0
    found = stored(js, target).values()
    assert sorted(int(each["data"]) for each in found) == list(range(1000))
