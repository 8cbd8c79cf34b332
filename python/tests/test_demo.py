from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_mapreduce import coreutils_count

from honeycomb import demo
from honeycomb._plot import memory_plot, memory_table, resample
from honeycomb._progress import ProgressBars, bar
from honeycomb.mapreduce import MemorySample

TEXT = b"Bee bee \t Bee\vflower\fflower\r\nna\xc3\xafve \xff\xfe bee\n\n  Bee honey"


def run_demo(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "honeycomb.demo", *arguments],
        capture_output=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("scale", [1, 3])
def test_the_demo_counts_a_text_of_one_s_own(tmp_path: Path, scale: int) -> None:
    path = tmp_path / "text"
    path.write_bytes(TEXT * 50)
    told = run_demo("--input", str(path), "--json", "--workers", "2", "--scale", str(scale))
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout.splitlines()[-1])
    expected = coreutils_count(path, scale)
    ranked = sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))
    assert report["top"] == [
        [word.decode(errors="backslashreplace"), count] for word, count in ranked[:20]
    ]
    assert report["words_total"] == sum(expected.values())
    assert report["words_distinct"] == len(expected)
    assert {stage["name"] for stage in report["stages"]} == {"start", "map", "reduce", "collect"}
    memory = report["memory"]
    assert memory["after"]["free"] == memory["before"]["free"]
    assert memory["allocated_peak"] > 0
    assert memory["allocated_byte_seconds"] <= memory["reserved_byte_seconds"]
    assert memory["samples"]


def test_the_demo_tells_people(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(TEXT * 50)
    told = run_demo("--input", str(path), "--workers", "1")
    assert told.returncode == 0, told.stderr
    text = told.stdout.decode()
    for part in ("commonest words", "Time per stage", "Memory over time", "reserv", "At the end"):
        assert part in text
    assert b"map: " in told.stderr


def test_a_missing_text_is_told(tmp_path: Path) -> None:
    told = run_demo("--input", str(tmp_path / "none"))
    assert told.returncode == 1
    assert b"none" in told.stderr
    assert b"Traceback" not in told.stderr


SAMPLES = [MemorySample(n / 10, n * 1000, n * 2000, 5000 + n * 2000) for n in range(10)] + [
    MemorySample(1.0, 0, 0, 5000)
]


def test_samples_are_put_into_equal_steps() -> None:
    steps = resample(SAMPLES, 5)
    assert [step.allocated for step in steps] == [2000, 6000, 10_000, 14_000, 18_000]
    assert len(resample(SAMPLES[:1], 7)) == 7
    assert resample(SAMPLES, 40)[1].used == 0


def test_what_was_held_and_what_would_have_been() -> None:
    held, reserved = demo.byte_seconds(SAMPLES)
    assert held == pytest.approx(sum(n * 2000 for n in range(10)) / 10)
    assert reserved == pytest.approx(18_000)
    assert demo.byte_seconds([]) == (0.0, 0.0)


def test_the_plot_and_the_table_draw() -> None:
    plot = memory_plot(SAMPLES, at_rest=5000, width=40, height=8)
    lines = plot.splitlines()
    assert len(lines) == 8 + 3
    assert all(mark in plot for mark in "█▒·─")
    assert memory_table(SAMPLES).count("\n") == 10
    assert memory_plot([]) == memory_table([]) == "(no samples)"


class Terminal:
    def __init__(self, tty: bool) -> None:
        self.tty = tty
        self.text = ""

    def isatty(self) -> bool:
        return self.tty

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("tty", [True, False])
def test_progress_bars(tty: bool) -> None:
    terminal = Terminal(tty)
    bars = ProgressBars(terminal)  # type: ignore[arg-type]
    for done in range(9):
        bars.update("map", done, 8)
    bars.note("map-3 failed")
    bars.update("reduce", 1, 1)
    assert ("\r" in terminal.text) == tty
    assert "8/8" in terminal.text and "reduce" in terminal.text and "map-3 failed" in terminal.text
    if not tty:
        assert terminal.text.count("map: ") == 4


def test_bars_have_eighths() -> None:
    assert bar(0.0, 4) == "    "
    assert bar(1.0, 4) == bar(7.0, 4) == "████"
    assert bar(0.5 + 1 / 32, 4) == "██▏ "


def test_the_demo_reads_a_pipe_and_tells_a_broken_file(tmp_path: Path) -> None:
    """A pipe has size 0; an earlier version therefore counted no words in it."""
    program = [sys.executable, "-P", "-m", "honeycomb.demo", "--json", "--input"]
    piped = subprocess.run(
        [*program, "/dev/stdin"], input=b"a b a\nc  a", capture_output=True, timeout=60, check=True
    )
    assert json.loads(piped.stdout.splitlines()[-1])["top"] == [["a", 3], ["b", 1], ["c", 1]]
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"word " * 10_000)[:30])
    told = subprocess.run(
        [*program, broken], capture_output=True, text=True, timeout=60, check=False
    )
    assert told.returncode == 1
    assert "end-of-stream marker" in json.loads(told.stderr)["error"]["message"]
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("size", ["1GiB", "3MiB", "64", "many"])
def test_a_block_size_that_shows_nothing_is_refused(size: str) -> None:
    told = run_demo("--block-size", size)
    assert told.returncode == 2
    assert size.encode() in told.stderr
    assert b"Traceback" not in told.stderr


def test_an_error_is_json_when_the_result_would_be(tmp_path: Path) -> None:
    told = run_demo("--json", "--input", str(tmp_path / "none"))
    assert told.returncode == 1
    error = json.loads(told.stderr)["error"]
    assert (error["status"], error["exit"]) == ("Failed", 1)
    assert "none" in error["message"]
