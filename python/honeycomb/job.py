"""A job: its address hierarchy, its leases and its structures (paper, 3.1, 3.2 and Table 1)."""

from __future__ import annotations

import contextlib
import io
import math
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar, overload

from honeycomb import _address, _check, _transfer, errors
from honeycomb._address import Address, format_bytes, prefix_path, prefix_paths
from honeycomb._display import Facts, Remote
from honeycomb._info import PINNED_MS
from honeycomb._leases import Lease, Node, Renewal
from honeycomb._losses import Callback, Losses, hold
from honeycomb._native import attenuate, bucket_store
from honeycomb._options import PrefixOptions
from honeycomb._quota import Quota, quota_change
from honeycomb._session import Session, close_after, fork_generation
from honeycomb._transfer import Progress
from honeycomb.bucket import Bucket
from honeycomb.cost import Cost, price_text
from honeycomb.custom import Custom, kind_ref
from honeycomb.errors import from_status
from honeycomb.file import Appender, HoneyFile, file_mode
from honeycomb.flushed import Flush
from honeycomb.kv import Kv
from honeycomb.queue import Queue
from honeycomb.tree import Tree

__all__ = ["Job", "JobHandle", "Lease", "Node", "Renewal"]

S = TypeVar("S", Kv, HoneyFile, Queue, Custom)
N = TypeVar("N")

#: Number, root prefix and token of a job.
Ticket: TypeAlias = tuple[int, int, bytes]


@dataclass(frozen=True, slots=True)
class JobHandle:
    """The data that another process needs to join a job. Picklable. It holds a token, so keep it secret.

    With a ``task``, the token is narrowed to that task: it may write the task's own prefix, and has the
    rights on the job's other prefixes that their permissions give to other tasks (design decision 12).
    """

    address: str
    job: int
    name: str
    token: bytes = field(repr=False)
    task_prefix: int = 0
    task: str = ""
    timeout: float = 10.0

    def attach(self) -> Job:
        """Opens the job on behalf of the task: its traffic renews the task's prefix, and thereby the
        prefix's parents and descendants. Closing it closes the connections and nothing else."""
        session = Session(
            self.address, self.token, task_prefix=self.task_prefix, timeout=self.timeout
        )
        return Job(session, self.job, self.name, root=0, owned=False, keep=False, task=self.task)


class Job(Remote):
    """A registered job. Made by :meth:`Client.job`, :meth:`Client.attach` or
    :meth:`JobHandle.attach`.

    Addresses are paths of prefixes within the job (``"T4/T6"``; ``""`` is the root). A name after a
    colon names a structure (``"T4/T6:part-0"``); without one, the address means the prefix's unnamed
    structure.

    Use it in a ``with`` block: at the end of the block the job is deregistered, and its prefixes,
    structures and blocks are freed at once. Until then its leases are renewed in the background, unless
    the job was made with ``keep=False``. Thread-safe. A forked child's copy uses connections of its own
    and neither keeps leases nor deregisters. A job that this process registered also ends when the
    process ends normally. A job that flushes at the end of a lease is left to its leases instead.

    After the lease of the root has ended, every call raises
    :class:`~honeycomb.errors.LeaseExpired` until :meth:`reopen`, even if another process has created the
    job's prefixes again. Structures that were opened before raise it permanently. The first loss is
    logged as a warning (to standard error, unless logging is configured), and :meth:`on_lost_leases`
    reports each loss.
    """

    id: int
    """Its number."""
    name: str
    """Its name."""
    root: int
    """The number of its root prefix."""
    task: str
    """The path of the task that the job is attached as; empty for none."""

    def __init__(
        self,
        session: Session,
        job_id: int,
        name: str,
        *,
        root: int,
        owned: bool,
        keep: bool,
        task: str = "",
        client: Any = None,
        register: Callable[[], Ticket] | None = None,
    ) -> None:
        self._session = session
        self._client = client  # this reference keeps the client's embedded cluster running
        self._register = register
        # Sessions from before each reopening, for the structures that were opened with them.
        self._before: list[Session] = []
        self._keeps = keep
        self._flushes = False
        self._losses = Losses(name)
        self.id = job_id
        self.name = name
        self.root = root
        self.task = task
        self._owned = owned
        self._made_in = fork_generation()
        if keep:
            self.keep()
        if owned:
            hold(self)

    @property
    def token(self) -> bytes:
        """The job's token, or the task's token if the job is attached as a task. A secret."""
        return self._session.token

    # ------------------------------------------------------------------------------- hierarchy

    def create_addr_prefix(
        self,
        addr: str,
        parents: str | Iterable[str] = (),
        *,
        lease: float | None = None,
        pinned: bool = False,
        owner_verbs: str = "rw",
        job_verbs: str = "r",
        high_mark: int | None = None,
        low_mark: int | None = None,
        on_expiry: Flush | Literal["discard"] = "discard",
        max_blocks: int = 0,
        persist: bool = False,
        acknowledge: Literal["memory", "flushed"] = "memory",
    ) -> int:
        """Adds a prefix (Table 1, createAddrPrefix) and returns its number.

        The parent in ``addr`` itself (``T4`` of ``T4/T6``, the root of ``T4``) must exist; ``parents``
        adds further parents. ``lease`` is in seconds (0.2 s to a week; ``None`` uses the job's lease); a
        ``pinned`` prefix never expires. ``owner_verbs`` are the rights of the prefix's own task on its
        structures, and ``job_verbs`` those of the job's other tasks: ``"rw"``, ``"r"``, ``"w"`` or
        ``""``.

        ``high_mark`` is the percentage of a block in use at which the block grows or splits, ``low_mark``
        the percentage below which it merges; ``None`` uses the cluster's mark. ``on_expiry`` decides
        what happens to the data when the lease ends: ``"discard"`` frees it, and ``Flush("out/T1")``
        writes it to disk (:mod:`honeycomb.flushed`). A prefix that is removed by request is not flushed.
        ``max_blocks`` is the most blocks that the prefix and its descendants may hold, 0 for no quota.

        With ``persist`` the data outlives the job. Every end of the prefix except :meth:`remove_prefix`
        (the end of its lease, of the job, or the commit of its last reader) flushes it, to ``on_expiry``
        or to its own path. A later job of the same name loads it from there
        (``load_addr_prefix(addr, persisted=True)``). The flush runs after the job has ended.
        ``flushing`` of :meth:`Client.status` counts such flushes, ``close(flush_timeout=...)`` waits for
        them, and a cluster that stops always does (:meth:`Client.close`, ``honeycomb stop``).

        With ``acknowledge="flushed"`` an append to a file in the prefix is acknowledged when it is
        written to the prefix's flush directory, ``on_expiry`` or its own path. Even if servers are lost,
        :meth:`load_addr_prefix` restores all acknowledged appends from there. An append takes as long as
        a request to the store. Such a prefix can contain only files
        (:class:`~honeycomb.errors.WrongKind`), and its flush directory must not contain a flush or
        another journal (:class:`~honeycomb.errors.FlushUnavailable`).

        Raises :class:`~honeycomb.errors.AlreadyExists`, :class:`~honeycomb.errors.UnknownParent`,
        :class:`~honeycomb.errors.Cycle`, and :class:`~honeycomb.errors.FlushUnavailable` if no memory
        server may write to disk.
        """
        self._flushes = self._flushes or on_expiry != "discard"
        return self._session.native.create_prefix(
            self.id,
            prefix_path(addr),
            prefix_paths(parents),
            PrefixOptions.encode(
                lease=lease,
                pinned=pinned,
                owner_verbs=owner_verbs,
                job_verbs=job_verbs,
                high_mark=high_mark,
                low_mark=low_mark,
                on_expiry=on_expiry,
                max_blocks=max_blocks,
                persist=persist,
                acknowledge=acknowledge,
            ),
        )

    def create_hierarchy(
        self, dag: Mapping[str, str | Iterable[str]] | Iterable[Node]
    ) -> dict[str, int]:
        """Adds all prefixes of an execution plan, or none (Table 1, createHierarchy).

        ``dag`` maps each name to its parents (a single string is one parent), or is an iterable of
        :class:`Node`, at most 65,536 in any order. Returns the number of each prefix by name. Raises
        the errors of :meth:`create_addr_prefix`; the error for a cycle names its members.
        """
        if isinstance(dag, Mapping):
            nodes = [Node(name, tuple(prefix_paths(parents))) for name, parents in dag.items()]
        else:
            nodes = list(dag)
        for node in nodes:
            _check.text("the name of a node", node.name, "T4")
        self._flushes = self._flushes or any(node.on_expiry != "discard" for node in nodes)
        planned = [
            (node.name, prefix_paths(node.parents), prefix_paths(node.readers), node._options())
            for node in nodes
        ]
        numbers = self._session.native.create_hierarchy(self.id, planned)
        return {node.name: number for node, number in zip(nodes, numbers, strict=True)}

    def quota(self, addr: str | None = None) -> Quota:
        """The quota of the prefix with its descendants and the blocks they hold; the quota of the job
        if ``addr`` is ``None``."""
        path = None if addr is None else prefix_path(addr)
        return Quota(*self._session.native.quota(self.id, None, path))

    def cost(self, prices: Mapping[str, float] | None = None) -> Cost:
        """The resources that the job has used so far, and their cost. ``prices`` maps names to prices, such
        as ``{"memory": 0.008, "nvme": 0.0001, "moved": 0.01}``. A tier's name is the price of a gigabyte
        held there for an hour, ``to-`` with a tier's name (``to-object``) the price of a gigabyte moved into
        that tier from another, and ``moved`` the price of a gigabyte moved to another server. ``None`` uses
        the setting ``prices``."""
        (cost,) = self._session.native.costs(self.id, price_text(prices))
        return Cost(**cost)

    def set_quota(
        self, addr: str, max_blocks: int | None = None, *, soft_blocks: int | None = None
    ) -> Quota:
        """Sets the most blocks that the prefix and its descendants may hold, 0 for no quota. Blocks above
        a smaller quota stay, but no further block is allocated until enough are freed. Only the driver may
        call this. The job's own quota is set with the cluster's token (:meth:`Client.set_quota`).

        ``soft_blocks`` rejects no allocation: blocks in memory beyond it are the first to be demoted to a
        lower tier when memory is low; 0 for no such bound. A parameter that is ``None`` is not changed.
        """
        change = quota_change(max_blocks, soft_blocks)
        return Quota(*self._session.native.set_quota(self.id, None, prefix_path(addr), *change))

    def remove_prefix(self, addr: str) -> None:
        """Frees the prefix's structures at once and ends its lease. Descendants stay."""
        self._session.native.remove_prefix(self.id, prefix_path(addr))

    def flush_addr_prefix(
        self,
        addr: str,
        external_path: str,
        *,
        format: Literal["honeycomb", "raw"] = "honeycomb",
        subtree: bool = False,
        barrier: bool = False,
        progress: Callable[[Progress], object] | None = None,
        timeout: float | None = None,
    ) -> str:
        """Writes the prefix's structures to disk or to a bucket while the job continues to use them
        (Table 1, flushAddrPrefix). Waits until the flush is complete, and returns its full path or URL.

        ``external_path`` is a relative path below the servers' ``flush_root`` and the job's name, or
        the full location as a URL such as ``"s3://lake/honeycomb/job/out"``. A flushed file contains at
        least all bytes appended before the call; a flushed queue contains the items that were put and not
        taken, in order. Each slot of a key-value store is written as it was at one moment, but different
        slots at different moments. A complete flush replaces an earlier flush at the same path. The prefix
        does not expire during the flush.

        With ``subtree`` the call flushes the prefix and all its live descendants, each to
        ``external_path`` followed by its path relative to ``addr``. The prefix at ``addr`` is flushed
        last, and its manifest names the others. If one flush fails, the error names the complete ones.
        ``progress`` then counts prefixes.

        With ``barrier`` the flush is a checkpoint: all structures, with ``subtree`` of all prefixes, are
        written as they were at one moment. Every block is frozen until the last one is, for some
        milliseconds, and mutations wait meanwhile. If no such moment is found in five tries, the call
        raises :class:`~honeycomb.errors.DeadlineExceeded`, which names the slowest server.

        With ``format="raw"``, ``addr`` is the address of a file, and ``external_path`` is any file of
        this machine or object, such as ``"s3://lake/today.log"``. This process writes it with credentials
        from the environment: exactly the bytes that the file had at the call, all at once. Other
        structures raise :class:`~honeycomb.errors.WrongKind`.

        ``progress`` is called periodically with a :class:`Progress`. The wait ends if ``progress`` raises
        or after ``timeout`` seconds (:class:`~honeycomb.errors.DeadlineExceeded`); the flush continues.
        Raises :class:`~honeycomb.errors.FlushUnavailable` if the servers have no ``flush_root``,
        :class:`~honeycomb.errors.PermissionDenied` for a path outside the job's directory, and
        :class:`~honeycomb.errors.Removed` if the prefix or one of its structures is removed meanwhile.
        """
        if _transfer.checked(format) == "raw":
            if barrier:
                raise ValueError("format='raw' flushes a file without a barrier: leave barrier out")
            address = str(Address.parse(addr))
            return _transfer.flush_raw(self._session, address, external_path, progress, timeout)
        _check.text("external_path", external_path, "out/T1")
        path = prefix_path(addr)
        if subtree:
            return _transfer.flush_subtree(
                self._session, path, external_path, barrier, progress, timeout
            )
        return _transfer.flush(
            self._session, self.id, path, external_path, barrier, progress, timeout
        )

    def load_addr_prefix(
        self,
        addr: str,
        external_path: str | os.PathLike[str] | None = None,
        *,
        lease: float | None = None,
        pinned: bool = False,
        again: bool = False,
        persisted: bool = False,
        persist: bool = False,
        format: Literal["honeycomb", "raw"] = "honeycomb",
        subtree: bool = False,
        progress: Callable[[Progress], object] | None = None,
    ) -> int:
        """Loads a flush into a new prefix (Table 1, loadAddrPrefix). Returns the number of bytes read.

        ``external_path`` is a directory or a URL, as :meth:`flush_addr_prefix` returns it. This process
        reads it, with credentials from the environment. Structures in the prefix cannot be opened until
        the load is complete (:class:`~honeycomb.errors.Loading`). The data may be loaded onto other
        servers and blocks than those it was flushed from. ``lease``, ``pinned`` and ``persist`` are as in
        :meth:`create_addr_prefix`; ``again`` replaces a load that was not finished.

        With ``persisted`` the call loads the flush of a prefix that was created with ``persist`` by this
        job, or by an earlier job of the same name. It looks under the path ``addr``, or under
        ``external_path`` if that is given. If the flush is still being written, the call waits for it; if
        it was lost, the call raises :class:`~honeycomb.errors.DataLost`.

        With ``subtree`` the call loads all prefixes of a flushed subtree, with the same paths relative to
        ``addr`` as they had relative to the flushed prefix.

        With ``format="raw"``, ``external_path`` is any file or object. Its bytes become the file at
        ``addr``, the only structure in a new prefix.

        Raises :class:`~honeycomb.errors.AlreadyExists` for a prefix that exists and
        :class:`~honeycomb.errors.NotFound` if there is no complete flush. A load that fails leaves no
        prefix behind.
        """
        raw = _transfer.checked(format) == "raw"
        path = str(Address.parse(addr)) if raw else prefix_path(addr)
        options = _transfer.load_options(
            external_path,
            lease=lease,
            pinned=pinned,
            again=again,
            persisted=persisted,
            persist=persist,
            raw=raw,
            subtree=subtree,
        )
        return _transfer.load(self._session, path, external_path, options, progress)

    def declare_readers(
        self, addr: str, readers: str | Iterable[str], *, replace: bool = False
    ) -> int:
        """Declares the tasks that will read the prefix, by the addresses of their prefixes. When the last
        of them has committed (:meth:`commit`), the prefix is freed at once, as by
        :meth:`remove_prefix`, however long its lease is and even if it is pinned.

        Adds to the readers that are declared already. With ``replace``, replaces them; an empty
        ``readers`` then withdraws the declaration. Returns how many readers have not committed yet: with
        0, the prefix is freed (or nothing is declared). A reader that ends without a commit can never
        commit. If its name is created again, that is another prefix: declare it with ``replace``.

        Only the prefix's own task and the driver may call this. Raises
        :class:`~honeycomb.errors.NotFound` for a reader that does not exist, and
        :class:`~honeycomb.errors.LeaseExpired` or :class:`~honeycomb.errors.Removed` for a reader that
        has ended.
        """
        return self._session.native.declare_readers(
            self.id, prefix_path(addr), prefix_paths(readers), replace
        )

    def commit(self, addr: str | None = None) -> int:
        """Commits this attempt of a task: the task has read all its inputs and will not be tried again.
        Prefixes whose last declared reader is this task are freed at once.

        ``addr`` is the task's prefix; ``None`` if the job is attached as that task
        (:meth:`JobHandle.attach`). A task can commit only itself; the driver can commit any task. Returns
        how many prefixes were freed. A repeated commit frees none.
        """
        if addr is not None:
            return self._session.native.commit_task(self.id, prefix_path(addr))
        if not self._session.task_prefix:
            raise errors.InvalidArgument(
                "this job is not attached as a task; name the prefix whose task has committed"
            )
        return self._session.native.commit_task(self.id, self.task)

    def set_permissions(self, addr: str, owner_verbs: str = "rw", job_verbs: str = "r") -> None:
        """Changes the rights of the prefix's own task and of the job's other tasks on the prefix's
        structures. The change applies to clients that have the structures open within a second."""
        self._session.native.set_permissions(
            self.id, prefix_path(addr), _address.verbs(owner_verbs), _address.verbs(job_verbs)
        )

    def tree(self) -> Tree:
        """The hierarchy with leases, structures, blocks and bytes. ``print`` draws it."""
        return Tree(self.name, self._session.native.tree(self.id))

    # ---------------------------------------------------------------------------------- leases

    def renew(self, *addrs: str) -> list[Renewal]:
        """Renews prefixes (without arguments, all prefixes of the job), each with its direct parents and
        all its descendants (paper, 3.2). The prefixes succeed or fail independently, so check the
        results."""
        paths = prefix_paths(addrs) or [""]
        return [
            Renewal(path, lease / 1000, None if name == "Ok" else from_status(name, message))
            for path, (name, lease, message) in zip(
                paths, self._session.native.renew(self.id, paths), strict=True
            )
        ]

    def keep(self, *addrs: str) -> None:
        """Renews prefixes (without arguments, all prefixes of the job) in the background, as
        :meth:`renew` does, often enough for their leases, until :meth:`release` or :meth:`close`. The keeper
        is a native thread: Python code that holds the interpreter does not delay it."""
        paths = prefix_paths(addrs) or [""]
        native = self._session.native
        self._losses.watch(native)
        native.keep(self.id, paths)

    def on_lost_leases(self, callback: Callback) -> None:
        """Calls ``callback(addr, error)`` for every prefix that :meth:`keep` (or the job itself) could not
        renew because its lease had ended, for example after a laptop was suspended, a debugger stopped the
        process, or the network failed. ``addr`` is ``""`` for the whole job, and ``error`` is the
        :class:`~honeycomb.errors.LeaseExpired`. The callback runs in another thread. An exception that it
        raises is printed and has no other effect."""
        self._losses.call(callback)

    def reopen(self) -> None:
        """Reopens the job after its leases have ended. If the job is live, only this object changes: it
        attaches to the current job. Data that was freed with the leases stays freed, and structures opened
        before continue to raise :class:`~honeycomb.errors.LeaseExpired`. Their names can be created again,
        and prefixes that are live (pinned ones) stay.

        Only clients that registered the job or attached to it by name can reopen it; send new handles to
        other processes afterwards. Raises :class:`~honeycomb.errors.AlreadyExists` if another job has taken
        the name, and :class:`~honeycomb.errors.PermissionDenied` without the cluster's token.
        """
        if self._client is None:
            raise errors.PermissionDenied(
                f"cannot reopen job {self.name}: it is open here through a handle; reopen it in "
                "the process that registered it, and send a new handle"
            )
        session = self._session
        if session.closed:
            raise errors.Closed(f"job {self.name} was closed")
        job_id, root, token = self._client._reopen(self)
        if (job_id, root) == (self.id, self.root):
            return
        self._before.append(session)
        self._session = Session(session.address, token, timeout=session.timeout)
        self.id, self.root = job_id, root
        self._losses.begin_anew()
        if self._keeps:
            self.keep()

    def release(self, *addrs: str) -> None:
        """Stops the background renewal of prefixes (without arguments, of the root). Their leases then
        run out."""
        self._session.native.release(self.id, prefix_paths(addrs) or [""])

    def lease(self, addr: str = "") -> Lease:
        """The prefix's lease. Raises :class:`~honeycomb.errors.LeaseExpired` if it has ended."""
        info = self._session.native.lease_info(self.id, prefix_path(addr))
        pinned = info["pinned"] or info["remaining_ms"] == PINNED_MS
        return Lease(
            prefix=info["prefix"],
            duration=info["lease_ms"] / 1000,
            remaining=math.inf if pinned else info["remaining_ms"] / 1000,
            pinned=pinned,
        )

    def lease_duration(self, addr: str = "") -> float:
        """The time after which the prefix expires without renewal, in seconds."""
        return self.lease(addr).duration

    #: The paper's name for it (Table 1, getLeaseDuration).
    get_lease_duration = lease_duration

    # ------------------------------------------------------------------------------ structures

    def create_kv(self, addr: str, *, blocks: int = 1, exist_ok: bool = False) -> Kv:
        """Creates a key-value store that starts with ``blocks`` blocks. It grows and shrinks by itself: one
        block takes 64 KiB of memory at first, several take all of theirs at once.

        With ``exist_ok``, opens a store that exists, whatever its size. Raises
        :class:`~honeycomb.errors.NotFound` if its prefix does not exist,
        :class:`~honeycomb.errors.AlreadyExists`, :class:`~honeycomb.errors.WrongKind`,
        :class:`~honeycomb.errors.OutOfMemory` and :class:`~honeycomb.errors.QuotaExceeded`.
        """
        address = Address.parse(addr)
        _check.whole("blocks", blocks, 1, _check.U32_MAX, unit="blocks")
        native = self._session.native.create_kv(
            self.id, address.path, address.name, blocks, exist_ok
        )
        return Kv(self, address, native)

    def create_file(self, addr: str, *, blocks: int = 1, exist_ok: bool = False) -> HoneyFile:
        """Creates a file that starts with ``blocks`` blocks. It grows by itself. Otherwise as
        :meth:`create_kv`."""
        address = Address.parse(addr)
        _check.whole("blocks", blocks, 1, _check.U32_MAX, unit="blocks")
        native = self._session.native.create_file(
            self.id, address.path, address.name, blocks, exist_ok
        )
        return HoneyFile(self, address, native)

    def create_queue(
        self, addr: str, *, max_items: int = 0, max_bytes: int = 0, exist_ok: bool = False
    ) -> Queue:
        """Creates a queue of at most ``max_items`` items (maxQueueLength) and ``max_bytes`` bytes; 0 is
        no bound. It grows and shrinks by itself. Otherwise as :meth:`create_kv`. With ``exist_ok``, a
        queue that exists keeps its bounds."""
        address = Address.parse(addr)
        _check.whole("max_items", max_items, 0, unit="items (0 for no bound)")
        _check.whole("max_bytes", max_bytes, 0, unit="bytes (0 for no bound)")
        native = self._session.native.create_queue(
            self.id, address.path, address.name, max_items, max_bytes, exist_ok
        )
        return Queue(self, address, native)

    def create_custom(
        self,
        addr: str,
        kind: int | str,
        *,
        blocks: int = 1,
        max_items: int = 0,
        max_bytes: int = 0,
        exist_ok: bool = False,
    ) -> Custom:
        """Creates a structure of a custom kind. ``kind`` is the kind's name or its code (``0x80`` to
        ``0xEF``), and a memory server of the cluster must serve it (:meth:`Client.kinds`). The kind defines
        the meaning of ``blocks``, ``max_items`` and ``max_bytes``; 0 leaves the choice to the kind.

        Raises :class:`~honeycomb.errors.UnknownKind`; otherwise as :meth:`create_kv`."""
        address = Address.parse(addr)
        ref = kind_ref(kind)
        _check.whole("blocks", blocks, 1, _check.U32_MAX, unit="blocks")
        _check.whole("max_items", max_items, 0, unit="items (0 for no bound)")
        _check.whole("max_bytes", max_bytes, 0, unit="bytes (0 for no bound)")
        native = self._session.native.create_custom(
            self.id,
            address.path,
            address.name,
            ref,
            (blocks, max_items, max_bytes),
            exist_ok,
        )
        return Custom(self, address, native)

    def custom(
        self,
        addr: str,
        kind: int | str,
        *,
        blocks: int = 1,
        max_items: int = 0,
        max_bytes: int = 0,
    ) -> Custom:
        """The structure of a custom kind at ``addr``. Creates it and its prefix if they are missing."""
        return self._with_prefix(
            addr,
            lambda: self.create_custom(
                addr,
                kind,
                blocks=blocks,
                max_items=max_items,
                max_bytes=max_bytes,
                exist_ok=True,
            ),
        )

    def open_custom(self, addr: str, kind: int | str | None = None) -> Custom:
        """Opens a structure of a custom kind that exists; with ``kind``, only of that kind. Raises the
        errors of :meth:`open_kv`."""
        address = Address.parse(addr)
        if kind is None:
            return Custom(self, address)
        native = self._session.native.open_custom(
            self.id, address.path, address.name, kind_ref(kind)
        )
        return Custom(self, address, native)

    def kv(self, addr: str, *, blocks: int = 1) -> Kv:
        """The key-value store at ``addr``. Creates it and its prefix if they are missing."""
        return self._with_prefix(addr, lambda: self.create_kv(addr, blocks=blocks, exist_ok=True))

    def file(self, addr: str, *, blocks: int = 1) -> HoneyFile:
        """The file at ``addr``. Creates it and its prefix if they are missing."""
        return self._with_prefix(addr, lambda: self.create_file(addr, blocks=blocks, exist_ok=True))

    def queue(self, addr: str, *, max_items: int = 0, max_bytes: int = 0) -> Queue:
        """The queue at ``addr``. Creates it and its prefix if they are missing."""
        return self._with_prefix(
            addr,
            lambda: self.create_queue(
                addr, max_items=max_items, max_bytes=max_bytes, exist_ok=True
            ),
        )

    def open_queue(self, addr: str) -> Queue:
        """Opens a queue that exists. Raises the errors of :meth:`open_kv`."""
        return Queue(self, Address.parse(addr))

    def open_kv(self, addr: str) -> Kv:
        """Opens a key-value store that exists. Raises :class:`~honeycomb.errors.NotFound`,
        :class:`~honeycomb.errors.WrongKind`, or the error that says why the store is gone."""
        return Kv(self, Address.parse(addr))

    def open_file(self, addr: str) -> HoneyFile:
        """Opens a file that exists. Raises the errors of :meth:`open_kv`."""
        return HoneyFile(self, Address.parse(addr))

    @overload
    def open(self, addr: str, mode: Literal["rb"] = "rb") -> io.BufferedReader: ...
    @overload
    def open(self, addr: str, mode: Literal["ab"]) -> Appender: ...
    @overload
    def open(self, addr: str, mode: Literal["r", "a"]) -> io.TextIOWrapper: ...
    @overload
    def open(self, addr: str, mode: str) -> io.IOBase: ...
    def open(self, addr: str, mode: str = "rb") -> io.IOBase:
        """A file object on the file at ``addr``; see :meth:`HoneyFile.open`. For appending, the
        file and its prefix are created if they are missing."""
        opening = file_mode(mode)
        file = self.file(addr) if opening.startswith("a") else self.open_file(addr)
        return file.open(opening)

    @overload
    def init_data_structure(self, addr: str, kind: Literal["kv"]) -> Kv: ...
    @overload
    def init_data_structure(self, addr: str, kind: Literal["file"]) -> HoneyFile: ...
    @overload
    def init_data_structure(self, addr: str, kind: Literal["queue"]) -> Queue: ...
    def init_data_structure(self, addr: str, kind: str) -> Kv | HoneyFile | Queue:
        """Creates a structure of ``kind`` ``"kv"``, ``"file"`` or ``"queue"`` (Table 1,
        initDataStructure)."""
        if kind == "kv":
            return self.create_kv(addr)
        if kind == "file":
            return self.create_file(addr)
        if kind == "queue":
            return self.create_queue(addr)
        raise errors.InvalidArgument(f"kind is 'kv', 'file' or 'queue', not {kind!r}")

    # --------------------------------------------------------------------------------- objects

    def create_bucket(
        self,
        name: str,
        *,
        lease: float | None = None,
        pinned: bool = False,
        on_expiry: Flush | Literal["discard"] = "discard",
        max_blocks: int = 0,
        persist: bool = False,
        blocks: int = 1,
        exist_ok: bool = False,
    ) -> Bucket:
        """Creates a bucket for objects (Pocket's create_bucket): the prefix ``name``, whose parent must
        exist, with a key-value store that starts with ``blocks`` blocks and grows by itself. The other
        parameters are those of :meth:`create_addr_prefix`. With ``persist`` (Pocket's PERSIST, for all
        objects of the bucket) the objects outlive the job, and a later job of the same name brings them
        back with :meth:`load_bucket`; ``close(flush_timeout=...)`` of the job waits until they are written.
        With ``exist_ok``, opens a bucket that exists and keeps its options. Raises the errors of
        :meth:`create_addr_prefix` and :meth:`create_kv`."""
        path = _bucket_path(name)
        try:
            self.create_addr_prefix(
                path,
                lease=lease,
                pinned=pinned,
                on_expiry=on_expiry,
                max_blocks=max_blocks,
                persist=persist,
            )
        except errors.AlreadyExists:
            if not exist_ok:
                raise
        return Bucket(self.create_kv(bucket_store(path), blocks=blocks, exist_ok=exist_ok))

    def bucket(self, name: str) -> Bucket:
        """Opens a bucket that exists. Raises :class:`~honeycomb.errors.NotFound` if there is none, and
        :class:`~honeycomb.errors.LeaseExpired` if its lease has ended."""
        return Bucket(self.open_kv(bucket_store(_bucket_path(name))))

    def load_bucket(
        self, name: str, *, lease: float | None = None, pinned: bool = False, persist: bool = False
    ) -> Bucket:
        """Brings back a bucket that this job, or an earlier job of the same name, created with
        ``persist``, with the objects that it contained when it ended. If the bucket is still being
        written, the call waits for it. The parameters are those of :meth:`create_addr_prefix`; with
        ``persist`` the bucket outlives this job as well. Raises :class:`~honeycomb.errors.NotFound` if
        there is none, and the errors of :meth:`load_addr_prefix`."""
        path = _bucket_path(name)
        self.load_addr_prefix(path, lease=lease, pinned=pinned, persisted=True, persist=persist)
        return self.bucket(path)

    def buckets(self) -> list[str]:
        """The names of the job's buckets."""
        return self._session.native.buckets(self.id)

    def delete_bucket(self, name: str) -> None:
        """Removes a bucket with its objects, and its prefix with all structures in it. The memory is freed
        at once. If the prefix is not a bucket, raises :class:`~honeycomb.errors.NotFound` and removes
        nothing."""
        self.remove_prefix(self.bucket(name).name)

    def remove(self, addr: str) -> None:
        """Removes a structure and frees its blocks at once."""
        address = Address.parse(addr)
        self._session.native.remove_structure(self.id, address.path, address.name)

    def _with_prefix(self, addr: str, create: Callable[[], S]) -> S:
        try:
            return create()
        except errors.Removed:
            raise
        except errors.NotFound:
            path = Address.parse(addr).path
            if not path:
                raise
        levels = path.strip("/").split("/")
        for depth in range(1, len(levels) + 1):
            # The level may exist already, or another task may have created it first.
            with contextlib.suppress(errors.AlreadyExists):
                self.create_addr_prefix("/" + "/".join(levels[:depth]))
        return create()

    # ------------------------------------------------------------------------- other processes

    def handle(self, task: str | None = None) -> JobHandle:
        """A picklable handle with which another process joins the job.

        ``task`` is the address of the prefix that the process will run for; ``None`` gives the handle the
        same rights as this object.
        """
        if task is None:
            return self._pickle_handle()
        path = prefix_path(task)
        return self._task_handle(path, self.lease(path).prefix)

    def _task_handle(self, path: str, prefix: int) -> JobHandle:
        token = attenuate(self.token, prefix, _address.READ | _address.WRITE, None)
        return JobHandle(
            self._session.address, self.id, self.name, token, prefix, path, self._session.timeout
        )

    def _pickle_handle(self) -> JobHandle:
        session = self._session
        return JobHandle(
            session.address,
            self.id,
            self.name,
            session.token,
            session.task_prefix,
            self.task,
            session.timeout,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self._pickle_handle(),)

    # --------------------------------------------------------------------------------- the end

    def close(self, flush_timeout: float | None = 0) -> None:
        """Deregisters the job if this object registered it, and closes its connections. Idempotent. A job
        that is gone already raises no error. If the controller cannot be reached, raises
        :class:`~honeycomb.errors.Unavailable`: the connections are closed, and the job ends with its leases.

        Prefixes with ``persist`` are written after the job has ended, and by default this call does not
        wait for them: a cluster that was started separately continues to write them, and the last
        :meth:`Client.close` of an embedded cluster waits for them. With ``flush_timeout`` this call waits
        that many seconds, or with ``None`` until they are written. If a block is still unwritten then, it
        raises :class:`~honeycomb.errors.DeadlineExceeded` with the progress: the flush continues, and the
        job is closed. If blocks were lost with a server, it raises :class:`~honeycomb.errors.Removed`.
        """
        if self._session.closed:
            return
        try:
            if self._owned and self._made_in == fork_generation():
                self._session.native.deregister_job(self.id)
                if flush_timeout != 0:
                    _transfer.see_through(self._session, self.id, flush_timeout)
        except (errors.UnknownJob, errors.LeaseExpired):
            pass  # the job is gone already, or another process has reopened it and owns it now
        except errors.Unavailable as error:
            message = f"cannot deregister job {self.name}, which now ends with its leases: {error}"
            raise errors.Unavailable(message) from error
        finally:
            for session in (*self._before, self._session):
                session.close()

    def _end_at_exit(self, patience: float) -> None:
        """Deregisters the job if this process holds it. A job with prefixes that flush at their end is
        left to its leases."""
        if self._session.closed or self._made_in != fork_generation() or self._flushes:
            return
        with contextlib.suppress(errors.UnknownJob, errors.LeaseExpired):
            self._session.native.deregister_job(self.id, patience)

    def _open_native(self, address: Address, identity: int | None) -> Any:
        """Opens the structure at the address. With an identity, opens only the structure with that identity,
        or raises the error that ended it."""
        native = self._session.native
        if identity is None:
            return native.open(self.id, address.path, address.name)
        return native.open_same(self.id, address.path, address.name, identity)

    def _disconnect(self) -> None:
        """Closes only the connections. The cluster ends the job."""
        for session in (*self._before, self._session):
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        close_after(exc, self.close)

    def _facts(self) -> Facts:
        tree = self.tree()
        yield "prefixes", len(tree)
        yield "blocks", tree.blocks
        yield "used", format_bytes(tree.bytes_used)
        yield "structures", sum(len(node.structures) for node in tree)

    def __repr__(self) -> str:
        task = f" task {self.task}" if self.task else ""
        return f"<honeycomb.Job {self.name}{task}{' closed' if self._session.closed else ''}>"


def _bucket_path(name: str) -> str:
    path = prefix_path(name)
    if not path:
        raise errors.InvalidArgument(f"a bucket's name is a path below the root, not {name!r}")
    return path


# Unpickled structures of the same handle share one attached job, and thereby its connections.
_shared: weakref.WeakValueDictionary[JobHandle, Job] = weakref.WeakValueDictionary()


def _attached(handle: JobHandle) -> Job:
    job = _shared.get(handle)
    if job is None or job._session.closed:
        job = _shared[handle] = handle.attach()
    return job


def _restore(
    cls: Callable[[Job, Address, Any], N], handle: JobHandle, address: Address, identity: int
) -> N:
    """Opens a structure that was pickled: only the same structure, not a later one at its address."""
    job = _attached(handle)
    return cls(job, address, job._open_native(address, identity))
