"""Checks of arguments before a request is sent. Each error names the parameter, the given value and
the allowed values: a ``TypeError`` for a wrong type, and :class:`~honeycomb.errors.InvalidArgument`
for a value outside its range.
"""

from __future__ import annotations

import operator
from typing import Any, Final, TypeAlias

from honeycomb.errors import InvalidArgument

BytesLike: TypeAlias = bytes | bytearray | memoryview

U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1
#: The most items that one call to a queue takes.
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
    """A number of seconds from ``low`` to ``high``."""
    if isinstance(value, str | bytes) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} is a number of seconds, not {_shown(value)}")
    number = float(value)
    if not low <= number <= high:  # also rejects NaN
        allowed = f"{low:g} or more" if high == float("inf") else f"{low:g} to {high:g}"
        raise InvalidArgument(f"{name} is {allowed} seconds, not {number:g}")
    return number


def timeout(value: Any, name: str = "timeout") -> float | None:
    """A timeout in seconds; ``None`` waits without limit."""
    if value is None:
        return None
    if isinstance(value, str | bytes) or not hasattr(type(value), "__float__"):
        raise TypeError(
            f"{name} is a number of seconds or None (to wait without limit), not {_shown(value)}"
        )
    number = float(value)
    if not number >= 0.0:
        raise InvalidArgument(
            f"{name} is 0 or more seconds, or None to wait without limit, not {number:g}"
        )
    return number


def text(name: str, value: Any, example: str) -> str:
    """A ``str``; ``example`` is a valid one for the error."""
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
        f"{name} is text that can be encoded as UTF-8; {error.object!r} has a lone surrogate at "
        f"index {error.start}: the text was decoded with errors='surrogateescape', or is half of a "
        "character"
    )


def data(name: str, value: Any) -> BytesLike:
    """A bytes-like object; text is rejected."""
    if isinstance(value, bytes | bytearray | memoryview):
        return value
    if isinstance(value, str):
        raise TypeError(f"{name} are bytes; encode the text first, for example with .encode()")
    try:
        return memoryview(value)
    except TypeError:
        raise TypeError(
            f"{name} are bytes, not {_shown(value)}; convert the value first, for example with "
            "pickle.dumps() or json.dumps().encode()"
        ) from None


def target(name: str, value: Any) -> bytearray | memoryview:
    """A bytes-like object that can be written."""
    if isinstance(value, bytearray):
        return value
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"{name} is a bytearray or memoryview, not {_shown(value)}") from None
    if view.readonly:
        raise TypeError(f"{name} must be writable, and {_shown(value)} is read-only")
    return view


def _shown(value: Any) -> str:
    """A short description of an argument: its type, and its value if that is short."""
    if value is None:
        return "None"
    shown = repr(value)
    kind = type(value).__name__
    return f"{kind} {shown}" if len(shown) <= 40 else kind
