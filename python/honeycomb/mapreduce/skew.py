"""How evenly the pairs lay on the reducers, and which keys weigh most."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final

from honeycomb._address import format_bytes

#: Keys that a reducer reports at most, and the share of its pairs from which it does.
HEAVY_KEYS: Final = 8
HEAVY_SHARE: Final = 0.05
#: Characters of a key that are told.
KEY_CHARS: Final = 80
#: The largest partition relative to the median from which a run warns, and how large it must be for
#: that to matter.
WARN_RATIO: Final = 4.0
WARN_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """What one reducer had to do: distinct keys, pairs and bytes as they arrived (after combining,
    frames included), and the seconds that it took."""

    index: int
    keys: int
    pairs: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HeavyKey:
    """A key with a large share of its reducer's pairs. ``key`` is its ``repr``, cut at 80
    characters; ``share`` is relative to its partition."""

    key: str
    partition: int
    pairs: int
    share: float


@dataclass(frozen=True, slots=True)
class Skew:
    """How even a run was. ``heaviest`` has at most 8 keys of each reducer, those with 5 % of its
    pairs or more, the heaviest first. ``print`` shows it as a table."""

    partitions: tuple[PartitionLoad, ...]
    heaviest: tuple[HeavyKey, ...]

    @property
    def largest(self) -> PartitionLoad:
        """The partition with the most bytes."""
        return max(self.partitions, key=lambda load: load.bytes)

    @property
    def ratio(self) -> float:
        """Bytes of the largest partition relative to the median one; infinite when more than half
        of them are empty and it is not, 1 when all are."""
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
    """The largest relative to the median."""
    largest, median = max(sizes), statistics.median(sizes)
    if median:
        return largest / median
    return math.inf if largest else 1.0


def warning(sizes: Sequence[int]) -> str:
    """What to say of partitions of these bytes before they are reduced; empty when they are even
    enough, or too small to matter."""
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    if len(sizes) < 2 or sizes[largest] < WARN_BYTES or ratio(sizes) <= WARN_RATIO:
        return ""
    return (
        f"skew: partition {largest} has {format_bytes(sizes[largest])} of "
        f"{format_bytes(sum(sizes))}, {ratio(sizes):.1f} times the median; the run takes as long as "
        f"its reducer does (result.skew() names the heaviest keys; a combiner makes them lighter)"
    )


def heavy_keys(groups: Mapping[Any, Sized], pairs: int) -> tuple[tuple[str, int], ...]:
    """The keys with a large share of a reducer's pairs, as (key in words, pairs), heaviest first.
    Exact: a reducer holds its groups anyway."""
    least = max(2, math.ceil(pairs * HEAVY_SHARE))
    heavy = ((len(values), key) for key, values in groups.items() if len(values) >= least)
    top = heapq.nlargest(HEAVY_KEYS, heavy, key=lambda one: one[0])
    return tuple((key_words(key), count) for count, key in top)


def key_words(key: Any) -> str:
    """A key for people. Its ``repr`` is the user's code, which must not fail a task from here."""
    try:
        words = repr(key)
    except Exception:  # noqa: BLE001 - as above
        words = f"a {type(key).__name__}"
    return words if len(words) <= KEY_CHARS else f"{words[: KEY_CHARS - 3]}..."
