//! Blocks whose changes are answered when they are stored: how they are opened, and the answers of the
//! journal.

use super::ShardService;
use crate::flush::ControllerRequest;
use crate::notes::LinkNote;
use crate::shard::BlockOwner;
use honeycomb_structures::Answer;
use honeycomb_wire::messages::JournalAt;
use honeycomb_wire::{Durability, ReplyHeader, RequestHeader, Status};

impl ShardService {
    /// Opens a block. The first block of a structure with a journal is confirmed when the journal is begun.
    pub(super) fn open_block(
        &mut self,
        owner: BlockOwner,
        journal: Option<Box<JournalAt>>,
        errand: ControllerRequest,
    ) {
        if journal.is_some()
            && let Err(refusal) = self.helpers.flusher.can_write()
        {
            return self.outgoing.tell_link(LinkNote::Done { errand, outcome: Err(refusal) });
        }
        match self.shard.open(owner, journal.map(|journal| *journal)) {
            Err(refusal) => self.confirm(errand, Some(refusal)),
            Ok(None) => self.confirm(errand, None),
            Ok(Some(begin)) => {
                let own = self.outgoing.own();
                self.helpers.flusher.begin_journal(begin, errand, own);
            }
        }
    }

    pub(super) fn reply_of(&mut self, header: &RequestHeader, answer: &Answer) -> ReplyHeader {
        let mut reply = ReplyHeader::new(answer.status, header.request, answer.value);
        reply.durability = match answer.status {
            Status::Ok => self.shard.durability_of(header),
            _ => Durability::Memory,
        };
        reply
    }
}
