"""Objects and tables as values, without copies: their buffers are sent in place, and objects that are
read refer to the received value.

An object is pickled by protocol 5 with its buffers out of band (PEP 574). The value is a header (the mark
``HCP5`` and the number of buffers, each a u32; then the lengths in bytes of the pickle and of each
buffer, each a u64; all little-endian), the pickle, and each buffer at a multiple of 64 bytes from the
beginning. A table is an Arrow IPC stream, which any Arrow library reads.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import TYPE_CHECKING, Any, Final

from honeycomb import errors

if TYPE_CHECKING:
    import pyarrow

MARK: Final = int.from_bytes(b"HCP5", "little")
ALIGNMENT: Final = 64
_HEAD: Final = struct.Struct("<II")
_LENGTH: Final = struct.Struct("<Q")

Parts = list[bytes | memoryview]


def _padding(length: int) -> int:
    return -length % ALIGNMENT


def pack(value: Any) -> Parts:
    """The parts of the value for an object."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    lengths = [len(pickled), *(view.nbytes for view in views)]
    head = _HEAD.pack(MARK, len(views)) + b"".join(map(_LENGTH.pack, lengths))
    parts: Parts = [head, pickled]
    at = len(head) + len(pickled)
    for view in views:
        gap = _padding(at)
        parts += (bytes(gap), view)
        at += gap + view.nbytes
    return parts


def unpack(value: bytes) -> Any:
    """The object in a value. Its buffers refer to the value and are read-only."""
    view = memoryview(value)
    try:
        mark, count = _HEAD.unpack_from(view)
        if mark != MARK:
            raise ValueError("it does not begin with the mark HCP5")
        at = _HEAD.size + (count + 1) * _LENGTH.size
        lengths = [length for (length,) in _LENGTH.iter_unpack(view[_HEAD.size : at])]
        pickled = view[at : at + lengths[0]]
        at += lengths[0]
        buffers = []
        for length in lengths[1:]:
            at += _padding(at)
            buffers.append(view[at : at + length])
            at += length
        if at != len(view) or len(lengths) != count + 1:
            raise ValueError("its length does not match its header")
    except (ValueError, struct.error, IndexError) as error:
        raise errors.InvalidArgument(
            f"the value ({len(view)} bytes) was not stored by put_object: {error}"
        ) from None
    return pickle.loads(pickled, buffers=buffers)


class _Parts(io.RawIOBase):
    """A stream that collects the buffers that Arrow writes, without copies."""

    def __init__(self) -> None:
        self.parts: Parts = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.parts.append(view)
        return view.nbytes


def _arrow(what: str) -> Any:
    try:
        import pyarrow
        from pyarrow import ipc
    except ImportError:
        raise ImportError(
            f"{what} needs pyarrow: pip install 'honeycomb-store[arrow]' (or pyarrow itself)"
        ) from None
    return pyarrow, ipc


def pack_table(table: pyarrow.Table | pyarrow.RecordBatch) -> Parts:
    """The parts of the value for a table."""
    pyarrow, ipc = _arrow("put_table")
    if not isinstance(table, pyarrow.Table | pyarrow.RecordBatch):
        raise TypeError(
            f"table is a pyarrow.Table or RecordBatch, not {type(table).__name__}; "
            "put_object() takes any object"
        )
    sink = _Parts()
    with ipc.new_stream(pyarrow.PythonFile(sink, "w"), table.schema) as writer:
        writer.write(table)
    return sink.parts


def unpack_table(value: bytes) -> pyarrow.Table:
    """The table in a value. Its columns refer to the value."""
    pyarrow, ipc = _arrow("get_table")
    try:
        return ipc.open_stream(pyarrow.py_buffer(value)).read_all()
    except pyarrow.ArrowInvalid as error:
        raise errors.InvalidArgument(
            f"the value ({len(value)} bytes) is not an Arrow IPC stream: {error}"
        ) from None
