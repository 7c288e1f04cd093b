"""A lane against a server and a network that do whatever they like."""

from __future__ import annotations

import random

import pytest

from pyspark_jetstream.publish.lanes.lane import Lane

from ...kits.lanes import (
    MANY,
    PREFIX,
    FixedLimit,
    ModelServer,
    Reply,
    Sent,
    error,
    hear,
    messages,
    parse,
    terms,
)


@pytest.mark.parametrize("seed", range(60))
def test_random_walk(seed):
    """
    Whatever the server and the network do, every row is stored: once with ids, in order where none
    was refused between others; limits hold, and the count is right.
    """
    rng = random.Random(seed)
    ids = seed % 4 > 0
    refuses = seed % 3 == 0
    maximum, max_bytes = rng.choice([(1, MANY), (7, 3000), (64, MANY), (4096, 30_000)])
    one = Lane(PREFIX, *terms(FixedLimit(maximum), max_bytes, ack=2.0, publish=1e9))
    server = ModelServer()
    total = rng.randrange(1, 1500)
    known = {row for row in range(total) if ids and seed % 5 == 0 and rng.random() < 0.02}
    server.ids |= {f"t-{row}" for row in known}
    offered, now = 0, 0.0
    up: list[Sent] = []  # on the way to the server
    down: list[Reply] = []  # on the way back
    while offered < total or one.busy:
        if one.wants_rows and offered < total:
            rows = range(offered, min(offered + rng.choice([1, 2, 30, 700]), total))
            data = [b"%d" % row + b"." * rng.randrange(60) for row in rows]
            subjects = rng.choices("abc", k=len(rows))
            one.offer(messages(subjects, data, first=offered, ids=ids))
            offered = rows.stop
        frames = one.frames_to_send(now, rng.choice([1, 300, MANY]))
        if frames is not None:
            up += parse(bytes(frames))
            assert one.in_flight <= maximum
            assert one.bytes_in_flight <= max_bytes or one.in_flight == 1
        event = rng.random()
        if event < 0.02:
            del up[rng.randrange(len(up) + 1) :]
            for each in up:
                server.publish(each)
            up, down = [], []
            one.on_disconnect()
        elif event < 0.025:
            down = []  # a leader that has gone took its replies along
        for _ in range(rng.randrange(30)):
            if not up:
                break
            each = up.pop(0)
            if refuses and rng.random() < 0.003:
                code, err_code = rng.choice([(429, 10167), (503, 0), (0, 10023)])
                down += server.refused(each, code, err_code)
                continue
            if refuses and rng.random() < 0.003:
                server.refuse[each.data] = error(503, 10077)
            down += server.publish(each)
            server.refuse.clear()
        heard = down[: rng.randrange(20)]
        del down[: len(heard)]
        hear(one, heard, now)
        now += rng.choice([0.0, 0.001, 0.3, 0.3, 12.0 if rng.random() < 0.02 else 0.0])
        one.expire(now)

    stored = [int(each.split(b".")[0]) for each in server.data]
    assert set(stored) == set(range(total)) - known, f"seed {seed}"
    assert one.tally.acked == total, f"seed {seed}"
    assert one.bytes_in_flight == 0
    if ids:
        assert len(stored) == total - len(known), f"seed {seed}"
        if not refuses:
            assert stored == sorted(stored), f"seed {seed}"
