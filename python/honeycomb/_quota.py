"""How many blocks may be held, and how many of them in memory before others' go below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from honeycomb import _check
from honeycomb.errors import InvalidArgument

__all__ = ["Quota", "quota_change"]

#: The greatest weight of a share (``SHARE_WEIGHT_MAX`` in docs/limits.md).
WEIGHT_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Quota:
    """How many blocks may be held (``max_blocks``, 0 for as many as there are) and are.

    ``memory_blocks`` are those of them that are in memory, and ``soft_blocks`` how many may be there
    before they are the first to go below (0 for no such bound). ``weight`` is what the share of
    memory counts for under a fair policy; a prefix and a job of a tenant have none of their own. Of
    a prefix without a quota nothing is counted: ``held_blocks`` and ``memory_blocks`` are 0.
    """

    max_blocks: int
    held_blocks: int
    soft_blocks: int = 0
    weight: int = 1
    memory_blocks: int = 0


def quota_change(
    max_blocks: int | None, soft_blocks: int | None, weight: int | None = None
) -> tuple[int | None, int | None, int | None]:
    """What is to be changed of a quota, looked at; ``None`` leaves it as it is."""
    if max_blocks is None and soft_blocks is None and weight is None:
        raise InvalidArgument("nothing of the quota is named that could be set, such as max_blocks")
    # The greatest number of all says on the wire that nothing changes.
    most = _check.U64_MAX - 1
    if max_blocks is not None:
        max_blocks = _check.whole("max_blocks", max_blocks, 0, most, unit="blocks")
    if soft_blocks is not None:
        soft_blocks = _check.whole("soft_blocks", soft_blocks, 0, most, unit="blocks")
    if weight is not None:
        weight = _check.whole("weight", weight, 1, WEIGHT_MAX)
    return max_blocks, soft_blocks, weight
