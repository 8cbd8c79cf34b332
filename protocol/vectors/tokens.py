"""Tokens, their attenuations and grants: valid ones, and each kind of invalid one."""

from peer import (
    GRANT_FIELDS,
    GRANT_KEY,
    INTEGERS,
    LIMITS,
    OTHER_ROOT,
    ROOT_KEY,
    STATUS,
    TOKEN_KEY,
    U64,
    attenuate,
    issue_grant,
    issue_token,
    mac,
    put,
    shown,
    verify_token,
)


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
    # (name, token, result of the verification, answer of the server at now_ms)
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
        ("valid: narrowed to a life of its job", attenuate(job, 4, u64(7)), "scope", "Ok"),
        (
            "valid: two lives leave no verb",
            attenuate(attenuate(job, 4, u64(7)), 4, u64(8)),
            "scope",
            "Ok",
        ),
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
        ("unknown caveat", attenuate(job, 5, b"new"), "UnknownForm", "Unauthenticated"),
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
