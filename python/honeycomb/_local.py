"""Clusters on this machine: the file that announces a running cluster, and the embedded cluster.

``honeycomb start`` writes the cluster file: JSON with ``address``, ``token`` (hex) and ``pid``. The
file contains a secret, so a file that other users could write or read is rejected.

The embedded cluster is a child ``honeycomb`` process with a pipe as its standard input. It ends when
that pipe closes, so it ends with its parent, in whatever way the parent ends. As a process of its own it
has its own memory, so its resident memory can be measured (design decision 15).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import select
import stat
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from honeycomb import errors
from honeycomb._session import Session
from honeycomb._settings import seconds, setting

_log = logging.getLogger("honeycomb")

START_SECONDS: Final = 20.0
#: Longest time for a cluster without unwritten data to end, in seconds.
STOP_SECONDS: Final = 30.0
#: Longest wait for flushes that fail, in seconds; the same as the program's.
STOP_WAIT: Final = 30.0
#: Time before the progress of stopping is reported, in seconds.
QUIET_SECONDS: Final = 0.3
CLUSTER_FILE_MAX: Final = 16_384


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a cluster, and a token for it."""

    address: str
    token: bytes


def cluster_file() -> Path:
    """The file in which a local cluster announces itself: the setting ``cluster_file``, else
    ``$XDG_RUNTIME_DIR/honeycomb/cluster.json``, else ``~/.honeycomb/cluster.json``."""
    if named := setting("cluster_file"):
        return Path(named)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime, "honeycomb", "cluster.json")
    return Path.home() / ".honeycomb" / "cluster.json"


def running_cluster() -> Endpoint | None:
    """The cluster that the cluster file announces; ``None`` without a file or if its process has
    ended. Raises :class:`PermissionDenied` for a file that other users own or can read."""
    path = cluster_file()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise errors.PermissionDenied(f"cannot open the cluster file {path}: {error}") from error
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise errors.PermissionDenied(
                f"the cluster file {path} is not trusted: it belongs to user {found.st_uid}, not "
                f"to you ({os.geteuid()})"
            )
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise errors.PermissionDenied(
                f"the cluster file {path} contains a token but is accessible to other users (mode "
                f"{stat.S_IMODE(found.st_mode):04o}); run: chmod 600 {path}"
            )
        announced = _announcement(file.read(CLUSTER_FILE_MAX), f"the cluster file {path}")
    endpoint, pid, started = announced
    # A reused process id belongs to another process, which started at another time.
    return endpoint if _started(pid) == started else None


def _announcement(line: bytes, source: str) -> tuple[Endpoint, int, int]:
    try:
        told: dict[str, Any] = json.loads(line)
        endpoint = Endpoint(str(told["address"]), bytes.fromhex(told["token"]))
        return endpoint, int(told["pid"]), int(told["started"])
    except (ValueError, KeyError, TypeError) as error:
        raise errors.InvalidArgument(
            f"{source} is not the announcement of a cluster: {error!r}"
        ) from error


def _started(pid: int) -> int | None:
    """The start time of a process, in ticks since the boot; ``None`` if there is no such process, or if
    it has ended and is not reaped yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        # The process name is in parentheses and may contain any characters.
        state, *fields = stat.rpartition(")")[2].split()
        return None if state in "ZX" else int(fields[18])
    except (OSError, IndexError, ValueError):
        return None


class EmbeddedCluster:
    """The embedded cluster of this process, shared by its clients and counted by them.

    It ends with its last client, with the process, and when its pipe closes. Prefixes with a flush are
    written first: :meth:`finish` waits for that and names the directories that could not be written.
    Without :meth:`finish`, the child writes them by itself, for a bounded time, and :meth:`stop_at_exit`
    waits for the child. A forked child neither counts as a client of its parent's cluster nor stops it.
    """

    _lock = threading.Lock()
    _current: EmbeddedCluster | None = None
    #: Clusters whose pipe is closed and which may still be flushing.
    _ending: ClassVar[list[EmbeddedCluster]] = []

    def __init__(self, memory: int | None, block_size: int | None) -> None:
        self.memory = memory
        self.block_size = block_size
        self.users = 0
        self._process = _spawn(memory, block_size)
        try:
            self.endpoint = self._await_ready()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    @classmethod
    def acquire(cls, memory: int | None, block_size: int | None) -> EmbeddedCluster:
        """The running cluster, or a new one. Sizes are in bytes; ``None`` accepts any size.

        Raises :class:`InvalidArgument` if a cluster with other sizes is running, and
        :class:`Unavailable` if a new cluster does not start within 20 s.
        """
        with cls._lock:
            current = cls._current
            if current is not None and current._process.poll() is not None:
                current = cls._current = None
            if current is None:
                current = cls._current = cls(memory, block_size)
            else:
                current._check_sizes(memory, block_size)
            current.users += 1
            return current

    @classmethod
    def running(cls) -> bool:
        """Whether this process has a running embedded cluster."""
        current = cls._current
        return current is not None and current._process.poll() is None

    def is_last_use(self) -> bool:
        """Whether releasing one use would end the cluster."""
        return self.users == 1 and self._process.poll() is None

    def finish(self, session: Session, wait: float | None, discard: bool) -> None:
        """Ends all jobs and waits for their flushes, or with ``discard`` abandons the flushes.

        Raises :class:`NotFlushed` if flushes fail and nothing was written for ``wait`` seconds; the cluster
        then keeps running. New clients no longer find it.
        """
        with self._lock:
            if EmbeddedCluster._current is self:
                EmbeddedCluster._current = None
                EmbeddedCluster._ending.append(self)
        wait = seconds("stop_wait", STOP_WAIT) if wait is None else wait
        session.native.stop_cluster(discard, wait, _Progress())

    def release(self) -> None:
        """Releases one use; the last release ends the cluster. Does not wait for flushes: the child
        continues them."""
        with self._lock:
            self.users -= 1
            if self.users > 0:
                return
            if EmbeddedCluster._current is self:
                EmbeddedCluster._current = None
                EmbeddedCluster._ending.append(self)
        self._hang_up()

    def await_end(self) -> None:
        """Waits for the end of the child, which has no unwritten data."""
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._lock, contextlib.suppress(ValueError):
            EmbeddedCluster._ending.remove(self)

    @classmethod
    def stop_at_exit(cls) -> None:
        current, cls._current = cls._current, None
        ending, cls._ending = cls._ending, []
        for cluster in [*ending, *([current] if current is not None else [])]:
            cluster._hang_up()
        for cluster in ending if current is None else [*ending, current]:
            # The child flushes for a bounded time, and reports its progress on standard error.
            try:
                cluster._process.wait()
            except KeyboardInterrupt:
                cluster._process.terminate()
                cluster._process.wait()

    def _hang_up(self) -> None:
        """Closes the child's standard input, which ends it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    @classmethod
    def forget_after_fork(cls) -> None:
        """In a forked child: drops the parent's cluster, and the copy of the pipe that would keep it
        running."""
        cls._lock = threading.Lock()
        current, cls._current = cls._current, None
        ending, cls._ending = cls._ending, []
        for cluster in ending if current is None else [*ending, current]:
            cluster._hang_up()
            # This process cannot wait for its parent's child.
            cluster._process.returncode = 0

    def _check_sizes(self, memory: int | None, block_size: int | None) -> None:
        for what, asked, has in (
            ("memory", memory, self.memory),
            ("block_size", block_size, self.block_size),
        ):
            if asked is not None and asked != has:
                raise errors.InvalidArgument(
                    f"cannot start an embedded cluster with {what}={asked}: this process already "
                    f"has one with {what}={has}; close its clients first"
                )

    def _await_ready(self) -> Endpoint:
        """Reads the line that the child writes when it is ready."""
        out = self._process.stdout
        assert out is not None
        line = b""
        with out:
            while not line.endswith(b"\n"):
                ready, _, _ = select.select([out], [], [], START_SECONDS)
                chunk = os.read(out.fileno(), CLUSTER_FILE_MAX) if ready else b""
                if not chunk:
                    raise errors.Unavailable(self._start_failure(bool(ready)))
                line += chunk
        return _announcement(line, "the embedded cluster's first line")[0]

    def _start_failure(self, ended: bool) -> str:
        if not ended:
            return f"the embedded cluster was not ready within {START_SECONDS:.0f} s"
        code = self._process.wait()
        return (
            f"the embedded cluster ended with code {code} before it was ready (its reason is above)"
        )


class _Progress:
    """Reports the progress of flushes while a cluster stops: to the log, and to a terminal."""

    def __init__(self) -> None:
        self._next = time.monotonic() + QUIET_SECONDS

    def __call__(
        self, flushes: int, written: int, blocks: int, size: int, unflushed: list[str]
    ) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 1
        places = "; ".join(unflushed)
        text = f"closing: {flushes} to flush, {written} of {blocks} blocks, {size} bytes ({places})"
        _log.info(text)
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"honeycomb: {text}", file=sys.stderr)


def _spawn(memory: int | None, block_size: int | None) -> subprocess.Popen[bytes]:
    command = [str(binary()), "start", "--embedded", "--json"]
    if memory is not None:
        command += ["--memory", str(memory)]
    if block_size is not None:
        command += ["--block-size", str(block_size)]
    # A process group of its own: Ctrl-C is for the program, which then cleans up its jobs.
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, process_group=0
    )


def binary() -> Path:
    """The ``honeycomb`` program that is installed with this package."""
    path = Path(sysconfig.get_path("scripts"), "honeycomb")
    if not path.exists():
        raise errors.Unavailable(
            f"cannot start the honeycomb program: {path} is missing; install the wheel again, or "
            "set HONEYCOMB_ADDRESS and HONEYCOMB_TOKEN to use a running cluster"
        )
    return path


atexit.register(EmbeddedCluster.stop_at_exit)
os.register_at_fork(after_in_child=EmbeddedCluster.forget_after_fork)
