//! Crash cells: moves and drains in which a node dies at a certain step, before or after it. A
//! third of the seeds draw one; over enough seeds every cell occurs, in combination with the other
//! faults of the run (section "Moves" of `docs/design-notes.md` defines the required outcome of
//! each).

use crate::controller::{Said, Told};
use crate::server::Caller;
use crate::world::{Event, World};
use honeycomb_catalog::Effect as Order;
use honeycomb_env::Entropy;
use honeycomb_server::{Effect, MoveWord};
use honeycomb_types::{BlockAt, MoveId};
use honeycomb_wire::{Op, RequestHeader};
use std::fmt;

/// A message of a move, as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // Named as in the protocol.
pub enum Step {
    BeginMove,
    OpenBlock,
    BeginImport,
    Begun,
    MoveValue,
    MoveRegion,
    MovePatch,
    MoveDrops,
    MoveLanes,
    MoveState,
    MoveDone,
    Answered,
    CommitMove,
    Committed,
    EndImport,
    Evacuate,
    Release,
}

/// The node that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// The server of the source block.
    Source,
    /// The server of the target block.
    Target,
    /// The controller, which is restarted.
    Controller,
}

/// A step, the node that dies, and whether it dies before or after the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// The step.
    pub step: Step,
    /// The node that dies.
    pub who: Who,
    /// The message was handled; otherwise it arrives too late, or its sender is dead.
    pub after: bool,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.after { "after" } else { "before" };
        write!(f, "{:?} dies {side} {:?}", self.who, self.step)
    }
}

const STEPS: [Step; 17] = [
    Step::BeginMove,
    Step::OpenBlock,
    Step::BeginImport,
    Step::Begun,
    Step::MoveValue,
    Step::MoveRegion,
    Step::MovePatch,
    Step::MoveDrops,
    Step::MoveLanes,
    Step::MoveState,
    Step::MoveDone,
    Step::Answered,
    Step::CommitMove,
    Step::Committed,
    Step::EndImport,
    Step::Evacuate,
    Step::Release,
];

impl Cell {
    /// Every possible cell.
    pub fn all() -> impl Iterator<Item = Cell> {
        let who = [Who::Source, Who::Target, Who::Controller];
        let cells = STEPS.into_iter().flat_map(move |step| {
            who.into_iter().flat_map(move |who| {
                [false, true].into_iter().map(move |after| Cell { step, who, after })
            })
        });
        // Before the controller has chosen one there is no target.
        cells.filter(|cell| {
            let alone = matches!(cell.step, Step::Evacuate | Step::Release);
            let early = (cell.step, cell.after) == (Step::BeginMove, false);
            cell.who != Who::Target || !alone && !early
        })
    }

    /// A random cell, and how often its step must occur before it strikes.
    pub fn draw(entropy: &mut Entropy) -> Option<(Cell, u64)> {
        let (drawn, turn) = (entropy.below(3), entropy.below(4));
        let cells = Cell::all().count() as u64;
        let cell = Cell::all().nth(entropy.below(cells) as usize);
        cell.filter(|_| drawn == 0).map(|cell| match cell.step {
            // Few moves have such a step at all.
            Step::MovePatch | Step::MoveDrops | Step::Evacuate | Step::Release => (cell, 0),
            _ => (cell, turn),
        })
    }
}

/// An occurring step, with the indices of its servers, if they are known.
#[derive(Clone, Copy)]
pub struct Coming {
    step: Step,
    source: Option<usize>,
    target: Option<usize>,
    /// The controller shard of the move.
    controller: usize,
}

impl World {
    /// Whether the step of this run's cell has occurred; returns the strike.
    pub fn strikes(&mut self, coming: Coming) -> Option<Strike> {
        let (cell, turn) = self.cell.filter(|(cell, _)| cell.step == coming.step)?;
        let server = match cell.who {
            Who::Source => coming.source,
            Who::Target => coming.target,
            Who::Controller => None,
        };
        let there = match cell.who {
            Who::Controller => self.controllers[coming.controller].alive,
            _ => server.is_some_and(|server| self.servers[server].alive),
        };
        if !there {
            // The target server is known only after the controller's reply.
            let later = cell.step == Step::BeginMove && cell.after && cell.who == Who::Target;
            let (controller, id) = (coming.controller, self.last_move(coming.controller));
            return later.then_some(Strike { cell, server: None, controller, id });
        }
        if turn > 0 {
            self.cell = Some((cell, turn - 1));
            return None;
        }
        Some(Strike { cell, server, controller: coming.controller, id: None })
    }

    /// Kills the node, unless it has died meanwhile.
    pub fn strike(&mut self, strike: &Strike) {
        let server = match strike.cell.who {
            Who::Controller => None,
            // If the move has begun since, the server of that move.
            _ => strike.server.or_else(|| {
                let begun = self.last_move(strike.controller);
                let begun = begun.filter(|id| Some(*id) != strike.id);
                begun.and_then(|id| self.parties_of(strike.controller, id).1)
            }),
        };
        let dies = match strike.cell.who {
            Who::Controller => self.controllers[strike.controller].alive,
            _ => server.is_some_and(|server| self.servers[server].alive),
        };
        if !dies {
            return;
        }
        self.cell = None;
        self.note(|| format!("cell: {}", strike.cell));
        match server {
            Some(server) => self.crash(server),
            None => self.crash_controller(strike.controller),
        }
        *self.stats.cells.entry(strike.cell).or_default() += 1;
    }

    /// The step of a move that corresponds to an event, recorded for the trace and the report.
    pub fn note_step(&mut self, event: &Event) -> Option<Coming> {
        let coming = self.step_of(event)?;
        match coming.step {
            Step::MovePatch => self.reach("region changed while it moves"),
            Step::MoveDrops => self.reach("large value dropped while it moves"),
            _ => {}
        }
        let place = |server: Option<usize>| server.map_or(0, |server| server + 1);
        self.note(|| {
            let (source, target) = (place(coming.source), place(coming.target));
            format!("{:?} of server {source} to {target}", coming.step)
        });
        Some(coming)
    }

    fn last_move(&self, controller: usize) -> Option<MoveId> {
        self.controllers[controller].model.last_move()
    }

    /// The step that corresponds to an event; `None` if it is too late, if its receiver is dead, or
    /// if its connection no longer exists.
    fn step_of(&self, event: &Event) -> Option<Coming> {
        match event {
            Event::Said { server, link, said } => {
                let controller = self.heard(*server, *link)?.controller() as usize;
                let source = Some(*server);
                let (step, target) = match &**said {
                    Said::Asked(Effect::BeginMove { .. }) => (Step::BeginMove, None),
                    Said::Asked(Effect::CommitMove { target, .. }) => {
                        (Step::CommitMove, self.place(*target))
                    }
                    _ => return None,
                };
                Some(Coming { step, source, target, controller })
            }
            Event::ToldServer { server, link, told } => {
                let controller = self.servers[*server].controller_at(*link)?;
                let told_one = *server;
                let (step, id) = match told {
                    Told::Order(Order::OpenBlock { importing, .. })
                        if *importing != MoveId::NONE =>
                    {
                        (Step::OpenBlock, *importing)
                    }
                    Told::Order(Order::BeginImport { id, .. }) => (Step::BeginImport, *id),
                    Told::Order(Order::EndImport { id, .. }) => (Step::EndImport, *id),
                    Told::Order(order @ (Order::Evacuate { .. } | Order::Release { .. })) => {
                        let leaves = matches!(order, Order::Evacuate { .. });
                        let step = if leaves { Step::Evacuate } else { Step::Release };
                        let source = Some(told_one);
                        return Some(Coming { step, source, target: None, controller });
                    }
                    Told::Move(_, word) => {
                        let (step, entry) = match word {
                            MoveWord::Begin { entry, .. } => (Step::Begun, entry),
                            MoveWord::Committed(moved) => (Step::Committed, &moved.entry),
                            _ => return None,
                        };
                        let target = self.place(entry.at());
                        return Some(Coming { step, source: Some(told_one), target, controller });
                    }
                    _ => return None,
                };
                let source = self.parties_of(controller, id).0;
                Some(Coming { step, source, target: Some(told_one), controller })
            }
            Event::Request { server, life, from: Caller::Peer(conn), request } => {
                let line = self.lines.get(conn)?;
                let target = Some(*server).filter(|&server| self.servers[server].life == *life)?;
                let step = match RequestHeader::decode(&request.header, true).ok()?.op {
                    Op::MoveValue => Step::MoveValue,
                    Op::MoveRegion => Step::MoveRegion,
                    Op::MovePatch => Step::MovePatch,
                    Op::MoveDrops => Step::MoveDrops,
                    Op::MoveLanes => Step::MoveLanes,
                    Op::MoveState => Step::MoveState,
                    Op::MoveDone => Step::MoveDone,
                    _ => return None,
                };
                let (source, controller) = (Some(line.from.0), line.controller());
                Some(Coming { step, source, target: Some(target), controller })
            }
            Event::LineAnswered { conn, .. } => {
                let line = self.lines.get(conn).filter(|line| line.is_of_a_move())?;
                let (source, target) = (Some(line.from.0), Some(line.to.0));
                Some(Coming { step: Step::Answered, source, target, controller: line.controller() })
            }
            _ => None,
        }
    }

    /// Source and target of a move.
    fn parties_of(&self, controller: usize, id: MoveId) -> (Option<usize>, Option<usize>) {
        let parties = self.controllers[controller].model.parties(id);
        (parties.and_then(|(from, _)| self.place(from)), parties.and_then(|(_, to)| self.place(to)))
    }

    /// The server that has a block.
    fn place(&self, at: BlockAt) -> Option<usize> {
        self.servers.iter().position(|server| server.is(at.block.server()))
    }
}

/// A cell whose step has occurred.
pub struct Strike {
    /// The cell.
    pub cell: Cell,
    server: Option<usize>,
    controller: usize,
    /// The last move before it.
    id: Option<MoveId>,
}
