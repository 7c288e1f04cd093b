"""
Creating the streams a write needs (`createStream`), and nothing else.

A stream that is there stays as it is, whatever the options say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .. import subjects
from ..client.jetstream import STREAM_NAME_EXISTS, JetStream
from ..client.patience import Patience
from ..errors import ApiError, JetStreamError, OptionError, StreamNotFoundError
from ..publish.settings import StreamCreation
from ..sanitize import get_logger
from .streams import SETTLES_S

logger = get_logger(__name__)

_DEFAULTS: Final[dict[str, Any]] = {
    "retention": "limits",
    "storage": "file",
    "num_replicas": 1,
    "allow_direct": True,
}
"""Settings that our writer and our readers need of a stream, where `streamConfig` has no others."""

_OVERLAP: Final = 10065
"""err_code of JSStreamSubjectOverlapErr: another stream has a subject of this one."""


def create_streams(js: JetStream, wanted: StreamCreation) -> None:
    """
    Creates those of the wanted streams that are missing.

    Raises:
        OptionError: The server refuses one, for instance because another stream has its subjects.
    """
    for config in stream_configs(wanted):
        try:
            js.stream_info(config["name"])
        except StreamNotFoundError:
            if _create(js, config):
                _await_name(js, config)


def _create(js: JetStream, config: dict[str, Any]) -> bool:
    """Creates a stream; False where another driver was faster."""
    try:
        js.create_stream(config)
    except ApiError as error:
        if error.err_code == STREAM_NAME_EXISTS:
            return False
        why = f"stream '{config['name']}': {error.description}"
        is_taken = error.err_code == _OVERLAP
        why += _overlapped(js, config["subjects"]) if is_taken else "; streamConfig sets it up"
        raise OptionError("createStream", why) from error
    logger.info("created stream=%s subjects=%s", config["name"], ",".join(config["subjects"]))
    return True


def _await_name(js: JetStream, config: dict[str, Any]) -> None:
    """
    Waits until tasks find the stream by its subject: in a cluster another server than the one that
    has made it says which streams there are, and knows a moment later.
    """
    name, patience = config["name"], Patience(SETTLES_S)
    try:
        while js.stream_of(config["subjects"][0]) != name and not patience.over:
            patience.pause()
    except JetStreamError as error:  # who may not ask publishes without
        logger.info("stream=%s: not asked whether tasks find it: %s", name, error)


def _overlapped(js: JetStream, wanted: Sequence[str]) -> str:
    """The streams with these subjects, and advice; as far as the user may ask."""
    try:
        taken = [(name, each) for each in wanted for name in js.stream_names(each)[:3]]
    except JetStreamError:
        return ""
    names = ", ".join(f"'{name}' takes '{each}'" for name, each in taken)
    return (
        f" ({names}); write without createStream, into that one, or give this one other"
        " streamSubjects" if taken else ""
    )  # fmt: skip


def stream_configs(wanted: StreamCreation) -> list[dict[str, Any]]:
    """The configuration of each of the wanted streams."""
    given = _DEFAULTS | dict(wanted.config)
    if "{partition}" not in wanted.stream:
        of = [
            subjects.partition_wildcard(each) if "{partition}" in each else each
            for each in wanted.stream_subjects
        ]
        return [{"name": wanted.stream, "subjects": of, **given}]
    return [
        {
            "name": wanted.stream.replace("{partition}", str(number)),
            "subjects": [subjects.partition_filter(e, number) for e in wanted.stream_subjects],
            **given,
        }
        for number in range(wanted.partitions)
    ]
