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
from honeycomb._native import attenuate
from honeycomb._quota import Quota, quota_change
from honeycomb._session import Session, close_after, fork_generation
from honeycomb._transfer import Progress
from honeycomb.bucket import Bucket, buckets_of, store_of
from honeycomb.cost import Cost, cost_of, read_prices
from honeycomb.custom import Custom, kind_ref
from honeycomb.errors import from_status
from honeycomb.file import Appender, HoneyFile, file_mode
from honeycomb.flushed import Flush, flush_to
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
    """What another process needs to take part in a job. Picklable; holds a token, so treat it as one.

    With a ``task`` the token is cut down to that task: it may write the task's own prefix and do
    with the job's other prefixes what their permissions give to other tasks (design decision 12).
    """

    address: str
    job: int
    name: str
    token: bytes = field(repr=False)
    task_prefix: int = 0
    task: str = ""
    timeout: float = 10.0

    def attach(self) -> Job:
        """The job as seen from the task: its traffic renews the task's prefix, and so its parents
        and descendants. Closing it ends the connections and nothing else."""
        session = Session(
            self.address, self.token, task_prefix=self.task_prefix, timeout=self.timeout
        )
        return Job(session, self.job, self.name, root=0, owned=False, keep=False, task=self.task)


class Job(Remote):
    """A registered job. Made by :meth:`Client.job`, :meth:`Client.attach` or
    :meth:`JobHandle.attach`.

    Addresses are paths of prefixes within the job (``"T4/T6"``; ``""`` is the root), and name a
    structure after a colon (``"T4/T6:part-0"``; without it, the prefix's unnamed one).

    Use it in a ``with`` block: at its end the job is deregistered, and its prefixes, structures and
    blocks are freed at once. Until then its leases are renewed in the background, unless it was made
    with ``keep=False``. Thread-safe. A forked child's copy works through connections of its own and
    neither keeps leases nor deregisters. A job that this process registered ends with the process, too,
    when that ends normally; one that flushes at the end of a lease is left to its leases.

    When the lease of its root has ended, every call raises
    :class:`~honeycomb.errors.LeaseExpired`, also when another process has made its prefixes anew, until
    :meth:`reopen`; structures that were opened before raise it for good. The first loss is logged as a
    warning (to standard error, unless logging is configured), and :meth:`on_lost_leases` hears of each.
    """

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
        self._client = client  # an embedded cluster lives as long as its clients are referred to
        self._register = register
        self._before: list[Session] = []  # of earlier lives, for the structures opened in them
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
        """The job's token, or the task's where it is attached as one. A secret."""
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

        The parent that ``addr`` itself names (``T4`` of ``T4/T6``, the root of ``T4``) must exist;
        ``parents`` adds further ones. ``lease`` is in seconds (0.2 s to a week, ``None`` for the
        job's); a ``pinned`` prefix never expires. ``owner_verbs`` says what the prefix's own task
        may do with its structures and ``job_verbs`` what the job's other tasks may: ``"rw"``,
        ``"r"``, ``"w"`` or ``""``.

        ``high_mark`` is the percentage of a block in use at which it grows or splits, ``low_mark``
        the one below which it merges; ``None`` takes the cluster's. ``on_expiry`` says what becomes
        of the data when the lease ends: ``"discard"``, or ``Flush("out/T1")`` to have it written to
        disk (:mod:`honeycomb.flushed`); a prefix that is removed by request is not flushed.
        ``max_blocks`` is the most that it and all below it may hold, 0 for no quota.

        With ``persist`` it outlives its job: it is flushed by whatever ends it but
        :meth:`remove_prefix` (the end of its lease, of the job, of its last reader), to ``on_expiry``
        or to its own path, where a later job of the same name finds it
        (``load_addr_prefix(addr, persisted=True)``). That is written after the job has ended:
        ``flushing`` of :meth:`Client.status` tells of it, ``close(flush_timeout=...)`` waits for it, and the
        end of the cluster does in any case (:meth:`Client.close`, ``honeycomb stop``).

        With ``acknowledge="flushed"`` an append to a file of it is answered when it is written where
        the prefix would be flushed, to ``on_expiry`` or to its own path: whatever servers are lost,
        :meth:`load_addr_prefix` brings back from there what was answered. An append takes as long as a
        request to the store. Only files can be in such a prefix
        (:class:`~honeycomb.errors.WrongKind`), and none where a flush or another journal lies
        (:class:`~honeycomb.errors.FlushUnavailable`).

        Raises :class:`~honeycomb.errors.AlreadyExists`, :class:`~honeycomb.errors.UnknownParent`,
        :class:`~honeycomb.errors.Cycle`, and :class:`~honeycomb.errors.FlushUnavailable` where no
        memory server may write to disk.
        """
        self._flushes = self._flushes or on_expiry != "discard"
        return self._session.native.create_prefix(
            self.id,
            prefix_path(addr),
            prefix_paths(parents),
            _address.lease_ms(lease),
            pinned,
            _address.verbs(owner_verbs),
            _address.verbs(job_verbs),
            _address.mark(high_mark),
            _address.mark(low_mark),
            flush_to(on_expiry),
            _check.whole("max_blocks", max_blocks, 0, unit="blocks"),
            persist,
            _address.acknowledge(acknowledge),
        )

    def create_hierarchy(
        self, dag: Mapping[str, str | Iterable[str]] | Iterable[Node]
    ) -> dict[str, int]:
        """Adds all prefixes of an execution plan, or none (Table 1, createHierarchy).

        ``dag`` maps each name to its parents (a single string is one parent), or is a series of
        :class:`Node`; at most 65,536 of them, in any order. Returns the number of each prefix by
        name. Raises as :meth:`create_addr_prefix`; a cycle is named by its members.
        """
        if isinstance(dag, Mapping):
            nodes = [Node(name, tuple(prefix_paths(parents))) for name, parents in dag.items()]
        else:
            nodes = list(dag)
        for node in nodes:
            _check.text("the name of a node", node.name, "T4")
        self._flushes = self._flushes or any(node.on_expiry != "discard" for node in nodes)
        numbers = self._session.native.create_hierarchy(
            self.id,
            [
                (
                    node.name,
                    prefix_paths(node.parents),
                    _address.lease_ms(node.lease),
                    node.pinned,
                    prefix_paths(node.readers),
                    _address.mark(node.high_mark),
                    _address.mark(node.low_mark),
                    flush_to(node.on_expiry),
                    _check.whole("max_blocks", node.max_blocks, 0, unit="blocks"),
                    node.persist,
                    _address.acknowledge(node.acknowledge),
                )
                for node in nodes
            ],
        )
        return {node.name: number for node, number in zip(nodes, numbers, strict=True)}

    def quota(self, addr: str | None = None) -> Quota:
        """How many blocks the prefix with all below it may hold, and holds; the job itself when
        ``addr`` is ``None``."""
        path = None if addr is None else prefix_path(addr)
        return Quota(*self._session.native.quota(self.id, None, path))

    def cost(self, prices: Mapping[str, float] | None = None) -> Cost:
        """What the job has used so far, and what that costs. ``prices`` are such as
        ``{"memory": 0.008, "nvme": 0.0001, "moved": 0.01}``, for a gigabyte and an hour in a tier, for
        one that comes to a tier from another (``to-object``), and for one that goes to another server; those of the setting ``prices`` when
        ``None``."""
        (bill,) = self._session.native.bills(self.id)
        return cost_of(bill, read_prices(prices))

    def set_quota(
        self, addr: str, max_blocks: int | None = None, *, soft_blocks: int | None = None
    ) -> Quota:
        """Sets the most blocks that the prefix with all below it may hold, 0 for as many as there
        are. What is held already stays; nothing more is given until enough was freed. For the
        driver. The job's own quota is the cluster's to set (:meth:`Client.set_quota`).

        ``soft_blocks`` refuses nothing: what is in memory beyond it is the first to go below when
        memory is short, 0 for no such bound. What is ``None`` stays as it is.
        """
        change = quota_change(max_blocks, soft_blocks)
        return Quota(*self._session.native.set_quota(self.id, None, prefix_path(addr), *change))

    def remove_prefix(self, addr: str) -> None:
        """Frees the prefix's structures at once and ends its lease; descendants stay."""
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
        """Writes what the prefix holds to disk or to a bucket while it goes on (Table 1,
        flushAddrPrefix), waits until that is whole, and returns the place in full.

        ``external_path`` is a path of names below the servers' ``flush_root`` and the job's name, or
        that place as a URL such as ``"s3://lake/honeycomb/job/out"``. A file holds at least all that
        was appended before the call, a queue what was put and not taken, in order; every slot of a
        key-value store is as it was at one moment, and other slots at others. What was there before
        is replaced when the new one is whole. The prefix does not expire meanwhile.

        With ``subtree`` it is the prefix with all live ones below it, each flushed to ``external_path``
        and its path from ``addr``, the uppermost last: its manifest names the others. When one fails
        the error says which are whole. ``progress`` counts prefixes then.

        With ``barrier`` all of it is as it was at one moment (a checkpoint), and with ``subtree`` all
        prefixes are: every block stands still until the last one does, some milliseconds, and who
        changes it waits. Where no such moment is found in five tries it is
        :class:`~honeycomb.errors.DeadlineExceeded`, which names the slowest server.

        With ``format="raw"`` ``addr`` is that of a file, and ``external_path`` any file of this
        machine or object, such as ``"s3://lake/today.log"``, which this process writes with
        credentials from the environment: exactly the bytes that the file had at the call, all of them
        at once. Other structures are :class:`~honeycomb.errors.WrongKind`.

        ``progress`` is called with a :class:`Progress` now and then; what it raises ends the wait,
        and so does ``timeout`` in seconds (:class:`~honeycomb.errors.DeadlineExceeded`): the flush
        goes on. Raises :class:`~honeycomb.errors.FlushUnavailable` where servers have no
        ``flush_root``, :class:`~honeycomb.errors.PermissionDenied` for a place that is not the job's,
        and :class:`~honeycomb.errors.Removed` when the prefix or a structure of it went meanwhile.
        """
        if _transfer.checked(format) == "raw":
            if barrier:
                raise ValueError("a file that becomes a plain object is flushed without a barrier")
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
        """Fills a new prefix with what a flush holds (Table 1, loadAddrPrefix); returns how many
        bytes were read.

        ``external_path`` is a directory or a URL, as :meth:`flush_addr_prefix` returns it. It is read
        by this process, with credentials from the environment. Nothing in the prefix can be opened
        before all of it is there (:class:`~honeycomb.errors.Loading`). Servers and blocks may be
        others than those from which it was flushed. ``lease`` and ``pinned`` are as in
        :meth:`create_addr_prefix`, and so is ``persist``; ``again`` takes the place of a load that was
        not finished.

        With ``persisted`` it is what a prefix of this job, or of an earlier one of its name, has left
        that was created with ``persist``: under the path ``addr``, or ``external_path`` where that is
        another. A flush that is still on its way there is waited for; one that was lost is
        :class:`~honeycomb.errors.DataLost`.

        With ``subtree`` it is all prefixes of a subtree that was flushed there, below ``addr`` as they
        were below theirs.

        With ``format="raw"`` ``external_path`` is any file or object, and ``addr`` the file that has
        its bytes then, alone in a new prefix.

        Raises :class:`~honeycomb.errors.AlreadyExists` for a prefix that exists and
        :class:`~honeycomb.errors.NotFound` where there is no whole flush. When it fails nothing of
        the prefix is left.
        """
        raw = _transfer.checked(format) == "raw"
        path = str(Address.parse(addr)) if raw else prefix_path(addr)
        options = _transfer.load_options(
            external_path, lease, pinned, again, persisted, persist, raw, subtree
        )
        return _transfer.load(self._session, path, external_path, options, progress)

    def declare_readers(
        self, addr: str, readers: str | Iterable[str], *, replace: bool = False
    ) -> int:
        """Says which tasks will read the prefix, by the addresses of their prefixes. When the last
        of them has committed (:meth:`commit`), the prefix is freed at once, as by
        :meth:`remove_prefix`, however long its lease is and even if it is pinned.

        Adds to the readers declared before; with ``replace`` takes their place, and no readers
        withdraw the declaration. Returns how many have not committed yet: with 0 the prefix is gone
        (or nothing is declared). A reader that ends without having committed never will, and its
        name created again is another prefix: declare that one with ``replace``.

        For the prefix's own task and the driver. Raises :class:`~honeycomb.errors.NotFound` for a
        reader that does not exist and :class:`~honeycomb.errors.LeaseExpired` or
        :class:`~honeycomb.errors.Removed` for one that has ended.
        """
        return self._session.native.declare_readers(
            self.id, prefix_path(addr), prefix_paths(readers), replace
        )

    def commit(self, addr: str | None = None) -> int:
        """Says that this attempt of a task has committed: it has read what it reads, and will not be
        tried again. Prefixes whose last declared reader it was are freed at once.

        ``addr`` is the task's prefix; ``None`` where the job is attached as that task
        (:meth:`JobHandle.attach`). A task commits only itself; the driver may commit any. Returns
        how many prefixes were freed; committed again, none.
        """
        if addr is not None:
            return self._session.native.commit_task(self.id, prefix_path(addr))
        if not self._session.task_prefix:
            raise errors.InvalidArgument(
                "this job is not attached as a task; name the prefix whose task has committed"
            )
        return self._session.native.commit_task(self.id, self.task)

    def set_permissions(self, addr: str, owner_verbs: str = "rw", job_verbs: str = "r") -> None:
        """Changes who may do what with the prefix's structures. Whoever has them open feels it
        within a second."""
        self._session.native.set_permissions(
            self.id, prefix_path(addr), _address.verbs(owner_verbs), _address.verbs(job_verbs)
        )

    def tree(self) -> Tree:
        """The hierarchy with leases, structures, blocks and bytes; ``print`` draws it."""
        return Tree(self.name, self._session.native.tree(self.id))

    # ---------------------------------------------------------------------------------- leases

    def renew(self, *addrs: str) -> list[Renewal]:
        """Renews prefixes (all of the job without arguments), each with its direct parents and all
        its descendants (paper, 3.2). One that fails does so alone: look at the results."""
        paths = prefix_paths(addrs) or [""]
        return [
            Renewal(path, lease / 1000, None if name == "Ok" else from_status(name, message))
            for path, (name, lease, message) in zip(
                paths, self._session.native.renew(self.id, paths), strict=True
            )
        ]

    def keep(self, *addrs: str) -> None:
        """Renews prefixes (all of the job without arguments) in the background from now on, as
        :meth:`renew` does and in good time for their leases, until :meth:`release` or the end. The
        keeper is a native thread: Python code that holds the interpreter does not delay it."""
        paths = prefix_paths(addrs) or [""]
        native = self._session.native
        self._losses.watch(native)
        native.keep(self.id, paths)

    def on_lost_leases(self, callback: Callback) -> None:
        """Calls ``callback(addr, error)`` for every prefix that :meth:`keep` (or the job itself) could not
        keep because its lease had ended: a suspended laptop, a debugger, a network that was away. ``addr``
        is ``""`` for the whole job, and ``error`` the :class:`~honeycomb.errors.LeaseExpired`. It is called
        in another thread; an exception that it raises is printed and has no other effect."""
        self._losses.call(callback)

    def reopen(self) -> None:
        """Begins the job anew after its leases have ended; of a job that lives it changes nothing but this
        object, which then belongs to its present life. Data that the leases freed stays freed, and structures
        opened before go on raising :class:`~honeycomb.errors.LeaseExpired`; names are free again, and
        prefixes that are live (pinned ones) stay.

        For clients that registered the job or attached to it by name; handles of other processes are made
        anew. Raises :class:`~honeycomb.errors.AlreadyExists` when the name is another job's by now, and
        :class:`~honeycomb.errors.PermissionDenied` without the cluster's token.
        """
        if self._client is None:
            raise errors.PermissionDenied(
                f"job {self.name} is open here through a handle, which cannot reopen it: reopen it where "
                "it was registered, and send a new handle"
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
        """Ends the keeping of prefixes (of the root without arguments); their leases run out."""
        self._session.native.release(self.id, prefix_paths(addrs) or [""])

    def lease(self, addr: str = "") -> Lease:
        """The prefix's lease. Raises :class:`~honeycomb.errors.LeaseExpired` when it has ended."""
        info = self._session.native.lease_info(self.id, prefix_path(addr))
        pinned = info["pinned"] or info["remaining_ms"] == PINNED_MS
        return Lease(
            prefix=info["prefix"],
            duration=info["lease_ms"] / 1000,
            remaining=math.inf if pinned else info["remaining_ms"] / 1000,
            pinned=pinned,
        )

    def lease_duration(self, addr: str = "") -> float:
        """How long the prefix lives without renewal, in seconds."""
        return self.lease(addr).duration

    #: The paper's name for it (Table 1, getLeaseDuration).
    get_lease_duration = lease_duration

    # ------------------------------------------------------------------------------ structures

    def create_kv(self, addr: str, *, blocks: int = 1, exist_ok: bool = False) -> Kv:
        """Creates a key-value store with ``blocks`` blocks to begin with; it grows and shrinks by
        itself.

        With ``exist_ok`` opens it where it exists, whatever its size. Raises
        :class:`~honeycomb.errors.NotFound` without its prefix,
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
        """Creates a file with ``blocks`` blocks to begin with; it grows by itself. Otherwise as
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
        """Creates a queue of at most ``max_items`` items (maxQueueLength) and ``max_bytes`` bytes, 0
        for no bound; it grows and shrinks by itself. Otherwise as :meth:`create_kv`; one that exists
        keeps its bounds."""
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
        """Creates a structure of a custom kind, named by its name or its code (``0x80`` to ``0xEF``),
        which a memory server of the cluster has to serve (:meth:`Client.kinds`). What the kind makes
        of ``blocks``, ``max_items`` and ``max_bytes`` is its own business; 0 leaves it to
        the kind.

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
        """The structure of a custom kind at ``addr``; creates what is missing of it, its prefix
        included."""
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
        """A structure of a custom kind that exists; with ``kind``, only of that one. Raises as
        :meth:`open_kv`."""
        address = Address.parse(addr)
        if kind is None:
            return Custom(self, address)
        native = self._session.native.open_custom(
            self.id, address.path, address.name, kind_ref(kind)
        )
        return Custom(self, address, native)

    def kv(self, addr: str, *, blocks: int = 1) -> Kv:
        """The key-value store at ``addr``; creates what is missing of it, its prefix included."""
        return self._with_prefix(addr, lambda: self.create_kv(addr, blocks=blocks, exist_ok=True))

    def file(self, addr: str, *, blocks: int = 1) -> HoneyFile:
        """The file at ``addr``; creates what is missing of it, its prefix included."""
        return self._with_prefix(addr, lambda: self.create_file(addr, blocks=blocks, exist_ok=True))

    def queue(self, addr: str, *, max_items: int = 0, max_bytes: int = 0) -> Queue:
        """The queue at ``addr``; creates what is missing of it, its prefix included."""
        return self._with_prefix(
            addr,
            lambda: self.create_queue(
                addr, max_items=max_items, max_bytes=max_bytes, exist_ok=True
            ),
        )

    def open_queue(self, addr: str) -> Queue:
        """A queue that exists. Raises as :meth:`open_kv`."""
        return Queue(self, Address.parse(addr))

    def open_kv(self, addr: str) -> Kv:
        """A key-value store that exists. Raises :class:`~honeycomb.errors.NotFound`,
        :class:`~honeycomb.errors.WrongKind` or the reason why it is gone."""
        return Kv(self, Address.parse(addr))

    def open_file(self, addr: str) -> HoneyFile:
        """A file that exists. Raises as :meth:`open_kv`."""
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
        file and its prefix are created where they are missing."""
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
        raise errors.InvalidArgument(f"a structure is a 'kv', a 'file' or a 'queue', not {kind!r}")

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
        exist, with a store over ``blocks`` blocks to begin with, which grows by itself. The other
        parameters are those of :meth:`create_addr_prefix`. With ``persist`` (Pocket's PERSIST, for all of
        its objects) what it holds outlives the job, and is found by :meth:`load_bucket` of a later one
        of its name; ``close(flush_timeout=...)`` of the job waits until that is written. With ``exist_ok``
        opens it where it exists, with the options that it has. Raises the errors of
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
        return Bucket(self.create_kv(store_of(path), blocks=blocks, exist_ok=exist_ok))

    def bucket(self, name: str) -> Bucket:
        """A bucket that exists. Raises :class:`~honeycomb.errors.NotFound` where there is none, and
        :class:`~honeycomb.errors.LeaseExpired` when its lease has ended."""
        return Bucket(self.open_kv(store_of(_bucket_path(name))))

    def load_bucket(
        self, name: str, *, lease: float | None = None, pinned: bool = False, persist: bool = False
    ) -> Bucket:
        """Brings back a bucket that was created with ``persist``, with the objects that it had when it
        ended: of this job, or of an earlier one of its name. One that is still being written is waited
        for. The parameters are those of :meth:`create_addr_prefix`; with ``persist`` it outlives this
        job as well. Raises :class:`~honeycomb.errors.NotFound` where there is none, and what
        :meth:`load_addr_prefix` does."""
        path = _bucket_path(name)
        self.load_addr_prefix(path, lease=lease, pinned=pinned, persisted=True, persist=persist)
        return self.bucket(path)

    def buckets(self) -> list[str]:
        """The names of the job's buckets."""
        return buckets_of(self)

    def delete_bucket(self, name: str) -> None:
        """Removes a bucket with its objects, and the prefix with all that is in it; the memory is free
        at once. Raises :class:`~honeycomb.errors.NotFound` for what is no bucket, and removes
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
            # Levels that are there, or that another task was faster to make, are fine.
            with contextlib.suppress(errors.AlreadyExists):
                self.create_addr_prefix("/" + "/".join(levels[:depth]))
        return create()

    # ------------------------------------------------------------------------- other processes

    def handle(self, task: str | None = None) -> JobHandle:
        """A picklable way into the job for another process.

        ``task`` is the address of the prefix it will run for; ``None`` gives all that this object
        itself may do.
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
        """Deregisters the job if this object registered it, and closes its connections.
        Idempotent; a job that is gone already is fine. When the controller cannot be reached that is
        :class:`~honeycomb.errors.Unavailable`: the connections are closed, and the job's leases end it.

        Prefixes with ``persist`` are written after that, and this call hands them over: a cluster that was
        started goes on with them, and the last :meth:`Client.close` of an embedded one waits for them. With
        ``flush_timeout`` in seconds, ``None`` for as long as it takes, this call waits. If a block is
        unwritten by then, it raises :class:`~honeycomb.errors.DeadlineExceeded` with the progress: the flush
        goes on, and the job is closed. Blocks lost with a server are :class:`~honeycomb.errors.Removed`.
        """
        if self._session.closed:
            return
        try:
            if self._owned and self._made_in == fork_generation():
                self._session.native.deregister_job(self.id)
                if flush_timeout != 0:
                    _transfer.see_through(self._session, self.id, flush_timeout)
        except (errors.UnknownJob, errors.LeaseExpired):
            pass  # gone already, or begun anew by another process, which owns it now
        except errors.Unavailable as error:
            message = f"job {self.name} was not deregistered; its leases end it: {error}"
            raise errors.Unavailable(message) from error
        finally:
            for session in (*self._before, self._session):
                session.close()

    def _end_at_exit(self, patience: float) -> None:
        """Deregisters the job if this process holds it. A job with prefixes that flush is left to
        its leases."""
        if self._session.closed or self._made_in != fork_generation() or self._flushes:
            return
        with contextlib.suppress(errors.UnknownJob, errors.LeaseExpired):
            self._session.native.deregister_job(self.id, patience)

    def _open_native(self, address: Address, identity: int | None) -> Any:
        """The structure of the address. With an identity, the structure of that identity, or the error that
        ended it."""
        native = self._session.native
        if identity is None:
            return native.open(self.id, address.path, address.name)
        return native.open_same(self.id, address.path, address.name, identity)

    def _disconnect(self) -> None:
        """Closes its connections alone: its cluster ends the job."""
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
        raise errors.InvalidArgument(f"a bucket is a prefix below the root, not {name!r}")
    return path


# Structures that are unpickled share one attached job, and so its connections, for each handle.
_shared: weakref.WeakValueDictionary[JobHandle, Job] = weakref.WeakValueDictionary()


def _attached(handle: JobHandle) -> Job:
    job = _shared.get(handle)
    if job is None or job._session.closed:
        job = _shared[handle] = handle.attach()
    return job


def _restore(
    cls: Callable[[Job, Address, Any], N], handle: JobHandle, address: Address, identity: int
) -> N:
    """Opens a structure that was pickled: that one, and none that has its address since."""
    job = _attached(handle)
    return cls(job, address, job._open_native(address, identity))
