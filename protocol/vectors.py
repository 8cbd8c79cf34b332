#!/usr/bin/env python3
"""Makes the golden vectors with a second implementation of the protocol (vectors/peer.py).

That implementation shares no code with the Rust crates, so a vector on which both agree confirms PROTOCOL.md.
If a rule decides the expected result of a vector (refusals, tokens, retries), the result is written by hand;
peer.py and crates/wire/tests/bytes/vectors.rs have to agree with it.

It also writes the tables of PROTOCOL.md that messages.toml decides, between their markers
(vectors/tables.py). `--check` compares everything and writes nothing.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "vectors"))

from bodies import DATA_SAMPLES, messages
from frames import frames
from peer import SPEC, key_hash, tag_of
from refusals import refusals
from tables import DATA_LAYOUTS, document, retry
from tokens import tokens


def slots() -> dict:
    keys = [
        b"", b"a", b"key", b"\0", b"\xff\xfe\0binary\x80", bytes(range(256)), b"x" * 31, b"x" * 32,
        b"x" * 33, b"x" * 64, "schl\u00fcssel".encode(), b"longest" * 585 + b"l",
        b"{user7}:name", b"{user7}:age", b"user7", b"before{user7}after", b"{user7}{user8}",
        b"{}a", b"{}", b"{", b"}", b"{a", b"a}", b"}{", b"}{t}", b"{}{t}", b"{{t}}", b"{{t",
        b"{a{b}c}", b"{\0\xff}binary tag", b"{ }", b"x{t}" * 9, b"{" + b"t" * 4094 + b"}",
    ]  # fmt: skip
    keys += [b"k%d" % i for i in range(40)]
    cases = []
    for key in keys:
        value, tag = key_hash(key), tag_of(key)
        cases.append(
            {
                "key": key.hex(),
                "tag": None if tag is None else tag.hex(),
                "hash": f"{value:016x}",
                "slot": value >> 48,
            }
        )
    return {"keys": cases}


def main() -> int:
    data = {op["name"] for op in SPEC["op"] if op.get("body") == "data"}
    kept = {
        "vectors/bodies.py: DATA_SAMPLES": DATA_SAMPLES,
        "vectors/tables.py: DATA_LAYOUTS": DATA_LAYOUTS,
    }
    for place, names in kept.items():
        if differ := sorted(data.symmetric_difference(names)):
            print(f"{place} and the data operations differ in {', '.join(differ)}", file=sys.stderr)
    if any(set(names) != data for names in kept.values()):
        return 1
    made = {}
    for make in (frames, refusals, slots, tokens, messages, retry):
        text = json.dumps(make(), indent=1, ensure_ascii=True) + "\n"
        made[HERE / "vectors" / f"{make.__name__}.json"] = text
    doc = HERE / "PROTOCOL.md"
    made[doc] = document(doc.read_text())
    stale = 0
    for path, text in made.items():
        if path.exists() and path.read_text() == text:
            continue
        stale = 1
        name = path.relative_to(HERE)
        if "--check" in sys.argv:
            print(f"{name} is not what vectors.py makes of messages.toml", file=sys.stderr)
        else:
            path.write_text(text)
            print(f"wrote protocol/{name}")
    return stale if "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
