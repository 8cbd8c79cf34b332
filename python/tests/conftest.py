"""Fixtures. Tests that need a cluster share one embedded cluster of 64 KiB blocks."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import honeycomb

BLOCK_SIZE = 64 * 1024
MEMORY = 64 << 20
REPOSITORY = Path(__file__).resolve().parents[2]

_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[honeycomb.Client]:
    """An embedded cluster with room for 1024 blocks."""
    with honeycomb.connect(memory=MEMORY, block_size=BLOCK_SIZE) as client:
        yield client


@pytest.fixture
def job(cluster: honeycomb.Client) -> Iterator[honeycomb.Job]:
    """A job for one test."""
    with cluster.job(f"test-{next(_numbers)}") as job:
        yield job


@pytest.fixture(scope="session")
def pool() -> Iterator[honeycomb.WorkerPool]:
    """A pool of two started workers."""
    with honeycomb.WorkerPool(2) as pool:
        pool.warm()
        yield pool


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Waits until ``condition()`` holds. Returns false if it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.01)
    return True
