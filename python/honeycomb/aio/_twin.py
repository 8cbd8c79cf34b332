"""The base of the twins, and helpers of their generated calls (``_twins``)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from honeycomb import errors
from honeycomb._display import Facts, Remote
from honeycomb.aio._run import Leaving, Opening, run

B = TypeVar("B")
R = TypeVar("R", bound=Remote)
T = TypeVar("T")
L = TypeVar("L", bound=Leaving)


class Twin(Generic[B]):
    """An object whose calls are awaited; ``blocking`` is the object that runs them in threads."""

    __slots__ = ("blocking",)

    def __init__(self, blocking: B) -> None:
        self.blocking = blocking

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.blocking,)

    def __repr__(self) -> str:
        twin = f"aio.{type(self).__name__}"
        return repr(self.blocking).replace(type(self.blocking).__name__, twin, 1)


class RemoteTwin(Twin[R], Remote):
    """The twin of a reference to an object in the cluster."""

    __slots__ = ()

    def _facts(self) -> Facts:
        return self.blocking._facts()


class ClosedByBlock:
    """Closes itself at the end of an ``async with`` block. An error of the block takes precedence over an
    error of closing."""

    __slots__ = ()

    @abstractmethod
    async def _do_close(self) -> None:
        """Closes the object."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._do_close()
        except errors.HoneycombError:
            if error is None:
                raise


def opening(
    call: Callable[[], T], twin: Callable[[T], L], close: Callable[[T], object]
) -> Opening[L]:
    """Opens a blocking object and makes its twin. If the task is cancelled meanwhile, closes the object."""

    async def open_() -> L:
        return twin(await run(call, late=close))

    return Opening(open_())


def gathered(given: T) -> T:
    """The items of an iterable as a list, so that no other thread runs its iterator. Bytes, text and
    mappings are returned as they are."""
    whole = isinstance(given, str | bytes | bytearray | memoryview | Mapping)
    if whole or not isinstance(given, Iterable):
        return given
    return cast(T, list(given))
