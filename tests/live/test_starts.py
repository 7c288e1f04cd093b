"""The start of reads and writes that are told a wrong address: how they fail."""

import pytest
from pyspark.sql.types import StructType

from pyspark_jetstream.client import connection as module
from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark_jetstream.errors import NotConnectedError

from ..kits.checkpoints import offset, write_checkpoint
from ..kits.programs import main
from .test_client import free_port

ROWS = StructType().add("subject", "string").add("data", "string")


def batch_write(options):
    write = {name: value for name, value in options.items() if name != "stream"}
    JetStreamDataSource(write | {"exactlyOnce": "true"}).writer(ROWS, False)


PLAN = "--stream", "S", "--partitions", "2", "--partition-subject", "s.{partition}.>"
COMMANDS = {
    "inspect": ("inspect", "--stream", "S"),
    "inspect --watch": ("inspect", "--stream", "S", "--watch", "1"),
    "unpin": ("unpin", "--stream", "S", "--consumer", "q"),
    "pause": ("pause", "--stream", "S", "--consumer", "q", "--for", "1s"),
    "resume": ("resume", "--stream", "S", "--consumer", "q"),
    "partition": ("partition", *PLAN),
    "partition --dry-run": ("partition", *PLAN, "--dry-run"),
    "partition --undo": ("partition", *PLAN, "--undo"),
    "throttle producers": ("throttle", "producers"),
    "throttle pause": ("throttle", "pause", "--subject", "s.>", "--for", "1s"),
    "throttle lift": ("throttle", "lift", "--subject", "s.>"),
    "metrics": ("metrics", "--listen", "127.0.0.1:0"),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_port_of_a_command(command, tmp_path, monkeypatch, capsys):
    """Each program fails after `connectTimeout`, and names every address with its error."""
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "checkpoint", [[offset({"S": "t"}, [1])]] * 2)
    wrong = [f"127.0.0.1:{free_port()}", f"127.0.0.2:{free_port()}"]
    reach = ["--servers", ",".join(wrong), "--connect-timeout", "200ms", "--request-timeout", "1d"]

    assert main([*COMMANDS[command], *reach]) == 1
    said = capsys.readouterr().err
    for address in wrong:
        assert f"{address}: [Errno 111] Connection refused" in said
    assert "check host and port" in said


def test_a_write_waits(monkeypatch):
    """A batch write waits for `requestTimeout`: in `foreachBatch` its server may restart."""
    told = []
    shake_hands = module.shake_hands
    monkeypatch.setattr(module, "shake_hands", lambda of: told.append(of) or shake_hands(of))
    options = {"servers": f"nats://127.0.0.1:{free_port()}", "connectTimeout": "50ms",
               "requestTimeout": "1s"}  # fmt: skip
    with pytest.raises(NotConnectedError, match="check host and port"):
        batch_write(options)

    assert len(told) > 2
