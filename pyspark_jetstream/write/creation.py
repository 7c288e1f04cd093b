"""
Creating the streams a write needs (`createStream`), and nothing else.

A stream that is there stays as it is, whatever the options say; where it differs
from them, the names of those settings are logged, as a warning.
"""

from __future__ import annotations

from typing import Any, Final

from .. import subjects
from ..client.jetstream import JetStream
from ..client.versions import Version
from ..errors import ApiError, OptionError, StreamNotFoundError
from ..publish.options import StreamCreation
from ..sanitize import get_logger

__all__ = ["create_streams", "stream_configs"]

logger = get_logger(__name__)

_NEWER: Final[tuple[tuple[str, Version], ...]] = (
    ("allow_atomic", (2, 12)),
    ("allow_batched", (2, 14)),
)

_NAME_IN_USE: Final = 10058
"""err_code of JSStreamNameExistErr: a stream of this name, configured otherwise."""


def create_streams(js: JetStream, wanted: StreamCreation) -> None:
    """
    Creates those of the wanted streams that are missing.

    Raises:
        OptionError: The server refuses one, for instance because another stream has its subjects.
    """
    for config in stream_configs(wanted):
        _leave_out_what_is_newer(js, config)
        try:
            actual = js.stream_info(config["name"]).config
        except StreamNotFoundError:
            actual = _create(js, config)
        differing = [key for key, value in config.items() if not _same(actual.get(key), value)]
        if differing:
            logger.warning(
                "stream=%s is there and stays as it is, though createStream says otherwise of: %s",
                config["name"],
                ", ".join(differing),
            )


def _leave_out_what_is_newer(js: JetStream, config: dict[str, Any]) -> None:
    """
    Fields that the server does not know, which it refuses or ignores. Without fast publishing
    `publishMode=auto` takes another way; who says atomic batches was refused before.
    """
    version = js.client.connection.version
    for field, since in _NEWER:
        if version[: len(since)] < since and config.pop(field):
            logger.info("stream=%s made without %s: the server is too old", config["name"], field)


def _create(js: JetStream, config: dict[str, Any]) -> dict[str, Any]:
    try:
        js.create_stream(config)
        logger.info("created stream=%s subjects=%s", config["name"], ",".join(config["subjects"]))
    except ApiError as error:
        if error.err_code != _NAME_IN_USE:  # else another driver was faster
            raise OptionError(
                "createStream", f"stream '{config['name']}': {error.description}"
            ) from error
    return js.stream_info(config["name"]).config


def stream_configs(wanted: StreamCreation) -> list[dict[str, Any]]:
    """The configuration of each of the wanted streams."""
    layouts: list[tuple[str, list[str]]]
    if "{partition}" in wanted.stream:
        layouts = [
            (
                wanted.stream.replace("{partition}", str(partition)),
                [
                    subjects.partition_filter(subject, partition)
                    for subject in wanted.stream_subjects
                ],
            )
            for partition in range(wanted.partitions)
        ]
    else:
        layouts = [
            (wanted.stream, [_all_partitions(subject) for subject in wanted.stream_subjects])
        ]
    return [
        {
            "name": name,
            "subjects": of,
            "retention": wanted.retention,
            "storage": "file",
            "num_replicas": wanted.replicas,
            "duplicate_window": round(wanted.duplicate_window_s * 1e9),
            "allow_direct": wanted.allow_direct,
            "allow_batched": wanted.allow_batched,
            "allow_atomic": wanted.allow_atomic,
        }
        for name, of in layouts
    ]


def _all_partitions(subject: str) -> str:
    return subjects.partition_wildcard(subject) if "{partition}" in subject else subject


def _same(actual: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool):
        return bool(actual) == wanted
    if isinstance(wanted, list):
        return sorted(actual or []) == sorted(wanted)
    return bool(actual == wanted)
