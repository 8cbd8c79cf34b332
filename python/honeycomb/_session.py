"""One native client and the structures it opened, safe to use across a fork.

A forked process shares its parent's sockets, and with them the parent's session: requests of both
would interleave, and one could receive the other's replies. Native objects are therefore used only in
the process that made them. After a fork the child abandons them and connects again under a new
session (design decision 15).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from honeycomb import errors
from honeycomb._native import (
    Face,
    NativeClient,
    NativeCustom,
    NativeFile,
    NativeKv,
    NativeQueue,
    count_fork,
    fork_generation,
)
from honeycomb._settings import switch

__all__ = ["Face", "Session", "abandon", "close_after", "fork_generation", "wrong_kind"]

# Native objects of a parent process. They are never dropped: closing them would write to sockets that
# belong to the parent, and wait for threads that do not exist here.
_abandoned: list[object] = []


os.register_at_fork(after_in_child=count_fork)


def abandon(native: object) -> None:
    """Prevents this process from closing a native object of its parent."""
    _abandoned.append(native)


def close_after(block: BaseException | None, close: Callable[[], None]) -> None:
    """Ends a ``with`` block by calling ``close``. If the block raised, its error takes precedence, and an
    error of ``close`` becomes a note on it."""
    try:
        close()
    except errors.HoneycombError as error:
        if block is None:
            raise
        block.add_note(f"closing failed too: {error.status}: {error}")


class Session:
    """A lazily connected :class:`NativeClient` of one address, token and task prefix.

    Thread-safe. ``timeout`` is the time limit of each call, in seconds. ``task_prefix`` is the prefix
    whose lease the session's traffic renews; 0 for none.
    """

    def __init__(
        self, address: str, token: bytes, *, task_prefix: int = 0, timeout: float = 10.0
    ) -> None:
        self.address = address
        self.token = token
        self.task_prefix = task_prefix
        self.timeout = timeout
        self._lock = threading.Lock()
        self._native: NativeClient | None = None
        self._made_in = fork_generation()
        self._closed = False

    @property
    def native(self) -> NativeClient:
        """The client of this process. Connects if there is none. Raises :class:`Closed`."""
        native = self._native
        if native is not None and self._made_in == fork_generation():
            return native
        return self._connect()

    def _connect(self) -> NativeClient:
        if self._made_in != fork_generation():
            # Another thread of the parent may have held the lock during the fork.
            self._lock = threading.Lock()
        with self._lock:
            if self._closed:
                raise errors.Closed(f"this connection to {self.address} was closed")
            if self._made_in != fork_generation():
                _abandoned.append(self._native)
                self._native = None
                self._made_in = fork_generation()
            if self._native is None:
                self._native = NativeClient(
                    self.address,
                    self.token,
                    self.task_prefix,
                    self.timeout,
                    unix=switch("unix", default=True),
                )
            return self._native

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Closes the connections of this process. Idempotent; never raises."""
        native, self._native = self._native, None
        self._closed = True
        if native is None:
            return
        if self._made_in == fork_generation():
            native.close()
        else:
            _abandoned.append(native)


def wrong_kind(address: str, wanted: str, opened: object) -> errors.WrongKind:
    """The error for a structure of another kind. Its hint names the call that opens it."""
    kind, call = {
        NativeFile: ("a file", "open_file"),
        NativeKv: ("a key-value store", "open_kv"),
        NativeQueue: ("a queue", "open_queue"),
        NativeCustom: ("of a custom kind", "open_custom"),
    }[type(opened)]
    error = errors.WrongKind(f"{address} is {kind}, not {wanted}")
    error.hint = f"open it with job.{call}(...)"
    return error
