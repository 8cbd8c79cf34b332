"""Frames: separate the records of many writers in one file.

Every append to a shuffle or output file is one frame, a header and a piece of payload:

    magic 4s | flags u8 | zero 3s | task u32 | sequence u32 | attempt u64 | length u32 | crc32 u32

little-endian, 32 bytes; the checksum covers the header before it and the payload. ``task`` is the
number of the writing task and ``attempt`` one execution of it: the number of the try in the low 16
bits, random bits above, so that two executions of the same try are two attempts. ``sequence`` counts
the attempt's frames in this file from 0. A *batch* is a payload as it was written; it is divided into
as many frames as it needs, the last of which has the flag ``LAST``.

An attempt *commits* by reporting to the driver how many frames it wrote to each file. Readers keep the
frames of committed attempts only, and check that each exists once, in order and intact. Frames of
failed or repeated attempts are therefore never read (design section 6, shuffle).
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from honeycomb.errors import HoneycombError, InvalidArgument

MAGIC: Final = b"HCF1"
LAST: Final = 1
#: Largest frame, in bytes, even if the file accepts larger appends. It bounds a reader's buffer.
FRAME_MAX: Final = 1 << 20
READ_BYTES: Final = 1 << 20

_FIELDS: Final = struct.Struct("<4sB3xIIQI")
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = _FIELDS.size + _CRC.size
TRIES_MAX: Final = 1 << 16


class FrameError(HoneycombError):
    """A shuffle or output file does not contain the frames that its writers committed. The reader stops
    there."""


class Frame(NamedTuple):
    """One frame, as read."""

    task: int
    attempt: int
    sequence: int
    last: bool
    payload: bytes


def new_attempt(number: int) -> int:
    """An identity for one execution of try ``number`` (0 to 65,535)."""
    if not 0 <= number < TRIES_MAX:
        raise InvalidArgument(f"a task has at most {TRIES_MAX} attempts, not {number + 1}")
    return secrets.randbits(48) << 16 | number


class FrameWriter:
    """Writes the batches of one attempt to one file, one frame per append.

    ``append`` appends bytes in one piece; ``limit`` is its largest size, in bytes. ``frames`` and
    ``bytes`` count the written frames and bytes, including headers.
    """

    def __init__(
        self, append: Callable[[bytes], object], limit: int, task: int, attempt: int
    ) -> None:
        self._append = append
        self._room = min(limit, FRAME_MAX) - HEADER_BYTES
        if self._room < 1:
            raise InvalidArgument(f"appends of {limit} bytes hold no frame")
        self._task = task
        self._attempt = attempt
        self.frames = 0
        self.bytes = 0

    def write(self, batch: bytes) -> None:
        """Writes a batch of any length. Raises the errors of ``append``."""
        view = memoryview(batch)
        start = 0
        while True:
            piece = view[start : start + self._room]
            start += len(piece)
            last = start >= len(view)
            fields = _FIELDS.pack(
                MAGIC, LAST if last else 0, self._task, self.frames, self._attempt, len(piece)
            )
            crc = zlib.crc32(piece, zlib.crc32(fields))
            self._append(b"".join((fields, _CRC.pack(crc), piece)))
            self.frames += 1
            self.bytes += HEADER_BYTES + len(piece)
            if last:
                return


def read_frames(
    read: Callable[[int, int], bytes], size: int, name: str = "the file"
) -> Iterator[Frame]:
    """All frames of the first ``size`` bytes, in order of append.

    ``read(offset, size)`` returns at least one byte before the end of the file. Raises
    :class:`FrameError`, with ``name``, for bytes that are not complete, intact frames.
    """
    offset = 0
    pending = b""
    while offset < size:
        chunk = read(offset, min(READ_BYTES, size - offset))
        if not chunk:
            raise FrameError(f"{name} ends at byte {offset}, but it had {size} bytes before")
        offset += len(chunk)
        data = pending + chunk
        position = 0
        while (frame := _parse(data, position, name, offset - len(data))) is not None:
            position += HEADER_BYTES + len(frame.payload)
            yield frame
        pending = data[position:]
    if pending:
        raise FrameError(f"{name} ends in the middle of a frame, {len(pending)} bytes into it")


def _parse(data: bytes, start: int, name: str, base: int) -> Frame | None:
    """The frame at ``start``; ``None`` if ``data`` ends before the frame."""
    if len(data) - start < HEADER_BYTES:
        return None
    magic, flags, task, sequence, attempt, length = _FIELDS.unpack_from(data, start)
    if magic != MAGIC or flags & ~LAST or length > FRAME_MAX - HEADER_BYTES:
        raise FrameError(f"{name} has no valid frame at byte {base + start}")
    body = start + HEADER_BYTES
    if len(data) - body < length:
        return None
    payload = data[body : body + length]
    (crc,) = _CRC.unpack_from(data, start + _FIELDS.size)
    if zlib.crc32(payload, zlib.crc32(data[start : start + _FIELDS.size])) != crc:
        raise FrameError(f"{name} has a damaged frame at byte {base + start}")
    return Frame(task, attempt, sequence, bool(flags & LAST), payload)


def committed_batches(
    frames: Iterator[Frame], commits: Mapping[int, tuple[int, int]], name: str = "the file"
) -> Iterator[tuple[int, bytes]]:
    """The batches of committed attempts, as ``(task, batch)``.

    ``commits`` maps each task to its committed attempt and the number of frames that the attempt wrote
    to this file. Stops reading after the last of these frames. Holds at most one unfinished batch per
    task. Raises :class:`FrameError` for a frame that is missing, duplicated or out of order.
    """
    expected = dict.fromkeys(commits, 0)
    unfinished: dict[int, list[bytes]] = {}
    missing = sum(count for _, count in commits.values())
    while missing:
        frame = next(frames, None)
        if frame is None:
            raise FrameError(_what_is_missing(commits, expected, name))
        task = frame.task
        attempt, count = commits.get(task, (None, 0))
        if frame.attempt != attempt:
            continue  # of an attempt that failed, was killed, or lost the race
        if frame.sequence != expected[task] or frame.sequence >= count:
            raise FrameError(
                f"{name}: task {task} committed {count} frames; frame {expected[task]} was "
                f"expected, and frame {frame.sequence} was found"
            )
        expected[task] += 1
        missing -= 1
        if frame.last:
            yield task, b"".join((*unfinished.pop(task, ()), frame.payload))
        else:
            unfinished.setdefault(task, []).append(frame.payload)
    if unfinished:
        raise FrameError(f"{name}: the last batch of task {min(unfinished)} is incomplete")


def _what_is_missing(
    commits: Mapping[int, tuple[int, int]], seen: Mapping[int, int], name: str
) -> str:
    short = [task for task, (_, count) in commits.items() if seen[task] < count]
    first = short[0]
    return (
        f"{name}: task {first} committed {commits[first][1]} frames, and only {seen[first]} exist "
        f"({len(short)} tasks have missing frames)"
    )
