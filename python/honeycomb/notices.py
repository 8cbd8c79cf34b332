"""Subscriptions to changes (paper, Table 1: subscribe, listener.get)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Never, Self

from honeycomb import _check, errors
from honeycomb._display import Facts, Remote, refuse_pickle
from honeycomb._native import NativeListener
from honeycomb._session import abandon, fork_generation

__all__ = ["Listener", "Notification"]

_KINDS: Final[dict[str, dict[str, int]]] = {
    "file": {"append": 1, "seal": 2},
    "queue": {"data": 4, "space": 8, "close": 16},
    "kv": {"put": 32, "delete": 64},
}


def kinds_of(structure: str, ops: tuple[str, ...]) -> int:
    """The bits of ``ops``; without ``ops``, those of all changes of this kind of structure."""
    known = _KINDS[structure]
    for op in ops:
        if op not in known:
            raise errors.InvalidArgument(
                f"a {structure} has no {op!r} notifications; available: {', '.join(map(repr, known))}"
            )
    return sum(known[op] for op in set(ops or known))


@dataclass(frozen=True, slots=True)
class Notification:
    """One change.

    ``op`` is ``"append"`` (with ``offset`` and ``length`` in bytes), ``"seal"`` (``size``),
    ``"data"`` or ``"space"`` (``items``), ``"close"``, ``"put"`` or ``"delete"`` (``key``), or
    ``"gap"``. A gap replaces changes that were dropped, because earlier ones were not read in time
    (``missed`` is their number, ``None`` if unknown). ``number`` increases within a ``block``.
    """

    op: str
    block: str
    number: int
    key: bytes | None = None
    offset: int | None = None
    length: int | None = None
    items: int | None = None
    size: int | None = None
    missed: int | None = None


class Listener(Remote):
    """A subscription to changes of one structure. Made by its ``subscribe``.

    Changes are reported in order per key, per end of a queue and per file, and never before a reader can
    see them. Changes that are not read in time are dropped and reported as a ``"gap"``, so a slow listener
    uses bounded memory. When the structure ends, :meth:`get` raises the reason
    (:class:`~honeycomb.errors.LeaseExpired`, :class:`~honeycomb.errors.DataLost`,
    :class:`~honeycomb.errors.Removed`). Close it, or use it in a ``with`` block.

    It belongs to the process that made it. It cannot be pickled, and a forked child must subscribe again.
    """

    def __init__(self, address: str, native: NativeListener, ops: tuple[str, ...] = ()) -> None:
        self._address = address
        self._native = native
        self._ops = ops
        self._closed = False
        self._made_in = fork_generation()

    @property
    def address(self) -> str:
        """The address of the structure, with the job's name: ``job/T4/T6:name``."""
        return self._address

    def get(self, timeout: float | None = None) -> Notification | None:
        """The next change; ``None`` if none arrived within ``timeout`` seconds (a ``timeout`` of ``None``
        waits without limit). Raises :class:`~honeycomb.errors.Closed` after :meth:`close`."""
        timeout = _check.timeout(timeout)
        if self._made_in != fork_generation():
            raise errors.Closed(
                f"this listener to {self._address} belongs to the process that was forked; "
                "subscribe again in this one"
            )
        heard = self._native.next(timeout)
        return None if heard is None else Notification(**heard)

    def __iter__(self) -> Iterator[Notification]:
        """Yields changes until the listener is closed."""
        while True:
            try:
                heard = self.get()
            except errors.Closed:
                return
            if heard is not None:
                yield heard

    def on(self, callback: Callable[[Notification], object]) -> threading.Thread:
        """Calls ``callback`` with every change, in a new thread, until the listener is closed, the
        structure ends, or ``callback`` raises. Returns the thread."""

        def run() -> None:
            # Users of the structure get the error that ended it; this thread has no caller to raise it to.
            with contextlib.suppress(errors.HoneycombError):
                for heard in self:
                    callback(heard)

        thread = threading.Thread(target=run, name=f"listener {self._address}", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Ends the subscription. Idempotent. A thread that waits in :meth:`get` gets
        :class:`~honeycomb.errors.Closed`."""
        self._closed = True
        if self._made_in == fork_generation():
            self._native.close()
        else:
            abandon(self._native)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Never:
        raise refuse_pickle("a Listener", "subscribe again where it is needed")

    def _facts(self) -> Facts:
        yield "reports", ", ".join(self._ops) or "every change"
        yield "state", "closed" if self._closed else "listening"

    def __repr__(self) -> str:
        return f"<honeycomb.Listener {self._address}{' closed' if self._closed else ''}>"
