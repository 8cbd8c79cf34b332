#!/usr/bin/env python3
"""Makes the golden vectors with a second implementation of the protocol (vectors/peer.py).

That implementation shares no code with the Rust crates, so a vector on which both agree means what
PROTOCOL.md says. What a vector expects is stated by hand wherever a rule decides it (refusals,
tokens, retries); peer.py then has to agree, and so has crates/wire/tests/vectors.rs.

It also writes the tables of PROTOCOL.md that messages.toml decides, between their markers
(vectors/tables.py). `--check` compares everything and writes nothing.
"""

import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "vectors"))

import queues
from bodies import (
    DATA_SAMPLES,
    MOVED_SAMPLES,
    messages,
    moved_bytes,
    notice_cases,
    sample_fields,
)
from moves import moves
from peer import (
    CUSTOM,
    CUSTOM_CODES,
    DURABILITY,
    GRANT_FIELDS,
    GRANT_KEY,
    INTEGERS,
    LIMITS,
    OPS,
    OTHER_ROOT,
    REPLY_FIELDS,
    REQUEST_FIELDS,
    RETRY,
    ROOT_KEY,
    SPEC,
    STATUS,
    TOKEN_KEY,
    U32,
    U64,
    attenuate,
    issue_grant,
    issue_token,
    judge_reply,
    judge_request,
    key_hash,
    mac,
    put,
    put_fields,
    reply_bytes,
    request_bytes,
    shown,
    tag_of,
    verify_token,
)
from tables import DATA_LAYOUTS, document, retry


def typical_header(op: dict, **more) -> dict:
    """The fields that an ordinary request of this operation has."""
    fields = {"request": 7}
    if op["auth"] == "grant":
        fields |= {
            "block": 0x0000_0003_0100_0002,
            "epoch": 0x0000_0100_0000_0005,
            "grant": 1,
        }
    if op["auth"] == "peer":
        fields |= {"block": 0x0000_0004_0000_0001, "epoch": 0x0000_0100_0000_0006}
    if op.get("lane"):
        fields |= {"lane": 2, "sequence": 9, "ack_lag": 1}
    return fields | more


def request_case(name: str, op: str, flags: int = 0, **fields) -> dict:
    head = request_bytes(op, flags=flags, **fields)
    assert judge_request(head, True) == "accept", name
    decoded = {"op": op, "code": OPS[op]["code"], "flags": flags}
    return headed(name, head, decoded, fields)


def custom_case(name: str, code: int, **fields) -> dict:
    """The header of an operation of a custom kind."""
    fields = typical_header(CUSTOM) | fields
    head = request_bytes(code, **fields)
    assert judge_request(head, True) == "accept", name
    return headed(name, head, {"op": "Custom", "code": code, "flags": 0}, fields)


def headed(name: str, head: bytes, decoded: dict, fields: dict) -> dict:
    decoded |= {n: shown(kind, fields.get(n, 0)) for n, kind in REQUEST_FIELDS}
    return {"name": name, "hex": head.hex(), "fields": decoded}


def reply_case(name: str, status: str, durability: int = 0, **fields) -> dict:
    head = reply_bytes(status, durability=durability, **fields)
    assert judge_reply(head) == "accept", name
    decoded = {
        "status": status,
        "code": STATUS[status],
        "durability": DURABILITY[durability],
    }
    decoded |= {n: shown(kind, fields.get(n, 0)) for n, kind in REPLY_FIELDS}
    return {"name": name, "hex": head.hex(), "fields": decoded}


def whole_case(name: str, head: dict, args: bytes, payload: bytes) -> dict:
    """A complete frame: a header case with its body behind it."""
    body = {"args": args.hex(), "payload": payload.hex()}
    return head | {"name": name, "hex": head["hex"] + args.hex() + payload.hex()} | body


def frames() -> dict:
    requests = [
        request_case(f"{op['name']}, as it usually comes", op["name"], **typical_header(op))
        for op in SPEC["op"]
    ]
    mutations = (
        "FileAppend",
        "FileSeal",
        "QueuePut",
        "QueueGet",
        "QueueAck",
        "KvPut",
        "KvDelete",
    )
    for name in (*mutations, "KvCompareAndSwap"):
        for flags in (0, RETRY):
            for lane in (1, U32):
                for grant in (1, LIMITS["GRANTS_MAX"]):
                    for sequence, lag in ((1, 1), (17, 16), (U64, 1), (U64, U32)):
                        requests.append(
                            request_case(
                                f"{name}, flags {flags}, lane {lane}, grant {grant}, "
                                f"sequence {sequence}, ack_lag {lag}",
                                name,
                                flags,
                                **typical_header(
                                    OPS[name],
                                    lane=lane,
                                    grant=grant,
                                    sequence=sequence,
                                    ack_lag=lag,
                                ),
                            )
                        )
    for name in ("Ping", "OpenStructure", "FileRead", "KvGet"):
        requests.append(request_case(f"{name}, again", name, RETRY, **typical_header(OPS[name])))
    data, control = LIMITS["ARGS_MAX"], LIMITS["CONTROL_ARGS_MAX"]
    kv_put, kv_get = typical_header(OPS["KvPut"]), typical_header(OPS["KvGet"])
    largest = {"args_len": data, "payload_len": LIMITS["FRAME_MAX"], "deadline_ms": U32}
    requests += [
        request_case("the largest control body", "CreateHierarchy", args_len=control, request=U64),
        request_case("the largest data body", "KvPut", **kv_put | largest),
        request_case("a block without a grant is for the server to refuse", "KvGet", block=1),
        request_case("a grant without a block too", "KvGet", grant=1),
        request_case("every field at its most", "KvGet", **kv_get | {"grant": U32, "block": U64}),
        request_case(
            "a get that waits as long as a server lets it",
            "QueueGet",
            **typical_header(OPS["QueueGet"], args_len=13, deadline_ms=LIMITS["WAIT_MAX_MS"]),
        ),
    ]
    first, last = CUSTOM_CODES[0], CUSTOM_CODES[-1]
    laned = {"lane": 2, "sequence": 9, "ack_lag": 1}
    requests += [
        custom_case("the first custom opcode, a read", first),
        custom_case("the last custom opcode, a mutation", last, **laned),
        custom_case(
            "a custom operation with a payload that waits",
            0x8001,
            payload_len=9,
            deadline_ms=5000,
        ),
        custom_case("a custom mutation with the largest body", 0x80FF, **laned | largest),
    ]
    region = typical_header(OPS["MoveRegion"], args_len=36, payload_len=LIMITS["FRAME_MAX"])
    for name in ("MoveRegion", "MoveDone"):
        for field in ("block", "epoch"):
            fields = typical_header(OPS[name]) | {field: 0}
            requests.append(request_case(f"{name} with {field} 0", name, **fields))
    requests.append(request_case("the largest part of a move", "MoveRegion", **region))
    # A notice answers no request, so it has the number that no request has.
    number = {"Notice": 0}
    replies = [
        reply_case(s["name"], s["name"], request=number.get(s["name"], 7)) for s in SPEC["status"]
    ]
    for durability, word in enumerate(DURABILITY):
        replies.append(reply_case(f"Ok, {word}", "Ok", durability, request=1, value=4096))
    most = {
        "args_len": control,
        "payload_len": LIMITS["FRAME_MAX"],
        "request": U64,
        "value": U64,
    }
    replies += [
        reply_case("every field at its most", "Internal", 2, **most),
        reply_case("Busy for 1.5 ms", "Busy", request=3, value=1500, args_len=11),
        reply_case("Resume at 12", "Resume", request=4, value=12),
        reply_case("Resume of an unknown lane", "Resume", request=5, value=0),
        reply_case("the last notice that can be numbered", "Notice", value=U64, args_len=13),
    ]
    return {"requests": requests, "replies": replies, "whole": whole_frames()}


def whole_frames() -> list:
    hello = {
        "major": 1,
        "minor": 0,
        "features": 0,
        "session": 0x0123456789ABCDEF0011223344556677,
        "token": attenuate(issue_token(TOKEN_KEY, 5), 1, (9).to_bytes(8, "little")),
        "task_prefix": 9,
        "shard": 255,
        "window": 0,
    }
    hello = put_fields(OPS["Hello"]["request"], hello)
    key, value, message = b"\0colour", b"octarine", b"no such key"
    moved = moved_bytes(MOVED_SAMPLES[0]["version"], MOVED_SAMPLES[0]["entry"])
    kv_put = typical_header(OPS["KvPut"], args_len=len(key), payload_len=len(value))
    return [
        *queue_frames(),
        *move_frames(),
        whole_case(
            "a handshake of a task",
            request_case("", "Hello", request=1, args_len=len(hello)),
            hello,
            b"",
        ),
        whole_case("a put", request_case("", "KvPut", **kv_put), key, value),
        whole_case(
            "its reply: an entry was replaced",
            reply_case("", "Ok", request=7, value=1),
            b"",
            b"",
        ),
        whole_case(
            "a refusal with its message",
            reply_case("", "KeyNotFound", request=7, args_len=len(message)),
            message,
            b"",
        ),
        whole_case(
            "an append that belongs to the next block",
            reply_case("", "Moved", request=7, args_len=len(moved), value=65_000),
            moved,
            b"",
        ),
    ]


def queue_frames() -> list:
    """A batch that is put, a get that waited for it, and every notice there is."""

    def parts(op: str, part: int, which: int) -> tuple[bytes, bytes, dict]:
        case = DATA_SAMPLES[op][part][which]
        args, payload = bytes.fromhex(case["args"]), bytes.fromhex(case["payload"])
        return args, payload, {"args_len": len(args), "payload_len": len(payload)}

    (put, items, put_lens), (get, _, get_lens) = (
        parts("QueuePut", 0, 2),
        parts("QueueGet", 0, 1),
    )
    got, delivered, got_lens = parts("QueueGet", 1, 2)
    put_head = typical_header(OPS["QueuePut"], **put_lens)
    get_head = typical_header(OPS["QueueGet"], request=8, deadline_ms=5000, **get_lens)
    cases = [
        whole_case("three items are put", request_case("", "QueuePut", **put_head), put, items),
        whole_case("up to 64 are got", request_case("", "QueueGet", **get_head), get, b""),
        whole_case(
            "three came",
            reply_case("", "Ok", request=8, value=3, **got_lens),
            got,
            delivered,
        ),
        whole_case("nothing came in time", reply_case("", "QueueEmpty", request=8), b"", b""),
    ]
    for case in notice_cases():
        args, value = bytes.fromhex(case["args"]), int(case["value"])
        head = reply_case("", "Notice", request=0, args_len=len(args), value=value)
        cases.append(whole_case(f"a notice: {case['name']}", head, args, b""))
    return cases


def move_frames() -> list:
    """A move between two blocks, as it goes over the wire."""
    cases = []
    for number, part in enumerate(moves(), 1):
        args, payload = bytes.fromhex(part["args"]), bytes.fromhex(part["payload"])
        lens = {"args_len": len(args), "payload_len": len(payload), "request": number}
        head = request_case("", part["op"], **typical_header(OPS[part["op"]], **lens))
        cases.append(whole_case(f"of a move: {part['name']}", head, args, payload))
    return cases


# ----------------------------------------------------------------------------------------- refusals


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
    """Bodies behind good headers: each is answered BadFrame and leaves the connection usable."""
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
    body("KvPutExtents: mode 2", "KvPutExtents", "request", b"\2key", bytes(28))
    body("KvPutExtents: an extent is cut", "KvPutExtents", "request", b"\0key", bytes(27))
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
    body("scan: mode 2", "KvScan", "request", bytes(12) + b"\2")
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
    """What no codec can tell: the state of the connection decides. Scenarios for a live server.

    `with` names the fields in which a Hello differs from a good one with a good token.
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
                "slots": {str(h): value >> 64 - h.bit_length() + 1 for h in (64, 1024, 65536)},
            }
        )
    return {"keys": cases}


def flip(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def tokens() -> dict:
    keys = {"root_key": ROOT_KEY, "token_key": TOKEN_KEY, "grant_key": GRANT_KEY}
    return (
        {name: key.hex() for name, key in keys.items()}
        | {"now_ms": "5000"}
        | {
            "tokens": token_cases(),
            "attenuations": attenuation_cases(),
            "grants": grant_cases(),
        }
    )


def token_cases() -> list:
    def u64(n: int) -> bytes:
        return put("u64", n)

    job, cluster = (
        issue_token(TOKEN_KEY, 0x0001_0000_0000_0005),
        issue_token(TOKEN_KEY, 0),
    )
    task = attenuate(job, 1, u64(9))
    reader = attenuate(task, 2, b"\1\0")
    late, soon = attenuate(job, 3, u64(4999)), attenuate(job, 3, u64(5001))
    stranger = issue_token(mac(OTHER_ROOT, b"honeycomb token v1"), 5)
    wide = job
    while len(wide) + 4 <= LIMITS["TOKEN_MAX"]:
        wide = attenuate(wide, 2, b"\3\0")
    long = attenuate(wide, 2, b"\3\0")
    # (name, token, what verification gives, what the server answers at now_ms)
    rows = [
        ("valid: the cluster's", cluster, "scope", "Ok"),
        ("valid: a job's", job, "scope", "Ok"),
        ("valid: narrowed to a task", task, "scope", "Ok"),
        ("valid: narrowed to a task that reads", reader, "scope", "Ok"),
        (
            "valid: verbs are an intersection",
            attenuate(reader, 2, b"\3\0"),
            "scope",
            "Ok",
        ),
        ("valid: no verbs are left", attenuate(reader, 2, b"\2\0"), "scope", "Ok"),
        (
            "valid: unknown verbs add nothing",
            attenuate(job, 2, b"\xff\xff"),
            "scope",
            "Ok",
        ),
        ("valid: the same task twice", attenuate(task, 1, u64(9)), "scope", "Ok"),
        ("valid: two tasks leave no verb", attenuate(task, 1, u64(10)), "scope", "Ok"),
        ("valid: expires 1 ms after now", soon, "scope", "Ok"),
        ("expired: 1 ms before now", late, "scope", "Unauthenticated"),
        ("expired: at now", attenuate(job, 3, u64(5000)), "scope", "Unauthenticated"),
        (
            "expired: the earliest counts",
            attenuate(late, 3, u64(U64)),
            "scope",
            "Unauthenticated",
        ),
        ("valid: as long as one can be", wide, "scope", "Ok"),
        ("too long", long, "UnknownForm", "Unauthenticated"),
        ("forged: last byte of the tag", flip(task, -1), "Forged", "Unauthenticated"),
        ("forged: another job", flip(job, 1), "Forged", "Unauthenticated"),
        ("forged: another task", flip(task, 12), "Forged", "Unauthenticated"),
        (
            "forged: a job made the cluster",
            b"\1" + bytes(8) + job[9:],
            "Forged",
            "Unauthenticated",
        ),
        (
            "forged: a caveat taken off",
            task[:9] + b"\0" + task[-32:],
            "Forged",
            "Unauthenticated",
        ),
        ("of another cluster", stranger, "Forged", "Unauthenticated"),
        ("truncated: the tag is cut", job[:-1], "Malformed", "Unauthenticated"),
        ("truncated: inside a caveat", task[:15], "Malformed", "Unauthenticated"),
        ("truncated: the version alone", b"\1", "Malformed", "Unauthenticated"),
        ("missing", b"", "Malformed", "Unauthenticated"),
        ("a byte left over", job + b"\0", "Malformed", "Unauthenticated"),
        ("version 2", b"\2" + job[1:], "UnknownForm", "Unauthenticated"),
        ("unknown caveat", attenuate(job, 4, b"new"), "UnknownForm", "Unauthenticated"),
        (
            "caveat of the wrong length",
            attenuate(job, 1, u64(9)[:7]),
            "Malformed",
            "Unauthenticated",
        ),
    ]
    out = []
    for name, token, expected, status in rows:
        result = verify_token(TOKEN_KEY, token)
        case = {"name": name, "hex": token.hex()}
        if expected == "scope":
            assert isinstance(result, dict), f"{name}: {result}"
            assert (result["expires_ms"] > 5000) == (status == "Ok"), name
            scope = {k: v if k == "verbs" or v is None else str(v) for k, v in result.items()}
            case["scope"] = scope
        else:
            assert result == expected, f"{name}: {result}"
            case["error"] = expected
        out.append(case | {"status": status, "code": STATUS[status]})
    return out


def attenuation_cases() -> list:
    token = issue_token(TOKEN_KEY, 5)
    steps = [
        ("task", 1, 9, 8),
        ("verbs", 2, 1, 2),
        ("expires_ms", 3, 7000, 8),
        ("verbs", 2, 3, 2),
    ]
    out = []
    for word, kind, value, size in steps:
        narrowed = attenuate(token, kind, value.to_bytes(size, "little"))
        caveat = {"caveat": word, "kind": kind, "value": str(value)}
        out.append({"from": token.hex()} | caveat | {"to": narrowed.hex()})
        token = narrowed
    return out


def grant_cases() -> list:
    base = {
        "verbs": 3,
        "generation": 4,
        "job": 5,
        "prefix": 9,
        "structure": 12,
        "expires_ms": 9000,
    }
    grant = issue_grant(GRANT_KEY, base)
    most = {name: (1 << 8 * INTEGERS[kind][0]) - 1 for name, kind in GRANT_FIELDS}
    rows = [
        ("valid", base, grant, "Ok"),
        ("valid: reads only", base | {"verbs": 1}, None, "Ok"),
        ("valid: every field at its most", most, None, "Ok"),
        ("expired: at now", base | {"expires_ms": 5000}, None, "GrantExpired"),
        (
            "revoked: the prefix is at generation 4",
            base | {"generation": 3},
            None,
            "GrantRevoked",
        ),
        ("forged: more verbs", "Forged", flip(grant, 1), "PermissionDenied"),
        ("forged: another structure", "Forged", flip(grant, 23), "PermissionDenied"),
        ("forged: the tag", "Forged", flip(grant, -1), "PermissionDenied"),
        (
            "of another cluster",
            "Forged",
            issue_grant(mac(OTHER_ROOT, b"honeycomb grant v1"), base),
            "PermissionDenied",
        ),
        (
            "a token's key is not a grant's",
            "Forged",
            issue_grant(TOKEN_KEY, base),
            "PermissionDenied",
        ),
        ("truncated", "Malformed", grant[:-1], "PermissionDenied"),
        ("truncated: inside the body", "Malformed", grant[:20], "PermissionDenied"),
        ("missing", "Malformed", b"", "PermissionDenied"),
        ("a byte left over", "Malformed", grant + b"\0", "PermissionDenied"),
        ("version 2", "UnknownForm", b"\2" + grant[1:], "PermissionDenied"),
    ]
    out = []
    for name, what, data, status in rows:
        if isinstance(what, dict):
            fields = {n: shown(kind, what[n]) for n, kind in GRANT_FIELDS}
            case = {
                "hex": (data or issue_grant(GRANT_KEY, what)).hex(),
                "grant": fields,
            }
        else:
            case = {"hex": data.hex(), "error": what}
        out.append({"name": name} | case | {"status": status, "code": STATUS[status]})
    return out


def main() -> int:
    assert set(DATA_SAMPLES) == set(DATA_LAYOUTS), "data operations"
    assert set(DATA_SAMPLES) == {op["name"] for op in SPEC["op"] if op.get("body") == "data"}
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
