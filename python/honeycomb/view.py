"""A sealed file in place."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from honeycomb import errors
from honeycomb._address import format_bytes
from honeycomb._native import NativeView

__all__ = ["FileView"]


class FileView:
    """All bytes of a sealed file, read where they lie: what :meth:`HoneyFile.map` returns.

    On the machine of its servers it is their memory, and costs neither a copy nor memory of this
    process (:attr:`shared`). Everywhere else it is a copy with the same face, and :attr:`reason`
    says why. The bytes cannot be written, do not change and do not go away, whatever becomes of the
    file, its lease or its servers.

    :attr:`data` is a ``memoryview`` that NumPy (``np.frombuffer(view.data, ...)``) and Arrow
    (``pa.py_buffer(view.data)``) take without a copy. What they make of it keeps the memory mapped by
    itself: closing the view, or leaving its ``with`` block, lets go of it as soon as the last of them
    is gone. Until then it counts for the job. Thread-safe.
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
        """Whether it is the servers' own memory."""
        return self._open().shared

    @property
    def reason(self) -> str | None:
        """Why it is not; ``None`` when it is."""
        return self._open().reason

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self._open().nbytes

    def __len__(self) -> int:
        return self._open().nbytes

    @property
    def contiguous(self) -> bool:
        """Whether :attr:`data` has it: a file of one block, one whose appends all had a multiple of
        4096 bytes, and every copy."""
        return self._open().whole() is not None

    @property
    def data(self) -> memoryview:
        """The file as one run of bytes. Raises ``BufferError`` when it is not :attr:`contiguous`;
        :attr:`segments` has it then."""
        whole = self._open().whole()
        if whole is None:
            raise BufferError(
                f"{self._address} lies in several runs of bytes that do not end with a page: "
                "take them from .segments, or read() a copy of it"
            )
        return memoryview(whole)

    @property
    def segments(self) -> list[memoryview]:
        """The file in order, in runs of bytes: one for each block, or a single one."""
        return [memoryview(run) for run in self._open().runs()]

    def close(self) -> None:
        """Lets go of the memory. Idempotent; never raises."""
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
