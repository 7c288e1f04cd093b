"""What was published against what was copied: lost, doubled, out of order; and what may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .publisher import Key, Sent, number_of

_EXAMPLES = 10
"""Messages of each kind that are named."""


@dataclass
class Verdict:
    """Counts of messages."""

    published: int = 0
    """With a PubAck."""
    copied: int = 0
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    """Before them in the copy, and of their subject, stands one that was published later."""
    strangers: int = 0
    """In the copy, and never published: what is empty or changed among them."""
    unacked: int = 0
    """Without a PubAck."""
    unacked_copied: int = 0
    """Of them, those that were stored all the same."""
    examples: list[str] = field(default_factory=list)

    def failures(self, order: bool) -> list[str]:
        """What should not be, in words; disorder only where order is promised."""
        names = ["lost", "doubled", "strangers", *(["disordered"] if order else [])]
        return [f"{getattr(self, name)} {name}" for name in names if getattr(self, name)]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def by_subject(messages: Sequence[tuple[str, bytes]]) -> dict[str, list[Key]]:
    """Numbers and attempts in the order of their subject, which is named as in the source."""
    found: dict[str, list[Key]] = {}
    for subject, payload in messages:
        name = "in." + subject.partition(".")[2]
        found.setdefault(name, []).append(number_of(payload))
    return found


def judge(
    sent: Mapping[str, Sequence[Sent]],
    copy: Mapping[str, Sequence[Key]],
    source: Mapping[str, Sequence[Key]] | None = None,
) -> Verdict:
    """
    The verdict on a copy.

    Args:
        source: what the source stream holds, where it keeps everything. It decides what of the
            messages without a PubAck was stored, and in which order; without it those may be there
            or not, once, and the order of the others counts.
    """
    verdict = Verdict()
    for subject in sorted({*sent, *copy}):
        _judge_subject(
            verdict, subject, sent.get(subject, ()), copy.get(subject, ()),
            None if source is None else source.get(subject, ()),
        )  # fmt: skip
    return verdict


def _judge_subject(
    verdict: Verdict,
    subject: str,
    sent: Sequence[Sent],
    copy: Sequence[Key],
    source: Sequence[Key] | None,
) -> None:
    acked = {each.key for each in sent if each.acked}
    unacked = {each.key for each in sent if not each.acked}
    counts = Counter(copy)
    verdict.published += len(acked)
    verdict.copied += len(copy)
    verdict.unacked += len(unacked)
    verdict.unacked_copied += len(unacked & counts.keys())
    wanted = sorted(acked) if source is None else list(source)
    place = {key: at for at, key in enumerate(wanted)}
    lost = [key for key in wanted if not counts[key]]
    doubled = [key for key, count in counts.items() if count > 1]
    strangers = [key for key in counts if key not in acked | unacked]
    disordered, before = [], -1
    for key in copy:
        at = place.get(key, before)
        if at < before:
            disordered.append(key)
        before = max(before, at)
    verdict.lost += len(lost)
    verdict.doubled += sum(counts[key] - 1 for key in doubled)
    verdict.strangers += len(strangers)
    verdict.disordered += len(disordered)
    kinds = {
        "lost": lost, "doubled": doubled, "stranger": strangers,
        "disordered": disordered,
    }  # fmt: skip
    for kind, keys in kinds.items():
        told = sum(each.startswith(kind) for each in verdict.examples)
        room = max(0, _EXAMPLES - told)
        verdict.examples += [f"{kind}: {subject} {n}.{a}" for n, a in keys[:room]]
