"""Reports of lost leases, and the jobs that end with this process."""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from honeycomb import errors
from honeycomb.errors import from_status

if TYPE_CHECKING:
    from honeycomb._native import NativeClient
    from honeycomb.job import Job

#: Longest wait for the end of each job when the process ends, in seconds.
PATIENCE: Final = 1.0

LOG: Final = logging.getLogger("honeycomb")

Callback = Callable[[str, errors.LeaseExpired], object]


class Losses:
    """Receives reports of the lost leases of one job. Logs the first as a warning, which goes to
    standard error unless the program configures logging otherwise."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._callbacks: list[Callback] = []
        self._warned = False
        self._native: NativeClient | None = None

    def watch(self, native: NativeClient) -> None:
        """Also receives reports from this client."""
        if native is self._native:
            return
        self._native = native
        reference = weakref.ref(self)

        def told(path: str, status: str, message: str) -> bool:
            losses = reference()
            if losses is not None:
                losses._told(path, status, message)
            return losses is not None

        native.on_lost_leases(told)

    def call(self, callback: Callback) -> None:
        """Calls ``callback`` for every loss from now on."""
        self._callbacks.append(callback)

    def begin_anew(self) -> None:
        """Logs the next loss again, after the job was reopened."""
        self._warned = False

    def _told(self, path: str, status: str, message: str) -> None:
        error = from_status(status, message)
        if not isinstance(error, errors.LeaseExpired):
            return  # the prefix was removed or ended by request, so its caller knows
        if not self._warned:
            self._warned = True
            LOG.warning("job '%s' lost leases: %s; job.reopen() reopens it", self._job, message)
        for callback in list(self._callbacks):
            callback(path, error)


_held: weakref.WeakSet[Job] = weakref.WeakSet()
_registered = False


def hold(job: Job) -> None:
    """Ends the job when the process ends normally, unless it is closed before."""
    global _registered
    _held.add(job)
    if not _registered:
        # Registered after the embedded cluster's handler, and therefore called before it.
        atexit.register(_end_all)
        _registered = True


def _end_all() -> None:
    for job in list(_held):
        try:
            job._end_at_exit(PATIENCE)
        except errors.HoneycombError as error:
            LOG.warning("cannot end job '%s', which now ends with its leases: %s", job.name, error)
