//! The cells: the dying process, the request of its death, and the promised outcome.

/// The move of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Its one block, on server A, gives the upper half to a new one on server B.
    Split,
    /// The block on B gives all to its neighbour on A.
    MergeDown,
    /// The block on A gives all to its neighbour on B.
    MergeUp,
    /// Server A is drained, and the store's one block leaves it for B.
    Leave,
}

/// The process that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    Source,
    Target,
    Controller,
    Client,
}

/// The promised outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// No client got an error; all acknowledged data exists once; the store can move again.
    Lives,
    /// The victim had data of the store: `DataLost`, which names it. All else is as it was.
    Lost,
    /// One of the two, the same for all clients: the commit and the death were concurrent.
    Either,
    /// The controller has died and does not restart, so that no move can commit: the store serves the data
    /// that does not move.
    Serves,
}

/// One crash.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub act: Act,
    pub victim: Victim,
    /// The failpoint of the victim (`honeycomb_transport::failpoint`).
    pub at: &'static str,
    pub promise: Promise,
    /// Whether the victim is started again.
    pub restart: bool,
    /// Whether requests from before are sent again.
    pub retry: bool,
    /// Blocks of 16 MiB, so that a range exceeds the transfer window, and changes between its transfer and
    /// its freeze.
    pub large: bool,
}

impl Cell {
    const fn restart(self) -> Cell {
        Cell { restart: true, ..self }
    }

    const fn retry(self) -> Cell {
        Cell { retry: true, ..self }
    }

    const fn large(self) -> Cell {
        Cell { large: true, ..self }
    }
}

const fn cell(act: Act, victim: Victim, at: &'static str, promise: Promise) -> Cell {
    Cell { act, victim, at, promise, restart: false, retry: false, large: false }
}

use Act::{Leave, MergeDown, MergeUp, Split};
use Promise::{Either, Lives, Lost, Serves};
use Victim::{Client, Controller, Source, Target};

/// All of them.
pub const CELLS: &[Cell] = &[
    // A split: the source dies. It has the rest of the store, whatever the outcome of the move.
    cell(Split, Source, "sending:BeginMove:1", Lost),
    cell(Split, Source, "sent:BeginMove:1", Lost).restart(),
    cell(Split, Source, "heard:BeginMove:1", Lost),
    cell(Split, Source, "sending:MoveRegion:1", Lost).restart(),
    cell(Split, Source, "sent:MoveRegion:2", Lost),
    cell(Split, Source, "sent:MoveValue:1", Lost),
    cell(Split, Source, "heard:MovePatch:1", Lost).large(),
    cell(Split, Source, "sending:MoveLanes:1", Lost),
    cell(Split, Source, "sent:MoveDone:1", Lost).restart(),
    cell(Split, Source, "heard:MoveDone:1", Lost),
    cell(Split, Source, "sending:CommitMove:1", Lost),
    cell(Split, Source, "sent:CommitMove:1", Lost).restart(),
    cell(Split, Source, "heard:CommitMove:1", Lost),
    // A split: the target dies. Before the commit, it owns no data.
    cell(Split, Target, "handling:OpenBlock:1", Lives),
    cell(Split, Target, "answering:OpenBlock:1", Lives).retry(),
    cell(Split, Target, "answered:OpenBlock:1", Lives).restart(),
    cell(Split, Target, "handling:MoveRegion:1", Lives).retry(),
    cell(Split, Target, "answered:MoveRegion:5", Lives).restart().retry(),
    cell(Split, Target, "handling:MoveValue:1", Lives),
    cell(Split, Target, "handled:MovePatch:1", Lives).large().retry(),
    cell(Split, Target, "handling:MoveLanes:1", Lives).retry(),
    cell(Split, Target, "answered:MoveLanes:1", Lives).retry(),
    cell(Split, Target, "handling:MoveDone:1", Lives),
    cell(Split, Target, "answering:MoveDone:1", Lives).restart().retry(),
    cell(Split, Target, "answered:MoveDone:1", Either).retry(),
    cell(Split, Target, "handling:EndImport:1", Lost),
    cell(Split, Target, "handled:EndImport:1", Lost).restart(),
    cell(Split, Target, "answered:EndImport:1", Lost),
    // A merge: the source dies. From the commit on, it owns no data.
    cell(MergeDown, Source, "sending:BeginMove:1", Lost),
    cell(MergeDown, Source, "sent:MoveRegion:1", Lost).restart(),
    cell(MergeDown, Source, "heard:MoveDone:1", Lost),
    cell(MergeDown, Source, "sent:CommitMove:1", Either).retry(),
    cell(MergeDown, Source, "heard:CommitMove:1", Lives).retry(),
    cell(MergeDown, Source, "answering:FreeBlock:1", Lives).restart().retry(),
    cell(MergeUp, Source, "heard:CommitMove:1,sent:MoveDone:1", Lost),
    cell(MergeUp, Source, "heard:CommitMove:1,sent:MoveDone:1,heard:CommitMove:1", Lives).retry(),
    // A merge: the target dies. It has its own data all the time.
    cell(MergeDown, Target, "handling:BeginImport:1", Lost),
    cell(MergeDown, Target, "handled:BeginImport:1,handling:MoveRegion:1", Lost).restart(),
    cell(MergeUp, Target, "handled:BeginImport:1,answered:MoveDone:1", Lost),
    cell(MergeUp, Target, "handled:BeginImport:1,answered:EndImport:1", Lost),
    // An evacuated block: the source dies. From the commit on, it owns no data.
    cell(Leave, Source, "handling:Evacuate:1", Lost),
    cell(Leave, Source, "sent:BeginMove:1", Lost).restart(),
    cell(Leave, Source, "sent:MoveRegion:1", Lost),
    cell(Leave, Source, "heard:MoveDone:1", Lost).restart(),
    cell(Leave, Source, "sent:CommitMove:1", Either).retry(),
    cell(Leave, Source, "heard:CommitMove:1", Lives).retry(),
    cell(Leave, Source, "answering:FreeBlock:1", Lives).restart().retry(),
    cell(Leave, Source, "handling:Release:1", Lives).retry(),
    // An evacuated block: the target dies. Before the commit, it owns no data; another target takes its
    // place.
    cell(Leave, Target, "answering:OpenBlock:1", Lives).retry(),
    cell(Leave, Target, "handling:MoveRegion:1", Lives).restart(),
    cell(Leave, Target, "answered:MoveLanes:1", Lives).retry(),
    cell(Leave, Target, "answered:MoveDone:1", Either).retry(),
    cell(Leave, Target, "handling:EndImport:1", Lost),
    cell(Leave, Target, "answered:EndImport:1", Lost).restart(),
    // The controller does not come back.
    cell(Split, Controller, "handling:BeginMove:1", Serves),
    cell(Split, Controller, "handled:BeginMove:1", Serves),
    cell(Split, Controller, "handling:CommitMove:1", Serves),
    cell(MergeDown, Controller, "heard:EndImport:1,handling:BeginMove:1", Serves),
    // A client that has sent something, or is about to, while the block that it fills divides.
    cell(Split, Client, "sending:KvPut:170", Lives),
    cell(Split, Client, "sent:KvAccumulate:190", Lives).retry(),
    cell(Split, Client, "heard:KvAccumulate:205", Lives),
    cell(Split, Client, "sent:KvPut:220", Lives).retry(),
    cell(Split, Client, "heard:KvPut:235", Lives),
    cell(Split, Client, "sent:KvPut:460", Lives),
];

/// Those of a controller that is started again on its log.
pub const WITH_LOG: &[Cell] = &[
    cell(Split, Controller, "handling:BeginMove:1", Lives).restart(),
    cell(Split, Controller, "handled:BeginMove:1", Lives).restart().retry(),
    cell(Split, Controller, "answering:BeginMove:1", Lives).restart(),
    cell(Split, Controller, "answered:BeginMove:1", Lives).restart().retry(),
    cell(Split, Controller, "handling:CommitMove:1", Lives).restart(),
    cell(Split, Controller, "handled:CommitMove:1", Lives).restart().retry(),
    cell(Split, Controller, "answering:CommitMove:1", Lives).restart().retry(),
    cell(Split, Controller, "answered:CommitMove:1", Lives).restart(),
    cell(Split, Controller, "sending:EndImport:1", Lives).restart().retry(),
    cell(Split, Controller, "heard:EndImport:1", Lives).restart(),
    cell(MergeDown, Controller, "heard:EndImport:1,handled:BeginMove:1", Lives).restart(),
    cell(MergeDown, Controller, "sending:BeginImport:1", Lives).restart().retry(),
    cell(MergeDown, Controller, "heard:BeginImport:1", Lives).restart(),
    cell(MergeDown, Controller, "sending:BeginImport:1,handling:CommitMove:1", Lives)
        .restart()
        .retry(),
    cell(MergeDown, Controller, "sending:BeginImport:1,answering:CommitMove:1", Lives)
        .restart()
        .retry(),
    cell(MergeDown, Controller, "sending:BeginImport:1,answered:CommitMove:1", Lives).restart(),
    cell(MergeDown, Controller, "sending:BeginImport:1,sending:EndImport:1", Lives).restart(),
    cell(MergeDown, Controller, "sending:FreeBlock:1", Lives).restart().retry(),
    cell(Leave, Controller, "handled:DrainServer:1", Lives).restart(),
    cell(Leave, Controller, "sending:Evacuate:1", Lives).restart().retry(),
    cell(Leave, Controller, "handling:BeginMove:1", Lives).restart(),
    cell(Leave, Controller, "answered:BeginMove:1", Lives).restart().retry(),
    cell(Leave, Controller, "handling:CommitMove:1", Lives).restart().retry(),
    cell(Leave, Controller, "answering:CommitMove:1", Lives).restart().retry(),
    cell(Leave, Controller, "sending:EndImport:1", Lives).restart(),
    cell(Leave, Controller, "sending:FreeBlock:1", Lives).restart().retry(),
    cell(Leave, Controller, "sending:Release:1", Lives).restart(),
    cell(MergeUp, Controller, "heard:EndImport:1,answered:BeginMove:1", Lives).restart(),
    cell(MergeUp, Controller, "sending:BeginImport:1,answering:CommitMove:1", Lives)
        .restart()
        .retry(),
];

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (act, victim) = (format!("{:?}", self.act), format!("{:?}", self.victim));
        let promise = format!("{:?}", self.promise);
        let with = [(self.restart, "restart"), (self.retry, "retry"), (self.large, "large")];
        let with: Vec<&str> = with.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        let with = with.join(",");
        write!(f, "{act:<9} {victim:<10} {:<51} {promise:<6} {with:<13}", self.at)
    }
}
