"""Honeycomb for asyncio: an awaitable twin of every class that blocks.

::

    import asyncio
    from honeycomb import aio

    async def main():
        async with aio.connect() as hc, hc.job("pipeline") as job:
            queue = await job.queue("events")
            await queue.put(b"one")
            print(await queue.get())

    asyncio.run(main())

Names, parameters, results and errors are those of :mod:`honeycomb`; calls that wait for the cluster are
awaited. The calls that open an object (:func:`connect`, :meth:`AsyncClient.job`, ``open``, ``subscribe``)
can be awaited or used in ``async with``. ``blocking`` of a twin is the blocking object, and a twin can be
made from a blocking object: ``AsyncKv(kv)``.

*Batching*: single gets and changes of key-value stores that tasks request in one iteration of the event
loop are sent together by a native thread for each loop and client, up to 256 at a time. So
``asyncio.gather`` of a thousand gets costs a few system calls.

*Threads*: other calls run in the package's own threads, never in asyncio's executor. Calls that do not
wait share 32 threads; further calls are queued briefly. Calls that wait for an event have up to 256
additional threads, and puts that wait for room another 256. Further waits are queued, and if the
``timeout`` of a queued wait passes, it raises :class:`~honeycomb.errors.LimitExceeded`. All gets of one
:class:`AsyncQueue` share one thread. :func:`waiting_limit` changes these limits. Threads are started on
demand and end after 10 idle seconds.

*Cancelling* a task (and so ``asyncio.timeout``, ``wait_for`` and ``TaskGroup``) ends a wait at once
and leaves the connections usable. A cancelled ``get`` of a queue or listener loses nothing, see
:class:`AsyncQueue`. A cancelled mutation may or may not take effect.

Twins may be used from several event loops and threads at a time.
"""

from __future__ import annotations

from honeycomb import _check
from honeycomb._threads import PUTS, WAITS
from honeycomb.aio._run import Opening
from honeycomb.aio._streams import AsyncBatch, AsyncStream
from honeycomb.aio._twin import opening
from honeycomb.aio._twins.bucket import AsyncBucket
from honeycomb.aio._twins.cluster import AsyncClient, connect
from honeycomb.aio._twins.custom import AsyncCustom
from honeycomb.aio._twins.file import AsyncFile
from honeycomb.aio._twins.job import AsyncJob
from honeycomb.aio._twins.kv import AsyncKv
from honeycomb.aio._twins.notices import AsyncListener
from honeycomb.aio._twins.queue import AsyncQueue, AsyncReservation
from honeycomb.job import Job, JobHandle

__all__ = [
    "AsyncBatch",
    "AsyncBucket",
    "AsyncClient",
    "AsyncCustom",
    "AsyncFile",
    "AsyncJob",
    "AsyncKv",
    "AsyncListener",
    "AsyncQueue",
    "AsyncReservation",
    "AsyncStream",
    "Opening",
    "attach",
    "connect",
    "waiting_limit",
]


def attach(handle: JobHandle) -> Opening[AsyncJob]:
    """Opens the job of a handle, as :meth:`honeycomb.JobHandle.attach` does."""
    return opening(handle.attach, AsyncJob, Job.close)


def waiting_limit(calls: int | None = None) -> int:
    """The most calls of this process that may wait for events at a time, each in its own thread; equally
    many puts may wait for room. ``calls`` sets the limit, from 1 to 4096. Returns the previous limit."""
    before = WAITS.limit
    if calls is not None:
        WAITS.limit = PUTS.limit = _check.whole("calls", calls, 1, 4096, unit="calls")
    return before
