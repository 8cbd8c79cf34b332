"""The address hierarchy of a MapReduce job.

    job ─┬─ map-0 ─┐
         ├─ map-1 ─┼─ shuffle ─┬─ reduce-0
         └─ ...   ─┘           └─ ...

``shuffle`` has all map tasks as parents (and the root, which gives it a short address), and each
``shuffle/reduce-j`` has ``shuffle`` as its parent: M + R edges, instead of M x R with an edge for every
pair of tasks. The paper calls a layer that represents the exchange, not a task, custom isolation
granularity (3.1). It simplifies the rest:

* *Placement.* ``shuffle:part-j`` is the file of reducer j, to which all map tasks append; so
  ``shuffle`` gives the job's tasks ``rw``, the only prefix that does. ``shuffle/reduce-j:out`` is a
  reducer's output, in its own prefix.
* *Leases.* A running map task renews itself and its descendants: the shuffle and all reducers. A
  running reducer renews itself and its direct parent, the shuffle. The driver renews only ``shuffle``,
  and by the renewal rule (3.2) also its parents, the map tasks, and its descendants, reducers that wait
  or are done: one message, for any number of tasks.
* *Freeing.* ``shuffle:part-j`` is freed as soon as reducer j has committed.
"""

from __future__ import annotations

from typing import Final

from honeycomb.errors import InvalidArgument
from honeycomb.job import Job, JobHandle

SHUFFLE: Final = "shuffle"
#: Most map tasks: a prefix has at most 4096 parents, and the shuffle has the root besides them.
MAPS_MAX: Final = 4095
#: Most reduce tasks: the structures of one prefix.
REDUCERS_MAX: Final = 65_536


def map_prefix(index: int) -> str:
    return f"map-{index}"


def reduce_prefix(index: int) -> str:
    return f"{SHUFFLE}/reduce-{index}"


def shuffle_file(reducer: int) -> str:
    return f"{SHUFFLE}:part-{reducer}"


def output_file(reducer: int) -> str:
    return f"{reduce_prefix(reducer)}:out"


class Plan:
    """Creates a job's hierarchy and shuffle files, and makes the handles of its tasks."""

    def __init__(self, job: Job, maps: int, reducers: int) -> None:
        for what, count, most in (
            ("inputs", maps, MAPS_MAX),
            ("reducers", reducers, REDUCERS_MAX),
        ):
            if not 1 <= count <= most:
                raise InvalidArgument(f"a MapReduce job has 1 to {most} {what}, not {count}")
        self._job = job
        names = [map_prefix(index) for index in range(maps)]
        map_numbers = job.create_hierarchy({name: () for name in names})
        job.create_addr_prefix(SHUFFLE, names, job_verbs="rw")
        job.keep(SHUFFLE)
        reduce_numbers = job.create_hierarchy(
            {f"reduce-{index}": (SHUFFLE,) for index in range(reducers)}
        )
        self._map_numbers = list(map_numbers.values())
        self._reduce_numbers = list(reduce_numbers.values())
        self._files = [job.create_file(shuffle_file(index)) for index in range(reducers)]

    def map_handle(self, index: int) -> JobHandle:
        return self._job._task_handle(map_prefix(index), self._map_numbers[index])

    def reduce_handle(self, index: int) -> JobHandle:
        return self._job._task_handle(reduce_prefix(index), self._reduce_numbers[index])

    def seal_shuffle(self) -> None:
        """Ends the map stage: attempts that still run can append nothing more."""
        for file in self._files:
            file.seal()

    def seal_output(self, reducer: int) -> None:
        """Seals a reducer's output, because another attempt of the reducer may still be writing to it."""
        self._job.open_file(output_file(reducer)).seal()

    def free_partition(self, reducer: int) -> None:
        """Frees the memory of a partition that its reducer has read."""
        self._job.remove(shuffle_file(reducer))
