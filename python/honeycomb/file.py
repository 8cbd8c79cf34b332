"""The append-only file (paper, 5.1) and its file-like faces."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, Never, TypeAlias, overload

from honeycomb import _check, errors
from honeycomb._address import Address, format_bytes
from honeycomb._display import Facts, Remote, refuse_pickle
from honeycomb._native import FileCalls, NativeFile, NativeReadAhead
from honeycomb._session import wrong_kind
from honeycomb.notices import Listener, kinds_of
from honeycomb.view import FileView

if TYPE_CHECKING:
    from honeycomb.job import Job

__all__ = ["Appender", "HoneyFile"]

#: What :meth:`HoneyFile.follow` reads at a time, in bytes.
FOLLOW_PIECE: Final = 1 << 20

Data: TypeAlias = bytes | bytearray | memoryview
Buffer: TypeAlias = bytearray | memoryview

#: What a buffered reader fetches at a time, in bytes.
READ_BUFFER: Final = 256 * 1024
#: Up to so many bytes, what a sequential reader will want next is asked for while it works.
READ_AHEAD: Final = 1 << 20
#: What an appender gathers at most before it appends, in bytes (and never over the append limit).
APPEND_BUFFER: Final = 1 << 20


class HoneyFile(FileCalls, Remote):
    """A file in the job's memory that many tasks append to and read at the same time.

    The server places every append: appends of any number of writers never overwrite each other,
    each is contiguous, and its offset is returned. Bytes once appended never change. Offsets and
    sizes are bytes.

    *Consistency*: ``append``, ``read``, ``size`` and ``seal`` are linearizable per file; an append
    takes effect once, also when the client had to repeat it. *Durability*: class ``memory``; the
    data is gone with its server (:class:`~honeycomb.errors.DataLost`) or its lease
    (:class:`~honeycomb.errors.LeaseExpired`), and a read never pretends that it is empty instead.
    *Concurrency*: any number of threads, processes and tasks. *Errors* of every call: besides the
    two above, :class:`~honeycomb.errors.PermissionDenied`,
    :class:`~honeycomb.errors.DeadlineExceeded` and :class:`~honeycomb.errors.Unavailable`.
    """

    def __init__(self, job: Job, address: Address, native: NativeFile | None = None) -> None:
        self._job = job
        self._address = address
        self._begin(native)

    def _open(self) -> NativeFile:
        opened = self._job._open_native(self._address, self._identity)
        if not isinstance(opened, NativeFile):
            raise wrong_kind(self.address, "a file", opened)
        return opened

    @property
    def address(self) -> str:
        """Where it is: ``job/T4/T6:name``."""
        return f"{self._job.name}/{self._address}"

    @property
    def append_limit(self) -> int:
        """The largest append, in bytes: an eighth of a block."""
        return self._native().append_limit

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """The bytes of many ranges, each an offset and a size in bytes, in the same order. Shorter
        where the file ends, empty at or after its end.

        Ranges of one block travel together and those of all blocks at a time, so that a thousand
        short ones take about as long as one; long ones (over 256 KiB) are read one by one. They may
        overlap. Each is read like :meth:`read`; nothing orders one with another. An error of one
        fails the call.
        """
        wanted = []
        for offset, size in ranges:
            wanted.append(
                (
                    _check.whole("the offset of a range", offset, 0, unit="bytes"),
                    _check.whole("the size of a range", size, 0, unit="bytes"),
                )
            )
        return self._native().read_ranges(wanted)

    def map(self) -> FileView:
        """The whole of a sealed file without copying it, where this process is on the machine of its
        servers; elsewhere a copy of it, with the same face. ``with file.map() as view:`` and
        ``view.data``.

        The first map of a block makes its server copy it aside, which takes it about a third of a
        millisecond for each MiB; later ones, by any client, cost no copy.

        Raises :class:`~honeycomb.errors.NotSealed` for a file that may still grow.
        """
        return FileView(self.address, self._native().map())

    def seal(self) -> int:
        """Makes the file immutable, for good, and returns its final size. Sealing twice is fine."""
        return self._native().seal()

    def sealed(self) -> bool:
        """Whether it was sealed."""
        return self._native().sealed()

    @overload
    def open(self, mode: Literal["rb"] = "rb") -> io.BufferedReader: ...
    @overload
    def open(self, mode: Literal["ab"]) -> Appender: ...
    @overload
    def open(self, mode: Literal["r", "a"]) -> io.TextIOWrapper: ...
    @overload
    def open(self, mode: str) -> io.IOBase: ...
    def open(self, mode: str = "rb") -> io.IOBase:
        """A file object: ``"rb"`` a seekable buffered reader, ``"ab"`` an :class:`Appender`, ``"r"``
        and ``"a"`` the same as UTF-8 text. Closing it leaves the file itself as it is.

        At the end a reader returns nothing, as usual; what is appended later can be read then.
        """
        match file_mode(mode):
            case "rb":
                return io.BufferedReader(_RawReader(self), READ_BUFFER)
            case "ab":
                return Appender(self)
            case "r":
                return io.TextIOWrapper(self.open("rb"), encoding="utf-8")
        # Written through, so that each write stays one piece.
        return io.TextIOWrapper(Appender(self), encoding="utf-8", newline="", write_through=True)

    def wait_until(
        self, *, sealed: bool = False, size: int | None = None, timeout: float | None = None
    ) -> bool:
        """Waits until the file is sealed (``sealed=True``), or has at least ``size`` bytes or is
        sealed; whether it was so within ``timeout`` seconds (``None``: as long as it takes)."""
        if not sealed and size is None:
            raise errors.InvalidArgument("say what to wait for: sealed=True or size=")
        if size is not None:
            size = _check.whole("size", size, 0, unit="bytes")
        timeout = _check.timeout(timeout)
        return self._native().wait_until(None if sealed else size, timeout)

    def follow(self, offset: int = 0, *, timeout: float | None = None) -> Iterator[bytes]:
        """What is appended from ``offset`` on, as it comes, until the file is sealed.

        Ends early when nothing came for ``timeout`` seconds. Waits by notices: nothing is asked for
        while nothing happens.
        """
        offset = _check.whole("offset", offset, 0, unit="bytes")
        return self._follow(offset, _check.timeout(timeout))

    def _follow(self, offset: int, timeout: float | None) -> Iterator[bytes]:
        with self.subscribe() as listener:
            while True:
                piece = self.read(offset, FOLLOW_PIECE)
                if piece:
                    offset += len(piece)
                    yield piece
                    continue
                # In this order: bytes may have come before the seal that is seen here.
                if self.sealed() and offset >= self.size():
                    return
                if listener.get(timeout) is None:
                    return

    def subscribe(self, *ops: str) -> Listener:
        """Listens to changes (paper, Table 1): ``"append"`` and ``"seal"``; both without
        arguments."""
        kinds = kinds_of("file", ops)
        return Listener(self.address, self._native().listen(kinds), ops)

    def __reduce__(self) -> tuple[Any, ...]:
        from honeycomb.job import _restore

        return _restore, (HoneyFile, self._job._pickle_handle(), self._address, self._identity)

    def _facts(self) -> Facts:
        yield "size", format_bytes(self.size())
        yield "sealed", "yes" if self.sealed() else "no"

    def __repr__(self) -> str:
        return f"<honeycomb.HoneyFile {self.address}>"


def file_mode(mode: object) -> str:
    """A mode that there is."""
    if mode in ("rb", "ab", "r", "a"):
        return str(mode)
    raise errors.InvalidArgument(
        f"mode {mode!r}: a file is read ('rb', 'r') or appended to ('ab', 'a')"
    )


class _RawReader(io.RawIOBase):
    """Sequential and random reads at a position of its own."""

    def __init__(self, file: HoneyFile) -> None:
        super().__init__()
        self._file = file
        self._position = 0
        # Where the last read ended, and what is on its way from there.
        self._followed = 0
        self._ahead: NativeReadAhead | None = None

    @property
    def name(self) -> str:
        return self._file.address

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._checkClosed()
        with memoryview(buffer).cast("B") as view:
            count = self._take_ahead(view) or self._file.readinto(self._position, view)
            follows = self._position == self._followed and self._position > 0
            self._position = self._followed = self._position + count
            # From the second one in a row that was not short: then there is more, most likely.
            if follows and self._ahead is None and count == len(view) <= READ_AHEAD:
                self._ahead = self._file._native().read_ahead(self._position, count)
        return count

    def _take_ahead(self, view: memoryview) -> int:
        """What was read ahead, into a buffer: 0 when nothing was, or nothing was there. Bytes of a file
        never change, but there may be some by now where there were none."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or self._position != self._followed:
            return 0
        return ahead.take_into(view)

    def readall(self) -> bytes:
        self._checkClosed()
        rest = self._file.read(self._position)
        self._position += len(rest)
        return rest

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._checkClosed()
        base = 0
        if whence == io.SEEK_CUR:
            base = self._position
        elif whence == io.SEEK_END:
            base = self._file.size()
        elif whence != io.SEEK_SET:
            raise errors.InvalidArgument(f"whence is 0, 1 or 2, not {whence}")
        if base + offset < 0:
            raise errors.InvalidArgument(f"cannot seek to {base + offset}, before the beginning")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def _checkClosed(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


class Appender(io.BufferedIOBase):
    """Gathers writes and appends them together; what ``open(addr, "ab")`` returns.

    A ``write`` of at most the file's append limit always stays in one piece, however many writers
    there are: it goes into an append whole. Longer ones are appended in several pieces, among which
    others' may come to lie. Each flush is one append. Written data is in the file only after
    ``flush`` or ``close``; what a program that dies had not flushed is lost. Not thread-safe: one
    appender per thread.

    *Errors* of an append are raised by the ``write``, ``flush`` or ``close`` that made it. What was
    written before and is not known to be in the file is in the error's ``unwritten``, with the data of
    that ``write``; the appender has forgotten it, so that nothing goes twice. After
    :class:`~honeycomb.errors.OutcomeUnknown` or :class:`~honeycomb.errors.DeadlineExceeded` its first
    append may be in the file after all.
    """

    def __init__(self, file: HoneyFile) -> None:
        super().__init__()
        self._file = file
        self._piece = file.append_limit
        self._limit = min(APPEND_BUFFER, self._piece)
        self._buffer = bytearray()

    @property
    def name(self) -> str:
        return self._file.address

    def writable(self) -> bool:
        """True: it takes writes and nothing else."""
        return True

    def write(self, data: Any) -> int:
        """Takes bytes-like ``data`` whole; returns their number. Raises what
        :meth:`HoneyFile.append` does, then or at a later flush."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if type(data) is bytes and len(data) + len(self._buffer) <= self._limit:
            self._buffer += data
            return len(data)
        with memoryview(data).cast("B") as view:
            count = len(view)
            if count + len(self._buffer) > self._limit:
                self._append_buffer(view)
            if count > self._limit:
                self._append(view)
            else:
                self._buffer += view
        return count

    def __reduce__(self) -> Never:
        raise refuse_pickle("an Appender", "it may hold bytes; pickle the file and open it there")

    def flush(self) -> None:
        """Appends what was gathered."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        self._append_buffer()

    def _append_buffer(self, then: memoryview | bytes = b"") -> None:
        if self._buffer:
            # Emptied first: after an error it is not known to be lost, so it must not go twice.
            gathered, self._buffer = self._buffer, bytearray()
            self._append(memoryview(gathered), then)

    def _append(self, data: memoryview, then: memoryview | bytes = b"") -> None:
        """Appends ``data``, in pieces where it is too long for one. ``then`` comes with the error."""
        for at in range(0, len(data), self._piece):
            try:
                self._file.append(data[at : at + self._piece])
            except errors.HoneycombError as error:
                error.unwritten = b"".join((data[at:], then))
                error.add_note(
                    f"{len(error.unwritten)} bytes that were written are not known to be in the "
                    "file; `unwritten` has them"
                )
                raise
