"""The driver's bookkeeping of one stage: which tasks wait, run, failed or committed, and which running
tasks are stragglers."""

from __future__ import annotations

import math
import statistics
from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from honeycomb.errors import InvalidArgument
from honeycomb.mapreduce.progress import Progress
from honeycomb.mapreduce.result import StageStats
from honeycomb.mapreduce.tasks import Commit

#: Most copies of one task in a run. More than one, because a copy may hang too.
COPIES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Speculation:
    """The conditions under which a slow task gets a second, concurrent attempt.

    A copy of an attempt is started if no task waits for a worker, a share ``quantile`` of the stage's
    tasks (at least one) has committed, and the attempt has run ``slower_than`` times as long as their
    median and at least ``minimum_seconds``. The first of the two to commit counts. The other is killed
    if the executor supports that, as :class:`~honeycomb.WorkerPool` does.

    A stage with one task has nothing to compare it with, and gets no copies.
    """

    slower_than: float = 1.5
    quantile: float = 0.75
    minimum_seconds: float = 1.0

    def __post_init__(self) -> None:
        if not (self.slower_than >= 1 and 0 < self.quantile <= 1 and self.minimum_seconds >= 0):
            raise InvalidArgument(
                f"{self}: slower_than is 1 or more, quantile over 0 and up to 1, and "
                "minimum_seconds 0 or more"
            )

    def limit(self, seconds: list[float], total: int) -> float:
        """The time in seconds after which an attempt is slow. ``seconds`` are the times of the committed
        tasks out of ``total``; while they are too few, the result is infinite."""
        if len(seconds) < max(1, math.floor(self.quantile * total)):
            return math.inf
        return max(self.minimum_seconds, self.slower_than * statistics.median(seconds))


@dataclass(slots=True)
class Attempt:
    """One attempt of a task, submitted to the executor. ``begun`` is when the driver first saw it
    running."""

    index: int
    number: int
    copy: bool = False
    begun: float | None = None


class Stage:
    """The bookkeeping of one stage. ``addresses`` are the addresses of its tasks, and ``origins`` the
    names of their inputs, if they have any. It reads no clock: times are arguments."""

    def __init__(
        self,
        name: str,
        addresses: Sequence[str],
        origins: Sequence[str],
        started: float,
        speculation: Speculation | None,
    ) -> None:
        total = len(addresses)
        self.name = name
        self.addresses = addresses
        self.origins = origins
        self.started = started
        self.waiting = deque(range(total))
        self.commits: list[Commit | None] = [None] * total
        self.done = 0
        self.failures = 0
        self.copies = 0
        self.copies_won = 0
        self._speculation = speculation
        self._tries = [0] * total
        self._failed = [0] * total
        self._copied: Counter[int] = Counter()
        self._seconds: list[float] = []

    @property
    def total(self) -> int:
        return len(self.commits)

    def attempt(self, index: int, copy: bool = False) -> Attempt:
        """The next attempt of a task."""
        number = self._tries[index]
        self._tries[index] += 1
        if copy:
            self.copies += 1
            self._copied[index] += 1
        return Attempt(index, number, copy)

    def commit(self, attempt: Attempt, commit: Commit) -> bool:
        """Records the commit of an attempt. Returns False if another attempt of the task was first."""
        if self.commits[attempt.index] is not None:
            return False
        self.commits[attempt.index] = commit
        self.done += 1
        self.copies_won += attempt.copy
        insort(self._seconds, commit.seconds)
        return True

    def fail(self, attempt: Attempt) -> int:
        """Counts a failed attempt. Returns how many attempts of its task have failed."""
        self.failures += 1
        self._failed[attempt.index] += 1
        return self._failed[attempt.index]

    def stragglers(self, running: Iterable[Attempt], now: float) -> list[int]:
        """The tasks to copy now."""
        if self._speculation is None or self.waiting or self.done == self.total:
            return []
        limit = self._speculation.limit(self._seconds, self.total)
        if limit == math.inf:
            return []
        youngest: dict[int, float] = {}
        for attempt in running:
            if attempt.begun is None:
                return []  # an attempt waits for a worker, and a copy would be queued behind it
            youngest[attempt.index] = max(attempt.begun, youngest.get(attempt.index, -math.inf))
        return [
            index
            for index, begun in youngest.items()
            if now - begun > limit and self._copied[index] < COPIES_MAX
        ]

    def progress(self, now: float, running: int, note: str = "") -> Progress:
        return Progress(
            self.name, self.done, self.total, running, self.failures, now - self.started, note
        )

    def stats(self, now: float) -> StageStats:
        commits = [commit for commit in self.commits if commit is not None]
        return StageStats(
            name=self.name,
            seconds=now - self.started,
            tasks=len(commits),
            attempts=sum(self._tries),
            failures=self.failures,
            pairs_in=sum(commit.pairs_in for commit in commits),
            pairs_out=sum(commit.pairs_out for commit in commits),
            bytes=sum(commit.bytes for commit in commits),
            copies=self.copies,
            copies_won=self.copies_won,
        )
