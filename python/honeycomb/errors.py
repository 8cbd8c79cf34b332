"""Exceptions, one class per cause.

Every status of the protocol (``protocol/messages.toml``) has a class of the same name here, and all
of them derive from :class:`HoneycombError`. If Python has an exception of the same meaning, the
class derives from that too, so ``except KeyError``, ``except TimeoutError`` or ``except
PermissionError`` work as everywhere else.

The node that detected the cause writes the message, which names the prefix, the limit or the peer. The
class determines how a program can react. If there is one obvious next step, ``hint`` states it, and a
traceback shows it after the message. Errors keep all their fields when they are pickled.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar


class HoneycombError(Exception):
    """Base of all errors that Honeycomb raises on purpose.

    A call with many keys raises the error of the first key that failed. :attr:`failures` then has the
    errors of all failed keys, and :attr:`results` the results of the others.
    """

    #: The error of each failed key or operation, by its index in the call. Empty for calls with a
    #: single key or operation.
    failures: Mapping[int, HoneycombError] = MappingProxyType({})
    #: The result of each key or operation, in order; ``None`` at the indexes in :attr:`failures`.
    results: Sequence[Any] = ()
    #: The next step, if there is one obvious step; otherwise empty.
    hint: str = ""
    #: How many items of a ``put_many`` were put before it failed.
    put: int = 0
    #: Data written to an :class:`~honeycomb.Appender` that is not known to be in the file.
    unwritten: bytes = b""

    @property
    def status(self) -> str:
        """The name of the protocol status, or of the class for errors that no peer sends."""
        return type(self).__name__

    def __str__(self) -> str:
        # KeyError would show the repr of its argument, and OSError an errno that does not exist here.
        return str(self.args[0]) if self.args else (type(self).__doc__ or self.status)


# ------------------------------------------------------------------------------------- the protocol


class ProtocolError(HoneycombError):
    """The two sides do not understand each other: a defect, or versions too far apart."""


class BadFrame(ProtocolError):
    """Bytes on a connection were not a well-formed frame. A defect; please report it."""


class UnsupportedVersion(ProtocolError):
    """The peer speaks another major version of the protocol. Install matching versions."""

    hint = "install the same version of Honeycomb on both sides"


class UnknownOpcode(ProtocolError):
    """The peer is older than this client, or a custom structure's kind has no such operation."""


class UnknownFlag(ProtocolError):
    """The peer is older than this client and lacks an option of the operation."""


class FrameTooLarge(ProtocolError):
    """A frame exceeds its limit; the message names both lengths."""


class HandshakeRequired(ProtocolError):
    """A request arrived before the handshake. A defect; please report it."""


class NotServedHere(ProtocolError):
    """The address belongs to another kind of node; connect to the controller's."""


# ---------------------------------------------------------------------------------------- identity


class Unauthenticated(HoneycombError):
    """The token is missing, malformed, forged or expired."""

    hint = "pass token=, or set HONEYCOMB_TOKEN to the token that the cluster was started with"


class PermissionDenied(HoneycombError, PermissionError):
    """The token, or the prefix's permissions, do not cover this operation."""


class GrantExpired(PermissionDenied):
    """The structure's grant has expired. The client opens the structure again by itself before it raises
    this error."""


class GrantRevoked(PermissionDenied):
    """The prefix's permissions changed while the structure was in use."""


# ----------------------------------------------------------------------------------------- routing


class RoutingError(HoneycombError):
    """The client could not locate the data before the deadline. It retries these errors by itself."""


class WrongEpoch(RoutingError):
    """The block has a later owner, or none, and the controller knew no reason."""


class UnknownBlock(RoutingError):
    """The server has no such block, and the controller knew no reason."""


class Moved(RoutingError):
    """The data was still being migrated when the deadline passed."""


class Resume(RoutingError):
    """A sequence of writes had a gap that could not be closed before the deadline."""


class WrongRange(RoutingError):
    """No block accepted ownership of the key or offset before the deadline."""


class OutcomeUnknown(HoneycombError):
    """The mutation may or may not have taken effect; the record of its outcome is gone.

    Read the data to find out before repeating the mutation.
    """

    hint = "read the data to find out whether it took effect before repeating the call"


# ---------------------------------------------------------------------------------------- capacity


class Busy(HoneycombError):
    """The server rejected the request as overloaded until the deadline passed. Try again later."""

    hint = "try again later, or with fewer calls at a time"


class OutOfMemory(HoneycombError, MemoryError):
    """No block is free; the message names how many blocks were requested and how many are free. Existing
    data is unchanged."""

    hint = "free something (job.tree() lists structures), or give the cluster more memory"


class BlockFull(HoneycombError):
    """The block that owns the key has no room for the entry and cannot be split, because the keys of
    one ``{tag}`` fill it. The message names the tag. Existing data is unchanged.
    """

    hint = "spread the keys over more {tags}, delete some, or use a cluster of larger blocks"


class ValueTooLarge(HoneycombError, ValueError):
    """A value or item exceeds the limit for blocks of this size, which the message names."""

    hint = "split it, keep it in a file, or use a cluster of larger blocks"


class KeyTooLarge(HoneycombError, ValueError):
    """A key exceeds its limit; the message names it."""


class LimitExceeded(HoneycombError):
    """A named limit was reached; the message names it."""


class QuotaExceeded(HoneycombError):
    """A prefix with its descendants, the job, or its tenant holds as many blocks as its quota permits;
    the message says which. Free some blocks, or have the quota raised."""

    hint = "free something (job.tree() lists structures), or have the quota raised: honeycomb quota"


class NotShared(HoneycombError):
    """The server could not share its memory with this client. Calls copy the bytes instead and do not
    raise this error."""


# ----------------------------------------------------------------------------------- names and data


class NotFound(HoneycombError, LookupError):
    """No prefix or structure has this address."""

    hint = "print(job.tree()) lists what exists; job.kv(), job.file() and job.queue() create it"


class KeyNotFound(HoneycombError, KeyError):
    """No entry has this key."""


class KeyExists(HoneycombError):
    """An entry with this key exists already, and the call requires that none does."""

    hint = "put() stores the value whether or not the key exists"


class CompareFailed(HoneycombError):
    """The entry does not have the value that compare-and-swap expected."""


class Sealed(HoneycombError):
    """The file was sealed; nothing more can be appended."""

    hint = "create another file; a sealed file can only be read"


class NotSealed(HoneycombError):
    """The file may still grow; only a sealed file can be mapped."""

    hint = "call seal() after the last append, or wait_until(sealed=True)"


class NotFlushed(HoneycombError):
    """The cluster could not stop, because data that must be flushed is not written yet. The message names
    the directories."""

    hint = "close() again when the store answers, or close(discard=True) to lose the unwritten data"


class AlreadyExists(HoneycombError):
    """The name is taken."""

    hint = 'open it, or pass exist_ok=True (a structure) or if_exists="open" (a job)'


class WrongKind(HoneycombError, TypeError):
    """The structure at this address is of another kind."""


class Cycle(HoneycombError, ValueError):
    """The edges would close a cycle in the job's hierarchy; the message names its members."""


class UnknownParent(HoneycombError, LookupError):
    """A named parent does not exist."""

    hint = "create the parent first, or the whole plan with create_hierarchy()"


class UnknownJob(HoneycombError, LookupError):
    """No such job is registered; it may have been deregistered."""

    hint = "client.jobs() lists the registered jobs"


class InvalidArgument(HoneycombError, ValueError):
    """A name, option or number is not allowed; the message says which and why."""


class QueueEmpty(HoneycombError, queue.Empty):
    """No item arrived within the call's timeout."""


class QueueFull(HoneycombError, queue.Full):
    """The queue was at its bound, and no room became free within the call's timeout. No items were put,
    or only the number in ``put``."""

    hint = "wait longer (timeout=None: without limit), or create the queue with larger bounds"


class QueueClosed(HoneycombError):
    """The queue was closed: nothing can be put, and every item has been taken."""

    hint = "a `for item in queue` loop ends here by itself"


class Refused(HoneycombError):
    """A custom structure refused the operation for a reason that its kind defines; ``code`` is the
    number of that reason."""

    #: The structure's number for the reason.
    code: int = 0


class NotYet(HoneycombError, TimeoutError):
    """The awaited condition did not occur within the call's timeout."""

    hint = "wait longer (timeout=None: without limit)"


class UnknownKind(HoneycombError, LookupError):
    """No live memory server serves structures of this custom kind."""

    hint = "client.kinds() lists the served kinds; start a server with this kind registered"


class Removed(NotFound):
    """The structure or prefix was removed by request."""

    hint = ""


class LeaseExpired(HoneycombError):
    """The prefix's lease ended and its memory was freed; the data is gone.

    The message names the prefix, its lease and how late the renewal was. If the job's own lease ended,
    :meth:`~honeycomb.Job.reopen` reopens the job. To avoid the error, keep the job open in a ``with``
    block, call :meth:`~honeycomb.Job.keep`, or request a longer lease.
    """

    hint = (
        "job.reopen() reopens a job whose own lease ended; hc.job(name, lease=60) requests a "
        "longer lease, and job.keep() renews prefixes"
    )


class DataLost(HoneycombError):
    """The memory server that held the data is lost; the message names the prefix and the server."""


class FlushUnavailable(HoneycombError):
    """The prefix cannot be flushed, because no memory server may write to disk or to a bucket."""

    hint = "start the memory servers with flush_root (HONEYCOMB_FLUSH_ROOT), a directory or bucket"


class Loading(HoneycombError):
    """The prefix is being loaded from a flush and cannot be opened before the load is complete."""

    hint = "try again later; again=True restarts a load that was not finished"


# -------------------------------------------------------------------------------- time and distance


class DeadlineExceeded(HoneycombError, TimeoutError):
    """The call did not finish before its deadline. For a mutation, the message gives the possible
    outcomes."""

    hint = "connect with a larger timeout= if the cluster is merely slow"


class Unavailable(HoneycombError, ConnectionError):
    """The peer could not be reached before the deadline."""

    hint = "check with `honeycomb status` that the cluster is running and the address is right"


class LogFailed(HoneycombError):
    """The controller cannot write its log, and makes no changes until it can."""

    hint = "the controller's disk is full or failing; open structures keep working meanwhile"


class Extents(ProtocolError):
    """A reply held a list of extents where a value was expected. A defect; please report it."""


class Notice(ProtocolError):
    """A notification of a change arrived where a reply was expected. A defect; please report it."""


class ExtentGone(ProtocolError):
    """An extent of a large value is gone, and no read or write of the value was retried. A defect; please
    report it."""


class Internal(HoneycombError):
    """A node found its own state wrong. A defect; please report it with the message."""


# ------------------------------------------------------------- raised in this process, never by peers


class Closed(HoneycombError, ValueError):
    """The client, job or structure was used after it had been closed."""


_BY_STATUS: dict[str, type[HoneycombError]] = {
    cls.__name__: cls
    for cls in (
        BadFrame, UnsupportedVersion, UnknownOpcode, UnknownFlag, FrameTooLarge, HandshakeRequired,
        NotServedHere, Unauthenticated, PermissionDenied, GrantExpired, GrantRevoked, WrongEpoch,
        UnknownBlock, Moved, Resume, OutcomeUnknown, WrongRange, Busy, OutOfMemory, BlockFull,
        ValueTooLarge, KeyTooLarge, LimitExceeded, QuotaExceeded, NotShared, NotFound, KeyNotFound,
        KeyExists, Sealed, NotSealed, NotFlushed, CompareFailed, AlreadyExists, WrongKind, Cycle,
        UnknownParent, LeaseExpired, DataLost, QueueEmpty, QueueFull, QueueClosed, FlushUnavailable,
        Loading, Refused, NotYet, UnknownKind, UnknownJob, InvalidArgument, Removed,
        DeadlineExceeded, Unavailable, LogFailed, Extents, Notice, ExtentGone, Internal,
    )
}  # fmt: skip


class UnknownStatus(ProtocolError):
    """The peer replied with a status that this version does not know; the message contains the status and
    the peer's text."""

    known: ClassVar[frozenset[str]] = frozenset(_BY_STATUS)


def with_hint(error: HoneycombError, hint: str) -> HoneycombError:
    """Replaces the hint of the error's class by another one."""
    error.hint = hint
    error.__notes__ = [f"hint: {hint}"]
    return error


def from_status(status_name: str, message: str) -> HoneycombError:
    """The exception for a status of the protocol. The native module calls this.

    ``status_name`` is a name of ``protocol/messages.toml``; an unknown name (from a newer peer) gives
    :class:`UnknownStatus`. ``message`` is the peer's text, at most 1024 bytes.
    """
    # The native module raises this status for closed listeners; no peer sends it.
    cls = Closed if status_name == "Closed" else _BY_STATUS.get(status_name)
    if cls is None:
        return UnknownStatus(f"{status_name}: {message}")
    error = cls(message)
    if cls.hint:
        error.add_note(f"hint: {cls.hint}")
    return error
