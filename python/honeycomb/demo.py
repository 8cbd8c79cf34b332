"""The demo: word count over a real text, on an embedded cluster with small blocks.

``honeycomb demo`` and ``python -m honeycomb.demo`` run it. A word is a maximal run of bytes that are
not white space of the C locale, case-sensitive, as in ``tr -s '[:space:]' '\\n' | sort | uniq -c``.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import heapq
import json
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from honeycomb import errors
from honeycomb._address import format_bytes, size_bytes
from honeycomb._info import Status
from honeycomb._plot import memory_plot, memory_table
from honeycomb._progress import ProgressBars
from honeycomb.cluster import Client, connect
from honeycomb.mapreduce import (
    MapReduce,
    MemorySample,
    MemorySampler,
    Progress,
    Result,
    StageStats,
    TextSplit,
    split_text,
)
from honeycomb.mapreduce.plan import MAPS_MAX
from honeycomb.pool import WorkerPool

REDUCERS: Final = 8
COMMONEST: Final = 20
SPLIT_MIN: Final = 256 * 1024
SPLIT_MAX: Final = 8 << 20
SPLITS_AIMED: Final = 64
MEMORY_MIN: Final = 256 << 20
# Each file of the job takes at least one block, whatever its size.
BLOCKS_MIN: Final = 64
BLOCK_SIZES: Final = tuple(1 << power for power in range(16, 25))
#: Longest wait for the release of memory after the job, in seconds.
RELEASE_SECONDS: Final = 3.0
#: Time in which a server sends two reports, which it does every quarter of a second.
SETTLE_SECONDS: Final = 0.6
POLL_SECONDS: Final = 0.02


def words(split: TextSplit) -> Iterator[tuple[bytes, int]]:
    """The map function: yields each word with the count 1."""
    for word in split.read().split():
        yield word, 1


def total(word: bytes, counts: list[int]) -> int:
    """The reduce function, and the combiner."""
    return sum(counts)


@dataclass
class Report:
    """The results of the demo. Sizes are in bytes and times in seconds."""

    text: str = ""
    text_bytes: int = 0
    workers: int = 0
    top: list[tuple[str, int]] = field(default_factory=list)
    words_total: int = 0
    words_distinct: int = 0
    stages: list[dict[str, Any]] = field(default_factory=list)
    samples: list[MemorySample] = field(default_factory=list)
    before: Status | None = None
    after: Status | None = None
    block_size: int = 0

    def to_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return {
            "text": self.text,
            "text_bytes": self.text_bytes,
            "workers": self.workers,
            "top": [list(pair) for pair in self.top],
            "words_total": self.words_total,
            "words_distinct": self.words_distinct,
            "stages": self.stages,
            "memory": self._memory(),
        }

    def _memory(self) -> dict[str, Any]:
        held, reserved = byte_seconds(self.samples)
        return {
            "block_size": self.block_size,
            "used_peak": max((one.used for one in self.samples), default=0),
            "allocated_peak": max((one.allocated for one in self.samples), default=0),
            "resident_peak": max((one.resident for one in self.samples), default=0),
            "allocated_byte_seconds": round(held),
            "reserved_byte_seconds": round(reserved),
            "before": _brief(self.before),
            "after": _brief(self.after),
            "samples": [asdict(one) for one in self.samples],
        }


def _brief(status: Status | None) -> dict[str, int]:
    if status is None:
        return {}
    return {
        "blocks": status["blocks"],
        "free": status["free"],
        "allocated": status["bytes_allocated"],
        "resident": status["bytes_resident"],
    }


def byte_seconds(samples: Sequence[MemorySample]) -> tuple[float, float]:
    """The byte-seconds of allocated memory, and those of a reservation of its peak from start to end. The
    job ends with its last block; the wait for the memory afterwards does not count."""
    last = max((i for i, one in enumerate(samples) if one.allocated), default=-1)
    samples = samples[: last + 2]
    held = sum((later.seconds - one.seconds) * one.allocated for one, later in pairwise(samples))
    if not samples:
        return 0.0, 0.0
    peak = max(one.allocated for one in samples)
    return held, peak * (samples[-1].seconds - samples[0].seconds)


# ---------------------------------------------------------------------------------------- the text


def default_text() -> Path:
    """The included text: in the package, or in the repository's ``examples/data``.

    The wheel is built with a copy of ``examples/data/*.gz`` in ``honeycomb/data``.
    """
    packaged = Path(str(resources.files("honeycomb"))) / "data"
    repository = Path(__file__).resolve().parents[2] / "examples" / "data"
    for folder in (packaged, repository):
        if texts := sorted(folder.glob("*.txt.gz")):
            return texts[0]
    raise errors.NotFound(
        f"this installation contains no text (looked in {packaged} and {repository}); "
        "name one with --input PATH"
    )


@contextlib.contextmanager
def plain_text(path: Path) -> Iterator[Path]:
    """The text as a plain file that workers can open. A compressed file, a pipe or a device is copied to a
    temporary file for the duration of the demo."""
    with open(path, "rb") as source:
        seekable = stat.S_ISREG(os.fstat(source.fileno()).st_mode)
        head = source.peek(2)[:2]
        packed = head == b"\x1f\x8b"
        if seekable and not packed and os.fstat(source.fileno()).st_size > 0:
            yield path
            return
        with tempfile.NamedTemporaryFile(prefix="honeycomb-", suffix=".txt") as plain:
            text = gzip.GzipFile(fileobj=source) if packed else source
            shutil.copyfileobj(text, plain, 1 << 20)
            plain.flush()
            yield Path(plain.name)


def splits_of(path: Path, scale: int, workers: int) -> list[TextSplit]:
    """The map inputs: about 64, of 256 KiB to 8 MiB each, and at least two for each worker."""
    size = path.stat().st_size * scale
    each = min(max(size // SPLITS_AIMED, SPLIT_MIN), SPLIT_MAX)
    return split_text(path, min(max(size // each, 2 * workers, 1), MAPS_MAX), scale)


# ----------------------------------------------------------------------------------------- the job


def run(path: Path, scale: int, workers: int, block_size: int) -> Report:
    """Counts the words of ``path``, repeated ``scale`` times. Raises the errors of the job."""
    bars = ProgressBars()
    with plain_text(path) as text:
        text_bytes = text.stat().st_size * scale
        started = time.monotonic()
        memory = max(MEMORY_MIN + text_bytes, BLOCKS_MIN * block_size)
        with (
            connect(memory=memory, block_size=block_size) as client,
            WorkerPool(workers) as pool,
        ):
            pool.warm()
            report = Report(path.name, text_bytes, workers, block_size=block_size)
            report.stages.append({"name": "start", "seconds": time.monotonic() - started})
            report.before = client.status()
            sampler = MemorySampler(client.status)
            try:
                _count(client, pool, splits_of(text, scale, workers), bars, sampler, report)
                report.after = _await_release(client, report.before)
                sampler.sample()
            finally:
                sampler.stop()
            report.samples = sampler.samples
    return report


def _count(
    client: Client,
    pool: WorkerPool,
    splits: list[TextSplit],
    bars: ProgressBars,
    sampler: MemorySampler,
    report: Report,
) -> None:
    def show(progress: Progress) -> None:
        if progress.done == progress.total:
            sampler.sample()
        if progress.note:
            bars.note(progress.note)
        bars.update(progress.stage, progress.done, progress.total)

    program = MapReduce(words, total, combine=total)
    with program.run(
        splits, client=client, executor=pool, reducers=REDUCERS, progress=show, name="word-count"
    ) as result:
        report.stages += [_stage(stats) for stats in result.stages]
        started = time.monotonic()
        _collect(result, report)
        report.stages.append({"name": "collect", "seconds": time.monotonic() - started})


def _stage(stats: StageStats) -> dict[str, Any]:
    return asdict(stats)


def _collect(result: Result, report: Report) -> None:
    """Reads the counts, freeing each part once it is read, and keeps the commonest words."""
    commonest: list[tuple[int, bytes]] = []
    for part in range(result.partitions):
        counts = list(result.partition(part))
        report.words_distinct += len(counts)
        report.words_total += sum(count for _, count in counts)
        # The most frequent words first; equally frequent words in byte order.
        ranked = ((-count, word) for word, count in counts)
        commonest = heapq.nsmallest(COMMONEST, [*commonest, *ranked])
        result.free(part)
    report.top = [(word.decode(errors="backslashreplace"), -count) for count, word in commonest]


def _await_release(client: Client, before: Status) -> Status:
    """Waits until every block is free again and the resident memory has not decreased for two reports of
    the servers, or until 3 s have passed. Returns the last status."""
    pause = threading.Event()
    now = fallen = time.monotonic()
    deadline = now + RELEASE_SECONDS
    lowest = sys.maxsize
    while True:
        status = client.status()
        now = time.monotonic()
        if status["bytes_resident"] < lowest or status["free"] < before["free"]:
            lowest, fallen = status["bytes_resident"], now
        if now - fallen >= SETTLE_SECONDS or now >= deadline:
            return status
        pause.wait(POLL_SECONDS)


# --------------------------------------------------------------------------------------- the report


def render(report: Report) -> str:
    """The report as text."""
    memory = report.to_json()["memory"]
    blank = ""
    lines = [
        _headline(report),
        blank,
        f"The {COMMONEST} commonest words",
        *_top_lines(report.top),
        blank,
        "Time per stage",
        *_stage_lines(report.stages),
        blank,
        f"Memory over time (blocks of {format_bytes(report.block_size)})",
        memory_table(report.samples),
        blank,
        memory_plot(report.samples, memory["before"]["resident"]),
        blank,
        _saving(memory),
        _given_back(memory),
    ]
    return "\n".join(lines)


def _headline(report: Report) -> str:
    return (
        f"Word count of {report.text}: {report.words_total:,} words, {report.words_distinct:,} "
        f"distinct, {format_bytes(report.text_bytes)}, {report.workers} workers"
    )


def _given_back(memory: dict[str, Any]) -> str:
    before, after = memory["before"], memory["after"]
    return (
        f"At the end {after['free']:,} of {after['blocks']:,} blocks are free (before: "
        f"{before['free']:,}), and {format_bytes(after['resident'])} are resident (before: "
        f"{format_bytes(before['resident'])}, at the peak: {format_bytes(memory['resident_peak'])})."
    )


def _top_lines(top: list[tuple[str, int]]) -> Iterator[str]:
    width = max((len(word) for word, _ in top), default=0)
    cells = [f"{count:>9,}  {word:<{width}}" for word, count in top]
    half = (len(cells) + 1) // 2
    for row in range(half):
        yield "".join(cells[row::half]).rstrip()


def _stage_lines(stages: list[dict[str, Any]]) -> Iterator[str]:
    for stage in stages:
        line = f"  {stage['name']:<8}{stage['seconds']:>8.3f} s"
        if "tasks" in stage:
            line += (
                f"  {stage['tasks']:>4} tasks  {stage['pairs_in']:>10,} pairs in  "
                f"{stage['pairs_out']:>9,} out  {format_bytes(stage['bytes']):>10} written"
            )
            if stage["failures"]:
                line += f"  {stage['failures']} attempts failed"
        yield line


def _saving(memory: dict[str, Any]) -> str:
    reserved = memory["reserved_byte_seconds"]
    share = memory["allocated_byte_seconds"] / reserved if reserved else 1.0
    return (
        f"A reservation for the job would have held {format_bytes(memory['allocated_peak'])} from "
        f"start to end; block by block it held {share:.0%} of that over time."
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="honeycomb demo",
        description="Word count by MapReduce on an embedded cluster, with its memory over time.",
    )
    made.add_argument("--input", type=Path, metavar="PATH", help="a text of your own, plain or .gz")
    made.add_argument(
        "--scale", type=_positive, default=1, metavar="N", help="count the text N times over"
    )
    made.add_argument(
        "--workers",
        type=_positive,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="worker processes (default: one for each core)",
    )
    made.add_argument(
        "--block-size",
        type=_block_size,
        default=64 * 1024,
        metavar="SIZE",
        help="bytes of a block, a power of two from 64KiB (the default) to 16MiB",
    )
    made.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the report"
    )
    return made


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def _told(error: Exception) -> str:
    """An error as the program's other commands print it with ``--json``."""
    status = type(error).__name__ if isinstance(error, errors.HoneycombError) else "Failed"
    return json.dumps({"error": {"status": status, "exit": 1, "message": str(error)}})


def _block_size(text: str) -> int:
    try:
        size = size_bytes(text)
    except errors.InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size not in BLOCK_SIZES:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a power of two from 64KiB to 16MiB: each of the job's files takes at "
            "least one block, and their growth would not be visible with larger blocks"
        )
    return size


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit code."""
    options = parser().parse_args(arguments)
    # SIGTERM and SIGHUP are handled like Ctrl-C, so that no processes or files are left behind.
    for how in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(how, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        path = options.input or default_text()
        report = run(path, options.scale, options.workers, options.block_size)
        print(json.dumps(report.to_json()) if options.json else render(report), flush=True)
    except KeyboardInterrupt:
        print("interrupted; everything was cleaned up", file=sys.stderr)
        return 130
    except (errors.HoneycombError, OSError, EOFError, zlib.error) as error:
        print(_told(error) if options.json else f"honeycomb demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
