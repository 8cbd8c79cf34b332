"""User-defined counters: the counts of committed attempts, summed over the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Final

from honeycomb.errors import InvalidArgument, LimitExceeded

#: Most counters of one attempt. The commit contains them, and the driver holds those of all attempts.
COUNTERS_MAX: Final = 1000

#: The counts of the attempt that runs in this context.
current_counts: ContextVar[dict[str, int] | None] = ContextVar("honeycomb_counters", default=None)


class Counter:
    """A named number; made by :func:`counter`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def add(self, number: int = 1) -> None:
        """Adds ``number`` to the counter. Raises :class:`~honeycomb.errors.LimitExceeded` if a task has
        more than 1000 counters."""
        counts = current_counts.get()
        if counts is None:
            return
        if self._name not in counts and len(counts) >= COUNTERS_MAX:
            raise LimitExceeded(
                f"a task has at most {COUNTERS_MAX} counters; {self._name!r} would exceed the limit"
            )
        counts[self._name] = counts.get(self._name, 0) + number


def counter(name: str) -> Counter:
    """The counter of this name, for use inside the functions of a program::

        counter("bad lines").add(1)

    ``Result.counters`` has the sums over the committed attempts. Attempts that fail, or that lose to
    another attempt of the same task, do not count. Outside of a task, counters have no effect, so that
    the functions can be tested on their own.
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"the name of a counter is a non-empty str, not {name!r}")
    return Counter(name)


def total_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums, by name."""
    total: dict[str, int] = {}
    for one in counts:
        for name, number in one.items():
            total[name] = total.get(name, 0) + number
    return dict(sorted(total.items()))
