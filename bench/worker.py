"""A worker that measures clients in Python: Honeycomb's package, redis-py with hiredis, pymemcache.

Reads lines of JSON and replies to each, as defined in ``bench/contract.h`` and
``bench/peers/src/contract.rs``: to a specification (it has ``system``) with ``ready``, to a round (it has
``seconds``) with the measurements.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Work = Callable[[int], object]


def key_of(size: int, number: int) -> bytes:
    """A key of 16 bytes, the same in every client."""
    return b"%07x:%08d" % (size & 0xFFFFFFF, number)


def chosen(spec: dict[str, Any]) -> Iterator[bytes]:
    """Keys in random order, made before the measurement starts."""
    table = [key_of(spec["size"], number) for number in range(spec["keys"])]
    order = random.Random(1).choices(table, k=4096)
    while True:
        yield from order


def whole(value: object, size: int) -> None:
    if value is None or len(value) != size:  # type: ignore[arg-type]
        raise ValueError(f"a value came back as {type(value)} of the wrong length")


def summed(buffer: Any) -> int:
    """Reads all bytes once, at the speed of memory."""
    import numpy

    return int(numpy.frombuffer(buffer, dtype=numpy.uint64).max())


def mapped(file: Any, value: bytes, op: str) -> Work:
    """A sealed file, mapped again for each operation and, with ``pass``, read once."""
    with file.open("ab") as appender:
        appender.write(value)
    file.seal()
    look = {"get": len, "pass": summed}[op]

    def work(_: int) -> None:
        with file.map() as view:
            if not view.shared:
                raise ValueError(f"the file was copied: {view.reason}")
            look(view.data)

    return work


def on_honeycomb(spec: dict[str, Any], value: bytes) -> tuple[str, Work]:
    import honeycomb

    os.environ["HONEYCOMB_UNIX"] = "false" if spec["transport"] == "tcp" else "true"
    client = honeycomb.connect(spec["address"], spec["token"])
    job = client.job(spec["name"], lease=86400.0)
    size, op, keys = spec["size"], spec["op"], chosen(spec)
    about = f"honeycomb {honeycomb.__version__}"
    if op == "queue":
        queue = job.queue("/bench")
        return about, lambda i: queue.get(0) if i % 2 else queue.put(value, 0)
    if spec["transport"] == "map":
        return about, mapped(job.file("/bench"), value, op)
    kv = job.kv("/bench", blocks=spec["blocks"])
    for number in range(spec["keys"]):
        kv.put(key_of(size, number), value)
    get, put, into = kv.get, kv.put, kv.get_into
    if op == "get":
        return about, lambda _: whole(get(next(keys)), size)
    if op == "put":
        return about, lambda _: put(next(keys), value)
    if op == "get_into":
        buffer = bytearray(size)
        return about, lambda _: into(next(keys), buffer)
    if op == "pass":
        return about, lambda _: summed(get(next(keys)))
    if op in ("multi_get", "multi_put"):
        many = [next(keys) for _ in range(spec["batch"])]
        if op == "multi_get":
            return about, lambda _: kv.multi_get(many)
        entries = dict.fromkeys(many, value)
        return about, lambda _: kv.multi_put(entries)
    raise ValueError(f"no '{op}' in Python")


def on_redis(spec: dict[str, Any], value: bytes) -> tuple[str, Work]:
    import hiredis
    import redis

    address, size, op, keys = spec["address"], spec["size"], spec["op"], chosen(spec)
    if address.startswith("unix:"):
        client = redis.Redis(unix_socket_path=address[5:])
    else:
        host, port = address.rsplit(":", 1)
        client = redis.Redis(host=host, port=int(port))
    about = f"redis-py {redis.__version__} with hiredis {hiredis.__version__}"
    if op == "queue":
        client.delete("queue")
        return about, lambda i: client.rpop("queue") if i % 2 else client.lpush("queue", value)
    for number in range(spec["keys"]):
        client.set(key_of(size, number), value)
    if op in ("get", "get_into"):
        return about, lambda _: whole(client.get(next(keys)), size)
    if op == "put":
        return about, lambda _: client.set(next(keys), value)
    if op == "pass":
        return about, lambda _: summed(client.get(next(keys)))
    if op in ("multi_get", "multi_put"):
        many = [next(keys) for _ in range(spec["batch"])]
        if op == "multi_get":
            return about, lambda _: client.mget(many)
        entries = dict.fromkeys(many, value)
        return about, lambda _: client.mset(entries)
    raise ValueError(f"redis-py does no '{op}'")


def on_memcached(spec: dict[str, Any], value: bytes) -> tuple[str, Work]:
    import pymemcache

    address, size, op, keys = spec["address"], spec["size"], spec["op"], chosen(spec)
    server = address if address.startswith("unix:") else tuple(address.rsplit(":", 1))
    client = pymemcache.Client(server, no_delay=True)
    about = f"pymemcache {pymemcache.__version__}"
    for number in range(spec["keys"]):
        client.set(key_of(size, number), value, noreply=False)
    if op == "get":
        return about, lambda _: whole(client.get(next(keys)), size)
    if op == "put":
        return about, lambda _: client.set(next(keys), value, noreply=False)
    raise ValueError(f"pymemcache does no '{op}'")


SYSTEMS = {"honeycomb": on_honeycomb, "redis": on_redis, "memcached": on_memcached}


def measure(work: Work, seconds: float, most: int) -> dict[str, Any]:
    """Runs one round; on a queue an even number of operations, so that the queue ends as it began."""
    took: list[int] = []
    clock = time.perf_counter_ns
    cpu, began = time.process_time_ns(), clock()
    until, before, count = began + int(seconds * 1e9), began, 0
    while True:
        work(count)
        now = clock()
        took.append(now - before)
        before = now
        count += 1
        if (now >= until or count >= most) and count % 2 == 0:
            break
    wall, cpu = clock() - began, time.process_time_ns() - cpu
    took.sort()
    at = [took[min(int(q * count), count - 1)] / 1000 for q in (0.5, 0.9, 0.99, 0.999, 1.0)]
    return {"ops": count, "wall_ns": wall, "cpu_ns": cpu, "latency_us": at}


def main() -> None:
    work: Work | None = None
    for line in sys.stdin:
        told = json.loads(line)
        if "system" in told:
            value = random.Random(7).randbytes(told["size"])
            about, work = SYSTEMS[told["system"]](told, value)
            answer: dict[str, Any] = {"ready": True, "about": about}
        elif work is not None:
            answer = measure(work, told["seconds"], told["ops"])
        else:
            raise ValueError("a round before any specification")
        print(json.dumps(answer), flush=True)


def tell(kind: type[BaseException], error: BaseException, _: object) -> None:
    """Sends the error as the last reply."""
    print(json.dumps({"error": f"{kind.__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    sys.excepthook = tell
    main()
