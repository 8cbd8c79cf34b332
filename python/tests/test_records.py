from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest

from honeycomb.errors import InvalidArgument
from honeycomb.mapreduce.records import decode, default_partition, encode, stable_hash

KEYS: list[Any] = ["word", "", "naïve", b"bytes", 0, -1, 2**80, 1.5, None, ("a", 1, (b"x", None))]


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [("a", 1), ("b", 2)],
        [(key, [key, {"x": key}]) for key in KEYS],
        [(Fraction(1, 3), {1, 2})],
        [("big", b"x" * 300_000)],
    ],
)
def test_pairs_come_back(pairs: list[tuple[Any, Any]]) -> None:
    assert decode(encode(pairs)) == pairs


def test_cyclic_values_and_functions_travel_too() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    ((_, again),) = decode(encode([("c", cycle)]))
    assert again[0] is again
    ((_, double),) = decode(encode([("f", lambda x: 2 * x)]))
    assert double(21) == 42


def test_the_hash_is_the_same_in_every_process() -> None:
    script = (
        "from honeycomb.mapreduce import stable_hash; "
        f"print([stable_hash(key) for key in {KEYS!r}])"
    )
    told = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, check=True)
    assert told.stdout.decode().strip() == str([stable_hash(key) for key in KEYS])


def test_equal_keys_have_equal_hashes() -> None:
    assert stable_hash(1) == stable_hash(1.0) == stable_hash(True)
    assert stable_hash((1, 0)) == stable_hash((1.0, False))
    assert stable_hash((1, 2)) != stable_hash((2, 1))


def test_partitions_are_even() -> None:
    counts = [0] * 8
    for number in range(8000):
        counts[default_partition(f"key-{number}", 8)] += 1
    assert min(counts) > 800


def test_a_key_without_a_stable_hash_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="pass partition="):
        stable_hash(frozenset({1}))
