"""The errors of MapReduce jobs."""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from honeycomb.errors import HoneycombError

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class MapReduceError(HoneycombError):
    """The job failed; its memory was freed."""


class Cancelled(MapReduceError):
    """The program cancelled the run (``cancel=``); its tasks were stopped."""


class ExecutorBroken(MapReduceError):
    """The executor accepts no more tasks: it was shut down, or its workers cannot be started."""


class MissingPackage(MapReduceError, ImportError):
    """An input or output needs a Python package that is not installed; the message names it."""


class MissingInput(MapReduceError, FileNotFoundError):
    """An input does not exist, or a pattern matches nothing. Raised before any task starts."""


class InputFailed(MapReduceError, OSError):
    """An input that existed when the run began is gone, changed or damaged."""


class TaskFailed(MapReduceError):
    """A task failed in all its attempts, or with an error that a retry cannot fix.

    ``address`` is the task's address (``job/map-3``), ``attempt`` its last attempt, counted from 1.
    """

    def __init__(self, message: str, address: str = "", attempt: int = 0) -> None:
        super().__init__(message, address, attempt)
        self.address = address
        self.attempt = attempt


class UserFunctionError(TaskFailed):
    """A function of the program raised. The message ends with the function's traceback.

    ``function`` names it (``map``, ``combine``, ``partition``, ``sort_key`` or ``reduce``),
    ``error`` is the exception as text, ``traceback`` its traceback from the user's first frame on,
    and ``origin`` the input of a map task, if it has a name (``book.txt bytes 0..65536``).
    """

    def __init__(
        self,
        address: str,
        attempt: int,
        function: str,
        error: str,
        traceback: str,
        origin: str = "",
    ) -> None:
        of = f" (map of {origin})" if origin else ""
        super().__init__(
            f"the {function} function raised {error} in {address}{of}, attempt {attempt}"
            f"\n\n{traceback}",
            address,
            attempt,
        )
        self.function = function
        self.error = error
        self.traceback = traceback
        self.origin = origin

    def __repr__(self) -> str:
        return f"the {self.function} function raised {self.error}"

    def __reduce__(self) -> tuple[object, ...]:
        fields = (
            self.address, self.attempt, self.function, self.error, self.traceback, self.origin
        )  # fmt: skip
        return UserFunctionError, fields


class KeyOrderError(TaskFailed):
    """Keys cannot be compared with each other, but the output must be in order of key. The message
    names two of the keys."""


class NotPicklable(TaskFailed):
    """A function of the program, an input, or a result of a function cannot be pickled. The message
    names the function and the type."""


def user_traceback(error: BaseException) -> str:
    """The traceback as text, without the library's own frames before the user's."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_LIBRARY):
        frames = frames.tb_next
    shown = frames or error.__traceback__
    return "".join(traceback.format_exception(type(error), error, shown)).rstrip()
