"""Addresses, permissions, durations and sizes as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from honeycomb import _check
from honeycomb.errors import InvalidArgument

LEASE_MIN: Final = 0.2
LEASE_MAX: Final = 604_800.0
READ: Final = 1
WRITE: Final = 2
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


@dataclass(frozen=True, slots=True)
class Address:
    """A structure within a job: the ``path`` of its prefix (``T4/T6``, empty for the root) and its
    ``name`` (empty for the unnamed structure)."""

    path: str
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parses an address such as ``T4/T6:part-0``. The server validates the names."""
        _check.text("addr", text, "T4/T6:part-0")
        path, colon, name = text.partition(":")
        if colon and not name:
            raise InvalidArgument(f"the address {text!r} ends with a colon but names no structure")
        return cls(path.strip("/"), name)

    def __str__(self) -> str:
        return f"{self.path}:{self.name}" if self.name else self.path


def prefix_path(addr: str) -> str:
    """The path of a prefix. Raises :class:`InvalidArgument` for an address that names a structure."""
    address = Address.parse(addr)
    if address.name:
        raise InvalidArgument(f"{addr!r} is a structure; pass a prefix, such as {address.path!r}")
    return address.path


def prefix_paths(addrs: str | Iterable[str]) -> list[str]:
    """The paths of several prefixes; a single string is one prefix."""
    if isinstance(addrs, str):
        return [prefix_path(addrs)]
    given: object = addrs
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise TypeError(f"addresses of prefixes are a str or several of them, not {addrs!r}")
    return [prefix_path(addr) for addr in addrs]


def mark(percent: int | None) -> int:
    """A mark as the protocol encodes it: percent of a block; 0 uses the cluster's mark."""
    if percent is None:
        return 0
    if isinstance(percent, bool) or not isinstance(percent, int):
        raise TypeError(f"a mark is a whole number of percent, not {percent!r}")
    if not 1 <= percent <= 100:
        raise InvalidArgument(f"a mark is 1 to 100 percent, not {percent}")
    return percent


def lease_ms(seconds: float | None) -> int:
    """Milliseconds of a lease given in seconds, from 0.2 s to a week. ``None`` uses the job's lease (0)."""
    if seconds is None:
        return 0
    return round(_check.seconds("lease", seconds, LEASE_MIN, LEASE_MAX) * 1000)


def verbs(text: str) -> int:
    """The bits of a permission: ``"rw"``, ``"r"``, ``"w"`` or ``""`` for none."""
    given: object = text
    if not isinstance(given, str) or set(text) - {"r", "w"} or len(set(text)) != len(text):
        raise InvalidArgument(f"permissions are written 'rw', 'r', 'w' or '', not {text!r}")
    return (READ if "r" in text else 0) | (WRITE if "w" in text else 0)


def acknowledge(name: str) -> int:
    """The durability class at which changes are acknowledged: ``"memory"`` or ``"flushed"``."""
    given: object = name
    if given == "memory":
        return 0
    if given == "flushed":
        return 2
    raise InvalidArgument(f"changes are acknowledged as 'memory' or 'flushed', not {name!r}")


def size_bytes(size: int | str, name: str = "a size") -> int:
    """Bytes of a size such as ``65536``, ``"64KiB"``, ``"1.5 GiB"`` or ``"2M"``; units are binary."""
    if isinstance(size, int):
        return _check.whole(name, size, 1, unit="bytes")
    given: object = size
    if not isinstance(given, str):
        raise TypeError(f"{name} is an int of bytes or a str such as '64KiB', not {size!r}")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", size, re.IGNORECASE)
    if match is None:
        raise InvalidArgument(f"{name} is a size such as 65536 (bytes) or '64KiB', not {size!r}")
    return int(float(match[1]) * (1 << _UNITS[match[2].lower()]))


def hint_bytes(size: int | str, name: str) -> int:
    """Bytes of a hint, as :func:`size_bytes` parses them; 0 gives no hint."""
    return 0 if not isinstance(size, bool) and size == 0 else size_bytes(size, name)


def format_bytes(count: float) -> str:
    """A size as text: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
