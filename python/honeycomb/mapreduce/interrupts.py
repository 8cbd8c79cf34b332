"""Handling of Ctrl-C: an interrupted run cleans up, however often the user presses the key."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """Within its ``with`` block, the first SIGINT raises ``KeyboardInterrupt`` and later ones are ignored,
    so that they cannot interrupt the cleanup that the first one started. After :meth:`hold`, the first one
    is also deferred to the end of the block.

    Active only in the main thread, where Python delivers signals, and only if the program has not
    installed its own handler.
    """

    def __init__(self) -> None:
        self._installed = False
        self._raised = False
        self._held = False
        self._pressed = False

    def hold(self) -> None:
        """Defers interrupts from now on, for a cleanup that ends in bounded time."""
        self._held = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._raised:
            return
        if self._held:
            self._pressed = True
            return
        self._raised = True
        raise KeyboardInterrupt

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
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
