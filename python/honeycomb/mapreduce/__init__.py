"""MapReduce on Honeycomb (paper, 5.1).

::

    from honeycomb.mapreduce import MapReduce, inputs

    def words(split):
        for word in split.read().split():
            yield word, 1

    def total(word, counts):
        return sum(counts)

    with MapReduce(words, total, combine=total).run(inputs.from_paths("books/*.txt")) as result:
        counts = dict(result.items())
"""

from honeycomb.mapreduce import inputs
from honeycomb.mapreduce.counters import Counter, counter
from honeycomb.mapreduce.driver import MapReduce
from honeycomb.mapreduce.errors import (
    Cancelled,
    ExecutorBroken,
    InputFailed,
    KeyOrderError,
    MapReduceError,
    MissingInput,
    MissingPackage,
    NotPicklable,
    TaskFailed,
    UserFunctionError,
)
from honeycomb.mapreduce.frames import FrameError
from honeycomb.mapreduce.progress import Progress
from honeycomb.mapreduce.records import default_partition, stable_hash
from honeycomb.mapreduce.result import MemorySample, MemorySampler, Result, StageStats
from honeycomb.mapreduce.run import CancelSignal
from honeycomb.mapreduce.skew import HeavyKey, PartitionLoad, Skew
from honeycomb.mapreduce.stage import Speculation
from honeycomb.mapreduce.tasks import TaskContext, current_task
from honeycomb.mapreduce.text import TextSplit, split_text

__all__ = [
    "CancelSignal",
    "Cancelled",
    "Counter",
    "ExecutorBroken",
    "FrameError",
    "HeavyKey",
    "InputFailed",
    "KeyOrderError",
    "MapReduce",
    "MapReduceError",
    "MemorySample",
    "MemorySampler",
    "MissingInput",
    "MissingPackage",
    "NotPicklable",
    "PartitionLoad",
    "Progress",
    "Result",
    "Skew",
    "Speculation",
    "StageStats",
    "TaskContext",
    "TaskFailed",
    "TextSplit",
    "UserFunctionError",
    "counter",
    "current_task",
    "default_partition",
    "inputs",
    "split_text",
    "stable_hash",
]
