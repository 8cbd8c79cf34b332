"""The controller's reports on jobs, prefixes and servers: the shapes of plain dictionaries.

The fields are those of the messages in ``protocol/messages.toml``, where each is explained. Times
are milliseconds and sizes bytes.
"""

from __future__ import annotations

from typing import Final, TypedDict

KIND_FILE: Final = 0x10
KIND_QUEUE: Final = 0x11
KIND_KV: Final = 0x12
PREFIX_STATES: Final = ("live", "expired", "data lost", "removed")
#: ``remaining_ms`` of a prefix that never expires.
PINNED_MS: Final = 2**63 - 1


class JobInfo(TypedDict):
    job: int
    name: str
    prefixes: int
    pinned: int
    structures: int
    blocks: int
    bytes_used: int
    age_ms: int
    quota_blocks: int
    latency_sensitive: bool
    tasks: int
    capacity: int
    peak_throughput: int
    expected_bytes: int
    expected_bytes_per_s: int


class StructureInfo(TypedDict):
    structure: int
    name: str
    kind: int
    blocks: int
    bytes_used: int
    sealed: bool


class PrefixInfo(TypedDict):
    prefix: int
    name: str
    parents: list[int]
    lease_ms: int
    remaining_ms: int
    pinned: bool
    state: int
    structures: list[StructureInfo]
    readers_left: int
    committed: bool
    high_mark: int
    low_mark: int
    flush_to: str
    flush: int
    flush_message: str
    max_blocks: int
    held_blocks: int
    persist: bool
    acknowledge: int


class LeaseInfo(TypedDict):
    prefix: int
    lease_ms: int
    remaining_ms: int
    pinned: bool


# The lower tiers of one class ("nvme", "ssd", "hdd").
TierUse = TypedDict(
    "TierUse",
    {"class": str, "blocks": int, "used": int, "bytes_written": int, "bytes_read": int},
)


class TierAlarm(TypedDict):
    """A fault of a server's lower tier: ``kind`` is ``away`` (the data there cannot be reached
    now), ``refuses`` (the tier accepts no more data) or ``lost`` (data there is gone)."""

    #: its position among the server's ``tiers``, from 1 on
    tier: int
    kind: str
    why: str
    age_ms: int
    tried_ms: int


class ServerInfo(TypedDict):
    server: int
    address: str
    alive: bool
    #: time since the last message of a suspected server; 0 for a server that is not suspected
    silent_ms: int
    shards: int
    block_size: int
    blocks: int
    free: int
    bytes_used: int
    bytes_resident: int
    connections: int
    requests: int
    forwarded: int
    bytes_owed: int
    cpu_permille: int
    tiers: list[TierUse]
    alarms: list[TierAlarm]
    #: 0 serving, 1 draining, 2 released, 3 drain cancelled
    drain: int
    drain_waits: str


class Status(TypedDict):
    uptime_ms: int
    jobs: int
    prefixes: int
    pinned: int
    structures: int
    blocks: int
    free: int
    reserved: int
    quarantined: int
    bytes_allocated: int
    bytes_used: int
    bytes_resident: int
    bytes_metadata: int
    requests: int
    flushing: int
    flush_failing: int
    flushed: int
    flush_lost: int
    flush_error: str
    requests_leases: int
    requests_blocks: int
    requests_reports: int
    tiers: list[TierUse]
    #: number of alarms of all servers; ``servers`` has the alarms themselves
    alarms: int
    servers: list[ServerInfo]
