"""A listener that is read more slowly than changes arrive uses bounded memory, and gets gaps."""

from __future__ import annotations

import honeycomb

KEYS = [f"{number:02}".encode() + bytes(2000) for number in range(20)]
#: The changes have far more bytes in total than the sockets between server and listener hold.
ROUNDS = 1500


def test_what_is_not_read_is_told_as_a_gap(job: honeycomb.Job) -> None:
    store = job.kv("watched:kv")
    entries = dict.fromkeys(KEYS, b"")
    with store.subscribe("put") as listener:
        heard = []
        for _ in range(ROUNDS):
            store.multi_put(entries)
            heard.append(listener.get(timeout=10))
        while (one := listener.get(timeout=1)) is not None:
            heard.append(one)
    puts = [one for one in heard if one is not None and one.op == "put"]
    gaps = [one for one in heard if one is not None and one.op == "gap"]
    assert gaps, "it had read ahead without bound"
    assert {one.key for one in puts} == set(KEYS)
    # Each change was reported or counted, and in order.
    missed = [one.missed for one in gaps]
    assert None in missed or len(puts) + sum(filter(None, missed)) == ROUNDS * len(KEYS)
    numbers = [one.number for one in puts]
    assert numbers == sorted(numbers)
