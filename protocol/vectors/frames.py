"""Accepted frames: headers of every operation and status, and whole frames with their bodies."""

from bodies import DATA_SAMPLES, MOVED_SAMPLES, moved_bytes, notice_cases
from moves import moves
from peer import (
    CUSTOM,
    CUSTOM_CODES,
    DURABILITY,
    LIMITS,
    OPS,
    REPLY_FIELDS,
    REQUEST_FIELDS,
    RETRY,
    SPEC,
    STATUS,
    TOKEN_KEY,
    U32,
    U64,
    attenuate,
    issue_token,
    judge_reply,
    judge_request,
    put_fields,
    reply_bytes,
    request_bytes,
    shown,
)


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
    """A complete frame: a header case followed by its body."""
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
    # A notice answers no request, so it has number 0, which no request has.
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
    """A move between two blocks, as sent over the wire."""
    cases = []
    for number, part in enumerate(moves(), 1):
        args, payload = bytes.fromhex(part["args"]), bytes.fromhex(part["payload"])
        lens = {"args_len": len(args), "payload_len": len(payload), "request": number}
        head = request_case("", part["op"], **typical_header(OPS[part["op"]], **lens))
        cases.append(whole_case(f"of a move: {part['name']}", head, args, payload))
    return cases
