"""Closing an embedded cluster: prefixes with a flush are written, or named in the error."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

BEGIN = """
    import os, signal, sys
    import honeycomb
    from honeycomb import Flush, errors
    root = os.environ["HONEYCOMB_FLUSH_ROOT"]

    def begin():
        return honeycomb.connect(memory="16MiB", block_size="64KiB")

    def fill(job):
        job.create_bucket("results", persist=True).put("a", bytes(200_000))
        job.create_addr_prefix("out", on_expiry=Flush("runs/1"))
        job.create_kv("out:kv")["a"] = b"1"

    def take_away():
        os.rename(root, root + ".aside")
        open(root, "w").close()

    def give_back():
        os.remove(root)
        os.rename(root + ".aside", root)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "kept"
    place.mkdir()
    return place


def run(root: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HONEYCOMB_")}
    environment |= {"HONEYCOMB_FLUSH_ROOT": str(root), **variables}
    script = textwrap.dedent(BEGIN) + textwrap.dedent(program)
    return subprocess.run(
        [sys.executable, "-P", "-c", script],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def kept(root: Path) -> set[str]:
    return {str(path.parent.relative_to(root)) for path in root.rglob("manifest.json")}


def test_with_blocks_that_end_write_what_persists(root: Path) -> None:
    ended = run(
        root,
        """
        with begin() as hc, hc.job("j") as job:
            fill(job)
        """,
    )
    assert ended.returncode == 0, ended.stderr
    assert kept(root) == {"j/results"}


def test_client_that_closes_with_an_open_job_writes_what_has_a_place(root: Path) -> None:
    ended = run(
        root,
        """
        hc = begin()
        fill(hc.job("j"))
        hc.close()
        hc.close()
        """,
    )
    assert ended.returncode == 0, ended.stderr
    assert kept(root) == {"j/results", "j/runs/1"}


@pytest.mark.parametrize("how", ["pass", "os.kill(os.getpid(), signal.SIGKILL)", "del hc, job"])
def test_process_that_ends_without_closing_leaves_nothing_unwritten(root: Path, how: str) -> None:
    ended = run(
        root,
        f"""
        hc = begin()
        job = hc.job("j")
        fill(job)
        {how}
        """,
    )
    # The child inherits standard error, so reading it to the end waits for the child's end.
    assert ended.returncode in (0, -9), ended.stderr
    assert kept(root) == {"j/results", "j/runs/1"}


def test_close_whose_store_is_away_raises_and_can_be_repeated(root: Path) -> None:
    ended = run(
        root,
        """
        hc = begin()
        fill(hc.job("j"))
        take_away()
        for _ in range(2):
            try:
                hc.close(wait=0.2)
            except errors.NotFlushed as error:
                assert "j/results" in str(error) and "j/runs/1" in str(error), error
            else:
                sys.exit("it was closed")
        give_back()
        hc.close()
        """,
    )
    assert ended.returncode == 0, ended.stderr
    assert kept(root) == {"j/results", "j/runs/1"}


def test_error_of_a_block_names_what_closing_did_not_write(root: Path) -> None:
    ended = run(
        root,
        """
        try:
            with begin() as hc:
                fill(hc.job("j"))
                take_away()
                raise RuntimeError("of the block")
        except RuntimeError as error:
            assert any("NotFlushed" in note for note in error.__notes__), error.__notes__
        give_back()
        os.environ["HONEYCOMB_STOP_WAIT"] = "60"
        """,
        HONEYCOMB_STOP_WAIT="0.2",
    )
    assert ended.returncode == 0, ended.stderr
    # The end of the process writes it in the end.
    assert kept(root) == {"j/results", "j/runs/1"}


def test_end_of_the_process_names_what_a_store_does_not_take(root: Path) -> None:
    ended = run(
        root,
        """
        hc = begin()
        job = hc.job("j")
        fill(job)
        take_away()
        """,
        HONEYCOMB_STOP_WAIT="0.2",
    )
    assert "NotFlushed" in ended.stderr, ended.stderr
    assert "j/results" in ended.stderr and "j/runs/1" in ended.stderr, ended.stderr


def test_close_that_discards_waits_for_no_store(root: Path) -> None:
    ended = run(
        root,
        """
        hc = begin()
        fill(hc.job("j"))
        take_away()
        hc.close(discard=True, wait=3600)
        give_back()
        """,
        HONEYCOMB_STOP_WAIT="3600",
    )
    assert ended.returncode == 0, ended.stderr
    assert kept(root) == set()


def test_another_cluster_can_be_embedded_while_one_ends(root: Path) -> None:
    ended = run(
        root,
        """
        first = begin()
        fill(first.job("j"))
        take_away()
        try:
            first.close(wait=0.2)
        except errors.NotFlushed:
            pass
        os.environ["HONEYCOMB_FLUSH_ROOT"] = root + ".other"
        os.mkdir(root + ".other")
        second = begin()
        assert second.address != first.address
        second.close()
        give_back()
        first.close()
        """,
    )
    assert ended.returncode == 0, ended.stderr
    assert kept(root) == {"j/results", "j/runs/1"}
