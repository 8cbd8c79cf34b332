"""A pool of running local worker processes with the interface of ``concurrent.futures.Executor``.

Workers are spawned, never forked: they share no sockets, locks or sessions with the program. They
start with the pool and keep running, so that dispatching a task costs two messages on a socket.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

import cloudpickle

from honeycomb import _worker, errors
from honeycomb._session import close_after

__all__ = ["BrokenWorkerPool", "WorkerDied", "WorkerPool"]

P = ParamSpec("P")
T = TypeVar("T")

#: Tasks that may wait for a worker before ``submit`` makes its caller wait.
PENDING_MAX: Final = 4096
WORKERS_MAX: Final = 1024
#: Workers that may die before they begin a task; then the task fails.
HANDOVERS_MAX: Final = 3
#: Time for a worker to end after the pool sends it a stop message, in seconds.
STOP_SECONDS: Final = 5.0

_BOOT: Final = (
    "import sys; sys.path[:] = {path!r}; from honeycomb._worker import run_worker; run_worker({fd})"
)


class WorkerDied(errors.HoneycombError):
    """The worker process ended while it ran the task: killed, out of memory, or by ``os._exit``.

    ``exit_code`` is its exit code or ``None``, ``signal`` the signal that killed it or ``None``. The
    task's effects up to that moment remain.
    """

    def __init__(
        self, message: str, exit_code: int | None = None, signal: int | None = None
    ) -> None:
        super().__init__(message, exit_code, signal)
        self.exit_code = exit_code
        self.signal = signal


class BrokenWorkerPool(BrokenExecutor, errors.HoneycombError):
    """No worker can be started, for example because the initializer raises. The pool accepts no more
    tasks."""


class _RemoteTraceback(Exception):
    """Contains a worker's traceback; it is the cause of the exception with that traceback."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class _Task:
    """A submitted call. It is pickled when submitted, so that a queued call cannot change."""

    __slots__ = ("future", "killed", "label", "message")

    def __init__(self, future: Future[Any], message: bytes, label: str) -> None:
        self.future = future
        self.message = message
        self.label = label
        self.killed = False  # a killed task is not given to another worker


class WorkerPool(Executor):
    """Runs functions in ``max_workers`` spawned processes of this machine.

    ``max_workers`` is at most 1024 (``None``: one for each usable core). ``initializer(*initargs)``
    runs first in every worker. Functions, arguments and results are sent with cloudpickle, so lambdas
    and functions of ``__main__`` work, and scripts need no ``if __name__ == "__main__"``.

    When a worker dies, only the task that it was running fails, with :class:`WorkerDied`; a new worker
    replaces it. Exceptions of a task have the worker's traceback as ``__cause__``. At most ``pending``
    tasks wait for a worker; beyond that, ``submit`` blocks its caller until there is room (a callback of a
    future, which must not block, gets :class:`~honeycomb.errors.Busy`).

    Workers end with :meth:`shutdown`, with the pool and with the process, in whatever way that ends. They
    ignore Ctrl-C. Unfinished tasks end with the process too. Thread-safe. Unusable in a forked child,
    where ``submit`` raises.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        pending: int = PENDING_MAX,
    ) -> None:
        if max_workers is None:
            max_workers = min(len(os.sched_getaffinity(0)), WORKERS_MAX)
        if not 1 <= max_workers <= WORKERS_MAX:
            raise errors.InvalidArgument(
                f"max_workers is 1 to {WORKERS_MAX} workers, not {max_workers}"
            )
        if pending < 1:
            raise errors.InvalidArgument(f"pending is 1 or more tasks, not {pending}")
        setup = cloudpickle.dumps((initializer, initargs), protocol=5)
        self._state = _State(max_workers, pending, setup)
        self._finalizer = weakref.finalize(self, self._state.terminate)
        self._state.start()
        _pools.add(self._state)

    @property
    def max_workers(self) -> int:
        """The number of workers."""
        return self._state.size

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedules ``fn(*args, **kwargs)``. A function or argument that cannot be pickled raises here.

        Raises ``RuntimeError`` after shutdown and :class:`BrokenWorkerPool` when no worker starts.
        """
        message = _worker.TASK + cloudpickle.dumps((fn, args, kwargs), protocol=5)
        future: Future[T] = Future()
        self._state.add(_Task(future, message, getattr(fn, "__qualname__", repr(fn))))
        return future

    def warm(self, timeout: float | None = None) -> bool:
        """Waits until every worker has started, at most ``timeout`` seconds (``None`` without limit).
        Returns whether all have. Raises :class:`BrokenWorkerPool`."""
        return self._state.await_warm(timeout)

    def worker_pids(self) -> list[int]:
        """Process ids of the workers that have started."""
        return self._state.pids()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accepts no more tasks, and ends the workers when the submitted tasks are done. Idempotent.

        ``cancel_futures`` cancels the tasks that no worker has begun. With ``wait``, returns when all
        workers have ended. If a worker did not end within 5 s, it was killed and its exit handlers have not
        all run; the call then raises :class:`WorkerDied`, once. The end of a ``with`` block waits and
        raises in the same way. In a forked child this does nothing.
        """
        if not self._state.is_ours():
            return
        self._state.stop(cancel_futures)
        if wait:
            self._state.join()
            self._state.raise_killed()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        close_after(exc, self.shutdown)

    def kill(self, future: Future[Any]) -> bool:
        """Ends one task, whatever it is doing. A waiting task is cancelled. The worker of a running task is
        killed and replaced, and the future fails with :class:`WorkerDied`.

        Use it for tasks that hang or are no longer needed; ``future.cancel()`` does not end a running
        task. Returns at once: False if the task was done already, or belongs to another pool.
        """
        return self._state.kill(future)

    def terminate(self) -> None:
        """Kills the workers now. Running tasks fail with :class:`WorkerDied`; waiting tasks are
        cancelled. Returns when the workers have ended."""
        self._state.terminate()
        self._state.join()


class _Worker:
    """One process and the socket to it. One thread uses it; any thread may kill it."""

    def __init__(self, setup: bytes) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT.format(path=sys.path, fd=theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self.connection = Connection(ours.detach())
        self._setup = setup

    def start(self) -> None:
        """Waits until the worker is ready. Raises :class:`BrokenWorkerPool` if it fails to start."""
        try:
            self.connection.send_bytes(self._setup)
            reply = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise BrokenWorkerPool(
                f"a worker ended before it was ready: {self.obituary()[0]}"
            ) from None
        if reply[:1] == _worker.BROKEN:
            error, text = _load_failure(reply[1:])
            raise BrokenWorkerPool(f"the initializer raised {error!r}") from _RemoteTraceback(text)

    def run(self, task: _Task) -> bool:
        """Runs a task and completes its future. Returns False if the worker died before it began."""
        try:
            self.connection.send_bytes(task.message)
            if self.connection.recv_bytes() != _worker.BEGUN:
                raise OSError("the worker sent an unexpected message")
        except (EOFError, OSError):
            return False
        try:
            reply = self.connection.recv_bytes()
        except (EOFError, OSError):
            words, code, number = self.obituary()
            task.future.set_exception(
                WorkerDied(
                    f"worker {self.process.pid} {words} while it ran {task.label}", code, number
                )
            )
            return True
        _settle(task.future, reply)
        return True

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def obituary(self) -> tuple[str, int | None, int | None]:
        """How the process ended: as text, exit code, signal. Ends the process if it has only closed its
        socket."""
        self.connection.close()
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code >= 0:
            return f"exited with code {code}", code, None
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}", None, -code

    def stop(self) -> bool:
        """Ends an idle worker with a stop message. Returns False if it had to be killed."""
        with contextlib.suppress(OSError, ValueError):  # the worker has ended already
            self.connection.send_bytes(_worker.STOP)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        finally:
            self.connection.close()
        return True


class _State:
    """The state shared by the pool's threads. One thread serves each worker. The threads refer to this
    object and not to the pool, so that a pool without other references can end."""

    def __init__(self, size: int, pending: int, setup: bytes) -> None:
        self.size = size
        self._pending = pending
        self._setup = setup
        lock = threading.Lock()
        self._lock = lock
        self._work = threading.Condition(lock)  # the queue has a task, or the pool ends
        self._changed = threading.Condition(lock)  # the queue has room, or a worker has started
        self._queue: deque[_Task] = deque()
        self._workers: dict[int, _Worker] = {}
        self._started: set[int] = set()
        self._tasks: dict[int, _Task] = {}  # the current task of each slot's worker
        self._stopping = False
        self._killed = False
        self._overdue: list[int] = []  # workers that were killed because they did not stop
        self._broken: BrokenWorkerPool | None = None
        self._pid = os.getpid()
        self._threads = [
            threading.Thread(target=self._serve, args=(slot,), name=f"worker-{slot}", daemon=True)
            for slot in range(size)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, task: _Task) -> None:
        self._check_process()
        with self._lock:
            while len(self._queue) >= self._pending and not (self._stopping or self._broken):
                if threading.current_thread() in self._threads:
                    raise errors.Busy(
                        f"cannot submit a task: {self._pending} tasks wait for a worker (the "
                        "limit), and a callback of a future cannot wait for room"
                    )
                self._changed.wait()
            if self._broken is not None:
                raise self._broken
            if self._stopping:
                raise RuntimeError("the pool was shut down")
            self._queue.append(task)
            self._work.notify()

    def is_ours(self) -> bool:
        return os.getpid() == self._pid

    def _check_process(self) -> None:
        if not self.is_ours():
            raise RuntimeError(
                "this worker pool belongs to the parent process; make a new pool after the fork"
            )

    def await_warm(self, timeout: float | None) -> bool:
        self._check_process()
        with self._lock:
            self._changed.wait_for(
                lambda: self._broken or self._stopping or len(self._started) == self.size, timeout
            )
            if self._broken is not None:
                raise self._broken
            return len(self._started) == self.size

    def pids(self) -> list[int]:
        with self._lock:
            return [self._workers[slot].process.pid for slot in sorted(self._started)]

    def stop(self, cancel: bool) -> None:
        with self._lock:
            self._stopping = True
            dropped = list(self._queue) if cancel else []
            if cancel:
                self._queue.clear()
            self._work.notify_all()
            self._changed.notify_all()
        for task in dropped:
            task.future.cancel()

    def kill(self, future: Future[Any]) -> bool:
        if future.cancel():
            return True
        self._check_process()
        with self._lock:
            for slot, task in self._tasks.items():
                if task.future is future and not future.done():
                    task.killed = True
                    # A slot takes its next task under this lock, so its worker still has this task. If
                    # the slot is starting a new worker, the flag ends the task instead.
                    if slot in self._started:
                        self._workers[slot].process.kill()
                    return True
        return False

    def terminate(self) -> None:
        if not self.is_ours():
            return
        self._killed = True
        self.stop(cancel=True)
        with self._lock:
            for worker in self._workers.values():
                worker.process.kill()

    def _is_killed(self) -> bool:
        return self._killed

    def join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def raise_killed(self) -> None:
        """Reports the workers that were killed because they did not stop. Once."""
        with self._lock:
            overdue, self._overdue = self._overdue, []
        if overdue and not self._killed:
            raise WorkerDied(
                f"{len(overdue)} of {self.size} workers did not end within {STOP_SECONDS:g} s after "
                f"shutdown and were killed (process {', '.join(map(str, overdue))}): their exit "
                "handlers have not all run",
                signal=signal.SIGKILL,
            )

    def forget(self) -> None:
        """In a forked child: closes the copies of the sockets, which would keep the workers running."""
        for worker in self._workers.values():
            worker.connection.close()
            worker.process.returncode = 0

    # ------------------------------------------------------------------ the thread of one slot

    def _serve(self, slot: int) -> None:
        try:
            worker = self._replace(slot, None)
            while worker is not None and (task := self._next(slot)) is not None:
                if task.future.set_running_or_notify_cancel():
                    worker = self._run(slot, worker, task)
            if worker is not None and not worker.stop():
                with self._lock:
                    self._overdue.append(worker.process.pid)
        except BrokenWorkerPool as error:
            self._break(error)

    def _next(self, slot: int) -> _Task | None:
        with self._lock:
            self._tasks.pop(slot, None)
            while not self._queue:
                if self._stopping or self._broken is not None:
                    return None
                self._work.wait()
            task = self._tasks[slot] = self._queue.popleft()
            if len(self._queue) == self._pending - 1:
                self._changed.notify_all()
            return task

    def _run(self, slot: int, worker: _Worker | None, task: _Task) -> _Worker | None:
        """Runs one task. Returns the worker for the next task: a new one if this worker died."""
        for _ in range(HANDOVERS_MAX):
            if worker is None:
                task.future.set_exception(
                    WorkerDied(f"the pool was terminated before {task.label} began")
                )
                return None
            if task.killed:
                task.future.set_exception(WorkerDied(f"{task.label} was killed before it began"))
                return worker
            begun = worker.run(task)
            if begun and not worker.connection.closed:
                return worker
            try:
                worker = self._replace(slot, worker)
            except BrokenWorkerPool as error:
                if not begun:
                    task.future.set_exception(error)
                raise
            if begun:
                return worker
        task.future.set_exception(
            WorkerDied(
                f"{HANDOVERS_MAX} workers died one after another before they began {task.label}"
            )
        )
        return worker

    def _replace(self, slot: int, dead: _Worker | None) -> _Worker | None:
        """Starts the slot's worker. Returns ``None`` if the pool is being terminated."""
        if dead is not None:
            dead.obituary()
        with self._lock:
            self._started.discard(slot)
            self._workers.pop(slot, None)
            if self._killed:
                return None
        try:
            worker = _Worker(self._setup)
        except OSError as error:
            raise BrokenWorkerPool(f"no worker can be started: {error}") from error
        with self._lock:
            self._workers[slot] = worker
            if self._is_killed():
                worker.process.kill()
        try:
            worker.start()
        except BrokenWorkerPool:
            if self._is_killed():
                return None
            raise
        with self._lock:
            self._started.add(slot)
            self._changed.notify_all()
        return worker

    def _break(self, error: BrokenWorkerPool) -> None:
        with self._lock:
            if self._broken is None:
                self._broken = error
            waiting = list(self._queue)
            self._queue.clear()
            self._work.notify_all()
            self._changed.notify_all()
        for task in waiting:
            if task.future.set_running_or_notify_cancel():
                task.future.set_exception(error)


def _settle(future: Future[Any], reply: bytes) -> None:
    try:
        if reply[:1] == _worker.RESULT:
            future.set_result(pickle.loads(memoryview(reply)[1:]))
            return
        error, text = _load_failure(reply[1:])
        error.__cause__ = _RemoteTraceback(text)
    except Exception as problem:  # noqa: BLE001 - unpickling runs the user's code
        error = problem
    future.set_exception(error)


def _load_failure(data: bytes) -> tuple[BaseException, str]:
    error, text = pickle.loads(data)
    return error, text


_pools: weakref.WeakSet[_State] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for state in list(_pools):
        state.forget()


os.register_at_fork(after_in_child=_forget_after_fork)
