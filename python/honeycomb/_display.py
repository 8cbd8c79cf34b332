"""The display of objects in notebooks and interactive shells: a title and a few facts.

Facts may need a request, so they are fetched in another thread, with a short timeout. A display never
raises and never waits longer than that: if an object is gone or the cluster does not reply, the display
says so.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, Self

from honeycomb import errors
from honeycomb._threads import CALLS

#: Longest wait of a display for its facts, in seconds.
PATIENCE: Final = 1.0

Facts = Iterable[tuple[str, object]]


class _Printer(Protocol):
    def text(self, text: str) -> None: ...


def facts_of(ask: Callable[[], Facts]) -> list[tuple[str, str]]:
    """The facts, or the reason why there are none, after at most :data:`PATIENCE`."""
    found: list[tuple[str, str]] = []
    answered = threading.Event()

    def done(facts: list[tuple[str, object]] | None, error: BaseException | None) -> None:
        if facts is not None:
            found.extend((name, str(value)) for name, value in facts)
        elif error is not None:
            name = (
                error.status if isinstance(error, errors.HoneycombError) else type(error).__name__
            )
            found.append((name, str(error)))
        answered.set()

    try:
        CALLS.call(lambda: list(ask()), done)
    except RuntimeError as error:  # the process is ending
        return [("unknown", str(error))]
    if not answered.wait(PATIENCE):
        return [("unknown", f"no reply within {PATIENCE:g} s")]
    return found


def as_html(title: str, facts: Iterable[tuple[str, str]], drawing: str = "") -> str:
    """A small HTML table with all text escaped; ``drawing`` keeps its layout."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
        for name, value in facts
    )
    table = f"<table>{rows}</table>" if rows else ""
    drawn = f"<pre>{html.escape(drawing)}</pre>" if drawing else ""
    return f"<div><b>{html.escape(title)}</b>{table}{drawn}</div>"


def as_text(title: str, facts: Iterable[tuple[str, str]]) -> str:
    """The same table as text for a terminal."""
    return "\n".join([title, *(f"  {name}: {value}" for name, value in facts)])


class Shown:
    """Displays its ``repr`` and its :meth:`_facts` in notebooks."""

    __slots__ = ()

    def _facts(self) -> Facts:
        return ()

    def _repr_html_(self) -> str:
        return as_html(repr(self).strip("<>"), facts_of(self._facts))

    def _repr_pretty_(self, printer: _Printer, cycle: bool) -> None:
        printer.text(as_text(repr(self), [] if cycle else facts_of(self._facts)))


class Remote(Shown):
    """A reference to an object in the cluster. Copying it in this process returns the same object."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def refuse_pickle(what: str, instead: str) -> TypeError:
    """The error for an object that cannot be pickled because it belongs to its process."""
    return TypeError(f"{what} cannot be pickled: {instead}")
