"""A program for the type checker only: users' code has the expected types.

``test_arguments.py`` has mypy check it; it is never run.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import honeycomb
from honeycomb import aio, errors


def blocking(hc: honeycomb.Client, bytearray_: bytearray) -> None:
    with hc.job("j", lease=2.0) as job:
        assert_type(job, honeycomb.Job)
        assert_type(job.lease("a").remaining, float)
        assert_type(job.create_hierarchy({"a": (), "b": "a"}), dict[str, int])
        assert_type(job.renew("a")[0].error, errors.HoneycombError | None)

        kv = job.kv("kv", blocks=2)
        assert_type(kv, honeycomb.Kv)
        assert_type(kv[b"k"], bytes)
        kv["text"] = bytearray_
        assert_type(kv.get("k"), bytes | None)
        assert_type(kv.get("k", b""), bytes)
        assert_type(kv.get("k", 3), bytes | int)
        assert_type(kv.pop("k"), bytes)
        assert_type(kv.pop("k", None), bytes | None)
        assert_type(kv.compare_and_swap("k", None, b"v"), tuple[bool, bytes | None])
        assert_type(kv.accumulate("k", "sum", 1), int)
        assert_type(kv.accumulate("k", "max", 1.5), float)
        assert_type(kv.accumulate("k", "top", (3, 1.0, "x")), list[tuple[float, bytes]])
        assert_type(kv.multi_get(["a", b"b"]), list[bytes | None])
        assert_type(kv.scan("p"), Iterator[tuple[bytes, bytes]])
        with kv.batch() as batch:
            assert_type(batch, honeycomb.Batch)
            assert_type(batch.get("k"), honeycomb.Result[bytes | None])
            assert_type(batch.increment("k").value, int)
        with kv.atomic("t") as atomic:
            assert_type(atomic, honeycomb.AtomicBatch)

        file = job.file("f")
        assert_type(file.read(), bytes)
        assert_type(file.follow(timeout=1), Iterator[bytes])
        assert_type(job.open("f", "ab"), honeycomb.Appender)
        with job.open("f", "ab") as out:
            out.write(b"x")
        assert_type(job.open("f"), io.BufferedReader)
        assert_type(job.open("f", "r"), io.TextIOWrapper)

        queue = job.queue("q", max_items=3)
        assert_type(queue.get(timeout=1.0), bytes)
        assert_type(queue.get_many(10), list[bytes])
        assert_type(queue.put_many(iter([b"a"])), int)
        assert_type(queue.counts().reserved, int)
        assert_type(queue.full(), bool)
        for one in queue.reserve(2, lease=3.0):
            with one as item:
                assert_type(item, bytes)
        for item in queue:
            assert_type(item, bytes)
        assert_type(job.init_data_structure("x", "kv"), honeycomb.Kv)
        with kv.subscribe("put", prefix="a") as listener:
            assert_type(listener.get(1), honeycomb.Notification | None)

    with honeycomb.connect() as client:
        assert_type(client, honeycomb.Client)

    # Wrong code is an error, and so is an `ignore` comment that suppresses none.
    kv.put("k", "text")  # type: ignore[arg-type]
    queue.put("text")  # type: ignore[arg-type]
    kv.accumulate("k", "count", 1)  # type: ignore[call-overload]
    hc.job("j", 2.0)  # type: ignore[call-arg]
    job.open_kv(None)  # type: ignore[arg-type]


async def asynchronous() -> None:
    async with aio.connect() as hc, hc.job("j") as job:
        assert_type(hc, aio.AsyncClient)
        assert_type(job, aio.AsyncJob)
        assert_type(await hc.attach("x"), aio.AsyncJob)
        assert_type(await job.lease(), honeycomb.Lease)

        kv = await job.kv("kv")
        assert_type(kv, aio.AsyncKv)
        assert_type(await kv["k"], bytes)
        assert_type(await kv.get("k"), bytes | None)
        assert_type(await kv.get("k", 3), bytes | int)
        assert_type(await kv.accumulate("k", "sum", 1), int)
        assert_type(kv.items(), AsyncIterator[tuple[bytes, bytes]])
        async for key in kv:
            assert_type(key, bytes)
        async with kv.batch() as batch:
            assert_type(batch, honeycomb.Batch)
        async with kv.atomic() as atomic:
            assert_type(atomic, honeycomb.AtomicBatch)
        async with kv.subscribe() as listener:
            assert_type(listener, aio.AsyncListener)
            assert_type(await listener.get(), honeycomb.Notification | None)
            async for notification in listener:
                assert_type(notification, honeycomb.Notification)
            assert_type(listener.on(print), asyncio.Task[None])

        queue = await job.queue("q")
        assert_type(await queue.get(), bytes)
        assert_type(await queue.reserve(), list[aio.AsyncReservation])
        for one in await queue.reserve():
            async with one as item:
                assert_type(item, bytes)
        async for item in queue:
            assert_type(item, bytes)
        assert_type(await queue.closed, bool)

        file = await job.file("f")
        async with file.open("ab") as out:
            assert_type(out, aio.AsyncStream[bytes])
        async with job.open("f", "r") as text:
            assert_type(await text.readline(), str)
        assert_type(file.follow(), AsyncIterator[bytes])
        async for piece in file.follow():
            assert_type(piece, bytes)
        assert_type(await job.init_data_structure("x", "queue"), aio.AsyncQueue)

        await queue.put("text")  # type: ignore[arg-type]
        await kv.put("k", 1)  # type: ignore[arg-type]
