"""The hand-written part of the twin of clients."""

from __future__ import annotations

import weakref
from typing import TypeVar

from honeycomb.aio._job import JobBase
from honeycomb.aio._run import run
from honeycomb.aio._twin import ClosedByBlock, RemoteTwin
from honeycomb.cluster import Client

J = TypeVar("J", bound=JobBase)


class ClientBase(ClosedByBlock, RemoteTwin[Client]):
    """The twin of :class:`honeycomb.Client`, used in ``async with``; ``blocking`` is the blocking client.
    Made by :func:`honeycomb.aio.connect`."""

    def __init__(self, blocking: Client) -> None:
        super().__init__(blocking)
        self._jobs: weakref.WeakSet[JobBase] = weakref.WeakSet()

    def _adopt(self, job: J) -> J:
        """Remembers a job, whose queues give back retained items when the client is closed."""
        self._jobs.add(job)
        return job

    async def _do_close(self, *, discard: bool = False, wait: float | None = None) -> None:
        try:
            for job in list(self._jobs):
                if not job.blocking._owned:
                    await job._give_back()
        finally:
            await run(lambda: self.blocking.close(discard=discard, wait=wait))
