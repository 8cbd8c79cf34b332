"""Vectors of the operations that carry many keys or ranges, and of the values that accumulate makes."""

import struct

from peer import STATUS, U32, U64, put

KINDS = {"get": 0, "put": 1, "insert": 2, "delete": 3, "swap": 4, "accumulate": 5, "set": 6}
FUNCTIONS = {
    "sum i64": 1,
    "min i64": 2,
    "max i64": 3,
    "sum f64": 4,
    "min f64": 5,
    "max f64": 6,
    "count": 7,
    "append": 8,
    "top": 9,
}
RESULT = 14


def short(data: bytes) -> bytes:
    return put("u16", len(data)) + data


def operation_bytes(op: dict) -> bytes:
    kind = op["kind"]
    out = bytes([KINDS[kind]]) + short(op["key"])
    if kind in ("put", "set", "insert"):
        return out + put("bytes", op["value"])
    if kind == "swap":
        expected = op["expected"]
        out += bytes([expected is not None]) + put("bytes", expected or b"")
        return out + put("bytes", op["new"])
    if kind == "accumulate":
        return out + bytes([FUNCTIONS[op["function"]]]) + put("bytes", op["operand"])
    return out


def shown_operation(op: dict) -> dict:
    return {k: v.hex() if isinstance(v, bytes) else v for k, v in op.items()}


def batch_parts(atomic: int, ops: list) -> tuple[dict, bytes, bytes]:
    fields = {"atomic": atomic, "ops": [shown_operation(op) for op in ops]}
    payload = put("u32", len(ops)) + b"".join(operation_bytes(op) for op in ops)
    return fields, bytes([atomic]), payload


def keys_parts(most: int, keys: list) -> tuple[dict, bytes, bytes]:
    fields = {"bytes": most, "keys": [key.hex() for key in keys]}
    payload = put("u32", len(keys)) + b"".join(short(key) for key in keys)
    return fields, put("u32", most), payload


def result_parts(results: list) -> tuple[list, bytes]:
    """The description of results, and their bytes; each result is (status, value, bytes)."""
    shown = [
        {"status": s, "code": STATUS[s], "value": str(v), "bytes": b.hex()} for s, v, b in results
    ]
    layout = [put("u16", STATUS[s]) + put("u64", v) + put("bytes", b) for s, v, b in results]
    assert all(len(one) == RESULT + len(b) for one, (_, _, b) in zip(layout, results, strict=True))
    return shown, b"".join(layout)


def ranges_parts(most: int, ranges: list) -> tuple[dict, bytes]:
    fields = {"bytes": most, "ranges": [[str(at), length] for at, length in ranges]}
    args = put("u32", most) + put("u32", len(ranges))
    return fields, args + b"".join(put("u64", at) + put("u32", n) for at, n in ranges)


def integer(n: int) -> bytes:
    return b"\xaci" + put("i64", n)


def number(x: float) -> bytes:
    return b"\xacf" + struct.pack("<d", x)


def top(items: list) -> bytes:
    assert items == sorted(items, key=lambda item: (-item[0], item[1]))
    layout = [struct.pack("<d", score) + short(item) for score, item in items]
    return b"\xact" + put("u32", len(items)) + b"".join(layout)


def bits(x: float) -> int:
    return int.from_bytes(struct.pack("<d", x), "little")


OPERATIONS = [
    {"kind": "get", "key": b"{user7}name"},
    {"kind": "put", "key": b"k", "value": b"Ada"},
    {"kind": "set", "key": b"k", "value": b"Ada"},
    {"kind": "insert", "key": b"\0{\xff", "value": b""},
    {"kind": "delete", "key": b"k"},
    {"kind": "swap", "key": b"k", "expected": b"", "new": b"new"},
    {"kind": "swap", "key": b"k", "expected": None, "new": b""},
    {"kind": "accumulate", "key": b"n", "function": "sum i64", "operand": put("i64", -5)},
    {"kind": "accumulate", "key": b"n", "function": "count", "operand": b""},
]

RESULTS = [
    ("Ok", 0, b"Grace"),
    ("Ok", 1, b""),
    ("Ok", 0, b""),
    ("KeyExists", 0, b""),
    ("KeyNotFound", 0, b""),
    ("CompareFailed", 1, b"found"),
    ("CompareFailed", 2, b""),
    ("Ok", U64 - 4, b""),
    ("InvalidArgument", 0, b"the key holds bytes that are no number"),
]


def operand_cases() -> list:
    """Operands of KvAccumulate: name, function, operand."""
    cases = [
        ("count", "count", b""),
        ("append", "append", b"more"),
        ("append nothing", "append", b""),
    ]
    for function in ("sum i64", "min i64", "max i64"):
        cases += [(f"{function} of {n}", function, put("i64", n)) for n in (5, -(1 << 63))]
    for function in ("sum f64", "min f64", "max f64"):
        cases += [(f"{function} of {x}", function, struct.pack("<d", x)) for x in (2.5, -0.0)]
    item = put("u32", 10) + struct.pack("<d", 0.75) + b"an item"
    return [*cases, ("an item among the 10 best", "top", item)]


def stored_cases() -> list:
    """Stored values, each with its type."""
    items = [(2.0, b"b"), (1.0, b"a"), (1.0, b"c"), (-1.0, b"")]
    wrong = top(items[:1])[:2] + put("u32", 2) + top(items[1:2])[6:] + top(items[:1])[6:]

    def case(name: str, value: bytes, kind: str, shown: object) -> dict:
        return {"name": name, "value": value.hex(), "kind": kind, "shown": shown}

    listed = [[str(bits(score)), item.hex()] for score, item in items]
    return [
        case("an integer", integer(-2), "integer", "-2"),
        case("the smallest integer", integer(-(1 << 63)), "integer", str(-(1 << 63))),
        case("a float, by its bits", number(0.1), "float", str(bits(0.1))),
        case("a list, scores by their bits", top(items), "top", listed),
        case("an empty list", top([]), "top", []),
        case("a list out of order", wrong, "plain", None),
        case("a list with a NaN", top([(1.0, b"")])[:6] + b"\xff" * 8 + b"\0\0", "plain", None),
        case("a list that is cut", top(items)[:-1], "plain", None),
        case("a list with a byte too many", top(items) + b"\0", "plain", None),
        case("an integer that is cut", integer(1)[:-1], "plain", None),
        case("text", b"42", "plain", None),
        case("nothing", b"", "plain", None),
    ]


RANGES = [(0, 10), (4096, 0), (U64, U32)]
