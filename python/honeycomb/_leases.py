"""Nodes of an execution plan, leases, and the results of renewals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from honeycomb import errors
from honeycomb._display import Facts, Shown
from honeycomb._options import PrefixOptions
from honeycomb.flushed import Flush

__all__ = ["Lease", "Node", "Renewal"]


@dataclass(frozen=True, slots=True)
class Node:
    """One task of an execution plan.

    ``parents`` are names within the plan or paths of prefixes that exist; without parents, the node is a
    child of the root. ``lease`` is in seconds, ``None`` for the job's lease. A ``pinned`` prefix never
    expires. ``readers`` are the tasks that will read its data, named as parents are: when all of them
    have committed (:meth:`Job.commit`), the prefix is freed at once. Without readers, it ends with its
    lease. For both parameters, a single string is one name. ``high_mark``, ``low_mark``, ``on_expiry``,
    ``max_blocks``, ``persist`` and ``acknowledge`` are as in :meth:`Job.create_addr_prefix`.
    """

    name: str
    parents: str | Sequence[str] = ()
    lease: float | None = None
    pinned: bool = False
    readers: str | Sequence[str] = ()
    high_mark: int | None = None
    low_mark: int | None = None
    on_expiry: Flush | Literal["discard"] = "discard"
    max_blocks: int = 0
    persist: bool = False
    acknowledge: Literal["memory", "flushed"] = "memory"

    def _options(self) -> PrefixOptions:
        return PrefixOptions.encode(
            lease=self.lease,
            pinned=self.pinned,
            high_mark=self.high_mark,
            low_mark=self.low_mark,
            on_expiry=self.on_expiry,
            max_blocks=self.max_blocks,
            persist=self.persist,
            acknowledge=self.acknowledge,
        )


@dataclass(frozen=True, slots=True)
class Lease(Shown):
    """A prefix's lease: ``duration`` and ``remaining`` in seconds. ``remaining`` is infinite if
    ``pinned``, and a lower bound if the prefix has more than 4096 children or more than 4096 edges lead
    to its ancestors."""

    prefix: int
    duration: float
    remaining: float
    pinned: bool

    def _facts(self) -> Facts:
        yield "lease", f"{self.duration:g} s"
        yield "left", "pinned: never expires" if self.pinned else f"{self.remaining:.1f} s"


@dataclass(frozen=True, slots=True)
class Renewal:
    """The result of a renewal for one address: its lease in seconds, or the error for this address."""

    address: str
    lease: float
    error: errors.HoneycombError | None

    @property
    def ok(self) -> bool:
        """Whether the prefix was renewed."""
        return self.error is None
