from __future__ import annotations

import math
import os
import pickle
import time
from dataclasses import replace

import pytest
from conftest import eventually

import honeycomb
from honeycomb import Node, errors


def test_a_hierarchy_is_a_dag(job: honeycomb.Job) -> None:
    # The paper's Figure 4, from its plan.
    plan = {
        "T1": [], "T2": [], "T3": [], "T4": [],
        "T5": ["T1", "T2"], "T6": ["T4"], "T7": ["T3", "T5", "T6"], "T8": ["T7"], "T9": ["T7"],
    }  # fmt: skip
    numbers = job.create_hierarchy(plan)
    assert len(set(numbers.values())) == 9
    # Every path from a root is an address of the same prefix.
    for path in ("T3/T7", "T1/T5/T7", "T2/T5/T7", "T4/T6/T7"):
        assert job.lease(path).prefix == numbers["T7"]
    tree = job.tree()
    by_name = {node.name: node for node in tree}
    assert set(by_name["T7"].parents) == {numbers["T3"], numbers["T5"], numbers["T6"]}
    drawn = str(tree)
    assert "T9" in drawn and "also under" in drawn


def test_bad_hierarchies_are_refused_whole(job: honeycomb.Job) -> None:
    with pytest.raises(errors.Cycle, match="b"):
        job.create_hierarchy({"a": ["c"], "b": ["a"], "c": ["b"]})
    with pytest.raises(errors.UnknownParent, match="ghost"):
        job.create_hierarchy({"d": ["ghost"]})
    assert len(job.tree()) == 1
    job.create_addr_prefix("a")
    with pytest.raises(errors.AlreadyExists):
        job.create_addr_prefix("a")
    with pytest.raises(errors.HoneycombError):
        job.create_addr_prefix("no/such/parent")


def test_a_prefix_holds_many_structures(job: honeycomb.Job) -> None:
    job.create_addr_prefix("t", lease=2.5)
    kv = job.init_data_structure("t", "kv")
    file = job.init_data_structure("t:out", "file")
    kv["k"] = b"v"
    file.append(b"data")
    (node,) = [node for node in job.tree() if node.name == "t"]
    assert {one.name: one.kind for one in node.structures} == {"": "kv", "out": "file"}
    assert job.get_lease_duration("t") == 2.5
    assert 0 < job.lease("t").remaining <= 2.5
    with pytest.raises(errors.AlreadyExists):
        job.create_kv("t")
    assert job.open_kv("t")["k"] == b"v"
    job.remove("t:out")
    with pytest.raises(errors.NotFound):
        job.open_file("t:out")
    with pytest.raises(errors.InvalidArgument):
        job.init_data_structure("t", "list")  # type: ignore[call-overload]


def test_removed_prefixes_give_their_data_back(job: honeycomb.Job) -> None:
    kv = job.kv("gone")
    kv["k"] = b"v"
    job.remove_prefix("gone")
    with pytest.raises(errors.HoneycombError):
        kv["k"]


def test_pinned_prefixes_never_expire(job: honeycomb.Job) -> None:
    job.create_hierarchy([Node("p", pinned=True), Node("q", lease=3.0)])
    assert job.lease("p").pinned and job.lease("p").remaining == math.inf
    assert job.lease_duration("q") == 3.0


def test_arguments_are_checked_here(job: honeycomb.Job) -> None:
    for lease in (0.0, 0.1, 700_000.0):
        with pytest.raises(errors.InvalidArgument, match="lease"):
            job.create_addr_prefix("x", lease=lease)
    with pytest.raises(errors.InvalidArgument, match="'rw'"):
        job.create_addr_prefix("x", job_verbs="rwx")
    with pytest.raises(errors.InvalidArgument, match="is a structure"):
        job.create_addr_prefix("x:y")
    with pytest.raises(errors.InvalidArgument, match="names no structure"):
        job.kv("x:")


def test_a_job_that_names_no_lease_has_the_clusters(cluster: honeycomb.Client) -> None:
    with cluster.job() as job, cluster.job(lease=3.0) as other:
        assert job.lease_duration() == 10.0
        assert other.lease_duration() == 3.0


def test_an_expired_lease_is_told_by_name(cluster: honeycomb.Client) -> None:
    with cluster.job(keep=False, lease=30.0) as job:
        job.create_addr_prefix("scratch", lease=0.3)
        job.create_addr_prefix("kept", lease=30.0)
        scratch = job.create_kv("scratch")
        kept = job.create_kv("kept")
        scratch["k"] = kept["k"] = b"v"

        def expired() -> bool:
            try:
                return scratch["k"] != b"v"
            except errors.LeaseExpired as error:
                assert "scratch" in str(error)
                return True

        # The driver's traffic does not renew leases: reading data does not keep it.
        assert eventually(expired)
        assert kept["k"] == b"v"
        results = job.renew("scratch", "kept")
        assert [result.ok for result in results] == [False, True]
        assert isinstance(results[0].error, errors.LeaseExpired)
        assert results[1].lease == 30.0


def test_keeping_a_prefix_keeps_its_parents_and_descendants(cluster: honeycomb.Client) -> None:
    with cluster.job(keep=False, lease=0.4) as job:
        job.create_hierarchy({"a": [], "b": ["a"], "c": ["b"], "other": []})
        for path in ("a", "a/b", "a/b/c", "other"):
            job.create_kv(path)["k"] = b"v"
        job.keep("a/b")

        def other_is_gone() -> bool:
            try:
                job.open_kv("other")
            except errors.LeaseExpired:
                return True
            return False

        assert eventually(other_is_gone)
        for path in ("a", "a/b", "a/b/c"):
            assert job.open_kv(path)["k"] == b"v"


def test_a_kept_job_outlives_its_leases(cluster: honeycomb.Client) -> None:
    with cluster.job(lease=0.3) as job:
        kv = job.kv("k")
        kv["k"] = b"v"
        assert not eventually(lambda: kv.get("k") is None, seconds=1.0)


def test_jobs_are_listed_and_found(cluster: honeycomb.Client, job: honeycomb.Job) -> None:
    assert job.name in [info["name"] for info in cluster.jobs()]
    job.kv("k")["x"] = b"y"
    other = cluster.attach(job.name)
    assert other.open_kv("k")["x"] == b"y"
    other.close()
    assert job.open_kv("k")["x"] == b"y"
    with pytest.raises(errors.AlreadyExists):
        cluster.job(job.name)
    with pytest.raises(errors.UnknownJob):
        cluster.attach("no such job")


def test_leaving_the_block_deregisters(cluster: honeycomb.Client) -> None:
    free = cluster.status()["free"]
    with cluster.job("short") as job:
        job.kv("k", blocks=3)
        assert "short" in [info["name"] for info in cluster.jobs()]
    assert "short" not in [info["name"] for info in cluster.jobs()]
    assert eventually(lambda: cluster.status()["free"] >= free)
    job.close()
    with pytest.raises(errors.Closed):
        job.tree()


def test_the_body_s_exception_wins(cluster: honeycomb.Client) -> None:
    with pytest.raises(ZeroDivisionError), cluster.job("mine") as job:
        cluster.attach("mine")._session.native.deregister_job(job.id)
        raise ZeroDivisionError


def test_two_jobs_cannot_see_each_other(cluster: honeycomb.Client) -> None:
    with cluster.job() as one, cluster.job() as two:
        one.kv("same")["k"] = b"one"
        two.kv("same")["k"] = b"two"
        assert one.kv("same")["k"] == b"one"
        # With the token of one job, the other does not exist, neither by number nor by name.
        intruder = replace(one.handle(), job=two.id).attach()
        for attempt in (
            lambda: intruder.open_kv("same"),
            lambda: intruder.tree(),
            lambda: intruder.create_addr_prefix("x"),
            lambda: intruder.lease("same"),
            lambda: intruder.remove("same"),
        ):
            with pytest.raises((errors.UnknownJob, errors.PermissionDenied)):
                attempt()
        narrow = honeycomb.connect(cluster.address, one.token)
        assert [info["name"] for info in narrow.jobs()] == [one.name]
        with pytest.raises(errors.HoneycombError):
            narrow.attach(two.name)
        with pytest.raises(errors.HoneycombError):
            narrow.job("third")
        narrow.close()
        assert two.kv("same")["k"] == b"two"


def test_a_task_writes_its_own_prefix_and_reads_its_job_s(job: honeycomb.Job) -> None:
    job.create_hierarchy({"mine": [], "theirs": []})
    job.create_addr_prefix("shared", job_verbs="rw")
    job.create_addr_prefix("hidden", job_verbs="")
    for path in ("mine", "theirs", "shared", "hidden"):
        job.create_kv(path)["k"] = b"v"
    handle = pickle.loads(pickle.dumps(job.handle("mine")))
    assert job.token.hex() not in repr(handle) and str(job.token) not in repr(handle)
    with handle.attach() as task:
        assert task.task == "mine" and "task mine" in repr(task)
        task.open_kv("mine")["k"] = b"w"
        task.open_kv("shared")["k"] = b"w"
        assert task.open_kv("theirs")["k"] == b"v"
        with pytest.raises(PermissionError):
            task.open_kv("theirs")["k"] = b"w"
        with pytest.raises(PermissionError):
            task.open_kv("hidden")["k"]
    # The end of the task does not end the job.
    assert job.open_kv("mine")["k"] == b"w"


def test_a_job_travels_by_pickle(job: honeycomb.Job, pool: honeycomb.WorkerPool) -> None:
    job.kv("k")

    def work(there: honeycomb.Job) -> str:
        there.open_kv("k")["pid"] = str(os.getpid()).encode()
        return there.name

    assert pool.submit(work, job).result() == job.name
    assert int(job.open_kv("k")["pid"]) != os.getpid()
    one, two = pickle.loads(pickle.dumps((job, job)))
    assert one is two


def test_a_quota_bounds_a_job(cluster: honeycomb.Client) -> None:
    with cluster.job(quota_blocks=2) as job:
        job.kv("a", blocks=2)
        with pytest.raises(errors.QuotaExceeded):
            job.kv("b")


def test_quotas_of_prefixes_jobs_and_tenants(cluster: honeycomb.Client) -> None:
    with cluster.job("one", tenant="fruit") as job, cluster.job("two", tenant="fruit") as other:
        job.create_addr_prefix("a", max_blocks=2)
        job.create_addr_prefix("a/b")
        job.create_hierarchy([honeycomb.Node("c", max_blocks=5)])
        job.kv("a/b", blocks=2)
        assert job.quota("a") == honeycomb.Quota(2, 2, memory_blocks=2)
        assert job.quota("c") == honeycomb.Quota(5, 0)
        with pytest.raises(errors.QuotaExceeded, match="prefix 'a' with its descendants holds 2"):
            job.kv("a:more")
        assert job.set_quota("a", 3) == honeycomb.Quota(3, 2, memory_blocks=2)
        job.kv("a:more")
        assert cluster.set_quota(4, tenant="fruit").held_blocks == 3
        with pytest.raises(errors.QuotaExceeded, match="the tenant 'fruit' holds 3 of its quota"):
            other.kv("x", blocks=2)
        assert cluster.set_quota(0, tenant="fruit").max_blocks == 0
        assert cluster.set_quota(3, job="fruit/one") == job.quota()
        with (
            honeycomb.connect(cluster.address, token=job.token) as own,
            pytest.raises(errors.PermissionDenied),
        ):
            own.set_quota(9, tenant="fruit")
        with pytest.raises(errors.InvalidArgument, match="a tenant's or a job's"):
            cluster.set_quota(9)
        assert job.quota("a") == honeycomb.Quota(3, 3, memory_blocks=3)


def test_soft_quotas_and_weights(cluster: honeycomb.Client) -> None:
    with cluster.job("one", tenant="soft") as job, cluster.job("alone") as alone:
        job.create_addr_prefix("a", max_blocks=4)
        job.kv("a", blocks=2)
        # Parameters that are not passed stay unchanged.
        assert job.set_quota("a", soft_blocks=1) == honeycomb.Quota(4, 2, 1, memory_blocks=2)
        assert job.set_quota("a", 5) == honeycomb.Quota(5, 2, 1, memory_blocks=2)
        assert job.set_quota("a", soft_blocks=0).soft_blocks == 0
        assert cluster.set_quota(tenant="soft", soft_blocks=8, weight=3) == cluster.quota(
            tenant="soft"
        )
        assert cluster.quota(tenant="soft") == honeycomb.Quota(0, 2, 8, 3, 2)
        assert cluster.set_quota(job="alone", weight=2) == alone.quota()
        assert alone.quota().weight == 2
        with pytest.raises(errors.InvalidArgument, match="has its tenant's share"):
            cluster.set_quota(job="soft/one", weight=2)
        for wrong in (lambda: cluster.set_quota(tenant="soft"), lambda: job.set_quota("a")):
            with pytest.raises(errors.InvalidArgument, match="nothing to change"):
                wrong()
        with pytest.raises(errors.InvalidArgument, match="weight is 1 to 1048576, not 0"):
            cluster.set_quota(job="alone", weight=0)
        with pytest.raises(errors.InvalidArgument, match="soft_blocks is 0 to"):
            job.set_quota("a", soft_blocks=-1)
        assert cluster.set_quota(0, tenant="soft", soft_blocks=0, weight=1).weight == 1


def test_a_job_is_told_what_it_has_used(cluster: honeycomb.Client) -> None:
    with cluster.job("one", tenant="paid") as job:
        assert set(job.cost().gb_seconds) == {"memory", "nvme", "ssd", "hdd", "object"}
        assert set(job.cost().gb_seconds.values()) == {0}
        job.kv("a", blocks=2)["k"] = b"v" * 1000
        while (cost := job.cost({"memory": 3.6})).used_gb_seconds["memory"] == 0:
            assert cost.age < 20, "no server reported what it holds"
        assert cost.gb_seconds["memory"] > cost.used_gb_seconds["memory"]
        assert cost.money == pytest.approx(cost.gb_seconds["memory"] / 1000)
        assert cost.money_by_tier["memory"] == cost.money
        assert cost.money <= cost.money_at_peak * (1 + 1e-9)
        block = cluster.status()["servers"][0]["block_size"]
        assert (cost.name, cost.ended, cost.peak_bytes) == ("paid/one", False, 2 * block)
        assert job.cost().money == pytest.approx(cost.money * 0.008 / 3.6, rel=1)
        assert job.cost({"memory": 0, "object": 9, "to-object": 9, "moved": 9}).money == 0
    (ended,) = cluster.costs(tenant="paid", prices={"memory": 3.6})
    assert ended.ended and ended.money >= cost.money
    assert "GB-seconds" in ended._repr_html_()
    for wrong in ({"gold": 1.0}, {}, {"memory": -1.0}, {"nvme": 1.0}, {"to-gold": 1.0}):
        with pytest.raises(errors.InvalidArgument):
            cluster.costs(prices=wrong)


def test_a_job_says_what_it_will_need(cluster: honeycomb.Client) -> None:
    with cluster.job("sort", tenant="acme", tasks=2, capacity="1 MiB", quota_blocks=9) as job:
        assert job.name == "acme/sort"
        (told,) = (info for info in cluster.jobs() if info["name"] == "acme/sort")
        assert (told["tasks"], told["capacity"], told["quota_blocks"]) == (2, 1 << 20, 9)
        assert told["latency_sensitive"]
        assert (told["expected_bytes"], told["expected_bytes_per_s"]) == (1 << 20, 150_000_000)
        job.kv("a")["k"] = b"v"
        with cluster.attach("acme/sort") as found:
            assert found.open_kv("a")["k"] == b"v"
    with pytest.raises(errors.InvalidArgument, match="capacity"):
        cluster.job(capacity="much")
    with pytest.raises(errors.InvalidArgument):
        cluster.job("sort", tenant="a/b")


def test_no_memory_is_told_and_harms_nothing(cluster: honeycomb.Client, job: honeycomb.Job) -> None:
    job.kv("safe")["k"] = b"v"
    with pytest.raises(errors.OutOfMemory):
        job.file("huge", blocks=cluster.status()["blocks"] + 1)
    assert job.open_kv("safe")["k"] == b"v"


def test_a_short_lease_is_kept_beside_a_long_one(cluster: honeycomb.Client) -> None:
    """The keeper renews through the root; an earlier version used the interval of the root's lease only."""
    with cluster.job("long-and-short", lease=60.0) as job:
        job.create_addr_prefix("p", lease=0.3)
        store = job.create_kv("p:kv")
        store[b"k"] = b"v"
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            assert store[b"k"] == b"v"


def test_what_is_missing_of_a_path_is_created(job: honeycomb.Job) -> None:
    job.kv("one/two/three:kv")[b"k"] = b"v"
    assert job.kv("one/two/three:kv")[b"k"] == b"v"


def test_a_client_closes_the_jobs_that_nobody_holds(cluster: honeycomb.Client) -> None:
    with honeycomb.connect(cluster.address, cluster.token) as other:
        other.job("forgotten")
    assert "forgotten" not in [job["name"] for job in cluster.jobs()]
