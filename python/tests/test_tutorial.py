"""Pages of documentation whose code runs exactly as printed; see ``pages.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import REPOSITORY
from pages import Block, Failed, Page, blocks_of, matches

#: Each page, with the headings of level two whose blocks run, and the least number of blocks.
PAGES = {
    "README.md": ("Five minutes", 4),
    "docs/tutorial.md": ("", 25),
    "docs/coming-from-redis.md": ("", 3),
    "docs/coming-from-s3-files.md": ("", 3),
    "docs/coming-from-ray.md": ("", 3),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_what_it_says(name: str, tmp_path: Path) -> None:
    parts, least = PAGES[name]
    with Page(REPOSITORY / name, tmp_path, parts=parts) as page:
        assert page.run() >= least


SAMPLE = """
## One

```sh
echo a; echo b >&2
```

```text
a
b
```

```python hello.py
print("saved, not run")
```

<!-- not run: it would take too long -->
```sh
false
```

```toml
x = 1
```

## Two

```python
for n in range(2):
    print(n, "and so on")

print("x\\ny\\nz")
```

```text
0 and ...
1 and ...
...
z
```
"""


def test_blocks_are_found() -> None:
    found = [
        (b.language, b.file, b.part, b.line, b.runs, b.expected is not None)
        for b in blocks_of(SAMPLE)
    ]
    assert found == [
        ("sh", "", "One", 4, True, True),
        ("python", "hello.py", "One", 13, True, False),
        ("sh", "", "One", 18, False, False),
        ("toml", "", "One", 22, True, False),
        ("python", "", "Two", 28, True, True),
    ]
    assert isinstance(blocks_of(SAMPLE)[0], Block)


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a ... c\n", "a b c  \n", True),
        ("a\n...\nz\n", "a\nz\n", True),
        ("a\n...\nz\n", "a\nb\nc\nz\n", True),
        ("a\n...\nz\n", "a\nb\nc\n", False),
        ("(1 + 1)\n", "(1 + 1)\n", True),
        ("...\n", "", True),
        ("a...\n", "b\n", False),
    ],
)
def test_what_is_printed_is_compared(expected: str, output: str, same: bool) -> None:
    assert matches(expected, output) is same


def page_of(text: str, folder: Path) -> Page:
    """A page with this text."""
    path = folder / "page.md"
    path.write_text(text)
    run = folder / "run-here"
    run.mkdir()
    return Page(path, run)


def test_the_sample_runs(tmp_path: Path) -> None:
    with page_of(SAMPLE, tmp_path) as page:
        assert page.run() == 3
        assert (tmp_path / "run-here" / "hello.py").read_text() == 'print("saved, not run")\n'


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("```sh\nfalse\necho never\n```", "it failed"),
        ("```sh\necho a\n```\n\n```text\nb\n```", "expected"),
        ("```python\nprint(1)\nraise KeyError\n```", "standard error"),
        ("```python\nwith open('page'):\n    1\n\n    2\n```", "standard error"),
        ("```python\nprint(1)\n```\n```text\n2\n```", "expected"),
    ],
)
def test_a_block_that_does_otherwise_fails(block: str, told: str, tmp_path: Path) -> None:
    with page_of(f"\n{block}\n", tmp_path) as page, pytest.raises(Failed, match=told) as failed:
        page.run()
    assert "page.md:2" in str(failed.value)
