"""Honeycomb for asyncio: a twin of everything that blocks.

::

    import asyncio
    from honeycomb import aio

    async def main():
        async with aio.connect() as hc, hc.job("pipeline") as job:
            queue = await job.queue("events")
            await queue.put(b"one")
            print(await queue.get())

    asyncio.run(main())

Names, parameters, results and errors are those of :mod:`honeycomb`; whatever waits for the cluster is
awaited. What opens something (:func:`connect`, :meth:`AsyncClient.job`, ``open``, ``subscribe``) can
be awaited or used in ``async with``. ``blocking`` of a twin is its original, and each twin can be made
around one: ``AsyncKv(kv)``.

*Together*: single gets and changes of key-value stores that tasks ask for in one turn of the event loop
go out together, up to 256 of them under way at a time, in a native thread for each loop and client. So
``asyncio.gather`` of a thousand gets costs a few system calls.

*Threads*: other calls are made in threads of the package's own, never in asyncio's executor. 32 carry the
calls that do not wait; more calls at a time stand in line for a moment. Calls that wait for something
to happen have up to 256 threads more, and puts that wait for room another 256; beyond that they await
their turn, and one whose ``timeout`` passes in that line raises
:class:`~honeycomb.errors.LimitExceeded`. All gets of one :class:`AsyncQueue` share one thread.
:func:`waiting_limit` changes these limits. Threads are started as they are needed and end after ten
idle seconds.

*Cancelling* a task (and so ``asyncio.timeout``, ``wait_for`` and ``TaskGroup``) ends a wait at once
and leaves the connections usable. A cancelled ``get`` of a queue or listener loses nothing, see
:class:`AsyncQueue`; a change that was cancelled may or may not have been carried out.

Twins may be used from several event loops and threads at a time.
"""

from __future__ import annotations

from honeycomb import _check
from honeycomb._threads import PUTS, WAITS
from honeycomb.aio._bucket import AsyncBucket
from honeycomb.aio._custom import AsyncCustom
from honeycomb.aio._job import AsyncClient, AsyncJob
from honeycomb.aio._queue import AsyncListener, AsyncQueue, AsyncReservation
from honeycomb.aio._run import Opening, run
from honeycomb.aio._structures import AsyncBatch, AsyncFile, AsyncKv, AsyncStream
from honeycomb.cluster import Client
from honeycomb.cluster import connect as _connect
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


def connect(
    address: str | None = None,
    token: bytes | str | None = None,
    *,
    timeout: float = 10.0,
    memory: int | str | None = None,
    block_size: int | str | None = None,
) -> Opening[AsyncClient]:
    async def open_() -> AsyncClient:
        return AsyncClient(
            await run(
                lambda: _connect(
                    address, token, timeout=timeout, memory=memory, block_size=block_size
                ),
                late=Client.close,
            )
        )

    return Opening(open_())


connect.__doc__ = _connect.__doc__


def attach(handle: JobHandle) -> Opening[AsyncJob]:
    """The job of a handle, as :meth:`honeycomb.JobHandle.attach` opens it."""

    async def open_() -> AsyncJob:
        return AsyncJob(await run(handle.attach, late=Job.close))

    return Opening(open_())


def waiting_limit(calls: int | None = None) -> int:
    """How many calls of this process may wait at a time, each in a thread of its own, for something
    to come; and as many puts for room. ``calls`` sets it, from 1 to 4096. Returns what it was."""
    before = WAITS.limit
    if calls is not None:
        WAITS.limit = PUTS.limit = _check.whole("calls", calls, 1, 4096, unit="calls")
    return before
