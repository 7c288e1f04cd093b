"""Made message ids: who agrees on them, and that nobody knows them before."""

from __future__ import annotations

import json

import pytest
import xxhash

from pyspark_jetstream.write.exactlyonce.ids import SECRET_BYTES, Secrets, of_query

SECRET = bytes(range(SECRET_BYTES))


def test_all_who_know_the_secret_agree():
    """
    What is made of it depends on the query and the batch, and on nothing else, through the record.
    """
    secrets = Secrets().renewed(3, SECRET)
    again = Secrets.of(json.loads(json.dumps(secrets.content())))
    prefixes = {again.prefix(query, batch) for query in "ab" for batch in range(3, 103)}

    assert again == secrets
    assert again.prefix("a", 7) == secrets.prefix("a", 7) == "6da773018bd28bbe"
    assert len(prefixes) == 200
    assert all(len(each) == 16 for each in prefixes)


def test_another_secret_makes_others():
    """
    So who knows query, batch and all ids of other batches knows nothing of them.
    """
    one, other = (Secrets().renewed(0, secret) for secret in (SECRET, SECRET[::-1]))

    assert one.prefix("q", 7) != other.prefix("q", 7)
    assert of_query("q", 7).prefix not in (one.prefix("q", 7), other.prefix("q", 7))


def test_a_secret_holds_from_its_batch_on():
    """
    Batches of before have the ids that they had, by the secret before or an older version's way.
    """
    old = Secrets().renewed(5, SECRET)
    new = old.renewed(8, SECRET[::-1])

    assert new.prefix("q", 4) is None
    assert [new.prefix("q", n) == old.prefix("q", n) for n in range(5, 10)] == [True] * 3 + [
        False
    ] * 2
    assert new.renewed(6, SECRET).prefix("q", 5) == old.prefix("q", 5)
    assert [first for first, _ in new.renewed(6, SECRET).since] == [5, 6]
    assert of_query("q", 4).prefix == xxhash.xxh3_64_hexdigest(b"q/4")


def test_old_secrets_are_forgotten():
    """
    A query that is rewound again and again does not fill its record.
    """
    secrets = Secrets()
    for batch in range(100):
        secrets = secrets.renewed(batch, SECRET)

    assert [first for first, _ in secrets.since] == list(range(84, 100))


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"secrets": None},
        {"secrets": []},
        {"secrets": [[0]]},
        {"secrets": [["0", SECRET.hex()]]},
        {"secrets": [[True, SECRET.hex()]]},
        {"secrets": [[-1, SECRET.hex()]]},
        {"secrets": [[0, SECRET.hex()[1:]]]},
        {"secrets": [[0, SECRET.hex().upper()]]},
        {"secrets": [[0, 7]]},
        {"secrets": {"0": SECRET.hex()}},
    ],
)
def test_a_record_that_is_none(content):
    """
    Only what a write stores is believed.
    """
    with pytest.raises(ValueError, match="no (secret|batch)"):
        Secrets.of(content)
