"""The process of one pool worker: receives a task, runs it in the main thread, sends its result.

Messages are length-prefixed; the first byte is their type. A separate thread reads from the pool, so
that the process ends at once when its parent is gone, whatever the task is doing.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

import cloudpickle

# From the worker.
READY: Final = b"r"  # started, initializer done
BROKEN: Final = b"b"  # could not start; an exception follows
BEGUN: Final = b"s"  # the task is running, and from now on is never given to another worker
RESULT: Final = b"v"  # a pickled value follows
FAILED: Final = b"e"  # a pickled (exception, traceback text) follows
# To the worker.
TASK: Final = b"t"  # a pickled (function, args, kwargs) follows
STOP: Final = b"q"

PARENT_GONE: Final = 113


def run_worker(fd: int) -> None:
    """Serves the pool at the other end of socket ``fd`` until the pool sends stop or closes the socket."""
    connection = Connection(fd)
    # Ctrl-C is for the program, which decides whether to end its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        initializer, args = pickle.loads(connection.recv_bytes())
        if initializer is not None:
            initializer(*args)
    except BaseException as error:  # noqa: BLE001 - the pool raises it
        connection.send_bytes(BROKEN + _describe(error))
        return
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox.put), daemon=True).start()
    connection.send_bytes(READY)
    while (message := inbox.get())[:1] == TASK:
        connection.send_bytes(BEGUN)
        reply = _run(memoryview(message)[1:])
        _flush_output()
        connection.send_bytes(reply)


def _listen(connection: Connection, deliver: Callable[[bytes], None]) -> None:
    while True:
        try:
            deliver(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(PARENT_GONE)


def _run(payload: memoryview) -> bytes:
    try:
        function, args, kwargs = pickle.loads(payload)
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - the future raises it
        return FAILED + _describe(error)
    try:
        return RESULT + _dumps(value)
    except Exception as error:  # noqa: BLE001 - pickling runs the user's code
        problem = TypeError(
            f"the task's result, a {type(value).__name__}, cannot be pickled: {error}"
        )
        return FAILED + _describe(problem)


def _describe(error: BaseException) -> bytes:
    """The pickled exception with its traceback as text. An exception that cannot be pickled and unpickled
    is replaced by a ``RuntimeError`` with its text."""
    text = "".join(traceback.format_exception(error))
    try:
        described = _dumps((error, text))
        pickle.loads(described)  # many exceptions can be pickled but not unpickled
        return described
    except Exception:  # noqa: BLE001 - as above
        return _dumps((RuntimeError(f"{type(error).__qualname__}: {error}"), text))


def _dumps(value: Any) -> bytes:
    data: bytes = cloudpickle.dumps(value, protocol=5)
    return data


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
