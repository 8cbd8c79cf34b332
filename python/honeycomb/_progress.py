"""Progress bars on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from typing import Final, TextIO

WIDTH: Final = 32
#: Shortest time between two drawings of a bar, in seconds.
REDRAW_SECONDS: Final = 0.05
_PARTS: Final = " ▏▎▍▌▋▊▉"


def bar(fraction: float, width: int = WIDTH) -> str:
    """A bar of ``width`` characters, filled to an eighth of a character."""
    eighths = round(min(max(fraction, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_PARTS[part] if part else "")).ljust(width)


class ProgressBars:
    """One line for each stage: redrawn in place on a terminal, otherwise written at every quarter."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._stage = ""
        self._started = 0.0
        self._drawn = 0.0
        self._quarter = -1
        self._open = False

    def update(self, stage: str, done: int, total: int) -> None:
        """Shows the progress of ``stage``. A stage ends when ``done == total`` or another stage begins."""
        now = time.monotonic()
        if stage != self._stage:
            self._end_line()
            self._stage, self._started, self._drawn, self._quarter = stage, now, 0.0, -1
        elif self._quarter == 4:
            return
        quarter = done * 4 // total if total else 4
        if self._live and (now - self._drawn >= REDRAW_SECONDS or quarter == 4):
            self._drawn = now
            self._stream.write(f"\r{self._line(done, total, now)}")
            self._open = True
        elif not self._live and quarter > max(self._quarter, 0):
            self._stream.write(f"{self._stage}: {done}/{total} ({now - self._started:.1f} s)\n")
        self._quarter = quarter
        if quarter == 4:
            self._end_line()
        self._stream.flush()

    def note(self, text: str) -> None:
        """Writes a separate line above the bar."""
        if self._open:
            self._stream.write("\r\x1b[K")
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def _line(self, done: int, total: int, now: float) -> str:
        fraction = done / total if total else 1.0
        seconds = now - self._started
        return (
            f"  {self._stage:<8} {bar(fraction)} {fraction:4.0%}  {done}/{total}  {seconds:.1f} s"
        )

    def _end_line(self) -> None:
        if self._open:
            self._stream.write("\n")
            self._open = False
