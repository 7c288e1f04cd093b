"""How much a read asks for after it was cut off."""

from __future__ import annotations

from pyspark_jetstream.fetch.appetite import Appetite


def fed(appetite: Appetite) -> int:
    """How many whole answers it takes until it asks for more."""
    share, answers = appetite.share, 0
    while appetite.share == share:
        appetite.fed()
        answers += 1
    return answers


def test_it_shrinks_at_once_and_grows_with_care():
    """
    Each cut halves what is asked for, down to a floor that is never nothing; growing back takes
    twice as many whole answers after each cut, and all is forgotten once it is back.
    """
    appetite = Appetite()
    assert appetite.of(1000) == 1000
    appetite.cut()
    assert appetite.of(1000) == 500
    once = fed(appetite)
    assert appetite.of(1000) == 1000

    appetite.cut()
    appetite.cut()
    assert fed(appetite) == 2 * once
    appetite.cut()
    assert fed(appetite) == 4 * once
    for _ in range(50):
        appetite.cut()
    assert appetite.of(1) == 1 and appetite.of(1 << 20) == 1 << 12
    while appetite.share < 1:
        fed(appetite)
    appetite.cut()
    assert fed(appetite) == once
