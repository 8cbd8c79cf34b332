"""MapReduce on Honeycomb (paper, 5.1).

::

    from honeycomb.mapreduce import MapReduce, split_text

    def words(split):
        for word in split.read().split():
            yield word, 1

    def total(word, counts):
        return sum(counts)

    with MapReduce(words, total, combine=total).run(split_text("book.txt", 16)) as result:
        counts = dict(result.items())
"""

from honeycomb.mapreduce.driver import MapReduce, Progress
from honeycomb.mapreduce.errors import MapReduceError, TaskFailed, UserFunctionError
from honeycomb.mapreduce.frames import FrameError
from honeycomb.mapreduce.records import default_partition, stable_hash
from honeycomb.mapreduce.result import MemorySample, MemorySampler, Result, StageStats
from honeycomb.mapreduce.tasks import TaskContext, current_task
from honeycomb.mapreduce.text import TextSplit, split_text

__all__ = [
    "FrameError",
    "MapReduce",
    "MapReduceError",
    "MemorySample",
    "MemorySampler",
    "Progress",
    "Result",
    "StageStats",
    "TaskContext",
    "TaskFailed",
    "TextSplit",
    "UserFunctionError",
    "current_task",
    "default_partition",
    "split_text",
    "stable_hash",
]
