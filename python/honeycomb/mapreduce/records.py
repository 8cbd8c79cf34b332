"""Records: the encoding of pairs, and the reducer of a key."""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Hashable
from typing import Any, Final

import cloudpickle

from honeycomb.errors import InvalidArgument

_HASH_MASK: Final = (1 << 64) - 1


def encode(pairs: list[tuple[Any, Any]]) -> bytes:
    """Encodes one batch as a pickle. Decode it only if you trust the writer.

    Pickling without the memo is 2.5 times as fast for many small objects, and the result is smaller. It
    does not support cyclic values, and classes of ``__main__`` need cloudpickle, so these are pickled in
    a slower way.
    """
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, 5)
    pickler.fast = True
    try:
        pickler.dump(pairs)
    except (ValueError, RecursionError, pickle.PicklingError, AttributeError, TypeError):
        return _encode_any(pairs)
    data = buffer.getvalue()
    # A class of __main__ is pickled by reference, and the reader's __main__ is another program.
    return _encode_any(pairs) if b"__main__" in data else data


def _encode_any(pairs: list[tuple[Any, Any]]) -> bytes:
    data: bytes = cloudpickle.dumps(pairs, protocol=5)
    return data


def decode(batch: bytes) -> list[tuple[Any, Any]]:
    """The pairs of one batch."""
    pairs: list[tuple[Any, Any]] = pickle.loads(batch)
    return pairs


def stable_hash(key: Hashable) -> int:
    """A hash that is the same in every process, unlike ``hash`` of text. Equal keys have equal hashes.

    Accepts text, bytes, numbers, ``None`` and tuples of these. Raises
    :class:`~honeycomb.errors.InvalidArgument` for other keys, which need a ``partition`` function.
    """
    if isinstance(key, str):
        return zlib.crc32(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return zlib.crc32(key)
    if isinstance(key, (int, float, complex)):
        return hash(key) & _HASH_MASK  # 1, 1.0 and True are one key; numbers have no random hash
    if key is None:
        return 0x9E3779B9
    if isinstance(key, tuple):
        mixed = len(key)
        for part in key:
            mixed = (mixed * 1_000_003 ^ stable_hash(part)) & _HASH_MASK
        return mixed ^ mixed >> 32
    raise InvalidArgument(
        f"keys of type {type(key).__name__} have no hash that all tasks share; pass partition="
    )


def default_partition(key: Hashable, reducers: int) -> int:
    """The reducer of a key: its stable hash modulo the number of reducers."""
    return stable_hash(key) % reducers
