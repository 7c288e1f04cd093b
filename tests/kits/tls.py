"""Certificates of our own, and servers that have them."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .servers import DevServer


def strict(patch: pytest.MonkeyPatch) -> None:
    """From now on certificates are looked at as Python 3.13 does."""
    made = ssl.create_default_context

    def context(*words: Any, **named: Any) -> ssl.SSLContext:
        context = made(*words, **named)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    patch.setattr(ssl, "create_default_context", context)


def make_certificates(home: Path, signer_named: str = "keyid") -> None:
    """A CA, certificates of a server and a client signed by it, and another CA."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=home, check=True, capture_output=True, timeout=60)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for ca in ("ca", "other"):
        files = ["-keyout", f"{ca}.key", "-out", f"{ca}.pem"]
        files += ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        openssl("req", "-x509", *key, *files, "-subj", f"/CN={ca}", "-days", "2")
    for name, alternative in (("server", "IP:127.0.0.1"), ("client", "DNS:client")):
        told = f"subjectAltName={alternative}\nauthorityKeyIdentifier={signer_named}\n"
        (home / f"{name}.ext").write_text(told)
        files = ["-keyout", f"{name}.key", "-out", f"{name}.csr"]
        openssl("req", *key, *files, "-subj", f"/CN={name}")
        signer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
        files = ["-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", f"{name}.ext"]
        openssl("x509", "-req", *signer, *files)


def tls_server(home: Path, tls: str = "", config: str = "") -> DevServer:
    """A server with our certificate; `tls` is more of that block, `config` stands outside."""
    return DevServer(
        f"""{config}
        tls {{
          cert_file: "{home}/server.pem"
          key_file: "{home}/server.key"
          ca_file: "{home}/ca.pem"
          {tls}
        }}"""
    )
