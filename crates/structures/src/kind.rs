//! The kinds of structures that a server serves.
//!
//! File, queue and kv are registered like any other kind (`Registry::builtin`). To serve another kind, start
//! the server with a registry that contains it: see `docs/structures.md`.

use crate::extent::ExtentBlock;
use crate::file::FileBlock;
use crate::kv::KvBlock;
use crate::queue::{QueueBlock, QueueBounds};
use crate::snapshot::ItemLimits;
use crate::{Arrival, CapacityRequest, Marks, Movable, Rest, Snapshot, Structure};
use honeycomb_types::limits::{BLOCK_SIZE_MIN, FRAME_MAX, flushed_items_max, gathered_max};
use honeycomb_types::{
    AnnouncedKind, BlockId, Capabilities, InvalidKind, Kind, KindSpec, OperationSpec, Route,
    Router, Verbs,
};
use honeycomb_wire::{MayWait, Op};
use std::fmt;
use std::sync::Arc;

/// The parameters of a new block. Every kind gets all of them and uses those that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The block.
    pub block: BlockId,
    /// Bytes of the block.
    pub block_size: usize,
    /// Bytes that it may use at first: all of them, unless its blocks implement `Enlarge`.
    pub capacity: usize,
    /// First hash of the range that the block owns; 0 unless it is routed by hashes.
    pub start: u64,
    /// Last hash of the range, inclusive; 2^64-1 unless it is routed by hashes.
    pub end: u64,
    /// Most items, as requested at creation; 0 for no bound.
    pub max_items: u64,
    /// Most bytes, as requested at creation; 0 for no bound.
    pub max_bytes: u64,
    /// The structure's first block, with none before it.
    pub first: bool,
    /// The marks of its prefix: when the block grows or splits, and when it merges.
    pub marks: Marks,
    /// The move that brings its contents from another block; 0 for none. Only for kinds whose contents can
    /// move.
    pub importing: u64,
}

impl Opening {
    /// The only block of an unbounded structure, of so many bytes.
    pub fn alone(block_size: usize) -> Opening {
        Opening {
            block: BlockId(0),
            block_size,
            capacity: block_size,
            start: 0,
            end: u64::MAX,
            max_items: 0,
            max_bytes: 0,
            first: true,
            marks: Marks::default(),
            importing: 0,
        }
    }

    /// The requests of the block for a larger capacity.
    pub fn capacity_request(&self) -> CapacityRequest {
        CapacityRequest::new(self.capacity, self.block_size)
    }
}

/// A kind of structure: its name, its operations, and the initial state of a block.
///
/// One per process, shared by its cores.
pub trait StructureKind: Send + Sync {
    /// Its code, name, router and operations. Always the same: each server calls this once, and sends the
    /// result to the controller and to every client.
    fn spec(&self) -> KindSpec;

    /// An empty structure for one block. The block's bytes are all zero unless the kind `overwrites`. This
    /// runs between two requests, so it must not take long. A registry also opens structures of the smallest
    /// block size, without memory, to inspect their capabilities: an empty one, and one that imports.
    fn open(&self, opening: &Opening) -> Box<dyn Structure>;

    /// Whether the kind never reads a byte of a block before it has written it. Its blocks may begin with
    /// data that another structure of the same job has just left there, which spares the kernel zeroing them.
    fn overwrites(&self) -> bool {
        false
    }
}

/// The attributes of an operation that a shard needs before it runs the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The rights that a grant must include.
    pub verbs: Verbs,
    /// How it is routed.
    pub route: Route,
    /// A lane orders it, and its answer is kept for a retry.
    pub mutates: bool,
    /// Its request may carry a payload.
    pub payload: bool,
    /// It may wait.
    pub waits: bool,
    /// Large payloads go straight into the block.
    pub streams: bool,
}

impl Attributes {
    /// The attributes of an operation that needs no rights and has no special property.
    pub const PLAIN: Attributes = Attributes {
        verbs: Verbs::NONE,
        route: Route::Each,
        mutates: false,
        payload: false,
        waits: false,
        streams: false,
    };
}

/// Refuses a kind whose router, operations or moves need a trait that its blocks do not implement, or whose
/// capabilities contradict each other. `block` is an empty block.
fn check_capabilities(spec: &KindSpec, block: &mut dyn Structure) -> Result<(), InvalidKind> {
    let lacks = |needs: String, name: &str| {
        let why = format!(
            "{needs}, and blocks of '{}' do not return `{name}`: implement the trait, and return \
             it from `Structure`",
            spec.name
        );
        Err(InvalidKind { code: spec.kind.code(), why })
    };
    if block.content().is_some() != block.content_mut().is_some() {
        return lacks("`content` and `content_mut` differ".into(), "Content");
    }
    if spec.loader().is_some() {
        let Some(content) = block.content() else {
            return lacks("an operation loads the items of a flush".into(), "Content");
        };
        if content.snapshot((0, u64::MAX)).is_plain() {
            let why = "returns plain bytes, and an operation loads the items of a flush: return \
                       `Snapshot::items`";
            return Err(contradiction(spec, "snapshot", why));
        }
    }
    if spec.router.grows() && block.growth().is_none() {
        return lacks(format!("the router {:?} adds blocks at the end", spec.router), "Growth");
    }
    let streams = block.streaming().is_some();
    for operation in &spec.operations {
        if operation.streams && !streams {
            return lacks(format!("'{}' streams its payload", operation.name), "Streaming");
        }
        if operation.waits && block.waits().is_none() {
            return lacks(format!("'{}' may wait", operation.name), "Waits");
        }
    }
    let in_pieces = |movable: &dyn Movable| {
        Op::ALL.into_iter().any(|op| movable.takes(op) == Some(Arrival::InPieces))
    };
    if !streams && block.movable().is_some_and(|movable| in_pieces(movable)) {
        return lacks("parts of a move arrive in pieces".into(), "Streaming");
    }
    check_router(spec, block)
}

/// Refuses a kind whose blocks have a capability that its router does not serve: the controller would ignore
/// it.
fn check_router(spec: &KindSpec, block: &mut dyn Structure) -> Result<(), InvalidKind> {
    let (router, grows) = (spec.router, spec.router.grows());
    let custom = matches!(spec.kind, Kind::Custom(_));
    if !grows && block.growth().is_some() {
        let why = format!("is implemented, and the router {router:?} adds no blocks at the end");
        return Err(contradiction(spec, "Growth", &why));
    }
    if let Some(whole) = block.movable().map(|movable| movable.moves_whole())
        && whole != grows
    {
        let (moves, needs) = match whole {
            true => ("whole blocks", "ranges of hashes: return `None` from `movable`"),
            false => ("ranges of hashes", "whole blocks: implement `Migrate`"),
        };
        let why = format!("moves {moves}, and blocks of the router {router:?} move as {needs}");
        return Err(contradiction(spec, "Movable", &why));
    }
    match block.content().map(|content| content.rests()) {
        Some(rest @ (Rest::Open(_) | Rest::Final(_))) if !grows => {
            let why = format!(
                "returns `{rest:?}`, and any block of the router {router:?} may change: return \
                 `Rest::Whole`, or `Rest::Busy` to stay in memory"
            );
            Err(contradiction(spec, "rests", &why))
        }
        Some(Rest::Pieces(_)) if custom => {
            let why = "returns `Rest::Pieces`, which is for blocks of a built-in kind: return \
                       `Rest::Whole`, or `Rest::Busy` to stay in memory";
            Err(contradiction(spec, "rests", why))
        }
        _ => Ok(()),
    }
}

/// Refuses a kind whose blocks move, and do not take part in the move for which they are opened.
fn check_importing(spec: &KindSpec, kind: &dyn StructureKind) -> Result<(), InvalidKind> {
    let size = BLOCK_SIZE_MIN as usize;
    let mut target = kind.open(&Opening { importing: 1, first: false, ..Opening::alone(size) });
    let of = |movable: &mut dyn Movable| (movable.imports(1), movable.imports(2));
    match target.movable().map(of) {
        Some((Some(_), None)) => Ok(()),
        _ => {
            let why = "does not take part in the move `Opening::importing`: pass the number on, \
                       for example to `Migrating::new`";
            Err(contradiction(spec, "Movable", why))
        }
    }
}

fn contradiction(spec: &KindSpec, name: &str, why: &str) -> InvalidKind {
    let why = format!("`{name}` of blocks of '{}' {why}", spec.name);
    InvalidKind { code: spec.kind.code(), why }
}

/// The capabilities that the controller uses, by the traits that the blocks of a kind implement.
fn capabilities(spec: &KindSpec, block: &mut dyn Structure) -> Capabilities {
    let grows = spec.router.grows();
    let moves = block.movable().is_some();
    let changes = block.changes().is_some();
    let content = block.content();
    let rests = content.map_or(Rest::Busy, |content| content.rests());
    let reads = content.is_some_and(|content| content.lower_tier_reads().is_some());
    let appended = grows && matches!(rests, Rest::Open(_) | Rest::Final(_));
    Capabilities::NONE
        .with(Capabilities::CONTENT, content.is_some() && spec.loader().is_some())
        .with(Capabilities::MOVES, moves)
        .with(Capabilities::APPENDED, appended)
        .with(Capabilities::WHOLE, reads && matches!(rests, Rest::Whole(_)))
        .with(Capabilities::CHANGES, changes)
}

/// A registered kind.
pub struct Registered {
    spec: KindSpec,
    capabilities: Capabilities,
    operations: [Option<Attributes>; 256],
    kind: Box<dyn StructureKind>,
}

impl Registered {
    fn new(kind: Box<dyn StructureKind>) -> Result<Registered, InvalidKind> {
        let spec = kind.spec();
        spec.check()?;
        let mut sample = kind.open(&Opening::alone(BLOCK_SIZE_MIN as usize));
        check_capabilities(&spec, &mut *sample)?;
        if sample.movable().is_some() {
            check_importing(&spec, &*kind)?;
        }
        let capabilities = capabilities(&spec, &mut *sample);
        let announced = AnnouncedKind { spec, capabilities };
        if let Kind::Custom(_) = announced.spec.kind {
            announced.check()?;
        }
        let spec = announced.spec;
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
        Ok(Registered { spec, capabilities, operations, kind })
    }

    /// The kind's own description.
    pub fn spec(&self) -> &KindSpec {
        &self.spec
    }

    /// The attributes of the operation with this number; `None` if there is none.
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

    /// The snapshot of a block of this size. The items of a custom kind that is flushed are checked when they
    /// are passed on: each begins with its length, can be loaded by one request, and all are bounded.
    pub fn flushed(&self, snapshot: Snapshot, block_size: usize) -> Snapshot {
        // Built-in kinds load by operations of the protocol. A custom kind without a loader is not flushed.
        let Some(loader) = self.spec.loader() else { return snapshot };
        let size = block_size as u64;
        let item = if loader.streams { size.min(FRAME_MAX as u64) } else { gathered_max(size) };
        let limits = ItemLimits { block_size, item, all: flushed_items_max(size) };
        snapshot.checked(limits)
    }
}

/// The kinds that a server serves, by their codes.
pub struct Registry {
    kinds: Vec<Arc<Registered>>,
}

impl Registry {
    /// File, queue, kv, and the blocks that hold a kv's large values.
    pub fn builtin() -> Registry {
        let kinds: [Box<dyn StructureKind>; 4] =
            [Box::new(FileKind), Box::new(QueueKind), Box::new(KvKind), Box::new(ExtentsKind)];
        let registered = kinds.map(|kind| {
            Arc::new(Registered::new(kind).expect("the built-in kinds are described correctly"))
        });
        Registry { kinds: registered.into() }
    }

    /// This registry and one more kind. Refused if the description is invalid, the code is not that of a
    /// custom kind, another kind has the code or the name, or its blocks lack a trait that its router, an
    /// operation or a move needs.
    pub fn with(mut self, kind: impl StructureKind + 'static) -> Result<Registry, InvalidKind> {
        let new = Registered::new(Box::new(kind))?;
        let code = new.spec.kind.code();
        let refuse = |why: String| Err(InvalidKind { code, why });
        if !matches!(new.spec.kind, Kind::Custom(_)) {
            return refuse("codes of custom kinds are 0x80 to 0xef".into());
        }
        for other in &self.kinds {
            if other.spec.kind == new.spec.kind {
                return refuse(format!("'{}' already has this code", other.spec.name));
            }
            if other.spec.name == new.spec.name {
                return refuse(format!("another kind already has the name '{}'", other.spec.name));
            }
        }
        self.kinds.push(Arc::new(new));
        Ok(self)
    }

    /// The kind with this code, if it is served.
    pub fn get(&self, kind: Kind) -> Option<&Arc<Registered>> {
        self.kinds.iter().find(|registered| registered.spec.kind == kind)
    }

    /// The announcements of the custom kinds to the controller.
    pub fn announced(&self) -> impl Iterator<Item = AnnouncedKind> {
        let custom = self.kinds.iter().filter(|kind| matches!(kind.spec.kind, Kind::Custom(_)));
        custom.map(|kind| {
            let (spec, capabilities) = (kind.spec.clone(), kind.capabilities);
            AnnouncedKind { spec, capabilities }
        })
    }

    /// The kinds that the protocol does not define.
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

/// The description of a kind whose operations are in the protocol's table. The protocol defines the layout of
/// their arguments, and clients know how to route them, so the route here is only formal.
fn protocol_spec(kind: Kind) -> KindSpec {
    // Blocks of extents belong to a kv, which alone knows where each is: their router is only formal, too.
    let router = kind.router().unwrap_or(Router::HashRange);
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

struct FileKind;

impl StructureKind for FileKind {
    fn spec(&self) -> KindSpec {
        protocol_spec(Kind::File)
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        let Opening { importing, marks, .. } = *opening;
        Box::new(FileBlock::opened(opening.capacity_request(), marks, importing))
    }

    fn overwrites(&self) -> bool {
        true
    }
}

struct QueueKind;

impl StructureKind for QueueKind {
    fn spec(&self) -> KindSpec {
        protocol_spec(Kind::Queue)
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        let bounds = QueueBounds::from_wire(opening.max_items, opening.max_bytes);
        let Opening { first, importing, marks, .. } = *opening;
        let capacity = opening.capacity_request();
        Box::new(QueueBlock::opened(capacity, bounds, first, marks, importing))
    }

    fn overwrites(&self) -> bool {
        true
    }
}

struct KvKind;

impl StructureKind for KvKind {
    fn spec(&self) -> KindSpec {
        protocol_spec(Kind::Kv)
    }

    fn open(&self, opening: &Opening) -> Box<dyn Structure> {
        let Opening { block, start, end, importing, marks, .. } = *opening;
        let block = KvBlock::opened(opening.capacity_request(), (start, end), marks).named(block);
        Box::new(match importing {
            0 => block,
            id => block.importing(id),
        })
    }

    fn overwrites(&self) -> bool {
        true
    }
}

struct ExtentsKind;

impl StructureKind for ExtentsKind {
    fn spec(&self) -> KindSpec {
        protocol_spec(Kind::Extents)
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
    use crate::{Answer, Content, Growth, Operation, Ops, Outcome, Streaming};
    use honeycomb_block::Backing;
    use honeycomb_types::{Demotion, Notices};

    struct Named(u8, &'static str);

    impl StructureKind for Named {
        fn spec(&self) -> KindSpec {
            let kind = Kind::from_code(self.0).expect("a kind");
            let operations = vec![OperationSpec::read(1, "look", Route::Each)];
            KindSpec { kind, name: self.1.into(), router: Router::Index, operations }
        }

        fn open(&self, opening: &Opening) -> Box<dyn Structure> {
            file(opening)
        }
    }

    fn file(opening: &Opening) -> Box<dyn Structure> {
        let capacity = opening.capacity_request();
        Box::new(FileBlock::opened(capacity, opening.marks, opening.importing))
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
    fn built_in_kinds_have_the_capabilities_of_their_descriptions() {
        let names = |kind: &dyn StructureKind| {
            let mut block = kind.open(&Opening::alone(BLOCK_SIZE_MIN as usize));
            let changing = block.content_mut().is_some();
            assert_eq!(block.content().is_some(), changing, "both accessors agree");
            let all = [
                ("streaming", block.streaming().is_some()),
                ("growth", block.growth().is_some()),
                ("waits", block.waits().is_some()),
                ("changes", block.changes().is_some()),
                ("content", block.content().is_some()),
                (
                    "lower tier reads",
                    block.content().is_some_and(|c| c.lower_tier_reads().is_some()),
                ),
                ("movable", block.movable().is_some()),
                ("journaled", block.journaled().is_some()),
                ("adopts", block.adopts().is_some()),
            ];
            let has = all.iter().filter(|(_, has)| *has).map(|(name, _)| *name);
            has.collect::<Vec<_>>().join(", ")
        };
        let common = "waits, changes, content";
        let (grows, reads) = (format!("streaming, growth, {common}"), "lower tier reads, movable");
        assert_eq!(names(&FileKind), format!("{grows}, movable, journaled"));
        assert_eq!(names(&QueueKind), format!("{grows}, {reads}, adopts"));
        assert_eq!(names(&KvKind), format!("streaming, {common}, {reads}, adopts"));
        assert_eq!(names(&ExtentsKind), "streaming, waits, content, adopts");
    }

    #[test]
    fn attributes_of_built_in_kinds_are_those_of_their_blocks() {
        for registered in &Registry::builtin().kinds {
            let (kind, mut block) =
                (registered.spec.kind, registered.open(&Opening::alone(BLOCK_SIZE_MIN as usize)));
            let attributes = kind.attributes();
            assert_eq!(attributes.relocates, block.movable().is_some(), "{kind}");
            assert_eq!(attributes.journals, block.journaled().is_some(), "{kind}");
            assert_eq!(attributes.extents.is_some(), block.adopts().is_some(), "{kind}");
            let reports = attributes.notices != Notices::Never;
            assert_eq!(reports, block.changes().is_some(), "{kind}");
            // Extents are flushed as a part of their kv.
            assert!(!attributes.flushes || block.content().is_some(), "{kind}");
            let demotion = match block.content().map(|content| content.rests()) {
                Some(Rest::Open(_) | Rest::Final(_)) => Demotion::Appended,
                Some(Rest::Whole(_)) => Demotion::Whole,
                Some(Rest::Pieces(_)) => Demotion::Pieces,
                Some(Rest::Busy) | None => Demotion::Never,
            };
            assert_eq!(attributes.demotion, demotion, "{kind}");
        }
    }

    #[test]
    fn custom_kind_is_announced_with_the_capabilities_of_its_blocks() {
        let announced = |kinds: Registry| kinds.announced().next().expect("one custom kind");
        let with = |movable| Partial { movable, content_mut: true };
        let kind = announced(Registry::builtin().with(with(false)).expect("a sound kind"));
        let whole = Capabilities::NONE.with(Capabilities::WHOLE, true);
        assert_eq!((kind.spec.name.as_str(), kind.capabilities), ("partial", whole));
        let log = announced(Registry::builtin().with(Named(0x80, "log")).expect("a sound kind"));
        let file = whole.with(Capabilities::MOVES, true);
        assert!(!log.capabilities.contains(file) && log.attributes().relocates);
        // Nothing loads its content.
        assert!(!log.attributes().flushes);
        assert_eq!(log.attributes().demotion, Demotion::Appended);
        assert_eq!(log.attributes().notices, Notices::Chosen);
    }

    #[test]
    fn kind_that_loads_a_flush_without_content_is_refused() {
        let load = OperationSpec::write(1, "load", Route::Tail).with_payload().that_loads();
        let refused = Registry::builtin().with(Counter(Router::Ends, load));
        let refused = refused.expect_err("the capability is missing");
        assert!(refused.why.contains("`Content`"), "{refused}");
        // Blocks of a file have content without items.
        let refused = Registry::builtin().with(Loading).map(drop).expect_err("it has no items");
        assert!(refused.why.contains("`Snapshot::items`"), "{refused}");
    }

    /// Blocks of a file, with an operation that loads items.
    struct Loading;

    impl StructureKind for Loading {
        fn spec(&self) -> KindSpec {
            let load = OperationSpec::write(1, "load", Route::Tail).with_payload().that_loads();
            KindSpec { operations: vec![load], ..Named(0x80, "loading").spec() }
        }

        fn open(&self, opening: &Opening) -> Box<dyn Structure> {
            Named(0x80, "loading").open(opening)
        }
    }

    struct Counter(Router, OperationSpec);

    struct CounterBlock;

    impl StructureKind for Counter {
        fn spec(&self) -> KindSpec {
            let kind = Kind::from_code(0x80).expect("a kind");
            let operations = vec![self.1.clone()];
            KindSpec { kind, name: "counter".into(), router: self.0, operations }
        }

        fn open(&self, _opening: &Opening) -> Box<dyn Structure> {
            Box::new(CounterBlock)
        }
    }

    impl Structure for CounterBlock {}

    impl Ops for CounterBlock {
        fn apply(&mut self, _: &mut Backing, _: &Operation<'_>, _: &[u8]) -> Outcome {
            Outcome::Done(Answer::ok(1))
        }

        fn bytes_used(&self) -> u64 {
            0
        }
    }

    /// Blocks of a kv without one of their capabilities.
    struct Partial {
        movable: bool,
        content_mut: bool,
    }

    struct PartialBlock(Partial, KvBlock);

    impl StructureKind for Partial {
        fn spec(&self) -> KindSpec {
            let operations = vec![OperationSpec::read(1, "look", Route::Each)];
            let kind = Kind::from_code(0x80).expect("a kind");
            KindSpec { kind, name: "partial".into(), router: Router::HashRange, operations }
        }

        fn open(&self, opening: &Opening) -> Box<dyn Structure> {
            let block = KvBlock::new(opening.block_size, opening.start, opening.end, opening.marks);
            let Partial { movable, content_mut } = *self;
            Box::new(PartialBlock(Partial { movable, content_mut }, block))
        }
    }

    impl Structure for PartialBlock {
        fn movable(&mut self) -> Option<&mut dyn Movable> {
            if self.0.movable { self.1.movable() } else { None }
        }

        fn content(&self) -> Option<&dyn Content> {
            self.1.content()
        }

        fn content_mut(&mut self) -> Option<&mut dyn Content> {
            if self.0.content_mut { self.1.content_mut() } else { None }
        }
    }

    impl Ops for PartialBlock {
        fn apply(&mut self, block: &mut Backing, op: &Operation<'_>, payload: &[u8]) -> Outcome {
            self.1.apply(block, op, payload)
        }

        fn bytes_used(&self) -> u64 {
            self.1.bytes_used()
        }
    }

    #[test]
    fn kind_whose_blocks_get_parts_of_moves_in_pieces_must_stream() {
        let with =
            |movable, content_mut| Registry::builtin().with(Partial { movable, content_mut });
        with(false, true).expect("its blocks do not move");
        let refused = with(true, true).expect_err("parts of moves arrive in pieces");
        assert!(
            refused.why.contains("a move arrive in pieces") && refused.why.contains("`Streaming`")
        );
        let refused = with(false, false).expect_err("content is returned for reading only");
        assert!(refused.why.contains("`content_mut`") && refused.why.contains("`Content`"));
    }

    #[test]
    fn kind_whose_blocks_lack_a_capability_is_refused_by_the_name_of_the_trait() {
        let with = |router, operation| Registry::builtin().with(Counter(router, operation));
        let count = || OperationSpec::write(1, "count", Route::Each).with_payload();
        with(Router::HashRange, count()).expect("it needs no capability");
        let lacks = |router, operation, name: &str| {
            let refused = with(router, operation).expect_err("the capability is missing");
            assert!(refused.why.contains(name), "{refused}");
        };
        for router in [Router::Offset, Router::Ends, Router::Index] {
            lacks(router, count(), "`Growth`");
        }
        lacks(Router::HashRange, count().with_streamed_payload(), "`Streaming`");
        let wait = OperationSpec::read(1, "wait", Route::Key).that_waits();
        lacks(Router::HashRange, wait, "`Waits`");
    }

    /// A kind whose blocks have some capabilities of other blocks.
    struct Chosen {
        router: Router,
        of: fn(&Opening) -> Box<dyn Structure>,
        shown: &'static [&'static str],
    }

    struct ChosenBlock {
        inner: Box<dyn Structure>,
        file: FileBlock,
        shown: &'static [&'static str],
    }

    impl StructureKind for Chosen {
        fn spec(&self) -> KindSpec {
            KindSpec { router: self.router, ..Named(0x80, "chosen").spec() }
        }

        fn open(&self, opening: &Opening) -> Box<dyn Structure> {
            let file = FileBlock::new(opening.block_size);
            Box::new(ChosenBlock { inner: (self.of)(opening), file, shown: self.shown })
        }
    }

    impl Structure for ChosenBlock {
        fn streaming(&mut self) -> Option<&mut dyn Streaming> {
            self.inner.streaming()
        }

        fn growth(&mut self) -> Option<&mut dyn Growth> {
            if self.shown.contains(&"Growth") { self.file.growth() } else { None }
        }

        fn content(&self) -> Option<&dyn Content> {
            if self.shown.contains(&"Content") { self.inner.content() } else { None }
        }

        fn content_mut(&mut self) -> Option<&mut dyn Content> {
            if self.shown.contains(&"Content") { self.inner.content_mut() } else { None }
        }

        fn movable(&mut self) -> Option<&mut dyn Movable> {
            if self.shown.contains(&"Movable") { self.inner.movable() } else { None }
        }
    }

    impl Ops for ChosenBlock {
        fn apply(&mut self, block: &mut Backing, op: &Operation<'_>, payload: &[u8]) -> Outcome {
            self.inner.apply(block, op, payload)
        }

        fn bytes_used(&self) -> u64 {
            self.inner.bytes_used()
        }
    }

    #[test]
    fn kind_whose_capabilities_contradict_its_router_is_refused_by_their_names() {
        let kv = |opening: &Opening| KvKind.open(opening);
        let extents = |opening: &Opening| ExtentsKind.open(opening);
        let with = |router, of, shown| Registry::builtin().with(Chosen { router, of, shown });
        let refuses = |router, of, shown, names: [&str; 2]| {
            let refused = with(router, of, shown).expect_err("they contradict each other");
            assert!(names.iter().all(|name| refused.why.contains(name)), "{refused}");
        };
        refuses(Router::HashRange, file, &["Growth"], ["`Growth`", "HashRange"]);
        refuses(Router::HashRange, file, &["Movable"], ["`Movable`", "whole blocks"]);
        refuses(Router::HashRange, file, &["Content"], ["`rests`", "`Open(0)`"]);
        refuses(Router::HashRange, extents, &["Content"], ["`rests`", "`Rest::Pieces`"]);
        for router in [Router::Offset, Router::Ends, Router::Index] {
            refuses(router, kv, &["Growth", "Movable"], ["`Movable`", "ranges of hashes"]);
            refuses(router, extents, &["Growth", "Content"], ["`rests`", "`Rest::Pieces`"]);
            with(router, file, &["Growth", "Movable", "Content"]).expect("they agree");
        }
        with(Router::HashRange, kv, &["Movable", "Content"]).expect("they agree");
    }

    /// It was announced as one whose blocks move, and no move to its blocks ended.
    #[test]
    fn kind_whose_blocks_do_not_import_the_move_they_are_opened_for_is_refused() {
        let refused = |router, of: fn(&Opening) -> Box<dyn Structure>, shown| {
            let refused = Registry::builtin().with(Chosen { router, of, shown });
            let refused = refused.expect_err("it forgets the move");
            let named = ["`Movable`", "`Opening::importing`"];
            assert!(named.iter().all(|name| refused.why.contains(name)), "{refused}");
        };
        refused(Router::Index, |o| file(&Opening { importing: 0, ..*o }), &["Growth", "Movable"]);
        refused(Router::HashRange, |o| KvKind.open(&Opening { importing: 0, ..*o }), &["Movable"]);
        let another = |o: &Opening| file(&Opening { importing: 1 + o.importing % 2, ..*o });
        refused(Router::Index, another, &["Growth", "Movable"]);
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
