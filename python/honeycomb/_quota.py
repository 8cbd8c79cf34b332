"""Quotas: how many blocks a holder may have, and how many of them in memory before they are demoted."""

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
    """The most blocks that a prefix, job or tenant may hold (``max_blocks``, 0 for no quota), and the
    blocks that it holds (``held_blocks``).

    ``memory_blocks`` is how many of the held blocks are in memory. If that exceeds ``soft_blocks``, blocks
    of this holder are the first to be demoted to a lower tier (0 for no such bound). ``weight`` is the
    weight of the holder's share of memory under a fair policy; a prefix, or a job of a tenant, has no weight
    of its own. Blocks of a prefix without a quota are not counted: ``held_blocks`` and ``memory_blocks``
    are 0.
    """

    max_blocks: int
    held_blocks: int
    soft_blocks: int = 0
    weight: int = 1
    memory_blocks: int = 0


def quota_change(
    max_blocks: int | None, soft_blocks: int | None, weight: int | None = None
) -> tuple[int | None, int | None, int | None]:
    """The checked changes of a quota; ``None`` leaves a field unchanged."""
    if max_blocks is None and soft_blocks is None and weight is None:
        raise InvalidArgument("set_quota() has nothing to change: pass max_blocks, for example")
    # The protocol encodes "no change" as the largest number.
    most = _check.U64_MAX - 1
    if max_blocks is not None:
        max_blocks = _check.whole("max_blocks", max_blocks, 0, most, unit="blocks")
    if soft_blocks is not None:
        soft_blocks = _check.whole("soft_blocks", soft_blocks, 0, most, unit="blocks")
    if weight is not None:
        weight = _check.whole("weight", weight, 1, WEIGHT_MAX)
    return max_blocks, soft_blocks, weight
