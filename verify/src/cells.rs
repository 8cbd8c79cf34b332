//! Crash cells: moves in which somebody dies at a certain step, before it is taken or after it. A third
//! of the seeds draw one; over enough of them every cell comes up, with whatever else goes wrong in
//! the same run (section "Moves" of `docs/design-notes.md` says what each must come to).

use crate::controller::{Said, Told};
use crate::server::Caller;
use crate::world::{Event, World};
use honeycomb_catalog::Effect as Order;
use honeycomb_env::Entropy;
use honeycomb_server::{Effect, MoveWord};
use honeycomb_types::{BlockAt, BlockId, Epoch, MoveId};
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
    MoveDone,
    Answered,
    CommitMove,
    Committed,
    EndImport,
}

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// The server of the block that gives.
    Source,
    /// The server of the block that takes.
    Target,
    /// The controller, which comes back.
    Controller,
}

/// Who dies at which step, on which side of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// The step.
    pub step: Step,
    /// Who dies.
    pub who: Who,
    /// The message was handled; otherwise it comes too late, or from somebody who is dead.
    pub after: bool,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.after { "after" } else { "before" };
        write!(f, "{:?} dies {side} {:?}", self.who, self.step)
    }
}

const STEPS: [Step; 14] = [
    Step::BeginMove,
    Step::OpenBlock,
    Step::BeginImport,
    Step::Begun,
    Step::MoveValue,
    Step::MoveRegion,
    Step::MovePatch,
    Step::MoveDrops,
    Step::MoveLanes,
    Step::MoveDone,
    Step::Answered,
    Step::CommitMove,
    Step::Committed,
    Step::EndImport,
];

impl Cell {
    /// Every cell that can be.
    pub fn all() -> impl Iterator<Item = Cell> {
        let who = [Who::Source, Who::Target, Who::Controller];
        let cells = STEPS.into_iter().flat_map(move |step| {
            who.into_iter().flat_map(move |who| {
                [false, true].into_iter().map(move |after| Cell { step, who, after })
            })
        });
        // Before the controller has chosen one there is no target.
        cells.filter(|cell| {
            (cell.step, cell.who, cell.after) != (Step::BeginMove, Who::Target, false)
        })
    }

    /// Any of them, and how often its step must come before it strikes.
    pub fn draw(entropy: &mut Entropy) -> Option<(Cell, u64)> {
        let (drawn, turn) = (entropy.below(3), entropy.below(4));
        let cells = Cell::all().count() as u64;
        let cell = Cell::all().nth(entropy.below(cells) as usize);
        cell.filter(|_| drawn == 0).map(|cell| (cell, turn))
    }
}

impl World {
    /// Whether the step of this run's cell has come, and who is to die.
    pub fn strikes(&mut self, event: &Event) -> Option<Strike> {
        let (cell, turn) = self.cell?;
        self.step_of(event).filter(|step| *step == cell.step)?;
        let (source, target) = self.roles_of(event);
        let server = match cell.who {
            Who::Source => source,
            Who::Target => target,
            Who::Controller => None,
        };
        if cell.who != Who::Controller && server.is_none_or(|server| !self.servers[server].alive) {
            // Which server it is shows only when the controller has answered.
            let later = cell.step == Step::BeginMove && cell.after && cell.who == Who::Target;
            return later.then_some(Strike { cell, server: None, id: self.last_move() });
        }
        if turn > 0 {
            self.cell = Some((cell, turn - 1));
            return None;
        }
        Some(Strike { cell, server, id: None })
    }

    /// Somebody dies.
    pub fn strike(&mut self, strike: &Strike) {
        let server = match (strike.server, strike.cell) {
            (None, Cell { who: Who::Target, .. }) => {
                // The move that has begun since.
                let begun = self.last_move().filter(|id| Some(*id) != strike.id);
                match begun.and_then(|id| self.parties_of(id).1) {
                    Some(server) if self.servers[server].alive => Some(server),
                    _ => return,
                }
            }
            (server, _) => server,
        };
        self.cell = None;
        self.note(|| format!("cell: {}", strike.cell));
        match server {
            Some(server) => self.crash(server),
            None => self.crash_controller(),
        }
        *self.stats.cells.entry(strike.cell).or_default() += 1;
    }

    /// Steps of moves, for the trace and the report.
    pub fn note_step(&mut self, event: &Event) {
        let Some(step) = self.step_of(event) else { return };
        match step {
            Step::MovePatch => self.reach("region changed while it moves"),
            Step::MoveDrops => self.reach("large value dropped while it moves"),
            _ => {}
        }
        let (source, target) = self.roles_of(event);
        let place = |server: Option<usize>| server.map_or(0, |server| server + 1);
        self.note(|| format!("{step:?} of server {} to {}", place(source), place(target)));
    }

    fn last_move(&self) -> Option<MoveId> {
        self.controller.model.last_move()
    }

    fn step_of(&self, event: &Event) -> Option<Step> {
        Some(match event {
            Event::Said { said, .. } => match **said {
                Said::Asked(Effect::BeginMove { .. }) => Step::BeginMove,
                Said::Asked(Effect::CommitMove { .. }) => Step::CommitMove,
                _ => return None,
            },
            Event::ToldServer { told, .. } => match told {
                Told::Order(Order::OpenBlock { importing, .. }) if *importing != MoveId::NONE => {
                    Step::OpenBlock
                }
                Told::Order(Order::BeginImport { .. }) => Step::BeginImport,
                Told::Order(Order::EndImport { .. }) => Step::EndImport,
                Told::Move(_, MoveWord::Begin { .. }) => Step::Begun,
                Told::Move(_, MoveWord::Committed(_)) => Step::Committed,
                _ => return None,
            },
            Event::Request { from: Caller::Peer(_), request, .. } => {
                match RequestHeader::decode(&request.header, true).ok()?.op {
                    Op::MoveValue => Step::MoveValue,
                    Op::MoveRegion => Step::MoveRegion,
                    Op::MovePatch => Step::MovePatch,
                    Op::MoveDrops => Step::MoveDrops,
                    Op::MoveLanes => Step::MoveLanes,
                    Op::MoveDone => Step::MoveDone,
                    _ => return None,
                }
            }
            Event::LineAnswered { conn, .. } => {
                self.lines.get(conn).filter(|line| line.is_of_a_move())?;
                Step::Answered
            }
            _ => return None,
        })
    }

    /// Source and target of the move that an event is of, by their places in the world.
    fn roles_of(&self, event: &Event) -> (Option<usize>, Option<usize>) {
        match event {
            Event::Said { server, said, .. } => match **said {
                Said::Asked(Effect::CommitMove { target, .. }) => {
                    (Some(*server), self.place(target))
                }
                _ => (Some(*server), None),
            },
            Event::ToldServer { server, told, .. } => match told {
                Told::Order(Order::OpenBlock { importing: id, .. })
                | Told::Order(Order::BeginImport { id, .. })
                | Told::Order(Order::EndImport { id, .. }) => {
                    (self.parties_of(*id).0, Some(*server))
                }
                Told::Move(_, MoveWord::Begin { entry, .. }) => {
                    (Some(*server), self.place(block_of(entry.block, entry.epoch)))
                }
                Told::Move(_, MoveWord::Committed(moved)) => {
                    let entry = &moved.entry;
                    (Some(*server), self.place(block_of(entry.block, entry.epoch)))
                }
                _ => (None, None),
            },
            Event::Request { server, from: Caller::Peer(conn), .. } => {
                (self.lines.get(conn).map(|line| line.from.0), Some(*server))
            }
            Event::LineAnswered { conn, .. } => {
                let line = self.lines.get(conn);
                (line.map(|line| line.from.0), line.map(|line| line.to.0))
            }
            _ => (None, None),
        }
    }

    /// Source and target of a move.
    fn parties_of(&self, id: MoveId) -> (Option<usize>, Option<usize>) {
        let parties = self.controller.model.parties(id);
        (parties.and_then(|(from, _)| self.place(from)), parties.and_then(|(_, to)| self.place(to)))
    }

    /// The server that has a block.
    fn place(&self, at: BlockAt) -> Option<usize> {
        self.servers.iter().position(|server| server.id == at.block.server())
    }
}

fn block_of(block: u64, epoch: u64) -> BlockAt {
    BlockAt { block: BlockId(block), epoch: Epoch(epoch) }
}

/// A cell whose step has come.
pub struct Strike {
    /// The cell.
    pub cell: Cell,
    server: Option<usize>,
    /// The last move before it.
    id: Option<MoveId>,
}
