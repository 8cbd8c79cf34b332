"""A second implementation of PROTOCOL.md: fields, headers, the hash of a key, tokens, grants.

It shares no code with the Rust crates and was written from the document. `judge_request` and
`judge_reply` are the validation rules; nothing here does I/O.
"""

import hashlib
import hmac
import pathlib
import re
import struct
import tomllib

PROTOCOL = pathlib.Path(__file__).resolve().parent.parent
SPEC = tomllib.loads((PROTOCOL / "messages.toml").read_text())
for _op in SPEC["op"]:
    _op["lane"] = _op["plane"] == "data" and _op["mutates"] == "once"
OPS = {op["name"]: op for op in SPEC["op"]}
BY_CODE = {op["code"]: op for op in SPEC["op"]}
# Opcodes of custom kinds: the kind defines whether an operation is a mutation, and not the protocol.
CUSTOM = {"name": "Custom", "plane": "data", "auth": "grant", "body": "data", "payload": True}
CUSTOM |= {"custom": True}
CUSTOM_CODES = range(0x8000, 0xF000)
ROUTES = {"head": 1, "tail": 2, "position": 3, "key": 4, "each": 5, "through": 6}
STATUS = {status["name"]: status["code"] for status in SPEC["status"]}
STRUCTS = {part["name"]: part["fields"] for part in SPEC["struct"]}
LIMITS = {name: limit["value"] for name, limit in SPEC["limits"].items()}

U32 = 2**32 - 1
U64 = 2**64 - 1
U128 = 2**128 - 1

# ------------------------------------------------------------------------------------------ fields
# In the JSON, u8 to u32 are numbers; u64, i64 and u128 are decimal strings, because not every
# reader of JSON keeps 64 bits; bytes are lower-case hex.

INTEGERS = {
    "u8": (1, False),
    "u16": (2, False),
    "u32": (4, False),
    "u64": (8, False),
    "i64": (8, True),
    "u128": (16, False),
}
WIDE = {"u64", "i64", "u128"}


def put(kind: str, value: object) -> bytes:
    """The bytes of one field."""
    if kind in INTEGERS:
        size, signed = INTEGERS[kind]
        return value.to_bytes(size, "little", signed=signed)
    if kind == "bool":
        return bytes([value])
    if kind == "str":
        text = value.encode()
        return len(text).to_bytes(2, "little") + text
    if kind == "bytes":
        return len(value).to_bytes(4, "little") + value
    if kind.startswith("list:"):
        return len(value).to_bytes(4, "little") + b"".join(put(kind[5:], item) for item in value)
    if kind.startswith("opt:"):
        return b"\0" if value is None else b"\1" + put(kind[4:], value)
    return put_fields(STRUCTS[kind], value)


def put_fields(fields: list, values: dict) -> bytes:
    """The bytes of a body or a part of one."""
    assert list(values) == [name for name, _, _ in fields], f"fields of {values}"
    return b"".join(put(kind, values[name]) for name, kind, _ in fields)


def shown(kind: str, value: object) -> object:
    """The JSON form of a field."""
    if kind in WIDE:
        return str(value)
    if kind == "bytes":
        return value.hex()
    if kind.startswith("list:"):
        return [shown(kind[5:], item) for item in value]
    if kind.startswith("opt:"):
        return None if value is None else shown(kind[4:], value)
    return shown_fields(STRUCTS[kind], value) if kind in STRUCTS else value


def shown_fields(fields: list, values: dict) -> dict:
    return {name: shown(kind, values[name]) for name, kind, _ in fields}


# ------------------------------------------------------------------------------------------ headers

REQUEST = struct.Struct("<2s3H2I4Q4I")
REPLY = struct.Struct("<2s2H2B2I2Q")
assert REQUEST.size == LIMITS["REQUEST_HEADER"] and REPLY.size == LIMITS["REPLY_HEADER"]

REQUEST_FIELDS = [
    ("args_len", "u32"),
    ("payload_len", "u32"),
    ("request", "u64"),
    ("block", "u64"),
    ("epoch", "u64"),
    ("sequence", "u64"),
    ("lane", "u32"),
    ("grant", "u32"),
    ("ack_lag", "u32"),
    ("deadline_ms", "u32"),
]
REPLY_FIELDS = [("args_len", "u32"), ("payload_len", "u32"), ("request", "u64"), ("value", "u64")]
DURABILITY = ["memory", "chain", "flushed"]
RETRY = 1


def request_bytes(op: int | str, *, magic: bytes = b"HC", flags=0, reserved=0, **fields) -> bytes:
    """A request header, of an operation's name or of any code."""
    code = OPS[op]["code"] if isinstance(op, str) else op
    rest = [fields.pop(name, 0) for name, _ in REQUEST_FIELDS]
    assert not fields, f"no such fields: {fields}"
    return REQUEST.pack(magic, code, flags, reserved, *rest)


def reply_bytes(
    status: int | str, *, magic: bytes = b"hc", durability=0, reserved=0, reserved2=0, **fields
) -> bytes:
    """A reply header, of a status's name or of any code."""
    code = STATUS[status] if isinstance(status, str) else status
    rest = [fields.pop(name, 0) for name, _ in REPLY_FIELDS]
    assert not fields, f"no such fields: {fields}"
    return REPLY.pack(magic, code, reserved, durability, reserved2, *rest)


def judge_request(b: bytes, greeted: bool) -> str | tuple[str, bool]:
    """'need_more', 'accept', or the status of the refusal and whether the connection survives.

    The rules are those of PROTOCOL.md, "How a header is validated", in this order.
    """
    if len(b) < 2:
        return "need_more"
    if b[:2] != b"HC":
        return "BadFrame", False
    if len(b) < REQUEST.size:
        return "need_more"
    _, code, flags, reserved, args, payload, *rest = REQUEST.unpack(b[: REQUEST.size])
    _, block, epoch, sequence, lane, grant, ack_lag, _ = rest
    if reserved:
        return "BadFrame", False
    if args > LIMITS["CONTROL_ARGS_MAX"] or payload > LIMITS["FRAME_MAX"]:
        return "FrameTooLarge", False
    if not greeted and args + payload > LIMITS["HELLO_MAX"]:
        return "FrameTooLarge", False
    op = BY_CODE.get(code) or (CUSTOM if code in CUSTOM_CODES else None)
    if not greeted and (op is None or op["name"] != "Hello"):
        return "HandshakeRequired", False
    if op is None:
        return "UnknownOpcode", True
    if flags & ~RETRY:
        return "UnknownFlag", True
    if op["plane"] in ("any", "data") and args > LIMITS["ARGS_MAX"]:
        return "FrameTooLarge", False
    if payload and not op.get("payload"):
        return "BadFrame", True
    laned = bool(lane or sequence or ack_lag)
    if op.get("lane") or (op.get("custom") and laned):
        if not lane or not sequence or not 1 <= ack_lag <= sequence:
            return "BadFrame", True
    elif laned:
        return "BadFrame", True
    named = {
        "grant": bool(block or epoch or grant),
        "peer": bool(block or epoch) and not grant,
    }
    if not named.get(op["auth"], not (block or epoch or grant)):
        return "BadFrame", True
    return "accept"


def judge_reply(b: bytes) -> str | tuple[str, bool]:
    """As judge_request. After any violation in a reply the connection is unusable."""
    if len(b) < 2:
        return "need_more"
    if b[:2] != b"hc":
        return "BadFrame", False
    if len(b) < REPLY.size:
        return "need_more"
    _, code, reserved, durability, reserved2, args, payload, _, _ = REPLY.unpack(b[: REPLY.size])
    if reserved or reserved2:
        return "BadFrame", False
    if args > LIMITS["CONTROL_ARGS_MAX"] or payload > LIMITS["FRAME_MAX"]:
        return "FrameTooLarge", False
    if code not in STATUS.values() or durability >= len(DURABILITY):
        return "BadFrame", False
    return "accept"


# -------------------------------------------------------------------------------------- keys, slots

P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def rotate(x: int, n: int) -> int:
    return (x << n | x >> (64 - n)) & U64


def round64(acc: int, lane: int) -> int:
    return rotate((acc + lane * P2) & U64, 31) * P1 & U64


def xxh64(data: bytes, seed: int = 0) -> int:
    """XXH64 as its specification has it: stripes of 32 bytes, then 8, 4 and 1, then the mixing."""
    at, size = 0, len(data)
    if size >= 32:
        lanes = [(seed + P1 + P2) & U64, (seed + P2) & U64, seed, (seed - P1) & U64]
        while size - at >= 32:
            words = struct.unpack_from("<4Q", data, at)
            lanes = [round64(acc, word) for acc, word in zip(lanes, words, strict=True)]
            at += 32
        acc = sum(map(rotate, lanes, (1, 7, 12, 18))) & U64
        for lane in lanes:
            acc = ((acc ^ round64(0, lane)) * P1 + P4) & U64
    else:
        acc = (seed + P5) & U64
    acc = (acc + size) & U64
    while size - at >= 8:
        acc = (rotate(acc ^ round64(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & U64
        at += 8
    if size - at >= 4:
        acc ^= struct.unpack_from("<I", data, at)[0] * P1 & U64
        acc = (rotate(acc, 23) * P2 + P3) & U64
        at += 4
    for byte in data[at:]:
        acc = rotate(acc ^ (byte * P5 & U64), 11) * P1 & U64
    acc = (acc ^ acc >> 33) * P2 & U64
    acc = (acc ^ acc >> 29) * P3 & U64
    return acc ^ acc >> 32


# Values of the XXH64 specification, so that an error here does not become a part of the protocol.
assert xxh64(b"") == 0xEF46DB3751D8E999
assert xxh64(b"a") == 0xD24EC4F1A98C6E5B
assert xxh64(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1


def tag_of(key: bytes) -> bytes | None:
    found = re.search(rb"\{([^}]+)\}", key[key.find(b"{") :], re.DOTALL) if b"{" in key else None
    return found[1] if found and found.start() == 0 else None


def key_hash(key: bytes) -> int:
    tag = tag_of(key)
    low = xxh64(key)
    return low if tag is None else xxh64(tag) >> 48 << 48 | low & (1 << 48) - 1


# ----------------------------------------------------------------------------------- tokens, grants


def mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, hashlib.sha256)


ROOT_KEY = bytes(range(32))
OTHER_ROOT = bytes(range(1, 33))
TOKEN_KEY = mac(ROOT_KEY, b"honeycomb token v1")
GRANT_KEY = mac(ROOT_KEY, b"honeycomb grant v1")


def issue_token(key: bytes, job: int) -> bytes:
    head = b"\1" + job.to_bytes(8, "little")
    return head + b"\0" + mac(key, head)


def attenuate(token: bytes, kind: int, body: bytes) -> bytes:
    caveat = bytes([kind, len(body)]) + body
    tag = mac(token[-32:], caveat)
    return token[:9] + bytes([token[9] + 1]) + token[10:-32] + caveat + tag


def verify_token(key: bytes, token: bytes) -> dict | str:
    """The scope, or why not: UnknownForm, Malformed or Forged."""
    if len(token) > LIMITS["TOKEN_MAX"]:
        return "UnknownForm"
    if not token:
        return "Malformed"
    if token[0] != 1:
        return "UnknownForm"
    caveats, at = [], 10
    for _ in range(token[9] if len(token) > 9 else 0):
        length = token[at + 1] if at + 1 < len(token) else 0
        caveats.append((token[at : at + 1], token[at + 2 : at + 2 + length]))
        at += 2 + length
    if len(token) != at + 32:
        return "Malformed"
    tag = mac(key, token[:9])
    job = int.from_bytes(token[1:9], "little")
    scope = {"job": job, "task": None, "life": None, "verbs": 3, "expires_ms": U64}
    tasks, lives = set(), set()
    for kind, body in caveats:
        tag = mac(tag, kind + bytes([len(body)]) + body)
        value, size = int.from_bytes(body, "little"), {1: 8, 2: 2, 3: 8, 4: 8}.get(kind[0])
        if size is None:
            return "UnknownForm"
        if size != len(body):
            return "Malformed"
        if kind == b"\1":
            tasks.add(value)
            scope["task"] = value
        elif kind == b"\2":
            scope["verbs"] &= value
        elif kind == b"\4":
            lives.add(value)
            scope["life"] = scope["life"] or value
        else:
            scope["expires_ms"] = min(scope["expires_ms"], value)
    if tag != token[-32:]:
        return "Forged"
    if len(tasks) > 1 or len(lives) > 1:
        scope["verbs"] = 0
    return scope


GRANT_FIELDS = [
    ("verbs", "u16"),
    ("generation", "u32"),
    ("job", "u64"),
    ("prefix", "u64"),
    ("structure", "u64"),
    ("expires_ms", "u64"),
]


def issue_grant(key: bytes, values: dict) -> bytes:
    body = b"\1" + b"".join(put(kind, values[name]) for name, kind in GRANT_FIELDS)
    return body + mac(key, body)[:16]
