"""A sealed file, mapped into memory."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from honeycomb import errors
from honeycomb._address import format_bytes
from honeycomb._native import NativeView

__all__ = ["FileView"]


class FileView:
    """All bytes of a sealed file, mapped into memory. Returned by :meth:`HoneyFile.map`.

    On the machine of the file's servers, the view is the servers' memory and needs neither a copy nor
    memory of this process (:attr:`shared`). On other machines it is a copy with the same interface, and
    :attr:`reason` says why. The bytes are read-only, never change, and stay available even if the file,
    its lease or its servers end.

    :attr:`data` is a ``memoryview`` that NumPy (``np.frombuffer(view.data, ...)``) and Arrow
    (``pa.py_buffer(view.data)``) accept without a copy. Arrays made from it keep the memory mapped: after
    the view is closed, or its ``with`` block ends, the memory is unmapped when the last of them is gone.
    Until then it counts as used by the job. Thread-safe.
    """

    def __init__(self, address: str, native: NativeView) -> None:
        self._address = address
        self._native: NativeView | None = native

    def _open(self) -> NativeView:
        if self._native is None:
            raise errors.Closed(f"this view of {self._address} was closed")
        return self._native

    @property
    def shared(self) -> bool:
        """Whether the view is the servers' own memory."""
        return self._open().shared

    @property
    def reason(self) -> str | None:
        """Why the view is not shared; ``None`` if it is."""
        return self._open().reason

    @property
    def nbytes(self) -> int:
        """Size of the file, in bytes."""
        return self._open().nbytes

    def __len__(self) -> int:
        return self._open().nbytes

    @property
    def contiguous(self) -> bool:
        """Whether :attr:`data` is available: for a file of one block, for a file whose appends were all
        multiples of 4096 bytes, and for every copy."""
        return self._open().whole() is not None

    @property
    def data(self) -> memoryview:
        """The file as one run of bytes. Raises ``BufferError`` if it is not :attr:`contiguous`; use
        :attr:`segments` then."""
        whole = self._open().whole()
        if whole is None:
            raise BufferError(
                f"{self._address} is not contiguous: it has several runs of bytes that do not end "
                "at page boundaries; use .segments, or read() for a copy"
            )
        return memoryview(whole)

    @property
    def segments(self) -> list[memoryview]:
        """The file as runs of bytes, in order: one for each block, or a single run."""
        return [memoryview(run) for run in self._open().runs()]

    def close(self) -> None:
        """Releases the memory. Idempotent; never raises."""
        self._native = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        native = self._native
        if native is None:
            return f"<honeycomb.FileView {self._address} (closed)>"
        how = "shared" if native.shared else "copied"
        return f"<honeycomb.FileView {self._address} {format_bytes(native.nbytes)} {how}>"
