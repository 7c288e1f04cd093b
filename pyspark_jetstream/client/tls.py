"""
TLS with a server: the trusted certificates, and the error for each failure.

It is imported where TLS begins, for it imports ssl, which a plain connection needs not.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from ..errors import AuthenticationError, TlsError

if TYPE_CHECKING:
    from .options import ConnectionOptions
    from .peer import Peer


def context_of(options: ConnectionOptions) -> ssl.SSLContext:
    """
    Trusted CAs, the system's if no option names others, and our certificate.

    Raises:
        AuthenticationError: A file is not there, or not what it has to be.
    """
    try:
        context = ssl.create_default_context(cafile=options.tls.ca_file)
    except (ssl.SSLError, OSError) as error:
        remedy = f"'{options.tls.ca_file}' must hold the CA's certificates as PEM, on every host"
        raise AuthenticationError(options.where, f"tlsCaFile: {error}", remedy) from None
    if options.tls.cert_file:
        try:
            context.load_cert_chain(options.tls.cert_file, options.tls.key_file)
        except (ssl.SSLError, OSError) as error:
            remedy = "both must be PEM, on every host, and the key that of the certificate"
            raise AuthenticationError(
                options.where, f"tlsCertFile, tlsKeyFile: {error}", remedy
            ) from None
    return context


def start_tls(peer: Peer, context: ssl.SSLContext, host: str | None) -> None:
    """
    Goes on with the server inside TLS.

    Raises:
        TlsError: Bytes in clear came first.
        OSError: It ended the connection, or its certificate is not trusted.
    """
    if peer.leftover.startswith(b"-ERR"):
        # One that is full says so before TLS; nothing of it is believed but that it ended.
        raise ConnectionRefusedError("the server ends the connection before TLS: is it full?")
    if peer.leftover:
        raise TlsError(
            peer.name,
            f"{len(peer.leftover)} bytes came in clear after its INFO, before TLS; no NATS"
            " server sends them: find out what between this host and the server does",
        )
    peer.wrap(context, host)
