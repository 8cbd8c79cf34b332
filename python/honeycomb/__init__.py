"""Honeycomb: elastic, ephemeral memory shared by the tasks of a job.

::

    import honeycomb

    with honeycomb.connect() as hc, hc.job("wc") as job:
        counts = job.kv("counts")
        counts["honey"] = b"1"

Start with :func:`connect`, :class:`Job` and :mod:`honeycomb.mapreduce`. :mod:`honeycomb.aio` has the
same API for asyncio.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from honeycomb import errors
from honeycomb._batch import AtomicBatch, Batch, Result
from honeycomb._native import version as _version
from honeycomb._quota import Quota
from honeycomb._transfer import Progress
from honeycomb.bucket import Bucket
from honeycomb.cluster import Client, connect
from honeycomb.cost import Cost
from honeycomb.custom import Custom, Kind, Operation, Reply
from honeycomb.errors import HoneycombError
from honeycomb.file import Appender, HoneyFile
from honeycomb.flushed import Flush, Flushed, delete_flushed, open_flushed
from honeycomb.job import Job, JobHandle, Lease, Node, Renewal
from honeycomb.kv import Kv
from honeycomb.notices import Listener, Notification
from honeycomb.pool import BrokenWorkerPool, WorkerDied, WorkerPool
from honeycomb.queue import Queue, QueueCounts, Reservation
from honeycomb.tree import Tree
from honeycomb.view import FileView

if _TYPE_CHECKING:
    from honeycomb import aio

__version__ = _version()

__all__ = [
    "Appender",
    "AtomicBatch",
    "Batch",
    "BrokenWorkerPool",
    "Bucket",
    "Client",
    "Cost",
    "Custom",
    "FileView",
    "Flush",
    "Flushed",
    "HoneyFile",
    "HoneycombError",
    "Job",
    "JobHandle",
    "Kind",
    "Kv",
    "Lease",
    "Listener",
    "Node",
    "Notification",
    "Operation",
    "Progress",
    "Queue",
    "QueueCounts",
    "Quota",
    "Renewal",
    "Reply",
    "Reservation",
    "Result",
    "Tree",
    "WorkerDied",
    "WorkerPool",
    "aio",
    "connect",
    "delete_flushed",
    "errors",
    "open_flushed",
]


def __getattr__(name: str) -> object:
    if name == "aio":  # imported on first use: importing asyncio takes longer than all the rest
        import importlib

        return importlib.import_module("honeycomb.aio")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if not name.startswith("_"))})
