"""Flushing prefixes to external storage, and loading them from there."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from honeycomb import _address, errors
from honeycomb._display import Facts, Shown
from honeycomb.errors import from_status

if TYPE_CHECKING:
    from honeycomb._session import Session

__all__ = ["Progress", "checked", "flush", "flush_raw", "flush_subtree", "load", "load_options"]

# First and longest pause between two requests for the progress of a flush, in seconds.
_FIRST: Final = 0.002
_LONGEST: Final = 0.2


@dataclass(frozen=True, slots=True)
class Progress(Shown):
    """The progress of a flush or a load. ``done`` of ``of`` are blocks of a flush, prefixes of a flush of
    a subtree, or bytes of a load. ``bytes`` is the number of bytes written or read. ``failing`` is the
    reason why the last attempt failed, if the operation is being retried."""

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
    session: Session,
    job: int,
    path: str,
    place: str,
    barrier: bool,
    progress: Look | None,
    timeout: float | None,
) -> str:
    """Flushes a prefix and waits. Returns the full path or URL of the flush."""
    native = session.native
    number, full = native.begin_flush(job, path, place, barrier)
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
            raise errors.DeadlineExceeded(
                f"the flush of {path or '/'} to {full} did not complete within {timeout:g} s and "
                f"continues{why}"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)


def see_through(session: Session, job: int, timeout: float | None) -> None:
    """Waits until the persistent prefixes of a job that has ended are written."""
    ends = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST
    while True:
        done, parts, parts_done, written, failing = session.native.flush_progress(job, 0)
        if done:
            return
        if ends is not None and time.monotonic() >= ends:
            why = f"; the flush is retried after a failure: {failing}" if failing else ""
            text = f"{parts_done} of {parts} blocks are written, {written} bytes"
            text = (
                f"the job's persistent prefixes were not flushed within {timeout:g} s: {text}{why}"
            )
            raise errors.DeadlineExceeded(text)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)


def checked(format: str) -> str:
    """The format of a flush, after a check that it is valid."""
    if format not in ("honeycomb", "raw"):
        raise ValueError(f"format is 'honeycomb' or 'raw', not {format!r}")
    return format


def flush_raw(
    session: Session,
    address: str,
    place: str | os.PathLike[str],
    progress: Look | None,
    timeout: float | None,
) -> str:
    """Writes a file as one object, with the ``honeycomb`` program. Returns its full path or URL."""
    command = ["flush", address, os.fspath(place), "--format", "raw"]
    return str(_told(session, command, progress, timeout)["place"])


def flush_subtree(
    session: Session,
    path: str,
    place: str,
    barrier: bool,
    progress: Look | None,
    timeout: float | None,
) -> str:
    """Flushes a prefix and its descendants, with the ``honeycomb`` program. Returns the full path or URL of
    the uppermost prefix."""
    command = ["flush", path or "/", place, "--subtree", *(["--barrier"] if barrier else [])]
    return str(_told(session, command, progress, timeout)["place"])


def load_options(
    place: str | os.PathLike[str] | None,
    *,
    lease: float | None,
    pinned: bool,
    again: bool,
    persisted: bool,
    persist: bool,
    raw: bool,
    subtree: bool,
) -> list[str]:
    """The options of a load for the program, besides the external path and the prefix."""
    if place is None and not persisted:
        raise TypeError("load_addr_prefix() needs external_path, or persisted=True")
    if persisted and raw:
        raise ValueError("persisted=True loads a flush, not a plain object: leave format='raw' out")
    if subtree and (persisted or raw):
        raise ValueError("subtree=True takes neither persisted=True nor format='raw'")
    options = ["--lease-ms", str(_address.lease_ms(lease))] if lease is not None else []
    options += ["--pinned"] if pinned else []
    options += ["--again"] if again else []
    options += ["--persisted"] if persisted else []
    options += ["--persist"] if persist else []
    options += ["--format", "raw"] if raw else []
    options += ["--subtree"] if subtree else []
    return options


def load(
    session: Session,
    path: str,
    place: str | os.PathLike[str] | None,
    options: list[str],
    progress: Look | None,
) -> int:
    """Loads a flush with the ``honeycomb`` program, which has the clients of object stores. Returns the
    number of bytes."""
    places = [] if place is None else [os.fspath(place)]
    return int(str(_told(session, ["load", *places, path, *options], progress, None)["bytes"]))


def _told(
    session: Session, arguments: list[str], progress: Look | None, timeout: float | None
) -> dict[str, object]:
    """Runs the ``honeycomb`` program and returns its result. If the timeout passes or ``progress`` raises,
    terminates the program, which then undoes its partial work."""
    from honeycomb._local import binary

    command = [str(binary()), *arguments, "--json", "--progress"]
    environment = dict(os.environ)
    environment["HONEYCOMB_ADDRESS"] = session.address.removeprefix("honeycomb://")
    environment["HONEYCOMB_TOKEN"] = session.token.hex()
    late = threading.Event()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None

        def end() -> None:
            late.set()
            process.terminate()

        timer = threading.Timer(timeout or 0, end)
        if timeout is not None:
            timer.start()
        try:
            last: dict[str, object] = {}
            for line in process.stderr:
                try:
                    last = json.loads(line)
                except ValueError:
                    last = {"error": {"status": None, "message": line.strip()}}
                if progress is not None and "of" in last:
                    done, failing = int(str(last["bytes"])), last.get("failing")
                    why = None if failing is None else str(failing)
                    units = int(str(last.get("done", done)))
                    progress(Progress(units, int(str(last["of"])), done, why))
            told = process.stdout.read()
        except BaseException:
            # SIGTERM, so that the program undoes its partial work.
            process.terminate()
            raise
        finally:
            timer.cancel()
    if process.returncode and late.is_set():
        raise errors.DeadlineExceeded(f"the flush took more than {timeout:g} s and was cancelled")
    if process.returncode:
        raise _error(last)
    result: dict[str, object] = json.loads(told)
    return result


def _error(last: dict[str, object]) -> errors.HoneycombError:
    told = last.get("error", last)
    if isinstance(told, dict):
        return from_status(str(told.get("status")), str(told.get("message")))
    return from_status(str(last.get("status")), str(last.get("message", told)))
