"""Many keys and ranges in one call, atomic batches and accumulated values."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from types import MappingProxyType

import pytest
from conftest import MEMORY
from test_faults import cluster as processes
from test_faults import hit

import honeycomb
from honeycomb import errors
from honeycomb._native import key_hash

BLOCKS = 8


@pytest.fixture
def kv(job: honeycomb.Job) -> honeycomb.Kv:
    return job.kv("store", blocks=BLOCKS)


def test_many_keys_go_and_come_in_order(kv: honeycomb.Kv) -> None:
    entries = {f"key-{i}".encode(): random.randbytes(i % 90) for i in range(3000)}
    assert kv.multi_put(entries) == 0
    assert kv.multi_put([("key-1", b"again"), (bytearray(b"new"), memoryview(b"x"))]) == 1
    assert kv.multi_get(["key-1", b"absent", "key-7", "key-1"]) == [
        b"again",
        None,
        entries[b"key-7"],
        b"again",
    ]
    entries |= {b"key-1": b"again", b"new": b"x"}
    assert dict(zip(entries, kv.multi_get(entries), strict=True)) == entries
    assert len(kv) == len(entries)
    assert kv.multi_delete(iter(["key-1", "absent", "key-1", "key-2"])) == 2
    assert kv.multi_get([]) == [] and kv.multi_put({}) == 0 and kv.multi_delete(()) == 0
    popped = kv.popitem()
    assert entries[popped[0]] == popped[1] and popped[0] not in kv
    kv.clear()
    assert len(kv) == 0


def test_many_entries_come_from_any_mapping_and_any_pairs(kv: honeycomb.Kv) -> None:
    assert kv.multi_put(MappingProxyType({"a": b"1", "b": b"2"})) == 0
    assert kv.multi_put(iter([["a", b"3"], ("c", b"4")])) == 1  # type: ignore[list-item]
    assert kv.multi_get(["a", "b", "c"]) == [b"3", b"2", b"4"]
    for wrong in [[("a", b"1", b"2")], [("a",)], ["abc"]]:
        with pytest.raises(ValueError, match="pair of key and value, not"):
            kv.multi_put(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        kv.multi_put([1])  # type: ignore[list-item]
    assert kv.multi_get(["a"]) == [b"3"]


def test_of_equal_keys_in_different_requests_the_last_value_stays(kv: honeycomb.Kv) -> None:
    # 200 entries of 4 KiB are more than ten requests.
    entries = [(f"key-{i % 50}", bytes([i]) * 4096) for i in range(200)]
    assert kv.multi_put(entries) == 150
    keys = [f"key-{i}" for i in range(50)]
    assert kv.multi_get(keys) == [bytes([150 + i]) * 4096 for i in range(50)]


def test_update_stores_thousands_and_takes_any_iterable(kv: honeycomb.Kv) -> None:
    kv.update((f"{i}", str(i).encode()) for i in range(10_000))
    assert len(kv) == 10_000
    assert kv.multi_get(["0", "9999"]) == [b"0", b"9999"]
    with pytest.raises(TypeError, match="values are bytes"):
        kv.update({"a": "text"})  # type: ignore[dict-item]
    assert "a" not in kv


def test_what_failed_is_told_by_its_place_and_the_rest_is_stored(kv: honeycomb.Kv) -> None:
    large = bytes(MEMORY + 1)
    with pytest.raises(errors.ValueTooLarge, match="'b'") as caught:
        kv.multi_put([("a", b"1"), ("b", large), ("k" * 5000, b"2"), ("c", b"3")])
    error = caught.value
    assert sorted(error.failures) == [1, 2]
    assert error.failures[1] is error
    assert isinstance(error.failures[2], errors.KeyTooLarge)
    assert error.results == [False, None, None, False]
    assert "2 of 4 failed" in "\n".join(error.__notes__)
    assert kv.multi_get(["a", "b", "c"]) == [b"1", None, b"3"]
    with pytest.raises(errors.InvalidArgument) as caught2:
        kv.multi_get(["a", ""])
    assert caught2.value.results == [b"1", None]
    assert errors.HoneycombError("of one key").failures == {}


def test_a_batch_runs_each_alone_and_in_order(kv: honeycomb.Kv) -> None:
    with kv.batch() as b:
        first = b.put("k", b"1")
        seen = b.get("k")
        swapped = b.compare_and_swap("k", b"1", b"2")
        missed = b.compare_and_swap("k", b"1", b"3")
        gone = b.delete("none")
        count = b.accumulate("n", "count")
        total = b.increment("n", 4)
        length = b.append("log", b"line\n")
        assert len(b) == 8
        with pytest.raises(errors.InvalidArgument, match="has not run"):
            first.value  # noqa: B018
    assert (first.value, seen.value, gone.value) == (False, b"1", False)
    assert (swapped.value, missed.value) == ((True, None), (False, b"2"))
    assert (count.value, total.value, length.value) == (1, 5, 5)
    with pytest.raises(errors.KeyExists) as caught, kv.batch() as b:
        stored = b.put("a", b"1")
        refused = b.add("k", b"3")
        after = b.put("b", b"2")
    assert set(caught.value.failures) == {1}
    assert (stored.value, after.value, kv["b"]) == (False, False, b"2")
    with pytest.raises(errors.KeyExists):
        refused.value  # noqa: B018
    with pytest.raises(ZeroDivisionError), kv.batch() as b:
        b.put("never", b"1")
        1 / 0  # noqa: B018
    assert "never" not in kv
    with kv.batch():
        pass  # an empty batch sends no request
    with pytest.raises(errors.InvalidArgument), b:
        pass


def test_an_atomic_batch_applies_whole_or_not_at_all(kv: honeycomb.Kv) -> None:
    with kv.atomic("user:7") as b:
        b.put("name", b"Ada")
        logins = b.accumulate("logins", "count")
        read = b.get("name")
        b.delete("absent")
        assert b.key("name") == b"{user:7}name"
    assert (logins.value, read.value, kv["{user:7}name"]) == (1, b"Ada", b"Ada")
    with (
        pytest.raises(errors.CompareFailed, match="operation 2") as caught,
        kv.atomic("user:7") as b,
    ):
        b.put("name", b"Grace")
        b.delete("logins")
        b.compare_and_swap("name", b"Ada", b"Edith")
    assert list(caught.value.failures) == [2]
    assert caught.value.results[2] == (False, b"Grace")
    assert kv["{user:7}name"] == b"Ada" and kv.number("{user:7}logins") == 1
    with pytest.raises(errors.InvalidArgument, match="not an i64"), kv.atomic("user:7") as b:
        b.put("name", b"Grace")
        never = b.increment("name")
    with pytest.raises(errors.InvalidArgument, match="has not run"):
        never.value  # noqa: B018
    assert kv["{user:7}name"] == b"Ada"


def test_an_atomic_batch_is_of_one_slot(kv: honeycomb.Kv) -> None:
    one, other = "{a}k", "{b}k"
    assert key_hash(one.encode()) >> 54 != key_hash(other.encode()) >> 54
    with pytest.raises(errors.InvalidArgument, match=r"'\{a\}k' and '\{b\}k'"), kv.atomic() as b:
        b.put(one, b"1")
        b.put(other, b"1")
    with kv.atomic() as b:
        b.put(one, b"1")
        b.put("{a}l", b"2")
    assert len(kv) == 2
    with pytest.raises(errors.InvalidArgument, match="1024"), kv.atomic("a") as b:
        for i in range(1025):
            b.get(str(i))
    with pytest.raises(errors.ValueTooLarge, match="61440"), kv.atomic("a") as b:
        for i in range(10):
            b.put(str(i), bytes(7000))
    for tag in ("", "}"):
        with pytest.raises(errors.InvalidArgument, match="a tag"):
            kv.atomic(tag)


def test_transfers_between_threads_keep_the_sum(kv: honeycomb.Kv) -> None:
    """Transfers money between accounts of one tag; every reader sees a constant total."""
    with kv.atomic("bank") as b:
        for account in range(5):
            b.increment(f"{account}", 100)
    done = threading.Event()
    wrong: list[int] = []

    def look() -> None:
        while not done.is_set():
            with kv.atomic("bank") as b:
                read = [b.accumulate(f"{account}", "sum", 0) for account in range(5)]
            total = sum(result.value for result in read)
            if total != 500:
                wrong.append(total)

    def move(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(150):
            giver, taker = chance.sample(range(5), 2)
            with kv.atomic("bank") as b:
                b.increment(f"{giver}", -7)
                b.increment(f"{taker}", 7)

    movers = [threading.Thread(target=move, args=(seed,)) for seed in range(3)]
    looker = threading.Thread(target=look)
    for thread in (*movers, looker):
        thread.start()
    for thread in movers:
        thread.join()
    done.set()
    looker.join()
    assert not wrong
    assert sum(kv.accumulate(f"{{bank}}{a}", "sum", 0) for a in range(5)) == 500


def test_numbers(kv: honeycomb.Kv) -> None:
    assert kv.number("n") is None
    assert kv.increment("n") == 1
    assert kv.increment("n", -5) == -4
    assert kv.accumulate("n", "max", 10) == 10
    assert kv.accumulate("n", "min", 3) == 3
    assert kv.accumulate("n", "count") == 4
    number = kv.number("n")
    assert number == 4 and type(number) is int
    assert kv.accumulate("x", "sum", 0.5) == 0.5
    assert kv.accumulate("x", "sum", 1.0) == 1.5
    assert kv.accumulate("x", "min", -math.inf) == -math.inf
    with pytest.raises(errors.InvalidArgument, match="NaN"):
        kv.accumulate("x", "sum", math.inf)
    with pytest.raises(errors.InvalidArgument, match="NaN"):
        kv.accumulate("new", "max", math.nan)
    assert "new" not in kv and type(kv.number("x")) is float
    with pytest.raises(errors.InvalidArgument, match=r"an f64.*not an i64"):
        kv.increment("x")
    with pytest.raises(errors.InvalidArgument, match="outside the 64 bits"):
        kv.increment("n", 1 << 63)
    kv.accumulate("big", "sum", (1 << 63) - 1)
    with pytest.raises(errors.InvalidArgument, match="outside an i64"):
        kv.increment("big")
    assert kv.number("big") == (1 << 63) - 1
    kv["text"] = b"12"
    with pytest.raises(errors.InvalidArgument, match=r"no number or list .2 bytes., not a number"):
        kv.number("text")
    with pytest.raises(errors.InvalidArgument, match="no function 'mean'"):
        kv.accumulate("n", "mean", 1)  # type: ignore[call-overload]
    for function, operand in [("sum", "1"), ("count", 1), ("append", None), ("top", 3)]:
        with pytest.raises(TypeError):
            kv.accumulate("n", function, operand)  # type: ignore[call-overload]


def test_append_and_its_limits(kv: honeycomb.Kv) -> None:
    assert kv.append("log", b"one ") == 4
    assert kv.append("log", memoryview(b"two")) == 7
    assert kv["log"] == b"one two"
    piece = random.randbytes(kv.plain_limit // 2)
    assert kv.append("long", piece) == len(piece)
    assert kv.append("long", piece) == 2 * len(piece)
    with pytest.raises(errors.ValueTooLarge, match="limit"):
        kv.append("long", b"x")
    assert kv["long"] == 2 * piece
    with pytest.raises(errors.ValueTooLarge, match="61440"):
        kv.append("other", bytes(61_441))
    with pytest.raises(TypeError, match="values are bytes"):
        kv.append("log", "text")  # type: ignore[arg-type]


def test_a_top_list_against_sorting(kv: honeycomb.Kv) -> None:
    assert kv.top("best") == []
    chance = random.Random(5)
    scores: dict[bytes, float] = {}
    for _ in range(300):
        item, score = f"item-{chance.randrange(60)}".encode(), float(chance.randrange(10))
        scores[item] = max(score, scores.get(item, score))
        kv.top_add("best", item, score, k=60)
    ranked = sorted(((s, i) for i, s in scores.items()), key=lambda pair: (-pair[0], pair[1]))
    assert kv.top("best") == ranked
    assert kv.top("best", 3) == ranked[:3]
    assert kv.top_add("best", "better", 99, k=2) == [(99.0, b"better"), ranked[0]]
    with kv.batch() as b:
        items = b.accumulate("best", "top", (5, 1.0, b"last"))
    assert items.value == 3
    for k in (0, 1025, -1, 1 << 32):
        with pytest.raises(errors.InvalidArgument, match="k is 1 to 1024"):
            kv.top_add("best", "x", 1.0, k=k)
    with pytest.raises(errors.InvalidArgument, match="NaN"):
        kv.top_add("best", "x", math.nan)
    kv.increment("n")
    with pytest.raises(errors.InvalidArgument, match="not a top list"):
        kv.top("n")


def test_ranges_of_a_file(job: honeycomb.Job) -> None:
    file = job.file("data")
    content = random.randbytes(700_000)  # a dozen blocks
    file.write_all(content)
    chance = random.Random(1)
    ranges = [(chance.randrange(700_000), chance.randrange(3000)) for _ in range(2000)]
    ranges += [(0, 0), (699_999, 50), (700_000, 50), (1 << 40, 1), (5, 650_000), (0, 1 << 40)]
    read = file.read_ranges(iter(ranges))
    assert read == [content[at : at + size] for at, size in ranges]
    assert file.read_ranges([]) == []
    with pytest.raises(errors.InvalidArgument, match="0 or more bytes, not -1"):
        file.read_ranges([(0, 1), (-1, 5)])
    with pytest.raises(errors.InvalidArgument, match="0 or more bytes, not -1"):
        file.read_ranges([(0, -1)])


def test_a_server_that_stands_still_delays_only_its_own_keys() -> None:
    """The stopped server's keys fail with the deadline or, if the controller is faster, with the loss. The
    other keys' values are returned."""
    with processes(2) as (hc, servers), hc.job("still", lease=30.0) as job:
        job.kv("a:kv", blocks=4)
        keys = [f"key-{i}" for i in range(400)]
        with honeycomb.connect(hc.address, hc.token, timeout=1.0) as hasty:
            impatient = hasty.attach("still").kv("a:kv")
            impatient.multi_put((key, b"v") for key in keys)
            assert impatient.multi_get(keys) == [b"v"] * 400
            hit(servers[0], signal.SIGSTOP)
            began = time.monotonic()
            with pytest.raises((errors.DeadlineExceeded, errors.DataLost)) as caught:
                impatient.multi_get(keys)
            assert time.monotonic() - began < 4
            error = caught.value
            got = [value for value in error.results if value is not None]
            assert got == [b"v"] * (400 - len(error.failures))
            assert 0 < len(error.failures) < 400, "the blocks are on both servers"
            os.kill(servers[0].pid, signal.SIGCONT)
