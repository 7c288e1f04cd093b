"""
TLS with a server: the trusted certificates, and the error for each failure.

It is imported where TLS begins, for it imports ssl, which a plain connection needs not.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from ..errors import AuthenticationError, TlsError

if TYPE_CHECKING:
    from .options import ConnectionOptions
    from .peer import Peer

_OTHER_NAME: Final = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""

_OTHER_DATE: Final = (9, 10)
"""Its X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""

_UNKNOWN_CA: Final = (2, 7, 18, 19, 20, 21)
"""
Its X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT, CERT_SIGNATURE_FAILURE, DEPTH_ZERO_SELF_SIGNED_CERT,
SELF_SIGNED_CERT_IN_CHAIN, UNABLE_TO_GET_ISSUER_CERT_LOCALLY and UNABLE_TO_VERIFY_LEAF_SIGNATURE.
"""


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
        TlsError: Bytes in clear came first, or what answers knows no TLS.
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
    offered = not peer.silent
    try:
        peer.wrap(context, host)
    except ssl.SSLError as error:
        # Its subclasses are a certificate refused or a line cut; an alert is the peer's word.
        # Behind an INFO that offered TLS it may be a server that is full: tried again.
        strange = type(error) is ssl.SSLError and "ALERT" not in str(error.reason)
        if strange and not offered:
            raise TlsError(
                peer.name,
                f"what came back is no TLS ({error.reason}); tlsHandshakeFirst needs"
                " handshake_first: true in that server, and a proxy on the way may break TLS",
            ) from None
        raise


def distrusted(options: ConnectionOptions, error: Exception) -> AuthenticationError | None:
    """The error where a server's certificate is not trusted, with what to do about it."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    if error.verify_code in _OTHER_NAME:
        remedy = "write the server in option servers by a name or address that its certificate has"
    elif error.verify_code in _OTHER_DATE:
        remedy = "renew its certificate, or set this host's clock"
    elif error.verify_code not in _UNKNOWN_CA:
        remedy = (
            f"make its certificate or its CA's anew, so that '{error.verify_message}' is mended;"
            " Python 3.13 wants keyUsage of a CA and authorityKeyIdentifier of a certificate"
        )
    elif options.tls.ca_file is None:
        remedy = "name the CA that signed its certificate with tlsCaFile, a PEM file on every host"
    else:
        remedy = f"tlsCaFile '{options.tls.ca_file}' holds no CA that signed its certificate"
    return AuthenticationError(options.where, f"TLS: {error}", remedy)
