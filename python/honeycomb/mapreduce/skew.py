"""How evenly the pairs are distributed over the reducers, and which keys have the most pairs."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final

from honeycomb._address import format_bytes

#: Most keys that a reducer reports, and the smallest share of its pairs for a key to be reported.
HEAVY_KEYS: Final = 8
HEAVY_SHARE: Final = 0.05
#: Most characters of a reported key.
KEY_CHARS: Final = 80
#: A run warns if its largest partition exceeds the median by this ratio and has at least this many
#: bytes.
WARN_RATIO: Final = 4.0
WARN_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """The load of one reducer: its distinct keys, its pairs and bytes as received (after combining,
    including frames), and its time in seconds."""

    index: int
    keys: int
    pairs: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HeavyKey:
    """A key with a large share of its reducer's pairs. ``key`` is its ``repr``, truncated to 80
    characters; ``share`` is relative to the partition."""

    key: str
    partition: int
    pairs: int
    share: float


@dataclass(frozen=True, slots=True)
class Skew:
    """How evenly a run was distributed. ``heaviest`` has at most 8 keys of each reducer, those with 5 % of
    its pairs or more, the heaviest first. ``print`` shows a table."""

    partitions: tuple[PartitionLoad, ...]
    heaviest: tuple[HeavyKey, ...]

    @property
    def largest(self) -> PartitionLoad:
        """The partition with the most bytes."""
        return max(self.partitions, key=lambda load: load.bytes)

    @property
    def ratio(self) -> float:
        """Bytes of the largest partition relative to the median partition. Infinite if the median is
        empty but the largest is not; 1 if all partitions are empty."""
        return ratio([load.bytes for load in self.partitions])

    def __repr__(self) -> str:
        heavy = f", heaviest {self.heaviest[0].key}" if self.heaviest else ""
        return (
            f"<Skew: largest of {len(self.partitions)} partitions is number {self.largest.index}, "
            f"{self.ratio:.1f} x the median{heavy}>"
        )

    def __str__(self) -> str:
        lines = ["  part       keys       pairs       bytes   seconds"]
        lines += [
            f"  {load.index:>4} {load.keys:>10,} {load.pairs:>11,} {format_bytes(load.bytes):>11} "
            f"{load.seconds:>9.3f}"
            for load in self.partitions
        ]
        lines.append(f"largest: part {self.largest.index}, {self.ratio:.1f} x the median")
        lines += [
            f"heavy key: {heavy.key} has {heavy.pairs:,} pairs, {heavy.share:.0%} of part "
            f"{heavy.partition}"
            for heavy in self.heaviest
        ]
        return "\n".join(lines)


def ratio(sizes: Sequence[int]) -> float:
    """The largest size relative to the median."""
    largest, median = max(sizes), statistics.median(sizes)
    if median:
        return largest / median
    return math.inf if largest else 1.0


def warning(sizes: Sequence[int]) -> str:
    """A warning about partitions of these sizes in bytes, before they are reduced. Empty if they are
    even enough, or too small to matter."""
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    if len(sizes) < 2 or sizes[largest] < WARN_BYTES or ratio(sizes) <= WARN_RATIO:
        return ""
    return (
        f"skew: partition {largest} has {format_bytes(sizes[largest])} of "
        f"{format_bytes(sum(sizes))}, {ratio(sizes):.1f} times the median; the run takes as long as "
        f"its reducer does (result.skew() names the heaviest keys; a combiner makes them lighter)"
    )


def heavy_keys(groups: Mapping[Any, Sized], pairs: int) -> tuple[tuple[str, int], ...]:
    """The keys with a large share of a reducer's pairs, as (key as text, pairs), heaviest first. The
    counts are exact, because a reducer holds all its groups in memory."""
    least = max(2, math.ceil(pairs * HEAVY_SHARE))
    heavy = ((len(values), key) for key, values in groups.items() if len(values) >= least)
    top = heapq.nlargest(HEAVY_KEYS, heavy, key=lambda one: one[0])
    return tuple((key_words(key), count) for count, key in top)


def key_words(key: Any) -> str:
    """A key as text. An error in the user's ``repr`` must not fail the task, so it is suppressed."""
    try:
        words = repr(key)
    except Exception:  # noqa: BLE001 - as above
        words = f"a {type(key).__name__}"
    return words if len(words) <= KEY_CHARS else f"{words[: KEY_CHARS - 3]}..."
