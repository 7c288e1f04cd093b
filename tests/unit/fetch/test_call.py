"""The requests of direct get: every call of the document, and those the server would refuse."""

import json

import pytest

from pyspark_jetstream.fetch.call import DirectCall

TIME = "2024-11-05T00:50:25.248431300Z"


@pytest.mark.parametrize(
    ("call", "query"),
    [
        (DirectCall(seq=5), {"seq": 5}),
        (DirectCall(last_by_subj="a.b"), {"last_by_subj": "a.b"}),
        (DirectCall(next_by_subj="a.>"), {"next_by_subj": "a.>"}),
        (DirectCall(start_time=TIME), {"start_time": TIME}),
        (DirectCall(seq=5, next_by_subj="a"), {"seq": 5, "next_by_subj": "a"}),
        (DirectCall(start_time=TIME, next_by_subj="a"), {"start_time": TIME, "next_by_subj": "a"}),
        (
            DirectCall(seq=4, batch=3, next_by_subj="a.>"),
            {"seq": 4, "batch": 3, "next_by_subj": "a.>"},
        ),
        (DirectCall(batch=3, next_by_subj="a.>"), {"seq": 1, "batch": 3, "next_by_subj": "a.>"}),
        (DirectCall(batch=3, start_time=TIME), {"batch": 3, "start_time": TIME}),
        (
            DirectCall(seq=4, batch=3, next_by_subj="a.>", max_bytes=2002),
            {"seq": 4, "batch": 3, "next_by_subj": "a.>", "max_bytes": 2002},
        ),
        (DirectCall(multi_last=("a", "b.>")), {"multi_last": ["a", "b.>"]}),
        (DirectCall(multi_last=("a",), up_to_seq=23), {"multi_last": ["a"], "up_to_seq": 23}),
        (DirectCall(multi_last=("a",), up_to_time=TIME), {"multi_last": ["a"], "up_to_time": TIME}),
        (
            DirectCall(multi_last=("a",), up_to_seq=23, batch=2),
            {"multi_last": ["a"], "up_to_seq": 23, "batch": 2},
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_requests(call, query):
    """Each call of the document becomes the request it gives."""
    subject, payload = call.request("$JS.API", "S")

    assert subject == "$JS.API.DIRECT.GET.S"
    assert json.loads(payload) == query


def test_the_subject_appended_form():
    """The subject to read may stand in the request's subject; there is no payload then."""
    call = DirectCall(last_by_subj="$KV.mykv1.mykey1", appended=True)

    assert call.request("$JS.API", "KV_mykv1") == (
        "$JS.API.DIRECT.GET.KV_mykv1.$KV.mykv1.mykey1",
        b"",
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"batch": 5},
        {"max_bytes": 5, "seq": 1},
        {"seq": 1, "last_by_subj": "a"},
        {"seq": 1, "start_time": TIME},
        {"start_time": TIME, "last_by_subj": "a"},
        {"last_by_subj": "a", "next_by_subj": "a"},
        {"last_by_subj": "a", "batch": 2},
        {"last_by_subj": "a", "multi_last": ("a",)},
        {"next_by_subj": "a", "multi_last": ("a",)},
        {"multi_last": ("a",), "start_time": TIME},
        {"multi_last": ("a",), "up_to_seq": 1, "up_to_time": TIME},
        {"seq": 1, "up_to_seq": 5},
        {"seq": 1, "appended": True},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_what_the_server_would_refuse(fields):
    """Fields that the server answers with 408, or ignores, are an error before."""
    with pytest.raises(ValueError, match="go with|contradict|names no|needs|append"):
        DirectCall(**fields)


def test_pages():
    """A long batch goes on from behind the last message."""
    last = DirectCall(start_time=TIME, batch=25_000, next_by_subj="a").behind(70, None)

    assert (last.seq, last.start_time, last.batch) == (71, None, 25_000)


def test_pages_of_one_point():
    """A multi-subject get goes on as of the sequence that its first answer was as of."""
    call = DirectCall(multi_last=("a", "b"), up_to_time=TIME).behind(7, 23)

    assert call.query() == {"multi_last": ["a", "b"], "seq": 8, "up_to_seq": 23}
