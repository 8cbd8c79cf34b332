"""Listeners, followers and waits in a real cluster."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import BLOCK_SIZE, eventually

import honeycomb
from honeycomb import errors


def hear(listener: honeycomb.Listener, count: int) -> list[honeycomb.Notification]:
    """The next ``count`` notifications."""
    heard: list[honeycomb.Notification] = []
    while len(heard) < count:
        one = listener.get(30)
        assert one is not None, f"only {len(heard)} of {count} came"
        heard.append(one)
    return heard


# -------------------------------------------------------------------------------------- notifications


def test_a_file(job: honeycomb.Job) -> None:
    file = job.file("f")
    file.append(b"before")
    with file.subscribe() as listener, file.subscribe("seal") as seals:
        assert listener.get(0) is None and listener.get(0.01) is None
        assert [file.append(b"one"), file.append(b"three")] == [6, 9]
        file.seal()
        one, two, seal = hear(listener, 3)
        assert (one.op, one.offset, one.length) == ("append", 6, 3)
        assert (two.op, two.offset, two.length) == ("append", 9, 5)
        assert (seal.op, seal.size) == ("seal", 14)
        assert one.number < two.number < seal.number and one.block == two.block
        [only] = hear(seals, 1)
        assert only.op == "seal" and seals.get(0) is None


def test_a_queue(job: honeycomb.Job) -> None:
    queue = job.queue("q")
    with queue.subscribe() as listener, queue.subscribe("close") as closes:
        queue.put_many([b"a", b"b"])
        assert queue.get() == b"a"
        queue.close()
        heard = hear(listener, 3)
        assert [one.op for one in heard] == ["data", "space", "close"]
        assert (heard[0].items, heard[1].items) == (2, 1)
        assert [one.op for one in hear(closes, 1)] == ["close"]


def test_a_store_by_key_and_prefix(job: honeycomb.Job) -> None:
    kv = job.kv("kv", blocks=4)
    with (
        kv.subscribe() as all_,
        kv.subscribe("delete") as deletes,
        kv.subscribe(key="user:1") as one,
        kv.subscribe("put", prefix="user:") as users,
    ):
        for key in ("user:1", "user:2", "other", "user:1"):
            kv[key] = b"v"
        kv.increment("user:3")
        del kv["other"], kv["user:1"]
        by_key: dict[bytes | None, list[str]] = {}
        for heard in hear(all_, 7):
            by_key.setdefault(heard.key, []).append(heard.op)
        assert by_key == {
            b"user:1": ["put", "put", "delete"],
            b"user:2": ["put"],
            b"user:3": ["put"],
            b"other": ["put", "delete"],
        }
        assert {heard.key for heard in hear(deletes, 2)} == {b"other", b"user:1"}
        assert [heard.op for heard in hear(one, 3)] == ["put", "put", "delete"]
        assert sorted(heard.key or b"" for heard in hear(users, 4)) == [
            b"user:1",
            b"user:1",
            b"user:2",
            b"user:3",
        ]
        assert all(listener.get(0) is None for listener in (all_, deletes, one, users))


def test_order_and_numbers_while_many_write(job: honeycomb.Job) -> None:
    kv = job.kv("kv", blocks=2)
    writers, each = 4, 200
    with kv.subscribe("put") as listener:

        def write(number: int) -> None:
            for turn in range(each):
                kv[f"{number}:{turn:04}"] = b"v"

        threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
        for one in threads:
            one.start()
        heard = hear(listener, writers * each)
        for one in threads:
            one.join()
        for number in range(writers):
            # Changes of one block are in the order in which they took effect.
            for block in {one.block for one in heard}:
                mine = [one for one in heard if one.block == block]
                assert [one.number for one in mine] == sorted(one.number for one in mine)
                turns = [one.key for one in mine if (one.key or b"").startswith(b"%d:" % number)]
                assert turns == sorted(turns)  # type: ignore[type-var]
        assert len({one.key for one in heard}) == writers * each, "each once"


def test_never_before_a_reader_can_see_it(job: honeycomb.Job) -> None:
    kv = job.kv("kv")
    with kv.subscribe("put") as listener:

        def write() -> None:
            for number in range(300):
                kv[b"%d" % number] = b"%d" % number

        writer = threading.Thread(target=write)
        writer.start()
        for heard in hear(listener, 300):
            assert heard.key is not None and kv[heard.key] == heard.key
        writer.join()


def test_a_listener_follows_a_file_over_its_blocks(job: honeycomb.Job) -> None:
    file = job.file("f")
    with file.subscribe("append") as listener:
        total = 0
        for _ in range(60):
            total += len(random.randbytes(4000))
            file.append(random.randbytes(4000))
        assert file.size() > 3 * BLOCK_SIZE
        end = 0
        while end < total:
            [one] = hear(listener, 1)
            assert one.offset is not None and one.length is not None
            assert one.offset == end, "no byte is left out or told twice"
            end += one.length
        assert listener.get(0) is None


def test_what_is_not_read_is_a_gap_and_memory_stays_bounded(job: honeycomb.Job) -> None:
    """The listener is not read: the sockets fill up, and the rest is reported as a count."""
    kv = job.kv("kv", blocks=4)
    key = b"k" * 1500
    with kv.subscribe("put", key=key) as listener:
        ops = [(key, b"v")] * 1000
        put = 0
        heard: list[honeycomb.Notification] = []
        while not any(one.op == "gap" for one in heard) and put < 60_000:
            for _ in range(10):
                kv.multi_put(ops)
                put += len(ops)
            # Read until no more changes arrive.
            while (one := listener.get(0.3)) is not None:
                heard.append(one)
        gaps = [one for one in heard if one.op == "gap"]
        assert gaps, f"{put} changes and no gap"
        assert all(one.missed for one in gaps)
        told = sum(one.op == "put" for one in heard)
        assert told + sum(one.missed or 0 for one in gaps) == put
        assert [one.number for one in heard] == sorted(one.number for one in heard)
        kv[key] = b"after"
        [after] = hear(listener, 1)
        assert after.op == "put", "it goes on after a gap"


# --------------------------------------------------------------------------------- waits, followers


def after(begun: threading.Event, change: Callable[[], object]) -> threading.Thread:
    """Makes the change after the caller is about to wait."""

    def run() -> None:
        begun.wait()
        change()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_waiting_until_something_is_so(job: honeycomb.Job) -> None:
    kv, file = job.kv("kv"), job.file("f")
    assert not kv.wait_until("k", 0) and not kv.wait_until("k", 0.05)
    assert not file.wait_until(sealed=True, timeout=0.05) and file.wait_until(size=0, timeout=0)
    cases: list[tuple[Callable[[], bool], Callable[[], Any]]] = [
        (lambda: kv.wait_until("k", 30), lambda: kv.put("k", b"v")),
        (lambda: file.wait_until(size=10, timeout=30), lambda: file.append(bytes(10))),
        (lambda: file.wait_until(sealed=True, timeout=30), file.seal),
    ]
    for wait, change in cases:
        begun = threading.Event()
        changing = after(begun, change)
        begun.set()
        assert wait()
        changing.join()
        assert wait(), "it is so already"
    assert file.wait_until(size=1 << 40, timeout=30), "sealed, so it never will be larger"


def test_following_a_file_that_grows(job: honeycomb.Job) -> None:
    file = job.file("f")
    content = random.randbytes(500_000)
    file.append(content[:100])

    def write() -> None:
        chance = random.Random(3)
        at = 100
        while at < len(content):
            size = chance.choice([1, 100, 5000, file.append_limit])
            file.append(content[at : at + size])
            at += size
        file.seal()

    writer = threading.Thread(target=write)
    followers: list[bytes] = []

    def follow(offset: int) -> None:
        followers.append(content[:offset] + b"".join(file.follow(offset, timeout=60)))

    threads = [threading.Thread(target=follow, args=(offset,)) for offset in (0, 50, 100)]
    for one in [*threads, writer]:
        one.start()
    for one in [*threads, writer]:
        one.join(60)
    assert followers == [content] * 3
    assert list(file.follow(len(content))) == [] and list(file.follow(len(content) - 2)) == [
        content[-2:]
    ]


def test_a_follower_gives_up_when_nothing_comes(job: honeycomb.Job) -> None:
    file = job.file("f")
    file.append(b"abc")
    began = time.monotonic()
    assert list(file.follow(timeout=0.1)) == [b"abc"]
    assert 0.1 <= time.monotonic() - began < 10


# ---------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("how", ["remove", "remove_prefix", "expire"])
def test_a_listener_is_told_why_the_data_is_gone(cluster: honeycomb.Client, how: str) -> None:
    with cluster.job(lease=600, keep=False) as job:
        job.create_addr_prefix("p", lease=0.4 if how == "expire" else 600)
        listeners = [
            job.kv("p:kv").subscribe(),
            job.file("p:f").subscribe(),
            job.queue("p:q").subscribe(),
        ]
        if how == "remove":
            for name in ("kv", "f", "q"):
                job.remove(f"p:{name}")
        elif how == "remove_prefix":
            job.remove_prefix("p")
        reason = errors.LeaseExpired if how == "expire" else errors.Removed
        for listener in listeners:
            with pytest.raises(reason):
                while listener.get(30) is not None:
                    pass
            listener.close()


def test_closing_ends_one_that_waits(job: honeycomb.Job) -> None:
    listener = job.kv("kv").subscribe()
    ended: list[object] = []
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        ended.extend(listener)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    listener.close()
    thread.join(30)
    assert not thread.is_alive() and ended == [] and listener.closed


def test_closing_a_listener_twice_or_after_its_data_is_gone_is_fine(job: honeycomb.Job) -> None:
    with job.kv("p:kv").subscribe() as listener:
        job.remove("p:kv")
        with pytest.raises(errors.Removed):
            while listener.get(30) is not None:
                pass
        listener.close()
        listener.close()
    assert listener.closed
    with pytest.raises(errors.Closed):
        listener.get(0)


def test_callbacks(job: honeycomb.Job) -> None:
    kv = job.kv("kv")
    heard: list[bytes | None] = []
    three = threading.Event()

    def callback(notification: honeycomb.Notification) -> None:
        heard.append(notification.key)
        if len(heard) == 3:
            three.set()

    with kv.subscribe("put") as listener:
        thread = listener.on(callback)
        for key in "abc":
            kv[key] = b"v"
        assert three.wait(30)
    thread.join(30)
    assert not thread.is_alive() and heard == [b"a", b"b", b"c"]
    assert thread.daemon and "kv" in thread.name


def test_a_callback_ends_with_the_data(job: honeycomb.Job) -> None:
    thread = job.kv("p:kv").subscribe().on(lambda notification: None)
    job.remove("p:kv")
    thread.join(30)
    assert not thread.is_alive()


def test_threads_share_a_listener(job: honeycomb.Job) -> None:
    kv = job.kv("kv")
    heard: list[bytes | None] = []
    with kv.subscribe("put") as listener:

        def take() -> None:
            heard.extend(one.key for one in listener)

        threads = [threading.Thread(target=take) for _ in range(3)]
        for one in threads:
            one.start()
        keys = [b"%d" % number for number in range(300)]
        kv.multi_put((key, b"v") for key in keys)
        assert eventually(lambda: len(heard) == 300, 30)
    for one in threads:
        one.join(30)
    assert sorted(heard) == sorted(keys), "each is told once"  # type: ignore[type-var]


def test_listeners_leave_nothing_behind(job: honeycomb.Job) -> None:
    kv = job.kv("kv", blocks=2)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with kv.subscribe() as first:
        first.get(0)
    before = descriptors()
    for _ in range(30):
        with kv.subscribe() as listener:
            kv["k"] = b"v"
            assert hear(listener, 1)
    assert descriptors() <= before + 2
