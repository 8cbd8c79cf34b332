"""Queues in a real cluster: order, bounds, waiting, reservations, growth, ends and losses."""

from __future__ import annotations

import os
import queue as queues
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from conftest import BLOCK_SIZE, MEMORY, eventually
from test_faults import cluster as processes
from test_faults import hit

import honeycomb
from honeycomb import errors


@pytest.fixture
def queue(job: honeycomb.Job) -> honeycomb.Queue:
    return job.queue("q")


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


# ------------------------------------------------------------------------------- order and content


def test_first_in_first_out(queue: honeycomb.Queue) -> None:
    items: list[bytes | bytearray | memoryview] = [b"", b"one", bytearray(b"2"), memoryview(b"III")]
    for item in items:
        queue.put(item)
    assert len(queue) == queue.qsize() == 4 and queue
    assert queue.peek(3) == [b"", b"one", b"2"] and len(queue) == 4
    assert [queue.get() for _ in items] == [b"", b"one", b"2", b"III"]
    assert queue.empty() and not queue.full() and queue.peek() == []
    assert queue.counts() == honeycomb.QueueCounts(items=0, bytes=0, reserved=0, closed=False)


def test_thousands_over_many_small_blocks_in_order(queue: honeycomb.Queue) -> None:
    chance = random.Random(5)
    items = [chance.randbytes(chance.choice([0, 3, 100, 2000, 5000])) for _ in range(3000)]
    assert queue.put_many(iter(items)) == len(items)
    counts = queue.counts()
    assert (counts.items, counts.bytes) == (len(items), sum(map(len, items)))
    received: list[bytes] = []
    while len(received) < len(items):
        some = queue.get_many(chance.choice([1, 7, 500, 4096]), 10)
        assert some
        received += some
    assert received == items


def test_the_largest_item(queue: honeycomb.Queue) -> None:
    assert queue.item_limit > MEMORY
    largest = random.randbytes(MEMORY // 4)
    queue.put(largest)
    with pytest.raises(errors.ValueTooLarge, match="q") as caught:
        queue.put(bytes(MEMORY + 1))
    assert "split it" in caught.value.hint
    with pytest.raises(errors.ValueTooLarge) as many:
        queue.put_many([b"a", bytes(MEMORY + 1), b"b"])
    assert queue.peek(10) == [largest]
    assert queue.counts().bytes == len(largest) + many.value.put
    assert queue.get_many(10) == [largest], "an item in pieces is delivered alone"
    assert queue.get_many(10, 0) == [b"a"][: many.value.put]


def test_large_items_between_small_ones(queue: honeycomb.Queue) -> None:
    items = [random.randbytes(size) for size in (10, BLOCK_SIZE // 8, 0, 100_000, 20)]
    assert queue.put_many(items) == len(items)
    with queue.reserve(lease=60)[0] as first:
        assert first == items[0]
    assert [queue.get() for _ in items[1:]] == items[1:]


def test_producers_and_consumers_in_threads(job: honeycomb.Job) -> None:
    queue = job.queue("q", max_items=50)
    producers, each = 4, 500
    received: list[list[bytes]] = [[] for _ in range(4)]

    def produce(number: int) -> None:
        for turn in range(each):
            queue.put(b"%d:%d" % (number, turn))

    with ThreadPoolExecutor(8) as pool:
        consuming = [pool.submit(mine.extend, queue) for mine in received]
        list(pool.map(produce, range(producers)))
        queue.close()
        for one in consuming:
            one.result(60)
    everything = [item for mine in received for item in mine]
    assert sorted(everything) == sorted(
        b"%d:%d" % (n, t) for n in range(producers) for t in range(each)
    )
    for mine in received:
        for number in range(producers):
            turns = [int(i.split(b":")[1]) for i in mine if i.startswith(b"%d:" % number)]
            assert turns == sorted(turns), "each consumer sees a producer's items in their order"


# --------------------------------------------------------------------------------- bounds, waiting


def test_bounds_of_items_and_bytes(job: honeycomb.Job) -> None:
    queue = job.queue("items", max_items=3)
    assert (queue.max_items, queue.max_bytes) == (3, 0)
    for item in numbered(3):
        queue.put_nowait(item)
    assert queue.full()
    with pytest.raises(errors.QueueFull):
        queue.put_nowait(b"4")
    with pytest.raises(queues.Full):
        queue.put(b"4", 0.05)
    assert queue.get() == b"0" and not queue.full()
    queue.put(b"3", 0)
    assert queue.get_many(9) == numbered(3, 1)

    small = job.queue("bytes", max_bytes=1000)
    small.put(bytes(600))
    with pytest.raises(errors.QueueFull):
        small.put(bytes(600), 0)
    small.put(bytes(400), 0)
    assert small.full()
    with pytest.raises(errors.AlreadyExists, match=r"max_bytes=1000.*max_bytes=5"):
        job.queue("bytes", max_bytes=5)
    assert job.queue("bytes").max_bytes == 1000


def test_timeouts(queue: honeycomb.Queue, job: honeycomb.Job) -> None:
    for wait in (0, 0.1):
        began = time.monotonic()
        with pytest.raises(errors.QueueEmpty, match="no item"):
            queue.get(wait)
        with pytest.raises(queues.Empty):
            queue.get(timeout=wait)
        assert queue.get_many(5, wait) == [] and queue.reserve(timeout=wait) == []
        assert 4 * wait <= time.monotonic() - began < 4 * wait + 5
    full = job.queue("full", max_items=1)
    full.put(b"x")
    began = time.monotonic()
    with pytest.raises(errors.QueueFull):
        full.put(b"y", 0.1)
    assert 0.1 <= time.monotonic() - began < 5


@contextmanager
def waiting(call: object, *args: object) -> Iterator[list[object]]:
    """Makes a waiting call in a separate thread; its result is available at the end of the block."""
    came: list[object] = []
    begun = threading.Event()

    def run() -> None:
        begun.set()
        try:
            came.append(call(*args))  # type: ignore[operator]
        except errors.HoneycombError as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    yield came
    thread.join(30)
    assert not thread.is_alive()


def test_a_get_waits_for_an_item_and_a_put_for_room(job: honeycomb.Job) -> None:
    queue = job.queue("q", max_items=1)
    with waiting(queue.get) as got:
        queue.put(b"item")
    assert got == [b"item"]
    queue.put(b"first")
    with waiting(queue.put, b"second") as put:
        assert queue.get() == b"first"
    assert put == [None] and queue.get(10) == b"second"
    queue.put(b"first")
    with waiting(queue.put_many, numbered(5)) as many:
        assert [queue.get(10) for _ in range(6)] == [b"first", *numbered(5)]
    assert many == [5]


def test_two_that_wait_get_one_each(queue: honeycomb.Queue) -> None:
    with waiting(queue.get) as one, waiting(queue.get) as two:
        queue.put_many([b"a", b"b"])
    assert sorted([*one, *two]) == [b"a", b"b"]  # type: ignore[type-var]


def test_ctrl_c_ends_a_blocked_get_and_a_blocked_put(
    cluster: honeycomb.Client, job: honeycomb.Job
) -> None:
    """The interrupted process reports the interrupt and continues; no item is lost."""
    program = """if True:
        import signal, sys, honeycomb
        hc = honeycomb.connect()
        job = hc.attach(sys.argv[1])
        came = []

        def once(number, frame):  # more signals may come than the first
            came.append(number)
            if len(came) == 1:
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, once)
        queue = job.queue("q", max_items=1)
        call = {"get": queue.get, "put": lambda: queue.put(b"x"), "follow": lambda:
                next(job.file("f").follow()), "wait": lambda: job.kv("k").wait_until("never"),
                "listen": queue.subscribe().get}[sys.argv[2]]
        try:
            print("ready", flush=True)  # inside: the signal may come at once
            call()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(queue.qsize(), flush=True)
    """
    environment = os.environ | {
        "HONEYCOMB_ADDRESS": cluster.address,
        "HONEYCOMB_TOKEN": cluster.token.hex(),
    }
    queue = job.queue("q", max_items=1)
    for call in ("get", "put", "follow", "wait", "listen"):
        if call == "put":
            queue.put(b"only")
        child = subprocess.Popen(
            [sys.executable, "-c", program, job.name, call],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            # A signal may arrive just before the wait begins; then the next signal ends the wait.
            told: list[str] = []
            reader = threading.Thread(target=lambda c=child, t=told: t.append(c.stdout.readline()))
            reader.start()
            began = time.monotonic()
            while reader.is_alive():
                child.send_signal(signal.SIGINT)
                reader.join(0.5)
                assert time.monotonic() - began < 20, f"a blocked {call} ignores Ctrl-C"
            assert told == ["interrupted\n"], call
            assert child.stdout.readline() == ("0\n" if call == "get" else "1\n")
            assert child.wait(30) == 0
        finally:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
    assert queue.get_many(5, 0) == [b"only"], "the put that was interrupted put nothing"


# ------------------------------------------------------------------------------------------ the end


def test_closing_drains(queue: honeycomb.Queue) -> None:
    queue.put_many(numbered(3))
    assert not queue.closed and not queue.wait_until_closed(0.01)
    with waiting(queue.wait_until_closed, 30) as told:
        queue.close()
    assert told == [True] and queue.closed and queue.counts().closed
    queue.close()
    with pytest.raises(errors.QueueClosed):
        queue.put(b"late")
    with pytest.raises(errors.QueueClosed):
        queue.put_many([b"late"])
    assert list(queue) == numbered(3)
    for call in (queue.get, lambda: queue.get_many(3), queue.reserve, queue.get_nowait):
        with pytest.raises(errors.QueueClosed):
            call()
    assert len(queue) == 0


def test_closing_ends_those_who_wait(job: honeycomb.Job) -> None:
    queue, full = job.queue("q"), job.queue("full", max_items=1)
    full.put(b"x")
    with (
        waiting(queue.get) as get,
        waiting(list, queue) as iteration,
        waiting(full.put, b"y") as put,
    ):
        queue.close()
        full.close()
    assert isinstance(get[0], errors.QueueClosed) and isinstance(put[0], errors.QueueClosed)
    assert iteration == [[]]


@pytest.mark.parametrize("how", ["remove", "remove_prefix", "expire", "deregister"])
def test_those_who_wait_learn_why_it_is_gone(cluster: honeycomb.Client, how: str) -> None:
    reasons = {
        "remove": errors.Removed,
        "remove_prefix": errors.Removed,
        "expire": errors.LeaseExpired,
        "deregister": errors.HoneycombError,
    }
    job = cluster.job(lease=600, keep=False)
    with job:
        job.create_addr_prefix("p", lease=0.3 if how == "expire" else 600)
        queue = job.queue("p:q")
        with waiting(queue.get) as came:
            if how == "remove":
                job.remove("p:q")
            elif how == "remove_prefix":
                job.remove_prefix("p")
            elif how == "deregister":
                job.close()
        assert isinstance(came[0], reasons[how]), came


# ------------------------------------------------------------------------------------- reservations


def test_reserve_ack_give_back_and_extend(queue: honeycomb.Queue) -> None:
    queue.put_many(numbered(4))
    zero, one = queue.reserve(2, lease=600)
    assert (zero.item, zero.deliveries) == (b"0", 1)
    assert queue.counts().reserved == 2 and queue.qsize() == 4 and not queue.empty()
    assert zero.ack() and not zero.ack() and not zero.give_back()
    assert one.extend(600) and one.give_back() and not one.extend(1)
    [again] = queue.reserve(lease=600)
    assert (again.item, again.deliveries) == (b"1", 2), "before all others"
    with pytest.raises(ZeroDivisionError), again as item:
        assert item == b"1"
        raise ZeroDivisionError
    with queue.reserve(lease=600)[0] as item:
        assert item == b"1"
    assert queue.get_many(9) == [b"2", b"3"]
    with pytest.raises(errors.QueueEmpty):
        queue.get(0)


def test_a_reservation_that_ran_out_goes_to_somebody_else(queue: honeycomb.Queue) -> None:
    queue.put_many([b"first", b"second"])
    [late] = queue.reserve(lease=0.05)
    assert eventually(lambda: queue.counts().reserved == 0)
    [again] = queue.reserve(lease=600)
    assert (again.item, again.deliveries) == (b"first", 2)
    assert not late.ack() and not late.extend(5) and not late.give_back()
    assert again.ack()
    assert queue.get() == b"second"


def test_one_that_waits_receives_what_comes_back(queue: honeycomb.Queue) -> None:
    queue.put(b"item")
    [held] = queue.reserve(lease=600)
    with waiting(queue.get, 30) as got:
        assert held.give_back()
    assert got == [b"item"]
    queue.put(b"next")
    [_] = queue.reserve(lease=0.2)
    assert queue.get(10) == b"next"


def test_a_closed_queue_ends_only_after_its_reservations(queue: honeycomb.Queue) -> None:
    queue.put(b"item")
    [held] = queue.reserve(lease=600)
    queue.close()
    with pytest.raises((errors.QueueEmpty, errors.QueueClosed)):
        queue.get(0)
    assert held.give_back()
    assert list(queue) == [b"item"]


def test_a_consumer_that_is_killed_loses_only_what_it_took(
    cluster: honeycomb.Client, job: honeycomb.Job
) -> None:
    """kill -9 in the middle: reserved items return to the queue, and each is delivered at least once."""
    program = """if True:
        import sys, honeycomb
        queue = honeycomb.connect().attach(sys.argv[1]).queue("q")
        print(queue.reserve(lease=600)[0].ack(), flush=True)
        held = queue.reserve(10, lease=float(sys.argv[2]))
        print(len(held), flush=True)
        queue.get()  # waits: the rest is reserved by another
    """
    environment = os.environ | {
        "HONEYCOMB_ADDRESS": cluster.address,
        "HONEYCOMB_TOKEN": cluster.token.hex(),
    }
    queue = job.queue("q")
    queue.put_many(numbered(12))
    [mine] = queue.reserve(lease=600)
    child = subprocess.Popen(
        [sys.executable, "-c", program, job.name, "1.0"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(2)] == ["True\n", "10\n"]
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    assert mine.ack()
    received: list[bytes] = []
    while len(received) < 10:
        received += queue.get_many(10, 30)
    assert sorted(received, key=int) == numbered(10, 2)
    assert queue.counts().items == 0


# ---------------------------------------------------------------------------------- growth, servers


def blocks(job: honeycomb.Job) -> int:
    return job.tree().blocks


def test_it_grows_over_small_blocks_and_shrinks_back(job: honeycomb.Job) -> None:
    queue = job.queue("q")
    assert blocks(job) == 1
    item = bytes(4000)
    for _ in range(3):
        queue.put_many([item] * 500)
        assert blocks(job) >= 500 * 4000 // BLOCK_SIZE
        received = 0
        while received < 500:
            received += len(queue.get_many(4096, 10))
        assert queue.counts().items == 0
        assert eventually(lambda: blocks(job) == 1, 5), "the blocks are free again"
    queue.put(b"still works")
    assert queue.get() == b"still works"


def test_a_quota_is_told_and_the_queue_goes_on(cluster: honeycomb.Client) -> None:
    with cluster.job(quota_blocks=3) as job:
        queue = job.queue("q")
        with pytest.raises(errors.QuotaExceeded) as caught:
            queue.put_many([bytes(8000)] * 100)
        put = caught.value.put
        assert 10 < put < 100
        assert queue.qsize() == put
        received = 0
        while received < put:
            received += len(queue.get_many(4096, 10))
        assert eventually(lambda: blocks(job) == 1, 5)

        def fits() -> bool:
            try:
                queue.put(bytes(8000))
            except errors.QuotaExceeded:
                return False
            return True

        # A rejection is cached briefly, so that not every put sends a request to the controller.
        assert eventually(fits, 5)
        queue.put_many([bytes(8000)] * 7)
        assert queue.qsize() == 8


def test_a_reserved_item_of_an_old_block_comes_back(job: honeycomb.Job) -> None:
    queue = job.queue("q")
    queue.put(b"oldest")
    [held] = queue.reserve(lease=600)
    queue.put_many([bytes(4000)] * 100)  # several blocks later
    received = 0
    while received < 100:
        received += len(queue.get_many(100, 10))
    with waiting(queue.get, 30) as got:
        assert held.give_back()
    assert got == [b"oldest"]
    # The next request confirms that the replies arrived; without it blocks are freed later.
    assert queue.get_many(1, 0) == []
    assert eventually(lambda: blocks(job) == 1, 5)


def test_over_two_servers_and_the_loss_of_one() -> None:
    with processes(2) as (hc, servers), hc.job("q", lease=30.0) as job:
        queue = job.queue("q")
        items = [b"%06d" % number + bytes(100_000) for number in range(100)]
        queue.put_many(items)
        held = [one for one in hc.status()["servers"] if one["blocks"] > one["free"]]
        assert len(held) == 2, "blocks of both"
        received: list[bytes] = []
        while len(received) < 50:
            received += queue.get_many(5, 30)
        assert received == items[: len(received)]
        with waiting(lambda: list(queue)) as rest:
            hit(servers[0], signal.SIGKILL)
        assert isinstance(rest[0], errors.DataLost), rest

        def refused() -> bool:
            try:
                queue.put(b"x")
            except errors.DataLost:
                return True
            return False

        # The surviving server's blocks are freed at the same moment, not before.
        assert eventually(refused, 5)


# ---------------------------------------------------------------------------------------- addresses


def test_creating_and_opening(job: honeycomb.Job) -> None:
    with pytest.raises(errors.NotFound):
        job.create_queue("missing/prefix:q")
    job.queue("a/b:q").put(b"x")
    assert job.open_queue("a/b:q").get() == b"x"
    with pytest.raises(errors.AlreadyExists):
        job.create_queue("a/b:q")
    with pytest.raises(errors.WrongKind, match="is a queue, not a file"):
        job.open_file("a/b:q")
    with pytest.raises(errors.WrongKind):
        job.file("a/b:q")
    assert job.create_queue("a/b:q", exist_ok=True).address == f"{job.name}/a/b:q"
    job.remove("a/b:q")
    with pytest.raises(errors.Removed):
        job.open_queue("a/b:q")
