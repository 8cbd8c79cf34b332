"""The asyncio twins: the same names and types, cancelling without losses, bounded threads."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import os
import random
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually

import honeycomb
from honeycomb import _threads, aio, errors

TWINS: list[tuple[type[Any], type[Any]]] = [
    (honeycomb.Client, aio.AsyncClient),
    (honeycomb.Job, aio.AsyncJob),
    (honeycomb.Kv, aio.AsyncKv),
    (honeycomb.Bucket, aio.AsyncBucket),
    (honeycomb.Custom, aio.AsyncCustom),
    (honeycomb.HoneyFile, aio.AsyncFile),
    (honeycomb.Queue, aio.AsyncQueue),
    (honeycomb.Reservation, aio.AsyncReservation),
    (honeycomb.Listener, aio.AsyncListener),
]
#: Results that are twins themselves, by the blocking class's name in annotations.
RENAMED = {
    "Kv": "AsyncKv",
    "Bucket": "AsyncBucket",
    "Custom": "AsyncCustom",
    "HoneyFile": "AsyncFile",
    "Queue": "AsyncQueue",
    "Listener": "Opening[AsyncListener]",
    "list[Reservation]": "list[AsyncReservation]",
    "Kv | HoneyFile | Queue": "AsyncKv | AsyncFile | AsyncQueue",
    "Job": "Opening[AsyncJob]",
    "io.IOBase": "Opening[AsyncStream[Any]]",
    "Batch": "AsyncBatch[Batch]",
    "AtomicBatch": "AsyncBatch[AtomicBatch]",
    "Iterator[bytes]": "AsyncIterator[bytes]",
    "Iterator[str]": "AsyncIterator[str]",
    "Iterator[tuple[bytes, bytes]]": "AsyncIterator[tuple[bytes, bytes]]",
    "threading.Thread": "asyncio.Task[None]",
}
#: Generators of the blocking API that the mapping's base class declares as views.
VIEWS = {"keys"}


def public(cls: type[Any]) -> dict[str, Any]:
    names = [name for name in dir(cls) if not name.startswith("_")]
    return {name: inspect.getattr_static(cls, name) for name in names}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    found = list(inspect.signature(function).parameters.values())
    if found and found[0].name == "self":
        del found[0]  # positional-only if native
    return [(one.name, one.kind, one.default) for one in found]


def native_annotations(cls: type[Any], name: str) -> dict[str, str]:
    """The annotations of a native method, from the type stubs; none for an overloaded method."""
    stubs = ast.parse(Path(honeycomb.__file__).with_name("_native.pyi").read_text())
    bases = {base.__name__ for base in cls.__mro__}
    methods = [
        method
        for one in stubs.body
        if isinstance(one, ast.ClassDef) and one.name in bases
        for method in one.body
        if isinstance(method, ast.FunctionDef) and method.name == name
    ]
    assert methods, name
    if len(methods) > 1:
        return {}
    taken = methods[0].args.posonlyargs + methods[0].args.args + methods[0].args.kwonlyargs
    found = {one.arg: ast.unparse(one.annotation) for one in taken if one.annotation}
    assert methods[0].returns is not None
    return found | {"return": ast.unparse(methods[0].returns)}


@pytest.mark.parametrize(("blocking", "twin"), TWINS, ids=lambda cls: cls.__name__)
def test_every_public_member_has_its_twin(blocking: type[Any], twin: type[Any]) -> None:
    theirs = public(twin)
    for name, member in public(blocking).items():
        assert name in theirs or (blocking, name) == (honeycomb.Reservation, "item"), name
        other = theirs[name]
        if not callable(member):
            assert isinstance(other, property), name
            continue
        assert parameters(other) == parameters(member), name
        assert other.__doc__, name
        if name in VIEWS:
            continue
        ours = other.__annotations__
        expected = getattr(member, "__annotations__", None)
        if expected is None:
            expected = native_annotations(blocking, name)
        for parameter, annotation in expected.items():
            if parameter not in ("return", "function", "kind"):
                assert ours[parameter] == annotation, (name, parameter)
        returned = expected.get("return")
        if returned is not None:
            assert ours["return"] == RENAMED.get(returned, returned), name
    assert (inspect.getdoc(blocking) or "?") in (inspect.getdoc(twin) or "")


def test_connect_has_the_parameters_of_connect() -> None:
    assert parameters(aio.connect) == parameters(honeycomb.connect)
    assert aio.connect.__doc__ == honeycomb.connect.__doc__
    assert set(aio.__all__) <= set(dir(aio))


def in_loop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), 60))


# ------------------------------------------------------------------------------------- the calls


def test_a_whole_program(cluster: honeycomb.Client) -> None:
    async def main() -> None:
        async with aio.connect(cluster.address, cluster.token) as hc:
            async with hc.job("aio-whole", lease=30.0) as job:
                assert (await hc.attach("aio-whole")).id == job.id
                assert "aio-whole" in {one["name"] for one in await hc.jobs()}
                await job.create_addr_prefix("T1", lease=5)
                assert (await job.lease("T1")).duration == 5
                assert await job.lease_duration("T1") == await job.get_lease_duration("T1")
                assert len(await job.tree()) == 2 and (await job.renew("T1"))[0].ok

                kv = await job.kv("T1:kv", blocks=2)
                assert not await kv.put("a", b"1") and await kv["a"] == b"1"
                await asyncio.gather(*(kv.set("a", str(n).encode()) for n in range(20)))
                assert await kv["a"] == b"19"
                await kv.set("a", b"1")
                assert await kv.get("b") is None and await kv.get("b", 7) == 7
                async with kv.batch() as batch:
                    old = batch.get("a")
                    batch.put("c", b"3")
                assert old.value == b"1"
                async with kv.atomic("tag") as atomic:
                    atomic.increment("n", 2)
                assert await kv.number("{tag}n") == 2
                await kv.update((f"k{i}", b"v") for i in range(2000))
                assert len([key async for key in kv]) == await kv.length() == 2003
                assert len({pair async for pair in kv.items()}) == 2003
                assert await kv.contains("k7") and not await kv.contains("k")
                with pytest.raises(KeyError):
                    await kv["none"]

                file = await job.file("T1:file")
                async with file.open("ab") as out:
                    assert await out.write(b"one\ntwo\n") == 8
                async with job.open("T1:file", "a") as text:
                    await text.write("drei\n")
                async with job.open("T1:file", "r") as lines:
                    assert [line async for line in lines] == ["one\n", "two\n", "drei\n"]
                assert await file.read(4, 3) == b"two"
                await file.seal()
                assert b"".join([piece async for piece in file.follow()]) == b"one\ntwo\ndrei\n"

                queue = await job.init_data_structure("T1", "queue")
                assert await queue.put_many([b"x", b"y", b"z"]) == 3
                assert await queue.peek() == [b"x"] and await queue.qsize() == 3
                [reserved] = await queue.reserve()
                async with reserved as item:
                    assert item == b"x"
                with pytest.raises(ZeroDivisionError):
                    async with (await queue.reserve())[0]:
                        raise ZeroDivisionError
                await queue.close()
                assert await queue.closed
                assert [item async for item in queue] == [b"y", b"z"]
                with pytest.raises(errors.QueueClosed):
                    await queue.get()
            with pytest.raises(errors.UnknownJob):
                await hc.attach("aio-whole")

    in_loop(main)


def test_a_job_handle_is_attached(job: honeycomb.Job) -> None:
    async def main() -> None:
        job.kv("kv")["k"] = b"v"
        async with aio.attach(job.handle()) as twin:
            assert await (await twin.open_kv("kv"))["k"] == b"v"

    in_loop(main)


def test_errors_name_the_parameter_before_anything_is_sent(job: honeycomb.Job) -> None:
    async def main() -> None:
        queue = aio.AsyncQueue(job.queue("q"))
        with pytest.raises(errors.InvalidArgument, match="timeout"):
            await queue.get(-1)
        with pytest.raises(TypeError, match="items are bytes"):
            await queue.put("text")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument, match=r"n is 1 to 4096"):
            await queue.get_many(0)

    in_loop(main)


# ----------------------------------------------------------------------------------- cancelling


async def waits(queue: aio.AsyncQueue) -> None:
    """Returns when a get of this object is in progress."""
    while queue._taker._call is None:
        await asyncio.sleep(0)


def test_what_arrives_for_a_cancelled_get_is_kept(job: honeycomb.Job) -> None:
    """The item arrives before the cancellation takes effect: it must not be lost."""

    async def main() -> None:
        queue = aio.AsyncQueue(job.queue("q"))
        get = asyncio.create_task(queue.get())
        await waits(queue)
        queue.blocking.put(b"first")  # blocks the loop, so that it has not delivered the result yet
        get.cancel()
        with pytest.raises(asyncio.CancelledError):
            await get
        assert await queue.get(10) == b"first"
        assert await queue.get_many(5, 0) == []
        await queue.put(b"second")
        assert await queue.get() == b"second"

    for _ in range(20):
        in_loop(main)


def test_every_item_is_received_once_however_often_gets_are_cancelled(job: honeycomb.Job) -> None:
    count = 600

    async def main() -> None:
        twins = [aio.AsyncQueue(job.queue("q")) for _ in range(3)]
        received: list[bytes] = []
        chance = random.Random(7)

        async def consume(queue: aio.AsyncQueue) -> None:
            while len(received) < count:
                try:
                    async with asyncio.timeout(chance.choice([0, 0.0005, 0.002, 0.02])):
                        received.append(await queue.get())
                except TimeoutError:
                    continue
                except errors.QueueClosed:
                    return

        async with asyncio.TaskGroup() as group:
            for queue in twins * 4:
                group.create_task(consume(queue))
            for number in range(count):
                await twins[0].put(b"%d" % number)
                if number % 7 == 0:
                    await asyncio.sleep(chance.random() / 200)
            await twins[0].close()
        for queue in twins:
            received += queue._taker.take_kept()
        assert sorted(received, key=int) == [b"%d" % number for number in range(count)]
        assert (await twins[0].counts()).items == 0

    in_loop(main)


def test_a_waiting_get_receives_what_another_did_not_want(job: honeycomb.Job) -> None:
    async def main() -> None:
        queue = aio.AsyncQueue(job.queue("q"))
        first = asyncio.create_task(queue.get())
        second = asyncio.create_task(queue.get())
        await waits(queue)
        first.cancel()
        await queue.put(b"for the second")
        assert await second == b"for the second"
        assert first.cancelled()

    in_loop(main)


def test_gets_are_served_in_order_and_by_one_thread(job: honeycomb.Job) -> None:
    async def main() -> None:
        queue, before = aio.AsyncQueue(job.queue("q")), threads("wait")
        gets = [asyncio.create_task(queue.get()) for _ in range(100)]
        await waits(queue)
        await queue.put_many([b"%d" % number for number in range(100)])
        assert await asyncio.gather(*gets) == [b"%d" % number for number in range(100)]
        assert threads("wait") <= before + 2

    in_loop(main)


def test_timeouts_of_gets(job: honeycomb.Job) -> None:
    async def main() -> None:
        queue = aio.AsyncQueue(job.queue("q"))
        with pytest.raises(errors.QueueEmpty):
            await queue.get_nowait()
        forever = asyncio.create_task(queue.get())
        await waits(queue)
        began = time.monotonic()
        # A shorter wait than the current one, and a wait whose timeout passes before its request.
        for timeout in (0.2, 1e-6):
            with pytest.raises(errors.QueueEmpty, match="no item arrived within"):
                await queue.get(timeout)
        assert await queue.get_many(10, 0.05) == []
        assert 0.2 <= time.monotonic() - began < 10
        assert not forever.done()
        await queue.put(b"at last")
        assert await forever == b"at last"
        await queue.put(b"there")
        assert await queue.get(1e-6) == b"there"

    in_loop(main)


def test_cancelled_waits_end_promptly_and_leave_the_connection_usable(job: honeycomb.Job) -> None:
    async def main() -> None:
        kv, file = aio.AsyncKv(job.kv("kv")), aio.AsyncFile(job.file("f"))
        full = aio.AsyncQueue(job.queue("full", max_items=1))
        await full.put(b"only")
        listener = await kv.subscribe()
        waiting: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: kv.wait_until("never"),
            lambda: file.wait_until(sealed=True),
            lambda: full.put(b"more"),
            lambda: full.put_many([b"more", b"and more"]),
            lambda: full.wait_until_closed(),
            lambda: aio.AsyncQueue(job.queue("empty")).reserve(),
            lambda: listener.get(),
        ]
        for make in waiting:
            busy = sum(len(crew._busy) for crew in (_threads.WAITS, _threads.PUTS))
            task = asyncio.create_task(make())
            while sum(len(c._busy) for c in (_threads.WAITS, _threads.PUTS)) == busy:
                await asyncio.sleep(0.001)
            task.cancel()
            began = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            while sum(len(c._busy) for c in (_threads.WAITS, _threads.PUTS)) > busy:
                await asyncio.sleep(0.001)
            assert time.monotonic() - began < 3, "the thread is free again"
        assert await full.get() == b"only"
        assert await full.get_many(9, 0) == [], "a cancelled put that had to wait put nothing"
        await kv.put("k", b"v")
        heard = await listener.get(10)
        assert heard is not None and heard.key == b"k"
        await listener.close()

    in_loop(main)


def test_what_arrives_for_a_cancelled_reserve_is_given_back(job: honeycomb.Job) -> None:
    async def main() -> None:
        queue = aio.AsyncQueue(job.queue("q"))
        for number in range(20):
            task = asyncio.create_task(queue.reserve(lease=3600))
            while not _threads.WAITS._busy:
                await asyncio.sleep(0)
            queue.blocking.put(b"%d" % number)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                assert await queue.get(30) == b"%d" % number, "not reserved for an hour"
            else:
                raise AssertionError("it was cancelled")

    in_loop(main)


def test_kept_items_are_given_back_at_the_end_or_told(job: honeycomb.Job) -> None:
    async def main() -> None:
        queue = aio.AsyncQueue(job.queue("q"))
        queue._taker.keep([b"a", b"b"])
        assert queue.kept == 2 and "kept" in queue._repr_html_()
        await queue.close()
        assert queue.kept == 0
        assert [item async for item in queue] == [b"a", b"b"]
        # The queue is closed now, so the items can no longer be given back.
        queue._taker.keep([b"c"])
        with pytest.warns(RuntimeWarning, match="could not be given back"):
            await queue.close()
        assert await queue.get() == b"c"
        queue._taker.keep([b"d"])
        holder = [queue]
        del queue

        def drop() -> None:
            gone = weakref.ref(holder.pop()._taker)

            def collected() -> bool:
                gc.collect()  # a traceback may refer to it, or a thread that fetches its next call
                return gone() is None

            assert eventually(collected)

        with pytest.warns(RuntimeWarning, match="1 items of .* are lost"):
            drop()

    in_loop(main)


def test_a_job_that_is_left_gives_back_what_was_kept(job: honeycomb.Job) -> None:
    async def main() -> None:
        async with aio.attach(job.handle()) as twin:
            queue = await twin.queue("q")
            queue._taker.keep([b"back"])
        assert job.queue("q").get(10) == b"back"

    in_loop(main)


def test_a_loop_that_ends_in_the_middle_of_a_get_loses_nothing(job: honeycomb.Job) -> None:
    async def abandon(queue: aio.AsyncQueue) -> asyncio.Task[bytes]:
        task = asyncio.create_task(queue.get())
        await waits(queue)
        queue.blocking.put(b"item")
        return task

    async def fetch(queue: aio.AsyncQueue) -> bytes:
        return await queue.get(10)

    for number in range(20):
        queue = aio.AsyncQueue(job.queue(f"q{number}"))
        task = asyncio.run(abandon(queue))
        received = asyncio.run(fetch(queue)) if task.cancelled() else task.result()
        assert received == b"item" and queue.blocking.get_many(1, 0) == []


# -------------------------------------------------------------------------------------- listeners


def test_listeners(job: honeycomb.Job) -> None:
    async def main() -> None:
        kv = aio.AsyncKv(job.kv("kv"))
        heard: list[bytes | None] = []
        both = asyncio.Event()

        async def callback(notification: honeycomb.Notification) -> None:
            heard.append(notification.key)
            if len(heard) == 2:
                both.set()

        async with kv.subscribe("put") as listener, kv.subscribe("put") as other:
            task = other.on(callback)
            assert await listener.get(0) is None and await listener.get(0.01) is None
            await kv.put("a", b"1")
            await kv.put("b", b"1")
            keys = []
            async for notification in listener:
                keys.append(notification.key)
                if len(keys) == 2:
                    break
            await both.wait()
            assert heard == keys == [b"a", b"b"]
            waiting = asyncio.create_task(listener.get())
        await task
        with pytest.raises(errors.Closed):
            await waiting

    in_loop(main)


def test_a_follower_sees_everything_until_the_seal(job: honeycomb.Job) -> None:
    async def main() -> None:
        file = aio.AsyncFile(job.file("log"))
        parts = [random.randbytes(2000) for _ in range(100)]

        async def follow() -> bytes:
            return b"".join([piece async for piece in file.follow(timeout=30)])

        async with asyncio.TaskGroup() as group:
            followers = [group.create_task(follow()) for _ in range(3)]
            for part in parts:
                await file.append(part)
            await file.seal()
        assert {one.result() for one in followers} == {b"".join(parts)}

    in_loop(main)


# ----------------------------------------------------------------------------- threads and loops


def threads(crew: str) -> int:
    return sum(one.name.startswith(f"honeycomb-{crew}-") for one in threading.enumerate())


def test_calls_are_bounded_and_asyncio_s_executor_is_left_alone(job: honeycomb.Job) -> None:
    async def main() -> None:
        kv = aio.AsyncKv(job.kv("kv"))
        await asyncio.gather(*(kv.put(f"{i}", b"v") for i in range(500)))
        assert await kv.length() == 500
        assert threads("call") <= _threads.CALLS.limit
        assert not any("asyncio" in one.name for one in threading.enumerate())

    in_loop(main)


def test_more_puts_than_threads_wait_for_room_while_a_consumer_makes_it(job: honeycomb.Job) -> None:
    before = aio.waiting_limit(4)

    async def main() -> None:
        queue = aio.AsyncQueue(job.queue("q", max_items=2))
        items = [b"%d" % number for number in range(60)]
        puts = [asyncio.create_task(queue.put(item)) for item in items]
        got = [await queue.get(30) for _ in items]
        await asyncio.gather(*puts)
        assert sorted(got) == sorted(items)
        assert len(_threads.PUTS._threads) <= 4 or threads("put") <= 256

    try:
        in_loop(main)
    finally:
        aio.waiting_limit(before)


def test_a_call_that_has_no_turn_in_its_time_says_so(
    job: honeycomb.Job, caplog: pytest.LogCaptureFixture
) -> None:
    crew = _threads.Crew("wait", 2)

    async def main() -> None:
        kv = job.kv("kv")
        from honeycomb.aio._run import wait

        holding = [
            asyncio.create_task(wait(lambda left: kv.wait_until("never", left), None, crew=crew))
            for _ in range(2)
        ]
        while not crew.full:
            await asyncio.sleep(0.001)
        with pytest.raises(errors.LimitExceeded, match="waiting_limit"):
            await wait(lambda left: kv.wait_until("k", left), 0.05, crew=crew)
        assert "calls are queued" in caplog.text
        # One call is cancelled while queued, and one gets a thread.
        unlucky = asyncio.create_task(wait(lambda left: 1, None, crew=crew))
        patient = asyncio.create_task(wait(lambda left: 2, None, crew=crew))
        await asyncio.sleep(0)
        unlucky.cancel()
        holding[0].cancel()
        assert await patient == 2
        holding[1].cancel()
        await asyncio.gather(*holding, unlucky, return_exceptions=True)
        assert unlucky.cancelled()

    in_loop(main)
    with pytest.raises(errors.InvalidArgument, match="calls is 1 to 4096"):
        aio.waiting_limit(0)


def test_waiting_costs_next_to_nothing(job: honeycomb.Job) -> None:
    """A hundred tasks wait: the process sleeps, and sends the queue's server no further requests."""

    async def main() -> None:
        queue = aio.AsyncQueue(job.queue("q"))
        tasks = [asyncio.create_task(queue.get()) for _ in range(100)]
        await waits(queue)
        await asyncio.sleep(0.2)  # until all threads are idle; the test measures real time
        cpu, requests = time.process_time(), job._client.status()["requests"]  # type: ignore[attr-defined]
        await asyncio.sleep(2)
        used = time.process_time() - cpu
        asked = job._client.status()["requests"] - requests  # type: ignore[attr-defined]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert used < 0.3, f"{used:.3f} s of CPU in 2 s"
        assert asked < 60, f"{asked} requests in 2 s"

    in_loop(main)


def test_one_queue_in_several_loops_and_threads(job: honeycomb.Job) -> None:
    queue = aio.AsyncQueue(job.queue("q"))
    received: list[bytes] = []
    lock = threading.Lock()

    def run() -> None:
        async def main() -> None:
            async def consume() -> None:
                async for item in queue:
                    with lock:
                        received.append(item)

            async with asyncio.TaskGroup() as group:
                for _ in range(5):
                    group.create_task(consume())

        asyncio.run(main())

    loops = [threading.Thread(target=run) for _ in range(4)]
    for one in loops:
        one.start()
    items = [b"%d" % number for number in range(1000)]
    queue.blocking.put_many(items)
    queue.blocking.close()
    for one in loops:
        one.join(60)
    assert sorted(received) == sorted(items)


def test_a_process_ends_although_calls_wait(cluster: honeycomb.Client) -> None:
    program = """if True:
        import asyncio, sys
        from honeycomb import aio

        async def main():
            hc = await aio.connect()
            job = await hc.job("never-closed", lease=0.2)
            kv, queue = await job.kv("kv"), await job.queue("q")
            for _ in range(3):
                asyncio.ensure_future(kv.wait_until("never"))
            asyncio.ensure_future(queue.get())
            await asyncio.sleep(0.3)
            sys.stdout.write("waiting")
            sys.stdout.flush()

        asyncio.run(main())
    """
    environment = os.environ | {
        "HONEYCOMB_ADDRESS": cluster.address,
        "HONEYCOMB_TOKEN": cluster.token.hex(),
    }
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "waiting", "")


def test_a_forked_child_has_threads_of_its_own(job: honeycomb.Job) -> None:
    async def main() -> bytes:
        queue = aio.AsyncQueue(job.queue("q"))
        await queue.put(b"item")
        return await queue.get(10)

    assert in_loop(main) == b"item"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if in_loop(main) == b"item" else 1)
        except BaseException:  # noqa: BLE001 - told by the exit code
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert in_loop(main) == b"item"


# ------------------------------------------------------------------------- operations that go together


def test_operations_of_one_turn_go_together_and_keep_the_order_of_a_key(job: honeycomb.Job) -> None:
    kv = job.kv("together", blocks=2)

    async def main() -> None:
        twin = aio.AsyncKv(kv)
        keys = [f"key-{i}" for i in range(3000)]
        put = await asyncio.gather(*(twin.put(key, key.encode()) for key in keys))
        assert put == [False] * 3000
        got = await asyncio.gather(*(twin.get(key) for key in keys), twin.get("none", b"-"))
        assert got == [key.encode() for key in keys] + [b"-"]
        sums = await asyncio.gather(*(twin.increment("sum") for _ in range(500)))
        assert sums == list(range(1, 501)), "each is one more than the one asked for before it"
        swaps = [twin.compare_and_swap("s", None, b"%d" % i) for i in range(20)]
        assert await asyncio.gather(*swaps) == [(True, None)] + [(False, b"0")] * 19
        deleted = await asyncio.gather(*(twin.delete(key) for key in keys), twin.delete("none"))
        assert deleted == [True] * 3000 + [False]
        assert threads("call") == 0, "none of them took a thread of its own"

    eventually(lambda: threads("call") == 0)
    in_loop(main)
    assert set(kv) == {b"sum", b"s"}


def test_what_fails_together_fails_as_alone(job: honeycomb.Job) -> None:
    kv = job.kv("refused", blocks=1)
    large = os.urandom(kv.plain_limit + 1)

    async def main() -> None:
        twin = aio.AsyncKv(kv)
        await asyncio.gather(twin.put("large", large), twin.add("a", b"1"), twin.append("b", b"2"))
        failed = await asyncio.gather(
            twin["none"],
            twin.add("a", b"2"),
            twin.get(b"k" * 5000),
            twin.increment("a"),
            twin.put("a", "text"),  # type: ignore[arg-type]
            twin.get(7),  # type: ignore[call-overload]
            twin.get("large"),
            twin["large"],
            return_exceptions=True,
        )
        *refused, one, other = failed
        assert [type(error) for error in refused] == [
            errors.KeyNotFound,
            errors.KeyExists,
            errors.KeyTooLarge,
            errors.InvalidArgument,
            TypeError,
            TypeError,
        ]
        assert one == other == large
        assert await twin["a"] == b"1"
        job.remove("refused")
        gone = await asyncio.gather(twin.get("a"), twin.put("a", b""), return_exceptions=True)
        assert {type(error) for error in gone} == {errors.Removed}

    in_loop(main)


def test_cancelled_operations_leave_the_others_alone(job: honeycomb.Job) -> None:
    twin = aio.AsyncKv(job.kv("cancelled"))

    async def main() -> None:
        tasks = [asyncio.ensure_future(twin.put(f"k{i}", b"v")) for i in range(200)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in done[::2])
        assert done[1::2] == [False] * 100
        assert await twin["k1"] == b"v"

    # Each loop has its own connections to the native thread; a closed loop leaves none behind.
    for _ in range(3):
        in_loop(main)
        in_loop(lambda: twin.clear())


def test_a_loop_that_ends_with_operations_under_way_hinders_nobody(job: honeycomb.Job) -> None:
    twin = aio.AsyncKv(job.kv("ended"))

    async def leave() -> None:
        for i in range(100):
            asyncio.ensure_future(twin.put(f"k{i}", b"v"))  # noqa: RUF006 - left on purpose
        await asyncio.sleep(0)

    for _ in range(5):
        in_loop(leave)
        gc.collect()

    async def main() -> None:
        assert await twin.put("end", b"v") in (True, False)
        assert await twin["end"] == b"v"

    in_loop(main)
