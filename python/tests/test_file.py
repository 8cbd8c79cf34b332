from __future__ import annotations

import io
import os
import pickle
import random
import time
import warnings
import zlib

import pytest

import honeycomb
from honeycomb import errors

WRITERS = 4
RECORDS = 300


@pytest.fixture
def file(job: honeycomb.Job) -> honeycomb.HoneyFile:
    return job.file("data:log")


def test_appends_return_their_offsets(file: honeycomb.HoneyFile) -> None:
    assert file.append(b"abc") == 0
    assert file.append(bytearray(b"defg")) == 3
    assert file.append(memoryview(b"h")) == 7
    assert file.size() == 8
    assert file.read() == b"abcdefgh"
    assert file.read(2, 3) == b"cde"
    assert file.read(6, 100) == b"gh"
    assert file.read(8, 5) == b""
    buffer = bytearray(4)
    assert file.readinto(1, buffer) == 4
    assert buffer == b"bcde"


def test_a_file_grows_over_many_blocks(file: honeycomb.HoneyFile) -> None:
    data = random.Random(1).randbytes(1_000_000)
    assert file.write_all(data) == 0
    assert file.size() == len(data)
    assert file.read() == data
    assert file.read(65_000, 2000) == data[65_000:67_000]


def test_an_append_of_any_length_is_in_one_piece(file: honeycomb.HoneyFile) -> None:
    data, end = random.Random(2).randbytes(2_000_000), 0
    for length in (file.append_limit, file.append_limit + 1, 3, len(data)):
        assert file.append(data[:length]) == end
        assert file.read(end, length) == data[:length]
        end += length
    assert file.size() == end


def test_a_sealed_file_takes_no_more(file: honeycomb.HoneyFile) -> None:
    file.append(b"done")
    assert not file.sealed()
    assert file.seal() == 4
    assert file.seal() == 4
    assert file.sealed()
    with pytest.raises(errors.Sealed):
        file.append(b"more")
    assert file.read() == b"done"


def test_it_reads_like_a_file(job: honeycomb.Job) -> None:
    lines = [f"line {number} {'x' * (number % 300)}\n".encode() for number in range(3000)]
    with job.open("text:a", "ab") as out:
        for line in lines:
            assert out.write(line) == len(line)
    data = b"".join(lines)
    with job.open("text:a") as reader:
        assert isinstance(reader, io.BufferedReader)
        assert list(reader) == lines
        assert reader.read() == b""
        assert reader.seek(10) == 10
        assert reader.read(5) == data[10:15]
        assert reader.seek(-7, io.SEEK_END) == len(data) - 7
        assert reader.read() == data[-7:]
        with pytest.raises(ValueError):
            reader.seek(-1)
    with pytest.raises(ValueError):
        reader.read()
    with job.open("text:a", "r") as text:
        assert text.readline() == lines[0].decode()


def test_text_mode_appends_text(job: honeycomb.Job) -> None:
    with job.open("notes", "a") as out:
        out.write("grüße\n")
        print("second", file=out)
    with job.open("notes", "r") as reader:
        assert reader.read() == "grüße\nsecond\n"


def test_other_modes_are_refused(job: honeycomb.Job) -> None:
    job.file("data")
    for mode in ("wb", "r+b", "x", ""):
        with pytest.raises(errors.InvalidArgument, match="read"):
            job.open("data", mode)
    with pytest.raises(errors.NotFound):
        job.open("nowhere")


def test_a_reader_sees_what_is_appended_later(file: honeycomb.HoneyFile) -> None:
    with file.open() as reader:
        assert reader.read() == b""
        file.append(b"now")
        assert reader.read() == b"now"


def test_a_flush_is_one_append(file: honeycomb.HoneyFile) -> None:
    with file.open("ab") as out:
        out.write(b"aa")
        out.write(b"bb")
        assert file.size() == 0
        out.flush()
        assert file.size() == 4
        half = file.append_limit // 2 + 1
        out.write(b"c" * half)
        out.write(b"d" * half)  # does not fit with the first write, which is appended alone
        assert file.size() == 4 + half
        out.write(b"e" * (3 * file.append_limit))  # too long for one append
        assert file.size() == 4 + 2 * half + 3 * file.append_limit
    with pytest.raises(ValueError, match="closed"):
        out.write(b"x")
    assert file.read(4 + 2 * half) == b"e" * 3 * file.append_limit


def write_records(file: honeycomb.HoneyFile, writer: int) -> None:
    """Appends records of many lengths, each a line with a checksum."""
    rng = random.Random(writer)
    for number in range(RECORDS):
        body = bytes(rng.choices(b"abcdefgh", k=rng.randrange(1, 3000)))
        file.append(b"%d %d %d %s\n" % (writer, number, zlib.crc32(body), body))


def read_records(file: honeycomb.HoneyFile) -> list[int]:
    """Reads while others append, until all records exist; counts them by writer."""
    counts = [0] * WRITERS
    deadline = time.monotonic() + 60
    pending = b""
    with file.open() as reader:
        while sum(counts) < WRITERS * RECORDS:
            assert time.monotonic() < deadline, f"only {counts} records came"
            *lines, pending = (pending + reader.read(100_000)).split(b"\n")
            for line in lines:
                writer, number, crc, body = line.split(b" ")
                assert zlib.crc32(body) == int(crc), "torn"
                assert counts[int(writer)] == int(number), "lost, doubled or out of order"
                counts[int(writer)] += 1
        assert pending + reader.read() == b""
    return counts


def test_four_processes_append_while_a_fifth_reads(file: honeycomb.HoneyFile) -> None:
    with honeycomb.WorkerPool(WRITERS + 1) as pool:
        reader = pool.submit(read_records, file)
        writers = [pool.submit(write_records, file, writer) for writer in range(WRITERS)]
        for future in writers:
            future.result()
        assert reader.result() == [RECORDS] * WRITERS


def test_writes_of_several_appenders_stay_whole(file: honeycomb.HoneyFile) -> None:
    def write(target: honeycomb.HoneyFile, name: bytes) -> None:
        with target.open("ab") as out:
            for _ in range(500):
                out.write(name * 100 + b"\n")

    with honeycomb.WorkerPool(3) as pool:
        for future in [pool.submit(write, file, name) for name in (b"a", b"b", b"c")]:
            future.result()
    lines = list(file.open())
    assert sorted(lines) == sorted(name * 100 + b"\n" for name in (b"a", b"b", b"c") * 500)


def test_a_file_travels_by_pickle(file: honeycomb.HoneyFile) -> None:
    file.append(b"data")
    again = pickle.loads(pickle.dumps(file))
    assert again.read() == b"data"
    assert again.address == file.address


def test_a_kv_is_no_file(job: honeycomb.Job) -> None:
    job.kv("kv")
    job.file("file")
    with pytest.raises(errors.WrongKind):
        job.open_file("kv")
    with pytest.raises(errors.WrongKind):
        job.open_kv("file")
    with pytest.raises(errors.WrongKind):
        job.file("kv")


def test_a_sequential_reader_reads_ahead_and_sees_what_a_plain_one_sees(
    file: honeycomb.HoneyFile,
) -> None:
    data = bytes(range(256)) * 8192
    file.write_all(data)
    with file.open("rb") as reader:
        pieces = [reader.read(100_000) for _ in range(12)]
        assert b"".join(pieces) == data[:1_200_000]
        assert reader.seek(1000) == 1000
        assert reader.read(10) == data[1000:1010], "what was on its way is not taken for it"
        assert reader.read() == data[1010:]
        assert reader.read() == b""
        file.append(b"more")
        assert reader.read() == b"more", "an end that was seen before is no end"
    with file.open("rb") as reader:
        for at in range(0, len(data), 4096):
            assert reader.read(4096) == data[at : at + 4096]
        assert reader.read(4096) == b"more"
        file.append(b"!")
        assert reader.read(4096) == b"!"


def test_a_reader_that_is_forked_in_the_middle_goes_on_in_both(file: honeycomb.HoneyFile) -> None:
    data = bytes(range(256)) * 4096
    file.write_all(data)
    reader = file.open("rb")
    begun = reader.read(800_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads
        child = os.fork()
    if not child:
        os._exit(0 if begun + reader.read() == data else 1)
    assert begun + reader.read() == data
    assert os.waitpid(child, 0)[1] == 0


def test_an_appender_that_fails_says_what_was_not_written(file: honeycomb.HoneyFile) -> None:
    out = file.open("ab")
    out.write(b"in the file")
    out.flush()
    out.write(b"gathered,")
    out.write(memoryview(b" and more"))
    file.seal()
    with pytest.raises(errors.Sealed) as caught:
        out.flush()
    assert caught.value.unwritten == b"gathered, and more"
    assert "18 written bytes are not known" in caught.value.__notes__[-1]
    out.flush()  # discarded: no byte is appended twice, and a later close cannot fail
    out.write(b"small")
    large = bytes(file.append_limit * 2 + 5)
    with pytest.raises(errors.Sealed) as caught:
        out.write(large)
    assert caught.value.unwritten == b"small" + large, "with the data of that write"
    with pytest.raises(errors.Sealed) as caught:
        out.write(large)
    assert caught.value.unwritten == large
    out.write(b"last")
    with pytest.raises(errors.Sealed) as caught:
        out.close()
    assert caught.value.unwritten == b"last"
    assert out.closed
    out.close()  # the failed write has already raised
    with pytest.raises(errors.Sealed), file.open("ab") as another:
        another.write(b"x")
    assert another.closed
    another.close()
    assert file.read() == b"in the file"
    assert errors.Sealed("").unwritten == b""


def test_what_was_appended_before_a_failure_is_not_called_unwritten(job: honeycomb.Job) -> None:
    """The pieces before the failed one are in the file."""
    file = job.file("pieces")
    out = file.open("ab")
    limit = file.append_limit

    class SealsLater:
        """Seals the file after its second append."""

        def __init__(self) -> None:
            self.append_limit = limit
            self.calls = 0

        def append(self, data: memoryview) -> int:
            self.calls += 1
            if self.calls == 3:
                file.seal()
            return file.append(data)

    out._file = SealsLater()  # type: ignore[assignment]
    data = os.urandom(limit * 4 + 7)
    with pytest.raises(errors.Sealed) as caught:
        out.write(data)
    assert caught.value.unwritten == data[2 * limit :]
    assert file.read() == data[: 2 * limit]
