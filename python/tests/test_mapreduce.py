from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, eventually

import honeycomb
from honeycomb import demo
from honeycomb.errors import InvalidArgument
from honeycomb.mapreduce import (
    MapReduce,
    Progress,
    TaskFailed,
    UserFunctionError,
    current_task,
    split_text,
    tasks,
)

LINES = [f"the bee number{n % 17} and the flower{n % 5}" for n in range(200)]
EXPECTED = Counter(word for line in LINES for word in line.split())


def words(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def total(word: str, counts: list[int]) -> int:
    return sum(counts)


def write_early() -> None:
    """Makes tasks write after every few pairs, so that they can be killed in the middle of their output."""
    tasks.SPILL_PAIRS = 5  # type: ignore[misc]
    tasks.CHUNK_PAIRS = 5  # type: ignore[misc]


@pytest.fixture(scope="module")
def early_pool() -> Iterator[honeycomb.WorkerPool]:
    with honeycomb.WorkerPool(2, initializer=write_early) as pool:
        yield pool


@pytest.mark.parametrize("combine", [None, total])
@pytest.mark.parametrize("reducers", [1, 5])
def test_it_counts(
    cluster: honeycomb.Client,
    pool: honeycomb.WorkerPool,
    combine: Callable[[Any, list[Any]], Any] | None,
    reducers: int,
) -> None:
    program = MapReduce(words, total, combine)
    told: list[Progress] = []
    with program.run(
        LINES, client=cluster, executor=pool, reducers=reducers, progress=told.append
    ) as result:
        assert dict(result.items()) == EXPECTED
        assert dict(result) == EXPECTED  # a result can be read repeatedly
        assert result.partitions == reducers
        for part in range(reducers):
            keys = [key for key, _ in result.partition(part)]
            assert keys == sorted(keys)
        mapped, reduced = result.stages
        assert (mapped.tasks, reduced.tasks) == (len(LINES), reducers)
        assert (mapped.failures, mapped.attempts) == (0, len(LINES))
        assert mapped.pairs_in == EXPECTED.total()
        assert reduced.pairs_out == len(EXPECTED)
        assert mapped.bytes > 0
        assert result.memory
        assert "2 parts" in repr(result) or reducers != 2
    assert {one.stage for one in told} == {"map", "reduce"}
    assert max(one.done for one in told if one.stage == "map") == len(LINES)


def test_nothing_is_left(cluster: honeycomb.Client, pool: honeycomb.WorkerPool) -> None:
    free = cluster.status()["free"]
    with MapReduce(words, total).run(LINES, client=cluster, executor=pool) as result:
        # The shuffle files were freed as the reducers committed.
        names = {one.name for node in result.job.tree() for one in node.structures}
        assert names == {"out"}
        assert dict(result.items(consume=True)) == EXPECTED
        assert result.job.tree().blocks == 0
        name = result.job.name
    assert name not in [info["name"] for info in cluster.jobs()]
    assert eventually(lambda: cluster.status()["free"] >= free)


def test_any_executor_will_do(cluster: honeycomb.Client) -> None:
    program = MapReduce(words, total)
    with (
        ThreadPoolExecutor(4) as threads,
        program.run(LINES, client=cluster, executor=threads) as result,
    ):
        assert dict(result) == EXPECTED
    with program.run(LINES[:10], client=cluster, reducers=2) as result:  # the run's own pool
        assert dict(result) == Counter(word for line in LINES[:10] for word in line.split())


def test_large_values_and_odd_keys(cluster: honeycomb.Client, pool: honeycomb.WorkerPool) -> None:
    def blobs(number: int) -> Iterator[tuple[tuple[str, int], bytes]]:
        yield ("blob", number % 3), bytes([number]) * 100_000  # many frames of 64 KiB blocks

    def longest(key: Any, values: list[bytes]) -> tuple[int, bytes]:
        return len(values), max(values)

    with MapReduce(blobs, longest).run(
        range(12), client=cluster, executor=pool, reducers=2
    ) as result:
        found = dict(result.items())
    assert found == {("blob", n): (4, bytes([n + 9]) * 100_000) for n in range(3)}


def test_partition_and_order_can_be_chosen(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    program = MapReduce(
        lambda n: [(frozenset({n % 4}), n)],
        lambda key, values: sorted(values),
        partition=lambda key, reducers: min(key) % reducers,
        sort=False,
    )
    with program.run(range(20), client=cluster, executor=pool, reducers=4) as result:
        for part in range(4):
            assert list(result.partition(part)) == [(frozenset({part}), list(range(part, 20, 4)))]


def test_no_pairs_at_all(cluster: honeycomb.Client, pool: honeycomb.WorkerPool) -> None:
    with MapReduce(lambda _: [], total).run(range(3), client=cluster, executor=pool) as result:
        assert list(result) == []


def kill_first_attempt(stage: str, index: int) -> None:
    task = current_task()
    assert task is not None
    if (task.stage, task.index, task.attempt) == (stage, index, 1):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_map_task_killed_in_the_middle_of_its_output(
    cluster: honeycomb.Client, early_pool: honeycomb.WorkerPool
) -> None:
    def words_or_die(lines: list[str]) -> Iterator[tuple[str, int]]:
        for number, line in enumerate(lines):
            if number == 15:
                kill_first_attempt("map", 3)
            yield from words(line)

    splits = [LINES[start : start + 20] for start in range(0, 200, 20)]
    notes: list[str] = []
    with MapReduce(words_or_die, total).run(
        splits,
        client=cluster,
        executor=early_pool,
        reducers=3,
        progress=lambda told: notes.append(told.note),
    ) as result:
        assert dict(result) == EXPECTED
        assert (result.stages[0].failures, result.stages[0].attempts) == (1, 11)
        # The frames of the killed attempt exist, and are not read.
        assert any("map-3 attempt 1 failed" in note and "SIGKILL" in note for note in notes)


def test_a_reduce_task_killed_in_the_middle_of_its_output(
    cluster: honeycomb.Client, early_pool: honeycomb.WorkerPool
) -> None:
    last = max(EXPECTED)

    def total_or_die(word: str, counts: list[int]) -> int:
        if word == last:
            kill_first_attempt("reduce", 0)
        return sum(counts)

    with MapReduce(words, total_or_die).run(
        LINES, client=cluster, executor=early_pool, reducers=1
    ) as result:
        assert dict(result) == EXPECTED
        assert result.stages[1].failures == 1


class Twice(Executor):
    """Runs every attempt twice at the same time, as a speculating platform does, and returns the
    attempt that ends last."""

    def __init__(self, pool: honeycomb.WorkerPool) -> None:
        self.pool = pool

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        first = self.pool.submit(fn, *args, **kwargs)
        second = self.pool.submit(fn, *args, **kwargs)
        both: Future[Any] = Future()
        both.set_running_or_notify_cancel()

        def one_ended(_: Future[Any]) -> None:
            if first.done() and second.done() and not both.done():
                both.set_result(second.result())

        first.add_done_callback(one_ended)
        second.add_done_callback(one_ended)
        return both


def test_a_duplicate_attempt_does_not_double(
    cluster: honeycomb.Client, early_pool: honeycomb.WorkerPool
) -> None:
    with MapReduce(words, total).run(
        LINES[:50], client=cluster, executor=Twice(early_pool), reducers=2
    ) as result:
        assert dict(result) == Counter(word for line in LINES[:50] for word in line.split())


def broken(line: str) -> Iterable[tuple[str, int]]:
    yield "fine", 1
    yield "never", len(line) // 0


@pytest.mark.parametrize("stage", ["map", "combine", "partition", "reduce"])
def test_a_user_function_that_raises(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool, stage: str
) -> None:
    def fail(*_: Any) -> Any:
        raise LookupError("my own mistake")

    functions: dict[str, Any] = {"map": words, "reduce": total, stage: fail}
    free = cluster.status()["free"]
    with pytest.raises(UserFunctionError, match="my own mistake") as caught:
        MapReduce(**functions).run(
            ["a a"], client=cluster, executor=pool, reducers=1, attempts=2, name="failing"
        )
    error = caught.value
    assert error.function == stage
    assert error.attempt == 2
    where = "failing/shuffle/reduce-0" if stage == "reduce" else "failing/map-0"
    assert error.address == where and where in str(error)
    assert "in fail" in error.traceback and __file__ in error.traceback
    assert "mapreduce/tasks.py" not in error.traceback
    assert "failing" not in [info["name"] for info in cluster.jobs()]
    assert eventually(lambda: cluster.status()["free"] >= free)


def test_a_generator_s_traceback_is_the_user_s(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    with pytest.raises(UserFunctionError) as caught:
        MapReduce(broken, total).run(["x"], client=cluster, executor=pool, attempts=1)
    assert 'yield "never", len(line) // 0' in str(caught.value)
    assert "ZeroDivisionError" in caught.value.error


def test_keys_that_cannot_be_partitioned_are_the_user_s_error(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    program = MapReduce(lambda n: [(object, n)], total)
    with pytest.raises(UserFunctionError, match="pass partition="):
        program.run([1], client=cluster, executor=pool, attempts=1)


def test_a_task_that_always_dies_ends_the_job(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    with pytest.raises(TaskFailed, match=r"map-0 failed in attempt 2 of 2.*SIGKILL"):
        MapReduce(lambda _: os.kill(os.getpid(), signal.SIGKILL), total).run(  # type: ignore[arg-type,return-value]
            [1], client=cluster, executor=pool, attempts=2
        )


def test_an_interrupt_cleans_up(cluster: honeycomb.Client) -> None:
    def interrupt(told: Progress) -> None:
        if told.done > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MapReduce(words, total).run(LINES, client=cluster, progress=interrupt, name="stopped")
    assert "stopped" not in [info["name"] for info in cluster.jobs()]


def test_a_long_stage_outlives_its_leases(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    """Tasks that wait, or send nothing for longer than a lease, lose no data: the driver renews."""

    def slowly(number: int) -> Iterator[tuple[int, int]]:
        yield number, 1
        eventually(lambda: False, seconds=0.5)
        yield number, 1

    with MapReduce(slowly, total).run(
        range(6), client=cluster, executor=pool, reducers=3, lease=0.3
    ) as result:
        assert dict(result) == dict.fromkeys(range(6), 2)


def test_bad_plans_are_refused(cluster: honeycomb.Client, pool: honeycomb.WorkerPool) -> None:
    program = MapReduce(words, total)
    with pytest.raises(InvalidArgument, match="inputs"):
        program.run([], client=cluster, executor=pool)
    for reducers in (0, 70_000):
        with pytest.raises(InvalidArgument, match="reducers"):
            program.run(LINES, client=cluster, executor=pool, reducers=reducers)
    with pytest.raises(InvalidArgument, match="attempts"):
        program.run(LINES, client=cluster, executor=pool, attempts=0)


def coreutils_count(path: Path, times: int = 1) -> dict[bytes, int]:
    """An independent word count."""
    files = " ".join(["'" + str(path) + "'"] * times)
    told = subprocess.run(
        f"cat {files} | tr -s '[:space:]' '\\n' | sort | uniq -c",
        shell=True,
        check=True,
        capture_output=True,
        env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
    )
    counts = {}
    for line in told.stdout.split(b"\n"):
        number, _, word = line.lstrip(b" ").partition(b" ")
        if word:
            counts[word] = int(number)
    return counts


def test_a_real_text_counts_as_coreutils_does(
    cluster: honeycomb.Client, pool: honeycomb.WorkerPool
) -> None:
    with demo.plain_text(demo.default_text()) as path:
        program = MapReduce(demo.words, demo.total, demo.total)
        splits = split_text(path, 16)
        with program.run(splits, client=cluster, executor=pool) as result:
            assert dict(result.items()) == coreutils_count(path)


def test_the_repository_has_a_text() -> None:
    assert list((REPOSITORY / "examples" / "data").glob("*.txt.gz"))
