"""Vectors of message bodies and of the arguments that are laid out by hand."""

import hashlib

from batches import (
    FUNCTIONS,
    OPERATIONS,
    RANGES,
    RESULTS,
    batch_parts,
    integer,
    keys_parts,
    operand_cases,
    ranges_parts,
    result_parts,
    stored_cases,
    top,
)
from moves import moves
from peer import (
    INTEGERS,
    LIMITS,
    ROUTES,
    SPEC,
    STRUCTS,
    U32,
    U64,
    put,
    put_fields,
    shown_fields,
)
from queues import ACK_SAMPLES, QUEUE_SAMPLES, SUBSCRIBE_SAMPLES, notices

TYPICAL = {
    "name": "part-0",
    "path": "T4/T6",
    "address": "10.0.0.7:7070",
    "message": "the lease of T4/T6 (1000 ms) ended 350 ms ago",
    "job": 0x0001_0000_0000_0005,
    "major": 1,
    "minor": 0,
    "features": 0,
    "session": 0x0123456789ABCDEF0011223344556677,
    "shard": 255,
    "shards": 4,
    "window": 16,
    "kind": 0x12,
    "verbs": 3,
    "owner_verbs": 3,
    "job_verbs": 1,
    "lease_ms": 1000,
    "router": 3,
    "block": 0x0000_0003_0100_0002,
    "epoch": 0x0000_0100_0000_0005,
    "block_size": 1 << 27,
    "start": 0x4000_0000_0000_0000,
    "end": 0x7FFF_FFFF_FFFF_FFFF,
    "remaining_ms": -350,
    "version": 6,
}


def sample(name: str, kind: str, style: str, depth: int = 0) -> object:
    """A value of a type: 'zero', 'typical' (by the field's name) or 'extreme'."""
    if kind in STRUCTS:
        return sample_fields(STRUCTS[kind], style, depth)
    if kind.startswith("list:"):
        if style == "zero":
            return []
        styles = ["typical", "extreme"] if style == "typical" else ["extreme", "zero", "typical"]
        return [sample(name.removesuffix("s"), kind[5:], s, depth + 1) for s in styles[: 3 - depth]]
    if kind.startswith("opt:"):
        return None if style == "zero" else sample(name, kind[4:], style, depth)
    if style == "zero":
        return {"bool": False, "str": "", "bytes": b""}.get(kind, 0)
    if style == "typical":
        if name in TYPICAL:
            return TYPICAL[name]
        digest = hashlib.sha256(f"{name} {kind}".encode()).digest()
        if kind in INTEGERS:
            return int.from_bytes(digest[: max(1, INTEGERS[kind][0] // 2)], "little")
        return {"bool": True, "str": f"a {name}", "bytes": digest}[kind]
    if kind in INTEGERS:
        size, signed = INTEGERS[kind]
        return -(1 << 63) if signed else (1 << 8 * size) - 1
    return {"bool": True, "str": "\u00fc\u4e2d\U0001f41d{}\"\\'" * 12, "bytes": bytes(range(256))}[
        kind
    ]


def sample_fields(fields: list, style: str, depth: int = 0) -> dict:
    return {name: sample(name, kind, style, depth) for name, kind, _ in fields}


ENTRY = STRUCTS["MapEntry"]
MOVED_SAMPLES = [
    {
        "name": "a file's tail was sealed at 65,000; its successor starts where it ends",
        "own_start": 131_000,
        "value": 65_000,
        "version": 7,
        "entry": {
            "start": 0,
            "end": U64,
            "block": 0x0000_0003_0000_0009,
            "epoch": 0x0000_0100_0000_0008,
            "address": "10.0.0.7:7070",
        },
        "becomes": {"own_end": 195_999, "start": 196_000, "end": U64},
    },
    {
        "name": "a file's first block was sealed at 1",
        "own_start": 0,
        "value": 1,
        "version": 2,
        "entry": {"start": 0, "end": U64, "block": 1, "epoch": 1, "address": "[::1]:1"},
        "becomes": {"own_end": 0, "start": 1, "end": U64},
    },
    {
        "name": "a queue's tail was sealed after 100,000 items",
        "own_start": 1 << 40,
        "value": 100_000,
        "version": 12,
        "entry": {"start": 0, "end": U64, "block": 2, "epoch": 9, "address": "10.0.0.8:7070"},
        "becomes": {
            "own_end": (1 << 40) + 99_999,
            "start": (1 << 40) + 100_000,
            "end": U64,
        },
    },
]


def moved_bytes(version: int, entry: dict) -> bytes:
    return put("u64", version) + put_fields(ENTRY, entry)


def moved_cases() -> list:
    out = []
    for case in MOVED_SAMPLES:
        start = case["own_start"] + case["value"] + case["entry"]["start"]
        assert (start, start - 1) == (case["becomes"]["start"], case["becomes"]["own_end"])
        out.append(
            {
                "name": case["name"],
                "own_start": str(case["own_start"]),
                "value": str(case["value"]),
                "args": moved_bytes(case["version"], case["entry"]).hex(),
                "version": str(case["version"]),
                "entry": shown_fields(ENTRY, case["entry"]),
                "becomes": {key: str(value) for key, value in case["becomes"].items()},
            }
        )
    return out


def data(name: str, fields: dict | None = None, args=b"", payload=b"", value=0) -> dict:
    case = {"name": name, "fields": fields or {}, "args": args.hex(), "payload": payload.hex()}
    return case | {"value": str(value)}


def ask(name: str, fields: dict | None = None, args: bytes = b"", payload: bytes = b"") -> dict:
    case = data(name, fields, args, payload)
    del case["value"]
    return case


def read_case(offset: int, length: int) -> dict:
    fields = {"offset": str(offset), "length": length}
    return ask(f"{length} bytes at {offset}", fields, put("u64", offset) + put("u32", length))


def key_case(name: str, key: bytes, payload: bytes = b"", mode: int | None = None) -> dict:
    fields = {"key": key.hex()} if mode is None else {"mode": mode, "key": key.hex()}
    return ask(name, fields, (b"" if mode is None else bytes([mode])) + key, payload)


def swap_case(name: str, present: int, key: bytes, expected: bytes, new: bytes) -> dict:
    fields = {"present": present, "key": key.hex(), "expected": expected.hex(), "new": new.hex()}
    args = bytes([present]) + put("u16", len(key)) + key
    return ask(name, fields, args, put("bytes", expected) + new)


def scan_case(name: str, cursor: int, most: int, mode: int, prefix: bytes) -> dict:
    fields = {"cursor": str(cursor), "bytes": most, "mode": mode, "prefix": prefix.hex()}
    return ask(name, fields, put("u64", cursor) + put("u32", most) + bytes([mode]) + prefix)


def scanned_case(name: str, entries: list, value: int) -> dict:
    layout = [put("u16", len(k)) + put("u32", len(v)) + k + v for k, v in entries]
    fields = {"entries": [[k.hex(), v.hex()] for k, v in entries]}
    return data(name, fields, b"", b"".join(layout), value)


def accumulate_case(name: str, function: str, operand: bytes) -> dict:
    fields = {"function": FUNCTIONS[function], "key": KEY.hex()}
    return ask(name, fields, bytes([FUNCTIONS[function]]) + KEY, operand)


def ranges_case(name: str, most: int, ranges: list) -> dict:
    return ask(name, *ranges_parts(most, ranges))


def answered_case(name: str, args: bytes, results: list, value: int) -> dict:
    shown, payload = result_parts(results)
    return data(name, {"results": shown}, args, payload, value)


def answered_ranges(name: str, ranges: list) -> dict:
    payload = b"".join(put("bytes", one) for one in ranges)
    return data(name, {"ranges": [r.hex() for r in ranges]}, b"", payload, len(ranges))


def named(extents: list) -> tuple[list, bytes]:
    kinds = ("u64", "u64", "u64", "u32")
    layout = [put(kind, n) for one in extents for kind, n in zip(kinds, one, strict=True)]
    return [[str(n) for n in e] for e in extents], b"".join(layout)


KEY, VALUE, OLD = b"{user7}:name", b"Ada", b"Grace"


def extents_case(name: str, extents: list, mode: int | None, key: bytes = KEY) -> dict:
    told, layout = named(extents)
    fields = {"key": key.hex(), "extents": told}
    if mode is None:
        return ask(name, fields, key, layout)
    return ask(name, {"mode": mode} | fields, bytes([mode]) + key, layout)


def head_case(name: str, level: int, length: int, extents: list) -> dict:
    told, layout = named(extents)
    fields = {"mode": 0, "key": "", "head": [level, str(length)], "extents": told}
    head = put("u64", U64) + put("u64", level) + put("u64", length) + put("u32", 0)
    return ask(name, fields, b"\0", head + layout)


def carry_case(name: str, old: list, new: list, key: bytes = KEY) -> dict:
    (told_old, old_layout), (told, layout) = named(old), named(new)
    fields = {"mode": 2, "key": key.hex(), "old": told_old, "extents": told}
    payload = put("u32", len(old_layout)) + old_layout + layout
    return ask(name, fields, b"\2" + key, payload)


def get_extents_case(name: str, reserve_ms: int, stay: int) -> dict:
    fields = {"reserve_ms": reserve_ms, "stay": stay}
    return ask(name, fields, put("u32", reserve_ms) + bytes([stay]))


def got_extents_case(name: str, number: int, deliveries: int, extents: list) -> dict:
    told, layout = named(extents)
    fields = {"number": str(number), "deliveries": deliveries, "extents": told}
    return data(name, fields, put("u64", number) + put("u32", deliveries), layout, 1)


def lists_case(name: str, items: list, value: int) -> dict:
    payload, shown = b"", []
    for number, extents in items:
        told, layout = named(extents)
        shown.append([str(number), told])
        payload += put("u64", number) + put("u32", len(layout)) + layout
    return data(name, {"items": shown}, b"", payload, value)


EXTENTS = [(0x0000_0003_0100_0002, 0x0000_0100_0000_0005, 7, 16_777_216), (U64, 1, U64, U32)]
DATA_SAMPLES = {
    "Subscribe": SUBSCRIBE_SAMPLES,
    "AckResults": ACK_SAMPLES,
    "NextBlock": ([ask("the last known block")], [data("it is the last", value=0)]),
    "FileAppend": (
        [ask("a line", payload=b"a line\n"), ask("nothing", payload=b"")],
        [data("it begins at byte 4096 of the block", value=4096)],
    ),
    "FileRead": (
        [read_case(0, 4096), read_case(U64, U32)],
        [
            data("all that was asked", payload=b"a line\n", value=4103),
            data("at the end of the file", value=4103),
        ],
    ),
    "FileSize": (
        [ask("the block's")],
        [
            data("open", {"sealed": 0}, b"\0", value=4103),
            data("sealed", {"sealed": 1}, b"\1", value=4103),
        ],
    ),
    "FileSeal": ([ask("the tail")], [data("sealed at 4103", value=4103)]),
    "FileMap": ([ask("a sealed block")], [data("it has 4103 bytes", value=4103)]),
    "FileContinue": (
        [ask("the tail")],
        [
            data(
                "it ends at byte 4103",
                {"version": str(MOVED_SAMPLES[0]["version"])},
                moved_bytes(MOVED_SAMPLES[0]["version"], MOVED_SAMPLES[0]["entry"]),
                value=4103,
            )
        ],
    ),
    **QUEUE_SAMPLES,
    "QueuePutExtents": (
        [
            extents_case("an item of two extents", EXTENTS, 0, b""),
            carry_case("one for two that it still is", EXTENTS, EXTENTS[:1], put("u64", 9)),
        ],
        [data("its number", value=7), data("it was replaced", value=1)],
    ),
    "QueueGetExtents": (
        [
            get_extents_case("reserved for 60 s", 60_000, 0),
            get_extents_case("only named, of a block that was left behind", 0, 1),
            get_extents_case("every field at its most", LIMITS["RESERVE_MAX_MS"], 1),
        ],
        [
            got_extents_case("an item of two extents, the third time", 1 << 40, 3, EXTENTS),
            got_extents_case("only named, and never delivered", 0, 0, EXTENTS[:1]),
        ],
    ),
    "QueueLists": (
        [
            ask("from the first", {"from": "0"}, put("u64", 0)),
            ask("from a later one", {"from": str(U64)}, put("u64", U64)),
        ],
        [
            lists_case("none", [], 0),
            lists_case("two, and more follow", [(3, EXTENTS), (1 << 40, EXTENTS[:1])], 1 << 41),
        ],
    ),
    "KvGet": (
        [key_case("a key", KEY), key_case("a key of any bytes", b"\0{\xff")],
        [data("its value", payload=VALUE), data("an empty value")],
    ),
    "KvPut": (
        [
            key_case("whether or not there is one", KEY, VALUE, 0),
            key_case("only when absent", KEY, VALUE, 1),
            key_case("without an answer about the old entry", KEY, VALUE, 3),
            key_case("a short key, an empty value", b"k", b"", 0),
        ],
        [data("a new entry", value=0), data("an entry was replaced", value=1)],
    ),
    "KvPutExtents": (
        [
            extents_case("two extents", EXTENTS, 0),
            extents_case("one, only when absent", EXTENTS[:1], 1),
            carry_case("one for two that it still is", EXTENTS, EXTENTS[:1]),
        ],
        [data("a new entry", value=0), data("an entry was replaced", value=1)],
    ),
    "KvDeleteExtents": (
        [extents_case("two extents", EXTENTS, None)],
        [data("the entry is gone")],
    ),
    "ExtentPut": ([ask("an extent", payload=VALUE)], [data("its id", value=7)]),
    "ExtentGet": (
        [ask("by its id", {"ids": ["7"]}, put("u64", 7))],
        [data("its bytes", payload=VALUE)],
    ),
    "ExtentKeep": (
        [ask("two of them", {"ids": ["7", str(U64)]}, put("u64", 7) + put("u64", U64))],
        [data("they are there")],
    ),
    "ExtentPutList": (
        [
            extents_case("two extents", EXTENTS, 0, b""),
            head_case("two lists of lists", 2, 1 << 40, EXTENTS),
        ],
        [data("its id", value=7)],
    ),
    "KvDelete": (
        [key_case("plain", KEY, mode=0), key_case("with the old value", KEY, mode=1)],
        [data("plain"), data("with the old value", payload=OLD)],
    ),
    "KvExists": (
        [key_case("a key", KEY)],
        [
            data("no", {"length": None}, value=0),
            data("yes, of 3 bytes", {"length": "3"}, put("u64", 3), value=1),
        ],
    ),
    "KvUpdate": ([key_case("a key", KEY, VALUE)], [data("the old value", payload=OLD)]),
    "KvUpsert": (
        [key_case("a key", KEY, VALUE)],
        [data("there was none", value=0), data("the old value", payload=OLD, value=1)],
    ),
    "KvCompareAndSwap": (
        [
            swap_case("expects a value", 1, KEY, OLD, VALUE),
            swap_case("expects an empty value", 1, KEY, b"", VALUE),
            swap_case("expects no entry", 0, KEY, b"", VALUE),
        ],
        [data("swapped")],
    ),
    "KvScan": (
        [
            scan_case("from the start", 0, 65536, 0, b""),
            scan_case("keys only, below a prefix", 0x4000_0000_0000_0000, 1, 1, b"user"),
            scan_case("from the last hash", U64, U32, 0, bytes(range(256))),
            scan_case("lists of extents alone", 0, 65536, 2, b""),
        ],
        [
            scanned_case("entries, and where to go on", [(KEY, VALUE), (b"k", b"")], 1 << 62),
            scanned_case("keys only, the last ones", [(KEY, b""), (b"k", b"")], 0),
            scanned_case("none", [], 0),
            scanned_case("none so far, but go on", [], 1 << 63),
        ],
    ),
    "KvLength": (
        [
            ask("the block's", {"from": None}),
            ask("from a hash on", {"from": str(1 << 62)}, put("u64", 1 << 62)),
        ],
        [
            data(
                "three entries, up to a hash",
                {"last": str(U64 >> 1)},
                put("u64", U64 >> 1),
                value=3,
            ),
            data("none, up to the last of all", {"last": str(U64)}, put("u64", U64)),
        ],
    ),
    "FileReadMany": (
        [ranges_case("three ranges", 65536, RANGES), ranges_case("none", U32, [])],
        [
            answered_ranges("two of the three", [b"ten bytes.", b""]),
            answered_ranges("none", []),
        ],
    ),
    "KvMultiGet": (
        [
            ask("three keys", *keys_parts(65536, [KEY, b"k", b"\0{\xff"])),
            ask("none", *keys_parts(0, [])),
        ],
        [
            answered_case(
                "found, absent, and one of 5,000,000 bytes to be read alone",
                b"",
                [("Ok", 0, VALUE), ("KeyNotFound", 0, b""), ("ValueTooLarge", 5_000_000, b"")],
                3,
            ),
            answered_case("none", b"", [], 0),
        ],
    ),
    "KvBatch": (
        [
            ask("each operation on its own", *batch_parts(0, OPERATIONS)),
            ask("all or none", *batch_parts(1, OPERATIONS[:2])),
            ask("nothing", *batch_parts(1, [])),
        ],
        [
            answered_case("what each answered", b"\1", RESULTS, len(RESULTS)),
            answered_case("the first two; the rest is asked again", b"\1", RESULTS[:2], 2),
            answered_case("not applied: the third one failed", b"\0", RESULTS[2:3], 2),
            answered_case("nothing", b"\1", [], 0),
        ],
    ),
    "KvAccumulate": (
        [accumulate_case(*case) for case in operand_cases()],
        [
            data("an i64 is -5", value=U64 - 4),
            data("an f64 is 1.0", value=0x3FF0_0000_0000_0000),
            data("a length of 12 bytes", value=12),
            data("a list of two", payload=top([(2.0, b"b"), (1.0, b"a")]), value=2),
        ],
    ),
}
assert integer(-5)[2:] == put("u64", U64 - 4), "the reply's value has the bits of the number"


def custom_cases() -> list:
    """The first arguments of custom operations, by route; `bad` ones are refused."""

    def case(name: str, route: str, routed: object, args: bytes, rest: bytes) -> dict:
        shown = {"route": ROUTES[route], "routed": routed, "rest": rest.hex()}
        return {"name": name, "bad": False} | shown | {"args": args.hex()}

    def bad(name: str, route: str, args: bytes) -> dict:
        return {"name": name, "bad": True, "route": ROUTES[route], "args": args.hex()}

    key = put("u16", len(KEY)) + KEY
    return [
        case("to the head", "head", None, b"rest", b"rest"),
        case("to the tail, without arguments", "tail", None, b"", b""),
        case("to each", "each", None, b"rest", b"rest"),
        case("at the block's start", "position", "0", put("i64", 0) + b"rest", b"rest"),
        case("before the block", "position", "-1", put("i64", -1), b""),
        case("through the farthest", "through", str(2**63 - 1), put("i64", 2**63 - 1), b""),
        case("by a key", "key", KEY.hex(), key + b"rest", b"rest"),
        case("by the longest key", "key", "6b" * 4096, put("u16", 4096) + b"k" * 4096, b""),
        bad("a position cut short", "position", bytes(7)),
        bad("no position", "through", b""),
        bad("no key", "key", b""),
        bad("an empty key", "key", put("u16", 0)),
        bad("a key longer than the arguments", "key", put("u16", 5) + b"four"),
        bad("a key that is too long", "key", put("u16", 4097) + b"k" * 4097),
    ]


def notice_cases() -> list:
    moved = MOVED_SAMPLES[0]
    version, entry = moved["version"], moved["entry"]
    return notices(moved_bytes(version, entry), version, entry)


def messages() -> dict:
    operations = []
    for op in SPEC["op"]:
        case = {"op": op["name"], "code": op["code"]}
        if op.get("body") == "data":
            case["request"], case["reply"] = DATA_SAMPLES[op["name"]]
        else:
            for part in ("request", "reply"):
                case[part] = []
                for style in ("typical", "zero", "extreme") if op[part] else ("zero",):
                    values = sample_fields(op[part], style)
                    fields = shown_fields(op[part], values)
                    args = put_fields(op[part], values).hex()
                    case[part].append({"name": style, "fields": fields, "args": args})
        operations.append(case)
    # PresentGrant answers by the reply's value, like a data operation.
    next(o for o in operations if o["op"] == "PresentGrant")["reply"][0]["value"] = "1"
    return {
        "operations": operations,
        "moved": moved_cases(),
        "notices": notice_cases(),
        "moves": moves(),
        "stored": stored_cases(),
        "custom": custom_cases(),
    }
