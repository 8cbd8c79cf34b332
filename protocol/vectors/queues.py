"""Vectors of the layouts of queues and notices: valid samples, and bodies that are refused.

Written from PROTOCOL.md (sections 10 and 15), not from the Rust code.
"""

from peer import LIMITS, STATUS, STRUCTS, U32, U64, put, shown_fields


def sample(name: str, fields: dict, args: bytes = b"", payload: bytes = b"") -> dict:
    return {"name": name, "fields": fields, "args": args.hex(), "payload": payload.hex()}


# ------------------------------------------------------------------------------------------ queues


def sizes(lengths: list) -> bytes:
    return b"".join(put("u32", length) for length in lengths)


def put_case(name: str, items: list) -> dict:
    args = b"" if len(items) == 1 else sizes([len(item) for item in items])
    return sample(name, {"items": [item.hex() for item in items]}, args, b"".join(items))


def get_case(name: str, items: int, most: int, reserve_ms: int, stay: int) -> dict:
    fields = {"items": items, "bytes": most, "reserve_ms": reserve_ms, "stay": stay}
    return sample(name, fields, sizes([items, most, reserve_ms]) + bytes([stay]))


def peek_case(name: str, items: int, most: int) -> dict:
    return sample(name, {"items": items, "bytes": most}, sizes([items, most]))


def got_case(name: str, first: int, deliveries: int, items: list) -> dict:
    fields = {
        "first": str(first),
        "deliveries": deliveries,
        "items": [item.hex() for item in items],
    }
    args = put("u64", first) + put("u32", deliveries) + sizes([len(item) for item in items])
    return sample(name, fields, args, b"".join(items)) | {"value": str(len(items))}


COUNTS = ("taken", "bytes_put", "bytes_taken", "reserved")


def counts_case(name: str, items_put: int, counts: tuple, closed: int) -> dict:
    fields = {word: str(count) for word, count in zip(COUNTS, counts, strict=True)}
    args = b"".join(put("u64", count) for count in counts) + bytes([closed])
    return sample(name, fields | {"closed": closed}, args) | {"value": str(items_put)}


def ack_case(name: str, action: int, timeout_ms: int, items: list) -> dict:
    fields = {
        "action": action,
        "timeout_ms": timeout_ms,
        "items": [[str(number), deliveries] for number, deliveries in items],
    }
    pairs = [put("u64", number) + put("u32", deliveries) for number, deliveries in items]
    return sample(name, fields, bytes([action]) + put("u32", timeout_ms) + b"".join(pairs))


def acked_case(name: str, held: list) -> dict:
    return sample(name, {"held": held}, bytes(held)) | {"value": str(sum(held))}


def number_case(name: str, value: int) -> dict:
    return sample(name, {}) | {"value": str(value)}


ITEMS = [b"first", b"", b"third"]
QUEUE_SAMPLES = {
    "QueuePut": (
        [
            put_case("one item", [b"an item"]),
            put_case("one empty item", [b""]),
            put_case("three items, the second empty", ITEMS),
            put_case("two empty items", [b"", b""]),
        ],
        [number_case("the first of the block", 0), number_case("far along", 1 << 40)],
    ),
    "QueueGet": (
        [
            get_case("one item, for good", 1, 1 << 20, 0, 0),
            get_case("a batch, reserved for 30 s", 64, 65536, 30_000, 0),
            get_case("of a block that was left behind", 1, U32, 0, 1),
            get_case(
                "every field at its most",
                LIMITS["QUEUE_BATCH_MAX"],
                U32,
                LIMITS["RESERVE_MAX_MS"],
                1,
            ),
        ],
        [
            got_case("one item", 7, 1, [b"an item"]),
            got_case("an empty item, given out a third time", 0, 3, [b""]),
            got_case("three neighbours", 1 << 40, 1, ITEMS),
        ],
    ),
    "QueuePeek": (
        [peek_case("one item", 1, 1 << 20), peek_case("every field at its most", 4096, U32)],
        [got_case("three neighbours that nobody was given", 7, 1, ITEMS)],
    ),
    "QueueLength": (
        [
            sample("of this block", {"tail": 0}, b"\0"),
            sample("of the tail, wherever it is", {"tail": 1}, b"\1"),
        ],
        [
            counts_case("nothing yet", 0, (0, 0, 0, 0), 0),
            counts_case("12 put, 5 taken, 2 reserved", 12, (5, 1200, 500, 2), 0),
            counts_case("closed and empty", 12, (12, 1200, 1200, 0), 1),
            counts_case("every field at its most", U64, (U64, U64, U64, U64), 1),
        ],
    ),
    "QueueClose": ([sample("the queue", {})], [number_case("closed, now or before", 0)]),
    "QueueAck": (
        [
            ack_case("done with one", 0, 0, [(7, 1)]),
            ack_case("two given back", 1, 0, [(7, 1), (1 << 40, 3)]),
            ack_case("one kept for 30 s more", 2, 30_000, [(U64, U32)]),
            ack_case("none at all", 0, 0, []),
        ],
        [
            acked_case("still held", [1]),
            acked_case("the second was too late", [1, 0]),
            acked_case("none at all", []),
        ],
    ),
}


def results_case(name: str, lanes: list) -> dict:
    args = b"".join(put("u32", lane) + put("u64", number) for lane, number in lanes)
    return sample(name, {"lanes": [[lane, str(number)] for lane, number in lanes]}, args)


ACK_SAMPLES = (
    [
        results_case("one lane", [(3, 17)]),
        results_case("two lanes", [(1, 1), (U32, U64)]),
        results_case("none", []),
    ],
    [number_case("both were known", 2), number_case("none was known any more", 0)],
)


# ----------------------------------------------------------------------------------------- notices

CHANGES = {"append": 1, "seal": 2, "data": 3, "space": 4, "close": 5, "put": 6, "delete": 7}
KINDS = {name: 1 << code - 1 for name, code in CHANGES.items()}
EVERY = sum(KINDS.values())
GAP, HANDOVER, ENDED = 64, 65, 66


def subscribe_case(name: str, subscription: int, kinds: int, match: int, key: bytes) -> dict:
    fields = {"subscription": subscription, "kinds": kinds, "match": match, "key": key.hex()}
    args = put("u32", subscription) + put("u16", kinds) + bytes([match]) + key
    return sample(name, fields, args)


SUBSCRIBE_SAMPLES = (
    [
        subscribe_case("a queue's items", 1, KINDS["data"], 0, b""),
        subscribe_case("what a file gets, and its end", 2, KINDS["append"] | KINDS["seal"], 0, b""),
        subscribe_case("one key", 3, KINDS["put"] | KINDS["delete"], 1, b"{user7}:name"),
        subscribe_case("the keys of one tag", 4, KINDS["put"], 2, b"{user7}"),
        subscribe_case("a prefix that every key has", 5, KINDS["delete"], 2, b""),
        subscribe_case("every kind there is", U32, EVERY, 0, b""),
    ],
    [
        number_case("nothing changed since anybody subscribed", 0),
        number_case("after 41 changes", 41),
    ],
)


def notice(name: str, number: int, subscription: int, code: int, fields: dict, rest: bytes) -> dict:
    """The parts of one notice: the value of its header, and its arguments."""
    args = put("u32", subscription) + bytes([code]) + rest
    told = {"subscription": subscription, "code": code} | fields
    return {"name": name, "value": str(number), "fields": told, "args": args.hex()}


def words(**values: int) -> tuple[dict, bytes]:
    shown = {name: str(value) for name, value in values.items()}
    return shown, b"".join(put("u64", value) for value in values.values())


def notices(moved: bytes, version: int, entry: dict) -> list:
    def change(name: str, number: int, what: str, fields: dict, rest: bytes) -> dict:
        return notice(name, number, 9, CHANGES[what], {"what": what} | fields, rest)

    def key(name: str, number: int, what: str, key: bytes) -> dict:
        return change(name, number, what, {"key": key.hex()}, key)

    why = "the permissions of the prefix changed"
    onward = {"version": str(version), "entry": shown_fields(STRUCTS["MapEntry"], entry)}
    return [
        change("7 bytes were appended", 1, "append", *words(offset=4096, length=7)),
        change("the file was sealed", 2, "seal", *words(length=4103)),
        change("an item can be taken", 1, "data", *words(items=1)),
        change("three items were taken", 2, "space", *words(items=3)),
        change("the queue was closed", 3, "close", {}, b""),
        key("a key got a value", 1, "put", b"{user7}:name"),
        key("a key of any bytes was deleted", U64, "delete", b"\0{\xff"),
        notice("12 were left out, the last of them 40", 40, 9, GAP,
               {"what": "gap"} | words(missed=12)[0], words(missed=12)[1]),
        notice("the block was sealed at 65,000 and goes on elsewhere", 41, 9, HANDOVER,
               {"what": "handover", "length": "65000"} | onward, put("u64", 65_000) + moved),
        notice("no more will come", 41, U32, ENDED,
               {"what": "ended", "status": "GrantRevoked", "message": why},
               put("u16", STATUS["GrantRevoked"]) + why.encode()),
        notice("no more will come, and nothing is said", 0, 0, ENDED,
               {"what": "ended", "status": "WrongEpoch", "message": ""},
               put("u16", STATUS["WrongEpoch"])),
    ]  # fmt: skip


# --------------------------------------------------------------------------------------- refusals


def bad_bodies(body) -> None:
    """Calls `body(name, op, part, args, payload)` for each; parts are request, reply and notice."""
    for args in (bytes(3), bytes(5)):
        body(f"put: {len(args)} bytes of lengths", "QueuePut", "request", args, b"item")
    body("put: lengths of less than the payload", "QueuePut", "request", sizes([1, 2]), b"item")
    body("put: lengths of more than the payload", "QueuePut", "request", sizes([2, 3]), b"item")
    body("put: a negative length", "QueuePut", "request", sizes([U32, 5]), b"item")
    body("put: too many items", "QueuePut", "request", bytes(4 * 4097))
    get = sizes([1, 100, 0])
    body("get: nothing", "QueueGet", "request", b"")
    body("get: stay is missing", "QueueGet", "request", get)
    body("get: stay 2", "QueueGet", "request", get + b"\2")
    body("get: long", "QueueGet", "request", get + b"\0\0")
    body("peek: short", "QueuePeek", "request", bytes(7))
    body("peek: as of a get", "QueuePeek", "request", get + b"\0")
    body("length: nothing", "QueueLength", "request", b"")
    body("length: tail 2", "QueueLength", "request", b"\2")
    body("length: long", "QueueLength", "request", b"\0\0")
    body("close: with arguments", "QueueClose", "request", b"\0")
    body("put of extents: mode 3", "QueuePutExtents", "request", b"\3", bytes(28))
    body("put of extents: an extent is cut", "QueuePutExtents", "request", b"\0", bytes(27))
    body("get of extents: short", "QueueGetExtents", "request", bytes(4))
    body("get of extents: stay 2", "QueueGetExtents", "request", bytes(4) + b"\2")
    body("get of extents reply: short", "QueueGetExtents", "reply", bytes(11))
    body("get of extents reply: long", "QueueGetExtents", "reply", bytes(13))
    body("lists reply: half a head", "QueueLists", "reply", b"", bytes(11))
    cut = bytes(8) + b"\x1c\0\0\0" + bytes(27)
    body("lists reply: a list is cut", "QueueLists", "reply", b"", cut)
    body("ack: nothing", "QueueAck", "request", b"")
    body("ack: action 3", "QueueAck", "request", b"\3" + bytes(4))
    body("ack: the time-out is cut", "QueueAck", "request", bytes(4))
    body("ack: an item is cut", "QueueAck", "request", bytes(5 + 11))
    body("ack: too many items", "QueueAck", "request", bytes(5 + 12 * 4097))
    for op in ("QueueGet", "QueuePeek"):
        body(f"{op} reply: the head is cut", op, "reply", bytes(11))
        body(f"{op} reply: half a length", op, "reply", bytes(12) + b"\1\0")
        body(f"{op} reply: bytes of no item", op, "reply", bytes(12), b"item")
        body(f"{op} reply: bytes are missing", op, "reply", bytes(12) + sizes([5]), b"item")
    body("length reply: short", "QueueLength", "reply", bytes(32))
    body("length reply: closed 2", "QueueLength", "reply", bytes(32) + b"\2")
    body("length reply: long", "QueueLength", "reply", bytes(34))

    body("results: a lane is cut", "AckResults", "request", bytes(11))
    body("results: too many lanes", "AckResults", "request", bytes(12 * 1025))
    body("subscribe: nothing", "Subscribe", "request", b"")
    body("subscribe: short", "Subscribe", "request", bytes(4) + b"\1\0")
    body("subscribe: no kind", "Subscribe", "request", bytes(7))
    body("subscribe: a kind there is not", "Subscribe", "request", bytes(4) + b"\x81\0\0")
    body("subscribe: match 3", "Subscribe", "request", bytes(4) + b"\1\0\3")
    body("subscribe: every key and a key", "Subscribe", "request", bytes(4) + b"\1\0\0key")
    for code in (0, 8, 63, 67, 255):
        body(f"notice: code {code}", "Subscribe", "notice", bytes(4) + bytes([code]) + bytes(8))
    body("notice: nothing", "Subscribe", "notice", b"")
    body("notice: no code", "Subscribe", "notice", bytes(4))
    for word, size in (("append", 16), ("seal", 8), ("data", 8), ("space", 8), ("close", 0)):
        head = bytes(4) + bytes([CHANGES[word]])
        body(f"notice: {word}, a byte left over", "Subscribe", "notice", head + bytes(size + 1))
        if size:
            body(f"notice: {word}, a byte short", "Subscribe", "notice", head + bytes(size - 1))
    body("notice: a gap, short", "Subscribe", "notice", bytes(4) + b"\x40" + bytes(7))
    body("notice: a gap, long", "Subscribe", "notice", bytes(4) + b"\x40" + bytes(9))
    body("notice: a handover to nowhere", "Subscribe", "notice", bytes(4) + b"\x41" + bytes(8))
    body("notice: an end without its status", "Subscribe", "notice", bytes(4) + b"\x42\1")
