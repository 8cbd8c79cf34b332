"""Vectors of the messages between two blocks of a key-value store while a range moves."""

from peer import OPS, U64, put, put_fields, shown_fields, xxh64

MOVE = 0x0001_0000_0000_0007
# The layout of entries in a block is not part of the protocol, so that the vectors use arbitrary bytes.
REGION = bytes(range(200, 256)) * 3
# Two runs of bytes: from 0 and from 128 on.
PATCH = b"".join(put("u32", at) + put("u32", 8) + bytes(range(at, at + 8)) for at in (0, 128))
STATE = bytes(range(60, 90))
VALUE = b"a value that has an extent of its own" * 4

LANES = [
    {
        "session": 0x0123456789ABCDEF0011223344556677,
        "lane": 2,
        "next": 10,
        "results": [
            {
                "sequence": 8,
                "hash": 0x4000_0000_0000_0001,
                "status": 0,
                "value": 1,
                "args": b"",
                "payload": b"the old value",
            },
            {
                "sequence": 9,
                "hash": U64,
                "status": 502,
                "value": 0,
                "args": b"no entry has this key",
                "payload": b"",
            },
        ],
    },
    {"session": 1, "lane": 1, "next": 1, "results": []},
]
RESULT = [
    ("sequence", "u64", ""),
    ("hash", "u64", ""),
    ("status", "u16", ""),
    ("value", "u64", ""),
    ("args", "bytes", ""),
    ("payload", "bytes", ""),
]


def lane_bytes(lane: dict) -> bytes:
    head = put("u128", lane["session"]) + put("u32", lane["lane"]) + put("u64", lane["next"])
    results = b"".join(put_fields(RESULT, result) for result in lane["results"])
    return head + put("u32", len(lane["results"])) + results


def lane_shown(lane: dict) -> dict:
    results = [shown_fields(RESULT, result) for result in lane["results"]]
    shown = {"session": str(lane["session"]), "lane": lane["lane"], "next": str(lane["next"])}
    return shown | {"results": results}


def moves() -> list:
    """The requests of one move, in order, with their payloads."""

    def part(name: str, op: str, payload: bytes = b"", **fields) -> dict:
        request = OPS[op]["request"]
        values = {"move_id": MOVE} | fields
        case = {"name": name, "op": op, "fields": shown_fields(request, values)}
        return case | {"args": put_fields(request, values).hex(), "payload": payload.hex()}

    start, end = 0x8000_0000_0000_0000, 0xBFFF_FFFF_FFFF_FFFF
    lanes = b"".join(map(lane_bytes, LANES))
    return [
        part("a value", "MoveValue", VALUE, value=3, checksum=xxh64(VALUE)),
        part(
            "a region that refers to it", "MoveRegion", REGION,
            start=start, end=end, values=1, checksum=xxh64(REGION),
        ),
        part(
            "a region without entries", "MoveRegion",
            start=end + 1, end=U64, values=0, checksum=xxh64(b""),
        ),
        part(
            "what has changed in a region", "MovePatch", PATCH,
            start=end + 1, end=U64, length=136, checksum=xxh64(PATCH),
        ),
        part(
            "what a block knows beside its bytes", "MoveState", STATE,
            offset=0, length=len(STATE), checksum=xxh64(STATE),
        ),
        part("two values that are no more", "MoveDrops", values=[3, 4]),
        part("lanes", "MoveLanes", lanes) | {"lanes": [lane_shown(lane) for lane in LANES]},
        part("everything was sent", "MoveDone", entries=2, bytes=len(REGION) + len(VALUE)),
    ]  # fmt: skip
