"""The script runner of ``honeycomb run``. It runs a script as ``python script.py`` does, except that
SIGTERM is delivered like Ctrl-C, so that the script's ``with`` blocks release their resources.

The exit code is the script's. If the script does not catch the ``KeyboardInterrupt``, it is 130 after
Ctrl-C, and 128 plus the signal's number after SIGTERM (143) or SIGHUP (129). A script may install its own
handlers.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import types
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130


def run(path: str, arguments: list[str]) -> int:
    """Runs the script. Returns the exit code, unless the script ends the process itself."""
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(number)
        # Delivered as SIGINT, so that code that defers Ctrl-C while it cleans up also defers this signal.
        signal.raise_signal(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # otherwise it is ignored, as under nohup
            signal.signal(number, end)
    # A shell script starts background processes with SIGINT ignored. SIGTERM must still end them, and
    # it is delivered as SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    try:
        with io.open_code(os.path.abspath(path)) as source:
            code = compile(source.read(), path, "exec")
        exec(code, main.__dict__)  # noqa: S102 - running the script is the purpose
    except KeyboardInterrupt as error:
        _show(error)
        return 128 + told[0] if told else INTERRUPTED
    except Exception as error:  # noqa: BLE001 - shown as the interpreter shows it
        _show(error)
        return 1
    return 0


def _show(error: BaseException) -> None:
    """The traceback, without the frame of this module."""
    frames = error.__traceback__
    shown = error.with_traceback(frames.tb_next if frames is not None else None)
    sys.excepthook(type(shown), shown, shown.__traceback__)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
