"""The append-only file (paper, 5.1) and its file objects."""

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

#: Bytes that :meth:`HoneyFile.follow` reads at a time.
FOLLOW_PIECE: Final = 1 << 20

Data: TypeAlias = bytes | bytearray | memoryview
Buffer: TypeAlias = bytearray | memoryview

#: Bytes that a buffered reader fetches at a time.
READ_BUFFER: Final = 256 * 1024
#: Largest read of a sequential reader, in bytes, for which the next read is requested in advance.
READ_AHEAD: Final = 1 << 20
#: Most bytes that an appender buffers before it appends (and never more than the append limit).
APPEND_BUFFER: Final = 1 << 20


class HoneyFile(FileCalls, Remote):
    """A file in the job's memory that many tasks append to and read at the same time.

    The server chooses the offset of every append and returns it. Appends are contiguous and never
    overwrite each other, with any number of writers. Appended bytes never change. Offsets and sizes are
    in bytes.

    *Consistency*: ``append``, ``read``, ``size`` and ``seal`` are linearizable per file. An append
    takes effect once, even if the client has to repeat it. *Durability*: class ``memory``; the
    data is gone with its server (:class:`~honeycomb.errors.DataLost`) or its lease
    (:class:`~honeycomb.errors.LeaseExpired`). A read then raises; it never returns an empty result
    instead.
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
        """Its address with the job's name: ``job/T4/T6:name``."""
        return f"{self._job.name}/{self._address}"

    @property
    def append_limit(self) -> int:
        """The largest append that needs no blocks of its own, in bytes: an eighth of a block."""
        return self._native().append_limit

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """The bytes of many ranges, each an offset and a size in bytes, in the same order. A result is
        shorter where the file ends, and empty at or after its end.

        The ranges of one block share a request, and the requests to all blocks run concurrently. A
        thousand short ranges therefore take about as long as one. Long ranges (over 256 KiB) are read one
        by one. Ranges may overlap. Each is read like :meth:`read`; the reads are not ordered. An error in
        one range fails the call.
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
        """All bytes of a sealed file, without a copy if this process runs on the machine of the file's
        servers. On other machines, a copy with the same interface. Use ``with file.map() as view:`` and
        ``view.data``.

        The first map of a block makes its server copy the block aside, which takes about a third of a
        millisecond per MiB. Later maps, by any client, need no copy.

        Raises :class:`~honeycomb.errors.NotSealed` for a file that may still grow.
        """
        return FileView(self.address, self._native().map())

    def seal(self) -> int:
        """Makes the file immutable permanently and returns its final size in bytes. Idempotent."""
        return self._native().seal()

    def sealed(self) -> bool:
        """Whether the file is sealed."""
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
        and ``"a"`` the same as UTF-8 text. Closing the file object does not change the file itself.

        At the end of the file a reader returns nothing, as usual. Bytes that are appended later can be
        read afterwards.
        """
        match file_mode(mode):
            case "rb":
                return io.BufferedReader(_RawReader(self), READ_BUFFER)
            case "ab":
                return Appender(self)
            case "r":
                return io.TextIOWrapper(self.open("rb"), encoding="utf-8")
        # Unbuffered (`write_through`), so that each write stays in one piece.
        return io.TextIOWrapper(Appender(self), encoding="utf-8", newline="", write_through=True)

    def wait_until(
        self, *, sealed: bool = False, size: int | None = None, timeout: float | None = None
    ) -> bool:
        """Waits until the file is sealed (``sealed=True``), or until it has at least ``size`` bytes or is
        sealed. Returns whether that happened within ``timeout`` seconds (``None`` waits without
        limit)."""
        if not sealed and size is None:
            raise errors.InvalidArgument("wait_until() needs a condition: sealed=True or size=")
        if size is not None:
            size = _check.whole("size", size, 0, unit="bytes")
        timeout = _check.timeout(timeout)
        return self._native().wait_until(None if sealed else size, timeout)

    def follow(self, offset: int = 0, *, timeout: float | None = None) -> Iterator[bytes]:
        """Yields the bytes from ``offset`` on as they are appended, until the file is sealed.

        Ends early if nothing is appended for ``timeout`` seconds. The server notifies the client of
        appends, so no requests are sent while the file does not change.
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
                # Check the size after the seal: bytes may have been appended just before the seal.
                if self.sealed() and offset >= self.size():
                    return
                if listener.get(timeout) is None:
                    return

    def subscribe(self, *ops: str) -> Listener:
        """Subscribes to changes (paper, Table 1): ``"append"`` and ``"seal"``; both without
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
    """The mode, after a check that it is valid."""
    if mode in ("rb", "ab", "r", "a"):
        return str(mode)
    raise errors.InvalidArgument(
        f"mode is 'rb' or 'r' (read) or 'ab' or 'a' (append), not {mode!r}"
    )


class _RawReader(io.RawIOBase):
    """Sequential and random reads at the reader's own position."""

    def __init__(self, file: HoneyFile) -> None:
        super().__init__()
        self._file = file
        self._position = 0
        # The end of the last read, and the read ahead from there.
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
            # Read ahead from the second consecutive full read on: more data is then likely.
            if follows and self._ahead is None and count == len(view) <= READ_AHEAD:
                self._ahead = self._file._native().read_ahead(self._position, count)
        return count

    def _take_ahead(self, view: memoryview) -> int:
        """Copies the bytes that were read ahead into a buffer. Returns 0 if no read ahead was under way or
        it found none; the caller then reads again, because bytes may have been appended since."""
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
    """Buffers writes and appends them together. Returned by ``open(addr, "ab")``.

    A ``write`` of at most the file's append limit is never divided, with any number of writers: it is
    part of one append. A longer ``write`` is appended in several pieces, and appends of other writers may
    be placed between them. Each flush is one append. Written data is in the file only after ``flush`` or
    ``close``; if the program dies, data that was not flushed is lost. Not thread-safe: use one appender
    per thread.

    *Errors* of an append are raised by the ``write``, ``flush`` or ``close`` that made it. The error's
    ``unwritten`` contains the earlier data that is not known to be in the file, followed by the data of
    that ``write``. The appender discards this data, so that nothing is appended twice. After
    :class:`~honeycomb.errors.OutcomeUnknown` or :class:`~honeycomb.errors.DeadlineExceeded` the first
    append of ``unwritten`` may be in the file after all.
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
        """True: an appender accepts writes only."""
        return True

    def write(self, data: Any) -> int:
        """Writes all of the bytes-like ``data``. Returns the number of bytes. Raises the errors of
        :meth:`HoneyFile.append`, now or at a later flush."""
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
        raise refuse_pickle(
            "an Appender", "it may hold unwritten bytes; pickle the file and open it there"
        )

    def flush(self) -> None:
        """Appends the buffered data."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        self._append_buffer()

    def _append_buffer(self, then: memoryview | bytes = b"") -> None:
        if self._buffer:
            # Empty the buffer first: a failed append may have taken effect and must not be repeated.
            gathered, self._buffer = self._buffer, bytearray()
            self._append(memoryview(gathered), then)

    def _append(self, data: memoryview, then: memoryview | bytes = b"") -> None:
        """Appends ``data``, in several pieces if it exceeds the append limit. The error of a failed piece
        carries the rest of ``data`` and ``then``."""
        for at in range(0, len(data), self._piece):
            try:
                self._file.append(data[at : at + self._piece])
            except errors.HoneycombError as error:
                error.unwritten = b"".join((data[at:], then))
                error.add_note(
                    f"{len(error.unwritten)} written bytes are not known to be in the file; "
                    "the error's `unwritten` contains them"
                )
                raise
