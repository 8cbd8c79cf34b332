from __future__ import annotations

import atexit
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, wait
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually

import honeycomb
from honeycomb import BrokenWorkerPool, WorkerDied, WorkerPool
from honeycomb.errors import InvalidArgument


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def wait_for_file(path: str) -> bool:
    return eventually(lambda: os.path.exists(path), 30)


class Odd(Exception):
    """Can be pickled, but not made from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raise_odd() -> None:
    raise Odd(1, 2)


def test_runs_functions_of_all_kinds(pool: WorkerPool) -> None:
    factor = 3

    def scale(x: int, *, y: int) -> int:
        return x * factor + y

    assert pool.submit(pow, 2, 10).result() == 1024
    assert pool.submit(scale, 5, y=1).result() == 16
    assert list(pool.map(lambda x: x * x, range(100))) == [x * x for x in range(100)]
    assert pool.submit(os.getpid).result() != os.getpid()


def test_an_empty_task_takes_under_5_ms(pool: WorkerPool) -> None:
    pool.submit(int).result()
    times = []
    for _ in range(200):
        started = time.perf_counter()
        pool.submit(int).result()
        times.append(time.perf_counter() - started)
    assert statistics.median(times) < 0.005


def test_an_exception_carries_the_worker_s_traceback(pool: WorkerPool) -> None:
    def divide() -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        pool.submit(divide).result()
    assert "in divide" in str(caught.value.__cause__)
    with pytest.raises(RuntimeError, match="Odd: 1 and 2"):
        pool.submit(raise_odd).result()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pool.submit(threading.Lock).result()
    with pytest.raises(SystemExit):
        pool.submit(sys.exit, 3).result()
    assert pool.submit(int).result() == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_fails_only_its_own_task(pool: WorkerPool, number: int) -> None:
    victim = pool.submit(die, number)
    others = [pool.submit(pow, 2, n) for n in range(50)]
    with pytest.raises(WorkerDied, match=signal.Signals(number).name) as caught:
        victim.result()
    assert (caught.value.signal, caught.value.exit_code) == (number, None)
    assert [other.result() for other in others] == [2**n for n in range(50)]


def test_a_worker_that_exits_tells_its_code(pool: WorkerPool) -> None:
    with pytest.raises(WorkerDied, match="exited with code 7") as caught:
        pool.submit(os._exit, 7).result()
    assert caught.value.exit_code == 7


def test_a_worker_killed_while_idle_costs_no_task() -> None:
    with WorkerPool(1) as pool:
        pool.warm()
        (pid,) = pool.worker_pids()
        os.kill(pid, signal.SIGKILL)
        assert pool.submit(pow, 2, 3).result() == 8
        assert pool.worker_pids() != [pid]


def test_the_initializer_runs_in_every_worker() -> None:
    def prepare(value: str) -> None:
        os.environ["HONEYCOMB_TEST_POOL"] = value

    with WorkerPool(2, initializer=prepare, initargs=("ready",)) as pool:
        told = list(pool.map(lambda _: os.environ["HONEYCOMB_TEST_POOL"], range(10)))
    assert told == ["ready"] * 10


def test_an_initializer_that_raises_breaks_the_pool() -> None:
    def prepare() -> None:
        raise ValueError("no luck")

    with WorkerPool(2, initializer=prepare) as pool:
        with pytest.raises(BrokenWorkerPool, match="no luck"):
            pool.warm()
        with pytest.raises(BrokenWorkerPool):
            pool.submit(int)


def test_shutdown_finishes_what_was_submitted() -> None:
    pool = WorkerPool(2)
    futures = [pool.submit(pow, 2, n) for n in range(30)]
    pool.shutdown()
    assert [future.result(0) for future in futures] == [2**n for n in range(30)]
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(int)


def stay_at_exit() -> None:
    atexit.register(signal.pause)


def test_shutdown_that_kills_a_worker_raises_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("honeycomb.pool.STOP_SECONDS", 0.1)
    pool = WorkerPool(1, initializer=stay_at_exit)
    assert pool.submit(pow, 2, 3).result() == 8
    (pid,) = pool.worker_pids()
    with pytest.raises(WorkerDied, match=f"1 of 1 workers did not end .*process {pid}") as caught:
        pool.shutdown()
    assert caught.value.signal == signal.SIGKILL
    assert not _runs(pid)
    pool.shutdown()
    pool.terminate()
    with pytest.raises(WorkerDied), WorkerPool(1, initializer=stay_at_exit) as pool:
        pool.warm()
    with pytest.raises(Odd) as odd, WorkerPool(1, initializer=stay_at_exit) as pool:
        pool.warm()
        raise_odd()
    assert "closing failed too" in odd.value.__notes__[-1], "the error of the block is raised"


def test_shutdown_is_idempotent_and_nothing_in_a_forked_child() -> None:
    pool = WorkerPool(1)
    pool.warm()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pool.shutdown()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.submit(pow, 2, 3).result() == 8, "the child ended no worker of its parent"
    pool.shutdown()
    pool.shutdown()
    pool.shutdown(wait=False)


def test_shutdown_can_cancel_what_waits(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    pool = WorkerPool(1)
    running = pool.submit(wait_for_file, str(gate))
    assert eventually(running.running)
    waiting = [pool.submit(int) for _ in range(5)]
    pool.shutdown(wait=False, cancel_futures=True)
    gate.touch()
    assert running.result()
    for future in waiting:
        with pytest.raises(CancelledError):
            future.result()


def test_terminate_ends_running_tasks(tmp_path: Path) -> None:
    pool = WorkerPool(1)
    running = pool.submit(wait_for_file, str(tmp_path / "never"))
    assert eventually(running.running)
    pool.terminate()
    with pytest.raises(WorkerDied):
        running.result(0)


def test_one_task_can_be_killed_whatever_it_does(tmp_path: Path) -> None:
    with WorkerPool(2) as pool:
        pool.warm()
        before = pool.worker_pids()
        hung = pool.submit(signal.pause)
        other = pool.submit(wait_for_file, str(tmp_path / "gate"))
        queued = pool.submit(pow, 2, 3)
        assert eventually(lambda: hung.running() and other.running())
        assert pool.kill(queued) and queued.cancelled()
        assert pool.kill(hung)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            hung.result(30)
        assert not pool.kill(hung)  # done already
        (tmp_path / "gate").touch()
        assert other.result(30)  # the other worker keeps running
        assert [pool.submit(pow, 2, n).result(30) for n in range(10)] == [2**n for n in range(10)]
        pool.warm()
        assert len(set(before) & set(pool.worker_pids())) == 1


def test_killing_tasks_as_they_end_harms_no_others() -> None:
    """The kill may come when its task is done and the worker runs the next task, which must not die."""
    with WorkerPool(2) as pool:
        pool.warm()
        for _ in range(40):
            futures = [pool.submit(pow, 2, n) for n in range(6)]
            pool.kill(futures[0])
            assert [future.result(30) for future in futures[1:]] == [2**n for n in range(1, 6)]


def test_a_full_queue_makes_submit_wait(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with WorkerPool(1, pending=2) as pool:
        first = pool.submit(wait_for_file, str(gate))
        assert eventually(first.running)
        queued: list[Any] = []
        submitter = threading.Thread(
            target=lambda: queued.extend(pool.submit(int) for _ in range(6))
        )
        submitter.start()
        assert eventually(lambda: len(pool._state._queue) == 2)
        assert len(queued) <= 2
        gate.touch()
        submitter.join()
        wait(queued)
        assert [future.result() for future in queued] == [0] * 6


def test_bad_sizes_are_refused() -> None:
    for workers in (0, -1, 100_000):
        with pytest.raises(InvalidArgument):
            WorkerPool(workers)
    with pytest.raises(InvalidArgument):
        WorkerPool(1, pending=0)


def test_workers_die_with_their_parent() -> None:
    script = (
        "import os, signal, honeycomb\n"
        "pool = honeycomb.WorkerPool(2)\n"
        "pool.warm()\n"
        "busy = pool.submit(signal.pause)\n"
        "while not busy.running(): pass\n"
        "print(*pool.worker_pids(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.run(
        [sys.executable, "-P", "-c", script], stdout=subprocess.PIPE, check=False
    )
    assert parent.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in parent.stdout.split()]
    assert len(pids) == 2
    assert eventually(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_scripts_need_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import honeycomb\n"
        "class Pair:\n"
        "    def __init__(self, a): self.a = a\n"
        "def make(a): return Pair(a)\n"
        "with honeycomb.WorkerPool(1) as pool:\n"
        "    made = pool.submit(make, 5).result()\n"
        "    assert isinstance(made, Pair) and made.a == 5\n"
        "print('once')\n"
    )
    told = subprocess.run([sys.executable, str(script)], capture_output=True, check=True)
    assert told.stdout == b"once\n"


def test_a_pool_that_nobody_holds_ends() -> None:
    pool = honeycomb.WorkerPool(1)
    pool.warm()
    (pid,) = pool.worker_pids()
    del pool
    assert eventually(lambda: not _runs(pid))
