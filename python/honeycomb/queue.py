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
    """The contents of a queue. The numbers are exact while no client puts or takes items.

    ``items`` counts the items in the queue, including reserved ones; ``bytes`` is their total size, and
    ``reserved`` the number of reserved items. ``closed`` is whether the queue is closed.
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
    """A reserved item. It returns to the queue unless it is acknowledged in time.

    As a context manager, it acknowledges the item at the end of the block, and gives the item back if the
    block raises. It can be pickled, so that another process acknowledges it or gives it back; pickling
    does not extend its lease.
    """

    __slots__ = ("_delivery", "_queue", "item")

    item: bytes
    """The item."""

    def __init__(self, queue: Queue, delivery: NativeDelivery) -> None:
        self._queue = queue
        self._delivery = delivery
        self.item = delivery.item

    @property
    def deliveries(self) -> int:
        """How often the item has been delivered, including this delivery."""
        return self._delivery.deliveries

    def ack(self) -> bool:
        """Acknowledges the item, which removes it from the queue permanently. Returns False if the
        reservation had expired: another consumer may then have received the item."""
        return self._settle(_DONE)

    def give_back(self) -> bool:
        """Returns the item to the front of the queue. Returns False if the reservation had expired."""
        return self._settle(_GIVE_BACK)

    def extend(self, seconds: float) -> bool:
        """Extends the reservation to ``seconds`` from now. Returns False if it had expired."""
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

    *Consistency*: linearizable. Items are taken in the order in which they were put, except an item that
    returned because its consumer had reserved it, or received it in pieces, and died. Every put and get
    takes effect once, even if the client has to repeat it. *Delivery*: if a consumer dies after ``get``
    has returned an item to it, the item is lost; ``reserve`` delivers each item at least once instead.
    *Bounds*: ``max_items`` (the paper's maxQueueLength) and ``max_bytes`` are never exceeded;
    reserved items count. *Durability*: class ``memory``; the items are lost with the queue's server
    (:class:`~honeycomb.errors.DataLost`) or its lease (:class:`~honeycomb.errors.LeaseExpired`).
    *Concurrency*: any number of threads, processes and tasks.

    Timeouts are in seconds: ``None`` waits without limit, 0 does not wait. The server holds a waiting
    request and replies when the queue changes, so waiting sends no further requests. Ctrl-C ends the
    wait.
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
        """Its address with the job's name: ``job/T4/T6:name``."""
        return f"{self._job.name}/{self._address}"

    @property
    def max_items(self) -> int:
        """The most items that the queue holds; 0 for no bound."""
        return self._native().bounds[0]

    @property
    def max_bytes(self) -> int:
        """The most bytes of items that the queue holds; 0 for no bound."""
        return self._native().bounds[1]

    @property
    def item_limit(self) -> int:
        """The largest item, in bytes, with blocks of this size. An item of more than an eighth of a block is
        sent in pieces; if its consumer dies before it has all of them, the item is delivered again.
        """
        return self._native().item_limit

    # ------------------------------------------------------------------------------------ putting

    def put_many(self, items: Iterable[Item], timeout: float | None = None) -> int:
        """Puts items at the end, in order, with as few requests as possible. Returns how many.

        Items of one request (up to 56 KiB) stay adjacent. Raises the errors of :meth:`put`; the
        error's ``put`` is the number of items that were put.
        """
        timeout = _check.timeout(timeout)
        if isinstance(items, bytes | bytearray | memoryview | str):
            raise TypeError(f"items are several items, not one {type(items).__name__}; use put()")
        checked = [_check.data("items", item) for item in items]
        done, failure = self._native().put_many(checked, timeout)
        if failure is not None:
            if isinstance(failure, errors.HoneycombError):
                failure.put = done
                failure.add_note(
                    f"{done} of {len(checked)} items were put before; `put` has the number"
                )
            raise failure
        return done

    # ------------------------------------------------------------------------------------- taking

    def _empty(self, timeout: float | None) -> errors.QueueEmpty:
        waited = f" within {timeout:g} s" if timeout else ""
        return errors.QueueEmpty(f"{self.address}: no item arrived{waited}")

    def get_many(self, n: int, timeout: float | None = None) -> list[bytes]:
        """Takes up to ``n`` of the first items (1 to 4096), at most 1 MiB or a single larger item. Waits
        as :meth:`get` for the first item, and does not wait for further ones. Returns an empty list if
        none arrived in time."""
        return self._native().get(_count(n), _check.timeout(timeout))

    def reserve(
        self, n: int = 1, *, lease: float = 30.0, timeout: float | None = None
    ) -> list[Reservation]:
        """As :meth:`get_many`, but the items stay in the queue until they are acknowledged. An item that
        is not acknowledged within ``lease`` seconds is delivered again, before all others, so each item is
        delivered at least once. :meth:`Reservation.ack` returns whether a consumer was in time."""
        native = self._native()
        lease, timeout = _lease("lease", lease), _check.timeout(timeout)
        return [Reservation(self, one) for one in native.reserve(_count(n), lease, timeout)]

    def peek(self, n: int = 1) -> list[bytes]:
        """Up to ``n`` of the first items, which stay in the queue; empty if there are none."""
        return self._native().peek(_count(n))

    def __iter__(self) -> Iterator[bytes]:
        """Takes items until the queue is closed and empty. Fetches one item at a time, so a consumer that
        stops in the middle loses none."""
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
        return True  # even when it is empty: finding out would cost a round trip

    def qsize(self) -> int:
        """The number of items, under the name that ``queue.Queue`` uses: ``len()``."""
        return self.counts().items

    def empty(self) -> bool:
        """Whether there is no item to take now. Reserved items do not count."""
        counts = self.counts()
        return counts.items == counts.reserved

    def full(self) -> bool:
        """Whether the queue is at one of its bounds now; False without bounds."""
        max_items, max_bytes = self._native().bounds
        if not (max_items or max_bytes):
            return False
        counts = self.counts()
        return 0 < max_items <= counts.items or 0 < max_bytes <= counts.bytes

    def counts(self) -> QueueCounts:
        """The numbers of items and bytes in the queue; see :class:`QueueCounts`."""
        return QueueCounts(*self._native().counts())

    def close(self) -> None:
        """Closes the queue permanently: no more items can be put, and the remaining items can still be
        taken. After the last item, consumers get :class:`~honeycomb.errors.QueueClosed`. Idempotent."""
        self._native().close()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called, by any client."""
        return self.counts().closed

    def wait_until_closed(self, timeout: float | None = None) -> bool:
        """Waits until the queue is closed. Returns whether it was within ``timeout`` seconds."""
        return self._native().wait_closed(_check.timeout(timeout))

    def subscribe(self, *ops: str) -> Listener:
        """Subscribes to changes (paper, Table 1): ``"data"`` (items were put), ``"space"`` (items were
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
    """The duration of a reservation, after a check of its range."""
    return _check.seconds(name, seconds, LEASE_MIN, LEASE_MAX)


def _reservation(queue: Queue, *state: Any) -> Reservation:
    """Restores a pickled reservation."""
    return Reservation(queue, NativeDelivery(*state))
