"""Handling of Ctrl-C: an interrupted run cleans up, however often the user presses the key."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """Within its ``with`` block, the first SIGINT raises ``KeyboardInterrupt`` and later ones are ignored,
    so that they cannot interrupt the cleanup that the first one started. The first one is deferred while
    code of the standard library holds locks that an exception would leave locked (:meth:`deferred`), and
    during a cleanup (:meth:`hold`).

    Python discards an exception that is raised in a finalizer. The interrupt is not lost then: it is raised
    again at the end of the next deferred block, or of this one.

    Active only in the main thread, where Python delivers signals, and only if the program has not
    installed its own handler.
    """

    def __init__(self) -> None:
        self._installed = False
        self._deferring = True  # until the block begins, whose end restores the handler
        self._pressed = False

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Defers interrupts to the end of a block that takes a fraction of a second. Blocks do not nest."""
        assert not self._deferring
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        if self._pressed:
            raise KeyboardInterrupt

    def hold(self) -> None:
        """Defers interrupts from now on, for a cleanup that ends in bounded time."""
        self._deferring = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again, self._pressed = self._pressed, True
        if not (again or self._deferring):
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        self._deferring = False
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._pressed and not isinstance(exc, KeyboardInterrupt):
            raise KeyboardInterrupt
