"""What ``honeycomb run`` runs: a script as ``python script.py`` would, but that SIGTERM reaches it as
Ctrl-C does, so that its ``with`` blocks give back what they hold.

Exit codes are the script's; 130 after Ctrl-C and 143 after SIGTERM or SIGHUP, when the script lets
the ``KeyboardInterrupt`` through. A script may put handlers of its own in place.
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
    """Runs the script; returns the exit code, where the script does not end the process itself."""
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(number)
        # As Ctrl-C, so that whoever holds that off while it cleans up holds this off as well.
        signal.raise_signal(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # else it is to be ignored, as by nohup
            signal.signal(number, end)
    # A process that is started in the background of a script ignores Ctrl-C; SIGTERM must end it
    # all the same, and it comes as Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    try:
        with io.open_code(os.path.abspath(path)) as source:
            code = compile(source.read(), path, "exec")
        exec(code, main.__dict__)  # noqa: S102 - it is what was asked for
    except KeyboardInterrupt as error:
        _show(error)
        return 128 + told[0] if told else INTERRUPTED
    except Exception as error:  # noqa: BLE001 - as the interpreter itself shows it
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
