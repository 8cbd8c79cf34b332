"""Changes of a copy of the Python package, after which `python/generator` demands new files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUBS = "python/honeycomb/_native.pyi"
QUEUE = "python/honeycomb/queue.py"
TWIN_OF_QUEUE = "python/honeycomb/aio/_twins/queue.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the generator, of its sources, and of the files that it writes."""
    ignored = shutil.ignore_patterns("__pycache__", "data", "*.so")
    for name in ("generator", "src", "honeycomb"):
        shutil.copytree(ROOT / "python" / name, tmp_path / "python" / name, ignore=ignored)
    shutil.copy(ROOT / "python/pyproject.toml", tmp_path / "python")
    return tmp_path


def generate(tree: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(tree / "python/generator"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def change(tree: Path, path: str, old: str, new: str) -> None:
    text = (tree / path).read_text()
    assert text.count(old) == 1, (path, old)
    (tree / path).write_text(text.replace(old, new))


def test_unchanged_sources_pass_the_check(tree: Path) -> None:
    assert generate(tree, "--check") == (0, "")


def test_changed_blocking_signature_fails_the_check_until_the_twin_is_generated(tree: Path) -> None:
    change(tree, QUEUE, "def peek(self, n: int = 1)", "def peek(self, n: int = 2)")
    code, text = generate(tree, "--check")
    assert code == 1
    assert text == f"{TWIN_OF_QUEUE} does not follow from {QUEUE}: run `make generate`\n"
    assert generate(tree) == (0, f"wrote {TWIN_OF_QUEUE}\n")
    assert "async def peek(self, n: int = 2)" in (tree / TWIN_OF_QUEUE).read_text()
    assert generate(tree, "--check") == (0, "")


def test_changed_docstring_fails_the_check(tree: Path) -> None:
    change(tree, QUEUE, "Whether there is no item to take now.", "Whether no item can be taken.")
    assert generate(tree, "--check")[0] == 1
    generate(tree)
    assert "Whether no item can be taken." in (tree / TWIN_OF_QUEUE).read_text()


def test_edited_twin_fails_the_check(tree: Path) -> None:
    change(tree, TWIN_OF_QUEUE, "self.blocking.peek(n)", "self.blocking.peek(n + 1)")
    assert generate(tree, "--check")[0] == 1


def test_changed_rust_signature_changes_stubs_and_twin(tree: Path) -> None:
    calls = "python/src/calls.rs"
    change(
        tree, calls, "/// Stores an entry. Returns whether", "/// Puts an entry. Returns whether"
    )
    change(
        tree,
        calls,
        "fn size(slf: &Bound<'_, FileCalls>)",
        "fn size(slf: &Bound<'_, FileCalls>, exact: bool)",
    )
    assert generate(tree, "--check")[0] == 1
    code, text = generate(tree)
    assert code == 0
    assert text.splitlines() == [
        f"wrote {STUBS}",
        "wrote python/honeycomb/aio/_twins/file.py",
        "wrote python/honeycomb/aio/_twins/kv.py",
    ]
    assert "def size(self, exact: bool) -> int:" in (tree / STUBS).read_text()
    file = (tree / "python/honeycomb/aio/_twins/file.py").read_text()
    assert "async def size(self, exact: bool) -> int:" in file
    assert "lambda: self.blocking.size(exact)" in file
    assert '"""Puts an entry.' in (tree / "python/honeycomb/aio/_twins/kv.py").read_text()


def test_new_method_has_a_twin_and_a_hand_written_body_replaces_the_generated_one(
    tree: Path,
) -> None:
    method = '    def drain(self, limit: int = 3) -> int:\n        """Removes items."""\n\n'
    change(tree, QUEUE, "    def qsize(self)", f"{method}    def qsize(self)")
    generate(tree)
    twin = (tree / TWIN_OF_QUEUE).read_text()
    assert "async def drain(self, limit: int = 3) -> int:" in twin
    assert "return await run(lambda: self.blocking.drain(limit))" in twin
    by_hand = "    async def _do_drain(self, limit: int) -> int:\n        return limit\n\n"
    base = "python/honeycomb/aio/_queue.py"
    change(tree, base, "    async def _do_close(self)", f"{by_hand}    async def _do_close(self)")
    assert generate(tree, "--check")[0] == 1
    generate(tree)
    assert "return await self._do_drain(limit)" in (tree / TWIN_OF_QUEUE).read_text()


def test_hand_written_body_without_a_call_is_refused(tree: Path) -> None:
    change(tree, QUEUE, "    def get_many(self", "    def take_many(self")
    code, text = generate(tree)
    assert code == 1
    assert "QueueBase._do_get_many replaces no call of Queue" in text


def test_result_without_a_twin_is_refused(tree: Path) -> None:
    change(tree, QUEUE, "def counts(self) -> QueueCounts:", "def counts(self) -> dict[str, Queue]:")
    code, text = generate(tree)
    assert code == 1
    assert "a twin cannot return dict[str, Queue]" in text


def test_rust_type_without_a_python_type_is_refused(tree: Path) -> None:
    path = "python/src/structures.rs"
    change(tree, path, "fn length(&self, py: Python<'_>)", "fn length(&self, by: Duration)")
    code, text = generate(tree)
    assert code == 1
    assert "NativeKv.length has the type Duration, which has no Python type" in text
