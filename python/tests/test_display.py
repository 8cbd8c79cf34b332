"""The display of objects: repr, notebooks, help, tab completion."""

from __future__ import annotations

import pydoc
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from typing import Any

import pytest

import honeycomb
from honeycomb import _display, aio, mapreduce


class Checked(HTMLParser):
    """Fails on unclosed elements, and on elements that load or run anything."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"div", "b", "table", "tr", "th", "td", "pre"}, tag
        assert {name for name, _ in attrs} <= {"style"}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def shown(value: Any) -> str:
    """The text of an object's HTML, which must be small and well-formed."""
    page = value._repr_html_()
    assert len(page) < 20_000
    checked = Checked()
    checked.feed(page)
    checked.close()
    assert not checked.open
    return checked.text


class Printer:
    def __init__(self) -> None:
        self.written = ""

    def text(self, text: str) -> None:
        self.written += text


def printed(value: Any) -> str:
    printer = Printer()
    value._repr_pretty_(printer, False)
    return printer.written


def test_everything_shows_itself(cluster: honeycomb.Client, job: honeycomb.Job) -> None:
    kv, file = job.kv("T1:kv"), job.file("T1:file")
    queue = job.queue("T1:q", max_items=10, max_bytes=2048)
    kv["k"] = b"v"
    file.append(bytes(2048))
    queue.put_many([b"a", b"b", b"c"])
    [reserved] = queue.reserve(lease=600)
    listener = queue.subscribe("data", "close")
    expected: list[tuple[Any, list[str]]] = [
        (cluster, [cluster.address, "embedded", "servers", "jobs", "free"]),
        (job, [job.name, "prefixes 2", "structures 3"]),
        (kv, ["T1:kv", "entries 1"]),
        (file, ["T1:file", "size 2.0 KiB", "sealed no"]),
        (queue, ["T1:q", "items 3, 1 of them reserved", "bounds 10 items and 2.0 KiB"]),
        (queue.counts(), ["items 3, 1 of them reserved", "closed no"]),
        (listener, ["T1:q", "reports data, close", "state listening"]),
        (job.lease("T1"), ["lease 10 s"]),
        (job.tree(), [job.name, "T1", ":q  queue"]),
    ]
    for value, words in expected:
        text = " ".join(shown(value).split())
        for word in words:
            assert " ".join(word.split()) in text, (type(value), word, text)
    for value, _ in expected[:-1]:
        assert printed(value).startswith(repr(value))
        assert all(line.startswith("  ") for line in printed(value).split("\n")[1:])
    for twin in (
        aio.AsyncClient(cluster),
        aio.AsyncJob(job),
        aio.AsyncKv(kv),
        aio.AsyncFile(file),
        aio.AsyncQueue(queue),
        aio.AsyncListener(listener),
        aio.AsyncReservation(reserved),
    ):
        assert re.match(r"<honeycomb\.aio\.Async\w+ ", repr(twin)), repr(twin)
        if not isinstance(twin, aio.AsyncReservation):
            assert type(twin).__name__ in shown(twin)
    assert reserved.ack()
    listener.close()
    assert "state closed" in " ".join(shown(listener).split())


def test_what_is_gone_says_so_and_raises_nothing(cluster: honeycomb.Client) -> None:
    with cluster.job("short-lived") as job:
        queue, kv, file = job.queue("a:q"), job.kv("a:kv"), job.file("a:f")
        job.remove("a:q")
        assert "Removed" in shown(queue) and "Removed" in printed(queue)
        job.remove_prefix("a")
        for one in (kv, file):
            assert "Removed" in shown(one)
    for one in (job, queue, kv, file):
        assert "Closed" in shown(one)
        assert repr(one) in printed(one)


def test_a_display_does_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_display, "PATIENCE", 0.05)

    class Slow(_display.Shown):
        def _facts(self) -> _display.Facts:
            time.sleep(0.5)
            return []

    assert "no reply within 0.05 s" in shown(Slow())


def test_names_are_escaped() -> None:
    class Odd(_display.Shown):
        def _facts(self) -> _display.Facts:
            return [("<b>", "<script>alert('&')</script>")]

        def __repr__(self) -> str:
            return "<Odd <img src=x>>"

    page = Odd()._repr_html_()
    assert "<script" not in page and "<img" not in page
    assert "<script>alert('&')</script>" in shown(Odd())
    tree = honeycomb.Tree("<i>job</i>", [])
    assert "<i>" not in tree._repr_html_() and "<i>job</i>" in shown(tree)


def test_a_large_tree_is_cut(cluster: honeycomb.Client) -> None:
    with cluster.job("wide") as job:
        job.create_hierarchy({f"task-{number}": () for number in range(1000)})
        tree = job.tree()
        assert "801 more lines" in shown(tree)
        assert len(str(tree).split("\n")) == 1001


def test_a_result_of_mapreduce(cluster: honeycomb.Client, pool: honeycomb.WorkerPool) -> None:
    program = mapreduce.MapReduce(lambda one: [(one, 1)], lambda key, ones: sum(ones))
    with program.run(["a", "b"], client=cluster, executor=pool, reducers=2) as result:
        assert "partitions 2" in " ".join(shown(result).split())
        with pytest.raises(TypeError, match="its job ends with this process"):
            result.__reduce__()


# -------------------------------------------------------------------------------- names and help


def test_the_package_s_names() -> None:
    assert set(honeycomb.__all__) <= set(dir(honeycomb))
    assert not [name for name in dir(honeycomb) if name.startswith("_") and name[:2] != "__"]
    assert honeycomb.aio is aio
    program = "from honeycomb import *; aio.connect; connect; Queue"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = honeycomb.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", [honeycomb, aio, mapreduce])
def test_all_that_is_public_has_help(module: Any) -> None:
    for name in module.__all__:
        value = getattr(module, name)
        assert value.__doc__, name
        if not isinstance(value, type) or getattr(value, "_is_protocol", False):
            continue
        for attribute in dir(value):
            member = getattr(value, attribute)
            # Members of base classes in the standard library have their own docstrings.
            if attribute.startswith("_") or not callable(member):
                continue
            if (getattr(member, "__module__", "") or "").startswith("honeycomb"):
                assert member.__doc__, f"{name}.{attribute}"
        text = pydoc.plain(pydoc.render_doc(value))
        assert name in text and "_native" not in text.split("Data descriptors")[0]
