"""Options of every connection: the servers, and the login."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .. import values as value_of
from ..errors import OptionError
from ..option import Option, Values, exclusive, needs, table, typed
from ..values import Secret
from ..worker import LEVELS

_DEFAULT: Final = "nats://127.0.0.1:4222"

CONNECTION_OPTIONS: Final = table(
    "stream range sink",
    Option("servers", "servers", value_of.servers, _DEFAULT,
        "Comma list of the servers to try."),
    Option("credentialsFile", "", value_of.secret_file, "",
        "Path of a `.creds` file. It is read again at each login. A host that lacks it uses the"
        " driver's copy."),
    Option("credentials", "", value_of.secret, "", "The content of a `.creds` file.", secret=True),
    Option("nkeySeedFile", "nkey_seed", value_of.secret_file, "",
        "Path of a file with an nkey seed. It is read as `credentialsFile` is."),
    Option("user", "user", value_of.text, "", "User name."),
    Option("password", "password", value_of.secret, "", "Password of `user`.", secret=True),
    Option("token", "token", value_of.secret, "", "Token.", secret=True),
    Option("tlsCaFile", "ca_file", value_of.existing_file, "",
        "CA certificates (PEM). The file is at the same path on every host."),
    Option("tlsCertFile", "cert_file", value_of.existing_file, "",
        "Client certificate (PEM). The file is at the same path on every host."),
    Option("tlsKeyFile", "key_file", value_of.existing_file, "",
        "Key of the client certificate (PEM). The file is at the same path on every host."),
    Option("tlsHandshakeFirst", "handshake_first", value_of.boolean, "false",
        "Begin with the TLS handshake, before the server's INFO. Servers with `handshake_first`"
        " need it."),
    Option("jsDomain", "", value_of.domain, "", "JetStream domain."),
    Option("jsApiPrefix", "api_prefix", value_of.api_prefix, "$JS.API",
        "JetStream API prefix, instead of a domain."),
    Option("inboxPrefix", "inbox_prefix", value_of.inbox_prefix, "_INBOX",
        "Prefix of the subjects for replies. If each user has its own prefix, no user can read"
        " another's replies."),
    Option("connectTimeout", "connect_timeout_s", value_of.duration, "5s",
        "Longest time to connect to one server. If a read reaches no server at its start, it"
        " fails after this time."),
    Option("requestTimeout", "request_timeout_s", value_of.duration, "30s",
        "If a request or a read makes no progress for this time, it fails. Reconnects count as"
        " part of it."),
    Option("logLevel", "log_level", value_of.choice(*LEVELS), "",
        "Lowest level that the driver and the tasks log. Without this option Python's own logging"
        " decides; its default is `warning`."),
)  # fmt: skip
"""The options of every read and write."""

METRICS_OPTIONS: Final = (
    *table("stream sink",
        Option("queryName", "query_name", str.strip, "",
            "Name of the query or write in metrics, in the log and for operators. A streaming write"
            " takes the name from `writeStream.queryName`. In the log a read has only the name of"
            " this option, else its consumer's."),
        Option("metricsSubject", "metrics_subject", value_of.publish_subject, "",
            "Subject to which a write reports its counters, each 5 seconds and at its end."
            " `pyspark-jetstream metrics` reads it. A read takes the option and reports nothing:"
            " its lag is asked of the server."),
    ),
)  # fmt: skip
"""The name of a streaming read or a write, and the reports of writes."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Trust in the server's certificate, and the start of TLS."""

    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    handshake_first: bool


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Servers, login and time-outs of a connection; hashable, as the key of a process's pool."""

    servers: tuple[str, ...]
    credentials: Secret | None
    nkey_seed: Secret | None
    user: str | None
    password: Secret | None
    token: Secret | None
    tls: Tls
    api_prefix: str
    inbox_prefix: str
    connect_timeout_s: float
    request_timeout_s: float
    log_level: str | None = field(compare=False)
    """Level of the log of whoever connects; no reason for a connection of its own."""
    client_name: str = "pyspark-jetstream"
    max_publish_delay_s: float | None = None
    """Time that a publish into a stream may wait for what is read of it meanwhile."""

    @property
    def tls_asked_by(self) -> tuple[str, ...]:
        """The options for whose sake all servers get nothing but TLS; none: as a server likes."""
        asked = {
            "servers": any(server.startswith("tls://") for server in self.servers),
            "tlsCaFile": self.tls.ca_file,
            "tlsCertFile": self.tls.cert_file,
            "tlsHandshakeFirst": self.tls.handshake_first,
        }
        return tuple(name for name, given in asked.items() if given)

    @property
    def where(self) -> str:
        """The servers, for people; no user stands in their URLs (`values.servers`)."""
        return ", ".join(self.servers)

    def command(self, words: str) -> str:
        """A command line in quotes, for people to copy: it reaches these servers."""
        where = ",".join(self.servers)
        flag = "--server" if words.startswith("nats ") else "--servers"
        return f"`{words}`" if where == _DEFAULT else f"`{words} {flag} {where}`"

    def __repr__(self) -> str:
        return f"<ConnectionOptions {self.where}>"


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Name of a query, and subject of its metrics."""

    query_name: str | None
    metrics_subject: str | None


def connection_options(values: Values) -> ConnectionOptions:
    exclusive(values, "credentialsFile", "credentials", "nkeySeedFile", "user", "token")
    needs(values, "password", "user")
    needs(values, "user", "password")
    needs(values, "tlsCertFile", "tlsKeyFile")
    needs(values, "tlsKeyFile", "tlsCertFile")
    exclusive(values, "jsDomain", "jsApiPrefix")
    credentials = values["credentials"] or values["credentialsFile"]
    if credentials is not None and "BEGIN NATS USER JWT" not in credentials.reveal():
        name = "credentials" if "credentials" in values else "credentialsFile"
        raise OptionError(name, "expected the text of a .creds file (with BEGIN NATS USER JWT)")
    prefix = f"$JS.{values['jsDomain']}.API" if "jsDomain" in values else values["jsApiPrefix"]
    return values.fill(
        ConnectionOptions, credentials=credentials, api_prefix=prefix, tls=values.fill(Tls)
    )


def parse_connection(options: Mapping[str, str]) -> ConnectionOptions:
    """
    Connection options alone, for programs that talk to the servers without Spark.

    Raises:
        OptionError: The first mistake found; an option that is none of the connection's is one.
    """
    return connection_options(typed(options, "sink", CONNECTION_OPTIONS))
