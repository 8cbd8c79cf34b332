"""Runs the code of a page of documentation as a reader would: pasted, block by block.

A page is Markdown. Its fenced blocks run in the order of the page:

- ``sh`` in one bash for the whole page; the first command that fails ends it;
- ``python`` in one interactive interpreter for the whole page, fed line by line as if typed: a block
  that cannot be pasted fails. Only printed output counts, not the values of expressions that an
  interpreter shows by itself;
- ``python`` followed by a file name is saved under that name instead of being run;
- ``text`` right after a block of the first two kinds is that block's expected output. ``...`` in it
  matches any text within a line, and a line that is only ``...`` matches any number of lines.

Blocks of other languages are not run. A comment on the line before a block, ``<!-- not run: why -->``,
excludes a block that cannot run here. The output of a bash block is that of both streams; an
interpreter must not write to standard error.

A page runs in its own folder with its own home folder and on free ports, and its processes end with it.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from conftest import REPOSITORY

BINARY = Path(sysconfig.get_path("scripts"), "honeycomb")
SECONDS = 120
#: Printed after each block to mark the end of its output.
END = "\x1e"


@dataclass(frozen=True)
class Block:
    """A fenced block. ``line`` is the line of its fence, from 1; ``part`` is its heading of level two."""

    language: str
    file: str
    part: str
    line: int
    text: str
    expected: str | None
    runs: bool


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks except those with the expected output of another block."""
    found: list[Block] = []
    part, skip, fence_end = "", False, -1
    lines = page.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.startswith("```"):
            if line.startswith("## "):
                part = line[3:]
            if line.strip():
                skip = bool(re.fullmatch(r"<!-- not run: .+ -->", line.strip()))
                fence_end = -1
            at += 1
            continue
        language, _, file = line[3:].strip().partition(" ")
        end = lines.index("```", at + 1)
        text = "\n".join(lines[at + 1 : end]) + "\n"
        if language == "text" and fence_end >= 0 and found[-1].runs and not found[-1].file:
            found[-1] = Block(**(vars(found[-1]) | {"expected": text}))
        else:
            found.append(Block(language, file, part, at + 1, text, None, not skip))
            fence_end = end if language in ("sh", "python") else -1
        skip = False
        at = end + 1
    return found


def matches(expected: str, output: str) -> bool:
    """Whether the output is as expected; ``...`` matches any text."""
    pattern = ""
    for line in expected.strip("\n").split("\n"):
        if line.strip() == "...":
            pattern += r"(?:.*\n)*"
        else:
            words = (re.escape(word) for word in line.rstrip().split("..."))
            pattern += ".*".join(words) + r"[ ]*\n"
    return re.fullmatch(pattern, output.strip("\n") + "\n") is not None


class Failed(AssertionError):
    """A block did not print the output on its page."""


class _Session:
    """A program that reads blocks from its standard input and marks the end of each block's output."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def feed(self, text: str) -> tuple[str, str]:
        """Sends a block. Returns the output of both streams up to the mark after the block."""
        streams = self.process.stdin, self.process.stdout, self.process.stderr
        stdin, stdout, stderr = streams
        assert stdin is not None and stdout is not None and stderr is not None
        with suppress(BrokenPipeError):  # detected below by the end of its output
            stdin.write(text.encode())
            stdin.flush()
        heard = {stdout: b"", stderr: b""}
        deadline = time.monotonic() + SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            selector.register(stderr, selectors.EVENT_READ)
            while not all(text.endswith(f"{END}\n".encode()) for text in heard.values()):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise Failed(f"no end within {SECONDS} s; so far:\n{_text(heard.values())}")
                for key, _ in ready:
                    piece = os.read(key.fd, 65536)
                    if not piece:
                        raise Failed(f"it failed:\n{_text(heard.values())}")
                    heard[key.fileobj] += piece  # type: ignore[index]
        return _text([heard[stdout]]), _text([heard[stderr]])

    def end(self) -> None:
        """Ends the program and the processes that it left running."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # Its session is its process group, which contains no other processes.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def _text(pieces: object) -> str:
    return b"".join(pieces).decode(errors="replace").replace(f"{END}\n", "")  # type: ignore[call-overload]


class _Shell(_Session):
    """One bash for the page."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        super().__init__(["bash", "--noprofile", "--norc", "-euo", "pipefail"], folder, environment)

    def run(self, block: Block, folder: Path) -> str:
        script = folder / ".block.sh"
        script.write_text(block.text)
        mark = f"printf '{END}\\n'"
        return self.feed(f". ./{script.name} 2>&1 </dev/null\n{mark}; {mark} >&2\n")[0]


class _Interpreter(_Session):
    """One interactive Python for the page, without prompts."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        python = str(folder / ".venv" / "bin" / "python")
        super().__init__([python, "-i", "-q"], folder, environment)
        quiet = "import sys; sys.ps1 = sys.ps2 = ''; sys.displayhook = lambda value: None\n"
        self.feed(quiet + self._mark())

    @staticmethod
    def _mark() -> str:
        # An empty line ends an indented block.
        streams = ("stdout", "stderr")
        return "\n" + "; ".join(f"print({END!r}, file=sys.{s}, flush=True)" for s in streams) + "\n"

    def run(self, block: Block) -> str:
        out, err = self.feed(block.text + self._mark())
        if err:
            raise Failed(f"it said on standard error:\n{err}")
        return out


class Page:
    """A running page."""

    def __init__(self, path: Path, folder: Path, *, parts: str = "", **more: str) -> None:
        """Runs in ``folder`` the blocks under headings that match the pattern ``parts``."""
        self.name = path.name
        found = blocks_of(path.read_text(encoding="utf-8"))
        self.blocks = [block for block in found if re.search(parts, block.part)]
        self._folder = folder
        # Not in `folder`, whose path may be long already: the path of a socket has at most 107 bytes.
        self._runtime = TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True)
        self._environment = _environment(folder, self._runtime.name) | more
        for linked, to in (("examples", REPOSITORY / "examples"), (".venv", Path(sys.prefix))):
            (folder / linked).symlink_to(to, target_is_directory=True)
        self._shell = _Shell(folder, self._environment)
        self._interpreter: _Interpreter | None = None

    def run(self) -> int:
        """Runs the blocks of the page. Returns their number."""
        ran = 0
        for block in self.blocks:
            if block.runs and block.language in ("sh", "python"):
                try:
                    self._run(block)
                except Failed as failed:
                    told = f"{self.name}:{block.line}: {failed}\nThe block:\n{block.text}"
                    raise Failed(told) from None
                ran += 1
        return ran

    def _run(self, block: Block) -> None:
        if block.file:
            (self._folder / block.file).write_text(block.text, encoding="utf-8")
            return
        if block.language == "sh":
            output = self._shell.run(block, self._folder)
        else:
            if self._interpreter is None:
                self._interpreter = _Interpreter(self._folder, self._environment)
            output = self._interpreter.run(block)
        if block.expected is not None and not matches(block.expected, output):
            raise Failed(f"expected:\n{block.expected}\nbut it printed:\n{output}")

    def clusters(self) -> Iterator[int]:
        """Processes of clusters that the page started and did not stop."""
        for file in Path(self._runtime.name).glob("honeycomb/*.json"):
            yield json.loads(file.read_text())["pid"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._interpreter is not None:
            self._interpreter.end()
        self._shell.end()
        left = list(self.clusters())
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._runtime.cleanup()
        if exc is None and left:
            raise Failed(f"{self.name} leaves its cluster running")


def _environment(folder: Path, runtime: str) -> dict[str, str]:
    """The environment of a new user, without files or settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HONEYCOMB_", "PYTHON"))
    }
    return kept | {
        "HOME": str(folder),
        "XDG_RUNTIME_DIR": runtime,
        "XDG_CONFIG_HOME": str(folder / "config"),
        "HONEYCOMB_LISTEN": "127.0.0.1:0",
        "PATH": f"{BINARY.parent}:{os.environ['PATH']}",
    }
