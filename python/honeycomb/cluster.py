"""Finding a cluster, and the client that speaks to it."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self

from honeycomb import _address, _check, errors
from honeycomb._display import Facts, Remote
from honeycomb._info import JobInfo, Status
from honeycomb._local import EmbeddedCluster, Endpoint, running_cluster
from honeycomb._quota import Quota, quota_change
from honeycomb._session import Session, close_after, fork_generation
from honeycomb._settings import setting
from honeycomb.cost import Cost, cost_of, read_prices
from honeycomb.custom import Kind, kind_of
from honeycomb.job import Job

__all__ = ["Client", "connect"]

#: Below this many seconds is a timeout.
TIMEOUT_MAX: Final = 1e9


def connect(
    address: str | None = None,
    token: bytes | str | None = None,
    *,
    timeout: float = 10.0,
    memory: int | str | None = None,
    block_size: int | str | None = None,
) -> Client:
    """Connects to a cluster (paper, Table 1), the first of these that there is:

    1. ``address`` (``"host:port"``) with ``token``;
    2. the environment, ``HONEYCOMB_ADDRESS`` and ``HONEYCOMB_TOKEN`` (hex), or else ``address`` and
       ``token`` of the configuration file (``docs/operating.md``, Configuration);
    3. the cluster that ``honeycomb start`` runs for this user on this machine;
    4. an embedded cluster: a child process that lives until the last client of this process closes
       or the process ends. Its data is gone then, except for prefixes flushed before (:meth:`Client.close`).

    ``memory`` (of the server) and ``block_size`` (64 KiB to 1 GiB, a power of two) are bytes or
    sizes such as ``"64KiB"``. They describe an embedded cluster, so giving one skips 2 and 3. A
    process has one embedded cluster; asking for another with other sizes raises
    :class:`~honeycomb.errors.InvalidArgument`.

    ``token`` is bytes or hex; without one, that of the environment, of the configuration file, or of
    the local cluster at the same address (``localhost`` is ``127.0.0.1``) is taken. ``timeout`` is the deadline of each later call, in seconds.

    Raises :class:`~honeycomb.errors.Unavailable` when the cluster does not answer,
    :class:`~honeycomb.errors.Unauthenticated` when it refuses the token and
    :class:`~honeycomb.errors.PermissionDenied` when the cluster file is not safe to trust.
    """
    _checked(address, timeout)
    sized = memory is not None or block_size is not None
    if address is not None and sized:
        raise errors.InvalidArgument(
            "memory and block_size describe an embedded cluster; a cluster with an address has its own"
        )
    endpoint = None if sized else _find(address, token)
    if endpoint is not None:
        return Client(Session(endpoint.address, endpoint.token, timeout=timeout))
    embedded = EmbeddedCluster.acquire(
        None if memory is None else _address.size_bytes(memory, "memory"),
        None if block_size is None else _address.size_bytes(block_size, "block_size"),
    )
    session = Session(embedded.endpoint.address, embedded.endpoint.token, timeout=timeout)
    return Client(session, embedded)


def _checked(address: Any, timeout: float) -> None:
    if address is not None and not _check.text("address", address, "127.0.0.1:7470").strip():
        raise errors.InvalidArgument(
            "address is 'host:port', or None to look for a cluster; it is empty: is a variable not set?"
        )
    if not 0 < _check.seconds("timeout", timeout) < TIMEOUT_MAX:
        raise errors.InvalidArgument(
            f"timeout is a positive number of seconds (of each call), not {timeout}"
        )


def _find(address: str | None, token: bytes | str | None) -> Endpoint | None:
    """Steps 1 to 3 of :func:`connect`."""
    given = _token_bytes(token) or _token_bytes(setting("token"))
    address = address or setting("address")
    if address is None:
        return None if EmbeddedCluster.running() else running_cluster()
    address = address.removeprefix("honeycomb://").rstrip("/")
    if given is None:
        local = running_cluster()
        if local is None or _numeric(local.address) != _numeric(address):
            raise errors.Unauthenticated(
                f"no token for {address}: pass token=, or set HONEYCOMB_TOKEN (hex)"
            )
        given = local.token
    return Endpoint(address, given)


def _numeric(address: str) -> str:
    """The cluster file has numbers where people say ``localhost``."""
    host, colon, port = address.rpartition(":")
    return f"127.0.0.1{colon}{port}" if host.lower() == "localhost" else address


def _token_bytes(token: bytes | str | None) -> bytes | None:
    given: object = token
    if given is not None and not isinstance(given, bytes | str):
        raise TypeError(f"token is bytes or hexadecimal text, not {type(given).__name__}")
    if isinstance(token, str):
        try:
            return bytes.fromhex(token) or None
        except ValueError:
            raise errors.InvalidArgument("a token given as text is hexadecimal") from None
    return token or None


class Client(Remote):
    """A connection to a cluster: registers jobs and tells how the cluster is.

    Thread-safe. Closing it (or leaving its ``with`` block) closes the jobs it registered, and the
    embedded cluster when it was its last client. After a fork the child's copy connects anew under
    a session of its own; closing it there leaves the parent's jobs and cluster alone. Pickled, it is
    another client of the same cluster elsewhere; the pickle holds the token.
    """

    def __init__(self, session: Session, embedded: EmbeddedCluster | None = None) -> None:
        self._session = session
        self._jobs: set[Job] = set()
        self._owner = fork_generation()
        self._embedded = embedded
        self._release = weakref.finalize(self, _release, session, embedded, self._owner)
        try:
            _ = session.native  # greets the cluster: a wrong address or token is told here
        except BaseException:
            self._release()
            raise

    @property
    def address(self) -> str:
        """``host:port`` of the controller."""
        return self._session.address

    @property
    def token(self) -> bytes:
        """The cluster's token (or the narrower one that was given). A secret."""
        return self._session.token

    @property
    def embedded(self) -> bool:
        """Whether the cluster is a child of this process."""
        return self._embedded is not None

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
    ) -> Job:
        """Registers a job and returns it; its hierarchy is the root prefix alone.

        ``name`` is unique among registered jobs (at most 255 bytes; a random one when ``None``).
        ``lease`` is the default of its prefixes, in seconds (0.2 s to a week); ``None`` takes the cluster's, 10 s
        unless the cluster was started with another. ``quota_blocks`` is
        the most blocks it may hold, 0 for no quota. With ``keep`` all its leases are renewed in the
        background while it is open, by the renewal of the root (paper, 3.2).

        The job of a ``tenant`` is named ``TENANT/NAME``: so :meth:`attach` finds it, and so
        :attr:`Job.name` says it. The others are hints, as Pocket's: whether its data should be in memory
        (``latency_sensitive``), how many ``tasks`` will run at the same time, what it will hold at its
        peak (``capacity``: bytes, or a string such as ``"4GiB"``) and read and write in a second
        (``peak_throughput``, the same). 0 says nothing. What they let expect is in :meth:`jobs`.

        ``if_exists`` decides about a live job of that name: with ``"fail"`` it is
        :class:`~honeycomb.errors.AlreadyExists`, ``"open"`` opens it as it is (closing it then ends it
        only if this process holds it), and ``"replace"`` ends it with its data. A job belongs to the
        process that registered it; when that has ended on this machine, by a crash or otherwise,
        ``"fail"`` replaces the job as well, and ``"open"`` takes it over. Prefixes of such a job that flush
        at the end of their leases are flushed.
        """
        if if_exists not in ("fail", "open", "replace"):
            raise errors.InvalidArgument(
                f"if_exists is 'fail', 'open' or 'replace', not {if_exists!r}"
            )
        if name is None:
            name = f"job-{secrets.token_hex(4)}"
        else:
            _check.text("name", name, "wordcount")
        _check.whole("quota_blocks", quota_blocks, 0, unit="blocks")
        _check.whole("tasks", tasks, 0, 2**32 - 1, unit="tasks")
        if tenant is not None:
            _check.text("tenant", tenant, "acme")
        arguments = (
            name,
            tenant,
            _address.lease_ms(lease),
            quota_blocks,
            bool(latency_sensitive),
            tasks,
            _address.hint_bytes(capacity, "capacity"),
            _address.hint_bytes(peak_throughput, "peak_throughput"),
        )
        job_id, root, token, found = self._registered(*arguments, if_exists, True)
        if tenant is not None:
            name = f"{tenant}/{name}"
        session = Session(self.address, token, timeout=self._session.timeout)
        job = Job(
            session,
            job_id,
            name,
            root=root,
            owned=not found,
            keep=keep,
            client=self,
            register=lambda: self._registered(*arguments, "fail", True)[:3],
        )
        self._jobs.add(job)
        return job

    def _registered(self, *arguments: Any) -> tuple[int, int, bytes, bool]:
        try:
            return self._session.native.register_job(*arguments)
        except errors.AlreadyExists as error:
            raise errors.with_hint(
                error, 'open it with if_exists="open", or end it with if_exists="replace"'
            ) from None

    def _reopen(self, job: Job) -> tuple[int, int, bytes]:
        """Begins a job anew, or registers it again where it is gone."""
        try:
            there, _, _, _ = self._session.native.find_job(job.name)
            if there == job.id or job._register is None:
                return self._session.native.reopen_job(job.name)[:3]
        except errors.UnknownJob:
            if job._register is None:
                raise
        return job._register()

    def attach(self, name: str) -> Job:
        """A job that is registered already. Closing it does not deregister it, and its leases are
        not renewed unless :meth:`Job.keep` says so. Raises
        :class:`~honeycomb.errors.UnknownJob`."""
        _check.text("name", name, "wordcount")
        job_id, root, token, _ = self._session.native.find_job(name)
        session = Session(self.address, token, timeout=self._session.timeout)
        job = Job(session, job_id, name, root=root, owned=False, keep=False, client=self)
        self._jobs.add(job)
        return job

    def quota(self, *, tenant: str | None = None, job: str | None = None) -> Quota:
        """How many blocks all jobs of the ``tenant``, or the ``job``, may hold, and hold."""
        return Quota(*self._session.native.quota(*self._holder(tenant, job)))

    def set_quota(
        self,
        max_blocks: int | None = None,
        *,
        tenant: str | None = None,
        job: str | None = None,
        soft_blocks: int | None = None,
        weight: int | None = None,
    ) -> Quota:
        """Sets the most blocks that all jobs of the ``tenant``, or the ``job``, may hold; 0 for as
        many as there are. What is held already stays; nothing more is given until enough was freed.

        ``soft_blocks`` refuses nothing: what is in memory beyond it is the first to go below when
        memory is short, 0 for no such bound. ``weight`` (1 to 1,048,576) is what the share of memory
        counts for under a fair policy; a job of a tenant has its tenant's share. What is ``None``
        stays as it is.
        """
        change = quota_change(max_blocks, soft_blocks, weight)
        return Quota(*self._session.native.set_quota(*self._holder(tenant, job), *change))

    def _holder(self, tenant: str | None, job: str | None) -> tuple[int, str | None, None]:
        """Whose quota is meant: the number of the job, or the tenant; and no prefix."""
        if (tenant is None) == (job is None):
            raise errors.InvalidArgument("a quota is a tenant's or a job's: name one of them")
        if job is not None:
            job_id, _, _, _ = self._session.native.find_job(_check.text("job", job, "wordcount"))
            return job_id, None, None
        return 0, _check.text("tenant", tenant, "acme"), None

    def costs(
        self, *, tenant: str | None = None, prices: Mapping[str, float] | None = None
    ) -> list[Cost]:
        """What all jobs (of the ``tenant``) have used, and what that costs: those that ended first,
        as far as they are remembered. ``prices`` are as in :meth:`Job.cost`."""
        table = read_prices(prices)
        mine = f"{tenant}/" if tenant is not None else ""
        bills = self._session.native.bills(0)
        return [cost_of(bill, table) for bill in bills if bill["name"].startswith(mine)]

    def jobs(self) -> list[JobInfo]:
        """The registered jobs, in order of registration."""
        return self._session.native.list_jobs()

    def status(self) -> Status:
        """Servers and totals of the cluster. Used and resident bytes are as last reported by the
        servers, a quarter of a second ago at most; allocation is exact."""
        return self._session.native.status()

    def kinds(self) -> list[Kind]:
        """The custom kinds of structure that memory servers have announced, in order of code, each with
        the number of live servers that serve it. Files, queues and key-value stores every server
        serves."""
        return [kind_of(kind, servers) for kind, servers in self._session.native.kinds()]

    def close(self, *, discard: bool = False, wait: float | None = None) -> None:
        """Closes its jobs and connections. Idempotent. When jobs could not be deregistered, it closes the others
        and raises the first error.

        The last client of an embedded cluster ends the cluster, and all that is in it. Before that it waits
        until everything is written that persists (of jobs that were closed too) or, in a job that is
        open, has ``on_expiry=Flush(...)``. It waits for as long as blocks are written, and reports progress
        to the logger ``honeycomb`` and to a terminal. When flushes fail and nothing was written
        for ``wait`` seconds (30, or the setting ``stop_wait``), it raises
        :class:`~honeycomb.errors.NotFlushed`, which names the unwritten directories. The cluster keeps their
        data, and the call can be repeated. ``discard`` waits for nothing and loses all unwritten data. A
        process that ends without this call does the same at its end, and reports on standard error.

        The jobs of any other cluster go on flushing there after this call (:meth:`Job.close`).
        """
        if self._owner == fork_generation():
            embedded = self._embedded
            if embedded is not None and not self._session.closed and embedded.is_last_use():
                # The cluster ends these, and flushes more than the end of a job does.
                for job in self._jobs:
                    job._disconnect()
                embedded.finish(self._session, wait, discard)
            failed: list[errors.HoneycombError] = []
            while self._jobs:
                try:
                    self._jobs.pop().close()
                except errors.HoneycombError as error:
                    failed.append(error)
            ends = embedded is not None and self._release.alive
            self._release()
            if ends and embedded is not None and embedded.users == 0:
                embedded.await_end()
            if failed:
                self._release()
                if len(failed) > 1:
                    failed[0].add_note(f"so did the closing of {len(failed) - 1} more jobs")
                raise failed[0]
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        close_after(exc, self.close)

    def __reduce__(self) -> tuple[Any, ...]:
        session = self._session
        return _connected, (session.address, session.token, session.timeout)

    def _facts(self) -> Facts:
        yield "cluster", self.address
        status = self.status()
        alive = sum(server["alive"] for server in status["servers"])
        yield "servers", alive
        yield "jobs", status["jobs"]
        yield "blocks", f"{status['blocks']}, {status['free']} free"
        yield "used", _address.format_bytes(status["bytes_used"])

    def __repr__(self) -> str:
        state = "closed" if self._session.closed else "embedded" if self.embedded else "connected"
        return f"<honeycomb.Client {self.address} {state}>"


def _connected(address: str, token: bytes, timeout: float) -> Client:
    """A client that was pickled."""
    return Client(Session(address, token, timeout=timeout))


def _release(session: Session, embedded: EmbeddedCluster | None, owner: int) -> None:
    session.close()
    if embedded is not None and owner == fork_generation():
        embedded.release()
