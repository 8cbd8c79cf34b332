"""Arguments that are looked at before anything is sent. Each error names the parameter, what was
given and what is allowed: a ``TypeError`` for what is of the wrong type, and
:class:`~honeycomb.errors.InvalidArgument` for a value outside its range.
"""

from __future__ import annotations

import operator
from typing import Any, Final, TypeAlias

from honeycomb.errors import InvalidArgument

BytesLike: TypeAlias = bytes | bytearray | memoryview

U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1
#: The most items of one call to a queue.
ITEMS_MAX: Final = 4096


def index(name: str, value: Any) -> int:
    """A whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {_shown(value)}") from None


def whole(name: str, value: Any, low: int, high: int = U64_MAX, *, unit: str = "") -> int:
    """A whole number from ``low`` to ``high``."""
    number = index(name, value)
    if not low <= number <= high:
        unit = f" {unit}" if unit else ""
        allowed = f"{low} to {high}{unit}" if high != U64_MAX else f"{low} or more{unit}"
        raise InvalidArgument(f"{name} is {allowed}, not {number}")
    return number


def seconds(name: str, value: Any, low: float = 0.0, high: float = float("inf")) -> float:
    """So many seconds."""
    if isinstance(value, str | bytes) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} is a number of seconds, not {_shown(value)}")
    number = float(value)
    if not low <= number <= high:  # not so for NaN, either
        allowed = f"{low:g} or more" if high == float("inf") else f"{low:g} to {high:g}"
        raise InvalidArgument(f"{name} is {allowed} seconds, not {number:g}")
    return number


def timeout(value: Any, name: str = "timeout") -> float | None:
    """How long to wait, in seconds; ``None`` for as long as it takes."""
    if value is None:
        return None
    if isinstance(value, str | bytes) or not hasattr(type(value), "__float__"):
        raise TypeError(
            f"{name} is a number of seconds or None (as long as it takes), not {_shown(value)}"
        )
    number = float(value)
    if not number >= 0.0:
        raise InvalidArgument(
            f"{name} is 0 or more seconds, or None for as long as it takes, not {number:g}"
        )
    return number


def text(name: str, value: Any, example: str) -> str:
    """A ``str``; ``example`` is one that is allowed."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str such as {example!r}, not {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise not_utf8(name, error) from None
    return value


def not_utf8(name: str, error: UnicodeEncodeError) -> InvalidArgument:
    """The error for text with a lone surrogate, which has no UTF-8."""
    return InvalidArgument(
        f"{name} is text that can be encoded as UTF-8; {error.object!r} has a lone surrogate at index "
        f"{error.start}: it was decoded with errors='surrogateescape', or is half of a character"
    )


def data(name: str, value: Any) -> BytesLike:
    """Something bytes-like, and not text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return value
    if isinstance(value, str):
        raise TypeError(f"{name} are bytes; encode the text first, for example with .encode()")
    try:
        return memoryview(value)
    except TypeError:
        raise TypeError(
            f"{name} are bytes, not {_shown(value)}; turn it into bytes first, for example with "
            "pickle.dumps() or json.dumps().encode()"
        ) from None


def target(name: str, value: Any) -> bytearray | memoryview:
    """Something bytes-like that can be written."""
    if isinstance(value, bytearray):
        return value
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"{name} is a bytearray or memoryview, not {_shown(value)}") from None
    if view.readonly:
        raise TypeError(f"{name} is written into, and {_shown(value)} cannot be")
    return view


def _shown(value: Any) -> str:
    """What was given, briefly: its type, and its value where that is short."""
    if value is None:
        return "None"
    shown = repr(value)
    kind = type(value).__name__
    return f"{kind} {shown}" if len(shown) <= 40 else kind
