"""Handles in other processes, threads and copies."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest
from conftest import eventually

import honeycomb
from honeycomb import aio, errors
from honeycomb.job import Job


@pytest.fixture(scope="module")
def spawned() -> Iterator[ProcessPoolExecutor]:
    """A process that shares no objects with this one."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield pool


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


# ------------------------------------------------------------------------------------- round trips


def test_data_comes_back_equal(job: honeycomb.Job) -> None:
    queue = job.queue("q")
    queue.put(b"x")
    for value in [queue.counts(), job.lease(), honeycomb.Notification("put", "b", 3, key=b"k")]:
        assert again(value) == value == copy.deepcopy(value) == copy.copy(value)
    tree = job.tree()
    assert str(again(tree)) == str(tree) == str(copy.deepcopy(tree))
    [renewal] = job.renew()
    assert again(renewal) == renewal
    assert again(job.handle()) == job.handle()


def test_results_of_batches(job: honeycomb.Job) -> None:
    kv = job.kv("kv")
    with kv.batch() as batch:
        put, absent = batch.put("a", b"1"), batch.get("b")
        waiting = again(put)
        with pytest.raises(TypeError, match="a batch cannot be pickled"):
            pickle.dumps(batch)
    assert again(put).value is False and again(absent).value is None
    assert repr(waiting) == "<honeycomb.Result not run>"
    with pytest.raises(errors.InvalidArgument, match="has not run"):
        _ = waiting.value


def test_handles_are_what_they_name(job: honeycomb.Job) -> None:
    kv, file, queue = job.kv("p:kv"), job.file("p:file"), job.queue("p:queue")
    kv["k"] = b"v"
    file.append(b"bytes")
    queue.put(b"item")
    twin = again(job)
    assert (twin.id, twin.name) == (job.id, job.name)
    assert again(kv)["k"] == b"v"
    assert again(file).read() == b"bytes"
    assert again(queue).get_nowait() == b"item"
    assert again(kv)._job is again(file)._job, "they share connections"
    for handle in (job, kv, file, queue, job._client, aio.AsyncKv(kv)):
        assert copy.copy(handle) is handle and copy.deepcopy([handle])[0] is handle


def test_a_client_is_another_client_of_the_same_cluster(cluster: honeycomb.Client) -> None:
    with again(cluster) as twin:
        assert (twin.address, twin.embedded) == (cluster.address, False)
        with twin.job("of-the-twin"):
            assert "of-the-twin" in {one["name"] for one in cluster.jobs()}
    assert cluster.status()["servers"], "closing the twin closed the twin"


def test_what_belongs_to_its_process_refuses(job: honeycomb.Job) -> None:
    with job.kv("kv").subscribe() as listener, job.open("f", "ab") as appender:
        for one, words in [(listener, "subscribe again"), (appender, "pickle the file")]:
            with pytest.raises(TypeError, match=words):
                pickle.dumps(one)
        with pytest.raises(TypeError, match="subscribe again"):
            pickle.dumps(aio.AsyncListener(listener))


def test_twins(job: honeycomb.Job) -> None:
    kv, queue = aio.AsyncKv(job.kv("kv")), aio.AsyncQueue(job.queue("q"))
    queue.blocking.put(b"item")
    reserved = aio.AsyncReservation(queue.blocking.reserve()[0])

    async def main() -> None:
        await again(kv).put("k", b"v")
        assert await kv["k"] == b"v"
        assert await again(reserved).ack()
        assert await again(queue).get_many(1, 0) == []
        assert (await again(aio.AsyncJob(job)).lease()).duration

    asyncio.run(main())


@pytest.mark.parametrize("name", sorted(vars(errors)))
def test_errors_keep_all_they_know(name: str) -> None:
    cls = getattr(errors, name)
    if not (isinstance(cls, type) and issubclass(cls, errors.HoneycombError)):
        return
    error = cls("what happened")
    error.failures = {1: error, 2: errors.KeyExists("k")}
    error.results = [None, b"v"]
    error.put = 7
    error.hint = "do this"
    error.add_note("a note")
    for other in (again(error), copy.copy(error)):
        assert (type(other), str(other), other.args) == (cls, str(error), error.args)
        assert (other.put, other.hint, other.__notes__) == (7, "do this", ["a note"])
        assert sorted(other.failures) == [1, 2] and other.results == [None, b"v"]
        assert str(other.failures[2]) == "k"
    assert again(error).failures[1].put == 7


# -------------------------------------------------------------------------------- other processes


def use(kv: honeycomb.Kv, file: honeycomb.HoneyFile, queue: honeycomb.Queue) -> int:
    kv.increment("n")
    file.append(b"%d\n" % os.getpid())
    queue.put(b"from there")
    return os.getpid()


def test_spawned_processes_take_part(job: honeycomb.Job, spawned: ProcessPoolExecutor) -> None:
    kv, file, queue = job.kv("kv"), job.file("file"), job.queue("queue")
    pid = spawned.submit(use, kv, file, queue).result(60)
    assert pid != os.getpid()
    assert kv.number("n") == 1 and file.read() == b"%d\n" % pid and queue.get(10) == b"from there"


def settle(one: honeycomb.Reservation, how: str) -> tuple[bytes, int, bool]:
    return one.item, one.deliveries, getattr(one, how)()


def test_another_process_settles_a_reservation(
    job: honeycomb.Job, spawned: ProcessPoolExecutor
) -> None:
    queue = job.queue("queue")
    queue.put_many([b"one", b"two"])
    one, two = queue.reserve(2, lease=600)
    assert spawned.submit(settle, one, "ack").result(60) == (b"one", 1, True)
    assert spawned.submit(settle, two, "give_back").result(60) == (b"two", 1, True)
    assert not one.ack() and not two.ack(), "both are settled"
    [again_two] = queue.reserve(lease=600)
    assert (again_two.item, again_two.deliveries) == (b"two", 2)
    assert again_two.ack() and queue.qsize() == 0


def forked(body: Callable[[], object]) -> int:
    """Runs ``body`` in a forked child. Returns 0 if it did not raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_leaves_the_parent_s_queue_and_listener_alone(job: honeycomb.Job) -> None:
    queue = job.queue("q")
    queue.put_many([b"1", b"2", b"3"])
    [held] = queue.reserve(lease=600)
    listener = queue.subscribe("data")

    def child() -> None:
        assert queue.get(10) == b"2"
        queue.put(b"child")
        assert held.ack()
        with pytest.raises(errors.Closed, match="belongs to the process that was forked"):
            listener.get(0)
        listener.close()
        with queue.subscribe("data") as own:
            queue.put(b"heard")
            assert own.get(10) is not None

    assert forked(child) == 0
    assert [queue.get(10) for _ in range(3)] == [b"3", b"child", b"heard"]
    assert not held.ack(), "the child did"
    heard = 0
    while heard < 2:
        notification = listener.get(10)
        assert notification is not None and notification.op == "data"
        heard += notification.items or 0
    listener.close()


def test_a_child_that_is_forked_while_others_wait_does_not_hang(job: honeycomb.Job) -> None:
    queue, kv = job.queue("q"), job.kv("kv")
    listener = kv.subscribe()
    received: list[object] = []
    waiting = [
        threading.Thread(target=lambda: received.append(queue.get(60))),
        threading.Thread(target=lambda: received.append(listener.get(60))),
    ]
    for one in waiting:
        one.start()

    def child() -> None:
        listener.close()
        del listener_in_child[:]
        other = job.queue("other")
        other.put(b"x")
        assert other.get(10) == b"x"

    listener_in_child = [listener]
    for _ in range(5):
        assert forked(child) == 0
    queue.put(b"for the parent")
    kv["k"] = b"v"
    for one in waiting:
        one.join(60)
    assert b"for the parent" in received and len(received) == 2
    listener.close()


def consume(queue: honeycomb.Queue, seen: honeycomb.Kv) -> int:
    return sum(1 for item in queue if seen.increment(item))


def test_forked_and_spawned_consumers_share_one_queue(job: honeycomb.Job) -> None:
    queue, seen = job.queue("q"), job.kv("seen", blocks=2)
    items = [b"%d" % number for number in range(400)]
    counted = 0
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(consume, queue, seen) for _ in range(2)]
        queue.put_many(items)
        queue.close()
        counted = sum(one.result(60) for one in futures)
    assert counted == len(items)
    assert seen.multi_get(items).count(None) == 0
    assert all(seen.number(item) == 1 for item in items), "each once"


# ----------------------------------------------------------------------------------------- threads


def test_threads_use_the_same_objects(job: honeycomb.Job) -> None:
    kv, file, queue = job.kv("kv", blocks=2), job.file("file"), job.queue("queue", max_items=32)
    rounds, workers = 60, 8
    taken: list[bytes] = []

    def work(number: int) -> None:
        for turn in range(rounds):
            kv.increment("sum")
            kv[f"{number}-{turn}"] = b"v"
            file.append(b"%03d-%03d\n" % (number, turn))
            queue.put(b"%d-%d" % (number, turn))
            taken.append(queue.get(30))
            assert kv.get(f"{number}-{turn}") == b"v"

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    assert kv.number("sum") == rounds * workers
    expected = sorted(b"%d-%d" % (n, t) for n in range(workers) for t in range(rounds))
    assert sorted(taken) == expected
    lines = file.read().splitlines()
    assert len(lines) == rounds * workers
    for number in range(workers):
        mine = [line for line in lines if line.startswith(b"%03d-" % number)]
        assert mine == sorted(mine), "each writer's appends are in its order"


def test_unpickled_handles_of_a_closed_job_connect_again(cluster: honeycomb.Client) -> None:
    with cluster.job() as job:
        data = pickle.dumps(job.kv("kv"))
        first = pickle.loads(data)
        first._job.close()
        second = pickle.loads(data)
        second["k"] = b"v"
        assert isinstance(second._job, Job)
    assert eventually(lambda: job.name not in {one["name"] for one in cluster.jobs()})
