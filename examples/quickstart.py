"""Honeycomb in a minute: run it with ``.venv/bin/python examples/quickstart.py``.

It needs no running cluster: ``connect()`` finds a running one or starts an embedded one.
"""

from concurrent.futures import wait

import honeycomb
from honeycomb.mapreduce import MapReduce


def log_squares(job: honeycomb.Job, task: str, numbers: range) -> None:
    """Runs in another process, which received ``job`` as a pickle."""
    with job.open("squares:log", "ab") as log:
        for number in numbers:
            log.write(f"{task}: {number}^2 = {number * number}\n".encode())


def main() -> None:
    with honeycomb.connect() as hc, hc.job("quickstart") as job:
        # A key-value store is a dictionary.
        capitals = job.kv("capitals")
        capitals["France"] = b"Paris"
        capitals["Japan"] = b"Tokyo"
        print("capitals:", dict(capitals.items()))

        # Many processes can append to a file at the same time; each write stays in one piece.
        job.file("squares:log")
        with honeycomb.WorkerPool(2) as pool:
            tasks = [
                pool.submit(log_squares, job, "a", range(3)),
                pool.submit(log_squares, job, "b", range(3, 6)),
            ]
            wait(tasks)
            for task in tasks:
                task.result()
        with job.open("squares:log") as log:
            print("log:")
            for line in log:
                print("  ", line.decode().rstrip())

        # The job's address hierarchy: prefixes with leases, structures, blocks.
        print(job.tree())

        # MapReduce over any objects that can be pickled.
        text = ["the bee and the flower", "the flower and the honey"]
        count = MapReduce(
            map=lambda line: ((word, 1) for word in line.split()),
            reduce=lambda word, ones: sum(ones),
        )
        with count.run(text, client=hc, reducers=2) as result:
            print("words:", dict(sorted(result)))
    # The end of the `with` block freed all memory.


if __name__ == "__main__":
    main()
