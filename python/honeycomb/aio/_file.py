"""The hand-written part of the twin of files."""

from __future__ import annotations

from collections.abc import AsyncIterator

from honeycomb import _check
from honeycomb.aio._notices import ListenerBase
from honeycomb.aio._run import run
from honeycomb.aio._twin import RemoteTwin, opening
from honeycomb.file import FOLLOW_PIECE, HoneyFile
from honeycomb.notices import Listener


class FileBase(RemoteTwin[HoneyFile]):
    """The twin of :class:`honeycomb.HoneyFile`; ``blocking`` is the blocking file. A cancelled
    ``append`` may or may not take effect."""

    def _do_follow(self, offset: int, *, timeout: float | None) -> AsyncIterator[bytes]:
        offset = _check.whole("offset", offset, 0, unit="bytes")
        return self._follow(offset, _check.timeout(timeout))

    async def _follow(self, offset: int, timeout: float | None) -> AsyncIterator[bytes]:
        file = self.blocking
        async with opening(file.subscribe, ListenerBase, Listener.close) as listener:
            while True:
                piece = await self._piece(offset)
                if piece:
                    offset += len(piece)
                    yield piece
                    continue
                # Check the size after the seal: bytes may have been appended just before the seal.
                if await run(file.sealed) and offset >= await run(file.size):
                    return
                if await listener._do_get(timeout) is None:
                    return

    async def _piece(self, offset: int) -> bytes:
        return await run(lambda: self.blocking.read(offset, FOLLOW_PIECE))
