"""The hand-written part of the twin of jobs."""

from __future__ import annotations

import weakref
from typing import TypeVar

from honeycomb.aio._queue import QueueBase
from honeycomb.aio._run import run
from honeycomb.aio._twin import ClosedByBlock, RemoteTwin
from honeycomb.job import Job

Q = TypeVar("Q", bound=QueueBase)


class JobBase(ClosedByBlock, RemoteTwin[Job]):
    """The twin of :class:`honeycomb.Job`, used in ``async with``; ``blocking`` is the blocking job.
    Made by :meth:`AsyncClient.job`, :meth:`AsyncClient.attach` or :func:`honeycomb.aio.attach`."""

    def __init__(self, blocking: Job) -> None:
        super().__init__(blocking)
        self._queues: weakref.WeakSet[QueueBase] = weakref.WeakSet()

    def _adopt(self, queue: Q) -> Q:
        """Remembers a queue, whose retained items are given back when the job is closed."""
        self._queues.add(queue)
        return queue

    async def _do_close(self, flush_timeout: float | None = 0) -> None:
        try:
            if not self.blocking._owned:  # otherwise the queues end with the job
                await self._give_back()
        finally:
            await run(lambda: self.blocking.close(flush_timeout))

    async def _give_back(self) -> None:
        if not self.blocking._session.closed:
            for queue in list(self._queues):
                await queue._give_back()
