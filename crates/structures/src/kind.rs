//! The kinds that a server serves: how a structure comes to a block.
//!
//! File, queue and kv are registered like any other kind (`Registry::builtin`). A server that is to
//! serve one more is started with a registry that has it: see `docs/structures.md`.

use crate::extent::ExtentBlock;
use crate::file::FileBlock;
use crate::kv::KvBlock;
use crate::queue::{QueueBlock, QueueBounds};
use crate::{Marks, Structure};
use honeycomb_types::{BlockId, InvalidKind, Kind, KindSpec, OperationSpec, Route, Router, Verbs};
use honeycomb_wire::{MayWait, Op};
use std::fmt;
use std::sync::Arc;

/// What a block is opened with. Every kind gets all of it and takes what it has a use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The block.
    pub block: BlockId,
    /// Bytes of the block.
    pub block_size: usize,
    /// First hash of the range that the block owns; 0 unless it is routed by hashes.
    pub start: u64,
    /// Last hash of it, inclusive; 2^64-1 unless it is routed by hashes.
    pub end: u64,
    /// Most items, as whoever created the structure said; 0 for no bound.
    pub max_items: u64,
    /// Most bytes, as whoever created the structure said; 0 for no bound.
    pub max_bytes: u64,
    /// The structure's first block: nothing is ahead of it.
    pub first: bool,
    /// The move by which its contents come from another block; 0 for none. Only of kinds whose contents
    /// can move.
    pub importing: u64,
}

/// A kind of structure: what it is called, what its operations are, and how a block of it begins.
///
/// One for each process, shared by its cores.
pub trait StructureKind: Send + Sync {
    /// Its code, name, router and operations. Always the same: it is asked once for each server, and
    /// told to the controller and to every client.
    fn spec(&self) -> KindSpec;

    /// An empty structure for one block, whose bytes are all zero unless it `overwrites`. It runs
    /// between two requests, so that it must not take long.
    fn open(&self, opening: &Opening) -> Box<dyn Structure>;

    /// Whether it never reads a byte of its block before it has written it. Its blocks may begin with
    /// what others of the same job have just left there, which spares the kernel making them zero.
    fn overwrites(&self) -> bool {
        false
    }
}

/// What a shard has to know of an operation before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What a grant must allow.
    pub verbs: Verbs,
    /// Where it goes.
    pub route: Route,
    /// It is ordered by a lane, and its answer is kept for a retry.
    pub mutates: bool,
    /// Its request may carry a payload.
    pub payload: bool,
    /// It may be kept waiting.
    pub waits: bool,
    /// Large payloads go straight into the block.
    pub streams: bool,
}

impl Attributes {
    /// Of what needs no verbs and does nothing out of the ordinary.
    pub const PLAIN: Attributes = Attributes {
        verbs: Verbs::NONE,
        route: Route::Each,
        mutates: false,
        payload: false,
        waits: false,
        streams: false,
    };
}

/// A kind that was registered.
pub struct Registered {
    spec: KindSpec,
    operations: [Option<Attributes>; 256],
    kind: Box<dyn StructureKind>,
}

impl Registered {
    fn new(kind: Box<dyn StructureKind>) -> Result<Registered, InvalidKind> {
        let spec = kind.spec();
        spec.check()?;
        let mut operations = [None; 256];
        for operation in &spec.operations {
            operations[operation.number as usize] = Some(Attributes {
                verbs: operation.verbs,
                route: operation.route,
                mutates: operation.mutates,
                payload: operation.payload,
                waits: operation.waits,
                streams: operation.streams,
            });
        }
        Ok(Registered { spec, operations, kind })
    }

    /// What it said of itself.
    pub fn spec(&self) -> &KindSpec {
        &self.spec
    }

    /// What its operation of this number is like; `None` when it has none.
    #[inline]
    pub fn operation(&self, number: u8) -> Option<&Attributes> {
        self.operations[number as usize].as_ref()
    }

    /// An empty structure for one block.
    pub fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        self.kind.open(opening)
    }

    /// Whether it never reads a byte of its block before it has written it.
    pub fn overwrites(&self) -> bool {
        self.kind.overwrites()
    }
}

/// The kinds that a server serves, by their codes.
pub struct Registry {
    kinds: Vec<Arc<Registered>>,
}

impl Registry {
    /// File, queue, kv, and the blocks in which a kv keeps what is large.
    pub fn builtin() -> Registry {
        let kinds: [Box<dyn StructureKind>; 4] =
            [Box::new(File), Box::new(Queue), Box::new(Kv), Box::new(Extents)];
        let registered = kinds.map(|kind| {
            Arc::new(
                Registered::new(kind).expect("the protocol's own table of operations is sound"),
            )
        });
        Registry { kinds: registered.into() }
    }

    /// These, and one more. Refused when its description is unsound, its code is not that of a custom
    /// kind, or another one has its code or its name already.
    pub fn with(mut self, kind: impl StructureKind + 'static) -> Result<Registry, InvalidKind> {
        let new = Registered::new(Box::new(kind))?;
        let code = new.spec.kind.code();
        let refuse = |why: String| Err(InvalidKind { code, why });
        if !matches!(new.spec.kind, Kind::Custom(_)) {
            return refuse("codes of custom kinds are those from 0x80 to 0xef".into());
        }
        for other in &self.kinds {
            if other.spec.kind == new.spec.kind {
                return refuse(format!("'{}' has this code already", other.spec.name));
            }
            if other.spec.name == new.spec.name {
                return refuse(format!("another kind is called '{}' already", other.spec.name));
            }
        }
        self.kinds.push(Arc::new(new));
        Ok(self)
    }

    /// The kind of this code, when it is served.
    pub fn get(&self, kind: Kind) -> Option<&Arc<Registered>> {
        self.kinds.iter().find(|registered| registered.spec.kind == kind)
    }

    /// The kinds that the protocol does not define: what a controller has to be told of.
    pub fn custom(&self) -> impl Iterator<Item = &KindSpec> {
        let specs = self.kinds.iter().map(|registered| &registered.spec);
        specs.filter(|spec| matches!(spec.kind, Kind::Custom(_)))
    }
}

impl Default for Registry {
    fn default() -> Registry {
        Registry::builtin()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.kinds.iter().map(|kind| &kind.spec.name)).finish()
    }
}

/// The description of a kind whose operations are in the protocol's table. Their arguments are laid
/// out by the protocol and their clients know where they go, so that the route is only formal.
fn protocol_spec(kind: Kind, router: Router) -> KindSpec {
    let own = Op::ALL.into_iter().filter(|op| op.kind_code() == kind.code());
    let operations = own.map(|op| {
        let info = op.info();
        let waits = op.may_wait() == MayWait::Deadline;
        let route = if waits { Route::Tail } else { Route::Each };
        OperationSpec {
            verbs: info.verbs,
            mutates: info.lane,
            payload: info.payload,
            streams: info.payload,
            waits,
            ..OperationSpec::read(op.number(), op.name(), route)
        }
    });
    KindSpec { kind, name: kind.name().into(), router, operations: operations.collect() }
}

struct File;

impl StructureKind for File {
    fn spec(&self) -> KindSpec {
        protocol_spec(Kind::File, Router::Offset)
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        Box::new(FileBlock::importing(opening.block_size, opening.importing))
    }

    fn overwrites(&self) -> bool {
        true
    }
}

struct Queue;

impl StructureKind for Queue {
    fn spec(&self) -> KindSpec {
        protocol_spec(Kind::Queue, Router::Ends)
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        let bounds = QueueBounds::from_wire(opening.max_items, opening.max_bytes);
        let Opening { block_size, first, importing, .. } = *opening;
        Box::new(QueueBlock::importing(block_size, bounds, first, importing))
    }

    fn overwrites(&self) -> bool {
        true
    }
}

struct Kv;

impl StructureKind for Kv {
    fn spec(&self) -> KindSpec {
        protocol_spec(Kind::Kv, Router::HashRange)
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        let Opening { block, block_size, start, end, importing, .. } = *opening;
        let block = KvBlock::new(block_size, start, end, Marks::default()).named(block);
        Box::new(match importing {
            0 => block,
            id => block.importing(id),
        })
    }

    fn overwrites(&self) -> bool {
        true
    }
}

struct Extents;

impl StructureKind for Extents {
    fn spec(&self) -> KindSpec {
        // They belong to a kv, which alone knows where each is; the router is only formal.
        protocol_spec(Kind::Extents, Router::HashRange)
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        Box::new(ExtentBlock::new(opening.block_size))
    }

    fn overwrites(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Named(u8, &'static str);

    impl StructureKind for Named {
        fn spec(&self) -> KindSpec {
            let kind = Kind::from_code(self.0).expect("a kind");
            let operations = vec![OperationSpec::read(1, "look", Route::Each)];
            KindSpec { kind, name: self.1.into(), router: Router::Index, operations }
        }

        fn open(&self, opening: &Opening) -> Box<dyn Structure> {
            Box::new(FileBlock::new(opening.block_size))
        }
    }

    #[test]
    fn the_built_in_kinds_are_registered_with_the_protocols_table() {
        let kinds = Registry::builtin();
        for op in Op::ALL {
            let Some(kind) = Kind::from_code(op.kind_code()) else { continue };
            let attributes = kinds.get(kind).expect("built in").operation(op.number());
            let attributes = attributes.expect("in the table");
            let info = op.info();
            let told = (attributes.verbs, attributes.mutates, attributes.payload);
            assert_eq!(told, (info.verbs, info.lane, info.payload), "{op:?}");
        }
        assert_eq!(kinds.custom().count(), 0);
    }

    #[test]
    fn a_kind_is_added_once() {
        let kinds = Registry::builtin().with(Named(0x80, "log")).expect("a sound kind");
        assert_eq!(kinds.custom().map(|spec| spec.kind.code()).collect::<Vec<_>>(), [0x80]);
        let log = Kind::from_code(0x80).expect("a custom kind");
        assert!(kinds.get(log).is_some_and(|kind| kind.operation(1).is_some()));
        assert!(kinds.get(log).is_some_and(|kind| kind.operation(2).is_none()));
        let again = kinds.with(Named(0x80, "other")).expect_err("the code is taken");
        assert!(again.why.contains("'log'"), "{again}");
        let named = Registry::builtin().with(Named(0x81, "kv")).expect_err("the name is taken");
        assert!(named.why.contains("'kv'"), "{named}");
        let code = Registry::builtin().with(Named(0x12, "mine")).expect_err("no custom code");
        assert!(code.why.contains("0x80"), "{code}");
        let empty = Registry::builtin().with(Named(0x80, "")).expect_err("no name");
        assert!(empty.why.contains("name"), "{empty}");
    }
}
