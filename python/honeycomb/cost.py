"""What jobs have used, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from honeycomb._address import format_bytes
from honeycomb._display import Facts, Shown
from honeycomb._settings import setting
from honeycomb.errors import InvalidArgument

#: What is not said otherwise, as the setting ``prices`` has it.
PRICES: Final = "memory=0.008,moved=0"
_TIERS: Final = ("memory",)
_NAMES: Final = (*_TIERS, "moved")
_GB_SECOND: Final = 1e9 * 1e3


@dataclass(frozen=True, slots=True)
class Cost(Shown):
    """What one job has used. ``gb_seconds`` are those of whole blocks by where they were, exactly;
    ``used_gb_seconds`` those of the data in them, as servers reported it. ``moved_bytes`` went from one
    server to another when its blocks split and merged. ``money`` is what the gigabyte-seconds and the
    moved bytes cost, ``money_at_peak`` what the job would have cost had it reserved ``peak_bytes`` for
    all of its ``age`` (in seconds)."""

    job: int
    name: str
    ended: bool
    age: float
    peak_bytes: int
    moved_bytes: int
    gb_seconds: dict[str, float]
    used_gb_seconds: dict[str, float]
    money: float
    money_at_peak: float

    def _facts(self) -> Facts:
        yield "cost", f"{self.money:.6g}"
        yield "memory", f"{self.gb_seconds['memory']:.6g} GB-seconds"
        yield "peak", format_bytes(self.peak_bytes)


def read_prices(prices: Mapping[str, float] | None) -> dict[str, float]:
    """Prices that were given, else those of the settings."""
    if prices is None:
        text = setting("prices") or PRICES
        parts = [part.partition("=") for part in text.split(",") if part.strip()]
        try:
            prices = {name.strip(): float(price) for name, _, price in parts}
        except ValueError:
            raise InvalidArgument(f"prices are such as {PRICES!r}, not {text!r}") from None
    for name, price in prices.items():
        if name not in _NAMES:
            raise InvalidArgument(f"{name!r} has no price; prices are: {', '.join(_NAMES)}")
        if not 0 <= price < float("inf"):
            raise InvalidArgument(f"a price is 0 or more, not {price!r}")
    if missing := [name for name in _TIERS if name not in prices]:
        raise InvalidArgument(f"prices are missing: {', '.join(missing)}")
    return {"moved": 0.0, **prices}


def cost_of(bill: dict[str, Any], prices: Mapping[str, float]) -> Cost:
    """What a bill costs."""
    held = {_TIERS[tier]: held / _GB_SECOND for tier, held, _ in bill["tiers"]}
    used = {_TIERS[tier]: used / _GB_SECOND for tier, _, used in bill["tiers"]}
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
        money=sum(prices[tier] * seconds / 3600 for tier, seconds in held.items())
        + prices["moved"] * bill["moved_bytes"] / 1e9,
        money_at_peak=prices["memory"] * reserved / 3600,
    )
