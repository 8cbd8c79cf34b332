"""What a prefix holds, to a place outside and back."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from honeycomb import _address, errors
from honeycomb._display import Facts, Shown
from honeycomb.errors import from_status

if TYPE_CHECKING:
    from honeycomb._session import Session

__all__ = ["Progress", "flush", "load"]

# Pauses between two looks at a flush, in seconds.
_FIRST: Final = 0.002
_LONGEST: Final = 0.2


@dataclass(frozen=True, slots=True)
class Progress(Shown):
    """How far a flush or a load is: ``done`` of ``of`` are blocks of a flush and bytes of a load.
    ``bytes`` were written, or read. ``failing`` says why the last attempt failed, of one that is tried
    again."""

    done: int
    of: int
    bytes: int
    failing: str | None = None

    def _facts(self) -> Facts:
        yield "done", f"{self.done} of {self.of}"
        yield "bytes", str(self.bytes)
        if self.failing:
            yield "failing", self.failing


Look = Callable[[Progress], object]


def flush(
    session: Session, job: int, path: str, place: str, progress: Look | None, timeout: float | None
) -> str:
    """Flushes and waits; answers where it is."""
    native = session.native
    number, full = native.begin_flush(job, path, place)
    ends = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST
    while True:
        done, parts, parts_done, written, failing = native.flush_progress(job, number)
        if progress is not None:
            progress(Progress(parts_done, parts, written, failing))
        if done:
            return str(full)
        if ends is not None and time.monotonic() >= ends:
            why = f": {failing}" if failing else ""
            text = f"the flush of {path or '/'} to {full} goes on after {timeout:g} s{why}"
            raise errors.DeadlineExceeded(text)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)


def load(
    session: Session,
    path: str,
    place: str | os.PathLike[str],
    lease: float | None,
    pinned: bool,
    again: bool,
    progress: Look | None,
) -> int:
    """Loads by the program, which has the clients of object stores; answers the bytes."""
    from honeycomb._local import binary

    command = [str(binary()), "load", os.fspath(place), path, "--json", "--progress"]
    command += ["--lease-ms", str(_address.lease_ms(lease))] if lease is not None else []
    command += ["--pinned"] if pinned else []
    command += ["--again"] if again else []
    environment = dict(os.environ)
    environment["HONEYCOMB_ADDRESS"] = session.address.removeprefix("honeycomb://")
    environment["HONEYCOMB_TOKEN"] = session.token.hex()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            last: dict[str, object] = {}
            for line in process.stderr:
                try:
                    last = json.loads(line)
                except ValueError:
                    last = {"error": {"status": None, "message": line.strip()}}
                if progress is not None and "of" in last:
                    done = int(str(last["bytes"]))
                    progress(Progress(done, int(str(last["of"])), done))
            told = process.stdout.read()
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise _error(last)
    return int(json.loads(told)["bytes"])


def _error(last: dict[str, object]) -> errors.HoneycombError:
    told = last.get("error", last)
    if isinstance(told, dict):
        return from_status(str(told.get("status")), str(told.get("message")))
    return from_status(str(last.get("status")), str(last.get("message", told)))
