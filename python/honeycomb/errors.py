"""Exceptions, one class per cause.

Every status of the protocol (``protocol/messages.toml``) has a class of the same name here, and all
of them derive from :class:`HoneycombError`. Where Python has an exception of the same meaning the
class derives from that too, so ``except KeyError``, ``except TimeoutError`` or ``except
PermissionError`` work as everywhere else.

The message comes from whoever found the cause and names the prefix, the limit or the peer. The
class tells what the program can do about it, and ``hint`` says it where it is one thing; a traceback
shows it below the message. Errors survive pickling whole.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar


class HoneycombError(Exception):
    """Base of all errors that Honeycomb raises on purpose.

    A call about many keys raises the error of the first one that failed; :attr:`failures` then has
    all of them, and :attr:`results` what the others answered.
    """

    #: The error of each key or operation that failed, by its place in the call. Empty for calls
    #: about a single one.
    failures: Mapping[int, HoneycombError] = MappingProxyType({})
    #: What each answered, in order; ``None`` at the places of :attr:`failures`.
    results: Sequence[Any] = ()
    #: What to do next, where that is one thing; empty where it is not.
    hint: str = ""
    #: How many items of a ``put_many`` were put before it failed.
    put: int = 0
    #: What was written to an :class:`~honeycomb.Appender` and is not known to be in the file.
    unwritten: bytes = b""

    @property
    def status(self) -> str:
        """The name of the protocol status, or of the class for errors that never travel."""
        return type(self).__name__

    def __str__(self) -> str:
        # KeyError would show the repr of its argument and OSError an errno that there is not.
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
    """A request came before the handshake. A defect; please report it."""


class NotServedHere(ProtocolError):
    """The address belongs to another kind of node; connect to the controller's."""


# ---------------------------------------------------------------------------------------- identity


class Unauthenticated(HoneycombError):
    """The token is missing, malformed, forged or past its time."""

    hint = "pass token=, or set HONEYCOMB_TOKEN to the token that the cluster was started with"


class PermissionDenied(HoneycombError, PermissionError):
    """The token, or the prefix's permissions, do not cover this operation."""


class GrantExpired(PermissionDenied):
    """The structure's grant is past its time. The client opens it again by itself first."""


class GrantRevoked(PermissionDenied):
    """The prefix's permissions changed while the structure was in use."""


# ----------------------------------------------------------------------------------------- routing


class RoutingError(HoneycombError):
    """Where the data is could not be settled before the deadline; the client retries these itself."""


class WrongEpoch(RoutingError):
    """The block has a later owner, or none, and the controller knew no reason."""


class UnknownBlock(RoutingError):
    """The server has no such block, and the controller knew no reason."""


class Moved(RoutingError):
    """The data kept moving until the deadline."""


class Resume(RoutingError):
    """A sequence of writes had a gap that could not be closed before the deadline."""


class WrongRange(RoutingError):
    """No block would own the key or offset before the deadline."""


class OutcomeUnknown(HoneycombError):
    """The mutation may or may not have taken effect; the record that would tell is gone.

    Read the data to find out before repeating it.
    """

    hint = "read the data to find out whether it took effect before repeating the call"


# ---------------------------------------------------------------------------------------- capacity


class Busy(HoneycombError):
    """The server refused new work until the deadline passed. Try again later."""

    hint = "try again later, or with fewer calls at a time"


class OutOfMemory(HoneycombError, MemoryError):
    """No block is free; the message names what was asked and what is free. Data is unharmed."""

    hint = "free something (job.tree() shows what there is), or give the cluster more memory"


class BlockFull(HoneycombError):
    """The block that owns the key has no room for the entry, and cannot be divided: the keys of one
    ``{tag}`` fill it, which the message names. Data is unharmed.
    """

    hint = "spread the keys over more {tags}, delete some, or use a cluster of larger blocks"


class ValueTooLarge(HoneycombError, ValueError):
    """A value or append exceeds an eighth of a block; the message names the limit."""

    hint = "split it, keep it in a file, or use a cluster of larger blocks"


class KeyTooLarge(HoneycombError, ValueError):
    """A key exceeds its limit; the message names it."""


class LimitExceeded(HoneycombError):
    """A named limit was reached; the message names it."""


class QuotaExceeded(HoneycombError):
    """A prefix with all below it, the job, or its tenant holds as many blocks as it may; the message
    says which. Free some, or have the quota raised."""

    hint = (
        "free something (job.tree() shows what there is), or have the quota raised: honeycomb quota"
    )


class NotShared(HoneycombError):
    """Memory could not be handed to this client. Calls read the bytes instead; it is not raised."""


# ----------------------------------------------------------------------------------- names and data


class NotFound(HoneycombError, LookupError):
    """No prefix or structure has this address."""

    hint = "print(job.tree()) shows what there is; job.kv(), job.file() and job.queue() create it"


class KeyNotFound(HoneycombError, KeyError):
    """No entry has this key."""


class KeyExists(HoneycombError):
    """An entry has this key already, and the call wanted none."""

    hint = "put() stores it whether or not there is one"


class CompareFailed(HoneycombError):
    """The entry is not what compare-and-swap expected."""


class Sealed(HoneycombError):
    """The file was sealed; nothing can be appended any more."""

    hint = "create another file; a sealed one can only be read"


class NotSealed(HoneycombError):
    """The file may still grow; only a sealed one can be mapped."""

    hint = "call seal() when nothing more is to be appended, or wait_until(sealed=True)"


class NotFlushed(HoneycombError):
    """A cluster was to end, and data to be flushed is not written yet; the message names the directories."""

    hint = "close() again when the store answers, or close(discard=True) to lose the unwritten data"


class AlreadyExists(HoneycombError):
    """The name is taken."""

    hint = 'open it, or pass exist_ok=True (a structure) or if_exists="open" (a job)'


class WrongKind(HoneycombError, TypeError):
    """The structure at this address is of another kind."""


class Cycle(HoneycombError, ValueError):
    """The edges would close a cycle in the job's hierarchy; the message names its members."""


class UnknownParent(HoneycombError, LookupError):
    """A parent that was named does not exist."""

    hint = "create the parent first, or the whole plan with create_hierarchy()"


class UnknownJob(HoneycombError, LookupError):
    """No such job is registered; it may have been deregistered."""

    hint = "client.jobs() lists the registered jobs"


class InvalidArgument(HoneycombError, ValueError):
    """A name, option or number is outside what is allowed; the message says which and why."""


class QueueEmpty(HoneycombError, queue.Empty):
    """No item came in the time that the call was willing to wait."""


class QueueFull(HoneycombError, queue.Full):
    """The queue was at its bound, and no room came in the time that the call was willing to wait.
    Nothing was put, or as much as ``put`` says."""

    hint = "wait longer (timeout=None: as long as it takes), or create the queue with larger bounds"


class QueueClosed(HoneycombError):
    """The queue was closed: nothing can be put, and every item has been taken."""

    hint = "a `for item in queue` loop ends here by itself"


class Refused(HoneycombError):
    """A custom structure refused the operation for a reason of its own; ``code`` is its number for
    that reason."""

    #: What the structure calls the reason.
    code: int = 0


class NotYet(HoneycombError, TimeoutError):
    """What the call waited for has not happened in the time that it was willing to wait."""

    hint = "wait longer (timeout=None: as long as it takes)"


class UnknownKind(HoneycombError, LookupError):
    """No live memory server serves structures of this custom kind."""

    hint = "client.kinds() lists those that are served; start a server that has this one registered"


class Removed(NotFound):
    """The structure or prefix was removed by request."""

    hint = ""


class LeaseExpired(HoneycombError):
    """The prefix's lease ended and its memory was given back; the data is gone.

    The message names the prefix, its lease and how late the renewal was. When it was the job's own,
    :meth:`~honeycomb.Job.reopen` begins the job anew. Keep the job open in a ``with`` block, call
    :meth:`~honeycomb.Job.keep`, or ask for a longer lease.
    """

    hint = (
        "job.reopen() begins a job anew whose own lease ended; hc.job(name, lease=60) asks for a longer "
        "one, and job.keep() renews prefixes"
    )


class DataLost(HoneycombError):
    """The data was on a memory server that is gone; the message names the prefix and the server."""


class FlushUnavailable(HoneycombError):
    """The prefix was to be flushed, and no memory server may write to disk or to a bucket."""

    hint = "start the memory servers with flush_root (HONEYCOMB_FLUSH_ROOT), a directory or bucket"


class Loading(HoneycombError):
    """The prefix is being loaded from a flush and cannot be opened before it is whole."""

    hint = "try again later; a load that was not finished is begun anew with again=True"


# -------------------------------------------------------------------------------- time and distance


class DeadlineExceeded(HoneycombError, TimeoutError):
    """The call did not finish in its time; for a mutation the message says what may be true now."""

    hint = "connect with a larger timeout= if the cluster is merely slow"


class Unavailable(HoneycombError, ConnectionError):
    """The peer could not be reached before the deadline."""

    hint = "is the cluster running and the address right? `honeycomb status` tells"


class LogFailed(HoneycombError):
    """The controller cannot write its log and changes nothing until it can."""

    hint = "its disk is full or failing; what is open goes on meanwhile"


class Extents(ProtocolError):
    """A value that is a list of extents came where one was due. A defect; please report it."""


class Notice(ProtocolError):
    """A notice of a change came where an answer was due. A defect; please report it."""


class ExtentGone(ProtocolError):
    """A piece of a large value is gone, and nobody read or wrote the value again. A defect; please
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
        KeyExists, Sealed, NotSealed, NotFlushed, CompareFailed, AlreadyExists, WrongKind, Cycle, UnknownParent, LeaseExpired,
        DataLost, QueueEmpty, QueueFull, QueueClosed, FlushUnavailable, Loading, Refused, NotYet, UnknownKind,
        UnknownJob, InvalidArgument, Removed, DeadlineExceeded, Unavailable, LogFailed, Extents,
        Notice, ExtentGone, Internal,
    )
}  # fmt: skip


class UnknownStatus(ProtocolError):
    """The peer answered with a status that this version does not know; the message holds both."""

    known: ClassVar[frozenset[str]] = frozenset(_BY_STATUS)


def with_hint(error: HoneycombError, hint: str) -> HoneycombError:
    """The error with another hint than its class has."""
    error.hint = hint
    error.__notes__ = [f"hint: {hint}"]
    return error


def from_status(status_name: str, message: str) -> HoneycombError:
    """The exception for a status of the protocol. The native module calls this.

    ``status_name`` is a name of ``protocol/messages.toml``; one that is not known here (a newer
    peer) gives :class:`UnknownStatus`. ``message`` is what the peer said, at most 1024 bytes.
    """
    # The native half closes listeners, which no peer ever tells of.
    cls = Closed if status_name == "Closed" else _BY_STATUS.get(status_name)
    if cls is None:
        return UnknownStatus(f"{status_name}: {message}")
    error = cls(message)
    if cls.hint:
        error.add_note(f"hint: {cls.hint}")
    return error
