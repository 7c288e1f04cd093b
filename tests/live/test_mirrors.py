"""Real mirrors that answer direct gets in their origin's place: what of theirs is taken."""

from __future__ import annotations

import pytest

from pyspark_jetstream.client.blocks import direct
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import PermissionsError, ReadTimeoutError
from pyspark_jetstream.fetch.call import DirectCall
from pyspark_jetstream.fetch.directcalls import DirectCalls
from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.layout import Slice

from ..kits.clients import serving
from ..kits.messages import ODD
from ..kits.shared import eventually
from ..kits.streams import delete_messages, stored
from .test_strangers import hpub

MESSAGES, SUBJECTS = 300, 7


def fill(js, stream, count, text):
    js.client.requests([(f"{stream}.{i % SUBJECTS}", b"%s%d" % (text, i)) for i in range(count)])


def mirror(js, stream, name, wait=True, **config):
    """A mirror, once it has come to the stream's end."""
    js.create_stream({"name": name, "mirror": {"name": stream}} | config)
    upto = js.stream_info(stream).last_seq if wait else 0
    eventually(lambda: js.stream_info(name).last_seq >= upto)
    return name


def answering(js, stream, query=b'{"seq":150}'):
    """Who answers: names of streams, "404" for whoever has nothing."""
    subject = f"{js.prefix}.DIRECT.GET.{stream}"
    found = [direct(r.headers) for r in js.client.requests([(subject, query)] * 60)]
    return {got.stream.decode() if got else "404" for got in found}


def update(js, name, **config):
    js.call(f"STREAM.UPDATE.{name}", js.stream_info(name).config | config)


def plain(js, stream, names):
    for name in names:
        mirror(js, stream, name)


def with_a_hole(js, stream, names):
    plain(js, stream, names)
    for name in names:
        delete_messages(js, name, [140, 141, 299])


def lagging(js, stream, names):
    plain(js, stream, names)
    for name in names:
        update(js, name, sealed=True)  # it has what it has
    fill(js, stream, 100, b"new")


def filtered(js, stream, names):
    for name in names:
        of = {"name": stream, "filter_subject": f"{stream}.{149 % SUBJECTS}"}
        mirror(js, stream, name, wait=False, mirror=of)


def transforming_what_it_mirrors(js, stream, names):
    for name in names:
        transforms = [{"src": f"{stream}.*", "dest": f"{stream}.{{{{wildcard(1)}}}}.x"}]
        mirror(js, stream, name, mirror={"name": stream, "subject_transforms": transforms})


def transforming_what_it_stores(js, stream, names):
    for name in names:
        to = {"src": f"{stream}.3", "dest": f"{stream}.4"}
        mirror(js, stream, name, subject_transform=to)


def keeping_what_was_purged(js, stream, names):
    plain(js, stream, names)
    js.purge(stream, None, 100)


def older_than_the_stream(js, stream, names):
    plain(js, stream, names)
    config = js.stream_info(stream).config
    js.delete_stream(stream)
    js.create_stream(config)
    fill(js, stream, 320, b"other")


KINDS = [
    plain, with_a_hole, lagging, filtered, transforming_what_it_mirrors,
    transforming_what_it_stores, keeping_what_was_purged, older_than_the_stream,
]  # fmt: skip


@pytest.fixture
def mirrored(js, new_stream, clean):
    """A stream, and the names of its mirrors to be."""
    stream = new_stream(subjects=None)
    js.delete_stream(stream)
    config = {"name": stream, "subjects": [f"{stream}.*", "strange"], "allow_direct": True}
    js.create_stream(config)
    fill(js, stream, MESSAGES, b"old")
    return stream, [f"{stream}M1", f"{stream}M2"]


def place(message):
    return (message.sequence, message.subject, message.data) if message is not None else None


def asked(js, stream, last, names):
    """What each way of reading brings."""
    calls = DirectCalls(js.client, stream)
    filter_ = names[3]
    found: dict[str, object] = {}
    some = [*range(98, 103), *range(138, 144), 150, 200, *range(298, 303), last, last + 1]
    found["one by one"] = [place(calls.message(seq)) for seq in some]
    each = DirectCalls(js.client, stream).each([DirectCall(seq=i) for i in range(1, last + 2)])
    found["together"] = [got and (got.sequence, got.subject.decode(), got.data) for got in each]
    found["last"] = [place(calls.last(name)) for name in names]
    found["last, filter"] = place(calls.last(f"{stream}.>", appended=False))
    found["next"] = [place(calls.next(filter_, seq)) for seq in (1, 99, 130, 141, 299)]
    found["batch"] = [place(m) for m in calls.batch(10_000, sequence=1)]
    found["batch from"] = [place(m) for m in calls.batch(40, sequence=110)]
    found["batch, filter"] = [place(m) for m in calls.batch(10_000, filter_)]
    found["multi_last"] = [place(m) for m in calls.multi_last([f"{stream}.*"])]
    found["multi_last, past"] = [
        place(m) for m in calls.multi_last([f"{stream}.*"], up_to_sequence=250)
    ]
    for name, of in (("range", None), ("range, filter", filter_)):
        read = Slice(0, stream, of, 0, last, 0, False, True)
        rows = [row for batch in read_direct(js.client, read) for row in batch.to_pylist()]
        found[name] = [(row["sequence"], row["subject"], row["data"]) for row in rows]
    return found


def owed(there, last, names):
    """The same, from what the stream's leader holds."""
    rows = [(seq, m["subject"], m["data"]) for seq, m in sorted(there.items())]
    by_seq = {row[0]: row for row in rows}
    filter_ = names[3]
    mine = [row for row in rows if row[1] == filter_]
    ours = [row for row in rows if row[1] in names]
    some = [*range(98, 103), *range(138, 144), 150, 200, *range(298, 303), last, last + 1]

    def latest(upto):
        newest = {row[1]: row for row in ours if row[0] <= upto}
        return sorted(newest.values())

    by_name = {row[1]: row for row in latest(last)}
    return {
        "one by one": [by_seq.get(seq) for seq in some],
        "together": [by_seq.get(seq) for seq in range(1, last + 2)],
        "last": [by_name.get(name) for name in names],
        "last, filter": ours[-1],
        "next": [next((r for r in mine if r[0] >= seq), None) for seq in (1, 99, 130, 141, 299)],
        "batch": rows,
        "batch from": [row for row in rows if row[0] >= 110][:40],
        "batch, filter": mine,
        "multi_last": latest(last),
        "multi_last, past": latest(250),
        "range": rows,
        "range, filter": mine,
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_reads_are_exact_beside_mirrors(js, mirrored, kind):
    """Whatever the stream's mirrors have, every read brings what its leader holds."""
    stream, mirrors = mirrored
    kind(js, stream, mirrors)
    there, last = stored(js, stream), js.stream_info(stream).last_seq
    names = [f"{stream}.{i}" for i in range(SUBJECTS)]
    eventually(lambda: answering(js, stream) & {*mirrors, "404"})
    wanted = owed(there, last, names)
    for _ in range(6):
        for what, found in asked(js, stream, last, names).items():
            assert found == wanted[what], what
        lows = (1, 100, 299, last, last + 1)
        counts = js.next_messages([(stream, {"seq": low}) for low in lows])
        rest = [sorted(seq for seq in there if seq >= low) for low in lows]
        assert [each and (each.sequence, each.pending) for each in counts] == [
            (seqs[0], len(seqs) - 1) if seqs else None for seqs in rest
        ]


@pytest.fixture
def only_mirrors():
    """A server where nobody but the two mirrors of stream S answers direct gets of it."""
    with serving(streams={"S": {"subjects": ["S.*"]}}, request_timeout_s=2.0) as (_, js):
        fill(js, "S", MESSAGES, b"old")
        hpub(js, [(b"S.odd", block, b"odd") for block in ODD.values()])
        plain(js, "S", ["M1", "M2"])
        update(js, "S", allow_direct=False)
        assert answering(js, "S") == {"M1", "M2"}
        yield js


@pytest.mark.parametrize("count", [40, MESSAGES])
def test_the_leader_is_asked_where_mirrors_answer(only_mirrors, count):
    """Messages, batches and ranges are the leader's, though only empty mirrors answer."""
    js = only_mirrors
    for name in ("M1", "M2"):
        js.purge(name, None, 200)
    last = js.stream_info("S").last_seq
    calls = DirectCalls(js.client, "S")
    leader = js.messages_of([("S", {"seq": i}) for i in range(1, last + 1)])
    mine = [(m.sequence, m.subject.encode(), m.time.encode(), m.stored, m.data) for m in leader]

    found = calls.each([DirectCall(seq=i) for i in range(1, last + 1)])
    batch = [f for page in calls.pages(DirectCall(seq=1, batch=last)) for f in page]
    filtered_ = [f for page in calls.pages(DirectCall(next_by_subj="S.3", batch=99)) for f in page]
    for got in (found, batch):
        assert [(f.sequence, f.subject, f.time, f.stored, f.data) for f in got] == mine
    assert [f.sequence for f in filtered_] == [m.sequence for m in leader if m.subject == "S.3"]
    assert calls.message(10_000) is None
    assert calls.last("S.3", appended=False).data == b"old297"
    for filter_ in (None, "S.3"):
        for headers in (True, False):
            read = Slice(0, "S", filter_, 0, count, None, headers, True)
            rows = [row for batch in read_direct(js.client, read) for row in batch.to_pylist()]
            of = filter_ and filter_.encode()
            wanted = [(m[0], m[4]) for m in mine[:count] if of in (None, m[1])]
            assert [(row["sequence"], row["data"]) for row in rows] == wanted
    js.purge("S", None, None)  # which leaves the mirrors as they are
    assert not list(read_direct(js.client, Slice.whole("S", 0, count)))


def test_a_snapshot_that_only_mirrors_answer_is_an_error(only_mirrors):
    """A `multi_last` waits for the stream's own answer, until its deadline says whose it got."""
    with pytest.raises(ReadTimeoutError, match="mirrors of it"):
        DirectCalls(only_mirrors.client, "S").multi_last(["S.*"])


def test_a_user_who_may_not_ask_the_leader_gets_what_the_stream_answers(js, mirrored, monkeypatch):
    """Where STREAM.MSG.GET is forbidden, single messages are asked for until the stream answers."""
    stream, mirrors = mirrored
    transforming_what_it_mirrors(js, stream, mirrors)
    calls = DirectCalls(js.client, stream)

    def forbidden(_js, queries):
        if queries:
            raise PermissionsError("Permissions Violation for Publish")
        return []

    monkeypatch.setattr(JetStream, "messages_of", forbidden)
    for _ in range(5):
        assert calls.message(150).subject == f"{stream}.{149 % SUBJECTS}"
