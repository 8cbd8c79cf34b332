"""Splitting text at white space, for map tasks."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO, Final

from honeycomb.errors import InvalidArgument

#: White space of the C locale: space, tab, newline, vertical tab, form feed, carriage return.
#: ``bytes.split()`` splits at the same bytes.
SPACE: Final = re.compile(rb"[ \t\n\v\f\r]")
_STEP: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class TextSplit:
    """A part of a text file that contains whole words: those whose first byte is in ``start`` to
    ``end`` (bytes, ``end`` exclusive) of the file, repeated ``copies`` times without a separator.

    The file must be readable where the task runs.
    """

    path: str
    start: int
    end: int
    copies: int = 1

    def read(self) -> bytes:
        """The text of the part. Raises ``OSError`` if the file cannot be read."""
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, self.start - 1)
            text = _read(file, size, start, min(self.end, size * self.copies) - start)
            if self.start > 0:
                # A word that begins before this part belongs to the previous part.
                first = SPACE.search(text)
                if first is None:
                    return b""
                text = text[first.start() :]
            pieces = [text]
            position = min(self.end, size * self.copies)
            while not SPACE.match(pieces[-1][-1:] or b" "):
                more = _read(file, size, position, min(_STEP, size * self.copies - position))
                position += len(more)
                last = SPACE.search(more)
                pieces.append(more if last is None else more[: last.start()])
                if last is not None or not more:
                    break
            return b"".join(pieces)


def split_text(path: str | os.PathLike[str], parts: int, copies: int = 1) -> list[TextSplit]:
    """Splits the file, repeated ``copies`` times, into at most ``parts`` parts of about equal size.

    Every word is in exactly one part. An empty file gives one empty part.
    """
    if parts < 1 or copies < 1:
        raise InvalidArgument(f"parts and copies are 1 or more, not {parts} and {copies}")
    whole = os.path.getsize(path) * copies
    parts = max(1, min(parts, whole))
    edges = [whole * index // parts for index in range(parts + 1)]
    name = os.path.abspath(path)
    return [TextSplit(name, start, end, copies) for start, end in pairwise(edges)]


def _read(file: BinaryIO, size: int, offset: int, count: int) -> bytes:
    """``count`` bytes at ``offset`` of the endlessly repeated file."""
    pieces = []
    while count > 0 and size > 0:
        file.seek(offset % size)
        piece = file.read(min(count, size - offset % size))
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        count -= len(piece)
    return b"".join(pieces)
