"""The progress reports of a run: to a function, as bars, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from honeycomb._progress import ProgressBars
from honeycomb.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a stage. ``note`` is a message for users: a failed attempt that is retried, a
    second attempt of a slow task, or a partition that is much larger than the others."""

    stage: str
    done: int
    total: int
    running: int
    failures: int
    seconds: float
    note: str = ""


Listener: TypeAlias = Callable[[Progress], object]
#: The values of ``progress=``: a function, ``True`` for bars, or several of these.
Wanted: TypeAlias = Listener | bool | Iterable[Listener | bool] | None


def reporter(wanted: Wanted) -> Listener:
    """One function that calls all requested listeners. It raises the error of a listener that raises."""
    listeners = [one if callable(one) else _bars() for one in _each(wanted) if one is not False]

    def tell(told: Progress) -> None:
        for listener in listeners:
            listener(told)

    return tell


def _each(wanted: Wanted) -> list[Listener | bool]:
    if wanted is None:
        return []
    if isinstance(wanted, bool) or callable(wanted):
        return [wanted]
    several = list(wanted)
    for one in several:
        if not (isinstance(one, bool) or callable(one)):
            raise InvalidArgument(
                f"progress is a function, True for bars, or a list of these, not {one!r}"
            )
    return several


def _bars() -> Listener:
    bars = ProgressBars()

    def draw(told: Progress) -> None:
        if told.note:
            bars.note(told.note)
        bars.update(told.stage, told.done, told.total)

    return draw
