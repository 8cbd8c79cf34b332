"""The twins of jobs and clients."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, overload

from honeycomb import errors
from honeycomb._display import Facts, Remote
from honeycomb._info import JobInfo, Status
from honeycomb._losses import Callback
from honeycomb._quota import Quota
from honeycomb._transfer import Progress
from honeycomb.aio._bucket import AsyncBucket
from honeycomb.aio._custom import AsyncCustom
from honeycomb.aio._queue import AsyncQueue
from honeycomb.aio._run import Opening, run, twin_of
from honeycomb.aio._structures import AsyncFile, AsyncKv, AsyncStream, streaming
from honeycomb.cluster import Client
from honeycomb.cost import Cost
from honeycomb.custom import Kind
from honeycomb.file import HoneyFile
from honeycomb.flushed import Flush
from honeycomb.job import Job, JobHandle, Lease, Node, Renewal
from honeycomb.kv import Kv
from honeycomb.queue import Queue
from honeycomb.tree import Tree


@twin_of(Job)
class AsyncJob(Remote):
    """The twin of :class:`honeycomb.Job`, used in ``async with``; ``blocking`` is the blocking job.
    Made by :meth:`AsyncClient.job`, :meth:`AsyncClient.attach` or :func:`honeycomb.aio.attach`."""

    def __init__(self, blocking: Job) -> None:
        self.blocking = blocking
        self._queues: weakref.WeakSet[AsyncQueue] = weakref.WeakSet()

    @property
    def id(self) -> int:
        """Its number."""
        return self.blocking.id

    @property
    def name(self) -> str:
        """Its name."""
        return self.blocking.name

    @property
    def root(self) -> int:
        """The number of its root prefix."""
        return self.blocking.root

    @property
    def task(self) -> str:
        """The path of the task that the job is attached as; empty for none."""
        return self.blocking.task

    @property
    def token(self) -> bytes:
        return self.blocking.token

    # ------------------------------------------------------------------------------- hierarchy

    async def create_addr_prefix(
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
        return await run(
            lambda: self.blocking.create_addr_prefix(
                addr,
                parents,
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
            )
        )

    async def create_hierarchy(
        self, dag: Mapping[str, str | Iterable[str]] | Iterable[Node]
    ) -> dict[str, int]:
        plan = dag if isinstance(dag, Mapping) else list(dag)
        return await run(lambda: self.blocking.create_hierarchy(plan))

    async def quota(self, addr: str | None = None) -> Quota:
        return await run(lambda: self.blocking.quota(addr))

    async def cost(self, prices: Mapping[str, float] | None = None) -> Cost:
        return await run(lambda: self.blocking.cost(prices))

    async def set_quota(
        self, addr: str, max_blocks: int | None = None, *, soft_blocks: int | None = None
    ) -> Quota:
        return await run(lambda: self.blocking.set_quota(addr, max_blocks, soft_blocks=soft_blocks))

    async def remove_prefix(self, addr: str) -> None:
        await run(lambda: self.blocking.remove_prefix(addr))

    async def flush_addr_prefix(
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
        return await run(
            lambda: self.blocking.flush_addr_prefix(
                addr,
                external_path,
                format=format,
                subtree=subtree,
                barrier=barrier,
                progress=progress,
                timeout=timeout,
            )
        )

    async def load_addr_prefix(
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
        return await run(
            lambda: self.blocking.load_addr_prefix(
                addr,
                external_path,
                lease=lease,
                pinned=pinned,
                again=again,
                persisted=persisted,
                persist=persist,
                format=format,
                subtree=subtree,
                progress=progress,
            )
        )

    async def declare_readers(
        self, addr: str, readers: str | Iterable[str], *, replace: bool = False
    ) -> int:
        return await run(lambda: self.blocking.declare_readers(addr, readers, replace=replace))

    async def commit(self, addr: str | None = None) -> int:
        return await run(lambda: self.blocking.commit(addr))

    async def set_permissions(
        self, addr: str, owner_verbs: str = "rw", job_verbs: str = "r"
    ) -> None:
        await run(lambda: self.blocking.set_permissions(addr, owner_verbs, job_verbs))

    async def tree(self) -> Tree:
        return await run(self.blocking.tree)

    # ---------------------------------------------------------------------------------- leases

    async def renew(self, *addrs: str) -> list[Renewal]:
        return await run(lambda: self.blocking.renew(*addrs))

    async def keep(self, *addrs: str) -> None:
        await run(lambda: self.blocking.keep(*addrs))

    def on_lost_leases(self, callback: Callback) -> None:
        self.blocking.on_lost_leases(callback)

    async def reopen(self) -> None:
        await run(self.blocking.reopen)

    async def release(self, *addrs: str) -> None:
        await run(lambda: self.blocking.release(*addrs))

    async def lease(self, addr: str = "") -> Lease:
        return await run(lambda: self.blocking.lease(addr))

    async def lease_duration(self, addr: str = "") -> float:
        return await run(lambda: self.blocking.lease_duration(addr))

    #: The paper's name for it (Table 1, getLeaseDuration).
    get_lease_duration = lease_duration

    # ------------------------------------------------------------------------------ structures

    def _queue(self, queue: Queue) -> AsyncQueue:
        twin = AsyncQueue(queue)
        self._queues.add(twin)
        return twin

    async def create_kv(self, addr: str, *, blocks: int = 1, exist_ok: bool = False) -> AsyncKv:
        return AsyncKv(
            await run(lambda: self.blocking.create_kv(addr, blocks=blocks, exist_ok=exist_ok))
        )

    async def create_file(self, addr: str, *, blocks: int = 1, exist_ok: bool = False) -> AsyncFile:
        return AsyncFile(
            await run(lambda: self.blocking.create_file(addr, blocks=blocks, exist_ok=exist_ok))
        )

    async def create_queue(
        self, addr: str, *, max_items: int = 0, max_bytes: int = 0, exist_ok: bool = False
    ) -> AsyncQueue:
        return self._queue(
            await run(
                lambda: self.blocking.create_queue(
                    addr, max_items=max_items, max_bytes=max_bytes, exist_ok=exist_ok
                )
            )
        )

    async def create_custom(
        self,
        addr: str,
        kind: int | str,
        *,
        blocks: int = 1,
        max_items: int = 0,
        max_bytes: int = 0,
        exist_ok: bool = False,
    ) -> AsyncCustom:
        return AsyncCustom(
            await run(
                lambda: self.blocking.create_custom(
                    addr,
                    kind,
                    blocks=blocks,
                    max_items=max_items,
                    max_bytes=max_bytes,
                    exist_ok=exist_ok,
                )
            )
        )

    async def custom(
        self,
        addr: str,
        kind: int | str,
        *,
        blocks: int = 1,
        max_items: int = 0,
        max_bytes: int = 0,
    ) -> AsyncCustom:
        return AsyncCustom(
            await run(
                lambda: self.blocking.custom(
                    addr,
                    kind,
                    blocks=blocks,
                    max_items=max_items,
                    max_bytes=max_bytes,
                )
            )
        )

    async def open_custom(self, addr: str, kind: int | str | None = None) -> AsyncCustom:
        return AsyncCustom(await run(lambda: self.blocking.open_custom(addr, kind)))

    async def kv(self, addr: str, *, blocks: int = 1) -> AsyncKv:
        return AsyncKv(await run(lambda: self.blocking.kv(addr, blocks=blocks)))

    async def file(self, addr: str, *, blocks: int = 1) -> AsyncFile:
        return AsyncFile(await run(lambda: self.blocking.file(addr, blocks=blocks)))

    async def queue(self, addr: str, *, max_items: int = 0, max_bytes: int = 0) -> AsyncQueue:
        return self._queue(
            await run(lambda: self.blocking.queue(addr, max_items=max_items, max_bytes=max_bytes))
        )

    async def open_queue(self, addr: str) -> AsyncQueue:
        return self._queue(await run(lambda: self.blocking.open_queue(addr)))

    async def open_kv(self, addr: str) -> AsyncKv:
        return AsyncKv(await run(lambda: self.blocking.open_kv(addr)))

    async def open_file(self, addr: str) -> AsyncFile:
        return AsyncFile(await run(lambda: self.blocking.open_file(addr)))

    @overload
    def open(self, addr: str, mode: Literal["rb", "ab"] = "rb") -> Opening[AsyncStream[bytes]]: ...
    @overload
    def open(self, addr: str, mode: Literal["r", "a"]) -> Opening[AsyncStream[str]]: ...
    @overload
    def open(self, addr: str, mode: str) -> Opening[AsyncStream[Any]]: ...
    def open(self, addr: str, mode: str = "rb") -> Opening[AsyncStream[Any]]:
        return streaming(lambda: self.blocking.open(addr, mode))

    @overload
    async def init_data_structure(self, addr: str, kind: Literal["kv"]) -> AsyncKv: ...
    @overload
    async def init_data_structure(self, addr: str, kind: Literal["file"]) -> AsyncFile: ...
    @overload
    async def init_data_structure(self, addr: str, kind: Literal["queue"]) -> AsyncQueue: ...
    async def init_data_structure(
        self, addr: str, kind: Literal["kv", "file", "queue"]
    ) -> AsyncKv | AsyncFile | AsyncQueue:
        init: Any = self.blocking.init_data_structure
        made: Kv | HoneyFile | Queue = await run(lambda: init(addr, kind))
        if isinstance(made, Kv):
            return AsyncKv(made)
        return AsyncFile(made) if isinstance(made, HoneyFile) else self._queue(made)

    async def create_bucket(
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
    ) -> AsyncBucket:
        return AsyncBucket(
            await run(
                lambda: self.blocking.create_bucket(
                    name,
                    lease=lease,
                    pinned=pinned,
                    on_expiry=on_expiry,
                    max_blocks=max_blocks,
                    persist=persist,
                    blocks=blocks,
                    exist_ok=exist_ok,
                )
            )
        )

    async def bucket(self, name: str) -> AsyncBucket:
        return AsyncBucket(await run(lambda: self.blocking.bucket(name)))

    async def load_bucket(
        self, name: str, *, lease: float | None = None, pinned: bool = False, persist: bool = False
    ) -> AsyncBucket:
        return AsyncBucket(
            await run(
                lambda: self.blocking.load_bucket(name, lease=lease, pinned=pinned, persist=persist)
            )
        )

    async def buckets(self) -> list[str]:
        return await run(self.blocking.buckets)

    async def delete_bucket(self, name: str) -> None:
        await run(lambda: self.blocking.delete_bucket(name))

    async def remove(self, addr: str) -> None:
        await run(lambda: self.blocking.remove(addr))

    # ------------------------------------------------------------------------- other processes

    async def handle(self, task: str | None = None) -> JobHandle:
        return await run(lambda: self.blocking.handle(task))

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncJob, (self.blocking,)

    # --------------------------------------------------------------------------------- the end

    async def close(self, flush_timeout: float | None = 0) -> None:
        try:
            if not self.blocking._owned:  # otherwise the queues end with the job
                await self._give_back()
        finally:
            await run(lambda: self.blocking.close(flush_timeout))

    async def _give_back(self) -> None:
        if not self.blocking._session.closed:
            for queue in list(self._queues):
                await queue._give_back()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except errors.HoneycombError:
            # An error of the block takes precedence over an error of closing.
            if error is None:
                raise

    def _facts(self) -> Facts:
        return self.blocking._facts()

    def __repr__(self) -> str:
        return repr(self.blocking).replace("Job", "aio.AsyncJob", 1)


@twin_of(Client)
class AsyncClient(Remote):
    """The twin of :class:`honeycomb.Client`, used in ``async with``; ``blocking`` is the blocking client.
    Made by :func:`honeycomb.aio.connect`."""

    def __init__(self, blocking: Client) -> None:
        self.blocking = blocking
        self._jobs: weakref.WeakSet[AsyncJob] = weakref.WeakSet()

    @property
    def address(self) -> str:
        return self.blocking.address

    @property
    def token(self) -> bytes:
        return self.blocking.token

    @property
    def embedded(self) -> bool:
        return self.blocking.embedded

    def job(
        self,
        name: str | None = None,
        *,
        lease: float | None = None,
        quota_blocks: int = 0,
        tenant: str | None = None,
        latency_sensitive: bool = True,
        tasks: int = 0,
        capacity: int | str = 0,
        peak_throughput: int | str = 0,
        keep: bool = True,
        if_exists: Literal["fail", "open", "replace"] = "fail",
    ) -> Opening[AsyncJob]:
        async def register() -> AsyncJob:
            job = await run(
                lambda: self.blocking.job(
                    name,
                    tenant=tenant,
                    lease=lease,
                    quota_blocks=quota_blocks,
                    latency_sensitive=latency_sensitive,
                    tasks=tasks,
                    capacity=capacity,
                    peak_throughput=peak_throughput,
                    keep=keep,
                    if_exists=if_exists,
                ),
                late=Job.close,
            )
            return self._job(job)

        return Opening(register())

    def attach(self, name: str) -> Opening[AsyncJob]:
        async def find() -> AsyncJob:
            return self._job(await run(lambda: self.blocking.attach(name), late=Job.close))

        return Opening(find())

    def _job(self, job: Job) -> AsyncJob:
        twin = AsyncJob(job)
        self._jobs.add(twin)
        return twin

    async def quota(self, *, tenant: str | None = None, job: str | None = None) -> Quota:
        return await run(lambda: self.blocking.quota(tenant=tenant, job=job))

    async def set_quota(
        self,
        max_blocks: int | None = None,
        *,
        tenant: str | None = None,
        job: str | None = None,
        soft_blocks: int | None = None,
        weight: int | None = None,
    ) -> Quota:
        return await run(
            lambda: self.blocking.set_quota(
                max_blocks, tenant=tenant, job=job, soft_blocks=soft_blocks, weight=weight
            )
        )

    async def costs(
        self, *, tenant: str | None = None, prices: Mapping[str, float] | None = None
    ) -> list[Cost]:
        return await run(lambda: self.blocking.costs(tenant=tenant, prices=prices))

    async def jobs(self) -> list[JobInfo]:
        return await run(self.blocking.jobs)

    async def status(self) -> Status:
        return await run(self.blocking.status)

    async def kinds(self) -> list[Kind]:
        return await run(self.blocking.kinds)

    async def close(self, *, discard: bool = False, wait: float | None = None) -> None:
        try:
            for job in list(self._jobs):
                if not job.blocking._owned:
                    await job._give_back()
        finally:
            await run(lambda: self.blocking.close(discard=discard, wait=wait))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except errors.HoneycombError:
            # An error of the block takes precedence over an error of closing.
            if error is None:
                raise

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncClient, (self.blocking,)

    def _facts(self) -> Facts:
        return self.blocking._facts()

    def __repr__(self) -> str:
        return repr(self.blocking).replace("Client", "aio.AsyncClient", 1)
