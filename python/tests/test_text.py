from __future__ import annotations

import random
from pathlib import Path

import pytest

from honeycomb.errors import InvalidArgument
from honeycomb.mapreduce import split_text


def words_of(path: Path, parts: int, copies: int) -> list[bytes]:
    return [word for split in split_text(path, parts, copies) for word in split.read().split()]


@pytest.mark.parametrize("seed", range(30))
def test_every_word_is_in_exactly_one_part(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    space = rng.choice([b" ", b" \t\n\v\f\r", b"\n\n\n"])
    alphabet = b"abc" + space * rng.choice([0, 1, 3])
    text = bytes(rng.choices(alphabet, k=rng.choice([0, 1, 2, 60, 400])))
    path = tmp_path / "text"
    path.write_bytes(text)
    for copies in (1, 3):
        for parts in (1, 2, 3, 7, 50):
            assert words_of(path, parts, copies) == (text * copies).split()


def test_a_word_longer_than_a_step_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "text"
    text = b"a " + b"x" * 300_000 + b" b"
    path.write_bytes(text)
    assert words_of(path, 10, 2) == (text * 2).split()


def test_bad_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a")
    for parts, copies in ((0, 1), (1, 0)):
        with pytest.raises(InvalidArgument):
            split_text(path, parts, copies)
