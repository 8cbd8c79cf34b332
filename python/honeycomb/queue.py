"""The queue: many producers, many consumers, first in, first out (paper, 5.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from honeycomb import _check, errors
from honeycomb._address import Address, format_bytes
from honeycomb._display import Facts, Remote, Shown
from honeycomb._native import NativeDelivery, NativeQueue, QueueCalls
from honeycomb._session import wrong_kind
from honeycomb.notices import Listener, kinds_of

if TYPE_CHECKING:
    from honeycomb.job import Job

__all__ = ["Queue", "QueueCounts", "Reservation"]

Item: TypeAlias = bytes | bytearray | memoryview

#: Limits of a reservation, in seconds: a millisecond and a day.
LEASE_MIN: Final = 0.001
LEASE_MAX: Final = 86_400.0
_DONE, _GIVE_BACK, _EXTEND = 0, 1, 2


@dataclass(frozen=True, slots=True)
class QueueCounts(Shown):
    """What a queue holds: exact when nobody puts or takes.

    ``items`` that are not taken for good (reserved ones included) and their ``bytes``, how many of
    them are ``reserved``, and whether the queue was ``closed``.
    """

    items: int
    bytes: int
    reserved: int
    closed: bool

    def _facts(self) -> Facts:
        yield "items", f"{self.items}, {self.reserved} of them reserved"
        yield "size", format_bytes(self.bytes)
        yield "closed", "yes" if self.closed else "no"


class Reservation:
    """An item that was reserved: it comes back to the queue unless it is acknowledged in time.

    As a context manager it acknowledges at the end of the block and gives the item back when the
    block raises. Pickled, another process can settle it in this one's stead; its time runs on.
    """

    __slots__ = ("_delivery", "_queue", "item")

    def __init__(self, queue: Queue, delivery: NativeDelivery) -> None:
        self._queue = queue
        self._delivery = delivery
        #: The item.
        self.item: bytes = delivery.item

    @property
    def deliveries(self) -> int:
        """How often the item has been given out, this time included."""
        return self._delivery.deliveries

    def ack(self) -> bool:
        """Takes the item for good. False when the time had passed: then somebody else has it, or
        had it."""
        return self._settle(_DONE)

    def give_back(self) -> bool:
        """Puts the item back, before all others. False when the time had passed."""
        return self._settle(_GIVE_BACK)

    def extend(self, seconds: float) -> bool:
        """Keeps the item for ``seconds`` from now on. False when the time had passed."""
        return self._settle(_EXTEND, _lease("seconds", seconds))

    def _settle(self, action: int, seconds: float = 0.0) -> bool:
        return self._queue._native().settle(action, [self._delivery], seconds)[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return _reservation, (self._queue, *self._delivery.state())

    def __enter__(self) -> bytes:
        return self.item

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None:
            self.ack()
        else:
            self.give_back()

    def __repr__(self) -> str:
        return f"<honeycomb.Reservation of {len(self.item)} bytes, delivery {self.deliveries}>"


class Queue(QueueCalls, Remote):
    """A queue in the job's memory: items of bytes, first in, first out.

    *Consistency*: linearizable; an item put after another was put is got after it. Every put and get
    takes effect once, also when the client had to repeat it. *Delivery*: an item that ``get``
    answered to a consumer that then dies is gone; ``reserve`` delivers at least once instead.
    *Bounds*: ``max_items`` (the paper's maxQueueLength) and ``max_bytes`` are never exceeded;
    reserved items count. *Durability*: class ``memory``; lost with its server
    (:class:`~honeycomb.errors.DataLost`) or its lease (:class:`~honeycomb.errors.LeaseExpired`).
    *Concurrency*: any number of threads, processes and tasks.

    Timeouts are seconds: ``None`` waits as long as it takes, 0 not at all. The server holds a call
    that waits and answers it when something happens; Ctrl-C ends the wait.
    """

    def __init__(self, job: Job, address: Address, native: NativeQueue | None = None) -> None:
        self._job = job
        self._address = address
        self._begin(native)

    def _open(self) -> NativeQueue:
        opened = self._job._open_native(self._address, self._identity)
        if not isinstance(opened, NativeQueue):
            raise wrong_kind(self.address, "a queue", opened)
        return opened

    @property
    def address(self) -> str:
        """Where it is: ``job/T4/T6:name``."""
        return f"{self._job.name}/{self._address}"

    @property
    def max_items(self) -> int:
        """The most items that it holds; 0 for no bound."""
        return self._native().bounds[0]

    @property
    def max_bytes(self) -> int:
        """The most bytes of items that it holds; 0 for no bound."""
        return self._native().bounds[1]

    @property
    def item_limit(self) -> int:
        """The largest item, in bytes: an eighth of a block, less its place in the index."""
        return self._native().item_limit

    # ------------------------------------------------------------------------------------ putting

    def put_many(self, items: Iterable[Item], timeout: float | None = None) -> int:
        """Puts items at the end, in order, with as few requests as it takes; returns how many.

        Items of one request (up to 56 KiB) have no others between them. Raises as :meth:`put`; the
        error's ``put`` then tells how many of the items were put.
        """
        timeout = _check.timeout(timeout)
        if isinstance(items, bytes | bytearray | memoryview | str):
            raise TypeError(f"items are several items, not one {type(items).__name__}; use put()")
        checked = [_check.data("items", item) for item in items]
        done, failure = self._native().put_many(checked, timeout)
        if failure is not None:
            if isinstance(failure, errors.HoneycombError):
                failure.put = done
                failure.add_note(f"{done} of {len(checked)} items were put before; `put` tells")
            raise failure
        return done

    # ------------------------------------------------------------------------------------- taking

    def _empty(self, timeout: float | None) -> errors.QueueEmpty:
        waited = f" within {timeout:g} s" if timeout else ""
        return errors.QueueEmpty(f"{self.address}: no item came{waited}")

    def get_many(self, n: int, timeout: float | None = None) -> list[bytes]:
        """Takes up to ``n`` of the first items (1 to 4096): what there is, once there is one, at
        most a MiB or one item. Waits as :meth:`get` and returns an empty list when nothing came."""
        return self._native().get(_count(n), _check.timeout(timeout))

    def reserve(
        self, n: int = 1, *, lease: float = 30.0, timeout: float | None = None
    ) -> list[Reservation]:
        """As :meth:`get_many`, but the items stay in the queue until they are acknowledged. One that
        is not within ``lease`` seconds goes to somebody else, before all others: each item is
        delivered at least once, and who is late learns so from :meth:`Reservation.ack`."""
        native = self._native()
        lease, timeout = _lease("lease", lease), _check.timeout(timeout)
        return [Reservation(self, one) for one in native.reserve(_count(n), lease, timeout)]

    def peek(self, n: int = 1) -> list[bytes]:
        """Up to ``n`` of the first items, left where they are; empty when there is none."""
        return self._native().peek(_count(n))

    def __iter__(self) -> Iterator[bytes]:
        """Takes items until the queue is closed and drained. A consumer that stops in the middle has
        fetched one item at a time: none is lost."""
        while True:
            try:
                item = self.get()
            except errors.QueueClosed:
                return
            yield item

    # ------------------------------------------------------------------------------------ the queue

    def __len__(self) -> int:
        return self.counts().items

    def __bool__(self) -> bool:
        return True  # a queue is something even when it is empty; asking costs a round trip

    def qsize(self) -> int:
        """How many items it holds, as ``queue.Queue`` names it: ``len()``."""
        return self.counts().items

    def empty(self) -> bool:
        """Whether there is no item to take now; reserved ones do not count."""
        counts = self.counts()
        return counts.items == counts.reserved

    def full(self) -> bool:
        """Whether it is at one of its bounds now; never so without bounds."""
        max_items, max_bytes = self._native().bounds
        if not (max_items or max_bytes):
            return False
        counts = self.counts()
        return 0 < max_items <= counts.items or 0 < max_bytes <= counts.bytes

    def counts(self) -> QueueCounts:
        """What it holds."""
        return QueueCounts(*self._native().counts())

    def close(self) -> None:
        """Ends the queue for good: nothing can be put any more, what is there can be taken, and
        consumers learn of the end after the last item. Closing twice is fine."""
        self._native().close()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called, by anybody."""
        return self.counts().closed

    def wait_until_closed(self, timeout: float | None = None) -> bool:
        """Waits until it is closed; whether it was within ``timeout`` seconds."""
        return self._native().wait_closed(_check.timeout(timeout))

    def subscribe(self, *ops: str) -> Listener:
        """Listens to changes (paper, Table 1): ``"data"`` (items came), ``"space"`` (items were
        taken) and ``"close"``; all of them without arguments."""
        kinds = kinds_of("queue", ops)
        return Listener(self.address, self._native().listen(kinds), ops)

    def __reduce__(self) -> tuple[Any, ...]:
        from honeycomb.job import _restore

        return _restore, (Queue, self._job._pickle_handle(), self._address, self._identity)

    def _facts(self) -> Facts:
        yield from self.counts()._facts()
        max_items, max_bytes = self._native().bounds
        bounds = [f"{max_items} items"] * (max_items > 0)
        bounds += [format_bytes(max_bytes)] * (max_bytes > 0)
        yield "bounds", " and ".join(bounds) or "none"

    def __repr__(self) -> str:
        return f"<honeycomb.Queue {self.address}>"


def _count(n: int) -> int:
    return _check.whole("n", n, 1, _check.ITEMS_MAX, unit="items at a time")


def _lease(name: str, seconds: float) -> float:
    """How long a reservation holds."""
    return _check.seconds(name, seconds, LEASE_MIN, LEASE_MAX)


def _reservation(queue: Queue, *state: Any) -> Reservation:
    """A reservation that was pickled."""
    return Reservation(queue, NativeDelivery(*state))
