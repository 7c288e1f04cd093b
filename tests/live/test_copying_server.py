"""What a real server does with the three ways to put a number into subjects."""

import time

from ..kits.partitions import stored
from ..kits.shared import eventually


def test_a_copy_with_a_duplicate_window_drops_messages(js, new_stream, publish):
    """An id stored twice beyond the origin's window is copied once where the copy has a window."""
    origin = new_stream(duplicate_window=100_000_000)
    publish([(f"{origin}.a", b"1", [("Nats-Msg-Id", "x")])])
    deadline = time.monotonic() + 60
    while js.stream_info(origin).messages < 2:
        assert time.monotonic() < deadline
        publish([(f"{origin}.a", b"2", [("Nats-Msg-Id", "x")])])
    publish([(f"{origin}.a", b"3")])
    sources = [{"name": origin}]
    with_one = new_stream(subjects=None, sources=sources, duplicate_window=120_000_000_000)
    without = new_stream(subjects=None, sources=sources)
    eventually(lambda: js.stream_info(without).messages == 3)
    eventually(lambda: [b"3"] == stored(js, with_one).get(f"{origin}.a", [b""])[-1:])

    assert stored(js, with_one)[f"{origin}.a"] == [b"1", b"3"]
    assert stored(js, without)[f"{origin}.a"] == [b"1", b"2", b"3"]


def test_a_copy_says_where_it_comes_from_and_expects_nothing(js, new_stream, publish):
    """Each hop writes Nats-Stream-Source anew, and takes Nats-Expected-… out."""
    origin = new_stream()
    publish([(f"{origin}.b", b""), (f"{origin}.a", b"", [("Nats-Expected-Stream", origin)])])
    first = new_stream(f"{origin}A", subjects=None, sources=[{"name": origin}])
    some = {"name": first, "filter_subject": f"{origin}.a"}
    second = new_stream(f"{origin}B", subjects=None, sources=[some])
    eventually(lambda: js.stream_info(second).messages == 1)

    for stream, source in ((first, f"{origin} 2"), (second, f"{first} 2")):
        found = js.last_messages(stream, [f"{origin}.a"])[0]
        assert found is not None
        assert [name for name, _ in found.headers] == ["Nats-Stream-Source"]
        assert found.headers[0][1].startswith(f"{source} ")
