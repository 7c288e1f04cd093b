"""Looks of an attempt at its note."""

from types import SimpleNamespace
from unittest.mock import Mock

from pyspark_jetstream.errors import NotConnectedError
from pyspark_jetstream.write import watch as module

from ...kits.options import connection_of, sink_of


def test_a_turn_takes_a_moment_while_no_look_is_under_way(monkeypatch):
    """Rows wait for one, and the last has failed: asked without a wait, they would take a core."""
    away, record = NotConnectedError("nats://model", "away"), Mock(again=False)
    time = SimpleNamespace(monotonic=Mock(return_value=0.0), sleep=Mock())
    monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(module.Ledger, "check", Mock(side_effect=away))
    of_task = record, None, None, False, lambda: 4.0
    watch = module.Watch(sink_of(connection_of("nats://model")), *of_task)
    time.monotonic.return_value = 2.0

    assert not any(watch.may_go() for _ in range(20))
    time.sleep.assert_called()
