"""Finding a cluster, and the client for it."""

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
from honeycomb._options import JobOptions
from honeycomb._quota import Quota, quota_change
from honeycomb._session import Session, close_after, fork_generation
from honeycomb._settings import setting
from honeycomb.cost import Cost, price_text
from honeycomb.custom import Kind, kind_of
from honeycomb.job import Job

__all__ = ["Client", "connect"]

#: Timeouts are shorter than this, in seconds.
TIMEOUT_MAX: Final = 1e9


def connect(
    address: str | None = None,
    token: bytes | str | None = None,
    *,
    timeout: float = 10.0,
    memory: int | str | None = None,
    block_size: int | str | None = None,
) -> Client:
    """Connects to a cluster (paper, Table 1), the first of these that exists:

    1. ``address`` (``"host:port"``) with ``token``;
    2. the environment, ``HONEYCOMB_ADDRESS`` and ``HONEYCOMB_TOKEN`` (hex), or else ``address`` and
       ``token`` of the configuration file (``docs/operating.md``, Configuration);
    3. the cluster that ``honeycomb start`` runs for this user on this machine;
    4. an embedded cluster: a child process that runs until the last client of this process closes
       or the process ends. Its data is then gone, except for prefixes flushed before (:meth:`Client.close`).

    ``memory`` (of the server) and ``block_size`` (64 KiB to 1 GiB, a power of two) are bytes or
    sizes such as ``"64KiB"``. They describe an embedded cluster, so if one of them is given, steps 2 and
    3 are skipped. A process has one embedded cluster; requesting another with different sizes raises
    :class:`~honeycomb.errors.InvalidArgument`.

    ``token`` is bytes or hex. Without it, the token of the environment, of the configuration file, or of
    the local cluster at the same address (``localhost`` is ``127.0.0.1``) is used. ``timeout`` is the
    deadline of each later call, in seconds.

    Raises :class:`~honeycomb.errors.Unavailable` if the cluster does not reply,
    :class:`~honeycomb.errors.Unauthenticated` if it rejects the token, and
    :class:`~honeycomb.errors.PermissionDenied` if other users could read or write the cluster file.
    """
    _checked(address, timeout)
    sized = memory is not None or block_size is not None
    if address is not None and sized:
        raise errors.InvalidArgument(
            "memory and block_size describe an embedded cluster; leave them out with an address"
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
            "address is 'host:port', or None to find a cluster; it is empty: is a variable not set?"
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
    """The address with ``127.0.0.1`` for ``localhost``, as the cluster file has it."""
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
    """A connection to a cluster. It registers jobs and reports the status of the cluster.

    Thread-safe. Closing it (or leaving its ``with`` block) closes the jobs it registered, and stops the
    embedded cluster if this was its last client. After a fork, the child's copy connects again under
    a session of its own; closing it there does not affect the parent's jobs and cluster. When pickled, it
    becomes another client of the same cluster in the other process; the pickle contains the token.
    """

    def __init__(self, session: Session, embedded: EmbeddedCluster | None = None) -> None:
        self._session = session
        self._jobs: set[Job] = set()
        self._owner = fork_generation()
        self._embedded = embedded
        self._release = weakref.finalize(self, _release, session, embedded, self._owner)
        try:
            _ = session.native  # connects, so that a wrong address or token fails here
        except BaseException:
            self._release()
            raise

    @property
    def address(self) -> str:
        """``host:port`` of the controller."""
        return self._session.address

    @property
    def token(self) -> bytes:
        """The cluster's token, or the narrower token that was passed. A secret."""
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
        """Registers a job and returns it. Its hierarchy starts with only the root prefix.

        ``name`` is unique among registered jobs (at most 255 bytes; a random name if ``None``).
        ``lease`` is the default lease of its prefixes, in seconds (0.2 s to a week); ``None`` uses the
        cluster's default, 10 s unless the cluster was started with another. ``quota_blocks`` is the most
        blocks that the job may hold, 0 for no quota. With ``keep``, all its leases are renewed in the
        background while it is open, by renewing the root (paper, 3.2).

        The job of a ``tenant`` is named ``TENANT/NAME``: :attr:`Job.name` has this name, and
        :meth:`attach` requires it. The other parameters are hints, as in Pocket: whether the job's data
        should be in memory (``latency_sensitive``), how many ``tasks`` will run at the same time, how much
        data the job will hold at its peak (``capacity``: bytes, or a string such as ``"4GiB"``), and how
        much it will read and write per second (``peak_throughput``, likewise). 0 gives no hint.
        :meth:`jobs` shows the expectations derived from them.

        ``if_exists`` applies if a live job has that name. ``"fail"`` raises
        :class:`~honeycomb.errors.AlreadyExists`; ``"open"`` opens the job as it is (closing it then ends it
        only if this process holds it); ``"replace"`` ends the job and frees its data. A job belongs to the
        process that registered it. If that process has ended on this machine, by a crash or otherwise,
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
        options = JobOptions.encode(
            tenant=tenant,
            lease=lease,
            quota_blocks=quota_blocks,
            latency_sensitive=latency_sensitive,
            tasks=tasks,
            capacity=capacity,
            peak_throughput=peak_throughput,
        )
        job_id, root, token, found = self._registered(name, options, if_exists)
        session = Session(self.address, token, timeout=self._session.timeout)
        job = Job(
            session,
            job_id,
            name if tenant is None else f"{tenant}/{name}",
            root=root,
            owned=not found,
            keep=keep,
            client=self,
            register=lambda: self._registered(name, options, "fail")[:3],
        )
        self._jobs.add(job)
        return job

    def _registered(
        self, name: str, options: JobOptions, if_exists: str
    ) -> tuple[int, int, bytes, bool]:
        try:
            return self._session.native.register_job(name, options, if_exists)
        except errors.AlreadyExists as error:
            raise errors.with_hint(
                error, 'open it with if_exists="open", or end it with if_exists="replace"'
            ) from None

    def _reopen(self, job: Job) -> tuple[int, int, bytes]:
        """Reopens a job, or registers it again if it is gone."""
        try:
            there, _, _, _ = self._session.native.find_job(job.name)
            if there == job.id or job._register is None:
                return self._session.native.reopen_job(job.name)[:3]
        except errors.UnknownJob:
            if job._register is None:
                raise
        return job._register()

    def attach(self, name: str) -> Job:
        """Opens a job that is registered already. Closing it does not deregister it, and its leases are
        not renewed until :meth:`Job.keep` is called. Raises
        :class:`~honeycomb.errors.UnknownJob`."""
        _check.text("name", name, "wordcount")
        job_id, root, token, _ = self._session.native.find_job(name)
        session = Session(self.address, token, timeout=self._session.timeout)
        job = Job(session, job_id, name, root=root, owned=False, keep=False, client=self)
        self._jobs.add(job)
        return job

    def quota(self, *, tenant: str | None = None, job: str | None = None) -> Quota:
        """The quota of all jobs of the ``tenant``, or of the ``job``, and the blocks they hold."""
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
        """Sets the most blocks that all jobs of the ``tenant``, or the ``job``, may hold; 0 for no quota.
        Blocks above a smaller quota stay, but no further block is allocated until enough are freed.

        ``soft_blocks`` rejects no allocation: blocks in memory beyond it are the first to be demoted to a
        lower tier when memory is low; 0 for no such bound. ``weight`` (1 to 1,048,576) is the weight of the
        holder's share of memory under a fair policy; a job of a tenant has its tenant's share. A parameter
        that is ``None`` is not changed.
        """
        change = quota_change(max_blocks, soft_blocks, weight)
        return Quota(*self._session.native.set_quota(*self._holder(tenant, job), *change))

    def _holder(self, tenant: str | None, job: str | None) -> tuple[int, str | None, None]:
        """The holder of a quota: the number of the job, or the tenant; and no prefix."""
        if (tenant is None) == (job is None):
            raise errors.InvalidArgument(
                "a quota is a tenant's or a job's: pass exactly one of tenant= and job="
            )
        if job is not None:
            job_id, _, _, _ = self._session.native.find_job(_check.text("job", job, "wordcount"))
            return job_id, None, None
        return 0, _check.text("tenant", tenant, "acme"), None

    def costs(
        self, *, tenant: str | None = None, prices: Mapping[str, float] | None = None
    ) -> list[Cost]:
        """The resources that all jobs (of the ``tenant``) have used, and their cost. Jobs that have ended
        come first, as far as the controller still remembers them. ``prices`` are as in
        :meth:`Job.cost`."""
        mine = f"{tenant}/" if tenant is not None else ""
        costs = self._session.native.costs(0, price_text(prices))
        return [Cost(**cost) for cost in costs if cost["name"].startswith(mine)]

    def jobs(self) -> list[JobInfo]:
        """The registered jobs, in order of registration."""
        return self._session.native.list_jobs()

    def status(self) -> Status:
        """Servers and totals of the cluster. Used and resident bytes are the servers' last reports, at most
        a quarter of a second old; allocated bytes are exact."""
        return self._session.native.status()

    def kinds(self) -> list[Kind]:
        """The custom kinds of structure that memory servers have announced, in order of code, each with
        the number of live servers that serve it. Every server also serves files, queues and key-value
        stores."""
        return [kind_of(kind, servers) for kind, servers in self._session.native.kinds()]

    def close(self, *, discard: bool = False, wait: float | None = None) -> None:
        """Closes its jobs and connections. Idempotent. If some jobs cannot be deregistered, it closes the
        others and raises the first error.

        The last client of an embedded cluster stops the cluster, which frees all its data. Before that, it
        waits until all prefixes with ``persist`` (also of closed jobs) and all prefixes of open jobs with
        ``on_expiry=Flush(...)`` are written. It waits as long as blocks are being written, and reports
        progress to the logger ``honeycomb`` and to a terminal. If flushes fail and nothing is written
        for ``wait`` seconds (30, or the setting ``stop_wait``), it raises
        :class:`~honeycomb.errors.NotFlushed`, which names the unwritten directories. The cluster then
        retains their data, and the call can be repeated. ``discard`` does not wait and loses all unwritten
        data. A process that ends without this call does the same at its end, and reports on standard error.

        Any other cluster continues to flush the jobs' prefixes after this call (:meth:`Job.close`).
        """
        if self._owner == fork_generation():
            embedded = self._embedded
            if embedded is not None and not self._session.closed and embedded.is_last_use():
                # The cluster ends these jobs, and flushes more prefixes than deregistering them would.
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
                    failed[0].add_note(f"closing {len(failed) - 1} more jobs failed too")
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
    """Restores a pickled client."""
    return Client(Session(address, token, timeout=timeout))


def _release(session: Session, embedded: EmbeddedCluster | None, owner: int) -> None:
    session.close()
    if embedded is not None and owner == fork_generation():
        embedded.release()
