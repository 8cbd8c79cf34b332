//! The kinds of structures, how operations find their block, and the properties of each operation
//! of a kind.
//!
//! The built-in kinds have codes and operations in the protocol. Custom kinds have the codes from
//! 0x80 to 0xEF; the servers that serve a kind report its name and the needs of its operations as a
//! `KindSpec`, with the capabilities of its blocks. The codes above are reserved.

use crate::{Capabilities, Inconsistency, InvalidName, KindAttributes, Verbs, check_name};
use std::fmt;

/// A kind that the protocol does not define: a code from 0x80 to 0xEF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CustomKind(u8);

impl CustomKind {
    /// The smallest code.
    pub const FIRST: u8 = 0x80;
    /// The largest code.
    pub const LAST: u8 = 0xEF;

    /// The custom kind with this code; `None` if the code is not a custom one.
    pub const fn new(code: u8) -> Option<CustomKind> {
        if code >= CustomKind::FIRST && code <= CustomKind::LAST {
            return Some(CustomKind(code));
        }
        None
    }

    /// Its code.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// The kind of a structure; its code is the high byte of every data opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Append-only bytes, routed by offset.
    File,
    /// Items in the order in which they were put, taken from the front.
    Queue,
    /// Keys and values, routed by the hash of the key.
    Kv,
    /// Not a structure: blocks in which a key-value store keeps values that are too large for its
    /// entries.
    Extents,
    /// A kind that servers bring with them.
    Custom(CustomKind),
}

impl Kind {
    /// The kind with this code, if the code is valid. The servers decide which custom kinds exist.
    pub fn from_code(code: u8) -> Option<Kind> {
        match code {
            0x10 => Some(Kind::File),
            0x11 => Some(Kind::Queue),
            0x12 => Some(Kind::Kv),
            0x14 => Some(Kind::Extents),
            _ => CustomKind::new(code).map(Kind::Custom),
        }
    }

    /// Its code.
    pub fn code(self) -> u8 {
        match self {
            Kind::File => 0x10,
            Kind::Queue => 0x11,
            Kind::Kv => 0x12,
            Kind::Extents => 0x14,
            Kind::Custom(custom) => custom.0,
        }
    }

    /// The name for people: `file`, `queue`, `kv`, `extents`, or `custom` for all others, which
    /// have their own names in their `KindSpec`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Queue => "queue",
            Kind::Kv => "kv",
            Kind::Extents => "extents",
            Kind::Custom(_) => "custom",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Custom(custom) => write!(f, "custom structure of kind {:#04x}", custom.0),
            kind => f.write_str(kind.name()),
        }
    }
}

/// The order of a structure's blocks, and thus how operations find theirs. The code is that of the
/// wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Router {
    /// Positions are byte offsets. Blocks are added at the end and stay.
    Offset = 1,
    /// Only the first and the last block matter. Blocks are added at the end, and removed when they
    /// are empty.
    Ends = 2,
    /// By the hash of a key. Each block owns a range of hashes.
    HashRange = 3,
    /// Positions are numbers that the structure assigns. Blocks are added at the end, and removed
    /// when they are empty.
    Index = 4,
}

impl Router {
    /// The router with this code.
    pub fn from_code(code: u8) -> Option<Router> {
        [Router::Offset, Router::Ends, Router::HashRange, Router::Index]
            .into_iter()
            .find(|router| *router as u8 == code)
    }

    /// Whether a block that fills up gets a successor.
    pub fn grows(self) -> bool {
        self != Router::HashRange
    }

    /// Whether a block that is empty for good is removed from the map.
    pub fn shrinks(self) -> bool {
        matches!(self, Router::Ends | Router::Index)
    }
}

/// The block, or blocks, of an operation, and the beginning of its arguments. The code is that of
/// the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Route {
    /// The first block.
    Head = 1,
    /// The last block.
    Tail = 2,
    /// The block that has a position. The arguments begin with the position, counted from the start
    /// of the receiving block (i64): negative for one before it, which no block has any more.
    Position = 3,
    /// The block that owns the hash of a key. The arguments begin with the key (length u16, bytes).
    Key = 4,
    /// Every block, one after the other, from the first to the last.
    Each = 5,
    /// Every block from the first to the block that contains a position. The arguments begin with
    /// the position, as for `Position`.
    Through = 6,
}

impl Route {
    /// The route with this code.
    pub fn from_code(code: u8) -> Option<Route> {
        [Route::Head, Route::Tail, Route::Position, Route::Key, Route::Each, Route::Through]
            .into_iter()
            .find(|route| *route as u8 == code)
    }

    /// Whether one block replies.
    pub fn is_single(self) -> bool {
        !matches!(self, Route::Each | Route::Through)
    }

    /// Whether a structure with this router has such blocks.
    fn fits(self, router: Router) -> bool {
        match self {
            Route::Each => true,
            Route::Head | Route::Tail => router != Router::HashRange,
            Route::Position | Route::Through => matches!(router, Router::Offset | Router::Index),
            Route::Key => router == Router::HashRange,
        }
    }
}

/// The properties of one operation of a kind: all that a server needs to know before it runs it,
/// and all that a client needs to know to send it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationSpec {
    /// The low byte of its opcode.
    pub number: u8,
    /// Its name for people.
    pub name: String,
    /// The verbs that a grant must allow.
    pub verbs: Verbs,
    /// The route to its block or blocks.
    pub route: Route,
    /// It is a mutation: a lane orders it, and a retry takes effect once. Other operations are
    /// simply repeated if their reply was lost.
    pub mutates: bool,
    /// Its request may carry a payload.
    pub payload: bool,
    /// It may wait for an event.
    pub waits: bool,
    /// The value of the reply is a position: the client adds the start of the block.
    pub positional: bool,
    /// A load calls it with each item of a flush as the payload.
    pub loads: bool,
    /// The values of its replies, over all blocks, are the number of the items of a flush.
    pub counts: bool,
    /// Large payloads are written directly into the block (`Streaming::reserve`); otherwise they
    /// are collected first. Only the server needs this, so it is not sent.
    pub streams: bool,
}

impl OperationSpec {
    /// An operation that is not a mutation and needs a grant to read.
    pub fn read(number: u8, name: &str, route: Route) -> OperationSpec {
        OperationSpec {
            number,
            name: name.into(),
            verbs: Verbs::READ,
            route,
            mutates: false,
            payload: false,
            waits: false,
            positional: false,
            loads: false,
            counts: false,
            streams: false,
        }
    }

    /// A mutation that needs a grant to write.
    pub fn write(number: u8, name: &str, route: Route) -> OperationSpec {
        let read = OperationSpec::read(number, name, route);
        OperationSpec { verbs: Verbs::WRITE, mutates: true, ..read }
    }

    /// The same, with other verbs. (Taking an item out of a queue is a mutation, and counts as
    /// reading.)
    pub fn needing(self, verbs: Verbs) -> OperationSpec {
        OperationSpec { verbs, ..self }
    }

    /// The same, with a payload.
    pub fn with_payload(self) -> OperationSpec {
        OperationSpec { payload: true, ..self }
    }

    /// The same, with a payload that is written directly into the block if it is large.
    pub fn with_streamed_payload(self) -> OperationSpec {
        OperationSpec { payload: true, streams: true, ..self }
    }

    /// The same, but it may wait.
    pub fn that_waits(self) -> OperationSpec {
        OperationSpec { waits: true, ..self }
    }

    /// The same, returning a position.
    pub fn answering_a_position(self) -> OperationSpec {
        OperationSpec { positional: true, ..self }
    }

    /// The same; a load calls it with each item of a flush as the payload.
    pub fn that_loads(self) -> OperationSpec {
        OperationSpec { loads: true, ..self }
    }

    /// The same; the values of its replies, over all blocks, are the number of the items of a flush. A
    /// load compares it with the manifest.
    pub fn that_counts(self) -> OperationSpec {
        OperationSpec { counts: true, ..self }
    }

    /// Whether it needs nothing, changes nothing, and runs at every block.
    fn asks_every_block(&self) -> bool {
        let plain = !self.mutates && !self.payload && !self.waits && !self.positional;
        plain && self.route == Route::Each
    }

    /// Whether it needs nothing but a payload, and adds it to a block that every structure has.
    fn adds_a_payload(&self) -> bool {
        self.mutates && self.payload && matches!(self.route, Route::Head | Route::Tail)
    }
}

/// A kind of structure, as servers announce it: its code, its name and its operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindSpec {
    /// Its code.
    pub kind: Kind,
    /// Its name for people.
    pub name: String,
    /// The order of its blocks.
    pub router: Router,
    /// In order of number.
    pub operations: Vec<OperationSpec>,
}

/// A custom kind as its servers announce it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedKind {
    /// Its description.
    pub spec: KindSpec,
    /// The capabilities of its blocks.
    pub capabilities: Capabilities,
}

impl AnnouncedKind {
    /// Checks its description, and that its operations, its router and its capabilities agree.
    pub fn check(&self) -> Result<(), InvalidKind> {
        let AnnouncedKind { spec, capabilities } = self;
        spec.check()?;
        let content = capabilities.contains(Capabilities::CONTENT);
        let loaded = match (content, spec.loader().is_some()) {
            (true, false) => Err(Inconsistency::ContentWithoutLoader),
            (false, true) => Err(Inconsistency::LoaderWithoutContent),
            _ => Ok(()),
        };
        let checked = spec.kind.check(spec.router, *capabilities).and(loaded);
        checked.map_err(|e| InvalidKind {
            code: spec.kind.code(),
            why: format!("'{}': {e}", spec.name),
        })
    }

    /// The ways in which its structures are used.
    pub const fn attributes(&self) -> KindAttributes {
        self.spec.kind.attributes_with(self.capabilities)
    }
}

impl From<KindSpec> for AnnouncedKind {
    /// A kind that has operations only.
    fn from(spec: KindSpec) -> AnnouncedKind {
        AnnouncedKind { spec, capabilities: Capabilities::NONE }
    }
}

/// The defect of a `KindSpec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidKind {
    /// The kind's code.
    pub code: u8,
    /// The rule that it breaks.
    pub why: String,
}

impl fmt::Display for InvalidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kind {:#04x} cannot be served: {}", self.code, self.why)
    }
}

impl std::error::Error for InvalidKind {}

impl KindSpec {
    /// The operation of this name.
    pub fn operation(&self, name: &str) -> Option<&OperationSpec> {
        self.operations.iter().find(|operation| operation.name == name)
    }

    /// The operation that loads the items of a flush.
    pub fn loader(&self) -> Option<&OperationSpec> {
        self.operations.iter().find(|operation| operation.loads)
    }

    /// The operation that counts the items of a flush.
    pub fn counter(&self) -> Option<&OperationSpec> {
        self.operations.iter().find(|operation| operation.counts)
    }

    /// The operation of this number.
    pub fn numbered(&self, number: u8) -> Option<&OperationSpec> {
        let found = self.operations.binary_search_by_key(&number, |operation| operation.number);
        found.ok().map(|at| &self.operations[at])
    }

    /// Checks that names are valid, that operations have distinct numbers and names, and that each
    /// has a route to blocks of this router.
    pub fn check(&self) -> Result<(), InvalidKind> {
        let refuse = |why: String| Err(InvalidKind { code: self.kind.code(), why });
        let named = |name: &str| check_name(name).map_err(|e: InvalidName| e.to_string());
        if let Err(why) = named(&self.name) {
            return refuse(format!("its name: {why}"));
        }
        let built_in = [Kind::File, Kind::Queue, Kind::Kv, Kind::Extents];
        let reserved = built_in.iter().any(|kind| kind.name() == self.name);
        if reserved && matches!(self.kind, Kind::Custom(_)) {
            return refuse(format!("its name: '{}' is the name of a built-in kind", self.name));
        }
        for (at, operation) in self.operations.iter().enumerate() {
            let OperationSpec { number, name, verbs, route, .. } = operation;
            if let Err(why) = named(name) {
                return refuse(format!("the name of operation {number}: {why}"));
            }
            if at > 0 && self.operations[at - 1].number >= *number {
                return refuse(format!("operation {number} is out of order or appears twice"));
            }
            if self.operations[..at].iter().any(|other| other.name == *name) {
                return refuse(format!("two operations have the name '{name}'"));
            }
            if *verbs == Verbs::NONE || !Verbs::ALL.contains(*verbs) {
                return refuse(format!("'{name}' requires no verbs, or verbs that no grant has"));
            }
            if !route.fits(self.router) {
                let router = self.router;
                return refuse(format!(
                    "'{name}' has route {route:?}, which router {router:?} does not support"
                ));
            }
            if operation.waits && !route.is_single() {
                return refuse(format!(
                    "'{name}' waits at several blocks; an operation can wait at only one"
                ));
            }
            if operation.positional && !matches!(self.router, Router::Offset | Router::Index) {
                return refuse(format!("'{name}' returns a position, but its router has none"));
            }
            if operation.loads && !operation.adds_a_payload() {
                return refuse(format!(
                    "'{name}' loads the items of a flush; it must be a mutation with a payload at \
                     the first or the last block"
                ));
            }
            if operation.loads && self.operations[..at].iter().any(|other| other.loads) {
                return refuse(format!("'{name}' and an earlier operation load items of a flush"));
            }
            if let Some(why) = self.miscounts(at) {
                return refuse(format!("'{name}' counts the items of a flush; {why}"));
            }
        }
        Ok(())
    }

    /// Why the operation at this index cannot count the items of a flush, if it is to do so.
    fn miscounts(&self, at: usize) -> Option<&'static str> {
        let operation = &self.operations[at];
        if !operation.counts {
            return None;
        }
        if !operation.asks_every_block() {
            return Some("it must read every block, without a payload, a wait and a position");
        }
        if self.operations[..at].iter().any(|other| other.counts) {
            return Some("an earlier operation does that, too");
        }
        self.loader().is_none().then_some("no operation loads them")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(router: Router, operations: Vec<OperationSpec>) -> KindSpec {
        let kind = Kind::from_code(0x80).expect("a custom kind");
        KindSpec { kind, name: "log".into(), router, operations }
    }

    #[test]
    fn codes_and_kinds_are_the_same_thing() {
        let known = (0..=u8::MAX).filter_map(Kind::from_code).collect::<Vec<_>>();
        assert_eq!(known.len(), 4 + 112);
        assert!(known.iter().all(|kind| Kind::from_code(kind.code()) == Some(*kind)));
        assert_eq!(Kind::from_code(0x7F), None);
        assert_eq!(Kind::from_code(0xF0), None);
    }

    #[test]
    fn routers_and_routes_have_codes() {
        for code in 1..=6 {
            assert_eq!(Route::from_code(code).map(|route| route as u8), Some(code));
        }
        for code in 1..=4 {
            assert_eq!(Router::from_code(code).map(|router| router as u8), Some(code));
        }
        assert_eq!((Route::from_code(0), Route::from_code(7)), (None, None));
        assert_eq!((Router::from_code(0), Router::from_code(5)), (None, None));
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_the_reason() {
        let read = |number, name, route| OperationSpec::read(number, name, route);
        let refused = |spec: KindSpec| spec.check().expect_err("unsound").why;
        for name in ["file", "queue", "kv", "extents"] {
            let named = KindSpec { name: name.into(), ..spec(Router::Ends, Vec::new()) };
            assert!(refused(named).contains("built-in"), "{name}");
        }
        let twice = vec![read(1, "a", Route::Tail), read(1, "b", Route::Tail)];
        assert!(refused(spec(Router::Index, twice)).contains("appears twice"));
        let alike = vec![read(1, "a", Route::Tail), read(2, "a", Route::Tail)];
        assert!(refused(spec(Router::Index, alike)).contains("have the name 'a'"));
        let key = vec![read(1, "a", Route::Key)];
        assert!(refused(spec(Router::Ends, key)).contains("has route Key"));
        let none = vec![read(1, "a", Route::Tail).needing(Verbs::NONE)];
        assert!(refused(spec(Router::Ends, none)).contains("verbs"));
        let waits = vec![read(1, "a", Route::Each).that_waits()];
        assert!(refused(spec(Router::Ends, waits)).contains("several blocks"));
        let position = vec![read(1, "a", Route::Head).answering_a_position()];
        assert!(refused(spec(Router::Ends, position)).contains("its router has none"));
        let loads = vec![read(1, "a", Route::Head).with_payload().that_loads()];
        assert!(refused(spec(Router::Ends, loads)).contains("must be a mutation"));
        let write = |number, name| OperationSpec::write(number, name, Route::Tail).with_payload();
        let twice = vec![write(1, "a").that_loads(), write(2, "b").that_loads()];
        assert!(refused(spec(Router::Ends, twice)).contains("earlier operation"));
        let load = || write(1, "load").that_loads();
        let count = |number, name| read(number, name, Route::Each).that_counts();
        let changes = vec![load(), OperationSpec::write(2, "b", Route::Each).that_counts()];
        assert!(refused(spec(Router::Ends, changes)).contains("read every block"));
        let one = vec![load(), read(2, "b", Route::Head).that_counts()];
        assert!(refused(spec(Router::Ends, one)).contains("read every block"));
        let twice = vec![load(), count(2, "items"), count(3, "more")];
        assert!(refused(spec(Router::Ends, twice)).contains("an earlier operation"));
        assert!(
            refused(spec(Router::Ends, vec![count(2, "items")]))
                .contains("no operation loads them")
        );
        assert_eq!(spec(Router::Ends, vec![load(), count(2, "items")]).check(), Ok(()));
        let unnamed = vec![read(1, "", Route::Head)];
        assert!(refused(spec(Router::Ends, unnamed)).contains("operation 1"));
        assert_eq!(spec(Router::Ends, vec![read(1, "a", Route::Head)]).check(), Ok(()));
    }
}
