"""Runs with faults: workers that are killed, hang or never start, and interrupted drivers.

Each ends with the right result or the right error, and with every block free again.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from conftest import eventually
from test_faults import cluster as nodes
from test_mapreduce import EXPECTED, LINES, total, words
from test_pool import _runs

import honeycomb
from honeycomb import errors
from honeycomb.mapreduce import (
    Cancelled,
    ExecutorBroken,
    MapReduce,
    MemorySampler,
    Progress,
    Speculation,
    TaskFailed,
    current_task,
    tasks,
)
from honeycomb.mapreduce.interrupts import Interrupts

EAGER = Speculation(minimum_seconds=0.2)


@pytest.fixture(scope="module")
def hc() -> Iterator[honeycomb.Client]:
    """A cluster for this module only, without other allocations."""
    with nodes(1) as (client, _):
        yield client


@pytest.fixture(autouse=True)
def nothing_is_left(hc: honeycomb.Client) -> Iterator[None]:
    yield
    assert eventually(lambda: hc.status()["bytes_allocated"] == 0), hc.status()
    assert eventually(lambda: all(info["blocks"] == 0 for info in hc.jobs())), hc.jobs()


def at(stage: str) -> bool:
    task = current_task()
    return task is not None and (task.stage, task.index, task.attempt) == (stage, 0, 1)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    signal.pause()


def die_at_commit(stage: str) -> None:
    """Makes a worker die after it has written everything and before its commit reaches the driver."""
    commit = tasks.Commit

    def commit_or_die(*args: Any, **kwargs: Any) -> tasks.Commit:
        if at(stage):
            die()
        return commit(*args, **kwargs)

    tasks.Commit = commit_or_die  # type: ignore[assignment,misc]
    tasks.SPILL_PAIRS = 5  # type: ignore[misc]


def program(stage: str, moment: str, what: Callable[[], None]) -> MapReduce:
    """Counts words; the first attempt of task 0 of a stage does ``what`` at a moment."""

    def map_words(lines: list[str]) -> Iterator[tuple[str, int]]:
        for number, line in enumerate(lines):
            if number == (0 if moment == "begin" else 5) and at("map"):
                what()
            yield from words(line)

    seen: list[str] = []

    def reduce_words(word: str, counts: list[int]) -> int:
        seen.append(word)
        if len(seen) >= (1 if moment == "begin" else 5) and at("reduce"):
            what()
        return sum(counts)

    if moment == "commit":
        return MapReduce(words_of, total)
    return MapReduce(
        map_words if stage == "map" else words_of, reduce_words if stage == "reduce" else total
    )


def words_of(lines: list[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        yield from words(line)


SPLITS = [LINES[start : start + 20] for start in range(0, 200, 20)]


@pytest.mark.parametrize("moment", ["begin", "middle", "commit"])
@pytest.mark.parametrize("stage", ["map", "reduce"])
def test_a_worker_killed_at_any_point(hc: honeycomb.Client, stage: str, moment: str) -> None:
    notes: list[str] = []
    initializer = {"initializer": die_at_commit, "initargs": (stage,)} if moment == "commit" else {}
    with (
        honeycomb.WorkerPool(2, **initializer) as pool,  # type: ignore[arg-type]
        program(stage, moment, die).run(
            SPLITS,
            client=hc,
            executor=pool,
            reducers=2,
            progress=lambda told: notes.append(told.note),
        ) as result,
    ):
        assert dict(result) == EXPECTED
        stages = {one.name: one for one in result.stages}
        assert stages[stage].failures == 1
        assert any("SIGKILL" in note for note in notes)


@pytest.mark.parametrize("moment", ["begin", "middle"])
@pytest.mark.parametrize("stage", ["map", "reduce"])
@pytest.mark.parametrize("own", [True, False])
def test_a_hung_worker_is_beaten_by_a_copy(
    hc: honeycomb.Client, stage: str, moment: str, own: bool
) -> None:
    notes: list[str] = []
    pool = None if own else honeycomb.WorkerPool(2)
    with program(stage, moment, hang).run(
        SPLITS,
        client=hc,
        executor=pool,
        reducers=4,
        speculate=EAGER,
        progress=lambda told: notes.append(told.note),
    ) as result:
        assert dict(result) == EXPECTED
        stages = {one.name: one for one in result.stages}
        assert (stages[stage].copies, stages[stage].copies_won) == (1, 1)
        assert stages[stage].failures == 0
        assert stages[stage].attempts == stages[stage].tasks + 1
    assert any("second attempt" in note for note in notes)
    if pool is not None:
        pool.shutdown()  # returns: the worker that hung was replaced


def test_a_copy_that_hangs_too_gets_another(hc: honeycomb.Client) -> None:
    def map_words(lines: list[str]) -> Iterator[tuple[str, int]]:
        task = current_task()
        if task is not None and task.index == 0 and task.attempt < 3:
            hang()
        yield from words_of(lines)

    with (
        honeycomb.WorkerPool(3) as pool,
        MapReduce(map_words, total).run(
            SPLITS, client=hc, executor=pool, reducers=2, speculate=EAGER
        ) as result,
    ):
        assert dict(result) == EXPECTED
        assert (result.stages[0].copies, result.stages[0].copies_won) == (2, 1)


def test_the_loser_s_output_and_counters_do_not_count(hc: honeycomb.Client, tmp_path: Path) -> None:
    """On threads, a losing attempt cannot be ended: it continues to write frames that are not read."""
    gate = threading.Event()

    def slow(number: int) -> Iterator[tuple[str, int]]:
        from honeycomb.mapreduce import counter

        counter("seen").add(10)
        yield "n", 1
        if number == 0 and at("map"):
            gate.wait(30)
        yield "n", 1

    with (
        ThreadPoolExecutor(3) as threads,
        MapReduce(ByReference(slow), total).run(
            range(8), client=hc, executor=threads, reducers=1, speculate=EAGER
        ) as result,
    ):
        gate.set()
        assert dict(result) == {"n": 16}
        assert result.counters == {"seen": 80}
        assert result.stages[0].copies_won == 1


class ByReference:
    """A function that shares this process's objects: unpickling returns the same object."""

    known: ClassVar[dict[int, Callable[..., Any]]] = {}

    def __init__(self, function: Callable[..., Any]) -> None:
        self.known[id(function)] = function
        self.number = id(function)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.number,)

    def __call__(self, *args: Any) -> Any:
        return self.known[self.number](*args)


def _again(number: int) -> ByReference:
    return ByReference(ByReference.known[number])


class Together(Executor):
    """Holds back the results of map task 0 until a copy exists, and :meth:`release` ends all its
    attempts at once: the first with its result, others with an error."""

    def __init__(self, pool: honeycomb.WorkerPool) -> None:
        self.pool = pool
        self.kept: list[tuple[Future[Any], Future[Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        inner = self.pool.submit(fn, *args, **kwargs)
        if not (fn is tasks.run_map and args[0].index == 0):
            return inner
        outer: Future[Any] = Future()
        outer.set_running_or_notify_cancel()
        self.kept.append((inner, outer))
        return outer

    def release(self) -> None:
        """Called by the driver's thread, so that its next check finds both attempts done."""
        if len(self.kept) >= 2 and all(inner.done() for inner, _ in self.kept):
            for _, copy in self.kept[1:]:
                copy.set_exception(errors.Sealed("too late"))
            inner, first = self.kept[0]
            first.set_result(inner.result())
            self.kept.clear()


@pytest.mark.parametrize("_", range(3))
def test_a_loser_that_fails_in_the_same_moment_is_ignored(hc: honeycomb.Client, _: int) -> None:
    # Only the held-back task gets a copy, because it is the last one. On a busy machine another
    # task could also be slow, and lose the race against its copy.
    all_but_one = (len(SPLITS) - 0.5) / len(SPLITS)
    last = Speculation(quantile=all_but_one, minimum_seconds=EAGER.minimum_seconds)
    with honeycomb.WorkerPool(2) as pool:
        executor = Together(pool)
        with MapReduce(words_of, total).run(
            SPLITS,
            client=hc,
            executor=executor,
            reducers=2,
            speculate=last,
            progress=lambda _: executor.release(),
        ) as result:
            assert dict(result) == EXPECTED
            assert result.stages[0].copies >= 1
            assert (result.stages[0].copies_won, result.stages[0].failures) == (0, 0)
            assert sum(load.bytes for load in result.skew().partitions) == result.stages[0].bytes


def test_without_speculation_there_are_no_copies(hc: honeycomb.Client) -> None:
    def slow(number: int) -> Iterator[tuple[int, int]]:
        if number == 0:
            eventually(lambda: False, 1.5)
        yield number, 1

    with MapReduce(slow, total).run(range(8), client=hc, reducers=2, speculate=False) as result:
        assert dict(result) == dict.fromkeys(range(8), 1)
        assert [one.copies for one in result.stages] == [0, 0]


# ------------------------------------------------------------------------------ cancelling


def test_another_thread_can_cancel(hc: honeycomb.Client, tmp_path: Path) -> None:
    cancel = threading.Event()
    began = tmp_path / "began"

    def wait_for_ever(number: int) -> Iterator[tuple[int, int]]:
        began.write_text(str(os.getpid()))
        hang()
        yield number, 1

    def press() -> None:
        assert eventually(lambda: began.exists() and bool(began.read_text()))
        cancel.set()

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(Cancelled, match="in its map stage"):
        MapReduce(wait_for_ever, total).run(range(4), client=hc, cancel=cancel, name="given-up")
    presser.join()
    assert not _runs(int(began.read_text()))
    assert "given-up" not in [info["name"] for info in hc.jobs()]
    with pytest.raises(Cancelled, match="before it began"):
        MapReduce(words, total).run(LINES, client=hc, cancel=cancel)


def test_a_cancelled_run_frees_a_borrowed_pool(hc: honeycomb.Client) -> None:
    cancel = threading.Event()

    def wait_for_ever(number: int) -> Iterator[tuple[int, int]]:
        hang()
        yield number, 1

    def stop(told: Progress) -> None:
        if told.running == 4:
            cancel.set()

    with honeycomb.WorkerPool(2) as pool:
        with pytest.raises(Cancelled):
            MapReduce(wait_for_ever, total).run(
                range(4), client=hc, executor=pool, cancel=cancel, progress=stop
            )
        assert pool.submit(pow, 2, 5).result(30) == 32


def test_a_callback_that_raises_ends_the_run(
    hc: honeycomb.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Progress] = []

    def fail(progress: Progress) -> None:
        told.append(progress)
        if progress.done == progress.total:
            raise LookupError("seen enough")

    with pytest.raises(LookupError, match="seen enough"):
        MapReduce(words_of, total).run(SPLITS, client=hc, progress=[True, fail], name="told")
    assert "told" not in [info["name"] for info in hc.jobs()]
    assert told[-1].done == len(SPLITS)
    assert f"map: {len(SPLITS)}/{len(SPLITS)}" in capsys.readouterr().err  # bars as well


SCRIPT = """
import os, signal, sys
import honeycomb
from honeycomb.mapreduce import MapReduce, current_task
folder, stage, name = sys.argv[1:]

def note_and_wait():
    if current_task().stage == stage:
        open(f"{folder}/{os.getpid()}", "w").close()
        signal.pause()

def words(line):
    note_and_wait()
    for word in line.split():
        yield word, 1

def total(word, counts):
    note_and_wait()
    return sum(counts)

MapReduce(words, total).run(["a b c"] * 8, reducers=4, name=name, lease=1.0)
"""


def test_ctrl_c_pressed_again_does_not_disturb_the_cleaning_up(
    hc: honeycomb.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, terminate = MemorySampler.stop, honeycomb.WorkerPool.terminate
    pressed: list[str] = []
    pids: list[int] = []

    def press(where: str) -> None:
        pressed.append(where)
        signal.raise_signal(signal.SIGINT)

    def stop_pressed(sampler: MemorySampler) -> None:
        press("sampler")
        stop(sampler)

    def terminate_pressed(pool: honeycomb.WorkerPool) -> None:
        pids.extend(pool.worker_pids())
        press("pool")
        terminate(pool)

    monkeypatch.setattr(MemorySampler, "stop", stop_pressed)
    monkeypatch.setattr(honeycomb.WorkerPool, "terminate", terminate_pressed)

    def interrupt(told: Progress) -> None:
        if told.done > 1:
            press("callback")

    with pytest.raises(KeyboardInterrupt) as first:
        MapReduce(words_of, total).run(SPLITS, client=hc, progress=interrupt, name="pressed")
    assert pressed == ["callback", "pool", "sampler"]
    assert pids and not any(map(_runs, pids))
    assert "pressed" not in [info["name"] for info in hc.jobs()]
    # The first Ctrl-C may also arrive while a failed run cleans up: it is not lost.
    pressed.clear()

    def fail(told: Progress) -> None:
        if told.done > 1:
            raise LookupError("mine")

    pids.clear()
    with pytest.raises(KeyboardInterrupt) as second:
        MapReduce(words_of, total).run(SPLITS, client=hc, progress=fail, name="pressed")
    assert pressed == ["pool", "sampler"]
    assert pids and not any(map(_runs, pids))
    assert first is not second  # keeps both errors and their objects alive
    assert "pressed" not in [info["name"] for info in hc.jobs()]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_of_the_program_are_left_alone() -> None:
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        with Interrupts():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed == [signal.SIGINT]


@pytest.mark.parametrize("stage", ["map", "reduce"])
@pytest.mark.parametrize("how", ["SIGINT", "SIGINT often", "SIGTERM", "SIGKILL"])
def test_an_interrupted_driver_leaves_nothing(
    hc: honeycomb.Client, tmp_path: Path, how: str, stage: str
) -> None:
    script = tmp_path / "driver.py"
    script.write_text(SCRIPT)
    name = f"driven-{stage}-{how.replace(' ', '-')}"
    folder = tmp_path / "pids"
    folder.mkdir()
    runner = ["-m", "honeycomb._script"] if how == "SIGTERM" else []
    driver = subprocess.Popen(
        [sys.executable, "-P", *runner, str(script), str(folder), stage, name],
        env={**os.environ, "HONEYCOMB_ADDRESS": hc.address, "HONEYCOMB_TOKEN": hc.token.hex()},
        stderr=subprocess.PIPE,
    )
    try:
        assert eventually(lambda: len(os.listdir(folder)) >= min(2, os.cpu_count() or 1), 60)
        assert hc.status()["bytes_allocated"] > 0
        driver.send_signal(getattr(signal, how.split()[0]))
        while how == "SIGINT often" and driver.poll() is None:
            driver.send_signal(signal.SIGINT)
            time.sleep(0.002)  # no synchronisation: faster than a user could press the key
        _, told = driver.communicate(timeout=60)
    finally:
        driver.kill()
        driver.wait()
    pids = [int(name) for name in os.listdir(folder)]
    names = [info["name"] for info in hc.jobs()]
    if how == "SIGKILL":
        assert driver.returncode == -signal.SIGKILL
        assert eventually(lambda: not any(map(_runs, pids)))
        assert eventually(lambda: hc.status()["bytes_allocated"] == 0)  # its leases ended
    else:
        assert b"KeyboardInterrupt" in told, told
        assert driver.returncode == (143 if how == "SIGTERM" else -signal.SIGINT)
        assert name not in names
        assert not any(map(_runs, pids))


SWEEP = """
import faulthandler, signal, sys
import honeycomb
from honeycomb.mapreduce import MapReduce
faulthandler.dump_traceback_later(100, exit=True)
names = "__enter__", "__exit__", "_acquire_restore", "_release_save", "notify"
returns = chosen = 0

def trace(frame, event, arg):
    global returns
    code = frame.f_code
    if event == "return" and code.co_name in names and "threading.py" in code.co_filename:
        returns += 1
        if returns == chosen:
            print(code.co_qualname, file=sys.stderr)
            signal.raise_signal(signal.SIGINT)
    return trace

def run():
    global returns
    returns = 0
    sys.settrace(trace)
    try:
        with MapReduce(lambda word: [(word, 1)], lambda word, counts: sum(counts)).run(
            ["a", "b"], reducers=2, client=hc, name="swept"
        ) as result:
            assert dict(result) == {"a": 1, "b": 1}
    finally:
        sys.settrace(None)

with honeycomb.connect() as hc:
    run()
    total, interrupted = returns, 0
    for part in range(24):
        chosen = 1 + total * part // 24
        try:
            run()
            assert returns < chosen, "the interrupt was lost"
        except KeyboardInterrupt:
            interrupted += 1
        assert "swept" not in [info["name"] for info in hc.jobs()]
print(interrupted)
"""


def test_an_interrupt_at_any_place_of_the_driver_ends_the_run(hc: honeycomb.Client) -> None:
    # Once it arrived as Condition.__enter__ returned, left a future locked, and the run never ended.
    done = subprocess.run(
        [sys.executable, "-P", "-c", SWEEP],
        env={**os.environ, "HONEYCOMB_ADDRESS": hc.address, "HONEYCOMB_TOKEN": hc.token.hex()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 4, done.stderr


# ------------------------------------------------------------------------- pools that break


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes workers start through a shell script, which may fail; returns the script's folder."""

    def install(refuse: str) -> Path:
        stub = tmp_path / "python"
        stub.write_text(
            f'#!/bin/sh\necho "$$" >> {tmp_path}/starts\n'
            f'if {refuse}; then exit 3; fi\nexec {sys.executable} "$@"\n'
        )
        stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(stub))
        return tmp_path

    return install


def test_a_pool_that_does_not_start_is_replaced(
    hc: honeycomb.Client, python: Callable[[str], Path]
) -> None:
    # The first three starts fail: two pools break.
    folder = python('[ "$(wc -l < "$(dirname "$0")/starts")" -le 3 ]')
    notes: list[str] = []
    with MapReduce(words_of, total).run(
        SPLITS, client=hc, reducers=2, progress=lambda told: notes.append(told.note)
    ) as result:
        assert dict(result) == EXPECTED
        assert sum(one.failures for one in result.stages) == 0
    assert len((folder / "starts").read_text().split()) > 3
    assert any("continue in a new pool" in note and "code 3" in note for note in notes)


def test_pools_that_never_start_end_the_run(
    hc: honeycomb.Client, python: Callable[[str], Path]
) -> None:
    python("true")
    with pytest.raises(ExecutorBroken, match=r"4 worker pools broke.*exited with code 3"):
        MapReduce(words_of, total).run(SPLITS, client=hc, name="unlucky")
    assert "unlucky" not in [info["name"] for info in hc.jobs()]


def test_a_pool_that_dies_in_mid_run_is_replaced(
    hc: honeycomb.Client, python: Callable[[str], Path]
) -> None:
    # A worker dies, and its replacement fails to start, once.
    folder = python('[ -e "$(dirname "$0")/dead" ] && rm "$(dirname "$0")/dead"')
    mark = folder / "dead"
    once = folder / "once"

    def words_or_die(lines: list[str]) -> Iterator[tuple[str, int]]:
        task = current_task()
        if task is not None and task.index == 4 and not once.exists():
            once.touch()
            mark.touch()
            die()
        yield from words_of(lines)

    with MapReduce(words_or_die, total).run(SPLITS, client=hc, reducers=2) as result:
        assert dict(result) == EXPECTED
    assert once.exists() and not mark.exists()


def test_a_borrowed_executor_that_broke_is_told(hc: honeycomb.Client) -> None:
    def refuse() -> None:
        raise ValueError("no luck")

    with (
        honeycomb.WorkerPool(1, initializer=refuse) as pool,
        pytest.raises(ExecutorBroken, match=r"WorkerPool.*no luck"),
    ):
        MapReduce(words, total).run(LINES, client=hc, executor=pool)
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    with pytest.raises(ExecutorBroken, match=r"ThreadPoolExecutor.*after shutdown"):
        MapReduce(words, total).run(LINES, client=hc, executor=threads)


# --------------------------------------------------------------------------------- skew


def test_a_skewed_key_does_not_break_the_run(hc: honeycomb.Client) -> None:
    """90 % of the pairs have one key; its reducer's partition has many blocks."""

    def skewed(number: int) -> Iterator[tuple[str, bytes]]:
        for one in range(10_000):
            hot = one % 10 != 0
            yield "hot" if hot else f"cold-{number}-{one}", b"%050d" % one

    def count(key: str, values: list[bytes]) -> tuple[int, bytes]:
        return len(values), max(values)

    notes: list[str] = []
    with MapReduce(skewed, count).run(
        range(20), client=hc, reducers=8, progress=lambda told: notes.append(told.note)
    ) as result:
        found = dict(result)
        skew = result.skew()
        report = str(skew), repr(skew)
    assert found["hot"] == (180_000, b"%050d" % 9_999)
    assert len(found) == 1 + 20_000
    assert skew.ratio > 4
    assert sum(load.pairs for load in skew.partitions) == 200_000
    assert skew.largest.bytes > 180_000 * 50
    [heaviest] = skew.heaviest
    assert (heaviest.key, heaviest.pairs) == ("'hot'", 180_000)
    assert heaviest.partition == skew.largest.index and heaviest.share > 0.9
    assert all("'hot'" in text and "x the median" in text for text in report)
    assert sum("skew: partition" in note for note in notes) == 1


def test_an_even_run_gets_no_warning(hc: honeycomb.Client) -> None:
    notes: list[str] = []
    with MapReduce(words_of, total).run(
        SPLITS, client=hc, progress=lambda told: notes.append(told.note)
    ) as result:
        assert dict(result) == EXPECTED
    assert not any("skew" in note for note in notes)


def test_a_task_that_hangs_and_fails_ends_with_its_error(hc: honeycomb.Client) -> None:
    """If a copy fails, the first attempt continues; if that fails too, the run fails."""

    def fail(number: int) -> Iterator[tuple[int, int]]:
        task = current_task()
        if number == 0 and task is not None:
            if task.attempt == 1:
                eventually(lambda: False, 2.0)
            raise LookupError("mine")
        yield number, 1

    with pytest.raises(TaskFailed, match="mine"):
        MapReduce(fail, total).run(range(8), client=hc, attempts=2, speculate=EAGER)
