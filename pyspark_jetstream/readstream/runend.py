"""The end of a run's read: `endingOffsets`, and with `availableNow` what is there by then."""

from __future__ import annotations

from collections.abc import Mapping

from ..client.info import StreamInfo
from ..errors import OptionError
from ..fetch.layout import Layout
from .options import SourceOptions


class RunEnd:
    """End of a run's read: `endingOffsets`, and with `availableNow` what is there by now."""

    def __init__(self, options: SourceOptions, partitions: int) -> None:
        """
        Raises:
            OptionError: `endingOffsets` names a partition that there is not.
        """
        for index in options.ending.sequences:
            if index >= partitions:
                raise OptionError(
                    "endingOffsets", f"partition {index} is none of 0 to {partitions - 1}"
                )
        self._ending = options.ending
        self._streams: dict[str, int] | None = None
        """By stream the last sequence of a run that ends at what is there."""

    def freeze(self, infos: Mapping[str, StreamInfo]) -> None:
        """The run ends at what these streams hold, but for those of which that is known."""
        held = {name: info.last_seq for name, info in infos.items()}
        self._streams = held | (self._streams or {})

    @property
    def is_frozen(self) -> bool:
        """Whether the run ends at what was there at some time."""
        return self._streams is not None

    def has(self, stream: str) -> bool:
        """Whether a stream was there when the run's end was fixed, or that is not."""
        return self._streams is None or stream in self._streams

    def last(self, partition: int, stream: str, last_seq: int) -> int:
        """The last sequence to read of a partition whose stream ends at `last_seq`."""
        if self._streams is not None:  # one that came since may have the name of one that is read
            last_seq = min(last_seq, self._streams.get(stream, 0))
        named = self._ending.of(partition, stream)
        return min(last_seq, named) if isinstance(named, int) else last_seq

    def fixed(self, layout: Layout) -> dict[int, int]:
        """By partition of a layout the sequence beyond which it is not read."""
        named = {p.index: self._ending.of(p.index, p.stream) for p in layout}
        return {index: last for index, last in named.items() if isinstance(last, int)}
