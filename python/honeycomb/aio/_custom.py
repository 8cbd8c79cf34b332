"""The twin of structures of custom kinds."""

from __future__ import annotations

from typing import Any

from honeycomb import _check
from honeycomb._display import Facts, Remote
from honeycomb.aio._run import run, twin_of, wait
from honeycomb.custom import Custom, Kind, Reply


@twin_of(Custom)
class AsyncCustom(Remote):
    """The twin of :class:`honeycomb.Custom`; ``blocking`` is the blocking structure. A cancelled mutation
    may or may not take effect; cancelling a call that waits ends its wait."""

    def __init__(self, blocking: Custom) -> None:
        self.blocking = blocking

    @property
    def address(self) -> str:
        return self.blocking.address

    @property
    def kind(self) -> Kind:
        return self.blocking.kind

    async def call(
        self,
        operation: str,
        payload: _check.BytesLike = b"",
        *,
        args: _check.BytesLike = b"",
        position: int | None = None,
        key: _check.BytesLike | None = None,
        timeout: float | None = 0,
    ) -> Reply:
        return await wait(
            lambda left: self.blocking.call(
                operation, payload, args=args, position=position, key=key, timeout=left
            ),
            _check.timeout(timeout),
        )

    async def call_each(
        self,
        operation: str,
        payload: _check.BytesLike = b"",
        *,
        args: _check.BytesLike = b"",
        position: int | None = None,
    ) -> list[Reply]:
        return await run(
            lambda: self.blocking.call_each(operation, payload, args=args, position=position)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncCustom, (self.blocking,)

    def _facts(self) -> Facts:
        return self.blocking._facts()

    def __repr__(self) -> str:
        return f"<honeycomb.aio.AsyncCustom {self.address}>"
