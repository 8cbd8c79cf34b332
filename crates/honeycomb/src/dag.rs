//! Prefixes and structures as people and `--json` see them, for the commands that show a job's address DAG.

use crate::size;
use honeycomb_types::{Kind, Router};
use honeycomb_wire::Durability;
use honeycomb_wire::messages::{PrefixInfo, StructureInfo};
use serde_json::{Value, json};

/// The state of a prefix, in one word.
pub fn state(p: &PrefixInfo) -> &'static str {
    match p.state {
        0 => "live",
        1 => "expired",
        2 => "data lost",
        _ => "removed",
    }
}

/// The kind of a structure, in one word.
pub fn kind(s: &StructureInfo) -> &'static str {
    Kind::from_code(s.kind).map_or("unknown", Kind::name)
}

/// `closed` or `sealed` for a structure that accepts no more data; `None` for others.
pub fn ended(s: &StructureInfo) -> Option<&'static str> {
    let router = Kind::from_code(s.kind).and_then(Kind::router);
    let word = if router == Some(Router::Ends) { "closed" } else { "sealed" };
    s.sealed.then_some(word)
}

/// The remaining readers of a prefix and its commit, for people.
pub fn readers(left: u32, committed: bool) -> String {
    let committed = if committed { ", committed" } else { "" };
    match left {
        0 => committed.into(),
        1 => format!(", freed by 1 reader{committed}"),
        left => format!(", freed by {left} readers{committed}"),
    }
}

/// The state of a prefix's flush, in one word; `none` when it has not begun or none is planned.
pub fn flush(p: &PrefixInfo) -> &'static str {
    match p.flush {
        0 => "none",
        1 => "writing",
        2 => "failing",
        3 => "done",
        _ => "lost",
    }
}

/// The flush target of a prefix and the state of its flush, for people.
fn flushes(p: &PrefixInfo) -> String {
    let why = if p.flush_message.is_empty() { "" } else { ": " };
    match p.flush {
        _ if p.flush_to.is_empty() => String::new(),
        0 if p.acknowledge == Durability::Flushed as u8 => {
            let outlives = if p.persist { ", outlives its job" } else { "" };
            format!("{outlives}, acknowledges writes when they are flushed to {}", p.flush_to)
        }
        0 if p.persist => format!(", outlives its job, at {}", p.flush_to),
        0 => format!(", to be flushed to {}", p.flush_to),
        3 => format!(", flushed to {}", p.flush_to),
        _ => format!(", flush to {} {}{why}{}", p.flush_to, flush(p), p.flush_message),
    }
}

/// A prefix's lease, readers and flush, for people.
pub fn lease(p: &PrefixInfo) -> String {
    let lease = match (p.state, p.pinned) {
        (0, true) => "pinned".into(),
        (0, false) => format!(
            "lease {}, {} left",
            size::duration(p.lease_ms as i64),
            size::duration(p.remaining_ms)
        ),
        _ => state(p).into(),
    };
    format!("{lease}{}{}", readers(p.readers_left, p.committed), flushes(p))
}

/// The remaining lease of a prefix, in milliseconds; `None` when it is pinned or has ended.
pub fn remaining_ms(p: &PrefixInfo) -> Option<i64> {
    (!p.pinned && p.state == 0).then_some(p.remaining_ms)
}

/// The JSON form of a structure in all commands.
pub fn structure_json(s: &StructureInfo) -> Value {
    json!({
        "structure": s.structure, "name": s.name, "kind": kind(s), "blocks": s.blocks,
        "bytes_used": s.bytes_used, "sealed": s.sealed,
    })
}
