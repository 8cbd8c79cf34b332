from __future__ import annotations

import itertools
import os
import pickle
import threading
import warnings

import pytest
from conftest import MEMORY

import honeycomb
from honeycomb import errors


@pytest.fixture
def kv(job: honeycomb.Job) -> honeycomb.Kv:
    return job.kv("store", blocks=4)


def test_it_is_a_dictionary(kv: honeycomb.Kv) -> None:
    kv["one"] = b"1"
    kv[b"two"] = bytearray(b"2")
    kv[memoryview(b"three")] = memoryview(b"3")
    assert kv["two"] == b"2"
    assert "one" in kv and b"four" not in kv  # type: ignore[comparison-overlap]
    assert 4 not in kv  # type: ignore[comparison-overlap]
    assert len(kv) == 3
    assert sorted(kv) == [b"one", b"three", b"two"]
    assert dict(kv.items()) == {b"one": b"1", b"two": b"2", b"three": b"3"}
    assert sorted(kv.values()) == [b"1", b"2", b"3"]
    del kv["one"]
    assert kv.get("one") is None
    assert kv.get("one", b"default") == b"default"
    with pytest.raises(KeyError, match="no key 'one'"):
        kv["one"]
    with pytest.raises(errors.KeyNotFound):
        del kv["one"]
    assert kv.pop("two") == b"2"
    assert kv.pop("two", None) is None
    with pytest.raises(KeyError):
        kv.pop("two")
    assert kv.setdefault("three", b"other") == b"3"
    assert kv.setdefault("four", b"4") == b"4"
    kv.clear()
    assert len(kv) == 0
    assert kv  # even when it is empty
    with pytest.raises(KeyError):
        kv.popitem()


def test_updates_of_both_kinds(kv: honeycomb.Kv) -> None:
    kv.update({"a": b"1", b"b": b"2"})
    kv.update([("c", b"3")])
    assert kv.update("a", b"new") == b"1"  # Table 2: the old value
    assert kv.replace("a", b"newer") == b"new"
    with pytest.raises(errors.KeyNotFound):
        kv.update("missing", b"x")
    assert kv.upsert("d", b"4") is None
    assert kv.upsert("d", b"5") == b"4"
    assert kv.put("e", b"6") is False
    assert kv.put("e", b"7") is True
    kv.add("f", b"8")
    with pytest.raises(errors.KeyExists):
        kv.add("f", b"9")
    assert kv["f"] == b"8"
    assert kv.set("e", b"8") is None and kv.set("g", b"9") is None  # type: ignore[func-returns-value]
    assert (kv["e"], kv["g"]) == (b"8", b"9")
    large = bytes(kv.plain_limit + 1)
    kv.set("e", large)
    assert kv["e"] == large
    with pytest.raises(errors.ValueTooLarge):
        kv.set("e", bytes(MEMORY + 1))
    with kv.batch() as batch:
        told = [batch.set("g", b"10"), batch.set("h", large)]
    assert [one.value for one in told] == [None, None]
    assert kv.multi_get(["e", "g", "h"]) == [large, b"10", large]
    with kv.atomic("t") as atomic:
        stored = atomic.set("i", b"11")
    assert stored.value is None and kv["{t}i"] == b"11"


def test_compare_and_swap(kv: honeycomb.Kv) -> None:
    assert kv.compare_and_swap("k", None, b"1") == (True, None)
    assert kv.compare_and_swap("k", None, b"2") == (False, b"1")
    assert kv.compare_and_swap("k", b"0", b"2") == (False, b"1")
    assert kv.compare_and_swap("k", b"1", b"2")[0]
    assert kv["k"] == b"2"
    assert kv.compare_and_swap("absent", b"1", b"2") == (False, None)


def test_threads_that_count_lose_nothing(kv: honeycomb.Kv) -> None:
    kv["n"] = b"0"

    def count() -> None:
        for _ in range(50):
            swapped = False
            while not swapped:
                old = kv["n"]
                swapped, _ = kv.compare_and_swap("n", old, b"%d" % (int(old) + 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kv["n"] == b"200"


def test_scan_by_prefix(kv: honeycomb.Kv) -> None:
    for number in range(300):
        kv[f"even:{number}" if number % 2 == 0 else f"odd:{number}"] = b"%d" % number
    found = dict(kv.scan("even:"))
    assert found == {b"even:%d" % n: b"%d" % n for n in range(0, 300, 2)}
    assert {key for key, _ in kv.scan("odd:", keys_only=True)} == {
        b"odd:%d" % n for n in range(1, 300, 2)
    }


def test_get_into_a_buffer(kv: honeycomb.Kv) -> None:
    kv["k"] = b"value"
    buffer = bytearray(10)
    assert kv.get_into("k", buffer) == 5
    assert buffer[:5] == b"value"
    assert kv.get_into("absent", buffer) is None


def test_values_and_keys_have_limits(kv: honeycomb.Kv) -> None:
    kv["k"] = b"x" * (MEMORY // 4)
    with pytest.raises(errors.ValueTooLarge):
        kv["k"] = b"x" * (MEMORY + 1)
    assert kv["k"] == b"x" * (MEMORY // 4)
    with pytest.raises(errors.KeyTooLarge):
        kv[b"k" * 5000] = b""
    with pytest.raises(TypeError, match="values are bytes"):
        kv["k"] = "text"  # type: ignore[assignment]


def test_a_full_store_says_so_and_keeps_its_data(job: honeycomb.Job) -> None:
    kv = job.kv("small")
    value = b"v" * 4096
    stored = 0
    # Its blocks split until no free block is left.
    with pytest.raises(errors.OutOfMemory, match="block"):
        for stored in range(100_000):
            kv[f"k{stored}"] = value
    assert stored > 8
    assert all(kv[f"k{number}"] == value for number in range(stored))


def test_a_store_travels_by_pickle(kv: honeycomb.Kv) -> None:
    kv["k"] = b"v"
    again = pickle.loads(pickle.dumps(kv))
    assert again is not kv
    assert again["k"] == b"v"
    again["k"] = b"w"
    assert kv["k"] == b"w"
    assert again != kv
    assert "store" in repr(again)


def test_a_store_is_shared_with_workers(kv: honeycomb.Kv, pool: honeycomb.WorkerPool) -> None:
    def put(store: honeycomb.Kv, number: int) -> None:
        store[f"w{number}"] = b"%d" % number

    for future in [pool.submit(put, kv, number) for number in range(20)]:
        future.result()
    assert len(kv) == 20


def test_a_closed_job_refuses_its_structures(cluster: honeycomb.Client) -> None:
    with cluster.job() as job:
        kv = job.kv("k")
    with pytest.raises(errors.Closed):
        kv["a"]


def test_a_scan_of_many_parts_fetches_ahead_and_brings_each_entry_once(job: honeycomb.Job) -> None:
    kv = job.kv("ahead", blocks=32)
    entries = {b"key-%d" % i: os.urandom(i % 300) for i in range(4000)}
    kv.update(entries)
    found = [*kv._scan(b"", False, 20_000)]
    assert len(found) == len(entries) and dict(found) == entries
    scan = kv._scan(b"", True, 5_000)
    begun = [key for key, _ in itertools.islice(scan, 1500)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads
        child = os.fork()
    if not child:  # the pending read-ahead belongs to the parent
        os._exit(0 if sorted([*begun, *(key for key, _ in scan)]) == sorted(entries) else 1)
    assert sorted([*begun, *(key for key, _ in scan)]) == sorted(entries)
    assert os.waitpid(child, 0)[1] == 0
    scan = kv._scan(b"", False, 20_000)
    for _ in range(200):
        next(scan)
    job.remove("ahead")
    with pytest.raises(errors.Removed):
        list(scan)
