"""The reaction of a client to each status, and the tables of PROTOCOL.md that messages.toml decides."""

import textwrap

from peer import SPEC, STATUS

# -------------------------------------------------------------------------------------------- retry

ACTIONS = {
    "answer": "the call is over: the caller gets a result, or what the status says about it",
    "raise": "the call is over: the caller gets an error with the reply's message",
    "retry_after": "wait for the low 32 bits of the reply's value in microseconds, with jitter, and send it again",
    "reroute": "correct the map by the entry in the reply and send it to that block",
    "reopen": "ask ReopenStructure; raise what it says, or take its map and grant and go on",
    "resume": "send the lane's requests again, in order, from the reply's value",
    "deliver": "no answer to a request: hand it to the subscription that its arguments name",
}
NUMBERS = {
    "used": "the mutation's sequence number is used up; the next request takes the next number",
    "free": "the number was not used: the next request of the lane to reach that block takes it",
    "abandon": "whether it was used is not known: the client opens a new lane",
    "none": "no mutation is answered like this by a memory server",
}

# action, effect on the sequence number, most repeats (0: no repeat, None: until the deadline)
RETRIES = {
    "Ok": ("answer", "used", 0),
    "BadFrame": ("raise", "abandon", 0),
    "UnsupportedVersion": ("raise", "none", 0),
    "UnknownOpcode": ("raise", "free", 0),
    "UnknownFlag": ("raise", "free", 0),
    "FrameTooLarge": ("raise", "free", 0),
    "HandshakeRequired": ("raise", "free", 0),
    "NotServedHere": ("raise", "free", 0),
    "Unauthenticated": ("raise", "free", 0),
    "PermissionDenied": ("raise", "free", 0),
    "GrantExpired": ("reopen", "free", None),
    "GrantRevoked": ("reopen", "free", 1),
    "WrongEpoch": ("reopen", "free", None),
    "UnknownBlock": ("reopen", "free", None),
    "Moved": ("reroute", "used", None),
    "Resume": ("resume", "free", None),
    "OutcomeUnknown": ("raise", "abandon", 0),
    "WrongRange": ("reopen", "free", None),
    "Busy": ("retry_after", "free", None),
    "OutOfMemory": ("raise", "used", 0),
    "BlockFull": ("raise", "used", 0),
    "ValueTooLarge": ("raise", "used", 0),
    "KeyTooLarge": ("raise", "used", 0),
    "LimitExceeded": ("raise", "abandon", 0),
    "QuotaExceeded": ("raise", "none", 0),
    "NotShared": ("raise", "none", 0),
    "NotFound": ("raise", "none", 0),
    "KeyNotFound": ("answer", "used", 0),
    "KeyExists": ("raise", "used", 0),
    "CompareFailed": ("answer", "used", 0),
    "Sealed": ("raise", "used", 0),
    "AlreadyExists": ("raise", "none", 0),
    "WrongKind": ("raise", "free", 0),
    "Cycle": ("raise", "none", 0),
    "UnknownParent": ("raise", "none", 0),
    "LeaseExpired": ("raise", "none", 0),
    "DataLost": ("raise", "none", 0),
    "UnknownJob": ("raise", "none", 0),
    "InvalidArgument": ("raise", "used", 0),
    "Removed": ("raise", "none", 0),
    "QueueEmpty": ("answer", "used", 0),
    "QueueFull": ("raise", "used", 0),
    "QueueClosed": ("raise", "used", 0),
    "FlushUnavailable": ("raise", "none", 0),
    "Loading": ("raise", "none", 0),
    "Refused": ("raise", "used", 0),
    "NotYet": ("raise", "used", 0),
    "UnknownKind": ("raise", "none", 0),
    "NotSealed": ("raise", "none", 0),
    "NotFlushed": ("raise", "none", 0),
    "DeadlineExceeded": ("raise", "none", 0),
    "Unavailable": ("raise", "none", 0),
    "LogFailed": ("raise", "none", 0),
    "Extents": ("answer", "used", 0),
    "Notice": ("deliver", "none", 0),
    "ExtentGone": ("raise", "used", 0),
    "Internal": ("raise", "abandon", 0),
}


def retry() -> dict:
    assert list(RETRIES) == list(STATUS), "every status has its line, in order of code"
    statuses = {}
    for name, (action, number, repeats) in RETRIES.items():
        case = {"code": STATUS[name], "action": action, "number": number, "repeats": repeats}
        if action == "retry_after":
            case["delay"] = "value, in microseconds"
        statuses[name] = case
    return {"actions": ACTIONS, "numbers": NUMBERS, "statuses": statuses}


# ------------------------------------------------------------------------------ tables of PROTOCOL.md

VERBS = {0: "-", 1: "read", 2: "write", 3: "read and write"}

# Arguments, payload and reply of the data operations, in brief. The document has them in full.
DATA_LAYOUTS = {
    "Subscribe": (
        "subscription u32, kinds u16, match u8, key",
        "-",
        "value: number of the last change",
    ),
    "FileAppend": ("-", "the bytes", "value: offset in the block"),
    "FileRead": ("offset u64, length u32", "-", "value: committed length; payload: the bytes"),
    "FileSize": ("-", "-", "value: committed length; args: sealed u8"),
    "FileSeal": ("-", "-", "value: final length of the block"),
    "FileMap": ("-", "-", "value: committed length; beside it a descriptor"),
    "FileContinue": ("-", "-", "value: final length of the block; args: as of Moved"),
    "AckResults": (
        "for each: lane u32, number u64",
        "-",
        "value: how many of the lanes were known",
    ),
    "NextBlock": ("-", "-", "value: 0; or Moved"),
    "QueuePut": ("length u32 of each item, or none", "the items", "value: number of the first"),
    "QueueGet": (
        "items u32, bytes u32, time-out u32, stay u8",
        "-",
        "value: how many; args: first u64, deliveries u32, length u32 of each; payload: the items",
    ),
    "QueuePeek": ("items u32, bytes u32", "-", "as of QueueGet"),
    "QueueLength": (
        "tail u8",
        "-",
        "value: items put; args: taken u64, bytes put u64, bytes taken u64, reserved u64, closed u8",
    ),
    "QueueClose": ("-", "-", "-"),
    "QueueAck": (
        "action u8, time-out u32, then number u64 and deliveries u32 of each",
        "-",
        "value: how many were held; args: 1 or 0 for each",
    ),
    "QueuePutExtents": (
        "mode u8, in mode 2 the number u64",
        "as of KvPutExtents",
        "value: number of the item; in mode 2: 1",
    ),
    "QueueGetExtents": (
        "time-out u32, stay u8",
        "-",
        "value: 1; args: number u64, deliveries u32; payload: as KvPutExtents",
    ),
    "QueueLists": (
        "number u64",
        "-",
        "value: where to continue; payload: number u64, bytes u32 and the list of each",
    ),
    "KvGet": ("key", "-", "payload: the value; Extents: value: length, payload: as KvPutExtents"),
    "KvPut": ("mode u8, key", "the value", "value: 1 replaced, else 0"),
    "KvPutExtents": (
        "mode u8, key",
        "in mode 2 bytes u32 and the old list; block u64, epoch u64, id u64, length u32 of each extent",
        "as of KvPut",
    ),
    "KvDeleteExtents": ("key", "as of KvPutExtents", "-"),
    "ExtentPut": ("-", "the extent", "value: its id"),
    "ExtentGet": ("id u64", "-", "payload: the extent"),
    "ExtentKeep": ("id u64 of each", "-", "-"),
    "ExtentPutList": ("mode u8", "as of KvPutExtents", "value: its id"),
    "KvDelete": ("mode u8, key", "-", "payload: the old value when mode is 1"),
    "KvExists": ("key", "-", "value: 1 or 0; args when 1: length u64"),
    "KvUpdate": ("key", "the value", "payload: the old value"),
    "KvUpsert": ("key", "the value", "value: 1 replaced, 0 new; payload: the old value"),
    "KvCompareAndSwap": (
        "present u8, key length u16, key",
        "expected length u32, expected, new",
        "-; CompareFailed: value 1 and payload: the value found, or value 0",
    ),
    "KvScan": (
        "cursor u64, bytes u32, mode u8, prefix",
        "-",
        "value: next cursor, or 0; payload: entries",
    ),
    "KvLength": (
        "-, or first hash u64",
        "-",
        "value: entries; args: last hash counted u64",
    ),
    "FileReadMany": (
        "bytes u32, count u32, then offset u64, length u32 of each",
        "-",
        "value: ranges answered; payload: length u32 and bytes of each",
    ),
    "KvMultiGet": (
        "bytes u32",
        "count u32, then length u16, key of each",
        "value: keys answered; payload: results",
    ),
    "KvBatch": (
        "atomic u8",
        "count u32, then the operations",
        "value: how many, or the index of the failed one; args: applied u8; payload: results",
    ),
    "KvAccumulate": (
        "function u8, key",
        "the operand",
        "value: the number, length or items; payload: the list of a top",
    ),
}


# The payload of a message that has one.
PAYLOADS = {
    "MoveRegion": "the entries of the range, in the layout of a block",
    "MoveValue": "the value",
    "MoveLanes": "what is known of lanes",
    "MovePatch": "runs of bytes that have changed",
    "MoveState": "what the block knows beside its bytes",
}


def table(head: list, rows: list) -> str:
    lines = [head, ["---"] * len(head), *rows]
    escaped = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped)


def operations_table() -> str:
    rows = []
    for op in SPEC["op"]:
        if op.get("body") == "data":
            layout = DATA_LAYOUTS[op["name"]]
        else:
            payload = PAYLOADS.get(op["name"], "-")
            layout = ("message" if op["request"] else "-", payload)
            layout = (*layout, "message" if op["reply"] else "-")
        if op["name"] == "PresentGrant":
            layout = (*layout[:2], "value: the grant's number")
        assert bool(op.get("payload")) == (layout[1] != "-"), op["name"]
        verbs, lane = VERBS[op.get("verbs", 0)], "yes" if op.get("lane") else "-"
        code = f"0x{op['code']:04X}"
        rows.append([code, op["name"], op["plane"], op["auth"], verbs, lane, *layout])
    head = ["Code", "Operation", "Plane", "Auth", "Verbs", "Lane", "Arguments", "Payload", "Reply"]
    return table(head, rows)


FACTS = {name: name.replace("_", " ").capitalize() for name in SPEC["facts"]}


def values_table() -> str:
    rows = []
    for name, fact in SPEC["facts"].items():
        rows.append([FACTS[name], "-", fact["doc"]])
        rows += [["", value, text] for value, text in fact.get("values", [])]
    return table(["Fact", "Value", "Meaning"], rows)


def facts_table() -> str:
    words = {True: "yes", False: "no"}
    rows = [[op["name"], *(words.get(op[name], op[name]) for name in FACTS)] for op in SPEC["op"]]
    return table(["Operation", *FACTS.values()], rows)


def prose(text: str) -> str:
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)


def bodies_text() -> str:
    def fields_table(fields: list) -> str:
        return table(["Field", "Type", "Meaning"], fields)

    parts = []
    for part in SPEC["struct"]:
        parts += [f"#### {part['name']}", prose(part["doc"]), fields_table(part["fields"])]
    for op in SPEC["op"]:
        parts += [f"#### {op['name']} (0x{op['code']:04X})", prose(op["doc"])]
        for word in ("request", "reply"):
            if op.get("body") == "data":
                continue
            if op[word]:
                parts += [f"{word.title()}:", fields_table(op[word])]
            else:
                parts.append(f"{word.title()}: no arguments.")
    return "\n\n".join(parts)


def statuses_table() -> str:
    rows = []
    for status in SPEC["status"]:
        action, number, _ = RETRIES[status["name"]]
        words = [status["doc"], status["raised_by"], status["client"], action, number]
        rows.append([status["code"], status["name"], *words])
    head = ["Code", "Status", "Meaning", "Raised by", "The client", "Action", "Number"]
    return table(head, rows)


def limits_table() -> str:
    rows = [[name, limit["value"], limit["doc"]] for name, limit in SPEC["limits"].items()]
    return table(["Limit", "Value", "Meaning"], rows)


def document(text: str) -> str:
    """PROTOCOL.md with its generated parts as messages.toml has them."""
    parts = {
        "operations": operations_table(),
        "values of facts": values_table(),
        "facts": facts_table(),
        "bodies": bodies_text(),
        "statuses": statuses_table(),
        "limits": limits_table(),
    }
    for name, body in parts.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        assert text.count(begin) == 1 and text.count(end) == 1, f"markers of {name}"
        before, rest = text.split(begin)
        text = before + begin + "\n\n" + body + "\n\n" + end + rest.split(end)[1]
    return text
