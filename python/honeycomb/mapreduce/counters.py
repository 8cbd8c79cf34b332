"""Counters of the user's own: what committed attempts counted, summed over the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Final

from honeycomb.errors import InvalidArgument, LimitExceeded

#: Different counters of one attempt: they travel with its commit, and the driver holds them all.
COUNTERS_MAX: Final = 1000

#: What the attempt that runs here has counted.
current_counts: ContextVar[dict[str, int] | None] = ContextVar("honeycomb_counters", default=None)


class Counter:
    """A named number; made by :func:`counter`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def add(self, number: int = 1) -> None:
        """Adds to it. Raises :class:`~honeycomb.errors.LimitExceeded` when a task has over 1000
        different counters."""
        counts = current_counts.get()
        if counts is None:
            return
        if self._name not in counts and len(counts) >= COUNTERS_MAX:
            raise LimitExceeded(
                f"a task has at most {COUNTERS_MAX} counters, and {self._name!r} is one more"
            )
        counts[self._name] = counts.get(self._name, 0) + number


def counter(name: str) -> Counter:
    """The counter of this name, for use inside the functions of a program::

        counter("bad lines").add(1)

    ``Result.counters`` has the sums over the attempts that committed: what failed, or lost to
    another attempt of the same task, does not count. Outside of a task it counts nothing, so that
    the functions can be tried on their own.
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"a counter has a name, not {name!r}")
    return Counter(name)


def total_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums, by name."""
    total: dict[str, int] = {}
    for one in counts:
        for name, number in one.items():
            total[name] = total.get(name, 0) + number
    return dict(sorted(total.items()))
