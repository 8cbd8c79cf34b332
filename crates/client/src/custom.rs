//! Structures of kinds that servers bring with them (paper, 4.1): one handle for all of them.
//!
//! The servers that serve a kind report, through the controller, the names of its operations, their
//! routes, and whether they are mutations. This client has no built-in knowledge of a kind.

use crate::error::Error;
use crate::listener::Listener;
use crate::route::Target;
use crate::structure::{Args, Exchange, Structure, WAIT_STEP_MS};
use crate::transport::Sink;
use honeycomb_types::limits::{ARGS_MAX, KEY_MAX};
use honeycomb_types::{AnnouncedKind, KindSpec, Notices, OperationSpec, Route};
use honeycomb_wire::custom::{Routed, put_routed};
use honeycomb_wire::messages::MapEntry;
use honeycomb_wire::notice::Filter;
use honeycomb_wire::{Op, Status, key_hash};
use std::time::Duration;

/// The reference to a custom kind: its code or its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindRef<'a> {
    /// By its code, 0x80 to 0xEF.
    Code(u8),
    /// By the name that its servers announced.
    Name(&'a str),
}

impl From<u8> for KindRef<'_> {
    fn from(code: u8) -> Self {
        KindRef::Code(code)
    }
}

impl<'a> From<&'a str> for KindRef<'a> {
    fn from(name: &'a str) -> Self {
        KindRef::Name(name)
    }
}

impl std::fmt::Display for KindRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KindRef::Code(code) => write!(f, "{code:#04x}"),
            KindRef::Name(name) => write!(f, "'{name}'"),
        }
    }
}

/// Options for the creation of a custom structure. Each kind interprets them itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CustomOptions {
    /// Blocks at first; 0 takes 1.
    pub blocks: u32,
    /// Most items; 0 for no bound.
    pub max_items: u64,
    /// Most bytes; 0 for no bound.
    pub max_bytes: u64,
    /// Open it when one of the same kind exists.
    pub open_existing: bool,
}

/// The parameters of an operation. `Ask::default()` has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ask<'a> {
    /// Arguments, as the operation reads them.
    pub args: &'a [u8],
    /// The payload, for an operation that has one.
    pub payload: &'a [u8],
    /// The position in the structure, for an operation that is routed by a position.
    pub position: Option<u64>,
    /// The key, for an operation that is routed by a key.
    pub key: Option<&'a [u8]>,
    /// How long the server may let it wait, for an operation that may wait. `NotYet` after that
    /// time.
    pub wait: Duration,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Its number. A position counts from the beginning of the structure.
    pub value: u64,
    /// Its arguments.
    pub args: Vec<u8>,
    /// Its payload.
    pub payload: Vec<u8>,
    /// The start of the block that replied, for other values that the block counts from its own
    /// start.
    pub start: u64,
}

/// An open structure of a custom kind.
///
/// Mutations take effect exactly once under retry, as for every structure; other operations are
/// simply repeated. Each kind defines its other guarantees. Data is lost with its server
/// (`memory`). Safe to share between threads.
pub struct Custom {
    structure: Structure,
    kind: AnnouncedKind,
}

impl Custom {
    pub(crate) fn new(structure: Structure, kind: AnnouncedKind) -> Custom {
        Custom { structure, kind }
    }

    /// The properties that every structure has.
    pub fn structure(&self) -> &Structure {
        &self.structure
    }

    /// The kind's name and its operations.
    pub fn spec(&self) -> &KindSpec {
        &self.kind.spec
    }

    /// Subscribes to changes: see `Listener`. `wanted` is a set of bits from `wire::notice::kinds`, of which
    /// the kind chooses which changes it reports. `InvalidArgument` if the kind reports none.
    pub fn listen(&self, wanted: u16, filter: Filter) -> Result<Listener, Error> {
        if self.kind.attributes().notices == Notices::Never {
            return Err(self.refuse("a structure of this kind reports no changes"));
        }
        self.structure.listen(wanted, filter)
    }

    /// Runs an operation, given by its name, on one block and returns the result.
    ///
    /// If the structure itself refuses, the error is `Refused`, with its code (`Error::code`). If a
    /// wait ends without a result, the error is `NotYet`; a signal to the thread, or its interrupt,
    /// ends the wait early. `InvalidArgument` if the parameters do not match the kind's table.
    pub fn call(&self, operation: &str, ask: Ask<'_>) -> Result<Answered, Error> {
        let spec = self.operation(operation)?;
        if !spec.route.is_single() {
            let text =
                format!("'{operation}' runs on several blocks; use call_each instead of call");
            return Err(self.refuse(&text));
        }
        self.check(spec, &ask)?;
        let target = match (spec.route, ask.position, ask.key) {
            (Route::Head, ..) => Target::Head,
            (Route::Position, Some(position), _) => Target::Offset(position),
            (Route::Key, _, Some(key)) => Target::Hash(key_hash(key)),
            _ => Target::Tail,
        };
        let until = self.structure.now() + ask.wait;
        loop {
            // The server's wait is limited; ours may be longer.
            let step = Duration::from_millis(WAIT_STEP_MS as u64);
            let asked = until.min(self.structure.now() + step);
            let answered = self.ask(spec, target, &ask, spec.waits.then_some(asked));
            let now = self.structure.now();
            match answered {
                // A wait that ended early was ended by a signal.
                Err(e) if e.status == Status::NotYet && asked <= now && now < until => {}
                other => return other,
            }
        }
    }

    /// Runs an operation on every block, or on every block up to a position, one after the other
    /// from the first. Returns the result of each. The call covers all blocks that existed before
    /// it, except a block that is removed meanwhile because it is empty for good. It is not atomic:
    /// a failure at one block ends the call, and earlier blocks have run it.
    pub fn call_each(&self, operation: &str, ask: Ask<'_>) -> Result<Vec<Answered>, Error> {
        let spec = self.operation(operation)?;
        if spec.route.is_single() {
            let text = format!("'{operation}' runs on one block; use call instead of call_each");
            return Err(self.refuse(&text));
        }
        self.check(spec, &ask)?;
        if self.spec().router.grows() {
            // The known blocks may be outdated: the last one reports whether others follow.
            self.structure.run(Exchange {
                op: Op::NextBlock,
                target: Target::Tail,
                args: Args::Fixed(&[]),
                payload: &[],
                sink: Sink::None,
                wait_until: None,
            })?;
        }
        let mut answers = Vec::new();
        for entry in self.structure.entries() {
            let beyond = ask.position.is_some_and(|position| entry.start > position);
            if beyond && !answers.is_empty() {
                break;
            }
            match self.ask(spec, Target::Block(entry.at()), &ask, None) {
                Ok(answered) => answers.push(answered),
                Err(e) if e.status == Status::UnknownBlock => {}
                Err(e) => return Err(e),
            }
        }
        Ok(answers)
    }

    fn ask(
        &self,
        spec: &OperationSpec,
        target: Target,
        ask: &Ask<'_>,
        wait_until: Option<honeycomb_types::Time>,
    ) -> Result<Answered, Error> {
        let routed = match spec.route {
            Route::Position | Route::Through => ask.position.is_some(),
            Route::Key => ask.key.is_some(),
            Route::Head | Route::Tail | Route::Each => true,
        };
        assert!(routed, "'{}' is sent without its position or its key", spec.name);
        let mut args = Vec::new();
        if let (Route::Key, Some(key)) = (spec.route, ask.key) {
            put_routed(Routed::Key(key), &mut args);
        }
        args.extend_from_slice(ask.args);
        let args = match (spec.route, ask.position) {
            (Route::Position | Route::Through, Some(position)) => {
                Args::Positioned { position, rest: &args }
            }
            _ => Args::Fixed(&args),
        };
        let mut payload = Vec::new();
        let parts = [ask.payload];
        let exchange = Exchange {
            op: Op::Custom((self.spec().kind.code() as u16) << 8 | spec.number as u16),
            target,
            args,
            payload: if ask.payload.is_empty() { &[] } else { &parts },
            sink: Sink::Vec(&mut payload),
            wait_until,
        };
        let replied = self.structure.run_as(spec.mutates, exchange);
        let replied = replied.map_err(|e| self.explain(spec, e))?;
        let MapEntry { start, .. } = replied.entry;
        let counted = replied.header.value;
        let value = if spec.positional { start.wrapping_add(counted) } else { counted };
        Ok(Answered { value, args: replied.args, payload, start })
    }

    /// Inserts the operation's name where the retry loop, which does not know kinds, could only
    /// name a custom operation.
    fn explain(&self, spec: &OperationSpec, mut e: Error) -> Error {
        for said in ["Custom did not finish", "whether Custom took effect"] {
            let named = said.replace("Custom", &format!("'{}'", spec.name));
            e.message = e.message.replacen(said, &named, 1);
        }
        e
    }

    fn operation(&self, name: &str) -> Result<&OperationSpec, Error> {
        self.spec().operation(name).ok_or_else(|| {
            let known: Vec<&str> = self.spec().operations.iter().map(|o| o.name.as_str()).collect();
            let text = format!(
                "a {} has no operation '{name}'; it has {}",
                self.spec().name,
                known.join(", ")
            );
            Error::new(Status::UnknownOpcode, format!("{}: {text}", self.structure.address()))
        })
    }

    /// Checks the parameters against the kind's table.
    fn check(&self, spec: &OperationSpec, ask: &Ask<'_>) -> Result<(), Error> {
        let name = &spec.name;
        let positioned = matches!(spec.route, Route::Position | Route::Through);
        let wrong = match (positioned, ask.position.is_some()) {
            (true, false) => Some("needs a position, and none is given"),
            (false, true) => Some("takes no position"),
            _ => None,
        };
        let wrong = wrong.or(match (spec.route == Route::Key, ask.key) {
            (true, None) => Some("needs a key, and none is given"),
            (false, Some(_)) => Some("takes no key"),
            (true, Some([])) => Some("needs a key, and the given key is empty"),
            _ => None,
        });
        let wrong =
            wrong.or((!spec.payload && !ask.payload.is_empty()).then_some("takes no payload"));
        let wrong = wrong.or((!spec.waits && !ask.wait.is_zero()).then_some("never waits"));
        if let Some(why) = wrong {
            return Err(self.refuse(&format!("'{name}' {why}")));
        }
        if let Some(key) = ask.key.filter(|key| key.len() > KEY_MAX) {
            let text = format!("{}: a key of {} bytes", self.structure.address(), key.len());
            return Err(Error::new(Status::KeyTooLarge, format!("{text}; the limit is {KEY_MAX}")));
        }
        let most = ARGS_MAX - ask.key.map_or(8, |key| key.len() + 2);
        if ask.args.len() > most {
            let length = ask.args.len();
            let text = format!("'{name}' with arguments of {length} bytes; the limit is {most}");
            return Err(self.refuse(&text));
        }
        Ok(())
    }

    fn refuse(&self, text: &str) -> Error {
        Error::new(Status::InvalidArgument, format!("{}: {text}", self.structure.address()))
    }
}
