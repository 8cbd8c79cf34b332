"""The resources that jobs have used, and their cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from honeycomb._address import format_bytes
from honeycomb._display import Facts, Shown
from honeycomb._settings import setting
from honeycomb.errors import InvalidArgument

#: Default prices, in the form of the setting ``prices``.
PRICES: Final = "memory=0.008,nvme=0.0001,ssd=0.0001,hdd=0.00006,object=0.00003,to-object=0.005"
#: Names of tiers, indexed by their codes.
_TIERS: Final = ("memory", "nvme", "ssd", "hdd", "object")
_NAMES: Final = (*_TIERS, *(f"to-{tier}" for tier in _TIERS), "moved")
_GB_SECOND: Final = 1e9 * 1e3


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


def read_prices(prices: Mapping[str, float] | None) -> dict[str, float]:
    """The given prices, or with ``None`` those of the settings."""
    if prices is None:
        text = setting("prices") or PRICES
        parts = [part.partition("=") for part in text.split(",") if part.strip()]
        try:
            prices = {name.strip(): float(price) for name, _, price in parts}
        except ValueError:
            raise InvalidArgument(f"prices have the form {PRICES!r}, not {text!r}") from None
    for name, price in prices.items():
        if name not in _NAMES:
            raise InvalidArgument(f"{name!r} has no price; prices are: {', '.join(_NAMES)}")
        if not 0 <= price < float("inf"):
            raise InvalidArgument(f"a price is 0 or more, not {price!r}")
    if "memory" not in prices:
        raise InvalidArgument("the price of memory is missing; add one, such as memory=0.008")
    return {**dict.fromkeys(_NAMES, 0.0), **prices}


def cost_of(bill: dict[str, Any], prices: Mapping[str, float]) -> Cost:
    """The cost of a bill."""
    held, used = dict.fromkeys(_TIERS, 0.0), dict.fromkeys(_TIERS, 0.0)
    came = dict.fromkeys(_TIERS, 0)
    for code, held_ms, used_ms, came_bytes in bill["tiers"]:
        if code < len(_TIERS):  # classes of a newer server have no price here
            tier = _TIERS[code]
            held[tier], used[tier] = held_ms / _GB_SECOND, used_ms / _GB_SECOND
            came[tier] = came_bytes
    by_tier = {
        tier: prices[tier] * held[tier] / 3600 + prices[f"to-{tier}"] * came[tier] / 1e9
        for tier in _TIERS
    }
    reserved = bill["peak_bytes"] * bill["age_ms"] / _GB_SECOND
    return Cost(
        job=bill["job"],
        name=bill["name"],
        ended=bill["ended"],
        age=bill["age_ms"] / 1000,
        peak_bytes=bill["peak_bytes"],
        moved_bytes=bill["moved_bytes"],
        gb_seconds=held,
        used_gb_seconds=used,
        came_bytes=came,
        money=sum(by_tier.values()) + prices["moved"] * bill["moved_bytes"] / 1e9,
        money_by_tier=by_tier,
        money_at_peak=prices["memory"] * reserved / 3600,
    )
