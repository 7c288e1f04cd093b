"""A mapping that changes between a crash and the restart of its batch."""

import pytest

from pyspark_jetstream.errors import LedgerError
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.write.exactlyonce.ids import TaskName
from pyspark_jetstream.write.exactlyonce.ledger import STREAM, Ledger

from ..kits.options import connection_of, sink_of
from .test_writes import rows, write


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("a", None), (None, "b")])
def test_a_changed_mapping_is_restored_for_one_batch(js, nats_server, new_stream, first, second):
    """The mapping in force finishes the batch, each row once; the next goes by the new one."""
    name = new_stream()
    query = f"q-mapped-{name}"
    ledger = Ledger(js)
    ledger.ensure()

    def mapped(to):
        rule = None if to is None else SubjectMapping.parse(f'{{"{name}.0": "{name}.{to}"}}')
        return sink_of(connection_of(nats_server.url), ledger=True, mapping=rule)

    def task(options, batch, number):
        return write(options, TaskName(query, batch, number), rows(name, 10, keys=1))

    before, after = mapped(first), mapped(second)
    assert task(before, 0, 1).acked == 10
    for number in (0, 1, 0):
        with pytest.raises(LedgerError, match="Give both as they were"):
            task(after, 0, number)
    assert task(before, 0, 0).acked == 10
    assert task(before, 0, 1).already_stored == 10
    ledger.commit(query, 0, 2, {"rows": 20})
    assert not js.subject_counts(STREAM, [f"$KV.SPARK_LEDGER.{query}.0.>"])[1]
    assert task(after, 1, 0).acked == 10
    counts = js.subject_counts(name, [f"{name}.>"])[1]
    assert counts == {f"{name}.{first or 0}": 20, f"{name}.{second or 0}": 10}
