"""The start of reads and writes that are told a wrong address: how they fail."""

import pytest
from pyspark.sql.types import StructType

from pyspark_jetstream.client import connection as module
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark_jetstream.errors import ApiError, JetStreamError, NotConnectedError

from ..kits.checkpoints import offset, write_checkpoint
from ..kits.options import connection_of
from ..kits.programs import main
from ..kits.servers import DevServer
from .test_client import free_port

ROWS = StructType().add("subject", "string").add("data", "string")


def batch_read(options):
    source = JetStreamDataSource(options)
    source.reader(source.schema()).partitions()


def stream_read(options):
    source = JetStreamDataSource(options)
    source.streamReader(source.schema()).prepareForTriggerAvailableNow()


def batch_write(options):
    write = {name: value for name, value in options.items() if name != "stream"}
    JetStreamDataSource(write | {"exactlyOnce": "true"}).writer(ROWS, False)


STARTS = [batch_read, stream_read]


@pytest.mark.parametrize("start", STARTS)
def test_a_wrong_port(start):
    """Whatever is started fails after `connectTimeout`, with address, error and what to check."""
    wrong = f"127.0.0.1:{free_port()}"
    options = {"servers": f"nats://{wrong}", "stream": "S", "connectTimeout": "300ms",
               "requestTimeout": "1d"}  # fmt: skip
    with pytest.raises(NotConnectedError) as caught:
        start(options)

    assert f"{wrong}: [Errno 111] Connection refused; check host and port" in str(caught.value)


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


@pytest.mark.parametrize("start", STARTS)
def test_a_wrong_domain(nats_server, start):
    """Nobody answers for a missing domain: told after `connectTimeout`."""
    options = {"servers": nats_server.url, "stream": "S", "jsDomain": "none",
               "connectTimeout": "3s", "requestTimeout": "1d"}  # fmt: skip
    with pytest.raises(JetStreamError, match="nobody answers: .* jsDomain or jsApiPrefix is wrong"):
        start(options)


def test_a_domain_behind_a_link_that_comes_up(monkeypatch):
    """A read that starts waits for a domain behind a link that is not up yet."""
    link = free_port()
    config = f'leafnodes {{ listen: "127.0.0.1:{link}" }}, jetstream {{ domain: hub }}'
    remote = f'{{ url: "nats-leaf://127.0.0.1:{link}" }}'
    leaf_config = f"leafnodes {{ remotes: [{remote}], reconnect: 1 }}, jetstream {{ domain: leaf }}"
    with DevServer(config) as hub, DevServer(leaf_config) as leaf:
        client = Client(connection_of(hub.url))
        JetStream(client).create_stream({"name": "S", "subjects": ["S"], "allow_direct": True})
        client.close()
        hub.stop()
        asked = []
        requests = Client.requests

        def ask(self, each):
            asked.append(each)
            if len(asked) == 2:  # the first was not answered
                hub.restart()
            return requests(self, each)

        monkeypatch.setattr(Client, "requests", ask)
        batch_read({"servers": leaf.url, "stream": "S", "jsDomain": "hub", "connectTimeout": "30s"})

    assert len(asked) > 2


def test_a_task_of_an_executor_waits(nats_server, monkeypatch):
    """A connection that is not the start of anything waits for a server, and for JetStream."""
    monkeypatch.setattr(module, "_ATTEMPT_S", 0.1)
    options = connection_of(
        nats_server.url, api_prefix="$JS.none.API", connect_timeout_s=3.0, request_timeout_s=3.0
    )
    asked = []
    client = Client(options)
    requests = client.requests
    monkeypatch.setattr(client, "requests", lambda each: asked.append(1) or requests(each))
    with pytest.raises(ApiError, match="nobody answers"):
        JetStream(client).stream_info("S")
    client.close()

    assert len(asked) > 1


def test_a_write_waits(monkeypatch):
    """A batch write waits for `requestTimeout`: in `foreachBatch` its server may restart."""
    told = []
    shake_hands = module.shake_hands
    monkeypatch.setattr(
        module, "shake_hands", lambda each, start: told.append(start) or shake_hands(each, start)
    )
    options = {"servers": f"nats://127.0.0.1:{free_port()}", "connectTimeout": "50ms",
               "requestTimeout": "1s"}  # fmt: skip
    with pytest.raises(NotConnectedError, match="check host and port"):
        batch_write(options)

    assert len(told) > 2
    assert not any(told)
