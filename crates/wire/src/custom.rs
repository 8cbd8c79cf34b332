//! Operations of custom kinds: the start of their arguments, and the descriptions of kinds by
//! servers.

use crate::fields::{Malformed, Reader};
use crate::messages::{KindInfo, OperationInfo};
use honeycomb_types::limits::KEY_MAX;
use honeycomb_types::{AnnouncedKind, Capabilities, Kind, KindSpec, OperationSpec, Route, Verbs};

/// Bits of `OperationInfo::flags`.
mod flags {
    pub const MUTATES: u16 = 1;
    pub const PAYLOAD: u16 = 2;
    pub const WAITS: u16 = 4;
    pub const POSITIONAL: u16 = 8;
    pub const LOADS: u16 = 16;
    pub const COUNTS: u16 = 32;
    pub const KNOWN: u16 = MUTATES | PAYLOAD | WAITS | POSITIONAL | LOADS | COUNTS;
}

/// The routing field at the start of an operation's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed<'a> {
    /// No routing field.
    Plainly,
    /// A position, counted from the start of the block.
    By(i64),
    /// A key.
    Key(&'a [u8]),
}

/// Splits the routing field of an operation from the rest of its arguments.
pub fn split_args(route: Route, args: &[u8]) -> Result<(Routed<'_>, &[u8]), Malformed> {
    let mut from = Reader::new(args);
    let routed = match route {
        Route::Head | Route::Tail | Route::Each => Routed::Plainly,
        Route::Position | Route::Through => {
            let bytes = from.take(8)?.first_chunk().expect("eight bytes");
            Routed::By(i64::from_le_bytes(*bytes))
        }
        Route::Key => {
            let bytes = from.take(2)?.first_chunk().expect("two bytes");
            let length = u16::from_le_bytes(*bytes) as usize;
            if length == 0 || length > KEY_MAX {
                return Err(from.malformed("a key has from 1 to 4,096 bytes"));
            }
            Routed::Key(from.take(length)?)
        }
    };
    Ok((routed, from.rest()))
}

/// Appends the routing field of an operation.
pub fn put_routed(routed: Routed<'_>, out: &mut Vec<u8>) {
    match routed {
        Routed::Plainly => {}
        Routed::By(position) => out.extend_from_slice(&position.to_le_bytes()),
        Routed::Key(key) => {
            out.extend_from_slice(&(key.len() as u16).to_le_bytes());
            out.extend_from_slice(key);
        }
    }
}

/// The description of a kind as a message.
pub fn kind_info(kind: &AnnouncedKind, servers: u32) -> KindInfo {
    let AnnouncedKind { spec, capabilities } = kind;
    let operations = spec.operations.iter().map(|operation| {
        let bit = |set: bool, bit: u16| if set { bit } else { 0 };
        OperationInfo {
            number: operation.number,
            name: operation.name.clone(),
            verbs: operation.verbs.0,
            route: operation.route as u8,
            flags: bit(operation.mutates, flags::MUTATES)
                | bit(operation.payload, flags::PAYLOAD)
                | bit(operation.waits, flags::WAITS)
                | bit(operation.positional, flags::POSITIONAL)
                | bit(operation.loads, flags::LOADS)
                | bit(operation.counts, flags::COUNTS),
        }
    });
    KindInfo {
        code: spec.kind.code(),
        name: spec.name.clone(),
        router: capabilities.beside(spec.router),
        servers,
        operations: operations.collect(),
    }
}

/// Reads the description of a custom kind. The error names the wrong part.
pub fn announced_kind(info: &KindInfo) -> Result<AnnouncedKind, String> {
    let Some(kind @ Kind::Custom(_)) = Kind::from_code(info.code) else {
        return Err(format!("{:#04x} is not the code of a custom kind (0x80 to 0xef)", info.code));
    };
    let Some((router, capabilities)) = Capabilities::split(info.router) else {
        return Err(format!("kind {:#04x} has an unknown router, {}", info.code, info.router));
    };
    let operations = info.operations.iter().map(|info| {
        let Some(route) = Route::from_code(info.route) else {
            return Err(format!("'{}' has an unknown route, {}", info.name, info.route));
        };
        if info.flags & !flags::KNOWN != 0 {
            return Err(format!("'{}' has unknown flags, {:#x}", info.name, info.flags));
        }
        let is = |bit: u16| info.flags & bit != 0;
        Ok(OperationSpec {
            number: info.number,
            name: info.name.clone(),
            verbs: Verbs(info.verbs),
            route,
            mutates: is(flags::MUTATES),
            payload: is(flags::PAYLOAD),
            waits: is(flags::WAITS),
            positional: is(flags::POSITIONAL),
            loads: is(flags::LOADS),
            counts: is(flags::COUNTS),
            streams: false,
        })
    });
    let operations = operations.collect::<Result<Vec<_>, String>>()?;
    let spec = KindSpec { kind, name: info.name.clone(), router, operations };
    let kind = AnnouncedKind { spec, capabilities };
    kind.check().map_err(|e| e.to_string())?;
    Ok(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use honeycomb_types::Router;

    #[test]
    fn what_routes_an_operation_is_taken_off_again() {
        let cases = [
            (Route::Tail, Routed::Plainly),
            (Route::Position, Routed::By(-7)),
            (Route::Through, Routed::By(i64::MAX)),
            (Route::Key, Routed::Key(b"k")),
        ];
        for (route, routed) in cases {
            let mut args = Vec::new();
            put_routed(routed, &mut args);
            args.extend_from_slice(b"rest");
            assert_eq!(split_args(route, &args), Ok((routed, &b"rest"[..])));
        }
    }

    #[test]
    fn what_is_cut_or_empty_is_refused() {
        assert!(split_args(Route::Position, &[0; 7]).is_err());
        assert!(split_args(Route::Key, &[0, 0]).is_err());
        assert!(split_args(Route::Key, &[2, 0, b'k']).is_err());
        assert!(split_args(Route::Key, &[0xFF, 0xFF]).is_err());
    }

    #[test]
    fn a_kind_comes_back_as_it_was_told() {
        let spec = KindSpec {
            kind: Kind::from_code(0x81).expect("a custom kind"),
            name: "log".into(),
            router: Router::Index,
            operations: vec![
                OperationSpec::write(1, "append", Route::Tail).with_payload().that_loads(),
                OperationSpec::read(9, "follow", Route::Position).that_waits(),
                OperationSpec::write(200, "trim", Route::Through).answering_a_position(),
                OperationSpec::read(201, "count", Route::Each).that_counts(),
            ],
        };
        let capabilities = Capabilities::CONTENT.with(Capabilities::WHOLE, true);
        let kind = AnnouncedKind { spec, capabilities };
        assert_eq!(announced_kind(&kind_info(&kind, 3)), Ok(kind.clone()));
        let info = kind_info(&kind, 0);
        let mut wrong = KindInfo { code: 0x10, ..info.clone() };
        assert!(announced_kind(&wrong).is_err());
        wrong = KindInfo { router: 5, ..info.clone() };
        assert!(announced_kind(&wrong).is_err());
        let both = capabilities.with(Capabilities::APPENDED, true);
        wrong = KindInfo { router: both.beside(Router::Index), ..info.clone() };
        let refused = announced_kind(&wrong).expect_err("its capabilities contradict each other");
        assert!(refused.contains("0x81") && refused.contains("'log'"), "{refused}");
        wrong = info.clone();
        wrong.operations[0].flags = 32;
        assert!(announced_kind(&wrong).is_err());
        wrong = info.clone();
        wrong.operations[0].flags |= 64;
        assert!(announced_kind(&wrong).is_err_and(|e| e.contains("unknown flags")));
        wrong = info.clone();
        wrong.operations[0].route = 7;
        assert!(announced_kind(&wrong).is_err());
        wrong = info;
        wrong.operations[0].verbs = 4;
        assert!(announced_kind(&wrong).is_err());
    }
}
