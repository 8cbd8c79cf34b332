"""Order of keys, counters, objects that cannot be pickled or compared, and the bookkeeping of a stage."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from test_mapreduce import EXPECTED, LINES, total, words
from test_mapreduce_faults import ByReference

import honeycomb
from honeycomb.errors import InvalidArgument, LimitExceeded
from honeycomb.mapreduce import (
    KeyOrderError,
    MapReduce,
    NotPicklable,
    Speculation,
    TaskFailed,
    UserFunctionError,
    counter,
    tasks,
)
from honeycomb.mapreduce.ranges import RangePartition, split_points
from honeycomb.mapreduce.skew import heavy_keys, ratio, warning
from honeycomb.mapreduce.stage import COPIES_MAX, Stage
from honeycomb.mapreduce.tasks import Commit

# --------------------------------------------------------------------------------- total order


@pytest.mark.parametrize("combine", [None, total])
def test_a_total_order(cluster: honeycomb.Client, pool: honeycomb.WorkerPool, combine: Any) -> None:
    def numbers(seed: int) -> Iterator[tuple[int, int]]:
        rng = random.Random(seed)
        for _ in range(1000):
            yield int(rng.expovariate(1 / 1000)), 1  # uneven, like real keys

    expected: dict[int, int] = {}
    for seed in range(40):
        for key, one in numbers(seed):
            expected[key] = expected.get(key, 0) + one
    with MapReduce(numbers, total, combine, sort="total").run(
        range(40), client=cluster, executor=pool, reducers=6
    ) as result:
        assert list(result.items()) == sorted(expected.items())
        assert [one.name for one in result.stages] == ["sample", "map", "reduce"]
        # The sampled ranges have about the same weight, as hash partitions would.
        assert result.skew().ratio < 2


def test_a_total_order_by_a_key_function(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    program = MapReduce(words, total, sort="total", sort_key=lambda word: (-len(word), word))
    with program.run(LINES, client=cluster, executor=pool, reducers=3) as result:
        expected = sorted(EXPECTED.items(), key=lambda pair: (-len(pair[0]), pair[0]))
        assert list(result) == expected


def test_a_total_order_of_few_keys_and_of_none(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    for keys in (["b"], ["b", "a"], []):
        program = MapReduce(lambda _, keys=keys: [(key, 1) for key in keys], total, sort="total")  # type: ignore[misc]
        with program.run(range(3), client=cluster, executor=pool, reducers=5) as result:
            assert list(result) == [(key, 3) for key in sorted(keys)]


def test_split_points_cut_a_sample_evenly() -> None:
    points = split_points(range(1000), 4)
    assert points == (250, 500, 750)
    assert split_points([1] * 1000, 4) == (1,)
    assert split_points([], 4) == ()
    part = RangePartition(points, None)
    found = [part(key, 4) for key in range(-5, 1005)]
    assert found == sorted(found) and set(found) == {0, 1, 2, 3}


def test_mixed_keys_say_which_have_no_order(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    def mixed(number: int) -> Iterator[tuple[Any, int]]:
        yield 7, 1
        yield "seven", 1

    for sort in (True, "total"):
        with pytest.raises(KeyOrderError, match=r"\(int\).*\(str\)|\(str\).*\(int\)") as caught:
            MapReduce(mixed, total, sort=sort).run(  # type: ignore[arg-type]
                [1], client=cluster, executor=pool, reducers=1
            )
        told = str(caught.value)
        assert "7" in told and "'seven'" in told
        assert "sort=False" in told and "sort_key=" in told
        assert "map function" not in told
    with MapReduce(mixed, total, sort_key=str).run(
        [1], client=cluster, executor=pool, reducers=1
    ) as result:
        assert list(result) == [(7, 1), ("seven", 1)]


def test_a_sort_key_that_raises_is_the_user_s(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    def fail(key: Any) -> Any:
        raise LookupError("no key")

    with pytest.raises(UserFunctionError, match="the sort_key function raised") as caught:
        MapReduce(words, total, sort_key=fail).run(LINES, client=cluster, executor=pool, attempts=1)
    assert caught.value.function == "sort_key"


# ------------------------------------------------------------------------ unsuitable keys and values


def test_what_is_no_function_is_refused() -> None:
    for wrong in ({"map": "words"}, {"reduce": None}, {"combine": 3}, {"sort_key": 4}):
        name, value = next(iter(wrong.items()))
        with pytest.raises(InvalidArgument, match=f"{name} is a function, not {value!r}"):
            MapReduce(**{"map": words, "reduce": total, **wrong})  # type: ignore[arg-type]
    for wrong in (
        {"sort": "up"},
        {"sort": "total", "partition": lambda key, reducers: 0},
        {"sort": False, "sort_key": str},
    ):
        with pytest.raises(InvalidArgument, match=r"sort|order"):
            MapReduce(words, total, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["abc", 3, ("key",), None])
def test_what_is_no_pair_is_the_map_function_s_error(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool, wrong: Any
) -> None:
    program = MapReduce(lambda line: [("fine", 1), wrong], total)
    with pytest.raises(UserFunctionError, match=r"yields pairs \(key, value\)") as caught:
        program.run(["x"], client=cluster, executor=pool, attempts=1)
    assert caught.value.function == "map" and repr(wrong) in caught.value.error


def test_what_cannot_be_pickled_is_named(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    def locks(line: str) -> Iterator[tuple[str, Any]]:
        yield "fine", 1
        yield "k", threading.Lock()

    with pytest.raises(
        NotPicklable, match=r"the map function of .*map-0 .* key 'k' a value of type lock"
    ):
        MapReduce(locks, total).run(["x"], client=cluster, executor=pool)
    with pytest.raises(NotPicklable, match=r"the combine function .* a value of type lock"):
        MapReduce(words, total, lambda key, values: threading.Lock()).run(
            ["a a"], client=cluster, executor=pool
        )
    with pytest.raises(
        NotPicklable, match=r"the reduce function of .*reduce-0 .* key 'a' a value of type lock"
    ):
        MapReduce(words, lambda key, values: threading.Lock()).run(
            ["a"], client=cluster, executor=pool, reducers=1
        )
    lock = threading.Lock()
    with pytest.raises(NotPicklable, match="the map function cannot be pickled"):
        MapReduce(lambda line: [(line, lock)], total).run(["x"], client=cluster, executor=pool)
    with pytest.raises(NotPicklable, match="input 1, a lock, cannot be pickled"):
        MapReduce(words, total).run(["x", lock], client=cluster, executor=pool)


class Once:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("not again")


def test_pairs_that_cannot_be_unpickled_are_told(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    with pytest.raises(TaskFailed, match=r"map task 0 sent .* cannot be unpickled: LookupError"):
        MapReduce(lambda line: [(line, Once())], total).run(
            ["x"], client=cluster, executor=pool, reducers=1, attempts=1
        )


# ---------------------------------------------------------------------------------- counters


def test_counters_count_committed_attempts_only(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    def count(line: str) -> Iterator[tuple[str, int]]:
        counter("lines").add()
        counter("characters").add(len(line))
        task = tasks.current_task()
        if line == LINES[3] and task is not None and task.attempt == 1:
            raise LookupError("once")
        yield from words(line)

    def reduce(word: str, counts: list[int]) -> int:
        counter("words").add()
        return sum(counts)

    lines = LINES[:20]
    with MapReduce(count, reduce, sort="total").run(
        lines, client=cluster, executor=pool, reducers=3
    ) as result:
        assert result.counters == {
            "characters": sum(map(len, lines)),
            "lines": 20,
            "words": len(dict(result)),
        }


def test_counters_have_a_limit_and_do_nothing_outside_of_tasks(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    counter("nothing").add(3)
    with pytest.raises(InvalidArgument):
        counter("")

    def many(line: str) -> Iterator[tuple[str, int]]:
        for number in range(2000):
            counter(f"c{number}").add()
        yield "never", 1

    with pytest.raises(UserFunctionError, match="at most 1000 counters") as caught:
        MapReduce(many, total).run(["x"], client=cluster, executor=pool, attempts=1)
    assert LimitExceeded.__name__ in caught.value.error


# --------------------------------------------------------------------------- bounded memory


def test_a_map_task_s_memory_is_bounded_with_a_combiner(
    cluster: honeycomb.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task writes its buffer out when its bytes, including nested ones, reach the limit, long before
    its pairs do. Runs on threads, so that the test can lower the limit and observe the longest list."""
    monkeypatch.setattr(tasks, "SPILL_BYTES", 1 << 20)
    longest = 0

    def big(number: int) -> Iterator[tuple[str, list[bytes]]]:
        for _ in range(100):
            yield "one", [bytes(50_000), bytes(50_000)]

    def combine(key: str, values: list[list[bytes]]) -> list[bytes]:
        nonlocal longest
        longest = max(longest, len(values))
        return values[0]

    with (
        ThreadPoolExecutor(1) as threads,
        MapReduce(big, lambda key, values: len(values), ByReference(combine)).run(
            [1], client=cluster, executor=threads, reducers=1
        ) as result,
    ):
        spills = dict(result)["one"]
    assert spills >= 4
    assert longest <= 25


# -------------------------------------------------------------------- the books of a stage


def commit(index: int, seconds: float) -> Commit:
    return Commit(index, 0, (), 0, 0, 0, seconds)


def books(total: int, policy: Speculation | None) -> Stage:
    return Stage("map", [f"map-{n}" for n in range(total)], [""] * total, 0.0, policy)


def begin_all(stage: Stage) -> list[Any]:
    attempts = [stage.attempt(stage.waiting.popleft()) for _ in range(stage.total)]
    for attempt in attempts:
        attempt.begun = 0.0
    return attempts


def test_a_straggler_is_one_by_the_policy() -> None:
    stage = books(8, Speculation(slower_than=2, quantile=0.75, minimum_seconds=1))
    running = begin_all(stage)
    for index in range(5):
        stage.commit(running[index], commit(index, 3.0))
    assert stage.stragglers(running[5:], 100.0) == []  # 5 of 8 commits are too few
    stage.commit(running[5], commit(5, 3.0))
    assert stage.stragglers(running[6:], 6.0) == []
    assert stage.stragglers(running[6:], 6.1) == [6, 7]
    running[7].begun = None  # waits for a worker
    assert stage.stragglers(running[6:], 100.0) == []
    running[7].begun = 90.0
    assert stage.stragglers(running[6:], 92.0) == [6]
    copy = stage.attempt(6, copy=True)
    copy.begun = 92.0
    assert (copy.number, stage.stragglers([running[6], copy], 93.0)) == (1, [])
    assert stage.stragglers([running[6], copy], 99.0) == [6]  # the copy is slow too
    for _ in range(COPIES_MAX - 1):
        stage.attempt(6, copy=True)
    assert stage.stragglers([running[6], copy], 1000.0) == []


def test_only_the_first_commit_counts() -> None:
    stage = books(2, None)
    first, other = begin_all(stage)
    copy = stage.attempt(0, copy=True)
    assert stage.commit(copy, commit(0, 1.0))
    assert not stage.commit(first, commit(0, 9.0))
    assert (stage.done, stage.copies, stage.copies_won) == (1, 1, 1)
    assert stage.stragglers([other], math.inf) == []  # switched off
    stats = stage.stats(5.0)
    assert (stats.tasks, stats.attempts, stats.seconds) == (1, 3, 5.0)


def test_a_policy_s_numbers_are_checked() -> None:
    for wrong in ({"slower_than": 0.5}, {"quantile": 0}, {"quantile": 2}, {"minimum_seconds": -1}):
        with pytest.raises(InvalidArgument):
            Speculation(**wrong)
    policy = Speculation(minimum_seconds=0)
    assert policy.limit([], 1) == math.inf
    assert policy.limit([2.0], 2) == 3.0


# -------------------------------------------------------------------------------------- skew


def test_skew_in_numbers() -> None:
    assert ratio([0, 0, 0]) == 1
    assert ratio([0, 0, 5]) == math.inf
    assert ratio([1, 2, 8]) == 4
    megabyte = 1 << 20
    assert "partition 2" in warning([megabyte, megabyte, 5 * megabyte])
    assert warning([megabyte, megabyte, 4 * megabyte]) == ""
    assert warning([10, 10, 50]) == ""  # too small to matter
    assert warning([megabyte]) == ""
    groups = {"a": [0] * 90, "b": [0] * 9, "c": [0], "x" * 1000: [0] * 20}
    heavy = heavy_keys(groups, 120)
    assert [count for _, count in heavy] == [90, 20, 9]
    assert heavy[0][0] == "'a'" and len(heavy[1][0]) == 80
