"""Servers with every kind of login, and what of each is a secret."""

from __future__ import annotations

import base64
import json
import os
import time
from dataclasses import dataclass
from types import MappingProxyType

import nkeys

KeyPair = tuple[nkeys.KeyPair, str, str]


def keys(prefix: int) -> KeyPair:
    """A new key pair, its seed and its public key."""
    seed = nkeys.encode_seed(os.urandom(32), prefix)
    pair = nkeys.from_seed(bytearray(seed))
    return pair, bytes(seed).decode(), pair.public_key.decode()


def jwt(issuer, subject, name, claims, more=MappingProxyType({})) -> str:
    """A NATS JWT (version 2), signed by the issuer."""

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    body = {"jti": name, "iat": int(time.time()), "iss": issuer[2], "name": name, "sub": subject}
    body |= {"nats": claims | {"version": 2}, **more}
    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    text = ".".join(part(json.dumps(each).encode()) for each in (header, body))
    return f"{text}.{part(issuer[0].sign(text.encode()))}"


@dataclass(frozen=True)
class OperatorMode:
    """A server of an operator's, with one user."""

    config: str
    """Of the server."""
    account: KeyPair
    user: KeyPair

    @property
    def seed(self) -> str:
        """Of the user."""
        return self.user[1]

    @property
    def jwt(self) -> str:
        """A JWT of the user, which does not expire."""
        return self.issued()

    @property
    def creds(self) -> str:
        """The user's `.creds` file."""
        return creds_of(self.jwt, self.seed)

    def issued(self, **more: int) -> str:
        """A JWT of the user, with more claims, such as `exp`: seconds since 1970."""
        claims = {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        return jwt(self.account, self.user[2], "U", claims, more)


def creds_of(user_jwt: str, seed: str) -> str:
    """The content of a `.creds` file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


STORES = ("mem_storage", "disk_storage", "streams", "consumer")
"""What JetStream's limits are of."""


def operator_mode(tiers=MappingProxyType({})) -> OperatorMode:
    """Keys of an operator, two accounts and a user, whose account has limits by tier (`R1`)."""
    operator = keys(nkeys.PREFIX_BYTE_OPERATOR)
    account, system = keys(nkeys.PREFIX_BYTE_ACCOUNT), keys(nkeys.PREFIX_BYTE_ACCOUNT)
    user = keys(nkeys.PREFIX_BYTE_USER)
    limits = dict.fromkeys(
        ["subs", "data", "payload", "imports", "exports", "conn", "leaf", *STORES], -1
    ) | {"wildcards": True}
    of = {name: dict.fromkeys(STORES, -1) | tier for name, tier in tiers.items()}
    own = dict.fromkeys(STORES, 0) | {"tiered_limits": of} if tiers else {}
    none = {name: limit for name, limit in limits.items() if "storage" not in name}
    accounts = {
        "A": (account, {"type": "account", "limits": limits | own}),
        "SYS": (system, {"type": "account", "limits": none | {"streams": 0, "consumer": 0}}),
    }
    preload = "".join(
        f"{pair[2]}: {jwt(operator, pair[2], name, claims)}\n"
        for name, (pair, claims) in accounts.items()
    )
    operator_jwt = jwt(operator, operator[2], "O", {"type": "operator"})
    config = (
        f"operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload: {{\n{preload}}}\n"
        f"system_account: {system[2]}"
    )
    return OperatorMode(config, account, user)
