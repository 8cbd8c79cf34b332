"""Refused frames and bodies with the violated rule, and refusals that depend on a connection's state."""

import struct

import queues
from bodies import sample_fields
from frames import typical_header
from peer import (
    CUSTOM,
    LIMITS,
    OPS,
    SPEC,
    STATUS,
    U32,
    U64,
    judge_reply,
    judge_request,
    put_fields,
    reply_bytes,
    request_bytes,
)


def refusals() -> dict:
    from_requests, from_replies = [], []

    def request(name: str, head: bytes, expect: str, survives: bool = False, greeted=True) -> None:
        judged = judge_request(head, greeted)
        expected = expect if expect in ("need_more", "accept") else (expect, survives)
        assert judged == expected, f"{name}: {judged}, expected {expected}"
        case = {"name": name, "greeted": greeted, "hex": head.hex()}
        from_requests.append(case | outcome(expected, head, 8))

    def reply(name: str, head: bytes, expect: str) -> None:
        judged = judge_reply(head)
        expected = expect if expect in ("need_more", "accept") else (expect, False)
        assert judged == expected, f"{name}: {judged}, expected {expected}"
        from_replies.append({"name": name, "hex": head.hex()} | outcome(expected, head, 8))

    get, store = OPS["KvGet"], OPS["KvPut"]
    good = request_bytes("KvGet", **typical_header(get))
    for length in (0, 1, 2, 8, 63):
        request(f"short: {length} bytes of a good header", good[:length], "need_more")
    request("short: what is wrong later is not seen yet", b"HC" + b"\xff" * 61, "need_more")
    request("whole: the header alone", good, "accept")
    request("long: what follows is the body or the next frame", good + good, "accept")
    for magic in (b"HB", b"CH", b"\0\0", b"hC", b"GE", b"\x16\x03"):
        bad = magic + good[2:]
        request(f"wrong first bytes: {magic.hex()}", bad, "BadFrame")
        request(
            f"wrong first bytes, before the handshake: {magic.hex()}",
            bad,
            "BadFrame",
            False,
            False,
        )
    request("wrong first bytes are refused at once", b"GE", "BadFrame")
    request("a reply where a request is due", reply_bytes("Ok") + bytes(32), "BadFrame")
    for reserved in (1, 0x0100, 0xFFFF):
        bad = request_bytes("Ping", reserved=reserved)
        request(f"reserved bytes 6 and 7: {reserved:#06x}", bad, "BadFrame")
    for length in (0xFFFFFFFF, 0x80000000, 0x7FFFFFFF):
        word = f"{length:#x}" + ("" if length < 0x80000000 else " (negative)")
        for field in ("args_len", "payload_len"):
            bad = request_bytes("KvPut", **typical_header(store, **{field: length}))
            request(f"{field} {word}", bad, "FrameTooLarge")
            bad = request_bytes("Hello", **{field: length})
            request(
                f"{field} {word}, before the handshake",
                bad,
                "FrameTooLarge",
                False,
                False,
            )
    both = request_bytes("KvPut", **typical_header(store, args_len=U32, payload_len=U32))
    request("both lengths negative", both, "FrameTooLarge")
    oversize_requests(request)
    for code in (
        0x0000,
        0x00FF,
        0x0400,
        0x1000,
        0x11FF,
        0x1301,
        0x7FFF,
        0xF000,
        0xFFFF,
    ):
        request(
            f"unknown opcode {code:#06x}",
            request_bytes(code, args_len=9),
            "UnknownOpcode",
            True,
        )
        bad = request_bytes(code)
        request(f"unknown opcode {code:#06x}, first", bad, "HandshakeRequired", False, False)
    for name in ("Ping", "ListJobs", "KvGet", "JoinServer"):
        bad = request_bytes(name, **typical_header(OPS[name]))
        request(f"{name} before Hello", bad, "HandshakeRequired", False, False)
    for flags in (2, 3, 0x0100, 0x8000, 0xFFFF):
        bad = request_bytes("KvGet", flags=flags, **typical_header(get))
        request(f"unknown flag in {flags:#06x}", bad, "UnknownFlag", True)
    bad = request_bytes("Hello", flags=2, args_len=60)
    request("unknown flag in Hello", bad, "UnknownFlag", True, False)
    misplaced_fields(request)
    first_rule_wins(request)

    good = reply_bytes("Ok", request=7, value=1)
    for length in (0, 1, 2, 31):
        reply(f"short: {length} bytes of a good header", good[:length], "need_more")
    reply("whole: the header alone", good, "accept")
    reply("long: what follows is the body or the next frame", good + good, "accept")
    for magic in (b"HC", b"ch", b"\0\0", b"HT"):
        reply(f"wrong first bytes: {magic.hex()}", magic + good[2:], "BadFrame")
    reply("reserved bytes 4 and 5", reply_bytes("Ok", reserved=1), "BadFrame")
    reply("reserved byte 7", reply_bytes("Ok", reserved2=1), "BadFrame")
    for code in (1, 100, 113, 999, 0x8000, 0xFFFF):
        reply(f"unknown status {code}", reply_bytes(code), "BadFrame")
    for durability in (3, 255):
        reply(
            f"unknown durability {durability}",
            reply_bytes("Ok", durability=durability),
            "BadFrame",
        )
    for field, most in (("args_len", "CONTROL_ARGS_MAX"), ("payload_len", "FRAME_MAX")):
        reply(f"{field} at its most", reply_bytes("Ok", **{field: LIMITS[most]}), "accept")
        for length in (LIMITS[most] + 1, 0x80000000, U32):
            reply(
                f"{field} {length}",
                reply_bytes("Ok", **{field: length}),
                "FrameTooLarge",
            )
    return {
        "requests": from_requests,
        "replies": from_replies,
        "bodies": bad_bodies(),
        "behaviour": behaviour(),
    }


def outcome(expected: str | tuple[str, bool], head: bytes, at: int) -> dict:
    if isinstance(expected, str):
        return {"expect": expected}
    status, survives = expected
    answer = {
        "expect": "refuse",
        "status": status,
        "code": STATUS[status],
        "survives": survives,
    }
    if survives:
        args, payload = struct.unpack_from("<2I", head, at)
        answer["skip"] = args + payload
    return answer


def oversize_requests(request) -> None:
    control, data, body = (LIMITS[n] for n in ("CONTROL_ARGS_MAX", "ARGS_MAX", "FRAME_MAX"))
    get, store = typical_header(OPS["KvGet"]), typical_header(OPS["KvPut"])
    hello = LIMITS["HELLO_MAX"]
    request(
        "control arguments at their most",
        request_bytes("ListJobs", args_len=control),
        "accept",
    )
    bad = request_bytes("ListJobs", args_len=control + 1)
    request("control arguments oversize", bad, "FrameTooLarge")
    request(
        "data arguments at their most",
        request_bytes("KvGet", **get, args_len=data),
        "accept",
    )
    bad = request_bytes("KvGet", **get, args_len=data + 1)
    request("data arguments oversize", bad, "FrameTooLarge")
    for name in ("Ping", "PresentGrant", "MoveDrops"):
        fields = typical_header(OPS[name])
        request(
            f"{name} at its most",
            request_bytes(name, **fields, args_len=data),
            "accept",
        )
        bad = request_bytes(name, **fields, args_len=data + 1)
        request(f"{name} oversize", bad, "FrameTooLarge")
    request(
        "link arguments at their most",
        request_bytes("Report", args_len=control),
        "accept",
    )
    request(
        "payload at its most",
        request_bytes("KvPut", **store, payload_len=body),
        "accept",
    )
    bad = request_bytes("KvPut", **store, payload_len=body + 1)
    request("payload oversize", bad, "FrameTooLarge")
    first = request_bytes("Hello", args_len=hello)
    request("Hello at its most", first, "accept", greeted=False)
    bad = request_bytes("Hello", args_len=hello + 1)
    request("Hello oversize", bad, "FrameTooLarge", greeted=False)
    bad = request_bytes("Hello", args_len=hello, payload_len=1)
    request("Hello oversize by its payload", bad, "FrameTooLarge", greeted=False)


def misplaced_fields(request) -> None:
    get, store = typical_header(OPS["KvGet"]), typical_header(OPS["KvPut"])
    for field in ("lane", "sequence", "ack_lag"):
        bad = request_bytes("KvPut", **store | {field: 0})
        request(f"a mutation with {field} 0", bad, "BadFrame", True)
        bad = request_bytes("KvGet", **get | {field: 1})
        request(f"a read with {field} 1", bad, "BadFrame", True)
        bad = request_bytes("CreatePrefix", **{field: 1})
        request(f"a control request with {field} 1", bad, "BadFrame", True)
    for sequence, lag in ((1, 2), (9, 10), (9, U32)):
        bad = request_bytes("KvPut", **store | {"sequence": sequence, "ack_lag": lag})
        request(f"a mutation {sequence} with ack_lag {lag}", bad, "BadFrame", True)
    without = ("QueueGet", "QueueAck", "Subscribe", "QueueTaken")
    for name in ("KvGet", "KvDelete", "FileRead", "FileSeal", *without, "PresentGrant"):
        bad = request_bytes(name, **typical_header(OPS[name], args_len=5, payload_len=3))
        request(f"{name} with a payload", bad, "BadFrame", True)
    bad = request_bytes("Hello", args_len=60, payload_len=1)
    request("Hello with a payload", bad, "BadFrame", True, False)
    for name in ("QueueLength", "QueuePeek", "Subscribe", "AckResults"):
        bad = request_bytes(name, **typical_header(OPS[name]) | {"lane": 1})
        request(f"{name} with a lane", bad, "BadFrame", True)
    for name in ("QueuePut", "QueueGet", "QueueClose", "QueueAck"):
        bad = request_bytes(name, **typical_header(OPS[name]) | {"lane": 0})
        request(f"{name} without a lane", bad, "BadFrame", True)
    custom, laned = typical_header(CUSTOM), {"lane": 2, "sequence": 9, "ack_lag": 1}
    for field in laned:
        bad = request_bytes(0x8001, **custom | laned | {field: 0})
        request(f"a custom operation with a lane and {field} 0", bad, "BadFrame", True)
    bad = request_bytes(0x8001, **custom | laned | {"ack_lag": 10})
    request("a custom operation that acknowledges later ones", bad, "BadFrame", True)
    bad = request_bytes(0x8001, flags=2, **custom)
    request("a custom operation with an unknown flag", bad, "UnknownFlag", True)
    bad = request_bytes(0x8001, **custom, args_len=LIMITS["ARGS_MAX"] + 1)
    request("a custom operation with too many arguments", bad, "FrameTooLarge")
    bad = request_bytes(0x8001, args_len=9)
    request("a custom operation without block, epoch and grant", bad, "BadFrame", True)
    request(
        "a custom operation before Hello",
        request_bytes(0x8001, **custom),
        "HandshakeRequired",
        False,
        False,
    )
    for name in ("Hello", "Ping", "PresentGrant", "OpenStructure", "JoinServer"):
        for field in ("block", "epoch", "grant"):
            bad = request_bytes(name, **{field: 1})
            request(f"{name} with a {field}", bad, "BadFrame", True)
    bare = {"block": 0, "epoch": 0, "grant": 0}
    for name in ("KvGet", "KvPut", "FileAppend", "FileSize"):
        bad = request_bytes(name, **typical_header(OPS[name]) | bare)
        request(f"{name} without block, epoch and grant", bad, "BadFrame", True)
    parts = (
        "MoveRegion",
        "MoveValue",
        "MoveDrops",
        "MoveLanes",
        "MoveDone",
        "MovePatch",
        "MoveState",
    )
    for name in parts:
        fields = typical_header(OPS[name])
        request(
            f"{name} with a grant",
            request_bytes(name, **fields, grant=1),
            "BadFrame",
            True,
        )
        request(f"{name} without a block", request_bytes(name), "BadFrame", True)
        request(
            f"{name} with a lane",
            request_bytes(name, **fields, lane=1),
            "BadFrame",
            True,
        )
    for name in ("MoveDrops", "MoveDone"):
        bad = request_bytes(name, **typical_header(OPS[name], payload_len=1))
        request(f"{name} with a payload", bad, "BadFrame", True)
    for name in ("BeginMove", "CommitMove", "CancelMove", "BeginImport", "EndImport"):
        bad = request_bytes(name, block=1, epoch=1)
        request(f"{name} with a block in its header", bad, "BadFrame", True)


def first_rule_wins(request) -> None:
    store = typical_header(OPS["KvPut"])
    bad = request_bytes("KvPut", magic=b"HX", args_len=U32)
    request("first rule: bytes before lengths", bad, "BadFrame")
    bad = request_bytes("KvPut", reserved=1, args_len=U32)
    request("first rule: reserved before lengths", bad, "BadFrame")
    request(
        "first rule: lengths before opcode",
        request_bytes(0xFFFF, args_len=U32),
        "FrameTooLarge",
    )
    bad = request_bytes("KvGet", args_len=LIMITS["HELLO_MAX"] + 1)
    request("first rule: lengths before handshake", bad, "FrameTooLarge", greeted=False)
    bad = request_bytes(0xFFFF, flags=0xFFFF)
    request("first rule: opcode before flags", bad, "UnknownOpcode", True)
    bad = request_bytes("KvGet", flags=2)
    request("first rule: handshake before flags", bad, "HandshakeRequired", greeted=False)
    bad = request_bytes("KvPut", flags=2, **store, args_len=LIMITS["ARGS_MAX"] + 1)
    request("first rule: flags before data arguments", bad, "UnknownFlag", True)
    bad = request_bytes("KvGet", args_len=LIMITS["ARGS_MAX"] + 1, payload_len=1)
    request("first rule: data arguments before payload", bad, "FrameTooLarge")


def bad_bodies() -> list:
    """Bodies after valid headers: each is answered BadFrame and leaves the connection usable."""
    out = []

    def body(name: str, op: str, part: str, args: bytes, payload: bytes = b"") -> None:
        case = {
            "name": name,
            "op": op,
            "part": part,
            "args": args.hex(),
            "payload": payload.hex(),
        }
        out.append(case | {"status": "BadFrame", "code": STATUS["BadFrame"], "survives": True})

    for op in SPEC["op"]:
        if op.get("body") == "data":
            continue
        for part in ("request", "reply"):
            good = put_fields(op[part], sample_fields(op[part], "typical"))
            body(f"{op['name']} {part}: a byte left over", op["name"], part, good + b"\0")
            if good:
                body(f"{op['name']} {part}: a byte short", op["name"], part, good[:-1])
                body(f"{op['name']} {part}: nothing", op["name"], part, b"")
    one, lie = (1).to_bytes(8, "little"), b"\xff" * 4
    renew = one + b"\1\0\0\0" + b"\2\0"
    body("text that is not UTF-8", "RenewLeases", "request", renew + b"\xc3\x28")
    body(
        "text with a surrogate",
        "RenewLeases",
        "request",
        one + b"\1\0\0\0\3\0\xed\xa0\x80",
    )
    body(
        "text longer than the body",
        "RenewLeases",
        "request",
        one + b"\1\0\0\0\xff\xffab",
    )
    body("a list that claims 2^32-1 items", "RenewLeases", "request", one + lie)
    body(
        "a list that claims one item too many",
        "RenewLeases",
        "request",
        one + b"\1\0\0\0",
    )
    body("bytes that claim 2^32-1", "PresentGrant", "request", lie + bytes(9))
    seal = put_fields(
        OPS["SealBlock"]["request"], sample_fields(OPS["SealBlock"]["request"], "zero")
    )
    body("a truth value of 2", "SealBlock", "request", seal[:-1] + b"\2")
    body("a truth value of 255", "SealBlock", "request", seal[:-1] + b"\xff")

    body("FileRead: short", "FileRead", "request", bytes(11))
    body("FileRead: long", "FileRead", "request", bytes(13))
    body("KvPut: no mode", "KvPut", "request", b"", b"value")
    body("KvPut: mode 2", "KvPut", "request", b"\2key", b"value")
    body("KvPut: mode 4", "KvPut", "request", b"\4key", b"value")
    body("KvPutExtents: mode 3", "KvPutExtents", "request", b"\3key", bytes(28))
    body("KvPutExtents: no old list", "KvPutExtents", "request", b"\2key", bytes(3))
    long = b"\x1d\0\0\0" + bytes(28)
    body("KvPutExtents: an old list is longer than all", "KvPutExtents", "request", b"\2key", long)
    body("KvPutExtents: an extent is cut", "KvPutExtents", "request", b"\0key", bytes(27))
    body("KvDeleteExtents: an extent is cut", "KvDeleteExtents", "request", b"key", bytes(27))
    body("KvDelete: no mode", "KvDelete", "request", b"")
    body("KvDelete: mode 2", "KvDelete", "request", b"\2key")
    swap, split = b"\1\3\0key", b"\3\0\0\0oldnew"
    body("swap: present 2", "KvCompareAndSwap", "request", b"\2" + swap[1:], split)
    body("swap: key shorter than told", "KvCompareAndSwap", "request", swap[:-1], split)
    body("swap: key longer than told", "KvCompareAndSwap", "request", swap + b"s", split)
    body("swap: no payload", "KvCompareAndSwap", "request", swap)
    body("swap: expected is cut", "KvCompareAndSwap", "request", swap, b"\4\0\0\0old")
    body("swap: expected is negative", "KvCompareAndSwap", "request", swap, lie + b"old")
    many = b"\0\0\1\0" + b"\1\0\0\0" + bytes(12)
    body("ranges: short", "FileReadMany", "request", many[:-1])
    body("ranges: long", "FileReadMany", "request", many + b"\0")
    body("ranges: 2^32-1 of them", "FileReadMany", "request", bytes(4) + lie + bytes(12))
    most, keys = bytes(4), b"\1\0\0\0" + b"\3\0key"
    body("keys: no bound", "KvMultiGet", "request", b"", keys)
    body("keys: one is cut", "KvMultiGet", "request", most, keys[:-1])
    body("keys: a byte left over", "KvMultiGet", "request", most, keys + b"\0")
    body("keys: 2^32-1 of them", "KvMultiGet", "request", most, lie + keys)
    batch = b"\1\0\0\0" + b"\1\1\0k" + b"\1\0\0\0v"
    body("batch: no byte for atomic", "KvBatch", "request", b"", batch)
    body("batch: atomic 2", "KvBatch", "request", b"\2", batch)
    body("batch: two bytes of arguments", "KvBatch", "request", b"\1\0", batch)
    body("batch: no payload", "KvBatch", "request", b"\0")
    body("batch: a value is cut", "KvBatch", "request", b"\0", batch[:-1])
    body("batch: a byte left over", "KvBatch", "request", b"\0", batch + b"\0")
    body("batch: 2^32-1 operations", "KvBatch", "request", b"\0", lie + batch)
    body("batch: operation 6", "KvBatch", "request", b"\0", b"\1\0\0\0\6\1\0k")
    body(
        "batch: function 0",
        "KvBatch",
        "request",
        b"\0",
        b"\1\0\0\0\5\1\0k\0" + bytes(4),
    )
    body("accumulate: no function", "KvAccumulate", "request", b"")
    body("accumulate: function 0", "KvAccumulate", "request", b"\0key", bytes(8))
    body("accumulate: function 10", "KvAccumulate", "request", b"\12key", bytes(8))
    body("scan: short", "KvScan", "request", bytes(12))
    body("scan: mode 3", "KvScan", "request", bytes(12) + b"\3")
    entry = b"\1\0\1\0\0\0kv"
    body("scan reply: a key is cut", "KvScan", "reply", b"", entry + b"\5\0\0\0\0\0k")
    body(
        "scan reply: a value is negative",
        "KvScan",
        "reply",
        b"",
        entry + b"\1\0" + lie + b"kv",
    )
    body("scan reply: half a length", "KvScan", "reply", b"", entry + b"\1\0\1")
    queues.bad_bodies(body)
    return out


def behaviour() -> list:
    """Refusals that depend on the state of the connection and not on the codec. Scenarios for a live server.

    `with` names the fields in which a Hello differs from a valid Hello with a valid token.
    """

    def case(name: str, given: str, send: dict, status: str, survives: bool, after: str) -> dict:
        answer = {"status": status, "code": STATUS[status], "survives": survives}
        return {"name": name, "given": given, "send": send} | answer | {"after": after}

    def hello(**changes) -> dict:
        return {"request": "Hello", "with": changes}

    def frame(head: bytes) -> dict:
        return {"hex": head.hex()}

    newer = sample_fields(OPS["Hello"]["request"], "typical") | {"major": 2}
    newer = put_fields(OPS["Hello"]["request"], newer) + bytes(7)
    newer = request_bytes("Hello", request=1, args_len=len(newer)) + newer
    data = request_bytes("KvGet", **typical_header(OPS["KvGet"], args_len=3)) + b"key"
    new, greeted = "a new connection", "a connection whose Hello was answered Ok"
    most = LIMITS["RESULTS_WINDOW_MAX"]
    return [
        case(
            "Hello twice", greeted, hello(), "HandshakeRequired", True,
            "session, task prefix, shard, window and grants are those of the first Hello",
        ),
        case(
            "another major version", new, hello(major=2), "UnsupportedVersion", False,
            "the message names both versions",
        ),
        case(
            "another major version with another layout", new, frame(newer), "UnsupportedVersion",
            False, "the first two bytes of the arguments are read before the rest is parsed",
        ),
        case("major version 0", new, hello(major=0), "UnsupportedVersion", False, ""),
        case("a later minor version", new, hello(minor=7), "Ok", True, "the reply says minor 0"),
        case(
            "unknown features", new, hello(features=str(U64)), "Ok", True, "the reply says features 0"
        ),
        case("session 0", new, hello(session="0"), "InvalidArgument", False, ""),
        case("no token", new, hello(token=""), "Unauthenticated", False, ""),
        case("a shard that there is not", new, hello(shard=254), "InvalidArgument", False, ""),
        case(
            "more results than a lane keeps", new, hello(window=0xFFFF), "Ok", True,
            f"the reply says window {most}",
        ),
        case(
            "a token of task 9 for a session of prefix 10", new,
            hello(token="of task 9", task_prefix="10"), "PermissionDenied", False, "",
        ),
        case(
            "a data request at a controller", greeted + " at a controller", frame(data),
            "NotServedHere", True, "the body was skipped: the next request is answered",
        ),
        case(
            "a control request at a memory server", greeted + " at a memory server",
            frame(request_bytes("ListJobs", request=7)), "NotServedHere", True, "",
        ),
        case(
            "a block that the server does not have", greeted + " at a memory server, no grant",
            frame(data), "UnknownBlock", True, "the block is looked for before the grant",
        ),
    ]  # fmt: skip
