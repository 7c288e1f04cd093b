"""
What members of JetStream's answers have to be: one table, by their names.

A name means the same in every answer that has it, so one pass over an answer (`checked`) is the
border: behind it a member that stands in the table has its type or is not there, as null counts
as missing. Members that nobody here reads may be anything. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ..foreign import Reader, base64_bytes, each, flag, number, text, time

_OBJECTS: Final = """
    ack_floor cluster config consumer_limits delivered error external message mirror republish state
    subject_transform
""".split()

_LISTS: Final = "consumers priority_groups replicas sources streams subject_transforms".split()
"""Of objects."""

_NEEDED: Final = {"mirror": "name", "sources": "name", "subject_transforms": "src"}
"""What such an object cannot be without; other members are asked for by whoever reads them."""

_SEQUENCES: Final = "consumer_seq first_seq last_seq seq stream_seq".split()

_COUNTS: Final = """
    bytes consumer_count duplicate_window lag limit max_age messages num_ack_pending num_deleted
    num_pending
    num_redelivered num_replicas num_subjects num_waiting purged total
""".split()

_NUMBERS: Final = """
    ack_wait code err_code inactive_threshold max_ack_pending max_batch max_bytes max_deliver
    max_msg_size max_msgs max_msgs_per_subject pause_remaining priority_timeout
""".split()

_FLAGS: Final = """
    allow_atomic allow_batched allow_direct allow_msg_counter allow_msg_schedules allow_msg_ttl
    allow_rollup_hdrs current deny_delete deny_purge discard_new_per_subject headers_only offline
    paused push_bound sealed
""".split()

_TEXTS: Final = """
    ack_policy deliver_subject description dest discard durable_name filter_subject leader name
    pinned_client_id priority_policy retention src storage stream subject
""".split()

_TIMES: Final = "created last_active last_ts leader_since pause_until pinned_ts time ts".split()

_MAX: Final = (1 << 63) - 1
"""A row holds no larger sequence."""

_sequence: Final = number(0, _MAX)
_count: Final = number(0, 2 * _MAX + 1)

_SCALARS: Final[dict[str, Reader]] = {
    **dict.fromkeys(_SEQUENCES, _sequence),
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(_NUMBERS, number(-_MAX - 1, _MAX)),
    **dict.fromkeys(_FLAGS, flag),
    **dict.fromkeys(_TEXTS, text),
    **dict.fromkeys(_TIMES, time),
    "data": base64_bytes,
    "hdrs": base64_bytes,
    **dict.fromkeys(("filter_subjects", "missing"), each(text)),
    **dict.fromkeys(("backoff", "deleted"), each(_sequence)),
    "metadata": each(text, dict),
}


def checked(answer: Any) -> dict[str, Any]:
    """
    An answer, or a configuration, with members that are what they have to be.

    Raises:
        ValueError: One is not; the message begins with its place.
    """
    if not isinstance(answer, dict):
        return each(text, dict)(answer)  # type: ignore[no-any-return]  # says what it is not
    todo: list[tuple[str, dict[str, Any]]] = [("", answer)]
    while todo:
        place, found = todo.pop()
        for name in [name for name, value in found.items() if value is None]:
            del found[name]
        for name, value in found.items():
            try:
                inner = list(_inner(place, name, value))
                if name in _SCALARS:
                    found[name] = _SCALARS[name](value)
            except ValueError as error:
                raise ValueError(f"{place}.{name}{error}") from None
            for at, one in inner:
                if name in _NEEDED and one.get(_NEEDED[name]) is None:
                    raise ValueError(f"{place}.{name}{at}.{_NEEDED[name]} is missing")
                todo.append((f"{place}.{name}{at}", one))
    return answer


def _inner(place: str, name: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects in a member, each with its place in it."""
    if name == "subjects":  # of a configuration their names, of a state their counts
        each(_count, dict)(value) if isinstance(value, dict) else each(text)(value)
    elif name in _OBJECTS:
        _object(value)
        yield "", value
    elif name in _LISTS:
        # Likewise those of the answer of NAMES, and of a consumer's configuration.
        may_be_names = name == "streams" or name == "priority_groups" and place.endswith("config")
        are_names = may_be_names and not _has_objects(value)
        each(text if are_names else _object)(value)
        yield from () if are_names else ((f"[{at}]", one) for at, one in enumerate(value))


def _object(value: Any) -> Any:
    return each(lambda member: member, dict)(value)


def _has_objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, dict) for one in value)
