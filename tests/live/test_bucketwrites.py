"""Writing the keys of a Key-Value bucket on a real server, each once, and beside the command."""

import random
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from pyspark_jetstream.errors import ColumnError, OptionError, PublishRejectedError, RowError
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.write.exactlyonce.ids import TaskName
from pyspark_jetstream.write.sink import JetStreamBatchWriter

from ..kits.options import changed, connection_of
from ..kits.proxy import Proxy
from ..kits.seeds import fresh
from .test_buckets import bucket, entries, put, read
from .test_writes import FAST, KilledError, options, outlive, write

__all__ = ["bucket", "options", "put", "read"]

WINDOW = {"duplicate_window": 4 * 10**9}
OPERATIONS = [None, "put", "put", "delete", "purge"]
SEEDS = [1, *fresh(__name__)]


def changes(
    seed: int, count: int, purges: bool, keys: int = 30
) -> list[tuple[str, bytes | None, str | None]]:
    """Rows for a bucket: puts, deletes and purges of few keys."""
    rng = random.Random(seed)
    found: list[tuple[str, bytes | None, str | None]] = []
    for row in range(count):
        operation = rng.choice(OPERATIONS if purges else OPERATIONS[:-1])
        value = None if operation in ("delete", "purge") else b"v%d" % row
        found.append((f"k.{rng.randrange(keys)}", value, operation))
    return found


def batches(rows, size=100, fail_at=None) -> Iterator[pa.RecordBatch]:
    """As record batches; the task dies before the row `fail_at`."""
    for low in range(0, len(rows), size):
        if fail_at is not None and low >= fail_at:
            raise KilledError
        columns = zip(*rows[low : low + size], strict=True)
        yield pa.record_batch(
            {
                name: pa.array(column, type)
                for name, column, type in zip(
                    ("key", "value", "operation"),
                    columns,
                    (pa.string(), pa.binary(), pa.string()),
                    strict=True,
                )
            }
        )


def fold(rows) -> dict[str, bytes]:
    """What a bucket has after these rows."""
    found: dict[str, Any] = {}
    for key, value, operation in rows:
        found[key] = None if operation in ("delete", "purge") else value
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("history", "config"),
    [(1, {}), (5, {})],
    ids=["plain", "history"],
)  # fmt: skip
def test_a_half_written_bucket_is_completed_beyond_the_window(
    js, ledger, options, bucket, read, seed, history, config
):
    """A bucket is the fold of the rows, also where their ids are forgotten."""
    name = bucket(history=history, **config, **WINDOW)
    options = changed(options, bucket=name, **FAST)
    task, rows = TaskName(f"kv-{name}", 3, 1), changes(seed, 600, purges=True)
    with pytest.raises(KilledError):
        write(options, task, batches(rows, fail_at=400))
    outlive(js, f"KV_{name}")
    half = read(name, history="true")
    again = write(options, task, batches(rows))

    assert 0 < len(half)
    assert (again.rows, again.acked + again.already_stored) == (600, 600)
    assert again.already_stored > 0 and again.acked >= 200
    assert {row["key"]: row["value"] for row in read(name)} == fold(rows)


def row(**columns) -> pa.RecordBatch:
    """One row."""
    return pa.record_batch({name: pa.array([value]) for name, value in columns.items()})


def test_a_change_by_revision(js, ledger, options, bucket, put, read):
    """A row counts only if its revision is the key's; else it is an error that names it."""
    name = bucket()
    options = changed(options, bucket=name)
    task = (TaskName("cas", number, 0) for number in range(9))
    write(options, next(task), [row(key="a", value="one", revision=0)])
    with pytest.raises(PublishRejectedError, match=rf"\$KV.{name}.a.*row 0.*wrong last sequence"):
        write(options, next(task), [row(key="a", value="two", revision=0)])
    write(options, next(task), [row(key="a", value="two", revision=1)])
    put(name, ("a", b"others"))
    with pytest.raises(PublishRejectedError, match="wrong last sequence: 3"):
        write(options, next(task), [row(key="a", operation="delete", revision=2)])

    assert entries(read(name)) == [("a", b"others", 3, "PUT")]


def first_lost(name, count=1) -> Any:
    """Lets the first PubAcks, or refusals, of a bucket's stream reach nobody."""
    lost: list[bytes] = []
    answer = re.compile(rb'(MSG _INBOX[^ ]+)([^ ])( \d+ \d+\r\n\{[^\r]*"stream":"KV_%b")' % name)

    def rewrite(data: bytes) -> bytes:
        for found in answer.finditer(data):
            if len(lost) < count:
                lost.append(found[0])
                data = data[: found.start(2)] + b"#" + data[found.end(2) :]
        return data

    return rewrite, lost


def by_way_of(options, proxy, name, **more):
    """Options of a write into a bucket, through this proxy."""
    given = {"bucket": name, "connection": connection_of(proxy.url)}
    return changed(options, **given, **FAST, **more)


@pytest.mark.parametrize("exactly_once", [True, False], ids=["ledger", "without"])
def test_a_change_by_revision_whose_puback_is_lost(
    js, nats_server, ledger, options, bucket, read, exactly_once
):
    """The server refuses the row that is sent again, for what it has stored itself."""
    name = bucket()
    rewrite, lost = first_lost(name.encode())
    with Proxy(nats_server.port, rewrite=rewrite) as proxy:
        options = by_way_of(options, proxy, name, ledger=exactly_once)
        task = TaskName(f"lost-{name}", 1, 0)
        with pytest.raises(PublishRejectedError, match="sent more than once, and may be stored"):
            write(options, task, [row(key="a", value="one", revision=0)])
        if exactly_once:
            written = write(options, task, [row(key="a", value="one", revision=0)])
            assert (written.acked, written.already_stored) == (0, 1)

    assert len(lost) == 1
    assert entries(read(name, history="true")) == [("a", b"one", 1, "PUT")]


def test_a_refused_change_by_revision_whose_answer_is_lost(
    js, nats_server, ledger, options, bucket, put, read
):
    """What stands there is another's: the row fails."""
    name = bucket()
    put(name, ("a", b"others"))
    rewrite, lost = first_lost(name.encode())
    rows = pa.record_batch({"key": ["a", "b"], "value": ["x", "y"], "revision": [0, 0]})
    with Proxy(nats_server.port, rewrite=rewrite) as proxy:
        options = by_way_of(options, proxy, name)
        with pytest.raises(PublishRejectedError, match="wrong last sequence: 1"):
            write(options, TaskName(f"lost-{name}", 1, 0), [rows])

    found = entries(read(name))
    assert len(lost) == 1
    assert found[0] == ("a", b"others", 1, "PUT")


def test_a_key_that_expires(js, ledger, options, bucket, read):
    """`ttl` is the key's, where the bucket has them."""
    name = bucket(allow_msg_ttl=True)
    write(changed(options, bucket=name), TaskName("ttl", 1, 0),
          [row(key="a", value="x", ttl="1h")])  # fmt: skip
    (message,) = js.last_messages(f"KV_{name}", [f"$KV.{name}.a"])

    assert ("Nats-TTL", "1h") in message.headers
    assert [entry["key"] for entry in read(name)] == ["a"]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"key": "a b", "value": "x"}, "the key is none"),
        ({"key": ".a", "value": "x"}, "the key is none"),
        ({"key": "a..b", "value": "x"}, "the key is none"),
        ({"key": "a.*", "value": "x"}, "the key is none"),
        ({"key": "ä", "value": "x"}, "the key is none"),
        ({"key": "a\n", "value": "x"}, "the key is none"),
        ({"key": "", "value": "x"}, "the key is none"),
        ({"key": pa.scalar(None, pa.string()), "value": "x"}, "the key is none"),
        ({"key": "a", "value": pa.scalar(None, pa.string())}, "data is null"),
        ({"key": "a", "value": "x", "operation": "delete"}, "has no payload"),
        ({"key": "a", "value": "x", "operation": "put it"}, "expected put, delete or purge"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rows_that_are_no_keys(js, ledger, options, bucket, columns, says):
    """What a client of the KV API refuses is an error before it is sent."""
    name = bucket()
    with pytest.raises(RowError, match="row 0 of partition 0") as caught:
        write(changed(options, bucket=name), TaskName("none", 1, 0), [row(**columns)])

    assert says in str(caught.value)
    assert js.stream_info(f"KV_{name}").messages == 0


def schema(*names):
    """The schema of a DataFrame with these columns."""
    made = StructType()
    for name in names:
        made = made.add(name, StringType())
    return made


KEYS = schema("key", "value")


@pytest.mark.parametrize(
    ("given", "columns", "error", "says"),
    [
        ({"bucket": "NONE"}, KEYS, OptionError, "there is no bucket 'NONE'"),
        ({"bucket": "a.b"}, KEYS, OptionError, "expected a bucket name"),
        ({"bucket": "B", "subject": "x"}, KEYS, OptionError, "contradicts option 'bucket'"),
        ({"bucket": "B", "jsDomain": "hub"}, KEYS, OptionError, "leave jsDomain"),
        ({"bucket": "B", "createStream": "true", "streamConfig": '{"name": "X"}'}, KEYS,
         OptionError, "has other name than option 'bucket': KV_B"),
        ({"bucket": "B", "createStream": "true", "streamConfig": '{"subjects": ["x"]}'}, KEYS,
         OptionError, "has other subjects than option 'bucket'"),
        ({"bucket": "B", "createStream": "true", "streamConfig": '{"max_msgs_per_subject": 0}'},
         KEYS, OptionError, "max_msgs_per_subject 0; a bucket's history is 1 to 64"),
        ({"bucket": "B", "allowRollup": "true"}, KEYS, OptionError, "'allowRollup': contradicts"),
        ({"bucket": "B", "priorityHeader": "x"}, KEYS, OptionError,
         "'priorityHeader': contradicts"),
        ({"bucket": "B"}, schema("key", "value", "timestamp"), ColumnError, "'timestamp': unknown"),
        ({"bucket": "B"}, schema("key"), ColumnError, "'value': required"),
        ({"bucket": "B"}, schema("value"), ColumnError, "'key': required"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_mistakes_are_found_on_the_driver(nats_server, given, columns, error, says):
    """Before a row moves."""
    with pytest.raises(error) as caught:
        JetStreamBatchWriter.prepared(
            parse_sink({"servers": nats_server.url} | given), columns, False
        )

    assert says in str(caught.value)


def test_a_bucket_that_is_a_mirror(js, nats_server, new_stream):
    """It takes no writes, and is not made: the error names what takes them."""
    new_stream(name="KV_TAKES", subjects=["$KV.TAKES.>"])
    new_stream(name="KV_MIRROR", subjects=None, mirror={"name": "KV_TAKES"})
    given = {"servers": nats_server.url, "bucket": "MIRROR", "createStream": "true"}
    with pytest.raises(OptionError, match="is a mirror of stream 'KV_TAKES', which takes the"):
        JetStreamBatchWriter.prepared(parse_sink(given), KEYS, False)


def test_a_bucket_is_made(js, nats_server):
    """`createStream` makes it as the KV API does, and more as `streamConfig` says."""
    given = {"servers": nats_server.url, "bucket": "MADE", "createStream": "true",
             "streamConfig": '{"max_msgs_per_subject": 5, "allow_msg_ttl": true}'}  # fmt: skip
    try:
        JetStreamBatchWriter.prepared(parse_sink(given), KEYS, False)
        config = js.stream_info("KV_MADE").config
    finally:
        js.delete_stream("KV_MADE")

    assert config["subjects"] == ["$KV.MADE.>"]
    assert (config["max_msgs_per_subject"], config["discard"]) == (5, "new")
    assert [config[key] for key in ("allow_rollup_hdrs", "deny_delete", "allow_direct",
                                    "allow_msg_ttl")] == [True] * 4  # fmt: skip
