"""Order: of keys within a reducer, and of reducers among each other (``sort="total"``).

For a total order each reducer owns a range of keys. The limits of the ranges are computed from a sample:
before the map stage, some of the map tasks run once more, write nothing, and return keys that they
yielded. The samples' quantiles are the split points. Equal keys stay together, so a key that exceeds a
range's share makes its reducer heavier, and the sample only balances the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from honeycomb.mapreduce.errors import KeyOrderError
from honeycomb.mapreduce.skew import key_words

#: Most map tasks that are sampled, evenly over the inputs.
SAMPLE_TASKS: Final = 16
#: Most pairs that a sampled task reads, and most keys and bytes of keys that it returns.
SAMPLE_PAIRS: Final = 1 << 16
SAMPLE_KEYS: Final = 1024
SAMPLE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RangePartition:
    """The reducer of a key, by the key's position among ``points``, which are in order."""

    points: tuple[Any, ...]
    sort_key: Callable[[Any], Any] | None

    def __call__(self, key: Any, reducers: int) -> int:
        place = key if self.sort_key is None else self.sort_key(key)
        try:
            return bisect_right(self.points, place)
        except TypeError as error:
            raise no_order([*self.points, place], error) from error


def split_points(places: Iterable[Any], reducers: int) -> tuple[Any, ...]:
    """At most ``reducers - 1`` different split points, in order, that divide the sample evenly.

    Raises :class:`KeyOrderError`.
    """
    ordered = ordered_by(list(places), None)
    points: list[Any] = []
    for index in range(1, reducers):
        if ordered:
            point = ordered[len(ordered) * index // reducers]
            if not points or points[-1] < point:
                points.append(point)
    return tuple(points)


def ordered_by(keys: list[Any], sort_key: Callable[[Any], Any] | None) -> list[Any]:
    """``keys`` in order, by ``sort_key`` if given. Raises :class:`KeyOrderError` for keys that cannot be
    compared, and other errors of the user's functions unchanged."""
    places = None if sort_key is None else [sort_key(key) for key in keys]
    try:
        if places is None:
            return sorted(keys)
        order = sorted(range(len(keys)), key=places.__getitem__)
    except TypeError as error:
        raise no_order(keys if places is None else places, error) from error
    return [keys[index] for index in order]


class _Probe:
    """A key whose failed comparison raises an error that names both keys."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __lt__(self, other: _Probe) -> bool:
        try:
            return bool(self.key < other.key)
        except TypeError as error:
            raise _NoOrder(self.key, other.key) from error


class _NoOrder(Exception):
    pass


def no_order(places: list[Any], error: TypeError) -> KeyOrderError:
    """The error for keys without an order. It names two of them."""
    which = str(error)
    try:
        sorted(places, key=_Probe)
    except _NoOrder as found:
        one, other = found.args
        which = (
            f"{key_words(one)} ({type(one).__name__}) and "
            f"{key_words(other)} ({type(other).__name__})"
        )
    return KeyOrderError(
        f"keys cannot be compared with each other: {which}; pass sort=False to MapReduce, or a "
        "sort_key= function that returns a comparable object for each key"
    )
