"""The resources that jobs have used, and their cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from honeycomb._address import format_bytes
from honeycomb._display import Facts, Shown
from honeycomb._settings import setting
from honeycomb.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Cost(Shown):
    """The resources that one job has used. ``gb_seconds`` are the exact gigabyte-seconds of whole blocks
    in each tier (``memory``, ``nvme``, ``ssd``, ``hdd``, ``object``), and ``used_gb_seconds`` those of the
    data in the blocks, as servers reported it. ``came_bytes`` are the bytes moved into each tier from
    another tier of the same server; ``moved_bytes`` were moved from one server to another. ``money`` is
    the total cost, ``money_by_tier`` the part of each tier, and ``money_at_peak`` the cost of reserving
    ``peak_bytes`` of memory for the job's whole ``age`` (in seconds)."""

    job: int
    name: str
    ended: bool
    age: float
    peak_bytes: int
    moved_bytes: int
    gb_seconds: dict[str, float]
    used_gb_seconds: dict[str, float]
    came_bytes: dict[str, int]
    money: float
    money_by_tier: dict[str, float]
    money_at_peak: float

    def _facts(self) -> Facts:
        yield "cost", f"{self.money:.6g}"
        for tier, held in self.gb_seconds.items():
            if held or tier == "memory":
                yield tier, f"{held:.6g} GB-seconds"
        yield "peak", format_bytes(self.peak_bytes)


def price_text(prices: Mapping[str, float] | None) -> str | None:
    """The given prices in the form of the setting ``prices``; with ``None`` those of the settings."""
    if prices is None:
        return setting("prices") or None
    try:
        return ",".join(f"{name}={float(price)!r}" for name, price in prices.items())
    except (TypeError, ValueError):
        raise InvalidArgument(f"prices are numbers, not {prices!r}") from None
