"""Jobs whose leases ended, jobs whose process ended, and errors of closing."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from conftest import eventually

import honeycomb
from honeycomb import aio, errors


def lose(job: honeycomb.Job) -> None:
    """Ends the leases of the job, as if its process had been suspended."""
    job.release()
    assert eventually(lambda: is_over(job))


def is_over(job: honeycomb.Job) -> bool:
    try:
        job.lease()
    except errors.LeaseExpired:
        return True
    return False


def test_a_handle_whose_lease_ended_is_never_an_empty_successor(cluster: honeycomb.Client) -> None:
    with cluster.job("lives-handle", lease=0.3) as job, cluster.attach("lives-handle") as other:
        kv, twin = job.kv("d:kv"), pickle.dumps(job.kv("d:kv"))
        kv["a"] = b"1"
        lose(job)
        for use in (lambda: kv["a"], lambda: job.kv("d:kv"), lambda: job.kv("e:kv")):
            with pytest.raises(errors.LeaseExpired) as raised:
                use()
        assert "Reopen the job" in str(raised.value) and "job.reopen()" in raised.value.hint
        # Another process reopens the job and creates the same names.
        other.reopen()
        other.keep()
        other.kv("d:kv")["a"] = b"2"
        uses: list[Callable[[], object]] = [
            lambda: kv["a"],
            lambda: kv.put("a", b"3"),
            lambda: job.kv("d:kv"),
            lambda: job.open_kv("d:kv"),
            lambda: job.create_addr_prefix("f"),
            lambda: job.tree(),
            lambda: job.renew(),
            lambda: pickle.loads(twin)["a"],
        ]
        for use in uses:
            with pytest.raises(errors.LeaseExpired):
                use()
        job.reopen()
        assert job.kv("d:kv")["a"] == b"2"
        with pytest.raises(errors.LeaseExpired):
            kv["a"]
        assert other.kv("d:kv")["a"] == b"2"


def test_a_job_is_reopened_after_it_is_gone(cluster: honeycomb.Client) -> None:
    with cluster.job("lives-gone", lease=0.3) as job:
        kv = job.kv("d:kv")
        lose(job)
        with cluster.job("lives-gone") as other:  # the name of an expired prefix is free
            with pytest.raises(errors.LeaseExpired):
                kv["a"]
            with pytest.raises(errors.AlreadyExists):
                job.reopen()
            other.kv("d:kv")["a"] = b"other"
        job.reopen()
        job.kv("d:kv")["a"] = b"2"
        with pytest.raises(errors.LeaseExpired):
            kv["a"]


def test_a_job_that_lives_is_reopened_as_it_is(cluster: honeycomb.Client) -> None:
    with cluster.job("lives-on") as job:
        kv = job.kv("d:kv")
        kv["a"] = b"1"
        before = (job.id, job.root)
        job.reopen()
        assert (job.id, job.root) == before and kv["a"] == b"1"
        with pytest.raises(errors.PermissionDenied, match="handle"):
            job.handle().attach().reopen()


SUSPENDED = """
import logging, sys, threading
import honeycomb
lost, told = [], threading.Event()
hc = honeycomb.connect(sys.argv[1], token=sys.argv[2])
job = hc.job("lives-suspended", lease=0.5)
job.on_lost_leases(lambda addr, error: (lost.append((addr, error)), told.set()))
kv = job.kv("d:kv")
print("ready", flush=True)
assert told.wait(30)
[(addr, error)] = lost
assert addr == "" and isinstance(error, honeycomb.errors.LeaseExpired), lost
job.reopen()
job.kv("d:kv")["a"] = b"2"
"""


def test_a_process_that_was_suspended_is_told_once(cluster: honeycomb.Client) -> None:
    command = [sys.executable, "-c", SUSPENDED, cluster.address, cluster.token.hex()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(19)  # SIGSTOP
        seen = cluster.attach("lives-suspended")
        assert eventually(lambda: is_over(seen), 30)
        process.send_signal(18)  # SIGCONT
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, told
    assert told.count("lost leases") == 1, told
    assert "lives-suspended" in told and "job.reopen()" in told


REGISTERS = """
import os, sys
import honeycomb
hc = honeycomb.connect(sys.argv[1], token=sys.argv[2])
job = hc.job(sys.argv[3], lease=600)
assert len(job.tree()) == 1
job.kv("data:kv")["a"] = b"1"
if sys.argv[4] == "crash":
    os._exit(1)
"""


def run_script(cluster: honeycomb.Client, name: str, how: str) -> int:
    command = [sys.executable, "-c", REGISTERS, cluster.address, cluster.token.hex(), name, how]
    return subprocess.run(command, check=False, timeout=60).returncode


def test_a_script_that_crashed_is_run_again_at_once(cluster: honeycomb.Client) -> None:
    assert run_script(cluster, "lives-crash", "crash") == 1
    assert run_script(cluster, "lives-crash", "crash") == 1, "in the place of the one before"
    with cluster.job("lives-crash", if_exists="open") as job:
        assert job.kv("data:kv")["a"] == b"1", "the store of a process that ended is taken over"
    assert "lives-crash" not in [info["name"] for info in cluster.jobs()]


def test_what_a_process_registered_ends_with_it(cluster: honeycomb.Client) -> None:
    assert run_script(cluster, "lives-exit", "exit") == 0
    assert "lives-exit" not in [info["name"] for info in cluster.jobs()]


def test_a_name_that_is_taken_is_refused_opened_or_replaced(cluster: honeycomb.Client) -> None:
    with cluster.job("lives-taken") as job:
        job.kv("d:kv")["a"] = b"1"
        with pytest.raises(errors.AlreadyExists, match=f"process {os.getpid()}") as raised:
            cluster.job("lives-taken")
        assert "if_exists" in raised.value.hint
        opened = cluster.job("lives-taken", if_exists="open")
        assert opened.kv("d:kv")["a"] == b"1"
        replaced = cluster.job("lives-taken", if_exists="replace")
        assert len(replaced.tree()) == 1
        with pytest.raises(errors.UnknownJob):
            job.tree()
        replaced.close()
        with pytest.raises(errors.InvalidArgument, match="if_exists"):
            cluster.job("lives-taken", if_exists="keep")  # type: ignore[arg-type]


HOLDS = """
import sys, honeycomb
hc = honeycomb.connect(sys.argv[1], token=sys.argv[2])
job = hc.job("lives-held", lease=600)
job.kv("d:kv")["a"] = b"1"
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_job_whose_holder_lives_is_not_replaced(cluster: honeycomb.Client) -> None:
    command = [sys.executable, "-c", HOLDS, cluster.address, cluster.token.hex()]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stdin=pipe, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with pytest.raises(errors.AlreadyExists, match=f"process {process.pid}"):
            cluster.job("lives-held")
        with cluster.job("lives-held", if_exists="open") as opened:
            assert opened.kv("d:kv")["a"] == b"1"
        # The job belongs to the other process: closing it here does not end it.
        assert cluster.attach("lives-held").kv("d:kv")["a"] == b"1"
        process.kill()
        process.wait()
        with cluster.job("lives-held") as job:
            assert len(job.tree()) == 1
    finally:
        process.kill()
        process.wait()


def test_the_twins_do_the_same(cluster: honeycomb.Client) -> None:
    async def scenario() -> None:
        lost = threading.Event()
        async with aio.AsyncClient(cluster).job("lives-aio", lease=0.3) as job:
            job.on_lost_leases(lambda addr, error: lost.set())
            kv = await job.kv("d:kv")
            await asyncio.to_thread(lose, job.blocking)
            await job.reopen()
            await (await job.kv("d:kv")).put("a", b"1")
            with pytest.raises(errors.LeaseExpired):
                await kv.get("a")

    asyncio.run(scenario())


def test_a_queue_keeps_its_bounds(job: honeycomb.Job) -> None:
    job.queue("w:q")
    with pytest.raises(errors.AlreadyExists, match=r"max_items=0 .* max_items=5"):
        job.queue("w:q", max_items=5)
    assert job.queue("w:q").max_items == 0
    job.queue("v:q", max_items=5, max_bytes=1000)
    assert job.queue("v:q", max_items=5).max_bytes == 1000
    assert job.queue("v:q").max_items == 5
    with pytest.raises(errors.AlreadyExists):
        job.create_queue("v:q", max_bytes=999, exist_ok=True)


UNREACHABLE = """
import os, signal
import honeycomb
hc = honeycomb.connect(memory="4MiB", block_size="64KiB", timeout=1.0)
job, other = hc.job("lives-one"), hc.job("lives-two")
os.kill(PID, signal.SIGKILL)
try:
    job.close()
except honeycomb.errors.Unavailable as error:
    assert "lives-one" in str(error) and "cannot deregister" in str(error), error
else:
    raise SystemExit("it was silent")
job.close()  # closed all the same
try:
    with hc:
        pass
except honeycomb.errors.Unavailable as error:
    assert "lives-two" in str(error), error
else:
    raise SystemExit("it was silent")
"""


def test_closing_says_what_it_could_not_do() -> None:
    script = UNREACHABLE.replace("PID", "hc._embedded._process.pid")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t.hc.job("a\udc80"),
        lambda t: t.hc.attach("a\udc80"),
        lambda t: t.hc.job("ok", tenant="a\udc80"),
        lambda t: t.hc.quota(tenant="\udc80"),
        lambda t: t.job.kv("a\udc80:kv"),
        lambda t: t.job.open_file("a:\udc80"),
        lambda t: t.job.create_addr_prefix("a\udc80"),
        lambda t: t.job.create_addr_prefix("a", parents="\udc80"),
        lambda t: t.job.create_hierarchy({"a\udc80": ()}),
        lambda t: t.job.create_hierarchy({"a": ["\udc80"]}),
        lambda t: t.job.declare_readers("a", "\udc80"),
        lambda t: t.job.create_bucket("a\udc80"),
        lambda t: t.job.create_addr_prefix("a", on_expiry=honeycomb.Flush("\udc80")),
        lambda t: t.job.flush_addr_prefix("", "\udc80"),
        lambda t: t.job.renew("\udc80"),
        lambda t: t.job.keep("\udc80"),
        lambda t: t.kv.get("\udc80"),
        lambda t: t.kv.put("\udc80", b"1"),
        lambda t: t.kv["\udc80"],
        lambda t: "\udc80" in t.kv,
        lambda t: t.kv.multi_get(["a", "\udc80"]),
        lambda t: t.kv.update({"\udc80": b"1"}),
        lambda t: t.kv.delete("\udc80"),
    ],
)
def test_text_that_is_no_utf_8_is_an_invalid_argument(
    cluster: honeycomb.Client, job: honeycomb.Job, use: Callable[[object], object]
) -> None:
    class Things:
        hc = cluster

    things = Things()
    things.job, things.kv = job, job.kv("surrogates:kv")  # type: ignore[attr-defined]
    with pytest.raises(errors.InvalidArgument, match="surrogate"):
        use(things)
