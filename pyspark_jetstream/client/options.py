"""How to reach and enter the servers: the options of every connection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .. import values as value_of
from ..errors import OptionError
from ..option import Option, everywhere, exclusive, needs, typed
from ..values import Secret

__all__ = ["CONNECTION_OPTIONS", "ConnectionOptions", "connection_options", "parse_connection"]


CONNECTION_OPTIONS: Final[tuple[Option, ...]] = (
    everywhere(
        "servers", value_of.servers, "nats://127.0.0.1:4222", "Servers to try, a comma list."
    ),
    everywhere("credentialsFile", value_of.secret_file, "", "A `.creds` file; read on the driver."),
    everywhere("credentials", value_of.secret, "", "The content of a `.creds` file.", secret=True),
    everywhere(
        "nkeySeedFile", value_of.secret_file, "", "A file with an nkey seed; read on the driver."
    ),
    everywhere("user", value_of.text, "", "User name."),
    everywhere("password", value_of.secret, "", "Password of `user`.", secret=True),
    everywhere("token", value_of.secret, "", "Token.", secret=True),
    everywhere(
        "tlsCaFile",
        value_of.existing_file,
        "",
        "CA certificates (PEM), at the same path on every host.",
    ),
    everywhere("tlsCertFile", value_of.existing_file, "", "Client certificate (PEM), likewise."),
    everywhere(
        "tlsKeyFile", value_of.existing_file, "", "Key of the client certificate (PEM), likewise."
    ),
    everywhere(
        "tlsHandshakeFirst",
        value_of.boolean,
        "false",
        "TLS at once, before the server's INFO: for servers with `handshake_first`.",
    ),
    everywhere("jsDomain", value_of.domain, "", "JetStream domain."),
    everywhere(
        "jsApiPrefix", value_of.api_prefix, "$JS.API", "JetStream API prefix, instead of a domain."
    ),
    everywhere(
        "connectTimeout", value_of.duration, "5s", "How long one server may take to connect."
    ),
    everywhere(
        "requestTimeout",
        value_of.duration,
        "30s",
        "How long a request or a read may make no progress, reconnects included, before it fails.",
    ),
)
"""The options of every read and write."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach and enter the servers; hashable, so that a process can pool by it."""

    servers: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    credentials: Secret | None = None
    nkey_seed: Secret | None = None
    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_handshake_first: bool = False
    api_prefix: str = "$JS.API"
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    client_name: str = "pyspark-jetstream"

    @property
    def tls_asked_by(self) -> tuple[str, ...]:
        """The options for whose sake all servers get nothing but TLS; none: as a server likes."""
        asked = {
            "servers": any(server.startswith("tls://") for server in self.servers),
            "tlsCaFile": self.tls_ca_file,
            "tlsCertFile": self.tls_cert_file,
            "tlsHandshakeFirst": self.tls_handshake_first,
        }
        return tuple(name for name, given in asked.items() if given)

    @property
    def display_servers(self) -> tuple[str, ...]:
        """The servers without what may stand before an @."""
        return tuple(re.sub(r"//[^@/]*@", "//", server) for server in self.servers)

    def __repr__(self) -> str:
        return f"<ConnectionOptions {', '.join(self.display_servers)}>"


def connection_options(values: Mapping[str, Any]) -> ConnectionOptions:
    exclusive(values, "credentialsFile", "credentials", "nkeySeedFile", "user", "token")
    needs(values, "password", "user")
    needs(values, "user", "password")
    needs(values, "tlsCertFile", "tlsKeyFile")
    needs(values, "tlsKeyFile", "tlsCertFile")
    exclusive(values, "jsDomain", "jsApiPrefix")
    credentials = values.get("credentials") or values.get("credentialsFile")
    if credentials is not None and "NATS USER JWT" not in credentials.reveal():
        name = "credentials" if "credentials" in values else "credentialsFile"
        raise OptionError(name, "expected the text of a .creds file (with BEGIN NATS USER JWT)")
    default = ConnectionOptions()
    prefix = values.get("jsApiPrefix", default.api_prefix)
    if "jsDomain" in values:
        prefix = f"$JS.{values['jsDomain']}.API"
    return ConnectionOptions(
        servers=values.get("servers", default.servers),
        credentials=credentials,
        nkey_seed=values.get("nkeySeedFile"),
        user=values.get("user"),
        password=values.get("password"),
        token=values.get("token"),
        tls_ca_file=values.get("tlsCaFile"),
        tls_cert_file=values.get("tlsCertFile"),
        tls_key_file=values.get("tlsKeyFile"),
        tls_handshake_first=values.get("tlsHandshakeFirst", default.tls_handshake_first),
        api_prefix=prefix,
        connect_timeout_s=values.get("connectTimeout", default.connect_timeout_s),
        request_timeout_s=values.get("requestTimeout", default.request_timeout_s),
    )


def parse_connection(options: Mapping[str, str]) -> ConnectionOptions:
    """
    Connection options alone, for programs that talk to the servers without Spark.

    Raises:
        OptionError: The first mistake found; an option that is none of the connection's is one.
    """
    known = {option.name.lower() for option in CONNECTION_OPTIONS}
    for name in options:
        if name.lower() not in known:
            raise OptionError(name, "is none of the connection's options")
    return connection_options(typed(options, "sink", CONNECTION_OPTIONS))
