"""The options of new jobs and prefixes, checked and as the protocol encodes them.

The native module takes each of these objects as one argument, and reads its fields by name
(``python/src/options.rs``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from honeycomb import _address, _check
from honeycomb.flushed import flush_to

if TYPE_CHECKING:
    from honeycomb.flushed import Flush

__all__ = ["JobOptions", "PrefixOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixOptions:
    """The options of a new prefix. 0 and empty strings select the defaults of the job or the cluster."""

    lease_ms: int
    pinned: bool
    owner_verbs: int
    job_verbs: int
    high_mark: int
    low_mark: int
    flush_to: str
    max_blocks: int
    persist: bool
    acknowledge: int

    @classmethod
    def encode(
        cls,
        *,
        lease: float | None,
        pinned: bool,
        high_mark: int | None,
        low_mark: int | None,
        on_expiry: Flush | Literal["discard"],
        max_blocks: int,
        persist: bool,
        acknowledge: Literal["memory", "flushed"],
        owner_verbs: str = "rw",
        job_verbs: str = "r",
    ) -> Self:
        """Checks the parameters of :meth:`Job.create_addr_prefix`, or the fields of a :class:`Node`."""
        return cls(
            lease_ms=_address.lease_ms(lease),
            pinned=pinned,
            owner_verbs=_address.verbs(owner_verbs),
            job_verbs=_address.verbs(job_verbs),
            high_mark=_address.mark(high_mark),
            low_mark=_address.mark(low_mark),
            flush_to=flush_to(on_expiry),
            max_blocks=_check.whole("max_blocks", max_blocks, 0, unit="blocks"),
            persist=persist,
            acknowledge=_address.acknowledge(acknowledge),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of a new job. 0 selects the cluster's default, or gives no hint."""

    tenant: str | None
    lease_ms: int
    quota_blocks: int
    latency_sensitive: bool
    tasks: int
    capacity: int
    peak_throughput: int

    @classmethod
    def encode(
        cls,
        *,
        tenant: str | None,
        lease: float | None,
        quota_blocks: int,
        latency_sensitive: bool,
        tasks: int,
        capacity: int | str,
        peak_throughput: int | str,
    ) -> Self:
        """Checks the parameters of :meth:`Client.job`."""
        return cls(
            quota_blocks=_check.whole("quota_blocks", quota_blocks, 0, unit="blocks"),
            tasks=_check.whole("tasks", tasks, 0, _check.U32_MAX, unit="tasks"),
            tenant=None if tenant is None else _check.text("tenant", tenant, "acme"),
            lease_ms=_address.lease_ms(lease),
            latency_sensitive=bool(latency_sensitive),
            capacity=_address.hint_bytes(capacity, "capacity"),
            peak_throughput=_address.hint_bytes(peak_throughput, "peak_throughput"),
        )
