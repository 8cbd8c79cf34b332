from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from honeycomb.errors import InvalidArgument
from honeycomb.mapreduce.frames import (
    HEADER_BYTES,
    FrameError,
    FrameWriter,
    committed_batches,
    new_attempt,
    read_frames,
)

LIMIT = 200


class Memory:
    """A file in memory whose reads return short pieces."""

    def __init__(self, piece: int = 1 << 20) -> None:
        self.data = bytearray()
        self.piece = piece

    def append(self, data: bytes) -> None:
        assert len(data) <= LIMIT
        self.data += data

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.data[offset : offset + min(size, self.piece)])

    def batches(self, commits: dict[int, tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        frames = read_frames(self.read, len(self.data), "part")
        return committed_batches(frames, commits, "part")


@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 20])
def test_batches_of_interleaved_writers_come_back_whole(piece: int) -> None:
    rng = random.Random(piece)
    file = Memory(piece)
    writers = {task: FrameWriter(file.append, LIMIT, task, new_attempt(0)) for task in range(3)}
    attempts = {task: writer._attempt for task, writer in writers.items()}
    written: list[tuple[int, bytes]] = []
    for _ in range(40):
        task = rng.randrange(3)
        batch = rng.randbytes(rng.choice([0, 1, LIMIT - HEADER_BYTES, LIMIT, 5 * LIMIT]))
        writers[task].write(batch)
        written.append((task, batch))
    commits = {task: (attempts[task], writer.frames) for task, writer in writers.items()}
    assert list(file.batches(commits)) == written
    assert sum(writer.bytes for writer in writers.values()) == len(file.data)


def test_only_the_committed_attempt_is_read() -> None:
    file = Memory()
    first, second = new_attempt(0), new_attempt(0)
    died = FrameWriter(file.append, LIMIT, 4, first)
    died.write(b"x" * 3 * LIMIT)
    twin = FrameWriter(file.append, LIMIT, 4, second)
    twin.write(b"good")
    died.write(b"late")
    assert list(file.batches({4: (second, twin.frames)})) == [(4, b"good")]
    assert list(file.batches({})) == []


def test_attempts_of_one_try_differ() -> None:
    ones = {new_attempt(7) for _ in range(1000)}
    assert len(ones) == 1000
    assert {one & 0xFFFF for one in ones} == {7}
    with pytest.raises(InvalidArgument):
        new_attempt(65_536)


def written(count: int = 3) -> tuple[Memory, int]:
    file = Memory()
    attempt = new_attempt(0)
    writer = FrameWriter(file.append, LIMIT, 1, attempt)
    for number in range(count):
        writer.write(b"batch %d" % number)
    return file, attempt


def test_a_missing_frame_is_told() -> None:
    file, attempt = written(2)
    with pytest.raises(FrameError, match="task 1 committed 3 frames, and only 2 exist"):
        list(file.batches({1: (attempt, 3)}))


def test_a_doubled_frame_is_told() -> None:
    file, attempt = written(1)
    file.data += bytes(file.data)
    with pytest.raises(FrameError, match="frame 1 was expected, and frame 0 was found"):
        list(file.batches({1: (attempt, 2)}))


def test_frames_out_of_order_are_told() -> None:
    file, attempt = written(2)
    half = len(file.data) // 2
    file.data = file.data[half:] + file.data[:half]
    with pytest.raises(FrameError, match="frame 0 was expected"):
        list(file.batches({1: (attempt, 2)}))


@pytest.mark.parametrize("position", [0, 5, 9, 14, 20, 25, 30, HEADER_BYTES, HEADER_BYTES + 3])
def test_a_flipped_bit_anywhere_is_told(position: int) -> None:
    file, attempt = written(2)
    file.data[position] ^= 0x40
    with pytest.raises(FrameError):
        list(file.batches({1: (attempt, 2)}))


def test_a_file_that_ends_within_a_frame_is_told() -> None:
    file, attempt = written(2)
    del file.data[-3:]
    with pytest.raises(FrameError, match="in the middle of a frame"):
        list(file.batches({1: (attempt, 2)}))


def test_a_file_that_shrank_is_told() -> None:
    file, attempt = written(2)
    frames = read_frames(file.read, len(file.data) + 10, "part")
    with pytest.raises(FrameError, match="ends at byte"):
        list(committed_batches(frames, {1: (attempt, 3)}, "part"))


def test_a_limit_that_holds_no_frame_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        FrameWriter(bytearray().extend, HEADER_BYTES, 0, 0)
