"""Edges that result from use, and declared readers, in a real cluster with a reader in a separate
process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest
from conftest import eventually

import honeycomb
from honeycomb import errors
from honeycomb import job as jobs

LEASE = 0.6
WEEK = 604_800.0


def reader(handle: jobs.JobHandle, address: str, pipe: Connection) -> None:
    """Runs for a task: opens a file, and reads it repeatedly until it receives commit or stop."""
    with handle.attach() as job:
        file = job.open_file(address)
        while not pipe.poll(0.05):
            assert file.read() == b"what T4 wrote"
            pipe.send("read")
        if pipe.recv() == "commit":
            pipe.send(job.commit())


@contextmanager
def reading(job: honeycomb.Job, task: str, address: str) -> Iterator[Connection]:
    """A process that runs for ``task`` and has read the file at ``address`` at least once."""
    ours, theirs = multiprocessing.Pipe()
    context: Any = multiprocessing.get_context("spawn")
    process = context.Process(target=reader, args=(job.handle(task), address, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.recv() == "read"
        yield ours
    finally:
        if process.is_alive():
            process.kill()
        process.join()


def last(pipe: Connection) -> object:
    """The reader's last message, after those for each read."""
    while (said := pipe.recv()) == "read":
        pass
    return said


def node(job: honeycomb.Job, name: str) -> honeycomb.tree.Node | None:
    return next((one for one in job.tree() if one.name == name), None)


def state(job: honeycomb.Job, name: str) -> str:
    found = node(job, name)
    return found.state if found else "removed"


@pytest.fixture
def tasks(cluster: honeycomb.Client) -> Iterator[honeycomb.Job]:
    """A job with tasks T4, T5 and T7 and data that T4 wrote. Only the leases of T4 and T7 are kept,
    until the test releases them: starting a process takes longer than a lease."""
    with cluster.job("edges", lease=LEASE, keep=False) as job:
        job.create_hierarchy({"T4": [], "T5": [], "T7": []})
        job.keep("T4", "T7")
        job.file("T4").append(b"what T4 wrote")
        yield job


def test_what_a_task_reads_lives_by_its_traffic_and_no_longer(tasks: honeycomb.Job) -> None:
    with reading(tasks, "T7", "T4") as pipe:
        tasks.release("T4", "T7")
        (t4, t7) = (node(tasks, "T4"), node(tasks, "T7"))
        assert t4 is not None and t7 is not None
        assert t7.parents == (tasks.root, t4.prefix)
        assert "T7" in str(tasks.tree()) and "also under T4" in str(tasks.tree())
        # Three leases of T5 run out without renewal, while T4 still exists.
        for _ in range(3):
            assert eventually(lambda: state(tasks, "T5") == "expired")
            tasks.create_addr_prefix("T5")
            assert eventually(lambda: state(tasks, "T5") == "expired")
        assert state(tasks, "T4") == state(tasks, "T7") == "live"
        assert tasks.lease("T4").prefix == t4.prefix
        assert tasks.lease("T4/T7").prefix == t7.prefix, "the edge is an address"
        pipe.send("go")
    assert eventually(lambda: state(tasks, "T4") == "expired")
    with pytest.raises(errors.LeaseExpired, match="'T4'"):
        tasks.open_file("T4")


def test_a_refreshed_handle_adds_no_edge(tasks: honeycomb.Job) -> None:
    tasks.keep()
    file = tasks.open_file("T4")
    with tasks.handle("T5").attach() as task:
        with pytest.raises(errors.AlreadyExists):
            task.create_file("T4")
        own = node(tasks, "T5")
        assert own is not None and own.parents == (tasks.root,), "a refused open is no use"
        # A driver is not attached as a task.
        assert file.read() == b"what T4 wrote"
        task.create_file("T4", exist_ok=True)
        own = node(tasks, "T5")
        assert own is not None and len(own.parents) == 2


@pytest.fixture
def plan(cluster: honeycomb.Client) -> Iterator[honeycomb.Job]:
    """A plan with leases of a week, so that only commits of readers can free its prefixes."""
    with cluster.job("readers", lease=WEEK) as job:
        nodes = [
            honeycomb.Node("T4", readers=("T6", "T7")),
            honeycomb.Node("T6", parents="T4"),
            honeycomb.Node("T7", parents=["T4"]),
        ]
        job.create_hierarchy(nodes)
        job.create_file("T4", blocks=5).append(b"what T4 wrote")
        yield job


def test_the_last_declared_reader_frees_at_once(
    cluster: honeycomb.Client, plan: honeycomb.Job
) -> None:
    free = cluster.status()["free"]
    t4 = node(plan, "T4")
    assert t4 is not None and (t4.readers_left, t4.committed) == (2, False)
    assert "freed by 2 readers" in str(plan.tree())
    with plan.handle("T4/T6").attach() as task:
        assert task.open_file("T4").read() == b"what T4 wrote"
        assert task.commit() == 0
        assert task.commit() == 0, "again changes nothing"
    assert "freed by 1 reader" in str(plan.tree()) and "committed" in str(plan.tree())
    kept = plan.open_file("T4")
    with reading(plan, "T4/T7", "T4") as pipe:
        pipe.send("commit")
        assert last(pipe) == 1
    # The reply to the commit came after the memory server had freed the blocks.
    assert cluster.status()["free"] == free + 5
    for use in (lambda: plan.open_file("T4"), kept.read):
        with pytest.raises(errors.Removed, match=r"last declared reader.*'T4/T7', had committed"):
            use()
    assert {one.name for one in plan.tree()} >= {"T6", "T7"}, "descendants stay"


def test_readers_are_added_replaced_and_withdrawn(plan: honeycomb.Job) -> None:
    plan.create_hierarchy({"T8": [], "T9": "T8"})
    assert plan.declare_readers("T4", "T8") == 3
    assert plan.declare_readers("T4", ["T8/T9"], replace=True) == 1
    assert plan.commit("T8") == plan.commit("T4/T6") == plan.commit("T4/T7") == 0
    assert plan.declare_readers("T4", (), replace=True) == 0
    assert plan.commit("T8/T9") == 0
    assert state(plan, "T4") == "live"
    assert plan.declare_readers("T4", ["T8", "T8/T9"]) == 0, "all of them had committed"
    with pytest.raises(errors.Removed, match="had committed"):
        plan.lease("T4")


def test_a_reader_that_is_gone_never_commits(plan: honeycomb.Job) -> None:
    plan.remove_prefix("T4/T6")
    with pytest.raises(errors.Removed, match="removed by request"):
        plan.commit("T4/T6")
    plan.create_addr_prefix("T4/T6")
    assert plan.commit("T4/T6") == 0, "another prefix, which nobody has declared"
    assert plan.commit("T4/T7") == 0
    left = node(plan, "T4")
    assert left is not None and left.readers_left == 1
    assert plan.declare_readers("T4", ["T4/T6"], replace=True) == 0
    assert state(plan, "T4") == "removed"


def test_who_may_declare_and_commit(plan: honeycomb.Job) -> None:
    with plan.handle("T4/T7").attach() as task:
        with pytest.raises(errors.PermissionDenied, match="its own attempt"):
            task.commit("T4/T6")
        with pytest.raises(errors.PermissionDenied, match="declare readers"):
            task.declare_readers("T4", ["T4/T7"])
    with plan.handle("T4").attach() as task:
        assert task.declare_readers("T4", ["T4/T7"]) == 2
        with pytest.raises(errors.PermissionDenied, match="its own attempt"):
            task.commit("T4/T7")
    with pytest.raises(errors.InvalidArgument, match="not attached as a task"):
        plan.commit()
    with pytest.raises(errors.InvalidArgument, match="number of readers"):
        plan.declare_readers("T4", [])
    with pytest.raises(errors.NotFound, match=r"'nobody', but no prefix"):
        plan.declare_readers("T4", "nobody")
    with pytest.raises(errors.NotFound, match="nowhere"):
        plan.commit("nowhere")


def test_a_pinned_prefix_never_expires_and_ends_with_its_readers(
    cluster: honeycomb.Client,
) -> None:
    with cluster.job("pinned", lease=0.2, keep=False) as job:
        nodes = [
            honeycomb.Node("words", pinned=True, readers="T1"),
            honeycomb.Node("T1", lease=WEEK),
            honeycomb.Node("brief"),
        ]
        job.create_hierarchy(nodes)
        job.create_file("words", blocks=3).append(b"a dictionary")
        free = cluster.status()["free"]
        assert eventually(lambda: state(job, "brief") == "expired")
        words = node(job, "words")
        assert words is not None and words.pinned and words.state == "live"
        assert "pinned, freed by 1 reader" in str(job.tree())
        assert job.tree().blocks == 3, "it holds its blocks as any other"
        assert cluster.status()["pinned"] == 1
        assert [one["pinned"] for one in cluster.jobs() if one["name"] == "pinned"] == [1]
        assert job.open_file("words").read() == b"a dictionary"
        assert job.commit("T1") == 1
        assert cluster.status()["pinned"] == 0
        assert cluster.status()["free"] == free + 3


def test_a_single_string_is_one_name_and_a_bare_name_is_told_its_paths(
    job: honeycomb.Job,
) -> None:
    job.create_hierarchy({"stage": [], "map": "stage", "sink": ["stage"]})
    job.create_hierarchy({"other": "stage/sink"})
    tree = {one.name: one for one in job.tree()}
    assert tree["map"].parents == (tree["stage"].prefix,)
    with pytest.raises(errors.UnknownParent, match=r"'map' is at stage/map"):
        job.create_hierarchy({"reduce": "map"})
    with pytest.raises(errors.NotFound, match=r"'other' is at stage/sink/other"):
        job.create_hierarchy([honeycomb.Node("x", readers="other")])
    with pytest.raises(errors.NotFound, match=r"'sink' is at stage/sink"):
        job.lease("sink")
