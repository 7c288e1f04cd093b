"""Made message ids: who agrees on them, and that nobody knows them before."""

import xxhash

from pyspark_jetstream.write.exactlyonce.ids import SECRET_BYTES, of_query, secret_prefix

SECRET = bytes(range(SECRET_BYTES)).hex()


def test_all_who_know_the_secret_agree():
    """What is made of it depends on the query and the batch, and on nothing else."""
    prefixes = {secret_prefix(SECRET, query, batch) for query in "ab" for batch in range(100)}

    assert secret_prefix(SECRET, "a", 7) == "6da773018bd28bbe"
    assert len(prefixes) == 200
    assert all(len(each) == 16 for each in prefixes)


def test_another_secret_makes_others():
    """Nor do two queries with one secret share any."""
    other = bytes(SECRET_BYTES).hex()

    assert secret_prefix(SECRET, "a", 7) != secret_prefix(other, "a", 7)
    assert secret_prefix(SECRET, "a", 7) != secret_prefix(SECRET, "b", 7)


def test_without_a_ledger_they_are_made_of_the_names():
    """There is nowhere to keep a secret."""
    ids = of_query("a", 7)

    assert ids == (xxhash.xxh3_64_hexdigest(b"a/7"), True)
