"""
A Key-Value bucket for records that more than one process changes.

Rule 1: a record is changed by compare-and-set only (`Nats-Expected-Last-Subject-Sequence`), so of
two that change it one knows that it came too late.
Rule 2: reads ask the stream's leader (STREAM.MSG.GET), never a replica.
Rule 3: a record that was not stored by rule 1 is nobody's of ours, and an error. It proves nothing
against who imitates us; that is for permissions to prevent.

ADR-8. What stands in the records is others' business (`ledger`).
"""

from __future__ import annotations

from typing import Any, Final

from ..errors import ApiError, RecordError, StreamNotFoundError
from ..sanitize import get_logger
from .info import StoredMessage
from .jetstream import DEFAULT_PREFIX, STREAM_NAME_EXISTS, JetStream

logger = get_logger(__name__)

ROOM: Final = 1024
"""Bytes for the headers of a record."""

BUCKET: Final = {
    "max_msgs_per_subject": 1,
    "discard": "new",
    "allow_rollup_hdrs": True,
    "deny_delete": True,
}
"""Settings of every bucket's stream, where nobody wants others (ADR-8)."""

_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_WRONG_SEQUENCE: Final = (10071, 10164)
"""err_codes of JSStreamWrongLastSequenceErrF and its constant form."""

_NO_PEERS: Final = (10005, 10074, 10120)
"""err_codes of a cluster too small for the replicas asked for, and of an account without a tier."""

_BYTES_REQUIRED: Final = 10113
"""err_code of JSStreamMaxBytesRequired: the account wants a limit of bytes of each stream."""

_MAX_BYTES: Final = 64 << 20
"""Such a limit, for records by the thousand; it refuses new ones, and removes none."""

_DELETED: Final = {"KV-Operation", "Nats-Marker-Reason"}
"""Headers by which a message without data says that its key is gone (ADR-8, ADR-43)."""


class Bucket:
    """One bucket, by its name."""

    def __init__(self, js: JetStream, name: str, description: str) -> None:
        self.js = js
        self.name = name
        self.stream = f"KV_{name}"
        self.prefix = f"$KV.{name}."
        """Prefix of a key's subject."""
        self._description = description

    def ensure(self) -> str | None:
        """
        Makes the bucket if there is none; why the one that is there cannot keep records, or None.

        Raises:
            JetStreamError: There is none and it cannot be made.
        """
        try:
            config = self.js.stream_info(self.stream).config
        except StreamNotFoundError:
            config = self._create()
            logger.info("created bucket=%s", self.name)
        full = () if config.get("discard") == "new" else ("max_msgs", "max_bytes")
        limits = [name for name in ("max_age", *full) if int(config.get(name) or 0) > 0]
        origins = [name for name in ("mirror", "sources") if config.get(name)]
        retention = config.get("retention", "limits")
        # The server takes _EXPECTED off what it copies, so that a copied record could be anybody's.
        faults = [f"is filled from another stream ({name})" for name in origins]
        faults += [f"has a {name}: it may forget" for name in limits]
        faults += [f"has {retention} retention"] * (retention != "limits")
        if not origins and not any(self.prefix in each for each in config.get("subjects") or ()):
            faults.append("is no bucket of this name")
        if not faults:
            return None
        return (
            f"stream {self.stream} {' and '.join(faults)}: it cannot keep records. Edit it, or move"
            f" the bucket by `nats stream backup {self.stream} DIR` and `nats stream restore"
            " DIR`"
        )

    def _create(self) -> dict[str, Any]:
        clustered = bool(self.js.client.connection.info.get("cluster"))
        for replicas in (3, 1) if clustered else (1,):
            try:
                self.js.create_stream(self._config(replicas))
                break
            except ApiError as error:
                if error.err_code == STREAM_NAME_EXISTS:  # another driver was faster
                    break
                if error.err_code == _BYTES_REQUIRED:
                    self.js.create_stream(self._config(replicas) | {"max_bytes": _MAX_BYTES})
                    break
                if error.err_code not in _NO_PEERS or replicas == 1:
                    raise
        return self.js.stream_info(self.stream).config

    def _config(self, replicas: int) -> dict[str, Any]:
        """The configuration that `nats kv add` makes."""
        return {
            "name": self.stream,
            "description": f"pyspark-jetstream: {self._description}",
            "subjects": [f"{self.prefix}>"],
            "retention": "limits",
            "storage": "file",
            "allow_direct": True,
            "num_replicas": replicas,
            **BUCKET,
        }

    def last(self, *keys: str) -> list[StoredMessage]:
        """
        The record of each key. One without data was deleted, or never was, which has sequence 0.

        Raises:
            RecordError: One was stored by somebody else.
        """
        subjects = [f"{self.prefix}{key}" for key in keys]
        messages = self.js.last_messages(self.stream, subjects)
        for key, message in zip(keys, messages, strict=True):
            fault = _fault(message) if message is not None else None
            if message is not None and fault is not None:
                raise RecordError(self.name, key, f"sequence {message.sequence}: {fault}")
        pairs = zip(subjects, messages, strict=True)
        return [message or StoredMessage(0, subject, [], b"") for subject, message in pairs]

    def replace(self, key: str, data: bytes, sequence: int) -> int | None:
        """
        Stores a record in place of the one with this sequence (0 for none); the new one's sequence,
        or None if another one stands there now.

        No two writers may store the same bytes: a record with them is taken for one's own.
        """
        subject = f"{self.prefix}{key}"
        if self.js.prefix != DEFAULT_PREFIX:
            # Under another API prefix a bucket is written through it, as nats.go does: on the
            # subject itself a stream of the same name of this side may listen.
            subject = f"{self.js.prefix}.{subject}"
        try:
            return self.js.publish(subject, data, [(_EXPECTED, str(sequence))])
        except ApiError as error:
            if error.err_code not in _WRONG_SEQUENCE:
                raise
            # Stored, but its PubAck was lost and the request made again?
            (last,) = self.last(key)
            return last.sequence if last.data == data else None


def _fault(message: StoredMessage) -> str | None:
    """Fault of a message that is no record of `replace`, nor one deleted as a key; else None."""
    headers = dict(message.headers)
    if not message.data:
        if headers.keys() & _DELETED:
            return None
        return "it is empty, and no delete of a key"
    expected = headers.get(_EXPECTED, "")
    if expected.isdecimal() and len(expected) < 20 and int(expected) < message.sequence:
        return None
    return (
        "it was not stored by compare-and-set (nor is what a mirror or a source has copied: move a"
        " bucket by nats stream backup and restore)"
    )
